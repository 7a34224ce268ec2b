"""Which particles are cores of clusters, for DBSCAN."""

import functools

import jax
import jax.numpy as jnp

from .. import kernels

CORE, OTHER, PADDING = range(3)


@functools.partial(jax.jit, inline=True)
def kinds(enough: jax.Array, num: jax.Array) -> jax.Array:
    """``(n,)`` int32: CORE, OTHER, or PADDING for rows from ``num`` on. enough: 1 if enough are near, 0 if not."""
    used = jnp.arange(enough.shape[0], dtype=jnp.int32) < num
    return jnp.where(used, jnp.where(enough == 1, CORE, OTHER), PADDING).astype(jnp.int32)


def has_borders(min_samples: int) -> bool:
    """Whether a particle that is not a core may be near one: with fewer than three samples, it is alone."""
    return min_samples > 2


def rows_by_kind(kind: jax.Array, first: int) -> tuple[jax.Array, jax.Array]:
    """Rows in the order of kinds, of which ``first`` comes first, ``(n,)`` int32, and how many there are of each."""
    return kernels.group_by_rank((kind.astype(jnp.int32) - first) % 3, kind.shape[0], 3)
