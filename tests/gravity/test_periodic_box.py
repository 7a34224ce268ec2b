"""Potentials and accelerations from all images of a periodic box, compared with Ewald's sums and known lattices."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, mesh_of
from scipy.special import erf, erfc

import jztree as jz

from .test_group_potential import clumps, plummer_terms, spline_terms, steep, uniform


def ewald_sums(
    pos: np.ndarray, mass: np.ndarray, box: Any, rows: np.ndarray, softening: float = 0.0, spline: bool = False
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return potential and acceleration of some particles, and the sum of m / r over the nearest images."""
    pos, mass, sides = pos.astype(np.float64), mass.astype(np.float64), np.broadcast_to(np.asarray(box, float), 3)
    volume, rate = sides.prod(), 6 / sides.min()  # images farther than the shortest side vanish
    number = np.ceil(12 * rate * sides / (2 * np.pi)).astype(int)
    waves = np.stack(np.meshgrid(*(np.arange(-n, n + 1) for n in number)), axis=-1).reshape(-1, 3) * 2 * np.pi / sides
    square = (waves**2).sum(axis=1)
    waves, square = waves[square > 0], square[square > 0]
    height = 4 * np.pi / volume * np.exp(-square / (4 * rate**2)) / square
    waves, height = waves[height > 1e-18 * height.max()], height[height > 1e-18 * height.max()]
    structure = sum(np.exp(1j * waves @ part.T) @ weight for part, weight in _parts(pos, mass))
    waved = np.exp(-1j * pos[rows] @ waves.T) * structure
    potential = (waved.real * height).sum(axis=1) - np.pi / (rate**2 * volume) * mass.sum()
    acceleration, norm = (waved.imag * height) @ waves, np.zeros(len(rows))
    shifts = np.stack(np.meshgrid(*[[-1, 0, 1]] * 3), axis=-1).reshape(-1, 3) * sides
    for i, row in enumerate(rows):
        nearest = pos - pos[row]
        nearest -= sides * np.round(nearest / sides)
        others, rest = np.arange(len(pos)) != row, np.sqrt((nearest**2).sum(axis=1))
        norm[i] = mass @ plummer_terms(rest, 0.0)[0]
        terms = spline_terms(rest, softening) if spline and softening > 0 else plummer_terms(rest, softening)
        for shift in shifts:
            away = nearest + shift
            distance = np.sqrt((away**2).sum(axis=1))
            r, is_nearest = np.maximum(distance, 1e-30), not shift.any()
            value = -erf(rate * r) / r if is_nearest else erfc(rate * r) / r
            peak = 2 * rate / np.sqrt(np.pi)
            force = (value + peak * np.exp(-((rate * r) ** 2))) / r**2
            if is_nearest:
                value += np.where(others, terms[0], 0)
                # Close to 0, the difference of both terms has no digits; this is the first term of its series.
                force = np.where(rate * r > 1e-4, force, -2 / 3 * peak * rate**2) + np.where(others, terms[1], 0)
            potential[i] += mass @ value
            acceleration[i] += (mass * force) @ away
    return -potential, acceleration, norm


def _parts(pos: np.ndarray, mass: np.ndarray, rows: int = 100) -> list[tuple[np.ndarray, np.ndarray]]:
    return [(pos[i : i + rows], mass[i : i + rows]) for i in range(0, len(pos), rows)]


def lattice(cells: int, *places: tuple[float, float, float]) -> np.ndarray:
    """Return a cubic lattice with places in each cell, in a box of side 1."""
    corners = np.stack(np.meshgrid(*[np.arange(cells)] * 3), axis=-1).reshape(-1, 1, 3)
    pos: np.ndarray = ((corners + np.asarray(places)).reshape(-1, 3)) / cells
    return pos


CUBIC, CENTRED = (0.0, 0.0, 0.0), (0.5, 0.5, 0.5)
N = 1500
FACES = ((0.5, 0.5, 0.0), (0.5, 0.0, 0.5), (0.0, 0.5, 0.5))


@pytest.mark.parametrize("cells", [pytest.param(1, marks=pytest.mark.emulated), 2, 5])
@pytest.mark.parametrize(
    ("places", "energy"),
    [([CUBIC], -0.8800594421), ([CUBIC, CENTRED], -0.8959292557), ([CUBIC, *FACES], -0.8958736152)],
)
def test_energies_of_wigner_crystals(cells: int, places: Any, energy: float, x64: None) -> None:
    """The energies of a charge in a uniform background: R. A. Coldwell-Horsfall & A. A. Maradudin, 1960."""
    pos = lattice(cells, *places)
    radius = (3 / (4 * np.pi * len(pos))) ** (1 / 3)
    np.testing.assert_allclose(-jz.potential(pos, boxsize=1.0, error=1e-9) * radius / 2, energy, rtol=1e-7)
    assert np.abs(jz.acceleration(pos, boxsize=1.0, error=1e-9)).max() < 1e-6 * len(pos)


