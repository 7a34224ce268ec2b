"""Exact k nearest neighbours.

Sources are sorted in z-order and get a plane hierarchy (`jztree.tree`). Queries that are neighbours in z-order search
it together, nearest nodes first, so the cost is O(n log n) whatever the distribution, and nothing is stored between.
Results are written straight to their rows. Of sources at the same distance, the first in the z-order of the sources
(`jztree.tree.zsort`) comes first, wherever the queries are and on any number of devices.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._checks import check_box, check_particles, check_queries, known_integer
from .._particles import check_num
from .._radii import SPEC, Radii, as_limit, exact_limit
from ..config import KNNConfig, checked_config
from ..data import RankIdx, get_num, get_pos
from ..jax_ext import Exact, is_concrete, with_twins
from ..tree import TreeHierarchy, check_belongs, check_hierarchy, kernel_tree, sort_and_build, sort_in_domain
from ..tree._zorder import Domain, corners_of, permute_particles, rows_of_rank
from ._over_ranks import Question, knn_over_ranks
from ._result import radii, whose_rows
from ._words import Found, as_result, parse_result, reduced, take

__all__ = ["knn"]

_ORDERS = ("input", "z")
_TOO_FEW = "{1} neighbours were asked for (k), but there are only {0} particles (num); use a smaller k."


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """What compiled and mapped twins replace in the arguments."""
    return exact_limit(arguments) | {"k": known_integer(arguments["k"], "k")}


@with_twins(
    {"part": P(-1), "boxsize": P(), "th": P(-1), "part_query": P(-1), "max_radius": SPEC},
    P(-1),
    prepare=_prepared,
)
def knn(
    part: Any,
    k: int,
    boxsize: Any = None,
    th: TreeHierarchy | None = None,
    part_query: Any = None,
    result: str = "rad_globalidx",
    reduce_func: Callable[..., Any] | None = None,
    output_order: str = "input",
    cfg: KNNConfig | None = None,
    max_radius: Any = None,
) -> Any:
    """The ``k`` nearest particles of every query, nearest first; or those of them that are within a radius.

    part: the sources: a particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of
        positions.
    k: number of neighbours, from 1 to the number of sources; with ``max_radius``, which may leave a query fewer, to any
        number.
    boxsize: periodic length, or one a dimension; 0 or None is open. Positions outside the box are wrapped.
    th: a hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``; ``part`` is then the
        particles in z-order that it returned.
    part_query: the queries, ``(q, d)``; None means that every particle is a query and its own first neighbour, at
        distance 0.
    result: what to return, words joined by ``_``:
        ``rad``: ``(q, k)`` distances in the unit and dtype of the positions; ``drad``: the same (both are
        differentiable by positions and box; the gradient between coincident points is 0);
        ``globalidx``: ``(q, k)`` int32 rows of the neighbours among the sources, in the order that ``output_order``
            says, over all devices one after the other, without padding;
        ``rankidx``: the same as `jztree.data.RankIdx` of device and row;
        ``part``: the neighbours themselves, a particle class of arrays ``(q, k, ...)``; or the name of one of its
            fields;
        ``reduce``: what ``reduce_func`` returns;
        ``query``: the queries in the order of the answer, of the kind that was given, with ``num`` if that has one;
        ``queryidx``: ``(q,)`` `RankIdx` of device and row of the query that each row of the answer belongs to.
    reduce_func: called as ``reduce_func(part=, rnn=, inn=, origin=, query=, queryidx=)`` with the sources in z-order,
        radii ``(q, k)``, rows ``(q, k)`` into these sources, the `RankIdx` that each source came from, the queries, and
        the `RankIdx` that each of these came from; it must take ``**kwargs``. Returns arrays with one row a query, in
        the order of ``rnn``; they are returned in ``output_order``.
    output_order: ``"input"``: row i belongs to query i, and rows of neighbours are those of ``part``; ``"z"``: rows of
        neighbours are those of `jztree.tree.distr_zsort` (on one device `jztree.tree.zsort`; with ``th``, of ``part``),
        and queries are in the same z-order, so that those near each other are in rows near each other. Over several
        devices, queries are then on the device where the sources near them are, which has room for all that may come:
        ``query`` and ``queryidx`` say which they are.
    max_radius: how far queries look, in the unit of the positions: a number, or ``(q,)``, one a query, in the order in
        which they are given. A particle is within it if its distance in float64 from the positions as given is at most
        that, as in `jztree.radius.count_within`, which says how many there are beyond ``k``. Neighbours that are not
        within come as missing ones: at the end of a row, with distance infinity, row -1 (of `RankIdx` both) and
        properties 0. None or infinite: there is no limit.

    Returns a tuple with one entry a word of ``result``, or the entry if it is one word. Rows that belong to no query
    (from ``num`` of the queries on) have infinite radii and rows of -1. Of sources at the same distance, the first in
    z-order comes first.

    Raises TypeError or ValueError for wrong arguments, and an error at run time if a position is NaN or infinite, ``k``
    is above a traced ``num``, a traced ``max_radius`` is negative or NaN, or ``th`` belongs to other particles.
    """
    cfg = checked_config(cfg, KNNConfig)
    check_hierarchy(th)
    k = _check_arguments(part, k, part_query, output_order, limited=_is_limited(max_radius))
    words = parse_result(result, part, reduce_func)
    box = check_box(boxsize, get_pos(part).shape[1])
    asked = part if part_query is None else part_query
    limit = as_limit(max_radius, get_pos(asked).shape[:1], get_num(asked))
    if comm.num_ranks() > 1:
        ask = Question(k, box, words, reduce_func, output_order == "z", th is not None, cfg, limit=limit)
        return as_result(knn_over_ranks(part, part_query, ask))
    sources, queries = _sort(part, th, part_query, output_order, box, cfg, None if limit.given() else k)
    return as_result(_Search(sources, queries, box, k, limit, output_order, reduce_func).answer(words))


@dataclass
class _Sorted:
    """Particles in z-order.

    index: the row of ``given`` that each came from, None if they came in z-order. came: the row that each of ``given``
    has among those of the user, None if it is the same.
    """

    part: Any
    index: jax.Array | None
    num: Any
    th: TreeHierarchy
    given: Any
    came: jax.Array | None = None

    def arrays(self) -> kernels.Tree:
        return kernel_tree(self.part, self.num, self.th)

    def origin(self) -> RankIdx:
        """The user's row that each came from."""
        rows = self.origin_of_given()
        return rows if self.index is None else RankIdx(rows.rank, take(rows.idx, self.index))

    def origin_of_given(self) -> RankIdx:
        """The user's row that each of ``given`` came from."""
        rows = rows_of_rank(get_pos(self.part).shape[0])
        return rows if self.came is None else RankIdx(rows.rank, self.came)


