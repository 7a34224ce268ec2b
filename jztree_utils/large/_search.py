"""A search for groups: its arguments, and the files of its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from jztree.config import FofConfig

from ._pieces import Pieces, Reader
from ._steps import Result, Steps
from ._team import Team

_BLOCKS = 256  # blocks of a run, the smallest parts that slabs divide


@dataclass
class Search:
    """A search for groups.

    Attributes:
        pieces: The particles of every type, the linked type first.
        nums: Number of particles of each type.
        rlink: The linking length.
        box: ``(d,)`` periodic lengths, 0 where open.
        cfg: Options of the catalogue.
        capacity: Number of particles that a device can hold in memory at once.
        folder: Folder of the results of each step.
        shares: Number of parts of the work. Each has its own files.
        team: The devices.
        quiet: Whether to report no progress.
        by_id: Whether groups of equal size and the particles of each group are in the order of identifiers (of rows, if
            particles have none) instead of the z-order.
        keep: Whether to keep all particles in files that are sorted along the axis.
        check: Called with the corners ``(2, d)`` of the bounding box of each run; it may raise an error.
        limit: Largest distance of an attached particle to the nearest linked one; infinite for no limit.
    """

    pieces: Pieces
    nums: tuple[int, ...]
    rlink: float
    box: np.ndarray
    cfg: FofConfig
    capacity: int
    folder: Path
    shares: int = 1
    team: Team = field(default_factory=Team)
    quiet: bool = False
    by_id: bool = False
    keep: bool = False
    check: Callable[[np.ndarray], None] = lambda _: None
    limit: float = np.inf

    @cached_property
    def steps(self) -> Steps:
        """The steps of the first process alone, including steps of an earlier run."""
        about = {
            "input": self.pieces.about,
            "linking length": self.rlink,
            "box": self.box.tolist(),
            "options": [str(self.cfg), self.by_id, self.keep, self.limit],
            "types": list(self.nums),
            "memory": self.capacity,
            "shares": self.shares,
        }
        return Steps(self.folder, about)

    @cached_property
    def steps_of(self) -> list[Steps]:
        """The steps of each share."""
        return [Steps(self.folder / f"share{share}", {"share": share}) for share in range(self.shares)]

    @property
    def npart_min(self) -> int:
        """Smallest number of particles of a listed group."""
        return self.cfg.catalogue.npart_min

    @property
    def has_ids(self) -> bool:
        """Whether runs contain identifiers."""
        return self.by_id and "id" in self.pieces.columns

    @property
    def dims(self) -> int:
        return len(self.box)

    @property
    def dtype(self) -> np.dtype:
        return self.pieces.columns["pos"][0]

    @property
    def index(self) -> type[np.signedinteger]:
        """The dtype of rows of all particles."""
        return np.int32 if self.pieces.num < 2**31 else np.int64

    def step(self, name: str, compute: Callable[..., dict[str, Any]], *args: Any) -> Result:
        """Return the arrays of a step of the first process alone. All processes wait for it."""
        with self.team.together():
            if self.team.leads:
                self.steps.step(name, compute, *args)
        return self.steps.result(name)

    def read_ranges(
        self, name: str, share: int, compute: Callable[[Steps, Reader, int], dict[str, Any]]
    ) -> Iterator[tuple[int, str]]:
        """Do a step for each range of rows of a share. Yield the number of rows, and the file that follows.

        Args:
            name: Beginning of the names of the steps, which the number of the range completes.
            share: The share.
            compute: Returns the arrays of a step, for the files of the share, the rows, and the number of the range.

        Raises:
            ValueError: If rows have changed since an earlier run read them.
        """
        steps = self.steps_of[share]
        for number, start, stop in self.ranges(share):
            reader, is_complete = Reader(self.pieces, start, stop), steps.is_complete(f"{name}{number}")
            result = steps.step(f"{name}{number}", lambda: compute(steps, reader, number) | reader.state)  # noqa: B023
            if is_complete:
                reader.check_unchanged(result)
            yield stop - start, " and ".join(path.name for path in self.pieces.rows_by_file(stop, stop + 1))

    def ranges(self, share: int) -> Iterator[tuple[int, int, int]]:
        """Yield the number, the first row, and the end of each range of rows that a share reads."""
        for number in range(*self.part(self.num_ranges, share)):
            yield number, int(self.starts[number]), int(self.starts[number + 1])

    def of_other_type(self, pieces: Pieces, name: str) -> Search:
        """Return the steps that read other particles, in a folder of this name."""
        search = replace(self, pieces=pieces, nums=(pieces.num,), folder=self.folder / name)
        with self.team.together():
            if self.team.leads:
                _ = search.steps, search.steps_of
        return search

    @property
    def rows(self) -> int:
        """Number of particles that a device holds in memory at once."""
        return min(self.capacity, max(-(-self.pieces.num // self.shares), 1))

    @property
    def block_rows(self) -> int:
        """Number of rows of a block."""
        return -(-self.rows // _BLOCKS)

    @cached_property
    def starts(self) -> np.ndarray:
        """The first row of each range that is read together, and the end. A range has particles of one type."""
        ends = np.cumsum(self.nums)
        starts = [np.arange(end - num, end, self.rows) for num, end in zip(self.nums, ends, strict=True)]
        return np.append(np.concatenate(starts), self.pieces.num)

    @property
    def num_ranges(self) -> int:
        """Number of ranges of rows."""
        return len(self.starts) - 1

    @property
    def attaches(self) -> bool:
        """Whether particles of other types join groups."""
        return len(self.nums) > 1

    def type_of(self, rows: Any) -> Any:
        """Return the number of the type of each row of `pieces`, 0 for the linked type."""
        return np.searchsorted(np.cumsum(self.nums), rows, side="right")

    @property
    def passes(self) -> list[str]:
        """The passes over the particles, in words."""
        return [
            "sort particles along an axis",
            "find groups in slabs",
            *(["attach particles", "count particles of groups"] if self.attaches else []),
            "read members of groups",
            "find properties of groups",
            *(["find properties near groups"] if self.keep else []),
        ]

    def part(self, total: int, share: int) -> tuple[int, int]:
        """Return the first of ``total`` things that belong to a share, and the end."""
        return total * share // self.shares, total * (share + 1) // self.shares

    def results(self, name: str) -> Iterator[Result]:
        """Yield the result of a step of each range of rows."""
        for share, steps in enumerate(self.steps_of):
            for number, _, _ in self.ranges(share):
                yield steps.result(f"{name}{number}")

    def each(self, task: str, total: int, work: Callable[[int], Iterator[tuple[int, str]]]) -> None:
        """Do the steps of every share in a pass; see `Team.each`. Other tasks than `passes` belong to the last one."""
        passes = self.passes
        number = passes.index(task) + 1 if task in passes else len(passes)
        self.team.each(f"pass {number} of {len(passes)}, {task}", total, self.shares, work, quiet=self.quiet)
