"""HDBSCAN against scikit-learn's functions of the condensed tree, and against the definitions one point at a time.

Mutual reachability distances have ties. So several minimum spanning trees exist, and clusters may depend on the choice.
scikit-learn therefore gets the tree that the library found.
"""

from typing import Any

import numpy as np
import pytest

pytest.importorskip("sklearn", "1.6")

from sklearn import cluster, datasets
from sklearn.cluster._hdbscan import _tree

import jztree as jz
from jztree_utils.estimators import HDBSCAN


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
    tree = jz.mst.euclidean.jit(points, core_k=min_samples)
    return jz.hierarchy.dendrogram.jit(tree).linkage()


def of_sklearn(points: np.ndarray, options: dict[str, Any]) -> tuple[np.ndarray, np.ndarray]:
    """Return labels and strengths from scikit-learn, for the tree of this library."""
    least = options.get("min_cluster_size", 5)
    found = linkage(points, options.get("min_samples") or least)
    rows = np.zeros(len(found), _tree.HIERARCHY_dtype)
    for name, column in zip(rows.dtype.names, found.T, strict=True):
        rows[name] = column
    return _tree.tree_to_labels(
        rows,
        least,
        options.get("cluster_selection_method", "eom"),
        options.get("allow_single_cluster", False),
        0.0,
        options.get("max_cluster_size"),
    )


def assert_same_clusters(found: np.ndarray, expected: np.ndarray) -> None:
    """Assert that labels are equal up to the numbers of clusters, and that these are in the order of first samples."""
    np.testing.assert_array_equal(found < 0, expected < 0)
    pairs = np.unique(np.stack([found, expected]), axis=1)
    assert pairs.shape[1] == len(np.unique(found)) == len(np.unique(expected))
    _, first = np.unique(found[found >= 0], return_index=True)
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
    found = HDBSCAN(**options).fit(points)
    labels, strength = of_sklearn(points, options)
    assert_same_clusters(found.labels_, labels)
    np.testing.assert_allclose(found.probabilities_, strength, rtol=0, atol=1e-12)


def slow_tree(found: np.ndarray, least: int) -> list[tuple[int, int, float, int]]:
    """Return rows of parent, child, level and size, by splitting one cluster after the other."""
    n = len(found) + 1
    size = [1] * n + found[:, 3].astype(int).tolist()
    rows, following, waiting = [], n + 1, [(2 * n - 2, n)]

    def points_of(node: int) -> list[int]:
        nodes, points = [node], []
        while nodes:
            one = nodes.pop()
            if one < n:
                points.append(one)
            else:
                nodes += found[one - n, :2].astype(int).tolist()
        return points

    while waiting:
        node, label = waiting.pop()
        *parts, length = found[node - n, :3]
        parts = [int(part) for part in parts]
        level = 1 / length if length > 0 else np.inf
        large = [part for part in parts if size[part] >= least and length > 0]
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
        found = HDBSCAN(allow_single_cluster=single).fit(np.ones((30, 2)))
        assert set(found.labels_) == ({0} if single else {-1})
        assert np.isfinite(found.probabilities_).all()
        np.testing.assert_array_equal(found.outlier_scores_, 0)


def test_equal_samples_have_equal_labels(x64: None) -> None:
    points = np.repeat(blobs("noise")[::10], 7, axis=0)
    found = HDBSCAN(min_cluster_size=20).fit(points)
    assert (found.labels_.reshape(-1, 7) == found.labels_.reshape(-1, 7)[:, :1]).all()
    assert not np.isnan(found.probabilities_).any()
    assert not np.isnan(found.outlier_scores_).any()


@pytest.mark.parametrize("number", [1, 2, 4])
def test_few_samples_are_noise(number: int) -> None:
    found = HDBSCAN(min_samples=1).fit(np.arange(number, dtype=float)[:, None])
    np.testing.assert_array_equal(found.labels_, -1)
    np.testing.assert_array_equal(found.probabilities_, 0)
    assert found.outlier_scores_.shape == (number,)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"min_cluster_size": 1}, "min_cluster_size is 1; it must be an integer of at least 2"),
        ({"min_cluster_size": 5.0}, "min_cluster_size is 5.0; it must be an integer"),
        ({"min_samples": 0}, "min_samples is 0; it must be an integer of at least 1"),
        ({"min_samples": 31}, "min_samples is 31 .* only 30 samples; choose a smaller min_samples"),
        ({"min_cluster_size": 31}, "min_samples is 31 .*None means min_cluster_size"),
        ({"max_cluster_size": 0}, "max_cluster_size is 0; it must be an integer of at least 1"),
        ({"cluster_selection_epsilon": -1}, "cluster_selection_epsilon is -1; it must be a distance"),
        ({"cluster_selection_epsilon": np.inf}, "cluster_selection_epsilon is inf; .*finite"),
        ({"cluster_selection_method": "oem"}, "cluster_selection_method is 'oem'; it must be 'eom' or 'leaf'"),
        ({"allow_single_cluster": 1}, "allow_single_cluster is 1; it must be True or False"),
        ({"metric": "manhattan"}, "metric is 'manhattan'; HDBSCAN has Euclidean distances only"),
        ({"algorithm": "kdtree"}, "algorithm is 'kdtree'; it must be one of"),
        ({"boxsize": [1.0, 1.0, 1.0]}, "boxsize has shape"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        HDBSCAN(**options).fit(np.random.default_rng(0).random((30, 2)))


def test_parameters_are_those_of_scikit_learn() -> None:
    theirs = set(cluster.HDBSCAN().get_params()) - {"alpha", "copy", "metric_params", "store_centers"}
    assert set(HDBSCAN().get_params()) == theirs | {"boxsize"}
    defaults = HDBSCAN().get_params()
    assert {name: defaults[name] for name in theirs} == {name: cluster.HDBSCAN().get_params()[name] for name in theirs}
