"""Make an error on one rank an error on all: ranks agree on it before they continue."""

import functools
import operator
import re
from collections.abc import Sequence
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp

from .. import kernels
from .._particles import check_rows
from .._transform.capacity import Room
from ._ranks import all_gather, get_rank_info, vary

_Tree = TypeVar("_Tree")


class Fault(NamedTuple):
    """A possible error: whether it occurred, the numbers in its message, and the message; see `check`."""

    failed: Any
    numbers: Sequence[Any]
    sentence: str


def check(num: Any, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """Return ``num``, or raise an error with ``sentence`` on every rank at run time if ``failed`` is set on any.

    If ``sentence`` has several lines, ``failed`` is the number of the line to report, from 1 on.

    The caller must continue with the returned ``num``, also in messages to other ranks. ``{0}``, ``{1}`` in
    ``sentence`` stand for ``numbers`` (int32 scalars) of the first rank that failed with it; on several ranks the
    message begins with that rank.
    """
    return check_all(num, [Fault(failed, numbers, sentence)])


def check_all(num: Any, faults: Sequence[Fault]) -> jax.Array:
    """Check several faults with one collective; see `check`."""
    if not faults:
        return kernels.as_num(num)
    return check_and_tell(num, faults, jnp.zeros(0, jnp.int32))[0]


def check_and_tell(num: Any, faults: Sequence[Fault], value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Check faults and gather integers in one collective: see `check_all`, and ``value`` ``(...)`` of all ranks.

    The gathered values ``(r, ...)`` are available before the check is complete. If you use them without the checked
    ``num``, order them after the check with `after`.
    """
    _, ndev, _ = get_rank_info()
    lines: list[str] = []
    numbers: list[Any] = []
    before: list[int] = []  # number of sentences before those of each fault
    for fault in faults:
        before.append(len(lines))
        lines += [_renumbered(line, len(numbers)) for line in fault.sentence.split("\n")]
        numbers += fault.numbers
    told = _first_failure([fault.failed for fault in faults], numbers, tuple(before))
    values = value[None]
    if ndev > 1:
        words = jax.lax.bitcast_convert_type(value, jnp.int32)
        everyone = all_gather(jnp.concatenate([vary(jnp.stack(told)), vary(words).reshape(-1)]))
        values = jax.lax.bitcast_convert_type(everyone[:, len(told) :].reshape(ndev, *words.shape), value.dtype)
        # Report the failure with the first sentence: later ones may be its consequence on other ranks.
        first = jnp.argmin(jnp.where(everyone[:, 0] != 0, everyone[:, 0], jnp.iinfo(jnp.int32).max))
        told = [*everyone[first, : len(told)], first]
        lines = [f"on rank {{{len(numbers)}}}: {line}" for line in lines]
    return kernels.check(num, told[0], told[1:], "\n".join(lines)), values


@functools.partial(jax.jit, static_argnames="before", inline=True)
def _first_failure(failed: list[Any], numbers: list[Any], before: tuple[int, ...]) -> list[jax.Array]:
    """Return the number of the sentence to report, 0 for none, and its ``numbers``, int32."""
    found = [kernels.as_num(one) for one in failed]
    codes = [jnp.where(one != 0, one + first, 0) for one, first in zip(found, before, strict=True)]
    which = functools.reduce(lambda first, code: jnp.where(first != 0, first, code), codes)
    return [which, *map(kernels.as_num, numbers)]


def _renumbered(sentence: str, by: int) -> str:
    """Return a sentence with ``by`` added to its placeholders: ``{0}`` becomes ``{by}``, and so on."""
    return re.sub(r"\{(\d+)\}", lambda mark: f"{{{int(mark[1]) + by}}}", sentence)


def after(value: _Tree, *known: Any) -> _Tree:
    """Return ``value``, a pytree of arrays, with the same bits, but available to XLA only after all of ``known``.

    This orders the next operation, such as a collective of ``value``, after a check or another collective if the data
    alone implies no order. known: int32 counts, at least one in each array. None of them is negative, which XLA cannot
    infer.
    """
    return _after(value, known)


@functools.partial(jax.jit, inline=True)
def _after(value: _Tree, known: Sequence[Any]) -> _Tree:
    """Implement `after`, a public plain function, as one operation of the trace."""
    passed = functools.reduce(operator.and_, [jnp.asarray(count).reshape(-1)[0] >= 0 for count in known])
    return jax.tree.map(lambda leaf: jnp.where(passed, leaf, jnp.zeros((), leaf.dtype)), value)


def check_room(num: Any, needs: jax.Array, room: Room, what: str, advice: str) -> jax.Array:
    """Return ``num``, or raise a capacity error on every rank if the rows of some rank do not fit ``room``.

    needs: ``(r,)`` int32, the rows that each rank needs, known to all ranks. what, advice: see `exchange`.
    """
    check_rows(room.rows, f"rows to be kept for {what}")
    worst = jnp.argmax(needs)
    sentence = f"rank {{2}} needs room for {{0}} rows of {what}, and has room for {{1}}; {advice} {room.mark()}"
    return kernels.check(num, needs[worst] > room.rows, [needs[worst], room.rows, worst], sentence)
