"""The contents of a catalogue file in any layout: groups, extra columns, counts by type, and metadata."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from jztree.data import FofCatalogue, check_no_unit, squeeze_catalogue
from jztree.halos import DEFINITIONS, Definition

from ._attributes import text_attribute
from ._errors import SnapshotError
from ._files import get_dataset, get_group, open_hdf5
from ._hdf5_columns import KINDS, check_form, read_all, wrong_form
from ._hdf5_types import dtype_of
from ._header import SnapshotHeader, unit_attributes, unit_powers

NUM_TYPES = 6
_MOST_DIMENSIONS = 8
NUMBERS = "iufb"  # the accepted kinds of dtype of columns
CENTRE = "centre_pos"  # the extra column with the centre of the spheres of each group
LENGTHS = ("linking_length", "mean_separation")  # entries of `CatalogueInfo` that are lengths
# Files have no ranks. Each entry of ``means`` is stored as a column under its own name.
_COLUMNS = tuple(name for name in FofCatalogue.column_names() if name not in ("offset_rank", "means"))


class Form(NamedTuple):
    """The form of a catalogue column: the kinds of its numbers, and the lengths of its axes after the group axis.

    Attributes:
        kinds: See `numpy.dtype.kind`.
        axes: One letter per axis. The length is the number of dimensions for "d", of pairs of dimensions for "p", and
            of particle types for "t".
    """

    kinds: str
    axes: str = ""


_FORMS = {
    **dict.fromkeys(("count", "offset"), Form("iu")),
    **dict.fromkeys(
        ("com_inertia_radius", "max_radius", "mass", "vel_dispersion", "scale_factor", "v_rad"), Form("iuf")
    ),
    "com_pos": Form("f", "d"),
    "com_vel": Form("iuf", "d"),
    "shape_tensor": Form("iuf", "dd"),
    "angular_momentum": Form("iuf", "p"),
    "count_by_type": Form("iu", "t"),
    "mass_by_type": Form("iuf", "t"),
}


@dataclass(frozen=True, kw_only=True)
class CatalogueInfo:
    """The origin of a catalogue; unknown values are None.

    Attributes:
        linking_length: The linking length, in the unit of length of the particles.
        mean_separation: Mean separation of the linked particles, in the same unit.
        separation_by: "mass" or "number", the quantity used to find the mean separation, see `jztree_utils.separation`.
        npart_min: The minimum number of particles of a group in the catalogue.
        num_particles: Number of particles in the search for groups, both members and others.
        ptype: The particle type that was grouped.
        source: Name of the snapshot.
        header: Header of the snapshot: box, cosmology, units.
        made_with: The options of the call that made the catalogue, as the command line writes them.
        spheres_of: The matter that the spheres contain and the matter that was left out, in words.
    """

    linking_length: float | None = None
    mean_separation: float | None = None
    separation_by: str | None = None
    npart_min: int | None = None
    num_particles: int | None = None
    ptype: int | None = None
    source: str | None = None
    header: SnapshotHeader | None = None
    made_with: str | None = None
    spheres_of: str | None = None


@dataclass(frozen=True)
class Column:
    """A property of groups.

    Attributes:
        values: ``(g, ...)``, one row per group.
        kind: The kind of quantity, which determines the unit: "length", "mass", "velocity", "1" and others, see
            `_header.unit_attributes`.
        definition: The definition in words.
    """

    values: Any
    kind: str
    definition: str


@dataclass(frozen=True)
class TypeTable:
    """Particles of each type in each group.

    Attributes:
        count: ``(g, 6)`` int64. Each row sums to the number of particles of the group.
        mass: ``(g, 6)`` float64, zero if the particles have no mass.
    """

    count: np.ndarray
    mass: np.ndarray


@dataclass(frozen=True, kw_only=True)
class CatalogueContent:
    """The full contents of a catalogue file with ``g`` groups, as NumPy arrays.

    Attributes:
        catalogue: The groups, without padding. Columns that are missing from the file are None.
        ids: ``(m,)`` identifiers of the members, in the order that ``offset`` refers to, or None.
        info: The origin of the catalogue.
        extra: Further columns by name.
        by_type: Particles of each type, or None for a single type.
        subhaloes: Columns of the subhaloes by name, one row each, in the order of the groups, or None. ``group``,
            ``count`` and ``pos`` are required. Then ``ids`` are in the order of `order_by_binding`.
    """

    catalogue: FofCatalogue
    ids: np.ndarray | None = None
    info: CatalogueInfo = CatalogueInfo()
    extra: Mapping[str, Column] = field(default_factory=dict)
    by_type: TypeTable | None = None
    subhaloes: Mapping[str, Column] | None = None

    @property
    def header(self) -> SnapshotHeader:
        """The header of the snapshot; an empty one if it is unknown."""
        return self.info.header or SnapshotHeader()

    @property
    def ndim(self) -> int:
        """Number of dimensions of the positions."""
        return int(np.shape(self.catalogue.com_pos)[1])

    @property
    def ids_by_group(self) -> np.ndarray | None:
        """The identifiers of the members, group after group, without a copy if they are in this order; or None."""
        count, offset = (np.asarray(column, np.int64) for column in (self.catalogue.count, self.catalogue.offset))
        if self.ids is None or (offset == np.cumsum(count) - count).all():
            return self.ids
        return self.ids[member_rows(count, offset)]


def catalogue_columns(cata: FofCatalogue, extra: Mapping[str, Column] | None = None) -> dict[str, Column]:
    """Return the columns of a catalogue by name, in the order of the files.

    Args:
        cata: The catalogue; unused rows and columns that are None are left out.
        extra: Further columns, with one row per used group.

    Raises:
        ValueError: If an extra column has another length, is not numeric, or has an invalid or reserved name.
    """
    cata = squeeze_catalogue(cata)
    held = {name: getattr(cata, name) for name in _COLUMNS}
    columns = {
        name: Column(np.asarray(values), *described(DEFINITIONS[name]))
        for name, values in held.items()
        if values is not None
    }
    means = {
        name: Column(np.asarray(values), "", f"mass-weighted mean of {name} of the particles")
        for name, values in (cata.means or {}).items()
    }
    for name, column in {**means, **(extra or {})}.items():
        check_no_unit(column.values, name)
        if name in _COLUMNS or "/" in name or not name.strip("."):
            raise ValueError(
                f"An extra column has the name {name!r}, which is reserved or invalid; choose another name."
            )
        columns[name] = replace(column, values=_checked(name, np.asarray(column.values), int(cata.ngroups)))
    return columns


def check_forms(cata: FofCatalogue) -> None:
    """Raise ValueError unless the columns of a catalogue without padding have the form that readers require."""
    sizes = _Sizes(len(cata.count), np.shape(cata.com_pos)[1], NUM_TYPES, "count")
    for name in _COLUMNS:
        values, form = getattr(cata, name), _FORMS[name]
        if values is None:
            continue
        kind, shape = np.asarray(values).dtype.kind, np.shape(values)
        if kind not in form.kinds or shape != sizes.shape(form.axes):
            raise ValueError(
                f"The {name} of the catalogue are {np.asarray(values).dtype} of shape {shape}; give "
                f"{KINDS[form.kinds]} of shape {sizes.shape(form.axes)}, for {sizes.groups} groups in {sizes.ndim} "
                "dimensions."
            )


def _checked(name: str, values: np.ndarray, ngroups: int) -> np.ndarray:
    """Return ``values`` if they are numeric with one row per group. Raises ValueError otherwise."""
    if values.ndim == 0 or len(values) != ngroups:
        raise ValueError(
            f"The extra column {name} has shape {values.shape}, but the catalogue has {ngroups} groups; give one row "
            "per group."
        )
    if values.dtype.kind not in NUMBERS:
        raise ValueError(f"The extra column {name} has dtype {values.dtype}; give numbers.")
    return values


def described(definition: Definition) -> tuple[str, str]:
    """Return the kind of a column, and its definition with the source."""
    kind, words, source = definition
    return kind, f"{words} ({source})" if source else words


def column_kinds() -> dict[str, str]:
    """Return the kind of each column of `FofCatalogue`, by name."""
    return {name: DEFINITIONS[name].kind for name in _COLUMNS}


def build_content(
    columns: Mapping[str, Column], ids: np.ndarray | None, info: CatalogueInfo, by_type: TypeTable | None
) -> CatalogueContent:
    """Build the contents from the columns that were read. ``offset`` is computed from the counts if it is missing."""
    held: dict[str, Any] = {name: columns[name].values if name in columns else None for name in _COLUMNS}
    if held["offset"] is None:
        held["offset"] = first_rows(held["count"])
    catalogue = FofCatalogue(ngroups=len(held["count"]), **held)
    extra = {name: column for name, column in columns.items() if name not in _COLUMNS}
    return CatalogueContent(catalogue=catalogue, ids=ids, info=info, extra=extra, by_type=by_type)


def first_rows(count: np.ndarray) -> np.ndarray:
    """Return the row of each group's first particle if groups are contiguous: int32, or int64 if int32 is too small."""
    rows = np.cumsum(count, dtype=np.int64) - count
    return rows.astype(fitting_integer(rows))


