"""Properties of groups beyond the catalogue: densest particle, shape, spherical overdensities, circular velocity, spin.

What they mean is told by `DEFINITIONS`. Masses and radii are those of spheres around the densest particle, of all
particles and not only the group's.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jztree import halos
from jztree.config import FofConfig
from jztree.data import FofCatalogue, Pos
from jztree.density import knn_density
from jztree.overdensity import spherical_overdensity

from . import io

if TYPE_CHECKING:
    from .compute import Particles

GRAVITY_IN_CGS = 6.6743e-8  # CODATA 2018
_MPC_IN_CM = 3.085677581e24
_NEIGHBOURS = 32  # of the density by which the densest particle is found
_THRESHOLDS = {"200c": (200.0, "critical"), "500c": (500.0, "critical"), "200m": (200.0, "mean")}
_SPIN_BY = "200c"
_SPHERES = "Lacey & Cole 1994, MNRAS 271, 676"


@dataclass(frozen=True)
class GroupOptions:
    """What to find of groups. It is compiled in.

    cfg: how groups are found. densities: a name and a mean comoving density for each spherical overdensity.
    gravity: Newton's constant in the units of the particles, None if these are unknown. neighbours: of the density by
    which the densest particle is found, 0 for no properties at all. scale_factor: of the universe.
    """

    cfg: FofConfig
    densities: tuple[tuple[str, float], ...] = ()
    gravity: float | None = None
    neighbours: int = 0
    scale_factor: float = 1.0


def find_densities(options: GroupOptions, part: "Particles") -> GroupOptions:
    """``options`` with all properties that the snapshot has the units and the cosmology for."""
    header = part.header
    total = part.num + sum(one.num_total or 0 for one in part.attached.values())
    densities = comoving_densities(header, part.types()) if part.ndim == 3 and "mass" in part.properties else {}
    return replace(
        options,
        densities=tuple((name, times * densities[of]) for name, (times, of) in _THRESHOLDS.items() if of in densities),
        gravity=newton(header),
        neighbours=min(_NEIGHBOURS, total),
        scale_factor=header.scale_factor,
    )


def left_out(options: GroupOptions, part: "Particles") -> str:
    """Which properties are not in ``options`` because of what the snapshot lacks, in words; empty if all are."""
    header = part.header
    if options.densities and options.gravity is not None:
        return ""
    has = {
        "three dimensions": part.ndim == 3,
        "masses": "mass" in part.properties,
        "Omega0": bool(header.omega0) and header.comoving is not False,
        "units": newton(header) is not None,
    }
    lacking = " and no ".join(name for name, there in has.items() if not there) or "HubbleParam"
    what = "vmax, rmax and spin" if options.densities else "masses and radii of spheres, vmax, rmax and spin"
    return f"{what}, because the snapshot has no {lacking}"


def newton(header: io.SnapshotHeader) -> float | None:
    """Newton's constant in the units of a snapshot, in which h cancels; None if they are unknown."""
    units = (header.unit_length_in_cm, header.unit_mass_in_g, header.unit_velocity_in_cm_per_s)
    if None in units:
        return None
    length, mass, velocity = (float(unit or 0) for unit in units)
    return GRAVITY_IN_CGS * mass / (length * velocity**2)


def comoving_densities(header: io.SnapshotHeader, types: Sequence[int]) -> dict[str, float]:
    """The mean and the critical density in mass per comoving volume, as far as the snapshot has what they need.

    types: of the particles that are looked at. Without units, the mean density is that of these particles, if they are
    all that the box holds and their masses are in the header.
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
    """Today's, in the units of the snapshot."""
    gravity = newton(header)
    if gravity is None or (header.h_free and header.hubble is None):
        return None
    # In units per h, H0 is 100 km/s/Mpc whatever h is.
    hubble = 1e7 / _MPC_IN_CM * float(header.unit_length_in_cm or 0) / float(header.unit_velocity_in_cm_per_s or 0)
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


def group_properties(grouped: Any, cata: FofCatalogue, boxsize: Any, options: GroupOptions) -> dict[str, jax.Array]:
    """The properties that need particles, a row a group.

    grouped: the particles in group order, seen from one device. Raises like the functions of the library.
    """
    density = knn_density(grouped, max(options.neighbours, 3), boxsize=boxsize)
    densest = halos.densest_particle(grouped, cata, density)
    found = {"densest_pos": densest.part.pos, "densest_density": densest.density}
    return found | _spheres(grouped, cata, densest.part.pos, boxsize, options)


def _spheres(
    grouped: Any, cata: FofCatalogue, centre: jax.Array, boxsize: Any, options: GroupOptions
) -> dict[str, jax.Array]:
    """Spherical overdensities around ``centre`` of each group, and what needs them."""
    if not options.densities:
        return {}
    found: dict[str, jax.Array] = {}
    names, thresholds = zip(*options.densities, strict=True)
    # Peculiar velocities go with physical lengths.
    gravity = None if options.gravity is None else options.gravity / options.scale_factor
    spheres = spherical_overdensity(grouped, Pos(pos=centre, num=cata.ngroups), thresholds, boxsize, G=gravity or 1.0)
    for place, name in enumerate(names):
        found |= {f"m{name}": spheres.mass[:, place], f"r{name}": spheres.radius[:, place]}
    if gravity is None:
        return found
    found |= {"vmax": spheres.vmax, "rmax": spheres.rmax}
    if cata.angular_momentum is not None and _SPIN_BY in names:
        mass, radius = found[f"m{_SPIN_BY}"], found[f"r{_SPIN_BY}"]
        found["spin"] = halos.spin(cata, mass, radius, options.gravity, options.scale_factor)
    return found


def shapes(cata: FofCatalogue) -> dict[str, np.ndarray]:
    """Principal axes of the groups of a catalogue without padding, on the host: they cost much on unused rows."""
    if cata.com_pos.shape[1] < 2:
        return {}
    with jax.enable_x64(cata.com_pos.dtype == np.float64):
        axes = halos.principal_axes(cata)
    found = {"axis_lengths": axes.lengths, "axis_ratios": axes.ratios, "principal_axes": axes.directions}
    return {name: np.asarray(column) for name, column in found.items()}


def describe(name: str) -> tuple[str, str]:
    """The kind of unit of a property and its definition in words, with its source."""
    if name in halos.DEFINITIONS:
        kind, words, source = halos.DEFINITIONS[name]
        if name == "densest_density":
            words += f", by the {_NEIGHBOURS} nearest neighbours (Casertano & Hut 1985, ApJ 298, 80)"
        return kind, f"{words} ({source})" if source else words
    if name == "vmax":
        return "velocity", "largest circular velocity sqrt(G M(<r) / r) within the largest sphere around densest_pos"
    if name == "rmax":
        return "length", "comoving radius where the circular velocity is vmax"
    times, of = _THRESHOLDS[name[1:]]
    sphere = f"the sphere around densest_pos with a mean density of {times:g} times the {of} density"
    if name.startswith("m"):
        return "mass", f"mass of all particles in {sphere} ({_SPHERES})"
    return "length", f"comoving radius of {sphere} ({_SPHERES})"
