"""Checks of the arguments of correlation functions."""

import functools
import inspect
import operator
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import numpy as np

from jztree.data import check_no_unit

OTHERWISE = ", or give randoms"
_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def naming_order(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Return ``function`` with the order of its arguments in errors for calls that do not fit its signature.

    Use it for functions whose order differs from that of similar functions.
    """
    signature = inspect.signature(function)
    order = ", ".join(name for name, value in signature.parameters.items() if value.kind != value.VAR_KEYWORD)

    @functools.wraps(function)
    def checked(*args: _Arguments.args, **options: _Arguments.kwargs) -> _Result:
        try:
            signature.bind(*args, **options)
        except TypeError as error:
            raise TypeError(
                f"{function.__name__}: {error}. Its arguments are {order}, in this order; give all but the first two "
                "by name."
            ) from None
        return function(*args, **options)

    return checked


def real_numbers(value: Any, name: str) -> np.ndarray:
    """Return ``value`` as float64. Raises TypeError unless it is a plain real number or an array of such numbers."""
    check_no_unit(value, name)
    array = np.asarray(value)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {value!r}; it must be a real number or an array of real numbers.")
    return array.astype(np.float64)


def whole_number(value: Any, name: str) -> int:
    """Return ``value``. Raises TypeError or ValueError unless it is an integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it must be an integer.")
    if value < 1:
        raise ValueError(f"{name} is {value}; it must be at least 1.")
    return int(value)


def bin_edges(edges: Any, name: str) -> np.ndarray:
    """Return bin edges as float64. Raises TypeError or ValueError if they do not ascend from 0 or more."""
    result = real_numbers(edges, name)
    if result.ndim != 1 or len(result) < 2:
        raise ValueError(
            f"{name} have shape {result.shape}; they must be two or more ascending numbers, (b + 1,) for b bins."
        )
    if not (result[0] >= 0 and np.all(np.diff(result) > 0)):
        text = " ".join(str(result).split())
        text = text if len(text) <= 120 else f"{text[:110]} ..."
        raise ValueError(f"{name} are {text}; they must be ascending numbers of at least 0.")
    return result


def check_reach(edges: np.ndarray, name: str, longest: float, otherwise: str = "") -> None:
    """Raise ValueError if spheres with these radii would meet their periodic images."""
    if edges.max() > longest:
        raise ValueError(
            f"{name} reaches {edges.max():g}, but the number of random pairs is known only up to half the box, "
            f"{longest:g}; end there or before{otherwise}."
        )


def check_number(num: Any, name: str) -> None:
    """Raise TypeError or ValueError unless ``num`` is an integer of at least 0."""
    if np.ndim(num) or not np.issubdtype(np.asarray(num).dtype, np.integer):
        raise TypeError(f"{name} is {num!r:.60}; it must be the number of particles, an integer, or their totals.")
    if num < 0:
        raise ValueError(f"{name} is {num}; it must be the number of particles, at least 0.")


def axis_of(los: Any) -> int:
    """Return the number of an axis. Raises ValueError unless ``los`` is one of three axes."""
    try:
        axis = operator.index(los)
    except TypeError:
        axis = 3  # an invalid one
    if axis not in range(-3, 3) or isinstance(los, bool):
        raise ValueError(f"los is {los!r}; it must be the axis of the line of sight, from 0 to 2, or 'midpoint'.")
    return axis
