"""HDF5 datasets as particle columns: integers of 128 bits, compression, virtual datasets."""

import importlib
import itertools
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from ._columns import FIELDS, Column, Reader
from ._errors import OPTION, SnapshotError
from ._files import get_dataset, open_hdf5
from ._hdf5_chunks import check_apart, has_all_chunks, made_up_rows_refused
from ._hdf5_types import WORDS, dtype_of, is_widened, read_values

KINDS = {"f": "floats", "iu": "integers", "iuf": "real numbers", "iufb": "numbers"}
_FIRST_PLUGIN = 256  # filters with lower numbers are part of the HDF5 library
# Filters outside the HDF5 library, by their registered numbers.
_FILTERS = {
    307: "BZip2",
    32000: "LZF",
    32001: "Blosc",
    32004: "LZ4",
    32008: "Bitshuffle",
    32013: "ZFP",
    32015: "Zstandard",
    32017: "SZ",
    32018: "FCIDECOMP",
    32024: "SZ3",
    32026: "Blosc2",
    32028: "SPERR",
}


@dataclass(frozen=True, kw_only=True)
class Hdf5Part:
    """Particles in one HDF5 file, a `Part`.

    Attributes:
        path: The file.
        num: Number of particles in the file.
        columns: The properties in the file, by name.
        usual: The usual dataset of each property, for messages about missing properties.
    """

    path: Path
    num: int
    columns: Mapping[str, Column]
    usual: Mapping[str, str]

    @contextmanager
    def open(self) -> Iterator[Reader]:
        with open_hdf5(self.path) as file:
            yield OpenFile(file).read

    def missing(self, name: str) -> SnapshotError:
        if name not in self.usual:
            return SnapshotError(
                f"{self.path} is read by dataset names, but no name was given for the {FIELDS[name].words}; give one "
                f"({OPTION}), or leave out {name!r}.",
                name,
            )
        try:
            with open_hdf5(self.path) as file:
                get_dataset(file, self.usual[name])
        except SnapshotError as error:
            return error
        return SnapshotError(f"{self.path} has changed during reading; read it again.")


def stored_as(file: h5py.File, name: str, factor: float = 1.0) -> Column:
    """Describe how a dataset is stored, without reading its rows. Raises SnapshotError if it does not exist."""
    data = get_dataset(file, name)
    kind = data.id.get_type()
    return Column(
        name=str(data.name).lstrip("/"),
        stored=_stored_dtype(data),
        shape=(0,) if data.shape is None else data.shape,
        factor=factor,
        bits=kind.get_precision() if is_widened(kind) else 0,
        chunk=data.chunks[0] if data.chunks else 1,
    )


def _stored_dtype(data: h5py.Dataset) -> np.dtype:
    """Return the dtype of a dataset. Raises SnapshotError for floats that HDF5 would misread."""
    kind = data.id.get_type()
    if isinstance(kind, h5py.h5t.TypeFloatID) and not _is_float(kind):
        raise SnapshotError(
            f"{data.file.filename} holds {str(data.name).lstrip('/')} as floats in an unknown format; write or copy it "
            "again."
        )
    return dtype_of(data)


def _is_float(kind: h5py.h5t.TypeFloatID) -> bool:
    """Return whether a float type has the layout of IEEE 754.

    Sign, exponent and mantissa must be adjacent, and the exponent of 1 must be in the middle, like in IEEE 754 and in
    the shortened floats of SWIFT. HDF5 converts other types incorrectly without an error.
    """
    sign, exponent, exponent_bits, mantissa, mantissa_bits = kind.get_fields()
    lowest = kind.get_offset()
    adjacent = mantissa == lowest and exponent == lowest + mantissa_bits and sign == exponent + exponent_bits
    return adjacent and sign + 1 == lowest + kind.get_precision() and kind.get_ebias() == 2 ** (exponent_bits - 1) - 1