def _sort(
    part: Any, th: TreeHierarchy | None, query: Any, output_order: str, box: Exact, cfg: KNNConfig, k: int | None
) -> tuple[_Sorted, _Sorted | None]:
    """Sources and queries in z-order, these None where the sources ask. k: so many sources there have to be.

    What may be wrong with both is found out in one check, because a GPU is waited for at each.
    """
    faults = (
        [] if k is None or is_concrete(get_num(part)) else [comm.Fault(get_num(part) < k, [get_num(part), k], _TOO_FEW)]
    )
    if query is None:
        return _sort_sources(part, th, box, cfg, faults)[0], None
    pos, num = jnp.asarray(get_pos(query)), kernels.as_num(get_num(query))
    corners, of_queries = corners_of(pos, num, "the query positions")
    sources, checked = _sort_sources(part, th, box, cfg, [*faults, *of_queries])
    num = comm.after(num, checked)
    came = None
    if output_order == "z":
        # Answers are in the z-order of the sources. Queries outside of the sources' box share the keys of its edge, so
        # leaves of them would be long columns: they search in an order of their own.
        edge, _ = corners_of(jnp.asarray(get_pos(sources.part)), checked, "the positions")
        came, posz = Domain(*edge, box, edge).zsort(pos, num)
        query = permute_particles(query, came, posz)
    built = sort_in_domain(query, num, Domain(*corners, box, corners), cfg.tree)
    return sources, _Sorted(built.part, built.rows, num, built.th, query, came)


def _sort_sources(
    part: Any, th: TreeHierarchy | None, box: Exact, cfg: KNNConfig, faults: Sequence[comm.Fault]
) -> tuple[_Sorted, jax.Array]:
    """Sources in z-order, and how many they are, known once all was checked."""
    if th is not None:
        num = check_belongs(part, get_num(part), th, box, faults)
        return _Sorted(part, None, num, th, part), num
    built = sort_and_build(part, cfg.tree, box, faults)
    return _Sorted(built.part, built.rows, built.num, built.th, part), built.num


