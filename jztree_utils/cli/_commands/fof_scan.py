"""``jztree fof --scan-b``: the number of groups against the linking length, from one spanning tree."""

from argparse import Namespace
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh

from jztree.hierarchy import Dendrogram

from ... import io, plot
from .._particles.particles import Particles
from .._particles.reading import Source
from .._report import is_quiet, number, print_json, print_pairs, print_table, say, stage, warn
from . import dry_run
from .argument_checks import scan_range
from .outputs import Run, prepare_runs
from .snapshots import box_in_words, read_checked


@dataclass(frozen=True)
class Scan:
    """Groups of at least some number of particles at several linking lengths.

    Attributes:
        b: Linking lengths in mean separations.
        rlink: Linking lengths.
        groups: Numbers of groups.
        members: Numbers of particles in these groups.
        largest: Numbers of particles in the largest group, 0 without groups.
    """

    b: np.ndarray
    rlink: np.ndarray
    groups: np.ndarray
    members: np.ndarray
    largest: np.ndarray


def run_scan(args: Namespace, mesh: Mesh) -> None:
    """Find the groups of each snapshot at all linking lengths of ``--scan-b``, plot their numbers, print a table."""
    todo = prepare_runs(args, mesh)
    b = np.linspace(*scan_range(args.scan_b))

    def scan(run: Run, source: Source) -> None:
        _run_one(args, run, read_checked(source, ("mass",), mesh), b, mesh)

    dry_run.each_run(args, todo, mesh, dry_run.clusters(), scan)


def _run_one(args: Namespace, run: Run, part: Particles, b: np.ndarray, mesh: Mesh) -> None:
    separation = part.separation
    if separation is None:
        raise ValueError("The snapshot has no BoxSize, so the mean separation is unknown; give the box with --boxsize.")
    clusters = part.find_dendrogram()
    with io.failing_together(mesh):
        if clusters is not None:
            result = count_groups(clusters, b, b * separation.value, args.npart_min)
            _finish(args, run, part, result)
            if separation.doubt:
                warn(f"{separation.doubt} If it is wrong, give the correct --boxsize.")


def _finish(args: Namespace, run: Run, part: Particles, result: Scan) -> None:
    """Plot and print the numbers of groups."""
    if run.plot is not None:
        with stage("draw the numbers of groups") as report:
            plot.plot_group_numbers(result.b, result.groups, run.plot, npart_min=args.npart_min)
            report.detail = str(run.plot)
    if args.json:
        print_json(_summary(args, run, part, result))
    elif not is_quiet():
        _tell(args, part, result)


def count_groups(clusters: Dendrogram, b: np.ndarray, rlink: np.ndarray, smallest: int) -> Scan:
    """Count the groups of at least ``least`` particles at linking lengths ``rlink``.

    A cluster is a group from the length of the edge that forms it until before that of the edge that joins it to
    another. A particle alone is a group from 0 on.
    """
    rows, birth = clusters.rows, clusters.exact_lengths()
    count = np.asarray(clusters.count, np.int64)[: len(birth)]
    parent = np.asarray(clusters.parent)
    parent = np.concatenate([parent[:rows], parent[rows : rows + len(birth)]])
    death = np.append(birth, np.inf)[np.where(parent < 0, len(birth), parent - rows)]
    birth, count = np.append(np.full(rows, -np.inf), birth), np.append(np.ones(rows, np.int64), count)
    listed = count >= smallest
    birth, death, count = birth[listed], death[listed], count[listed]

    def before(length: np.ndarray, values: np.ndarray) -> np.ndarray:
        """Return, for each linking length, the sum of the values of clusters whose ``length`` is at most this."""
        order = np.argsort(length, kind="stable")
        sums = np.append(0, np.cumsum(values[order]))
        return np.asarray(sums[np.searchsorted(length[order], rlink, "right")])

    order = np.argsort(birth, kind="stable")
    largest = np.append(0, np.maximum.accumulate(count[order]))[np.searchsorted(birth[order], rlink, "right")]
    ones = np.ones_like(count)
    groups, members = (before(birth, values) - before(death, values) for values in (ones, count))
    return Scan(b, rlink, groups, members, largest)


def _summary(args: Namespace, run: Run, part: Particles, result: Scan) -> dict[str, Any]:
    """Return a summary for scripts."""
    return {
        **run.summary(part, "plot"),
        "npart_min": args.npart_min,
        "mean_separation": None if part.separation is None else asdict(part.separation),
        "b": result.b.tolist(),
        "linking_length": result.rlink.tolist(),
        "groups": result.groups.tolist(),
        "particles_in_groups": result.members.tolist(),
        "largest": result.largest.tolist(),
    }


def _tell(args: Namespace, part: Particles, result: Scan) -> None:
    length = f" {io.unit_name(part.header, 'length')}".rstrip()
    maximum = int(np.argmax(result.groups))
    separation = part.separation
    assert separation is not None
    say()
    print_pairs(
        [
            ("particles", f"{part.num:,}"),
            ("groups", f"of at least {args.npart_min:,} particles"),
            ("mean separation", f"{number(separation.value)}{length}, {separation}"),
            ("box", f"{box_in_words(part.header)}{length if part.header.boxsize else ''}"),
            ("most groups", f"{result.groups[maximum]:,} at b = {result.b[maximum]:.5g}"),
        ]
    )
    say()
    unit = f" [{length.strip()}]" if length else ""
    rows = zip(result.b, result.rlink, result.groups, result.members, result.largest, strict=True)
    print_table(
        ["b", f"linking length{unit}", "groups", "particles in groups", "largest group"],
        [
            [f"{b:.5g}", f"{rlink:.5g}", f"{groups:,}", f"{100 * members / max(part.num, 1):.1f} %", f"{largest:,}"]
            for b, rlink, groups, members, largest in rows
        ],
    )
