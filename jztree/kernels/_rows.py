"""Kernels that move whole rows of any dtype."""

import functools
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._call import Continued, as_num, call, i32, listed

__all__ = [
    "gather_rows",
    "group_by_rank",
    "pack_segments",
    "place_rows",
    "row_words",
    "scatter_rows",
    "unpack_segments",
    "unwritten",
]


def gather_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """Return ``array[index]`` along the leading axis; ``index`` is ``(q,)`` int32 within bounds. Differentiable."""
    return _differentiable_gather(array, index) if jnp.issubdtype(array.dtype, jnp.inexact) else _gather(array, index)


def scatter_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """Return ``out`` with ``out[index] = array``; ``index``, ``(n,)`` int32, is a permutation. Differentiable."""
    return _differentiable_scatter(array, index) if jnp.issubdtype(array.dtype, jnp.inexact) else _scatter(array, index)


def _gather(array: jax.Array, index: jax.Array) -> jax.Array:
    out = jax.ShapeDtypeStruct((index.shape[0], *array.shape[1:]), array.dtype)
    return call("gather_rows", out, array, index, gradients="stopped")


def _scatter(array: jax.Array, index: jax.Array) -> jax.Array:
    out = jax.ShapeDtypeStruct(array.shape, array.dtype)
    return call("scatter_rows", out, array, index, gradients="stopped")


_differentiable_gather = jax.custom_jvp(_gather)


_differentiable_scatter = jax.custom_jvp(_scatter)


@_differentiable_gather.defjvp
def _gather_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _differentiable_gather(*primals), jnp.asarray(tangents[0])[primals[1]]


@_differentiable_scatter.defjvp
def _scatter_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    return _differentiable_scatter(*primals), jnp.zeros_like(tangents[0]).at[primals[1]].set(
        tangents[0], unique_indices=True
    )


@jax.custom_jvp
def as_gathered(moved: jax.Array, array: jax.Array, index: jax.Array) -> jax.Array:
    """Return ``moved``, the result ``array[index]`` of a kernel, with the derivative of that expression."""
    return moved


@as_gathered.defjvp
def _as_gathered_jvp(primals: tuple[Any, Any, Any], tangents: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    # Wrap the result again, or a second derivative would miss its dependence on the array.
    return as_gathered(*primals), jnp.asarray(tangents[1])[primals[2]]


def pack_segments(
    arrays: Sequence[jax.Array], order: jax.Array | None, starts: jax.Array, counts: jax.Array, chunk: int
) -> jax.Array:
    """Pack segments of rows into one buffer, ``(s, chunk, words)`` uint32, from arrays of any dtypes.

    Segment i holds the rows ``order[starts[i] + j]`` for j below ``counts[i]`` and ``chunk``. The rest of each segment
    of the buffer is undefined.

    Args:
        arrays: Each ``(n, ...)``.
        order: ``(m,)`` int32 rows. None means all rows in their order.
        starts: ``(s,)`` int32.
        counts: ``(s,)`` int32.
        chunk: Number of rows of a segment.
    """
    out = jax.ShapeDtypeStruct((starts.shape[0], chunk, row_words(arrays)), jnp.uint32)
    # The words are integers, but may hold floats.
    return call("pack_segments", out, listed(order), as_num(starts), as_num(counts), *arrays, gradients="refused")


def row_words(arrays: Sequence[jax.Array]) -> int:
    """Return the number of 32-bit words of a packed row of ``arrays``."""
    return -(-sum(int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays) // 4)


def unpack_segments(
    buffer: jax.Array, order: jax.Array | None, starts: jax.Array, counts: jax.Array, arrays: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """Return ``arrays`` with row j of segment i of a `pack_segments` buffer stored at row ``order[starts[i] + j]``."""
    args = buffer, listed(order), as_num(starts), as_num(counts)
    return call("unpack_segments", tuple(map(Continued, arrays)), *args)


def place_rows(
    source: Sequence[jax.Array],
    from_order: jax.Array | None,
    start: int | jax.Array,
    fills: Sequence[Any],
    to_order: jax.Array | None,
    target: Any,
    count: Any,
    capacity: int,
    first_filled: Any = 0,
) -> tuple[jax.Array, ...]:
    """Copy row ``from_order[start + j]`` of ``source`` to row ``to_order[target + j]`` of arrays of ``capacity`` rows.

    Here j is below ``count``. Rows that receive no copy get the number in ``fills`` if they are at or after
    ``first_filled``. Before ``first_filled`` they stay uninitialised, and the caller must write them. An order is a
    list of rows, int32; None means all rows in their order.
    """
    place = _stacked([start, target, count, first_filled])
    row = [_filled((1, *array.shape[1:]), value, array.dtype) for array, value in zip(source, fills, strict=True)]
    out = tuple(jax.ShapeDtypeStruct((capacity, *array.shape[1:]), array.dtype) for array in source)
    orders = listed(from_order), listed(to_order)
    return call("place_rows", out, *orders, place, *row, *source)


def _filled(shape: tuple[int, ...], value: Any, dtype: Any) -> Any:
    """Return an array of one value. Zeros are made on the host, because JAX compiles a program for each shape."""
    return np.zeros(shape, dtype) if type(value) is int and value == 0 else jnp.full(shape, value, dtype)


@functools.partial(jax.jit, inline=True)
def _stacked(numbers: Sequence[Any]) -> jax.Array:
    return jnp.stack(list(map(as_num, numbers)))


def unwritten(like: jax.Array, rows: int) -> jax.Array:
    """Return ``rows`` uninitialised rows of the shape and dtype of ``like``. The caller must write them."""
    return place_rows([like], None, 0, [0], None, 0, 0, rows, rows)[0]


def group_by_rank(rank: jax.Array, num: int | jax.Array, ndev: int) -> tuple[jax.Array, jax.Array]:
    """Sort rows stably by rank: return the row order, ``(m,)`` int32, and the number of rows of each rank, ``(ndev,)``.

    Rows from ``num`` on, and rows whose rank is not from 0 to ndev - 1, are left out. Entries after the last row are
    undefined.

    Args:
        rank: ``(m,)`` int32.
        num: int32 scalar.
        ndev: Number of ranks.
    """
    return call("group_by_rank", (i32(rank.shape[0]), i32(ndev)), rank, as_num(num))
