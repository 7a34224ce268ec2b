"""Progress reports for long tasks, by tqdm: a bar in a terminal or a notebook, occasional lines in a batch log.

All reports go to standard error, from the first process of a job only, and short tasks report nothing. Standard output
contains only results.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Protocol, TextIO

from tqdm import tqdm

__all__ = ["polled", "progress", "waiting"]

_SILENT_SECONDS = 0.5  # shorter tasks report nothing
_TICK_SECONDS = 0.5  # interval between updates for tasks of unknown length
_LOG_SECONDS = 20.0  # least interval between lines of a log
_LINE = "{desc}: {percentage:.0f}%, {n_fmt} of {total_fmt}{unit} in {elapsed}, {remaining} left{postfix}"


class Advance(Protocol):
    """Reports completed work, and optionally the file or step that follows, in words."""

    def __call__(self, done: int, where: str = "") -> None: ...


@contextmanager
def progress(what: str, total: int, unit: str = "particles", *, quiet: bool = False) -> Iterator[Advance]:
    """Show the progress of the block, which reports each amount of completed work to the function that it receives.

    In a terminal the bar disappears when the block ends; in a notebook or a log the last line remains. You can call the
    function from any thread, and output errors never stop the task.

    Args:
        what: The task, in words such as ``"read snapshot"``.
        total: The total amount of work, in ``unit``; a total below 1 shows nothing.
        unit: Name of the counted unit, in the plural.
        quiet: Show nothing.

    Yields:
        A function that takes the amount of work completed since its last call, and optionally where the work goes on,
        such as the name of a file.

    Examples:
        >>> from jztree_utils.progress import progress
        >>> with progress("read snapshot", 1000) as advance:
        ...     for _ in range(10):
        ...         advance(100)
    """
    stream = sys.stderr
    if total < 1 or quiet or stream is None or not _is_first_process():
        yield lambda done, where="": None
        return
    bar, lock = _bar(what, total, unit, stream), threading.Lock()

    def advance(done: int, where: str = "") -> None:
        with lock, _ignored_output_errors():
            bar.set_postfix_str(where, refresh=False)
            bar.update(min(done, total - bar.n))

    try:
        yield advance
    finally:
        with _ignored_output_errors():
            bar.close()


@contextmanager
def waiting(what: str, *, quiet: bool = False) -> Iterator[None]:
    """Show in a terminal the running time of a block whose progress is unknown.

    The line disappears when the block ends, also after an error. In a notebook or a log nothing is shown. The block may
    be a step of a block with `progress`.

    Args:
        what: The task, in words such as ``"find groups"``.
        quiet: Show nothing.

    Examples:
        >>> from jztree_utils.progress import waiting
        >>> with waiting("find groups"):
        ...     labels = jz.group_labels(np.zeros((5, 3), np.float32), 0.1)
    """
    stream = sys.stderr
    if quiet or stream is None or not _is_first_process() or _kind(stream) != "terminal":
        yield
        return
    # Without a delay, tqdm shows the time at once.
    options: dict[str, Any] = {"mininterval": 0, "miniters": 0, "delay": 1e-3}
    line: tqdm[Any] = tqdm(desc=what, bar_format="{desc}: {elapsed}", leave=False, file=stream, **options)

    def show() -> None:
        with _ignored_output_errors():
            line.update(0)

    try:
        with _repeated(show):
            yield
    finally:
        with _ignored_output_errors():
            line.close()


@contextmanager
def polled(done: Callable[[], int], advance: Callable[[int], None]) -> Iterator[None]:
    """Report the progress of a block that is one long call. A thread asks for it while the block runs.

    Args:
        done: Returns the amount of work completed since the start of the block. The thread calls it twice a second, and
            once after a block without an error.
        advance: The function that `progress` yields.

    Examples:
        >>> from jztree_utils.progress import polled, progress
        >>> numbers = []
        >>> with progress("add numbers", 1000, "numbers") as advance, polled(lambda: len(numbers), advance):
        ...     numbers.extend(range(1000))
    """
    reported = 0

    def report() -> None:
        nonlocal reported
        now = done()
        advance(now - reported)
        reported = now

    with _repeated(report):
        yield
    report()


@contextmanager
def _repeated(call: Callable[[], None]) -> Iterator[None]:
    """Call a function from a thread twice a second while the block runs."""
    ended = threading.Event()

    def repeat() -> None:
        while not ended.wait(_TICK_SECONDS):
            call()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _bar(task: str, total: int, unit: str, stream: TextIO) -> "tqdm[Any]":
    kind = _kind(stream)
    options: dict[str, Any] = {"total": total, "desc": task, "unit": f" {unit}", "unit_scale": total > 1000}
    options |= {"file": stream, "delay": _SILENT_SECONDS}
    if kind == "log":
        return _Log(bar_format=_LINE, mininterval=_LOG_SECONDS, miniters=1, **options)
    return tqdm(dynamic_ncols=True, leave=kind == "notebook", **options)


class _Log(tqdm):
    """A bar that writes each report on a separate line."""

    def display(self, msg: str | None = None, pos: int | None = None) -> None:
        # `close` has set `disable`, and ends the line.
        self.fp.write(f"{self}" if self.disable else f"{self}\n")
        self.fp.flush()


def _ignored_output_errors() -> contextlib.AbstractContextManager[None]:
    """The stream may be closed."""
    return contextlib.suppress(OSError, ValueError)


def _is_first_process() -> bool:
    """Return whether this is the first or only process of its job, without importing JAX."""
    jax = sys.modules.get("jax")
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


def _kind(stream: TextIO) -> str:
    """Return the target of ``stream``: a terminal, a notebook, or a log, which keeps all output."""
    if any(base.__module__.startswith("ipykernel") for base in type(stream).__mro__):
        return "notebook"
    with contextlib.suppress(ValueError):  # the stream may be closed
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            return "terminal"
    return "log"
