"""Checks of the arguments that public functions share. What is wrong is said in a sentence, at the call."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import comm, kernels
from .data import get_num, get_pos
from .jax_ext import Exact, exact, is_concrete
from .mapping import check_floats

MAX_DIMS = 8
SUMS_ROUNDED = 1e-10  # above the rounding of sums in float64, relative to what is summed
_BAD_MASS = (
    "row {0}{1} has a mass that is negative, NaN or beyond the range of {2}; remove such particles, choose another "
    "unit of mass, or switch on jax_enable_x64 and give positions and masses in float64."
)
_BAD_SHARED_MASS = (
    "the mass that all particles{1} share is negative, NaN or beyond the range of {2}; give another, or choose another "
    "unit of mass."
)
_BAD_VELOCITY = (
    "row {0}{1} has a velocity that is NaN, infinite or beyond {2} in size; remove such particles, or choose another "
    "unit of velocity."
)


def check_positions(pos: Any, what: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """``pos`` as a JAX array; TypeError or ValueError in words if it is not ``(n, d)`` float32 or float64."""
    if pos.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"{what} must be float32 or float64, not {pos.dtype}; convert them with .astype('float32').")
    if np.ndim(pos) != 2 or not 1 <= pos.shape[1] <= max_dims:
        raise ValueError(f"{what} must have shape (n, d) with d from 1 to {max_dims}; their shape is {pos.shape}.")
    if pos.shape[0] >= 2**31:
        raise ValueError(f"there are {pos.shape[0]} {what}; one device can index at most 2**31 - 1 rows.")
    check_floats({what: pos})
    return jnp.asarray(pos)


def farthest(dtype: Any) -> str:
    """The largest coordinate or velocity that kernels take, in words; see native/common/scale.h."""
    return "4.2e37" if dtype == jnp.float32 else "1e100"


def is_subnormal(value: jax.Array) -> jax.Array:
    """Which numbers are below the smallest normal one of their type. XLA takes them for 0, so it is bits that tell."""
    kind = jnp.finfo(value.dtype)
    bits = jax.lax.bitcast_convert_type(value, jnp.dtype(f"uint{kind.bits}"))
    size = bits & jnp.asarray(2 ** (kind.bits - 1) - 1, bits.dtype)
    return (size > 0) & (size < jnp.asarray(2**kind.nmant, bits.dtype))


def mass_rows(part: Any, dtype: Any) -> jax.Array | None:
    """The masses of particles, ``(n,)``, or ``(1,)`` if all share one; None if they have none.

    Raises ValueError in words for another number of them, or if ``dtype`` cannot hold those that are known.
    """
    mass, n = getattr(part, "mass", None), get_pos(part).shape[0]
    if mass is None:
        return None
    check_floats({"mass": mass})
    mass = jnp.asarray(mass, dtype).reshape(-1)
    if mass.shape[0] not in (1, n):
        raise ValueError(f"mass must be one number or one a particle; there are {mass.shape[0]} for {n}.")
    return mass


def mass_faults(mass: jax.Array | None, num: Any, n: int, of: str = "") -> list[comm.Fault]:
    """What may be wrong with masses as `mass_rows` gives them, of which those of the first ``num`` of ``n`` count.

    of: whose rows they are, such as " of attached[0]".
    """
    if mass is None:
        return []
    valid = (mass >= 0) & (mass < jnp.inf) & ~is_subnormal(mass)
    # The kernel that looks through positions does this in parallel, which XLA does not.
    marked = jnp.where(valid, 0, jnp.nan).astype(jnp.float32)[:, None]
    shared = mass.shape[0] != n
    bad = kernels.bounds(marked, jnp.minimum(kernels.as_num(num), 1) if shared else num)[2]
    return [comm.Fault(bad >= 0, [bad], (_BAD_SHARED_MASS if shared else _BAD_MASS).format("{0}", of, mass.dtype))]


def velocity_faults(vel: jax.Array | None, num: Any, of: str = "") -> list[comm.Fault]:
    """What may be wrong with velocities ``(n, d)``, of which the first ``num`` count. of: as in `mass_faults`."""
    if vel is None:
        return []
    bad = kernels.bounds(vel, num)[2]
    return [comm.Fault(bad >= 0, [bad], _BAD_VELOCITY.format("{0}", of, farthest(vel.dtype)))]


def check_num(part: Any, what: str = "num") -> Any:
    """``num`` of ``part``; ValueError in words if it is known and not between 0 and the number of rows."""
    num, n = get_num(part), get_pos(part).shape[0]
    if np.ndim(num) != 0 or not np.issubdtype(jnp.result_type(num), np.integer):
        raise TypeError(f"{what} is {num}; it counts the rows that hold particles, so it must be one integer.")
    if is_concrete(num) and not 0 <= int(num) <= n:
        raise ValueError(f"{what} is {num}; it counts the rows that hold particles, so it must be from 0 to {n}.")
    return num


def check_real(value: Any, what: str) -> np.ndarray:
    """``value`` as float64 NumPy numbers; TypeError in words if it is not made of real numbers."""
    array = np.asarray(value)
    if not (np.issubdtype(array.dtype, np.floating) or np.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{what} is {value!r}; it must be a real number or an array of such.")
    return array.astype(np.float64)


def check_range(value: np.ndarray, what: str, may_vanish: bool = False) -> None:
    """ValueError in words if a length is beyond what JAX can carry in the mode it is in.

    may_vanish: one that is too small counts as 0.
    """
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    if np.any((value > widest.max) | ((value > 0) & (value < widest.tiny) & (not may_vanish))):
        raise ValueError(
            f"{what} is {value}, beyond the range of float32; choose another unit of length, or switch on "
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
        raise ValueError(f"boxsize is {boxsize}; lengths must be finite and positive, or 0 where open.")
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
