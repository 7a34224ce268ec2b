"""Kernels for group order and the catalogue."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from ..jax_ext import Exact
from ._call import Continued, as_num, call, i32

__all__ = [
    "catalogue",
    "catalogue_of_rank",
    "group_order",
    "group_parts",
    "group_segments",
    "group_targets",
    "pack_parts",
    "settle_groups",
    "straddling_sums",
    "straddling_words",
]


def group_order(
    label: jax.Array, num: int | jax.Array, npart_min: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Sort particles by group, and find the groups of at least ``npart_min`` particles.

    Args:
        label: ``(n,)`` int32, the first row of each row's group.
        num: int32 scalar.
        npart_min: Smallest number of particles of a listed group.

    Returns:
        ``order`` ``(n,)`` (rows of listed groups, group after group; then all others), the number of groups, and
        ``count`` and ``offset``, each ``(n // npart_min,)``.
    """
    n = label.shape[0]
    rows = i32(n // npart_min)
    return call("group_order", (i32(n), i32(), rows, rows), label, as_num(num), npart_min=np.int64(npart_min))


def catalogue(
    pos: jax.Array,
    mass: jax.Array | None,
    vel: jax.Array | None,
    ngroups: jax.Array,
    count: jax.Array,
    offset: jax.Array,
    box: Exact,
) -> tuple[jax.Array, ...]:
    """Compute sums over groups.

    A property that is None has no sums. For derivatives see `jztree.fof`.

    Args:
        pos: ``(n, d)``, particles in group order.
        mass: ``(n,)`` or ``(1,)``, in the dtype of ``pos``, or None.
        vel: ``(n, d)``, in the dtype of ``pos``, or None.
        ngroups: Number of groups.
        count: ``(g,)`` int32, number of particles of each group.
        offset: ``(g,)`` int32, first row of each group.
        box: ``(d,)`` lengths, 0 if open.

    Returns:
        In this order: mass, centre, root-mean-square radius, largest radius, inertia tensor ``(g, d, d)`` over its
        trace, velocity, velocity dispersion and angular momentum ``(g, d * (d - 1) / 2)``. All are means, except the
        mass. Without ``vel`` the last three are empty.
    """
    none = np.zeros((0, straddling_words(pos.shape[1])), np.uint32)
    return catalogue_of_rank((pos, mass, vel), (ngroups, count, offset), box, none, 0)[1:]


def _grouped(
    particles: tuple[jax.Array, jax.Array | None, jax.Array | None],
    segments: tuple[jax.Array, jax.Array, jax.Array],
    box: Exact,
) -> tuple[Any, ...]:
    """Return particles and their groups as kernel arguments."""
    pos, mass, vel = particles
    no_mass, no_vel = np.zeros((0,), pos.dtype), np.zeros((0, pos.shape[1]), pos.dtype)
    return (pos, no_mass if mass is None else mass, no_vel if vel is None else vel, box.words, *segments)


def group_parts(
    rank: int | jax.Array, root_rank: jax.Array, root_row: jax.Array, num: int | jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find this rank's parts of groups. The first row of a part on this rank identifies it.

    Args:
        rank: This rank.
        root_rank: ``(n,)`` int32, the rank of the first particle of each row's group.
        root_row: ``(n,)`` int32, the row of that particle, which comes no later than the row itself.
        num: int32 scalar.
        chunk: Capacity of a message from one rank to another, which holds the parts in one window of the receiver's
            rows.

    Returns:
        ``label`` ``(n,)`` int32, the first row here of the group of each row (each row from ``num`` on is a separate
        group); ``count`` ``(n,)`` int32, the particles of a part at its first row and 0 elsewhere; ``parts`` ``(n,)``
        int32, the parts of groups that begin on other ranks, in the order of their roots, then -1; their number
        parts; and the smallest number of windows, a power of two, for which no message exceeds ``chunk`` parts. The
        last output is the first row whose root is invalid, int32, or -1 if all are valid. If a root is invalid, all
        other outputs are meaningless.
    """
    rows = i32(root_rank.shape[0])
    out = (rows, rows, rows, i32(), i32(), i32())
    return call("group_parts", out, as_num(rank), root_rank, root_row, as_num(num), chunk=np.int64(chunk))


def pack_parts(
    groups: tuple[jax.Array, jax.Array, jax.Array],
    parts: tuple[jax.Array, jax.Array],
    window: Any,
    windows: Any,
    shape: tuple[int, int],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Pack the messages to the owners of groups, for one window of the owners' rows.

    Args:
        groups: ``root_rank``, ``root_row`` and ``count``; see `group_parts`.
        parts: ``parts`` and their number; see `group_parts`.
        window: Number of the window.
        windows: Number of windows.
        shape: Ranks and chunk.

    Returns:
        ``(ranks, chunk, 2)`` int32 with the root's row and the number of particles of each part, and -1 and 0 in unused
        entries; and ``starts`` and ``counts``, ``(ranks,)`` int32, the range of ``parts`` sent to each rank.
    """
    ranks, chunk = shape
    out = i32(ranks, chunk, 2), i32(ranks), i32(ranks)
    return call("pack_parts", out, *groups, *parts, as_num(window), as_num(windows))


def settle_groups(
    rank: int | jax.Array,
    root_rank: jax.Array,
    count: jax.Array,
    received: jax.Array,
    window: Any,
    windows: Any,
    places: jax.Array,
    tally: jax.Array,
    npart_min: int,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Decide which groups of a window are listed, and the places of their parts. Call this for all windows in order.

    Args:
        rank: This rank.
        root_rank: See `group_parts`.
        count: See `group_parts`.
        received: ``(r, chunk, 2)`` int32, the messages that all ranks packed with `pack_parts` for this rank and
            window.
        window: Number of the window.
        windows: Number of windows.
        places: ``(n, 2)`` uint32. At the first row of each part, the part's start among the particles in listed groups
            of its owner, as low and high word. All bits are set if the group has fewer than ``npart_min`` particles.
        tally: ``(4,)`` uint32, the number of particles in the groups listed so far, and in the largest group, two words
            each.
        npart_min: Smallest number of particles of a listed group.

    Returns:
        The places of the received parts, ``(r, chunk, 2)`` uint32; ``places`` with those of this rank's own parts of
        the same groups; and ``tally``.
    """
    answers, new_tally = (jax.ShapeDtypeStruct(shape, jnp.uint32) for shape in (received.shape, tally.shape))
    arguments = (as_num(rank), root_rank, count, received, as_num(window), as_num(windows), tally)
    return call("settle_groups", (answers, Continued(places), new_tally), *arguments, npart_min=np.int64(npart_min))


def group_targets(
    rank: int | jax.Array,
    root_rank: jax.Array,
    root_row: jax.Array,
    num: int | jax.Array,
    label: jax.Array,
    places: jax.Array,
    tallies: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """Return the destination of each particle if all ranks get equal shares of the group order.

    That order is rank by rank: the listed groups that begin on the rank, then its particles in no listed group.

    Args:
        rank: This rank.
        root_rank: See `group_parts`.
        root_row: See `group_parts`.
        num: int32 scalar.
        label: See `group_parts`.
        places: See `settle_groups`.
        tallies: ``(r, 5)`` uint32, for each rank the tally that `settle_groups` returned, and the number of the rank's
            particles in no listed group.

    Returns:
        ``to_rank``, ``(n,)`` int32 (-1 from ``num`` on), and ``target``, ``(n,)`` int32, the row on that rank, or its
        bitwise complement for the first particle of a listed group.
    """
    rows = i32(root_rank.shape[0])
    arguments = (root_rank, root_row, as_num(num), label, places, tallies)
    return call("group_targets", (rows, rows), as_num(rank), *arguments)


def group_segments(
    rank: int | jax.Array, target: jax.Array, num: int | jax.Array, tallies: jax.Array, capacity: int
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array, jax.Array]:
    """Find the groups that begin among particles received from other ranks.

    Args:
        rank: This rank.
        target: ``(n,)`` int32, of the particles in the order received; see `group_targets`.
        num: int32 scalar.
        tallies: See `group_targets`.
        capacity: Number of groups that fit into the result.

    Returns:
        ``place``, ``(n,)`` int32, the row of each particle; the number of leading rows that continue the last group of
        the ranks before; the number of groups; and ``count`` and ``offset``, ``(capacity,)`` int32, the number of rows
        of each group on this rank, and the first row.
    """
    out = i32(target.shape[0]), i32(), i32(), i32(capacity), i32(capacity)
    return call("group_segments", out, as_num(rank), target, as_num(num), tallies)


def straddling_words(dims: int) -> int:
    """Return the number of 32-bit words of a row of `straddling_sums`."""
    spreads = dims * (dims + 1) // 2 + max(1, dims * (dims - 1) // 2) + 2
    return 4 * (2 + 3 * dims + 2 + spreads)


def straddling_sums(
    particles: tuple[jax.Array, jax.Array | None, jax.Array | None],
    segments: tuple[jax.Array, jax.Array, jax.Array],
    head: Any,
    box: Exact,
    number: Any,
    ends: jax.Array,
    rank: int | jax.Array,
) -> jax.Array:
    """Sum over this rank's parts of two groups: the one that earlier ranks began, and the last one that begins here.

    Args:
        particles: ``pos``, ``mass`` and ``vel``; see `catalogue`.
        segments: ``ngroups``, ``count`` and ``offset``; see `group_segments`.
        head: The number of leading rows; see `group_segments`.
        box: ``(d,)`` lengths, 0 if open.
        number: 0, 1, 2 for masses, then centres, then spreads.
        ends: ``(r, straddling_words(d))`` uint32, the results of every rank so far; zeros at first.
        rank: This rank.

    Returns:
        This rank's row of the next ``ends``.
    """
    out = jax.ShapeDtypeStruct(ends.shape[1:], jnp.uint32)
    numbers = (as_num(rank), as_num(head), as_num(number))
    return call("straddling_sums", out, *_grouped(particles, segments, box), ends, *numbers)


def catalogue_of_rank(
    particles: tuple[jax.Array, jax.Array | None, jax.Array | None],
    segments: tuple[jax.Array, jax.Array, jax.Array],
    box: Exact,
    ends: ArrayLike,
    rank: int | jax.Array,
) -> tuple[jax.Array, ...]:
    """Compute the `catalogue` of the groups that begin on this rank, including their parts on other ranks.

    Args:
        particles: See `straddling_sums`.
        segments: See `straddling_sums`.
        box: ``(d,)`` lengths, 0 if open.
        ends: The result of `straddling_sums` after the three passes.
        rank: This rank.

    Returns:
        The count of each group, ``(g,)`` int32, then the outputs of `catalogue`.
    """
    pos, _, vel = particles
    (n_groups,), dims = segments[1].shape, pos.shape[1]

    def column(*shape: int, rows: int = n_groups) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct((rows, *shape), pos.dtype)

    moving = 0 if vel is None else n_groups
    speeds = (column(dims, rows=moving), column(rows=moving), column(dims * (dims - 1) // 2, rows=moving))
    out = (i32(n_groups), column(), column(dims), column(), column(), column(dims, dims), *speeds)
    return call("catalogue", out, *_grouped(particles, segments, box), ends, as_num(rank), gradients="stopped")
