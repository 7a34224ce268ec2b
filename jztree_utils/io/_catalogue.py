"""Catalogues of friends-of-friends groups in HDF5: the canonical order of groups, and files in four layouts.

The layouts are those of this library (`_native_catalogue`), of Gadget-4's group files (`_gadget_catalogue`), of SWIFT's
friends-of-friends catalogues (`_swift_catalogue`) and of SOAP's (`_soap_catalogue`). Every dataset has its unit as
attributes. Files do not depend on the time and place of writing.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import h5py
import jax
import numpy as np
from numpy.typing import ArrayLike

from jztree.data import (
    FofCatalogue,
    check_no_units,
    get_pos,
    map_rows,
    squeeze_catalogue,
    squeeze_particles,
    with_computed,
)

from . import _gadget_catalogue, _native_catalogue, _soap_catalogue, _swift_catalogue, _tables
from ._catalogue_content import (
    CENTRE,
    NUM_TYPES,
    CatalogueContent,
    CatalogueInfo,
    Column,
    TypeTable,
    catalogue_columns,
    check_forms,
    member_rows,
)
from ._errors import SnapshotError
from ._files import PathLike, create_hdf5, open_hdf5
from ._files_of_snapshot import kind_of_file, parts_beside
from ._header import SnapshotHeader, unit_powers
from ._subhaloes import check_read, check_subhaloes

if TYPE_CHECKING:
    import astropy.table
    import pandas

_Part = TypeVar("_Part")
_ANY = np.iinfo(np.int64).max  # number of rows if it is unknown
_LAYOUTS = {
    "native": _native_catalogue,
    "gadget4": _gadget_catalogue,
    "swift": _swift_catalogue,
    "soap": _soap_catalogue,
}


@with_computed
def canonical_order(
    part: _Part, cata: FofCatalogue, extra: Mapping[str, Column] | None = None, by_type: TypeTable | None = None
) -> tuple[_Part, FofCatalogue, dict[str, Column], TypeTable | None]:
    """Sort particles and catalogue into the order of the files, which is independent of their computation.

    Args:
        part: Particles in group order, ``n`` rows, with or without ``id``; those of several ranks are joined to one
            set.
        cata: The catalogue of ``part``; its ``offset`` is a row of the joined set.
        extra, by_type: Further columns, and particles by type, with one row per group of ``cata`` in its order.

    Returns:
        The four arguments, without padding and as NumPy arrays. The largest group comes first. Groups of equal size are
        sorted by
        their smallest identifier, or keep their order without identifiers. The particles of a group are sorted
        by identifier; particles without a group come last.

    Raises:
        ValueError: If ``cata`` does not belong to ``part``, or ``extra`` or ``by_type`` do not belong to ``cata``.
    """
    check_no_units(part=part)
    part, cata = squeeze_particles(jax.device_get(part)), squeeze_catalogue(jax.device_get(cata))
    columns = catalogue_columns(cata, extra)
    _check_types(cata, by_type)
    count, offset = np.asarray(cata.count, np.int64), np.asarray(cata.offset, np.int64)
    order, rows = _orders(part, count, offset)
    sorted_part = map_rows(lambda leaf: np.asarray(leaf)[rows], part)
    columns = {name: replace(column, values=column.values[order]) for name, column in columns.items()}
    starts = np.cumsum(count[order]) - count[order]
    columns["offset"] = replace(columns["offset"], values=starts.astype(columns["offset"].values.dtype))
    sorted_types = by_type and TypeTable(np.asarray(by_type.count)[order], np.asarray(by_type.mass)[order])
    held = {name: columns.pop(name).values for name in list(columns) if name not in (extra or {})}
    return sorted_part, FofCatalogue(ngroups=len(count), **held), columns, sorted_types


def _orders(part: Any, count: np.ndarray, offset: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of groups and of particles in canonical order, from counts and offsets ``(g,)`` int64."""
    n = get_pos(part).shape[0]
    ids = getattr(part, "id", None)
    keys = np.arange(n) if ids is None else np.asarray(ids)
    by_row = np.argsort(offset, kind="stable")
    bounds = np.concatenate([[0], np.stack([offset, offset + count], axis=1)[by_row].ravel(), [n]])
    if (np.diff(bounds) < 0).any():
        raise ValueError(
            f"The catalogue does not belong to these {n} particles, because its groups overlap; give its own particles."
        )
    members = member_rows(count[by_row], offset[by_row])
    smallest = np.empty(len(count), keys.dtype)
    if len(count):
        smallest[by_row] = np.minimum.reduceat(keys[members], np.cumsum(count[by_row]) - count[by_row])
    order = np.lexsort((smallest, -count))
    rank = np.empty(len(count), np.int64)
    rank[order] = np.arange(len(count))
    group = np.full(n, len(count))
    group[members] = np.repeat(rank[by_row], count[by_row])
    return order, np.lexsort((keys, group))


