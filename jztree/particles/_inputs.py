"""Accepted particle inputs and their validation.

Particles are an array of positions, or a pytree with an array ``pos`` among its leaves: rows move with the leaves.
``pos`` may also be computed from the leaves (`jztree.particles`). Rows stored elsewhere, such as in an unregistered
object or a static field, would keep their order while positions are sorted, which would silently give wrong results.
`get_pos` raises an error for such rows, and every function calls it before it uses particles. `check_representable`
rejects numbers that would change on conversion to JAX, and `check_movable` rejects numbers that kernels cannot move.
"""

import copy
import dataclasses
import functools
from collections.abc import Iterable
from typing import Any, Protocol, TypeAlias, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._computed import ComputedParticles, is_computed, over_devices
from ._messages import ARRAYS, OF_JAX, dtype_in_words, name_of, number_in_words, one_line, unknown_leaf, what_is_wrong

_Part = TypeVar("_Part")
_NUMBERS = (int, float, complex, np.generic)
_NO_UNITS = ("", "1", "dimensionless", "NoUnit()")
_WIDE = frozenset(map(np.dtype, ("complex128", "float64", "int64", "uint64")))
_MODEST = 2**31  # Python numbers below this need no check
_SWITCH_ON = "switch on 64-bit mode with jax.config.update('jax_enable_x64', True)"


# One row per particle. Lists are refused, as in `jax.numpy`, because to JAX a list is a tree of its numbers.
Array: TypeAlias = jax.Array | np.ndarray


class Particles(Protocol):
    """The type of any particle class, for annotations: it has positions, as a field or computed from fields."""

    @property
    def pos(self) -> jax.Array | np.ndarray:
        """``(n, d)`` float32 or float64."""


def get_pos(part: Any) -> Any:
    """Return the positions of a particle class, or ``part`` itself if it is an array.

    Raises:
        TypeError: If it is neither, or if it holds rows that would not move with the positions.
    """
    if isinstance(part, ARRAYS):
        if getattr(part.dtype, "names", None):
            raise TypeError(
                f"particles are an array of {dtype_in_words(part.dtype)}, which JAX cannot hold; pass its columns in "
                "a particle class, such as jztree.data.ParticleData(pos=...)."
            )
        return part
    leaves = jax.tree.leaves(part)
    pos = getattr(part, "pos", None)
    if isinstance(part, type) or not isinstance(pos, ARRAYS) or not _is_of_leaves(part, pos, leaves):
        raise TypeError(what_is_wrong(part, pos))
    leaf_ids = {id(leaf) for leaf in leaves}
    cls: Any = type(part)
    for name in field_names(part):
        value = getattr(part, name, None)
        if value is None or id(value) in leaf_ids or is_computed(cls, name):
            continue
        _check_field(part, name, value, pos.shape[:1], leaf_ids)
    return pos


def _is_of_leaves(part: Any, pos: Any, leaves: list[Any]) -> bool:
    """Return whether positions move with the leaves: they are a leaf, or are computed from leaves with as many rows."""
    if any(leaf is pos for leaf in leaves):
        return True
    num = getattr(part, "num", None)
    cls: Any = type(part)
    computed = is_computed(cls, "pos") and not jax.tree_util.all_leaves([part])
    return computed and any(leaf is not num and np.shape(leaf)[:1] == pos.shape[:1] != () for leaf in leaves)


def shape_of_pos(part: Any) -> tuple[int, ...]:
    """Return the shape of the positions without evaluating positions that are computed.

    The shape may have a leading axis over devices, even if the class itself cannot handle that axis.

    Raises:
        ValueError: If the positions have fewer than two axes.
    """
    cls: Any = type(part)
    is_stored = isinstance(part, (*ARRAYS, ComputedParticles, type)) or not is_computed(cls, "pos")
    for read in () if is_stored else (get_pos, functools.partial(over_devices, get_pos)):
        try:
            shape = tuple(jax.eval_shape(read, part).shape)
        except Exception:  # the class may raise any error, for instance if it handles one device only
            continue
        if len(shape) == 2 or read is not get_pos:
            return shape
    shape = tuple(np.shape(get_pos(part)))  # computed positions raise here, or need concrete values
    if len(shape) < 2:
        raise ValueError(f"positions must have shape (n, d); their shape is {shape}.")
    return shape


def num_rows(part: Any) -> int:
    """Return the number of rows of ``part``, including rows without particles."""
    return get_pos(part).shape[0]


