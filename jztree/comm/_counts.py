"""Numbers of rows on all ranks together, which may not fit 32 bits, and where segments begin."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ._ranks import get_rank_info, vary


class Wide(NamedTuple):
    """Counts that may exceed 32 bits, as ``high * 2**16 + low`` with low below 2**16; at most 2**15 ranks."""

    high: jax.Array
    low: jax.Array

    def exceeds_int32(self) -> jax.Array:
        """Whether each count is 2**31 or more."""
        return self.high >= 2**15

    def above(self, other: "Wide") -> jax.Array:
        """Whether each count is larger than the other one."""
        return (self.high > other.high) | ((self.high == other.high) & (self.low > other.low))


def wide_sum(count: Any) -> Wide:
    """The sum of int32 counts over all ranks, elementwise."""
    _, ndev, axes = get_rank_info()
    parts = jnp.stack([jnp.asarray(count) >> 16, jnp.asarray(count) & 0xFFFF])
    high, low = parts if ndev == 1 else jax.lax.psum(vary(parts), axes)
    return Wide(high + (low >> 16), low & 0xFFFF)


def wide_total(counts: jax.Array) -> Wide:
    """The sum of int32 counts ``(n,)``, at most 2**15 of them."""
    low = jnp.sum(counts & 0xFFFF, dtype=jnp.int32)
    return Wide(jnp.sum(counts >> 16, dtype=jnp.int32) + (low >> 16), low & 0xFFFF)


def share(total: Wide, rank: jax.Array, ndev: int) -> tuple[jax.Array, Wide]:
    """How many of ``total`` rows each of ``rank`` gets if all get the same (the first ones one more), int32, and where
    its share starts.
    """
    high, rest = total.high // ndev, total.high % ndev
    # rest is below the number of ranks, at most 2**15, so this fits 31 bits.
    low = rest * 65536 + total.low
    each, more = high * 65536 + low // ndev, low % ndev
    carried = rank * (each & 0xFFFF) + jnp.minimum(rank, more)
    start = Wide(rank * (each >> 16) + (carried >> 16), carried & 0xFFFF)
    return each + (rank < more).astype(each.dtype), start


def starts_of(counts: jax.Array) -> jax.Array:
    """Where segments of these lengths begin, one after the other."""
    return jnp.cumsum(counts, dtype=jnp.int32) - counts
