"""Argument checks shared by the public functions. They raise at the call, with a full sentence."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from .._transform.shard_map import plain_integer
from ..config import is_config
from ..jax_ext import Exact, exact, is_concrete
from ..particles import (
    check_movable,
    check_no_unit,
    check_num,
    check_representable,
    check_rows,
    get_pos,
    one_line,
    shape_of_pos,
)

MAX_DIMS = 8
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


def check_positions(pos: Any, what: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """Return ``pos`` as a JAX array.

    Raises:
        TypeError: If its dtype is not float32 or float64.
        ValueError: If its shape is not ``(n, d)`` with d from 1 to ``max_dims``.
    """
    if pos.dtype not in (jnp.float32, jnp.float64):
        raise TypeError(f"{what} must be float32 or float64, not {pos.dtype}; convert them with .astype('float32').")
    if np.ndim(pos) != 2 or not 1 <= pos.shape[1] <= max_dims:
        raise ValueError(f"{what} must have shape (n, d) with d from 1 to {max_dims}; their shape is {pos.shape}.")
    check_rows(pos.shape[0], what)
    return jnp.asarray(pos)


def check_particles(part: Any, what: str = "positions", max_dims: int = MAX_DIMS) -> jax.Array:
    """Return the positions of ``part``, the argument of a public function.

    Raises:
        TypeError: If it is not a particle class, or if JAX or the kernels cannot hold one of its arrays.
        ValueError: If JAX or the kernels would change its numbers by more than rounding, or if positions have an
            invalid shape.
    """
    pos = get_pos(part)
    check_representable({f"the array of {what}": part} if pos is part else part)
    check_movable(part)
    return check_positions(pos, what, max_dims)


def check_queries(part_query: Any, pos: jax.Array) -> jax.Array:
    """Return the positions of ``part_query``.

    Args:
        part_query: A particle class, or an array of positions.
        pos: The positions of the particles.

    Raises:
        TypeError: If the queries have no valid positions.
        ValueError: If their shape, dtype or ``num`` is invalid, or if they do not match ``pos``.
    """
    query = check_particles(part_query, "query positions")
    check_num(part_query, "num of part_query")
    check_alike(query, pos, "queries are", "the particles are")
    return query


def check_alike(other: jax.Array, pos: jax.Array, that: str, this: str) -> None:
    """Raise ValueError if positions differ from ``pos`` in dimensions or precision.

    Args:
        other: Positions ``(m, d)``.
        pos: Positions ``(n, d)``.
        that: The owner of ``other`` with a verb, for the message.
        this: The owner of ``pos`` with a verb.
    """
    if other.shape[1] != pos.shape[1]:
        raise ValueError(
            f"{that} {other.dtype} with {other.shape[1]} dimensions, but {this} {pos.dtype} with {pos.shape[1]}; both "
            "must have the same number of dimensions."
        )
    if other.dtype != pos.dtype:
        first, second = (words.rpartition(" ")[0] for words in (that, this))
        raise ValueError(
            f"{that} {other.dtype}, but {this} {pos.dtype}; both must have one dtype: convert the positions of {first} "
            f"with .astype('{pos.dtype}'), or those of {second} with .astype('{other.dtype}')."
        )


def known_integer(value: Any, what: str) -> int:
    """Return an integer of Python, NumPy or JAX as a Python int; raise TypeError for traced and other values."""
    value = plain_integer(value)
    if isinstance(value, (bool, np.bool_)) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{what} must be an integer that is known when the function is traced, not {value!r}.")
    return int(value)


def farthest(dtype: Any) -> str:
    """Return the largest coordinate or velocity that kernels accept, as text; see native/common/scale.h."""
    return "4.2e37" if dtype == jnp.float32 else "3.1e144"


def farthest_number(dtype: Any) -> float:
    """Return the exact value of `farthest`."""
    return 2.0**125 if dtype == jnp.float32 else 2.0**480


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


def in_order(value: jax.Array) -> jax.Array:
    """Map floats to integers of the same order, including subnormal numbers, which XLA treats as 0.

    NaN are outside the infinities.
    """
    kind = jnp.dtype(f"int{jnp.finfo(value.dtype).bits}")
    bits = jax.lax.bitcast_convert_type(value, kind)
    return jnp.where(bits < 0, jnp.iinfo(kind).min - bits, bits)


def is_length(value: jax.Array) -> jax.Array:
    """Return a mask of the numbers from 0 to infinity."""
    order = in_order(value)
    return (order >= 0) & (order <= in_order(jnp.asarray(jnp.inf, value.dtype)))


def check_real_dtype(value: Any, what: str) -> None:
    """Raise TypeError if ``value``, an array or a number, does not hold real numbers."""
    dtype = jnp.result_type(value)
    if not (jnp.issubdtype(dtype, jnp.floating) or jnp.issubdtype(dtype, jnp.integer)):
        raise TypeError(f"{what} must be real numbers, not {dtype}.")


def check_one_a_particle(value: Any, pos: jax.Array, what: str) -> None:
    """Check that ``value`` is an array ``(n,)`` that JAX can hold unchanged.

    Raises:
        TypeError: If it is not an array of numbers.
        ValueError: If its shape is not ``(n,)``, or JAX would change its numbers.
    """
    if isinstance(value, (list, tuple)):
        raise TypeError(f"{what} is a {type(value).__name__}; convert it with numpy.asarray.")
    check_representable({what: value})
    if np.shape(value) != pos.shape[:1]:
        shape = np.shape(value)
        raise ValueError(f"{what} must have one number per particle, shape {pos.shape[:1]}; its shape is {shape}.")


def check_mass(part: Any) -> Any:
    """Return ``mass`` of ``part`` unchanged, or None.

    Raises:
        TypeError: If it does not hold real numbers.
        ValueError: If it is not one number, or one per row.
    """
    mass, n = getattr(part, "mass", None), get_pos(part).shape[0]
    if mass is None:
        return None
    check_real_dtype(mass, "masses")
    if np.size(mass) != 1 and (np.size(mass) != n or np.shape(mass)[0] != n):
        raise ValueError(f"mass must be one number, or one per particle, shape ({n},); its shape is {np.shape(mass)}.")
    return mass


def mass_rows(part: Any, dtype: Any) -> jax.Array | None:
    """Return the masses of particles, ``(n,)``, or ``(1,)`` if all share one; None for particles without mass.

    Raises like `check_mass`.
    """
    mass = check_mass(part)
    if mass is None:
        return None
    check_representable({"mass": mass})
    return _narrowed(jnp.asarray(mass).reshape(-1), dtype)


@functools.partial(jax.jit, static_argnames="dtype", inline=True)
def _narrowed(mass: jax.Array, dtype: Any) -> jax.Array:
    """Convert masses to another dtype.

    Masses that underflow to 0 become NaN, because they are as invalid as infinite ones.
    """
    made = mass.astype(dtype)
    return made if mass.dtype == dtype else jnp.where((mass > 0) & (made == 0), jnp.asarray(jnp.nan, dtype), made)


def mass_faults(mass: jax.Array | None, num: Any, n: int, of: str = "") -> list[comm.Fault]:
    """Return the possible faults of masses.

    Args:
        mass: Masses from `mass_rows`.
        num: Number of rows that hold particles; later rows are ignored.
        n: Number of rows.
        of: The owner of the rows, such as " of attached[0]".
    """
    if mass is None:
        return []
    shared = mass.shape[0] != n
    sentence = (_BAD_SHARED_MASS if shared else _BAD_MASS).format("{0}", of, mass.dtype)
    return [row_fault(_is_no_mass(mass), jnp.minimum(kernels.as_num(num), 1) if shared else num, sentence)]


@functools.partial(jax.jit, inline=True)
def _is_no_mass(mass: jax.Array) -> jax.Array:
    """Return a mask of the numbers that are not valid masses."""
    # Compare bits: subnormal numbers lie between 0 and the normal numbers; infinity and negative numbers lie above.
    kind = jnp.finfo(mass.dtype)
    bits = jax.lax.bitcast_convert_type(mass, jnp.dtype(f"uint{kind.bits}"))
    least, most = (jnp.asarray(np.asarray(x, mass.dtype).view(bits.dtype)) for x in (kind.tiny, kind.max))
    return ~(((bits >= least) & (bits <= most)) | (bits << 1 == 0))


def first_row(marked: jax.Array, num: Any = None) -> jax.Array:
    """Return the first marked row, int32, or -1.

    Args:
        marked: ``(n,)``, 0 if not marked.
        num: Number of rows to search. None means all.
    """
    return _marked_rows(marked, num)[0]


def row_fault(marked: jax.Array, num: Any, sentence: str) -> comm.Fault:
    """Return the fault that a row is marked.

    Args:
        marked: ``(n,)``, 0 if not marked.
        num: Number of rows to search. None means all.
        sentence: See `rows_fault`.
    """
    first, number = _marked_rows(marked, num)
    return rows_fault(first, number, sentence)


def rows_fault(first: jax.Array, number: jax.Array, sentence: str) -> comm.Fault:
    """Return the fault that any row is bad.

    Args:
        first: The first bad row, from `kernels.bounds`.
        number: The number of bad rows, from `kernels.bounds`.
        sentence: Contains ``{0}`` for the first row. The message ends with the number of bad rows if there are several.
    """
    several = sentence.removesuffix(".") + " ({1} such rows)."
    return comm.Fault(jnp.minimum(number, 2), [first, number], f"{sentence}\n{several}")


def _marked_rows(marked: jax.Array, num: Any) -> tuple[jax.Array, jax.Array]:
    """Return the first marked row and the number of marked rows, int32.

    This uses the kernel that scans positions: it runs in parallel and, unlike XLA code, is already compiled.
    """
    _, _, first, number = kernels.bounds(_column(marked), marked.shape[0] if num is None else num)
    return first, number


@functools.partial(jax.jit, inline=True)
def _column(marked: jax.Array) -> jax.Array:
    """Return positions that are out of range in the rows that are ``marked``."""
    # Not NaN, which jax_debug_nans would report.
    return jnp.where(marked.astype(bool), jnp.finfo(jnp.float32).max, jnp.float32(0))[:, None]


def velocity_faults(vel: jax.Array | None, num: Any, of: str = "") -> list[comm.Fault]:
    """Return the possible faults of velocities ``(n, d)`` in the first ``num`` rows. For ``of`` see `mass_faults`."""
    if vel is None:
        return []
    _, _, first, number = kernels.bounds(vel, num)
    return [rows_fault(first, number, _BAD_VELOCITY.format("{0}", of, farthest(vel.dtype)))]


def common_dtype(*values: Any) -> Any:
    """Return the common dtype of the values, even if the user has disabled implicit dtype promotion in JAX."""
    with jax.numpy_dtype_promotion("standard"):
        return jnp.result_type(*values)


def shape_of(value: Any, what: str) -> tuple[int, ...]:
    """Return the shape of an array or of nested lists; raise ValueError for ragged lists."""
    try:
        return np.shape(value)
    except ValueError:
        raise ValueError(f"{what} is {shown(value)}; lists in one list must all have the same length.") from None


def shown(value: Any) -> str:
    """Return the text of a value for an error message, cut to fit a line."""
    text = one_line(value)
    return text if len(text) <= 120 else f"{text[:110]} ..."


def check_real(value: Any, what: str, advice: str = "it must be a real number or an array of numbers") -> np.ndarray:
    """Return ``value`` as a float64 NumPy array; raise TypeError if it does not hold real numbers or has a unit."""
    check_no_unit(value, what)
    array = np.asarray(value)
    # Ask JAX, because NumPy does not know that bfloat16 is real.
    if not (jnp.issubdtype(array.dtype, np.floating) or jnp.issubdtype(array.dtype, np.integer)):
        raise TypeError(f"{what} is {shown(repr(value))}; {advice}.")
    return array.astype(np.float64)


def check_range(value: np.ndarray, what: str, may_be_small: bool = False) -> None:
    """Raise ValueError if a length is outside the range that JAX can hold in its current mode.

    Args:
        value: The lengths, float64.
        what: Their name in the message.
        may_be_small: Whether to accept lengths below the normal numbers.
    """
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    if np.any((value > widest.max) | ((value > 0) & (value < widest.tiny) & (not may_be_small))):
        switch = ", or switch on jax_enable_x64" if widest.bits < 64 else ""
        raise ValueError(
            f"{what} is {shown(value)}, which is outside the range of {widest.dtype}; choose another unit of "
            f"length{switch}."
        )


def check_box(boxsize: Any, dims: int) -> Exact:
    """Return ``boxsize`` as one exact length per dimension, 0 for open ones.

    Raises:
        TypeError: If lengths are not real numbers.
        ValueError: If their number or one of the lengths is invalid.
    """
    if isinstance(boxsize, Exact):
        return boxsize
    if boxsize is None:
        boxsize = 0.0
    shape = shape_of(boxsize, "boxsize")
    if shape not in ((), (dims,)):
        raise ValueError(f"boxsize must be one length, or {dims}, one per dimension (0 if open); its shape is {shape}.")
    if type(boxsize) is float:
        return _number_box(boxsize, dims, jax.dtypes.canonicalize_dtype(np.float64))
    if is_concrete(boxsize):
        return _known_box(boxsize, dims)
    return kernels.checked_lengths(exact(boxsize, (dims,)))[0]


def _known_box(boxsize: Any, dims: int) -> Exact:
    advice = "lengths must be finite and positive, or 0 where open"
    lengths = check_real(boxsize, "boxsize", advice)
    if not (np.all(np.isfinite(lengths)) and np.all(lengths >= 0)):
        raise ValueError(f"boxsize is {shown(boxsize)}; {advice}.")
    check_range(lengths, "boxsize")
    return exact(boxsize, (dims,))


@functools.lru_cache
def _number_box(boxsize: float, dims: int, _widest: Any) -> Exact:
    """Return `_known_box` of a Python number.

    The result is cached, because many calls use the same number. It depends on ``_widest``, the widest float of JAX.
    """
    return _known_box(boxsize, dims)


def sequence_of(parts: Any) -> list[Any]:
    """Return a list of particle classes from None, one class, or a sequence.

    A named tuple with ``pos`` is one class.
    """
    if parts is None:
        return []
    return list(parts) if isinstance(parts, (list, tuple)) and not hasattr(parts, "pos") else [parts]


def check_classes(arguments: dict[str, Any]) -> dict[str, Any]:
    """Check the particle classes and configurations among the arguments of compiled and mapped twins.

    This check comes before JAX raises its own error. It returns no replacements.

    Raises:
        TypeError: For an invalid class or configuration, also in a sequence.
    """
    for name in ("cfg", "cfg_tree"):
        if arguments.get(name) is not None and not is_config(arguments[name]):
            raise TypeError(f"{name} must be a configuration of jztree.config, not {type(arguments[name]).__name__}.")
    for value in arguments.values():
        for one in sequence_of(value):
            if hasattr(type(one), "pos") or hasattr(one, "pos"):
                shape_of_pos(one)
    return {}


def exact_box_argument(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that compiled and mapped twins replace: ``boxsize``, checked and exact.

    The first argument is a particle class, an array of positions, or a sequence of particle classes or arrays.
    Positions may have a leading axis over devices; the function itself makes all other checks.
    """
    check_classes(arguments)
    part = next(iter(arguments.values()))
    first = (sequence_of(part) or [part])[0]
    return {"boxsize": check_box(arguments["boxsize"], (1, *shape_of_pos(first))[-1])}
