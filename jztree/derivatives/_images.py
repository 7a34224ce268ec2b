"""Differences to nearest periodic images, and lengths of vectors, with the arithmetic of the kernels and with
derivatives.

A period is a float64 number that the dtype of the positions may not represent. So, like native/common/geometry.h, this
module splits it into two parts and subtracts them from the coordinate that is farther from 0. This loses no digits: a
difference across a periodic face has the same relative precision as any other. Lengths are computed in units of their
largest component, so that no square leaves the range of the dtype in any unit.
"""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from .. import kernels
from .._transform.exact import exact_to_parts
from ..jax_ext import Exact


def nearest_difference(a: jax.Array, b: jax.Array, box: Exact) -> jax.Array:
    """Return ``a - b`` to the nearest image, ``(..., d)``; differentiable with respect to both and the box."""
    length, remainder = _along_last_axis(a, *exact_to_parts(box, a.dtype))
    straight = a - b
    images = _whole(jnp.round, straight, length)
    upper_a = ((a - images * length) - images * remainder) - b
    upper_b = a - ((b + images * length) + images * remainder)
    around = jnp.where(jnp.abs(a) >= jnp.abs(b), upper_a, upper_b)
    return jnp.where(images == 0, straight, around)


def wrapped(pos: jax.Array, box: Exact) -> jax.Array:
    """Wrap ``pos``, ``(..., d)``, into the box; differentiable with respect to both."""
    length, remainder = _along_last_axis(pos, *exact_to_parts(box, pos.dtype))
    images = _whole(jnp.floor, pos, length)
    # The quotient may have been rounded up onto an integer.
    above = _stopped((pos - images * length) - images * remainder < 0) & (length > 0)
    images = images - above.astype(pos.dtype)
    return jnp.where(images == 0, pos, (pos - images * length) - images * remainder)


@jax.custom_jvp
def norm(vector: jax.Array) -> jax.Array:
    """Return the length of vectors ``(..., d)``. Its derivative at 0 is 0."""
    scale = jnp.max(jnp.abs(vector), axis=-1, keepdims=True)
    inside = vector / jnp.where(scale > 0, scale, 1)
    squares = kernels.sums_of_rows((inside * inside).reshape(-1, vector.shape[-1]))
    return scale[..., 0] * jnp.sqrt(squares.reshape(vector.shape[:-1]))


@norm.defjvp
def _norm_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return norm(*primals), jnp.sum(unit(*primals) * tangents[0], axis=-1)


@jax.custom_jvp
def as_norm(length: jax.Array, vector: jax.Array) -> jax.Array:
    """Return ``length``, the known length of ``vector``, with the derivative of `norm`."""
    del vector
    return length


@as_norm.defjvp
def _as_norm_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    # Wrap the result again, or a second derivative would miss its dependence on the vector.
    return as_norm(*primals), jnp.sum(unit(primals[1]) * tangents[1], axis=-1)


def unit(vector: jax.Array) -> jax.Array:
    """Divide vectors ``(..., d)`` by their length; 0 stays 0."""
    scale = _stopped(jnp.max(jnp.abs(vector), axis=-1, keepdims=True))
    is_nonzero = scale > 0
    inside = jnp.where(is_nonzero, vector / jnp.where(is_nonzero, scale, 1), 0)
    square = jnp.where(is_nonzero, jnp.sum(inside * inside, axis=-1, keepdims=True), 1)
    return inside / jnp.sqrt(square)


@jax.custom_jvp
def ratio(a: jax.Array, b: jax.Array) -> jax.Array:
    """Return ``a / b``, for nonzero ``b``.

    Its derivative does not square ``b``, because the square might leave the range of float32.
    """
    return a / b


@ratio.defjvp
def _ratio_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[jax.Array, jax.Array]:
    value = ratio(*primals)
    return value, ratio(tangents[0] - value * tangents[1], primals[1])


def _along_last_axis(array: jax.Array, *lengths: jax.Array) -> list[jax.Array]:
    """Reshape ``lengths``, ``(d,)``, to broadcast against an array whose last axis runs over dimensions."""
    return [jnp.reshape(length, (1,) * (array.ndim - 1) + (-1,)) for length in lengths]


def _whole(rounded: Callable[[jax.Array], jax.Array], place: jax.Array, length: jax.Array) -> jax.Array:
    """Return the rounded number of lengths in ``place``; 0 in open dimensions.

    It is also 0 for NaN, which padding may hold. The number is the derivative with respect to the length, which is
    summed over all rows.
    """
    counted = (length > 0) & jnp.isfinite(place)
    return _stopped(jnp.where(counted, rounded(place / jnp.where(length > 0, length, 1)), 0))


def _stopped(value: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(value)
