"""Point searches in float64, in any mode of JAX: the common part of `kdtree` and `estimators`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
from numpy.typing import ArrayLike

from jztree import Index, build_index
from jztree.data import Pos, check_no_unit
from jztree.knn import nearest
from jztree.radius import count_within, neighbours_within

from .._memory import bytes_in_words, host_memory

MOST_DIMS = 8
_LARGEST = 3e144  # the largest number whose square fits into float64, with a margin
_FEWEST_ROWS = 16
_BLOCK_PAIRS = 2**21  # pairs that `PointSearch.blocks` lists at once
_MOST_LISTED = 2**31 - 1  # maximum number of neighbours in the lists of `jztree.radius.neighbours_within`
# Bytes per neighbour during a search: rows and distances, in lists with spare capacity, and a copy of both.
_BYTES_LISTED, _BYTES_NEAREST = 30, 28
_FEWER = "Use fewer neighbours, or fewer points at once"


class PointSearch:
    """Searches among ``n`` points.

    The first query builds the index of the points. The index is not pickled.

    Attributes:
        points: ``(n, d)`` finite float64, d from 1 to 8, which must not change.
        boxsize: ``(d,)`` float64, 0 for open dimensions, or None.
    """

    def __init__(self, points: np.ndarray, boxsize: np.ndarray | None = None) -> None:
        self.points, self.boxsize = points, boxsize
        self._index: Index | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_index": None}

    def nearest(self, places: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and rows ``(q, k)`` of the points nearest to places ``(q, d)``, in order; k up to ``n``.

        Raises:
            MemoryError: If the results would not fit into memory. The search does not start then.
        """
        check_memory(len(places) * k, _BYTES_NEAREST, _FEWER)
        with jax.enable_x64(True):
            distance, row = nearest.jit(self.index(), k, queries=padded(places))
            return np.array(distance)[: len(places)], np.asarray(row, np.int64)[: len(places)]

    def nearest_others(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the nearest others of each point, ``(n, k)``, like `nearest`; k below ``n``."""
        n = len(self.points)
        check_memory(n * k, _BYTES_NEAREST, _FEWER)
        with jax.enable_x64(True):
            distance, row = nearest.jit(self.index(), k, exclude_self=True)
            return np.array(distance)[:n], np.asarray(row, np.int64)[:n]

    def within(
        self, places: np.ndarray, radii: np.ndarray, bytes_used: int, advice: str, *, nearest_first: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the points within a radius ``(q,)`` of each place, one list per place.

        Args:
            places: ``(q, d)`` float64.
            radii: ``(q,)`` float64. A negative radius contains no point.
            bytes_used: Additional bytes that the caller needs per neighbour.
            advice: Remedy for the error message if the lists do not fit into memory.
            nearest_first: Whether to sort each list by distance.

        Returns:
            The start of each list, ``(q + 1,)`` int64, and rows and distances, list by list. The order within a list,
            or of equal distances with ``nearest_first``, is undefined.

        Raises:
            ValueError: If a radius is NaN.
            MemoryError: If the lists would not fit into memory. The search does not start then.
        """
        if not len(self.points) or not len(places):
            return np.zeros(len(places) + 1, np.int64), np.zeros(0, np.int64), np.zeros(0)
        reach, none = self._reach(places, radii)
        self._check_lists(places, radii, bytes_used, advice)
        with jax.enable_x64(True):
            query, wide = _padded_queries(places, reach)
            lists = neighbours_within.jit(self.index(), wide, queries=query, nearest_first=nearest_first)
            splits = np.asarray(lists.splits)[: len(places) + 1].astype(np.int64)
            rows, distance = (np.asarray(of)[: splits[-1]] for of in (lists.index, lists.distance))
        rows = rows.astype(np.int64)
        if not none.any():
            return splits, rows, distance.copy()
        counts = np.diff(splits)
        retained = ~np.repeat(none, counts)
        return np.r_[0, np.cumsum(np.where(none, 0, counts))], rows[retained], distance[retained]

    def count_each(self, places: np.ndarray, radii: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        """Count the points within a radius ``(q,)`` of each place, ``(q,)`` int64. Raises ValueError if one is NaN.

        With weights ``(n,)``, return their sums over these points in float64.
        """
        kind = np.int64 if weight is None else np.float64
        if not len(self.points) or not len(places):
            return np.zeros(len(places), kind)
        reach, none = self._reach(places, radii)
        with jax.enable_x64(True):
            query, wide = _padded_queries(places, reach)
            counts = np.asarray(count_within.jit(self.index(), wide, queries=query, weights=_padded(weight)), kind)
        return np.where(none, 0, counts[: len(places)])

    def blocks(self, places: np.ndarray, radii: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """Yield the points within a radius ``(q,)`` of each place, in blocks of places, so that lists stay short.

        Each block is three arrays with one entry per pair, sorted by place: rows of places, rows of points, and
        distances. Raises ValueError if a radius is NaN.
        """
        if not len(self.points) or not len(places):
            return
        reach, none = self._reach(places, radii)
        counts = self.count_each(places, reach)
        bounds, ends = [0], np.cumsum(counts)
        while bounds[-1] < len(places):
            before = ends[bounds[-1]] - counts[bounds[-1]]
            bounds.append(max(int(np.searchsorted(ends, before + _BLOCK_PAIRS, side="right")), bounds[-1] + 1))
        parts = [part for part in itertools.pairwise(bounds) if counts[slice(*part)].any()]
        if not parts:
            return
        # All blocks have the same shapes, so that they share compiled code.
        rows = max(last - first for first, last in parts)
        capacity = _padded_size(max(int(counts[slice(*part)].sum()) for part in parts))
        for first, last in parts:
            with jax.enable_x64(True):
                query, wide = _padded_queries(places[first:last], reach[first:last], rows)
                lists = neighbours_within.jit(self.index(), wide, queries=query, capacity=capacity)
                splits = np.asarray(lists.splits)[: last - first + 1]
                index, distance = (np.asarray(of)[: splits[-1]] for of in (lists.index, lists.distance))
            row = np.repeat(np.arange(first, last), np.diff(splits))
            retained = ~none[row]
            yield row[retained], index[retained].astype(np.int64), distance[retained]

    def _check_lists(self, places: np.ndarray, radii: np.ndarray, bytes_used: int, advice: str) -> None:
        """Raise MemoryError if lists of neighbours do not fit; the count runs only for large numbers of pairs."""
        each, largest = _BYTES_LISTED + bytes_used, len(places) * len(self.points)
        if largest <= _MOST_LISTED and _fits(largest * each):
            return
        total = int(self.count_each(places, radii).sum())
        check_memory(total, each, advice)
        if total > _MOST_LISTED:
            raise MemoryError(f"there are {total:,} neighbours, but lists hold at most {_MOST_LISTED:,}. {advice}.")

    def count(
        self,
        places: np.ndarray,
        radii: np.ndarray,
        of_places: np.ndarray | None = None,
        weight: np.ndarray | None = None,
    ) -> np.ndarray:
        """Count the pairs of a place and a point within each of some radii, ``(m,)``.

        With weights, ``(q,)`` and ``(n,)``, return the sums of the products of the weights of such pairs.
        """
        kind = np.int64 if weight is None else np.float64
        if not len(self.points) or not len(places) or not len(radii):
            return np.zeros(len(radii), kind)
        reach, none = self._reach(places, radii)
        with jax.enable_x64(True):
            options: dict[str, Any] = {"queries": padded(places), "weights": _padded(weight)}
            counts = np.asarray(count_within.jit(self.index(), radii=np.sort(reach), **options), kind)[: len(places)]
        total = counts.sum(axis=0) if of_places is None else of_places @ counts
        return np.where(none, 0, total[np.argsort(np.argsort(reach, kind="stable"), kind="stable")])

    def index(self) -> Index:
        """Return the index of the padded points; call this in the 64-bit mode of JAX."""
        if self._index is None:
            self._index = build_index.jit(padded(self.points), self.boxsize)
        return self._index

    def _reach(self, places: np.ndarray, radii: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return radii in the valid range, and a mask of negative radii, which reach no points."""
        if np.isnan(radii).any():
            raise ValueError("distances must not be NaN.")
        corners = np.concatenate([places, self.points])
        everything = 2 * float(np.linalg.norm(corners.max(axis=0) - corners.min(axis=0))) + 1
        return np.clip(radii, 0, everything), radii < 0


def _fits(needed: int) -> bool:
    """Return whether a number of bytes is free, or the free memory is unknown."""
    free = host_memory()
    return free is None or needed <= free


def check_memory(number: float, each: int, advice: str, results: str = "neighbours") -> None:
    """Raise MemoryError if a number of neighbours or other items, of ``each`` bytes, does not fit into memory."""
    count = int(number)
    if not _fits(count * each):
        needed, free = f"{count * each:,} bytes ({bytes_in_words(count * each)})", bytes_in_words(host_memory() or 0)
        raise MemoryError(
            f"there are {count:,} {results}, which need {needed} of memory, but {free} are free. {advice}."
        )


def _padded_queries(places: np.ndarray, radii: np.ndarray, rows: int = 0) -> tuple[Pos, np.ndarray]:
    """Return `padded` places, and a radius for each row."""
    query = padded(places, rows)
    wide = np.zeros(query.pos.shape[0])
    wide[: len(places)] = radii
    return query, wide


def _padded(weight: np.ndarray | None) -> np.ndarray | None:
    """Return the weights of points for the rows of `padded`, 0 in padding."""
    return None if weight is None else np.append(weight, np.zeros(_padded_size(len(weight)) - len(weight)))


def check_size(values: np.ndarray, name: str) -> None:
    """Raise ValueError if a number is so large that squares and products of such numbers overflow."""
    if np.abs(values).max(initial=0) > _LARGEST:
        raise ValueError(
            f"{name} must have absolute values of at most {_LARGEST:g}, so that squares fit float64; choose another "
            "unit."
        )


def checked_box(boxsize: ArrayLike | None, dims: int | None, name: str = "boxsize") -> np.ndarray | None:
    """Return one length per dimension in float64, or None for an open box. If ``dims`` is None, accept any number.

    Raises:
        TypeError: If lengths are not real numbers.
        ValueError: If their number or one of the lengths is invalid.
    """
    if boxsize is None:
        return None
    check_no_unit(boxsize, name)
    try:
        lengths = np.asarray(boxsize)
    except ValueError:
        raise ValueError(f"{name} is {boxsize!r}; its lists must all have the same length.") from None
    if lengths.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {boxsize!r}; it must be one or several real numbers.")
    dims = lengths.size if dims is None else dims
    if lengths.shape not in ((), (1,), (dims,)):
        raise ValueError(f"{name} has shape {lengths.shape}; it must be one length, or {dims}, one per dimension.")
    if not (np.isfinite(lengths).all() and np.all(lengths >= 0)):
        raise ValueError(f"{name} is {boxsize}; lengths must be finite and positive, or 0 for open dimensions.")
    return np.broadcast_to(lengths.astype(np.float64), (dims,)).copy()


def padded(points: np.ndarray, rows: int = 0) -> Pos:
    """Pad points to one of a few sizes, of at least ``rows``, so that few sizes are compiled."""
    pos = np.zeros((_padded_size(max(len(points), rows)), points.shape[1]))
    pos[: len(points)] = points
    return Pos(pos=pos, num=len(points))


def _padded_size(rows: int) -> int:
    """Return the next power of 4, from 4096 rows the next power of 2, and from 65536 the next eighth of one.

    A search among few rows takes less time than its compilation, and among many it takes more.
    """
    bits = max(rows - 1, _FEWEST_ROWS - 1).bit_length()
    if bits <= 12:
        return 1 << (bits + bits % 2)
    step = 1 << (bits if bits <= 16 else bits - 4)
    return -(-rows // step) * step
