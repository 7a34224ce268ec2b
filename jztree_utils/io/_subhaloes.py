"""Subhaloes in catalogues: their columns, validation, and the groups ``Subhalo`` (Gadget-4) and ``Subhaloes`` (others).

A table of subhaloes is a mapping from names to `Column`, with one row per subhalo. The rows are in the order of the
groups, and the central is the first subhalo of its group. Members are in the same order: in each group, those of its
first subhalo, then those of the second, and last the particles of no subhalo; the most bound particle of each subhalo
comes first.

Gadget-4's names: https://wwwmpa.mpa-garching.mpg.de/gadget4/08_groupfiles. ``SubhaloGrNr``, the name in AREPO, is a
link to ``SubhaloGroupNr``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import h5py
import numpy as np

from ._catalogue_content import NUMBERS, Column, fitting_integer, member_rows, read_columns, write_column
from ._errors import SnapshotError
from ._files import PathLike, open_hdf5

if TYPE_CHECKING:
    from ._catalogue_content import CatalogueContent

_OWN_TABLE, _GADGET = "Subhaloes", "Subhalo"
# The name in Gadget-4's layout, and the kind, of each column with a name there.
_KNOWN = {
    "group": ("SubhaloGroupNr", "1"),
    "count": ("SubhaloLen", "1"),
    "mass": ("SubhaloMass", "mass"),
    "pos": ("SubhaloPos", "length"),
    "com_pos": ("SubhaloCM", "length"),
    "vel": ("SubhaloVel", "velocity"),
    "half_mass_radius": ("SubhaloHalfmassRad", "length"),
    "vmax": ("SubhaloVmax", "velocity"),
    "rmax": ("SubhaloVmaxRad", "length"),
    "vel_dispersion": ("SubhaloVelDisp", "velocity"),
    "angular_momentum": ("SubhaloSpin", "length*velocity"),
    "most_bound_id": ("SubhaloIDMostbound", "1"),
    "count_by_type": ("SubhaloLenType", "1"),
    "mass_by_type": ("SubhaloMassType", "mass"),
}
_OWN = {stored: name for name, (stored, _) in _KNOWN.items()}
_IN_AREPO = "SubhaloGrNr"
_RANK, _PARENT_RANK, _OFFSETS = "SubhaloRankInGr", "SubhaloParentRank", "SubhaloOffsetType"
LINKS = ("GroupFirstSub", "GroupNsubs")  # columns of groups in Gadget-4's layout
_COMPUTED = (_IN_AREPO, _RANK, _PARENT_RANK, _OFFSETS)
# The column of a catalogue of groups with the same form, for columns that are more than a number per subhalo.
_FORMS = {
    "count": "count",
    "pos": "com_pos",
    "com_pos": "com_pos",
    "vel": "com_vel",
    "angular_momentum": "angular_momentum",
    "count_by_type": "count_by_type",
    "mass_by_type": "mass_by_type",
}


def check_subhaloes(subhaloes: Mapping[str, Column], counts: np.ndarray) -> None:
    """Check a table of subhaloes.

    Args:
        subhaloes: The columns. ``group``, ``count`` and ``pos`` are required; ``parent`` is a row of the table, -1 for
            none.
        counts: ``(g,)``, the number of particles of each group.

    Raises:
        ValueError: If a column is missing or has another length, if the rows are not in the order of the groups, or if
            the subhaloes of a group have more particles than the group.
    """
    for name in ("group", "count", "pos"):
        if name not in subhaloes:
            raise ValueError(f"The subhaloes have no column {name}; give at least group, count and pos.")
    rows = len(subhaloes["group"].values)
    for name, column in subhaloes.items():
        values = np.asarray(column.values)
        if values.shape[:1] != (rows,) or values.dtype.kind not in NUMBERS or "/" in name or not name.strip("."):
            raise ValueError(
                f"The column {name!r} of the subhaloes has {values.dtype} of shape {values.shape}; give numbers with a "
                f"row for each of {rows} subhaloes, and a name without a slash."
            )
    group, count = (np.asarray(subhaloes[name].values, np.int64) for name in ("group", "count"))
    if rows and (group.min() < 0 or group.max() >= len(counts) or (np.diff(group) < 0).any()):
        raise ValueError(
            f"The groups of the subhaloes must ascend from 0 to at most {len(counts) - 1}, the last group; sort the "
            "subhaloes like the groups."
        )
    bound = np.bincount(group, count, len(counts)).astype(np.int64)
    if rows and (count.min() < 1 or (bound > counts).any()):
        row = int(np.argmax(bound > counts))
        raise ValueError(
            f"The subhaloes of group {row} have {bound[row]} particles, but the group has {counts[row]}, and each "
            "subhalo needs one; give the table of the same groups."
        )


def first_subhaloes(group: np.ndarray, ngroups: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the first subhalo of each group, -1 for none, and the number of its subhaloes, from ``(s,)`` groups."""
    number = np.bincount(group, minlength=ngroups)
    return np.where(number > 0, np.cumsum(number) - number, -1), number


