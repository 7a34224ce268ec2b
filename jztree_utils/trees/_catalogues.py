"""Merger trees of a sequence of catalogues with subhaloes."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jztree.links import SubhaloMembers, Weights

from .. import io
from ._building import build_trees
from ._linking import OutputMembers, link_outputs
from ._merger_trees import LinkedOutput, MergerTrees

_NO_SUBHALOES = (
    "{} has no subhaloes; give catalogues with subhaloes, such as fof_subhalo_tab files of Gadget-4 or AREPO, or files "
    "of jztree_utils.io.write_catalogue(subhaloes=...)."
)
_NO_IDS = (
    "{} has no identifiers of members, and its folder has no snapshot; write the catalogue with identifiers, or put "
    "the snapshot in group order into its folder."
)


# Entries of headers that are equal in all snapshots of a simulation.
_OF_A_RUN = ("boxsize", "omega0", "omega_lambda", "hubble", "unit_length_in_cm", "unit_mass_in_g")


class TreesOfCatalogues(NamedTuple):
    """Merger trees, the header of each snapshot, and the columns of the subhaloes: the arguments of `write_trees`."""

    trees: MergerTrees
    headers: dict[int, io.SnapshotHeader]
    properties: dict[str, io.Column]


def trees_of_catalogues(
    catalogues: Mapping[int, str | os.PathLike[str]], *, ptype: int = 1, weights: Weights = "sublink", skip: bool = True
) -> TreesOfCatalogues:
    """Build merger trees from catalogues with subhaloes.

    The members of each subhalo must be in the order of their binding energy. Catalogues of this library hold their
    identifiers. Gadget-4 and AREPO write them only to the snapshot, whose particles are in group order; the snapshot
    must then be in the folder of the catalogue, or in the folder ``snapdir_005`` next to it.

    Args:
        catalogues: A file of the catalogue of each snapshot, by its number.
        ptype: The type of the particles to read from snapshots.
        weights: See `jztree.descendants`.
        skip: Whether links may skip an output.

    Returns:
        The trees, headers, and all columns that every catalogue has, in units per h. The main branches follow the bound
        masses, or the numbers of particles if a catalogue has no masses.

    Raises:
        SnapshotError: If a file cannot be read, has no subhaloes or identifiers, or identifiers repeat.
        ValueError: If times descend, or the snapshots have another box, cosmology or units.
    """
    numbers = sorted(catalogues)
    tables: list[io.CatalogueContent] = []

    def outputs() -> Iterator[OutputMembers]:
        for number in numbers:
            content = io.convert_h(io.read_catalogue_content(catalogues[number]), h_free=False)
            members = _members(content, Path(catalogues[number]), ptype)
            tables.append(replace(content, ids=None))
            yield members

    links = link_outputs(outputs(), weights=weights, skip=skip)
    columns = [_columns(table) for table in tables]
    by_mass = all("SubhaloMass" in held for held in columns)
    linked = [
        LinkedOutput(
            snapshot=number,
            group=np.asarray(held["SubhaloGroupNr"].values),
            mass=np.asarray(held["SubhaloMass" if by_mass else "SubhaloLen"].values),
            descendant=np.asarray(link.subhalo),
            skips=np.asarray(link.skips),
        )
        for number, held, link in zip(numbers, columns, links, strict=True)
    ]
    headers = {number: table.header for number, table in zip(numbers, tables, strict=True)}
    _check_headers(headers)
    trees = build_trees(linked)
    return TreesOfCatalogues(trees, headers, _joined(columns, trees.order))


def _members(content: io.CatalogueContent, path: Path, ptype: int) -> OutputMembers:
    """Return the members of the subhaloes of a catalogue; their order takes the place of energies."""
    if content.subhaloes is None:
        raise io.SnapshotError(_NO_SUBHALOES.format(path))
    group, count = (np.asarray(content.subhaloes[name].values, np.int64) for name in ("group", "count"))
    offset = np.asarray(content.catalogue.offset, np.int64)
    if content.ids is None:
        count, offset = _rows_of_type(content, count, ptype)
    # The subhaloes of a group follow one another from its first member on.
    before = np.cumsum(count) - count
    start = offset[group] + before - before[np.searchsorted(group, group)]
    rows = io.member_rows(count, start)
    subhalo = np.repeat(np.arange(len(count)), count)
    if content.ids is not None:
        ids = content.ids[rows]
    else:
        ids = _ids_in_snapshot(path, ptype, rows)
        is_complete = count == np.asarray(content.subhaloes["count"].values)
        _check_group_order(
            path, content.subhaloes.get("most_bound_id"), ids, np.where(is_complete[subhalo], subhalo, -1)
        )
    if repeated := len(ids) - len(np.unique(ids)):
        raise io.SnapshotError(
            f"{path} has {repeated} members of subhaloes with the identifier of another member; identifiers must be "
            "unique, so write the catalogue or its snapshot again."
        )
    energy = (np.arange(len(rows)) - np.repeat(before, count)).astype(np.float32)
    return OutputMembers(SubhaloMembers(ids, subhalo, energy), len(count))


def _ids_in_snapshot(catalogue: Path, ptype: int, rows: np.ndarray) -> np.ndarray:
    """Return the identifiers of rows of the snapshot of a catalogue."""
    path = _snapshot_beside(catalogue)
    particles, end = io.open_snapshot(path, ptype), int(rows.max(initial=-1)) + 1
    if end > particles.num:
        raise io.SnapshotError(
            f"{catalogue} counts {end} members of type {ptype}, but {path} has {particles.num} particles of this type; "
            "give the catalogue of this snapshot."
        )
    ids: np.ndarray = particles.read("id", 0, end)[rows]
    return ids


def _check_group_order(path: Path, most_bound: io.Column | None, ids: np.ndarray, subhalo: np.ndarray) -> None:
    """Raise SnapshotError if a subhalo lacks its most bound particle. A subhalo with other types has members -1."""
    if most_bound is None or not len(ids):
        return
    is_most_bound = (subhalo >= 0) & (ids == most_bound.values[subhalo])
    missing = np.setdiff1d(subhalo[subhalo >= 0], subhalo[is_most_bound])
    if len(missing):
        raise io.SnapshotError(
            f"The snapshot in the folder of {path} is not in group order, because the most bound particle of subhalo "
            f"{missing[0]} is not among its members; write the catalogue with identifiers, or the snapshot in group "
            "order."
        )


def _rows_of_type(content: io.CatalogueContent, count: np.ndarray, ptype: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the number of particles of a type of each subhalo, and the first row of each group in a snapshot."""
    assert content.subhaloes is not None
    by_type = content.subhaloes.get("count_by_type")
    if by_type is not None:
        types = np.shape(by_type.values)[1]
        if ptype >= types:
            raise ValueError(f"The type of the particles is {ptype}, but the catalogue has types 0 to {types - 1}.")
        count = np.asarray(by_type.values, np.int64)[:, ptype]
    of_groups = content.catalogue.count if content.by_type is None else content.by_type.count[:, ptype]
    of_groups = np.asarray(of_groups, np.int64)
    return count, np.cumsum(of_groups) - of_groups


