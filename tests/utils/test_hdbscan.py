"""HDBSCAN against scikit-learn's functions of the condensed tree, and against the definitions one point at a time.

Mutual reachability distances have ties. So several minimum spanning trees exist, and clusters may depend on the choice.
scikit-learn therefore gets the tree that the library found.
"""

import functools
from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.6")

from scipy.sparse import csgraph
from sklearn import cluster, datasets
from sklearn.cluster._hdbscan import _tree
from sklearn.exceptions import NotFittedError

import jztree as jz
from jztree_utils.estimators import DBSCAN, HDBSCAN, KernelDensity, NearestNeighbors
from jztree_utils.hdbscan import centroids, hdbscan, medoids, radii
from jztree_utils.kdtree import KDTree


def blobs(kind: str) -> np.ndarray:
    rng = np.random.default_rng(3)
    points, _ = datasets.make_blobs(250, centers=6, cluster_std=[0.3, 0.5, 1, 0.2, 0.8, 0.4], random_state=1)
    extra = {
        "noise": rng.uniform(-10, 10, (100, 2)),
        "equal": np.concatenate([points[:40], np.repeat(points[:3], 15, axis=0)]),
        "lattice": np.stack(np.meshgrid(*[np.arange(12.0)] * 2), -1).reshape(-1, 2),
    }[kind]
    return np.concatenate([points, extra])


def linkage(points: np.ndarray, min_samples: int) -> np.ndarray:
    tree = jz.spanning_tree.jit(points, core_k=min_samples)
    return jz.dendrogram.jit(tree).linkage()