def write_catalogue(
    path: PathLike,
    cata: FofCatalogue,
    ids: ArrayLike | None = None,
    info: CatalogueInfo | None = None,
    *,
    layout: str = "native",
    extra: Mapping[str, Column] | None = None,
    by_type: TypeTable | None = None,
    subhaloes: Mapping[str, Column] | None = None,
) -> None:
    """Write a catalogue as HDF5, with the unit of each dataset as attributes.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete.
        cata: The catalogue, of JAX or NumPy arrays. Unused rows and columns that are None are left out.
            `canonical_order` gives an order that does not depend on the code that computed the catalogue.
        ids: ``(m,)`` integers, identifiers of the members in the order that ``cata.offset`` refers to, or None.
        info: The origin of the catalogue.
        layout: "native", "gadget4" (``fof_tab_000.hdf5``), "swift" or "soap". All but the first support only three
            dimensions. "gadget4" uses units per h, "swift" and "soap" units that are free of h. Values are converted if
            the header has other units.
        extra: Further columns by name, with one row per group of ``cata`` in its order.
        by_type: Particles of each type in each group, if there are several types.
        subhaloes: Columns of the subhaloes by name, with one row per subhalo in the order of the groups, the central
            first. ``group``, ``count`` and ``pos`` are required. ``ids`` must then be in the order of
            `order_by_binding`. The rows of "soap" are then subhaloes, like in SOAP's catalogues.

    Raises:
        OutputError: If the file cannot be written.
        ValueError: If ``ids``, ``extra``, ``by_type`` or ``subhaloes`` do not belong to the catalogue, or if the layout
            cannot hold it (see `check_layout`).
    """
    content = CatalogueContent(
        catalogue=squeeze_catalogue(cata),
        ids=None if ids is None else np.asarray(ids),
        info=info or CatalogueInfo(),
        extra=extra or {},
        by_type=by_type,
        subhaloes=subhaloes,
    )
    write_catalogue_content(path, content, layout)


def write_catalogue_content(path: PathLike, content: CatalogueContent, layout: str = "native") -> None:
    """Write a result of `read_catalogue_content`, in any layout. Raises the same errors as `write_catalogue`."""
    check_layout(layout, content.info.header, content.ndim, content.info.ptype)
    check_forms(content.catalogue)
    counted = int(np.asarray(content.catalogue.count, np.int64).sum())
    if content.ids is not None and np.shape(content.ids) != (counted,):
        raise ValueError(
            f"ids have shape {np.shape(content.ids)}, but the catalogue counts {counted} members; give one identifier "
            "each."
        )
    _check_types(content.catalogue, content.by_type)
    _check_columns(content, layout)
    if content.subhaloes is not None:
        check_subhaloes(content.subhaloes, np.asarray(content.catalogue.count, np.int64))
    with create_hdf5(path) as file:
        _LAYOUTS[layout].write(file, content)


