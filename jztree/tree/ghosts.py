"""Ghosts: copies of the particles of other ranks that a rank needs, in z-order.

1. Every rank sends boxes that cover its particles to all others. The number of boxes per rank falls with the number of
   ranks, so that all boxes together take a few megabytes.
2. Each rank covers the regions that it searches with at most 256 close boxes, each with a search radius. It sends each
   close box only to ranks whose boxes from step 1 are within this radius. If there are at most 64 ranks, all send their
   close boxes to all others.
3. Every rank then knows which of its particles others need, and sends them without a further request. Ranks own
   consecutive ranges of the z-order and send rows in z-order. So [ghosts of lower ranks | own | ghosts of higher ranks]
   is already in z-order, and a hierarchy can be built over it without a sort.

Only the close boxes decide which particles a rank sends. The wider boxes of step 1 only decide which ranks receive a
close box. A rank that receives none has no particles within the radius, because the distance to a larger box is never
greater, including rounding. If a search uses the wide boxes (`kernels.open_leaves`), it may request more particles than
necessary, but never fewer.

Cost: one all_gather of boxes, an exchange of boxes with nearby ranks, and one of rows; each exchange also sends its
counts.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.capacity import Capacity, choose_capacity
from ..arguments import at_least_normal, check_box, check_particles, check_range, check_real, is_length
from ..jax_ext import Exact, is_concrete
from ..particles import Array, Particles, check_num
from . import FOREIGN, TreeHierarchy, check_hierarchy, kernel_tree
from ._zorder import Domain, domain_of

__all__ = ["Surroundings", "bring"]

_BAD_RADIUS = "radius is negative or NaN; it must be at least 0."

_MOST_BOXES = 256
# Total number of boxes known to all ranks, and the smallest number per rank.
_KNOWN_BOXES, _LEAST_KNOWN = 2**17, 32
# If the ranks together have at most this number of request boxes, every rank receives them all. This collective
# compiles faster than an exchange, which would make the first call of kNN over 4 devices take a third longer.
_FEW_REQUESTS = 2**14
# Initial capacity for request boxes of other ranks. With 2,048 ranks of 100,000 uniform particles and k=8, a rank
# receives a few hundred.
_BOX_ROWS = 2**14
# Initial capacity for ghosts: a fraction of the particles plus a constant. Uniform particles with k=8 and 250,000 per
# rank need a tenth.
_GHOST_FRACTION = 0.5
_GHOST_ROWS = 4096
# About the size of a leaf. Boxes of more rows bring more particles than needed; boxes of fewer rows are more numerous.
_RUN_ROWS = 32

Blocks = tuple[jax.Array, jax.Array, jax.Array]


def leaves_of(th: TreeHierarchy) -> Blocks:
    """Return ``(particle_splits, lower, upper)`` of the leaves."""
    return th.particle_splits(0), th.lower(0), th.upper(0)


def runs_of(posz: jax.Array, num: jax.Array, box: Exact) -> Blocks:
    """Return ``(particle_splits, lower, upper)`` of short runs of rows. They replace leaves if no hierarchy exists."""
    return kernels.row_boxes(posz, num, box, _RUN_ROWS)


def boxes_of(posz: jax.Array, num: jax.Array, domain: Domain, leaves: Blocks, max_boxes: int = _MOST_BOXES) -> Blocks:
    """Return ``(particle_splits, lower, upper)`` of at most ``max_boxes`` boxes that cover a rank's particles."""
    return kernels.covering_boxes(posz, num, *domain.keys(), leaves, max(1, min(max_boxes, posz.shape[0])))


