"""The common part of searches within a radius: sources, queries and radii in the form that kernels need.

Over the ranks of a mesh:

1. Sort the sources (and queries) of all ranks in z-order, cut them into ranges together, and give each rank a range.
2. Each rank receives the particles of other ranks within the radii of its queries (`jztree.tree.ghosts`) and searches.
3. Results are sent back to the ranks of the queries.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._checks import check_particles, check_queries
from .._particles import check_num
from .._radii import Radii
from .._transform.capacity import Room
from ..config import RadiusConfig
from ..data import RankIdx, get_num, get_pos
from ..jax_ext import Exact
from ..tree import (
    TreeHierarchy,
    build_checked,
    build_in_domain,
    check_belongs,
    kernel_tree,
    sort_in_domain,
)
from ..tree._over_ranks import Moved, Movers, rows_of_rank, sort_equally, sort_over_ranks
from ..tree._zorder import Domain, corners_of, domain_of
from ..tree.ghosts import Surroundings, boxes_of, ghost_room, leaves_of, surroundings, tell_all

_TOO_MANY = "there are 2**31 particles or more on all devices, too many for rows of all of them in 32 bits."


@dataclass
class Asked:
    """The arguments of a search. columns: a pytree of ``(n, ...)`` arrays, the data needed for each source.

    query_columns: the same for each query, if needed and if there are separate queries. faults: possible faults other
    than those of the positions. numbered: number the particles of all ranks. least_reach: a lower limit of all search
    radii; the largest of all ranks counts.
    """

    part: Any
    part_query: Any
    columns: Any
    radii: Radii
    box: Exact
    th: TreeHierarchy | None
    cfg: RadiusConfig
    faults: Sequence[comm.Fault] = ()
    numbered: bool = False
    least_reach: jax.Array | None = None
    query_columns: Any = None


@dataclass
class Ready:
    """The arguments of a search in the form that kernels need.

    columns, origin: of the z-ordered sources; origin: the given row of each. query_columns: of the z-ordered queries.
    queries: None if they are the sources, row by row. rows: ``(q,)`` int32, the output row of each z-ordered query;
        None: the same row. radii: in the order of output rows.
    starts: ``(r,)`` int32, the number of the first source given to each rank; None: not needed.
    home: the route of the queries, if results have to be sent back.
    domain, around: over ranks, the domain of the z-order, and the exchange of ghosts.
    """

    sources: kernels.Tree
    columns: Any
    origin: RankIdx
    queries: kernels.Tree | None
    rows: jax.Array | None
    radii: Radii
    starts: jax.Array | None = None
    home: Moved | None = None
    domain: Domain | None = None
    around: Surroundings | None = None
    query_columns: Any = None

    def sent_home(self, answers: Any, fill: Any = None) -> Any:
        """Return arrays with one row per query in the rows of the given queries.

        fill: the value of rows without a query.
        """
        if self.home is None:
            return answers
        merge = self.home.merge
        rows = jax.tree.map(lambda column: kernels.scatter_rows(column, merge), answers)
        return comm.send_back(rows, self.home.route, fill=fill, name="results")


def check_both(part: Any, part_query: Any) -> tuple[jax.Array, jax.Array]:
    """Return the positions of sources and queries. Raise TypeError or ValueError if they are invalid or differ."""
    pos = check_particles(part)
    check_num(part)
    if part_query is None:
        return pos, pos
    return pos, check_queries(part_query, pos)


def make_ready(asked: Asked) -> Ready:
    """Sort the particles, and over ranks exchange them, into the form that kernels need."""
    return _over_ranks(asked) if comm.num_ranks() > 1 else _here(asked)


def _here(asked: Asked) -> Ready:
    query, faults = asked.part_query, list(asked.faults)
    if query is not None:
        place, num = jnp.asarray(get_pos(query)), kernels.as_num(get_num(query))
        corners, bad = corners_of(place, num, "the query positions")
        faults += bad
    if asked.th is not None:
        checked = check_belongs(asked.part, get_num(asked.part), asked.th, asked.box, faults)
        posz, order, th, columns = get_pos(asked.part), None, asked.th, asked.columns
    else:
        pos = jnp.asarray(get_pos(asked.part))
        domain, (checked,) = domain_of([pos], [get_num(asked.part)], ["the positions"], asked.box, faults)
        built = sort_in_domain(pos, checked, domain, asked.cfg.tree)
        posz, order, th = built.part, built.rows, built.th
        columns = jax.tree.map(lambda column: kernels.gather_rows(column, built.rows), asked.columns)
    origin = rows_of_rank(posz.shape[0])
    if order is not None:
        origin = RankIdx(origin.rank, order)
    sources = kernel_tree(posz, checked, th)
    if query is None:
        return Ready(sources, columns, origin, None, order, asked.radii, query_columns=columns)
    of_queries = Domain(*corners, asked.box, corners)
    own = sort_in_domain(place, comm.after(num, checked), of_queries, asked.cfg.tree)
    queries = kernel_tree(own.part, own.num, own.th)
    carried = jax.tree.map(lambda column: kernels.gather_rows(column, own.rows), asked.query_columns)
    return Ready(sources, columns, origin, queries, own.rows, asked.radii, query_columns=carried)


@dataclass
class _Range:
    """A rank's sources or queries in z-order. data: moved with them. moved: their route; None if already in order."""

    pos: jax.Array
    num: jax.Array
    th: TreeHierarchy
    data: Any
    moved: Moved | None

    @property
    def origin(self) -> RankIdx:
        return rows_of_rank(self.pos.shape[0]) if self.moved is None else self.moved.origin