@dataclass
class _Search:
    """One search, whose results are brought into the rows that were asked for."""

    sources: _Sorted
    queries: _Sorted | None
    box: Exact
    k: int
    limit: Radii
    output_order: str
    reduce_func: Callable[..., Any] | None

    def answer(self, words: list[str]) -> list[Any]:
        asked = self.queries or self.sources
        to_given = self.output_order == "input", self._rows_are_given()
        moves = (to_given[0] and self.sources.index is not None) or (to_given[1] and asked.index is not None)
        # reduce_func wants everything in z-order; without it, results are written to their final rows at once.
        late = "reduce" in words and moves
        rad, idx = self._neighbours(*(direct and not late for direct in to_given))
        made = self._reduce(rad, idx, asked) if "reduce" in words else None
        if late:
            rows = self._source_rows(idx) if to_given[0] else idx
            rad, idx, made = jax.tree.map(lambda leaf: self._to_given(leaf, asked), (rad, rows, made))
        others = {
            "globalidx": lambda: idx,
            "rankidx": lambda: RankIdx(jnp.minimum(idx, 0), idx),
            "reduce": lambda: made,
            "query": lambda: asked.given if to_given[1] else asked.part,
            "queryidx": lambda: whose_rows(asked.origin_of_given() if to_given[1] else asked.origin(), asked.num),
        }
        found = Found(rad, idx, self.sources.given if to_given[0] else self.sources.part, others, self.limit.given())
        return [found.entry(word) for word in words]

    def _rows_are_given(self) -> bool:
        """Whether answers are in the rows in which queries are given; these may be in z-order already."""
        return self.output_order == "input" or self.queries is not None

    def _neighbours(self, source_direct: bool, query_direct: bool) -> tuple[jax.Array, jax.Array]:
        """Radii and rows: with rows of sources, and in rows of queries, as given if they are ``direct``."""
        asked = self.queries or self.sources
        rad, idx = kernels.knn(
            self.sources.arrays(),
            self.sources.index if source_direct else None,
            None if self.queries is None else self.queries.arrays(),
            asked.index if query_direct else None,
            self.k,
            self.box,
            limit=self._limit(query_direct),
        )
        pos = get_pos(self.sources.given if source_direct else self.sources.part)
        query = get_pos(asked.given if query_direct else asked.part)
        return radii(query, pos, self.box, rad, idx), idx

    def _limit(self, query_direct: bool) -> Exact | None:
        """How far queries look, for kernels: in their rows as `_Sorted.given` if they are ``direct``, or in z-order."""
        asked = self.queries or self.sources
        if self.limit.of_each is None:
            return self.limit.for_all
        words = jnp.asarray(self.limit.of_each.words)
        for order in (asked.came, None if query_direct else asked.index):
            words = words if order is None else take(words, order)
        return Exact(words)

    def _reduce(self, rad: jax.Array, idx: jax.Array, asked: _Sorted) -> Any:
        assert self.reduce_func is not None
        found = Found(rad, idx, self.sources.part, {}, self.limit.given())
        whose = whose_rows(asked.origin(), asked.num)
        return reduced(self.reduce_func, found, self.sources.origin(), asked.part, whose)

    def _source_rows(self, idx: jax.Array) -> jax.Array:
        """Rows among the given sources for rows in z-order, -1 staying as it is."""
        if self.sources.index is None:
            return idx
        return jnp.where(idx < 0, -1, take(self.sources.index, idx))

    def _to_given(self, leaf: jax.Array, asked: _Sorted) -> jax.Array:
        return leaf if asked.index is None else kernels.scatter_rows(jnp.asarray(leaf), asked.index)


def _is_limited(max_radius: Any) -> bool:
    return max_radius.given() if isinstance(max_radius, Radii) else max_radius is not None


def _check_arguments(part: Any, k: int, part_query: Any, output_order: str, limited: bool) -> int:
    pos = check_particles(part)
    num = check_num(part)
    if output_order not in _ORDERS:
        raise ValueError(f"output_order must be 'input' or 'z', not {output_order!r}.")
    k = known_integer(k, "k")
    if k < 1:
        raise ValueError(f"k is the number of neighbours, so it must be at least 1; {k} was given.")
    # Over several ranks, how many particles there are is known at run time.
    ndev = comm.num_ranks()
    most = int(num) if is_concrete(num) and ndev == 1 else ndev * pos.shape[0]
    if k > most and not limited:
        raise ValueError(f"k is {k}, but there are only {most} particles to choose from; use a smaller k.")
    if part_query is not None:
        check_queries(part_query, pos)
    return k
