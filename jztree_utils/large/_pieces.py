"""Particles in pieces: any range of rows of each property, from arrays or from the files of a snapshot."""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
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
        self._ends = np.cumsum(self.lengths)

    def read(self, name: str, start: int, stop: int) -> np.ndarray:
        dtype, shape = self.columns[name]
        rows = np.empty((stop - start, *shape), dtype)
        for piece, end, length in zip(self._pieces, self._ends, self.lengths, strict=True):
            begin, first, last = end - length, max(start, end - length), min(stop, end)
            if first < last:
                rows[first - start : last - start] = piece[name][first - begin : last - begin]
        if name != "id" and not np.isfinite(rows).all():
            row = start + int(np.argmin(np.isfinite(rows.reshape(len(rows), -1)).all(axis=1)))
            raise ValueError(f"{name} of row {row} is NaN or infinite; remove such particles.")
        return rows

    def rows_by_file(self, start: int, stop: int) -> dict[Path, int]:
        return {}


def _properties(piece: Any) -> dict[str, Any]:
    held = {name: getattr(piece, name, None) for name in COLUMNS[1:]}
    return {name: column for name, column in held.items() if column is not None}


def _in_words(columns: Columns) -> str:
    return ", ".join(f"{name} {dtype}{list(shape) or ''}" for name, (dtype, shape) in sorted(columns.items()))
