"""Labels of friends-of-friends groups, with only a part of the particles in memory.

1. Runs: ranges of rows, each sorted along one axis, go to files.
2. Slabs: the runs are merged along the axis. Each slab is grouped together with the *surface*: the particles of earlier
   slabs within one linking length of later particles. So any two linked particles are together in one search, which
   decides from the original positions, as a search in memory does.
3. Each share of the slabs is swept alone. Then its last surface is grouped with the first particles of the next share,
   and, if the axis is periodic, the surface of the last share with the first particles along the axis.

The key of a group in a slab is the smallest row of its particles in the slab. If a group reaches several slabs, it has
several keys, which pairs of keys join: a union-find over groups at surfaces, not over particles.

If particles of other types join groups (`_attach`), a second pass over the slabs counts them with the linked particles,
because the number of both decides which groups are listed.

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

from ._attach import Attachment, Slab
from ._runs import Runs, bounding_box, padded, sort_into_runs, write_keys
from ._search import Search
from ._steps import Result

_TOO_LONG = (
    "The linking length {rlink:g} is so long that {surface:,} particles are within it of the next ones, but memory "
    "holds only {rows:,}; give more memory, or a smaller linking length."
)
_SAME_PLACE = (
    "{surface:,} particles have nearly the same coordinate along axis {axis}, but memory holds only {rows:,}; give "
    "more memory."
)


@dataclass
class Joined:
    """Groups of all particles.

    Attributes:
        pairs: ``(m, 2)`` ascending keys, and the smallest key of the group of each.
        labels: ``(g,)`` smallest rows of the listed groups, the largest group first.
        counts: ``(g,)`` numbers of particles.
        lower, upper: Corners of the bounding box of the linked particles.
        corners: ``(2, d)``, those of all particles.
        slabs: Number of slabs.
        axis: The axis along which the slabs are consecutive.
    """

    pairs: np.ndarray
    labels: np.ndarray
    counts: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    corners: np.ndarray
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
    """Write the key of each particle to files, one per range of rows and share, and return their groups."""
    axis, num = sort_into_runs(search), search.nums[0]
    first_attached = int(np.searchsorted(search.starts, num))
    runs = Runs(search, axis, range(first_attached))
    attached = Runs(search, axis, range(first_attached, search.num_ranges))
    sweep = _Sweep(search, runs)
    search.each("find groups in slabs", num, sweep.sweep_share)
    attachment = Attachment(runs, attached, sweep.slabs_of)
    if search.attaches:
        search.each("attach particles", search.pieces.num - num, attachment.attach_share)
        search.each("count particles of groups", num, lambda share: sweep.count_share(share, attachment))
    joined = search.step("groups", sweep.join, attachment)
    if search.team.leads:
        runs.remove()
        attached.remove()
        attachment.remove()
    pairs, labels, counts = (joined[name] for name in ("pairs", "labels", "counts"))
    corners = bounding_box(search.results("run"), search.dims)
    return Joined(pairs, labels, counts, runs.lower, runs.upper, corners, int(joined["slabs"]), axis)


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

    def slabs_of(self, share: int) -> list[Slab]:
        """Return the slabs of a share."""
        end, stop = self._blocks(share)
        slabs: list[Slab] = []
        while end < stop:
            result = self.search.steps_of[share].result(f"slab{len(slabs)}")
            slabs.append(Slab(f"{share}_{len(slabs)}", slice(end, int(result["end"])), result))
            end = slabs[-1].blocks.stop
        return slabs

    def count_share(self, share: int, attachment: Attachment) -> Iterator[tuple[int, str]]:
        """Count the linked and attached particles of groups in each slab of a share."""
        steps = self.search.steps_of[share]
        for number, slab in enumerate(self.slabs_of(share)):
            steps.step(f"count{number}", self._count, slab, attachment.counts(slab))
            yield int(slab.result["num"]), ""

    def _count(self, slab: Slab, attached: np.ndarray) -> dict[str, Any]:
        pos, _, ids = self.runs.read(slab.blocks)
        keys, number = np.unique(np.concatenate([slab.result["key"], attached["key"]]), return_inverse=True)
        counts = np.bincount(number[: len(pos)], minlength=len(keys))
        np.add.at(counts, number[len(pos) :], attached["count"])
        places = np.concatenate([ids, attached["id"]]) if self.search.by_id else pos
        return self._needed(keys, counts, np.isin(keys, slab.result["surface_groups"]), number[: len(places)], places)

    def join(self, attachment: Attachment) -> dict[str, Any]:
        """Return the groups of all slabs together."""
        search = self.search
        slabs_of = [[slab.result for slab in self.slabs_of(share)] for share in range(search.shares)]
        slabs = [slab for slabs in slabs_of for slab in slabs]
        if not slabs:
            empty = np.empty(0, np.int64)
            return {"pairs": np.empty((0, 2), np.int64), "labels": empty, "counts": empty, "slabs": 0}
        pairs = _roots(np.concatenate([*(slab["links"] for slab in slabs), *self._links_of_shares(slabs_of)]))
        alone, name = attachment.alone(), "count" if search.attaches else "slab"
        counted = [
            search.steps_of[share].result(f"{name}{number}")
            for share, slabs in enumerate(slabs_of)
            for number in range(len(slabs))
        ]
        keys, numbers = (np.concatenate([part[name] for part in [*counted, *alone]]) for name in ("keys", "counts"))
        firsts = np.concatenate([part["firsts"] for part in [*counted, *(alone if search.by_id else [])]])
        roots, group = np.unique(_resolve(keys, *pairs.T), return_inverse=True)
        counts = np.zeros(len(roots), np.int64)
        np.add.at(counts, group, numbers)
        is_listed = counts >= search.npart_min
        group = group[: len(firsts)]
        place = self.places(firsts[is_listed[group]], group[is_listed[group]])
        # Particles alone have the largest keys, and without identifiers they come last.
        place = np.append(place, len(firsts) + np.arange(np.count_nonzero(is_listed) - len(place)))
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
        write_keys(search, search.steps_of[share], rows, groups.keys[held:])
        at_surface = np.zeros(len(groups.smallest), bool)
        at_surface[groups.number[:held]] = True
        at_surface[groups.number[at_end | at_start]] = True
        result = {
            "end": end,
            "num": len(rows),
            "surface": pos[at_end],
            "surface_keys": groups.keys[at_end],
            "start": pos[at_start],
            "start_keys": groups.keys[at_start],
            "links": groups.links(held),
        }
        if search.attaches:  # they are counted with attached particles later
            return result | {"key": groups.keys[held:], "surface_groups": groups.smallest[at_surface]}
        number, places = groups.number[held:], ids if search.by_id else pos[held:]
        counts = np.bincount(number, minlength=len(groups.smallest))
        return result | self._needed(groups.smallest, counts, at_surface, number, places)

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

    def _needed(
        self, keys: np.ndarray, counts: np.ndarray, at_surface: np.ndarray, number: np.ndarray, places: np.ndarray
    ) -> dict[str, np.ndarray]:
        """Return the groups of a slab that may be listed: groups that are large enough, or may continue.

        Args:
            keys: ``(g,)``.
            counts: ``(g,)``, the numbers of their particles in the slab.
            at_surface: ``(g,)``, whether they may continue in another slab.
            number: ``(n,)``, the number of the group of each particle.
            places: ``(n, ...)``, identifiers or positions of the particles, which order groups.

        Returns:
            The keys, the counts, and the smallest identifier, or the first position in z-order, of each.
        """
        is_needed = (at_surface | (counts >= self.search.npart_min)) & (counts > 0)
        candidates = np.flatnonzero(is_needed[number])
        candidates = candidates[self._order(places[candidates])]
        _, first = np.unique(number[candidates], return_index=True)
        return {"keys": keys[is_needed], "counts": counts[is_needed], "firsts": places[candidates[first]]}

    def _order(self, places: np.ndarray) -> np.ndarray:
        """Return the order of identifiers or positions."""
        return np.argsort(places, kind="stable") if self.search.by_id else self.z_order(places)

    def places(self, firsts: np.ndarray, group: np.ndarray) -> np.ndarray:
        """Return the place of each group, in ascending order of ``group``, from the results of `_needed`."""
        _, place = np.unique(group[self._order(firsts)], return_index=True)
        return place


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
