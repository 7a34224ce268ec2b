"""Labels of all particles in the order of the input, and the members and the catalogue of the listed groups.

1. Each range of rows is read again. Its members of listed groups go to buckets of consecutive groups.
2. Each bucket contains whole groups, and the sums of a search in memory give their catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any, Literal

import jax
import numpy as np

from jztree.data import FofCatalogue, ParticleData
from jztree.fof import sort_by_group
from jztree.jax_ext import exact
from jztree.tree import zsort

from ._pieces import COLUMNS, Reader
from ._runs import along_axis, ends_of_blocks, padded, stable_order
from ._search import Search
from ._steps import Steps
from ._sweep import Joined

_BUCKET = 4  # a bucket holds this many times fewer particles than a slab, because they have more properties


class Members:
    """The members of listed groups, the largest group first."""

    def __init__(self, search: Search, joined: Joined) -> None:
        self.search, self.joined = search, joined
        held = search.pieces.columns
        self.names = [name for name in COLUMNS if name in held]
        properties = [(name, *held[name]) for name in self.names]
        self.record = np.dtype([("group", np.int64), ("row", search.index), *properties])
        ends = np.cumsum(joined.counts)
        bucket = (ends - joined.counts) // max(1, search.rows // _BUCKET)
        # Numbers without gaps; the groups of each bucket are consecutive.
        self.bucket = np.cumsum(np.diff(bucket, prepend=bucket[:1]) > 0)
        self.sizes = np.bincount(self.bucket, joined.counts, minlength=1).astype(np.int64)
        self._starts = np.cumsum(self.sizes) - self.sizes
        search.each("read members of groups", search.pieces.num, self._read_share)
        num = int(self.sizes.sum())
        if search.by_id:
            search.step("ids", lambda: {"num": len(self._ids("w+"))})
        if search.keep:
            search.step("rows", lambda: {"num": len(self.rows("w+"))})
        search.each("find properties of groups", num, self._group_share)

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The dtype of identifiers."""
        return self.record["id"] if self.search.has_ids else np.dtype(np.int64)

    def reorder(self, members: np.ndarray) -> None:
        """Write the identifiers and rows of records, group after group, as the new order of the members."""
        group = members["group"]
        ends, counts = np.cumsum(self.joined.counts), self.joined.counts
        begins = np.flatnonzero(np.diff(group, prepend=-1))
        place = np.arange(len(group)) - np.repeat(begins, np.diff(np.append(begins, len(group))))
        place += (ends - counts)[group]
        self._ids("r+")[place] = members["id" if self.search.has_ids else "row"]
        self.rows("r+")[place] = members["row"]

    def rows(self, mode: Literal["r", "r+", "w+"] = "r") -> np.ndarray:
        """Return the rows of all members in the order of `reorder`, mapped from a file."""
        return self.search.steps.mapped("rows", mode, self.search.index, int(self.sizes.sum()))

    def _ids(self, mode: Literal["r", "r+", "w+"]) -> np.ndarray:
        return self.search.steps.mapped("ids", mode, self.id_dtype, int(self.sizes.sum()))

    def _read_share(self, share: int) -> Iterator[tuple[int, str]]:
        """Find the label of each particle of a share, and write the members of each bucket to its file."""
        search = self.search
        steps_of_ranges = search.read_ranges("labels", share, self._read)
        for (number, _, _), progress in zip(search.ranges(share), steps_of_ranges, strict=True):
            for steps in search.steps_of:
                steps.remove(f"keys{number}")
            yield progress

    def _read(self, out: Steps, reader: Reader, number: int) -> dict[str, Any]:
        search, run = self.search, out.result(f"run{number}")
        columns = {str(name): reader.read(str(name)) for name in run["names"]}
        reader.check_equal(run)
        start = search.starts[number]
        label = np.empty(len(columns["pos"]), search.index)
        for steps in search.steps_of:
            both = steps.read(f"keys{number}", search.index).reshape(-1, 2)
            label[both[:, 0] - start] = self.joined.resolve(both[:, 1])
        group = self.joined.numbers(label)
        members = np.flatnonzero(group >= 0)
        bucket = self.bucket[group[members]]
        members = members[stable_order(bucket, len(self.sizes))]
        kept, ends_of_kept = self._along_axis(columns["pos"]) if search.keep else (members, {})
        selected = np.concatenate([members, kept]) if search.keep else members
        records = np.empty(len(selected), self.record)
        records["group"], records["row"] = group[selected], selected + start
        records["group"][records["group"] < 0] = len(self.joined.counts)
        for name in self.names:
            rows = columns.pop(name) if name in columns else reader.read(name)
            if name == "mass" and (rows < 0).any():
                row = search.pieces.row_in_words(start + int(np.argmax(rows < 0)))
                raise ValueError(f"mass of {row} is negative; correct the particles.")
            records[name] = rows.take(selected, axis=0)
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.sizes)))
        for bucket_number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if first < end:
                out.append(f"members{bucket_number}", records[first:end])
        if search.keep:
            out.append(f"along{number}", records[len(members) :])
        return {"label": label, **ends_of_kept}

    def _along_axis(self, pos: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        """Return the order of particles along the axis, and the ends of its blocks."""
        along = along_axis(pos, self.joined.axis, self.search.box[self.joined.axis])
        order = np.argsort(along, kind="stable")
        return order, ends_of_blocks(along[order], self.search.block_rows)

    def _group_share(self, share: int) -> Iterator[tuple[int, str]]:
        search = self.search
        for bucket in range(share, len(self.sizes), search.shares):
            search.steps_of[share].step(f"catalogue{bucket}", self._catalogue, search.steps_of[share], bucket)
            for steps in search.steps_of:
                steps.remove(f"members{bucket}")
            yield int(self.sizes[bucket]), ""

    def _catalogue(self, out: Steps, bucket: int) -> dict[str, Any]:
        """Bring the members of a bucket into group order, and compute their catalogue."""
        search = self.search
        records = np.concatenate([steps.read(f"members{bucket}", self.record) for steps in search.steps_of])
        capacity = max(search.rows // _BUCKET, *self.sizes)
        names = [name for name in self.names if name in ("pos", "vel", "mass")]
        with jax.enable_x64(any(self.record[name].base.itemsize == 8 for name in names)):
            # Their order determines the order of sums, and the origin of centres in periodic boxes.
            records = self.in_z_order(records, capacity)
            first_group, end_group = np.searchsorted(self.bucket, [bucket, bucket + 1])
            number, first = records["group"] - first_group, np.empty(end_group - first_group, np.int64)
            first[number[::-1]] = np.arange(len(records))[::-1]  # the last assignment stays
            label = np.arange(capacity, dtype=np.int32)
            label[: len(records)] = first[number]
            columns: dict[str, Any] = {name: padded(records[name], capacity) for name in names}
            if search.pieces.shared_mass is not None:
                columns["mass"] = search.pieces.shared_mass
            _, cata = self._sums(ParticleData(**columns, num=len(records)), label)
        # The kernel orders groups by their first particles.
        by_number = np.argsort(np.argsort(first))
        ids = records["id" if search.has_ids else "row"]
        by_group = np.argsort(ids, kind="stable") if search.by_id else np.arange(len(records))
        by_group = by_group[stable_order(number[by_group], len(first))]
        out.append(f"grouped{bucket}", records.take(by_group))
        if search.by_id:
            start = self._starts[bucket]
            self._ids("r+")[start : start + len(ids)] = ids[by_group]
        columns = {name: np.asarray(rows)[by_number] for name, rows in cata.columns().items() if rows is not None}
        return columns | (self._types(records, number, len(first)) if search.attaches else {})

    def in_z_order(self, records: np.ndarray, capacity: int) -> np.ndarray:
        """Return records in the order of a search in memory: linked particles in z-order, then attached ones by row."""
        rows, corners = records["row"], (self.joined.lower, self.joined.upper)
        linked, attached = np.flatnonzero(rows < self.search.nums[0]), np.flatnonzero(rows >= self.search.nums[0])
        order = np.asarray(zsort.jit(padded(records["pos"][linked], capacity), self.search.box, corners)[1])
        in_order = [linked[order[order < len(linked)]], attached[np.argsort(rows[attached])]]
        return records.take(np.concatenate(in_order))

    def _types(self, records: np.ndarray, number: np.ndarray, groups: int) -> dict[str, np.ndarray]:
        """Return the number and the mass of the particles of each type in each group, ``(g, types)``."""
        kinds = len(self.search.nums)
        place = number * kinds + self.search.type_of(records["row"])
        mass = records["mass"] if "mass" in self.names else np.zeros(len(records))
        sums = {"type_counts": None, "type_masses": mass.astype(np.float64)}
        return {
            name: np.bincount(place, weights, minlength=groups * kinds).reshape(groups, kinds)
            for name, weights in sums.items()
        }

    def by_type(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the number and the mass of the particles of each type in each group, ``(g, types)``."""
        parts = [self._steps(bucket).result(f"catalogue{bucket}") for bucket in range(len(self.sizes))]
        counts, masses = (np.concatenate([part[name] for part in parts]) for name in ("type_counts", "type_masses"))
        return counts, masses

    @cached_property
    def _sums(self) -> Callable[[ParticleData, np.ndarray], tuple[ParticleData, FofCatalogue]]:
        """The compiled sums over groups, whose particles are in z-order with the first row of their group."""
        cfg, box = self.search.cfg.catalogue, exact(self.search.box, (self.search.dims,))
        result: Any = jax.jit(lambda part, label: sort_by_group(part, label, cfg, box))
        return result

    def catalogue(self) -> FofCatalogue:
        """Return the catalogue of all listed groups, as NumPy arrays."""
        counts = self.joined.counts
        parts = [self._steps(bucket).result(f"catalogue{bucket}") for bucket in range(len(self.sizes))]
        names = parts[0].keys() & set(FofCatalogue.column_names())
        columns: dict[str, Any] = {name: np.concatenate([part[name] for part in parts]) for name in names}
        offset = np.cumsum(counts) - counts
        is_small = int(counts.sum()) < 2**31
        columns["offset"] = offset.astype(np.int32 if is_small else np.int64)
        return FofCatalogue(ngroups=len(counts), **columns)

    def labels(self) -> Iterator[np.ndarray]:
        """Yield the labels of consecutive rows."""
        for result in self.search.results("labels"):
            yield result["label"]

    def ids(self) -> np.ndarray:
        """Return the identifiers (without these, the rows) of all members in group order, mapped from a file."""
        return self._ids("r")

    def _steps(self, bucket: int) -> Steps:
        return self.search.steps_of[bucket % self.search.shares]

    def blocks(self) -> Iterator[tuple[ParticleData, np.ndarray]]:
        """Yield consecutive members in group order, and their rows in the input."""
        for bucket in range(len(self.sizes)):
            records = self._steps(bucket).read(f"grouped{bucket}", self.record)
            columns: dict[str, Any] = {name: records[name].copy() for name in self.names if name != "internal_energy"}
            if self.search.pieces.shared_mass is not None:
                columns["mass"] = self.search.pieces.shared_mass
            yield ParticleData(**columns, num=len(records), num_total=int(self.sizes.sum())), records["row"].copy()
