"""NumPy dtypes for numbers in HDF5 files, including integers of 3 or 6 bytes, which h5py does not support."""

from typing import Any

import h5py
import numpy as np

from ._errors import SnapshotError

# An integer of 128 bits, which NumPy lacks.
WORDS = np.dtype([("low", "<u8"), ("high", "<u8")])
_WIDER = {3: 4, 5: 8, 6: 8, 7: 8}  # bytes of an integer in a file, and of the next wider one in NumPy
_BYTE = 8  # bits


def dtype_of(data: h5py.Dataset) -> np.dtype:
    """Return the dtype to read a dataset in: its own, `WORDS` for 128 bits, or the next wider one if NumPy lacks it.

    Raises:
        SnapshotError: If NumPy cannot hold its numbers.
    """
    kind = data.id.get_type()
    if isinstance(kind, h5py.h5t.TypeIntegerID) and kind.get_size() == WORDS.itemsize:
        return WORDS
    return number_dtype(data.id, f"{data.file.filename} holds {str(data.name).lstrip('/')}")


def number_dtype(stored: h5py.h5d.DatasetID | h5py.h5a.AttrID, where: str) -> np.dtype:
    """Return the dtype to read a dataset or an attribute in; an error message begins with ``where``."""
    kind = stored.get_type()
    wider = is_widened(kind)
    if wider and kind.get_precision() == _BYTE * kind.get_size():
        signed = kind.get_sign() == h5py.h5t.SGN_2
        return np.dtype(f"{'i' if signed else 'u'}{_WIDER[kind.get_size()]}")
    try:
        dtype: np.dtype = stored.dtype
    except (TypeError, ValueError):
        held = f"integers of {kind.get_size()} bytes" if isinstance(kind, h5py.h5t.TypeIntegerID) else "a type"
        raise SnapshotError(
            f"{where} as {held} that NumPy does not support; write it as numbers of 32 or 64 bits."
        ) from None
    return dtype


def read_values(data: h5py.Dataset) -> Any:
    """Read all values of a dataset in the form of h5py; integers that NumPy lacks become wider ones.

    Raises:
        SnapshotError: If NumPy has no dtype for the values.
    """
    dtype = dtype_of(data)
    if dtype == WORDS:
        name = str(data.name).lstrip("/")
        raise SnapshotError(f"{data.file.filename} holds {name} as integers of 128 bits; write integers of 64 bits.")
    if not is_widened(data.id.get_type()):
        return data[()]
    values = np.empty(data.shape, dtype)
    data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def is_widened(kind: h5py.h5t.TypeID) -> bool:
    """Return whether a type is an integer type that is read as a wider one."""
    return isinstance(kind, h5py.h5t.TypeIntegerID) and kind.get_size() in _WIDER


def stored_bytes(value: np.ndarray, kind: h5py.h5t.TypeIntegerID) -> np.ndarray:
    """Return the bytes ``(b,)`` in a file of an integer whose type `is_widened`, from its value in the wider dtype."""
    little = np.frombuffer(value.astype(value.dtype.newbyteorder("<")).tobytes(), np.uint8)[: kind.get_size()]
    return little[::-1] if kind.get_order() == h5py.h5t.ORDER_BE else little
