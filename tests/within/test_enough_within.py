"""The two native kernels of DBSCAN that may stop before they visit all sources, compared with all pairs."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import kernels
from jztree.config import TreeConfig
from jztree.jax_ext import exact
from jztree.tree import kernel_tree, zsort_and_tree

pytestmark = pytest.mark.emulated

NONE = np.iinfo(np.int32).max
SMALL_LEAVES = TreeConfig(leaf_size=5, fan_out=3)


def tree_of(pos: np.ndarray, num: int, cfg: TreeConfig) -> kernels.Tree:
    posz, th = zsort_and_tree(jnp.asarray(pos), cfg)
    return kernel_tree(posz, jnp.int32(num), th)


def within(sources: kernels.Tree, queries: kernels.Tree, radius: float) -> np.ndarray:
    query, source = np.asarray(queries.posz), np.asarray(sources.posz)
    return oracles.squared_distances(query, source) <= radius**2


def enough(sources: kernels.Tree, queries: kernels.Tree | None, radius: float, minimum: int) -> np.ndarray:
    box = exact(0, sources.posz.shape[1:])
    return np.asarray(kernels.enough_within(sources, queries, exact(radius, ()), minimum, box))


RADII = (0.0, 0.01, 0.05, 0.2, 0.5, 1.5)


@pytest.mark.parametrize("dims", range(1, 5))
@pytest.mark.parametrize("cfg", [SMALL_LEAVES, TreeConfig()], ids=["small leaves", "leaves"])
def test_enough_within_equals_brute_force(dims: int, cfg: TreeConfig) -> None:
    pos, asked = oracles.clustered(500, dims), oracles.uniform(150, dims, seed=4) * 1.2 - 0.1
    sources, queries = tree_of(pos, 500, cfg), tree_of(asked, 150, cfg)
    for radius, minimum in itertools.product(RADII, (1, 2, 7, 60, 250, 500, 501)):
        for reference in (queries, sources):
            expected = within(sources, reference, radius).sum(axis=1) >= minimum
            np.testing.assert_array_equal(enough(sources, reference, radius, minimum), expected)
        np.testing.assert_array_equal(enough(sources, None, radius, minimum), enough(sources, sources, radius, minimum))


def test_ties_at_the_radius_count() -> None:
    sources = tree_of(oracles.lattice(7, 3, spacing=0.1), 343, SMALL_LEAVES)
    for radius, minimum in itertools.product((0.1, float(np.float32(0.1)), 0.1 * np.sqrt(3)), (4, 5, 7, 27)):
        expected = within(sources, sources, radius).sum(axis=1) >= minimum
        np.testing.assert_array_equal(enough(sources, None, radius, minimum), expected)


@pytest.mark.parametrize("num", [0, 1, 40])
def test_padding_rows_never_have_enough(num: int) -> None:
    pos = oracles.uniform(60, 3)
    sources = tree_of(pos[:num], num, SMALL_LEAVES)
    padded = sources._replace(posz=jnp.full((60, 3), jnp.nan).at[:num].set(sources.posz))
    np.testing.assert_array_equal(enough(padded, None, 2.0, 1), np.arange(60) < num)
    assert not enough(padded, None, 2.0, num + 1).any()


@pytest.mark.parametrize("values", ["few", "different", "equal"])
@pytest.mark.parametrize("cfg", [SMALL_LEAVES, TreeConfig()], ids=["small leaves", "leaves"])
def test_least_within_equals_brute_force(cfg: TreeConfig, values: str) -> None:
    pos, asked = oracles.clustered(500, 3), oracles.uniform(150, 3, seed=4) * 1.2 - 0.1
    sources, queries = tree_of(pos, 500, cfg), tree_of(asked, 150, cfg)
    rng = np.random.default_rng(0)
    numbers = {"few": rng.integers(0, 4, 500), "different": rng.permutation(500), "equal": np.full(500, 7)}[values]
    value = jnp.asarray(numbers, jnp.int32)
    for radius in RADII:
        result = kernels.least_within(sources, value, queries, None, exact(radius, ()), exact(0, (3,)))
        expected = np.where(within(sources, queries, radius), value, NONE).min(axis=1)
        np.testing.assert_array_equal(result, expected)


def test_least_within_in_the_given_row_order() -> None:
    sources, queries = (tree_of(oracles.uniform(n, 3, seed=n), n, SMALL_LEAVES) for n in (90, 40))
    value, rows = jnp.arange(90, dtype=jnp.int32), jax.random.permutation(jax.random.key(1), 40)
    result = kernels.least_within(sources, value, queries, None, exact(0.3, ()), exact(0, (3,)))
    placed = kernels.least_within(sources, value, queries, rows, exact(0.3, ()), exact(0, (3,)))
    np.testing.assert_array_equal(np.asarray(placed)[rows], result)


def test_invalid_number_of_sources_raises() -> None:
    sources = tree_of(oracles.uniform(10, 3), 10, TreeConfig())
    for minimum in (0, -1, 2**31):
        with pytest.raises(
            oracles.RUN_TIME_ERROR, match="the required number of sources is invalid; it must be from 1 to"
        ):
            enough(sources, None, 0.1, minimum)
