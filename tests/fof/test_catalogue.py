"""The catalogue of `fof_and_catalogue` against slow sums in float64."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import data
from jztree.config import CatalogueConfig, FofConfig
from jztree.fof import fof_and_catalogue, fof_labels
from jztree.halos import inertia_tensor

pytestmark = pytest.mark.emulated


def moving_particles(n: int, dims: int, dtype: Any, spread: float = 0.004) -> data.ParticleData:
    """Return compact clumps, two across the faces of the unit box, with a tenth of the particles anywhere."""
    random = np.random.default_rng(41)
    centre = random.random((9, dims))
    centre[0], centre[1] = 0.0, 0.999
    pos = centre[random.integers(0, 9, n)] + spread * random.standard_normal((n, dims))
    pos[::10] = random.random((len(pos[::10]), dims))
    return data.ParticleData(
        pos=jnp.asarray(oracles.inside_box((pos % 1.0).astype(dtype))),
        mass=jnp.asarray(random.lognormal(size=n).astype(dtype)),
        vel=jnp.asarray((100 + 30 * random.standard_normal((n, dims))).astype(dtype)),
        id=jnp.asarray(np.arange(n)),
    )


def assert_catalogue(part: data.ParticleData, rlink: float, box: Any, npart_min: int, num: int) -> int:
    """Compare `fof_and_catalogue` with slow sums in float64. Return the number of groups."""
    n, dims = part.pos.shape
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=npart_min))
    grouped, cata = jax.tree.map(np.asarray, fof_and_catalogue.jit(part, rlink, box, cfg))
    partz, label = jax.tree.map(np.asarray, fof_labels.jit(part, rlink, box))
    zpos, label = np.asarray(partz.pos)[:num], np.asarray(label)[:num]
    mass = np.ones(num) if part.mass is None else np.broadcast_to(np.asarray(partz.mass), (n,))[:num]
    vel = np.zeros((num, dims)) if part.vel is None else np.asarray(partz.vel)[:num]
    slow = oracles.slow_catalogue(zpos, mass, vel, label, box, npart_min)
    np.testing.assert_array_equal(grouped.id[:num], partz.id[:num][slow.order])
    np.testing.assert_array_equal(grouped.pos[:num], zpos[slow.order])
    groups = int(cata.ngroups)
    assert groups == len(slow.count)
    np.testing.assert_array_equal(cata.count[:groups], slow.count)
    np.testing.assert_array_equal(cata.offset[:groups], slow.offset)
    rtol = max(1e-12, 4 * float(np.finfo(part.pos.dtype).eps))
    difference = np.asarray(cata.com_pos[:groups], np.float64) - slow.com_pos
    length = oracles.full_box(box, dims)
    difference -= length * np.rint(difference / np.where(length > 0, length, 1))
    np.testing.assert_allclose(difference, 0, atol=rtol)
    assert ((cata.com_pos[:groups] < np.where(length > 0, length, np.inf)) & (cata.com_pos[:groups] >= 0)).all()
    tensor = np.asarray(inertia_tensor.jit(cata))[:groups]
    np.testing.assert_allclose(tensor, slow.inertia_tensor, rtol=rtol, atol=1e-14)
    checked = {"com_inertia_radius", "max_radius"}
    checked |= {"mass"} if part.mass is not None else set()
    checked |= {"com_vel", "vel_dispersion"} if part.vel is not None else set()
    checked |= {"angular_momentum"} if part.vel is not None and dims > 1 else set()
    for name in checked:
        np.testing.assert_allclose(
            getattr(cata, name)[:groups], getattr(slow, name), rtol=rtol, atol=1e-14, err_msg=name
        )
    for name in checked | {"count", "offset", "com_pos"}:
        assert getattr(cata, name).shape[0] == n // npart_min
        np.testing.assert_array_equal(getattr(cata, name)[groups:], 0, err_msg=name)
    assert (cata.mass is None) == (part.mass is None)
    assert (cata.com_vel is None) == (cata.vel_dispersion is None) == (part.vel is None)
    assert (cata.angular_momentum is None) == (part.vel is None or dims == 1)
    return groups


@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_catalogue_equals_brute_force_sums(dims: int, box: str, dtype: Any) -> None:
    part = moving_particles(1200, dims, dtype)
    groups = assert_catalogue(part, 0.004 * max(1, dims - 1), oracles.box_lengths(box, dims), 10, 1200)
    assert groups >= 5


@pytest.mark.core
@pytest.mark.parametrize("npart_min", [1, 2, 20, 150, 1200, 1201])
def test_catalogue_omits_groups_below_npart_min(npart_min: int) -> None:
    assert_catalogue(moving_particles(1200, 3, np.float32), 0.008, 1.0, npart_min, 1200)


@pytest.mark.parametrize("mass", ["array", "number", "none"])
@pytest.mark.parametrize("vel", [True, False], ids=["vel", "no_vel"])
def test_mass_shared_or_missing_and_velocities_missing(mass: str, vel: bool, dtype: Any) -> None:
    part = moving_particles(800, 3, dtype)
    part.mass = {"array": part.mass, "number": dtype(4.1), "none": None}[mass]
    part.vel = part.vel if vel else None
    assert assert_catalogue(part, 0.008, 1.0, 5, 800) > 3


def test_mass_as_a_python_number_keeps_the_dtype_of_the_particles(x64: None) -> None:
    part = moving_particles(300, 3, np.float32)
    part.mass = 4.1
    cata = fof_and_catalogue(part, 0.008, 1.0)[1]
    assert cata.com_pos.dtype == cata.mass.dtype == np.float32


@pytest.mark.core
@pytest.mark.parametrize("num", [0, 3, 500])
def test_catalogue_of_padded_particles(num: int) -> None:
    part = moving_particles(800, 3, np.float32)
    part.num = num
    if num == 0:
        assert int(fof_and_catalogue(part, 0.008, 1.0)[1].ngroups) == 0
        return
    assert_catalogue(part, 0.008, 1.0, 3, num)


def test_catalogue_of_particles_outside_the_box() -> None:
    part = moving_particles(800, 3, np.float32)
    shift = np.random.default_rng(42).integers(-1, 2, (800, 3))
    inside = fof_and_catalogue(part, 0.008, 1.0)[1]
    part.pos = part.pos + jnp.asarray(shift, jnp.float32)
    outside = fof_and_catalogue(part, 0.008, 1.0)[1]
    np.testing.assert_array_equal(np.sort(outside.count), np.sort(inside.count))
    order, second = np.argsort(np.asarray(outside.mass)), np.argsort(np.asarray(inside.mass))
    difference = outside.com_pos[order] - inside.com_pos[second]
    np.testing.assert_allclose(difference - np.rint(difference), 0, atol=1e-6)


def test_centre_just_below_the_box_length_is_inside() -> None:
    pos = np.repeat(np.array([[1 - 2**-24, 0.5]], np.float32), 40, axis=0)
    pos[:20, 0] = 0.0
    cata = fof_and_catalogue(jnp.asarray(pos), 0.01, 1.0)[1]
    centre = float(cata.com_pos[0, 0])
    assert 0 <= centre < 1
    assert min(centre, 1 - centre) <= 1e-7


def test_velocity_sums_are_in_double_precision() -> None:
    """Sum equal masses of 0.1, for which a float32 sum would be wrong in the third digit."""
    n = 200_000
    part = data.ParticleData(pos=jnp.full((n, 3), 0.5), mass=jnp.full(n, 0.1), vel=jnp.full((n, 3), 1e4 + 0.1))
    cata = fof_and_catalogue(part, 0.1, 1.0)[1]
    np.testing.assert_allclose(cata.mass[0], n * float(np.float32(0.1)), rtol=1e-7)
    np.testing.assert_array_equal(cata.com_vel[0], np.full(3, np.float32(1e4 + 0.1)))
    np.testing.assert_allclose(cata.vel_dispersion[0], 0, atol=1e-7)
    np.testing.assert_array_equal(cata.com_pos[0], 0.5)


def test_massless_groups_have_a_centre() -> None:
    vel = oracles.uniform(50, 3, seed=2)
    part = data.ParticleData(pos=jnp.asarray(oracles.uniform(50, 3)), mass=jnp.zeros(50), vel=jnp.asarray(vel))
    cata = fof_and_catalogue(part, 5.0)[1]
    np.testing.assert_allclose(cata.com_pos[0], part.pos.mean(axis=0), rtol=1e-6)
    np.testing.assert_allclose(inertia_tensor(cata)[0], np.cov(part.pos, rowvar=False, bias=True), atol=1e-7)
    between, relative = part.pos - part.pos.mean(axis=0), vel - vel.mean(axis=0)
    np.testing.assert_allclose(cata.angular_momentum[0], np.cross(between, relative).mean(axis=0), atol=1e-7)
    assert float(cata.mass[0]) == 0


def test_integer_masses_and_velocities() -> None:
    part = data.ParticleData(pos=jnp.zeros((50, 3)), mass=jnp.full(50, 2), vel=jnp.full((50, 3), 7))
    cata = fof_and_catalogue(part, 0.1)[1]
    assert float(cata.mass[0]) == 100
    np.testing.assert_array_equal(cata.com_vel[0], 7)