def order_by_binding(group: np.ndarray, subhalo: np.ndarray, energy: np.ndarray) -> np.ndarray:
    """Return the rows of particles in the order of a catalogue with subhaloes.

    Args:
        group: ``(n,)``, the group of each particle, -1 for none.
        subhalo: ``(n,)``, its subhalo, -1 for none.
        energy: ``(n,)``, its energy.

    Returns:
        ``(n,)`` rows: group after group, and in each group one subhalo after the other and the particles of no subhalo
        last. The most bound particle of each subhalo comes first. Particles of no group come last.
    """
    last = np.int64(np.iinfo(np.int64).max)
    keys = [np.where(np.asarray(key) < 0, last, key) for key in (subhalo, group)]
    return np.lexsort((energy, *keys))


def write_table(
    file: h5py.File, content: CatalogueContent, write: Callable[..., None], group: str = _OWN_TABLE
) -> None:
    """Write the subhaloes of a catalogue, if there are any, under the names of this library.

    Args:
        file: The file.
        content: The catalogue.
        write: Function of group, name, column and header that writes a column.
        group: The group of the table.
    """
    if content.subhaloes is not None:
        rows = file.require_group(group)
        for name, column in content.subhaloes.items():
            write(rows, name, column, content.header)


def read_table(paths: Sequence[Path], ndim: int | None = None, group: str = _OWN_TABLE) -> dict[str, Column] | None:
    """Read the subhaloes that `write_table` has written, or None."""
    return _read(paths, group, {name: name for name in _KNOWN}, ndim)


def write_gadget4(file: h5py.File, content: CatalogueContent, by_type: np.ndarray) -> int:
    """Write the group ``Subhalo``, and the links of ``Group`` to it; return the number of subhaloes.

    Args:
        file: The file, with a group ``Group``.
        content: The catalogue. Without subhaloes, the group is empty.
        by_type: ``(g, 6)`` int64, the first row of each type of each group in a snapshot in group order.
    """
    rows = file.create_group(_GADGET)  # yt and pynbody read it, even if it is empty
    if content.subhaloes is None:
        return 0
    columns, header = dict(content.subhaloes), content.header
    group = np.asarray(columns["group"].values, np.int64)
    first, number = first_subhaloes(group, len(by_type))
    links = (
        Column(first.astype(fitting_integer(first)), "1", "first subhalo of the group, -1 for none"),
        Column(number.astype(np.int32), "1", "number of subhaloes of the group"),
    )
    for name, column in zip(LINKS, links, strict=True):
        write_column(file["Group"], name, column, header)
    stored = with_gadget4_names(columns)
    rank = np.arange(len(group)) - first[group]
    stored[_RANK] = Column(rank.astype(np.int32), "1", "rank of the subhalo in its group, 0 for the central")
    if "parent" in columns:
        parent = np.asarray(columns["parent"].values, np.int64)
        above = np.where(parent < 0, 0, parent - first[group])
        stored[_PARENT_RANK] = Column(above.astype(np.int32), "1", "rank of the parent in the group, 0 for the central")
    counts = counts_by_type(content)
    if counts is not None:
        before = np.cumsum(counts, axis=0) - counts
        start = by_type[group] + before - before[first[group]]
        words = "row of the first particle of each type in the subhalo, in a snapshot in group order"
        stored[_OFFSETS] = Column(start, "1", words)
        stored["SubhaloLenType"] = Column(counts.astype(fitting_integer(counts)), "1", "particles of each type")
    for name, column in stored.items():
        write_column(rows, name, column, header)
    rows[_IN_AREPO] = rows["SubhaloGroupNr"]
    return len(group)


