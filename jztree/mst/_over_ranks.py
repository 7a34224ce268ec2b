"""Find the minimum spanning tree of particles over the ranks of a mesh.

1. Sort the particles in z-order; each rank gets a range. Find the nearest particles of each particle, with ghosts
   (`jztree.knn`).
2. Each rank finds the minimum spanning tree of its particles and ghosts. An edge of the whole tree is in the
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
on the number of ranks. The exception are a few clumps of particles that are farther apart than wide, each clump on
several ranks: the last bounds then reach most particles of the other clumps.
"""

import functools
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels, stats
from .._transform.capacity import choose_capacity
from ..jax_ext import Exact
from ..knn import others_with_ghosts
from ..tree import Domain, build_in_domain
from ..tree.stage import InputParticles, ParticlesWithGhosts, SortedParticles, Stage, prepare_stage
from ._components import Graph, Tree, farther, first_forest, join_components
from ._edges import Edges, append, compacted, edges_of, first_of_equal, no_edges, sort_over_ranks
from ._tree import CoreSize

# The radius within which a rank brings ghosts, in distances to the last of its near particles.
_REACH = 1.25
# Later ghosts are within the bounds of components times this factor, so that components can join several times. For
# 800,000 particles of a cosmological simulation on 8 devices, the ranks bring ghosts 5 instead of 9 times.
_FARTHER = 2
# The largest number of times that the distances to other ranks are doubled, see `_gaps`, and their start relative to
# the extent of the particles.
_DOUBLINGS, _LEAST_GAP = 24, 2.0**-16
_MIN_EDGES = 1024
_ADVICE = "call the function with fewer particles per device."


class OfParticles(NamedTuple):
    """Properties of particles that decide about edges, one row per particle.

    Attributes:
        ids: ``(n,)`` int32, the row, counted over all ranks.
        core: Position ``(n, d)`` and id ``(n,)`` of the particle at the core distance; None for Euclidean lengths.
    """

    ids: jax.Array
    core: tuple[jax.Array, jax.Array] | None


