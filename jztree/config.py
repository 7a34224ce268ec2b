"""Static options: one dataclass per kind of search, with one field per option. Each description includes its cost.

Options are arguments, never globals. Options of the published interface that have no effect here are accepted.
"""

import dataclasses
from dataclasses import field
from typing import Any, TypeVar

import jax
import numpy as np

from ._options import at_least, options, published

__all__ = [
    "CatalogueConfig",
    "FofCatalogueConfig",
    "FofConfig",
    "KNNConfig",
    "OverdensityConfig",
    "RadiusConfig",
    "RegularizationConfig",
    "TreeConfig",
]

_SMALLEST_LEAF = 3
# The default of TreeConfig.leaf_size. On GPUs, a leaf usually fits into the 32 lanes of a warp.
CPU_LEAF_SIZE, GPU_LEAF_SIZE = 40, 24

_T = TypeVar("_T")


@options
class RegularizationConfig:
    """Options of the published interface for the hierarchy of kNN, which have no effect here."""

    regularize_percentile: float = published(90.0)
    max_volume_fac: float = published(20.0)


@options
class TreeConfig:
    """The shape of the plane hierarchy.

    ``max_leaf_size`` and ``mass_centered`` of the published interface are accepted: ``max_leaf_size`` is the maximum
    number of particles in a leaf, twice ``leaf_size``, and ``mass_centered`` is ``masses``. ``coarse_fac``,
    ``stop_coarsen``, ``regularization``, ``alloc_fac_nodes`` and ``nsamp`` are accepted but have no effect.

    Attributes:
        leaf_size: Average number of particles per leaf. A leaf has at most twice this number. Larger leaves make a
            smaller tree, but searches then compute more distances. None means 40 if JAX's default device is a CPU, and
            24 if it is a GPU. Most searches are fastest with these numbers (measured on an AMD EPYC 9004 and an NVIDIA
            H100; see docs/performance.md and docs/gpu.md). Results do not depend on it.
        fan_out: Average number of nodes of a plane that form one node of the next higher plane.
        masses: Whether to compute the mass and the centre of mass of every node, which costs one more pass over the
            particles.
    """

    leaf_size: int | None = at_least(2, None)
    fan_out: int = at_least(2, 8)
    masses: bool = False
    coarse_fac: float = published(6.0)
    stop_coarsen: int = published(1024)
    regularization: Any = published(None)
    alloc_fac_nodes: float = published(1.0)
    nsamp: int = published(1024)

    _aliases = (("max_leaf_size", "leaf_size"), ("mass_centered", "masses"))

    @property
    def max_leaf_size(self) -> int:
        """The maximum number of particles in a leaf. If ``leaf_size`` is None, its default on CPUs determines it."""
        # Not the default of the device: asking for it would start JAX, and scripts read this before they may do so.
        return 2 * (self.leaf_size or CPU_LEAF_SIZE)

    @max_leaf_size.setter
    def max_leaf_size(self, size: int) -> None:
        if isinstance(size, bool) or not isinstance(size, (int, np.integer)) or size < _SMALLEST_LEAF:
            raise ValueError(f"TreeConfig.max_leaf_size must be an integer of at least {_SMALLEST_LEAF}, not {size!r}.")
        self.leaf_size = (int(size) + 1) // 2  # a leaf has at most 2 * leaf_size - 1 particles

    @property
    def mass_centered(self) -> bool:
        """Whether nodes have masses and centres of mass."""
        return self.masses

    @mass_centered.setter
    def mass_centered(self, value: bool) -> None:
        self.masses = bool(value)


def leaf_size_of(cfg: TreeConfig) -> int:
    """Return ``cfg.leaf_size``, or its default for JAX's default device."""
    if cfg.leaf_size is not None:
        return cfg.leaf_size
    return CPU_LEAF_SIZE if is_on_cpu() else GPU_LEAF_SIZE


def is_on_cpu() -> bool:
    """Return whether JAX's default device is a CPU."""
    device = jax.config.jax_default_device or jax.default_backend()  # type: ignore[attr-defined]
    return (device if isinstance(device, str) else device.platform) == "cpu"


