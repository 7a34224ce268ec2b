"""Find the group properties that a snapshot has the units, the cosmology and the columns for."""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from ... import io
from ..._constants import GRAVITY, HUBBLE
from .group_properties import NEIGHBOURS, SOFTENING, GroupOptions
from .particles import Particles
from .spheres import PROPERTIES_OF, sphere_densities

_FEWEST = 3  # minimum number of neighbours for a density


def with_all_properties(
    options: GroupOptions, part: Particles, spheres: Sequence[str], centre: str, rlink: float
) -> GroupOptions:
    """Return ``options`` with all properties that the snapshot has the units and the cosmology for.

    Args:
        options: The options to complete.
        part: The particles of the snapshot.
        spheres: Names of the spheres.
        centre: Centre of the spheres, a key of `CENTRES`.
        rlink: The linking length, in the unit of the positions.

    Raises:
        ValueError: If there are too few particles for a density.
    """
    header = part.header
    total = part.num + sum(particles.num_total or 0 for particles in part.attached.values())
    if total < _FEWEST:
        raise ValueError(
            f"--properties needs {_FEWEST} particles to find the densest one, but there are {total}; leave it out."
        )
    known = part.ndim == 3 and "mass" in part.properties
    densities = comoving_densities(header, [*part.types(), *part.others]) if known else {}
    return replace(
        options,
        densities=sphere_densities(header, spheres, densities),
        gravity=newton(header),
        neighbours=min(NEIGHBOURS, total),
        scale_factor=header.scale_factor,
        centre=centre,
        softening=SOFTENING * rlink,
    )


def missing_in_words(options: GroupOptions, part: Particles, spheres: Sequence[str]) -> str:
    """Describe the properties that ``options`` omits because of missing data in the snapshot; empty if it omits none.

    Args:
        options: The options after `with_all_properties`.
        part: The particles of the snapshot.
        spheres: The names of the requested spheres.
    """
    if not options.densities or options.gravity is None:
        return _without_masses_or_units(options, part)
    result = dict(options.densities)
    missing, words = [name for name in spheres if name not in result], []
    if missing:
        also = f", and all properties within r{PROPERTIES_OF}" if PROPERTIES_OF in missing else ""
        why = (
            "the snapshot has no OmegaLambda"
            if part.header.omega_lambda is None
            else "its universe is curved and has a cosmological constant, so they are not defined"
        )
        words.append(f"masses and radii of {', '.join(missing)}{also}, because {why}")
    if PROPERTIES_OF in result and (types := [*part.types_without("vel"), *part.others_without("vel")]):
        words.append(f"velocities and spin within r{PROPERTIES_OF}, because {types_in_words(types)} no velocities")
    return "; ".join(words)


def _without_masses_or_units(options: GroupOptions, part: Particles) -> str:
    header = part.header
    has = {
        "three dimensions": part.ndim == 3,
        "masses": "mass" in part.properties,
        "Omega0": bool(header.omega0) and header.comoving is not False,
        "units": newton(header) is not None,
    }
    missing = " and no ".join(name for name, there in has.items() if not there) or "HubbleParam"
    unweighed = part.types_without("mass")
    who = (
        types_in_words(unweighed) if missing == "masses" and len(unweighed) < len(part.types()) else "the snapshot has"
    )
    what = "vmax, rmax, concentration and spin"
    if not options.densities:
        what = f"masses and radii of spheres, {what}"
    return f"{what}, because {who} no {missing}"


def types_in_words(types: Sequence[int]) -> str:
    """Return text such as "type 0 has" or "types 0 and 4 have"."""
    *first, last = map(str, sorted(types))
    return f"types {', '.join(first)} and {last} have" if first else f"type {last} has"


def newton(header: io.SnapshotHeader) -> float | None:
    """Return Newton's constant in the units of a snapshot, in which h cancels; None if they are unknown."""
    units = (header.unit_length_in_cm, header.unit_mass_in_g, header.unit_velocity_in_cm_per_s)
    if None in units:
        return None
    length, mass, velocity = (float(unit or 0) for unit in units)
    return GRAVITY * mass / (length * velocity**2)


def comoving_densities(header: io.SnapshotHeader, types: Sequence[int]) -> dict[str, float]:
    """Return the mean and the critical density in mass per comoving volume, if the snapshot defines them.

    Args:
        header: Header of the snapshot.
        types: Types of the particles in use. Without units, the mean density follows from their masses, if the box has
            no others and their masses are in the header.

    Returns:
        Densities in the units of the snapshot by name: "mean" and "critical", or fewer.
    """
    if not header.omega0 or header.comoving is False:
        return {}
    today = _critical_density(header)
    mean = _density_of_box(header, types) if today is None else header.omega0 * today
    if mean is None:
        return {}
    if header.omega_lambda is None:
        return {"mean": mean}
    a, curvature = header.scale_factor, 1 - header.omega0 - header.omega_lambda
    growth = header.omega0 + header.omega_lambda * a**3 + curvature * a
    return {"mean": mean, "critical": mean / header.omega0 * growth}


def _critical_density(header: io.SnapshotHeader) -> float | None:
    """Return today's critical density, in the units of the snapshot."""
    gravity = newton(header)
    if gravity is None or (header.h_free and header.hubble is None):
        return None
    # In units per h, H0 is 100 km/s/Mpc for any h.
    hubble = HUBBLE * float(header.unit_length_in_cm or 0) / float(header.unit_velocity_in_cm_per_s or 0)
    if header.h_free:
        hubble *= header.hubble or 0.0
    return 3 * hubble**2 / (8 * math.pi * gravity)


def _density_of_box(header: io.SnapshotHeader, types: Sequence[int]) -> float | None:
    volume = float(np.prod(np.broadcast_to(header.boxsize, 3)))
    held = {ptype for ptype, num in enumerate(header.npart_total) if num}
    pairs = list(zip(header.npart_total, header.mass_table, strict=False))
    if not volume or held != set(types) or any(num and not mass for num, mass in pairs):
        return None
    return sum(num * mass for num, mass in pairs) / volume
