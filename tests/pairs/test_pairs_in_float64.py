"""Pair counts of float64 positions that float32 cannot resolve."""

import numpy as np
import pytest

from jztree.radius import pair_counts
from pairs.test_pair_counts import COSINES, FEW, assert_counts, brute

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
def test_in_a_mixed_box_along_any_axis(x64: None, mode: str) -> None:
    """Test leaves whose nearest image depends on the pair; the period differs between dimensions."""
    seconds = {"rp_pi": np.linspace(0, 0.4, 9), "s_mu": COSINES}[mode]
    pos, box = np.random.default_rng(5).random((300, 3)) * [1.0, 0.5, 2.0], np.array([1.0, 0.0, 2.0])
    for los in range(3):
        options = {"mode": mode, "edges_b": seconds, "los": los}
        assert_counts(pair_counts(pos, FEW, boxsize=box, **options), brute(pos, pos, FEW, box, **options))


def test_positions_that_wrap_to_almost_the_same_place(x64: None) -> None:
    """Test a leaf that is as small as the rounding of wrapped positions."""
    pos = np.repeat([0.10055868248813184, 0.6005586824881318, -0.06610798417853482], [5, 3, 2])[:, None]
    edges, box = np.array([0.0, 0.003, 0.03]), 0.16666666666666666
    assert_counts(pair_counts(pos, edges, boxsize=box), brute(pos, pos, edges, box))


def test_clumps_far_below_their_distances(x64: None) -> None:
    """Test separations that float32 cannot resolve within the extent of two leaves."""
    rng = np.random.default_rng(6)
    pos = np.repeat(rng.random((40, 3)), 10, axis=0) + 1e-9 * rng.random((400, 3))
    edges = np.append(np.geomspace(1e-10, 2e-9, 9), [0.1, 0.3])
    for options in ({}, {"mode": "rp_pi", "edges_b": [0.0, 5e-10, 1e-9, 0.2]}, {"mode": "s_mu", "edges_b": COSINES}):
        assert_counts(pair_counts(pos, edges, boxsize=1.0, **options), brute(pos, pos, edges, 1.0, **options))
