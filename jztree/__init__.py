"""Exact k nearest neighbours and friends-of-friends groups of particles in JAX."""

from . import config, data, fof, jax_ext, knn, tree

__version__ = "0.1.0"
__all__ = ["config", "data", "fof", "jax_ext", "knn", "tree"]
