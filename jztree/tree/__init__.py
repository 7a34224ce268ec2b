"""The z-order and the plane hierarchy, on which all algorithms of this library are built.

Particles are sorted by Morton keys of 128 bits over the periodic box, or over their bounding box in open dimensions.
Planes of nodes cover the sorted particles. Plane 0 holds the leaves. A node of a higher plane groups consecutive nodes
of the plane below. The top plane has at most 32 nodes. The **window rule** sets the boundaries between nodes. Each
window of ``leaf_size`` rows (of ``fan_out`` nodes on higher planes) has one boundary, at the place where adjacent
Morton keys differ in the highest bit. So nodes follow the cells of the z-order. Their number depends only on the number
of rows, so it is static under tracing. The cost is one sort, O(n), and one pass over the sorted particles.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.capacity import Capacity
from ..arguments import check_box, check_particles, common_dtype, exact_box_argument, mass_faults, mass_rows
from ..config import TreeConfig, leaf_size_of
from ..data import TreeHierarchy, get_pos, with_computed
from ..jax_ext import Exact, with_twins
from ..particles import Array, Particles, check_num, check_rows, check_width, num_rows
from ._derivatives import of_boxes, of_moments
from ._input import InputParticles
from ._over_ranks import check_data, distr_zsort, sort_equally, sort_over_ranks
from ._runs import center_of_mass
from ._zorder import Domain as Domain
from ._zorder import corners_of as corners_of
from ._zorder import domain_of, num_fault, permute_particles, search_sorted_z, zsort
from ._zorder import is_bad_num as is_bad_num

__all__ = [
    "TreeHierarchy",
    "build_tree_hierarchy",
    "center_of_mass",
    "distr_zsort",
    "search_sorted_z",
    "zsort",
    "zsort_and_tree",
    "zsort_and_tree_multi_type",
]

# The lanes of a warp. A warp of a GPU tests as many nodes at once: with more nodes, it descends to the nearest of the
# first 32 before it tests the others.
_TOP_PLANE_NODES = 32
_NOT_IN_ORDER = (
    "a hierarchy needs particles in z-order, but these are in another order; sort them with jztree.tree.zsort and the "
    "same boxsize first."
)
_TOO_HEAVY = (
    "the mass of a node is outside the range of %s; choose another unit of mass, or switch on jax_enable_x64 and give "
    "masses in float64."
)
FOREIGN = (
    "the hierarchy th does not belong to these particles; build it with jztree.tree.zsort_and_tree from the same "
    "particles and the same boxsize, and pass the particles that it returned."
)


def plane_sizes(n: int, cfg: TreeConfig) -> tuple[int, ...]:
    """Return the number of nodes of each plane over ``n`` rows, by the window rule."""
    sizes = [max(1, -(-n // leaf_size_of(cfg)))]
    while sizes[-1] > _TOP_PLANE_NODES:
        sizes.append(-(-sizes[-1] // cfg.fan_out))
    return tuple(sizes)


@with_twins({"partz": P(-1), "boxsize": P()}, P(-1), prepare=exact_box_argument)
@with_computed
def build_tree_hierarchy(
    partz: Particles | Array, cfg_tree: TreeConfig | None = None, *, boxsize: ArrayLike | None = None
) -> TreeHierarchy:
    """Build the plane hierarchy over particles that are already in z-order.

    Args:
        partz: The result of `zsort` with the same ``boxsize``. Its ``mass`` is used only if ``cfg_tree.masses`` is
            True.
        cfg_tree: Options. None means the defaults.
        boxsize: Periodic length, or one per dimension; 0 or None means open.

    Returns:
        The hierarchy.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, if the particles are
            not in z-order, or if masses are used and are negative, NaN, infinite or overflow when summed.

    Examples:
        >>> posz, _ = jz.tree.zsort(np.random.default_rng(0).random((1000, 2)), boxsize=1.0)
        >>> jz.tree.build_tree_hierarchy(posz, jz.config.TreeConfig(leaf_size=10), boxsize=1.0)
        TreeHierarchy(planes of 100 and 13 nodes in 2D, float32)
    """
    cfg = checked_config(cfg_tree, TreeConfig, "cfg_tree")
    pos = check_particles(partz)
    box = check_box(boxsize, pos.shape[1])
    domain, (num,) = domain_of([pos], [check_num(partz)], ["the positions"], box, _mass_faults(partz, cfg))
    return _differentiable(_in_range(build_checked(partz, num, domain, cfg)[0]), partz, box)


def build_in_domain(partz: Any, num: int | jax.Array, domain: Domain, cfg: TreeConfig) -> TreeHierarchy:
    """Build the hierarchy over the first ``num`` rows, whose keys are in order in ``domain``."""
    return _build(partz, num, domain, cfg)[0]


def build_checked(partz: Any, num: int | jax.Array, domain: Domain, cfg: TreeConfig) -> tuple[TreeHierarchy, jax.Array]:
    """Return `build_in_domain` and ``num``. Raise at run time, on all ranks, if keys on any rank are out of order."""
    th, unordered = _build(partz, num, domain, cfg)
    checked = comm.check(num, unordered, [], _NOT_IN_ORDER)
    # Every array waits for the check: the caller may use only one array, and the compiler drops the others.
    return comm.after(th, checked), checked


def _build(partz: Any, num: int | jax.Array, domain: Domain, cfg: TreeConfig) -> tuple[TreeHierarchy, jax.Array]:
    """Return the hierarchy, and whether the keys are out of order."""
    pos = get_pos(partz)
    sizes = plane_sizes(pos.shape[0], cfg)
    splits, particle_splits, node_lower, node_upper, unordered = kernels.hierarchy(
        pos, num, *domain.keys(), sizes, leaf_size_of(cfg), cfg.fan_out
    )
    th = TreeHierarchy(
        plane_sizes=sizes,
        flat_splits=splits,
        flat_particle_splits=particle_splits,
        flat_lower=node_lower,
        flat_upper=node_upper,
    )
    if not cfg.masses:
        return th, unordered
    rows = _mass_rows(partz)
    mass, center = kernels.node_masses(pos.astype(rows.dtype), rows, splits, domain.box, sizes)
    return dataclasses.replace(th, flat_mass=mass, flat_center_of_mass=center), unordered


def _differentiable(th: TreeHierarchy, partz: Any, box: Exact) -> TreeHierarchy:
    """Return ``th`` with derivatives of its boxes and masses with respect to the particles."""
    pos, splits = get_pos(partz), th.flat_particle_splits
    lower, upper = of_boxes(th.plane_sizes, (th.flat_lower, th.flat_upper), pos, box, splits)
    th = dataclasses.replace(th, flat_lower=lower, flat_upper=upper)
    if th.flat_mass is None:
        return th
    moments, rows = (th.flat_mass, th.flat_center_of_mass), _mass_rows(partz)
    mass, centre = of_moments(th.plane_sizes, moments, pos.astype(rows.dtype), rows, box, splits)
    return dataclasses.replace(th, flat_mass=mass, flat_center_of_mass=centre)


def _mass_rows(part: Any) -> jax.Array:
    """Return masses ``(n,)`` or ``(1,)`` in the dtype of the nodes: that of the positions, or a wider one."""
    pos, mass = get_pos(part), getattr(part, "mass", None)
    if mass is None:
        raise ValueError(
            "TreeConfig(masses=True) needs particles with a mass, but these have none; add masses, or use masses=False."
        )
    rows = mass_rows(part, common_dtype(pos, mass))
    assert rows is not None
    return rows


def _mass_faults(part: Any, cfg: TreeConfig) -> list[comm.Fault]:
    """Return the possible faults of the masses of ``part`` if the nodes are to have masses."""
    return mass_faults(_mass_rows(part), check_num(part), num_rows(part)) if cfg.masses else []


def _in_range(th: TreeHierarchy) -> TreeHierarchy:
    """Return ``th``. Raise at run time, on all ranks, if node masses are out of the range of their dtype."""
    mass, center = th.flat_mass, th.flat_center_of_mass
    if mass is None or center is None:
        return th
    checked = comm.check(0, _is_infinite(mass, center), [], _TOO_HEAVY % mass.dtype)
    return dataclasses.replace(th, flat_mass=comm.after(mass, checked))


@functools.partial(jax.jit, inline=True)
def _is_infinite(mass: jax.Array, center: jax.Array) -> jax.Array:
    """Return whether any mass or centre is infinite or NaN."""
    return ~(jnp.isfinite(mass).all() & jnp.isfinite(center).all())


@with_twins({"part": P(-1), "data": P(-1), "boxsize": P()}, P(-1), prepare=exact_box_argument)
@with_computed
def zsort_and_tree(
    part: Particles | Array, cfg_tree: TreeConfig | None = None, data: Any = None, *, boxsize: ArrayLike | None = None
) -> Any:
    """Sort particles in z-order and build the hierarchy over them.

    On several ranks, each rank gets a range of the z-order, with as many particles as the others, and the hierarchy
    over it (see `jztree.tree.distr_zsort`). ``cfg_tree`` and ``boxsize`` must agree on all ranks.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, or an array of positions.
        cfg_tree: Options. None means the defaults.
        data: A pytree to sort with the particles; each leaf has ``n`` rows.
        boxsize: Periodic length, or one per dimension; 0 or None means open.

    Returns:
        ``(partz, th)``, or ``(partz, dataz, th)`` if ``data`` is given.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, or, with
            ``cfg_tree.masses``, if a mass is negative, NaN or infinite, or if the sum of masses is out of the range of
            its dtype.

    Examples:
        >>> pos = np.random.default_rng(0).random((1000, 2))
        >>> posz, th = jz.tree.zsort_and_tree(pos, jz.config.TreeConfig(leaf_size=10), boxsize=1.0)
        >>> th
        TreeHierarchy(planes of 100 and 13 nodes in 2D, float32)
        >>> posz[th.particle_splits(1)[0] : th.particle_splits(1)[1]].shape  # the particles of the first node
        (117, 2)
    """
    cfg = checked_config(cfg_tree, TreeConfig, "cfg_tree")
    pos = check_particles(part)
    check_data(data, pos.shape[0])
    box, faults = check_box(boxsize, pos.shape[1]), _mass_faults(part, cfg)
    domain, (num,) = domain_of([pos], [check_num(part)], ["the positions"], box, faults)
    if comm.num_ranks() > 1:
        moved = sort_equally(InputParticles(part, num, data, needs_origin=False), domain)
        partz, dataz, th = moved.part, moved.data, _in_range(build_in_domain(moved.part, moved.num, domain, cfg))
    else:
        partz, index, th = sort_in_domain(part, num, domain, cfg)
        dataz = jax.tree.map(lambda leaf: kernels.gather_rows(jnp.asarray(leaf), index), data)
    th = _differentiable(th, partz, box)
    return (partz, th) if data is None else (partz, dataz, th)


def sort_in_domain(
    part: Any, num: int | jax.Array, domain: Domain, cfg: TreeConfig
) -> tuple[Any, jax.Array, TreeHierarchy]:
    """Sort checked particles on one device.

    Returns:
        The particles in z-order; the input row of each, ``(n,)`` int32; and their hierarchy.
    """
    index, posz = domain.zsort(jnp.asarray(get_pos(part)), num)
    partz = permute_particles(part, index, posz)
    return partz, index, _in_range(build_in_domain(partz, num, domain, cfg))


def kernel_tree(partz: Any, num: int | jax.Array, th: TreeHierarchy) -> kernels.Tree:
    """Return the hierarchy ``th`` over ``partz``, whose first ``num`` rows hold particles, as a kernel argument."""
    arrays = (th.flat_splits, th.flat_particle_splits, th.flat_lower, th.flat_upper)
    return kernels.Tree(get_pos(partz), kernels.as_num(num), *arrays, th.plane_sizes)


def check_hierarchy(th: Any) -> None:
    """Raise TypeError if ``th`` is neither a hierarchy nor None."""
    if th is not None and not isinstance(th, TreeHierarchy):
        words = "a number or an array" if isinstance(th, jax.Array) else f"of the class {type(th).__name__}"
        raise TypeError(
            "th must be the hierarchy (TreeHierarchy) from jztree.tree.zsort_and_tree, its last result, or None; it "
            f"is {words}."
        )
    check_width({"th": th})


def faults_of_hierarchy(partz: Any, num: int | jax.Array, th: TreeHierarchy, box: Exact) -> list[comm.Fault]:
    """Return the possible faults of ``num``, and of a hierarchy from the user that belongs to other particles."""
    tree = kernel_tree(partz, num, th)
    fits = kernels.tree_fits(tree, box)
    return [num_fault(tree.posz, num, "the positions"), comm.Fault(fits == 0, [], FOREIGN)]


@with_twins({"part": P(-1), "data": P(-1), "boxsize": P()}, P(-1), prepare=exact_box_argument)
@with_computed
def zsort_and_tree_multi_type(
    part: Sequence[Any],
    cfg_tree: TreeConfig | None = None,
    data: Sequence[Any] | None = None,
    *,
    boxsize: ArrayLike | None = None,
    one_hierarchy: bool = False,
) -> Any:
    """Sort several particle types in z-order and build one hierarchy over all types.

    On several ranks, each rank gets the same range of the z-order for every type. All ranks hold the same number of
    particles over all types, and the arrays are long enough for these. ``cfg_tree``, ``boxsize`` and
    ``one_hierarchy`` must agree on all ranks.

    Args:
        part: A sequence of particle classes (or arrays of positions) of one dtype and number of dimensions.
        cfg_tree: Options. None means the defaults.
        data: None, or a sequence with one entry per type: None, or a pytree to sort with the particles, whose leaves
            have as many rows as that type.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        one_hierarchy: Whether to return the hierarchy over the types together instead of one per type.
            `TreeHierarchy.particle_splits_of` locates the particles of each type in it. Other functions do not accept
            such a hierarchy as ``th``.

    Returns:
        ``(parts_z, ths)``, or ``(parts_z, data_z, ths)`` if ``data`` is given: each type sorted, and for each type the
        hierarchy with its own particle splits. All hierarchies have the same planes and nodes, so node ``i`` is the
        same region for every type. Its box contains the particles of every type. A node may have no particles of a
        type. With ``one_hierarchy``, ``th`` replaces ``ths``.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite.

    Examples:
        >>> stars, gas = np.array([[0.9], [0.1]], np.float32), np.array([[0.4], [0.2], [0.3]], np.float32)
        >>> sorted_types, th = jz.tree.zsort_and_tree_multi_type([stars, gas], one_hierarchy=True)
        >>> th.particle_splits_of(0, plane=0), th.particle_splits_of(1, plane=0)  # one leaf with rows of both
        (Array([0, 2], dtype=int32), Array([0, 3], dtype=int32))
    """
    cfg = checked_config(cfg_tree, TreeConfig, "cfg_tree")
    if not isinstance(data, (list, tuple, type(None))):
        raise TypeError(
            f"data must be a sequence with one entry per type, not {type(data).__name__}; pass boxsize by name."
        )
    parts, along = list(part), [None] * len(part) if data is None else list(data)
    positions = _check_types(parts, along, cfg)
    box = check_box(boxsize, positions[0].shape[1])
    names = [f"the positions of type {i}" for i in range(len(parts))]
    domain, nums = domain_of(positions, [check_num(particles) for particles in parts], names, box)
    if comm.num_ranks() > 1:
        # A rank's range may hold particles of a single type.
        capacities = [Capacity(sum(pos.shape[0] for pos in positions), "sort")] * len(parts)
        types = [
            InputParticles(particles, num, data, needs_origin=False)
            for particles, num, data in zip(parts, nums, along, strict=True)
        ]
        moved = sort_over_ranks(types, domain, capacities)
        parts, along, nums = [m.part for m in moved], [m.data for m in moved], [m.num for m in moved]
        positions = [get_pos(particles) for particles in parts]
    parts_z, along_z, th = _build_multi_type(parts, along, positions, nums, domain, cfg, one_hierarchy)
    return (parts_z, th) if data is None else (parts_z, along_z, th)


def _check_types(parts: list[Any], along: list[Any], cfg: TreeConfig) -> list[jax.Array]:
    """Check particle types and the data that move with them. Return the positions of each type."""
    positions = [check_particles(particles, f"positions of type {i}") for i, particles in enumerate(parts)]
    if not positions or any(p.shape[1] != positions[0].shape[1] or p.dtype != positions[0].dtype for p in positions):
        kinds = [f"{p.dtype} with {p.shape[1]} dimensions" for p in positions]
        raise ValueError(
            "at least one type is required, and all types must have one dtype and number of dimensions; given: "
            f"{kinds}."
        )
    if cfg.masses:
        raise ValueError("TreeConfig(masses=True) supports one type only; build one hierarchy per type for its masses.")
    if len(along) != len(parts):
        raise ValueError(f"data must have one entry per type, {len(parts)}; it has {len(along)}.")
    for particles, pos in zip(along, positions, strict=True):
        check_data(particles, pos.shape[0])
    check_rows(sum(pos.shape[0] for pos in positions), "positions of all types together")
    return positions


def _build_multi_type(
    parts: Sequence[Any],
    along: Sequence[Any],
    positions: Sequence[jax.Array],
    nums: Sequence[Any],
    domain: Domain,
    cfg: TreeConfig,
    one_hierarchy: bool,
) -> tuple[tuple[Any, ...], tuple[Any, ...], Any]:
    num = sum(kernels.as_num(count) for count in nums)
    # There may be unused rows between the types; move them after all particles first.
    valid = [jnp.arange(pos.shape[0], dtype=jnp.int32) < count for pos, count in zip(positions, nums, strict=True)]
    first = jnp.argsort(~jnp.concatenate(valid), stable=True).astype(jnp.int32)
    pos = kernels.gather_rows(jnp.concatenate(positions), first)
    index, posz = domain.zsort(pos, num)
    order = kernels.gather_rows(first, index)
    th = _differentiable(build_in_domain(posz, num, domain, cfg), posz, domain.box)
    kind = jnp.concatenate([jnp.full(p.shape[0], i, jnp.int32) for i, p in enumerate(positions)])
    starts = np.cumsum([0] + [p.shape[0] for p in positions])
    of_types = enumerate(zip(parts, along, strict=True))
    typed = [_one_type(*arguments, th, order, kind[order] == i, int(starts[i])) for i, arguments in of_types]
    parts_z, along_z, ths = zip(*typed, strict=True)
    if not one_hierarchy:
        return parts_z, along_z, ths
    per_type = jnp.stack([of_type.flat_particle_splits for of_type in ths])
    return parts_z, along_z, dataclasses.replace(th, flat_particle_splits_per_type=per_type)


@functools.partial(jax.jit, inline=True)
def _splits_of_type(th: TreeHierarchy, is_of_type: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the particle splits and the splits of a hierarchy for the particles of one type."""
    before = jnp.concatenate([jnp.zeros(1, jnp.int32), jnp.cumsum(is_of_type, dtype=jnp.int32)])
    splits = before[th.flat_particle_splits]
    leaf_splits = splits[: th.plane_sizes[0] + 1]
    return splits, jnp.concatenate([leaf_splits, th.flat_splits[th.plane_sizes[0] + 1 :]])


@functools.partial(jax.jit, static_argnames=("start", "n"), inline=True)
def _rows_of_type(order: jax.Array, is_of_type: jax.Array, start: int, n: int) -> jax.Array:
    (rows,) = jnp.nonzero(is_of_type, size=n)
    return order[rows] - start


def _one_type(
    part: Any, data: Any, th: TreeHierarchy, order: jax.Array, is_of_type: jax.Array, start: int
) -> tuple[Any, Any, TreeHierarchy]:
    """Select the rows of one type, marked by ``is_of_type``, from an order over all types, and its hierarchy."""
    splits, flat_splits = _splits_of_type(th, is_of_type)
    rows_of_type = _rows_of_type(order, is_of_type, start, num_rows(part))
    data = jax.tree.map(lambda leaf: kernels.gather_rows(jnp.asarray(leaf), rows_of_type), data)
    return (
        permute_particles(part, rows_of_type),
        data,
        dataclasses.replace(th, flat_splits=flat_splits, flat_particle_splits=splits),
    )
