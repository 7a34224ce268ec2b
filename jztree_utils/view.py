"""Interactive 3D views of haloes and particles for a browser: one HTML file that needs no server.

This needs plotly (``pip install 'jztree-native[view]'``), which is imported when you create a view. The file contains
the plotly program, so you can open it without a network and send it to others.
"""

from __future__ import annotations

# ruff: noqa: PLC0415 - plotly is optional
import html
import itertools
import os
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import FofCatalogue, check_no_units, squeeze_catalogue

from ._arrays import box_lengths
from .io import OutputError, atomic_output

__all__ = ["check_view", "view_in_3d"]

_CIRCLE = 49  # points of a circle; the first and last one are the same
_DECADES = 5  # maximum decades of mass for a colour bar with only powers of ten
_SEED = 1  # for the random sample of particles
# Opaque, because a transparent point hides everything in the background.
_PARTICLES, _BOX = "#b4b4b4", "#787878"
_COLOURS = "Viridis"
_HOVER = "halo %{customdata[0]}<br>%{customdata[1]:,} particles"


def view_in_3d(
    pos: ArrayLike,
    path: str | os.PathLike[str],
    boxsize: ArrayLike | None = 0.0,
    *,
    catalogue: FofCatalogue | None = None,
    columns: Mapping[str, ArrayLike] | None = None,
    max_particles: int = 30_000,
    max_halos: int = 300,
    length_unit: str = "",
    mass_unit: str = "",
    title: str = "",
) -> Any:
    """Write an HTML page that shows particles and haloes.

    Haloes are points, coloured by mass, or by number of particles if the catalogue has no masses. Pointing at a halo
    shows its row in the catalogue, its masses and its position. Three circles around each halo show its ``r200c``. The
    legend switches on circles of its ``max_radius``, around its centre of mass.

    Args:
        pos: ``(n, 3)`` positions of the particles. They and the haloes are wrapped into the box.
        path: The HTML file to write.
        boxsize: Length of the periodic box, or one per dimension; 0 or None means open.
        catalogue: Groups in three dimensions; None shows only particles.
        columns: ``(g,)`` or ``(g, 3)`` further properties of the groups. Haloes are drawn at ``centre_pos`` if it
            exists, otherwise at their centre of mass. ``r200c`` and ``m200c`` are shown.
        max_particles: Maximum number of particles to show. From a larger number, the same random sample is always
            shown.
        max_halos: Maximum number of haloes to show, the largest first.
        length_unit, mass_unit: Units in the labels.
        title: Title above the view.

    Returns:
        The plotly figure.

    Raises:
        ImportError: If plotly is missing.
        ValueError: If an array has a wrong shape, a position is NaN or infinite, or a number is negative.
        OutputError: If ``path`` cannot be written.
    """
    check_no_units(pos=pos, boxsize=boxsize, catalogue=catalogue, columns=dict(columns or {}))
    for name, value in (("max_particles", max_particles), ("max_halos", max_halos)):
        if value < 0:
            raise ValueError(f"{name} is {value}; it must be at least 0.")
    check_view(path)
    from plotly.graph_objects import Figure

    points, box = _in_box(_checked(pos), boxsize)
    figure = Figure(layout=_layout(title, length_unit))
    figure.add_trace(_particles(points, max_particles))
    if box is not None:
        figure.add_trace(_edges(box))
    if catalogue is not None:
        figure.add_traces(_halos(squeeze_catalogue(catalogue), dict(columns or {}), boxsize, max_halos, mass_unit))
    _write(figure, path, title or "particles and haloes")
    return figure


def check_view(path: str | os.PathLike[str]) -> None:
    """Check that a view can be written under this name. Call this before a long computation.

    Raises:
        ImportError: If plotly is missing.
        OutputError: If the name does not have the suffix of an HTML file.
    """
    try:
        import plotly.graph_objects  # noqa: F401
    except ImportError as error:
        raise ImportError("Views in 3D need plotly; install it with: pip install 'jztree-native[view]'.") from error
    if os.path.splitext(path)[1].lower() not in (".html", ".htm"):
        raise OutputError(f"The view {path} would be an HTML file; give it a name in .html.")


