"""The check of bound subhaloes: a partition of groups, whose particles are bound in the frame of their subhalo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ._catalogue import differs, in_words, properties, rows_of_groups, weights_of
from ._halos import potentials
from ._points import PAIRS, Points, Verification, integers_of, one_length, sample_rows

_COMPARED = 100  # particles whose energies are computed in each sampled subhalo at any cost
_FASTEST = 10  # further ones, of largest kinetic and internal energy
_ERROR = 0.01  # relative error of potentials: the search has 0.1 % for nearly all particles
_ROUNDED = 1e-5  # relative error of radii and enclosed masses
_CIRCULAR = {"vmax", "rmax", "half_mass_radius"}
_CHECKED = _CIRCULAR | {
    *("group", "parent", "depth", "count", "pos", "most_bound", "mass", "com_pos", "com_vel", "vel_dispersion"),
    "angular_momentum",
}


def subhaloes(
    grouped: Any,
    cata: Any,
    result: Any,
    gravity: float,
    *,
    softening: float = 0.0,
    boxsize: ArrayLike | None = None,
    hubble: float = 0.0,
    scale_factor: float = 1.0,
    internal_energy: ArrayLike | None = None,
    is_ordered: bool = False,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the subhaloes of `jztree.subhaloes`.

    The counts and the hierarchy of every subhalo are checked. In a sample, particles are bound in the frame of their
    subhalo, ``pos`` and ``most_bound`` have the lowest potential and energy, and sums agree with the particles.
    Energies are compared up to 1 %. Missing subhaloes, and parents that are wrong but form a hierarchy, are not found.

    Args:
        grouped: The particles in group order, on one device.
        cata: The catalogue of the groups.
        result: The subhaloes.
        gravity: See `jztree.subhaloes`, like the next five arguments.
        softening: A length.
        boxsize: The box of the groups.
        hubble: The Hubble constant.
        scale_factor: The scale factor.
        internal_energy: ``(n,)``, or None.
        is_ordered: Whether the members of each subhalo are in the order of their energies, the most bound one first.
        samples: Number of subhaloes to check. None means as many as take some seconds.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(1).normal(0, 0.1, (100, 3)).astype(np.float32)
        >>> part = jz.data.ParticleData(pos=pos, vel=np.zeros_like(pos), mass=0.01)
        >>> grouped, catalogue = jz.friends_of_friends(part, 0.5)
        >>> result = jz.subhaloes(grouped, catalogue, 1.0, softening=0.01)
        >>> verify.subhaloes(grouped, catalogue, result, 1.0, softening=0.01).passed
        True
    """
    points, num = Points(grouped, boxsize), int(result.num)
    label = integers_of(result.subhalo, "subhalo", (points.rows,))[: len(points)]
    faults = _structure(points, cata, result, label)
    if faults:
        return Verification("subhaloes", num, 0, faults)
    order = np.argsort(label, kind="stable")
    starts = np.searchsorted(label[order], np.arange(num + 1))
    sample = sample_rows(num, _COMPARED * int(np.diff(starts).max(initial=1)), samples, seed)
    columns = {name: np.asarray(column)[:num] for name, column in vars(result).items() if np.ndim(column)}
    search = _Search(
        points,
        grouped,
        weights_of(grouped, len(points)),
        np.zeros(len(points)) if internal_energy is None else np.asarray(internal_energy, np.float64),
        (gravity / scale_factor, one_length(softening, "softening"), hubble * scale_factor),
        np.random.default_rng(seed),
        PAIRS // max(len(sample), 1),
        is_ordered,
    )
    wrong = list[str]()
    for row in sample:
        members, values = order[starts[row] : starts[row + 1]], {name: column[row] for name, column in columns.items()}
        checks = *_sums(search, members, values), *_frame(search, members, values)
        wrong += [f"subhalo {row} has {fault}" for fault in checks]
    notes = ("  not checked: whether subhaloes are missing, and whether another hierarchy is the right one",)
    return Verification(
        "subhaloes", num, len(sample), tuple(wrong), notes, tuple(name for name in columns if name in _CHECKED)
    )


class _Search(NamedTuple):
    """A search for subhaloes.

    Attributes:
        points: The positions of the particles.
        part: The particles.
        weight: Their masses.
        internal: Their internal energies.
        constants: The constant of gravity for comoving lengths, the softening, and the Hubble flow per length.
        random: The source of samples of members.
        pairs: Number of pairs of particles that energies may need in a subhalo.
        is_ordered: Whether members are in the order of their energies.
    """

    points: Points
    part: Any
    weight: np.ndarray
    internal: np.ndarray
    constants: tuple[float, float, float]
    random: np.random.Generator
    pairs: int
    is_ordered: bool


