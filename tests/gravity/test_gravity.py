"""Potentials and accelerations of particles in the order of the caller, and their derivatives."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jztree as jz
from jztree.data import PosMass

from .test_group_potential import direct_sums, relative_errors, steep, uniform


def test_particles_with_padding_keep_their_order() -> None:
    pos = steep(3000).astype(np.float32)
    mass = np.random.default_rng(1).random(3000).astype(np.float32)
    part = PosMass(pos=pos, mass=mass, num=jnp.int32(2900))
    expected = direct_sums(pos[:2900], mass[:2900], np.arange(2900))
    potential = np.asarray(jz.potential.jit(part, gravity=2.0))
    acceleration = np.asarray(jz.acceleration.jit(pos[:2900], masses=mass[:2900]))
    assert relative_errors(potential[:2900], 2 * expected[0]) < 1e-3
    assert relative_errors(acceleration, expected[1]) < 1e-3
    assert not potential[2900:].any()


@pytest.mark.emulated
def test_groups_in_a_periodic_box() -> None:
    pos = np.concatenate([0.05 * steep(700) % 1, 0.5 + 0.05 * steep(300)]).astype(np.float32)
    np.random.default_rng(1).shuffle(pos)
    labels = np.asarray(jz.group_labels(pos, 0.05, boxsize=1.0))
    potential = np.asarray(jz.potential.jit(pos, boxsize=1.0, groups=labels, softening=1e-3, kernel="spline"))
    for label in np.unique(labels):
        rows = np.flatnonzero(labels == label)
        expected = direct_sums(pos[rows], np.ones(len(rows)), np.arange(len(rows)), 1e-3, True, 1.0)[0]
        assert np.quantile(np.abs(potential[rows] - expected) - 1e-3 * np.abs(expected), 0.999) <= 0


@pytest.mark.emulated
@pytest.mark.parametrize("n", [200, 3000])
@pytest.mark.parametrize("box", [(1.0, 1.0, 1.0), (1.0, 0.0, 0.7)])
@pytest.mark.parametrize("softening", [0.0, 0.05])
@pytest.mark.parametrize("decimals", [1, 15])
def test_groups_wider_than_half_the_box_use_the_nearest_image_of_each_pair(
    n: int, box: tuple[float, ...], softening: float, decimals: int
) -> None:
    """On a lattice, many pairs are half the box apart; their accelerations are not unique."""
    sides = np.where(np.asarray(box) > 0, box, 1)
    pos = np.round(uniform(n), decimals) * sides
    pos[:, 1] += 1e-3 * uniform(n)[:, 0]
    away = pos - pos[:, None]
    away -= sides * np.round(away / sides) * (np.asarray(box) > 0)
    rho = np.sqrt((away**2).sum(axis=2) + softening**2)
    term = np.divide(1, rho, out=np.zeros_like(rho), where=(rho > 0) & ~np.eye(n, dtype=bool))
    arguments = {"groups": np.zeros(n, np.int32), "boxsize": box, "softening": softening}
    with jax.enable_x64(True):
        assert relative_errors(np.asarray(jz.potential(pos, **arguments)), -term.sum(axis=1)) < 1e-3
        if decimals == 1:
            return
        acceleration = np.asarray(jz.acceleration(pos, **arguments))
    expected = np.einsum("ij,ijk->ik", term**3, away)
    errors = np.linalg.norm(acceleration - expected, axis=1) / np.linalg.norm(expected, axis=1)
    assert np.quantile(errors, 0.99) < 1e-3


@pytest.mark.parametrize("n", [100, 1500])
def test_derivatives_agree_with_sums_over_pairs(n: int) -> None:
    """The loss has cotangents of both signs."""
    pos, mass = jnp.asarray(uniform(n), jnp.float32), jnp.asarray(1 + uniform(n)[:, 0], jnp.float32)
    labels = jnp.asarray(np.arange(n) % 2, jnp.int32)
    weights = jnp.asarray(np.random.default_rng(2).standard_normal(n), jnp.float32)

    def loss(pos: jax.Array, mass: jax.Array) -> jax.Array:
        return (weights * jz.potential(pos, masses=mass, softening=0.1, groups=labels)).sum()

    def loss_of_pairs(pos: jax.Array, mass: jax.Array) -> jax.Array:
        rho2 = ((pos[:, None] - pos) ** 2).sum(axis=-1) + 0.01
        pairs = (labels[:, None] == labels) & ~jnp.eye(n, dtype=bool)
        return -(weights[:, None] * jnp.where(pairs, mass / jnp.sqrt(rho2), 0)).sum()

    for result, expected in zip(
        jax.jit(jax.grad(loss, (0, 1)))(pos, mass), jax.jit(jax.grad(loss_of_pairs, (0, 1)))(pos, mass), strict=True
    ):
        np.testing.assert_allclose(result, expected, atol=3e-3 * float(jnp.abs(expected).max()))


@pytest.mark.parametrize("n", [0, 1])
def test_few_particles(n: int) -> None:
    assert np.array_equal(jz.potential(np.zeros((n, 3), np.float32)), np.zeros(n))
    assert np.array_equal(jz.acceleration(np.zeros((n, 3), np.float32)), np.zeros((n, 3)))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"masses": -np.ones(5, np.float32)}, "row 0 has a mass that is negative"),
        ({"groups": np.asarray([0, 0, 1, 3, 3], np.int32)}, "the group of row 2 is 1"),
        ({"gravity": 3e38}, "the potential of row 0 is outside the range"),
    ],
)
def test_faults_at_run_time(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match=message):
        jax.block_until_ready(jz.potential.jit(uniform(5), **arguments))


@pytest.mark.fast
@pytest.mark.parametrize("gravity", [-1.0, 0.0, np.nan, np.inf])
def test_an_invalid_traced_constant_of_gravity_raises(gravity: float) -> None:
    with pytest.raises(jax.errors.JaxRuntimeError, match="gravity is invalid; it must be finite and positive"):
        jax.block_until_ready(jax.jit(lambda g: jz.potential(np.eye(3, dtype=np.float32), gravity=g))(gravity))
