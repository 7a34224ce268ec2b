"""Compute derived quantities per catalogue row (group or sphere): shapes, spins, dispersions, concentrations."""

from __future__ import annotations

import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from ..arguments import SUMS_ROUNDED, check_real_dtype, common_dtype, first_row, root_of_constant
from ..data import FofCatalogue
from ..derivatives import norm, ratio
from ..jax_ext import with_twins
from ..overdensity import SphereProperties
from ..particles import Array, check_representable

Rows = FofCatalogue | SphereProperties  # of groups or spheres

# Radius of the largest circular velocity of the profile of Navarro, Frenk & White, in scale radii; and the upper limit
# of the search for concentrations.
_PEAK = 2.162581587064612
_MOST_PEAKED = 1e6
_NO_SHAPE = "the catalogue has no shape_tensor, which {} needs; make the catalogue with jztree.fof.fof_and_catalogue."
_SQUARES = (
    "the inertia_tensor of the group in row {0} of the catalogue holds squares of lengths outside the range of {1}; "
    "choose another unit of length, or use shape_tensor and com_inertia_radius, whose product it is."
)


class Axes(NamedTuple):
    """Principal axes of groups: ``lengths[..., 0]`` is often called ``a``, and the shorter ones ``b`` and ``c``.

    Attributes:
        lengths: ``(g, d)``, the longest first, in the unit of length.
        ratios: ``(g, d - 1)``, the other lengths divided by the longest, ``b / a`` and ``c / a`` in 3D; NaN for groups
            without extent.
        directions: ``(g, d, d)``, unit vectors. ``directions[..., i, :]`` belongs to ``lengths[..., i]``. The component
            with the largest magnitude is positive.
    """

    lengths: jax.Array
    ratios: jax.Array
    directions: jax.Array


@with_twins(P(-1), P(-1))
def principal_axes(cata: Rows) -> Axes:
    """Compute the axis lengths, axis ratios and directions of groups from ``cata.shape_tensor``.

    An axis length is the root of an eigenvalue of the inertia tensor (Zemp et al. 2011, ApJS 197, 30, for all particles
    of the group, not weighted by distance). This is the root-mean-square extent along that axis. For a homogeneous
    ellipsoid, it is the semi-axis divided by sqrt(5). If rounding makes an eigenvalue negative, it counts as 0.

    In float32, axis ratios below about 1e-3 are rounding noise. In a group of fewer than d + 1 particles, all particles
    are in a plane or on a line, so its last axes have length 0 to rounding. Groups of few particles look less round
    than they are: below about a hundred particles, ratios have little meaning.

    Args:
        cata: A group catalogue, or properties of spheres, with a ``shape_tensor``.

    Returns:
        The axes, one row per group.

    Raises:
        ValueError: If the catalogue has no shape tensor.

    Examples:
        >>> pos = np.array([[-3.0, 0.0], [0.0, -1.0], [0.0, 1.0], [3.0, 0.0]], np.float32)
        >>> _, catalogue = jz.friends_of_friends(pos, 4.0, npart_min=3)
        >>> axes = jz.halos.principal_axes(catalogue)
        >>> np.asarray(axes.ratios).round(3)
        array([[0.333]], dtype=float32)
    """
    if cata.shape_tensor is None:
        raise ValueError(_NO_SHAPE.format("principal_axes"))
    check_representable(cata)
    tensor = jnp.asarray(cata.shape_tensor)
    axes = _axes(tensor, jnp.asarray(cata.com_inertia_radius), used_rows(cata))
    return Axes(*(of_groups(cata, leaf) for leaf in axes))


