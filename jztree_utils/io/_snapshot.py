"""Snapshots of particles in one file or several: a survey of their contents, and reading of any range of rows.

The format is recognised from the contents of the files, unless `ReadOptions` names one. One module per format surveys a
file (its `Survey`); the code that reads rows is the same for all formats.
"""

import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from jztree.data import ParticleData

from ._catalogue import layout_of
from ._columns import FIELDS, Advance, Part, Survey, check_column, read_rows
from ._errors import SnapshotError
from ._files import PathLike, open_hdf5, too_large
from ._files_of_snapshot import all_parts, check_alone, check_no_copies, file_of, kind_of_file
from ._gadget_binary import survey_binary
from ._hdf5_columns import virtual_sources
from ._hdf5_snapshots import is_simulation, survey_simulation
from ._header import SnapshotHeader, fitting_box, unit_name
from ._mass_table import differing_masses, mass_in_table, same_masses
from ._named_datasets import survey_datasets
from ._numpy_files import survey_npy, survey_npz
from ._read_options import ReadOptions

# The file types that each format may have, and their names in messages.
_KINDS = {"gadget": ("hdf5", "binary"), "swift": ("hdf5",), "hdf5": ("hdf5",), "numpy": ("npy", "npz")}
_WORDS = {"hdf5": "an HDF5 file", "npy": "a NumPy file", "npz": "a NumPy archive", "binary": "a binary Gadget file"}
# Groups of result files, and the names of the results in messages.
_RESULTS = {
    "Neighbours": "a file of neighbours",
    "Clusters": "a file of clusters",
    "Correlation": "a correlation function",
    "TreeTable": "a file of merger trees",
}
_BEGINNING = 16  # number of leading identifiers that must differ between files


def find_parts(path: PathLike, options: ReadOptions | None = None) -> list[Path]:
    """Return all files of a snapshot, in order.

    Args:
        path: The only file of a snapshot, any file of a snapshot in several files (``name.0.hdf5``, ``name.1.hdf5``,
            ...), or the folder of one snapshot.
        options: Options for reading, if the format is not recognised.

    Raises:
        SnapshotError: If the files cannot be read, if a file is missing (the message names it), or if a folder holds no
            snapshot or more than one.
    """
    first = file_of(Path(path))
    return _parts_beside(first, Path(path), _survey(first, None, options or ReadOptions()))


def find_sources(path: PathLike, options: ReadOptions | None = None) -> list[Path]:
    """Return the files that a snapshot needs: its own, and the sources of virtual datasets.

    Args:
        path, options: See `find_parts`.

    Raises:
        SnapshotError: See `find_parts`.
    """
    parts = find_parts(path, options)
    result = list(parts)
    if len(parts) == 1 and kind_of_file(parts[0]) == "hdf5":  # a file with virtual datasets has no other parts
        with open_hdf5(parts[0]) as file:
            result += virtual_sources(file)
    return result


def read_header(path: PathLike, options: ReadOptions | None = None) -> SnapshotHeader:
    """Read the header of a snapshot from the file ``path``, or from any file of the snapshot in the folder ``path``.

    Args:
        path, options: See `find_parts`.

    Raises:
        SnapshotError: If the header cannot be read.
    """
    return _survey(file_of(Path(path)), None, options or ReadOptions()).header


