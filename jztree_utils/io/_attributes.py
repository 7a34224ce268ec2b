"""Attributes of HDF5 files: text, numbers, or an error that says what is there instead."""

from typing import Any

import h5py
import numpy as np

from ._errors import SnapshotError
from ._hdf5_types import is_widened, number_dtype

_LONGEST = 60  # characters of a value in an error
_MOST = 2**63 - 1  # of what is counted


def attribute(holder: Any, name: str) -> Any:
    """An attribute as a NumPy array or str, or None if there is none. Raises SnapshotError for what is of no such kind.

    holder: an open file, or a group or dataset in it.
    """
    if name not in holder.attrs:
        return None
    if not holds_text_or_numbers(holder, name):
        raise wrong_attribute(holder, name, "something else", "text or numbers are needed")
    value = read_attribute(holder, name)
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else np.asarray(value)


def holds_text_or_numbers(holder: Any, name: str) -> bool:
    """Whether an attribute is one to look into.

    Lists of any length, records and references are none: HDF5 may crash where these are damaged.
    """
    try:
        kind = attribute_dtype(holder, name).base
    except SnapshotError:
        return False
    return kind.kind in "iufcbS" or h5py.check_string_dtype(kind) is not None


def attribute_dtype(holder: Any, name: str) -> np.dtype:
    """The dtype to read an attribute in. Raises SnapshotError if NumPy has none."""
    where = f"{holder.file.filename} has the attribute {name} of {str(holder.name).lstrip('/') or 'the file'}"
    return number_dtype(holder.attrs.get_id(name), where)


def read_attribute(holder: Any, name: str) -> Any:
    """The value of an attribute that `holds_text_or_numbers`, as h5py gives it."""
    stored = holder.attrs.get_id(name)
    if not is_widened(stored.get_type()):
        return holder.attrs[name]
    value = np.empty(stored.shape, attribute_dtype(holder, name))
    stored.read(value)
    return value


def text_attribute(holder: Any, name: str) -> str:
    """An attribute that is text, or an array of text; empty if there is none."""
    value = attribute(holder, name)
    if value is None or np.asarray(value).dtype.kind not in "SUO":
        return ""
    parts = np.ravel(np.asarray(value)).tolist()
    return " ".join(part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in parts)


def numbers(holder: Any, name: str) -> np.ndarray | None:
    """``(m,)`` real numbers of an attribute, None if there is none. Raises SnapshotError for what are none."""
    if name not in holder.attrs:
        return None
    value = attribute(holder, name)
    array = np.ravel(np.asarray(value))
    if array.dtype.kind not in "iufb":
        raise wrong_attribute(holder, name, value, "a number is needed")
    return array


def number(holder: Any, name: str) -> float | None:
    """The finite number that an attribute is, alone or over and over; None if there is none, SnapshotError if not."""
    values = numbers(holder, name)
    if values is None:
        return None
    if not len(values) or not np.isfinite(values[0]) or (values != values[0]).any():
        raise wrong_attribute(holder, name, values, "one finite number is needed")
    return float(values[0])


def whole_numbers(holder: Any, name: str) -> tuple[int, ...] | None:
    """What an attribute counts; None if there is none. Raises SnapshotError unless it holds whole numbers from 0 on."""
    values = numbers(holder, name)
    if values is None:
        return None
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    # A float that is too large for an integer is not less than 2^63, to which the largest integer is rounded up.
    if not ((wide >= 0) & (wide < float(_MOST)) & (wide == np.trunc(wide))).all():
        raise wrong_attribute(holder, name, values, "whole numbers from 0 on are needed")
    return tuple(int(value) for value in values)


def whole_number(holder: Any, name: str) -> int | None:
    """As `whole_numbers`, if it is one."""
    values = whole_numbers(holder, name)
    if values is not None and len(values) != 1:
        raise wrong_attribute(holder, name, values, "one number is needed")
    return None if values is None else values[0]


def wrong_attribute(holder: Any, name: str, value: Any, needed: str) -> SnapshotError:
    """What to raise for an attribute that is none of what is ``needed``."""
    words = "an empty one" if value is None or not np.size(value) else " ".join(str(value).split())[:_LONGEST]
    where = str(holder.name).lstrip("/") or "the file"
    return SnapshotError(f"{holder.file.filename} has {words} as attribute {name} of {where}; {needed}.")