def field_names(part: Any) -> list[str]:
    """Return the names of the fields of a particle class; an array has none."""
    if isinstance(part, ARRAYS):
        return []
    if isinstance(part, ComputedParticles):
        return list(dict.fromkeys([*field_names(part.part), *part.columns]))
    if dataclasses.is_dataclass(part):
        return [field.name for field in dataclasses.fields(part)]
    if isinstance(part, tuple):
        return list(getattr(part, "_fields", ()))
    slots = [getattr(cls, "__slots__", ()) for cls in type(part).__mro__]
    names = [name for slot in slots for name in ([slot] if isinstance(slot, str) else slot)]
    return [*getattr(part, "__dict__", {}), *names]


def _check_field(part: Any, name: str, value: Any, rows: tuple[int, ...], leaf_ids: set[int]) -> None:
    """Raise TypeError if a field that is not itself a leaf holds rows that would not be moved."""
    kind = type(part).__name__
    if name == "mass" and isinstance(value, (list, tuple)):
        raise TypeError(f"mass of {kind} is a {type(value).__name__}; convert it with numpy.asarray.")
    for leaf in jax.tree.leaves(value, is_leaf=lambda inner: _is_list(inner) and (len(inner),) == rows):
        if isinstance(leaf, (list, tuple)):
            raise TypeError(
                f"{name} of {kind} is a {type(leaf).__name__} with a number per particle, which jztree cannot move "
                "with pos; convert it with numpy.asarray."
            )
        if id(leaf) not in leaf_ids and isinstance(leaf, ARRAYS) and leaf.shape[:1] == rows:
            raise TypeError(
                f"{name} of {kind} has a row for each particle but is not among the leaves of the pytree (it is a "
                "static field), so jztree cannot move it with pos; make it a data field."
            )


def _is_list(value: Any) -> bool:
    """Return whether this is a list of numbers, or a list of such lists."""
    return isinstance(value, (list, tuple)) and all(isinstance(item, _NUMBERS) or _is_list(item) for item in value)


def get_num(part: Any) -> Any:
    """Return the number of rows of ``part`` that hold particles: its ``num``, or the length of its positions if it has
    none.
    """
    num = getattr(part, "num", None)
    return num_rows(part) if num is None else _one_number(num)


def _one_number(num: int | jax.Array) -> Any:
    """Return ``num`` as a scalar if `jax.shard_map` split ``(r,)``, one number per device, into ``(1,)``."""
    return num.reshape(()) if isinstance(num, (jax.Array, np.ndarray)) and num.shape == (1,) else num


def _is_integer(number: Any) -> bool:
    dtype = number.dtype if hasattr(number, "dtype") else np.asarray(number).dtype
    return bool(np.issubdtype(dtype, np.integer))


def one_integer(num: int | jax.Array, name: str = "num") -> Any:
    """Return ``num``; raises TypeError if it is not one integer."""
    if isinstance(num, (list, tuple)) or np.ndim(num) != 0 or not _is_integer(num):
        raise TypeError(
            f"{name} is {number_in_words(num)}; it counts the rows that hold particles, so it must be one integer."
        )
    return num


def check_num(part: Any, name: str = "num") -> Any:
    """Return ``num`` of ``part``; raises ValueError if it is known and not between 0 and the number of rows."""
    n = num_rows(part)  # first, because it reports invalid particles
    num = one_integer(get_num(part), name)
    if not isinstance(num, jax.core.Tracer) and not 0 <= int(num) <= n:
        raise ValueError(f"{name} is {num}; it counts the rows that hold particles, so it must be from 0 to {n}.")
    return num


def check_countable(part: Any, name: str) -> None:
    """Raise TypeError if ``part`` has no ``num`` to hold the number of particles.

    Args:
        part: A particle class, or an array of positions.
        name: The reason why some rows hold no particles, for the message.
    """
    if isinstance(part, ARRAYS) or not hasattr(part, "num"):
        held = part.part if isinstance(part, ComputedParticles) else part
        kind = "an array" if isinstance(part, ARRAYS) else type(held).__name__
        raise TypeError(
            f"{name}, but {kind} has no field num for the number of rows that hold particles; pass a class with num, "
            "such as jztree.data.ParticleData(pos=...)."
        )


def check_rows(rows: int, name: str) -> None:
    """Raise ValueError if there are more rows than int32 can count."""
    if rows >= 2**31:
        raise ValueError(f"there are {rows} {name}; one device can index at most 2**31 - 1 rows, so use more devices.")


def get_num_total(part: Any) -> int | None:
    """Return the number of particles on all devices; None if it is not known under tracing."""
    total = getattr(part, "num_total", None)
    return None if total is None or isinstance(total, jax.core.Tracer) else int(total)


