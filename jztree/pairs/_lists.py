"""Lists of pairs within a radius, including the images of a periodic box."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.capacity import choose_capacity
from ..arguments import Radii, as_one_radius, flat, row_fault
from ..config import RadiusConfig, without_masses
from ..derivatives import unit
from ..jax_ext import Exact, exact_to_float
from ..particles import Array, Index, Particles
from ..tree.stage import starts_of_ranks
from ..within import Listing, PreparedSearch, SearchArguments, Space, check_capacity, prepare_search, read_sets

# Initial capacity of lists, in pairs per query.
_USUAL = 32
_TOO_FAR = (
    "the radius reaches 2**31 periodic images or more (an infinite one reaches all); in a periodic box, use a radius "
    "of fewer box lengths."
)
_FAR_OUT = "row {0}%s is 2**29 box lengths or more from the box, so its shift exceeds 32 bits; wrap positions first."


class PairLists(NamedTuple):
    """Pairs of particles and images of particles; see `pairs_within`. Quantities that were not requested are None.

    Attributes:
        i: ``(capacity,)`` int32, the row of the first particle, ascending; -1 after the last.
        j: ``(capacity,)`` int32, the row of the second particle; -1 after the last.
        shift: ``(capacity, d)`` int32, the number of box lengths by which ``j`` is shifted; 0 after the last.
        vector: ``(capacity, d)``, ``pos[j] - pos[i] + shift * boxsize``, from ``i`` to the image of ``j``; 0 after the
            last.
        distance: ``(capacity,)``, the length of ``vector``; infinite after the last.
        num: int32, the number of pairs.
    """

    i: jax.Array
    j: jax.Array
    shift: jax.Array | None
    vector: jax.Array | None
    distance: jax.Array | None
    num: jax.Array

    def edge_index(self) -> jax.Array:
        """Return ``(2, capacity)`` int32, with ``i`` in row 0 and ``j`` in row 1."""
        return jnp.stack([self.i, self.j], axis=-2)


@flat(enlarges=True)
def pairs_within(
    part: Particles | Index | Array,
    radius: ArrayLike,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    capacity: int | None = None,
    full: bool = False,
    quantities: str = "ijSdD",
    cfg: RadiusConfig | None = None,
) -> PairLists:
    """List all pairs within a radius as edges, in a periodic box with all images.

    Every image of a particle within the radius forms a separate pair. A pair is within the radius if its distance,
    computed in float64 from the given positions and whole box lengths, is at most the radius. The function does not
    wrap positions outside the box; shifts are relative to the given positions. Vectors and distances are the float64
    values, rounded to the dtype of the positions. They have derivatives with respect to positions and box lengths.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        radius: In the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per query. For a pair
            ``(i, j)``, the radius of ``i`` counts. Without ``queries``, one radius per particle needs ``full=True``,
            because ``j`` may be within the radius of ``i`` while ``i`` is not within the radius of ``j``. In a periodic
            box, the radius may be longer than the box, but not infinite.
        queries: Separate queries ``i``, for pairs with particles ``j`` of ``part``. None means pairs among the
            particles of ``part``, without pairs of a particle with itself at distance 0.
        boxsize: The periodic length, or one per dimension; None means open. Equal on all ranks. An index has its own
            box.
        capacity: The maximum number of pairs. With None, the arrays of a plain call are exactly as long as the list;
            ``.jit`` and ``.smap`` determine the capacity, and compile again if it is too small. Inside your own
            ``jax.jit``, pass a number.
        full: Whether to list every pair of the particles twice, as ``(i, j, shift)`` and ``(j, i, -shift)``. With one
            radius per particle, the list then holds each of the two that is within the radius of its ``i``. If False,
            the list holds each pair once: with ``i < j`` or, between a particle and its own images, with a shift whose
            first nonzero number is positive. With ``queries``, this argument has no effect.
        quantities: The columns of the list, as letters of ASE: shifts ``S``, vectors ``D`` and distances ``d``. The
            rows ``i`` and ``j`` are always included. ``"ij"`` takes a fifth of the memory in three dimensions, and half
            of the time. ``"D"`` or ``"d"`` alone saves nothing, because vectors, distances and shifts are computed
            together.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The pairs. ``i`` and ``j`` are rows of the input. On several devices, they are rows of the joined particles of
        all devices, and a pair is on the device of ``i``.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, if a position is NaN or infinite, a traced ``radius`` or
            ``boxsize`` is invalid, a radius is infinite in a periodic box, or a position is at least 2**29 box lengths
            from the box.
        CapacityError: On every device, if the pairs exceed ``capacity``; the error has their number.
        MemoryError: Before anything is allocated, for lists that no memory can hold.

    Examples:
        >>> pos = np.array([[0.1], [0.4], [0.9]], np.float32)
        >>> pairs = jz.pairs_within(pos, 0.25, boxsize=1.0)
        >>> pairs.i, pairs.j, pairs.shift[:, 0]
        (Array([0], dtype=int32), Array([2], dtype=int32), Array([-1], dtype=int32))
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    sources, separate, query_set, box = read_sets(part, boxsize, queries)
    pos, query, is_one_set = sources.pos, query_set.pos, separate is None
    radii = as_one_radius(radius, (query_set.num_rows,), query_set.num)
    check_capacity(capacity)
    _check_full(full, is_one_set, radii)
    requested = _requested_quantities(quantities)
    faults = _faults(radii, box, pos, sources.num, "")
    if not is_one_set:
        faults += _faults(radii, box, query, query_set.num, " of the queries")
    prepared = prepare_search(SearchArguments(sources, separate, radii, box, cfg, faults, numbered=True))
    half = is_one_set and not full
    list_capacity = choose_capacity("pairs", capacity, (_USUAL // 2 if half else _USUAL) * query.shape[0], 2**31 - 1)
    vectors, shifts = bool(requested & set("Dd")), bool(requested & set("SDd"))
    search = _search_of(prepared, box, same=is_one_set, half=half, shifts=shifts, vectors=vectors)
    starts = prepared.starts if is_one_set or prepared.starts is None else starts_of_ranks(query_set.num)
    fill = (-1, -1, *(0,) * shifts, *(0, jnp.inf) * vectors)
    entry = _entry_bytes(pos, shifts, vectors)
    splits, columns = Listing(prepared, list_capacity, "pairs", fill, entry, search, box, starts).lists()
    lists = dict(zip("ijSDd", columns, strict=False))
    if vectors:
        first = None if starts is None else starts[comm.get_rank_info()[0]]
        pair_rows = lists["i"], lists["j"], lists["S"], first, prepared.starts
        lists["D"], lists["d"] = _differentiable(query, pos, box, lists["D"], lists["d"], pair_rows)
    shift, vector, distance = (lists[letter] if letter in requested else None for letter in "SDd")
    return PairLists(i=lists["i"], j=lists["j"], shift=shift, vector=vector, distance=distance, num=splits[-1])


def _entry_bytes(pos: jax.Array, shifts: bool, vectors: bool) -> int:
    dims = pos.shape[1]
    return 8 + 4 * dims * shifts + pos.dtype.itemsize * (dims + 1) * vectors


def _search_of(prepared: PreparedSearch, box: Exact, **options: Any) -> Callable[..., tuple[jax.Array, ...]]:
    """Return the function that makes lists, for `Listing`."""

    def search(
        source_ids: jax.Array, query_ids: Any, rows: jax.Array | None, radius: Exact, space: Space
    ) -> tuple[jax.Array, ...]:
        arrays = prepared.sources, source_ids, prepared.queries, rows, query_ids
        return kernels.pairs_within(*arrays, radius, box, space.size, padded=space.padded, **options)

    return search


def _requested_quantities(quantities: Any) -> set[str]:
    if not isinstance(quantities, str) or not set(quantities) <= set("ijSdD"):
        raise ValueError(
            f'quantities is {quantities!r:.60}; it must be a string with some of the letters of "ijSdD": S for '
            "shifts, D for vectors, d for distances."
        )
    return set(quantities)


def _check_full(full: Any, is_one_set: bool, radii: Radii) -> None:
    if is_one_set and not full and radii.of_each is not None:
        raise ValueError(
            "with one radius per particle, i may reach j while j does not reach i, so a list with every pair once "
            "is ambiguous; pass full=True, or one radius for all, such as the largest."
        )


def _faults(radii: Radii, box: Exact, pos: jax.Array, num: int | jax.Array, of: str) -> list[comm.Fault]:
    are_too_many, outside = _images(exact_to_float(box), exact_to_float(radii.words()), pos, num)
    return [comm.Fault(are_too_many, [], _TOO_FAR), row_fault(outside, None, _FAR_OUT % of)]


@functools.partial(jax.jit, inline=True)
def _images(length: jax.Array, radius: jax.Array, pos: jax.Array, num: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return whether the radii reach too many images, and which rows are too far outside of the box."""
    boxes = jnp.max(radius, initial=0) / jnp.where(length > 0, length, jnp.inf)
    images = jnp.prod(2 * jnp.where(length > 0, boxes, 0) + 1)
    exists = jnp.arange(pos.shape[0], dtype=jnp.int32) < kernels.as_num(num)
    far = (2.0**29 * length).astype(pos.dtype)[None]
    return ~(images < 2.0**31), exists & jnp.any((length > 0)[None] & (jnp.abs(pos) >= far), axis=1)


@jax.custom_jvp
def _differentiable(
    query: jax.Array, pos: jax.Array, box: Exact, vector: jax.Array, distance: jax.Array, pair_rows: Any
) -> tuple[jax.Array, jax.Array]:
    """Return vectors and distances with their derivatives with respect to positions and box lengths.

    Args:
        query: ``(q, d)``, this rank's queries.
        pos: ``(n, d)``, this rank's sources.
        box: Periodic box.
        vector: The vectors.
        distance: The distances.
        pair_rows: The query number, source number and shift of each entry; the number of this rank's first query; and
            the number of the first source of each rank. If the last two are None, numbers are rows.
    """
    del query, pos, box, pair_rows
    return vector, distance


@_differentiable.defjvp
def _differentiable_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> Any:
    query, pos, box, vector, distance, (i, j, shift, first, starts) = primals
    changes = tangents[1]
    query_row, source_row = jnp.maximum(i if first is None else i - first, 0), jnp.maximum(j, 0)
    if starts is not None:
        # Each rank gathers all positions.
        changes = comm.all_gather(changes).reshape(-1, pos.shape[1])
        rank, row = comm.rank_and_row(starts, source_row)
        source_row = rank * pos.shape[0] + row
    length = jax.jvp(lambda box: jnp.asarray(exact_to_float(box), vector.dtype), (box,), (tangents[2],))[1]
    exists = (j >= 0)[:, None]
    change = jnp.where(
        exists, changes[source_row] - tangents[0][query_row] + shift.astype(vector.dtype) * length[None], 0
    )
    # Call `_differentiable` again, because the second derivative needs its rule too.
    primal_out = _differentiable(query, pos, box, vector, distance, (i, j, shift, first, starts))
    along = jnp.sum(unit(primal_out[0]) * change, axis=-1)
    return primal_out, (change, along)
