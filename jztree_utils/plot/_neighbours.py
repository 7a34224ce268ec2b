"""Plots of the distances to neighbours, compared with random particles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_units

from .._arrays import box_lengths
from ._figure import Path, drawing
from ._style import COLOURS, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MOST_CURVES = 5
_RANGE = 1000.0  # range of the ordinate
_MOST_BINS = 30  # maximum number of bins for nine tenths of the particles
_LEAST_WIDTH = 0.01  # minimum bin width, in ln r


def plot_neighbour_distances(
    distances: ArrayLike,
    boxsize: ArrayLike | None = 0.0,
    path: Path | None = None,
    *,
    ndim: int = 3,
    first_is_self: bool = True,
    number_density: float | None = None,
    length_unit: str = "",
    title: str = "",
) -> Figure:
    """Plot the distribution of distances to some of the nearest neighbours, and the one for random particles.

    Solid lines show the data, dashed lines the expectation for a Poisson process of the same mean density: the number
    in a ball that reaches to the ``j``-th neighbour follows a gamma distribution (Hertz 1909). Clustered particles are
    closer, and particles in voids farther apart.

    Args:
        distances: ``(n, k)`` from `jztree.knn.nearest`, nearest first; rows of infinite distance are left out.
        boxsize: Size of the box in ``ndim`` dimensions, for the mean density. 0 or None means open; then the dashed
            lines need ``number_density``.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        ndim: Number of dimensions.
        first_is_self: Whether the first column is the particle itself, at distance 0; False for separate query points.
        number_density: Particles per volume; None means ``n`` over the volume of the box.
        length_unit: Unit of length in the label.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If ``distances`` has a wrong shape.
    """
    check_no_units(distances=distances, boxsize=boxsize, number_density=number_density)
    with drawing(path, (6.4, 4.8)) as figure:
        result = _neighbours(distances, first_is_self)
        if number_density is None:
            lengths = box_lengths(boxsize, ndim)
            number_density = len(result) / lengths.prod() if np.all(lengths > 0) else None
        ax = figure.subplots()
        for colour, number in zip(COLOURS, _some(result.shape[1]), strict=False):
            _draw_neighbour(ax, result[:, number - 1], number, ndim, number_density, colour)
        _zoom(ax)
        ax.set(xscale="log", yscale="log", title=title)
        ax.set(xlabel=with_unit("distance $r$", length_unit), ylabel="share of particles / d$\\,$ln$\\,r$")
        if number_density is not None:
            ax.plot([], [], "--", color="0.4", label="at random")
        if ax.lines:
            ax.legend(title="neighbour")
        return figure


def _neighbours(distances: Any, first_is_self: bool) -> np.ndarray:
    """Return ``(n, j)`` distances to others."""
    result = np.asarray(distances)
    if result.ndim != 2 or result.shape[1] < 1 + first_is_self or not len(result):
        raise ValueError(
            f"distances have shape {result.shape}; they must have shape (n, k) with at least one neighbour"
            f"{' in addition to the particle itself' if first_is_self else ''}."
        )
    others = result[:, int(first_is_self) :]
    return others[np.isfinite(others[:, -1])]


def _some(number: int) -> list[int]:
    """Return the last neighbour, and successive halves of its number."""
    selected = [number]
    while selected[-1] > 1 and len(selected) < _MOST_CURVES:
        selected.append(selected[-1] // 2)
    return selected[::-1]


def _draw_neighbour(
    ax: Axes, radius: np.ndarray, number: int, ndim: int, number_density: float | None, colour: str
) -> None:
    offset = radius[radius > 0]  # the logarithm of 0 is undefined
    if len(offset):
        place = np.log(offset)
        largest = np.quantile(place, (0.05, 0.95))
        bins = min(2 * len(place) ** (1 / 3), _MOST_BINS)  # as many as the scatter allows
        width = max(np.ptp(largest) / bins, _LEAST_WIDTH)
        number_of_bins = int(np.ptp(place) / width) + 1
        start = place.min() - (number_of_bins * width - np.ptp(place)) / 2
        counts, edges = np.histogram(place, number_of_bins, (start, start + number_of_bins * width))
        share = counts / len(radius) / np.diff(edges)
        ax.plot(np.exp((edges[1:] + edges[:-1]) / 2), share, color=colour, label=f"{number:,}")
    if number_density is not None:
        centre = (number / number_density / _unit_ball(ndim)) ** (1 / ndim)
        r = centre * np.geomspace(1e-3, 10, 1000)
        expected = poisson_distances(r, number, number_density, ndim)
        seen = expected > expected.max() / _RANGE
        ax.plot(r[seen], expected[seen], "--", color=colour, linewidth=1.4)


def _zoom(ax: Axes) -> None:
    """Limit the axes to the region in which curves are above a thousandth of the highest."""
    curves = [np.asarray(line.get_xydata()) for line in ax.lines]
    top = max((curve[:, 1].max() for curve in curves), default=1.0)
    seen = np.concatenate([curve[curve[:, 1] > top / _RANGE, 0] for curve in curves] or [np.ones(1)])
    ax.set(xlim=(seen.min() / 1.2, seen.max() * 1.2), ylim=(top / _RANGE, 2 * top))


def poisson_distances(r: np.ndarray, number: int, number_density: float, ndim: int) -> np.ndarray:
    """Return the probability per unit ``ln r`` that the ``number``-th nearest random particle is at ``r``."""
    inside = number_density * _unit_ball(ndim) * r**ndim
    return ndim * np.exp(number * np.log(inside) - inside - math.lgamma(number))


def _unit_ball(ndim: int) -> float:
    return math.pi ** (ndim / 2) / math.gamma(ndim / 2 + 1)
