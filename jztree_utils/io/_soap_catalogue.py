"""Catalogues for the readers of SOAP's catalogues: swiftsimio, swiftgalaxy and pynbody.

SOAP (McGibbon et al. 2025, arXiv:2507.22669) computes properties of haloes in snapshots of SWIFT; swiftsimio reads all
groups that ``SubhaloTypes`` of the header names. All columns are in ``InputHalos/jztree`` under their own names, like
those of the halo finders that SOAP reads, and have the attributes of SWIFT. The names of SOAP, such as
``SO/200_crit/TotalMass``, link to them. ``HaloCentre`` is the centre of the spheres. ``EncloseRadius`` encloses all
particles of a group, around that centre and around ``CentreOfMass``. Each group is one row; ``BoundSubhalo`` includes
all its particles, bound or not. ``HaloCatalogueIndex`` counts from 0, and is the ``GroupNr_bound`` of its particles.
The whole box is one cell, so groups keep their order. Identifiers of members are in ``Members/id``, like in the native
layout.

In a catalogue with subhaloes, each subhalo is one row, like in SOAP's catalogues (``SOAP/property_table.py`` of
https://github.com/SWIFTSIM/SOAP has the names and their units), and ``BoundSubhalo`` has its bound particles.
``InputHalos/FOF`` and ``SO`` describe the group in the row of its central, and are 0 for satellites. ``HostHaloIndex``
is the row of the central. The columns of the groups, including groups without a subhalo, are in ``FOF``, which readers
of SOAP do not read. ``EncloseRadius`` is an upper limit, from the extent of the group.
"""

import re
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from . import _native_catalogue, _subhaloes
from ._catalogue_content import (
    CENTRE,
    CatalogueContent,
    Column,
    build_content,
    catalogue_columns,
    column_kinds,
    convert_h,
    read_columns,
    read_ids,
)
from ._files import open_hdf5
from ._header import SnapshotHeader, parse_header
from ._native_catalogue import MEMBERS, split_types, type_columns, write_members
from ._swift_catalogue import check_header as check_swift_header
from ._swift_catalogue import read_info, write_dataset, write_frame

RESERVED = _native_catalogue.RESERVED
_OWN = "InputHalos/jztree"
_GROUPS = "FOF"  # the columns of groups in a catalogue with subhaloes
_ENCLOSE = "BoundSubhalo/EncloseRadius"
_ROWS = "Subhalos"  # the type of rows that cells count
# SOAP's names of the columns.
_NAMES = {
    "InputHalos/NumberOfBoundParticles": "count",
    "InputHalos/FOF/Sizes": "count",
    "InputHalos/FOF/Masses": "mass",
    "InputHalos/FOF/Centres": "com_pos",
    "BoundSubhalo/TotalMass": "mass",
    "BoundSubhalo/CentreOfMass": "com_pos",
    "BoundSubhalo/CentreOfMassVelocity": "com_vel",
    "SO/200_crit/CentreOfMass": "com_pos_200c",
    "SO/200_crit/CentreOfMassVelocity": "com_vel_200c",
    "SO/200_crit/SpinParameter": "spin",
}
_NAMES_OF_SUBHALOES = {
    "InputHalos/HaloCentre": "pos",
    "InputHalos/NumberOfBoundParticles": "count",
    "BoundSubhalo/TotalMass": "mass",
    "BoundSubhalo/CentreOfMass": "com_pos",
    "BoundSubhalo/CentreOfMassVelocity": "com_vel",
    "BoundSubhalo/HalfMassRadiusTotal": "half_mass_radius",
    "BoundSubhalo/MaximumCircularVelocityUnsoftened": "vmax",
    "BoundSubhalo/MaximumCircularVelocityRadiusUnsoftened": "rmax",
}
_TYPES = {0: "Gas", 1: "DarkMatter", 4: "Star", 5: "BlackHole"}
_OF_GROUPS = ("InputHalos/FOF/", "SO/")  # names that describe the group of a subhalo


def recognises(file: h5py.File) -> bool:
    """Return whether an open file is a catalogue in this layout."""
    return isinstance(file.get(_OWN), h5py.Group)


def check_header(header: SnapshotHeader | None) -> None:
    """Raise ValueError unless a header has the entries of a SOAP file: units, cosmology and the box."""
    check_swift_header(header, "soap")
    if not np.all(np.asarray((header or SnapshotHeader()).boxsize) > 0):
        raise ValueError(
            "The layout soap needs a periodic box, but the box is open; give one (--boxsize), or choose another layout."
        )


