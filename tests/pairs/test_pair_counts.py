"""Pair counts against the definition in float64 and SciPy, on one device and on several."""

from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import all_on_last, deal, even, joined, mesh_of, uneven
from scipy.spatial import cKDTree

import jztree as jz
from jztree.config import RadiusConfig, TreeConfig
from jztree.data import Pos
from jztree.radius import PairCounts, pair_counts

pytestmark = pytest.mark.emulated

FEW, MANY = np.array([0.0, 0.02, 0.05, 0.1, 0.3, 0.45]), np.linspace(0.0, 0.45, 46)
COSINES = np.array([0.0, 0.1, 0.5, 0.7, 0.95, 1.0])


def where_emulated(number: int, there: int) -> int:
    """Return a number of particles, or a smaller one for emulated CUDA kernels, which take far longer."""
    return there if jz.kernels.native_info()["instruction_set"] in ("cuda-emulated", "cuda-watched") else number


def brute(
    a: np.ndarray,
    b: np.ndarray,
    edges: Any,
    box: Any = None,
    mode: str = "r",
    edges_b: Any = None,
    los: int = -1,
    weights: Any = (None, None),
    regions: Any = (None, None),
    num_regions: int = 0,
) -> dict[str, np.ndarray]:
    """Return all pairs of a and b by the definition: counts and sums of weight products, in all and per region."""
    full = oracles.full_box(box, a.shape[1])
    squares = [oracles.squared_distances(a[:, [d]], b[:, [d]], full[[d]]) for d in range(a.shape[1])]
    distance2, along2 = sum(squares), squares[los]
    across2 = sum(square for d, square in enumerate(squares) if d != los % a.shape[1])
    first2 = across2 if mode == "rp_pi" else distance2
    place, shape = oracles.bins_of(lambda edge: first2 > np.float64(edge) ** 2, edges), (len(edges) - 1,)
    good = (place >= 0) & (distance2 > 0)  # particles at the same place are in no bin
    if mode != "r":
        exceeds = {
            "rp_pi": lambda edge: np.sqrt(along2) > edge,
            # The cosine z / s exceeds an edge if z**2 exceeds edge**2 s**2.
            "s_mu": lambda edge: along2 > np.float64(edge) ** 2 * distance2,
        }
        second = oracles.bins_of(exceeds[mode], edges_b)
        good &= second >= 0
        place, shape = place * (len(edges_b) - 1) + second, (*shape, len(edges_b) - 1)
    product = np.outer(
        *(np.ones(len(x)) if w is None else w.astype("f8") for x, w in zip((a, b), weights, strict=True))
    )

    def both(selected: np.ndarray) -> list[np.ndarray]:
        return [np.bincount(place[selected], w, np.prod(shape)).reshape(shape) for w in (None, product[selected])]

    result = dict(zip(("count", "weight"), both(good), strict=True))
    parts = [both(good & ((regions[0] == k)[:, None] | (regions[1] == k)[None, :])) for k in range(num_regions)]
    if parts:
        result |= dict(zip(("region_count", "region_weight"), map(np.stack, zip(*parts, strict=True)), strict=True))
    return result


def assert_counts(result: PairCounts, expected: dict[str, np.ndarray]) -> None:
    """Assert that counts are the same integers, and that sums agree up to rounding."""
    for name, want in expected.items():
        have = getattr(result, name)
        if "weight" not in name:
            np.testing.assert_array_equal(np.asarray(have), want, err_msg=name)
        elif have is not None:
            np.testing.assert_allclose(np.asarray(have), want, rtol=1e-12, atol=1e-12 * abs(want).max(), err_msg=name)


