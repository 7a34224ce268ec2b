"""Kernels for minimum spanning trees, their clusters, and the peaks of a density."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact
from ._call import Tree, as_num, call, i32, listed, sizes

__all__ = [
    "EdgesOfPart",
    "cut_tree",
    "dendrogram",
    "densest_neighbours",
    "descending_words",
    "first_rows",
    "peak_forest",
    "sort_words",
    "spanning_tree",
    "spanning_tree_of_part",
]


class EdgesOfPart(NamedTuple):
    """The minimum spanning tree of a part of a set; see `spanning_tree_of_part`. Rows ``m - 1`` unless stated.

    Attributes:
        ends: ``(m - 1, 2)`` int32, the output rows of the ends, the smaller one first.
        length: In the dtype of the positions.
        exact: ``(m - 1, 2)`` uint32, low and high word of the smallest float64 linking length that links the ends.
        measure: ``(m - 1, 2)`` int32, the output rows whose distance is the length. No rows without core distances.
        weight: ``(m - 1, 2)`` uint32, low and high word of the float64 that determines the order of edges.
        places: ``(m - 1, 2)`` int32, the z-ordered rows of ``ends``.
        certain: int32, 1 for edges of the tree of the whole set that no other rank has as a certain edge.
        joined: ``(m,)`` int32, the first of this rank's rows that certain edges join with each row.
    """

    ends: jax.Array
    length: jax.Array
    exact: jax.Array
    measure: jax.Array
    weight: jax.Array
    places: jax.Array
    certain: jax.Array
    joined: jax.Array


def spanning_tree(
    tree: Tree, rows: jax.Array | None, neighbours: jax.Array, core_row: jax.Array | None, box: Exact
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find the minimum spanning tree of particles. The caller provides derivatives.

    Edges are ordered by length, then by the smaller row of their ends, then by the larger row.

    Args:
        tree: A hierarchy.
        rows: ``(n,)`` int32, the output row of each z-ordered particle. None means the same row.
        neighbours: ``(n, k)`` int32, the z-ordered rows of the nearest other particles of each; -1 after the last.
            They only steer the search.
        core_row: ``(n,)`` int32, the z-ordered row of the particle at the core distance of each. The length of an edge
            is then the largest of its distance and the core distances of its ends. None means its distance.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        ``ends`` ``(n - 1, 2)`` int32, the smaller row first; ``length`` ``(n - 1,)`` in the dtype of the positions;
        ``exact`` ``(n - 1, 2)`` uint32, low and high word of the smallest float64 linking length that links the ends;
        and ``measure`` ``(n - 1, 2)`` int32, the rows whose distance is the length, without rows if there are no core
        distances. From the number of edges on, rows are -1 and lengths infinite.
    """
    edges = _spanning_tree(tree, neighbours, box, core_row=core_row, rows=rows)
    return edges.ends, edges.length, edges.exact, edges.measure


def spanning_tree_of_part(
    tree: Tree,
    ids: jax.Array,
    neighbours: jax.Array,
    core: tuple[jax.Array, jax.Array] | None,
    label: jax.Array | None,
    reach: jax.Array,
    domain: tuple[jax.Array, jax.Array],
    box: Exact,
) -> EdgesOfPart:
    """Find the minimum spanning tree of a rank's particles and ghosts, and edges of the whole tree.

    Args:
        tree: A hierarchy over ``m`` rows.
        ids: ``(m,)`` int32, the row of each particle, counted over all ranks.
        neighbours: ``(m, k)`` int32, as in `spanning_tree`; -2 if the nearest particles of a row are unknown.
        core: Position ``(m, d)`` and id ``(m,)`` of the particle at the core distance of each. None means that lengths
            are distances.
        label: ``(m,)`` int32, the first row of the set of each row; edges then join these sets. None means that each
            row is a set.
        reach: ``(m,)``: this rank has all particles that are at most this far from the row. Negative for ghosts.
        domain: Lower and upper corner ``(d,)`` of the particles on all ranks.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        The edges, shortest first. From the last one on, rows are -1 and lengths infinite.
    """
    place, number = (None, None) if core is None else core
    return _spanning_tree(
        tree,
        neighbours,
        box,
        rows=ids,
        core_place=place,
        core_id=number,
        label=label,
        reach=reach,
        domain=jnp.stack(domain),
    )


def _spanning_tree(
    tree: Tree,
    neighbours: jax.Array,
    box: Exact,
    *,
    rows: jax.Array | None,
    core_row: jax.Array | None = None,
    core_place: jax.Array | None = None,
    core_id: jax.Array | None = None,
    label: jax.Array | None = None,
    reach: jax.Array | None = None,
    domain: jax.Array | None = None,
) -> EdgesOfPart:
    n, dtype = tree.posz.shape[0], tree.posz.dtype
    edges = max(n - 1, 0)
    reachability, partial = core_row is not None or core_place is not None, reach is not None
    measured, of_part = edges if reachability else 0, edges if partial else 0

    def words(rows: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, 2), jnp.uint32)

    def real(values: jax.Array | None, *shape: int) -> Any:
        return np.zeros(shape, dtype) if values is None else values

    dims = tree.posz.shape[1]
    length = jax.ShapeDtypeStruct((edges,), dtype)
    of_part_only = words(of_part), i32(of_part, 2), i32(of_part), i32(n if partial else 0)
    edge_arrays = call(
        "spanning_tree",
        (i32(edges, 2), length, words(edges), i32(measured, 2), *of_part_only),
        *(*tree.arrays, neighbours, listed(core_row), listed(rows)),
        *(real(core_place, 0, dims), listed(core_id), listed(label), real(reach, 0), real(domain, 0, dims)),
        box.words,
        gradients="stopped",
        plane_sizes=sizes(tree.plane_sizes),
        reachability=reachability,
        partial=partial,
    )
    return EdgesOfPart(*edge_arrays)


