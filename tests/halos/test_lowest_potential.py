"""The particle of lowest potential of groups, compared with sums over all pairs, on one device and on several."""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from fof.test_catalogue import moving_particles

from jztree import data, halos
from jztree.config import CatalogueConfig, FofConfig
from jztree.fof import fof_and_catalogue

pytestmark = pytest.mark.emulated

PAIRS = FofConfig(catalogue=CatalogueConfig(npart_min=2))


def slow_potentials(pos: np.ndarray, mass: np.ndarray, softening: float, box: float = 0.0) -> np.ndarray:
    """Return potentials in float64: minus the sum of m / sqrt(r^2 + softening^2) over the other particles."""
    result = np.zeros(len(pos))
    for i, place in enumerate(pos.astype(np.float64)):
        separation = pos.astype(np.float64) - place
        separation -= box * np.round(separation / box) if box else 0
        rho = np.sqrt((separation**2).sum(axis=1) + softening**2)
        others = (np.arange(len(pos)) != i) & (rho > 0)
        result[i] = -(mass.astype(np.float64)[others] / rho[others]).sum()
    return result


def slow_rows(grouped: Any, cata: data.FofCatalogue, softening: float, box: float = 0.0) -> list[tuple[int, float]]:
    """Return the first row of lowest potential of each group, and that potential."""
    rows = []
    pos, mass = np.asarray(grouped.pos), np.broadcast_to(np.asarray(grouped.mass), np.shape(grouped.pos)[:1])
    groups = int(cata.ngroups)
    for first, count in zip(np.asarray(cata.offset)[:groups], np.asarray(cata.count)[:groups], strict=True):
        members = slice(first, first + count)
        potential = slow_potentials(pos[members], mass[members], softening, box)
        lowest = potential.min()
        rows.append((int(first) + int(np.argmax(potential <= lowest * (1 - 1e-13))), lowest))
    return rows


def assert_lowest(result: halos.LowestParticle, grouped: Any, cata: data.FofCatalogue, *how: float) -> None:
    groups, expected = int(cata.ngroups), slow_rows(grouped, cata, *how)
    np.testing.assert_array_equal(result.where.idx[:groups], [row for row, _ in expected])
    dtype = np.asarray(result.potential).dtype
    rtol = 1e-12 if dtype == np.float64 else 1e-6
    np.testing.assert_allclose(result.potential[:groups], [value for _, value in expected], rtol=rtol)
    assert not np.any(result.potential[groups:])
    for name in ("pos", "vel", "id"):
        if getattr(grouped, name) is not None:
            rows = np.asarray(getattr(grouped, name))[[row for row, _ in expected]]
            np.testing.assert_array_equal(np.asarray(getattr(result.part, name))[:groups], rows)


@pytest.mark.watched
@pytest.mark.parametrize("softening", [0.0, 1e-3])
@pytest.mark.parametrize("rlink", [0.008, 0.03])
def test_groups_against_all_pairs(rlink: float, softening: float) -> None:
    part = moving_particles(1200, 3, np.float32)
    part.num = 1100
    grouped, cata = fof_and_catalogue(part, rlink, 1.0, PAIRS)
    cata = data.sort_catalogue(cata)
    result = halos.lowest_potential_particle.jit(grouped, cata, softening=softening, boxsize=1.0)
    assert int(cata.ngroups) > 1
    assert_lowest(result, grouped, cata, softening, 1.0)


def plummer(n: int, dims: int, seed: int = 1) -> np.ndarray:
    random = np.random.default_rng(seed)
    radius = 0.02 / np.sqrt(random.random(n) ** (-2 / 3) - 1 + 1e-9)
    method = random.standard_normal((n, dims))
    pos: np.ndarray = np.minimum(radius, 0.2)[:, None] * method / np.linalg.norm(method, axis=1, keepdims=True)
    return pos


@pytest.mark.parametrize("dims", [2, 3, pytest.param(4, marks=pytest.mark.slow)])
def test_large_group_that_needs_the_tree(dims: int) -> None:
    """Two clumps form one group across the faces of the box, with masses of any size."""
    pos = np.concatenate([plummer(2600, dims), 0.25 + plummer(1500, dims, 2)]) % 1
    mass = np.random.default_rng(3).random(len(pos)) ** 4
    part = data.ParticleData(pos=pos.astype(np.float32), mass=mass.astype(np.float32), id=np.arange(len(pos)))
    grouped, cata = fof_and_catalogue.jit(part, 0.3, 1.0, PAIRS)
    assert int(cata.ngroups) == 1
    for softening in (0.0, 2e-3, 0.3):
        result = halos.lowest_potential_particle.jit(grouped, cata, softening=softening, boxsize=1.0)
        assert_lowest(result, grouped, cata, softening, 1.0)


