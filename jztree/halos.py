"""Properties of haloes that follow from a catalogue of groups: shapes, spins, dispersions and the densest particle.

`DEFINITIONS` says in words what each column of `jztree.data.FofCatalogue` and each property here is. In groups whose
particles have no mass, or mass 0, mass-weighted means are plain ones.

All functions have twins ``.jit`` and ``.smap``. All but `densest_particle` work row by row, so they also take the
catalogue of all of ``r`` devices, ``(r, g, ...)``, without being mapped. Rows beyond ``ngroups`` are zero. What is not
defined for a group, such as the axis ratios of one without extent, is NaN.
"""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from . import comm
from ._checks import SUMS_ROUNDED, check_classes, common_dtype, first_row
from ._images import norm, ratio
from ._particles import check_carried, check_num, check_rows, replace_field
from .data import FofCatalogue, RankIdx, get_pos, replace_num, split_rows
from .jax_ext import is_concrete, with_twins
from .tree._zorder import is_bad_num

__all__ = [
    "DEFINITIONS",
    "Axes",
    "Definition",
    "DensestParticle",
    "densest_particle",
    "inertia_tensor",
    "principal_axes",
    "spin",
    "total_vel_dispersion",
]

_NAN_DENSITY = "the density of row {0} of the particles in group order is NaN; give one number a particle."
_SQUARES = (
    "the inertia_tensor of the group in row {0} of the catalogue is a square of lengths beyond the range of {1}; "
    "choose another unit of length, or use shape_tensor and com_inertia_radius, of which it is made."
)
_OTHER_PARTICLES = (
    "the catalogue has groups that do not lie among these particles, or num of these is not from 0 to their number; "
    "give those it was returned with."
)


class Definition(NamedTuple):
    """What a property of a group is.

    kind: its unit: "1", "length", "length^2", "mass", "velocity", "length*velocity" or "density"; lengths are those of
        the particles' positions, comoving if these are.
    words: how it is defined.
    source: the paper that the definition is from; empty where it is a plain count, sum or mean.
    """

    kind: str
    words: str
    source: str = ""


_FOF = "Davis et al. 1985, ApJ 292, 371"
_SHAPE = "Zemp et al. 2011, ApJS 197, 30"
DEFINITIONS: dict[str, Definition] = {
    "count": Definition("1", "number of particles of the friends-of-friends group", _FOF),
    "offset": Definition("1", "row of the group's first particle among the particles in group order"),
    "mass": Definition("mass", "sum of the masses of the particles"),
    "com_pos": Definition("length", "centre of mass, with nearest images of the particles, inside the periodic box"),
    "com_vel": Definition("velocity", "mass-weighted mean velocity"),
    "com_inertia_radius": Definition("length", "root of the mass-weighted mean squared distance from com_pos"),
    "max_radius": Definition("length", "largest distance of a particle from com_pos"),
    "vel_dispersion": Definition(
        "velocity",
        "one-dimensional velocity dispersion: root of 1/d of the mass-weighted mean squared velocity relative to "
        "com_vel, in d dimensions",
    ),
    "total_vel_dispersion": Definition(
        "velocity",
        "velocity dispersion in all dimensions together: root of the mass-weighted mean squared velocity relative to "
        "com_vel",
    ),
    "inertia_tensor": Definition(
        "length^2",
        "mass-weighted mean of the products x_i x_j, with x from com_pos to the nearest image of the particle; all "
        "particles of the group, not weighted by distance",
        _SHAPE,
    ),
    "shape_tensor": Definition(
        "1",
        "inertia tensor over its trace, which is com_inertia_radius squared: mass-weighted mean of the products "
        "x_i x_j, with x from com_pos to the nearest image of the particle, over the mean of x_i x_i summed over i",
        _SHAPE,
    ),
    "axis_lengths": Definition(
        "length",
        "com_inertia_radius times the roots of the eigenvalues of shape_tensor, the largest first: root-mean-square "
        "extents along the principal axes",
        _SHAPE,
    ),
    "axis_ratios": Definition("1", "axis_lengths but the first, divided by the first: b/a and c/a in 3D", _SHAPE),
    "principal_axes": Definition(
        "1",
        "a row of unit length for each of axis_lengths, along which that is taken; its component that is largest in "
        "size is positive",
        _SHAPE,
    ),
    "angular_momentum": Definition(
        "length*velocity",
        "angular momentum about com_pos and relative to com_vel, divided by the mass: mass-weighted mean of x cross v",
    ),
    "spin": Definition(
        "1",
        "spin parameter lambda' = J / (sqrt(2) M V R) with V^2 = G M / R, where J / M is angular_momentum, that of all "
        "particles of the group",
        "Bullock et al. 2001, ApJ 555, 240",
    ),
    "densest_pos": Definition("length", "position of the densest particle of the group; of equal ones the first row"),
    "densest_density": Definition("density", "density at the densest particle of the group"),
}


