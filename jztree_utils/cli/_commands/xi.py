"""``jztree xi``: the two-point correlation function of the particles of snapshots in periodic boxes."""

from argparse import Namespace
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from jax.sharding import Mesh

from ... import io, plot
from ...correlation import Correlation, power_law, wp_from_counts, xi_from_counts
from .._particles import many_devices
from .._particles.particles import Particles
from .._particles.reading import Source
from .._report import is_quiet, number, print_json, print_pairs, print_table, say, stage, warnings_told
from . import dry_run
from .argument_checks import range_of_bins
from .earlier_outputs import made_with
from .outputs import Run, prepare_runs
from .snapshots import box_in_words, open_checked, read_checked

_BINS = 20
_LEAST, _MOST = 0.1, 0.1  # in mean separations and in shortest box sides: default start and end of the bins
_STEPS = 40  # bins along the line of sight
_AXES = {"x": 0, "y": 1, "z": 2}


@dataclass(frozen=True)
class _Bins:
    """Edges of the distance; with ``along``, edges of the distances across and along the line of sight."""

    edges: np.ndarray
    along: np.ndarray | None
    los: int

    @property
    def statistic(self) -> str:
        return "xi" if self.along is None else "wp"

    def correlation(self, count: np.ndarray, num: int, box: tuple[float, ...]) -> Correlation:
        if self.along is None:
            return xi_from_counts(count, num, self.edges, box)
        return wp_from_counts(count, num, self.edges, self.along, box, self.los)


def run_xi(args: Namespace) -> None:
    """Count pairs in each snapshot; write, plot and print the correlation function."""
    mesh = many_devices.all_devices()
    todo = prepare_runs(args, mesh)

    bins: dict[Path, _Bins] = {}

    def check(source: Source) -> None:
        with io.failing_together(mesh):
            bins[source.path] = _bins_of(args, open_checked(source, None)[0])

    def measure(run: Run, source: Source) -> None:
        _run_one(args, run, source, bins[source.path], mesh)

    dry_run.each_run(args, todo, mesh, dry_run.pairs(), measure, check=check)


def _bins_of(args: Namespace, snapshot: io.Snapshot) -> _Bins:
    """Return the bins for a snapshot. Raises ValueError if its box is not periodic, or bins exceed half of it."""
    box, (ndim,) = _lengths_of(snapshot), snapshot.layout("pos")[1]
    low, high, count = range_of_bins(args) or (
        _LEAST * float(np.prod(box) / max(snapshot.num, 1)) ** (1 / ndim),
        _MOST * min(box),
        _BINS,
    )
    # For one particle in a cube both are the same, apart from rounding.
    if args.bins is None and not low < 0.999 * high:
        raise ValueError(
            f"The {snapshot.num} particles are too far apart for the default bins, which would start at {low:g} and "
            f"end at {high:g}; give --bins."
        )
    edges = np.linspace(low, high, count + 1) if args.linear else np.geomspace(low, high, count + 1)
    edges[0], edges[-1] = low, high  # exactly the given values
    if not np.all(np.diff(edges) > 0):
        raise ValueError(f"--bins is {args.bins}; {count} bins are too narrow for distinct edges; give fewer bins.")
    if args.projected is None:
        _check_reach("--bins", high, min(box))
        return _Bins(edges, None, -1)
    los = _AXES[args.los or "z"]
    if ndim != 3:
        raise ValueError(f"--projected needs 3 dimensions, but the particles have {ndim}; leave it out.")
    _check_reach("--projected", args.projected, box[los])
    _check_reach("--bins", high, min(length for axis, length in enumerate(box) if axis != los))
    return _Bins(edges, np.linspace(0, args.projected, _STEPS + 1), los)


