"""Catalogues in the layout of Gadget-4's group files, ``fof_tab_000.hdf5``.

The format: https://wwwmpa.mpa-garching.mpg.de/gadget4/08_groupfiles (Springel et al. 2021, MNRAS 506, 2871). ``Group``
has one row per group: particles of each type, the first particle of each type in a snapshot in group order, masses,
centre and velocity. Properties that Gadget-4 does not have keep their own names. Identifiers of members are in
``IDs/ID``, group by group.

``GroupPos`` is ``centre_pos``, the centre of the spheres ``Group_R_Crit200`` and others, as SUBFIND writes it.
``GroupCM`` is the centre of mass, like that of AREPO. A catalogue without ``centre_pos`` has the centre of mass as
``GroupPos``, and no ``GroupCM``.

Values are in Gadget's units, per h in cosmological runs. Velocities of groups are peculiar velocities times the scale
factor, like those of AREPO and its data releases (Nelson et al. 2019, ComAC 6, 2).
"""

from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np

from . import _subhaloes
from ._attributes import whole_number
from ._catalogue_content import (
    CENTRE,
    NUM_TYPES,
    CatalogueContent,
    CatalogueInfo,
    Column,
    TypeTable,
    build_content,
    catalogue_columns,
    convert_h,
    fitting_integer,
    read_columns,
    read_ids,
    write_column,
)
from ._errors import SnapshotError
from ._files import get_dataset, get_group, open_hdf5
from ._files_of_snapshot import all_parts
from ._hdf5_snapshots import scale_exponent
from ._header import SnapshotHeader, header_attributes, parse_header
from ._made_with import read_made, write_made

_POS, _COM = "GroupPos", "GroupCM"
_SPHERES = {"200c": "Crit200", "200m": "Mean200", "500c": "Crit500", "vir": "TopHat200"}
# The name in the file and the kind of each column of Gadget-4.
_KNOWN = {
    "count": ("GroupLen", "1"),
    "com_pos": (_POS, "length"),
    "mass": ("GroupMass", "mass"),
    "com_vel": ("GroupVel", "velocity*a"),
    **{f"m{name}": (f"Group_M_{sphere}", "mass") for name, sphere in _SPHERES.items()},
    **{f"r{name}": (f"Group_R_{sphere}", "length") for name, sphere in _SPHERES.items()},
}
_OTHERS = {_COM: "length", "GroupLenType": "1", "GroupMassType": "mass"}
# This library's names of the columns; of two identical names the last counts.
_OWN = {stored: name for name, (stored, _) in _KNOWN.items()}
_OWN |= {_COM: "com_pos", "GroupLenType": "count_by_type", "GroupMassType": "mass_by_type"}
_COMPUTED = (*_OTHERS, "GroupAscale", "GroupOffsetType", *_subhaloes.LINKS)
RESERVED = frozenset({name for name, _ in _KNOWN.values()} | set(_COMPUTED))
_SCALING = -1.0  # a peculiar velocity is the stored one times this power of the scale factor
_PARAMETERS = (
    "BoxSize",
    "Omega0",
    "OmegaLambda",
    "HubbleParam",
    "UnitLength_in_cm",
    "UnitMass_in_g",
    "UnitVelocity_in_cm_per_s",
    "ComovingIntegrationOn",
)


def recognises(file: h5py.File) -> bool:
    """Return whether an open file is a group catalogue of Gadget-4 or AREPO, or one in its layout."""
    return isinstance(file.get("Header"), h5py.Group) and "Ngroups_Total" in file["Header"].attrs


def write(file: h5py.File, content: CatalogueContent) -> None:
    """Write a three-dimensional catalogue into an empty file."""
    content = convert_h(content, h_free=False)
    header, cata = content.header, content.catalogue
    groups = file.create_group("Group")
    count = np.asarray(cata.count, np.int64)
    for name, column in _stored_columns(content, count).items():
        write_column(groups, name, column, header)
    if (ids := content.ids_by_group) is not None:
        write_column(file.create_group("IDs"), "ID", Column(ids, "1", "identifiers, group after group"), header)
    subhaloes = _subhaloes.write_gadget4(file, content, groups["GroupOffsetType"][()])
    sizes = {"groups": len(count), "ids": 0 if content.ids is None else len(content.ids), "subhalos": subhaloes}
    _write_header(file, content, sizes)
    write_made(file, content.info)


def _stored_columns(content: CatalogueContent, count: np.ndarray) -> dict[str, Column]:
    """Return the columns of ``Group``, by their names there, from counts ``(g,)`` int64."""
    columns = catalogue_columns(content.catalogue, content.extra)
    del columns["offset"]  # groups are contiguous
    a = content.header.scale_factor
    columns["count"] = replace(columns["count"], values=count.astype(fitting_integer(count)))
    if "com_vel" in columns:
        vel = columns["com_vel"].values
        words = "mass-weighted mean peculiar velocity times the scale factor"
        columns["com_vel"] = Column((vel * a).astype(vel.dtype), "velocity*a", words)
    table = content.by_type or _one_type(content, count)
    starts = np.cumsum(table.count, axis=0) - table.count
    centre, com = columns.pop(CENTRE, None), columns["com_pos"]
    stored = {_KNOWN[name][0] if name in _KNOWN else name: column for name, column in columns.items()}
    stored |= {} if centre is None else {_POS: centre, _COM: com}
    stored["GroupAscale"] = Column(np.full(len(count), a), "1", "scale factor")
    stored["GroupLenType"] = Column(
        table.count.astype(fitting_integer(table.count)), "1", "particles of each type in the group"
    )
    where = "row of the first particle of each type in the group, in a snapshot in group order"
    stored["GroupOffsetType"] = Column(starts, "1", where)
    if content.catalogue.mass is not None:
        stored["GroupMassType"] = Column(table.mass, "mass", "mass of each type in the group")
    return stored


