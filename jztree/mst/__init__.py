"""Find the minimum spanning tree of particles.

The tree joins all particles by edges of the smallest total length. Its cut at a length, which removes all longer edges,
leaves the friends-of-friends groups with that linking length. So one tree holds the groups at every linking length.

The search starts with the nearest particles of each particle (`jztree.kernels.knn`), and joins sets of particles by
their shortest outgoing edges (Boruvka 1926). It walks the plane hierarchy only from the boundaries of sets, and skips
nodes within one set. The cost is O(n log n).
"""

from ._components import Graph as Graph
from ._components import Tree as Tree
from ._components import first_forest as first_forest
from ._components import join_components as join_components
from ._components import move_up as move_up
from ._edges import Edges as Edges
from ._edges import compacted as compacted
from ._edges import first_of_equal as first_of_equal
from ._edges import no_edges as no_edges
from ._edges import sort_over_ranks as sort_over_ranks
from ._spanning_tree import spanning_tree
from ._tree import SpanningTree, squeeze_tree
from ._tree import on_host as on_host

# Names imported "as" themselves are for other packages of the library, and not public.

euclidean = spanning_tree  # its first name

__all__ = ["SpanningTree", "spanning_tree", "squeeze_tree"]
