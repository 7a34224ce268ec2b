"""The search for nearest neighbours, on one device or over the ranks of a mesh.

On one device, the kernel searches the sources once and writes results to the requested rows. Over ranks:

1. Each rank searches its own sources. This gives each query an upper bound of its radius.
2. A leaf of queries is open if its balls reach boxes of other ranks' sources. The rank sends the search radii of its
   open leaves, and the other ranks send the sources within them (`jztree.tree.stage`). If a query found fewer than
   ``k`` sources, the numbers of sources in every rank's boxes bound its radius.
3. Open leaves search again, among own sources and ghosts, within the bounds of step 1. On CPUs, only queries with a
   ghost within their bound search again. Sources and ghosts are in z-order, so the order of sources at the same
   distance is that of one device.
4. Results are sent back to the ranks of the queries.

Step 1 is most of the work. For 250,000 uniform particles per rank and k=8, about an eighth of the leaves are open.
"""

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from ..arguments import Radii, at_least_normal
from ..data import RankIdx, get_num, get_pos, replace_num, zero_padding_if_derived
from ..jax_ext import Exact
from ..tree import TreeHierarchy, permute_particles
from ..tree.stage import (
    InputParticles,
    ParticlesWithGhosts,
    SortedParticles,
    Stage,
    prepare_stage,
    rows_in_equal_shares,
    rows_of_rank,
)
from ._arguments import SearchArguments, checked_number, drop_self, faults_of_number, mask_as_int32, rows_by_mask
from ._batches import sort_domain, without_layers
from ._result import origin_without_padding, radii, radii_over_ranks
from ._words import ABOUT_QUERIES, DISTANCES, MISSING_VALUES, Found, reduced, take

_Neighbours = tuple[jax.Array, jax.Array]


class _Prepared(NamedTuple):
    """A search with its particles in z-order.

    Attributes:
        args: The arguments.
        sources: All sources.
        targets: The sources that can be neighbours.
        order: ``(n,)`` int32, the row of each target among the sources. None means the same row.
        queries: The queries; the same object as ``targets`` if these are the queries, row by row.
        stage: The stage of targets and queries.
    """

    args: SearchArguments
    sources: SortedParticles
    targets: SortedParticles
    order: jax.Array | None
    queries: SortedParticles
    stage: Stage

    def drops_self(self) -> bool:
        """Return whether to find one more neighbour and then drop the query itself.

        If the queries are the targets, the kernel excludes the query itself.
        """
        return self.args.exclude_self and self.queries is not self.targets

    def route(self) -> Any:
        """Return the sorted range of queries whose results go back to their ranks. None if the results stay."""
        return None if self.args.in_z_order else self.queries.moved

    def of_targets(self, rows: jax.Array) -> jax.Array:
        """Return ``rows`` ``(n,)`` of the sources, in the rows of the targets."""
        return rows if self.order is None else take(rows, self.order)


class _Output(NamedTuple):
    """The rows of the results on one device.

    Attributes:
        queries: The queries in the order of the results.
        order: ``(q,)`` int32, the input row of each query. None means the same row.
        rows: ``(q,)`` int32, the output row of each z-ordered query. None means the same row.
    """

    queries: Any
    order: jax.Array | None
    rows: jax.Array | None


class _Numbers(NamedTuple):
    """The numbers of the sources over ranks, in the order of the results.

    Attributes:
        counts: ``(r,)`` int32, the number of sources on each rank.
        starts: ``(r,)`` int32, the number of the first source of each rank.
        origin: Rank and row of each z-ordered source.
    """

    counts: jax.Array
    starts: jax.Array
    origin: RankIdx


def entries_of(args: SearchArguments) -> list[Any]:
    """Return the entries for the words of ``args``."""
    search = _prepare(args)
    entries = _entries_over_ranks(search) if search.stage.is_distributed else _entries_on_one_device(search)
    return [entries(word) for word in args.words]


