"""Properties of all particles in spheres, computed by the sums that the group catalogue uses."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._checks import (
    at_least_normal,
    check_box,
    check_real_dtype,
    common_dtype,
    exact_box_argument,
    first_row,
    velocity_faults,
)
from .._particles import check_carried, check_num
from .._transform.capacity import Room
from ..config import OverdensityConfig, checked_config, without_masses
from ..data import ParticleData, get_num, get_pos, replace_num, split_rows, with_computed
from ..jax_ext import Exact, with_twins
from ..tree import TreeHierarchy, build_in_domain, check_belongs, check_hierarchy, kernel_tree, sort_and_build
from ..tree._over_ranks import Moved, Movers, sort_over_ranks
from ..tree._zorder import Domain, domain_of
from ..tree.ghosts import boxes_of, ghost_room, leaves_of, surroundings, tell_all
from ._arguments import check_both, with_mass
from ._over_ranks import widest_sphere

__all__ = ["SphereProperties", "sphere_properties"]

_TOO_WIDE = (
    "the radius in row {0} is infinite or above half the smallest periodic length, so that the sphere would meet its "
    "own images; give smaller ones, or boxsize=0."
)
_LOST = (
    "a property of the sphere in row {0} is beyond the range of %s; choose other units, or switch on jax_enable_x64 "
    "and give positions, masses and velocities in float64."
)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class SphereProperties:
    """Properties of the particles in ``q`` spheres; see `sphere_properties`.

    The columns are those of `jztree.data.FofCatalogue`, for the particles in a sphere instead of a group. The
    functions of `jztree.halos` that process a catalogue row by row therefore accept these spheres also.

    ngroups: int32, the number of rows with centres; the other rows are 0. count: ``(q,)`` int32. mass: ``(q,)``.
    com_pos: ``(q, d)``. com_inertia_radius, max_radius: ``(q,)``, about the centre of mass.
    shape_tensor: ``(q, d, d)``. com_vel: ``(q, d)``. vel_dispersion: ``(q,)``, and angular_momentum:
    ``(q, d * (d - 1) / 2)``, relative to the mean velocity of the sphere. The last three are None if particles have no
    velocities, and the last also in 1D.
    """

    ngroups: int | jax.Array
    count: jax.Array
    com_pos: jax.Array
    com_inertia_radius: jax.Array
    max_radius: jax.Array
    mass: jax.Array
    com_vel: jax.Array | None
    vel_dispersion: jax.Array | None
    shape_tensor: jax.Array
    angular_momentum: jax.Array | None


@with_twins(
    {"part": P(-1), "centre": P(-1), "radius": P(-1), "boxsize": P(), "th": P(-1)}, P(-1), prepare=exact_box_argument
)
@with_computed
def sphere_properties(
    part: Any,
    centre: Any,
    radius: Any,
    boxsize: Any = None,
    th: TreeHierarchy | None = None,
    cfg: OverdensityConfig | None = None,
) -> SphereProperties:
    """Compute mass, centre, velocity, dispersion, shape and angular momentum of all particles in spheres.

    part: all particles, as in `spherical_overdensity`; ``vel``, ``(n, d)``, is used if present.
    centre: ``(q, d)`` positions of the same dtype, or a particle class. Its rows from ``num`` on get zeros.
    radius: ``(q,)``, one per sphere, for example from `spherical_overdensity`.
    boxsize, th, cfg: as in `spherical_overdensity`; ``cfg.npart_min`` has no effect here.

    A particle is in the sphere if the distance from the centre to its nearest image, computed in float64, is at most
    the radius. All sums are over these particles, regardless of their groups. Velocities are taken relative to the
    mass-weighted mean in the sphere, and positions relative to its centre of mass, so the angular momentum is the same
    about any point. Velocities are used unchanged: if they are peculiar, the dispersion does not include the Hubble
    flow. The angular momentum never includes it, because the Hubble flow moves particles along ``x``.

    If the radius is 0 or negative there is no sphere, and every column is 0. If it is NaN (as returned by
    `spherical_overdensity` for a sphere that reaches half the box), every column is NaN, and the count is -1.

    Sums are float64. They include the same particles on any number of devices. On GPUs, and over several GPUs, they may
    differ in the last bits of float64. There are no derivatives: differentiating raises an error.

    Raises TypeError or ValueError for wrong arguments. Raises an error at run time, on every device, if a position is
    NaN or infinite, a mass is negative, NaN or infinite, a velocity is NaN or infinite, a radius is above half the
    smallest periodic length, or a result exceeds the range of its dtype.
    """
    cfg = without_masses(checked_config(cfg, OverdensityConfig))
    check_hierarchy(th)
    pos, centres = check_both(part, centre)
    box, num = check_box(boxsize, pos.shape[1]), kernels.as_num(check_num(centre, "num of the centres"))
    radii = _check_radii(radius, centres, num, box)
    source = _with_velocities(part, pos)
    wanted = jnp.where(jnp.isnan(radii), 0, radii)
    if comm.num_ranks() > 1:
        sums = _over_ranks(source, centres, num, wanted, box, cfg)
    else:
        sums = _here(source, centres, num, wanted, box, th, cfg)
    marked = [_marked(column, radii) for column in sums]
    return _named(num, marked, pos.shape[1], getattr(part, "vel", None) is not None)


def _check_radii(radius: Any, centres: jax.Array, num: jax.Array, box: Exact) -> jax.Array:
    """Return ``radius``, ``(q,)`` in the dtype of the positions; 0 in rows without a centre."""
    check_carried({"radius": radius})
    check_real_dtype(radius, "radius")
    if np.shape(radius) != centres.shape[:1]:
        raise ValueError(f"radius must have one number a centre, {centres.shape[:1]}; its shape is {np.shape(radius)}.")
    used = jnp.arange(centres.shape[0], dtype=jnp.int32) < num
    radii = jnp.where(used, jnp.asarray(radius, centres.dtype), 0)
    row = first_row((radii > widest_sphere(box, centres.dtype)) | jnp.isinf(radii))
    return comm.after(radii, comm.check(0, row >= 0, [row], _TOO_WIDE))


def _with_velocities(part: Any, pos: jax.Array) -> ParticleData:
    """Return positions, masses and velocities for kernels, checked at run time. No velocities: ``(0, d)``."""
    weighted = with_mass(part, pos)
    num, given = weighted.num, getattr(part, "vel", None)
    vel = jnp.zeros((0, pos.shape[1]), pos.dtype)
    if given is not None:
        check_real_dtype(given, "velocities")
        if np.shape(given) != pos.shape:
            raise ValueError(f"vel must have the shape of pos, {pos.shape}; its shape is {np.shape(given)}.")
        vel = jnp.asarray(given, common_dtype(pos, given)).astype(pos.dtype)
        num = comm.check_all(num, velocity_faults(vel, num))
    return ParticleData(pos=pos, mass=weighted.mass, vel=vel, num=num)


def _here(
    source: ParticleData,
    centre: jax.Array,
    num: jax.Array,
    radius: jax.Array,
    box: Exact,
    th: TreeHierarchy | None,
    cfg: OverdensityConfig,
) -> tuple[jax.Array, ...]:
    """Return the sums of `kernels.sphere_sums`, on one device."""
    (num,) = domain_of([centre], [num], ["the centres"], box)[1]
    if th is None:
        source, _, _, th, _ = sort_and_build(source, cfg.tree, box)
    else:
        source.num = check_belongs(source, source.num, th, box)
    return _sums(source, th, centre, comm.after(radius, num), box)


def _sums(
    source: ParticleData, th: TreeHierarchy, centre: jax.Array, radius: jax.Array, box: Exact
) -> tuple[jax.Array, ...]:
    tree = kernel_tree(source, source.num, th)
    return kernels.sphere_sums(tree, jnp.asarray(source.mass), jnp.asarray(source.vel), centre, radius, box)


def _over_ranks(
    source: ParticleData, centre: jax.Array, num: jax.Array, radius: jax.Array, box: Exact, cfg: OverdensityConfig
) -> tuple[jax.Array, ...]:
    """Return the sums of `kernels.sphere_sums` over the ranks of a mesh, in the rows of this rank's centres.

    Particles and centres are sorted in z-order and cut together, as in `jztree.overdensity._over_ranks`. Each rank
    receives the particles of other ranks in the spheres of its centres, and computes the sums.
    """
    names = ["the positions", "the centres"]
    domain, nums = domain_of([get_pos(source), centre], [get_num(source), num], names, box, of_first=True)
    rooms = [Room(get_pos(source).shape[0] + centre.shape[0], "sort")] * 2
    movers = [Movers(source, None, nums[0], named=False), Movers(centre, radius, nums[1], named=False)]
    sources, centres = sort_over_ranks(movers, domain, rooms, on_ranks=[domain, domain.whole()])
    rows = jnp.arange(centres.part.shape[0], dtype=jnp.int32)
    radius = jnp.where(rows < centres.num, centres.data, 0)
    part = _with_ghosts(sources, centres, radius, domain, cfg)
    th = build_in_domain(part.pos, part.num, domain, cfg.tree)
    columns = [kernels.scatter_rows(column, centres.merge) for column in _sums(part, th, centres.part, radius, box)]
    return tuple(comm.send_back(columns, centres.route, name="results"))


def _with_ghosts(
    sources: Moved, centres: Moved, radius: jax.Array, domain: Domain, cfg: OverdensityConfig
) -> ParticleData:
    """Return this rank's particles, and the ghosts in the spheres of its centres, in z-order."""
    pos, num, whole = sources.part.pos, sources.num, domain.whole()
    leaves = leaves_of(build_in_domain(pos, num, domain, cfg.tree))
    groups = leaves_of(build_in_domain(centres.part, centres.num, whole, cfg.tree))
    boxes = boxes_of(centres.part, centres.num, whole, groups)
    # This is the first collective after both exchanges.
    known = tell_all(pos, num, domain, leaves, boxes_of(pos, num, domain, leaves), centres.num)
    # Search slightly farther, because distances are rounded differently there.
    asked = at_least_normal(radius)[:, None] * (1 + 8 * jnp.finfo(radius.dtype).eps)
    _, reach = kernels.open_leaves(groups, boxes, asked, None, known, None, comm.get_rank_info()[0], domain.box, None)
    columns, rebuild = split_rows(sources.part)
    place = ghost_room("overdensity_ghosts", cfg.ghost_rows, pos.shape[0])
    around = surroundings(columns, pos, num, leaves, lambda: known, (boxes[1], boxes[2], reach), domain.box, place)
    return replace_num(rebuild(around.rows), around.num)


