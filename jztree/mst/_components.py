"""Join components over the ranks of a mesh by their lightest edges (Boruvka 1926), on a graph of few edges.

A vertex is a set of particles of one rank that sure edges join, named by its rank and the row of its first particle. A
rank stores the parents of its vertices, and the edges that it has found. A component is named by its root, one of its
vertices. One round:

1. Each rank sends its lightest edge from each component to the rank of the component's root. The root takes the
   lightest one.
2. The root is hooked below the component at the other end, if no particle of the component may have a lighter edge that
   no rank has found. If both components have chosen the same edge, the smaller root stays. Each hook adds its edge to
   the tree, on the rank of the hooked root.
3. Hooked vertices and ends of edges move up to their roots (kernels of `native/groups/group_graph.h`).

Each round at least halves the number of components that can be joined. A rank sends at most one row for each component
with particles on this rank.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._transform.capacity import choose_capacity
from ..arguments import at_least_normal
from ._edges import Edges, append, compacted


class Graph(NamedTuple):
    """Edges between vertices.

    Attributes:
        vertices: ``(e, 4)`` int32, rank and row of both ends.
        edges: The edges ``(e, ...)``.
        num: Number of edges, int32.
    """

    vertices: jax.Array
    edges: Edges
    num: jax.Array


class Tree(NamedTuple):
    """The part of the spanning tree that is known.

    Attributes:
        forest: Parents of this rank's vertices; see `kernels.take_hooks`.
        edges: Edges found by this rank, ``(n, ...)``.
        num: Their number, int32.
    """

    forest: kernels.Forest
    edges: Edges
    num: jax.Array


class _Offers(NamedTuple):
    """The lightest edge of each root of this rank.

    Attributes:
        row: ``(m,)`` int32, row of the root; ``n`` after the last one.
        other: ``(m, 2)`` int32, rank and row of the root at the other end.
        edges: The edges ``(m, ...)``.
    """

    row: jax.Array
    other: jax.Array
    edges: Edges


def farther(length: jax.Array) -> jax.Array:
    """Return numbers above lengths that were rounded."""
    return jnp.nextafter(at_least_normal(length), jnp.asarray(jnp.inf, length.dtype))


def first_forest(n: int) -> kernels.Forest:
    """Return a forest of ``n`` vertices without hooks."""
    rank = comm.get_rank_info()[0]
    rows = jnp.arange(n, dtype=jnp.int32)
    parent = jnp.stack([jnp.full(n, rank, jnp.int32), rows], axis=1)
    return comm.vary(parent), comm.vary(jnp.zeros(n, jnp.int32)), comm.vary(jnp.int32(0))


def join_components(graph: Graph, tree: Tree, known: jax.Array) -> tuple[Graph, Tree, jax.Array, jax.Array]:
    """Join components until no further edge is sure.

    Args:
        graph: The edges that the ranks have found, between any vertices of components. It contains the lightest edge of
            each component if that is not longer than ``known``.
        tree: The tree so far.
        known: ``(n,)``, for each vertex of this rank, a length up to which all edges of its particles were considered
            for the graph.

    Returns:
        The graph and the tree, the length of the lightest edge of each root ``(n,)``, -1 for other vertices and for the
        last component, and the number of rounds.
    """
    n = known.shape[0]

    def one_round(state: Any) -> Any:
        graph, tree, _, _, rounds = state
        offers = _lightest_of_roots(graph, n)
        graph, tree, joined = _hook(graph, tree, offers, _known_of_roots(tree.forest, known))
        none = comm.vary(jnp.full(n, -1, known.dtype))
        reach = none.at[offers.row].set(offers.edges.length, mode="drop")
        return jax.tree.map(comm.vary, (graph, tree, reach, comm.all_max(joined), rounds + 1))

    forest, vertices = move_up(tree.forest, graph.vertices, graph.num)
    graph, tree = graph._replace(vertices=vertices), tree._replace(forest=forest)
    start = (graph, tree, jnp.zeros_like(known), jnp.int32(1), jnp.int32(0))
    graph, tree, reach, _, rounds = jax.lax.while_loop(
        lambda state: state[3] > 0, one_round, jax.tree.map(comm.vary, start)
    )
    return graph, tree, reach, rounds


def _lightest_of_roots(graph: Graph, n: int) -> _Offers:
    """Return the lightest edge of each of this rank's ``n`` rows that are roots."""
    row, other, dest, edge = _lightest_here(graph)
    m = graph.vertices.shape[0]
    capacity = choose_capacity("mst_offers", None, m, max(2 * m * comm.num_ranks(), 1))
    rows = [row, other, *graph.edges.take(edge).columns()]
    (row, other, *columns), count, _ = comm.exchange_by_rank(
        rows,
        dest,
        2 * m,
        capacity,
        what="edges of components",
        advice="call the function with fewer particles per device.",
        name="edges",
    )
    edges = graph.edges.like(columns)
    order = kernels.sort_words([row, *edges.keys()], count)
    row = row[order]
    used = jnp.arange(capacity.rows, dtype=jnp.int32) < count
    return _Offers(jnp.where(used & _are_first(row), row, n), other[order], edges.take(order))


