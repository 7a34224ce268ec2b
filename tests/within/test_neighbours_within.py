"""Lists of neighbours within a radius against brute force in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, even, joined, make, mesh_of, uneven

import jztree as jz
from jztree import build_index
from jztree.config import RadiusConfig, TreeConfig
from jztree.data import Pos
from jztree.radius import NeighbourLists, neighbours_within
from jztree.tree import zsort
from jztree.within._listing import _in_digits

pytestmark = pytest.mark.emulated


def assert_lists(result: Any, pos: np.ndarray, query: np.ndarray, radius: Any, box: Any = None) -> None:
    """Assert that every list has all rows within the radius, each once, with their distances."""
    distance2 = oracles.squared_distances(query, pos, box)
    within = distance2 <= np.broadcast_to(np.asarray(radius, np.float64) ** 2, len(query))[:, None]
    splits, total = np.asarray(result.splits), int(within.sum())
    np.testing.assert_array_equal(splits, np.r_[0, np.cumsum(within.sum(axis=1))])
    row, index, distance = result.query(), np.asarray(result.index), np.asarray(result.distance)
    np.testing.assert_array_equal(row[:total], np.repeat(np.arange(len(query)), within.sum(axis=1)))
    order = np.lexsort((index[:total], row[:total]))
    np.testing.assert_array_equal(index[:total][order], np.nonzero(within)[1])
    exact = np.sqrt(distance2[row[:total], index[:total]])
    np.testing.assert_allclose(distance[:total], exact, rtol=2 * np.finfo(distance.dtype).eps, atol=0)
    assert (index[total:] == -1).all()
    assert np.isinf(distance[total:]).all()
    assert (np.asarray(row)[total:] == -1).all()


@pytest.mark.long
@pytest.mark.parametrize("dims", [3, 1, 2, *range(4, 9)])
@pytest.mark.parametrize("kind", ["mixed", "periodic", "open"])
def test_equals_brute_force(dims: int, kind: str) -> None:
    box = oracles.box_lengths(kind, dims)
    pos, query = oracles.uniform(400, dims), oracles.uniform(90, dims, seed=4) * 1.4 - 0.2
    assert_lists(neighbours_within(pos, 0.1 * dims, boxsize=box), pos, pos, 0.1 * dims, box)
    radii = np.random.default_rng(1).random(90) * 0.2 * dims
    assert_lists(neighbours_within.jit(pos, radii, boxsize=box, queries=query), pos, query, radii, box)


@pytest.mark.aarch64
@pytest.mark.core
@pytest.mark.parametrize("x64", [False, True])
def test_order_of_lists(x64: bool) -> None:
    """Lists are ordered by distance, or by the z-order of the sources, which also orders equal distances."""
    with jax.enable_x64(x64):
        pos = oracles.lattice(8, 3, np.float64 if x64 else np.float32)
        place = oracles.inverse(np.asarray(zsort(pos)[1]))
        plain, sorted_ = neighbours_within(pos, 1.5), neighbours_within.jit(pos, 1.5, nearest_first=True)
    assert_lists(plain, pos, pos, 1.5)
    assert_lists(sorted_, pos, pos, 1.5)
    total = int(plain.splits[-1])
    keys = [(plain.query(), place[plain.index]), (sorted_.query(), sorted_.distance, place[sorted_.index[:total]])]
    for result, key in zip((plain, sorted_), keys, strict=True):
        order = np.lexsort([np.asarray(column)[:total] for column in key[::-1]])
        np.testing.assert_array_equal(order, np.arange(total), err_msg=str(result))


@pytest.mark.long
def test_long_lists_among_short_ones() -> None:
    """The results of a group of queries are cached only while its lists are short."""
    crowd, few = oracles.uniform(800, 3) * 0.01 + 0.5, oracles.uniform(300, 3, seed=7)
    pos = np.concatenate([crowd, few]).astype(np.float32)[np.random.default_rng(3).permutation(1100)]
    radii = np.random.default_rng(4).choice([0.004, 0.05, 1.0], 1100)
    for radius in (0.02, radii):
        assert_lists(neighbours_within(pos, radius, boxsize=1.0), pos, pos, radius, 1.0)
        assert_lists(neighbours_within.jit(pos, radius, nearest_first=True), pos, pos, radius)


def test_distances_across_many_boxes() -> None:
    """Shifts by whole boxes change nothing, even if there are so many that a difference would lose digits."""
    with jax.enable_x64(True):
        rng = np.random.default_rng(8)
        pos = rng.integers(0, 1024, (500, 3)) / 1024
        for max_distance in (1, 2**10, 2**30):
            moved = pos + rng.integers(-max_distance, max_distance + 1, pos.shape)
            result, here = neighbours_within(moved, 0.2, boxsize=1.0), neighbours_within(pos, 0.2, boxsize=1.0)
            assert_lists(result, pos, pos, 0.2, 1.0)
            np.testing.assert_array_equal(result.index, here.index)
            np.testing.assert_array_equal(result.distance, here.distance)


@pytest.mark.long
@pytest.mark.parametrize("n", [0, 1, 2, 33])
def test_any_number_of_particles_and_queries(n: int) -> None:
    pos = oracles.uniform(n, 3)
    for call in (neighbours_within, neighbours_within.jit):
        assert_lists(call(pos, 0.4), pos, pos, 0.4)
        for q in (0, 1, 5):
            query = oracles.uniform(q, 3, seed=3)
            assert_lists(call(pos, 0.4, queries=query), pos, query, 0.4)


@pytest.mark.long
def test_padding_has_no_neighbours() -> None:
    pos = oracles.uniform(300, 3)
    result = neighbours_within(Pos(pos=pos, num=200), 0.3)
    assert_lists(
        NeighbourLists(splits=result.splits[:201], index=result.index, distance=result.distance), *[pos[:200]] * 2, 0.3
    )
    assert (np.asarray(result.count())[200:] == 0).all()


@pytest.mark.long
def test_zero_and_infinite_radii() -> None:
    pos = np.repeat(oracles.uniform(30, 3), 3, axis=0)
    for radius in (0.0, np.inf):
        assert_lists(neighbours_within(pos, radius, boxsize=1.0), pos, pos, radius, 1.0)


@pytest.mark.long
def test_index_and_leaf_sizes() -> None:
    posz = np.asarray(zsort(oracles.clustered(700, 3))[0])
    index = build_index.jit(posz, cfg=TreeConfig(leaf_size=5))
    assert_lists(neighbours_within.jit(index, 0.05), posz, posz, 0.05)
    assert_lists(neighbours_within(posz, 0.05, cfg=RadiusConfig(tree=TreeConfig(leaf_size=90))), posz, posz, 0.05)


@pytest.mark.long
def test_default_capacity_grows() -> None:
    """Radii far exceed the radii that the initial capacity suffices for. One compiled function serves several radii."""
    pos = oracles.uniform(500, 3)
    for radius in (0.1, 0.9, 0.3):
        result = neighbours_within.jit(pos, radius)
        assert_lists(result, pos, pos, radius)
    assert result.index.shape[0] > int(result.splits[-1])
    assert neighbours_within(pos, 0.9).index.shape[0] == int(neighbours_within(pos, 0.9).splits[-1])


@pytest.mark.long
def test_explicit_capacity_is_kept() -> None:
    pos = oracles.uniform(200, 3)
    need = int(neighbours_within(pos, 0.5).splits[-1])
    for call in (neighbours_within, neighbours_within.jit):
        assert_lists(call(pos, 0.5, capacity=need), pos, pos, 0.5)
        assert call(pos, 0.5, capacity=need + 7).index.shape == (need + 7,)
        with pytest.raises(Exception, match=f"{need} rows of neighbours, but has capacity for {need - 1}"):
            jax.block_until_ready(call(pos, 0.5, capacity=need - 1))
        with pytest.raises(jz.CapacityError, match=r"^(jztree: )?rank 0 needs .*give that capacity or more\.$"):
            call(pos, 0.5, capacity=3)


def test_inside_a_user_function() -> None:
    pos = oracles.uniform(200, 3)
    result = jax.jit(lambda x, r: neighbours_within(x, r, capacity=9000))(pos, jnp.float32(0.3))
    assert_lists(result, pos, pos, np.float32(0.3))
    with pytest.raises(Exception, match="give that capacity or more"):
        jax.block_until_ready(jax.jit(neighbours_within)(pos, 2.0))


def test_more_neighbours_than_int32_counts() -> None:
    """The error occurs before any list is made."""
    pos = np.zeros((50_000, 3), np.float32)
    with pytest.raises(
        ValueError, match=r"there are 2,500,000,000 neighbours, but a list must have fewer than 2\*\*31"
    ):
        neighbours_within(pos, 0.5)
    with pytest.raises(Exception, match=r"there are about 2\.5 \* 10\*\*9 neighbours, but a list must have fewer"):
        jax.block_until_ready(neighbours_within.jit(pos, 0.5))


@pytest.mark.parametrize(
    ("number", "digits"),
    [
        (2**31, [2, 1, 9]),
        (9_940_000_000, [9, 9, 9]),
        (9_960_000_000, [1, 0, 10]),
        (10_000_000_000, [1, 0, 10]),
        (123_456_789_012_345, [1, 2, 14]),
        (2**62 - 1, [4, 6, 18]),
    ],
)
def test_digits_of_numbers_above_int32(number: int, digits: list[int]) -> None:
    assert [int(array) for array in _in_digits(jnp.asarray(divmod(number, 2**31), jnp.int32))] == digits


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"radius": [0.1, 0.2]}, "one per query"),
        ({"radius": 0.1, "queries": np.zeros((3, 2), np.float32)}, "must have the same number of dimensions"),
    ],
)
@pytest.mark.parametrize("call", [neighbours_within, neighbours_within.jit])
def test_invalid_arguments_raise(options: Any, words: str, call: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(oracles.uniform(50, 3), **options)


@pytest.mark.long
@pytest.mark.parametrize("box", [1.0, None])
def test_derivatives_of_distances(box: Any) -> None:
    """Compare with finite differences in float64, at fixed membership, also by the box."""
    with jax.enable_x64(True):
        pos, query = oracles.uniform(40, 3, np.float64), oracles.uniform(20, 3, np.float64, seed=6)
        weight = np.random.default_rng(0).random(400)

        def total(pos: Any, query: Any, length: Any) -> Any:
            result = neighbours_within(pos, 0.3, boxsize=length, queries=query, capacity=400)
            return jnp.sum(jnp.where(result.index < 0, 0, weight * result.distance))

        oracles.assert_slopes(total, (pos, query, box or 0.0), (0, 1, 2) if box else (0, 1), 1e-6)


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("name", SETS)
def test_lists_on_several_devices_equal_those_of_one(name: str, ndev: int) -> None:
    pos, counts, stacked = make(name, ndev)
    radius = SETS[name][2]
    result = neighbours_within.smap(mesh_of(ndev), jit=True)(stacked, radius, nearest_first=True)
    here = neighbours_within(pos, radius, nearest_first=True)
    assert_same(result, here, counts)


def assert_same(result: Any, here: Any, counts: np.ndarray) -> None:
    """Assert that the joined lists of the queries on all ranks, ``counts`` on each, equal the lists of one device."""
    numbers = joined(jax.vmap(jnp.diff)(result.splits), counts)
    np.testing.assert_array_equal(numbers, np.diff(here.splits))
    lengths = np.asarray(result.splits)[:, -1]
    np.testing.assert_array_equal(joined(result.index, lengths), here.index)
    np.testing.assert_array_equal(joined(result.distance, lengths), here.distance)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_queries_over_devices(ndev: int) -> None:
    pos, query = oracles.clustered(1_000, 3), oracles.uniform(300, 3, seed=9)
    of_sources, of_queries = uneven(1_000, ndev), even(300, ndev)
    radii = (np.random.default_rng(2).random(300) * 0.4).astype(np.float32)
    reach = np.zeros((ndev, 300), np.float32)
    for rank, few in enumerate(np.split(radii, np.cumsum(of_queries)[:-1])):
        reach[rank, : len(few)] = few
    mapped = neighbours_within.smap(mesh_of(ndev), jit=True)
    result = mapped(deal(pos, of_sources), reach, boxsize=1.0, queries=deal(query, of_queries, 300))
    assert_same(result, neighbours_within(pos, radii, boxsize=1.0, queries=query), of_queries)


@pytest.mark.long
def test_all_queries_and_all_particles_on_one_device_need_no_capacity() -> None:
    pos, query = oracles.uniform(12, 3) + np.float32(5), oracles.uniform(12, 3, seed=2) * np.float32(1e-3)
    counts, part = even(12, 3), [deal(given, even(12, 3), 4) for given in (pos, query)]
    result = neighbours_within.smap(mesh_of(3), jit=True)(part[0], np.inf, queries=part[1])
    # The device that searches for 8 of the queries needs more entries than 4 queries have neighbours.
    np.testing.assert_array_equal(joined(np.diff(result.splits), counts), np.full(12, 12))
    here = neighbours_within(pos, np.inf, queries=query)
    index = np.concatenate([row[: splits[-1]] for row, splits in zip(result.index, result.splits, strict=True)])
    np.testing.assert_array_equal(index, here.index)


def test_index_over_devices() -> None:
    pos, mesh = oracles.clustered(900, 3), mesh_of(3)
    index = build_index.smap(mesh, jit=True)(deal(pos, even(900, 3)))
    result = neighbours_within.smap(mesh, jit=True)(index, 0.05)
    assert_same(result, neighbours_within(pos, 0.05), np.asarray(even(900, 3)))
