"""Plots of one halo with its spheres."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_units

from .._arrays import box_lengths
from ._density import caption, draw, view_of
from ._figure import Path, drawing
from ._smoothing import widths
from ._style import COLOURS, ON_DARK, with_unit

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_MARGIN = 1.3  # half width of the picture, in radii of the largest sphere
_NEIGHBOURS = 16
_PIXELS = 300


def plot_halo(
    pos: ArrayLike,
    centre: ArrayLike,
    spheres: Mapping[str, float],
    boxsize: ArrayLike | None = 0.0,
    path: Path | None = None,
    *,
    mass: ArrayLike | None = None,
    subhaloes: tuple[ArrayLike, ArrayLike] | None = None,
    axes: tuple[int, int] = (0, 1),
    length_unit: str = "",
    mass_unit: str = "",
    redshift: float | None = None,
    title: str = "",
) -> Figure:
    """Plot the matter around one halo, its spheres, and its subhaloes.

    The picture shows a cube around the centre, 1.3 times as wide as the largest sphere, projected along all dimensions
    but two. Each particle is spread over half the distance to its 16th neighbour. Coordinates are relative to the
    centre.

    In a periodic box, colours are projected densities divided by the mean density of the box: in three dimensions, the
    length of a column of mean density that holds as much matter. This does not depend on the size of the picture.
    Without a box the mean density is unknown, and colours are particles, or masses, per area.

    Args:
        pos: ``(n, d)`` positions of particles, d at least 2.
        centre: ``(d,)`` centre of the halo.
        spheres: Radii by name, such as ``r200c``; radii of 0 or NaN, which mark missing spheres, are not drawn.
        boxsize: Length of the periodic box, or one length per dimension; 0 or None means open.
        path: The picture file, in the format of its suffix (.png, .pdf, .svg, ...); None writes no file.
        mass: ``(n,)`` masses of the particles, or one for all; None counts them.
        subhaloes: Positions ``(s, d)`` and radii ``(s,)`` of subhaloes, such as ``pos`` and ``half_mass_radius`` of
            `jztree.Subhaloes`, drawn as dotted circles. None draws none.
        axes: The two dimensions to show.
        length_unit: Unit of length in the labels.
        mass_unit: If set, colours are masses over areas in these units.
        redshift: Redshift in the title; None shows none.
        title: Title above the picture.

    Raises:
        ImportError, OutputError: If matplotlib is missing, or ``path`` cannot be written.
        ValueError: If an array has a wrong shape, or all spheres are missing.
    """
    check_no_units(pos=pos, centre=centre, spheres=dict(spheres), boxsize=boxsize, mass=mass)
    drawn = {name: float(radius) for name, radius in spheres.items() if 0 < radius < np.inf}
    if not drawn:
        raise ValueError("spheres has no positive, finite radius; give at least one.")
    half = _MARGIN * max(drawn.values())
    points, middle = np.asarray(pos), np.asarray(centre, np.float64)
    offsets, weight = _around(points, middle, boxsize, half, mass)
    with drawing(path, (7.2, 6.0)) as figure:
        shown = view_of(offsets, None, axes)
        shown.low, shown.high = np.full(2, -half), np.full(2, half)
        shown.widths = widths(offsets, None, _NEIGHBOURS)
        shown.set_unit(mass, mass_unit, length_unit)
        if not mass_unit:
            shown.reference, shown.unit = _reference(points, boxsize, mass, weight, length_unit)
        ax = figure.subplots()
        draw(ax, shown, weight, _PIXELS, None, 0, length_unit, caption(title, redshift))
        for axis, label in ((ax.xaxis, ax.get_xlabel()), (ax.yaxis, ax.get_ylabel())):
            axis.set_label_text(f"{label} from the centre")
        if subhaloes is not None:
            _draw_subhaloes(ax, middle, *subhaloes, boxsize, axes)
        _draw_spheres(ax, drawn, length_unit)
        return figure


def _around(pos: np.ndarray, centre: np.ndarray, boxsize: Any, half: float, mass: Any) -> tuple[np.ndarray, Any]:
    """Return the particles in a cube around a centre, relative to it, and their masses."""
    if pos.ndim != 2 or centre.shape != pos.shape[1:]:
        raise ValueError(
            f"pos has shape {pos.shape} and the centre {centre.shape}; they must have shapes (n, d) and (d,)."
        )
    offset = _relative(pos, centre, boxsize)
    held = (np.abs(offset) <= half).all(axis=1)
    return offset[held], mass if mass is None or np.ndim(mass) == 0 else np.asarray(mass)[held]


def _relative(pos: np.ndarray, centre: np.ndarray, boxsize: Any) -> np.ndarray:
    """Return the nearest images of positions, relative to a centre."""
    lengths = box_lengths(boxsize, len(centre))
    offset = pos - centre
    return offset - np.where(lengths > 0, lengths * np.round(offset / np.where(lengths > 0, lengths, 1.0)), 0.0)


def _reference(pos: np.ndarray, boxsize: Any, mass: Any, held: Any, length_unit: str) -> tuple[float, str]:
    """Return the particles per area that the colour 1 means, in units of the mean of the masses ``held``; and a label.

    Args:
        pos: ``(n, d)`` positions of the particles.
        boxsize: The box.
        mass: The particles' masses, or a single mass, or None.
        held: The masses of the particles in the picture, in the same form.
        length_unit: Unit of length in the label.
    """
    lengths = box_lengths(boxsize, pos.shape[1])
    mean_mass = float(np.mean(held)) if np.ndim(held) and len(held) else 1.0
    if (lengths > 0).all() and len(pos):
        total = float(np.sum(mass, dtype=np.float64)) if np.ndim(mass) else float(len(pos))
        depth = pos.shape[1] - 2
        unit = "" if not depth or not length_unit else length_unit if depth == 1 else f"{length_unit}$^{depth}$"
        return total / mean_mass / float(lengths.prod()), with_unit("projected density / mean density", unit)
    area = f"({length_unit})$^{{-2}}$" if length_unit else ""
    return 1 / mean_mass, with_unit("mass per area" if np.ndim(mass) else "particles per area", area)


def _draw_subhaloes(
    ax: Any, centre: np.ndarray, pos: ArrayLike, radii: ArrayLike, boxsize: Any, axes: tuple[int, int]
) -> None:
    """Draw a dotted circle for each subhalo; the first has a label for the legend."""
    from matplotlib.patches import Circle  # noqa: PLC0415 - matplotlib is optional

    places = np.asarray(pos, np.float64)
    if places.ndim != 2 or places.shape[1:] != centre.shape or np.shape(radii) != places.shape[:1]:
        raise ValueError(
            f"subhaloes has positions of shape {places.shape} and radii of shape {np.shape(radii)}; they must have the "
            f"shapes (s, {len(centre)}) and (s,)."
        )
    label: str | None = "subhaloes"
    for place, radius in zip(_relative(places, centre, boxsize)[:, axes], np.asarray(radii), strict=True):
        ax.add_patch(Circle(place, radius, fill=False, edgecolor="white", linestyle=":", linewidth=1.2, label=label))
        label = None


def _draw_spheres(ax: Any, spheres: Mapping[str, float], length_unit: str) -> None:
    """Draw a circle for each sphere, the smallest first, with its name in the legend."""
    from matplotlib.patches import Circle  # noqa: PLC0415 - matplotlib is optional

    for number, (name, radius) in enumerate(sorted(spheres.items(), key=lambda item: item[1])):
        colour = ("#ffffff", *COLOURS[1:])[number % len(COLOURS)]
        label = f"{name} = {radius:.4g} {length_unit}".rstrip()
        ax.add_patch(Circle((0, 0), radius, fill=False, edgecolor=colour, linewidth=1.5, label=label))
    ax.legend(loc="upper right", **ON_DARK)
