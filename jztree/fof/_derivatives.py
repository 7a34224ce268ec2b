"""Derivatives of sums over groups.

The results of a kernel get the derivatives of the same definition written in JAX, at fixed membership
(`jztree.derivatives`).
"""

import math
from typing import Any

import jax
import jax.numpy as jnp

from .._transform.exact import exact_to_parts
from ..derivatives import Members, from_rows, joined_members, nearest_difference, norm, or_one, rows_of_all_ranks
from ..jax_ext import Exact

_Particles = tuple[jax.Array, jax.Array | None, jax.Array | None]


def of_groups(
    sums: tuple[jax.Array, ...],
    particles: _Particles,
    box: Exact,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    num: int | jax.Array,
) -> tuple[jax.Array, ...]:
    """Return ``sums`` of `jztree.kernels.catalogue` with derivatives by positions, masses, velocities and box lengths.

    Over several ranks, derivatives gather the particles of every rank on each rank.

    Args:
        sums: The sums.
        particles: Positions, masses and velocities, as arguments of that kernel.
        box: Periodic box.
        segments: Number, counts and offsets of the groups.
        num: Number of rows that hold particles.
    """
    if sums[0].shape[0] == 0:
        return sums
    return _of_groups(tuple(sums), particles, box, segments, num)


@jax.custom_jvp
def _of_groups(
    sums: tuple[jax.Array, ...], particles: _Particles, box: Exact, segments: Any, num: int | jax.Array
) -> Any:
    del particles, box, segments, num
    return sums


@_of_groups.defjvp
def _of_groups_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    sums, particles, box, segments, num = primals
    members = joined_members(num, particles[0].shape[0], segments)
    constants = jax.lax.stop_gradient(sums)

    def columns(particles: _Particles, box: Exact) -> tuple[jax.Array, ...]:
        return _columns(jax.tree.map(rows_of_all_ranks, particles), box, members, segments[1], constants)

    return _of_groups(*primals), jax.jvp(columns, (particles, box), tangents[1:3])[1]


def _columns(
    particles: _Particles, box: Exact, members: Members, count: jax.Array, values: tuple[jax.Array, ...]
) -> tuple[jax.Array, ...]:
    """Compute the columns of the catalogue.

    Args:
        particles: Positions, masses and velocities.
        box: Periodic box.
        members: The group of each particle.
        count: ``(g,)`` int32, number of particles of each group.
        values: The columns of the kernel, which give units and periods.
    """
    pos, mass, vel = particles
    inside = (members.group < members.first.shape[0])[:, None]
    number = jnp.maximum(count, 1).astype(pos.dtype)
    total, share = _shares(mass, members, number, inside[:, 0], values[0])
    # Rows in no group may hold arbitrary values.
    place = jnp.where(inside, pos, 0)
    offset = nearest_difference(place, members.of_rows(members.from_first(place)), box)
    offset = jnp.where(inside, offset, 0)
    middle = members.sum(share[:, None] * offset)
    from_centre = jnp.where(inside, offset - members.of_rows(middle), 0)
    centre = _inside_box(members.from_first(place) + middle, values[1], box)
    size = _root_mean_square(from_centre, share, members, values[2])
    far = from_centre / members.of_rows(or_one(values[3]), 1)[:, None]
    is_farthest = members.farthest(jax.lax.stop_gradient(jnp.sum(far * far, axis=-1)))
    radius = norm(from_rows(from_centre, is_farthest))
    shapes = total, centre, size, radius, _shape_tensor(from_centre, share, members, values[2])
    if vel is None:
        return *shapes, *values[5:]
    return *shapes, *_motion(jnp.where(inside, vel, 0), from_centre, share, members, values)


def _shares(
    mass: jax.Array | None, members: Members, number: jax.Array, inside: jax.Array, value: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return the mass of each group, and the weight of each row in the means over its group."""
    equal_shares = jnp.where(inside, members.of_rows(1 / number), 0)
    if mass is None:
        return jnp.zeros_like(number), equal_shares
    if mass.shape[0] == 1:
        exists = members.first < members.group.shape[0]
        return jnp.where(exists, number * mass, 0), equal_shares
    # In units of the mean mass of the group's particles, which keeps sums in range.
    mean = or_one(value / number)
    inner = jnp.where(inside, mass, 0) / members.of_rows(mean, 1)
    total = members.sum(inner)
    weighted = total > 0
    weight = inner / members.of_rows(jnp.where(weighted, total, 1), 1)
    return total * mean, jnp.where(members.of_rows(weighted, False), weight, equal_shares)


def _inside_box(place: jax.Array, mean: jax.Array, box: Exact) -> jax.Array:
    """Move ``place`` by whole periods to the position found by the kernel."""
    length, remainder = (part[None, :] for part in exact_to_parts(box, place.dtype))
    images = jnp.where(length > 0, jnp.round((place - mean) / jnp.where(length > 0, length, 1)), 0)
    return place - jax.lax.stop_gradient(images) * (length + remainder)


def _root_mean_square(vector: jax.Array, share: jax.Array, members: Members, value: jax.Array) -> jax.Array:
    """Return the root mean square of vectors over each group. Its derivative at 0 is 0.

    Args:
        vector: ``(n, d)``.
        share: ``(n,)``, weight of each row in the mean over its group.
        members: The group of each row.
        value: ``(g,)``, the value of the result.
    """
    unit = or_one(value)
    inner = vector / members.of_rows(unit, 1)[:, None]
    square = members.sum(share * jnp.sum(inner * inner, axis=-1))
    exists = (value > 0) & (square > 0)
    return jnp.where(exists, unit * jnp.sqrt(jnp.where(exists, square, 1)), 0)


def _shape_tensor(from_centre: jax.Array, share: jax.Array, members: Members, size: jax.Array) -> jax.Array:
    """Return the inertia tensor over its trace, the square of the ``size``; 0 for groups without extent."""
    inner = from_centre / members.of_rows(or_one(size), 1)[:, None]
    inertia = members.sum((share[:, None] * inner)[:, :, None] * inner[:, None, :])
    trace = jnp.trace(inertia, axis1=1, axis2=2)[:, None, None]
    return jnp.where(trace > 0, inertia / jnp.where(trace > 0, trace, 1), 0)


def _motion(
    vel: jax.Array, from_centre: jax.Array, share: jax.Array, members: Members, values: tuple[jax.Array, ...]
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute mean velocity, dispersion and specific angular momentum."""
    dims = vel.shape[1]
    first = members.from_first(vel)
    from_first = vel - members.of_rows(first)
    middle = members.sum(share[:, None] * from_first)
    relative = from_first - members.of_rows(middle)
    across = _root_mean_square(relative, share, members, values[6] * math.sqrt(dims))
    pairs = [(1, 2), (2, 0), (0, 1)] if dims == 3 else [(i, j) for i in range(dims) for j in range(i + 1, dims)]
    turns = [from_centre[:, i] * relative[:, j] - from_centre[:, j] * relative[:, i] for i, j in pairs]
    # In one dimension there is no rotation, and a sum of no columns would not vary over ranks as the kernel's column
    # does.
    turn = members.sum(share[:, None] * jnp.stack(turns, axis=-1)) if turns else values[7]
    return first + middle, across / math.sqrt(dims), turn