class Axes(NamedTuple):
    """Principal axes of groups. ``a``, ``b`` and ``c`` of the literature are ``lengths[..., 0]`` and so on.

    lengths: ``(g, d)``, the longest first.
    ratios: ``(g, d - 1)``, all but the longest divided by the longest; NaN for groups without extent.
    directions: ``(g, d, d)``, unit vectors: ``directions[..., i, :]`` belongs to ``lengths[..., i]``. Signs are such
        that the component that is largest in size is positive.
    """

    lengths: jax.Array
    ratios: jax.Array
    directions: jax.Array


@with_twins(P(-1), P(-1))
def principal_axes(cata: FofCatalogue) -> Axes:
    """The axis lengths of groups, their ratios and directions, from ``cata.shape_tensor``.

    An axis length is the root of an eigenvalue of the inertia tensor (Zemp et al. 2011, ApJS 197, 30, for all particles
    of the group, without weights): the root-mean-square extent along that axis. It is 1/sqrt(5) of the semi-axis of a
    homogeneous ellipsoid. Negative eigenvalues, which rounding makes, count as 0. In float32, axis ratios below about
    1e-3 are rounding.

    Fewer than d + 1 particles lie in a plane or on a line, so that the last axes of such a group have length 0 to
    rounding. Few particles make groups look less round than they are: ratios mean little below some hundred particles.

    Raises ValueError if the catalogue has no shape tensor.
    """
    if cata.shape_tensor is None:
        raise ValueError("the catalogue has no shape_tensor, of which axes are made; make it with fof_and_catalogue.")
    check_carried(cata)
    tensor = jnp.asarray(cata.shape_tensor)
    # Eigenvectors of a tensor without extent have no derivatives; in unused rows these must not become NaN.
    distinct = jnp.diag(jnp.arange(1, tensor.shape[-1] + 1, dtype=tensor.dtype))
    tensor = jnp.where(
        _used(cata)[..., None, None], tensor, distinct.reshape((1,) * (tensor.ndim - 2) + distinct.shape)
    )
    values, vectors = jnp.linalg.eigh(tensor)
    shares = _positive_root(values)[..., ::-1]
    lengths = shares * jnp.asarray(cata.com_inertia_radius)[..., None]
    directions = jnp.swapaxes(vectors, -1, -2)[..., ::-1, :]
    largest = jnp.take_along_axis(directions, jnp.argmax(jnp.abs(directions), axis=-1)[..., None], axis=-1)
    directions = directions * jnp.where(largest < 0, -1, 1).astype(directions.dtype)
    longest = shares[..., :1]
    ratios = jnp.where(longest > 0, ratio(shares[..., 1:], jnp.where(longest > 0, longest, 1)), jnp.nan)
    return Axes(*(_of_groups(cata, leaf) for leaf in (lengths, ratios, directions)))


@with_twins(P(-1), P(-1))
def inertia_tensor(cata: FofCatalogue) -> jax.Array:
    """``(g, d, d)`` mass-weighted mean of ``x_i x_j`` about ``com_pos``, from ``cata.shape_tensor``.

    Raises ValueError if the catalogue has no shape tensor; and an error at run time, on every device, if a square is
    beyond the range of the dtype, as in float32 for groups larger than 1e19 or smaller than 1e-19 in the unit of
    length.
    """
    if cata.shape_tensor is None:
        raise ValueError("the catalogue has no shape_tensor, of which this is made; make it with fof_and_catalogue.")
    check_carried(cata)
    shape, radius = jnp.asarray(cata.shape_tensor), jnp.asarray(cata.com_inertia_radius)
    kept = jnp.finfo(radius.dtype)
    # By roots, because the squares are what leaves the range. Extents that are rounding may vanish.
    extended = radius > SUMS_ROUNDED * jnp.abs(jnp.asarray(cata.com_pos)).max(axis=-1)
    lost = (radius > float(kept.max) ** 0.5) | (extended & (radius < float(kept.tiny) ** 0.5))
    lost &= _used(cata)
    row = first_row(lost.reshape(-1))
    checked = comm.check(0, row >= 0, [row], _SQUARES.format("{0}", kept.dtype))
    radius = jnp.where(checked == 0, radius, jnp.nan)[..., None, None]
    return _of_groups(cata, shape * radius * radius)


