"""`jztree_utils.kdtree.KDTree` compared with SciPy's, and run under SciPy's own tests."""

import pickle
from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree

import jztree_utils
from jztree_utils.kdtree import KDTree

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(4)
DATA = np.r_[RNG.random((150, 3)), RNG.random((20, 3)) * 0.01, np.full((5, 3), 0.25)]
PLACES = RNG.random((3, 7, 3)) * 1.4 - 0.2
BOXES = {"open": None, "periodic": 1.0, "mixed": [1.0, 0.0, 1.5]}


@pytest.fixture(scope="module", params=list(BOXES))
def trees(request: pytest.FixtureRequest) -> Any:
    box = BOXES[request.param]
    return KDTree(DATA, boxsize=box), cKDTree(DATA, boxsize=box)


def same_neighbours(result: Any, expected: Any, places: np.ndarray, tree: Any) -> None:
    """Assert equal distances. Rows may differ among points at the same distance."""
    np.testing.assert_allclose(result[0], expected[0], rtol=1e-13, atol=1e-15)
    differ = np.asarray(result[1] != expected[1])
    assert not np.any(differ & ~np.isin(result[1], np.arange(170, 175))), "only equal points change places"


@pytest.mark.parametrize("k", [1, 4, 200, [2], [5, 1, 190]], ids=str)
@pytest.mark.parametrize("bound", [np.inf, 0.2, 0.0])
def test_neighbours(trees: Any, k: Any, bound: float) -> None:
    estimator, reference = trees
    for places in (PLACES, PLACES[0, 0], PLACES[:0]):
        result = estimator.query(places, k, distance_upper_bound=bound)
        expected = reference.query(places, k, distance_upper_bound=bound)
        assert [np.shape(column) for column in result] == [np.shape(column) for column in expected]
        same_neighbours(result, expected, places, estimator)
        assert np.asarray(result[0]).dtype == np.float64


def test_balls_and_pairs(trees: Any) -> None:
    estimator, reference = trees
    radii = RNG.uniform(0, 0.4, (3, 7))
    for r in (radii, 0.3, 0.0):
        result, expected = (
            estimator.query_ball_point(PLACES, r),
            reference.query_ball_point(PLACES, r, return_sorted=True),
        )
        assert result.shape == expected.shape == (3, 7)
        assert result.tolist() == expected.tolist()
        np.testing.assert_array_equal(
            estimator.query_ball_point(PLACES, r, return_length=True),
            reference.query_ball_point(PLACES, r, return_length=True),
        )
    assert estimator.query_ball_point(PLACES[0, 0], np.inf) == list(range(175))
    # No distance is below a negative radius; SciPy squares some of these radii.
    assert estimator.query_ball_point(np.tile(DATA[170], (2, 1)), [-1.0, 0.0]).tolist() == [[], list(range(170, 175))]
    assert estimator.count_neighbors(estimator, [-1.0, 0.0]).tolist() == [0, 170 + 25]
    assert estimator.query_pairs(0.15) == reference.query_pairs(0.15)
    assert set(map(tuple, estimator.query_pairs(0.15, output_type="ndarray").tolist())) == reference.query_pairs(0.15)


