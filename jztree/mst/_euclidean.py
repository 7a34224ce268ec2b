"""The minimum spanning tree for Euclidean and mutual reachability distances."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import check_box, check_particles, exact_box_argument, known_integer
from ..config import KNNConfig, checked_config, without_masses
from ..data import with_computed
from ..jax_ext import Exact, is_concrete, with_twins
from ..knn import radii
from ..particles import Particles, check_num
from ..tree.stage import InputParticles, SortedParticles, prepare_stage
from ._tree import SpanningTree

# The number of nearest other particles from which the search starts, in up to two dimensions and in more. With fewer,
# the search takes longer: on an AMD EPYC 9004 (Zen 4), a third for 3 instead of 7 in three dimensions. Each takes 8
# bytes per particle. With these numbers, a search in float32 takes less than 12 times the memory of the positions.
_NEAR = 4, 7
_TOO_FEW = "core_k is %d, but there are only {0} particles; choose a smaller core_k."


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    core_k = arguments["core_k"]
    return exact_box_argument(arguments) | ({} if core_k is None else {"core_k": known_integer(core_k, "core_k")})


@with_twins({"part": P(-1), "boxsize": P()}, P(-1), prepare=_prepared)
@with_computed
def euclidean(
    part: Particles | ArrayLike,
    boxsize: ArrayLike | None = None,
    core_k: int | None = None,
    cfg: KNNConfig | None = None,
) -> SpanningTree:
    """Find the minimum spanning tree of the particles.

    Edges are ordered by length, then by the smaller row of their ends, then by the larger row. The tree is the only one
    that is smallest in this order, so it does not depend on the backend or on the number of threads. Lengths are
    compared in float64, from the given positions.

    The cut of the tree at a length leaves the friends-of-friends groups with this linking length, bit for bit: an edge
    belongs to the groups from its length in float64 on.

    With ``core_k``, the length of an edge is the mutual reachability distance of its ends: the largest of their
    distance and of both core distances (Campello, Moulavi & Sander 2013). The core distance of a particle is the
    distance to the ``core_k``-th nearest particle, and the particle itself is the first.

    The function runs on one device. ``smap`` over several devices raises an error.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions.
        boxsize: The periodic length, or one per dimension; 0 or None means open. Positions outside the box are wrapped.
        core_k: The number of particles that determines core distances, from 1 to the number of particles. None means
            that lengths are distances, like 1.
        cfg: Options. None means the defaults.

    Returns:
        The edges, shortest first. Their lengths are differentiable with respect to positions and box at fixed edges;
        the gradient between coincident points is 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, or if ``core_k`` is
            above a traced ``num``.
        NotImplementedError: On several devices.
    """
    cfg = without_masses(checked_config(cfg, KNNConfig))
    pos = check_particles(part)
    num = check_num(part)
    core_k = _check_core_k(core_k, num)
    if comm.num_ranks() > 1:
        raise NotImplementedError(
            f"jztree.mst.euclidean supports one device, but it was mapped over {comm.num_ranks()}; call it outside of "
            "smap with the particles on one device."
        )
    box = check_box(boxsize, pos.shape[1])
    faults = [] if core_k is None else [_too_few(core_k, num)]
    stage = prepare_stage(InputParticles(pos, num), None, box, cfg, "knn_ghosts", faults)
    return _tree_of(stage.sources, pos, core_k, box)


def _check_core_k(core_k: Any, num: Any) -> int | None:
    if core_k is None:
        return None
    core_k = known_integer(core_k, "core_k")
    if core_k < 1:
        raise ValueError(f"core_k must be at least 1, not {core_k}; the particle itself is its first neighbour.")
    if core_k == 1:
        return None
    if is_concrete(num) and core_k > int(num):
        raise ValueError((_TOO_FEW % core_k).format(int(num)))
    return core_k


def _too_few(core_k: int, num: Any) -> comm.Fault:
    given = kernels.as_num(num)
    return comm.Fault(given < core_k, [given], _TOO_FEW % core_k)


def _tree_of(sources: SortedParticles, pos: jax.Array, core_k: int | None, box: Exact) -> SpanningTree:
    tree, n = sources.tree(), pos.shape[0]
    # One more particle than the core needs: the farthest one bounds the distance of all others.
    k = min(max(_NEAR[pos.shape[1] > 2], core_k or 0), max(n, 1))
    near = kernels.knn(tree, None, None, None, k, box, others=True)[1]
    core_row = None if core_k is None else near[:, core_k - 2]
    ends, length, exact, measure = kernels.spanning_tree(tree, sources.rows, near, core_row, box)
    measure = ends if core_row is None else measure
    at = jnp.maximum(measure[:, 0], 0)
    length = radii(pos[at], pos, box, length[:, None], measure[:, 1:])[:, 0]
    num = jnp.maximum(sources.num - 1, 0)
    return SpanningTree(i=ends[:, 0], j=ends[:, 1], length=length, exact=exact, num=num, rows=n)
