"""Moving rows of pytrees from rank to rank, in dense rounds or by one ragged collective."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import kernels, stats
from .._transform.capacity import Room
from .._transform.ragged import METHODS, method_of_trace
from ._agree import after, check_room
from ._counts import starts_of
from ._ranks import all_gather, all_max, are_many, get_rank_info, num_ranks, swap, vary, with_real
from ._relay import relay
from ._rounds import chunk_of, in_rounds
from ._traffic import Traffic, of_others, traffic_of

# The buffer of a dense exchange has a part of what may arrive, but not less than so many bytes: one that is as large as
# all would be fresh memory, of which the system has to clear every page, and it is there several times.
_PARTS, _LEAST_BYTES = 8, 2**22
# The small buffer is that many times smaller, and used where so many rounds of it suffice.
_SMALL_BUFFER, _SMALL_ROUNDS = 16, 4
# Among many ranks, rows that would take more rounds of a large one pass through others instead.
_LARGE_ROUNDS = 3


@dataclass
class Route:
    """How rows went from rank to rank, which is all it takes to send answers back.

    order: ``(m,)`` int32, the rows that were sent, grouped by destination; None: they were in that order. rows: how
    many there were to choose from.
    """

    order: jax.Array | None
    traffic: Traffic
    rows: int

    @property
    def sent(self) -> jax.Array:
        """``(r,)`` int32, rows sent to each rank."""
        return self.traffic.sent

    @property
    def received(self) -> jax.Array:
        """``(r,)`` int32, rows received from each rank."""
        return self.traffic.received

    def starts(self) -> jax.Array:
        """``(r,)``: the first row received from each rank."""
        return starts_of(self.received)

    def sender(self, row: jax.Array) -> jax.Array:
        """The rank that sent rows that were received, ``(m,)`` int32. Behind the last of these it is the last rank."""
        return _find_sender(self.starts()[1:], row)


def exchange(
    rows: Any,
    dest_counts: jax.Array | Traffic,
    room: Room,
    *,
    order: jax.Array | None = None,
    place: jax.Array | None = None,
    what: str = "rows",
    advice: str = "",
    name: str = "rows",
    fill: Any = None,
    filled: bool = True,
    own: bool = True,
    method: str | None = None,
    chunk_rows: int | None = None,
) -> tuple[Any, jax.Array, Route]:
    """Send rows of a pytree to other ranks.

    rows: a pytree of arrays, each ``(n, ...)``.
    dest_counts: ``(r,)`` int32, how many rows go to each rank; or the traffic between all, where that is known.
    room: how many rows may arrive.
    order: ``(m,)`` int32, the rows to send: first those for rank 0, then those for rank 1, and so on. A row may be in
        it several times. None: the rows are in that order themselves.
    place: ``(room.rows,)`` int32, where to put the rows that arrive; None: in the order of the ranks they come from,
        and within these in the order they were sent in.
    what, advice: what the rows are, and what to do if there is no room for them, for the error.
    name: under which `jztree.stats` counts the rows that leave this rank.
    fill: a pytree like ``rows`` of what stands where no row arrives; None is 0.
    filled: whether that has to stand there; if not, it may be anything, which must never be looked at.
    own: whether the rank's own rows are to be there, too; their places are left for them in any case.
    method: ``"dense"`` (rounds of all_to_all over a bounded buffer), ``"ragged"`` (not on CPUs), or None for the one
        that the environment variable JZTREE_EXCHANGE names, or else ragged in mapped functions whose devices are GPUs
        of one computer on which a test of it comes out right, and dense elsewhere.
    chunk_rows: how many rows the buffer of a dense round has, for all ranks together; the default is a part of
        ``room``, or among many ranks a little more than that.

    Returns the rows received, ``(room.rows, ...)``, how many there are, and the `Route`. Their derivative is that of
    moving them, for which the changes of all ranks' rows are gathered on each.

    Raises `jztree.CapacityError` (see there) on every rank if they do not fit on some rank.
    """
    rank = get_rank_info()[0]
    given, structure = jax.tree.flatten(rows)
    traffic = dest_counts if isinstance(dest_counts, Traffic) else traffic_of(dest_counts)
    num = check_room(traffic.arriving[rank], traffic.arriving, room, what, advice)
    # All that follows depends on the check, so that no rank is in a collective when it fails.
    traffic = after(traffic, num)
    route = Route(order, traffic, given[0].shape[0])
    stats.record(f"rows.{name}", jnp.sum(route.sent, dtype=jnp.int32) - route.sent[rank])
    fills = [0] * len(given) if fill is None else jax.tree.leaves(fill)
    way = _Way(room.rows, method, chunk_rows or _chunk_rows(room.rows, kernels.row_words(given)), filled, own)
    arrays = _carried(way, jax.lax.stop_gradient(given), fills, traffic, order, place)
    moved = with_real(lambda *pair: _as_carried(way, *pair, traffic, order, place), arrays, given)
    return jax.tree.unflatten(structure, moved), num, route


def _chunk_rows(room: int, words: int) -> int:
    """Rows of ``words`` in the buffer of a dense round, of ``room`` that may arrive."""
    whole = room + room // 8
    if are_many(num_ranks()):
        return whole
    return min(whole, max(whole // _PARTS, _LEAST_BYTES // (4 * max(words, 1))))


@functools.partial(jax.jit, inline=True)
def _find_sender(starts: jax.Array, row: jax.Array) -> jax.Array:
    # Comparing with all is a vector loop, which takes less time than to look for a few ranks.
    method = "scan" if are_many(starts.shape[0] + 1) else "compare_all"
    return jnp.searchsorted(starts, row, side="right", method=method).astype(jnp.int32)


class _Way(NamedTuple):
    """How rows travel: how many may arrive, by which method, how many a round of a dense one takes, whether places
    where none arrives are filled, and whether the rank's own rows come, too.
    """

    room: int
    method: str | None
    chunk_rows: int
    filled: bool
    own: bool


def _carried(
    way: _Way,
    leaves: list[jax.Array],
    fills: Sequence[Any],
    traffic: Traffic,
    order: jax.Array | None,
    place: jax.Array | None,
) -> list[jax.Array]:
    """The rows that arrive; see `exchange`."""
    rank, ndev, _ = get_rank_info()
    leaves = [vary(leaf) for leaf in leaves]
    route = Route(order, traffic, leaves[0].shape[0])
    start, target, own = starts_of(route.sent)[rank], route.starts()[rank], route.sent[rank]
    first_filled: Any = 0 if way.filled else way.room
    if way.filled and place is None:
        # Rows that arrive are the first ones, and each of them is written.
        first_filled = jnp.sum(route.received, dtype=jnp.int32)
    placed = own if way.own else 0
    arrays = list(kernels.place_rows(leaves, order, start, fills, place, target, placed, way.room, first_filled))
    if ndev > 1:
        dense = _Dense(way.chunk_rows, route, place)
        ragged = _Ragged(route, place)
        arrays = _move(way.method, dense, ragged, leaves, arrays)
    return arrays


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _as_carried(
    way: _Way,
    arrived: list[jax.Array],
    rows: list[jax.Array],
    traffic: Traffic,
    order: jax.Array | None,
    place: jax.Array | None,
) -> list[jax.Array]:
    """``arrived``, which is what an exchange made of ``rows``, with the derivative of that."""
    del way, rows, traffic, order, place
    return arrived


@_as_carried.defjvp
def _as_carried_jvp(way: _Way, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, rows, *how = primals
    (rank, ndev, _), n = get_rank_info(), rows[0].shape[0]
    if ndev * n >= 2**31:
        raise ValueError(f"derivatives over all devices are for less than 2**31 rows; there are {ndev * n}.")
    # Numbers of rows travel the same way; what is linear in the changes can then be transposed for reverse mode.
    (number,) = _carried(way._replace(filled=True), [rank * n + jnp.arange(n, dtype=jnp.int32)], [-1], *how)
    everyone = [all_gather(change).reshape(ndev * n, *change.shape[1:]) for change in tangents[1]]
    came = jnp.where(number < 0, ndev * n, number)
    changes = [change.at[came].get(mode="fill", fill_value=0) for change in everyone]
    return _as_carried(way, *primals), changes


def exchange_by_rank(rows: Any, rank: jax.Array, num: Any, room: Room, **options: Any) -> tuple[Any, jax.Array, Route]:
    """`exchange` by the destination of each row. rank: ``(n,)`` int32; rows from ``num`` on stay unsent."""
    order, counts = kernels.group_by_rank(rank, num, num_ranks())
    return exchange(rows, counts, room, order=order, **options)


def send_back(rows: Any, route: Route, **options: Any) -> Any:
    """Answers to what an `exchange` brought, back to where it came from.

    rows: a pytree with one row for each that was received, in that order. Returns one with ``(n, ...)`` rows: the
    answer at each row that was sent (if it was sent to several ranks, that of one of them), and 0 or ``fill`` at the
    others.
    """
    options.setdefault("what", "results")
    back, _, _ = exchange(rows, route.traffic.back(), Room(route.rows, "back"), place=route.order, **options)
    return back


def _move(
    method: str | None, dense: "_Dense", ragged: "_Ragged", leaves: list[jax.Array], arrays: list[jax.Array]
) -> list[jax.Array]:
    """Ragged where it was found to be right, because it moves nothing but the rows; see `jztree._transform.ragged`."""
    if method not in (None, *METHODS):
        raise ValueError(f"method must be 'dense', 'ragged' or None, not {method!r}.")
    method = method or method_of_trace()
    return dense(leaves, arrays) if method == "dense" else ragged(leaves, arrays)


class _Dense:
    """Rounds of all_to_all over a buffer of bounded size, until nothing is left.

    A round moves the whole buffer, however little is in it. So there is a small one for when few rows leave their rank,
    as where particles are nearly in order already. Among many ranks it is used for rows that pass through others, and
    these are also all rows that would take many rounds because few ranks have them for each other.
    """

    def __init__(self, buffer_rows: int, route: Route, place: jax.Array | None) -> None:
        self.rank, self.ndev, _ = get_rank_info()
        self.large, self.small = (chunk_of(rows, self.ndev) for rows in (buffer_rows, buffer_rows // _SMALL_BUFFER))
        self.most, self.own = route.traffic.most, route.sent[self.rank]
        self.sent, self.received = of_others(route.sent, self.rank), of_others(route.received, self.rank)
        self.send_starts, self.receive_starts = starts_of(route.sent), route.starts()
        self.order, self.place = route.order, place

    def __call__(self, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        if are_many(self.ndev):
            leaving = all_max(jnp.sum(self.sent, dtype=jnp.int32))
            few = leaving <= _SMALL_ROUNDS * self.small * self.ndev
            direct = ~few & (self.most <= _LARGE_ROUNDS * self.large)
            arrays = self._in_rounds(self.large, jnp.where(direct, self.most, 0), leaves, arrays)
            return self._through_others(jnp.where(direct, 0, leaving), leaves, arrays)
        few = self.most <= _SMALL_ROUNDS * self.small
        arrays = self._in_rounds(self.large, jnp.where(few, 0, self.most), leaves, arrays)
        return self._in_rounds(self.small, jnp.where(few, self.most, 0), leaves, arrays)

    def _in_rounds(
        self, chunk: int, most: jax.Array, leaves: list[jax.Array], arrays: list[jax.Array]
    ) -> list[jax.Array]:
        return in_rounds(most, chunk, functools.partial(self._one_round, chunk, leaves), arrays)

    def _one_round(
        self, chunk: int, leaves: list[jax.Array], done: jax.Array, arrays: list[jax.Array]
    ) -> list[jax.Array]:
        buffer = swap(kernels.pack_segments(leaves, self.order, self.send_starts + done, self.sent - done, chunk))
        starts, counts = self.receive_starts + done, self.received - done
        return list(kernels.unpack_segments(buffer, self.place, starts, counts, arrays))

    def _through_others(self, most: jax.Array, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        entries = leaves[0].shape[0] if self.order is None else self.order.shape[0]
        if entries == 0 or arrays[0].shape[0] == 0:
            return arrays
        ends = self.send_starts + self.sent.at[self.rank].set(self.own)
        parts = jnp.arange(self.ndev, dtype=jnp.int32) * self.small

        def card_of(number: jax.Array) -> tuple[jax.Array, jax.Array]:
            # The rank's own rows do not leave it.
            before = number < self.send_starts[self.rank]
            entry = jnp.where(before, number, number + self.own)
            to = jnp.searchsorted(ends, entry, side="right").astype(jnp.int32)
            header = [to, jnp.full_like(to, self.rank), entry - self.send_starts[to]]
            return entry if self.order is None else self.order[entry], jnp.stack(header, axis=-1)

        def take(packed: jax.Array, headers: jax.Array, counts: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
            place = self.receive_starts[headers[..., 1]] + headers[..., 2]
            place = (place if self.place is None else self.place[place]).reshape(-1)
            return list(kernels.unpack_segments(packed, place, parts, counts, arrays))

        total = jnp.sum(self.sent, dtype=jnp.int32)
        return relay(leaves, card_of, total, most, self.small, take, arrays)


class _Ragged:
    """One collective that moves exactly the rows that go to other ranks."""

    def __init__(self, route: Route, place: jax.Array | None) -> None:
        self.rank, _, self.axes = get_rank_info()
        self.sent, self.received = of_others(route.sent, self.rank), of_others(route.received, self.rank)
        self.route, self.place = route, place

    def __call__(self, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        route, one, room = self.route, jnp.zeros(1, jnp.int32), arrays[0].shape[0]
        rows = route.rows if route.order is None else route.order.shape[0]
        own = route.sent[self.rank]
        order = _leaving_out(route.order, rows, starts_of(route.sent)[self.rank], own)
        packed = kernels.pack_segments(leaves, order, one, jnp.sum(self.sent, dtype=jnp.int32)[None], rows)[0]
        empty = vary(jnp.zeros((room, packed.shape[1]), jnp.uint32))
        arrived = jax.lax.ragged_all_to_all(
            packed,
            empty,
            starts_of(self.sent),
            self.sent,
            swap(starts_of(self.received)),
            self.received,
            axis_name=self.axes,
        )
        place = _leaving_out(self.place, room, route.starts()[self.rank], own)
        return list(
            kernels.unpack_segments(arrived[None], place, one, jnp.sum(self.received, dtype=jnp.int32)[None], arrays)
        )


def _leaving_out(index: jax.Array | None, rows: int, start: jax.Array, count: jax.Array) -> jax.Array:
    """``index`` (None: all of ``rows``) without ``count`` entries from ``start`` on; the last are of no meaning."""
    entry = jnp.arange(rows, dtype=jnp.int32)
    entry = jnp.minimum(jnp.where(entry < start, entry, entry + count), max(rows - 1, 0))
    return entry if index is None else index[entry]
