"""Ctrl-C ends the command line at once, with one sentence, and leaves no file half-written.

As an exception, an interrupt makes compiled modules crash that are being imported, is lost if it comes while Python
collects garbage, and waits for compiled code to return. So a thread waits for the signal and ends the process.
"""

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

INTERRUPTED = "jztree: interrupted; no output was left half-written."
STATUS = 130
_CLEAR_LINE = "\r\033[K"  # of a terminal, where progress may be shown
_ending = threading.Lock()
unfinished: set[str] = set()  # files that are to be removed if the process ends now


@contextmanager
def ending_at_once() -> Iterator[None]:
    """Let Ctrl-C end the process inside the block.

    Does nothing outside the main thread, to which signals go, and where interrupts are ignored or handled by others.
    """
    in_main_thread = threading.current_thread() is threading.main_thread()
    if not in_main_thread or signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        yield
        return
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    waiting = threading.Thread(target=_wait, args=(reading,), daemon=True)
    waiting.start()
    before = signal.set_wakeup_fd(writing)
    # The thread is quicker while the main one is in compiled code. Windows of pictures call the handler themselves.
    signal.signal(signal.SIGINT, lambda *_: _end())
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.set_wakeup_fd(before)
        os.close(writing)
        waiting.join()
        os.close(reading)


def _wait(reading: int) -> None:
    """End the process when the number of the signal comes through a pipe; return when that is closed."""
    while number := os.read(reading, 1):
        if number[0] == signal.SIGINT:
            _end()


def _end() -> None:
    if not _ending.acquire(blocking=False):  # the other thread is at it
        return
    for path in list(unfinished):
        with suppress(OSError):
            os.unlink(path)
    clear = _CLEAR_LINE if os.isatty(2) else ""
    with suppress(OSError):
        os.write(2, f"{clear}{INTERRUPTED}\n".encode())
    os._exit(STATUS)
