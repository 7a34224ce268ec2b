"""The condensed tree of HDBSCAN*, and clusters, memberships and outliers from it.

R. J. G. B. Campello, D. Moulavi, J. Sander (2013), "Density-based clustering based on hierarchical density estimates",
PAKDD 2013; R. J. G. B. Campello, D. Moulavi, A. Zimek, J. Sander (2015), "Hierarchical density estimates for data
clustering, visualization, and outlier detection", ACM TKDD 10. C. Malzer, M. Baum (2020), "A hybrid approach to
hierarchical density-based cluster selection", MFI 2020, for selection with a distance.

A *level* is an inverse length (lambda in the papers). As the level rises, clusters of single linkage lose points and
split. A split counts if both parts have at least ``min_cluster_size`` points. Otherwise, the points of the smaller part
leave the cluster.
"""

from dataclasses import dataclass

import numpy as np

from jztree.hierarchy import Dendrogram


@dataclass(frozen=True, slots=True)
class CondensedTree:
    """Clusters at all levels, each after its parent. Cluster 0 has all points.

    Attributes:
        parent: ``(c,)``, the parent of each cluster; -1 for the first.
        birth: ``(c,)``, the level of the split that makes each cluster; 0 for the first.
        size: ``(c,)``, the number of points at this level.
        cluster: ``(n,)``, the last cluster of each point.
        level: ``(n,)``, the highest level of the point in this cluster; infinite for a point that coincides with
            another, also if their distance is above 0 and its inverse is not in the range of float64.
        stability: ``(c,)``, the sum of ``level - birth`` over the points, where ``level`` is the highest level of the
            point in the cluster.
    """

    parent: np.ndarray
    birth: np.ndarray
    size: np.ndarray
    cluster: np.ndarray
    level: np.ndarray
    stability: np.ndarray


def condense(tree: Dendrogram, min_cluster_size: int) -> CondensedTree:
    """Return the condensed tree of a dendrogram.

    Args:
        tree: The clusters of single linkage of at least one point, with or without padding.
        min_cluster_size: The least number of points of a cluster, at least 2.
    """
    length, count, parent = _without_padding(tree)
    n, root = len(length) + 1, len(parent) - 1
    size = np.concatenate([np.ones(n, np.int64), count])
    above = np.where(parent >= n, parent - n, 0)  # the edge at which a node joins another
    joins_at = length[above] if n > 1 else np.zeros(1)
    with np.errstate(divide="ignore", over="ignore"):
        inverse = 1 / joins_at
    # Coincident points leave a cluster together. So do points at a distance without an inverse.
    leaves = (size < min_cluster_size) | np.isinf(inverse)
    leaves[root] = False
    parts = np.bincount(above[:root], weights=~leaves[:root], minlength=n - 1)
    is_head = ~leaves & (parts[above] == 2 if n > 1 else True)
    is_head[root] = True

    heads = np.flatnonzero(is_head)[::-1]
    number = np.zeros(len(parent), np.int64)
    number[heads] = np.arange(len(heads))
    cluster_of = number[_last_of_chain(np.where(is_head, np.arange(len(parent)), parent))]
    # The largest node that leaves a cluster with a point.
    leaving = _last_of_chain(np.where(leaves & leaves[parent], parent, np.arange(len(parent))))[:n]
    left_from = np.where(leaves[leaving], parent[leaving], leaving)
    level = np.where(leaves[leaving], inverse[leaving], 0.0)
    birth = np.where(heads == root, 0.0, inverse[heads])
    of_heads = np.where(heads == root, -1, cluster_of[parent[heads]])
    return _with_stability(of_heads, birth, size[heads], cluster_of[left_from], level)