@functools.partial(jax.jit, inline=True)
def _axes(tensor: jax.Array, radius: jax.Array, used: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the lengths, ratios and directions of the axes of each row."""
    # Eigenvectors of a zero tensor have no derivatives. This keeps unused rows from becoming NaN.
    distinct = jnp.diag(jnp.arange(1, tensor.shape[-1] + 1, dtype=tensor.dtype))
    tensor = jnp.where(used[..., None, None], tensor, distinct.reshape((1,) * (tensor.ndim - 2) + distinct.shape))
    values, vectors = jnp.linalg.eigh(tensor)
    shares = _positive_root(values)[..., ::-1]
    lengths = shares * radius[..., None]
    directions = jnp.swapaxes(vectors, -1, -2)[..., ::-1, :]
    largest = jnp.take_along_axis(directions, jnp.argmax(jnp.abs(directions), axis=-1)[..., None], axis=-1)
    directions = directions * jnp.where(largest < 0, -1, 1).astype(directions.dtype)
    longest = shares[..., :1]
    ratios = jnp.where(longest > 0, ratio(shares[..., 1:], jnp.where(longest > 0, longest, 1)), jnp.nan)
    return lengths, ratios, directions


@with_twins(P(-1), P(-1))
def inertia_tensor(cata: Rows) -> jax.Array:
    """Compute the mass-weighted mean of ``x_i x_j`` about ``com_pos``, from ``cata.shape_tensor``.

    Args:
        cata: A group catalogue, or properties of spheres, with a ``shape_tensor``.

    Returns:
        ``(g, d, d)``, in the square of the unit of length.

    Raises:
        ValueError: If the catalogue has no shape tensor.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a square is outside the range of the
            dtype: in float32, for groups larger than 1e19 or smaller than 1e-19 in the unit of length.

    Examples:
        >>> pos = np.array([[-3.0, 0.0], [0.0, -1.0], [0.0, 1.0], [3.0, 0.0]], np.float32)
        >>> _, catalogue = jz.friends_of_friends(pos, 4.0, npart_min=3)
        >>> np.asarray(jz.halos.inertia_tensor(catalogue)).round(3)
        array([[[4.5, 0. ],
                [0. , 0.5]]], dtype=float32)
    """
    if cata.shape_tensor is None:
        raise ValueError(_NO_SHAPE.format("inertia_tensor"))
    check_representable(cata)
    shape, radius = jnp.asarray(cata.shape_tensor), jnp.asarray(cata.com_inertia_radius)
    limits = jnp.finfo(radius.dtype)
    # Compare with roots, because the squares would overflow or underflow. Extents that are only rounding may vanish.
    extended = radius > SUMS_ROUNDED * jnp.abs(jnp.asarray(cata.com_pos)).max(axis=-1)
    is_lost = (radius > float(limits.max) ** 0.5) | (extended & (radius < float(limits.tiny) ** 0.5))
    is_lost &= used_rows(cata)
    row = first_row(is_lost.reshape(-1))
    checked = comm.check(0, row >= 0, [row], _SQUARES.format("{0}", limits.dtype))
    radius = jnp.where(checked == 0, radius, jnp.nan)[..., None, None]
    return of_groups(cata, shape * radius * radius)


@with_twins({"cata": P(-1), "mass": P(-1), "radius": P(-1), "gravity": P(), "scale_factor": P()}, P(-1))
def spin(cata: Rows, mass: ArrayLike, radius: Array, gravity: ArrayLike, *, scale_factor: ArrayLike = 1.0) -> jax.Array:
    """Compute the spin parameter lambda' = J / (sqrt(2) M V R), V^2 = G M / R, of Bullock et al. 2001 (ApJ 555, 240).

    Args:
        cata: A group catalogue, or properties of spheres, with the angular momentum J. Bullock et al. use the particles
            within R: pass the result of `jztree.overdensity.sphere_properties` for these radii. A group catalogue has
            the angular momentum of all particles of the group, most of them outside R. In the median over haloes of at
            least 300 particles, this doubles the spin.
        mass: ``(g,)``, M of each row, for example that of a spherical overdensity.
        radius: ``(g,)``, R of each row.
        gravity: Newton's constant in length * velocity**2 / mass, in the units of the catalogue, such as 43.0071 for
            Mpc/h, km/s and 1e10 Msun/h.
        scale_factor: If positions and ``radius`` are comoving and velocities are peculiar, the scale factor of the
            universe. Lengths are multiplied by it. The default 1 leaves them unchanged.

    Returns:
        ``(g,)`` numbers without a unit; 0 for rows without a sphere (M or R is 0), and NaN if M or R is NaN.

    Raises:
        ValueError: If the catalogue has no angular momentum, if shapes do not agree, or if gravity or scale_factor is
            not positive (the result is NaN if these are traced).

    Examples:
        >>> pos = jnp.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
        >>> part = jz.data.ParticleData(pos=pos, vel=pos[:, ::-1], mass=jnp.ones(3))
        >>> _, catalogue = jz.friends_of_friends(part, 1.5, npart_min=3)
        >>> spin = jz.halos.spin(catalogue, catalogue.mass, catalogue.max_radius, gravity=1.0)
        >>> np.asarray(spin).round(3)
        array([0.272], dtype=float32)
    """
    if cata.angular_momentum is None:
        raise ValueError(
            "the catalogue has no angular_momentum; use particles with velocities in 2 or more dimensions."
        )
    for name, column in {"mass": mass, "radius": radius}.items():
        check_real_dtype(column, name)
        if np.shape(column) != np.shape(cata.count):
            raise ValueError(
                f"{name} must have one number per row of the catalogue, shape {np.shape(cata.count)}; its shape is "
                f"{np.shape(column)}."
            )
    check_representable({"mass": mass, "radius": radius, "cata": cata})
    dtype = common_dtype(cata.angular_momentum, mass, radius)
    spins = norm(jnp.asarray(cata.angular_momentum, dtype))
    mass, radius = jnp.asarray(mass, dtype), jnp.asarray(radius, dtype)
    defined = (mass > 0) & (radius > 0)
    # Divide step by step, because products may exceed the range of float32 in units such as CGS.
    for factor in (mass, radius):
        spins = ratio(spins, jnp.sqrt(jnp.where(defined, factor, 1)))
    spins = ratio(spins, root_of_constant(gravity, "gravity", dtype)) * (
        root_of_constant(scale_factor, "scale_factor", dtype) / math.sqrt(2.0)
    )
    return of_groups(cata, jnp.where(defined, spins, jnp.where(jnp.isnan(mass) | jnp.isnan(radius), jnp.nan, 0)))


@with_twins({"mass": P(-1), "radius": P(-1), "vmax": P(-1), "gravity": P()}, P(-1))
def concentration(mass: ArrayLike, radius: Array, vmax: ArrayLike, *, gravity: ArrayLike = 1.0) -> jax.Array:
    """Compute halo concentrations from the largest circular velocity (Prada et al. 2012, MNRAS 423, 3018, eqs 8-10).

    The result is the c of the profile of Navarro, Frenk & White (1997, ApJ 490, 493) that has the same ratio of
    ``vmax`` to the circular velocity ``v`` at the radius of the sphere:
    ``(vmax / v)**2 = 0.216 c / (ln(1 + c) - c / (1 + c))``. The function solves this equation by bisection. It does not
    fit a profile, so c is defined for any halo. In haloes of few particles, ``vmax`` and therefore c are noisy. The
    function has no derivative.

    Args:
        mass: ``(g,)``, masses of spheres, for example of 200 times the critical density, from
            `jztree.overdensity.spherical_overdensity`.
        radius: ``(g,)``, radii of the same spheres.
        vmax: ``(g,)``, the largest circular velocities, from the same call.
        gravity: The gravitational constant with which ``vmax`` was computed. The default 1 is also the default there.

    Returns:
        ``(g,)``; 0 for rows without a sphere or ``vmax``, and NaN if mass or radius is NaN. The smallest value, 2.163,
        means that the circular velocity is largest at the radius itself; a ``vmax`` not larger than that velocity also
        gives this value. The largest value is 1e6.

    Raises:
        ValueError: If shapes do not agree or gravity is not positive.

    Examples:
        >>> concentration = jz.halos.concentration(np.array([100.0]), np.array([1.0]), np.array([12.0]))
        >>> np.asarray(concentration).round(2)  # the largest circular velocity is 1.2 times that at the radius
        array([9.81], dtype=float32)
    """
    columns = {"mass": mass, "radius": radius, "vmax": vmax}
    for name, column in columns.items():
        check_real_dtype(column, name)
    shapes = {name: np.shape(column) for name, column in columns.items()}
    if len(set(shapes.values())) > 1:
        raise ValueError(f"mass, radius and vmax must have the same shape, one number per halo; theirs are {shapes}.")
    check_representable(columns)
    dtype = common_dtype(mass, radius, vmax, 1.0)  # integers become floats
    mass, radius, vmax = (jax.lax.stop_gradient(jnp.asarray(column, dtype)) for column in (mass, radius, vmax))
    defined = (mass > 0) & (radius > 0) & (vmax > 0)
    # Take roots separately, because products may exceed the range of float32.
    speed = jnp.sqrt(jnp.where(defined, mass, 1)) * root_of_constant(gravity, "gravity", dtype)
    target = ratio(vmax, ratio(speed, jnp.sqrt(jnp.where(defined, radius, 1)))) ** 2
    low, high = jnp.full(mass.shape, math.log(_PEAK), dtype), jnp.full(mass.shape, math.log(_MOST_PEAKED), dtype)
    for _ in range(jnp.finfo(dtype).nmant + 8):
        middle = (low + high) / 2
        below = _speed_ratio2(jnp.exp(middle)) < target
        low, high = jnp.where(below, middle, low), jnp.where(below, high, middle)
    return jnp.where(defined, jnp.exp(low), jnp.where(jnp.isnan(mass) | jnp.isnan(radius), jnp.nan, 0))


def _speed_ratio2(c: jax.Array) -> jax.Array:
    """Return the square of an NFW profile's largest circular velocity over that at its radius, for concentration c."""
    scaled = jnp.asarray(_PEAK, c.dtype)
    return (c / scaled) * (_nfw_mass(scaled) / _nfw_mass(c))


def _nfw_mass(x: jax.Array) -> jax.Array:
    """Return the mass within ``x`` scale radii, up to a factor."""
    return jnp.log1p(x) - x / (1 + x)


@with_twins(P(-1), P(-1))
def total_vel_dispersion(cata: Rows) -> jax.Array:
    """Return the mass-weighted root-mean-square velocity relative to ``com_vel``, in all dimensions together.

    It is ``sqrt(d)`` times the one-dimensional ``vel_dispersion``.

    Args:
        cata: A group catalogue, or properties of spheres, with a ``vel_dispersion``.

    Returns:
        ``(g,)``, in the unit of velocity.

    Raises:
        ValueError: If the particles have no velocities.

    Examples:
        >>> pos = jnp.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0]])
        >>> part = jz.data.ParticleData(pos=pos, vel=pos[:, ::-1], mass=jnp.ones(3))
        >>> _, catalogue = jz.friends_of_friends(part, 1.5, npart_min=3)
        >>> np.asarray(jz.halos.total_vel_dispersion(catalogue)).round(3)
        array([0.816], dtype=float32)
    """
    if cata.vel_dispersion is None:
        raise ValueError("the catalogue has no vel_dispersion; make it from particles with velocities.")
    check_representable(cata)
    return jnp.asarray(cata.vel_dispersion) * math.sqrt(np.shape(cata.com_pos)[-1])


def _positive_root(values: jax.Array) -> jax.Array:
    """Return the root of positive values, and 0 with derivative 0 otherwise."""
    positive = values > 0
    return jnp.where(positive, jnp.sqrt(jnp.where(positive, values, 1)), 0)


def used_rows(cata: Rows) -> jax.Array:
    """Return a mask of the catalogue rows that hold groups."""
    return are_used(jnp.asarray(cata.ngroups, jnp.int32), np.shape(cata.count)[-1])


@functools.partial(jax.jit, static_argnames="n", inline=True)
def are_used(ngroups: jax.Array, n: int) -> jax.Array:
    """Return whether each of ``n`` rows is below ``ngroups``, which may have axes over devices."""
    rows = jnp.arange(n, dtype=jnp.int32)
    return rows.reshape((1,) * ngroups.ndim + rows.shape) < ngroups[..., None]


def of_groups(cata: Rows, values: jax.Array) -> jax.Array:
    """Return ``values`` with zeros in the rows that hold no group."""
    return _zeroed(used_rows(cata), values)


@functools.partial(jax.jit, inline=True)
def _zeroed(used: jax.Array, values: jax.Array) -> jax.Array:
    return jnp.where(used.reshape(used.shape + (1,) * (values.ndim - used.ndim)), values, jnp.zeros((), values.dtype))
