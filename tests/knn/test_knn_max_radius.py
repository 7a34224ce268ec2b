"""The nearest neighbours within a radius, compared with brute force in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, even, joined, make, mesh_of, uneven

from jztree.data import ParticleData, Pos
from jztree.knn import knn
from jztree.radius import count_within
from jztree.tree import zsort, zsort_and_tree

pytestmark = pytest.mark.emulated


def assert_limited(result: Any, pos: np.ndarray, query: np.ndarray, radius: Any, box: Any = None) -> None:
    """Assert that every row has the nearest or all sources within the radius, and nothing else."""
    distance2 = oracles.squared_distances(query, pos, box)
    within = distance2 <= np.broadcast_to(np.asarray(radius, np.float64) ** 2, len(query))[:, None]
    oracles.assert_nearest(result, pos, query, within, box)


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_equals_brute_force(dims: int, kind: str, dtype: Any) -> None:
    box = oracles.box_lengths(kind, dims)
    pos, query = oracles.uniform(400, dims, dtype), oracles.uniform(90, dims, dtype, seed=4) * 1.4 - dtype(0.2)
    assert_limited(knn(pos, 6, box, max_radius=0.1 * dims), pos, pos, 0.1 * dims, box)
    radii = np.random.default_rng(1).random(90) * 0.2 * dims
    assert_limited(knn.jit(pos, 6, box, part_query=query, max_radius=radii), pos, query, radii, box)


@pytest.mark.watched("float32-0.2-8", "float32-0.2-33", "float64-0.2-300")
@pytest.mark.parametrize("k", [1, 2, 8, 9, 17, 33, 65, 300, 1000])
@pytest.mark.parametrize("radius", [0.0, 0.01, 0.2, 5.0, np.inf])
def test_any_k_and_radius(k: int, radius: float, dtype: Any) -> None:
    """k may exceed the number of particles."""
    pos = oracles.clustered(700, 3, dtype)
    assert_limited(knn(pos, k, 1.0, max_radius=radius), pos, pos, radius, 1.0)
    query = oracles.uniform(40, 3, dtype, seed=9)
    assert_limited(knn(pos, k, max_radius=radius, part_query=query), pos, query, radius)


@pytest.mark.parametrize("k", [3, 20, 40, 100])
@pytest.mark.parametrize("unit", [1.0, 1e-25, 1e25])
def test_many_sources_just_inside_and_outside_max_radius(k: int, unit: float) -> None:
    """Sources just outside in float64 do not replace those just inside, in any order of float32."""
    rng = np.random.default_rng(3)
    ray = rng.standard_normal((2000, 3))
    ray /= np.linalg.norm(ray, axis=1)[:, None]
    pos = np.concatenate([0.3 * ray * rng.choice([1, 1 + 3e-8, 1 - 3e-8], 2000)[:, None], rng.random((5, 3)) * 9])
    pos, query = (pos * unit).astype(np.float32), np.zeros((3, 3), np.float32)
    radius = 0.3 * unit
    inside = int((oracles.squared_distances(query[:1], pos) <= radius**2).sum())
    assert 100 < inside < 1900
    assert_limited_in_units(knn(pos, k, part_query=query, max_radius=radius), pos, query, radius, unit)


def assert_limited_in_units(result: Any, pos: np.ndarray, query: np.ndarray, radius: float, unit: float) -> None:
    rad = (np.asarray(result[0], np.float64) / unit).astype(result[0].dtype)
    assert_limited((rad, result[1]), pos.astype(np.float64) / unit, query, radius / unit)


@pytest.mark.parametrize("box", [None, 8.0])
@pytest.mark.parametrize("radius", [1.0, np.nextafter(1.0, 0), np.nextafter(1.0, 2), np.sqrt(2.0), 0.0])
def test_lattice_with_neighbours_at_max_radius(box: Any, radius: float, dtype: Any) -> None:
    pos = oracles.lattice(8, 3, dtype)
    assert_limited(knn(pos, 40, box, max_radius=radius), pos, pos, radius, box)
    at_once = count_within(pos, radius, boxsize=box)
    np.testing.assert_array_equal((knn(pos, 40, box, max_radius=radius)[1] >= 0).sum(axis=1), at_once)


def test_neighbours_closer_than_float32_squares() -> None:
    """Such sources are searched again in float64, with the same limit."""
    rng = np.random.default_rng(5)
    pos = np.concatenate([rng.random((300, 3)) * 1e-30, rng.random((300, 3))]).astype(np.float32)
    for radius in (3e-31, 1e-30, 1e-3, 0.2):
        rad, idx = knn(pos, 12, max_radius=radius)
        is_near = np.flatnonzero(np.asarray(count_within(pos, radius)) < 12)
        assert len(is_near) > 0
        within = oracles.squared_distances(pos, pos) <= radius**2
        np.testing.assert_array_equal((np.asarray(idx) >= 0).sum(axis=1), np.minimum(within.sum(axis=1), 12))
        row, column = np.nonzero(np.asarray(idx) >= 0)
        assert within[row, np.asarray(idx)[row, column]].all()
        assert (np.asarray(rad)[row, column] <= radius * (1 + 1e-6)).all()


def test_positions_outside_the_box() -> None:
    pos = (oracles.uniform(300, 3) * 9 - 4).astype(np.float32)
    assert_limited(knn(pos, 5, 1.0, max_radius=0.11), pos, pos, 0.11, 1.0)


@pytest.mark.parametrize("n", [1, 2, 33])
def test_few_particles_and_queries(n: int) -> None:
    pos = oracles.uniform(n, 3)
    for call in (knn, knn.jit):
        assert_limited(call(pos, 4, max_radius=0.4), pos, pos, 0.4)
        for q in (0, 1, 5):
            query = oracles.uniform(q, 3, seed=3)
            assert_limited(call(pos, 4, part_query=query, max_radius=0.4), pos, query, 0.4)
            assert_limited(call(pos, 4, part_query=query, max_radius=np.full(q, 0.4)), pos, query, 0.4)
    empty = knn(np.zeros((0, 3), np.float32), 2, part_query=pos, max_radius=1.0)
    assert_limited(empty, np.zeros((0, 3)), pos, 1.0)


@pytest.mark.watched
@pytest.mark.parametrize("order", ["input", "z"])
@pytest.mark.parametrize("separate", [False, True])
def test_max_radius_per_query_in_all_orders(order: str, separate: bool) -> None:
    pos, query = oracles.clustered(500, 3), oracles.uniform(500, 3, seed=7)
    asked, radii = (query if separate else pos), np.random.default_rng(2).random(500) * 0.3
    options = {"part_query": asked} if separate else {}
    rad, idx = knn(pos, 6, 1.0, max_radius=radii, **options)
    assert_limited((rad, idx), pos, asked, radii, 1.0)

    def near(rnn: Any, inn: Any, **_: Any) -> Any:
        return jnp.where(inn < 0, -1.0, rnn)

    result = knn.jit(
        pos, 6, 1.0, result="rad_reduce_queryidx", reduce_func=near, output_order=order, max_radius=radii, **options
    )
    whose = np.asarray(result[2].idx)
    np.testing.assert_array_equal(result[0], np.asarray(rad)[whose])
    np.testing.assert_array_equal(result[1], np.where(np.isinf(rad), -1, rad)[whose])


def test_properties_of_missing_neighbours() -> None:
    """They are 0, so that sums over a row are sums over the neighbours within the radius."""
    pos = oracles.uniform(200, 3)
    part = ParticleData(pos=pos, mass=np.arange(1, 201, dtype=np.float32), id=np.arange(200) + 5, num=180)
    rank, nearest, mass, number = knn(part, 7, result="rankidx_part_mass_id", max_radius=0.2)
    missing = np.asarray(rank.idx) < 0
    assert missing[:180].any()
    assert not missing[:180].all()
    np.testing.assert_array_equal(np.asarray(rank.rank), np.where(missing, -1, 0))
    assert missing[180:].all()
    for column in (nearest.mass, mass, number, nearest.pos[..., 0]):
        np.testing.assert_array_equal(np.asarray(column)[missing], 0)
    np.testing.assert_array_equal(np.asarray(number)[~missing], np.asarray(rank.idx)[~missing] + 5)


def test_padding_and_a_hierarchy() -> None:
    pos = oracles.clustered(400, 3)
    result = knn(Pos(pos=pos, num=300), 5, max_radius=0.05)
    assert_limited([part[:300] for part in result], pos[:300], pos[:300], 0.05)
    assert np.isinf(result[0][300:]).all()
    partz, th = zsort_and_tree.jit(Pos(pos=pos))
    posz = np.asarray(partz.pos)
    assert_limited(knn.jit(partz, 5, th=th, max_radius=0.05), posz, posz, 0.05)
    assert_limited(knn(zsort(pos)[0], 5, output_order="z", max_radius=0.05), posz, posz, 0.05)


def test_traced_max_radius() -> None:
    pos = oracles.uniform(200, 3)
    search = jax.jit(lambda x, r: knn(x, 5, max_radius=r))
    for radius in np.float32([0.0, 0.1, 0.3, np.inf]):
        assert_limited(search(pos, radius), pos, pos, radius)
    radii = np.float32(np.random.default_rng(0).random(200) * 0.3)
    assert_limited(search(pos, radii), pos, pos, radii)
    for wrong in (np.float32(-1), np.float32(np.nan)):
        with pytest.raises(oracles.RUN_TIME_ERROR, match="max_radius is negative or NaN"):
            jax.block_until_ready(search(pos, wrong))


@pytest.mark.parametrize("call", [knn, knn.jit])
def test_k_above_the_largest_row_length_raises(call: Any) -> None:
    with pytest.raises(ValueError, match="k is 2147483648; it must be below"):
        call(oracles.uniform(50, 3), 2**31, max_radius=0.1)


@pytest.mark.parametrize("box", [None, 1.0])
def test_derivatives_use_only_neighbours_within_max_radius(box: Any) -> None:
    with jax.enable_x64(True):
        pos = oracles.uniform(60, 3, np.float64)
        weight = np.random.default_rng(0).random((60, 8))

        def total(pos: Any, length: Any) -> Any:
            return jnp.sum(
                jnp.where(jnp.isfinite(rad := knn(pos, 8, length, result="rad", max_radius=0.3)), weight * rad, 0)
            )

        oracles.assert_slopes(total, (pos, box or 0.0), (0, 1) if box else (0,), 1e-6)


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("name", SETS)
def test_several_devices_give_the_results_of_one(name: str, ndev: int) -> None:
    pos, counts, stacked = make(name, ndev)
    search = knn.smap(mesh_of(ndev), jit=True)
    for radius in (SETS[name][2], np.inf):
        result, here = search(stacked, 1300, max_radius=radius) if len(pos) < 50 else None, None
        result = result or search(stacked, 9, max_radius=radius)
        here = knn(pos, result[0].shape[-1], max_radius=radius)
        for value, reference in zip(result, here, strict=True):
            np.testing.assert_array_equal(joined(value, counts), reference)


@pytest.mark.long
@pytest.mark.parametrize("result", ["rad_globalidx", "rad_id"])
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_queries_over_devices(ndev: int, result: str) -> None:
    pos, query = oracles.clustered(1_000, 3), oracles.uniform(300, 3, seed=9)
    of_sources, of_queries = uneven(1_000, ndev), even(300, ndev)
    radii = (np.random.default_rng(2).random(300) * 0.4).astype(np.float32)
    radii[::7] = np.inf
    reach = np.zeros((ndev, 300), np.float32)
    for rank, few in enumerate(np.split(radii, np.cumsum(of_queries)[:-1])):
        reach[rank, : len(few)] = few
    search = knn.smap(mesh_of(ndev), jit=True)
    results = search(deal(pos, of_sources), 9, 1.0, None, deal(query, of_queries, 300), result, max_radius=reach)
    sources = ParticleData(pos=pos, id=np.arange(1_000))
    here = knn(sources, 9, 1.0, None, query, result, max_radius=radii)
    for value, reference in zip(results, here, strict=True):
        np.testing.assert_array_equal(joined(value, of_queries), reference)


def test_z_order_over_devices() -> None:
    """Limits move with the particles to other devices."""
    pos = oracles.clustered(900, 3)
    radii = np.float32(np.random.default_rng(1).random(900) * 0.1)
    mapped = knn.smap(mesh_of(3), jit=True)
    rad, whose = mapped(
        deal(pos, even(900, 3), 300), 6, result="rad_queryidx", output_order="z", max_radius=radii.reshape(3, 300)
    )
    row = np.asarray(whose.rank) * 300 + np.asarray(whose.idx)
    here = knn(pos, 6, result="rad", max_radius=radii)
    np.testing.assert_array_equal(np.asarray(rad).reshape(-1, 6), np.asarray(here)[row.reshape(-1)])


def test_subnormal_distances_over_several_devices() -> None:
    """XLA flushes them to 0, so neighbours on other devices were not requested."""
    pos = (oracles.uniform(300, 1) * np.float32(1e-38)).astype(np.float32)
    result = knn.smap(mesh_of(3), jit=True)(deal(pos, even(300, 3)), 5, max_radius=5e-39)
    for value, reference in zip(result, knn(pos, 5, max_radius=5e-39), strict=True):
        np.testing.assert_array_equal(joined(value, even(300, 3)), reference)


@pytest.mark.parametrize("find", [knn, knn.jit, jax.jit(knn, static_argnames=("k", "allow_missing"))])
def test_missing_neighbours_are_allowed_on_request(find: Any) -> None:
    pos = jnp.asarray(np.random.default_rng(2).random((5, 3)), jnp.float32)
    radius, row = find(pos, k=8, allow_missing=True)
    want, rows = knn(pos, k=5)
    np.testing.assert_array_equal(radius[:, :5], want)
    np.testing.assert_array_equal(row[:, :5], rows)
    assert np.isinf(radius[:, 5:]).all()
    assert (np.asarray(row)[:, 5:] == -1).all()