def _without_padding(tree: Dendrogram) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the length and the size of each cluster that an edge forms, and the parent of each point and cluster."""
    length = tree.exact_lengths()
    edges = len(length)
    n, removed = edges + 1, tree.rows - edges - 1
    parent = np.asarray(tree.parent).astype(np.int64)
    parent = np.concatenate([parent[:n], parent[tree.rows : tree.rows + edges]])
    parent = np.where(parent >= 0, parent - removed, -1)
    return length, np.asarray(tree.count)[:edges].astype(np.int64), parent


def _last_of_chain(following: np.ndarray) -> np.ndarray:
    """Return the last element of the chain from each element; the last one follows itself."""
    while True:
        farther = following[following]
        if np.array_equal(farther, following):
            return following
        following = farther


def _with_stability(
    parent: np.ndarray, birth: np.ndarray, size: np.ndarray, cluster: np.ndarray, level: np.ndarray
) -> CondensedTree:
    number = len(parent)
    stability = np.bincount(cluster, weights=level - birth[cluster], minlength=number)
    stability += np.bincount(parent[1:], weights=(birth[1:] - birth[parent[1:]]) * size[1:], minlength=number)
    return CondensedTree(parent, birth, size, cluster, level, stability)


def most_stable(tree: CondensedTree, allow_single_cluster: bool, max_cluster_size: float) -> np.ndarray:
    """Select disjoint clusters with the largest sum of stabilities (excess of mass)."""
    selected = np.ones(len(tree.parent), bool)
    below = np.zeros(len(tree.parent))
    for cluster in range(len(tree.parent) - 1, -1, -1):
        selected[cluster] = below[cluster] <= tree.stability[cluster] and tree.size[cluster] <= max_cluster_size
        if cluster > 0:
            below[tree.parent[cluster]] += tree.stability[cluster] if selected[cluster] else below[cluster]
    selected[0] &= allow_single_cluster
    return selected & ~_below(tree, selected)


def leaves_of(tree: CondensedTree) -> np.ndarray:
    """Select the clusters that do not split, which includes the first cluster if it is the only one."""
    selected = np.ones(len(tree.parent), bool)
    selected[tree.parent[1:]] = False
    return selected


def merge_close(tree: CondensedTree, selected: np.ndarray, distance: float, allow_single_cluster: bool) -> np.ndarray:
    """Replace selected clusters that split at lengths below ``distance`` by their first ancestor that does not."""
    if selected[0] and selected.sum() == 1:
        return selected & allow_single_cluster
    with np.errstate(divide="ignore"):
        split_at = 1 / tree.birth
    merged = np.zeros(len(selected), bool)
    for cluster in np.flatnonzero(selected).tolist():
        node: int = cluster
        if split_at[cluster] < distance:
            while node > 0:
                up = int(tree.parent[node])
                if up == 0:
                    node = 0 if allow_single_cluster else node
                    break
                node = up
                if split_at[up] > distance:
                    break
        merged[node] = True
    return merged & ~_below(tree, merged)


def _below(tree: CondensedTree, selected: np.ndarray) -> np.ndarray:
    """Return whether an ancestor of each cluster is selected."""
    result: np.ndarray = nearest_selected(tree, selected)[tree.parent] >= 0
    result[0] = False
    return result


def nearest_selected(tree: CondensedTree, selected: np.ndarray) -> np.ndarray:
    """Return the nearest selected cluster among each cluster and its ancestors, or -1."""
    here = np.arange(len(selected))
    chain = _last_of_chain(np.where(selected | (here == 0), here, tree.parent))
    return np.where(selected[chain], chain, -1)


def memberships(tree: CondensedTree, selected: np.ndarray, distance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the label of each point, -1 for noise, and the strength of its membership, from 0 to 1.

    Labels are numbers from 0, in the order of the first points of the clusters. If the first cluster is the only
    selected one, points that leave it early are noise: below the inverse of ``distance``, or without a distance, before
    its last point.

    Args:
        tree: The condensed tree.
        selected: ``(c,)`` bool, disjoint clusters.
        distance: See `merge_close`; 0 means none.
    """
    chosen = nearest_selected(tree, selected)[tree.cluster]
    last = _last_levels(tree)
    if selected[0]:
        smallest = 1 / distance if distance > 0 else last[0]
        chosen = np.where((chosen == 0) & (tree.level < smallest), -1, chosen)
    known, first, place = np.unique(chosen, return_index=True, return_inverse=True)
    first = np.where(known < 0, -1, first)
    labels = (np.argsort(np.argsort(first)) - (known[:1] < 0).sum())[place]
    with np.errstate(invalid="ignore", divide="ignore"):
        strength = np.minimum(tree.level, last[chosen]) / last[chosen]
    strength = np.where(np.isfinite(tree.level) & (last[chosen] > 0), strength, 1.0)
    return labels, np.where(chosen < 0, 0.0, strength)


def _last_levels(tree: CondensedTree) -> np.ndarray:
    """Return the level at which the last points leave each cluster, or at which it splits."""
    last = np.zeros(len(tree.parent))
    np.maximum.at(last, tree.cluster, tree.level)
    np.maximum.at(last, tree.parent[1:], tree.birth[1:])
    return last


def outlier_scores(tree: CondensedTree) -> np.ndarray:
    """Return a score from 0 to 1 of each point, which is large if it leaves a cluster much earlier than others (GLOSH,
    Campello et al. 2015).
    """
    last = _last_levels(tree)
    for cluster in range(len(last) - 1, 0, -1):
        last[tree.parent[cluster]] = max(last[tree.parent[cluster]], last[cluster])
    last = last[tree.cluster]
    with np.errstate(invalid="ignore", divide="ignore"):
        score = np.where(np.isinf(last), 1.0, (last - tree.level) / last)
    return np.where(np.isfinite(tree.level) & (last > 0), score, 0.0)
