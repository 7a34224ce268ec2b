"""End all processes if one ends by an exception.

JAX alone would let them hang: the failed process waits at its exit for the others, and they wait for it in a
collective. So `sys.excepthook` posts the error in the key-value store of JAX's coordinator, and a thread of each
process looks for it there. All processes then call `jax.distributed.shutdown`, which returns when all have called it,
so process 0, which holds the store, does not leave too early. The failed process otherwise ends as usual, within the
time limit: Python joins its threads, runs its `atexit` functions and flushes its files.
"""

import atexit
import contextlib
import os
import re
import socket
import sys
import threading
import traceback
from types import TracebackType
from typing import Any, NoReturn

import jax

_KEY = "jztree/launch/failure"
# Time between two looks for an error, and time to leave after an error. The sum is the promise of `initialize`.
_POLL_SECONDS, _LEAVE_SECONDS = 1.0, 4.0
_MAX_SUMMARY = 5000  # characters; gRPC limits a message to 4 MB
# A traceback inside a message, without its last line.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:  .*\n)+")


class FailureWatch:
    """Watch all processes for an exception that ends one.

    Attributes:
        name: This process in words.
        ending: Whether this process ends, for any reason.
        posted: Whether this process has posted its error.
    """

    def __init__(self, state: Any) -> None:
        self.client, self.pid = state.client, os.getpid()
        self.name = f"process {state.process_id} of {state.num_processes} on host {socket.gethostname()}"
        self.ending, self.posted = threading.Event(), False
        self.earlier_hook, sys.excepthook = sys.excepthook, self.excepthook
        self.listener = threading.Thread(target=self.listen, name="jztree launch", daemon=True)
        # JAX registered its own function when it was imported, so it runs later.
        atexit.register(self.finish)
        self.listener.start()

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self.pid or threading.current_thread() is not threading.main_thread():
            return self.earlier_hook(kind, error, trace)
        if self.ending.is_set():
            self.listener.join()  # it ends this process; this error is a consequence
        print_at_once(f"jztree: {self.name} ends with this error, and all other processes end with it:")
        try:
            self.earlier_hook(kind, error, trace)
        finally:
            self.post(summary_of(error), 1)

    def post(self, summary: str, code: int) -> None:
        """Tell all processes that this one has failed, and limit its remaining time."""
        self.posted = True
        self.ending.set()
        leave_later(code)
        with contextlib.suppress(Exception):  # another process may have failed earlier; its error counts
            self.client.key_value_set(_KEY, f"{self.name} has failed: {summary}")

    def listen(self) -> None:
        """End this process when another one has posted an error."""
        message = ""
        while not message:
            if self.ending.wait(_POLL_SECONDS):
                return
            with contextlib.suppress(Exception):  # JAX raises if the key is missing
                message = str(self.client.key_value_try_get(_KEY))
        self.ending.set()
        print_at_once(f"jztree: {self.name} ends because {message}")
        leave(1)

    def finish(self) -> None:
        """At exit, end the listener, which would crash later, and leave JAX's runtime if JAX would not."""
        if os.getpid() != self.pid:
            return
        error = getattr(sys, "last_value", None)
        if error is not None and sys.excepthook != self.excepthook and not self.ending.is_set():
            self.post(summary_of(error), 1)  # a hook of the user has reported the error
        self.ending.set()
        self.listener.join()  # if it has received an error, it ends this process
        self.earlier_hook = sys.__excepthook__  # the user's hook would keep the files of its module open
        try:
            if not self.posted:
                jax.effects_barrier()
        except Exception:  # a host callback has failed; JAX reports the error at its exit, and skips its shutdown
            self.posted = True
        if self.posted:
            jax.distributed.shutdown()


_watch: FailureWatch | None = None


def watch(state: Any) -> None:
    """Start to watch for failures, once. Does nothing in an interactive Python, which outlives an error."""
    global _watch  # noqa: PLW0603
    if _watch is None and not hasattr(sys, "ps1"):
        _watch = FailureWatch(state)


def fail(message: str, code: int) -> NoReturn:
    """Print ``message`` and end all processes; raise SystemExit if no failures are watched."""
    if _watch is not None and _watch.ending.is_set():
        _watch.listener.join()  # the error of another process ends this one, and interrupted its work
    print_at_once(message)
    if _watch is None:
        raise SystemExit(code)
    _watch.post(message, code)
    leave(code)


def leave(code: int) -> NoReturn:
    """Exit when all processes have left JAX's runtime, or when the time to leave is over."""
    leave_later(code)
    with contextlib.suppress(Exception):
        jax.distributed.shutdown()
    exit_now(code)


def leave_later(code: int) -> None:
    """Exit after the time to leave, if this process still runs then."""
    timer = threading.Timer(_LEAVE_SECONDS, exit_now, (code,))
    timer.daemon = True
    with contextlib.suppress(RuntimeError):  # Python starts no threads at its exit
        timer.start()


def exit_now(code: int) -> NoReturn:
    """Flush the output and exit without Python's usual steps, because some may hang."""
    print_at_once("")
    os._exit(code)


def summary_of(error: BaseException) -> str:
    """Return the last line of the traceback, without notes and without the tracebacks in JAX's messages."""
    lines = traceback.format_exception_only(error)
    message = next(line for line in lines if not line.startswith(" "))
    return _TRACEBACK.sub("", message).strip()[:_MAX_SUMMARY].encode(errors="backslashreplace").decode()


def print_at_once(text: str) -> None:
    """Flush the output, and print ``text`` with a single write, so that messages of several processes do not mix."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{text}\n" if text else "")
        sys.stderr.flush()
