"""Derivatives of sums over groups, nodes and spheres, at fixed membership.

Kernels have no derivatives. Which particles are in a group, a node or a sphere does not change under a small shift, and
where it does, sums jump. So the derivative of a sum is that of the sum over the particles that are in it now; Horowitz
& Bayer (2025, arXiv:2510.26851) call it frozen assignment, and say what it leaves out.

Each function here takes what a kernel found and gives it back with derivatives: those of the same definition written
down in JAX. That is traced only where somebody differentiates, so it costs nothing elsewhere, and it can be
differentiated again. Differences are taken to a particle of the group and in the group's own unit of length, so that no
digits are lost far from the origin and no square leaves the range of float32.
"""

import functools
import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import comm
from .images import nearest_difference, norm, periods, wrapped
from .jax_ext import Exact

__all__ = ["Members", "joined_members", "members_of", "of_boxes", "of_groups", "of_moments", "of_spheres"]

# So many terms are added up one after the other; a longer sum in float32 loses digits with every term.
_BLOCK = 1024

Particles = tuple[jax.Array, jax.Array | None, jax.Array | None]


class Members(NamedTuple):
    """Which rows of particles are in which group.

    group: ``(n,)`` int32, the group of each row; ``g`` for those in none. The rows of a group follow each other, but
        for rows in none. first: ``(g,)`` int32, the first row of each; ``n`` for groups that do not exist.
    """

    group: jax.Array
    first: jax.Array

    def of_rows(self, values: jax.Array, others: Any = 0) -> jax.Array:
        """What each row's group has, and ``others`` for rows in none."""
        return values.at[self.group].get(mode="fill", fill_value=others)

    def from_first(self, values: jax.Array) -> jax.Array:
        """What the first row of each group has; 0 for groups that do not exist."""
        return from_rows(values, self.first)

    def sum(self, values: jax.Array) -> jax.Array:
        """The sum over each group, ``(g, ...)``: first over runs of few rows, then over these."""
        groups, rows = self.first.shape[0], jnp.arange(self.group.shape[0], dtype=jnp.int32)
        before = jnp.concatenate([self.group[:1], self.group[:-1]])
        run = jnp.cumsum((self.group != before) | (rows % _BLOCK == 0), dtype=jnp.int32) - 1
        total = self.group.shape[0] // _BLOCK + 2 * (groups + comm.num_ranks()) + 2
        owner = jnp.full(total, groups, jnp.int32).at[run].set(self.group)
        return jax.ops.segment_sum(jax.ops.segment_sum(values, run, total), owner, groups + 1)[:groups]

    def farthest(self, distance: jax.Array) -> jax.Array:
        """The row with the largest ``distance``, ``(n,)``, of each group; ``n`` for groups that do not exist."""
        groups, n = self.first.shape[0], distance.shape[0]
        most = jax.ops.segment_max(distance, self.group, groups + 1)
        rows = jnp.where(distance >= most[self.group], jnp.arange(n, dtype=jnp.int32), n)
        return jnp.minimum(jax.ops.segment_min(rows, self.group, groups + 1), n)[:groups]


def from_rows(values: jax.Array, rows: jax.Array) -> jax.Array:
    """``values[rows]``, and 0 for rows beyond the last."""
    return values.at[rows].get(mode="fill", fill_value=0)


def members_of(rows: jax.Array, start: jax.Array, count: jax.Array, used: jax.Array) -> Members:
    """rows: ``(n,)`` int32, where each particle is in group order, -1 for padding. start, count: ``(g,)`` int32, where
    each group begins there, ascending, and its particles. used: ``(g,)`` which groups exist.

    ``first`` is as if rows were in place.
    """
    groups = start.shape[0]
    begins = jnp.where(used, start, jnp.iinfo(jnp.int32).max)
    group = jnp.searchsorted(begins, rows, side="right").astype(jnp.int32) - 1
    within = (group >= 0) & (rows >= 0) & (rows - begins[group] < count[group])
    return Members(jnp.where(within, group, groups), jnp.where(used, start, rows.shape[0]))


