"""Mass functions: known values, sums with known results, and bounds compared with the exact ones of SciPy."""

import math

import numpy as np
import pytest
from scipy import integrate, stats

from jztree_utils import io
from jztree_utils import mass_function as mf

FLAT = mf.Cosmology(omega_matter=0.31, omega_lambda=0.69, hubble=0.68)


def test_growth_of_known_cosmologies() -> None:
    einstein_de_sitter = mf.Cosmology(omega_matter=1.0, omega_lambda=0.0)
    np.testing.assert_allclose(mf.growth_factor(einstein_de_sitter, [0, 1, 9]), [1, 1 / 2, 1 / 10], rtol=1e-10)
    # The growth suppression today, g(Omega), of Carroll, Press & Turner (1992), relative to Einstein-de Sitter.
    early = mf.growth_factor(FLAT, 99.0) * 100
    fit = 2.5 * 0.31 / (0.31 ** (4 / 7) - 0.69 + (1 + 0.31 / 2) * (1 + 0.69 / 70))
    assert 1 / early == pytest.approx(fit, rel=5e-3)


def test_transfer_function_by_hand() -> None:
    """Evaluate equations 26 to 31 of Eisenstein & Hu at one wavenumber explicitly."""
    assert mf.transfer_function(FLAT, 1e-6) == pytest.approx(1, abs=1e-5)
    h, m, b = 0.68, 0.31 * 0.68**2, 0.0493 * 0.68**2
    s = 44.5 * math.log(9.83 / m) / math.sqrt(1 + 10 * b**0.75)
    alpha = 1 - 0.328 * math.log(431 * m) * b / m + 0.38 * math.log(22.3 * m) * (b / m) ** 2
    k = 0.2
    gamma = 0.31 * h * (alpha + (1 - alpha) / (1 + (0.43 * k * h * s) ** 4))
    q = k * (2.7255 / 2.7) ** 2 / gamma
    low, high = math.log(2 * math.e + 1.8 * q), 14.2 + 731 / (1 + 62.5 * q)
    assert mf.transfer_function(FLAT, k) == pytest.approx(low / (low + high * q**2), rel=1e-12)


def test_sigma_is_normalised_and_its_slope_is_its_derivative() -> None:
    eight = 4 / 3 * np.pi * 8**3 * FLAT.mean_density
    assert mf.sigma_of_mass(FLAT, eight)[0] == pytest.approx(FLAT.sigma8, rel=1e-6)
    mass = np.geomspace(1e9, 1e16, 8)
    slope = mf.sigma_of_mass(FLAT, mass, 1.0)[1]
    above, below = (np.log(mf.sigma_of_mass(FLAT, mass * f, 1.0)[0]) for f in (1.01, 1 / 1.01))
    np.testing.assert_allclose(slope, (above - below) / (2 * np.log(1.01)), rtol=1e-4)


def test_mass_in_halos_adds_up() -> None:
    """In Press & Schechter's theory, a fraction erfc(nu / sqrt 2) of all mass is in haloes above a mass."""
    mass = np.geomspace(1e12, 1e17, 2000)
    per_mass = mf.mass_function(FLAT, mass, model="press_schechter") * mass / FLAT.mean_density
    nu = mf.COLLAPSE_THRESHOLD / mf.sigma_of_mass(FLAT, mass[0])[0]
    assert np.trapezoid(per_mass, np.log(mass)) == pytest.approx(math.erfc(nu / math.sqrt(2)), rel=1e-4)


@pytest.mark.parametrize("model", ["press_schechter", "sheth_tormen"])
def test_some_models_put_all_mass_in_halos(model: str) -> None:
    multiplicity = mf.MODELS[model].multiplicity
    complete = integrate.quad(lambda x: float(multiplicity(np.exp(x), 0.0)), -6, 60, limit=400)[0]
    assert complete == pytest.approx(1, rel=2e-3)


@pytest.mark.parametrize("redshift", [0.0, 1.0])
def test_fits_of_the_same_halos_agree(redshift: float) -> None:
    mass = np.geomspace(1e12, 1e14, 5)
    result = [
        mf.mass_function(FLAT, mass, redshift, model) for model in ("jenkins", "warren", "tinker", "sheth_tormen")
    ]
    np.testing.assert_array_less(np.ptp(result, axis=0), 0.35 * np.mean(result, axis=0))


def test_mass_function_agrees_with_colossus() -> None:
    """Compare with dn/dlnM of Warren et al. today from colossus 1.4.0, for one cosmology and transfer function."""
    assert float(mf.mass_function(FLAT, 1e13)) == pytest.approx(4.917623e-4, rel=2e-3)


def test_poisson_intervals_are_exact() -> None:
    n = np.arange(0, 200)
    lower, upper = mf.poisson_interval(n)
    tail = stats.norm.sf(1)
    np.testing.assert_allclose(upper, stats.gamma.ppf(1 - tail, n + 1), rtol=0.015)
    np.testing.assert_allclose(lower[1:], stats.gamma.ppf(tail, n[1:]), rtol=0.015)
    assert lower[0] == 0


@pytest.mark.parametrize("units", [mf.Units(1.0, 1e10), mf.Units(1e-3, 1e10), mf.Units(1e-3, 1.0)])
def test_units_missing_in_a_header_are_inferred_from_its_masses(units: mf.Units) -> None:
    side, number = 100.0, 128**3
    each = 0.31 * mf.CRITICAL_DENSITY * side**3 / number
    header = io.SnapshotHeader(
        boxsize=side / units.length,
        omega0=0.31,
        mass_table=(0.0, each / units.mass),
        npart_total=(0, number),
    )
    assert mf.units_of(header) == units
    message = io.SnapshotHeader(unit_length_in_cm=3.085678e21, unit_mass_in_g=1.989e43)
    assert mf.units_of(message) == pytest.approx((1e-3, 1e10))
    assert mf.units_of(io.SnapshotHeader(boxsize=100.0, omega0=0.31, mass_table=(0.0, 0.0), npart_total=(0, 9))) is None


def test_bad_cosmologies_and_models_are_refused() -> None:
    with pytest.raises(ValueError, match="has no cosmology"):
        mf.Cosmology.of_header(io.SnapshotHeader(omega0=0.3))
    with pytest.raises(ValueError, match="it must be below omega_matter"):
        mf.Cosmology(omega_matter=0.04)
    with pytest.raises(ValueError, match="sigma8"):
        mf.Cosmology(sigma8=0.0)
    with pytest.raises(ValueError, match="must be one of press_schechter"):
        mf.mass_function(FLAT, 1e13, model="nobody")
    with pytest.raises(ValueError, match="above -1"):
        mf.growth_factor(FLAT, -1.0)
