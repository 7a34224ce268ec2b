"""Catalogues in the layout of this library.

``Header`` has the attributes of a Gadget-4 snapshot, and the attributes of ``FriendsOfFriends`` describe how the
catalogue was made. ``Groups`` has one dataset for each property of `jztree.data.FofCatalogue`, and for each further
column, under the same name; for several types also ``count_by_type`` and ``mass_by_type``. ``Members/id`` holds
identifiers, if known; those of group g are ``id[offset[g] : offset[g] + count[g]]``.
"""

import functools
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from . import _subhaloes
from ._catalogue_content import (
    CatalogueContent,
    CatalogueInfo,
    Column,
    TypeTable,
    build_content,
    catalogue_columns,
    column_kinds,
    read_columns,
    read_ids,
    write_column,
)
from ._errors import SnapshotError
from ._files import open_hdf5
from ._header import SnapshotHeader, header_attributes, parse_header
from ._made_with import read_made, write_made

MEMBERS = "Members/id"
RESERVED = frozenset({"count_by_type", "mass_by_type"})


def recognises(file: h5py.File) -> bool:
    """Return whether an open file is a catalogue in this layout."""
    groups = file.get("Groups")
    return "FriendsOfFriends" in file and isinstance(groups, h5py.Group) and "count" in groups


def write(file: h5py.File, content: CatalogueContent) -> None:
    """Write a catalogue into an empty file."""
    write_header_group(file, content.info.header)
    write_made(file, content.info)
    groups = file.create_group("Groups")
    columns = catalogue_columns(content.catalogue, content.extra) | type_columns(content.by_type)
    for name, column in columns.items():
        write_column(groups, name, column, content.header, content.ndim)
    write_members(file, content, content.ids)
    _subhaloes.write_table(file, content, functools.partial(write_column, ndim=content.ndim))


def type_columns(by_type: TypeTable | None) -> dict[str, Column]:
    """Return particles by type as columns."""
    if by_type is None:
        return {}
    return {
        "count_by_type": Column(np.asarray(by_type.count, np.int64), "1", "particles of each type in the group"),
        "mass_by_type": Column(np.asarray(by_type.mass, np.float64), "mass", "mass of each type in the group"),
    }


def split_types(path: Path, columns: dict[str, Column]) -> tuple[dict[str, Column], TypeTable | None]:
    """Invert `type_columns`.

    Args:
        path: The file, for messages.
        columns: Columns by name; those by type are removed.

    Returns:
        The other columns, and particles by type or None.

    Raises:
        SnapshotError: If particles by type do not add up to those of each group.
    """
    count, mass = (columns.pop(name, None) for name in ("count_by_type", "mass_by_type"))
    if count is None or mass is None:
        return columns, None
    wrong = np.flatnonzero(count.values.sum(axis=1) != columns["count"].values)
    if len(wrong):
        raise SnapshotError(
            f"{path} has {count.values[wrong[0]].sum()} particles in count_by_type of the group in row {wrong[0]}, "
            f"but {columns['count'].values[wrong[0]]} in count; write or copy it again."
        )
    return columns, TypeTable(count.values, mass.values)


def write_members(file: h5py.File, content: CatalogueContent, ids: np.ndarray | None) -> None:
    """Write the identifiers ``ids`` of the members, unless they are None."""
    if ids is not None:
        column = Column(ids, "1", "identifiers, group after group")
        write_column(file, MEMBERS, column, content.header)


def write_header_group(file: h5py.File, header: SnapshotHeader | None) -> None:
    """Write the header of a snapshot to a file without particles, unless it is None."""
    if header is not None:
        attributes = file.create_group("Header").attrs
        attributes.update(header_attributes(header))
        attributes["NumPart_ThisFile"] = np.zeros(len(header.npart_total), np.uint64)


def read_header_group(file: h5py.File) -> SnapshotHeader | None:
    """Return the header that `write_header_group` has written, or None."""
    return parse_header(file)[0] if "Header" in file else None


def read(path: Path) -> CatalogueContent:
    """Read a catalogue that `write` has written. Raises SnapshotError if it cannot be read."""
    with open_hdf5(path) as file:
        info = CatalogueInfo(**read_made(file), header=read_header_group(file))
    columns, by_type = split_types(path, read_columns([path], "Groups", column_kinds(), {}))
    content = build_content(columns, read_ids([path], MEMBERS, columns["count"].values), info, by_type)
    return replace(content, subhaloes=_subhaloes.read_table([path]))
