"""Mass functions: units and models, and bounds compared with the exact ones of SciPy."""

import numpy as np
import pytest
from scipy import stats

from jztree_utils import io
from jztree_utils import mass_function as mf

FLAT = mf.Cosmology(omega_matter=0.31, omega_lambda=0.69, hubble=0.68)


@pytest.mark.parametrize("redshift", [0.0, 1.0])
def test_fits_of_the_same_halos_agree(redshift: float) -> None:
    pytest.importorskip("colossus")
    mass = np.geomspace(1e12, 1e14, 5)
    result = [
        mf.mass_function(FLAT, mass, redshift, model) for model in ("jenkins", "warren", "tinker", "sheth_tormen")
    ]
    np.testing.assert_array_less(np.ptp(result, axis=0), 0.35 * np.mean(result, axis=0))


@pytest.mark.parametrize(
    ("redshift", "model", "expected"),
    [(1.0, "warren", [0.270623982, 3.44381796e-4]), (0.0, "tinker", [0.245718646, 5.25773952e-4])],
)
def test_mass_functions_agree_with_direct_integrals(redshift: float, model: str, expected: list[float]) -> None:
    """Compare with sums of the power spectrum over 2,640 wavenumbers in float64, at 1e10 and 1e13 Msun/h."""
    cosmology = pytest.importorskip("colossus.cosmology.cosmology")
    current = cosmology.setCosmology("planck18", persistence="")
    np.testing.assert_allclose(mf.mass_function(FLAT, [1e10, 1e13], redshift, model), expected, rtol=2e-3)
    assert mf.mass_function(FLAT, 1e13).shape == ()
    assert cosmology.getCurrent() is current


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
        boxsize=side / units.length, omega0=0.31, mass_table=(0.0, each / units.mass), npart_total=(0, number)
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
        mf.mass_function(FLAT, 1e13, -1.0)
