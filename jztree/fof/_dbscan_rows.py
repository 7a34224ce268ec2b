"""Classify particles for DBSCAN as cores or others."""

import functools

import jax
import jax.numpy as jnp

from .. import kernels

CORE, OTHER, PADDING = range(3)


@functools.partial(jax.jit, inline=True)
def kinds(enough: jax.Array, num: jax.Array) -> jax.Array:
    """Return the kind of each particle, ``(n,)`` int32: CORE, OTHER, or PADDING.

    Args:
        enough: ``(n,)`` int32, 1 if enough particles are near, otherwise 0.
        num: Rows from ``num`` on are padding.
    """
    used = jnp.arange(enough.shape[0], dtype=jnp.int32) < num
    return jnp.where(used, jnp.where(enough == 1, CORE, OTHER), PADDING).astype(jnp.int32)


def has_borders(min_samples: int) -> bool:
    """Return whether a particle that is not a core can be near one. With fewer than three samples, it cannot."""
    return min_samples > 2


def rows_by_kind(kind: jax.Array, first: int) -> tuple[jax.Array, jax.Array]:
    """Sort rows by kind, ``first`` first: return the row order, ``(n,)`` int32, and the number of each kind."""
    return kernels.group_by_rank((kind.astype(jnp.int32) - first) % 3, kind.shape[0], 3)
