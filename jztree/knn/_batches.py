"""Search many sets at once, with each set in its own layer along an additional dimension.

Layers are separated by a power of two that is more than twice the largest distance within a set, and no query searches
farther than half of that. No particle of another layer is therefore within reach. Within a layer, the additional
coordinates are equal and their difference is 0, so distances are bitwise the same as without layers.

On one device, particles are sorted by layer first, so that a leaf contains one set, or a few small sets.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import MAX_DIMS, Radii, farthest_number, first_row, row_fault, value_of_row
from ..data import get_num, replace_num
from ..jax_ext import Exact, exact_to_float
from ..particles import Particles, check_representable, get_pos, num_rows
from ..tree import Domain

_BAD_BATCH = "row {0} of %s is not a valid batch number; it must be from 0 to %d."
_TOO_WIDE = (
    "row {0} of %s is {1}, but with sets of this extent %s can represent only the batches up to {2}; choose another "
    "unit of length, or search the sets one by one."
)


@jax.tree_util.register_dataclass
@dataclass
class Layered:
    """Particles in layers.

    Attributes:
        pos: Positions in layers, ``(n, d + 1)``.
        part: The original particles.
        num: Number of rows that hold particles.
    """

    pos: Any
    part: Any
    num: int | jax.Array | None = None


class LayersFirst(Domain):
    """A domain that sorts by layer first and by z-order within each layer."""

    def zsort(self, pos: jax.Array, num: int | jax.Array, in_order: Any = 0) -> tuple[jax.Array, jax.Array]:
        index, posz = super().zsort(pos, num, in_order)
        layer = posz[:, -1:]
        corners = self.lower[-1:], self.upper[-1:]
        order, _ = kernels.zsort(layer, num, *corners, Exact(self.box.words[-1:]), in_order)
        return kernels.gather_rows(index, order), kernels.gather_rows(posz, order)


def sort_domain(domain: Domain, part: Particles | ArrayLike) -> Domain:
    """Return the domain that defines the sort order of particles on one device."""
    return LayersFirst(domain.lower, domain.upper, domain.box, domain.corners) if isinstance(part, Layered) else domain


def without_layers(part: Particles | ArrayLike) -> Any:
    """Return the original particles of `place_in_layers`, with the order and ``num`` of ``part``."""
    return replace_num(part.part, part.num) if isinstance(part, Layered) else part


def check_batches(
    batch: ArrayLike | None,
    query_batch: Any,
    part: Particles | ArrayLike,
    part_query: Particles | ArrayLike | None,
    th: Any,
    in_z_order: bool,
) -> None:
    """Raise TypeError or ValueError if batch numbers are invalid or do not fit the other arguments."""
    if (query_batch is not None) != (batch is not None and part_query is not None):
        raise ValueError(
            "batch has the set of each particle, and query_batch the set that each query searches; pass both with "
            "part_query, and batch alone without it."
        )
    if batch is None:
        return
    if th is not None or in_z_order:
        raise ValueError(
            "batch has its own sort order; leave out th, or pass particles instead of an index, in input order."
        )
    if get_pos(part).shape[1] >= MAX_DIMS:
        raise ValueError(
            f"with batch, positions must have from 1 to {MAX_DIMS - 1} dimensions, but these have {MAX_DIMS}; use "
            "fewer."
        )
    _check_numbers(batch, part, "batch")
    if part_query is not None:
        _check_numbers(query_batch, part_query, "query_batch")


def _check_numbers(batch: Any, part: Particles | ArrayLike, name: str) -> None:
    rows = (num_rows(part),)
    check_representable({name: batch})
    if not hasattr(batch, "dtype") or not jnp.issubdtype(batch.dtype, jnp.integer) or np.shape(batch) != rows:
        kind = f"{batch.dtype} of shape {np.shape(batch)}" if hasattr(batch, "dtype") else type(batch).__name__
        raise TypeError(f"{name} must be an array of integers, one per row, {rows}; it is {kind}.")


def place_in_layers(
    part: Particles | ArrayLike,
    batch: ArrayLike | None,
    part_query: Particles | ArrayLike | None,
    query_batch: Any,
    box: Exact,
    limit: Radii,
) -> tuple[Layered, Layered | None, Exact, Radii]:
    """Put particles, and queries if there are any, into the layers of their batches.

    Args:
        part: Particles.
        batch: ``(n,)`` integers, the batch of each particle.
        part_query: Queries, or None.
        query_batch: ``(q,)`` integers, the batch of each query, or None.
        box: Periodic box.
        limit: Search radii.

    Returns:
        Both in layers, the box with the additional dimension, and search radii limited to half the distance between
        layers.

    Raises:
        ValueError or jax.errors.JaxRuntimeError: At run time, on all ranks, if a batch number is invalid.
    """
    parts, batches = ([part], [batch]) if part_query is None else ([part, part_query], [batch, query_batch])
    positions = [jnp.asarray(get_pos(part)) for part in parts]
    nums = [kernels.as_num(get_num(part)) for part in parts]
    spacing = _spacing(positions, nums, box)
    # Collectives must run in sequence: merge the checks into one.
    nums = comm.after(nums, jax.lax.bitcast_convert_type(spacing.astype(jnp.float32), jnp.int32))
    most = 2**24 if spacing.dtype == jnp.float32 else 2**31 - 1
    last_layer = _last_layer(spacing, most)
    faults = [
        fault
        for numbers in zip(batches, nums, ("batch", "query_batch"), strict=False)
        for fault in _faults(*numbers, most, last_layer, spacing.dtype)
    ]
    checked = comm.check_all(nums[0], faults)
    spacing = comm.after(spacing, checked)
    layered = [_layered(*one, spacing) for one in zip(parts, positions, batches, strict=True)]
    words = jnp.asarray(box.words)
    wider = Exact(jnp.concatenate([words, jnp.zeros_like(words[:1])]))
    return layered[0], layered[1] if layered[1:] else None, wider, _limited_to(limit, spacing / 2, words)


def _layered(part: Particles | ArrayLike, pos: jax.Array, batch: ArrayLike | None, spacing: jax.Array) -> Layered:
    return Layered(_with_layer(pos, jnp.asarray(batch), spacing), part, getattr(part, "num", None))


@functools.partial(jax.jit, inline=True)
def _with_layer(pos: jax.Array, batch: jax.Array, spacing: jax.Array) -> jax.Array:
    # If there is no space even for two adjacent layers, the coordinate of the second would overflow.
    layer = jnp.where(batch == 0, 0, batch.astype(pos.dtype) * spacing)
    return jnp.concatenate([pos, layer[:, None]], axis=1)


def _spacing(positions: Sequence[jax.Array], nums: Sequence[jax.Array], box: Exact) -> jax.Array:
    """Return the distance between layers, a scalar. Values that are not finite raise when particles are sorted."""
    bounds = [kernels.bounds(pos, num)[:2] for pos, num in zip(positions, nums, strict=True)]
    ends = comm.all_max(_ends(bounds))
    return _spacing_of(jax.lax.stop_gradient((ends, jnp.asarray(exact_to_float(box), ends.dtype))))


@functools.partial(jax.jit, inline=True)
def _ends(bounds: list[list[jax.Array]]) -> jax.Array:
    lower, upper = (jnp.stack(corners) for corners in zip(*bounds, strict=True))
    return jnp.stack([-lower.min(axis=0), upper.max(axis=0)])


@functools.partial(jax.jit, inline=True)
def _spacing_of(ends_and_period: tuple[jax.Array, jax.Array]) -> jax.Array:
    ends, period = ends_and_period
    return 2 * _power_above(jnp.sum(jnp.where(period > 0, period / 2, ends[0] + ends[1])))


@functools.partial(jax.jit, static_argnames="limit", inline=True)
def _last_layer(spacing: jax.Array, limit: int) -> jax.Array:
    return jnp.clip(jnp.floor(farthest_number(spacing.dtype) / spacing), 0, limit).astype(jnp.int32)


def _faults(
    batch: ArrayLike | None, num: jax.Array, name: str, most: int, last_layer: jax.Array, dtype: np.dtype[Any]
) -> list[comm.Fault]:
    """Report batch numbers that are invalid or above ``last_layer``, the last layer with valid coordinates."""
    batch = jnp.asarray(batch)
    last = min(most, jnp.iinfo(batch.dtype).max)  # JAX would cut ``most`` to the dtype of a narrow batch
    is_far, is_bad = _invalid_batches(batch, num, last_layer, last)
    far = first_row(is_far)
    return [
        row_fault(is_bad, None, _BAD_BATCH % (name, most)),
        comm.Fault(far >= 0, [far, value_of_row(batch, far), last_layer], _TOO_WIDE % (name, dtype.name)),
    ]


@functools.partial(jax.jit, static_argnames="last", inline=True)
def _invalid_batches(batch: jax.Array, num: jax.Array, last_layer: jax.Array, last: int) -> tuple[jax.Array, jax.Array]:
    """Return which batches are above ``last_layer``, and which are not from 0 to ``last``."""
    used = jnp.arange(batch.shape[0], dtype=jnp.int32) < num
    is_far = used & (batch > jnp.minimum(last_layer, last).astype(batch.dtype))
    return is_far, used & ((batch < 0) | (batch > last))


@functools.partial(jax.jit, inline=True)
def _in_first_word(number: jax.Array, box: jax.Array) -> jax.Array:
    """Return ``number`` as exact words, in the form of ``box``."""
    return jnp.zeros(box.shape[-1], box.dtype).at[0].set(number.astype(box.dtype))


def _limited_to(limit: Radii, half: jax.Array, box: jax.Array) -> Radii:
    """Return ``limit``, or ``half`` if that is smaller or there is no limit."""
    half_words = _in_first_word(half, box)
    if not limit.given():
        return Radii(Exact(half_words), None)
    words = jnp.asarray(limit.words().words)
    nearer = jnp.asarray(exact_to_float(limit.words())) < half
    words = jnp.where(nearer[..., None], words, half_words)
    return Radii(None, Exact(words)) if limit.for_all is None else Radii(Exact(words), None)


@functools.partial(jax.jit, inline=True)
def _power_above(length: jax.Array) -> jax.Array:
    """Return a power of two above ``length``, allowing for its rounding error; 1 if it is 0."""
    kind = jnp.finfo(length.dtype)
    whole = jnp.dtype(f"int{kind.bits}")
    exponent = jax.lax.bitcast_convert_type(length, whole) >> kind.nmant
    power = jax.lax.bitcast_convert_type(exponent << kind.nmant, length.dtype)
    return jnp.where(power > 0, 4 * power, jnp.ones_like(power))
