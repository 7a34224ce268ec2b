"""The projected density of particles, with circles around groups."""

from __future__ import annotations

# ruff: noqa: PLC0415 - matplotlib is optional
import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import FofCatalogue, check_no_units, squeeze_catalogue

from .._arrays import box_lengths
from ._figure import Path, drawing
from ._groups import draw_sizes
from ._smoothing import spread, widths, within
from ._style import ON_DARK, with_unit

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLOCK = 2**22  # number of particles projected at a time, so that temporary arrays stay small
_COLOUR_MAP = "magma"
_CIRCLE = "#7fd6ff"
_SPHERES = ("r200m", "r200c", "r500c")  # in order of decreasing radius
_LEGEND_WIDTH, _LEGEND_SIZE = 40, 8  # characters, and points: the legend should hide little
_OVERDENSITY = 200  # overdensity of the balls that represent groups of unknown size
_IN_PIXEL = 4  # mean number of particles per pixel: with fewer, shot noise hides the structure
_TICKS = 6  # at most, so that there is space for five-digit numbers
_SMOOTH_PIXELS = 400
_DARKEST, _RANGE = 2, 1e5  # percentage of smoothed pixels as dark as empty ones; brightest over darkest
_EMPTY = 0.3  # number of particles that an empty pixel shows, in the darkest colour


def plot_density(
    pos: ArrayLike,
    boxsize: ArrayLike | None = 0.0,
    path: Path | None = None,
    *,
    catalogue: FofCatalogue | None = None,
    mass: ArrayLike | None = None,
    num_circles: int = 30,
    axes: tuple[int, int] = (0, 1),
    bins: int | None = None,
    slab: tuple[float, float] | None = None,
    smooth: int = 0,
    length_unit: str = "",
    mass_unit: str = "",
    redshift: float | None = None,
    circles: str = "",
    title: str = "",
) -> Figure:
    """Plot the projected density of particles, in units of its mean, with circles around the largest groups.

    Args:
        pos: ``(n, d)`` positions of the particles, d at least 2; all dimensions but two are projected.
        boxsize: Length of the periodic box, or one length per dimension; 0 or None means open, and the picture spans
            the particles.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        catalogue: Groups of ``d`` dimensions. The radius of a circle is the group's ``max_radius``, or its replacement
            from `with_radii`. Circles are repeated across the periodic boundary. None draws no circles.
        mass: ``(n,)`` masses of the particles; None counts them.
        num_circles: Number of the largest groups that get a circle.
        axes: The two dimensions to show.
        bins: Pixels along the longer side. None chooses four particles per pixel on average, from 64 to 600 pixels, or
            400 pixels with ``smooth``.
        slab: Show only particles between these two coordinates along the first projected dimension, and groups with
            centres there. In a periodic box the first coordinate may be the larger one.
        smooth: Number of a neighbour, such as 16. Spread each particle over a Gaussian whose standard deviation is half
            the distance to this neighbour, so that voids show no noise. 0 counts particles in pixels. Values of 8 to 32
            look good.
        length_unit: Unit of length in the labels.
        mass_unit: If set, colours are masses over areas in these units, instead of multiples of the mean.
        redshift: Redshift in the title; None shows none.
        circles: Meaning of the radius of a circle in the legend; by default the words of `with_radii`.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If an array has a wrong shape, or a position is NaN or infinite.
    """
    with drawing(path, (7.2, 6.0)) as figure:
        check_no_units(pos=pos, mass=mass, slab=slab)
        total = len(np.asarray(pos))
        groups, words = (None, "") if catalogue is None else with_radii(catalogue, total, boxsize)
        groups, slice_words = None if groups is None else squeeze_catalogue(groups), ""
        if slab is not None:
            pos, mass, groups, along = within(slab, axes, boxsize, pos, mass, groups)
            slice_words = f"slab from {slab[0]:g} to {slab[1]:g} {length_unit}".rstrip() + f" along {_name(along)}"
        shown = view_of(pos, boxsize, axes)
        shown.widths = widths(pos, boxsize, smooth) if smooth else None
        shown.set_unit(mass, mass_unit, length_unit)
        shown.circles = circles or words
        heading = caption(title, redshift, slice_words)
        draw(figure.subplots(), shown, mass, bins, groups, num_circles, length_unit, heading)
        return figure


