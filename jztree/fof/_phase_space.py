"""Friends-of-friends groups in phase space: positions and scaled velocities are the coordinates of one search.

Velocities are scaled so that their linking length is that of the positions. The search has twice as many dimensions as
space, and is open along velocities. With velocities in units of the dispersion of each group, a first search finds the
groups in space (`_dispersions`).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import (
    Radii,
    check_box,
    check_length,
    check_particles,
    check_real_dtype,
    check_word,
    exact_box_argument,
    farthest,
    farthest_number,
    rows_fault,
    velocity_faults,
)
from ..config import FofConfig, checked_config
from ..data import FofCatalogue, with_computed
from ..jax_ext import Exact, exact_to_float, is_concrete, with_twins
from ..particles import ComputedParticles, Particles, check_num, check_representable
from ..tree.stage import InputParticles
from ._dispersions import in_dispersions
from ._group_order import CATALOGUE_DIMS, group_and_catalogue, particle_faults, sort_by_group
from ._search import Search

_SPECS = {"part": P(-1), "rlink": P(), "vlink": P(), "boxsize": P(), "group_rlink": P()}
_LENGTHS = ("rlink", "vlink", "group_rlink")
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


def _exact_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    found = exact_box_argument(arguments)
    return found | _check_lengths({name: arguments[name] for name in _LENGTHS}, found["boxsize"])


@with_twins(_SPECS, P(-1), prepare=_exact_arguments)
@with_computed
def phase_space_labels(
    part: Particles,
    rlink: ArrayLike,
    vlink: ArrayLike,
    boxsize: ArrayLike | None = None,
    group_rlink: ArrayLike | None = None,
    cfg: FofConfig | None = None,
    output_order: str = "z",
) -> tuple[Any, jax.Array]:
    """Label every particle with its friends-of-friends group in phase space.

    Two particles at the distance ``dx`` with the velocity difference ``dv`` are linked if

        ``(dx / rlink)**2 + (dv / vlink)**2 <= 1``

    (Diemand, Kuhlen & Madau 2006, ApJ 649, 1). A group is a set of particles that are linked directly or through
    others. So streams and subhaloes that overlap in space are separate groups if their velocities differ.

    With ``group_rlink``, ``vlink`` is a number without a unit. The groups in space with the linking length
    ``group_rlink`` are found first. In each of them, velocity differences are divided by the velocity dispersion of
    this group, so that one ``vlink`` suits cold and hot haloes. Particles of different groups in space are never
    linked. This is the first step of Rockstar (Behroozi, Wechsler & Wu 2013, ApJ 762, 109), which also scales
    positions. The dispersion is one-dimensional, as in the catalogue (``vel_dispersion`` of
    `jztree.data.FofCatalogue`). If it is 0, all velocities in the group are equal. On several devices, dispersions
    may differ by rounding.

    Velocities, multiplied by ``rlink / vlink``, are rounded to the dtype of the positions. From these numbers and the
    given positions, the comparison is made in float64.

    Args:
        part: A particle class with ``pos`` and ``vel``, both ``(n, d)``, d from 1 to 4; positions are float32 or
            float64. With ``group_rlink``, ``mass`` is used if present.
        rlink: The linking length, in the unit of the positions, above 0. Equal on all ranks.
        vlink: The linking length of velocities, in the unit of the velocities, or with ``group_rlink`` in velocity
            dispersions; above 0. Equal on all ranks.
        boxsize: The periodic length of positions, or one per dimension; 0 or None means open. Positions outside the box
            are wrapped. Equal on all ranks.
        group_rlink: The linking length of groups in space, at least ``rlink``. Equal on all ranks. None means that
            velocities are compared in their unit.
        cfg: Options, equal on all ranks. None means the defaults.
        output_order: The order of the returned rows: ``"z"`` for the z-order of phase space, or ``"input"`` for the
            order of ``part``.

    Returns:
        The particles in that order, and ``(n,)`` int32 labels, as from `fof_labels`.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, or if ``part`` has no velocities.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or a velocity is NaN,
            infinite or out of range, or if a traced length is invalid.
        CapacityError: On several devices, if ghosts or links do not fit the capacities in ``cfg``.
    """
    check_word(output_order, "output_order", ("z", "input"))
    cfg = checked_config(cfg, FofConfig)
    arguments = _parsed(part, rlink, vlink, boxsize, group_rlink)
    search, faults = arguments.search(cfg)
    if output_order == "input":
        return part, search.labels_in_input_order(cfg, faults)
    found, label = search.labels_in_z_order(cfg, faults)
    return found.part, label


@with_twins(_SPECS, P(-1), prepare=_exact_arguments)
@with_computed
def phase_space_and_catalogue(
    part: Particles,
    rlink: ArrayLike,
    vlink: ArrayLike,
    boxsize: ArrayLike | None = None,
    group_rlink: ArrayLike | None = None,
    cfg: FofConfig | None = None,
) -> tuple[Any, FofCatalogue]:
    """Find friends-of-friends groups in phase space and their properties: mass, centre, velocity, sizes.

    The groups are those of `phase_space_labels`. Their order and catalogue are those of `fof_and_catalogue`, in the
    z-order of phase space instead of space.

    Args:
        part: See `phase_space_labels`, and for optional properties `fof_and_catalogue`.
        rlink: See `phase_space_labels`.
        vlink: See `phase_space_labels`.
        boxsize: See `phase_space_labels`.
        group_rlink: See `phase_space_labels`.
        cfg: See `fof_and_catalogue`.

    Returns:
        The particles in group order, and the `FofCatalogue`; see `fof_and_catalogue`.

    Raises:
        TypeError: See `phase_space_labels`.
        ValueError: See `phase_space_labels`.
        ValueError or jax.errors.JaxRuntimeError: At run time; see `phase_space_labels` and `fof_and_catalogue`.
        CapacityError: On several devices, if rows do not fit the capacities in ``cfg``.
    """
    cfg = checked_config(cfg, FofConfig)
    arguments = _parsed(part, rlink, vlink, boxsize, group_rlink)
    known = particle_faults(part, cfg.catalogue)
    search, faults = arguments.search(cfg)
    stage = search.stage(cfg, [*known, *faults])
    partz = stage.sources.part.part
    if stage.is_distributed:
        groups = search.groups(stage, cfg)
        where = groups.labels()
        return group_and_catalogue(partz, groups.num, where.irank, where.igroup, cfg.catalogue, arguments.box)
    return sort_by_group(partz, search.labels(stage), cfg.catalogue, arguments.box)


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
    num: Any
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
        # The check of positions must not report velocities.
        scaled = jnp.where(jnp.abs(scaled) <= farthest_number(scaled.dtype), scaled, 0)
        carried = ComputedParticles(self.part, {"pos": jnp.concatenate([self.pos, scaled], axis=1)})
        given = InputParticles(carried, num, needs_origin=False)
        return Search(given, Radii(self.rlink, None), _with_open_dimensions(self.box)), faults

    def _factor(self) -> jax.Array:
        """Return the unit of velocities in that of positions."""
        return _number(self.rlink) / _number(self.vlink)

    def _faults(self) -> list[comm.Fault]:
        faults = velocity_faults(self.vel, self.num)
        factor, kind = self._factor(), jnp.finfo(self.vel.dtype)
        failed = ~((factor >= float(kind.tiny)) & (factor <= float(kind.max)))
        faults.append(comm.Fault(failed, [], _BAD_RATIO.format(self.vel.dtype)))
        if self.group_rlink is not None and not is_concrete((self.rlink, self.group_rlink)):
            faults.append(comm.Fault(_number(self.group_rlink) < _number(self.rlink), [], _SMALLER.format("", "")))
        return faults


def _parsed(part: Any, rlink: Any, vlink: Any, boxsize: Any, group_rlink: Any) -> _Arguments:
    """Raise TypeError or ValueError if an argument is invalid."""
    pos = check_particles(part, max_dims=CATALOGUE_DIMS)
    box = check_box(boxsize, pos.shape[1])
    lengths = _check_lengths(dict(zip(_LENGTHS, (rlink, vlink, group_rlink), strict=True)), box)
    # Groups are constant: they have no derivatives.
    pos, vel = jax.lax.stop_gradient((pos, _velocities(part, pos)))
    return _Arguments(part, pos, vel, check_num(part), **lengths, box=box)


def _check_lengths(given: dict[str, Any], box: Exact) -> dict[str, Any]:
    """Return lengths as exact numbers. `_Arguments` checks those that are traced at run time."""
    lengths: dict[str, Any] = {
        name: None if one is None and name == "group_rlink" else check_length(one, box, name)
        for name, one in given.items()
    }
    for name in ("rlink", "vlink"):
        if is_concrete(lengths[name]) and not exact_to_float(lengths[name]) > 0:
            raise ValueError(f"{name} is {exact_to_float(lengths[name]):g}; it must be above 0.")
    rlink, group_rlink = lengths["rlink"], lengths["group_rlink"]
    if group_rlink is not None and is_concrete((rlink, group_rlink)):
        both = exact_to_float(group_rlink), exact_to_float(rlink)
        if both[0] < both[1]:
            raise ValueError(_SMALLER.format(*(f" {length:g}" for length in both)))
    return lengths


def _velocities(part: Any, pos: jax.Array) -> jax.Array:
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