def _prepare(args: SearchArguments) -> _Prepared:
    """Check the particles and sort them. Over ranks, the search radii move with the queries."""
    part, num, radius_words, faults = args.part, get_num(args.part), None, []
    if comm.num_ranks() == 1:
        faults = faults_of_number(args)
    else:
        num = checked_number(args)
        part = replace_num(part, num)
        radius_words = None if args.limit.of_each is None else jnp.asarray(args.limit.of_each.words)
    marks = None if args.mask is None else mask_as_int32(args.mask)
    source_set = InputParticles(part, num, (radius_words if args.queries is None else None, marks), th=args.th)
    query_set = None
    if args.queries is not None:
        query_set = InputParticles(args.queries, get_num(args.queries), (radius_words, None), "the query positions")
    domains: Any = {"in_z_order": args.in_z_order, "sort_domain": sort_domain}
    stage = prepare_stage(source_set, query_set, args.box, args.cfg, "knn_ghosts", faults, **domains)
    sources, queries = stage.sources, stage.queries
    if marks is None:
        return _Prepared(args, sources, sources, None, queries, stage)
    order, num = rows_by_mask(sources.data[1], sources.num)
    targets = sources.select(order, num, args.cfg.tree, args.box, whole=stage.is_distributed)
    stage = Stage(targets, queries, args.box, args.cfg, "knn_ghosts")
    return _Prepared(args, sources, targets, order, queries, stage)


def _neighbours(
    search: _Prepared, limit: Radii, targets: kernels.Tree, ids: Any, rows: Any, **options: Any
) -> _Neighbours:
    """Search for neighbours.

    Args:
        search: The search.
        limit: Search radii, in output rows of the queries.
        targets: The targets, or targets and ghosts.
        ids: Number to return for each target. None means its row.
        rows: Output row of each query. None means the same row.
        options: Further arguments of `kernels.knn`.
    """
    args, drops_self = search.args, search.drops_self()
    # In a second search, the queries are among the targets.
    queries = None if search.queries is search.targets and "found" not in options else search.queries.tree()
    options |= {"limit": limit.words_or_none(), "others": args.exclude_self and not drops_self}
    return kernels.knn(targets, ids, queries, rows, args.k + drops_self, args.box, **options)


def _reduced(search: _Prepared, rad: jax.Array, idx: jax.Array, sources: SortedParticles, origin: RankIdx) -> Any:
    """Call ``reduce_func`` with neighbours, ``sources`` and queries in z-order."""
    queries = search.queries
    query_origin = origin_without_padding(queries.origin, queries.num)
    # The function may read the last row for a missing neighbour.
    both = [without_layers(sources.part), without_layers(queries.part)]
    part, query = zero_padding_if_derived(both, [sources.num, queries.num])
    neighbours = Found(rad, idx, part, {})
    assert search.args.reduce_func is not None
    return reduced(search.args.reduce_func, neighbours, origin, query, query_origin)


# One device


def _entries_on_one_device(search: _Prepared) -> Callable[[str], Any]:
    """Return the function of a word that returns its entry."""
    args, sources, queries = search.args, search.sources, search.queries
    output, ids, reductions = _output(search), None if args.in_z_order else sources.rows, None
    if args.reduce_func is None:
        # The kernel writes results directly to their final rows.
        rad, idx = _neighbours_on_one_device(search, output, ids)
    else:
        rad, idx = _neighbours_on_one_device(search, _Output(queries.part, queries.rows, None), None)
        reductions = _reduced(search, rad, idx, sources, sources.origin)
        idx = idx if ids is None else jnp.where(idx < 0, -1, take(ids, idx))
        if (rows := output.rows) is not None:
            rad, idx, reductions = jax.tree.map(
                lambda leaf: kernels.scatter_rows(jnp.asarray(leaf), rows), (rad, idx, reductions)
            )

    def query_rows() -> RankIdx:
        origin = rows_of_rank(queries.pos.shape[0])
        origin = origin if output.order is None else RankIdx(origin.rank, output.order)
        return origin_without_padding(origin, queries.num)

    entries = {
        "globalidx": lambda: idx,
        "rankidx": lambda: RankIdx(jnp.minimum(idx, 0), idx),
        "reduce": lambda: reductions,
        "query": lambda: without_layers(output.queries),
        "queryidx": query_rows,
    }
    source = sources.part if args.in_z_order else args.part
    return Found(rad, idx, without_layers(source), entries, args.limit.given()).entry


