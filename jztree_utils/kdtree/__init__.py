"""`KDTree`: the class of `scipy.spatial` with the searches of `jztree`, for scripts that already use it.

All computations are in float64, in any mode of JAX. Distances with ``p`` from 1 to infinity are exact. The searches of
`jztree` are Euclidean (``p=2``). For another ``p``, a Euclidean search lists candidates, and their distances are
computed with NumPy; this is slower, above all in many dimensions.

Each new number of neighbours compiles again, which takes about a second. Points and queries are padded to a few sizes
that are compiled: a power of 4, above 4096 a power of 2, and above 65536 an eighth of one.
"""

from __future__ import annotations

import itertools
import numbers
import operator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_unit

from .._arrays import from_table
from ._metric_search import MetricSearch as MetricSearch
from ._metric_search import SquareSearch as SquareSearch
from ._metric_search import nearest_first as nearest_first
from ._metric_search import search_by as search_by
from ._point_search import MOST_DIMS, PointSearch
from ._point_search import check_memory as check_memory
from ._point_search import check_size as check_size
from ._point_search import checked_box as checked_box
from ._point_search import padded as padded

__all__ = ["KDTree"]

# Bytes per neighbour of results: an integer in a list, a pair in an array, and a tuple in a set or a dict.
_LIST, _PAIR, _TUPLE = 40, 40, 200
_COUNT_INSTEAD = "Use a smaller distance, fewer points, or count_neighbors, which needs no lists"


