"""The outcome of a check, and its tools: points in float64, random samples of rows, and checks of arguments."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import get_num, get_pos

from .._arrays import box_lengths

PAIRS = 200_000_000  # distances that a check computes by default
_SHOWN = 5  # faults in the description
ULPS = 8  # tolerance, in units of the last digit


@dataclass(frozen=True)
class Verification:
    """The outcome of a check.

    Attributes:
        content: The checked result, in words.
        rows: Number of its rows.
        checked: Number of rows that were computed again.
        faults: A sentence for each fault.
        notes: Sentences about parts of the result that were not checked.
        columns: Names of the checked columns of a catalogue.
    """

    content: str
    rows: int
    checked: int
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def probability_missed(self, fraction: float = 1e-6) -> float:
        """Return the probability that the sample has no wrong row although this fraction of all rows is wrong."""
        return 0.0 if self.checked >= self.rows else (1 - fraction) ** self.checked

    def raise_if_wrong(self) -> None:
        """Raise AssertionError with the description if a fault was found."""
        if self.faults:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        state = "no fault" if self.passed else f"{len(self.faults):,} faults"
        missed = " and ".join(
            f"{self.probability_missed(1 / n):.4g} if 1 in {n:,} rows is wrong" for n in (1000, 10**6)
        )
        lines = [
            f"{self.content}: {self.checked:,} of {self.rows:,} rows checked, {state}",
            f"  probability of missing an error: {missed}",
            *self.notes,
        ]
        lines += [f"  {fault}" for fault in self.faults[:_SHOWN]]
        return "\n".join(lines)


class Points:
    """Positions in float64, and distances to the nearest images."""

    def __init__(self, part: Any, boxsize: ArrayLike | None) -> None:
        self.pos, self.rows = _positions(part)
        self.dims = self.pos.shape[1]
        self.box = box_lengths(boxsize, self.dims)
        self.scale = float(np.abs(self.pos).max(initial=0.0)) + float(self.box.max(initial=0.0))

    def __len__(self) -> int:
        return len(self.pos)

    def offsets(self, place: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Return the vectors from a place to the nearest images of the points in ``rows``."""
        return self.nearest(self.pos[rows] - place)

    def nearest(self, offset: np.ndarray) -> np.ndarray:
        """Return vectors ``(n, d)`` to the nearest images of their ends."""
        period = np.where(self.box > 0, self.box, 1.0)
        return offset - np.where(self.box > 0, self.box, 0.0) * np.rint(offset / period)

    def distances(self, place: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Return the distances from a place to the points in ``rows``."""
        return np.sqrt((self.offsets(place, rows) ** 2).sum(axis=1))

    def margin(self, distance: Any, dtype: Any = np.float64) -> Any:
        """Return the rounding error of distances that were rounded to a dtype; 0 for an infinite distance."""
        finite = np.where(np.isfinite(distance), np.abs(distance), 0.0)
        return ULPS * (np.finfo(dtype).eps * finite + np.finfo(np.float64).eps * self.scale)

    def differ(self, reported: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return which reported distances are not the true ones, rounded to their dtype."""
        with np.errstate(invalid="ignore"):
            is_near = np.abs(reported - truth) <= self.margin(truth, reported.dtype)
        return ~(is_near | (reported == truth))


def point_sets(part: Any, queries: Any, boxsize: ArrayLike | None) -> tuple[Points, np.ndarray, int]:
    """Return the sources, the positions of the queries (by default the sources), and the number of rows of a result."""
    points = Points(part, boxsize)
    places, rows = (points.pos, points.rows) if queries is None else _positions(queries)
    if places.shape[1] != points.dims:
        raise ValueError(f"the queries have {places.shape[1]} dimensions, but the particles have {points.dims}.")
    return points, places, rows


def _positions(part: Any) -> tuple[np.ndarray, int]:
    """Return the positions of particles in float64, without padding, and the number of rows with padding."""
    pos = np.asarray(get_pos(part))
    if pos.ndim != 2:
        raise ValueError(f"the positions have shape {pos.shape}; pass (n, d), without an axis over devices.")
    valid = pos[: int(get_num(part))].astype(np.float64)
    if not np.isfinite(valid).all():
        row = int(np.argmin(np.isfinite(valid).all(axis=1)))
        raise ValueError(f"the position of row {row} is {valid[row].tolist()}; positions must be finite.")
    return valid, len(pos)


def column_of(values: ArrayLike, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return an array of a result. Raise ValueError if its shape is wrong; None allows any length."""
    array = np.asarray(values)
    if array.ndim != len(shape) or any(size not in (None, rows) for rows, size in zip(array.shape, shape, strict=True)):
        words = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} has shape {array.shape}, but ({words}) is needed; pass the result for these particles."
        )
    return array


def integers_of(values: ArrayLike, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return a column as int64. Raise TypeError if it has other numbers than integers."""
    array = column_of(values, name, shape)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; rows are integers.")
    return array.astype(np.int64)


def lengths_of(values: ArrayLike, name: str, rows: int) -> np.ndarray:
    """Return a length per row. Raise ValueError if one is negative or NaN."""
    lengths = np.asarray(values, np.float64)
    lengths = np.full(rows, lengths) if lengths.ndim == 0 else column_of(lengths, name, (rows,))
    if not (lengths >= 0).all():
        raise ValueError(f"{name} is {lengths[~(lengths >= 0)][0]}; lengths must be at least 0.")
    return lengths


def one_length(value: ArrayLike, name: str) -> float:
    """Return a length. Raise ValueError if there are several, or it is negative or NaN."""
    if np.ndim(value):
        raise ValueError(
            f"{name} has shape {np.shape(value)}; only groups with a single linking length can be checked."
        )
    return float(lengths_of(value, name, 1)[0])


def sample_rows(rows: int, cost: int, samples: int | None, seed: int) -> np.ndarray:
    """Return the rows to check. cost: number of distances per row."""
    number = max(PAIRS // max(cost, 1), 10) if samples is None else samples
    if samples is not None and samples < 1:
        raise ValueError(f"samples is {samples}; pass a number of at least 1, or None.")
    return np.sort(np.random.default_rng(seed).choice(rows, min(number, rows), replace=False))
