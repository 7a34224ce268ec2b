"""The sets of particles of a pair count, on one device or over ranks.

Over the ranks of a mesh, each rank counts the pairs within its range of the z-order, and the pairs of its particles
with the ghosts that may share a bin with them; see `jztree.tree.stage`. For pairs within one set, it receives only
ghosts of higher ranks, so that the lower rank of two counts their pairs. Counts are added over the ranks as 64-bit
integers, and sums in the order of the ranks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..config import RadiusConfig
from ..jax_ext import Exact
from ..kernels import PairBins, PairSet
from ..tree.stage import InputParticles, ParticlesWithGhosts, Stage, prepare_stage
from ._bins import reach_of
from ._wide_numbers import add_counts, add_sums, counts_of_all_ranks, sums_of_all_ranks

Words = tuple[jax.Array, jax.Array]


@dataclass
class Pairs:
    """The arguments of a pair count.

    Attributes:
        first: The first set. Its data are weights and regions, or None.
        second: The second set, in the same form. None for pairs within one set.
        bins: Bins.
        box: Periodic box.
        regions: Number of regions.
        separations: Whether to sum the separations of pairs also.
        cfg: Options.
        faults: Possible faults besides faults of the positions.
    """

    first: InputParticles
    second: InputParticles | None
    bins: PairBins
    box: Exact
    regions: int
    separations: bool
    cfg: RadiusConfig
    faults: Sequence[comm.Fault]

    def counted(self) -> Words:
        """Return the words of counts and sums, added over the ranks; see `kernels.pair_counts`.

        With ``separations``, the last row of the sums holds the sums of separations.
        """
        sources, queries = (self.first, None) if self.second is None else (self.second, self.first)
        stage = prepare_stage(sources, queries, self.box, self.cfg, "pair_ghosts", self.faults)
        query_set = PairSet(stage.queries.tree(), *stage.queries.data)
        if self.second is not None:
            around = self._around(stage, lower_only=False)
            source_set = PairSet(around.tree(), *around.data)
            return of_all_ranks(*self._count(query_set, source_set))
        inner = self._count(query_set, None)
        if not stage.is_distributed:
            return of_all_ranks(*inner)
        outer = self._count(query_set, self._ghosts(stage))
        # Count pairs between ranks in both orders.
        sums = add_sums(inner[1], add_sums(outer[1], outer[1]))
        return of_all_ranks(add_counts(inner[0], outer[0], outer[0]), sums)

    def _count(self, query_set: PairSet, source_set: PairSet | None) -> Words:
        counts, sums = kernels.pair_counts(query_set, source_set, self.bins, self.box, self.regions)
        if not self.separations:
            return counts, sums
        # The kernel counts most pairs together, but needs each pair for its separation. So it runs a second time.
        sets = query_set._replace(region=None), None if source_set is None else source_set._replace(region=None)
        of_separations = kernels.pair_counts(*sets, self.bins, self.box, 0, separations=True)[1]
        return counts, jnp.concatenate([sums, of_separations])

    def _around(self, stage: Stage, lower_only: bool) -> ParticlesWithGhosts:
        """Return the sources and their ghosts that may share a bin with this rank's queries."""
        reach = reach_of(self.bins, stage.sources.pos.dtype)
        return stage.with_ghosts(reach, stage.sources.data, lower_only=lower_only)

    def _ghosts(self, stage: Stage) -> PairSet:
        """Return the ghosts of higher ranks alone, which follow the rank's own particles."""
        around, num_sources = self._around(stage, lower_only=True), stage.sources.num
        size = around.pos.shape[0]
        rows = jnp.minimum(num_sources + jnp.arange(size, dtype=jnp.int32), size - 1)
        data = jax.tree.map(lambda column: kernels.gather_rows(column, rows), around.data)
        return PairSet(around.select(rows, around.num - num_sources, self.cfg.tree).tree(), *data)


def of_all_ranks(counts: jax.Array, sums: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Add the words of counts and sums over all ranks. JAX knows that they are replicated, even on one device."""
    if not comm.get_rank_info()[2]:
        return counts, sums
    # Make the second collective depend on the data of the first, to fix their order.
    counts = counts_of_all_ranks(counts)
    return counts, sums_of_all_ranks(comm.after(sums, counts.astype(jnp.int32) & 1)) if sums.shape[0] else sums
