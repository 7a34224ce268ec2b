"""Reductions of a user's function over pairs within a radius, block by block, without a list of every pair."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.capacity import Capacity, choose_capacity, retrying
from .._transform.memory import check_memory
from ..arguments import SPEC, as_one_radius, check_box, exact_arguments_of_one
from ..config import RadiusConfig, checked_config, without_masses
from ..data import replace_num, split_rows, with_computed
from ..derivatives import nearest_difference, norm
from ..jax_ext import Exact, exact, exact_to_float, is_concrete, with_twins
from ..particles import Particles, check_movable
from ..tree import TreeHierarchy, check_hierarchy
from ._listing import check_capacity, rows_of_entries
from ._search import PreparedSearch, SearchArguments, check_both, prepare_search

# Queries are processed in this many blocks, unless the blocks would be small.
_BLOCKS, _SMALL = 16, 4096
# Number of pairs per call of the user's function; it costs nothing if a block has fewer pairs.
_AT_ONCE = 1 << 17
# Initial capacity for pairs, per query of a block.
_USUAL = 32
_TOO_MANY = "a sixteenth of the queries has about 2**31 pairs or more; use a smaller radius or more devices."
# Functions that reduce the pairs of each query, and that combine two such results.
_REDUCE: dict[str, tuple[Callable[..., jax.Array], Callable[..., jax.Array]]] = {
    "sum": (jax.ops.segment_sum, jnp.add),
    "max": (jax.ops.segment_max, jnp.maximum),
    "min": (jax.ops.segment_min, jnp.minimum),
}


@with_twins(
    {"part": P(-1), "radius": SPEC, "boxsize": P(), "th": P(-1), "part_query": P(-1)},
    P(-1),
    prepare=exact_arguments_of_one,
    enlarges=True,
)
@with_computed
def reduce_within(
    part: Particles | ArrayLike,
    radius: ArrayLike,
    pair_func: Callable[..., Any],
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    part_query: Particles | ArrayLike | None = None,
    how: str = "sum",
    capacity: int | None = None,
    cfg: RadiusConfig | None = None,
) -> Any:
    """Reduce a user function of pairs over all particles within a radius of every query.

    >>> def weight(query, source, vector, distance):
    ...     return source.mass * jnp.exp(-((distance / 0.1) ** 2))
    >>> smoothed = jz.radius.reduce_within(part, 0.4, weight)

    For the definition of pairs see `neighbours_within`. A query that is a particle of ``part`` is paired with itself,
    at distance 0. Sums are taken in the z-order of the sources. On several devices they may differ in the last bits.

    The search needs memory for the pairs of one block of queries, 8 bytes per pair, and for the results of one call of
    ``pair_func``. Results have derivatives with respect to all arguments of ``pair_func`` and the box. Derivatives
    store nothing, because they repeat the computation. They assume that the set of pairs is fixed.

    Args:
        part: See `count_within`; ``pair_func`` receives all properties of the particles.
        radius: In the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per query.
        pair_func: Called as ``pair_func(query, source, vector, distance)`` with ``p`` pairs at once: the query and the
            source of each pair, particles like ``part_query`` and ``part`` with ``p`` rows; the vectors ``(p, d)`` from
            the query to the nearest image of the source; and their lengths ``(p,)``. It returns an array ``(p, ...)``,
            or a pytree of such arrays. Calls include some padding rows, which hold arbitrary particles at distance
            ``radius``. The search drops their results. Pass the same function object at every call: each new function
            is compiled again.
        boxsize: See `count_within`.
        th: See `count_within`.
        part_query: See `count_within`; ``pair_func`` receives all properties of the queries.
        how: ``"sum"``, or ``"max"`` or ``"min"`` of each element.
        capacity: The maximum number of pairs in a block. A block holds a sixteenth of all queries. For None, see
            `neighbours_within`.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The results of ``pair_func``, reduced to one row per query, in the order of the queries. The dtype is kept, with
        two exceptions: sums of integers are 32 bits wide, or 64 with jax_enable_x64, like those of `jax.numpy.sum`; and
        sums of floats with less than 32 bits are float32. Rows without pairs, and rows from ``num`` on, are 0, or the
        initial value of ``max`` and ``min``.

    Raises:
        TypeError: See `neighbours_within`. Also if ``pair_func`` does not return arrays.
        ValueError: See `neighbours_within`. Also if ``pair_func`` does not return one row per pair.
        CapacityError: See `neighbours_within`.
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    check_hierarchy(th)
    sources, queries, query_set = check_both(part, part_query, th)
    box = check_box(boxsize, sources.dims)
    radii = as_one_radius(radius, (query_set.num_rows,), query_set.num)
    check_capacity(capacity)
    if not callable(pair_func):
        raise TypeError(f"pair_func must be a function of pairs, not {pair_func!r}.")
    if how not in _REDUCE:
        raise ValueError(f"how is {how!r}; it must be sum, max or min.")
    sources.data, as_sources = split_rows(part)
    as_queries = as_sources
    if queries is not None and part_query is not None:
        queries.data, as_queries = split_rows(part_query)
    prepared = prepare_search(SearchArguments(sources, queries, radii, box, cfg))
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
    how: str

    def reduced(
        self, sides: tuple[list[jax.Array], list[jax.Array]], vector: jax.Array, row: jax.Array, size: int
    ) -> Any:
        """Reduce the pairs of a call.

        Args:
            sides: Columns of the queries and of the sources of the pairs.
            vector: ``(p, d)``, vectors from queries to sources.
            row: ``(p,)`` int32, the output row of each pair, ascending; ``size`` for padding.
            size: Number of output rows.

        Returns:
            Pytree of arrays ``(size, ...)``.
        """
        exists = row < size
        num = jnp.sum(exists, dtype=jnp.int32)
        query, source = (
            replace_num(rebuild(side), num)
            for rebuild, side in zip((self.as_queries, self.as_sources), sides, strict=True)
        )
        made = self.pair_func(query, source, vector, norm(vector))
        check_movable({"what pair_func returns": made})
        return jax.tree.map(lambda leaf: self._of_leaf(leaf, row, size), made)

    def _of_leaf(self, leaf: Any, row: jax.Array, size: int) -> jax.Array:
        if jnp.shape(leaf)[:1] != row.shape:
            raise ValueError(
                f"pair_func must return arrays with {row.shape[0]} rows, one per pair; one has shape {jnp.shape(leaf)}."
            )
        if self.how == "sum" and jnp.result_type(leaf) == jnp.bool_:
            raise TypeError(
                "pair_func returns bool, which has no sum; convert its results, for example with .astype(int)."
            )
        made = jnp.asarray(leaf)
        if self.how == "sum":
            made = made.astype(_dtype_of_sum(made.dtype))
        # Padding pairs go to one additional row. Drop it.
        return _REDUCE[self.how][0](made, row, size + 1, indices_are_sorted=True)[:size]


