"""The z-order: the domain of Morton keys, and the sort on one device; for several ranks, see `_over_ranks`.

G. M. Morton (1966), "A computer oriented geodetic data base".
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import check_box, check_particles, check_word, exact_box_argument, farthest, rows_fault
from ..data import get_pos, map_rows, replace_num, with_computed
from ..jax_ext import Exact, is_concrete, with_twins
from ..particles import Array, Particles, check_num

_NOT_FINITE = (
    "row {0} of %s is NaN or infinite, or larger than %s in magnitude; remove such particles, set num to leave out "
    "rows at the end (jztree.data.get_num with default_to_nancount=True counts the rows before NaN), or choose another "
    "unit of length."
)
_BAD_NUM = "num of %s is {0}; it counts the rows that hold particles, so it must be from 0 to %d."


@jax.tree_util.register_dataclass
@dataclass
class Domain:
    """The domain of Morton keys: the bounding box of particles on all ranks, and the periodic box.

    Attributes:
        lower: Lower corner of the bounding box, ``(d,)``. Positions outside have the keys of its edge.
        upper: Upper corner.
        box: Periodic box.
        corners: Lower and upper corner of the particles' bounding box, inside the domain or not.
    """

    lower: jax.Array
    upper: jax.Array
    box: Exact
    corners: tuple[jax.Array, jax.Array]

    def whole(self) -> Domain:
        """Return a domain that contains all particles, whose keys also distinguish positions outside of this domain."""
        return Domain(*self.corners, self.box, self.corners)

    def keys(self) -> tuple[jax.Array, jax.Array, Exact]:
        """Return the arguments that kernels need to compute Morton keys."""
        return self.lower, self.upper, self.box

    def zsort(self, pos: jax.Array, num: int | jax.Array, in_order: Any = 0) -> tuple[jax.Array, jax.Array]:
        """Return the rows of ``pos`` in z-order, ``(n,)`` int32, and ``pos`` in that order; see `kernels.zsort`."""
        return kernels.zsort(pos, num, *self.keys(), in_order)


def domain_of(
    positions: Sequence[jax.Array],
    nums: Sequence[Any],
    names: Sequence[str],
    box: Exact,
    faults: Sequence[comm.Fault] = (),
    first_type_only: bool = False,
    first_type: Domain | None = None,
) -> tuple[Domain, list[jax.Array]]:
    """Return the domain of the particles of every type on every rank, and the checked ``nums``.

    Args:
        positions: ``(n, d)`` of each type.
        nums: Number of rows that hold particles, of each type.
        names: Name of the rows of each type in messages.
        box: Periodic box.
        faults: Further possible faults, to report in the same collective.
        first_type_only: Whether the domain is the bounding box of the first type. The order of its particles, and so
            the choice among equally distant particles, then does not depend on the positions of other types.
        first_type: Domain of particles that precede the other types and were checked before.

    Raises:
        ValueError or jax.errors.JaxRuntimeError: At run time, on every rank, if a position is not finite or out of
            range, if a number exceeds the number of rows, or if another fault occurs.
    """
    nums = [kernels.as_num(num) for num in nums]
    corners, of_positions = zip(*map(corners_of, positions, nums, names), strict=True)
    if first_type is not None:
        corners = first_type.corners, *corners
    # One check, so that the host waits for a GPU once. One collective for the check and all corners.
    everything = [*itertools.chain.from_iterable(of_positions), *faults]
    first, gathered = comm.check_and_gather(nums[0], everything, _as_integers(corners))
    checked = [first, *(comm.after(num, first) for num in nums[1:])]
    of_first_type, all_types = _as_floats(comm.after(gathered, first), corners[0][0].dtype)
    lower, upper = of_first_type if first_type_only else all_types
    return Domain(lower, upper, box, all_types), checked


def corners_of(pos: jax.Array, num: int | jax.Array, name: str) -> tuple[tuple[jax.Array, jax.Array], list[comm.Fault]]:
    """Return the corners of the bounding box of positions on this rank, and the possible faults."""
    lower, upper, first, number = kernels.bounds(pos, num)
    of_rows = rows_fault(first, number, _NOT_FINITE % (name, farthest(pos.dtype)))
    return (lower, upper), [num_fault(pos, num, name), of_rows]


@functools.partial(jax.jit, inline=True)
def _as_integers(corners: Sequence[tuple[jax.Array, jax.Array]]) -> jax.Array:
    """Return ``(2, types, d)`` integers of upper and lower corners. Their maximum over ranks gives the joint box.

    XLA treats subnormal numbers as 0, but not their integers. The complement reverses the order of the lower corners.
    """

    def ordered(values: jax.Array) -> jax.Array:
        bits = jax.lax.bitcast_convert_type(values, jnp.dtype(f"int{values.dtype.itemsize * 8}"))
        return jnp.where(bits < 0, bits ^ jnp.iinfo(bits.dtype).max, bits)

    lower, upper = (ordered(jnp.stack(corner)) for corner in zip(*corners, strict=True))
    return jnp.stack([upper, ~lower])


@functools.partial(jax.jit, static_argnames="dtype", inline=True)
def _as_floats(gathered: jax.Array, dtype: np.dtype[Any]) -> list[tuple[jax.Array, jax.Array]]:
    """Return lower and upper corners of the first type and of the joined types, from each rank's `_as_integers`."""

    def number(ordered: jax.Array) -> jax.Array:
        bits = jnp.where(ordered < 0, ordered ^ jnp.iinfo(ordered.dtype).max, ordered)
        return jax.lax.bitcast_convert_type(bits, dtype)

    joined = gathered.max(axis=0)
    return [(number(~not_lower), number(upper)) for upper, not_lower in (joined[:, 0], joined.max(axis=1))]


