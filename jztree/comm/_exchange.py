"""Exchange rows of pytrees between ranks, in dense rounds or by one ragged collective."""

import functools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import kernels, stats
from .._transform.capacity import Capacity
from .._transform.ragged import METHODS, method_of_trace
from ..config import is_on_cpu
from ._agree import after, require_capacity
from ._counts import starts_of
from ._ranks import all_gather, all_max, are_many, get_rank_info, num_ranks, swap, vary, with_real
from ._relay import relay
from ._rounds import chunk_of, in_rounds
from ._traffic import Traffic, of_others, traffic_of

# The buffer of a dense exchange holds this fraction of the rows that may arrive, but at least this many bytes. A buffer
# for all rows would be freshly allocated memory, several times over, and the system has to clear each of its pages.
# Between GPUs, a round has a high latency. On CPUs, a buffer that stays in the cache is worth more rounds.
_PARTS, _LEAST_BYTES = 8, 2**22
_CPU_PARTS, _CPU_LEAST_BYTES = 64, 2**21
# The small buffer is this many times smaller. It is used if at most this many rounds with it suffice.
_SMALL_BUFFER, _SMALL_ROUNDS = 16, 4
# If this many bytes hold all rows that may arrive from every rank, one round without a loop moves them.
_SINGLE_ROUND_BYTES = 2**19
# With many ranks, rows that would take more rounds of a large buffer are relayed through other ranks instead.
_LARGE_ROUNDS = 3


@jax.tree_util.register_dataclass
@dataclass
class Route:
    """The path of exchanged rows: the data needed to send answers back.

    Attributes:
        order: ``(m,)`` int32, the sent rows, grouped by destination; None if they were already in that order.
        traffic: Numbers of rows between ranks.
        rows: The number of input rows.
    """

    order: jax.Array | None
    traffic: Traffic
    rows: int = field(metadata={"static": True})

    @property
    def sent(self) -> jax.Array:
        """``(r,)`` int32, rows sent to each rank."""
        return self.traffic.sent

    @property
    def received(self) -> jax.Array:
        """``(r,)`` int32, rows received from each rank."""
        return self.traffic.received

    def after(self, num: jax.Array) -> "Route":
        """Return this route, available only after ``num``; see `after`."""
        return replace(self, traffic=after(self.traffic, num))

    def starts(self) -> jax.Array:
        """``(r,)``: the first row received from each rank."""
        return starts_of(self.received)

    def sender(self, row: jax.Array) -> jax.Array:
        """Return the rank that sent each received row.

        Args:
            row: ``(m,)`` int32, received rows.

        Returns:
            ``(m,)`` int32. For rows past the end, it is the last rank.
        """
        return _find_sender(self.starts()[1:], row)


def exchange(
    rows: Any,
    dest_counts: jax.Array | Traffic,
    capacity: Capacity,
    *,
    order: jax.Array | None = None,
    place: jax.Array | None = None,
    what: str = "rows",
    advice: str = "",
    name: str = "rows",
    fill: Any = None,
    filled: bool | jax.Array = True,
    own: bool = True,
    method: str | None = None,
    chunk_rows: int | None = None,
) -> tuple[Any, jax.Array, Route]:
    """Send rows of a pytree to other ranks.

    The exchange is differentiable: its derivative gathers the tangents of every rank's rows on each rank.

    Args:
        rows: A pytree of arrays, each ``(n, ...)``.
        dest_counts: ``(r,)`` int32, the number of rows for each rank; or a `Traffic`, if the caller already has it.
        capacity: Capacity for received rows.
        order: ``(m,)`` int32, the rows to send, in the order of their ranks. It may
            contain a row several times. None means that ``rows`` are already in that order.
        place: ``(capacity.rows,)`` int32, the destination of each received row. None orders them by sending rank, and
            within a rank in the order of sending.
        what: Name of the rows in the error message if they do not fit.
        advice: A remedy in that message.
        name: The name under which `jztree.stats` counts the rows that leave this rank.
        fill: A pytree like ``rows`` with the value of places that receive no row. None means 0.
        filled: Whether to write these fill values. If False, places without a row are undefined, and you must not read
            them. A number, int32, fills only the places from this one on; all places before it must receive a row.
        own: Whether to copy the rows that stay on this rank. If False, their places are reserved but not written.
        method: ``"dense"`` (rounds of all_to_all over a bounded buffer), ``"ragged"`` (not on CPUs), or None. None
            selects the method in the environment variable JZTREE_EXCHANGE. If that is not set, it selects ragged in
            mapped functions over GPUs of one computer that pass a test of the ragged exchange, and dense elsewhere.
        chunk_rows: Rows in the buffer of a dense round, for all ranks together; on CPUs at most as many as stay in the
            cache. The default is a fraction of ``capacity``, or with many ranks slightly more than ``capacity``. If few
            rows can arrive, a single round moves them all.

    Returns:
        The received rows ``(capacity.rows, ...)``, their number, and the `Route`.

    Raises:
        CapacityError: On every rank, if the rows do not fit on some rank; see `jztree.CapacityError`.
        ValueError: If ``method`` is invalid.
    """
    rank = get_rank_info()[0]
    leaves, structure = jax.tree.flatten(rows)
    traffic = dest_counts if isinstance(dest_counts, Traffic) else traffic_of(dest_counts)
    num = require_capacity(_entry(traffic.arriving, rank), traffic.arriving, capacity, what, advice)
    # Everything below depends on the check, so that no rank is in a collective when it fails.
    traffic = after(traffic, num)
    route = Route(order, traffic, leaves[0].shape[0])
    if stats.recording():
        stats.record(f"rows.{name}", jnp.sum(route.sent, dtype=jnp.int32) - route.sent[rank])
    fills = [0] * len(leaves) if fill is None else jax.tree.leaves(fill)
    settings = _Settings(capacity.rows, method, _chunk_rows(capacity.rows, kernels.row_words(leaves), chunk_rows), own)
    arrays = _exchanged(settings, jax.lax.stop_gradient(leaves), fills, filled, traffic, order, place)
    moved = with_real(lambda *pair: _as_exchanged(settings, *pair, traffic, order, place), arrays, leaves)
    return jax.tree.unflatten(structure, moved), num, route


