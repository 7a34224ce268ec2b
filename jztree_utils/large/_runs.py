"""Runs of particles: ranges of rows, each sorted along one axis in files. Slabs merge them along the axis."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from ._pieces import Reader
from ._search import Search
from ._steps import Result, Steps

_SAMPLES, _SAMPLE = 64, 16  # slices of the sample that chooses the axis, and rows of each
_FEWEST = 1024  # the smallest capacity


def padded(rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return rows with zeros after them, so that one compiled search serves all slabs."""
    result = np.zeros((max(capacity, len(rows)), *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    return result


def capacity_for(num: int) -> int:
    """Return one of few capacities, because each is compiled: there are four from a power of two to the next."""
    step = max(_FEWEST, 1 << max(num - 1, 0).bit_length() >> 3)
    return max(-(-num // step), 1) * step


def stable_order(numbers: np.ndarray, end: int) -> np.ndarray:
    """Return the stable order of integers from 0 to ``end``. NumPy is fast with 16 bits."""
    return np.argsort(numbers.astype(np.uint16) if end < 2**16 else numbers, kind="stable")


class Runs:
    """Runs of the particles of one type or several, sorted along one axis.

    Attributes:
        axis: The axis.
        lower, upper: Corners of the bounding box of the particles.
        reach: The linking length, with the rounding errors of wrapped positions.
        first: ``(b,)`` ascending coordinates of the first particle of each block of any run.
        last: ``(b,)`` coordinates of the last particle of each of these blocks, and of earlier ones.
    """

    def __init__(self, search: Search, axis: int, numbers: range) -> None:
        """Open the runs with these numbers, which `sort_into_runs` has written."""
        self.search, self.axis, self._numbers = search, axis, numbers
        self._steps = [steps for share, steps in enumerate(search.steps_of) for _ in search.ranges(share)]
        infos = [self._steps[number].result(f"run{number}") for number in numbers]
        self.lower, self.upper = corners = bounding_box(infos, search.dims)
        rounding = 16 * np.finfo(np.float64).eps * (np.abs(corners).max() + search.box[self.axis])
        self.reach = search.rlink * (1 + 1e-12) + rounding
        starts = [info["starts"] for info in infos]
        run = np.repeat(np.asarray(numbers, np.int64), [len(start) for start in starts])
        block = np.concatenate([np.arange(len(start)) for start in starts]) if starts else run
        first, last = (np.concatenate([np.empty(0), *(info[name] for info in infos)]) for name in ("starts", "ends"))
        order = np.lexsort((block, run, first))
        self.first, self._run, self._block = first[order], run[order], block[order]
        self.last = np.maximum.accumulate(last[order])

    @property
    def period(self) -> float:
        """The length of the box along the axis, 0 if open."""
        return float(self.search.box[self.axis])

    def along(self, pos: np.ndarray) -> np.ndarray:
        """Return wrapped coordinates along the axis, float64."""
        return along_axis(pos, self.axis, self.period)

    def read(self, blocks: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions, rows, and identifiers (without these, rows) of the particles in blocks of `first`."""
        search, positions, rows, ids = self.search, [], [], []
        for run in np.unique(self._run[blocks]):
            blocks_of_run = self._block[blocks][self._run[blocks] == run]
            start, stop = blocks_of_run[0] * search.block_rows, (blocks_of_run[-1] + 1) * search.block_rows
            stop = min(stop, search.starts[run + 1] - search.starts[run])
            steps = self._steps[run]
            flat = steps.read(f"pos{run}", search.dtype, start * search.dims, stop * search.dims)
            positions.append(flat.reshape(-1, search.dims))
            rows.append(steps.read(f"row{run}", np.int32, start, stop) + search.index(search.starts[run]))
            if search.has_ids:
                ids.append(steps.read(f"id{run}", search.pieces.columns["id"][0], start, stop))
        return np.concatenate(positions), np.concatenate(rows), np.concatenate(ids or rows)

    def remove(self) -> None:
        """Remove the files."""
        for run in self._numbers:
            for name in ("pos", "row", "id"):
                self._steps[run].remove(f"{name}{run}")


def sort_into_runs(search: Search) -> int:
    """Write the particles of each range of rows to a run, and return the axis: the longest extent of a sample."""
    axis = int(search.step("axis", _longest_axis, search)["axis"])

    def sort(steps: Steps, reader: Reader, number: int) -> dict[str, Any]:
        pos = reader.read("pos")
        along = along_axis(pos, axis, float(search.box[axis]))
        order = np.argsort(along).astype(np.int32)
        steps.append(f"pos{number}", pos.take(order, axis=0))
        steps.append(f"row{number}", order)
        if search.has_ids:
            steps.append(f"id{number}", reader.read("id")[order])
        corners = np.stack([pos.min(axis=0), pos.max(axis=0)])
        search.check(corners)
        return {"corners": corners, **ends_of_blocks(along[order], search.block_rows)}

    search.each(search.passes[0], search.pieces.num, lambda share: search.read_ranges("run", share, sort))
    return axis


def _longest_axis(search: Search) -> dict[str, Any]:
    """Return the axis with the longest extent of a sample of linked particles."""
    num = search.nums[0]
    starts = np.unique(np.linspace(0, num, _SAMPLES, endpoint=False, dtype=np.int64))
    pos = np.concatenate([search.pieces.read("pos", start, min(start + _SAMPLE, num)) for start in starts])
    along = [along_axis(pos, axis, float(period)) for axis, period in enumerate(search.box)]
    return {"axis": np.argmax([np.ptp(coordinates) if len(pos) else 0 for coordinates in along])}


def bounding_box(results: Iterable[Result], dims: int) -> np.ndarray:
    """Return the corners of the bounding box of runs, ``(2, d)``, from their results."""
    corners = np.stack([result["corners"] for result in results] or [np.zeros((2, dims))])
    return np.stack([corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)])


def along_axis(pos: np.ndarray, axis: int, period: float) -> np.ndarray:
    """Return wrapped coordinates along an axis, float64."""
    coordinates = pos[:, axis].astype(np.float64)
    return coordinates - period * np.floor(coordinates / period) if period > 0 else coordinates


def ends_of_blocks(along: np.ndarray, block_rows: int) -> dict[str, np.ndarray]:
    """Return the first and the last of the ascending coordinates of each block."""
    starts = np.arange(0, len(along), block_rows)
    return {"starts": along[starts], "ends": along[np.minimum(starts + block_rows, len(along)) - 1]}


def write_keys(search: Search, steps: Steps, rows: np.ndarray, keys: np.ndarray) -> None:
    """Append rows and the keys of their groups to the file of their range of rows."""
    part = np.searchsorted(search.starts, rows, side="right") - 1
    order = stable_order(part, search.num_ranges)
    ends = np.cumsum(np.bincount(part, minlength=search.num_ranges))
    both = np.stack([rows, keys], axis=1).take(order, axis=0)
    for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
        if start < end:
            steps.append(f"keys{number}", both[start:end])