def sets(dims: int, dtype: Any = np.float32) -> tuple[np.ndarray, np.ndarray]:
    """Return clumps and a sparse background, partly outside the unit box and partly duplicated; and another set."""
    pos = np.concatenate([oracles.clustered(500, dims, dtype), oracles.uniform(250, dims, dtype)])
    pos[::50] += np.arange(-7, 8)[:, None].astype(dtype)
    pos[5:25] = pos[30:50]
    return pos, oracles.clustered(330, dims, dtype, seed=2) + dtype(0.001)


@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 3, 6])
def test_equals_the_definition(dims: int, kind: str) -> None:
    (pos, second), box = sets(dims), oracles.box_lengths(kind, dims)
    for edges in (FEW, MANY):
        assert_counts(pair_counts(pos, edges, boxsize=box), brute(pos, pos, edges, box))
        assert_counts(pair_counts(pos, edges, boxsize=box, queries=second), brute(pos, second, edges, box))


@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
@pytest.mark.parametrize("dims", [2, 3])
def test_along_a_line_of_sight(dims: int, mode: str) -> None:
    pos, second = sets(dims)
    seconds = COSINES if mode == "s_mu" else np.linspace(0, 0.4, 9)
    for box in (None, 1.0, oracles.box_lengths("mixed", dims)):
        for los in range(dims):
            options = {"mode": mode, "edges_b": seconds, "los": los}
            assert_counts(pair_counts(pos, FEW, boxsize=box, **options), brute(pos, pos, FEW, box, **options))
            options["edges_b"] = seconds[1:]
            result = pair_counts(pos, MANY, boxsize=box, queries=second, **options)
            assert_counts(result, brute(pos, second, MANY, box, **options))


SECONDS = {
    "even": np.arange(41) / 40,
    "even, but not from 0 on": np.linspace(0.125, 0.875, 11),
    "even, but for the last": np.r_[np.arange(9) / 10, np.inf],
    "even in numbers that no float32 is": 0.3 + np.arange(9) / 90,
    "one": np.array([0.0, 0.4]),
    "not even": np.r_[0, np.geomspace(1e-5, 0.9, 20)],
    "many, not even": np.r_[0, np.geomspace(1e-6, 1, 60)],
}


@pytest.mark.long
@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
@pytest.mark.parametrize("seconds", SECONDS)
def test_edges_of_the_second_quantity(mode: str, seconds: str) -> None:
    """Edges at any positions: evenly spaced edges use a formula instead of comparisons with each edge."""
    edges_b = np.minimum(SECONDS[seconds], 1) if mode == "s_mu" else SECONDS[seconds]
    pos = np.concatenate([oracles.uniform(where_emulated(700, 300), 3), oracles.clustered(300, 3)])
    pos[:40, 2] = np.repeat(pos[:20, 2], 2)  # pairs at 0 along the line of sight
    pos[40:80, :2] = np.repeat(pos[40:60, :2], 2, axis=0)  # pairs at 0 across the line of sight
    for box in (None, 1.0):
        for edges in (FEW[1:], np.r_[0.0, 0.6]):
            options = {"mode": mode, "edges_b": edges_b}
            assert_counts(pair_counts(pos, edges, boxsize=box, **options), brute(pos, pos, edges, box, **options))


@pytest.mark.long
def test_float64(x64: None) -> None:
    for dims in (2, 3):
        pos, second = sets(dims, np.float64)
        weights = np.random.default_rng(4).random(len(pos)), None
        for mode, seconds in (("r", None), ("rp_pi", np.linspace(0, 0.4, 9)), ("s_mu", COSINES)):
            options = {"mode": mode, "edges_b": seconds}
            result = pair_counts(pos, FEW, boxsize=1.0, queries=second, weights=weights[0], **options)
            assert_counts(result, brute(pos, second, FEW, 1.0, weights=weights, **options))
            assert result.weight is not None
            assert result.weight.words.dtype == np.float64


