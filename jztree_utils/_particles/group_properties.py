"""Properties of groups beyond the catalogue: densest particle, shape, spherical overdensities, circular velocity, spin.

`describe` says what they mean. Masses and radii are those of spheres around the densest particle, of all
particles and not only the group's.
"""

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from jztree import halos
from jztree.config import FofConfig
from jztree.data import FofCatalogue, Pos
from jztree.density import knn_density
from jztree.overdensity import spherical_overdensity

NEIGHBOURS = 32  # of the density by which the densest particle is found
THRESHOLDS = {"200c": (200.0, "critical"), "500c": (500.0, "critical"), "200m": (200.0, "mean")}
_SPIN_BY = "200c"
_SPHERES = "Lacey & Cole 1994, MNRAS 271, 676"


@dataclass(frozen=True)
class GroupOptions:
    """What to find of groups. It is compiled in.

    cfg: how groups are found. attach_within: how far attached particles may be, in linking lengths. densities: a name
    and a mean comoving density for each spherical overdensity. gravity: Newton's constant in the units of the
    particles, None if these are unknown. neighbours: of the density by which the densest particle is found, 0 for no
    properties at all. scale_factor: of the universe.
    """

    cfg: FofConfig
    attach_within: float | None = None
    densities: tuple[tuple[str, float], ...] = ()
    gravity: float | None = None
    neighbours: int = 0
    scale_factor: float = 1.0


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
            words += f", by the {NEIGHBOURS} nearest neighbours (Casertano & Hut 1985, ApJ 298, 80)"
        return kind, f"{words} ({source})" if source else words
    if name == "vmax":
        return "velocity", "largest circular velocity sqrt(G M(<r) / r) within the largest sphere around densest_pos"
    if name == "rmax":
        return "length", "comoving radius where the circular velocity is vmax"
    times, of = THRESHOLDS[name[1:]]
    sphere = f"the sphere around densest_pos with a mean density of {times:g} times the {of} density"
    if name.startswith("m"):
        return "mass", f"mass of all particles in {sphere} ({_SPHERES})"
    return "length", f"comoving radius of {sphere} ({_SPHERES})"
