"""Nearest neighbours of hard sets: ties, clumps, outliers, faces of the box, many orders of magnitude."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree.knn import knn
from knn.test_knn import N, assert_nearest

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("n", [10, 5000])
def test_all_points_equal(n: int, dtype: Any) -> None:
    pos = np.full((n, 3), 0.3, dtype)
    rad, idx = knn(jnp.asarray(pos), 8)
    np.testing.assert_array_equal(rad, 0)
    np.testing.assert_array_equal(idx, oracles.brute_knn(pos[:10], 8) if n == 10 else np.asarray(idx))
    np.testing.assert_array_equal(idx[20:, 0], np.arange(20, n))
    np.testing.assert_array_equal(idx[20:, 1:], np.broadcast_to(np.arange(7), (max(n - 20, 0), 7)))


def test_a_hundred_thousand_equal_points() -> None:
    rad, idx = knn(jnp.full((100_000, 3), 7.5), 8, boxsize=10.0)
    assert float(jnp.max(rad)) == 0
    assert int(idx[-1, 1]) == 0


def test_k_of_1_finds_each_particle_itself() -> None:
    # With an initial radius of 0, nothing is visited. (Visiting all nodes took 20 s for 1e6 points.)
    pos = jnp.asarray(oracles.uniform(400_000, 3, np.float32))
    for query in (None, pos):
        rad, idx = knn(pos, 1, part_query=query)
        assert float(jnp.max(rad)) == 0
        np.testing.assert_array_equal(idx[:, 0], np.arange(len(pos)))


@pytest.mark.parametrize("copies", [2, 8, 40, 100])
@pytest.mark.parametrize("more", [-1, 0, 1])
def test_as_many_duplicates_as_neighbours(copies: int, more: int, dtype: Any) -> None:
    pos = np.repeat(oracles.uniform(400 // copies, 3, dtype), copies, axis=0)
    rad, idx = knn(jnp.asarray(pos), copies + more, boxsize=1.0, output_order="z")
    assert np.all(np.asarray(rad[:, :copies]) == 0)
    assert np.all(np.asarray(rad[:, copies:]) > 0)
    # Copies are consecutive in z-order, so the nearest are the row itself and then the first of the others.
    rows = np.arange(len(pos))
    first = rows - rows % copies
    others = first[:, None] + np.arange(copies)
    others = np.concatenate([rows[:, None], others[others != rows[:, None]].reshape(len(pos), copies - 1)], axis=1)
    np.testing.assert_array_equal(idx[:, : copies + more][:, :copies], others[:, : copies + more])


@pytest.mark.parametrize("k", [33, 300])
@pytest.mark.parametrize("distance", [0.0, 1e3, 1e6])
def test_large_k_with_nearly_equal_distances(k: int, distance: float, dtype: Any) -> None:
    pos, query = oracles.uniform(2000, 3, dtype), oracles.uniform(40, 3, dtype, seed=9)
    query = (query * 1e-3 + distance).astype(dtype)
    rad, idx = knn(jnp.asarray(pos), k, part_query=jnp.asarray(query))
    oracles.assert_neighbours(rad, idx, pos, query, None)


def test_large_k_over_many_orders_of_magnitude(dtype: Any) -> None:
    rng = np.random.default_rng(4)
    pos = (oracles.uniform(1500, 3, dtype) * 10.0 ** rng.uniform(-12, 0, (1500, 1))).astype(dtype)
    assert_nearest(pos, pos[:50], 200, None)


def test_half_of_the_points_are_duplicates(dtype: Any) -> None:
    pos = oracles.uniform(N, 3, dtype)
    pos[1::2] = pos[0::2]
    rad, idx = knn(jnp.asarray(pos), 6, boxsize=1.0)
    oracles.assert_neighbours(rad, idx, pos, pos, 1.0)


@pytest.mark.parametrize("direction", [(1, 0, 0), (0, 0, 1), (1, 1, 1), (1, -0.3, 0.01)], ids=str)
def test_collinear_points(direction: tuple[float, ...], dtype: Any) -> None:
    pos = (oracles.uniform(N, 1, dtype) * np.array(direction)).astype(dtype)
    assert_nearest(pos, pos[::3] + dtype(0.25), 5, None)


@pytest.mark.parametrize("box", [1.0, 0.7, 37.5, 100.0])
def test_points_at_and_next_to_the_faces_of_the_box(box: float, x64: None) -> None:
    faces = np.array([0, 1e-15, -1e-15, 1e-9, -1e-9, 0.5, 1, 1 - 1e-15, 1 + 1e-15, 1 - 1e-9, 2, -1]) * box
    pos = np.stack(np.meshgrid(faces, faces, indexing="ij"), axis=-1).reshape(-1, 2)
    rad, idx = knn(jnp.asarray(pos), 30, boxsize=box)
    expected = np.sqrt(np.sort(oracles.squared_distances(pos, pos, box), axis=1)[:, :30])
    np.testing.assert_allclose(rad, expected, rtol=1e-14, atol=5e-16 * box)
    np.testing.assert_allclose(
        rad, oracles.pair_distances(pos, pos, np.asarray(idx), box), rtol=1e-14, atol=5e-16 * box
    )


def test_float32_points_at_and_next_to_the_faces_of_the_box() -> None:
    faces = np.array([0, 1e-9, -1e-9, 1e-6, -1e-6, 1, np.nextafter(np.float32(1), 0), 1 + 1e-6], np.float32) * 8
    pos = np.stack(np.meshgrid(faces, faces, faces, indexing="ij"), axis=-1).reshape(-1, 3)
    rad, idx = knn(jnp.asarray(pos), 30, boxsize=8.0)
    expected = np.sqrt(np.sort(oracles.squared_distances(pos, pos, 8.0), axis=1)[:, :30])
    np.testing.assert_allclose(rad, expected, atol=2e-6)
    np.testing.assert_allclose(rad, oracles.pair_distances(pos, pos, np.asarray(idx), 8.0), atol=2e-6)


@pytest.mark.parametrize("k", [4, 8])
@pytest.mark.parametrize("dims", [2, 3, 6])
def test_clump_at_a_corner_and_a_point_at_the_opposite_one(dims: int, k: int) -> None:
    """The box of their node spans the periodic box, and neighbours are nearer than it is rounded."""
    for seed in range(4):
        random = np.random.default_rng(seed)
        place = np.exp(random.normal(0, 3, (24, dims))) * 1e-11
        pos = np.where(random.random(place.shape) < 0.4, 1, place).astype(np.float32)
        pos[-1] = np.where(random.random(dims) < 0.5, 2e-7, 1 - 3e-7)
        expected = np.sqrt(np.sort(oracles.squared_distances(pos % 1, pos % 1, 1.0), axis=1)[:, :k])
        np.testing.assert_allclose(knn(jnp.asarray(pos), k, boxsize=1.0)[0], expected, rtol=1e-6)


def test_distances_across_the_boundary_have_full_relative_precision() -> None:
    tiny = np.float32(10) ** -np.arange(1, 9, dtype=np.float32)
    low = np.stack([tiny, np.full(8, 0.5, np.float32)], axis=1)
    high = np.stack([(np.float32(1) - tiny), np.full(8, 0.5, np.float32)], axis=1)
    pos = oracles.inside_box(np.concatenate([low, high]))
    rad, idx = knn(jnp.asarray(pos), 16, boxsize=1.0)
    oracles.assert_neighbours(rad, idx, pos, pos, 1.0)


@pytest.mark.parametrize("box", [0.1, 0.7, 67.77])
def test_box_that_float32_cannot_represent(box: float) -> None:
    """The exact length is used, so distances across the boundary are exact in float64."""
    random = np.random.default_rng(11)
    depth = 10 ** random.uniform(-7, -1, 200)
    pos = (np.where(random.random(200) < 0.5, depth, 1 - depth) * box).astype(np.float32)[:, None]
    pos = pos[pos[:, 0].astype(np.float64) < box]
    rad, idx = knn(jnp.asarray(pos), len(pos), boxsize=box)
    oracles.assert_neighbours(rad, idx, pos, pos, box)


@pytest.mark.parametrize("exponent", [3, 12, 18, 25, 37])
def test_one_far_outlier(exponent: int) -> None:
    pos = oracles.uniform(N, 3)
    pos[13] = 10.0**exponent
    rad, idx = knn(jnp.asarray(pos), 4)
    oracles.assert_neighbours(rad, idx, pos, pos)


@pytest.mark.parametrize("exponent", [12, 25, 37])
def test_one_far_query(exponent: int) -> None:
    pos, query = oracles.uniform(N, 3), oracles.uniform(40, 3, seed=5)
    query[13] = 10.0**exponent
    rad, idx = knn(jnp.asarray(pos), 4, part_query=jnp.asarray(query))
    oracles.assert_neighbours(rad, idx, pos, query)


def test_dynamic_range_of_1e12(dtype: Any) -> None:
    random = np.random.default_rng(12)
    direction = random.standard_normal((N, 3))
    pos = (direction * 10 ** random.uniform(-12, 0, (N, 1))).astype(dtype)
    assert_nearest(pos, pos[::5] * dtype(1.5), 7, None)


@pytest.mark.parametrize("exponent", [-85, -20, 1, 83, 100, 120])
@pytest.mark.parametrize("box", [0.0, 1.0], ids=["open", "periodic"])
def test_scaling_by_a_power_of_two_scales_every_bit(exponent: int, box: float) -> None:
    pos, scale = oracles.clustered(N, 3), np.float32(2) ** exponent
    pos = np.where(pos < 1e-4, np.float32(0.5), pos)
    rad, idx = knn(jnp.asarray(pos), 9, boxsize=box)
    scaled, same = knn(jnp.asarray(pos * scale), 9, boxsize=box * float(scale))
    np.testing.assert_array_equal(np.asarray(rad).astype(np.float64) * float(scale), np.asarray(scaled, np.float64))
    np.testing.assert_array_equal(idx, same)


@pytest.mark.parametrize("exponent", [-400, -160, -110, 110, 140, 400])
def test_float64_scaling_outside_the_range_of_float32(exponent: int, x64: None) -> None:
    """Box lengths pass through JAX as float32 words, which must keep the range of float64."""
    pos, scale = oracles.uniform(N, 3, np.float64), 2.0**exponent
    rad, idx = knn(jnp.asarray(pos), 9, boxsize=0.9)
    scaled, same = knn(jnp.asarray(pos * scale), 9, boxsize=0.9 * scale)
    np.testing.assert_array_equal(np.asarray(rad) * scale, scaled)
    np.testing.assert_array_equal(idx, same)


def test_query_that_needs_float64_does_not_change_other_queries() -> None:
    """Rounding of radii differs between float32 and float64, and must not depend on the leaf of a query."""
    pos = np.concatenate([oracles.uniform(40, 3), np.zeros((1, 3), np.float32)])
    query = oracles.uniform(20, 3, seed=5)
    nearest = np.full((1, 3), 1e-30, np.float32)
    alone = knn(jnp.asarray(pos), 6, part_query=jnp.asarray(query))
    rad, idx = knn(jnp.asarray(pos), 6, part_query=jnp.asarray(np.concatenate([query, nearest])))
    np.testing.assert_array_equal(rad[:20], alone[0])
    np.testing.assert_array_equal(idx[:20], alone[1])
    oracles.assert_neighbours(rad, idx, pos, np.concatenate([query, nearest]))


@pytest.mark.parametrize("unit", [1e25, 1e-25])
def test_float32_in_extreme_units(unit: float) -> None:
    pos = (oracles.uniform(N, 3) * unit).astype(np.float32)
    rad, idx = knn(jnp.asarray(pos), 6)
    oracles.assert_neighbours(rad, idx, pos, pos)
