"""Kernels for the graph of groups over ranks: its edges, hooks and pointer jumps, and the labels of its solution."""

import jax
import jax.numpy as jnp

from ._call import Continued, as_num, call, i32

__all__ = [
    "Forest",
    "ask_parents",
    "begin_forest",
    "group_edges",
    "move_up",
    "own_joined_labels",
    "own_labels",
    "propose_hooks",
    "take_hooks",
]


def group_edges(
    label: jax.Array, owner_label: jax.Array, received: jax.Array, rank: jax.Array, capacity: int
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


def propose_hooks(edges: jax.Array, num: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Build a message for every edge ``(e, 4)`` with different ends: the receiver ``(e,)``, and the words ``(e, 3)``.

    The receiver is the rank of the larger end, or -1 if the ends agree. The message is the row of the larger end, and
    the rank and row of the smaller one.
    """
    return call("propose_hooks", (i32(edges.shape[0]), i32(edges.shape[0], 3)), edges, as_num(num))


Forest = tuple[jax.Array, jax.Array, jax.Array]


def begin_forest(
    label: jax.Array, order: jax.Array, sent: jax.Array, rank: jax.Array, edges: jax.Array, num: int | jax.Array, n: int
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


def take_hooks(messages: jax.Array, counts: jax.Array, rank: jax.Array, forest: Forest) -> Forest:
    """Update each parent in ``forest`` to the smallest of its current value and the proposals in messages.

    Args:
        messages: ``(r, chunk, 3)`` uint32, from `propose_hooks`.
        counts: ``(r,)`` int32, the number of messages from each rank.
        rank: This rank.
        forest: ``parent`` ``(n, 2)`` int32, rank and row of each vertex's parent, which is initially the vertex itself;
            ``hooked`` ``(n,)`` int32, the rows of hooked vertices, which have another parent, and their number. See
            `begin_forest`.
    """
    return call("take_hooks", tuple(map(Continued, forest)), messages, counts, as_num(rank))


def ask_parents(forest: Forest, edges: jax.Array, num: int | jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """List the vertices whose parents to request: ranks and rows, ``(n + 2 e,)`` int32, and their number.

    First come the ends of the edges, then the parents of the hooked vertices.
    """
    max_requests = i32(forest[0].shape[0] + 2 * edges.shape[0])
    return call("ask_parents", (max_requests, max_requests, i32()), *forest, edges, as_num(num))


def move_up(
    answers: jax.Array, num: int | jax.Array, forest: Forest, edges: jax.Array
) -> tuple[Forest, jax.Array, jax.Array]:
    """Move the forest and ``edges`` to the answers, ``(n + 2 e, 2)``, to `ask_parents`.

    Also returns ``(2,)`` int32: whether anything moved, and whether any edge still has different ends.
    """
    parent, hooked, number = forest
    out = Continued(parent), Continued(edges), i32(2)
    parent, edges, state = call("move_up", out, answers, hooked, number, as_num(num))
    return (parent, hooked, number), edges, state


def own_labels(label: jax.Array, forest: Forest, num: int | jax.Array, rank: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rank and the row of the first particle of each row's group over all ranks, ``(n,)`` int32 each.

    Each row from ``num`` on is a separate group.

    Args:
        label: ``(m,)`` int32, the first row of each row's local group, own rows before all others.
        forest: The final forest, with all vertices moved up; see `take_hooks`.
        num: int32 scalar.
        rank: This rank.
    """
    return _own_labels(label, forest, num, rank, jnp.zeros(0, jnp.int32))


def own_joined_labels(
    label: jax.Array, forest: Forest, num: int | jax.Array, rank: jax.Array, starts: jax.Array
) -> jax.Array:
    """Return the labels of `own_labels` as one number, ``(n,)`` int32, a row of the joined particles of every rank.

    In that set, each rank's rows begin at ``starts`` ``(r,)`` int32.
    """
    return _own_labels(label, forest, num, rank, starts)[1]


def _own_labels(
    label: jax.Array, forest: Forest, num: int | jax.Array, rank: jax.Array, starts: jax.Array
) -> tuple[jax.Array, jax.Array]:
    n = forest[0].shape[0]
    out = i32(0 if starts.shape[0] > 0 else n), i32(n)
    return call("own_labels", out, label, *forest, as_num(num), as_num(rank), starts)
