"""NumPy files: positions in an ``.npy`` file, or positions, velocities, ... in an ``.npz`` file.

The format: https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html
"""

import math
from collections.abc import Sequence
from pathlib import Path
from tokenize import TokenError
from typing import IO, Any, NamedTuple

import numpy as np

from ._columns import FIELDS, Column, Survey
from ._errors import OPTION, SnapshotError
from ._files import damaged
from ._header import SnapshotHeader, checked_box
from ._plain_rows import Place, RawPart, Streams, open_raw, read_exactly
from ._read_options import ReadOptions

# The names of arrays in an archive, in lower case and without underscores.
_SYNONYMS = {
    "pos": ("pos", "position", "positions", "coordinates", "coords", "xyz"),
    "vel": ("vel", "velocity", "velocities", "vels"),
    "mass": ("mass", "masses"),
    "id": ("id", "ids", "particleid", "particleids"),
    "boxsize": ("boxsize", "box", "lbox"),
}


_LONGEST_HEAD = 10_000  # bytes; NumPy's limit for headers of untrusted files


class _Array(NamedTuple):
    """An array in a file: its column, the position of its numbers, and their size in bytes."""

    column: Column
    place: Place
    num_bytes: int


def survey_npy(path: Path, options: ReadOptions) -> Survey:
    """Survey positions ``(n, d)`` in an ``.npy`` file, as type 1. Raises SnapshotError for other contents."""
    if options.names:
        raise SnapshotError(
            f"{path} holds only one array, the positions, but names were given for {', '.join(options.names)}; put the "
            "arrays into an .npz file (numpy.savez), or leave the names out."
        )
    with open_raw(path) as streams:
        size = streams.file.seek(0, 2)
        streams.file.seek(0)
        pos = _parse(path, streams.file, "the array", None)
    _check_size(path, "the array", pos, size)
    return _survey(path, "NumPy array", {"pos": pos}, 0.0, None, options)


def survey_npz(path: Path, options: ReadOptions) -> Survey:
    """Survey arrays in an ``.npz`` file, by given or usual names, as type 1.

    Args:
        path: The file.
        options: Options for reading the snapshot.

    Raises:
        SnapshotError: If positions are missing, two arrays could be the same property, or a named array is missing.
    """
    with open_raw(path) as streams:
        keys = [name.removesuffix(".npy") for name in streams.archive.namelist() if name.endswith(".npy")]
        selected = {name: key for name in _SYNONYMS if (key := _key(path, keys, name, options.names)) is not None}
        if "pos" not in selected:
            raise SnapshotError(
                f"{path} has no array with a usual name of positions; it holds {', '.join(sorted(keys)) or 'nothing'}. "
                f"Name the positions ({OPTION}).",
                "pos",
            )
        arrays = {name: _member(streams, path, key) for name, key in selected.items()}
        box = arrays.pop("boxsize", None)
        sides = None if box is None else _few_numbers(streams, path, box)
        mass = 0.0
        if "mass" in arrays and not arrays["mass"].column.shape:  # one number for all particles
            mass = float(_few_numbers(streams, path, arrays.pop("mass"))[0])
    return _survey(path, "NumPy archive", arrays, mass, sides, options)


def _survey(path: Path, title: str, arrays: dict[str, _Array], mass: float, sides: Any, options: ReadOptions) -> Survey:
    """Build the survey, with the common particle mass or 0, and the sides of the box or None."""
    shape = arrays["pos"].column.shape
    num = shape[0] if shape else 0
    box = _box(path, options, sides)
    header = options.complete(SnapshotHeader(boxsize=box, npart_total=(0, num), mass_table=(0.0, mass)))
    part = RawPart(
        path=path,
        num=num,
        columns={name: array.column for name, array in arrays.items()},
        places={array.column.name: array.place for array in arrays.values()},
    )
    return Survey(title, header, (0, num), part)


