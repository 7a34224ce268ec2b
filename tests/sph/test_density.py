"""Densities from neighbours, compared with SciPy and NumPy in float64."""

import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import deal, joined, mesh_of, uneven
from scipy.integrate import quad
from scipy.spatial import cKDTree

from jztree import build_index, density
from jztree.data import ParticleData, Pos, PosMass, expand_particles
from jztree.tree import zsort_and_tree

K = 12
MASSES = ["none", "shared", "each"]
# The kernels in the form of the papers, with (1 - q)_+.
PRINTED: dict[str, Callable[[np.ndarray, int], np.ndarray]] = {
    "cubic_spline": lambda q, d: np.where(q < 0.5, 1 - 6 * q**2 + 6 * q**3, 2 * np.maximum(1 - q, 0) ** 3),
    "wendland_c2": lambda q, d: np.maximum(1 - q, 0) ** (3 if d == 1 else 4) * (1 + (3 if d == 1 else 4) * q),
    "wendland_c4": lambda q, d: (
        np.maximum(1 - q, 0) ** (5 if d == 1 else 6) * (1 + (5 if d == 1 else 6) * q + (8 if d == 1 else 35 / 3) * q**2)
    ),
    "wendland_c6": lambda q, d: (
        np.maximum(1 - q, 0) ** (7 if d == 1 else 8)
        * (1 + 7 * q + 19 * q**2 + 21 * q**3 if d == 1 else 1 + 8 * q + 25 * q**2 + 32 * q**3)
    ),
}


def surface(dims: int) -> float:
    """Return the surface of the unit sphere."""
    return 2 * math.pi ** (dims / 2) / math.gamma(dims / 2)


def particles(dims: int, masses: str, n: int = 700) -> PosMass:
    mass = {"none": None, "shared": 2.5, "each": 10 ** np.random.default_rng(4).uniform(-2, 2, n).astype(np.float32)}
    return PosMass(pos=oracles.clustered(n, dims), mass=mass[masses])


def neighbours(part: Any, box: Any, query: np.ndarray | None = None) -> tuple[np.ndarray, np.ndarray]:
    """Return distances and masses of the nearest neighbours by SciPy, in float64."""
    pos = np.asarray(part.pos, np.float64)
    rad, idx = cKDTree(pos, boxsize=box).query(pos if query is None else query.astype(np.float64), K)
    mass = np.broadcast_to(np.float64(1.0 if part.mass is None else part.mass), len(pos))
    return rad, mass[idx]


def expected_knn(rad: np.ndarray, mass: np.ndarray, dims: int, own: bool = True) -> np.ndarray:
    return mass[:, int(own) : -1].sum(axis=1) / (surface(dims) / dims * rad[:, -1] ** dims)


def expected_sph(rad: np.ndarray, mass: np.ndarray, dims: int, kernel: str) -> np.ndarray:
    norm = quad(lambda q: surface(dims) * q ** (dims - 1) * PRINTED[kernel](np.float64(q), dims), 0, 1)[0]
    h = rad[:, -1:]
    return (mass * PRINTED[kernel](rad / h, dims)).sum(axis=1) / norm / h[:, 0] ** dims


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("masses", MASSES)
def test_densities_equal_those_from_scipy_neighbours(dims: int, masses: str) -> None:
    part = particles(dims, masses)
    box = None if masses == "none" else 1.0
    rad, mass = neighbours(part, box)
    kernel = {"none": "cubic_spline", "shared": "wendland_c2", "each": "wendland_c4"}[masses]
    got = density.knn_density.jit(part, K, boxsize=box)
    np.testing.assert_allclose(got, expected_knn(rad, mass, dims), rtol=2e-6 * dims)
    assert got.dtype == np.float32
    np.testing.assert_allclose(density.smoothing_length.jit(part, K, boxsize=box), rad[:, -1], rtol=1e-6)
    got = density.sph_density.jit(part, K, boxsize=box, kernel=kernel)
    np.testing.assert_allclose(got, expected_sph(rad, mass, dims, kernel), rtol=3e-6 * dims)


@pytest.mark.parametrize("kernel", PRINTED)
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_kernels_have_unit_integral_and_the_printed_shape(kernel: str, dims: int) -> None:
    # Gauss-Legendre quadrature is exact for the two polynomials of a kernel.
    nodes, weights = np.polynomial.legendre.leggauss(12)
    q = np.r_[(nodes + 1) / 4, (nodes + 3) / 4]
    value = np.asarray(density.sph_kernel(q, kernel, dims), np.float64)
    assert (np.tile(weights / 4, 2) * surface(dims) * q ** (dims - 1) * value).sum() == pytest.approx(1, rel=1e-6)
    centre = float(density.sph_kernel(0.0, kernel, dims))
    np.testing.assert_allclose(value / centre, PRINTED[kernel](q, dims), atol=1e-6)
    np.testing.assert_array_equal(density.sph_kernel(np.array([1.0, 1.5]), kernel, dims), 0)


