"""Particles in pieces: any range of rows of each property, from arrays or from the files of a snapshot."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from jztree.data import get_num, get_pos

from .. import io

COLUMNS = ("pos", "vel", "mass", "id", "internal_energy")
Columns = dict[str, tuple[np.dtype[Any], tuple[int, ...]]]  # dtype and shape of a row of each property


class Pieces(Protocol):
    """Particles that are read range by range.

    Attributes:
        num: Number of particles.
        columns: Dtype and shape of a row of each property that particles have, by name.
        shared_mass: The mass of all particles, None if their masses differ or are unknown.
        about: Description of the input, which differs between different inputs, for JSON.
        lengths: Number of particles of each piece.
    """

    num: int
    columns: Columns
    shared_mass: float | None
    about: Any
    lengths: list[int]

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        """Return a property of the rows from ``start`` to ``stop``; rows continue from piece to piece."""

    def rows_by_file(self, start: int, stop: int) -> dict[Path, int]:
        """Return the files with these rows, and the number of these rows in each; none for arrays."""

    def row_in_words(self, row: int, of: str = "") -> str:
        """Describe a row for the user; ``of`` is the argument with the particles, such as " of attached[0]"."""


class Reader:
    """Reads properties of a range of rows, and computes their checksums.

    Attributes:
        names: The properties, in the order of reading.
        checksums: The checksum of the rows of each file; one for all rows of arrays.
    """

    def __init__(self, pieces: Pieces, start: int, stop: int) -> None:
        self._pieces, self._start, self._stop = pieces, start, stop
        self.names: list[str] = []
        self._rows_by_file = pieces.rows_by_file(start, stop)
        self.checksums = [0] * max(len(self._rows_by_file), 1)

    def read(self, name: str) -> np.ndarray:
        """Return a property of the rows."""
        rows = self._pieces.read(name, self._start, self._stop)
        self.names.append(name)
        ends = np.cumsum([*self._rows_by_file.values()], dtype=np.int64)[:-1]
        for place, part in enumerate(np.split(rows, ends)):
            contents = np.ascontiguousarray(part).view(np.uint8).data
            self.checksums[place] = zlib.crc32(contents, self.checksums[place])
        return rows

    @property
    def files(self) -> list[list[Any]]:
        """The present name, size and time of each file with these rows."""
        paths = [path.resolve() for path in self._rows_by_file]
        return [[str(path), path.stat().st_size, path.stat().st_mtime_ns] for path in paths]

    @property
    def state(self) -> dict[str, Any]:
        """The arrays to store for `check_unchanged`."""
        return {"files": json.dumps(self.files), "names": np.array(self.names), "checksums": self.checksums}

    def check_unchanged(self, state: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError if the rows differ from an earlier `state`.

        Rows are read again if a file has another size or time, and rows of arrays always.
        """
        if self.files and self.files == json.loads(str(state["files"])):
            return
        for name in state["names"]:
            self.read(str(name))
        self.check_equal(state)

    def check_equal(self, state: Mapping[str, np.ndarray]) -> None:
        """Raise ValueError if a checksum of the same properties in an earlier `state` differs."""
        changed = [new != old for new, old in zip(self.checksums, state["checksums"].tolist(), strict=True)]
        if any(changed):
            names = [str(path.resolve()) for path in self._rows_by_file] or [f"rows {self._start:,} to {self._stop:,}"]
            raise ValueError(
                f"{' and '.join(compress(names, changed))} changed after an earlier step had read it; restore it, or "
                "remove the folder of temporary files to begin again."
            )


def pieces_of(particles: Any, wide: bool = False, optional: Sequence[str] = ("vel", "mass", "id")) -> Pieces:
    """Return particles in pieces.

    Args:
        particles: A `jztree_utils.io.Snapshot`, or a sequence of arrays or particle classes.
        wide: Whether to convert the positions of a snapshot to float64.
        optional: Properties of a snapshot that are read if they exist.

    Raises:
        TypeError, ValueError: If ``particles`` is another object, or if the pieces do not match each other.
    """
    if isinstance(particles, io.Snapshot):
        return _OfSnapshot(particles, wide, optional)
    if isinstance(particles, (str, bytes)) or not isinstance(particles, Sequence):
        raise TypeError(
            f"pieces must be a list of arrays (n, d) or particle classes, or a snapshot from "
            f"jztree_utils.io.open_snapshot, not {type(particles).__name__}; friends_of_friends reads each piece twice."
        )
    return _OfArrays(particles)


class _OfSnapshot:
    """The particles of one type in the files of a snapshot."""

    def __init__(self, snapshot: io.Snapshot, wide: bool, optional: Sequence[str]) -> None:
        self.num, self.shared_mass = snapshot.num, snapshot.shared_mass
        names = snapshot.present(("pos",), optional)
        self.columns = {name: snapshot.layout(name) for name in names if name != "mass" or snapshot.shared_mass is None}
        if wide:
            self.columns["pos"] = np.dtype(np.float64), self.columns["pos"][1]
        self.lengths = [snapshot.num]
        # A damaged file may be replaced before the run continues; the steps check the contents that they have read.
        header, files = snapshot.header, [str(path.resolve()) for path in snapshot.paths]
        self.about = [snapshot.ptype, list(header.npart_total), header.time, header.redshift, *files]
        self._snapshot = snapshot

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        rows = self._snapshot.read(name, start, stop, finite=name != "id")
        return np.asarray(rows, self.columns[name][0])

    def rows_by_file(self, start: int, stop: int) -> dict[Path, int]:
        return self._snapshot.rows_by_file(start, stop)

    def row_in_words(self, row: int, of: str = "") -> str:
        return self._snapshot.row_in_words(row)


