"""Ghosts: the particles of other ranks that a rank needs, brought in z-order.

1. Every rank tells all others of boxes that cover its particles. These are fewer the more ranks there are, so that all
   together stay a few megabytes.
2. At most 256 boxes cover what a rank looks around closely, each with the radius that it wants to look into. A rank
   sends each to those ranks that have told of particles within its radius, and to nobody else; up to 64 ranks tell
   all others of theirs.
3. Every rank then knows which of its own particles others want, and sends them; nobody asks. Ranks own consecutive
   ranges of the z-order, and what they send is in z-order, so that [ghosts of lower ranks | own | ghosts of higher
   ranks] is in z-order already, and a hierarchy can be built over it without a sort.

Which particles travel is decided by the close boxes alone. The wider ones only decide who hears of these: a rank that
is not sent a box has nothing within its radius, because a distance never grows with a box, rounding included. Whoever
asks the wider boxes what to look for (`kernels.open_leaves`) may look for too much where they are wide, never for too
little.

Cost: one all_gather of boxes, an exchange of boxes with ranks nearby, and one of rows; each exchange with its counts.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._checks import at_least_normal, check_box, check_particles, check_range, check_real, is_length
from .._particles import check_num
from .._transform.capacity import Room, room
from ..jax_ext import Exact, is_concrete
from . import FOREIGN, TreeHierarchy, check_hierarchy, kernel_tree
from ._zorder import Domain, domain_of

__all__ = ["Surroundings", "bring"]

_BAD_RADIUS = "radius is negative or NaN; ghosts lie within a radius of at least 0."

_MOST_BOXES = 256
# That all ranks know of all: so many in all, but of each rank at least a few.
_KNOWN_BOXES, _LEAST_KNOWN = 2**17, 32
# Up to so many boxes that want ghosts, of all ranks, are told to all: one collective, and less to compile than an
# exchange, which would make the first call of kNN over 4 devices take a third longer.
_FEW_WANTED = 2**14
# Room for boxes that others want ghosts around, to begin with. Of 2,048 ranks of 100,000 uniform particles, k=8, a rank
# gets some hundred.
_BOX_ROWS = 2**14
# Room for ghosts to begin with, as a fraction of the particles and a number. Uniform particles, k=8, 250,000 a rank
# need a tenth.
_GHOST_FRACTION = 0.5
_GHOST_ROWS = 4096
# About as many as a leaf has: boxes of more rows bring more that are no ghosts, and fewer rows make more boxes.
_RUN_ROWS = 32

Blocks = tuple[jax.Array, jax.Array, jax.Array]


def leaves_of(th: TreeHierarchy) -> Blocks:
    """``(particle_splits, lower, upper)`` of the leaves."""
    return th.particle_splits(0), th.lower(0), th.upper(0)


def runs_of(posz: jax.Array, num: jax.Array, box: Exact) -> Blocks:
    """``(particle_splits, lower, upper)`` of a few rows each, in place of leaves where there is no hierarchy."""
    return kernels.row_boxes(posz, num, box, _RUN_ROWS)


def boxes_of(posz: jax.Array, num: jax.Array, domain: Domain, leaves: Blocks, most: int = _MOST_BOXES) -> Blocks:
    """``(particle_splits, lower, upper)`` of at most so many boxes that cover a rank's particles closely."""
    return kernels.covering_boxes(posz, num, *domain.keys(), leaves, max(1, min(most, posz.shape[0])))


