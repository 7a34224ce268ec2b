"""Friends-of-friends groups in phase space: positions and scaled velocities are the coordinates of one search.

Velocities are scaled so that their linking length is that of the positions. The search has twice as many dimensions as
space, and is open along velocities. With velocities in units of the dispersion of each group, a first search finds the
groups in space (`_dispersions`).
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from ..arguments import (
    Kind,
    Radii,
    box_of,
    check_box,
    check_length,
    check_particles,
    check_real_dtype,
    farthest,
    farthest_number,
    flat,
    rows_fault,
    velocity_faults,
)
from ..config import FofConfig
from ..jax_ext import Exact, exact_to_float, is_concrete
from ..particles import ComputedParticles, Index, Particles, check_num, check_representable
from ..tree.stage import InputParticles, opened
from ._dispersions import in_dispersions
from ._group_order import (
    CATALOGUE_DIMS,
    Groups,
    config_of_groups,
    group_and_catalogue,
    groups_of,
    particle_faults,
    sort_by_group,
)
from ._search import Search

_BAD_RATIO = (
    "rlink divided by vlink is not in the range of {}; both must be above 0, in units that keep their ratio in this "
    "range."
)
_SMALLER = (
    "group_rlink{} is smaller than rlink{}, so that groups in phase space could continue outside of their group in "
    "space; use a group_rlink of at least rlink."
)
_TOO_FAST = (
    "row {0} has a velocity that is larger than %s times vlink over rlink; choose another unit of length, or a larger "
    "vlink."
)


def _positive_length(name: str) -> Kind:
    return Kind(P(), lambda length, arguments: _check_positive(length, box_of(arguments), name))


def _check_positive(length: Any, box: Exact, name: str) -> Exact:
    """Return a length as an exact number. `_Arguments` checks at run time whether a traced one is 0."""
    checked = check_length(length, box, name)
    if is_concrete(checked) and not exact_to_float(checked) > 0:
        raise ValueError(f"{name} is {exact_to_float(checked):g}; it must be above 0.")
    return checked


def _check_group_rlink(group_rlink: Any, rlink: ArrayLike, box: Exact) -> Exact | None:
    """Return the linking length in space. `_Arguments` checks at run time whether a traced one is too small."""
    if group_rlink is None:
        return None
    checked = check_length(group_rlink, box, "group_rlink")
    if is_concrete((checked, rlink)):
        both = exact_to_float(checked), exact_to_float(check_length(rlink, check_box(None, 1), "rlink"))
        if both[0] < both[1]:
            raise ValueError(_SMALLER.format(*(f" {length:g}" for length in both)))
    return checked


_READ: dict[str, Any] = {
    "rlink": _positive_length("rlink"),
    "vlink": _positive_length("vlink"),
    "group_rlink": Kind(
        P(), lambda length, arguments: _check_group_rlink(length, arguments["rlink"], box_of(arguments))
    ),
}


@flat(**_READ)
def phase_space_labels(
    part: Particles | Index,
    rlink: ArrayLike,
    vlink: ArrayLike,
    *,
    boxsize: ArrayLike | None = None,
    group_rlink: ArrayLike | None = None,
    cfg: FofConfig | None = None,
) -> jax.Array:
    """Label every particle with its friends-of-friends group in phase space, in the order of the particles.

    Two particles at the distance ``dx`` with the velocity difference ``dv`` are linked if

        ``(dx / rlink)**2 + (dv / vlink)**2 <= 1``

    (Diemand, Kuhlen & Madau 2006, ApJ 649, 1). A group is a set of particles that are linked directly or through
    others. So streams and subhaloes that overlap in space are separate groups if their velocities differ.

    With ``group_rlink``, ``vlink`` is a number without a unit. The groups in space with the linking length
    ``group_rlink`` are found first. In each group, velocity differences are divided by the velocity dispersion of the
    group, so that one ``vlink`` suits cold and hot haloes. Particles of different groups in space are never linked.
    This is the first step of Rockstar (Behroozi, Wechsler & Wu 2013, ApJ 762, 109), which also scales positions. The
    dispersion is one-dimensional, like ``vel_dispersion`` of `jztree.data.FofCatalogue`. If it is 0, all velocities in
    the group are equal. On several devices, dispersions may differ by rounding.

    Velocities, multiplied by ``rlink / vlink``, are rounded to the dtype of the positions. From these numbers and the
    given positions, the comparison is made in float64.

    The search sorts positions and velocities together, so an index saves no time here.

    Args:
        part: The particles: a class with ``pos`` and ``vel``, both ``(n, d)``, d from 1 to 4; positions are float32 or
            float64; or a `jztree.Index` of such a class. With ``group_rlink``, ``mass`` is used if present.
        rlink: The linking length, in the unit of the positions, above 0. Equal on all ranks.
        vlink: The linking length of velocities, in the unit of the velocities, or with ``group_rlink`` in velocity
            dispersions; above 0. Equal on all ranks.
        boxsize: The periodic length of positions, or one per dimension; None means open. Positions outside the box are
            wrapped. Equal on all ranks. An index has its own box.
        group_rlink: The linking length of groups in space, at least ``rlink``. Equal on all ranks. None means that
            velocities are compared in their unit.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(n,)`` int32 labels: the smallest row of each row's group, so ``label[label] == label``. On several devices,
        labels are rows of the particles joined over devices, without padding. The rows from ``num`` on are padding:
        each is a separate group, or -1 on several devices.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, or if ``part`` has no velocities.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or a velocity is NaN,
            infinite or out of range, or if a traced length is invalid.
        CapacityError: On several devices, if ghosts or links do not fit the capacities in ``cfg``.

    Examples:
        >>> pos, vel = np.zeros((4, 1), np.float32), np.array([[0.0], [100.0], [10.0], [110.0]], np.float32)
        >>> part = jz.data.ParticleData(pos=pos, vel=vel)  # two streams at one place
        >>> jz.phase_space_labels(part, 0.1, 20.0)
        Array([0, 1, 0, 1], dtype=int32)
    """
    cfg = checked_config(cfg, FofConfig)
    search, faults = _parsed(part, rlink, vlink, boxsize, group_rlink).search(cfg)
    return search.labels_in_input_order(cfg, faults)


@flat(**_READ)
def phase_space_groups(
    part: Particles | Index,
    rlink: ArrayLike,
    vlink: ArrayLike,
    *,
    boxsize: ArrayLike | None = None,
    npart_min: int | None = None,
    group_rlink: ArrayLike | None = None,
    cfg: FofConfig | None = None,
) -> Groups:
    """Find friends-of-friends groups in phase space and their properties: mass, centre, velocity, sizes.

    The groups are the groups of `jztree.phase_space_labels`. Particles and catalogue have the order of
    `jztree.friends_of_friends`, in the z-order of phase space instead of space: in the returned particles, group ``i``
    has the rows ``offset[i]`` to ``offset[i] + count[i]`` (exclusive). On one device, the largest group is first, and a
    plain call returns a catalogue of exactly as many rows as there are groups.

    Args:
        part: The particles: a class with ``pos`` and ``vel``, both ``(n, d)``, d from 1 to 4; positions are float32 or
            float64; or a `jztree.Index` of such a class. Optional properties are used if present: ``mass``, ``(n,)`` or
            a number shared by all particles; and for a light cone ``v_rad`` and ``zplus1``, ``(n,)``, the velocity
            along the line of sight and 1 + z.
        rlink: The linking length, in the unit of the positions, above 0. Equal on all ranks.
        vlink: The linking length of velocities, in the unit of the velocities, or with ``group_rlink`` in velocity
            dispersions; above 0. Equal on all ranks.
        boxsize: The periodic length of positions, or one per dimension; None means open. Positions outside the box are
            wrapped. Equal on all ranks. An index has its own box.
        npart_min: The smallest number of particles of a listed group. None means ``cfg.catalogue.npart_min``, by
            default 20.
        group_rlink: The linking length of groups in space, at least ``rlink``. Equal on all ranks. None means that
            velocities are compared in their unit.
        cfg: Options, equal on all ranks. None means the defaults. ``cfg.catalogue.means`` names further properties,
            ``(n, ...)``, to average over each group.

    Returns:
        `Groups`: the particles in group order, and the `jztree.data.FofCatalogue`. Columns have the units of the
        particles.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, or if ``part`` has no velocities.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or a velocity is NaN,
            infinite or out of range, a mass is negative, NaN or infinite, a traced length is invalid, or the mass or
            the angular momentum of a group is out of range of its dtype.
        CapacityError: On several devices, if rows do not fit the capacities in ``cfg``.

    Examples:
        >>> pos, vel = np.zeros((5, 1), np.float32), np.array([[0], [100], [10], [110], [15]], np.float32)
        >>> part = jz.data.ParticleData(pos=pos, vel=vel)  # two streams at one place
        >>> particles, catalogue = jz.phase_space_groups(part, 0.1, 20.0, npart_min=2)
        >>> catalogue.count, catalogue.com_vel[:, 0]
        (array([3, 2], dtype=int32), array([  8.333333, 105.      ], dtype=float32))
    """
    cfg = config_of_groups(cfg, npart_min)
    arguments = _parsed(part, rlink, vlink, boxsize, group_rlink)
    of_particles = particle_faults(arguments.part, cfg.catalogue)
    search, faults = arguments.search(cfg)
    stage = search.stage(cfg, [*of_particles, *faults])
    partz, options, box = stage.sources.part.part, cfg.catalogue, arguments.box
    if not stage.is_distributed:
        return groups_of(*sort_by_group(partz, search.labels(stage), options, box))
    groups = search.groups(stage, cfg)
    where = groups.labels()
    return groups_of(*group_and_catalogue(partz, groups.num, where.irank, where.igroup, options, box))


@dataclass
class _Arguments:
    """The arguments of a search in phase space, parsed.

    Attributes:
        part: Particles.
        pos: Positions ``(n, d)``.
        vel: Velocities ``(n, d)``.
        num: Number of rows that hold particles.
        rlink: Linking length of positions.
        vlink: Linking length of velocities.
        group_rlink: Linking length of groups in space, or None.
        box: Periodic box of positions.
    """

    part: Any
    pos: jax.Array
    vel: jax.Array
    num: int | jax.Array
    rlink: Exact
    vlink: Exact
    group_rlink: Exact | None
    box: Exact

    def search(self, cfg: FofConfig) -> tuple[Search, Sequence[comm.Fault]]:
        """Return the search among positions and scaled velocities, and faults to check in it."""
        vel, num, faults = self.vel, self.num, self._faults()
        if self.group_rlink is not None:
            search = self.group_rlink, self.box, cfg
            vel, num = in_dispersions(self.part, self.pos, vel, num, search, faults)
            faults = []
        scaled = (vel * self._factor().astype(vel.dtype)).astype(self.pos.dtype)
        _, _, first, number = kernels.bounds(scaled, num)
        faults = [*faults, rows_fault(first, number, _TOO_FAST % farthest(scaled.dtype))]
        carried = ComputedParticles(self.part, {"pos": _in_phase_space(self.pos, scaled)})
        sources = InputParticles(carried, num, needs_origin=False)
        return Search(sources, Radii(self.rlink, None), _with_open_dimensions(self.box)), faults

    def _factor(self) -> jax.Array:
        """Return the unit of velocities in that of positions."""
        return _number(self.rlink) / _number(self.vlink)

    def _faults(self) -> list[comm.Fault]:
        faults = velocity_faults(self.vel, self.num)
        factor, kind = self._factor(), jnp.finfo(self.vel.dtype)
        faults.append(
            comm.Fault(_is_outside(factor, float(kind.tiny), float(kind.max)), [], _BAD_RATIO.format(self.vel.dtype))
        )
        if self.group_rlink is not None and not is_concrete((self.rlink, self.group_rlink)):
            faults.append(comm.Fault(_number(self.group_rlink) < _number(self.rlink), [], _SMALLER.format("", "")))
        return faults


@functools.partial(jax.jit, inline=True)
def _in_phase_space(pos: jax.Array, scaled: jax.Array) -> jax.Array:
    """Join positions and scaled velocities; 0 if these are too large, because the check of positions must not report
    velocities.
    """
    scaled = jnp.where(jnp.abs(scaled) <= farthest_number(scaled.dtype), scaled, 0)
    return jnp.concatenate([pos, scaled], axis=1)


@functools.partial(jax.jit, inline=True)
def _is_outside(number: jax.Array, smallest: float, largest: float) -> jax.Array:
    return ~((number >= smallest) & (number <= largest))


def _parsed(
    part: Particles | Index | ArrayLike, rlink: ArrayLike, vlink: Any, boxsize: ArrayLike | None, group_rlink: Any
) -> _Arguments:
    """Raise TypeError or ValueError if an argument is invalid."""
    part, boxsize, _ = opened(part, boxsize)
    pos = check_particles(part, max_dims=CATALOGUE_DIMS)
    box = check_box(boxsize, pos.shape[1])
    length, of_groups = _check_positive(rlink, box, "rlink"), _check_group_rlink(group_rlink, rlink, box)
    # Groups are constant: they have no derivatives.
    pos, vel = jax.lax.stop_gradient((pos, _velocities(part, pos)))
    return _Arguments(part, pos, vel, check_num(part), length, _check_positive(vlink, box, "vlink"), of_groups, box)


def _velocities(part: Particles | Index | ArrayLike, pos: jax.Array) -> jax.Array:
    vel = getattr(part, "vel", None)
    if vel is None:
        raise ValueError(
            f"groups in phase space need velocities, but {type(part).__name__} has none; pass a class with vel, such "
            "as jztree.data.ParticleData(pos=..., vel=...)."
        )
    check_real_dtype(vel, "velocities")
    check_representable({"vel": vel})
    vel = jnp.asarray(vel)
    if vel.shape != pos.shape:
        raise ValueError(f"velocities must have the shape of the positions, {pos.shape}; theirs is {vel.shape}.")
    return vel if vel.dtype in (jnp.float32, jnp.float64) else vel.astype(pos.dtype)


def _number(length: Exact) -> jax.Array:
    """Return a length in the widest float of JAX, the same for concrete and for traced lengths."""
    return jnp.asarray(exact_to_float(length), jax.dtypes.canonicalize_dtype(np.float64))


def _with_open_dimensions(box: Exact) -> Exact:
    """Return a box with as many open dimensions in addition."""
    library = np if is_concrete(box) else jnp
    return Exact(library.concatenate([box.words, library.zeros_like(box.words)]))
