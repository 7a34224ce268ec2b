"""The shared memory that kernels for pair counts need on a GPU, in the highest hierarchy and with the most bins."""

from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from jztree import kernels
from jztree.radius import pair_counts
from pairs.test_pair_counts import assert_counts, brute, sets

pytestmark = pytest.mark.emulated


def with_planes(tree: kernels.Tree, planes: int) -> kernels.Tree:
    """Return the hierarchy with more planes, of one node each, up to this number."""
    for _ in range(planes - len(tree.plane_sizes)):
        ends, top = jnp.array([0, tree.plane_sizes[-1]], jnp.int32), slice(-tree.plane_sizes[-1], None)
        tree = tree._replace(
            splits=jnp.append(tree.splits, ends),
            particle_splits=jnp.append(tree.particle_splits, jnp.array([0, tree.num], jnp.int32)),
            lower=jnp.vstack([tree.lower, tree.lower[top].min(axis=0)]),
            upper=jnp.vstack([tree.upper, tree.upper[top].max(axis=0)]),
            plane_sizes=(*tree.plane_sizes, 1),
        )
    return tree


def test_highest_hierarchy_and_most_bins_fit_into_shared_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """The stack of a warp grows with the planes. With ``fan_out=2``, 1e9 particles have nearly 32 planes."""
    count, planes = kernels.pair_counts, []

    def higher(single: Any, *rest: Any) -> Any:
        single = single._replace(tree=with_planes(single.tree, 32))
        planes.append(len(single.tree.plane_sizes))
        return count(single, *rest)

    monkeypatch.setattr(kernels, "pair_counts", higher)
    pos, edges = sets(3)[0], np.linspace(0, 1.2, 3073)
    assert_counts(pair_counts(pos, edges), brute(pos, pos, edges))
    assert planes == [32]
