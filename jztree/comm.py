"""Ranks, and moving rows between them. All that `jztree` says to other devices goes through here.

A function inside `jax.shard_map` is one of ``r`` ranks, numbered over all axes of the mesh. Outside of any mesh there
is one rank, and everything here is then a plain local operation. Rows are those of whole pytrees, packed into one
buffer, because each collective costs compile time and latency.

Collectives follow each other by data: a rank that raises must not leave others in a collective that it never joins. So
whatever may fail is reduced over all ranks first (`check`), and what comes next takes the count that the check returns.

Memory: an exchange in dense rounds needs two buffers of the size of its chunks, whatever the distribution.
"""

import functools
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from . import kernels, stats
from .capacity import Room
from .jax_ext import vary_along
from .launch import initialize, should_init_jax_distributed
from .particles import check_rows

__all__ = [
    "Fault",
    "Route",
    "all_gather",
    "all_gather_rows",
    "all_max",
    "all_min",
    "check",
    "check_all",
    "deliver",
    "exchange",
    "exchange_by_rank",
    "fetch",
    "get_rank_info",
    "in_shard_map_context",
    "initialize",
    "send_back",
    "shift",
    "should_init_jax_distributed",
]

_MIN_CHUNK = 64
_METHODS = ("dense", "ragged")
# The small buffer of a dense exchange is that many times smaller, and used where so many rounds of it suffice.
_SMALL_BUFFER, _SMALL_ROUNDS = 16, 4


def in_shard_map_context() -> bool:
    """Whether the code that is being traced runs inside `jax.shard_map`."""
    return bool(_manual_axes())


def _manual_axes() -> tuple[str, ...]:
    mesh = jax.sharding.get_abstract_mesh()
    return tuple(name for name in mesh.axis_names if name in mesh.manual_axes)


def get_rank_info(axis_name: Any = None) -> tuple[Any, int, tuple[str, ...]]:
    """The rank of this device (a traced int32 scalar), the number of ranks, and the names of the mesh axes they run
    over.

    axis_name: one or several axes of the mesh; None means all. Outside of any mesh: ``(0, 1, ())``.
    """
    names = _manual_axes() if axis_name is None else (axis_name,) if isinstance(axis_name, str) else tuple(axis_name)
    if not names:
        return 0, 1, ()
    sizes = jax.sharding.get_abstract_mesh().shape
    return jax.lax.axis_index(names), math.prod(sizes[name] for name in names), names


def num_ranks() -> int:
    """The number of ranks; 1 outside of any mesh."""
    return get_rank_info()[1]


def vary(value: Any) -> jax.Array:
    """``value`` with a type that says that it differs between ranks."""
    return vary_along(jnp.asarray(value), frozenset(_manual_axes()))


def all_max(value: Any) -> Any:
    """The largest value over all ranks, elementwise."""
    _, _, axes = get_rank_info()
    return jax.lax.pmax(vary(value), axes) if axes else value


def all_min(value: Any) -> Any:
    """The smallest value over all ranks, elementwise."""
    _, _, axes = get_rank_info()
    return jax.lax.pmin(vary(value), axes) if axes else value


def all_gather(value: Any) -> jax.Array:
    """The values of all ranks, ``(r, ...)``."""
    _, ndev, axes = get_rank_info()
    return jnp.asarray(value)[None] if ndev == 1 else jax.lax.all_gather(vary(value), axes)


def all_gather_rows(rows: Any) -> Any:
    """A pytree of arrays ``(b, ...)`` of one length, of all ranks in one collective: arrays ``(r, b, ...)``."""
    _, ndev, axes = get_rank_info()
    given, structure = jax.tree.flatten(rows)
    leaves = jax.lax.stop_gradient(given)
    length, first = leaves[0].shape[0], jnp.zeros(1, jnp.int32)
    packed = kernels.pack_segments(leaves, None, first, jnp.full(1, length, jnp.int32), length)
    told = jax.lax.all_gather(vary(packed), axes, tiled=True) if ndev > 1 else packed
    empty = [vary(jnp.zeros((ndev * length, *leaf.shape[1:]), leaf.dtype)) for leaf in leaves]
    starts, counts = jnp.arange(ndev, dtype=jnp.int32) * length, jnp.full(ndev, length, jnp.int32)
    unpacked = kernels.unpack_segments(told, None, starts, counts, empty)
    arrays = [array.reshape(ndev, length, *array.shape[1:]) for array in unpacked]
    return jax.tree.unflatten(structure, _with_real(_as_told, arrays, given))


