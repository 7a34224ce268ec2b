"""Smoothing lengths as users give them, and as kernels take them."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from .._checks import check_range, check_real, check_real_dtype, is_subnormal, row_fault, shape_of, shown
from .._particles import check_no_unit
from .._radii import Radii
from ..jax_ext import exact, exact_to_float, is_concrete

_BAD = "row {0} of %s is not a smoothing length; all must be positive and finite, and not below the range of %s."
_TOO_SMALL = (
    "values over volumes of the size of the smoothing length in row {0} are below the range of %s; choose another unit "
    "of length or of the values, or switch on jax_enable_x64 and give values in float64."
)


def as_lengths(lengths: Any, rows: tuple[int, ...], name: str) -> Radii:
    """A number for all, or one a row, as exact numbers; TypeError or ValueError in words if they cannot be lengths.

    rows: ``(n,)``, or ``(r, n)`` where there is an axis over devices. What rows without a particle hold is not looked
    at, so one a row is checked by `lengths_faults`.
    """
    if isinstance(lengths, Radii):
        return lengths
    check_no_unit(lengths, name)
    shape = shape_of(lengths, name)
    if shape not in ((), rows):
        raise ValueError(f"{name} must be a smoothing length for all, or one each, {rows}; its shape is {shape}.")
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
            # What is out of range is said with its row, if there is a particle.
            values = np.where((np.abs(values) <= widest.max) & (np.abs(values) >= widest.tiny), values, 0)
        numbers = exact(values, shape)
    return Radii(numbers, None) if shape == () else Radii(None, numbers)


def lengths_faults(lengths: Radii, num: Any, name: str) -> list[comm.Fault]:
    """What may be wrong with lengths, of which those of the first ``num`` rows count."""
    value = _numbers(lengths)
    good = (value > 0) & (value < jnp.inf) & ~is_subnormal(value)
    return [row_fault(~good, None if lengths.of_each is None else num, _BAD % (name, value.dtype))]


def range_faults(
    value: jax.Array, nums: tuple[Any, Any], lengths: tuple[Radii, Radii], form: str, norm: float, powers: int
) -> list[comm.Fault]:
    """That sums may vanish because all of their terms ``norm * value / h**powers`` may, and not because W ends.

    value: ``(n, c)``, 0 in padding. nums, lengths: how many rows count, and their lengths, of sources and of queries.
    """
    num, num_queries = nums
    kind = jnp.finfo(value.dtype)
    widest = jax.dtypes.canonicalize_dtype(np.float64)  # one dtype for the three: users may forbid promotion
    sources, queries = (_numbers(one).astype(widest) for one in lengths)
    used = jnp.arange(value.shape[0], dtype=jnp.int32) < num
    most = jnp.max(jnp.abs(jax.lax.stop_gradient(value)), initial=0).astype(widest)
    if lengths[0].of_each is not None:
        sources = jnp.where(used, sources, jnp.inf)
    least = jnp.min(jnp.where(sources > 0, sources, jnp.inf), initial=jnp.inf)
    if comm.num_ranks() > 1:
        most, not_least = comm.all_max(jnp.stack([jnp.log2(most), -jnp.log2(least)]))
    else:
        most, not_least = jnp.log2(most), -jnp.log2(least)
    volume = {"gather": jnp.log2(queries), "scatter": jnp.full_like(queries, -not_least)}.get(
        form, jnp.minimum(jnp.log2(queries), -not_least)
    )
    # Digits of terms that are below the range are lost long before the largest term vanishes.
    lost = (most + float(np.log2(norm)) - powers * volume < kind.minexp + kind.nmant) & (most > -jnp.inf)
    rows = None if lengths[1].of_each is None else num_queries
    return [row_fault(lost & (queries > 0), rows, _TOO_SMALL % value.dtype)]


def _numbers(lengths: Radii) -> jax.Array:
    """Lengths ``(n,)`` or ``(1,)``, rounded."""
    numbers = lengths.for_all if lengths.for_all is not None else lengths.of_each
    assert numbers is not None
    return jnp.atleast_1d(jax.lax.stop_gradient(jnp.asarray(exact_to_float(numbers))))
