"""Exact k nearest neighbours and friends-of-friends groups of particles in JAX."""

# Import _distributions first: it checks whether the other modules may be files of another package.
from . import (
    _distributions,  # noqa: F401
    comm,
    config,
    data,
    density,
    fof,
    halos,
    jax_ext,
    knn,
    launch,
    overdensity,
    radius,
    stats,
    tree,
)
from ._transform.capacity import CapacityError

launch.leave_threads_for_callbacks()

__version__ = "0.1.0"
__all__ = [
    "CapacityError",
    "comm",
    "config",
    "data",
    "density",
    "fof",
    "halos",
    "jax_ext",
    "knn",
    "launch",
    "overdensity",
    "radius",
    "stats",
    "tree",
]
