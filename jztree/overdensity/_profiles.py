"""Spherical profiles around centres: mass, density and circular velocity by radius."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm
from .._options import checked_config
from ..arguments import Radii, check_in_range, first_row, flat, root_of_constant
from ..config import RadiusConfig, without_masses
from ..jax_ext import exact_to_float
from ..particles import Array, Index, Particles
from ..tree.stage import InputParticles
from ..within import SearchArguments, prepare_search, read_radii
from ._arguments import faults_of_masses, read_spheres
from ._spheres import widest_sphere

_MIN_RADII = 2

_TOO_WIDE = (
    "the largest radius in row {0} is infinite or above half the smallest periodic length, so the sphere would overlap "
    "its periodic images; use smaller radii, or boxsize=None."
)


class RadialProfiles(NamedTuple):
    """Profiles around ``q`` centres for ``m`` radii, with ``m - 1`` shells between them.

    Attributes:
        radius: ``(q, m)``, the radii.
        mass: ``(q, m)``, the mass within each radius.
        circular_velocity: ``(q, m)``, ``sqrt(gravity * mass / radius)``; 0 at radius 0.
        density: ``(q, m - 1)``, the mean density of each shell.
        shell_mass: ``(q, m - 1)``, its mass.
        shell_count: ``(q, m - 1)`` int32, its number of particles.
    """

    radius: jax.Array
    mass: jax.Array
    circular_velocity: jax.Array
    density: jax.Array
    shell_mass: jax.Array
    shell_count: jax.Array


@flat()
def radial_profiles(
    part: Particles | Index | Array,
    radii: ArrayLike,
    *,
    queries: Particles | Array,
    boxsize: ArrayLike | None = None,
    gravity: ArrayLike = 1.0,
    cfg: RadiusConfig | None = None,
) -> RadialProfiles:
    """Compute profiles of mass, density and circular velocity around centres.

    A particle is in the shell ``j`` if its distance from the centre is above ``radii[j]`` and at most ``radii[j + 1]``.
    Distances are those to nearest images, in float64. Pass the particles of one halo to count only these, for example
    the bound particles of a subhalo.

    Masses are sums in float64. The mass of a shell is the difference of the masses within its two radii. Its error is a
    rounding error of the latter, so for shells with a small fraction of the mass, give float64. Counts do not depend on
    the number of devices; on several devices, and on GPUs, sums may differ in their last bits. The results have no
    derivatives: differentiating raises an error.

    Args:
        part: All matter, not only the particles of groups: a particle class with ``pos`` ``(n, d)``, d from 1 to 4,
            float32 or float64; an array of positions; or a `jztree.Index` of either. ``mass`` may be ``(n,)`` or one
            number for all particles. Without it, the mass of every particle is 1.
        radii: Ascending radii in the unit of the positions, two or more: ``(m,)`` for all centres (equal on all ranks),
            or ``(q, m)``, for example ``r200[:, None] * np.geomspace(0.01, 1, 21)``.
        queries: The centres, ``(q, d)`` positions of the same dtype, or a particle class; results are 0 in its rows
            from ``num`` on.
        boxsize: The periodic length, or one per dimension; None means open. Equal on all ranks. An index has its own
            box.
        gravity: The gravitational constant, in length * velocity**2 / mass, with the unit of velocity that circular
            velocities shall have; equal on all ranks. If positions are comoving, divide it by the scale factor.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The profiles, one row per centre, in the order of the centres.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, a mass
            is negative, NaN or infinite, a radius is above half the smallest periodic length, a traced radius,
            ``gravity`` or ``boxsize`` is invalid, or a result exceeds the range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> x = np.linspace(-1, 1, 21, dtype=np.float32)  # a line of particles of mass 1, 0.1 apart
        >>> profiles = jz.radial_profiles(x[:, None], [0.25, 0.75, 1.25], queries=np.zeros((1, 1), np.float32))
        >>> profiles.mass, profiles.shell_count
        (Array([[ 5., 15., 21.]], dtype=float32), Array([[10,  6]], dtype=int32))
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    weighed, centres, box = read_spheres(part, boxsize, queries)
    lengths, unit = read_radii(None, radii, centres), root_of_constant(gravity, "gravity", weighed.pos.dtype)
    if lengths.per_query() < _MIN_RADII:
        raise ValueError("radii has one radius; a shell lies between two, so pass at least two ascending radii.")
    radius = _radii_of(lengths, centres)
    row = first_row((radius[:, -1] > widest_sphere(box, radius.dtype)) | jnp.isinf(radius[:, -1]))
    faults = [*faults_of_masses(weighed), comm.Fault(row >= 0, [row], _TOO_WIDE)]
    mass = weighed.part.mass if weighed.part.mass.shape[0] else jnp.ones((1,), radius.dtype)
    sources = InputParticles(weighed.pos, weighed.num, data=jnp.broadcast_to(mass, (weighed.num_rows,)), th=weighed.th)
    prepared = prepare_search(SearchArguments(sources, centres, lengths, box, cfg, faults))
    counts, masses = (table.reshape(radius.shape) for table in prepared.send_back(prepared.count_sources(box)))
    profiles = _profiles(radius, masses, counts, unit, weighed.dims)
    quantity = "a mass, a density or a circular velocity around the centre in row {0}"
    checked = check_in_range(_out_of_range(profiles), radius.dtype, quantity)
    return profiles._replace(shell_count=comm.after(profiles.shell_count, checked))


