"""Which particles are in a group, a node or a sphere, for derivatives at fixed membership.

Kernels have no derivatives. Which particles are in a group, a node or a sphere does not change under a small shift, and
where it does, sums jump. So the derivative of a sum is that of the sum over the particles that are in it now; Horowitz
& Bayer (2025, arXiv:2510.26851) call it frozen assignment, and say what it leaves out.

The ``_derivatives`` of each subject take what a kernel found and give it back with derivatives: those of the same
definition written down in JAX. That is traced only where somebody differentiates, so it costs nothing elsewhere, and it
can be differentiated again. Differences are taken to a particle of the group and in the group's own unit of length, so
that no digits are lost far from the origin and no square leaves the range of float32.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import comm

# So many terms are added up one after the other; a longer sum in float32 loses digits with every term.
_BLOCK = 1024


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


def or_one(unit_of: jax.Array) -> jax.Array:
    """A unit to divide by: 1 where there is none."""
    return jnp.where(unit_of > 0, unit_of, 1)
