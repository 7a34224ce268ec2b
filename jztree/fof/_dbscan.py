"""DBSCAN: clusters of particles with many others nearby.

M. Ester, H.-P. Kriegel, J. Sander, X. Xu (1996), "A density-based algorithm for discovering clusters in large spatial
databases with noise", KDD-96. Particles with enough others within a length are cores. Clusters are the
friends-of-friends groups of the cores. Particles within that length of a core are on the border of its cluster.

A count that stops at ``min_samples`` decides whether a particle is a core. It counts nodes that are wholly within the
length without opening them. A second hierarchy holds only the cores, and their groups are found in it. Other particles
search it for the smallest cluster near them. A search skips nodes whose clusters are all larger than the smallest so
far. Memory is O(n) for any length. Time is O(n log n) if ``min_samples`` is small.

Over the ranks of a mesh, each rank counts the neighbours of its range of the z-order among its own particles and the
ghosts around them. `jztree.fof._over_ranks` finds the groups of the cores on all ranks, and `_group_numbers` numbers
them. Particles that are not cores search all cores near them.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from ..arguments import Radii, check_box, check_length, check_particles, flat, known_integer, one_length
from ..config import FofConfig, without_masses
from ..jax_ext import Exact
from ..particles import Array, Index, Particles, check_num
from ..tree.stage import (
    InputParticles,
    ParticlesWithGhosts,
    SortedParticles,
    Stage,
    opened,
    prepare_stage,
    starts_of_ranks,
)
from ._dbscan_rows import CORE, OTHER, has_borders, kinds, rows_by_kind
from ._group_numbers import numbers_of_clusters
from ._over_ranks import groups_over_ranks


class Clusters(NamedTuple):
    """Clusters of particles; see `dbscan`.

    Attributes:
        labels: ``(n,)`` int32, the cluster of each particle, or -1.
        is_core: ``(n,)`` bool, whether each particle is a core.
    """

    labels: jax.Array
    is_core: jax.Array


@flat(eps=one_length("eps"))
def dbscan(
    part: Particles | Index | Array,
    eps: ArrayLike,
    *,
    min_samples: int = 5,
    boxsize: ArrayLike | None = None,
    cfg: FofConfig | None = None,
) -> Clusters:
    """Cluster particles by density, like `sklearn.cluster.DBSCAN` (Ester et al. 1996).

    Two particles are near each other if their distance is at most ``eps``. A core is a particle that has at least
    ``min_samples`` particles near it, including itself. Cores that are near each other, directly or through other
    cores, form a cluster. A particle that is not a core, but near some cores, belongs to the first of their clusters.
    All other particles are noise.

    Clusters are numbered from 0, in the order of their first cores; noise has the number -1. scikit-learn uses the same
    numbers. With ``min_samples=1``, clusters are friends-of-friends groups; with 2, they are the groups of at least two
    particles.

    Clusters do not depend on the number of devices. Over several devices, the order of cores is by device and then by
    row on it.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        eps: The largest distance of two particles that are near each other, in the unit of the positions. The
            comparison is made in float64 from the original positions. Equal on all ranks.
        min_samples: The smallest number of particles near a core, including itself; at least 1. If it is above the
            number of particles, no particle is a core.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        `Clusters`, ``(labels, is_core)``: the cluster of each particle or -1, ``(n,)`` int32; and ``(n,)`` bool, True
        for cores; both in the order of ``part``. Rows from ``num`` on are -1 and False.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, or a
            traced ``eps`` or ``boxsize`` is invalid.
        CapacityError: On several devices, if rows do not fit the capacities in ``cfg``.

    Examples:
        >>> pos = np.array([[0.0], [0.1], [0.2], [0.3], [2.0]], np.float32)
        >>> labels, is_core = jz.dbscan(pos, 0.15, min_samples=3)
        >>> labels, is_core
        (Array([ 0,  0,  0,  0, -1], dtype=int32), Array([False,  True,  True, False, False], dtype=bool))
    """
    cfg = without_masses(checked_config(cfg, FofConfig))
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part)
    min_count = min(_checked_samples(min_samples), 2**31 - 1)  # above any possible number of particles
    box = check_box(boxsize, pos.shape[1])
    length = check_length(eps, box, "eps")
    stage = prepare_stage(InputParticles(pos, check_num(part), th=index), None, box, cfg, "radius_ghosts")
    return Clusters(*_Search(stage, length, min_count, cfg).clusters())


@dataclass
class _Search:
    """The particles, and the arguments of a search for clusters.

    Attributes:
        stage: The particles in z-order.
        length: Largest distance of near particles.
        min_samples: Number of near particles of a core, including itself.
        cfg: Options.
    """

    stage: Stage
    length: Exact
    min_samples: int
    cfg: FofConfig

    def clusters(self) -> tuple[jax.Array, jax.Array]:
        """Return the cluster of each particle, and whether it is a core, in the input rows."""
        stage, sources = self.stage, self.stage.sources
        if stage.is_distributed:
            around, starts = self._near(), starts_of_ranks(sources.given_num())
            kind = self._kinds(around.tree(), sources.tree())
            cluster = self._over_ranks(kind, around, starts)
            return stage.send_back((cluster, kind == CORE), fill=(-1, False))
        kind = self._kinds(sources.tree(), None)
        core = stage.send_back(kind) == CORE
        return self._on_one_device(kind, core), core

    def _kinds(self, sources: kernels.Tree, queries: kernels.Tree | None) -> jax.Array:
        box = self.stage.box
        enough = kernels.enough_within(sources, queries, self.length, self.min_samples, box)
        return kinds(enough, self.stage.sources.num)

    def _on_one_device(self, kind: jax.Array, core: jax.Array) -> jax.Array:
        """Return the clusters on one device, in the input rows.

        Args:
            kind: ``(n,)`` int32, the kind of each particle in z-order.
            core: ``(n,)`` bool, mask of the cores in the input rows.
        """
        sources, box = self.stage.sources, self.stage.box
        assert sources.rows is not None
        cores, order = self._select(kind, CORE)
        rows = sources.rows[order]
        cluster = _numbered(kernels.fof(cores.tree(), rows, self.length, box), core)
        if not has_borders(self.min_samples):
            return cluster
        non_cores, order = self._select(kind, OTHER)
        border = kernels.least_within(
            cores.tree(), cluster[rows], non_cores.tree(), sources.rows[order], self.length, box
        )
        return _with_border(cluster, core, border)

    def _select(self, kind: jax.Array, selected_kind: int) -> tuple[SortedParticles, jax.Array]:
        """Return the particles of a kind with a hierarchy, and the row of each, followed by all other rows."""
        order, numbers = rows_by_kind(kind, selected_kind)
        return self.stage.sources.select(order, numbers[0], self.cfg.tree), order

    def _near(self) -> ParticlesWithGhosts:
        """Return this rank's particles, and the particles of other ranks within the length of any particle here."""
        pos = self.stage.sources.pos
        self.stage.exchange_boxes()
        reach = Radii(self.length, None).outermost(pos.shape[0], pos.dtype)
        return self.stage.with_ghosts(self.stage.open_leaves(reach[:, None])[1])

    def _over_ranks(self, kind: jax.Array, around: ParticlesWithGhosts, starts: jax.Array) -> jax.Array:
        """Return the clusters over ranks, in z-order.

        Args:
            kind: ``(n,)`` int32, the kind of each particle.
            around: Own particles with ghosts.
            starts: ``(r,)`` int32, the number of each rank's first particle.
        """
        order, numbers = rows_by_kind(kind, CORE)
        cores = self.stage.sources.select(order, numbers[0], None)
        stage = Stage(cores, cores, self.stage.box, self.cfg, "fof_ghosts")
        groups = groups_over_ranks(stage, Radii(self.length, None), self.cfg)
        origin, input_rows = self.stage.sources.origin, self.stage.sources.given_rows()
        number = comm.of_rank(starts, origin.rank[order]) + origin.idx[order]
        cluster = numbers_of_clusters(groups, number, starts, input_rows)
        cluster = kernels.scatter_rows(cluster, order)
        if not has_borders(self.min_samples):
            return cluster
        first_cluster = self._least(kind, around, cluster)
        return _with_border(cluster, kind == CORE, first_cluster)

    def _least(self, kind: jax.Array, around: ParticlesWithGhosts, cluster: jax.Array) -> jax.Array:
        """Return the smallest cluster with a core near each particle that is not a core, over all ranks, in z-order."""
        present = around.route().more(cluster)
        rows = jnp.arange(present.shape[0], dtype=jnp.int32)
        core = (rows < around.num) & (present >= 0)
        order, numbers = rows_by_kind(jnp.where(core, CORE, OTHER), CORE)
        non_cores, rows = self._select(kind, OTHER)
        cores = around.select(order, numbers[0], self.cfg.tree)
        return kernels.least_within(cores.tree(), present[order], non_cores.tree(), rows, self.length, self.stage.box)


def _checked_samples(min_samples: Any) -> int:
    number = known_integer(min_samples, "min_samples")
    if number < 1:
        raise ValueError(f"min_samples is {number}; it must be at least 1, because a core counts itself.")
    return number


@functools.partial(jax.jit, inline=True)
def _numbered(group: jax.Array, core: jax.Array) -> jax.Array:
    """Return the cluster of each core, and -1 for other particles.

    Args:
        group: ``(n,)`` int32, the first row of each particle's group.
        core: ``(n,)`` bool, mask of the cores.
    """
    first = core & (group == jnp.arange(group.shape[0], dtype=jnp.int32))
    number = jnp.cumsum(first, dtype=jnp.int32) - 1
    return jnp.where(core, number[group], -1)


@functools.partial(jax.jit, inline=True)
def _with_border(cluster: jax.Array, core: jax.Array, border: jax.Array) -> jax.Array:
    return jnp.where(core, cluster, jnp.where(border < jnp.iinfo(border.dtype).max, border, -1))
