"""The distributed sort: particles of all ranks in z-order, one range per rank.

1. Every rank sorts its rows by keys over the domain of all ranks.
2. Splitters cut the z-order into one range per rank (`_splitters`).
3. One exchange moves the rows to their ranks.
4. Each rank merges the rows it receives.

Splitters are exact, and equal points are distributed in the order of the ranks, which keeps the sort stable. So all
ranks end with the same number of rows, up to one, and never hold more; and the order equals that of a sort of all rows
on one device. Cost: a local sort, some small sums over the ranks, one exchange, and a merge. If all rows are already in
place, as when a simulation searches twice, the cost is a scan of the rows and one small gather.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .. import comm, kernels, stats
from .._transform.capacity import Room, room
from ..arguments import check_box, check_particles, exact_box_argument
from ..data import RankIdx, get_pos, replace_num, split_rows, with_computed
from ..jax_ext import Exact, with_smap
from ..particles import check_carried, check_countable, check_movable, check_num
from ._splitters import traffics_of
from ._zorder import Domain, domain_of, to_order


@with_smap({"part": P(-1), "data": P(-1), "boxsize": P()}, P(-1), prepare=exact_box_argument)
@with_computed
def distr_zsort(
    part: Any,
    data: Any = None,
    nsamp: int = 1024,
    equalize: bool = True,
    boxsize: Any = None,
    capacity: int | None = None,
) -> Any:
    """Sort the particles of the ranks in z-order: each rank gets one range, in the order of the ranks.

    All arguments except ``part`` and ``data`` must agree on all ranks.

    Args:
        part: This rank's particles, a particle class with ``pos`` ``(n, d)``, or an array of positions.
        data: A pytree to sort with the particles; each leaf has ``n`` rows.
        nsamp: With ``equalize=False``, number of keys that each rank samples to find the ranges.
        equalize: Whether to give all ranks the same number of particles, with one more on the first ranks if it does
            not divide. If False, ranges come from a sample, which is slightly faster.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        capacity: With ``equalize=False``, the number of rows that a rank may receive. None means ``n``, which a mapped
            function enlarges if it is too small. With ``equalize=True``, ``n`` is always enough.

    Returns:
        ``(partz, origin)``, or ``(partz, dataz, origin)`` if ``data`` is given: the rank's particles with ``num`` of
        the rank, and the `jztree.data.RankIdx` of each row's origin, ``(n,)`` each. The order is that of `zsort` for
        the joined particles of the ranks, one rank after the other: coincident particles stay in the order of ranks and
        rows. Rows from ``num`` on are unused.

    Raises:
        TypeError: For arguments of a wrong type, such as a class without ``num`` for unequal shares.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every rank, if a position is NaN or infinite on any
            rank.
        CapacityError: On every rank, if the particles do not fit ``capacity``.
    """
    if not equalize and nsamp < 1:
        raise ValueError(
            f"nsamp is {nsamp}; it is the number of keys that each rank samples, so it must be at least 1."
        )
    if capacity is not None and capacity < 0:
        raise ValueError(
            f"capacity is {capacity}; it is the number of rows that a rank may receive, so it must be at least 0."
        )
    pos = check_particles(part)
    if not equalize and comm.num_ranks() > 1:
        check_countable(part, "with equalize=False, devices get different numbers of particles")
    check_data(data, pos.shape[0])
    box = check_box(boxsize, pos.shape[1])
    domain, (num,) = domain_of([pos], [check_num(part)], ["the positions"], box)
    rooms = [Room(pos.shape[0], "sort") if equalize else _unequal_room(pos.shape[0], capacity)]
    (moved,) = sort_over_ranks([Movers(part, data, num)], domain, rooms, None if equalize else nsamp)
    return (moved.part, moved.origin) if data is None else (moved.part, moved.data, moved.origin)


def check_data(data: Any, n: int) -> None:
    """Raise TypeError or ValueError unless every leaf of ``data`` has ``n`` rows of numbers."""
    check_carried({"data": data})
    check_movable({"data": data})
    for leaf in jax.tree.leaves(data):
        if np.ndim(leaf) == 0 or leaf.shape[0] != n:
            raise ValueError(
                f"every array in data must have {n} rows, one per particle; one has shape {np.shape(leaf)}."
            )


def _unequal_room(n: int, capacity: int | None) -> Room:
    return room("sorted_rows", capacity, n, n * comm.num_ranks())


@dataclass
class Movers:
    """Particles of one type to be sorted in z-order.

    data: a pytree to sort along, or None. named: whether to return the origin of each row.
    """

    part: Any
    data: Any
    num: Any
    named: bool = True


@dataclass
class Moved:
    """A rank's range of the z-order.

    part, data, num: the particles in z-order. names: the origin of each row, None if it was not requested.
    merge: ``(rows,)`` int32, the index of each row among the rows as they arrived. route: their route.
    stayed: whether no row of any rank moved; None: not checked.
    """

    part: Any
    data: Any
    num: jax.Array
    names: RankIdx | None
    merge: jax.Array
    route: comm.Route
    stayed: jax.Array | None = None

    @property
    def origin(self) -> RankIdx:
        """``names`` of movers with `named` set."""
        assert self.names is not None
        return self.names


def sort_over_ranks(
    movers: Sequence[Movers],
    domain: Domain,
    rooms: Sequence[Room],
    nsamp: int | None = None,
    on_ranks: Sequence[Domain] | None = None,
) -> list[Moved]:
    """Sort particles of several types in z-order, cut into ranges with equal numbers of rows of all types together.

    rooms: the row capacity of each type on a rank. nsamp: cut by samples of this size; None: cut exactly. on_ranks: the
        domain in which the receiving rank orders each type, if it differs from the domain of all.
    """
    if len(movers) == 1 and nsamp is None and on_ranks is None and get_pos(movers[0].part).shape[0] > 0:
        return [_sort_one_type(movers[0], domain, rooms[0])]
    orders, sorted_pos = zip(*(domain.zsort(jnp.asarray(get_pos(m.part)), m.num) for m in movers), strict=True)
    nums = [mover.num for mover in movers]
    traffics = traffics_of(sorted_pos, nums, domain.keys(), nsamp)
    moved: list[Moved] = []
    on_ranks = on_ranks or [domain] * len(movers)
    everything = zip(movers, orders, sorted_pos, traffics, rooms, on_ranks, strict=True)
    for mover, order, posz, traffic, place, on_rank in everything:
        # Each exchange waits for all agreed counts and for the previous exchange: the number of arrived rows is known
        # once its check has finished.
        ready = comm.after(traffic, moved[-1].num if moved else traffics[-1].most)
        moved.append(_move(mover, (order, posz), ready, place, on_rank, on_rank is domain))
    return moved


def _sort_one_type(mover: Movers, domain: Domain, place: Room) -> Moved:
    """Run `sort_over_ranks` for one type in equal shares, without moving any rows if all are in place."""
    # Mark the inputs of the branches as varying over ranks before `lax.cond`. Under vmap, JAX does so itself, and fails
    # if a branch also does so.
    columns, rebuild = split_rows(mover.part)
    columns, data, num = jax.tree.map(comm.vary, (columns, mover.data, kernels.as_num(mover.num)))
    mover = dataclasses.replace(mover, part=rebuild(columns), data=data, num=num)
    domain = dataclasses.replace(domain, box=Exact(comm.vary(domain.box.words)))
    pos, n = get_pos(mover.part), get_pos(mover.part).shape[0]
    in_place, nums = _are_in_place(pos, num, domain)

    def stay() -> tuple[Any, ...]:
        stats.record("rows.sort", jnp.int32(0))
        names = rows_of_rank(n) if mover.named else None
        order = jnp.arange(n, dtype=jnp.int32)
        here = comm.get_rank_info()[0] == jnp.arange(nums.shape[0], dtype=jnp.int32)
        sent = jnp.where(here, nums, 0)
        traffic = comm.Traffic(sent, sent, nums, nums, jnp.int32(0))
        return columns, data, num, names, order, order, traffic

    def travel() -> tuple[Any, ...]:
        agreed = comm.after(num, nums)
        order, posz = domain.zsort(pos, agreed)
        (traffic,) = traffics_of([posz], [agreed], domain.keys(), None)
        moved = _move(mover, (order, posz), traffic, place, domain, True)
        columns, _ = split_rows(moved.part)
        return columns, moved.data, moved.num, moved.names, moved.merge, moved.route.order, moved.route.traffic

    def typed(branch: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
        return lambda: jax.tree.map(comm.vary, branch())

    found = jax.lax.cond(in_place, typed(stay), typed(travel))
    columns_there, data_there, num_there, names, merge, order, traffic = found
    part = replace_num(rebuild(columns_there), num_there)
    return Moved(part, data_there, num_there, names, merge, comm.Route(order, traffic, n), in_place)


def _are_in_place(pos: jax.Array, num: jax.Array, domain: Domain) -> tuple[jax.Array, jax.Array]:
    """Return whether all rows of all ranks are already in place, and the number of rows on each rank, ``(r,)`` int32.

    Consecutive ranges are in order if their first and last rows are.
    """
    keys = domain.keys()
    ends = kernels.gather_rows(pos, jnp.stack([jnp.int32(0), jnp.maximum(num - 1, 0)]))
    told = jnp.stack([num, kernels.is_sorted(pos, num, *keys)])
    ends, told = comm.all_gather_rows((jax.lax.stop_gradient(ends), told))
    nums, are_sorted = told[:, 0], told[:, 1]
    follow = kernels.is_sorted(ends.reshape(-1, pos.shape[1]), 2 * nums.shape[0], *keys)
    return _are_equal_shares(nums) & (are_sorted != 0).all() & (follow != 0), nums


@functools.partial(jax.jit, inline=True)
def _are_equal_shares(nums: jax.Array) -> jax.Array:
    """Return whether no rank is empty, and the first ranks have at most one row more than the others."""
    return (nums[-1] > 0) & (nums[0] - nums[-1] <= 1) & jnp.all(nums[1:] <= nums[:-1])


def sort_equally(mover: Movers, domain: Domain) -> Moved:
    """Sort particles of one type in z-order, with equal numbers of rows per rank, so that no rank needs more rows."""
    return sort_over_ranks([mover], domain, [Room(get_pos(mover.part).shape[0], "sort")])[0]


def rows_of_rank(n: int) -> RankIdx:
    """Return the names (rank and row) of this rank's ``n`` rows."""
    return RankIdx(jnp.full(n, comm.get_rank_info()[0], jnp.int32), jnp.arange(n, dtype=jnp.int32))


