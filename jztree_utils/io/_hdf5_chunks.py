"""Check that the bytes of HDF5 datasets are at the positions in the metadata, which the HDF5 library does not check.

Files in formats before HDF5 1.10, which h5py and most codes write, have no checksum over the metadata that locates
datasets and chunks and describes their compression. The library would read other bytes as numbers, and returns zeros
for chunks that it does not find.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ._errors import SnapshotError
from ._hdf5_types import WORDS, dtype_of, is_widened, stored_bytes

# Filters that do not change the number of bytes, apart from a checksum.
_SHUFFLE, _CHECKSUM = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_CHECKSUM_BYTES = 4


def has_all_chunks(data: h5py.Dataset) -> bool:
    """Return whether the chunk list has each chunk once, within the file, and packed as the dataset specifies."""
    needed = math.prod(-(-length // chunk) for length, chunk in zip(data.shape, data.chunks, strict=True))
    if data.id.get_num_chunks() < needed:
        return False
    if not hasattr(data.id, "chunk_iter"):  # missing before HDF5 1.14
        return True
    size, filters = Path(data.file.filename).stat().st_size, _filters(data)
    whole = math.prod(data.chunks) * data.id.get_type().get_size()
    places: set[tuple[int, ...]] = set()

    def look(chunk: Any) -> None:
        within = chunk.size and chunk.byte_offset + chunk.size <= size
        if within and _is_place(data, chunk.chunk_offset) and _is_packed(chunk, filters, whole):
            places.add(chunk.chunk_offset)

    data.id.chunk_iter(look)
    return len(places) >= needed


def check_apart(data: h5py.Dataset) -> None:
    """Raise SnapshotError if bytes of a dataset overlap another dataset of the same group, or their metadata."""
    if data.is_virtual or data.external or not data.size or data.file.userblock_size:
        return
    parts, header = _extents(data), _header(data)
    if not len(parts):  # compact: the numbers are in the header
        return
    if (parts[1:, 0] < parts[:-1, 1]).any():
        raise _not_apart(data, "a part of itself")
    group = _taken_ranges(data)
    # Find the last part of this dataset that begins before the end of each other range.
    before = np.searchsorted(parts[:, 0], group.ranges[:, 1]) - 1
    overlaps = (before >= 0) & (parts[before, 1] > group.ranges[:, 0])
    overlaps &= group.is_header | (group.headers != header[0])
    if overlaps.any():
        raise _not_apart(data, group.names[group.members[overlaps.argmax()]])


def _not_apart(data: h5py.Dataset, other: str) -> SnapshotError:
    name = str(data.name).lstrip("/")
    return SnapshotError(f"In {data.file.filename}, {name} overlaps {other}; write or copy it again.")


class _Taken(NamedTuple):
    """Byte ranges ``(e, 2)`` of a group and its members: of each, first the header.

    Attributes:
        names: Name of each member.
        ranges: The ranges, by member.
        members: Number of the member of each range, and ``headers`` the position of its header.
        is_header: Whether the range is a header.
    """

    names: list[str]
    ranges: np.ndarray
    members: np.ndarray
    headers: np.ndarray
    is_header: np.ndarray


_latest_ranges: tuple[tuple[int, int], _Taken] | None = None


def _taken_ranges(data: h5py.Dataset) -> _Taken:
    """Return the byte ranges of the group of a dataset and each readable member.

    The ranges of the latest group in a file that is open for reading are kept.
    """
    global _latest_ranges  # noqa: PLW0603
    file, group = data.file, data.parent
    key = file.id.id, _header(group)[0]  # HDF5 numbers open files, and does not use a number again
    latest = _latest_ranges  # another thread may replace it
    if latest is not None and latest[0] == key:
        return latest[1]
    members = [group]
    for name in group:
        with suppress(KeyError, OSError, RuntimeError):
            members.append(group[name])
    ranges = []
    for item in members:
        has_numbers = isinstance(item, h5py.Dataset) and not item.is_virtual
        numbers = _extents(item) if has_numbers else np.empty((0, 2), np.int64)
        ranges.append(np.concatenate([[_header(item)], numbers]))
    counts = [len(item) for item in ranges]
    ranges_of_group = _Taken(
        [str(item.name).lstrip("/") for item in members],
        np.concatenate(ranges),
        np.repeat(np.arange(len(members)), counts),
        np.repeat([item[0, 0] for item in ranges], counts),
        np.concatenate([np.arange(count) == 0 for count in counts]),
    )
    if file.mode == "r":
        _latest_ranges = key, ranges_of_group
    return ranges_of_group


def _header(item: h5py.Group | h5py.Dataset) -> tuple[int, int]:
    """Return the range of the first byte of the header of a group or dataset."""
    address = int(h5py.h5o.get_info(item.id).addr)
    return address, address + 1


def _extents(data: h5py.Dataset) -> np.ndarray:
    """Return the byte ranges ``(e, 2)`` of a dataset, sorted by position in the file."""
    result: list[tuple[int, int]] = []
    if data.chunks is not None and hasattr(data.id, "chunk_iter"):
        data.id.chunk_iter(lambda chunk: result.append((chunk.byte_offset, chunk.byte_offset + chunk.size)))
    elif data.chunks is None and data.id.get_offset() is not None:
        result.append((data.id.get_offset(), data.id.get_offset() + data.id.get_storage_size()))
    return np.array(sorted(result), np.int64).reshape(-1, 2)


def _filters(data: h5py.Dataset) -> list[int]:
    plist = data.id.get_create_plist()
    return [plist.get_filter(place)[0] for place in range(plist.get_nfilters())]


def _is_place(data: h5py.Dataset, offset: tuple[int, ...]) -> bool:
    """Return whether a chunk of the dataset begins at this element."""
    axes = zip(offset, data.shape, data.chunks, strict=True)
    return all(place < length and place % chunk == 0 for place, length, chunk in axes)


def _is_packed(chunk: Any, filters: list[int], whole: int) -> bool:
    """Return whether a chunk was filtered like those of writers.

    A chunk that compression does not shrink is stored uncompressed, with the bytes of a ``whole`` chunk.
    """
    if chunk.filter_mask >> len(filters):
        return False
    used = [number for place, number in enumerate(filters) if not chunk.filter_mask >> place & 1]
    if set(used) <= {_SHUFFLE, _CHECKSUM}:
        return bool(chunk.size == whole + _CHECKSUM_BYTES * used.count(_CHECKSUM))
    # Writers never compress without a shuffle that the dataset specifies.
    return _SHUFFLE not in filters or _SHUFFLE in used


@contextmanager
def made_up_rows_refused(data: h5py.Dataset, rows: slice, out: np.ndarray) -> Iterator[None]:
    """Raise SnapshotError after a read of rows into ``out`` if HDF5 missed one of their chunks and filled it.

    HDF5 can miss a chunk in the list because a neighbouring entry is damaged. This function therefore looks up
    every apparently missing chunk again; few existing chunks look like that.
    """
    if data.chunks is None or not out.nbytes:
        yield
        return
    missing = _missing(data, out)
    if missing is None:
        out.view(np.uint8)[...] = 0  # HDF5 does not write to missing rows
    yield
    for place in _suspicious(data, rows, out, missing):
        try:
            data.id.read_direct_chunk(place)
        except (OSError, RuntimeError):
            raise SnapshotError(
                f"{data.file.filename} holds {str(data.name).lstrip('/')}, but its metadata give a wrong position in "
                f"the file for the rows from {place[0]} on; write or copy it again."
            ) from None


def _missing(data: h5py.Dataset, out: np.ndarray) -> np.ndarray | None:
    """Return the value that HDF5 gives to missing numbers, as bytes in the form of ``out``; None if it gives none."""
    plist = data.id.get_create_plist()
    defined = plist.fill_value_defined()
    if defined == h5py.h5d.FILL_VALUE_UNDEFINED or plist.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        return None
    if defined == h5py.h5d.FILL_VALUE_DEFAULT:
        return np.zeros((), np.uint8)
    dtype, kind = dtype_of(data), data.id.get_type()
    if dtype == WORDS:
        return None  # HDF5 cannot convert the value to a NumPy type
    stored = np.zeros((), dtype)
    plist.get_fill_value(stored)
    if out.dtype.kind != "V":
        return _bytes_of(stored.astype(out.dtype))
    return stored_bytes(stored, kind) if is_widened(kind) else _bytes_of(stored)


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """Return the bytes ``(..., b)`` of the numbers of an array."""
    return np.ascontiguousarray(array)[..., None].view(np.uint8)


def _suspicious(
    data: h5py.Dataset, rows: slice, out: np.ndarray, missing: np.ndarray | None
) -> Iterator[tuple[int, ...]]:
    """Yield the offsets of chunks whose numbers among these rows all have the value of missing ones."""
    first = rows.start // data.chunks[0] * data.chunks[0]
    starts = range(first, rows.stop, data.chunks[0])
    fill = np.zeros((), np.uint8) if missing is None else missing
    numbers = _numbers(data, out)
    inner = [range(0, length, chunk) for length, chunk in zip(data.shape[1:], data.chunks[1:], strict=True)]
    for corner in itertools.product(*inner):
        box = tuple(slice(at, at + chunk) for at, chunk in zip(corner, data.chunks[1:], strict=True))
        begins = np.maximum(np.array(starts) - rows.start, 0)
        # The first rows decide for nearly all chunks.
        alike = (numbers[(begins, *box)] == fill).reshape(len(begins), -1).all(axis=1)
        for place in np.flatnonzero(alike):
            start = starts[place]
            within = slice(begins[place], start + data.chunks[0] - rows.start)
            if (numbers[(within, *box)] == fill).all():
                yield (start, *corner)


def _numbers(data: h5py.Dataset, out: np.ndarray) -> np.ndarray:
    """Return the bytes ``(n, ..., b)`` of the numbers in rows; ``out`` may hold whole rows as bytes."""
    return _bytes_of(out).reshape(len(out), *data.shape[1:], -1)