def write(file: h5py.File, content: CatalogueContent) -> None:
    """Write a three-dimensional catalogue to an empty file. Its header must pass `check_header`."""
    content = convert_h(content, h_free=True)
    header, cata = content.header, content.catalogue
    count = np.asarray(cata.count, np.int64)
    columns = catalogue_columns(cata, content.extra) | type_columns(content.by_type)
    del columns["offset"]  # groups are contiguous
    if content.subhaloes is None:
        _write_groups(file, columns, header)
        rows = len(count)
    else:
        _write_subhaloes(file, content, columns)
        rows = len(content.subhaloes["count"].values)
    write_frame(file, content, len(count), "SOAP")
    _write_counts(file, rows)
    _write_cell(file, header, rows)
    write_members(file, content, content.ids_by_group)


def _write_groups(file: h5py.File, columns: Mapping[str, Column], header: SnapshotHeader) -> None:
    """Write a row for each group."""
    for name, column in columns.items():
        write_dataset(file.require_group(_OWN), name, column, header)
    ngroups = len(columns["count"].values)
    rows = Column(np.arange(ngroups), "1", "row of the group in the catalogue, from 0")
    write_dataset(file["InputHalos"], "HaloCatalogueIndex", rows, header)
    central = Column(np.ones(ngroups, np.int64), "1", "1 for every group, because no group is in another one")
    write_dataset(file["InputHalos"], "IsCentral", central, header)
    for name, own in _links(columns).items():
        file[name] = file[f"{_OWN}/{own}"]
    _write_enclosing(file, columns, header)


def _write_subhaloes(file: h5py.File, content: CatalogueContent, columns: Mapping[str, Column]) -> None:
    """Write a row for each subhalo; ``columns`` describe the groups."""
    header, table = content.header, content.subhaloes or {}
    _subhaloes.write_table(file, content, write_dataset, _OWN)
    for name, column in columns.items():
        write_dataset(file.require_group(_GROUPS), name, column, header)
    for name, column_name in _NAMES_OF_SUBHALOES.items():
        if column_name in table:
            file[name] = file[f"{_OWN}/{column_name}"]
    for name, column in _further(content, columns).items():
        group, _, dataset = name.rpartition("/")
        write_dataset(file.require_group(group), dataset, column, header)


