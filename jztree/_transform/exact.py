"""Float64 numbers as arguments of functions that JAX compiles in its 32-bit mode."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .shard_map import is_concrete


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Exact:
    """Float64 numbers as sums of words that JAX can carry.

    words: ``(..., 3)`` float32 or, in 64-bit mode, ``(..., 1)`` float64; the number is the sum over the last axis,
        taken in float64. Three float32 hold the 53 bits of a float64, if it is in their range.
    """

    words: jax.Array | np.ndarray


def exact(value: Any, shape: tuple[int, ...]) -> Exact:
    """``value`` (a number or array that broadcasts to ``shape``) as `Exact`; concrete numbers lose no bit.

    Traced numbers, and arrays of JAX, have the precision they have.
    """
    if isinstance(value, Exact):
        return value
    if isinstance(value, jax.core.Tracer):
        traced = jnp.broadcast_to(value, shape)
        if traced.dtype == jnp.float64:
            return Exact(traced[..., None])
        first = traced.astype(jnp.float32)
        return Exact(jnp.stack([first, jnp.zeros_like(first), jnp.zeros_like(first)], axis=-1))
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if type(value) is float:
        return _exact_number(value, shape, wide)
    return _exact_numbers(np.broadcast_to(np.asarray(value, np.float64), shape), wide)


@functools.lru_cache
def _exact_number(value: float, shape: tuple[int, ...], wide: bool) -> Exact:
    """One Python number again and again, as in a loop over small sets, where it took longer than the rest of a call."""
    return _exact_numbers(np.full(shape, value), wide)


def _exact_numbers(number: np.ndarray, wide: bool) -> Exact:
    if wide:
        return Exact(_read_only(number[..., None]))
    words = []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(3):
            words.append(number.astype(np.float32))
            # Nothing is left of what float32 cannot hold; the infinite first word tells it all.
            number = np.where(np.isfinite(words[-1]), number - words[-1], 0)
    return Exact(_read_only(np.stack(words, axis=-1)))


def _read_only(array: np.ndarray) -> np.ndarray:
    """``array``, which many calls share."""
    array.flags.writeable = False
    return array


def exact_to_float(value: Exact) -> np.ndarray | jax.Array:
    """The number in the widest float JAX has switched on; NumPy float64 where the words are concrete."""
    if is_concrete(value):
        return np.asarray(value.words, np.float64).sum(axis=-1)
    return value.words.sum(axis=-1)
