"""Buffers whose size depends on data of other ranks, and the retry if one is too small.

Only such buffers can be too small: ghosts, and rows after an unequal distributed sort. Their size is fixed when a
function is traced. `choose_capacity` takes the size that the user passed, the size that an earlier run needed, or a
default. Before a buffer is filled, the required size is reduced over all ranks, and all ranks raise if the buffer is
too small (`jztree.comm.require_capacity`). So no rank waits for one that has failed.

JAX keeps neither the type nor the attributes of errors from compiled code. Therefore `retrying` recognises that error
by a mark in its text, and runs the function again with a larger buffer.
"""

import contextlib
import logging
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

from .innermost import Innermost
from .memory import explain

_MARK = re.compile(r"\[capacity (\S+) needs (\d+) has (\d+)\]")
# One eighth more capacity than the last run needed, so that a slightly larger need does not compile again.
_SPARE = 8
_KEPT = (
    " The buffer could not grow, because your jax.jit around the call keeps the compiled function; remove that "
    "jax.jit: jztree compiles mapped functions as a whole."
)
_LOG = logging.getLogger("jztree")


class CapacityError(RuntimeError):
    """A receive buffer was too small, and its size was fixed by the user or could not grow.

    Attributes:
        option: Name of the buffer.
        need: Number of rows required.
        have: The capacity.
    """

    def __init__(self, sentence: str, option: str, need: int, have: int) -> None:
        super().__init__(sentence)
        self.option, self.need, self.have = option, need, have


@dataclass(frozen=True)
class Capacity:
    """The size of a buffer, and the name by which an error requests a larger one."""

    rows: int
    key: str

    @property
    def given(self) -> bool:
        """Whether the user fixed this size."""
        return _is_given(self.key)

    def mark(self) -> str:
        """Return the mark by which `retrying` finds the buffer; ``{0}`` is the required size, ``{1}`` the current."""
        return f"[capacity {self.key} needs {{0}} has {{1}}]"


# The required sizes of buffers in rows, as known from earlier runs, by key.
_learnt: Innermost[dict[str, int]] = Innermost()


def choose_capacity(option: str, given: int | None, default: int, max_size: int) -> Capacity:
    """Choose the size of a buffer.

    Args:
        option: Its name in errors.
        given: The size fixed by the user, or None.
        default: The initial size.
        max_size: A size that is always enough; it also distinguishes buffers of the same name.
    """
    max_size = min(max_size, 2**31 - 1)
    key = f"{option}:{max_size if given is None else 'given'}"
    if given is not None:
        return Capacity(min(given, max_size), key)
    return Capacity(min(max(default, _learnt.get({}).get(key, 0)), max_size), key)


def _is_given(key: str) -> bool:
    return key.endswith(":given")


def learnt() -> tuple[tuple[str, int], ...]:
    """Return the known buffer sizes of the traced function: part of the key of everything compiled in it."""
    return tuple(sorted(_learnt.get({}).items()))


def learning(capacities: Mapping[str, int]) -> contextlib.AbstractContextManager[None]:
    """Trace with known buffer sizes."""
    return _learnt.set(dict(capacities))


def retrying(run: Callable[[], Any], capacities: dict[str, int], name: str) -> Any:
    """Call ``run``, and call it again with larger buffers while it fails because a buffer that can grow is too small.

    This ends because a buffer only grows, up to a size that is always enough. If a call with larger buffers fails for
    another reason, such as memory, the larger sizes are forgotten: later calls may need less.

    Args:
        run: The function.
        capacities: The known buffer sizes, which this function updates.
        name: Name of the function, for the log.

    Raises:
        CapacityError: If the user fixed the size, or if the buffer keeps its size although it should grow.
    """
    before = dict(capacities)
    while True:
        try:
            return run()
        except Exception as error:
            mark = _MARK.search(str(error))
            if mark is None:
                capacities.clear()
                capacities.update(before)
                explain(error, name)
                raise
            key, need, have = mark[1], int(mark[2]), int(mark[3])
            if _is_given(key):
                _give_up(error, key, need, have)
            if capacities.get(key, 0) >= need:
                _give_up(error, key, need, have, _KEPT)
            capacities[key] = need + need // _SPARE
            _LOG.info(
                "%s: capacity of %s enlarged from %d to %d rows; compiling again.", name, key, have, capacities[key]
            )


def _give_up(error: Exception, key: str, need: int, have: int, advice: str = "") -> NoReturn:
    text = str(error)
    sentence = text[max(text.find("jztree: "), 0) : text.find("[capacity")].strip() + advice
    raise CapacityError(sentence, key.split(":", maxsplit=1)[0], need, have) from None
