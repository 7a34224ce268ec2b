"""Row counts over all ranks, which may not fit 32 bits, and the starts of segments."""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from ._ranks import get_rank_info, vary


class Wide(NamedTuple):
    """Counts that may exceed 32 bits, as ``high * 2**16 + low`` with low below 2**16; at most 2**15 ranks."""

    high: jax.Array
    low: jax.Array

    def exceeds_int32(self) -> jax.Array:
        """Return whether each count is 2**31 or more."""
        return self.high >= 2**15

    def clipped(self) -> jax.Array:
        """Return the counts as int32, or 2**31 - 1 if they are larger."""
        return jnp.where(self.exceeds_int32(), 2**31 - 1, self.high * 65536 + self.low)


def wide_sum(count: Any, max_count: int = 2**31) -> Wide:
    """Sum int32 counts over the ranks, elementwise.

    Args:
        count: The counts.
        max_count: An upper bound of every sum. If it fits 32 bits, the ranks send half as much data.
    """
    _, ndev, axes = get_rank_info()
    count, fits = jnp.asarray(count), max_count < 2**31
    parts = count[None] if fits else jnp.stack([count >> 16, count & 0xFFFF])
    sums = parts if ndev == 1 else jax.lax.psum(vary(parts), axes)
    high, low = (0, sums[0]) if fits else sums
    return Wide(high + (low >> 16), low & 0xFFFF)


def wide_total(counts: jax.Array) -> Wide:
    """Sum int32 counts ``(n,)``, for ``n`` up to 2**15."""
    low = jnp.sum(counts & 0xFFFF, dtype=jnp.int32)
    return Wide(jnp.sum(counts >> 16, dtype=jnp.int32) + (low >> 16), low & 0xFFFF)


def share(total: Wide, rank: jax.Array, ndev: int) -> tuple[jax.Array, Wide]:
    """Divide ``total`` rows equally among ranks (the first ones get one more).

    Returns:
        The number of rows of each of ``rank``, int32, and the start of its share.
    """
    high, remainder = total.high // ndev, total.high % ndev
    # remainder is below the number of ranks, at most 2**15, so this fits 31 bits.
    low = remainder * 65536 + total.low
    quotient, low_remainder = high * 65536 + low // ndev, low % ndev
    carried = rank * (quotient & 0xFFFF) + jnp.minimum(rank, low_remainder)
    start = Wide(rank * (quotient >> 16) + (carried >> 16), carried & 0xFFFF)
    return quotient + (rank < low_remainder).astype(quotient.dtype), start


@functools.partial(jax.jit, inline=True)
def starts_of(counts: jax.Array) -> jax.Array:
    """Return the starts of consecutive segments with these lengths.

    Args:
        counts: ``(m,)`` integers.

    Returns:
        ``(m,)``, the sum of the counts before each one.
    """
    return jnp.cumsum(counts, dtype=jnp.int32) - counts


def rank_and_row(starts: jax.Array, row: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rank of each joined row, int32, and the row on that rank. The rank of row -1 is -1.

    Args:
        starts: ``(r,)`` integers, the first row of each rank among the joined rows.
        row: Integers of any shape.
    """
    rank = jnp.searchsorted(starts, row, side="right").astype(jnp.int32) - 1
    return rank, row - starts[jnp.maximum(rank, 0)]
