"""Lists of any length with a capacity that is fixed at compile time, on one device and over ranks."""

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from .._transform.capacity import Capacity, retrying
from .._transform.memory import check_memory
from ..arguments import Radii, known_integer
from ..jax_ext import Exact, is_concrete
from ._search import PreparedSearch

# Arrays of this many bytes have their own pages, which use memory only after the first write (mallopt(3)).
_PAGED = 1 << 25
_LESS = "use a smaller radius, fewer queries or more devices, or count_within."


def check_capacity(capacity: Any) -> None:
    """Raise TypeError or ValueError if ``capacity`` is invalid."""
    if capacity is not None:
        known_integer(capacity, "capacity", 0)


class Space(NamedTuple):
    """The output space of a kernel.

    Attributes:
        size: Number of entries.
        padded: Whether to write the entries after the last one also.
    """

    size: int
    padded: bool


@dataclass
class Listing:
    """Lists for queries, in the rows of the given queries.

    Attributes:
        prepared: The prepared search.
        capacity: Capacity for entries.
        content: Name of the entries in messages.
        fill: For each column, the value after the last entry.
        entry_bytes: Size of an entry.
        search: ``search(source_ids, query_ids, rows, radius, space)`` makes lists. It returns the start of each list,
            the number of entries, and their columns; see `jztree.kernels.neighbours_within`. ``source_ids`` are the
            numbers to report for sources. ``query_ids`` are the numbers to report for z-ordered queries; None means
            their output ``rows``.
        box: The array that ``search`` captures, in addition to the options.
        query_starts: Over ranks, the number of the first query in the input of each rank. None if it is not needed.
    """

    prepared: PreparedSearch
    capacity: Capacity
    content: str
    fill: tuple[Any, ...]
    entry_bytes: int
    search: Callable[..., tuple[jax.Array, ...]]
    box: Exact
    query_starts: jax.Array | None = None

    def lists(self) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Return the start of each list, ``(q + 1,)``, and the columns."""
        if comm.num_ranks() > 1:
            return self._over_ranks()
        # If the arrays are concrete, remove the entries after the last.
        prepared = self.prepared
        concrete = is_concrete((prepared.sources, prepared.queries, prepared.rows, prepared.radii.words(), self.box))
        splits, total, *columns = self._on_one_device(self.capacity.rows, padded=self.capacity.given or not concrete)
        if is_concrete(total):
            if not self.capacity.given:
                return self._just_enough(splits, total, columns)
            # Do what the twins do: raise the documented class with the message alone.
            retrying(lambda: jax.block_until_ready(self._checked(total, jnp.zeros((), jnp.int32))), {}, "")
        return comm.after(splits, self._checked(total, jnp.zeros((), jnp.int32))), tuple(columns)

    def _on_one_device(self, size: int, *, padded: bool) -> tuple[jax.Array, ...]:
        if padded:
            self._check_memory(size)
        return self._found(self.prepared.origin.idx, None, self.prepared.rows, Space(size, padded))

    def _found(
        self, source_ids: jax.Array, query_ids: jax.Array | None, rows: jax.Array | None, space: Space
    ) -> tuple[jax.Array, ...]:
        prepared, radii = self.prepared, self.prepared.radii
        if rows is not None and prepared.stage.is_distributed and radii.of_each is not None:
            words = kernels.scatter_rows(jnp.asarray(radii.of_each.words), rows)
            radii = Radii(None, Exact(words))
        return self.search(source_ids, query_ids, rows, radii.words(), space)

    def _just_enough(
        self, splits: jax.Array, total: jax.Array, columns: list[jax.Array]
    ) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Return lists without unused entries. Repeat the search if the capacity was too small."""
        high, low = np.asarray(total)
        if high > 0:
            raise ValueError(self._too_many(f"{(int(high) << 31) + int(low):,}"))
        if low > self.capacity.rows:
            self._check_memory(int(low))
            columns.clear()
            splits, _, *columns = self._on_one_device(int(low), padded=False)
        return splits, tuple(_beginnings(columns, int(low)))

    def _check_memory(self, size: int) -> None:
        """Raise MemoryError if no memory holds lists of ``size`` entries."""
        content = f"lists with capacity for {size:,} {self.content}"
        less = "use a smaller radius or capacity" if self.capacity.given else "use a smaller radius"
        check_memory(
            size * self.entry_bytes, content, f"{less}, or count_within, reduce_within, nearest_within or knn."
        )

    def _too_many(self, number: str) -> str:
        return f"there are {number} {self.content}, but a list must have fewer than 2**31; {_LESS}"

    def _checked(self, total: jax.Array, returned: jax.Array) -> jax.Array:
        """Return a number that depends on the check that all lists fit, here and on the queries' ranks."""
        faults = comm.check(0, total[0] > 0, _in_digits(total), self._too_many("about {0}.{1} * 10**{2}"))
        faults = comm.check(faults, returned < 0, [], self._too_many("2**31 or more"))
        needs = comm.all_gather(comm.after(jnp.maximum(total[1], returned), faults))
        needs = needs.reshape(-1)
        return comm.require_capacity(jnp.int32(0), needs, self.capacity, self.content, "give that capacity or more.")

    def _over_ranks(self) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        """Make lists on the ranks that search, in the order of the received queries, and send them back."""
        moved, prepared = self.prepared.stage.queries.moved, self.prepared
        assert prepared.starts is not None
        assert prepared.queries is not None
        rows = None if moved is None else moved.merge
        query_origin = prepared.stage.queries.origin
        self._check_memory(self.capacity.rows)
        splits, total, *columns = self._found(
            comm.of_rank(prepared.starts, prepared.origin.rank) + prepared.origin.idx,
            None if self.query_starts is None else self.query_starts[query_origin.rank] + query_origin.idx,
            rows,
            Space(self.capacity.rows, padded=True),
        )
        if moved is None:
            return comm.after(splits, self._checked(total, total[1])), tuple(columns)
        counts = comm.send_back(jnp.diff(splits), moved.route, name="results")
        ends, returned = _ends(counts)
        checked = self._checked(total, returned)
        splits, counts, ends = comm.after((splits, counts, ends), checked)
        # Queries arrived rank by rank, so the lists for one rank are contiguous.
        ends_of_ranks = jnp.cumsum(moved.route.received, dtype=jnp.int32)
        to_ranks = jnp.diff(splits[ends_of_ranks], prepend=0)
        back, _, _ = comm.exchange(
            tuple(columns),
            to_ranks,
            self.capacity,
            place=_places(counts, ends, moved.route, self.capacity.rows),
            what=self.content,
            advice="give that capacity or more.",
            name="results",
            fill=self.fill,
        )
        return jnp.append(jnp.zeros(1, jnp.int32), ends), tuple(back)


