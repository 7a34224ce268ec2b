"""Adapters: neighbour lists that exceed the memory, and counts of neighbours that need no lists."""

from typing import Any

import numpy as np
import pytest
from scipy.spatial import cKDTree

from jztree_utils.kdtree import KDTree, _point_search

pytestmark = pytest.mark.fast

RNG = np.random.default_rng(5)
DATA = np.r_[RNG.random((150, 3)), np.full((50, 3), 0.5)]
PLACES = RNG.random((4, 7, 3))


@pytest.fixture
def no_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if neighbour lists are made."""

    def never(*_: Any, **__: Any) -> None:
        raise AssertionError("lists were made")

    for name in ("neighbours_within", "nearest"):
        monkeypatch.setattr(getattr(_point_search, name), "jit", never)


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulate a machine with 100 kB of free memory."""
    monkeypatch.setattr(_point_search, "host_memory", lambda: 100_000)


@pytest.mark.parametrize("box", [None, 1.0])
@pytest.mark.parametrize(
    ("places", "r"),
    [
        (PLACES, 0.2),
        (PLACES, RNG.uniform(-0.1, 0.5, (4, 7))),
        (PLACES, RNG.random((4, 1))),
        (PLACES[0, 0], 0.4),
        (PLACES[0, :0], 0.4),
        (DATA, 0.0),
        (DATA, -1.0),
        (DATA, np.inf),
    ],
)
def test_lengths_equal_those_of_scipy_and_need_no_lists(no_lists, box, places, r) -> None:
    result = KDTree(DATA, boxsize=box).query_ball_point(places, r, return_length=True)
    expected = cKDTree(DATA, boxsize=box).query_ball_point(places, r, return_length=True)
    assert np.shape(result) == np.shape(expected)
    # SciPy uses the absolute value of a negative distance. Here nothing is within such a distance, as in lists.
    np.testing.assert_array_equal(result, np.where(np.broadcast_to(r, np.shape(expected)) < 0, 0, expected))


def test_lengths_of_lists_too_large_for_any_memory(no_lists) -> None:
    """There are ten thousand million neighbours."""
    x = np.repeat([1.0, 2.0], 70_000)[:, None]
    assert set(KDTree(x).query_ball_point(x, 0.5, return_length=True).tolist()) == {70_000}


def test_lengths_of_no_points(no_lists) -> None:
    assert KDTree(np.zeros((0, 2))).query_ball_point([[0, 0]], 1, return_length=True).tolist() == [0]
    with pytest.raises(ValueError, match="must not be NaN"):
        KDTree(DATA).query_ball_point(PLACES, np.nan, return_length=True)


def tree() -> KDTree:
    return KDTree(DATA)


@pytest.mark.parametrize(
    ("call", "each", "advice"),
    [
        (lambda: tree().query_ball_point(DATA, 9), 70, "Use a smaller r, .* or return_length=True, which needs no"),
        (lambda: tree().query_ball_tree(tree(), 9), 70, "Use a smaller distance, fewer points, or count_neighbors"),
        (lambda: tree().query_pairs(9), 230, "Use a smaller distance, fewer points, or count_neighbors"),
        (lambda: tree().query_pairs(9, output_type="ndarray"), 70, ".* or count_neighbors, which needs no lists"),
        (lambda: tree().sparse_distance_matrix(tree(), 9), 230, ".* or count_neighbors, which needs no lists"),
        (lambda: tree().query(DATA, 200), 28, "Use fewer neighbours, or fewer points at once"),
    ],
)
def test_lists_larger_than_memory_raise_before_they_are_made(no_lists, little_memory, call, each, advice) -> None:
    number = 200 * 200
    words = (
        rf"there are 40,000 neighbours, which need {number * each:,} bytes \([0-9.]+ MiB\) of memory, but 97.7 kiB are "
        r"free"
    )
    with pytest.raises(MemoryError, match=rf"^{words}\. {advice}.*\.$"):
        call()


def test_lists_that_fit_are_made_even_if_all_pairs_would_not_fit(little_memory) -> None:
    result, expected = KDTree(DATA[:150]), cKDTree(DATA[:150])
    assert 150 * 150 * 70 > 100_000
    assert result.query_ball_point(DATA[:150], 0.05).tolist() == expected.query_ball_point(DATA[:150], 0.05).tolist()


def test_more_neighbours_than_a_list_holds_raise(no_lists, monkeypatch) -> None:
    monkeypatch.setattr(_point_search, "_MOST_LISTED", 999)
    with pytest.raises(MemoryError, match=r"there are 40,000 neighbours, but lists hold at most 999\. Use a smaller r"):
        tree().query_ball_point(DATA, 9)


@pytest.mark.parametrize(
    ("name", "arguments", "advice"),
    [
        ("radius_neighbors", {"radius": 9.0}, "Use a smaller radius, fewer samples at once, or kneighbors"),
        ("radius_neighbors_graph", {"radius": 9.0}, "or kneighbors with its fixed number of neighbours"),
        ("kneighbors", {"n_neighbors": 199}, "Use fewer neighbours, or fewer points at once"),
        ("kneighbors_graph", {"n_neighbors": 199}, "Use fewer neighbours, or fewer points at once"),
    ],
)
def test_estimators_raise_with_their_own_message(no_lists, little_memory, name, arguments, advice) -> None:
    estimators = pytest.importorskip("jztree_utils.estimators")
    fitted = estimators.NearestNeighbors().fit(DATA)
    with pytest.raises(MemoryError, match=rf"bytes .* of memory, but 97.7 kiB are free\. .*{advice}"):
        getattr(fitted, name)(**arguments)


def test_clusters_of_lists_raise_with_their_own_message(no_lists, little_memory) -> None:
    estimators = pytest.importorskip("jztree_utils.estimators")
    with pytest.raises(MemoryError, match="Use a smaller eps, or p=2 without sample_weight, which needs no lists"):
        estimators.DBSCAN(eps=9.0).fit(DATA, sample_weight=np.ones(200))
