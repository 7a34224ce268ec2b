"""Tables distributed over the ranks: send rows to their owners, and fetch rows from them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import kernels
from ._counts import starts_of
from ._ranks import all_max, are_many, num_ranks, swap, vary
from ._relay import dealt, relay
from ._rounds import chunk_of, in_rounds


def deliver(
    rows: Any,
    rank: jax.Array,
    num: int | jax.Array,
    receive: Callable[[jax.Array, jax.Array, Any], Any],
    state: Any,
    buffer_rows: int,
) -> Any:
    """Send rows to ranks that process them at once, so that no buffer can overflow.

    Args:
        rows: A list of arrays ``(m, ...)``.
        rank: ``(m,)`` int32, the destination of each row. Rows with an invalid rank, and from ``num`` on, are not sent.
        num: int32 scalar.
        receive: Called as ``receive(buffer, counts, state)`` for every round, with packed rows ``(r, chunk, words)``,
            the first ``counts`` ``(r,)`` of each part valid, in no particular order of senders. It returns the new
            state.
        state: The first state.
        buffer_rows: Rows in the buffer of a round, for all ranks together; equal on all ranks.

    Returns:
        The last state.
    """
    if rank.shape[0] == 0:
        return state
    ndev = num_ranks()
    order, sent = kernels.group_by_rank(rank, num, ndev)
    chunk, starts = chunk_of(buffer_rows, ndev), starts_of(sent)
    if are_many(ndev):
        total = jnp.sum(sent, dtype=jnp.int32)
        card_of = lambda number: (order[number], rank[order[number]][..., None])  # noqa: E731
        take = lambda packed, _, counts, state: receive(packed, counts, state)  # noqa: E731
        return relay(rows, card_of, total, all_max(total), chunk, take, state)
    received = swap(sent)

    def one(done: jax.Array, state: Any) -> Any:
        buffer = swap(kernels.pack_segments(rows, order, starts + done, sent - done, chunk))
        return receive(buffer, jnp.clip(received - done, 0, chunk), state)

    # The largest number of rows between two ranks is the same at receivers and senders; receivers know it after the
    # swap.
    return in_rounds(all_max(jnp.max(received)), chunk, one, state)


def rows_and_values(packed: jax.Array, counts: jax.Array, table: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Decode rows of a `deliver` that sends a row of ``table``, int32, and values of its dtype.

    ``packed`` and ``counts`` are the arguments of ``receive``. Return the rows ``(m,)``, ``len(table)`` if invalid, and
    the values ``(m, w)``.
    """
    valid = jnp.arange(packed.shape[1], dtype=jnp.int32)[None] < counts[:, None]
    words = packed.reshape(-1, packed.shape[2])
    row = jnp.where(valid.reshape(-1), jax.lax.bitcast_convert_type(words[:, 0], jnp.int32), len(table))
    bits = words[:, 1:] if table.dtype.itemsize == 4 else words[:, 1:].reshape(len(words), -1, 2)
    return row, jax.lax.bitcast_convert_type(bits, table.dtype)


def fetch(
    table: jax.Array, rank: jax.Array, row: jax.Array, num: int | jax.Array, buffer_rows: int, filled: bool = True
) -> jax.Array:
    """Fetch rows of a table that is distributed over the ranks.

    Requests and answers travel in rounds over a bounded buffer, so any number of requests to one rank is possible.

    Args:
        table: ``(n, ...)``, this rank's part.
        rank: ``(m,)`` int32, the rank that holds each row to fetch.
        row: ``(m,)`` int32, the row there.
        num: int32 scalar. Requests with an invalid rank, and from ``num`` on, return 0.
        buffer_rows: Rows in the buffer of a round, for all ranks together; equal on all ranks.
        filled: Whether to write these zeros. If False, such rows are undefined.

    Returns:
        ``(m, ...)``.
    """
    through_others = are_many(num_ranks()) and rank.shape[0] > 0
    fetched = _fetch_through_others if through_others else _fetch
    shape = row.shape[0], *table.shape[1:]
    answered = vary(jnp.zeros(shape, table.dtype)) if filled else kernels.unwritten(table, row.shape[0])
    return fetched(table, rank, row, num, buffer_rows, answered)


def _fetch(
    table: jax.Array, rank: jax.Array, row: jax.Array, num: int | jax.Array, buffer_rows: int, answered: jax.Array
) -> jax.Array:
    """Implement `fetch` by direct requests to the ranks. The answers are written to the array ``answered``."""
    ndev = num_ranks()
    order, counts = kernels.group_by_rank(rank, num, ndev)
    chunk, starts = chunk_of(buffer_rows, ndev), starts_of(counts)
    everywhere = jnp.full(ndev, chunk, jnp.int32)

    def one(done: jax.Array, answered: jax.Array) -> jax.Array:
        requests = swap(kernels.pack_segments([row], order, starts + done, counts - done, chunk))
        # Unused entries may hold any number.
        rows = jnp.clip(jax.lax.bitcast_convert_type(requests.reshape(-1), jnp.int32), 0, table.shape[0] - 1)
        answers = swap(
            kernels.pack_segments([table], rows, jnp.arange(ndev, dtype=jnp.int32) * chunk, everywhere, chunk)
        )
        return kernels.unpack_segments(answers, order, starts + done, counts - done, [answered])[0]

    return in_rounds(all_max(jnp.max(counts)), chunk, one, answered)


def _fetch_through_others(
    table: jax.Array, rank: jax.Array, row: jax.Array, num: int | jax.Array, buffer_rows: int, answered: jax.Array
) -> jax.Array:
    """Implement `fetch` by requests that are distributed over all ranks, which forward them; see `relay`."""
    ndev = num_ranks()
    chunk, num = chunk_of(buffer_rows, ndev), kernels.as_num(num)

    def one(done: jax.Array, answered: jax.Array) -> jax.Array:
        number = done + dealt(ndev, chunk)
        used = number < num
        requests = [jnp.where(used, part.at[number].get(mode="clip"), -1) for part in (rank, row)]
        requested_rows = swap(jnp.stack(requests, axis=-1)).reshape(-1, 2)
        none = vary(jnp.zeros((ndev * chunk, *table.shape[1:]), table.dtype))
        answers = _fetch(table, requested_rows[:, 0], requested_rows[:, 1], ndev * chunk, buffer_rows, none)
        answers = swap(answers.reshape(ndev, chunk, *answers.shape[1:]))
        return answered.at[jnp.where(used, number, row.shape[0])].set(answers, mode="drop")

    return in_rounds(all_max(num), ndev * chunk, one, answered)
