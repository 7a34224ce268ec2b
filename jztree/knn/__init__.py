"""Exact k nearest neighbours.

Sources are sorted in z-order, and a plane hierarchy (`jztree.tree`) is built over them. Queries that are close in
z-order search it together, nearest nodes first. The cost is O(n log n) for every distribution. The search stores no
intermediate lists: the kernel writes results directly to their rows. Sources at the same distance are returned in the
z-order of the sources (`jztree.tree.zsort`), for any queries and any number of devices.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from .._options import checked_config
from ..arguments import (
    SPEC,
    Kind,
    Radii,
    as_limit,
    check_box,
    check_flag,
    check_particles,
    check_queries,
    check_word,
    flat,
    is_given,
    known_integer,
    rows_and_num,
)
from ..config import KNNConfig, without_masses
from ..data import get_num
from ..jax_ext import is_concrete
from ..particles import Array, Index, Particles, check_num, num_rows, particles_of
from ..tree import TreeHierarchy, check_hierarchy
from ..tree.stage import opened
from ._arguments import SearchArguments, check_k, check_mask, check_result_memory
from ._arguments import rows_by_mask as rows_by_mask
from ._batches import check_batches, place_in_layers
from ._others import others_with_ghosts as others_with_ghosts
from ._result import radii as radii
from ._result import radii_over_ranks as radii_over_ranks
from ._search import entries_of
from ._words import WORDS, as_result, parse_result, property_names
from ._words import field_of as field_of

# Names imported "as" themselves are for other packages of the library, and not public.

__all__ = ["Neighbours", "NeighboursWithFields", "knn", "nearest"]

_ORDERS = ("input", "z")


def _searching(arguments: dict[str, Any]) -> Any:
    queries = arguments.get("queries", arguments.get("part_query"))
    return particles_of(arguments["part"] if queries is None else queries)


def _checked_k(k: Any, arguments: dict[str, Any]) -> int:
    number = known_integer(k, "k")
    check_result_memory(number, _searching(arguments))
    return number


def _exact_limit(max_radius: ArrayLike | None, arguments: dict[str, Any]) -> Radii:
    return as_limit(_widest(max_radius, arguments["allow_missing"]), *rows_and_num(_searching(arguments)))


_READ: dict[str, Any] = {
    "k": Kind(None, _checked_k),
    "max_radius": Kind(SPEC, _exact_limit),
    **{name: Kind(P(-1)) for name in ("source_mask", "batch", "query_batch")},
}


class Neighbours(NamedTuple):
    """The ``k`` nearest neighbours of ``q`` queries; see `nearest`.

    Attributes:
        distance: ``(q, k)``, ascending, in the unit and dtype of the positions; infinite for missing neighbours.
        index: ``(q, k)`` int32, the rows of the neighbours; -1 for missing neighbours.
    """

    distance: jax.Array
    index: jax.Array  # type: ignore[assignment]  # the name is also a method of tuples


class NeighboursWithFields(NamedTuple):
    """The ``k`` nearest neighbours of ``q`` queries and their properties; see `nearest`.

    Attributes:
        distance: See `Neighbours`.
        index: See `Neighbours`.
        fields: The properties by name, ``(q, k, ...)`` each; 0 for missing neighbours.
    """

    distance: jax.Array
    index: jax.Array  # type: ignore[assignment]  # the name is also a method of tuples
    fields: dict[str, jax.Array]


@flat(**_READ)
def nearest(
    part: Particles | Index | Array,
    k: int,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    max_radius: ArrayLike | None = None,
    exclude_self: bool = False,
    allow_missing: bool = False,
    source_mask: Array | None = None,
    batch: Array | None = None,
    query_batch: Array | None = None,
    fields: tuple[str, ...] = (),
    reduce: Callable[..., Any] | None = None,
    order: str = "input",
    cfg: KNNConfig | None = None,
) -> Any:
    """Find the ``k`` nearest particles of every query, nearest first.

    Distances are computed in float64 from the given positions. Particles at the same distance are in z-order. On
    several devices, all arguments except ``part``, ``queries``, masks, batches and radii per query must agree on all
    ranks.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        k: The number of neighbours, from 1 to the number of particles. With ``max_radius`` or ``allow_missing``, ``k``
            may be any number below 2**31.
        queries: ``q`` positions of the same dtype, or a particle class. None means that every particle is a query and
            its own first neighbour, at distance 0; ``q`` is then ``n``.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped. An
            index has its own box.
        max_radius: The search radius in the unit of the positions: a number, or ``(q,)``, one per query. Neighbours
            have at most this distance. None or infinity means no limit.
        exclude_self: Whether to exclude each particle from its own neighbours; only without ``queries``. Other
            particles at the same place stay, at distance 0.
        allow_missing: Whether ``k`` may exceed the number of particles.
        source_mask: ``(n,)`` bool, the particles that can be neighbours. Without ``queries`` all particles are queries.
        batch: ``(n,)`` integers from 0 on: the set of each particle. One call then searches many sets, and the
            neighbours of a query are from its set. This needs ``order="input"``, no index, at most 7 dimensions, and in
            float32 at most 2**24 sets.
        query_batch: ``(q,)`` integers, the set that each query searches.
        fields: Names of properties of the neighbours to return, such as ``("mass",)``.
        reduce: A function of the neighbours, called as ``reduce(part=, rnn=, inn=, origin=, query=, queryidx=)`` with
            the particles in z-order, distances ``(q, k)``, rows ``(q, k)`` into these particles, the
            `jztree.data.RankIdx` of origin of each particle, the queries, and their `RankIdx` of origin. It must take
            ``**kwargs`` and return arrays with one row per query, in the order of ``rnn``. If you differentiate the
            results, replace the infinite distances of missing neighbours and padding before you use them, because the
            derivative of an infinite term that you discard later is NaN.
        order: With ``"input"``, row i belongs to query i, and ``index`` holds rows of ``part``; on several devices,
            rows of the joined particles of the devices. With ``"z"``, queries and particles are in z-order
            (`jztree.tree.zsort`), and ``index`` holds rows of the particles in z-order.
        cfg: Options. None means the defaults.

    Returns:
        `Neighbours`, ``(distance, index)``; with ``fields``, `NeighboursWithFields`; with ``reduce``, its results.
        Missing neighbours are at the end of a row, with distance infinity, row -1 and properties 0. Rows from ``num``
        of the queries on are padding, in the same form.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, ``k``
            is above a traced ``num`` or the number of marked sources, a traced ``max_radius`` is negative or NaN, or a
            batch number is invalid.
        MemoryError: Before anything is allocated, if no memory can hold the distances and rows.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> distance, index = jz.nearest(pos, 2)
        >>> index
        Array([[0, 1],
               [1, 0],
               [2, 1]], dtype=int32)
        >>> jz.nearest(pos, 1, queries=np.array([[2.4]], np.float32)).distance
        Array([[0.5999999]], dtype=float32)
    """
    held = particles_of(part)
    words = ["reduce"] if reduce is not None else ["rad", "globalidx", *_field_words(fields, held)]
    if reduce is not None and (fields or not callable(reduce)):
        raise ValueError(f"reduce must be a function, and excludes fields; reduce is {reduce!r}, fields is {fields!r}.")
    limits = _Limits(max_radius, exclude_self, source_mask, batch, query_batch, allow_missing)
    check_word(order, "order", _ORDERS)
    entries = _entries((part, boxsize, None), k, queries, (words, reduce), limits, order == "z", cfg)
    if reduce is not None:
        return entries[0]
    distance, index, *properties = entries
    if not fields:
        return Neighbours(distance, index)
    return NeighboursWithFields(distance, index, dict(zip(fields, properties, strict=True)))


def _field_words(fields: Any, part: Any) -> list[str]:
    """Return the names of properties. Raise if the particles have no such property."""
    if not isinstance(fields, (list, tuple)) or not all(isinstance(name, str) for name in fields):
        raise TypeError(f'fields must be a tuple of names, such as ("mass",), not {fields!r}.')
    names = property_names(part)
    for name in fields:
        if name in WORDS or name not in names or getattr(part, name) is None:
            raise ValueError(f"fields has {name!r}, which is not a property of the particles.")
    return list(fields)


@flat(th=Kind(P(-1)), part_query=Kind(P(-1)), **_READ)
def knn(
    part: Particles | Array,
    k: int,
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    part_query: Particles | Array | None = None,
    result: str = "rad_globalidx",
    reduce_func: Callable[..., Any] | None = None,
    output_order: str = "input",
    cfg: KNNConfig | None = None,
    *,
    max_radius: ArrayLike | None = None,
    exclude_self: bool = False,
    source_mask: Array | None = None,
    batch: Array | None = None,
    query_batch: Array | None = None,
    allow_missing: bool = False,
) -> Any:
    """Return the ``k`` nearest particles of every query, nearest first, optionally limited to a radius.

    On several devices, all arguments except ``part``, ``th``, ``part_query``, ``source_mask``, ``batch``,
    ``query_batch`` and radii per query must agree on all ranks.

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
            of the sources in z-order, the order of `jztree.tree.zsort`, on several devices of
            `jztree.tree.distr_zsort`, and with ``th`` of ``part``. On several devices, each query is then on the device
            of the sources near it. The results have space for all queries that may arrive there. Use ``query`` and
            ``queryidx`` to identify the queries.
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
        query_batch: ``(q,)`` integers, the set that each query searches.
        allow_missing: Whether ``k`` may exceed the number of sources. As with ``max_radius``, missing neighbours are
            then at distance infinity.

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
        MemoryError: Before anything is allocated, if no memory can hold the distances and rows.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> pos = np.array([[0.9], [0.5], [0.05], [0.45]], np.float32)
        >>> radius, row = jz.knn.knn(pos, 2, 1.0)
        >>> row
        Array([[0, 2],
               [1, 3],
               [2, 0],
               [3, 1]], dtype=int32)
    """
    check_hierarchy(th)
    words = parse_result(result, particles_of(part), reduce_func)
    limits = _Limits(max_radius, exclude_self, source_mask, batch, query_batch, allow_missing)
    check_word(output_order, "output_order", _ORDERS)
    return as_result(
        _entries((part, boxsize, th), k, part_query, (words, reduce_func), limits, output_order == "z", cfg)
    )


class _Limits(NamedTuple):
    """The arguments of `nearest` that exclude neighbours."""

    max_radius: ArrayLike | None
    exclude_self: Any
    source_mask: Any
    batch: ArrayLike | None
    query_batch: Any
    allow_missing: Any


def _entries(
    sources: tuple[Any, Any, Any],
    k: int,
    queries: Any,
    entries: tuple[list[str], Callable[..., Any] | None],
    limits: _Limits,
    in_z_order: bool,
    cfg: KNNConfig | None,
) -> list[Any]:
    """Return the entries for the words of a result.

    Args:
        sources: Particles or an index, the box, and a hierarchy over particles in z-order.
        k: Number of neighbours.
        queries: See `nearest`.
        entries: The words, and the function for the word ``reduce``.
        limits: The excluded neighbours.
        in_z_order: Whether results and rows of neighbours are in z-order.
        cfg: Options.
    """
    cfg = without_masses(checked_config(cfg, KNNConfig))
    part, boxsize, order = opened(*sources)
    max_radius = _widest(limits.max_radius, limits.allow_missing)
    limited = limits.batch is not None or is_given(max_radius)
    k, dims = _check_arguments(part, k, queries, limited, limits.exclude_self)
    check_mask(limits.source_mask, num_rows(part))
    check_batches(limits.batch, limits.query_batch, part, queries, order, in_z_order)
    searching = part if queries is None else queries
    check_result_memory(k, searching)
    box = check_box(boxsize, dims)
    limit = as_limit(max_radius, (num_rows(searching),), get_num(searching))
    if limits.batch is not None:
        part, queries, box, limit = place_in_layers(part, limits.batch, queries, limits.query_batch, box, limit)
    among = {"mask": limits.source_mask, "limit": limit, "exclude_self": limits.exclude_self}
    return entries_of(SearchArguments(part, queries, k, box, *entries, in_z_order, cfg, order, **among))


def _widest(max_radius: ArrayLike | None, allow_missing: Any) -> Any:
    """Return the search radius, which is infinite instead of None if rows may have fewer than ``k`` neighbours."""
    check_flag(allow_missing, "allow_missing")
    return np.inf if allow_missing and not is_given(max_radius) else max_radius


def _check_arguments(part: Any, k: int, part_query: Any, limited: bool, exclude_self: bool) -> tuple[int, int]:
    """Check the arguments. Return ``k`` and the number of dimensions."""
    pos = check_particles(part)
    num = check_num(part)
    k = known_integer(k, "k")
    if k < 1:
        raise ValueError(f"k must be at least 1, not {k}; it is the number of neighbours.")
    # Over several ranks, the number of particles is known at run time only.
    ndev = comm.num_ranks()
    most = int(num) if is_concrete(num) and ndev == 1 else ndev * pos.shape[0]
    _check_others(exclude_self, part_query)
    if not limited:
        check_k(k, most, exclude_self)
    if k >= 2**31:
        raise ValueError(f"k is {k}; it must be below 2**31.")
    if part_query is not None:
        check_queries(part_query, pos)
    return k, pos.shape[1]


def _check_others(exclude_self: Any, part_query: Any) -> None:
    check_flag(exclude_self, "exclude_self")
    if exclude_self and part_query is not None:
        raise ValueError(
            "exclude_self is only for searches among the particles themselves; leave out exclude_self or the queries."
        )
