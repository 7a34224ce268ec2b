"""Buffers whose size depends on what other ranks hold, and what happens when one is too small.

Only such buffers can be too small: ghosts, and rows after an unequal distributed sort. Their size is fixed when a
function is traced. `room` gives it: what the user asked for, or what an earlier run turned out to need, or a default.
Whoever fills the buffer first reduces the need over all ranks and then raises on every rank alike
(`jztree.comm.check_room`), so that no rank waits for one that has given up. `retrying` recognises that error by a mark
in its text, because JAX keeps neither the type nor the attributes of errors that come out of compiled code, and runs
the function again with more room.
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
# An eighth more room than the last run needed, so that a run that needs slightly more does not compile again.
_SPARE = 8
_KEPT = (
    " It was to grow by itself, but a jax.jit of your own around the call keeps what was compiled; leave that out: "
    "mapped functions are compiled as a whole."
)
_LOG = logging.getLogger("jztree")


class CapacityError(RuntimeError):
    """A buffer for what other ranks send was too small, and its size was given or cannot be enlarged.

    option: which buffer. need, have: rows it should hold, and rows it had room for.
    """

    def __init__(self, sentence: str, option: str, need: int, have: int) -> None:
        super().__init__(sentence)
        self.option, self.need, self.have = option, need, have


@dataclass(frozen=True)
class Room:
    """The size of a buffer, and the name by which an error asks for more of it."""

    rows: int
    key: str

    @property
    def given(self) -> bool:
        """Whether the user asked for this size."""
        return _is_given(self.key)

    def mark(self) -> str:
        """What an error must say so that `retrying` enlarges this buffer; ``{0}`` and ``{1}`` are its need and size."""
        return f"[capacity {self.key} needs {{0}} has {{1}}]"


# What was learnt about buffers, by their keys: the rows that they needed.
_learnt: Innermost[dict[str, int]] = Innermost()


def room(option: str, given: int | None, default: int, most: int) -> Room:
    """The room for a buffer.

    option: its name in errors. given: the size that the user asked for, which is then kept; or None. default: the size
    to begin with. most: the size that is always enough; it also tells buffers of one name apart.
    """
    most = min(most, 2**31 - 1)
    key = f"{option}:{most if given is None else 'given'}"
    if given is not None:
        return Room(min(given, most), key)
    return Room(min(max(default, _learnt.get({}).get(key, 0)), most), key)


def _is_given(key: str) -> bool:
    return key.endswith(":given")


def learnt() -> tuple[tuple[str, int], ...]:
    """What the function that is being traced knows about its buffers: part of the key of everything compiled in it."""
    return tuple(sorted(_learnt.get({}).items()))


def learning(rooms: Mapping[str, int]) -> contextlib.AbstractContextManager[None]:
    """Trace with what was learnt about ``rooms``."""
    return _learnt.set(dict(rooms))


def retrying(run: Callable[[], Any], rooms: dict[str, int], name: str) -> Any:
    """``run()``, again and again with larger ``rooms`` as long as it fails for want of room in a buffer that can grow.

    Ends because a buffer only grows, up to a size that is always enough. Raises CapacityError if the size was given, or
    if the buffer stays as it is although it was to grow. If it fails with more room for another reason, for want of
    memory say, that room is forgotten: later calls may need less.
    """
    before = dict(rooms)
    while True:
        try:
            return run()
        except Exception as error:
            found = _MARK.search(str(error))
            if found is None:
                rooms.clear()
                rooms.update(before)
                explain(error, name)
                raise
            key, need, have = found[1], int(found[2]), int(found[3])
            if _is_given(key):
                _give_up(error, key, need, have)
            if rooms.get(key, 0) >= need:
                _give_up(error, key, need, have, _KEPT)
            rooms[key] = need + need // _SPARE
            _LOG.info("%s: room for %s enlarged from %d to %d rows; compiling again.", name, key, have, rooms[key])


def _give_up(error: Exception, key: str, need: int, have: int, more: str = "") -> NoReturn:
    text = str(error)
    sentence = text[max(text.find("jztree: "), 0) : text.find("[capacity")].strip() + more
    raise CapacityError(sentence, key.split(":", maxsplit=1)[0], need, have) from None