def replace_field(part: _Part, name: str, value: Any) -> _Part:
    """Return ``part`` with another value of a field, if it has that field.

    Raises:
        TypeError: If the field cannot be set, or if it is static and the value is an array.
    """
    if isinstance(part, ARRAYS) or not hasattr(part, name) or getattr(part, name) is value:
        return part
    if isinstance(part, ComputedParticles):
        return ComputedParticles(replace_field(part.part, name, value), part.columns)  # type: ignore[return-value]
    try:
        replaced: Any = _replaced(part, name, value)
    except (AttributeError, TypeError, ValueError):
        raise TypeError(
            f"{name} of {type(part).__name__} cannot be set; make it a data field of the class, or leave it out."
        ) from None
    if isinstance(value, ARRAYS) and not any(leaf is value for leaf in jax.tree.leaves(replaced)):
        raise TypeError(
            f"{name} of {type(part).__name__} is a static field, but must hold a computed number; make it a data field."
        )
    return replaced


def _replaced(part: Any, name: str, value: Any) -> Any:
    if dataclasses.is_dataclass(part) and not isinstance(part, type):
        return dataclasses.replace(part, **{name: value})
    if isinstance(part, tuple):
        return part._replace(**{name: value})  # type: ignore[attr-defined]
    copied = copy.copy(part)
    object.__setattr__(copied, name, value)
    return copied


# Numbers on their way into JAX, and into kernels


def check_no_unit(value: Any, name: str) -> None:
    """Raise TypeError if a number or an array has a unit or masked entries, because the library ignores both."""
    if np.ma.is_masked(value):
        raise TypeError(
            f"{name} is a masked array, whose mask would be lost; select the other entries, or replace masked ones "
            "with .filled()."
        )
    for attribute in ("unit", "units"):  # of astropy; of unyt, pint and pynbody
        unit = getattr(value, attribute, None)
        if unit is not None and one_line(unit) not in _NO_UNITS:
            raise TypeError(
                f"{name} has the unit {one_line(unit)}, which jztree would drop; pass plain numbers, with all lengths "
                "in one unit, for example from .to_value('Mpc')."
            )


def check_no_units(**arguments: Any) -> None:
    """Run `check_no_unit` on all leaves of the named pytrees, for functions that convert them to plain arrays."""
    for name, tree in arguments.items():
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]:
            check_no_unit(leaf, f"{name}{jax.tree_util.keystr(path)}")


def check_known(tree: Any) -> None:
    """Raise TypeError if a leaf is neither an array nor a number, but an object unknown to JAX."""
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, (*ARRAYS, *_NUMBERS)) and not hasattr(leaf, "__jax_array__"):
            check_no_unit(leaf, name_of(leaf, tree))
            raise TypeError(unknown_leaf(name_of(leaf, tree), leaf))


def check_width(tree: Any, kinds: Any = OF_JAX) -> None:
    """Raise TypeError for 64-bit JAX arrays, also traced ones, in 32-bit mode.

    Such arrays come from code that ran with `jax_enable_x64`. In 32-bit mode some operations keep their dtype and
    others round to 32 bits.

    Args:
        tree: A pytree.
        kinds: The array classes to check.
    """
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, kinds) and leaf.dtype in _WIDE:
            canonical = jax.dtypes.canonicalize_dtype(leaf.dtype)
            if canonical != leaf.dtype:
                raise TypeError(
                    f"{name_of(leaf, tree)} is a JAX array of {leaf.dtype}, but JAX is in 32-bit mode; {_SWITCH_ON}, "
                    f"or convert the array with .astype('{canonical}')."
                )


def check_representable(tree: Any) -> None:
    """Check that JAX can hold every leaf and that conversion changes it by rounding only.

    For JAX arrays, see `check_width`.

    Raises:
        TypeError: For leaves that are neither numbers nor arrays of numbers.
        ValueError: For 64-bit integers that JAX would truncate to 32 bits, and for floats outside the range of float32.
    """
    check_width(tree)
    for leaf in jax.tree.leaves(tree):
        if isinstance(leaf, OF_JAX) or (isinstance(leaf, (int, float)) and _is_modest(leaf)):
            continue
        if isinstance(leaf, (np.ndarray, np.generic)):
            _check_numpy(leaf, tree)
        elif isinstance(leaf, int):
            _check_integers([leaf], np.dtype(np.int64), leaf, tree)
        elif isinstance(leaf, (float, complex)):
            for value in (leaf.real, leaf.imag):
                _check_floats(np.asarray(value), leaf, tree)
        else:
            check_known(tree)


def _is_modest(number: float) -> bool:
    """Return whether any dtype can hold a number of this size."""
    return number == 0 or 1 / _MODEST < abs(number) < _MODEST