@with_twins({"cata": P(-1), "mass": P(-1), "radius": P(-1), "gravity": P(), "scale_factor": P()}, P(-1))
def spin(cata: FofCatalogue, mass: Any, radius: Any, gravity: Any, scale_factor: Any = 1.0) -> jax.Array:
    """The spin parameter lambda' = J / (sqrt(2) M V R), V^2 = G M / R, of Bullock et al. 2001 (ApJ 555, 240).

    mass, radius: ``(g,)`` M and R of each group, such as those of a spherical overdensity.
    gravity: Newton's constant in the units of length * velocity**2 / mass of the catalogue, such as 43.0071 for Mpc/h,
        km/s and 1e10 Msun/h.
    scale_factor: of the universe, if positions and ``radius`` are comoving and velocities peculiar; the lengths are
        multiplied by it. 1 leaves them as they are.

    J / M is ``cata.angular_momentum``, of all particles of the group and about its centre of mass, as published for
    friends-of-friends groups; Bullock et al. take the particles within R.

    Returns ``(g,)``, NaN for groups whose M or R is not positive. Raises ValueError if the catalogue has no angular
    momentum, if shapes do not agree, or if gravity or scale_factor is not positive (NaN if these are traced).
    """
    if cata.angular_momentum is None:
        raise ValueError("the catalogue has no angular_momentum; particles need velocities and two dimensions or more.")
    for name, column in {"mass": mass, "radius": radius}.items():
        if np.shape(column) != np.shape(cata.count):
            raise ValueError(
                f"{name} must have one number a row of the catalogue, shape {np.shape(cata.count)}; its shape is "
                f"{np.shape(column)}."
            )
    for name, number in {"gravity": gravity, "scale_factor": scale_factor}.items():
        if is_concrete(number) and not (np.ndim(number) == 0 and 0 < float(number) < np.inf):
            raise ValueError(f"{name} must be a positive number, not {number}.")
    check_carried({"mass": mass, "radius": radius, "cata": cata})
    dtype = common_dtype(cata.angular_momentum, mass, radius)
    spins = norm(jnp.asarray(cata.angular_momentum, dtype))
    mass, radius = jnp.asarray(mass, dtype), jnp.asarray(radius, dtype)
    defined = (mass > 0) & (radius > 0)
    # Step by step, because products may leave the range of float32 in units such as those of CGS.
    for factor in (mass, radius):
        spins = ratio(spins, jnp.sqrt(jnp.where(defined, factor, 1)))
    spins = ratio(spins, _unit_root(gravity, dtype)) * (_unit_root(scale_factor, dtype) / math.sqrt(2.0))
    return _of_groups(cata, jnp.where(defined, spins, jnp.nan))


def _unit_root(number: Any, dtype: Any) -> Any:
    """The root, in a dtype, of a number that may be beyond the range of it although its root is not."""
    return jnp.asarray(np.sqrt(np.float64(number)) if is_concrete(number) else jnp.sqrt(number), dtype)


@with_twins(P(-1), P(-1))
def total_vel_dispersion(cata: FofCatalogue) -> jax.Array:
    """``(g,)`` root of the mass-weighted mean squared velocity relative to ``com_vel``, in all dimensions together.

    It is sqrt(d) times ``cata.vel_dispersion``, which is that of one dimension. Raises ValueError if the catalogue has
    no dispersion.
    """
    if cata.vel_dispersion is None:
        raise ValueError("the catalogue has no vel_dispersion, because its particles have no velocities.")
    return jnp.asarray(cata.vel_dispersion) * math.sqrt(np.shape(cata.com_pos)[-1])