class KDTree:
    """Find neighbours of points, with the API of `scipy.spatial.KDTree`.

    The attributes ``data`` (float64), ``n``, ``m``, ``boxsize``, ``mins`` and ``maxes`` have SciPy's meanings; ``tree``
    is missing. The arguments ``eps`` and ``workers`` of the methods have no effect: results are exact, and all cores
    are used.

    Args:
        data: ``(n, m)`` real numbers, ``m`` from 1 to 8. They must not change, unless ``copy_data`` makes a copy.
        leafsize, compact_nodes, balanced_tree: No effect.
        copy_data: Whether to copy the data.
        boxsize: Periodic length, or one per dimension; 0 means open. Data must be within ``[0, boxsize)``.

    Raises:
        ValueError, TypeError: If data are not finite real numbers ``(n, m)`` of at most 3e144, or are outside the box,
            or if a box length is negative, NaN or infinite.
    """

    def __init__(
        self,
        data: ArrayLike,
        leafsize: int = 10,
        compact_nodes: bool = True,
        copy_data: bool = False,
        balanced_tree: bool = True,
        boxsize: ArrayLike | None = None,
    ) -> None:
        del compact_nodes, balanced_tree
        if leafsize < 1:
            raise ValueError(f"leafsize is {leafsize}; it must be at least 1.")
        data = from_table(data, "data")
        self.data, self.leafsize = _points(np.array(data) if copy_data else data, "data"), leafsize
        if self.data.ndim != 2:
            raise ValueError(f"data have shape {self.data.shape}; they must have shape (n, m).")
        self.n, self.m = self.data.shape
        if not 1 <= self.m <= MOST_DIMS:
            raise ValueError(f"data have {self.m} dimensions; points must have 1 to {MOST_DIMS} dimensions.")
        self.boxsize = checked_box(boxsize, self.m)
        _check_inside(self.data, self.boxsize)
        self.mins = self.data.min(axis=0) if self.n else np.zeros(self.m)
        self.maxes = self.data.max(axis=0) if self.n else np.zeros(self.m)
        self._search = PointSearch(self.data, self.boxsize)

    def query(
        self,
        x: ArrayLike,
        k: ArrayLike = 1,
        eps: float = 0.0,
        p: float = 2.0,
        distance_upper_bound: float = np.inf,
        workers: int = 1,
    ) -> tuple[Any, Any]:
        """Find the nearest neighbours of points.

        Args:
            x: ``(..., m)`` points.
            k: Number of neighbours, or a list of their ordinal numbers, where 1 is the nearest.
            eps, workers: No effect.
            p: The exponent of the distance ``sum(|x|**p)**(1/p)``, from 1 to infinity.
            distance_upper_bound: Return only neighbours below this distance.

        Returns:
            Distances and rows, ``(..., k)``, or ``(...)`` if ``k`` is 1. Missing neighbours have an infinite distance
            and the row ``n``.

        Raises:
            ValueError, TypeError: If an argument is invalid.
        """
        del eps
        _check_workers(workers)
        _check_metric(p)
        if not isinstance(distance_upper_bound, numbers.Real):
            raise TypeError(f"distance_upper_bound is {distance_upper_bound!r}; it must be one number.")
        required, single = _which(k)
        x = from_table(x, "x")
        points = self._queries(x)
        largest = min(int(required.max(initial=0)), self.n)
        distance, index = np.full((len(points), len(required)), np.inf), np.full((len(points), len(required)), self.n)
        if largest and len(points):
            result, rows = search_by(self._search, p).nearest(points, largest)
            there = required <= largest
            distance[:, there], index[:, there] = result[:, required[there] - 1], rows[:, required[there] - 1]
        far = ~(distance < distance_upper_bound)
        distance[far], index[far] = np.inf, self.n
        shape = (*np.shape(x)[:-1], *(() if single else (len(required),)))
        distance, index = distance.reshape(shape), index.reshape(shape)
        return (distance, index) if shape else (distance[()], index[()])

    def query_ball_point(
        self,
        x: ArrayLike,
        r: ArrayLike,
        p: float = 2.0,
        eps: float = 0,
        workers: int = 1,
        return_sorted: bool | None = None,
        return_length: bool = False,
    ) -> Any:
        """Find the rows of the points within a distance of the given points.

        Args:
            x: ``(..., m)`` points.
            r: Distances that broadcast to ``(...)``.
            p: The exponent of the distance ``sum(|x|**p)**(1/p)``, from 1 to infinity.
            eps, workers, return_sorted: No effect; lists are always sorted.
            return_length: Return only the lengths of the lists.

        Returns:
            A list for one point, otherwise an array ``(...)`` of lists; or only the lengths, without lists.

        Raises:
            MemoryError: If the lists would not fit into memory. The search does not start then.
        """
        del eps, return_sorted
        _check_workers(workers)
        _check_metric(p)
        check_no_unit(r, "r")
        x = from_table(x, "x")
        points, shape = self._queries(x), np.shape(x)[:-1]
        radii = np.broadcast_to(np.asarray(r, np.float64), shape).reshape(-1)
        if return_length:
            return search_by(self._search, p).count_each(points, radii).reshape(shape)[()]
        splits, index, _ = search_by(self._search, p).within(
            points, radii, _LIST, "Use a smaller r, fewer points at once, or return_length=True, which needs no lists"
        )
        lists = np.empty(len(points), object)
        for row in range(len(points)):
            lists[row] = sorted(index[splits[row] : splits[row + 1]].tolist())
        return lists.reshape(shape) if shape else lists[0]

    def query_ball_tree(self, other: KDTree, r: float, p: float = 2.0, eps: float = 0) -> list[list[int]]:
        """Return, for each point of this tree, the sorted rows of ``other`` within ``r``."""
        del eps
        _check_metric(p)
        search = search_by(self._points_of(other), p)
        splits, index, _ = search.within(self.data, np.full(self.n, float(r)), _LIST, _COUNT_INSTEAD)
        return [sorted(index[begin:end].tolist()) for begin, end in itertools.pairwise(splits)]

    def query_pairs(self, r: float, p: float = 2.0, eps: float = 0, output_type: str = "set") -> Any:
        """Return the pairs of rows ``i < j`` of points within ``r``: a set of tuples, or an array ``(pairs, 2)``."""
        del eps
        _check_metric(p)
        if output_type not in ("set", "ndarray"):
            raise ValueError(f"output_type is {output_type!r}; it must be 'set' or 'ndarray'.")
        each = _TUPLE if output_type == "set" else _PAIR
        search = search_by(self._search, p)
        splits, index, _ = search.within(self.data, np.full(self.n, float(r)), each, _COUNT_INSTEAD)
        first = np.repeat(np.arange(self.n), np.diff(splits))
        pairs = np.stack([first, index], axis=1)[first < index]
        return set(map(tuple, pairs.tolist())) if output_type == "set" else pairs.astype(np.intp)

    def count_neighbors(
        self,
        other: KDTree,
        r: ArrayLike,
        p: float = 2.0,
        weights: ArrayLike | tuple[ArrayLike | None, ArrayLike | None] | None = None,
        cumulative: bool = True,
    ) -> Any:
        """Count the pairs, one point of each tree, within distances, or sum the products of their weights.

        Args:
            other: The other tree, which may be this one.
            r: One distance, or several ``(m,)``.
            p: The exponent of the distance ``sum(|x|**p)**(1/p)``, from 1 to infinity.
            weights: Weights of the points of both trees, a pair of arrays or None; one array for both if the trees are
                the same.
            cumulative: Count the pairs within each distance. False counts only those above the previous distance, and
                distances must ascend.

        Returns:
            One number, or ``(m,)``: integer counts, or float64 sums with weights.
        """
        _check_metric(p)
        check_no_unit(r, "r")
        radii = np.atleast_1d(np.asarray(r, np.float64))
        if radii.ndim != 1:
            raise ValueError(f"r has shape {radii.shape}; it must be one distance, or several in one dimension.")
        if not cumulative and np.any(np.diff(radii) < 0):
            raise ValueError("r is not in ascending order; with cumulative=False, distances must ascend.")
        own, reference = (None, None) if weights is None else self._both_weights(other, weights)
        counts = search_by(self._points_of(other), p).count(self.data, radii, own, reference)
        if not cumulative:
            counts = np.diff(counts, prepend=counts.dtype.type(0))
        return counts if np.ndim(r) else counts[0] if weights is not None else int(counts[0])

    def sparse_distance_matrix(
        self, other: KDTree, max_distance: float, p: float = 2.0, output_type: str = "dok_matrix"
    ) -> Any:
        """Return the distances of the pairs, one point of each tree, within ``max_distance``.

        Args:
            other: The other tree, which may be this one.
            max_distance: Maximum distance of a pair.
            p: The exponent of the distance ``sum(|x|**p)**(1/p)``, from 1 to infinity.
            output_type: ``"dok_matrix"``, ``"coo_matrix"``, ``"dict"`` or ``"ndarray"``, the last with fields i, j, v.

        Returns:
            A sparse matrix ``(n, other.n)``, or the pairs in another form.
        """
        _check_metric(p)
        if output_type not in ("dok_matrix", "coo_matrix", "dict", "ndarray"):
            raise ValueError(
                f"output_type is {output_type!r}; it must be 'dok_matrix', 'coo_matrix', 'dict' or 'ndarray'."
            )
        each = _TUPLE if output_type in ("dict", "dok_matrix") else _PAIR
        splits, index, distance = search_by(self._points_of(other), p).within(
            self.data, np.full(self.n, float(max_distance)), each, _COUNT_INSTEAD
        )
        first = np.repeat(np.arange(self.n), np.diff(splits))
        if output_type == "dict":
            return dict(zip(zip(first.tolist(), index.tolist(), strict=True), distance.tolist(), strict=True))
        if output_type == "ndarray":
            table = np.empty(len(first), [("i", np.intp), ("j", np.intp), ("v", np.float64)])
            table["i"], table["j"], table["v"] = first, index, distance
            return table
        from scipy.sparse import coo_matrix  # noqa: PLC0415 - optional

        matrix = coo_matrix((distance, (first, index)), shape=(self.n, other.n))
        return matrix.todok() if output_type == "dok_matrix" else matrix

    def _queries(self, x: Any) -> np.ndarray:
        points = _points(x, "x")
        if points.ndim == 0 or points.shape[-1] != self.m:
            raise ValueError(f"x must consist of vectors of length {self.m} but has shape {points.shape}.")
        return points.reshape(-1, self.m)

    def _points_of(self, other: KDTree) -> PointSearch:
        """Return the points of another tree, in the box of this one, like SciPy."""
        if not isinstance(other, KDTree):
            raise TypeError(f"other has type {type(other).__name__}; it must be a jztree_utils.kdtree.KDTree.")
        if other.m != self.m:
            raise ValueError(f"the trees have {self.m} and {other.m} dimensions; both must have the same number.")
        mine, reference = (np.zeros(self.m) if tree.boxsize is None else tree.boxsize for tree in (self, other))
        return other._search if np.array_equal(mine, reference) else PointSearch(other.data, self.boxsize)

    def _both_weights(self, other: KDTree, weights: Any) -> tuple[np.ndarray, np.ndarray]:
        if not isinstance(weights, (tuple, list)):
            if other is not self:
                raise ValueError("Two different trees are used. Specify weights for both in a tuple.")
            weights = weights, weights
        created = []
        for weight, tree in zip(weights, (self, other), strict=True):
            check_no_unit(weight, "weights")
            values = np.ones(tree.n) if weight is None else np.asarray(weight, np.float64)
            if values.shape != (tree.n,):
                raise ValueError(f"Number of weights differ from the number of data points: {values.shape}, {tree.n}.")
            if not np.isfinite(values).all():
                raise ValueError("weights must be finite, check for nan or inf values")
            check_size(values, "weights")
            created.append(values)
        return created[0], created[1]


