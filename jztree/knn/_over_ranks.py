"""Exact k nearest neighbours over the ranks of a mesh.

1. Sort the sources (and queries) of all ranks in z-order and give each rank a range.
2. Each rank searches its own sources. This gives each query an upper bound of its radius.
3. A leaf of queries is open if its balls reach boxes of other ranks' sources. The rank sends the search radii of its
   open leaves, and the other ranks send the sources within them (`jztree.tree.ghosts`). If a query found fewer than
   ``k`` sources, the numbers of sources in the boxes of all ranks bound its radius.
4. Open leaves search again, among own sources and ghosts, within the bounds of step 2. On CPUs, only queries with a
   ghost within their bound do so. Sources and ghosts are in z-order, so ties are decided as on one device.
5. Results are sent back to the ranks of the queries.

Step 2 is most of the work. For 250,000 uniform particles per rank and k=8, about an eighth of the leaves are open.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels, stats
from .._checks import at_least_normal
from .._particles import get_num_total
from .._radii import Radii
from .._transform.capacity import Room
from ..data import RankIdx, get_num, get_pos, replace_num, split_rows
from ..jax_ext import Exact
from ..tree import TreeHierarchy, build_checked, build_in_domain, kernel_tree
from ..tree._over_ranks import Moved, Movers, rows_in_equal_shares, rows_of_rank, sort_equally, sort_over_ranks
from ..tree._zorder import Domain, domain_of, permute_particles
from ..tree.ghosts import Blocks, Surroundings, boxes_of, close_boxes, ghost_room, leaves_of, surroundings, tell_all
from ._batches import without_layers
from ._question import Question, as_marks, count_marked, marked_rows, without_own
from ._result import radii_over_ranks, whose_rows, without_derivatives
from ._words import ABOUT_QUERIES, DISTANCES, NOTHING, Found, reduced, take

_TOO_MANY = "there are 2**31 particles or more on all devices, too many for result 'globalidx'; use 'rankidx'."


class _Carried(NamedTuple):
    """Data that moves with particles: search radii and source marks. Each may be None."""

    limit: jax.Array | None
    mask: jax.Array | None


@dataclass
class _Range:
    """A rank's sources or queries in z-order, in a domain. moved: their route to the rank; None if already in order.

    limit: the search radii of queries as words, if they differ. mask: the marks of sources. among, order: for a range
    of marked particles, the range they were selected from and the row of each in it.
    """

    part: Any
    num: jax.Array
    th: TreeHierarchy
    domain: Domain
    moved: Moved | None
    limit: jax.Array | None = None
    mask: jax.Array | None = None
    among: "_Range | None" = None
    order: jax.Array | None = None

    def tree(self) -> kernels.Tree:
        return kernel_tree(self.part, self.num, self.th)

    def boxes(self) -> Blocks:
        return boxes_of(get_pos(self.part), self.num, self.domain, leaves_of(self.th))

    def tell_all(self, boxes: Blocks, *behind: jax.Array) -> Blocks:
        return tell_all(get_pos(self.part), self.num, self.domain, leaves_of(self.th), boxes, *behind)


def knn_over_ranks(part: Any, part_query: Any, ask: Question, mask: Any = None) -> list[Any]:
    """Return the entries for the words of ``ask``.

    part, part_query: this rank's particles; part_query is None if the sources are the queries. mask: the sources among
    ``part``; None: all.
    """
    num = _check_number(part, mask, ask)
    given = jax.lax.stop_gradient(replace_num(part, num))
    asking = jax.lax.stop_gradient(part_query)
    marks = None if mask is None else as_marks(mask)
    sources, queries, domain = _ranges(given, num, asking, marks, ask)
    if mask is not None:
        sources = _marked(sources, domain, ask)
    search = _Search(part, part_query, sources, queries, domain, ask)
    return search.answer()


def _check_number(part: Any, mask: Any, ask: Question) -> jax.Array:
    """Return ``num``. Raise on all ranks if there are too few sources, or too many particles to number."""
    num, rows = kernels.as_num(get_num(part)), get_pos(part).shape[0]
    # An invalid ``num`` is reported by the check of the positions.
    total = comm.wide_sum(jnp.clip(num, 0, rows))
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


def _ranges(part: Any, num: jax.Array, part_query: Any, mask: Any, ask: Question) -> tuple[_Range, _Range, Domain]:
    """Return sources and queries in z-order; the same object if the sources are the queries.

    With separate queries, sources are sorted even if they are in order already, because both must be cut into ranges
    together.
    """
    tree, each = ask.cfg.tree, ask.limit.of_each
    words = None if each is None else jnp.asarray(each.words)
    if part_query is None:
        domain, (num,) = domain_of([get_pos(part)], [num], ["the positions"], ask.box)
        if ask.sorted_already:
            th, num = build_checked(part, num, domain, tree)
            own = _Range(part, num, th, domain, None, words, mask)
        else:
            moved = sort_equally(Movers(part, _Carried(words, mask), num), domain)
            own = _range_of(moved, domain, ask)
        return own, own, domain
    both = [get_pos(part), get_pos(part_query)]
    names = ["the positions", "the query positions"]
    domain, nums = domain_of(both, [num, kernels.as_num(get_num(part_query))], names, ask.box, of_first=True)
    # Cut both together, so that queries crowded in a corner do not crowd on one rank.
    rooms = [Room(both[0].shape[0] + both[1].shape[0], "sort")] * 2
    movers = [Movers(part, _Carried(None, mask), nums[0]), Movers(part_query, _Carried(words, None), nums[1])]
    # Queries outside the sources' box share the keys of its edge, so their leaves would be long columns. If their order
    # is not part of the result, sort them in a domain that separates them.
    on_ranks = [domain, domain if ask.in_z_order else domain.whole()]
    kinds = sort_over_ranks(movers, domain, rooms, on_ranks=on_ranks)
    sources, queries = (_range_of(*kind, ask) for kind in zip(kinds, on_ranks, strict=True))
    return sources, queries, domain


def _range_of(moved: Moved, domain: Domain, ask: Question) -> _Range:
    th = build_in_domain(moved.part, moved.num, domain, ask.cfg.tree)
    return _Range(moved.part, moved.num, th, domain, moved, *moved.data)


def _marked(among: _Range, domain: Domain, ask: Question) -> _Range:
    """Return the marked particles of a range."""
    order, num = marked_rows(among.mask, among.num)
    part = replace_num(permute_particles(among.part, order), num)
    th = build_in_domain(part, num, domain, ask.cfg.tree)
    return _Range(part, num, th, domain, among.moved, among=among, order=order)


class _Search:
    def __init__(
        self, part: Any, part_query: Any, sources: _Range, queries: _Range, domain: Domain, ask: Question
    ) -> None:
        self.part, self.part_query = part, part_query
        self.sources, self.queries, self.domain = sources, queries, domain
        # Kernels can exclude the query itself if all sources are queries. Otherwise find one more neighbour to drop.
        self.one_more = ask.others and sources is not queries
        self.ask = replace(ask, k=ask.k + 1, others=False) if self.one_more else ask
        self.rank = comm.get_rank_info()[0]
        # The route by which results are sent back to the ranks of the queries, or None.
        self.home = None if ask.in_z_order or queries.moved is None else queries.moved
        self.numbers, self.offsets = self._numbering()

    def _numbering(self) -> tuple[RankIdx, jax.Array]:
        """Return the names of source rows, and the first number of each rank's particles in the joined set."""
        numbers, offsets = self._numbering_of_all(self.sources.among or self.sources)
        self.everybody, order = numbers, self.sources.order
        return numbers if order is None else RankIdx(*(take(rows, order) for rows in numbers)), offsets

    def _numbering_of_all(self, sources: _Range) -> tuple[RankIdx, jax.Array]:
        n = get_pos(sources.part).shape[0]
        in_place = self.ask.in_z_order and not self.ask.sorted_already
        if in_place or sources.moved is None:
            numbers, nums = rows_of_rank(n), sources.num
        else:
            numbers, nums = sources.moved.origin, jnp.sum(sources.moved.route.sent, dtype=jnp.int32)
        everyone = comm.all_gather(nums)
        self.everyone = everyone
        if in_place and self.part_query is not None:
            # No rank knows how the sources were cut together with the queries.
            return rows_in_equal_shares(everyone, n)
        return numbers, comm.starts_of(everyone)

    def answer(self) -> list[Any]:
        asked = [word for word in self.ask.words if word not in ABOUT_QUERIES]
        found = self._numbers_only() if set(asked) <= {*DISTANCES, "globalidx"} else self._with_particles(asked)
        return [(found | self._whose())[word] for word in self.ask.words]

    def _whose(self) -> dict[str, Any]:
        """Return the queries in the order of the results, and their origins."""
        if self.home is None and self.queries.moved is not None:
            moved, given = self.queries.moved, (self.part, self.part_query)
            return {"query": without_derivatives(moved.part, given), "queryidx": whose_rows(moved.origin, moved.num)}
        query = self.part if self.part_query is None else self.part_query
        rows = whose_rows(rows_of_rank(get_pos(query).shape[0]), get_num(query))
        return {"query": without_layers(query), "queryidx": rows}

    def _numbers_only(self) -> dict[str, Any]:
        """Return radii and numbers, which the kernel writes in the order of the send buffer."""
        number = comm.of_rank(self.offsets, self.numbers.rank) + self.numbers.idx
        rows = None if self.home is None else self.home.merge
        rad, idx = self._search_own(number, rows)
        around, open_leaves = self._look_around((get_pos(self.sources.part), number), rad, rows, filled=False)
        rad, idx = self._search_around(around, around.rows[0], around.rows[1], rows, open_leaves, rad, idx)
        if self.home is not None:
            rad, idx = self._numbers_home((rad, idx))
        if self.one_more:
            own = self.offsets[self.rank] + jnp.arange(idx.shape[0], dtype=jnp.int32)
            rad, idx = without_own(idx == own[:, None], (rad, idx))
        known = self._differentiable(rad, idx, self.offsets)
        return {"rad": known, "drad": known, "globalidx": idx}

    def _numbers_home(self, found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        """Send radii and numbers back to the ranks of the queries, unless no particle has moved."""
        assert self.home is not None
        route, stayed = self.home.route, self.home.stayed

        def back(found: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
            return comm.send_back(found, route, fill=(jnp.inf, -1), name="results")

        if stayed is None:
            return back(found)
        stats.record("rows.results", jnp.int32(0))
        # Use a loop of at most one step, whose state stays in place: a conditional would copy its result.
        state = jax.tree.map(comm.vary, (stayed, found))
        return jax.lax.while_loop(lambda state: ~state[0], lambda state: (~state[0], back(state[1])), state)[1]

    def _with_particles(self, words: list[str]) -> dict[str, Any]:
        """Return entries that need the neighbours themselves. Gather them in z-order, while ghosts are present."""
        columns, rebuild = split_rows(self.sources.part)
        rad, idx = self._search_own(None, None)
        around, open_leaves = self._look_around((columns, self.numbers), rad, None)
        present = replace_num(rebuild(around.rows[0]), around.num)
        idx = jnp.where(idx < 0, -1, idx + around.start)
        rad, idx = self._search_around(around, get_pos(present), None, None, open_leaves, rad, idx)
        numbers = RankIdx(*(jnp.where(idx < 0, -1, take(column, idx)) for column in around.rows[1]))
        if self.one_more:
            own = self.everybody
            is_own = (numbers.rank == own.rank[:, None]) & (numbers.idx == own.idx[:, None])
            rad, idx, numbers = without_own(is_own, (rad, idx, numbers))
        found = self._found(rad, idx, present, numbers, around.rows[1])
        answers = {word: found.entry(word) for word in words if word not in DISTANCES}
        # Send long lists only on request. Derivatives of radii also need the neighbours' identities.
        if DISTANCES & set(words):
            answers |= {"rad": rad, "rankidx": numbers}
        if self.home is not None:
            answers = self._sent_home(answers)
        if "rad" in answers:
            answers["drad"] = answers["rad"] = self._differentiable(answers["rad"], answers["rankidx"], None)
        return answers

    def _search_own(self, number: jax.Array | None, rows: jax.Array | None) -> tuple[jax.Array, jax.Array]:
        queries = None if self.queries is self.sources else self.queries.tree()
        return kernels.knn(
            self.sources.tree(),
            number,
            queries,
            rows,
            self.ask.k,
            self.ask.box,
            domain=self.domain.corners,
            limit=self._limit(rows).words_or_none(),
            others=self.ask.others,
        )

    def _limit(self, rows: jax.Array | None) -> Radii:
        """Return the search radii, in the output rows of the queries."""
        words = self.queries.limit
        if words is None:
            return self.ask.limit
        return Radii(None, Exact(words if rows is None else kernels.scatter_rows(words, rows)))

    def _farthest(self, rad: jax.Array, rows: jax.Array | None) -> jax.Array:
        """Return an array whose last column is the search radius of each query, given its neighbours up to ``rad``."""
        limit = self._limit(rows)
        if not limit.given():
            return rad  # a slice would be a copy
        return jnp.minimum(at_least_normal(rad[:, -1:]), limit.outermost(rad.shape[0], rad.dtype)[:, None])

    def _look_around(
        self, properties: Any, rad: jax.Array, rows: jax.Array | None, filled: bool = True
    ) -> tuple[Surroundings, jax.Array]:
        """Return the rank's sources with its ghosts, and the open leaves. filled: see `comm.exchange`."""
        boxes = self.sources.boxes()
        known = self.sources.tell_all(boxes, self.everyone)
        close = close_boxes(boxes, known)
        own = boxes if self.queries is self.sources else self.queries.boxes()
        open_leaves, wanted = kernels.open_leaves(
            leaves_of(self.queries.th),
            own,
            self._farthest(rad, rows),
            rows,
            known,
            close,
            self.rank,
            self.ask.box,
            self.ask.k + self.ask.others,  # sources in boxes, including the query itself
        )
        n = get_pos(self.sources.part).shape[0]
        around = surroundings(
            properties,
            get_pos(self.sources.part),
            self.sources.num,
            leaves_of(self.sources.th),
            lambda: known,
            (own[1], own[2], wanted),
            self.ask.box,
            ghost_room("knn_ghosts", self.ask.cfg.ghost_rows, n),
            filled=filled,
        )
        return around, open_leaves

    def _search_around(
        self,
        around: Surroundings,
        pos: jax.Array,
        number: jax.Array | None,
        rows: jax.Array | None,
        open_leaves: jax.Array,
        rad: jax.Array,
        idx: jax.Array,
    ) -> tuple[jax.Array, jax.Array]:
        th = build_in_domain(pos, around.num, self.domain, self.ask.cfg.tree)
        return kernels.knn(
            kernel_tree(pos, around.num, th),
            number,
            self.queries.tree(),
            rows,
            self.ask.k,
            self.ask.box,
            own_offset=around.start if self.queries is self.sources else -1,
            open_leaves=open_leaves,
            domain=self.domain.corners,
            limit=self._limit(rows).words_or_none(),
            found=(rad, idx),
            others=self.ask.others,
        )

    def _found(self, rad: jax.Array, idx: jax.Array, present: Any, numbers: RankIdx, origin: RankIdx) -> Found:
        """Return neighbours in z-order. present: own particles and ghosts, with origins ``origin``."""
        given, queries = (self.part, self.part_query), self.queries

        def reduce() -> Any:
            assert self.ask.reduce_func is not None
            rows = rows_of_rank(rad.shape[0]) if queries.moved is None else queries.moved.origin
            query = without_derivatives(without_layers(queries.part), given)
            return reduced(self.ask.reduce_func, found, origin, query, whose_rows(rows, queries.num))

        others = {
            "globalidx": lambda: jnp.where(idx < 0, -1, self.offsets[jnp.maximum(numbers.rank, 0)] + numbers.idx),
            "rankidx": lambda: numbers,
            "reduce": reduce,
        }
        source = without_derivatives(without_layers(present), given)
        found = Found(rad, idx, source, others, self.ask.limit.given())
        return found

    def _sent_home(self, answers: dict[str, Any]) -> dict[str, Any]:
        assert self.home is not None
        merge, n = self.home.merge, get_pos(self.queries.part).shape[0]
        fill = jax.tree.map(lambda _: 0, answers) | {word: NOTHING[word] for word in NOTHING if word in answers}
        leaves, structure = jax.tree.flatten(answers)
        fills = jax.tree.leaves(fill)
        rows = [i for i, leaf in enumerate(leaves) if np.ndim(leaf) > 0 and leaf.shape[0] == n]
        unmerged = [kernels.scatter_rows(leaves[i], merge) for i in rows]
        sent = comm.send_back(unmerged, self.home.route, fill=[fills[i] for i in rows], name="results")
        home = dict(zip(rows, sent, strict=True))
        return jax.tree.unflatten(structure, [home.get(i, leaf) for i, leaf in enumerate(leaves)])

    def _differentiable(self, rad: jax.Array, nearest: Any, offsets: jax.Array | None) -> jax.Array:
        """Return ``rad`` with derivatives, if its rows are those of the given particles."""
        pos = get_pos(self.part)
        query = pos if self.part_query is None else get_pos(self.part_query)
        as_given = not self.ask.in_z_order or self.queries.moved is None
        return radii_over_ranks(query, pos, self.ask.box, rad, nearest if as_given else None, offsets)
