"""Ending together: what ends one process ends those that wait for it, within seconds, with the reason.

Left alone, a process that raises waits at exit for its peers, and these wait for it in a collective. So a process that
fails tells its peers, which end; and one that comes to its end, however that is, tells them too, and those that are
computing something with it, and hence wait for ever, end. Those that need it no more go on.
"""

import atexit
import contextlib
import gc
import io
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

from ._ends import Ends
from ._lines import Lines
from ._waiting import Waits, is_idle

# Time for a process to report the error that it shares with its peers by itself, before they end it.
_GRACE_SECONDS = 0.5
# What it may take to tell the peers; the coordinator may be gone.
_TELL_SECONDS = 3.0
# What threads and functions that the user has registered for the end may take in a process that has failed.
_LAST_SECONDS = 10.0
# How long a process that has ended waits for what it has begun, if nothing happens.
_IDLE_SECONDS = 10.0
# So many times process 0 is asked for a sign of life in the time after which JAX takes it for gone, and for so much of
# this time it may be silent.
_QUESTIONS, _SILENCE = 8, 0.7
# `Lines` names a killed peer within this time after a connection is lost: three attempts to reach it, and the report.
_NAMED_SECONDS = 2.5
# For how long a process may be at work after a peer has finished.
_FINISH_SECONDS = 14 * 86400
# After a lost connection, for the word of who was lost: heartbeats may take longer, and people wait.
_CAUSE_SECONDS = 45
_POLL_SECONDS = 3600
_WITHOUT_A_WORD = "it was killed, as for want of memory, crashed, or left by os._exit."
_FAILURE_KEY, _FIRST_END_KEY = "jztree/launch/failure", "jztree/launch/first end"
# What collectives say when a peer is gone; which one it was, they know only by the number of a port, or not at all.
_LOST_PEER = re.compile(r"(gloo|nccl).*(closed|peer|pipe|remote|reset)", re.IGNORECASE | re.DOTALL)


