"""Pictures of merger trees and of mass histories."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from ..trees import MergerTrees
from ._figure import Path, drawing
from ._style import COLOURS, label_logarithmic, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_AREA = 400.0  # of the marker of the largest mass, in square points


def plot_merger_tree(
    trees: MergerTrees,
    row: int,
    path: Path | None = None,
    *,
    min_mass: float = 0.0,
    redshifts: Mapping[int, float] | None = None,
    mass_unit: str = "",
    title: str = "",
) -> "Figure":
    """Plot the progenitors of a subhalo: time runs upwards, and each branch is a line that ends at its merger.

    The area of a marker is proportional to the bound mass. The main branch is on the left, and the other branches
    follow in the order of the tree. A dashed line skips an output in which the subhalo was lost.

    Args:
        trees: The merger trees.
        row: The row of the subhalo in ``trees``, for example that of the most massive one.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        min_mass: Branches that never reach this mass are left out, except the main branch.
        redshifts: The redshift of each snapshot, for the labels of the axis. None shows the numbers of snapshots.
        mass_unit: Unit of mass in the legend.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        IndexError: If ``row`` is not in the trees.
    """
    _check_row(trees, row)
    rows = trees.branch(row)
    column = _columns(trees, rows, min_mass)
    rows, column = rows[column >= 0], column[column >= 0]
    places = dict(zip(rows.tolist(), column.tolist(), strict=True))
    linked = rows[rows != row]
    lines = [
        [(places[i], trees.snapshot[i]), (places[j], trees.snapshot[j])]
        for i, j in zip(linked.tolist(), trees.descendant[linked].tolist(), strict=True)
    ]
    largest = trees.mass[rows].max()
    with drawing(path, (7.2, 5.8)) as figure:
        from matplotlib.collections import LineCollection  # noqa: PLC0415 - matplotlib is optional

        ax = figure.subplots()
        styles = np.where(trees.skips[linked], "--", "-").tolist()
        ax.add_collection(LineCollection(lines, colors="0.6", linestyles=styles, linewidths=1.2, zorder=1))
        area = _AREA * trees.mass[rows] / largest
        ax.scatter(column, trees.snapshot[rows], s=area, color=COLOURS[0], linewidths=0, zorder=2)
        ax.scatter([], [], s=_AREA / 10, color=COLOURS[0], label=f"mass {largest / 10:.3g} {mass_unit}".rstrip())
        _label_times(ax, trees.snapshot[rows], redshifts)
        ax.set(xticks=[], xlabel=f"{column.max() + 1:,} branches", title=title)
        ax.grid(visible=False, axis="x")
        ax.legend(loc="upper right")
        return figure


def plot_mass_histories(
    trees: MergerTrees,
    rows: Sequence[int],
    path: Path | None = None,
    *,
    labels: Sequence[str] = (),
    redshifts: Mapping[int, float] | None = None,
    mass_unit: str = "",
    title: str = "",
) -> "Figure":
    """Plot the bound masses on the main branches of subhaloes against time.

    Args:
        trees: The merger trees.
        rows: The rows of the subhaloes in ``trees``.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        labels: The name of each subhalo in the legend. An empty list draws no legend.
        redshifts: The redshift of each snapshot. None shows the numbers of snapshots.
        mass_unit: Unit of mass in the label.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        IndexError: If one of ``rows`` is not in the trees.
        ValueError: If the number of labels differs from the number of rows.
    """
    if labels and len(labels) != len(rows):
        raise ValueError(f"labels has {len(labels)} names for {len(rows)} rows; pass one for each row.")
    with drawing(path, (7.2, 5.2)) as figure:
        ax = figure.subplots()
        for number, row in enumerate(rows):
            _check_row(trees, row)
            branch = trees.main_branch(row)
            times = trees.snapshot[branch]
            x = [redshifts[time] + 1 for time in times.tolist()] if redshifts is not None else times
            name = labels[number] if labels else None
            ax.plot(x, trees.mass[branch], color=COLOURS[number % len(COLOURS)], marker=".", label=name)
        ax.set(yscale="log", ylabel=with_unit("bound mass", mass_unit), title=title)
        if redshifts is None:
            ax.set(xlabel="snapshot")
        else:
            ax.set(xscale="log", xlabel="1 + redshift")
            label_logarithmic(ax.xaxis)
            ax.invert_xaxis()
        label_logarithmic(ax.yaxis)
        if labels:
            ax.legend()
        return figure


def _check_row(trees: MergerTrees, row: int) -> None:
    if not 0 <= row < len(trees):
        raise IndexError(f"row is {row}; it must be from 0 to {len(trees) - 1}, a row of the trees.")


def _columns(trees: MergerTrees, rows: np.ndarray, min_mass: float) -> np.ndarray:
    """Return the number of the branch of each row of a tree, -1 for branches that are left out."""
    first = rows[0]
    # Depth-first order: a row that does not follow its descendant on the main branch begins a branch.
    begins = np.append(True, trees.first_progenitor[rows[:-1]] != rows[1:])
    branch = np.cumsum(begins) - 1
    is_large = np.zeros(branch[-1] + 1, bool)
    np.logical_or.at(is_large, branch, trees.mass[rows] >= min_mass)
    is_large[0] = True
    # A branch that merges into one that is left out is left out too.
    for start in np.flatnonzero(begins)[1:].tolist():
        is_large[branch[start]] &= is_large[branch[trees.descendant[rows[start]] - first]]
    number = np.cumsum(is_large) - 1
    return np.where(is_large[branch], number[branch], -1)


def _label_times(ax: "Axes", snapshots: np.ndarray, redshifts: Mapping[int, float] | None) -> None:
    """Label the ordinate with redshifts, or with the numbers of snapshots."""
    times = np.unique(snapshots)
    step = max(len(times) // 10, 1)
    labelled = times[::-step][::-1]
    names = [f"{redshifts[time]:.3g}" if redshifts is not None else str(time) for time in labelled.tolist()]
    ax.set_yticks(labelled, names)
    ax.set_ylabel("snapshot" if redshifts is None else "redshift")