@pytest.mark.emulated
@pytest.mark.parametrize("softening", [0.05, 0.3])
@pytest.mark.parametrize("cells", [2, 6])
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_softened_lattices_have_no_accelerations(cells: int, softening: float, dtype: Any, x64: None) -> None:
    """Of two images half the box away, one is softened, and forces have no direction."""
    pos = (lattice(cells, CUBIC) + 0.3).astype(dtype)
    rows, how = np.arange(2), {"boxsize": 1.0, "softening": softening, "error": 1e-9}
    potential, _, norm = ewald_sums(pos, np.ones(len(pos)), 1.0, rows, softening)
    np.testing.assert_allclose(jz.potential(pos, **how)[rows], potential, atol=1e-7 * norm.max())
    assert np.abs(jz.acceleration(pos, **how)).max() < 1e-6 * len(pos)


@pytest.mark.emulated
@pytest.mark.parametrize("num", [2, 600])
@pytest.mark.parametrize(("dtype", "gap"), [(np.float64, 3e-7), (np.float64, 1e-12), (np.float32, 2e-6)])
def test_only_sources_within_rounding_of_half_the_box_have_two_nearest_images(
    dtype: Any, gap: float, num: int, x64: None
) -> None:
    pos = (uniform(num) / 8).astype(dtype)
    pos[1::2] = pos[::2] + np.array([0.5 - gap, 0.0, 0.0], dtype)
    rows = np.arange(0, num, max(1, num // 20))
    _, acceleration, norm = ewald_sums(pos, np.ones(num), 1.0, rows, 0.3)
    result = jz.acceleration(pos, boxsize=1.0, softening=0.3, error=1e-9)[rows]
    np.testing.assert_allclose(result, acceleration, atol=(1e-7 if dtype == np.float64 else 1e-5) * norm.max())


def test_madelung_constant_of_rock_salt(x64: None) -> None:
    """Ions of one sign are a face-centred lattice, and all ions are a cubic one of half the side."""
    of_one_sign = float(jz.potential(lattice(1, CUBIC, *FACES), boxsize=1.0, error=1e-9)[0])
    of_all = float(jz.potential(lattice(2, CUBIC), boxsize=1.0, error=1e-9)[0])
    np.testing.assert_allclose((2 * of_one_sign - of_all) / 2, 1.7475645946, rtol=1e-8)


@pytest.mark.emulated
@pytest.mark.parametrize("how", [{}, {"softening": 0.1}, {"softening": 0.1, "kernel": "spline"}])
@pytest.mark.parametrize("box", [1.0, (1.0, 0.6, 2.0)])
def test_few_particles(box: Any, how: Any, x64: None) -> None:
    pos = uniform(30) * box + 3.0
    pos[1] = pos[0] + 1e-9
    pos[2] = pos[3]
    mass = 1 + uniform(30)[:, 0]
    potential, acceleration, norm = ewald_sums(pos, mass, box, np.arange(30), how.get("softening", 0), "kernel" in how)
    result = jz.potential(pos, masses=mass, boxsize=box, error=1e-8, **how)
    assert (np.abs(result - potential) < 1e-8 * norm).all()
    result = jz.acceleration(pos, masses=mass, boxsize=box, error=1e-8, **how)
    scale = np.linalg.norm(acceleration, axis=1) + mass.sum()
    assert (np.linalg.norm(result - acceleration, axis=1) < 1e-6 * scale).all()


@pytest.mark.parametrize("how", [{}, {"softening": 0.2}, {"softening": 0.02, "kernel": "spline"}])
@pytest.mark.parametrize("box", [(1.0, 1.7, 0.7), 1.0])
@pytest.mark.parametrize("make", [steep, clumps, uniform])
@pytest.mark.parametrize(
    "error",
    [
        *(pytest.param(error, marks=pytest.mark.slow) for error in (1e-2, 1e-4)),
        1e-6,
        pytest.param(1e-3, marks=pytest.mark.emulated),
    ],
)
def test_large_box_has_the_requested_error(error: float, make: Any, box: Any, how: Any) -> None:
    pos = ((0.3 * make(N) + 0.8 if make is steep else make(N)) % 1 * box).astype(np.float32)
    mass, rows = np.random.default_rng(7).random(N, np.float32), np.arange(0, N, 10)
    potential, acceleration, norm = ewald_sums(pos, mass, box, rows, how.get("softening", 0), "kernel" in how)
    result = np.asarray(jz.potential.jit(pos, masses=mass, boxsize=box, error=error, **how), np.float64)[rows]
    assert np.quantile(np.abs(result - potential) / norm, 0.994) < error
    # Float32 has no more digits. With the large softening, the terms of accelerations cancel almost completely.
    if error >= 1e-4 and how.get("softening") != 0.2:
        result = np.asarray(jz.acceleration.jit(pos, masses=mass, boxsize=box, error=error, **how), np.float64)[rows]
        errors = np.linalg.norm(result - acceleration, axis=1) / np.linalg.norm(acceleration, axis=1)
        assert np.quantile(errors, 0.99) < error


def test_positions_outside_the_box_count_as_their_images(x64: None) -> None:
    pos = uniform(200)
    moved = pos + np.random.default_rng(1).integers(-3, 4, pos.shape)
    for function in (jz.potential, jz.acceleration):
        np.testing.assert_allclose(function(moved, boxsize=1.0), function(pos, boxsize=1.0), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("unit", [2.0**-100, 2.0**100])
def test_units_of_length(unit: float, x64: None) -> None:
    pos = clumps(500) % 1
    expected = jz.potential(pos, boxsize=1.0)
    np.testing.assert_array_equal(unit * jz.potential(unit * pos, boxsize=unit), expected)


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_bits_over_ranks_equal_one_device(ndev: int) -> None:
    pos = uniform(840).astype(np.float32)
    stacked = pos.reshape(ndev, -1, 3)
    for function in (jz.potential, jz.acceleration):
        result = function.smap(mesh_of(ndev), jit=True)(stacked, boxsize=1.0)
        expected = np.asarray(function(pos, boxsize=1.0))
        np.testing.assert_array_equal(np.asarray(result).reshape(expected.shape), expected)


def test_derivatives(x64: None) -> None:
    random = np.random.default_rng(3)
    pos, mass, moves, changes = random.random((40, 3)), random.random(40), random.random((40, 3)), random.random(40)

    @jax.jit
    def potential(pos: jax.Array, mass: jax.Array) -> jax.Array:
        return jz.potential(pos, masses=mass, boxsize=1.0, softening=0.05, error=1e-9)

    step = 1e-6
    ahead, behind = (potential(pos + sign * step * moves, mass + sign * step * changes) for sign in (1, -1))
    _, change = jax.jvp(potential, (pos, mass), (moves, changes))
    np.testing.assert_allclose(change, (ahead - behind) / (2 * step), rtol=1e-5, atol=1e-5)
    cotangent = random.standard_normal(40)
    by_pos, by_mass = jax.vjp(potential, pos, mass)[1](jnp.asarray(cotangent))
    np.testing.assert_allclose((by_pos * moves).sum() + (by_mass * changes).sum(), cotangent @ change, rtol=1e-9)
    by_mass = jax.jit(jax.grad(lambda mass: (jz.acceleration(pos, masses=mass, boxsize=1.0) ** 2).sum()))(mass)
    assert np.isfinite(by_mass).all()
    with pytest.raises(oracles.RUN_TIME_ERROR, match="no derivatives of accelerations with respect to positions"):
        jax.block_until_ready(jax.grad(lambda pos: jz.acceleration(pos, boxsize=1.0).sum())(pos))


@pytest.mark.parametrize(
    ("dims", "arguments", "message"),
    [
        (2, {"boxsize": 1.0}, "need a box that is periodic in all of 3 dimensions"),
        (3, {"boxsize": (1.0, 1.0, 0.0)}, "need a box that is periodic in all of 3 dimensions"),
        (3, {"boxsize": (1.0, 9.0, 1.0)}, "the longest side of the box is more than 4 times"),
        (3, {"boxsize": 1.0, "softening": 0.6}, "the softening reaches farther than half"),
        (3, {"boxsize": 1.0, "softening": 0.2, "kernel": "spline"}, "the softening reaches farther than half"),
    ],
)
def test_unsuitable_boxes_raise(dims: int, arguments: dict[str, Any], message: str) -> None:
    pos = uniform(5)[:, :dims].astype(np.float32)
    for function in (jz.potential, jz.potential.jit):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=message):
            jax.block_until_ready(function(pos, **arguments))