def check_layout(layout: str, header: SnapshotHeader | None, ndim: int = 3, ptype: int | None = None) -> None:
    """Check that a catalogue can be written in a layout.

    Args:
        layout: See `write_catalogue`.
        header: Header of the snapshot.
        ndim: Number of dimensions.
        ptype: The grouped type.

    Raises:
        ValueError: If the layout is unknown or cannot hold the catalogue. The message has a remedy.
    """
    if layout not in _LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(_LAYOUTS)}.")
    if layout == "native":
        return
    if ndim != 3:
        raise ValueError(
            f"The layout {layout} needs three dimensions, but the groups have {ndim}; choose the native layout."
        )
    if layout == "gadget4" and ptype is not None and not 0 <= ptype < NUM_TYPES:
        raise ValueError(
            f"The layout gadget4 has types 0 to 5, but the grouped type is {ptype}; choose the native layout."
        )
    if layout == "swift":
        _swift_catalogue.check_header(header)
    if layout == "soap":
        _soap_catalogue.check_header(header)


def _check_columns(content: CatalogueContent, layout: str) -> None:
    """Raise ValueError before a file is created if a column cannot be written."""
    for name, column in catalogue_columns(content.catalogue, content.extra).items():
        unit_powers(content.header, column.kind, content.ndim)
        if name in _LAYOUTS[layout].RESERVED:
            raise ValueError(f"The extra column {name} has the name of a dataset of the layout; choose another name.")
        if name == CENTRE and layout != "native":
            _check_centres(column, np.shape(content.catalogue.com_pos))


def _check_centres(column: Column, shape: tuple[int, ...]) -> None:
    """Raise ValueError unless a column holds centres of spheres in the required shape."""
    values = np.asarray(column.values)
    if (values.dtype.kind, values.shape, column.kind) != ("f", shape, "length"):
        raise ValueError(
            f"The extra column {CENTRE} holds {values.dtype} of shape {values.shape} and kind {column.kind!r}; give "
            f"the centres of the spheres, floats of shape {shape} and kind 'length', or choose another name."
        )


def _check_types(cata: FofCatalogue, by_type: TypeTable | None) -> None:
    if by_type is None:
        return
    shape = (len(cata.count), NUM_TYPES)
    for name in ("count", "mass"):
        if np.shape(getattr(by_type, name)) != shape:
            raise ValueError(
                f"The {name} by type has shape {np.shape(getattr(by_type, name))}; it must be {shape}, with one row "
                "per group and one column per type."
            )
    if (np.sum(by_type.count, axis=1) != cata.count).any():
        raise ValueError("The particles by type do not add up to those of each group; count every type in the groups.")


def is_catalogue(path: PathLike) -> bool:
    """Return whether a file is a catalogue in one of the layouts. Raises SnapshotError if it cannot be read."""
    return catalogue_layout(path) is not None


def catalogue_layout(path: PathLike) -> str | None:
    """Return the layout of a catalogue, or None for another file. Raises SnapshotError if it cannot be read."""
    if kind_of_file(Path(path)) != "hdf5":
        return None
    with open_hdf5(Path(path)) as file:
        return layout_of(file)


def layout_of(file: h5py.File) -> str | None:
    """Return the layout of an open catalogue, or None if the file is not a catalogue."""
    return next((name for name, layout in _LAYOUTS.items() if layout.recognises(file)), None)


def find_catalogue_parts(path: PathLike) -> list[Path]:
    """Return all possible files of a catalogue: the given one, and those with other part numbers."""
    return parts_beside(Path(path))