def joined_members(num: Any, n: int, segments: tuple[jax.Array, jax.Array, jax.Array]) -> Members:
    """The groups that begin on this rank, as rows of the particles of all ranks, ``(r * n,)`` with their padding.

    num: how many of this rank's ``n`` rows hold particles. segments: number, counts over all ranks, and offsets.
    """
    rank, ndev, _ = comm.get_rank_info()
    if ndev * n >= 2**31:
        raise ValueError(f"derivatives over all devices are for less than 2**31 rows; there are {ndev * n}.")
    ngroups, count, offset = segments
    nums = comm.all_gather(jnp.asarray(num, jnp.int32))
    starts, own = comm.starts_of(nums), jnp.arange(n, dtype=jnp.int32)[None, :]
    rows = jnp.where(own < nums[:, None], starts[:, None] + own, -1).reshape(-1)
    used = jnp.arange(count.shape[0], dtype=jnp.int32) < ngroups
    members = members_of(rows, starts[rank] + offset, count, used)
    return members._replace(first=jnp.where(used, rank * n + offset, rows.shape[0]))


def everyone(array: jax.Array) -> jax.Array:
    """Rows ``(n, ...)`` of all ranks, ``(r * n, ...)``; what is shared by all particles stays as it is."""
    return array if array.shape[0] == 1 else comm.all_gather(array).reshape(-1, *array.shape[1:])


def of_groups(
    sums: tuple[jax.Array, ...],
    particles: Particles,
    box: Exact,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    num: Any,
) -> tuple[jax.Array, ...]:
    """``sums`` of `jztree.kernels.catalogue` with derivatives by positions, masses, velocities and box lengths.

    particles: positions, masses and velocities as that takes them, of which ``num`` rows hold particles. segments:
    number, counts and offsets of the groups. Over several ranks, derivatives gather the particles of all on each.
    """
    if sums[0].shape[0] == 0:
        return sums
    return _of_groups(tuple(sums), particles, box, segments, num)


@jax.custom_jvp
def _of_groups(sums: tuple[jax.Array, ...], particles: Particles, box: Exact, segments: Any, num: Any) -> Any:
    del particles, box, segments, num
    return sums


@_of_groups.defjvp
def _of_groups_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    sums, particles, box, segments, num = primals
    members = joined_members(num, particles[0].shape[0], segments)
    known = jax.lax.stop_gradient(sums)

    def columns(particles: Particles, box: Exact) -> tuple[jax.Array, ...]:
        return _columns(jax.tree.map(everyone, particles), box, members, segments[1], known)

    return _of_groups(*primals), jax.jvp(columns, (particles, box), tangents[1:3])[1]


