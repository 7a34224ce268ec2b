"""Checks of spheres around centres: their masses and radii, circular velocities, and the properties of particles."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ._catalogue import differs, in_words, properties, weights_of
from ._points import ULPS, Points, Verification, column_of, point_sets, sample_rows

_COLUMNS = ("mass", "com_pos", "com_inertia_radius", "max_radius", "shape_tensor")
_COLUMNS_OF_MOTION = ("com_vel", "vel_dispersion", "angular_momentum")


class _Sphere(NamedTuple):
    """A sphere: its radius and mass, NaN if it does not fit the box, and the number of particles to its end."""

    radius: float
    mass: float
    num: int


def spheres(
    part: Any,
    density: float,
    radius: ArrayLike,
    mass: ArrayLike,
    *,
    queries: Any,
    boxsize: ArrayLike | None = None,
    vmax: ArrayLike | None = None,
    rmax: ArrayLike | None = None,
    gravity: float = 1.0,
    npart_min: int = 10,
    centre_error: float = 0.0,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check radii, masses and largest circular velocities of `jztree.spherical_overdensity`.

    Args:
        part: All matter, a particle class with ``mass`` or positions ``(n, d)``.
        density: The mean density in the spheres.
        radius: ``(q,)``; 0 without a sphere, NaN for a sphere that does not fit the box.
        mass: ``(q,)``.
        queries: The centres.
        boxsize: The box of the search.
        vmax: ``(q,)``, the largest circular velocity in each sphere; None leaves it out.
        rmax: ``(q,)``, its radius; required with ``vmax``.
        gravity: The gravitational constant of the circular velocity.
        npart_min: Number of particles in the smallest sphere.
        centre_error: Error of the centres, for example because they were rounded in another unit.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> x = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
        >>> centre = np.zeros((1, 1), np.float32)
        >>> sphere = jz.spherical_overdensity(x, 8.0, queries=centre)
        >>> verify.spheres(x, 8.0, sphere.radius, sphere.mass, queries=centre).passed
        True
    """
    points, places, output_rows = point_sets(part, queries, boxsize)
    reported = np.stack([column_of(radius, "radius", (output_rows,)), column_of(mass, "mass", (output_rows,))], axis=1)
    if (vmax is None) != (rmax is None):
        raise ValueError("only one of vmax and rmax was given; pass both or none.")
    if vmax is not None and rmax is not None:
        peaks = np.stack([column_of(vmax, "vmax", (output_rows,)), column_of(rmax, "rmax", (output_rows,))], axis=1)
    weight = weights_of(part, len(points))
    sample = sample_rows(len(places), len(points), samples, seed)
    faults = []
    for query in sample:
        away = points.distances(places[query])
        order = np.argsort(away)
        away, within = away[order], np.cumsum(weight[order])
        # A sphere whose density is the threshold up to rounding may end at this particle or a later one.
        error = 1e-9 + (points.dims * centre_error / reported[query, 0] if reported[query, 0] > 0 else 0.0)
        expected = [_sphere(points, away, within, (density, by * density), npart_min) for by in (1 - error, 1 + error)]
        tolerance = 1e-8 + ULPS * np.finfo(reported.dtype).eps
        if not any(np.allclose(reported[query], truth[:2], tolerance, 0.0, equal_nan=True) for truth in expected):
            truth = list(expected[0][:2])
            faults.append(
                f"row {query} has a sphere of radius and mass {reported[query].tolist()}, but they are {truth}"
            )
        if vmax is None:
            continue
        curves = [(away[npart_min - 1 : truth.num], within[npart_min - 1 : truth.num]) for truth in expected]
        if not any(_is_peak(peaks[query], *curve, gravity, (tolerance, centre_error)) for curve in curves):
            faults.append(
                f"row {query} has the vmax and rmax {peaks[query].tolist()}, which are not the peak of its curve"
            )
    columns = ("radius", "mass") if vmax is None else ("radius", "mass", "vmax", "rmax")
    return Verification("spheres", len(places), len(sample), tuple(faults), columns=columns)


def _sphere(
    points: Points, away: np.ndarray, mass: np.ndarray, densities: tuple[float, float], npart_min: int
) -> _Sphere:
    """Return a sphere from ascending distances and the mass within each.

    Args:
        points: The particles.
        away: Their distances.
        mass: The mass within each.
        densities: The density of the sphere, and the threshold that ends it.
        npart_min: Number of particles in the smallest sphere.
    """
    unit = math.pi ** (points.dims / 2) / math.gamma(points.dims / 2 + 1)  # the volume of a ball of radius 1
    density, threshold = (unit * value for value in densities)
    widest = np.where(points.box > 0, points.box / 2, np.inf).min()
    inside = int(np.searchsorted(away, widest, side="right"))
    if inside < npart_min:
        return _Sphere(0.0, 0.0, 0)
    start = int(np.searchsorted(away, away[npart_min - 1], side="right")) - 1
    if mass[start] <= threshold * away[start] ** points.dims:
        return _Sphere(0.0, 0.0, 0)
    ends = mass[start:inside] <= threshold * np.append(away[start + 1 : inside], widest) ** points.dims
    if not ends.any():
        return _Sphere(math.nan, math.nan, inside)
    end = start + int(np.argmax(ends))
    return _Sphere(float((mass[end] / density) ** (1 / points.dims)), float(mass[end]), end + 1)


