"""Row counts between ranks. No rank holds the full table, which has an entry for each pair of ranks."""

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from ._ranks import all_gather, get_rank_info, swap


class Traffic(NamedTuple):
    """Numbers of rows between this rank and each other rank, and totals known to all ranks.

    Attributes:
        sent: ``(r,)`` int32, rows to each rank.
        received: ``(r,)`` int32, rows from each rank.
        leaving: ``(r,)`` int32, the number of rows that each rank sends.
        arriving: ``(r,)`` int32, the number of rows that each rank receives.
        most: int32, the largest number of rows from one rank to another.
    """

    sent: jax.Array
    received: jax.Array
    leaving: jax.Array
    arriving: jax.Array
    most: jax.Array

    def back(self) -> "Traffic":
        """Return the traffic of the answers."""
        return Traffic(self.received, self.sent, self.arriving, self.leaving, self.most)


def traffic_of(sent: jax.Array) -> Traffic:
    """Return the traffic if this rank sends ``sent`` rows to each rank, ``(r,)`` int32."""
    received = swap(sent)
    return _traffic(sent, received, all_gather(_totals(sent, received, get_rank_info()[0])))


@functools.partial(jax.jit, inline=True)
def _totals(sent: jax.Array, received: jax.Array, rank: jax.Array) -> jax.Array:
    return jnp.stack([_total(sent), _total(received), jnp.max(of_others(sent, rank))])


@functools.partial(jax.jit, inline=True)
def _traffic(sent: jax.Array, received: jax.Array, totals: jax.Array) -> Traffic:
    return Traffic(sent, received, totals[:, 0], totals[:, 1], jnp.max(totals[:, 2]))


def of_others(counts: jax.Array, rank: jax.Array) -> jax.Array:
    """Return the ``counts`` per rank, with 0 for this rank: its own rows need not travel."""
    return counts * (jnp.arange(counts.shape[0], dtype=jnp.int32) != rank).astype(counts.dtype)


def _total(counts: jax.Array) -> jax.Array:
    """Return the sum of int32 counts ``(r,)``, or 2e9 if it is larger, which exceeds any buffer."""
    return jnp.where(jnp.sum(counts.astype(jnp.float32)) > 2e9, 2_000_000_000, jnp.sum(counts, dtype=jnp.int32))
