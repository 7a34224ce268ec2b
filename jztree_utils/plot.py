"""Pictures of halo catalogues.

They need matplotlib (``pip install 'jztree[plot]'``), which is imported when a picture is made. Figures are made
without `matplotlib.pyplot`: nothing is shown, no state is kept, no display is needed.
"""

# ruff: noqa: PLC0415 - matplotlib is optional
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from jztree.data import FofCatalogue, squeeze_catalogue

from .io import OutputError, atomic_output

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_BLOCK = 2**22  # particles projected at a time, so that intermediate results stay small
_COLOUR_MAP = "magma"
_CIRCLE = "#7fd6ff"
_CURVE = "#3b528b"


def plot_halos(
    pos: Any,
    catalogue: FofCatalogue,
    boxsize: Any = 0.0,
    path: str | os.PathLike[str] | None = None,
    *,
    num_circles: int = 30,
    axes: tuple[int, int] = (0, 1),
    bins: int | None = None,
    length_unit: str = "",
    mass_unit: str = "",
    title: str = "",
) -> "Figure":
    """The projected density of particles with circles around the largest groups, and the distribution of group sizes.

    pos: ``(n, d)`` positions of the particles, d at least 2; all dimensions but two are projected.
    catalogue: groups of ``d`` dimensions. A circle is as large as the group's ``max_radius`` and is repeated across the
        periodic boundary. The second panel shows masses where the catalogue has them, else numbers of particles.
    boxsize: length of the periodic box, or a length a dimension; 0 or None is open: the picture spans the particles.
    path: where to write the picture, in the format of its suffix (.png, .pdf, .svg, ...); None writes none.
    num_circles: how many of the largest groups get a circle.
    axes: the two dimensions to show.
    bins: pixels along the longer side of the density; None is one for each particle on average, from 64 to 600.
    length_unit, mass_unit: for the labels.
    title: above the density.

    Returns the `matplotlib.figure.Figure`.
    Raises ImportError if matplotlib is missing, ValueError for a wrong shape, OutputError if ``path`` cannot be
    written.
    """
    figure_class = _import_matplotlib()
    if path is not None:
        check_picture(path)
    points = np.asarray(pos)
    if points.ndim != 2 or points.shape[1] <= max(axes) or min(axes) < 0 or axes[0] == axes[1]:
        raise ValueError(
            f"pos has shape {points.shape}; a picture of the dimensions {axes} needs (n, d) with d above both."
        )
    groups = squeeze_catalogue(catalogue)
    low, high, periodic = _extent(points[:, axes], boxsize, points.shape[1], axes)
    figure = figure_class(figsize=(11.5, 5.6), layout="constrained")
    density_axes, size_axes = figure.subplots(1, 2, width_ratios=(1.25, 1))
    pixels = int(np.clip(np.sqrt(len(points)), 64, 600)) if bins is None else bins
    _draw_density(density_axes, points[:, axes], low, high, pixels)
    _draw_circles(density_axes, groups, axes, high - low, periodic, num_circles)
    _label_density(density_axes, axes, length_unit, title)
    _draw_sizes(size_axes, groups, mass_unit)
    if path is not None:
        save_figure(figure, path)
    return figure


def check_picture(path: str | os.PathLike[str]) -> None:
    """Check that a picture can be made in the format of the suffix of ``path``. Meant to come before long work.

    Raises ImportError if matplotlib is missing, OutputError if the suffix is not that of a format it writes.
    """
    formats = sorted(_import_matplotlib()().canvas.get_supported_filetypes())
    if _suffix(path) not in formats:
        raise OutputError(f"The picture {path} has no suffix of a known format; use one of {', '.join(formats)}.")


def save_figure(figure: "Figure", path: str | os.PathLike[str]) -> None:
    """Write a figure in the format of the suffix of ``path``. Raises OutputError if it cannot be written."""
    with atomic_output(path) as temporary:
        figure.savefig(temporary, format=_suffix(path), dpi=150)


