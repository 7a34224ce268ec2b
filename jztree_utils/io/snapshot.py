"""Snapshots of Gadget-4 and AREPO in HDF5, in one file or several: reading, and writing in the same format.

The format: https://wwwmpa.mpa-garching.mpg.de/gadget4/06_snapshotformat (Springel et al. 2021, MNRAS 506, 2871).
Also read are Gadget-2/3 snapshots in HDF5, and those of SWIFT as far as their layout is the same.
"""

import os
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from jztree.data import ParticleData, get_num

from ._files import PathLike, SnapshotError, attribute, create_hdf5, get_dataset, list_folder, open_hdf5
from .header import SnapshotHeader, header_attributes, parse_header, unit_attributes

_PART_NAME = re.compile(r"(?P<base>.+)\.(?P<part>\d+)(?P<suffix>\.(hdf5|h5))", re.IGNORECASE)
_SUFFIXES = (".hdf5", ".h5")


class _Field(NamedTuple):
    """A property of the particles: its dataset, the kind of its numbers (as in `numpy.dtype.kind`), its unit."""

    dataset: str
    kinds: str
    kind_in_words: str
    vector: bool
    unit: str


_FIELDS = {
    "pos": _Field("Coordinates", "f", "float32 or float64", True, "length"),
    "mass": _Field("Masses", "f", "float32 or float64", False, "mass"),
    "vel": _Field("Velocities", "f", "float32 or float64", True, "velocity/sqrt(a)"),
    "id": _Field("ParticleIDs", "iu", "integers", False, "1"),
}


class _Part(NamedTuple):
    """One file of a snapshot, and how many particles of the chosen type it says it holds."""

    path: Path
    num: int


def find_parts(path: PathLike) -> list[Path]:
    """All files of a snapshot, in their order.

    path: the only file of a snapshot, any file of a snapshot in several (``name.0.hdf5``, ``name.1.hdf5``, ...), or the
        folder of one snapshot.
    Raises SnapshotError if the files cannot be read, one is missing (its name is told), or a folder holds no snapshot
    or more than one.
    """
    first = Path(path)
    if os.path.isdir(first):
        first = _any_part(first)
    header = _parse(first)[0]
    if header.num_files <= 1:
        return [first]
    match = _PART_NAME.fullmatch(first.name)
    if match is None:
        raise SnapshotError(
            f"{first} is one of {header.num_files} files by its header, but its name does not end in a part number "
            f"such as .0.hdf5; give the parts their original names."
        )
    found = _numbered_files(first, match)
    missing = [number for number in range(header.num_files) if number not in found]
    if missing:
        name = first.with_name(f"{match['base']}.{missing[0]}{match['suffix']}")
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise SnapshotError(
            f"Part {missing[0]} of the {header.num_files} of this snapshot is missing{more}; put {name} beside them."
        )
    return [found[number] for number in range(header.num_files)]


def _any_part(folder: Path) -> Path:
    """A file of the only snapshot in ``folder``."""
    files = [file for file in list_folder(folder) if file.suffix.lower() in _SUFFIXES]
    if not files:
        raise SnapshotError(f"The folder {folder} holds no .hdf5 or .h5 file; give a snapshot or the folder of one.")
    matches = [_PART_NAME.fullmatch(file.name) for file in files]
    names = sorted({match["base"] if match else file.name for file, match in zip(files, matches, strict=True)})
    if len(names) > 1:
        listed = ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
        raise SnapshotError(
            f"The folder {folder} holds more than one snapshot ({listed}); give a file of the one you want."
        )
    if len(files) > 1 and _parse(files[0])[0].num_files == 1:
        raise SnapshotError(
            f"The folder {folder} holds {len(files)} files, but {files[0].name} says it is a whole snapshot."
        )
    return files[0]


def _numbered_files(one: Path, match: re.Match[str]) -> dict[int, Path]:
    """The files beside ``one`` whose names differ from its name in the part number only, by that number."""
    found = {}
    for file in list_folder(one.parent):
        other = _PART_NAME.fullmatch(file.name)
        if other and (other["base"], other["suffix"]) == (match["base"], match["suffix"]):
            found[int(other["part"])] = file
    return found


