"""Selection of clusters from a condensed tree."""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_unit
from jztree.hierarchy import Dendrogram

from ..kdtree import checked_box
from ._condensed_tree import (
    CondensedTree,
    condense,
    leaves_of,
    memberships,
    merge_close,
    most_stable,
    nearest_selected,
    outlier_scores,
)
from ._equal_points import join_equal_points

_METHODS = ("eom", "leaf")


@dataclass(frozen=True, slots=True)
class Clusters:
    """Clusters of ``n`` points.

    Attributes:
        labels: ``(n,)`` int64, the cluster of each point, -1 for noise. Clusters are numbered in the order of their
            first points.
        probabilities: ``(n,)`` float64, the strength of the membership of each point, from 0 to 1; 0 for noise.
        outlier_scores: ``(n,)`` float64, GLOSH scores from 0 to 1; large for outliers.
        tree: The condensed tree.
        selected: ``(k,)`` int64, the cluster in the condensed tree of each label.
    """

    labels: np.ndarray
    probabilities: np.ndarray
    outlier_scores: np.ndarray
    tree: CondensedTree
    selected: np.ndarray


def hdbscan(
    tree: Dendrogram,
    min_cluster_size: int = 5,
    *,
    cluster_selection_epsilon: float = 0.0,
    max_cluster_size: int | None = None,
    cluster_selection_method: str = "eom",
    allow_single_cluster: bool = False,
    points: ArrayLike | None = None,
    boxsize: ArrayLike | None = None,
) -> Clusters:
    """Return the clusters of a dendrogram that are stable over many lengths.

    The usual dendrogram is ``jztree.dendrogram(jztree.spanning_tree(part, boxsize=boxsize, core_k=min_samples))``.

    Args:
        tree: The dendrogram of ``n`` points. Points that join at the length 0 have the same label.
        min_cluster_size: The least number of points of a cluster, at least 2. Smaller groups are noise.
        cluster_selection_epsilon: Clusters that split at lengths below this distance are merged. 0 means none.
        max_cluster_size: The largest number of points of a cluster that ``"eom"`` selects. None means no limit.
        cluster_selection_method: ``"eom"`` selects the most stable clusters, ``"leaf"`` clusters that do not split.
        allow_single_cluster: Whether all points may form one cluster, if they are at least ``min_cluster_size``.
        points: ``(n, d)``, the points. If they are given, all coincident points have the same label. Without them,
            coincident points may have different labels if they are fewer than ``core_k``.
        boxsize: With ``points``, the periodic length, or one per dimension; 0 or None means open.

    Returns:
        The clusters. If several lengths of the tree are equal, they may depend on the order of the points.

    Raises:
        TypeError, ValueError: If an argument is invalid.

    References:
        R. J. G. B. Campello, D. Moulavi, J. Sander (2013), PAKDD 2013; R. J. G. B. Campello, D. Moulavi, A. Zimek,
        J. Sander (2015), ACM TKDD 10; C. Malzer, M. Baum (2020), MFI 2020, for ``cluster_selection_epsilon``.
    """
    if not isinstance(tree, Dendrogram):
        raise TypeError(f"tree must be a jztree.hierarchy.Dendrogram, not {type(tree).__name__}.")
    check_options(
        min_cluster_size=min_cluster_size,
        cluster_selection_epsilon=cluster_selection_epsilon,
        max_cluster_size=max_cluster_size,
        cluster_selection_method=cluster_selection_method,
        allow_single_cluster=allow_single_cluster,
    )
    condensed = condense(tree, int(min_cluster_size))
    places = None if points is None else _checked_points(points, len(condensed.level))
    box = checked_box(boxsize, None if places is None else places.shape[1])
    if places is not None:
        condensed = join_equal_points(condensed, places, box)
    distance = float(cluster_selection_epsilon)
    single = bool(allow_single_cluster) and len(condensed.level) >= min_cluster_size
    if cluster_selection_method == "eom":
        selected = most_stable(condensed, single, np.inf if max_cluster_size is None else max_cluster_size)
    else:
        selected = leaves_of(condensed)
        selected[0] &= single
    if distance > 0:
        selected = merge_close(condensed, selected, distance, single)
    labels, strength = memberships(condensed, selected, distance)
    first = np.unique(labels, return_index=True)[1][int(labels.min(initial=0) < 0) :]
    of_labels = nearest_selected(condensed, selected)[condensed.cluster[first]]
    return Clusters(labels.astype(np.int64), strength, outlier_scores(condensed), condensed, of_labels)


def _checked_points(points: ArrayLike, n: int) -> np.ndarray:
    check_no_unit(points, "points")
    known = np.asarray(points)
    if known.ndim != 2 or len(known) != n:
        raise ValueError(f"points have the shape {known.shape}; it must be ({n}, d), one row per point of the tree.")
    if known.dtype.kind not in "fiu":
        raise TypeError(f"points have the dtype {known.dtype}; they must be real numbers.")
    is_finite = np.isfinite(known).all(axis=1)
    if not is_finite.all():
        raise ValueError(
            f"points must be finite, but row {np.argmin(is_finite)} is {known[np.argmin(is_finite)]}; pass the points "
            "from which you found the tree."
        )
    return known.astype(np.float64)


def check_options(
    *,
    min_cluster_size: Any,
    cluster_selection_epsilon: Any,
    max_cluster_size: Any,
    cluster_selection_method: Any,
    allow_single_cluster: Any,
) -> None:
    """Raise ValueError if an argument of `hdbscan` is invalid."""
    check_integer("min_cluster_size", min_cluster_size, 2)
    if max_cluster_size is not None:
        check_integer("max_cluster_size", max_cluster_size, 1)
    if not isinstance(cluster_selection_epsilon, numbers.Real) or not 0 <= float(cluster_selection_epsilon) < np.inf:
        raise ValueError(
            f"cluster_selection_epsilon is {cluster_selection_epsilon!r}; it must be a distance, at least 0 and finite."
        )
    if cluster_selection_method not in _METHODS:
        raise ValueError(f"cluster_selection_method is {cluster_selection_method!r}; it must be 'eom' or 'leaf'.")
    if not isinstance(allow_single_cluster, (bool, np.bool_)):
        raise ValueError(f"allow_single_cluster is {allow_single_cluster!r}; it must be True or False.")


def check_integer(name: str, number: Any, smallest: int) -> None:
    """Raise ValueError unless ``number`` is an integer of at least ``least``."""
    if not isinstance(number, numbers.Integral) or isinstance(number, bool) or number < smallest:
        raise ValueError(f"{name} is {number!r}; it must be an integer of at least {smallest}.")
