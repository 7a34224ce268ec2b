"""What a catalogue file holds, whatever its layout: groups, more columns, particles by type, how it was made."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from jztree.data import FofCatalogue, squeeze_catalogue
from jztree.halos import DEFINITIONS

from ._attributes import text_attribute
from ._files import SnapshotError, get_dataset, get_group, open_hdf5
from ._hdf5 import read_all
from .header import SnapshotHeader, unit_attributes, unit_powers

NUM_TYPES = 6
NUMBERS = "iufb"  # the kinds of dtypes that columns may have
_MADE = "FriendsOfFriends"
_COLUMNS = tuple(f.name for f in dataclasses.fields(FofCatalogue) if f.name != "ngroups")


@dataclass(frozen=True, kw_only=True)
class CatalogueInfo:
    """How a catalogue was made; None is what is not known.

    linking_length: in the unit of length of the particles.
    npart_min: the fewest particles of a group in the catalogue.
    num_particles: particles that were grouped, members and others.
    ptype: their type in the snapshot.
    source: name of the snapshot.
    header: header of the snapshot: box, cosmology, units.
    made_with: the options of the call that made it, as the command line writes them.
    """

    linking_length: float | None = None
    npart_min: int | None = None
    num_particles: int | None = None
    ptype: int | None = None
    source: str | None = None
    header: SnapshotHeader | None = None
    made_with: str | None = None


@dataclass(frozen=True)
class Column:
    """A property of groups.

    values: ``(g, ...)``, a row a group.
    kind: what the unit follows from: "length", "mass", "velocity", "1" and others, see `header.unit_attributes`.
    definition: what it is, in words.
    """

    values: Any
    kind: str
    definition: str


@dataclass(frozen=True)
class TypeTable:
    """Particles of each type in each group.

    count: ``(g, 6)`` int64. A row sums to the particles of the group.
    mass: ``(g, 6)`` float64, zero if the particles have no mass.
    """

    count: np.ndarray
    mass: np.ndarray


@dataclass(frozen=True, kw_only=True)
class CatalogueContent:
    """All that a catalogue file holds, of ``g`` groups; NumPy arrays.

    catalogue: the groups, without padding. A column that the file does not hold is None.
    ids: ``(m,)`` identifiers of the members, in the order that ``offset`` refers to, or None.
    info: how the catalogue was made.
    extra: further columns by name.
    by_type: particles of each type, or None if all are of one.
    """

    catalogue: FofCatalogue
    ids: np.ndarray | None = None
    info: CatalogueInfo = CatalogueInfo()
    extra: Mapping[str, Column] = field(default_factory=dict)
    by_type: TypeTable | None = None

    @property
    def header(self) -> SnapshotHeader:
        """Of the snapshot; an empty one if it is not known."""
        return self.info.header or SnapshotHeader()

    @property
    def ndim(self) -> int:
        """Dimensions of the positions."""
        return int(np.shape(self.catalogue.com_pos)[1])


def catalogue_columns(cata: FofCatalogue, extra: Mapping[str, Column] | None = None) -> dict[str, Column]:
    """All columns of a catalogue by name, in the order in which they are written.

    cata: the catalogue; its unused rows are left out, and so are columns that are None.
    extra: further columns, of the groups in use.
    Raises ValueError for an extra column that has another length, holds no numbers, or has a name that it cannot have.
    """
    cata = squeeze_catalogue(cata)
    held = {name: getattr(cata, name) for name in _COLUMNS}
    columns = {name: _own_column(name, values) for name, values in held.items() if values is not None}
    for name, column in (extra or {}).items():
        if name in _COLUMNS or "/" in name or not name.strip("."):
            raise ValueError(f"An extra column is called {name!r}, which is taken or no name; call it otherwise.")
        columns[name] = replace(column, values=_checked(name, np.asarray(column.values), int(cata.ngroups)))
    return columns


def _checked(name: str, values: np.ndarray, ngroups: int) -> np.ndarray:
    """``values`` if they are numbers with a row a group. Raises ValueError if not."""
    if values.ndim == 0 or len(values) != ngroups:
        raise ValueError(
            f"The extra column {name} has shape {values.shape}, but the catalogue has {ngroups} groups; give a row a "
            "group."
        )
    if values.dtype.kind not in NUMBERS:
        raise ValueError(f"The extra column {name} is of dtype {values.dtype}; give numbers.")
    return values


def _own_column(name: str, values: Any) -> Column:
    """A column of every catalogue, with its definition and where that is from."""
    kind, words, source = DEFINITIONS[name]
    return Column(np.asarray(values), kind, f"{words} ({source})" if source else words)


def column_kinds() -> dict[str, str]:
    """The kind of each column of `FofCatalogue`, by name."""
    return {name: DEFINITIONS[name].kind for name in _COLUMNS}


def build_content(
    columns: Mapping[str, Column], ids: np.ndarray | None, info: CatalogueInfo, by_type: TypeTable | None
) -> CatalogueContent:
    """What was read, from all its columns; ``offset`` is counted if there is none."""
    held: dict[str, Any] = {name: columns[name].values if name in columns else None for name in _COLUMNS}
    if held["offset"] is None:
        held["offset"] = first_rows(held["count"])
    catalogue = FofCatalogue(ngroups=len(held["count"]), **held)
    extra = {name: column for name, column in columns.items() if name not in _COLUMNS}
    return CatalogueContent(catalogue=catalogue, ids=ids, info=info, extra=extra, by_type=by_type)


def check_columns(path: Path, columns: Mapping[str, Column]) -> None:
    """Raise SnapshotError unless what was read from ``path`` counts particles and has centres."""
    for name, kinds, ndim, words in (("count", "iu", 1, "integers (g,)"), ("com_pos", "f", 2, "floats (g, d)")):
        values = columns[name].values if name in columns else np.zeros(0)
        if values.dtype.kind not in kinds or values.ndim != ndim:
            held = f"it has {values.dtype} {values.shape}" if name in columns else "it has none"
            raise SnapshotError(f"{path} is not a catalogue: as {name} it needs {words}, but {held}; write it again.")


def first_rows(count: np.ndarray) -> np.ndarray:
    """The row of each group's first particle if groups follow each other: int32, or int64 where that is too small."""
    rows = np.cumsum(count, dtype=np.int64) - count
    return rows.astype(fitting_integer(rows))