def _parse(path: Path) -> tuple[SnapshotHeader, tuple[int, ...]]:
    with open_hdf5(path) as file:
        return parse_header(file)


def read_header(path: PathLike) -> SnapshotHeader:
    """The header of a snapshot: of the file ``path``, or of any file of the snapshot in the folder ``path``.

    Raises SnapshotError if it cannot be read.
    """
    file = Path(path)
    return _parse(_any_part(file) if os.path.isdir(file) else file)[0]


def read_snapshot(
    path: PathLike,
    ptype: int = 1,
    fields: Sequence[str] = ("pos", "mass", "vel", "id"),
    optional: Sequence[str] = (),
) -> tuple[ParticleData, SnapshotHeader]:
    """Particles of one type from a snapshot in one file or several.

    path: as in `find_parts`; all files are read, one after the other, and their particles joined in that order.
    ptype: the particle type; 1 is dark matter.
    fields: properties to read; each must be there.
    optional: properties to read that may be missing and are None then.

    Returns the particles as NumPy arrays of ``n`` rows and ``d`` dimensions, and the header:
    pos: ``(n, d)`` float32 or float64 as in the file, comoving, in the snapshot's unit of length.
    mass: a float if the type has an entry in the mass table, else ``(n,)`` float32 or float64.
    vel: ``(n, d)`` float32 or float64, *peculiar* velocities. Gadget stores them divided by the root of the scale
        factor and this is undone here, by the exponent in the dataset's attribute ``a_scaling`` if it has it, else 1/2.
    id: ``(n,)`` integers of 32 or 64 bits, signed or not, as in the file. See the package on why they are not in JAX.
    num, num_total: ``n``.

    Raises SnapshotError if a file is missing, unreadable, truncated or not HDF5, a dataset is missing or has a wrong
    shape or dtype, or the counts in the headers and the datasets disagree; ValueError for an unknown property.
    """
    snapshot = open_snapshot(path, ptype)
    columns = {name: snapshot.read(name) for name in snapshot.present(fields, optional)}
    return ParticleData(**columns, num=snapshot.num, num_total=snapshot.num), snapshot.header


