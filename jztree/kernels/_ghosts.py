"""Kernels that work on what several ranks share: ghosts, and the links between groups of different ranks."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact
from ._call import Continued, as_num, call, i32, listed


def open_leaves(
    leaves: tuple[jax.Array, jax.Array, jax.Array],
    own: tuple[jax.Array, jax.Array, jax.Array],
    radius: jax.Array,
    rows: jax.Array | None,
    sources: tuple[jax.Array, jax.Array, jax.Array],
    close: tuple[jax.Array, jax.Array, jax.Array] | None,
    rank: Any,
    box: Exact,
    enough: int | None,
) -> tuple[jax.Array, jax.Array]:
    """Which leaves of queries may have neighbours on other ranks, int32, and how far each of the rank's boxes has to
    look.

    leaves, own: ``(particle_splits, lower, upper)`` of the queries' leaves, and of the boxes that the rank publishes.
    radius: ``(q, k)``, whose last column is how far each query has to look; rows: where in it each z-ordered query is,
    None: at its place.
    sources: ``(lower, upper, count)`` of the boxes of sources that the ranks published, ``(r, b, d)`` and ``(r, b)``.
    close: the same of a few ranks that are known better, for ``enough`` alone; None if none is.
    enough: a query looks no farther than where there are surely so many sources; None: it looks as far as it has to.

    The radius of a box, in the dtype of the positions, is -1 if none of its queries needs another rank.
    """
    close = close or (sources[0][:1], sources[1][:1], sources[2][:1])
    out = i32(leaves[1].shape[0]), jax.ShapeDtypeStruct((own[1].shape[0],), own[1].dtype)
    args = (*leaves, *own, radius, listed(rows), *sources, *close, as_num(rank), box.words)
    return call("open_leaves", out, *args, gradients="stopped", enough=np.int64(enough or 2**62))


def select_boxes(
    own: tuple[jax.Array, jax.Array, jax.Array],
    known: tuple[jax.Array, jax.Array, jax.Array],
    rank: Any,
    box: Exact,
    room: int,
    higher_only: bool,
) -> tuple[jax.Array, jax.Array]:
    """Which of the rank's boxes each other rank must know, because it may have what they want: ``(room,)`` int32
    grouped by rank, and how many for each, ``(r,)``.

    own: ``(lower, upper, radius)`` of the rank's boxes, ``(b, d)`` and ``(b,)``: they want what is within the radius;
    negative: nothing. known: ``(lower, upper, count)`` of the boxes of particles that the ranks published, ``(r, b,
    d)`` and ``(r, b)``. higher_only: no lower rank has to know.

    Counts are right even if ``room`` is too small.
    """
    args = (*own, *known, as_num(rank), box.words)
    return call("select_boxes", (i32(room), i32(known[2].shape[0])), *args, higher_only=higher_only)


def row_boxes(posz: jax.Array, num: Any, box: Exact, run_rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """``(particle_splits, lower, upper)`` of runs of so many rows of ``posz`` ``(n, d)``, as of leaves: ``(s + 1,)``
    int32 and ``(s, d)``.
    """
    n, dims = posz.shape
    runs = max(1, -(-n // run_rows))
    corners = jax.ShapeDtypeStruct((runs, dims), posz.dtype)
    out = i32(runs + 1), corners, corners
    return call("row_boxes", out, posz, as_num(num), box.words, gradients="stopped", run_rows=np.int64(run_rows))


def select_ghosts(
    posz: jax.Array,
    num: Any,
    blocks: tuple[jax.Array, jax.Array, jax.Array],
    wanted: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    rank: Any,
    box: Exact,
    room: int,
) -> tuple[jax.Array, jax.Array]:
    """The rows that each rank is to have: ``(room,)`` int32 grouped by rank, and how many for each, ``(r,)``.

    posz: ``(n, d)``. blocks: ``(particle_splits, lower, upper)`` of runs of rows that are near each other, with their
        boxes: leaves, or what `row_boxes` gives. wanted: ``(splits, lower, upper, radius)`` of the boxes that came
        from other ranks, ``(r + 1,)`` int32, ``(m, d)`` and ``(m,)``: a rank wants what is within the radius of one of
        its boxes (negative: nothing). The rank itself has all its rows.

    Counts are right even if ``room`` is too small for the rows. What is behind the last row is of no meaning.
    """
    args = (posz, as_num(num), *blocks, *wanted, as_num(rank), box.words)
    return call("select_ghosts", (i32(room), i32(wanted[0].shape[0] - 1)), *args)


def group_edges(
    label: jax.Array, owner_label: jax.Array, received: jax.Array, rank: Any, room: int
) -> tuple[jax.Array, jax.Array]:
    """Links between groups of different ranks, each once: ``(room, 4)`` int32, rank and row of both ends, and how many.

    label: ``(m,)`` int32, the first row of each row's group, over own rows and then ghosts of higher ranks.
        owner_label: ``(m,)`` int32, the first row of the row's group on the rank that owns it. received: ``(r,)``
        int32, how many of the rows are of each rank.

    The number is right even if ``room`` is too small.
    """
    return call("group_edges", (i32(room, 4), i32()), label, owner_label, received, as_num(rank))


def propose_hooks(edges: jax.Array, num: Any) -> tuple[jax.Array, jax.Array]:
    """For every edge ``(e, 4)`` whose ends differ, the rank of the larger end ``(e,)``, and what to tell it, ``(e,
    3)``.

    The message is the row of the larger end, and the rank and row of the smaller one. The rank is -1 where ends agree.
    """
    return call("propose_hooks", (i32(edges.shape[0]), i32(edges.shape[0], 3)), edges, as_num(num))


Forest = tuple[jax.Array, jax.Array, jax.Array]


def begin_forest(
    label: jax.Array, order: jax.Array, sent: jax.Array, rank: Any, edges: jax.Array, num: Any, n: int
) -> Forest:
    """The forest of ``n`` own vertices, none of which is hooked. Only those that edges of any rank end at have parents.

    label: ``(m,)`` int32, the first row of each row's local group, own rows before all others. order, sent: the rows
        that other ranks have as ghosts, as `select_ghosts` gives them. edges: ``(e, 4)`` int32, of which ``num``
        count; see `group_edges`.
    """
    return call("begin_forest", (i32(n, 2), i32(n), i32()), label, order, sent, as_num(rank), edges, as_num(num))


def take_hooks(messages: jax.Array, counts: jax.Array, rank: Any, forest: Forest) -> Forest:
    """The ``forest`` with the smallest of its own parents and what messages propose.

    forest: ``parent`` ``(n, 2)`` int32, rank and row of the parents of vertices, at first themselves; ``hooked``
        ``(n,)`` int32, the rows of vertices that have another one, and how many these are. See `begin_forest`.
    messages: ``(r, chunk, 3)`` uint32, as `propose_hooks` makes them; ``counts`` ``(r,)`` int32 of each rank's count.
    """
    return call("take_hooks", tuple(map(Continued, forest)), messages, counts, as_num(rank))


def ask_parents(forest: Forest, edges: jax.Array, num: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Whose parents to ask for: ranks and rows, ``(n + 2 e,)`` int32, and how many.

    First the ends of the edges, then the parents of the hooked vertices.
    """
    most = i32(forest[0].shape[0] + 2 * edges.shape[0])
    return call("ask_parents", (most, most, i32()), *forest, edges, as_num(num))


