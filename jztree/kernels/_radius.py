"""Kernels for fixed-radius searches."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact, exact
from ._call import Tree, call, i32, listed, sizes

__all__ = [
    "KernelTerm",
    "count_within",
    "enough_within",
    "kernel_sums",
    "least_within",
    "neighbours_within",
    "pairs_within",
]


def count_within(
    sources: Tree,
    weight: jax.Array | None,
    queries: Tree | None,
    query_rows: jax.Array | None,
    radius: Exact,
    m: int,
    box: Exact,
) -> tuple[jax.Array, jax.Array]:
    """Count the sources within ``m`` radii of every query, ``(q, m)`` int32, and sum their weights.

    Both results are 0 in query rows from ``num`` on.

    Args:
        sources: A hierarchy.
        weight: ``(n,)`` of the z-ordered sources, in the dtype of the positions. None makes the sums ``(0, m)``.
        queries: A hierarchy. None means that the queries are the sources, and each counts itself.
        query_rows: ``(q,)`` int32, the output row of each z-ordered query. None writes in z-order.
        radius: ``m`` numbers for all queries, or ``q * m`` in the order of output rows; ascending for each query. No
            source is within a negative radius.
        m: Number of radii.
        box: ``(d,)`` lengths, 0 if open.
    """
    query_tree = sources if queries is None else queries
    q, dtype = query_tree.posz.shape[0], sources.posz.dtype
    if weight is not None and weight.shape[0] == 0:
        # The kernel takes an empty array if particles have no weights.
        counts = count_within(sources, None, queries, query_rows, radius, m, box)
        return counts[0], jnp.zeros((q, m), dtype)
    sums = jax.ShapeDtypeStruct((0 if weight is None else q, m), dtype)
    return call(
        "count_within",
        (i32(q, m), sums),
        *(*sources.arrays, jnp.zeros((0,), dtype) if weight is None else weight),
        *(*query_tree.arrays, listed(query_rows)),
        radius.words,
        box.words,
        gradients="stopped" if weight is None else "refused",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(query_tree.plane_sizes),
        self=queries is None,
    )


def neighbours_within(
    sources: Tree,
    source_rows: jax.Array | None,
    queries: Tree | None,
    query_rows: jax.Array | None,
    radius: Exact,
    box: Exact,
    capacity: int,
    *,
    nearest_first: bool,
    padded: bool = True,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find the sources within a radius of every query.

    Distances are computed in float64 and rounded. The caller provides derivatives.

    Args:
        sources: A hierarchy.
        source_rows: ``(n,)`` int32, the row to report for each z-ordered source. None reports z-ordered rows.
        queries: See `count_within`.
        query_rows: See `count_within`.
        radius: A number for all queries, or ``q`` in the order of output rows; no source is within a negative radius.
        box: ``(d,)`` lengths, 0 if open.
        capacity: Number of neighbours that fit into the result.
        nearest_first: Whether to sort each list by distance, and by source order for equal distances. Otherwise it is
            in source order.
        padded: Whether to fill entries after the last with -1 and infinity, and all entries if the lists do not fit
            ``capacity``. If False, these entries are not written, and take no memory on a CPU.

    Returns:
        ``(q + 1,)`` int32, the start of the list of each output row and the end of the last, right if they fit int32;
        ``(2,)`` int32, the total length as upper and lower 31 bits; and rows ``(capacity,)`` int32 and distances.
    """
    query_tree = sources if queries is None else queries
    q, dtype = query_tree.posz.shape[0], sources.posz.dtype
    return call(
        "neighbours_within",
        (i32(q + 1), i32(2), i32(capacity), jax.ShapeDtypeStruct((capacity,), dtype)),
        *(*sources.arrays, listed(source_rows)),
        *(*query_tree.arrays, listed(query_rows)),
        radius.words,
        box.words,
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(query_tree.plane_sizes),
        self=queries is None,
        sorted=nearest_first,
        padded=padded,
    )


def enough_within(sources: Tree, queries: Tree | None, radius: Exact, min_count: int, box: Exact) -> jax.Array:
    """Return whether ``min_count`` sources are within a radius of each z-ordered query: ``(q,)`` int32, 1 or 0.

    Queries from ``num`` on give 0. The cost of a query grows with ``min_count``, not with the number of sources within
    the radius.

    Args:
        sources: A hierarchy.
        queries: A hierarchy. None means the sources themselves.
        radius: One number.
        min_count: Number of sources.
        box: ``(d,)`` lengths, 0 if open.
    """
    query_tree = sources if queries is None else queries
    return call(
        "enough_within",
        i32(query_tree.posz.shape[0]),
        *sources.arrays,
        *query_tree.arrays,
        radius.words,
        box.words,
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(query_tree.plane_sizes),
        min_count=min_count,
        self=queries is None,
    )