class OpenFile:
    """An open file; each dataset is checked once before it is read."""

    def __init__(self, file: h5py.File) -> None:
        self._file = file
        self._readable: set[str] = set()
        self._sources: dict[tuple[Path, str], tuple[int, ...]] = {}

    def read(self, column: Column, rows: slice, out: np.ndarray) -> None:
        data = get_dataset(self._file, column.name)
        self._check(data, rows)
        with made_up_rows_refused(data, rows, out):
            if column.stored == WORDS:
                _read_words(data, rows, out)
            else:
                data.read_direct(out, rows)

    def read_bytes(self, data: h5py.Dataset, rows: slice) -> np.ndarray:
        """Return rows ``(n,)`` of a dataset of this file as stored, of dtype `row_dtype`, without any conversion."""
        self._check(data, rows)
        out = np.empty(rows.stop - rows.start, row_dtype(data))
        with made_up_rows_refused(data, rows, out):
            _select_rows(data, rows, data.id.read, out)
        return out

    def _check(self, data: h5py.Dataset, rows: slice) -> None:
        """Raise SnapshotError if HDF5 could not read these rows, or would fill them in."""
        name = str(data.name)
        if name not in self._readable:
            check_readable(data)
            self._readable.add(name)
        if data.is_virtual:
            self.check_sources(data, rows)

    def check_sources(self, data: h5py.Dataset, rows: slice) -> None:
        """Raise SnapshotError if rows come from a dataset that is missing or too short: HDF5 would fill them in."""
        file_path = Path(self._file.filename)
        for source in data.virtual_sources():
            first, last = source.vspace.get_select_bounds()
            if first[0] >= rows.stop or last[0] < rows.start:
                continue
            path = file_path if source.file_name == "." else file_path.parent / source.file_name
            shape = self._shape_of_source(path, source.dset_name)
            if not _fits(source, shape, data):
                raise SnapshotError(
                    f"{file_path} needs another shape of {source.dset_name} in {path} than {shape}; copy both again."
                )

    def _shape_of_source(self, path: Path, name: str) -> tuple[int, ...]:
        if (path, name) not in self._sources:
            if not path.exists():
                raise SnapshotError(f"{self._file.filename} needs {path}, which is missing; copy it too.")
            with open_hdf5(path) as file:
                data = get_dataset(file, name)
                check_readable(data)
                if data.is_virtual:
                    OpenFile(file).check_sources(data, slice(0, len(data)))
                self._sources[path, name] = (0,) if data.shape is None else data.shape
        return self._sources[path, name]


def row_dtype(data: h5py.Dataset) -> np.dtype:
    """Return the dtype of a row of a dataset as bytes."""
    return np.dtype((np.void, math.prod(data.shape[1:]) * data.id.get_type().get_size()))


def write_bytes(data: h5py.Dataset, start: int, rows: np.ndarray) -> None:
    """Write rows that `OpenFile.read_bytes` has read from a dataset of the same type, from row ``start`` on."""
    _select_rows(data, slice(start, start + len(rows)), data.id.write, np.ascontiguousarray(rows))


def _select_rows(data: h5py.Dataset, rows: slice, transfer: Any, array: np.ndarray) -> None:
    """Read or write rows without conversion: they have the same type in memory and in the file."""
    shape = (rows.stop - rows.start, *data.shape[1:])
    if math.prod(shape):
        space = data.id.get_space()
        space.select_hyperslab((rows.start, *(0,) * (data.ndim - 1)), shape)
        transfer(h5py.h5s.create_simple(shape), space, array, data.id.get_type())


def virtual_sources(file: h5py.File) -> list[Path]:
    """Return the other files that virtual datasets of an open file refer to."""
    result: set[str] = set()

    def look(_: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset) and item.is_virtual:
            result.update(source.file_name for source in item.virtual_sources())

    file.visititems(look)
    return [Path(file.filename).parent / name for name in sorted(result - {"."})]


def _fits(source: Any, shape: tuple[int, ...], data: h5py.Dataset) -> bool:
    """Return whether a dataset of this shape has the numbers that a virtual dataset needs from it."""
    if source.src_space.get_select_type() == h5py.h5s.SEL_ALL:
        num, size = source.vspace.get_select_npoints(), math.prod(shape)
        return bool(size == num or (size > num and len(shape) == data.ndim and shape[1:] == data.shape[1:]))
    last = source.src_space.get_select_bounds()[1]
    return len(last) == len(shape) and all(end < length for end, length in zip(last, shape, strict=True))


def read_all(file: h5py.File, name: str) -> Any:
    """Read all rows of a small dataset. Raises SnapshotError if it is missing or cannot be read."""
    data = get_dataset(file, name)
    if data.shape is None:
        raise SnapshotError(f"{file.filename} holds an empty dataset {name}; write it again.")
    reader = OpenFile(file)
    check_readable(data)
    if data.is_virtual and data.ndim:
        reader.check_sources(data, slice(0, data.shape[0]))
    dtype = dtype_of(data)
    if data.chunks is None or dtype.hasobject or dtype == WORDS:
        return read_values(data)
    rows = np.empty(data.shape, dtype)
    with made_up_rows_refused(data, slice(0, len(rows)), rows):
        data.read_direct(rows)
    return rows


def check_form(data: h5py.Dataset, kinds: str, shape: tuple[int, ...], because: str) -> None:
    """Raise SnapshotError unless a dataset has numbers of the given kinds and shape, without reading them.

    Args:
        data: The dataset.
        kinds: One of `KINDS`, see `numpy.dtype.kind`.
        shape: The required shape.
        because: Reason for the shape, such as "one row per group".
    """
    if dtype_of(data).kind not in kinds or data.shape != shape:
        raise wrong_form(data, kinds, f"{shape}, {because}")


def wrong_form(data: h5py.Dataset, kinds: str, needed: str) -> SnapshotError:
    """Return the error for a dataset with other kinds of numbers, or with another shape than ``needed``."""
    held = "nothing" if data.shape is None else f"{dtype_of(data)} of shape {data.shape}"
    return SnapshotError(
        f"{data.file.filename} holds {held} as {str(data.name).lstrip('/')}, but it must be {KINDS[kinds]} of shape "
        f"{needed}; write or copy it again."
    )


