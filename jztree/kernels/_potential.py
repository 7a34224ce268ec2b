"""Kernels for the potentials of particles in their groups."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact
from ._call import _refusing, call
from ._groups import _grouped

__all__ = [
    "differentiable_potential",
    "group_potential",
    "lowest_potential",
]


def lowest_potential(
    pos: jax.Array,
    mass: jax.Array,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    softening: Exact,
    box: Exact,
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
    acceleration: bool = False,
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
        box: ``(d,)`` lengths, 0 if open. The image of a particle is the nearest to the first particle of the group.
        error: The relative error that 99.9 % of the potentials do not exceed, and 99 % of the accelerations in two and
            more dimensions.
        spline: Whether to soften by Gadget's spline, which is Newtonian beyond ``2.8 * softening``, instead of
            Plummer's rule ``-m / sqrt(r**2 + softening**2)``.
        acceleration: Whether to compute accelerations.

    Returns:
        Potentials ``(n,)``, negative sums of mass over length, and accelerations ``(n, d)``, sums of mass over squared
        length, or ``(0, d)``; 0 for rows in no group.
    """
    rows, dims = pos.shape
    out = (
        jax.ShapeDtypeStruct((rows,), pos.dtype),
        jax.ShapeDtypeStruct((rows if acceleration else 0, dims), pos.dtype),
    )
    arguments = (*_grouped((pos, mass, None), segments, box), softening.words, error.words)
    return call("group_potential", out, *arguments, spline=spline, acceleration=acceleration)


def differentiable_potential(
    pos: jax.Array,
    mass: jax.Array,
    segments: tuple[jax.Array, jax.Array, jax.Array],
    softening: Exact,
    box: Exact,
    error: Exact,
    *,
    spline: bool,
) -> jax.Array:
    """Return the potentials of `group_potential`, with derivatives by positions and masses in reverse mode.

    The derivative by a mass is the potential of the cotangents as masses. That by a position needs the accelerations
    due to the masses and due to the cotangents.
    """
    lengths = (Exact(_refusing("group_potential", x.words)) for x in (softening, box, error))
    return _potential(spline, pos, mass, tuple(segments), *lengths)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def _potential(spline: bool, pos: jax.Array, mass: jax.Array, *how: Any) -> jax.Array:
    return group_potential(pos, mass, *how, spline=spline)[0]


def _potential_forward(spline: bool, pos: jax.Array, mass: jax.Array, *how: Any) -> tuple[jax.Array, Any]:
    return _potential(spline, pos, mass, *how), (pos, mass, how)


def _potential_backward(spline: bool, saved: Any, cotangent: jax.Array) -> tuple[Any, ...]:
    pos, mass, how = saved
    by_mass, of_cotangents = group_potential(pos, cotangent, *how, spline=spline, acceleration=True)
    of_masses = group_potential(pos, mass, *how, spline=spline, acceleration=True)[1]
    by_pos = -(cotangent[:, None] * of_masses + mass[:, None] * of_cotangents)
    return by_pos, by_mass, *(jax.tree.map(_no_derivative, x) for x in how)


def _no_derivative(array: jax.Array) -> Any:
    floating = jnp.issubdtype(array.dtype, jnp.floating)
    return jnp.zeros_like(array) if floating else np.zeros(array.shape, jax.dtypes.float0)


_potential.defvjp(_potential_forward, _potential_backward)
