"""Reductions of a user's function over pairs within a radius, block by block, without a list of every pair."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.capacity import Capacity, choose_capacity, retrying
from .._transform.memory import check_memory
from ..arguments import as_one_radius, check_word, flat
from ..config import RadiusConfig, without_masses
from ..data import replace_num, split_rows
from ..derivatives import as_norm, nearest_difference
from ..jax_ext import Exact, exact, exact_to_float, is_concrete
from ..particles import Array, Index, Particles, check_movable, particles_of
from ._listing import check_capacity
from ._search import PreparedSearch, SearchArguments, prepare_search, read_sets
from ._values import COMBINE, reduce_values

# Queries are processed in this many blocks, unless the blocks would be small.
_BLOCKS, _SMALL = 16, 4096
# Number of pairs per call of the user's function; it costs nothing if a block has fewer pairs.
_AT_ONCE = 1 << 17
# Initial capacity for pairs, per query of a block.
_USUAL = 32
_TOO_MANY = "a sixteenth of the queries has about 2**31 pairs or more; use a smaller radius or more devices."


@flat(enlarges=True)
def reduce_within(
    part: Particles | Index | Array,
    radius: ArrayLike,
    pair_func: Callable[..., Any],
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    how: kernels.Reduction = "sum",
    capacity: int | None = None,
    cfg: RadiusConfig | None = None,
) -> Any:
    """Reduce a user function of pairs over all particles within a radius of every query.

    For the definition of pairs see `neighbours_within`. A query that is a particle of ``part`` is paired with itself,
    at distance 0. Sums have the same bits for any number of threads. On several devices they may differ in the last
    bits.

    The search needs memory for the pairs of one block of queries, 8 bytes per pair, and for the results of one call of
    ``pair_func``. Results have derivatives with respect to all arguments of ``pair_func`` and the box. Derivatives
    store nothing, because they repeat the computation. They assume that the set of pairs is fixed.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either. ``pair_func`` receives all properties.
        radius: The search radius in the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per
            query. Infinity includes all particles.
        pair_func: Called as ``pair_func(query, source, vector, distance)`` with ``p`` pairs at once: the query and the
            source of each pair, particles like ``queries`` and ``part`` with ``p`` rows; the vectors ``(p, d)`` from
            the query to the nearest image of the source; and their lengths ``(p,)``. It returns an array ``(p, ...)``,
            or a pytree of such arrays. Calls include some padding rows, which hold arbitrary particles at distance
            ``radius``. The search drops their results. Pass the same function object at every call: each new function
            is compiled again.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves; ``q`` is
            then ``n``, and each particle is paired with itself.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        how: ``"sum"``, or ``"max"`` or ``"min"`` of each element.
        capacity: The maximum number of pairs in a block. A block holds a sixteenth of the queries. With None, ``.jit``
            and ``.smap`` determine it, and compile again if it is too small.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The results of ``pair_func``, reduced to one row per query, in the order of the queries. The dtype is kept, with
        two exceptions: sums of integers are 32 bits wide, or 64 with jax_enable_x64, like sums of `jax.numpy.sum`; and
        sums of floats with less than 32 bits are float32. Rows without pairs, and rows from ``num`` on, are 0, or the
        initial value of ``max`` and ``min``.

    Raises:
        TypeError: For arguments of a wrong type, or if ``pair_func`` does not return arrays.
        ValueError: For other invalid arguments, or if ``pair_func`` does not return one row per pair.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, or a
            traced ``radius`` or ``boxsize`` is invalid.
        CapacityError: On every device, if the pairs of a block exceed ``capacity``.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> def closeness(query, source, vector, distance):
        ...     return 1 / (1 + distance)
        >>> jz.reduce_within(pos, 2.5, closeness)
        Array([1.5      , 1.8333334, 1.3333334], dtype=float32)
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    sources, separate, query_set, box = read_sets(part, boxsize, queries)
    radii = as_one_radius(radius, (query_set.num_rows,), query_set.num)
    check_capacity(capacity)
    if not callable(pair_func):
        raise TypeError(f"pair_func must be a function of pairs, not {pair_func!r}.")
    check_word(how, "how", kernels.REDUCTIONS)
    sources.data, as_sources = split_rows(particles_of(part))
    as_queries = as_sources
    if separate is not None:
        separate.data, as_queries = split_rows(particles_of(queries))
    prepared = prepare_search(SearchArguments(sources, separate, radii, box, cfg))
    return prepared.stage.send_back(
        _Blocks(prepared, box, _Pairs(pair_func, as_queries, as_sources, how), capacity).reduced()
    )


