"""Float64 numbers as arguments of functions that JAX compiles in 32-bit mode."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .shard_map import is_concrete

# For sizes in this range, the three float32 of a float64 are normal numbers or 0.
_LEAST, _LARGEST = 2.0**-74, 2.0**127
WORDS = 4  # words of a number in 32-bit mode


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Exact:
    """Float64 numbers in words that JAX can carry.

    With four words, the number is the sum of the first three, computed in float64, times 2 to the power of the last.
    Three float32 hold the 53 bits of a float64 in their range, and the last word is 0. Other numbers are scaled, so
    every float64 can be stored.

    Attributes:
        words: ``(..., 4)`` float32 or, in 64-bit mode, ``(..., 1)`` float64, the number itself.
    """

    words: jax.Array | np.ndarray


def exact(value: Any, shape: tuple[int, ...]) -> Exact:
    """Convert ``value`` to `Exact`; concrete numbers lose no bit.

    Args:
        value: A number or array that broadcasts to ``shape``. Traced numbers, and JAX arrays, keep their precision.
        shape: Shape of the numbers.

    Returns:
        The numbers, with words ``(*shape, 4)`` or, in 64-bit mode, ``(*shape, 1)``.
    """
    if isinstance(value, Exact):
        return value
    if isinstance(value, jax.core.Tracer):
        traced = jnp.broadcast_to(value, shape)
        if traced.dtype == jnp.float64:
            return Exact(traced[..., None])
        first = traced.astype(jnp.float32)
        return Exact(jnp.stack([first, *[jnp.zeros_like(first)] * (WORDS - 1)], axis=-1))
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if type(value) is float:
        return _exact_number(value, shape, wide)
    return _exact_numbers(np.broadcast_to(np.asarray(value, np.float64), shape), wide)


@functools.lru_cache
def _exact_number(value: float, shape: tuple[int, ...], wide: bool) -> Exact:
    """Cache single Python numbers: in loops over small sets, their conversion took longer than the rest of a call."""
    return _exact_numbers(np.full(shape, value), wide)


def _exact_numbers(number: np.ndarray, wide: bool) -> Exact:
    if wide:
        return Exact(_read_only(number[..., None]))
    size = np.abs(number)
    if np.all((size >= _LEAST) & (size < _LARGEST) | (size == 0)):
        return Exact(_read_only(_words_of(number)))
    finite = np.isfinite(number)
    scaled = finite & (size > 0) & ((size < _LEAST) | (size >= _LARGEST))
    exponent = np.where(scaled, np.frexp(number)[1] - 1, 0)
    words = _words_of(np.ldexp(np.where(finite, number, 0), -exponent))
    # For infinite or NaN numbers, the first word is enough.
    words[..., 0] = np.where(finite, words[..., 0], number)
    words[..., -1] = exponent
    return Exact(_read_only(words))


def _words_of(number: np.ndarray) -> np.ndarray:
    """Return the words of numbers that need no scaling."""
    words = np.zeros((*number.shape, WORDS), np.float32)
    words[..., 0] = number
    remainder = number - words[..., 0]
    words[..., 1] = remainder
    words[..., 2] = remainder - words[..., 1]
    return words


def _read_only(array: np.ndarray) -> np.ndarray:
    """Make ``array`` read-only, because many calls share it."""
    array.flags.writeable = False
    return array


def exact_to_float(value: Exact) -> np.ndarray | jax.Array:
    """Return the number in JAX's widest enabled float.

    Args:
        value: Exact numbers.

    Returns:
        A JAX array, or a NumPy float64 array if the words are concrete.
    """
    if is_concrete(value):
        return _known_number(value)
    words = jnp.asarray(value.words)
    if words.shape[-1] == 1:
        return words[..., 0]
    return words[..., :-1].sum(axis=-1) * power_of_two(words[..., -1])


def exact_to_parts(value: Exact, dtype: np.dtype[Any]) -> tuple[jax.Array, jax.Array]:
    """Return the number rounded to ``dtype``, and the rounding remainder."""
    if is_concrete(value):
        number = _known_number(value)
        nearest = number.astype(dtype)
        return jnp.asarray(nearest), jnp.asarray((number - nearest).astype(dtype))
    words = jnp.asarray(value.words)
    if words.shape[-1] == 1:
        rounded = words[..., 0].astype(dtype)
        return rounded, (words[..., 0] - rounded.astype(words.dtype)).astype(dtype)
    scale = power_of_two(words[..., -1])
    return (words[..., 0] * scale).astype(dtype), (words[..., 1:-1].sum(axis=-1) * scale).astype(dtype)


def exact_change(value: Exact, change: Exact) -> jax.Array:
    """Return the tangent of the number for the tangent ``change`` of its words."""
    return jax.jvp(lambda numbers: jnp.asarray(exact_to_float(numbers)), (value,), (change,))[1]


def power_of_two(exponent: jax.Array) -> jax.Array:
    """Return 2 to the power of float32 integers; 0 if the result is below the normal range, infinite if above."""
    bits = jnp.clip(exponent.astype(jnp.int32) + 127, 0, 255) << 23
    return jax.lax.bitcast_convert_type(bits, jnp.float32)


def _known_number(value: Exact) -> np.ndarray:
    words = np.asarray(value.words)
    wide = words.astype(np.float64)
    if words.shape[-1] == 1:
        return np.asarray(wide[..., 0])
    return np.asarray(np.ldexp(wide[..., :-1].sum(axis=-1), words[..., -1].astype(np.int32)))
