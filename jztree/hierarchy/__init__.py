"""The hierarchy of clusters at all linking lengths, from a minimum spanning tree.

Single linkage joins clusters by the edges of the minimum spanning tree, shortest edge first (Gower & Ross 1969). `cut`
returns the groups at one linking length, and `dendrogram` the clusters at all lengths.
"""

from ._dendrogram import Dendrogram, cut, dendrogram

__all__ = ["Dendrogram", "cut", "dendrogram"]
