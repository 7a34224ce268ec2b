"""Validation of properties of particles: masses and velocities."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from ..particles import check_representable, num_rows
from ._faults import row_fault, rows_fault
from ._numbers import check_real_dtype, farthest

SUMS_ROUNDED = 1e-10  # above the rounding error of sums in float64, relative to the summed values
_BAD_MASS = (
    "row {0}{1} has a mass that is negative, NaN or outside the range of {2}; remove such particles, choose another "
    "unit of mass, or switch on jax_enable_x64 and give positions and masses in float64."
)
_BAD_SHARED_MASS = (
    "the mass that all particles{1} share is negative, NaN or outside the range of {2}; pass a valid mass, or choose "
    "another unit of mass."
)
_BAD_VELOCITY = (
    "row {0}{1} has a velocity that is NaN, infinite or larger than {2} in magnitude; remove such particles, or choose "
    "another unit of velocity."
)


def check_one_a_particle(value: Any, pos: jax.Array, name: str, *, integers: bool = False) -> None:
    """Check that ``value`` is an array ``(n,)`` that JAX can hold unchanged, of integers if ``integers`` is set.

    Raises:
        TypeError: If it is not an array of such numbers.
        ValueError: If its shape is not ``(n,)``, or JAX would change its numbers.
    """
    if isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is a {type(value).__name__}; convert it with numpy.asarray.")
    check_representable({name: value})
    if np.shape(value) != pos.shape[:1]:
        shape = np.shape(value)
        raise ValueError(f"{name} must have one number per particle, shape {pos.shape[:1]}; its shape is {shape}.")
    if integers and not jnp.issubdtype(jnp.result_type(value), jnp.integer):
        raise TypeError(f"{name} must be integers, not {jnp.result_type(value)}.")


def check_mass(part: Any, name: str = "mass") -> Any:
    """Return ``mass`` of ``part`` unchanged, or None. ``name`` names it in messages.

    Raises:
        TypeError: If it does not hold real numbers.
        ValueError: If it is not one number, or one per row.
    """
    mass, n = getattr(part, "mass", None), num_rows(part)
    if mass is None:
        return None
    check_real_dtype(mass, name)
    if np.size(mass) != 1 and (np.size(mass) != n or np.shape(mass)[0] != n):
        raise ValueError(
            f"{name} must be one number, or one per particle, shape ({n},); its shape is {np.shape(mass)}."
        )
    return mass


def mass_rows(part: Any, dtype: np.dtype[Any], name: str = "mass") -> jax.Array | None:
    """Return the masses of particles, ``(n,)``, or ``(1,)`` if all share one; None for particles without mass.

    Raises like `check_mass`.
    """
    mass = check_mass(part, name)
    if mass is None:
        return None
    check_representable({"mass": mass})
    return _narrowed(jnp.asarray(mass).reshape(-1), dtype)


@functools.partial(jax.jit, static_argnames="dtype", inline=True)
def _narrowed(mass: jax.Array, dtype: np.dtype[Any]) -> jax.Array:
    """Convert masses to another dtype.

    Masses that underflow to 0 become NaN, because they are as invalid as infinite ones.
    """
    narrowed = mass.astype(dtype)
    return (
        narrowed
        if mass.dtype == dtype
        else jnp.where((mass > 0) & (narrowed == 0), jnp.asarray(jnp.nan, dtype), narrowed)
    )


def mass_faults(mass: jax.Array | None, num: int | jax.Array, n: int, of: str = "") -> list[comm.Fault]:
    """Return the possible faults of masses.

    Args:
        mass: Masses from `mass_rows`.
        num: Number of rows that hold particles; later rows are ignored.
        n: Number of rows.
        of: The owner of the rows, such as " of attached[0]".
    """
    if mass is None:
        return []
    is_shared = mass.shape[0] != n
    sentence = (_BAD_SHARED_MASS if is_shared else _BAD_MASS).format("{0}", of, mass.dtype)
    return [row_fault(_is_no_mass(mass), jnp.minimum(kernels.as_num(num), 1) if is_shared else num, sentence)]


@functools.partial(jax.jit, inline=True)
def _is_no_mass(mass: jax.Array) -> jax.Array:
    """Return a mask of the numbers that are not valid masses."""
    # Compare bits: subnormal numbers lie between 0 and the normal numbers; infinity and negative numbers lie above.
    kind = jnp.finfo(mass.dtype)
    bits = jax.lax.bitcast_convert_type(mass, jnp.dtype(f"uint{kind.bits}"))
    smallest, largest = (jnp.asarray(np.asarray(x, mass.dtype).view(bits.dtype)) for x in (kind.tiny, kind.max))
    return ~(((bits >= smallest) & (bits <= largest)) | (bits << 1 == 0))


def velocity_faults(vel: jax.Array | None, num: int | jax.Array, of: str = "") -> list[comm.Fault]:
    """Return the possible faults of velocities ``(n, d)`` in the first ``num`` rows. For ``of`` see `mass_faults`."""
    if vel is None:
        return []
    _, _, first, number = kernels.bounds(vel, num)
    return [rows_fault(first, number, _BAD_VELOCITY.format("{0}", of, farthest(vel.dtype)))]
