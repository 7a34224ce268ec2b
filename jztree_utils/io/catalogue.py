"""Friends-of-friends catalogues and neighbour lists in HDF5: the canonical order of groups, writing and reading.

A catalogue file has the groups ``Header`` (attributes as in a Gadget-4 snapshot), ``FriendsOfFriends`` (attributes:
linking length and so on), ``Groups`` (a dataset a property of `jztree.data.FofCatalogue`, under the same name) and,
where the members are known, ``Members`` (identifiers; those of group g are ``id[offset[g] : offset[g] + count[g]]``).
A neighbour file has ``Header`` and ``Neighbours``. Every dataset has its unit as attributes.
"""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import h5py
import jax
import numpy as np

from jztree.data import FofCatalogue, get_pos, map_rows, squeeze_catalogue, squeeze_particles

from ._files import PathLike, SnapshotError, create_hdf5, get_dataset, get_group, open_hdf5
from .header import SnapshotHeader, header_attributes, parse_header, unit_attributes

_Part = TypeVar("_Part")
_COLUMNS = {
    "count": ("1", "particles of the group"),
    "offset": ("1", "row of the group's first particle among the members"),
    "com_pos": ("length", "centre of mass, comoving, inside the box"),
    "com_inertia_radius": ("length", "root of the mass-weighted mean squared distance from com_pos, comoving"),
    "max_radius": ("length", "largest distance of a particle from com_pos, comoving"),
    "mass": ("mass", "total mass"),
    "com_vel": ("velocity", "mass-weighted mean peculiar velocity"),
    "vel_dispersion": ("velocity", "one-dimensional velocity dispersion"),
}
_REQUIRED = ("count", "offset", "com_pos", "com_inertia_radius", "max_radius")


@dataclass(frozen=True, kw_only=True)
class CatalogueInfo:
    """How a catalogue was made; None is what is not known.

    linking_length: in the unit of length of the particles.
    npart_min: the fewest particles of a group in the catalogue.
    num_particles: particles that were grouped, members and others.
    ptype: their type in the snapshot.
    source: name of the snapshot.
    header: header of the snapshot: box, cosmology, units.
    """

    linking_length: float | None = None
    npart_min: int | None = None
    num_particles: int | None = None
    ptype: int | None = None
    source: str | None = None
    header: SnapshotHeader | None = None


@dataclass(kw_only=True)
class Neighbours:
    """Neighbour lists of ``n`` particles, a row a particle, in the order of the snapshot.

    distances: ``(n, k)`` float32 or float64, comoving, ascending.
    indices: ``(n, k)`` integers, rows of the neighbours.
    density: ``(n,)`` mass (or particles, if ``by_number``) per comoving volume, or None.
    by_number: whether ``density`` counts particles.
    ndim: dimensions of the volume that ``density`` refers to.
    id: ``(n,)`` integers, identifiers of the particles, or None.
    header: header of the snapshot: box, cosmology, units.
    """

    distances: Any
    indices: Any
    density: Any = None
    by_number: bool = False
    ndim: int = 3
    id: Any = None
    header: SnapshotHeader | None = None


def canonical_order(part: _Part, cata: FofCatalogue) -> tuple[_Part, FofCatalogue]:
    """Particles and catalogue in the order in which they are written: the same whatever computed them.

    part: particles in group order, ``n`` rows, with ``id`` or without; of several ranks, joined to one set.
    cata: the catalogue of ``part``, its ``offset`` a row of the joined set.

    Returns both without padding and as NumPy arrays: the largest group first, equal ones by the smallest identifier (or
    in the order they have, without identifiers); the particles of a group by identifier; those of no group last.
    Raises ValueError if ``cata`` is not the catalogue of ``part``.
    """
    part, cata = squeeze_particles(jax.device_get(part)), squeeze_catalogue(jax.device_get(cata))
    count, offset = np.asarray(cata.count, np.int64), np.asarray(cata.offset, np.int64)
    n = get_pos(part).shape[0]
    ids = getattr(part, "id", None)
    keys = np.arange(n) if ids is None else np.asarray(ids)
    by_row = np.argsort(offset, kind="stable")
    bounds = np.concatenate([[0], np.stack([offset, offset + count], axis=1)[by_row].ravel(), [n]])
    if (np.diff(bounds) < 0).any():
        raise ValueError(f"The catalogue does not belong to these {n} particles: its groups do not follow each other.")
    starts = np.cumsum(count[by_row]) - count[by_row]
    members = np.repeat(offset[by_row] - starts, count[by_row]) + np.arange(count.sum())
    smallest = np.empty(len(count), keys.dtype)
    if len(count):
        smallest[by_row] = np.minimum.reduceat(keys[members], starts)
    order = np.lexsort((smallest, -count))
    rank = np.empty(len(count), np.int64)
    rank[order] = np.arange(len(count))
    group = np.full(n, len(count))
    group[members] = np.repeat(rank[by_row], count[by_row])
    rows = np.lexsort((keys, group))
    sorted_part = map_rows(lambda leaf: np.asarray(leaf)[rows], part)
    columns = {name: getattr(cata, name) for name in _COLUMNS if getattr(cata, name) is not None}
    columns = {name: np.asarray(column)[order] for name, column in columns.items()}
    columns["offset"] = (np.cumsum(count[order]) - count[order]).astype(columns["offset"].dtype)
    return sorted_part, FofCatalogue(ngroups=len(count), **columns)


