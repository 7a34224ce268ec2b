"""Lists of the particles within a radius."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.capacity import choose_capacity
from ..arguments import as_one_radius, flat
from ..config import RadiusConfig, without_masses
from ..jax_ext import Exact
from ..knn import radii as with_derivatives
from ..knn import radii_over_ranks
from ..particles import Array, Index, Particles
from ._listing import Listing, Space, check_capacity
from ._search import SearchArguments, prepare_search, read_sets

# Initial capacity of lists, in neighbours per query.
_USUAL = 32


class NeighbourLists(NamedTuple):
    """The neighbours of ``q`` queries in lists of any length; see `neighbours_within`.

    Attributes:
        distance: ``(capacity,)``, in the dtype of the positions; infinite after the last.
        index: ``(capacity,)`` int32, the rows of the neighbours; -1 after the last.
        splits: ``(q + 1,)`` int32. The list of query ``i`` is the entries from ``splits[i]`` to ``splits[i + 1]``, and
            ``splits[-1]`` is the number of entries.
    """

    distance: jax.Array
    index: jax.Array  # type: ignore[assignment]  # the name is also a method of tuples
    splits: jax.Array

    def count(self) -> jax.Array:  # type: ignore[override]
        """Return ``(q,)`` int32, the number of neighbours of each query."""
        return jnp.diff(self.splits)

    def query(self) -> jax.Array:
        """Return ``(capacity,)`` int32, the row of the query of each entry; -1 after the last."""
        row = kernels.entry_lists(self.splits, self.distance.shape[0])
        return jnp.where(row < self.splits.shape[0] - 1, row, -1)


@flat(enlarges=True)
def neighbours_within(
    part: Particles | Index | Array,
    radius: ArrayLike,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    capacity: int | None = None,
    nearest_first: bool = False,
    cfg: RadiusConfig | None = None,
) -> NeighbourLists:
    """List all particles within a radius of every query, in lists of any length.

    A list contains a particle once, if the distance between the query and its nearest image is at most the radius.
    Distances are computed in float64. Without ``queries``, each particle is in its own list.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        radius: The search radius in the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per
            query. Infinity includes all particles.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves; ``q`` is
            then ``n``, and each particle finds itself.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        capacity: The maximum total number of neighbours over all queries. On several devices, it applies to the queries
            of each device, and to the queries that each device searches for. With None, the arrays of a plain call are
            exactly as long as the lists; ``.jit`` and ``.smap`` determine the capacity, and compile again if it is too
            small. If you pass a number, it does not change. Inside your own ``jax.jit``, pass a number.
        nearest_first: Whether to sort each list by distance. If False, each list is in the z-order of ``part``.
            Neighbours at the same distance are always in z-order.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The lists, in the format of `numpy.split` and `scipy.sparse.csr_matrix`. Rows are rows of ``part``; on several
        devices, rows of the joined particles of the devices. ``distance`` is the float64 distance, rounded to the dtype
        of the positions. Queries from ``num`` on have empty lists.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, or a
            traced ``radius`` or ``boxsize`` is invalid.
        CapacityError: On every device, if the neighbours exceed ``capacity``; the error has their number.
        MemoryError: Before anything is allocated, for lists that no memory can hold.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> lists = jz.neighbours_within(pos, 2.5)
        >>> lists.index
        Array([0, 1, 0, 1, 2, 1, 2], dtype=int32)
        >>> lists.splits
        Array([0, 2, 5, 7], dtype=int32)
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    sources, separate, query_set, box = read_sets(part, boxsize, queries)
    pos, query = sources.pos, query_set.pos
    radii = as_one_radius(radius, (query_set.num_rows,), query_set.num)
    check_capacity(capacity)
    prepared = prepare_search(SearchArguments(sources, separate, radii, box, cfg, numbered=True))
    # Over ranks, a rank may search for more queries than it was given.
    searching = query.shape[0] if prepared.queries is None else prepared.queries.posz.shape[0]
    max_size = searching * pos.shape[0] * comm.num_ranks()
    list_capacity = choose_capacity("neighbours", capacity, _USUAL * query.shape[0], max(max_size, 1))

    def search(
        source_ids: jax.Array, _: Any, rows: jax.Array | None, radius: Exact, space: Space
    ) -> tuple[jax.Array, ...]:
        arrays = prepared.sources, source_ids, prepared.queries, rows
        size, padded = space
        return kernels.neighbours_within(*arrays, radius, box, size, nearest_first=nearest_first, padded=padded)

    entry = 4 + pos.dtype.itemsize
    splits, (index, distance) = Listing(
        prepared, list_capacity, "neighbours", (-1, jnp.inf), entry, search, box
    ).lists()
    lists = NeighbourLists(distance, index, splits)
    return lists._replace(distance=_differentiable(query, pos, box, lists, prepared.starts))


@jax.custom_jvp
def _differentiable(
    query: jax.Array, pos: jax.Array, box: Exact, lists: NeighbourLists, starts: jax.Array | None
) -> jax.Array:
    """Return the distances of lists with their derivatives by positions and box lengths.

    Args:
        query: ``(q, d)``.
        pos: ``(n, d)``, this rank's sources.
        box: Periodic box.
        lists: The lists.
        starts: ``(r,)`` int32, the number of the first row of each rank. None on one device.
    """
    del query, pos, box, starts
    return lists.distance


@_differentiable.defjvp
def _differentiable_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[jax.Array, jax.Array]:
    query, pos, box, lists, starts = primals
    rows, index, distance = jnp.maximum(lists.query(), 0), lists.index[:, None], lists.distance[:, None]

    def found(query: jax.Array, pos: jax.Array, box: Exact) -> jax.Array:
        if starts is None:
            return with_derivatives(query[rows], pos, box, distance, index)
        return radii_over_ranks(query[rows], pos, box, distance, index, starts)

    changes = jax.jvp(found, (query, pos, box), tangents[:3])[1]
    return _differentiable(*primals), changes[:, 0]