def _output(search: _Prepared) -> _Output:
    """Choose the order of the results."""
    args, sources, queries = search.args, search.sources, search.queries
    if not args.in_z_order:
        return _Output(args.searching, None, queries.rows)
    if args.queries is None:
        return _Output(queries.part, queries.rows, None)
    # Results are in the z-order of the sources. Queries outside the sources' box share the keys of its edge, so their
    # leaves would be long columns. The search therefore sorts them in a separate domain.
    order, _ = sources.domain_in(args.box).zsort(jnp.asarray(get_pos(args.queries)), queries.num)
    row = kernels.scatter_rows(jnp.arange(order.shape[0], dtype=jnp.int32), order)
    assert queries.rows is not None
    return _Output(permute_particles(args.queries, order), order, kernels.gather_rows(row, queries.rows))


def _neighbours_on_one_device(search: _Prepared, output: _Output, ids: jax.Array | None) -> _Neighbours:
    """Return radii and neighbours, with derivatives.

    Args:
        search: The search.
        output: The rows of the results.
        ids: Input row of each z-ordered source. None returns rows in z-order.
    """
    args, limit = search.args, search.args.limit
    if limit.of_each is not None and output.order is not None:
        limit = Radii(None, Exact(take(jnp.asarray(limit.of_each.words), output.order)))
    of_targets = search.order if ids is None else search.of_targets(ids)
    rad, idx = _neighbours(search, limit, search.targets.tree(), of_targets, output.rows)
    if search.drops_self():
        # Here, the number of a particle is the row of its results.
        rad, idx = drop_self(idx == jnp.arange(idx.shape[0], dtype=jnp.int32)[:, None], (rad, idx))
    source = search.sources.part if ids is None else args.part
    return radii(get_pos(output.queries), get_pos(source), args.box, rad, idx), idx


# Several ranks


def _entries_over_ranks(search: _Prepared) -> Callable[[str], Any]:
    """Return the function of a word that returns its entry."""
    args, queries = search.args, search.queries
    words = [word for word in args.words if word not in ABOUT_QUERIES]
    if set(words) <= {*DISTANCES, "globalidx"}:
        entries = _numbers_only(search, _number_sources(search))
    else:
        entries = _with_particles(search, _number_sources(search), words)
    query, origin, num = args.searching, rows_of_rank(queries.given_rows()), get_num(args.searching)
    if args.in_z_order and queries.moved is not None:
        query, origin, num = queries.part, queries.origin, queries.num
    entries |= {"query": without_layers(query), "queryidx": origin_without_padding(origin, num)}
    return entries.__getitem__


def _number_sources(search: _Prepared) -> _Numbers:
    args, sources, n = search.args, search.sources, search.sources.pos.shape[0]
    if not args.in_z_order or isinstance(args.th, TreeHierarchy):
        counts = comm.all_gather(sources.given_num())
        return _Numbers(counts, comm.starts_of(counts), sources.origin)
    counts = comm.all_gather(sources.num)
    if args.queries is None:
        return _Numbers(counts, comm.starts_of(counts), rows_of_rank(n))
    # The ranks may hold unequal numbers of sources, because sources and queries were cut at the same places. Results
    # have the rows of equal shares.
    origin, starts = rows_in_equal_shares(counts, n)
    return _Numbers(counts, starts, origin)


def _numbers_only(search: _Prepared, numbers: _Numbers) -> dict[str, Any]:
    """Return radii and numbers. The kernel writes both in the order of the send buffer."""
    args, moved = search.args, search.route()
    rank, row = map(search.of_targets, numbers.origin)
    ids = comm.of_rank(numbers.starts, rank) + row
    _, rad, idx = _search_with_ghosts(search, numbers, ids, None if moved is None else moved.merge)
    if moved is not None:
        rad, idx = moved.send_back((rad, idx), (jnp.inf, -1))
    if search.drops_self():
        number = numbers.starts[comm.get_rank_info()[0]] + jnp.arange(idx.shape[0], dtype=jnp.int32)
        rad, idx = drop_self(idx == number[:, None], (rad, idx))
    if moved is not None:
        sets, starts = (get_pos(args.searching), get_pos(args.part)), numbers.starts
    else:
        # The queries and sources where the sort has left them. The sort is differentiable.
        sets, starts = (search.queries.pos, search.sources.pos), comm.starts_of(numbers.counts)
    rad = radii_over_ranks(*sets, args.box, rad, idx, starts)
    return {"rad": rad, "drad": rad, "globalidx": idx}