def is_bad_num(pos: Any, num: ArrayLike) -> bool | jax.Array:
    """Return whether ``num`` is not a valid number of particles in the rows of ``pos``."""
    return not 0 <= num <= pos.shape[0] if isinstance(num, int) else _is_outside(num, pos.shape[0])


@functools.partial(jax.jit, static_argnames="rows", inline=True)
def _is_outside(num: Any, rows: int) -> jax.Array:
    return (num < 0) | (num > rows)


def num_fault(pos: Any, num: ArrayLike, name: str) -> comm.Fault:
    """Return the fault that `is_bad_num` rejects ``num`` of the rows with this name."""
    return comm.Fault(is_bad_num(pos, num), [num], _BAD_NUM % (name, pos.shape[0]))


def checked_num(part: Particles | ArrayLike, name: str) -> Any:
    """Return the checked ``num`` of particles without further checks. A wrong traced number raises on all ranks."""
    pos, num = get_pos(part), check_num(part, f"num of {name}")
    if is_concrete(num):
        return num
    return comm.check_all(num, [num_fault(pos, num, name)])


def permute_particles(part: Particles | ArrayLike, index: jax.Array, posz: jax.Array | None = None) -> Any:
    """Return ``part`` with every property in another order.

    Args:
        part: A particle class, or positions.
        index: ``(n,)`` int32, the order.
        posz: The positions in that order, if they are known.
    """
    pos = None if posz is None else get_pos(part)
    return map_rows(to_order(index, pos, posz), part)


def to_order(index: jax.Array, pos: Any, posz: jax.Array | None) -> Callable[[Any], Any]:
    """Return a function that brings an array of rows into the order ``index``; ``posz`` is ``pos`` in that order."""
    return lambda leaf: posz if leaf is pos else kernels.gather_rows(jnp.asarray(leaf), index)


