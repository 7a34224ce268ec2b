"""Find friends-of-friends groups and their catalogue.

Particles at most one linking length apart are linked. If each particle has its own length, the mean of the lengths of
both counts. A group is a set of particles that are linked to each other directly or through others (Davis et al. 1985).
The search sorts the particles in z-order, builds a plane hierarchy (`jztree.tree`) and joins nodes within the linking
length of each other by a union-find. In dense regions, it joins whole nodes at once. The cost is O(n log n) for any
linking length.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from .._options import checked_config
from ..arguments import NO_LIMIT, SPEC, Kind, Radii, box_of, check_flag, check_particles, check_word, flat, sequence_of
from ..config import FofConfig
from ..data import FofCatalogue, Label
from ..particles import (
    Array,
    Index,
    Particles,
    check_countable,
    check_num,
    check_representable,
    particles_of,
    shape_of_pos,
)
from ..tree import TreeHierarchy, corners_of
from ._attached_types import ATTACH_WITHIN, attach, attach_limit, attach_over_ranks, check_attached
from ._dbscan import Clusters, dbscan
from ._group_order import CATALOGUE_DIMS, Groups, config_of_groups, group_and_catalogue, groups_of, particle_faults
from ._group_order import sort_by_group as sort_by_group
from ._lengths import check_lengths
from ._phase_space import phase_space_groups, phase_space_labels
from ._search import parsed

__all__ = [
    "Clusters",
    "Groups",
    "dbscan",
    "distr_fof_labels",
    "fof_and_catalogue",
    "fof_is_superset",
    "fof_labels",
    "friends_of_friends",
    "group_labels",
    "phase_space_groups",
    "phase_space_labels",
]


def _exact_lengths(rlink: ArrayLike, arguments: dict[str, Any]) -> Radii:
    part = particles_of(arguments["part"])
    return check_lengths(rlink, shape_of_pos(part)[:-1], box_of(arguments))


def _exact_attach_limit(attach_within: ArrayLike | None, arguments: dict[str, Any]) -> Radii:
    limit = attach_limit(attach_within, _exact_lengths(arguments["rlink"], arguments))
    return limit if sequence_of(arguments["attached"]) else NO_LIMIT


_READ: dict[str, Any] = {
    "rlink": Kind(SPEC, _exact_lengths),
    "attached": Kind(P(-1)),
    "attach_within": Kind(SPEC, _exact_attach_limit),
    "th": Kind(P(-1)),
}


@flat(**_READ)
def group_labels(
    part: Particles | Index | Array, rlink: ArrayLike, *, boxsize: ArrayLike | None = None, cfg: FofConfig | None = None
) -> jax.Array:
    """Label every particle with its friends-of-friends group, in the order of the particles.

    Groups of any size get labels, also single particles.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        rlink: The linking length, in the unit of the positions: a number (equal on all ranks), or ``(n,)``, one per
            particle. Two particles are linked if their distance is at most the mean of their linking lengths. The
            comparison is made in float64 from the original positions and lengths.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(n,)`` int32 labels: the smallest row of each row's group, so ``label[label] == label``. On several devices,
        labels are rows of the particles joined over devices, without padding. The rows from ``num`` on are padding:
        each is a separate group, or -1 on several devices.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, or a
            traced ``rlink`` or ``boxsize`` is invalid. Also if 2**31 or more particles need a label.
        CapacityError: On several devices, if ghosts or links do not fit the capacities in ``cfg``.

    Examples:
        >>> pos = np.array([[0.1], [0.5], [0.95], [0.55]], np.float32)
        >>> jz.group_labels(pos, 0.2, boxsize=1.0)
        Array([0, 1, 0, 1], dtype=int32)
    """
    return parsed(part, rlink, boxsize, None).labels_in_input_order(checked_config(cfg, FofConfig))


@flat(**_READ)
def fof_labels(
    part: Particles | Array,
    rlink: ArrayLike,
    boxsize: ArrayLike | None = 0.0,
    cfg: FofConfig | None = None,
    th: TreeHierarchy | None = None,
    output_order: str = "z",
) -> tuple[Any, jax.Array]:
    """Label every particle with its friends-of-friends group.

    Groups of any size get labels, also single particles: ``npart_min`` has no effect here.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions.
        rlink: The linking length, in the unit of the positions: a number, or ``(n,)``, one per particle. Two particles
            are linked if their distance is at most the mean of their linking lengths. The comparison is made in float64
            from the original positions and lengths.
        boxsize: Periodic length, or one per dimension; 0 or None means open. Positions outside the box are wrapped.
        cfg: Options. None means the defaults.
        th: A hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``; ``part`` must then be
            the particles in z-order that it returned.
        output_order: The order of the returned rows: ``"z"`` for z-order, or ``"input"`` for the order of ``part``.

    Returns:
        The particles in that order, and ``(n,)`` int32 labels ``igroup``. The label of a group is the smallest of its
        rows among the returned particles, so ``igroup[igroup] == igroup``. On several devices, labels are rows of the
        particles joined over devices, without padding. The rows from ``num`` on are padding: each is a separate
        group, but on several devices with ``"input"``, its label is -1.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, if a traced ``rlink``
            or ``boxsize`` is invalid, or if ``th`` belongs to other particles.

    Examples:
        >>> pos = np.array([[0.9], [0.5], [0.05], [0.45]], np.float32)
        >>> part, igroup = jz.fof.fof_labels(pos, 0.2, 1.0, output_order="input")
        >>> igroup
        Array([0, 1, 0, 1], dtype=int32)
    """
    check_word(output_order, "output_order", ("z", "input"))
    if output_order == "z":
        return distr_fof_labels(part, rlink, boxsize, cfg, th, linearize_labels=True)
    labels = parsed(part, rlink, boxsize, th).labels_in_input_order(checked_config(cfg, FofConfig))
    return particles_of(part), labels


@flat(**_READ)
def distr_fof_labels(
    part: Particles | Array,
    rlink: ArrayLike,
    boxsize: ArrayLike | None = 0.0,
    cfg: FofConfig | None = None,
    th: TreeHierarchy | None = None,
    linearize_labels: bool = False,
) -> tuple[Any, Any]:
    """Label the particles of several devices with their friends-of-friends groups. For use inside `jax.shard_map`.

    The function also works on one device. Groups of any size get labels, also single particles.

    Args:
        part: This device's particles; see `fof_labels`.
        rlink: See `fof_labels`. A number must be equal on all ranks.
        boxsize: See `fof_labels`. Equal on all ranks.
        cfg: Options, equal on all ranks. None means the defaults.
        th: A hierarchy from `jztree.tree.zsort_and_tree` over the devices; ``part`` must then be the particles that it
            returned.
        linearize_labels: Whether labels are single numbers, the row of the group's first particle in the joined
            particles of all devices, instead of a rank and a row.

    Returns:
        This device's particles, a range of the z-order over all devices; and a `jztree.data.Label` for these particles:
        the rank and row of the group's first particle in z-order. With ``linearize_labels``, the labels are ``(n,)``
        int32 rows of the joined particles. Each row from ``num`` on is a separate group.

    Raises:
        TypeError: See `fof_labels`.
        ValueError: See `fof_labels`.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device; see `fof_labels`. Also if 2**31 or more
            particles need a linear label.
        CapacityError: If ghosts or links do not fit the capacities in ``cfg``.

    Examples:
        >>> pos = np.array([[0.9], [0.5], [0.05], [0.45]], np.float32)
        >>> posz, label = jz.fof.distr_fof_labels(pos, 0.2, 1.0)
        >>> posz[:, 0], label.igroup
        (Array([0.05, 0.45, 0.5 , 0.9 ], dtype=float32), Array([0, 1, 1, 0], dtype=int32))
    """
    cfg = checked_config(cfg, FofConfig)
    check_flag(linearize_labels, "linearize_labels")
    search = parsed(part, rlink, boxsize, th)
    if linearize_labels:
        return search.labels_in_z_order(cfg)
    stage = search.stage(cfg)
    if not stage.is_distributed:
        rows = search.labels(stage)
        return stage.sources.part, Label(jnp.zeros_like(rows), rows)
    return stage.sources.part, search.groups(stage, cfg).labels()


@flat(**_READ)
def friends_of_friends(
    part: Particles | Index | Array,
    rlink: ArrayLike,
    *,
    boxsize: ArrayLike | None = None,
    npart_min: int | None = None,
    attached: Any = None,
    attach_within: Any = ATTACH_WITHIN,
    cfg: FofConfig | None = None,
) -> Groups:
    """Find friends-of-friends groups and their properties: mass, centre, velocity, sizes.

    **Catalogue.** Each row is a group of at least ``npart_min`` particles. On one device, the largest group is first,
    and groups of equal size are in the order of their first particles in z-order. A plain call returns exactly as many
    rows as there are groups. With ``.jit`` and on several devices, the catalogue has unused rows after the groups, and
    ``jztree.data.squeeze_catalogue`` removes them.

    **Particles.** In the returned particles, each listed group is one run of rows: group ``i`` has the rows
    ``offset[i]`` to ``offset[i] + count[i]`` (exclusive). The particles in no listed group follow after the last group.
    In each group, and after the last one, particles are in z-order.

    **Several devices.** The group order has one part per device. Each device owns a range of the z-order. Its part
    begins with the groups whose first particle in z-order it owns, including their particles from other devices. Then
    come its own particles in no listed group. The joined parts are divided into equal shares, one per device. So a
    group may continue on the next devices, a device may begin with the end of a group, and particles in no listed group
    may be between two groups. A catalogue row is on the device that holds the group's first particle in group order.
    Rows are in the order of the groups' first particles in z-order, not largest first.

    **Attached particles.** With ``attached``, the result has as many rows as all inputs together (over several devices,
    as many as needed). In each group, particles of ``part`` come before attached ones (over several devices, in each
    device's share of the group). With ``npart_min=1``, attached particles without a group are listed as separate
    groups, in input order after all other groups (over several devices, after the groups of their device).

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 4, float32 or float64; an array of positions;
            or a `jztree.Index` of either. Optional properties are used if present: ``mass``, ``(n,)`` or a number
            shared by all particles; ``vel``, ``(n, d)``; and for a light cone ``v_rad`` and ``zplus1``, ``(n,)``, the
            velocity along the line of sight and 1 + z.
        rlink: The linking length, in the unit of the positions: a number (equal on all ranks), or ``(n,)``, one per
            particle. Two particles are linked if their distance is at most the mean of their linking lengths. The
            comparison is made in float64 from the original positions and lengths.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        npart_min: The smallest number of particles of a listed group. None means ``cfg.catalogue.npart_min``, by
            default 20.
        attached: Particles of another type, or a sequence with one entry per type, of the same class as ``part`` and
            with the same properties; or None. They do not link particles. Each joins the group of the nearest particle
            of ``part`` (Dolag et al. 2009, MNRAS 399, 497), and enters the count and all sums of that group. To
            distinguish types in the result, add a property to the particles.
        attach_within: Largest distance to that nearest particle, in units of its linking length; None means no limit.
            The default 6.4 is the value of Gadget-4 for particles without a smoothing length. Distances are equal to
            the distances of `jztree.knn.knn`, in the dtype of the positions. An attached particle that is farther away
            forms a separate group.
        cfg: Options, equal on all ranks. None means the defaults. ``cfg.catalogue.means`` names further properties,
            ``(n, ...)``, to average over each group.

    Returns:
        `Groups`: the particles in group order, and the `jztree.data.FofCatalogue`. Columns have the units of the
        particles.

    Raises:
        TypeError: For arguments of a wrong type, or if ``attached`` is of another class than ``part``.
        ValueError: For other invalid arguments, or if ``attached`` and ``part`` have different properties.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, a mass
            is negative, NaN or infinite, a velocity is NaN or infinite, a traced ``rlink`` or ``boxsize`` is invalid,
            or the mass or the angular momentum of a group is out of range of its dtype.
        CapacityError: On several devices, if rows do not fit the capacities in ``cfg``.

    Examples:
        >>> pos = np.array([[0.1], [0.5], [0.95], [0.55], [0.45]], np.float32)
        >>> particles, catalogue = jz.friends_of_friends(pos, 0.2, boxsize=1.0, npart_min=2)
        >>> catalogue.count
        array([3, 2], dtype=int32)
    """
    return groups_of(*_grouped((part, boxsize, None), rlink, config_of_groups(cfg, npart_min), attached, attach_within))


@flat(**_READ)
def fof_and_catalogue(
    part: Particles | Array,
    rlink: ArrayLike,
    boxsize: ArrayLike | None = 0.0,
    cfg: FofConfig | None = None,
    th: TreeHierarchy | None = None,
    *,
    attached: Any = None,
    attach_within: Any = ATTACH_WITHIN,
) -> tuple[Any, FofCatalogue]:
    """Find friends-of-friends groups and their properties: mass, centre, velocity, sizes.

    **Order.** The catalogue lists groups of at least ``cfg.catalogue.npart_min`` particles, by default 20, in the order
    of their first particles in z-order. In the returned particles, each listed group is one run of rows: group ``i``
    has the rows ``offset[i]`` to ``offset[i] + count[i]`` (exclusive). The particles in no listed group follow after
    the last group. In each group, and after the last one, particles are in z-order.

    **Several devices.** The group order has one part per device. Each device owns a range of the z-order. Its part
    begins with the groups whose first particle in z-order it owns, including their particles from other devices. Then
    come its own particles in no listed group. The joined parts are divided into equal shares, one per device. So a
    group may continue on the next devices, a device may begin with the end of a group, and particles in no listed group
    may be between two groups. A catalogue row is on the device that holds the group's first particle in group order.
    Rows are in the same order as on one device.

    **Attached particles.** With ``attached``, the result has as many rows as all inputs together (over several devices,
    as many as needed). In each group, particles of ``part`` come before attached ones (over several devices, in each
    device's share of the group). With ``npart_min=1``, attached particles without a group are listed as separate
    groups, in input order after all other groups (over several devices, after the groups of their device).

    Args:
        part: See `fof_labels`; here, d is from 1 to 4. Optional properties are used if present: ``mass``, ``(n,)`` or a
            number shared by all particles; ``vel``, ``(n, d)``; and for a light cone ``v_rad`` and ``zplus1``,
            ``(n,)``, the velocity along the line of sight and 1 + z.
        rlink: See `fof_labels`. A number must be equal on all ranks.
        boxsize: See `fof_labels`. Equal on all ranks.
        cfg: Options, equal on all ranks. None means the defaults. ``cfg.catalogue.npart_min`` is the smallest number of
            particles of a listed group, by default 20. ``cfg.catalogue.means`` names further properties, ``(n, ...)``,
            to average over each group.
        th: See `fof_labels`.
        attached: Particles of another type, or a sequence with one entry per type, of the same class as ``part`` and
            with the same properties; or None. They do not link particles. Each joins the group of the nearest particle
            of ``part`` (Dolag et al. 2009, MNRAS 399, 497), and enters the count and all sums of that group. To
            distinguish types in the result, add a property to the particles.
        attach_within: Largest distance to that nearest particle, in units of its linking length; None means no limit.
            The default 6.4 is the value of Gadget-4 for particles without a smoothing length. Distances are
            equal to the distances of `jztree.knn.knn`, in the dtype of the positions. An attached particle that is
            farther away forms a separate group.

    Returns:
        The particles in group order, with all their properties, and the `FofCatalogue`. Catalogue rows from ``ngroups``
        on are unused; `jztree.data.squeeze_catalogue` removes them. Columns have the units of the particles.

    Raises:
        TypeError: See `fof_labels`. Also if ``attached`` is of another class than ``part``.
        ValueError: See `fof_labels`. Also if ``attached`` and ``part`` have different properties.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a mass is negative, NaN or infinite,
            or a velocity is NaN or infinite (the message has the row), or if the mass or the angular momentum of a
            group is out of range of its dtype.
        CapacityError: On several devices, if rows do not fit the capacities in ``cfg``.

    Examples:
        >>> pos = np.array([[0.9], [0.5], [0.05], [0.45]], np.float32)
        >>> cfg = jz.config.FofConfig(catalogue=jz.config.CatalogueConfig(npart_min=2))
        >>> partf, cata = jz.fof.fof_and_catalogue(pos, 0.2, 1.0, cfg)
        >>> partf[:, 0], cata
        (Array([0.05, 0.9 , 0.45, 0.5 ], dtype=float32), FofCatalogue(2 groups, 2 particles))
    """
    return _grouped((part, boxsize, th), rlink, checked_config(cfg, FofConfig), attached, attach_within)


def _grouped(
    sources: tuple[Any, Any, Any], rlink: ArrayLike, cfg: FofConfig, attached: Any, attach_within: ArrayLike | None
) -> tuple[Any, FofCatalogue]:
    """Return the particles in group order, and their catalogue in group order.

    Args:
        sources: Particles or an index, the box, and a hierarchy over particles in z-order.
        rlink: Linking lengths.
        cfg: Options.
        attached: See `friends_of_friends`.
        attach_within: See `friends_of_friends`.
    """
    part, boxsize, th = sources
    search = parsed(part, rlink, boxsize, th, CATALOGUE_DIMS)
    part = particles_of(part)
    box, attached_types = search.box, sequence_of(attached)
    limits = attach_limit(attach_within, search.lengths)
    search.limits = limits if attached_types else NO_LIMIT
    faults = particle_faults(part, cfg.catalogue) + _attached_faults(part, attached_types, cfg)
    stage = search.stage(cfg, faults)
    partz, limit = stage.sources.part, search.sorted_limits(stage)
    if stage.is_distributed:
        if attached_types:
            check_countable(part, "devices have capacity for more attached particles than arrive")
        groups = search.groups(stage, cfg)
        num, where = groups.num, groups.labels()
        if attached_types:
            partz, num, where = attach_over_ranks(partz, num, where, attached_types, box, limit, cfg)
        return group_and_catalogue(partz, num, where.irank, where.igroup, cfg.catalogue, box)
    label = search.labels(stage)
    if attached_types:
        partz, label = attach(partz, label, attached_types, box, limit, cfg)
    return sort_by_group(partz, label, cfg.catalogue, box)


def _attached_faults(part: Any, attached: Sequence[Any], cfg: FofConfig) -> list[comm.Fault]:
    """Return the run-time checks for attached particles. Raise at once if their class, shapes or dtypes are invalid."""
    faults: list[comm.Fault] = []
    for i, particles in enumerate(attached):
        pos = check_particles(particles, "attached positions")
        num = check_num(particles, "num of attached")
        check_attached(part, particles)
        faults += corners_of(pos, num, f"the positions of attached[{i}]")[1]
        faults += particle_faults(particles, cfg.catalogue, f" of attached[{i}]")
    return faults


def fof_is_superset(igroup_sup: Any, igroup: Any, mask: Any = None) -> jax.Array:
    """Return whether every group of ``igroup`` is a subset of one group of ``igroup_sup``.

    Use it to compare two results: they have the same groups if each is a superset of the other.

    Args:
        igroup_sup: ``(n,)`` integer labels; particles with equal labels are in one group.
        igroup: ``(n,)`` integer labels of the same particles in the same order.
        mask: ``(n,)`` bool, the particles to compare. None means all.

    Returns:
        A bool scalar.

    Raises:
        TypeError: If labels are not integers.
        ValueError: If shapes differ.
    """
    check_representable({"igroup_sup": igroup_sup, "igroup": igroup})
    a, b = jnp.asarray(igroup_sup), jnp.asarray(igroup)
    if a.ndim != 1 or a.shape != b.shape or (mask is not None and np.shape(mask) != a.shape):
        raise ValueError(
            f"igroup_sup, igroup and mask must have the same shape (n,), but their shapes are {a.shape}, {b.shape} and "
            f"{np.shape(mask)}."
        )
    for labels in (a, b):
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise TypeError(f"igroup_sup and igroup must be integers, not {labels.dtype}.")
    return _is_superset(a, b, jnp.ones(a.shape, bool) if mask is None else jnp.asarray(mask, bool))


@functools.partial(jax.jit, inline=True)
def _is_superset(a: jax.Array, b: jax.Array, used: jax.Array) -> jax.Array:
    # Sort each group into one run of rows; the masked-out particles come last.
    order = jnp.lexsort((a, b, ~used))
    a, b, used = a[order], b[order], used[order]
    return jnp.all((a[1:] == a[:-1]) | (b[1:] != b[:-1]) | ~used[1:])
