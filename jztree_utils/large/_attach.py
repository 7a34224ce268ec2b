"""Particles of other types join the group of the nearest linked particle, with only a part of both in memory.

The attached particles are read in chunks along the axis. Each chunk searches the slabs of linked particles, the nearest
slab first, with the particles that may have a nearer neighbour there. The sources of each search include the
nearest particles from earlier slabs. So the search decides between slabs like a search in memory: by distances in the
dtype of the positions, and at equal distance by the z-order.

The cost is one search of each chunk per slab around it. Without a limit, a distant particle may need all slabs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, NamedTuple

import jax
import numpy as np

from jztree import knn
from jztree.data import Pos

from ._runs import Runs, padded, write_keys
from ._steps import Result, Steps

_PART = 4  # a chunk holds this many times fewer particles than a slab, because both are in memory together
_ROUNDING = 64  # units in the last place of a distance and of wrapped positions, more than a search loses


class Slab(NamedTuple):
    """A slab of linked particles.

    Attributes:
        name: Its number, different for all slabs.
        blocks: The blocks of the runs that it consists of.
        result: The result of its search.
    """

    name: str
    blocks: slice
    result: Result


class Attachment:
    """The searches of the attached particles. Each share has consecutive chunks along the axis."""

    def __init__(self, linked: Runs, attached: Runs, slabs_of: Callable[[int], list[Slab]]) -> None:
        """Prepare the searches.

        Args:
            linked: The runs of linked particles.
            attached: The runs of attached particles.
            slabs_of: Returns the slabs of a share, once these are complete.
        """
        self._search, self._linked, self._attached, self._slabs_of = linked.search, linked, attached, slabs_of
        search = self._search
        properties = [("pos", search.dtype, (search.dims,)), ("row", search.index), ("key", search.index)]
        self._source = np.dtype([*properties, ("slab", np.int32)])
        id_dtype = search.pieces.columns["id"][0] if search.has_ids else search.index
        self._count = np.dtype([("key", search.index), ("count", np.int64), ("id", id_dtype)])

    @cached_property
    def _slabs(self) -> list[Slab]:
        return [slab for share in range(self._search.shares) for slab in self._slabs_of(share)]

    @property
    def _chunk_rows(self) -> int:
        """The largest number of particles of a chunk."""
        block_rows = self._search.block_rows
        return max(self._search.rows // (_PART * block_rows), 1) * block_rows

    def _chunks(self, share: int) -> list[slice]:
        """Return the blocks of each chunk of a share."""
        search = self._search
        first, stop = search.part(len(self._attached.first), share)
        step = self._chunk_rows // search.block_rows
        return [slice(begin, min(begin + step, stop)) for begin in range(first, stop, step)]

    def attach_share(self, share: int) -> Iterator[tuple[int, str]]:
        """Attach the particles of each chunk of a share, and yield their number, and no file."""
        steps = self._search.steps_of[share]
        for number, blocks in enumerate(self._chunks(share)):
            yield int(steps.step(f"attach{number}", self._attach, steps, blocks)["num"]), ""

    def alone(self) -> list[Result]:
        """Return, for each chunk, keys, counts and identifiers of particles that are alone in a listed group."""
        return [
            steps.result(f"attach{number}")
            for share, steps in enumerate(self._search.steps_of)
            for number in range(len(self._chunks(share)))
        ]

    def counts(self, slab: Slab) -> np.ndarray:
        """Return records of the particles that join the groups of a slab: keys, numbers and smallest identifiers."""
        parts = [steps.read(f"attached{slab.name}", self._count) for steps in self._search.steps_of]
        return np.concatenate(parts)

    def remove(self) -> None:
        """Remove the files of `counts`."""
        for slab in self._slabs:
            for steps in self._search.steps_of:
                steps.remove(f"attached{slab.name}")

    def _attach(self, steps: Steps, blocks: slice) -> dict[str, Any]:
        """Write the key of each particle of a chunk: of its group, or its row without a group."""
        search = self._search
        pos, rows, ids = self._attached.read(blocks)
        nearest = self._nearest(pos)
        is_alone = nearest["slab"] < 0
        write_keys(search, steps, rows, np.where(is_alone, rows, nearest["key"]))
        order = np.lexsort((ids, nearest["key"], nearest["slab"]))
        order = order[np.count_nonzero(is_alone) :]
        key, slab = nearest["key"][order], nearest["slab"][order]
        first = np.flatnonzero((np.diff(key, prepend=-1) != 0) | (np.diff(slab, prepend=-1) != 0))
        records = np.empty(len(first), self._count)
        records["key"], records["id"] = key[first], ids[order[first]]
        records["count"] = np.diff(np.append(first, len(key)))
        for number in np.unique(slab):
            steps.append(f"attached{self._slabs[number].name}", records[slab[first] == number])
        listed = is_alone & (search.npart_min <= 1)
        return {"num": len(pos), "keys": rows[listed], "counts": np.ones(listed.sum(), int), "firsts": ids[listed]}

    def _nearest(self, pos: np.ndarray) -> np.ndarray:
        """Return the record of the nearest linked particle of each position; its slab is -1 if it is too far."""
        along, period = self._attached.along(pos), self._linked.period
        nearest, distance = np.zeros(len(pos), self._source), np.full(len(pos), self._search.limit)
        nearest["slab"] = -1
        low = self._linked.first[[slab.blocks.start for slab in self._slabs]]
        high = self._linked.last[[slab.blocks.stop - 1 for slab in self._slabs]]
        for number in np.argsort(_gap(along.min(), along.max(), low, high, period), kind="stable"):
            reach = self._reach(distance)
            searching = np.flatnonzero(_gap(along, along, low[number], high[number], period) <= reach)
            if not len(searching):
                continue
            begin, end = (along[searching] - reach[searching]).min(), (along[searching] + reach[searching]).max()
            sources = self._sources(int(number), begin, end, nearest[searching])
            radius, row = self._search_nearest(pos[searching], sources)
            has_source = row >= 0
            nearest[searching[has_source]] = sources[row[has_source]]
            distance[searching[has_source]] = radius[has_source]
        return nearest

    def _reach(self, distance: np.ndarray) -> np.ndarray:
        """Return distances that are above all rounding errors of a search."""
        epsilon = _ROUNDING * np.finfo(self._search.dtype).eps
        size = max(np.abs(self._linked.lower).max(), np.abs(self._linked.upper).max(), self._search.box.max())
        return distance * (1 + epsilon) + epsilon * size

    def _sources(self, number: int, low: float, high: float, earlier: np.ndarray) -> np.ndarray:
        """Return the particles of a slab in an interval of the axis, and earlier neighbours, in ascending rows."""
        slab = self._slabs[number]
        pos, rows, _ = self._linked.read(slab.blocks)
        along = self._linked.along(pos)
        inside = np.flatnonzero(_gap(along, along, low, high, self._linked.period) <= 0)
        columns = {"pos": pos, "row": rows, "key": slab.result["key"], "slab": np.full(len(rows), number, np.int32)}
        earlier = earlier[earlier["slab"] >= 0]
        _, first = np.unique(np.concatenate([rows[inside], earlier["row"]]), return_index=True)
        sources = np.empty(len(first), self._source)
        for name, column in columns.items():
            sources[name] = np.concatenate([column[inside], earlier[name]])[first]
        return sources

    def _search_nearest(self, pos: np.ndarray, sources: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the distance and the row in ``sources`` of the nearest one within the limit; otherwise the row is -1.

        Two masked points, at the corners of the linked particles, give the search the z-order of a search in memory.
        """
        search = self._search
        positions = np.concatenate([sources["pos"], [self._linked.lower, self._linked.upper]], dtype=search.dtype)
        capacity = search.rows + 2 + (0 if len(positions) <= search.rows + 2 else self._chunk_rows)
        part = Pos(pos=padded(positions, capacity), num=len(positions))
        queries = Pos(pos=padded(pos, self._chunk_rows), num=len(pos))
        options: dict[str, Any] = {"boxsize": search.box, "max_radius": search.limit, "allow_missing": True}
        with jax.enable_x64(search.dtype == np.float64):
            mask = np.arange(capacity) < len(sources)
            radius, row = knn.nearest.jit(part, 1, queries=queries, source_mask=mask, **options)
        return np.asarray(radius)[: len(pos), 0], np.asarray(row)[: len(pos), 0]


def _gap(low: Any, high: Any, other_low: Any, other_high: Any, period: float) -> np.ndarray:
    """Return the separation of intervals along the axis, 0 if they overlap."""
    shifts = (-period, 0.0, period) if period else (0.0,)
    gaps = [np.maximum(other_low + shift - high, low - other_high - shift) for shift in shifts]
    return np.maximum(np.minimum.reduce(gaps), 0.0)
