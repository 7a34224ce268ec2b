"""The kernels of fixed-radius searches."""

import jax
import jax.numpy as jnp

from ..jax_ext import Exact
from ._call import Tree, call, i32, listed, sizes


def count_within(
    sources: Tree,
    weight: jax.Array | None,
    queries: Tree | None,
    query_rows: jax.Array | None,
    radius: Exact,
    m: int,
    box: Exact,
) -> tuple[jax.Array, jax.Array]:
    """How many sources are within ``m`` radii of every query, ``(q, m)`` int32, and the sums of their weights.

    sources, queries: None for ``queries``: the sources themselves, of which each counts itself.
    weight: ``(n,)`` of the z-ordered sources, in the dtype of the positions; None: sums are ``(0, m)``.
    query_rows: ``(q,)`` int32, the output row of each z-ordered query; None writes in z-order.
    radius: ``m`` numbers for all queries, or ``q * m`` in the order of output rows; ascending, of each query. Nothing
        is within a negative one.

    Both are 0 in query rows from ``num`` on.
    """
    asked = sources if queries is None else queries
    q, dtype = asked.posz.shape[0], sources.posz.dtype
    sums = jax.ShapeDtypeStruct((0 if weight is None else q, m), dtype)
    return call(
        "count_within",
        (i32(q, m), sums),
        *(*sources.arrays, jnp.zeros((0,), dtype) if weight is None else weight),
        *(*asked.arrays, listed(query_rows)),
        radius.words,
        box.words,
        gradients="stopped" if weight is None else "refused",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(asked.plane_sizes),
        self=queries is None,
    )


def neighbours_within(
    sources: Tree,
    source_rows: jax.Array | None,
    queries: Tree | None,
    query_rows: jax.Array | None,
    radius: Exact,
    box: Exact,
    room: int,
    *,
    nearest_first: bool,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The sources within a radius of every query: ``(q + 1,)`` int32, where the list of each output row begins and the
    last ends; ``(2,)`` int32, the length of all, upper and lower 31 bits; and rows ``(room,)`` int32 and distances.

    sources, queries, query_rows: as in `count_within`. source_rows: ``(n,)`` int32, the row to report for each
        z-ordered source; None: its place.
    radius: a number for all queries, or ``q`` in the order of output rows; nothing is within a negative one.
    nearest_first: lists are in the order of distance, those at the same in that of the sources; else all are.

    Behind the last there are -1 and infinity. If lists do not fit ``room``, these are everywhere; splits are right as
    long as they fit int32. Distances are float64, rounded. Derivatives: the caller's.
    """
    asked = sources if queries is None else queries
    q, dtype = asked.posz.shape[0], sources.posz.dtype
    return call(
        "neighbours_within",
        (i32(q + 1), i32(2), i32(room), jax.ShapeDtypeStruct((room,), dtype)),
        *(*sources.arrays, listed(source_rows)),
        *(*asked.arrays, listed(query_rows)),
        radius.words,
        box.words,
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(asked.plane_sizes),
        self=queries is None,
        sorted=nearest_first,
    )


def least_within(
    sources: Tree, value: jax.Array, queries: Tree, query_rows: jax.Array | None, radius: Exact, box: Exact
) -> jax.Array:
    """The smallest ``value`` of all sources within a radius of every query, ``(q,)`` int32; 2**31 - 1 if none is, and
    in query rows from ``num`` on.

    Up to 4 dimensions. value: ``(n,)`` int32 of the z-ordered sources. queries, query_rows: as in `count_within`.
    radius: one number. The work is that of all pairs within it.
    """
    return call(
        "least_within",
        i32(queries.posz.shape[0]),
        *(*sources.arrays, value),
        *(*queries.arrays, listed(query_rows)),
        radius.words,
        box.words,
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(queries.plane_sizes),
    )
