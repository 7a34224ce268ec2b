"""Exact k nearest neighbours, friends-of-friends groups and other searches among particles in JAX.

Each search is in the module of its subject, such as `jztree.knn` and `jztree.radius`, and also in `jztree` itself:
``jztree.count_within`` is `jztree.radius.count_within`, and ``jztree.nearest`` is `jztree.knn.nearest`.
"""

# Import _distributions first: it checks whether the other modules may be files of another package.
from . import (
    _distributions,  # noqa: F401
    comm,
    config,
    data,
    density,
    fof,
    gravity,
    halos,
    hierarchy,
    index,
    jax_ext,
    knn,
    launch,
    links,
    mst,
    overdensity,
    radius,
    stats,
    substructure,
    tree,
)
from ._transform.capacity import CapacityError
from .density import knn_density, smoothing_length, sph_density
from .fof import (
    Clusters,
    Groups,
    dbscan,
    fof_labels,
    friends_of_friends,
    group_labels,
    phase_space_groups,
    phase_space_labels,
)
from .gravity import acceleration, potential
from .hierarchy import Dendrogram, DensityPeaks, cut, dendrogram, density_peaks, squeeze_peaks
from .index import Index, build_index
from .knn import Neighbours, NeighboursWithFields, nearest
from .links import Descendants, descendants
from .mst import SpanningTree, spanning_tree, squeeze_tree
from .overdensity import radial_profiles, sphere_properties, spherical_overdensity
from .radius import *  # noqa: F403
from .substructure import Subhaloes, subhaloes

launch.leave_threads_for_callbacks()

__version__ = "0.1.0"
__all__ = [
    "CapacityError",
    "Clusters",
    "Dendrogram",
    "DensityPeaks",
    "Descendants",
    "Groups",
    "Index",
    "Neighbours",
    "NeighboursWithFields",
    "SpanningTree",
    "Subhaloes",
    "acceleration",
    "build_index",
    "comm",
    "config",
    "cut",
    "data",
    "dbscan",
    "dendrogram",
    "density",
    "density_peaks",
    "descendants",
    "fof",
    "fof_labels",
    "friends_of_friends",
    "gravity",
    "group_labels",
    "halos",
    "hierarchy",
    "index",
    "jax_ext",
    "knn",
    "knn_density",
    "launch",
    "links",
    "mst",
    "nearest",
    "overdensity",
    "phase_space_groups",
    "phase_space_labels",
    "potential",
    "radial_profiles",
    "radius",
    "smoothing_length",
    "spanning_tree",
    "sph_density",
    "sphere_properties",
    "spherical_overdensity",
    "squeeze_peaks",
    "squeeze_tree",
    "stats",
    "subhaloes",
    "substructure",
    "tree",
]
__all__ += radius.__all__
