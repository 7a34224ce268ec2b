"""64-bit numbers in 32-bit arrays: JAX has no 64-bit types by default, and pairs often exceed 2**31."""

import functools
from dataclasses import dataclass
from typing import Any, Self

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from .._transform.exact import power_of_two
from ..jax_ext import Exact, exact_to_float


@dataclass(frozen=True, repr=False)
class _WideNumbers:
    """Numbers of several words each, on the last axis."""

    words: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.words.shape[:-1])

    def __getitem__(self, index: Any) -> Self:
        """Return some of the numbers. The index applies to all axes but the last, which holds the words."""
        return type(self)(self.words[index])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"{type(self).__name__}{self.shape}"


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class WideCounts(_WideNumbers):
    """64-bit counts, not negative, that NumPy reads as int64: ``np.asarray(counts)``.

    Attributes:
        words: ``(..., 2)`` uint32, the lower word first.
    """

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> np.ndarray:
        words = np.asarray(self.words).astype(np.int64)
        return np.asarray(words[..., 0] + (words[..., 1] << 32), dtype)

    def to_float(self) -> jax.Array:
        """Return the counts rounded to the widest float that JAX has switched on, for use in compiled functions."""
        wide = self.words.astype(jax.dtypes.canonicalize_dtype(np.float64))
        return wide[..., 0] + wide[..., 1] * 2.0**32


@jax.tree_util.register_dataclass
@dataclass(frozen=True, repr=False)
class WideSums(_WideNumbers):
    """Float64 numbers, such as sums, that NumPy reads as float64: ``np.asarray(sums)``.

    Attributes:
        words: ``(..., 4)`` float32, or ``(..., 1)`` float64 if JAX has that switched on; see `jztree.jax_ext.Exact`.
    """

    def __array__(self, dtype: np.dtype[Any] | None = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(exact_to_float(Exact(np.asarray(self.words))), dtype)

    def to_float(self) -> jax.Array:
        """Return the sums in the widest float that JAX has switched on, for use in compiled functions."""
        return jnp.asarray(exact_to_float(Exact(self.words)))


def _limbs(words: jax.Array) -> jax.Array:
    """Split words ``(..., 2)`` into four numbers of 16 bits, int32, the lowest first."""
    parts = jnp.stack([words & 0xFFFF, words >> 16], axis=-1)
    return parts.reshape(*words.shape[:-1], 4).astype(jnp.int32)


def _propagate_carries(limbs: jax.Array) -> jax.Array:
    """Propagate carries of four 16-bit limbs, each below 2**31, and return the words."""
    carry, words = jnp.zeros((), jnp.int32), []
    for i in range(4):
        total = limbs[..., i] + carry
        words.append((total & 0xFFFF).astype(jnp.uint32))
        carry = total >> 16
    return jnp.stack([words[0] | (words[1] << 16), words[2] | (words[3] << 16)], axis=-1)


def add_counts(*words: jax.Array) -> jax.Array:
    """Add counts given by their words ``(..., 2)``."""
    return _propagate_carries(sum((_limbs(count) for count in words[1:]), _limbs(words[0])))


def counts_of_all_ranks(words: jax.Array) -> jax.Array:
    """Add counts over all ranks, at most 2**14. The result is replicated."""
    axes = comm.get_rank_info()[2]
    return _propagate_carries(jax.lax.psum(comm.vary(_limbs(words)), axes)) if axes else words


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the rounded sum and its rounding error (Knuth, The Art of Computer Programming 2, 4.2.2)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add_sums(a: jax.Array, b: jax.Array) -> jax.Array:
    """Add numbers given by their words ``(..., w)``. Three words keep at least 48 bits."""
    if a.shape[-1] == 1:
        return a + b
    (a, b), exponent = _alike(a, b)
    first, error = _two_sum(a[..., 0], b[..., 0])
    second, last = _two_sum(a[..., 1], b[..., 1])
    second, second_error = _two_sum(second, error)
    third = last + second_error + a[..., 2] + b[..., 2]
    # Normalise, so that words do not overlap after any number of additions.
    second, third = _two_sum(second, third)
    first, error = _two_sum(first, second)
    second, third = _two_sum(error, third)
    return jnp.stack([first, second, third, exponent], axis=-1)


def _alike(*words: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Scale three words of each number to one exponent, the largest among nonzero numbers; also return it."""
    min_exponent = jnp.asarray(-(2.0**15), jnp.float32)
    largest = functools.reduce(
        jnp.maximum, [jnp.where(word[..., 0] == 0, min_exponent, word[..., 3]) for word in words]
    )
    scaled = [word[..., :3] * power_of_two(jnp.minimum(word[..., 3] - largest, 0))[..., None] for word in words]
    return scaled, jnp.where(largest == min_exponent, 0, largest)


def sums_of_all_ranks(words: jax.Array) -> jax.Array:
    """Add the sums on all ranks in rank order. The result is replicated."""
    _, ndev, axes = comm.get_rank_info()
    if not axes:
        return words
    if words.shape[-1] == 1:
        return jax.lax.psum(comm.vary(words), axes)
    rank = comm.get_rank_info()[0]
    # Each rank contributes its own row, so that the result is the same on all ranks and JAX knows it.
    own_term = jnp.zeros((ndev, *words.shape), words.dtype).at[rank].set(words)
    terms = jax.lax.psum(comm.vary(own_term), axes)
    return jax.lax.fori_loop(1, ndev, lambda i, total: add_sums(total, terms[i]), terms[0])