def cut_tree(ends: jax.Array, exact: jax.Array, num: int | jax.Array, rlink: Exact, rows: int) -> jax.Array:
    """Return the groups that edges up to a length join: the smallest row of each row's group, ``(rows,)`` int32.

    Args:
        ends: ``(m, 2)`` int32, rows of the ends of edges, shortest edge first.
        exact: ``(m, 2)`` uint32, low and high word of their lengths in float64.
        num: int32 scalar, the number of edges.
        rlink: The length.
        rows: Number of rows.
    """
    return call("cut_tree", i32(rows), ends, exact, as_num(num), rlink.words)


def dendrogram(ends: jax.Array, num: int | jax.Array, rows: int) -> tuple[jax.Array, jax.Array]:
    """Find the clusters that edges join, shortest edge first.

    The cluster of a single row has the number of the row. The cluster that edge ``e`` forms has the number
    ``rows + e``.

    Args:
        ends: ``(m, 2)`` int32, rows of the ends of edges that contain no circle, shortest edge first.
        num: int32 scalar, the number of edges.
        rows: Number of rows.

    Returns:
        The clusters of both ends of each edge, ``(m, 2)`` int32, -1 from ``num`` on; and the number of rows of the
        cluster that the edge forms, ``(m,)`` int32, 0 from ``num`` on.
    """
    edges = ends.shape[0]
    return call("dendrogram", (i32(edges, 2), i32(edges)), ends, as_num(num), rows=rows)


def first_rows(children: jax.Array, num: int | jax.Array, rows: int) -> jax.Array:
    """Return the smallest row of each cluster, ``(m,)`` int32, -1 from ``num`` on.

    Args:
        children: ``(m, 2)`` int32, the clusters that each edge joins; see `dendrogram`.
        num: int32 scalar, the number of edges.
        rows: Number of rows.
    """
    return call("first_rows", i32(children.shape[0]), children, as_num(num), rows=rows)


def densest_neighbours(
    neighbours: jax.Array, first: int | jax.Array, rank: jax.Array, num: int | jax.Array
) -> jax.Array:
    """Return the row of the densest neighbour of each row, ``(n,)`` int32; the row itself if no neighbour is denser.

    Args:
        neighbours: ``(l, k)`` int32, lists of ``l`` rows; -1 after the last neighbour. Two rows are neighbours if one
            is in the list of the other.
        first: int32 scalar, the row of the first list.
        rank: ``(n,)`` int32. Of two rows, the denser one has the smaller rank. No two rows have the same rank.
        num: int32 scalar, the number of rows.
    """
    return call("densest_neighbours", i32(rank.shape[0]), neighbours, as_num(first), rank, as_num(num))


def peak_forest(
    neighbours: jax.Array, first: int | jax.Array, rank: jax.Array, num: int | jax.Array, peak: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Find the edges that join the peaks of a density on a graph, from the highest level down.

    An edge of the graph between rows of two peaks joins the peaks. Edges are taken in the order of the rank of their
    sparser end, then of their denser end.

    Args:
        neighbours: See `densest_neighbours`.
        first: See `densest_neighbours`.
        rank: ``(n,)`` int32, from 0 to ``num - 1`` in the first ``num`` rows. The densest row has rank 0, and no two
            rows have the same rank.
        num: int32 scalar, the number of rows.
        peak: ``(n,)`` int32, the row that represents the peak of each row. It represents its own peak.

    Returns:
        ``(n - 1, 2)`` int32, the ranks of both ends of each edge that joins peaks for the first time, in order, the
        sparser end first, -1 after the last; and the number of edges, int32.
    """
    n = rank.shape[0]
    out = i32(max(n - 1, 0), 2), i32()
    return call("peak_forest", out, neighbours, as_num(first), rank, as_num(num), peak)


def sort_words(words: list[jax.Array], num: int | jax.Array) -> jax.Array:
    """Return the lexicographic order of rows of words, ``(m,)`` int32: the first ``num`` rows, then all others.

    Args:
        words: Arrays ``(m,)`` int32 or uint32, the most significant first. Integers must not be negative.
        num: int32 scalar, the number of rows to sort.
    """
    return call("sort_words", i32(words[0].shape[0]), _even_columns(words), as_num(num))


@functools.partial(jax.jit, inline=True)
def _even_columns(words: list[jax.Array]) -> jax.Array:
    columns = [word.astype(jnp.uint32) for word in words]
    if len(columns) % 2:
        columns.append(jnp.zeros_like(columns[0]))
    return jnp.stack(columns, axis=1)


@functools.partial(jax.jit, inline=True)
def descending_words(levels: jax.Array) -> list[jax.Array]:
    """Return words ``(n,)`` uint32 by which `sort_words` orders floats ``(n,)`` from the highest to the lowest."""
    words = jax.lax.bitcast_convert_type(levels, jnp.uint32).reshape(len(levels), levels.dtype.itemsize // 4)
    high, *low = jnp.moveaxis(words[:, ::-1], 1, 0)  # the low word comes first
    # XLA takes numbers below the smallest normal one for 0, so this compares bits. Both zeros are equal.
    is_zero = functools.reduce(jnp.bitwise_or, low, high & 0x7FFFFFFF) == 0
    is_negative = (high >> 31 == 1) & ~is_zero
    high = jnp.where(is_zero, 0, high)
    high = jnp.where(is_negative, high, ~high & 0x7FFFFFFF)
    return [high, *(jnp.where(is_negative, word, ~word) for word in low)]