def _key(path: Path, keys: Sequence[str], name: str, keys_by_name: dict[str, str]) -> str | None:
    """Return the array of an archive that holds a property, or None."""
    if name in keys_by_name:
        if keys_by_name[name] not in keys:
            raise SnapshotError(
                f"{path} has no array {keys_by_name[name]}; it holds {', '.join(sorted(keys)) or 'nothing'}."
            )
        return keys_by_name[name]
    result = [key for key in keys if key.lower().replace("_", "") in _SYNONYMS[name]]
    if len(result) > 1:
        advice = f"name one ({OPTION})" if name in FIELDS else "keep only one"
        raise SnapshotError(f"{path} holds {' and '.join(result)}, which could both be {name}; {advice}.", name)
    return result[0] if result else None


def _member(streams: Streams, path: Path, key: str) -> _Array:
    """Return an array in an archive. Raises SnapshotError if its length differs from its header."""
    member = f"{key}.npy"
    array = _parse(path, streams.get(member), key, member)
    _check_size(path, key, array, streams.archive.getinfo(member).file_size)
    return array


def _check_size(path: Path, name: str, array: _Array, size: int) -> None:
    """Raise SnapshotError unless an array fills ``size`` bytes; with more, the header would leave out rows."""
    needed = array.place.offset + array.num_bytes
    if size != needed:
        kind = EOFError if size < needed else ValueError
        raise damaged(path, kind(f"{name} has {size} bytes, but according to its header {needed}"))


def _parse(path: Path, stream: IO[bytes], name: str, member: str | None) -> _Array:
    """Parse the header of an array. Raises ValueError if it is invalid, SnapshotError if it is too long."""
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise ValueError(f"version {version} of the format, which arrays of numbers do not have")
    _check_head(path, stream, name, 2 if version[0] == 1 else 4)
    read_header = np.lib.format.read_array_header_1_0 if version[0] == 1 else np.lib.format.read_array_header_2_0
    try:
        shape, by_columns, dtype = read_header(stream)
    except (TokenError, SyntaxError, TypeError, RecursionError, MemoryError) as error:  # NumPy parses it as Python
        raise ValueError(f"its header is invalid: {error}") from error
    if dtype.hasobject:
        raise ValueError("Python objects instead of numbers")
    if any(length < 0 for length in shape):
        raise ValueError(f"an array of shape {shape}")
    column = Column(name=name, stored=dtype, shape=shape)
    return _Array(column, Place(stream.tell(), member, by_columns), math.prod(shape) * dtype.itemsize)


def _check_head(path: Path, stream: IO[bytes], name: str, words: int) -> None:
    """Raise SnapshotError for a header that is too long for NumPy; its length field has ``words`` bytes."""
    start = stream.tell()
    length = int.from_bytes(stream.read(words), "little")
    stream.seek(start)
    if length > _LONGEST_HEAD:
        raise SnapshotError(
            f"{path} has a header of {length:,} bytes for {name}, but arrays of numbers need at most "
            f"{_LONGEST_HEAD:,}; write only the numbers, with numpy.save or numpy.savez."
        )


def _few_numbers(streams: Streams, path: Path, array: _Array) -> np.ndarray:
    """Return ``(m,)`` float64: all numbers of an array that must be short, such as a box."""
    column, place = array.column, array.place
    if column.stored.kind not in "iuf" or math.prod(column.shape) not in range(1, 9):
        raise SnapshotError(
            f"{path} holds {column.name} of shape {column.shape} and dtype {column.stored}; it must be one number, or "
            "one per dimension."
        )
    numbers = np.empty(math.prod(column.shape), column.stored)
    stream = streams.get(place.member)
    stream.seek(place.offset)
    read_exactly(stream, numbers)
    return numbers.astype(np.float64)


def _box(path: Path, options: ReadOptions, sides: np.ndarray | None) -> float | tuple[float, ...]:
    """Return the given box, or that of the file, or none."""
    if options.box is not None:
        return options.box
    return 0.0 if sides is None else checked_box(sides, str(path))
