"""Lists of all particles within a radius."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.capacity import choose_capacity
from ..arguments import SPEC, as_one_radius, check_box, exact_arguments_of_one
from ..config import RadiusConfig, checked_config, without_masses
from ..data import with_computed
from ..jax_ext import Exact, with_twins
from ..knn import radii as with_derivatives
from ..knn import radii_over_ranks
from ..particles import Particles
from ..tree import TreeHierarchy, check_hierarchy
from ._listing import Listing, Space, check_capacity
from ._search import SearchArguments, check_both, prepare_search

# Initial capacity of lists, in neighbours per query.
_USUAL = 32


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class NeighbourLists:
    """The neighbours of ``q`` queries in lists of any length; see `neighbours_within`.

    Attributes:
        splits: ``(q + 1,)`` int32. The list of query ``i`` is the entries from ``splits[i]`` to ``splits[i + 1]``, and
            ``splits[-1]`` is the number of entries.
        index: ``(capacity,)`` int32, the rows of the neighbours; -1 after the last.
        distance: ``(capacity,)``, in the dtype of the positions; infinite after the last.
    """

    splits: jax.Array
    index: jax.Array
    distance: jax.Array

    def count(self) -> jax.Array:
        """Return ``(q,)`` int32, the number of neighbours of each query."""
        return jnp.diff(self.splits)

    def query(self) -> jax.Array:
        """Return ``(capacity,)`` int32, the row of the query of each entry; -1 after the last."""
        row = kernels.entry_lists(self.splits, self.index.shape[0])
        return jnp.where(row < self.splits.shape[0] - 1, row, -1)


@with_twins(
    {"part": P(-1), "radius": SPEC, "boxsize": P(), "th": P(-1), "part_query": P(-1)},
    P(-1),
    prepare=exact_arguments_of_one,
    enlarges=True,
)
@with_computed
def neighbours_within(
    part: Particles | ArrayLike,
    radius: ArrayLike,
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    part_query: Particles | ArrayLike | None = None,
    capacity: int | None = None,
    nearest_first: bool = False,
    cfg: RadiusConfig | None = None,
) -> NeighbourLists:
    """List all particles within a radius of every query, in lists of any length.

    A list contains a particle once, if the distance between the query and its nearest image is at most the radius.
    Distances are computed in float64. Without ``part_query``, each particle is in its own list.

    Args:
        part: See `count_within`.
        radius: In the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per query.
        boxsize: See `count_within`.
        th: See `count_within`.
        part_query: See `count_within`.
        capacity: The maximum total number of neighbours of all queries. On several devices, it applies to the queries
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
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, a
            traced ``radius`` or ``boxsize`` is invalid, or ``th`` belongs to other particles.
        CapacityError: On every device, if the neighbours exceed ``capacity``; the error has their number.
        MemoryError: Before anything is allocated, for lists that no memory can hold.
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    check_hierarchy(th)
    if not isinstance(nearest_first, bool):
        raise TypeError(f"nearest_first must be True or False, not {nearest_first!r}.")
    sources, queries, query_set = check_both(part, part_query, th)
    pos, query = sources.pos, query_set.pos
    box = check_box(boxsize, sources.dims)
    radii = as_one_radius(radius, (query_set.num_rows,), query_set.num)
    check_capacity(capacity)
    prepared = prepare_search(SearchArguments(sources, queries, radii, box, cfg, numbered=True))
    # Over ranks, a rank may search for more queries than it was given.
    searching = query.shape[0] if prepared.queries is None else prepared.queries.posz.shape[0]
    most = searching * pos.shape[0] * comm.num_ranks()
    list_capacity = choose_capacity("neighbours", capacity, _USUAL * query.shape[0], max(most, 1))

    def search(
        source_ids: jax.Array, _: Any, rows: jax.Array | None, radius: Exact, space: Space
    ) -> tuple[jax.Array, ...]:
        own = prepared.sources, source_ids, prepared.queries, rows
        size, padded = space
        return kernels.neighbours_within(*own, radius, box, size, nearest_first=nearest_first, padded=padded)

    entry = 4 + pos.dtype.itemsize
    splits, (index, distance) = Listing(
        prepared, list_capacity, "neighbours", (-1, jnp.inf), entry, search, box
    ).lists()
    lists = NeighbourLists(splits=splits, index=index, distance=distance)
    lists.distance = _differentiable(query, pos, box, lists, prepared.starts)
    return lists


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
