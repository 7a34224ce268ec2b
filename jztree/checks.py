"""Checks of the arguments that public functions share. What is wrong is said in a sentence, at the call."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import kernels
from .data import get_num, get_pos
from .jax_ext import Exact, exact, is_concrete

MAX_DIMS = 8


def one_line(value: Any) -> str:
    """The text of ``value`` without the line breaks that NumPy puts into long arrays."""
    return " ".join(str(value).split())


def check_positions(pos: Any, what: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """``pos`` as a JAX array; TypeError or ValueError in words if it is not ``(n, d)`` float32 or float64."""
    if pos.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"{what} must be float32 or float64, not {pos.dtype}; convert them with .astype('float32').")
    if np.ndim(pos) != 2 or not 1 <= pos.shape[1] <= max_dims:
        raise ValueError(f"{what} must have shape (n, d) with d from 1 to {max_dims}; their shape is {pos.shape}.")
    if pos.shape[0] >= 2**31:
        raise ValueError(f"there are {pos.shape[0]} {what}; one device can index at most 2**31 - 1 rows.")
    return jnp.asarray(pos)


def check_num(part: Any, what: str = "num") -> Any:
    """``num`` of ``part``; ValueError in words if it is known and not between 0 and the number of rows."""
    num, n = get_num(part), get_pos(part).shape[0]
    if np.ndim(num) != 0 or not np.issubdtype(jnp.result_type(num), np.integer):
        raise TypeError(
            f"{what} is {one_line(num)}; it counts the rows that hold particles, so it must be one integer."
        )
    if is_concrete(num) and not 0 <= int(num) <= n:
        raise ValueError(f"{what} is {num}; it counts the rows that hold particles, so it must be from 0 to {n}.")
    return num


def check_real(value: Any, what: str) -> np.ndarray:
    """``value`` as float64 NumPy numbers; TypeError in words if it is not made of real numbers."""
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{what} is {one_line(repr(value))}; it must be a real number or an array of such.")
    return array.astype(np.float64)


def check_range(value: np.ndarray, what: str, may_vanish: bool = False) -> None:
    """ValueError in words if a length is beyond what JAX can carry in the mode it is in.

    may_vanish: one that is too small counts as 0.
    """
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    if np.any((value > widest.max) | ((value > 0) & (value < widest.tiny) & (not may_vanish))):
        raise ValueError(
            f"{what} is {one_line(value)}, beyond the range of float32; choose another unit of length, or switch on "
            "jax_enable_x64."
        )


def check_box(boxsize: Any, dims: int) -> Exact:
    """``boxsize`` as one exact length a dimension, 0 where open; ValueError in words if it cannot be one."""
    if isinstance(boxsize, Exact):
        return boxsize
    if boxsize is None:
        boxsize = 0.0
    if np.shape(boxsize) not in ((), (dims,)):
        raise ValueError(
            f"boxsize must be one length or {dims}, one a dimension (0 where open); its shape is {np.shape(boxsize)}."
        )
    if type(boxsize) is float:
        return _number_box(boxsize, dims, jax.dtypes.canonicalize_dtype(np.float64))
    if is_concrete(boxsize):
        return _known_box(boxsize, dims)
    return kernels.checked_lengths(exact(boxsize, (dims,)))[0]


def _known_box(boxsize: Any, dims: int) -> Exact:
    lengths = check_real(boxsize, "boxsize")
    if not (np.all(np.isfinite(lengths)) and np.all(lengths >= 0)):
        raise ValueError(f"boxsize is {one_line(boxsize)}; lengths must be finite and positive, or 0 where open.")
    check_range(lengths, "boxsize")
    return exact(boxsize, (dims,))


@functools.lru_cache
def _number_box(boxsize: float, dims: int, _widest: Any) -> Exact:
    """`_known_box` of a Python number, of which there is often one for many calls. _widest: what it depends on too."""
    return _known_box(boxsize, dims)


def exact_box_argument(arguments: dict[str, Any]) -> dict[str, Any]:
    """What compiled and mapped twins are to replace in the arguments of a function: ``boxsize``, checked and exact.

    The first argument is a particle class, an array of positions, or a sequence of these. Positions may have a leading
    axis over devices; what else there is to check about them is checked by the function itself.
    """
    part = next(iter(arguments.values()))
    if isinstance(part, (list, tuple)) and part:
        part = part[0]
    return {"boxsize": check_box(arguments["boxsize"], (1, *np.shape(get_pos(part)))[-1])}
