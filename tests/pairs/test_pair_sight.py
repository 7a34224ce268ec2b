"""Pair counts along the line of sight to the midpoint of each pair, compared with extended precision; their labels."""

import itertools
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import deal, mesh_of, uneven

from jztree.config import RadiusConfig, TreeConfig
from jztree.data import Pos
from jztree.radius import PairCounts, pair_counts
from jztree_utils import correlation

pytestmark = pytest.mark.emulated

EDGES = np.array([0.0, 0.02, 0.05, 0.1, 0.3, 0.45])
ALONG, COSINES = np.array([0.0, 0.03, 0.1, 0.35]), np.array([0.0, 0.1, 0.5, 0.7, 0.95, 1.0])
SECOND = {"rp_pi": ALONG, "s_mu": COSINES}


def sighted(a: np.ndarray, b: np.ndarray, mode: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both quantities of each pair, ``(a, b)``."""
    a, b = a.astype(np.longdouble)[:, None], b.astype(np.longdouble)[None]
    s, m = b - a, (a + b) / 2
    length = np.sqrt((m**2).sum(axis=-1))
    unit = np.divide(m, length[..., None], out=np.zeros_like(m), where=length[..., None] > 0)
    distance = np.sqrt((s**2).sum(axis=-1))
    along = np.abs((s * unit).sum(axis=-1))
    if mode == "s_mu":
        cosine = np.divide(along, distance, out=np.zeros_like(along), where=distance > 0)
        return distance, np.minimum(cosine, 1)  # rounding may have exceeded 1
    pairs = itertools.combinations(range(a.shape[-1]), 2)
    cross2 = sum((s[..., i] * m[..., j] - s[..., j] * m[..., i]) ** 2 for i, j in pairs)
    return np.where(length > 0, np.sqrt(cross2) / np.where(length > 0, length, 1), distance), along


def counts_of(first: np.ndarray, second: np.ndarray, edges: np.ndarray, edges_b: np.ndarray, weight: Any) -> np.ndarray:
    """Return the weight of the pairs in each bin. A pair at distance 0, with 0 for both quantities, is in no bin."""
    rows = oracles.bins_of(lambda edge: first > edge, edges)
    columns = oracles.bins_of(lambda edge: second > edge, edges_b)
    good = (rows >= 0) & (columns >= 0) & ((first > 0) | (second > 0))
    total = np.zeros((len(edges) - 1, len(edges_b) - 1))
    np.add.at(total, (rows[good], columns[good]), weight[good])
    return total


def expected_of(a: np.ndarray, b: np.ndarray, mode: str, edges: Any = EDGES, weights: Any = (None, None)) -> Any:
    product = np.outer(
        *(np.ones(len(x)) if w is None else w.astype("f8") for x, w in zip((a, b), weights, strict=True))
    )
    return counts_of(*sighted(a, b, mode), edges, SECOND[mode], product)


def counted(result: PairCounts) -> np.ndarray:
    return np.asarray(result.count)


@pytest.mark.parametrize("dims", [2, 3])
@pytest.mark.parametrize("mode", SECOND)
def test_equals_the_definition(dims: int, mode: str, dtype: Any) -> None:
    options = {"mode": mode, "edges_b": SECOND[mode], "los": "midpoint"}
    for middle in (0.0, 0.5, 30.0):  # the observer is inside the set, at a corner, or far away
        a, b = (oracles.clustered(n, dims, dtype, seed=n) - dtype(0.5) + dtype(middle) for n in (300, 170))
        np.testing.assert_array_equal(counted(pair_counts(a, EDGES, **options)), expected_of(a, a, mode))
        np.testing.assert_array_equal(counted(pair_counts.jit(a, EDGES, queries=b, **options)), expected_of(a, b, mode))


@pytest.mark.parametrize("mode", SECOND)
def test_any_tree_and_any_unit(mode: str) -> None:
    pos = oracles.uniform(400, 3)
    expected = expected_of(pos, pos, mode)
    for unit in (2.0**-90, 2.0**60):
        along = SECOND[mode] * (unit if mode == "rp_pi" else 1)
        for leaf_size, fan_out in ((2, 2), (48, 8), (500, 8)):
            cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=fan_out))
            options = {"mode": mode, "edges_b": along, "los": "midpoint", "cfg": cfg}
            scaled = (pos * np.float32(unit)).astype(np.float32)
            np.testing.assert_array_equal(counted(pair_counts(scaled, EDGES * unit, **options)), expected)


@pytest.mark.parametrize("mode", SECOND)
def test_opposite_coincident_and_collinear_particles(mode: str) -> None:
    """Test undefined directions, and quantities that are 0."""
    single = np.array(
        [[0.25, 0.125, 0.0], [-0.25, -0.125, 0.0], [0.5, 0.25, 0.0], [0.5, 0.25, 0.0], [0, 0, 0]], np.float32
    )
    edges = np.array([0.0, 0.125, 0.3, 0.6])
    # For opposite particles, the entire distance 2 |x| = 0.559 is across.
    options = {"mode": mode, "edges_b": SECOND[mode], "los": "midpoint"}
    result = counted(pair_counts(single, edges, **options))
    np.testing.assert_array_equal(result, expected_of(single, single, mode, edges))
    # Four pairs on one ray are 0.28 apart: both inner particles from the origin, and the first from the two outer ones.
    if mode == "rp_pi":
        assert result[0].tolist() == [0, 0, 8]
    opposite = counted(pair_counts(single[:2], edges, **options))
    assert opposite[2, 0] == 2 == opposite.sum()


@pytest.mark.parametrize("mode", SECOND)
def test_weights_and_regions(mode: str) -> None:
    rng = np.random.default_rng(4)
    pos, weight, region = oracles.uniform(250, 3), rng.uniform(0.5, 2, 250), rng.integers(0, 3, 250)
    options = {"mode": mode, "edges_b": SECOND[mode], "los": "midpoint"}
    result = pair_counts(pos, EDGES, weights=weight.astype("f4"), regions=region, num_regions=3, **options)
    weight = weight.astype("f4")
    np.testing.assert_allclose(result.weight, expected_of(pos, pos, mode, weights=(weight, weight)), rtol=2e-6)
    for k in range(3):
        second = pos[region != k]
        without = counted(result) - np.asarray(result.region_count)[k]
        np.testing.assert_array_equal(without, expected_of(second, second, mode))


@pytest.mark.long
@pytest.mark.parametrize("mode", SECOND)
def test_counts_on_several_devices_are_equal(mode: str) -> None:
    pos = oracles.clustered(900, 3) - np.float32(0.3)
    mapped = pair_counts.smap(mesh_of(3), jit=True)
    stacked = deal(pos, uneven(900, 3), 900)
    result = mapped(Pos(pos=stacked.pos, num=stacked.num), EDGES, mode=mode, edges_b=SECOND[mode], los="midpoint")
    np.testing.assert_array_equal(counted(result), expected_of(pos, pos, mode))


@pytest.mark.long
def test_line_of_sight_to_distant_particles_equals_an_axis() -> None:
    """All functions for surveys must work with it."""
    rng = np.random.default_rng(2)
    data, randoms = (rng.random((n, 3)) * 10 + [0, 0, 1e7] for n in (400, 900))
    with jax.enable_x64(True):
        for measure, last in ((correlation.wp, (4.0,)), (correlation.multipoles, ())):
            nearest = measure(data, [1.0, 2.0, 4.0], *last, randoms=randoms, los=-1)
            far = measure(data, [1.0, 2.0, 4.0], *last, randoms=randoms, los="midpoint")
            np.testing.assert_allclose(far.value, nearest.value, atol=2e-3 * np.abs(nearest.value).max())
            assert np.abs(far.pairs - nearest.pairs).max() <= 4


def test_midpoint_line_of_sight_in_periodic_box_raises() -> None:
    pos = oracles.uniform(20, 3)
    options = {"mode": "s_mu", "edges_b": COSINES, "los": "midpoint"}
    for call in (pair_counts, pair_counts.jit):
        with pytest.raises(ValueError, match="los='midpoint' requires an open box"):
            call(pos, EDGES, boxsize=[1.0, 0.0, 0.0], **options)
    with pytest.raises(Exception, match="los='midpoint' requires an open box"):
        jax.block_until_ready(jax.jit(lambda box: pair_counts(pos, EDGES, boxsize=box, **options))(1.0))
    with pytest.raises(ValueError, match="los is 'midpoint', which needs randoms"):
        correlation.multipoles(pos, EDGES, 1.0, los="midpoint")


@pytest.mark.parametrize("how", ["plain", "jit", "smap"])
def test_counts_describe_themselves(how: str) -> None:
    """Edges and box keep the digits of float64, also in compiled functions."""
    pos, second = oracles.uniform(200, 3), oracles.uniform(150, 3, seed=1)
    count = {"plain": pair_counts, "jit": pair_counts.jit, "smap": pair_counts.smap(mesh_of(2), jit=True)}[how]
    if how == "smap":
        pos, second = (deal(array, uneven(len(array), 2)) for array in (pos, second))
    edges, along, box = EDGES / 3, ALONG / 7, np.array([1.0, 0.0, 0.9])
    result = count(pos, edges, boxsize=box, queries=second, mode="rp_pi", edges_b=along, los=-3)
    for have, want in ((result.edges, edges), (result.edges_b, along), (result.boxsize, box)):
        np.testing.assert_array_equal(np.asarray(have), want)
    assert (result.mode, result.los, result.cross) == ("rp_pi", 0, True)
    result = count(pos, edges)
    assert (result.mode, result.los, result.cross, result.edges_b) == ("r", None, False, None)
    np.testing.assert_array_equal(np.asarray(result.boxsize), np.zeros(3))
