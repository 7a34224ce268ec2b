"""Sums of the separations of pairs in bins against all pairs in float64, on one device and on several."""

from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import deal, even, mesh_of, uneven

from jztree.radius import PairCounts, pair_counts

pytestmark = pytest.mark.emulated

EDGES, ALONG, COSINES = np.array([0.0, 0.06, 0.2, 0.41]), np.array([0.05, 0.2, 0.4]), np.array([0.0, 0.4, 1.0])
BINS: dict[str, dict[str, Any]] = {
    "r": {},
    "rp_pi": {"mode": "rp_pi", "edges_b": ALONG, "los": 1},
    "s_mu": {"mode": "s_mu", "edges_b": COSINES},
    "rp_pi midpoint": {"mode": "rp_pi", "edges_b": ALONG, "los": "midpoint"},
    "s_mu midpoint": {"mode": "s_mu", "edges_b": COSINES, "los": "midpoint"},
}


def points(n: int, seed: int, dims: int = 3, dtype: Any = np.float32) -> np.ndarray:
    """Return clustered particles, some at the same place, some outside the box, and some with rp = 0."""
    rng = np.random.default_rng(seed)
    pos = np.r_[rng.random((n // 2, dims)), rng.normal(0.5, 0.05, (n - n // 2, dims))].astype(dtype)
    pos[:5], pos[20:25] = pos[5:10], pos[20:25] + 3
    pos[10:15, 0], pos[10:15, -1] = pos[15:20, 0], pos[15:20, -1]
    return pos


def weights(n: int, dtype: Any = np.float32) -> np.ndarray:
    return np.random.default_rng(n).normal(1, 0.5, n).astype(dtype)


def product_of(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.outer(a.astype(np.float64), b.astype(np.float64))


def all_pairs(
    a: np.ndarray, b: np.ndarray, box: Any, mode: str = "r", edges_b: Any = None, los: Any = -1
) -> tuple[np.ndarray, np.ndarray]:
    """Return the first quantity of each pair, and its bin as a flat index; -1 for pairs in no bin."""
    separation = oracles.nearest_differences(a, b, box)
    distance = np.sqrt((separation**2).sum(axis=-1))
    if los == "midpoint":
        middle = (a[:, None].astype(np.float64) + b) / 2
        middle /= np.linalg.norm(middle, axis=-1, keepdims=True)
        along = np.abs((separation * middle).sum(axis=-1))
        across = np.sqrt(((separation - (separation * middle).sum(axis=-1)[..., None] * middle) ** 2).sum(axis=-1))
    else:
        along = np.abs(separation[..., los])
        across = np.sqrt((np.delete(separation, los, axis=-1) ** 2).sum(axis=-1))
    first = across if mode == "rp_pi" else distance
    place = oracles.bins_of(lambda edge: first > edge, EDGES)
    if mode != "r":
        second = along if mode == "rp_pi" else along / np.where(distance > 0, distance, 1)
        second = oracles.bins_of(lambda edge: second > edge, edges_b)
        place = np.where((place >= 0) & (second >= 0), place * (len(edges_b) - 1) + second, -1)
    return first, np.where(distance > 0, place, -1)


def assert_sums(result: PairCounts, pairs: tuple[np.ndarray, np.ndarray], product: np.ndarray) -> None:
    """Assert that counts, weights and separations equal sums over ``pairs``, each with this product of weights."""
    first, place = pairs
    kept, shape = place >= 0, np.shape(result.count)
    number, weight, separation = (
        np.bincount(place[kept], array[kept], np.prod(shape)).reshape(shape)
        for array in (np.ones_like(first), product, product * first)
    )
    np.testing.assert_array_equal(np.asarray(result.count), number)
    assert np.all(number > 0)
    if result.weight is not None:
        np.testing.assert_allclose(np.asarray(result.weight), weight, rtol=1e-11)
    assert result.separation is not None
    np.testing.assert_allclose(np.asarray(result.separation), separation, rtol=1e-11)


@pytest.mark.core
@pytest.mark.watched
@pytest.mark.parametrize("name", BINS)
def test_sums_equal_all_pairs(name: str, dtype: Any) -> None:
    """Within one set and between two, in open and periodic boxes, with and without weights."""
    bins = BINS[name]
    a, b = points(150, 1, dtype=dtype), points(110, 2, dtype=dtype)
    wa, wb = weights(150, dtype), weights(110, dtype)
    for box in (None,) if "midpoint" in name else (None, 1.0, [1.0, 0.0, 1.25]):
        pairs = all_pairs(a, a, box, **bins)
        assert_sums(pair_counts(a, EDGES, boxsize=box, separations=True, **bins), pairs, np.ones(pairs[0].shape))
        result = pair_counts.jit(a, EDGES, boxsize=box, weights=wa, separations=True, **bins)
        assert_sums(result, pairs, product_of(wa, wa))
        result = pair_counts(a, EDGES, boxsize=box, queries=b, query_weights=wb, separations=True, **bins)
        pairs = all_pairs(a, b, box, **bins)
        assert_sums(result, pairs, np.broadcast_to(wb.astype(np.float64), pairs[0].shape))


@pytest.mark.parametrize("dims", [1, 2, 5])
def test_other_dimensions_equal_all_pairs(dims: int) -> None:
    a = points(150, 1, dims)
    for box in (None, 1.0):
        pairs = all_pairs(a, a, box)
        assert_sums(pair_counts(a, EDGES, boxsize=box, separations=True), pairs, np.ones(pairs[0].shape))


def test_nodes_in_one_bin_are_opened() -> None:
    """Two distant clumps, whose pairs are all in one bin, and an infinite last edge."""
    pos = np.r_[points(200, 1) * 0.1, points(200, 2) * 0.1 + 5].astype(np.float32)
    result = pair_counts(pos, [0.0, 4.0, np.inf], separations=True)
    distance = np.sqrt(oracles.squared_distances(pos, pos))
    expected = [distance[distance <= 4].sum(), distance[distance > 4].sum()]
    np.testing.assert_allclose(np.asarray(result.separation), expected, rtol=1e-12)


def test_regions_do_not_change_the_sums() -> None:
    a = points(150, 1)
    region = np.arange(150) % 4
    result = pair_counts(a, EDGES, boxsize=1.0, regions=region, num_regions=4, separations=True)
    pairs = all_pairs(a, a, 1.0)
    assert_sums(result, pairs, np.ones(pairs[0].shape))
    assert np.shape(result.region_count) == (4, 3)
    assert result.weight is None
    assert result.region_weight is None
    assert pair_counts(a, EDGES, boxsize=1.0).separation is None


def test_same_bits_with_any_number_of_threads(set_threads: Any) -> None:
    a, w = points(20_000, 1), weights(20_000)
    bits = set()
    for threads in (None, 1, 2, 7):
        set_threads(threads)
        result = pair_counts(a, EDGES / 9, boxsize=1.0, weights=w, separations=True).separation
        assert result is not None
        bits.add(np.asarray(result.words).tobytes())
    assert len(bits) == 1


@pytest.mark.parametrize("ndev", [pytest.param(ndev, marks=pytest.mark.slow) for ndev in (1, 2, 4)] + [3])
def test_several_devices_equal_all_pairs(ndev: int) -> None:
    a, b = points(150, 1), points(110, 2)
    wa, wb = weights(150), weights(110)
    counts = uneven(150, ndev), even(110, ndev)
    many = [deal(pos, count, 150) for pos, count in zip((a, b), counts, strict=True)]
    columns = [
        deal(np.stack([w] * 3, axis=1), count, 150).pos[..., 0] for w, count in zip((wa, wb), counts, strict=True)
    ]
    mapped = pair_counts.smap(mesh_of(ndev), jit=True)
    for name, bins in BINS.items():
        box = None if "midpoint" in name else 1.0
        result = mapped(many[0], EDGES, boxsize=box, weights=columns[0], separations=True, **bins)
        assert_sums(result, all_pairs(a, a, box, **bins), product_of(wa, wa))
        options = {"queries": many[1], "weights": columns[0], "query_weights": columns[1]} | bins
        result = mapped(many[0], EDGES, separations=True, **options)
        assert_sums(result, all_pairs(a, b, None, **bins), product_of(wa, wb))


def test_derivatives_raise() -> None:
    def total(pos: jax.Array) -> jax.Array:
        result = pair_counts(pos, EDGES, separations=True).separation
        assert result is not None
        return result.words.sum()

    with pytest.raises(ValueError, match="has no derivative"):
        jax.grad(total)(points(50, 1))


def test_sum_out_of_range_raises() -> None:
    pos = points(150, 1) * np.float32(1e36)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="weights and separations is outside the range of float32; choose"):
        jax.block_until_ready(pair_counts.jit(pos, [0.0, 3e37], separations=True))
