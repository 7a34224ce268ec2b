"""Peaks of a density against a sequential flood, which adds one particle after the other, densest first."""

from typing import Any

import flood
import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import kernels
from jztree.data import Pos
from jztree.density import knn_density
from jztree.hierarchy import DensityPeaks, density_peaks
from jztree.hierarchy._peak_table import roots
from jztree.knn import knn

pytestmark = [pytest.mark.emulated, pytest.mark.watched]


def graph(pos: Any, k: int, box: Any = None) -> list[set[int]]:
    """Return the neighbours of each particle."""
    n = len(pos)
    return flood.graph(np.asarray(knn(pos, min(k, n), box, result="globalidx")) if n else np.zeros((0, 0), int))


def check(result: DensityPeaks, neighbours: list[set[int]], density: Any) -> None:
    """Compare all fields with the fields of a flood."""
    n, density = len(neighbours), np.asarray(density)
    expected = flood.flood(neighbours, density)
    num = len(expected.row)
    assert int(result.num) == num
    np.testing.assert_array_equal(result.peak, np.append(expected.peak, np.full(len(result.peak) - n, -1)))
    for name in ("row", "saddle", "parent", "across"):
        values = np.asarray(getattr(result, name))
        np.testing.assert_array_equal(values[:num], getattr(expected, name), err_msg=name)
        np.testing.assert_array_equal(values[num:], np.full(len(values) - num, -1))
    ends = expected.saddle >= 0
    level = np.where(ends, density[expected.saddle], -np.inf).astype(density.dtype)
    top = density[expected.row]
    np.testing.assert_array_equal(result.density[:num], top)
    np.testing.assert_array_equal(result.saddle_density[:num], level)
    with np.errstate(invalid="ignore"):
        persistence = np.where(ends, np.where(top == level, 0, top - level), np.inf)
    # XLA rounds differences below the smallest normal number to 0.
    tiny = np.finfo(density.dtype).tiny
    np.testing.assert_allclose(result.persistence[:num], persistence.astype(density.dtype), rtol=0, atol=tiny)
    assert (result.persistence[num:] == 0).all()
    assert np.isneginf(result.density[num:]).all()
    assert np.isneginf(result.saddle_density[num:]).all()


def values(n: int, kind: str, dtype: Any = np.float32) -> np.ndarray:
    """Return densities of a kind."""
    rng = np.random.default_rng(n)
    if kind == "random":
        return rng.random(n).astype(dtype)
    if kind == "ties":
        return rng.integers(0, 4, n).astype(dtype)
    if kind == "equal":
        return np.ones(n, dtype)
    if kind == "zeros of both signs":
        return np.where(rng.random(n) < 0.5, dtype(0), -dtype(0))
    if kind == "infinite":
        return rng.choice(np.array([-np.inf, -1, 2, np.inf], dtype), n)
    assert kind == "subnormal"
    return rng.integers(-3, 4, n).astype(dtype) * np.finfo(dtype).smallest_subnormal


KINDS = ["random", "ties", "equal", "zeros of both signs", "infinite", "subnormal"]


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_equals_a_flood(dims: int, kind: str, dtype: Any) -> None:
    box = oracles.box_lengths(kind, dims)
    pos = oracles.uniform(300, dims, dtype)
    density = values(300, "random", dtype)
    check(density_peaks(pos, density, 6, boxsize=box), graph(pos, 6, box), density)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("k", [1, 2, 3, 8, 30])
def test_any_densities_equal_a_flood(kind: str, k: int, dtype: Any) -> None:
    pos = oracles.clustered(200, 2, dtype)
    density = values(200, kind, dtype)
    check(density_peaks.jit(pos, density, k), graph(pos, k), density)


@pytest.mark.parametrize("kind", ["random", "ties", "equal"])
def test_equal_points_equal_a_flood(kind: str) -> None:
    pos = oracles.uniform(300, 3)[np.random.default_rng(1).integers(0, 20, 300)]
    density = values(300, kind)
    check(density_peaks.jit(pos, density, 10), graph(pos, 10), density)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["uniform", "clustered", "line"])
def test_estimated_densities_equal_a_flood(kind: str) -> None:
    pos = oracles.uniform(4000, 3) if kind == "uniform" else oracles.clustered(4000, 3) % np.float32(1)
    if kind == "line":
        pos[:, 1:] = 0.5
    density = knn_density(pos, 16, boxsize=1.0)
    check(density_peaks.jit(pos, density, 16, boxsize=1.0), graph(pos, 16, 1.0), density)


@pytest.mark.parametrize("n", [3, 2, 1, 0])
@pytest.mark.parametrize("k", [1, 2, 5])
def test_few_particles(n: int, k: int) -> None:
    pos, density = oracles.uniform(n, 3), values(n, "random")
    check(density_peaks(pos, density, k), graph(pos, k), density)
    check(density_peaks.jit(pos, density, k), graph(pos, k), density)


@pytest.mark.parametrize("kind", ["random", "equal"])
@pytest.mark.parametrize("k", [50, 51, 1000])
def test_all_particles_are_neighbours_if_k_is_large(kind: str, k: int) -> None:
    pos, density = oracles.uniform(50, 3), values(50, kind)
    result = density_peaks(pos, density, k)
    assert result.num == 1
    assert result.row[0] == np.argmax(density)
    check(result, graph(pos, k), density)


def test_particles_without_neighbours_are_separate_peaks() -> None:
    density = values(40, "ties")
    result = density_peaks(oracles.uniform(40, 3), density, 1)
    assert result.num == 40
    np.testing.assert_array_equal(result.row, np.argsort(-density, kind="stable"))
    assert np.isinf(result.persistence).all()


