"""Arguments in the form of scripts for the published package, and the errors for unsupported ones."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree.data import Pos, expand_particles
from jztree.jax_ext import is_concrete

POS = oracles.uniform(60, 3).astype(np.float32)


def calls(name: str) -> Any:
    """Return `jztree.knn.knn` of `POS`, plain, compiled or mapped."""
    if name == "smap":
        part = expand_particles(Pos(pos=POS), 2)
        return lambda k: jz.knn.knn.smap(mesh_of(2), jit=True)(part, k)
    return lambda k: {"plain": jz.knn.knn, "jit": jz.knn.knn.jit}[name](POS, k)


@pytest.mark.parametrize("name", ["plain", "jit", "smap"])
def test_k_is_any_known_integer(name: str) -> None:
    knn = calls(name)
    rad = np.asarray(knn(3)[0])
    for k in (np.int64(3), jnp.int32(3), np.array(3, np.uint8)):
        np.testing.assert_array_equal(knn(k)[0], rad)
    for k in ([1, 2], 2.0, True, "2", None, np.ones(2, int), jnp.float32(2)):
        with pytest.raises(TypeError, match="k must be an integer that is known"):
            knn(k)


def test_traced_k_is_refused() -> None:
    with pytest.raises(TypeError, match="k must be an integer that is known"):
        jax.jit(lambda k: jz.knn.knn(POS, k)[0])(3)
    assert is_concrete(jnp.int32(3))


def test_queries_of_another_precision_raise_and_suggest_the_cast(x64: None) -> None:
    for pos, query in ((POS, POS.astype(np.float64)), (POS.astype(np.float64), POS)):
        for call in (jz.knn.knn.jit, jz.knn.knn):
            with pytest.raises(ValueError, match=rf"queries with \.astype\('{pos.dtype}'\)"):
                call(pos, 2, part_query=query)
        with pytest.raises(ValueError, match=rf"particles with \.astype\('{query.dtype}'\)"):
            jz.radius.count_within(pos, 0.1, queries=query)


@pytest.mark.parametrize(
    "call",
    [
        lambda: jz.tree.zsort_and_tree(POS, None, None, 1.0),
        lambda: jz.tree.zsort_and_tree_multi_type([POS], None, None, 1.0),
        lambda: jz.tree.build_tree_hierarchy(POS, None, 1.0),
        lambda: jz.tree.search_sorted_z.jit(POS, POS, 64, False, 1.0),
        lambda: jz.tree.zsort_and_tree.jit(POS, None, None, 1.0),
    ],
)
def test_positional_arguments_with_another_meaning_raise(call: Any) -> None:
    with pytest.raises(TypeError, match="positional"):
        call()


# The domain of the z-order


def test_distant_particle_changes_the_order_unless_a_domain_is_given() -> None:
    far = np.r_[POS, [[1e30, 0, 0]]].astype(np.float32)
    corners = (np.zeros(3), np.ones(3))
    for zsort in (jz.tree.zsort, jz.tree.zsort.jit):
        order = np.asarray(zsort(POS, domain=corners)[1])
        kept = np.asarray(zsort(far, domain=corners)[1])
        np.testing.assert_array_equal(kept[kept < 60], order)
        changed = np.asarray(zsort(far)[1])
        assert not np.array_equal(changed[changed < 60], order)


@pytest.mark.parametrize("jit", [False, True], ids=["plain", "jit"])
def test_search_in_an_explicit_domain(jit: bool) -> None:
    find = jz.tree.search_sorted_z.jit if jit else jz.tree.search_sorted_z
    corners = (jnp.zeros(3), jnp.ones(3))
    posz = np.asarray(jz.tree.zsort(POS[:40], domain=corners)[0])
    together, rows = jz.tree.zsort(POS, domain=corners)
    result = np.asarray(find(posz, POS[40:], domain=corners))
    # Count how many of the 40 precede each of the others in the order of all.
    rows = np.asarray(rows)
    before = np.cumsum(rows < 40)[np.argsort(rows)][40:]
    np.testing.assert_array_equal(result, before)
    assert together.shape == (60, 3)
    np.testing.assert_array_equal(find(posz_query=posz, posz=posz, domain=corners, block_size=32), np.arange(40))
    with pytest.raises(ValueError, match="leaf_search=True"):
        find(posz, posz, leaf_search=True)


@pytest.mark.parametrize(
    "corners", [([0, 0, 0], [1, 1, 1]), [(0, 0, 0.0), (1, 1, 1)], np.array([[0, 0, 0], [1, 1, 1]])], ids=str
)
def test_domains_of_any_numbers(corners: Any) -> None:
    expected = jz.tree.zsort(POS, domain=(np.zeros(3), np.ones(3)))[1]
    for call in (jz.tree.zsort, jz.tree.zsort.jit):
        np.testing.assert_array_equal(call(POS, domain=corners)[1], expected)
    posz = POS[np.asarray(expected)]
    np.testing.assert_array_equal(jz.tree.search_sorted_z.jit(posz, posz, domain=corners), np.arange(len(POS)))


def test_invalid_domains_raise() -> None:
    for domain in ((0.0, 1.0), np.zeros((3, 2)), 3, "ab", (np.zeros(2), np.ones(2)), (np.zeros(3),)):
        with pytest.raises(ValueError, match="two corners of 3 coordinates"):
            jz.tree.zsort(POS, domain=domain)
    for domain in ((np.ones(3), np.zeros(3)), (np.zeros(3), np.full(3, np.inf)), (np.zeros(3), np.full(3, np.nan))):
        with pytest.raises(ValueError, match="domain must have finite corners"):
            jz.tree.zsort(POS, domain=domain)
        with pytest.raises(Exception, match="domain must have finite corners"):
            jax.block_until_ready(jax.jit(lambda domain: jz.tree.zsort(POS, domain=domain))(domain))
