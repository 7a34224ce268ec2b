"""End all processes together: if one ends, those that wait for it end within seconds and print the reason.

Without this, a process that raises waits for its peers at exit, and they wait for it in a collective. So a process that
fails notifies its peers, and they end. A process that exits normally notifies them too. Peers that compute something
with it would wait for ever, so they end; all others continue.
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

# Time for a process to report an error that it shares with its peers, before they end it.
_GRACE_SECONDS = 0.5
# Time limit for notifying the peers; the coordinator may be gone.
_PUBLISH_SECONDS = 3.0
# Time limit for threads and `atexit` functions of the user in a process that has failed.
_LAST_SECONDS = 10.0
# After its end, a process waits this long for its own calls if nothing happens.
_IDLE_SECONDS = 10.0
# Number of times to probe process 0 within JAX's heartbeat timeout, and the fraction of the timeout that it may stay
# silent.
_QUESTIONS, _SILENCE = 8, 0.7
# `Lines` names a killed peer within this time after a lost connection: three attempts to reach it, and the report.
_NAMED_SECONDS = 2.5
# Time that a process may continue after a peer has finished.
_FINISH_SECONDS = 14 * 86400
# Time to wait for the name of the lost peer after a lost connection. Heartbeats may take longer, but users wait.
_CAUSE_SECONDS = 45
_POLL_SECONDS = 3600
_WITHOUT_A_WORD = "it was killed, for example for lack of memory, crashed, or left by os._exit."
_FAILURE_KEY, _FIRST_END_KEY = "jztree/launch/failure", "jztree/launch/first end"
# Error messages of collectives whose peer is gone. They give the peer's port number at most, not its process.
_LOST_PEER = re.compile(r"(gloo|nccl).*(closed|peer|pipe|remote|reset)", re.IGNORECASE | re.DOTALL)
# A traceback inside a message, without its last line.
_TRACEBACK = re.compile(r"Traceback \(most recent call last\):\n(?:  .*\n)+")


class Peers:
    """Notify the peers when this process fails or ends, and end it when a peer fails or disappears.

    Messages travel through the key-value store of JAX's coordinator, in which threads of every process wait for keys. A
    killed process writes nothing, but its connections to two other processes break, and these report it (`Lines`).
    """

    def __init__(self, state: Any, heartbeat: int) -> None:
        self.state, self.heartbeat = state, heartbeat
        self.client = state.client
        self.process_id = int(state.process_id)
        self.num_processes = int(state.num_processes)
        self.pid = os.getpid()
        self.exit_code: object = None
        self.ending = threading.Event()  # on its own account, or because of a peer
        self.finishing = threading.Event()  # a normal exit
        self.others_end = threading.Event()
        self.lines, self.ends = Lines(state, self.lose), Ends(state, self.is_over)
        self.listeners = [
            threading.Thread(target=run, name="jztree peers", daemon=True)
            for run in (
                self.listen_for_failure,
                self.listen_for_ends,
                self.find_vain_waits,
                *([self.ask_process_0] if self.process_id else []),
            )
        ]

    @property
    def name(self) -> str:
        return f"process {self.process_id} of {self.num_processes} on host {socket.gethostname()}"

    def start(self) -> None:
        self.earlier_excepthook, self.plain_exit = sys.excepthook, sys.exit
        sys.excepthook, sys.exit = self.excepthook, self.exit
        # Runs before JAX's handler, which was registered when JAX was imported.
        atexit.register(self.finish)
        for listener in self.listeners:
            listener.start()
        self.lines.open()

    # How this process ends

    def excepthook(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if os.getpid() != self.pid or self.ending.is_set():  # a fork, or already ending
            return self.earlier_excepthook(kind, error, trace)
        summary = summary_of(error)
        if _LOST_PEER.search(summary):
            self.wait_for_the_cause(summary)
        # From now on this process ends on its own account.
        self.ending.set()
        lines = traceback.format_exception(kind, error, trace) if self.earlier_excepthook is sys.__excepthook__ else []
        print_at_once(f"jztree: {self.name} ends with this error, and with it all others:\n{''.join(lines)}")
        if not lines:
            self.earlier_excepthook(kind, error, trace)
        code = 130 if issubclass(kind, KeyboardInterrupt) else 1
        # Notify the peers last: they may include process 0, and JAX aborts this process when process 0 leaves.
        self.clean_up(summary, code)
        self.end("", summary, code)

    def wait_for_the_cause(self, summary: str) -> None:
        """Let the failure of a peer end this process.

        Either the peer's own message ends it, through a listener, or JAX does, which names the peer when its heartbeats
        stop. Returns if neither happens.
        """
        # A peer that failed has reported its error before it left. Other processes name a peer that was killed.
        if not self.ending.wait(_NAMED_SECONDS):
            print_at_once(
                f"jztree: {self.name} has lost the connection to another process; JAX will name it when that process "
                f"has missed its heartbeats for {self.heartbeat} s. The error in this process: {summary}"
            )
        with contextlib.suppress(KeyboardInterrupt):
            time.sleep(min(self.heartbeat + 10, _CAUSE_SECONDS))

    def clean_up(self, summary: str, code: int) -> None:
        """Join threads and run `atexit` functions, as Python does at exit.

        JAX's exit, which waits for the peers, would prevent both.
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
        """Replace ``sys.exit`` to record its argument, which is not available elsewhere.

        A caller may catch the exception, so the argument counts only if this process has ended and a peer has failed.
        """
        self.exit_code = code
        self.plain_exit(code)

    def finish(self) -> None:
        """At exit, announce the end and keep this process alive for its peers until they have ended too.

        JAX would wait too, but only for 300 s, and then end peers that are still at work, for example writing a file.
        """
        if os.getpid() != self.pid or self.ending.is_set():
            return
        if self.state.client is not self.client:  # the user has shut JAX down
            self.lines.say_goodbye()
            return
        error = getattr(sys, "last_value", None)
        if error is not None:  # a different excepthook has reported it
            self.end("", summary_of(error), 1)
        self.finishing.set()
        try:
            jax.effects_barrier()
        except Exception:
            # JAX's exit would fail on this error and leave a connection open that aborts the process.
            traceback.print_exc()
            forget_failed_callbacks()
        self.wait_for_own_work()
        with contextlib.suppress(Exception):
            self.ends.report()
            self.client.key_value_set(_FIRST_END_KEY, "", allow_overwrite=True)
            self.client.wait_at_barrier("jztree/launch/finished", _FINISH_SECONDS * 1000)
        with contextlib.suppress(Exception):
            self.lines.say_goodbye()
            # Threads inside gRPC would crash when Python ends; this wakes them.
            self.client.key_value_set(_FAILURE_KEY, "")
        for listener in self.listeners[:2]:
            listener.join(_PUBLISH_SECONDS)

    def wait_for_own_work(self) -> None:
        """Wait until this process's own calls are done. Return early if nothing happens: they may need the peers."""
        waits = Waits()
        while waits.still() and not self.ending.is_set():
            if is_idle(_IDLE_SECONDS, lambda: self.ending.is_set() or not waits.still()):
                return

    def end(self, report: str, summary: str, code: int) -> NoReturn:
        """Print ``report``, send the ``summary`` to the peers, and exit without waiting for anything."""
        self.ending.set()
        print_at_once(report)
        self.publish_end_in_time(summary)
        flush_files()
        self.leave(code)

    def publish_end_in_time(self, summary: str) -> None:
        # In a thread, because the coordinator may be unreachable.
        thread = threading.Thread(target=self.publish_end, args=(summary,), daemon=True)
        try:
            thread.start()
            thread.join(_PUBLISH_SECONDS)
        except RuntimeError:  # Python starts no threads during exit
            self.publish_end(summary)

    def publish_end(self, summary: str) -> None:
        # Another process may have failed earlier; the first message counts.
        with contextlib.suppress(Exception):
            self.client.key_value_set(_FAILURE_KEY, f"{self.name} has failed: {summary}")

    def leave(self, code: int) -> NoReturn:
        self.lines.say_goodbye()
        if self.process_id == 0:
            # The coordinator ends with this process, and JAX then aborts the remaining ones.
            time.sleep(2 * _GRACE_SECONDS)
        os._exit(code)

    # How the peers end this process

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
        """Wait for the first process that ends."""
        if self.value_of(_FIRST_END_KEY) is not None:
            self.others_end.set()

    def find_vain_waits(self) -> None:
        """End this process and all others if it waits for something that cannot happen."""
        while not self.is_over():
            summary = self.ends.find_vain_wait() if self.others_end.is_set() else self.ends.find_deadlock()
            if summary and not self.is_over():
                self.end(f"jztree: {self.name} ends because {summary}.", summary, 1)

    def is_over(self) -> bool:
        """Return whether this process is ending, for any reason."""
        return self.ending.is_set() or self.finishing.is_set()

    def lose(self, process: int, host: str) -> None:
        """End this process and all others because a process disappeared without a message."""
        if self.ending.wait(_GRACE_SECONDS):
            return
        gone = f"process {process} of {self.num_processes} on host {host} is gone: {_WITHOUT_A_WORD}"
        if process == 0:  # the coordinator is gone, but the other processes notice this themselves
            self.ending.set()
            print_at_once(f"jztree: {self.name} ends because {gone}")
            flush_files()
            self.leave(1)
        with contextlib.suppress(Exception):
            self.client.key_value_set(_FAILURE_KEY, gone)  # this process also listens to this key

    def ask_process_0(self) -> None:
        """Report if process 0 does not answer. JAX, which ends this process a little later, does not name it."""
        while not self.is_over():
            text = f"has not answered process {self.process_id} for {_SILENCE * self.heartbeat:.0f} s"
            report = f"jztree: process 0, which coordinates the others, {text}. JAX ends this process after "
            late = threading.Timer(_SILENCE * self.heartbeat, print_at_once, (f"{report}{self.heartbeat} s.",))
            late.daemon = True
            with contextlib.suppress(Exception):
                late.start()
                self.client.key_value_try_get("jztree/launch/nothing")  # a missing key also raises
            late.cancel()
            self.ending.wait(self.heartbeat / _QUESTIONS)

    def value_of(self, key: str) -> str | None:
        """Wait for a peer's value of ``key`` and return it; None if no value can come any more."""
        while True:
            try:
                return str(self.client.blocking_key_value_get(key, _POLL_SECONDS * 1000))
            except Exception as error:
                if "DEADLINE_EXCEEDED" in str(error):
                    continue
                if "UNAVAILABLE" in str(error) and self.process_id != 0 and not self.finishing.is_set():
                    # JAX notices at the same time and aborts the process without naming process 0.
                    where = f", which coordinates the others at {self.state.coordinator_address}"
                    print_at_once(f"jztree: {self.name} ends because process 0{where}, is gone.")
                    flush_files()
                    os._exit(1)
                return None  # JAX was shut down