def _chunk_rows(capacity: int, words: int, chunk_rows: int | None) -> int:
    """Return the rows of ``words`` words in the buffer of a dense round, for at most ``capacity`` received rows."""
    rows, ndev = capacity + capacity // 8, num_ranks()
    if not are_many(ndev) and 4 * words * ndev * capacity <= _SINGLE_ROUND_BYTES:
        return ndev * capacity
    if are_many(ndev) or (chunk_rows is not None and not is_on_cpu()):
        return chunk_rows or rows
    parts, least_bytes = (_CPU_PARTS, _CPU_LEAST_BYTES) if is_on_cpu() else (_PARTS, _LEAST_BYTES)
    return min(chunk_rows or rows, max(rows // parts, least_bytes // (4 * max(words, 1))))


@functools.partial(jax.jit, inline=True)
def _find_sender(starts: jax.Array, row: jax.Array) -> jax.Array:
    # Comparing with every start is a vector loop, faster than a binary search if there are few ranks.
    method = "scan" if are_many(starts.shape[0] + 1) else "compare_all"
    return jnp.searchsorted(starts, row, side="right", method=method).astype(jnp.int32)


class _Settings(NamedTuple):
    """Exchange settings.

    The capacity, the method, the rows per dense round, and whether to copy the rank's own rows.
    """

    capacity: int
    method: str | None
    chunk_rows: int
    own: bool


def _exchanged(
    settings: _Settings,
    leaves: list[jax.Array],
    fills: Sequence[Any],
    filled: bool | jax.Array,
    traffic: Traffic,
    order: jax.Array | None,
    place: jax.Array | None,
) -> list[jax.Array]:
    """Return the received rows; see `exchange`."""
    rank, ndev, _ = get_rank_info()
    leaves = [vary(leaf) for leaf in leaves]
    route = Route(order, traffic, leaves[0].shape[0])
    start, target, num_own = _segments_of(traffic, rank)
    first_filled: Any = filled
    if filled is True:
        # Without places, received rows come first, and every one is written.
        first_filled = jnp.sum(route.received, dtype=jnp.int32) if place is None else 0
    elif filled is False:
        first_filled = settings.capacity
    placed = num_own if settings.own else 0
    arrays = list(
        kernels.place_rows(leaves, order, start, fills, place, target, placed, settings.capacity, first_filled)
    )
    if ndev == 1:
        return arrays
    is_dense = _chosen(settings.method) == "dense"
    move = _Dense(settings.chunk_rows, settings.capacity, route, place) if is_dense else _Ragged(route, place)
    return move(leaves, arrays)


@functools.partial(jax.jit, inline=True)
def _segments_of(traffic: Traffic, rank: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first row from this rank to itself, its place on arrival, and the number of such rows."""
    tables = starts_of(traffic.sent), starts_of(traffic.received), traffic.sent
    start, target, num = (_entry(table, rank) for table in tables)
    return start, target, num


def _entry(table: jax.Array, rank: int | jax.Array) -> jax.Array:
    """Return ``table[rank]``, without the operations for negative indices."""
    return jax.lax.dynamic_index_in_dim(table, rank, keepdims=False, allow_negative_indices=False)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _as_exchanged(
    settings: _Settings,
    arrived: list[jax.Array],
    rows: list[jax.Array],
    traffic: Traffic,
    order: jax.Array | None,
    place: jax.Array | None,
) -> list[jax.Array]:
    """Return ``arrived``, the result of an exchange of ``rows``, with the derivative of that exchange."""
    del settings, rows, traffic, order, place
    return arrived


@_as_exchanged.defjvp
def _as_exchanged_jvp(settings: _Settings, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, rows, *how = primals
    (rank, ndev, _), n = get_rank_info(), rows[0].shape[0]
    if ndev * n >= 2**31:
        raise ValueError(
            f"derivatives support less than 2**31 rows over all devices, but there are {ndev * n}; use fewer particles."
        )
    # Exchange row numbers in the same way. The derivative is then linear in the tangents, so JAX can transpose it for
    # reverse mode.
    (number,) = _exchanged(settings, [rank * n + jnp.arange(n, dtype=jnp.int32)], [-1], True, *how)
    gathered = [all_gather(change).reshape(ndev * n, *change.shape[1:]) for change in tangents[1]]
    source = jnp.where(number < 0, ndev * n, number)
    changes = [change.at[source].get(mode="fill", fill_value=0) for change in gathered]
    return _as_exchanged(settings, *primals), changes


def exchange_by_rank(
    rows: Any, rank: jax.Array, num: int | jax.Array, capacity: Capacity, **options: Any
) -> tuple[Any, jax.Array, Route]:
    """Exchange rows by the rank of each; see `exchange`.

    Args:
        rows: A pytree of arrays, each ``(n, ...)``.
        rank: ``(n,)`` int32, the destination of each row.
        num: int32 scalar. Rows from ``num`` on stay unsent.
        capacity: Capacity for received rows.
        options: Further arguments of `exchange`.

    Returns:
        See `exchange`.
    """
    order, counts = kernels.group_by_rank(rank, num, num_ranks())
    return exchange(rows, counts, capacity, order=order, **options)


def send_back(rows: Any, route: Route, **options: Any) -> Any:
    """Send answers to received rows back to their senders.

    Args:
        rows: A pytree with one row for each received row, in that order.
        route: The path of the received rows, from `exchange`.
        options: Further arguments of `exchange`.

    Returns:
        A pytree with rows ``(n, ...)``: for a sent row its answer, and 0 or ``fill`` for all other rows. If a row went
        to several ranks, this is the answer of one rank.
    """
    options.setdefault("what", "results")
    back, _, _ = exchange(rows, route.traffic.back(), Capacity(route.rows, "back"), place=route.order, **options)
    return back


def _chosen(method: str | None) -> str:
    """Return the method of the exchange. See `jztree._transform.ragged` for the default."""
    if method not in (None, *METHODS):
        raise ValueError(f"method must be 'dense', 'ragged' or None, not {method!r}.")
    return method or method_of_trace()


class _Dense:
    """Rounds of all_to_all over a buffer of bounded size, until all rows are sent.

    A round moves the whole buffer, even if it holds few rows. So there is a second, small buffer for exchanges in which
    few rows leave their rank, for example because particles are almost in order. With many ranks, the small buffer
    serves rows that are relayed through other ranks. Relaying also handles traffic concentrated between a few ranks,
    which would take many direct rounds. If the buffer has space for all rows, there is a single round.
    """

    def __init__(self, buffer_rows: int, capacity: int, route: Route, place: jax.Array | None) -> None:
        self.rank, self.ndev, _ = get_rank_info()
        self.large, self.small = (chunk_of(rows, self.ndev) for rows in (buffer_rows, buffer_rows // _SMALL_BUFFER))
        self.route, self.most = route, route.traffic.most
        self.sent, self.received = of_others(route.sent, self.rank), of_others(route.received, self.rank)
        self.send_starts, self.receive_starts = starts_of(route.sent), route.starts()
        self.order, self.place = route.order, place
        self.is_single = self.large >= capacity and not are_many(self.ndev)
        self.parts = self.ndev if is_on_cpu() and not (self.is_single or are_many(self.ndev)) else 1

    def __call__(self, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        if are_many(self.ndev):
            leaving = all_max(jnp.sum(self.sent, dtype=jnp.int32))
            is_small = leaving <= _SMALL_ROUNDS * self.small * self.ndev
            direct = ~is_small & (self.most <= _LARGE_ROUNDS * self.large)
            arrays = self._in_rounds(self.large, jnp.where(direct, self.most, 0), leaves, arrays)
            return self._through_others(jnp.where(direct, 0, leaving), leaves, arrays)
        if self.is_single:
            return self._one_round(self.large, leaves, jnp.int32(0), arrays)
        is_small = self.most <= _SMALL_ROUNDS * self.small
        arrays = self._in_rounds(self.large, jnp.where(is_small, 0, self.most), leaves, arrays)
        return self._in_rounds(self.small, jnp.where(is_small, self.most, 0), leaves, arrays)

    def _in_rounds(
        self, chunk: int, max_rows: jax.Array, leaves: list[jax.Array], arrays: list[jax.Array]
    ) -> list[jax.Array]:
        return in_rounds(max_rows, chunk, functools.partial(self._one_round, chunk, leaves), arrays)

    def _one_round(
        self, chunk: int, leaves: list[jax.Array], done: jax.Array, arrays: list[jax.Array]
    ) -> list[jax.Array]:
        buffers = [
            kernels.pack_segments(leaves, self.order, *segments, chunk)
            for segments in self._split(self.send_starts + done, self.sent - done)
        ]
        # XLA removes the concatenation and the split only if the buffers are flat.
        swapped = swap(jnp.concatenate([buffer.reshape(buffer.shape[0], -1) for buffer in buffers]))
        received = self._split(self.receive_starts + done, self.received - done)
        for buffer, segments in zip(jnp.split(swapped, len(buffers)), received, strict=True):
            arrays = list(kernels.unpack_segments(buffer.reshape(buffers[0].shape), self.place, *segments, arrays))
        return arrays

    def _split(self, starts: jax.Array, counts: jax.Array) -> list[tuple[jax.Array, jax.Array]]:
        return list(zip(jnp.split(starts, self.parts), jnp.split(counts, self.parts), strict=True))

    def _through_others(self, max_rows: jax.Array, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        entries = leaves[0].shape[0] if self.order is None else self.order.shape[0]
        if entries == 0 or arrays[0].shape[0] == 0:
            return arrays
        own_count = self.route.sent[self.rank]
        ends = self.send_starts + self.route.sent
        parts = jnp.arange(self.ndev, dtype=jnp.int32) * self.small

        def card_of(number: jax.Array) -> tuple[jax.Array, jax.Array]:
            # The rank's own rows do not leave it.
            before = number < self.send_starts[self.rank]
            entry = jnp.where(before, number, number + own_count)
            to = jnp.searchsorted(ends, entry, side="right").astype(jnp.int32)
            header = [to, jnp.full_like(to, self.rank), entry - self.send_starts[to]]
            return entry if self.order is None else self.order[entry], jnp.stack(header, axis=-1)

        def take(packed: jax.Array, headers: jax.Array, counts: jax.Array, arrays: list[jax.Array]) -> list[jax.Array]:
            place = self.receive_starts[headers[..., 1]] + headers[..., 2]
            place = (place if self.place is None else self.place[place]).reshape(-1)
            return list(kernels.unpack_segments(packed, place, parts, counts, arrays))

        total = jnp.sum(self.sent, dtype=jnp.int32)
        return relay(leaves, card_of, total, max_rows, self.small, take, arrays)


class _Ragged:
    """One collective that moves only the rows for other ranks."""

    def __init__(self, route: Route, place: jax.Array | None) -> None:
        self.rank, _, self.axes = get_rank_info()
        self.sent, self.received = of_others(route.sent, self.rank), of_others(route.received, self.rank)
        self.route, self.place = route, place

    def __call__(self, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        route, single, capacity = self.route, jnp.zeros(1, jnp.int32), arrays[0].shape[0]
        rows = route.rows if route.order is None else route.order.shape[0]
        num_own = route.sent[self.rank]
        order = _leaving_out(route.order, rows, starts_of(route.sent)[self.rank], num_own)
        packed = kernels.pack_segments(leaves, order, single, jnp.sum(self.sent, dtype=jnp.int32)[None], rows)[0]
        empty = vary(jnp.zeros((capacity, packed.shape[1]), jnp.uint32))
        arrived = jax.lax.ragged_all_to_all(
            packed,
            empty,
            starts_of(self.sent),
            self.sent,
            swap(starts_of(self.received)),
            self.received,
            axis_name=self.axes,
        )
        place = _leaving_out(self.place, capacity, route.starts()[self.rank], num_own)
        return list(
            kernels.unpack_segments(arrived[None], place, single, jnp.sum(self.received, dtype=jnp.int32)[None], arrays)
        )


def _leaving_out(index: jax.Array | None, rows: int, start: jax.Array, count: jax.Array) -> jax.Array:
    """Return ``index`` (None: all of ``rows``) without ``count`` entries from ``start`` on. The tail is undefined."""
    entry = jnp.arange(rows, dtype=jnp.int32)
    entry = jnp.minimum(jnp.where(entry < start, entry, entry + count), max(rows - 1, 0))
    return entry if index is None else index[entry]
