"""Exact k nearest neighbours.

Sources are sorted in z-order, and a plane hierarchy (`jztree.tree`) is built over them. Queries that are close in
z-order search it together, nearest nodes first. The cost is O(n log n) for every distribution. The search stores no
intermediate lists: the kernel writes results directly to their rows. Sources at the same distance are returned in the
z-order of the sources (`jztree.tree.zsort`), for any queries and any number of devices.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from ..arguments import (
    SPEC,
    Radii,
    as_limit,
    check_box,
    check_particles,
    check_queries,
    check_word,
    exact_limit,
    known_integer,
)
from ..config import KNNConfig, checked_config, without_masses
from ..data import get_num, with_computed
from ..jax_ext import is_concrete, with_twins
from ..particles import Particles, check_num, num_rows
from ..tree import TreeHierarchy, check_hierarchy
from ._arguments import SearchArguments, check_k, check_mask, check_result_memory
from ._batches import check_batches, place_in_layers
from ._result import radii as radii
from ._result import radii_over_ranks as radii_over_ranks
from ._search import entries_of
from ._words import as_result, parse_result
from ._words import field_of as field_of

# Names imported "as" themselves are for other packages of the library, and not public.

__all__ = ["knn"]

_ORDERS = ("input", "z")


def _prepared(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that compiled and mapped twins replace."""
    k, query = known_integer(arguments["k"], "k"), arguments["part_query"]
    max_radius = _widest(arguments["max_radius"], arguments["allow_missing"])
    replaced = exact_limit(arguments | {"max_radius": max_radius}) | {"k": k}
    check_result_memory(k, arguments["part"] if query is None else query)
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
    part: Particles | ArrayLike,
    k: int,
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    part_query: Particles | ArrayLike | None = None,
    result: str = "rad_globalidx",
    reduce_func: Callable[..., Any] | None = None,
    output_order: str = "input",
    cfg: KNNConfig | None = None,
    max_radius: ArrayLike | None = None,
    exclude_self: bool = False,
    source_mask: ArrayLike | None = None,
    batch: ArrayLike | None = None,
    batch_query: ArrayLike | None = None,
    allow_missing: bool = False,
) -> Any:
    """Return the ``k`` nearest particles of every query, nearest first, optionally limited to a radius.

    On several devices, all arguments except ``part``, ``th``, ``part_query``, ``source_mask``, ``batch``,
    ``batch_query`` and radii per query must agree on all ranks.

    Args:
        part: The sources: a particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of
            positions.
        k: The number of neighbours, from 1 to the number of sources. With ``max_radius`` a query may have fewer, and k
            may be any number below 2**31.
        boxsize: The periodic length, or one per dimension; 0 or None means open. Positions outside the box are wrapped.
        th: A hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``. ``part`` must then be
            the z-ordered particles that the function returned.
        part_query: The queries, ``(q, d)``. None means that every particle is a query and its own first neighbour, at
            distance 0.
        result: The values to return: one or several of the following words, joined by ``_``.

            * ``rad``: ``(q, k)`` distances in the unit and dtype of the positions.
            * ``drad``: The same. Both are differentiable with respect to positions and box; the gradient between
              coincident points is 0.
            * ``globalidx``: ``(q, k)`` int32 rows of the neighbours among the sources. ``output_order`` sets their
              order. Rows are counted over all devices, one device after the other, without padding.
            * ``rankidx``: The same in the form of `jztree.data.RankIdx`, device and row.
            * ``part``: The neighbours themselves, a particle class of arrays ``(q, k, ...)``; or the name of one of its
              fields.
            * ``reduce``: The result of ``reduce_func``.
            * ``query``: The queries in the order of the results, of the input type, with ``num`` if that type has one.
            * ``queryidx``: ``(q,)`` `RankIdx` of device and row of the query for each row of the results.
        reduce_func: Called as ``reduce_func(part=, rnn=, inn=, origin=, query=, queryidx=)`` with the sources in
            z-order, radii ``(q, k)``, rows ``(q, k)`` into these sources, the `RankIdx` of origin of each source, the
            queries, and the `RankIdx` of origin of each query. It must take ``**kwargs`` and return arrays with one row
            per query, in the order of ``rnn``. The search returns these arrays in ``output_order``.
        output_order: With ``"input"``, row i belongs to query i, and rows of neighbours are rows of ``part``. With
            ``"z"``, queries are in z-order, so that nearby queries have nearby rows. Rows of neighbours are then rows
            of the sources in z-order: those of `jztree.tree.zsort`, on several devices of `jztree.tree.distr_zsort`,
            and with ``th`` of ``part``. On several devices, each query is then on the device of the sources near it.
            The results have space for all queries that may arrive there. Use ``query`` and ``queryidx`` to identify the
            queries.
        cfg: Options. None means the defaults.
        max_radius: The search radius in the unit of the positions: a number, or ``(q,)``, one per query in input order.
            A particle is within this radius if its distance, computed in float64 from the given positions, is at most
            the radius. If there may be more than ``k`` particles within the radius, `jztree.radius.count_within`
            returns their number by the same rule. Missing neighbours are at the end of a row, with distance infinity,
            row -1 (both parts of a `RankIdx`) and properties 0. None or infinity means no limit.
        exclude_self: Whether to exclude each particle from its own neighbours; only without ``part_query``. The
            particle is identified by its row, so other particles at the same place stay, at distance 0. ``k`` must then
            be below the number of sources.
        source_mask: ``(n,)`` bool, the particles that can be neighbours. Without ``part_query`` all particles are
            queries, and a source at distance 0 may come before the particle itself.
        batch: ``(n,)`` integers from 0 on, in any order: the set of each particle. One call then searches many sets,
            and the neighbours of a query are from its set. If a set has fewer than ``k`` particles, the other
            neighbours are missing; see ``max_radius``. This needs ``output_order="input"``, no ``th``, at most 7
            dimensions, and in float32 at most 2**24 sets.
        batch_query: ``(q,)`` integers, the set that each query searches.
        allow_missing: Whether ``k`` may exceed the number of sources. The missing neighbours of each query are then
            those of ``max_radius``, at distance infinity.

    Returns:
        A tuple with one entry per word of ``result``, or the entry itself if there is one word. From row ``num`` of the
        queries on, the results are padding: radii are infinite, and rows of neighbours are -1. Sources at the same
        distance are in z-order.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, ``k`` is above a traced
            ``num`` or the number of marked sources, a traced ``max_radius`` is negative or NaN, a batch number is
            invalid, or ``th`` belongs to other particles.
        MemoryError: Before anything is allocated, if no memory can hold the distances and rows of all neighbours.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.
    """
    cfg = without_masses(checked_config(cfg, KNNConfig))
    check_hierarchy(th)
    max_radius = _widest(max_radius, allow_missing)
    limited = batch is not None or _is_limited(max_radius)
    k, dims = _check_arguments(part, k, part_query, output_order, limited, exclude_self)
    check_mask(source_mask, num_rows(part))
    check_batches(batch, batch_query, part, part_query, th, output_order)
    check_result_memory(k, part if part_query is None else part_query)
    words = parse_result(result, part, reduce_func)
    box = check_box(boxsize, dims)
    query_part = part if part_query is None else part_query
    limit = as_limit(max_radius, (num_rows(query_part),), get_num(query_part))
    if batch is not None:
        part, part_query, box, limit = place_in_layers(part, batch, part_query, batch_query, box, limit)
    args = SearchArguments(k, box, words, reduce_func, output_order == "z", th is not None, cfg)
    args = replace(args, limit=limit, exclude_self=exclude_self)
    return as_result(entries_of(part, part_query, args, th, source_mask))


