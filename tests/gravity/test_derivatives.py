"""Derivatives of potentials and accelerations, compared with differences and with sums over pairs in float64."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jztree as jz
from jztree import kernels
from jztree.jax_ext import exact

from .test_group_potential import ball, uniform

FUNCTIONS = [jz.potential, jz.acceleration]


def differences(function: Callable[..., jax.Array], values: Any, moves: Any, step: float = 1e-6) -> np.ndarray:
    """Return central differences of a function along ``moves``."""
    ahead, behind = (
        function(*(value + sign * step * move for value, move in zip(values, moves, strict=True))) for sign in (1, -1)
    )
    return np.asarray((ahead - behind) / (2 * step))


def case(n: int, dims: int) -> tuple[tuple[jax.Array, jax.Array], tuple[jax.Array, jax.Array]]:
    """Return positions with distances of at least 1 / (2 n), masses, and the changes of both."""
    random = np.random.default_rng(n)
    pos = random.random((n, dims))
    pos[:, 0] = (np.arange(n) + pos[:, 0] / 2) / n
    moves = random.standard_normal((n, dims))
    return (jnp.asarray(pos), jnp.asarray(random.random(n))), (jnp.asarray(moves), jnp.asarray(random.random(n)))


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("dims", [1, 2, 4, 3])
@pytest.mark.parametrize("how", [{}, {"softening": 0.2}, {"softening": 0.2, "kernel": "spline"}])
def test_both_modes_agree_with_differences(how: Any, dims: int, function: Any, x64: None) -> None:
    values, moves = case(30, dims)
    labels = jz.group_labels(values[0], 0.2, boxsize=4.0)

    def field(pos: jax.Array, mass: jax.Array) -> jax.Array:
        result: jax.Array = function.jit(pos, masses=mass, groups=labels, boxsize=4.0, gravity=3.0, **how)
        return result

    result, change = jax.jvp(field, values, moves)
    scale = float(jnp.abs(change).max())
    np.testing.assert_allclose(change, differences(field, values, moves, 1e-7), rtol=1e-5, atol=1e-6 * scale)
    cotangent = jnp.asarray(np.random.default_rng(1).standard_normal(result.shape))
    by_pos, by_mass = jax.vjp(field, *values)[1](cotangent)
    forward, reverse = (cotangent * change).sum(), (by_pos * moves[0]).sum() + (by_mass * moves[1]).sum()
    np.testing.assert_allclose(forward, reverse, rtol=1e-10)


def pair_fields(pos: jax.Array, mass: jax.Array, softening: float) -> tuple[jax.Array, jax.Array]:
    """Return potentials and accelerations as sums over pairs, with Plummer's softening."""
    away = pos[None] - pos[:, None]
    same = jnp.eye(len(pos), dtype=bool)
    inverse = jnp.where(same, 0, (jnp.where(same, 1, (away**2).sum(axis=-1)) + softening**2) ** -0.5)
    return -inverse @ mass, ((mass * inverse**3)[..., None] * away).sum(axis=1)


def accelerations_of_pairs(mass: jax.Array, softening: float, pos: jax.Array) -> jax.Array:
    return pair_fields(pos, mass, softening)[1]


