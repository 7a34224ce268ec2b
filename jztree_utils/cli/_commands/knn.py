"""``jztree knn``: neighbours of the particles of snapshots, and densities."""

from argparse import Namespace
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jztree.density import knn_density, sph_density

from ... import io
from .._particles import many_devices
from .._particles.particles import Particles
from .._particles.reading import Source
from .._report import is_quiet, number, print_json, print_pairs, say, stage
from . import dry_run
from .earlier_outputs import made_with
from .outputs import Run, prepare_runs
from .snapshots import box_in_words, read_checked


def run_knn(args: Namespace) -> None:
    """Find neighbours of each snapshot's particles, estimate densities, write them, print a summary."""
    mesh = many_devices.all_devices()
    todo = prepare_runs(args, mesh)
    work = dry_run.neighbours(args.k, args.lists)
    dry_run.each_run(args, todo, mesh, work, lambda run, source: _run_one(args, run, source, mesh))


def _run_one(args: Namespace, run: Run, source: Source, mesh: Mesh) -> None:
    part = read_checked(source, ("mass", "id") if args.density else ("id",), mesh)
    with io.failing_together(mesh):
        if args.k > part.num:
            held = f"{part.num} particles of type {source.ptype}"
            raise ValueError(f"-k is {args.k}, but the snapshot holds only {held}; give -k of at most {part.num}.")
    lists = part.find_neighbours(args.k) if args.lists else None
    density = _density(args, part) if args.density else None
    ids = part.column("id")
    with io.failing_together(mesh):
        if lists is not None or density is not None:
            distances, indices = lists or (None, None)
            result = io.Neighbours(
                distances=distances,
                indices=indices,
                density=density,
                k=args.k,
                by_number="mass" not in part.properties,
                ndim=part.ndim,
                id=ids,
                header=part.header,
                made_with=made_with(args, run.path, source.options),
            )
            _finish(args, run, part, result)


def _density(args: Namespace, part: Particles) -> np.ndarray | None:
    boxsize, k, kernel = part.header.boxsize or None, args.k, args.kernel or "knn"

    def density(rows: Any) -> Any:
        if kernel == "knn":
            return knn_density(rows, k, boxsize=boxsize)
        return sph_density(rows, k, boxsize=boxsize, kernel=kernel)

    return part.map_neighbours("estimate densities", density)


def _finish(args: Namespace, run: Run, part: Particles, result: io.Neighbours) -> None:
    """Write and print the neighbours."""
    if run.output is not None:
        with stage("write the neighbours") as report:
            io.write_neighbours(run.output, result)
            report.detail = str(run.output)
    if args.json:
        print_json(_summary(run, part, result))
    elif not is_quiet():
        _tell(part.num, result)


def _summary(run: Run, part: Particles, result: io.Neighbours) -> dict[str, Any]:
    """Return a summary for scripts."""
    ranges = {"last_distance": _last(result), "density": result.density}
    return {
        **run.summary(part, "output", units=("length", "mass")),
        "k": result.num_neighbours,
        **{
            name: dict(zip(("least", "median", "most"), _range(values), strict=True))
            for name, values in ranges.items()
            if values is not None
        },
    }


def _last(result: io.Neighbours) -> np.ndarray | None:
    """Return the distance to the last neighbour of each particle, None without lists."""
    return None if result.distances is None else np.asarray(result.distances)[:, -1]


def _tell(num: int, result: io.Neighbours) -> None:
    """Print the results for ``num`` particles."""
    header = result.header or io.SnapshotHeader()
    length = f" {io.unit_name(header, 'length')}".rstrip()
    pairs = [
        ("particles", f"{num:,}"),
        ("neighbours", f"{result.num_neighbours or 0:,} each, including the particle itself"),
        ("box", f"{box_in_words(header)}{length if header.boxsize else ''}"),
    ]
    last = _last(result)
    if last is not None:
        pairs.append(("distance to the last", _range_in_words(last) + length))
    if result.density is not None:
        mass = "particles" if result.by_number else io.unit_name(header, "mass")
        unit = f" {mass} / ({length.strip()})^{result.ndim}" if mass and length else ""
        pairs.append(("density", _range_in_words(result.density) + unit))
    say()
    print_pairs(pairs)


def _range(values: np.ndarray) -> tuple[float, float, float]:
    return float(values.min()), float(np.median(values)), float(values.max())


def _range_in_words(values: np.ndarray) -> str:
    smallest, median, largest = map(number, _range(values))
    return f"{smallest} to {largest}, median {median}"
