"""The minimum spanning tree for Euclidean and mutual reachability distances."""

from __future__ import annotations

import bisect
import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from ..arguments import Kind, check_box, check_particles, flat, known_integer
from ..config import KNNConfig, without_masses
from ..jax_ext import Exact, is_concrete
from ..knn import radii
from ..particles import Array, Index, Particles, check_num
from ..tree.stage import InputParticles, SortedParticles, opened, prepare_stage
from ._over_ranks import tree_over_ranks
from ._tree import CoreSize, SpanningTree

# The number of nearest other particles at the start of the search, in up to two dimensions and in more. With fewer,
# the search takes longer: on an AMD EPYC 9004 (Zen 4), a third for 3 instead of 7 in three dimensions, and a fifth for
# 5 instead of 8 in two. Each takes 4 bytes per particle. With these numbers, a search in float32 takes less than 12
# times the memory of the positions.
_NEAR = 8, 7
# If core distances need more, the number is the next larger size in this list, to limit compilations. For 200,000
# particles, the search takes 15 % less to 8 % more time than with the smallest number (on two cores of an AMD EPYC).
_SIZES = [7, 8, *(step << power for power in range(2, 30) for step in (3, 4))]
_TOO_MANY = "edges support less than 2**31 particles over all devices, but there are more; use fewer."
_TOO_FEW = "core_k is {1}, but there are only {0} particles; choose a smaller core_k."


@flat(core_k=Kind(P(), lambda core_k, _: _core_size(core_k)))
def spanning_tree(
    part: Particles | Index | Array,
    *,
    boxsize: ArrayLike | None = None,
    core_k: int | None = None,
    cfg: KNNConfig | None = None,
) -> SpanningTree:
    """Find the minimum spanning tree of the particles.

    Edges are ordered by the square of their length, then by the smaller row of their ends, then by the larger row.
    Squares are sums in float64, from the given positions. The tree is the only one that is smallest in this order, so
    it does not depend on the backend or on the number of threads. Two edges with different squares may have the same
    length in float64; the order of their rows does not matter.

    Friends-of-friends groups also compare squares. So the cut of the tree at a length leaves the groups with this
    linking length, bit for bit: the length of an edge in float64 is the smallest linking length that joins its ends. It
    is the rounded root of the square, or a number next to it.

    With ``core_k``, the length of an edge is the mutual reachability distance of its ends: the largest of their
    distance and of both core distances (Campello, Moulavi & Sander 2013). The core distance of a particle is the
    distance to the ``core_k``-th nearest particle, and the particle itself is the first. Like `jztree.knn.knn`, the
    search selects the nearest particles in the precision of the positions. For float32, the core distance is the exact
    distance to a particle that may be farther than the ``core_k``-th nearest one by a rounding error, 1e-7 of the
    distance. In sets with many nearly equal distances, such as distorted lattices, this changes edges, and clusters of
    `jztree_utils.hdbscan`; pass float64 positions, with ``jax_enable_x64``, to find them in float64.

    Over several devices, the edges are the same for any number of devices, bit for bit; see `SpanningTree` for their
    distribution. A device holds its particles, the particles of other devices near its own, and edges near the surface
    of its domain. Their numbers do not grow with the number of devices, except if the particles are a few clumps that
    are farther apart than wide, and every clump is on several devices. The devices exchange edges in rounds, whose
    number grows at most like the logarithm of the number of particles. In each round, a device sends at most one edge
    for each set of joined particles near its surface. For derivatives, each device gathers all positions.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped. An
            index has its own box.
        core_k: The number of particles that determines core distances, from 1 to the number of particles. None means
            that lengths are distances, like 1. ``.jit`` and ``.smap`` compile one program for each range of numbers,
            such as 9 to 12, 13 to 16 or 17 to 24.
        cfg: Options. None means the defaults.

    Returns:
        The edges, smallest square first. Their lengths are differentiable with respect to positions and box at fixed
        edges; the gradient between coincident points is 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, or if ``core_k`` is
            above a traced ``num`` or the number of particles on all devices.
        CapacityError: On all devices, if the particles of other devices do not fit ``cfg.ghost_rows``.

    Examples:
        >>> tree = jz.spanning_tree(np.array([[0.0], [1.0], [3.0], [3.5]], np.float32))
        >>> tree.i, tree.j, tree.length
        (Array([2, 0, 1], dtype=int32), Array([3, 1, 2], dtype=int32), Array([0.5, 1. , 2. ], dtype=float32))
    """
    cfg = without_masses(checked_config(cfg, KNNConfig))
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part)
    particles = InputParticles(pos, check_num(part), th=index)
    core = _core_size(core_k)
    box = check_box(boxsize, pos.shape[1])
    if comm.num_ranks() > 1:
        return _tree_over_ranks(particles, core, box, cfg)
    faults = [] if core is None else [_too_few(core, particles.num)]
    stage = prepare_stage(particles, None, box, cfg, "knn_ghosts", faults)
    return _tree_of(stage.sources, pos, core, box)


