"""Lists of all particles within a radius."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._checks import check_box
from .._transform.capacity import Room, room
from ..config import RadiusConfig, checked_config
from ..jax_ext import Exact, is_concrete, with_twins
from ..knn._result import radii as with_derivatives
from ..knn._result import radii_over_ranks
from ..tree import TreeHierarchy, check_hierarchy
from ._radii import SPEC, Radii, as_radii, exact_arguments
from ._search import Asked, Ready, check_both, make_ready

__all__ = ["NeighbourLists", "neighbours_within"]

# Room for lists to begin with, neighbours a query.
_USUAL = 32
_TOO_MANY = "there are 2**31 neighbours or more; use a smaller radius, fewer queries or more devices, or count_within."


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class NeighbourLists:
    """The neighbours of ``q`` queries in lists of any length; see `neighbours_within`.

    splits: ``(q + 1,)`` int32: those of query ``i`` are the entries ``splits[i]`` to ``splits[i + 1]``, and
        ``splits[-1]`` is how many there are.
    index: ``(capacity,)`` int32, the rows of the neighbours; -1 behind the last.
    distance: ``(capacity,)``, in the dtype of the positions; infinite behind the last.
    """

    splits: jax.Array
    index: jax.Array
    distance: jax.Array

    def count(self) -> jax.Array:
        """``(q,)`` int32, how many neighbours each query has."""
        return jnp.diff(self.splits)

    def query(self) -> jax.Array:
        """``(capacity,)`` int32, the row of the query of each entry; -1 behind the last."""
        entry = jnp.arange(self.index.shape[0], dtype=jnp.int32)
        row = jnp.searchsorted(self.splits, entry, side="right").astype(jnp.int32) - 1
        return jnp.where(entry < self.splits[-1], row, -1)


@with_twins(
    {"part": P(-1), "radius": SPEC, "boxsize": P(), "th": P(-1), "part_query": P(-1)},
    P(-1),
    prepare=exact_arguments,
    enlarges=True,
)
def neighbours_within(
    part: Any,
    radius: Any,
    boxsize: Any = None,
    th: TreeHierarchy | None = None,
    part_query: Any = None,
    capacity: int | None = None,
    nearest_first: bool = False,
    cfg: RadiusConfig | None = None,
) -> NeighbourLists:
    """All particles within a radius of every query, in lists of any length.

    part, boxsize, th, part_query: as in `count_within`.
    radius: in the unit of the positions: a number, or ``(q,)``, one a query.
    capacity: how many neighbours there is room for, of all queries together (of a device's, over several). None: a
        plain call returns just as many as there are; ``.jit`` and ``.smap`` find out and compile again with more room
        where it is needed. A number is kept; it is needed in a ``jax.jit`` of your own.
    nearest_first: sort each list by distance; else it is in the z-order of ``part``, as are those at the same distance.

    Returns `NeighbourLists`: `numpy.split`-like, the format of `scipy.sparse.csr_matrix`. Rows are those of ``part``;
    over several devices, those of the joined particles of all. A particle that asks about its own set is in its list.
    Every particle is listed once, by its nearest image, if its distance in float64 is at most the radius; distances are
    that, rounded. Queries from ``num`` on have empty lists.

    Raises TypeError or ValueError for wrong arguments, and an error at run time, on every device, if a position is NaN
    or infinite, a traced ``radius`` or ``boxsize`` is wrong, ``th`` belongs to other particles, or the neighbours do
    not fit ``capacity`` (`jztree.CapacityError`, which says how many there are).
    """
    cfg = checked_config(cfg, RadiusConfig)
    cfg = replace(cfg, tree=replace(cfg.tree, masses=False))
    check_hierarchy(th)
    pos, query = check_both(part, part_query)
    box = check_box(boxsize, pos.shape[1])
    radii = as_radii(radius, query.shape[:1])
    if radii.shape():
        raise ValueError(
            f"radius must be a number, or one a query, {query.shape[:1]}; its shape is {np.shape(radius)}."
        )
    _check_capacity(capacity)
    ready = make_ready(Asked(part, part_query, None, radii, box, th, cfg, numbered=True))
    most = query.shape[0] * pos.shape[0] * comm.num_ranks()
    place = room("neighbours", capacity, _USUAL * query.shape[0], max(most, 1))
    lists = _Listing(ready, box, place, nearest_first).lists()
    lists.distance = _differentiable(query, pos, box, lists, ready.starts)
    return lists


@jax.custom_jvp
def _differentiable(
    query: jax.Array, pos: jax.Array, box: Exact, lists: NeighbourLists, starts: jax.Array | None
) -> jax.Array:
    """The distances of lists with their derivatives by positions and box lengths. starts: the number of the first row
    of each rank.
    """
    del query, pos, box, starts
    return lists.distance


@_differentiable.defjvp
def _differentiable_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    query, pos, box, lists, starts = primals
    rows, index, distance = jnp.maximum(lists.query(), 0), lists.index[:, None], lists.distance[:, None]

    def found(query: jax.Array, pos: jax.Array, box: Exact) -> jax.Array:
        if starts is None:
            return with_derivatives(query[rows], pos, box, distance, index)
        return radii_over_ranks(query[rows], pos, box, distance, index, starts)

    changes = jax.jvp(found, (query, pos, box), tangents[:3])[1]
    return _differentiable(*primals), changes[:, 0]


def _check_capacity(capacity: Any) -> None:
    if capacity is None:
        return
    if isinstance(capacity, bool) or not isinstance(capacity, (int, np.integer)):
        raise TypeError(f"capacity must be an integer that is known when the function is traced, not {capacity!r}.")
    if not 0 <= capacity < 2**31:
        raise ValueError(f"capacity is {capacity}; there can be room for 0 to 2**31 - 1 neighbours.")


@dataclass
class _Listing:
    """Lists of what is ready, in the rows in which the queries were given."""

    ready: Ready
    box: Exact
    place: Room
    nearest_first: bool

    def lists(self) -> NeighbourLists:
        if comm.num_ranks() > 1:
            return self._over_ranks()
        splits, total, index, distance = self._found(self.ready.origin.idx, self.ready.rows, self.place.rows)
        if is_concrete(total) and not self.place.given:
            return self._just_enough(splits, total, index, distance)
        splits = comm.after(splits, self._checked(total, jnp.zeros((), jnp.int32)))
        return NeighbourLists(splits=splits, index=index, distance=distance)

    def _found(self, names: jax.Array, rows: jax.Array | None, size: int) -> tuple[jax.Array, ...]:
        ready, radii = self.ready, self.ready.radii
        if rows is not None and ready.home is not None and radii.of_each is not None:
            words = kernels.scatter_rows(jnp.asarray(radii.of_each.words), rows)
            radii = Radii(None, Exact(words))
        return kernels.neighbours_within(
            ready.sources,
            names,
            ready.queries,
            rows,
            radii.words(),
            self.box,
            size,
            nearest_first=self.nearest_first,
        )

    def _just_enough(self, splits: jax.Array, total: jax.Array, *lists: jax.Array) -> NeighbourLists:
        """Lists without room to spare, made again if there was not enough."""
        high, low = np.asarray(total)
        if high > 0:
            raise ValueError(_TOO_MANY)
        if low > self.place.rows:
            splits, _, *again = self._found(self.ready.origin.idx, self.ready.rows, int(low))
            lists = tuple(again)
        index, distance = (array[: int(low)] for array in lists)
        return NeighbourLists(splits=splits, index=index, distance=distance)

    def _checked(self, total: jax.Array, at_home: jax.Array) -> jax.Array:
        """A number that is there once it is known that all lists fit, here and at home."""
        many = comm.check(0, (total[0] > 0) | (at_home < 0), [], _TOO_MANY)
        needs = comm.all_gather(comm.after(jnp.maximum(total[1], at_home), many))
        needs = needs.reshape(-1)
        return comm.check_room(jnp.int32(0), needs, self.place, "neighbours", "give that capacity or more.")

    def _over_ranks(self) -> NeighbourLists:
        """Lists are made where the queries went, in the order in which these arrived, and travel back."""
        home, sources = self.ready.home, self.ready
        assert sources.starts is not None
        names = sources.starts[sources.origin.rank] + sources.origin.idx
        rows = None if home is None else home.merge
        splits, total, index, distance = self._found(names, rows, self.place.rows)
        if home is None:
            splits = comm.after(splits, self._checked(total, total[1]))
            return NeighbourLists(splits=splits, index=index, distance=distance)
        counts = comm.send_back(jnp.diff(splits), home.route, name="results")
        ends, at_home = _ends(counts)
        checked = self._checked(total, at_home)
        splits, counts, ends = comm.after((splits, counts, ends), checked)
        # Queries came rank by rank, so lists for one rank follow each other.
        behind = jnp.cumsum(home.route.received, dtype=jnp.int32)
        to_ranks = jnp.diff(splits[behind], prepend=0)
        back, _, _ = comm.exchange(
            (index, distance),
            to_ranks,
            self.place,
            place=_places(counts, ends, home.route, self.place.rows),
            what="neighbours",
            advice="give that capacity or more.",
            name="results",
            fill=(-1, jnp.inf),
        )
        return NeighbourLists(splits=jnp.append(jnp.zeros(1, jnp.int32), ends), index=back[0], distance=back[1])


def _ends(counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Where lists of these lengths end, one after the other, and how long all are together; -1 if that is beyond int32.

    No list is, so a sum that is has been negative before it is anything else.
    """
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    total = jnp.where(jnp.any(ends < 0), -1, jnp.append(0, ends)[-1])
    return ends, total.astype(jnp.int32)


def _places(counts: jax.Array, ends: jax.Array, route: comm.Route, size: int) -> jax.Array:
    """Where entries go that arrive list by list, in the order in which the queries were sent."""
    sent = jnp.sum(route.sent, dtype=jnp.int32)
    rows = jnp.arange(counts.shape[0], dtype=jnp.int32) if route.order is None else route.order
    lengths = jnp.where(jnp.arange(rows.shape[0], dtype=jnp.int32) < sent, counts[rows], 0)
    arrived = jnp.cumsum(lengths, dtype=jnp.int32)
    entry = jnp.arange(size, dtype=jnp.int32)
    which = jnp.minimum(jnp.searchsorted(arrived, entry, side="right"), rows.shape[0] - 1)
    row = rows[jnp.maximum(which, 0)]
    return ends[row] - counts[row] + entry - (arrived[which] - lengths[which])
