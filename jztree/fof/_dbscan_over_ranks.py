"""DBSCAN over the ranks of a mesh.

1. Particles of all ranks are sorted in z-order, and each rank counts who is near its own, as `jztree.radius` does.
2. The groups of the cores are found as friends-of-friends are (`jztree.fof._over_ranks`). A group is known by the rank
   and row of its first core in z-order, its root.
3. Clusters are numbered by the row that their first core was given in. The root gets the smallest from all cores of the
   group, the rank that this row was given to counts such rows, and answers travel back: to the root, then to all.
4. Particles that are no cores look for the smallest number of the cores near them, on other ranks too.
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
    """The cluster of each particle that this rank was given, and whether it is a core."""
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
        """In z-order."""
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
        """The number of the cluster of each core, ``(n,)``. order: the rows of the cores."""
        used = jnp.arange(self.n, dtype=jnp.int32) < num
        starts, origin = self.ready.starts, self._own_origin()
        assert starts is not None
        number = comm.of_rank(starts, origin[0][order]) + origin[1][order]
        nobody = comm.num_ranks()
        ranks = jnp.where(used, root.irank, nobody)
        first = comm.vary(jnp.full(self.n, _NONE, jnp.int32))
        first = comm.deliver([root.igroup, number], ranks, self.n, _keep_least, first, self._room())
        # Where the first core of each cluster was given, rows of clusters are counted.
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
        """The smallest cluster of the cores near each particle that is none, in z-order; _NONE if there are none."""
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
        """The rank and row that each of the rank's own particles was given in."""
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
    """The words of rows that came, ``(m, words)`` int32, and which of the rows are any."""
    words = jax.lax.bitcast_convert_type(buffer, jnp.int32)
    came = jnp.arange(buffer.shape[1], dtype=jnp.int32)[None] < counts[:, None]
    return words.reshape(-1, buffer.shape[-1]), came.reshape(-1)


def _keep_least(buffer: jax.Array, counts: jax.Array, least: jax.Array) -> jax.Array:
    words, came = _rows_of(buffer, counts)
    return least.at[jnp.where(came, words[:, 0], least.shape[0])].min(words[:, 1], mode="drop")


def _mark(buffer: jax.Array, counts: jax.Array, marks: jax.Array) -> jax.Array:
    words, came = _rows_of(buffer, counts)
    return marks.at[jnp.where(came, words[:, 0], marks.shape[0])].set(1, mode="drop")
