"""Kernels for the potentials of particles in their groups."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact
from ._call import as_num, call
from ._groups import _grouped

__all__ = ["group_potential", "group_tides", "lowest_potential"]


def lowest_potential(
    pos: jax.Array, mass: jax.Array, segments: tuple[jax.Array, jax.Array, jax.Array], softening: Exact, box: Exact
) -> tuple[jax.Array, jax.Array]:
    """Find the particle of lowest potential of each group.

    Args:
        pos: ``(n, d)``, particles in group order.
        mass: ``(n,)``, in the dtype of ``pos``.
        segments: ``ngroups``, ``count`` and ``offset``; see `catalogue`.
        softening: One length.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        The row of the particle, ``(g,)`` int32 (-1 for rows without a group), and its potential, a sum of masses over
        lengths; see `jztree.halos.lowest_potential_particle`.
    """
    shape = segments[1].shape
    out = jax.ShapeDtypeStruct(shape, jnp.int32), jax.ShapeDtypeStruct(shape, pos.dtype)
    return call("lowest_potential", out, *_grouped((pos, mass, None), segments, box), softening.words)


def group_potential(
    pos: jax.Array,
    mass: jax.Array,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    softening: Exact,
    box: Exact,
    error: Exact,
    *,
    spline: bool = False,
    images: bool = False,
    acceleration: bool = False,
    share: int | jax.Array = 0,
    shares: int = 1,
) -> tuple[jax.Array, jax.Array]:
    """Sum the potential and acceleration of each particle over the other particles of its group.

    The results depend on the particles of the group and their order alone. Groups of up to 512 particles are summed
    directly, larger ones with a tree.

    Args:
        pos: ``(n, d)``, particles in group order.
        mass: ``(n,)``, in the dtype of ``pos``. Masses may be negative; the errors are then relative to sums of
            absolute masses.
        segments: ``ngroups``, ``count`` and ``offset``; see `catalogue`. Groups must not overlap.
        softening: One length. Without a softening, pairs at distance 0 are left out.
        box: ``(d,)`` lengths, 0 if open. Pairs have the distance of their nearest images.
        error: The relative error that 99.9 % of the potentials do not exceed, and 99 % of the accelerations in two and
            more dimensions.
        spline: Whether to soften by Gadget's spline, which is Newtonian beyond ``2.8 * softening``, instead of
            Plummer's rule ``-m / sqrt(r**2 + softening**2)``.
        images: Whether to sum over all images of a box that is periodic in all of three dimensions, by Ewald's method.
            The mean density is subtracted, and errors are relative to sums over the nearest images without it.
        acceleration: Whether to compute accelerations.
        share: The number of this device, from 0 on, among the devices that share the work. Each has all particles,
            and computes some rows of each group; other rows are 0.
        shares: Number of devices that share the work.

    Returns:
        Potentials ``(n,)``, negative sums of mass over length, and accelerations ``(n, d)``, sums of mass over squared
        length, or ``(0, d)``; 0 for rows in no group.
    """
    rows, dims = pos.shape
    out = (
        jax.ShapeDtypeStruct((rows,), pos.dtype),
        jax.ShapeDtypeStruct((rows if acceleration else 0, dims), pos.dtype),
    )
    arguments = (*_grouped((pos, mass, None), segments, box), softening.words, error.words, as_num(share))
    attributes: dict[str, Any] = {
        "spline": spline,
        "images": images,
        "acceleration": acceleration,
        "shares": np.int64(shares),
    }
    return call("group_potential", out, *arguments, **attributes)


def group_tides(
    pos: jax.Array,
    mass: jax.Array,
    moves: jax.Array,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    softening: Exact,
    box: Exact,
    *,
    spline: bool = False,
    transposed: bool = False,
    share: int | jax.Array = 0,
    shares: int = 1,
) -> jax.Array:
    """Sum the changes of the accelerations of `group_potential` if the particles move, over all pairs in float64.

    Args:
        pos: ``(n, d)``, particles in group order.
        mass: ``(n,)``, in the dtype of ``pos``, of any sign.
        moves: ``(n, d)``, in the dtype of ``pos``, small changes of the positions.
        segments: ``ngroups``, ``count`` and ``offset``; see `catalogue`. Groups must not overlap.
        softening: One length; see `group_potential`.
        box: ``(d,)`` lengths, 0 if open.
        spline: See `group_potential`.
        transposed: Whether to apply the transpose of the matrix from moves to changes.
        share: The number of this device; see `group_potential`.
        shares: Number of devices that share the work.

    Returns:
        ``(n, d)``; 0 for rows in no group.
    """
    out = jax.ShapeDtypeStruct(pos.shape, pos.dtype)
    arguments = (*_grouped((pos, mass, moves), segments, box), softening.words, as_num(share))
    return call("group_tides", out, *arguments, spline=spline, transposed=transposed, shares=np.int64(shares))