class Peers:
    """Tells the peers when this process fails or ends, and ends it when one of them fails or is missed.

    Messages travel through the key-value store of JAX's coordinator, where threads of every process wait for keys. A
    process that is killed writes nothing; its connections to two others break, and these say so (`Lines`).
    """

    def __init__(self, state: Any, heartbeat: int) -> None:
        self.state, self.heartbeat = state, heartbeat
        self.client = state.client
        self.process_id = int(state.process_id)
        self.num_processes = int(state.num_processes)
        self.pid = os.getpid()
        self.exit_code: object = None
        self.ending = threading.Event()  # by itself, or because of another
        self.finishing = threading.Event()  # as its author meant
        self.others_end = threading.Event()
        self.lines, self.ends = Lines(state, self.lose), Ends(state, self.is_over)
        self.listeners = [
            threading.Thread(target=run, name="jztree peers", daemon=True)
            for run in (
                self.listen_for_failure,
                self.listen_for_ends,
                self.look_for_what_waits,
                *([self.ask_process_0] if self.process_id else []),
            )
        ]

    @property
    def name(self) -> str:
        return f"process {self.process_id} of {self.num_processes} on host {socket.gethostname()}"

    def start(self) -> None:
        self.earlier_excepthook, self.plain_exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self.excepthook, self.exit
        # Runs before JAX's own, which was registered when JAX was imported.
        atexit.register(self.finish)
        for listener in self.listeners:
            listener.start()
        self.lines.open()

    # How this process ends

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self.pid or self.ending.is_set():  # a fork, or on its way out already
            return self.earlier_excepthook(kind, error, trace)
        summary = summary_of(error)
        if _LOST_PEER.search(summary):
            self.wait_for_the_cause(summary)
        # From now on this process ends by itself.
        self.ending.set()
        lines = traceback.format_exception(kind, error, trace) if self.earlier_excepthook is sys.__excepthook__ else []
        print_at_once(f"jztree: {self.name} ends with this error, and with it all others:\n{''.join(lines)}")
        if not lines:
            self.earlier_excepthook(kind, error, trace)
        code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        # Only then are the peers told: where process 0 is among them, JAX aborts this one when they leave.
        self.leave_nothing_behind(summary, code)
        self.end("", summary, code)

    def wait_for_the_cause(self, summary: str) -> None:
        """Let this process be ended by what ended a peer: by the peer's own message, which a listener gets, or by JAX,
        which names the peer when its heartbeats stop. Returns if neither comes.
        """
        # A peer that failed has reported its error before it left. One that was killed is named by the others.
        if not self.ending.wait(_NAMED_SECONDS):
            print_at_once(
                f"jztree: {self.name} has lost the connection to another process; which one will be known when that "
                f"process has missed its heartbeats for {self.heartbeat} s. What was seen here: {summary}"
            )
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(min(self.heartbeat + 10, _CAUSE_SECONDS))

    def leave_nothing_behind(self, summary: str, code: int) -> None:
        """What the end of Python would do and JAX's exit, which waits for the peers, would not let it: wait for
        threads, and call what was registered for the end.
        """
        limit = threading.Timer(_LAST_SECONDS, self.end, ("", summary, code))
        limit.daemon = True
        with contextlib.suppress(RuntimeError):
            limit.start()
        with contextlib.suppress(BaseException):
            threading._shutdown()  # type: ignore[attr-defined]
        atexit.unregister(self.finish)
        keep_jax_from_waiting()
        with contextlib.suppress(BaseException):
            atexit._run_exitfuncs()

    def exit(self, code: Any = None, /) -> NoReturn:
        """``sys.exit``, whose argument is told nowhere else. Nobody knows whether it is caught; it counts only where
        this process has come to its end and a peer has failed.
        """
        self.exit_code = code
        self.plain_exit(code)

    def finish(self) -> None:
        """At the end of Python: say so, and keep what the peers need of this process until they have ended too.

        JAX would wait too, but for 300 s, and then end those that are still at work, say writing a file.
        """
        if os.getpid() != self.pid or self.ending.is_set():
            return
        if self.state.client is not self.client:  # the user has shut JAX down
            self.lines.say_goodbye()
            return
        error = getattr(sys, "last_value", None)
        if error is not None:  # another excepthook than this one's has reported it
            self.end("", summary_of(error), 1)
        self.finishing.set()
        try:
            jax.effects_barrier()
        except Exception:
            # JAX's own exit would stumble over this, and leave a connection open that aborts the process.
            traceback.print_exc()
            forget_failed_callbacks()
        self.wait_for_own_work()
        with contextlib.suppress(Exception):
            self.ends.report()
            self.client.key_value_set(_FIRST_END_KEY, "", allow_overwrite=True)
            self.client.wait_at_barrier("jztree/launch/finished", _FINISH_SECONDS * 1000)
        with contextlib.suppress(Exception):
            self.lines.say_goodbye()
            # Threads that are still inside gRPC would crash when Python ends; this wakes them.
            self.client.key_value_set(_FAILURE_KEY, "")
        for listener in self.listeners[:2]:
            listener.join(_TELL_SECONDS)

    def wait_for_own_work(self) -> None:
        """Until what this process has begun is done. If nothing happens for long, the peers may be what it lacks."""
        waits = Waits()
        while waits.still() and not self.ending.is_set():
            if is_idle(_IDLE_SECONDS, lambda: self.ending.is_set() or not waits.still()):
                return

    def end(self, report: str, summary: str, code: int) -> NoReturn:
        """Print ``report``, tell the peers the ``summary``, and leave without waiting for anything."""
        self.ending.set()
        print_at_once(report)
        self.tell_in_time(summary)
        flush_files()
        self.leave(code)

    def tell_in_time(self, summary: str) -> None:
        # In a thread, because the coordinator may be out of reach.
        teller = threading.Thread(target=self.tell, args=(summary,), daemon=True)
        try:
            teller.start()
            teller.join(_TELL_SECONDS)
        except RuntimeError:  # at exit Python starts no threads any more
            self.tell(summary)

    def tell(self, summary: str) -> None:
        # Another process may have failed before; its message is the one that counts.
        with contextlib.suppress(Exception):
            self.client.key_value_set(_FAILURE_KEY, f"{self.name} has failed: {summary}")

    def leave(self, code: int) -> NoReturn:
        self.lines.say_goodbye()
        if self.process_id == 0:
            # The coordinator ends with this process, and JAX aborts those that are still there.
            time.sleep(2 * _GRACE_SECONDS)
        os._exit(code)

    # How its peers end it

    def listen_for_failure(self) -> None:
        message = self.value_of(_FAILURE_KEY)
        if not message or self.ending.wait(_GRACE_SECONDS):
            return
        self.ending.set()
        print_at_once(f"jztree: {self.name} ends because {message}")
        flush_files()
        own = self.exit_code if self.finishing.is_set() else None
        self.leave(own if isinstance(own, int) and own != 0 else 1)

    def listen_for_ends(self) -> None:
        """Notice the first process that ends."""
        if self.value_of(_FIRST_END_KEY) is not None:
            self.others_end.set()

    def look_for_what_waits(self) -> None:
        """End, and with this process all others, if what it waits for cannot come."""
        while not self.is_over():
            summary = self.ends.look() if self.others_end.is_set() else self.ends.look_at_all()
            if summary and not self.is_over():
                self.end(f"jztree: {self.name} ends because {summary}.", summary, 1)

    def is_over(self) -> bool:
        """Whether this process has come to its end, whoever ends it."""
        return self.ending.is_set() or self.finishing.is_set()

    def lose(self, process: int, host: str) -> None:
        """Another process is gone without a word: end, and with this one all others."""
        if self.ending.wait(_GRACE_SECONDS):
            return
        gone = f"process {process} of {self.num_processes} on host {host} is gone: {_WITHOUT_A_WORD}"
        if process == 0:  # and with it the means to tell the others, who see it themselves
            self.ending.set()
            print_at_once(f"jztree: {self.name} ends because {gone}")
            flush_files()
            self.leave(1)
        with contextlib.suppress(Exception):
            self.client.key_value_set(_FAILURE_KEY, gone)  # which this process listens to, too

    def ask_process_0(self) -> None:
        """Say so if process 0 gives no answer. JAX, which ends this process a little later, does not say who it was."""
        while not self.is_over():
            text = f"has not answered process {self.process_id} for {_SILENCE * self.heartbeat:.0f} s"
            report = f"jztree: process 0, which coordinates the others, {text}. JAX ends this process after "
            late = threading.Timer(_SILENCE * self.heartbeat, print_at_once, (f"{report}{self.heartbeat} s.",))
            late.daemon = True
            with contextlib.suppress(Exception):
                late.start()
                self.client.key_value_try_get("jztree/launch/nothing")  # which is an error, too
            late.cancel()
            self.ending.wait(self.heartbeat / _QUESTIONS)

    def value_of(self, key: str) -> str | None:
        """What a peer says under ``key``, once it does; None once there is nothing to wait for any more."""
        while True:
            try:
                return str(self.client.blocking_key_value_get(key, _POLL_SECONDS * 1000))
            except Exception as error:
                if "DEADLINE_EXCEEDED" in str(error):
                    continue
                if "UNAVAILABLE" in str(error) and self.process_id != 0 and not self.finishing.is_set():
                    # JAX notices at the same time and aborts the process, without naming the other.
                    where = f", which coordinates the others at {self.state.coordinator_address}"
                    print_at_once(f"jztree: {self.name} ends because process 0{where}, is gone.")
                    flush_files()
                    os._exit(1)
                return None  # JAX was shut down


