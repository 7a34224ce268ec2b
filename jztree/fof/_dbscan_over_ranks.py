"""DBSCAN over the ranks of a mesh.

1. Sort the particles of all ranks in z-order. Each rank counts the neighbours of its particles, like `jztree.radius`.
2. Find the groups of the cores with the friends-of-friends algorithm (`jztree.fof._over_ranks`). The rank and row of a
   group's first core in z-order, its root, identify the group.
3. Number clusters by the input row of their first core. The root receives the smallest such row from all cores of the
   group. The rank that owns this row counts such rows, and answers travel back: to the root, then to all cores.
4. Particles that are not cores search for the smallest cluster number of the cores near them, also on other ranks.
"""

from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._radii import Radii
from ..config import FofConfig, RadiusConfig
from ..data import Label
from ..jax_ext import Exact
from ..radius._search import Asked, Ready, make_ready
from ..tree import build_in_domain, kernel_tree
from ._dbscan_rows import CORE, OTHER, has_borders, kinds, rows_by_kind
from ._over_ranks import groups_in_domain

_NONE = 2**31 - 1


def clusters_over_ranks(
    part: Any, length: Exact, min_samples: int, box: Exact, cfg: FofConfig
) -> tuple[jax.Array, jax.Array]:
    """Return the cluster of each particle in this rank's input, and whether it is a core."""
    around = RadiusConfig(tree=cfg.tree, ghost_rows=cfg.ghost_rows)
    ready = make_ready(Asked(part, None, None, Radii(length, None), box, None, around, numbered=True))
    search = _Search(ready, length, min_samples, box, cfg)
    return tuple(ready.sent_home((search.clusters(), search.kind == CORE), fill=(-1, False)))


class _Search:
    def __init__(self, ready: Ready, length: Exact, min_samples: int, box: Exact, cfg: FofConfig) -> None:
        assert ready.queries is not None
        assert ready.around is not None
        self.ready, self.length, self.min_samples, self.box, self.cfg = ready, length, min_samples, box, cfg
        self.own, self.around = ready.queries, ready.around
        self.n = self.own.posz.shape[0]
        enough = kernels.enough_within(ready.sources, self.own, length, min_samples, box)
        self.kind = kinds(enough, self.own.num)

    def clusters(self) -> jax.Array:
        """Return the clusters in z-order."""
        order, numbers = rows_by_kind(self.kind, CORE)
        posz = kernels.gather_rows(self.own.posz, order)
        assert self.ready.domain is not None
        groups = groups_in_domain(posz, numbers[0], self.ready.domain, self.length, self.cfg)
        numbered = self._numbered(groups.labels(), groups.num, order)
        cluster = jnp.where(jnp.arange(self.n, dtype=jnp.int32) < groups.num, numbered, -1)
        cluster = kernels.scatter_rows(cluster, order)
        if not has_borders(self.min_samples):
            return cluster
        near = self._near(cluster)
        return jnp.where(self.kind == CORE, cluster, jnp.where(near < _NONE, near, -1))

    def _numbered(self, root: Label, num: jax.Array, order: jax.Array) -> jax.Array:
        """Return the cluster number of each core, ``(n,)``. order: the rows of the cores."""
        used = jnp.arange(self.n, dtype=jnp.int32) < num
        starts, origin = self.ready.starts, self._own_origin()
        assert starts is not None
        number = comm.of_rank(starts, origin[0][order]) + origin[1][order]
        nobody = comm.num_ranks()
        ranks = jnp.where(used, root.irank, nobody)
        first = comm.vary(jnp.full(self.n, _NONE, jnp.int32))
        first = comm.deliver([root.igroup, number], ranks, self.n, _keep_least, first, self._room())
        # The rank whose input holds the first core of a cluster counts the rows of clusters.
        home = jnp.searchsorted(starts, first, side="right").astype(jnp.int32) - 1
        row = first - starts[home]
        home = jnp.where(first < _NONE, home, nobody)
        marks = comm.vary(jnp.zeros(self._given(), jnp.int32))
        marks = comm.deliver([row], home, self.n, _mark, marks, self._room())
        before = comm.starts_of(comm.all_gather(jnp.sum(marks, dtype=jnp.int32)))[comm.get_rank_info()[0]]
        table = (before + jnp.cumsum(marks, dtype=jnp.int32) - 1)[:, None]
        at_root = comm.fetch(table, home, row, self.n, self._room())
        return comm.fetch(at_root, ranks, root.igroup, self.n, self._room())[:, 0]

    def _near(self, cluster: jax.Array) -> jax.Array:
        """Return the smallest cluster of the cores near each particle that is not a core, in z-order; _NONE if none."""
        assert self.ready.domain is not None
        present = self.around.more(cluster)
        rows = jnp.arange(present.shape[0], dtype=jnp.int32)
        core = (rows < self.around.num) & (present >= 0)
        order, numbers = rows_by_kind(jnp.where(core, CORE, OTHER), CORE)
        posz = kernels.gather_rows(self.ready.sources.posz, order)
        th = build_in_domain(posz, numbers[0], self.ready.domain, self.cfg.tree)
        cores = kernel_tree(posz, numbers[0], th)
        others, count = rows_by_kind(self.kind, OTHER)
        asking = kernels.gather_rows(self.own.posz, others)
        queries = kernel_tree(asking, count[0], build_in_domain(asking, count[0], self.ready.domain, self.cfg.tree))
        return kernels.least_within(cores, present[order], queries, others, self.length, self.box)

    def _own_origin(self) -> tuple[jax.Array, jax.Array]:
        """Return the input rank and row of each of the rank's own particles."""
        home = self.ready.home
        assert home is not None
        return home.origin.rank, home.origin.idx

    def _given(self) -> int:
        home = self.ready.home
        assert home is not None
        return home.route.rows

    def _room(self) -> int:
        return max(self.n // 4, 1024)


def _rows_of(buffer: jax.Array, counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the words of received rows, ``(m, words)`` int32, and a mask of the valid rows."""
    words = jax.lax.bitcast_convert_type(buffer, jnp.int32)
    came = jnp.arange(buffer.shape[1], dtype=jnp.int32)[None] < counts[:, None]
    return words.reshape(-1, buffer.shape[-1]), came.reshape(-1)


def _keep_least(buffer: jax.Array, counts: jax.Array, least: jax.Array) -> jax.Array:
    words, came = _rows_of(buffer, counts)
    return least.at[jnp.where(came, words[:, 0], least.shape[0])].min(words[:, 1], mode="drop")


def _mark(buffer: jax.Array, counts: jax.Array, marks: jax.Array) -> jax.Array:
    words, came = _rows_of(buffer, counts)
    return marks.at[jnp.where(came, words[:, 0], marks.shape[0])].set(1, mode="drop")
