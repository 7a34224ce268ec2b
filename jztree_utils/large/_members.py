"""Labels of all particles in the order of the input, and the members and the catalogue of the listed groups.

1. Each range of rows is read again. Its members of listed groups go to buckets of consecutive groups.
2. Each bucket contains whole groups, and the sums of a search in memory give their catalogue.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jztree.data import FofCatalogue, ParticleData
from jztree.fof import sort_by_group
from jztree.jax_ext import exact
from jztree.tree import zsort

from ..progress import progress
from ._pieces import COLUMNS
from ._steps import Result
from ._sweep import Joined, Search, padded

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
        self._labels = self._deal()
        self._parts = self._group()

    @property
    def id_dtype(self) -> np.dtype[Any]:
        """The dtype of identifiers."""
        return self.record["id"] if self.search.has_ids else np.dtype(np.int64)

    def _deal(self) -> list[Result]:
        """Find the label of each particle, and write the members of each bucket to its file."""
        search, results = self.search, []
        with progress("read members of groups", search.pieces.num, quiet=search.quiet) as advance:
            for number, (start, stop) in enumerate(search.ranges()):
                results.append(search.steps.step(f"labels{number}", lambda: self._read(number, start, stop)))  # noqa: B023
                search.steps.remove(f"keys{number}")
                advance(stop - start)
        return results

    def _read(self, number: int, start: int, stop: int) -> dict[str, Any]:
        search = self.search
        label = np.empty(stop - start, search.index)
        both = search.steps.read(f"keys{number}", search.index).reshape(-1, 2)
        label[both[:, 0] - start] = self.joined.resolve(both[:, 1])
        group = self.joined.numbers(label)
        members = np.flatnonzero(group >= 0)
        bucket = self.bucket[group[members]]
        members = members[np.argsort(bucket, kind="stable")]
        records = np.empty(len(members), self.record)
        records["group"], records["row"] = group[members], members + start
        for name in self.names:
            rows = search.pieces.read(name, start, stop)
            if name == "mass" and (rows < 0).any():
                raise ValueError(f"mass of row {start + int(np.argmax(rows < 0))} is negative; correct the particles.")
            records[name] = rows[members]
        ends = np.cumsum(np.bincount(bucket, minlength=len(self.sizes)))
        for bucket_number, (first, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
            if first < end:
                search.steps.append(f"members{bucket_number}", records[first:end])
        return {"label": label}

    def _group(self) -> list[Result]:
        search, results = self.search, []
        with progress("find properties of groups", int(self.sizes.sum()), quiet=search.quiet) as advance:
            for bucket, size in enumerate(self.sizes):
                results.append(search.steps.step(f"catalogue{bucket}", lambda: self._catalogue(bucket)))  # noqa: B023
                search.steps.remove(f"members{bucket}")
                advance(int(size))
        return results

    def _catalogue(self, bucket: int) -> dict[str, Any]:
        """Bring the members of a bucket into group order, and compute their catalogue."""
        search = self.search
        records = search.steps.read(f"members{bucket}", self.record)
        capacity = max(search.rows // _BUCKET, *self.sizes)
        names = [name for name in self.names if name != "id"]
        with jax.enable_x64(any(self.record[name].base.itemsize == 8 for name in names)):
            # The z-order of all particles determines the order of sums, and the origin of centres in periodic boxes.
            _, order = zsort.jit(padded(records["pos"], capacity), search.box, (self.joined.lower, self.joined.upper))
            in_z_order = np.asarray(order)
            records = records[in_z_order[in_z_order < len(records)]]
            _, first, number = np.unique(records["group"], return_index=True, return_inverse=True)
            label = np.arange(capacity, dtype=np.int32)
            label[: len(records)] = first[number]
            columns: dict[str, Any] = {name: padded(records[name], capacity) for name in names}
            if search.pieces.shared_mass is not None:
                columns["mass"] = search.pieces.shared_mass
            _, cata = self._sums(ParticleData(**columns, num=len(records)), label)
        # The kernel orders groups by their first particles.
        by_number = np.argsort(np.argsort(first))
        ids = records["id" if search.has_ids else "row"]
        by_group = np.lexsort((ids, records["group"]) if search.by_id else (records["group"],))
        search.steps.append(f"grouped{bucket}", records[by_group])
        if search.by_id:
            search.steps.append("ids", ids[by_group].astype(self.id_dtype))
        return {name: np.asarray(rows)[by_number] for name, rows in cata.columns().items() if rows is not None}

    @cached_property
    def _sums(self) -> Callable[[ParticleData, np.ndarray], tuple[ParticleData, FofCatalogue]]:
        """The compiled sums over groups, whose particles are in z-order with the first row of their group."""
        cfg, box = self.search.cfg.catalogue, exact(self.search.box, (self.search.dims,))
        result: Any = jax.jit(lambda part, label: sort_by_group(part, label, cfg, box))
        return result

    def catalogue(self) -> FofCatalogue:
        """Return the catalogue of all listed groups, as NumPy arrays."""
        counts = self.joined.counts
        names = self._parts[0].keys() & set(FofCatalogue.column_names())
        columns: dict[str, Any] = {name: np.concatenate([part[name] for part in self._parts]) for name in names}
        offset = np.cumsum(counts) - counts
        is_small = int(counts.sum()) < 2**31
        columns["offset"] = offset.astype(np.int32 if is_small else np.int64)
        return FofCatalogue(ngroups=len(counts), **columns)

    def labels(self) -> Iterator[np.ndarray]:
        """Yield the labels of consecutive rows."""
        for part in self._labels:
            yield part["label"]

    def ids(self) -> np.ndarray:
        """Return the identifiers (without these, the rows) of all members in group order, mapped from a file."""
        return self.search.steps.mapped("ids", self.id_dtype)

    def blocks(self) -> Iterator[tuple[ParticleData, np.ndarray]]:
        """Yield consecutive members in group order, and their rows in the input."""
        for bucket in range(len(self.sizes)):
            records = self.search.steps.read(f"grouped{bucket}", self.record)
            columns: dict[str, Any] = {name: records[name].copy() for name in self.names}
            if self.search.pieces.shared_mass is not None:
                columns["mass"] = self.search.pieces.shared_mass
            yield ParticleData(**columns, num=len(records), num_total=int(self.sizes.sum())), records["row"].copy()
