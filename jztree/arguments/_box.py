"""Validation of periodic boxes, and arguments that have the form of a sequence or a class."""

import functools
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from .. import kernels
from .._options import is_config
from ..jax_ext import Exact, exact, is_concrete
from ..particles import particles_of, shape_of_pos
from ._numbers import check_range, check_real, farthest, farthest_number, shape_of, shown

_BOX_OF_INDEX = (
    "boxsize is {0!r}, but an index has its own box; leave out boxsize, or build the index with it: "
    "jztree.build_index(part, boxsize=...)."
)


def check_box(boxsize: ArrayLike | None, dims: int) -> Exact:
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


def _known_box(boxsize: ArrayLike | None, dims: int) -> Exact:
    advice = "lengths must be finite and positive, or 0 where open"
    lengths = check_real(boxsize, "boxsize", advice)
    if not (np.all(np.isfinite(lengths)) and np.all(lengths >= 0)):
        raise ValueError(f"boxsize is {shown(boxsize)}; {advice}.")
    check_range(lengths, "boxsize")
    if np.any(lengths > farthest_number(lengths.dtype)):
        raise ValueError(
            f"boxsize is {shown(boxsize)}; lengths must be at most {farthest(lengths.dtype)}, as coordinates are; "
            "choose another unit of length."
        )
    return exact(boxsize, (dims,))


@functools.lru_cache
def _number_box(boxsize: float, dims: int, _widest: Any) -> Exact:
    """Return `_known_box` of a Python number.

    The result is cached, because many calls use the same number. It depends on ``_widest``, the widest float of JAX.
    """
    return _known_box(boxsize, dims)


def no_box(boxsize: ArrayLike | None) -> Any:
    """Return None. Raise ValueError if a caller passed a box with an index; 0.0 is the default of some functions."""
    if boxsize is not None and not (isinstance(boxsize, float) and boxsize == 0):
        raise ValueError(_BOX_OF_INDEX.format(boxsize))
    return None


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
        for part in sequence_of(particles_of(value)):
            if hasattr(type(part), "pos") or hasattr(part, "pos"):
                shape_of_pos(part)
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
