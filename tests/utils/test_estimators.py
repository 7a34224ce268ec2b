"""`jztree_utils.estimators` compared with scikit-learn's classes, and run under its estimator checks and its tests."""

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree

pytest.importorskip("sklearn", minversion="1.6")

from sklearn import cluster
from sklearn.manifold import TSNE, Isomap
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, LocalOutlierFactor
from sklearn.neighbors import KNeighborsTransformer as TheirKNeighborsTransformer
from sklearn.neighbors import NearestNeighbors as TheirNearestNeighbors
from sklearn.neighbors import RadiusNeighborsTransformer as TheirRadiusNeighborsTransformer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from jztree_utils.estimators import DBSCAN, HDBSCAN, KNeighborsTransformer, NearestNeighbors, RadiusNeighborsTransformer

RNG = np.random.default_rng(12)
DATA = np.r_[RNG.random((180, 3)), RNG.random((20, 3)) * 0.01]
PLACES = RNG.random((31, 3)) * 1.2 - 0.1


def same_graph(result: Any, expected: Any) -> None:
    assert result.format == "csr"
    assert result.shape == expected.shape
    assert result.dtype == expected.dtype == np.float64
    assert result.nnz == expected.nnz, "explicit zeros count"
    np.testing.assert_allclose(result.toarray(), expected.toarray(), rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("places", [None, PLACES, DATA], ids=["own", "others", "same"])
@pytest.mark.parametrize("k", [1, 5, 60])
def test_numbers_of_neighbours(places: Any, k: int) -> None:
    estimator, reference = NearestNeighbors(n_neighbors=k).fit(DATA), TheirNearestNeighbors(n_neighbors=k).fit(DATA)
    result, expected = estimator.kneighbors(places), reference.kneighbors(places)
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-12, atol=1e-15)
    np.testing.assert_array_equal(result[1], expected[1])
    assert [column.dtype for column in result] == [np.float64, np.intp]
    np.testing.assert_array_equal(
        estimator.kneighbors(places, 3, return_distance=False), reference.kneighbors(places, 3)[1]
    )
    for mode in ("connectivity", "distance"):
        same_graph(estimator.kneighbors_graph(places, mode=mode), reference.kneighbors_graph(places, mode=mode))


@pytest.mark.parametrize("places", [None, PLACES, DATA], ids=["own", "others", "same"])
@pytest.mark.parametrize("radius", [0.004, 0.15, 5.0])
def test_neighbours_within_a_radius(places: Any, radius: float) -> None:
    estimator, reference = NearestNeighbors(radius=radius).fit(DATA), TheirNearestNeighbors(radius=radius).fit(DATA)
    for in_order in (False, True):
        result, expected = (model.radius_neighbors(places, sort_results=in_order) for model in (estimator, reference))
        assert result[0].shape == result[1].shape == expected[1].shape
        for distance, row, true_distance, true_row in zip(*result, *expected, strict=True):
            order = slice(None) if in_order else np.argsort(true_row)
            np.testing.assert_array_equal(row, true_row[order])
            np.testing.assert_allclose(distance, true_distance[order], rtol=1e-12, atol=1e-15)
    each = RNG.random(200 if places is None else len(places)) * 0.2
    reached = estimator.radius_neighbors(places, each)[0]
    full = estimator.radius_neighbors(places, 0.2)[0]
    for far, nearest, all_near in zip(each, reached, full, strict=True):
        np.testing.assert_array_equal(nearest, all_near[all_near <= far])
    only = estimator.radius_neighbors(places, 0.1, return_distance=False)
    assert [len(row) for row in only] == [len(row) for row in reference.radius_neighbors(places, 0.1)[1]]
    for mode in ("connectivity", "distance"):
        same_graph(
            estimator.radius_neighbors_graph(places, mode=mode), reference.radius_neighbors_graph(places, mode=mode)
        )


