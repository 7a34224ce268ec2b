"""Profiles around centres agree with sums over all particles in NumPy."""

import math

import jax
import numpy as np
import pytest

import jztree as jz
from jztree.data import ParticleData, PosMass


def brute(
    pos: np.ndarray, mass: np.ndarray, centres: np.ndarray, radii: np.ndarray, box: float
) -> tuple[np.ndarray, ...]:
    """Return the masses within radii ``(q, m)``, and masses and numbers of particles in the shells, in float64."""
    away = pos.astype(float) - centres.astype(float)[:, None]
    if box:
        away -= box * np.round(away / box)
    distance = np.sqrt((away**2).sum(axis=-1))
    within = distance[:, None, :] <= radii[:, :, None]
    masses = (within * mass.astype(float)).sum(axis=-1)
    return masses, np.diff(masses, axis=1), np.diff(within.sum(axis=-1), axis=1)


@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("box", [0.0, 1.0])
@pytest.mark.parametrize("per_centre", [False, True])
def test_profiles_equal_sums_over_all_particles(dims: int, box: float, per_centre: bool) -> None:
    random = np.random.default_rng(dims)
    pos, centres = (random.random((n, dims), np.float32) for n in (400, 7))
    mass = random.uniform(0.5, 2, len(pos)).astype(np.float32)
    radii = np.geomspace(0.05, 0.49, 6)
    table = np.broadcast_to(radii, (len(centres), 6)) * (random.uniform(0.5, 1, (7, 1)) if per_centre else 1)
    profiles = jz.radial_profiles(
        ParticleData(pos=pos, mass=mass), table if per_centre else radii, queries=centres, boxsize=box, gravity=43.0
    )
    masses, shell_mass, shell_count = brute(pos, mass, centres, table, box)
    np.testing.assert_allclose(profiles.radius, table, rtol=1e-6)
    np.testing.assert_array_equal(profiles.shell_count, shell_count)
    np.testing.assert_allclose(profiles.mass, masses, rtol=1e-6)
    np.testing.assert_allclose(profiles.shell_mass, shell_mass, atol=2e-7 * masses.max())
    np.testing.assert_allclose(profiles.circular_velocity, np.sqrt(43 * masses / table), rtol=1e-6)
    volume = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1) * np.diff(table**dims, axis=1)
    np.testing.assert_allclose(profiles.density, shell_mass / volume, rtol=1e-4, atol=1e-6 * masses.max())


def test_isothermal_sphere_has_its_closed_form() -> None:
    rng = np.random.default_rng(3)
    direction = rng.normal(size=(200_000, 3))
    pos = (direction / np.linalg.norm(direction, axis=1, keepdims=True) * rng.random((200_000, 1))).astype(np.float32)
    radii = np.linspace(0.1, 0.9, 9)
    profiles = jz.radial_profiles(pos, radii, queries=np.zeros((1, 3), np.float32))
    np.testing.assert_allclose(profiles.circular_velocity[0], np.sqrt(2e5), rtol=0.02)
    volume = 4 / 3 * np.pi * np.diff(radii**3)
    np.testing.assert_allclose(profiles.density[0], 2e5 * np.diff(radii) / volume, rtol=0.03)


def test_shells_as_thin_as_a_rounding_error_have_a_density_without_cancellation() -> None:
    inner, outer = np.float32(1.0), np.nextafter(np.float32(1), np.float32(2))
    profiles = jz.radial_profiles(
        np.full((3, 2), [outer, 0], np.float32), [inner, outer], queries=np.zeros((1, 2), np.float32)
    )
    np.testing.assert_allclose(profiles.density, [[3 / (np.pi * (float(outer) ** 2 - 1))]], rtol=1e-6)


def test_equal_radii_and_radius_0_give_zeros() -> None:
    pos = np.zeros((2, 3), np.float32)
    profiles = jz.radial_profiles(pos, [0.0, 0.0, 1.0, 1.0], queries=pos[:1])
    np.testing.assert_array_equal(profiles.mass, [[2, 2, 2, 2]])
    np.testing.assert_array_equal(profiles.density, [[0, 0, 0]])
    np.testing.assert_array_equal(profiles.circular_velocity[0, :2], [0, 0])


def test_an_index_and_rows_without_centres() -> None:
    pos = np.random.default_rng(1).random((300, 3), np.float32)
    centres = ParticleData(pos=pos[:4], num=np.int32(2))
    index = jz.build_index(pos, 1.0)
    expected = jz.radial_profiles(pos, [0.1, 0.3], queries=pos[:2], boxsize=1.0)
    for profiles in (
        jz.radial_profiles(index, [0.1, 0.3], queries=centres),
        jz.radial_profiles.jit(pos, [0.1, 0.3], queries=centres, boxsize=1.0),
    ):
        for column, values in zip(profiles, expected, strict=True):
            np.testing.assert_array_equal(column[:2], values)
            assert not np.asarray(column[2:]).any()


@pytest.mark.parametrize(
    ("radii", "options", "message"),
    [
        ([0.3], {}, "radii has one radius"),
        ([0.3, 0.1], {}, "ascend"),
        ([0.1, 0.6], {"boxsize": 1.0}, "row 0 is infinite or above half the smallest periodic length"),
        ([0.1, np.inf], {}, "row 0 is infinite"),
    ],
)
def test_invalid_arguments_raise(radii: object, options: dict[str, object], message: str) -> None:
    pos = np.random.default_rng(0).random((10, 3), np.float32)
    with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=message):
        jz.radial_profiles(pos, radii, queries=pos[:3], **options)


def test_masses_and_densities_out_of_range_raise() -> None:
    pos = 1e-20 * np.random.default_rng(0).random((10, 3), np.float32)
    with pytest.raises(ValueError, match="outside the range of float32"):
        jz.radial_profiles(pos, [0.0, 1e-20], queries=pos[:1])


@pytest.mark.parametrize(
    ("dims", "length", "mass"), [(1, 66, 90), (2, 66, 90), (3, 66, 90), (3, -66, -90), (2, -66, -70), (4, 40, 80)]
)
def test_powers_of_two_as_units_change_no_other_bit(dims: int, length: int, mass: int) -> None:
    """Powers of the radii, or the mass over the radius, are outside the range of float32."""
    density, velocity = mass - dims * length, (mass - length) // 2
    random = np.random.default_rng(dims)
    pos, masses, radii = random.random((200, dims), np.float32), random.random(200, np.float32), np.array([0.1, 0.3])
    profiles, result = (
        jz.radial_profiles.jit(PosMass(pos=pos * x, mass=masses * m), radii * x, queries=pos[:5] * x)
        for x, m in ((np.float32(1), np.float32(1)), (np.float32(2.0**length), np.float32(2.0**mass)))
    )
    for name, unit in (("mass", mass), ("circular_velocity", velocity), ("density", density), ("shell_mass", mass)):
        np.testing.assert_array_equal(getattr(result, name), getattr(profiles, name) * 2.0**unit)


def test_densities_below_the_range_raise() -> None:
    pos = 1e22 * np.random.default_rng(0).random((10, 3), np.float32)
    with pytest.raises(ValueError, match="outside the range of float32"):
        jz.radial_profiles(pos, [0.0, 1e22], queries=pos[:1])