def plot_halos(
    pos: ArrayLike,
    catalogue: FofCatalogue,
    boxsize: ArrayLike | None = 0.0,
    path: Path | None = None,
    *,
    num_circles: int = 30,
    axes: tuple[int, int] = (0, 1),
    bins: int | None = None,
    length_unit: str = "",
    mass_unit: str = "",
    redshift: float | None = None,
    circles: str = "",
    title: str = "",
) -> Figure:
    """Plot the projected density with circles around the largest groups, and the distribution of group sizes.

    Args:
        pos: ``(n, d)`` positions of the particles, d at least 2; all dimensions but two are projected. Objects that
            are not arrays, but have a length and slices of rows, are read slice by slice.
        catalogue: Groups of ``d`` dimensions. The radius of a circle is the group's ``max_radius``, or its replacement
            from `with_radii`. Circles are repeated across the periodic boundary. The second panel shows masses if the
            catalogue has them, otherwise numbers of particles.
        boxsize: Length of the periodic box, or one length per dimension; 0 or None means open, and the picture spans
            the particles.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        num_circles: Number of the largest groups that get a circle.
        axes: The two dimensions to show.
        bins: Pixels along the longer side of the density. None chooses four particles per pixel on average, from 64 to
            600 pixels.
        length_unit, mass_unit: Units in the labels.
        redshift: Redshift in the title; None shows none.
        circles: Meaning of the radius of a circle in the legend; by default the words of `with_radii`.
        title: Title above the density.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If an array has a wrong shape, or a position is NaN or infinite.
    """
    with drawing(path, (11.2, 5.2)) as figure:
        shown = view_of(pos, boxsize, axes)
        density_axes, size_axes = figure.subplots(1, 2, width_ratios=(1.25, 1))
        groups, words = with_radii(catalogue, len(shown.points), boxsize)
        shown.circles = circles or words
        draw(density_axes, shown, None, bins, groups, num_circles, length_unit, caption(title, redshift))
        draw_sizes(size_axes, squeeze_catalogue(catalogue), mass_unit)
        return figure


def with_radii(
    catalogue: FofCatalogue, num: int, boxsize: ArrayLike | None = 0.0, spheres: Mapping[str, ArrayLike] | None = None
) -> tuple[FofCatalogue, str]:
    """Return a catalogue whose groups have a ``max_radius`` to draw, and a description of that radius.

    Catalogues of other codes do not have the distance of the farthest member. Then the radius is the first of
    ``r200m``, ``r200c`` and ``r500c`` in ``spheres``. For groups without such a radius, it is the radius of a ball with
    the group's particles and 200 times the mean density, ``(count V / (200 num V_d))**(1/d)``, for the volume V of the
    box and V_d of the unit ball. Without a box it stays None, and only the positions of groups are drawn.

    Args:
        catalogue: Groups in d dimensions.
        num: Number of particles of the snapshot, members and others.
        boxsize: See `plot_density`.
        spheres: ``(g,)`` radii of spherical overdensities by name, 0 for a group without one, and ``(g, d)`` their
            centres ``centre_pos``, unless these are the centres of mass.

    Returns:
        The catalogue, and the description in words.
    """
    check_no_units(catalogue=catalogue, boxsize=boxsize, spheres=dict(spheres or {}))
    if catalogue.max_radius is not None:
        return catalogue, "distance of the farthest member"
    groups = squeeze_catalogue(catalogue)
    ndim = np.shape(groups.com_pos)[1]
    lengths = box_lengths(boxsize, ndim)
    name = next((name for name in _SPHERES if name in (spheres or {})), None)
    radius = np.asarray((spheres or {})[name], np.float64) if name else np.zeros(len(groups.count))
    if (lengths > 0).all() and num:
        unit_ball = math.pi ** (ndim / 2) / math.gamma(ndim / 2 + 1)
        volume = np.asarray(groups.count) * lengths.prod() / (_OVERDENSITY * num * unit_ball)
        radius = np.where(radius > 0, radius, volume ** (1 / ndim))
    elif name is None:
        return catalogue, "unknown, so only positions are shown"
    centre = np.asarray((spheres or {}).get("centre_pos", groups.com_pos))
    words = name or f"that of a ball with the group's particles and {_OVERDENSITY} times the mean density"
    return replace(groups, max_radius=radius, com_pos=centre), words


