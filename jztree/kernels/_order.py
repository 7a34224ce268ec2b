"""Kernels for the z-order and its plane hierarchy."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..jax_ext import Exact
from ._call import as_num, call, i32, sizes
from ._rows import as_gathered

__all__ = [
    "bounds",
    "choose_parts",
    "count_parts",
    "covering_boxes",
    "hierarchy",
    "is_sorted",
    "key_positions",
    "node_masses",
    "search",
    "splitter_words",
    "zsort",
]


def bounds(pos: jax.Array, num: int | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the bounding box of the finite rows, ``lower`` and ``upper``, each ``(d,)``, and the rows out of range.

    The last two outputs are int32 scalars: the first row of ``pos`` ``(n, d)`` that is out of range, or -1, and the
    number of such rows. A position is out of range if it is not finite or too far from the origin. The box is for
    Morton keys; derivatives treat it as a constant.
    """
    box = jax.ShapeDtypeStruct((pos.shape[1],), pos.dtype)
    return call("bounds", (box, box, i32(), i32()), pos, as_num(num), gradients="stopped")


def zsort(
    pos: jax.Array, num: int | jax.Array, lower: jax.Array, upper: jax.Array, box: Exact, in_order: Any = 0
) -> tuple[jax.Array, jax.Array]:
    """Sort rows stably by Morton key: return the row order, ``(n,)`` int32, and ``pos`` in that order.

    Rows that are not finite come after all others, and rows from ``num`` on come last; both keep their order. The
    derivative of the positions is that of the permutation.

    Args:
        pos: ``(n, d)``.
        num: int32 scalar.
        lower: ``(d,)``, lower corner of the domain of the keys in open dimensions.
        upper: ``(d,)``, upper corner.
        box: ``(d,)`` lengths, 0 if open.
        in_order: int32 scalar, nonzero if the caller knows that the rows are already in this order.
    """
    out = i32(pos.shape[0]), jax.ShapeDtypeStruct(pos.shape, pos.dtype)
    order, posz = call("zsort", out, pos, as_num(num), lower, upper, box.words, as_num(in_order), gradients="stopped")
    return order, as_gathered(posz, pos, order)


def is_sorted(pos: jax.Array, num: int | jax.Array, lower: jax.Array, upper: jax.Array, box: Exact) -> jax.Array:
    """Return an int32 scalar that is nonzero if `zsort` with the same arguments would keep all rows in place."""
    return call("is_sorted", i32(), pos, as_num(num), lower, upper, box.words, gradients="stopped")


def search(
    posz: jax.Array, num: int | jax.Array, query: jax.Array, lower: jax.Array, upper: jax.Array, box: Exact, right: bool
) -> jax.Array:
    """Find the position of queries in the z-order of ``posz``, ``(q,)`` int32.

    Args:
        posz: ``(n, d)``, sorted by `zsort` with the same ``lower``, ``upper`` and ``box``.
        num: int32 scalar.
        query: ``(q, d)``.
        lower: See `zsort`.
        upper: See `zsort`.
        box: See `zsort`.
        right: Whether to return the first row whose key is above the query's, and not the first whose key is not below
            it.
    """
    return call("search", i32(query.shape[0]), posz, as_num(num), query, lower, upper, box.words, right=right)


