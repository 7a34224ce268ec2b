"""How many rows go from rank to rank. Nobody knows the whole table, which has as many entries as pairs of ranks."""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from ._ranks import all_gather, get_rank_info, swap


class Traffic(NamedTuple):
    """Rows between this rank and each, and what all ranks have to agree on.

    sent, received: ``(r,)`` int32, rows to each rank, and from each. leaving, arriving: ``(r,)`` int32, all rows that
    each rank sends, and receives. most: int32, the most that one rank sends to another.
    """

    sent: jax.Array
    received: jax.Array
    leaving: jax.Array
    arriving: jax.Array
    most: jax.Array

    def back(self) -> "Traffic":
        """That of the answers."""
        return Traffic(self.received, self.sent, self.arriving, self.leaving, self.most)


def traffic_of(sent: jax.Array) -> Traffic:
    """The traffic in which this rank sends so many rows to each, ``(r,)`` int32."""
    received = swap(sent)
    most = jnp.max(of_others(sent, get_rank_info()[0]))
    told = all_gather(jnp.stack([_total(sent), _total(received), most]))
    return Traffic(sent, received, told[:, 0], told[:, 1], jnp.max(told[:, 2]))


def of_others(counts: jax.Array, rank: jax.Array) -> jax.Array:
    """``counts`` of each rank, 0 for the rank itself, whose own rows need not travel."""
    return counts.at[rank].set(0)


def _total(counts: jax.Array) -> jax.Array:
    """The sum of int32 counts ``(r,)``, or 2e9 where it is more, which fits nowhere, whatever the number."""
    return jnp.where(jnp.sum(counts.astype(jnp.float32)) > 2e9, 2_000_000_000, jnp.sum(counts, dtype=jnp.int32))