def gather_boxes(posz: jax.Array, num: jax.Array, domain: Domain, leaves: Blocks, boxes: Blocks, *known: Any) -> Blocks:
    """Return ``(lower, upper, count)`` of boxes that cover the particles of each rank, ``(r, b, d)`` and ``(r, b)``.

    Args:
        posz: ``(n, d)``, this rank's positions in z-order.
        num: Number of rows that hold particles.
        domain: Domain of the z-order.
        leaves: ``(particle_splits, lower, upper)`` of the leaves.
        boxes: Close boxes of this rank's particles. The rank sends these boxes if they are few enough.
        known: Counts to compute before this collective; see `comm.after`.
    """
    max_boxes = max(_LEAST_KNOWN, _KNOWN_BOXES // comm.num_ranks())
    sent_boxes = boxes if boxes[1].shape[0] <= max_boxes else boxes_of(posz, num, domain, leaves, max_boxes)
    splits, lower, upper = sent_boxes
    return comm.all_gather_rows(comm.after((lower, upper, jnp.diff(splits)), num, *known))


def close_boxes(boxes: Blocks, known: Blocks) -> Blocks | None:
    """Return the close boxes of this rank and of its two neighbours in the z-order, for `kernels.open_leaves`.

    A range often begins or ends with a few particles across a jump of the z-order. Their neighbours are on the previous
    or next rank. With only wide boxes of that rank, their search would reach very far: for 20,000 uniform particles per
    rank in an open box, k=8 and 16 boxes, there were half as many ghosts again.

    Args:
        boxes: The rank's close boxes.
        known: The result of `gather_boxes`.

    Returns:
        ``(lower, upper, count)`` with shapes ``(3, b, d)`` and ``(3, b)``. None if ``known`` holds all close boxes.
    """
    (rank, ndev, _), (splits, lower, upper) = comm.get_rank_info(), boxes
    if known[2].shape[1] == lower.shape[0]:
        return None
    own_boxes = comm.after((lower, upper, jnp.diff(splits)), known[2])
    lower, upper, count = comm.rows_of_adjacent(own_boxes)
    exists = jnp.stack([rank > 0, rank < ndev - 1, rank >= 0])
    return lower, upper, jnp.where(exists[:, None], count, 0)


@dataclass
class Surroundings:
    """A rank's particles with its ghosts, in z-order.

    Attributes:
        rows: The requested pytree, arrays ``(m, ...)``.
        num: Number of rows that hold particles, int32.
        start: The row of the rank's first own particle, int32; its other particles follow.
        order: With ``traffic``, the route of the rows.
        traffic: Numbers of rows between the ranks.
        room: The row capacity.
    """

    rows: Any
    num: jax.Array
    start: jax.Array
    order: jax.Array
    traffic: comm.Traffic
    room: Capacity

    def more(self, rows: Any, filled: bool = True, own: bool = True) -> Any:
        """Bring other properties of the same particles.

        Args:
            rows: A pytree of arrays ``(n, ...)`` of the rank's own particles, or longer arrays.
            filled: See `jztree.comm.exchange`.
            own: See `jztree.comm.exchange`.

        Returns:
            A pytree of arrays ``(m, ...)``.
        """
        received, _, _ = comm.exchange(
            rows, self.traffic, self.room, order=self.order, filled=filled, own=own, name="properties"
        )
        return received


def ghost_capacity(option: str, given: int | None, n: int) -> Capacity:
    """Return the capacity for a rank's ``n`` rows and its ghosts."""
    ndev = comm.num_ranks()
    return choose_capacity(
        option, None if given is None else n + given, n + int(n * _GHOST_FRACTION) + _GHOST_ROWS, max(ndev * n, 1)
    )


def bring(
    rows: Any,
    partz: Particles | Array,
    th: TreeHierarchy,
    radius: ArrayLike,
    boxsize: ArrayLike | None = None,
    ghost_rows: int | None = None,
) -> Surroundings:
    """Return a rank's particles and all particles of other ranks within ``radius`` of a particle here, in z-order.

    Call this on all ranks together, in a function that is mapped over devices. The result may include particles
    slightly outside the radius. Without a mesh the result has no ghosts.

    Args:
        rows: The properties to return: a pytree of arrays ``(n, ...)``, such as the positions, or positions and masses.
        partz: This rank's range of the z-order, from `jztree.tree.zsort_and_tree`.
        th: Its hierarchy, from the same call.
        radius: In the unit of the positions, the same on all ranks or one per rank.
        boxsize: The box of ``th``, equal on all ranks. Ghosts across its faces keep their coordinates and are not
            shifted by a period.
        ghost_rows: Capacity for ghosts, equal on all ranks. None means a default. If it is too small, a mapped function
            enlarges it.

    Returns:
        The particles with their ghosts, with space for ``n`` rows and the ghosts. `jztree.tree.build_tree_hierarchy`
        accepts their positions without a sort.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on all ranks, if ``radius`` is negative or NaN on any
            rank, or if ``th`` belongs to other particles.
        CapacityError: On all ranks, if the ghosts do not fit.
    """
    check_hierarchy(th)
    pos = check_particles(partz)
    for leaf in jax.tree.leaves(rows):
        if jnp.ndim(leaf) == 0 or leaf.shape[0] != pos.shape[0]:
            raise ValueError(f"rows must have {pos.shape[0]} rows, one per particle; one has shape {jnp.shape(leaf)}.")
    box, num, blocks = check_box(boxsize, pos.shape[1]), check_num(partz), leaves_of(th)
    reach = reach_of(radius, pos.dtype)
    faults = [
        comm.Fault(reach < 0, [], _BAD_RADIUS),
        comm.Fault(kernels.tree_fits(kernel_tree(partz, kernels.as_num(num), th), box) == 0, [], FOREIGN),
    ]
    domain, (num,) = domain_of([pos], [num], ["the positions"], box, faults)
    boxes = splits, lower, upper = boxes_of(pos, num, domain, blocks)
    requests = jnp.where(jnp.diff(splits) > 0, reach, -1)
    capacity = ghost_capacity("ghosts", ghost_rows, pos.shape[0])
    rank_boxes = functools.partial(gather_boxes, pos, num, domain, blocks, boxes)
    return exchange_ghosts(rows, pos, num, blocks, rank_boxes, (lower, upper, requests), box, capacity)


def reach_of(radius: ArrayLike, dtype: np.dtype[Any]) -> jax.Array:
    """Return ``radius`` in the dtype of the positions, not rounded below its value, and without derivatives."""
    check_reach(radius)
    length = jax.lax.stop_gradient(jnp.asarray(radius, dtype))
    enlarged = jnp.nextafter(at_least_normal(length), jnp.asarray(jnp.inf, dtype))
    return jnp.where(is_length(length), enlarged, jnp.asarray(-1, dtype))


def check_reach(radius: ArrayLike) -> None:
    """Raise TypeError or ValueError if ``radius`` is known and is not a number of at least 0; it may be infinite."""
    if not is_concrete(radius):
        return
    value = check_real(radius, "radius")
    if value.ndim > 0 or not value >= 0:
        raise ValueError(f"radius is {value}; it must be a number of at least 0.")
    check_range(np.where(np.isinf(value), 0, value), "radius", may_be_small=True)


def exchange_ghosts(
    rows: Any,
    posz: jax.Array,
    num: jax.Array,
    blocks: Blocks,
    known: Callable[[], Blocks],
    requests: Blocks,
    box: Exact,
    capacity: Capacity,
    lower_only: bool = False,
    filled: bool = True,
) -> Surroundings:
    """Bring every rank's ghosts: the particles in or near the boxes that it requests.

    Args:
        rows: Pytree of arrays ``(n, ...)`` of the rank's own particles, to bring.
        posz: ``(n, d)``, their positions.
        num: Number of rows that hold particles.
        blocks: Runs of neighbouring rows, ``(particle_splits, lower, upper)``.
        known: Function that returns the boxes of every rank's particles; see `gather_boxes`. A call with few ranks does
            not need it.
        requests: ``(lower, upper, radius)``: the rank's request boxes ``(b, d)`` and their search radii ``(b,)``. A
            negative radius means no request.
        box: Periodic box.
        capacity: Capacity for own rows and ghosts.
        lower_only: Whether to send ghosts to lower ranks only.
        filled: Whether rows after the last ghost are 0; see `comm.exchange`.

    Returns:
        The particles with their ghosts.

    Raises:
        CapacityError: On every rank, if ghosts do not fit on some rank; see `jztree._transform.capacity`.
    """
    rank, n = comm.get_rank_info()[0], posz.shape[0]
    received_requests = _requests_of_others(known, requests, box, capacity, higher_only=lower_only)
    order, counts = kernels.select_ghosts(posz, num, blocks, received_requests, rank, box, capacity.rows)
    what, advice = "its own particles and ghosts", f"set ghost_rows in the configuration to that minus {n}, or more."
    selection = _Selection(order, counts, capacity, what, advice)
    received, total, traffic = selection.exchange(rows, num, "ghosts", max(capacity.rows // 4, 1), filled)
    start = comm.starts_of(traffic.received)[rank]
    return Surroundings(received, total, start, order, traffic, capacity)


def _requests_of_others(
    known: Callable[[], Blocks], requests: Blocks, box: Exact, ghosts: Capacity, higher_only: bool
) -> tuple[jax.Array, jax.Array, jax.Array, jax.Array]:
    """Return the request boxes of other ranks for which this rank may have particles.

    Returns:
        The start of each rank's boxes, ``(r + 1,)``, the lower and upper corners, and the radius.
    """
    (rank, ndev, _), boxes = comm.get_rank_info(), requests[0].shape[0]
    if ndev * boxes <= _FEW_REQUESTS:
        lower, upper, radius = comm.all_gather_rows(jax.lax.stop_gradient(requests))
        is_requesting = (jnp.arange(ndev, dtype=jnp.int32) < rank) | (not higher_only)
        radius = jnp.where(is_requesting[:, None], radius, -1).reshape(-1)
        lower, upper = (corner.reshape(ndev * boxes, -1) for corner in (lower, upper))
        return comm.vary(jnp.arange(ndev + 1, dtype=jnp.int32) * boxes), lower, upper, radius
    # A given ghost capacity also sets the capacity for boxes, so the caller need not set both.
    capacity = choose_capacity("ghost_boxes", None, max(_BOX_ROWS, ghosts.rows if ghosts.given else 0), ndev * boxes)
    requests = jax.lax.stop_gradient(requests)
    order, counts = kernels.select_boxes(requests, known(), rank, box, capacity.rows, higher_only)
    content = "boxes of other ranks that need ghosts"
    advice = "the capacity for ghosts is also that for boxes; set ghost_rows in the configuration to that or more."
    selection = _Selection(order, counts, capacity, content, advice)
    received, total, traffic = selection.exchange(
        requests, jnp.sum(counts), "boxes", min(capacity.rows, _MOST_BOXES * ndev)
    )
    return jnp.append(comm.starts_of(traffic.received), total), *received


@dataclass
class _Selection:
    """Rows selected for other ranks, and the capacity for received rows.

    Attributes:
        order: ``(m,)`` int32, the selected rows, rank by rank.
        counts: ``(r,)`` int32, their number for each rank.
        capacity: Capacity for received rows.
        what: Name of the rows in the error if the capacity is too small; see `comm.exchange`.
        advice: A remedy in that error.
    """

    order: jax.Array
    counts: jax.Array
    capacity: Capacity
    what: str
    advice: str

    def exchange(
        self, rows: Any, num: jax.Array, name: str, chunk_rows: int, filled: bool = True
    ) -> tuple[Any, jax.Array, comm.Traffic]:
        """Exchange the selected rows.

        Args:
            rows: Pytree of arrays ``(n, ...)``.
            num: A count to compute before this collective.
            name: See `comm.exchange`.
            chunk_rows: See `comm.exchange`.
            filled: See `comm.exchange`.

        Returns:
            The received rows, their number, and the traffic.
        """
        traffic = comm.traffic_of(self.counts)
        # The rows that a rank sends must fit its list of rows to send.
        needs = jnp.maximum(traffic.arriving, traffic.leaving)
        # Everything below depends on the check.
        traffic = comm.after(traffic, comm.require_capacity(num, needs, self.capacity, self.what, self.advice))
        received, total, _ = comm.exchange(
            rows,
            traffic,
            self.capacity,
            order=self.order,
            what=self.what,
            advice=self.advice,
            name=name,
            filled=filled,
            chunk_rows=chunk_rows,
        )
        return received, total, traffic