def fitting_integer(values: np.ndarray) -> type[np.signedinteger]:
    """Return int32, or int64 if one of ``values`` does not fit into int32."""
    return np.int32 if np.max(values, initial=0) <= np.iinfo(np.int32).max else np.int64


def member_rows(count: np.ndarray, offset: np.ndarray) -> np.ndarray:
    """Return the rows of the members, group by group, from counts and offsets ``(g,)`` int64."""
    return np.repeat(offset - (np.cumsum(count) - count), count) + np.arange(count.sum())


def convert_h(content: CatalogueContent, h_free: bool) -> CatalogueContent:
    """Convert ``content`` to units that are free of h, or to units per h. Values keep their dtype.

    Cosmological runs of Gadget have units such as Mpc/h; those of SWIFT are free of h. Other runs do not change.

    Raises:
        ValueError: If the conversion needs h and the header does not have it.
    """
    header = content.header
    if header.h_free == h_free or header.comoving is False:
        return content
    if header.hubble is None and header.comoving:
        raise ValueError(
            "The conversion between units per h and units free of h needs h, but the header has no HubbleParam; give "
            "a header with hubble, or choose the native layout."
        )
    changed = replace(header, h_free=h_free)

    def convert(kind: str, values: Any) -> Any:
        # Only the unit per h has a power of h. A value v in it is v h**power in the unit that is free of h.
        power = unit_powers(header, kind, content.ndim)[1] - unit_powers(changed, kind, content.ndim)[1]
        array = np.asarray(values)
        return (array * (header.hubble or 1.0) ** power).astype(array.dtype) if power else array

    def convert_all(columns: Mapping[str, Column]) -> dict[str, Column]:
        return {name: replace(column, values=convert(column.kind, column.values)) for name, column in columns.items()}

    converted = convert_all(catalogue_columns(content.catalogue, content.extra))
    by_type = content.by_type and replace(content.by_type, mass=convert("mass", content.by_type.mass))
    held = {name: getattr(content.info, name) for name in LENGTHS}
    lengths: dict[str, Any] = {
        name: value and float(convert("length", np.float64(value))) for name, value in held.items()
    }
    info = replace(
        content.info,
        **lengths,
        header=replace(
            changed,
            boxsize=_box(convert("length", np.asarray(header.boxsize, np.float64))),
            mass_table=tuple(map(float, convert("mass", np.asarray(header.mass_table, np.float64)))),
        ),
    )
    subhaloes = content.subhaloes and convert_all(content.subhaloes)
    return replace(build_content(converted, content.ids, info, by_type), subhaloes=subhaloes)


