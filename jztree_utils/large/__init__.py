"""Groups, neighbours and counts among more particles than memory holds.

The particles come in pieces: arrays, memory-mapped files, or the files of a snapshot. `friends_of_friends` reads all
positions once and the properties of the members of groups once, and keeps sorted copies in a folder on disk.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from jztree.config import CatalogueConfig, FofConfig
from jztree.data import FofCatalogue, ParticleData
from jztree.fof import ATTACH_WITHIN, fof_and_catalogue

from .._arrays import box_lengths
from ._members import Members
from ._pieces import Pieces as Pieces
from ._pieces import attached_types
from ._pieces import joined_types as joined_types
from ._pieces import pieces_of as pieces_of
from ._plan import disk_bytes as disk_bytes
from ._plan import rows_in as rows_in
from ._queries import Neighbours, count_within, nearest
from ._runs import capacity_for as capacity_for
from ._runs import padded as padded
from ._search import Search
from ._steps import earlier_run
from ._sweep import find_groups
from ._team import Team
from ._windows import Compute, Windows
from ._windows import NearGroups as NearGroups
from ._windows import Window as Window

__all__ = ["LargeGroups", "Neighbours", "count_within", "friends_of_friends", "nearest"]

_NOT_SHARED = (
    "The first process has created the folder {folder}, but another process does not see it; write the output to a "
    "file system that all machines share."
)


class LargeGroups:
    """Friends-of-friends groups on disk; see `friends_of_friends`.

    Use it in a ``with`` statement, or call `close`, to remove the temporary files.

    Attributes:
        catalogue: The properties of the listed groups as NumPy arrays, the largest group first. ``offset`` is a row of
            the particles in `members`.
        corners: ``(2, d)``, the smallest and the largest coordinates of all types.
        slabs: Number of slabs that were searched one after the other.
    """

    def __init__(self, members: Members, lengths: list[int]) -> None:
        self.catalogue: FofCatalogue = members.catalogue()
        self.corners = members.joined.corners
        self.slabs = members.joined.slabs
        self._members, self._lengths = members, lengths

    def labels(self) -> Iterator[np.ndarray]:
        """Yield the label of each particle, piece by piece: the smallest row of its group, over all pieces."""
        parts = self._members.labels()
        held = np.empty(0, self._members.search.index)
        for length in self._lengths:
            while len(held) < length:
                held = np.concatenate([held, next(parts)])
            yield held[:length]
            held = held[length:]

    def numbers(self) -> np.ndarray:
        """Return the row in the catalogue of the group of each particle; without a listed group, the number of groups.

        The result takes 4 bytes per particle.
        """
        ngroups = self.catalogue.ngroups
        result = np.empty(sum(self._lengths), np.int32 if ngroups < 2**31 else np.int64)
        start = 0
        for label in self._members.labels():
            number = self._members.joined.numbers(label)
            result[start : start + len(label)] = np.where(number < 0, ngroups, number)
            start += len(label)
        return result

    def members(self) -> Iterator[tuple[ParticleData, np.ndarray]]:
        """Yield the particles of listed groups in group order, and their rows over all pieces, in blocks."""
        yield from self._members.blocks()

    def ids(self) -> np.ndarray:
        """Return the identifiers of all members, if groups are in their order; without identifiers, the rows."""
        return self._members.ids()

    def rows(self) -> np.ndarray:
        """Return the rows of all members in the new order of `near_groups`."""
        return self._members.rows()

    def by_type(self) -> tuple[np.ndarray, np.ndarray] | None:
        """Return numbers and masses of the particles of each type in groups, ``(g, types)``; None for a single type."""
        return self._members.by_type() if self._members.search.attaches else None

    def near_groups(
        self, compute: Compute, others: Sequence[Pieces] = ()
    ) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return columns and lists of all groups that depend on particles around them; see `Windows.results`.

        The search must keep the particles.

        Args:
            compute: Returns the results for a window.
            others: The particles of other types. Then ``corners`` includes them.
        """
        windows = Windows(self._members, others)
        corners = np.stack(windows.corners)
        self.corners = np.stack([corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)])
        return windows.results(compute)

    def together(self) -> AbstractContextManager[None]:
        """Return a context that waits for all processes at its end, and raises on all if one fails."""
        return self._members.search.team.together()

    def close(self) -> None:
        """Remove the files. `labels` and `members` then raise errors."""
        if self._members.search.team.leads:
            shutil.rmtree(self._members.search.folder, ignore_errors=True)

    def __enter__(self) -> LargeGroups:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def friends_of_friends(
    pieces: Any,
    rlink: float,
    boxsize: ArrayLike | None = None,
    *,
    memory: float | None = None,
    npart_min: int = 20,
    attached: Sequence[Any] = (),
    attach_within: float | None = ATTACH_WITHIN,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    quiet: bool = False,
) -> LargeGroups:
    """Find friends-of-friends groups of more particles than memory holds.

    Groups, labels, counts and the order of the catalogue are the same as from `jztree.group_labels` and
    `jztree.friends_of_friends` for all pieces together; sums agree up to rounding. The largest group and its particles
    must fit into memory.

    Args:
        pieces: The particles: a list of arrays ``(n, d)``, d from 1 to 4, which may be memory-mapped; of particle
            classes with ``mass``, ``vel`` and ``id``; or a snapshot from `jztree_utils.io.open_snapshot`. All have the
            same properties and dtypes. Each piece is read twice.
        rlink: The linking length, one number.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
        memory: Bytes that this process may use. None means three quarters of the free memory.
        npart_min: Smallest number of particles of a listed group.
        attached: The particles of other types, which join the group of the nearest particle of ``pieces``, one entry
            like ``pieces`` for each type, with the same properties. Their rows continue from the last row of
            ``pieces``, and their labels follow.
        attach_within: Largest distance to that nearest particle, in linking lengths; None means no limit. See
            `jztree.friends_of_friends`.
        folder: Folder for temporary files, up to 1.5 times the bytes of the particles. If a run was interrupted, a call
            with the same arguments continues it, and its results have the same bits. None means a new folder in the
            system's folder for temporary files; an error removes it.
        mesh: Devices that share the work; None means one. All of their processes make the same call, with a folder that
            they share.
        quiet: Whether to report no progress.

    Returns:
        The groups. They read labels and members from the folder.

    Raises:
        TypeError, ValueError: For invalid arguments, or if a position, mass or velocity is NaN or infinite.
        SnapshotError: If a file of a snapshot cannot be read.

    Examples:
        >>> from jztree_utils import large
        >>> pos = np.random.default_rng(0).random((500, 3), np.float32)
        >>> with large.friends_of_friends([pos[:200], pos[200:]], 0.1, 1.0, npart_min=2, quiet=True) as groups:
        ...     label = np.concatenate(list(groups.labels()))
        >>> bool((label == jz.group_labels(pos, 0.1, boxsize=1.0)).all())
        True
    """
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=npart_min))
    linked = pieces_of(pieces)
    types = [linked, *attached_types(linked, attached)]
    options: dict[str, Any] = {"memory": memory, "folder": folder, "mesh": mesh, "quiet": quiet}
    return group_pieces(types, rlink, boxsize, cfg, attach_within=attach_within, **options)


