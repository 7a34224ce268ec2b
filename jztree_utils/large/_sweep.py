"""Labels of friends-of-friends groups, with only a part of the particles in memory.

1. Runs: ranges of rows, each sorted along one axis, go to files.
2. Slabs: the runs are merged along the axis. Each slab is grouped together with the *surface*: the particles of earlier
   slabs within one linking length of all later particles. So any two linked particles are together in one search, which
   decides from the original positions, as a search in memory does.
3. If the axis is periodic, the last surface is grouped with the first particles along the axis.

The key of a group in a slab is the smallest row of its particles in the slab. If a group reaches several slabs, it has
several keys, which pairs of keys join: a union-find over groups at surfaces, not over particles.

The cost is one sort of each run, and one search of each slab. A slab may be thinner than the linking length.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jztree.config import FofConfig
from jztree.data import Pos
from jztree.fof import group_labels
from jztree.tree import zsort

from ..progress import progress
from ._pieces import Pieces
from ._steps import Result, Steps

_BLOCKS = 256  # blocks of a run, the smallest parts that slabs divide
_TOO_LONG = (
    "The linking length {rlink:g} is so long that {surface:,} particles are within it of the next ones, but memory "
    "holds only {rows:,}; give more memory, or a smaller linking length."
)


@dataclass
class Search:
    """A search for groups.

    Attributes:
        pieces: The particles.
        rlink: The linking length.
        box: ``(d,)`` periodic lengths, 0 where open.
        cfg: Options of the catalogue.
        rows: Number of particles in memory at once.
        folder: Folder of the results of each step.
        quiet: Whether to report no progress.
        by_id: Whether groups of equal size and the particles of each group are in the order of identifiers (of rows, if
            there are none) instead of the z-order.
        check: Called with the corners ``(2, d)`` of the bounding box of each run; it may raise an error.
    """

    pieces: Pieces
    rlink: float
    box: np.ndarray
    cfg: FofConfig
    rows: int
    folder: Path
    quiet: bool = False
    by_id: bool = False
    check: Callable[[np.ndarray], None] = lambda _: None

    @cached_property
    def steps(self) -> Steps:
        """The steps of this search, including steps of an earlier run."""
        about = {
            "input": self.pieces.about,
            "linking length": self.rlink,
            "box": self.box.tolist(),
            "options": [str(self.cfg), self.by_id],
            "memory": self.rows,
        }
        return Steps(self.folder, about)

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

    def ranges(self) -> list[tuple[int, int]]:
        """Return the ranges of rows that are read together."""
        return [(start, min(start + self.rows, self.pieces.num)) for start in range(0, self.pieces.num, self.rows)]


def padded(rows: np.ndarray, capacity: int) -> np.ndarray:
    """Return rows with zeros after them, so that one compiled search serves all slabs."""
    result = np.zeros((max(capacity, len(rows)), *rows.shape[1:]), rows.dtype)
    result[: len(rows)] = rows
    return result


class Runs:
    """Runs of particles, sorted along one axis.

    Attributes:
        axis: The axis, the longest extent of the first run.
        lower, upper: Corners of the bounding box of all particles.
        reach: The linking length, with the rounding errors of wrapped positions.
    """

    def __init__(self, search: Search) -> None:
        self.search = search
        self.axis = 0
        infos: list[Result] = []
        ranges = search.ranges()
        with progress("sort particles along an axis", search.pieces.num, quiet=search.quiet) as advance:
            for number, (start, stop) in enumerate(ranges):
                infos.append(search.steps.step(f"run{number}", lambda: self._sort(number, start, stop)))  # noqa: B023
                self.axis = int(infos[0]["axis"])
                advance(stop - start)
        corners = np.stack([info["corners"] for info in infos]) if infos else np.zeros((1, 2, search.dims))
        self.lower, self.upper = corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)
        rounding = 16 * np.finfo(np.float64).eps * (np.abs(corners).max() + search.box[self.axis])
        self.reach = search.rlink * (1 + 1e-12) + rounding
        self._lengths = [stop - start for start, stop in ranges]
        starts = [info["starts"] for info in infos]
        run = np.repeat(np.arange(len(starts)), [len(start) for start in starts])
        block = np.concatenate([np.arange(len(start)) for start in starts]) if starts else run
        first = np.concatenate(starts) if starts else np.empty(0)
        order = np.lexsort((block, run, first))
        self.first, self._run, self._block = first[order], run[order], block[order]

    @property
    def period(self) -> float:
        """The length of the box along the axis, 0 if open."""
        return float(self.search.box[self.axis])

    @property
    def block_rows(self) -> int:
        """Number of rows of a block."""
        return -(-self.search.rows // _BLOCKS)

    def along(self, pos: np.ndarray) -> np.ndarray:
        """Return wrapped coordinates along the axis, float64."""
        return _wrapped(pos[:, self.axis].astype(np.float64), self.period)

    def _sort(self, number: int, start: int, stop: int) -> dict[str, Any]:
        search = self.search
        pos = search.pieces.read("pos", start, stop)
        if number == 0:
            extents = [
                np.ptp(_wrapped(pos[:, axis].astype(np.float64), search.box[axis])) for axis in range(search.dims)
            ]
            self.axis = int(np.argmax(extents))
        along = self.along(pos)
        order = np.argsort(along, kind="stable").astype(np.int32)
        search.steps.append(f"pos{number}", pos[order])
        search.steps.append(f"row{number}", order)
        if search.has_ids:
            search.steps.append(f"id{number}", search.pieces.read("id", start, stop)[order])
        corners = np.stack([pos.min(axis=0), pos.max(axis=0)])
        search.check(corners)
        return {"axis": self.axis, "corners": corners, "starts": along[order[:: self.block_rows]]}

    def read(self, blocks: slice) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return positions, rows, and identifiers (without these, rows) of the particles in blocks of `first`."""
        search, positions, rows, ids = self.search, [], [], []
        for run in np.unique(self._run[blocks]):
            blocks_of_run = self._block[blocks][self._run[blocks] == run]
            start, stop = blocks_of_run[0] * self.block_rows, (blocks_of_run[-1] + 1) * self.block_rows
            stop = min(stop, self._lengths[run])
            flat = search.steps.read(f"pos{run}", search.dtype, start * search.dims, stop * search.dims)
            positions.append(flat.reshape(-1, search.dims))
            rows.append(search.steps.read(f"row{run}", np.int32, start, stop) + search.index(run * search.rows))
            if search.has_ids:
                ids.append(search.steps.read(f"id{run}", search.pieces.columns["id"][0], start, stop))
        return np.concatenate(positions), np.concatenate(rows), np.concatenate(ids or rows)

    def remove(self) -> None:
        """Remove the files."""
        for run in range(len(self._lengths)):
            self.search.steps.remove(f"pos{run}")
            self.search.steps.remove(f"row{run}")
            self.search.steps.remove(f"id{run}")


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
    """

    pairs: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    slabs: int

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
    """Write the key of each particle to files, one per range of rows, and return the groups of all keys."""
    runs = Runs(search)
    sweep = _Sweep(search, runs)
    slabs = sweep.run()

    def join() -> dict[str, Any]:
        parts = {name: np.concatenate([slab[name] for slab in slabs]) for name in ("links", "keys", "counts", "firsts")}
        pairs = _roots(np.concatenate([parts["links"], sweep.wrapped_links(slabs)]))
        roots, group = np.unique(_resolve(parts["keys"], *pairs.T), return_inverse=True)
        counts = np.zeros(len(roots), np.int64)
        np.add.at(counts, group, parts["counts"])
        is_listed = counts >= search.npart_min
        place = sweep.places(parts["firsts"][is_listed[group]], group[is_listed[group]])
        largest = np.lexsort((place, -counts[is_listed]))
        return {"pairs": pairs, "labels": roots[is_listed][largest], "counts": counts[is_listed][largest]}

    if not slabs:
        empty = np.empty(0, np.int64)
        return Joined(np.empty((0, 2), np.int64), empty, empty, runs.lower, runs.upper, 0)
    joined = search.steps.step("groups", join)
    runs.remove()
    return Joined(joined["pairs"], joined["labels"], joined["counts"], runs.lower, runs.upper, len(slabs))


class _Sweep:
    """The searches of all slabs, from the first to the last along the axis."""

    def __init__(self, search: Search, runs: Runs) -> None:
        self.search, self.runs = search, runs

    def run(self) -> list[Result]:
        slabs: list[Result] = []
        end, blocks = 0, len(self.runs.first)
        with progress("find groups in slabs", self.search.pieces.num, quiet=self.search.quiet) as advance:
            while end < blocks:
                slabs.append(self.search.steps.step(f"slab{len(slabs)}", lambda: self._find(slabs, end)))  # noqa: B023
                end = int(slabs[-1]["end"])
                advance(int(slabs[-1]["num"]))
        return slabs

    def _find(self, slabs: list[Result], begin: int) -> dict[str, Any]:
        """Find the groups in a slab that begins with a block."""
        search, runs = self.search, self.runs
        surface = slabs[-1]["surface"] if slabs else np.empty((0, search.dims), search.dtype)
        surface_keys = slabs[-1]["surface_keys"] if slabs else np.empty(0, search.index)
        held = len(surface)
        if held + runs.block_rows > search.rows:
            raise ValueError(_TOO_LONG.format(rlink=search.rlink, surface=held, rows=search.rows))
        end = begin + (search.rows - held) // runs.block_rows
        pos, rows, ids = runs.read(slice(begin, end))
        is_last = end >= len(runs.first)
        pos = np.concatenate([surface, pos])
        groups = _Groups(self._labels(pos), np.concatenate([surface_keys, rows]))
        along = runs.along(pos)
        following = runs.period if is_last and runs.period else np.inf if is_last else runs.first[end]
        at_end = along >= following - runs.reach
        at_start = (along <= runs.reach) & bool(runs.period)
        at_start[:held] = False  # these are in the results of an earlier slab
        self._write_keys(rows, groups.keys[held:])
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

    def _write_keys(self, rows: np.ndarray, keys: np.ndarray) -> None:
        """Append rows and keys to the file of their range of rows."""
        part = (rows // self.search.rows).astype(np.uint16)
        order = np.argsort(part, kind="stable")
        ends = np.cumsum(np.bincount(part, minlength=len(self.search.ranges())))
        both = np.stack([rows, keys], axis=1)[order]
        for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if start < end:
                self.search.steps.append(f"keys{number}", both[start:end])

    def wrapped_links(self, slabs: list[Result]) -> np.ndarray:
        """Return the links across the periodic boundary, between the last slab and the first particles."""
        pos = np.concatenate([slabs[-1]["surface"], *(slab["start"] for slab in slabs)])
        keys = np.concatenate([slabs[-1]["surface_keys"], *(slab["start_keys"] for slab in slabs)])
        if len(slabs) < 2 or not len(pos):
            return np.empty((0, 2), keys.dtype)
        return _Groups(self._labels(pos), keys).links(len(pos))


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
