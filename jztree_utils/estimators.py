"""Nearest-neighbour estimators with the API of scikit-learn and the searches of `jztree`.

`NearestNeighbors`, `KNeighborsTransformer`, `RadiusNeighborsTransformer` and `DBSCAN` have the arguments, methods and
attributes of the scikit-learn 1.6 (or later) classes of the same names. After a transformer, the regressors,
classifiers, embeddings and clusterings of scikit-learn work with ``metric="precomputed"``. The differences are:

* samples have 1 to 8 features, distances are Euclidean and float64, and results are exact; ``algorithm``, ``leaf_size``
  and ``n_jobs`` have no effect, because all cores are used;
* ``boxsize``, one length or one per feature (0 for an open dimension), makes space periodic;
* samples at equal distances are in row order in all results. If they compete for the last places among the nearest,
  z-order decides (`jztree.knn.knn`).

Each new number of neighbours, and each new size of the sample set (in steps of up to an eighth), compiles again, which
takes about a second.
"""

import numbers
from typing import Any, Self

import jax
import numpy as np

try:
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import connected_components
    from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
    from sklearn.utils.validation import check_array, check_consistent_length, check_is_fitted, validate_data
except ImportError as error:
    raise ImportError(
        "jztree_utils.estimators needs scikit-learn 1.6 or later; install it with: "
        "pip install 'jztree-native[sklearn]'."
    ) from error

from jztree.fof import dbscan

from .kdtree import MOST_DIMS, PointSearch, check_size, padded

__all__ = ["DBSCAN", "KNeighborsTransformer", "NearestNeighbors", "RadiusNeighborsTransformer"]

_MOST_DIMS_OF_CLUSTERS = 4
_BYTES_LISTED = 60  # per neighbour: its query, row and distance, for the sort, and the result


class _Fitted(BaseEstimator):
    """The common part of all neighbour estimators: the samples that are searched."""

    def fit(self, X: Any, y: Any = None) -> Self:
        """Store samples ``(n, d)``, finite real numbers, d from 1 to 8, and ignore y. Others raise ValueError."""
        del y
        self._fit(X)
        return self

    def _fit(self, X: Any) -> None:
        given: Any = self
        _check_euclidean(given.metric, given.p)
        _check_method(given.algorithm, given.leaf_size)
        for name, check in (("n_neighbors", _number), ("radius", _radii)):
            if getattr(given, name, None) is not None:
                check(getattr(given, name))
        samples = _samples(self, X, reset=True)
        self.effective_metric_, self.effective_metric_params_ = "euclidean", dict[str, Any]()
        self.n_samples_fit_ = len(samples)
        self._search = PointSearch(samples, _box(given.boxsize, samples.shape[1]))

    def _asking(self, X: Any) -> np.ndarray | None:
        """Return the query samples; None if the fitted samples are the queries."""
        check_is_fitted(self, "n_samples_fit_")
        return None if X is None else _samples(self, X, reset=False)

    def _graph(self, data: np.ndarray, indices: np.ndarray, splits: np.ndarray) -> csr_matrix:
        return csr_matrix((data, indices, splits), shape=(len(splits) - 1, self.n_samples_fit_))


class _ByNumber(_Fitted):
    """Methods of estimators that find a number of neighbours."""

    n_neighbors: int

    def kneighbors(self, X: Any = None, n_neighbors: int | None = None, return_distance: bool = True) -> Any:
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
        k = _number(self.n_neighbors if n_neighbors is None else n_neighbors)
        most = self.n_samples_fit_ - (places is None)
        if k > most:
            others = " others, because no sample is its own neighbour" if places is None else ""
            order = "<=" if places is not None else "<"
            raise ValueError(
                f"Expected n_neighbors {order} n_samples_fit, but n_neighbors = {k}, n_samples_fit = "
                f"{self.n_samples_fit_}, n_samples = {self.n_samples_fit_ if places is None else len(places)}: there "
                f"are {most}{others}."
            )
        distance, index = self._search.nearest_others(k) if places is None else self._search.nearest(places, k)
        index = _in_order_of_rows(distance, index).astype(np.intp)
        return (distance, index) if return_distance else index

    def kneighbors_graph(self, X: Any = None, n_neighbors: int | None = None, mode: str = "connectivity") -> csr_matrix:
        """Return a sparse matrix ``(q, n)``, of 1 (``mode="connectivity"``) or of distances (``"distance"``)."""
        _check_mode(mode)
        distance, index = self.kneighbors(X, n_neighbors)
        data = distance.reshape(-1) if mode == "distance" else np.ones(index.size)
        return self._graph(data, index.reshape(-1), np.arange(len(index) + 1) * index.shape[1])