def _checked(pos: Any) -> np.ndarray:
    points = np.asarray(pos)
    if points.ndim != 2 or points.shape[1] != 3:
        raise ValueError(f"pos has shape {points.shape}; a view in 3D needs (n, 3).")
    if not np.isfinite(points).all():
        row = int(np.argmin(np.isfinite(points).all(axis=1)))
        raise ValueError(f"Row {row} of the positions is NaN or infinite; remove such particles.")
    return points


def _in_box(points: np.ndarray, boxsize: Any) -> tuple[np.ndarray, np.ndarray | None]:
    """Wrap points into the box along its periodic dimensions; return them and the box lengths if all are periodic."""
    lengths = box_lengths(boxsize, 3)
    wrapped = np.where(lengths > 0, np.mod(points, np.where(lengths > 0, lengths, 1.0)), points)
    return wrapped, lengths if (lengths > 0).all() else None


def _particles(points: np.ndarray, largest: int) -> Any:
    from plotly.graph_objects import Scatter3d

    name = f"{len(points):,} particles"
    if len(points) > largest:
        points = points[np.sort(np.random.default_rng(_SEED).choice(len(points), largest, replace=False))]
        name = f"{largest:,} of {name}"
    marker = {"size": 1, "color": _PARTICLES, "line": {"width": 0}}
    return Scatter3d(**_coordinates(points), mode="markers", marker=marker, name=name, hoverinfo="skip")


def _edges(box: np.ndarray) -> Any:
    """Draw the twelve edges of the box."""
    from plotly.graph_objects import Scatter3d

    corners = np.array(list(itertools.product((0.0, 1.0), repeat=3)))
    pairs = [
        (corner, neighbour)
        for corner, neighbour in itertools.combinations(corners, 2)
        if np.abs(corner - neighbour).sum() == 1
    ]
    lines = np.concatenate([np.array([corner, neighbour, np.full(3, np.nan)]) * box for corner, neighbour in pairs])
    return Scatter3d(
        **_coordinates(lines), mode="lines", line={"color": _BOX, "width": 2}, name="box", hoverinfo="skip"
    )


def _halos(groups: FofCatalogue, columns: dict[str, Any], boxsize: Any, largest: int, mass_unit: str) -> list[Any]:
    """Draw points and circles of the largest groups."""
    from plotly.graph_objects import Scatter3d

    com = np.asarray(groups.com_pos, np.float64)
    centre = np.asarray(columns.get("centre_pos", com), np.float64)
    for places in (com, centre):
        if places.shape[1:] != (3,):
            raise ValueError(f"The groups have centres of shape {places.shape}; a view in 3D needs (g, 3).")
    count = np.asarray(groups.count)
    rows = np.argsort(-count.astype(np.int64), kind="stable")[:largest]
    coms, centres = (_in_box(places, boxsize)[0][rows] for places in (com, centre))
    weight = np.asarray(count if groups.mass is None else groups.mass, np.float64)[rows]
    quantity = "particles" if groups.mass is None else _with_unit("mass", mass_unit)
    shades = _shades(weight)
    hover, data = _hover(groups, columns, rows, mass_unit)
    marker = {**shades, "size": 4, "showscale": True, "colorbar": _colour_bar(quantity, shades["cmin"], shades["cmax"])}
    name = f"{len(rows):,} halos" if len(rows) == len(count) else f"{len(rows):,} largest of {len(count):,} halos"
    traces = [
        Scatter3d(
            **_coordinates(centres),
            mode="markers",
            marker=marker,
            name=name,
            customdata=data,
            hovertemplate=f"{hover}<extra></extra>",
        )
    ]
    shown: bool | str = True
    spheres = (("r200c", centres, columns.get("r200c")), ("farthest member", coms, groups.max_radius))
    for label, around, radius in spheres:
        if radius is not None:
            traces.append(_circles(around, np.asarray(radius, np.float64)[rows], shades, label, shown))
            shown = "legendonly"
    return traces


def _shades(weight: np.ndarray) -> dict[str, Any]:
    """Return colours by the logarithm of a mass; groups without mass get the colour of the lowest mass."""
    positive = weight[weight > 0]
    smallest, largest = (np.log10([positive.min(), positive.max()]) if len(positive) else np.zeros(2)).tolist()
    values = np.log10(np.maximum(weight, 10**smallest))
    return {
        "color": values.astype(np.float32),
        "cmin": smallest,
        "cmax": max(largest, smallest + 0.01),
        "colorscale": _COLOURS,
    }


