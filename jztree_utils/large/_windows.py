"""Properties of groups that depend on particles around them, with only a part of the particles in memory.

1. The particles of all types go to files that are sorted along the axis.
2. Each window holds the particles in an interval of the axis, with consecutive groups and a margin around them.
3. If the results of a group depend on particles outside its window, a later window with twice the margin repeats them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import numpy as np

from .._memory import bytes_in_words
from ._members import Members
from ._pieces import COLUMNS, Pieces, Reader
from ._plan import bytes_for
from ._runs import along_axis, capacity_for, ends_of_blocks
from ._search import Search
from ._steps import Result, Steps

_PART = 4  # a window holds this many times fewer particles than a slab, because its searches need more memory
_MARGIN = 5.0  # linking lengths around groups
_FEWEST = 100  # particles of a window without groups, enough for a search of neighbours
_COLUMN, _LIST = "column ", "list "  # beginnings of the names of columns in the results of steps
_TOO_DENSE = (
    "The thinnest interval along the axis with a group and its surroundings has up to {rows:,} particles, but memory "
    "holds only {capacity:,} for such searches; give at least {needed}, or more if groups depend on farther particles."
)


@dataclass
class Window:
    """The particles in an interval of the axis.

    Attributes:
        particles: Records with the properties of `jztree.data.ParticleData`, the ``group`` in the catalogue (the number
            of groups if the particle is in none, or in one with particles outside the window) and the ``row``. They are
            in the order of a search in memory.
        types: ``(n,)``, the number of the type of each row of `particles`, 0 for the linked type.
        others: Records of the particles of each further type.
        groups: ``(g,)``, the groups whose results the window gives, ascending.
        num_groups: The total number of groups.
    """

    particles: np.ndarray
    types: np.ndarray
    others: list[np.ndarray]
    groups: np.ndarray
    num_groups: int


class NearGroups(NamedTuple):
    """Results for the groups of a window.

    Attributes:
        reach: ``(g,)``, the largest distance from the centre of mass of particles that determine the results of each
            group; infinite if unknown.
        columns: ``(g, ...)`` columns by name.
        lists: Columns of rows that belong to groups, by name; ``group`` is the group of each row.
        members: Records of the members of groups in a new order, group after group; None keeps the order.
    """

    reach: np.ndarray
    columns: dict[str, np.ndarray] = {}  # noqa: RUF012
    lists: dict[str, np.ndarray] = {}  # noqa: RUF012
    members: np.ndarray | None = None


Compute = Callable[[Window], NearGroups]


class _Sorted:
    """Records of particles in files, one per range of rows, each sorted along the axis."""

    def __init__(self, search: Search, axis: int, name: str, record: np.dtype[Any]) -> None:
        """Open the files.

        Args:
            search: The steps that have written the files.
            axis: The axis.
            name: Name of the steps.
            record: Dtype of the records.
        """
        self._search, self._axis, self._record = search, axis, record
        self._period = float(search.box[axis])
        infos = list(search.results(name))
        self._steps = [steps for share, steps in enumerate(search.steps_of) for _ in search.ranges(share)]
        self._starts, self._ends = ([np.asarray(info[key]) for info in infos] for key in ("starts", "ends"))
        lengths = [stop - start for share in range(search.shares) for _, start, stop in search.ranges(share)]
        starts, ends = (np.concatenate([np.empty(0), *values]) for values in (self._starts, self._ends))
        blocks = [
            np.minimum(search.block_rows, length - search.block_rows * np.arange(len(info)))
            for length, info in zip(lengths, self._starts, strict=True)
        ]
        rows = np.concatenate([np.empty(0, np.int64), *blocks])
        # The numbers of rows in blocks that begin, or end, below a coordinate.
        self._begun, self._finished = (
            (values[order], np.append(0, np.cumsum(rows[order])))
            for values, order in ((values, np.argsort(values)) for values in (starts, ends))
        )
        self.num = int(rows.sum())

    def end_of(self, num: int) -> float:
        """Return the end of the block with the particle of this number along the axis."""
        ends, finished = self._finished
        return float(ends[min(int(np.searchsorted(finished, num)), len(ends) - 1)])

    def holds_all(self, low: float, high: float) -> bool:
        """Return whether an interval contains all particles."""
        if not self.num or (self._period and high - low >= self._period):
            return True
        return low <= self._begun[0][0] and high >= self._finished[0][-1]

    def count(self, low: float, high: float) -> int:
        """Return the number of particles in blocks that reach an interval."""
        if self.holds_all(low, high):
            return self.num
        (starts, begun), (ends, finished) = self._begun, self._finished
        counts = (
            begun[np.searchsorted(starts, to, "right")] - finished[np.searchsorted(ends, start)]
            for start, to in self._images(low, high)
        )
        return int(sum(counts))

    def read(self, low: float, high: float) -> np.ndarray:
        """Return the particles in an interval."""
        has_all, parts = self.holds_all(low, high), [np.empty(0, self._record)]
        for number, (starts, ends) in enumerate(zip(self._starts, self._ends, strict=True)):
            for start, to in [(-np.inf, np.inf)] if has_all else self._images(low, high):
                blocks = np.flatnonzero((starts <= to) & (ends >= start))
                if not len(blocks):
                    continue
                rows = blocks[0] * self._search.block_rows, (blocks[-1] + 1) * self._search.block_rows
                records = self._steps[number].read(f"along{number}", self._record, *rows)
                along = along_axis(records["pos"], self._axis, self._period)
                parts.append(records[(along >= start) & (along <= to)])
        return np.concatenate(parts)

    def _images(self, low: float, high: float) -> list[tuple[float, float]]:
        """Return the images of an interval that is narrower than the box. They do not overlap inside the box."""
        shifts = (-self._period, 0.0, self._period) if self._period else (0.0,)
        return [(low + shift, high + shift) for shift in shifts]


def _sort_particles(search: Search, axis: int) -> _Sorted:
    """Write the particles of another type to files that are sorted along the axis."""
    held = search.pieces.columns
    names = [name for name in COLUMNS if name in held and name != "id"]
    record = np.dtype([(name, *held[name]) for name in names])

    def sort(steps: Steps, reader: Reader, number: int) -> dict[str, Any]:
        columns = {name: reader.read(name) for name in names}
        along = along_axis(columns["pos"], axis, search.box[axis])
        order = np.argsort(along, kind="stable")
        records = np.empty(len(order), record)
        for name in names:
            records[name] = columns[name].take(order, axis=0)
        steps.append(f"along{number}", records)
        corners = np.stack([columns["pos"].min(axis=0), columns["pos"].max(axis=0)])
        search.check(corners)
        return {"corners": corners, **ends_of_blocks(along[order], search.block_rows)}

    search.each("sort other matter", search.pieces.num, lambda share: search.read_ranges("sorted", share, sort))
    return _Sorted(search, axis, "sorted", record)


class Windows:
    """The windows of a search for groups.

    Attributes:
        corners: Corners of the bounding boxes of particles of all types.
    """

    def __init__(self, members: Members, others: Sequence[Pieces]) -> None:
        """Sort the particles of other types.

        Args:
            members: The members of groups, which have kept all particles in files along the axis.
            others: The particles of other types.
        """
        self._search, self._members = members.search, members
        self._axis = members.joined.axis
        self.corners = [members.joined.corners]
        self._sorted = [_Sorted(self._search, self._axis, "labels", members.record)]
        for number, pieces in enumerate(others):
            search = self._search.of_other_type(pieces, f"type{number}")
            self._sorted.append(_sort_particles(search, self._axis))
            self.corners += [result["corners"] for result in search.results("sorted")]
        self._capacity = max(self._search.capacity // _PART, 1)
        cata = members.catalogue()
        period = self._search.box[self._axis]
        self._centre = along_axis(np.asarray(cata.com_pos, np.float64), self._axis, period)
        self._extent = np.asarray(cata.max_radius, np.float64) * (1 + 1e-5)

    def results(self, compute: Compute) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
        """Return the columns of all groups, and the lists in the order of the groups, from the results of windows."""
        search, todo, number = self._search, np.arange(len(self._centre)), 0
        margin, results = _MARGIN * search.rlink, list[Result]()
        while len(todo) or not number:
            plan = list(self._plan(todo, margin))

            def work(share: int, number: int = number, plan: Any = plan) -> Iterator[tuple[int, str]]:
                for place in range(share, len(plan), search.shares):
                    search.steps_of[share].step(f"window{number}_{place}", self._compute, compute, *plan[place])
                    yield len(plan[place][0]), ""

            search.each("find properties near groups", len(todo), work)
            done = [search.steps_of[i % search.shares].result(f"window{number}_{i}") for i in range(len(plan))]
            results += done
            todo = np.sort(np.concatenate([result["failed"] for result in done]))
            margin, number = 2 * margin, number + 1
        columns = {}
        for name, values in _joined(results, _COLUMN).items():
            column = np.zeros((len(self._centre), *values.shape[1:]), values.dtype)
            column[np.concatenate([result["group"] for result in results if f"{_COLUMN}{name}" in result])] = values
            columns[name] = column
        lists = _joined(results, _LIST)
        order = np.argsort(lists["group"], kind="stable") if lists else slice(None)
        return columns, {name: values[order] for name, values in lists.items()}

    def _plan(self, todo: np.ndarray, margin: float) -> Iterator[tuple[np.ndarray, float, float]]:
        """Yield the groups and the interval of each window."""
        low, high = (self._centre + sign * (self._extent + margin) for sign in (-1, 1))
        order = todo[np.argsort(self._centre[todo], kind="stable")]
        begin = 0
        if not len(order):  # without groups, the columns still need their dtypes
            yield todo, -np.inf, self._sorted[0].end_of(max(self._capacity, _FEWEST))
        while begin < len(order):
            start, stop, end = low[order[begin]], high[order[begin]], begin + 1
            while end < len(order):
                wider = min(start, low[order[end]]), max(stop, high[order[end]])
                if self._count(*wider) > self._capacity:
                    break
                start, stop = wider
                end += 1
            if self._count(start, stop) > self._capacity and self._count(-np.inf, np.inf) > self._capacity:
                raise self._too_dense(max(self._count(low[group], high[group]) for group in order))
            yield np.sort(order[begin:end]), start, stop
            begin = end

    def _too_dense(self, rows: int) -> ValueError:
        search = self._search  # blocks of larger slabs are longer, which adds rows
        needed = bytes_in_words(1.02 * bytes_for(_PART * rows, search.pieces, len(search.team.own)))
        return ValueError(_TOO_DENSE.format(rows=rows, capacity=self._capacity, needed=needed))

    def _count(self, low: float, high: float) -> int:
        return sum(particles.count(low, high) for particles in self._sorted)

    def _compute(self, compute: Compute, groups: np.ndarray, low: float, high: float) -> dict[str, Any]:
        if self._count(-np.inf, np.inf) <= self._capacity:
            low, high = -np.inf, np.inf
        records, *others = (particles.read(low, high) for particles in self._sorted)
        with jax.enable_x64(self._search.dtype == np.float64):
            records = self._members.in_z_order(records, capacity_for(len(records)))
        is_whole = all(particles.holds_all(low, high) for particles in self._sorted)
        counts = np.append(self._members.joined.counts, 0)
        present = np.bincount(records["group"], minlength=len(counts))
        records["group"] = np.where(present == counts, np.arange(len(counts)), len(counts) - 1)[records["group"]]
        types = self._search.type_of(records["row"])
        result = compute(Window(records, types, others, groups, len(counts) - 1))
        centre = self._centre[groups]
        is_complete = is_whole | ((centre - result.reach >= low) & (centre + result.reach <= high))
        complete = groups[is_complete]
        if result.members is not None:
            self._members.reorder(result.members[np.isin(result.members["group"], complete)])
        arrays = {f"{_COLUMN}{name}": column[is_complete] for name, column in result.columns.items()}
        if result.lists:
            in_complete = np.isin(result.lists["group"], complete)
            arrays |= {f"{_LIST}{name}": column[in_complete] for name, column in result.lists.items()}
        return {"group": complete, "failed": groups[~is_complete], **arrays}


def _joined(results: Sequence[Result], beginning: str) -> dict[str, np.ndarray]:
    """Return the columns with such names of all results, one after the other."""
    held = [result for result in results if any(name.startswith(beginning) for name in result)]
    names = [name for name in held[0] if name.startswith(beginning)] if held else []
    return {name.removeprefix(beginning): np.concatenate([result[name] for result in held]) for name in names}
