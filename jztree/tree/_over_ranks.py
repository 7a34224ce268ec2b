"""The distributed sort: particles on all ranks in z-order, one range per rank.

1. Every rank sorts its rows by keys over a domain that contains the particles of every rank.
2. Splitters cut the z-order into one range per rank (`_splitters`).
3. One exchange moves the rows to their ranks.
4. Each rank merges the received rows.

Splitters are exact, and equal points are distributed in the order of the ranks, which keeps the sort stable. Therefore,
the numbers of rows on the ranks differ by at most one at the end, no rank ever holds more, and the order equals that of
a sort on one device. Cost: a local sort, some small sums over the ranks, one exchange, and a merge. If a simulation
searches twice and every row is already in place, the cost is a scan of the rows and one small gather.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels, stats
from .._transform.capacity import Capacity, choose_capacity
from ..arguments import check_box, check_flag, check_particles, exact_box_argument, known_integer
from ..data import RankIdx, get_pos, replace_num, split_rows, with_computed
from ..jax_ext import Exact, with_smap
from ..particles import Array, Particles, check_countable, check_movable, check_num, check_representable
from ._input import InputParticles
from ._splitters import rows_between, traffics_of
from ._zorder import Domain, domain_of, to_order

_TOO_UNEQUAL = "pad the particles (npad), give a larger capacity, or use equalize=True."
_CROWDED = "pass the particles in place of the index, which gives all ranks equal shares of particles and queries."


@with_smap({"part": P(-1), "data": P(-1), "boxsize": P()}, P(-1), prepare=exact_box_argument)
@with_computed
def distr_zsort(
    part: Particles | Array,
    data: Any = None,
    nsamp: int = 1024,
    equalize: bool = True,
    boxsize: ArrayLike | None = None,
    capacity: int | None = None,
) -> Any:
    """Sort the particles of the ranks in z-order: each rank gets one range, in the order of the ranks.

    All arguments except ``part`` and ``data`` must agree on all ranks.

    Args:
        part: This rank's particles, a particle class with ``pos`` ``(n, d)``, or an array of positions.
        data: A pytree to sort with the particles; each leaf has ``n`` rows.
        nsamp: With ``equalize=False``, number of keys that each rank samples to find the ranges.
        equalize: Whether to give all ranks the same number of particles, with one more on the first ranks if the total
            is not divisible. If False, a sample determines the ranges, which is slightly faster.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        capacity: With ``equalize=False``, the number of rows that a rank may receive. None means ``n``; if this is too
            small, a mapped function enlarges it. With ``equalize=True``, ``n`` is always enough.

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
    check_flag(equalize, "equalize")
    if not equalize and nsamp < 1:
        raise ValueError(
            f"nsamp is {nsamp}; it is the number of keys that each rank samples, so it must be at least 1."
        )
    if capacity is not None:
        known_integer(capacity, "capacity", 0)
    pos = check_particles(part)
    if not equalize and comm.num_ranks() > 1:
        check_countable(part, "with equalize=False, devices get different numbers of particles")
    check_data(data, pos.shape[0])
    box = check_box(boxsize, pos.shape[1])
    domain, (num,) = domain_of([pos], [check_num(part)], ["the positions"], box)
    capacities = [Capacity(pos.shape[0], "sort") if equalize else _unequal_capacity(pos.shape[0], capacity)]
    (moved,) = sort_over_ranks([InputParticles(part, num, data)], domain, capacities, None if equalize else nsamp)
    return (moved.part, moved.origin) if data is None else (moved.part, moved.data, moved.origin)


def check_data(data: Any, n: int, name: str = "data", owner: str = "particle") -> None:
    """Raise TypeError or ValueError unless every leaf of ``data`` has ``n`` rows of numbers.

    Args:
        data: A pytree.
        n: Number of rows.
        name: Name of ``data`` in messages.
        owner: The owner of a row in messages.
    """
    check_representable({name: data})
    check_movable({name: data})
    for leaf in jax.tree.leaves(data):
        if np.ndim(leaf) == 0 or leaf.shape[0] != n:
            raise ValueError(
                f"every array in {name} must have {n} rows, one per {owner}; one has shape {np.shape(leaf)}."
            )