@dataclass
class View:
    """The visible part of the particles.

    Attributes:
        points: ``(n, 2)`` coordinates along the two ``axes``, an array or an object with slices.
        axes: The two visible dimensions.
        low: ``(2,)``, the lower corner of the visible region.
        high: ``(2,)``, the upper corner.
        periodic: ``(2,)`` bool, True for a periodic dimension.
        widths: ``(n,)`` widths of the Gaussians that represent particles, None for counts in pixels.
        unit: The label of the colours, None for multiples of the mean of the picture.
        reference: The particles per area that the colour 1 means, if ``unit`` is set and is not one of mass.
        circles: Meaning of the radii of circles.
    """

    points: Any
    axes: tuple[int, int]
    low: np.ndarray
    high: np.ndarray
    periodic: np.ndarray
    widths: np.ndarray | None = None
    unit: str | None = None
    reference: float | None = None
    circles: str = ""

    def set_unit(self, mass: ArrayLike | None, mass_unit: str, length_unit: str) -> None:
        """Use masses over areas as colours if there is a unit of mass. Raises ValueError without masses."""
        if mass_unit and mass is None:
            raise ValueError(
                f"mass_unit is {mass_unit}, but the masses of the particles are missing; give them as mass."
            )
        per_area = f"{mass_unit} / ({length_unit})$^2$" if length_unit else f"{mass_unit} / length$^2$"
        self.unit = f"surface density [{per_area}]" if mass_unit else None


def view_of(pos: ArrayLike, boxsize: ArrayLike | None, axes: tuple[int, int]) -> View:
    """Return the view of two dimensions: the box if they are periodic, otherwise all particles and a margin.

    Raises:
        ValueError: If ``pos`` does not have these dimensions, or a position is NaN or infinite.
    """
    check_no_units(pos=pos, boxsize=boxsize)
    array: Any = np.asarray(pos) if isinstance(pos, Sequence) or hasattr(pos, "__array__") else pos
    if array.ndim != 2 or array.shape[1] <= max(axes) or min(axes) < 0 or axes[0] == axes[1]:
        raise ValueError(
            f"pos has shape {array.shape}; a picture of the dimensions {axes} needs (n, d) with d above both."
        )
    points = array[:, axes] if isinstance(array, np.ndarray) else _StoredPoints(array, axes)
    lengths = box_lengths(boxsize, array.shape[1])[list(axes)]
    periodic = lengths > 0
    if not len(points):
        return View(points, axes, np.zeros(2), np.where(periodic, lengths, 1.0), periodic)
    smallest, largest = _corners(points)
    extent = largest - smallest
    # Particles on a line need a picture of some height.
    margin = np.maximum(0.02 * extent, max(0.01 * extent.max(), 1e-6 * np.abs(largest).max(), 1e-36))
    low, high = np.where(periodic, 0.0, smallest - margin), np.where(periodic, lengths, largest + margin)
    return View(points, axes, low, high, periodic)


def _corners(points: Any) -> np.ndarray:
    """Return the smallest and the largest coordinates, ``(2, 2)``. Raises ValueError if one is NaN or infinite."""
    corners = []
    for start in range(0, len(points), _BLOCK):
        block = points[start : start + _BLOCK]
        if not np.isfinite(block).all():
            row = start + int(np.argmin(np.isfinite(block).all(axis=1)))
            raise ValueError(f"Row {row} of the positions is NaN or infinite; remove such particles.")
        corners.append([block.min(axis=0), block.max(axis=0)])
    both = np.asarray(corners, np.float64)
    return np.stack([both[:, 0].min(axis=0), both[:, 1].max(axis=0)])


class _StoredPoints:
    """Coordinates along two axes. Each slice is read when it is used."""

    def __init__(self, rows: Any, axes: tuple[int, int]) -> None:
        self._rows, self._axes = rows, axes
        self.shape = (len(rows), 2)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> np.ndarray:
        return np.asarray(self._rows[rows])[:, self._axes]


def draw(
    ax: Axes,
    view: View,
    mass: ArrayLike | None,
    bins: int | None,
    groups: FofCatalogue | None,
    num_circles: int,
    unit: str,
    title: str,
) -> None:
    """Draw one panel: density, circles and labels."""
    usual = np.sqrt(len(view.points) / _IN_PIXEL) if view.widths is None else _SMOOTH_PIXELS
    pixels = int(np.clip(usual, 64, 600)) if bins is None else bins
    _draw_density(ax, view, mass, pixels)
    if groups is not None:
        _draw_circles(ax, view, groups, num_circles)
    names = [_name(axis) for axis in view.axes]
    ax.set(xlabel=with_unit(names[0], unit), ylabel=with_unit(names[1], unit), title=title)
    ax.locator_params(nbins=_TICKS)


def caption(title: str, redshift: float | None, slab: str = "") -> str:
    """Return the title of a picture: the title of the user, and below it the slab and the redshift."""
    state = [slab, "" if redshift is None else f"redshift {redshift:.4g}"]
    return "\n".join(filter(None, [title, ", ".join(filter(None, state))]))


def _name(axis: int) -> str:
    return "xyz"[axis] if axis < 3 else f"dimension {axis}"