@pytest.mark.parametrize("order", ["input", "z"])
def test_separate_queries_with_an_index(order: str) -> None:
    part = PosMass(pos=oracles.uniform(700, 3), mass=particles(3, "each").mass)
    index = build_index(part, 1.0)
    query = oracles.uniform(90, 3, seed=9)
    queryz = query if order == "input" else np.asarray(zsort_and_tree(jnp.asarray(query), boxsize=1.0)[0])
    rad, mass = neighbours(part, 1.0, queryz)
    options = {"queries": query, "order": order}
    want = expected_knn(rad, mass, 3, own=False)
    np.testing.assert_allclose(density.knn_density(index, K, **options), want, rtol=5e-6)
    want = expected_sph(rad, mass, 3, "cubic_spline")
    np.testing.assert_allclose(density.sph_density(index, K, **options), want, rtol=2e-5)
    np.testing.assert_allclose(density.smoothing_length.jit(index, K, **options), rad[:, -1], rtol=1e-6)


@pytest.mark.parametrize(
    ("func", "options"),
    [
        # XLA computes these sums. With optimisation, as for users and in the slow tests, the order does not depend on
        # the number of devices.
        pytest.param(density.sph_density, {"kernel": "wendland_c2", "bias_correction": True}, marks=pytest.mark.slow),
        (density.knn_density, {}),
        pytest.param(density.smoothing_length, {}, marks=pytest.mark.slow),
    ],
)
def test_several_devices_give_the_bits_of_one(func: Any, options: dict[str, Any]) -> None:
    part = particles(3, "each")
    counts = uneven(700, 4)
    stacked, mass = deal(part.pos, counts, rows=700), deal(np.asarray(part.mass)[:, None], counts, rows=700).pos[..., 0]
    many = ParticleData(pos=stacked.pos, mass=mass, id=stacked.id, num=stacked.num)
    got = func.smap(mesh_of(4), jit=True)(many, K, boxsize=1.0, **options)
    np.testing.assert_array_equal(joined(got, counts), func.jit(part, K, boxsize=1.0, **options))
    for rank, count in enumerate(counts):
        np.testing.assert_array_equal(got[rank, count:], 0)


@pytest.mark.long
def test_duplicates_and_padding_make_no_nan() -> None:
    pos = np.r_[np.zeros((K + 3, 3)), oracles.uniform(40, 3), np.full((5, 3), np.nan)].astype(np.float32)
    mass = np.r_[np.zeros(K + 3), np.ones(40), np.full(5, np.nan)].astype(np.float32)
    part = PosMass(pos=pos, mass=mass, num=len(pos) - 5)
    for func in (density.knn_density, density.sph_density):

        def total(pos: Any, func: Any = func) -> Any:
            return func(PosMass(pos=pos, mass=mass, num=part.num), K)[K + 3 : -5].sum()

        got, gradient = jax.jit(jax.value_and_grad(total))(jnp.asarray(pos))
        assert np.isfinite(got)
        assert np.all(np.isfinite(gradient))
        got = func.jit(part, K)
        assert np.all(np.isposinf(got[: K + 3]))
        assert np.all(np.isfinite(got[K + 3 :]))
        np.testing.assert_array_equal(got[-5:], 0)


def test_float32_neither_overflows_nor_loses_small_terms() -> None:
    """A volume of 1e45 exceeds float32; a sequential sum of a thousand equal masses is off by 1e-5."""
    pos, n = oracles.uniform(1500, 3), 1000
    want = density.knn_density.jit(pos, n)
    part = PosMass(pos=pos * np.float32(1e-12), mass=np.float32(0.1))
    got = np.asarray(density.knn_density.jit(part, n), np.float64)
    np.testing.assert_allclose(got, 0.1 * np.asarray(want, np.float64) / 1e-36, rtol=1e-6)
    light = PosMass(pos=pos * np.float32(1e15), mass=np.float32(0.1))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="the density in row 0 is outside the range of float32; choose"):
        jax.block_until_ready(density.knn_density.jit(light, n))
    heavy = PosMass(pos=pos * np.float32(1e15), mass=np.float32(1e20))
    np.testing.assert_allclose(density.knn_density.jit(heavy, n), np.asarray(want) * 1e-25, rtol=1e-6)


