"""Find the minimum spanning tree of particles.

The tree joins all particles by edges of the smallest total length. Its cut at a length, which removes all longer edges,
leaves the friends-of-friends groups with that linking length. So one tree holds the groups of all linking lengths.

The search starts with the nearest particles of each particle (`jztree.kernels.knn`), and joins sets of particles by
their shortest outgoing edges (Boruvka 1926). It walks the plane hierarchy only from the boundaries of sets, and skips
nodes within one set. The cost is O(n log n).
"""

from ._spanning_tree import spanning_tree
from ._tree import SpanningTree, squeeze_tree

euclidean = spanning_tree  # its first name

__all__ = ["SpanningTree", "spanning_tree", "squeeze_tree"]
