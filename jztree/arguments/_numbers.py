"""Validation of numbers: their types, their range, and their text in messages."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from .._transform.shard_map import plain_integer
from ..jax_ext import is_concrete
from ..particles import check_no_unit, one_line


def known_integer(value: Any, name: str, minimum: int | None = None) -> int:
    """Return an integer of Python, NumPy or JAX as a Python int.

    Raises:
        TypeError: For traced and other values.
        ValueError: If ``minimum`` is given, and the value is below it or above 2**31 - 1.
    """
    value = plain_integer(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(
            f"{name} must be an integer that is known when the function is traced, not {shown(repr(value))}."
        )
    if minimum is not None and not minimum <= value < 2**31:
        raise ValueError(f"{name} is {value}; it must be from {minimum} to 2**31 - 1.")
    return int(value)


def farthest(dtype: np.dtype[Any]) -> str:
    """Return the largest coordinate or velocity that kernels accept, as text; see native/common/scale.h."""
    return "4.2e37" if dtype == jnp.float32 else "3.1e144"


def farthest_number(dtype: np.dtype[Any]) -> float:
    """Return the exact value of `farthest`."""
    return 2.0**125 if dtype == jnp.float32 else 2.0**480


@functools.partial(jax.jit, inline=True)
def is_subnormal(value: jax.Array) -> jax.Array:
    """Return a mask of subnormal numbers. XLA treats them as 0, so the test inspects their bits."""
    kind = jnp.finfo(value.dtype)
    bits = jax.lax.bitcast_convert_type(value, jnp.dtype(f"uint{kind.bits}"))
    size = bits & jnp.asarray(2 ** (kind.bits - 1) - 1, bits.dtype)
    return (size > 0) & (size < jnp.asarray(2**kind.nmant, bits.dtype))


def at_least_normal(length: jax.Array) -> jax.Array:
    """Return ``length``, raised to the smallest normal number; XLA treats shorter lengths as 0, and longer is safe.

    Negative numbers, which are markers, and NaN are unchanged.
    """
    return jnp.where(length >= 0, jnp.maximum(length, jnp.finfo(length.dtype).tiny), length)


@functools.partial(jax.jit, inline=True)
def in_order(value: jax.Array) -> jax.Array:
    """Map floats to integers of the same order, including subnormal numbers, which XLA treats as 0.

    NaN are outside the infinities.
    """
    kind = jnp.dtype(f"int{jnp.finfo(value.dtype).bits}")
    bits = jax.lax.bitcast_convert_type(value, kind)
    return jnp.where(bits < 0, jnp.iinfo(kind).min - bits, bits)


@functools.partial(jax.jit, inline=True)
def is_length(value: jax.Array) -> jax.Array:
    """Return a mask of the numbers from 0 to infinity."""
    order = in_order(value)
    return (order >= 0) & (order <= in_order(jnp.asarray(jnp.inf, value.dtype)))


def check_error(error: Any) -> float:
    """Return a relative error of potentials. Raise ValueError if it is out of range."""
    value = check_real(error, "error")
    if value.shape != () or not 1e-10 <= value <= 0.1:
        raise ValueError(f"error is {shown(error)}; it must be from 1e-10 to 0.1, a relative error such as 1e-3.")
    return float(value)


def check_real_dtype(value: Any, name: str) -> None:
    """Raise TypeError if ``value``, an array or a number, does not hold real numbers."""
    if isinstance(value, (list, tuple)):
        raise TypeError(f"{name} is a {type(value).__name__}; convert it with numpy.asarray.")
    dtype = np.dtype(str) if isinstance(value, str) else jnp.result_type(value)
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise TypeError(f"{name} must be real numbers, not {dtype}.")


def common_dtype(*values: Any) -> Any:
    """Return the common dtype of the values, even if the user has disabled implicit dtype promotion in JAX."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*values)


def shape_of(value: Any, name: str) -> tuple[int, ...]:
    """Return the shape of an array or of nested lists; raise ValueError for ragged lists."""
    try:
        return np.shape(value)
    except ValueError:
        raise ValueError(f"{name} is {shown(value)}; lists in one list must all have the same length.") from None


def shown(value: Any) -> str:
    """Return the text of a value for an error message, cut to fit a line."""
    text = one_line(value)
    return text if len(text) <= 120 else f"{text[:110]} ..."


def check_real(value: Any, name: str, advice: str = "it must be a real number or an array of numbers") -> np.ndarray:
    """Return ``value`` as a float64 NumPy array; raise TypeError if it does not hold real numbers or has a unit."""
    check_no_unit(value, name)
    array = np.asarray(value)
    # Ask JAX, because NumPy does not know that bfloat16 is real.
    if not (jnp.issubdtype(array.dtype, np.floating) or jnp.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{name} is {shown(repr(value))}; {advice}.")
    return array.astype(np.float64)


def check_range(value: np.ndarray, name: str, may_be_small: bool = False) -> None:
    """Raise ValueError if a length is outside the range that JAX can hold in its current mode.

    Args:
        value: The lengths, float64.
        name: Their name in the message.
        may_be_small: Whether to accept lengths below the normal numbers.
    """
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    if np.any((value > widest.max) | ((value > 0) & (value < widest.tiny) & (not may_be_small))):
        switch = ", or switch on jax_enable_x64" if widest.bits < 64 else ""
        raise ValueError(
            f"{name} is {shown(value)}, which is outside the range of {widest.dtype}; choose another unit of "
            f"length{switch}."
        )


def check_constant(value: Any, name: str, *, may_be_zero: bool = False) -> Any:
    """Return a constant. Raise ValueError, at run time if it is traced, unless it is one positive, finite number."""
    if isinstance(value, (list, tuple)) or np.shape(value) != ():
        raise ValueError(f"{name} must be one number; it is {shown(value)}.")
    valid = f"it must be finite and {'at least 0' if may_be_zero else 'positive'}"
    if is_concrete(value):
        number = check_real(value, name)
        if not (np.isfinite(number) and (number > 0 or (may_be_zero and number == 0))):
            raise ValueError(f"{name} is {number:g}; {valid}.")
        return value
    check_real_dtype(value, name)
    in_range = (value > 0) | (value == 0) if may_be_zero else value > 0
    return comm.after(value, kernels.check(0, ~(in_range & jnp.isfinite(value)), [], f"{name} is invalid; {valid}."))


def root_of_constant(value: Any, name: str, dtype: np.dtype[Any]) -> jax.Array:
    """Return the root of a positive constant. The constant may be out of range of the dtype although its root is not.

    Raises like `check_constant`.
    """
    constant = check_constant(value, name)
    return jnp.asarray(np.sqrt(np.float64(constant)) if is_concrete(constant) else jnp.sqrt(constant), dtype)
