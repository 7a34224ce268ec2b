"""Numbers of DBSCAN clusters over the ranks of a mesh.

The rank and row of a group's first core in z-order, its root, identify the group. A cluster is numbered by the input
row of its first core: the root receives the smallest such row from all cores of the group. The rank that owns this row
counts such rows, and the answers travel back, to the root and then to all cores.
"""

import jax
import jax.numpy as jnp

from .. import comm
from ._over_ranks import Groups

_NONE = 2**31 - 1


def numbers_of_clusters(groups: Groups, number: jax.Array, starts: jax.Array, given: int) -> jax.Array:
    """Return the cluster of each core, ``(n,)`` int32; -1 in all other rows.

    number: ``(n,)`` int32, the number of each core among the particles of all ranks. starts: ``(r,)`` int32, the number
    of each rank's first particle. given: the number of rows that were given on this rank.
    """
    n, root, nobody = number.shape[0], groups.labels(), comm.num_ranks()
    buffer = max(n // 4, 1024)
    used = jnp.arange(n, dtype=jnp.int32) < groups.num
    ranks = jnp.where(used, root.irank, nobody)
    first = comm.vary(jnp.full(n, _NONE, jnp.int32))
    first = comm.deliver([root.igroup, number], ranks, n, _keep_least, first, buffer)
    # The rank whose input holds the first core of a cluster counts the rows of clusters.
    home = jnp.searchsorted(starts, first, side="right").astype(jnp.int32) - 1
    row = first - starts[home]
    home = jnp.where(first < _NONE, home, nobody)
    marks = comm.vary(jnp.zeros(given, jnp.int32))
    marks = comm.deliver([row], home, n, _mark, marks, buffer)
    before = comm.starts_of(comm.all_gather(jnp.sum(marks, dtype=jnp.int32)))[comm.get_rank_info()[0]]
    table = (before + jnp.cumsum(marks, dtype=jnp.int32) - 1)[:, None]
    at_root = comm.fetch(table, home, row, n, buffer)
    return jnp.where(used, comm.fetch(at_root, ranks, root.igroup, n, buffer)[:, 0], -1)


def _rows_of(buffer: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the words of received rows, ``(m, words)`` int32, and a mask of the valid rows."""
    words = jax.lax.bitcast_convert_type(buffer, jnp.int32)
    valid = jnp.arange(buffer.shape[1], dtype=jnp.int32)[None] < counts[:, None]
    return words.reshape(-1, buffer.shape[-1]), valid.reshape(-1)


def _keep_least(buffer: jax.Array, counts: jax.Array, least: jax.Array) -> jax.Array:
    words, valid = _rows_of(buffer, counts)
    return least.at[jnp.where(valid, words[:, 0], least.shape[0])].min(words[:, 1], mode="drop")


def _mark(buffer: jax.Array, counts: jax.Array, marks: jax.Array) -> jax.Array:
    words, valid = _rows_of(buffer, counts)
    return marks.at[jnp.where(valid, words[:, 0], marks.shape[0])].set(1, mode="drop")
