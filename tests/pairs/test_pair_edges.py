"""Pairs at distance 0, and pairs on one line of sight: which bins hold them."""

from typing import Any

import numpy as np
import oracles
import pytest
from devices import deal, mesh_of, uneven

from jztree.config import RadiusConfig, TreeConfig
from jztree.radius import pair_counts
from pairs.test_pair_counts import COSINES, FEW, assert_counts, brute

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("box", [None, 10.0])
@pytest.mark.parametrize("los", [0, 1, 2])
def test_pairs_on_one_line_of_sight_are_in_the_bin_from_zero(los: int, box: Any) -> None:
    pos = np.roll(np.array([[5, 5, 5], [5, 5, 7], [5, 9, 5]], np.float32), los + 1, axis=1)
    options = {"boxsize": box, "mode": "rp_pi", "edges_b": [0.0, 1.0, 2.0, 3.0], "los": los}
    result = pair_counts(pos, [0.0, 3.0, 4.9], **options)
    np.testing.assert_array_equal(np.asarray(result.count), [[0, 2, 0], [2, 2, 0]])
    result = pair_counts(pos, [1e-30, 3.0, 4.9], **options)
    np.testing.assert_array_equal(np.asarray(result.count), [[0, 0, 0], [2, 2, 0]])


@pytest.mark.parametrize("mode", ["r", "rp_pi", "s_mu"])
@pytest.mark.parametrize("wraps", [False, True])
def test_coincident_particles_are_in_no_bin(mode: str, wraps: bool) -> None:
    """Test one set, and two sets in which each particle of the first has a copy in the second."""
    pos = np.repeat(oracles.lattice(4, 3, spacing=0.125), 3, axis=0)
    if wraps:
        pos[::3, 2] += 2  # the same place in a box of length 1
    box = 1.0 if wraps else None
    options = {"mode": mode, "edges_b": {"r": None, "rp_pi": [0.0, 0.25, 2.0], "s_mu": COSINES}[mode]}
    expected = brute(pos, pos, [0.0, 0.25, 2.0], box, **options)
    assert expected["count"].sum() == 192 * 189
    assert_counts(pair_counts(pos, [0.0, 0.25, 2.0], boxsize=box, **options), expected)
    assert_counts(pair_counts(pos, [0.0, 0.25, 2.0], boxsize=box, queries=pos, **options), expected)


def columns_of(n: int) -> np.ndarray:
    """Return columns of particles along the third axis, with many at the same place."""
    random = np.random.default_rng(9)
    pos = random.random((n, 3)).astype(np.float32)
    pos[:, :2] = pos[random.integers(0, 6, n), :2]
    pos[n // 2 :, 2] = pos[random.integers(0, 9, n - n // 2), 2]
    return pos


@pytest.mark.parametrize("leaf_size", [2, 48, 1000])
def test_columns_along_the_line_of_sight(leaf_size: int) -> None:
    pos = columns_of(500)
    region, weight = np.arange(500) % 4, np.random.default_rng(10).random(500).astype(np.float32)
    cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_size))
    for edges_b in ([0.0, 0.1, 0.2, 0.3], [0.0, 0.9], [0.125, 0.9]):
        for box in (None, 1.0):
            options = {"mode": "rp_pi", "edges_b": edges_b}
            known = {"weights": (weight, weight), "regions": (region, region), "num_regions": 4}
            expected = brute(pos, pos, FEW, box, **known, **options)
            assert expected["count"][0].sum() > 10_000
            given = {"weights": weight, "regions": region, "num_regions": 4, "cfg": cfg}
            assert_counts(pair_counts(pos, FEW, boxsize=box, **given, **options), expected)
            result = pair_counts(pos, FEW, boxsize=box, cfg=cfg, **options)
            np.testing.assert_array_equal(np.asarray(result.count), expected["count"])


def test_columns_on_several_devices() -> None:
    pos = columns_of(900)
    options = {"mode": "rp_pi", "edges_b": [0.0, 0.1, 0.2, 0.3]}
    result = pair_counts.smap(mesh_of(3), jit=True)(deal(pos, uneven(900, 3)), FEW, boxsize=1.0, **options)
    assert_counts(result, brute(pos, pos, FEW, 1.0, **options))


@pytest.mark.parametrize("mode", ["r", "rp_pi", "s_mu"])
def test_edges_closer_than_the_cells_of_avx512(mode: str, dtype: Any) -> None:
    """Test weighted pairs of two sets with few edges between leaves, which are compared one by one."""
    pos, second = (oracles.uniform(count, 3, dtype, seed=count) for count in (700, 500))
    weights = [np.random.default_rng(len(x)).random(len(x)).astype(dtype) for x in (pos, second)]
    edges = [0.0, 0.1, 0.3, 0.3003, 0.3006, 0.5, 0.5005, 1.2]
    options = {"mode": mode, "edges_b": {"r": None, "rp_pi": np.arange(9) / 8, "s_mu": COSINES}[mode]}
    result = pair_counts(pos, edges, queries=second, weights=weights[0], query_weights=weights[1], **options)
    assert_counts(result, brute(pos, second, edges, weights=weights, **options))