_peers: Peers | None = None


def end_together(state: Any, heartbeat: int) -> None:
    """Start the listeners, once. Does nothing in an interactive Python, which should outlive an error."""
    global _peers  # noqa: PLW0603
    if _peers is None and not hasattr(sys, "ps1"):
        _peers = Peers(state, heartbeat)
        _peers.start()


def current() -> Peers | None:
    """Return the peers of this process, or None if it does not end together with others."""
    return _peers


def keep_jax_from_waiting() -> None:
    """Unregister JAX's exit handlers, which wait for the peers. JAX has no public API for this."""
    from jax._src import api, dispatch  # noqa: PLC0415

    atexit.unregister(api.clean_up)
    atexit.unregister(dispatch.wait_for_tokens)


def forget_failed_callbacks() -> None:
    """Make JAX forget the error of a run with host callbacks after it has been reported.

    JAX keeps this error and raises it again whenever something waits for callbacks, including `jax.effects_barrier` and
    the exit of the process. JAX has no public API for this.
    """
    from jax._src import dispatch  # noqa: PLC0415

    dispatch.runtime_tokens.clear()


def flush_files() -> None:
    """Flush the buffers of open files, as Python does at exit."""
    for one in gc.get_objects():
        if isinstance(one, (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom)):
            with contextlib.suppress(Exception):
                one.flush()


def summary_of(error: BaseException) -> str:
    """Return the last line of the traceback, without the notes that JAX adds.

    JAX puts the whole traceback of a failed host callback into its message; only the last line of that one stays.
    """
    return _TRACEBACK.sub("", f"{type(error).__name__}: {error}").strip().removesuffix(":")


def print_at_once(text: str) -> None:
    """Print with a single write after earlier output, so that messages of several processes do not mix."""
    with contextlib.suppress(Exception):
        sys.stdout.flush()
    with contextlib.suppress(Exception):
        sys.stderr.write(text if text.endswith("\n") or not text else f"{text}\n")
        sys.stderr.flush()