def _check_numpy(leaf: Any, tree: Any) -> None:
    dtype = leaf.dtype
    if type(leaf) is not np.ndarray:
        check_no_unit(leaf, name_of(leaf, tree))
    if not _is_numeric(dtype) or isinstance(leaf, np.ma.MaskedArray):
        kind_in_words = "a masked array" if _is_numeric(dtype) else f"an array of {dtype_in_words(dtype)}"
        raise TypeError(
            f"{name_of(leaf, tree)} is {kind_in_words}, which JAX cannot hold; leave it out, or convert it to an "
            "array of numbers."
        )
    if not dtype.isnative:
        raise TypeError(
            f"{name_of(leaf, tree)} has a byte order ({dtype}) that JAX does not support; "
            f"convert it with .astype('{dtype.newbyteorder('=').name}')."
        )
    if dtype.itemsize < 8 or not leaf.size or jax.dtypes.canonicalize_dtype(dtype) == dtype:
        return
    if dtype.kind in "iu":
        _check_integers((int(leaf.min()), int(leaf.max())), dtype, leaf, tree)
    elif dtype.kind in "fc":
        for values in {"f": [leaf], "c": [leaf.real, leaf.imag]}[dtype.kind]:
            _check_floats(values, leaf, tree)


def _check_integers(values: Iterable[int], dtype: np.dtype, leaf: Any, tree: Any) -> None:
    limits = np.iinfo(jax.dtypes.canonicalize_dtype(dtype))
    for value in values:
        if not limits.min <= value <= limits.max:
            name = name_of(leaf, tree)
            if name.rpartition(".")[2] == "num":
                raise ValueError(
                    f"{name} is {value}; it counts the rows that hold particles, so it must be below 2**31."
                )
            raise ValueError(
                f"{name} holds {value}, but JAX keeps only {limits.bits} bits"
                + (f"; {_SWITCH_ON}" if limits.bits < 64 else "")
                + ", or pass row numbers, np.arange(n, dtype=np.int32), instead of identifiers, and look up the "
                "identifiers afterwards."
            )


def fits_float32(number: float) -> bool:
    """Return whether float32 can hold this number as a finite value and, unless it is 0, as a normal one."""
    limits = np.finfo(np.float32)
    return number == 0 or float(limits.tiny) <= abs(number) <= float(limits.max)


def _check_floats(values: Any, leaf: Any, tree: Any) -> None:
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return
    # Two reductions without a copy suffice, unless a row, which may hold no particle, is NaN or infinite.
    low, high = float(np.min(values)), float(np.max(values))
    if not np.isfinite([low, high]).all():  # other checks report NaN and infinity
        finite = values[np.isfinite(values)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    extreme = low if -low > high else high
    if not fits_float32(extreme):
        raise ValueError(
            f"{name_of(leaf, tree)} holds {extreme:g}, which is outside the range of float32 (1.2e-38 to 3.4e38), the "
            f"precision of JAX; choose another unit, or {_SWITCH_ON}."
        )


def check_movable(tree: Any) -> None:
    """Raise TypeError for arrays whose rows kernels cannot move: masked arrays, and numbers of less than a byte."""
    for leaf in jax.tree.leaves(tree):
        if not isinstance(leaf, ARRAYS) or leaf.ndim == 0:
            continue
        if isinstance(leaf, np.ma.MaskedArray):
            raise TypeError(f"{name_of(leaf, tree)} is a masked array, whose mask would be lost; select rows instead.")
        if not is_movable(leaf.dtype):
            raise TypeError(
                f"{name_of(leaf, tree)} is an array of {dtype_in_words(leaf.dtype)}, whose rows cannot be moved; "
                "convert it to numbers of 8 bits or more, or leave it out."
            )


@functools.lru_cache
def is_movable(dtype: np.dtype[Any]) -> bool:
    """Return whether each number of this dtype occupies whole bytes."""
    if not _is_numeric(dtype):
        return False
    return dtype.kind != "V" or (jnp.iinfo if jnp.issubdtype(dtype, jnp.integer) else jnp.finfo)(dtype).bits >= 8


def _is_numeric(dtype: np.dtype[Any]) -> bool:
    """Return whether JAX supports this dtype as numbers.

    It does not support text, times, objects, records or extended precision; its own keys are not numbers.
    """
    if jnp.issubdtype(dtype, jax.dtypes.extended) or dtype.kind in "gG" or dtype in (np.longdouble, np.clongdouble):
        return False
    return dtype.kind == "b" or (dtype.names is None and jnp.issubdtype(dtype, np.number))