class _ByRadius(_Fitted):
    """Methods of estimators that find neighbours within a radius."""

    radius: float

    def radius_neighbors(
        self, X: Any = None, radius: Any = None, return_distance: bool = True, sort_results: bool = False
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
        self, X: Any = None, radius: Any = None, mode: str = "connectivity", sort_results: bool = False
    ) -> csr_matrix:
        """Return a sparse matrix ``(q, n)``, of 1 (``mode="connectivity"``) or of distances (``"distance"``)."""
        _check_mode(mode)
        splits, index, distance = self._lists(X, radius, sort_results)
        return self._graph(distance if mode == "distance" else np.ones(len(index)), index, splits)

    def _lists(self, X: Any, radius: Any, nearest_first: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        places = self._asking(X)
        asking = self._search.points if places is None else places
        reach = _radii(self.radius if radius is None else radius)
        if reach.shape not in ((), (len(asking),)):
            raise ValueError(
                f"radius has shape {reach.shape}; it must be one number, or {(len(asking),)}, one per query."
            )
        splits, index, distance = self._search.within(
            asking,
            np.broadcast_to(reach, len(asking)),
            _BYTES_LISTED,
            "Use a smaller radius, fewer samples at once, or kneighbors with its fixed number of neighbours",
        )
        query = np.repeat(np.arange(len(asking)), np.diff(splits))
        if places is None:
            others = query != index
            query, index, distance = query[others], index[others], distance[others]
            splits = np.searchsorted(query, np.arange(len(asking) + 1))
        order = np.lexsort((index, distance, query) if nearest_first else (index, query))
        return splits, index[order].astype(np.intp), distance[order]


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
        metric_params: Any = None,
        n_jobs: int | None = None,
        boxsize: Any = None,
    ) -> None:
        self.n_neighbors, self.radius, self.algorithm, self.leaf_size = n_neighbors, radius, algorithm, leaf_size
        self.metric, self.p, self.metric_params, self.n_jobs, self.boxsize = metric, p, metric_params, n_jobs, boxsize


class _Transformer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, _Fitted):
    """Base class that makes a graph of neighbours a pipeline step."""

    mode: str

    def _fit(self, X: Any) -> None:
        _check_mode(self.mode)
        super()._fit(X)
        self._n_features_out = self.n_samples_fit_

    def fit_transform(self, X: Any, y: Any = None) -> csr_matrix:
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
        metric_params: Any = None,
        n_jobs: int | None = None,
        boxsize: Any = None,
    ) -> None:
        self.mode, self.n_neighbors, self.algorithm, self.leaf_size = mode, n_neighbors, algorithm, leaf_size
        self.metric, self.p, self.metric_params, self.n_jobs, self.boxsize = metric, p, metric_params, n_jobs, boxsize

    def transform(self, X: Any) -> csr_matrix:
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
        metric_params: Any = None,
        n_jobs: int | None = None,
        boxsize: Any = None,
    ) -> None:
        self.mode, self.radius, self.algorithm, self.leaf_size = mode, radius, algorithm, leaf_size
        self.metric, self.p, self.metric_params, self.n_jobs, self.boxsize = metric, p, metric_params, n_jobs, boxsize

    def transform(self, X: Any) -> csr_matrix:
        """Return a sparse matrix ``(q, n)`` of all neighbours within the radius, nearest first."""
        check_is_fitted(self, "n_samples_fit_")
        return self.radius_neighbors_graph(X, mode=self.mode, sort_results=True)


class DBSCAN(ClusterMixin, BaseEstimator):
    """`sklearn.cluster.DBSCAN`, with the same labels; see `jztree.fof.dbscan`.

    In up to 4 dimensions and without ``sample_weight``, memory does not grow with ``eps``. Otherwise all pairs within
    ``eps`` are in memory at once.
    """

    def __init__(
        self,
        eps: float = 0.5,
        *,
        min_samples: int = 5,
        metric: str = "euclidean",
        metric_params: Any = None,
        algorithm: str = "auto",
        leaf_size: int = 30,
        p: float | None = None,
        n_jobs: int | None = None,
        boxsize: Any = None,
    ) -> None:
        self.eps, self.min_samples, self.metric, self.metric_params = eps, min_samples, metric, metric_params
        self.algorithm, self.leaf_size, self.p, self.n_jobs, self.boxsize = algorithm, leaf_size, p, n_jobs, boxsize

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
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
        _check_euclidean(self.metric, 2 if self.p is None else self.p)
        _check_method(self.algorithm, self.leaf_size)
        samples = _samples(self, X, reset=True)
        box = _box(self.boxsize, samples.shape[1])
        if not isinstance(self.eps, numbers.Real) or not 0 < self.eps < np.inf:
            raise ValueError(f"eps is {self.eps!r}; it must be the distance of neighbours, positive and finite.")
        if not isinstance(self.min_samples, numbers.Integral) or self.min_samples < 1:
            raise ValueError(f"min_samples is {self.min_samples!r}; it must be an integer of at least 1.")
        eps, fewest = float(self.eps), int(self.min_samples)
        if sample_weight is None and samples.shape[1] <= _MOST_DIMS_OF_CLUSTERS:
            labels, core = _clusters(samples, eps, fewest, box)
        else:
            weight = _weights(sample_weight, samples)
            labels, core = _clusters_of_lists(PointSearch(samples, box), eps, fewest, weight)
        self.labels_: np.ndarray = labels.astype(np.intp)
        self.core_sample_indices_ = np.flatnonzero(core)
        self.components_ = check_array(X)[core]
        return self

    def fit_predict(self, X: Any, y: Any = None, sample_weight: Any = None) -> np.ndarray:
        """Call `fit` and return the labels."""
        return self.fit(X, y, sample_weight=sample_weight).labels_


