"""Edges of spanning trees over ranks: rows of several arrays, and their order."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels


class Edges(NamedTuple):
    """Edges, one per row.

    Attributes:
        weight: ``(m, 2)`` uint32, low and high word of the float64 that orders edges before the rows of their ends.
        ends: ``(m, 2)`` int32, rows counted over all ranks, the smaller one first.
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
    """Sort the edges on all ranks, and divide them into equal shares.

    Args:
        edges: Edges of this rank, ``(n, ...)``. No two edges of any ranks are equal.
        num: Number of rows with edges.

    Returns:
        This rank's share ``(n, ...)`` and its number of rows. The order continues on the next rank. The first shares
        have one edge more if the edges cannot be divided equally.
    """
    columns, count = comm.sort_by_keys(list(edges.columns()), lambda columns: edges.like(columns).keys(), num)
    n = edges.length.shape[0]
    place = jnp.where(jnp.arange(n, dtype=jnp.int32) < count, jnp.arange(n, dtype=jnp.int32), n)
    return no_edges(edges, n).put(place, edges.like(columns)), count


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


def first_of_equal(values: jax.Array) -> jax.Array:
    """Return the first row with the value of each row, ``(m,)`` int32. values: ``(m,)`` int32, not negative."""
    rows = jnp.arange(values.shape[0], dtype=jnp.int32)
    order = kernels.sort_words([values, rows], values.shape[0])
    ordered = values[order]
    is_first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    first = order[jax.lax.cummax(jnp.where(is_first, rows, 0))]
    return jnp.zeros_like(rows).at[order].set(first)


def edges_of(found: kernels.EdgesOfPart) -> Edges:
    """Return the edges that a kernel found."""
    return Edges(found.weight, found.ends, found.exact, found.length, found.measure)