def _beginnings(columns: list[jax.Array], number: int) -> Iterator[jax.Array]:
    """Yield the first rows of each of ``columns``, releasing each column after use.

    On a CPU, rows of large columns are not copied: the pages after them were never written and use no memory. JAX
    would compile a program for each number.
    """
    while columns:
        column = columns.pop(0)
        if column.shape[0] == number:
            yield column
        else:
            on_cpu = {device.platform for device in column.devices()} == {"cpu"}
            rows = (np.asarray(column) if on_cpu else column)[:number]
            rows = rows.copy() if on_cpu and column.nbytes < _PAGED else rows
            yield jax.device_put(rows, column.sharding if column.committed else None, may_alias=True)


@functools.partial(jax.jit, inline=True)
def _in_digits(total: jax.Array) -> list[jax.Array]:
    """Return two digits and the power of ten of a number >= 2**31.

    Args:
        total: ``(2,)`` int32, the upper and lower 31 bits.
    """
    tens = jnp.asarray(10.0 ** np.arange(8, 19), jnp.float32)
    number = total[0].astype(jnp.float32) * 2.0**31 + total[1].astype(jnp.float32)
    power = 8 + jnp.sum(number >= tens[1:], dtype=jnp.int32)
    digits = jnp.round(number / tens[power - 9]).astype(jnp.int32)
    power, digits = jnp.where(digits == 100, power + 1, power), jnp.where(digits == 100, 10, digits)
    return [digits // 10, digits % 10, power]


def _ends(counts: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the ends of consecutive lists, and their total length.

    No single length exceeds int32, so a sum that overflows is negative first. The total length is then -1.

    Args:
        counts: ``(q,)`` int32, the length of each list.
    """
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    total = jnp.where(jnp.any(ends < 0), -1, jnp.append(0, ends)[-1])
    return ends, total.astype(jnp.int32)


def _places(counts: jax.Array, ends: jax.Array, route: comm.Route, size: int) -> jax.Array:
    """Return the final positions of received entries.

    Args:
        counts: ``(q,)`` int32, the length of each list in the rows of the given queries.
        ends: ``(q,)`` int32, the end of each list in these rows.
        route: Route of the queries. Entries arrive list by list, in the order of the sent queries.
        size: Number of positions.
    """
    sent = jnp.sum(route.sent, dtype=jnp.int32)
    rows = jnp.arange(counts.shape[0], dtype=jnp.int32) if route.order is None else route.order
    lengths = jnp.where(jnp.arange(rows.shape[0], dtype=jnp.int32) < sent, counts[rows], 0)
    arrived = jnp.cumsum(lengths, dtype=jnp.int32)
    entry = jnp.arange(size, dtype=jnp.int32)
    list_row = jnp.minimum(jnp.searchsorted(arrived, entry, side="right"), rows.shape[0] - 1)
    row = rows[jnp.maximum(list_row, 0)]
    return ends[row] - counts[row] + entry - (arrived[list_row] - lengths[list_row])
