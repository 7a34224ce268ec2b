"""Labels of friends-of-friends groups, with only a part of the particles in memory.

1. Runs: ranges of rows, each sorted along one axis, go to files.
2. Slabs: the runs are merged along the axis. Each slab is grouped together with the *surface*: the particles of earlier
   slabs within one linking length of all later particles. So any two linked particles are together in one search, which
   decides from the original positions, as a search in memory does.
3. Each share of the slabs is swept alone. Then its last surface is grouped with the first particles of the next share,
   and, if the axis is periodic, the last surface of all with the first particles along the axis.

The key of a group in a slab is the smallest row of its particles in the slab. If a group reaches several slabs, it has
several keys, which pairs of keys join: a union-find over groups at surfaces, not over particles.

The cost is one sort of each run, and one search of each slab. A slab may be thinner than the linking length.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jztree.data import Pos
from jztree.fof import group_labels
from jztree.tree import zsort

from ._pieces import Reader
from ._search import Search
from ._steps import Result, Steps

_SAMPLES, _SAMPLE = 64, 16  # slices of the sample that chooses the axis, and rows of each
_TOO_LONG = (
    "The linking length {rlink:g} is so long that {surface:,} particles are within it of the next ones, but memory "
    "holds only {rows:,}; give more memory, or a smaller linking length."
)
_SAME_PLACE = (
    "{surface:,} particles have nearly the same coordinate along axis {axis}, but memory holds only {rows:,}; give "
    "more memory."
)


def padded(rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return rows with zeros after them, so that one compiled search serves all slabs."""
    result = np.zeros((max(capacity, len(rows)), *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    return result


def stable_order(numbers: np.ndarray, end: int) -> np.ndarray:
    """Return the stable order of integers from 0 to ``end``. NumPy is fast with 16 bits."""
    return np.argsort(numbers.astype(np.uint16) if end < 2**16 else numbers, kind="stable")


class Runs:
    """Runs of particles, sorted along one axis.

    Attributes:
        axis: The axis, the longest extent of a sample.
        lower, upper: Corners of the bounding box of all particles.
        reach: The linking length, with the rounding errors of wrapped positions.
        first: ``(b,)`` ascending coordinates of the first particle of each block of any run.
        last: ``(b,)`` coordinates of the last particle of each of these blocks, and of earlier ones.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.axis = int(search.step("axis", self._longest_axis)["axis"])
        search.each(1, "sort particles along an axis", search.pieces.num, self._sort_share)
        infos = list(search.results("run"))
        corners = np.stack([info["corners"] for info in infos]) if infos else np.zeros((1, 2, search.dims))
        self.lower, self.upper = corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)
        rounding = 16 * np.finfo(np.float64).eps * (np.abs(corners).max() + search.box[self.axis])
        self.reach = search.rlink * (1 + 1e-12) + rounding
        self._steps = [steps for share, steps in enumerate(search.steps_of) for _ in search.ranges(share)]
        starts = [info["starts"] for info in infos]
        run = np.repeat(np.arange(len(starts)), [len(start) for start in starts])
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

    def _longest_axis(self) -> dict[str, Any]:
        search = self.search
        starts = np.unique(np.linspace(0, search.pieces.num, _SAMPLES, endpoint=False, dtype=np.int64))
        slices = [search.pieces.read("pos", start, min(start + _SAMPLE, search.pieces.num)) for start in starts]
        pos = np.concatenate(slices).astype(np.float64)
        extents = [np.ptp(_wrapped(pos[:, axis], search.box[axis])) if len(pos) else 0 for axis in range(search.dims)]
        return {"axis": np.argmax(extents)}

    def _sort_share(self, share: int) -> Iterator[tuple[int, str]]:
        return self.search.read_ranges("run", share, self._sort)

    def _sort(self, steps: Steps, reader: Reader, number: int) -> dict[str, Any]:
        pos = reader.read("pos")
        along = self.along(pos)
        order = np.argsort(along).astype(np.int32)
        steps.append(f"pos{number}", pos.take(order, axis=0))
        steps.append(f"row{number}", order)
        if self.search.has_ids:
            steps.append(f"id{number}", reader.read("id")[order])
        corners = np.stack([pos.min(axis=0), pos.max(axis=0)])
        self.search.check(corners)
        return {"corners": corners, **ends_of_blocks(along[order], self.search.block_rows)}

    def read(self, blocks: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions, rows, and identifiers (without these, rows) of the particles in blocks of `first`."""
        search, positions, rows, ids = self.search, [], [], []
        for run in np.unique(self._run[blocks]):
            blocks_of_run = self._block[blocks][self._run[blocks] == run]
            start, stop = blocks_of_run[0] * search.block_rows, (blocks_of_run[-1] + 1) * search.block_rows
            stop = min(stop, min((run + 1) * search.rows, search.pieces.num) - run * search.rows)
            steps = self._steps[run]
            flat = steps.read(f"pos{run}", search.dtype, start * search.dims, stop * search.dims)
            positions.append(flat.reshape(-1, search.dims))
            rows.append(steps.read(f"row{run}", np.int32, start, stop) + search.index(run * search.rows))
            if search.has_ids:
                ids.append(steps.read(f"id{run}", search.pieces.columns["id"][0], start, stop))
        return np.concatenate(positions), np.concatenate(rows), np.concatenate(ids or rows)

    def remove(self) -> None:
        """Remove the files."""
        for run, steps in enumerate(self._steps):
            for name in ("pos", "row", "id"):
                steps.remove(f"{name}{run}")


def along_axis(pos: np.ndarray, axis: int, period: float) -> np.ndarray:
    """Return wrapped coordinates along an axis, float64."""
    return _wrapped(pos[:, axis].astype(np.float64), period)


def ends_of_blocks(along: np.ndarray, block_rows: int) -> dict[str, np.ndarray]:
    """Return the first and the last of the ascending coordinates of each block."""
    starts = np.arange(0, len(along), block_rows)
    return {"starts": along[starts], "ends": along[np.minimum(starts + block_rows, len(along)) - 1]}


def _wrapped(coordinates: np.ndarray, period: float) -> np.ndarray:
    return coordinates - period * np.floor(coordinates / period) if period > 0 else coordinates


@dataclass
class Joined:
    """Groups of all particles.

    Attributes:
        pairs: ``(m, 2)`` ascending keys, and the smallest key of the group of each.
        labels: ``(g,)`` smallest rows of the listed groups, the largest group first.
        counts: ``(g,)`` numbers of particles.
        lower, upper: Corners of the bounding box of all particles.
        slabs: Number of slabs.
        axis: The axis along which the slabs are consecutive.
    """

    pairs: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    slabs: int
    axis: int

    @cached_property
    def _by_label(self) -> np.ndarray:
        return np.argsort(self.labels)

    def resolve(self, keys: np.ndarray) -> np.ndarray:
        """Return the smallest row of the group of each key."""
        return _resolve(keys, *self.pairs.T)

    def numbers(self, labels: np.ndarray) -> np.ndarray:
        """Return the number of each listed group from its label, -1 for other groups."""
        if not len(self.labels):
            return np.full(len(labels), -1, np.int64)
        ascending = self.labels[self._by_label]
        place = np.minimum(np.searchsorted(ascending, labels), len(ascending) - 1)
        return np.where(ascending[place] == labels, self._by_label[place], -1)


def _resolve(keys: np.ndarray, ascending: np.ndarray, roots: np.ndarray) -> np.ndarray:
    if not len(ascending):
        return keys
    place = np.minimum(np.searchsorted(ascending, keys), len(ascending) - 1)
    return np.where(ascending[place] == keys, roots[place], keys)


def find_groups(search: Search) -> Joined:
    """Write the key of each particle to files, one per range of rows and share, and return the groups of all keys."""
    runs = Runs(search)
    sweep = _Sweep(search, runs)
    search.each(2, "find groups in slabs", search.pieces.num, sweep.sweep_share)
    joined = search.step("groups", sweep.join)
    if search.team.leads:
        runs.remove()
    pairs, labels, counts = (joined[name] for name in ("pairs", "labels", "counts"))
    return Joined(pairs, labels, counts, runs.lower, runs.upper, int(joined["slabs"]), runs.axis)


class _Sweep:
    """The searches of all slabs. Each share sweeps consecutive blocks, from the first slab to the last."""

    def __init__(self, search: Search, runs: Runs) -> None:
        self.search, self.runs = search, runs

    def _blocks(self, share: int) -> tuple[int, int]:
        return self.search.part(len(self.runs.first), share)

    def sweep_share(self, share: int) -> Iterator[tuple[int, str]]:
        """Find the groups of each slab of a share, and yield its number of particles, and no file."""
        steps = self.search.steps_of[share]
        end, stop = self._blocks(share)
        slabs: list[Result] = []
        while end < stop:
            slabs.append(steps.step(f"slab{len(slabs)}", self._find, share, slabs, end))
            end = int(slabs[-1]["end"])
            yield int(slabs[-1]["num"]), ""

    def _slabs(self, share: int) -> list[Result]:
        """Return the results of all slabs of a share."""
        end, stop = self._blocks(share)
        slabs: list[Result] = []
        while end < stop:
            slabs.append(self.search.steps_of[share].result(f"slab{len(slabs)}"))
            end = int(slabs[-1]["end"])
        return slabs

    def join(self) -> dict[str, Any]:
        """Return the groups of all slabs together."""
        slabs_of = [self._slabs(share) for share in range(self.search.shares)]
        slabs = [slab for slabs in slabs_of for slab in slabs]
        if not slabs:
            empty = np.empty(0, np.int64)
            return {"pairs": np.empty((0, 2), np.int64), "labels": empty, "counts": empty, "slabs": 0}
        parts = {name: np.concatenate([slab[name] for slab in slabs]) for name in ("links", "keys", "counts", "firsts")}
        pairs = _roots(np.concatenate([parts["links"], *self._links_of_shares(slabs_of)]))
        roots, group = np.unique(_resolve(parts["keys"], *pairs.T), return_inverse=True)
        counts = np.zeros(len(roots), np.int64)
        np.add.at(counts, group, parts["counts"])
        is_listed = counts >= self.search.npart_min
        place = self.places(parts["firsts"][is_listed[group]], group[is_listed[group]])
        largest = np.lexsort((place, -counts[is_listed]))
        labels = roots[is_listed][largest]
        return {"pairs": pairs, "labels": labels, "counts": counts[is_listed][largest], "slabs": len(slabs)}

    def _links_of_shares(self, slabs_of: list[list[Result]]) -> Iterator[np.ndarray]:
        """Yield the links across the surface between consecutive shares, and across the periodic boundary."""
        runs, number = self.runs, sum(len(slabs) for slabs in slabs_of)
        pos, keys = np.empty((0, self.search.dims), self.search.dtype), np.empty(0, self.search.index)
        for share, slabs in enumerate(slabs_of):
            if not slabs:
                continue
            is_near = runs.along(pos) >= runs.first[self._blocks(share)[0]] - runs.reach
            pos, keys = pos[is_near], keys[is_near]
            yield self._links(pos, keys, slabs, self._start(share))
            pos, keys = np.concatenate([pos, slabs[-1]["surface"]]), np.concatenate([keys, slabs[-1]["surface_keys"]])
        if runs.period and number > 1:
            is_near = runs.along(pos) >= runs.period - runs.reach
            yield self._links(pos[is_near], keys[is_near], [slab for slabs in slabs_of for slab in slabs], runs.reach)

    def _start(self, share: int) -> float:
        """Return the largest coordinate of a share's particles with links to earlier shares or the end of the box."""
        first = self._blocks(share)[0]
        end = self.runs.last[first - 1] if first else 0.0 if self.runs.period else -np.inf
        return float(end + self.runs.reach)

    def _links(self, pos: np.ndarray, keys: np.ndarray, slabs: list[Result], end: float) -> np.ndarray:
        """Return the links between particles at a surface, and particles of slabs up to the coordinate ``end``."""
        start, start_keys = (np.concatenate([slab[name] for slab in slabs]) for name in ("start", "start_keys"))
        is_near = self.runs.along(start) <= end
        if not len(pos) or not is_near.any():
            return np.empty((0, 2), keys.dtype)
        keys = np.concatenate([keys, start_keys[is_near]])
        return _Groups(self._labels(np.concatenate([pos, start[is_near]])), keys).links(len(keys))

    def _find(self, share: int, slabs: list[Result], begin: int) -> dict[str, Any]:
        """Find the groups in a slab that begins with a block."""
        search, runs = self.search, self.runs
        surface = slabs[-1]["surface"] if slabs else np.empty((0, search.dims), search.dtype)
        surface_keys = slabs[-1]["surface_keys"] if slabs else np.empty(0, search.index)
        held = len(surface)
        if held + search.block_rows > search.rows:
            along = runs.along(surface)
            number = int((along >= along.max(initial=0) * (1 - np.finfo(search.dtype).eps)).sum())
            sentence = _SAME_PLACE if number + search.block_rows > search.rows else _TOO_LONG
            words = {"rlink": search.rlink, "surface": held, "rows": search.rows, "axis": runs.axis}
            raise ValueError(sentence.format(**words))
        end = min(begin + (search.rows - held) // search.block_rows, self._blocks(share)[1])
        pos, rows, ids = runs.read(slice(begin, end))
        is_last = end == len(runs.first)
        pos = np.concatenate([surface, pos])
        groups = _Groups(self._labels(pos), np.concatenate([surface_keys, rows]))
        along = runs.along(pos)
        following = runs.period if is_last and runs.period else np.inf if is_last else runs.first[end]
        at_end = along >= following - runs.reach
        at_start = along <= max(self._start(share), self._start(0))
        at_start[:held] = False  # these are in the results of an earlier slab
        self._write_keys(search.steps_of[share], rows, groups.keys[held:])
        at_surface = np.zeros(len(groups.smallest), bool)
        at_surface[groups.number[:held]] = True
        at_surface[groups.number[at_end | at_start]] = True
        counts = np.bincount(groups.number[held:], minlength=len(groups.smallest))
        # Other groups are complete, and too small to be listed.
        needed = np.flatnonzero((at_surface | (counts >= search.npart_min)) & (counts > 0))
        return {
            "end": end,
            "num": len(rows),
            "surface": pos[at_end],
            "surface_keys": groups.keys[at_end],
            "start": pos[at_start],
            "start_keys": groups.keys[at_start],
            "links": groups.links(held),
            "keys": groups.smallest[needed],
            "counts": counts[needed],
            "firsts": self._firsts(ids if search.by_id else pos[held:], groups.number[held:], needed, len(counts)),
        }

    def _labels(self, pos: np.ndarray) -> np.ndarray:
        """Return the smallest row of the group of each position."""
        part = Pos(pos=padded(pos, self.search.rows), num=len(pos))
        with jax.enable_x64(self.search.dtype == np.float64):
            label = group_labels.jit(part, self.search.rlink, boxsize=self.search.box)
        return np.asarray(label)[: len(pos)]

    def z_order(self, pos: np.ndarray) -> np.ndarray:
        """Return the order of positions in the z-order of all particles."""
        part = Pos(pos=padded(pos, self.search.rows), num=len(pos))
        with jax.enable_x64(self.search.dtype == np.float64):
            _, order = zsort.jit(part, self.search.box, (self.runs.lower, self.runs.upper))
        return np.asarray(order)[: len(pos)]

    def _firsts(self, places: np.ndarray, number: np.ndarray, needed: np.ndarray, groups: int) -> np.ndarray:
        """Return the smallest identifier, or the first position in z-order, of each needed group."""
        is_needed = np.zeros(groups, bool)
        is_needed[needed] = True
        candidates = np.flatnonzero(is_needed[number])
        candidates = candidates[self._order(places[candidates])]
        _, first = np.unique(number[candidates], return_index=True)
        return places[candidates[first]]

    def _order(self, places: np.ndarray) -> np.ndarray:
        """Return the order of identifiers or positions."""
        return np.argsort(places, kind="stable") if self.search.by_id else self.z_order(places)

    def places(self, firsts: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Return the place of each group, in ascending order of ``group``, from the results of `_firsts`."""
        _, place = np.unique(group[self._order(firsts)], return_index=True)
        return place

    def _write_keys(self, steps: Steps, rows: np.ndarray, keys: np.ndarray) -> None:
        """Append rows and keys to the file of their range of rows."""
        part = rows // self.search.rows
        order = stable_order(part, self.search.num_ranges)
        ends = np.cumsum(np.bincount(part, minlength=self.search.num_ranges))
        both = np.stack([rows, keys], axis=1).take(order, axis=0)
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if start < end:
                steps.append(f"keys{number}", both[start:end])


class _Groups:
    """Groups of one search.

    Attributes:
        number: ``(n,)``, the number of the group of each particle.
        smallest: ``(g,)``, the smallest key of its particles.
    """

    def __init__(self, label: np.ndarray, keys: np.ndarray) -> None:
        is_first = label == np.arange(len(label), dtype=label.dtype)
        self.number = (np.cumsum(is_first, dtype=np.int32) - 1)[label]
        self.smallest = np.full(np.count_nonzero(is_first), np.iinfo(keys.dtype).max)
        self.smallest = self.smallest.astype(keys.dtype)
        np.minimum.at(self.smallest, self.number, keys)
        self._given = keys

    @property
    def keys(self) -> np.ndarray:
        """``(n,)``, the key of the group of each particle."""
        return self.smallest[self.number]

    def links(self, held: int) -> np.ndarray:
        """Return the different pairs of the earlier and the present key of the first ``held`` particles."""
        pairs = np.stack([self._given[:held], self.smallest[self.number[:held]]], axis=1)
        return np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)


def _roots(links: np.ndarray) -> np.ndarray:
    """Return each key in links, ascending, and the smallest key that links join with it, ``(m, 2)``."""
    keys, ends = np.unique(links, return_inverse=True)
    root = np.arange(len(keys))
    i, j = ends.reshape(links.shape).T
    while (root[i] != root[j]).any():
        smaller, larger = np.minimum(root[i], root[j]), np.maximum(root[i], root[j])
        np.minimum.at(root, larger, smaller)
        while (root[root] != root).any():
            root = root[root]
    return np.stack([keys, keys[root]], axis=1)
