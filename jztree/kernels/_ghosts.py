"""Kernels for the ghosts of ranks: boxes that cover particles, leaves that reach other ranks, and rows to send."""

from typing import Any

import jax
import numpy as np

from ..jax_ext import Exact
from ._call import as_num, call, i32, listed


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
    rank: Any,
    box: Exact,
    capacity: int,
    higher_only: bool,
) -> tuple[jax.Array, jax.Array]:
    """Select the boxes to send to each other rank: those whose radius may reach particles of that rank.

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


def row_boxes(posz: jax.Array, num: Any, box: Exact, run_rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
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
    num: Any,
    blocks: tuple[jax.Array, jax.Array, jax.Array],
    requests: tuple[jax.Array, jax.Array, jax.Array, jax.Array],
    rank: Any,
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
    args = (posz, as_num(num), *blocks, *wanted, as_num(rank), box.words)
    return call("select_ghosts", (i32(capacity), i32(wanted[0].shape[0] - 1)), *args)


def group_edges(
    label: jax.Array, owner_label: jax.Array, received: jax.Array, rank: Any, capacity: int
) -> tuple[jax.Array, jax.Array]:
    """Find the links between groups of different ranks, each once.

    Args:
        label: ``(m,)`` int32, the first row of each row's group, over own rows and then ghosts of higher ranks.
        owner_label: ``(m,)`` int32, the first row of the row's group on the rank that owns the row.
        received: ``(r,)`` int32, the number of rows from each rank.
        rank: This rank.
        capacity: Number of links that fit into the result.

    Returns:
        ``(capacity, 4)`` int32, rank and row of both ends, and the number of links. This number is right even if
        ``capacity`` is too small.
    """
    return call("group_edges", (i32(capacity, 4), i32()), label, owner_label, received, as_num(rank))


def propose_hooks(edges: jax.Array, num: Any) -> tuple[jax.Array, jax.Array]:
    """Build a message for every edge ``(e, 4)`` with different ends: the receiver ``(e,)``, and the words ``(e, 3)``.

    The receiver is the rank of the larger end, or -1 if the ends agree. The message is the row of the larger end, and
    the rank and row of the smaller one.
    """
    return call("propose_hooks", (i32(edges.shape[0]), i32(edges.shape[0], 3)), edges, as_num(num))


Forest = tuple[jax.Array, jax.Array, jax.Array]


def begin_forest(
    label: jax.Array, order: jax.Array, sent: jax.Array, rank: Any, edges: jax.Array, num: Any, n: int
) -> Forest:
    """Create the forest of ``n`` own vertices, without hooks. Only vertices at an end of some rank's edge have parents.

    Args:
        label: ``(m,)`` int32, the first row of each row's local group, own rows before all others.
        order: The rows that other ranks have as ghosts, from `select_ghosts`.
        sent: Their number for each rank.
        rank: This rank.
        edges: ``(e, 4)`` int32, see `group_edges`.
        num: Number of edges.
        n: Number of vertices.
    """
    return call("begin_forest", (i32(n, 2), i32(n), i32()), label, order, sent, as_num(rank), edges, as_num(num))


def take_hooks(messages: jax.Array, counts: jax.Array, rank: Any, forest: Forest) -> Forest:
    """Update each parent in ``forest`` to the smallest of its current value and the proposals in messages.

    Args:
        messages: ``(r, chunk, 3)`` uint32, from `propose_hooks`.
        counts: ``(r,)`` int32, the number of messages from each rank.
        rank: This rank.
        forest: ``parent`` ``(n, 2)`` int32, rank and row of each vertex's parent, which is initially the vertex itself;
            ``hooked`` ``(n,)`` int32, the rows of hooked vertices (those with another parent), and their number. See
            `begin_forest`.
    """
    return call("take_hooks", tuple(map(Continued, forest)), messages, counts, as_num(rank))


def ask_parents(forest: Forest, edges: jax.Array, num: Any) -> tuple[jax.Array, jax.Array, jax.Array]:
    """List the vertices whose parents to request: ranks and rows, ``(n + 2 e,)`` int32, and their number.

    First come the ends of the edges, then the parents of the hooked vertices.
    """
    most = i32(forest[0].shape[0] + 2 * edges.shape[0])
    return call("ask_parents", (most, most, i32()), *forest, edges, as_num(num))


def move_up(answers: jax.Array, num: Any, forest: Forest, edges: jax.Array) -> tuple[Forest, jax.Array, jax.Array]:
    """Move the forest and ``edges`` to the answers, ``(n + 2 e, 2)``, to `ask_parents`.

    Also returns ``(2,)`` int32: whether anything moved, and whether any edge still has different ends.
    """
    parent, hooked, number = forest
    out = Continued(parent), Continued(edges), i32(2)
    parent, edges, state = call("move_up", out, answers, hooked, number, as_num(num))
    return (parent, hooked, number), edges, state


def own_labels(label: jax.Array, forest: Forest, num: Any, rank: Any) -> tuple[jax.Array, jax.Array]:
    """Return the rank and the row of the first particle of each row's group over all ranks, ``(n,)`` int32 each.

    Each row from ``num`` on is a separate group.

    Args:
        label: ``(m,)`` int32, the first row of each row's local group, own rows before all others.
        forest: The final forest, with all vertices moved up; see `take_hooks`.
        num: int32 scalar.
        rank: This rank.
    """
    return _own_labels(label, forest, num, rank, jnp.zeros(0, jnp.int32))


def own_joined_labels(label: jax.Array, forest: Forest, num: Any, rank: Any, starts: jax.Array) -> jax.Array:
    """Return the labels of `own_labels` as one number, ``(n,)`` int32, a row of the joined particles of every rank.

    In that set, each rank's rows begin at ``starts`` ``(r,)`` int32.
    """
    return _own_labels(label, forest, num, rank, starts)[1]


def _own_labels(
    label: jax.Array, forest: Forest, num: Any, rank: Any, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    n = forest[0].shape[0]
    out = i32(0 if starts.shape[0] > 0 else n), i32(n)
    return call("own_labels", out, label, *forest, as_num(num), as_num(rank), starts)