def _tree_of_knn() -> TreeConfig:
    """Return the defaults of the published package for the trees of its searches; scripts read and scale them."""
    return TreeConfig(coarse_fac=8.0, stop_coarsen=2048, regularization=RegularizationConfig())


def _tree_of_fof() -> TreeConfig:
    return TreeConfig(coarse_fac=8.0, stop_coarsen=2048, alloc_fac_nodes=1.1)


@options
class KNNConfig:
    """Options of `jztree.knn.nearest`.

    ``alloc_fac_ilist`` of the published interface is accepted but has no effect.

    Attributes:
        tree: The hierarchy over the sources, and the groups of queries.
        ghost_rows: On several devices, the capacity for the particles of other devices that a device needs. Each row of
            this capacity takes memory. The default, None, is enough for nearly all sets. If it is too small, a mapped
            function enlarges it, which takes a second compilation. A number does not change: if the particles do not
            fit, the search raises `jztree.CapacityError`.
    """

    tree: TreeConfig = field(default_factory=_tree_of_knn, metadata={"kind": TreeConfig})
    ghost_rows: int | None = at_least(0, None)
    alloc_fac_ilist: float = published(256.0)


@options
class CatalogueConfig:
    """Options of the friends-of-friends catalogue.

    Attributes:
        npart_min: The smallest number of particles that a group in the catalogue may have. The catalogue has a capacity
            of ``n / npart_min`` groups.
        extended: Whether the catalogue has more columns than the fields of its dataclass, see
            `jztree.data.FofCatalogue`.
        means: Names of particle properties. The catalogue column ``means`` stores their mass-weighted mean for each
            group.
    """

    npart_min: int = at_least(1, 20)
    extended: bool = True
    means: tuple[str, ...] = field(default=(), metadata={"names": True})


FofCatalogueConfig = CatalogueConfig


@options
class FofConfig:
    """Options of `jztree.fof`.

    ``alloc_fac_ilist`` and ``alloc_fac_distr_links`` of the published interface are accepted but have no effect.

    Attributes:
        tree: The hierarchy that the search walks to link particles.
        catalogue: The contents of the catalogue.
        ghost_rows: See `KNNConfig`.
        edge_rows: The same capacity for links between groups of different devices.
        attached_rows: The same capacity for particles of other types that are attached to groups.
    """

    tree: TreeConfig = field(default_factory=_tree_of_fof, metadata={"kind": TreeConfig})
    catalogue: CatalogueConfig = field(default_factory=CatalogueConfig)
    ghost_rows: int | None = at_least(0, None)
    edge_rows: int | None = at_least(0, None)
    attached_rows: int | None = at_least(0, None)
    alloc_fac_ilist: float = published(32.0)
    alloc_fac_distr_links: float = published(0.01)


@options
class OverdensityConfig:
    """Options of `jztree.overdensity.spherical_overdensity`.

    Attributes:
        tree: The hierarchy over the particles.
        npart_min: Number of particles in the smallest sphere that the search considers. The first few particles may be
            near a centre by chance, or be the centre itself. With this limit, they do not determine radii and circular
            velocities.
        ghost_rows: See `KNNConfig`.
    """

    tree: TreeConfig = field(default_factory=TreeConfig)
    npart_min: int = at_least(1, 10)
    ghost_rows: int | None = at_least(0, None)


@options
class RadiusConfig:
    """Options of `jztree.radius`.

    Attributes:
        tree: The hierarchy over the sources, and the groups of queries.
        ghost_rows: See `KNNConfig`.
    """

    tree: TreeConfig = field(default_factory=TreeConfig)
    ghost_rows: int | None = at_least(0, None)


def without_masses(cfg: _T) -> _T:
    """Return a configuration whose hierarchy has no masses, because no search uses them."""
    return dataclasses.replace(cfg, tree=dataclasses.replace(cfg.tree, masses=False))  # type: ignore