def fitting_integer(values: np.ndarray) -> type[np.signedinteger]:
    """int32, or int64 if that is too small for one of ``values``."""
    return np.int32 if np.max(values, initial=0) <= np.iinfo(np.int32).max else np.int64


def member_rows(count: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """The rows of the members of all groups, group after group. count, offset: ``(g,)`` int64."""
    return np.repeat(offset - (np.cumsum(count) - count), count) + np.arange(count.sum())


def convert_h(content: CatalogueContent, h_free: bool) -> CatalogueContent:
    """``content`` in units that are free of h, or in those per h; values keep their precision.

    Gadget's cosmological runs have units such as Mpc/h, SWIFT's are free of h. Other runs are left as they are.
    Raises ValueError if that needs h and the header does not tell it.
    """
    header = content.header
    if header.h_free == h_free or header.comoving is False:
        return content
    if header.hubble is None and header.comoving:
        raise ValueError(
            "Units per h and free of h are to be converted, but the header does not tell h (HubbleParam); give a "
            "header with hubble, or choose the native layout."
        )
    other = replace(header, h_free=h_free)

    def convert(kind: str, values: Any) -> Any:
        # The one of both with a power of h is the unit per h, and physical values are v h**power in it.
        power = unit_powers(header, kind, content.ndim)[1] - unit_powers(other, kind, content.ndim)[1]
        array = np.asarray(values)
        return (array * (header.hubble or 1.0) ** power).astype(array.dtype) if power else array

    columns = catalogue_columns(content.catalogue, content.extra)
    converted = {name: replace(column, values=convert(column.kind, column.values)) for name, column in columns.items()}
    by_type = content.by_type and replace(content.by_type, mass=convert("mass", content.by_type.mass))
    length = content.info.linking_length
    info = replace(
        content.info,
        linking_length=None if length is None else float(convert("length", np.float64(length))),
        header=replace(
            other,
            boxsize=_box(convert("length", np.asarray(header.boxsize, np.float64))),
            mass_table=tuple(map(float, convert("mass", np.asarray(header.mass_table, np.float64)))),
        ),
    )
    return build_content(converted, content.ids, info, by_type)


def _box(lengths: np.ndarray) -> float | tuple[float, ...]:
    return float(lengths) if lengths.ndim == 0 else tuple(map(float, lengths))


def write_column(group: h5py.Group, name: str, column: Column, header: SnapshotHeader, ndim: int = 3) -> None:
    """Write a column with its unit, its kind and its definition as attributes."""
    data = group.create_dataset(name, data=np.asarray(column.values))
    data.attrs.update(unit_attributes(header, column.kind, ndim))
    data.attrs.update({"kind": column.kind, "description": column.definition})


def read_columns(paths: Sequence[Path], group: str, kinds: Mapping[str, str]) -> dict[str, Column]:
    """The columns of a catalogue in one file or several, under the names they have in the files.

    group: that holds them.
    kinds: of columns by name. Others are read if they tell their kind, as those do that `write_column` has written.
    Raises SnapshotError if the columns are not equally long, or those of the files do not fit together.
    """
    found: dict[str, list[Column]] = {}
    for path in paths:
        with open_hdf5(path) as file:
            for name in get_group(file, group) if group in file else ():
                if column := _read_column(file, f"{group}/{name}", kinds.get(name)):
                    found.setdefault(name, []).append(column)
    joined = {name: replace(parts[0], values=_join(paths, name, parts)) for name, parts in found.items()}
    lengths = sorted({len(column.values) for column in joined.values()})
    if len(lengths) > 1:
        raise SnapshotError(f"{paths[0]} is not a catalogue: its columns have {lengths} rows; write it again.")
    return joined


def _read_column(file: h5py.File, name: str, kind: str | None) -> Column | None:
    """A column, None if it is none of a catalogue. kind: None if the column is to be asked itself."""
    if isinstance(file.get(name), h5py.Group):
        return None
    data = get_dataset(file, name)
    kind = kind or text_attribute(data, "kind")
    if not kind or not data.shape or data.dtype.kind not in NUMBERS:
        return None
    definition = text_attribute(data, "description") or text_attribute(data, "Description")  # the latter is SWIFT's
    return Column(read_all(file, name), kind, definition)


def _join(paths: Sequence[Path], name: str, parts: Sequence[Column]) -> np.ndarray:
    if len({part.values.shape[1:] for part in parts}) > 1:
        raise SnapshotError(f"The files of {paths[0]} do not agree on the components of {name}; write them again.")
    return _rows([part.values for part in parts])


def _rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Rows of several files one after the other, in the byte order of this machine."""
    rows = np.concatenate(parts)
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def read_ids(paths: Sequence[Path], name: str) -> np.ndarray | None:
    """The identifiers of members in one file or several, None if there are none. name: of their dataset.

    Raises SnapshotError if they are no integers.
    """
    parts = []
    for path in paths:
        with open_hdf5(path) as file:
            if name in file:
                data = get_dataset(file, name)
                if data.ndim != 1 or data.dtype.kind not in "iu":
                    raise SnapshotError(f"{path} holds {name} as {data.dtype} {data.shape}; it must be integers (m,).")
                parts.append(read_all(file, name))
    return _rows(parts) if parts else None


def write_made(file: h5py.File, info: CatalogueInfo) -> None:
    """Write how the catalogue was made, apart from the header."""
    made = {f.name: getattr(info, f.name) for f in dataclasses.fields(info) if f.name != "header"}
    file.create_group(_MADE).attrs.update({name: _storable(value) for name, value in made.items() if value is not None})


def _storable(value: Any) -> Any:
    """``value``; of text, such as the name of a file, what is not UTF-8 is escaped."""
    return value.encode(errors="backslashreplace").decode() if isinstance(value, str) else value


def read_made(file: h5py.File) -> dict[str, Any]:
    """How a catalogue was made, as `write_made` has written it: arguments of `CatalogueInfo`."""
    known = {f.name for f in dataclasses.fields(CatalogueInfo)} - {"header"}
    group = file.get(_MADE)
    return {name: _plain(value) for name, value in group.attrs.items() if name in known} if group is not None else {}


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
