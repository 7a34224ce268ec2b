"""Pairs of two small sets, which bytes or words of 16 bits count with AVX2 if their bins are few."""

from typing import Any

import numpy as np
import pytest

from jztree.radius import pair_counts
from pairs.test_pair_counts import assert_counts, brute

COUNTS = 100, 61  # several blocks of 16 particles, and one block that is not full
EDGES = [1.0, 5.0], [5.0, 13.0], [13.0, 20.0], [0.0, 4.75, 5.0, 5.25, 13.0, 13.25, 20.0], [0.5, 4.9, 12.9, 30.0]


def grids(dtype: Any, extent: int, along: int = 192) -> list[np.ndarray]:
    """Return two sets of multiples of 1/16: many separations are exactly at edges."""
    random = np.random.default_rng(extent)
    middles = (0, 0, 0), (48, 64, along)
    return [(m + random.integers(0, extent, (n, 3))).astype(dtype) / 16 for m, n in zip(middles, COUNTS, strict=True)]


@pytest.mark.parametrize("extent", [2, 5, 16])
@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
@pytest.mark.fast
def test_any_number_of_bins_at_separations(mode: str, extent: int, dtype: Any) -> None:
    """Test wide and narrow bins of both quantities, and fewer and more than a byte can distinguish."""
    pos, queries = grids(dtype, extent)
    weight = np.arange(len(pos)).astype(dtype)
    for bins in (12, 40, 130, 250, 251):
        edges_b = np.arange(bins + 1) * ({"rp_pi": 15.0, "s_mu": 1.0}[mode] / bins)
        for edges in EDGES:
            options = {"mode": mode, "edges_b": edges_b}
            expected = brute(pos, queries, edges, weights=(weight, None), **options)
            assert_counts(pair_counts(pos, edges, queries=queries, weights=weight, **options), expected)
            result = pair_counts(pos, edges, queries=queries, **options)
            np.testing.assert_array_equal(np.asarray(result.count), expected["count"])


@pytest.mark.parametrize("ends", [(0.0, 6.0), (11.0, 12.5), (11.5, 12.0), (12.25, 20.0)])
@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
@pytest.mark.fast
def test_pairs_outside_the_second_edges(mode: str, ends: tuple[float, float], dtype: Any) -> None:
    pos, queries = grids(dtype, 16)
    for bins in (1, 2, 6, 19):
        edges_b = np.linspace(*ends, bins + 1) / {"rp_pi": 1, "s_mu": 20}[mode]
        expected = brute(pos, queries, [4.0, 5.0, 13.0, 13.5], mode=mode, edges_b=edges_b)
        assert_counts(pair_counts(pos, [4.0, 5.0, 13.0, 13.5], queries=queries, mode=mode, edges_b=edges_b), expected)


@pytest.mark.parametrize("along", [0, 192])
@pytest.mark.parametrize("mode", ["rp_pi", "s_mu"])
@pytest.mark.fast
def test_padding_is_in_no_bin(mode: str, along: int, dtype: Any) -> None:
    """The first and the last bin hold all pairs that are near or far along the line of sight, or 0 and 1 as cosines."""
    pos, queries = grids(dtype, 8, along)
    for edges_b in ([0.0, 2.0, 4.0, np.inf], [0.0, 4.0, np.inf]) if mode == "rp_pi" else ([0.0, 0.5, 1.0], [0.0, 1.0]):
        options = {"mode": mode, "edges_b": edges_b}
        for edges in ([0.0, 4.9, 13.1, 30.0], [1.0, 5.0, np.inf]):
            assert_counts(pair_counts(pos, edges, queries=queries, **options), brute(pos, queries, edges, **options))


@pytest.mark.parametrize("unit", [2.0**-60, 1.0, 2.0**50])
@pytest.mark.parametrize("extent", [2, 16, 256])
@pytest.mark.parametrize("along", [0, 192])
@pytest.mark.fast
def test_distances_of_pairs_close_to_a_few_edges(along: int, extent: int, unit: float, dtype: Any) -> None:
    pos, queries = (x * dtype(unit) for x in grids(dtype, extent, along))
    distances = np.unique(np.linalg.norm(pos[:, None].astype(float) - queries.astype(float), axis=-1))
    random = np.random.default_rng(extent)
    for count in (1, 2, 3, 3, 3, 4, 4, 4, 7):
        lengths = np.sort(random.choice(distances[distances > 0], count))
        for factor in (1 - 1e-9, 1 + 1e-9, 1 - 1e-6, 1 + 1e-6):
            edges = np.unique([0.0, *(lengths * factor), 2 * distances[-1]])
            assert_counts(pair_counts(pos, edges, queries=queries), brute(pos, queries, edges))
