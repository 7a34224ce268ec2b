"""Ending together: what goes wrong on one process or one device ends all that wait for it, within seconds, with the
reason.

* `end_together` watches the peers of this process. Left alone, a process that raises waits at exit for its peers, and
  these wait for it in a collective.
* `watch_callbacks` ends a process in which a host callback has raised on one device while others wait for that one.
"""

import atexit
import contextlib
import logging
import os
import re
import socket
import sys
import threading
import time
import traceback
from types import TracebackType
from typing import Any, NoReturn

import jax

# Time for a process to report the error that it shares with its peers by itself, before they end it.
_GRACE_SECONDS = 0.5
# What it may take to tell the peers; the coordinator may be gone.
_TELL_SECONDS = 3.0
# For how long a process may be at work after a peer has finished.
_FINISH_SECONDS = 3600
_FAILURE_KEY = "jztree/launch/failure"
# Between the end of that timeout and the word of it.
_HEARTBEAT_MARGIN_SECONDS = 10
# What collectives say when a peer is gone; which one it was, they know only by the number of a port, or not at all.
_LOST_PEER = re.compile(r"(gloo|nccl).*(closed|peer|pipe|remote|reset)", re.IGNORECASE | re.DOTALL)

# Where JAX reports that a host callback has raised, and how.
_CALLBACK_LOGGERS = ("jax._src.callback", "jax._src.debugging")
_CALLBACK_FAILED = re.compile(r"jax\.\w+(\.\w+)? failed")
# Time for a program to be told of that by JAX, before it counts as stuck.
_STUCK_SECONDS = 3.0


class _Watch:
    """Tells the peers when this process fails, ends it when one of them does, and lets it leave when all have finished.

    The message travels through the key-value store of JAX's coordinator, where a thread of every process waits for one
    key. A process that is killed writes nothing; JAX ends its peers when its heartbeats stop.
    """

    def __init__(self, state: Any, heartbeat: int) -> None:
        self.state, self.heartbeat = state, heartbeat
        self.client = state.client
        self.process_id = int(state.process_id)
        self.num_processes = int(state.num_processes)
        self.pid = os.getpid()
        self.exit_code: object = None
        self.ending = threading.Event()
        self.listener = threading.Thread(target=self.listen, name="jztree peers", daemon=True)

    @property
    def name(self) -> str:
        return f"process {self.process_id} of {self.num_processes} on host {socket.gethostname()}"

    def start(self) -> None:
        self.plain_excepthook, self.plain_exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self.excepthook, self.exit
        # Runs before JAX's own, which was registered when JAX was imported.
        atexit.register(self.finish)
        self.listener.start()

    # How this process ends

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self.pid:  # a fork
            return self.plain_excepthook(kind, error, trace)
        lines = traceback.format_exception(kind, error, trace)
        summary = _summary_of(error)
        if _LOST_PEER.search(summary):
            self.wait_for_the_cause(summary)
        # From now on this process ends by itself.
        self.ending.set()
        report = f"jztree: {self.name} ends with this error, and with it all others:\n{''.join(lines)}"
        self.end(report, summary, 130 if issubclass(kind, KeyboardInterrupt) else 1)

    def wait_for_the_cause(self, summary: str) -> None:
        """Let this process be ended by what ended a peer: by the peer's own message, which `listen` gets, or by JAX,
        which names the peer when its heartbeats stop. Returns if neither comes.
        """
        # A peer that could say what it was has said so before it left.
        if not self.ending.wait(2 * _GRACE_SECONDS):
            _print_at_once(
                f"jztree: {self.name} has lost the connection to another process; which one will be known when that "
                f"process has missed its heartbeats for {self.heartbeat} s. What was seen here: {summary}"
            )
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(self.heartbeat + _HEARTBEAT_MARGIN_SECONDS)

    def exit(self, code: Any = None, /) -> NoReturn:
        """``sys.exit``, whose argument is told nowhere else."""
        self.exit_code = code
        self.plain_exit(code)

    def finish(self) -> None:
        """At exit: fail if ``sys.exit`` said so, else wait for the peers.

        JAX would wait too, but for 300 s, and then end those that are still at work, say writing a file.
        """
        if os.getpid() != self.pid or self.state.client is not self.client:
            return
        if self.exit_code not in (None, 0):
            code = self.exit_code if isinstance(self.exit_code, int) else 1
            self.end("", f"sys.exit({self.exit_code!r}) was called", code)
        try:
            jax.effects_barrier()
        except Exception:
            # JAX's own exit would stumble over this, and leave a connection open that aborts the process.
            traceback.print_exc()
            forget_failed_callbacks()
        with contextlib.suppress(Exception):
            self.client.wait_at_barrier("jztree/launch/finished", _FINISH_SECONDS * 1000)
            # A thread that is still inside gRPC would crash when Python ends; this wakes it.
            self.client.key_value_set(_FAILURE_KEY, "")
        self.listener.join(_TELL_SECONDS)

    def end(self, report: str, summary: str, code: int) -> NoReturn:
        """Print ``report``, tell the peers the ``summary``, and leave without waiting for anything."""
        self.ending.set()
        _print_at_once(report)
        # In a thread, because the coordinator may be out of reach.
        teller = threading.Thread(target=self.tell, args=(summary,), daemon=True)
        try:
            teller.start()
            teller.join(_TELL_SECONDS)
        except RuntimeError:  # at exit Python starts no threads any more
            self.tell(summary)
        self.leave(code)

    def tell(self, summary: str) -> None:
        # Another process may have failed before; its message is the one that counts.
        with contextlib.suppress(Exception):
            self.client.key_value_set(_FAILURE_KEY, f"{self.name} has failed: {summary}")

    def leave(self, code: int) -> NoReturn:
        if self.process_id == 0:
            # The coordinator ends with this process, and JAX aborts those that are still there.
            time.sleep(2 * _GRACE_SECONDS)
        os._exit(code)

    # How its peers end it

    def listen(self) -> None:
        message = self.wait_for_failure()
        if not message or self.ending.wait(_GRACE_SECONDS):
            return
        self.ending.set()
        _print_at_once(f"jztree: {self.name} ends because {message}")
        self.leave(1)

    def wait_for_failure(self) -> str:
        """What a peer says when it fails; empty once there is nothing to wait for any more."""
        while True:
            try:
                return str(self.client.blocking_key_value_get(_FAILURE_KEY, 3_600_000))
            except Exception as error:
                if "DEADLINE_EXCEEDED" in str(error):
                    continue
                if "UNAVAILABLE" in str(error) and self.process_id != 0:
                    # JAX notices at the same time and aborts the process, without naming the other.
                    where = f", which coordinates the others at {self.state.coordinator_address}"
                    _print_at_once(f"jztree: {self.name} ends because process 0{where}, is gone.")
                    os._exit(1)
                return ""  # JAX was shut down


