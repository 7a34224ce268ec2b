"""Kernels for lists of any length that are stored one after the other."""

import functools
from typing import Any, Literal, get_args

import jax
import jax.numpy as jnp

from ._call import as_num, call, i32

__all__ = ["REDUCTIONS", "Reduction", "entry_lists", "reduce_lists", "running_sums", "sums_of_rows"]

Reduction = Literal["sum", "max", "min"]
# Native code numbers reductions in this order.
REDUCTIONS: tuple[Reduction, ...] = get_args(Reduction)


def entry_lists(splits: jax.Array, number: int, start: int | jax.Array = 0) -> jax.Array:
    """Return the list of each of ``number`` consecutive entries, int32; the number of lists for entries after the last.

    Args:
        splits: ``(m + 1,)`` int32, ascending from 0. List i consists of the entries from ``splits[i]`` to
            ``splits[i + 1]``.
        number: Number of entries.
        start: The first entry, int32 scalar, at least 0.
    """
    return call("entry_lists", i32(number), splits, as_num(start))


def reduce_lists(how: Reduction, values: jax.Array, splits: jax.Array, start: int | jax.Array = 0) -> jax.Array:
    """Reduce the values of each list, ``(m, ...)``. Differentiable.

    The order of a sum does not depend on the number of threads. Sums of floats are accumulated in float64, and sums of
    integers wrap around. A maximum or minimum of values with NaN is NaN, and its derivative is shared equally by all
    values that are equal to it.

    Args:
        how: The reduction.
        values: ``(p, ...)`` integers or floats, of 32 or 64 bits: the values of entries from ``start`` on.
        splits: See `entry_lists`. The entries of a list that are outside ``values`` are left out.
        start: See `entry_lists`.

    Returns:
        The results in the dtype of the values. Lists without entries give the initial value: 0, or the lower or upper
        limit of the dtype, which is infinite for floats.
    """
    reduce = _differentiable if jnp.issubdtype(values.dtype, jnp.inexact) else _reduced
    return reduce(how, values, splits, as_num(start))


def sums_of_rows(terms: jax.Array) -> jax.Array:
    """Return the sums of rows ``(m, w)``, rounded once. XLA fuses products with sums in some programs, but not in all.

    See `reduce_lists`.
    """
    splits = jnp.arange(terms.shape[0] + 1, dtype=jnp.int32) * terms.shape[1]
    return reduce_lists("sum", terms.reshape(-1), splits)


def _reduced(how: Reduction, values: jax.Array, splits: jax.Array, start: jax.Array) -> jax.Array:
    out = jax.ShapeDtypeStruct((splits.shape[0] - 1, *values.shape[1:]), values.dtype)
    return call("reduce_lists", out, values, splits, start, gradients="stopped", how=REDUCTIONS.index(how))


_differentiable = jax.custom_jvp(_reduced, nondiff_argnums=(0,))


@_differentiable.defjvp
def _reduced_jvp(how: Reduction, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    values, splits, start = primals
    reduced, change = _differentiable(how, *primals), tangents[0]
    lists = entry_lists(splits, values.shape[0], start)
    # JAX can transpose this sum; it only runs in forward mode.
    add = functools.partial(
        jax.ops.segment_sum, segment_ids=lists, num_segments=splits.shape[0] - 1, indices_are_sorted=True
    )
    if how != "sum":
        is_extreme = (values == reduced.at[lists].get(mode="fill", fill_value=0)).astype(values.dtype)
        number = jnp.maximum(add(is_extreme), 1).at[lists].get(mode="fill", fill_value=1)
        change = change * jax.lax.stop_gradient(is_extreme / number)
    return reduced, add(change)


def running_sums(values: jax.Array, splits: jax.Array) -> jax.Array:
    """Return the sum of the value of each entry and of the earlier ones in its list, ``(p,)``.

    Sums are accumulated in float64. Entries of no list give 0.

    Args:
        values: ``(p,)`` float32 or float64.
        splits: See `entry_lists`.
    """
    return call("running_sums", jax.ShapeDtypeStruct(values.shape, values.dtype), values, splits)