class _EqualRows(NamedTuple):
    """Particles of this rank that follow an equal point in z-order. They are not ghosts of other ranks.

    Without this, each rank would have all points of a place as ghosts. Equal points are in the order of their ids. An
    edge to any but the first point is never in the tree, because the edge to the first one precedes it.

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


class _RankSet(NamedTuple):
    """This rank's particles.

    Attributes:
        stage: Stage of the particles whose position is not equal to an earlier one.
        domain: Domain of the z-order.
        equal: The other particles.
        all_ids: ``(n,)`` int32, the row of each z-ordered particle, counted over all ranks.
        total: Number of particles on all ranks, int32.
        starts: ``(r,)`` int32, number of the first particle of each rank in the stage.
        gaps: ``(n,)``, a distance that particles of other ranks exceed, for each particle in the stage.
        cfg: Options.
    """

    stage: Stage
    domain: Domain
    equal: _EqualRows
    all_ids: jax.Array
    total: jax.Array
    starts: jax.Array
    gaps: jax.Array
    cfg: Any

    @property
    def rows(self) -> jax.Array:
        """``(n,)`` int32, the numbers of the rows."""
        return jnp.arange(self.gaps.shape[0], dtype=jnp.int32)

    def is_used(self) -> jax.Array:
        """Return whether a row holds a particle, ``(n,)``."""
        return self.rows < self.stage.sources.num


class _Vertices(NamedTuple):
    """The vertices of this rank.

    Attributes:
        rows: ``(n,)`` int32, the row of the vertex of each particle.
        next_edge: One edge, between the last particle of this rank and the first one of the next rank.
        next_ends: ``(1, 4)`` int32, rank and row of the vertices of its ends, -1 if there is none.
    """

    rows: jax.Array
    next_edge: Edges
    next_ends: jax.Array


class _Search(NamedTuple):
    """The state between two repetitions of step 5.

    Attributes:
        graph: Edges between components.
        tree: The tree so far.
        known_radius: ``(n,)``, all edges of a particle up to this length are in the graph.
        rounds: Numbers of rounds of `join_components`, and of repetitions, ``(2,)`` int32.
        is_done: Whether all particles are joined.
    """

    graph: Graph
    tree: Tree
    known_radius: jax.Array
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
    rank_set, n, rank = _prepare(particles, core, box, cfg), particles.num_rows, comm.get_rank_info()[0]
    region, near_rows, properties, known_radius = _first_neighbourhood(rank_set, k, core)
    part = _edges_of_part(rank_set, region, _over_ghosts(rank_set, region, known_radius, -1), near_rows)
    start = region.route().start
    joined = part.joined.at[start + rank_set.rows].get(mode="clip") - start
    rows = jnp.where(rank_set.is_used(), joined, rank_set.rows)
    vertices = _Vertices(rows, *_edge_to_next_rank(rank_set, properties, rows))
    edges = edges_of(part)
    tree_edges, num = append(no_edges(edges, n), comm.vary(jnp.int32(0)), edges, part.certain != 0)
    if core is None:
        tree_edges, num = append(tree_edges, num, *_edges_of_equal(rank_set, region, part, properties.ids))
    graph = _graph(rank_set, vertices, region, part, region.route().more(rank_set.starts[rank] + rows))
    first = _Search(
        graph, Tree(first_forest(n), tree_edges, num), known_radius, jnp.zeros(2, jnp.int32), jnp.bool_(False)
    )
    repeat = functools.partial(_repeat, rank_set, properties, vertices)
    search = jax.lax.while_loop(lambda state: ~state.is_done, repeat, jax.tree.map(comm.vary, first))
    rounds = jnp.where(rank == 0, search.rounds, 0)
    stats.record("rounds.spanning_tree", rounds[0])
    stats.record("rounds.spanning_tree_ghosts", rounds[1])
    return sort_over_ranks(search.tree.edges, search.tree.num)


def _prepare(particles: InputParticles, core: CoreSize | None, box: Exact, cfg: Any) -> _RankSet:
    """Sort the particles on all ranks, and exchange the boxes of their ranges."""
    sources = prepare_stage(particles, None, box, cfg, "knn_ghosts").sources
    assert sources.domain is not None
    equal = _equal_rows(sources, core)
    points = sources.select(equal.order, equal.num, cfg.tree)
    stage = Stage(points, points, box, cfg, "knn_ghosts")
    counts = comm.all_gather(jnp.stack([points.num, sources.given_num(), sources.num]))
    all_ids = comm.of_rank(comm.starts_of(counts[:, 1]), sources.origin.rank) + sources.origin.idx
    stage.exchange_boxes(counts[:, 0], close=True)
    total, starts = comm.wide_total(counts[:, 2]).clipped(), comm.starts_of(counts[:, 0])
    return _RankSet(stage, sources.domain, equal, all_ids, total, starts, _gaps(stage), cfg)


def _first_neighbourhood(
    rank_set: _RankSet, k: int, core: CoreSize | None
) -> tuple[ParticlesWithGhosts, jax.Array, OfParticles, jax.Array]:
    """Find ``k`` near particles of each particle, and bring the first ghosts.

    Returns:
        Particles with ghosts, with `OfParticles` as data; the rows of the near particles of each; `OfParticles` of own
        particles; and the result of `_known_radius`.
    """
    ids = rank_set.all_ids[rank_set.equal.order]
    region, reach, idx = others_with_ghosts(rank_set.stage, k, ids, _REACH)
    of_core = None
    if core is not None:
        core_rows = jnp.maximum(core.column(idx), 0)
        of_core = region.pos[core_rows], region.data[core_rows]
    properties = OfParticles(ids, of_core)
    region = replace(region, data=OfParticles(region.data, None if core is None else region.route().more(of_core)))
    known_radius = _known_radius(rank_set, reach, jnp.zeros_like(rank_set.gaps))
    return region, _over_ghosts(rank_set, region, idx, -2), properties, known_radius


def _edges_of_part(
    rank_set: _RankSet, region: SortedParticles, known_radius: jax.Array, near_rows: Any = None, label: Any = None
) -> kernels.EdgesOfPart:
    """Return the spanning tree of ``region``, with `OfParticles` as data; see `kernels.spanning_tree_of_part`."""
    rows = jnp.full((region.pos.shape[0], 1), -2, jnp.int32) if near_rows is None else near_rows
    ids, core = region.data
    domain, box = rank_set.domain.corners, rank_set.stage.box
    return kernels.spanning_tree_of_part(region.tree(), ids, rows, core, label, known_radius, domain, box)


def _edges_of_equal(
    rank_set: _RankSet, region: ParticlesWithGhosts, part: kernels.EdgesOfPart, ids: jax.Array
) -> tuple[Edges, jax.Array]:
    """Return an edge of length 0 for each row, and whether it is an edge, `_EqualRows.is_equal`. ids: Of own particles.

    These edges join each particle to the first equal point, in the order of ids. If this is not the first one
    of this rank, it is a ghost, and joined to that one by an edge of length 0.
    """
    n = ids.shape[0]
    row, is_own = _own_rows(rank_set, region, part.places[:, 1])
    is_zero = (part.exact[:, 0] == 0) & (part.exact[:, 1] == 0) & is_own
    first = ids.at[jnp.where(is_zero, row, n)].set(part.ends[:, 0], mode="drop")
    ends = jnp.stack([first[rank_set.equal.first], rank_set.all_ids], axis=1)
    zero = jnp.zeros((n, 2), jnp.uint32)
    length = jnp.zeros(n, part.length.dtype)
    return edges_of(part)._replace(weight=zero, ends=ends, exact=zero, length=length), rank_set.equal.is_equal


def _own_rows(rank_set: _RankSet, region: ParticlesWithGhosts, rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return rows of ``region`` as rows of own particles, and whether they are own particles."""
    row = rows - region.route().start
    return row, (row >= 0) & (row < rank_set.stage.sources.num)


