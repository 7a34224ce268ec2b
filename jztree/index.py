"""Indexes: particles that are sorted once for many searches.

Every search sorts its particles and builds a hierarchy over them. For a million particles, this takes half of the time
of friends-of-friends. An index holds both, and every search accepts it in place of the particles.
"""

from __future__ import annotations

from numpy.typing import ArrayLike

from ._options import checked_config
from .arguments import check_box, check_particles, flat
from .config import RadiusConfig, TreeConfig, without_masses
from .particles import Array, Index, Particles, check_num
from .tree.stage import InputParticles, index_of, prepare_stage

__all__ = ["Index", "build_index"]


@flat()
def build_index(part: Particles | Array, boxsize: ArrayLike | None = None, *, cfg: TreeConfig | None = None) -> Index:
    """Sort particles once, for many searches.

    Every search accepts the index in place of ``part`` and ``boxsize``. Its results are the same as without an index
    and with the same options, bit for bit: rows and their order refer to ``part``. On several devices, a search with
    separate queries sends each query to the device of the particles near it. Sums for these queries may then differ in
    the last bits of float64. In compiled calls, so may the densities of `sph_density` with ``bias_correction``, because
    XLA computes them. If queries crowd on few devices, buffers grow like the buffers of ghosts; pass the particles
    instead of the index to give all devices equal work.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions.
        boxsize: The periodic length, or one per dimension; 0 or None means open. Positions outside the box are wrapped.
            Equal on all ranks.
        cfg: Options of the hierarchy, equal on all ranks. If it sets ``leaf_size``, searches use leaves of this size
            unless their own options say otherwise. None means the best size for each search.

    Returns:
        The index: a pytree of arrays, of about three times the size of the positions besides ``part``. Pass the index
        itself through `jax.jit`, `jax.lax.scan`, `jax.vmap` or `jax.shard_map`; searches differentiate through it.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, or a
            traced ``boxsize`` is invalid.

    Examples:
        >>> index = jz.build_index(np.array([[0.1], [0.5], [0.9]], np.float32), boxsize=1.0)
        >>> index
        Index(3 rows in 1D, float32)
    """
    cfg = checked_config(cfg, TreeConfig)
    options = without_masses(RadiusConfig(tree=cfg))
    pos, num = check_particles(part), check_num(part)
    box = check_box(boxsize, pos.shape[1])
    stage = prepare_stage(InputParticles(pos, num), None, box, options, "index_ghosts")
    return index_of(pos if part is pos else part, box, stage.sources, options.tree)