def _columns(
    particles: Particles, box: Exact, members: Members, count: jax.Array, known: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """The columns of the catalogue. known: the same from the kernel, of which units and periods are taken."""
    pos, mass, vel = particles
    inside = (members.group < members.first.shape[0])[:, None]
    number = jnp.maximum(count, 1).astype(pos.dtype)
    total, share = _shares(mass, members, number, inside[:, 0], known[0])
    # Rows in no group may hold anything.
    place = jnp.where(inside, pos, 0)
    offset = nearest_difference(place, members.of_rows(members.from_first(place)), box)
    offset = jnp.where(inside, offset, 0)
    middle = members.sum(share[:, None] * offset)
    from_centre = jnp.where(inside, offset - members.of_rows(middle), 0)
    centre = _inside_box(members.from_first(place) + middle, known[1], box)
    size = _root_mean_square(from_centre, share, members, known[2])
    far = from_centre / members.of_rows(_or_one(known[3]), 1)[:, None]
    farthest = members.farthest(jax.lax.stop_gradient(jnp.sum(far * far, axis=-1)))
    radius = norm(from_rows(from_centre, farthest))
    shapes = total, centre, size, radius, _shape_tensor(from_centre, share, members, known[2])
    if vel is None:
        return *shapes, *known[5:]
    return *shapes, *_motion(jnp.where(inside, vel, 0), from_centre, share, members, known)


def _shares(
    mass: jax.Array | None, members: Members, number: jax.Array, inside: jax.Array, known: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """The mass of each group, and the weight of each row in the means over its group."""
    alike = jnp.where(inside, members.of_rows(1 / number), 0)
    if mass is None:
        return jnp.zeros_like(number), alike
    if mass.shape[0] == 1:
        exists = members.first < members.group.shape[0]
        return jnp.where(exists, number * mass, 0), alike
    # In units of the mean mass of the group's particles, which keeps sums in range.
    mean = _or_one(known / number)
    inner = jnp.where(inside, mass, 0) / members.of_rows(mean, 1)
    total = members.sum(inner)
    weighted = total > 0
    weight = inner / members.of_rows(jnp.where(weighted, total, 1), 1)
    return total * mean, jnp.where(members.of_rows(weighted, False), weight, alike)


def _inside_box(place: jax.Array, known: jax.Array, box: Exact) -> jax.Array:
    """``place`` moved by whole periods to where the kernel found it."""
    length, rest = (one[None, :] for one in periods(box, place.dtype))
    images = jnp.where(length > 0, jnp.round((place - known) / jnp.where(length > 0, length, 1)), 0)
    return place - jax.lax.stop_gradient(images) * (length + rest)


def _or_one(unit_of: jax.Array) -> jax.Array:
    """A unit to divide by: 1 where there is none."""
    return jnp.where(unit_of > 0, unit_of, 1)


def _root_mean_square(vector: jax.Array, share: jax.Array, members: Members, known: jax.Array) -> jax.Array:
    """The root of the mean square of vectors; its derivative at 0 is 0. known: what it is."""
    unit = _or_one(known)
    inner = vector / members.of_rows(unit, 1)[:, None]
    square = members.sum(share * jnp.sum(inner * inner, axis=-1))
    exists = (known > 0) & (square > 0)
    return jnp.where(exists, unit * jnp.sqrt(jnp.where(exists, square, 1)), 0)


def _shape_tensor(from_centre: jax.Array, share: jax.Array, members: Members, size: jax.Array) -> jax.Array:
    """The inertia tensor over its trace, the square of the ``size``; 0 for groups without extent."""
    inner = from_centre / members.of_rows(_or_one(size), 1)[:, None]
    inertia = members.sum((share[:, None] * inner)[:, :, None] * inner[:, None, :])
    trace = jnp.trace(inertia, axis1=1, axis2=2)[:, None, None]
    return jnp.where(trace > 0, inertia / jnp.where(trace > 0, trace, 1), 0)


def _motion(
    vel: jax.Array, from_centre: jax.Array, share: jax.Array, members: Members, known: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Mean velocity, dispersion and specific angular momentum."""
    dims = vel.shape[1]
    first = members.from_first(vel)
    beyond = vel - members.of_rows(first)
    middle = members.sum(share[:, None] * beyond)
    relative = beyond - members.of_rows(middle)
    across = _root_mean_square(relative, share, members, known[6] * math.sqrt(dims))
    pairs = [(1, 2), (2, 0), (0, 1)] if dims == 3 else [(i, j) for i in range(dims) for j in range(i + 1, dims)]
    turns = [from_centre[:, i] * relative[:, j] - from_centre[:, j] * relative[:, i] for i, j in pairs]
    turn = jnp.stack(turns, axis=-1) if turns else jnp.zeros((vel.shape[0], 0), vel.dtype)
    return first + middle, across / math.sqrt(dims), members.sum(share[:, None] * turn)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def of_boxes(
    sizes: tuple[int, ...], corners: tuple[jax.Array, jax.Array], pos: jax.Array, box: Exact, splits: jax.Array
) -> Any:
    """Lower and upper ``corners``, ``(m, d)``, of nodes, with the derivatives of the particles at the faces.

    sizes: how many nodes each plane has. pos: ``(n, d)`` in z-order. splits: ``(m + planes,)`` int32, where the nodes
    of each plane start among the particles, and the end.
    """
    del sizes, pos, box, splits
    return corners


@of_boxes.defjvp
def _of_boxes_jvp(sizes: tuple[int, ...], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, pos, box, splits = primals

    def extremes(pos: jax.Array, box: Exact) -> tuple[jax.Array, jax.Array]:
        inside = wrapped(pos, box)
        found = [_extremes(inside, members) for members in _planes(sizes, splits, pos.shape[0])]
        lower, upper = (jnp.concatenate(corner) for corner in zip(*found, strict=True))
        return lower, upper

    return of_boxes(sizes, *primals), jax.jvp(extremes, (pos, box), tangents[1:3])[1]


def _planes(sizes: tuple[int, ...], splits: jax.Array, n: int) -> list[Members]:
    """The nodes of each plane as groups of rows."""
    rows, planes, start = jnp.arange(n, dtype=jnp.int32), [], 0
    for size in sizes:
        begins, count = splits[start : start + size], jnp.diff(splits[start : start + size + 1])
        planes.append(members_of(rows, begins, count, count > 0))
        start += size + 1
    return planes


def _extremes(pos: jax.Array, members: Members) -> tuple[jax.Array, jax.Array]:
    """The smallest and the largest coordinates of each group; 0 where there is none."""
    still = jax.lax.stop_gradient(pos)
    columns = range(pos.shape[1])
    low = [from_rows(pos[:, i], members.farthest(-still[:, i])) for i in columns]
    high = [from_rows(pos[:, i], members.farthest(still[:, i])) for i in columns]
    return jnp.stack(low, axis=-1), jnp.stack(high, axis=-1)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def of_moments(
    sizes: tuple[int, ...],
    moments: tuple[jax.Array, jax.Array],
    pos: jax.Array,
    mass: jax.Array,
    box: Exact,
    splits: jax.Array,
) -> Any:
    """``moments``, masses ``(m,)`` and centres of mass ``(m, d)`` of nodes, with derivatives by all these.

    mass: ``(n,)`` or ``(1,)``. sizes, pos, splits: as in `of_boxes`.
    """
    del sizes, pos, mass, box, splits
    return moments


@of_moments.defjvp
def _of_moments_jvp(sizes: tuple[int, ...], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, pos, mass, box, splits = primals

    def sums(pos: jax.Array, mass: jax.Array, box: Exact) -> tuple[jax.Array, jax.Array]:
        weight = jnp.broadcast_to(mass, pos.shape[:1])
        found = [_moments_of(wrapped(pos, box), weight, members) for members in _planes(sizes, splits, pos.shape[0])]
        total, centre = (jnp.concatenate(column) for column in zip(*found, strict=True))
        return total, centre

    return of_moments(sizes, *primals), jax.jvp(sums, (pos, mass, box), tangents[1:4])[1]


def _moments_of(pos: jax.Array, weight: jax.Array, members: Members) -> tuple[jax.Array, jax.Array]:
    inside = members.group < members.first.shape[0]
    weight = jnp.where(inside, weight, 0)
    total = members.sum(weight)
    place = jnp.where(inside[:, None], pos, 0)
    first = members.from_first(place)
    share = weight / members.of_rows(jnp.where(total != 0, total, 1), 1)
    middle = members.sum(share[:, None] * (place - members.of_rows(first)))
    return total, jnp.where((total != 0)[:, None], first + middle, 0)


class Sources(NamedTuple):
    """Particles around centres. pos: ``(n, d)``. mass: ``(n,)``, or ``(1,)``, or ``(0,)`` where each counts 1. num: how
    many rows hold particles.
    """

    pos: jax.Array
    mass: jax.Array
    num: Any


@jax.custom_jvp
def of_spheres(
    spheres: tuple[jax.Array, jax.Array, jax.Array], sources: Sources, centre: jax.Array, density: Exact, box: Exact
) -> Any:
    """Radii, masses ``(q, m)`` and peaks ``(q, 2)`` of `jztree.kernels.overdensity` with derivatives by all else.

    sources, centre: this rank's. density: ``(m,)``. Derivatives look at all particles for each centre, one centre after
    the other; over several ranks, they gather the particles of all on each.
    """
    del sources, centre, density, box
    return spheres


@of_spheres.defjvp
def _of_spheres_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    spheres, sources, centre, density, box = primals
    known = jax.lax.stop_gradient(spheres)
    held = jnp.arange(sources.pos.shape[0], dtype=jnp.int32) < jnp.asarray(sources.num, jnp.int32)
    valid = comm.all_gather(held).reshape(-1)

    def found(pos: jax.Array, mass: jax.Array, centre: jax.Array, density: Exact, box: Exact) -> Any:
        weight = jnp.ones((1,), pos.dtype) if mass.shape[0] == 0 else mass
        pos, weight = everyone(pos), jnp.broadcast_to(everyone(weight), valid.shape)
        return _spheres(pos, weight, valid, centre, density, box, known)

    dots = (tangents[1].pos, tangents[1].mass, *tangents[2:])
    return of_spheres(*primals), jax.jvp(found, (sources.pos, sources.mass, centre, density, box), dots)[1]


def _spheres(
    pos: jax.Array,
    mass: jax.Array,
    valid: jax.Array,
    centre: jax.Array,
    density: Exact,
    box: Exact,
    known: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Radii, masses and peaks, from what is inside the radii known."""
    radius, known_mass, peak = known
    pos = jnp.where(valid[:, None], pos, 0)

    # Which particles are inside is found again in reverse, rather than kept for all centres.
    @jax.checkpoint
    def one(_: None, row: Any) -> tuple[None, Any]:
        return None, _one_sphere(pos, mass, valid, box, *row)

    _, (inside, inside_peak, peak_radius) = jax.lax.scan(one, None, (centre, radius, peak[:, 1]))
    more = _relative(inside)
    density_change = _relative(jnp.asarray(density.words).sum(axis=-1).astype(pos.dtype))
    sound = radius > 0
    factor = jnp.where(sound, more / density_change[None, :], 1)
    speed = peak[:, 0] * jnp.sqrt(_relative(inside_peak) / _relative(peak_radius))
    end = jnp.where(sound, radius * factor ** (1 / pos.shape[1]), 0)
    return end, jnp.where(sound, known_mass * more, 0), jnp.stack([speed, peak_radius], axis=-1)


def _relative(value: jax.Array) -> jax.Array:
    """``value`` in units of what it is: 1, with the derivative of its logarithm."""
    still = jax.lax.stop_gradient(value)
    return jnp.where(still > 0, value / _or_one(still), 1)


def _one_sphere(
    pos: jax.Array,
    mass: jax.Array,
    valid: jax.Array,
    box: Exact,
    centre: jax.Array,
    radius: jax.Array,
    peak_radius: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The masses ``(m,)`` inside radii around one centre, and the mass and the distance of the particle at the peak."""
    distance = norm(jax.lax.stop_gradient(nearest_difference(pos, centre[None, :], box)))
    distance = jnp.where(valid, distance, jnp.inf)
    # A sphere ends between two particles, so its radius tells them apart.
    inside = jnp.sum(jnp.where(distance[:, None] < radius[None, :], mass[:, None], 0), axis=0)
    row = jnp.argmin(jnp.abs(distance - peak_radius))
    peak_mass = jnp.sum(jnp.where(distance <= distance[row], mass, 0))
    apart = norm(nearest_difference(pos[row], centre, box))
    found = peak_radius > 0
    return inside, jnp.where(found, peak_mass, 0), jnp.where(found, apart, 0)