def _with_real(
    derive: Callable[[list[jax.Array], list[Any]], list[jax.Array]], arrays: list[jax.Array], given: list[Any]
) -> list[jax.Array]:
    """``arrays``, those of real numbers, and what they were made from, having gone through ``derive``."""
    real = [i for i, array in enumerate(arrays) if jnp.issubdtype(array.dtype, jnp.inexact)]
    derived = derive([arrays[i] for i in real], [given[i] for i in real]) if real else []
    places = dict(zip(real, derived, strict=True))
    return [places.get(i, array) for i, array in enumerate(arrays)]


@jax.custom_jvp
def _as_told(told: list[jax.Array], values: list[jax.Array]) -> list[jax.Array]:
    """``told``, which is what all ranks have as ``values``, with the derivative of that."""
    del values
    return told


@_as_told.defjvp
def _as_told_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _as_told(*primals), [all_gather(change) for change in tangents[1]]


def swap(buffer: jax.Array) -> jax.Array:
    """A buffer ``(r, ...)`` whose part i goes to rank i, for one whose part i came from rank i."""
    _, ndev, axes = get_rank_info()
    return jax.lax.all_to_all(vary(buffer), axes, 0, 0) if ndev > 1 else buffer


def shift(value: Any, by: int = 1) -> Any:
    """What rank ``rank - by`` holds; ranks follow each other in a ring. value: a pytree of arrays."""
    _, ndev, axes = get_rank_info()
    pairs = [(i, (i + by) % ndev) for i in range(ndev)]
    return value if ndev == 1 else jax.tree.map(lambda leaf: jax.lax.ppermute(vary(leaf), axes, pairs), value)


class Fault(NamedTuple):
    """What may be wrong: whether it is, and what to say then; see `check`."""

    failed: Any
    numbers: Sequence[Any]
    sentence: str


