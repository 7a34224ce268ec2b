"""Weights of particles: validation of user input, and conversion to the form that kernels need."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..arguments import check_one_a_particle, check_real_dtype, common_dtype, farthest, rows_fault

_BAD = (
    "row {0} has a weight%s that is NaN, infinite or larger than %s in magnitude; remove such particles, or choose "
    "other units."
)


def checked_weights(weight: Any, pos: jax.Array, num: Any, of: str = "") -> tuple[jax.Array | None, list[comm.Fault]]:
    """Return weights ``(n,)`` in the dtype of the positions, or None if there are none, and their possible faults.

    of: the owner of the weights in messages. Raises TypeError or ValueError unless there is one real number per
    particle.
    """
    if weight is None:
        return None, []
    check_one_a_particle(weight, pos, f"weight{of}")
    check_real_dtype(weight, f"weight{of}")
    rows = jnp.asarray(weight, common_dtype(pos, weight)).astype(pos.dtype)
    column = rows[:, None]
    _, _, first, number = kernels.bounds(column, num)
    return rows, [rows_fault(first, number, _BAD % (of, farthest(pos.dtype)))]