def _sums(search: _Search, members: np.ndarray, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of columns that are sums over the members of a subhalo."""
    for quantity in properties(search.points, search.part, members):
        if quantity.name in _CHECKED & values.keys() and differs(search.points, quantity, values[quantity.name]):
            yield f"the {in_words(quantity, values[quantity.name])}"


def _frame(search: _Search, members: np.ndarray, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the centre of a subhalo, of the circular velocities around it, and of energies."""
    points, (gravity, softening, hubble) = search.points, search.constants
    away, most_bound = points.distances(values["pos"].astype(np.float64), members), int(values["most_bound"])
    if not away.min() <= points.margin(points.scale, values["pos"].dtype) or most_bound not in members:
        yield "no particle at its position, or a most bound particle that is not bound to it"
        return
    centre, lowest = int(np.argmin(away)), int(np.argmax(members == most_bound))
    offsets = points.offsets(points.pos[members[centre]], members)
    yield from _circular(gravity, np.sqrt((offsets**2).sum(axis=1)), search.weight[members], values)
    motion = np.asarray(search.part.vel, np.float64)[members] - values["vel"] + hubble * offsets
    positive = (motion**2).sum(axis=1) / 2 + search.internal[members]
    limit = min(len(members), max(search.pairs // len(members), _COMPARED))
    sampled = search.random.choice(len(members), limit, replace=False)
    compared = np.unique(np.concatenate([[0, centre, lowest], np.argsort(positive)[-_FASTEST:], sampled]))
    potential = gravity * potentials(points, search.weight, members, members[compared], softening)
    energy, error = positive[compared] + potential, _ERROR * np.abs(potential)
    if not (energy <= error).all():
        yield f"the particle in row {members[compared[np.argmax(energy - error)]]}, which is not bound to it"
    is_lower = energy + error < (energy - error)[compared == lowest]
    if (potential[compared == centre] > potential + error).any() or is_lower.any():
        yield "particles of lower potential than its centre, or of lower energy than its most bound particle"
    if not search.is_ordered:
        return
    if not np.abs(energy[0] - energy[compared == lowest]) <= _ROUNDED * np.abs(potential[0]):
        yield f"the most bound particle in row {most_bound}, but its first member is in row {members[0]}"
    if (np.maximum.accumulate(energy - error) > energy + error).any():
        yield "members that are not in the order of their energies"


def _circular(gravity: float, radius: np.ndarray, weight: np.ndarray, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the largest circular velocity and of the radius of half the mass."""
    if not values.keys() >= _CIRCULAR:
        return
    order = np.argsort(radius)
    radius, enclosed = radius[order], np.cumsum(weight[order])
    velocity = np.sqrt(gravity * enclosed / np.where(radius > 0, radius, np.inf))
    vmax, rmax, half = (float(values[name]) for name in ("vmax", "rmax", "half_mass_radius"))
    within = np.abs(radius - rmax) <= _ROUNDED * rmax
    is_peak = velocity[within].max(initial=0.0) >= (1 - _ROUNDED) * vmax
    if not (is_peak and abs(vmax - velocity.max()) <= _ROUNDED * vmax):
        yield f"the largest circular velocity {vmax:.9g} at {rmax:.9g}, but its particles have {velocity.max():.9g}"
    low = np.searchsorted(radius, half * (1 - _ROUNDED))
    high = np.searchsorted(radius, half * (1 + _ROUNDED), side="right")
    share = np.append(0.0, enclosed) / (enclosed[-1] or 1.0)
    if not share[low] < 0.5 + _ROUNDED or not share[high] >= 0.5 - _ROUNDED or low == high:
        yield f"the radius of half the mass {half:.9g}, which has {share[low]:.6g} of its mass"


def _structure(points: Points, cata: Any, result: Any, label: np.ndarray) -> tuple[str, ...]:
    """Return a sentence if subhaloes are not parts of their groups, or contain other particles."""
    num, (count, offset, faults) = int(result.num), rows_of_groups(points, cata)
    if faults:
        return faults
    group_of = np.full(len(points), -1)
    for number, (first, size) in enumerate(zip(offset, count, strict=True)):
        group_of[first : first + size] = number
    group, parent, depth, bound = (
        integers_of(np.asarray(getattr(result, name))[:num], name, (num,))
        for name in ("group", "parent", "depth", "count")
    )
    if label.max(initial=-1) >= num or (np.bincount(label[label >= 0], minlength=num) != bound).any():
        return ("the counts of subhaloes differ from the numbers of their particles",)
    held = np.flatnonzero(label >= 0)
    if len(wrong := held[group_of[held] != group[label[held]]]):
        return (f"the particle in row {wrong[0]} is in a subhalo of another group",)
    is_central = parent < 0
    inner = np.flatnonzero(~is_central)
    fits = (parent < num).all() and (group[parent[inner]] == group[inner]).all()
    if not fits or (depth[is_central] != 0).any() or (depth[inner] != depth[parent[inner]] + 1).any():
        return ("the parents and depths of subhaloes do not form a hierarchy inside groups",)
    return ()