def read_snapshot(
    path: PathLike,
    ptype: int = 1,
    fields: Sequence[str] = ("pos", "mass", "vel", "id"),
    optional: Sequence[str] = (),
    options: ReadOptions | None = None,
) -> tuple[ParticleData, SnapshotHeader]:
    """Read particles of one type from a snapshot in one file or several.

    Args:
        path: See `find_parts`; the particles are in the order of the files.
        ptype: The particle type; 1 is dark matter, and also the type in files without types.
        fields: Properties to read; each must exist.
        optional: Properties to read if they exist, otherwise None.
        options: Options for reading, if the format is not recognised.

    Returns:
        The particles as NumPy arrays of ``n`` rows and ``d`` dimensions, and the header. The particles have

        * ``pos``, ``(n, d)`` float32 or float64 like the file, comoving, in the snapshot's unit of length. Integer
          coordinates of Gadget-4 become float64 in [0, L) for a box of length L.
        * ``mass``, a float if only the mass table has it, otherwise ``(n,)`` float32 or float64, in the snapshot's unit
          of mass. A UserWarning gives the number of particle masses that differ from the mass in the table.
        * ``vel``, ``(n, d)`` float32 or float64, *peculiar* velocities in the snapshot's unit of velocity. Gadget
          stores them divided by the square root of the scale factor. The function undoes this with the exponent in an
          attribute of the dataset, or with 1/2 if the attribute is missing. SWIFT stores peculiar velocities. Half
          precision becomes float32.
        * ``id``, ``(n,)`` integers of 32 or 64 bits, signed or unsigned like the file. The package explains why they
          are not JAX arrays.
        * ``num`` and ``num_total``, ``n``.

        Arrays of NumPy files and datasets given by name (format "hdf5") are not converted.

    Raises:
        SnapshotError: If a file is missing, unreadable, truncated or not recognised, if a dataset is missing or has a
            wrong shape or dtype, if its compression needs a missing package, or if the counts in the headers and the
            datasets disagree.
        ValueError: If a property is unknown.
        TypeError: If ``ptype`` is not an integer.
    """
    snapshot = open_snapshot(path, ptype, options)
    columns = {name: snapshot.read(name) for name in snapshot.present(fields, optional)}
    check_fields(columns)
    return ParticleData(**columns, num=snapshot.num, num_total=snapshot.num), snapshot.header


def check_fields(names: Iterable[str]) -> None:
    """Raise ValueError for a property that particle classes do not have."""
    if "internal_energy" in names:
        raise ValueError(
            "Particle classes have no internal energies; read them with open_snapshot(path, 0).read('internal_energy')."
        )