def _over_ghosts(rank_set: _RankSet, region: ParticlesWithGhosts, values: jax.Array, fill: Any) -> jax.Array:
    """Return ``values`` ``(n, ...)`` of own particles at their rows of ``region``, and ``fill`` for ghosts."""
    row, is_own = _own_rows(rank_set, region, jnp.arange(region.pos.shape[0], dtype=jnp.int32))
    spread = values[jnp.clip(row, 0, values.shape[0] - 1)]
    return jnp.where(is_own.reshape(-1, *[1] * (values.ndim - 1)), spread, jnp.asarray(fill, values.dtype))


def _known_radius(rank_set: _RankSet, reach: jax.Array, min_radius: jax.Array) -> jax.Array:
    """Return a distance up to which this rank has all neighbours of each own particle.

    Args:
        rank_set: The particles of this rank.
        reach: Radius of ghosts of each box of the stage, -1 if it has no ghosts.
        min_radius: ``(n,)``, distances that are known.
    """
    splits = rank_set.stage.query_boxes[0]
    of_box = reach[jnp.clip(jnp.searchsorted(splits, rank_set.rows, side="right") - 1, 0, reach.shape[0] - 1)]
    return jnp.maximum(jnp.maximum(of_box, rank_set.gaps), min_radius)


def _graph(
    rank_set: _RankSet, vertices: _Vertices, region: ParticlesWithGhosts, part: kernels.EdgesOfPart, numbers: jax.Array
) -> Graph:
    """Return the edges that are not certain and have an end on this rank, and the one to the next rank.

    Args:
        rank_set: The particles of this rank.
        vertices: Their vertices.
        region: The particles with ghosts.
        part: Their spanning tree.
        numbers: ``(m,)`` int32, the number of the vertex of each, counted over the stages on all ranks.
    """
    m = region.pos.shape[0]
    capacity = choose_capacity("mst_edges", None, m // 8 + _MIN_EDGES, m + 1)
    of_near = jnp.stack(comm.rank_and_row(rank_set.starts, numbers), axis=1)
    _, is_own = _own_rows(rank_set, region, part.places)
    is_between = (part.places[:, 0] >= 0) & (part.certain == 0) & jnp.any(is_own, axis=1)
    is_between = jnp.concatenate([is_between, vertices.next_ends[:, 0] >= 0])
    count = jnp.sum(is_between, dtype=jnp.int32)
    num = comm.require_capacity(count, comm.all_gather(count), capacity, "edges between components", _ADVICE)
    rows = compacted(is_between, capacity.rows)
    between = jnp.concatenate([of_near[jnp.maximum(part.places, 0)].reshape(-1, 4), vertices.next_ends])
    edges = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), edges_of(part), vertices.next_edge)
    return Graph(between[rows], edges.take(rows), num)


def _edge_to_next_rank(rank_set: _RankSet, properties: OfParticles, vertex: jax.Array) -> tuple[Edges, jax.Array]:
    """Return the edge between the last particle of this rank and the first one of the next rank; see `_Vertices`."""
    (rank, ndev, _), particles = comm.get_rank_info(), rank_set.stage.sources
    last, columns = jnp.maximum(particles.num - 1, 0), (particles.pos, properties, vertex)
    first_row = jax.tree.map(lambda column: column[:1], columns)
    last_row = jax.tree.map(lambda column: jax.lax.dynamic_slice_in_dim(column, last, 1), columns)
    next_row, next_num = comm.shift((first_row, particles.num), -1)
    pos, of_pair, vertex = jax.tree.map(lambda a, b: jnp.concatenate([a, b]), last_row, next_row)
    exists = (rank + 1 < ndev) & (particles.num > 0) & (next_num > 0)
    num = jnp.where(exists, 2, 0).astype(jnp.int32)
    # The pair in z-order.
    th = build_in_domain(pos, num, rank_set.domain, rank_set.cfg.tree)
    pair = SortedParticles(pos, num, rank_set.domain, th, of_pair)
    part = _edges_of_part(rank_set, pair, jnp.asarray([0, -1], pos.dtype))
    ranks = jnp.stack([rank, rank + 1]).astype(jnp.int32)
    ends = jnp.stack([ranks, vertex], axis=1)[jnp.maximum(part.places[0], 0)].reshape(1, 4)
    return edges_of(part), jnp.where(exists, ends, -1)


