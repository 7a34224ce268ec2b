"""Searches within a radius: counts, lists and reductions of the particles within a radius of each query."""

from ._counts import count_within
from ._including import radius_including
from ._listing import Listing as Listing
from ._listing import Space as Space
from ._listing import check_capacity as check_capacity
from ._lists import NeighbourLists, neighbours_within
from ._nearest import NearestWithin, nearest_within
from ._reductions import reduce_within
from ._search import PreparedSearch as PreparedSearch
from ._search import SearchArguments as SearchArguments
from ._search import prepare_search as prepare_search
from ._search import read_radii as read_radii
from ._search import read_sets as read_sets
from ._weights import checked_weights as checked_weights

# Names imported "as" themselves are for other packages of the library, and not public.

__all__ = [
    "NearestWithin",
    "NeighbourLists",
    "count_within",
    "nearest_within",
    "neighbours_within",
    "radius_including",
    "reduce_within",
]