@pytest.mark.emulated
def test_heavy_particle_has_no_potential_at_itself() -> None:
    """The heavy one is in the middle of a shell. The nodes around it are smaller than the softening."""
    random = np.random.default_rng(4)
    shell = random.standard_normal((700, 3))
    shell *= random.uniform(0.05, 0.06, (700, 1)) / np.linalg.norm(shell, axis=1, keepdims=True)
    pos = np.concatenate([shell, np.zeros((1, 3))]).astype(np.float32)
    mass = np.append(np.ones(700, np.float32), np.float32(120))
    part = data.ParticleData(pos=pos, mass=mass, id=np.arange(len(pos)))
    grouped, cata = fof_and_catalogue.jit(part, 0.2, None, PAIRS)
    result = halos.lowest_potential_particle.jit(grouped, cata, softening=0.1)
    assert_lowest(result, grouped, cata, 0.1)
    assert np.linalg.norm(np.asarray(result.part.pos)[0]) > 0.04


def test_float64_far_from_the_origin(x64: None) -> None:
    pos = 1e6 + plummer(1800, 3)
    grouped, cata = fof_and_catalogue.jit(data.ParticleData(pos=pos, mass=2.0), 0.5, None, PAIRS)
    result = halos.lowest_potential_particle.jit(grouped, cata, softening=1e-3)
    assert_lowest(result, grouped, cata, 1e-3)
    assert np.linalg.norm(np.asarray(result.part.pos)[0] - 1e6) < 0.01


@pytest.mark.parametrize("n", [3, 700])
def test_coincident_particles(n: int) -> None:
    """Without softening, pairs at distance 0 are excluded. For equal potentials, the first particle is chosen."""
    pos = np.concatenate([np.full((n, 3), 0.5), np.random.default_rng(1).random((20, 3))]).astype(np.float32)
    part = data.PosMass(pos=pos, mass=np.ones(len(pos), np.float32))
    grouped, cata = fof_and_catalogue.jit(part, 2.0, None, PAIRS)
    for softening in (0.0, 0.1):
        result = halos.lowest_potential_particle.jit(grouped, cata, softening=softening)
        potential = slow_potentials(np.asarray(grouped.pos), np.ones(len(pos)), softening)
        best = int(result.where.idx[0])
        np.testing.assert_allclose(potential[best], potential.min(), rtol=1e-12)
        np.testing.assert_allclose(result.potential[0], potential.min(), rtol=1e-6)
    alone = data.PosMass(pos=np.full((n, 3), 0.5, np.float32))
    result = halos.lowest_potential_particle.jit(*fof_and_catalogue.jit(alone, 0.1, None, PAIRS))
    assert (int(result.where.idx[0]), float(result.potential[0])) == (0, 0.0)


@functools.cache
def groups_over_devices(ndev: int, rlink: float) -> tuple[Any, data.FofCatalogue]:
    part = data.expand_particles(moving_particles(1201, 3, np.float32), ndev)
    return fof_and_catalogue.smap(mesh_of(ndev), jit=True)(part, rlink, None, PAIRS)


@pytest.mark.parametrize("ndev", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize("rlink", [0.03, 1.0, pytest.param(0.008, marks=pytest.mark.slow)])
def test_several_devices_agree_with_one(ndev: int, rlink: float) -> None:
    """Test groups on one device, on several, and on all."""
    grouped, cata = groups_over_devices(ndev, rlink)
    result = halos.lowest_potential_particle.smap(mesh_of(ndev), jit=True)(grouped, cata, softening=1e-3)
    nums = np.asarray(grouped.num)
    flat, complete = data.flatten_particles(grouped), data.squeeze_catalogue(cata, offset_mode="global", nparts=nums)
    expected = slow_rows(flat, complete, 1e-3)
    used = np.arange(cata.count.shape[1]) < np.asarray(cata.ngroups)[:, None]
    rank, row = np.asarray(result.where.rank)[used], np.asarray(result.where.idx)[used]
    np.testing.assert_array_equal((np.cumsum(nums) - nums)[rank] + row, [row for row, _ in expected])
    np.testing.assert_allclose(np.asarray(result.potential)[used], [value for _, value in expected], rtol=1e-6)
    assert not np.any(np.asarray(result.potential)[~used])
    here = np.asarray(flat.id)[[row for row, _ in expected]]
    np.testing.assert_array_equal(np.asarray(result.part.id)[used], here)


@pytest.mark.parametrize("n", [0, 5])
def test_no_groups(n: int) -> None:
    part = data.Pos(pos=jnp.zeros((n, 3)))
    result = halos.lowest_potential_particle(*fof_and_catalogue(part, 0.1))
    assert result.potential.shape == (0,)
    assert result.part.pos.shape == (0, 3)


@pytest.mark.long
def test_wrong_arguments() -> None:
    part = moving_particles(600, 3, np.float32)
    grouped, cata = fof_and_catalogue(part, 0.008, 1.0, PAIRS)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="softening is negative or not finite"):
        jax.block_until_ready(
            jax.jit(lambda x: halos.lowest_potential_particle(grouped, cata, softening=x))(jnp.float32(-1))
        )
    fewer = dataclasses.replace(grouped, num=int(cata.offset[int(cata.ngroups) - 1]) + 1)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="outside these particles"):
        jax.block_until_ready(halos.lowest_potential_particle.jit(fewer, cata))
    with pytest.raises(ValueError, match="no derivative"):
        jax.grad(lambda x: halos.lowest_potential_particle(dataclasses.replace(grouped, pos=x), cata).potential.sum())(
            jnp.asarray(grouped.pos)
        )
