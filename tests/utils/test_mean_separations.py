"""Mean separations of pairs against all pairs in NumPy."""

import itertools
from typing import Any

import numpy as np
import pytest

from jztree.data import Pos
from jztree.radius import pair_counts
from jztree_utils.correlation import mean_separations, multipoles, wp, xi

EDGES, ALONG, COSINES = np.array([0.0, 0.1, 0.25, 0.4]), np.array([0.1, 0.2, 0.4]), np.array([0.0, 0.5, 1.0])
BINS: dict[str, dict[str, Any]] = {
    "r": {},
    "rp_pi": {"edges_b": ALONG},
    "rp_pi from 0": {"mode": "rp_pi", "edges_b": np.array([0.0, 0.3]), "los": 0},
    "s_mu": {"edges_b": COSINES},
    "s_mu of some cosines": {"mode": "s_mu", "edges_b": COSINES[1:], "los": 1},
}


def points(n: int, seed: int) -> np.ndarray:
    """Return clustered particles, some at the same place and some outside the box, and pairs at rp = 0 and at edges."""
    rng = np.random.default_rng(seed)
    pos = np.concatenate([rng.random((n // 2, 3)), rng.normal(0.5, 0.05, (n - n // 2, 3))]).astype(np.float32)
    pos[:5] = pos[5:10]
    pos[10:15, :2] = pos[15:20, :2]
    pos[20:25] += 3
    pos[25:40] = rng.integers(0, 8, (15, 3)) / np.float32(8)
    return pos


def brute(
    a: np.ndarray, b: np.ndarray, weights: Any, box: float | None, mode: str = "r", edges_b: Any = None, los: Any = -1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the mean separations and the numbers of pairs in the bins."""
    separation = a[:, None].astype(np.float64) - b
    middle = (a[:, None].astype(np.float64) + b) / 2
    if box is not None:
        separation -= box * np.rint(separation / box)
    square, weight = (separation**2).sum(axis=-1), np.outer(*weights)
    if los == "midpoint":
        along = np.abs((separation * middle).sum(axis=-1)) / np.linalg.norm(middle, axis=-1)
        across2 = (np.cross(separation, middle) ** 2).sum(axis=-1) / (middle**2).sum(axis=-1)
    else:
        along = np.abs(separation[..., los])
        across2 = sum(separation[..., d] ** 2 for d in range(3) if d != los % 3)
    first2 = across2 if mode == "rp_pi" else square
    inside = square > 0
    if mode == "rp_pi":
        inside &= (along <= edges_b[-1]) & ((along > edges_b[0]) | (edges_b[0] == 0))
    if mode == "s_mu":
        inside &= (along**2 <= edges_b[-1] ** 2 * square) & ((along**2 > edges_b[0] ** 2 * square) | (edges_b[0] == 0))
    means, numbers = [], []
    for low, high in itertools.pairwise(EDGES):
        selected = inside & (first2 <= high**2) & ((first2 > low**2) | (low == 0))
        means.append((weight[selected] * np.sqrt(first2[selected])).sum() / weight[selected].sum())
        numbers.append(selected.sum())
    return np.array(means), np.array(numbers)


@pytest.mark.parametrize("cross", [False, True], ids=["auto", "cross"])
def test_mean_separations_by_their_definition(cross: bool) -> None:
    """The pairs agree with `pair_counts`."""
    a = points(160, 1)
    b = points(120, 2) if cross else a
    weights = [np.random.default_rng(len(x)).random(len(x)).astype(np.float32) for x in (a, b)]
    for box in (None, 1.0):
        for name, options in BINS.items():
            bins = {"mode": name} | options
            more = {"queries": b, "query_weights": weights[1]} if cross else {}
            result = mean_separations(a, EDGES, box, weights=weights[0], **more, **bins)
            means, numbers = brute(a, b, [weight.astype(np.float64) for weight in weights], box, **bins)
            np.testing.assert_allclose(result, means, rtol=1e-12, err_msg=name)
            count = np.asarray(pair_counts(a, EDGES, boxsize=box, queries=b if cross else None, **bins).count)
            np.testing.assert_array_equal(count.reshape(3, -1).sum(axis=1), numbers, err_msg=name)


@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
def test_line_of_sight_to_the_midpoint(mode: str) -> None:
    a = points(200, 3) + np.float32(0.5)
    bins = {"mode": mode, "edges_b": ALONG if mode == "rp_pi" else COSINES, "los": "midpoint"}
    means, _ = brute(a, a, [np.ones(200)] * 2, None, **bins)
    np.testing.assert_allclose(mean_separations(a, EDGES, **bins), means, rtol=1e-9)


def test_bins_without_pairs_are_nan_and_padding_is_ignored() -> None:
    pos = np.array([[0, 0, 0], [0, 0, 0.25], [0, 0, 0.75], [np.nan] * 3], np.float32)
    result = mean_separations(Pos(pos=pos, num=3), [0.1, 0.2, 0.3, 0.8])
    np.testing.assert_array_equal(result, [np.nan, 0.25, 0.625])
    for few in (pos[:0], pos[:1]):
        assert np.isnan(mean_separations(few, EDGES)).all()


def test_functions_return_the_mean_separation_on_request() -> None:
    a, b = points(160, 1) % 1, points(120, 2) % 1
    single, two = np.ones(160), np.ones(120)
    assert xi(a, EDGES, 1.0).separation is None
    np.testing.assert_allclose(xi(a, EDGES, 1.0, separations=True).separation, brute(a, a, [single, single], 1.0)[0])
    result = wp(a, EDGES, 0.3, 1.0, num_pi=3, queries=b, los=1, separations=True)
    means = brute(a, b, [single, two], 1.0, "rp_pi", np.array([0, 0.3]), 1)[0]
    np.testing.assert_allclose(result.separation, means)
    result = multipoles(a, EDGES, 1.0, num_mu=4, separations=True)
    np.testing.assert_allclose(result.separation, brute(a, a, [single, single], 1.0)[0])


def test_infinite_last_edge_includes_all_pairs() -> None:
    a = points(160, 1)
    result = mean_separations(a, [0.0, 0.4, np.inf])
    distance = np.sqrt(((a[:, None].astype(np.float64) - a) ** 2).sum(axis=-1))
    far = distance > 0.4
    np.testing.assert_allclose(result, [distance[~far & (distance > 0)].mean(), distance[far].mean()], rtol=1e-12)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"mode": "s"}, "mode is 's'; it must be one of 'r', 'rp_pi', 's_mu'"),
        ({"mode": "rp_pi"}, "mode='rp_pi' needs edges_b"),
        ({"edges_b": ALONG}, "which mode='r' does not use"),
        ({"mode": "s_mu", "edges_b": [0.0, 2.0]}, "they are cosines"),
        ({"mode": "s_mu", "edges_b": COSINES, "los": "z"}, "los is 'z'; it must be the axis"),
        ({"mode": "s_mu", "edges_b": COSINES, "los": "midpoint", "boxsize": 1.0}, "requires an open box"),
        ({"edges": [0.2, 0.1]}, "strictly ascending"),
    ],
)
def test_invalid_bins_raise(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        mean_separations(**{"part": points(50, 1), "edges": EDGES} | options)
