"""Radii from distances that a search has returned."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from ..particles import check_width


def radius_including(distance: ArrayLike) -> Any:
    """Return radii that include the neighbours at these distances.

    A particle is within a radius if its distance, computed in float64 from the given positions, is at most the radius.
    The distances that searches return are rounded to the dtype of the positions, up or down. If a distance was rounded
    down and you use it as a radius, a search does not find this neighbour. With the next larger number as a radius, it
    does.

    Args:
        distance: Distances of any shape, float32 or float64, in the dtype that the search returned. A Python number
            counts as float64, so do not convert float32 distances to Python numbers first.

    Returns:
        The next larger numbers, with the same shape and dtype. They are NumPy arrays or scalars unless ``distance`` is
        a JAX array. Infinity and NaN are unchanged. The radii have the derivatives of ``distance``.

    Raises:
        TypeError: If ``distance`` is not of real floating-point numbers.

    Examples:
        >>> pos = np.array([[0.0], [0.1], [0.3]], np.float32)
        >>> distance, _ = jz.nearest(pos, 2)
        >>> jz.count_within(pos, jz.radius_including(distance[:, -1]))  # at least 2
        Array([2, 2, 2], dtype=int32)
    """
    check_width({"distance": distance})
    value = distance if isinstance(distance, jax.Array) else np.asarray(distance)
    if value.dtype not in (np.float32, np.float64):
        raise TypeError(f"distances must be float32 or float64, not {value.dtype}; pass them unchanged.")
    return _next(value) if isinstance(value, jax.Array) else np.nextafter(value, value.dtype.type(np.inf))


@jax.custom_jvp
def _next(value: jax.Array) -> jax.Array:
    return jnp.nextafter(value, jnp.full_like(value, jnp.inf))


@_next.defjvp
def _next_jvp(primals: tuple[jax.Array], tangents: tuple[jax.Array]) -> tuple[jax.Array, jax.Array]:
    return _next(*primals), tangents[0]
