"""Relay rows through other ranks.

The buffer of an exchange has a part for each rank. If only a few pairs of ranks exchange rows, for example at the
surfaces of their ranges, most parts are empty. To move a whole range to one other rank would take as many rounds as
there are ranks. A relay instead distributes rows evenly to all ranks, regardless of destination, and these ranks
forward them. Then all parts of the buffers are equally full, and the number of rounds depends only on the number of
rows. Each row travels twice.

L. G. Valiant & G. J. Brebner (1981), "Universal schemes for parallel communication".
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import kernels
from ._counts import starts_of
from ._ranks import all_max, get_rank_info, num_ranks, swap
from ._rounds import in_rounds

_NOBODY = -1


def relay(
    arrays: Sequence[jax.Array],
    card_of: Callable[[jax.Array], tuple[jax.Array, jax.Array]],
    total: jax.Array,
    most: jax.Array,
    chunk: int,
    take: Callable[[jax.Array, jax.Array, jax.Array, Any], Any],
    state: Any,
) -> Any:
    """Send rows by way of other ranks.

    Args:
        arrays: The rows.
        card_of: Function of the numbers of sent rows, from 0, int32 of any shape. It returns the index of each row, and
            a header ``(..., h)`` int32 for each row: the destination rank, then further data for that rank.
        total: Number of rows to send.
        most: The largest number that any rank sends, known to all ranks.
        chunk: Number of rows for each rank in a buffer.
        take: Called as ``take(packed, headers, counts, state)`` for every round, with rows ``(r, chunk, words)`` and
            headers ``(r, chunk, h)``, the first ``counts`` ``(r,)`` of each part valid. It returns the new state.
        state: The first state.

    Returns:
        The last state.
    """
    ndev, words = num_ranks(), kernels.row_words(arrays)

    def deal(done: jax.Array, state: Any) -> Any:
        number = done + dealt(ndev, chunk)
        used = number < total
        row, header = card_of(jnp.where(used, number, 0))
        starts = jnp.arange(ndev, dtype=jnp.int32) * chunk
        packed = kernels.pack_segments(arrays, row.reshape(-1), starts, _sum(used), chunk)
        return pass_on(swap(_with_header(packed, header, used)), state)

    def pass_on(cards: jax.Array, state: Any) -> Any:
        cards = cards.reshape(ndev * chunk, -1)
        order, counts = kernels.group_by_rank(_as_int32(cards[:, words]), ndev * chunk, ndev)
        starts = starts_of(counts)

        def send(done: jax.Array, state: Any) -> Any:
            packed = kernels.pack_segments([cards], order, starts + done, counts - done, chunk)
            used = jnp.arange(chunk, dtype=jnp.int32)[None] < (counts - done)[:, None]
            got = swap(_with_header(packed[..., :words], _as_int32(packed[..., words:]), used))
            headers = _as_int32(got[..., words:])
            return take(got[..., :words], headers, _sum(headers[..., 0] != _NOBODY), state)

        return in_rounds(all_max(jnp.max(counts)), chunk, send, state)

    return in_rounds(most, ndev * chunk, deal, state)


def dealt(ndev: int, chunk: int) -> jax.Array:
    """Return ``(r, chunk)`` int32: the numbers of the ``r * chunk`` rows that a rank deals to each rank.

    Every rank begins with a different one.
    """
    first = (jnp.arange(ndev, dtype=jnp.int32) - get_rank_info()[0]) % ndev
    return first[:, None] + ndev * jnp.arange(chunk, dtype=jnp.int32)[None]


def _with_header(packed: jax.Array, header: jax.Array, used: jax.Array) -> jax.Array:
    header = jnp.where(used[..., None], header, _NOBODY)
    return jnp.concatenate([packed, jax.lax.bitcast_convert_type(header, jnp.uint32)], axis=-1)


def _as_int32(words: jax.Array) -> jax.Array:
    return jax.lax.bitcast_convert_type(words, jnp.int32)


def _sum(used: jax.Array) -> jax.Array:
    return jnp.sum(used, axis=1, dtype=jnp.int32)
