"""Linking lengths: validation of user input, conversion to kernel arguments, and their reach over ranks."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm
from .._transform.exact import exact_to_parts
from ..arguments import (
    Radii,
    at_least_normal,
    check_length,
    check_real,
    check_real_dtype,
    is_length,
    row_fault,
    shape_of,
)
from ..jax_ext import Exact, exact, exact_to_float, is_concrete
from ..particles import check_no_unit
from ..tree.stage import Stage

_BAD_ROW = "row {0} of rlink is not a valid linking length; each must be finite, at least 0 and within the range of %s."


def check_lengths(rlink: ArrayLike, rows: tuple[int, ...], box: Exact) -> Radii:
    """Return one linking length for all particles, or one per particle, as exact numbers.

    Padding rows may hold any values, so `length_faults` checks lengths per particle.

    Args:
        rlink: The lengths.
        rows: ``(n,)``, or ``(r, n)`` if there is an axis over devices.
        box: Periodic box.

    Raises:
        TypeError: If lengths are not real numbers.
        ValueError: If they have the wrong shape, or if one length for all is invalid.
    """
    if isinstance(rlink, Radii):
        return rlink
    check_no_unit(rlink, "rlink")
    shape = shape_of(rlink, "rlink")
    if shape == ():
        return Radii(check_length(rlink, box, "rlink"), None)
    if shape != rows:
        raise ValueError(
            f"rlink must be one linking length for all particles, or one per particle, {rows}; its shape is {shape}."
        )
    if not is_concrete(rlink):
        check_real_dtype(rlink, "rlink")
        return Radii(None, exact(rlink, shape))
    values = check_real(rlink, "rlink")
    # Report invalid values later, with their row, and only if the row holds a particle.
    valid = (values >= 0) & (values <= np.finfo(_widest()).max)
    return Radii(None, exact(np.where(valid, values, -1), shape))


def length_faults(lengths: Radii, num: int | jax.Array) -> list[comm.Fault]:
    """Return the possible faults of lengths per particle. Only the first ``num`` rows count."""
    if lengths.of_each is None:
        return []
    value = _numbers(lengths.of_each)
    return [row_fault(_are_invalid(value), num, _BAD_ROW % value.dtype)]


@functools.partial(jax.jit, inline=True)
def _are_invalid(length: jax.Array) -> jax.Array:
    return ~is_length(length) | jnp.isinf(length)


def reach_over_ranks(stage: Stage, lengths: Radii) -> jax.Array:
    """Return the reach of sources to the sources of higher ranks, for `Stage.with_ghosts`: one, or one per box.

    With a length per particle, the reach of a box to another rank is the mean of the largest lengths of both. It counts
    only for ranks whose particles may be within it.

    Args:
        stage: The particles.
        lengths: Linking lengths, if there is one per particle, in the order of the stage.
    """
    sources = stage.sources
    dtype = sources.pos.dtype
    if lengths.of_each is None:
        return at_least_normal(jnp.asarray(exact_to_float(lengths.words()), dtype))
    stage.compute_boxes()
    splits, lower, upper = stage.query_boxes
    half = _largest_half(_numbers(lengths.of_each).astype(dtype), splits)
    used = (jnp.diff(splits) > 0)[:, None]
    # A rank without particles gets a half so negative that no box reaches it.
    nothing = jnp.asarray(-jnp.finfo(dtype).max / 4, dtype)
    extent = (
        jnp.min(jnp.where(used, lower, -nothing), axis=0, keepdims=True),
        jnp.max(jnp.where(used, upper, nothing), axis=0, keepdims=True),
    )
    largest_half = jnp.max(jnp.where(used[:, 0], half, nothing), keepdims=True)
    *corners, largest_half = (
        column[:, 0] for column in comm.all_gather_rows(comm.after((*extent, largest_half), sources.num))
    )
    reach = half[:, None] + largest_half[None, :]
    in_reach = (_gap((lower, upper), corners, stage.box) <= reach[:, :, None]).all(axis=-1)
    higher = jnp.arange(reach.shape[1], dtype=jnp.int32) > comm.get_rank_info()[0]
    return jnp.max(jnp.where(used & in_reach & higher[None], at_least_normal(reach), -1), axis=1)


def _largest_half(length: jax.Array, splits: jax.Array) -> jax.Array:
    """Return half of the largest length of the rows of each box, rounded up; 0 for boxes without rows."""
    box = jnp.searchsorted(splits, jnp.arange(length.shape[0], dtype=splits.dtype), side="right") - 1
    largest = jax.ops.segment_max(length, box, splits.shape[0] - 1, indices_are_sorted=True)
    return at_least_normal(jnp.maximum(largest, 0)) * jnp.asarray(0.5 + 4 * jnp.finfo(length.dtype).eps, length.dtype)


def _gap(boxes: Sequence[Any], rank_boxes: Sequence[Any], period: Exact) -> jax.Array:
    """Return lower limits of the distances between ``b`` and ``r`` boxes along each dimension, ``(b, r, d)``."""
    lower, upper = (corner[:, None] for corner in boxes)
    other_lower, other_upper = (corner[None] for corner in rank_boxes)
    length = exact_to_parts(period, lower.dtype)[0][None, None]
    straight = jnp.maximum(other_lower - upper, lower - other_upper)
    around = length - (jnp.maximum(upper, other_upper) - jnp.minimum(lower, other_lower))
    gap = jnp.where(length > 0, jnp.minimum(straight, around), straight)
    scale = jnp.maximum(jnp.abs(other_lower), jnp.abs(other_upper))
    scale = jnp.maximum(jnp.maximum(scale, length), jnp.maximum(jnp.abs(lower), jnp.abs(upper)))
    return gap - 8 * jnp.finfo(gap.dtype).eps * scale


def _numbers(lengths: Exact) -> jax.Array:
    """Return lengths ``(n,)`` rounded to the widest float of JAX."""
    return jax.lax.stop_gradient(jnp.asarray(exact_to_float(lengths)))


def _widest() -> Any:
    return jax.dtypes.canonicalize_dtype(np.float64)
