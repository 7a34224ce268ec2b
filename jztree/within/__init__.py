"""Searches within a radius: counts, lists and reductions of the particles within a radius of each query."""

from ._counts import count_within
from ._including import radius_including
from ._lists import NeighbourLists, neighbours_within
from ._nearest import NearestWithin, nearest_within
from ._reductions import reduce_within

__all__ = [
    "NearestWithin",
    "NeighbourLists",
    "count_within",
    "nearest_within",
    "neighbours_within",
    "radius_including",
    "reduce_within",
]
