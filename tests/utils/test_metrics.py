"""`KDTree` and the estimators with Minkowski distances, compared with SciPy, scikit-learn and brute force."""

from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree, minkowski_distance

from jztree_utils.kdtree import KDTree, _point_search

RNG = np.random.default_rng(4)
DATA = np.r_[RNG.random((150, 3)), RNG.random((20, 3)) * 0.01, np.full((5, 3), 0.25)]
PLACES = RNG.random((40, 3)) * 1.4 - 0.2
BOXES = {"open": None, "periodic": 1.0, "mixed": [1.0, 0.0, 1.5]}
EXPONENTS = [1, np.inf, 1.5, 3, 100]


@pytest.fixture(params=[2**21, 300], ids=["one block", "blocks"], autouse=True)
def in_blocks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_point_search, "_BLOCK_PAIRS", request.param)


@pytest.mark.parametrize("kind", BOXES)
def test_searches_equal_those_of_scipy(kind: str) -> None:
    estimator, reference = KDTree(DATA, boxsize=BOXES[kind]), cKDTree(DATA, boxsize=BOXES[kind])
    places = PLACES % 1
    second, others = KDTree(places, boxsize=BOXES[kind]), cKDTree(places, boxsize=BOXES[kind])
    radii, weights = np.array([0.3, 0.0, 0.05, 9.0]), (RNG.random(175), RNG.random(40))
    for p in EXPONENTS:
        for k, bound in ((1, np.inf), (6, np.inf), ([5, 1], 0.2), (200, np.inf)):
            result, expected = (
                model.query(PLACES, k, p=p, distance_upper_bound=bound) for model in (estimator, reference)
            )
            np.testing.assert_allclose(result[0], expected[0], rtol=1e-12, atol=1e-15, err_msg=f"{p}")
            differ = result[1] != expected[1]
            assert not np.any(differ & ~np.isin(result[1], np.arange(170, 175))), "only equal points change places"
        each = RNG.uniform(0, 0.4, 40)
        for r in (each, 0.3, 0.0):
            lists = reference.query_ball_point(PLACES, r, p=p, return_sorted=True)
            assert estimator.query_ball_point(PLACES, r, p=p).tolist() == lists.tolist()
            lengths = estimator.query_ball_point(PLACES, r, p=p, return_length=True)
            assert lengths.tolist() == [len(array) for array in lists]
        assert estimator.query_pairs(0.15, p=p) == reference.query_pairs(0.15, p=p)
        assert estimator.query_ball_tree(second, 0.3, p=p) == [
            sorted(row) for row in reference.query_ball_tree(others, 0.3, p=p)
        ]
        for cumulative, r in ((True, radii), (False, np.sort(radii))):
            options = {"p": p, "cumulative": cumulative}
            counts, expected = (
                item.count_neighbors(two, r, **options) for item, two in ((estimator, second), (reference, others))
            )
            np.testing.assert_array_equal(counts, expected)
            sums = [
                item.count_neighbors(two, r, weights=weights, **options)
                for item, two in ((estimator, second), (reference, others))
            ]
            np.testing.assert_allclose(*sums, rtol=1e-12)
        tables = [
            item.sparse_distance_matrix(two, 0.4, p=p, output_type="coo_matrix").toarray()
            for item, two in ((estimator, second), (reference, others))
        ]
        np.testing.assert_allclose(*tables, rtol=1e-12)


@pytest.mark.parametrize("dims", [1, 2, 5, 8])
def test_ties_are_exact_and_in_row_order(dims: int) -> None:
    """All distances between points of an integer lattice are integers."""
    points = RNG.integers(0, 4, (120, dims)).astype(float)
    tree = KDTree(points)
    for p in (1, np.inf):
        distances = minkowski_distance(points[:, None], points[None], p)
        order = np.lexsort((np.broadcast_to(np.arange(120), (120, 120)), distances))
        result = tree.query(points, 7, p=p)
        np.testing.assert_array_equal(result[1], order[:, :7])
        np.testing.assert_array_equal(result[0], np.take_along_axis(distances, order[:, :7], axis=1))
        radii = np.arange(-1.0, 9.0)
        assert tree.count_neighbors(tree, radii, p=p).tolist() == [(distances <= r).sum() for r in radii]
        lists = tree.query_ball_point(points, 2.0, p=p)
        assert lists.tolist() == [np.flatnonzero(row <= 2).tolist() for row in distances]


