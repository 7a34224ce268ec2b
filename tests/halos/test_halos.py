"""Properties of haloes compared with slow sums, known shapes and motions, and loops over groups."""

import dataclasses
import functools
from typing import Any

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, mesh_of
from fof.test_catalogue import moving_particles

from jztree import data, halos
from jztree.config import CatalogueConfig, FofConfig
from jztree.fof import fof_and_catalogue

PAIRS = FofConfig(catalogue=CatalogueConfig(npart_min=2))


def one_group(pos: Any, vel: Any = None, mass: Any = None) -> data.FofCatalogue:
    """Return the catalogue of particles that are all in one group."""
    part = data.ParticleData(pos=jnp.asarray(pos), vel=vel, mass=mass)
    cata = fof_and_catalogue(part, 1e3, cfg=PAIRS)[1]
    assert int(cata.ngroups) == 1
    return cata


@functools.cache
def groups_over_devices(ndev: int, rlink: float) -> tuple[Any, data.FofCatalogue]:
    part = data.expand_particles(moving_particles(1201, 3, np.float32), ndev)
    return fof_and_catalogue.smap(mesh_of(ndev), jit=True)(part, rlink, None, PAIRS)


def rotation(dims: int, seed: int = 3) -> np.ndarray:
    return np.linalg.qr(np.random.default_rng(seed).standard_normal((dims, dims)))[0]


