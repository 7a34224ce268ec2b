"""Particles of a search: sorted in z-order with their hierarchy, and combined with ghosts."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import kernels
from ..data import RankIdx, replace_num
from ..jax_ext import Exact
from ..particles import get_pos
from . import TreeHierarchy, build_in_domain, kernel_tree, permute_particles
from ._over_ranks import SortedRange, rows_of_rank
from ._zorder import Domain, corners_of
from .ghosts import Blocks, Surroundings, leaves_of, runs_of


@jax.tree_util.register_dataclass
@dataclass
class SortedParticles:
    """Particles of this rank in z-order.

    Attributes:
        part: Particle class, or positions.
        num: Number of rows that hold particles, int32.
        domain: Domain of the z-order. None if it is unknown, because the user sorted the particles of one device.
        th: Hierarchy. None if it is not built.
        data: Pytree of arrays ``(n, ...)``, in z-order.
        rows: On one device, the input row of each particle, ``(n,)`` int32. None means the same row.
        moved: Over ranks, the sorted range with the route of the particles. None if the input was in z-order.
    """

    part: Any
    num: jax.Array
    domain: Domain | None
    th: TreeHierarchy | None
    data: Any = None
    rows: jax.Array | None = None
    moved: SortedRange | None = None

    @property
    def pos(self) -> jax.Array:
        """Positions, ``(n, d)``."""
        positions: jax.Array = get_pos(self.part)
        return positions

    @property
    def origin(self) -> RankIdx:
        """Rank and row of each particle in the input."""
        if self.moved is not None:
            return self.moved.origin
        input_rows = rows_of_rank(self.pos.shape[0])
        return input_rows if self.rows is None else RankIdx(input_rows.rank, self.rows)

    def tree(self) -> kernels.Tree:
        """Return the particles and their hierarchy as a kernel argument."""
        assert self.th is not None
        return kernel_tree(self.pos, self.num, self.th)

    def given_num(self) -> jax.Array:
        """Return the number of particles in the input of this rank."""
        return self.num if self.moved is None else jnp.sum(self.moved.route.sent, dtype=jnp.int32)

    def given_rows(self) -> int:
        """Return the number of rows in the input of this rank."""
        return self.pos.shape[0] if self.moved is None else self.moved.route.rows

    def select(
        self, order: jax.Array, num: jax.Array, cfg: Any, box: Exact | None = None, *, whole: bool = False
    ) -> "SortedParticles":
        """Return some of the particles with their own hierarchy.

        Args:
            order: Their rows in ascending order, followed by all other rows, ``(n,)`` int32.
            num: Their number, int32.
            cfg: Options of the hierarchy. None means no hierarchy.
            box: Periodic box, if the domain may be unknown.
            whole: Whether to keep all properties of the particles instead of their positions alone.

        Returns:
            The selected particles.
        """
        domain = self.domain if box is None else self.domain_in(box)
        assert domain is not None
        part = replace_num(permute_particles(self.part if whole else self.pos, order), num)
        th = None if cfg is None else build_in_domain(part, num, domain, cfg)
        return SortedParticles(part, num, domain, th)

    def domain_in(self, box: Exact) -> Domain:
        """Return the domain of the z-order. If it is unknown, return the domain of the particles on this rank."""
        if self.domain is not None:
            return self.domain
        corners, _ = corners_of(jnp.asarray(self.pos), self.num, "the positions")
        return Domain(*corners, box, corners)

    def blocks(self) -> Blocks:
        """Return ``(particle_splits, lower, upper)`` of the leaves, or of short runs of rows if no hierarchy exists."""
        assert self.domain is not None
        return runs_of(self.pos, self.num, self.domain.box) if self.th is None else leaves_of(self.th)


@dataclass
class ParticlesWithGhosts(SortedParticles):
    """A rank's sources and their ghosts, in z-order.

    Attributes:
        ghost_route: Route of the ghosts; see `jztree.tree.ghosts.Surroundings`.
    """

    ghost_route: Surroundings | None = None

    def route(self) -> Surroundings:
        """Return the route of the ghosts, which can bring their other properties."""
        assert self.ghost_route is not None
        return self.ghost_route
