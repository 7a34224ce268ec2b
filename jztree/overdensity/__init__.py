"""Spherical overdensities: masses and radii of haloes by the mean density around their centres.

The sphere around a centre grows, particle by particle, while the mean density of its particles is above a threshold,
such as 200 times the critical density. The halo ends at the radius at which the density falls to the threshold (Lacey &
Cole 1994, MNRAS 271, 676). Each centre lists the particles within a radius by a walk through the plane hierarchy
(`jztree.tree`), sorts them by distance, and processes them outwards. If the radius was too small, the list determines
the radius of the next list, which begins at its end. The cost is therefore that of sorting the particles in the
spheres. `sphere_properties` sums over all particles in such spheres, as the group catalogue sums over the particles of
a group.
"""

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
from ..arguments import Kind, check_in_range, check_range, check_real, flat, root_of_constant, shape_of, shown
from ..config import OverdensityConfig, without_masses
from ..jax_ext import Exact, exact, is_concrete
from ..particles import Array, Index, Particles
from ..tree.stage import prepare_stage
from ._arguments import faults_of_masses, read_spheres
from ._derivatives import Sources, of_spheres
from ._profiles import RadialProfiles, radial_profiles
from ._spheres import find_spheres
from ._sums import SphereProperties, sphere_properties

__all__ = [
    "RadialProfiles",
    "SphereProperties",
    "SphericalOverdensity",
    "radial_profiles",
    "sphere_properties",
    "spherical_overdensity",
]

_BAD_DENSITY = "a density is not positive and finite; give mean densities such as 200 times the critical density."


@pytree
class SphericalOverdensity:
    """Spheres around ``q`` centres with ``m`` given mean densities; see `spherical_overdensity`.

    If ``density`` was a number, the arrays ``(q, m)`` are ``(q,)``. If the density near a centre is not above the
    threshold, the centre has no sphere: radius, mass and count are 0. If the density is above the threshold up to half
    the periodic box, radius and mass are NaN and the count is -1.

    Attributes:
        radius: ``(q, m)``, in the unit and dtype of the positions.
        mass: ``(q, m)``, the total mass within the radius.
        count: ``(q, m)`` int32, their number.
        vmax: ``(q,)``, the largest circular velocity ``sqrt(gravity M(<r) / r)`` within the largest of the ``m`` radii;
            0 if every radius is 0.
        rmax: ``(q,)``, the ``r`` of this maximum; 0 if every radius is 0.
    """

    radius: jax.Array
    mass: jax.Array
    count: jax.Array
    vmax: jax.Array
    rmax: jax.Array