def _lightest_here(graph: Graph) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the lightest edge of this rank for each component.

    Returns:
        The row of the component's root ``(2 e,)``; rank and row of the root at the other end ``(2 e, 2)``; the rank of
        the first root, -1 if there is none; and the edge.
    """
    m = graph.vertices.shape[0]
    rows = jnp.arange(2 * m, dtype=jnp.int32)
    a, b = graph.vertices[:, :2], graph.vertices[:, 2:]
    is_open = (rows[:m] < graph.num) & jnp.any(a != b, axis=1)
    # Each open edge counts for both ends.
    used = jnp.concatenate([is_open, is_open])
    at, count = compacted(used, 2 * m), jnp.sum(used, dtype=jnp.int32)
    here, there = jnp.concatenate([a, b])[at], jnp.concatenate([b, a])[at]
    edge = at % m
    order = kernels.sort_words([*here.T, *graph.edges.take(edge).keys()], count)
    here, there, edge = here[order], there[order], edge[order]
    sent = (_are_first(here[:, 0]) | _are_first(here[:, 1])) & (rows < count)
    return here[:, 1], there, jnp.where(sent, here[:, 0], -1), edge


def _are_first(values: jax.Array) -> jax.Array:
    """Return whether each value differs from the one before."""
    return jnp.concatenate([jnp.ones(1, bool), values[1:] != values[:-1]])


def _known_of_roots(forest: kernels.Forest, known: jax.Array) -> jax.Array:
    """Return the least of ``known`` over the vertices of each root's component, ``(n,)``; undefined for others."""
    parent, hooked, number = forest
    n = known.shape[0]

    def take(packed: jax.Array, counts: jax.Array, least: jax.Array) -> jax.Array:
        row, value = comm.rows_and_values(packed, counts, least)
        return least.at[row].min(value[:, 0], mode="drop")

    # Rows from the number of hooked vertices on are not sent.
    at = jnp.clip(hooked, 0, n - 1)
    return comm.deliver([parent[at, 1], known[at]], parent[at, 0], number, take, known, n)


def _hook(graph: Graph, tree: Tree, offers: _Offers, known: jax.Array) -> tuple[Graph, Tree, jax.Array]:
    """Hook roots below the roots at the other ends of their lightest edges. Return whether there were any."""
    n, rank = known.shape[0], comm.get_rank_info()[0]
    at = jnp.minimum(offers.row, n - 1)
    sure = (offers.row < n) & (farther(offers.edges.length) < known[at])
    chosen = comm.vary(jnp.full((n, 2), -1, jnp.int32))
    chosen = chosen.at[jnp.where(sure, offers.row, n)].set(offers.edges.ends, mode="drop")
    ask = jnp.where(sure, offers.other[:, 0], -1)
    theirs = comm.fetch(chosen, ask, offers.other[:, 1], ask.shape[0], ask.shape[0])
    same = jnp.all(theirs == offers.edges.ends, axis=1)
    is_smaller = (rank < offers.other[:, 0]) | ((rank == offers.other[:, 0]) & (offers.row < offers.other[:, 1]))
    hooks = sure & ~(same & is_smaller)
    parent, hooked, number = tree.forest
    row = jnp.where(hooks, offers.row, n)
    parent = parent.at[row].set(offers.other, mode="drop")
    place = jnp.where(hooks, number + jnp.cumsum(hooks, dtype=jnp.int32) - 1, n)
    hooked = hooked.at[place].set(offers.row, mode="drop")
    count = jnp.sum(hooks, dtype=jnp.int32)
    edges, num = append(tree.edges, tree.num, offers.edges, hooks)
    forest, vertices = move_up((parent, hooked, number + count), graph.vertices, graph.num)
    return graph._replace(vertices=vertices), Tree(forest, edges, num), count


def move_up(
    forest: kernels.Forest, vertices: jax.Array, num: jax.Array, buffer_rows: int | None = None
) -> tuple[kernels.Forest, jax.Array]:
    """Move hooked vertices and ends of edges up to their roots.

    Args:
        forest: Parents of this rank's vertices.
        vertices: ``(e, 4)`` int32, the ends of edges; see `Graph`.
        num: Number of edges.
        buffer_rows: See `comm.fetch`. None means the number of rows of ``vertices``.
    """
    buffer_rows = vertices.shape[0] if buffer_rows is None else buffer_rows

    def jump(state: Any) -> Any:
        forest, vertices, _ = state
        ranks, rows, counts = kernels.ask_parents(forest, vertices, num)
        answers = comm.fetch(forest[0], ranks, rows, counts, buffer_rows, filled=False)
        forest, vertices, moved = kernels.move_up(answers, num, forest, vertices)
        return jax.tree.map(comm.vary, (forest, vertices, comm.all_max(moved)[0]))

    start = jax.tree.map(comm.vary, (forest, vertices, jnp.int32(1)))
    forest, vertices, _ = jax.lax.while_loop(lambda state: state[2] > 0, jump, start)
    return forest, vertices
