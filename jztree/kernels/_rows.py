"""Kernels that move whole rows of any dtype."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ._call import Continued, as_num, call, i32, listed


def gather_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """``array[index]`` along the leading axis, ``index`` being ``(q,)`` int32 inside the array. Differentiable."""
    return _differentiable_gather(array, index) if jnp.issubdtype(array.dtype, jnp.inexact) else _gather(array, index)


def scatter_rows(array: jax.Array, index: jax.Array) -> jax.Array:
    """``out`` with ``out[index] = array``, where ``index``, ``(n,)`` int32, orders all ``n`` rows. Differentiable."""
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
    """``moved``, which is ``array[index]`` as a kernel made it, with the derivative of that."""
    return moved


@as_gathered.defjvp
def _as_gathered_jvp(primals: tuple[Any, Any, Any], tangents: tuple[Any, Any, Any]) -> tuple[Any, Any]:
    # Again, or a second derivative would not see that it depends on the array.
    return as_gathered(*primals), jnp.asarray(tangents[1])[primals[2]]


def pack_segments(
    arrays: Sequence[jax.Array], order: jax.Array | None, starts: jax.Array, counts: jax.Array, chunk: int
) -> jax.Array:
    """Segments of rows packed into one buffer, ``(s, chunk, words)`` uint32, whatever arrays the rows are made of.

    arrays: each ``(n, ...)``. order: ``(m,)`` int32 rows; None is all rows in their order. starts, counts: ``(s,)``
        int32: segment i holds the rows ``order[starts[i] + j]`` for j below ``counts[i]`` and ``chunk``. What comes
        after them in the buffer is undefined.
    """
    out = jax.ShapeDtypeStruct((starts.shape[0], chunk, row_words(arrays)), jnp.uint32)
    # Words of 32 bits, but floats may be in them.
    return call("pack_segments", out, listed(order), as_num(starts), as_num(counts), *arrays, gradients="refused")


def row_words(arrays: Sequence[jax.Array]) -> int:
    """Words of 32 bits that a row of all ``arrays`` together needs when it is packed."""
    return -(-sum(int(np.prod(array.shape[1:])) * array.dtype.itemsize for array in arrays) // 4)


def unpack_segments(
    buffer: jax.Array, order: jax.Array | None, starts: jax.Array, counts: jax.Array, arrays: Sequence[jax.Array]
) -> tuple[jax.Array, ...]:
    """``arrays`` with row j of segment i of a buffer of `pack_segments` as row ``order[starts[i] + j]``."""
    args = buffer, listed(order), as_num(starts), as_num(counts)
    return call("unpack_segments", tuple(map(Continued, arrays)), *args)


def place_rows(
    source: Sequence[jax.Array],
    from_order: jax.Array | None,
    start: Any,
    fills: Sequence[Any],
    to_order: jax.Array | None,
    target: Any,
    count: Any,
    room: int,
    first_filled: Any = 0,
) -> tuple[jax.Array, ...]:
    """Arrays of ``room`` rows with row ``from_order[start + j]`` of ``source`` as row ``to_order[target + j]``, j below
    ``count``, and the number in ``fills`` everywhere else from row ``first_filled`` on. What is before that and not
    placed here is left as it is, for others to write.

    An order is a list of rows, int32; None is all rows in their order.
    """
    place = jnp.stack([as_num(start), as_num(target), as_num(count), as_num(first_filled)])
    row = [jnp.full((1, *array.shape[1:]), value, array.dtype) for array, value in zip(source, fills, strict=True)]
    out = tuple(jax.ShapeDtypeStruct((room, *array.shape[1:]), array.dtype) for array in source)
    orders = listed(from_order), listed(to_order)
    return call("place_rows", out, *orders, place, *row, *source)


def unwritten(like: jax.Array, rows: int) -> jax.Array:
    """So many rows like those of an array, in memory that nobody has written to: for others to write."""
    return place_rows([like], None, 0, [0], None, 0, 0, rows, rows)[0]


def group_by_rank(rank: jax.Array, num: Any, ndev: int) -> tuple[jax.Array, jax.Array]:
    """Rows in the order of their ranks, ``(m,)`` int32, stable, and how many each rank has, ``(ndev,)``.

    rank: ``(m,)`` int32. Rows from ``num`` on and those whose rank is not from 0 to ndev - 1 are left out; what is
        behind the last row is of no meaning.
    """
    return call("group_by_rank", (i32(rank.shape[0]), i32(ndev)), rank, as_num(num))