def _unequal_capacity(n: int, capacity: int | None) -> Capacity:
    return choose_capacity("sorted_rows", capacity, n, n * comm.num_ranks())


@jax.tree_util.register_dataclass
@dataclass
class SortedRange:
    """A rank's range of the z-order.

    Attributes:
        part: The particles in z-order.
        data: Their data in z-order.
        num: Number of rows that hold particles, int32.
        row_origin: Rank and row of each row in the input; None if the caller did not request it.
        merge: ``(rows,)`` int32, the index of each row among the received rows.
        route: Route of the received rows.
    """

    part: Any
    data: Any
    num: jax.Array
    row_origin: RankIdx | None
    merge: jax.Array
    route: comm.Route

    @property
    def origin(self) -> RankIdx:
        """``row_origin`` of particles with ``needs_origin``."""
        assert self.row_origin is not None
        return self.row_origin

    def bring(self, rows: Any) -> Any:
        """Move further rows of the input, a pytree of arrays ``(n, ...)``, to the places of their particles."""
        n, order = self.merge.shape[0], self.route.order
        assert order is not None
        sent = jax.tree.map(lambda leaf: kernels.gather_rows(jnp.asarray(leaf), order), rows)
        arrived, _, _ = comm.exchange(sent, self.route.traffic, Capacity(n, "sort"), name="sort")
        return jax.tree.map(lambda leaf: kernels.gather_rows(leaf, self.merge), arrived)

    def send_back(self, answers: Any, fill: Any = None) -> Any:
        """Send answers, arrays ``(n, ...)`` in the order ``merge``, to the rank and row of each particle."""
        # The particles are the first rows of the input, so only later rows receive no answer.
        num = jnp.sum(self.route.sent, dtype=jnp.int32)
        return comm.send_back(answers, self.route, fill=fill, filled=num, name="results")


def sort_over_ranks(
    types: Sequence[InputParticles],
    domain: Domain,
    capacities: Sequence[Capacity],
    nsamp: int | None = None,
    on_ranks: Sequence[Domain] | None = None,
) -> list[SortedRange]:
    """Sort particles of several types in z-order, cut into ranges with equal numbers of rows, summed over types.

    Args:
        types: This rank's particles of each type.
        domain: Domain of the Morton keys.
        capacities: Row capacity of each type on a rank.
        nsamp: Size of the samples that determine the ranges. None determines them exactly.
        on_ranks: Domain of the sort of each type on the receiving rank. None means ``domain``.

    Returns:
        This rank's range of each type.
    """
    if len(types) == 1 and nsamp is None and on_ranks is None and types[0].pos.shape[0] > 0:
        return [_sort_one_type(types[0], domain, capacities[0])]
    orders, sorted_pos = zip(*(domain.zsort(jnp.asarray(one.pos), one.num) for one in types), strict=True)
    nums = [one.num for one in types]
    traffics = traffics_of(sorted_pos, nums, domain.keys(), nsamp)
    moved: list[SortedRange] = []
    on_ranks = on_ranks or [domain] * len(types)
    everything = zip(types, orders, sorted_pos, traffics, capacities, on_ranks, strict=True)
    for unsorted, order, posz, traffic, capacity, on_rank in everything:
        # Each exchange waits for all agreed counts and for the check of the previous exchange, which gives the number
        # of received rows.
        ordered_traffic = comm.after(traffic, moved[-1].num if moved else traffics[-1].most)
        moved.append(_move(unsorted, (order, posz), ordered_traffic, capacity, on_rank, on_rank is domain))
    return moved


