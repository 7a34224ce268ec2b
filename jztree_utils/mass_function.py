"""The number of dark-matter haloes as a function of mass, from published fits and from a catalogue.

A cosmology has a linear power spectrum (Eisenstein & Hu 1998, without the baryonic wiggles, which have little effect on
masses), normalised by ``sigma8``. Its variance ``sigma(M)^2`` in spheres of mean mass M determines the number of haloes
of that mass, through a fit ``f(sigma)`` to simulations (Jenkins et al. 2001).

Masses are in Msun/h, lengths comoving and in Mpc/h. All computations use NumPy in float64. Radiation, which matters
above a redshift of about 20, is ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_units

from ._constants import CRITICAL_DENSITY, KM_PER_S, PARSEC, SOLAR_MASS
from .io import CatalogueInfo, SnapshotHeader

__all__ = [
    "MODELS",
    "Cosmology",
    "Units",
    "default_model",
    "growth_factor",
    "mass_function",
    "poisson_interval",
    "sigma_of_mass",
    "transfer_function",
    "units_of",
    "why_not_described",
    "with_units",
]

COLLAPSE_THRESHOLD = 1.68647  # linear overdensity of a collapsing sphere (Omega_m = 1)
_MPC = 1e6 * PARSEC
_SAME_LENGTH = (
    0.05  # relative; the masses of groups change by the same factor, and their numbers by less than the fits differ
)
_CMB_TEMPERATURE = 2.7255  # K
# Values of k R in the sum for the variance, wide enough for any mass, with a factor of 1.007 per step.
_REACH = np.geomspace(1e-5, 1e3, 2640)


@dataclass(frozen=True, kw_only=True)
class Cosmology:
    """A universe of cold matter, a cosmological constant and curvature.

    The default is Planck 2018 (arXiv:1807.06209, table 2, second to last column).

    Attributes:
        omega_matter: Density of matter today, in units of the critical density.
        omega_lambda: Density of the cosmological constant today, in units of the critical density.
        hubble: The Hubble constant, in units of 100 km/s/Mpc.
        omega_baryon: Density of baryons, a part of ``omega_matter``.
        n_s: Spectral index of the initial perturbations.
        sigma8: Root mean square of the linear density contrast today in spheres of 8 Mpc/h.
    """

    omega_matter: float = 0.3153
    omega_lambda: float = 0.6847
    hubble: float = 0.6736
    omega_baryon: float = 0.0493
    n_s: float = 0.9649
    sigma8: float = 0.8111

    def __post_init__(self) -> None:
        for name in ("omega_matter", "hubble", "omega_baryon", "sigma8"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} of the cosmology is {getattr(self, name)}; it must be positive.")
        if not np.isfinite(self.n_s):
            raise ValueError(f"n_s of the cosmology is {self.n_s}; it must be finite.")
        if self.omega_baryon >= self.omega_matter:
            raise ValueError(
                f"omega_baryon is {self.omega_baryon}; it must be below omega_matter, which is {self.omega_matter}."
            )

    @classmethod
    def of_header(cls, header: SnapshotHeader, **others: float | None) -> Cosmology:
        """Return the cosmology of a snapshot.

        Args:
            header: Header of the snapshot.
            **others: Values that headers lack, such as ``sigma8``; None means default.

        Raises:
            ValueError: If the header has no cosmology.
        """
        if not header.omega0 or header.omega_lambda is None or not header.hubble:
            raise ValueError("The header has no cosmology (Omega0, OmegaLambda, HubbleParam); give one.")
        known = {"omega_baryon": header.omega_baryon or None} | others
        given = {name: value for name, value in known.items() if value is not None}
        return cls(omega_matter=header.omega0, omega_lambda=header.omega_lambda, hubble=header.hubble, **given)

    @property
    def mean_density(self) -> float:
        """Mean density of matter, in Msun/h per comoving (Mpc/h)^3."""
        return self.omega_matter * CRITICAL_DENSITY


class Units(NamedTuple):
    """The units of a snapshot: ``length`` in Mpc/h and ``mass`` in Msun/h."""

    length: float
    mass: float


def units_of(header: SnapshotHeader) -> Units | None:
    """Return the units of a cosmological snapshot.

    If the header has no units, they follow from its masses if all matter is in particles of known mass: only one
    combination of the usual units (Mpc/h or kpc/h, and Msun/h or 1e10 Msun/h) then gives the mean density of the
    cosmology.

    Args:
        header: Header of the snapshot. Units that are free of h, such as those of SWIFT, need its h.

    Returns:
        The units. None if they are unknown, or the run is not cosmological.
    """
    if header.comoving is False:
        return None
    length, mass = header.unit_length_in_cm, header.unit_mass_in_g
    if length is not None and mass is not None:
        per_h = header.hubble if header.h_free else 1.0
        return None if per_h is None else Units(length / _MPC * per_h, mass / SOLAR_MASS * per_h)
    if header.h_free or np.size(header.boxsize) not in (1, 3):
        return None
    volume = _volume(header)
    pairs = list(zip(header.npart_total, header.mass_table, strict=False))
    if not volume or not header.omega0 or any(number and not each for number, each in pairs):
        return None
    density = sum(number * each for number, each in pairs) / volume
    for units in (Units(1.0, 1e10), Units(1e-3, 1e10), Units(1.0, 1.0), Units(1e-3, 1.0)):
        if abs(density * units.mass / units.length**3 / (header.omega0 * CRITICAL_DENSITY) - 1) < 0.05:
            return units
    return None


def _volume(header: SnapshotHeader) -> float:
    """Return the volume of a three-dimensional box, 0 without a box. Overflow gives infinity, without a warning."""
    return math.prod(np.broadcast_to(np.asarray(header.boxsize, np.float64), 3).tolist())


def with_units(header: SnapshotHeader) -> SnapshotHeader:
    """Return ``header`` with the units that `units_of` infers, if it has none; the unit of velocity is then km/s.

    Existing units are kept: with a known unit of length or mass, neither is inferred.
    """
    lengths_and_masses = (header.unit_length_in_cm, header.unit_mass_in_g)
    units = units_of(header) if lengths_and_masses == (None, None) else None
    if units is None:
        return header
    return replace(
        header,
        unit_length_in_cm=units.length * _MPC,
        unit_mass_in_g=units.mass * SOLAR_MASS,
        unit_velocity_in_cm_per_s=header.unit_velocity_in_cm_per_s or KM_PER_S,
    )


def growth_factor(cosmology: Cosmology, redshift: ArrayLike) -> np.ndarray:
    """Return the size of linear perturbations at ``redshift`` relative to today (Heath 1977, MNRAS 179, 351).

    Args:
        cosmology: The cosmology.
        redshift: Numbers above -1, of any shape.

    Returns:
        Float64 of the same shape; 1 at redshift 0.
    """
    check_no_units(redshift=redshift)
    redshift = np.asarray(redshift, np.float64)
    if np.any(~(redshift > -1)):
        raise ValueError(f"the redshift is {redshift}; it must be above -1.")
    return _growing_mode(cosmology, 1 / (1 + redshift)) / _growing_mode(cosmology, np.ones(()))


def _growing_mode(cosmology: Cosmology, a: np.ndarray) -> np.ndarray:
    """Return ``H(a)`` times the integral of ``1 / (a H)^3`` from 0 to ``a``, up to a constant factor."""
    matter, vacuum = cosmology.omega_matter, cosmology.omega_lambda
    curvature = 1 - matter - vacuum
    # With a = u^2 the integrand, 2 u^4 / (a^3 H^2)^(3/2), is smooth at 0.
    nodes, weights = np.polynomial.legendre.leggauss(64)
    u = np.sqrt(a)[..., None] * (nodes + 1) / 2
    integrand = 2 * u**4 / (matter + curvature * u**2 + vacuum * u**6) ** 1.5
    expansion = np.sqrt(matter / a**3 + curvature / a**2 + vacuum)
    return expansion * (integrand @ weights) * np.sqrt(a) / 2


def transfer_function(cosmology: Cosmology, wavenumber: ArrayLike) -> np.ndarray:
    """Return the amplitude of linear perturbations of a ``wavenumber`` in h/Mpc, relative to very long ones.

    Eisenstein & Hu 1998, ApJ 496, 605, equations 26 and 28 to 31: baryons suppress small scales, without wiggles.
    """
    matter = cosmology.omega_matter * cosmology.hubble**2
    baryon, share = cosmology.omega_baryon * cosmology.hubble**2, cosmology.omega_baryon / cosmology.omega_matter
    horizon = 44.5 * np.log(9.83 / matter) / np.sqrt(1 + 10 * baryon**0.75)  # sound horizon, in Mpc
    alpha = 1 - 0.328 * np.log(431 * matter) * share + 0.38 * np.log(22.3 * matter) * share**2
    check_no_units(wavenumber=wavenumber)
    k = np.asarray(wavenumber, np.float64)
    shape = cosmology.omega_matter * cosmology.hubble
    shape = shape * (alpha + (1 - alpha) / (1 + (0.43 * k * cosmology.hubble * horizon) ** 4))
    q = k * (_CMB_TEMPERATURE / 2.7) ** 2 / shape
    log = np.log(2 * np.e + 1.8 * q)
    return log / (log + (14.2 + 731 / (1 + 62.5 * q)) * q**2)


def sigma_of_mass(cosmology: Cosmology, mass: ArrayLike, redshift: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Return the root mean square linear density contrast in spheres of mean mass ``mass``, and its slope.

    Args:
        cosmology: The cosmology.
        mass: Masses in Msun/h, of any shape.
        redshift: The redshift.

    Returns:
        ``sigma`` and ``d ln sigma / d ln M``, float64 of the same shape.
    """
    check_no_units(mass=mass)
    mass = np.asarray(mass, np.float64)
    radius = (3 * mass / (4 * np.pi * cosmology.mean_density)) ** (1 / 3)
    variance, slope = _variance(cosmology, radius)
    norm = cosmology.sigma8 * growth_factor(cosmology, redshift) / np.sqrt(_variance(cosmology, np.full((), 8.0))[0])
    return norm * np.sqrt(variance), slope / 6