@pytest.mark.long
@pytest.mark.parametrize("box", [1.0, None])
def test_many_particles_equal_scipy(box: Any) -> None:
    pos = np.concatenate(
        [oracles.uniform(where_emulated(8_000, 800), 3), oracles.clustered(where_emulated(4_000, 400), 3)]
    )
    edges = np.r_[np.geomspace(1e-3, 0.1, 15), 0.4, 0.6]
    tree = cKDTree(pos.astype(np.float64), boxsize=box)
    expected = np.diff(tree.count_neighbors(tree, edges))
    for leaf_size in (3, 24, 70):
        cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_size))
        np.testing.assert_array_equal(np.asarray(pair_counts.jit(pos, edges, boxsize=box, cfg=cfg).count), expected)


@pytest.mark.parametrize("mode", ["r", "rp_pi", "s_mu"])
def test_equals_corrfunc(mode: str) -> None:
    """Float64 Corrfunc counts the same pairs; for float32 positions it also rounds distances. No pair is at an edge.

    The number of pi bins in Corrfunc is its largest pi in whole units.
    """
    theory = pytest.importorskip("Corrfunc.theory")
    box, edges = 100.0, np.geomspace(0.2, 12.0, 15)
    pos = np.concatenate([oracles.uniform(where_emulated(20_000, 800), 3), oracles.clustered(2_000, 3) % 1])
    pos = (pos * np.float32(box)).astype(np.float32)
    pos = pos[(pos < box).all(axis=1)]
    places = pos.T.astype(np.float64)
    if mode == "r":
        expected = theory.DD(1, 1, edges, *places, boxsize=box)
        result = pair_counts(pos, edges, boxsize=box)
    elif mode == "rp_pi":
        expected = theory.DDrppi(1, 1, 30.3, edges, *places, boxsize=box)
        result = pair_counts(pos, edges, boxsize=box, mode=mode, edges_b=np.linspace(0, 30.3, 31))
    else:
        expected = theory.DDsmu(1, 1, edges, 1.0, 40, *places, boxsize=box)
        result = pair_counts(pos, edges, boxsize=box, mode=mode, edges_b=np.arange(41) / 40)
    np.testing.assert_array_equal(np.asarray(result.count).ravel(), expected["npairs"])
    # With the fewer points for an emulator, some bins are empty.
    bins = len(expected)
    assert (expected["npairs"] > 0).sum() >= where_emulated(bins, bins * 8 // 10)


@pytest.mark.parametrize("mode", ["r", "rp_pi", "s_mu"])
def test_pairs_at_edges_are_decided_in_float64(mode: str) -> None:
    """The lattice spacing is not a binary number, so most pairs are at edges, or differ from them by rounding only."""
    pos, edges = oracles.lattice(6, 3, spacing=0.1), 0.1 * np.arange(5)
    options = {"mode": mode, "edges_b": {"r": None, "rp_pi": 0.1 * np.arange(4), "s_mu": np.arange(6) / 5}[mode]}
    weight, region = 1 + np.arange(216, dtype=np.float32) % 7, np.arange(216) % 3
    for box in (None, 0.6):
        known = {"weights": (weight, weight), "regions": (region, region), "num_regions": 3}
        expected = brute(pos, pos, edges, box, **known, **options)
        for given in ({}, {"weights": weight}, {"weights": weight, "regions": region, "num_regions": 3}):
            result = pair_counts(pos, edges, boxsize=box, **given, **options)
            assert_counts(result, {name: want for name, want in expected.items() if getattr(result, name) is not None})
        assert (expected["count"] > 0).mean() > 0.7


@pytest.mark.parametrize("mode", ["r", "rp_pi", "s_mu"])
def test_weights_and_regions(mode: str) -> None:
    """Test regions of neighbouring particles, so that whole nodes are in one region, and mixed regions."""
    pos, second = sets(3)
    random = np.random.default_rng(5)
    options = {"mode": mode, "edges_b": {"r": None, "rp_pi": MANY[::5], "s_mu": COSINES}[mode]}
    weight, weight_b = (random.normal(size=len(x)).astype(np.float32) for x in (pos, second))
    for region, region_b in (
        ((pos[:, 0] > 0.5).astype(np.int32) + 2 * (pos[:, 1] > 0.5), (second[:, 0] > 0.5).astype(np.int64)),
        (random.integers(0, 5, len(pos)), random.integers(0, 5, len(second))),
    ):
        regions = {"regions": region, "num_regions": 5}
        result = pair_counts(pos, FEW, boxsize=1.0, weights=weight, **regions, **options)
        same = {"weights": (weight, weight), "regions": (region, region), "num_regions": 5}
        assert_counts(result, brute(pos, pos, FEW, 1.0, **same, **options))
        given = {"queries": second, "query_weights": weight_b, "query_regions": region_b}
        result = pair_counts(pos, FEW, boxsize=1.0, **regions, **given, **options)
        both = {"weights": (None, weight_b), "regions": (region, region_b), "num_regions": 5}
        assert_counts(result, brute(pos, second, FEW, 1.0, **both, **options))


@pytest.mark.parametrize(("dtype", "num_regions"), [(np.uint8, 300), (np.int8, 128), (np.uint16, 65536)])
def test_regions_of_narrow_integers(dtype: Any, num_regions: int) -> None:
    """There are more regions than the dtype can count."""
    last = min(num_regions - 1, int(np.iinfo(dtype).max))
    region = np.full(20, last, dtype)
    with jax.numpy_dtype_promotion("strict"):
        result = pair_counts(oracles.uniform(20, 3), [0.0, 0.3], regions=region, num_regions=num_regions)
    assert result.region_count is not None
    np.testing.assert_array_equal(np.asarray(result.region_count)[last], result.count)
    assert np.asarray(result.region_count)[:last].sum() == 0


def test_single_device_mesh() -> None:
    """Replicated results must be marked as replicated on one device also."""
    pos, second = sets(3)
    part, part_b = deal(pos, even(len(pos), 1)), deal(second, even(len(second), 1))
    weight, region = np.ones(part.pos.shape[:2], np.float32), np.zeros(part.pos.shape[:2], int)
    extra = {"weights": weight, "regions": region, "num_regions": 2}
    mapped = pair_counts.smap(mesh_of(1), jit=True)
    assert_counts(mapped(part, FEW, boxsize=1.0), brute(pos, pos, FEW, 1.0))
    assert_counts(mapped(part, FEW, boxsize=1.0, queries=part_b), brute(pos, second, FEW, 1.0))
    single, none = np.ones(len(pos)), np.zeros(len(pos), int)
    expected = brute(pos, pos, FEW, 1.0, weights=(single, single), regions=(none, none), num_regions=2)
    assert_counts(mapped(part, FEW, boxsize=1.0, **extra), expected)


@pytest.mark.watched
@pytest.mark.long
def test_regions_without_weights() -> None:
    pos = oracles.uniform(3000, 3)
    region = (4 * pos[:, 0]).astype(int)
    result = pair_counts(pos, MANY[:9], regions=region, num_regions=4)
    expected = brute(pos, pos, MANY[:9], regions=(region, region), num_regions=4)
    assert_counts(result, expected)
    assert result.weight is None
    rest = pos[region != 2]
    left = np.asarray(result.count) - np.asarray(result.region_count)[2]
    np.testing.assert_array_equal(left, np.asarray(pair_counts(rest, MANY[:9]).count))


def test_sums_do_not_depend_on_threads() -> None:
    pos = oracles.clustered(where_emulated(20_000, 1000), 3)
    weight = np.random.default_rng(6).random(len(pos)).astype(np.float32)
    words = []
    for threads in (1, 2, None):
        jz.kernels.set_num_threads(threads)
        words.append(np.asarray(pair_counts(pos, FEW, weights=weight).weight))
    np.testing.assert_array_equal(words[0], words[1])
    np.testing.assert_array_equal(words[0], words[2])


@pytest.mark.long
def test_more_pairs_than_32_bits_can_count() -> None:
    """Two heaps: pairs within one are at distance 0 and in no bin; pairs between the two are at one distance."""
    pos = np.repeat(np.array([[0.0, 0, 0], [3, 4, 0]], np.float32), 70_000, axis=0)
    result = pair_counts(pos, [0.0, 4.9, 5.1, np.inf])
    np.testing.assert_array_equal(np.asarray(result.count), [0, 2 * 70_000**2, 0])
    assert np.asarray(result.count).dtype == np.int64
    result = pair_counts(pos[69_000:71_000], [0.0, 4.9999, 5.0, np.inf])
    np.testing.assert_array_equal(np.asarray(result.count), [0, 2 * 1000**2, 0])
    # Along the line of sight, the heaps are at distance 0 across it.
    result = pair_counts(pos[:, [2, 0, 1]] * np.float32([1, 0, 1]), [0.0, 1.0], mode="rp_pi", edges_b=[0.0, 3.0, 5.0])
    np.testing.assert_array_equal(np.asarray(result.count), [[0, 2 * 70_000**2]])
    # Separate the particles of a heap by tiny distances, within nodes and between them.
    pos[:, 2] = np.tile(np.arange(70_000, dtype=np.float32) * 1e-9, 2)
    result = pair_counts(pos, [0.0, 1.0, 4.5, 6.0])
    np.testing.assert_array_equal(np.asarray(result.count), [2 * 70_000 * 69_999, 0, 2 * 70_000**2])


@pytest.mark.parametrize("n", [0, 1, 2, 30])
def test_few_particles_and_padding(n: int) -> None:
    pos = oracles.uniform(40, 3)
    padded = np.concatenate([pos[:n], np.full((9, 3), np.nan, np.float32)])
    expected = brute(pos[:n], pos[:n], FEW, 1.0)
    assert_counts(pair_counts(Pos(pos=padded, num=n), FEW, boxsize=1.0), expected)
    assert_counts(pair_counts(pos[:n], FEW, boxsize=1.0), expected)
    result = pair_counts(pos, FEW, boxsize=1.0, queries=Pos(pos=padded, num=n))
    assert_counts(result, brute(pos, pos[:n], FEW, 1.0))


@pytest.mark.parametrize("unit", [1e-30, 1e-3, 1e30])
def test_any_unit_and_far_from_the_origin(unit: float) -> None:
    pos = (oracles.clustered(400, 3) * unit).astype(np.float32)
    for edges in (FEW * unit, MANY * unit):
        for box in (None, unit):
            assert_counts(pair_counts(pos, edges, boxsize=box), brute(pos, pos, edges, box))
    far = (oracles.lattice(7, 3) + 1e5).astype(np.float32)
    edges = np.sqrt(np.arange(1, 12))
    for mode, seconds in (("r", None), ("s_mu", COSINES)):
        options = {"mode": mode, "edges_b": seconds}
        assert_counts(pair_counts(far, edges, **options), brute(far, far, edges, **options))


def test_distances_of_many_orders_of_magnitude() -> None:
    """Some squared distances vanish in float32, and others are 1e30 times as far apart."""
    pos = np.concatenate([oracles.uniform(60, 3) * np.float32(scale) for scale in (1, 1e-10, 1e-20, 1e-30)])
    edges = np.r_[0, np.geomspace(1e-32, 2, 70)]
    for mode, seconds in (("r", None), ("s_mu", COSINES), ("rp_pi", np.r_[0, np.geomspace(1e-31, 2, 40)])):
        options = {"mode": mode, "edges_b": seconds}
        assert_counts(pair_counts(pos, edges, **options), brute(pos, pos, edges, **options))


@pytest.mark.aarch64
@pytest.mark.core
def test_index() -> None:
    pos = oracles.clustered(2000, 3)
    weight = np.random.default_rng(7).random(len(pos)).astype(np.float32)
    result = pair_counts(jz.build_index(pos, 1.0), FEW, weights=weight)
    assert_counts(result, brute(pos, pos, FEW, 1.0, weights=(weight, weight)))


def test_traced_edges() -> None:
    pos = oracles.uniform(500, 3)
    counted = jax.jit(lambda edges, second: pair_counts(pos, edges, mode="rp_pi", edges_b=second))
    edges = np.array([0.0, 0.125, 0.25], np.float32)
    assert_counts(counted(edges, edges), brute(pos, pos, edges, mode="rp_pi", edges_b=edges))
    for wrong in (edges[::-1], edges - 1, edges * np.nan):
        with pytest.raises(oracles.RUN_TIME_ERROR, match="edges must be strictly ascending"):
            jax.block_until_ready(counted(wrong, edges))
    result = pair_counts(pos, edges, weights=np.ones(500, np.float32))
    assert result.weight is not None
    np.testing.assert_array_equal(result.count.to_float(), np.asarray(result.count))
    np.testing.assert_array_equal(result.weight.to_float(), np.asarray(result.weight))
    assert (len(result.count), result.count.shape, repr(result.count[1:])) == (2, (2,), "WideCounts(1,)")
    assert (len(result.weight), result.weight.shape, repr(result.weight[1:])) == (2, (2,), "WideSums(1,)")


WRONG = [
    ({"edges": [0.1]}, ValueError, "at least two ascending numbers"),
    ({"edges": [[0.1, 0.2]]}, ValueError, "at least two ascending numbers"),
    ({"edges": [0.2, 0.1]}, ValueError, "strictly ascending and at least 0"),
    ({"edges": [0.1, 0.1]}, ValueError, "strictly ascending and at least 0"),
    ({"edges": [-0.1, 0.1]}, ValueError, "strictly ascending and at least 0"),
    ({"edges": [0.1, np.nan]}, ValueError, "strictly ascending and at least 0"),
    ({"edges": ["a", "b"]}, TypeError, "real number"),
    ({"mode": "xi"}, ValueError, "mode is 'xi'; it must be one of 'r', 'rp_pi', 's_mu'"),
    ({"edges_b": [0, 1]}, ValueError, "mode='r' does not use"),
    ({"mode": "rp_pi"}, ValueError, "needs edges_b, the edges of pi"),
    ({"mode": "s_mu", "edges_b": [0, 1.1]}, ValueError, "cosines, so they must be at most 1"),
    ({"mode": "s_mu", "edges_b": [0, 1], "los": 3}, ValueError, "los is 3"),
    ({"mode": "s_mu", "edges_b": [0, 1], "los": "middle"}, ValueError, "los is 'middle'"),
    ({"weights": np.ones(3, np.float32)}, ValueError, "weights must have one number per particle"),
    ({"weights": np.full(10, np.nan, np.float32)}, oracles.RUN_TIME_ERROR, "row 0 has a weight that is NaN"),
    ({"weights": np.full(10, 3e37, np.float32)}, oracles.RUN_TIME_ERROR, "outside the range of float32"),
    ({"weights": [1.0] * 10}, TypeError, "weights is a list; convert it with numpy.asarray"),
    ({"weights": np.full(10, 1e-20, np.float32)}, oracles.RUN_TIME_ERROR, "choose weights nearer to 1"),
    ({"query_weights": np.ones(10, np.float32)}, ValueError, "query_weights needs queries"),
    ({"regions": np.zeros(10, int)}, ValueError, "num_regions"),
    ({"regions": [0] * 10, "num_regions": 2}, TypeError, "regions is a list; convert it with numpy.asarray"),
    ({"regions": np.full(10, 200, np.uint8), "num_regions": 200}, oracles.RUN_TIME_ERROR, "row 0 has a region"),
    ({"regions": np.full(10, 2**32 - 1, np.uint32), "num_regions": 2}, oracles.RUN_TIME_ERROR, "row 0 has a region"),
    ({"regions": np.zeros(10, int), "num_regions": 0}, ValueError, "num_regions is 0; it must be from 1"),
    ({"regions": np.zeros(10), "num_regions": 2}, TypeError, "regions must be integers"),
    ({"regions": np.arange(10) - 4, "num_regions": 9}, oracles.RUN_TIME_ERROR, "row 0 has a region that is not"),
    ({"regions": np.arange(10), "num_regions": 9}, oracles.RUN_TIME_ERROR, "row 9 has a region that is not valid"),
    ({"queries": np.zeros((3, 2), np.float32)}, ValueError, "must have the same number of dimensions"),
    ({"queries": np.full((3, 3), np.inf, np.float32)}, oracles.RUN_TIME_ERROR, "of the query positions"),
    ({"cfg": jz.config.KNNConfig()}, TypeError, "RadiusConfig"),
]


@pytest.mark.parametrize(("options", "error", "text"), WRONG)
def test_wrong_arguments(options: dict[str, Any], error: Any, text: str) -> None:
    with pytest.raises(error, match=text) as caught:
        jax.block_until_ready(pair_counts(oracles.uniform(10, 3), **({"edges": [0.1, 2.0]} | options)))
    assert oracles.one_sentence(caught)


def spread(values: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Distribute one value per particle as `deal` does."""
    stacked = np.zeros((len(counts), 1200), values.dtype)
    for rank, (end, count) in enumerate(zip(np.cumsum(counts), counts, strict=True)):
        stacked[rank, :count] = values[end - count : end]
    return stacked


@pytest.mark.parametrize("mode", ["r", pytest.param("rp_pi", marks=pytest.mark.slow), "s_mu"])
def test_counts_on_several_devices_are_equal(mode: str) -> None:
    ndev, options = 3, {"mode": mode, "edges_b": {"r": None, "rp_pi": MANY[::5], "s_mu": COSINES}[mode]}
    mapped = pair_counts.smap(mesh_of(ndev), jit=True)
    pos, second = sets(3)
    region, weight = np.arange(len(pos)) % 3, np.random.default_rng(8).random(len(pos)).astype(np.float32)
    for counts in (even(len(pos), ndev), uneven(len(pos), ndev), all_on_last(len(pos), ndev)):
        part = deal(pos, counts)
        assert (joined(part.pos, counts) == pos).all()
        extra = {"weights": spread(weight, counts), "regions": spread(region, counts), "num_regions": 3}
        expected = brute(
            pos, pos, FEW, 1.0, weights=(weight, weight), regions=(region, region), num_regions=3, **options
        )
        assert_counts(mapped(part, FEW, boxsize=1.0, **extra, **options), expected)
        part_b = deal(second, uneven(len(second), ndev))
        result = mapped(part, FEW, boxsize=1.0, queries=part_b, weights=spread(weight, counts), **options)
        assert_counts(result, brute(pos, second, FEW, 1.0, weights=(weight, None), **options))


@pytest.mark.long
def test_edges_above_all_distances_on_several_devices() -> None:
    """Every rank requests all particles of the others."""
    pos, counts = oracles.uniform(900, 3), even(900, 3)
    edges = np.array([0.3, 0.8, np.inf])
    result = pair_counts.smap(mesh_of(3), jit=True)(deal(pos, counts), edges, boxsize=1.0)
    assert_counts(result, brute(pos, pos, edges, 1.0))


def test_sums_have_no_derivative() -> None:
    """Differentiation must raise an error instead of returning 0."""
    pos = oracles.uniform(50, 3)
    with pytest.raises(ValueError, match="derivative"):
        jax.grad(lambda w: pair_counts(pos, FEW, weights=w).weight.words.sum())(np.ones(50, np.float32))