_peers: Peers | None = None


def end_together(state: Any, heartbeat: int) -> None:
    """Start to watch, once. Not in an interactive Python, which should outlive an error."""
    global _peers  # noqa: PLW0603
    if _peers is None and not hasattr(sys, "ps1"):
        _peers = Peers(state, heartbeat)
        _peers.start()


def current() -> Peers | None:
    """The peers of this process, if it is to end together with any."""
    return _peers


def keep_jax_from_waiting() -> None:
    """Take back what JAX does at the end, which is to meet its peers. There is no public way to this."""
    from jax._src import api, dispatch  # noqa: PLC0415

    atexit.unregister(api.clean_up)
    atexit.unregister(dispatch.wait_for_tokens)


def forget_failed_callbacks() -> None:
    """Let JAX forget the error of a run with host callbacks, once it has been reported.

    JAX keeps it, and raises it again whenever something waits for callbacks, `jax.effects_barrier` and the end of the
    process among it. There is no public way to this.
    """
    from jax._src import dispatch  # noqa: PLC0415

    dispatch.runtime_tokens.clear()


def flush_files() -> None:
    """Write what open files have in their buffers, as the end of Python does."""
    for one in gc.get_objects():
        if isinstance(one, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(Exception):
                one.flush()


def summary_of(error: BaseException) -> str:
    """The last line of a traceback, without the notes that JAX adds to it."""
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def print_at_once(text: str) -> None:
    """One write, so that the messages of several processes do not mix; after what was printed before."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stderr.flush()
