"""Rounds of a collective over a buffer of bounded size, for any number of rows to any rank."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .. import kernels
from ._counts import starts_of
from ._ranks import all_max, num_ranks, swap, vary

_State = TypeVar("_State")

_MIN_CHUNK = 64


def chunk_of(buffer_rows: int, ndev: int) -> int:
    """Rows for each rank in the buffer of a round."""
    return max(_MIN_CHUNK, -(-buffer_rows // ndev))


def in_rounds(most: jax.Array, chunk: int, one: Callable[[jax.Array, _State], _State], state: _State) -> _State:
    """``one(done, state)`` again and again, until ``done`` of ``chunk`` rows a round is ``most``; the last state."""
    rounds = -(-most // chunk)

    def step(carry: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
        return carry[0] + 1, one(carry[0] * chunk, carry[1])

    return jax.lax.while_loop(lambda carry: carry[0] < rounds, step, (jnp.int32(0), state))[1]


def deliver(
    rows: Any,
    rank: jax.Array,
    num: Any,
    receive: Callable[[jax.Array, jax.Array, Any], Any],
    state: Any,
    buffer_rows: int,
) -> Any:
    """Send rows to ranks that take them in at once, so that nothing is stored that could overflow.

    rows: a list of arrays ``(m, ...)``. rank: ``(m,)`` int32, where each goes; those of no rank and from ``num`` on go
    nowhere. receive: called as ``receive(buffer, counts, state)`` for every round, with the packed rows ``(r, chunk,
    words)`` of which ``counts`` ``(r,)`` came from each rank; returns the new state. Returns the last state.
    """
    ndev = num_ranks()
    order, sent = kernels.group_by_rank(rank, num, ndev)
    received = swap(sent)
    chunk, starts = chunk_of(buffer_rows, ndev), starts_of(sent)

    def one(done: jax.Array, state: Any) -> Any:
        buffer = swap(kernels.pack_segments(rows, order, starts + done, sent - done, chunk))
        return receive(buffer, jnp.clip(received - done, 0, chunk), state)

    # The most that any rank receives is also the most that any sends, and is known behind the swap.
    return in_rounds(all_max(jnp.max(received)), chunk, one, state)


def fetch(table: jax.Array, rank: jax.Array, row: jax.Array, num: Any, buffer_rows: int) -> jax.Array:
    """Rows of a table that is spread over the ranks.

    table: ``(n, ...)``, this rank's part. rank, row: ``(m,)`` int32, which row of which rank to get; those of no rank
    and from ``num`` on get 0. Returns ``(m, ...)``. Questions and answers travel in rounds over a bounded buffer, so
    no number of questions to one rank can be too large.
    """
    ndev = num_ranks()
    order, counts = kernels.group_by_rank(rank, num, ndev)
    chunk, starts = chunk_of(buffer_rows, ndev), starts_of(counts)
    everywhere = jnp.full(ndev, chunk, jnp.int32)

    def one(done: jax.Array, answered: jax.Array) -> jax.Array:
        asked = swap(kernels.pack_segments([row], order, starts + done, counts - done, chunk))
        # Where nothing was asked there may be any number.
        wanted = jnp.clip(jax.lax.bitcast_convert_type(asked.reshape(-1), jnp.int32), 0, table.shape[0] - 1)
        answers = swap(
            kernels.pack_segments([table], wanted, jnp.arange(ndev, dtype=jnp.int32) * chunk, everywhere, chunk)
        )
        return kernels.unpack_segments(answers, order, starts + done, counts - done, [answered])[0]

    none = vary(jnp.zeros((row.shape[0], *table.shape[1:]), table.dtype))
    return in_rounds(all_max(jnp.max(counts)), chunk, one, none)
