"""The kernel for potentials and accelerations in groups, compared with sums over all pairs."""

from collections.abc import Callable

import jax.numpy as jnp
import numpy as np
import pytest

from jztree import kernels
from jztree.jax_ext import exact


def spline_terms(distance: np.ndarray, softening: float) -> tuple[np.ndarray, np.ndarray]:
    """Return what replaces 1 / r and 1 / r^3; Springel, Yoshida & White 2001, equations 70 and 71."""
    reach = 2.8 * softening
    u = np.maximum(distance / reach, 1e-30)
    inner = 14 / 5 - 16 / 3 * u**2 + 48 / 5 * u**4 - 32 / 5 * u**5
    outer = 16 / 5 - 1 / (15 * u) - 32 / 3 * u**2 + 16 * u**3 - 48 / 5 * u**4 + 32 / 15 * u**5
    inner_force = 32 / 3 - 192 / 5 * u**2 + 32 * u**3
    outer_force = 64 / 3 - 48 * u + 192 / 5 * u**2 - 32 / 3 * u**3 - 1 / (15 * u**3)
    potential = np.where(u < 0.5, inner, np.where(u < 1, outer, 1 / u)) / reach
    return potential, np.where(u < 0.5, inner_force, np.where(u < 1, outer_force, 1 / u**3)) / reach**3


def plummer_terms(distance: np.ndarray, softening: float) -> tuple[np.ndarray, np.ndarray]:
    rho = np.sqrt(distance**2 + softening**2)
    inverse = np.divide(1, rho, where=rho > 0, out=np.zeros_like(rho))
    return inverse, inverse**3