class Snapshot:
    """The particles of one type in a snapshot with consistent files. You can read any range of rows.

    Attributes:
        header: The header of the snapshot.
        ptype: The particle type.
        num: Number of particles of the type in the snapshot; row numbers continue from file to file, in the order of
            ``paths``.
        paths: The files, in order.
    """

    def __init__(self, surveys: list[Survey], paths: list[Path], ptype: int) -> None:
        self.header = surveys[0].header
        self.ptype = ptype
        self.num = self.header.npart_total[ptype]
        self.paths = paths
        self._title = surveys[0].title
        self._parts: list[Part] = [survey.part for survey in surveys if survey.part is not None and survey.part.num > 0]

    def __repr__(self) -> str:
        return f"Snapshot({self.description})"

    @property
    def types(self) -> dict[int, int]:
        """The types that have particles, with the number of particles in the snapshot."""
        return {ptype: num for ptype, num in enumerate(self.header.npart_total) if num > 0}

    @property
    def description(self) -> str:
        """The recognised format, the number of particles, the box and the time, in one line."""
        files = f" in {len(self.paths)} files" if len(self.paths) > 1 else ""
        particles = f"{self.num:,} particle{'s' if self.num > 1 else ''}"
        if self.types != {1: self.num} or "snapshot" in self._title:
            particles += f" of type {self.ptype}"
        return ", ".join([f"{self._title}{files}: {particles}", _box_in_words(self.header), *_epoch(self.header)])

    @property
    def shared_mass(self) -> float | None:
        """The common mass of the particles, or None if they have individual masses.

        Masses of single particles take precedence over the mass table, and `read` warns if they differ from it.

        Raises:
            SnapshotError: If the table holds an invalid mass.
        """
        table = self.header.mass_table
        if "mass" in self._parts[0].columns or self.ptype >= len(table):
            return None
        mass = table[self.ptype]
        if not 0 <= mass < math.inf:
            raise SnapshotError(
                f"The MassTable of {self.paths[0]} has {mass:g} for particles of type {self.ptype}; it must be "
                "positive, or 0 if each particle has its own mass."
            )
        return mass or None

    def present(self, fields: Sequence[str], optional: Sequence[str]) -> list[str]:
        """Return the properties to read, positions first.

        Args:
            fields: Required properties.
            optional: Properties that are included if they exist.

        Raises:
            ValueError: If a property is unknown.
            TypeError: If an argument is a string instead of a sequence of names.
        """
        for names in (fields, optional):
            if isinstance(names, str):
                raise TypeError(f"The properties to read are {names!r}; give a list of names, such as {[names]}.")
        required = list(dict.fromkeys(["pos", *fields, *optional]))
        for name in required:
            if name not in FIELDS:
                raise ValueError(f"{name!r} is not a property of particles; use {', '.join(FIELDS)}.")
        return [name for name in required if name in ("pos", *fields) or self._has(name)]

    def _has(self, name: str) -> bool:
        return name in self._parts[0].columns or (name == "mass" and self.shared_mass is not None)

    def layout(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """Return the dtype of a property after reading, and its shape without the row axis.

        Raises:
            SnapshotError: If a file lacks the property, or has it in an unreadable form, or in another form than the
                first file.
        """
        columns = [check_column(part, name) for part in self._parts]
        one = columns[0]
        for part, column in zip(self._parts, columns, strict=True):
            if (column.dtype, column.shape[1:]) != (one.dtype, one.shape[1:]):
                raise SnapshotError(
                    f"{column.name} is {column.stored} of shape {column.shape} in {part.path}, but {one.stored} of "
                    f"shape {one.shape} in {self._parts[0].path}; write the parts in the same form."
                )
        return one.dtype, one.shape[1:]

    def rows_by_file(self, start: int, stop: int) -> dict[Path, int]:
        """Return the files that have rows from ``start`` to ``stop``, with the number of these rows."""
        ends = np.cumsum([part.num for part in self._parts]).tolist()
        pairs = zip(self._parts, ends, strict=True)
        numbers = {part.path: min(end, stop) - max(end - part.num, start) for part, end in pairs}
        return {path: number for path, number in numbers.items() if number > 0}

    def row_in_words(self, row: int, of: str = "") -> str:
        """Describe a row for the user: its type, and its file if there are several.

        Args:
            row: Number of the row in the snapshot.
            of: The quantity that the row belongs to, such as " of the positions".
        """
        words = f"row {row}{of} of type {self.ptype}"
        for part in self._parts if len(self.paths) > 1 else []:
            if row < part.num:
                return f"{words} (row {row} in {part.path.name})"
            row -= part.num
        return words

    def read(
        self,
        name: str,
        start: int = 0,
        stop: int | None = None,
        advance: Advance | None = None,
        *,
        finite: bool = False,
    ) -> Any:
        """Read a property like `read_snapshot`, but only some rows.

        Only files with such rows are opened, and they are read in slices: apart from the result, the function needs a
        few 10 MB, independent of the number of rows.

        Args:
            name: Name of the property; also "internal_energy" of gas, per mass and physical, in the square of the unit
                of velocity.
            start: The first row.
            stop: The row after the last one; None means the end.
            advance: Called regularly with the number of rows read since the last call.
            finite: Raise SnapshotError for NaN, infinite numbers and negative internal energies, with file and row.

        Raises:
            SnapshotError: See `read_snapshot`.
            ValueError: If a row does not exist.
        """
        stop = self.num if stop is None else stop
        if not 0 <= start <= stop <= self.num:
            raise ValueError(f"start is {start} and stop {stop}; they must be ascending, from 0 to {self.num}.")
        if name == "mass" and self.shared_mass is not None:
            return self.shared_mass
        dtype, shape = self.layout(name)
        try:
            column = np.empty((stop - start, *shape), dtype)
        except MemoryError:
            raise too_large(self.paths[0], (stop - start) * math.prod(shape) * dtype.itemsize) from None
        first = 0
        for part in self._parts:
            begin, end = max(start, first), min(stop, first + part.num)
            if begin < end:
                out = column[begin - start : end - start]
                read_rows(part, name, slice(begin - first, end - first), out, advance, self.ptype if finite else None)
            first += part.num
        if name == "id":
            self._check_not_twice(column, start)
        if name == "mass":
            self._warn_of_table(column)
        return column

    def _warn_of_table(self, masses: np.ndarray) -> None:
        """Warn if masses of single particles differ from the mass in the mass table, if both exist."""
        table = mass_in_table(self.header, self.ptype)
        if table is not None:
            low, high = same_masses(table)
            if num := np.count_nonzero((masses < low) | (masses > high)):
                sentence = differing_masses(self.paths[0], self.ptype, table, int(num))
                warnings.warn(sentence, UserWarning, stacklevel=3)

    def _check_not_twice(self, ids: np.ndarray, start: int) -> None:
        """Raise SnapshotError if two files begin with the same identifiers, such as a file and its copy.

        Args:
            ids: Identifiers of the rows from ``start`` on. Files without meaningful identifiers store zeros; these are
                ignored.
            start: The first row.
        """
        beginnings: dict[bytes, Part] = {}
        first = -start
        for part in self._parts:
            beginning = ids[first : first + _BEGINNING] if first >= 0 else ids[:0]
            first += part.num
            if len(beginning) < min(_BEGINNING, part.num) or (beginning[:1] == beginning[1:2]).all():
                continue
            duplicate = beginnings.setdefault(beginning.tobytes(), part)
            if duplicate is not part:
                raise SnapshotError(
                    f"{duplicate.path} and {part.path} hold the same particles, starting with identifier "
                    f"{beginning[0]}; give each part of the snapshot once."
                )


def open_snapshot(path: PathLike, ptype: int = 1, options: ReadOptions | None = None) -> Snapshot:
    """Open the particles of one type in a snapshot and read only headers. Each file is opened once.

    Args:
        path, ptype, options: See `read_snapshot`.

    Raises:
        SnapshotError, TypeError: See `read_snapshot`.
    """
    ptype = _checked_type(ptype)
    options = options or ReadOptions()
    first = file_of(Path(path))
    survey = _survey(first, ptype, options)
    paths = _parts_beside(first, Path(path), survey)
    surveys = [survey if part == first else _survey(part, ptype, options) for part in paths]
    _check_counts(paths, surveys, ptype)
    # Files without particles may be identical.
    check_no_copies([path for path, one in zip(paths, surveys, strict=True) if any(one.here)])
    return Snapshot(surveys, paths, ptype)


def _checked_type(ptype: Any) -> int:
    """Return a particle type as an int. Raises TypeError if it is not an integer; its range depends on the file."""
    if isinstance(ptype, bool) or not isinstance(ptype, (int, np.integer)):
        raise TypeError(
            f"ptype is {ptype!r}; it must be the number of one particle type, such as 0 for gas or 1 for dark matter."
        )
    return int(ptype)


def _survey(path: Path, ptype: int | None, options: ReadOptions) -> Survey:
    """Survey a file, in its recognised format or in the given one."""
    survey = _survey_as_told(path, ptype, options)
    pos = None if survey.part is None else survey.part.columns.get("pos")
    ndim = pos.shape[1] if pos is not None and len(pos.shape) == 2 else None
    return survey._replace(header=replace(survey.header, boxsize=fitting_box(survey.header.boxsize, ndim, str(path))))


def _survey_as_told(path: Path, ptype: int | None, options: ReadOptions) -> Survey:
    """Survey a file, with the lengths of the box as stored."""
    kind = kind_of_file(path)
    if kind is None:
        if not path.stat().st_size:
            raise SnapshotError(f"{path} is empty; copy or write it again.")
        raise SnapshotError(
            f"{path} is not an HDF5 file, a NumPy file or a binary Gadget snapshot; give a file in a known format."
        )
    if options.format is not None and kind not in _KINDS[options.format]:
        needed = " or ".join(_WORDS[kind] for kind in _KINDS[options.format])
        raise SnapshotError(
            f"{path} is {_WORDS[kind]}, but the format {options.format!r} needs {needed}; give another format."
        )
    if kind == "binary":
        return survey_binary(path, ptype, options)
    if kind != "hdf5":
        return (survey_npy if kind == "npy" else survey_npz)(path, options)
    with open_hdf5(path) as file:
        if options.format is None and options.pos is None:
            _check_no_result(file)
        by_name = options.format == "hdf5" or (options.format is None and not is_simulation(file))
        return (survey_datasets if by_name else survey_simulation)(file, ptype, options)


def _check_no_result(file: h5py.File) -> None:
    """Raise SnapshotError if an open file is a result of the command line, which also has a snapshot header."""
    names = [name for name in _RESULTS if name in file]
    kind = "a catalogue of groups" if layout_of(file) else _RESULTS[names[0]] if names else None
    if kind is not None:
        raise SnapshotError(f"{file.filename} is {kind}, not a snapshot; give the snapshot that it was made from.")


def _parts_beside(first: Path, given: Path, survey: Survey) -> list[Path]:
    if survey.header.num_files <= 1 and given != first:
        check_alone(first, given)
    return all_parts(first, survey.header.num_files)


def _check_counts(paths: list[Path], surveys: list[Survey], ptype: int) -> None:
    """Raise SnapshotError unless the counts of the files are consistent."""
    header = surveys[0].header
    for path, survey in zip(paths, surveys, strict=True):
        other = survey.header
        if (other.npart_total, other.num_files) != (header.npart_total, header.num_files):
            raise SnapshotError(
                f"{path} and {paths[0]} belong to different snapshots, because their headers count "
                f"{sum(other.npart_total)} and {sum(header.npart_total)} particles; give the files of one snapshot."
            )
        for name in ("time", "redshift", "boxsize"):
            if getattr(other, name) != getattr(header, name):
                raise SnapshotError(
                    f"{path} and {paths[0]} belong to different snapshots, because the {name} is "
                    f"{getattr(other, name)} "
                    f"in one and {getattr(header, name)} in the other; give the files of one snapshot."
                )
    if not any(header.npart_total):
        _check_positions(surveys[0].part)
    if not 0 <= ptype < len(header.npart_total) or header.npart_total[ptype] == 0:
        held = ", ".join(f"{n} of type {t}" for t, n in enumerate(header.npart_total) if n) or "none"
        raise SnapshotError(f"{paths[0]} holds no particles of type {ptype}; it holds {held}.")
    num = sum(survey.here[ptype] for survey in surveys if ptype < len(survey.here))
    if num != header.npart_total[ptype]:
        raise SnapshotError(
            f"The files of the snapshot {paths[0]} hold {num} particles of type {ptype}, but the header counts "
            f"{header.npart_total[ptype]}; copy the snapshot again."
        )


def _check_positions(part: Part | None) -> None:
    """Raise SnapshotError for positions without rows. Only files without a header have positions but no particles."""
    if part is not None and part.columns:
        pos = check_column(part, "pos")
        raise SnapshotError(f"{part.path} holds {pos.name} of shape {pos.shape}; it must have at least one row.")


def _box_in_words(header: SnapshotHeader) -> str:
    sides = header.boxsize if isinstance(header.boxsize, tuple) else (header.boxsize,)
    if not any(sides):
        return "no box"
    return " ".join(["box", " x ".join(f"{side:.6g}" for side in sides), unit_name(header, "length")]).rstrip()


def _epoch(header: SnapshotHeader) -> list[str]:
    """Describe the redshift, or the time of a run that is not cosmological; empty if the file has neither."""
    if header.comoving is False:
        return [f"time {header.time:.6g}"]
    known = header.comoving or header.omega0 is not None or header.redshift != 0
    return [f"z = {header.redshift:.4g}"] if known else []
