"""Friends-of-friends groups, and the catalogue of them.

Particles at most one linking length apart are linked; a group is all that are linked to each other directly or through
others (Davis et al. 1985). Particles are sorted in z-order, get a plane hierarchy (`jztree.tree`), and nodes within the
linking length of each other are joined by a union-find, whole nodes at once where they are dense. The cost is O(n log
n) for any linking length.
"""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._checks import check_box, check_particles, exact_box_argument, sequence_of
from .._particles import check_carried, check_countable, check_num
from ..config import FofConfig, checked_config
from ..data import FofCatalogue, Label, get_num, get_pos, with_computed
from ..jax_ext import is_concrete, with_twins
from ..tree import TreeHierarchy, check_belongs, check_hierarchy, kernel_tree, sort_and_build
from ..tree._zorder import corners_of, permute_particles
from ._attached_types import ATTACH_WITHIN, attach, attach_limit, attach_over_ranks, check_attached
from ._dbscan import dbscan
from ._derivatives import of_groups
from ._group_order import group_and_catalogue, make_catalogue, particle_faults
from ._lengths import check_length
from ._means import Columns
from ._over_ranks import groups_over_ranks

__all__ = ["dbscan", "distr_fof_labels", "fof_and_catalogue", "fof_is_superset", "fof_labels"]

_MAX_DIMS = 4
_SPECS = {"part": P(-1), "rlink": P(), "boxsize": P(), "th": P(-1)}  # the other arguments are static


def _exact_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    exact_box = exact_box_argument(arguments)
    length = check_length(arguments["rlink"], exact_box["boxsize"], "rlink")
    found = exact_box | {"rlink": length}
    if "attached" in arguments:
        within = arguments["attach_within"] if sequence_of(arguments["attached"]) else None
        found["attach_within"] = attach_limit(within, length)
    return found


@with_twins(_SPECS, P(-1), prepare=_exact_arguments)
@with_computed
def fof_labels(
    part: Any,
    rlink: Any,
    boxsize: Any = 0.0,
    cfg: FofConfig | None = None,
    th: TreeHierarchy | None = None,
    output_order: str = "z",
) -> tuple[Any, jax.Array]:
    """Label every particle with its friends-of-friends group.

    part: a particle class with ``pos`` ``(n, d)``, d from 1 to 4, float32 or float64, or an array of positions.
    rlink: the linking length, in the unit of the positions. Particles are linked if their distance is at most that,
        decided in float64 from the positions as given.
    boxsize: periodic length, or one a dimension; 0 or None is open. Positions outside the box are wrapped.
    th: a hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``; ``part`` is then the
        particles in z-order that it returned.
    output_order: the order of the rows that are returned: ``"z"``, or ``"input"`` for that of ``part``, which only one
        device has.

    Returns the particles in that order, and ``(n,)`` int32 labels: the smallest row of the group, so
    ``igroup[igroup] == igroup``. Rows from ``num`` on are groups of their own.

    Raises TypeError or ValueError for wrong arguments, and an error at run time if a position is NaN or infinite, a
    traced ``rlink`` or ``boxsize`` is wrong, or ``th`` belongs to other particles.
    """
    if output_order not in ("z", "input"):
        raise ValueError(f"output_order must be 'z' or 'input', not {output_order!r}.")
    if comm.num_ranks() > 1:
        if output_order == "input":
            raise ValueError("on several devices, labels are in z-order; use output_order='z'.")
        return distr_fof_labels(part, rlink, boxsize, cfg, th, linearize_labels=True)
    cfg = checked_config(cfg, FofConfig)
    check_hierarchy(th)
    partz, index, label = _labels(part, rlink, boxsize, cfg, th, output_order == "input")
    return (part if output_order == "input" or index is None else partz), label