def _radii_of(lengths: Radii, centres: InputParticles) -> jax.Array:
    """Return the radii of each centre, ``(q, m)`` in the dtype of the positions; 0 in rows without a centre."""
    numbers = jnp.asarray(exact_to_float(lengths.words()), centres.pos.dtype)
    is_centre = jnp.arange(centres.num_rows, dtype=jnp.int32) < centres.num
    return jnp.where(is_centre[:, None], jax.lax.stop_gradient(numbers), 0)


@functools.partial(jax.jit, static_argnames="dims", inline=True)
def _profiles(radius: jax.Array, mass: jax.Array, count: jax.Array, unit: jax.Array, dims: int) -> RadialProfiles:
    """Return the profiles.

    Args:
        radius: ``(q, m)``.
        mass: ``(q, m)``, the mass within each radius.
        count: ``(q, m)``, the number of particles within it.
        unit: The root of the gravitational constant.
        dims: Number of dimensions.
    """
    shell_mass, outer = jnp.diff(mass, axis=1), radius[:, 1:]
    # The fraction of the ball that is in the shell, without cancellation in thin shells.
    fraction = -jnp.expm1(dims * jnp.log1p(-jnp.diff(radius, axis=1) / outer))
    unit_ball = math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)
    # Quotients and powers of the radius may be out of range. Powers of two change no other bit.
    (scaled_mass, heavier), (scaled_radius, wider) = jnp.frexp(mass), jnp.frexp(radius)
    density = shell_mass / (unit_ball * fraction)
    for _ in range(dims):
        density = density / scaled_radius[:, 1:]
    steepness, odd = scaled_mass / scaled_radius, (heavier - wider) % 2
    velocity = jnp.ldexp(jnp.sqrt(jnp.ldexp(steepness, odd)) * unit, (heavier - wider - odd) // 2)
    return RadialProfiles(
        radius=radius,
        mass=mass,
        circular_velocity=jnp.where(radius > 0, velocity, 0),
        density=jnp.where(fraction > 0, jnp.ldexp(density, -dims * wider[:, 1:]), 0),
        shell_mass=shell_mass,
        shell_count=jnp.diff(count, axis=1),
    )


@functools.partial(jax.jit, inline=True)
def _out_of_range(profiles: RadialProfiles) -> jax.Array:
    """Return whether a number of each centre is out of the range of its dtype, ``(q,)``."""
    smallest = jnp.finfo(profiles.radius.dtype).tiny
    masks = [~jnp.isfinite(column) for column in profiles[:5]]
    masks.append((profiles.circular_velocity < smallest) & (profiles.mass > 0) & (profiles.radius > 0))
    masks.append((profiles.density < smallest) & (profiles.shell_mass > 0) & (jnp.diff(profiles.radius, axis=1) > 0))
    return jnp.stack([column.any(axis=1) for column in masks]).any(axis=0)
