"""Fixed-radius searches: counts and lists of particles within a radius, and sums over them.

Particles are sorted in z-order, and a plane hierarchy (`jztree.tree`) is built over them. Queries that are close in
z-order walk it together. Nodes wholly within the radius of every query are counted without reading their particles, and
nodes outside it are skipped, so the cost is that of the particles near the edge. A particle is within a radius if its
distance to the nearest image, computed in float64 from the given positions, is at most the radius. Friends-of-friends
groups (`jztree.fof`) use the same rule. Counts are therefore exact, on any device and any number of devices.
Sums over neighbours, weighted by a smoothing kernel or its derivatives, use the same walk and store no lists.
"""

from .. import pairs, sph, within
from ..pairs import *  # noqa: F403
from ..sph import *  # noqa: F403
from ..within import *  # noqa: F403

__all__ = pairs.__all__ + sph.__all__ + within.__all__