def check(num: Any, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """``num``, or an error with ``sentence`` on every rank at run time if it ``failed`` on any.

    Of several sentences, one a line, it is that of the number that ``failed`` is, from 1 on.

    The caller must go on with the returned ``num``, also in what it says to other ranks. ``{0}``, ``{1}`` in
    ``sentence`` stand for ``numbers`` (int32 scalars) of the first rank that failed; on several ranks the sentence
    begins with it.
    """
    return check_all(num, [Fault(failed, numbers, sentence)])


def check_all(num: Any, faults: Sequence[Fault]) -> jax.Array:
    """`check` for several things that may be wrong, with one collective."""
    _, ndev, _ = get_rank_info()
    if not faults:
        return kernels.as_num(num)
    lines: list[str] = []
    numbers: list[Any] = []
    codes = []
    for fault in faults:
        failed = jnp.asarray(fault.failed, jnp.int32)
        codes.append(jnp.where(failed != 0, failed + len(lines), 0) if lines else failed)
        lines += [_renumbered(line, len(numbers)) for line in fault.sentence.split("\n")]
        numbers += fault.numbers
    which = functools.reduce(lambda first, code: jnp.where(first != 0, first, code), codes)
    told = [which, *(kernels.as_num(number) for number in numbers)]
    if ndev > 1:
        everyone = all_gather(jnp.stack([vary(number) for number in told]))
        first = jnp.argmax(everyone[:, 0] != 0)
        told = [*everyone[first], first]
        lines = [f"on rank {{{len(numbers)}}}: {line}" for line in lines]
    return kernels.check(num, told[0], told[1:], "\n".join(lines))


def _renumbered(sentence: str, by: int) -> str:
    """A sentence whose ``{0}`` is ``{by}``, and so on."""
    return re.sub(r"\{(\d+)\}", lambda mark: f"{{{int(mark[1]) + by}}}", sentence)


def after(num: Any, *values: jax.Array) -> jax.Array:
    """``num``, known to XLA only once all of ``values`` are.

    Puts collectives in an order that the data alone does not give them.
    """
    return kernels.check(num, False, [value.reshape(-1)[0] for value in values], "")


class Wide(NamedTuple):
    """Counts that may exceed 32 bits, as ``high * 2**16 + low`` with low below 2**16; at most 2**15 ranks."""

    high: jax.Array
    low: jax.Array

    def exceeds_int32(self) -> jax.Array:
        """Whether each count is 2**31 or more."""
        return self.high >= 2**15

    def above(self, other: "Wide") -> jax.Array:
        """Whether each count is larger than the other one."""
        return (self.high > other.high) | ((self.high == other.high) & (self.low > other.low))


def wide_sum(count: Any) -> Wide:
    """The sum of int32 counts over all ranks, elementwise."""
    _, ndev, axes = get_rank_info()
    parts = jnp.stack([jnp.asarray(count) >> 16, jnp.asarray(count) & 0xFFFF])
    high, low = parts if ndev == 1 else jax.lax.psum(vary(parts), axes)
    return Wide(high + (low >> 16), low & 0xFFFF)


def wide_total(counts: jax.Array) -> Wide:
    """The sum of int32 counts ``(n,)``, at most 2**15 of them."""
    low = jnp.sum(counts & 0xFFFF, dtype=jnp.int32)
    return Wide(jnp.sum(counts >> 16, dtype=jnp.int32) + (low >> 16), low & 0xFFFF)


def share(total: Wide, rank: jax.Array, ndev: int) -> tuple[jax.Array, Wide]:
    """How many of ``total`` rows each of ``rank`` gets if all get the same (the first ones one more), int32, and where
    its share starts.
    """
    high, rest = total.high // ndev, total.high % ndev
    # rest is below the number of ranks, at most 2**15, so this fits 31 bits.
    low = rest * 65536 + total.low
    each, more = high * 65536 + low // ndev, low % ndev
    carried = rank * (each & 0xFFFF) + jnp.minimum(rank, more)
    start = Wide(rank * (each >> 16) + (carried >> 16), carried & 0xFFFF)
    return each + (rank < more).astype(each.dtype), start


@dataclass
class Route:
    """How rows went from rank to rank, which is all it takes to send answers back.

    order: ``(m,)`` int32, the rows that were sent, grouped by destination; None: they were in that order.
    sent: ``(r,)`` int32, rows sent to each rank. received: ``(r,)`` int32, rows received from each.
    """

    order: jax.Array | None
    sent: jax.Array
    received: jax.Array
    rows: int

    def starts(self) -> jax.Array:
        """``(r,)``: the first row received from each rank."""
        return starts_of(self.received)


def check_room(num: Any, needs: jax.Array, room: Room, what: str, advice: str) -> jax.Array:
    """``num``, or a capacity error on every rank if what some rank needs does not fit ``room``.

    needs: ``(r,)`` int32, the rows that each rank needs, known to all. what, advice: see `exchange`.
    """
    check_rows(room.rows, f"rows to be kept for {what}")
    worst = jnp.argmax(needs)
    sentence = f"rank {{2}} needs room for {{0}} rows of {what}, and has room for {{1}}; {advice} {room.mark()}"
    return kernels.check(num, needs[worst] > room.rows, [needs[worst], room.rows, worst], sentence)


def arriving(matrix: jax.Array) -> jax.Array:
    """How many rows arrive at each rank, ``(r,)`` int32. matrix: ``(r, r)``, rows from each rank to each."""
    # What all ranks send to one may exceed 32 bits; it then fits nowhere, whatever the number.
    many = jnp.sum(matrix.astype(jnp.float32), axis=0) > 2e9
    return jnp.where(many, 2_000_000_000, jnp.sum(matrix, axis=0, dtype=jnp.int32))


def exchange(
    rows: Any,
    dest_counts: jax.Array,
    room: Room,
    *,
    order: jax.Array | None = None,
    place: jax.Array | None = None,
    what: str = "rows",
    advice: str = "",
    name: str = "rows",
    fill: Any = None,
    method: str | None = None,
    chunk_rows: int | None = None,
) -> tuple[Any, jax.Array, Route]:
    """Send rows of a pytree to other ranks.

    rows: a pytree of arrays, each ``(n, ...)``.
    dest_counts: ``(r,)`` int32, how many rows go to each rank; or, where all ranks know it, ``(r, r)``, how many go
        from each rank to each.
    room: how many rows may arrive.
    order: ``(m,)`` int32, the rows to send: first those for rank 0, then those for rank 1, and so on. A row may be in
        it several times. None: the rows are in that order themselves.
    place: ``(room.rows,)`` int32, where to put the rows that arrive; None: in the order of the ranks they come from,
        and within these in the order they were sent in.
    what, advice: what the rows are, and what to do if there is no room for them, for the error.
    name: under which `jztree.stats` counts the rows that leave this rank.
    fill: a pytree like ``rows`` of what stands where no row arrives; None is 0.
    method: ``"dense"`` (rounds of all_to_all over a bounded buffer), ``"ragged"`` (not on CPUs), or None for the one
        that the environment variable JZTREE_EXCHANGE names, or else the one that is best on the platform.
    chunk_rows: how many rows the buffer of a dense round has, for all ranks together; the default is a little more than
        ``room``.

    Returns the rows received, ``(room.rows, ...)``, how many there are, and the `Route`. Their derivative is that of
    moving them, for which the changes of all ranks' rows are gathered on each.

    Raises `jztree.CapacityError` (see there) on every rank if they do not fit on some rank.
    """
    rank = get_rank_info()[0]
    given, structure = jax.tree.flatten(rows)
    matrix = all_gather(dest_counts) if dest_counts.ndim == 1 else dest_counts
    needs = arriving(matrix)
    num = check_room(needs[rank], needs, room, what, advice)
    # All that follows depends on the check, so that no rank is in a collective when it fails.
    matrix = matrix + (num - needs[rank])
    route = Route(order, matrix[rank], matrix[:, rank], given[0].shape[0])
    stats.record(f"rows.{name}", jnp.sum(route.sent, dtype=jnp.int32) - route.sent[rank])
    fills = [0] * len(given) if fill is None else jax.tree.leaves(fill)
    way = _Way(room.rows, method, chunk_rows or room.rows + room.rows // 8)
    arrays = _carried(way, jax.lax.stop_gradient(given), fills, matrix, order, place)
    moved = _with_real(lambda *pair: _as_carried(way, *pair, matrix, order, place), arrays, given)
    return jax.tree.unflatten(structure, moved), num, route


class _Way(NamedTuple):
    """How rows travel: how many may arrive, by which method, and how many a round of a dense one takes."""

    room: int
    method: str | None
    chunk_rows: int


def _carried(
    way: _Way,
    leaves: list[jax.Array],
    fills: Sequence[Any],
    matrix: jax.Array,
    order: jax.Array | None,
    place: jax.Array | None,
) -> list[jax.Array]:
    """The rows that arrive. matrix: ``(r, r)``, how many go from each rank to each. All else: see `exchange`."""
    rank, ndev, _ = get_rank_info()
    leaves = [vary(leaf) for leaf in leaves]
    route = Route(order, matrix[rank], matrix[:, rank], leaves[0].shape[0])
    arrays = [
        vary(jnp.full((way.room, *leaf.shape[1:]), value, leaf.dtype))
        for leaf, value in zip(leaves, fills, strict=True)
    ]
    arrays = list(
        kernels.place_rows(
            leaves, order, starts_of(route.sent)[rank], arrays, place, route.starts()[rank], route.sent[rank]
        )
    )
    if ndev > 1:
        dense = _Dense(way.chunk_rows, matrix, route, place)
        ragged = _Ragged(matrix, route, place)
        arrays = _move(way.method, dense, ragged, leaves, arrays)
    return arrays


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _as_carried(
    way: _Way,
    arrived: list[jax.Array],
    rows: list[jax.Array],
    matrix: jax.Array,
    order: jax.Array | None,
    place: jax.Array | None,
) -> list[jax.Array]:
    """``arrived``, which is what an exchange made of ``rows``, with the derivative of that."""
    del way, rows, matrix, order, place
    return arrived


@_as_carried.defjvp
def _as_carried_jvp(way: _Way, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    _, rows, *how = primals
    (rank, ndev, _), n = get_rank_info(), rows[0].shape[0]
    if ndev * n >= 2**31:
        raise ValueError(f"derivatives over all devices are for less than 2**31 rows; there are {ndev * n}.")
    # Numbers of rows travel the same way; what is linear in the changes can then be transposed for reverse mode.
    (number,) = _carried(way, [rank * n + jnp.arange(n, dtype=jnp.int32)], [-1], *how)
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
    back, _, _ = exchange(rows, route.received, Room(route.rows, "back"), place=route.order, **options)
    return back


@functools.cache
def _method_of_process() -> str | None:
    """What JZTREE_EXCHANGE says: for systems whose ragged collective is wrong or slow. Read once, so that all that a
    process compiles agrees.
    """
    method = os.environ.get("JZTREE_EXCHANGE") or None
    if method not in (None, *_METHODS):
        raise ValueError(f"the environment variable JZTREE_EXCHANGE must be 'dense' or 'ragged', not {method!r}.")
    return method


def _move(
    method: str | None, dense: "_Dense", ragged: "_Ragged", leaves: list[jax.Array], arrays: list[jax.Array]
) -> list[jax.Array]:
    """Ragged where it exists, because it moves nothing but the rows: XLA's CPU backend does not have it."""
    if method not in (None, *_METHODS):
        raise ValueError(f"method must be 'dense', 'ragged' or None, not {method!r}.")
    method = method or _method_of_process()
    if method is None:
        return jax.lax.platform_dependent(leaves, arrays, cpu=dense, default=ragged)
    return dense(leaves, arrays) if method == "dense" else ragged(leaves, arrays)


class _Dense:
    """Rounds of all_to_all over a buffer of bounded size, until nothing is left.

    A round moves the whole buffer, however little is in it. So there is a small one for when few rows leave their rank,
    as where particles are nearly in order already.
    """

    def __init__(self, buffer_rows: int, matrix: jax.Array, route: Route, place: jax.Array | None) -> None:
        rank, ndev, _ = get_rank_info()
        large, small = (chunk_of(rows, ndev) for rows in (buffer_rows, buffer_rows // _SMALL_BUFFER))
        # A rank's own rows are in place already.
        others = 1 - jnp.eye(ndev, dtype=jnp.int32)
        most = jnp.max(matrix * others)
        few = most <= _SMALL_ROUNDS * small
        self.rounds = [(large, jnp.where(few, 0, -(-most // large))), (small, jnp.where(few, -(-most // small), 0))]
        self.sent, self.received = route.sent * others[rank], route.received * others[rank]
        self.send_starts, self.receive_starts = starts_of(route.sent), route.starts()
        self.order, self.place = route.order, place

    def __call__(self, leaves: list[jax.Array], arrays: list[jax.Array]) -> list[jax.Array]:
        for chunk, rounds in self.rounds:
            arrays = self._go_round(chunk, rounds, leaves, arrays)
        return arrays

    def _go_round(
        self, chunk: int, rounds: jax.Array, leaves: list[jax.Array], arrays: list[jax.Array]
    ) -> list[jax.Array]:
        def one(state: tuple[jax.Array, list[jax.Array]]) -> tuple[jax.Array, list[jax.Array]]:
            done, arrays = state[0] * chunk, state[1]
            packed = kernels.pack_segments(leaves, self.order, self.send_starts + done, self.sent - done, chunk)
            buffer = swap(packed)
            new = kernels.unpack_segments(buffer, self.place, self.receive_starts + done, self.received - done, arrays)
            return state[0] + 1, list(new)

        return jax.lax.while_loop(lambda state: state[0] < rounds, one, (jnp.int32(0), arrays))[1]


class _Ragged:
    """One collective that moves exactly the rows that go to other ranks."""

    def __init__(self, matrix: jax.Array, route: Route, place: jax.Array | None) -> None:
        self.rank, ndev, self.axes = get_rank_info()
        # A rank's own rows are in place already.
        others = matrix * (1 - jnp.eye(ndev, dtype=jnp.int32))
        self.sent, self.received = others[self.rank], others[:, self.rank]
        self.offsets_there = (jnp.cumsum(others, axis=0, dtype=jnp.int32) - others)[self.rank]
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
            self.offsets_there,
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


def starts_of(counts: jax.Array) -> jax.Array:
    """Where segments of these lengths begin, one after the other."""
    return jnp.cumsum(counts, dtype=jnp.int32) - counts


def chunk_of(buffer_rows: int, ndev: int) -> int:
    """Rows for each rank in the buffer of a round."""
    return max(_MIN_CHUNK, -(-buffer_rows // ndev))


def deliver(
    rows: Any,
    rank: jax.Array,
    num: Any,
    receive: Callable[[jax.Array, jax.Array, Any], Any],
    state: Any,
    buffer_rows: int,
) -> Any:
    """Send rows to ranks that take them in at once, so that nothing is stored that could overflow.

    rows: a list of arrays ``(m, ...)``. rank: ``(m,)`` int32, where each goes; those of no rank and from ``num`` on go
    nowhere. receive: called as ``receive(buffer, counts, state)`` for every round, with the packed rows ``(r, chunk,
    words)`` of which ``counts`` ``(r,)`` came from each rank; returns the new state. Returns the last state.
    """
    me, ndev, _ = get_rank_info()
    order, counts = kernels.group_by_rank(rank, num, ndev)
    matrix = all_gather(counts)
    chunk, starts = chunk_of(buffer_rows, ndev), starts_of(matrix[me])

    def one(carry: tuple[jax.Array, Any]) -> tuple[jax.Array, Any]:
        done = carry[0] * chunk
        buffer = swap(kernels.pack_segments(rows, order, starts + done, matrix[me] - done, chunk))
        return carry[0] + 1, receive(buffer, jnp.clip(matrix[:, me] - done, 0, chunk), carry[1])

    rounds = -(-jnp.max(matrix) // chunk)
    return jax.lax.while_loop(lambda carry: carry[0] < rounds, one, (jnp.int32(0), state))[1]


def fetch(table: jax.Array, rank: jax.Array, row: jax.Array, num: Any, buffer_rows: int) -> jax.Array:
    """Rows of a table that is spread over the ranks.

    table: ``(n, ...)``, this rank's part. rank, row: ``(m,)`` int32, which row of which rank to get; those of no rank
    and from ``num`` on get 0. Returns ``(m, ...)``. Questions and answers travel in rounds over a bounded buffer, so
    no number of questions to one rank can be too large.
    """
    ndev = num_ranks()
    order, counts = kernels.group_by_rank(rank, num, ndev)
    chunk, starts = chunk_of(buffer_rows, ndev), starts_of(counts)
    everywhere = jnp.full(ndev, chunk, jnp.int32)

    def one(carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        done = carry[0] * chunk
        asked = swap(kernels.pack_segments([row], order, starts + done, counts - done, chunk))
        # Where nothing was asked there may be any number.
        wanted = jnp.clip(jax.lax.bitcast_convert_type(asked.reshape(-1), jnp.int32), 0, table.shape[0] - 1)
        answers = swap(
            kernels.pack_segments([table], wanted, jnp.arange(ndev, dtype=jnp.int32) * chunk, everywhere, chunk)
        )
        return carry[0] + 1, kernels.unpack_segments(answers, order, starts + done, counts - done, [carry[1]])[0]

    rounds = -(-all_max(jnp.max(counts)) // chunk)
    none = vary(jnp.zeros((row.shape[0], *table.shape[1:]), table.dtype))
    return jax.lax.while_loop(lambda carry: carry[0] < rounds, one, (jnp.int32(0), none))[1]
