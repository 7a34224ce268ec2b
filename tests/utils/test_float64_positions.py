"""Tools keep the digits of float64 NumPy positions in JAX's 32-bit mode.

Positions are multiples of 2**-20, and the same ones moved by 4096. Both are exact in float64, so results agree in every
bit. Float32 would round the moved ones to multiples of 2**-11.
"""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from devices import mesh_of

from jztree.data import Pos
from jztree_utils import correlation
from jztree_utils.cells import pairs_in_cell
from jztree_utils.kdtree import KDTree
from jztree_utils.knn_statistics import joint_knn_cdf, knn_cdf

EDGES, SHIFT = [0.01, 0.02, 0.05, 0.1], 4096.0
RNG = np.random.default_rng(3)


def places(num: int) -> np.ndarray:
    return RNG.integers(0, 2**20, (num, 3)) / 2.0**20


DATA, OTHER, RANDOMS = places(400), places(350), places(900)


def value(estimate: correlation.Correlation) -> list[Any]:
    return [estimate.value, estimate.pairs, estimate.separation]


def of_estimators(move: float) -> Any:
    estimators = pytest.importorskip("jztree_utils.estimators")
    neighbours = estimators.NearestNeighbors(n_neighbors=4).fit(DATA + move).kneighbors(OTHER + move)
    labels = estimators.DBSCAN(eps=0.05, min_samples=3).fit(DATA + move).labels_
    return [*neighbours, labels, estimators.HDBSCAN(min_cluster_size=5).fit(DATA + move).labels_]


def of_picture(move: float) -> Any:
    plot = pytest.importorskip("jztree_utils.plot")
    return plot.plot_halo(DATA + move, np.full(3, 0.5 + move), {"r": 0.3}).axes[0].images[0].get_array()


TOOLS: dict[str, Callable[[float], Any]] = {
    "xi": lambda move: value(correlation.xi(DATA + move, EDGES, randoms=RANDOMS + move, separations=True)),
    "xi of a particle class": lambda move: value(
        correlation.xi(Pos(pos=DATA + move, num=300), EDGES, randoms=RANDOMS + move)
    ),
    "xi of two tracers": lambda move: value(
        correlation.xi(DATA + move, EDGES, queries=OTHER + move, randoms=RANDOMS + move)
    ),
    "wp": lambda move: value(correlation.wp(DATA + move, EDGES, 0.1, randoms=RANDOMS + move, num_pi=2)),
    "multipoles": lambda move: value(correlation.multipoles(DATA + move, EDGES, randoms=RANDOMS + move, num_mu=4)),
    "mean_separations": lambda move: correlation.mean_separations(DATA + move, EDGES, queries=OTHER + move),
    "knn_cdf": lambda move: knn_cdf(DATA + move, [1, 4], EDGES, OTHER + move).count,
    "knn_cdf on devices": lambda move: knn_cdf(DATA + move, [1, 4], EDGES, OTHER + move, mesh=mesh_of(2)).count,
    "joint_knn_cdf": lambda move: joint_knn_cdf(DATA + move, RANDOMS + move, 1, 3, EDGES, OTHER + move).count,
    "KDTree": lambda move: KDTree(DATA + move).query(OTHER + move, 4),
    "estimators": of_estimators,
    "cells": lambda move: pairs_in_cell(DATA + move, 0.1, np.eye(3), False).distance,
    "plot_halo": of_picture,
}


@pytest.mark.parametrize("tool", TOOLS)
def test_moved_positions_give_the_same_bits(tool: str) -> None:
    moved, expected = TOOLS[tool](SHIFT), TOOLS[tool](0.0)
    jax.tree.map(np.testing.assert_array_equal, moved, expected)


def test_sets_of_different_precision_are_compared_in_float64() -> None:
    """Positions of the randoms are exact in float32 too."""
    options: dict[str, Any] = {"edges": EDGES, "separations": True}
    mixed = correlation.xi(DATA, randoms=jax.numpy.asarray(RANDOMS), **options)
    jax.tree.map(np.testing.assert_array_equal, value(mixed), value(correlation.xi(DATA, randoms=RANDOMS, **options)))
