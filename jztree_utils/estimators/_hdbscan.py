"""HDBSCAN* with the interface of scikit-learn, from minimum spanning trees."""

import numbers
from typing import Any, Self

import jax
import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator, ClusterMixin

from jztree import hierarchy, mst

from ..kdtree import padded
from ._arguments import check_method, checked_box, checked_exponent, checked_samples
from ._condensed_tree import condense, leaves_of, memberships, merge_close, most_stable, outlier_scores

_METHODS = ("eom", "leaf")


class HDBSCAN(ClusterMixin, BaseEstimator):
    """`sklearn.cluster.HDBSCAN`, also in periodic boxes and with outlier scores; see `jztree.mst.euclidean`.

    The search for the spanning tree takes O(n log n) time and O(n) memory. Coincident samples have the same label.
    Clusters are numbered in the order of their first samples. The differences from scikit-learn are that samples must
    be finite, distances are Euclidean, and ``alpha``, ``store_centers`` and ``dbscan_clustering`` do not exist. Mutual
    reachability distances have ties, so scikit-learn may use another minimum spanning tree; some probabilities, and
    clusters of ``"leaf"``, then differ.

    Args:
        min_cluster_size: The least number of samples of a cluster, at least 2. Smaller groups are noise.
        min_samples: The number of nearest samples, including itself, that determines the core distance of a sample.
            None means ``min_cluster_size``. (The package hdbscan does not count the sample itself.)
        cluster_selection_epsilon: Clusters that split at lengths below this distance are merged. 0 means none.
        max_cluster_size: The largest number of samples of a cluster that ``"eom"`` selects. None means no limit.
        metric: ``"euclidean"``, or another name of this distance.
        algorithm: No effect.
        leaf_size: No effect.
        n_jobs: No effect.
        cluster_selection_method: ``"eom"`` selects the most stable clusters, ``"leaf"`` those that do not split.
        allow_single_cluster: Whether all samples may form one cluster.
        boxsize: The periodic length, or one per feature; 0 means open. None means an open box.

    Attributes:
        labels_: ``(n,)``, the cluster of each sample, -1 for noise.
        probabilities_: ``(n,)``, the strength of the membership of each sample, from 0 to 1; 0 for noise.
        outlier_scores_: ``(n,)``, GLOSH scores from 0 to 1; large for outliers.
        n_features_in_: The number of features of the samples.
    """

    def __init__(
        self,
        min_cluster_size: int = 5,
        min_samples: int | None = None,
        cluster_selection_epsilon: float = 0.0,
        max_cluster_size: int | None = None,
        metric: str = "euclidean",
        algorithm: str = "auto",
        leaf_size: int = 40,
        n_jobs: int | None = None,
        cluster_selection_method: str = "eom",
        allow_single_cluster: bool = False,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.min_cluster_size, self.min_samples = min_cluster_size, min_samples
        self.cluster_selection_epsilon, self.max_cluster_size = cluster_selection_epsilon, max_cluster_size
        self.metric, self.algorithm, self.leaf_size, self.n_jobs = metric, algorithm, leaf_size, n_jobs
        self.cluster_selection_method, self.allow_single_cluster = cluster_selection_method, allow_single_cluster
        self.boxsize = boxsize

    def fit(self, X: ArrayLike, y: object = None) -> Self:
        """Cluster samples ``(n, d)``, finite real numbers, d from 1 to 8.

        Args:
            X: ``(n, d)`` samples.
            y: Ignored.

        Returns:
            The estimator.

        Raises:
            ValueError, TypeError: If an argument is invalid.
        """
        del y
        self._check_arguments()
        samples = checked_samples(self, X, reset=True)
        box = checked_box(self.boxsize, samples.shape[1])
        core_k = self.min_cluster_size if self.min_samples is None else self.min_samples
        if core_k > len(samples):
            raise ValueError(
                f"min_samples is {core_k} (None means min_cluster_size), but there are only {len(samples)} samples; "
                "choose a smaller min_samples."
            )
        with jax.enable_x64(True):
            edges = mst.euclidean.jit(padded(samples), box, core_k=int(core_k))
            tree = condense(hierarchy.dendrogram.jit(edges), int(self.min_cluster_size))
        distance, single = float(self.cluster_selection_epsilon), bool(self.allow_single_cluster)
        if self.cluster_selection_method == "eom":
            selected = most_stable(tree, single, np.inf if self.max_cluster_size is None else self.max_cluster_size)
        else:
            selected = leaves_of(tree)
            selected[0] &= single
        if distance > 0:
            selected = merge_close(tree, selected, distance, single)
        labels, strength = memberships(tree, selected, distance)
        self.labels_: np.ndarray = labels.astype(np.intp)
        self.probabilities_: np.ndarray = strength
        self.outlier_scores_: np.ndarray = outlier_scores(tree)
        return self

    def fit_predict(self, X: ArrayLike, y: object = None) -> np.ndarray:
        """Call `fit` and return the labels."""
        return self.fit(X, y).labels_

    def _check_arguments(self) -> None:
        if checked_exponent(self.metric, None, None) != 2:
            raise ValueError(f"metric is {self.metric!r}; HDBSCAN has Euclidean distances only, metric='euclidean'.")
        check_method(self.algorithm, self.leaf_size)
        _check_integer("min_cluster_size", self.min_cluster_size, 2)
        if self.min_samples is not None:
            _check_integer("min_samples", self.min_samples, 1)
        if self.max_cluster_size is not None:
            _check_integer("max_cluster_size", self.max_cluster_size, 1)
        epsilon = self.cluster_selection_epsilon
        if not isinstance(epsilon, numbers.Real) or not 0 <= epsilon < np.inf:
            raise ValueError(f"cluster_selection_epsilon is {epsilon!r}; it must be a distance, at least 0 and finite.")
        if self.cluster_selection_method not in _METHODS:
            raise ValueError(
                f"cluster_selection_method is {self.cluster_selection_method!r}; it must be 'eom' or 'leaf'."
            )
        if not isinstance(self.allow_single_cluster, (bool, np.bool_)):
            raise ValueError(f"allow_single_cluster is {self.allow_single_cluster!r}; it must be True or False.")


def _check_integer(name: str, number: Any, least: int) -> None:
    if not isinstance(number, numbers.Integral) or isinstance(number, bool) or number < least:
        raise ValueError(f"{name} is {number!r}; it must be an integer of at least {least}.")
