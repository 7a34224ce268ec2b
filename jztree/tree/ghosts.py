"""Ghosts: the particles of other ranks that a rank needs, brought in z-order.

Every rank publishes at most 256 boxes that cover its particles closely, each with the radius that it wants to look
into. Every rank then knows which of its own particles others want, and sends them; nobody asks. Ranks own consecutive
ranges of the z-order, and what they send is in z-order, so that [ghosts of lower ranks | own | ghosts of higher ranks]
is in z-order already, and a hierarchy can be built over it without a sort.

Cost: one all_gather of boxes, one of counts, one exchange of rows.
"""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._transform.capacity import Room, room
from ..jax_ext import Exact
from . import TreeHierarchy
from ._zorder import Domain

_MOST_BOXES = 256
# Room for ghosts to begin with, as a fraction of the particles and a number. Uniform particles, k=8, 250,000 a rank
# need a tenth.
_GHOST_FRACTION = 0.5
_GHOST_ROWS = 4096

Blocks = tuple[jax.Array, jax.Array, jax.Array]


def leaves_of(th: TreeHierarchy) -> Blocks:
    """``(particle_splits, lower, upper)`` of the leaves."""
    return th.particle_splits(0), th.lower(0), th.upper(0)


def boxes_of(posz: jax.Array, num: jax.Array, domain: Domain, leaves: Blocks) -> Blocks:
    """``(particle_splits, lower, upper)`` of the boxes that a rank publishes."""
    most = max(1, min(_MOST_BOXES, posz.shape[0]))
    return kernels.cover(posz, num, *domain.keys(), leaves, most)


@dataclass
class Surroundings:
    """A rank's particles with its ghosts, in z-order.

    rows: the pytree that was asked for, arrays ``(rows, ...)``. num: how many rows hold particles. start: the row of
    the rank's first own particle. order, matrix: how the rows travelled, to send more of them the same way.
    """

    rows: Any
    num: jax.Array
    start: jax.Array
    order: jax.Array
    matrix: jax.Array
    room: Room

    def more(self, rows: Any) -> Any:
        """Other properties of the same particles. rows: a pytree of arrays ``(n, ...)`` of the rank's own."""
        return comm.exchange(rows, self.matrix, self.room, order=self.order, name="properties")[0]


def ghost_room(option: str, given: int | None, n: int) -> Room:
    """Room for a rank's ``n`` rows and its ghosts."""
    ndev = comm.num_ranks()
    return room(
        option,
        None if given is None else n + given,
        n + int(n * _GHOST_FRACTION) + _GHOST_ROWS,
        max(ndev * n, 1),
    )


def surroundings(
    rows: Any,
    posz: jax.Array,
    num: jax.Array,
    blocks: Blocks,
    wanted: Blocks,
    box: Exact,
    place: Room,
    lower_only: bool = False,
) -> Surroundings:
    """Bring every rank's ghosts.

    rows: the pytree of arrays ``(n, ...)`` to bring, of the rank's own particles. posz: ``(n, d)``, their positions.
    blocks: runs of rows that are near each other, ``(particle_splits, lower, upper)``. wanted: ``(lower, upper,
        radius)``, the rank's boxes ``(b, d)`` and how far each wants to look, ``(b,)``; negative: it needs nothing.
    place: room for own rows and ghosts. lower_only: ghosts go to lower ranks only.

    Raises `jztree.CapacityError` (see `jztree._transform.capacity`) on every rank if ghosts do not fit on some rank.
    """
    rank, n = comm.get_rank_info()[0], posz.shape[0]
    order, counts = kernels.select_ghosts(
        posz, num, blocks, comm.all_gather_rows(wanted), rank, box, place.rows, lower_only
    )
    matrix = comm.all_gather(counts)
    what, advice = "its own particles and ghosts", f"set ghost_rows in the configuration to that minus {n}, or more."
    # What a rank sends must fit its list of rows to send.
    needs = jnp.maximum(comm.arriving(matrix), comm.arriving(matrix.T))
    # From here on all depends on the check.
    matrix = comm.after(matrix, comm.check_room(num, needs, place, what, advice))
    brought, total, _ = comm.exchange(
        rows,
        matrix,
        place,
        order=order,
        what=what,
        advice=advice,
        name="ghosts",
        chunk_rows=max(place.rows // 4, 1),
    )
    start = jnp.sum(jnp.where(jnp.arange(matrix.shape[0], dtype=jnp.int32) < rank, matrix[:, rank], 0), dtype=jnp.int32)
    return Surroundings(brought, total, start, order, matrix, place)
