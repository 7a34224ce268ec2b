"""Clusters of peaks above a threshold against the algorithm of the paper, and against GUDHI if it is installed."""

from collections.abc import Iterator
from typing import Any

import flood
import jax
import numpy as np
import oracles
import pytest

from jztree.data import Pos
from jztree.hierarchy import DensityPeaks, density_peaks
from jztree.knn import knn

# Dimensions and numbers of neighbours. In eight dimensions, several peaks meet at most saddles.
SHAPES = [(2, 3), (3, 5), (8, 4)]
CHAIN = np.array([[0.0], [1.0], [1.9], [2.7], [3.4]]), np.array([10.0, 6.0, 8.0, 4.0, 5.0])


def graphs(count: int, dtype: Any = np.float32) -> Iterator[tuple[list[set[int]], np.ndarray, DensityPeaks]]:
    """Yield graphs, densities and peaks of 30 random points; every second density is a small integer, with ties."""
    for dims, k in SHAPES:
        sets, random = -(-count // len(SHAPES)), np.random.default_rng(dims)
        pos = random.random((sets, 30, dims)).astype(np.float32)
        density = random.lognormal(0, 1, pos.shape[:2]).astype(dtype)
        density[::2] = random.integers(0, 20, density[::2].shape)
        nearest = jax.vmap(lambda pos, k=k: knn(pos, k, result="globalidx"))(pos)
        peaks = jax.device_get(jax.vmap(lambda pos, density, k=k: density_peaks(pos, density, k))(pos, density))
        for i in range(sets):
            yield flood.graph(np.asarray(nearest[i])), density[i], jax.tree.map(lambda column, i=i: column[i], peaks)


def check(peaks: DensityPeaks, label: jax.Array, expected: np.ndarray) -> None:
    np.testing.assert_array_equal(np.asarray(peaks.row)[label], expected)


def test_random_graphs_equal_the_published_algorithm() -> None:
    meetings = 0
    for neighbours, density, peaks in graphs(400):
        ends = np.asarray(peaks.saddle) >= 0
        depth = np.sort(np.asarray(peaks.persistence)[ends]).astype(float)
        # A threshold equal to a persistence, and one that float32 would round to it.
        middle = depth[len(depth) // 2] if len(depth) else 1.0
        for threshold in (middle, middle * (1 + 1e-12), 0.5 * middle):
            check(peaks, peaks.merge(threshold), flood.tomato(neighbours, density, threshold))
        check(peaks, peaks.merge(ratio=2.0), flood.tomato(neighbours, density, 2.0, ratio=True))
        saddles = np.asarray(peaks.saddle)[ends]
        meetings += len(saddles) - len(np.unique(saddles))
    assert meetings > 150


def test_float64_equals_the_published_algorithm() -> None:
    with jax.enable_x64(True):
        for neighbours, density, peaks in graphs(30, np.float64):
            for threshold in (0.1, 1.0, 3.0):
                check(peaks, peaks.merge(threshold), flood.tomato(neighbours, density, threshold))
                ratio = 1 + threshold
                check(peaks, peaks.merge(ratio=ratio), flood.tomato(neighbours, density, ratio, ratio=True))


def test_clusters_equal_clusters_of_gudhi() -> None:
    """If a weak peak meets two strong ones at a saddle, their order decides, and GUDHI has another one."""
    tomato = pytest.importorskip("gudhi.clustering.tomato")
    compared = 0
    for neighbours, density, peaks in graphs(600):
        if len(np.unique(density)) < len(density):  # the order of equal densities is another
            continue
        threshold = float(np.median(density))
        expected = flood.tomato(neighbours, density, threshold)
        gudhi = tomato.Tomato(graph_type="manual", density_type="manual", merge_threshold=threshold)
        gudhi.fit([sorted(others) for others in neighbours], weights=density.astype(float))
        label = np.asarray(peaks.merge(threshold))
        assert len(np.unique(label)) == len(np.unique(gudhi.labels_))
        if np.array_equal(expected, flood.tomato(neighbours, density, threshold, reverse=True)):
            np.testing.assert_array_equal(oracles.smallest_members(label), oracles.smallest_members(gudhi.labels_))
            compared += 1
    assert compared > 200


def test_weak_peak_merges_across_its_saddle_rather_than_with_its_parent() -> None:
    pos, density = CHAIN
    peaks = density_peaks(pos, density, 2)
    assert peaks.parent[2] == 0
    np.testing.assert_array_equal(peaks.merge(1.5), [0, 0, 1, 1, 1])


def test_extreme_thresholds_merge_none_or_all_connected_peaks() -> None:
    for neighbours, density, peaks in graphs(6):
        np.testing.assert_array_equal(peaks.merge(0), peaks.peak)
        np.testing.assert_array_equal(peaks.merge(ratio=1), peaks.peak)
        complete = flood.tomato(neighbours, density, np.inf)
        check(peaks, peaks.merge(np.inf), complete)
        check(peaks, peaks.merge(1e300), complete)
        check(peaks, peaks.merge(ratio=np.inf), flood.tomato(neighbours, density, np.inf, ratio=True))


@pytest.mark.parametrize("level", [0.0, -0.0, np.inf, 1.0])
def test_equal_densities_merge_at_any_positive_threshold(level: float) -> None:
    pos = oracles.uniform(60, 2)
    peaks = density_peaks(pos, np.full(60, level, np.float32), 3)
    assert np.any(np.asarray(peaks.parent) >= 0)
    complete = np.asarray(peaks.merge(1e-300))
    np.testing.assert_array_equal(peaks.merge(ratio=1 + 1e-12), complete)
    assert np.all(np.asarray(peaks.persistence)[np.unique(complete)] == np.inf)


def test_one_compiled_program_and_vmap_serve_all_thresholds() -> None:
    pos, density = CHAIN
    peaks = density_peaks(pos, density, 2)
    traces = []

    @jax.jit
    def compiled(peaks: DensityPeaks, threshold: jax.Array) -> jax.Array:
        traces.append(threshold)
        return peaks.merge(threshold)

    thresholds = np.array([0.5, 1.5, 2.5], np.float32)
    expected = [[0, 0, 1, 1, 2], [0, 0, 1, 1, 1], [0, 0, 0, 0, 0]]
    for threshold, label in zip(thresholds, expected, strict=True):
        np.testing.assert_array_equal(compiled(peaks, threshold), label)
    assert len(traces) == 1
    np.testing.assert_array_equal(jax.vmap(compiled, (None, 0))(peaks, thresholds), expected)
    densities = np.stack([density, density[::-1]]).astype(np.float32)
    several = jax.vmap(lambda density: density_peaks(pos, density, 2))(densities)
    with pytest.raises(ValueError, match=r"the peaks of one set, but these have the shape \(2, 5\); use jax.vmap"):
        several.merge(1.5)
    single = density_peaks(pos, densities[1], 2).merge(1.5)
    np.testing.assert_array_equal(jax.vmap(lambda peaks: peaks.merge(1.5))(several)[1], single)


@pytest.mark.parametrize("rows", [0, 3, 8])
def test_padding_has_no_cluster(rows: int) -> None:
    pos, density = oracles.uniform(8, 2), np.arange(8, dtype=np.float32)
    peaks = density_peaks(Pos(pos=pos, num=rows), density, 3)
    label = np.asarray(peaks.merge(1.0))
    assert np.all(label[:rows] >= 0)
    assert np.all(label[rows:] == -1)
    if rows == 0:
        assert density_peaks(pos[:0], density[:0], 3).merge(1.0).shape == (0,)


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({}, TypeError, "one threshold: pass persistence or ratio"),
        ({"persistence": 1.0, "ratio": 2.0}, TypeError, "one threshold: pass persistence or ratio"),
        ({"persistence": -0.5}, ValueError, "persistence is -0.5; it must be at least 0"),
        ({"persistence": np.nan}, ValueError, "persistence is nan; it must be at least 0"),
        ({"persistence": "high"}, TypeError, "persistence is 'high'"),
        ({"persistence": [1.0, 2.0]}, ValueError, r"persistence must be one number; its shape is \(2,\)"),
        ({"ratio": 0.9}, ValueError, "ratio is 0.9; it must be at least 1"),
        ({"ratio": None, "persistence": True}, TypeError, "persistence is True"),
    ],
)
def test_invalid_thresholds_raise(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    pos, density = CHAIN
    with pytest.raises(error, match=message):
        density_peaks(pos, density, 2).merge(**arguments)


def test_traced_invalid_thresholds_raise_at_run_time() -> None:
    pos, density = CHAIN
    peaks = density_peaks(pos, density, 2)
    for name, value, message in (("persistence", np.nan, "must be at least 0"), ("ratio", 0.5, "must be at least 1")):
        with pytest.raises(Exception, match=f"{name} {message}"):
            jax.block_until_ready(jax.jit(lambda value, name=name: peaks.merge(**{name: value}))(value))


def test_ratio_of_negative_densities_raises() -> None:
    pos, density = CHAIN
    with pytest.raises(ValueError, match="ratio needs densities that are not negative"):
        density_peaks(pos, density - 5, 2).merge(ratio=2.0)
    np.testing.assert_array_equal(density_peaks(pos, density - 5, 2).merge(1.5), [0, 0, 1, 1, 1])
