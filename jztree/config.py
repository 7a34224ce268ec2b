"""Static options: hashable dataclasses with one field per option. The description of a field includes its cost.

Options are arguments, never globals. A public function copies the configuration that it receives, so later edits of the
object do not affect compiled code.

The published interface has options that only set the size of its buffers (``alloc_fac_nodes``, ``alloc_fac_ilist``,
...) or the shape of its hierarchy. This library chooses the size of its buffers, and has another hierarchy. You can
therefore set, read and change these options, but they have no effect. `_published` makes them, and they are not part of
the compiled code. Any other option whose name starts with ``alloc_fac_`` is also accepted and discarded.
"""

import dataclasses
import functools
from dataclasses import dataclass, field
from typing import Any, TypeVar, dataclass_transform

import jax
import numpy as np

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

_IGNORED = "alloc_fac_"
_SMALLEST_LEAF = 3
# The default of TreeConfig.leaf_size. On GPUs, a leaf usually fits into the 32 lanes of a warp.
CPU_LEAF_SIZE, GPU_LEAF_SIZE = 40, 24

_T = TypeVar("_T")
_kinds: list[type] = []


@dataclass_transform(kw_only_default=True)
def _options(cls: type[_T]) -> type[_T]:
    """Make ``cls`` a hashable dataclass that rejects unknown options and ignores those that size allocations."""
    options_class = dataclass(kw_only=True, unsafe_hash=True)(cls)
    fields = [option.name for option in dataclasses.fields(options_class)]  # type: ignore[arg-type]
    properties = [name for name, value in vars(cls).items() if isinstance(value, property)]
    aliases = getattr(cls, "_aliases", ())
    names = fields + properties
    init = options_class.__init__

    @functools.wraps(init)
    def filtered_init(self: Any, **options: Any) -> None:
        for name in options:
            _check_name(options_class, names, name, TypeError)
        for alias, name in aliases:
            if alias in options and name in options:
                raise ValueError(
                    f"{cls.__name__} got both {alias} and {name}, but one determines the other; pass only one."
                )
        init(self, **{name: value for name, value in options.items() if name in fields})
        for name in properties:
            if name in options:
                setattr(self, name, options[name])

    def checked_setattr(self: Any, name: str, value: Any) -> None:
        _check_name(options_class, names, name)
        _check_value(options_class, name, value)
        if name in names:
            object.__setattr__(self, name, int(value) if isinstance(value, np.integer) else value)

    options_class.__init__ = filtered_init  # type: ignore[method-assign]
    options_class.__setattr__ = checked_setattr  # type: ignore[method-assign]
    _kinds.append(options_class)
    return options_class


def is_config(value: Any) -> bool:
    """Return whether ``value`` is one of the configurations of this module."""
    return isinstance(value, tuple(_kinds))


def checked_config(cfg: Any, kind: type[_T], what: str = "cfg", *, optional: bool = True) -> _T:
    """Return the configuration passed as ``what``, or one with all defaults if it is None.

    Raises:
        TypeError: If it is not a ``kind``.
    """
    if cfg is None and optional:
        return kind()
    if not isinstance(cfg, kind):
        name = kind.__name__
        raise TypeError(f"{what} must be a jztree.config.{name}, such as {name}(), not {type(cfg).__name__}.")
    return cfg


def _check_name(cls: type, names: list[str], name: str, error: type[Exception] = AttributeError) -> None:
    if name not in names and not name.startswith(_IGNORED):
        fields = cls.__dataclass_fields__  # type: ignore[attr-defined]
        own_names = [option for option in names if not (option in fields and fields[option].metadata.get("published"))]
        hint = "" if len(own_names) == len(names) else ". It also accepts the options of the published interface"
        raise error(f"{cls.__name__} has no option {name!r}; its options are {', '.join(own_names)}{hint}.")


def _published(default: Any) -> Any:
    """Make a dataclass field of the published interface that has no effect here."""
    return field(default=default, compare=False, repr=False, metadata={"published": True})


def _at_least(least: int, default: int | None) -> Any:
    """Make a dataclass field for an integer of at least ``least``, or None if that is the default."""
    return field(default=default, metadata={"least": least})


def _check_value(cls: Any, name: str, value: Any) -> None:
    """Check the value of an option.

    Raises:
        ValueError: If ``value`` violates the bound that `_at_least` set for the option.
        TypeError: If it is a configuration of another class than the default.
    """
    option = cls.__dataclass_fields__.get(name)
    kind = None if option is None else option.metadata.get("kind", option.default_factory)
    if kind in _kinds:
        checked_config(value, kind, f"{cls.__name__}.{name}", optional=False)
    minimum = None if option is None else option.metadata.get("least")
    if option is not None and option.metadata.get("names"):
        _check_names(f"{cls.__name__}.{name}", value)
    if value is None and option is not None and option.default is None:
        return
    if minimum is not None and (isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < minimum):
        raise ValueError(f"{cls.__name__}.{name} must be an integer of at least {minimum}, not {value!r}.")


def _check_names(name: str, value: Any) -> None:
    if not isinstance(value, tuple) or not all(isinstance(word, str) for word in value):
        raise TypeError(f'{name} must be a tuple of names, such as ("temperature",), not {value!r}.')


@_options
class RegularizationConfig:
    """Options of the published interface for the hierarchy of kNN, which have no effect here."""

    regularize_percentile: float = _published(90.0)
    max_volume_fac: float = _published(20.0)


@_options
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

    leaf_size: int | None = _at_least(2, None)
    fan_out: int = _at_least(2, 8)
    masses: bool = False
    coarse_fac: float = _published(6.0)
    stop_coarsen: int = _published(1024)
    regularization: Any = _published(None)
    alloc_fac_nodes: float = _published(1.0)
    nsamp: int = _published(1024)

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


@_options
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
    ghost_rows: int | None = _at_least(0, None)
    alloc_fac_ilist: float = _published(256.0)


@_options
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

    npart_min: int = _at_least(1, 20)
    extended: bool = True
    means: tuple[str, ...] = field(default=(), metadata={"names": True})


FofCatalogueConfig = CatalogueConfig


@_options
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
    ghost_rows: int | None = _at_least(0, None)
    edge_rows: int | None = _at_least(0, None)
    attached_rows: int | None = _at_least(0, None)
    alloc_fac_ilist: float = _published(32.0)
    alloc_fac_distr_links: float = _published(0.01)


@_options
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
    npart_min: int = _at_least(1, 10)
    ghost_rows: int | None = _at_least(0, None)


@_options
class RadiusConfig:
    """Options of `jztree.radius`.

    Attributes:
        tree: The hierarchy over the sources, and the groups of queries.
        ghost_rows: See `KNNConfig`.
    """

    tree: TreeConfig = field(default_factory=TreeConfig)
    ghost_rows: int | None = _at_least(0, None)


def without_masses(cfg: _T) -> _T:
    """Return a configuration whose hierarchy has no masses, because no search uses them."""
    return dataclasses.replace(cfg, tree=dataclasses.replace(cfg.tree, masses=False))  # type: ignore


def copy_config(cfg: _T) -> _T:
    """Return a deep copy of a configuration, so that later edits of the original do not affect compiled code."""
    values = {option.name: getattr(cfg, option.name) for option in dataclasses.fields(cfg)}  # type: ignore[arg-type]
    return type(cfg)(**{k: copy_config(v) if is_config(v) else v for k, v in values.items()})
