"""End the command line immediately on Ctrl-C or SIGTERM, with one sentence and without incomplete files.

A batch system sends SIGTERM when a job is cancelled or its time is over.

An interrupt as an exception would crash compiled modules during their import, would be lost during Python's garbage
collection, and would wait for compiled code to return. So a thread waits for the signal and ends the process.
"""

import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

INTERRUPTED = "jztree: interrupted; no incomplete output remains."
INTERRUPTED_STATUS = 130
# The signals, Python's default handlers, and the messages.
_SIGNALS: dict[int, tuple[Any, str]] = {
    signal.SIGINT: (signal.default_int_handler, INTERRUPTED),
    signal.SIGTERM: (signal.SIG_DFL, "jztree: terminated; no incomplete output remains."),
}
_CLEAR_LINE = "\r\033[K"  # for a terminal that may show progress
_ending = threading.Lock()
before_end: set[Callable[[], None]] = set()  # functions to call if a signal ends the process


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let the signals end the process inside the block, with 128 plus the number of the signal as exit status.

    This does nothing outside the main thread, which receives signals. It does not change signals that are ignored or
    have other handlers.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    mine = [number for number, (usual, _) in _SIGNALS.items() if signal.getsignal(number) == usual]
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    waiting = threading.Thread(target=_wait, args=(reading, mine), daemon=True)
    waiting.start()
    before = signal.set_wakeup_fd(writing)
    for number in mine:
        # The thread is faster while the main one runs compiled code. Picture windows call the handler themselves.
        signal.signal(number, lambda number, _: _end(number))
    try:
        yield
    finally:
        for number in mine:
            signal.signal(number, _SIGNALS[number][0])
        signal.set_wakeup_fd(before)
        os.close(writing)
        waiting.join()
        os.close(reading)


def _wait(reading: int, numbers: Sequence[int]) -> None:
    """End the process when the number of one of the signals arrives through a pipe; return when the pipe is closed."""
    while number := os.read(reading, 1):
        if number[0] in numbers:
            _end(number[0])


def _end(number: int) -> None:
    if not _ending.acquire(blocking=False):  # the other thread is already ending the process
        return
    for call in before_end:
        call()
    clear = _CLEAR_LINE if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{clear}{_SIGNALS[number][1]}\n".encode())
    os._exit(128 + number)