def least_within(
    sources: Tree, value: jax.Array, queries: Tree, query_rows: jax.Array | None, radius: Exact, box: Exact
) -> jax.Array:
    """Return the smallest ``value`` of the sources within a radius of every query, ``(q,)`` int32.

    The result is 2**31 - 1 for a query without sources, and in query rows from ``num`` on.

    Args:
        sources: A hierarchy.
        value: ``(n,)`` int32 of the z-ordered sources.
        queries: See `count_within`.
        query_rows: See `count_within`.
        radius: One number.
        box: ``(d,)`` lengths, 0 if open.
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


class KernelTerm(NamedTuple):
    """The summand of `kernel_sums`.

    Attributes:
        shape: With ``profile``, defines the smoothing kernel; see native/sph/kernel_profile.h.
        profile: See ``shape``.
        form: ``"gather"``, ``"scatter"`` or ``"mean_h"``: whose smoothing length counts.
        inward: Number of derivatives by the query's position that are contracted with the values: the values have one
            index, from 0 to d - 1, for each.
        outward: Number of derivatives by the query's position that are returned: the sums have one index for each.
        by_h: Number of derivatives by the smoothing length. The total of ``inward``, ``outward`` and ``by_h`` is at
            most two.
        images: Whether to multiply the component with the last outward index i by the number of periods between the
            source and its image in dimension i.
        together: Whether the sources are the queries, row by row.
        value_powers: Multiply each value by 2**(value_powers * e), where e is the binary exponent of the smoothing
            length of its row, even if ``form`` does not use that length.
        sum_powers: The same for sums.
    """

    shape: int
    profile: tuple[float, ...]
    form: str
    inward: int
    outward: int
    by_h: int
    images: bool
    together: bool
    value_powers: int = 0
    sum_powers: int = 0


def kernel_sums(
    term: KernelTerm, value: jax.Array, sources: Tree, source_h: Exact, queries: Tree, query_h: Exact, box: Exact
) -> jax.Array:
    """Sum values times a smoothing kernel, or its derivatives, over the sources within a smoothing length.

    Sums are accumulated in float64, in an order that only the hierarchies determine. The caller provides derivatives.

    Args:
        term: The summand.
        value: ``(n, c d**inward)`` of the z-ordered sources, float32 or float64.
        sources: A hierarchy.
        source_h: Smoothing length, one for all, or one for each z-ordered row, positive.
        queries: A hierarchy.
        query_h: Like ``source_h``, for the queries.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        ``(q, c d**outward)`` for every z-ordered query, in the dtype of the values; 0 from ``num`` on.
    """
    dims = sources.posz.shape[1]
    columns = value.shape[1] // dims**term.inward * dims**term.outward
    return call(
        "kernel_sums",
        jax.ShapeDtypeStruct((queries.posz.shape[0], columns), value.dtype),
        *(*sources.arrays, value, source_h.words),
        *(*queries.arrays, query_h.words),
        exact(np.asarray(term.profile), (len(term.profile),)).words,
        box.words,
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(queries.plane_sizes),
        form=("gather", "scatter", "mean_h").index(term.form),
        shape=term.shape,
        inward=term.inward,
        outward=term.outward,
        by_h=term.by_h,
        images=term.images,
        self=term.together,
        value_powers=term.value_powers,
        sum_powers=term.sum_powers,
    )


def pairs_within(
    sources: Tree,
    source_ids: jax.Array | None,
    queries: Tree | None,
    query_rows: jax.Array | None,
    query_ids: jax.Array | None,
    radius: Exact,
    box: Exact,
    capacity: int,
    *,
    same: bool,
    half: bool,
    shifts: bool = True,
    vectors: bool = True,
    padded: bool = True,
) -> tuple[jax.Array, ...]:
    """Find the pairs of a query and an image of a source within a radius.

    Vectors and distances are computed in float64 and rounded. The caller provides derivatives.

    Args:
        sources: See `neighbours_within`.
        source_ids: ``(n,)`` int32, the number to report for each z-ordered source. None reports its z-ordered row.
        queries: See `neighbours_within`.
        query_rows: See `neighbours_within`.
        query_ids: ``(q,)`` int32, the number to report for each z-ordered query. None reports its output row.
        radius: See `neighbours_within`. It must be finite in a periodic box.
        box: ``(d,)`` lengths, 0 if open.
        capacity: Number of pairs that fit into the result.
        same: Whether query and source names are names of the same set. A particle is then not a partner of itself, but
            its images may be.
        half: Whether to keep only one of the two directions of each pair in such a set: the one whose query has the
            lower name. For equal names, it is the one whose query is shifted less than the source.
        shifts: Whether to return shifts.
        vectors: Whether to return vectors and distances.
        padded: Whether to fill entries after the last, or all entries if the lists do not fit ``capacity``, with -1,
            -1, 0, 0 and infinity; see `neighbours_within`.

    Returns:
        Splits and total, see `neighbours_within`, and for ``capacity`` pairs the query and the source, ``(capacity,)``
        int32 each; with ``shifts``, the shift of the source as a number of box lengths, ``(capacity, d)`` int32; with
        ``vectors``, the vector ``(capacity, d)`` and distance ``(capacity,)`` from the query to the image. Lists are in
        the order of the images, then of the sources.
    """
    query_tree = sources if queries is None else queries
    (q, d), dtype = query_tree.posz.shape, sources.posz.dtype
    rows = capacity if vectors else 0
    vector, distance = jax.ShapeDtypeStruct((rows, d), dtype), jax.ShapeDtypeStruct((rows,), dtype)
    *columns, shift, vector, distance = call(
        "pairs_within",
        (i32(q + 1), i32(2), i32(capacity), i32(capacity), i32(capacity if shifts else 0, d), vector, distance),
        *(*sources.arrays, listed(source_ids)),
        *(*query_tree.arrays, listed(query_rows)),
        radius.words,
        box.words,
        listed(query_ids),
        gradients="stopped",
        plane_sizes=sizes(sources.plane_sizes),
        query_plane_sizes=sizes(query_tree.plane_sizes),
        self=queries is None,
        same=same,
        half=half,
        shifts=shifts,
        vectors=vectors,
        padded=padded,
    )
    return (*columns, *(shift,) * shifts, *(vector, distance) * vectors)
