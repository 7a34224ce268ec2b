"""Counts within a radius against brute force in float64 and against SciPy."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, even, joined, make, mesh_of, uneven
from scipy.spatial import cKDTree

from jztree import build_index
from jztree.config import RadiusConfig, TreeConfig
from jztree.data import ParticleData, Pos
from jztree.knn import knn
from jztree.radius import count_within

pytestmark = pytest.mark.emulated


def brute(
    pos: np.ndarray, query: np.ndarray, radius: Any, box: Any = None, weight: np.ndarray | None = None
) -> np.ndarray:
    """Return the number of particles within, or their total weight. radius: anything that broadcasts to (q, m)."""
    distance2 = oracles.squared_distances(query, pos, box)
    limit = np.asarray(radius, np.float64) ** 2
    if limit.ndim == 0:
        within = distance2 <= limit
    else:
        within = distance2[:, None] <= np.broadcast_to(limit, (len(query), limit.shape[-1]))[..., None]
    return within.sum(axis=-1) if weight is None else within @ weight.astype(np.float64)


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_equals_brute_force(dims: int, kind: str) -> None:
    box = oracles.box_lengths(kind, dims)
    pos, query = oracles.uniform(700, dims), oracles.uniform(90, dims, seed=4) * 1.4 - 0.2
    radius = 0.1 * dims
    np.testing.assert_array_equal(count_within(pos, radius, boxsize=box), brute(pos, pos, radius, box))
    radii = radius * np.array([0, 0.3, 1, 2.5])
    result = count_within.jit(pos, radii=radii, boxsize=box, queries=query)
    np.testing.assert_array_equal(result, brute(pos, query, radii, box))


@pytest.mark.long
@pytest.mark.parametrize("x64", [False, True])
def test_many_particles_equal_scipy(x64: bool) -> None:
    with jax.enable_x64(x64):
        pos = oracles.clustered(20_000, 3, np.float64 if x64 else np.float32) % 1
        tree = cKDTree(pos.astype(np.float64), boxsize=1)
        for radius in (1e-3, 0.03, 0.2, 0.9):
            expected = tree.query_ball_point(pos.astype(np.float64), radius, return_length=True)
            np.testing.assert_array_equal(count_within.jit(pos, radius, boxsize=1.0), expected)


def test_ties_at_the_radius_are_within() -> None:
    """The lattice spacing is not a binary number, so float64 distances are at the radius or differ by rounding."""
    pos = oracles.lattice(9, 3, spacing=0.1)
    for radius in (
        0.1,
        np.float32(0.1),
        jnp.bfloat16(0.1),
        np.nextafter(np.float64(np.float32(0.1)), 0),
        0.1 * np.sqrt(3),
        0.30000001,
    ):
        np.testing.assert_array_equal(count_within(pos, radius), brute(pos, pos, radius))
        np.testing.assert_array_equal(count_within(pos, radius, boxsize=0.9), brute(pos, pos, radius, 0.9))


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 1e8, 1e30])
def test_any_unit_of_length(scale: float) -> None:
    pos = (oracles.uniform(800, 3) * np.float32(scale)).astype(np.float32)
    pos[0] += np.float32(scale * 1e5)
    for radius in (0.0, 0.1 * scale, 2e5 * scale):
        np.testing.assert_array_equal(count_within(pos, radius), brute(pos, pos, radius))


@pytest.mark.parametrize("radius", [0.0, 1e-30, 0.5, np.inf])
def test_equal_points_and_padding(radius: float) -> None:
    """Nodes are counted as a whole: there would be 10^10 pairs."""
    pos = np.full((100_000, 3), 0.7, np.float32)
    np.testing.assert_array_equal(count_within(Pos(pos=pos, num=90_000), radius, boxsize=1.0)[:90_000], 90_000)
    np.testing.assert_array_equal(count_within(Pos(pos=pos, num=90_000), radius)[90_000:], 0)


@pytest.mark.parametrize("n", [0, 1, 2, 33])
def test_any_number_of_particles_and_queries(n: int) -> None:
    pos = oracles.uniform(n, 3)
    np.testing.assert_array_equal(count_within(pos, 0.4), brute(pos, pos, 0.4))
    for q in (0, 1, 5):
        query = oracles.uniform(q, 3, seed=3)
        np.testing.assert_array_equal(count_within(pos, radii=[0.4, 0.8], queries=query), brute(pos, query, [0.4, 0.8]))
    assert count_within(Pos(pos=pos, num=0), 0.4).shape == (n,)


@pytest.mark.aarch64
@pytest.mark.core
def test_radii_per_query() -> None:
    pos, query = oracles.clustered(3_000, 3), oracles.uniform(200, 3, seed=3)
    lengths = np.random.default_rng(0).random(200) * 0.3
    result = count_within.jit(pos, lengths, queries=query)
    np.testing.assert_array_equal(result, brute(pos, query, lengths[:, None])[:, 0])
    ladder = lengths[:, None] * [0.1, 1, 1, 2]
    np.testing.assert_array_equal(count_within(pos, radii=ladder, queries=query), brute(pos, query, ladder))
    # Every query has all radii, even if there are as many radii as queries.
    result = count_within(pos, radii=[0.1, 0.2], queries=query[:2])
    np.testing.assert_array_equal(result, brute(pos, query[:2], [0.1, 0.2]))


@pytest.mark.long
@pytest.mark.parametrize("shape", [(), (2,)])
def test_radii_of_padding_rows_are_ignored(shape: tuple[int, ...]) -> None:
    pos, radius = oracles.uniform(40, 3), np.full((40, *shape), 0.1)
    radius[30:] = np.nan
    padded = np.where(np.arange(40)[:, None] < 30, pos, np.float32(np.nan))
    expected = np.r_[brute(pos[:30], pos[:30], radius[:30].reshape(30, -1)), np.zeros((10, len(radius[0].ravel())))]
    name = "radii" if shape else "radius"
    for call in (count_within, count_within.jit, jax.jit(count_within)):
        result = call(ParticleData(pos=padded, num=30), **{name: radius})
        np.testing.assert_array_equal(result, expected.reshape(radius.shape))
    stacked = ParticleData(pos=np.stack([padded, padded]), num=np.array([30, 0]))
    per_device = np.stack([radius, np.full_like(radius, -1)])
    result = count_within.smap(mesh_of(2), jit=True)(stacked, **{name: per_device})
    np.testing.assert_array_equal(result[0], expected.reshape(radius.shape))
    assert not np.any(result[1])


@pytest.mark.watched
@pytest.mark.parametrize("box", [None, 1.0])
def test_weights(box: Any) -> None:
    pos, rng = oracles.clustered(2_000, 3), np.random.default_rng(0)
    if box:
        pos = pos % np.float32(1)
    weight = rng.normal(size=2_000)
    with jax.enable_x64(True):
        result = count_within.jit(pos.astype(np.float64), radii=[0.01, 0.2, 3.0], boxsize=box, weights=weight)
    expected = brute(pos, pos, [0.01, 0.2, 3.0], box, weight)
    np.testing.assert_allclose(result, expected, rtol=0, atol=1e-12 * np.abs(weight).sum())
    np.testing.assert_allclose(
        count_within(pos, 0.2, boxsize=box, weights=weight.astype(np.float32)), expected[:, 1], rtol=1e-6, atol=1e-4
    )


def test_weights_without_particles() -> None:
    query, nothing = oracles.uniform(9, 3), np.zeros((0, 3), np.float32)
    result = count_within(nothing, radii=[0.1, 0.2], queries=query, weights=np.zeros(0, np.float32))
    np.testing.assert_array_equal(result, np.zeros((9, 2), np.float32))


def test_index_with_a_small_hierarchy() -> None:
    pos, weight = oracles.clustered(2_000, 3), np.random.default_rng(4).integers(1, 9, 2_000).astype(np.float32)
    index = build_index.jit(Pos(pos=pos), cfg=TreeConfig(leaf_size=7, fan_out=3))
    result = count_within.jit(index, 0.05, weights=weight)
    np.testing.assert_array_equal(result, brute(pos, pos, 0.05, weight=weight))


@pytest.mark.parametrize("leaf_size", [2, 100])
def test_any_hierarchy(leaf_size: int) -> None:
    pos = oracles.clustered(2_000, 2)
    cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=2))
    np.testing.assert_array_equal(count_within(pos, radii=[0.01, 0.1], cfg=cfg), brute(pos, pos, [0.01, 0.1]))


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("name", SETS)
def test_counts_are_those_of_one_device(name: str, ndev: int) -> None:
    pos, counts, stacked = make(name, ndev)
    mapped = count_within.smap(mesh_of(ndev), jit=True)
    radii = SETS[name][2] * np.array([0.5, 1.0])
    for box in (None, 1.0) if "outlier" not in name else (None,):
        result = joined(mapped(stacked, radii=radii, boxsize=box), counts)
        np.testing.assert_array_equal(result, brute(pos, pos, radii, box))


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_queries_and_weights_over_devices(ndev: int) -> None:
    rng = np.random.default_rng(2)
    pos, query = oracles.clustered(1_000, 3), oracles.uniform(300, 3, seed=9)
    weight, radii = rng.integers(1, 9, 1_000).astype(np.float32), rng.random(300) * 0.4
    of_sources, of_queries = uneven(1_000, ndev), even(300, ndev)
    part, asking = deal(pos, of_sources), deal(query, of_queries, 300)
    spread = np.zeros(part.pos.shape[:2], np.float32)
    reach = np.zeros(asking.pos.shape[:2])
    for rank, (sample, few) in enumerate(
        zip(np.split(weight, np.cumsum(of_sources)[:-1]), np.split(radii, np.cumsum(of_queries)[:-1]), strict=True)
    ):
        spread[rank, : len(sample)], reach[rank, : len(few)] = sample, few
    mapped = count_within.smap(mesh_of(ndev), jit=True)
    result = joined(mapped(part, reach, queries=asking), of_queries)
    np.testing.assert_array_equal(result, brute(pos, query, radii[:, None])[:, 0])
    result = joined(mapped(part, 0.2, weights=spread), of_sources)
    np.testing.assert_array_equal(result, brute(pos, pos, 0.2, weight=weight))
    everything = joined(mapped(part, np.inf, queries=asking), of_queries)
    np.testing.assert_array_equal(everything, 1_000)


@pytest.mark.long
@pytest.mark.parametrize("ndev", [1, 2])
def test_radius_per_query_over_devices_without_num(ndev: int) -> None:
    """Here the first axis of positions is over devices, and is not a number of particles."""
    pos, lengths = oracles.uniform(60, 3), np.linspace(0, 1, 60)
    stacked, reach = pos.reshape(ndev, -1, 3), lengths.reshape(ndev, -1)
    expected = brute(pos, pos, lengths[:, None])[:, 0]
    result = count_within.smap(mesh_of(ndev), jit=True)(stacked, reach)
    np.testing.assert_array_equal(np.ravel(result), expected)
    result = count_within.smap(mesh_of(ndev), jit=True)(Pos(pos=stacked), radii=reach[..., None] * [0.5, 1])
    np.testing.assert_array_equal(result[..., 1].ravel(), expected)
    radius, _ = knn.smap(mesh_of(ndev), jit=True)(stacked, 60, max_radius=reach)
    np.testing.assert_array_equal(np.isfinite(radius).sum(axis=-1).ravel(), expected)


@pytest.mark.parametrize(
    ("radius", "words"),
    [
        (-0.1, "at least 0"),
        (np.nan, "not NaN"),
        ([0.2, 0.1], "ascend"),
        (np.ones((3, 2)), "its shape is"),
        ([], "its shape is"),
        ("0.1", "radius"),
        (0.1j, "radius"),
    ],
)
@pytest.mark.parametrize("call", [count_within, count_within.jit])
def test_invalid_radii_raise(radius: Any, words: str, call: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(oracles.uniform(50, 3), radius)


@pytest.mark.parametrize("radius", [-1.0, np.nan, [0.2, 0.1]])
def test_invalid_traced_radii_raise(radius: Any) -> None:
    with pytest.raises(Exception, match="radi"):
        jax.jit(count_within)(oracles.uniform(50, 3), jnp.asarray(radius)).block_until_ready()


def test_invalid_weights_raise() -> None:
    pos = oracles.uniform(50, 3)
    with pytest.raises(ValueError, match="one number per particle"):
        count_within(pos, 0.1, weights=np.ones(49))
    for bad in (np.nan, np.inf, 1e38):
        weight = np.ones(50, np.float32)
        weight[7] = bad
        with pytest.raises(Exception, match="row 7 has a weight"):
            count_within.jit(pos, 0.1, weights=weight).block_until_ready()
    with pytest.raises(Exception, match="outside the range"):
        count_within.jit(pos, 9.0, weights=np.full(50, 3e37, np.float32)).block_until_ready()
    with pytest.raises(Exception, match="NaN or infinite"):
        count_within.jit(pos * np.nan, 0.1).block_until_ready()


def test_sums_have_no_derivative() -> None:
    """Differentiation must raise an error instead of returning 0."""
    pos = oracles.uniform(50, 3)
    with pytest.raises(ValueError, match="derivative"):
        jax.grad(lambda w: count_within(pos, 0.1, weights=w).sum())(np.ones(50, np.float32))