def test_powers_of_small_and_large_lengths_do_not_vanish() -> None:
    points = np.array([[1e-5, 0.0], [0.0, 3e-5], [2e-5, 2e-5]]) * np.array([[1.0], [1.0], [1.0]])
    for unit in (1e-5, 1.0, 1e20):
        distance, row = KDTree(points * unit).query([0.0, 0.0], 3, p=100)
        assert row.tolist() == [0, 2, 1]
        np.testing.assert_allclose(distance, np.array([1e-5, 2e-5 * 2 ** (1 / 100), 3e-5]) * unit, rtol=1e-12)


def test_no_points_and_no_places() -> None:
    empty = KDTree(np.zeros((0, 2)))
    assert empty.query([[0.5, 0.5]], 2, p=1)[0].tolist() == [[np.inf, np.inf]]
    assert empty.query_ball_point([[0, 0]], 1, p=1).tolist() == [[]]
    assert empty.count_neighbors(empty, [1.0], p=np.inf).tolist() == [0]
    assert KDTree(DATA).query(PLACES[:0], 2, p=1)[0].shape == (0, 2)
    assert KDTree(DATA).query_ball_point(PLACES[:2], -1.0, p=1).tolist() == [[], []]


@pytest.mark.parametrize(
    ("metric", "p", "name"),
    [
        ("manhattan", 2, "manhattan"),
        ("chebyshev", 2, "chebyshev"),
        ("minkowski", 1, "manhattan"),
        ("minkowski", 3, "minkowski"),
    ],
)
def test_estimators_equal_those_of_scikit_learn(metric: str, p: float, name: str) -> None:
    neighbors = pytest.importorskip("sklearn.neighbors")
    from sklearn import cluster  # noqa: PLC0415 - optional

    from jztree_utils import estimators  # noqa: PLC0415 - needs scikit-learn

    options: dict[str, Any] = {"metric": metric, "p": p}
    estimator, reference = (
        kind(n_neighbors=6, radius=0.2, **options).fit(DATA[:170])
        for kind in (estimators.NearestNeighbors, neighbors.NearestNeighbors)
    )
    assert estimator.effective_metric_ == reference.effective_metric_ == name
    assert estimator.effective_metric_params_.get("p") == reference.effective_metric_params_.get("p")
    for places in (None, PLACES):
        result, expected = estimator.kneighbors(places), reference.kneighbors(places)
        np.testing.assert_allclose(result[0], expected[0], rtol=1e-12, atol=1e-15)
        np.testing.assert_array_equal(result[1], expected[1])
        graphs = [model.radius_neighbors_graph(places, mode="distance").toarray() for model in (estimator, reference)]
        np.testing.assert_allclose(*graphs, rtol=1e-12)
    labels = [
        kind(eps=0.15, min_samples=4, **options).fit(DATA).labels_ for kind in (estimators.DBSCAN, cluster.DBSCAN)
    ]
    np.testing.assert_array_equal(*labels)


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
@pytest.mark.parametrize("dims", [2, 3, 6])
def test_squared_and_cosine_distances_equal_scikit_learn(dims: int, metric: str) -> None:
    """Points of an integer lattice, some in the same direction, and random ones."""
    neighbors = pytest.importorskip("sklearn.neighbors")
    from sklearn import cluster  # noqa: PLC0415 - optional
    from sklearn.metrics import pairwise_distances  # noqa: PLC0415 - optional

    from jztree_utils import estimators  # noqa: PLC0415 - needs scikit-learn

    points = np.r_[RNG.integers(1, 4, (60, dims)), RNG.normal(size=(60, dims))]
    places, radius = RNG.normal(size=(30, dims)), {"sqeuclidean": 2.0, "cosine": 0.1003}[metric]
    ours, reference = (
        kind(n_neighbors=6, radius=radius, metric=metric, **options).fit(points)
        for kind, options in ((estimators.NearestNeighbors, {}), (neighbors.NearestNeighbors, {"algorithm": "brute"}))
    )
    assert (ours.effective_metric_, ours.effective_metric_params_) == (metric, {})
    for queries in (None, places):
        neighbours, expected = ours.kneighbors(queries), reference.kneighbors(queries)
        np.testing.assert_allclose(neighbours[0], expected[0], rtol=1e-9, atol=1e-14)
        distances = pairwise_distances(points if queries is None else queries, points, metric)
        np.testing.assert_allclose(
            np.take_along_axis(distances, neighbours[1], axis=1), neighbours[0], rtol=1e-9, atol=1e-14
        )
        graphs = [
            estimator.radius_neighbors_graph(queries, mode="distance").toarray() for estimator in (ours, reference)
        ]
        np.testing.assert_allclose(*graphs, rtol=1e-9, atol=1e-14)
    for weight in (None, np.ones(120)):
        labels = [
            kind(eps=radius, min_samples=4, metric=metric).fit(points, sample_weight=weight).labels_
            for kind in (estimators.DBSCAN, cluster.DBSCAN)
        ]
        np.testing.assert_array_equal(*labels)