def _positive_root(values: jax.Array) -> jax.Array:
    """The root of what is positive, else 0, where its derivative is 0 too."""
    positive = values > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1)), 0)


def _used(cata: FofCatalogue) -> jax.Array:
    """Which rows of the catalogue hold groups."""
    ngroups = jnp.asarray(cata.ngroups, jnp.int32)
    rows = jnp.arange(np.shape(cata.count)[-1], dtype=jnp.int32)
    return rows.reshape((1,) * ngroups.ndim + rows.shape) < ngroups[..., None]


def _of_groups(cata: FofCatalogue, values: jax.Array) -> jax.Array:
    """``values``, and zero in the rows that hold no group."""
    used = _used(cata)
    return jnp.where(used.reshape(used.shape + (1,) * (values.ndim - used.ndim)), values, jnp.zeros((), values.dtype))


class DensestParticle(NamedTuple):
    """The densest particle of each group.

    part: a particle class of ``g`` rows, one a group, with all properties that the particles have.
    density: ``(g,)``, its density.
    where: `jztree.data.RankIdx`, the device that holds it and the row there, among the particles in group order.
    """

    part: Any
    density: jax.Array
    where: RankIdx


class _Ends(NamedTuple):
    """Which groups go on from device to device; see `jztree.fof.fof_and_catalogue` for the order of the particles.

    last: the row of the last group that begins on this device. heads: ``(r,)``, how many of the leading rows of each
    device continue the last group of the devices before. begins: ``(r,)``, whether a group begins there.
    """

    last: jax.Array
    heads: jax.Array
    begins: jax.Array


@with_twins(P(-1), P(-1), prepare=check_classes)
def densest_particle(grouped: Any, cata: FofCatalogue, density: Any) -> DensestParticle:
    """The densest particle of each group: the centre of a halo that no substructure moves, where densities are smooth.

    grouped, cata: the particles in group order and the catalogue, as `jztree.fof.fof_and_catalogue` returns them. The
        catalogue may have been sorted.
    density: ``(n,)``, one number a particle in that order, such as from `jztree.density`. Equal ones: the first row.

    Over several devices (``.smap``, or inside `jax.shard_map`) a group that goes on on other devices has one densest
    particle of all its parts, told to the device that has the catalogue row. Costs three collectives, of a few numbers
    and one particle a device.

    Raises ValueError if there is not one density a particle; and an error at run time, on every device, if the density
    of a member is NaN, or if the catalogue is not that of these particles.
    """
    check_carried({"grouped": grouped, "density": density})
    n, density = get_pos(grouped).shape[0], jnp.asarray(density)
    if density.shape != (n,) or not jnp.issubdtype(density.dtype, jnp.floating):
        raise ValueError(
            f"density must be one floating-point number a particle, shape {(n,)}; it is {density.dtype} of shape "
            f"{density.shape}. On several devices call densest_particle.smap(mesh)."
        )
    check_rows(n, "particles")
    rows, (properties, rebuild) = jnp.arange(n, dtype=jnp.int32), split_rows(grouped)
    columns = [density, jnp.full_like(rows, comm.get_rank_info()[0]), rows, *properties]
    density, rank, row, *properties = _densest_of_each(columns, cata, jnp.asarray(check_num(grouped), jnp.int32))
    part = replace_field(replace_num(rebuild(properties), cata.ngroups), "num_total", None)
    return DensestParticle(part, density, RankIdx(rank, row))


def _densest_of_each(columns: list[jax.Array], cata: FofCatalogue, num: jax.Array) -> list[jax.Array]:
    """The row of ``columns`` that belongs to the densest particle of each group. The first column is the density."""
    rooms, n = np.shape(cata.count)[0], columns[0].shape[0]
    if rooms == 0 or n == 0:
        return [jnp.zeros((rooms, *column.shape[1:]), column.dtype) for column in columns]
    ends = _ends(cata, num)
    group = _groups_of_rows(cata, num, ends, n)
    checked = _check_groups(cata, num, ends, group, columns[0])
    row = comm.after(_densest_rows(group, columns[0], rooms + 1), checked)
    found = [column.at[row].get(mode="fill", fill_value=0) for column in columns]
    return [_of_groups(cata, column) for column in _joined(ends, found)]


