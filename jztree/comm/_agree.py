"""What may fail on one rank fails on all: ranks agree on it before they go on."""

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
    """A possible error: whether it occurred, and its sentence; see `check`."""

    failed: Any
    numbers: Sequence[Any]
    sentence: str


def check(num: Any, failed: Any, numbers: Sequence[Any], sentence: str) -> jax.Array:
    """``num``, or an error with ``sentence`` on every rank at run time if it ``failed`` on any.

    Of several sentences, one a line, it is that of the number that ``failed`` is, from 1 on.

    The caller must go on with the returned ``num``, also in what it says to other ranks. ``{0}``, ``{1}`` in
    ``sentence`` stand for ``numbers`` (int32 scalars) of the first rank that failed so; on several ranks the sentence
    begins with it.
    """
    return check_all(num, [Fault(failed, numbers, sentence)])


def check_all(num: Any, faults: Sequence[Fault]) -> jax.Array:
    """`check` for several things that may be wrong, with one collective."""
    if not faults:
        return kernels.as_num(num)
    return check_and_tell(num, faults, jnp.zeros(0, jnp.int32))[0]


def check_and_tell(num: Any, faults: Sequence[Fault], value: jax.Array) -> tuple[jax.Array, jax.Array]:
    """What `check_all` returns, and the integers ``value`` ``(...)`` of all ranks ``(r, ...)``, in one collective.

    These are there before the check is over; whoever goes on with them alone puts them behind it, see `after`.
    """
    _, ndev, _ = get_rank_info()
    lines: list[str] = []
    numbers: list[Any] = []
    before: list[int] = []  # how many sentences are before those of each
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
        # Of several failures it is the first sentence's, for later ones may follow from it on other ranks.
        first = jnp.argmin(jnp.where(everyone[:, 0] != 0, everyone[:, 0], jnp.iinfo(jnp.int32).max))
        told = [*everyone[first, : len(told)], first]
        lines = [f"on rank {{{len(numbers)}}}: {line}" for line in lines]
    return kernels.check(num, told[0], told[1:], "\n".join(lines)), values


@functools.partial(jax.jit, static_argnames="before", inline=True)
def _first_failure(failed: list[Any], numbers: list[Any], before: tuple[int, ...]) -> list[jax.Array]:
    """The number of the sentence to be told, 0 if there is none, and ``numbers`` for it, int32."""
    found = [kernels.as_num(one) for one in failed]
    codes = [jnp.where(one != 0, one + first, 0) for one, first in zip(found, before, strict=True)]
    which = functools.reduce(lambda first, code: jnp.where(first != 0, first, code), codes)
    return [which, *map(kernels.as_num, numbers)]


def _renumbered(sentence: str, by: int) -> str:
    """A sentence whose ``{0}`` is ``{by}``, and so on."""
    return re.sub(r"\{(\d+)\}", lambda mark: f"{{{int(mark[1]) + by}}}", sentence)


def after(value: _Tree, *known: Any) -> _Tree:
    """``value``, a pytree of arrays, with the same bits; XLA knows it only once it knows all of ``known``.

    Puts what comes next, a collective of ``value`` say, behind a check or another collective where the data alone says
    nothing of an order. known: int32 counts, at least one each. None of them is negative, which XLA cannot see.
    """
    return _after(value, known)


@functools.partial(jax.jit, inline=True)
def _after(value: _Tree, known: Sequence[Any]) -> _Tree:
    """`after`, which is public and so a plain function, as one operation of what is traced."""
    passed = functools.reduce(operator.and_, [jnp.asarray(count).reshape(-1)[0] >= 0 for count in known])
    return jax.tree.map(lambda leaf: jnp.where(passed, leaf, jnp.zeros((), leaf.dtype)), value)


def check_room(num: Any, needs: jax.Array, room: Room, what: str, advice: str) -> jax.Array:
    """``num``, or a capacity error on every rank if what some rank needs does not fit ``room``.

    needs: ``(r,)`` int32, the rows that each rank needs, known to all. what, advice: see `exchange`.
    """
    check_rows(room.rows, f"rows to be kept for {what}")
    worst = jnp.argmax(needs)
    sentence = f"rank {{2}} needs room for {{0}} rows of {what}, and has room for {{1}}; {advice} {room.mark()}"
    return kernels.check(num, needs[worst] > room.rows, [needs[worst], room.rows, worst], sentence)