def read_catalogue_content(path: PathLike) -> CatalogueContent:
    """Read the full contents of a catalogue file. `write_catalogue_content` writes them again.

    Args:
        path: A file in one of the layouts, written by this library, Gadget-4, AREPO or SWIFT; the layout is recognised
            from the contents. If a catalogue has several files, give any file.

    Raises:
        SnapshotError: If the file cannot be read, or is not a catalogue.
    """
    with open_hdf5(Path(path)) as file:
        layout, held = layout_of(file), ", ".join(sorted(file)) or "nothing"
    if layout is None:
        raise SnapshotError(
            f"{path} is not a catalogue: a catalogue of this library, Gadget-4 or SWIFT has Groups or Group, but this "
            f"file has only {held}. Give a catalogue."
        )
    content: CatalogueContent = _LAYOUTS[layout].read(Path(path))
    _check_read(path, content)
    if content.subhaloes is not None:
        check_read(path, content.subhaloes, np.asarray(content.catalogue.count, np.int64))
    return content


def _check_read(path: PathLike, content: CatalogueContent) -> None:
    """Raise SnapshotError unless all groups are within the rows of members or particles, if that number is known."""
    count, offset = np.asarray(content.catalogue.count), np.asarray(content.catalogue.offset)
    num = content.info.num_particles if content.by_type is None else None  # the number for a single type
    rows = len(content.ids) if content.ids is not None else _ANY if num is None else num
    outside = (offset < 0) | (offset > rows)
    outside |= count > rows - np.where(outside, 0, offset).astype(np.int64)
    if outside.any():
        row = int(np.argmax(outside))
        raise SnapshotError(
            f"The group in row {row} of {path} has {count[row]} particles from offset {offset[row]} on, but the rows "
            f"of the particles are 0 to {rows - 1}; write or copy the file again."
        )


class _Parts(NamedTuple):
    catalogue: FofCatalogue
    ids: np.ndarray | None
    info: CatalogueInfo


class ReadCatalogue(_Parts):
    """The contents of a catalogue file as a tuple: ``catalogue, ids, info``.

    Attributes:
        catalogue: The groups (NumPy arrays).
        ids: ``(m,)`` identifiers of members, or None.
        info: The origin of the catalogue.
        content: The full contents, with further columns. Tables have all columns, with units and definitions.
    """

    content: CatalogueContent

    @classmethod
    def of(cls, content: CatalogueContent) -> ReadCatalogue:
        """Build the tuple from ``content``."""
        created = cls(content.catalogue, content.ids, content.info)
        created.content = content
        return created

    def to_pandas(self) -> pandas.DataFrame:
        """Return all columns as a `pandas.DataFrame`, one row per group. Vectors become ``com_pos_x`` and so on.

        ``attrs["units"]`` of the table holds the units of the file for each column that has one (lengths are
        comoving), and ``attrs["definitions"]`` the definitions.

        Raises:
            ImportError: If pandas is not installed.
        """
        return _tables.to_pandas(self.content)

    def to_astropy(self) -> astropy.table.QTable:
        """Return all columns as an `astropy.table.QTable`, one row per group; vectors stay columns ``(g, d)``.

        Columns with a unit are quantities, with ``littleh`` in units per h; ``info.description`` is the definition of
        each column.

        Raises:
            ImportError: If astropy is not installed.
        """
        return _tables.to_astropy(self.content)

    def to_parquet(self, path: PathLike) -> None:
        """Write all columns to an Apache Parquet file, one row per group, with the names of `to_pandas`.

        Units and definitions are metadata of each field.

        Raises:
            ImportError: If pyarrow is not installed.
            OutputError: If the file cannot be written.
        """
        _tables.write_parquet(path, self.content)


def read_catalogue(path: PathLike) -> ReadCatalogue:
    """Read a catalogue file. The result can make tables; `read_catalogue_content` returns further columns as arrays.

    Args:
        path: See `read_catalogue_content`.

    Returns:
        The groups, identifiers of members or None, and the origin of the catalogue.

    Raises:
        SnapshotError: If the file cannot be read, or is not a catalogue.
    """
    return ReadCatalogue.of(read_catalogue_content(path))
