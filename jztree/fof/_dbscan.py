"""DBSCAN: clusters of particles with many others nearby.

M. Ester, H.-P. Kriegel, J. Sander, X. Xu (1996), "A density-based algorithm for discovering clusters in large spatial
databases with noise", KDD-96. Particles with enough others within a length are cores. Clusters are the
friends-of-friends groups of the cores. Particles within that length of a core are on the border of its cluster.

A count that stops at ``min_samples`` decides whether a particle is a core. It counts nodes that are wholly within the
length without opening them. A second hierarchy holds only the cores, and their groups are found in it. Other particles
search it for the smallest cluster near them. A search skips nodes whose clusters are all larger than the smallest so
far. Memory is O(n) for any length. Time is O(n log n) if ``min_samples`` is small.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._checks import check_box, check_particles, exact_box_argument, known_integer
from .._particles import check_num
from ..config import FofConfig, checked_config, without_masses
from ..data import get_num, with_computed
from ..jax_ext import Exact, with_twins
from ..tree import build_in_domain, kernel_tree, sort_in_domain
from ..tree._zorder import domain_of
from ._dbscan_over_ranks import clusters_over_ranks
from ._dbscan_rows import CORE, OTHER, has_borders, kinds, rows_by_kind
from ._lengths import check_length

_MAX_DIMS = 4


def _exact_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    exact_box = exact_box_argument(arguments)
    return exact_box | {"eps": check_length(arguments["eps"], exact_box["boxsize"], "eps")}


@with_twins({"part": P(-1), "eps": P(), "boxsize": P()}, P(-1), prepare=_exact_arguments)
@with_computed
def dbscan(
    part: Any, eps: Any, min_samples: int = 5, boxsize: Any = None, cfg: FofConfig | None = None
) -> tuple[jax.Array, jax.Array]:
    """Cluster particles by density, as `sklearn.cluster.DBSCAN` does (Ester et al. 1996).

    part: a particle class with ``pos`` ``(n, d)``, d from 1 to 4, float32 or float64, or an array of positions.
    eps: the largest distance at which particles are near each other, in the unit of the positions. The comparison is
        made in float64 from the original positions.
    min_samples: the number of particles, including itself, that a core must have near it; any number from 1 on. If it
        is above the number of particles, there are no cores.
    boxsize: periodic length, or one per dimension; 0 or None means open. Positions outside the box are wrapped.

    Returns ``(n,)`` int32 clusters and an ``(n,)`` bool mask of the cores, in the order of ``part``. Cores that are
    near each other, directly or through other cores, form a cluster. Clusters are numbered from 0 on by their first
    core. A particle that is not a core but near some belongs to the first of their clusters. All others are noise, -1.
    These are the labels of scikit-learn. With ``min_samples=1``, clusters are friends-of-friends groups; with 2, those
    of two particles or more. Rows from ``num`` on are -1.

    Clusters do not depend on the number of devices. Over several devices, cores are ordered by device and by row on it.
    Raises TypeError or ValueError for invalid arguments. Raises an error at run time, on every device, if a position is
    NaN or infinite, or a traced ``eps`` or ``boxsize`` is invalid.
    """
    cfg = without_masses(checked_config(cfg, FofConfig))
    pos = check_particles(part, max_dims=_MAX_DIMS)
    least = min(_checked_samples(min_samples), 2**31 - 1)  # above any possible number of particles
    box = check_box(boxsize, pos.shape[1])
    length = check_length(eps, box, "eps")
    check_num(part)
    if comm.num_ranks() > 1:
        return clusters_over_ranks(part, length, least, box, cfg)
    return _clusters(part, pos, length, least, box, cfg)


def _clusters(
    part: Any, pos: jax.Array, length: Exact, min_samples: int, box: Exact, cfg: FofConfig
) -> tuple[jax.Array, jax.Array]:
    """Cluster the particles of one device."""
    domain, (num,) = domain_of([pos], [get_num(part)], ["the positions"], box)
    built = sort_in_domain(pos, num, domain, cfg.tree)
    tree = kernel_tree(built.part, num, built.th)
    kind = kinds(kernels.enough_within(tree, None, length, min_samples, box), num)

    def first(which: int) -> tuple[kernels.Tree, jax.Array]:
        """Return the hierarchy over particles of a kind, and the rows of ``part`` of these, followed by all others."""
        order, numbers = rows_by_kind(kind, which)
        posz = kernels.gather_rows(built.part, order)
        th = build_in_domain(posz, numbers[0], domain, cfg.tree)
        return kernel_tree(posz, numbers[0], th), built.rows[order]

    cores, core_rows = first(CORE)
    group = kernels.fof(cores, core_rows, length, box)
    core = kernels.scatter_rows(kind, built.rows) == CORE
    cluster = _numbered(group, core)
    if not has_borders(min_samples):
        return cluster, core
    others, other_rows = first(OTHER)
    near = kernels.least_within(cores, cluster[core_rows], others, other_rows, length, box)
    return _with_border(cluster, core, near), core


def _checked_samples(min_samples: Any) -> int:
    number = known_integer(min_samples, "min_samples")
    if number < 1:
        raise ValueError(f"min_samples is {number}; a core has at least 1 particle near it, itself.")
    return number


@functools.partial(jax.jit, inline=True)
def _numbered(group: jax.Array, core: jax.Array) -> jax.Array:
    """Return the cluster of each core. group: the first row of each particle's group."""
    first = core & (group == jnp.arange(group.shape[0], dtype=jnp.int32))
    number = jnp.cumsum(first, dtype=jnp.int32) - 1
    return jnp.where(core, number[group], -1)


@functools.partial(jax.jit, inline=True)
def _with_border(cluster: jax.Array, core: jax.Array, near: jax.Array) -> jax.Array:
    return jnp.where(core, cluster, jnp.where(near < jnp.iinfo(near.dtype).max, near, -1))
