"""Kernels for run-time checks."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.interpreters import batching
from numpy.typing import ArrayLike

from .._transform.primitives import primitive_of
from ..jax_ext import Exact, is_concrete
from ._call import Tree, as_num, call, i32, listed, sizes, words_of

__all__ = ["check", "check_lengths", "checked_lengths", "tree_fits"]


def check(num: ArrayLike, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """Return ``num``, or raise an error with ``sentence`` if ``failed``.

    The error is a ValueError if ``failed`` is known, and otherwise occurs at run time. The caller must continue with
    the returned ``num``; the compiler removes an unused output.

    Args:
        num: int32 scalar.
        failed: Whether to raise. If ``sentence`` has several lines, the number of the line to report, from 1 on.
        numbers: int32 scalars, which replace ``{0}``, ``{1}`` in ``sentence``.
        sentence: The message, or several, one per line.
    """
    if not all(map(is_concrete, (failed, *numbers))):
        return _checked_at_run_time(num, failed, numbers, sentence)
    line_number = int(failed)
    if line_number:
        line = sentence.split("\n")[line_number - 1]
        raise ValueError(re.sub(r"\{(\d+)\}", lambda mark: str(int(numbers[int(mark[1])])), line))
    return as_num(num)


@functools.partial(jax.jit, static_argnames="sentence", inline=True)
def _checked_at_run_time(num: int | jax.Array, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    values = jnp.stack([as_num(number) for number in numbers]) if numbers else jnp.zeros((0,), jnp.int32)
    return _check.bind(as_num(num), jnp.asarray(failed, jnp.int32), values, sentence=sentence)


def _run(num: jax.Array, failed: jax.Array, values: jax.Array, *, sentence: str) -> jax.Array:
    return call("check", i32(), num, failed, values, sentence=sentence)


# A primitive, because its batching rule names the failed member of a `jax.vmap`.
_check = primitive_of("jztree_check", _run, static="sentence")


def _mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, sentence: str) -> tuple[jax.Array, int]:
    """Check all members of a vmapped call at once. The error reports the first member that failed."""
    members = next(array.shape[dim] for array, dim in zip(arrays, dims, strict=True) if dim is not None)
    num, failed, values = (
        jnp.broadcast_to(array, (members, *array.shape)) if dim is None else jnp.moveaxis(array, dim, 0)
        for array, dim in zip(arrays, dims, strict=True)
    )
    if members == 0:
        return num, 0
    first = jnp.argmax(failed != 0).astype(jnp.int32)
    lines = [f"in member {{{values.shape[1]}}} of a vmap: {line}" for line in sentence.split("\n")]
    reported = jnp.append(values[first], first)
    return num + _check.bind(jnp.zeros((), jnp.int32), failed[first], reported, sentence="\n".join(lines)), 0


batching.primitive_batchers[_check] = _mapped


def checked_lengths(box: Exact, length: Exact | None = None, name: str = "") -> tuple[Exact, Exact]:
    """Return ``box`` and ``length``, or raise at run time if they are invalid as box lengths and linking length.

    As after `check`, the caller must continue with the returned values. All other kernels rely on this check. It
    is differentiable.

    Args:
        box: ``(d,)`` lengths, 0 if open.
        length: A length, or None.
        name: The user's name of the length.
    """
    box_words = words_of(box)
    checked = _checked_words(name, box_words, box_words[:0] if length is None else words_of(length))
    return Exact(checked[0]), Exact(checked[1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _checked_words(name: str, *words: jax.Array) -> tuple[jax.Array, ...]:
    out = tuple(jax.ShapeDtypeStruct(word.shape, word.dtype) for word in words)
    return tuple(call("lengths", out, *words, gradients="stopped", name=name))


@_checked_words.defjvp
def _checked_words_jvp(name: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return _checked_words(name, *primals), tangents


def check_lengths(box: Exact, length: Exact, name: str) -> None:
    """Run `checked_lengths` only for its errors. The compiler keeps this call although its results are unused."""
    words = [jax.lax.stop_gradient(words_of(length_words)) for length_words in (box, length)]
    out = tuple(jax.ShapeDtypeStruct(word.shape, word.dtype) for word in words)
    call("lengths", out, *words, gradients="stopped", always=True, name=name)


def tree_fits(tree: Tree, box: Exact, rows: jax.Array | None = None) -> jax.Array:
    """Return whether a hierarchy covers exactly these particles, each inside the box of its leaf, int32 scalar.

    All other kernels that take a hierarchy rely on it.

    Args:
        tree: The hierarchy.
        box: ``(d,)`` lengths, 0 if open.
        rows: ``(n,)`` int32, which must be from 0 to n - 1. None means no rows to check.
    """
    if not tree.fits():
        return jnp.zeros((), jnp.int32)
    return call("tree_fits", i32(), *tree.arrays, box.words, listed(rows), plane_sizes=sizes(tree.plane_sizes))
