"""The gravitational potential and acceleration at each particle, due to the other particles of its set or group."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.capacity import Capacity, choose_capacity
from ..arguments import (
    Kind,
    check_box,
    check_constant,
    check_error,
    check_in_range,
    check_length,
    check_one_a_particle,
    check_particles,
    check_real_dtype,
    check_word,
    flat,
    known_integer,
    mass_faults,
    mass_rows,
    one_length,
)
from ..data import PosMass
from ..jax_ext import Exact, exact, exact_to_float
from ..particles import Array, Index, Particles, check_num
from ..tree import corners_of
from ..tree.stage import opened
from ._sums import Law, accelerations, make_groups, potentials

_MAX_DIMS = 4
_SOFTENINGS = ("plummer", "spline")
_SPLINE_REACH = 2.8  # the spline is Newtonian from this number of softening lengths on
_MAX_RATIO = 4  # of the sides of a box with all images
_BAD_IMAGES = (
    "sums over all images need a box that is periodic in all of 3 dimensions; pass such a box, or groups, for nearest "
    "images within groups, or leave out boxsize.\n"
    f"the longest side of the box is more than {_MAX_RATIO} times the shortest; sums over all images need a more equal "
    "box.\n"
    "the softening reaches farther than half the shortest side of the box; choose a smaller one."
)
_ROWS, _LENGTH = Kind(P(-1)), one_length("softening")


@flat(masses=_ROWS, groups=_ROWS, softening=_LENGTH)
def potential(
    part: Particles | Index | Array,
    *,
    masses: Array | None = None,
    softening: ArrayLike = 0.0,
    kernel: str = "plummer",
    boxsize: ArrayLike | None = None,
    groups: Array | None = None,
    error: float = 1e-3,
    gravity: ArrayLike = 1.0,
    group_rows: int | None = None,
) -> jax.Array:
    """Compute the gravitational potential at each particle, due to the other particles of the set or its group.

    99.9 % of the potentials have a relative error of at most ``error``. In one dimension, and for particles on lines,
    curves, grids or in needles, where errors do not cancel, it may be three times that. Without groups, a periodic box
    contains all images of each particle, also of the particle itself, and the mean density is subtracted (Hernquist,
    Bouchet & Suto 1991, ApJS 75, 231). Such a potential is about 0, so its errors are relative to the sum of m / r over
    the nearest images, which is 2.38 M / L in a homogeneous cube of mass M and side L. Other sums over up to 512
    particles are direct, in float64, and larger ones use a tree.

    On any number of devices, the bits are the same. One device sums all particles of a group. Without groups, every
    device gathers all particles and sums for a share: it needs about 200 bytes per particle for them and their tree.

    The result has derivatives with respect to positions and masses in both modes, and second derivatives. First
    derivatives use the trees, with the errors of `acceleration`. See there for the cost of second ones.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 4, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        masses: ``(n,)``, not negative. None means ``mass`` of the particles, or 1 if they have none.
        softening: A length in the unit of the positions. Without it, pairs at distance 0 are left out.
        kernel: The softening. ``"plummer"`` is ``-m / sqrt(r**2 + softening**2)``. ``"spline"`` is that of Gadget
            (Springel, Yoshida & White 2001, New Astronomy 6, 79), which has the same value at distance 0 and is
            Newtonian from ``2.8 * softening`` on.
        boxsize: The periodic length, or one per dimension; None means open. With ``groups``, the distance of each pair
            is that of its nearest images. Without, sums are over all images: in 3 dimensions, with sides of a ratio of
            at most 4, and only the nearest image is softened.
        groups: ``(n,)`` int32 labels from `jztree.group_labels`: the sum for a particle is over its group alone. None
            means all particles. On several devices, labels are rows of the joined particles.
        error: The relative error, from 1e-10 to 0.1.
        gravity: Newton's constant in the units of the particles.
        group_rows: On several devices, the capacity in particles of the buffer for whole groups. None means a capacity
            sufficient for almost all data sets, which mapped functions enlarge if necessary.

    Returns:
        ``(n,)`` potentials in the dtype of the positions, not positive unless they include all images. Rows from
        ``num`` on are 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, a mass
            is negative or NaN, a label is invalid, or a potential exceeds its dtype.
        CapacityError: If whole groups do not fit ``group_rows``.

    Examples:
        >>> pos = np.array([[0.0, 0.0], [2.0, 0.0], [9.0, 0.0], [9.0, 4.0]], np.float32)
        >>> jz.potential(pos, groups=jz.group_labels(pos, 5.0))
        Array([-0.5 , -0.5 , -0.25, -0.25], dtype=float32)
    """
    return _field(part, masses, softening, kernel, boxsize, groups, error, gravity, group_rows, acceleration=False)


@flat(masses=_ROWS, groups=_ROWS, softening=_LENGTH)
def acceleration(
    part: Particles | Index | Array,
    *,
    masses: Array | None = None,
    softening: ArrayLike = 0.0,
    kernel: str = "plummer",
    boxsize: ArrayLike | None = None,
    groups: Array | None = None,
    error: float = 1e-3,
    gravity: ArrayLike = 1.0,
    group_rows: int | None = None,
) -> jax.Array:
    """Compute the gravitational acceleration of each particle, due to the other particles of the set or its group.

    In two and more dimensions, 99 % of the accelerations have a relative error of at most ``error``; of particles on
    lines and curves, 90 %. Without groups, a periodic box contains all images of each particle, and the mean density is
    subtracted (Hernquist, Bouchet & Suto 1991, ApJS 75, 231). If the terms of an acceleration cancel almost completely,
    its error may be larger. Sets and groups of up to 512 particles are summed directly in float64, larger ones and
    periodic boxes with a tree.

    On any number of devices, the bits are the same. One device sums all particles of a group. Without groups, every
    device gathers all particles and sums for a share: it needs about 200 bytes per particle for them and their tree.

    The result has first derivatives with respect to positions and masses, in both modes. Derivatives with respect to
    positions sum over all pairs of a group in float64, without a tree. In a periodic box without groups, they are an
    error.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 4, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        masses: ``(n,)``, not negative. None means ``mass`` of the particles, or 1 if they have none.
        softening: A length in the unit of the positions. Without it, pairs at distance 0 are left out.
        kernel: The softening, ``"plummer"`` or ``"spline"``: the forces of the potentials of `potential`.
        boxsize: The periodic length, or one per dimension; None means open. With ``groups``, the distance of each pair
            is that of its nearest images. Without, sums are over all images: in 3 dimensions, with sides of a ratio of
            at most 4, and only the nearest image is softened.
        groups: ``(n,)`` int32 labels from `jztree.group_labels`: the sum for a particle is over its group alone. None
            means all particles. On several devices, labels are rows of the joined particles.
        error: The relative error, from 1e-10 to 0.1.
        gravity: Newton's constant in the units of the particles.
        group_rows: On several devices, the capacity in particles of the buffer for whole groups. None means a capacity
            sufficient for almost all data sets, which mapped functions enlarge if necessary.

    Returns:
        ``(n, d)`` accelerations in the dtype of the positions. Rows from ``num`` on are 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, a mass
            is negative or NaN, a label is invalid, or an acceleration exceeds its dtype.
        CapacityError: If whole groups do not fit ``group_rows``.

    Examples:
        >>> pos = np.array([[0.0, 0.0], [2.0, 0.0]], np.float32)
        >>> jz.acceleration(pos, masses=np.array([1.0, 3.0], np.float32))
        Array([[ 0.75,  0.  ],
               [-0.25,  0.  ]], dtype=float32)
    """
    return _field(part, masses, softening, kernel, boxsize, groups, error, gravity, group_rows, acceleration=True)


def _field(
    part: Any,
    masses: Any,
    softening: Any,
    kernel: str,
    boxsize: Any,
    groups: Any,
    error: float,
    gravity: Any,
    group_rows: int | None,
    *,
    acceleration: bool,
) -> jax.Array:
    """Return accelerations or potentials."""
    part, boxsize, _ = opened(part, boxsize)
    pos, num = check_particles(part, max_dims=_MAX_DIMS), check_num(part)
    error = check_error(error)
    check_word(kernel, "kernel", _SOFTENINGS)
    box, constant = check_box(boxsize, pos.shape[1]), check_constant(gravity, "gravity")
    length = check_length(softening, box, "softening")
    if masses is not None:
        check_real_dtype(masses, "masses")
        part = PosMass(pos=pos, mass=masses)
    mass = mass_rows(part, pos.dtype, "mass" if masses is None else "masses")
    reach = jnp.asarray(exact_to_float(length)) * (_SPLINE_REACH if kernel == "spline" else 1)
    num = _checked_num(pos, num, mass, groups, box, reach)
    n = pos.shape[0]
    mass = jnp.ones((n,), pos.dtype) if mass is None else _used(jnp.broadcast_to(mass, (n,)), num)
    if n == 0:
        return jnp.zeros_like(pos if acceleration else mass)
    law = Law(kernel == "spline", groups is None, _capacity(group_rows, n))
    labels = None if groups is None else jnp.asarray(groups, jnp.int32)
    lengths = [Exact(kernels.refusing("group_potential", x.words)) for x in (length, box, exact(error, ()))]
    sums = make_groups(labels, n, num, law, tuple(lengths))
    values = accelerations(law, pos, mass, sums)[1] if acceleration else potentials(law, pos, mass, sums)
    result, out_of_range = _scaled(values, jnp.asarray(constant, pos.dtype))
    quantity = f"the {'acceleration' if acceleration else 'potential'} of row {{0}}"
    return comm.after(result, check_in_range(out_of_range, result.dtype, quantity))


@functools.partial(jax.jit, inline=True)
def _used(mass: jax.Array, num: jax.Array) -> jax.Array:
    """Return masses, 0 in padding: masses there may be NaN, and derivatives multiply them."""
    return jnp.where(jnp.arange(mass.shape[0], dtype=jnp.int32) < num, mass, 0)


@functools.partial(jax.jit, inline=True)
def _scaled(values: jax.Array, constant: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return ``values * constant``, and which rows are not finite."""
    result = values * constant
    return result, ~jnp.isfinite(result.reshape(len(result), -1)).all(axis=1)


