"""HDBSCAN* with the interface of scikit-learn, from minimum spanning trees."""

from __future__ import annotations

import numbers
from dataclasses import replace
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from jztree import hierarchy, mst

from ..hdbscan import centroids, check_integer, check_options, hdbscan, medoids
from ..kdtree import checked_box, padded
from ._arguments import Metric, check_method, checked_metric, checked_samples

_CENTRES = (None, "centroid", "medoid", "both")
_NOISE, _INFINITE, _MISSING = -1, -2, -3  # labels


class HDBSCAN(ClusterMixin, BaseEstimator):
    """`sklearn.cluster.HDBSCAN`, also in periodic boxes and with outlier scores; see `jztree.mst.spanning_tree`.

    The search for the spanning tree takes O(n log n) time and O(n) memory. Coincident samples have the same label.
    Differences from scikit-learn:

    - ``metric`` has three distances, and ``alpha`` does not exist.
    - Clusters are numbered in the order of their first samples.
    - Mutual reachability distances have ties, and the minimum spanning tree then depends on the order of the samples.
      So do some labels and probabilities, here and in scikit-learn.
    - With ``allow_single_cluster``, ``"leaf"`` selects the cluster of all samples if no cluster splits from it. In
      scikit-learn, all samples are then noise.
    - With ``allow_single_cluster``, ``max_cluster_size`` also limits the cluster of all samples. scikit-learn counts
      only the samples of the clusters that split from it.
    - Fewer samples than ``min_cluster_size`` are noise. In scikit-learn, ``allow_single_cluster`` with ``"eom"`` makes
      them a cluster.

    Args:
        min_cluster_size: The least number of samples of a cluster, at least 2. Smaller groups are noise.
        min_samples: The number of nearest samples, including itself, that determines the core distance of a sample.
            None means ``min_cluster_size``. (The package hdbscan does not count the sample itself.)
        cluster_selection_epsilon: Clusters that split at lengths below this distance are merged. 0 means none.
        max_cluster_size: The largest number of samples of a cluster that ``"eom"`` selects. None means no limit.
        metric: ``"euclidean"``, or another name of this distance; ``"sqeuclidean"``, or ``"cosine"``.
        metric_params: None, or ``{"p": 2}`` for ``"minkowski"``.
        algorithm: No effect.
        leaf_size: No effect.
        n_jobs: No effect.
        cluster_selection_method: ``"eom"`` selects the most stable clusters, ``"leaf"`` clusters that do not split.
        allow_single_cluster: Whether all samples may form one cluster, if they are at least ``min_cluster_size``.
        store_centers: ``"centroid"``, ``"medoid"``, or ``"both"``, the centres to find. None finds none.
        copy: No effect; samples are never changed.
        boxsize: The periodic length, or one per feature; 0 means open. None means an open box.

    Attributes:
        labels_: ``(n,)``, the cluster of each sample; -1 for noise, -2 for a sample with an infinite feature, -3 for a
            sample with a missing feature (NaN).
        probabilities_: ``(n,)``, the strength of the membership of each sample, from 0 to 1; 0 for noise and infinite
            samples, NaN for missing ones.
        outlier_scores_: ``(n,)``, GLOSH scores from 0 to 1; large for outliers. 1 for infinite samples, NaN for missing
            ones.
        centroids_: ``(c, d)``, the mean of each cluster, weighted by the probabilities, if ``store_centers`` requests
            it. In a periodic box, the mean of the images nearest to the first sample of the cluster.
        medoids_: ``(c, d)``, the sample of each cluster with the smallest sum of weighted distances to the others, if
            ``store_centers`` requests it. The time grows with the square of the size of a cluster.
        n_features_in_: The number of features of the samples.
    """

    def __init__(
        self,
        min_cluster_size: int = 5,
        min_samples: int | None = None,
        cluster_selection_epsilon: float = 0.0,
        max_cluster_size: int | None = None,
        metric: str = "euclidean",
        metric_params: dict[str, Any] | None = None,
        algorithm: str = "auto",
        leaf_size: int = 40,
        n_jobs: int | None = None,
        cluster_selection_method: str = "eom",
        allow_single_cluster: bool = False,
        store_centers: str | None = None,
        copy: bool | str | None = None,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.min_cluster_size, self.min_samples = min_cluster_size, min_samples
        self.cluster_selection_epsilon, self.max_cluster_size = cluster_selection_epsilon, max_cluster_size
        self.metric, self.metric_params = metric, metric_params
        self.algorithm, self.leaf_size, self.n_jobs = algorithm, leaf_size, n_jobs
        self.cluster_selection_method, self.allow_single_cluster = cluster_selection_method, allow_single_cluster
        self.store_centers, self.copy, self.boxsize = store_centers, copy, boxsize

    def __sklearn_tags__(self) -> Any:
        """Return the tags of scikit-learn: samples may be infinite or missing."""
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Cluster samples ``(n, d)``, real numbers, d from 1 to 8.

        Args:
            X: ``(n, d)`` samples.
            y: Ignored.

        Returns:
            The estimator.

        Raises:
            ValueError, TypeError: If an argument is invalid.
        """
        del y
        metric = self._check_arguments()
        samples = checked_samples(self, X, reset=True, finite=False)
        box = checked_box(self.boxsize, samples.shape[1])
        metric.check_box(box)
        is_missing, is_infinite = np.isnan(samples).any(axis=1), np.isinf(samples).any(axis=1)
        self._codes = np.select([is_missing, is_infinite], [_MISSING, _INFINITE], 0)
        samples = samples[self._codes == 0]
        core_k = self.min_cluster_size if self.min_samples is None else self.min_samples
        if core_k > len(samples):
            raise ValueError(
                f"min_samples ({core_k}; None means min_cluster_size) must be at most the number of finite samples, "
                f"{len(samples)}; choose a smaller min_samples."
            )
        points = metric.points(samples)
        with jax.enable_x64(True):
            self._edges = _in_metric(mst.spanning_tree.jit(padded(points), boxsize=box, core_k=int(core_k)), metric)
            tree = hierarchy.dendrogram.jit(self._edges)
        result = hdbscan(tree, self.min_cluster_size, points=points, boxsize=box, **self._selection())
        strength = result.probabilities
        self.labels_: np.ndarray = self._for_all(result.labels, _INFINITE, _MISSING).astype(np.intp)
        self.probabilities_: np.ndarray = self._for_all(strength, 0, np.nan)
        self.outlier_scores_: np.ndarray = self._for_all(result.outlier_scores, 1, np.nan)
        if self.store_centers in ("centroid", "both"):
            self.centroids_: np.ndarray = centroids(samples, result.labels, strength, box)
        if self.store_centers in ("medoid", "both"):
            rows = medoids(points, result.labels, strength, box, metric.of_euclidean)
            self.medoids_: np.ndarray = samples[rows]
        return self

    def _for_all(self, of_finite: np.ndarray, of_infinite: float, of_missing: float) -> np.ndarray:
        """Return one value per sample, from the values of the finite samples."""
        values = np.where(self._codes == _MISSING, of_missing, float(of_infinite))
        values[self._codes == 0] = of_finite
        return values

    def fit_predict(self, X: ArrayLike, y: object = None) -> np.ndarray:
        """Call `fit` and return the labels."""
        return self.fit(X, y).labels_

    def dbscan_clustering(self, cut_distance: float, min_cluster_size: int = 5) -> np.ndarray:
        """Return the clusters of DBSCAN* at one distance: samples connected by edges of at most this length.

        Args:
            cut_distance: The mutual reachability distance, in the unit of distances.
            min_cluster_size: The least number of samples of a cluster. Samples of smaller ones are noise.

        Returns:
            ``(n,)``, labels like ``labels_``.

        Raises:
            sklearn.exceptions.NotFittedError: Before `fit`.
            ValueError: If an argument is invalid.
        """
        check_is_fitted(self)
        if not isinstance(cut_distance, numbers.Real) or not 0 <= cut_distance < np.inf:
            raise ValueError(f"cut_distance is {cut_distance!r}; it must be a distance, at least 0 and finite.")
        check_integer("min_cluster_size", min_cluster_size, 1)
        n = np.count_nonzero(self._codes == 0)
        with jax.enable_x64(True):
            first = np.asarray(hierarchy.cut.jit(self._edges, float(cut_distance)))
        _, group, count = np.unique(first[:n], return_inverse=True, return_counts=True)
        is_cluster = count >= min_cluster_size
        number = np.where(is_cluster, np.cumsum(is_cluster) - 1, _NOISE)
        return self._for_all(number[group], _INFINITE, _MISSING).astype(np.intp)

    def _check_arguments(self) -> Metric:
        metric = checked_metric(self.metric, None, self.metric_params)
        if metric.p != 2:
            raise ValueError(
                f"metric is {self.metric!r}; HDBSCAN has the distances 'euclidean', 'sqeuclidean' and 'cosine' only."
            )
        check_method(self.algorithm, self.leaf_size)
        if self.min_samples is not None:
            check_integer("min_samples", self.min_samples, 1)
        check_options(min_cluster_size=self.min_cluster_size, **self._selection())
        if self.store_centers not in _CENTRES:
            raise ValueError(
                f"store_centers is {self.store_centers!r}; it must be None, 'centroid', 'medoid' or 'both'."
            )
        return metric

    def _selection(self) -> dict[str, Any]:
        """Return the options of `jztree_utils.hdbscan.hdbscan`."""
        return {
            "cluster_selection_epsilon": self.cluster_selection_epsilon,
            "max_cluster_size": self.max_cluster_size,
            "cluster_selection_method": self.cluster_selection_method,
            "allow_single_cluster": self.allow_single_cluster,
        }


def _in_metric(edges: mst.SpanningTree, metric: Metric) -> mst.SpanningTree:
    """Return the edges with their lengths in a distance that grows with the Euclidean one, in 64-bit mode."""
    if metric.scale is None:
        return edges
    length = metric.of_euclidean(np.ascontiguousarray(edges.exact).view(np.float64)[:, 0])
    return replace(
        edges, length=jax.numpy.asarray(length), exact=jax.numpy.asarray(length.view(np.uint32).reshape(-1, 2))
    )