@pytest.mark.parametrize("metric", ["sqeuclidean", "cosine"])
def test_hdbscan_of_squared_and_cosine_distances(metric: str) -> None:
    cluster = pytest.importorskip("sklearn.cluster")
    from jztree_utils.estimators import HDBSCAN  # noqa: PLC0415 - needs scikit-learn

    rng = np.random.default_rng(7)
    points = np.concatenate([centre + rng.normal(size=(60, 3)) * 0.2 for centre in 3 * np.eye(3)])
    points = np.r_[points, rng.normal(size=(30, 3))]
    options: dict[str, Any] = {
        "metric": metric,
        "min_cluster_size": 8,
        "min_samples": 1,
        "store_centers": "both",
        "copy": True,
    }
    ours, reference = (kind(**options).fit(points) for kind in (HDBSCAN, cluster.HDBSCAN))
    order = np.unique(reference.labels_[reference.labels_ >= 0], return_index=True)[1]
    number = np.append(np.argsort(np.argsort(order)), -1)
    np.testing.assert_array_equal(ours.labels_, number[reference.labels_])
    np.testing.assert_allclose(ours.probabilities_, reference.probabilities_, atol=1e-9)
    for name in ("centroids_", "medoids_"):
        np.testing.assert_allclose(getattr(ours, name)[number[:-1]], getattr(reference, name), rtol=1e-9)
    distance = 0.3 if metric == "sqeuclidean" else 0.02
    labels, expected = (estimator.dbscan_clustering(distance) for estimator in (ours, reference))
    np.testing.assert_array_equal(labels == -1, expected == -1)


def test_exponent_in_metric_params_replaces_p() -> None:
    pytest.importorskip("sklearn")
    from jztree_utils.estimators import NearestNeighbors  # noqa: PLC0415 - needs scikit-learn

    with pytest.warns(SyntaxWarning, match="Parameter p is found in metric_params"):
        estimator = NearestNeighbors(metric_params={"p": 1, "w": None}).fit(DATA)
    assert estimator.effective_metric_ == "manhattan"


@pytest.mark.parametrize("p", [0.5, -1, np.nan, "a", None])
def test_invalid_exponent_raises(p: Any) -> None:
    with pytest.raises(ValueError, match="only p-norms with 1 <= p <= infinity are permitted"):
        KDTree(DATA).query(PLACES, p=p)