def _further(content: CatalogueContent, columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the datasets of a row for each subhalo besides the columns of the subhaloes, by SOAP's names."""
    table = content.subhaloes or {}
    group = np.asarray(table["group"].values, np.int64)
    first, _ = _subhaloes.first_subhaloes(group, len(columns["count"].values))
    rows, host = np.arange(len(group)), first[group]
    is_central = rows == host
    result = {
        "InputHalos/HaloCatalogueIndex": Column(rows, "1", "row of the subhalo in the catalogue, from 0"),
        "InputHalos/IsCentral": Column(
            is_central.astype(np.int64), "1", "1 for the first subhalo of a group, 0 for satellites"
        ),
        "SOAP/HostHaloIndex": Column(host, "1", "row of the first subhalo of the group"),
    }
    if "mass" in table:
        order = np.lexsort((-np.asarray(table["mass"].values), group))
        rank = np.empty(len(group), np.int32)
        rank[order] = rows - host
        words = "rank by mass among the subhaloes of the group, 0 for the largest"
        result["SOAP/SubhaloRankByBoundMass"] = Column(rank, "1", words)
    for name, column_name in _links(columns).items():
        if name.startswith(_OF_GROUPS):
            column = columns[column_name]
            values = np.asarray(column.values)[group]
            values[~is_central] = 0
            words = f"of the group, 0 for satellites: {column.definition}"
            result[name] = replace(column, values=values, definition=words)
    if (counts := _subhaloes.counts_by_type(content)) is not None:
        for ptype, words in _TYPES.items():
            number = Column(counts[:, ptype].astype(np.uint32), "1", f"number of bound particles of type {ptype}")
            result[f"BoundSubhalo/NumberOf{words}Particles"] = number
    if "max_radius" in columns:
        result[_ENCLOSE] = _enclosing_radius(table, columns, group, content.header)
    return result


def _enclosing_radius(
    table: Mapping[str, Column], columns: Mapping[str, Column], group: np.ndarray, header: SnapshotHeader
) -> Column:
    """Return a radius that encloses the group of each subhalo, around ``HaloCentre`` and around ``CentreOfMass``."""
    largest = np.asarray(columns["max_radius"].values)[group]
    centre = np.asarray(columns["com_pos"].values, np.float64)[group]
    places = [np.asarray(table[name].values, np.float64) for name in ("pos", "com_pos") if name in table]
    shift = np.max([_distances(place, centre, header) for place in places], axis=0)
    words = "upper limit: max_radius of the group plus the distance of pos or com_pos from the centre of the group"
    return Column((largest + shift).astype(np.result_type(largest, np.float32)), "length", words)


def _distances(places: np.ndarray, centres: np.ndarray, header: SnapshotHeader) -> np.ndarray:
    """Return the distances between the nearest images of positions ``(n, d)``."""
    offset, box = places - centres, np.asarray(header.boxsize, np.float64)
    return np.linalg.norm(offset - box * np.round(offset / box), axis=1)


def _links(columns: Collection[str]) -> dict[str, str]:
    """Return the columns by their SOAP names."""
    links = {name: own for name, own in _NAMES.items() if own in columns}
    links["InputHalos/HaloCentre"] = CENTRE if CENTRE in columns else "com_pos"
    for own in columns:
        if sphere := re.fullmatch(r"([mr])(\d+[cm]|vir)", own):
            dataset = "TotalMass" if sphere[1] == "m" else "SORadius"
            links[f"SO/{_sphere(sphere[2])}/{dataset}"] = own
    return links


def _write_enclosing(file: h5py.File, columns: Mapping[str, Column], header: SnapshotHeader) -> None:
    """Write a radius that encloses each group around ``HaloCentre``, like in SOAP, and around ``CentreOfMass``.

    swiftgalaxy reads the particles within this radius of ``CentreOfMass``.
    """
    if "max_radius" not in columns:
        return
    if CENTRE not in columns:
        file[_ENCLOSE] = file[f"{_OWN}/max_radius"]
        return
    radius = np.asarray(columns["max_radius"].values)
    centre, com = (np.asarray(columns[name].values, np.float64) for name in (CENTRE, "com_pos"))
    shift = _distances(centre, com, header)
    words = f"max_radius plus the distance from {CENTRE} to com_pos; it encloses the group around both"
    column = Column((radius + shift).astype(np.result_type(radius, np.float32)), "length", words)
    write_dataset(file.require_group("BoundSubhalo"), _ENCLOSE.rpartition("/")[2], column, header)


def _sphere(name: str) -> str:
    """Return SOAP's name of a sphere: that of Bryan & Norman (1998), or a multiple of a density."""
    return "BN98" if name == "vir" else f"{name[:-1]}_{'crit' if name[-1] == 'c' else 'mean'}"


def _write_counts(file: h5py.File, ngroups: int) -> None:
    """Write the number of groups, and the HDF5 groups that hold their columns."""
    holding: set[str] = set()

    def look(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Group) and any(isinstance(held, h5py.Dataset) for held in item.values()):
            holding.add(name)

    for name in ("InputHalos", "BoundSubhalo", "SO", "SOAP"):
        if name in file:
            look(name, file[name])
            file[name].visititems(lambda inner, item, name=name: look(f"{name}/{inner}", item))
    attributes = file["Header"].attrs
    attributes.update({f"Num{_ROWS}_{where}": np.array([ngroups]) for where in ("ThisFile", "Total")})
    attributes["SubhaloTypes"] = sorted(holding)
    file.copy("Header", file.create_group("SWIFT"))  # the place where SOAP keeps the snapshot header
    file["SWIFT/Header"].attrs.setdefault("Time", np.array([np.nan]))  # the age, which pynbody requires


def _write_cell(file: h5py.File, header: SnapshotHeader, ngroups: int) -> None:
    """Write one cell with all groups, for readers that select regions."""
    size = np.broadcast_to(np.asarray(header.boxsize, np.float64), 3)
    cells = file.create_group("Cells")
    about = {"dimension": np.ones(3, np.int32), "nr_cells": np.ones(1, np.int32), "size": size}
    cells.create_group("Meta-data").attrs.update(about)
    cells["Centres"] = size[None] / 2
    cells[f"Counts/{_ROWS}"] = np.array([ngroups])
    cells[f"Files/{_ROWS}"] = np.zeros(1, np.int32)
    cells[f"OffsetsInFile/{_ROWS}"] = np.zeros(1, np.int64)


def read(path: Path) -> CatalogueContent:
    """Read a catalogue that `write` has written. Raises SnapshotError if it cannot be read."""
    with open_hdf5(path) as file:
        info = read_info(file, parse_header(file, swift=True, counted=False)[0])
        has_subhaloes = _GROUPS in file
    group = _GROUPS if has_subhaloes else _OWN
    columns, by_type = split_types(path, read_columns([path], group, column_kinds(), {}, ndim=3))
    content = build_content(columns, read_ids([path], MEMBERS, columns["count"].values), info, by_type)
    return replace(content, subhaloes=_subhaloes.read_table([path], 3, _OWN) if has_subhaloes else None)
