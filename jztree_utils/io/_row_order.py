"""Out-of-core reordering of rows in two passes: one over the input and one over a file of blocks.

A row is a block of bytes with any contents. The first pass appends each row to its block of the output, in an unnamed
temporary file that the system removes. The second pass orders one block at a time in memory. So all data are read twice
and written twice in large pieces, without access to single rows.
"""

import tempfile
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

# Bytes per block; two blocks are in memory. With more blocks, the written pieces get smaller.
BLOCK_BYTES = 1 << 28


def group_of_rows(rows: np.ndarray, count: np.ndarray, nums: Mapping[int, int]) -> dict[int, np.ndarray]:
    """Return the group of each particle of a snapshot, by type. Particles without a group get the number of groups.

    Args:
        rows: ``(m,)`` integers, rows of members, group by group; numbering continues from type to type.
        count: ``(g,)`` integers, number of members of each group.
        nums: Number of particles of each type, in the order of the row numbering.

    Returns:
        ``(n,)`` int32 or int64 by type.
    """
    total = sum(nums.values())
    groups = np.full(total, len(count), _index_dtype(len(count)))
    groups[rows] = np.repeat(np.arange(len(count), dtype=groups.dtype), count)
    ends = np.cumsum(list(nums.values()))
    return dict(zip(nums, np.split(groups, ends[:-1]), strict=True))


def _index_dtype(largest: int) -> type[np.signedinteger]:
    return np.int32 if largest < 2**31 else np.int64


def _sorting(keys: np.ndarray) -> np.ndarray:
    """Return the stable sorting order of integers of at least 0. NumPy is fast with 16 bits at a time."""
    order = np.argsort(keys.astype(np.uint16), kind="stable")
    for shift in range(16, int(keys.max(initial=0)).bit_length(), 16):
        digits = (keys >> shift).astype(np.uint16)
        order = order[np.argsort(digits[order], kind="stable")]
    return order


class RowOrder:
    """An order of rows: row ``i`` of the output is row ``rows[i]`` of the input.

    Attributes:
        rows: ``(n,)`` integers, each from 0 to n - 1 once.
    """

    def __init__(self, rows: np.ndarray) -> None:
        self.rows = np.asarray(rows).astype(_index_dtype(len(rows)), copy=False)
        if not self._is_permutation():
            raise ValueError(
                f"An order of {len(rows)} rows does not contain every row from 0 on once; give a permutation."
            )

    def _is_permutation(self) -> bool:
        inside = self.rows.ndim == 1 and not ((self.rows < 0) | (self.rows >= len(self.rows))).any()
        return inside and bool((self._places[self.rows] == np.arange(len(self.rows))).all())

    @classmethod
    def by_group(cls, groups: np.ndarray) -> "RowOrder":
        """Put the particles of group 0 first, then those of group 1, and so on. The sort is stable."""
        return cls(_sorting(groups))

    @cached_property
    def _places(self) -> np.ndarray:
        """The output row of each input row."""
        places = np.zeros_like(self.rows)
        places[self.rows] = np.arange(len(self.rows), dtype=self.rows.dtype)
        return places

    def apply(self, slices: Iterable[np.ndarray], folder: Path, multiple: int = 1) -> Iterator[np.ndarray]:
        """Yield the rows of consecutive ``slices`` in this order, in blocks.

        Args:
            slices: One-dimensional arrays of one dtype; they are iterated once.
            folder: Folder on a disk with space for all rows.
            multiple: Each block but the last has a multiple of this number of rows.
        """
        slices = iter(slices)
        first = next(slices, None)
        if first is None:
            return
        step = max(1, BLOCK_BYTES // (first.dtype.itemsize * multiple)) * multiple
        joined = self._chain(first, slices)
        if len(self.rows) <= step:
            yield np.concatenate(list(joined)).take(self.rows)
            return
        with tempfile.TemporaryFile(dir=folder) as scratch:
            places = self._deal(joined, scratch, step)
            scratch.seek(0)
            for start in range(0, len(self.rows), step):
                these = places[start : start + step] - start
                rows, ordered = np.empty((2, len(these)), first.dtype)
                scratch.readinto(rows.view(np.uint8))
                ordered[these] = rows
                yield ordered

    @staticmethod
    def _chain(first: np.ndarray, arrays: Iterable[np.ndarray]) -> Iterator[np.ndarray]:
        yield first
        yield from arrays

    def _deal(self, slices: Iterable[np.ndarray], scratch: Any, step: int) -> np.ndarray:
        """Append each row to its block, after the rows that were read before it.

        Returns:
            The output row of each row of the scratch file.
        """
        filled = np.arange(0, len(self.rows), step)  # the next row of each block
        dealt = np.empty_like(self.rows)
        begin = 0
        for rows in slices:
            places = self._places[begin : begin + len(rows)]
            begin += len(rows)
            block = places // step
            order = _sorting(block)
            rows, places = rows.take(order), places[order]
            ends = np.cumsum(np.bincount(block, minlength=len(filled)))
            for number, (start, end) in enumerate(zip([0, *ends[:-1]], ends, strict=True)):
                if start < end:
                    first = int(filled[number])
                    scratch.seek(first * rows.dtype.itemsize)
                    scratch.write(rows[start:end].view(np.uint8))
                    dealt[first : first + end - start] = places[start:end]
                    filled[number] += end - start
        return dealt
