"""A search for friends-of-friends groups: its arguments, and labels on one device or over ranks."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import MAX_DIMS, NO_LIMIT, Radii, check_box, check_particles
from ..config import FofConfig, without_masses
from ..jax_ext import Exact, is_concrete
from ..particles import Index, Particles, check_num
from ..tree import TreeHierarchy, check_hierarchy
from ..tree.stage import InputParticles, Stage, opened, prepare_stage, starts_of_ranks
from ._group_numbers import first_numbers
from ._lengths import check_lengths, length_faults
from ._over_ranks import Groups, groups_over_ranks


@dataclass
class Search:
    """The arguments of a search for groups, parsed.

    Attributes:
        sources: The particles.
        lengths: Linking lengths.
        box: Periodic box.
        limits: Largest distances of attached particles.
    """

    sources: InputParticles
    lengths: Radii
    box: Exact
    limits: Radii = NO_LIMIT

    def stage(self, cfg: FofConfig, faults: Sequence[comm.Fault] = (), needs_origin: bool = False) -> Stage:
        """Return the particles in z-order.

        Args:
            cfg: Options.
            faults: Possible faults besides faults of the positions.
            needs_origin: Whether the origin of each row is needed over ranks.
        """
        columns = jax.tree.map(jnp.asarray, (self.lengths.of_each, self.limits.of_each))
        cfg, sources = without_masses(cfg), replace(self.sources, data=columns, needs_origin=needs_origin)
        faults = [*faults, *length_faults(self.lengths, sources.num)]
        return prepare_stage(sources, None, self.box, cfg, "fof_ghosts", faults, hierarchy=False)

    def sorted_lengths(self, stage: Stage) -> Radii:
        """Return the linking lengths, if there is one per particle, in the order of the stage."""
        return self.lengths if self.lengths.of_each is None else Radii(None, stage.sources.data[0])

    def sorted_limits(self, stage: Stage) -> Radii:
        """Return the limits, if there is one per particle, in the order of the stage."""
        return self.limits if self.limits.of_each is None else Radii(None, stage.sources.data[1])

    def groups(self, stage: Stage, cfg: FofConfig) -> Groups:
        """Return the groups over ranks."""
        return groups_over_ranks(stage, self.sorted_lengths(stage), cfg)

    def labels(self, stage: Stage, in_input_order: bool = False) -> jax.Array:
        """Return the first row of each particle's group, on one device."""
        sources, length = stage.sources, self.sorted_lengths(stage).words()
        if sources.pos.shape[0] == 0 and self.lengths.for_all is not None and not is_concrete((length, self.box)):
            kernels.check_lengths(self.box, length, "the linking length rlink")
        return kernels.fof(sources.tree(), sources.rows if in_input_order else None, length, self.box)

    def labels_in_input_order(self, cfg: FofConfig, faults: Sequence[comm.Fault] = ()) -> jax.Array:
        """Return the first row of each particle's group, in the order of the input."""
        stage = self.stage(cfg, faults, needs_origin=True)
        if not stage.is_distributed:
            return self.labels(stage, in_input_order=True)
        sources = stage.sources
        starts, origin = starts_of_ranks(sources.given_num()), sources.origin
        number = comm.of_rank(starts, origin.rank) + origin.idx
        return stage.send_back(first_numbers(self.groups(stage, cfg), number), fill=-1)

    def labels_in_z_order(self, cfg: FofConfig, faults: Sequence[comm.Fault] = ()) -> tuple[Any, jax.Array]:
        """Return the particles in z-order, and the first row of each particle's group among them."""
        stage = self.stage(cfg, faults)
        if not stage.is_distributed:
            return stage.sources.part, self.labels(stage)
        return stage.sources.part, self.groups(stage, cfg).joined_labels()


def parsed(
    part: Particles | Index | ArrayLike,
    rlink: ArrayLike,
    boxsize: ArrayLike | None,
    th: TreeHierarchy | None,
    max_dims: int = MAX_DIMS,
) -> Search:
    """Raise TypeError or ValueError if an argument is invalid."""
    check_hierarchy(th)
    part, boxsize, order = opened(part, boxsize, th)
    pos = check_particles(part, max_dims=max_dims)
    box = check_box(boxsize, pos.shape[1])
    lengths = check_lengths(rlink, pos.shape[:1], box)
    particles = InputParticles(part, check_num(part), th=order, needs_origin=False)
    return Search(particles, lengths, box)