@pytest.mark.long
def test_derivatives_equal_finite_differences(x64: None) -> None:
    mass = np.random.default_rng(1).random(60) + 0.5
    pos = oracles.uniform(60, 3, np.float64)
    step = np.random.default_rng(2).normal(size=pos.shape)
    for func in (density.knn_density, density.sph_density, density.smoothing_length):

        def total(shift: Any, func: Any = func) -> Any:
            return jnp.log(func(PosMass(pos=pos + shift * step, mass=mass * (1 + shift)), 9, boxsize=1.0)).sum()

        value = jax.jit(total)
        difference = (value(1e-6) - value(-1e-6)) / 2e-6
        np.testing.assert_allclose(jax.jit(jax.grad(total))(0.0), difference, rtol=1e-6)


@pytest.mark.long
def test_bias_correction_recovers_the_density_of_a_lattice() -> None:
    """A cubic lattice is as regular as a glass; 123 neighbours end half-way between two of its shells."""
    pos = oracles.lattice(12, 3)
    raw = density.sph_density.jit(pos, 123, boxsize=12.0, kernel="wendland_c2")
    corrected = density.sph_density.jit(pos, 123, boxsize=12.0, kernel="wendland_c2", bias_correction=True)
    h = np.asarray(density.smoothing_length(pos, 123, boxsize=12.0), np.float64)
    excess = 0.0294 * 1.23**-0.977 * 21 / (2 * np.pi * h**3)
    np.testing.assert_allclose(raw - corrected, excess, rtol=1e-3)
    assert np.all(np.abs(corrected - 1) < np.abs(raw - 1))


def test_box_lengths_share_one_compilation(count_compilations: Any) -> None:
    pos = oracles.uniform(100, 3)
    density.sph_density.jit(pos, 8, boxsize=1.0)
    with count_compilations() as lines:
        density.sph_density.jit(pos, 8, boxsize=[1.25, 0.0, 2.0])
    assert not lines


@pytest.mark.parametrize(
    ("func", "part", "options", "message"),
    [
        (density.knn_density, np.zeros((9, 3), np.float32), {"k": 2}, "at least 3 neighbours"),
        (density.sph_density, np.zeros((9, 3), np.float32), {"k": 1}, "at least 2 neighbours"),
        (density.knn_density, np.zeros((9, 3), np.float32), {"k": 10}, "only 9 particles"),
        (density.sph_density, np.zeros((9, 4), np.float32), {"k": 4}, "1 to 3 dimensions, not 4"),
        (
            density.sph_density,
            np.zeros((9, 3), np.float32),
            {"k": 4, "bias_correction": True},
            "not for cubic_spline in 3",
        ),
        (
            density.knn_density,
            PosMass(pos=np.zeros((9, 3), np.float32), mass=np.ones(8)),
            {"k": 4},
            r"shape \(9,\); its shape is \(8,\)",
        ),
    ],
)
def test_invalid_arguments_raise_a_one_sentence_error(
    func: Any, part: Any, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message) as error:
        func.jit(part, **options)
    assert oracles.one_sentence(error)


@pytest.mark.long
def test_separate_queries_need_one_neighbour_fewer() -> None:
    pos = oracles.uniform(20, 2)
    query = Pos(pos=oracles.uniform(4, 2, seed=3), num=3)
    rad = cKDTree(pos).query(query.pos, 2)[0][:, 1]
    got = density.knn_density(pos, 2, queries=query)
    np.testing.assert_allclose(got, np.where(np.arange(4) < 3, 1 / (np.pi * rad**2), 0), rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("unit", [1e-25, 1e25], ids=str)
def test_derivatives_in_extreme_units(unit: float) -> None:
    """Masses per length are of order 1 in any unit: their derivatives scale with its inverse, not with its square."""
    pos = jnp.asarray(oracles.uniform(40, 1))

    def total(pos: Any, unit: float) -> Any:
        scale = jnp.float32(unit)
        part = PosMass(pos=pos * scale, mass=scale)
        return density.knn_density(part, 9).sum() + density.sph_density(part, 9).sum()

    derive = jax.jit(jax.grad(total), static_argnums=1)
    np.testing.assert_allclose(derive(pos, unit), derive(pos, 1.0), rtol=1e-3, atol=0.1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -1.0])
def test_invalid_mass_is_named_by_rank_and_row(value: float) -> None:
    """The error names the mass, and not a density that it affects on another device."""
    part = PosMass(pos=oracles.uniform(40, 3), mass=np.ones(40, np.float32))
    part.mass[23] = value
    with pytest.raises(Exception, match="on rank 1: row 3 has a mass that is negative, NaN or") as error:
        density.sph_density.smap(mesh_of(2), jit=True)(expand_particles(part, 2), 8, boxsize=1.0)
    assert oracles.one_sentence(error)
