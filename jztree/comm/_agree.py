"""Make an error on one rank an error on all: ranks agree on it before they continue."""

from __future__ import annotations

import functools
import itertools
import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import kernels
from .._transform.capacity import Capacity
from ..particles import check_rows
from ._ranks import all_gather, get_rank_info, vary

_Tree = TypeVar("_Tree")


class Fault(NamedTuple):
    """A possible error; see `check`.

    Attributes:
        failed: Whether it occurred.
        numbers: The numbers in its message.
        sentence: The message.
    """

    failed: Any
    numbers: Sequence[Any]
    sentence: str


def check(num: ArrayLike, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """Return ``num``, or raise an error with ``sentence`` on every rank at run time if ``failed`` is set on any.

    The caller must continue with the returned ``num``, also in messages to other ranks. On several ranks the message
    begins with the first rank that failed with this sentence.

    Args:
        num: int32 scalar.
        failed: Whether to raise. If ``sentence`` has several lines, the number of the line to report, from 1 on; larger
            numbers report the last line.
        numbers: int32 scalars. The numbers on the first rank that failed replace ``{0}``, ``{1}`` in ``sentence``.
        sentence: The message, or several, one per line. It must agree on all ranks.

    Returns:
        ``num``, available only after the check.
    """
    return check_all(num, [Fault(failed, numbers, sentence)])


def check_all(num: ArrayLike, faults: Sequence[Fault]) -> jax.Array:
    """Check several faults with one collective; see `check`.

    Args:
        num: int32 scalar.
        faults: Possible errors, the same sentences in the same order on all ranks.

    Returns:
        ``num``, available only after the checks.
    """
    if not faults:
        return kernels.as_num(num)
    return check_and_gather(num, faults, np.zeros(0, np.int32))[0]


def check_and_gather(num: ArrayLike, faults: Sequence[Fault], value: Any) -> tuple[jax.Array, Any]:
    """Check faults and gather integers in one collective: see `check_all`, and ``value`` ``(...)`` of each rank.

    The gathered values ``(r, ...)`` are available before the check is complete. If you use them without the checked
    ``num``, order them after the check with `after`.
    """
    _, ndev, _ = get_rank_info()
    lines: list[str] = []
    numbers: list[Any] = []
    before: list[int] = [0]  # number of sentences before each fault, and in total
    for fault in faults:
        lines += [_renumbered(line, len(numbers)) for line in fault.sentence.split("\n")]
        numbers += fault.numbers
        before.append(len(lines))
    report = _first_failure([fault.failed for fault in faults], numbers, tuple(before))
    values = value[None]
    if ndev > 1:
        words = jax.lax.bitcast_convert_type(value, jnp.int32)
        gathered = all_gather(jnp.concatenate([vary(jnp.stack(report)), vary(words).reshape(-1)]))
        values = jax.lax.bitcast_convert_type(gathered[:, len(report) :].reshape(ndev, *words.shape), value.dtype)
        # Report the failure with the first sentence: later ones may be its consequence on other ranks.
        first = jnp.argmin(jnp.where(gathered[:, 0] != 0, gathered[:, 0], jnp.iinfo(jnp.int32).max))
        report = [*gathered[first, : len(report)], first]
        lines = [f"on rank {{{len(numbers)}}}: {line}" for line in lines]
    return kernels.check(num, report[0], report[1:], "\n".join(lines)), values


@functools.partial(jax.jit, static_argnames="before", inline=True)
def _first_failure(failed: list[Any], numbers: list[Any], before: tuple[int, ...]) -> list[jax.Array]:
    """Return the number of the sentence to report, 0 for none, and its ``numbers``, int32."""
    numbers_of_sentences = [kernels.as_num(number) for number in failed]
    codes = [
        jnp.where(number != 0, jnp.minimum(number + first, last), 0)
        for number, (first, last) in zip(numbers_of_sentences, itertools.pairwise(before), strict=True)
    ]
    failed_sentence = functools.reduce(lambda first, code: jnp.where(first != 0, first, code), codes)
    return [failed_sentence, *map(kernels.as_num, numbers)]


def _renumbered(sentence: str, by: int) -> str:
    """Return a sentence with ``by`` added to its placeholders: ``{0}`` becomes ``{by}``, and so on."""
    return re.sub(r"\{(\d+)\}", lambda mark: f"{{{int(mark[1]) + by}}}", sentence)


def after(value: _Tree, *known: Any) -> _Tree:
    """Return ``value`` with the same bits, but available to XLA only after all arrays in ``known``.

    Use this to order an operation on ``value``, such as a collective, after a check or another collective, if the
    operation does not use the result of that check or collective anyway.

    Args:
        value: A pytree of arrays.
        known: int32 counts, at least one in each array. They must not be negative. XLA cannot infer this, so it cannot
            remove the dependence.

    Returns:
        A pytree like ``value``.
    """
    return _after(value, known)


@functools.partial(jax.jit, inline=True)
def _after(value: _Tree, known: Sequence[Any]) -> _Tree:
    """Implement `after`, a public plain function, in one operation of the trace."""
    passed = functools.reduce(operator.and_, [jnp.asarray(count).reshape(-1)[0] >= 0 for count in known])
    return jax.tree.map(lambda leaf: jnp.where(passed, leaf, jnp.zeros((), leaf.dtype)), value)


def require_capacity(num: int | jax.Array, needs: jax.Array, capacity: Capacity, what: str, advice: str) -> jax.Array:
    """Return ``num``, or raise a capacity error on every rank if the rows of some rank do not fit.

    Args:
        num: int32 scalar.
        needs: ``(r,)`` int32, the rows that each rank needs, known to all ranks.
        capacity: Number of rows that each rank can hold.
        what: See `exchange`.
        advice: See `exchange`.
    """
    check_rows(capacity.rows, f"rows to be kept for {what}")
    sentence = (
        f"rank {{2}} needs capacity for {{0}} rows of {what}, but has capacity for {{1}}; {advice} {capacity.mark()}"
    )
    is_too_large, need, worst = _worst_need(needs, capacity.rows)
    return kernels.check(num, is_too_large, [need, capacity.rows, worst], sentence)


@functools.partial(jax.jit, inline=True)
def _worst_need(needs: jax.Array, rows: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return whether the largest need exceeds ``rows``, the need, and its rank."""
    need = jnp.max(needs)
    return need > rows, need, jnp.argmax(needs)
