"""Numbers of groups over the ranks of a mesh, from the input rows of their members.

The rank and row of a group's first member in z-order, its root, identify the group. The root receives the smallest
input row of the group, and answers travel back to every member. DBSCAN numbers clusters by the input row of their
first core: the rank that owns this row counts such rows, and the count travels to the root and then to all cores.
"""

import jax
import jax.numpy as jnp

from .. import comm
from ._over_ranks import Groups

_NONE = 2**31 - 1


class _Members:
    """The members of groups on this rank, each with its number among the particles on all ranks, ``(n,)`` int32."""

    def __init__(self, groups: Groups, number: jax.Array) -> None:
        n, self.root = number.shape[0], groups.labels()
        self.buffer = max(n // 4, 1024)
        self.used = jnp.arange(n, dtype=jnp.int32) < groups.num
        self.ranks = jnp.where(self.used, self.root.irank, comm.num_ranks())
        first = comm.vary(jnp.full(n, _NONE, jnp.int32))
        # The smallest number of the members, in the rows of roots.
        self.first = comm.deliver([self.root.igroup, number], self.ranks, n, _keep_least, first, self.buffer)

    def from_roots(self, value: jax.Array) -> jax.Array:
        """Return the value at the root of each member's group; -1 in rows without a member."""
        table = value.reshape(-1, 1)
        values = comm.fetch(table, self.ranks, self.root.igroup, value.shape[0], self.buffer)
        return jnp.where(self.used, values[:, 0], -1)


def first_numbers(groups: Groups, number: jax.Array) -> jax.Array:
    """Return the smallest number of each particle's group, ``(n,)`` int32; -1 in rows from ``num`` on.

    Args:
        groups: Groups over ranks.
        number: ``(n,)`` int32, the number of each particle, counted over all ranks.
    """
    members = _Members(groups, number)
    return members.from_roots(members.first)


def numbers_of_clusters(groups: Groups, number: jax.Array, starts: jax.Array, input_rows: int) -> jax.Array:
    """Return the cluster of each core, ``(n,)`` int32; -1 in all other rows.

    Args:
        groups: Groups of cores, over ranks.
        number: ``(n,)`` int32, the number of each core, counted over the particles on all ranks.
        starts: ``(r,)`` int32, the number of each rank's first particle.
        input_rows: The number of input rows on this rank.
    """
    members, n = _Members(groups, number), number.shape[0]
    # The rank whose input holds the first core of a cluster counts the rows of clusters.
    home, row = comm.rank_and_row(starts, members.first)
    home = jnp.where(members.first < _NONE, home, comm.num_ranks())
    marks = comm.vary(jnp.zeros(input_rows, jnp.int32))
    marks = comm.deliver([row], home, n, _mark, marks, members.buffer)
    before = comm.starts_of(comm.all_gather(jnp.sum(marks, dtype=jnp.int32)))[comm.get_rank_info()[0]]
    table = (before + jnp.cumsum(marks, dtype=jnp.int32) - 1)[:, None]
    return members.from_roots(comm.fetch(table, home, row, n, members.buffer))


def _keep_least(packed: jax.Array, counts: jax.Array, minimum: jax.Array) -> jax.Array:
    row, number = comm.rows_and_values(packed, counts, minimum)
    return minimum.at[row].min(number[:, 0], mode="drop")


def _mark(packed: jax.Array, counts: jax.Array, marks: jax.Array) -> jax.Array:
    return marks.at[comm.rows_and_values(packed, counts, marks)[0]].set(1, mode="drop")
