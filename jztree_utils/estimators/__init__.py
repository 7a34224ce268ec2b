"""Nearest-neighbour estimators with the API of scikit-learn and the searches of `jztree`.

`NearestNeighbors`, `KNeighborsTransformer`, `RadiusNeighborsTransformer`, `DBSCAN`, `HDBSCAN` and `KernelDensity` have
the arguments, methods and attributes of the scikit-learn 1.6 (or later) classes of the same names. After a transformer,
the regressors, classifiers, embeddings and clusterings of scikit-learn work with ``metric="precomputed"``. The
differences are:

* samples have 1 to 8 features, distances are Minkowski distances (Euclidean, Manhattan, Chebyshev or another ``p`` from
  1), ``"sqeuclidean"`` or ``"cosine"`` in float64, and results are exact; ``algorithm``, ``leaf_size`` and ``n_jobs``
  have no effect, because all cores are used; searches with Euclidean distances are the fastest (see
  `jztree_utils.kdtree`);
* ``boxsize``, one length or one per feature (0 for an open dimension), makes space periodic;
* ``"cosine"`` uses the directions of the samples, so a sample that is 0 in all features raises an error;
* samples at equal distances are in row order in all results. If they compete for the last places among the nearest,
  z-order decides (`jztree.knn.nearest`).

Each new number of neighbours, and each new padded size of the sample set (see `jztree_utils.kdtree`), compiles again,
which takes about a second.
"""

from __future__ import annotations

import numbers
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike

try:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
    from sklearn.utils.validation import check_array, check_is_fitted
except ImportError as error:
    raise ImportError(
        "jztree_utils.estimators needs scikit-learn 1.6 or later; install it with: "
        "pip install 'jztree-native[sklearn]'."
    ) from error

from jztree.fof import dbscan

from .._arrays import from_table
from ..kdtree import MetricSearch, PointSearch, checked_box, padded
from ._arguments import (
    check_method,
    check_mode,
    checked_metric,
    checked_number,
    checked_radii,
    checked_samples,
    checked_weights,
)
from ._hdbscan import HDBSCAN
from ._kernel_density import KernelDensity

__all__ = [
    "DBSCAN",
    "HDBSCAN",
    "KNeighborsTransformer",
    "KernelDensity",
    "NearestNeighbors",
    "RadiusNeighborsTransformer",
]

_BYTES_LISTED = 60  # per neighbour: its query, row and distance, for the sort, and the result


