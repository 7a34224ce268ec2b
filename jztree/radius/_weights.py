"""Weights of particles, as users give them and as kernels take them."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._checks import check_one_a_particle, check_real_dtype, common_dtype, farthest, rows_fault

_BAD = (
    "row {0} has a weight%s that is NaN, infinite or beyond %s in size; remove such particles, or choose other units."
)


def checked_weights(weight: Any, pos: jax.Array, num: Any, of: str = "") -> tuple[jax.Array | None, list[comm.Fault]]:
    """Weights ``(n,)`` in the dtype of the positions, None if there are none, and what may be wrong with them.

    of: whose they are, in words. Raises TypeError or ValueError in words if they are not one real number a particle.
    """
    if weight is None:
        return None, []
    check_one_a_particle(weight, pos, f"weight{of}")
    check_real_dtype(weight, f"weight{of}")
    rows = jnp.asarray(weight, common_dtype(pos, weight)).astype(pos.dtype)
    column = rows[:, None]
    _, _, first, number = kernels.bounds(column, num)
    return rows, [rows_fault(first, number, _BAD % (of, farthest(pos.dtype)))]
