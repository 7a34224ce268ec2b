"""Properties of haloes that follow from a catalogue of groups: shapes, spins, dispersions and the densest particle.

`DEFINITIONS` says in words what each column of `jztree.data.FofCatalogue` and each property here is. In groups whose
particles have no mass, or mass 0, mass-weighted means are plain ones.

All functions have twins ``.jit`` and ``.smap``. All but `densest_particle` work row by row, so they also take the
catalogue of all of ``r`` devices, ``(r, g, ...)``, without being mapped; and in place of a catalogue of groups the
`jztree.overdensity.SphereProperties` of spheres. Rows beyond ``ngroups`` are zero. What is not defined for a group,
such as the axis ratios of one without extent, is NaN; what depends on a sphere that does not exist is 0, as the mass
and the radius of that are.
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