def sort_into_ranges(
    unsorted: InputParticles, posz: jax.Array, num: jax.Array, domain: Domain, on_rank: Domain
) -> SortedRange:
    """Sort particles in z-order, and cut them where the ranges of other particles begin.

    A range may receive every particle, for example if all are in a corner of the other particles.

    Args:
        unsorted: This rank's particles.
        posz: ``(n, d)``, this rank's range of the other particles, in z-order.
        num: Number of rows that hold other particles.
        domain: Domain of the z-order of the other particles.
        on_rank: Domain of the sort on the receiving rank.
    """
    ndev, rows = comm.num_ranks(), unsorted.num_rows
    order, sorted_pos = domain.zsort(jnp.asarray(unsorted.pos), unsorted.num)
    first = kernels.gather_rows(posz, jnp.zeros(1, jnp.int32))
    starts, nums = comm.all_gather_rows((jax.lax.stop_gradient(first), comm.after(num, unsorted.num)[None]))
    # With equal shares, ranks without particles come last.
    cuts = kernels.search(sorted_pos, unsorted.num, starts[1:, 0], *domain.keys(), False)
    cuts = jnp.where(nums[1:, 0] > 0, cuts, unsorted.num)
    # Usually, the capacity for equal shares of both sets together is enough.
    capacity = choose_capacity("query_rows", None, posz.shape[0] + rows, max(ndev * rows, 1))
    traffic = comm.traffic_of(rows_between(cuts, unsorted.num))
    return _move(unsorted, (order, sorted_pos), traffic, capacity, on_rank, on_rank is domain, unsorted.name, _CROWDED)


def _sort_one_type(unsorted: InputParticles, domain: Domain, capacity: Capacity) -> SortedRange:
    """Run `sort_over_ranks` for one type in equal shares. Move no rows if all rows are already in place."""
    # Mark the inputs of the branches as varying over ranks before `lax.cond`. Under vmap, JAX marks them itself, and
    # fails if a branch also marks them.
    columns, rebuild = split_rows(unsorted.part)
    columns, data, num = jax.tree.map(comm.vary, (columns, unsorted.data, kernels.as_num(unsorted.num)))
    unsorted = dataclasses.replace(unsorted, part=rebuild(columns), data=data, num=num)
    domain = dataclasses.replace(domain, box=Exact(comm.vary(domain.box.words)))
    pos, n = unsorted.pos, unsorted.pos.shape[0]
    in_place, nums = _are_in_place(pos, num, domain)

    def keep_rows() -> tuple[Any, ...]:
        stats.record("rows.sort", jnp.int32(0))
        origin = rows_of_rank(n) if unsorted.needs_origin else None
        order = jnp.arange(n, dtype=jnp.int32)
        is_own = comm.get_rank_info()[0] == jnp.arange(nums.shape[0], dtype=jnp.int32)
        sent = jnp.where(is_own, nums, 0)
        traffic = comm.Traffic(sent, sent, nums, nums, jnp.int32(0))
        return columns, data, num, origin, order, order, traffic

    def move_rows() -> tuple[Any, ...]:
        agreed = comm.after(num, nums)
        order, posz = domain.zsort(pos, agreed)
        (traffic,) = traffics_of([posz], [agreed], domain.keys(), None)
        moved = _move(unsorted, (order, posz), traffic, capacity, domain, True)
        columns, _ = split_rows(moved.part)
        return columns, moved.data, moved.num, moved.row_origin, moved.merge, moved.route.order, moved.route.traffic

    def varying(branch: Callable[[], tuple[Any, ...]]) -> Callable[[], tuple[Any, ...]]:
        return lambda: jax.tree.map(comm.vary, branch())

    found = jax.lax.cond(in_place, varying(keep_rows), varying(move_rows))
    moved_columns, moved_data, moved_num, origin, merge, order, traffic = found
    part = replace_num(rebuild(moved_columns), moved_num)
    return SortedRange(part, moved_data, moved_num, origin, merge, comm.Route(order, traffic, n))


def _are_in_place(pos: jax.Array, num: jax.Array, domain: Domain) -> tuple[jax.Array, jax.Array]:
    """Return whether every row of every rank is already in place, and the number of rows on each rank, ``(r,)`` int32.

    Consecutive ranges are in order if their first and last rows are in order.
    """
    keys = domain.keys()
    ends = kernels.gather_rows(pos, jnp.stack([jnp.int32(0), jnp.maximum(num - 1, 0)]))
    summary = jnp.stack([num, kernels.is_sorted(pos, num, *keys)])
    ends, summary = comm.all_gather_rows((jax.lax.stop_gradient(ends), summary))
    nums, are_sorted = summary[:, 0], summary[:, 1]
    follow = kernels.is_sorted(ends.reshape(-1, pos.shape[1]), 2 * nums.shape[0], *keys)
    return _are_equal_shares(nums) & (are_sorted != 0).all() & (follow != 0), nums