def test_two_trees(trees: Any) -> None:
    estimator, reference = trees
    places = PLACES.reshape(-1, 3) % 1
    second, others = KDTree(places, boxsize=estimator.boxsize), cKDTree(places, boxsize=estimator.boxsize)
    assert estimator.query_ball_tree(second, 0.3) == [sorted(row) for row in reference.query_ball_tree(others, 0.3)]
    radii = np.array([0.0, 0.05, 0.1, 0.3, 9.0])
    for shuffled in (radii, radii[[3, 0, 4, 1, 2]]):
        np.testing.assert_array_equal(
            estimator.count_neighbors(second, shuffled), reference.count_neighbors(others, shuffled)
        )
    counts = estimator.count_neighbors(second, radii, cumulative=False)
    np.testing.assert_array_equal(counts, reference.count_neighbors(others, radii, cumulative=False))
    weights = RNG.random(175), None
    for cumulative in (True, False):
        sums = [
            item.count_neighbors(two, radii, weights=weights, cumulative=cumulative)
            for item, two in ((estimator, second), (reference, others))
        ]
        np.testing.assert_allclose(*sums, rtol=1e-12)
    assert estimator.count_neighbors(estimator, 0.1) == reference.count_neighbors(reference, 0.1)
    # Return Python numbers where SciPy does, because json.dumps needs them.
    pair, one = np.ones(len(estimator.data)), {"return_length": True}
    for ours, expected in (
        (estimator.count_neighbors(estimator, 0.1), reference.count_neighbors(reference, 0.1)),
        (
            estimator.count_neighbors(estimator, 0.1, weights=pair),
            reference.count_neighbors(reference, 0.1, weights=pair),
        ),
        (
            estimator.query_ball_point(estimator.data[0], 0.1, **one),
            reference.query_ball_point(reference.data[0], 0.1, **one),
        ),
    ):
        assert type(ours) is type(expected)
    for kind in ("dok_matrix", "coo_matrix"):
        result, expected = (
            item.sparse_distance_matrix(two, 0.4, output_type=kind).toarray()
            for item, two in ((estimator, second), (reference, others))
        )
        np.testing.assert_allclose(result, expected, rtol=1e-13)
    as_dict = estimator.sparse_distance_matrix(second, 0.4, output_type="dict")
    assert as_dict.keys() == reference.sparse_distance_matrix(others, 0.4, output_type="dict").keys()


def test_as_many_neighbours_as_points() -> None:
    radii = np.linspace(0, 1, len(DATA))
    result = KDTree(DATA).count_neighbors(KDTree(DATA), radii)
    np.testing.assert_array_equal(result, cKDTree(DATA).count_neighbors(cKDTree(DATA), radii))


def test_sums_of_weights_need_no_lists_of_pairs() -> None:
    data, weights = np.zeros((60_000, 1)), np.linspace(0, 1, 60_000)
    result = KDTree(data).count_neighbors(KDTree(data), 1.0, weights=(weights, None))
    np.testing.assert_allclose(result, 30_000 * 60_000.0, rtol=1e-12)


@pytest.mark.parametrize("boxes", [(None, 1.0), (1.0, None), (0.0, None), ([1, 0, 1], 1.0)])
def test_two_trees_meet_in_the_box_of_the_first(boxes: tuple[Any, Any]) -> None:
    places = PLACES.reshape(-1, 3) % 1
    estimator, reference = (
        [kind(data, boxsize=box) for data, box in zip((DATA, places), boxes, strict=True)] for kind in (KDTree, cKDTree)
    )
    assert estimator[0].count_neighbors(estimator[1], 0.3) == reference[0].count_neighbors(reference[1], 0.3)
    assert estimator[0].query_ball_tree(estimator[1], 0.3) == [
        sorted(row) for row in reference[0].query_ball_tree(reference[1], 0.3)
    ]
    tables = [model.sparse_distance_matrix(second, 0.3).toarray() for model, second in (estimator, reference)]
    np.testing.assert_allclose(*tables, rtol=1e-13)


def test_argument_that_is_not_a_tree_raises() -> None:
    for call in (KDTree(DATA).count_neighbors, KDTree(DATA).query_ball_tree, KDTree(DATA).sparse_distance_matrix):
        with pytest.raises(TypeError, match=r"other has type cKDTree; it must be a jztree_utils.kdtree.KDTree"):
            call(cKDTree(DATA), 0.1)
        with pytest.raises(ValueError, match="the trees have 3 and 2 dimensions; both must have the same number"):
            call(KDTree(DATA[:, :2]), 0.1)


def test_few_points() -> None:
    empty = KDTree(np.zeros((0, 2)))
    distance, row = empty.query([0.5, 0.5], k=2)
    assert (distance.tolist(), row.tolist()) == ([np.inf, np.inf], [0, 0])
    assert empty.query_ball_point([[0, 0]], 1).tolist() == [[]]
    assert empty.query_pairs(1.0) == set()
    assert empty.count_neighbors(empty, [1.0]).tolist() == [0]
    single = KDTree([[1, 2]])
    assert single.query([1, 2]) == (0.0, 0)
    assert single.query_ball_point([1, 2], 0) == [0]


