"""HDF5 attributes: text, numbers, or an error that shows the actual value."""

from typing import Any

import h5py
import numpy as np

from ._errors import SnapshotError
from ._hdf5_types import is_widened, number_dtype

_LONGEST = 60  # maximum number of characters of a value in an error
_MOST = 2**63 - 1  # maximum of counts


def attribute(holder: Any, name: str) -> Any:
    """Return an attribute as a NumPy array or str, or None if it is missing.

    Args:
        holder: An open file, or a group or dataset in it.
        name: Name of the attribute.

    Raises:
        SnapshotError: If the attribute has another type.
    """
    if name not in holder.attrs:
        return None
    if not holds_text_or_numbers(holder, name):
        raise wrong_attribute(holder, name, "data of another type", "it must be text or numbers")
    value = read_attribute(holder, name)
    if isinstance(value, h5py.Empty):
        return None
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    return value if isinstance(value, str) else np.asarray(value)


def holds_text_or_numbers(holder: Any, name: str) -> bool:
    """Return whether an attribute is text or numbers, and therefore safe to read.

    Lists of variable length, records and references are not: HDF5 may crash if they are damaged.
    """
    try:
        kind = attribute_dtype(holder, name).base
    except SnapshotError:
        return False
    return kind.kind in "iufcbS" or h5py.check_string_dtype(kind) is not None


def attribute_dtype(holder: Any, name: str) -> np.dtype:
    """Return the dtype to read an attribute in. Raises SnapshotError if NumPy does not have it."""
    where = f"{holder.file.filename} has the attribute {name} of {str(holder.name).lstrip('/') or 'the file'}"
    return number_dtype(holder.attrs.get_id(name), where)


def read_attribute(holder: Any, name: str) -> Any:
    """Return the value of an attribute that passes `holds_text_or_numbers`, in the form of h5py."""
    stored = holder.attrs.get_id(name)
    if not is_widened(stored.get_type()):
        return holder.attrs[name]
    value = np.empty(stored.shape, attribute_dtype(holder, name))
    stored.read(value)
    return value


def text_attribute(holder: Any, name: str) -> str:
    """Return an attribute that is text or an array of text; empty if it is missing."""
    value = attribute(holder, name)
    if value is None or np.asarray(value).dtype.kind not in "SUO":
        return ""
    parts = np.ravel(np.asarray(value)).tolist()
    return " ".join(part.decode(errors="replace") if isinstance(part, bytes) else str(part) for part in parts)


def numbers(holder: Any, name: str) -> np.ndarray | None:
    """Return the real numbers ``(m,)`` of an attribute, or None. Raises SnapshotError for other values."""
    if name not in holder.attrs:
        return None
    value = attribute(holder, name)
    array = np.ravel(np.asarray(value))
    if array.dtype.kind not in "iufb":
        raise wrong_attribute(holder, name, value, "it must be a number")
    return array


def number(holder: Any, name: str) -> float | None:
    """Return the finite number in an attribute, single or repeated, or None. Raises SnapshotError for other values."""
    values = numbers(holder, name)
    if values is None:
        return None
    if not len(values) or not np.isfinite(values[0]) or (values != values[0]).any():
        raise wrong_attribute(holder, name, values, "it must be one finite number")
    return float(values[0])


def whole_numbers(holder: Any, name: str) -> tuple[int, ...] | None:
    """Return the counts in an attribute, or None. Raises SnapshotError unless they are integers of at least 0."""
    values = numbers(holder, name)
    if values is None:
        return None
    wide = values.astype(np.float64) if values.dtype.kind == "f" else values
    # A float too large for an integer is at least 2^63, to which the largest integer is rounded up.
    if not ((wide >= 0) & (wide < float(_MOST)) & (wide == np.trunc(wide))).all():
        raise wrong_attribute(holder, name, values, "it must be whole numbers of at least 0")
    return tuple(int(value) for value in values)


def whole_number(holder: Any, name: str) -> int | None:
    """Return the result of `whole_numbers` for a single number."""
    values = whole_numbers(holder, name)
    if values is not None and len(values) != 1:
        raise wrong_attribute(holder, name, values, "it must be one number")
    return None if values is None else values[0]


def wrong_attribute(holder: Any, name: str, value: Any, needed: str) -> SnapshotError:
    """Return the error for an attribute that is not of the form ``needed``."""
    words = "no value" if value is None or not np.size(value) else " ".join(str(value).split())[:_LONGEST]
    where = str(holder.name).lstrip("/") or "the file"
    return SnapshotError(
        f"{holder.file.filename} has {words} as attribute {name} of {where}; {needed}. Correct the attribute."
    )
