"""The second kNN search over ranks: for some leaves, among more sources than in the first search."""

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import kernels, tree
from jztree.config import TreeConfig
from jztree.jax_ext import exact
from jztree.tree import build_in_domain, kernel_tree
from jztree.tree._zorder import Domain, domain_of

pytestmark = pytest.mark.emulated

N = 500
BOXES = {"open": None, "periodic": 1.0}


def positions(name: str, dtype: type) -> np.ndarray:
    rng = np.random.default_rng(3)
    pos = rng.random((N, 3))
    if name == "lattice":
        pos = rng.integers(0, 5, (N, 3)) / 8
    elif name == "one point":
        pos[:] = 0.25
    elif name == "close pairs":  # so close that their squared distances vanish in float32
        pos[::2] = pos[0] * 1e-25 * rng.random((N // 2, 1))
    return pos.astype(dtype)


def tree_of(posz: jax.Array, domain: Domain) -> kernels.Tree:
    num = jnp.int32(len(posz))
    return kernel_tree(posz, num, build_in_domain(posz, num, domain, TreeConfig(leaf_size=16)))


@pytest.mark.long
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("name", ["uniform", "lattice", "one point", "close pairs"])
@pytest.mark.parametrize("own", [(0, 180), (170, 330), (497, 500), (0, 500)])
def test_open_leaves_give_the_results_of_a_search_among_all(
    x64: None, dtype: type, box: str, name: str, own: tuple[int, int]
) -> None:
    (begin, end), length = own, exact(BOXES[box] or 0.0, (3,))
    posz = jnp.asarray(tree.zsort(positions(name, dtype), boxsize=BOXES[box])[0])
    domain, _ = domain_of([posz], [N], ["the positions"], length)
    everything, ours = tree_of(posz, domain), tree_of(posz[begin:end], domain)
    number = jnp.asarray(np.random.default_rng(5).permutation(N).astype(np.int32))
    place = jnp.asarray(np.random.default_rng(6).permutation(end - begin).astype(np.int32))
    is_open = jnp.asarray(np.arange(ours.plane_sizes[0]) % 3 != 1, jnp.int32)
    searched = np.repeat(np.asarray(is_open), np.diff(ours.particle_splits[: len(is_open) + 1])) > 0
    for k in (1, 8, 40):
        for limit, others in ((None, False), (0.2, False), (None, True)):
            far = {"domain": domain.corners, "limit": None if limit is None else exact(limit, ()), "others": others}
            first = kernels.knn(ours, number[begin:end], None, place, k, length, **far)
            complete = kernels.knn(everything, number, ours, place, k, length, own_offset=begin, **far)
            again = kernels.knn(
                *(everything, number, ours, place, k, length),
                **far,
                own_offset=begin,
                open_leaves=is_open,
                found=tuple(map(jnp.copy, first)),
            )
            for result, before, among_all in zip(again, first, complete, strict=True):
                expected = np.where(searched[:, None], among_all[place], before[place])
                np.testing.assert_array_equal(result[place], expected, f"k {k}, limit {limit}, others {others}")


def test_repeated_search_finds_the_nearest() -> None:
    pos = positions("uniform", np.float32)
    posz = jnp.asarray(tree.zsort(pos)[0])
    length = exact(0.0, (3,))
    domain, _ = domain_of([posz], [N], ["the positions"], length)
    ours = tree_of(posz[100:300], domain)
    first = kernels.knn(ours, None, None, None, 6, length, domain=domain.corners)
    rad, idx = kernels.knn(
        *(tree_of(posz, domain), None, ours, None, 6, length),
        own_offset=100,
        open_leaves=jnp.ones(ours.plane_sizes[0], jnp.int32),
        domain=domain.corners,
        found=(first[0], first[1] + 100),
    )
    assert np.any(np.asarray(first[0]) > np.asarray(rad))
    expected = oracles.brute_knn(np.asarray(posz), 6, query=np.asarray(posz[100:300]))
    np.testing.assert_array_equal(idx, expected)


@pytest.mark.watched
def test_repeated_search_with_separate_queries() -> None:
    posz = jnp.asarray(tree.zsort(positions("uniform", np.float32))[0])
    length, sample = exact(0.0, (3,)), tree.zsort(oracles.uniform(90, 3, seed=8))[0]
    domain, _ = domain_of([posz, sample], [N, 90], ["the positions"] * 2, length)
    asking = tree_of(sample, domain)
    first = kernels.knn(tree_of(posz[100:300], domain), None, asking, None, 6, length, domain=domain.corners)
    everything, to_open = tree_of(posz, domain), jnp.ones(asking.plane_sizes[0], jnp.int32)
    complete = kernels.knn(everything, None, asking, None, 6, length, domain=domain.corners)
    again = kernels.knn(
        *(everything, None, asking, None, 6, length), open_leaves=to_open, domain=domain.corners, found=first
    )
    for result, expected in zip(again, complete, strict=True):
        np.testing.assert_array_equal(result, expected)
