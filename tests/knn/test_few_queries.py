"""Few queries among many particles: on a GPU, a warp then answers fewer than 32 queries."""

import numpy as np
import oracles
import pytest
from scipy.spatial import cKDTree

from jztree.fof import dbscan
from jztree.knn import knn
from jztree.radius import count_within, nearest_within, neighbours_within, pairs_within

N = 16_500
# With these numbers of queries, a warp of the emulator answers 1, 1, 2, 8, 16 and 32 queries.
QUERIES = (1, 100, 200, 700, 2000, 2100)

pytestmark = [pytest.mark.emulated, pytest.mark.core]


@pytest.mark.parametrize("q", QUERIES)
def test_few_scattered_queries_equal_scipy(q: int) -> None:
    pos, query = oracles.uniform(N, 3) % 1, oracles.uniform(q, 3, seed=5) % 1
    tree, wide, radius = cKDTree(pos.astype(np.float64), boxsize=1), query.astype(np.float64), 0.06
    distance, index = tree.query(wide, 5)
    result = knn.jit(pos, 5, boxsize=1.0, part_query=query)
    np.testing.assert_array_equal(result[1], index)
    np.testing.assert_allclose(result[0], distance, rtol=1e-6)
    counts = tree.query_ball_point(wide, radius, return_length=True)
    np.testing.assert_array_equal(count_within.jit(pos, radius, boxsize=1.0, queries=query), counts)
    nearest = nearest_within.jit(pos, radius, 3, boxsize=1.0, queries=query)
    np.testing.assert_array_equal(nearest.count, counts)
    lists = neighbours_within(pos, radius, boxsize=1.0, queries=query)
    expected = [sorted(rows) for rows in tree.query_ball_point(wide, radius)]
    assert [sorted(rows.tolist()) for rows in np.split(np.asarray(lists.index), lists.splits[1:])[:q]] == expected
    pairs = pairs_within(pos, radius, boxsize=1.0, queries=query)
    np.testing.assert_array_equal(np.bincount(pairs.i[pairs.i >= 0], minlength=q), counts)


def test_few_points_outside_of_cores_join_the_first_cluster() -> None:
    """Points between two clusters have too few others near them, and belong to the cluster with the lower number."""
    random = np.random.default_rng(3)
    clusters = random.uniform(0, 0.2, (4000, 3)) + np.repeat([[0.0, 0, 0], [0.7, 0, 0]], 2000, axis=0)
    alone = np.array([[0.25, 0.1, 0.1], [0.45, 0.1, 0.1], [0.95, 0.1, 0.1]])
    pos = np.concatenate([clusters, alone]).astype(np.float32)
    tree, length, minimum = cKDTree(pos.astype(np.float64)), 0.06, 30
    core = tree.query_ball_point(pos.astype(np.float64), length, return_length=True) >= minimum
    cluster, is_core = dbscan.jit(pos, length, min_samples=minimum)
    np.testing.assert_array_equal(is_core, core)
    assert 3 <= np.count_nonzero(~core) < len(pos) // 8
    for i in np.flatnonzero(~core):
        nearest = [row for row in tree.query_ball_point(pos[i].astype(np.float64), length) if core[row]]
        assert cluster[i] == min((cluster[row] for row in nearest), default=-1)
