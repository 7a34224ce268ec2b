"""The particles of one group, from a snapshot and a catalogue."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from jztree.data import ParticleData

from ._catalogue import read_catalogue_content
from ._catalogue_content import CatalogueContent
from ._errors import SnapshotError
from ._files import PathLike
from ._read_options import ReadOptions
from ._snapshot import Snapshot, open_snapshot

_BLOCK = 2**22  # rows read at a time, so that memory does not grow with the snapshot


def read_members(
    snapshot: PathLike | Snapshot,
    catalogue: PathLike | CatalogueContent,
    group: int,
    ptype: int | None = None,
    fields: Sequence[str] = ("pos", "mass", "vel", "id"),
    options: ReadOptions | None = None,
) -> tuple[ParticleData, np.ndarray]:
    """Read the members of one group from the snapshot.

    The identifiers of members in the catalogue select the rows. The function reads the snapshot in blocks, and keeps
    only members.

    Args:
        snapshot: Path of a snapshot, see `find_parts`; or the result of `open_snapshot`.
        catalogue: Path of its catalogue; or the result of `read_catalogue_content`.
        group: Row of the group in the catalogue, from 0.
        ptype: The particle type; None means the type of the catalogue, or 1 if it is unknown.
        fields: Properties to read.
        options: Options for reading, if the format of the snapshot is not recognised.

    Returns:
        The ``m`` members, in the order of the catalogue, and their rows ``(m,)`` int64 in the snapshot.

    Raises:
        SnapshotError: If a file cannot be used, the catalogue has no identifiers, or the snapshot does not have each
            member once.
        IndexError: If the group does not exist.
        TypeError, ValueError: If ``group`` is not an integer, or ``ptype`` is not the type of an opened snapshot; see
            also `read_snapshot`.
    """
    is_content = isinstance(catalogue, CatalogueContent)
    content = catalogue if isinstance(catalogue, CatalogueContent) else read_catalogue_content(catalogue)
    if isinstance(snapshot, Snapshot) and ptype not in (None, snapshot.ptype):
        raise ValueError(
            f"ptype is {ptype}, but {snapshot.paths[0]} was opened for type {snapshot.ptype}; leave out ptype, or open "
            "the snapshot for that type."
        )
    own_type = ptype if ptype is not None else content.info.ptype
    particles = (
        snapshot
        if isinstance(snapshot, Snapshot)
        else open_snapshot(snapshot, 1 if own_type is None else own_type, options)
    )
    ids, num = _identifiers(content, "the catalogue" if is_content else str(catalogue), group, particles.ptype)
    rows = _rows_of(particles, ids, num, group)
    columns = {name: _read_rows(particles, name, rows) for name in particles.present(fields, ())}
    return ParticleData(**columns, num=len(rows), num_total=len(rows)), rows


def _identifiers(content: CatalogueContent, name: str, group: int, ptype: int) -> tuple[np.ndarray, int]:
    """Return the identifiers of all members of a group, and the number of members of a type.

    Args:
        content: The contents of the catalogue.
        name: Its name in messages.
        group: The row of the group.
        ptype: The type.
    """
    count, offset = np.asarray(content.catalogue.count), np.asarray(content.catalogue.offset)
    if not isinstance(group, (int, np.integer)):
        raise TypeError(f"group is {group!r}; it must be an integer, the row of one group in {name}.")
    if not 0 <= group < len(count):
        valid = f"{len(count)} groups; give a row from 0 to {len(count) - 1}" if len(count) else "no groups"
        raise IndexError(f"group is {group}, but {name} has {valid}.")
    if content.ids is None:
        raise SnapshotError(
            f"The members of group {group} are unknown, because {name} has no identifiers of members; write it with "
            "them (jztree fof without --no-ids)."
        )
    ids = content.ids[int(offset[group]) : int(offset[group] + count[group])]
    return ids, len(ids) if content.by_type is None else int(content.by_type.count[group, ptype])


def _rows_of(particles: Snapshot, ids: np.ndarray, num: int, group: int) -> np.ndarray:
    """Return the rows of particles with these identifiers, in their order. Raise SnapshotError unless there are num."""
    order = np.argsort(ids, kind="stable")
    sorted_ids = ids[order]
    rows, places = [np.zeros(0, np.int64)], [np.zeros(0, np.int64)]
    for start in range(0, particles.num, _BLOCK):
        block = particles.read("id", start, min(start + _BLOCK, particles.num)).astype(ids.dtype)
        place = np.minimum(np.searchsorted(sorted_ids, block), max(len(sorted_ids) - 1, 0))
        is_member = sorted_ids[place] == block if len(sorted_ids) else np.zeros(len(block), bool)
        rows.append(start + np.flatnonzero(is_member))
        places.append(order[place[is_member]])
    row, place = np.concatenate(rows), np.concatenate(places)
    if len(row) != num or len(np.unique(place)) != num:
        raise SnapshotError(
            f"group {group} has {num} members of type {particles.ptype}, but {particles.paths[0]} has {len(row)} "
            "particles of this type with their identifiers; give the snapshot from which the catalogue was made."
        )
    return row[np.argsort(place)]


def _read_rows(particles: Snapshot, name: str, rows: np.ndarray) -> Any:
    """Read some rows of a property; a number if all particles have the same."""
    if name == "mass" and particles.shared_mass is not None:
        return particles.shared_mass
    dtype, shape = particles.layout(name)
    values = np.empty((len(rows), *shape), dtype)
    block = rows // _BLOCK
    for number in np.unique(block).tolist():
        in_block = block == number
        block_rows = rows[in_block]
        start = int(block_rows.min())
        values[in_block] = particles.read(name, start, int(block_rows.max()) + 1)[block_rows - start]
    return values
