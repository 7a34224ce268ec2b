"""HDBSCAN*: stable clusters from the dendrogram of a minimum spanning tree, without scikit-learn."""

from ._centres import centroids, medoids, radii
from ._centres import rows_of as rows_of
from ._clusters import Clusters, hdbscan
from ._clusters import check_integer as check_integer
from ._clusters import check_options as check_options
from ._condensed_tree import CondensedTree

# Other packages of `jztree_utils` also import the names that are not in this list.
__all__ = ["Clusters", "CondensedTree", "centroids", "hdbscan", "medoids", "radii"]
