"""Numbers of 64 bits in arrays of 32: JAX has no others unless told to, and pairs are soon more than 2**31."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from .._transform.exact import power_of_two
from ..jax_ext import Exact, exact_to_float

__all__ = ["WideCounts", "WideSums", "add_counts", "add_sums", "counts_of_all_ranks", "sums_of_all_ranks"]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WideCounts:
    """Counts of 64 bits, from 0 on, that NumPy reads as int64: ``np.asarray(counts)``.

    words: ``(..., 2)`` uint32, the lower word first. shape: ``(...)``, that of the counts.
    """

    words: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.words.shape[:-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        words = np.asarray(self.words).astype(np.int64)
        return np.asarray(words[..., 0] + (words[..., 1] << 32), dtype)

    def __getitem__(self, index: Any) -> "WideCounts":
        """Some of the counts, by an index of all axes but the last, which is that of the words."""
        return WideCounts(self.words[index])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"WideCounts{self.shape}"

    def to_float(self) -> jax.Array:
        """The counts rounded to the widest float that JAX has switched on, for use in compiled functions."""
        wide = self.words.astype(jax.dtypes.canonicalize_dtype(np.float64))
        return wide[..., 0] + wide[..., 1] * 2.0**32


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class WideSums:
    """Sums taken in float64, which NumPy reads as float64: ``np.asarray(sums)``.

    words: ``(..., 4)`` float32, or ``(..., 1)`` float64 where JAX has that switched on, as in `jztree.jax_ext.Exact`.
    shape: ``(...)``, that of the sums.
    """

    words: jax.Array

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.words.shape[:-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(exact_to_float(Exact(np.asarray(self.words))), dtype)

    def __getitem__(self, index: Any) -> "WideSums":
        """Some of the sums, by an index of all axes but the last, which is that of the words."""
        return WideSums(self.words[index])

    def __len__(self) -> int:
        return self.shape[0]

    def __repr__(self) -> str:
        return f"WideSums{self.shape}"

    def to_float(self) -> jax.Array:
        """The sums in the widest float that JAX has switched on, for use in compiled functions."""
        return jnp.asarray(exact_to_float(Exact(self.words)))


def _limbs(words: jax.Array) -> jax.Array:
    """Words ``(..., 2)`` as four numbers of 16 bits, int32, the lowest first."""
    parts = jnp.stack([words & 0xFFFF, words >> 16], axis=-1)
    return parts.reshape(*words.shape[:-1], 4).astype(jnp.int32)


def _carried(limbs: jax.Array) -> jax.Array:
    """Words of what four numbers below 2**31 each are as limbs of 16 bits."""
    carry, words = jnp.zeros((), jnp.int32), []
    for i in range(4):
        total = limbs[..., i] + carry
        words.append((total & 0xFFFF).astype(jnp.uint32))
        carry = total >> 16
    return jnp.stack([words[0] | (words[1] << 16), words[2] | (words[3] << 16)], axis=-1)


def add_counts(*words: jax.Array) -> jax.Array:
    """The sums of counts by their words ``(..., 2)``."""
    return _carried(sum((_limbs(one) for one in words[1:]), _limbs(words[0])))


def counts_of_all_ranks(words: jax.Array) -> jax.Array:
    """The sum of counts over all ranks, of which there are at most 2**14, the same on all."""
    axes = comm.get_rank_info()[2]
    return _carried(jax.lax.psum(comm.vary(_limbs(words)), axes)) if axes else words


def _two_sum(a: jax.Array, b: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The rounded sum, and what rounding took off it (Knuth, The Art of Computer Programming 2, 4.2.2)."""
    total = a + b
    part = total - a
    return total, (a - (total - part)) + (b - part)


def add_sums(one: jax.Array, other: jax.Array) -> jax.Array:
    """The sums of numbers by their words ``(..., w)``; three words keep 48 bits and more."""
    if one.shape[-1] == 1:
        return one + other
    (one, other), exponent = _alike(one, other)
    first, rest = _two_sum(one[..., 0], other[..., 0])
    second, last = _two_sum(one[..., 1], other[..., 1])
    second, more = _two_sum(second, rest)
    third = last + more + one[..., 2] + other[..., 2]
    # So that words do not overlap, however often this is done.
    second, third = _two_sum(second, third)
    first, rest = _two_sum(first, second)
    second, third = _two_sum(rest, third)
    return jnp.stack([first, second, third, exponent], axis=-1)


def _alike(*words: jax.Array) -> tuple[list[jax.Array], jax.Array]:
    """Three words of each number, all times 2 to the power of one exponent, the largest of numbers that are not 0."""
    least = jnp.asarray(-(2.0**15), jnp.float32)
    largest = functools.reduce(jnp.maximum, [jnp.where(one[..., 0] == 0, least, one[..., 3]) for one in words])
    scaled = [one[..., :3] * power_of_two(jnp.minimum(one[..., 3] - largest, 0))[..., None] for one in words]
    return scaled, jnp.where(largest == least, 0, largest)


def sums_of_all_ranks(words: jax.Array) -> jax.Array:
    """The sum over all ranks, in their order, the same on all."""
    _, ndev, axes = comm.get_rank_info()
    if not axes:
        return words
    if words.shape[-1] == 1:
        return jax.lax.psum(comm.vary(words), axes)
    rank = comm.get_rank_info()[0]
    # Each rank puts in its own at its place, so that all have the same and JAX knows it.
    mine = jnp.zeros((ndev, *words.shape), words.dtype).at[rank].set(words)
    everyone = jax.lax.psum(comm.vary(mine), axes)
    return jax.lax.fori_loop(1, ndev, lambda i, total: add_sums(total, everyone[i]), everyone[0])
