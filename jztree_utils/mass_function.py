"""The number of dark-matter haloes as a function of mass, from published fits and from a catalogue.

Colossus (Diemer 2018, ApJS 239, 35; ``pip install 'jztree-native[plot]'``) computes the fits, with the linear power
spectrum of Eisenstein & Hu 1998, without the baryonic wiggles, which have little effect on masses. Radiation, which
matters above a redshift of about 20, is ignored. Masses are in Msun/h, lengths comoving and in Mpc/h.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

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
    "mass_function",
    "poisson_interval",
    "units_of",
    "why_not_described",
    "with_units",
]

_MPC = 1e6 * PARSEC
_SAME_LENGTH = (
    0.05  # relative; the masses of groups change by the same factor, and their numbers by less than the fits differ
)


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


class Model(NamedTuple):
    """A mass function.

    Attributes:
        name: Authors, year and halo definition.
        key: Its name in Colossus.
        mass: The catalogue column that the model describes, ``"mass"`` for the mass of groups; None if it has no
            definition of mass.
        b: The linking length of the groups that the model describes, in mean separations.
    """

    name: str
    key: str
    mass: str | None = None
    b: float | None = None


MODELS = {
    "press_schechter": Model("Press & Schechter 1974", "press74"),
    "sheth_tormen": Model("Sheth & Tormen 1999", "sheth99"),
    "jenkins": Model("Jenkins et al. 2001 (b = 0.2)", "jenkins01", "mass", 0.2),
    "warren": Model("Warren et al. 2006 (b = 0.2)", "warren06", "mass", 0.2),
    "tinker": Model("Tinker et al. 2008 (200 × mean)", "tinker08", "m200m"),
}
_WARREN, _USUAL = "warren", {"m200m": "tinker"}  # default models, by the column of masses


def mass_function(cosmology: Cosmology, mass: ArrayLike, redshift: float = 0.0, model: str = "warren") -> np.ndarray:
    """Return haloes per comoving (Mpc/h)^3 and unit of ``ln M``.

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
        ImportError: If Colossus is not installed.
        ValueError: If the model is unknown, or the redshift is not above -1.
    """
    if model not in MODELS:
        raise ValueError(f"the mass function is {model!r}; it must be one of {', '.join(MODELS)}.")
    if not redshift > -1:
        raise ValueError(f"the redshift is {redshift}; it must be above -1.")
    check_no_units(mass=mass)
    masses = np.asarray(mass, np.float64)
    parts, functions = _colossus()
    before = parts.current_cosmo
    parts.setCurrent(_universe(parts, cosmology))
    try:
        result = functions.massFunction(
            masses.reshape(-1),
            redshift,
            q_in="M",
            q_out="dndlnM",
            mdef="200m" if MODELS[model].mass == "m200m" else "fof",
            model=MODELS[model].key,
            ps_args={"model": "eisenstein98_zb"},
        )
    finally:
        parts.current_cosmo = before
    return np.reshape(result, masses.shape)


def _colossus() -> tuple[Any, Any]:
    """Import the modules of Colossus for cosmologies and mass functions. It creates no folder in the user's home."""
    try:
        from colossus.cosmology import cosmology  # noqa: PLC0415 - optional
        from colossus.lss import mass_function  # noqa: PLC0415
    except ImportError as error:
        raise ImportError("Mass functions need colossus; install it: pip install 'jztree-native[plot]'.") from error
    return cosmology, mass_function


@functools.cache
def _universe(parts: Any, cosmology: Cosmology) -> Any:
    """Return the cosmology of Colossus, which keeps its tables."""
    return parts.Cosmology(
        name="jztree",
        flat=False,
        Om0=cosmology.omega_matter,
        Ode0=cosmology.omega_lambda,
        Ob0=cosmology.omega_baryon,
        H0=100 * cosmology.hubble,
        sigma8=cosmology.sigma8,
        ns=cosmology.n_s,
        relspecies=False,
        persistence="",
    )


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
