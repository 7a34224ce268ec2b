"""Find the particle of lowest potential of each group, for groups on one or several devices."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import Kind, check_box, check_in_range, check_particles, check_range, check_real, flat, mass_rows
from ..data import FofCatalogue, PosMass, RankIdx
from ..jax_ext import Exact, exact, is_concrete
from ..particles import check_num, check_representable
from ._densest import Ends, densest_particle
from ._rows import of_groups, used_rows
from ._whole_groups import whole_groups

_MAX_DIMS = 4
_BAD_SOFTENING = "softening is negative or not finite; pass a length of at least 0."


class LowestParticle(NamedTuple):
    """The particle of lowest potential of each group.

    Attributes:
        part: A particle class of ``g`` rows, one per group, with all properties of the particles.
        potential: ``(g,)``, negative, in mass over length: the potential due to the other particles of the group. For
            the gravitational potential, multiply it by Newton's constant.
        where: `jztree.data.RankIdx`, the device of the particle, and its row in the particles in group order there.
    """

    part: Any
    potential: jax.Array
    where: RankIdx


class _Found(NamedTuple):
    """The particle found for each group: rank and row among the particles in group order, and potential."""

    rank: jax.Array
    row: jax.Array
    potential: jax.Array


@flat(grouped=Kind(P(-1)), cata=Kind(P(-1)), softening=Kind(P(), lambda softening, _: check_softening(softening)))
def lowest_potential_particle(
    grouped: Any,
    cata: FofCatalogue,
    *,
    softening: ArrayLike = 0.0,
    boxsize: ArrayLike | None = None,
    group_rows: int | None = None,
) -> LowestParticle:
    """Find the particle of lowest potential of each group, the best available centre of a halo.

    The potential of a particle is a sum over all other particles of its group, in float64; velocities have no effect.
    The search is exact. If several particles have the same potential, the first row counts. For groups of more than 512
    particles, a tree first gives rigorous bounds for all potentials, in steps with errors of 30, 10 and 3 per cent. The
    function then sums the potentials of only those particles that may have the lowest one.

    Over several devices, the function collects all particles of a group on the device of its catalogue row, and a
    buffer there must hold them (``group_rows``). The function has no derivatives: differentiating it is an error.

    Args:
        grouped: The particles in group order from `jztree.fof.friends_of_friends`, in 1 to 4 dimensions. Without
            ``mass``, each particle counts 1.
        cata: The catalogue from the same call. It may have been sorted.
        softening: A length in the unit of the positions, equal on all ranks. Pairs have the Plummer potential
            ``-m / sqrt(r**2 + softening**2)``. With the default 0, a close pair may have the lowest potential; pass a
            tenth of the linking length for the centre of a halo. If it is 0, pairs at distance 0 are left out.
        boxsize: The box that the groups were found in, equal on all ranks; None means open. Groups must be smaller than
            half the box; distances are to the nearest images.
        group_rows: On several devices, the capacity in particles of the buffer for whole groups. None means a capacity
            sufficient for almost all data sets, which mapped functions enlarge if necessary.

    Returns:
        The particles, their potentials, and their rows in ``grouped``, one entry per group.

    Raises:
        TypeError: If an argument has an invalid type.
        ValueError: If an argument is invalid.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if the catalogue belongs to other
            particles or a potential exceeds its dtype.
        CapacityError: If whole groups do not fit ``group_rows``.

    Examples:
        >>> pos = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 9.0]], np.float32)
        >>> grouped, catalogue = jz.friends_of_friends(pos, 1.5, npart_min=3)
        >>> lowest = jz.halos.lowest_potential_particle(grouped, catalogue)
        >>> lowest.part, lowest.potential
        (Array([[1., 0.]], dtype=float32), Array([-2.], dtype=float32))
    """
    pos = check_particles(grouped, max_dims=_MAX_DIMS)
    check_representable({"grouped": grouped, "cata": cata})
    box, length = check_box(boxsize, pos.shape[1]), check_softening(softening)
    masses = mass_rows(grouped, pos.dtype)
    weights = jnp.ones(pos.shape[:1], pos.dtype) if masses is None else jnp.broadcast_to(masses, pos.shape[:1])
    part = PosMass(pos=pos, mass=weights, num=jnp.asarray(check_num(grouped), jnp.int32))
    n, catalogue_rows = pos.shape[0], np.shape(cata.count)[0]
    if n == 0 or catalogue_rows == 0:
        densest = densest_particle(grouped, cata, jnp.zeros((n,), jnp.float32))
        return LowestParticle(densest.part, jnp.zeros((catalogue_rows,), pos.dtype), densest.where)
    lowest, ends = _find(part, cata, length, box, group_rows)
    marks = _marks(lowest, cata, ends, n)
    densest = densest_particle(grouped, cata, marks)
    quantity = "the potential (mass over length) of the group in row {0} of the catalogue"
    checked = check_in_range(~jnp.isfinite(lowest.potential), pos.dtype, quantity)
    potential = jnp.where(checked == 0, lowest.potential, jnp.nan)
    return LowestParticle(densest.part, of_groups(cata, potential), densest.where)


def check_softening(softening: Any) -> Exact:
    """Return a softening length as an exact number. Raise ValueError unless it is one finite length of at least 0."""
    if isinstance(softening, Exact):
        return softening
    if np.shape(softening) != ():
        raise ValueError(f"softening must be one length for all particles; its shape is {np.shape(softening)}.")
    if is_concrete(softening):
        value = check_real(softening, "softening")
        if not (np.isfinite(value) and value >= 0):
            raise ValueError(f"softening is {value:g}; it must be a length of at least 0.")
        check_range(value, "softening", may_be_small=True)
        return exact(softening, ())
    bad = ~((softening >= 0) & jnp.isfinite(softening))
    return comm.after(exact(softening, ()), kernels.check(0, bad, [], _BAD_SOFTENING))


def _find(
    part: PosMass, cata: FofCatalogue, softening: Exact, box: Exact, group_rows: int | None
) -> tuple[_Found, Ends]:
    """Find the lowest potential of each group whose catalogue row is here."""
    n = part.pos.shape[0]
    # Finding the densest particle later includes the same checks, but the kernel and exchanges come before that.
    groups = whole_groups((part.pos, part.mass), cata, jnp.asarray(part.num, jnp.int32), group_rows)
    segments = groups.ngroups, groups.count, groups.offset
    pos, mass = groups.columns
    row, potential = kernels.lowest_potential(pos, mass, segments, softening, box)
    rank, row_here = _origins(groups.rank, groups.row, row, n)
    return _Found(rank, row_here, potential), groups.ends


def _marks(lowest: _Found, cata: FofCatalogue, ends: Ends, n: int) -> jax.Array:
    """Return ``(n,)``: 1 at this device's rows that were found for groups of any device, 0 elsewhere."""
    rank, ndev, _ = comm.get_rank_info()
    marks = _marked_rows(used_rows(cata) & (lowest.rank == rank), lowest.row, n)
    if ndev == 1:
        return marks
    # A group that continues on other devices is the last of its device.
    pairs = comm.all_gather(jnp.stack([lowest.rank[ends.last], lowest.row[ends.last]]))
    used = comm.all_gather(jnp.asarray(cata.ngroups, jnp.int32) > 0)
    return marks.at[jnp.where(used & (pairs[:, 0] == rank), pairs[:, 1], n)].set(1, mode="drop")


@functools.partial(jax.jit, static_argnames="n", inline=True)
def _marked_rows(is_marked: jax.Array, row: jax.Array, n: int) -> jax.Array:
    return jnp.zeros((n,), jnp.float32).at[jnp.where(is_marked, row, n)].set(1, mode="drop")


@functools.partial(jax.jit, static_argnames="n", inline=True)
def _origins(ranks: jax.Array, rows: jax.Array, row: jax.Array, n: int) -> tuple[jax.Array, jax.Array]:
    """Return the rank and the row, or ``n`` if ``row`` is -1, of each ``row`` of whole groups."""
    return ranks[row], jnp.where(row >= 0, rows[row], n)