def _lengths_of(snapshot: io.Snapshot) -> tuple[float, ...]:
    """Return the lengths of the box. Raises ValueError if a dimension is open."""
    (ndim,) = snapshot.layout("pos")[1]
    box = tuple(np.broadcast_to(np.asarray(snapshot.header.boxsize or 0.0, np.float64), (ndim,)).tolist())
    if not all(length > 0 for length in box):
        raise ValueError(
            "The box is open, but the number of random pairs is known only for periodic boxes; give --boxsize, or use "
            "jztree_utils.correlation.xi in Python with random particles in the same volume."
        )
    return box


def _check_reach(option: str, length: float, side: float) -> None:
    if length > side / 2:
        raise ValueError(f"{option} ends at {length:g}, but it must end at half the box, {side / 2:g}, or before.")


def _run_one(args: Namespace, run: Run, source: Source, bins: _Bins, mesh: Mesh) -> None:
    part = read_checked(source, (), mesh)
    count = part.count_pairs(bins.edges, bins.along, bins.los)
    with io.failing_together(mesh):
        if count is not None:
            with warnings_told():
                result = bins.correlation(count, part.num, _lengths_of(part.snapshot))
            _finish(args, run, part, bins, result, made_with(args, run.path, source.options))


def _finish(args: Namespace, run: Run, part: Particles, bins: _Bins, result: Correlation, created: str) -> None:
    """Write, plot and print the correlation function."""
    if run.output is not None:
        with stage("write the correlation function") as report:
            io.write_correlation(run.output, result, part.header, bins.along, bins.los % part.ndim, part.num, created)
            report.detail = run.output
    length = io.unit_name(part.header, "length")
    if run.plot is not None:
        with stage("draw the correlation function") as report:
            plot.plot_correlation(result, run.plot, length_unit=length)
            report.detail = run.plot
    if args.json:
        print_json(_summary(run, part, bins, result))
    elif not is_quiet():
        _tell(part, bins, result, length)


def _summary(run: Run, part: Particles, bins: _Bins, result: Correlation) -> dict[str, Any]:
    """Return a summary for scripts."""
    return {
        **run.summary(part, "output", "plot"),
        "statistic": bins.statistic,
        "pi_max": None if bins.along is None else float(bins.along[-1]),
        "edges": result.edges.tolist(),
        "value": [None if np.isnan(number) else number for number in result.value.tolist()],
        "pairs": result.pairs.tolist(),
    }


def _tell(part: Particles, bins: _Bins, result: Correlation, length: str) -> None:
    unit = f" {length}".rstrip()
    pairs = [
        ("particles", f"{part.num:,}"),
        ("box", f"{box_in_words(part.header)}{unit}"),
        ("pairs", f"{result.pairs.sum():,}, each in both orders"),
    ]
    if bins.along is not None:
        axis = "xyz"[bins.los]
        pairs.append(("along the line of sight", f"up to {number(float(bins.along[-1]))}{unit}, which is {axis}"))
    pairs += _power_law_in_words(bins, result, unit)
    say()
    print_pairs(pairs)
    say()
    names = ("r", "xi") if bins.along is None else ("rp", "wp")
    heads = [f"{name}{f' [{length}]' if length else ''}" for name in ("from", "to")]
    value = names[1] + (f" [{length}]" if length and bins.along is not None else "")
    rows = zip(result.edges[:-1], result.edges[1:], result.pairs, result.value, strict=True)
    print_table(
        [f"{names[0]} {heads[0]}", heads[1], "pairs", value],
        [[f"{low:.5g}", f"{high:.5g}", f"{held:,}", f"{value:.5g}"] for low, high, held, value in rows],
    )


def _power_law_in_words(bins: _Bins, result: Correlation, unit: str) -> list[tuple[str, str]]:
    """Describe the best-fitting power law, if there is one."""
    if bins.along is not None:
        return []
    try:
        r0, gamma = power_law(result)
    except ValueError:
        return []
    return [("power law", f"(r / {number(r0)}{unit})^-{gamma:.3g}, fitted to all positive bins")]