def _variance(cosmology: Cosmology, radius: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the variance in spheres of a radius in Mpc/h, up to a factor, and its logarithmic slope with radius."""
    x = _REACH
    sine = np.sinc(x / np.pi)
    with np.errstate(all="ignore"):
        window = np.where(x < 1e-2, 1 - x**2 / 10, 3 * (sine - np.cos(x)) / x**2)
        slope = np.where(x < 1e-2, -(x**2) / 5, 3 * (sine - window))  # d window / d ln x
    k = x / radius[..., None]
    power = k ** (3 + cosmology.n_s) * transfer_function(cosmology, k) ** 2
    variance = np.trapezoid(power * window**2, np.log(x), axis=-1)
    return variance, 2 * np.trapezoid(power * window * slope, np.log(x), axis=-1) / variance


def _press_schechter(sigma: np.ndarray, _: float) -> np.ndarray:
    nu = COLLAPSE_THRESHOLD / sigma
    return np.sqrt(2 / np.pi) * nu * np.exp(-(nu**2) / 2)


def _sheth_tormen(sigma: np.ndarray, _: float) -> np.ndarray:
    nu = np.sqrt(0.707) * COLLAPSE_THRESHOLD / sigma
    return 0.3222 * np.sqrt(2 / np.pi) * (1 + nu**-0.6) * nu * np.exp(-(nu**2) / 2)


def _jenkins(sigma: np.ndarray, _: float) -> np.ndarray:
    return 0.315 * np.exp(-(np.abs(0.61 - np.log(sigma)) ** 3.8))


def _warren(sigma: np.ndarray, _: float) -> np.ndarray:
    return 0.7234 * (sigma**-1.625 + 0.2538) * np.exp(-1.1982 / sigma**2)


def _tinker(sigma: np.ndarray, redshift: float) -> np.ndarray:
    """Return the fit for haloes of 200 times the mean density."""
    z = min(redshift, 3.0)  # recommended by the authors
    alpha = 10 ** -((0.75 / np.log10(200 / 75)) ** 1.2)
    amplitude, a, b = 0.186 * (1 + z) ** -0.14, 1.47 * (1 + z) ** -0.06, 2.57 * (1 + z) ** -alpha
    return amplitude * ((sigma / b) ** -a + 1) * np.exp(-1.19 / sigma**2)


class Model(NamedTuple):
    """A mass function.

    Attributes:
        name: Authors, year and halo definition.
        multiplicity: The function ``f(sigma, redshift)``.
        mass: The catalogue column that the model describes, ``"mass"`` for the mass of groups; None if it has no
            definition of mass.
        b: The linking length of the groups that the model describes, in mean separations.
    """

    name: str
    multiplicity: Callable[[np.ndarray, float], np.ndarray]
    mass: str | None = None
    b: float | None = None


MODELS = {
    "press_schechter": Model("Press & Schechter 1974", _press_schechter),
    "sheth_tormen": Model("Sheth & Tormen 1999", _sheth_tormen),
    "jenkins": Model("Jenkins et al. 2001 (b = 0.2)", _jenkins, "mass", 0.2),
    "warren": Model("Warren et al. 2006 (b = 0.2)", _warren, "mass", 0.2),
    "tinker": Model("Tinker et al. 2008 (200 × mean)", _tinker, "m200m"),
}
_WARREN, _USUAL = "warren", {"m200m": "tinker"}  # default models, by the column of masses


def mass_function(cosmology: Cosmology, mass: ArrayLike, redshift: float = 0.0, model: str = "warren") -> np.ndarray:
    """Return haloes per comoving (Mpc/h)^3 and unit of ``ln M``: ``f(sigma) rho / M |d ln sigma / d ln M|``.

    Args:
        cosmology: The cosmology.
        mass: Masses in Msun/h, of any shape.
        redshift: The redshift.
        model: ``"press_schechter"`` (1974, ApJ 187, 425) and ``"sheth_tormen"`` (1999, MNRAS 308, 119), which account
            for all mass; ``"jenkins"`` (2001, MNRAS 321, 372) and ``"warren"`` (2006, ApJ 646, 881), for
            friends-of-friends groups with a linking length of 0.2 mean separations; ``"tinker"`` (2008, ApJ 688, 709),
            for spheres of 200 times the mean density. They differ from each other by some 10 %.

    Returns:
        Float64 of the same shape, in (h/Mpc)^3.

    Raises:
        ValueError: If the model is unknown.
    """
    if model not in MODELS:
        raise ValueError(f"the mass function is {model!r}; it must be one of {', '.join(MODELS)}.")
    check_no_units(mass=mass)
    mass = np.asarray(mass, np.float64)
    sigma, slope = sigma_of_mass(cosmology, mass, redshift)
    return MODELS[model].multiplicity(sigma, redshift) * cosmology.mean_density / mass * np.abs(slope)


def default_model(mass: str = "mass") -> str:
    """Return the default mass function for a column of masses in a catalogue."""
    return _USUAL.get(mass, _WARREN)


def why_not_described(info: CatalogueInfo, all_matter: bool, model: str = "warren", mass: str = "mass") -> str:
    """Explain why a mass function does not describe the masses in a catalogue; empty if no reason is known.

    Mass functions count all matter, in groups of linked dark matter or in spheres around these. Each describes the
    definition of mass, and the linking length, that it was fitted to.

    Args:
        info: The origin of the catalogue.
        all_matter: Whether its groups also contain particles of other types.
        model: The mass function, see `mass_function`.
        mass: The column of masses, ``"mass"`` for groups, and others such as ``"m200m"`` for spheres.

    Returns:
        The reason in words, or an empty string.
    """
    header, name = info.header or SnapshotHeader(), MODELS[model].name
    if info.ptype not in (None, 1):
        return f"the groups are of particles of type {info.ptype}, but {name} describes groups of dark matter"
    if MODELS[model].mass not in (None, mass):
        return _other_mass(model, mass)
    if mass != "mass":
        partly = info.spheres_of and not info.spheres_of.startswith("all matter")
        return f"its spheres hold only {info.spheres_of}" if partly else ""
    if info.ptype == 1 and any(header.npart_total[:1]) and not all_matter:
        return "the groups hold only dark matter, but the snapshot has gas; attach it with jztree fof --attach all"
    return _other_length(info, header, MODELS[model].b)


def _other_mass(model: str, mass: str) -> str:
    """Return the message for a mass function with another definition of mass than the column ``mass``."""
    names = [name for name, model in MODELS.items() if model.mass in (None, mass)]
    held = "masses of groups" if mass == "mass" else mass
    required = "masses of groups" if MODELS[model].mass == "mass" else MODELS[model].mass
    return (
        f"{MODELS[model].name} describes {required}, not {held}; choose --mass {MODELS[model].mass} or --model "
        f"{' or '.join(names)}"
    )


def _other_length(info: CatalogueInfo, header: SnapshotHeader, b: float | None) -> str:
    """Return a message for groups with another linking length than ``b`` mean separations; empty if equal."""
    separation = info.mean_separation
    if separation is None and info.num_particles and np.size(header.boxsize) in (1, 3):
        separation = (_volume(header) / info.num_particles) ** (1 / 3)
    if b is None or not separation or not info.linking_length:
        return ""
    result = info.linking_length / separation
    return (
        "" if abs(result / b - 1) < _SAME_LENGTH else f"the linking length is {result:.3g} mean separations, not {b:g}"
    )


def poisson_interval(counts: ArrayLike) -> tuple[np.ndarray, np.ndarray]:
    """Return the bounds of the expected number for given counts: a central interval of 68.27 % (one sigma).

    Args:
        counts: Numbers of at least 0, of any shape.

    Returns:
        Lower and upper bounds, float64 of the same shape, which agree with the exact ones to 1.5 % (Gehrels 1986, ApJ
        303, 336, equations 9 and 12); for 0 counts they are 0 and 1.87.
    """
    n = np.asarray(counts, np.float64)
    upper = (n + 1) * (1 - 1 / (9 * (n + 1)) + 1 / (3 * np.sqrt(n + 1))) ** 3
    positive = np.maximum(n, 1)
    lower = positive * (1 - 1 / (9 * positive) - 1 / (3 * np.sqrt(positive))) ** 3
    return np.where(n > 0, lower, 0.0), upper
