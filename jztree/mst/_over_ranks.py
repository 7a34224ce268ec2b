"""Find the minimum spanning tree of particles over the ranks of a mesh.

1. Sort the particles in z-order; each rank gets a range. Find the nearest particles of each particle, with ghosts
   (`jztree.knn`).
2. Each rank finds the minimum spanning tree of its particles and ghosts. An edge of the tree of all particles is in the
   tree of every part that has both ends: otherwise, it would be the last edge of a circle in the part, and so the last
   edge of a circle among all particles. So edges that are not in the tree of the part are not in the whole tree.
3. An edge that joins two particles of a rank is certain if it is the first outgoing edge of a set of particles of this
   rank, and lighter than all edges to particles that the rank does not have. Most edges are certain. They leave a graph
   of few vertices, with edges near the surfaces of domains.
4. `join_components` solves this graph over the ranks.
5. A component is left over if one of its particles may have a neighbour that is nearer than the lightest edge of the
   component, but is not among the ghosts. The length of this edge is a bound. Each rank brings new ghosts within the
   bounds of the components of its particles, and repeats steps 2 and 4 for the components. Afterwards, the lightest
   edge of each component is known, so each repetition at least halves the number of components.

All ranks are connected by edges between the last particle of a rank and the first one of the next rank, so each
component has a lightest edge from the start.

A rank holds its particles, its ghosts, and the edges of step 3. Their number depends on the surface of its domain, not
on the number of ranks. The exception are a few clumps of particles that are farther apart than wide, each of them on
several ranks: the last bounds then reach most particles of the other clumps.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels, stats
from .._transform.capacity import choose_capacity
from ..arguments import at_least_normal
from ..jax_ext import Exact
from ..tree import build_in_domain
from ..tree.stage import InputParticles, ParticlesWithGhosts, SortedParticles, Stage, prepare_stage
from ._components import Graph, Tree, farther, first_forest, join_components
from ._edges import Edges, append, compacted, edges_of, no_edges, sort_over_ranks
from ._tree import CoreSize

# The radius within which a rank brings ghosts, in distances to the last of its near particles.
_REACH = 1.25
# Later ghosts are within the bounds of components times this factor, so that components can join several times. For
# 800,000 particles of a cosmological simulation on 8 devices, the ranks bring ghosts 5 instead of 9 times.
_FARTHER = 2
# The largest number of times that the distances to other ranks are doubled, see `_gaps`, and their start relative to
# the extent of all particles.
_DOUBLINGS, _LEAST_GAP = 24, 2.0**-16
_MIN_EDGES = 1024
_ADVICE = "call the function with fewer particles per device."


class OfParticles(NamedTuple):
    """Properties of particles that decide about edges, one row per particle.

    Attributes:
        ids: ``(n,)`` int32, the row among the particles of all ranks.
        core: Position ``(n, d)`` and id ``(n,)`` of the particle at the core distance; None for Euclidean lengths.
    """

    ids: jax.Array
    core: tuple[jax.Array, jax.Array] | None


class _EqualRows(NamedTuple):
    """Particles of this rank that follow an equal point in z-order. They are not ghosts of other ranks.

    Without this, each rank would have all points of a place as ghosts. Equal points are in the order of their ids. An
    edge to any but the first of them is never in the tree, because the edge to the first one precedes it.

    Attributes:
        is_equal: ``(n,)`` bool.
        order: ``(n,)`` int32, all other particles in z-order, then these.
        num: Number of the others, int32.
        first: ``(n,)`` int32, the place in ``order`` of the first one of the equal points of each particle.
    """

    is_equal: jax.Array
    order: jax.Array
    num: jax.Array
    first: jax.Array


class _Ranks(NamedTuple):
    """What this rank knows about its place among the others.

    Attributes:
        rank: Number of this rank.
        starts: ``(r,)`` int32, number of the first particle of each rank in z-order.
        gaps: ``(n,)``, a distance that particles of other ranks exceed, for each particle in z-order.
    """

    rank: jax.Array
    starts: jax.Array
    gaps: jax.Array


class _Search(NamedTuple):
    """The state between two repetitions of step 5.

    Attributes:
        graph: Edges between components.
        tree: The tree so far.
        known: ``(n,)``, all edges of a particle up to this length are in the graph.
        rounds: Numbers of rounds of `join_components`, and of repetitions, ``(2,)`` int32.
        is_done: Whether all particles are joined.
    """

    graph: Graph
    tree: Tree
    known: jax.Array
    rounds: jax.Array
    is_done: jax.Array


def tree_over_ranks(
    particles: InputParticles, k: int, core: CoreSize | None, box: Exact, cfg: Any
) -> tuple[Edges, jax.Array]:
    """Return this rank's share of the edges, ``(n, ...)`` in ascending order, and their number.

    Args:
        particles: Particles of this rank.
        k: Number of near particles at the start of the search.
        core: None for Euclidean lengths.
        box: Periodic box.
        cfg: Options.
    """
    stage = prepare_stage(particles, None, box, cfg, "knn_ghosts")
    return _TreeOverRanks(stage, k, core, box, cfg).run()


class _TreeOverRanks:
    def __init__(self, stage: Stage, k: int, core: CoreSize | None, box: Exact, cfg: Any) -> None:
        self.k, self.core, self.box, self.cfg = k, core, box, cfg
        sources = stage.sources
        assert sources.domain is not None
        self.domain = sources.domain
        self.n, self.dtype = sources.pos.shape[0], sources.pos.dtype
        self.equal = _equal_rows(sources, core)
        self.own = own = sources.select(self.equal.order, self.equal.num, cfg.tree)
        self.stage = Stage(own, own, box, cfg, "knn_ghosts")
        counts = comm.all_gather(jnp.stack([own.num, sources.given_num(), sources.num]))
        self.total = comm.wide_total(counts[:, 2])
        offsets = comm.starts_of(counts[:, 1])
        self.all_ids = comm.of_rank(offsets, sources.origin.rank) + sources.origin.idx
        self.stage.exchange_boxes(counts[:, 0], close=True)
        rank = comm.get_rank_info()[0]
        self.ranks = _Ranks(rank, comm.starts_of(counts[:, 0]), _gaps(self.stage, own))

    def run(self) -> tuple[Edges, jax.Array]:
        """Return this rank's share of the edges, and their number."""
        rows = jnp.arange(self.n, dtype=jnp.int32)
        near, near_rows, of_own, of_near, reach = self._first_neighbourhood()
        known = self._known(reach, jnp.zeros(self.n, self.dtype))
        found = kernels.spanning_tree_of_part(
            near.tree(),
            of_near.ids,
            near_rows,
            of_near.core,
            None,
            self._over_ghosts(near, known, -1),
            self.domain.corners,
            self.box,
        )
        start = near.route().start
        joined = found.joined.at[start + rows].get(mode="clip") - start
        self.vertex = jnp.where(rows < self.own.num, joined, rows)
        vertices = self._vertices_of(near, self.vertex)
        edges = edges_of(found)
        tree_edges, num = append(no_edges(edges, self.n), comm.vary(jnp.int32(0)), edges, found.certain != 0)
        if self.core is None:
            tree_edges, num = append(tree_edges, num, *self._edges_of_equal(near, found, of_own.ids, edges))
        self.adjacent, self.adjacent_vertices = self._adjacent_edge(of_own)
        self.capacity = choose_capacity("mst_edges", None, near.pos.shape[0] // 8 + _MIN_EDGES, near.pos.shape[0] + 1)
        graph = self._graph(near, found, vertices)
        tree = Tree(first_forest(self.n), tree_edges, num)
        rounds = jnp.zeros(2, jnp.int32)
        search = jax.tree.map(comm.vary, _Search(graph, tree, known, rounds, jnp.bool_(False)))
        search = jax.lax.while_loop(lambda state: ~state.is_done, lambda state: self._repeat(state, of_own), search)
        is_first = self.ranks.rank == 0
        stats.record("rounds.spanning_tree", jnp.where(is_first, search.rounds[0], 0))
        stats.record("rounds.spanning_tree_ghosts", jnp.where(is_first, search.rounds[1], 0))
        return sort_over_ranks(search.tree.edges, search.tree.num)

    def _first_neighbourhood(self) -> tuple[Any, ...]:
        """Find near particles and bring the first ghosts.

        Returns:
            Particles with ghosts; the rows of the near particles of each; `OfParticles` of own particles, and with
            ghosts; and the radius of ghosts of each box of the stage.
        """
        own, stage, k = self.own, self.stage, self.k
        options: dict[str, Any] = {"domain": self.domain.corners, "others": True}
        rad, idx = kernels.knn(own.tree(), None, None, None, k, self.box, **options)
        leaves, reach = stage.open_leaves(at_least_normal(rad[:, -1:]) * jnp.asarray(_REACH, self.dtype), k + 1)
        ids = self.all_ids[self.equal.order]
        near = stage.with_ghosts(reach, ids)
        start = near.route().start
        idx = jnp.where(idx < 0, -1, idx + start)
        _, idx = kernels.knn(
            near.tree(),
            None,
            own.tree(),
            None,
            k,
            self.box,
            own_offset=start,
            open_leaves=leaves,
            found=(rad, idx),
            **options,
        )
        core = core_near = None
        if self.core is not None:
            at = jnp.maximum(self.core.column(idx), 0)
            core = near.pos[at], near.data[at]
            core_near = near.route().more(core)
        near_rows = self._over_ghosts(near, idx, -2)
        return near, near_rows, OfParticles(ids, core), OfParticles(near.data, core_near), reach

    def _edges_of_equal(
        self, near: ParticlesWithGhosts, found: kernels.EdgesOfPart, ids: jax.Array, like: Edges
    ) -> tuple[Edges, jax.Array]:
        """Return an edge of length 0 for each row, and whether it is an edge: those of `_EqualRows.is_equal`.

        These edges join each particle to the first of all equal points, in the order of ids. If this is not the first
        one of this rank, it is a ghost, and joined to that one by an edge of length 0.
        """
        row = found.places[:, 1] - near.route().start
        is_zero = (found.exact[:, 0] == 0) & (found.exact[:, 1] == 0) & (row >= 0) & (row < self.own.num)
        first = ids.at[jnp.where(is_zero, row, self.n)].set(found.ends[:, 0], mode="drop")
        ends = jnp.stack([first[self.equal.first], self.all_ids], axis=1)
        zero = jnp.zeros((self.n, 2), jnp.uint32)
        return like._replace(
            weight=zero, ends=ends, exact=zero, length=jnp.zeros(self.n, self.dtype)
        ), self.equal.is_equal

    def _over_ghosts(self, near: ParticlesWithGhosts, values: jax.Array, fill: Any) -> jax.Array:
        """Return ``values`` ``(n, ...)`` of own particles at their rows of ``near``, and ``fill`` for ghosts."""
        row = jnp.arange(near.pos.shape[0], dtype=jnp.int32) - near.route().start
        is_own = (row >= 0) & (row < self.own.num)
        spread = values[jnp.clip(row, 0, self.n - 1)]
        return jnp.where(is_own.reshape(-1, *[1] * (values.ndim - 1)), spread, jnp.asarray(fill, values.dtype))

    def _known(self, reach: jax.Array, least: jax.Array) -> jax.Array:
        """Return a distance up to which this rank has all neighbours of each own particle.

        Args:
            reach: Radius of ghosts of each box of the stage, -1 if it has no ghosts.
            least: ``(n,)``, distances that are known.
        """
        splits = self.stage.query_boxes[0]
        rows = jnp.arange(self.n, dtype=jnp.int32)
        of_box = reach[jnp.clip(jnp.searchsorted(splits, rows, side="right") - 1, 0, reach.shape[0] - 1)]
        return jnp.maximum(jnp.maximum(of_box, self.ranks.gaps), least)

    def _vertices_of(self, near: ParticlesWithGhosts, vertex: jax.Array) -> jax.Array:
        """Return rank and row of the vertex of each particle and ghost, ``(m, 2)`` int32. vertex: ``(n,)`` rows."""
        route = near.route()
        ends = comm.starts_of(route.traffic.received) + route.traffic.received
        rows = jnp.arange(near.pos.shape[0], dtype=jnp.int32)
        rank = jnp.searchsorted(ends, rows, side="right").astype(jnp.int32)
        return jnp.stack([rank, route.more(vertex)], axis=1)

    def _graph(self, near: ParticlesWithGhosts, found: kernels.EdgesOfPart, vertices: jax.Array) -> Graph:
        """Return the edges that are not certain and have an end on this rank, and the one to the next rank.

        Args:
            near: Particles with ghosts.
            found: The edges of their tree.
            vertices: ``(m, 2)`` int32, rank and row of the vertex of each.
        """
        row = found.places - near.route().start
        is_own = (row >= 0) & (row < self.own.num)
        chosen = (found.places[:, 0] >= 0) & (found.certain == 0) & jnp.any(is_own, axis=1)
        chosen = jnp.concatenate([chosen, self.adjacent_vertices[:, 0] >= 0])
        count = jnp.sum(chosen, dtype=jnp.int32)
        needs = comm.all_gather(count)
        num = comm.require_capacity(count, needs, self.capacity, "edges between components", _ADVICE)
        at = compacted(chosen, self.capacity.rows)
        ends = jnp.maximum(found.places, 0)
        between = jnp.concatenate([vertices[ends].reshape(-1, 4), self.adjacent_vertices])
        edges = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), edges_of(found), self.adjacent)
        return Graph(between[at], edges.take(at), num)

    def _adjacent_edge(self, of_own: OfParticles) -> tuple[Edges, jax.Array]:
        """Return the edge between the last particle of this rank and the first one of the next rank.

        Returns:
            One edge, and rank and row of the vertices of its ends, ``(1, 4)`` int32, -1 if there is none.
        """
        _, ndev, _ = comm.get_rank_info()
        last = jnp.maximum(self.own.num - 1, 0)
        columns = (self.own.pos, of_own, self.vertex, jnp.arange(self.n, dtype=jnp.int32))
        first_row = jax.tree.map(lambda column: column[:1], columns)
        last_row = jax.tree.map(lambda column: jax.lax.dynamic_slice_in_dim(column, last, 1), columns)
        theirs, their_num = comm.shift((first_row, self.own.num), -1)
        pos, of_pair, vertex, _ = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), last_row, theirs)
        exists = (self.ranks.rank + 1 < ndev) & (self.own.num > 0) & (their_num > 0)
        num = jnp.where(exists, 2, 0).astype(jnp.int32)
        # The pair in z-order.
        th = build_in_domain(pos, num, self.domain, self.cfg.tree)
        pair = SortedParticles(pos, num, self.domain, th)
        known = jnp.asarray([0, -1], self.dtype)
        found = kernels.spanning_tree_of_part(
            pair.tree(),
            of_pair.ids,
            jnp.full((2, 1), -2, jnp.int32),
            of_pair.core,
            None,
            known,
            self.domain.corners,
            self.box,
        )
        rank = jnp.stack([self.ranks.rank, self.ranks.rank + 1]).astype(jnp.int32)
        ends = jnp.stack([rank, vertex], axis=1)[jnp.maximum(found.places[0], 0)].reshape(1, 4)
        return edges_of(found), jnp.where(exists, ends, -1)

    def _repeat(self, state: _Search, of_own: OfParticles) -> _Search:
        """Join components, and bring ghosts within the bounds of those that are left over."""
        bound = self._least_of_vertices(state.known)
        graph, tree, reach, rounds = join_components(state.graph, state.tree, bound)
        found = comm.wide_sum(tree.num)
        total = self.total.high * 65536 + self.total.low
        is_done = found.high * 65536 + found.low >= total - 1
        rounds = state.rounds + jnp.stack([rounds, jnp.int32(1)])
        state = jax.tree.map(comm.vary, _Search(graph, tree, state.known, rounds, is_done))

        def grow(state: _Search) -> _Search:
            return jax.tree.map(comm.vary, self._with_new_ghosts(state, reach, of_own))

        return jax.lax.cond(state.is_done, lambda state: jax.tree.map(comm.vary, state), grow, state)

    def _least_of_vertices(self, known: jax.Array) -> jax.Array:
        """Return the least of ``known`` over the particles of each vertex, ``(n,)``."""
        used = jnp.arange(self.n, dtype=jnp.int32) < self.own.num
        far = jnp.full_like(known, jnp.inf)
        return far.at[self.vertex].min(jnp.where(used, known, jnp.inf))

    def _with_new_ghosts(self, state: _Search, reach: jax.Array, of_own: OfParticles) -> _Search:
        """Return the graph of components with ghosts within their bounds. reach: ``(n,)``, the bounds of roots."""
        used = jnp.arange(self.n, dtype=jnp.int32) < self.own.num
        roots, bounds = self._roots(state.tree.forest, reach)
        # Even without the factor, this is one number more than the bound: a component is left over if the bound is the
        # known distance.
        needed = jnp.where(used, farther(farther(bounds[self.vertex] * _FARTHER)), -1)
        component = comm.of_rank(self.ranks.starts, roots[:, 0]) + roots[:, 1]
        component = component[self.vertex]
        _, wanted = self.stage.open_leaves(needed[:, None])
        near = self.stage.with_ghosts(wanted, (of_own, component))
        of_near, component = near.data
        known = self._known(wanted, needed)
        m = near.pos.shape[0]
        component = jnp.where(jnp.arange(m, dtype=jnp.int32) < near.num, component, jnp.iinfo(jnp.int32).max)
        found = kernels.spanning_tree_of_part(
            near.tree(),
            of_near.ids,
            jnp.full((m, 1), -2, jnp.int32),
            of_near.core,
            _first_of_equal(component),
            self._over_ghosts(near, known, -1),
            self.domain.corners,
            self.box,
        )
        # Join all edges over the ranks, because components may be on several ranks.
        found = found._replace(certain=jnp.zeros_like(found.certain))
        rank = jnp.searchsorted(self.ranks.starts, component, side="right").astype(jnp.int32) - 1
        vertices = jnp.stack([rank, component - self.ranks.starts[rank]], axis=1)
        return state._replace(graph=self._graph(near, found, vertices), known=known)

    def _roots(self, forest: kernels.Forest, reach: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Return rank and row of the root of each vertex, ``(n, 2)``, and the bound of its component, ``(n,)``."""
        parent, hooked, number = forest
        rows = jnp.arange(self.n, dtype=jnp.int32)
        at = jnp.clip(hooked, 0, self.n - 1)
        theirs = comm.fetch(reach, parent[at, 0], parent[at, 1], number, self.n)
        place = jnp.where(rows < number, hooked, self.n)
        parents = jnp.stack([jnp.full(self.n, self.ranks.rank, jnp.int32), rows], axis=1)
        return parents.at[place].set(parent[at], mode="drop"), reach.at[place].set(theirs, mode="drop")


def _equal_rows(sources: SortedParticles, core: CoreSize | None) -> _EqualRows:
    """Find equal rows. With core distances, points at the same place may be far apart, so none counts as equal."""
    pos, n = sources.pos, sources.pos.shape[0]
    bits = jax.lax.bitcast_convert_type(pos, jnp.dtype(f"uint{8 * pos.dtype.itemsize}"))
    rows = jnp.arange(n, dtype=jnp.int32)
    follows = jnp.concatenate([jnp.zeros(1, bool), jnp.all(bits[1:] == bits[:-1], axis=1)])
    used = rows < sources.num
    is_equal = follows & used & (core is None)
    number = jnp.cumsum(used & ~is_equal, dtype=jnp.int32)
    num = jnp.sum(used & ~is_equal, dtype=jnp.int32)
    place = jnp.where(used & ~is_equal, number - 1, num + jnp.cumsum(~used | is_equal, dtype=jnp.int32) - 1)
    order = jnp.zeros_like(rows).at[place].set(rows)
    return _EqualRows(is_equal, order, num, jnp.maximum(number - 1, 0))


def _first_of_equal(values: jax.Array) -> jax.Array:
    """Return the first row with the value of each row, ``(m,)`` int32. values: ``(m,)`` int32, not negative."""
    rows = jnp.arange(values.shape[0], dtype=jnp.int32)
    order = kernels.sort_words([values, rows], values.shape[0])
    ordered = values[order]
    is_first = jnp.concatenate([jnp.ones(1, bool), ordered[1:] != ordered[:-1]])
    first = order[jax.lax.cummax(jnp.where(is_first, rows, 0))]
    return jnp.zeros_like(rows).at[order].set(first)


def _gaps(stage: Stage, own: SortedParticles) -> jax.Array:
    """Return a distance that all particles of other ranks exceed, for each particle, ``(n,)``.

    Nodes test distances that double, so the result is at least half of the distance to the boxes of other ranks, or 0
    if it is very small.
    """
    assert own.th is not None
    assert own.domain is not None
    plane = min(1, own.th.num_planes - 1)
    splits, lower, upper = own.th.particle_splits(plane), own.th.lower(plane), own.th.upper(plane)
    count = own.th.count(plane)
    dtype = own.pos.dtype
    corner, opposite = own.domain.corners
    extent = jnp.max(opposite - corner)
    extents = jnp.where(count > 0, jnp.max(upper - lower, axis=1), 0)
    first = jnp.maximum(extents / 4, extent * jnp.asarray(_LEAST_GAP, dtype))

    def step(state: tuple[jax.Array, jax.Array, jax.Array, jax.Array]) -> Any:
        tested, known, is_open, times = state
        reaches = (stage.reaches_others((count, lower, upper), tested) != 0) | is_open
        known = jnp.where(reaches, known, tested)
        return jax.tree.map(comm.vary, (jnp.where(reaches, tested, 2 * tested), known, reaches, times + 1))

    start = first, jnp.zeros_like(first), count <= 0, jnp.int32(0)
    tested, known, is_open, _ = jax.lax.while_loop(
        lambda state: jnp.any(~state[2]) & (state[3] < _DOUBLINGS), step, jax.tree.map(comm.vary, start)
    )
    known = jnp.where(is_open | (tested <= 0), known, jnp.asarray(jnp.inf, dtype))
    rows = jnp.arange(own.pos.shape[0], dtype=jnp.int32)
    return known[jnp.clip(jnp.searchsorted(splits, rows, side="right") - 1, 0, known.shape[0] - 1)]
