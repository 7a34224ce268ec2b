"""Kernels that find out, at run time, what is wrong."""

import functools
import re
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp

from ..jax_ext import Exact, is_concrete
from ._call import Tree, as_num, call, i32, sizes, words_of


def check(num: Any, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """``num``, or an error with ``sentence`` if ``failed``: ValueError where that is known, else one at run time.

    Of several sentences, one a line, it is that of the number that ``failed`` is, from 1 on: one check for all of them.

    The caller must go on with the returned ``num``; an output that nobody uses is removed by the compiler. ``{0}``,
    ``{1}`` in ``sentence`` stand for ``numbers`` (int32 scalars).
    """
    if not all(map(is_concrete, (failed, *numbers))):
        return _checked_at_run_time(num, failed, numbers, sentence)
    which = int(failed)
    if which:
        line = sentence.split("\n")[which - 1]
        raise ValueError(re.sub(r"\{(\d+)\}", lambda mark: str(int(numbers[int(mark[1])])), line))
    return as_num(num)


@functools.partial(jax.jit, static_argnames="sentence", inline=True)
def _checked_at_run_time(num: Any, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    values = jnp.stack([as_num(number) for number in numbers]) if numbers else jnp.zeros((0,), jnp.int32)
    return call("check", i32(), as_num(num), jnp.asarray(failed, jnp.int32), values, sentence=sentence)


def checked_lengths(box: Exact, length: Exact | None = None, name: str = "") -> tuple[Exact, Exact]:
    """``box`` and ``length``, or an error at run time if these cannot be box lengths and a linking length for them.

    The caller must go on with what it wanted checked of these, as with `check`. All other kernels rely on it.
    Differentiable. name: what the user calls the length.
    """
    checked = _checked_words(name, words_of(box), words_of(length))
    return Exact(checked[0]), Exact(checked[1])


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _checked_words(name: str, *words: jax.Array) -> tuple[jax.Array, ...]:
    out = tuple(jax.ShapeDtypeStruct(word.shape, word.dtype) for word in words)
    return tuple(call("lengths", out, *words, gradients="stopped", name=name))


@_checked_words.defjvp
def _checked_words_jvp(name: str, primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    return _checked_words(name, *primals), tangents


def check_lengths(box: Exact, length: Exact, name: str) -> None:
    """`checked_lengths` for who has nothing to go on with: it is not removed, although nobody uses a result."""
    words = [jax.lax.stop_gradient(words_of(one)) for one in (box, length)]
    out = tuple(jax.ShapeDtypeStruct(word.shape, word.dtype) for word in words)
    call("lengths", out, *words, gradients="stopped", always=True, name=name)


def tree_fits(tree: Tree, box: Exact) -> jax.Array:
    """Whether a hierarchy covers exactly these particles and every one lies in the box of its leaf, int32 scalar.

    All other kernels that take a hierarchy rely on it.
    """
    if not tree.fits():
        return jnp.zeros((), jnp.int32)
    return call("tree_fits", i32(), *tree.arrays, box.words, plane_sizes=sizes(tree.plane_sizes))