def _widest(max_radius: Any, allow_missing: Any) -> Any:
    """Return the search radius, which is infinite instead of None if rows may have fewer than ``k`` neighbours."""
    if not isinstance(allow_missing, bool):
        raise TypeError(f"allow_missing must be True or False, not {allow_missing!r}.")
    is_given = max_radius is not None and not (isinstance(max_radius, Radii) and not max_radius.given())
    return np.inf if allow_missing and not is_given else max_radius


def _is_limited(max_radius: Any) -> bool:
    return max_radius.given() if isinstance(max_radius, Radii) else max_radius is not None


def _check_arguments(
    part: Any, k: int, part_query: Any, output_order: str, limited: bool, others: bool
) -> tuple[int, int]:
    """Check the arguments. Return ``k`` and the number of dimensions."""
    pos = check_particles(part)
    num = check_num(part)
    check_word(output_order, "output_order", _ORDERS)
    k = known_integer(k, "k")
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}; it is the number of neighbours.")
    # Over several ranks, the number of particles is known at run time only.
    ndev = comm.num_ranks()
    most = int(num) if is_concrete(num) and ndev == 1 else ndev * pos.shape[0]
    _check_others(others, part_query)
    if not limited:
        check_k(k, most, others)
    if k >= 2**31:
        raise ValueError(f"k is {k}; it must be below 2**31.")
    if part_query is not None:
        check_queries(part_query, pos)
    return k, pos.shape[1]


def _check_others(exclude_self: Any, part_query: Any) -> None:
    if not isinstance(exclude_self, bool):
        raise TypeError(f"exclude_self must be True or False, not {exclude_self!r}.")
    if exclude_self and part_query is not None:
        raise ValueError(
            "exclude_self is only for searches among the particles themselves; leave out exclude_self or part_query."
        )