def direct_sums(
    pos: np.ndarray, mass: np.ndarray, rows: np.ndarray, softening: float = 0.0, spline: bool = False, box: float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    """Return potential and acceleration of some particles, in float64."""
    pos, mass = pos.astype(np.float64), mass.astype(np.float64)
    potential, acceleration = np.zeros(len(rows)), np.zeros((len(rows), pos.shape[1]))
    for i, row in enumerate(rows):
        away = pos - pos[row]
        away -= box * np.round(away / box) if box else 0
        distance = np.sqrt((away**2).sum(axis=1))
        terms = spline_terms(distance, softening) if spline and softening > 0 else plummer_terms(distance, softening)
        first, third = (np.where((np.arange(len(pos)) == row) | (distance + softening == 0), 0, x) for x in terms)
        potential[i] = -(mass * first).sum()
        acceleration[i] = ((mass * third)[:, None] * away).sum(axis=0)
    return potential, acceleration


def sums_of_groups(
    pos: np.ndarray,
    mass: np.ndarray,
    counts: list[int],
    softening: float = 0.0,
    box: float = 0.0,
    error: float = 1e-3,
    **how: bool,
) -> tuple[np.ndarray, np.ndarray]:
    offsets = np.cumsum([0, *counts[:-1]])
    segments = jnp.int32(len(counts)), jnp.asarray(counts, jnp.int32), jnp.asarray(offsets, jnp.int32)
    lengths = exact(softening, ()), exact(box, (pos.shape[1],)), exact(error, ())
    result = kernels.group_potential(jnp.asarray(pos), jnp.asarray(mass), segments, *lengths, **how)
    return np.asarray(result[0], np.float64), np.asarray(result[1], np.float64)


def ball(n: int, dims: int, slope: float, seed: int) -> np.ndarray:
    """Return a sphere of unit radius, whose density falls with a power of the radius."""
    random = np.random.default_rng(seed)
    method = random.standard_normal((n, dims))
    radius = random.random(n) ** (1 / slope)
    pos: np.ndarray = radius[:, None] * method / np.linalg.norm(method, axis=1, keepdims=True)
    return pos


def uniform(n: int) -> np.ndarray:
    return np.random.default_rng(1).random((n, 3))


def steep(n: int) -> np.ndarray:
    return ball(n, 3, 0.5, 2)


def clumps(n: int) -> np.ndarray:
    random = np.random.default_rng(3)
    which = random.integers(0, 20, n)
    size, centre = 10.0 ** random.uniform(-4, -1, 20), random.random((20, 3))
    return np.asarray(centre[which] + size[which, None] * ball(n, 3, 1.0, 4))


def two_haloes(n: int) -> np.ndarray:
    return np.concatenate([0.01 * ball(n // 2, 3, 1, 5), [10.0, 0, 0] + 0.1 * ball(n - n // 2, 3, 1, 6)])


def relative_errors(result: np.ndarray, expected: np.ndarray) -> np.ndarray:
    """Return the errors that 99.9 % of the particles do not exceed, where vectors have one error."""
    result, expected = result.reshape(len(result), -1), expected.reshape(len(expected), -1)
    errors = np.linalg.norm(result - expected, axis=1) / np.linalg.norm(expected, axis=1)
    return np.quantile(errors, 0.999)


@pytest.mark.parametrize("make", [uniform, steep, clumps, two_haloes])
@pytest.mark.parametrize(
    "error", [1e-2, 1e-4, *(pytest.param(error, marks=pytest.mark.emulated) for error in (1e-6, 1e-3))]
)
def test_large_group_has_the_requested_error(make: Callable[[int], np.ndarray], error: float) -> None:
    pos = make(6000).astype(np.float32)
    mass = np.random.default_rng(7).random(6000).astype(np.float32)
    rows = np.arange(0, 6000, 3)
    expected = direct_sums(pos, mass, rows)
    for how in (False, True):
        potential, acceleration = sums_of_groups(pos, mass, [6000], error=error, acceleration=how)
        assert relative_errors(potential[rows], expected[0]) < error
    assert relative_errors(acceleration[rows], expected[1]) < error


@pytest.mark.emulated
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("softening", [0.0, 0.01, 0.5, 10.0])
@pytest.mark.parametrize("n", [200, 2000])
def test_softening(dims: int, spline: bool, softening: float, n: int) -> None:
    pos, mass = ball(n, dims, 0.7, 1).astype(np.float32), np.ones(n, np.float32)
    expected = direct_sums(pos, mass, np.arange(n), softening, spline)
    result = sums_of_groups(pos, mass, [n], softening, error=1e-3, spline=spline, acceleration=True)
    assert relative_errors(result[0], expected[0]) < 1e-3
    # In one dimension, most accelerations are small differences of large terms.
    if dims > 1 or n <= 512:
        assert relative_errors(result[1], expected[1]) < 1e-3
    if n <= 512:
        np.testing.assert_allclose(result[0], expected[0], rtol=2e-7)


@pytest.mark.emulated
@pytest.mark.parametrize("error", [1e-3, 1e-6])
def test_spline_that_is_wider_than_clumps(error: float, x64: None) -> None:
    pos, mass = clumps(1500), np.ones(1500)
    expected = direct_sums(pos, mass, np.arange(1500), 0.02, True)
    assert relative_errors(sums_of_groups(pos, mass, [1500], 0.02, error=error, spline=True)[0], expected[0]) < error


@pytest.mark.emulated
@pytest.mark.parametrize("scale", [1e-6, 1e-9, 1e-12])
@pytest.mark.parametrize("error", [1e-3, 1e-5])
@pytest.mark.parametrize("dims", [2, 3])
def test_dense_cluster_in_a_wide_group_has_the_requested_error(
    dims: int, error: float, scale: float, x64: None
) -> None:
    """Many terms are equal, and the cluster is in one cell of the first word of the keys."""
    pos = np.concatenate([ball(3000, dims, 2, 1) * scale, ball(1000, dims, 2, 2)])
    mass, rows = np.ones(len(pos)), np.arange(0, len(pos), 3)
    expected = direct_sums(pos, mass, rows)
    potential, acceleration = sums_of_groups(pos, mass, [len(pos)], error=error, acceleration=True)
    assert relative_errors(potential[rows], expected[0]) < error
    assert relative_errors(acceleration[rows], expected[1]) < 10 * error  # of 99.9 %; `error` is promised for 99 %
    potential, _ = sums_of_groups(pos, mass, [len(pos)], error=error)  # with expansions
    assert relative_errors(potential[rows], expected[0]) < error


@pytest.mark.emulated
@pytest.mark.watched
def test_groups_are_independent_of_other_groups() -> None:
    """Rows in no group are 0, and a group has the same bits alone."""
    counts = [1, 513, 2, 511, 3000]
    pos = np.concatenate([i + ball(n, 3, 1, i) for i, n in enumerate(counts)] + [uniform(7)]).astype(np.float32)
    mass = np.random.default_rng(1).random(len(pos)).astype(np.float32)
    potential, acceleration = sums_of_groups(pos, mass, counts, 1e-3, acceleration=True)
    assert not potential[-7:].any()
    assert not acceleration[-7:].any()
    for first, count in zip(np.cumsum([0, *counts[:-1]]), counts, strict=True):
        rows = slice(first, first + count)
        alone = sums_of_groups(pos[rows], mass[rows], [count], 1e-3, acceleration=True)
        np.testing.assert_array_equal(potential[rows], alone[0])
        np.testing.assert_array_equal(acceleration[rows], alone[1])


@pytest.mark.emulated
def test_group_across_the_faces_of_the_box() -> None:
    pos = (0.1 * ball(3000, 3, 1, 1) % 1).astype(np.float32)
    mass = np.ones(3000, np.float32)
    expected = direct_sums(pos, mass, np.arange(3000), box=1.0)
    result = sums_of_groups(pos, mass, [3000], box=1.0, acceleration=True)
    for values, exact_values in zip(result, expected, strict=True):
        assert relative_errors(values, exact_values) < 1e-3


@pytest.mark.emulated
def test_negative_masses() -> None:
    """The errors are relative to sums of absolute masses."""
    pos, mass = steep(4000).astype(np.float32), np.random.default_rng(1).standard_normal(4000).astype(np.float32)
    rows = np.arange(4000)
    expected, size = direct_sums(pos, mass, rows), direct_sums(pos, np.abs(mass), rows)
    result = sums_of_groups(pos, mass, [4000], acceleration=True)
    assert np.quantile(np.abs((result[0] - expected[0]) / size[0]), 0.999) < 1e-3
    assert (
        np.quantile(np.linalg.norm(result[1] - expected[1], axis=1) / np.abs(size[0]), 0.999)
        < 1e-3 * np.abs(size[1]).max() / np.abs(size[0]).min()
    )


@pytest.mark.emulated
@pytest.mark.parametrize("unit", [1e-25, 1.0, 1e25])
def test_units_of_length(unit: float, x64: None) -> None:
    pos, mass = unit * clumps(2000), np.ones(2000)
    expected = direct_sums(pos, mass, np.arange(2000))
    result = sums_of_groups(pos, mass, [2000], acceleration=True)
    assert relative_errors(result[0], expected[0]) < 1e-3
    assert relative_errors(result[1], expected[1]) < 1e-3


@pytest.mark.parametrize("n", [2, 200, pytest.param(2000, marks=pytest.mark.emulated)])
@pytest.mark.parametrize("spline", [False, True])
@pytest.mark.parametrize("extent", [0.0, 1e-17, 1e-25, 1e-250])
@pytest.mark.parametrize("softening", [1.0, 1e200])
def test_softening_much_longer_than_the_extent(
    softening: float, extent: float, spline: bool, n: int, x64: None
) -> None:
    """Squares and higher powers of such lengths, in units of the extent, are outside the range of the numbers."""
    pos = extent * uniform(n)
    potential, acceleration = sums_of_groups(pos, np.ones(n), [n], softening, spline=spline, acceleration=True)
    np.testing.assert_allclose(potential, (1 - n) / softening, rtol=1e-6)
    # Inside the softening, the force is proportional to the distance.
    stiffness = (32 / 3 / 2.8**3 if spline else 1) / softening / softening / softening
    expected = n * stiffness * (pos.mean(axis=0) - pos)
    np.testing.assert_allclose(acceleration, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())


@pytest.mark.emulated
@pytest.mark.parametrize("separation", [1e-3, 1e-9, 1e-14, 0.0])
def test_tight_binaries(separation: float, x64: None) -> None:
    pos = np.repeat(ball(1500, 3, 1, 1) * 1e-2, 2, axis=0)
    pos[::2] *= 1 - separation
    np.random.default_rng(1).shuffle(pos)
    mass = np.ones(3000)
    expected = direct_sums(pos, mass, np.arange(3000))
    result = sums_of_groups(pos, mass, [3000], acceleration=True)
    assert relative_errors(result[0], expected[0]) < 1e-3
    assert relative_errors(result[1], expected[1]) < 1e-3


@pytest.mark.emulated
@pytest.mark.parametrize("width", [1e-6, 1e-7, 1e-10, 1e-13])
def test_tight_clumps_without_softening(width: float, x64: None) -> None:
    """Powers of distances in a clump are outside the range of float32."""
    random = np.random.default_rng(8)
    pos = random.integers(0, 3, (700, 1)) / 4 + width * random.random((700, 3))
    mass, rows = np.ones(700), np.arange(700)
    expected = direct_sums(pos, mass, rows)
    for how in (False, True):
        result = sums_of_groups(pos, mass, [700], acceleration=how)
        assert relative_errors(result[0], expected[0]) < 1e-3
    assert relative_errors(result[1], expected[1]) < 1e-3


@pytest.mark.emulated
def test_many_particles_at_few_points() -> None:
    """Pairs at distance 0 must not count in estimates of the potential."""
    random = np.random.default_rng(9)
    pos, mass = random.random((5, 3))[random.integers(0, 5, 1500)].astype(np.float32), np.ones(1500, np.float32)
    pos[:500] = random.random((500, 3))
    expected = direct_sums(pos, mass, np.arange(1500))
    for error in (1e-3, 1e-6):
        result = sums_of_groups(pos, mass, [1500], error=error, acceleration=True)
        assert relative_errors(result[0], expected[0]) < error
        assert relative_errors(result[1], expected[1]) < error


@pytest.mark.emulated
@pytest.mark.parametrize("n", [0, 1, 2, 513])
def test_particles_at_one_point(n: int) -> None:
    pos, mass = np.full((n, 3), 0.3, np.float32), np.ones(n, np.float32)
    for softening, value in ((0.0, 0.0), (0.5, -2.0 * (n - 1))):
        potential, acceleration = sums_of_groups(pos, mass, [n], softening, acceleration=True)
        np.testing.assert_allclose(potential, np.full(n, value), rtol=1e-6)
        assert not acceleration.any()
