"""Smoothing lengths: validation of user input, and conversion to kernel arguments."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from ..arguments import Radii, check_range, check_real, check_real_dtype, is_subnormal, row_fault, shape_of, shown
from ..jax_ext import exact, exact_to_float, is_concrete
from ..particles import check_no_unit

_BAD = "row {0} of %s is not a valid smoothing length; each must be positive, finite and within the range of %s."
_TOO_SMALL = (
    "values divided by the volume of the smoothing length in row {0} are below the range of %s; choose another unit of "
    "length or of the values, or switch on jax_enable_x64 and give values in float64."
)


def as_lengths(lengths: Any, rows: tuple[int, ...], name: str) -> Radii:
    """Return one length for all, or one per row, as exact numbers.

    Padding rows may hold any values, so `lengths_faults` checks lengths per row.

    Args:
        lengths: The lengths.
        rows: ``(n,)``, or ``(r, n)`` if there is an axis over devices.
        name: Name of the argument.

    Raises:
        TypeError: If lengths are not real numbers.
        ValueError: If they have the wrong shape, or if one length for all is invalid.
    """
    if isinstance(lengths, Radii):
        return lengths
    check_no_unit(lengths, name)
    shape = shape_of(lengths, name)
    if shape not in ((), rows):
        raise ValueError(f"{name} must be one smoothing length for all, or one per row, {rows}; its shape is {shape}.")
    if not is_concrete(lengths):
        check_real_dtype(lengths, name)
        numbers = exact(lengths, shape)
    else:
        values = check_real(lengths, name)
        if shape == ():
            if not (values > 0 and np.isfinite(values)):
                raise ValueError(f"{name} is {shown(values)}; a smoothing length must be positive and finite.")
            check_range(values, name)
        else:
            widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
            # Report values out of range later, with their row, and only if the row holds a particle.
            values = np.where((np.abs(values) <= widest.max) & (np.abs(values) >= widest.tiny), values, 0)
        numbers = exact(values, shape)
    return Radii(numbers, None) if shape == () else Radii(None, numbers)


def lengths_faults(lengths: Radii, num: int | jax.Array, name: str) -> list[comm.Fault]:
    """Return the possible faults of lengths. Only the first ``num`` rows count."""
    value = _numbers(lengths)
    return [row_fault(_are_invalid(value), None if lengths.of_each is None else num, _BAD % (name, value.dtype))]


@functools.partial(jax.jit, inline=True)
def _are_invalid(length: jax.Array) -> jax.Array:
    return ~((length > 0) & (length < jnp.inf) & ~is_subnormal(length))


def range_faults(
    value: jax.Array, nums: tuple[Any, Any], lengths: tuple[Radii, Radii], form: str, norm: float, powers: int
) -> list[comm.Fault]:
    """Return the fault that sums may vanish because all terms ``norm * value / h**powers`` underflow.

    Sums that vanish because no neighbour is within the kernel are valid.

    Args:
        value: ``(n, c)``, 0 in padding.
        nums: Numbers of valid rows of sources and of queries.
        lengths: Smoothing lengths of sources and of queries.
        form: See `kernel_sums`.
        norm: Norm of the kernel.
        powers: Number of powers of ``1 / h`` in a term.
    """
    num, num_queries = nums
    kind = jnp.finfo(value.dtype)
    widest = jax.dtypes.canonicalize_dtype(np.float64)  # one dtype for all three, because users may forbid promotion
    sources, queries = (_numbers(lengths_of_set).astype(widest) for lengths_of_set in lengths)
    extremes = comm.all_max(_extremes(jax.lax.stop_gradient(value), sources, num))
    limits = float(np.log2(norm)), kind.minexp + kind.nmant
    rows = None if lengths[1].of_each is None else num_queries
    return [row_fault(_may_vanish(extremes, queries, form, powers, limits), rows, _TOO_SMALL % value.dtype)]


@functools.partial(jax.jit, inline=True)
def _extremes(value: jax.Array, lengths: jax.Array, num: int | jax.Array) -> jax.Array:
    """Return the logarithms of the largest value and, negative, of the smallest length, one or ``(n,)``."""
    largest = jnp.max(jnp.abs(value), initial=0).astype(lengths.dtype)
    if len(lengths) == len(value):
        lengths = jnp.where(jnp.arange(len(lengths), dtype=jnp.int32) < num, lengths, jnp.inf)
    smallest = jnp.min(jnp.where(lengths > 0, lengths, jnp.inf), initial=jnp.inf)
    return jnp.stack([jnp.log2(largest), -jnp.log2(smallest)])


@functools.partial(jax.jit, static_argnames=("form", "powers", "limits"), inline=True)
def _may_vanish(
    extremes: jax.Array, lengths: jax.Array, form: str, powers: int, limits: tuple[float, int]
) -> jax.Array:
    """Return for which lengths of queries all terms are below the range; see `range_faults`."""
    (largest, not_least), (norm, min_exponent) = extremes, limits
    volume = {"gather": jnp.log2(lengths), "scatter": jnp.full_like(lengths, -not_least)}.get(
        form, jnp.minimum(jnp.log2(lengths), -not_least)
    )
    # Terms below the range lose digits long before the largest term vanishes.
    return (largest + norm - powers * volume < min_exponent) & (largest > -jnp.inf) & (lengths > 0)


def _numbers(lengths: Radii) -> jax.Array:
    """Return lengths ``(n,)`` or ``(1,)``, rounded."""
    numbers = lengths.for_all if lengths.for_all is not None else lengths.of_each
    assert numbers is not None
    return jnp.atleast_1d(jax.lax.stop_gradient(jnp.asarray(exact_to_float(numbers))))
