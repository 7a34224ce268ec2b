"""Neighbours within a radius, up to a fixed number, and their full counts."""

from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import deal, joined, mesh_of, uneven

from jztree.radius import count_within, nearest_within

pytestmark = pytest.mark.emulated


@pytest.mark.watched
@pytest.mark.parametrize("maximum", [1, 5, 300])
@pytest.mark.parametrize("box", [None, 1.0])
def test_nearest_and_their_number(maximum: int, box: Any, dtype: Any) -> None:
    pos, query = oracles.clustered(250, 3, dtype), oracles.uniform(40, 3, dtype, seed=3)
    radii = np.random.default_rng(1).random(40) * 0.4
    for call in (nearest_within, nearest_within.jit):
        result = call(pos, radii, maximum, boxsize=box, queries=query)
        distance2 = oracles.squared_distances(query, pos, box)
        within = distance2 <= radii[:, None] ** 2
        np.testing.assert_array_equal(result.count, within.sum(axis=1))
        np.testing.assert_array_equal(result.is_cut(), within.sum(axis=1) > maximum)
        there = np.asarray(result.index) >= 0
        np.testing.assert_array_equal(there.sum(axis=1), np.minimum(within.sum(axis=1), maximum))
        nearest = np.sort(np.where(within, distance2, np.inf), axis=1)[:, :maximum]
        distance = np.asarray(result.distance)[:, : nearest.shape[1]]
        np.testing.assert_allclose(distance, np.sqrt(nearest), rtol=1e-5, atol=1e-6)
        row, column = np.nonzero(there)
        assert within[row, np.asarray(result.index)[row, column]].all()


@pytest.mark.long
def test_over_devices() -> None:
    pos, counts = oracles.clustered(500, 3), uneven(500, 3)
    result = nearest_within.smap(mesh_of(3), jit=True)(deal(pos, counts, 500), 0.05, 7)
    here = nearest_within(pos, 0.05, 7)
    for value, reference in zip(jax.tree.leaves(result), jax.tree.leaves(here), strict=True):
        np.testing.assert_array_equal(joined(value, counts), reference)
    np.testing.assert_array_equal(here.count, count_within(pos, 0.05))


@pytest.mark.parametrize(("maximum", "words"), [(2**31, "max_neighbours is 2147483648; it must be below")])
def test_invalid_capacities_raise(maximum: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        nearest_within(oracles.uniform(10, 3), 0.1, maximum)
