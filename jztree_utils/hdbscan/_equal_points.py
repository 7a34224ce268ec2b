"""Equal labels for points at the same place.

The copies of a point have the same distances to all others. If they are fewer than the points that determine the core
distance, each copy joins its neighbours and the other copies at the core distance. The order of such edges is that of
rows, so copies may be on both sides of a split at this distance.
"""

from dataclasses import replace

import numpy as np

from ._condensed_tree import CondensedTree


def join_equal_points(tree: CondensedTree, points: np.ndarray, box: np.ndarray | None) -> CondensedTree:
    """Return the tree with the copies of each point in the cluster of the first copy.

    Stabilities do not change: a copy that moves was in its cluster for no length.

    Args:
        tree: The condensed tree of ``n`` points.
        points: ``(n, d)`` float64.
        box: ``(d,)``, the periodic lengths, 0 for an open dimension; None means open.
    """
    # Copies leave at the same level. If copies have different clusters, at least one cluster appears at this level.
    rows = np.flatnonzero(np.isin(tree.level, tree.birth[1:]))
    if len(rows) == 0:
        return tree
    places = _in_box(points[rows], np.zeros(points.shape[1]) if box is None else box)
    order = np.lexsort(places.T[::-1])
    is_copy = np.append(False, (places[order[1:]] == places[order[:-1]]).all(axis=1))
    first = order[np.maximum.accumulate(np.where(is_copy, 0, np.arange(len(order))))]
    cluster = tree.cluster.copy()
    cluster[rows[order]] = tree.cluster[rows[first]]
    return replace(tree, cluster=cluster)


def _in_box(points: np.ndarray, box: np.ndarray) -> np.ndarray:
    """Return the images of points from 0 to the box size, except images that would be rounded."""
    period = np.where(box > 0, box, 1.0)
    inside = np.where(box > 0, np.fmod(points, period), points)
    moved = inside + period
    return np.where((box > 0) & (inside < 0) & (moved < period) & (moved - period == inside), moved, inside)