def _core_size(core_k: Any) -> CoreSize | None:
    if core_k is None or isinstance(core_k, CoreSize):
        return core_k
    core_k = known_integer(core_k, "core_k")
    if core_k < 1:
        raise ValueError(f"core_k must be at least 1, not {core_k}; the particle itself is its first neighbour.")
    if core_k >= 2**31:
        raise ValueError(f"core_k is {core_k}; it must be at most the number of particles.")
    return CoreSize(number=np.int32(core_k), near=_SIZES[bisect.bisect_left(_SIZES, core_k)]) if core_k > 1 else None


def _too_few(core: CoreSize, num: int | jax.Array) -> comm.Fault:
    count = kernels.as_num(num)
    if is_concrete(core.number) and is_concrete(num) and int(core.number) > int(num):
        raise ValueError(_TOO_FEW.format(int(num), int(core.number)))
    return comm.Fault(count < core.number, [count, core.number], _TOO_FEW)


def _tree_of(sources: SortedParticles, pos: jax.Array, core: CoreSize | None, box: Exact) -> SpanningTree:
    tree, n = sources.tree(), pos.shape[0]
    k = _number_of_near(pos, core, n)
    neighbours = kernels.knn(tree, None, None, None, k, box, others=True, radii=False)[1]
    core_row = None if core is None else core.column(neighbours)
    ends, length, exact, measure = kernels.spanning_tree(tree, sources.rows, neighbours, core_row, box)
    measure = ends if core_row is None else measure
    length = radii(_first_ends(pos, measure), pos, box, length[:, None], measure[:, 1:])[:, 0]
    num = jnp.maximum(sources.num - 1, 0)
    return SpanningTree(i=ends[:, 0], j=ends[:, 1], length=length, exact=exact, num=num, rows=n)


@functools.partial(jax.jit, inline=True)
def _first_ends(pos: jax.Array, measure: jax.Array) -> jax.Array:
    return pos[jnp.maximum(measure[:, 0], 0)]


def _number_of_near(pos: jax.Array, core: CoreSize | None, n: int) -> int:
    """Return the number of near particles per particle at the start of the search, for ``n`` rows on all ranks."""
    # At least one more particle than the core needs: the farthest one bounds the distances to the rest.
    return min(max(_NEAR[pos.shape[1] > 2], core.near if core else 0), max(n, 1))


def _tree_over_ranks(particles: InputParticles, core: CoreSize | None, box: Exact, cfg: KNNConfig) -> SpanningTree:
    pos, n, ndev = particles.pos, particles.num_rows, comm.num_ranks()
    num = kernels.as_num(particles.num)
    if n == 0:
        ends, exact = jnp.zeros(0, jnp.int32), jnp.zeros((0, 2), jnp.uint32)
        return SpanningTree(
            i=ends, j=ends, length=jnp.zeros(0, pos.dtype), exact=exact, num=comm.vary(jnp.int32(0)), rows=0
        )
    # The check of the positions reports an invalid ``num``.
    total = comm.wide_sum(jnp.clip(num, 0, n))
    num = kernels.check(num, total.exceeds_int32(), [], _TOO_MANY)
    if core is not None:
        sentence = _TOO_FEW.replace(";", " on all devices;")
        count = total.clipped()
        num = kernels.check(num, count < core.number, [count, core.number], sentence)
    k = _number_of_near(pos, core, n * ndev)
    edges, num_edges = tree_over_ranks(replace(particles, num=num), k, core, box, cfg)
    measure = edges.ends if core is None else edges.measure
    offsets = comm.starts_of(comm.all_gather(num))
    length = _lengths_over_ranks(pos, box, edges.length, measure, offsets)
    i, j = edges.ends[:, 0], edges.ends[:, 1]
    return SpanningTree(i=i, j=j, length=length, exact=edges.exact, num=num_edges, rows=n)


@jax.custom_jvp
def _lengths_over_ranks(
    pos: jax.Array, box: Exact, length: jax.Array, measure: jax.Array, offsets: jax.Array
) -> jax.Array:
    """Return ``length`` with its derivatives with respect to all positions, which each rank gathers.

    Args:
        pos: ``(n, d)``, the particles of this rank.
        box: Periodic box.
        length: ``(m,)``.
        measure: ``(m, 2)`` int32, the rows, counted over all ranks, whose distance is the length.
        offsets: ``(r,)`` int32, the first row of each rank.
    """
    del pos, box, measure, offsets
    return length


@_lengths_over_ranks.defjvp
def _lengths_over_ranks_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    pos, box, length, measure, offsets = primals
    ndev, n = comm.num_ranks(), pos.shape[0]
    rank, row = comm.rank_and_row(offsets, measure)
    row = jnp.where(measure < 0, -1, rank * n + row)
    everywhere, change = (comm.all_gather(x).reshape(ndev * n, -1) for x in (pos, tangents[0]))

    def lengths(pos: jax.Array, box: Exact) -> jax.Array:
        return radii(pos[jnp.maximum(row[:, 0], 0)], pos, box, length[:, None], row[:, 1:])[:, 0]

    return jax.jvp(lengths, (everywhere, box), (change, tangents[1]))
