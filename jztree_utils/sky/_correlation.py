"""Counts of pairs in bins of angle, and the angular correlation function."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jztree.radius import PairCounts, WideSums, pair_counts

from ..correlation import Correlation, bin_edges, totals, xi_from_counts
from ..kdtree import PointSearch
from ._arguments import QUERIES, as_columns, checked_angles, checked_directions, checked_others
from ._coordinates import angle_of_chord, chord_edges, unit_vectors

_RANDOMS = ("random_ra", "random_dec")


def angular_pair_counts(
    ra: ArrayLike,
    dec: ArrayLike,
    edges: ArrayLike,
    query_ra: ArrayLike | None = None,
    query_dec: ArrayLike | None = None,
    weights: ArrayLike | None = None,
    query_weights: ArrayLike | None = None,
    regions: ArrayLike | None = None,
    query_regions: ArrayLike | None = None,
    num_regions: int | None = None,
    separations: bool = False,
) -> PairCounts:
    """Count the pairs of objects in bins of the angle between them.

    Bin ``i`` holds the pairs with ``edges[i] < theta <= edges[i + 1]``. The distances of unit vectors in float64 decide
    this, so the edges are exact up to the rounding of unit vectors: about 1e-14 degrees, and 2e-12 at 179 degrees. Near
    180 degrees, the distance hardly depends on the angle, and the precision falls to 2e-6 degrees. A last edge of 180
    includes all pairs. No bin holds pairs of objects in the same direction.

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        edges: ``(b + 1,)`` ascending angles from 0 to 180 degrees.
        query_ra, query_dec: ``(m,)``, another catalogue; each pair then has one object of each. None means pairs within
            the catalogue, each in both orders.
        weights, query_weights: Weights of the objects of each catalogue, ``(n,)`` and ``(m,)``, or None.
        regions, query_regions, num_regions: Jackknife regions, see `region_of` and `jztree.radius.pair_counts`; or
            None.
        separations: Whether to sum the angles of the pairs in each bin also. This lists the pairs, block by block, and
            takes much longer than the counts.

    Returns:
        Counts and sums of weights, ``(b,)``; ``np.asarray`` converts each to int64 or float64. ``separation`` has the
        sums of angles in degrees times the product of both weights: divided by ``weight``, or by ``count`` without
        weights, they are mean angles.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is invalid.
    """
    pos, directions_b = unit_vectors(*checked_directions(ra, dec)), checked_others(query_ra, query_dec, QUERIES)
    pos_b = None if directions_b is None else unit_vectors(*directions_b)
    columns = as_columns(weights=weights, query_weights=query_weights, regions=regions, query_regions=query_regions)
    angles = _angles(edges)
    chords = chord_edges(angles)
    with jax.enable_x64(True):
        counts = pair_counts(pos, chords, queries=pos_b, num_regions=num_regions, **columns)
        counts = replace(counts, mode="theta", edges=_as_sums(angles), boxsize=None)
        if separations:
            sums = _sums_of_angles(pos, pos if pos_b is None else pos_b, chords, columns)
            counts.separation = _as_sums(sums)
        return counts


def _as_sums(numbers: np.ndarray) -> WideSums:
    return WideSums(jnp.asarray(numbers[:, None]))


def _sums_of_angles(pos: np.ndarray, pos_b: np.ndarray, chords: np.ndarray, columns: dict[str, Any]) -> np.ndarray:
    """Return the weighted sums of the angles in degrees of the pairs of two sets of unit vectors in each bin, ``(b,)``.

    Args:
        pos: ``(n, 3)``.
        pos_b: ``(m, 3)``, or ``pos`` for the pairs within a set.
        chords: ``(b + 1,)`` edges.
        columns: The weights of the sets by name.
    """
    own_weights = columns["weights"]
    query_weights = own_weights if pos_b is pos else columns["query_weights"]
    sums = np.zeros(len(chords) - 1)
    for row, row_b, chord in PointSearch(pos_b).blocks(pos, np.full(len(pos), chords[-1])):
        # Squares decide, like in `pair_counts`: the root of a square above that of an edge may round to the edge.
        x, y, z = (pos[row] - pos_b[row_b]).T
        place = np.searchsorted(chords**2, x * x + y * y + z * z) - 1
        is_held = (place >= 0) & (place < len(sums)) & (chord > 0)
        place, product = place[is_held], np.ones(np.count_nonzero(is_held))
        for weights, rows in ((own_weights, row), (query_weights, row_b)):
            product = product if weights is None else product * np.asarray(weights, np.float64)[rows[is_held]]
        sums += np.bincount(place, product * angle_of_chord(chord[is_held]), minlength=len(sums))
    return sums


def w_theta(
    ra: ArrayLike,
    dec: ArrayLike,
    edges: ArrayLike,
    random_ra: ArrayLike,
    random_dec: ArrayLike,
    weights: ArrayLike | None = None,
    random_weights: ArrayLike | None = None,
    regions: ArrayLike | None = None,
    random_regions: ArrayLike | None = None,
    num_regions: int | None = None,
    separations: bool = False,
) -> Correlation:
    """Return the angular correlation function ``w(theta)`` by the estimator of Landy & Szalay (1993, ApJ 412, 64).

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        edges: ``(b + 1,)`` ascending angles from 0 to 180 degrees; see `angular_pair_counts`.
        random_ra, random_dec: ``(m,)``, random directions in the same area of the sky.
        weights, random_weights: Weights ``(n,)`` and ``(m,)``, or None.
        regions, random_regions, num_regions: Regions for a jackknife, see `region_of`; or None.
        separations: Whether to compute the mean angle of the pairs of data in each bin; see `angular_pair_counts`.

    Returns:
        Values ``(b,)``, with the edges in degrees and the numbers of pairs.

    Raises:
        TypeError: If an argument has a wrong type.
        ValueError: If an argument is invalid.

    Warns:
        RuntimeWarning: If a value is NaN; see `jztree_utils.correlation.Correlation`.
    """
    data, randoms = checked_directions(ra, dec), checked_directions(random_ra, random_dec, _RANDOMS)
    columns = as_columns(weights=weights, regions=regions, random_weights=random_weights, random_regions=random_regions)
    weights, regions, random_weights, random_regions = columns.values()
    data_options: dict[str, Any] = {"weights": weights, "regions": regions, "num_regions": num_regions}
    random_options: dict[str, Any] = {"weights": random_weights, "regions": random_regions, "num_regions": num_regions}
    cross: dict[str, Any] = {"query_weights": random_weights, "query_regions": random_regions}
    dd = angular_pair_counts(*data, edges, **data_options, separations=separations)
    dr = angular_pair_counts(*data, edges, *randoms, **(data_options | cross))
    rr = angular_pair_counts(*randoms, edges, **random_options)
    with jax.enable_x64(True):
        sets = totals(unit_vectors(*data), **data_options), totals(unit_vectors(*randoms), **random_options)
    return xi_from_counts(dd, sets[0], _angles(edges), dr=dr, rr=rr, randoms=sets[1])


def _angles(edges: Any) -> np.ndarray:
    """Return bin edges in degrees. Raises TypeError or ValueError unless they ascend from 0 or more to 180 or less."""
    return bin_edges(checked_angles(edges, "edges"), "edges")
