"""Pictures of the tree of clusters at all linking lengths."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from jztree.hierarchy import Dendrogram

from ..hdbscan import Clusters, CondensedTree, rows_of
from ._figure import Path, drawing
from ._style import COLOURS, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_OTHER = "0.75"  # grey of clusters that are not selected


def plot_dendrogram(
    tree: Dendrogram, path: Path | None = None, *, min_count: int = 20, length_unit: str = "", title: str = ""
) -> "Figure":
    """Plot the clusters of a dendrogram, without clusters of few particles.

    A vertical line is a cluster between the lengths at which it appears and at which it joins another. A horizontal
    line is the edge that joins two clusters. Line widths grow with the logarithm of the number of particles.

    Args:
        tree: The dendrogram. Padding is ignored.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        min_count: The least number of particles of the clusters to show, at least 2.
        length_unit: Unit of length in the label.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If ``min_count`` is below 2.
    """
    if min_count < 2:
        raise ValueError(f"min_count is {min_count}; it must be at least 2, the number of particles of a cluster.")
    with drawing(path, (7.2, 5.2)) as figure:
        ax = figure.subplots()
        lines, widths = _lines_of(tree, min_count)
        from matplotlib.collections import LineCollection  # noqa: PLC0415 - matplotlib is optional

        ax.add_collection(LineCollection(lines, linewidths=widths, colors=COLOURS[0]))
        scale = "log" if any(line[:, 1].all() for line in lines) else "linear"
        ax.set(yscale=scale, ylabel=with_unit("length", length_unit), title=title, xticks=[])
        ax.set_xlabel(f"clusters of at least {min_count:,} particles")
        ax.grid(visible=False, axis="x")
        ax.autoscale_view()
        return figure


def plot_condensed_tree(
    clusters: Clusters, path: Path | None = None, *, length_unit: str = "", title: str = ""
) -> "Figure":
    """Plot the condensed tree of HDBSCAN*: the number of particles of each cluster against the length.

    The width of a cluster at a length is its number of particles. It shrinks where particles leave, and splits where
    two large parts separate. Selected clusters have colours.

    Args:
        clusters: The result of `jztree_utils.hdbscan.hdbscan`.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        length_unit: Unit of length in the label.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
    """
    with drawing(path, (7.2, 5.2)) as figure:
        ax = figure.subplots()
        colours = _colours_of(clusters)
        for outline in _outlines(clusters.tree):
            ax.fill_betweenx(
                outline.length, outline.left, outline.right, step="pre", color=colours[outline.cluster], linewidth=0
            )
        ax.set(yscale="log", xlabel="particles", ylabel=with_unit("length", length_unit), title=title)
        return figure


def _lines_of(tree: Dendrogram, smallest: int) -> tuple[list[np.ndarray], list[float]]:
    """Return the lines of clusters with at least ``least`` particles, and their widths."""
    n, length, parent = tree.rows, tree.exact_lengths(), np.asarray(tree.parent)[tree.rows :]
    count, children = np.asarray(tree.count), np.stack([np.asarray(tree.left), np.asarray(tree.right)], axis=1)
    lines: list[np.ndarray] = []
    widths: list[float] = []
    place: dict[int, float] = {}  # abscissa of each finished branch, by the number of its last edge
    slots = 0
    waiting = [(len(length) - 1, False)] if len(length) and count[len(length) - 1] >= smallest else []
    while waiting:
        top, is_split = waiting.pop()
        bottom, large = _branch(top, n, children, count, smallest)
        if large and not is_split:
            waiting += [(top, True), *((edge, False) for edge in large)]
            continue
        if large:
            x = [place.pop(edge) for edge in large]
            place[top] = sum(x) / 2
            lines.append(np.array([[x[0], length[bottom]], [x[1], length[bottom]]]))
            widths.append(_width(count[bottom], smallest))
        else:
            place[top], slots = float(slots), slots + 1
        # The last cluster joins no other.
        above = length[parent[top] - n] if parent[top] >= 0 else 1.1 * length[top]
        lines.append(np.array([[place[top], length[bottom]], [place[top], above]]))
        widths.append(_width(count[top], smallest))
    return lines, widths


def _branch(top: int, n: int, children: np.ndarray, count: np.ndarray, smallest: int) -> tuple[int, list[int]]:
    """Follow the only large part of a cluster downwards. Return the last edge, and the edges of its two large parts."""
    edge = top
    while True:
        large = [int(child) - n for child in children[edge] if child >= n and count[child - n] >= smallest]
        if len(large) != 1:
            return edge, large
        edge = large[0]


def _width(count: int, smallest: int) -> float:
    return 1.0 + float(np.log10(count / smallest))


@dataclass(frozen=True)
class _Outline:
    """The shape of a cluster: from ``left`` to ``right`` at each ``length``, longest first."""

    cluster: int
    length: np.ndarray
    left: np.ndarray
    right: np.ndarray


def _outlines(tree: CondensedTree) -> Iterator[_Outline]:
    """Yield the shape of each cluster. The parts of a cluster are within its shape at the length of the split."""
    number = len(tree.parent)
    levels = np.concatenate([tree.level, tree.birth])
    finite = levels[np.isfinite(levels) & (levels > 0)]
    # Coincident particles never leave.
    first, last = (finite.min() / 1.1, finite.max()) if len(finite) else (1.0, 1.0)
    start = np.zeros(number)
    for one, (points, parts) in enumerate(
        zip(rows_of(tree.cluster, number), rows_of(tree.parent, number), strict=True)
    ):
        leave = np.sort(np.clip(tree.level[points], first, last))
        end = tree.birth[parts[0]] if len(parts) else (leave[-1] if len(leave) else last)
        level = np.concatenate([[max(tree.birth[one], first)], leave, [end]])
        width = tree.size[one] - np.concatenate([[0], np.arange(len(leave)), [len(leave)]])
        left = start[one] + (tree.size[one] - width) / 2
        inside = left[-1]
        for part in parts:
            start[part] = inside
            inside += tree.size[part]
        yield _Outline(one, 1 / level, left, left + width)


def _colours_of(clusters: Clusters) -> list[str]:
    """Return the colour of each cluster of the condensed tree: of the selected cluster that contains it, or grey."""
    tree = clusters.tree
    selected = np.full(len(tree.parent), -1)
    selected[clusters.selected] = np.arange(len(clusters.selected))
    colours = []
    for cluster, parent in enumerate(tree.parent):
        if selected[cluster] < 0 and parent >= 0:
            selected[cluster] = selected[parent]
        colours.append(_OTHER if selected[cluster] < 0 else COLOURS[selected[cluster] % len(COLOURS)])
    return colours
