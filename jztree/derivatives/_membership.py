"""Membership of particles in groups, nodes or spheres, for derivatives at fixed membership.

Kernels have no derivatives. The membership of particles in a group, a node or a sphere does not change under a small
shift; if it does change, sums jump. So the derivative of a sum is that of the sum over its present members. Horowitz &
Bayer (2025, arXiv:2510.26851) call this frozen assignment, and describe the terms that it omits.

The ``_derivatives`` module of each subject takes the result of a kernel and attaches the derivatives of the same
definition written in JAX. JAX traces that code only if you differentiate, so otherwise it has no cost, and it can be
differentiated again. Differences are taken relative to a particle of the group and in the group's own unit of length,
so that no digits are lost far from the origin and no square leaves the range of float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm

# Number of terms added sequentially; a longer sum in float32 loses digits with every term.
_BLOCK = 1024


class Members(NamedTuple):
    """The group of each row of particles.

    Attributes:
        group: ``(n,)`` int32, the group of each row; ``g`` for rows in no group. The rows of a group are consecutive,
            except for rows in no group.
        first: ``(g,)`` int32, the first row of each group; ``n`` for groups that do not exist.
    """

    group: jax.Array
    first: jax.Array

    def of_rows(self, values: jax.Array, padding: Any = 0) -> jax.Array:
        """Return the value of each row's group, and ``padding`` for rows in no group."""
        return values.at[self.group].get(mode="fill", fill_value=padding)

    def from_first(self, values: jax.Array) -> jax.Array:
        """Return the value of the first row of each group; 0 for groups that do not exist."""
        return from_rows(values, self.first)

    def sum(self, values: jax.Array) -> jax.Array:
        """Return the sum over each group, ``(g, ...)``, by summing short runs of rows first."""
        groups, rows = self.first.shape[0], jnp.arange(self.group.shape[0], dtype=jnp.int32)
        before = jnp.concatenate([self.group[:1], self.group[:-1]])
        run = jnp.cumsum((self.group != before) | (rows % _BLOCK == 0), dtype=jnp.int32) - 1
        total = self.group.shape[0] // _BLOCK + 2 * (groups + comm.num_ranks()) + 2
        owner = jnp.full(total, groups, jnp.int32).at[run].set(self.group)
        return jax.ops.segment_sum(jax.ops.segment_sum(values, run, total), owner, groups + 1)[:groups]

    def farthest(self, distance: jax.Array) -> jax.Array:
        """Return the row with the largest ``distance``, ``(n,)``, of each group; ``n`` for groups that do not exist."""
        groups, n = self.first.shape[0], distance.shape[0]
        largest = jax.ops.segment_max(distance, self.group, groups + 1)
        rows = jnp.where(distance >= largest[self.group], jnp.arange(n, dtype=jnp.int32), n)
        return jnp.minimum(jax.ops.segment_min(rows, self.group, groups + 1), n)[:groups]


def from_rows(values: jax.Array, rows: jax.Array) -> jax.Array:
    """Return ``values[rows]``, and 0 for rows past the end."""
    return values.at[rows].get(mode="fill", fill_value=0)


def members_of(rows: jax.Array, start: jax.Array, count: jax.Array, used: jax.Array) -> Members:
    """Return the `Members` of groups that are runs in group order.

    ``first`` assumes that rows are in group order.

    Args:
        rows: ``(n,)`` int32, the position of each particle in group order, -1 for padding.
        start: ``(g,)`` int32, the first position of each group in group order, ascending.
        count: ``(g,)`` int32, the number of particles of each group.
        used: ``(g,)``, mask of the groups that exist.
    """
    groups = start.shape[0]
    begins = jnp.where(used, start, jnp.iinfo(jnp.int32).max)
    group = jnp.searchsorted(begins, rows, side="right").astype(jnp.int32) - 1
    within = (group >= 0) & (rows >= 0) & (rows - begins[group] < count[group])
    return Members(jnp.where(within, group, groups), jnp.where(used, start, rows.shape[0]))


def joined_members(num: int | jax.Array, n: int, segments: tuple[jax.Array, jax.Array, jax.Array]) -> Members:
    """Return the groups that begin on this rank, as rows of the joined particles ``(r * n,)`` of every rank, with
    padding.

    Args:
        num: Number of this rank's rows that hold particles.
        n: Number of rows of each rank.
        segments: Number of groups, their counts over all ranks, and their offsets.
    """
    rank, ndev, _ = comm.get_rank_info()
    if ndev * n >= 2**31:
        raise ValueError(
            f"derivatives support less than 2**31 rows over all devices, but there are {ndev * n}; use fewer particles."
        )
    ngroups, count, offset = segments
    nums = comm.all_gather(jnp.asarray(num, jnp.int32))
    starts, rows_of_rank = comm.starts_of(nums), jnp.arange(n, dtype=jnp.int32)[None, :]
    rows = jnp.where(rows_of_rank < nums[:, None], starts[:, None] + rows_of_rank, -1).reshape(-1)
    used = jnp.arange(count.shape[0], dtype=jnp.int32) < ngroups
    members = members_of(rows, starts[rank] + offset, count, used)
    return members._replace(first=jnp.where(used, rank * n + offset, rows.shape[0]))


def rows_of_all_ranks(array: jax.Array) -> jax.Array:
    """Return the rows ``(n, ...)`` of every rank, joined as ``(r * n, ...)``; values shared by all particles are
    unchanged.
    """
    return array if array.shape[0] == 1 else comm.all_gather(array).reshape(-1, *array.shape[1:])


def or_one(unit_of: jax.Array) -> jax.Array:
    """Return a unit to divide by: the given one if it is positive, otherwise 1."""
    return jnp.where(unit_of > 0, unit_of, 1)