@dataclass
class _Pairs:
    """The function of pairs and the reduction.

    Attributes:
        pair_func: The function of the user.
        as_queries: Constructor of the query particles from columns.
        as_sources: Constructor of the source particles from columns.
        how: Name of the reduction.
    """

    pair_func: Callable[..., Any]
    as_queries: Callable[[list[jax.Array]], Any]
    as_sources: Callable[[list[jax.Array]], Any]
    how: kernels.Reduction

    def reduced(self, call: _Call) -> Any:
        """Reduce the pairs of a call; return a pytree of arrays with a row per query of the block."""
        num = jnp.sum(call.exists, dtype=jnp.int32)
        query, source = (
            replace_num(rebuild(side), num)
            for rebuild, side in zip((self.as_queries, self.as_sources), call.sides, strict=True)
        )
        values = self.pair_func(query, source, call.vector, call.distance)
        check_movable({"what pair_func returns": values})
        return jax.tree.map(lambda leaf: self._of_leaf(leaf, call), values)

    def _of_leaf(self, leaf: Any, call: _Call) -> jax.Array:
        rows = call.distance.shape[0]
        if jnp.shape(leaf)[:1] != (rows,):
            raise ValueError(
                f"pair_func must return arrays with {rows} rows, one per pair; one has shape {jnp.shape(leaf)}."
            )
        if self.how == "sum" and jnp.result_type(leaf) == jnp.bool_:
            raise TypeError(
                "pair_func returns bool, which has no sum; convert its results, for example with .astype(int)."
            )
        return reduce_values(self.how, jnp.asarray(leaf), call.splits, call.start)


class _Call(NamedTuple):
    """Pairs for a call of the user's function. They are consecutive entries of the lists of a block.

    Attributes:
        sides: Columns of the queries and of the sources of the pairs.
        vector: ``(p, d)``, vectors from queries to sources; in padding, a radius along the first axis.
        distance: ``(p,)``, their lengths.
        exists: ``(p,)`` bool, False in padding.
        splits: ``(m + 1,)`` int32, the list of each query of the block.
        start: The first entry, int32.
    """

    sides: tuple[list[jax.Array], list[jax.Array]]
    vector: jax.Array
    distance: jax.Array
    exists: jax.Array
    splits: jax.Array
    start: jax.Array


