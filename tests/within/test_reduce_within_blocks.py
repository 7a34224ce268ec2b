"""Limits of the blocks in which `reduce_within` processes queries."""

import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree.arguments import Radii
from jztree.jax_ext import exact
from jztree.radius import count_within, reduce_within

pytestmark = [pytest.mark.emulated, pytest.mark.core]


def test_block_that_ends_among_equal_points() -> None:
    """The queries after its end are at the same place and have no pairs, so they need no capacity."""
    queries = np.zeros((4_200, 2), np.float32)
    result = reduce_within(
        np.zeros((3, 2), np.float32),
        1.0,
        lambda query, source, vector, distance: jnp.ones(distance.shape),
        queries=queries,
    )
    np.testing.assert_array_equal(result, np.full(4_200, 3))


def test_negative_radii_reach_nothing_next_to_positive_ones() -> None:
    """They do not reach particles at the same place. (User radii are never negative; those outside a block are.)"""
    pos, radius = np.zeros((300, 2), np.float32), np.where(np.arange(300) % 3 == 0, -1, 0.5)
    result = count_within(pos, Radii(None, exact(radius, radius.shape)))
    np.testing.assert_array_equal(result, np.where(radius < 0, 0, 300))


def test_result_without_a_sum_raises() -> None:
    with pytest.raises(TypeError, match="pair_func returns bool, which has no sum"):
        reduce_within(oracles.uniform(9, 3), 0.5, lambda query, source, vector, distance: distance > 0)
