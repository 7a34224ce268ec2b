"""Kernels that walk hierarchies: nearest neighbours and friends-of-friends labels."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact
from ._call import Continued, Tree, as_num, call, i32, listed, sizes, words_of

__all__ = ["fof", "knn"]


def knn(
    sources: Tree,
    source_rows: jax.Array | None,
    queries: Tree | None,
    query_rows: jax.Array | None,
    k: int,
    box: Exact,
    *,
    own_offset: Any = -1,
    open_leaves: jax.Array | None = None,
    domain: tuple[jax.Array, jax.Array] | None = None,
    limit: Exact | None = None,
    found: tuple[jax.Array, jax.Array] | None = None,
    others: bool = False,
    radii: bool = True,
) -> tuple[jax.Array, jax.Array]:
    """Find the ``k`` nearest sources of every query: radii ``(q, k)`` and rows ``(q, k)`` int32, nearest first.

    Ties go to the lower z-ordered row. If there are fewer than ``k`` sources, and for query rows from ``num`` on, the
    radius is infinite and the row is -1. For derivatives see `jztree.knn`.

    Args:
        sources: A hierarchy.
        source_rows: ``(n,)`` int32, the row to report for each z-ordered source. None reports z-ordered rows.
        queries: A hierarchy. None means that the queries are the sources, and each is its own first neighbour.
        query_rows: ``(q,)`` int32, the output row of each z-ordered query. None writes in z-order.
        k: Number of neighbours.
        box: ``(d,)`` lengths, 0 if open.
        own_offset: int32 scalar. If it is not negative, query i is source ``i + own_offset``, and its own first
            neighbour. If it is negative, queries are not sources.
        open_leaves: int32, one per leaf of the queries: nonzero if the leaf is searched. The queries of other leaves
            keep their results in ``found``.
        domain: Lower and upper corner, ``(d,)``, of the whole set. None if sources and queries are the whole set.
        limit: Largest distance of a neighbour, a number for all or ``q`` in the order of output rows; no source is
            within a negative distance. None means no limit.
        found: The result of an earlier call for the same queries and a part of the sources (the queries themselves, if
            they are sources). It limits the radii of the new search, and queries without further sources within their
            radius keep their earlier result.
        others: Whether to exclude each query that is a source from its own neighbours.
        radii: Whether to return the radii; otherwise they have the shape ``(q, 0)``.
    """
    query_tree = sources if queries is None else queries
    q, dtype = query_tree.posz.shape[0], sources.posz.dtype
    new = jax.ShapeDtypeStruct((q, k if radii else 0), dtype), i32(q, k)
    return call(
        "knn",
        new if found is None else (Continued(found[0]), Continued(found[1])),
        *(*sources.arrays, listed(source_rows)),
        *(*query_tree.arrays, listed(query_rows)),
        as_num(0 if queries is None else own_offset),
        listed(open_leaves),
        box.words,
        words_of(limit),
        np.zeros((0, 0), dtype) if domain is None else jnp.stack(domain),
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(query_tree.plane_sizes),
        self=queries is None,
        others=others,
    )


def fof(tree: Tree, rows: jax.Array | None, rlink: Exact, box: Exact, filled: bool = True) -> jax.Array:
    """Return friends-of-friends labels, ``(n,)`` int32. A label is the smallest output row of the group.

    Args:
        tree: A hierarchy.
        rows: ``(n,)`` int32, the output row of each z-ordered particle. None writes in z-order.
        rlink: One linking length, or ``n``, one per z-ordered particle. Two particles are linked if they are within
            the mean of their lengths. Lengths from ``num`` on may be any numbers.
        box: ``(d,)`` lengths, 0 if open.
        filled: Whether to write rows from ``num`` on, each as a separate group. If False, they are undefined.
    """
    args = (*tree.arrays, listed(rows), rlink.words, box.words)
    return call("fof", i32(tree.posz.shape[0]), *args, plane_sizes=sizes(tree.plane_sizes), filled=filled)
