"""Fixed-radius searches: how many particles are within a radius, and which.

Particles are sorted in z-order and get a plane hierarchy (`jztree.tree`). Queries that are neighbours in z-order walk
it together; nodes wholly within the radius of all of them are counted without a look at their particles, and nodes
beyond it are left out, so that the cost is that of what lies at the edge. A particle is within a radius if its
distance, to the nearest image, is at most that, decided in float64 from the positions as given: the rule by which
friends-of-friends links (`jztree.fof`). So counts are exact, on any device and any number of them.
"""

from ._counts import count_within
from ._lists import NeighbourLists, neighbours_within
from ._pair_counts import PairCounts, pair_counts
from ._wide import WideCounts, WideSums

__all__ = [
    "NeighbourLists",
    "PairCounts",
    "WideCounts",
    "WideSums",
    "count_within",
    "neighbours_within",
    "pair_counts",
]
