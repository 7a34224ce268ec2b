"""The common part of all formats: particle properties, how a file stores them, and how to read them in slices.

A format finds the `Column` of each property in each file of a snapshot and can read rows of it. Validation,
multiplication by factors and the number of rows per read are the same for all formats and are implemented here.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from ._errors import SnapshotError
from ._hdf5_types import WORDS
from ._header import SnapshotHeader

# Rows are read in slices of about this many bytes: large enough to make call overhead negligible, and small compared to
# snapshots.
_SLICE_BYTES = 1 << 24


class Field(NamedTuple):
    """A particle property: the kinds of its numbers (see `numpy.dtype.kind`), their sizes in bytes, its name.

    Numbers below ``minimum`` are invalid.
    """

    kinds: str
    sizes: tuple[int, ...]
    kind_in_words: str
    vector: bool
    words: str
    minimum: float = -np.inf


FIELDS = {
    "pos": Field("f", (4, 8), "float32 or float64", True, "positions"),
    "mass": Field("f", (4, 8), "float32 or float64", False, "masses"),
    "vel": Field("f", (2, 4, 8), "float32 or float64", True, "velocities"),
    "id": Field("iu", (4, 8), "integers of 32 or 64 bits", False, "identifiers"),
    "internal_energy": Field("f", (2, 4, 8), "float32 or float64", False, "internal energies", 0.0),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A property of the particles in one file: how it is stored, and how to convert its values.

    Attributes:
        name: Name of the dataset or array in the file.
        stored: Dtype in the file; `WORDS` for integers of 128 bits, and a wider dtype for integers that NumPy lacks.
        shape: Shape in the file, rows first.
        factor: Multiplier of the stored numbers.
        box: The box lengths, a scalar or ``(d,)``, if values are integer coordinates in fractions of the box; otherwise
            None.
        bits: Number of bits in the file, if ``stored`` is wider; otherwise 0.
        chunk: Number of rows per chunk of the file; whole chunks are faster to read.
    """

    name: str
    stored: np.dtype
    shape: tuple[int, ...]
    factor: float = 1.0
    box: Any = None
    bits: int = 0
    chunk: int = 1

    @property
    def raw(self) -> np.dtype:
        """The dtype to read rows in, in the byte order of this machine. Half precision becomes single."""
        native = self.stored if self.stored == WORDS else self.stored.newbyteorder("=")
        return np.dtype(np.float32) if native == np.float16 else native

    @property
    def dtype(self) -> np.dtype:
        """The dtype of the values that readers get."""
        return np.dtype(np.float64) if self.box is not None else self.raw


# Reads rows of a column into an array of its dtype ``raw``.
Reader = Callable[[Column, slice, np.ndarray], None]
# Called with the number of rows read since the last call.
Advance = Callable[[int], None]


