"""Sort the rows on all ranks by unique keys, in equal shares."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from .. import kernels
from .._transform.capacity import Capacity
from ._counts import share, wide_sum
from ._exchange import exchange
from ._ranks import num_ranks, vary

_Rows = TypeVar("_Rows")


def sort_by_keys(
    rows: _Rows, keys_of: Callable[[_Rows], list[jax.Array]], num: jax.Array, name: str = "edges"
) -> tuple[_Rows, jax.Array]:
    """Sort the rows on all ranks, and divide them into equal shares.

    Cost: two local sorts, a sum of one number per rank for each bit of a key, and one exchange.

    Args:
        rows: A pytree of arrays ``(n, ...)``. There are less than 2**31 rows over all ranks.
        keys_of: Function of such rows that returns their keys, ``(n,)`` uint32 arrays, the most significant first. No
            two rows of any ranks have the same key.
        num: Number of rows to sort.
        name: See `exchange`.

    Returns:
        This rank's share ``(n, ...)``, 0 after the last row, and its number of rows. The order continues on the next
        rank. The first shares have one row more if the rows cannot be divided equally.
    """
    n, ndev = jax.tree.leaves(rows)[0].shape[0], num_ranks()
    rows = _sorted(rows, keys_of, num)
    starts = share(wide_sum(num), jnp.arange(ndev, dtype=jnp.int32), ndev)[1].clipped()
    cuts = _cuts(keys_of(rows), num, starts[1:])
    sent = jnp.diff(jnp.concatenate([jnp.zeros(1, jnp.int32), cuts, num[None]]))
    rows, count, _ = exchange(rows, sent, Capacity(n, "sort"), name=name)
    return _sorted(rows, keys_of, count), count


def _sorted(rows: _Rows, keys_of: Callable[[_Rows], list[jax.Array]], num: jax.Array) -> _Rows:
    order = kernels.sort_words(keys_of(rows), num)
    sorted_rows: _Rows = jax.tree.map(lambda column: column[order], rows)
    return sorted_rows


def _cuts(keys: list[jax.Array], num: jax.Array, before: jax.Array) -> jax.Array:
    """Return the number of this rank's sorted keys that precede each splitter.

    A splitter is the largest key that has at most a given number of keys before it, summed over ranks. The search
    finds its bits one after the other. Keys are unique, so the number of keys before it is then the given one.

    Args:
        keys: Sorted keys of this rank, ``(n,)`` uint32 arrays.
        num: Number of keys.
        before: ``(s,)`` int32, number of keys before each splitter, summed over ranks.

    Returns:
        ``(s,)`` int32.
    """

    def step(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        bit, splitter = state
        trial = splitter.at[:, bit // 32].add(jnp.uint32(1) << (31 - bit % 32).astype(jnp.uint32))
        count = wide_sum(_count_before(keys, num, trial))
        fits = count.clipped() <= before
        return bit + 1, jnp.where(fits[:, None], trial, splitter)

    splitter = vary(jnp.zeros((before.shape[0], len(keys)), jnp.uint32))
    if before.shape[0] > 0:
        first = vary(jnp.int32(0))
        _, splitter = jax.lax.while_loop(
            lambda state: state[0] < 32 * len(keys), lambda state: jax.tree.map(vary, step(state)), (first, splitter)
        )
    return _count_before(keys, num, splitter)


def _count_before(keys: list[jax.Array], num: jax.Array, bounds: jax.Array) -> jax.Array:
    """Return how many of the first ``num`` sorted keys are less than each of ``bounds``, ``(s, words)`` uint32."""
    n = keys[0].shape[0]
    low = vary(jnp.zeros(bounds.shape[0], jnp.int32))
    high = jnp.full_like(low, num)

    def step(_: Any, ends: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        low, high = ends
        middle = (low + high) // 2
        less, equal = jnp.zeros(low.shape, bool), jnp.ones(low.shape, bool)
        for word, key in enumerate(keys):
            value = key.at[middle].get(mode="clip")
            less |= equal & (value < bounds[:, word])
            equal &= value == bounds[:, word]
        is_open = low < high
        return jnp.where(is_open & less, middle + 1, low), jnp.where(is_open & ~less, middle, high)

    return jax.lax.fori_loop(0, n.bit_length(), step, (low, high))[0]