def _marked(column: jax.Array, radii: jax.Array) -> jax.Array:
    """Return ``column`` with NaN, or -1 for counts, if the radius is NaN."""
    if not column.shape[0]:
        return column
    radius = radii.reshape(-1, *[1] * (column.ndim - 1))
    # Use the NaN of the radius, because jax_debug_nans reports a constant NaN as an error.
    missing = jnp.int32(-1) if jnp.issubdtype(column.dtype, jnp.integer) else radius
    return jnp.where(jnp.isnan(radius), missing, column)


def _named(num: jax.Array, sums: list[jax.Array], dims: int, moving: bool) -> SphereProperties:
    """Return the sums with their names. Raise on every rank if one exceeds the range of its dtype."""
    count, mass, centre, size, largest, shape, *speeds = sums
    if moving and speeds[0].shape[0] < count.shape[0]:  # sums of no particles at all
        speeds = [jnp.zeros((count.shape[0], *column.shape[1:]), column.dtype) for column in speeds]
    lost = jnp.zeros(count.shape, bool)
    for column in (mass, size, largest, *(speeds if moving else [])):
        lost |= (count > 0) & ~jnp.isfinite(column).all(axis=tuple(range(1, column.ndim)))
    row = first_row(lost)
    count = comm.after(count, comm.check(0, row >= 0, [row], _LOST % mass.dtype))
    velocity, dispersion, rotation = speeds if moving else [None] * 3
    return SphereProperties(
        ngroups=num,
        count=count,
        com_pos=centre,
        com_inertia_radius=size,
        max_radius=largest,
        mass=mass,
        com_vel=velocity,
        vel_dispersion=dispersion,
        shape_tensor=shape,
        angular_momentum=rotation if moving and dims > 1 else None,
    )