def _ends(cata: FofCatalogue, num: jax.Array) -> _Ends:
    """One gather: each device tells how many particles it has, and how many of its last group are on other devices."""
    used = _used(cata)
    last = jnp.argmax(jnp.where(used, cata.offset, -1))
    beyond = jnp.where(used.any(), cata.count[last] - (num - cata.offset[last]), -1)
    nums, beyond = comm.all_gather(jnp.stack([num, jnp.asarray(beyond, jnp.int32)])).T

    def head(left: jax.Array, told: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        here = jnp.minimum(left, told[0])
        return jnp.where(told[1] >= 0, told[1], left - here), here

    heads = jax.lax.scan(head, comm.vary(jnp.int32(0)), (nums, beyond))[1]
    return _Ends(last, heads, beyond >= 0)


def _groups_of_rows(cata: FofCatalogue, num: jax.Array, ends: _Ends, n: int) -> jax.Array:
    """``(n,)`` int32: the catalogue row of each particle's group; ``g`` for the group that the devices before began,
    and ``g + 1`` for particles in no group.
    """
    rooms, rows = np.shape(cata.count)[0], jnp.arange(n, dtype=jnp.int32)
    first = jnp.where(_used(cata), cata.offset, n)
    begun = jnp.full(n, -1, jnp.int32).at[first].set(jnp.arange(rooms, dtype=jnp.int32), mode="drop")
    start = jax.lax.cummax(jnp.where(begun >= 0, rows, -1))
    group = begun[start]
    inside = (rows - start < jnp.asarray(cata.count)[group]) & (rows < num)
    rank, _, _ = comm.get_rank_info()
    outside = jnp.where(rows < ends.heads[rank], rooms, rooms + 1)
    return jnp.where((start >= 0) & inside, group, outside)


def _densest_rows(group: jax.Array, density: jax.Array, groups: int) -> jax.Array:
    """``(groups,)`` int32, the first row of the largest density in each group; ``n`` if there is none."""
    n = group.shape[0]
    largest = jax.ops.segment_max(density, group, groups)
    candidate = jnp.where(density == largest.at[group].get(mode="clip"), jnp.arange(n, dtype=jnp.int32), n)
    return jnp.minimum(jax.ops.segment_min(candidate, group, groups), n)


def _check_groups(cata: FofCatalogue, num: jax.Array, ends: _Ends, group: jax.Array, density: jax.Array) -> jax.Array:
    """``num``, or an error on every device if a density is NaN or a group is not among the particles."""
    rooms = np.shape(cata.count)[0]
    nan = jnp.isnan(density) & (group <= rooms)
    checked = comm.check(num, nan.any(), [jnp.argmax(nan)], _NAN_DENSITY)
    may_go_on = (jnp.arange(rooms, dtype=ends.last.dtype) == ends.last) & (comm.num_ranks() > 1)
    misses = (cata.offset < 0) | (cata.offset >= num) | ((cata.count > num - cata.offset) & ~may_go_on)
    failed = (misses & _used(cata)).any() | is_bad_num(group, num)
    return comm.check(checked, failed, [], _OTHER_PARTICLES)


def _joined(ends: _Ends, found: list[jax.Array]) -> list[jax.Array]:
    """What was found for each group that begins here, the parts on other devices included.

    found: arrays ``(g + 1, ...)``, the first of densities; their last row is that of the group begun by the devices
        before.
    """
    rank, ndev, _ = comm.get_rank_info()
    if ndev == 1:
        return [column[:-1] for column in found]
    heads = [column[:, 0] for column in comm.all_gather_rows([column[-1:] for column in found])]
    begins = ends.begins.astype(jnp.int32)
    before = jnp.cumsum(begins, dtype=jnp.int32) - begins  # devices on which a group begins
    mine = (
        ends.begins[rank] & (before == before[rank] + 1) & (ends.heads > 0) & (jnp.arange(ndev, dtype=jnp.int32) > rank)
    )
    densities = jnp.where(mine, heads[0], -jnp.inf)
    best = jnp.argmax(densities)
    better = densities[best] > found[0][ends.last]
    return [
        column[:-1].at[ends.last].set(jnp.where(better, head[best], column[ends.last]))
        for column, head in zip(found, heads, strict=True)
    ]