class Snapshot:
    """The particles of one type in a snapshot whose files have been found to agree; any range of rows can be read.

    header: the header of the snapshot.
    num: particles of the type in all files together; rows are numbered through the files, in their order.
    """

    def __init__(self, header: SnapshotHeader, parts: list[_Part], ptype: int) -> None:
        self.header = header
        self.num = header.npart_total[ptype]
        self._parts = [part for part in parts if part.num > 0]
        self._ptype = ptype
        self._layouts: dict[str, tuple[np.dtype, tuple[int, ...]]] = {}

    def present(self, fields: Sequence[str], optional: Sequence[str]) -> list[str]:
        """The properties to read, positions first: all of ``fields``, and those of ``optional`` that are there.

        Raises ValueError for an unknown property.
        """
        wanted = list(dict.fromkeys(["pos", *fields, *optional]))
        for name in wanted:
            if name not in _FIELDS:
                raise ValueError(f"Particles have no property {name!r} to read; there are {', '.join(_FIELDS)}.")
        return [name for name in wanted if name in ("pos", *fields) or self._has(name)]

    @property
    def shared_mass(self) -> float | None:
        """The mass of every particle if the mass table tells it, else None."""
        table = self.header.mass_table
        return table[self._ptype] if self._ptype < len(table) and table[self._ptype] > 0 else None

    def read(self, name: str, start: int = 0, stop: int | None = None) -> Any:
        """A property as `read_snapshot` gives it, of the rows from ``start`` to ``stop`` (None is the end) only.

        Only files that hold such rows are opened, apart from the first, which tells dtype and dimensions.
        Raises SnapshotError as `read_snapshot` does.
        """
        if name == "mass" and self.shared_mass is not None:
            return self.shared_mass
        stop = self.num if stop is None else stop
        dtype, shape = self.layout(name)
        column = np.empty((stop - start, *shape), dtype)
        first = 0
        for part in self._parts:
            begin, end = max(start, first), min(stop, first + part.num)
            if begin < end:
                self._read_part(part, name, slice(begin - first, end - first), column[begin - start : end - start])
            first += part.num
        return column

    def _dataset(self, name: str) -> str:
        return f"PartType{self._ptype}/{_FIELDS[name].dataset}"

    def _has(self, name: str) -> bool:
        if name == "mass" and self.shared_mass is not None:
            return True
        with open_hdf5(self._parts[0].path) as file:
            return self._dataset(name) in file

    def layout(self, name: str) -> tuple[np.dtype, tuple[int, ...]]:
        """The dtype of a property, in the byte order of this machine, and its shape without rows: by the first file."""
        if name not in self._layouts:
            with open_hdf5(self._parts[0].path) as file:
                data = get_dataset(file, self._dataset(name))
                _check_dataset(data, self._parts[0], _FIELDS[name])
                self._layouts[name] = data.dtype.newbyteorder("="), data.shape[1:]
        return self._layouts[name]

    def _read_part(self, part: _Part, name: str, rows: slice, out: np.ndarray) -> None:
        with open_hdf5(part.path) as file:
            data = get_dataset(file, self._dataset(name))
            _check_dataset(data, part, _FIELDS[name])
            if out.shape[1:] != data.shape[1:] or out.dtype != data.dtype.newbyteorder("="):
                raise SnapshotError(
                    f"{part.path} holds {self._dataset(name)} as {data.dtype} of shape {data.shape}, "
                    f"{self._parts[0].path} as {out.dtype} with {out.shape[1:]} components; write the parts alike."
                )
            data.read_direct(out, rows)
            if name == "vel":
                _make_peculiar(out, data, self.header)


def open_snapshot(path: PathLike, ptype: int = 1) -> Snapshot:
    """The particles of one type in a snapshot, of which nothing but headers has been read. Raises like `read_snapshot`.

    path, ptype: as in `read_snapshot`.
    """
    return Snapshot(*_check_counts(find_parts(path), ptype), ptype)


def _check_counts(paths: list[Path], ptype: int) -> tuple[SnapshotHeader, list[_Part]]:
    """The header of the snapshot and the counts of its parts, once they agree with each other."""
    parsed = [_parse(path) for path in paths]
    header = parsed[0][0]
    for path, (other, _) in zip(paths, parsed, strict=True):
        if (other.npart_total, other.num_files) != (header.npart_total, header.num_files):
            raise SnapshotError(
                f"{path} and {paths[0]} are not of the same snapshot: their headers count {sum(other.npart_total)} and "
                f"{sum(header.npart_total)} particles in all; put together the files of one snapshot."
            )
    if not 0 <= ptype < len(header.npart_total) or header.npart_total[ptype] == 0:
        held = ", ".join(f"{n} of type {t}" for t, n in enumerate(header.npart_total) if n) or "none at all"
        raise SnapshotError(f"{paths[0]} holds no particles of type {ptype}; it holds {held}.")
    parts = [
        _Part(path, here[ptype] if ptype < len(here) else 0) for path, (_, here) in zip(paths, parsed, strict=True)
    ]
    if sum(part.num for part in parts) != header.npart_total[ptype]:
        raise SnapshotError(
            f"The files of the snapshot {paths[0]} hold {sum(part.num for part in parts)} particles of type {ptype} "
            f"but the header counts {header.npart_total[ptype]}; copy the snapshot again."
        )
    return header, parts


def _check_dataset(data: h5py.Dataset, part: _Part, field: _Field) -> None:
    """Raise SnapshotError unless shape and dtype of a dataset are what its field and the header promise."""
    where = f"{part.path} holds {data.name.lstrip('/')}"
    if data.dtype.kind not in field.kinds or data.dtype.itemsize not in (4, 8):
        raise SnapshotError(f"{where} of dtype {data.dtype}; it must be {field.kind_in_words}.")
    if data.ndim != 1 + field.vector or (field.vector and not 1 <= data.shape[1] <= 8):
        shape = "(n, d) with d from 1 to 8" if field.vector else "(n,)"
        raise SnapshotError(f"{where} of shape {data.shape}; it must be {shape}, a row a particle.")
    if data.shape[0] != part.num:
        raise SnapshotError(f"{where} for {data.shape[0]} particles, but its header counts {part.num}; copy it again.")


