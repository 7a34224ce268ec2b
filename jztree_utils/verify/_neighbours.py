"""Checks of neighbours, and of counts of particles and pairs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._points import Points, Verification, column_of, integers_of, lengths_of, point_sets, sample_rows


def neighbours(
    part: Any,
    distance: ArrayLike,
    index: ArrayLike,
    *,
    queries: Any = None,
    boxsize: ArrayLike | None = None,
    exclude_self: bool = False,
    max_radius: ArrayLike = np.inf,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the result of `jztree.nearest`.

    Args:
        part: The sources, a particle class or positions ``(n, d)``.
        distance: ``(q, k)``, nearest first.
        index: ``(q, k)`` rows of sources, -1 at distance infinity for a missing neighbour.
        queries: The queries. None means the sources.
        boxsize: The box of the search.
        exclude_self: Whether the search excluded the query itself.
        max_radius: The limit of the search: a number, or one per query.
        samples: Number of rows to check. None means as many as take some seconds.
        seed: Seed of the sample.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(0).random((500, 3), np.float32)
        >>> distance, index = jz.nearest(pos, 4, boxsize=1.0)
        >>> verify.neighbours(pos, distance, index, boxsize=1.0).passed
        True
    """
    points, places, output_rows = point_sets(part, queries, boxsize)
    reported, rows = (
        column_of(distance, "distance", (output_rows, None)),
        integers_of(index, "index", (output_rows, None)),
    )
    if reported.shape != rows.shape:
        raise ValueError(f"distance has shape {reported.shape}, but index has {rows.shape}; pass both of one search.")
    limits = lengths_of(max_radius, "max_radius", output_rows)
    sample = sample_rows(len(places), len(points), samples, seed)

    def faults() -> Iterator[str]:
        for query in sample:
            away = points.distances(places[query])
            if exclude_self and queries is None:
                away[query] = np.inf
            k = rows.shape[1]
            within = np.append(away[away <= limits[query]], np.full(k, np.inf))
            expected = np.sort(np.partition(within, k - 1)[:k]) if k else within[:0]
            yield from _faults_of_list(query, reported[query], rows[query], away, expected, points)

    return Verification("neighbours", len(places), len(sample), tuple(faults()))


def _faults_of_list(
    query: int, reported: np.ndarray, rows: np.ndarray, away: np.ndarray, expected: np.ndarray, points: Points
) -> Iterator[str]:
    """Yield the faults of the neighbours of a query. away: its distances from all points."""
    exists = rows >= 0
    if (rows >= len(away)).any() or len(set(rows[exists].tolist())) < exists.sum():
        yield f"row {query} lists a row twice or a row that does not exist: {rows.tolist()}"
        return
    listed = np.where(exists, away[np.maximum(rows, 0)], np.inf)
    for truth, sentence in (
        (listed, "row {0} reports the distance {1:.9g} for its neighbour number {3}, which is at {2:.9g}"),
        (expected, "row {0} reports {1:.9g} as the distance of its neighbour number {3}, but it is {2:.9g}"),
    ):
        wrong = points.differ(reported, truth)
        if wrong.any():
            place = int(np.argmax(wrong))
            yield sentence.format(query, reported[place], truth[place], place)
            return


def counts_within(
    part: Any,
    radius: ArrayLike,
    count: ArrayLike,
    *,
    queries: Any = None,
    boxsize: ArrayLike | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the counts of `jztree.count_within`.

    Args:
        part: The sources, a particle class or positions ``(n, d)``.
        radius: A number, or one per query.
        count: ``(q,)``, the numbers of sources within the radius.
        queries: The queries. None means the sources.
        boxsize: The box of the search.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> print(verify.counts_within(pos, 1.5, [2, 3, 1]).faults[0])
        row 1 has the count 3, but 2 sources are within 1.5
    """
    points, places, output_rows = point_sets(part, queries, boxsize)
    counts, reach = column_of(count, "count", (output_rows,)), lengths_of(radius, "radius", output_rows)
    sample = sample_rows(len(places), len(points), samples, seed)
    faults = []
    for query in sample:
        away, margin = points.distances(places[query]), points.margin(reach[query])
        surely, possibly = (int((away <= reach[query] + by).sum()) for by in (-margin, margin))
        if not surely <= counts[query] <= possibly:
            sources = f"{possibly} sources are" if surely == possibly else f"{surely} to {possibly} sources are"
            faults.append(f"row {query} has the count {counts[query]}, but {sources} within {reach[query]:.9g}")
    return Verification("counts", len(places), len(sample), tuple(faults))


def pair_counts(
    part: Any, edges: ArrayLike, count: ArrayLike, *, queries: Any = None, boxsize: ArrayLike | None = None
) -> Verification:
    """Check the counts of `jztree.pair_counts` in bins of distance, by all pairs. Use it for up to 1e5 particles.

    Args:
        part: A particle class or positions ``(n, d)``.
        edges: ``(m + 1,)`` ascending edges of the bins.
        count: ``(m,)`` numbers of pairs; pairs of two particles of one set count twice.
        queries: The second set. None means pairs within ``part``, without pairs of a particle with itself.
        boxsize: The box of the search.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(0).random((100, 3), np.float32)
        >>> counts = jz.pair_counts(pos, [0.1, 0.2, 0.3], boxsize=1.0).count
        >>> verify.pair_counts(pos, [0.1, 0.2, 0.3], counts, boxsize=1.0).passed
        True
    """
    points, places, _ = point_sets(part, queries, boxsize)
    bounds = np.asarray(edges, np.float64)
    if bounds.ndim != 1 or len(bounds) < 2 or not (np.diff(bounds) > 0).all():
        raise ValueError(f"edges are {bounds.tolist()}; they must be at least two ascending numbers.")
    counts = column_of(count, "count", (len(bounds) - 1,)).astype(np.int64)
    below = np.zeros((2, len(bounds)), np.int64)  # pairs surely and possibly below each edge
    for place in places:
        away = np.sort(points.distances(place))
        for side, by in enumerate((-1, 1)):
            below[side] += np.searchsorted(
                away, bounds + by * points.margin(bounds), side="left" if by < 0 else "right"
            )
    if queries is None:
        below -= np.where(bounds > 0, len(places), 0)
    faults = [
        f"bin {i} has {counts[i]:,} pairs, but there are {below[0, i + 1] - below[1, i]:,} "
        f"to {below[1, i + 1] - below[0, i]:,}"
        for i in range(len(counts))
        if not below[0, i + 1] - below[1, i] <= counts[i] <= below[1, i + 1] - below[0, i]
    ]
    return Verification("pair counts", len(counts), len(counts), tuple(faults))
