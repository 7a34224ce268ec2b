"""Kernels for the ghosts of ranks: boxes that cover particles, leaves that reach other ranks, and rows to send."""

import jax
import numpy as np

from ..jax_ext import Exact
from ._call import as_num, call, i32, listed

__all__ = ["open_leaves", "row_boxes", "select_boxes", "select_ghosts"]


def open_leaves(
    leaves: tuple[jax.Array, jax.Array, jax.Array],
    own: tuple[jax.Array, jax.Array, jax.Array],
    radius: jax.Array,
    rows: jax.Array | None,
    sources: tuple[jax.Array, jax.Array, jax.Array],
    close: tuple[jax.Array, jax.Array, jax.Array] | None,
    rank: int | jax.Array,
    box: Exact,
    enough: int | None,
) -> tuple[jax.Array, jax.Array]:
    """Find the open leaves: query leaves that may have neighbours on other ranks. Also find the radius of each own box.

    Args:
        leaves: ``(particle_splits, lower, upper)`` of the queries' leaves.
        own: ``(particle_splits, lower, upper)`` of the boxes that the rank publishes.
        radius: ``(q, k)``; the last column is the search radius of each query.
        rows: The row of each z-ordered query in ``radius``, or None if ``radius`` is in z-order.
        sources: ``(lower, upper, count)`` of the boxes of sources that the ranks published, ``(r, b, d)`` and
            ``(r, b)``.
        close: More detailed boxes of a few ranks, in the same form. They are used only for ``enough``. None means no
            such boxes.
        rank: This rank.
        box: ``(d,)`` lengths, 0 if open.
        enough: Limit each query to a radius that certainly contains this many sources. None means no such limit.

    Returns:
        The open leaves, int32, and the search radius of each box of ``own``, in the dtype of the positions. The radius
        is -1 if no query of the box needs another rank.
    """
    close = close or (sources[0][:1], sources[1][:1], sources[2][:1])
    out = i32(leaves[1].shape[0]), jax.ShapeDtypeStruct((own[1].shape[0],), own[1].dtype)
    args = (*leaves, *own, radius, listed(rows), *sources, *close, as_num(rank), box.words)
    return call("open_leaves", out, *args, gradients="stopped", enough=np.int64(enough or 2**62))


def select_boxes(
    own: tuple[jax.Array, jax.Array, jax.Array],
    known: tuple[jax.Array, jax.Array, jax.Array],
    rank: int | jax.Array,
    box: Exact,
    capacity: int,
    higher_only: bool,
) -> tuple[jax.Array, jax.Array]:
    """Select the boxes to send to each other rank: the boxes whose radius may reach particles of that rank.

    Args:
        own: ``(lower, upper, radius)`` of the rank's boxes, ``(b, d)`` and ``(b,)``. A box needs the particles within
            its radius; if the radius is negative, it needs none.
        known: ``(lower, upper, count)`` of the boxes of particles that the ranks published, ``(r, b, d)`` and
            ``(r, b)``.
        rank: This rank.
        box: ``(d,)`` lengths, 0 if open.
        capacity: Number of boxes that fit into the result.
        higher_only: Whether to send nothing to lower ranks.

    Returns:
        Boxes ``(capacity,)`` int32 grouped by rank, and the number for each rank, ``(r,)``. The numbers are right even
        if ``capacity`` is too small.
    """
    args = (*own, *known, as_num(rank), box.words)
    return call("select_boxes", (i32(capacity), i32(known[2].shape[0])), *args, higher_only=higher_only)


def row_boxes(
    posz: jax.Array, num: int | jax.Array, box: Exact, run_rows: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the bounding boxes of runs of ``run_rows`` rows of ``posz`` ``(n, d)``, in the form of leaves.

    The result is ``(particle_splits, lower, upper)``, ``(s + 1,)`` int32 and ``(s, d)``.
    """
    n, dims = posz.shape
    runs = max(1, -(-n // run_rows))
    corners = jax.ShapeDtypeStruct((runs, dims), posz.dtype)
    out = i32(runs + 1), corners, corners
    return call("row_boxes", out, posz, as_num(num), box.words, gradients="stopped", run_rows=np.int64(run_rows))


def select_ghosts(
    posz: jax.Array,
    num: int | jax.Array,
    blocks: tuple[jax.Array, jax.Array, jax.Array],
    requests: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    rank: int | jax.Array,
    box: Exact,
    capacity: int,
) -> tuple[jax.Array, jax.Array]:
    """Find the rows to send to each rank.

    A rank needs the particles within the radius of any of its boxes. The rank sends no rows to itself.

    Args:
        posz: ``(n, d)``.
        num: int32 scalar.
        blocks: ``(particle_splits, lower, upper)`` of runs of neighbouring rows with their boxes: leaves, or the
            results of `row_boxes`.
        requests: ``(splits, lower, upper, radius)`` of the boxes received from other ranks, ``(r + 1,)`` int32,
            ``(m, d)`` and ``(m,)``. A negative radius means that the box needs no particles.
        rank: This rank.
        box: ``(d,)`` lengths, 0 if open.
        capacity: Number of rows that fit into the result.

    Returns:
        Rows ``(capacity,)`` int32 grouped by rank, and the number for each rank, ``(r,)``. The numbers are right even
        if ``capacity`` is too small. Entries after the last row are undefined.
    """
    args = (posz, as_num(num), *blocks, *requests, as_num(rank), box.words)
    return call("select_ghosts", (i32(capacity), i32(requests[0].shape[0] - 1)), *args)
