"""The search for nearest neighbours, on one device or over the ranks of a mesh.

On one device, the kernel searches the sources once and writes results to the requested rows. Over ranks:

1. Each rank searches its own sources. This gives each query an upper bound of its radius.
2. A leaf of queries is open if its balls reach boxes of other ranks' sources. The rank sends the search radii of its
   open leaves, and the other ranks send the sources within them (`jztree.tree.stage`). If a query found fewer than
   ``k`` sources, the numbers of sources in the boxes of all ranks bound its radius.
3. Open leaves search again, among own sources and ghosts, within the bounds of step 1. On CPUs, only queries with a
   ghost within their bound do so. Sources and ghosts are in z-order, so ties are decided as on one device.
4. Results are sent back to the ranks of the queries.

Step 1 is most of the work. For 250,000 uniform particles per rank and k=8, about an eighth of the leaves are open.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from ..arguments import Radii, at_least_normal
from ..data import RankIdx, get_num, replace_num
from ..jax_ext import Exact, is_concrete
from ..particles import get_num_total
from ..tree import TreeHierarchy, permute_particles
from ..tree.stage import Given, Near, Stage, rows_in_equal_shares, rows_of_rank, stage_of
from ._batches import ordering, without_layers
from ._question import Question, as_marks, count_marked, marked_rows, without_own
from ._result import radii, radii_over_ranks, whose_rows, without_derivatives
from ._words import ABOUT_QUERIES, DISTANCES, NOTHING, Found, reduced, take

_TOO_MANY = "result 'globalidx' supports less than 2**31 particles over all devices, but there are more; use 'rankidx'."

_Neighbours = tuple[jax.Array, jax.Array]


def entries_of(part: Any, part_query: Any, ask: Question, th: TreeHierarchy | None = None, mask: Any = None) -> Any:
    """Return the entries for the words of ``ask``.

    part, part_query: this rank's particles; part_query is None if the sources are the queries. mask: the sources among
    ``part``; None: all.
    """
    search = _OverRanks if comm.num_ranks() > 1 else _OnOneDevice
    return search(part, part_query, ask, th, mask).entries()


class _Search:
    """Sources and queries in z-order.

    targets: the sources that can be neighbours; order: the row of each among the sources, None: the same row.
    one_more: find one more neighbour and drop the query itself, which kernels exclude only if all sources are queries.
    """

    def __init__(self, part: Any, part_query: Any, ask: Question, th: TreeHierarchy | None, mask: Any) -> None:
        self.part, self.part_query, self.ask, self.mask = part, part_query, ask, mask
        stage = self._staged(None if mask is None else as_marks(mask), th)
        self.sources, self.queries, self.order = stage.sources, stage.queries, None
        self.together = self.queries is self.sources and mask is None
        self.one_more = ask.others and not self.together
        self.k, self.others = ask.k + self.one_more, ask.others and self.together
        self.targets = self.sources
        if mask is not None:
            marks = self.sources.data[1]
            self.order, num = marked_rows(marks, self.sources.num)
            whole = stage.is_wide
            self.targets = self.sources.chosen(self.order, num, ask.cfg.tree, ask.box, whole=whole)
        self.stage = Stage(self.targets, self.queries, ask.box, ask.cfg, "knn_ghosts")

    def _staged(self, marks: Any, th: TreeHierarchy | None) -> Stage:
        raise NotImplementedError

    def _knn(self, targets: kernels.Tree, names: Any, rows: Any, limit: Radii, **options: Any) -> _Neighbours:
        """Search. rows: the output row of each query. limit: in output rows."""
        queries = None if self.together and "found" not in options else self.queries.tree()
        radius = limit.words_or_none()
        return kernels.knn(
            targets, names, queries, rows, self.k, self.ask.box, limit=radius, others=self.others, **options
        )

    def _found(self, rad: jax.Array, idx: jax.Array, source: Any, others: Any) -> Found:
        return Found(rad, idx, without_layers(source), others, self.ask.limit.given())

    def _reduced(self, found: Found, origin: RankIdx, query: Any) -> Any:
        """Call ``reduce_func`` with neighbours and queries in z-order."""
        assert self.ask.reduce_func is not None
        return reduced(self.ask.reduce_func, found, origin, query, whose_rows(self.queries.origin, self.queries.num))


class _OnOneDevice(_Search):
    def _staged(self, marks: Any, th: TreeHierarchy | None) -> Stage:
        ask, num = self.ask, get_num(self.part)
        faults = []
        if not ask.limit.given() and not (is_concrete(num) and self.mask is None):
            sources = num if self.mask is None else count_marked(self.mask, num)
            faults = [ask.too_few(kernels.as_num(sources), "")]
        given, queries = Given(self.part, num, (None, marks), th=th), None
        if self.part_query is not None:
            queries = Given(self.part_query, get_num(self.part_query), name="the query positions")
        return stage_of(given, queries, ask.box, ask.cfg, "knn_ghosts", faults, arranged=ordering)

    def entries(self) -> list[Any]:
        ask, words = self.ask, self.ask.words
        self._order_results()
        names = None if ask.in_z_order else self.sources.rows
        # reduce_func needs everything in z-order. Otherwise, the kernel writes results directly to their final rows.
        late = "reduce" in words and (names is not None or self.rows is not None)
        rad, idx = self._neighbours(None, None) if late else self._neighbours(names, self.rows)
        if "reduce" in words:
            query = without_layers(self.queries.part)
            made = self._reduced(self._found(rad, idx, self.sources.part, {}), self.sources.origin, query)
        if late:
            idx = idx if names is None else jnp.where(idx < 0, -1, take(names, idx))
            rad, idx, made = jax.tree.map(self._to_results, (rad, idx, made))
        others = {
            "globalidx": lambda: idx,
            "rankidx": lambda: RankIdx(jnp.minimum(idx, 0), idx),
            "reduce": lambda: made,
            "query": lambda: without_layers(self.asked),
            "queryidx": lambda: whose_rows(self.origin, self.queries.num),
        }
        found = self._found(rad, idx, self.sources.part if ask.in_z_order else self.part, others)
        return [found.entry(word) for word in words]

    def _order_results(self) -> None:
        """Choose the order of the results: the queries, their origins, and the output row of each z-ordered query."""
        queries, ask = self.queries, self.ask
        self.asked, self.rows = (self.part if self.part_query is None else self.part_query), queries.rows
        self.origin = rows_of_rank(queries.pos.shape[0])
        self.came = None
        if ask.in_z_order and self.part_query is None:
            self.asked, self.rows, self.origin = queries.part, None, queries.origin
        elif ask.in_z_order:
            # Results are in the z-order of the sources. Queries outside the sources' box share the keys of its edge, so
            # their leaves would be long columns. The search therefore sorts them in a separate domain.
            self.came, _ = self.sources.within(ask.box).zsort(jnp.asarray(Given(self.asked, 0).pos), queries.num)
            row = kernels.scatter_rows(jnp.arange(self.came.shape[0], dtype=jnp.int32), self.came)
            assert queries.rows is not None
            self.rows = kernels.gather_rows(row, queries.rows)
            self.asked, self.origin = permute_particles(self.asked, self.came), RankIdx(self.origin.rank, self.came)

    def _neighbours(self, names: jax.Array | None, rows: jax.Array | None) -> _Neighbours:
        """Return radii and source rows. names: of the z-ordered sources. rows: the output row of each query."""
        sources, queries = self.sources, self.queries
        if self.order is None:
            rad, idx = self._knn(sources.tree(), names, rows, self._limit(rows))
        else:
            of_targets = self.order if names is None else take(names, self.order)
            rad, idx = self._knn(self.targets.tree(), of_targets, rows, self._limit(rows))
        if self.one_more:
            # Here, the name of a particle is the row of its results.
            rad, idx = without_own(idx == jnp.arange(idx.shape[0], dtype=jnp.int32)[:, None], (rad, idx))
        pos = sources.pos if names is None else Given(self.part, 0).pos
        query = queries.pos if rows is None else Given(self.asked, 0).pos
        return radii(query, pos, self.ask.box, rad, idx), idx

    def _limit(self, rows: jax.Array | None) -> Radii:
        """Return the search radii in the output rows of the queries; in z-order if ``rows`` is None."""
        limit = self.ask.limit
        order = self.queries.rows if rows is None else self.came
        if limit.of_each is None or order is None:
            return limit
        return Radii(None, Exact(take(jnp.asarray(limit.of_each.words), order)))

    def _to_results(self, leaf: jax.Array) -> jax.Array:
        return leaf if self.rows is None else kernels.scatter_rows(jnp.asarray(leaf), self.rows)


class _OverRanks(_Search):
    def _staged(self, marks: Any, th: TreeHierarchy | None) -> Stage:
        ask, each, num = self.ask, self.ask.limit.of_each, self._checked_number()
        given, asking = jax.lax.stop_gradient((replace_num(self.part, num), self.part_query))
        words = None if each is None else jnp.asarray(each.words)
        if asking is None:
            sources, queries = Given(given, num, (words, marks), th=th), None
        else:
            sources = Given(given, num, (None, marks))
            queries = Given(asking, kernels.as_num(get_num(asking)), (words, None), "the query positions")
        return stage_of(sources, queries, ask.box, ask.cfg, "knn_ghosts", in_z_order=ask.in_z_order)

    def _checked_number(self) -> jax.Array:
        """Return ``num``. Raise on all ranks if there are too few sources, or too many particles to number."""
        part, mask, ask = self.part, self.mask, self.ask
        given = Given(part, get_num(part))
        num = kernels.as_num(given.num)
        # An invalid ``num`` is reported by the check of the positions.
        total = comm.wide_sum(jnp.clip(num, 0, *given.rows))
        many = total.exceeds_int32()
        if ask.none_found or not ask.limit.given():
            sources = total
            if mask is not None:
                num = comm.after(num, total.low)
                sources = comm.wide_sum(count_marked(mask, num))
            count = jnp.where(sources.exceeds_int32(), 2**31 - 1, sources.high * 65536 + sources.low)
            fault = ask.too_few(count, " on all devices")
            num = kernels.check(num, fault.failed, fault.numbers, fault.sentence)
        if "globalidx" not in ask.words:
            return num
        if (get_num_total(part) or 0) >= 2**31:
            raise ValueError(_TOO_MANY)
        return kernels.check(num, many, [], _TOO_MANY)

    def entries(self) -> list[Any]:
        # The route by which results are sent back to the ranks of the queries, or None.
        self.home = None if self.ask.in_z_order else self.queries.moved
        self._number_sources()
        asked = [word for word in self.ask.words if word not in ABOUT_QUERIES]
        found = self._numbers_only() if set(asked) <= {*DISTANCES, "globalidx"} else self._with_particles(asked)
        return [(found | self._whose())[word] for word in self.ask.words]

    def _number_sources(self) -> None:
        """Find the names of source rows, and the first number of each rank's particles in the joined set."""
        sources = self.sources
        in_place = self.ask.in_z_order and not self.ask.sorted_already
        n = sources.pos.shape[0]
        nums = sources.num if in_place else sources.given_num()
        self.everyone = comm.all_gather(nums)
        if in_place and self.part_query is not None:
            # No rank knows how the sources were cut together with the queries.
            self.everybody, self.offsets = rows_in_equal_shares(self.everyone, n)
        else:
            self.everybody = rows_of_rank(n) if in_place else sources.origin
            self.offsets = comm.starts_of(self.everyone)
        order = self.order
        self.numbers = self.everybody if order is None else RankIdx(*(take(rows, order) for rows in self.everybody))

    def _whose(self) -> dict[str, Any]:
        """Return the queries in the order of the results, and their origins."""
        queries, given = self.queries, (self.part, self.part_query)
        if self.home is None and queries.moved is not None:
            whose = whose_rows(queries.origin, queries.num)
            return {"query": without_derivatives(queries.part, given), "queryidx": whose}
        query = self.part if self.part_query is None else self.part_query
        rows = whose_rows(rows_of_rank(queries.given_rows()), get_num(query))
        return {"query": without_layers(query), "queryidx": rows}

    def _numbers_only(self) -> dict[str, Any]:
        """Return radii and numbers, which the kernel writes in the order of the send buffer."""
        number = comm.of_rank(self.offsets, self.numbers.rank) + self.numbers.idx
        rows = None if self.home is None else self.home.merge
        rad, idx = self._search_own(number, rows)
        near, leaves = self._bring(rad, rows, number, filled=False)
        rad, idx = self._search_near(near, near.data, rows, leaves, (rad, idx))
        if self.home is not None:
            rad, idx = self.stage.home_if_moved((rad, idx), fill=(jnp.inf, -1))
        if self.one_more:
            own = self.offsets[comm.get_rank_info()[0]] + jnp.arange(idx.shape[0], dtype=jnp.int32)
            rad, idx = without_own(idx == own[:, None], (rad, idx))
        known = self._differentiable(rad, idx, self.offsets)
        return {"rad": known, "drad": known, "globalidx": idx}

    def _with_particles(self, words: list[str]) -> dict[str, Any]:
        """Return entries that need the neighbours themselves. Gather them in z-order, while ghosts are present."""
        rad, idx = self._search_own(None, None)
        near, leaves = self._bring(rad, None, self.numbers, whole=True)
        idx = jnp.where(idx < 0, -1, idx + near.route().start)
        rad, idx = self._search_near(near, None, None, leaves, (rad, idx))
        numbers = RankIdx(*(jnp.where(idx < 0, -1, take(column, idx)) for column in near.data))
        if self.one_more:
            own = self.everybody
            is_own = (numbers.rank == own.rank[:, None]) & (numbers.idx == own.idx[:, None])
            rad, idx, numbers = without_own(is_own, (rad, idx, numbers))
        found = self._of_near(rad, idx, near, numbers)
        answers = {word: found.entry(word) for word in words if word not in DISTANCES}
        # Send long lists only on request. Derivatives of radii also need the neighbours' identities.
        if DISTANCES & set(words):
            answers |= {"rad": rad, "rankidx": numbers}
        if self.home is not None:
            answers = self._sent_home(answers)
        if "rad" in answers:
            answers["drad"] = answers["rad"] = self._differentiable(answers["rad"], answers["rankidx"], None)
        return answers

    def _search_own(self, number: jax.Array | None, rows: jax.Array | None) -> _Neighbours:
        return self._knn(self.targets.tree(), number, rows, self._limit(rows), domain=self._corners())

    def _search_near(self, near: Near, number: Any, rows: Any, leaves: jax.Array, found: _Neighbours) -> _Neighbours:
        """Search again from the open ``leaves``, with the neighbours ``found`` so far."""
        start = near.route().start if self.together else -1
        options = {"own_offset": start, "open_leaves": leaves, "domain": self._corners(), "found": found}
        return self._knn(near.tree(), number, rows, self._limit(rows), **options)

    def _corners(self) -> Any:
        assert self.sources.domain is not None
        return self.sources.domain.corners

    def _limit(self, rows: jax.Array | None) -> Radii:
        """Return the search radii, in the output rows of the queries."""
        words = self.queries.data[0]
        if words is None:
            return self.ask.limit
        return Radii(None, Exact(words if rows is None else kernels.scatter_rows(words, rows)))

    def _bring(self, rad: jax.Array, rows: jax.Array | None, data: Any, **options: Any) -> tuple[Near, jax.Array]:
        """Return the rank's targets with its ghosts, and the open leaves. data, options: see `Stage.around`."""
        limit = self._limit(rows)
        if limit.given():  # otherwise, a slice would be a copy
            farthest = limit.outermost(rad.shape[0], rad.dtype)[:, None]
            rad = jnp.minimum(at_least_normal(rad[:, -1:]), farthest)
        self.stage.meet(self.everyone, close=True)
        # A box that holds enough sources may hold the query itself.
        leaves, reach = self.stage.open(rad, self.k + self.others, rows)
        return self.stage.around(reach, data, **options), leaves

    def _of_near(self, rad: jax.Array, idx: jax.Array, near: Near, numbers: RankIdx) -> Found:
        """Return neighbours in z-order, whose rows are those of ``near``."""
        given = self.part, self.part_query

        def reduce() -> Any:
            query = without_derivatives(without_layers(self.queries.part), given)
            return self._reduced(found, near.data, query)

        others = {
            "globalidx": lambda: jnp.where(idx < 0, -1, self.offsets[jnp.maximum(numbers.rank, 0)] + numbers.idx),
            "rankidx": lambda: numbers,
            "reduce": reduce,
        }
        source = without_derivatives(without_layers(near.part), given)
        found = Found(rad, idx, source, others, self.ask.limit.given())
        return found

    def _sent_home(self, answers: dict[str, Any]) -> dict[str, Any]:
        """Return the arrays with one row per query at the queries' ranks; others stay."""
        fill = jax.tree.map(lambda _: 0, answers) | {word: NOTHING[word] for word in NOTHING if word in answers}
        leaves, structure = jax.tree.flatten(answers)
        fills, n = jax.tree.leaves(fill), self.queries.pos.shape[0]
        rows = [i for i, leaf in enumerate(leaves) if np.ndim(leaf) > 0 and leaf.shape[0] == n]
        sent = self.stage.home([leaves[i] for i in rows], fill=[fills[i] for i in rows])
        home = dict(zip(rows, sent, strict=True))
        return jax.tree.unflatten(structure, [home.get(i, leaf) for i, leaf in enumerate(leaves)])

    def _differentiable(self, rad: jax.Array, nearest: Any, offsets: jax.Array | None) -> jax.Array:
        """Return ``rad`` with derivatives, if its rows are those of the given particles."""
        pos = Given(self.part, 0).pos
        query = pos if self.part_query is None else Given(self.part_query, 0).pos
        as_given = not self.ask.in_z_order or self.queries.moved is None
        return radii_over_ranks(query, pos, self.ask.box, rad, nearest if as_given else None, offsets)