def group_pieces(
    types: Sequence[Pieces],
    rlink: float,
    boxsize: ArrayLike | None,
    cfg: FofConfig,
    *,
    attach_within: float | None = ATTACH_WITHIN,
    memory: float | None = None,
    rows: int | None = None,
    folder: str | Path | None = None,
    mesh: Mesh | None = None,
    **options: Any,
) -> LargeGroups:
    """Find groups; see `friends_of_friends`.

    ``types`` are the particles of each type, the linked type first. ``rows`` is the number of particles in memory at
    once, instead of ``memory``. ``options`` are further attributes of `Search`.
    """
    pieces, nums = joined_types(types), tuple(particles.num for particles in types)
    dtype, (dims,) = pieces.columns["pos"]
    # The errors of a search in memory for invalid arguments.
    particles = [np.zeros((min(num, 1), dims), dtype) for num in nums]
    fof_and_catalogue(particles[0], rlink, boxsize, cfg, attached=particles[1:] or None, attach_within=attach_within)
    limit = np.inf if attach_within is None or len(types) == 1 else rlink * attach_within
    team = Team(mesh)
    lengths = box_lengths(boxsize, dims)

    def begun(memory: float | None) -> Search:
        """Return the search, and create or open its folders."""
        earlier = earlier_run(place)
        shares = earlier.get("shares") or len(team.devices)
        capacity = rows or (earlier.get("memory") if memory is None else None)
        capacity = capacity or rows_in(memory, pieces, devices=len(team.own))
        search = Search(pieces, nums, float(rlink), lengths, cfg, capacity, place, shares, team, limit=limit, **options)
        _ = search.steps, search.steps_of
        return search

    place = Path(tempfile.mkdtemp(prefix="jztree-") if folder is None else folder)
    try:
        with team.together():
            if team.leads:
                search = begun(memory)
                team.forget_meetings(place)
        team.folder = place
        with team.together():
            if not team.leads:
                if not earlier_run(place):
                    raise ValueError(_NOT_SHARED.format(folder=place))
                search = begun(None)  # the first process has chosen the rows and shares
        return LargeGroups(Members(search, find_groups(search)), pieces.lengths)
    except BaseException:
        if folder is None:
            shutil.rmtree(place, ignore_errors=True)
        raise
