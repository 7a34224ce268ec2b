"""Rounds of a collective over a buffer of bounded size, for any number of rows to any rank."""

from collections.abc import Callable
from typing import TypeVar

import jax
import jax.numpy as jnp

from ._ranks import are_many

_State = TypeVar("_State")

# Chunks are smaller for many ranks, because the buffer has a chunk for each.
_MIN_CHUNK, _MIN_CHUNK_FOR_MANY = 64, 8


def chunk_of(buffer_rows: int, ndev: int) -> int:
    """Return the number of rows for each rank in the buffer of a round."""
    return max(_MIN_CHUNK_FOR_MANY if are_many(ndev) else _MIN_CHUNK, -(-buffer_rows // ndev))


def in_rounds(
    max_rows: jax.Array, chunk: int, one_round: Callable[[jax.Array, _State], _State], state: _State
) -> _State:
    """Repeat ``state = one(done, state)``, with ``chunk`` rows per round, until ``done`` reaches ``max_rows``.

    Returns:
        The last state.
    """
    max_rows = jnp.asarray(max_rows, jnp.int32)

    def step(carry: tuple[jax.Array, _State]) -> tuple[jax.Array, _State]:
        remaining, state = carry
        return remaining - chunk, one_round(max_rows - remaining, state)

    return jax.lax.while_loop(lambda carry: carry[0] > 0, step, (max_rows, state))[1]
