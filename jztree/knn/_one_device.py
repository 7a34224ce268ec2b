"""Nearest neighbours on one device: sort into z-order, search once, and write results to the requested rows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..config import TreeConfig
from ..data import RankIdx, get_num, get_pos
from ..jax_ext import Exact, is_concrete
from ..tree import TreeHierarchy, build_in_domain, check_belongs, kernel_tree, sort_in_domain
from ..tree._over_ranks import rows_of_rank
from ..tree._zorder import Domain, corners_of, domain_of, permute_particles
from ._batches import ordering, without_layers
from ._question import Question, as_marks, count_marked, marked_rows, without_own
from ._result import radii, whose_rows
from ._words import Found, reduced, take

__all__ = ["Search", "sort"]


@dataclass
class _Marked:
    """The particles in z-order that can be neighbours, and the row of each among all z-ordered particles."""

    tree: kernels.Tree
    order: jax.Array


@dataclass
class _Sorted:
    """Particles in z-order.

    index: the row in ``given`` that each particle came from; None if ``given`` was in z-order. came: the row that each
    particle of ``given`` has in the user's input; None if it is the same. marked: the particles to search; None: all.
    """

    part: Any
    index: jax.Array | None
    num: Any
    th: TreeHierarchy
    given: Any
    came: jax.Array | None = None
    marked: _Marked | None = None

    def arrays(self) -> kernels.Tree:
        return kernel_tree(self.part, self.num, self.th)

    def origin(self) -> RankIdx:
        """Return the user's row of each particle."""
        rows = self.origin_of_given()
        return rows if self.index is None else RankIdx(rows.rank, take(rows.idx, self.index))

    def origin_of_given(self) -> RankIdx:
        """Return the user's row of each particle of ``given``."""
        rows = rows_of_rank(get_pos(self.part).shape[0])
        return rows if self.came is None else RankIdx(rows.rank, self.came)


def sort(part: Any, th: TreeHierarchy | None, query: Any, mask: Any, ask: Question) -> tuple[_Sorted, _Sorted | None]:
    """Return sources and queries in z-order; the second is None if the sources are the queries.

    One check covers the errors of both, because the host waits for a GPU at each check.
    """
    faults, box, tree = _few_faults(part, mask, ask), ask.box, ask.cfg.tree
    if query is None:
        return _sort_sources(part, th, mask, box, tree, faults)[0], None
    pos, num = jnp.asarray(get_pos(query)), kernels.as_num(get_num(query))
    corners, of_queries = corners_of(pos, num, "the query positions")
    sources, checked = _sort_sources(part, th, mask, box, tree, [*faults, *of_queries])
    num = comm.after(num, checked)
    came = None
    if ask.in_z_order:
        # Results are in the z-order of the sources. Queries outside the sources' box share the keys of its edge, so
        # their leaves would be long columns. So they are sorted a second time, in a separate domain.
        edge, _ = corners_of(jnp.asarray(get_pos(sources.part)), checked, "the positions")
        came, posz = Domain(*edge, box, edge).zsort(pos, num)
        query = permute_particles(query, came, posz)
    built = sort_in_domain(query, num, ordering(query, Domain(*corners, box, corners)), tree)
    return sources, _Sorted(built.part, built.rows, num, built.th, query, came)


def _sort_sources(
    part: Any, th: TreeHierarchy | None, mask: Any, box: Exact, cfg: TreeConfig, faults: Sequence[comm.Fault]
) -> tuple[_Sorted, jax.Array]:
    """Return the sources in z-order, and their number, which is available after all checks."""
    if th is not None:
        num = check_belongs(part, get_num(part), th, box, faults)
        found = _Sorted(part, None, num, th, part)
        if mask is not None:
            corners, _ = corners_of(jnp.asarray(get_pos(part)), num, "the positions")
            found.marked = _marked(found, mask, Domain(*corners, box, corners), cfg)
        return found, num
    domain, (num,) = domain_of([jnp.asarray(get_pos(part))], [get_num(part)], ["the positions"], box, faults)
    built = sort_in_domain(part, num, ordering(part, domain), cfg)
    found = _Sorted(built.part, built.rows, num, built.th, part)
    if mask is not None:
        found.marked = _marked(found, kernels.gather_rows(as_marks(mask), built.rows), domain, cfg)
    return found, num