def check_readable(data: h5py.Dataset) -> None:
    """Raise SnapshotError if HDF5 could not read a dataset, or would fill in missing rows."""
    check_filters(data)
    _check_covered(data)
    _check_written(data)
    check_apart(data)


def _check_written(data: h5py.Dataset) -> None:
    """Raise SnapshotError if rows were never written, for example by an aborted run, or are in missing files.

    HDF5 would return zeros for them.
    """
    if data.is_virtual or not data.size:
        return
    where = f"{data.file.filename} holds {str(data.name).lstrip('/')}"
    if data.external is None:
        if not _is_written(data):
            raise SnapshotError(f"{where} of shape {data.shape}, but only a part was written; write or copy it again.")
        return
    missing, ranges = data.size * data.id.get_type().get_size(), []
    for name, start, capacity in data.external:
        path = Path(name).absolute()  # HDF5 opens it in the working directory
        end = start + min(capacity, missing)
        missing -= end - start
        if not path.is_file() or path.stat().st_size < end:
            raise SnapshotError(
                f"{where} in the file {path}, which is missing or truncated; copy it to this place, or start in its "
                "folder."
            )
        ranges.append((path, start, end))
    if any(first[0] == second[0] and second[1] < first[2] for first, second in itertools.pairwise(sorted(ranges))):
        raise SnapshotError(f"{where} in other files, where its parts overlap; write or copy it again.")


def _is_written(data: h5py.Dataset) -> bool:
    """Return whether the file has all bytes of a dataset. HDF5 would crash on a damaged list of chunks."""
    return bool(data.id.get_storage_size()) if data.chunks is None else has_all_chunks(data)


def _check_covered(data: h5py.Dataset) -> None:
    """Raise SnapshotError if a virtual dataset has numbers without a source: HDF5 does not set them.

    Sources may overlap, so that their total size does not show this.
    """
    if not data.is_virtual or not data.size:
        return
    blocks = np.concatenate([np.empty((0, 2, data.ndim), np.int64), *map(_blocks, data.virtual_sources())])
    for place in np.ndindex(data.shape[1:]):
        in_column = ((blocks[:, 0, 1:] <= place) & (blocks[:, 1, 1:] >= place)).all(axis=1)
        first, last = blocks[in_column, :, 0][np.argsort(blocks[in_column, 0, 0])].T
        reach = np.maximum.accumulate(np.append(-1, last))
        gaps = np.flatnonzero(np.append(first, len(data)) > reach + 1)
        if len(gaps):
            raise SnapshotError(
                f"The virtual dataset {str(data.name).lstrip('/')} of {data.file.filename} has {len(data)} rows, but "
                f"row {reach[gaps[0]] + 1} has no source; write it again."
            )


def _blocks(source: Any) -> np.ndarray:
    """Return the first and the last element ``(b, 2, d)`` of each block of a source in its virtual dataset."""
    if source.vspace.get_select_type() == h5py.h5s.SEL_HYPERSLABS:
        return np.asarray(source.vspace.get_select_hyper_blocklist(), np.int64)
    return np.asarray(source.vspace.get_select_bounds(), np.int64)[None]


def _read_words(data: h5py.Dataset, rows: slice, out: np.ndarray) -> None:
    """Read integers of 128 bits as pairs of words."""
    kind = h5py.h5t.STD_U64LE.copy()
    kind.set_size(WORDS.itemsize)
    kind.set_precision(8 * WORDS.itemsize)
    space = data.id.get_space()
    space.select_hyperslab((rows.start, *(0,) * (data.ndim - 1)), out.shape)
    data.id.read(h5py.h5s.create_simple(out.shape), space, out, kind)


def check_filters(data: h5py.Dataset) -> None:
    """Raise SnapshotError unless every filter of a dataset is available, directly or from the package hdf5plugin."""
    plist = data.id.get_create_plist()
    for place in range(plist.get_nfilters()):
        number, _, _, name = plist.get_filter(place)
        if h5py.h5z.filter_avail(number):
            continue
        advice = _load_plugins(number)
        if advice is not None:
            known = _FILTERS.get(number) or name.decode(errors="replace") or "unknown"
            where = f"{data.file.filename} holds {str(data.name).lstrip('/')} compressed with the filter {known}"
            raise SnapshotError(f"{where} ({number}), {advice}.")


def _load_plugins(number: int) -> str | None:
    """Return None once the package hdf5plugin has loaded the filter with this number, otherwise advice for the user."""
    if number < _FIRST_PLUGIN:
        return "but this HDF5 library does not have it; write the file without it (h5repack -f NONE)"
    try:
        importlib.import_module("hdf5plugin")  # the import registers its filters
    except ImportError:
        return "but it is not installed; pip install hdf5plugin"
    if h5py.h5z.filter_avail(number):
        return None
    return "but the package hdf5plugin does not have it; write the file without it (h5repack -f NONE)"