def _capacity(group_rows: int | None, n: int) -> Capacity:
    """Return the capacity of the buffer for whole groups."""
    if group_rows is not None:
        known_integer(group_rows, "group_rows", 1)
    rows = n * comm.num_ranks()
    if rows >= 2**31:
        raise ValueError(
            f"sums support less than 2**31 rows over all devices, but there are {rows}; use fewer particles."
        )
    return choose_capacity("group_rows", group_rows, n + n // 4 + 16, rows)


def _checked_num(
    pos: jax.Array, num: Any, mass: jax.Array | None, groups: Any, box: Exact, softening_reach: Any
) -> jax.Array:
    """Return the number of particles, after all checks of their rows."""
    _, faults = corners_of(pos, num, "the particles")
    faults = [*faults, *mass_faults(mass, num, pos.shape[0])]
    if groups is None:
        faults.append(_fault_of_images(box, softening_reach))
    else:
        check_one_a_particle(groups, pos, "groups", integers=True)
    return comm.check_all(kernels.as_num(num), faults)


def _fault_of_images(box: Exact, softening_reach: Any) -> comm.Fault:
    """Return the fault that a periodic box is not suitable for sums over all images."""
    return comm.Fault(_line_about_images(exact_to_float(box), softening_reach), [], _BAD_IMAGES)


@functools.partial(jax.jit, inline=True)
def _line_about_images(sides: jax.Array, softening_reach: jax.Array) -> jax.Array:
    """Return the number of the line of `_BAD_IMAGES` to report, 0 for none."""
    shortest, longest, dims = sides.min(), sides.max(), sides.shape[0]
    faults = [(shortest <= 0) | (dims != 3), longest > _MAX_RATIO * shortest, softening_reach > shortest / 2]
    first = 1 + jnp.argmax(jnp.stack(faults)).astype(jnp.int32)
    return jnp.where((longest > 0) & jnp.stack(faults).any(), first, 0)