@functools.partial(jax.jit, inline=True)
def _are_equal_shares(nums: jax.Array) -> jax.Array:
    """Return whether no rank is empty, and the first ranks have at most one row more than the others."""
    return (nums[-1] > 0) & (nums[0] - nums[-1] <= 1) & jnp.all(nums[1:] <= nums[:-1])


def sort_equally(unsorted: InputParticles, domain: Domain) -> SortedRange:
    """Sort particles of one type in z-order, with equal numbers of rows per rank, so that no rank needs more rows."""
    return sort_over_ranks([unsorted], domain, [Capacity(unsorted.pos.shape[0], "sort")])[0]


def rows_of_rank(n: int) -> RankIdx:
    """Return the origin (rank and row) of this rank's ``n`` rows."""
    return _rows_of(comm.get_rank_info()[0], n)


@functools.partial(jax.jit, static_argnames="n", inline=True)
def _rows_of(rank: jax.Array, n: int) -> RankIdx:
    return RankIdx(jnp.full(n, rank, jnp.int32), jnp.arange(n, dtype=jnp.int32))


def rows_in_equal_shares(nums: jax.Array, n: int) -> tuple[RankIdx, jax.Array]:
    """Return the rank and row of this rank's ``n`` rows after a division into equal shares (see `distr_zsort`).

    Args:
        nums: ``(r,)`` int32, the number of rows on each rank.
        n: Number of rows of this rank.

    Returns:
        Rank and row, and the number of the first row of each share among all rows, ``(r,)`` int32.
    """
    rank, ndev, _ = comm.get_rank_info()
    ranks = jnp.arange(ndev, dtype=jnp.int32)
    own = comm.wide_total(jnp.where(ranks < rank, nums, 0))
    starts = comm.share(comm.wide_total(nums), ranks, ndev)[1]
    # No rank has 2**31 rows, so distances above that may be clipped.
    away = jnp.clip(starts.high - own.high, 1 - 2**15, 2**15 - 1) * 65536 + (starts.low - own.low)
    rows = jnp.arange(n, dtype=jnp.int32)
    share = jnp.searchsorted(away, rows, side="right").astype(jnp.int32) - 1
    return RankIdx(share, rows - away[share]), starts.high * 65536 + starts.low


def _move(
    unsorted: InputParticles,
    in_order: tuple[jax.Array, jax.Array],
    traffic: comm.Traffic,
    capacity: Capacity,
    domain: Domain,
    is_sort_domain: bool,
    what: str = "sorted particles",
    advice: str = _TOO_UNEQUAL,
) -> SortedRange:
    """Exchange the rows of one type, and merge the received rows.

    Args:
        unsorted: The particles of the type.
        in_order: Z-order of the rows, and the positions in that order.
        traffic: Numbers of rows between ranks.
        capacity: Capacity for received rows.
        domain: Domain in which to sort the received rows.
        is_sort_domain: Whether ``in_order`` is also the order in ``domain``.
        what: Name of the rows in the error if the capacity is too small.
        advice: A remedy in that error.
    """
    (order, posz), (columns, rebuild) = in_order, split_rows(unsorted.part)
    # Send the rows in z-order, so that all later reads and writes are contiguous.
    columns, data = jax.tree.map(to_order(order, unsorted.pos, posz), (columns, unsorted.data))
    arrived, num, route = comm.exchange(
        (columns, data, order if unsorted.needs_origin else None),
        traffic,
        capacity,
        what=what,
        advice=advice,
        name="sort",
    )
    # A stable sort of the received runs, in the order of the ranks, merges them.
    pos = get_pos(rebuild(arrived[0]))
    received, rank = route.received, comm.get_rank_info()[0]
    merge, posz = domain.zsort(pos, num, is_sort_domain & (received[rank] == num))
    columns, data, row = jax.tree.map(to_order(merge, pos, posz), arrived)
    origin = RankIdx(route.sender(merge), row) if unsorted.needs_origin else None
    route = dataclasses.replace(route, order=order)
    return SortedRange(replace_num(rebuild(columns), num), data, num, origin, merge, route)