def _columns(content: io.CatalogueContent) -> dict[str, io.Column]:
    """Return the columns of the subhaloes under the names of Gadget-4, and the M200c of their groups."""
    assert content.subhaloes is not None
    columns = io.with_gadget4_names(content.subhaloes)
    m200c = content.extra.get("m200c")
    if m200c is not None:
        of_groups = np.asarray(m200c.values)[np.asarray(content.subhaloes["group"].values)]
        columns["Group_M_Crit200"] = replace(m200c, values=of_groups)
    return columns


def _joined(columns: list[dict[str, io.Column]], order: np.ndarray) -> dict[str, io.Column]:
    """Return the columns that all outputs have, with rows in the order of the trees."""
    names = [name for name in columns[0] if all(name in held for held in columns)] if columns else []
    parts = {name: [np.asarray(held[name].values) for held in columns] for name in names}
    return {
        name: replace(columns[-1][name], values=np.concatenate(values)[order])
        for name, values in parts.items()
        if len({value.shape[1:] for value in values}) == 1
    }


def _check_headers(headers: Mapping[int, io.SnapshotHeader]) -> None:
    """Raise ValueError unless the snapshots have one box, cosmology and units, and redshifts that do not rise."""
    for earlier, later in zip(list(headers), list(headers)[1:], strict=False):
        if headers[later].redshift > headers[earlier].redshift:
            raise ValueError(
                f"Snapshot {later} has redshift {headers[later].redshift:g}, but snapshot {earlier} before it "
                f"{headers[earlier].redshift:g}; number the snapshots in the order of time."
            )
        for name in _OF_A_RUN:
            values = getattr(headers[earlier], name), getattr(headers[later], name)
            if None not in values and not np.allclose(*values, rtol=1e-3, atol=0):
                raise ValueError(
                    f"{name} is {values[0]} in snapshot {earlier}, but {values[1]} in snapshot {later}; give the "
                    "outputs of one simulation, in the same units."
                )


