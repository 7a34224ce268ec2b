"""Catalogues in the layout of SWIFT's friends-of-friends output, ``fof_output_0000.hdf5``.

The format: https://swift.strw.leidenuniv.nl/docs/Snapshots/index.html and .../FriendsOfFriends/index.html (Schaller et
al. 2024, MNRAS 530, 2378). ``Groups`` has ``Sizes``, ``Masses``, ``Centres`` and ``GroupIDs``, which count from 1;
properties that SWIFT does not have keep their own names. Units are free of h, and are attributes of each dataset.
Identifiers of members, which SWIFT writes to the snapshot only, are in ``Members/id``, and subhaloes in ``Subhaloes``,
like in the native layout.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from .._constants import HUBBLE
from . import _native_catalogue, _subhaloes
from ._attributes import text_attribute, whole_number
from ._catalogue_content import (
    CatalogueContent,
    CatalogueInfo,
    Column,
    build_content,
    catalogue_columns,
    column_kinds,
    convert_h,
    read_columns,
    read_ids,
)
from ._errors import SnapshotError
from ._files import get_group, open_hdf5
from ._files_of_snapshot import all_parts
from ._header import SnapshotHeader, parse_header, unit_powers
from ._made_with import read_made, write_made
from ._native_catalogue import split_types, type_columns, write_members

_NAMES = {"count": "Sizes", "mass": "Masses", "com_pos": "Centres"}
RESERVED = _native_catalogue.RESERVED | {*_NAMES.values(), "GroupIDs"}
_LENGTH, _MASS, _TIME = "Unit length in cgs (U_L)", "Unit mass in cgs (U_M)", "Unit time in cgs (U_t)"
_BASES = (("U_M", "g"), ("U_L", "cm"), ("U_t", "s"))
NO_GROUP = 2**31 - 1  # the group number of particles without a group
_LOW = 2**32  # counts are in two words of 32 bits


def recognises(file: h5py.File) -> bool:
    """Return whether an open file is a friends-of-friends catalogue of SWIFT, or one in its layout."""
    groups = file.get("Groups")
    return isinstance(groups, h5py.Group) and "Sizes" in groups and "Header" in file


def check_header(header: SnapshotHeader | None, layout: str = "swift") -> None:
    """Raise ValueError unless a header has the units and, for a cosmological run, the h of a SWIFT file."""
    header = header or SnapshotHeader()
    units = (header.unit_length_in_cm, header.unit_mass_in_g, header.unit_velocity_in_cm_per_s)
    if None in units:
        raise ValueError(
            f"The layout {layout} needs the units of length, mass and velocity, but the header of the snapshot lacks "
            "them; give them as options, or choose the layout native or gadget4."
        )
    if _is_cosmological(header) and (header.hubble is None or header.omega0 is None):
        raise ValueError(
            f"For a cosmological run, the layout {layout} needs h and Omega0, but the header of the snapshot does "
            "not have both; give them as options, or choose the layout native or gadget4."
        )


def write(file: h5py.File, content: CatalogueContent) -> None:
    """Write a three-dimensional catalogue to an empty file. Its header must pass `check_header`."""
    content = convert_h(content, h_free=True)
    header, cata = content.header, content.catalogue
    count = np.asarray(cata.count, np.int64)
    groups = file.create_group("Groups")
    for name, column in _stored_columns(content, count).items():
        write_dataset(groups, name, column, header)
    write_frame(file, content, len(count), "FOF")
    write_members(file, content, content.ids_by_group)
    _subhaloes.write_table(file, content, write_dataset)


def write_frame(file: h5py.File, content: CatalogueContent, ngroups: int, kind: str) -> None:
    """Write everything except columns and members, for content free of h, with the kind of file, such as "FOF"."""
    _write_header(file, content.header, ngroups, kind)
    file.create_group("Parameters").attrs.update(fof_parameters(content.info))
    write_made(file, content.info)


def _stored_columns(content: CatalogueContent, count: np.ndarray) -> dict[str, Column]:
    """Return the columns of ``Groups``, by their names there, from counts ``(g,)`` int64."""
    columns = catalogue_columns(content.catalogue, content.extra) | type_columns(content.by_type)
    del columns["offset"]  # groups are contiguous
    columns["count"] = replace(columns["count"], values=count)
    numbers = Column(np.arange(1, len(count) + 1), "1", "number of the group, from 1")
    return {_NAMES.get(name, name): column for name, column in columns.items()} | {"GroupIDs": numbers}


def write_dataset(group: h5py.Group, name: str, column: Column, header: SnapshotHeader) -> None:
    """Write a dataset with the attributes of a SWIFT dataset."""
    data = group.create_dataset(name, data=column.values)
    data.attrs.update(dataset_attributes(column.kind, column.definition, header))


def dataset_attributes(kind: str, definition: str, header: SnapshotHeader) -> dict[str, Any]:
    """Return the attributes of a SWIFT dataset.

    Args:
        kind: Kind of quantity, see `unit_powers`.
        definition: The definition in words.
        header: A header with units, unless the quantity has none.
    """
    a, _, length, mass, velocity = unit_powers(header, kind)
    powers = {"U_M": mass, "U_L": length + velocity, "U_t": -velocity}
    units = _units(header) if any(powers.values()) else {}
    factor = float(np.prod([units[unit] ** power for unit, power in powers.items() if power]))
    exponents = {f"{unit} exponent": power for unit, power in (powers | {"U_I": 0.0, "U_T": 0.0}).items()}
    exponents |= {"a-scale exponent": a, "h-scale exponent": 0.0}
    physical = factor * header.scale_factor**a
    return {
        **{name: np.array([power], np.float32) for name, power in exponents.items()},
        "Conversion factor to CGS (not including cosmological corrections)": np.array([factor]),
        "Conversion factor to physical CGS (including cosmological corrections)": np.array([physical]),
        "Description": np.bytes_(definition.encode()),
        "Expression for physical CGS units": np.bytes_(_expression(a, powers)),
        "Lossy compression filter": np.bytes_("None"),
        "Value stored as physical": np.array([int(a == 0)], np.int32),
        "Property can be converted to comoving": np.array([1], np.int32),
        "kind": kind,
    }


def _expression(a: float, powers: dict[str, float]) -> str:
    """Return an expression such as ``a U_L [ cm ]``."""
    factor = lambda name, power: name if power == 1 else f"{name}^{power:g}"  # noqa: E731
    symbols = [factor(name, power) for name, power in (("a", a), *powers.items()) if power]
    cgs = [factor(cgs, powers[unit]) for unit, cgs in _BASES if powers[unit]]
    return " ".join([*symbols, "[", *(cgs or ["-"]), "]"])


def _units(header: SnapshotHeader) -> dict[str, float]:
    """Return the units of mass, length and time in cgs, for a header that has them."""
    length, mass, velocity = (
        float(getattr(header, name) or 0)
        for name in ("unit_length_in_cm", "unit_mass_in_g", "unit_velocity_in_cm_per_s")
    )
    return {"U_M": mass, "U_L": length, "U_t": length / velocity}


def _write_header(file: h5py.File, header: SnapshotHeader, ngroups: int, kind: str) -> None:
    """Write header, units and cosmology. The units of the header must be free of h."""
    units, a = _units(header), header.scale_factor
    total = np.asarray(header.npart_total, np.uint64)
    attributes = {
        "Code": np.bytes_("jztree"),
        "OutputType": np.bytes_(kind),
        "BoxSize": np.broadcast_to(np.asarray(header.boxsize, np.float64), 3),
        "Dimension": np.array([3], np.int32),
        "Redshift": np.array([header.redshift]),
        "Scale-factor": np.array([a]),
        "NumPart_ThisFile": np.zeros(len(total), np.int64),
        "NumPart_Total": (total % _LOW).astype(np.uint32),
        "NumPart_Total_HighWord": (total // _LOW).astype(np.uint32),
        "NumFilesPerSnapshot": np.array([1], np.int32),
        "ThisFile": np.array([0], np.int32),
        "NumGroup_ThisFile": np.array([ngroups]),
        "NumGroup_Total": np.array([ngroups]),
        "UnitVelocity_in_cm_per_s": np.array([header.unit_velocity_in_cm_per_s]),
    }
    if not _is_cosmological(header):
        attributes["Time"] = np.array([header.time])
    file.create_group("Header").attrs.update(attributes)
    in_cgs = {_MASS: units["U_M"], _LENGTH: units["U_L"], _TIME: units["U_t"]}
    in_cgs |= {"Unit current in cgs (U_I)": 1.0, "Unit temperature in cgs (U_T)": 1.0}
    for name in ("Units", "InternalCodeUnits"):
        file.create_group(name).attrs.update({unit: np.array([value]) for unit, value in in_cgs.items()})
    file.create_group("Cosmology").attrs.update(
        {name: np.array([value]) for name, value in _cosmology(header, units["U_t"]).items()}
    )


def _is_cosmological(header: SnapshotHeader) -> bool:
    """Return whether a run is cosmological; without this flag, matter and redshift decide."""
    return bool(header.omega0) or header.redshift != 0 if header.comoving is None else header.comoving


def _cosmology(header: SnapshotHeader, time_in_s: float) -> dict[str, Any]:
    """Return the known cosmology in SWIFT's form. It has no radiation, because a Gadget header has none."""
    if not _is_cosmological(header):
        return {"Cosmological run": 0}
    omega0, omega_lambda = header.omega0 or 0.0, header.omega_lambda or 0.0
    omega_b = np.nan if header.omega_baryon is None else header.omega_baryon  # readers require it
    return {
        "Cosmological run": 1,
        "Redshift": header.redshift,
        "Scale-factor": header.scale_factor,
        "h": header.hubble,
        "H0 [internal units]": HUBBLE * (header.hubble or 0.0) * time_in_s,
        "Omega_m": omega0,
        "Omega_lambda": omega_lambda,
        "Omega_k": 1 - omega0 - omega_lambda,
        "Omega_r": 0.0,
        "Omega_b": omega_b,
        "Omega_cdm": omega0 - omega_b,
        "Omega_nu_0": 0.0,
        "w_0": -1.0,
        "w_a": 0.0,
    }