def _clusters(samples: np.ndarray, eps: float, fewest: int, box: np.ndarray | None) -> tuple[np.ndarray, np.ndarray]:
    """Return the label of each sample, and a mask of core samples."""
    with jax.enable_x64(True):
        found = dbscan.jit(padded(samples), eps, fewest, box)
        labels, core = (np.asarray(one)[: len(samples)] for one in found)
    return labels, core


def _clusters_of_lists(
    search: PointSearch, eps: float, fewest: int, weight: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and core samples from the lists of all neighbours."""
    n = len(search.points)
    advice = "Use a smaller eps, or samples of up to 4 features without sample_weight, which need no lists"
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


def _weights(sample_weight: Any, samples: np.ndarray) -> np.ndarray:
    """Return weights ``(n,)``. Raises ValueError or TypeError unless they are finite, real, and one or ``n``."""
    if sample_weight is None or isinstance(sample_weight, numbers.Real):
        return np.full(len(samples), 1.0 if sample_weight is None else float(sample_weight))
    weight: np.ndarray = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weight.ndim != 1:
        raise ValueError(f"sample_weight has shape {weight.shape}; it must be (n,).")
    check_consistent_length(samples, weight)
    if not weight.any():
        raise ValueError("sample_weight is zero for every sample; give at least one other weight.")
    return weight


def _samples(estimator: Any, X: Any, reset: bool) -> np.ndarray:
    samples: np.ndarray = validate_data(estimator, X, reset=reset, dtype=np.float64, order="C")
    if samples.shape[1] > MOST_DIMS:
        raise ValueError(
            f"samples have {samples.shape[1]} features, but jztree supports 1 to {MOST_DIMS} features; reduce them, "
            f"for example with sklearn.decomposition.PCA(n_components={MOST_DIMS}), or use the class of sklearn."
        )
    check_size(samples, "samples")
    return samples


def _box(boxsize: Any, dims: int) -> np.ndarray | None:
    if boxsize is None:
        return None
    if np.shape(boxsize) not in ((), (dims,)):
        raise ValueError(f"boxsize has shape {np.shape(boxsize)}; it must be one length, or {dims}, one per feature.")
    return np.broadcast_to(np.asarray(boxsize, np.float64), (dims,)).copy()


def _check_euclidean(metric: Any, p: Any) -> None:
    if metric not in ("euclidean", "l2") and not (metric == "minkowski" and p == 2):
        raise ValueError(
            f"metric is {metric!r} with p={p!r}; distances must be Euclidean, so use metric='euclidean', or "
            "'minkowski' with p=2. The classes of sklearn have other metrics."
        )


def _check_method(algorithm: Any, leaf_size: Any) -> None:
    """Check the options that select a method in scikit-learn. They have no effect here, but typos raise an error."""
    methods = ("auto", "ball_tree", "kd_tree", "brute")
    if not isinstance(algorithm, str) or algorithm not in methods:
        raise ValueError(f"algorithm is {algorithm!r}; it must be one of {', '.join(map(repr, methods))}.")
    if not isinstance(leaf_size, numbers.Integral) or isinstance(leaf_size, bool) or leaf_size < 1:
        raise ValueError(f"leaf_size is {leaf_size!r}; it must be an integer of at least 1.")


def _check_mode(mode: Any) -> None:
    if mode not in ("connectivity", "distance"):
        raise ValueError(f'Unsupported mode, must be one of "connectivity", or "distance" but got "{mode}" instead')


def _number(n_neighbors: Any) -> int:
    if not isinstance(n_neighbors, numbers.Integral) or isinstance(n_neighbors, bool):
        raise TypeError(f"n_neighbors does not take {type(n_neighbors)} value, enter integer value")
    if n_neighbors <= 0:
        raise ValueError(f"Expected n_neighbors > 0. Got {n_neighbors}")
    return int(n_neighbors)


def _radii(radius: Any) -> np.ndarray:
    array = np.asarray(radius)
    if array.dtype.kind not in "fiu" or not np.all(array >= 0):
        raise ValueError(
            f"radius is {radius!r}; it must be a number of at least 0, which may be infinite, or one per query."
        )
    return array.astype(np.float64)


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