def _starts(sources: _Range) -> jax.Array:
    """Return the number of each rank's first particle among the particles given to all ranks."""
    moved = sources.moved
    return starts_of_ranks(sources.num if moved is None else jnp.sum(moved.route.sent, dtype=jnp.int32))


def starts_of_ranks(num: Any) -> jax.Array:
    """Return the number of each rank's first particle among those of all ranks. num: the particles of this rank."""
    given = kernels.as_num(num)
    many = comm.check(0, comm.wide_sum(given).exceeds_int32(), [], _TOO_MANY)
    return comm.starts_of(comm.all_gather(comm.after(given, many)))


def _over_ranks(asked: Asked) -> Ready:
    sources, queries, domain = _ranges(asked)
    query_columns, words = queries.data
    radii = asked.radii if words is None else Radii(None, Exact(words))
    around = _with_ghosts(sources, queries, radii, domain, asked)
    pos, columns, origin = around.rows
    th = build_in_domain(pos, around.num, domain, asked.cfg.tree)
    own = kernel_tree(queries.pos, queries.num, queries.th)
    starts = _starts(sources) if asked.numbered else None
    at = queries.moved, domain, around
    return Ready(kernel_tree(pos, around.num, th), columns, origin, own, None, radii, starts, *at, query_columns)


def _ranges(asked: Asked) -> tuple[_Range, _Range, Domain]:
    """Return sources and queries of this rank; the same object if the sources are the queries."""
    pos, num, tree = get_pos(asked.part), get_num(asked.part), asked.cfg.tree
    words = None if asked.radii.of_each is None else jnp.asarray(asked.radii.of_each.words)
    if asked.part_query is None:
        domain, (num,) = domain_of([pos], [num], ["the positions"], asked.box, asked.faults)
        if asked.th is not None:
            th, num = build_checked(pos, num, domain, tree)
            own = _Range(pos, num, th, (asked.columns, words), None)
        else:
            own = _range_of(sort_equally(Movers(pos, (asked.columns, words), num), domain), domain, asked)
        return own, own, domain
    both = [pos, get_pos(asked.part_query)]
    names = ["the positions", "the query positions"]
    counts = [num, get_num(asked.part_query)]
    domain, nums = domain_of(both, counts, names, asked.box, asked.faults, of_first=True)
    rooms = [Room(both[0].shape[0] + both[1].shape[0], "sort")] * 2
    movers = [Movers(both[0], (asked.columns, None), nums[0]), Movers(both[1], (asked.query_columns, words), nums[1])]
    # Queries outside the sources' box share the keys of its edge, so their leaves would be long columns.
    on_ranks = [domain, domain.whole()]
    moved = sort_over_ranks(movers, domain, rooms, on_ranks=on_ranks)
    sources, queries = (_range_of(one, its, asked) for one, its in zip(moved, on_ranks, strict=True))
    return sources, queries, domain


def _range_of(moved: Moved, domain: Domain, asked: Asked) -> _Range:
    th = build_in_domain(moved.part, moved.num, domain, asked.cfg.tree)
    return _Range(moved.part, moved.num, th, moved.data, moved)


def _with_ghosts(sources: _Range, queries: _Range, radii: Radii, domain: Domain, asked: Asked) -> Surroundings:
    """Return positions, columns and origins of this rank's sources and of the ghosts within its queries' radii."""
    pos, num, leaves = sources.pos, sources.num, leaves_of(sources.th)
    of_queries = domain if queries is sources else domain.whole()
    groups = leaves_of(queries.th)
    boxes = boxes_of(queries.pos, queries.num, of_queries, groups)
    own = boxes if queries is sources else boxes_of(pos, num, domain, leaves)
    # This is the first collective after the exchanges.
    known = tell_all(pos, num, domain, leaves, own, queries.num)
    reach = radii.outermost(queries.pos.shape[0], pos.dtype)[:, None]
    if asked.least_reach is not None:
        reach = jnp.maximum(reach, _farther(comm.all_max(comm.after(asked.least_reach, known[2])), pos.dtype))
    rank = comm.get_rank_info()[0]
    _, wanted = kernels.open_leaves(groups, boxes, reach, None, known, None, rank, domain.box, None)
    rows = pos, sources.data[0], sources.origin
    place = ghost_room("radius_ghosts", asked.cfg.ghost_rows, pos.shape[0])
    return surroundings(rows, pos, num, leaves, lambda: known, (boxes[1], boxes[2], wanted), domain.box, place)


def _farther(length: jax.Array, dtype: Any) -> jax.Array:
    """Round a length up to the dtype of the positions."""
    return jnp.nextafter(length.astype(dtype), jnp.asarray(jnp.inf, dtype))
