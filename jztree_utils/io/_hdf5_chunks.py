"""Whether the chunks of HDF5 datasets are where the HDF5 library looks for them; it gives zeros for those that are not.

Files of the formats before HDF5 1.10, which h5py and most codes write, have no checksum over the tables that say where
chunks are and how they are packed.
"""

import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ._errors import SnapshotError

# Filters that leave the number of bytes as it is, but for a checksum.
_SHUFFLE, _CHECKSUM = h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32
_CHECKSUM_BYTES = 4


def has_all_chunks(data: h5py.Dataset) -> bool:
    """Whether the list of chunks of a dataset has each of them once, within the file and packed as the dataset says."""
    needed = math.prod(-(-length // chunk) for length, chunk in zip(data.shape, data.chunks, strict=True))
    if data.id.get_num_chunks() < needed:
        return False
    if not hasattr(data.id, "chunk_iter"):  # HDF5 before 1.14 has none
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


def _filters(data: h5py.Dataset) -> list[int]:
    plist = data.id.get_create_plist()
    return [plist.get_filter(place)[0] for place in range(plist.get_nfilters())]


def _is_place(data: h5py.Dataset, offset: tuple[int, ...]) -> bool:
    """Whether a chunk of the dataset begins at this element."""
    axes = zip(offset, data.shape, data.chunks, strict=True)
    return all(place < length and place % chunk == 0 for place, length, chunk in axes)


def _is_packed(chunk: Any, filters: list[int], whole: int) -> bool:
    """Whether a chunk went through filters as writers do: what does not get smaller is not compressed, and has the
    bytes of a ``whole`` one.
    """
    if chunk.filter_mask >> len(filters):
        return False
    used = [number for place, number in enumerate(filters) if not chunk.filter_mask >> place & 1]
    if set(used) <= {_SHUFFLE, _CHECKSUM}:
        return bool(chunk.size == whole + _CHECKSUM_BYTES * used.count(_CHECKSUM))
    # No writer compresses without the shuffle that was asked for.
    return _SHUFFLE not in filters or _SHUFFLE in used


@contextmanager
def made_up_rows_refused(data: h5py.Dataset, rows: slice, out: np.ndarray) -> Iterator[None]:
    """Reads rows into ``out``, and raises SnapshotError if HDF5 did not find a chunk of them: it makes its rows up.

    A chunk can be in the list and not be found, because an entry beside it is damaged. Chunks that came out as if they
    were missing, which few do that are there, are looked for once more.
    """
    if data.chunks is None or not out.nbytes:
        yield
        return
    missing = _missing(data, out)
    if missing is None:
        out.view(np.uint8)[...] = 0  # HDF5 leaves them alone
    yield
    for place in _suspicious(data, rows, out, missing):
        try:
            data.id.read_direct_chunk(place)
        except (OSError, RuntimeError):
            raise SnapshotError(
                f"{data.file.filename} holds {str(data.name).lstrip('/')}, but its rows from {place[0]} on are not "
                "where it says that they are; write or copy it again."
            ) from None


def _missing(data: h5py.Dataset, out: np.ndarray) -> np.ndarray | None:
    """What HDF5 gives for a number that is not there, as ``out`` holds it; None if it gives nothing."""
    plist = data.id.get_create_plist()
    defined = plist.fill_value_defined()
    if defined == h5py.h5d.FILL_VALUE_UNDEFINED or plist.get_fill_time() == h5py.h5d.FILL_TIME_NEVER:
        return None
    if defined == h5py.h5d.FILL_VALUE_DEFAULT:
        return np.zeros((), np.uint8)
    stored = np.asarray(data.fillvalue, data.dtype)
    return _bytes_of(stored if out.dtype.kind == "V" else stored.astype(out.dtype))


def _bytes_of(array: np.ndarray) -> np.ndarray:
    """``(..., b)`` bytes of the numbers of an array."""
    return np.ascontiguousarray(array)[..., None].view(np.uint8)


def _suspicious(
    data: h5py.Dataset, rows: slice, out: np.ndarray, missing: np.ndarray | None
) -> Iterator[tuple[int, ...]]:
    """Places of the chunks all of whose numbers among these rows are what HDF5 gives for missing ones."""
    first = rows.start // data.chunks[0] * data.chunks[0]
    starts = range(first, rows.stop, data.chunks[0])
    fill = np.zeros((), np.uint8) if missing is None else missing
    numbers = _numbers(data, out)
    inner = [range(0, length, chunk) for length, chunk in zip(data.shape[1:], data.chunks[1:], strict=True)]
    for corner in itertools.product(*inner):
        box = tuple(slice(at, at + chunk) for at, chunk in zip(corner, data.chunks[1:], strict=True))
        begins = np.maximum(np.array(starts) - rows.start, 0)
        # Nearly all chunks are told by their first rows.
        alike = (numbers[(begins, *box)] == fill).reshape(len(begins), -1).all(axis=1)
        for place in np.flatnonzero(alike):
            start = starts[place]
            within = slice(begins[place], start + data.chunks[0] - rows.start)
            if (numbers[(within, *box)] == fill).all():
                yield (start, *corner)


def _numbers(data: h5py.Dataset, out: np.ndarray) -> np.ndarray:
    """``(n, ..., b)`` bytes of the numbers in rows; ``out`` may hold whole rows as bytes."""
    return _bytes_of(out).reshape(len(out), *data.shape[1:], -1)