def solid_body(n: int = 500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return positions and velocities of particles in solid rotation, and its angular velocity."""
    random = np.random.default_rng(8)
    pos, angular = random.standard_normal((n, 3)), np.array([0.3, -0.2, 0.5])
    return pos, np.cross(angular, pos) + np.array([100, 0, -50]), angular


# Sums


@pytest.mark.long
def test_snapshot_equals_brute_force_sums(shared_data: Any) -> None:
    with h5py.File(shared_data / "sample_48" / "snapshot_048.hdf5") as file:
        box = float(file["Header"].attrs["BoxSize"])
        pos, vel = (file[f"PartType1/{name}"][()] for name in ("Coordinates", "Velocities"))
    part = data.ParticleData(pos=jnp.asarray(pos, jnp.float32), vel=jnp.asarray(vel, jnp.float32), mass=2.5)
    grouped, cata = fof_and_catalogue.jit(part, 0.2 * box / 48, box)
    groups, count = int(cata.ngroups), np.asarray(cata.count)
    label = np.repeat(cata.offset[:groups], count[:groups])
    members = np.arange(len(label))
    pos, vel = np.asarray(grouped.pos)[members], np.asarray(grouped.vel)[members]
    slow = oracles.slow_catalogue(pos, np.full(len(pos), 2.5), vel, label, box, 20)
    assert groups > 200
    np.testing.assert_array_equal(count[:groups], slow.count)
    size = slow.com_inertia_radius
    difference = np.asarray(halos.inertia_tensor(cata)[:groups], np.float64) - slow.inertia_tensor
    assert (np.abs(difference).max(axis=(1, 2)) <= 1e-6 * size**2).all()
    difference = np.asarray(cata.angular_momentum[:groups], np.float64) - slow.angular_momentum
    assert (np.abs(difference).max(axis=1) <= 1e-6 * size * slow.vel_dispersion).all()
    lengths, ratios, _ = halos.principal_axes.jit(cata)
    values = np.array([np.linalg.eigvalsh(tensor)[::-1] for tensor in slow.inertia_tensor])
    np.testing.assert_allclose(lengths[:groups], np.sqrt(values), rtol=1e-5)
    np.testing.assert_allclose(ratios[:groups], np.sqrt(values[:, 1:] / values[:, :1]), rtol=1e-5)
    assert not np.any(lengths[groups:])


# Shapes


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_axes_of_a_rotated_ellipsoid(dims: int, dtype: Any) -> None:
    random = np.random.default_rng(7)
    sphere = random.standard_normal((40_000, dims))
    sphere *= random.random((40_000, 1)) ** (1 / dims) / np.linalg.norm(sphere, axis=1, keepdims=True)
    semi, turn = 1.0 / np.arange(1, dims + 1), rotation(dims)
    axes = halos.principal_axes.jit(one_group((sphere * semi @ turn.T).astype(dtype)))
    lengths, ratios, directions = (np.asarray(leaf)[0] for leaf in axes)
    assert lengths.dtype == dtype
    np.testing.assert_allclose(lengths, semi / np.sqrt(dims + 2), rtol=0.02)
    np.testing.assert_allclose(ratios, semi[1:] / semi[0], rtol=0.02)
    np.testing.assert_allclose(directions @ directions.T, np.eye(dims), atol=1e-5)
    assert (np.abs(np.einsum("id,di->i", directions, turn)) > 0.999).all()
    assert (directions[np.arange(dims), np.abs(directions).argmax(axis=1)] > 0).all()


@pytest.mark.long
def test_groups_of_few_particles_are_flat() -> None:
    pos = oracles.uniform(3, 3)
    lengths, ratios, _ = halos.principal_axes(one_group(pos))
    assert lengths[0, 1] > 0.01
    assert ratios[0, 1] < 1e-3
    lengths, ratios, _ = halos.principal_axes(one_group(np.full((3, 3), 0.3, np.float32)))
    assert not np.any(lengths[0])
    assert np.isnan(ratios[0]).all()


@pytest.mark.long
def test_several_devices_give_the_shapes_and_dispersions_of_one() -> None:
    mesh, (_, cata) = mesh_of(3), groups_over_devices(3, 0.008)

    own = (
        halos.principal_axes.smap(mesh, jit=True)(cata),
        halos.spin.smap(mesh, jit=True)(cata, cata.mass, cata.max_radius, 2.0),
    )
    ours = (*own, halos.total_vel_dispersion.smap(mesh, jit=True)(cata))
    outside = halos.principal_axes.jit(cata), halos.spin.jit(cata, cata.mass, cata.max_radius, 2.0)
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves((*outside, halos.total_vel_dispersion(cata))), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    unused = np.arange(cata.count.shape[1]) >= np.asarray(cata.ngroups)[:, None]
    assert unused.any()
    assert not np.any(np.asarray(ours[1])[unused])


# Motions


def test_solid_body_rotation() -> None:
    pos, vel, angular = solid_body()
    cata = one_group(pos, vel)
    between = pos - pos.mean(axis=0)
    inertia = np.mean((between**2).sum(axis=1)) * np.eye(3) - np.cov(pos, rowvar=False, bias=True)
    np.testing.assert_allclose(cata.angular_momentum[0], inertia @ angular, rtol=1e-4)
    speed2 = (np.cross(angular, between) ** 2).sum(axis=1).mean()
    np.testing.assert_allclose(halos.total_vel_dispersion(cata)[0], np.sqrt(speed2), rtol=1e-4)
    np.testing.assert_allclose(halos.total_vel_dispersion(cata), np.sqrt(3) * cata.vel_dispersion, rtol=1e-6)


@pytest.mark.parametrize("scale_factor", [1.0, 0.25])
def test_spin_uses_physical_lengths(scale_factor: float) -> None:
    pos, vel, _ = solid_body()
    cata = one_group(pos, vel, np.full(500, 4e4, np.float32))
    mass, radius, gravity = np.array([2e7]), np.array([3.0]), 43.0071
    momentum = np.linalg.norm(np.asarray(cata.angular_momentum[0]) * scale_factor) * mass[0]
    speed = np.sqrt(gravity * mass[0] / (radius[0] * scale_factor))
    expected = momentum / (np.sqrt(2) * mass[0] * speed * radius[0] * scale_factor)
    rows = np.zeros(cata.count.shape)
    rows[0] = 1
    result = halos.spin.jit(cata, rows * mass, rows * radius, gravity, scale_factor=scale_factor)
    np.testing.assert_allclose(result[0], expected, rtol=1e-5)
    assert not np.any(result[1:])
    assert halos.spin(cata, 0 * rows, rows, gravity)[0] == 0
    assert np.isnan(halos.spin(cata, rows, np.nan * rows, gravity)[0])


def test_missing_or_invalid_inputs_raise() -> None:
    line = one_group(np.linspace(0, 1, 30)[:, None], np.zeros((30, 1)))
    with pytest.raises(ValueError, match="2 or more dimensions"):
        halos.spin(line, line.mass, line.max_radius, 1.0)
    still = one_group(oracles.uniform(30, 3))
    with pytest.raises(ValueError, match="has no vel_dispersion"):
        halos.total_vel_dispersion(still)
    with pytest.raises(ValueError, match="no shape_tensor"):
        halos.principal_axes(dataclasses.replace(still, shape_tensor=None))
    moving = one_group(oracles.uniform(30, 3), oracles.uniform(30, 3))
    with pytest.raises(ValueError, match=r"mass must have one number per row of the catalogue, shape \(15,\)"):
        halos.spin(moving, 1.0, moving.max_radius, 1.0)
    with pytest.raises(TypeError, match=r"is a list; convert it with numpy\.asarray"):
        halos.spin(moving, np.ones(15), [1.0] * 15, 1.0)
    with pytest.raises(TypeError, match=r"is a list; convert it with numpy\.asarray"):
        halos.concentration([1.0], np.ones(1), np.ones(1))


# The densest particle


def slow_densest(grouped: Any, cata: data.FofCatalogue, density: np.ndarray) -> list[int]:
    """Return the row of the densest particle of each group."""
    groups = zip(cata.offset.tolist()[: int(cata.ngroups)], cata.count.tolist(), strict=False)
    return [first + int(np.argmax(density[first : first + count])) for first, count in groups]


@pytest.mark.parametrize("levels", [1, 3, 10**6])
def test_densest_particle(levels: int) -> None:
    part = moving_particles(1200, 3, np.float32)
    part.num = 1100
    grouped, cata = fof_and_catalogue(part, 0.008, 1.0, PAIRS)
    density = np.random.default_rng(1).integers(0, levels, 1200).astype(np.float32)
    density[1100:] = np.nan
    cata = data.sort_catalogue(cata)
    part, best, where = halos.densest_particle.jit(grouped, cata, density)
    rows, groups = slow_densest(grouped, cata, density), int(cata.ngroups)
    assert groups > 5
    assert int(part.num) == groups
    np.testing.assert_array_equal(where.idx[:groups], rows)
    assert not np.any(where.rank)
    np.testing.assert_array_equal(best[:groups], density[rows])
    for name in ("pos", "mass", "vel", "id"):
        column = np.asarray(getattr(part, name))
        np.testing.assert_array_equal(column[:groups], np.asarray(getattr(grouped, name))[rows])
        assert not np.any(column[groups:])


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("rlink", [pytest.param(0.008, marks=pytest.mark.slow), 0.03, 1.0])
def test_densest_particle_over_devices(ndev: int, rlink: float) -> None:
    """Test groups on one device, on several, and on all. Densities have few values, so that many are equal."""
    grouped, cata = groups_over_devices(ndev, rlink)
    density = np.random.default_rng(2).integers(-3, 3, grouped.id.shape).astype(np.float32)
    result = halos.densest_particle.smap(mesh_of(ndev), jit=True)(grouped, cata, density)
    nums = np.asarray(grouped.num)
    flat, complete = data.flatten_particles(grouped), data.squeeze_catalogue(cata, offset_mode="global", nparts=nums)
    rows = slow_densest(flat, complete, np.concatenate([density[rank, :num] for rank, num in enumerate(nums)]))
    used = np.arange(cata.count.shape[1]) < np.asarray(cata.ngroups)[:, None]
    part, best, where = jax.tree.map(lambda leaf: np.asarray(leaf)[used] if np.ndim(leaf) > 1 else leaf, result)
    np.testing.assert_array_equal((np.cumsum(nums) - nums)[where.rank] + where.idx, rows)
    np.testing.assert_array_equal(best, density[where.rank, where.idx])
    for name in ("pos", "mass", "vel", "id"):
        np.testing.assert_array_equal(getattr(part, name), getattr(flat, name)[np.asarray(rows)])
    across = (np.asarray(complete.offset + complete.count) > np.cumsum(nums)[np.nonzero(used)[0]]).sum()
    assert across > 0 or ndev < 3


def test_constant_catalogue_of_numpy_arrays_works_in_jit() -> None:
    part = moving_particles(200, 3, np.float32)
    grouped, cata = jax.device_get(fof_and_catalogue(part, 0.03, 1.0, PAIRS))
    density = np.arange(200, dtype=np.float32)
    result = jax.jit(lambda density: halos.densest_particle(grouped, cata, density))(density)
    np.testing.assert_array_equal(result.where.idx[: int(cata.ngroups)], slow_densest(grouped, cata, density))


@pytest.mark.parametrize("n", [0, 5])
def test_no_groups(n: int) -> None:
    part = data.Pos(pos=jnp.zeros((n, 3)))
    result = halos.densest_particle(*fof_and_catalogue(part, 0.1), jnp.zeros(n))
    assert result.density.shape == (0,)
    assert result.part.pos.shape == (0, 3)


@pytest.mark.long
def test_invalid_densities_raise() -> None:
    part = moving_particles(600, 3, np.float32)
    grouped, cata = fof_and_catalogue(part, 0.008, 1.0, PAIRS)
    row = int(cata.offset[1])
    with pytest.raises(oracles.RUN_TIME_ERROR, match=f"the density of row {row} of the particles"):
        jax.block_until_ready(halos.densest_particle.jit(grouped, cata, jnp.zeros(600).at[row].set(jnp.nan)).density)
    for density in (np.zeros(599), np.zeros(600, int), np.zeros((600, 1))):
        with pytest.raises(ValueError, match="one floating-point number per particle"):
            halos.densest_particle(grouped, cata, density)
    fewer = dataclasses.replace(grouped, num=int(cata.offset[int(cata.ngroups) - 1]) + 1)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="outside these particles"):
        jax.block_until_ready(halos.densest_particle.jit(fewer, cata, jnp.zeros(600)).part)


# Errors


def test_concentration_of_integers() -> None:
    columns = [np.array([100, 64, 0]), np.array([1, 2, 0]), np.array([12, 9, 0])]
    result = halos.concentration(*columns)
    assert result.dtype == np.float32
    np.testing.assert_array_equal(result, halos.concentration(*(column.astype(np.float32) for column in columns)))


def test_every_column_has_a_definition() -> None:
    columns = set(data.FofCatalogue.column_names()) - {"offset_rank", "means"}
    assert columns <= set(halos.DEFINITIONS)
    kinds = {"1", "length", "length^2", "mass", "velocity", "length*velocity", "density"}
    assert {definition.kind for definition in halos.DEFINITIONS.values()} == kinds