def _box(lengths: np.ndarray) -> float | tuple[float, ...]:
    return float(lengths) if lengths.ndim == 0 else tuple(map(float, lengths))


def write_column(group: h5py.Group, name: str, column: Column, header: SnapshotHeader, ndim: int = 3) -> None:
    """Write a column with its unit, kind and definition as attributes."""
    check_no_unit(column.values, name)
    data = group.create_dataset(name, data=np.asarray(column.values))
    data.attrs.update(unit_attributes(header, column.kind, ndim))
    data.attrs.update({"kind": column.kind, "description": column.definition})


def read_columns(
    paths: Sequence[Path], group: str, kinds: Mapping[str, str], own: Mapping[str, str], ndim: int | None = None
) -> dict[str, Column]:
    """Return the columns of a catalogue in one file or several, under their names in the files.

    Args:
        paths: The files of the catalogue.
        group: The group of the columns.
        kinds: Kinds of columns by name. Other columns are read if they have an attribute for their kind, as
            `write_column` writes.
        own: Names in `FofCatalogue` or `TypeTable`, by the names in the files, of columns that have other names there.
            These columns must have the form of the class; others must have one row per group.
        ndim: Number of dimensions, None to take it from the centres.

    Raises:
        SnapshotError: If a column has the wrong form, or if columns of different files are inconsistent.
    """
    result: dict[str, list[Column]] = {}
    for path in paths:
        with open_hdf5(path) as file:
            if group in file and len(get_group(file, group)):
                sizes = _sizes(file, group, own, ndim)
                for name in file[group]:
                    form = _FORMS.get(own.get(name, name)) or (Form("iuf") if name in kinds else None)
                    if column := _read_column(file, f"{group}/{name}", kinds.get(name), form, sizes):
                        result.setdefault(name, []).append(column)
    joined = {name: replace(parts[0], values=_join(paths, name, parts)) for name, parts in result.items()}
    rows = max((len(column.values) for column in joined.values()), default=0)
    for name, column in joined.items():
        if len(column.values) != rows:
            held = f"{len(column.values)} of {rows} rows"
            raise SnapshotError(f"The files of {paths[0]} hold {held} of {group}/{name}; write them again.")
    return joined


