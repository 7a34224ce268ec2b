"""Rows stored as plain numbers in a file: NumPy arrays, also in archives, and blocks of Gadget's binary files."""

import io
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from ._columns import FIELDS, Column, Reader
from ._errors import SnapshotError
from ._files import damaged, unreadable

# Errors of reading archives: damage, unknown compression, encryption, an early end.
_ARCHIVE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError, ValueError)


@dataclass(frozen=True)
class Place:
    """The position of the rows of a column.

    Attributes:
        offset: Bytes before the first row.
        member: Member of an archive; None if the file is not an archive.
        by_columns: Whether the numbers are stored component by component (Fortran order).
    """

    offset: int
    member: str | None = None
    by_columns: bool = False


@dataclass(frozen=True, kw_only=True)
class RawPart:
    """Particles in a file of plain numbers, a `Part`; ``places`` has the position of the rows by column name."""

    path: Path
    num: int
    columns: Mapping[str, Column]
    places: Mapping[str, Place]

    @contextmanager
    def open(self) -> Iterator[Reader]:
        with open_raw(self.path) as file:
            yield _OpenFile(file, self.places).read

    def missing(self, name: str) -> SnapshotError:
        held = ", ".join(column.name for column in self.columns.values())
        return SnapshotError(f"{self.path} has no recognised {FIELDS[name].words}; it holds {held}.")


class Streams:
    """The open file, or one stream for each member if it is an archive."""

    def __init__(self, file: IO[bytes], stack: ExitStack) -> None:
        self.file = file
        self._stack = stack
        self._archive: zipfile.ZipFile | None = None
        self._members: dict[tuple[str, int], IO[bytes]] = {}

    @property
    def archive(self) -> zipfile.ZipFile:
        if self._archive is None:
            self._archive = self._stack.enter_context(zipfile.ZipFile(self.file))
        return self._archive

    def get(self, member: str | None, component: int = 0) -> IO[bytes]:
        """Return the stream to read from. Each component has a stream, because seeking back would decompress again."""
        if member is None:
            return self.file
        if (member, component) not in self._members:
            self._members[member, component] = self._stack.enter_context(self.archive.open(member))
        return self._members[member, component]


@contextmanager
def open_raw(path: Path) -> Iterator[Streams]:
    """Open a file for reading bytes. Raises SnapshotError if it cannot be read, is truncated or damaged."""
    try:
        with ExitStack() as stack:
            yield Streams(stack.enter_context(open(path, "rb")), stack)
    except SnapshotError:
        raise
    except OSError as error:
        raise unreadable(path, error) from None
    except _ARCHIVE_ERRORS as error:
        raise damaged(path, error) from error


class _OpenFile:
    def __init__(self, streams: Streams, places: Mapping[str, Place]) -> None:
        self._streams = streams
        self._places = places

    def read(self, column: Column, rows: slice, out: np.ndarray) -> None:
        place = self._places[column.name]
        if place.by_columns and len(column.shape) > 1:
            for component in range(column.shape[1]):
                skipped = component * column.shape[0] + rows.start
                self._fill(column, place, skipped, out[:, component], component)
        else:
            self._fill(column, place, rows.start * int(np.prod(column.shape[1:])), out)

    def _fill(self, column: Column, place: Place, skipped: int, out: np.ndarray, component: int = 0) -> None:
        """Read consecutive numbers of the file into ``out``, after the first ``skipped`` numbers."""
        stream = self._streams.get(place.member, component)
        stream.seek(place.offset + skipped * column.stored.itemsize)
        direct = out.flags.c_contiguous and out.dtype == column.stored
        numbers = out if direct else np.empty(out.shape, column.stored)
        read_exactly(stream, numbers)
        if not direct:
            out[...] = numbers


def read_exactly(stream: IO[bytes], numbers: np.ndarray) -> None:
    """Fill a contiguous array with the next bytes. Raises EOFError if the stream ends earlier."""
    assert isinstance(stream, io.BufferedIOBase)
    left = numbers.reshape(-1).view(np.uint8)
    while len(left):
        got = stream.readinto(left.data)
        if not got:
            raise EOFError("it ends too early")
        left = left[got:]