class _Fitted(BaseEstimator):
    """The common part of the neighbour estimators: the samples that are searched."""

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Store samples ``(n, d)``, finite real numbers, d from 1 to 8, and ignore y. Others raise ValueError."""
        del y
        self._fit(X)
        return self

    def _fit(self, X: ArrayLike) -> None:
        caller: Any = self
        self._metric = checked_metric(caller.metric, caller.p, caller.metric_params)
        check_method(caller.algorithm, caller.leaf_size)
        for name, check in (("n_neighbors", checked_number), ("radius", checked_radii)):
            if getattr(caller, name, None) is not None:
                check(getattr(caller, name))
        samples = checked_samples(self, X, reset=True)
        self.effective_metric_, self.effective_metric_params_ = self._metric.name, self._metric.params
        self.n_samples_fit_ = len(samples)
        self._search = self._metric.search(samples, checked_box(caller.boxsize, samples.shape[1]))

    def _asking(self, X: ArrayLike | None) -> np.ndarray | None:
        """Return the query samples; None if the fitted samples are the queries."""
        check_is_fitted(self, "n_samples_fit_")
        return None if X is None else self._metric.points(checked_samples(self, X, reset=False))

    def _graph(self, data: np.ndarray, indices: np.ndarray, splits: np.ndarray) -> csr_matrix:
        return csr_matrix((data, indices, splits), shape=(len(splits) - 1, self.n_samples_fit_))


class _ByNumber(_Fitted):
    """Methods of estimators that find a number of neighbours."""

    n_neighbors: int

    def kneighbors(
        self, X: ArrayLike | None = None, n_neighbors: int | None = None, return_distance: bool = True
    ) -> Any:
        """Find the nearest samples.

        Args:
            X: ``(q, d)`` queries. None means the fitted samples, each without itself among its neighbours.
            n_neighbors: Number of neighbours; None means the value of the constructor.
            return_distance: Whether to return distances.

        Returns:
            Distances ``(q, k)`` float64, nearest first, and rows ``(q, k)``; or only the rows.

        Raises:
            TypeError, ValueError: If the number is invalid, or there are too few samples.
        """
        places = self._asking(X)
        k = checked_number(self.n_neighbors if n_neighbors is None else n_neighbors)
        largest = self.n_samples_fit_ - (places is None)
        if k > largest:
            reason = " others, because no sample is its own neighbour" if places is None else ""
            order = "<=" if places is not None else "<"
            raise ValueError(
                f"Expected n_neighbors {order} n_samples_fit, but n_neighbors = {k}, n_samples_fit = "
                f"{self.n_samples_fit_}, n_samples = {self.n_samples_fit_ if places is None else len(places)}: there "
                f"are {largest}{reason}."
            )
        distance, index = self._search.nearest_others(k) if places is None else self._search.nearest(places, k)
        index = _in_order_of_rows(distance, index).astype(np.intp)
        return (distance, index) if return_distance else index

    def kneighbors_graph(
        self, X: ArrayLike | None = None, n_neighbors: int | None = None, mode: str = "connectivity"
    ) -> csr_matrix:
        """Return a sparse matrix ``(q, n)``, of 1 (``mode="connectivity"``) or of distances (``"distance"``)."""
        check_mode(mode)
        distance, index = self.kneighbors(X, n_neighbors)
        data = distance.reshape(-1) if mode == "distance" else np.ones(index.size)
        return self._graph(data, index.reshape(-1), np.arange(len(index) + 1) * index.shape[1])


class _ByRadius(_Fitted):
    """Methods of estimators that find neighbours within a radius."""

    radius: float

    def radius_neighbors(
        self,
        X: ArrayLike | None = None,
        radius: ArrayLike | None = None,
        return_distance: bool = True,
        sort_results: bool = False,
    ) -> Any:
        """Find all samples within ``radius``.

        Args:
            X: See `NearestNeighbors.kneighbors`.
            radius: A number, or ``(q,)``, one per query; None means the value of the constructor.
            return_distance: Whether to return distances.
            sort_results: Nearest first, otherwise in row order.

        Returns:
            Arrays ``(q,)`` of arrays: distances and rows; or only the rows.

        Raises:
            ValueError: If the radius is invalid.
        """
        if sort_results and not return_distance:
            raise ValueError("return_distance must be True if sort_results is True.")
        splits, index, distance = self._lists(X, radius, sort_results)
        rows = _arrays(index, splits)
        return (_arrays(distance, splits), rows) if return_distance else rows

    def radius_neighbors_graph(
        self,
        X: ArrayLike | None = None,
        radius: ArrayLike | None = None,
        mode: str = "connectivity",
        sort_results: bool = False,
    ) -> csr_matrix:
        """Return a sparse matrix ``(q, n)``, of 1 (``mode="connectivity"``) or of distances (``"distance"``)."""
        check_mode(mode)
        splits, index, distance = self._lists(X, radius, sort_results)
        return self._graph(distance if mode == "distance" else np.ones(len(index)), index, splits)

    def _lists(
        self, X: ArrayLike | None, radius: ArrayLike | None, nearest_first: bool
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places = self._asking(X)
        asking = self._search.points if places is None else places
        reach = checked_radii(self.radius if radius is None else radius)
        if reach.shape not in ((), (len(asking),)):
            raise ValueError(
                f"radius has shape {reach.shape}; it must be one number, or {(len(asking),)}, one per query."
            )
        splits, index, distance = self._search.within(
            asking,
            np.broadcast_to(reach, len(asking)),
            _BYTES_LISTED,
            "Use a smaller radius, fewer samples at once, or kneighbors with its fixed number of neighbours",
            nearest_first=nearest_first,
        )
        query = np.repeat(np.arange(len(asking)), np.diff(splits))
        if places is None:
            is_neighbour = query != index
            query, index, distance = query[is_neighbour], index[is_neighbour], distance[is_neighbour]
            splits = np.searchsorted(query, np.arange(len(asking) + 1))
        if nearest_first:
            _sort_ties(query, index, distance)
            return splits, index.astype(np.intp), distance
        lists = self._graph(distance, index, splits)
        lists.sort_indices()
        return splits, lists.indices.astype(np.intp), lists.data


def _sort_ties(query: np.ndarray, index: np.ndarray, distance: np.ndarray) -> None:
    """Sort equal distances of a query by row, in place, in lists that are sorted by distance."""
    same = (query[1:] == query[:-1]) & (distance[1:] == distance[:-1])
    tied = np.flatnonzero(np.append(same, False) | np.insert(same, 0, False))
    index[tied] = index[tied][np.lexsort((index[tied], distance[tied], query[tied]))]


class NearestNeighbors(_ByNumber, _ByRadius):
    """`sklearn.neighbors.NearestNeighbors`, exact, for samples with 1 to 8 features; see the module."""

    def __init__(
        self,
        *,
        n_neighbors: int = 5,
        radius: float = 1.0,
        algorithm: str = "auto",
        leaf_size: int = 30,
        metric: str = "minkowski",
        p: float = 2,
        metric_params: object = None,
        n_jobs: int | None = None,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.n_neighbors, self.radius, self.algorithm, self.leaf_size = n_neighbors, radius, algorithm, leaf_size
        self.metric, self.p, self.metric_params, self.n_jobs, self.boxsize = metric, p, metric_params, n_jobs, boxsize


class _Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Fitted):
    """Base class that makes a graph of neighbours a pipeline step."""

    mode: str

    def _fit(self, X: ArrayLike) -> None:
        check_mode(self.mode)
        super()._fit(X)
        self._n_features_out = self.n_samples_fit_

    def fit_transform(self, X: ArrayLike, y: object = None) -> csr_matrix:
        """Call `fit` and return the graph of the samples themselves, each among its neighbours."""
        transformed: csr_matrix = self.fit(X, y).transform(X)
        return transformed


class KNeighborsTransformer(_Transformer, _ByNumber):
    """`sklearn.neighbors.KNeighborsTransformer`: transform samples to distances from their nearest fitted samples."""

    def __init__(
        self,
        *,
        mode: str = "distance",
        n_neighbors: int = 5,
        algorithm: str = "auto",
        leaf_size: int = 30,
        metric: str = "minkowski",
        p: float = 2,
        metric_params: object = None,
        n_jobs: int | None = None,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.mode, self.n_neighbors, self.algorithm, self.leaf_size = mode, n_neighbors, algorithm, leaf_size
        self.metric, self.p, self.metric_params, self.n_jobs, self.boxsize = metric, p, metric_params, n_jobs, boxsize

    def transform(self, X: ArrayLike) -> csr_matrix:
        """Return a sparse matrix ``(q, n)`` of the nearest ``n_neighbors``.

        With ``mode="distance"`` each sample has one more neighbour, because a fitted sample is among its neighbours.
        """
        check_is_fitted(self, "n_samples_fit_")
        return self.kneighbors_graph(X, self.n_neighbors + (self.mode == "distance"), self.mode)


class RadiusNeighborsTransformer(_Transformer, _ByRadius):
    """`sklearn.neighbors.RadiusNeighborsTransformer`: transform samples to distances from those within a radius."""

    def __init__(
        self,
        *,
        mode: str = "distance",
        radius: float = 1.0,
        algorithm: str = "auto",
        leaf_size: int = 30,
        metric: str = "minkowski",
        p: float = 2,
        metric_params: object = None,
        n_jobs: int | None = None,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.mode, self.radius, self.algorithm, self.leaf_size = mode, radius, algorithm, leaf_size
        self.metric, self.p, self.metric_params, self.n_jobs, self.boxsize = metric, p, metric_params, n_jobs, boxsize

    def transform(self, X: ArrayLike) -> csr_matrix:
        """Return a sparse matrix ``(q, n)`` of the neighbours within the radius, nearest first."""
        check_is_fitted(self, "n_samples_fit_")
        return self.radius_neighbors_graph(X, mode=self.mode, sort_results=True)


class DBSCAN(ClusterMixin, BaseEstimator):
    """`sklearn.cluster.DBSCAN`, with the same labels; see `jztree.fof.dbscan`.

    For Euclidean distances and without ``sample_weight``, memory does not grow with ``eps``.
    Otherwise all pairs within ``eps`` are in memory at once.
    """

    def __init__(
        self,
        eps: float = 0.5,
        *,
        min_samples: int = 5,
        metric: str = "euclidean",
        metric_params: object = None,
        algorithm: str = "auto",
        leaf_size: int = 30,
        p: float | None = None,
        n_jobs: int | None = None,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.eps, self.min_samples, self.metric, self.metric_params = eps, min_samples, metric, metric_params
        self.algorithm, self.leaf_size, self.p, self.n_jobs, self.boxsize = algorithm, leaf_size, p, n_jobs, boxsize

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Cluster samples ``(n, d)``, finite real numbers, d from 1 to 8.

        Sets ``labels_`` ``(n,)``, -1 for noise, ``core_sample_indices_`` and ``components_``, the core samples.

        Args:
            X: ``(n, d)`` samples.
            y: Ignored.
            sample_weight: ``(n,)``. A sample is a core sample if the weights within ``eps`` sum to at least
                ``min_samples``. Negative weights reduce the sum. None means 1 each.

        Returns:
            The estimator.

        Raises:
            ValueError, TypeError: If an argument is invalid.
        """
        del y
        metric = checked_metric(self.metric, self.p, self.metric_params)
        check_method(self.algorithm, self.leaf_size)
        samples = checked_samples(self, X, reset=True)
        box = checked_box(self.boxsize, samples.shape[1])
        if not isinstance(self.eps, numbers.Real) or not 0 < self.eps < np.inf:
            raise ValueError(f"eps is {self.eps!r}; it must be the distance of neighbours, positive and finite.")
        if not isinstance(self.min_samples, numbers.Integral) or self.min_samples < 1:
            raise ValueError(f"min_samples is {self.min_samples!r}; it must be an integer of at least 1.")
        eps, fewest = float(self.eps), int(self.min_samples)
        metric.check_box(box)
        if sample_weight is None and metric.p == 2:
            labels, core = _clusters(metric.points(samples), metric.reach(eps), fewest, box)
        else:
            weight = checked_weights(sample_weight, samples)
            labels, core = _clusters_of_lists(metric.search(samples, box), eps, fewest, weight)
        self.labels_: np.ndarray = labels.astype(np.intp)
        self.core_sample_indices_ = np.flatnonzero(core)
        self.components_ = check_array(from_table(X, "X"))[core]
        return self

    def fit_predict(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> np.ndarray:
        """Call `fit` and return the labels."""
        return self.fit(X, y, sample_weight=sample_weight).labels_


def _clusters(samples: np.ndarray, eps: float, fewest: int, box: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the label of each sample, and a mask of core samples."""
    with jax.enable_x64(True):
        result = dbscan.jit(padded(samples), eps, min_samples=fewest, boxsize=box)
        labels, core = (np.asarray(values)[: len(samples)] for values in result)
    return labels, core


def _clusters_of_lists(
    search: PointSearch | MetricSearch, eps: float, fewest: int, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and core samples from the lists of neighbours."""
    n = len(search.points)
    advice = "Use a smaller eps, or p=2 without sample_weight, which needs no lists"
    splits, index, _ = search.within(search.points, np.full(n, eps), _BYTES_LISTED, advice)
    # Every sample is in its own list, so lists are never empty.
    core = np.add.reduceat(weight[index], splits[:-1]) >= fewest
    query = np.repeat(np.arange(n), np.diff(splits))
    linked = core[query] & core[index]
    graph = csr_matrix((np.ones(linked.sum()), (query[linked], index[linked])), shape=(n, n))
    groups = connected_components(graph, directed=False)[1][core]
    # Clusters are numbered by their first core sample.
    _, first, group = np.unique(groups, return_index=True, return_inverse=True)
    none = len(first)
    labels = np.full(n, none)
    labels[core] = np.argsort(np.argsort(first))[group]
    # Other samples join the first cluster with a core sample within eps.
    np.minimum.at(labels, query[core[index]], labels[index[core[index]]])
    return np.where(labels == none, -1, labels), core


def _in_order_of_rows(distance: np.ndarray, index: np.ndarray) -> np.ndarray:
    """Sort neighbours at equal distances by row, in rows ``(q, k)``."""
    tied = np.flatnonzero((distance[:, 1:] == distance[:, :-1]).any(axis=1))
    index[tied] = np.take_along_axis(index[tied], np.lexsort((index[tied], distance[tied])), axis=1)
    return index


def _arrays(values: np.ndarray, splits: np.ndarray) -> np.ndarray:
    """Return an array of the parts of ``values``."""
    arrays = np.empty(len(splits) - 1, object)
    for row in range(len(arrays)):
        arrays[row] = values[splits[row] : splits[row + 1]]
    return arrays
