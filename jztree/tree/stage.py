"""The stage of a search: its particles in z-order, on one device or over the ranks of a mesh.

1. `set_stage` checks the particles and sorts them in z-order. Over ranks, each rank gets a range of the z-order.
2. The search calls its kernel with the sources and the queries of this rank.
3. Over ranks, queries may reach particles of other ranks. `Stage.exchange_boxes` exchanges boxes that cover the
   particles of each rank. `Stage.open_leaves` finds the leaves of queries that reach these boxes. `Stage.with_ghosts`
   brings the particles within reach, the ghosts. The search calls its kernel again, with the rank's own particles and
   the ghosts.
4. `Stage.send_back` returns answers to the rank and the row of each query.

On one device, `set_stage` sorts, `Stage.with_ghosts` returns the sources, and `Stage.send_back` reorders rows. So the
code of a search is the same for one and for many devices.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.capacity import Capacity
from ..arguments import check_box, check_particles, check_queries
from ..config import RadiusConfig, without_masses
from ..data import replace_num, split_rows
from ..jax_ext import Exact
from ..particles import Array, Index, Particles, attach_columns, check_num
from . import build_checked, build_in_domain, faults_of_hierarchy, sort_in_domain
from ._index import faults_of_index, index_of, opened, sorted_by_index
from ._input import InputParticles
from ._over_ranks import (
    SortedRange,
    check_data,
    rows_in_equal_shares,
    rows_of_rank,
    sort_equally,
    sort_into_ranges,
    sort_over_ranks,
)
from ._particles import ParticlesWithGhosts, SortedParticles
from ._zorder import Domain, corners_of, domain_of
from .ghosts import Blocks, boxes_of, check_reach, close_boxes, exchange_ghosts, gather_boxes, ghost_capacity, reach_of

__all__ = [
    "InputParticles",
    "ParticlesWithGhosts",
    "SortedParticles",
    "Stage",
    "index_of",
    "opened",
    "prepare_stage",
    "rows_in_equal_shares",
    "rows_of_rank",
    "set_stage",
    "starts_of_ranks",
]

_BAD_REACH = "reach has the shape %s; it must be one radius, or one per box of query_boxes, %s."
_TOO_MANY = "rows have 32 bits and support less than 2**31 particles over all devices, but there are more; use fewer."


class Stage:
    """Sources and queries of a search; see `jztree.tree.stage`.

    Attributes:
        sources: Sources of this rank.
        queries: Queries of this rank; the same object as ``sources`` if the sources are the queries.
        box: Periodic box.
        is_distributed: Whether there are several ranks.
        query_boxes: ``(particle_splits, lower, upper)`` of boxes that closely cover the queries; see `exchange_boxes`.
    """

    def __init__(self, sources: SortedParticles, queries: SortedParticles, box: Exact, cfg: Any, option: str) -> None:
        """Initialise the stage.

        Args:
            sources: Sources of this rank.
            queries: Queries of this rank.
            box: Periodic box.
            cfg: Options with ``tree`` and ``ghost_rows``.
            option: Name of the capacity for sources and ghosts.
        """
        self.sources, self.queries, self.box = sources, queries, box
        self.is_distributed = comm.num_ranks() > 1
        self._cfg, self._option = cfg, option
        self._has_boxes = False
        self._rank_boxes: Blocks | None = None
        self._close_boxes: Blocks | None = None

    def compute_boxes(self) -> None:
        """Compute boxes that closely cover the particles of this rank, without communication, unless they are known."""
        if self._has_boxes:
            return
        self._has_boxes = True
        sources, queries = self.sources, self.queries
        assert sources.domain is not None
        assert queries.domain is not None
        self._source_blocks = sources.blocks()
        self._source_boxes = boxes_of(sources.pos, sources.num, sources.domain, self._source_blocks)
        self.query_boxes, self._query_blocks = self._source_boxes, self._source_blocks
        if queries is not sources:
            self._query_blocks = queries.blocks()
            self.query_boxes = boxes_of(queries.pos, queries.num, queries.domain, self._query_blocks)

    def exchange_boxes(self, *known: Any, close: bool = False) -> jax.Array:
        """Exchange boxes that cover the sources of each rank.

        Args:
            known: Values to compute before this collective.
            close: Whether to exchange closer boxes with the two adjacent ranks, for searches that end at the nearest
                few particles.

        Returns:
            A value that depends on this collective; see `jztree.comm.after`.
        """
        self.compute_boxes()
        self._rank_boxes = self._gather_boxes(*known)
        self._close_boxes = close_boxes(self._source_boxes, self._rank_boxes) if close else None
        return self._rank_boxes[2]

    def _gather_boxes(self, *known: Any) -> Blocks:
        sources = self.sources
        assert sources.domain is not None
        return gather_boxes(
            sources.pos, sources.num, sources.domain, self._source_blocks, self._source_boxes, self.queries.num, *known
        )

    def open_leaves(
        self, reach: jax.Array, enough: int | None = None, rows: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Find the leaves of queries that may reach particles of other ranks. Call `exchange_boxes` first.

        Args:
            reach: Search radii ``(q, m)``; the last column counts.
            enough: Number of sources that bounds an infinite radius: the search reaches boxes with this number.
            rows: Row of ``reach`` of each query, ``(q,)`` int32. None means the same row.

        Returns:
            ``(leaves,)`` int32, 1 for open leaves; and the search radius of each box in ``query_boxes``.

        Raises:
            RuntimeError: If `exchange_boxes` was not called.
        """
        if self._rank_boxes is None:
            raise RuntimeError("open_leaves needs the boxes of all ranks; call exchange_boxes before it.")
        rank, groups = comm.get_rank_info()[0], self._query_blocks
        return kernels.open_leaves(
            groups, self.query_boxes, reach, rows, self._rank_boxes, self._close_boxes, rank, self.box, enough
        )

    def reaches_others(self, boxes: Blocks, reach: jax.Array) -> jax.Array:
        """Find boxes within reach of particles of other ranks. Call `exchange_boxes` first.

        Args:
            boxes: ``(count, lower, upper)``, ``(b,)`` int32 and ``(b, d)``. Boxes without particles come last.
            reach: ``(b,)``, in the dtype of the positions.

        Returns:
            ``(b,)`` int32, 1 if a particle of another rank may be within reach of the box.
        """
        (count, lower, upper), rank = boxes, comm.get_rank_info()[0]
        assert self._rank_boxes is not None
        splits = jnp.pad(jnp.cumsum(count > 0, dtype=jnp.int32), (1, 0))
        whole = splits[:: splits.shape[0] - 1], jnp.min(lower, axis=0)[None], jnp.max(upper, axis=0)[None]
        leaves = splits, lower, upper
        return kernels.open_leaves(leaves, whole, reach[:, None], None, self._rank_boxes, None, rank, self.box, None)[0]

    def with_ghosts(
        self, reach: jax.Array, data: Any = None, *, whole: bool = False, lower_only: bool = False, filled: bool = True
    ) -> ParticlesWithGhosts:
        """Bring the ghosts: the sources of other ranks in reach of this rank's queries.

        Args:
            reach: Search radius of each box in ``query_boxes``, ``(b,)``, or one radius for every box. The result may
                include ghosts that are slightly farther away. A traced radius that is negative or NaN brings no ghosts.
            data: Pytree of arrays ``(n, ...)`` of the sources in z-order, to bring with the positions.
            whole: Whether to bring all properties of the sources instead of their positions alone.
            lower_only: Whether to send ghosts to lower ranks only.
            filled: Whether rows after the last ghost are 0; see `jztree.comm.exchange`.

        Returns:
            Own sources and ghosts in z-order. On one device, the sources.

        Raises:
            TypeError: If ``reach`` is not a real number or an array.
            ValueError: If a known radius is negative or NaN, or ``reach`` has the wrong shape.
            jztree.CapacityError: On every rank, if the ghosts of any rank do not fit.
        """
        sources = self.sources
        if jnp.ndim(reach) == 0:
            check_reach(reach)
        if not self.is_distributed:
            return ParticlesWithGhosts(sources.part, sources.num, sources.domain, sources.th, data, sources.rows)
        assert sources.domain is not None
        self.compute_boxes()
        splits, lower, upper = self.query_boxes
        if jnp.ndim(reach) == 0:
            reach = reach_of(reach, sources.pos.dtype)
            reach = jnp.where(jnp.diff(splits) > 0, reach, jnp.asarray(-1, reach.dtype))
            # The first collective after the exchanges waits for both.
            lower, upper, reach = comm.after((lower, upper, reach), sources.num, self.queries.num)
        if jnp.shape(reach) != lower.shape[:1]:
            raise ValueError(_BAD_REACH % (jnp.shape(reach), lower.shape[:1]))
        columns, rebuild = split_rows(sources.part) if whole else ([sources.pos], lambda columns: columns[0])
        boxes = self._rank_boxes
        known = self._gather_boxes if boxes is None else lambda: boxes
        capacity = ghost_capacity(self._option, self._cfg.ghost_rows, sources.pos.shape[0])
        requests = (lower, upper, reach)
        rows = columns, data
        found = exchange_ghosts(
            rows, sources.pos, sources.num, self._source_blocks, known, requests, self.box, capacity, lower_only, filled
        )
        columns, data = found.rows
        part, num = replace_num(rebuild(columns), found.num), found.num
        th = build_in_domain(part, num, sources.domain, self._cfg.tree)
        return ParticlesWithGhosts(part, num, sources.domain, th, data, ghost_route=found)

    def send_back(self, answers: Any, fill: Any = None) -> Any:
        """Return answers at the rank and row of each query.

        Args:
            answers: Pytree of arrays ``(q, ...)``, one row per query of this rank in z-order.
            fill: Value of rows without a query, for each array. With None, these rows are 0 over ranks; on one device,
                they are the rows of ``answers``.

        Returns:
            Pytree like ``answers``, with a row for each row of the given queries.

        Raises:
            TypeError: If an array does not hold numbers.
            ValueError: If an array does not have one row per query.
        """
        moved, rows, n = self.queries.moved, self.queries.rows, self.queries.pos.shape[0]
        check_data(answers, n, "answers", "query")
        answers = jax.tree.map(jnp.asarray, answers)
        if not self.is_distributed and fill is not None:
            used = jnp.arange(n, dtype=jnp.int32) < self.queries.num
            answers = jax.tree.map(lambda leaf, value: _filled(leaf, used, value), answers, fill)
        if moved is None:
            return answers if rows is None else jax.tree.map(lambda leaf: kernels.scatter_rows(leaf, rows), answers)
        merge = moved.merge
        answers = jax.tree.map(lambda leaf: kernels.scatter_rows(leaf, merge), answers)
        return moved.send_back(answers, fill)


