"""Progress reports for long tasks: a bar in a terminal, one line in a notebook, occasional lines in a batch log.

All reports go to standard error, from the first process of a job only, and short tasks report nothing. Standard output
contains only results. This module needs only the Python standard library.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from time import monotonic
from typing import Protocol, TextIO

__all__ = ["polled", "progress", "waiting"]

_SILENT_SECONDS = 0.5  # shorter tasks report nothing
_TICK_SECONDS = 0.5  # interval between updates for tasks of unknown length
_REDRAW_SECONDS = {"terminal": 0.1, "notebook": 0.5}
# A log gets a line once both the time and the share of the work have passed, or after the longest silence.
_LOG_SECONDS = 5.0
_LOG_SHARE = 0.1
_LOG_PATIENCE_SECONDS = 60.0
_LEAST_BAR, _MOST_BAR = 10, 30
_DEFAULT_COLUMNS = 80


class Advance(Protocol):
    """Reports completed work, and optionally the file or step that follows, in words."""

    def __call__(self, done: int, where: str = "") -> None: ...


@contextmanager
def progress(what: str, total: int, unit: str = "particles", *, quiet: bool = False) -> Iterator[Advance]:
    """Show the progress of the block, which reports each amount of completed work to the function that it receives.

    In a terminal the bar disappears when the block ends; in a notebook or a log a last line gives the duration. An
    error in the block removes the bar and propagates. You can call the function from any thread, and output errors
    never stop the task.

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
    shown = total > 0 and not quiet and stream is not None and _is_first_process()
    if not shown:
        yield lambda done, where="": None
        return
    display = _Display(what, total, unit, stream)
    well = False
    try:
        yield display.advance
        well = True
    finally:
        display.end(well)


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
    ended = threading.Event()
    thread = threading.Thread(target=_tick, args=(what, stream, ended), daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


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
    ended, told = threading.Event(), 0

    def tell() -> None:
        nonlocal told
        now = done()
        advance(now - told)
        told = now

    def repeat() -> None:
        while not ended.wait(_TICK_SECONDS):
            tell()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    tell()


def _tick(task: str, stream: TextIO, ended: threading.Event) -> None:
    """Write the elapsed time repeatedly until the task has ended."""
    start, length = monotonic(), 0
    # The stream may be closed.
    with contextlib.suppress(OSError, ValueError):
        while not ended.wait(_TICK_SECONDS):
            length = _columns(stream) - 1  # also covers the line of an enclosing `progress`
            line = f"{task}: {_duration(monotonic() - start)}"[:length]
            stream.write(f"\r{line:<{length}}")
            stream.flush()
        if length:
            stream.write(f"\r{' ' * length}\r")
            stream.flush()


def _is_first_process() -> bool:
    """Return whether this is the first or only process of its job, without importing JAX."""
    jax = sys.modules.get("jax")
    return jax is None or not jax.distributed.is_initialized() or jax.process_index() == 0


class _Display:
    """The state of the work and of its reports."""

    def __init__(self, task: str, total: int, unit: str, stream: TextIO) -> None:
        self.what, self.total, self.unit, self.stream = task, total, unit, stream
        self.kind = _kind(stream)
        self.done, self.where = 0, ""
        self.start = monotonic()
        # The last report: its time, the completed work, and the length of the line; 0 for no line.
        self.told_at, self.told_done, self.told_length = self.start, 0, 0
        self.lock = threading.Lock()

    def advance(self, done: int, where: str = "") -> None:
        with self.lock:
            self.done, self.where = min(self.done + done, self.total), where
            now = monotonic()
            if self._is_due(now):
                self._tell(now)

    def end(self, well: bool) -> None:
        with self.lock:
            if not self.told_length:
                return
            seconds = monotonic() - self.start
            last = f"{self.what}: {self.done:,} {self.unit} in {_duration(seconds)}"
            if self.kind == "terminal":
                self._write(f"\r{' ' * self.told_length}\r")
            elif self.kind == "notebook":
                self._write(f"\r{last:<{self.told_length}}\n" if well else "\n")
            elif well:
                self._write(f"{last}\n")

    def _is_due(self, now: float) -> bool:
        if now - self.start < _SILENT_SECONDS:
            return False
        since = now - self.told_at
        if self.kind == "log":
            more = self.done - self.told_done >= _LOG_SHARE * self.total
            return since >= _LOG_PATIENCE_SECONDS or (more and since >= _LOG_SECONDS)
        return not self.told_length or since >= _REDRAW_SECONDS[self.kind]

    def _tell(self, now: float) -> None:
        share = self.done / self.total
        left = f", {_duration((now - self.start) * (1 / share - 1))} left" if 0 < share < 1 else ""
        line = f"{self.what}: {share:.0%}, {self.done:,} of {self.total:,} {self.unit}{left}"
        line += f", {self.where}" if self.where else ""
        if self.kind == "log":
            self._write(f"{line}\n")
        else:
            # A wrapped line could not be overwritten.
            line = _with_bar(line, share, _columns(self.stream) - 1)
            self._write(f"\r{line:<{self.told_length}}")
        self.told_at, self.told_done, self.told_length = now, self.done, len(line)

    def _write(self, text: str) -> None:
        # The stream may be closed.
        with contextlib.suppress(OSError, ValueError):
            self.stream.write(text)
            self.stream.flush()


def _kind(stream: TextIO) -> str:
    """Return the target of ``stream``: a terminal, a notebook, or a log, which keeps all output."""
    if any(base.__module__.startswith("ipykernel") for base in type(stream).__mro__):
        return "notebook"
    with contextlib.suppress(ValueError):  # the stream may be closed
        if stream.isatty() and os.environ.get("TERM") != "dumb":
            return "terminal"
    return "log"


def _with_bar(line: str, share: float, columns: int) -> str:
    """Return a bar and ``line`` if both fit into this number of columns, otherwise as much of the line as fits."""
    width = min(columns - len(line) - len("[] "), _MOST_BAR)
    if width < _LEAST_BAR:
        return line[:columns]
    full = int(share * width)
    return f"[{'#' * full}{'.' * (width - full)}] {line}"


def _columns(stream: TextIO) -> int:
    """Return the number of characters per line; a terminal may be resized at any time."""
    with contextlib.suppress(OSError, ValueError, AttributeError):
        return os.get_terminal_size(stream.fileno()).columns or _DEFAULT_COLUMNS
    return _DEFAULT_COLUMNS


def _duration(seconds: float) -> str:
    """Return a duration in the usual form, such as ``8.2 s``, ``3 min 20 s`` or ``2 h 5 min``."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
