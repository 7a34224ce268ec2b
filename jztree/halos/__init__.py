"""Compute halo properties from a catalogue of groups: shapes, spins, dispersions and the densest particle.

`DEFINITIONS` describes each column of `jztree.data.FofCatalogue` and each property here. In groups whose particles have
no mass, or mass 0, mass-weighted means are plain means.

All functions have twins ``.jit`` and ``.smap``. All except `densest_particle` and `lowest_potential_particle` work row
by row. So they also accept the catalogue of several devices, ``(r, g, ...)``, without being mapped, and
`jztree.overdensity.SphereProperties` of spheres instead of a catalogue.

Rows from ``ngroups`` on are zero. A property that is not defined for a group, such as the axis ratios of one without
extent, is NaN. If a sphere does not exist, its mass, its radius and all its properties are 0.
"""

from ._definitions import DEFINITIONS, Definition
from ._densest import DensestParticle, densest_particle
from ._lowest import LowestParticle, lowest_potential_particle
from ._rows import Axes, concentration, inertia_tensor, principal_axes, spin, total_vel_dispersion

__all__ = [
    "DEFINITIONS",
    "Axes",
    "Definition",
    "DensestParticle",
    "LowestParticle",
    "concentration",
    "densest_particle",
    "inertia_tensor",
    "lowest_potential_particle",
    "principal_axes",
    "spin",
    "total_vel_dispersion",
]