class _OfArrays:
    """Arrays of positions, or particle classes, one after the other."""

    def __init__(self, pieces: Sequence[Any]) -> None:
        self._pieces = [{"pos": get_pos(piece)} | _properties(piece) for piece in pieces]
        self.lengths = [int(get_num(piece)) for piece in pieces]
        self.num = sum(self.lengths)
        forms: list[Columns] = [
            {name: (np.dtype(column.dtype), column.shape[1:]) for name, column in piece.items() if np.ndim(column)}
            for piece in self._pieces
        ]
        masses = {float(piece["mass"]) for piece in self._pieces if np.ndim(piece.get("mass", np.empty(0))) == 0}
        for number, form in enumerate(forms):
            if form != forms[0] or len(masses) > 1:
                raise ValueError(
                    f"pieces[{number}] has the properties {_in_words(form)}, but pieces[0] has {_in_words(forms[0])}, "
                    f"and the shared masses are {sorted(masses)}; give all pieces the same properties and dtypes."
                )
        self.columns: Columns = forms[0] if forms else {"pos": (np.dtype(np.float32), (3,))}
        self.shared_mass = masses.pop() if masses else None
        self.about = [self.lengths, _in_words(self.columns), self.shared_mass]

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        dtype, shape = self.columns[name]
        rows = np.empty((stop - start, *shape), dtype)
        for number, place, first, last in _overlaps(self.lengths, start, stop):
            rows[place] = self._pieces[number][name][first:last]
        if name != "id" and not np.isfinite(rows).all():
            row = start + int(np.argmin(np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)))
            raise ValueError(f"{name} of row {row} is NaN or infinite; remove such particles.")
        return rows

    def rows_by_file(self, start: int, stop: int) -> dict[Path, int]:
        return {}

    def row_in_words(self, row: int, of: str = "") -> str:
        return f"row {row}{of}"


def attached_types(linked: Pieces, attached: Any) -> list[Pieces]:
    """Return the particles of each attached type.

    Raises:
        TypeError, ValueError: See `pieces_of`. Also if their properties differ from the linked type.
    """
    if isinstance(attached, (str, bytes)) or not isinstance(attached, Sequence):
        raise TypeError(
            f"attached must be a sequence with one entry like pieces for each type, not {type(attached).__name__}."
        )
    types, expected = [pieces_of(particles) for particles in attached], _columns_with_mass(linked)
    for number, particles in enumerate(types):
        columns = _columns_with_mass(particles)
        if columns.keys() != expected.keys() or columns["pos"] != expected["pos"]:
            raise TypeError(
                f"pieces have the properties {_in_words(expected)}, but attached[{number}] has {_in_words(columns)}; "
                "give all types the same properties, and positions of the same dtype."
            )
    return types


def joined_types(types: Sequence[Pieces]) -> Pieces:
    """Return the particles of several types as one input: their common properties, in dtypes for every type."""
    return types[0] if len(types) == 1 else _OfTypes(types)


class _OfTypes:
    """The particles of several types, one type after the other."""

    shared_mass: float | None = None

    def __init__(self, types: Sequence[Pieces]) -> None:
        self._types, self._nums = types, [pieces.num for pieces in types]
        self.num = sum(self._nums)
        self.lengths = [length for pieces in types for length in pieces.lengths]
        self.about = [pieces.about for pieces in types]
        forms = [_columns_with_mass(pieces) for pieces in types]
        common = [name for name in COLUMNS[:-1] if all(name in form for form in forms)]
        self.columns: Columns = {
            name: (np.result_type(*(form[name][0] for form in forms)), forms[0][name][1]) for name in common
        }
        if any("internal_energy" in form for form in forms):
            self.columns["internal_energy"] = self.columns["pos"][0], ()

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        dtype, shape = self.columns[name]
        rows = np.zeros((stop - start, *shape), dtype)  # types without internal energies have 0
        for number, place, first, last in _overlaps(self._nums, start, stop):
            pieces = self._types[number]
            if name in pieces.columns:
                rows[place] = pieces.read(name, first, last)
            elif name == "mass":
                rows[place] = pieces.shared_mass
        return rows

    def rows_by_file(self, start: int, stop: int) -> dict[Path, int]:
        parts = (self._types[number].rows_by_file(*rows) for number, _, *rows in _overlaps(self._nums, start, stop))
        return {path: num for part in parts for path, num in part.items()}

    def row_in_words(self, row: int, of: str = "") -> str:
        ((number, _, first, _),) = _overlaps(self._nums, row, row + 1)
        return self._types[number].row_in_words(first, f" of attached[{number - 1}]" if number else of)


def _columns_with_mass(pieces: Pieces) -> Columns:
    """Return the columns of a type, with one of its shared mass in the dtype of the positions."""
    return pieces.columns if pieces.shared_mass is None else {**pieces.columns, "mass": (pieces.columns["pos"][0], ())}


def _overlaps(lengths: Sequence[int], start: int, stop: int) -> Iterator[tuple[int, slice, int, int]]:
    """Yield each piece with rows from ``start`` to ``stop``: its number, their place among these, and its rows."""
    begin = 0
    for number, length in enumerate(lengths):
        first, last = max(start, begin), min(stop, begin + length)
        if first < last:
            yield number, slice(first - start, last - start), first - begin, last - begin
        begin += length


def _properties(piece: Any) -> dict[str, Any]:
    held = {name: getattr(piece, name, None) for name in COLUMNS[1:]}
    return {name: column for name, column in held.items() if column is not None}


def _in_words(columns: Columns) -> str:
    return ", ".join(f"{name} {dtype}{list(shape) or ''}" for name, (dtype, shape) in sorted(columns.items()))