@pytest.mark.parametrize("mode", [jax.jacfwd, jax.jacrev])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_jacobians_of_a_large_group(function: Any, mode: Any, x64: None) -> None:
    """The group has a tree, which also sums with tangents in place of the masses."""
    pos, mass = jnp.asarray(ball(700, 3, 1, 3)), jnp.asarray(1 + uniform(700)[:, 0])
    shape, mask = jnp.asarray(ball(4, 3, 1, 4)), jnp.arange(700) % 175 == 0

    def moved(values: jax.Array) -> jax.Array:
        places = pos + jnp.where(mask[:, None], values[0] * shape[jnp.arange(700) // 175], 0)
        return function(places, masses=mass * (1 + values[1]), softening=0.05)[::90].reshape(-1)

    def expected(values: jax.Array) -> jax.Array:
        places = pos + jnp.where(mask[:, None], values[0] * shape[jnp.arange(700) // 175], 0)
        fields = pair_fields(places, mass * (1 + values[1]), 0.05)
        return fields[FUNCTIONS.index(function)][::90].reshape(-1)

    result, reference = (jax.jit(jacobian)(jnp.zeros(2)) for jacobian in (mode(moved), jax.jacfwd(expected)))
    scale = np.abs(reference).max(axis=0)
    assert (np.abs(result - reference) <= 2e-3 * scale).all()


def test_second_derivatives_of_the_potential(x64: None) -> None:
    (pos, mass), _ = case(12, 3)

    def energy(pos: jax.Array) -> jax.Array:
        return (mass * jz.potential(pos, masses=mass, softening=0.1)).sum() / 2

    expected = jax.jit(jax.hessian(lambda pos: mass @ pair_fields(pos, mass, 0.1)[0] / 2))(pos)
    for hessian in (jax.hessian(energy), jax.jacrev(jax.grad(energy))):
        np.testing.assert_allclose(jax.jit(hessian)(pos), expected, rtol=1e-9, atol=1e-9 * np.abs(expected).max())


def test_forces_are_the_derivative_of_the_energy(x64: None) -> None:
    (pos, mass), _ = case(40, 3)
    energy = jax.grad(lambda pos: (mass * jz.potential(pos, masses=mass, softening=0.1)).sum() / 2)
    forces = mass[:, None] * np.asarray(jz.acceleration.jit(pos, masses=mass, softening=0.1))
    np.testing.assert_allclose(-np.asarray(jax.jit(energy)(pos)), forces, rtol=1e-12)


def test_third_derivatives_raise(x64: None) -> None:
    (pos, mass), _ = case(5, 3)
    total = jax.grad(lambda pos: (jz.acceleration(pos, masses=mass) ** 2).sum())
    with pytest.raises(ValueError, match="no derivative"):
        jax.eval_shape(jax.jacfwd(total), pos)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("grouped", [False, True])
def test_derivatives_with_nan_in_padding(grouped: bool, function: Any, x64: None) -> None:
    (pos, mass), _ = case(20, 3)

    def loss(pos: jax.Array, mass: jax.Array, num: int) -> jax.Array:
        part = jz.data.PosMass(pos=pos, mass=mass, num=num)
        groups = jz.group_labels(part, 0.3) if grouped else None
        result: jax.Array = function(part, softening=0.1, groups=groups).sum()
        return result

    gradient = jax.jit(jax.grad(loss, argnums=(0, 1)), static_argnames="num")
    expected = gradient(pos, mass, num=20)
    padded = [jnp.concatenate([column, jnp.full_like(column[:4], jnp.nan)]) for column in (pos, mass)]
    for result, reference in zip(gradient(*padded, num=20), expected, strict=True):
        np.testing.assert_allclose(result[:20], reference, rtol=1e-12)
        np.testing.assert_array_equal(result[20:], 0)


@pytest.mark.parametrize("function", FUNCTIONS)
def test_differentiating_lengths_raises(function: Any) -> None:
    pos = uniform(5).astype(np.float32)
    with pytest.raises(ValueError, match="no derivative"):
        jax.eval_shape(jax.grad(lambda x: function(pos, softening=x).sum()), 0.1)
    with pytest.raises(ValueError, match="no derivative"):
        jax.eval_shape(jax.jacfwd(lambda x: function(pos, boxsize=x, groups=np.zeros(5, np.int32))), 9.0)


@pytest.mark.emulated
@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("counts", [[1, 0, 60], [0], [5, 3, 2]])
def test_tides_of_groups(counts: list[int], transposed: bool, spline: bool) -> None:
    """The kernel agrees with the derivatives of sums over pairs of each group; rows in no group are 0."""
    n = sum(counts) + 2
    random = np.random.default_rng(n)
    pos, mass = random.random((n, 3)).astype(np.float32), random.random(n).astype(np.float32)
    moves = random.standard_normal((n, 3)).astype(np.float32)
    offsets = np.cumsum([0, *counts[:-1]]).astype(np.int32)
    segments = jnp.int32(len(counts)), jnp.asarray(counts, jnp.int32), jnp.asarray(offsets)
    lengths = exact(0.01 if spline else 0.3, ()), exact(0.0, (3,))
    how = {"spline": spline, "transposed": transposed}
    parts = [
        np.asarray(kernels.group_tides(pos, mass, moves, segments, *lengths, share=share, shares=2, **how))
        for share in (0, 1)
    ]
    assert not ((parts[0] != 0) & (parts[1] != 0)).any()
    expected = np.zeros((n, 3))

    def along(fields: Any, pos: jax.Array, moves: jax.Array) -> jax.Array:
        return jax.vjp(fields, pos)[1](moves)[0] if transposed else jax.jvp(fields, (pos,), (moves,))[1]

    for first, count in zip(offsets, counts, strict=True):
        rows = slice(first, first + count)
        if count > 1:
            fields = functools.partial(accelerations_of_pairs, mass[rows], 0.0 if spline else 0.3)
            expected[rows] = jax.jit(along, static_argnums=0)(fields, pos[rows], moves[rows])
    np.testing.assert_allclose(parts[0] + parts[1], expected, rtol=1e-3, atol=2e-4 * (1 + np.abs(expected).max()))
