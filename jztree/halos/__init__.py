"""Compute halo properties from a catalogue of groups: shapes, spins, dispersions and the densest particle.

`DEFINITIONS` describes each column of `jztree.data.FofCatalogue` and each property here. If the particles of a group
have no mass, or mass 0, mass-weighted means are plain means. Units follow from the particles' units.

All functions have twins ``.jit`` and ``.smap``. `densest_particle` and `lowest_potential_particle` need the particles.
The other functions work row by row on a catalogue. They also accept the catalogue of several devices,
``(r, g, ...)``, without ``.smap``, and `jztree.overdensity.SphereProperties` instead of a catalogue.

Rows from ``ngroups`` on are 0. If a property is not defined for a group, such as the axis ratios of a group without
extent, it is NaN. If a sphere does not exist, its mass, its radius and all its properties are 0.
"""

from ._definitions import DEFINITIONS, Definition
from ._densest import DensestParticle, densest_particle
from ._lowest import LowestParticle, lowest_potential_particle
from ._lowest import check_softening as check_softening
from ._rows import Axes, concentration, inertia_tensor, principal_axes, spin, total_vel_dispersion
from ._whole_groups import WholeGroups as WholeGroups
from ._whole_groups import first_rows_of_groups as first_rows_of_groups
from ._whole_groups import whole_groups as whole_groups

# Names imported "as" themselves are for other packages of the library, and not public.
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
