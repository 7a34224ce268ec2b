"""The distributed sort: particles of all ranks in z-order, a range of it for each rank.

Every rank sorts its own rows by keys over the domain of all ranks; splitters cut the z-order into one range a rank
(`_splitters`); one exchange brings the rows there; each rank merges what it got. Splitters are exact, and equal points
are dealt out in the order of the ranks, which keeps the sort stable. So every rank ends with the same number of rows,
off by one, and never holds more; and the order is the one in which one device sorts the rows of all ranks. Cost: a
local sort, some small sums over the ranks, one exchange, and a merge; of rows that are all in their places already,
as where a simulation asks twice, a look at these and one small gather.
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
from .._checks import check_box, check_particles, exact_box_argument
from .._particles import check_carried, check_countable, check_movable, check_num
from .._transform.capacity import Room, room
from ..data import RankIdx, get_pos, replace_num, split_rows, with_computed
from ..jax_ext import Exact, with_smap
from ._splitters import traffics_of
from ._zorder import Domain, domain_of, to_order

__all__ = ["distr_zsort"]


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
    """Sort the particles of all ranks in z-order: each rank gets a range of it, in the order of the ranks.

    part: this rank's particles, a particle class with ``pos`` ``(n, d)``, or an array of positions.
    data: a pytree whose leaves all have ``n`` rows, to go along.
    nsamp: with ``equalize=False``, how many keys a rank looks at to find the ranges.
    equalize: all ranks end with the same number of particles, the first ones with one more if it does not divide. Else
        ranges come from a sample, which is a little faster.
    boxsize: periodic length, or one a dimension; 0 or None is open.
    capacity: with ``equalize=False``, how many rows a rank may get; None means ``n``, and more where a mapped function
        finds that it needs more. With ``equalize=True``, ``n`` is always enough.

    Returns ``(partz, origin)``, or ``(partz, dataz, origin)`` if ``data`` is given: the rank's particles with ``num``
    of the rank, and the `jztree.data.RankIdx` that each row came from, ``(n,)`` each. The order is that of `zsort` for
    the particles of all ranks, one rank after the other: coincident particles stay in the order of ranks and rows. Rows
    from ``num`` on hold nothing.

    Raises TypeError or ValueError for arguments of the wrong kind, such as a class without ``num`` for shares that are
    not equal, and on every rank at run time if a position is NaN or infinite on any, or if the particles do not fit
    (`jztree.CapacityError`).
    """
    if not equalize and nsamp < 1:
        raise ValueError(f"nsamp is the number of sampled keys a rank, so it must be at least 1; {nsamp} was given.")
    if capacity is not None and capacity < 0:
        raise ValueError(f"capacity is the number of rows that a rank may get, so it cannot be negative: {capacity}.")
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
    """TypeError or ValueError in words if ``data`` does not have ``n`` rows of numbers everywhere."""
    check_carried({"data": data})
    check_movable({"data": data})
    for leaf in jax.tree.leaves(data):
        if np.ndim(leaf) == 0 or leaf.shape[0] != n:
            raise ValueError(f"every array in data must have {n} rows, one a particle; one has shape {np.shape(leaf)}.")


def _unequal_room(n: int, capacity: int | None) -> Room:
    return room("sorted_rows", capacity, n, n * comm.num_ranks())


@dataclass
class Movers:
    """Particles of one type on their way into z-order.

    data: what goes along, or None. named: whether it is to be known where each came from.
    """

    part: Any
    data: Any
    num: Any
    named: bool = True


@dataclass
class Moved:
    """A rank's range of the z-order.

    part, data, num: the particles in z-order. names: where each row came from, None if that is not known.
    merge: ``(rows,)`` int32, which of the rows as they arrived each is. route: how they travelled.
    stayed: whether no row of any rank moved; None: nobody has looked.
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
        """``names`` of movers that were to be `named`."""
        assert self.names is not None
        return self.names


