"""Point searches with Minkowski distances, Euclidean or other, and with squares of Euclidean ones.

The searches of `jztree` are Euclidean. In d dimensions, a ball of radius r in the other metric is inside the Euclidean
ball of radius r if p < 2, and of radius ``r d**(1/2 - 1/p)`` if p > 2. So a Euclidean search finds all candidates, and
their distances in the other metric decide. The k-th smallest is at most the largest distance of the k nearest
Euclidean neighbours.

The number of candidates per result is the ratio of the volumes of both balls: for p = 1 and p = infinity, 3 in three
dimensions, 7 and 5 in four, and 640 and 65 in eight.
"""

from collections.abc import Iterator

import numpy as np

from ._point_search import PointSearch, check_memory

_ROUNDING = 1e-12  # bound on the relative error of distances and of the factor between metrics


def search_by(search: PointSearch, p: float) -> "PointSearch | MetricSearch":
    """Return searches with the distance of exponent ``p``, from 1 to infinity, among the points of ``search``."""
    return search if p == 2 else MetricSearch(search, p)


class MetricSearch:
    """Searches like a `PointSearch`, with the distance ``sum(|x|**p)**(1/p)``, p from 1 to infinity.

    Points at the same distance are in row order.
    """

    def __init__(self, search: PointSearch, p: float) -> None:
        self.search, self.p, self.points = search, float(p), search.points

    def nearest(self, places: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `PointSearch.nearest`."""
        return self._nearest(places, self.search.nearest(places, k)[1], others=False)

    def nearest_others(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """See `PointSearch.nearest_others`."""
        return self._nearest(self.points, self.search.nearest_others(k)[1], others=True)

    def within(
        self, places: np.ndarray, radii: np.ndarray, bytes_used: int, advice: str, *, nearest_first: bool = False
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """See `PointSearch.within`."""
        result, total = [(np.zeros(0, np.int64), np.zeros(0, np.int64), np.zeros(0))], 0
        for pairs in self.blocks(places, radii):
            total += len(pairs[0])
            check_memory(total, bytes_used, advice)
            result.append(pairs)
        query, index, distance = (np.concatenate(column) for column in zip(*result, strict=True))
        splits = np.searchsorted(query, np.arange(len(places) + 1))
        order = np.lexsort((distance, query)) if nearest_first else slice(None)
        return splits, index[order], distance[order]

    def count_each(self, places: np.ndarray, radii: np.ndarray, weight: np.ndarray | None = None) -> np.ndarray:
        """See `PointSearch.count_each`."""
        counts = np.zeros(len(places), np.int64 if weight is None else np.float64)
        for query, index, _ in self.blocks(places, radii):
            counts += np.bincount(query, None if weight is None else weight[index], minlength=len(places))
        return counts

    def count(
        self,
        places: np.ndarray,
        radii: np.ndarray,
        of_places: np.ndarray | None = None,
        weight: np.ndarray | None = None,
    ) -> np.ndarray:
        """See `PointSearch.count`."""
        order = np.argsort(radii, kind="stable")
        total = np.zeros(len(radii), np.int64 if weight is None else np.float64)
        for query, index, distance in self.blocks(places, np.full(len(places), radii.max(initial=-1.0))):
            product = None if of_places is None or weight is None else of_places[query] * weight[index]
            total += np.bincount(np.searchsorted(radii[order], distance), product, minlength=len(radii))
        result = np.empty_like(total)
        result[order] = np.cumsum(total)
        return result

    def _nearest(self, places: np.ndarray, euclidean: np.ndarray, others: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return distances and rows of the nearest, from the nearest in the Euclidean metric ``(q, k)``."""
        q, k = euclidean.shape
        query = np.repeat(np.arange(q), k)
        reach = self._distances(places, query, euclidean.reshape(-1)).reshape(q, k).max(axis=1, initial=0)
        distance, index = np.empty((q, k)), np.empty((q, k), np.int64)
        for pairs in self.blocks(places, reach):
            keep = pairs[0] != pairs[1] if others else slice(None)
            query, rows, offset = (column[keep] for column in pairs)
            order = nearest_first(query, offset, rows)
            which, starts = np.unique(query, return_index=True)
            selected = order[starts[:, None] + np.arange(k)]
            distance[which], index[which] = offset[selected], rows[selected]
        return distance, index

    def blocks(self, places: np.ndarray, radii: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
        """See `PointSearch.blocks`."""
        for query, index, _ in self.search.blocks(places, self._euclidean(places, radii)):
            distance = self._distances(places, query, index)
            near = distance <= radii[query]
            yield query[near], index[near], distance[near]

    def _euclidean(self, places: np.ndarray, radii: np.ndarray) -> np.ndarray:
        """Return the radii of Euclidean balls that contain the balls of the metric."""
        factor = max(self.points.shape[1] ** (0.5 - 1 / self.p), 1.0) * (1 + _ROUNDING)
        slack = 0.0
        if self.search.boxsize is not None:
            # Wrapping into the box rounds coordinates.
            farthest = (np.abs(of).max(initial=0) for of in (places, self.points, self.search.boxsize))
            slack = _ROUNDING * max(farthest)
        return np.where(radii < 0, radii, radii * factor + slack)

    def _distances(self, places: np.ndarray, query: np.ndarray, index: np.ndarray) -> np.ndarray:
        offset = self._apart(places, query, index)
        if np.isinf(self.p):
            return offset.max(axis=1)
        if self.p == 1:
            return _sum(offset)
        # Powers of lengths may overflow or underflow, unlike powers of their ratios to the longest.
        longest = offset.max(axis=1, keepdims=True)
        ratio = np.divide(offset, longest, out=np.zeros_like(offset), where=longest > 0)
        return longest[:, 0] * _sum(ratio**self.p) ** (1 / self.p)

    def _apart(self, places: np.ndarray, query: np.ndarray, index: np.ndarray) -> np.ndarray:
        """Return the distances between places and nearest images of points along each dimension, ``(e, d)``."""
        box = self.search.boxsize
        if box is None:
            return np.abs(places[query] - self.points[index])
        length = np.where(box > 0, box, np.inf)
        offset = np.abs(_wrapped(places, length)[query] - _wrapped(self.points, length)[index])
        return np.minimum(offset, np.abs(length - offset))


class SquareSearch(MetricSearch):
    """Searches with the squares of Euclidean distances times a ``scale``. They are in the order of the distances.

    With a scale of 1/2, they are cosine distances between unit vectors: ``1 - a . b = |a - b|**2 / 2``.
    """

    def __init__(self, search: PointSearch, scale: float) -> None:
        super().__init__(search, 2)
        self.scale = scale

    def _nearest(self, places: np.ndarray, euclidean: np.ndarray, others: bool) -> tuple[np.ndarray, np.ndarray]:
        query = np.repeat(np.arange(len(euclidean)), euclidean.shape[1])
        distance = self._distances(places, query, euclidean.reshape(-1)).reshape(euclidean.shape)
        order = np.lexsort((euclidean, distance))
        return np.take_along_axis(distance, order, axis=1), np.take_along_axis(euclidean, order, axis=1)

    def _euclidean(self, places: np.ndarray, radii: np.ndarray) -> np.ndarray:
        return super()._euclidean(places, np.where(radii < 0, -1, np.sqrt(np.maximum(radii, 0) / self.scale)))

    def _distances(self, places: np.ndarray, query: np.ndarray, index: np.ndarray) -> np.ndarray:
        return self.scale * _sum(self._apart(places, query, index) ** 2)


def nearest_first(query: np.ndarray, distance: np.ndarray, row: np.ndarray) -> np.ndarray:
    """Return the order by query, distance and row, of ascending queries."""
    # A sort of one number is several times as fast, and wrong only for almost equal distances. Sort these again.
    order = np.argsort(query + distance / (2 * distance.max(initial=0) or 1))
    query, distance, row = query[order], distance[order], row[order]
    wrong = (distance[1:] < distance[:-1]) | ((distance[1:] == distance[:-1]) & (row[1:] < row[:-1]))
    wrong &= query[1:] == query[:-1]
    if wrong.any():
        again = np.flatnonzero(np.isin(query, query[1:][wrong]))
        order[again] = order[again][np.lexsort((row[again], distance[again], query[again]))]
    return order


def _wrapped(points: np.ndarray, length: np.ndarray) -> np.ndarray:
    """Return points wrapped into a box whose open dimensions have infinite length."""
    return points - np.floor(points / length) * np.where(np.isinf(length), 0, length)


def _sum(columns: np.ndarray) -> np.ndarray:
    """Return the sums of rows, added in the order of the columns, like SciPy."""
    total = columns[:, 0].copy()
    for column in columns.T[1:]:
        total += column
    return total
