"""Derivatives of node boxes, masses and centres.

The results of kernels get the derivatives of the same definition written in JAX, at fixed membership
(`jztree.derivatives`).
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from ..derivatives import Members, from_rows, members_of, wrapped
from ..jax_ext import Exact


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def of_boxes(
    sizes: tuple[int, ...], corners: tuple[jax.Array, jax.Array], pos: jax.Array, box: Exact, splits: jax.Array
) -> Any:
    """Return lower and upper ``corners``, ``(m, d)``, of nodes, with the derivatives of the particles at the faces.

    Args:
        sizes: Number of nodes of each plane.
        corners: Lower and upper corners.
        pos: ``(n, d)`` in z-order.
        box: Periodic box.
        splits: ``(m + planes,)`` int32, for each plane the start of each node among the particles, and the end.
    """
    del sizes, pos, box, splits
    return corners


@of_boxes.defjvp
def _of_boxes_jvp(sizes: tuple[int, ...], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, pos, box, splits = primals

    def extremes(pos: jax.Array, box: Exact) -> tuple[jax.Array, jax.Array]:
        inside = wrapped(pos, box)
        by_plane = [_extremes(inside, members) for members in _planes(sizes, splits, pos.shape[0])]
        lower, upper = (jnp.concatenate(corner) for corner in zip(*by_plane, strict=True))
        return lower, upper

    return of_boxes(sizes, *primals), jax.jvp(extremes, (pos, box), tangents[1:3])[1]


def _planes(sizes: tuple[int, ...], splits: jax.Array, n: int) -> list[Members]:
    """Return the nodes of each plane as groups of rows."""
    rows, planes, start = jnp.arange(n, dtype=jnp.int32), [], 0
    for size in sizes:
        begins, count = splits[start : start + size], jnp.diff(splits[start : start + size + 1])
        # Empty nodes may be anywhere. If several nodes begin at a row, the last one contains it.
        members = members_of(rows, begins, count, jnp.ones(size, bool))
        planes.append(members._replace(first=jnp.where(count > 0, begins, n)))
        start += size + 1
    return planes


def _extremes(pos: jax.Array, members: Members) -> tuple[jax.Array, jax.Array]:
    """Return the smallest and the largest coordinates of each group; 0 for empty groups."""
    constant = jax.lax.stop_gradient(pos)
    columns = range(pos.shape[1])
    low = [from_rows(pos[:, i], members.farthest(-constant[:, i])) for i in columns]
    high = [from_rows(pos[:, i], members.farthest(constant[:, i])) for i in columns]
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
    """Return ``moments``, masses ``(m,)`` and centres of mass ``(m, d)`` of nodes, with derivatives.

    They are differentiable with respect to ``pos``, ``mass`` and ``box``.

    Args:
        sizes: See `of_boxes`.
        moments: Masses and centres of mass.
        pos: See `of_boxes`.
        mass: ``(n,)`` or ``(1,)``.
        box: Periodic box.
        splits: See `of_boxes`.
    """
    del sizes, pos, mass, box, splits
    return moments


@of_moments.defjvp
def _of_moments_jvp(sizes: tuple[int, ...], primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, pos, mass, box, splits = primals

    def sums(pos: jax.Array, mass: jax.Array, box: Exact) -> tuple[jax.Array, jax.Array]:
        weight = jnp.broadcast_to(mass, pos.shape[:1])
        by_plane = [_moments_of(wrapped(pos, box), weight, members) for members in _planes(sizes, splits, pos.shape[0])]
        total, centre = (jnp.concatenate(column) for column in zip(*by_plane, strict=True))
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