def _points(values: Any, name: str) -> np.ndarray:
    values = from_table(values, name)
    check_no_unit(values, name)
    array = np.asarray(values)
    if array.dtype.kind == "c":
        raise TypeError("KDTree does not work with complex data")
    array = np.ascontiguousarray(array, np.float64) if array.ndim else array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} must be finite, check for nan or inf values")
    check_size(array, name)
    return array


def _check_inside(data: np.ndarray, boxsize: np.ndarray | None) -> None:
    if boxsize is None:
        return
    periodic = boxsize > 0
    if np.any(data[:, periodic] >= boxsize[periodic]):
        raise ValueError("Some input data are greater than the size of the periodic box.")
    if np.any(data[:, periodic] < 0):
        raise ValueError("Negative input data are outside of the periodic box.")


def _check_workers(workers: Any) -> None:
    number = -1 if workers is None else _integer(workers, "workers must be an integer")
    if number != -1 and number < 1:
        raise ValueError(f"Invalid number of workers {number}, must be -1 or > 0")


def _integer(value: Any, words: str) -> int:
    try:
        return operator.index(value)
    except TypeError as error:
        raise TypeError(f"{words}; {value!r} was given.") from error


def _check_metric(p: float) -> None:
    if not isinstance(p, numbers.Real) or not p >= 1:
        raise ValueError(f"p is {p!r}; only p-norms with 1 <= p <= infinity are permitted.")


def _which(k: Any) -> tuple[np.ndarray, bool]:
    """Return the ranks of the wanted neighbours, from 1 on, and whether it is a single one without its own axis."""
    words = "k must be an integer or a sequence of integers"
    if k is None:
        raise ValueError(words)
    if np.ndim(k) > 0:
        required = [_integer(number, words) for number in k]
    else:
        required = list(range(1, _integer(k, words) + 1))
        if not required:
            raise ValueError("k must be an integer or a sequence of integers from 1 on")
    if min(required, default=1) < 1:
        raise ValueError("k must be an integer or a sequence of integers from 1 on")
    return np.asarray(required, int), np.ndim(k) == 0 and len(required) == 1