def tell_all(posz: jax.Array, num: jax.Array, domain: Domain, leaves: Blocks, boxes: Blocks, *behind: Any) -> Blocks:
    """``(lower, upper, count)`` of boxes that cover the particles of each rank, ``(r, b, d)`` and ``(r, b)``.

    boxes: of this rank's particles, which it tells if there are few enough. behind: counts that must be known before;
    see `comm.after`.
    """
    most = max(_LEAST_KNOWN, _KNOWN_BOXES // comm.num_ranks())
    told = boxes if boxes[1].shape[0] <= most else boxes_of(posz, num, domain, leaves, most)
    splits, lower, upper = told
    return comm.all_gather_rows(comm.after((lower, upper, jnp.diff(splits)), num, *behind))


def close_boxes(boxes: Blocks, known: Blocks) -> Blocks | None:
    """``(lower, upper, count)`` of the close boxes of this rank and the two that own what is next in the z-order, for
    `kernels.open_leaves`: ``(3, b, d)`` and ``(3, b)``. None if all close boxes are known.

    A range often begins or ends with a few particles beyond a jump of the z-order. What is near these, the rank before
    or after has, and wide boxes of that would have them look very far: for 20,000 uniform particles a rank in an open
    box, k=8 and 16 boxes, ghosts were half as many again. boxes: the rank's own. known: see `tell_all`.
    """
    (rank, ndev, _), (splits, lower, upper) = comm.get_rank_info(), boxes
    if known[2].shape[1] == lower.shape[0]:
        return None
    own = comm.after((lower, upper, jnp.diff(splits)), known[2])
    lower, upper, count = comm.rows_of_adjacent(own)
    there = jnp.stack([rank > 0, rank < ndev - 1, rank >= 0])
    return lower, upper, jnp.where(there[:, None], count, 0)


@dataclass
class Surroundings:
    """A rank's particles with its ghosts, in z-order.

    rows: the pytree that was asked for, arrays ``(m, ...)``.
    num: how many of the rows hold particles, int32.
    start: the row of the rank's first own particle, int32; the others follow it.
    order, traffic, room: how the rows travelled, and how many there is room for.
    """

    rows: Any
    num: jax.Array
    start: jax.Array
    order: jax.Array
    traffic: comm.Traffic
    room: Room

    def more(self, rows: Any, filled: bool = True, own: bool = True) -> Any:
        """Other properties of the same particles. rows: a pytree of arrays ``(n, ...)`` of the rank's own, or longer
        ones. filled, own: see `comm.exchange`.
        """
        came, _, _ = comm.exchange(
            rows, self.traffic, self.room, order=self.order, filled=filled, own=own, name="properties"
        )
        return came


def ghost_room(option: str, given: int | None, n: int) -> Room:
    """Room for a rank's ``n`` rows and its ghosts."""
    ndev = comm.num_ranks()
    return room(
        option,
        None if given is None else n + given,
        n + int(n * _GHOST_FRACTION) + _GHOST_ROWS,
        max(ndev * n, 1),
    )


def bring(
    rows: Any,
    partz: Any,
    th: TreeHierarchy,
    radius: Any,
    boxsize: Any = None,
    ghost_rows: int | None = None,
) -> Surroundings:
    """A rank's particles, and all of other ranks that are within ``radius`` of any of them, in z-order.

    For use in a function that is mapped over devices; all ranks call it together. Particles that are a little farther
    away may come too. Outside of any mesh there are no ghosts.

    rows: a pytree of arrays ``(n, ...)`` to bring, such as the positions, or positions and masses.
    partz, th: this rank's range of the z-order and its hierarchy, as `jztree.tree.zsort_and_tree` returns them.
    radius: in the unit of the positions, the same on all ranks or one a rank.
    boxsize: as for ``th``; across its faces, ghosts are at the places they have, not moved by a period.
    ghost_rows: room for ghosts. None means some, and more where a mapped function finds that it needs more.

    Returns `Surroundings` with room for ``n`` rows and the ghosts; `jztree.tree.build_tree_hierarchy` takes their
    positions as they are. Raises TypeError or ValueError for arguments of the wrong kind, and an error at run time, on
    all ranks, if ``radius`` is negative or NaN on any, if ``th`` belongs to other particles, or if the ghosts do not
    fit (`jztree.CapacityError`).
    """
    check_hierarchy(th)
    pos = check_particles(partz)
    for leaf in jax.tree.leaves(rows):
        if jnp.ndim(leaf) == 0 or leaf.shape[0] != pos.shape[0]:
            raise ValueError(f"rows must have {pos.shape[0]} rows, one a particle; one has shape {jnp.shape(leaf)}.")
    box, num, blocks = check_box(boxsize, pos.shape[1]), check_num(partz), leaves_of(th)
    reach = _reach(radius, pos.dtype)
    faults = [
        comm.Fault(reach < 0, [], _BAD_RADIUS),
        comm.Fault(kernels.tree_fits(kernel_tree(partz, kernels.as_num(num), th), box) == 0, [], FOREIGN),
    ]
    domain, (num,) = domain_of([pos], [num], ["the positions"], box, faults)
    boxes = splits, lower, upper = boxes_of(pos, num, domain, blocks)
    wanted = jnp.where(jnp.diff(splits) > 0, reach, -1)
    place = ghost_room("ghosts", ghost_rows, pos.shape[0])
    known = functools.partial(tell_all, pos, num, domain, blocks, boxes)
    return surroundings(rows, pos, num, blocks, known, (lower, upper, wanted), box, place)


def _reach(radius: Any, dtype: Any) -> jax.Array:
    """``radius`` in the dtype of the positions, and not below what was given."""
    if is_concrete(radius):
        known = check_real(radius, "radius")
        check_range(known, "radius", may_be_small=True)
        if known.ndim > 0 or not known >= 0:
            raise ValueError(f"radius is {known}; it must be a number of at least 0.")
    given = jnp.asarray(radius, dtype)
    farther = jnp.nextafter(at_least_normal(given), jnp.asarray(jnp.inf, dtype))
    return jnp.where(is_length(given), farther, jnp.asarray(-1, dtype))


def surroundings(
    rows: Any,
    posz: jax.Array,
    num: jax.Array,
    blocks: Blocks,
    known: Callable[[], Blocks],
    wanted: Blocks,
    box: Exact,
    place: Room,
    lower_only: bool = False,
    filled: bool = True,
) -> Surroundings:
    """Bring every rank's ghosts, which lie in or near boxes of its own choice.

    rows: the pytree of arrays ``(n, ...)`` to bring, of the rank's own particles. posz: ``(n, d)``, their positions.
    blocks: runs of rows that are near each other, ``(particle_splits, lower, upper)``. known: gives where the particles
        of all ranks are, see `tell_all`; few ranks need not know. wanted: ``(lower, upper, radius)``, the rank's boxes
        ``(b, d)`` and how far each wants to look, ``(b,)``; negative: it needs nothing.
    place: room for own rows and ghosts. lower_only: ghosts go to lower ranks only. filled: whether rows behind the last
        ghost are 0; see `comm.exchange`.

    Raises `jztree.CapacityError` (see `jztree._transform.capacity`) on every rank if ghosts do not fit on some rank.
    """
    rank, n = comm.get_rank_info()[0], posz.shape[0]
    near = _wanted_of_others(known, wanted, box, place, higher_only=lower_only)
    order, counts = kernels.select_ghosts(posz, num, blocks, near, rank, box, place.rows)
    what, advice = "its own particles and ghosts", f"set ghost_rows in the configuration to that minus {n}, or more."
    selection = _Selection(order, counts, place, what, advice)
    brought, total, traffic = selection.exchange(rows, num, "ghosts", max(place.rows // 4, 1), filled)
    start = comm.starts_of(traffic.received)[rank]
    return Surroundings(brought, total, start, order, traffic, place)


def _wanted_of_others(
    known: Callable[[], Blocks], wanted: Blocks, box: Exact, ghosts: Room, higher_only: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """The boxes ``wanted`` of other ranks within whose radius this rank may have particles: where those of each rank
    begin, ``(r + 1,)``, their lower and upper corners, and the radius.
    """
    (rank, ndev, _), boxes = comm.get_rank_info(), wanted[0].shape[0]
    if ndev * boxes <= _FEW_WANTED:
        lower, upper, radius = comm.all_gather_rows(jax.lax.stop_gradient(wanted))
        asks = (jnp.arange(ndev, dtype=jnp.int32) < rank) | (not higher_only)
        radius = jnp.where(asks[:, None], radius, -1).reshape(-1)
        lower, upper = (corner.reshape(ndev * boxes, -1) for corner in (lower, upper))
        return comm.vary(jnp.arange(ndev + 1, dtype=jnp.int32) * boxes), lower, upper, radius
    # Whoever gives room for ghosts need not think of boxes: it is enough for both.
    place = room("ghost_boxes", None, max(_BOX_ROWS, ghosts.rows if ghosts.given else 0), ndev * boxes)
    wanted = jax.lax.stop_gradient(wanted)
    order, counts = kernels.select_boxes(wanted, known(), rank, box, place.rows, higher_only)
    what = "boxes of other ranks that want ghosts"
    advice = "room for ghosts is room for as many boxes, too: set ghost_rows in the configuration to that or more."
    selection = _Selection(order, counts, place, what, advice)
    came, total, traffic = selection.exchange(wanted, jnp.sum(counts), "boxes", min(place.rows, _MOST_BOXES * ndev))
    return jnp.append(comm.starts_of(traffic.received), total), *came


@dataclass
class _Selection:
    """Rows for other ranks, ``order`` and ``counts`` as kernels select them, and room for what comes of theirs.

    what, advice: for the error if there is too little; see `comm.exchange`.
    """

    order: jax.Array
    counts: jax.Array
    place: Room
    what: str
    advice: str

    def exchange(
        self, rows: Any, num: jax.Array, name: str, chunk_rows: int, filled: bool = True
    ) -> tuple[Any, jax.Array, comm.Traffic]:
        """The rows that come, how many, and the traffic. num: a count of rows before."""
        traffic = comm.traffic_of(self.counts)
        # What a rank sends must fit its list of rows to send.
        needs = jnp.maximum(traffic.arriving, traffic.leaving)
        # From here on all depends on the check.
        traffic = comm.after(traffic, comm.check_room(num, needs, self.place, self.what, self.advice))
        brought, total, _ = comm.exchange(
            rows,
            traffic,
            self.place,
            order=self.order,
            what=self.what,
            advice=self.advice,
            name=name,
            filled=filled,
            chunk_rows=chunk_rows,
        )
        return brought, total, traffic