def with_gadget4_names(subhaloes: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns of subhaloes under their names in Gadget-4, such as ``SubhaloPos``, without the parents."""
    return {_KNOWN[name][0] if name in _KNOWN else name: subhaloes[name] for name in subhaloes if name != "parent"}


def members_of_subhaloes(subhaloes: Mapping[str, Column], counts: np.ndarray) -> np.ndarray:
    """Return the subhalo of each member of the groups, in the order of the members; -1 for none.

    Args:
        subhaloes: The columns, see `check_subhaloes`.
        counts: ``(g,)``, the number of particles of each group.
    """
    group, count = (np.asarray(subhaloes[name].values, np.int64) for name in ("group", "count"))
    first, _ = first_subhaloes(group, len(counts))
    before = np.cumsum(count) - count
    start = (np.cumsum(counts) - counts)[group] + before - before[first[group]]
    subhalo = np.full(int(counts.sum()), -1)
    subhalo[member_rows(count, start)] = np.repeat(np.arange(len(group)), count)
    return subhalo


def counts_by_type(content: CatalogueContent) -> np.ndarray | None:
    """Return the particles of each type of each subhalo, ``(s, 6)`` int64, or None if they are unknown."""
    assert content.subhaloes is not None
    if "count_by_type" in content.subhaloes:
        return np.asarray(content.subhaloes["count_by_type"].values, np.int64)
    if content.by_type is not None:
        return None
    count = np.asarray(content.subhaloes["count"].values, np.int64)
    counts = np.zeros((len(count), 6), np.int64)
    counts[:, 1 if content.info.ptype is None else content.info.ptype] = count
    return counts


def read_gadget4(paths: Sequence[Path]) -> dict[str, Column] | None:
    """Read the subhaloes that Gadget-4, AREPO or `write_gadget4` has written, or None."""
    columns = _read(paths, _GADGET, {_IN_AREPO: "group", **_OWN}, 3)
    if columns is None:
        return None
    group = np.asarray(columns["group"].values, np.int64)
    above = columns.pop(_PARENT_RANK, None)
    if above is not None and len(group) and group.min() >= 0:
        first, _ = first_subhaloes(group, int(group.max()) + 1)
        is_central = np.arange(len(group)) == first[group]
        parent = np.where(is_central, -1, first[group] + above.values)
        columns["parent"] = replace(above, values=parent, definition="parent, a subhalo, -1 for none")
    return {name: column for name, column in columns.items() if name not in _COMPUTED}


def _read(paths: Sequence[Path], group: str, names: Mapping[str, str], ndim: int | None) -> dict[str, Column] | None:
    """Read a table of subhaloes.

    Args:
        paths: The files of the catalogue.
        group: The group of the table.
        names: Names of this library by the names in the files.
        ndim: Number of dimensions, None to take it from the positions.
    """
    if not any(map(functools.partial(_has_groups, group=group, names=names), paths)):
        return None
    forms = {stored: _FORMS[name] for stored, name in names.items() if name in _FORMS}
    kinds = {stored: _KNOWN[name][1] for stored, name in names.items()}
    kinds |= {_PARENT_RANK: "1"} if group == _GADGET else {}
    columns = read_columns(paths, group, kinds, forms, ndim)
    return {names.get(stored, stored): column for stored, column in columns.items()}


def _has_groups(path: Path, group: str, names: Mapping[str, str]) -> bool:
    """Return whether a file has the groups of subhaloes."""
    with open_hdf5(path) as file:
        return any(f"{group}/{stored}" in file for stored, name in names.items() if name == "group")


def check_read(path: PathLike, subhaloes: Mapping[str, Column], counts: np.ndarray) -> None:
    """Raise SnapshotError if the subhaloes of a file do not belong to its groups."""
    try:
        check_subhaloes(subhaloes, counts)
    except ValueError as error:
        raise SnapshotError(f"{path} holds wrong subhaloes. {error}") from None
