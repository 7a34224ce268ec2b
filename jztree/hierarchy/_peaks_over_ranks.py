"""Find the peaks of a density over the ranks of a mesh, with the bits of one device.

Peaks, saddles and parents depend only on the graph of neighbours and on the order of the particles in falling density.
One device and several have the same graph: neighbours at equal distances follow the z-order over all ranks. They have
the same order: equal densities follow the rows among all particles. So each particle has a unique place, and the places
of its ends order an edge.

1. Sort the densities over all ranks. Each rank gets a share of the order, and particles get their places.
2. Sort the particles in z-order. Find the neighbours of each particle, with ghosts (`jztree.knn`).
3. Each rank finds the densest neighbour of its particles and ghosts. For ghosts, it sends this candidate to their rank,
   where only the densest candidate remains: a neighbour of a particle is in its list, or has it in its own.
4. Paths of densest neighbours end at a peak. A rank follows the paths of its particles up to a peak or another rank.
   The few paths that leave the rank then jump over the ranks.
5. Each rank reduces the edges of its lists to the first ones that join peaks among them. All others are the last edge
   of a circle among the edges of the rank, and so of a circle among all edges: one device never takes them either.
6. `jztree.mst` joins the peaks over the ranks by the first edge of each set (Boruvka 1926). The edges are unique in
   their order, so their forest is, and it has the edges of one device.
7. All ranks gather these edges, 12 bytes for each peak, and end the peaks in the order of the edges, like one device.
   Each keeps the rows of the table for peaks in its share of the order.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._transform.capacity import Capacity, choose_capacity
from ..data import RankIdx
from ..jax_ext import Exact
from ..knn import others_with_ghosts
from ..mst import (
    Edges,
    Graph,
    Tree,
    compacted,
    first_forest,
    first_of_equal,
    join_components,
    move_up,
    no_edges,
    sort_over_ranks,
)
from ..tree.stage import InputParticles, ParticlesWithGhosts, Stage, prepare_stage, rows_of_rank
from ._peak_table import DensityPeaks, ends_of_peaks, roots, table_of

_MIN_ROWS = 1024
_ADVICE = "call the function with fewer particles per device."
_TOO_MANY = "rows support less than 2**31 particles over all devices, but there are more; use fewer."
_LAST = jnp.iinfo(jnp.int32).max


class _Order(NamedTuple):
    """This rank's share of the particles in falling density.

    Attributes:
        starts: ``(r,)`` int32, the first place of each rank's share.
        level: ``(n,)``, the density of each particle.
        row: ``(n,)`` int32, its row among the particles on all ranks.
        num: Number of particles in the share.
    """

    starts: jax.Array
    level: jax.Array
    row: jax.Array
    num: jax.Array

    def holder(self, place: jax.Array) -> RankIdx:
        """Return the rank of the share with each place, and the row there. The rank of a negative place is -1."""
        return RankIdx(*comm.rank_and_row(self.starts, place))


class _Listed(NamedTuple):
    """The peaks in this rank's share of the order, which are its rows of the table.

    Attributes:
        share_row: ``(n,)`` int32, the row of each peak in the share.
        first: The number of the first peak.
        num: Number of peaks here.
        total: Number of peaks on all ranks.
    """

    share_row: jax.Array
    first: jax.Array
    num: jax.Array
    total: jax.Array


def peaks_over_ranks(
    particles: InputParticles, density: jax.Array, k: int, box: Exact, cfg: Any, fault: comm.Fault
) -> DensityPeaks:
    """Return the peaks of this rank's particles, and its rows of the table.

    Args:
        particles: Particles of this rank.
        density: ``(n,)``.
        k: Number of nearest particles that are neighbours, including the particle itself.
        box: Periodic box.
        cfg: Options.
        fault: A possible fault of the densities.
    """
    n, num_rows = particles.num_rows, kernels.as_num(particles.num)
    if n == 0:
        none = jnp.zeros(0, jnp.int32)
        return table_of(none, (none, density), (none, density), none, none, comm.vary(jnp.int32(0)))
    # The check of the positions reports an invalid ``num``.
    num = jnp.clip(num_rows, 0, n)
    num = kernels.check(num, comm.wide_sum(num).exceeds_int32(), [], _TOO_MANY)
    starts = comm.starts_of(comm.all_gather(num))
    order, place = _falling_order(jax.lax.stop_gradient(density), starts, num)
    particles = replace(particles, num=comm.after(num_rows, place), data=place)
    stage = prepare_stage(particles, None, box, cfg, "knn_ghosts", [fault])
    region, neighbours = _neighbours(stage, min(k, n * comm.num_ranks()) - 1)
    summit = _climb(stage, _densest(region, neighbours, n))
    number, listed = _number_peaks(stage, order, summit)
    peak = stage.send_back(number, fill=-1)
    edges, count = _joining_edges(region, neighbours, summit, comm.after(number, peak + 1))
    return _table(density, starts, order, listed, peak, edges, count)


def _falling_order(level: jax.Array, starts: jax.Array, num: jax.Array) -> tuple[_Order, jax.Array]:
    """Sort the densities over all ranks. Return this rank's share, and the place of each of its rows, ``(n,)`` int32.

    Args:
        level: ``(n,)``, the densities of this rank.
        starts: ``(r,)`` int32, the first of the joined rows of each rank.
        num: Number of particles of this rank.
    """
    (rank, ndev, _), rows = comm.get_rank_info(), jnp.arange(level.shape[0], dtype=jnp.int32)
    (level, row), count = comm.sort_by_keys(
        (level, starts[rank] + rows),
        lambda columns: [*kernels.descending_words(columns[0]), columns[1].astype(jnp.uint32)],
        num,
        "densities",
    )
    shares = comm.share(comm.wide_sum(num), jnp.arange(ndev, dtype=jnp.int32), ndev)[1].clipped()
    owner, owner_row = comm.rank_and_row(starts, row)
    place = shares[rank] + rows
    (owner_row, place), arrived, _ = comm.exchange_by_rank(
        (owner_row, place), owner, count, Capacity(level.shape[0], "back"), name="densities"
    )
    owner_row = jnp.where(rows < arrived, owner_row, level.shape[0])
    return _Order(shares, level, row, count), jnp.zeros_like(place).at[owner_row].set(place, mode="drop")


def _neighbours(stage: Stage, k: int) -> tuple[ParticlesWithGhosts, jax.Array]:
    """Return the particles with ghosts, with place and location as data, and the lists of neighbours of own particles.

    Args:
        stage: The particles, with places as data.
        k: Number of neighbours in a list.
    """
    particles = stage.sources
    n = particles.pos.shape[0]
    stage.exchange_boxes(comm.all_gather(particles.num), close=True)
    data = particles.data, rows_of_rank(n)
    if k > 0:
        region, _, neighbours = others_with_ghosts(stage, k, data)
        return region, neighbours
    no_reach = jnp.full_like(stage.query_boxes[1][:, 0], -1)
    return stage.with_ghosts(no_reach, data), comm.vary(jnp.zeros((n, 0), jnp.int32))


def _densest(region: ParticlesWithGhosts, neighbours: jax.Array, n: int) -> RankIdx:
    """Return the location of the densest neighbour of each of a rank's ``n`` rows; the row itself if none is denser.

    The rank finds the densest neighbour of each of its particles and ghosts among the lists of its own particles, and
    sends it to the rank of the ghost. All ranks that have a particle as a ghost, and its own rank, have such a
    candidate.
    """
    route, (place, location) = region.route(), region.data
    candidate = kernels.densest_neighbours(neighbours, route.start, place, region.num)
    rows = jax.tree.map(lambda column: column[candidate], (place, location))
    (place, location), count, _ = comm.exchange(rows, route.traffic.back(), route.room, name="peaks")
    row = jnp.where(jnp.arange(route.room.rows, dtype=jnp.int32) < count, route.order, n)
    best = comm.vary(jnp.full(n, _LAST, jnp.int32)).at[row].min(place, mode="drop")
    row = jnp.where(place == best.at[row].get(mode="clip"), row, n)
    return jax.tree.map(lambda default, column: default.at[row].set(column, mode="drop"), rows_of_rank(n), location)


def _climb(stage: Stage, above: RankIdx) -> RankIdx:
    """Return the location of the peak of each row; ``above``: the next one on its path."""
    rank, n = comm.get_rank_info()[0], above.idx.shape[0]
    rows = jnp.arange(n, dtype=jnp.int32)
    leaves = (above.rank != rank) & (rows < stage.sources.num)
    # The last particle here on each path. It is a peak, or its path leaves the rank.
    last = roots(jnp.where(leaves, rows, above.idx))
    next_last = comm.fetch(last, jnp.where(leaves, above.rank, -1), above.idx, n, n)
    parent = jnp.where(leaves[:, None], jnp.stack([above.rank, next_last], axis=1), jnp.stack(rows_of_rank(n), axis=1))
    forest = parent, compacted(leaves, n), jnp.sum(leaves, dtype=jnp.int32)
    forest, _ = move_up(forest, comm.vary(jnp.zeros((0, 4), jnp.int32)), jnp.int32(0), n)
    return RankIdx(*kernels.own_labels(last, forest, stage.sources.num, rank))


def _number_peaks(stage: Stage, order: _Order, summit: RankIdx) -> tuple[jax.Array, _Listed]:
    """Number the peaks over all ranks, densest first.

    Args:
        stage: The particles, with places as data.
        order: This rank's share of the order.
        summit: The location of the peak of each row.

    Returns:
        The number of each row's peak, -1 for rows of padding; and the peaks in this rank's share.
    """
    place, num, rank = stage.sources.data, stage.sources.num, comm.get_rank_info()[0]
    n = place.shape[0]
    rows = jnp.arange(n, dtype=jnp.int32)
    is_here, holder = summit.rank == rank, order.holder(place)
    to_rank = jnp.where(is_here & (summit.idx == rows), holder.rank, -1)
    held, count, route = comm.exchange_by_rank([holder.idx], to_rank, num, Capacity(n, "back"), name="peaks")
    is_peak = comm.vary(jnp.zeros(n, bool)).at[jnp.where(rows < count, held[0], n)].set(True, mode="drop")
    counts = comm.all_gather(jnp.sum(is_peak, dtype=jnp.int32))
    first = comm.starts_of(counts)[rank]
    number = first + jnp.cumsum(is_peak, dtype=jnp.int32) - 1
    listed = _Listed(compacted(is_peak, n), first, counts[rank], jnp.sum(counts, dtype=jnp.int32))
    number = comm.send_back(number[held[0]], route, name="peaks")
    distant = comm.fetch(number, jnp.where(is_here, -1, summit.rank), summit.idx, num, n)
    number = jnp.where(is_here, number[jnp.where(is_here, summit.idx, 0)], distant)
    return jnp.where(rows < num, number, -1), listed


def _joining_edges(
    region: ParticlesWithGhosts, neighbours: jax.Array, summit: RankIdx, number: jax.Array
) -> tuple[Edges, jax.Array]:
    """Return this rank's share of the edges that join peaks, in order, and their number.

    The weight of an edge is the places of its ends, the sparser one in the high word. Its ends are the numbers of the
    peaks that it joins.

    Args:
        region: The particles with ghosts.
        neighbours: The lists of own particles.
        summit: The location of the peak of each own row.
        number: Its number.
    """
    (place, _), route, n = region.data, region.route(), number.shape[0]
    summit, number = route.more((summit, number))
    m = place.shape[0]
    order = kernels.sort_words([place], region.num)
    rank = jnp.zeros_like(order).at[order].set(jnp.arange(m, dtype=jnp.int32), unique_indices=True)
    used = jnp.arange(m, dtype=jnp.int32) < region.num
    peak = first_of_equal(jnp.where(used, number, _LAST))
    ends, count = kernels.peak_forest(neighbours, route.start, rank, region.num, peak)
    capacity = choose_capacity("peak_edges", None, m // 8 + _MIN_ROWS, m)
    count = comm.require_capacity(count, comm.all_gather(count), capacity, "edges between peaks", _ADVICE)
    ends = jnp.pad(ends, ((0, 1), (0, 0)), constant_values=-1)[: capacity.rows]
    row = order[jnp.maximum(ends, 0)]
    edges = Edges(
        weight=place[row[:, ::-1]].astype(jnp.uint32),
        ends=number[row],
        exact=jnp.zeros((0, 2), jnp.uint32),
        length=comm.vary(jnp.zeros(capacity.rows, jnp.float32)),
        measure=jnp.zeros((0, 2), jnp.int32),
    )
    vertices = jnp.stack([summit.rank[row], summit.idx[row]], axis=2).reshape(-1, 4)
    tree = Tree(first_forest(n), no_edges(edges, n), comm.vary(jnp.int32(0)))
    unbounded = comm.vary(jnp.full(n, jnp.inf, jnp.float32))
    tree = join_components(Graph(vertices, edges, count), tree, unbounded)[1]
    return sort_over_ranks(tree.edges, tree.num)


def _table(
    density: jax.Array,
    starts: jax.Array,
    order: _Order,
    listed: _Listed,
    peak: jax.Array,
    edges: Edges,
    count: jax.Array,
) -> DensityPeaks:
    """Return the peaks.

    Args:
        density: ``(n,)``, of this rank's rows.
        starts: ``(r,)`` int32, the first of the joined rows of each rank.
        order: This rank's share of the order.
        listed: The peaks in this share.
        peak: ``(n,)`` int32, the number of each row's peak.
        edges: This rank's share of the edges that join peaks; see `_joining_edges`.
        count: The number of edges.
    """
    n = density.shape[0]
    used = jnp.arange(n, dtype=jnp.int32) < listed.num
    joined, saddle, total = _gathered(edges, count, listed.total)
    saddle, parent, across = ends_of_peaks(joined, saddle, total, n, listed.first, listed.num)
    bits = jax.lax.bitcast_convert_type(order.level, jnp.int32).reshape(n, -1)
    particle = jnp.concatenate([order.row[:, None], bits], axis=1)
    holder = order.holder(saddle)
    saddle_particle = comm.fetch(particle, holder.rank, holder.idx, listed.num, n)

    def row_and_density(exists: jax.Array, particle: jax.Array) -> tuple[jax.Array, jax.Array]:
        row, bits = particle[:, 0], particle[:, 1:]
        level = jax.lax.bitcast_convert_type(bits[:, 0] if bits.shape[1] == 1 else bits, density.dtype)
        return jnp.where(exists, row, -1), _density_of(density, starts, level, row)

    top = row_and_density(used, particle[listed.share_row])
    return table_of(peak, top, row_and_density(saddle >= 0, saddle_particle), parent, across, listed.num)


def _gathered(edges: Edges, count: jax.Array, peaks: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gather the edges from all ranks. Return the peaks that they join, the places of their saddles, and their number.

    Args:
        edges: This rank's share.
        count: Number of its edges.
        peaks: Number of peaks on all ranks.
    """
    n, ndev = edges.length.shape[0], comm.num_ranks()
    capacity = choose_capacity("peaks", None, n // 16 + _MIN_ROWS, n)
    # At most this number of edges are in each share.
    share = jnp.full(ndev, -(-peaks // ndev), jnp.int32)
    count = comm.require_capacity(count, share, capacity, "peaks", _ADVICE)
    columns = jnp.concatenate([edges.ends, edges.weight[:, 1:].astype(jnp.int32)], axis=1)[: capacity.rows]
    counts = comm.all_gather(count)
    total, starts = jnp.sum(counts, dtype=jnp.int32), comm.starts_of(counts)
    place = jnp.arange(ndev * capacity.rows, dtype=jnp.int32)
    rank, row = comm.rank_and_row(starts, place)
    rows = jnp.minimum(rank * capacity.rows + row, ndev * capacity.rows - 1)
    columns = comm.all_gather(columns).reshape(-1, 3)[rows]
    return columns[:, :2], jnp.where(place < total, columns[:, 2], -1), total


@jax.custom_jvp
def _density_of(density: jax.Array, starts: jax.Array, level: jax.Array, row: jax.Array) -> jax.Array:
    """Return ``level``, with its derivative with respect to all densities, which each rank gathers.

    Args:
        density: ``(n,)``, of this rank's rows.
        starts: ``(r,)`` int32, the first of the joined rows of each rank.
        level: ``(m,)``, densities.
        row: ``(m,)`` int32, their joined rows.
    """
    del density, starts, row
    return level


@_density_of.defjvp
def _density_of_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    _, starts, _, row = primals
    return _density_of(*primals), comm.all_gather(tangents[0])[comm.rank_and_row(starts, row)]
