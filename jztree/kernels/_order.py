"""Kernels of the z-order and of the plane hierarchy over it."""

from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from ..jax_ext import Exact
from ._call import as_num, call, i32, sizes
from ._rows import as_gathered


def bounds(pos: jax.Array, num: Any) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Bounding box of the finite rows, ``lower`` and ``upper``, each ``(d,)``, and which rows are out of range.

    pos: ``(n, d)``. The last two outputs are int32 scalars: the first row that is out of range (not finite, or too
    far), or -1, and the number of such rows. The box is for Morton keys, and derivatives take it for a constant.
    """
    box = jax.ShapeDtypeStruct((pos.shape[1],), pos.dtype)
    return call("bounds", (box, box, i32(), i32()), pos, as_num(num), gradients="stopped")


def zsort(
    pos: jax.Array, num: Any, lower: jax.Array, upper: jax.Array, box: Exact, in_order: Any = 0
) -> tuple[jax.Array, jax.Array]:
    """The rows of ``pos`` in z-order, ``(n,)`` int32, and ``pos`` in that order: a stable sort by Morton key.

    pos: ``(n, d)``. lower, upper: ``(d,)``, the domain of the keys where the box is open. box: ``(d,)`` lengths, 0
    where open. Rows that are not finite come after all others, and rows from ``num`` on last, both in their order.
    in_order: int32 scalar, not 0 where it is known that the rows are in this order already.
    Positions have the derivative of moving them.
    """
    out = i32(pos.shape[0]), jax.ShapeDtypeStruct(pos.shape, pos.dtype)
    order, posz = call("zsort", out, pos, as_num(num), lower, upper, box.words, as_num(in_order), gradients="stopped")
    return order, as_gathered(posz, pos, order)


def is_sorted(pos: jax.Array, num: Any, lower: jax.Array, upper: jax.Array, box: Exact) -> jax.Array:
    """Whether `zsort` would leave all rows where they are, int32 scalar: not 0 if so. pos and so on: as there."""
    return call("is_sorted", i32(), pos, as_num(num), lower, upper, box.words, gradients="stopped")


def search(
    posz: jax.Array, num: Any, query: jax.Array, lower: jax.Array, upper: jax.Array, box: Exact, right: bool
) -> jax.Array:
    """Where queries belong in the z-order of ``posz``, ``(q,)`` int32.

    posz: ``(n, d)``, sorted by `zsort` with the same ``lower``, ``upper`` and ``box``. query: ``(q, d)``. Returns the
    first row whose key is not below the query's; with ``right``, the first whose key is above it.
    """
    return call("search", i32(query.shape[0]), posz, as_num(num), query, lower, upper, box.words, right=right)


def hierarchy(
    posz: jax.Array,
    num: Any,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    plane_sizes: Sequence[int],
    leaf_size: int,
    fan_out: int,
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """The plane hierarchy by the window rule.

    posz: ``(n, d)``, sorted by `zsort` with the same ``lower``, ``upper`` and ``box``. Returns ``splits`` and
    ``particle_splits``, ``(s,)`` int32, and the boxes' ``lower`` and ``upper``, ``(m, d)``; planes one after the other.
    The last output, an int32 scalar, is not 0 if the rows are not in z-order. Derivatives:
    see `jztree.tree`.
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
    """Mass ``(m,)`` and centre of mass ``(m, d)`` of every node, summed in float64.

    posz: ``(n, d)``. mass: ``(n,)``, or ``(1,)`` if all particles share it; dtype of ``posz``. Derivatives:
    see `jztree.tree`.
    """
    nodes = sum(plane_sizes)
    out = jax.ShapeDtypeStruct((nodes,), posz.dtype), jax.ShapeDtypeStruct((nodes, posz.shape[1]), posz.dtype)
    args = (posz, mass, splits, box.words)
    return call("node_masses", out, *args, gradients="stopped", plane_sizes=sizes(plane_sizes))


def covering_boxes(
    posz: jax.Array,
    num: Any,
    lower: jax.Array,
    upper: jax.Array,
    box: Exact,
    leaves: tuple[jax.Array, jax.Array, jax.Array],
    most: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """At most ``most`` boxes that cover particles in z-order closely: ``(particle_splits, lower, upper)``.

    posz, num, lower, upper, box: as in `hierarchy`. leaves: ``(particle_splits, lower, upper)`` of runs of the rows,
        such as `row_boxes` gives.
    The boxes hold consecutive rows; there are ``(most + 1,)`` splits, and boxes that are not needed are empty and
    inverted.
    """
    boxes = jax.ShapeDtypeStruct((most, posz.shape[1]), posz.dtype)
    args = (posz, as_num(num), lower, upper, box.words, *leaves)
    return call("covering_boxes", (i32(most + 1), boxes, boxes), *args, gradients="stopped")


def splitter_words(dims: int) -> int:
    """How many uint32 a place in the z-order has: 4 of its Morton key, and those of the bits of its coordinates."""
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
    room: int,
) -> jax.Array:
    """How many rows of a cell there are up to the end of each of its parts, ``(room,)`` int32.

    posz: ``(n, d)``, in z-order. splitters: ``(s, w)`` uint32, w from `splitter_words`, places in the z-order, highest
        word first, of which the highest bits are known, and the others 0; those with the same bits are in one cell.
    rows: ``(s, 2)`` int32, the first row in the cell, and how many rows are in it. groups: ``(s,)`` int32, which rise
        by 1 with every cell that is of interest, from 1 on. Counts of a group's parts are at ``(group - 1) * 2**bits``.
    step: ``(3,)`` int32, which bits are next: the number of the word of 64 bits, what comes below them in it, and how
        many they are.
    """
    given = posz, lower, upper, box.words, splitters, rows, groups, step
    return call("count_parts", i32(room), *given)


def choose_parts(
    sums: jax.Array,
    own: jax.Array,
    splitters: jax.Array,
    left: jax.Array,
    rows: jax.Array,
    groups: jax.Array,
    step: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """The next bits of splitters: the new ``splitters``, ``left`` and ``rows``.

    own: ``(t, room)`` int32, what `count_parts` returned for each type of rows. sums: ``(room, 2)`` int32, their sums
        over types and ranks, as ``high * 2**16 + low``. rows: ``(t, s, 2)`` int32, those of each type.
    left: ``(s, 2)`` int32, how many rows of the cell come before the splitter, as high and low. Splitters with nothing
        left stay as they are. Less than nothing is left before the first step, which finds out how many rows there are:
        splitter i is then to be where the share of rank i + 1 begins if all ranks get the same number of rows, the
        first ones one more.
    """
    out = [jax.ShapeDtypeStruct(old.shape, old.dtype) for old in (splitters, left, rows)]
    return call("choose_parts", tuple(out), sums, own, splitters, left, rows, groups, step)


def key_positions(
    posz: jax.Array, num: Any, lower: jax.Array, upper: jax.Array, box: Exact, splitters: jax.Array
) -> jax.Array:
    """How many rows are before each splitter, ``(s,)`` int32. posz, splitters: as in `count_parts`, all bits known."""
    return call("key_positions", i32(splitters.shape[0]), posz, as_num(num), lower, upper, box.words, splitters)
