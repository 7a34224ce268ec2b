"""Checks of halo properties: densest particles, particles of lowest potential, axes, spins and concentrations."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._catalogue import rows_of_groups, weights_of
from ._points import Points, Verification, column_of, one_length, sample_rows

_PAIRS = 50_000_000  # pairs of particles that a comparison of members computes by default
_FEWEST = 10  # members of a group whose densities or potentials are compared at any cost
_ROUNDED = 64  # tolerance of results of several steps, in units of the last digit
# Range of concentrations: a profile with its peak at the radius, and a point.
_PEAK, _MOST_PEAKED = 2.162581587064612, 1e6


def densest_particle(
    grouped: Any,
    cata: Any,
    pos: ArrayLike,
    density: ArrayLike,
    k: int,
    *,
    boxsize: ArrayLike | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the densest particles of `jztree.halos.densest_particle`, with densities of `jztree.knn_density`.

    Args:
        grouped: All particles in group order, on one device.
        cata: The catalogue of the groups.
        pos: ``(g, d)``, the positions of the densest particles.
        density: ``(g,)``, their densities.
        k: Number of neighbours of the densities.
        boxsize: The box of the groups.
        samples: Number of groups to check. None means as many as take some seconds.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> x = np.array([[0.0], [1.0], [1.5], [3.0], [9.0]], np.float32)
        >>> grouped, cata = jz.friends_of_friends(x, 2.0, npart_min=3)
        >>> densest = jz.halos.densest_particle(grouped, cata, jz.knn_density(grouped, 3))
        >>> verify.densest_particle(grouped, cata, densest.part, densest.density, 3).passed
        True
    """
    points = Points(grouped, boxsize)
    reported, weight = column_of(density, "density", (None,)), weights_of(grouped, len(points))
    if int(cata.ngroups) and not 2 < k <= len(points):
        raise ValueError(f"k is {k}; it must be from 3 to the number of particles, {len(points)}.")
    unit = math.pi ** (points.dims / 2) / math.gamma(points.dims / 2 + 1)

    def densities(members: np.ndarray, particles: np.ndarray) -> np.ndarray:
        """Return the densities of particles of a group, whose neighbours are candidates near the group."""
        away = points.distances(points.pos[members[0]])
        nearest = float(np.partition(away, k - 1)[k - 1])
        candidates = np.flatnonzero(away <= (2 * away[members].max() + nearest) * (1 + 1e-9))
        result = np.empty(len(particles))
        for place, row in enumerate(particles):
            distance = points.distances(points.pos[row], candidates)
            distance[candidates == row] = -1  # a particle is its own first neighbour
            order = np.argpartition(distance, k - 1)[:k]
            order = order[np.argsort(distance[order])]
            volume = unit * distance[order[-1]] ** points.dims
            with np.errstate(divide="ignore", invalid="ignore"):
                result[place] = weight[candidates[order[1:-1]]].sum() / volume
        return result

    tolerance = _ROUNDED * np.finfo(reported.dtype).eps

    def fault(group: int, row: int, values: np.ndarray) -> str | None:
        if not np.isclose(reported[group], values[0], tolerance, 0.0):
            return f"group {group} has the largest density {reported[group]:.9g}, but it is {values[0]:.9g}"
        largest = values.max()
        if not (values[0] >= largest * (1 - tolerance) or values[0] == largest):
            return f"group {group} has a particle of density {largest:.9g}, above that of its densest, {values[0]:.9g}"
        return None

    return _compare(points, cata, pos, "densest particles", (densities, fault), samples, seed, cost=len(points))