def sort_over_ranks(
    movers: Sequence[Movers],
    domain: Domain,
    rooms: Sequence[Room],
    nsamp: int | None = None,
    on_ranks: Sequence[Domain] | None = None,
) -> list[Moved]:
    """Bring particles of several types into z-order, cut into ranges that have the same number of rows of all types.

    rooms: how many rows of each type a rank may get. nsamp: cut by samples instead, None: exactly. on_ranks: in what
    domain the rows of each type are ordered on the rank that gets them, if not in that of all.
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
        # Exchanges follow each other, and all that was agreed upon: the number that arrived is known when the check of
        # one is over.
        ready = comm.after(traffic, moved[-1].num if moved else traffics[-1].most)
        moved.append(_move(mover, (order, posz), ready, place, on_rank, on_rank is domain))
    return moved


def _sort_one_type(mover: Movers, domain: Domain, place: Room) -> Moved:
    """`sort_over_ranks` of one type in equal shares, which leaves rows where they are if all are in their places."""
    # By its type, what the branches look at differs between ranks before they are made: under vmap, JAX makes that so,
    # and fails where a branch does it, too.
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
    """Whether all rows of all ranks are where the sort would bring them, and how many each rank has, ``(r,)`` int32.

    The ranges follow each other if their first and last rows do.
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
    """Whether no rank is empty, and the first ones have at most one row more than the others."""
    return (nums[-1] > 0) & (nums[0] - nums[-1] <= 1) & jnp.all(nums[1:] <= nums[:-1])


def sort_equally(mover: Movers, domain: Domain) -> Moved:
    """Bring particles of one type into z-order, the same number to every rank, which never needs more rows."""
    return sort_over_ranks([mover], domain, [Room(get_pos(mover.part).shape[0], "sort")])[0]


def rows_of_rank(n: int) -> RankIdx:
    """The names of this rank's ``n`` rows."""
    return RankIdx(jnp.full(n, comm.get_rank_info()[0], jnp.int32), jnp.arange(n, dtype=jnp.int32))


def rows_in_equal_shares(nums: jax.Array, n: int) -> tuple[RankIdx, jax.Array]:
    """What this rank's ``n`` rows would be called if those of all ranks were dealt out equally, as `distr_zsort` does,
    and the first number of each rank's share.

    nums: ``(r,)`` int32, how many rows each rank has.
    """
    rank, ndev, _ = comm.get_rank_info()
    everyone = jnp.arange(ndev, dtype=jnp.int32)
    own = comm.wide_total(jnp.where(everyone < rank, nums, 0))
    starts = comm.share(comm.wide_total(nums), everyone, ndev)[1]
    # Nobody has 2**31 rows, so starts that are farther away than that are of no matter.
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
    """Exchange the rows of one type, and merge what arrives.

    in_order: the order of the rows, and positions in it. sorted_there: it is that of ``domain``.
    """
    (order, posz), (columns, rebuild) = in_order, split_rows(mover.part)
    # They leave in their order, so that all that is read and written from here on lies together.
    columns, data = jax.tree.map(to_order(order, get_pos(mover.part), posz), (columns, mover.data))
    arrived, num, route = comm.exchange(
        (columns, data, order if mover.named else None),
        traffic,
        place,
        what="sorted particles",
        advice="pad the particles (npad), give a larger capacity, or use equalize=True.",
        name="sort",
    )
    # A stable sort of the runs that came, in the order of the ranks, merges them.
    pos = get_pos(rebuild(arrived[0]))
    received, rank = route.received, comm.get_rank_info()[0]
    merge, posz = domain.zsort(pos, num, sorted_there & (received[rank] == num))
    columns, data, row = jax.tree.map(to_order(merge, pos, posz), arrived)
    names = RankIdx(route.sender(merge), row) if mover.named else None
    route = dataclasses.replace(route, order=order)
    return Moved(replace_num(rebuild(columns), num), data, num, names, merge, route)