def has_catalogue(path: str | os.PathLike[str]) -> bool:
    """Return whether a file is a catalogue, or a folder holds one. Raises SnapshotError if it cannot be read."""
    return _in_folder(Path(path), is_catalogue=True) is not None if Path(path).is_dir() else io.is_catalogue(path)


def find_catalogues(paths: Sequence[str | os.PathLike[str]]) -> dict[int, Path]:
    """Return a file of the catalogue of each snapshot, by the number at the end of its name.

    Args:
        paths: Catalogues, or folders that hold one each, in any order.

    Raises:
        SnapshotError: If a folder holds no catalogue.
        ValueError: If a name has no number, or two catalogues have the same.
    """
    files: list[Path] = []
    for path in map(Path, paths):
        file = _in_folder(path, is_catalogue=True) if path.is_dir() else path
        if file is None:
            raise io.SnapshotError(f"{path} holds no catalogue; give the catalogue of each snapshot, or its folder.")
        files.append(file)
    return number_outputs(paths, files)


def number_outputs(
    names: Sequence[str | os.PathLike[str]], files: Sequence[str | os.PathLike[str]] | None = None
) -> dict[int, Path]:
    """Return the files of outputs by the number at the end of each name. Several files of one output count once.

    Args:
        names: Names of files or folders.
        files: The file of each name; None if they are the same.

    Raises:
        ValueError: If a name has no number, or two outputs have the same.
    """
    numbered: dict[int, Path] = {}
    for name, path in zip(map(Path, names), map(Path, files or names), strict=True):
        digits = io.number_in_name(path) or io.number_in_name(name)
        if not digits:
            raise ValueError(f"The name of {name} has no number; give files with the numbers of their snapshots.")
        first = numbered.setdefault(int(digits), path)
        if (first.parent, io.base_name(first)) != (path.parent, io.base_name(path)):
            raise ValueError(f"{first} and {path} have the same number, {int(digits)}; give only one of them.")
    return numbered


def _snapshot_beside(catalogue: Path) -> Path:
    """Return a file of the snapshot of a catalogue, in its folder or in that of Gadget-4's snapshots."""
    digits = io.number_in_name(catalogue)
    for folder in (catalogue.parent, catalogue.parent.parent / f"snapdir_{digits}"):
        path = _in_folder(folder, is_catalogue=False, digits=digits) if folder.is_dir() else None
        if path is not None:
            return path
    raise io.SnapshotError(_NO_IDS.format(catalogue))


def _in_folder(folder: Path, is_catalogue: bool, digits: str = "") -> Path | None:
    """Return the first file in a folder that is a catalogue or none, and has these digits in its name."""
    try:
        files = sorted(file for file in folder.iterdir() if file.suffix == ".hdf5" and not file.name.startswith("."))
    except OSError as error:
        raise io.unreadable(folder, error) from None
    return next(
        (f for f in files if io.number_in_name(f).endswith(digits) and io.is_catalogue(f) == is_catalogue), None
    )
