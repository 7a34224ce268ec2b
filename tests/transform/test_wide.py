"""64-bit counts and float64 sums as 32-bit words."""

import jax
import numpy as np

from jztree.jax_ext import exact
from jztree.pairs._wide_numbers import add_counts, add_sums
from jztree.radius import WideCounts, WideSums


def test_two_word_integers_are_added_with_carries() -> None:
    random = np.random.default_rng(9)
    counts = random.integers(0, 2**62, (2, 1000), dtype=np.uint64)
    words = counts.view(np.uint32).reshape(2, 1000, 2)
    added = add_counts(*map(jax.numpy.asarray, words))
    np.testing.assert_array_equal(np.asarray(WideCounts(added)), counts.sum(axis=0).astype(np.int64))
    sums = random.normal(size=(2, 1000)) * 10 ** random.uniform(-9, 9, (2, 1000))
    # Words of numbers near the ends of the range are scaled, and 0 may be added to any number.
    for scale in (1.0, 1e-28, 1e28, [[1e-28], [0.0]], [[0.0], [1e-28]], [[1e-28], [1.0]], [[1.0], [1e28]], 0.0):
        given = sums * scale
        words = exact(given, given.shape).words
        total = jax.jit(add_sums)(*map(jax.numpy.asarray, words))
        error = np.abs(np.asarray(WideSums(total)) - given.sum(axis=0))
        assert (error <= 2.0**-46 * np.abs(given).max(axis=0)).all(), scale