def test_tree_can_be_pickled() -> None:
    assert jztree_utils.KDTree is KDTree
    tree = KDTree(DATA, boxsize=1.0)
    tree.query(PLACES)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(tree)).query(PLACES)[0], tree.query(PLACES)[0])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KDTree(DATA, boxsize=0.5), "greater than the size of the periodic box"),
        (lambda: KDTree(-DATA, boxsize=2), "outside of the periodic box"),
        (lambda: KDTree([[0, np.nan]]), "data must be finite"),
        (lambda: KDTree(DATA * 1e200), "data must have absolute values of at most 3e[+]144"),
        (lambda: KDTree(DATA).query(PLACES * 1e200), "x must have absolute values of at most 3e[+]144"),
        (
            lambda: KDTree(DATA, boxsize=-1),
            "boxsize is -1; lengths must be finite and positive, or 0 for open dimensions",
        ),
        (
            lambda: KDTree(DATA, boxsize=[2, 2]),
            r"boxsize has shape \(2,\); it must be one length, or 3, one per dimension",
        ),
        (lambda: KDTree(DATA).query(PLACES, workers=0), "Invalid number of workers 0, must be -1 or > 0"),
        (lambda: KDTree(DATA).query_ball_point(PLACES, 1, workers=-2), "Invalid number of workers -2"),
        (lambda: KDTree(np.zeros((3, 9))), "1 to 8 dimensions"),
        (lambda: KDTree(np.zeros(3)), r"shape \(n, m\)"),
        (lambda: KDTree(DATA).query(PLACES[..., :2]), "vectors of length 3"),
        (lambda: KDTree(DATA).query(PLACES, 0), "from 1 on"),
        (lambda: KDTree(DATA).query_ball_point(PLACES, np.nan), "must not be NaN"),
        (lambda: KDTree(DATA).count_neighbors(KDTree(DATA), 0.1, weights=np.ones(175)), "both in a tuple"),
        (
            lambda: KDTree(DATA).count_neighbors(KDTree(DATA), 0.1, weights=(np.full(175, np.nan), None)),
            "must be finite",
        ),
        (
            lambda: KDTree(DATA).count_neighbors(KDTree(DATA), 0.1, weights=(np.full(175, 1e200), None)),
            "weights must have absolute values of at most 3e[+]144",
        ),
    ],
)
def test_invalid_arguments_raise(call: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        call()


@pytest.mark.parametrize("k", [2.5, [1.5], "a", [[1, 2]]], ids=str)
def test_invalid_k_raises(k: Any) -> None:
    with pytest.raises(TypeError, match=r"k must be an integer or a sequence of integers; .* was given"):
        KDTree(DATA).query(PLACES, k)


def test_workers_may_be_left_to_the_library() -> None:
    assert np.array_equal(KDTree(DATA).query(PLACES, workers=None)[1], KDTree(DATA).query(PLACES)[1])
    with pytest.raises(TypeError, match=r"workers must be an integer; 1\.5 was given"):
        KDTree(DATA).query(PLACES, workers=1.5)


@pytest.mark.parametrize("bound", [None, "1", [1.0, 2.0]])
def test_bound_that_is_not_a_number_raises(bound: Any) -> None:
    with pytest.raises(TypeError, match=r"distance_upper_bound is .*; it must be one number"):
        KDTree(np.zeros((3, 2))).query([0, 0], distance_upper_bound=bound)


def test_sets_of_many_sizes_share_compiled_code(count_compilations: Any) -> None:
    """Points and places are padded to 16, 64, 256, 1024, 4096 or 8192 rows."""

    def searches(n: int) -> None:
        points, places = RNG.random((n, 2)), RNG.random((n // 2 + 1, 2))
        tree = KDTree(points)
        distance, row = tree.query(places, 3)
        np.testing.assert_allclose(distance, cKDTree(points).query(places, 3)[0], rtol=1e-13)
        assert row.max() < n
        assert tree.query_ball_point(places, 0.1, return_length=True).sum() == tree.count_neighbors(KDTree(places), 0.1)

    with count_compilations() as compiled:
        for n in np.geomspace(10, 6000, 20).astype(int):
            searches(n)
    # A search compiles for each pair of sizes, of points and of places. Without padding, 80 programs are compiled.
    assert 5 < len(compiled) <= 40
    with count_compilations() as compiled:
        for n in np.geomspace(12, 5000, 20).astype(int):
            searches(n)
    assert not compiled