def _make_peculiar(vel: np.ndarray, data: h5py.Dataset, header: SnapshotHeader) -> None:
    """Turn velocities as stored into peculiar ones, in place."""
    exponent = attribute(data, "a_scaling")
    if exponent is None:
        exponent = attribute(data, "a-scale exponent")  # the name that SWIFT uses
    power = 0.5 if exponent is None else float(np.ravel(exponent)[0])
    factor = header.scale_factor**power
    if factor != 1.0:
        vel *= vel.dtype.type(factor)


def write_snapshot(path: PathLike, part: Any, header: SnapshotHeader | None = None, ptype: int = 1) -> None:
    """Write particles as a snapshot in one file, in the format of Gadget-4, with the units of each dataset.

    path: the file to write; an existing one is replaced once the new one is complete.
    part: a particle class with ``pos`` of shape ``(n, d)`` and, where it has them, ``mass`` (``(n,)`` or a scalar),
        ``vel`` (``(n, d)``, peculiar; stored as Gadget does, divided by the root of the scale factor) and ``id``
        (``(n,)``). Padding is left out. JAX or NumPy arrays.
    header: box, time, cosmology and units; its counts and mass table are replaced. None is an open box, no units.
    ptype: the particle type to store them as, 0 to 5.

    `read_snapshot` gives back the same numbers, to the last bit but for velocities where the scale factor is not 1.
    Raises OutputError if the file cannot be written, ValueError for a wrong shape or type.
    """
    if not 0 <= ptype <= 5:
        raise ValueError(f"ptype is a particle type of Gadget, from 0 to 5; {ptype} was given.")
    columns, num, mass = _columns(part)
    counts = tuple(num if t == ptype else 0 for t in range(6))
    masses = tuple((mass or 0.0) if t == ptype else 0.0 for t in range(6))
    header = replace(header or SnapshotHeader(), num_files=1, npart_total=counts, mass_table=masses)
    with create_hdf5(path) as file:
        attributes = file.create_group("Header").attrs
        attributes.update(header_attributes(header))
        attributes["NumPart_ThisFile"] = np.asarray(counts, np.uint64)
        group = file.create_group(f"PartType{ptype}")
        for name, column in columns.items():
            if name == "vel" and header.scale_factor != 1:
                column = column * column.dtype.type(header.scale_factor**-0.5)
            data = group.create_dataset(_FIELDS[name].dataset, data=column)
            data.attrs.update(unit_attributes(header, _FIELDS[name].unit))


def _columns(part: Any) -> tuple[dict[str, np.ndarray], int, float | None]:
    """The rows to write of each property, their number, and the mass that all particles share, if they do."""
    num = int(get_num(part))
    shape = np.shape(part.pos)
    columns: dict[str, np.ndarray] = {}
    mass = None
    for name, field in _FIELDS.items():
        value = getattr(part, name, None)
        if value is None:
            continue
        if name == "mass" and np.ndim(value) == 0:
            mass = float(value)
            continue
        column = np.asarray(value)
        if column.dtype.kind not in field.kinds or column.shape != (shape if field.vector else shape[:1]):
            raise ValueError(
                f"The particles have {name} of shape {column.shape} and dtype {column.dtype}; with positions of shape "
                f"{shape} it must be {field.kind_in_words} of shape {shape if field.vector else shape[:1]}."
            )
        columns[name] = column[:num]
    if len(shape) != 2:
        raise ValueError(f"The positions have shape {shape}; it must be (n, d), a row a particle.")
    if mass is not None and not mass > 0:  # zero in the mass table means that every particle has its own
        columns["mass"], mass = np.full(num, mass), None
    return columns, num, mass
