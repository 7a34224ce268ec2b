"""``jztree hdbscan``: clusters of snapshots at all densities."""

from argparse import Namespace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jztree.data import FofCatalogue

from ... import hdbscan, io, plot
from .._particles import many_devices
from .._particles.particles import Particles
from .._particles.reading import Source
from .._report import column, is_quiet, number, print_json, print_pairs, print_table, say, stage
from . import dry_run
from .earlier_outputs import made_with
from .outputs import Run, prepare_runs
from .snapshots import box_in_words, read_checked

_LARGEST = 10  # number of clusters in the printed table


def run_hdbscan(args: Namespace) -> None:
    """Find clusters in each snapshot, write them, plot them, print a summary."""
    mesh = many_devices.all_devices()
    todo = prepare_runs(args, mesh)
    work = dry_run.clusters(args.min_samples)
    dry_run.each_run(args, todo, mesh, work, lambda run, source: _run_one(args, run, source, mesh))


def _run_one(args: Namespace, run: Run, source: Source, mesh: Mesh) -> None:
    part = read_checked(source, ("id",), mesh)
    with io.failing_together(mesh):
        if args.min_samples > part.num:
            raise ValueError(
                f"--min-samples (by default --min-cluster-size) is {args.min_samples}, but the number of particles of "
                f"type {source.ptype} is {part.num}; give at most this number."
            )
    tree = part.find_dendrogram(args.min_samples)
    pos, ids = part.column("pos"), part.column("id")
    with io.failing_together(mesh):
        if tree is not None:
            with stage("select clusters"):
                clusters = hdbscan.hdbscan(
                    tree,
                    args.min_cluster_size,
                    cluster_selection_epsilon=args.epsilon,
                    cluster_selection_method=args.method,
                    allow_single_cluster=args.single,
                    points=np.asarray(pos),
                    boxsize=part.header.boxsize,
                )
                result = _by_size(clusters, np.asarray(pos), part.header)
            result.id, result.made_with = ids, made_with(args, run.path, source.options)
            _finish(args, run, part, pos, result)


def _by_size(clusters: hdbscan.Clusters, pos: np.ndarray, header: io.SnapshotHeader) -> io.ParticleClusters:
    """Return the clusters, the largest first, with their centres and radii."""
    count = np.bincount(clusters.labels[clusters.labels >= 0])
    order = np.argsort(-count, kind="stable")
    label = np.append(np.argsort(order), -1)[clusters.labels]
    box = np.broadcast_to(np.asarray(header.boxsize or 0.0, np.float64), pos.shape[1:])
    centre = hdbscan.centroids(pos.astype(np.float64), label, clusters.probabilities, box)
    return io.ParticleClusters(
        label=label,
        probability=clusters.probabilities,
        outlier_score=clusters.outlier_scores,
        count=count[order],
        centre=centre,
        max_radius=hdbscan.radii(pos, label, centre, box),
        header=header,
    )


def _finish(args: Namespace, run: Run, part: Particles, pos: Any, result: io.ParticleClusters) -> None:
    """Write, plot and print the clusters."""
    if run.output is not None:
        with stage("write the clusters") as report:
            io.write_clusters(run.output, result)
            report.detail = str(run.output)
    if run.plot is not None:
        with stage("draw the clusters", part.num) as report:
            _draw(run.plot, pos, result, part.header)
            report.detail = str(run.plot)
    if args.json:
        print_json(_summary(args, run, part, result))
    elif not is_quiet():
        _tell(part, result)


def _draw(path: str, pos: Any, result: io.ParticleClusters, header: io.SnapshotHeader) -> None:
    catalogue = FofCatalogue(
        ngroups=len(result.count),
        count=result.count,
        offset=np.cumsum(result.count) - result.count,
        com_pos=result.centre,
        max_radius=result.max_radius,
    )
    length = io.unit_name(header, "length")
    plot.plot_halos(pos, catalogue, header.boxsize, path, length_unit=length, title=f"{len(pos):,} particles")


def _summary(args: Namespace, run: Run, part: Particles, result: io.ParticleClusters) -> dict[str, Any]:
    """Return a summary for scripts."""
    rows = slice(0, _LARGEST)
    return {
        **run.summary(part, "output", "plot"),
        "clusters": len(result.count),
        "particles_in_clusters": int(result.count.sum()),
        "min_cluster_size": args.min_cluster_size,
        "min_samples": args.min_samples,
        "largest": {name: getattr(result, name)[rows] for name in ("count", "centre", "max_radius")},
    }


def _tell(part: Particles, result: io.ParticleClusters) -> None:
    length, grouped = io.unit_name(part.header, "length"), int(result.count.sum())
    pairs = [
        ("clusters", f"{len(result.count):,}"),
        ("particles in clusters", f"{grouped:,} of {part.num:,} ({100 * grouped / part.num:.1f} %)"),
        ("box", f"{box_in_words(part.header)}{f' {length}' if length and part.header.boxsize else ''}"),
    ]
    if len(result.count):
        smallest, median, largest = result.count.min(), np.median(result.count), result.count.max()
        pairs.append(("cluster sizes", f"{smallest:,} to {largest:,} particles, median {median:,.0f}"))
    say()
    print_pairs(pairs)
    if len(result.count):
        say()
        print_table(*_largest(result, length))


def _largest(result: io.ParticleClusters, length: str) -> tuple[list[str], list[list[str]]]:
    """Return heading and rows of the table of the largest clusters."""
    unit, rows = f" [{length}]" if length else "", slice(0, _LARGEST)
    centre = result.centre[rows]
    columns = [("cluster", [number(row) for row in range(len(centre))])]
    columns.append(("particles", [number(int(count)) for count in result.count[rows]]))
    columns += [
        (("xyz"[axis] if axis < 3 else f"x{axis}") + unit, column(centre[:, axis])) for axis in range(centre.shape[1])
    ]
    columns.append((f"radius{unit}", column(result.max_radius[rows])))
    return [name for name, _ in columns], [[cells[row] for _, cells in columns] for row in range(len(centre))]
