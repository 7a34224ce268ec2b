"""Distributions of neighbours compared with brute force, on one device and on several."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from devices import DEVICE_COUNTS, ROWS, make, mesh_of
from oracles import box_lengths, clustered, lattice, squared_distances, uniform
from processes import run_processes

from jztree_utils.knn_statistics import _counts, grid_queries, joint_knn_cdf, knn_cdf, random_queries

K = [1, 2, 5, 40, 700]
RADII = np.r_[0.0, np.geomspace(0.01, 0.5, 9), 3.0]
INPUTS: dict[str, Callable[[Any], np.ndarray]] = {
    "uniform": lambda dtype: uniform(600, 3, dtype),
    "clustered": lambda dtype: clustered(600, 3, dtype),
    "with ties": lambda dtype: lattice(8, 3, dtype, 0.125)[np.arange(600) % 512],
    "all equal": lambda dtype: np.full((600, 3), 0.25, dtype),
}


def brute_force(part: np.ndarray, queries: np.ndarray, k: Any, box: Any = None, radii: Any = RADII) -> np.ndarray:
    """Return for each k, query and radius whether the k-th smallest distance is within the radius."""
    squares = np.sort(squared_distances(queries.astype(part.dtype), part, box), axis=1)
    none = np.full((len(queries), 1), np.inf)
    nth = np.concatenate([squares, none], axis=1)[:, np.minimum(np.asarray(k) - 1, len(part))]
    result: np.ndarray = nth.T[:, :, None] <= np.asarray(radii) ** 2
    return result


@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_counts_equal_brute_force(dtype: Any, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The radii of the lattice include the distances of its points from the queries, which are on its points."""
    monkeypatch.setattr(_counts, "_MOST", 256)  # two blocks
    box, radii = box_lengths(kind, 3), np.sort(np.r_[RADII, 0.125, 0.25])
    second = uniform(500, 3, dtype, seed=8)
    for name, points in INPUTS.items():
        part, queries = points(dtype), np.r_[grid_queries(5, 1.0).block(0, 125), points(dtype)[:300]]
        result = knn_cdf(part, K, radii, queries, box)
        reached = brute_force(part, queries, K, box, radii)
        np.testing.assert_array_equal(result.count, reached.sum(axis=1), err_msg=name)
        assert (result.count.dtype, result.num) == (np.int64, 425)
        np.testing.assert_array_equal(result.value, reached.mean(axis=1))
        np.testing.assert_allclose(result.peaked, np.minimum(result.value, 1 - result.value), atol=1e-15)

        both = joint_knn_cdf(part, second, K, [3, 1], radii, queries, box)
        reached_too = brute_force(second, queries, [3, 1], box, radii)
        expected = (reached[:, None] & reached_too[None]).sum(axis=2)
        np.testing.assert_array_equal(both.count, expected, err_msg=name)
        np.testing.assert_array_equal(both.a.count, result.count)
        np.testing.assert_array_equal(both.b.count, reached_too.sum(axis=1))


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_counts_do_not_depend_on_devices(ndev: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_counts, "_MOST", 64)
    mesh, queries = mesh_of(ndev), random_queries(500, 1.0, seed=3)
    second, _, dealt_other = make("uniform, ranks without particles", ndev)
    for name in ("uniform", "clustered", "fewer particles than ranks"):
        pos, _, stacked = make(name, ndev)
        reached = brute_force(pos, queries.block(0, 500), [1, 9], 1.0)
        reached_too = brute_force(second, queries.block(0, 500), [2], 1.0)
        result = joint_knn_cdf(stacked, dealt_other, [1, 9], [2], RADII, queries, 1.0, mesh=mesh)
        np.testing.assert_array_equal(result.a.count, reached.sum(axis=1), err_msg=name)
        np.testing.assert_array_equal(result.b.count, reached_too.sum(axis=1), err_msg=name)
        np.testing.assert_array_equal(result.count, (reached[:, None] & reached_too[None]).sum(axis=2), err_msg=name)
    # Particles that are not distributed yet.
    pos = uniform(ROWS * ndev, 3)
    alone, result = (knn_cdf(pos, [1, 9], RADII, queries, 1.0, mesh=over) for over in (None, mesh))
    np.testing.assert_array_equal(result.count, alone.count)


PROCESSES = """
from jztree import launch

launch.initialize(heartbeat_timeout_seconds=100)
import jax
import oracles

from jztree_utils.knn_statistics import joint_knn_cdf, random_queries

mesh = jax.make_mesh((4,), ("gpus",))
sets, queries = (oracles.uniform(200, 3), oracles.lattice(6, 3, spacing=0.1)), random_queries(300, 1.0)
found, alone = (joint_knn_cdf(*sets, [1, 3], 2, [0.1, 0.2, 0.3], queries, 1.0, mesh=over) for over in (mesh, None))
assert (found.count == alone.count).all()
assert 0 < found.count[0, 0, 1] < 300
print("equal")
"""


@pytest.mark.slow
def test_counts_do_not_depend_on_processes() -> None:
    for returncode, output in run_processes(PROCESSES, timeout=200):
        assert returncode == 0, output
        assert output.endswith("equal\n")


