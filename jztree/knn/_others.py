"""The nearest other particles of each particle, with the ghosts among them: the first step of graphs over ranks."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import kernels
from ..arguments import at_least_normal
from ..tree.stage import ParticlesWithGhosts, Stage


def others_with_ghosts(
    stage: Stage, k: int, data: Any, widen: float = 1.0
) -> tuple[ParticlesWithGhosts, jax.Array, jax.Array]:
    """Find the nearest other particles of each particle of a rank. Call `Stage.exchange_boxes` first.

    Args:
        stage: The particles of this rank, without other queries.
        k: Number of other particles, at least 1.
        data: See `Stage.with_ghosts`.
        widen: The radius of ghosts in distances to the last neighbour, at least 1.

    Returns:
        The particles with their ghosts; the search radius of each box of the stage; and the neighbours ``(n, k)``
        int32, rows of particles and ghosts, -1 after the last.
    """
    particles, box = stage.sources, stage.box
    assert particles.domain is not None
    options: dict[str, Any] = {"domain": particles.domain.corners, "others": True}
    rad, neighbours = kernels.knn(particles.tree(), None, None, None, k, box, **options)
    leaves, reach = stage.open_leaves(at_least_normal(rad[:, -1:]) * jnp.asarray(widen, rad.dtype), k + 1)
    region = stage.with_ghosts(reach, data)
    start = region.route().start
    neighbours = jnp.where(neighbours < 0, -1, neighbours + start)
    options |= {"own_offset": start, "open_leaves": leaves, "found": (rad, neighbours)}
    return region, reach, kernels.knn(region.tree(), None, particles.tree(), None, k, box, **options)[1]
