"""Weights of particles: validation of user input, and conversion to kernel arguments."""

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import check_one_a_particle, check_real_dtype, common_dtype, farthest, rows_fault

_BAD = (
    "row {0} has a weight%s that is NaN, infinite or larger than %s in magnitude; remove such particles, or choose "
    "other units."
)


def checked_weights(
    weight: ArrayLike | None, pos: jax.Array, num: int | jax.Array, of: str = ""
) -> tuple[jax.Array | None, list[comm.Fault]]:
    """Return weights ``(n,)`` in the dtype of the positions, or None, and their possible faults.

    Args:
        weight: The weights, or None.
        pos: ``(n, d)``.
        num: Number of rows that hold particles.
        of: The owner of the weights in messages.

    Raises:
        TypeError: If the weights are not real numbers.
        ValueError: If there is not one weight per particle.
    """
    if weight is None:
        return None, []
    check_one_a_particle(weight, pos, f"weights{of}")
    check_real_dtype(weight, f"weights{of}")
    rows = jnp.asarray(weight, common_dtype(pos, weight)).astype(pos.dtype)
    column = rows[:, None]
    _, _, first, number = kernels.bounds(column, num)
    return rows, [rows_fault(first, number, _BAD % (of, farthest(pos.dtype)))]
