"""Properties of the particles in spheres, computed by the sums that the group catalogue uses."""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.pytrees import pytree
from ..arguments import (
    Kind,
    at_least_normal,
    check_in_range,
    check_real_dtype,
    common_dtype,
    first_row,
    flat,
    velocity_faults,
)
from ..config import OverdensityConfig, without_masses
from ..data import ParticleData
from ..jax_ext import Exact
from ..particles import Array, Index, Particles, check_representable, particles_of
from ..tree.stage import InputParticles, Stage, prepare_stage
from ._arguments import faults_of_masses, read_spheres
from ._spheres import widest_sphere

_SMALLEST = 1.5e-154  # radius whose square float64 holds with all digits
_TOO_WIDE = (
    "the radius in row {0} is infinite or above half the smallest periodic length, so the sphere would overlap its "
    "periodic images; use smaller radii, or boxsize=0."
)


@pytree
class SphereProperties:
    """Properties of the particles in ``q`` spheres; see `sphere_properties`.

    The columns have the names of `jztree.data.FofCatalogue`, for the particles in a sphere instead of a group. The
    functions of `jztree.halos` that process a catalogue row by row therefore accept these spheres also. Units are those
    of the particles. `jztree.halos.DEFINITIONS` has the formulae.

    Attributes:
        ngroups: int32, the number of rows with centres; the other rows are 0.
        count: ``(q,)`` int32, number of particles.
        mass: ``(q,)``, sum of the masses.
        com_pos: ``(q, d)``, centre of mass.
        com_inertia_radius: ``(q,)``, root-mean-square distance of the particles from the centre of mass, weighted by
            mass.
        max_radius: ``(q,)``, largest distance of a particle from the centre of mass.
        shape_tensor: ``(q, d, d)``, inertia tensor about the centre of mass, divided by its trace.
        com_vel: ``(q, d)``, mass-weighted mean velocity, or None if particles have no velocities.
        vel_dispersion: ``(q,)``, one-dimensional dispersion relative to ``com_vel``, or None if particles have no
            velocities.
        angular_momentum: ``(q, d * (d - 1) / 2)``, mass-weighted mean of x cross v about the centre of mass, relative
            to ``com_vel``. None in 1D, or if particles have no velocities.
    """

    ngroups: int | jax.Array
    count: jax.Array
    com_pos: jax.Array
    com_inertia_radius: jax.Array
    max_radius: jax.Array
    mass: jax.Array
    com_vel: jax.Array | None
    vel_dispersion: jax.Array | None
    shape_tensor: jax.Array
    angular_momentum: jax.Array | None


@flat(radius=Kind(P(-1)))
def sphere_properties(
    part: Particles | Index | Array,
    radius: Array,
    *,
    queries: Particles | Array,
    boxsize: ArrayLike | None = None,
    cfg: OverdensityConfig | None = None,
) -> SphereProperties:
    """Compute mass, centre, velocity, dispersion, shape and angular momentum of the particles in spheres.

    A particle is in the sphere if the distance from the centre to its nearest image, computed in float64, is at most
    the radius. All sums are over these particles, regardless of their groups. Dispersion and angular momentum use
    velocities relative to the mass-weighted mean in the sphere, and positions relative to the centre of mass. The
    angular momentum is therefore the same about any point.

    The function adds no Hubble flow to the velocities: if they are peculiar, so is the dispersion. The angular momentum
    would not change, because the Hubble flow moves particles along ``x``.

    If the radius is 0 or negative, the sphere does not exist, and every column is 0. If it is NaN (as returned by
    `spherical_overdensity` for a sphere that reaches half the box), every column is NaN, and the count is -1.

    Sums are computed in float64. They include the same particles on any number of devices. On GPUs, and over several
    GPUs, they may differ in the last bits of float64. The results have no derivatives: differentiating raises an error.

    Args:
        part: All matter, not only the particles of groups: a particle class with ``pos`` ``(n, d)``, d from 1 to 4,
            float32 or float64; an array of positions; or a `jztree.Index` of either. ``mass`` may be ``(n,)`` or one
            number for all particles. Without it, the mass of every particle is 1. With ``vel``, ``(n, d)``, the result
            has the properties that need velocities.
        radius: ``(q,)``, one per sphere, for example from `spherical_overdensity`.
        queries: The centres, ``(q, d)`` positions of the same dtype, or a particle class; results are 0 in its rows
            from ``num`` on.
        boxsize: The periodic length, or one per dimension; None means open. Equal on all ranks. An index has its own
            box.
        cfg: Options, equal on all ranks. None means the defaults. ``cfg.npart_min`` has no effect here.

    Returns:
        The properties, one row per centre, in the order of the centres.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, a mass
            is negative, NaN or infinite, a velocity is NaN or infinite, a radius is above half the smallest periodic
            length, or a result or the square of a radius exceeds the range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> x = np.linspace(-1, 1, 21, dtype=np.float32)  # a line of particles of mass 1, 0.1 apart
        >>> sphere = jz.sphere_properties(x[:, None], np.array([0.55]), queries=np.zeros((1, 1), np.float32))
        >>> sphere.mass, sphere.count
        (Array([11.], dtype=float32), Array([11], dtype=int32))
    """
    cfg = without_masses(checked_config(cfg, OverdensityConfig))
    source_set, centres, box = read_spheres(part, boxsize, queries)
    part, num = particles_of(part), kernels.as_num(centres.num)
    radii, faults = _check_radii(radius, centres, box)
    faults += faults_of_masses(source_set)
    moving, motion_faults = _with_velocities(part, source_set)
    sources = replace(source_set, part=moving)
    spheres = replace(centres, data=jnp.where(jnp.isnan(radii), 0, radii))
    stage = prepare_stage(sources, spheres, box, cfg, "overdensity_ghosts", faults + motion_faults)
    marked = [_marked(column, radii) for column in _sums(stage)]
    return _named(num, radii, marked, source_set.dims, getattr(part, "vel", None) is not None)