def _with_particles(search: _Prepared, numbers: _Numbers, words: list[str]) -> dict[str, Any]:
    """Return entries that need the properties of neighbours. Gather these in z-order, while ghosts are present."""
    region, rad, idx = _search_with_ghosts(search, numbers, None, None)
    neighbours = RankIdx(*(jnp.where(idx < 0, -1, take(column, idx)) for column in region.data))
    if search.drops_self():
        rank, row = numbers.origin
        is_own = (neighbours.rank == rank[:, None]) & (neighbours.idx == row[:, None])
        rad, idx, neighbours = drop_self(is_own, (rad, idx, neighbours))
    rad = radii(search.queries.pos, region.pos, search.args.box, rad, idx)
    entries = {
        "globalidx": lambda: jnp.where(idx < 0, -1, numbers.starts[jnp.maximum(neighbours.rank, 0)] + neighbours.idx),
        "rankidx": lambda: neighbours,
        "reduce": lambda: _reduced(search, rad, idx, region, region.data),
    }
    entry = Found(rad, idx, without_layers(region.part), entries, search.args.limit.given()).entry
    answers = {word: entry(word) for word in words}
    return answers if search.route() is None else _send_back(search, answers)


def _search_with_ghosts(
    search: _Prepared, numbers: _Numbers, ids: jax.Array | None, rows: jax.Array | None
) -> tuple[ParticlesWithGhosts, jax.Array, jax.Array]:
    """Search the targets of this rank, bring the ghosts within reach, and search again.

    Args:
        search: The search.
        numbers: The numbers of the sources.
        ids: Number to return for each target. None returns rows among targets and ghosts.
        rows: Output row of each query. None means the same row.

    Returns:
        Targets and ghosts, with ``ids`` as data; without ``ids``, with all properties, and rank and row as data. Then
        radii and neighbours.
    """
    args, stage, limit, domain = search.args, search.stage, search.args.limit, search.sources.domain
    assert domain is not None
    if (words := search.queries.data[0]) is not None:
        limit = Radii(None, Exact(words if rows is None else kernels.scatter_rows(words, rows)))
    rad, idx = _neighbours(search, limit, search.targets.tree(), ids, rows, domain=domain.corners)
    reach = rad
    if limit.given():  # otherwise, a slice would be a copy
        reach = jnp.minimum(at_least_normal(rad[:, -1:]), limit.outermost(rad.shape[0], rad.dtype)[:, None])
    stage.exchange_boxes(numbers.counts, close=True)
    # A box that holds enough sources may hold the query itself.
    leaves, reach = stage.open_leaves(reach, args.k + args.exclude_self, rows)
    if ids is None:
        region = stage.with_ghosts(reach, RankIdx(*map(search.of_targets, numbers.origin)), whole=True)
        idx, region_ids = jnp.where(idx < 0, -1, idx + region.route().start), None
    else:
        region = stage.with_ghosts(reach, ids, filled=False)
        region_ids = region.data
    own_offset = region.route().start if search.queries is search.targets else -1
    options = {"own_offset": own_offset, "open_leaves": leaves, "domain": domain.corners, "found": (rad, idx)}
    return region, *_neighbours(search, limit, region.tree(), region_ids, rows, **options)


def _send_back(search: _Prepared, answers: dict[str, Any]) -> dict[str, Any]:
    """Send arrays with one row per query back to the ranks of the queries. Other arrays stay."""
    fill = jax.tree.map(lambda _: 0, answers) | {
        word: MISSING_VALUES[word] for word in MISSING_VALUES if word in answers
    }
    leaves, structure = jax.tree.flatten(answers)
    fills, n = jax.tree.leaves(fill), search.queries.pos.shape[0]
    rows = [i for i, leaf in enumerate(leaves) if np.ndim(leaf) > 0 and leaf.shape[0] == n]
    sent = search.stage.send_back([leaves[i] for i in rows], fill=[fills[i] for i in rows])
    returned = dict(zip(rows, sent, strict=True))
    return jax.tree.unflatten(structure, [returned.get(i, leaf) for i, leaf in enumerate(leaves)])
