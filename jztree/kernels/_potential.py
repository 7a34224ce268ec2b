"""The kernel for the particle of lowest potential in each group."""

import jax
import jax.numpy as jnp

from ..jax_ext import Exact
from ._call import call
from ._groups import _grouped

__all__ = [
    "lowest_potential",
]


def lowest_potential(
    pos: jax.Array,
    mass: jax.Array,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    softening: Exact,
    box: Exact,
) -> tuple[jax.Array, jax.Array]:
    """Find the particle of lowest potential of each group.

    Args:
        pos: ``(n, d)``, particles in group order.
        mass: ``(n,)``, in the dtype of ``pos``.
        segments: ``ngroups``, ``count`` and ``offset``; see `catalogue`.
        softening: One length.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        The row of the particle, ``(g,)`` int32 (-1 for rows without a group), and its potential, a sum of masses over
        lengths; see `jztree.halos.lowest_potential_particle`.
    """
    shape = segments[1].shape
    out = jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, pos.dtype)
    return call("lowest_potential", out, *_grouped((pos, mass, None), segments, box), softening.words)
