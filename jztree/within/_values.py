"""Reduction of the values of lists, for all dtypes that arrays of particles may have."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import kernels

# Functions that combine two results for the same lists.
COMBINE: dict[kernels.Reduction, Callable[..., jax.Array]] = {"sum": jnp.add, "max": jnp.maximum, "min": jnp.minimum}


def reduce_values(how: kernels.Reduction, values: jax.Array, splits: jax.Array, start: jax.Array) -> jax.Array:
    """Reduce the values of each list, ``(m, ...)``, in the dtype of `jax.numpy.sum`, or that of the values.

    For the arguments and for lists without entries see `jztree.kernels.reduce_lists`. Complex numbers are compared like
    in `jax.numpy.max`. Sums of floats with less than 32 bits are float32.
    """
    dtype = _dtype_of_sum(values.dtype) if how == "sum" else values.dtype
    if jnp.issubdtype(dtype, jnp.complexfloating):
        return _of_complex(how, values, splits, start)
    wide = _wide(dtype)
    results = kernels.reduce_lists(how, values.astype(wide), splits, start)
    if wide == dtype:
        return results
    if not jnp.issubdtype(dtype, jnp.floating):
        smallest, largest = (0, 1) if dtype == jnp.bool_ else (jnp.iinfo(dtype).min, jnp.iinfo(dtype).max)
        results = jnp.clip(results, smallest, largest)
    return results.astype(dtype)


def _of_complex(how: kernels.Reduction, values: jax.Array, splits: jax.Array, start: jax.Array) -> jax.Array:
    if how == "sum":
        parts = kernels.reduce_lists(how, jnp.stack([values.real, values.imag], axis=-1), splits, start)
        return jax.lax.complex(parts[..., 0], parts[..., 1])
    lists = kernels.entry_lists(splits, values.shape[0], start)
    reduce = jax.ops.segment_max if how == "max" else jax.ops.segment_min
    return reduce(values, lists, splits.shape[0] - 1, indices_are_sorted=True)


def _wide(dtype: np.dtype[Any]) -> Any:
    """Return the dtype of 32 or 64 bits that the kernel needs for numbers of a dtype."""
    if dtype.itemsize >= 4:
        return dtype
    if jnp.issubdtype(dtype, jnp.floating):
        return jnp.dtype(jnp.float32)
    unsigned = dtype == jnp.bool_ or jnp.issubdtype(dtype, jnp.unsignedinteger)
    return jnp.dtype(jnp.uint32 if unsigned else jnp.int32)


def _dtype_of_sum(dtype: np.dtype[Any]) -> Any:
    """Return the dtype of `jax.numpy.sum`. For half precision, return float32, the dtype of its accumulator."""
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return jnp.dtype(jnp.float32)
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), dtype)).dtype
