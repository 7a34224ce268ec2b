"""Kernels for minimum spanning trees, their clusters, and the peaks of a density."""

from typing import Any

import jax
import jax.numpy as jnp

from ..jax_ext import Exact
from ._call import Tree, as_num, call, i32, listed, sizes

__all__ = ["cut_tree", "dendrogram", "first_rows", "peak_forest", "rank_rows", "spanning_tree"]


def spanning_tree(
    tree: Tree, rows: jax.Array | None, near: jax.Array, core_row: jax.Array | None, box: Exact
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find the minimum spanning tree of particles. The caller provides derivatives.

    Edges are ordered by length, then by the smaller row of their ends, then by the larger row.

    Args:
        tree: A hierarchy.
        rows: ``(n,)`` int32, the output row of each z-ordered particle. None means the same row.
        near: ``(n, k)`` int32, the z-ordered rows of the nearest other particles of each; -1 after the last.
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
    edges = max(tree.posz.shape[0] - 1, 0)
    float_rows = jax.ShapeDtypeStruct((edges,), tree.posz.dtype)
    words = jax.ShapeDtypeStruct((edges, 2), jnp.uint32)
    measured = 0 if core_row is None else edges
    return call(
        "spanning_tree",
        (i32(edges, 2), float_rows, words, i32(measured, 2)),
        *(*tree.arrays, near, listed(core_row), listed(rows)),
        box.words,
        gradients="stopped",
        plane_sizes=sizes(tree.plane_sizes),
        reachability=core_row is not None,
    )


def cut_tree(ends: jax.Array, exact: jax.Array, num: Any, rlink: Exact, rows: int) -> jax.Array:
    """Return the groups that edges up to a length join: the smallest row of each row's group, ``(rows,)`` int32.

    Args:
        ends: ``(m, 2)`` int32, rows of the ends of edges, shortest edge first.
        exact: ``(m, 2)`` uint32, low and high word of their lengths in float64.
        num: int32 scalar, the number of edges.
        rlink: The length.
        rows: Number of rows.
    """
    return call("cut_tree", i32(rows), ends, exact, as_num(num), rlink.words)


def dendrogram(ends: jax.Array, num: Any, rows: int) -> tuple[jax.Array, jax.Array]:
    """Find the clusters that edges join, shortest edge first.

    The cluster of a single row has the number of the row. The cluster that edge ``e`` forms has the number
    ``rows + e``.

    Args:
        ends: ``(m, 2)`` int32, rows of the ends of edges that contain no circle, shortest edge first.
        num: int32 scalar, the number of edges.
        rows: Number of rows.

    Returns:
        The clusters that each edge joins, ``(m, 2)`` int32, the smaller number first, -1 from ``num`` on; and the
        number of rows of the cluster that it forms, ``(m,)`` int32, 0 from ``num`` on.
    """
    edges = ends.shape[0]
    return call("dendrogram", (i32(edges, 2), i32(edges)), ends, as_num(num), rows=rows)


def first_rows(children: jax.Array, num: Any, rows: int) -> jax.Array:
    """Return the smallest row of each cluster, ``(m,)`` int32, -1 from ``num`` on.

    Args:
        children: ``(m, 2)`` int32, the clusters that each edge joins; see `dendrogram`.
        num: int32 scalar, the number of edges.
        rows: Number of rows.
    """
    return call("first_rows", i32(children.shape[0]), children, as_num(num), rows=rows)


def peak_forest(near: jax.Array, rank: jax.Array, num: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the peaks of a density on a graph, and the edges that join them from the highest level down.

    The edges of the graph join each row to the rows in its list. Ranks order the rows: the densest row has rank 0, and
    no two rows have the same rank. A row without a denser neighbour is a peak. From every other row, a path of densest
    neighbours leads to its peak. An edge between rows of two peaks joins the peaks. Edges are taken in the order of the
    rank of their sparser end, then of their denser end.

    Args:
        near: ``(n, k)`` int32, the neighbours of each row; -1 after the last.
        rank: ``(n,)`` int32, from 0 to ``num - 1`` in the first ``num`` rows.
        num: int32 scalar.

    Returns:
        ``summit`` ``(n,)`` int32, the rank of the peak of the row with each rank, -1 from ``num`` on; ``ends``
        ``(n - 1, 2)`` int32, the ranks of both ends of each edge that joins peaks for the first time, in order, the
        sparser end first, -1 after the last; and the number of these edges, int32.
    """
    n = near.shape[0]
    return call("peak_forest", (i32(n), i32(max(n - 1, 0), 2), i32()), near, rank, as_num(num))


def rank_rows(number: jax.Array, num: Any) -> tuple[jax.Array, jax.Array]:
    """Order rows by a number, the largest first, and by row among equal numbers.

    Args:
        number: ``(n,)`` float32 or float64, not NaN.
        num: int32 scalar. Rows from ``num`` on keep their places.

    Returns:
        The row of each rank, and the rank of each row, ``(n,)`` int32 each.
    """
    rows = i32(number.shape[0])
    return call("rank_rows", (rows, rows), number[:, None], as_num(num), gradients="stopped")