@dataclass
class _Blocks:
    """The queries in z-order, processed block by block.

    Attributes:
        prepared: The prepared search.
        box: Periodic box.
        pairs: Function and reduction.
        capacity: Capacity for the pairs of a block, from the user, or None.
        query_tree: The queries.
        q: Number of query rows.
        size: Number of queries per block.
        number: Number of blocks.
        words: Radius of each query in z-order.
    """

    prepared: PreparedSearch
    box: Exact
    pairs: _Pairs
    capacity: int | None

    def __post_init__(self) -> None:
        self.query_tree = self.prepared.sources if self.prepared.queries is None else self.prepared.queries
        self.q = self.query_tree.posz.shape[0]
        self.size = max(-(-self.q // _BLOCKS), min(self.q, _SMALL), 1)
        self.number = max(-(-self.q // self.size), 1)
        self.words = self._words()

    def _words(self) -> jax.Array:
        """Return the radius of each query in z-order, with negative radii in the padding of the last block."""
        radii, rows = self.prepared.radii, self.prepared.rows
        words = jnp.asarray(radii.words().words)
        if radii.of_each is None:
            words = jnp.broadcast_to(words.reshape(1, -1), (self.q, words.shape[-1]))
        elif rows is not None:
            words = kernels.gather_rows(words, rows)
        return jax.lax.stop_gradient(words)

    def reduced(self) -> Any:
        """Return the reduction over the pairs of each query, in z-order, ``(q, ...)``."""
        capacity = self._pair_capacity()
        needed = capacity.rows * (4 + self.query_tree.posz.dtype.itemsize)
        check_memory(
            needed, f"{capacity.rows:,} pairs of a block", "use a smaller radius or capacity, or more devices."
        )

        @jax.checkpoint
        def block(first: jax.Array) -> Any:
            return self._of_block(first, capacity.rows)

        sums, totals = jax.lax.map(block, jnp.arange(self.number, dtype=jnp.int32) * self.size)
        # In a plain call, raise the documented class with the message alone, as the twins do.
        concrete = is_concrete(totals)
        checked = retrying(lambda: _checked(totals, capacity), {}, "") if concrete else _checked(totals, capacity)
        return jax.tree.map(lambda leaf: comm.after(leaf.reshape(-1, *leaf.shape[2:])[: self.q], checked), sums)

    def _pair_capacity(self) -> Capacity:
        """Return the capacity for the pairs of a block."""
        prepared, sizes = self.prepared, (_USUAL * self.size, max(self.size * self.prepared.sources.posz.shape[0], 1))
        usual = choose_capacity("block_pairs", None if self.capacity is None else max(self.capacity, 1), *sizes)
        # JAX removes these counts from a compiled function, which uses the numbers of pairs of the search itself.
        counts = kernels.count_within(prepared.sources, None, prepared.queries, None, Exact(self.words), 1, self.box)[0]
        if self.capacity is not None or not is_concrete(counts):
            return usual
        lengths = np.pad(np.asarray(counts[:, 0], np.int64), (0, self.number * self.size - self.q))
        capacity = int(lengths.reshape(self.number, self.size).sum(axis=1).max())
        return usual if capacity >= 2**31 else Capacity(max(capacity, 1), usual.key)

    def _of_block(self, first: jax.Array, size: int) -> tuple[Any, jax.Array]:
        """Return the reduction for the queries of a block, and the number of their pairs as two digits of 31 bits."""
        prepared, place = self.prepared, jnp.arange(self.q, dtype=jnp.int32)
        inside = (place >= first) & (place < first + self.size)
        radius = Exact(jnp.where(inside[:, None], self.words, exact(-1.0, ()).words))
        at_once = min(_AT_ONCE, size)
        # The entries after the last are not written, but calls consist of whole slices.
        capacity = -(-size // at_once) * at_once
        splits, number, *lists = kernels.neighbours_within(
            prepared.sources,
            None,
            prepared.queries,
            None,
            radius,
            self.box,
            capacity,
            nearest_first=False,
            padded=False,
        )
        # Lists that do not fit are not written. The check of their number then fails.
        splits = jnp.where((number[0] == 0) & (number[1] <= size), splits, 0)
        splits = jnp.pad(splits, (0, self.number * self.size - self.q), mode="edge")
        splits = jax.lax.dynamic_slice(splits, (first,), (self.size + 1,))

        @jax.checkpoint
        def some(start: jax.Array) -> Any:
            index, distance = (jax.lax.dynamic_slice(column, (start,), (at_once,)) for column in lists)
            return self.pairs.reduced(self._call(index, distance, _Place(first, splits, start)))

        def more(total: Any, start: jax.Array) -> tuple[Any, None]:
            add = lambda total: jax.tree.map(COMBINE[self.pairs.how], total, some(start))  # noqa: E731
            return jax.lax.cond(start < splits[-1], add, lambda total: total, total), None

        starts = jnp.arange(0, capacity, at_once, dtype=jnp.int32)
        total = some(starts[0])
        # JAX refuses an empty scan under jax_disable_jit.
        return jax.lax.scan(more, total, starts[1:])[0] if starts.shape[0] > 1 else total, number

    def _call(self, index: jax.Array, distance: jax.Array, place: _Place) -> _Call:
        """Return pairs for the user's function.

        Args:
            index: ``(p,)`` int32, z-ordered sources; arbitrary in padding.
            distance: ``(p,)``, the distances in float64, rounded; arbitrary in padding.
            place: The place of the pairs in the lists of the block.
        """
        prepared = self.prepared
        query = kernels.entry_lists(place.splits, index.shape[0], place.start)
        exists = query < self.size
        # Padding is a pair of the first query and source, because other rows may hold no particles.
        query, source = jnp.where(exists, place.first + query, 0), jnp.where(exists, index, 0)
        positions, *of_queries = self._rows([self.query_tree.posz, *prepared.query_columns], self.query_tree.num, query)
        to, *of_sources = self._rows([prepared.sources.posz, *prepared.columns], prepared.sources.num, source)
        padding = self._padding(positions)
        vector = jnp.where(exists[:, None], nearest_difference(to, positions, self.box), padding)
        distance = as_norm(jnp.where(exists, distance, padding[0]), vector)
        return _Call((of_queries, of_sources), vector, distance, exists, place.splits, place.start)

    def _padding(self, positions: jax.Array) -> jax.Array:
        """Return a vector of the length of the first radius, ``(d,)``, in the dtype of ``positions``, ``(p, d)``."""
        words = self._rows([self.words], self.query_tree.num, jnp.zeros(1, jnp.int32))[0]
        length = exact_to_float(Exact(words))[0].astype(positions.dtype)
        usable = (length > 0) & jnp.isfinite(length)
        return jnp.zeros_like(positions, shape=positions.shape[1:]).at[0].set(jnp.where(usable, length, 1))

    def _rows(self, columns: list[jax.Array], num: jax.Array, index: jax.Array) -> list[jax.Array]:
        return [_rows(column, num, index) for column in columns]


def _checked(totals: jax.Array, capacity: Capacity) -> jax.Array:
    """Check that the pairs of each block fit, on all ranks. Returns a number that depends on the check.

    Args:
        totals: ``(b, 2)`` int32, the upper and lower 31 bits of the number of pairs of each block.
        capacity: The capacity of a block.
    """
    overflows, largest = jnp.any(totals[:, 0] > 0), jnp.max(totals[:, 1])
    needs = comm.all_gather(comm.after(largest, comm.check(0, overflows, [], _TOO_MANY))).reshape(-1)
    return comm.require_capacity(jnp.int32(0), needs, capacity, "pairs", "give that capacity or more.")


class _Place(NamedTuple):
    """A place in the lists of a block.

    Attributes:
        first: The first query of the block, int32.
        splits: ``(m + 1,)`` int32, the list of each query of the block.
        start: The first entry, int32.
    """

    first: jax.Array
    splits: jax.Array
    start: jax.Array


def _rows(column: jax.Array, num: jax.Array, index: jax.Array) -> jax.Array:
    """Return ``column[index]``. Without rows, return 1, so that derivatives of dropped results are finite."""
    if column.shape[0] == 0:
        return jnp.ones((index.shape[0], *column.shape[1:]), column.dtype)
    rows = column.at[index].get(mode="promise_in_bounds")
    return jnp.where(num > 0, rows, jnp.ones_like(rows)) if jnp.issubdtype(column.dtype, jnp.inexact) else rows
