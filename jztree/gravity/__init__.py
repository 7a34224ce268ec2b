"""Gravitational potentials and accelerations of particles.

Sets and groups of up to 512 particles are summed directly. For larger ones, a tree of the particles replaces distant
nodes by their mass and second moments (Barnes & Hut 1986, Nature 324, 446; Hernquist 1987, ApJS 64, 715). The tree of a
group is built from the particles of the group alone, so the bits of the result do not depend on the number of threads.
"""

from ._field import acceleration, potential

__all__ = ["acceleration", "potential"]
