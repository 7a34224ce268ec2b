"""Fixed-radius searches: how many particles are within a radius, and which.

Particles are sorted in z-order and get a plane hierarchy (`jztree.tree`). Queries that are neighbours in z-order walk
it together; nodes wholly within the radius of all of them are counted without a look at their particles, and nodes
beyond it are left out, so that the cost is that of what lies at the edge. A particle is within a radius if its
distance, to the nearest image, is at most that, decided in float64 from the positions as given: the rule by which
friends-of-friends links (`jztree.fof`). So counts are exact, on any device and any number of them.
Sums over neighbours, weighted by a kernel of their distance or by its derivatives, walk the tree in the same way and
keep no lists.
"""

from ._counts import count_within
from ._fields import sph_derivative
from ._including import radius_including
from ._kernel_sums import kernel_sums
from ._lists import NeighbourLists, neighbours_within
from ._nearest import NearestWithin, nearest_within
from ._pair_counts import PairCounts, pair_counts
from ._pair_lists import PairLists, pairs_within
from ._reductions import reduce_within
from ._wide import WideCounts, WideSums

__all__ = [
    "NearestWithin",
    "NeighbourLists",
    "PairCounts",
    "PairLists",
    "WideCounts",
    "WideSums",
    "count_within",
    "kernel_sums",
    "nearest_within",
    "neighbours_within",
    "pair_counts",
    "pairs_within",
    "radius_including",
    "reduce_within",
    "sph_derivative",
]