def _one_type(content: CatalogueContent, count: np.ndarray) -> TypeTable:
    """Put all particles in the column of the grouped type."""
    ptype = 1 if content.info.ptype is None else content.info.ptype
    counts, mass = np.zeros((len(count), NUM_TYPES), np.int64), np.zeros((len(count), NUM_TYPES))
    counts[:, ptype] = count
    if content.catalogue.mass is not None:
        mass[:, ptype] = content.catalogue.mass
    return TypeTable(counts, mass)


def _write_header(file: h5py.File, content: CatalogueContent, sizes: dict[str, int]) -> None:
    header, attributes = content.info.header, file.create_group("Header").attrs
    sizes = sizes | {"subgroups": sizes["subhalos"]}  # yt and AREPO's readers look for this name
    attributes.update({f"N{name}_{where}": np.int64(n) for name, n in sizes.items() for where in ("ThisFile", "Total")})
    attributes["NumFiles"] = np.int32(1)
    if header is not None:
        attributes.update(header_attributes(header))
        write_parameters(file, header)


def write_parameters(file: h5py.File, header: SnapshotHeader) -> None:
    """Write Gadget-4's group of parameters: box, cosmology and units."""
    values = header_attributes(header)
    parameters = {name: values[name] for name in _PARAMETERS if name in values}
    file.create_group("Parameters").attrs.update(parameters)


def read(path: Path) -> CatalogueContent:
    """Read a catalogue that Gadget-4, AREPO or `write` has written, in one file or several.

    The result has the columns of `FofCatalogue`, those with a known Gadget name, and those with an attribute for their
    kind.

    Args:
        path: Any file of the catalogue.

    Raises:
        SnapshotError: If the catalogue cannot be read.
    """
    with open_hdf5(path) as file:
        group = get_group(file, "Header")
        total, num_files = whole_number(group, "Ngroups_Total"), whole_number(group, "NumFiles") or 1
        header = parse_header(file, counted=False)[0] if "BoxSize" in group.attrs else None
        info = CatalogueInfo(**read_made(file), header=header)
    paths = all_parts(path, num_files)
    stored = read_columns(paths, "Group", _OTHERS | dict(_KNOWN.values()), _OWN, ndim=3) or _no_groups()
    columns = _own_columns(stored, _velocity_factor(paths, info.header or SnapshotHeader()))
    if len(columns["count"].values) != total:
        raise SnapshotError(
            f"{path} holds {len(columns['count'].values)} groups, but its header counts {total}; copy it again."
        )
    content = build_content(columns, read_ids(paths, "IDs/ID", columns["count"].values), info, _read_types(stored))
    return replace(content, subhaloes=_subhaloes.read_gadget4(paths))


def _no_groups() -> dict[str, Column]:
    """Return the required columns of a catalogue. The codes leave them out without groups."""
    return {"GroupLen": Column(np.zeros(0, np.int32), "1", ""), _POS: Column(np.zeros((0, 3)), "length", "")}


def _velocity_factor(paths: list[Path], header: SnapshotHeader) -> float:
    """Return the factor from stored to peculiar velocities: the stored power of the scale factor, or AREPO's."""
    power: float | None = None
    for path in paths:
        with open_hdf5(path) as file:
            if power is None and "Group/GroupVel" in file:
                power = scale_exponent(get_dataset(file, "Group/GroupVel"))
    return float(header.scale_factor ** (_SCALING if power is None else power))


def _own_columns(stored: dict[str, Column], to_peculiar: float) -> dict[str, Column]:
    """Return the columns under their own names, with peculiar velocities."""
    centre = {CENTRE: stored[_POS]} if {_POS, _COM} <= stored.keys() else {}
    if _COM in stored:
        stored = stored | {_POS: stored[_COM]}
    held = {name: column for name, column in stored.items() if name not in _COMPUTED}
    columns = {_OWN.get(name, name): column for name, column in held.items()} | centre
    if "com_vel" in columns:
        vel = columns["com_vel"].values
        with np.errstate(over="ignore", invalid="ignore"):
            columns["com_vel"] = replace(columns["com_vel"], values=(vel * to_peculiar).astype(vel.dtype))
    return columns


def _read_types(stored: dict[str, Column]) -> TypeTable | None:
    """Return particles by type, None for a single type."""
    if "GroupLenType" not in stored:
        return None
    count = stored["GroupLenType"].values.astype(np.int64)
    mass = stored["GroupMassType"].values.astype(np.float64) if "GroupMassType" in stored else np.zeros(count.shape)
    if np.count_nonzero(count.any(axis=0)) < 2 or count[:, NUM_TYPES:].any():
        return None  # Gadget-4 can be compiled for more or fewer types
    missing = [(0, 0), (0, max(0, NUM_TYPES - count.shape[1]))]
    return TypeTable(np.pad(count, missing)[:, :NUM_TYPES], np.pad(mass, missing)[:, :NUM_TYPES])
