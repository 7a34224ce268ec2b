"""Which particles are cores of clusters, for DBSCAN."""

import functools

import jax
import jax.numpy as jnp

from .. import kernels

CORE, OTHER, PADDING = range(3)


@functools.partial(jax.jit, inline=True)
def kinds(count: jax.Array, min_samples: int, num: jax.Array) -> jax.Array:
    """``(n,)`` int32: CORE, OTHER, or PADDING for rows from ``num`` on. count: how many are near each."""
    used = jnp.arange(count.shape[0], dtype=jnp.int32) < num
    return jnp.where(used, jnp.where(count >= min_samples, CORE, OTHER), PADDING).astype(jnp.int32)


def rows_by_kind(kind: jax.Array, first: int) -> tuple[jax.Array, jax.Array]:
    """Rows in the order of kinds, of which ``first`` comes first, ``(n,)`` int32, and how many there are of each."""
    return kernels.group_by_rank((kind.astype(jnp.int32) - first) % 3, kind.shape[0], 3)