def _import_matplotlib() -> Any:
    """The class of figures, bare of any window."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise ImportError("Pictures need matplotlib; install it with: pip install 'jztree[plot]'.") from error
    return Figure


def _suffix(path: str | os.PathLike[str]) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()


def _extent(
    points: np.ndarray, boxsize: Any, ndim: int, axes: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The corners of the picture, and which of its two dimensions are periodic."""
    lengths = np.broadcast_to(np.asarray(0.0 if boxsize is None else boxsize, np.float64), (ndim,))[list(axes)]
    periodic = lengths > 0
    if not len(points):
        return np.zeros(2), np.where(periodic, lengths, 1.0), periodic
    least, most = points.min(axis=0).astype(np.float64), points.max(axis=0).astype(np.float64)
    margin = np.maximum(0.02 * (most - least), 1e-6 * np.maximum(np.abs(most), 1e-30))
    low = np.where(periodic, 0.0, least - margin)
    return low, np.where(periodic, lengths, most + margin), periodic


def _draw_density(ax: "Axes", points: np.ndarray, low: np.ndarray, high: np.ndarray, bins: int) -> None:
    from matplotlib.colors import LogNorm

    size = high - low
    shape = np.maximum(1, np.round(bins * size / size.max())).astype(int)
    counts = np.zeros(shape.prod(), np.int64)
    for start in range(0, len(points), _BLOCK):
        # Positions outside a periodic box are wrapped; an open extent holds all points, so they stay where they are.
        cells = np.floor((points[start : start + _BLOCK] - low) % size / size * shape).astype(np.int64)
        flat = np.ravel_multi_index(tuple(np.clip(cells, 0, shape - 1).T), tuple(shape))
        counts += np.bincount(flat, minlength=len(counts))
    counts = counts.reshape(shape)
    mean = max(len(points), 1) / counts.size
    ax.imshow(
        np.maximum(counts.T, 0.3) / mean,  # empty pixels get the darkest colour instead of none
        origin="lower",
        extent=(low[0], high[0], low[1], high[1]),
        norm=LogNorm(vmin=0.3 / mean, vmax=max(counts.max(), 1) / mean),
        cmap=_COLOUR_MAP,
        interpolation="nearest",
    )
    ax.figure.colorbar(ax.images[0], ax=ax, label="projected density / mean", shrink=0.85, pad=0.02)


def _draw_circles(
    ax: "Axes", groups: FofCatalogue, axes: tuple[int, int], size: np.ndarray, periodic: np.ndarray, number: int
) -> None:
    from matplotlib.collections import PatchCollection
    from matplotlib.patches import Circle

    largest = np.argsort(-np.asarray(groups.count), kind="stable")[:number]
    centres, radii = np.asarray(groups.com_pos)[:, axes][largest], np.asarray(groups.max_radius)[largest]
    steps = [np.asarray([-1, 0, 1]) if wraps else np.asarray([0]) for wraps in periodic]
    shifts = np.stack(np.meshgrid(*steps), axis=-1).reshape(-1, 2) * size
    circles = [
        Circle(centre + shift, radius) for centre, radius in zip(centres, radii, strict=True) for shift in shifts
    ]
    ax.add_collection(PatchCollection(circles, facecolor="none", edgecolor=_CIRCLE, linewidth=1.0), autolim=False)


def _label_density(ax: "Axes", axes: tuple[int, int], unit: str, title: str) -> None:
    names = [("xyz"[axis] if axis < 3 else f"dimension {axis}") + (f" [{unit}]" if unit else "") for axis in axes]
    ax.set(xlabel=names[0], ylabel=names[1], title=title)


def _draw_sizes(ax: "Axes", groups: FofCatalogue, unit: str) -> None:
    """Groups at least as large as the abscissa, which needs no binning."""
    sizes = np.sort(np.asarray(groups.count if groups.mass is None else groups.mass))[::-1]
    label = "particles" if groups.mass is None else "mass" + (f" [{unit}]" if unit else "")
    ax.set(xlabel=f"group {label}", ylabel="groups at least as large", title=f"{len(sizes):,} groups")
    if len(sizes):
        ax.loglog(sizes, np.arange(1, len(sizes) + 1), drawstyle="steps-post", color=_CURVE, linewidth=1.8)
    ax.grid(True, which="major", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)
    ax.spines[["top", "right"]].set_visible(False)