def rows_in_equal_shares(nums: jax.Array, n: int) -> tuple[RankIdx, jax.Array]:
    """Return the names of this rank's ``n`` rows in equal shares, as in `distr_zsort`, and the start of each share.

    nums: ``(r,)`` int32, the number of rows on each rank.
    """
    rank, ndev, _ = comm.get_rank_info()
    everyone = jnp.arange(ndev, dtype=jnp.int32)
    own = comm.wide_total(jnp.where(everyone < rank, nums, 0))
    starts = comm.share(comm.wide_total(nums), everyone, ndev)[1]
    # No rank has 2**31 rows, so starts farther away than that may be clipped.
    away = jnp.clip(starts.high - own.high, 1 - 2**15, 2**15 - 1) * 65536 + (starts.low - own.low)
    rows = jnp.arange(n, dtype=jnp.int32)
    share = jnp.searchsorted(away, rows, side="right").astype(jnp.int32) - 1
    return RankIdx(share, rows - away[share]), starts.high * 65536 + starts.low


def _move(
    mover: Movers,
    in_order: tuple[jax.Array, jax.Array],
    traffic: comm.Traffic,
    place: Room,
    domain: Domain,
    sorted_there: bool,
) -> Moved:
    """Exchange the rows of one type, and merge the received rows.

    in_order: the z-order of the rows, and the positions in that order. sorted_there: whether this is the order of
        ``domain``.
    """
    (order, posz), (columns, rebuild) = in_order, split_rows(mover.part)
    # Send the rows in z-order, so that all later reads and writes are contiguous.
    columns, data = jax.tree.map(to_order(order, get_pos(mover.part), posz), (columns, mover.data))
    arrived, num, route = comm.exchange(
        (columns, data, order if mover.named else None),
        traffic,
        place,
        what="sorted particles",
        advice="pad the particles (npad), give a larger capacity, or use equalize=True.",
        name="sort",
    )
    # A stable sort of the received runs, in the order of the ranks, merges them.
    pos = get_pos(rebuild(arrived[0]))
    received, rank = route.received, comm.get_rank_info()[0]
    merge, posz = domain.zsort(pos, num, sorted_there & (received[rank] == num))
    columns, data, row = jax.tree.map(to_order(merge, pos, posz), arrived)
    names = RankIdx(route.sender(merge), row) if mover.named else None
    route = dataclasses.replace(route, order=order)
    return Moved(replace_num(rebuild(columns), num), data, num, names, merge, route)