def _colour_bar(quantity: str, smallest: float, largest: float) -> dict[str, Any]:
    """Return a bar with masses at its ticks: whole decades and, if there are only a few, values between them."""
    parts = (1,) if largest - smallest > _DECADES else (1, 2, 5)
    values = [
        part * 10.0**power for power in range(int(np.floor(smallest)), int(np.ceil(largest)) + 1) for part in parts
    ]
    retained = [value for value in values if smallest - 1e-6 <= np.log10(value) <= largest + 1e-6] or [10**smallest]
    ticks = {"tickvals": np.log10(retained).tolist(), "ticktext": list(map(_power, retained))}
    return {"title": {"text": quantity}, "thickness": 14, "len": 0.7, **ticks}


def _power(value: float) -> str:
    """Format a number with one digit, such as 500 or 2×10⁴."""
    if 0.01 <= value < 1e4:
        return f"{value:g}"
    digit, power = f"{value:.0e}".split("e")
    return f"{'' if digit == '1' else f'{digit}×'}10<sup>{int(power)}</sup>"


def _hover(groups: FofCatalogue, columns: dict[str, Any], rows: np.ndarray, unit: str) -> tuple[str, list[list[Any]]]:
    """Return the text for a halo under the pointer: a template, and the numbers in it."""
    held = {"mass": groups.mass, "m200c": columns.get("m200c")}
    words, numbers = _HOVER, [rows, np.asarray(groups.count)[rows]]
    for name, column in held.items():
        if column is not None:
            words += f"<br>{name} %{{customdata[{len(numbers)}]:.4g}} {html.escape(unit)}".rstrip()
            numbers.append(np.asarray(column, np.float64)[rows])
    words += "<br>(%{x:.5g}, %{y:.5g}, %{z:.5g})"
    return words, [list(row) for row in zip(*(column.tolist() for column in numbers), strict=True)]


def _circles(centres: np.ndarray, radii: np.ndarray, shades: dict[str, Any], name: str, shown: bool | str) -> Any:
    """Draw three circles around each centre, one per coordinate plane; halos without a radius get none."""
    from plotly.graph_objects import Scatter3d

    angle = np.linspace(0, 2 * np.pi, _CIRCLE)
    flat = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1)
    flat = np.concatenate([flat, np.full((1, 3), np.nan)])  # NaN breaks the line
    unit = np.concatenate([flat, flat[:, [0, 2, 1]], flat[:, [2, 0, 1]]])
    held = np.flatnonzero(radii > 0)
    lines = (centres[held, None] + radii[held, None, None] * unit).reshape(-1, 3)
    line = {**shades, "color": np.repeat(shades["color"][held], len(unit)), "width": 2}
    return Scatter3d(**_coordinates(lines), mode="lines", line=line, name=name, visible=shown, hoverinfo="skip")


def _coordinates(points: np.ndarray) -> dict[str, np.ndarray]:
    return {axis: points[:, place].astype(np.float32) for place, axis in enumerate("xyz")}


def _layout(title: str, unit: str) -> dict[str, Any]:
    axes = {f"{axis}axis": {"title": {"text": _with_unit(axis, unit)}, "showspikes": False} for axis in "xyz"}
    return {
        "title": {"text": html.escape(title)},
        "scene": {**axes, "aspectmode": "data", "dragmode": "orbit"},
        "legend": {"x": 0.01, "y": 0.99, "itemsizing": "constant"},
        "margin": {"l": 0, "r": 0, "t": 40 if title else 0, "b": 0},
        "template": "plotly_white",
    }


def _with_unit(name: str, unit: str) -> str:
    return f"{name} [{html.escape(unit)}]" if unit else name


def _write(figure: Any, path: str | os.PathLike[str], title: str) -> None:
    page = figure.to_html(include_plotlyjs=True, include_mathjax=False, div_id="view", default_height="100vh")
    head = f"<head><title>{html.escape(title)}</title><style>body {{ margin: 0 }}</style>"
    page = page.replace("<head>", head, 1)
    with atomic_output(path) as temporary:
        temporary.write_bytes(page.encode())
