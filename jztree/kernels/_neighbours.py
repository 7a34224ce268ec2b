"""Kernels that walk hierarchies: nearest neighbours and friends-of-friends labels."""

from typing import Any

import jax
import jax.numpy as jnp

from ..jax_ext import Exact
from ._call import Continued, Tree, as_num, call, i32, listed, sizes, words_of


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
) -> tuple[jax.Array, jax.Array]:
    """The ``k`` nearest sources of every query: radii ``(q, k)`` and rows ``(q, k)`` int32, nearest first.

    sources, queries: None for ``queries``: the sources themselves, each its own first neighbour.
    source_rows: ``(n,)`` int32, the row to report for each z-ordered source; None reports z-ordered rows.
    query_rows: ``(q,)`` int32, the output row of each z-ordered query; None writes in z-order.
    own_offset: int32 scalar: query i is source ``i + own_offset``, and its own first neighbour; negative: it is none.
    open_leaves: int32, one a leaf of the queries: which are searched. The others keep their rows of ``found``, a pair
        of what this function returned for the same queries among themselves, if they are sources, or else among some
        of the sources. That also says how far those that are searched have to look, and which need not.

    domain: lower and upper corner, ``(d,)``, of the set that sources and queries are part of; None: there are no
    others.
    limit: how far queries look, a number for all or ``q`` in the order of output rows; nothing is within a negative
    one. None: as far as they have to.
    others: queries that are sources are none of their own neighbours.

    Ties go to the lower z-ordered row. Where there are fewer than ``k`` sources, and for query rows from ``num`` on,
    the radius is infinite and the row -1. Derivatives: see `jztree.knn`.
    """
    asked = sources if queries is None else queries
    shape, dtype = (asked.posz.shape[0], k), sources.posz.dtype
    new = jax.ShapeDtypeStruct(shape, dtype), i32(*shape)
    return call(
        "knn",
        new if found is None else (Continued(found[0]), Continued(found[1])),
        *(*sources.arrays, listed(source_rows)),
        *(*asked.arrays, listed(query_rows)),
        as_num(0 if queries is None else own_offset),
        listed(open_leaves),
        box.words,
        words_of(limit),
        jnp.zeros((0, 0), dtype) if domain is None else jnp.stack(domain),
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(asked.plane_sizes),
        self=queries is None,
        others=others,
    )


def fof(tree: Tree, rows: jax.Array | None, rlink: Exact, box: Exact, filled: bool = True) -> jax.Array:
    """Friends-of-friends labels, ``(n,)`` int32.

    rows: ``(n,)`` int32, the output row of each z-ordered particle; None writes in z-order.
    rlink: scalar, the linking length.
    filled: whether anybody looks at rows from ``num`` on, which are then groups of their own.

    A label is the smallest output row of the group.
    """
    args = (*tree.arrays, listed(rows), rlink.words, box.words)
    return call("fof", i32(tree.posz.shape[0]), *args, plane_sizes=sizes(tree.plane_sizes), filled=filled)
