"""Matches between catalogues: the nearest objects within an angle, or all objects within it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ..correlation import whole_number
from ..kdtree import PointSearch, nearest_first
from ._arguments import SOURCES, checked_angles, checked_directions, checked_others
from ._coordinates import Directions, inclusive_chord, separations, unit_vectors

_LISTED = 40  # bytes of a pair in the results and during their computation
_ADVICE = "Use a smaller radius, or match, whose memory does not depend on the radius"


@dataclass(frozen=True, kw_only=True)
class Matches:
    """The nearest objects of another catalogue; see `match`.

    Attributes:
        index: ``(n, k)`` int64, rows of the other catalogue in order of separation; the fill value for missing ones.
        separation: ``(n, k)`` float64, angles in degrees; infinite for missing ones.
    """

    index: np.ndarray
    separation: np.ndarray

    @property
    def found(self) -> np.ndarray:
        """``(n, k)`` bool, whether there is such a match."""
        return np.isfinite(self.separation)

    @property
    def count(self) -> np.ndarray:
        """``(n,)`` int64, the number of matches of each object, at most ``k``."""
        return self.found.sum(axis=1)


def match(
    ra: ArrayLike,
    dec: ArrayLike,
    source_ra: ArrayLike | None = None,
    source_dec: ArrayLike | None = None,
    k: int = 1,
    radius: ArrayLike = 180.0,
    fill_value: int = -1,
) -> Matches:
    """Find the ``k`` nearest objects of another catalogue within an angle of each object.

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        source_ra, source_dec: ``(m,)``, the other catalogue. None means the same catalogue; no object then matches
            itself.
        k: Number of matches, at least 1. It may exceed the number of objects.
        radius: Largest separation in degrees, from 0 to 180, one for all objects or ``(n,)``.
        fill_value: The index of missing matches.

    Returns:
        Rows and separations. A match is within the radius if the result of `angular_separation` is at most the radius.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is invalid.
        MemoryError: If the matches would not fit into memory. The search does not start then.
    """
    ra, dec = checked_directions(ra, dec)
    sources = checked_others(source_ra, source_dec, SOURCES)
    reach, number, fill = _checked_radius(radius, ra), whole_number(k, "k"), _checked_fill(fill_value)
    one, other = (ra, dec), (ra, dec) if sources is None else sources
    largest = min(number, max(len(other[0]) - (sources is None), 0))
    index = np.full((len(ra), number), fill, np.int64)
    separation = np.full(index.shape, np.inf)
    if largest and len(ra):
        search = PointSearch(unit_vectors(*other))
        rows = search.nearest_others(largest)[1] if sources is None else search.nearest(unit_vectors(*one), largest)[1]
        angle = separations(Directions.of(ra[:, None], dec[:, None]), Directions.of(*other).rows(rows))
        # Rounding of the unit vectors may exchange neighbours at almost equal separations.
        order = np.argsort(angle, axis=1, kind="stable")
        rows, angle = np.take_along_axis(rows, order, 1), np.take_along_axis(angle, order, 1)
        near = angle <= reach[:, None]
        index[:, :largest][near], separation[:, :largest][near] = rows[near], angle[near]
    return Matches(index=index, separation=separation)


def search_around(
    ra: ArrayLike, dec: ArrayLike, source_ra: ArrayLike, source_dec: ArrayLike, radius: ArrayLike
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """List all objects of another catalogue within an angle of each object.

    Args:
        ra, dec: ``(n,)``; see `match`.
        source_ra, source_dec: ``(m,)``, the other catalogue.
        radius: Largest separation in degrees, from 0 to 180, one for all objects or ``(n,)``.

    Returns:
        For each pair, the row of the object, the row in the other catalogue, and the separation in degrees: ``(p,)``
        int64, int64 and float64. Pairs are in order of the first row, then of the separation, then of the second row.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is invalid.
        MemoryError: If the pairs would not fit into memory. The search does not start then.
    """
    ra, dec = checked_directions(ra, dec)
    source_ra, source_dec = checked_directions(source_ra, source_dec, SOURCES)
    reach = _checked_radius(radius, ra)
    search = PointSearch(unit_vectors(source_ra, source_dec))
    splits, source, _ = search.within(unit_vectors(ra, dec), inclusive_chord(reach), _LISTED, _ADVICE)
    query = np.repeat(np.arange(len(ra)), np.diff(splits))
    angle = separations(Directions.of(ra, dec).rows(query), Directions.of(source_ra, source_dec).rows(source))
    is_near = angle <= reach[query]
    query, source, angle = query[is_near], source[is_near].astype(np.int64), angle[is_near]
    order = nearest_first(query, angle, source)
    return query[order], source[order], angle[order]


def _checked_fill(fill_value: Any) -> int:
    if isinstance(fill_value, bool) or not isinstance(fill_value, (int, np.integer)):
        raise TypeError(f"fill_value is {fill_value!r}; it must be an integer, because it replaces row numbers.")
    if not -(2**63) <= fill_value < 2**63:
        raise ValueError(f"fill_value is {fill_value}; it must be within the range of int64.")
    return int(fill_value)


def _checked_radius(radius: Any, ra: np.ndarray) -> np.ndarray:
    """Return the radius of each object."""
    result = checked_angles(radius, "radius")
    if result.shape not in ((), ra.shape):
        raise ValueError(f"radius has shape {result.shape}; it must be one angle, or {ra.shape}, one per object.")
    return np.broadcast_to(result, ra.shape)
