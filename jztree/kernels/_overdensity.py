"""Kernels for spherical overdensities and sums over spheres."""

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import Exact
from ._call import Tree, call, i32, sizes

__all__ = ["overdensity", "sphere_sums"]


def overdensity(
    tree: Tree, mass: jax.Array, centre: jax.Array, nearest: jax.Array, density: Exact, box: Exact, min_count: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find the radii at which the mean density around each centre falls to ``m`` densities; see `jztree.overdensity`.

    Args:
        tree: A hierarchy.
        mass: ``(n,)`` or ``(1,)`` in the dtype of the positions. If it is ``(0,)``, every particle counts 1.
        centre: ``(q, d)``.
        nearest: ``(q,)``, at least the distance of the ``min_count``-th nearest particle, infinite if there are
            fewer particles. If it is negative, the kernel skips this centre and returns zeros.
        density: ``(m,)`` positive.
        box: ``(d,)`` lengths, 0 if open.
        min_count: Smallest number of particles of a sphere.

    Returns:
        Radii, masses and numbers of particles (int32) ``(q, m)``; ``(q, 2)``, the largest root of mass over radius, and
        its radius; and ``(q,)``, a radius outside which particles do not influence the result. The latter is infinite
        if there are fewer than ``min_count`` particles.
    """
    words = jnp.asarray(density.words)
    (q, _), m, dtype = centre.shape, words.shape[0], tree.posz.dtype
    table, pair, column = (jax.ShapeDtypeStruct(shape, dtype) for shape in ((q, m), (q, 2), (q,)))
    return call(
        "overdensity",
        (table, table, i32(q, m), pair, column),
        *(*tree.arrays, mass, centre, nearest, words, box.words),
        gradients="stopped",
        plane_sizes=sizes(tree.plane_sizes),
        min_count=np.int64(min_count),
    )


def sphere_sums(
    tree: Tree, mass: jax.Array, vel: jax.Array, centre: jax.Array, radius: jax.Array, box: Exact
) -> tuple[jax.Array, ...]:
    """Sum over the particles at most ``radius`` away from each centre; see `jztree.overdensity.sphere_properties`.

    Args:
        tree: A hierarchy.
        mass: ``(n,)`` or ``(1,)`` in the dtype of the positions, in z-order. If it is ``(0,)``, every particle counts
            1.
        vel: ``(n, d)`` in z-order, or ``(0, d)`` for none.
        centre: ``(q, d)``.
        radius: ``(q,)``; if it is not positive, the row is 0.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        The numbers of particles, ``(q,)`` int32; then the outputs of `catalogue`: mass, centre, root-mean-square
        radius, largest radius, inertia tensor over its trace, velocity, velocity dispersion and angular momentum.
        Without ``vel`` the last three are empty.
    """
    (q, dims), dtype = centre.shape, tree.posz.dtype

    def column(*shape: int, rows: int = q) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), dtype)

    moving = q if vel.shape[0] > 0 else 0
    speeds = (column(dims, rows=moving), column(rows=moving), column(dims * (dims - 1) // 2, rows=moving))
    out = (i32(q), column(), column(dims), column(), column(), column(dims, dims), *speeds)
    arguments = (*tree.arrays, mass, vel, centre, radius, box.words)
    return call("sphere_sums", out, *arguments, plane_sizes=sizes(tree.plane_sizes))