@pytest.mark.parametrize("mode", ["connectivity", "distance"])
def test_transformers(mode: str) -> None:
    kinds = (
        (KNeighborsTransformer, TheirKNeighborsTransformer, {"n_neighbors": 7}),
        (RadiusNeighborsTransformer, TheirRadiusNeighborsTransformer, {"radius": 0.2}),
    )
    for estimator, reference, options in kinds:
        built, second = estimator(mode=mode, **options), reference(mode=mode, **options)
        same_graph(built.fit_transform(DATA), second.fit_transform(DATA))
        same_graph(built.transform(PLACES), second.transform(PLACES))
        assert [name.lower() for name in built.get_feature_names_out()][:2] == [
            f"{estimator.__name__.lower()}{i}" for i in (0, 1)
        ]


def test_equal_distances_are_in_row_order() -> None:
    """The lattice has one duplicate point. Each point's own row is excluded, and its duplicate is not."""
    side = np.stack(np.meshgrid(*[np.arange(4.0)] * 3), axis=-1).reshape(-1, 3)
    points = np.r_[side, side[:1]]
    for k, places in ((5, None), (40, None), (7, points)):
        distance, row = NearestNeighbors(n_neighbors=k).fit(points).kneighbors(places)
        assert np.all((np.diff(distance) > 0) | (np.diff(row) > 0))
        np.testing.assert_allclose(distance, np.linalg.norm(points[row] - points[:, None], axis=-1))
        if places is None:
            assert not np.any(row == np.arange(len(points))[:, None])
            assert (row[0, 0], row[-1, 0]) == (len(points) - 1, 0)
    splits = NearestNeighbors(radius=1.0).fit(points).radius_neighbors(sort_results=True)
    assert splits[1][0].tolist() == [64, 1, 4, 16] or sorted(splits[1][0].tolist()) == [1, 4, 16, 64]
    assert all(np.all((np.diff(d) > 0) | (np.diff(r) > 0)) for d, r in zip(*splits, strict=True))


@pytest.mark.parametrize("box", [1.0, [1.0, 0.0, 1.5]], ids=str)
def test_periodic_boxes(box: Any) -> None:
    """Positions outside the box are wrapped."""
    shift = np.where(np.broadcast_to(box, 3) > 0, box, 0) * RNG.integers(-2, 3, DATA.shape)
    nearest = NearestNeighbors(n_neighbors=6, radius=0.2, boxsize=box).fit(DATA + shift)
    distance, row = cKDTree(DATA, boxsize=box).query(PLACES, k=6)
    result = nearest.kneighbors(PLACES)
    np.testing.assert_array_equal(result[1], row)
    np.testing.assert_allclose(result[0], distance, atol=1e-14)
    lists = cKDTree(DATA, boxsize=box).query_ball_point(PLACES, 0.2, return_sorted=True)
    assert [item.tolist() for item in nearest.radius_neighbors(PLACES)[1]] == lists.tolist()
    matrix = cKDTree(DATA, boxsize=box).sparse_distance_matrix(cKDTree(DATA, boxsize=box), 0.15).tocsr()
    expected = cluster.DBSCAN(eps=0.1, min_samples=4, metric="precomputed").fit(matrix)
    for weight in (None, np.ones(len(DATA))):
        clusters = DBSCAN(eps=0.1, min_samples=4, boxsize=box).fit(DATA + shift, sample_weight=weight)
        np.testing.assert_array_equal(clusters.labels_, expected.labels_)


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("weighted", [False, True])
def test_dbscan(dims: int, weighted: bool) -> None:
    points = np.r_[RNG.normal(0, 0.1, (60, dims)), RNG.normal(1, 0.1, (60, dims)), RNG.random((60, dims)) * 3]
    points = points[RNG.permutation(180)]
    weight = RNG.integers(-1, 5, 180).astype(float) if weighted else None
    for eps, min_count in ((0.05 * dims, 4), (0.1 * dims, 12), (0.2, 1)):
        estimator, reference = (kind(eps=eps, min_samples=min_count) for kind in (DBSCAN, cluster.DBSCAN))
        np.testing.assert_array_equal(
            estimator.fit_predict(points, sample_weight=weight), reference.fit_predict(points, sample_weight=weight)
        )
        np.testing.assert_array_equal(estimator.core_sample_indices_, reference.core_sample_indices_)
        np.testing.assert_array_equal(estimator.components_, reference.components_)
    for kind in (np.float32, np.int64):
        assert DBSCAN().fit(points.astype(kind)).components_.dtype == kind


