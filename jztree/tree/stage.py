"""The stage of a search: its particles in z-order, on one device or over the ranks of a mesh.

1. `set_stage` checks the particles and sorts them in z-order. Over ranks, each rank gets a range of the z-order.
2. The search calls its kernel with the sources and the queries of this rank.
3. Over ranks, the queries may reach particles of other ranks: `Stage.meet` exchanges boxes that cover the particles of
   each rank, `Stage.open` finds the leaves of queries that reach these boxes, and `Stage.around` brings the particles
   within reach, the ghosts. The search calls its kernel again, with the rank's own particles and the ghosts.
4. `Stage.home` returns answers to the rank and the row of each query.

On one device, `set_stage` sorts, `Stage.around` returns the sources, and `Stage.home` reorders rows. A search is
therefore written once for one and for many devices.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels, stats
from .._transform.capacity import Room
from ..arguments import check_box, check_particles, check_queries
from ..config import RadiusConfig, checked_config, without_masses
from ..data import replace_num, split_rows
from ..jax_ext import Exact
from ..particles import check_num
from . import (
    build_checked,
    build_in_domain,
    sort_in_domain,
)
from ._cast import Cast, Given, Near
from ._over_ranks import Moved, Movers, check_data, rows_in_equal_shares, rows_of_rank, sort_equally, sort_over_ranks
from ._zorder import Domain, domain_of
from .ghosts import Blocks, boxes_of, close_boxes, ghost_room, surroundings, tell_all

__all__ = [
    "Cast",
    "Given",
    "Near",
    "Stage",
    "rows_in_equal_shares",
    "rows_of_rank",
    "set_stage",
    "stage_of",
    "starts_of_ranks",
]

_TOO_MANY = "rows have 32 bits and support less than 2**31 particles over all devices, but there are more; use fewer."


class Stage:
    """Sources and queries of a search; see the module.

    Attributes:
        sources: Sources of this rank.
        queries: Queries of this rank; the same object as ``sources`` if the sources are the queries.
        box: Periodic box.
        is_wide: Whether there are several ranks.
        reaching: ``(particle_splits, lower, upper)`` of boxes that closely cover the queries; see `meet`.
    """

    def __init__(self, sources: Cast, queries: Cast, box: Exact, cfg: Any, option: str) -> None:
        """Initialise the stage.

        Args:
            sources: Sources of this rank.
            queries: Queries of this rank.
            box: Periodic box.
            cfg: Options with ``tree`` and ``ghost_rows``.
            option: Name of the capacity for sources and ghosts.
        """
        self.sources, self.queries, self.box = sources, queries, box
        self.is_wide = comm.num_ranks() > 1
        self._cfg, self._option = cfg, option
        self._known: Blocks | None = None
        self._close: Blocks | None = None

    def cover(self) -> None:
        """Compute boxes that closely cover the particles of this rank, without communication."""
        sources, queries = self.sources, self.queries
        assert sources.domain is not None
        assert queries.domain is not None
        self._blocks = sources.blocks()
        self._covering = boxes_of(sources.pos, sources.num, sources.domain, self._blocks)
        self.reaching, self._groups = self._covering, self._blocks
        if queries is not sources:
            self._groups = queries.blocks()
            self.reaching = boxes_of(queries.pos, queries.num, queries.domain, self._groups)

    def meet(self, *known: Any, close: bool = False) -> jax.Array:
        """Exchange boxes that cover the sources of each rank.

        Args:
            known: Values to compute before this collective.
            close: Whether to exchange closer boxes with the two adjacent ranks, for searches that end at the nearest
                few particles.

        Returns:
            A value that depends on this collective; see `jztree.comm.after`.
        """
        self.cover()
        self._known = self._exchanged_boxes(*known)
        self._close = close_boxes(self._covering, self._known) if close else None
        return self._known[2]

    def _exchanged_boxes(self, *known: Any) -> Blocks:
        sources = self.sources
        assert sources.domain is not None
        return tell_all(
            sources.pos, sources.num, sources.domain, self._blocks, self._covering, self.queries.num, *known
        )

    def open(
        self, reach: jax.Array, enough: int | None = None, rows: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Find the leaves of queries that may reach particles of other ranks. Call `meet` first.

        Args:
            reach: Search radii ``(q, m)``; the last column counts.
            enough: Number of sources that bounds an infinite radius: boxes that hold so many are in reach.
            rows: Row of ``reach`` of each query, ``(q,)`` int32. None: the same row.

        Returns:
            ``(leaves,)`` int32, 1 for open leaves; and the search radius of each of the boxes ``reaching``.
        """
        assert self._known is not None
        rank, groups = comm.get_rank_info()[0], self._groups
        return kernels.open_leaves(groups, self.reaching, reach, rows, self._known, self._close, rank, self.box, enough)

    def around(
        self,
        reach: jax.Array,
        data: Any = None,
        *,
        whole: bool = False,
        lower_only: bool = False,
        filled: bool = True,
    ) -> "Near":
        """Bring the ghosts: the sources of other ranks in reach of this rank's queries.

        Args:
            reach: Search radius of each of the boxes ``reaching``, ``(b,)``, or one radius for all of them. Ghosts
                slightly farther away may come too.
            data: Pytree of arrays ``(n, ...)`` of the sources in z-order, which come with the positions.
            whole: Bring all properties of the sources instead of their positions alone.
            lower_only: Send ghosts to lower ranks only.
            filled: Whether rows after the last ghost are 0; see `jztree.comm.exchange`.

        Returns:
            Own sources and ghosts in z-order. On one device, the sources.

        Raises:
            jztree.CapacityError: If the ghosts of any rank do not fit, on every rank.
        """
        sources = self.sources
        if not self.is_wide:
            return Near(sources.part, sources.num, sources.domain, sources.th, data, sources.rows)
        assert sources.domain is not None
        if self._known is None:
            self.cover()
        splits, lower, upper = self.reaching
        if jnp.ndim(reach) == 0:
            reach = jnp.asarray(reach, sources.pos.dtype)
            reach = jnp.where(jnp.diff(splits) > 0, reach, jnp.asarray(-1, reach.dtype))
            # The first collective after the exchanges waits for all of them.
            lower, upper, reach = comm.after((lower, upper, reach), sources.num, self.queries.num)
        columns, rebuild = split_rows(sources.part) if whole else ([sources.pos], lambda columns: columns[0])
        known = self._exchanged_boxes if self._known is None else functools.partial(lambda known: known, self._known)
        place = ghost_room(self._option, self._cfg.ghost_rows, sources.pos.shape[0])
        wanted = (lower, upper, reach)
        rows = columns, data
        brought = surroundings(
            rows, sources.pos, sources.num, self._blocks, known, wanted, self.box, place, lower_only, filled
        )
        columns, data = brought.rows
        part, num = replace_num(rebuild(columns), brought.num), brought.num
        th = build_in_domain(part, num, sources.domain, self._cfg.tree)
        return Near(part, num, sources.domain, th, data, brought=brought)

    def home(self, answers: Any, fill: Any = None) -> Any:
        """Return answers at the rank and row of each query.

        Args:
            answers: Pytree of arrays ``(q, ...)``, one row per query of this rank in z-order.
            fill: Value of rows without a query, for each array.
        """
        moved, rows = self.queries.moved, self.queries.rows
        if moved is None:
            return answers if rows is None else jax.tree.map(lambda leaf: kernels.scatter_rows(leaf, rows), answers)
        merge = moved.merge
        answers = jax.tree.map(lambda leaf: kernels.scatter_rows(leaf, merge), answers)
        return comm.send_back(answers, moved.route, fill=fill, name="results")

    def home_if_moved(self, answers: Any, fill: Any = None) -> Any:
        """Return answers at the rank and row of each query, without sending them if no query of any rank has moved.

        Args:
            answers: Pytree of arrays ``(q, ...)``, in the order ``queries.moved.merge``.
            fill: See `home`.
        """
        moved = self.queries.moved
        assert moved is not None

        def back(answers: Any) -> Any:
            return comm.send_back(answers, moved.route, fill=fill, name="results")

        if moved.stayed is None:
            return back(answers)
        stats.record("rows.results", jnp.int32(0))
        # Use a loop of at most one step, whose state stays in place: a conditional would copy its result.
        state = jax.tree.map(comm.vary, (moved.stayed, answers))
        return jax.lax.while_loop(lambda state: ~state[0], lambda state: (~state[0], back(state[1])), state)[1]