@flat(density=Kind(P(), lambda density, _: check_density(density)))
def spherical_overdensity(
    part: Particles | Index | Array,
    density: ArrayLike,
    *,
    queries: Particles | Array,
    boxsize: ArrayLike | None = None,
    gravity: ArrayLike = 1.0,
    cfg: OverdensityConfig | None = None,
) -> SphericalOverdensity:
    """Compute radii, masses and largest circular velocities of spheres with given mean densities.

    **Definition.** Order the particles by their distance ``r_1 <= r_2 <= ...`` from the centre (to the nearest image),
    let ``M_i`` be the mass of the first ``i``, and ``V(r)`` the volume of a ball. The sphere starts with the
    ``cfg.npart_min`` nearest particles (by default 10) and any others at the same distance as the last one. If its mean
    density is not above ``density``, radius, mass and count are 0: the centre is not in a halo of this density.
    Otherwise the sphere ends at the smallest ``i`` with ``M_i <= V(r_{i+1}) density``: the density falls to the
    threshold before the next particle. Its mass is ``M_i``. Its radius is ``(M_i / (V(1) density))**(1/d)``, which is
    at most ``r_{i+1}``.

    If the centre is itself a particle, that particle is at distance 0. Choose centres in haloes, such as their densest
    particles or their particles of lowest potential (`jztree.halos`). A centre of mass between two clumps may be in
    neither.

    In a periodic box, the search ends at half the smallest length. If a sphere is still denser than ``density`` there,
    its radius and mass are NaN and its count is -1. The largest circular velocity is the maximum of
    ``sqrt(gravity M_i / r_i)`` over the particles from the start of the sphere on, except those at distance 0.

    **Derivatives** are at fixed membership: the particles in each sphere are held constant. ``mass`` depends on their
    masses, ``radius`` on these and ``density``, and ``vmax`` and ``rmax`` also on the positions of the centre and of
    the particle at the peak.

    **Precision.** Distances and masses are computed in float64, and masses are added in the order of distance, so any
    number of devices, CPUs or GPUs, gives the same bits.

    Args:
        part: All matter, not only the particles of groups: a particle class with ``pos`` ``(n, d)``, d from 1 to 4,
            float32 or float64; an array of positions; or a `jztree.Index` of either. ``mass`` may be ``(n,)`` or one
            number for all particles. Without it, the mass of every particle is 1.
        density: ``(m,)`` or a number, the mean densities, as mass over length to the power of ``d``; equal on all
            ranks. For M200 of the critical density, pass ``200 * 3 * H**2 / (8 * pi * G)``. If positions are comoving,
            multiply it by ``a**3``.
        queries: The centres, ``(q, d)`` positions of the same dtype, or a particle class; results are 0 in its rows
            from ``num`` on. For the groups of a catalogue: ``jztree.data.Pos(pos=cata.com_pos, num=cata.ngroups)``.
        boxsize: The periodic length, or one per dimension; None means open. Equal on all ranks. An index has its own
            box.
        gravity: The gravitational constant, in length * velocity**2 / mass, with the unit of velocity that ``vmax``
            shall have; equal on all ranks. If positions are comoving, divide it by the scale factor.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The spheres, one row per centre, in the order of the centres.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, a mass is negative, NaN
            or infinite, a result exceeds the range of its dtype, the square or the volume of a radius exceeds the range
            of float64, or a traced ``density`` or ``boxsize`` is invalid.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> x = np.linspace(-1, 1, 21, dtype=np.float32)  # a line of particles of mass 1, 0.1 apart
        >>> spheres = jz.spherical_overdensity(x[:, None], 8.0, queries=np.zeros((1, 1), np.float32))
        >>> spheres.radius, spheres.count
        (Array([1.3125], dtype=float32), Array([21], dtype=int32))
    """
    cfg = without_masses(checked_config(cfg, OverdensityConfig))
    source_set, centres, box = read_spheres(part, boxsize, queries)
    pos, mass = source_set.pos, source_set.part.mass
    densities, unit = check_density(density), root_of_constant(gravity, "gravity", pos.dtype)
    one_density = densities.words.ndim == 1
    densities = Exact(densities.words.reshape(-1, densities.words.shape[-1]))
    # The search has no derivatives; they are added to its results.
    sources, query_set = (
        replace(particles, part=jax.lax.stop_gradient(particles.part), th=jax.lax.stop_gradient(particles.th))
        for particles in (source_set, centres)
    )
    stage = prepare_stage(sources, query_set, box, cfg, "overdensity_ghosts", faults_of_masses(source_set))
    radius, mass_within, count, peak = find_spheres(stage, densities, cfg)
    around = Sources(pos, mass, source_set.num)
    radius, mass, peak = of_spheres((radius, mass_within, peak), around, centres.pos, densities, box)
    vmax = peak[:, 0] * unit
    count = comm.after(count, _check_range(radius, mass, count, vmax, source_set.dims))
    if one_density:
        radius, mass, count = radius[:, 0], mass[:, 0], count[:, 0]
    return SphericalOverdensity(radius=radius, mass=mass, count=count, vmax=vmax, rmax=peak[:, 1])


def _check_range(radius: jax.Array, mass: jax.Array, count: jax.Array, vmax: jax.Array, dims: int) -> jax.Array:
    """Return 0. Raise on every rank if a result is out of the range of its dtype."""
    numbers = jnp.finfo(radius.dtype)
    # Volumes and squares of distances are float64.
    smallest = max(float(numbers.tiny), 1e-300 ** (1 / max(dims, 2)))
    largest = min(float(numbers.max), 1e300 ** (1 / dims))
    out_of_range = _is_lost(radius, mass, count, vmax, smallest, largest)
    quantity = "the radius, the mass or vmax of the sphere in row {0}"
    units = f"other units, in which radii are from {smallest:.2g} to {largest:.2g}"
    return check_in_range(out_of_range, radius.dtype, quantity, units)


@functools.partial(jax.jit, static_argnames=("smallest", "largest"), inline=True)
def _is_lost(
    radius: jax.Array, mass: jax.Array, count: jax.Array, vmax: jax.Array, smallest: float, largest: float
) -> jax.Array:
    """Return which spheres are out of the range of their dtype."""
    sound = (radius >= smallest) & (radius <= largest) & jnp.isfinite(mass)
    return jnp.any((count > 0) & ~sound, axis=1) | ~jnp.isfinite(vmax)


def check_density(density: Any) -> Exact:
    """Return ``density`` as exact numbers, ``(m,)`` or one. Raise ValueError if they are not valid mean densities."""
    if isinstance(density, Exact):
        return density
    shape = shape_of(density, "density")
    if len(shape) > 1 or shape == (0,):
        raise ValueError(f"density must be a number or an array (m,) of at least one number; its shape is {shape}.")
    if is_concrete(density):
        values = check_real(density, "density")
        if not np.all(np.isfinite(values) & (values > 0)):
            raise ValueError(f"density is {shown(density)}; mean densities must be positive and finite.")
        check_range(values, "density")
        return exact(density, shape)
    bad = jnp.any(~((density > 0) & jnp.isfinite(density)))
    return comm.after(exact(density, shape), kernels.check(0, bad, [], _BAD_DENSITY))
