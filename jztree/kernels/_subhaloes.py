"""Kernels for candidates for subhaloes, and for the energies of their particles."""

import jax
import jax.numpy as jnp

from ..jax_ext import Exact
from ._call import call, i32
from ._groups import _grouped

__all__ = ["bound_energies", "density_sets"]


def density_sets(
    neighbours: jax.Array,
    order: jax.Array,
    group: jax.Array,
    segments: tuple[jax.Array, jax.Array],
    start: jax.Array,
    first: jax.Array,
    candidates: int,
    min_count: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the overdense sets of each group, which are candidates for subhaloes; see `jztree.subhaloes`.

    Args:
        neighbours: ``(n, k)`` int32, the numbers of the neighbours of each row, nearest first. Numbers outside
            the group of the row are left out.
        order: ``(n,)`` int32, rows sorted by falling density within each group. The places of a group are its rows.
        group: ``(n,)`` int32, the group of each row; another number for rows in no group.
        segments: ``count`` and ``offset``, ``(g,)`` int32, the number of rows and the first row of each group.
        start: ``(g,)`` int32, the number of the first row of each group among the neighbours.
        first: ``(g,)`` int32, the first candidate of each group, which has ``count // min_count`` candidates at most.
        candidates: Number of rows for candidates.
        min_count: The smallest number of particles of a candidate.

    Returns:
        ``inner`` ``(n,)`` int32, the innermost candidate with each row, -1 for none; and, for each candidate, the next
        larger one that contains it (-1 for a whole group, -2 for an unused row) and how deep smaller candidates are
        nested inside it, ``(candidates,)`` int32 (-1 for an unused row).
    """
    out = i32(neighbours.shape[0]), i32(candidates), i32(candidates)
    return call("density_sets", out, neighbours, order, group, *segments, start, first, min_count=min_count)


def bound_energies(
    particles: tuple[jax.Array, jax.Array, jax.Array],
    segments: tuple[jax.Array, jax.Array, jax.Array],
    box: Exact,
    internal: jax.Array | None,
    potential: jax.Array,
    key: jax.Array,
    constants: Exact,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute the energies of particles in the frame of the core of their candidate.

    Args:
        particles: ``pos``, ``mass`` and ``vel``; see `catalogue`. The rows of each candidate are contiguous.
        segments: Number of candidates, and ``count`` and ``offset`` of each; see `catalogue`.
        box: ``(d,)`` lengths, 0 if open.
        internal: ``(n,)`` internal energies per mass. None means 0.
        potential: ``(n,)``, sums of mass over length.
        key: ``(n,)``. A tenth of the particles of a candidate, but at least 20, with the lowest keys are its core.
        constants: ``(3,)``: the constant of gravity, the Hubble constant in velocity per length, and the scale factor
            of lengths.

    Returns:
        ``(n, 3)``: energy and potential per mass, and distance from the centre, the particle of lowest potential;
        undefined outside of candidates. The row of the centre of each candidate, ``(g,)`` int32 (-1 without particles),
        and the mean velocity of its core, ``(g, d)``.
    """
    pos, mass, vel = particles
    none = jnp.zeros((0,), pos.dtype)
    groups = segments[1].shape[0]
    out = (
        jax.ShapeDtypeStruct((pos.shape[0], 3), pos.dtype),
        i32(groups),
        jax.ShapeDtypeStruct((groups, pos.shape[1]), pos.dtype),
    )
    extra = none if internal is None else internal, potential, key
    return call("bound_energies", out, *_grouped((pos, mass, vel), segments, box), *extra, constants.words)
