"""Potentials and accelerations over ranks: the bits of one device, also of derivatives, and errors on every rank."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, ROWS, all_on_last, deal, even, joined, mesh_of, uneven

import jztree as jz
from jztree.data import PosMass

from .test_group_potential import clumps

N = 1100


def shares(counts: np.ndarray, *columns: np.ndarray) -> list[np.ndarray]:
    """Return columns with a leading axis over ranks, and padding."""
    ends, result = np.cumsum(counts), []
    for column in columns:
        stacked = np.full((len(counts), ROWS, *column.shape[1:]), -1, column.dtype)
        for rank, (end, count) in enumerate(zip(ends, counts, strict=True)):
            stacked[rank, :count] = column[end - count : end]
        result.append(stacked)
    return result


def particles(rlink: float | None, n: int = N) -> tuple[np.ndarray, np.ndarray, Any]:
    """Return positions, masses and labels in random order; the largest group is larger than most shares."""
    pos, random = clumps(n).astype(np.float32), np.random.default_rng(5)
    random.shuffle(pos)
    mass = random.random(n, np.float32)
    return pos, mass, None if rlink is None else np.asarray(jz.group_labels(pos, rlink))


@pytest.mark.parametrize("split", [even, all_on_last, uneven])
@pytest.mark.parametrize("rlink", [pytest.param(None, marks=pytest.mark.emulated), 0.02, 1e-3, 10.0])
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_bits_equal_one_device(ndev: int, rlink: float | None, split: Any) -> None:
    assert_bits_of_one_device(split(N, ndev), rlink)


@pytest.mark.core
@pytest.mark.emulated
def test_direct_sums_over_two_devices_equal_one_device() -> None:
    """The bits of the devices are added, so -0 in rows of another device would change the sign."""
    assert_bits_of_one_device(even(60, 2), None)


def assert_bits_of_one_device(counts: np.ndarray, rlink: float | None) -> None:
    ndev = len(counts)
    pos, mass, labels = particles(rlink, int(counts.sum()))
    part_of_ranks, (masses,) = deal(pos, counts), shares(counts, mass)
    part = PosMass(pos=part_of_ranks.pos, mass=masses, num=part_of_ranks.num)
    groups = None if labels is None else shares(counts, labels)[0]
    for function in (jz.potential, jz.acceleration):
        result = function.smap(mesh_of(ndev), jit=True)(part, groups=groups, softening=1e-4, kernel="spline")
        expected = np.asarray(function(pos, masses=mass, groups=labels, softening=1e-4, kernel="spline"))
        np.testing.assert_array_equal(joined(result, counts).view(np.uint32), expected.view(np.uint32))
        assert not any(np.asarray(result)[rank, count:].any() for rank, count in enumerate(counts))


@pytest.mark.parametrize("rlink", [None, 0.02])
@pytest.mark.parametrize("function", [jz.potential, jz.acceleration])
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_derivatives_equal_one_device(ndev: int, function: Any, rlink: float | None) -> None:
    pos, mass, labels = particles(rlink)
    counts = uneven(N, ndev)
    part_of_ranks, (masses,), nums = deal(pos, counts), shares(counts, np.abs(mass)), counts.astype(np.int32)
    groups = None if labels is None else shares(counts, labels)[0]
    random = np.random.default_rng(6)
    weights = random.standard_normal(pos.shape if function is jz.acceleration else N).astype(np.float32)
    moves, changes = random.standard_normal(pos.shape).astype(np.float32), random.random(N, np.float32)
    dealt_weights, dealt_moves, dealt_changes = shares(counts, weights, moves, changes)
    valid = np.arange(ROWS) < counts[:, None]

    def over_ranks(pos: jax.Array, mass: jax.Array) -> jax.Array:
        part = PosMass(pos=pos, mass=mass, num=nums)
        return function.smap(mesh_of(ndev), jit=True)(part, groups=groups, softening=0.01)

    def loss(pos: jax.Array, mass: jax.Array) -> jax.Array:
        values = over_ranks(pos, mass)
        mask = valid.reshape(*valid.shape, *[1] * (values.ndim - 2))
        return jnp.where(mask, values * dealt_weights, 0).sum()

    def loss_of_one(pos: jax.Array, mass: jax.Array) -> jax.Array:
        return (function(pos, masses=mass, groups=labels, softening=0.01) * weights).sum()

    stacked = jnp.asarray(part_of_ranks.pos), jnp.asarray(masses)
    for result, expected in zip(
        jax.grad(loss, (0, 1))(*stacked), jax.grad(loss_of_one, (0, 1))(pos, mass), strict=True
    ):
        np.testing.assert_allclose(joined(result, counts), expected, rtol=1e-5, atol=1e-6 * np.abs(expected).max())
    result = jax.jvp(over_ranks, stacked, (dealt_moves, dealt_changes))[1]
    expected = jax.jvp(
        lambda pos, mass: function(pos, masses=mass, groups=labels, softening=0.01), (pos, mass), (moves, changes)
    )[1]
    np.testing.assert_allclose(joined(result, counts), expected, rtol=1e-5, atol=1e-6 * float(abs(expected).max()))


@pytest.mark.parametrize("n", [0, 1])
@pytest.mark.parametrize("labels", [False, True])
def test_few_particles_on_many_ranks(n: int, labels: bool) -> None:
    part = PosMass(pos=np.zeros((3, 2, 3), np.float32), mass=np.ones((3, 2), np.float32), num=np.array([0, n, 0]))
    groups = np.zeros((3, 2), np.int32) if labels else None
    assert not np.asarray(jz.acceleration.smap(mesh_of(3))(part, groups=groups)).any()


@pytest.mark.parametrize(
    ("labels", "row", "label"), [([0, 0, 1, 3], 2, 1), ([0, 1, 2, -1], 3, -1), ([0, 0, 3, 3], 2, 3)]
)
def test_invalid_labels_raise_on_every_rank(labels: list[int], row: int, label: int) -> None:
    pos, groups = np.zeros((2, 2, 3), np.float32), np.asarray(labels, np.int32).reshape(2, 2)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=f"the group of row {row} is {label}"):
        jax.block_until_ready(jz.potential.smap(mesh_of(2), jit=True)(pos, groups=groups))


def test_small_buffer_raises() -> None:
    pos, groups = np.zeros((2, 20, 3), np.float32), np.zeros((2, 20), np.int32)
    with pytest.raises(jz.CapacityError, match=r"need.* 40 .*group_rows"):
        jz.potential.smap(mesh_of(2), jit=True)(pos, groups=groups, group_rows=30)
    result = jz.potential.smap(mesh_of(2), jit=True)(pos, groups=groups, softening=1.0)
    np.testing.assert_allclose(result, -39)