def test_isolated_parts_have_a_peak_each_that_never_ends() -> None:
    pos = np.concatenate([oracles.uniform(60, 2) + 10 * i for i in range(4)]).astype(np.float32)
    density = values(240, "random")
    result = density_peaks(pos, density, 8)
    check(result, graph(pos, 8), density)
    lasting = np.flatnonzero(np.asarray(result.parent)[: int(result.num)] < 0)
    np.testing.assert_array_equal(np.sort(np.asarray(result.row)[lasting] // 60), np.arange(4))


@pytest.mark.parametrize("num", [0, 1, 2, 37])
@pytest.mark.parametrize("k", [4, 60])
def test_padding_belongs_to_no_peak(num: int, k: int) -> None:
    pos, density = oracles.uniform(60, 3), values(60, "random")
    expected = graph(pos[:num], k)
    pos[num:], density[num:] = np.nan, np.nan
    result = density_peaks.jit(Pos(pos=pos, num=jnp.asarray(num)), density, k)
    assert result.peak.shape == result.row.shape == (60,)
    check(result, expected, density[:num])


def test_saddle_of_three_peaks_ends_two_in_the_densest() -> None:
    """Three particles are each a neighbour of the fourth only."""
    pos = np.array([[-1, 0], [1, 0.05], [0, 1.1], [0, 0]], np.float32)
    density = np.array([3, 5, 4, 1], np.float32)
    result = density_peaks(pos, density, 2)
    np.testing.assert_array_equal(result.row, [1, 2, 0, -1])
    np.testing.assert_array_equal(result.parent, [-1, 0, 0, -1])
    np.testing.assert_array_equal(result.across, [-1, 0, 0, -1])
    np.testing.assert_array_equal(result.saddle, [-1, 3, 3, -1])
    np.testing.assert_array_equal(result.persistence, [np.inf, 3, 2, 0])
    np.testing.assert_array_equal(result.peak, [2, 0, 1, 0])


@pytest.mark.parametrize("kind", ["path", "star", "random"])
def test_deep_hierarchies_equal_a_flood(kind: str) -> None:
    """Ring graphs, whose saddles join peaks one after the other or in pairs."""
    n = 400
    rng = np.random.default_rng(5)
    height = {"path": np.arange(n // 2), "star": -np.arange(n // 2), "random": rng.permutation(n // 2)}[kind]
    rank = np.argsort(np.argsort(-np.stack([height + n, height - n], axis=1).ravel(), kind="stable"))
    nearest = np.stack([np.arange(n) - 1, np.arange(n) + 1], axis=1) % n
    graph = jnp.asarray(nearest, jnp.int32), 0, jnp.asarray(rank, jnp.int32), n
    densest = np.asarray(kernels.densest_neighbours(*graph))
    nearer = nearest[np.arange(n), rank[nearest].argmin(axis=1)]
    np.testing.assert_array_equal(densest, np.where(rank[nearer] < rank, nearer, np.arange(n)))
    ends, edges = kernels.peak_forest(*graph, roots(jnp.asarray(densest)))
    summit = np.empty(n, int)
    summit[rank] = rank[np.asarray(roots(jnp.asarray(densest)))]
    peaks = np.flatnonzero(summit == np.arange(n))
    assert edges == len(peaks) - 1
    ends = np.asarray(ends)[: int(edges)]
    assert (np.diff(ends[:, 0]) >= 0).all()
    joined = np.arange(n)
    for a, b in np.asarray(summit)[ends]:
        assert joined[a] != joined[b]
        joined[joined == joined[b]] = joined[a]
    assert len(np.unique(joined[peaks])) == 1


def test_vmap_equals_single_calls() -> None:
    pos, density = oracles.uniform(200, 2).reshape(4, 50, 2), values(200, "random").reshape(4, 50)
    result = jax.vmap(lambda pos, density: density_peaks(pos, density, 5, boxsize=1.0))(pos, density)
    for i in range(4):
        check(jax.tree.map(lambda leaf, i=i: leaf[i], result), graph(pos[i], 5, 1.0), density[i])


def test_persistence_is_differentiable() -> None:
    pos, density = oracles.uniform(100, 3), values(100, "random")

    def total(density: jax.Array) -> jax.Array:
        result = density_peaks(pos, density, 5)
        return jnp.sum(
            jnp.where(result.saddle >= 0, result.persistence, 0) + jnp.where(result.row >= 0, result.density, 0)
        )

    result = density_peaks(pos, density, 5)
    expected = np.zeros(100, np.float32)
    for row, saddle in zip(np.asarray(result.row), np.asarray(result.saddle), strict=True):
        expected[row] += (row >= 0) * (1 + (saddle >= 0))
        expected[saddle] -= saddle >= 0
    np.testing.assert_array_equal(jax.grad(total)(jnp.asarray(density)), expected)


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"density": np.zeros(3, np.float32)}, ValueError, r"density must have one number per particle, shape \(20,\)"),
        ({"density": np.zeros(20, np.int32)}, TypeError, "density must be float32 or float64, not int32"),
        ({"density": [0.0] * 20}, TypeError, "density is a list"),
    ],
)
def test_invalid_arguments_raise(changes: dict[str, Any], error: type[Exception], message: str) -> None:
    arguments = {"part": oracles.uniform(20, 3), "density": values(20, "random"), "k": 4} | changes
    for call in (density_peaks, density_peaks.jit):
        with pytest.raises(error, match=message):
            call(**arguments)


def test_nan_density_raises_with_its_row() -> None:
    gpus.skip_where_kernels_cannot_raise()
    density = values(20, "random")
    density[[7, 9]] = np.nan
    with pytest.raises(ValueError, match=r"the density of row 7 is NaN.*\(2 such rows\)"):
        density_peaks(oracles.uniform(20, 3), density, 4)