class Part(Protocol):
    """The particles of one type in one file of a snapshot."""

    @property
    def path(self) -> Path: ...

    @property
    def num(self) -> int:
        """Number of particles of the type in this file, from its header."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """The properties that the file has."""

    def open(self) -> AbstractContextManager[Reader]:
        """Open the file for reading. Raises SnapshotError, also for any error while reading."""

    def missing(self, name: str) -> SnapshotError:
        """Return the error for a property that the file does not have."""


class Survey(NamedTuple):
    """The metadata of one file, about the snapshot and about the file.

    Attributes:
        title: Description such as "Gadget-4 snapshot".
        header: Header of the snapshot.
        here: Number of particles of each type in this file.
        part: The particles of the requested type in this file; None if only the header was requested.
    """

    title: str
    header: SnapshotHeader
    here: tuple[int, ...]
    part: Part | None


def check_column(part: Part, name: str) -> Column:
    """Return the column of a property after validation of dtype and shape. Raises SnapshotError if they are invalid."""
    column = part.columns.get(name)
    if column is None:
        raise part.missing(name)
    field = FIELDS[name]
    where = f"{part.path} holds {column.name}"
    stored = column.stored
    if column.box is None and (stored.kind not in field.kinds or stored.itemsize not in field.sizes):
        raise SnapshotError(f"{where} of dtype {stored}; it must be {field.kind_in_words}.")
    if len(column.shape) != 1 + field.vector or (field.vector and not 1 <= column.shape[1] <= 8):
        shape = "(n, d) with d from 1 to 8" if field.vector else "(n,)"
        raise SnapshotError(f"{where} of shape {column.shape}; it must be {shape}, one row per particle.")
    pos = part.columns.get("pos")
    if field.vector and pos is not None and len(pos.shape) == 2 and column.shape[1] != pos.shape[1]:
        raise SnapshotError(
            f"{where} of shape {column.shape}, but {pos.name} of shape {pos.shape}; {field.words} and positions must "
            "have the same number of components."
        )
    if column.shape[0] != part.num:
        counted = "its header counts" if pos is None or pos.shape[:1] != (part.num,) else f"{pos.name} has"
        raise SnapshotError(f"{where} for {column.shape[0]} particles, but {counted} {part.num}; copy the file again.")
    return column


def read_rows(
    part: Part, name: str, rows: slice, out: np.ndarray, advance: Advance | None = None, finite: int | None = None
) -> None:
    """Read rows of a property in one file, in slices that need little memory in addition to ``out``.

    Args:
        part: The particles in the file.
        name: Name of the property.
        rows: The rows to read.
        out: ``(rows.stop - rows.start, ...)``, of the dtype of the column.
        advance: Called with the number of rows read since the last call.
        finite: The particle type, if numbers must be finite and at least the minimum; None skips this check.

    Raises:
        SnapshotError: If the rows cannot be read, or a row is invalid.
    """
    column = check_column(part, name)
    with part.open() as read:
        row_bytes = int(np.prod(column.shape[1:])) * column.stored.itemsize
        for start, stop in row_slices(rows, row_bytes, column.chunk):
            these = out[start - rows.start : stop - rows.start]
            _read_slice(read, column, slice(start, stop), these)
            if finite is not None and out.dtype.kind == "f":
                _check_rows(these, start, FIELDS[name], f"of type {finite} in {part.path}")
            if advance is not None:
                advance(stop - start)


def _check_rows(rows: np.ndarray, start: int, field: Field, place: str) -> None:
    """Raise SnapshotError for the first invalid row; ``start`` is the row number of the first one."""
    for is_valid, fault in ((np.isfinite(rows), "NaN or infinite"), (rows >= field.minimum, "negative")):
        if not is_valid.all():
            row = start + int(np.argmin(is_valid.reshape(len(rows), -1).all(axis=1)))
            raise SnapshotError(f"Row {row} of the {field.words} {place} is {fault}; remove such particles.")


def row_slices(rows: slice, row_bytes: int, chunk: int = 1) -> Iterator[tuple[int, int]]:
    """Split rows at chunk boundaries, so that chunks are decompressed only once.

    Args:
        rows: The rows to split.
        row_bytes: Bytes per row.
        chunk: Number of rows per chunk of the file.
    """
    step = max(1, _SLICE_BYTES // (max(1, row_bytes) * chunk)) * chunk
    first = (rows.start // step + 1) * step
    return pairwise([rows.start, *range(first, rows.stop, step), rows.stop])


def _read_slice(read: Reader, column: Column, rows: slice, out: np.ndarray) -> None:
    if column.box is not None:
        integers = np.empty(out.shape, column.raw)
        read(column, rows, integers)
        fractions_of_box(integers, column.box, out, column.bits)
        return
    read(column, rows, out)
    if column.factor != 1:
        with np.errstate(over="ignore", invalid="ignore"):  # damaged rows raise errors at their use
            out *= out.dtype.type(column.factor)


def fractions_of_box(integers: np.ndarray, box: Any, out: np.ndarray, bits: int = 0) -> None:
    """Convert integer coordinates to lengths: x of b bits is ``x / 2**b`` of the box, and always below the box.

    Args:
        integers: ``(n, d)`` unsigned of 32 or 64 bits, or of dtype `WORDS`.
        box: The box lengths, a scalar or ``(d,)``.
        out: ``(n, d)`` float64, overwritten.
        bits: Number of bits in the file, if below that of the dtype; otherwise 0.
    """
    if integers.dtype == WORDS:
        np.multiply(integers["high"], 2.0**-64, out=out)
        out += integers["low"] * 2.0**-128
    else:
        np.multiply(integers, 2.0 ** -(bits or 8 * integers.dtype.itemsize), out=out)
    out *= box
    np.minimum(out, np.nextafter(box, 0), out=out)  # more than 53 bits may have been rounded up to the box