@with_twins({"pos": P(-1), "boxsize": P(), "domain": P()}, P(-1), prepare=exact_box_argument)
@with_computed
def zsort(pos: Particles | Array, boxsize: ArrayLike | None = None, domain: Any = None) -> tuple[Any, jax.Array]:
    """Sort particles in z-order.

    Positions are wrapped for the order only.

    Args:
        pos: An array of positions ``(n, d)``, or a particle class with such an array as ``pos``.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        domain: Lower and upper corner, ``(d,)`` each, of the region that the keys divide into cells along open
            dimensions. Positions outside this region have the keys of its edge. None means the bounding box of the
            particles. A single distant particle can then change the order everywhere.

    Returns:
        ``pos`` sorted and the ``(n,)`` int32 row of origin of each row. The sort is stable: coincident particles keep
        their order. (Distinct particles that share all 128 bits of their key are in the z-order of the bits of their
        coordinates.) NaN and infinite rows come after all others, and rows from ``num`` on come last.

    Raises:
        TypeError: For positions or a box of the wrong type.
        ValueError: For positions or a box with a wrong shape or value.

    Examples:
        >>> posz, row = jz.tree.zsort(np.array([[0.9], [0.1], [0.5]], np.float32))
        >>> row
        Array([1, 2, 0], dtype=int32)
    """
    part, pos = pos, check_particles(pos)
    box = check_box(boxsize, pos.shape[1])
    num = checked_num(part, "the positions")
    lower, upper = _region(domain, pos, num)
    index, posz = kernels.zsort(pos, num, lower, upper, box)
    return replace_num(permute_particles(part, index, posz), num), index


def _region(domain: Any, pos: jax.Array, num: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the corners of ``domain``, or of the bounding box of positions.

    Raises:
        ValueError: If they are invalid; at run time if they are traced.
    """
    if domain is None:
        return kernels.bounds(pos, num)[:2]
    dims = pos.shape[1]
    try:
        corners = [jnp.asarray(corner, pos.dtype) for corner in domain]
    except (TypeError, ValueError):
        corners = []
    if [corner.shape for corner in corners] != [(dims,)] * 2:
        raise ValueError(f"domain must be two corners of {dims} coordinates each, the lower and the upper one.")
    lower, upper = corners
    wrong = ~(jnp.isfinite(lower) & jnp.isfinite(upper) & (lower <= upper)).all()
    sentence = "domain must have finite corners, and the lower one must not exceed the upper one in any dimension."
    if not is_concrete(wrong):
        return comm.after((lower, upper), comm.check(1, wrong, [], sentence))
    if wrong:
        raise ValueError(sentence)
    return lower, upper


@with_twins(
    {"posz": P(-1), "posz_query": P(-1), "block_size": None, "leaf_search": None, "boxsize": P(), "domain": P()},
    P(-1),
    prepare=exact_box_argument,
)
@with_computed
def search_sorted_z(
    posz: Particles | Array,
    posz_query: Particles | Array,
    block_size: int = 64,
    leaf_search: bool = False,
    *,
    boxsize: ArrayLike | None = None,
    side: str = "left",
    domain: Any = None,
) -> jax.Array:
    """Find the rows at which to insert positions into z-ordered positions, like `numpy.searchsorted`.

    Args:
        posz: ``(n, d)`` positions or a particle class, sorted by `zsort` with the same ``boxsize`` and ``domain``.
        posz_query: ``(q, d)`` positions, in any order.
        block_size: Accepted for the published interface; has no effect.
        leaf_search: Accepted for the published interface; True raises ValueError.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        side: ``"left"`` for the first row whose Morton key is not below the query's, ``"right"`` for the first above
            it.
        domain: The region of the keys along open dimensions; see `zsort`. None means the bounding box of ``posz``. To
            compare sets with different bounding boxes, pass the same domain for all sets.

    Returns:
        ``(q,)`` int32 rows, from 0 to the number of particles. Queries outside the domain count as on its edge.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.

    Examples:
        >>> posz = np.array([[0.1], [0.5], [0.9]], np.float32)
        >>> jz.tree.search_sorted_z(posz, np.array([[0.7], [0.3]], np.float32))
        Array([2, 1], dtype=int32)
    """
    check_word(side, "side", ("left", "right"))
    if leaf_search:
        raise ValueError("leaf_search=True is not supported, because the search covers all particles; leave it out.")
    pos = check_particles(posz)
    queries = check_particles(posz_query, "query positions")
    if queries.shape[1] != pos.shape[1]:
        raise ValueError(
            f"queries have {queries.shape[1]} dimensions, but the particles have {pos.shape[1]}; both must agree."
        )
    box = check_box(boxsize, pos.shape[1])
    num = checked_num(posz, "the positions")
    lower, upper = _region(domain, pos, num)
    return kernels.search(pos, num, queries.astype(pos.dtype), lower, upper, box, side == "right")
