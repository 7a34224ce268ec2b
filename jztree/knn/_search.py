"""The search for nearest neighbours, on one device or over the ranks of a mesh.

On one device, the kernel searches the sources once and writes results to the requested rows. Over ranks:

1. Each rank searches its own sources. This gives each query an upper bound of its radius.
2. A leaf of queries is open if its balls reach boxes of other ranks' sources. The rank sends the search radii of its
   open leaves, and the other ranks send the sources within them (`jztree.tree.stage`). If a query found fewer than
   ``k`` sources, the numbers of sources in the boxes of all ranks bound its radius.
3. Open leaves search again, among own sources and ghosts, within the bounds of step 1. On CPUs, only queries with a
   ghost within their bound search again. Sources and ghosts are in z-order, so the order of sources at the same
   distance is that of one device.
4. Results are sent back to the ranks of the queries.

Step 1 is most of the work. For 250,000 uniform particles per rank and k=8, about an eighth of the leaves are open.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from ..arguments import Radii, at_least_normal
from ..data import RankIdx, get_num, get_pos, replace_num
from ..jax_ext import Exact, is_concrete
from ..particles import get_num_total
from ..tree import TreeHierarchy, permute_particles
from ..tree.stage import InputParticles, ParticlesWithGhosts, Stage, prepare_stage, rows_in_equal_shares, rows_of_rank
from ._arguments import SearchArguments, count_marked, drop_self, mask_as_int32, rows_by_mask
from ._batches import sort_domain, without_layers
from ._result import origin_without_padding, radii, radii_over_ranks
from ._words import ABOUT_QUERIES, DISTANCES, MISSING_VALUES, Found, reduced, take

_TOO_MANY = "result 'globalidx' supports less than 2**31 particles over all devices, but there are more; use 'rankidx'."

_Neighbours = tuple[jax.Array, jax.Array]


def entries_of(
    part: Any, part_query: Any, args: SearchArguments, th: TreeHierarchy | None = None, mask: Any = None
) -> Any:
    """Return the entries for the words of ``args``.

    Args:
        part: This rank's particles.
        part_query: This rank's queries. None means ``part``.
        args: The other arguments.
        th: Hierarchy over ``part`` from the user.
        mask: ``(n,)`` bool, the sources among ``part``. None means all.
    """
    search = _OverRanks if comm.num_ranks() > 1 else _OnOneDevice
    return search(part, part_query, args, th, mask).entries()


class _Search:
    """Sources and queries in z-order.

    Attributes:
        pos: Positions of the input, ``(n, d)``.
        query_pos: Positions of the queries of the input, ``(q, d)``.
        targets: The sources that can be neighbours.
        order: The row of each target among the sources. None means the same row.
        queries_are_targets: Whether the queries are the targets, row by row.
        exclude_self: Whether the kernel excludes the query itself. This requires that the queries are the targets.
        drops_self: Whether to find one more neighbour and then drop the query itself, in all other cases.
        k: Number of neighbours that the kernel finds.
    """

    def __init__(self, part: Any, part_query: Any, args: SearchArguments, th: TreeHierarchy | None, mask: Any) -> None:
        self.part, self.part_query, self.args, self.mask = part, part_query, args, mask
        self.pos = get_pos(part)
        self.query_pos = self.pos if part_query is None else get_pos(part_query)
        stage = self._prepare_stage(None if mask is None else mask_as_int32(mask), th)
        self.sources, self.queries, self.order = stage.sources, stage.queries, None
        self.queries_are_targets = self.queries is self.sources and mask is None
        self.drops_self = args.exclude_self and not self.queries_are_targets
        self.k, self.exclude_self = args.k + self.drops_self, args.exclude_self and self.queries_are_targets
        self.targets = self.sources
        if mask is not None:
            marks = self.sources.data[1]
            self.order, num = rows_by_mask(marks, self.sources.num)
            whole = stage.is_distributed
            self.targets = self.sources.select(self.order, num, args.cfg.tree, args.box, whole=whole)
        self.stage = Stage(self.targets, self.queries, args.box, args.cfg, "knn_ghosts")

    def _prepare_stage(self, marks: Any, th: TreeHierarchy | None) -> Stage:
        raise NotImplementedError

    def _limit(self, rows: jax.Array | None) -> Radii:
        """Return the search radii, in the output ``rows`` of the queries."""
        raise NotImplementedError

    def _search_own(self, source_ids: Any, rows: jax.Array | None, **options: Any) -> _Neighbours:
        """Search the targets of this rank.

        Args:
            source_ids: Number to return for each target. None means its row.
            rows: Output row of each query. None means the same row.
            options: Further arguments of `kernels.knn`.
        """
        queries = None if self.queries_are_targets else self.queries.tree()
        return self._knn(self.targets.tree(), source_ids, queries, rows, **options)

    def _knn(self, targets: kernels.Tree, source_ids: Any, queries: Any, rows: Any, **options: Any) -> _Neighbours:
        limit, others = self._limit(rows).words_or_none(), self.exclude_self
        box = self.args.box
        return kernels.knn(targets, source_ids, queries, rows, self.k, box, limit=limit, others=others, **options)

    def _found(self, rad: jax.Array, idx: jax.Array, source: Any, others: Any) -> Found:
        return Found(rad, idx, without_layers(source), others, self.args.limit.given())

    def _reduced(self, found: Found, origin: RankIdx, query: Any) -> Any:
        """Call ``reduce_func`` with neighbours and queries in z-order."""
        assert self.args.reduce_func is not None
        query_origin = origin_without_padding(self.queries.origin, self.queries.num)
        return reduced(self.args.reduce_func, found, origin, query, query_origin)


class _OnOneDevice(_Search):
    def _prepare_stage(self, marks: Any, th: TreeHierarchy | None) -> Stage:
        args, num = self.args, get_num(self.part)
        faults = []
        if not args.limit.given() and not (is_concrete(num) and self.mask is None):
            sources = num if self.mask is None else count_marked(self.mask, num)
            faults = [args.too_few_sources(kernels.as_num(sources), "")]
        given, queries = InputParticles(self.part, num, (None, marks), th=th), None
        if self.part_query is not None:
            queries = InputParticles(self.part_query, get_num(self.part_query), name="the query positions")
        return prepare_stage(given, queries, args.box, args.cfg, "knn_ghosts", faults, sort_domain=sort_domain)

    def entries(self) -> list[Any]:
        args, words = self.args, self.args.words
        self._order_results()
        source_ids = None if args.in_z_order else self.sources.rows
        # reduce_func needs everything in z-order. Otherwise, the kernel writes results directly to their final rows.
        late = "reduce" in words and (source_ids is not None or self.rows is not None)
        rad, idx = self._neighbours(None, None) if late else self._neighbours(source_ids, self.rows)
        if "reduce" in words:
            query = without_layers(self.queries.part)
            made = self._reduced(self._found(rad, idx, self.sources.part, {}), self.sources.origin, query)
        if late:
            idx = idx if source_ids is None else jnp.where(idx < 0, -1, take(source_ids, idx))
            rad, idx, made = jax.tree.map(self._to_results, (rad, idx, made))
        others = {
            "globalidx": lambda: idx,
            "rankidx": lambda: RankIdx(jnp.minimum(idx, 0), idx),
            "reduce": lambda: made,
            "query": lambda: without_layers(self.output_queries),
            "queryidx": lambda: origin_without_padding(self.origin, self.queries.num),
        }
        found = self._found(rad, idx, self.sources.part if args.in_z_order else self.part, others)
        return [found.entry(word) for word in words]

    def _order_results(self) -> None:
        """Choose the order of the results: the queries, their origins, and the output row of each z-ordered query."""
        queries, args = self.queries, self.args
        self.output_queries, self.rows = (self.part if self.part_query is None else self.part_query), queries.rows
        self.origin = rows_of_rank(queries.pos.shape[0])
        self.query_order = None
        if args.in_z_order and self.part_query is None:
            self.output_queries, self.rows, self.origin = queries.part, None, queries.origin
        elif args.in_z_order:
            # Results are in the z-order of the sources. Queries outside the sources' box share the keys of its edge, so
            # their leaves would be long columns. The search therefore sorts them in a separate domain.
            domain = self.sources.domain_in(args.box)
            self.query_order, _ = domain.zsort(jnp.asarray(self.query_pos), queries.num)
            row = kernels.scatter_rows(jnp.arange(self.query_order.shape[0], dtype=jnp.int32), self.query_order)
            assert queries.rows is not None
            self.rows = kernels.gather_rows(row, queries.rows)
            self.output_queries = permute_particles(self.output_queries, self.query_order)
            self.origin = RankIdx(self.origin.rank, self.query_order)

    def _neighbours(self, source_ids: jax.Array | None, rows: jax.Array | None) -> _Neighbours:
        """Return radii and neighbours, with derivatives.

        Args:
            source_ids: Number to return for each z-ordered source. None means its row.
            rows: Output row of each query. None means the same row.
        """
        sources, queries = self.sources, self.queries
        of_targets = source_ids
        if self.order is not None:
            of_targets = self.order if source_ids is None else take(source_ids, self.order)
        rad, idx = self._search_own(of_targets, rows)
        if self.drops_self:
            # Here, the number of a particle is the row of its results.
            rad, idx = drop_self(idx == jnp.arange(idx.shape[0], dtype=jnp.int32)[:, None], (rad, idx))
        pos = sources.pos if source_ids is None else self.pos
        query = queries.pos if rows is None else get_pos(self.output_queries)
        return radii(query, pos, self.args.box, rad, idx), idx

    def _limit(self, rows: jax.Array | None) -> Radii:
        """Return the search radii in the output ``rows`` of the queries, or in z-order if ``rows`` is None."""
        limit = self.args.limit
        order = self.queries.rows if rows is None else self.query_order
        if limit.of_each is None or order is None:
            return limit
        return Radii(None, Exact(take(jnp.asarray(limit.of_each.words), order)))

    def _to_results(self, leaf: jax.Array) -> jax.Array:
        return leaf if self.rows is None else kernels.scatter_rows(jnp.asarray(leaf), self.rows)


class _OverRanks(_Search):
    def _prepare_stage(self, marks: Any, th: TreeHierarchy | None) -> Stage:
        args, each, num = self.args, self.args.limit.of_each, self._checked_number()
        given, query_part = replace_num(self.part, num), self.part_query
        words = None if each is None else jnp.asarray(each.words)
        if query_part is None:
            sources, queries = InputParticles(given, num, (words, marks), th=th), None
        else:
            sources = InputParticles(given, num, (None, marks), th=th)
            queries = InputParticles(
                query_part, kernels.as_num(get_num(query_part)), (words, None), "the query positions"
            )
        return prepare_stage(sources, queries, args.box, args.cfg, "knn_ghosts", in_z_order=args.in_z_order)

    def _checked_number(self) -> jax.Array:
        """Return ``num``. Raise on all ranks if there are too few sources, or too many particles to number."""
        part, mask, args = self.part, self.mask, self.args
        num = kernels.as_num(get_num(part))
        # The check of the positions reports an invalid ``num``.
        total = comm.wide_sum(jnp.clip(num, 0, self.pos.shape[0]))
        many = total.exceeds_int32()
        if args.no_source_message or not args.limit.given():
            sources = total
            if mask is not None:
                num = comm.after(num, total.low)
                sources = comm.wide_sum(count_marked(mask, num))
            count = jnp.where(sources.exceeds_int32(), 2**31 - 1, sources.high * 65536 + sources.low)
            fault = args.too_few_sources(count, " on all devices")
            num = kernels.check(num, fault.failed, fault.numbers, fault.sentence)
        if "globalidx" not in args.words:
            return num
        if (get_num_total(part) or 0) >= 2**31:
            raise ValueError(_TOO_MANY)
        return kernels.check(num, many, [], _TOO_MANY)

    def entries(self) -> list[Any]:
        # None if results stay in the z-order of the queries.
        self.query_route = None if self.args.in_z_order else self.queries.moved
        self._number_sources()
        neighbour_words = [word for word in self.args.words if word not in ABOUT_QUERIES]
        if set(neighbour_words) <= {*DISTANCES, "globalidx"}:
            found = self._numbers_only()
        else:
            found = self._with_particles(neighbour_words)
        return [(found | self._query_entries())[word] for word in self.args.words]

    def _number_sources(self) -> None:
        """Find rank and row of each source, and the first number of each rank's particles in the joined set."""
        sources = self.sources
        in_place = self.args.in_z_order and not self.args.is_sorted
        n = sources.pos.shape[0]
        nums = sources.num if in_place else sources.given_num()
        self.source_counts = comm.all_gather(nums)
        if in_place and self.part_query is not None:
            # The ranks hold unequal numbers of sources, because sources and queries were cut at the same places.
            # Results have the rows of equal shares.
            self.source_origin, self.offsets = rows_in_equal_shares(self.source_counts, n)
        else:
            self.source_origin = rows_of_rank(n) if in_place else sources.origin
            self.offsets = comm.starts_of(self.source_counts)
        order = self.order
        self.target_origin = (
            self.source_origin if order is None else RankIdx(*(take(rows, order) for rows in self.source_origin))
        )

    def _query_entries(self) -> dict[str, Any]:
        """Return the queries in the order of the results, and their origins."""
        queries = self.queries
        if self.query_route is None and queries.moved is not None:
            return {"query": queries.part, "queryidx": origin_without_padding(queries.origin, queries.num)}
        query = self.part if self.part_query is None else self.part_query
        rows = origin_without_padding(rows_of_rank(queries.given_rows()), get_num(query))
        return {"query": without_layers(query), "queryidx": rows}

    def _numbers_only(self) -> dict[str, Any]:
        """Return radii and numbers. The kernel writes both in the order of the send buffer."""
        number = comm.of_rank(self.offsets, self.target_origin.rank) + self.target_origin.idx
        rows = None if self.query_route is None else self.query_route.merge
        rad, idx = self._search_own(number, rows, domain=self._corners())
        near, leaves = self._bring_ghosts(rad, rows, number, filled=False)
        rad, idx = self._search_near(near, near.data, rows, leaves, (rad, idx))
        if self.query_route is not None:
            rad, idx = self.stage.send_back_if_moved((rad, idx), fill=(jnp.inf, -1))
        if self.drops_self:
            own = self.offsets[comm.get_rank_info()[0]] + jnp.arange(idx.shape[0], dtype=jnp.int32)
            rad, idx = drop_self(idx == own[:, None], (rad, idx))
        known = self._differentiable(rad, idx)
        return {"rad": known, "drad": known, "globalidx": idx}

    def _with_particles(self, words: list[str]) -> dict[str, Any]:
        """Return entries that need the properties of neighbours. Gather these in z-order, while ghosts are present."""
        rad, idx = self._search_own(None, None, domain=self._corners())
        near, leaves = self._bring_ghosts(rad, None, self.target_origin, whole=True)
        idx = jnp.where(idx < 0, -1, idx + near.route().start)
        rad, idx = self._search_near(near, None, None, leaves, (rad, idx))
        neighbours = RankIdx(*(jnp.where(idx < 0, -1, take(column, idx)) for column in near.data))
        if self.drops_self:
            own = self.source_origin
            is_own = (neighbours.rank == own.rank[:, None]) & (neighbours.idx == own.idx[:, None])
            rad, idx, neighbours = drop_self(is_own, (rad, idx, neighbours))
        rad = radii(self.queries.pos, near.pos, self.args.box, rad, idx)
        found = self._found_among(rad, idx, near, neighbours)
        answers = {word: found.entry(word) for word in words}
        return answers if self.query_route is None else self._send_back(answers)

    def _search_near(
        self, near: ParticlesWithGhosts, number: Any, rows: Any, leaves: jax.Array, found: _Neighbours
    ) -> _Neighbours:
        """Search again from the open ``leaves``, with the neighbours ``found`` so far."""
        start = near.route().start if self.queries_are_targets else -1
        options = {"own_offset": start, "open_leaves": leaves, "domain": self._corners(), "found": found}
        return self._knn(near.tree(), number, self.queries.tree(), rows, **options)

    def _corners(self) -> Any:
        assert self.sources.domain is not None
        return self.sources.domain.corners

    def _limit(self, rows: jax.Array | None) -> Radii:
        """Return the search radii, in the output rows of the queries."""
        words = self.queries.data[0]
        if words is None:
            return self.args.limit
        return Radii(None, Exact(words if rows is None else kernels.scatter_rows(words, rows)))

    def _bring_ghosts(
        self, rad: jax.Array, rows: jax.Array | None, data: Any, **options: Any
    ) -> tuple[ParticlesWithGhosts, jax.Array]:
        """Bring the ghosts within reach of the neighbours so far.

        Args:
            rad: Distances so far, ``(q, k)``, in output rows.
            rows: Output row of each query. None means the same row.
            data: See `Stage.with_ghosts`.
            options: See `Stage.with_ghosts`.

        Returns:
            The rank's targets with its ghosts, and the open leaves.
        """
        limit = self._limit(rows)
        if limit.given():  # otherwise, a slice would be a copy
            farthest = limit.outermost(rad.shape[0], rad.dtype)[:, None]
            rad = jnp.minimum(at_least_normal(rad[:, -1:]), farthest)
        self.stage.exchange_boxes(self.source_counts, close=True)
        # A box that holds enough sources may hold the query itself.
        leaves, reach = self.stage.open_leaves(rad, self.k + self.exclude_self, rows)
        return self.stage.with_ghosts(reach, data, **options), leaves

    def _found_among(self, rad: jax.Array, idx: jax.Array, near: ParticlesWithGhosts, neighbours: RankIdx) -> Found:
        """Return the neighbours of queries in z-order. Their rows ``idx`` are those of ``near``."""

        def reduce() -> Any:
            return self._reduced(found, near.data, without_layers(self.queries.part))

        others = {
            "globalidx": lambda: jnp.where(idx < 0, -1, self.offsets[jnp.maximum(neighbours.rank, 0)] + neighbours.idx),
            "rankidx": lambda: neighbours,
            "reduce": reduce,
        }
        found = Found(rad, idx, without_layers(near.part), others, self.args.limit.given())
        return found

    def _send_back(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Send arrays with one row per query back to the ranks of the queries. Other arrays stay."""
        fill = jax.tree.map(lambda _: 0, answers) | {
            word: MISSING_VALUES[word] for word in MISSING_VALUES if word in answers
        }
        leaves, structure = jax.tree.flatten(answers)
        fills, n = jax.tree.leaves(fill), self.queries.pos.shape[0]
        rows = [i for i, leaf in enumerate(leaves) if np.ndim(leaf) > 0 and leaf.shape[0] == n]
        sent = self.stage.send_back([leaves[i] for i in rows], fill=[fills[i] for i in rows])
        returned = dict(zip(rows, sent, strict=True))
        return jax.tree.unflatten(structure, [returned.get(i, leaf) for i, leaf in enumerate(leaves)])

    def _differentiable(self, rad: jax.Array, idx: jax.Array) -> jax.Array:
        """Return ``rad`` with derivatives. Its neighbours are the numbers ``idx``."""
        box = self.args.box
        if self.query_route is not None:
            return radii_over_ranks(self.query_pos, self.pos, box, rad, idx, self.offsets)
        # The queries and sources where the sort has left them. The sort is differentiable.
        offsets = comm.starts_of(self.source_counts)
        return radii_over_ranks(self.queries.pos, self.sources.pos, box, rad, idx, offsets)