def _dtype_of_sum(dtype: Any) -> Any:
    """Return the dtype of `jax.numpy.sum`. For half precision, return float32, the dtype of its accumulator."""
    if jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits < 32:
        return jnp.float32
    return jax.eval_shape(jnp.sum, jax.ShapeDtypeStruct((1,), dtype)).dtype


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
        capacity, checked = self._pair_capacity()
        needed = capacity.rows * (4 + self.query_tree.posz.dtype.itemsize)
        check_memory(
            needed, f"{capacity.rows:,} pairs of a block", "use a smaller radius or capacity, or more devices."
        )
        words = comm.after(self.words, checked)

        @jax.checkpoint
        def block(first: jax.Array) -> Any:
            return self._of_block(first, words, capacity.rows)

        found = jax.lax.map(block, jnp.arange(self.number, dtype=jnp.int32) * self.size)
        return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[: self.q], found)

    def _pair_capacity(self) -> tuple[Capacity, jax.Array]:
        """Return the capacity for the pairs of a block, and a number that depends on its check on all ranks."""
        prepared = self.prepared
        counts = kernels.count_within(prepared.sources, None, prepared.queries, None, Exact(self.words), 1, self.box)[0]
        counts = jnp.pad(counts[:, 0], (0, self.number * self.size - self.q)).reshape(self.number, self.size)
        many = jnp.any(jnp.sum(counts.astype(jnp.float32), axis=1) > 0.999 * 2.0**31)
        most = jnp.max(jnp.sum(counts, axis=1, dtype=jnp.int32))
        capacity = choose_capacity(
            "block_pairs", self.capacity, _USUAL * self.size, max(self.size * prepared.sources.posz.shape[0], 1)
        )
        if is_concrete((most, many)) and self.capacity is None and not many:
            return Capacity(max(int(most), 1), capacity.key), most

        def checked() -> jax.Array:
            needs = comm.all_gather(comm.after(most, comm.check(0, many, [], _TOO_MANY))).reshape(-1)
            return comm.require_capacity(jnp.int32(0), needs, capacity, "pairs", "give that capacity or more.")

        # In a plain call, raise the documented class with the message alone, as the twins do.
        return capacity, retrying(checked, {}, "") if is_concrete(most) else checked()

    def _of_block(self, first: jax.Array, words: jax.Array, size: int) -> Any:
        prepared, place = self.prepared, jnp.arange(self.q, dtype=jnp.int32)
        inside = (place >= first) & (place < first + self.size)
        radius = Exact(jnp.where(inside[:, None], words, exact(-1.0, ()).words))
        splits, _, index, _ = kernels.neighbours_within(
            prepared.sources, None, prepared.queries, None, radius, self.box, size, nearest_first=False
        )
        at_once = min(_AT_ONCE, size)
        starts = jnp.arange(0, size, at_once, dtype=jnp.int32)
        index = jnp.pad(index, (0, len(starts) * at_once - size), constant_values=-1)

        @jax.checkpoint
        def some(start: jax.Array) -> Any:
            chunk = jax.lax.dynamic_slice(index, (start,), (at_once,))
            return self._of_pairs(chunk, rows_of_entries(splits, at_once, start), first)

        def more(total: Any, start: jax.Array) -> tuple[Any, None]:
            add = lambda total: jax.tree.map(_REDUCE[self.pairs.how][1], total, some(start))  # noqa: E731
            return jax.lax.cond(start < splits[-1], add, lambda total: total, total), None

        total = some(starts[0])
        # JAX refuses an empty scan under jax_disable_jit.
        return jax.lax.scan(more, total, starts[1:])[0] if starts.shape[0] > 1 else total

    def _of_pairs(self, index: jax.Array, query: jax.Array, first: jax.Array) -> Any:
        """Reduce pairs of the queries of a block.

        Args:
            index: ``(p,)`` int32, z-ordered sources; -1 for padding.
            query: ``(p,)`` int32, z-ordered queries.
            first: The first query of the block.
        """
        exists = (index >= 0) & (query < self.q)
        query, source = jnp.clip(query, 0, max(self.q - 1, 0)), jnp.maximum(index, 0)
        vector = self._vectors(query, source, exists)
        sides = self._columns(query, source)
        return self.pairs.reduced(sides, vector, jnp.where(exists, query - first, self.size), self.size)

    def _vectors(self, query: jax.Array, source: jax.Array, exists: jax.Array) -> jax.Array:
        """Return vectors from queries to sources, ``(p, d)``; in padding, a radius along the first axis."""
        prepared = self.prepared
        at, to = (
            _rows(self.query_tree.posz, self.query_tree.num, query),
            _rows(prepared.sources.posz, prepared.sources.num, source),
        )
        length = exact_to_float(Exact(_rows(self.words, self.query_tree.num, query))).astype(at.dtype)
        usable = (length > 0) & jnp.isfinite(length)
        padding = jnp.zeros_like(at).at[:, 0].set(jnp.where(usable, length, 1))
        return jnp.where(exists[:, None], nearest_difference(to, at, self.box), padding)

    def _columns(self, query: jax.Array, source: jax.Array) -> tuple[list[jax.Array], list[jax.Array]]:
        prepared = self.prepared
        of_queries = [_rows(column, self.query_tree.num, query) for column in prepared.query_columns]
        return of_queries, [_rows(column, prepared.sources.num, source) for column in prepared.columns]


def _rows(column: jax.Array, num: jax.Array, index: jax.Array) -> jax.Array:
    """Return ``column[index]``. Without rows, return 1, so that derivatives of dropped results are finite."""
    if column.shape[0] == 0:
        return jnp.ones((index.shape[0], *column.shape[1:]), column.dtype)
    found = kernels.gather_rows(column, index)
    return jnp.where(num > 0, found, jnp.ones_like(found)) if jnp.issubdtype(column.dtype, jnp.inexact) else found