def move_up(answers: jax.Array, num: Any, forest: Forest, edges: jax.Array) -> tuple[Forest, jax.Array, jax.Array]:
    """The forest and ``edges`` moved to the answers, ``(n + 2 e, 2)``, to `ask_parents`; and ``(2,)`` int32 whether any
    moved and whether there are edges whose ends differ.
    """
    parent, hooked, number = forest
    out = Continued(parent), Continued(edges), i32(2)
    parent, edges, state = call("move_up", out, answers, hooked, number, as_num(num))
    return (parent, hooked, number), edges, state


def own_labels(label: jax.Array, forest: Forest, num: Any, rank: Any) -> tuple[jax.Array, jax.Array]:
    """The rank and the row that a row's group begins with over all ranks, ``(n,)`` int32 each.

    label: ``(m,)`` int32, the first row of each row's local group, own rows before all others. forest: when all have
        moved up; see `take_hooks`. Rows from ``num`` on are groups of their own.
    """
    return _own_labels(label, forest, num, rank, jnp.zeros(0, jnp.int32))


def own_joined_labels(label: jax.Array, forest: Forest, num: Any, rank: Any, starts: jax.Array) -> jax.Array:
    """The same as one number, ``(n,)`` int32: a row of the joined set, in which each rank's rows begin at ``starts``
    ``(r,)`` int32.
    """
    return _own_labels(label, forest, num, rank, starts)[1]


def _own_labels(
    label: jax.Array, forest: Forest, num: Any, rank: Any, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    n = forest[0].shape[0]
    out = i32(0 if starts.shape[0] > 0 else n), i32(n)
    return call("own_labels", out, label, *forest, as_num(num), as_num(rank), starts)