@pytest.mark.long
def test_pipelines_of_scikit_learn() -> None:
    """Estimators after our transformer give the same results as after theirs."""
    target, kind = DATA @ [1.0, 2.0, 3.0], (DATA[:, 0] > 0.5).astype(int)
    behind = (
        lambda: KNeighborsRegressor(n_neighbors=4, metric="precomputed", weights="distance"),
        lambda: KNeighborsClassifier(n_neighbors=4, metric="precomputed"),
    )
    for last, y in zip(behind, (target, kind), strict=True):
        result, expected = (
            make_pipeline(StandardScaler(), first(n_neighbors=6), last()).fit(DATA, y).predict(PLACES)
            for first in (KNeighborsTransformer, TheirKNeighborsTransformer)
        )
        np.testing.assert_allclose(result, expected, rtol=1e-12)
    graphs = [item(n_neighbors=20).fit_transform(DATA) for item in (KNeighborsTransformer, TheirKNeighborsTransformer)]
    for later in (
        lambda graph: Isomap(n_neighbors=8, metric="precomputed").fit_transform(graph),
        lambda graph: LocalOutlierFactor(n_neighbors=8, metric="precomputed").fit_predict(graph),
        lambda graph: TSNE(
            metric="precomputed", perplexity=5, init="random", random_state=0, max_iter=250
        ).fit_transform(graph),
        lambda graph: cluster.SpectralClustering(
            3, affinity="precomputed_nearest_neighbors", n_neighbors=8, random_state=0
        ).fit_predict(graph),
    ):
        np.testing.assert_allclose(later(graphs[0]), later(graphs[1]), rtol=1e-6, atol=1e-8)


def test_a_search_over_parameters() -> None:
    pipeline = make_pipeline(KNeighborsTransformer(n_neighbors=9), KNeighborsClassifier(metric="precomputed"))
    choice = {"kneighborsclassifier__n_neighbors": [1, 5]}
    search = GridSearchCV(pipeline, choice, cv=2).fit(DATA, DATA[:, 0] > 0.5)
    assert search.best_score_ > 0.9


