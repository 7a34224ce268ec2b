"""Check results by brute force in float64 NumPy, without the kernels of this library.

Each function computes a random sample of the rows of a result again, from the definition, and returns a `Verification`.
Pass the result, and the positions and the box of the search. Each sampled row takes a loop over all particles; by
default, a check takes some seconds.
"""

from ._catalogue import catalogue
from ._groups import attached, group_labels
from ._halos import concentration, densest_particle, lowest_potential_particle, principal_axes, spin
from ._neighbours import counts_within, neighbours, pair_counts
from ._points import Verification
from ._spanning_tree import spanning_tree
from ._spheres import sphere_properties, spheres
from ._subhaloes import subhaloes

__all__ = [
    "Verification",
    "attached",
    "catalogue",
    "concentration",
    "counts_within",
    "densest_particle",
    "group_labels",
    "lowest_potential_particle",
    "neighbours",
    "pair_counts",
    "principal_axes",
    "spanning_tree",
    "sphere_properties",
    "spheres",
    "spin",
    "subhaloes",
]