@with_twins(_SPECS, P(-1), prepare=_exact_arguments)
@with_computed
def distr_fof_labels(
    part: Any,
    rlink: Any,
    boxsize: Any = 0.0,
    cfg: FofConfig | None = None,
    th: TreeHierarchy | None = None,
    linearize_labels: bool = False,
) -> tuple[Any, Any]:
    """Label the particles of all devices with their friends-of-friends groups. For use inside `jax.shard_map`.

    part: this device's particles, as in `fof_labels`.
    rlink, boxsize: as in `fof_labels`.
    th: a hierarchy from `jztree.tree.zsort_and_tree` over the devices; ``part`` is then the particles that it returned.
    linearize_labels: number groups by the row of their first particle in the joined set of all devices.

    Returns this device's range of the z-order of all particles, and their `jztree.data.Label`: the rank and row of the
    group's first particle in z-order; with ``linearize_labels``, ``(n,)`` int32, its row in the joined set. Rows from
    ``num`` on are groups of their own. Works on one device too.

    Raises like `fof_labels`, on every device; and if there are 2**31 particles or more to be numbered.
    """
    cfg = checked_config(cfg, FofConfig)
    check_hierarchy(th)
    box = check_box(boxsize, check_particles(part, max_dims=_MAX_DIMS).shape[1])
    length = check_length(rlink, box, "rlink")
    check_num(part)
    if comm.num_ranks() == 1:
        partz, _, rows = _labels(part, length, box, cfg, th, False)
        return partz, rows if linearize_labels else Label(jnp.zeros_like(rows), rows)
    partz, groups = groups_over_ranks(part, length, box, cfg, th is not None)
    return partz, groups.joined_labels() if linearize_labels else groups.labels()


@with_twins(_SPECS | {"attached": P(-1), "attach_within": P()}, P(-1), prepare=_exact_arguments)
@with_computed
def fof_and_catalogue(
    part: Any,
    rlink: Any,
    boxsize: Any = 0.0,
    cfg: FofConfig | None = None,
    th: TreeHierarchy | None = None,
    attached: Any = None,
    attach_within: Any = ATTACH_WITHIN,
) -> tuple[Any, FofCatalogue]:
    """Find friends-of-friends groups and what they are: mass, centre, velocity, sizes.

    part: as in `fof_labels`; ``mass``, ``(n,)`` or a number that all share, and ``vel``, ``(n, d)``, are used if there;
        so are ``v_rad`` and ``zplus1``, ``(n,)``, of a light cone: the velocity along the line of sight, and 1 + z.
    rlink, boxsize, th: as in `fof_labels`.
    cfg: ``cfg.catalogue.npart_min`` is the smallest number of particles that makes a catalogue row, and
        ``cfg.catalogue.means`` names further properties, ``(n, ...)``, that groups are to have the mean of.
    attached: particles of another type, or a sequence with one entry a type, of the same class as ``part`` and with the
        same properties; or None. They link nothing; each joins the group of the nearest of ``part`` (Dolag et al. 2009,
        MNRAS 399, 497), counts in it and is part of all its sums. A property of the user's own can tell types apart in
        what is returned.
    attach_within: how far from it that may be, in linking lengths; None is no limit. By default what Gadget-4 has for
        particles without a smoothing length. The distance is the one that `jztree.knn.knn` gives, in the dtype of the
        positions. One that is farther from all is in no group but one of its own, which ``npart_min=1`` lists.

    Returns the particles in group order and the `FofCatalogue`. Groups come in the order of their first particles in
    z-order; within a group, and behind the last one for those in no listed group, particles are in z-order. So the
    particles of group ``i`` are the rows ``offset[i]`` to ``offset[i] + count[i]``.

    Over several devices, each of which owns a range of the z-order, group order is device by device: first the groups
    whose first particle in z-order the first device owns, wherever the others are, and behind them its particles in no
    listed group; then those of the second device, and so on. Particles are dealt out in equal shares of that order. So
    a device may begin with the end of a group, and groups and particles of none may take turns on it. A catalogue row
    is on the device that then holds the group's first particle; rows are in the same order as on one device. A group
    is one run of rows of all devices joined, and may go on on the devices after its first.

    With ``attached`` there are as many rows as were given in all (over several devices, as many as are needed), and
    particles of ``part`` come before attached ones in each group (over several devices: in each device's share of it).
    Attached ones that ``npart_min=1`` lists as groups of their own come behind all other groups, in the order in which
    they were given (over several devices: those of each device behind the groups that it owns).

    Raises like `fof_labels`, and TypeError or ValueError if ``attached`` is of another kind than ``part``. Raises an
    error at run time, on every device, if a mass is negative, NaN or infinite, or a velocity NaN or infinite, with its
    row; or if the mass or the angular momentum of a group is beyond the range of its dtype.
    """
    cfg = checked_config(cfg, FofConfig)
    check_hierarchy(th)
    box = check_box(boxsize, check_particles(part, max_dims=_MAX_DIMS).shape[1])
    others = sequence_of(attached)
    length = check_length(rlink, box, "rlink")
    limit = attach_limit(attach_within, length) if others else None
    check_num(part)
    faults = particle_faults(part, cfg.catalogue) + _attached_faults(part, others, cfg)
    if comm.num_ranks() > 1:
        if others:
            check_countable(part, "devices have room for more attached particles than come")
        partz, groups = groups_over_ranks(part, length, box, cfg, th is not None, faults)
        num, where = groups.num, groups.labels()
        if others:
            partz, num, where = attach_over_ranks(partz, num, where, others, box, limit, cfg)
        return group_and_catalogue(partz, num, where.irank, where.igroup, cfg.catalogue, box)
    partz, _, label = _labels(part, length, box, cfg, th, False, faults)
    if others:
        partz, label = attach(partz, label, others, box, limit, cfg)
    order, ngroups, count, offset = kernels.group_order(label, get_num(partz), cfg.catalogue.npart_min)
    grouped = permute_particles(partz, order)
    segments = (ngroups, count, offset)

    def sums_of(columns: Columns) -> tuple[Any, Any]:
        sums = kernels.catalogue(*columns, *segments, box)
        return segments, of_groups(sums, columns, box, segments, get_num(grouped))

    return grouped, make_catalogue(grouped, sums_of, cfg.catalogue)