def test_estimator_can_be_pickled() -> None:
    nearest = NearestNeighbors(boxsize=1.2).fit(DATA)
    again = pickle.loads(pickle.dumps(nearest))
    np.testing.assert_array_equal(again.kneighbors(PLACES)[1], nearest.kneighbors(PLACES)[1])
    assert again.boxsize == 1.2


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: NearestNeighbors(p=0.5).fit(DATA), "with p=0.5; distances must be Minkowski distances"),
        (
            lambda: NearestNeighbors(metric_params={"w": [1, 2, 3]}).fit(DATA),
            "with p=2 and 'w' in metric_params; distances must be Minkowski distances without weights",
        ),
        (lambda: KNeighborsTransformer(metric="canberra").fit(DATA), "metric is 'canberra'.*Minkowski"),
        (
            lambda: NearestNeighbors(metric="cosine").fit(np.eye(3) * [1, 0, 2]),
            "row 1 of the samples is 0 in all features, so it has no cosine distance; remove it",
        ),
        (lambda: NearestNeighbors(metric="cosine", boxsize=1.0).fit(DATA), "directions, .* leave out boxsize"),
        (lambda: DBSCAN(metric="cosine", boxsize=1.0).fit(DATA), "directions, .* leave out boxsize"),
        (lambda: DBSCAN(metric="precomputed").fit(DATA), "metric is 'precomputed'.*must be Minkowski"),
        (lambda: DBSCAN(algorithm="kdtree").fit(DATA), "algorithm is 'kdtree'; it must be one of.*'kd_tree'"),
        (lambda: NearestNeighbors(algorithm=None).fit(DATA), "algorithm is None; it must be one of"),
        (lambda: NearestNeighbors(leaf_size=0).fit(DATA), "leaf_size is 0; it must be an integer of at least 1"),
        (lambda: DBSCAN(leaf_size=2.5).fit(DATA), "leaf_size is 2.5; it must be an integer of at least 1"),
        (
            lambda: NearestNeighbors().fit(np.zeros((20, 9))),
            r"have 9 features.* 1 to 8 features.*PCA\(n_components=8\)",
        ),
        (lambda: DBSCAN().fit(np.zeros((20, 9))), "1 to 8 features"),
        (lambda: NearestNeighbors(boxsize=[1, 2]).fit(DATA), "one length, or 3, one per dimension"),
        (lambda: NearestNeighbors(n_neighbors=200).fit(DATA).kneighbors(), "n_neighbors < n_samples_fit.*199 others"),
        (lambda: NearestNeighbors().fit(DATA).kneighbors(PLACES, 201), "n_neighbors <= n_samples_fit"),
        (lambda: NearestNeighbors().fit(DATA).kneighbors(n_neighbors=0), "n_neighbors > 0"),
        (lambda: KNeighborsTransformer(n_neighbors=0).fit(DATA), "n_neighbors > 0. Got 0"),
        (lambda: NearestNeighbors(radius=-1).fit(DATA), "radius is -1; it must be a number of at least 0"),
        (lambda: NearestNeighbors().fit(DATA).kneighbors_graph(mode="x"), "Unsupported mode"),
        (lambda: RadiusNeighborsTransformer(mode="x").fit(DATA), "Unsupported mode"),
        (lambda: NearestNeighbors().fit(DATA).kneighbors(PLACES[:, :2]), "features"),
        (lambda: NearestNeighbors(radius=np.nan).fit(DATA).radius_neighbors(), "radius is nan"),
        (lambda: NearestNeighbors().fit(DATA).radius_neighbors(radius=[0.1, 0.2]), "one per query"),
        (lambda: DBSCAN().fit(DATA, sample_weight=np.zeros(200)), "zero for every sample"),
        (lambda: DBSCAN(eps=0).fit(DATA), "eps"),
        (lambda: DBSCAN(min_samples=0).fit(DATA), "min_samples"),
        (lambda: DBSCAN(eps=np.inf).fit(DATA), "eps is inf; .* positive and finite"),
        (lambda: DBSCAN(eps=np.inf).fit(DATA, sample_weight=1.0), "eps is inf; .* positive and finite"),
        (lambda: NearestNeighbors().fit(np.full((9, 2), np.nan)), "NaN"),
    ],
)
def test_invalid_arguments_raise(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


def test_number_of_neighbours_that_is_a_float_raises() -> None:
    with pytest.raises(TypeError, match="enter integer value"):
        NearestNeighbors().fit(DATA).kneighbors(n_neighbors=2.0)


@pytest.mark.parametrize(
    "call",
    [
        lambda: NearestNeighbors(n_neighbors=2).fit(DATA * 1e200).kneighbors(),
        lambda: NearestNeighbors(n_neighbors=2).fit(DATA).kneighbors(PLACES * 1e200),
        lambda: NearestNeighbors(radius=2).fit(DATA).radius_neighbors(PLACES * 1e200),
        lambda: KNeighborsTransformer().fit_transform(DATA * 1e200),
        lambda: RadiusNeighborsTransformer().fit_transform(DATA * 1e200),
        lambda: DBSCAN().fit(DATA * 1e200),
        lambda: DBSCAN().fit(DATA * 1e200, sample_weight=1.0),
    ],
)
def test_samples_too_large_for_float64_raise_like_scikit_learn(call: Any) -> None:
    with pytest.raises(
        ValueError, match=r"^samples must have absolute values of at most 3e\+144, .* choose another unit"
    ):
        call()


@pytest.mark.parametrize("kind", [NearestNeighbors, KNeighborsTransformer, RadiusNeighborsTransformer, DBSCAN, HDBSCAN])
def test_samples_whose_squares_overflow_raise(kind: Any) -> None:
    with pytest.raises(ValueError, match=r"^samples must have absolute values of at most 3e\+144, so that"):
        kind().fit([[1e150, 0.0], [0.0, 1.0]])
