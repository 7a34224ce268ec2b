"""Validation of coordinates and angles."""

from typing import Any

import jax
import numpy as np

from jztree.data import check_no_units

from ..correlation import real_numbers

QUERIES = ("query_ra", "query_dec")
SOURCES = ("source_ra", "source_dec")
_BOTH = "{} and {} are the coordinates of the other catalogue; give both, or neither."


def checked_directions(ra: Any, dec: Any, names: tuple[str, str] = ("ra", "dec")) -> tuple[np.ndarray, np.ndarray]:
    """Return right ascensions and declinations, ``(n,)`` float64 each.

    Args:
        ra, dec: In degrees, or with a unit of astropy.
        names: The names of both in messages.

    Raises:
        TypeError: If the coordinates are not plain real numbers.
        ValueError: If the shapes are not ``(n,)``, or a coordinate is invalid.
    """
    ra, dec = (numbers_per_object(in_degrees(angles), name) for angles, name in zip((ra, dec), names, strict=True))
    if len(ra) != len(dec):
        raise ValueError(f"{names[0]} has {len(ra)} rows, and {names[1]} has {len(dec)}; both need one row per object.")
    check_declinations(dec, names[1])
    return ra, dec


def checked_others(ra: Any, dec: Any, names: tuple[str, str]) -> tuple[np.ndarray, np.ndarray] | None:
    """Return the directions of the other catalogue, or None. Raises TypeError or ValueError if they are invalid."""
    if (ra is None) != (dec is None):
        raise ValueError(_BOTH.format(*names))
    return None if ra is None else checked_directions(ra, dec, names)


def in_degrees(values: Any) -> Any:
    """Return angles with a unit of astropy in degrees: a ``Quantity``, or a column of a ``Table``; keep others."""
    if np.ma.is_masked(values):
        return values
    quantity = getattr(values, "quantity", values)
    if not hasattr(quantity, "to_value"):
        return values
    try:
        return quantity.to_value("deg")
    except (TypeError, ValueError):  # not an angle
        return values


def numbers_per_object(values: Any, name: str) -> np.ndarray:
    """Return finite numbers ``(n,)`` as float64. Raises TypeError or ValueError if they are invalid."""
    result = finite_numbers(values, name)
    if result.ndim != 1:
        raise ValueError(f"{name} has shape {result.shape}; it must be (n,), one number per object.")
    return result


def as_columns(**columns: Any) -> dict[str, Any]:
    """Return weights or regions as arrays, which lists and columns of data frames are not. Keep None and JAX arrays."""
    check_no_units(**columns)

    def native(value: Any) -> Any:
        array = np.asarray(value)
        return array.astype(array.dtype.newbyteorder("="), copy=False)

    return {
        name: value if value is None or isinstance(value, jax.Array) else native(value)
        for name, value in columns.items()
    }


def finite_numbers(values: Any, name: str) -> np.ndarray:
    """Return plain real numbers of any shape as float64. Raises TypeError or ValueError if they are invalid."""
    check_no_units(**{name: values})
    result = real_numbers(values, name)
    _check_each(np.isfinite(result), result, name, "it must be finite; remove such objects")
    return result


def check_declinations(dec: np.ndarray, name: str) -> None:
    """Raise ValueError unless declinations are from -90 to 90."""
    _check_each(np.abs(dec) <= 90, dec, name, "declinations must be from -90 to 90 degrees")


def check_not_negative(values: np.ndarray, name: str) -> None:
    """Raise ValueError if a number is negative."""
    _check_each(values >= 0, values, name, "it must be at least 0")


def checked_angles(values: Any, name: str) -> np.ndarray:
    """Return angles as float64. Raises TypeError or ValueError unless they are from 0 to 180."""
    angles = finite_numbers(in_degrees(values), name)
    _check_each((angles >= 0) & (angles <= 180), angles, name, "angles must be from 0 to 180 degrees")
    return angles


def _check_each(valid: np.ndarray, values: np.ndarray, name: str, rule: str) -> None:
    """Raise ValueError with the first invalid value."""
    if not np.all(valid):
        row = int(np.argmin(valid.ravel()))
        where = f"row {row} of {name}" if values.ndim else name
        raise ValueError(f"{where} is {values.ravel()[row]:.17g}; {rule}.")
