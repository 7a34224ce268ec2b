"""Spherical overdensities around the centres of this rank.

1. The spheres are computed from the particles of this rank. On one device, this is the result. Over the ranks of a
   mesh, particles of other ranks can only make spheres denser, so this gives a radius within which all particles are
   needed.
2. A centre is open if the ball of that radius reaches boxes of other ranks' particles. Its rank receives the particles
   within it (`jztree.tree.stage`) and computes the sphere again. A result is final if it depends only on radii already
   searched. It is then the result of one device, because the kernel adds masses in the order of distance. Otherwise
   the next round searches the new radius. If haloes are smaller than a rank's domain, one round is enough for nearly
   all.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from ..arguments import at_least_normal
from ..config import OverdensityConfig
from ..jax_ext import Exact, exact_to_float
from ..tree.stage import ParticlesWithGhosts, Stage

# Search farther than necessary by this factor, because particles of other ranks make spheres grow.
_FURTHER = 1.2

Spheres = tuple[jax.Array, ...]


def find_spheres(stage: Stage, density: Exact, cfg: OverdensityConfig) -> Spheres:
    """Return radii, masses, numbers of particles, and peaks, in the input rows; see `kernels.overdensity`.

    Args:
        stage: Its sources are particles with masses, and its queries are the centres.
        density: ``(m,)`` mean densities.
        cfg: Options.
    """
    search = _Search(stage, density, cfg)
    spheres = search.over_ranks() if stage.is_distributed else search.spheres(stage.sources, search.nearest)
    return tuple(stage.send_back(list(spheres[:4])))


def widest_sphere(box: Exact, dtype: np.dtype[Any]) -> jax.Array:
    """Return the largest search radius: half the smallest periodic length, rounded up; infinite in an open box."""
    return _half_the_shortest(jnp.asarray(exact_to_float(box), dtype))


@functools.partial(jax.jit, inline=True)
def _half_the_shortest(lengths: jax.Array) -> jax.Array:
    return jnp.min(jnp.where(lengths > 0, lengths / 2, jnp.inf)) * (1 + 4 * jnp.finfo(lengths.dtype).eps)


@functools.partial(jax.jit, inline=True)
def _last_radius(rad: jax.Array, num: jax.Array) -> jax.Array:
    return jnp.where(jnp.arange(len(rad), dtype=jnp.int32) < num, rad[:, -1], -1)


class _Search:
    def __init__(self, stage: Stage, density: Exact, cfg: OverdensityConfig) -> None:
        self.stage, self.density, self.cfg = stage, density, cfg
        centres = stage.queries
        # The distance of the ``npart_min``-th nearest particle of each centre; -1 in padding.
        rad, _ = kernels.knn(stage.sources.tree(), None, centres.tree(), None, cfg.npart_min, stage.box)
        self.nearest = _last_radius(rad, centres.num)

    def spheres(self, sources: Any, nearest: jax.Array) -> Spheres:
        """Compute spheres.

        Args:
            sources: Particles in z-order, with masses.
            nearest: ``(q,)``, distance of the ``npart_min``-th nearest particle of each centre. -1 leaves out a centre.
        """
        centres, npart_min = self.stage.queries.pos, self.cfg.npart_min
        mass = jnp.asarray(sources.part.mass)
        return kernels.overdensity(sources.tree(), mass, centres, nearest, self.density, self.stage.box, npart_min)

    def over_ranks(self) -> Spheres:
        stage = self.stage
        self.widest = widest_sphere(stage.box, stage.sources.pos.dtype)
        stage.exchange_boxes(close=True)
        pending = self.nearest >= 0
        spheres = self.spheres(stage.sources, self.nearest)

        def one(state: tuple[Spheres, jax.Array, jax.Array]) -> tuple[Spheres, jax.Array, jax.Array]:
            spheres, pending = self._add_ghosts(*state[:2])
            return spheres, pending, comm.all_max(jnp.any(pending).astype(jnp.int32))

        return jax.lax.while_loop(lambda state: state[2] > 0, one, (spheres, pending, jnp.int32(1)))[0]

    def _add_ghosts(self, spheres: Spheres, pending: jax.Array) -> tuple[Spheres, jax.Array]:
        """Compute pending spheres with the particles of other ranks. Return all spheres and those still pending."""
        reach = jnp.where(pending, at_least_normal(spheres[4]) * _FURTHER, 0)
        around, is_open = self._bring_ghosts(reach)
        pending &= is_open
        completed = self.spheres(around, jnp.where(pending, self.nearest, -1))
        # An infinite reach requests the nearest few only. If any are still missing, they do not exist.
        searched = jnp.where(jnp.isfinite(reach), reach, jnp.where(jnp.isfinite(completed[4]), 0, jnp.inf))
        of_row = [pending.reshape(-1, *[1] * (column.ndim - 1)) for column in completed]
        spheres = tuple(jnp.where(*columns) for columns in zip(of_row, completed, spheres, strict=True))
        # If a sphere received too few particles, request the nearest few, at any distance. If the search
        # has already reached the widest sphere that fits the box, the sphere does not exist.
        rests_on = at_least_normal(completed[4])
        needed = jnp.where(jnp.isfinite(reach), jnp.minimum(rests_on, self.widest), rests_on)
        return spheres, pending & (needed > searched)

    def _bring_ghosts(self, reach: jax.Array) -> tuple[ParticlesWithGhosts, jax.Array]:
        """Bring the ghosts within a radius of each centre.

        Args:
            reach: ``(q,)``, the radii. An infinite radius requests the ``npart_min`` nearest particles.

        Returns:
            Own particles and ghosts, and a mask of the centres that may have ghosts within reach.
        """
        far = jnp.isinf(reach)
        open_wide, wide = self.stage.open_leaves(jnp.where(far, 0, reach)[:, None])
        open_few, npart_reach = self.stage.open_leaves(jnp.where(far, reach, 0)[:, None], self.cfg.npart_min)
        is_open = jnp.maximum(open_wide, open_few)
        radius = jnp.maximum(at_least_normal(wide), at_least_normal(npart_reach))
        around = self.stage.with_ghosts(radius, whole=True)
        splits, rows = self.stage.queries.blocks()[0], jnp.arange(reach.shape[0], dtype=jnp.int32)
        leaf = jnp.searchsorted(splits, rows, side="right") - 1
        return around, is_open[jnp.clip(leaf, 0, is_open.shape[0] - 1)] > 0