def hierarchy(
    posz: jax.Array,
    num: int | jax.Array,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    plane_sizes: Sequence[int],
    leaf_size: int,
    fan_out: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Build the plane hierarchy by the window rule.

    For derivatives see `jztree.tree`.

    Args:
        posz: ``(n, d)``, sorted by `zsort` with the same ``lower``, ``upper`` and ``box``.
        num: int32 scalar.
        lower: See `zsort`.
        upper: See `zsort`.
        box: See `zsort`.
        plane_sizes: Number of nodes of each plane.
        leaf_size: See `jztree.config.TreeConfig`.
        fan_out: See `jztree.config.TreeConfig`.

    Returns:
        ``splits`` and ``particle_splits``, ``(s,)`` int32, and the boxes' ``lower`` and ``upper``, ``(m, d)``; planes
        one after the other. The last output, an int32 scalar, is nonzero if the rows are not in z-order.
    """
    nodes, dims = sum(plane_sizes), posz.shape[1]
    boxes = jax.ShapeDtypeStruct((nodes, dims), posz.dtype)
    splits = i32(nodes + len(plane_sizes))
    return call(
        "hierarchy",
        (splits, splits, boxes, boxes, i32()),
        *(posz, as_num(num), lower, upper, box.words),
        gradients="stopped",
        plane_sizes=sizes(plane_sizes),
        leaf_size=np.int64(leaf_size),
        fan_out=np.int64(fan_out),
    )


def node_masses(
    posz: jax.Array, mass: jax.Array, splits: jax.Array, box: Exact, plane_sizes: Sequence[int]
) -> tuple[jax.Array, jax.Array]:
    """Compute the mass ``(m,)`` and centre of mass ``(m, d)`` of every node, summed in float64.

    For derivatives see `jztree.tree`.

    Args:
        posz: ``(n, d)``.
        mass: ``(n,)``, or ``(1,)`` if all particles share it; dtype of ``posz``.
        splits: ``(s,)`` int32, from `hierarchy`.
        box: ``(d,)`` lengths, 0 if open.
        plane_sizes: Number of nodes of each plane.
    """
    nodes = sum(plane_sizes)
    out = jax.ShapeDtypeStruct((nodes,), posz.dtype), jax.ShapeDtypeStruct((nodes, posz.shape[1]), posz.dtype)
    args = (posz, mass, splits, box.words)
    return call("node_masses", out, *args, gradients="stopped", plane_sizes=sizes(plane_sizes))


def covering_boxes(
    posz: jax.Array,
    num: int | jax.Array,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    leaves: tuple[jax.Array, jax.Array, jax.Array],
    max_boxes: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Cover particles in z-order closely with at most ``max_boxes`` boxes: ``(particle_splits, lower, upper)``.

    Each box holds consecutive rows. The result has ``(most + 1,)`` splits; unused boxes are empty and inverted.

    Args:
        posz: See `hierarchy`.
        num: int32 scalar.
        lower: See `zsort`.
        upper: See `zsort`.
        box: See `zsort`.
        leaves: ``(particle_splits, lower, upper)`` of runs of the rows, such as the results of `row_boxes`.
        max_boxes: Largest number of boxes.
    """
    boxes = jax.ShapeDtypeStruct((max_boxes, posz.shape[1]), posz.dtype)
    args = (posz, as_num(num), lower, upper, box.words, *leaves)
    return call("covering_boxes", (i32(max_boxes + 1), boxes, boxes), *args, gradients="stopped")


def splitter_words(dims: int) -> int:
    """Return the number of uint32 words of a z-order position: 4 for its Morton key, and the others for its coordinate
    bits.
    """
    return 4 + 2 * -(-64 // (64 // dims))


def count_parts(
    posz: jax.Array,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    splitters: jax.Array,
    rows: jax.Array,
    groups: jax.Array,
    step: jax.Array,
    capacity: int,
) -> jax.Array:
    """Count the rows of a cell up to the end of each of its parts, ``(capacity,)`` int32.

    Args:
        posz: ``(n, d)``, in z-order.
        lower: See `zsort`.
        upper: See `zsort`.
        box: See `zsort`.
        splitters: ``(s, w)`` uint32, w from `splitter_words`, z-order positions, highest word first. Only the highest
            bits are known; the others are 0. Splitters with the same bits are in one cell.
        rows: ``(s, 2)`` int32, the first row in the cell, and the number of its rows.
        groups: ``(s,)`` int32; they start at 1 and rise by 1 with every cell to be counted. Counts of a group's parts
            are at ``(group - 1) * 2**bits``.
        step: ``(3,)`` int32, the next bits: the number of the 64-bit word, the number of lower bits in that word, and
            the number of next bits.
        capacity: Number of parts.
    """
    arguments = posz, lower, upper, box.words, splitters, rows, groups, step
    return call("count_parts", i32(capacity), *arguments)


def choose_parts(
    sums: jax.Array,
    own: jax.Array,
    splitters: jax.Array,
    left: jax.Array,
    rows: jax.Array,
    groups: jax.Array,
    step: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Determine the next bits of splitters: return the new ``splitters``, ``left`` and ``rows``.

    For the first step, pass a negative ``left``: the kernel then places splitter i at the start of the share of rank i
    + 1. All ranks get the same number of rows, except that the first ones get one more.

    Args:
        sums: ``(capacity, 2)`` int32, the sums of ``own`` over types and ranks, as ``high * 2**16 + low``.
        own: ``(t, capacity)`` int32, the results of `count_parts` for each type of rows.
        splitters: See `count_parts`.
        left: ``(s, 2)`` int32, the number of rows of the cell that come before the splitter, as high and low. A
            splitter with nothing left does not change.
        rows: ``(t, s, 2)`` int32, the rows of each type; see `count_parts`.
        groups: See `count_parts`.
        step: See `count_parts`.
    """
    out = [jax.ShapeDtypeStruct(old.shape, old.dtype) for old in (splitters, left, rows)]
    return call("choose_parts", tuple(out), sums, own, splitters, left, rows, groups, step)


def key_positions(
    posz: jax.Array, num: int | jax.Array, lower: jax.Array, upper: jax.Array, box: Exact, splitters: jax.Array
) -> jax.Array:
    """Count the rows before each splitter, ``(s,)`` int32. The splitters have the form of `count_parts` with all bits
    known.
    """
    return call("key_positions", i32(splitters.shape[0]), posz, as_num(num), lower, upper, box.words, splitters)