def _check_radii(radius: ArrayLike, centres: InputParticles, box: Exact) -> tuple[jax.Array, list[comm.Fault]]:
    """Return ``radius``, ``(q,)`` in the dtype of the positions and 0 in rows without a centre, and its faults."""
    check_representable({"radius": radius})
    check_real_dtype(radius, "radius")
    if np.shape(radius) != (centres.num_rows,):
        raise ValueError(
            f"radius must have one number per centre, shape ({centres.num_rows},); its shape is {np.shape(radius)}."
        )
    dtype = centres.pos.dtype
    used = jnp.arange(centres.pos.shape[0], dtype=jnp.int32) < centres.num
    radii = jnp.where(used, jnp.asarray(radius, dtype), 0)
    row = first_row((radii > widest_sphere(box, dtype)) | jnp.isinf(radii))
    return radii, [comm.Fault(row >= 0, [row], _TOO_WIDE)]


def _with_velocities(part: Any, sources: InputParticles) -> tuple[ParticleData, list[comm.Fault]]:
    """Return particles with velocities, and their faults. Without velocities, the array is ``(0, d)``."""
    pos, vel = sources.pos, getattr(part, "vel", None)
    faults = []
    if vel is None:
        vel = jnp.zeros((0, sources.dims), pos.dtype)
    else:
        check_real_dtype(vel, "velocities")
        if np.shape(vel) != pos.shape:
            raise ValueError(f"vel must have the shape of pos, {pos.shape}; its shape is {np.shape(vel)}.")
        vel = jnp.asarray(vel, common_dtype(pos, vel)).astype(pos.dtype)
        faults = velocity_faults(vel, sources.num)
    return ParticleData(pos=pos, mass=sources.part.mass, vel=vel, num=sources.part.num), faults


def _sums(stage: Stage) -> Any:
    """Return the sums of `kernels.sphere_sums` in the given rows of the centres."""
    centres = stage.queries
    rows = jnp.arange(centres.pos.shape[0], dtype=jnp.int32)
    radius = jnp.where(rows < centres.num, centres.data, 0)
    around = stage.sources
    if stage.is_distributed:
        stage.exchange_boxes()
        # Search slightly farther, because the search for ghosts rounds distances differently.
        reach = at_least_normal(radius)[:, None] * (1 + 8 * jnp.finfo(radius.dtype).eps)
        around = stage.with_ghosts(stage.open_leaves(reach)[1], whole=True)
    mass, vel = jnp.asarray(around.part.mass), jnp.asarray(around.part.vel)
    sums = kernels.sphere_sums(around.tree(), mass, vel, centres.pos, radius, stage.box)
    # Without velocities, their columns have no rows.
    with_rows = [column for column in sums if len(column) == len(radius)]
    return [*stage.send_back(with_rows), *sums[len(with_rows) :]]


@functools.partial(jax.jit, inline=True)
def _marked(column: jax.Array, radii: jax.Array) -> jax.Array:
    """Return ``column`` with NaN, or -1 for counts, if the radius is NaN."""
    if not column.shape[0]:
        return column
    radius = radii.reshape(-1, *[1] * (column.ndim - 1))
    # Use the NaN of the radius, because jax_debug_nans reports a constant NaN as an error.
    missing = jnp.int32(-1) if jnp.issubdtype(column.dtype, jnp.integer) else radius
    return jnp.where(jnp.isnan(radius), missing, column)


def _named(num: jax.Array, radii: jax.Array, sums: list[jax.Array], dims: int, moving: bool) -> SphereProperties:
    """Return the sums with their names. Raise on every rank if one exceeds the range of its dtype."""
    count, mass, centre, size, largest, shape, *speeds = sums
    if moving and speeds[0].shape[0] < count.shape[0]:  # the sums of an empty set
        speeds = [jnp.zeros((count.shape[0], *column.shape[1:]), column.dtype) for column in speeds]
    is_lost = _are_lost(count, [mass, size, largest, *(speeds if moving else [])])
    quantity, columns = "a property of the sphere in row {0}", "positions, masses and velocities"
    units = "other units"
    if radii.dtype == jnp.float64:  # the kernel compares squares in float64
        is_lost |= (radii > 0) & (radii < _SMALLEST) & (largest > 0)
        units += f", in which radii are at least {_SMALLEST:g}"
    count = comm.after(count, check_in_range(is_lost, mass.dtype, quantity, units, columns))
    velocity, dispersion, rotation = speeds if moving else [None] * 3
    return SphereProperties(
        ngroups=num,
        count=count,
        com_pos=centre,
        com_inertia_radius=size,
        max_radius=largest,
        mass=mass,
        com_vel=velocity,
        vel_dispersion=dispersion,
        shape_tensor=shape,
        angular_momentum=rotation if moving and dims > 1 else None,
    )


@functools.partial(jax.jit, inline=True)
def _are_lost(count: jax.Array, columns: list[jax.Array]) -> jax.Array:
    is_lost = jnp.zeros(count.shape, bool)
    for column in columns:
        is_lost |= (count > 0) & ~jnp.isfinite(column).all(axis=tuple(range(1, column.ndim)))
    return is_lost