def write_catalogue(path: PathLike, cata: FofCatalogue, members: Any = None, info: CatalogueInfo | None = None) -> None:
    """Write a catalogue as HDF5, with the unit of each dataset as attributes.

    path: the file to write; an existing one is replaced once the new one is complete.
    cata: the catalogue, of JAX or NumPy arrays; its unused rows are left out. `canonical_order` gives the order that
        does not depend on what computed it.
    members: ``(m,)`` integers, identifiers of the members in the order that ``cata.offset`` refers to, or None.
    info: how the catalogue was made.
    Raises OutputError if the file cannot be written, ValueError if ``members`` are not what the catalogue counts.
    """
    cata, info = squeeze_catalogue(cata), info or CatalogueInfo()
    counted = int(np.asarray(cata.count, np.int64).sum())
    if members is not None and np.shape(members) != (counted,):
        raise ValueError(
            f"The catalogue counts {counted} members, but members of shape {np.shape(members)} were given."
        )
    header = info.header or SnapshotHeader()
    with create_hdf5(path) as file:
        _write_header(file, info.header)
        made = {f.name: getattr(info, f.name) for f in dataclasses.fields(info) if f.name != "header"}
        attributes = file.create_group("FriendsOfFriends").attrs
        attributes.update({name: value for name, value in made.items() if value is not None})
        groups = file.create_group("Groups")
        for name, (unit, meaning) in _COLUMNS.items():
            if getattr(cata, name) is not None:
                _write_column(groups, name, getattr(cata, name), unit, meaning, header)
        if members is not None:
            _write_column(file.create_group("Members"), "id", members, "1", "identifiers, group after group", header)


def read_catalogue(path: PathLike) -> tuple[FofCatalogue, np.ndarray | None, CatalogueInfo]:
    """A catalogue that `write_catalogue` has written: groups (NumPy arrays), members or None, and how it was made.

    Raises SnapshotError if it cannot be read, or is not a catalogue.
    """
    with open_hdf5(Path(path)) as file:
        groups = get_group(file, "Groups")
        names = [name for name in _COLUMNS if name in groups or name in _REQUIRED]
        columns = {name: get_dataset(file, f"Groups/{name}")[()] for name in names}
        lengths = {len(column) for column in columns.values()}
        if len(lengths) != 1:
            raise SnapshotError(f"{path} is not a catalogue: its columns have {sorted(lengths)} rows; write it again.")
        members = get_dataset(file, "Members/id")[()] if "Members" in file else None
        made = {name: _plain(value) for name, value in get_group(file, "FriendsOfFriends").attrs.items()}
        known = {f.name for f in dataclasses.fields(CatalogueInfo)}
        info = CatalogueInfo(
            header=_read_header(file), **{name: value for name, value in made.items() if name in known - {"header"}}
        )
    return FofCatalogue(ngroups=lengths.pop(), **columns), members, info


def write_neighbours(path: PathLike, neighbours: Neighbours) -> None:
    """Write neighbour lists as HDF5, with the unit of each dataset as attributes.

    path: the file to write; an existing one is replaced once the new one is complete.
    Raises OutputError if the file cannot be written.
    """
    header, k = neighbours.header or SnapshotHeader(), np.shape(neighbours.distances)[-1]
    kind = "number density" if neighbours.by_number else "density"
    meaning = f"from the {k} nearest particles, the particle itself among them, per comoving volume"
    columns = {
        "distances": ("length", "comoving distances, the nearest first, the particle itself among them"),
        "indices": ("1", "rows of the neighbours, in the order of the snapshot"),
        "density": (kind, f"{kind} {meaning}"),
        "id": ("1", "identifiers of the particles"),
    }
    with create_hdf5(path) as file:
        _write_header(file, neighbours.header)
        group = file.create_group("Neighbours")
        group.attrs.update({"by_number": neighbours.by_number, "ndim": neighbours.ndim})
        for name, (unit, words) in columns.items():
            if getattr(neighbours, name) is not None:
                _write_column(group, name, getattr(neighbours, name), unit, words, header, neighbours.ndim)


def read_neighbours(path: PathLike) -> Neighbours:
    """Neighbour lists that `write_neighbours` has written, as NumPy arrays.

    Raises SnapshotError if they cannot be read.
    """
    with open_hdf5(Path(path)) as file:
        group = get_group(file, "Neighbours")
        names = ["distances", "indices", *(name for name in ("density", "id") if name in group)]
        columns = {name: get_dataset(file, f"Neighbours/{name}")[()] for name in names}
        by_number, ndim = bool(group.attrs.get("by_number", False)), int(group.attrs.get("ndim", 3))
        return Neighbours(**columns, by_number=by_number, ndim=ndim, header=_read_header(file))


def _write_column(
    group: h5py.Group, name: str, column: Any, unit: str, meaning: str, header: SnapshotHeader, ndim: int = 3
) -> None:
    data = group.create_dataset(name, data=np.asarray(column))
    data.attrs.update(unit_attributes(header, unit, ndim) | {"description": meaning})


def _write_header(file: h5py.File, header: SnapshotHeader | None) -> None:
    if header is not None:
        attributes = file.create_group("Header").attrs
        attributes.update(header_attributes(header))
        attributes["NumPart_ThisFile"] = np.zeros(len(header.npart_total), np.uint64)  # no particles in this file


def _read_header(file: h5py.File) -> SnapshotHeader | None:
    return parse_header(file)[0] if "Header" in file else None


def _plain(value: Any) -> Any:
    return value.item() if isinstance(value, np.generic) else value