def fof_parameters(info: CatalogueInfo) -> dict[str, np.bytes_]:
    """Return the known parameters of SWIFT's group finder, as attributes of ``Parameters``."""
    values: dict[str, Any] = {"absolute_linking_length": info.linking_length, "min_group_size": info.npart_min}
    values |= {"group_id_offset": 1, "group_id_default": NO_GROUP}
    if info.ptype is not None:
        values["linking_types"] = "[" + ", ".join(str(int(ptype == info.ptype)) for ptype in range(7)) + "]"
    return {f"FOF:{name}": np.bytes_(str(value)) for name, value in values.items() if value is not None}


def read(path: Path) -> CatalogueContent:
    """Read a catalogue by SWIFT or `write`, in one file or several.

    In SWIFT's own files, columns that `FofCatalogue` has and SWIFT does not are None.

    Args:
        path: Any file of the catalogue.

    Raises:
        SnapshotError: If the catalogue cannot be read.
    """
    with open_hdf5(path) as file:
        header = parse_header(file, swift=True, counted=False)[0]
        info = read_info(file, header)
        group = get_group(file, "Header")
        total = whole_number(group, "NumGroup_Total")
    paths = all_parts(path, header.num_files)
    kinds = {name: column_kinds()[own] for own, name in _NAMES.items()}
    own = {name: own for own, name in _NAMES.items()}
    stored = read_columns(paths, "Groups", kinds, own, ndim=3)
    columns, by_type = split_types(
        path, {own.get(name, name): column for name, column in stored.items() if name != "GroupIDs"}
    )
    if total not in (None, len(columns["count"].values)):
        raise SnapshotError(
            f"{path} holds {len(columns['count'].values)} groups, but its header counts {total}; copy it again."
        )
    ids = read_ids(paths, _native_catalogue.MEMBERS, columns["count"].values)
    return replace(build_content(columns, ids, info, by_type), subhaloes=_subhaloes.read_table(paths, 3))


def read_info(file: h5py.File, header: SnapshotHeader) -> CatalogueInfo:
    """Return the origin of a catalogue, from the data of `write_frame` or SWIFT."""
    return CatalogueInfo(**(_read_parameters(file) | read_made(file)), header=header)


def _read_parameters(file: h5py.File) -> dict[str, Any]:
    """Return the linking length and the minimum number of particles, or None if SWIFT's parameters lack them."""
    length, fewest = (_parameter(file, f"FOF:{name}") for name in ("absolute_linking_length", "min_group_size"))
    return {
        "linking_length": length if length is not None and length > 0 else None,  # -1: a ratio was given instead
        "npart_min": None if fewest is None else int(fewest),
    }


def _parameter(file: h5py.File, name: str) -> float | None:
    """Return a parameter of SWIFT, which is text, as a number; None if it is missing or not a number."""
    text = text_attribute(file["Parameters"], name) if "Parameters" in file else ""
    try:
        return float(text)
    except ValueError:
        return None