_watch: _Watch | None = None


def end_together(state: Any, heartbeat: int) -> None:
    """Start the watch, once. Not in an interactive Python, which should outlive an error."""
    global _watch  # noqa: PLW0603
    if _watch is None and not hasattr(sys, "ps1"):
        _watch = _Watch(state, heartbeat)
        _watch.start()
        watch_callbacks()


def watch_callbacks() -> None:
    """End this process and its peers when a host callback raises and other devices wait for the one that it was on.

    A device whose callback raises (`jax.debug.callback`, `jax.pure_callback`, `jax.experimental.io_callback`) leaves
    the computation. If the others are in a collective, Python does not get the error, because it waits for all
    devices: XLA aborts a process that is alone after 60 s on CPUs, and several processes wait for ever. Where nobody
    waits, the error comes out of JAX as always, and nothing is done here. May be called again.
    """
    for name in _CALLBACK_LOGGERS:
        # A filter sees the report without changing where it is printed, which a handler would.
        logging.getLogger(name).addFilter(_note_failed_callback)


def forget_failed_callbacks() -> None:
    """Let JAX forget the error of a run with host callbacks, once it has been reported.

    JAX keeps it, and raises it again whenever something waits for callbacks, `jax.effects_barrier` and the end of the
    process among it. There is no public way to this.
    """
    from jax._src import dispatch  # noqa: PLC0415

    dispatch.runtime_tokens.clear()


def _note_failed_callback(record: logging.LogRecord) -> bool:
    error = record.exc_info[1] if record.exc_info else None
    if error is not None and _CALLBACK_FAILED.fullmatch(record.getMessage()):
        threading.Thread(target=_end_if_stuck, args=(error,), name="jztree callbacks", daemon=True).start()
    return True


def _end_if_stuck(error: BaseException) -> None:
    """End because of the ``error`` of a callback if what was being computed then is not finished after a while."""
    time.sleep(_GRACE_SECONDS)  # until JAX has made the arrays that the computation will fill
    pending = [array for array in jax.live_arrays() if _is_pending(array)]
    time.sleep(_STUCK_SECONDS - _GRACE_SECONDS)
    if not any(_is_pending(array) for array in pending):
        return
    summary, text = _summary_of(error), "".join(traceback.format_exception(error))
    report = f"a host callback raised this error, and devices wait for the one that it was on:\n{text}"
    if hasattr(sys, "ps1"):
        _print_at_once(f"jztree: {report}")
    elif _watch is not None:
        _watch.end(f"jztree: {_watch.name} ends, and with it all others: {report}", summary, 1)
    else:
        _print_at_once(f"jztree: this process ends: {report}")
        os._exit(1)


def _is_pending(array: jax.Array) -> bool:
    with contextlib.suppress(RuntimeError):  # it may be deleted at any time
        return not array.is_deleted() and not array.is_ready()  # type: ignore[attr-defined]
    return False


def _summary_of(error: BaseException) -> str:
    """The last line of a traceback, without the notes that JAX adds to it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def _print_at_once(text: str) -> None:
    """One write, so that the messages of several processes do not mix; after what was printed before."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stderr.flush()


def current() -> _Watch | None:
    """The watch of this process, if there is one."""
    return _watch