def lowest_potential_particle(
    grouped: Any,
    cata: Any,
    pos: ArrayLike,
    *,
    softening: float = 0.0,
    boxsize: ArrayLike | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the particles of `jztree.halos.lowest_potential_particle`.

    Args:
        grouped: The particles in group order, on one device.
        cata: The catalogue of the groups.
        pos: ``(g, d)``, the positions of the particles of lowest potential.
        softening: The softening length of the potential.
        boxsize: The box of the groups.
        samples: Number of groups to check. None means as many as take some seconds.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 9.0]], np.float32)
        >>> grouped, cata = jz.friends_of_friends(pos, 1.5, npart_min=3)
        >>> lowest = jz.halos.lowest_potential_particle(grouped, cata)
        >>> verify.lowest_potential_particle(grouped, cata, lowest.part).passed
        True
    """
    points, length = Points(grouped, boxsize), one_length(softening, "softening")
    weight = weights_of(grouped, len(points))

    def of_members(members: np.ndarray, particles: np.ndarray) -> np.ndarray | None:
        offsets = points.offsets(points.pos[particles[0]], members)
        if ((points.box > 0) & (np.ptp(offsets, axis=0) >= points.box / 2)).any():
            return None  # the search is defined for groups that are smaller than half the box
        return potentials(points, weight, members, particles, length)

    def fault(group: int, row: int, values: np.ndarray) -> str | None:
        lowest = values.min()
        if values[0] > lowest + 1e-9 * abs(lowest):
            return f"group {group} has a particle of potential {lowest:.9g}, below that of its centre, {values[0]:.9g}"
        return None

    return _compare(points, cata, pos, "particles of lowest potential", (of_members, fault), samples, seed)


def potentials(
    points: Points, weight: np.ndarray, members: np.ndarray, particles: np.ndarray, softening: float
) -> np.ndarray:
    """Return the Plummer potentials of some particles by the other members, for a constant of gravity of 1."""
    result = np.empty(len(particles))
    for place, row in enumerate(particles):
        distance = np.hypot(points.distances(points.pos[row], members), softening)
        distance[(members == row) | (distance == 0)] = np.inf
        result[place] = -(weight[members] / distance).sum()
    return result


def _compare(
    points: Points,
    cata: Any,
    pos: ArrayLike,
    content: str,
    rules: tuple[Callable, Callable],
    samples: Any,
    seed: int,
    cost: int = 1,
) -> Verification:
    """Compare the reported particle of each sampled group with members of the group, with all if they are few.

    Args:
        points: The particles in group order.
        cata: The catalogue.
        pos: Positions of the reported particles.
        content: The checked result, in words.
        rules: A function that returns a quantity of some members, or None if it is not defined; and a function that
            returns the fault of its values. The first value belongs to the reported particle.
        samples: Number of groups.
        seed: Seed of the sample.
        cost: Number of distances per group, if it is larger than the number of members.
    """
    evaluate, find_fault = rules
    count, offset, faults = rows_of_groups(points, cata)
    places = np.asarray(getattr(pos, "pos", pos))
    ngroups = len(count)
    if faults or len(places) < ngroups:
        return Verification(content, ngroups, 0, faults or (f"{ngroups} groups have only {len(places)} rows",))
    sample, random = sample_rows(ngroups, int(count.max(initial=cost)), samples, seed), np.random.default_rng(seed)
    wrong, compared = [], 0
    for group in sample:
        members = np.arange(offset[group], offset[group] + count[group])
        away = points.distances(places[group].astype(np.float64), members)
        row = int(members[np.argmin(away)])
        if not away.min() <= points.margin(points.scale, places.dtype):
            wrong.append(f"group {group} has no particle at {places[group].tolist()}")
            continue
        limit = max(_PAIRS // (len(sample) * len(members)), _FEWEST)
        rivals = members if len(members) <= limit else random.choice(members, limit, replace=False)
        values = evaluate(members, np.append(row, rivals))
        if values is None:
            continue
        compared += len(rivals)
        fault = find_fault(int(group), row, values)
        wrong += [] if fault is None else [fault]
    total = int(count[sample].sum())
    notes = (f"  compared with {compared:,} of {total:,} members, because groups are large",)
    return Verification(content, ngroups, len(sample), tuple(wrong), notes if compared < total and not wrong else ())


def principal_axes(cata: Any, axes: Any) -> Verification:
    """Check the axes of `jztree.halos.principal_axes`, all rows, from the shape tensors and radii of inertia.

    Args:
        cata: A catalogue, or properties of spheres.
        axes: Object with ``lengths``, ``ratios`` and ``directions``. Rows without extent have the length 0 and the
            ratio NaN or 0.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[-3.0, 0.0], [0.0, -1.0], [0.0, 1.0], [3.0, 0.0]], np.float32)
        >>> _, cata = jz.friends_of_friends(pos, 4.0, npart_min=3)
        >>> verify.principal_axes(cata, jz.halos.principal_axes(cata)).passed
        True
    """
    ngroups = int(cata.ngroups)
    tensor, radius = (np.asarray(column)[:ngroups] for column in (cata.shape_tensor, cata.com_inertia_radius))
    lengths, ratios, directions = (
        np.asarray(column, np.float64)[:ngroups] for column in (axes.lengths, axes.ratios, axes.directions)
    )
    tolerance = _ROUNDED * np.finfo(tensor.dtype).eps
    tensor, radius = tensor.astype(np.float64), radius.astype(np.float64)
    faults = []
    for row in range(ngroups):
        if np.isnan(tensor[row]).any():
            if not all(np.isnan(column[row]).all() for column in (lengths, ratios, directions)):
                faults.append(f"row {row} has axes, but its shape tensor is NaN")
            continue
        values = np.maximum(np.linalg.eigvalsh(tensor[row])[::-1], 0)
        if not (np.abs(lengths[row] ** 2 - values * radius[row] ** 2) <= tolerance * radius[row] ** 2).all():
            expected = (np.sqrt(values) * radius[row]).tolist()
            faults.append(f"row {row} has the axis lengths {lengths[row].tolist()}, but they are {expected}")
        if not values.any():
            if not (np.isnan(ratios[row]) | (ratios[row] == 0)).all():
                faults.append(f"row {row} has the axis ratios {ratios[row].tolist()}, but no extent")
            continue
        if not (np.abs(ratios[row] ** 2 - values[1:] / values[0]) <= tolerance).all():
            expected = np.sqrt(values[1:] / values[0]).tolist()
            faults.append(f"row {row} has the axis ratios {ratios[row].tolist()}, but they are {expected}")
        if not _are_axes(tensor[row], values, directions[row], tolerance):
            faults.append(f"row {row} has the directions {directions[row].tolist()}, which are not its principal axes")
    return Verification("principal axes", ngroups, ngroups, tuple(faults))


def _are_axes(tensor: np.ndarray, values: np.ndarray, directions: np.ndarray, tolerance: float) -> bool:
    """Return whether rows are unit vectors along the axes of a tensor with these eigenvalues, with the right signs."""
    identity = np.eye(len(values))
    residuals = directions @ tensor - values[:, None] * directions, directions @ directions.T - identity
    signs = directions.max(axis=1) >= np.abs(directions).max(axis=1) - tolerance
    return all((np.abs(residual) <= tolerance).all() for residual in residuals) and bool(signs.all())


def spin(
    cata: Any, mass: ArrayLike, radius: ArrayLike, values: ArrayLike, gravity: float, *, scale_factor: float = 1.0
) -> Verification:
    """Check the spins of `jztree.halos.spin`, all rows, from angular momenta, masses and radii.

    Args:
        cata: A catalogue, or properties of spheres, with ``angular_momentum``.
        mass: ``(g,)``, the mass of each row.
        radius: ``(g,)``, the radius of each row.
        values: ``(g,)``, the spins.
        gravity: Newton's constant.
        scale_factor: The scale factor of the universe.

    Examples:
        >>> from types import SimpleNamespace
        >>> from jztree_utils import verify
        >>> sphere = SimpleNamespace(angular_momentum=np.array([[0.0, 0.0, 0.2]]))
        >>> verify.spin(sphere, [1.0], [1.0], [0.2 / 2**0.5], 1.0).passed
        True
    """
    dtype = np.asarray(values).dtype
    reported, masses, radii = (np.asarray(column, np.float64) for column in (values, mass, radius))
    momentum = np.linalg.norm(np.asarray(cata.angular_momentum, np.float64), axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        truth = momentum * np.sqrt(scale_factor / (2 * gravity * masses * radii))
    truth = np.where((masses == 0) | (radii == 0), 0.0, truth)
    wrong = np.flatnonzero(~np.isclose(reported, truth, _ROUNDED * np.finfo(dtype).eps, 0.0, equal_nan=True))
    faults = tuple(f"row {row} has the spin {reported[row]:.9g}, but it is {truth[row]:.9g}" for row in wrong)
    return Verification("spins", len(truth), len(truth), faults)


def concentration(
    mass: ArrayLike, radius: ArrayLike, vmax: ArrayLike, values: ArrayLike, *, gravity: float = 1.0
) -> Verification:
    """Check the concentrations of `jztree.halos.concentration`, all rows, from masses, radii and circular velocities.

    Args:
        mass: ``(g,)``, the masses of spheres.
        radius: ``(g,)``, their radii.
        vmax: ``(g,)``, the largest circular velocities.
        values: ``(g,)``, the concentrations.
        gravity: Newton's constant.

    Examples:
        >>> from jztree_utils import verify
        >>> verify.concentration([100.0], [1.0], [12.0], np.array([9.8]), gravity=1.0).faults[0]
        'row 0 has the concentration 9.8, which is that of a vmax of 11.9973'
    """
    dtype = np.asarray(values).dtype
    reported, masses, radii, speeds = (np.asarray(column, np.float64) for column in (values, mass, radius, vmax))
    with np.errstate(divide="ignore", invalid="ignore"):
        at_radius = np.sqrt(gravity * masses / radii)
        implied = at_radius * np.sqrt(reported / _PEAK * _nfw_mass(_PEAK) / _nfw_mass(reported))
        is_sphere = (masses > 0) & (radii > 0) & (speeds > 0)
        tolerance = _ROUNDED * np.finfo(dtype).eps
        agrees = np.isclose(implied, speeds, tolerance, 0.0)
        agrees |= (speeds <= at_radius * (1 + tolerance)) & np.isclose(reported, _PEAK, 0.01, 0.0)
        agrees |= (speeds >= implied) & np.isclose(reported, _MOST_PEAKED, tolerance, 0.0)
    undefined = np.isnan(masses) | np.isnan(radii)
    right = np.where(is_sphere, agrees, np.where(undefined, np.isnan(reported), reported == 0))
    faults = tuple(
        f"row {row} has the concentration {reported[row]:.6g}, which is that of a vmax of {implied[row]:.6g}"
        for row in np.flatnonzero(~right)
    )
    return Verification("concentrations", len(right), len(right), faults)


def _nfw_mass(x: Any) -> Any:
    """Return the mass of the profile of Navarro, Frenk & White within ``x`` scale radii, up to a factor."""
    return np.log1p(x) - x / (1 + x)
