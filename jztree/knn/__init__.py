"""Exact k nearest neighbours.

Sources are sorted in z-order and get a plane hierarchy (`jztree.tree`). Queries that are neighbours in z-order search
it together, nearest nodes first, so the cost is O(n log n) whatever the distribution, and nothing is stored between.
Results are written straight to their rows. Of sources at the same distance, the first in the z-order of the sources
(`jztree.tree.zsort`) comes first, wherever the queries are and on any number of devices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from jax.sharding import PartitionSpec as P

from .. import comm
from .._checks import check_box, check_particles, check_queries, known_integer
from .._particles import check_num
from .._radii import SPEC, Radii, as_limit, exact_limit
from ..config import KNNConfig, checked_config, without_masses
from ..data import get_num, get_pos, with_computed
from ..jax_ext import is_concrete, with_twins
from ..tree import TreeHierarchy, check_hierarchy
from ._batches import check_batches, in_layers
from ._one_device import Search, sort
from ._over_ranks import knn_over_ranks
from ._question import Question, check_lists, check_mask, check_number
from ._words import as_result, parse_result

__all__ = ["knn"]

_ORDERS = ("input", "z")


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """What compiled and mapped twins replace in the arguments."""
    k, query = known_integer(arguments["k"], "k"), arguments["part_query"]
    replaced = exact_limit(arguments) | {"k": k}
    check_lists(k, arguments["part"] if query is None else query)
    return replaced


@with_twins(
    {
        "part": P(-1),
        "boxsize": P(),
        "th": P(-1),
        "part_query": P(-1),
        "max_radius": SPEC,
        "source_mask": P(-1),
        "batch": P(-1),
        "batch_query": P(-1),
    },
    P(-1),
    prepare=_prepared,
)
@with_computed
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
    exclude_self: bool = False,
    source_mask: Any = None,
    batch: Any = None,
    batch_query: Any = None,
) -> Any:
    """The ``k`` nearest particles of every query, nearest first; or those of them that are within a radius.

    part: the sources: a particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of
        positions.
    k: number of neighbours, from 1 to the number of sources; with ``max_radius``, which may leave a query fewer, to any
        number below 2**31.
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
    exclude_self: no particle is its own neighbour; only without ``part_query``. It is left out by its row: others at
        the same place stay, at distance 0. ``k`` is then below the number of sources.
    source_mask: ``(n,)`` bool: only these particles are neighbours of anybody. Without ``part_query`` all ask, and what
        is equally far as the particle itself may come before it.
    batch: ``(n,)`` integers from 0 on, in any order: many sets in one search, of which each particle is in one.
        Neighbours are of the same set, and missing ones come as with ``max_radius`` where it has fewer than ``k``.
        Up to 2**24 sets in float32, positions of up to 7 dimensions, ``output_order="input"`` and no ``th``.
    batch_query: ``(q,)`` integers, the set that each query asks about.

    Returns a tuple with one entry a word of ``result``, or the entry if it is one word. Rows that belong to no query
    (from ``num`` of the queries on) have infinite radii and rows of -1. Of sources at the same distance, the first in
    z-order comes first.

    Raises TypeError or ValueError for wrong arguments, and an error at run time if a position is NaN or infinite, ``k``
    is above a traced ``num`` or the number of sources that are marked, a traced ``max_radius`` is negative or NaN, a
    batch has no such number, or ``th`` belongs to other particles. Raises MemoryError, before anything is allocated, if
    no memory can hold the distances and rows of all neighbours.
    """
    cfg = without_masses(checked_config(cfg, KNNConfig))
    check_hierarchy(th)
    limited = batch is not None or _is_limited(max_radius)
    k = _check_arguments(part, k, part_query, output_order, limited, exclude_self)
    check_mask(source_mask, get_pos(part).shape[0])
    check_batches(batch, batch_query, part, part_query, th, output_order)
    check_lists(k, part if part_query is None else part_query)
    words = parse_result(result, part, reduce_func)
    box = check_box(boxsize, get_pos(part).shape[1])
    asked = part if part_query is None else part_query
    limit = as_limit(max_radius, get_pos(asked).shape[:1], get_num(asked))
    if batch is not None:
        part, part_query, box, limit = in_layers(part, batch, part_query, batch_query, box, limit)
    ask = Question(k, box, words, reduce_func, output_order == "z", th is not None, cfg)
    ask = replace(ask, limit=limit, others=exclude_self)
    if comm.num_ranks() > 1:
        return as_result(knn_over_ranks(part, part_query, ask, source_mask))
    return as_result(Search(*sort(part, th, part_query, source_mask, ask), ask).answer())


def _is_limited(max_radius: Any) -> bool:
    return max_radius.given() if isinstance(max_radius, Radii) else max_radius is not None


def _check_arguments(part: Any, k: int, part_query: Any, output_order: str, limited: bool, others: bool) -> int:
    pos = check_particles(part)
    num = check_num(part)
    if output_order not in _ORDERS:
        raise ValueError(f"output_order must be 'input' or 'z', not {output_order!r}.")
    k = known_integer(k, "k")
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}; it is the number of neighbours.")
    # Over several ranks, how many particles there are is known at run time.
    ndev = comm.num_ranks()
    most = int(num) if is_concrete(num) and ndev == 1 else ndev * pos.shape[0]
    _check_others(others, part_query)
    if not limited:
        check_number(k, most, others)
    if k >= 2**31:
        raise ValueError(f"k is {k}; no row has room for 2**31 neighbours or more. Give a smaller k.")
    if part_query is not None:
        check_queries(part_query, pos)
    return k


def _check_others(exclude_self: Any, part_query: Any) -> None:
    if not isinstance(exclude_self, bool):
        raise TypeError(f"exclude_self must be True or False, not {exclude_self!r}.")
    if exclude_self and part_query is not None:
        raise ValueError(
            "exclude_self is for particles that ask about their own set, and part_query gives others; leave one of the "
            "two out."
        )
