"""What all formats have in common: properties of particles, how a file stores them, and how they are read in slices.

A format finds the `Column` of each property in each file of a snapshot and knows how to read rows of it; what is wrong
with them, what they are multiplied by, and how many are read at a time is decided here for all formats.
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

# Rows are read in slices of about this many bytes: large enough that the calls do not count, small beside any snapshot.
_SLICE_BYTES = 1 << 24


class Field(NamedTuple):
    """A property of the particles: the kind of its numbers (as in `numpy.dtype.kind`), their bytes, its unit."""

    kinds: str
    sizes: tuple[int, ...]
    kind_in_words: str
    vector: bool
    words: str


FIELDS = {
    "pos": Field("f", (4, 8), "float32 or float64", True, "positions"),
    "mass": Field("f", (4, 8), "float32 or float64", False, "masses"),
    "vel": Field("f", (2, 4, 8), "float32 or float64", True, "velocities"),
    "id": Field("iu", (4, 8), "integers of 32 or 64 bits", False, "identifiers"),
}


@dataclass(frozen=True, kw_only=True)
class Column:
    """A property of the particles in one file: how it is stored, and how its values follow.

    name: of the dataset or array in the file.
    stored: its dtype in the file; `WORDS` for integers of 128 bits, and a wider one for integers that NumPy lacks.
    shape: its shape in the file, rows first.
    factor: by which stored numbers are multiplied.
    box: the lengths, a scalar or ``(d,)``, that integer coordinates are fractions of; None for all other properties.
    bits: of a number in the file, if ``stored`` is wider; 0 if not.
    chunk: rows that the file keeps together, which are best read together.
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
        """The dtype of what readers get."""
        return np.dtype(np.float64) if self.box is not None else self.raw


# Reads rows of a column into an array of its dtype ``raw``.
Reader = Callable[[Column, slice, np.ndarray], None]
# Told how many rows more have been read.
Advance = Callable[[int], None]


class Part(Protocol):
    """One file of a snapshot, as far as particles of one type are concerned."""

    @property
    def path(self) -> Path: ...

    @property
    def num(self) -> int:
        """Particles of the type in this file, by its header."""

    @property
    def columns(self) -> Mapping[str, Column]:
        """The properties that the file has."""

    def open(self) -> AbstractContextManager[Reader]:
        """The file, to read from. Raises SnapshotError, also for whatever goes wrong while reading."""

    def missing(self, name: str) -> SnapshotError:
        """What to raise when a property is asked for that the file does not have."""


class Survey(NamedTuple):
    """What one file says of the snapshot and of itself.

    title: what it is, in words such as "Gadget-4 snapshot".
    here: particles of each type in this file.
    part: its particles of the type that is asked for; None if only the header is.
    """

    title: str
    header: SnapshotHeader
    here: tuple[int, ...]
    part: Part | None


def check_column(part: Part, name: str) -> Column:
    """The column of a property, once dtype and shape are what they must be. Raises SnapshotError if not."""
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
        raise SnapshotError(f"{where} of shape {column.shape}; it must be {shape}, a row a particle.")
    pos = part.columns.get("pos")
    if field.vector and pos is not None and len(pos.shape) == 2 and column.shape[1] != pos.shape[1]:
        raise SnapshotError(
            f"{where} of shape {column.shape}, but {pos.name} of shape {pos.shape}; the {field.words} must have as "
            "many components as the positions."
        )
    if column.shape[0] != part.num:
        raise SnapshotError(
            f"{where} for {column.shape[0]} particles, but its header counts {part.num}; copy the file again."
        )
    return column


def read_rows(
    part: Part, name: str, rows: slice, out: np.ndarray, advance: Advance | None = None, finite: int | None = None
) -> None:
    """Rows of a property in one file, in slices, so that little more memory is needed than that of ``out``.

    out: ``(rows.stop - rows.start, ...)``, of the dtype of the column.
    finite: the particle type, if numbers must be finite; None leaves them as they are.
    Raises SnapshotError if they cannot be read, or a row is not finite that must be.
    """
    column = check_column(part, name)
    with part.open() as read:
        row_bytes = int(np.prod(column.shape[1:])) * column.stored.itemsize
        for start, stop in row_slices(rows, row_bytes, column.chunk):
            these = out[start - rows.start : stop - rows.start]
            _read_slice(read, column, slice(start, stop), these)
            if finite is not None and out.dtype.kind == "f":
                _check_finite(these, start, f"{FIELDS[name].words} of type {finite} in {part.path}")
            if advance is not None:
                advance(stop - start)


def _check_finite(rows: np.ndarray, start: int, what: str) -> None:
    """Raise SnapshotError, naming the first row of the file that is not finite. start: the number of the first."""
    good = np.isfinite(rows)
    if not good.all():
        row = start + int(np.argmin(good.reshape(len(rows), -1).all(axis=1)))
        raise SnapshotError(f"Row {row} of the {what} is NaN or infinite; remove such particles.")


def row_slices(rows: slice, row_bytes: int, chunk: int = 1) -> Iterator[tuple[int, int]]:
    """Cut rows at multiples of what the file keeps together, so that nothing is decompressed twice.

    row_bytes: of one row. chunk: rows that the file keeps together.
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
        with np.errstate(over="ignore", invalid="ignore"):  # damaged rows are found where they are used
            out *= out.dtype.type(column.factor)


def fractions_of_box(integers: np.ndarray, box: Any, out: np.ndarray, bits: int = 0) -> None:
    """Lengths that integer coordinates stand for: x of b bits is ``x / 2**b`` of the box, and always below the box.

    integers: ``(n, d)`` unsigned of 32 or 64 bits, or of dtype `WORDS`.
    box: a scalar or ``(d,)``.
    out: ``(n, d)`` float64, filled.
    bits: of the numbers, if there are fewer than the dtype has.
    """
    if integers.dtype == WORDS:
        np.multiply(integers["high"], 2.0**-64, out=out)
        out += integers["low"] * 2.0**-128
    else:
        np.multiply(integers, 2.0 ** -(bits or 8 * integers.dtype.itemsize), out=out)
    out *= box
    np.minimum(out, np.nextafter(box, 0), out=out)  # numbers of more than 53 bits may have been rounded up to the box