def _is_peak(
    peak: np.ndarray, away: np.ndarray, mass: np.ndarray, gravity: float, tolerances: tuple[float, float]
) -> bool:
    """Return whether a velocity and its radius are the peak of the circular velocity at ascending distances.

    Args:
        peak: The velocity and the radius.
        away: Distances of the particles in the sphere.
        mass: The mass within each.
        gravity: The gravitational constant.
        tolerances: A relative error of the results, and an absolute error of distances.
    """
    away, mass = away[away > 0], mass[away > 0]
    if not len(away):
        return not peak.any()
    relative, length = tolerances
    speed = np.sqrt(gravity * mass / away)
    error = length / away
    # Several peaks may be equal up to rounding.
    is_highest = speed * (1 + error) >= speed.max() * (1 - 1e-9)
    agrees = np.abs(peak - np.stack([speed, away], axis=1)) <= (relative + error)[:, None] * peak
    return bool((is_highest & agrees.all(axis=1)).any())


def sphere_properties(
    part: Any,
    radius: ArrayLike,
    result: Any,
    *,
    queries: Any,
    boxsize: ArrayLike | None = None,
    centre_error: float = 0.0,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the columns of `jztree.sphere_properties`.

    Args:
        part: All matter, a particle class or positions ``(n, d)``.
        radius: ``(q,)``, the radii of the spheres; 0 without a sphere, NaN for a sphere that does not fit the box.
        result: The properties; a column that is None or missing is left out.
        queries: The centres.
        boxsize: The box of the search.
        centre_error: See `spheres`.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> x, centre = np.linspace(-1, 1, 21, dtype=np.float32)[:, None], np.zeros((1, 1), np.float32)
        >>> sphere = jz.sphere_properties(x, np.array([0.55]), queries=centre)
        >>> verify.sphere_properties(x, np.array([0.55]), sphere, queries=centre).passed
        True
    """
    points, places, output_rows = point_sets(part, queries, boxsize)
    radii = column_of(radius, "radius", (output_rows,))
    names = ("count", *_COLUMNS, *(_COLUMNS_OF_MOTION if getattr(part, "vel", None) is not None else ()))
    columns = {
        name: np.asarray(getattr(result, name, None)) for name in names if getattr(result, name, None) is not None
    }
    sample = sample_rows(len(places), len(points), samples, seed)
    faults: list[str] = []
    for query in sample:
        reported = {name: column[query] for name, column in columns.items()}
        if not radii[query] > 0:
            faults += _faults_without_sphere(int(query), reported, radii[query])
            continue
        away, margin = points.distances(places[query]), points.margin(radii[query], radii.dtype) + centre_error
        # A particle at the radius up to rounding may be inside or outside.
        members = [np.flatnonzero(away <= radii[query] + by) for by in (-margin, margin)]
        candidates: list[list[str]] = [
            list(_faults_of_sphere(points, part, (int(query), places[query]), reported, rows)) for rows in members
        ]
        shortest: list[str] = min(candidates, key=len)
        faults += shortest
    return Verification("properties of spheres", len(places), len(sample), tuple(faults), columns=tuple(columns))


def _faults_without_sphere(query: int, reported: dict[str, np.ndarray], radius: float) -> list[str]:
    """Return the faults of a row without a sphere, whose columns are 0, or NaN if it does not fit the box."""
    missing = np.isnan(radius)
    return [
        f"row {query} has the {name} {value.tolist()}, but its radius is {radius}"
        for name, value in reported.items()
        if not ((value == -1) if missing and name == "count" else np.isnan(value) if missing else value == 0).all()
    ]


def _faults_of_sphere(
    points: Points, part: Any, centre: tuple[int, np.ndarray], reported: dict[str, np.ndarray], rows: np.ndarray
) -> Iterator[str]:
    """Yield the faults of a sphere that contains the particles in ``rows``; ``centre`` is its row and its position."""
    query, place = centre
    if "count" in reported and reported["count"] != len(rows):
        yield f"row {query} has the count {reported['count']}, but {len(rows)} particles are in the sphere"
    if not len(rows):
        return
    for quantity in properties(points, part, rows, origin=place):
        value = reported.get(quantity.name)
        if value is not None and differs(points, quantity, value):
            yield f"row {query} has the {in_words(quantity, value)}"