def set_stage(
    part: Any, part_query: Any = None, boxsize: Any = None, cfg: RadiusConfig | None = None, data: Any = None
) -> Stage:
    """Prepare a search of your own: sort particles and queries, and build their hierarchies.

    Args:
        part: Sources: a particle class with ``pos`` ``(n, d)``, float32 or float64, or an array of positions.
        part_query: Queries of the same dtype. None: the sources.
        boxsize: Periodic length, or one per dimension. 0 or None means open.
        cfg: Options. ``cfg.ghost_rows`` is the capacity for ghosts.
        data: Pytree of arrays ``(n, ...)`` to sort along with the sources.

    Returns:
        The stage. Over ranks, call this function on all ranks together, in a function that is mapped over devices.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        RuntimeError: At run time, on every rank, if a position is NaN or infinite.
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    pos = check_particles(part)
    check_data(data, pos.shape[0])
    sources, queries = Given(part, check_num(part), data), None
    if part_query is not None:
        check_queries(part_query, pos)
        queries = Given(part_query, check_num(part_query), name="the query positions")
    return stage_of(sources, queries, check_box(boxsize, pos.shape[1]), cfg, "ghosts")


def stage_of(
    sources: Given,
    queries: Given | None,
    box: Exact,
    cfg: Any,
    option: str,
    faults: Sequence[comm.Fault] = (),
    *,
    in_z_order: bool = False,
    hierarchy: bool = True,
    arranged: Callable[[Domain, Any], Domain] = lambda domain, part: domain,
) -> Stage:
    """Check particles, sort them in z-order, and build their hierarchies.

    One check covers all faults, because the host waits for a GPU at each check.

    Args:
        sources: Particles to search.
        queries: Particles that search. None: the sources.
        box: Periodic box.
        cfg: Options with ``tree`` and ``ghost_rows``.
        option: Name of the capacity for sources and ghosts.
        faults: Possible faults of other arguments, to be reported with those of the particles.
        in_z_order: Over ranks, sort the queries like the sources, because their order is part of the result.
        hierarchy: Whether the search needs hierarchies over ranks.
        arranged: On one device, function of a domain and its particles that returns the domain to sort them in.

    Raises:
        RuntimeError: At run time, on every rank, if a position is NaN or infinite, a number is out of range, the
            particles do not belong to their ``th``, or another fault occurs.
    """
    if comm.num_ranks() > 1:
        both = _cut_together(sources, queries, box, cfg, faults, in_z_order, hierarchy)
    else:
        both = _on_one_device(sources, queries, box, cfg, faults, arranged)
    return Stage(*both, box, cfg, option)


def _on_one_device(
    given: Given, given_queries: Given | None, box: Exact, cfg: Any, faults: Sequence[comm.Fault], arranged: Any
) -> tuple[Cast, Cast]:
    def cast(one: Given, num: jax.Array, corners: Any) -> Cast:
        if one.th is not None:
            return Cast(one.part, num, None, one.th, one.data)
        lower, upper = corners
        domain = arranged(Domain(lower, upper, box, corners), one.part)
        built = sort_in_domain(one.part, num, domain, cfg.tree)
        data = jax.tree.map(lambda column: kernels.gather_rows(column, built.rows), one.data)
        return Cast(built.part, num, domain, built.th, data, built.rows)

    corners, first = given.inspected(box)
    corners_of_queries, later = given_queries.inspected(box) if given_queries is not None else (None, [])
    num = comm.check_all(kernels.as_num(given.num), [*first, *faults, *later])
    sources = cast(given, num, corners)
    if given_queries is None:
        return sources, sources
    return sources, cast(given_queries, comm.after(kernels.as_num(given_queries.num), num), corners_of_queries)


def _cut_together(
    given: Given,
    given_queries: Given | None,
    box: Exact,
    cfg: Any,
    faults: Sequence[comm.Fault],
    in_z_order: bool,
    hierarchy: bool,
) -> tuple[Cast, Cast]:
    """Sort sources and queries of all ranks in z-order, and cut them into ranges together."""

    def arrived(moved: Moved, domain: Domain) -> Cast:
        th = build_in_domain(moved.part, moved.num, domain, cfg.tree) if hierarchy else None
        return Cast(moved.part, moved.num, domain, th, moved.data, None, moved)

    if given_queries is None:
        domain, (num,) = domain_of([given.pos], [given.num], [given.name], box, faults)
        if given.th is not None:
            th, num = build_checked(given.part, num, domain, cfg.tree)
            own = Cast(given.part, num, domain, th if hierarchy else None, given.data)
        else:
            own = arrived(sort_equally(Movers(given.part, given.data, num, given.named), domain), domain)
        return own, own
    both = [given, given_queries]
    domain, nums = domain_of(
        [one.pos for one in both], [one.num for one in both], [one.name for one in both], box, faults, of_first=True
    )
    # Ranges hold equal numbers of both together, so that queries crowded in a corner do not crowd on one rank. Sources
    # are sorted even if they are in order already, because both must be cut together.
    rooms = [Room(given.pos.shape[0] + given_queries.pos.shape[0], "sort")] * 2
    movers = [Movers(one.part, one.data, num, one.named) for one, num in zip(both, nums, strict=True)]
    # Queries outside the sources' box share the keys of its edge, so their leaves would be long columns. If their order
    # is not part of the result, sort them in a domain that separates them.
    on_ranks = [domain, domain if in_z_order else domain.whole()]
    moved = sort_over_ranks(movers, domain, rooms, on_ranks=on_ranks)
    sources, queries = (arrived(*one) for one in zip(moved, on_ranks, strict=True))
    return sources, queries


def starts_of_ranks(num: Any) -> jax.Array:
    """Return the number of each rank's first particle among those of all ranks, ``(r,)`` int32.

    Args:
        num: Number of particles of this rank.

    Raises:
        RuntimeError: At run time, on every rank, if there are 2**31 particles or more on all ranks.
    """
    given = kernels.as_num(num)
    many = comm.check(0, comm.wide_sum(given).exceeds_int32(), [], _TOO_MANY)
    return comm.starts_of(comm.all_gather(comm.after(given, many)))
