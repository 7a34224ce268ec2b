"""Sums over smoothing kernels that add whole nodes, compared with their definition by all pairs."""

import functools
import itertools
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import deal, even, joined, mesh_of
from oracles import KernelSum, assert_near

from jztree.config import RadiusConfig, TreeConfig
from jztree.radius import kernel_sums

pytestmark = pytest.mark.emulated

FORMS = ("gather", "scatter", "mean_kernel", "mean_h")
KERNELS = ("top_hat", "gaussian", "cubic_spline", "wendland_c4")
CONFIGS = [RadiusConfig(), RadiusConfig(tree=TreeConfig(leaf_size=4, fan_out=2))]


def shifted(pos: np.ndarray) -> np.ndarray:
    """Return the same positions in a unit box, moved to several images of the box."""
    moved = pos.copy()
    moved[::3] -= 1
    moved[1::5, 0] += 3
    return moved


@pytest.mark.parametrize("cfg", CONFIGS, ids=["leaves", "small leaves"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("box", [None, 1.0, (0.0, 1.0)], ids=["open", "periodic", "mixed"])
def test_top_hats_from_a_leaf_to_the_whole_set(x64: None, box: Any, form: str, cfg: RadiusConfig) -> None:
    dims, rng = 3 if box in (None, 1.0) else 2, np.random.default_rng(1)
    pos, query = oracles.clustered(400, dims) % 1, oracles.uniform(70, dims, seed=4)
    if box is not None:
        pos = shifted(pos)
    v, spread = rng.normal(size=(400, 2)), rng.uniform(0.7, 1.4, 400)
    for radius, varied in itertools.product((0.05, 0.3, 0.8, 3.0), (False, True)):
        h = radius * spread if varied else radius
        h_query = radius * spread[:70] if varied else radius
        result = kernel_sums(pos, h, boxsize=box, values=v, kernel="top_hat", form=form, cfg=cfg)
        assert_near(result, KernelSum("top_hat", form, box)(pos, pos, h, h, v), 1e-6)
        result = kernel_sums(
            pos, h, boxsize=box, queries=query, query_h=h_query, values=v, kernel="top_hat", form=form, cfg=cfg
        )
        assert_near(result, KernelSum("top_hat", form, box)(query, pos, h, h_query, v), 1e-6)


def test_integers_under_top_hats_are_exact(x64: None) -> None:
    """Float64 sums of integers over whole nodes are exact."""
    pos, v = oracles.uniform(3_000, 3).astype(np.float64), np.random.default_rng(2).integers(-99, 99, 3_000)
    is_near = oracles.squared_distances(pos, pos) <= 0.4**2
    result = np.asarray(kernel_sums(pos, 0.4, values=v.astype(np.float64), kernel="top_hat")) * (4 / 3 * np.pi * 0.4**3)
    np.testing.assert_allclose(result, is_near @ v, atol=1e-9)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("lengths", ["one", "one a place", "different"])
def test_coincident_points(x64: None, lengths: str, kernel: str, form: str) -> None:
    rng = np.random.default_rng(3)
    many = rng.permutation([1] * 20 + [3] * 5 + [150, 90, 60])
    place = np.repeat(np.arange(len(many)), many)
    pos, v = rng.random((len(many), 3))[place], rng.normal(size=(len(place), 2))
    each = rng.uniform(0.3, 0.6, len(many))[place]
    h = {"one": 0.5, "one a place": each, "different": rng.uniform(0.3, 0.6, len(place))}[lengths]
    for box, cfg in itertools.product((None, 1.0), CONFIGS):
        expected = KernelSum(kernel, form, box)(pos, pos, h, h, v)
        assert_near(kernel_sums(pos, h, boxsize=box, values=v, kernel=kernel, form=form, cfg=cfg), expected, 1e-12)


@pytest.mark.parametrize("kernel", ["gaussian", "cubic_spline"])
@pytest.mark.parametrize("form", FORMS)
def test_derivatives_of_coincident_points(x64: None, form: str, kernel: str) -> None:
    """Compare with the same points with one value per place, which no node adds as a whole."""
    rng = np.random.default_rng(4)
    place = np.repeat(np.arange(4), [120, 90, 1, 70])
    pos, v, u = rng.random((4, 3)), rng.normal(size=len(place)), rng.normal(size=(30, 3))
    query, value = rng.random((30, 3)), np.array([v[place == i].sum() for i in range(4)])

    @jax.jit
    @functools.partial(jax.grad, argnums=(0, 1))
    def gradient(pos: Any, value: Any) -> jax.Array:
        return (
            u
            * kernel_sums(
                pos,
                0.9,
                boxsize=1.0,
                queries=query,
                query_h=0.8,
                values=value,
                kernel=kernel,
                form=form,
                derivative="gradient",
            )
        ).sum()

    by_pos, by_value = map(np.asarray, gradient(pos[place], v))
    alone = gradient(pos, value)
    assert_near(np.array([by_pos[place == i].sum(axis=0) for i in range(4)]), np.asarray(alone[0]), 1e-10)
    assert_near(np.array([by_value[place == i][0] for i in range(4)]), np.asarray(alone[1]), 1e-10)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("kernel", ["cubic_spline", "wendland_c4"])
def test_values_with_an_overflowing_sum_are_added_pairwise(x64: None, kernel: str, form: str) -> None:
    """Near the edge of the kernel, each weighted value is small enough."""
    pos, query = np.zeros((100, 3)), np.array([[0.999, 0, 0], [0, -0.9995, 0]])
    result = kernel_sums(pos, 1.0, queries=query, query_h=1.0, values=np.full(100, 1e308), kernel=kernel, form=form)
    expected = KernelSum(kernel, form)(query, pos, 1.0, 1.0, np.full(100, 1e8))
    assert_near(np.asarray(result) / 1e300, expected, 1e-10)


@pytest.mark.parametrize("kernel", ["top_hat", "gaussian"])
@pytest.mark.parametrize("spread", [1.0, 0.0], ids=["uniform", "one place"])
def test_whole_nodes_are_added(x64: None, spread: float, kernel: str) -> None:
    """There would be 10^10 pairs, or 4 * 10^6 for uniform points and a Gaussian."""
    n = 2_000 if kernel == "gaussian" and spread else 100_000
    pos, v = oracles.uniform(n, 3) * np.float32(spread), np.random.default_rng(5).random(n)
    result = np.asarray(kernel_sums(pos, 20.0, values=v, kernel=kernel, truncate=1.0))
    assert_near(result[:5], KernelSum(kernel, truncate=1.0)(pos[:5], pos, 20.0, 20.0, v), 1e-6)
    np.testing.assert_allclose(result, result[0], rtol=0 if spread == 0 or kernel == "top_hat" else 0.05)


@pytest.mark.parametrize("kernel", ["top_hat", "gaussian"])
def test_sums_of_nodes_have_the_same_bits_with_any_number_of_threads(x64: None, set_threads: Any, kernel: str) -> None:
    pos = np.repeat(oracles.uniform(300, 3), 30, axis=0)
    pos[: len(pos) // 2] = oracles.uniform(len(pos) // 2, 3, seed=2)
    v = np.random.default_rng(6).normal(size=len(pos))
    expected = kernel_sums(pos, 0.2, values=v, kernel=kernel)
    for threads in (1, 2, 5):
        set_threads(threads)
        np.testing.assert_array_equal(kernel_sums(pos, 0.2, values=v, kernel=kernel), expected)


@pytest.mark.long
@pytest.mark.parametrize("kernel", ["top_hat", "cubic_spline"])
def test_nodes_over_devices(kernel: str) -> None:
    pos = np.repeat(oracles.uniform(60, 3), 10, axis=0)
    result = kernel_sums.smap(mesh_of(3), jit=True)(deal(pos, even(600, 3)), 0.6, boxsize=1.0, kernel=kernel)
    assert_near(
        joined(np.asarray(result), even(600, 3)), KernelSum(kernel, box=1.0)(pos, pos, 0.6, 0.6, np.ones(600)), 1e-5
    )
