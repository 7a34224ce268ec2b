"""The check of bound subhaloes: a partition of groups, whose particles are bound in the frame of their subhalo."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from ._catalogue import differs, in_words, properties, rows_of_groups, weights_of
from ._halos import potentials
from ._points import Points, Verification, integers_of, one_length, sample_rows

_COMPARED = 100  # particles whose energies are computed in each sampled subhalo
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
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the subhaloes of `jztree.subhaloes`.

    The counts and the hierarchy of all subhaloes are checked. In a sample, particles are bound in the frame of their
    subhalo, ``pos`` and ``most_bound`` have the lowest potential and energy, and sums agree with the particles.

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
    )
    wrong = list[str]()
    for row in sample:
        members, values = order[starts[row] : starts[row + 1]], {name: column[row] for name, column in columns.items()}
        checks = *_sums(search, members, values), *_frame(search, members, values)
        wrong += [f"subhalo {row} has {fault}" for fault in checks]
    return Verification(
        "subhaloes", num, len(sample), tuple(wrong), (), tuple(name for name in columns if name in _CHECKED)
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
    """

    points: Points
    part: Any
    weight: np.ndarray
    internal: np.ndarray
    constants: tuple[float, float, float]
    random: np.random.Generator


def _sums(search: _Search, members: np.ndarray, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of columns that are sums over the members of a subhalo."""
    for quantity in properties(search.points, search.part, members):
        if quantity.name in _CHECKED & values.keys() and differs(search.points, quantity, values[quantity.name]):
            yield f"the {in_words(quantity, values[quantity.name])}"


def _frame(search: _Search, members: np.ndarray, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the centre of a subhalo, of the circular velocities around it, and of energies."""
    points, (gravity, softening, hubble) = search.points, search.constants
    away, most_bound = points.distances(values["pos"].astype(np.float64), members), int(values["most_bound"])
    if away.min() > points.margin(points.scale, values["pos"].dtype) or most_bound not in members:
        yield "no particle at its position, or a most bound particle that is not bound to it"
        return
    centre = members[np.argmin(away)]
    yield from _circular(gravity, points.distances(points.pos[centre], members), search.weight[members], values)
    compared = search.random.choice(members, min(len(members), _COMPARED), replace=False)
    compared = np.concatenate([[centre, most_bound], compared])
    potential = gravity * potentials(points, search.weight, members, compared, softening)
    flow = hubble * points.offsets(points.pos[centre], compared)
    motion = np.asarray(search.part.vel, np.float64)[compared] - values["vel"] + flow
    energy, error = (motion**2).sum(axis=1) / 2 + search.internal[compared] + potential, _ERROR * np.abs(potential)
    if (energy > error).any():
        yield f"the particle in row {compared[np.argmax(energy - error)]}, which is not bound to it"
    if (potential[0] > potential + error).any() or (energy[1] > energy + error + error[1]).any():
        yield "particles of lower potential than its centre, or of lower energy than its most bound particle"


def _circular(gravity: float, radius: np.ndarray, weight: np.ndarray, values: Mapping[str, Any]) -> Iterator[str]:
    """Yield the faults of the largest circular velocity and of the radius of half the mass."""
    if not values.keys() >= _CIRCULAR:
        return
    order = np.argsort(radius)
    radius, enclosed = radius[order], np.cumsum(weight[order])
    velocity = np.sqrt(gravity * enclosed / np.where(radius > 0, radius, np.inf))
    vmax, rmax, half = (float(values[name]) for name in ("vmax", "rmax", "half_mass_radius"))
    within = np.abs(radius - rmax) <= _ROUNDED * rmax
    if abs(vmax - velocity.max()) > _ROUNDED * vmax or velocity[within].max(initial=0.0) < (1 - _ROUNDED) * vmax:
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
