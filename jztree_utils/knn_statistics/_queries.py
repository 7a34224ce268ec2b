"""Query points for statistics of neighbours, made block by block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_unit

from .._arrays import from_table


class Queries(Protocol):
    """Query points that are made block by block. Any class with these two members can be used.

    Attributes:
        num: The number of points.
    """

    @property
    def num(self) -> int: ...

    def block(self, first: int, last: int) -> np.ndarray:
        """Return the points from ``first`` to ``last``, without the last, ``(last - first, d)``."""
        ...


@dataclass(frozen=True)
class _Given:
    places: np.ndarray

    @property
    def num(self) -> int:
        return len(self.places)

    def block(self, first: int, last: int) -> np.ndarray:
        return self.places[first:last]


@dataclass(frozen=True)
class _Random:
    num: int
    lengths: np.ndarray
    seed: int

    def block(self, first: int, last: int) -> np.ndarray:
        dims = len(self.lengths)
        # A coordinate takes one number of the generator, so blocks of any size give the same points.
        generator = np.random.PCG64(self.seed).advance(first * dims)
        return np.random.Generator(generator).random((last - first, dims)) * self.lengths


@dataclass(frozen=True)
class _Grid:
    per_side: int
    lengths: np.ndarray

    @property
    def num(self) -> int:
        return self.per_side ** len(self.lengths)

    def block(self, first: int, last: int) -> np.ndarray:
        cell = np.unravel_index(np.arange(first, last), (self.per_side,) * len(self.lengths))
        return (np.stack(cell, axis=-1) + 0.5) * (self.lengths / self.per_side)


def random_queries(num: int, boxsize: ArrayLike, dims: int = 3, seed: int = 0) -> Queries:
    """Return uniformly distributed query points in a box. They are made block by block, so they take no memory.

    Args:
        num: The number of points.
        boxsize: One length, or ``(d,)`` lengths, in the unit of the positions.
        dims: The number of dimensions, if ``boxsize`` is one length.
        seed: Seed of the random numbers. The points are
            ``numpy.random.default_rng(seed).random((num, d)) * boxsize``.

    Returns:
        The points.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    return _Random(integer(num, "num"), _lengths(boxsize, dims), integer(seed, "seed", smallest=0))


def grid_queries(per_side: int, boxsize: ArrayLike, dims: int = 3) -> Queries:
    """Return query points at the centres of the ``per_side**d`` equal cells of a box; see `random_queries`."""
    return _Grid(integer(per_side, "per_side"), _lengths(boxsize, dims))


def as_queries(queries: Any, dims: int) -> Queries:
    """Return `Queries` from those or from an array. Raises TypeError or ValueError if the array is invalid."""
    if not hasattr(queries, "block"):
        queries = from_table(queries, "queries")
        check_no_unit(queries, "queries")
        places = np.asarray(queries)
        if places.dtype.kind not in "iuf":
            raise TypeError(
                f"queries is {type(queries).__name__}; it must be an array of real numbers (q, {dims}), or the result "
                "of random_queries or grid_queries."
            )
        if places.ndim != 2:
            raise ValueError(f"queries have shape {places.shape}; they must have shape (q, {dims}).")
        queries = _Given(places)
    if queries.num < 1:
        raise ValueError("queries is empty; give at least one.")
    result = queries.block(0, 1).shape[1]
    if result != dims:
        raise ValueError(f"queries have {result} dimensions, but the particles have {dims}; both must have the same.")
    return queries


def integer(value: Any, name: str, smallest: int = 1) -> int:
    """Return ``value``. Raises TypeError or ValueError unless it is an integer of at least ``smallest``."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} is {value!r}; it must be an integer.")
    if value < smallest:
        raise ValueError(f"{name} is {value}; it must be at least {smallest}.")
    return int(value)


def _lengths(boxsize: Any, dims: int) -> np.ndarray:
    check_no_unit(boxsize, "boxsize")
    lengths = np.asarray(boxsize)
    if lengths.dtype.kind not in "iuf":
        raise TypeError(f"boxsize is {boxsize!r}; it must be one or several real numbers.")
    lengths = lengths.astype(np.float64)
    if lengths.ndim == 0:
        lengths = np.full(integer(dims, "dims"), lengths)
    if lengths.ndim != 1 or not np.all((lengths > 0) & np.isfinite(lengths)):
        raise ValueError(f"boxsize is {boxsize}; it must be one or several lengths, positive and finite.")
    return lengths