def _repeat(rank_set: _RankSet, properties: OfParticles, vertices: _Vertices, state: _Search) -> _Search:
    """Join components, and bring ghosts within the bounds of the remaining ones."""
    # The smallest known distance over the particles of each vertex.
    far = jnp.full_like(state.known_radius, jnp.inf)
    bound = far.at[vertices.rows].min(jnp.where(rank_set.is_used(), state.known_radius, jnp.inf))
    graph, tree, reach, rounds = join_components(state.graph, state.tree, bound)
    is_done = comm.wide_sum(tree.num).clipped() >= rank_set.total - 1
    rounds = state.rounds + jnp.stack([rounds, jnp.int32(1)])
    state = jax.tree.map(comm.vary, _Search(graph, tree, state.known_radius, rounds, is_done))

    def grow(state: _Search) -> _Search:
        return jax.tree.map(comm.vary, _with_new_ghosts(rank_set, properties, vertices, state, reach))

    return jax.lax.cond(is_done, lambda state: jax.tree.map(comm.vary, state), grow, state)


def _with_new_ghosts(
    rank_set: _RankSet, properties: OfParticles, vertices: _Vertices, state: _Search, reach: jax.Array
) -> _Search:
    """Return the graph of components with ghosts within their bounds. reach: ``(n,)``, the bounds of roots."""
    roots, bounds = _roots(state.tree.forest, reach)
    # Even without the factor, this is one number more than the bound: a component is left over if the bound is the
    # known distance.
    min_radius = jnp.where(rank_set.is_used(), farther(farther(bounds[vertices.rows] * _FARTHER)), -1)
    component = comm.of_rank(rank_set.starts, roots[:, 0]) + roots[:, 1]
    _, ghost_reach = rank_set.stage.open_leaves(min_radius[:, None])
    region = rank_set.stage.with_ghosts(ghost_reach, (properties, component[vertices.rows]))
    of_near, component = region.data
    known_radius = _known_radius(rank_set, ghost_reach, min_radius)
    used = jnp.arange(region.pos.shape[0], dtype=jnp.int32) < region.num
    component = jnp.where(used, component, jnp.iinfo(jnp.int32).max)
    label = first_of_equal(component)
    region = replace(region, data=of_near)
    part = _edges_of_part(rank_set, region, _over_ghosts(rank_set, region, known_radius, -1), label=label)
    # Join all edges over the ranks, because components may be on several ranks.
    part = part._replace(certain=jnp.zeros_like(part.certain))
    return state._replace(graph=_graph(rank_set, vertices, region, part, component), known_radius=known_radius)


def _roots(forest: kernels.Forest, reach: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return rank and row of the root of each vertex, ``(n, 2)``, and the bound of its component, ``(n,)``."""
    (parent, hooked, number), n = forest, reach.shape[0]
    rows = jnp.arange(n, dtype=jnp.int32)
    hooked_rows = jnp.clip(hooked, 0, n - 1)
    bounds = comm.fetch(reach, parent[hooked_rows, 0], parent[hooked_rows, 1], number, n)
    place = jnp.where(rows < number, hooked, n)
    parents = jnp.stack([jnp.full(n, comm.get_rank_info()[0], jnp.int32), rows], axis=1)
    return parents.at[place].set(parent[hooked_rows], mode="drop"), reach.at[place].set(bounds, mode="drop")


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


def _gaps(stage: Stage) -> jax.Array:
    """Return a distance that all particles of other ranks exceed, for each particle, ``(n,)``.

    Nodes test distances that double, so the result is at least half of the distance to the boxes of other ranks, or 0
    if it is very small.
    """
    rank_set = stage.sources
    assert rank_set.th is not None
    assert rank_set.domain is not None
    plane = min(1, rank_set.th.num_planes - 1)
    splits, lower, upper = rank_set.th.particle_splits(plane), rank_set.th.lower(plane), rank_set.th.upper(plane)
    count = rank_set.th.count(plane)
    dtype = rank_set.pos.dtype
    corner, opposite = rank_set.domain.corners
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
    rows = jnp.arange(rank_set.pos.shape[0], dtype=jnp.int32)
    return known[jnp.clip(jnp.searchsorted(splits, rows, side="right") - 1, 0, known.shape[0] - 1)]