def _marked(among: _Sorted, mask: Any, domain: Domain, cfg: TreeConfig) -> _Marked:
    """Return the marked particles in z-order. mask: in the order of ``among``."""
    order, num = marked_rows(mask, among.num)
    posz = kernels.gather_rows(jnp.asarray(get_pos(among.part)), order)
    return _Marked(kernel_tree(posz, num, build_in_domain(posz, num, domain, cfg)), order)


@dataclass
class Search:
    """One search, whose results are written to the requested rows."""

    sources: _Sorted
    queries: _Sorted | None
    ask: Question

    def answer(self) -> list[Any]:
        """Return one entry for each word of the result."""
        asked, words = self.queries or self.sources, self.ask.words
        to_given = not self.ask.in_z_order, self._rows_are_given()
        moves = (to_given[0] and self.sources.index is not None) or (to_given[1] and asked.index is not None)
        # reduce_func needs everything in z-order. Without it, the kernel writes results directly to their final rows.
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
            "query": lambda: without_layers(asked.given if to_given[1] else asked.part),
            "queryidx": lambda: whose_rows(asked.origin_of_given() if to_given[1] else asked.origin(), asked.num),
        }
        source = without_layers(self.sources.given if to_given[0] else self.sources.part)
        found = Found(rad, idx, source, others, self.ask.limit.given())
        return [found.entry(word) for word in words]

    def _rows_are_given(self) -> bool:
        """Return whether results are in the rows of the given queries, which may already be in z-order."""
        return not self.ask.in_z_order or self.queries is not None

    def _neighbours(self, source_direct: bool, query_direct: bool) -> tuple[jax.Array, jax.Array]:
        """Return radii and source rows. Rows of sources and of queries are those given if ``direct``, or z-ordered."""
        asked = self.queries or self.sources
        own, marked = asked.index if query_direct else None, self.sources.marked
        names = self.sources.index if source_direct else None
        ask, limit = self.ask, self._limit(query_direct)
        if marked is None:
            queries = None if self.queries is None else self.queries.arrays()
            found = kernels.knn(
                self.sources.arrays(), names, queries, own, ask.k, ask.box, limit=limit, others=ask.others
            )
        else:
            names = marked.order if names is None else take(names, marked.order)
            found = kernels.knn(marked.tree, names, asked.arrays(), own, ask.k + ask.others, ask.box, limit=limit)
            if ask.others:
                # Here, the name of a particle is the row of its results.
                rows = jnp.arange(found[1].shape[0], dtype=jnp.int32)
                found = without_own(found[1] == rows[:, None], found)
        rad, idx = found
        pos = get_pos(self.sources.given if source_direct else self.sources.part)
        query = get_pos(asked.given if query_direct else asked.part)
        return radii(query, pos, ask.box, rad, idx), idx

    def _limit(self, query_direct: bool) -> Exact | None:
        """Return the search radii for kernels, in the rows of `_Sorted.given` if ``query_direct``, or in z-order."""
        asked = self.queries or self.sources
        if self.ask.limit.of_each is None:
            return self.ask.limit.for_all
        words = jnp.asarray(self.ask.limit.of_each.words)
        for order in (asked.came, None if query_direct else asked.index):
            words = words if order is None else take(words, order)
        return Exact(words)

    def _reduce(self, rad: jax.Array, idx: jax.Array, asked: _Sorted) -> Any:
        assert self.ask.reduce_func is not None
        found = Found(rad, idx, without_layers(self.sources.part), {}, self.ask.limit.given())
        whose, query = whose_rows(asked.origin(), asked.num), without_layers(asked.part)
        return reduced(self.ask.reduce_func, found, self.sources.origin(), query, whose)

    def _source_rows(self, idx: jax.Array) -> jax.Array:
        """Convert z-ordered rows to rows of the given sources; -1 stays -1."""
        if self.sources.index is None:
            return idx
        return jnp.where(idx < 0, -1, take(self.sources.index, idx))

    def _to_given(self, leaf: jax.Array, asked: _Sorted) -> jax.Array:
        return leaf if asked.index is None else kernels.scatter_rows(jnp.asarray(leaf), asked.index)


def _few_faults(part: Any, mask: Any, ask: Question) -> list[comm.Fault]:
    """Return the fault of too few sources, if their number is known at run time only."""
    num = get_num(part) if mask is None else count_marked(mask, get_num(part))
    if ask.limit.given() or (is_concrete(num) and mask is None):
        return []
    return [ask.too_few(kernels.as_num(num), "")]