def _attached_faults(part: Any, attached: Sequence[Any], cfg: FofConfig) -> list[comm.Fault]:
    """What only a run can find wrong in particles of other types. Raises at once what is wrong with their kind."""
    faults: list[comm.Fault] = []
    for i, one in enumerate(attached):
        check_particles(one, "attached positions")
        check_num(one, "num of attached")
        check_attached(part, one)
        faults += corners_of(get_pos(one), get_num(one), f"the positions of attached[{i}]")[1]
        faults += particle_faults(one, cfg.catalogue, f" of attached[{i}]")
    return faults


def _labels(
    part: Any,
    rlink: Any,
    boxsize: Any,
    cfg: FofConfig,
    th: TreeHierarchy | None,
    input_order: bool,
    faults: Sequence[comm.Fault] = (),
) -> tuple[Any, jax.Array | None, jax.Array]:
    """Particles in z-order, the rows they came from (None if they came so), and labels in input order or z-order.

    faults: what may be wrong besides what is found out here, to be found out in the same check.
    """
    pos = check_particles(part, max_dims=_MAX_DIMS)
    num = check_num(part)
    box = check_box(boxsize, pos.shape[1])
    length = check_length(rlink, box, "rlink")
    if pos.shape[0] == 0 and not is_concrete((rlink, boxsize)):
        kernels.check_lengths(box, length, "the linking length rlink")
    partz, index = part, None
    if th is None:
        partz, index, num, th, _ = sort_and_build(part, cfg.tree, box, faults)
    else:
        num = check_belongs(part, num, th, box, faults)
    tree = kernel_tree(partz, num, th)
    return partz, index, kernels.fof(tree, index if input_order else None, length, box)


def fof_is_superset(igroup_sup: Any, igroup: Any, mask: Any = None) -> jax.Array:
    """Whether every group of ``igroup`` lies inside one group of ``igroup_sup``.

    igroup_sup, igroup: ``(n,)`` integer labels of the same particles in the same order, any integers.
    mask: ``(n,)`` bool, the particles to look at; None means all.

    Returns a bool scalar. The partitions are equal if each is a superset of the other. Raises TypeError for labels that
    are no integers, and ValueError if shapes differ.
    """
    check_carried({"igroup_sup": igroup_sup, "igroup": igroup})
    a, b = jnp.asarray(igroup_sup), jnp.asarray(igroup)
    if a.ndim != 1 or a.shape != b.shape or (mask is not None and np.shape(mask) != a.shape):
        raise ValueError(
            f"labels and mask must have one shape (n,); theirs are {a.shape}, {b.shape}, {np.shape(mask)}."
        )
    for labels in (a, b):
        if not jnp.issubdtype(labels.dtype, jnp.integer):
            raise TypeError(f"labels must be integers, not {labels.dtype}.")
    looked = jnp.ones(a.shape, bool) if mask is None else jnp.asarray(mask, bool)
    # Particles of a group follow each other, those that are not looked at last.
    order = jnp.lexsort((a, b, ~looked))
    a, b, looked = a[order], b[order], looked[order]
    return jnp.all((a[1:] == a[:-1]) | (b[1:] != b[:-1]) | ~looked[1:])
