"""Edges of spanning trees over ranks: rows of several arrays, and their order."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._transform.capacity import Capacity

# Bits of an edge's key: those of its weight, and of the rows of both ends.
_KEY_BITS = 128


class Edges(NamedTuple):
    """Edges, one per row.

    Attributes:
        weight: ``(m, 2)`` uint32, low and high word of the float64 that orders edges before the rows of their ends.
        ends: ``(m, 2)`` int32, rows among the particles of all ranks, the smaller one first.
        exact: ``(m, 2)`` uint32, low and high word of the length in float64.
        length: ``(m,)`` in the dtype of the positions.
        measure: ``(m, 2)`` int32, the rows whose distance is the length; no rows without core distances.
    """

    weight: jax.Array
    ends: jax.Array
    exact: jax.Array
    length: jax.Array
    measure: jax.Array

    def take(self, rows: jax.Array) -> "Edges":
        """Return some edges; ``measure`` without rows stays so."""
        return jax.tree.map(lambda column: column if column.shape[0] == 0 else column[rows], self)

    def put(self, rows: jax.Array, other: "Edges") -> "Edges":
        """Return edges with ``other`` in some rows. Rows past the last one are dropped."""
        return jax.tree.map(
            lambda mine, theirs: mine if mine.shape[0] == 0 else mine.at[rows].set(theirs, mode="drop"), self, other
        )

    def columns(self) -> tuple[jax.Array, ...]:
        """Return the arrays that have rows."""
        return tuple(column for column in self if column.shape[0] > 0)

    def like(self, columns: Any) -> "Edges":
        """Return edges with new ``columns``."""
        arrays = iter(columns)
        return Edges(*(column if column.shape[0] == 0 else next(arrays) for column in self))

    def keys(self) -> list[jax.Array]:
        """Return ``(m,)`` uint32 arrays whose lexicographic order is that of edges."""
        return [self.weight[:, 1], self.weight[:, 0], *(self.ends.astype(jnp.uint32)[:, end] for end in (0, 1))]


def no_edges(like: Edges, rows: int) -> Edges:
    """Return ``rows`` rows without edges: ends -1, lengths infinite."""
    infinite = jnp.asarray([0, 0x7FF00000], jnp.uint32)
    fills = Edges(infinite, jnp.int32(-1), infinite, jnp.asarray(jnp.inf, like.length.dtype), jnp.int32(-1))
    return jax.tree.map(
        lambda column, fill: comm.vary(
            column if column.shape[0] == 0 else jnp.broadcast_to(fill, (rows, *column.shape[1:]))
        ),
        like,
        fills,
    )


def sort_over_ranks(edges: Edges, num: jax.Array) -> tuple[Edges, jax.Array]:
    """Sort the edges of all ranks, and divide them into equal shares.

    Cost: two local sorts, 128 sums of one number per rank, and one exchange.

    Args:
        edges: Edges of this rank, ``(n, ...)``. No two edges of any ranks are equal.
        num: Number of rows with edges.

    Returns:
        This rank's share ``(n, ...)`` and its number of rows. The order continues on the next rank. The first shares
        have one edge more if the edges cannot be divided equally.
    """
    n, ndev = edges.length.shape[0], comm.num_ranks()
    edges = _sorted(edges, num)
    total = comm.wide_sum(num)
    ranks = jnp.arange(ndev, dtype=jnp.int32)
    # The number of edges fits 32 bits.
    starts = comm.share(total, ranks, ndev)[1]
    cuts = _cuts(edges.keys(), num, starts.clipped()[1:])
    sent = jnp.diff(jnp.concatenate([jnp.zeros(1, jnp.int32), cuts, num[None]]))
    columns, count, _ = comm.exchange(list(edges.columns()), sent, Capacity(n, "sort"), name="edges")
    shared = _sorted(edges.like(columns), count)
    used = jnp.arange(n, dtype=jnp.int32) < count
    empty = no_edges(edges, n)
    shared = jax.tree.map(
        lambda column, fill: (
            jnp.where(used.reshape(-1, *[1] * (column.ndim - 1)), column, fill) if column.shape[0] > 0 else column
        ),
        shared,
        empty,
    )
    return shared, count


def _sorted(edges: Edges, num: jax.Array) -> Edges:
    return edges.take(kernels.sort_words(edges.keys(), num))


def _cuts(keys: list[jax.Array], num: jax.Array, before: jax.Array) -> jax.Array:
    """Return the number of this rank's sorted keys that precede each splitter.

    A splitter is the largest key that has at most a given number of keys before it, summed over ranks. The search
    finds its bits one after the other. Keys are unique, so the number of keys before it is then the given one.

    Args:
        keys: Sorted keys of this rank, four ``(n,)`` uint32 arrays.
        num: Number of keys.
        before: ``(s,)`` int32, number of keys before each splitter, summed over ranks.

    Returns:
        ``(s,)`` int32.
    """

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        bit, found = state
        tried = found.at[:, bit // 32].add(jnp.uint32(1) << (31 - bit % 32).astype(jnp.uint32))
        count = comm.wide_sum(_count_before(keys, num, tried))
        fits = count.clipped() <= before
        return bit + 1, jnp.where(fits[:, None], tried, found)

    found = comm.vary(jnp.zeros((before.shape[0], 4), jnp.uint32))
    if before.shape[0] > 0:
        first = comm.vary(jnp.int32(0))
        _, found = jax.lax.while_loop(
            lambda state: state[0] < _KEY_BITS, lambda state: jax.tree.map(comm.vary, step(state)), (first, found)
        )
    return _count_before(keys, num, found)


def _count_before(keys: list[jax.Array], num: jax.Array, bounds: jax.Array) -> jax.Array:
    """Return how many of the first ``num`` sorted keys are less than each of ``bounds``, ``(s, 4)`` uint32."""
    n = keys[0].shape[0]
    low = comm.vary(jnp.zeros(bounds.shape[0], jnp.int32))
    high = jnp.full_like(low, num)

    def step(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) // 2
        less, equal = jnp.zeros(low.shape, bool), jnp.ones(low.shape, bool)
        for word, key in enumerate(keys):
            value = key.at[middle].get(mode="clip")
            less |= equal & (value < bounds[:, word])
            equal &= value == bounds[:, word]
        is_open = low < high
        return jnp.where(is_open & less, middle + 1, low), jnp.where(is_open & ~less, middle, high)

    return jax.lax.fori_loop(0, n.bit_length(), step, (low, high))[0]


def append(edges: Edges, num: jax.Array, new: Edges, chosen: jax.Array) -> tuple[Edges, jax.Array]:
    """Append the ``chosen`` rows of ``new`` to the first ``num`` edges. Return the edges and their number."""
    place = jnp.where(chosen, num + jnp.cumsum(chosen, dtype=jnp.int32) - 1, edges.length.shape[0])
    return edges.put(place, new), num + jnp.sum(chosen, dtype=jnp.int32)


def compacted(chosen: jax.Array, rows: int) -> jax.Array:
    """Return the ``chosen`` rows in order, ``(rows,)`` int32; the last row after them."""
    place = jnp.where(chosen, jnp.cumsum(chosen, dtype=jnp.int32) - 1, rows)
    last = chosen.shape[0] - 1
    return (
        comm.vary(jnp.full(rows, last, jnp.int32))
        .at[place]
        .set(jnp.arange(chosen.shape[0], dtype=jnp.int32), mode="drop")
    )


def edges_of(found: kernels.EdgesOfPart) -> Edges:
    """Return the edges that a kernel found."""
    return Edges(found.weight, found.ends, found.exact, found.length, found.measure)
