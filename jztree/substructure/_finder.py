"""Find the bound subhaloes of groups, on one or several devices."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from .._options import checked_config
from ..arguments import (
    Kind,
    check_box,
    check_constant,
    check_error,
    check_in_range,
    check_one_a_particle,
    check_particles,
    check_real,
    check_real_dtype,
    check_word,
    flat,
    known_integer,
    mass_faults,
    mass_rows,
    row_fault,
    velocity_faults,
)
from ..config import KNNConfig
from ..data import FofCatalogue, PosMass
from ..halos import WholeGroups, check_softening, whole_groups
from ..jax_ext import Exact, exact
from ..particles import Array, check_num, check_representable
from ..tree.stage import starts_of_ranks
from ._candidates import find_candidates, neighbours_and_density
from ._phase_space import phase_space_candidates
from ._properties import joined_numbers, number_subhaloes, properties_of
from ._table import Subhaloes
from ._unbinding import Members, Physics, Rules, unbind

_MAX_DIMS = 3
_CANDIDATES = ("density", "phase_space")
_BAD_ENERGY = (
    "the internal energy of row {0} is negative or not finite; pass an energy for every particle, 0 for those without."
)
_BAD_TYPE = "row {0} has a type that is not from 0 to %d; pass types in this range, or a larger num_types."
_LOST = (
    "an energy (velocity squared) is outside the range of %s; choose other units, or switch on jax_enable_x64 and give "
    "positions in float64."
)


def _constant(name: str, may_be_zero: bool = False) -> Kind:
    """Return the treatment of a constant, which is equal on all ranks."""

    def read(value: Any, _: Any) -> Exact:
        return value if isinstance(value, Exact) else exact(check_constant(value, name, may_be_zero=may_be_zero), ())

    return Kind(P(), read)


_GRAVITY, _HUBBLE, _SCALE = _constant("gravity"), _constant("hubble", may_be_zero=True), _constant("scale_factor")


@flat(
    grouped=Kind(P(-1)),
    cata=Kind(P(-1)),
    internal_energy=Kind(P(-1)),
    types=Kind(P(-1)),
    softening=Kind(P(), lambda softening, _: check_softening(softening)),
    gravity=_GRAVITY,
    hubble=_HUBBLE,
    scale_factor=_SCALE,
)
def subhaloes(
    grouped: Any,
    cata: FofCatalogue,
    gravity: ArrayLike,
    *,
    softening: ArrayLike = 0.0,
    boxsize: ArrayLike | None = None,
    hubble: ArrayLike = 0.0,
    scale_factor: ArrayLike = 1.0,
    internal_energy: Array | None = None,
    types: Array | None = None,
    num_types: int = 6,
    candidates: str = "density",
    neighbours: int = 32,
    min_bound: int = 20,
    tolerance: float = 0.0,
    error: float = 1e-3,
    group_rows: int | None = None,
    cfg: KNNConfig | None = None,
) -> Subhaloes:
    """Find the bound subhaloes of each group.

    With ``candidates="density"``, the density of each particle is `jztree.sph_density` of its ``neighbours``. The
    particles of a group are added in falling density. Each looks at the two nearest of the denser ones among its
    neighbours in the group, and either begins a set, joins a set, or is the saddle between two. At a saddle, the set
    with fewer particles ends. It is a candidate if it has ``min_bound`` particles (SUBFIND, Springel et al. 2001, MNRAS
    328, 726). The whole group is the last candidate.

    With ``candidates="phase_space"``, groups split in phase space, like in Rockstar (Behroozi et al. 2013, ApJ 762,
    109). The distance of two particles of a group is ``sqrt(dx**2 / sx**2 + dv**2 / sv**2)`` with the dispersions
    ``sx`` and ``sv`` of the group. The linking length is such that 90 % of the particles have a neighbour. The linked
    sets with ``min_bound`` particles split in the same way, until no such set remains. All other particles join the set
    of the nearest particle in a set. The set with most particles continues the candidate that splits, and each other
    set is a candidate. Sets are one set if their centres differ by less than ``10 sqrt(2)`` standard errors. This finds
    subhaloes that pass the centre of their host.

    From each candidate, inner ones first, all particles with a positive energy are removed, until all are bound. The
    potential is that of the remaining particles of the candidate. Velocities are relative to the mean of the core, the
    tenth of the particles (but at least 20) that is most bound, and include the Hubble flow. Particles that a candidate
    loses belong to the next larger one, whose other inner candidates are already finished. So no particle is in two
    subhaloes.

    Over several devices, the function collects all particles of a group on the device of its catalogue row, and a
    buffer there must hold them (``group_rows``). The subhaloes do not depend on the number of devices. The function has
    no derivatives: differentiating it is an error.

    Args:
        grouped: The particles in group order from `jztree.fof.friends_of_friends`, in 1 to 3 dimensions, with
            velocities ``vel``. Without ``mass``, each particle counts 1. If positions are comoving, velocities are
            peculiar, in physical units.
        cata: The catalogue from the same call. It may have been sorted.
        gravity: Newton's constant in length * velocity**2 / mass, such as 43.0071 for Mpc/h, km/s and 1e10 Msun/h.
            Equal on all ranks, like all numbers below.
        softening: A length in the unit of the positions. Pairs have the Plummer potential
            ``-G m / sqrt(r**2 + softening**2)``.
        boxsize: The box that the groups were found in; None means open. Subhaloes wider than half the box have no
            unique centre of mass, and candidates in phase space of such groups depend on their first particle.
        hubble: The Hubble constant at the time of the particles, in velocity per physical length, such as 100 E(z) for
            km/s and Mpc/h. The default 0 means no expansion.
        scale_factor: The scale factor of the universe, if positions are comoving.
        internal_energy: ``(n,)`` energies per mass of the particles in group order, 0 for collisionless ones. They are
            physical, in the square of the unit of velocity.
        types: ``(n,)`` integers from 0 on, the type of each particle in group order.
        num_types: The number of types.
        candidates: ``"density"`` or ``"phase_space"``.
        neighbours: The number of nearest particles for densities and saddles, including the particle itself. It has no
            effect on candidates in phase space.
        min_bound: The smallest number of particles of a subhalo.
        tolerance: Unbinding ends with the step that removes at most this fraction of the particles. With the default 0,
            each particle of a subhalo is bound in its final frame.
        error: The relative error of potentials of 99.9 % of the particles, from 1e-10 to 0.1.
        group_rows: On several devices, the capacity in particles of the buffer for whole groups. None means a capacity
            sufficient for almost all data sets, which mapped functions enlarge if necessary.
        cfg: Options of the search for neighbours.

    Returns:
        The subhaloes, and the subhalo and energy of each particle.

    Raises:
        TypeError: If an argument has an invalid type.
        ValueError: If an argument is invalid.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if the catalogue belongs to other
            particles, a mass, velocity or energy is invalid, a density or a property exceeds the range of its dtype, or
            all devices together hold 2**31 particles or more.
        CapacityError: If whole groups do not fit ``group_rows``.

    Examples:
        >>> random = np.random.default_rng(1)
        >>> pos = np.concatenate([random.normal(x, 0.1, (100, 3)) for x in (0.0, 1.0)])
        >>> part = jz.data.ParticleData(pos=pos.astype(np.float32), vel=np.zeros((200, 3), np.float32), mass=0.01)
        >>> grouped, catalogue = jz.friends_of_friends(part, 0.5)
        >>> jz.subhaloes(grouped, catalogue, 1.0, softening=0.01).columns()["count"]
        array([100, 100], dtype=int32)
    """
    pos = check_particles(grouped, max_dims=_MAX_DIMS)
    check_representable({"grouped": grouped, "cata": cata})
    check_word(candidates, "candidates", _CANDIDATES)
    min_bound, neighbours = known_integer(min_bound, "min_bound", 1), known_integer(neighbours, "neighbours", 2)
    num_types = known_integer(num_types, "num_types", 1)
    error = check_error(error)
    if np.shape(tolerance) != () or not 0 <= float(check_real(tolerance, "tolerance")) < 1:
        raise ValueError(f"tolerance is {tolerance}; it must be a fraction of at least 0 and below 1.")
    members = _members(grouped, pos, internal_energy)
    if types is not None:
        check_one_a_particle(types, pos, "types", integers=True)
        types = jnp.asarray(types)
    num = jnp.asarray(check_num(grouped), jnp.int32)
    numbers = [
        kind.exact(value, {}).words
        for kind, value in ((_GRAVITY, gravity), (_HUBBLE, hubble), (_SCALE, scale_factor))
        if kind.exact is not None
    ]
    physics = Physics(
        check_box(boxsize, pos.shape[1]), check_softening(softening), Exact(jnp.stack(numbers)), exact(error, ())
    )
    num = comm.check_all(num, _faults(members, types, num, num_types))
    n, catalogue_rows = pos.shape[0], np.shape(cata.count)[0]
    if n == 0 or catalogue_rows == 0:
        return _none(members, None if types is None else num_types)
    cfg, rows, density = checked_config(cfg, KNNConfig), None, None
    start = joined_numbers(jnp.asarray(cata.offset, jnp.int32), num)
    if candidates == "density":
        part = PosMass(pos=pos, mass=members.mass, num=num)
        rows, density = neighbours_and_density(part, cata, start, neighbours, boxsize, cfg)
    columns = members, rows, density, None if types is None else types.astype(jnp.int32)
    groups = whole_groups(columns, cata, num, group_rows)
    return _find(groups, start, num, physics, Rules(min_bound, float(tolerance)), num_types)


def _members(grouped: Any, pos: jax.Array, internal_energy: Any) -> Members:
    """Return the properties of particles that determine energies, in the dtype of the positions."""
    vel = getattr(grouped, "vel", None)
    if vel is None:
        raise ValueError("the particles have no velocities vel; subhaloes need them. Pass particles with vel.")
    if np.shape(vel) != pos.shape:
        raise ValueError(f"vel must have the shape of pos, {pos.shape}; its shape is {np.shape(vel)}.")
    check_real_dtype(vel, "velocities")
    masses = mass_rows(grouped, pos.dtype)
    mass = jnp.ones(pos.shape[:1], pos.dtype) if masses is None else jnp.broadcast_to(masses, pos.shape[:1])
    if internal_energy is not None:
        check_one_a_particle(internal_energy, pos, "internal_energy")
        check_real_dtype(internal_energy, "internal_energy")
        internal_energy = jnp.asarray(internal_energy, pos.dtype)
    return Members(pos, mass, jnp.asarray(vel, pos.dtype), internal_energy)


def _faults(members: Members, types: Any, num: jax.Array, num_types: int) -> list[comm.Fault]:
    """Return the possible faults of properties of particles."""
    faults = [*mass_faults(members.mass, num, members.mass.shape[0]), *velocity_faults(members.vel, num)]
    if members.internal is not None:
        faults.append(row_fault(~(jnp.isfinite(members.internal) & (members.internal >= 0)), num, _BAD_ENERGY))
    if types is not None:
        faults.append(row_fault((types < 0) | (types >= num_types), num, _BAD_TYPE % (num_types - 1)))
    return faults


def _find(
    groups: WholeGroups, start: jax.Array, num: jax.Array, physics: Physics, rules: Rules, num_types: int
) -> Subhaloes:
    """Find the subhaloes of whole groups.

    Args:
        groups: The groups. Their columns are members, neighbours, densities and types. Without neighbours and
            densities, candidates are sets in phase space.
        start: ``(g,)`` int32, the first of the joined rows of the devices of each group.
        num: int32, the number of particles here before whole groups were collected.
        physics: The constants.
        rules: The rules of unbinding.
        num_types: The number of types.
    """
    members, rows, density, types = groups.columns
    group = groups.groups_of_rows()
    if density is None:
        candidates = phase_space_candidates(members, groups, physics.box, rules.min_bound)
    else:
        is_lost = jnp.isnan(density) & (group < groups.count.shape[0])
        density = comm.after(density, check_in_range(is_lost, density.dtype, "the density of a particle"))
        candidates = find_candidates(groups, rows, density, start, rules.min_bound)
    bound = unbind(members, candidates, physics, rules)
    num = comm.check(num, ~bound.finite, [], _LOST % members.pos.dtype)
    bound = comm.after(bound, num)
    numbers = number_subhaloes(bound, candidates, group)
    columns = properties_of(members, bound, numbers, physics, types, num_types)
    is_lost = ~(jnp.isfinite(columns["vmax"]) & jnp.isfinite(columns["spin"]))
    columns = comm.after(columns, check_in_range(is_lost, members.pos.dtype, "vmax or the spin of subhalo {0}"))
    columns["most_bound"] = _joined_rows(groups, columns["most_bound"], num)
    subhalo = joined_numbers(numbers.number[bound.candidate], numbers.num)
    energy = jnp.where(subhalo >= 0, bound.state[:, 0], 0)
    subhalo, energy = groups.send_back((subhalo, energy), (-1, 0))
    return Subhaloes(
        subhalo=subhalo,
        energy=energy,
        num=numbers.num,
        group=joined_numbers(numbers.group, groups.ngroups),
        parent=joined_numbers(numbers.parent, numbers.num),
        depth=numbers.depth,
        count=numbers.count,
        **columns,
    )


def _joined_rows(groups: WholeGroups, row: jax.Array, num: jax.Array) -> jax.Array:
    """Return rows of whole groups as rows of the joined particles of the devices; -1 remains."""
    starts = starts_of_ranks(num)
    return jnp.where(row >= 0, starts[groups.rank[row]] + groups.row[row], -1)


def _none(members: Members, num_types: int | None) -> Subhaloes:
    """Return no subhaloes of particles in no group."""
    n, dims = members.pos.shape
    vectors, numbers = ("pos", "vel", "com_pos", "com_vel"), ("group", "parent", "depth", "count", "most_bound")
    reals = ("mass", "vmax", "rmax", "half_mass_radius", "vel_dispersion", "spin")

    def zeros(*shape: int, dtype: Any = members.pos.dtype) -> jax.Array:
        return comm.vary(jnp.zeros(shape, dtype))

    return Subhaloes(
        subhalo=zeros(n, dtype=jnp.int32) - 1,
        energy=zeros(n),
        num=zeros(dtype=jnp.int32),
        count_by_type=None if num_types is None else zeros(0, num_types, dtype=jnp.int32),
        angular_momentum=zeros(0, dims * (dims - 1) // 2),
        **{name: zeros(0, dims) for name in vectors},
        **{name: zeros(0, dtype=jnp.int32) for name in numbers},
        **{name: zeros(0) for name in reals},
    )