def _project(view: View, mass: ArrayLike | None, bins: int) -> np.ndarray:
    """Sum the particles, or masses in units of their mean, in each pixel, with ``bins`` along the longer side."""
    check_no_units(mass=mass)
    weight = None if mass is None or np.ndim(mass) == 0 else np.asarray(mass, np.float64)
    if weight is not None and weight.shape != view.points.shape[:1]:
        raise ValueError(
            f"mass has shape {weight.shape}, but there are {len(view.points)} particles; give one mass per particle."
        )
    size = view.high - view.low
    shape = np.maximum(1, np.round(bins * size / size.max())).astype(int)
    if view.widths is None:
        sums = _count(view, weight, shape)
    else:
        sums = spread(lambda rows: _count(view, weight, shape, rows), view.widths, size / shape, view.periodic)
    return sums / (1.0 if weight is None else _mean(weight) or 1.0)


def _mean(mass: Any) -> float:
    """Return the mean of masses, 0 without any."""
    return float(np.mean(np.asarray(mass, np.float64))) if np.size(mass) else 0.0


def _count(view: View, weight: np.ndarray | None, shape: np.ndarray, selected: np.ndarray | None = None) -> np.ndarray:
    """Sum particles or weights in each pixel, over the ``chosen`` rows; None means all rows."""
    points = view.points if selected is None else view.points[selected]
    weights = weight if weight is None or selected is None else weight[selected]
    sums, size = np.zeros(shape.prod()), view.high - view.low
    for start in range(0, len(points), _BLOCK):
        rows = slice(start, start + _BLOCK)
        # Positions outside a periodic box are wrapped; an open region contains all points, so they do not move.
        cells = np.floor((points[rows] - view.low) % size / size * shape).astype(np.int64)
        flat = np.ravel_multi_index(tuple(np.clip(cells, 0, shape - 1).T), tuple(shape))
        sums += np.bincount(flat, None if weights is None else weights[rows], minlength=len(sums))
    return sums.reshape(shape)


def _draw_density(ax: Axes, view: View, mass: ArrayLike | None, bins: int) -> None:
    from matplotlib.colors import LogNorm

    sums = _project(view, mass, bins)
    low, high = view.low, view.high
    scale, label = sums.size / max(len(view.points), 1), "projected density / mean"
    if view.unit is not None:
        area = float(np.prod(high - low)) / sums.size
        unit_mass = _mean(mass) if view.reference is None else 1 / view.reference
        scale, label = unit_mass / area, view.unit
    floor, top = _EMPTY, max(sums.max(), 1)
    if view.widths is not None and sums.any():
        floor, top = max(np.percentile(sums[sums > 0], _DARKEST), sums.max() / _RANGE), sums.max()
    ax.grid(False)
    ax.imshow(
        np.maximum(sums.T, floor) * scale,
        origin="lower",
        extent=(low[0], high[0], low[1], high[1]),
        norm=LogNorm(vmin=floor * scale, vmax=top * scale) if 0 < scale < math.inf else None,
        cmap=_COLOUR_MAP,
        interpolation="bilinear",
    )
    ax.figure.colorbar(ax.images[0], ax=ax, label=label, pad=0.02)


def _draw_circles(ax: Axes, view: View, catalogue: FofCatalogue, number: int) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.lines import Line2D
    from matplotlib.patches import Circle

    groups = squeeze_catalogue(catalogue)
    largest = np.argsort(-np.asarray(groups.count), kind="stable")[:number]
    if not len(largest):
        return
    centres = np.asarray(groups.com_pos)[:, view.axes][largest]
    label = "largest group" if len(largest) == 1 else f"{len(largest)} largest groups"
    if groups.max_radius is None:
        ax.plot(*centres.T, "+", color=_CIRCLE, scalex=False, scaley=False, label=label)
        ax.legend(loc="upper right", fontsize=_LEGEND_SIZE, **ON_DARK)
        return
    key = Line2D([], [], linestyle="", marker="o", markersize=8, markerfacecolor="none", color=_CIRCLE)
    words = textwrap.fill(f"radius: {view.circles}", _LEGEND_WIDTH)
    ax.legend([key], [f"{label}\n{words}"], loc="upper right", fontsize=_LEGEND_SIZE, **ON_DARK)
    radii = np.asarray(groups.max_radius)[largest]
    steps = [np.asarray([-1, 0, 1]) if wraps else np.asarray([0]) for wraps in view.periodic]
    shifts = np.stack(np.meshgrid(*steps), axis=-1).reshape(-1, 2) * (view.high - view.low)
    circles = [
        Circle(centre + shift, radius) for centre, radius in zip(centres, radii, strict=True) for shift in shifts
    ]
    ax.add_collection(PatchCollection(circles, facecolor="none", edgecolor=_CIRCLE, linewidth=1.0), autolim=False)