def test_random_particles_have_the_distribution_of_poisson() -> None:
    """Banerjee & Abel 2021, equation 9: fewer than k particles are in a ball if the k-th is outside."""
    part, radii = uniform(4000, 3, seed=5), np.linspace(0.01, 0.12, 12)
    result = knn_cdf(part, [1, 2, 3], radii, random_queries(20_000, 1.0), 1.0)
    mean = 4000 * 4 / 3 * np.pi * radii**3
    terms = np.exp(-mean) * np.stack([np.ones(12), mean, mean**2 / 2])
    np.testing.assert_allclose(result.value, 1 - np.cumsum(terms, axis=0), atol=0.03)
    joint = joint_knn_cdf(part, uniform(4000, 3, seed=6), 1, 1, radii, random_queries(20_000, 1.0), 1.0)
    np.testing.assert_allclose(joint.excess[0, 0, 4:], 0, atol=0.05)
    assert joint_knn_cdf(part, part, 2, 2, radii, random_queries(20_000, 1.0), 1.0).excess[0, 0, 4] > 0.5


def test_excess_is_nan_without_neighbours() -> None:
    result = joint_knn_cdf(uniform(5, 2), uniform(5, 2), [1, 6], 1, [0.0, 2.0], uniform(8, 2, seed=3))
    np.testing.assert_array_equal(result.excess, [[[np.nan, 0]], [[np.nan, np.nan]]])
    assert result.value.shape == (2, 1, 2)


class _Recorded:
    """A class of the user's own."""

    num = 20_000

    def __init__(self) -> None:
        self.blocks: list[tuple[int, int]] = []

    def block(self, first: int, last: int) -> np.ndarray:
        self.blocks.append((first, last))
        return np.full((last - first, 2), 0.5)


def test_queries_are_made_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_counts, "_MOST", 4096)
    queries = _Recorded()
    result = knn_cdf(uniform(100, 2), 1, [10.0], queries)
    assert result.count.tolist() == [[20_000]]
    ends = [*range(0, 20_000, 4096), 20_000]
    assert queries.blocks == [(0, 1), *itertools.pairwise(ends)], "the first call asks for the dimensions"


def test_queries_do_not_depend_on_blocks() -> None:
    lengths = np.array([1.0, 2.0, 5.0])
    for queries, expected in (
        (random_queries(50, lengths, seed=4), np.random.default_rng(4).random((50, 3)) * lengths),
        (grid_queries(3, lengths), (np.indices((3, 3, 3)).reshape(3, -1).T + 0.5) / 3 * lengths),
    ):
        assert queries.num == len(expected)
        parts = [queries.block(first, min(first + 7, len(expected))) for first in range(0, len(expected), 7)]
        np.testing.assert_allclose(np.concatenate(parts), expected, rtol=1e-15)
    assert random_queries(4, 1.0, dims=2).block(0, 4).shape == (4, 2)


PART = uniform(20, 2)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: knn_cdf(PART, 0, [1.0], PART), ValueError, "k is 0; it must be at least 1"),
        (lambda: knn_cdf(PART, [1, 2.5], [1.0], PART), TypeError, "k is 2.5; it must be an integer"),
        (lambda: knn_cdf(PART, [], [1.0], PART), ValueError, r"k has shape \(0,\)"),
        (lambda: knn_cdf(PART, 2**31, [1.0], PART), ValueError, "below 2"),
        (lambda: joint_knn_cdf(PART, PART, 1, -1, [1.0], PART), ValueError, "k_b is -1; it must be at least 1"),
        (lambda: knn_cdf(PART, 1, [2.0, 1.0], PART), ValueError, "radii must be ascending"),
        (lambda: knn_cdf(PART, 1, [np.nan], PART), ValueError, "radii must be ascending"),
        (lambda: knn_cdf(PART, 1, 1.0, PART), ValueError, r"radii have shape \(\)"),
        (lambda: knn_cdf(PART, 1, ["a"], PART), TypeError, "radii is .*; it must be an array of real numbers"),
        (lambda: knn_cdf(PART, 1, [1.0], PART[:0]), ValueError, "queries is empty"),
        (lambda: knn_cdf(PART, 1, [1.0], PART[0]), ValueError, r"queries have shape \(2,\)"),
        (lambda: knn_cdf(PART, 1, [1.0], uniform(5, 3)), ValueError, "queries have 3 dimensions, but the particles"),
        (lambda: knn_cdf(PART, 1, [1.0], "all"), TypeError, "queries is str; it must be an array"),
        (lambda: random_queries(0, 1.0), ValueError, "num is 0; it must be at least 1"),
        (lambda: random_queries(5, [1.0, 0.0]), ValueError, "lengths, positive and finite"),
        (lambda: grid_queries(2.0, 1.0), TypeError, "per_side is 2.0; it must be an integer"),
        (lambda: grid_queries(2, "wide"), TypeError, "boxsize is 'wide'; it must be one or several real numbers"),
    ],
)
def test_invalid_arguments_raise(call: Callable[[], Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("n", [0, 3, 20])
def test_infinite_radii_contain_all_particles(n: int) -> None:
    for k in (2, 100):
        result = knn_cdf(PART[:n], [1, k], [1e-320, 1e300, np.inf], PART)
        np.testing.assert_array_equal(result.count[:, 1:], len(PART) * (np.asarray([[1], [k]]) <= n) * [1, 1])


@pytest.mark.filterwarnings("error")
def test_query_outside_the_range_of_the_positions_raises() -> None:
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="row 1 of the query positions"):
        knn_cdf(PART, 1, [1.0], [[0.5, 0.5], [1e39, 0.5]])


def test_nan_in_a_position_raises() -> None:
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="NaN"):
        knn_cdf(np.full((9, 2), np.nan), 1, [1.0], PART)