def of_sklearn(points: np.ndarray, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and strengths from scikit-learn, for the tree of this library."""
    minimum = options.get("min_cluster_size", 5)
    result = linkage(points, options.get("min_samples") or minimum)
    rows = np.zeros(len(result), _tree.HIERARCHY_dtype)
    for name, column in zip(rows.dtype.names, result.T, strict=True):
        rows[name] = column
    return _tree.tree_to_labels(
        rows,
        minimum,
        options.get("cluster_selection_method", "eom"),
        options.get("allow_single_cluster", False),
        0.0,
        options.get("max_cluster_size"),
    )


def assert_same_clusters(result: np.ndarray, expected: np.ndarray) -> None:
    """Assert that labels are equal up to the numbers of clusters, and that these are in the order of first samples."""
    np.testing.assert_array_equal(result < 0, expected < 0)
    pairs = np.unique(np.stack([result, expected]), axis=1)
    assert pairs.shape[1] == len(np.unique(result)) == len(np.unique(expected))
    _, first = np.unique(result[result >= 0], return_index=True)
    assert (np.diff(first) > 0).all()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"min_cluster_size": 2, "min_samples": 1},
        {"min_cluster_size": 12, "min_samples": 3},
        {"cluster_selection_method": "leaf"},
        {"max_cluster_size": 40},
        {"min_cluster_size": 60, "allow_single_cluster": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("kind", ["lattice", "noise", "equal"])
def test_equals_scikit_learn(kind: str, options: dict[str, Any], x64: None) -> None:
    points = blobs(kind)
    result = HDBSCAN(**options).fit(points)
    labels, strength = of_sklearn(points, options)
    assert_same_clusters(result.labels_, labels)
    np.testing.assert_allclose(result.probabilities_, strength, rtol=0, atol=1e-12)


def slow_tree(result: np.ndarray, minimum: int) -> list[tuple[int, int, float, int]]:
    """Return rows of parent, child, level and size, by splitting one cluster after the other."""
    n = len(result) + 1
    size = [1] * n + result[:, 3].astype(int).tolist()
    rows, following, waiting = [], n + 1, [(2 * n - 2, n)]

    def points_of(node: int) -> list[int]:
        nodes, points = [node], []
        while nodes:
            single = nodes.pop()
            if single < n:
                points.append(single)
            else:
                nodes += result[single - n, :2].astype(int).tolist()
        return points

    while waiting:
        node, label = waiting.pop()
        *parts, length = result[node - n, :3]
        parts = [int(part) for part in parts]
        level = 1 / length if length > 0 else np.inf
        large = [part for part in parts if size[part] >= minimum and length > 0]
        for part in parts:
            if part in large and len(large) == 2:
                rows.append((label, following, level, size[part]))
                waiting.append((part, following))
                following += 1
            elif part in large:
                waiting.append((part, label))
            else:
                rows += [(label, point, level, 1) for point in points_of(part)]
    return rows


@pytest.mark.parametrize("kind", ["noise", "equal"])
def test_outlier_scores_equal_their_definition(kind: str, x64: None) -> None:
    points = blobs(kind)
    rows = slow_tree(linkage(points, 5), 5)
    n = len(points)
    last: dict[int, float] = {}
    for label, _, level, _ in rows:
        last[label] = max(last.get(label, 0.0), level)
    for label, child, _, _ in sorted(rows, key=lambda row: -row[1]):
        if child >= n:
            last[label] = max(last[label], last[child])
    expected = np.zeros(n)
    for label, child, level, _ in rows:
        if child < n and np.isfinite(level):
            expected[child] = 1 if np.isinf(last[label]) else (last[label] - level) / last[label]
    np.testing.assert_allclose(HDBSCAN().fit(points).outlier_scores_, expected, rtol=0, atol=1e-12)
    assert expected.max() > 0.5


def test_distance_merges_clusters_below_it() -> None:
    """Two pairs of clumps: the distance within a pair is 1, and between pairs 10."""
    rng = np.random.default_rng(0)
    points = np.concatenate([centre + 0.05 * rng.standard_normal((30, 1)) for centre in (0, 1, 10, 11)])
    for method in ("eom", "leaf"):
        clusters = HDBSCAN(min_cluster_size=20, cluster_selection_method=method)
        assert [len(set(clusters.fit_predict(points)[part : part + 30])) for part in (0, 30, 60, 90)] == [1] * 4
        assert len(set(clusters.labels_)) == 4
        merged = clusters.set_params(cluster_selection_epsilon=3.0).fit_predict(points)
        assert len(set(merged)) == 2
        assert len(set(merged[:60])) == 1
        all_in_one = clusters.set_params(cluster_selection_epsilon=50.0, allow_single_cluster=True).fit_predict(points)
        assert set(all_in_one) == {0}


def test_clusters_cross_the_faces_of_a_periodic_box() -> None:
    rng = np.random.default_rng(0)
    points = rng.normal(0, 0.02, (200, 3))
    others = rng.normal(0.5, 0.02, (200, 3))
    labels = HDBSCAN(boxsize=1.0).fit_predict(np.concatenate([points % 1, others]))
    assert len(set(labels[:200]) - {-1}) == 1
    assert len(set(labels) - {-1}) == 2


def test_all_samples_equal() -> None:
    for single in (False, True):
        result = HDBSCAN(allow_single_cluster=single).fit(np.ones((30, 2)))
        assert set(result.labels_) == ({0} if single else {-1})
        assert np.isfinite(result.probabilities_).all()
        np.testing.assert_array_equal(result.outlier_scores_, 0)


def test_equal_samples_have_equal_labels(x64: None) -> None:
    points = np.repeat(blobs("noise")[::10], 7, axis=0)
    result = HDBSCAN(min_cluster_size=20).fit(points)
    assert (result.labels_.reshape(-1, 7) == result.labels_.reshape(-1, 7)[:, :1]).all()
    assert not np.isnan(result.probabilities_).any()
    assert not np.isnan(result.outlier_scores_).any()


@pytest.mark.parametrize("method", ["eom", "leaf"])
@pytest.mark.parametrize("boxsize", [None, 8.0])
def test_fewer_equal_samples_than_min_samples_have_equal_labels(method: str, boxsize: float | None, x64: None) -> None:
    """In the box, they are images of each other."""
    rng = np.random.default_rng(0)
    for _ in range(5):
        places = rng.integers(0, 16, (120, 2)) / 2
        images = places if boxsize is None else places + boxsize * rng.integers(-2, 3, places.shape)
        result = HDBSCAN(boxsize=boxsize, cluster_selection_method=method).fit(images)
        _, place = np.unique(places, axis=0, return_inverse=True)
        of_place = np.full(place.max() + 1, -2)
        of_place[place] = result.labels_
        np.testing.assert_array_equal(result.labels_, of_place[place])


def test_distances_without_an_inverse_count_as_0(x64: None) -> None:
    nearest = np.random.default_rng(0).integers(0, 40, (20, 2)) * 5e-324
    near_one, far = nearest + np.array([1.0, 0.0]), np.random.default_rng(1).random((20, 2)) + np.array([5.0, 0.0])
    points = np.concatenate([nearest, near_one, far])
    result = HDBSCAN().fit(points)
    assert (result.labels_[:20] == result.labels_[0]).all()
    assert (result.labels_[20:40] == result.labels_[20]).all()
    assert np.isfinite(result.probabilities_).all()
    assert np.isfinite(result.outlier_scores_).all()


@pytest.mark.parametrize(
    ("points", "error", "message"),
    [
        (np.zeros((3, 2)), ValueError, r"points have the shape \(3, 2\); it must be \(20, d\)"),
        (np.zeros(20), ValueError, r"points have the shape \(20,\)"),
        (np.full((20, 2), "a"), TypeError, "points have the dtype <U1; they must be real numbers"),
        (np.full((20, 2), np.nan), ValueError, r"points must be finite, but row 0 is \[nan nan\]"),
    ],
)
def test_points_that_do_not_belong_to_the_tree_raise(points: Any, error: type[Exception], message: str) -> None:
    tree = jz.dendrogram(jz.spanning_tree(np.random.default_rng(0).random((20, 2)).astype(np.float32)))
    with pytest.raises(error, match=message):
        hdbscan(tree, points=points)


@pytest.mark.parametrize(
    ("boxsize", "error", "message"),
    [
        ("abc", TypeError, "boxsize is 'abc'; it must be one or several real numbers"),
        (True, TypeError, "boxsize is True; it must be one or several real numbers"),
        (-1.0, ValueError, "boxsize is -1.0; lengths must be finite and positive, or 0"),
        (np.nan, ValueError, "boxsize is nan; lengths must be finite and positive, or 0"),
        ([1.0, np.inf], ValueError, "lengths must be finite and positive, or 0"),
        ([1.0, [2.0]], ValueError, "its lists must all have the same length"),
        ([[1.0, 2.0]], ValueError, r"boxsize has shape \(1, 2\)"),
        ([1.0, 2.0, 3.0], ValueError, r"boxsize has shape \(3,\); it must be one length, or 2, one per dimension"),
    ],
)
def test_invalid_boxes_raise(boxsize: Any, error: type[Exception], message: str) -> None:
    points = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    tree = jz.dendrogram(jz.spanning_tree(points))
    calls = [
        lambda: hdbscan(tree, points=points, boxsize=boxsize),
        lambda: HDBSCAN(boxsize=boxsize).fit(points),
        lambda: DBSCAN(boxsize=boxsize).fit(points),
        lambda: NearestNeighbors(boxsize=boxsize).fit(points),
        lambda: KernelDensity(boxsize=boxsize).fit(points),
        lambda: KDTree(points, boxsize=boxsize),
    ]
    if len(np.ravel(np.asarray(boxsize, object))) != 3:
        calls.append(lambda: hdbscan(tree, boxsize=boxsize))  # without points, any number of lengths is valid
    for call in calls:
        with pytest.raises(error, match=message):
            call()


@pytest.mark.parametrize("options", [{}, {"allow_single_cluster": True}], ids=str)
@pytest.mark.parametrize("method", ["eom", "leaf"])
@pytest.mark.parametrize("number", [1, 2, 4])
def test_few_samples_are_noise(number: int, method: str, options: dict[str, Any]) -> None:
    places = np.arange(number, dtype=float)[:, None]
    equal = HDBSCAN(min_samples=1, cluster_selection_method=method, **options).fit(0 * places)
    np.testing.assert_array_equal(equal.labels_, -1)
    result = HDBSCAN(min_samples=1, cluster_selection_method=method, **options).fit(places)
    np.testing.assert_array_equal(result.labels_, -1)
    np.testing.assert_array_equal(result.probabilities_, 0)
    assert result.outlier_scores_.shape == (number,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_cluster_size": 1}, "min_cluster_size is 1; it must be an integer of at least 2"),
        ({"min_cluster_size": 5.0}, "min_cluster_size is 5.0; it must be an integer"),
        ({"min_samples": 0}, "min_samples is 0; it must be an integer of at least 1"),
        ({"min_samples": 31}, r"min_samples \(31; .* number of finite samples, 30; choose a smaller min_samples"),
        ({"min_cluster_size": 31}, r"min_samples \(31; None means min_cluster_size\)"),
        ({"max_cluster_size": 0}, "max_cluster_size is 0; it must be an integer of at least 1"),
        ({"cluster_selection_epsilon": -1}, "cluster_selection_epsilon is -1; it must be a distance"),
        ({"cluster_selection_epsilon": np.inf}, "cluster_selection_epsilon is inf; .*finite"),
        ({"cluster_selection_method": "oem"}, "cluster_selection_method is 'oem'; it must be 'eom' or 'leaf'"),
        ({"allow_single_cluster": 1}, "allow_single_cluster is 1; it must be True or False"),
        ({"store_centers": "centre"}, "store_centers is 'centre'; it must be None, 'centroid', 'medoid' or 'both'"),
        ({"metric": "manhattan"}, "metric is 'manhattan'; HDBSCAN has the distances 'euclidean', 'sqeuclidean'"),
        ({"metric": "cosine", "boxsize": 1.0}, "cosine distances are between directions"),
        ({"algorithm": "kdtree"}, "algorithm is 'kdtree'; it must be one of"),
        ({"boxsize": [1.0, 1.0, 1.0]}, "boxsize has shape"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HDBSCAN(**options).fit(np.random.default_rng(0).random((30, 2)))


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"boxsize": "abc"}, TypeError, "^boxsize is 'abc'"),
        ({"boxsize": -1.0}, ValueError, "^boxsize is -1.0; lengths must be finite and positive"),
        ({"points": np.full((9, 2), np.nan)}, ValueError, r"points must be finite, of shape \(n, d\)"),
        ({"labels": np.zeros(8, int)}, ValueError, r"labels have the shape \(8,\); it must be \(9,\)"),
        ({"labels": np.zeros(9)}, TypeError, "labels have the dtype float64; they must be integers"),
        ({"weights": np.ones(8)}, ValueError, r"weights have the shape \(8,\); it must be \(9,\)"),
        ({"weights": -np.ones(9)}, ValueError, "weights must be finite and not negative"),
        ({"centres": np.zeros((1, 3))}, ValueError, r"centres have the shape \(1, 3\); it must be \(c, 2\)"),
    ],
    ids=str,
)
def test_invalid_arguments_of_centres_raise(change: dict[str, Any], error: type[Exception], message: str) -> None:
    rng = np.random.default_rng(0)
    arguments: dict[str, Any] = {"points": rng.random((9, 2)), "labels": np.zeros(9, int), "boxsize": None} | change
    weights, centres = arguments.pop("weights", np.ones(9)), arguments.pop("centres", np.zeros((1, 2)))
    if "centres" not in change:
        for find in (centroids, functools.partial(medoids, of_euclidean=np.asarray)):
            with pytest.raises(error, match=message):
                find(weights=weights, **arguments)
    if "weights" not in change:
        with pytest.raises(error, match=message):
            radii(centres=centres, **arguments)


def test_single_cluster_needs_min_cluster_size_points() -> None:
    """The points are connected at the distance of the outlier only."""
    points = np.append(np.random.default_rng(0).normal(size=(19, 2)), [[1e6, 1e6]], axis=0)
    for minimum, label in ((20, 0), (21, -1)):
        result = HDBSCAN(minimum, min_samples=2, allow_single_cluster=True).fit(points)
        np.testing.assert_array_equal(result.labels_, label)


def test_differences_from_scikit_learn_are_those_listed() -> None:
    """Compare how many samples the single cluster has."""
    points = np.random.default_rng(0).normal(size=(100, 2))
    single: dict[str, Any] = {"min_samples": 3, "allow_single_cluster": True}
    cases: list[tuple[dict[str, Any], int, int]] = [
        ({"min_cluster_size": 60}, 67, 67),
        ({"min_cluster_size": 60, "cluster_selection_method": "leaf"}, 67, 0),
        ({"min_cluster_size": 60, "max_cluster_size": 50}, 0, 67),
        ({"min_cluster_size": 120}, 0, 100),
    ]
    for options, ours, reference in cases:
        estimators = HDBSCAN(**options, **single), cluster.HDBSCAN(**options, **single, copy=True)
        assert [np.sum(result.fit(points).labels_ == 0) for result in estimators] == [ours, reference]


def test_samples_that_are_not_finite_have_their_own_labels(x64: None) -> None:
    points = blobs("noise")
    finite = HDBSCAN().fit(points)
    rows = np.array([0, 3, len(points)])
    with_others = np.insert(points, rows, [[np.inf, 0], [np.nan, np.inf], [0, -np.inf]], axis=0)
    assert HDBSCAN().fit(np.delete(with_others, 4, axis=0)).labels_[0] == -2  # no feature is missing
    result = HDBSCAN().fit(with_others)
    added = rows + np.arange(3)
    np.testing.assert_array_equal(result.labels_[added], [-2, -3, -2])
    np.testing.assert_array_equal(result.probabilities_[added], [0, np.nan, 0])
    np.testing.assert_array_equal(result.outlier_scores_[added], [1, np.nan, 1])
    for name in ("labels_", "probabilities_", "outlier_scores_"):
        np.testing.assert_array_equal(np.delete(getattr(result, name), added), getattr(finite, name))
    cut = result.dbscan_clustering(0.5)
    np.testing.assert_array_equal(cut[added], [-2, -3, -2])
    np.testing.assert_array_equal(np.delete(cut, added), finite.dbscan_clustering(0.5))


def test_only_samples_that_are_not_finite_raise() -> None:
    with pytest.raises(ValueError, match=r"number of finite samples, 0; choose a smaller min_samples"):
        HDBSCAN(min_samples=1).fit(np.full((30, 2), np.nan))


@pytest.mark.parametrize("boxsize", [None, 21.0])
@pytest.mark.parametrize(("distance", "minimum"), [(0.0, 1), (0.4, 5), (1.0, 30), (100.0, 5)])
def test_clusters_at_one_distance_equal_brute_force(
    distance: float, minimum: int, boxsize: float | None, x64: None
) -> None:
    points = blobs("equal")
    offsets = np.abs(points[:, None] - points)
    if boxsize is not None:
        points, offsets = points % boxsize, np.minimum(offsets % boxsize, -offsets % boxsize)
    lengths = np.sqrt((offsets**2).sum(-1))
    core = np.sort(lengths, axis=1)[:, 4]
    reachable = np.maximum(lengths, np.maximum(core[:, None], core))
    _, groups = csgraph.connected_components(reachable <= distance)
    large = np.bincount(groups)[groups] >= minimum
    result = HDBSCAN(boxsize=boxsize).fit(points).dbscan_clustering(distance, minimum)
    assert_same_clusters(result, np.where(large, groups, -1))


@pytest.mark.parametrize(("distance", "minimum"), [(-1.0, 5), (np.nan, 5), ("1", 5), (1.0, 0), (1.0, 2.5)])
def test_invalid_cut_raises(distance: float, minimum: int) -> None:
    result = HDBSCAN().fit(blobs("noise"))
    with pytest.raises(ValueError, match=r"cut_distance is .* at least 0|min_cluster_size is .* integer"):
        result.dbscan_clustering(distance, minimum)


def test_cut_before_fit_raises() -> None:
    with pytest.raises(NotFittedError):
        HDBSCAN().dbscan_clustering(1.0)


def test_centres_equal_scikit_learn() -> None:
    points, _ = datasets.make_blobs(600, centers=[[0, 0], [5, 5], [0, 9]], cluster_std=0.5, random_state=2)
    result = HDBSCAN(store_centers="both").fit(points)
    expected = cluster.HDBSCAN(store_centers="both")
    expected.labels_, expected.probabilities_ = result.labels_, result.probabilities_
    expected._metric_params = {}
    expected._weighted_cluster_center(points)
    assert len(result.centroids_) == 3
    np.testing.assert_allclose(result.centroids_, expected.centroids_, rtol=1e-12)
    np.testing.assert_array_equal(result.medoids_, expected.medoids_)


def test_centres_cross_the_faces_of_a_periodic_box() -> None:
    """Moving all samples moves the centres."""
    rng = np.random.default_rng(1)
    points = np.concatenate([rng.normal(centre, 0.02, (100, 3)) for centre in (0.3, 0.8)])
    clusters = HDBSCAN(store_centers="both", boxsize=[1.0, 1.0, 0.0])
    inside = clusters.fit(points)
    mean, middle = inside.centroids_, inside.medoids_
    shift = np.array([0.71, 0.2, 0.6])
    moved = points + shift
    moved[:, :2] %= 1
    result = clusters.fit(moved)
    for centres, before in ((result.centroids_, mean), (result.medoids_, middle)):
        offsets = centres - before - shift
        offsets[:, :2] -= np.round(offsets[:, :2])
        np.testing.assert_allclose(offsets, 0, atol=1e-9)
        assert ((centres[:, :2] >= 0) & (centres[:, :2] < 1)).all()


def test_noise_has_no_centres() -> None:
    result = HDBSCAN(store_centers="both", min_cluster_size=50).fit(np.random.default_rng(0).random((60, 2)))
    assert result.centroids_.shape == result.medoids_.shape == (0, 2)


def test_parameters_are_those_of_scikit_learn() -> None:
    reference = set(cluster.HDBSCAN().get_params()) - {"alpha", "copy"}
    assert set(HDBSCAN().get_params()) == reference | {"copy", "boxsize"}
    defaults = HDBSCAN().get_params()
    assert {name: defaults[name] for name in reference} == {
        name: cluster.HDBSCAN().get_params()[name] for name in reference
    }