class _Sizes(NamedTuple):
    """The lengths of axes in one file, and the name of the dataset with one count per group."""

    groups: int
    ndim: int
    types: int
    counts: str

    def shape(self, axes: str) -> tuple[int, ...]:
        lengths = {"d": self.ndim, "p": self.ndim * (self.ndim - 1) // 2, "t": self.types}
        return self.groups, *(lengths[axis] for axis in axes)


def _sizes(file: h5py.File, group: str, own: Mapping[str, str], ndim: int | None) -> _Sizes:
    """Find the lengths of axes from the datasets that every catalogue has. Raises SnapshotError if one is missing."""
    counts = _called(file, group, own, "count", "integers (g,)")
    centres = _called(file, group, own, "com_pos", "floats (g, d)")
    if len(counts.shape or ()) != 1:
        raise wrong_form(counts, "iu", "(g,), one row per group")
    if ndim is None:
        if len(centres.shape or ()) != 2 or not 1 <= centres.shape[1] <= _MOST_DIMENSIONS:
            raise wrong_form(centres, "f", f"(g, d) with d from 1 to {_MOST_DIMENSIONS}, one row per group")
        ndim = centres.shape[1]
    by_type = _if_there(file, group, own, "count_by_type")
    types = NUM_TYPES
    if by_type is not None and "count_by_type" in own.values() and len(by_type.shape or ()) == 2:
        types = by_type.shape[1] or NUM_TYPES  # Gadget-4 can be compiled for more or fewer types
    return _Sizes(counts.shape[0], ndim, types, str(counts.name).lstrip("/"))


def _called(file: h5py.File, group: str, own: Mapping[str, str], name: str, words: str) -> h5py.Dataset:
    """Return the dataset of a required column; ``words`` describe its required form in the message."""
    data = _if_there(file, group, own, name)
    if data is None:
        usual = next((stored for stored, other in own.items() if other == name), name)
        raise SnapshotError(
            f"{file.filename} is not a catalogue, because it lacks {group}/{usual}, {words} for {name}; write it again."
        )
    return data


def _if_there(file: h5py.File, group: str, own: Mapping[str, str], name: str) -> h5py.Dataset | None:
    """Return the dataset of a column by its name in `FofCatalogue`, or None. Of two matching names the last wins."""
    stored = [other for other, its_own in own.items() if its_own == name and other in file[group]]
    if not stored and name in file[group]:
        stored = [name]
    return get_dataset(file, f"{group}/{stored[-1]}") if stored else None


def _read_column(file: h5py.File, name: str, kind: str | None, form: Form | None, sizes: _Sizes) -> Column | None:
    """Read a column, or return None for another dataset. A kind of None is read from the attributes."""
    if form is None and isinstance(file.get(name), h5py.Group):
        return None
    data = get_dataset(file, name)
    kind = kind or text_attribute(data, "kind")
    if not kind or (form is None and (not data.shape or dtype_of(data).kind not in NUMBERS)):
        return None
    because = f"for the {sizes.groups} groups of {sizes.counts}"
    if form is None:
        check_form(data, NUMBERS, (sizes.groups, *data.shape[1:]), because)
    else:
        because += f" in {sizes.ndim} dimensions" if "d" in form.axes or "p" in form.axes else ""
        check_form(data, form.kinds, sizes.shape(form.axes), because)
    definition = text_attribute(data, "description") or text_attribute(data, "Description")  # the latter is SWIFT's
    return Column(read_all(file, name), kind, definition)


def _join(paths: Sequence[Path], name: str, parts: Sequence[Column]) -> np.ndarray:
    if len({part.values.shape[1:] for part in parts}) > 1:
        raise SnapshotError(
            f"The files of {paths[0]} have different numbers of components of {name}; write them again."
        )
    return _rows([part.values for part in parts])


def _rows(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Concatenate the rows of several files, in the byte order of this machine."""
    rows = np.concatenate(parts)
    return rows.astype(rows.dtype.newbyteorder("="), copy=False)


def read_ids(paths: Sequence[Path], name: str, count: np.ndarray) -> np.ndarray | None:
    """Read the identifiers of members from one file or several.

    Args:
        paths: The files of the catalogue.
        name: Name of the dataset of identifiers.
        count: ``(g,)`` members of each group.

    Returns:
        ``(m,)`` integers, or None if the files have no identifiers.

    Raises:
        SnapshotError: If the dataset does not hold integers, or its length differs from the number of members.
    """
    members, held = sum(count.tolist()), 0  # sum in Python integers, because damaged counts may be large
    if count.min(initial=0) < 0:
        raise SnapshotError(f"{paths[0]} counts {count.min()} particles in a group; write or copy it again.")
    parts = []
    for path in paths:
        with open_hdf5(path) as file:
            if name in file:
                data = get_dataset(file, name)
                if len(data.shape or ()) != 1 or dtype_of(data).kind not in "iu":
                    raise wrong_form(data, "iu", "(m,), one per member")
                held += data.shape[0]
                if held <= members:
                    parts.append(read_all(file, name))
    if (parts and held != members) or held > members:
        raise SnapshotError(
            f"{paths[0]} holds {held} identifiers as {name}, but its groups count {members} members; write or copy it "
            "again."
        )
    return _rows(parts) if parts else None