def _filled(rows: jax.Array, used: jax.Array, value: Any) -> jax.Array:
    """Return ``rows`` with another value in rows that are not ``used``."""
    return jnp.where(used.reshape(-1, *[1] * (rows.ndim - 1)), rows, jnp.asarray(value, rows.dtype))


def set_stage(
    part: Particles | Index | Array,
    part_query: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    cfg: RadiusConfig | None = None,
    data: Any = None,
) -> Stage:
    """Prepare your search: sort particles and queries, and build their hierarchies.

    If a particle class computes its positions, the stage computes them once and moves them with the rows. The particles
    of the stage are then wrapped in a class with the same attributes.

    Args:
        part: Sources: a particle class with ``pos`` ``(n, d)``, float32 or float64; an array of positions; or a
            `jztree.Index` of either, which is not sorted again.
        part_query: Queries of the same dtype. None means the sources.
        boxsize: Periodic length, or one per dimension. 0 or None means open. An index has its own box.
        cfg: Options. ``cfg.ghost_rows`` is the capacity for ghosts.
        data: Pytree of arrays ``(n, ...)`` to sort with the sources.

    Returns:
        The stage. Over ranks, call this function on all ranks together, in a function that is mapped over devices.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        RuntimeError: At run time, on every rank, if a position is NaN or infinite.
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part)
    check_data(data, pos.shape[0])
    carried = attach_columns(part, (), pos)
    sources, queries = InputParticles(carried, check_num(part), jax.tree.map(jnp.asarray, data), th=index), None
    if part_query is not None:
        carried = attach_columns(part_query, (), check_queries(part_query, pos))
        queries = InputParticles(carried, check_num(part_query), name="the query positions")
    return prepare_stage(sources, queries, check_box(boxsize, pos.shape[1]), cfg, "ghosts")


def prepare_stage(
    sources: InputParticles,
    queries: InputParticles | None,
    box: Exact,
    cfg: Any,
    option: str,
    faults: Sequence[comm.Fault] = (),
    *,
    in_z_order: bool = False,
    hierarchy: bool = True,
    sort_domain: Callable[[Domain, Any], Domain] = lambda domain, part: domain,
) -> Stage:
    """Check particles, sort them in z-order, and build their hierarchies.

    One check covers all faults, because the host waits for a GPU at each check.

    Args:
        sources: Particles to search.
        queries: Particles that search. None means the sources.
        box: Periodic box.
        cfg: Options with ``tree`` and ``ghost_rows``.
        option: Name of the capacity for sources and ghosts.
        faults: Possible faults of other arguments, to report together with faults of the particles.
        in_z_order: Whether, over ranks, to sort the queries in the domain of the sources, because their order is part
            of the result.
        hierarchy: Whether the search needs hierarchies over ranks.
        sort_domain: Function of a domain and its particles that returns the domain of the sort on one device.

    Returns:
        The stage.

    Raises:
        RuntimeError: At run time, on every rank, if a position is NaN or infinite, a number is out of range, the
            particles do not belong to their ``th``, or another fault occurs.
    """
    if comm.num_ranks() == 1:
        both = _on_one_device(sources, queries, box, cfg, faults, sort_domain)
    elif queries is None:
        both = (_one_set_over_ranks(sources, box, cfg, faults, hierarchy),) * 2
    else:
        both = _two_sets_over_ranks(sources, queries, box, cfg, faults, in_z_order, hierarchy)
    return Stage(*both, box, cfg, option)


def _on_one_device(
    given: InputParticles,
    given_queries: InputParticles | None,
    box: Exact,
    cfg: Any,
    faults: Sequence[comm.Fault],
    sort_domain: Any,
) -> tuple[SortedParticles, SortedParticles]:
    def sort(one: InputParticles, num: jax.Array, corners: Any) -> SortedParticles:
        if isinstance(one.th, Index):
            return sorted_by_index(one, num, cfg.tree)
        if one.th is not None:
            return SortedParticles(one.part, num, None, one.th, one.data)
        lower, upper = corners
        domain = sort_domain(Domain(lower, upper, box, corners), one.part)
        partz, rows, th = sort_in_domain(one.part, num, domain, cfg.tree)
        data = jax.tree.map(lambda column: kernels.gather_rows(column, rows), one.data)
        return SortedParticles(partz, num, domain, th, data, rows)

    corners, first = _corners_and_faults(given, box)
    corners_of_queries, later = _corners_and_faults(given_queries, box) if given_queries is not None else (None, [])
    num = comm.check_all(kernels.as_num(given.num), [*first, *faults, *later])
    sources = sort(given, num, corners)
    if given_queries is None:
        return sources, sources
    return sources, sort(given_queries, comm.after(kernels.as_num(given_queries.num), num), corners_of_queries)


def _corners_and_faults(given: InputParticles, box: Exact) -> tuple[Any, list[comm.Fault]]:
    """Return the corners of the bounding box (None with ``th``), and the possible faults at run time."""
    if isinstance(given.th, Index):
        return None, faults_of_index(given)
    if given.th is not None:
        return None, faults_of_hierarchy(given.pos, given.num, given.th, box)
    return corners_of(jnp.asarray(given.pos), given.num, given.name)


def _one_set_over_ranks(
    given: InputParticles, box: Exact, cfg: Any, faults: Sequence[comm.Fault], hierarchy: bool
) -> SortedParticles:
    """Sort the particles on all ranks in z-order, unless they are already in order."""
    if isinstance(given.th, Index):
        num = comm.check_all(given.th.sources.num, [*faults_of_index(given), *faults])
        return sorted_by_index(given, num, cfg.tree)
    domain, (num,) = domain_of([given.pos], [given.num], [given.name], box, faults)
    if given.th is None:
        return _arrived(sort_equally(replace(given, num=num), domain), domain, cfg, hierarchy)
    th, num = build_checked(given.part, num, domain, cfg.tree)
    return SortedParticles(given.part, num, domain, th if hierarchy else None, given.data)


def _two_sets_over_ranks(
    given: InputParticles,
    given_queries: InputParticles,
    box: Exact,
    cfg: Any,
    faults: Sequence[comm.Fault],
    in_z_order: bool,
    hierarchy: bool,
) -> tuple[SortedParticles, SortedParticles]:
    """Sort sources and queries on all ranks in z-order, and cut both at the same places."""
    if isinstance(given.th, Index):
        return _with_index(given, given_queries, box, cfg, faults, in_z_order, hierarchy)
    if isinstance(given_queries.th, Index):
        # Ghosts continue the z-order of the sources, so all ranks sort the sources in one domain.
        queries, sources = _with_index(given_queries, given, box, cfg, faults, True, hierarchy)
        return sources, queries
    both = [given, given_queries]
    pos, nums, names = ([getattr(one, field) for one in both] for field in ("pos", "num", "name"))
    domain, nums = domain_of(pos, nums, names, box, faults, first_type_only=True)
    # Ranges hold equal numbers of rows, summed over both, so that queries crowded in a corner do not crowd on one rank.
    # Sort the sources even if they are in order already, because both must be cut at the same places.
    capacities = [Capacity(sum(one.pos.shape[0] for one in both), "sort")] * 2
    types = [replace(one, num=num) for one, num in zip(both, nums, strict=True)]
    on_ranks = [domain, _domain_of_queries(domain, in_z_order)]
    moved = sort_over_ranks(types, domain, capacities, on_ranks=on_ranks)
    sources, queries = (_arrived(*one, cfg, hierarchy) for one in zip(moved, on_ranks, strict=True))
    return sources, queries


def _with_index(
    indexed: InputParticles,
    given: InputParticles,
    box: Exact,
    cfg: Any,
    faults: Sequence[comm.Fault],
    in_z_order: bool,
    hierarchy: bool,
) -> tuple[SortedParticles, SortedParticles]:
    """Return the particles of an index, and other particles, sorted in z-order and cut at the ranges of the index."""
    index = indexed.th
    assert isinstance(index, Index)
    types = [given.pos], [given.num], [given.name]
    faults = [*faults_of_index(indexed), *faults]
    domain, (num,) = domain_of(*types, box, faults, first_type_only=True, first_type=index.sources.domain)
    in_order = sorted_by_index(indexed, comm.after(index.sources.num, num), cfg.tree)
    on_rank = _domain_of_queries(domain, in_z_order)
    moved = sort_into_ranges(replace(given, num=num), in_order.pos, in_order.num, domain, on_rank)
    return replace(in_order, domain=domain), _arrived(moved, on_rank, cfg, hierarchy)


def _domain_of_queries(domain: Domain, in_z_order: bool) -> Domain:
    """Return the domain in which a rank sorts its queries.

    Queries outside the sources' box share the keys of its edge, so their leaves would be long columns. If their order
    is not part of the result, the domain separates them.
    """
    return domain if in_z_order else domain.whole()


def _arrived(moved: SortedRange, domain: Domain, cfg: Any, hierarchy: bool) -> SortedParticles:
    th = build_in_domain(moved.part, moved.num, domain, cfg.tree) if hierarchy else None
    return SortedParticles(moved.part, moved.num, domain, th, moved.data, None, moved)


def starts_of_ranks(num: Any) -> jax.Array:
    """Return the number of each rank's first particle, counted over all ranks, ``(r,)`` int32.

    Args:
        num: Number of particles of this rank.

    Raises:
        RuntimeError: At run time, on every rank, if there are 2**31 particles or more on all ranks.
    """
    given = kernels.as_num(num)
    many = comm.check(0, comm.wide_sum(given).exceeds_int32(), [], _TOO_MANY)
    return comm.starts_of(comm.all_gather(comm.after(given, many)))
