"""Run cases, several at a time, and report the results."""

import contextlib
import json
import shlex
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import processes

from .case import LIMIT, Case, Ended

_MOST_LINES = 25  # of the output of a process, in a report
_PROGRESS = 50  # cases between progress reports; each case takes seconds


@dataclass
class Tally:
    """The outcome of the cases. wrong: number of failures by description. longest: seconds of the longest case."""

    cases: int = 0
    longest: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter)


class Starter:
    """A process that starts the processes of cases; see `starter`."""

    def __init__(self) -> None:
        environment = processes.environment(2) | {"PYTHONFAULTHANDLER": ""}
        command = [sys.executable, "-P", "-u", "-m", "faults.starter"]
        self.process = subprocess.Popen(
            command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
        )

    def run(self, case: Case, seconds: float = LIMIT) -> list[Ended]:
        """Run a case and return how its processes ended, by rank."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
            port = processes.free_port()
            if case.kind.taken:
                listener = stack.enter_context(socket.socket())
                listener.bind(("", port))
                listener.listen()
            asked = {
                "script": case.script(),
                "environments": case.environments(f"127.0.0.1:{port}"),
                "devices": case.devices,
                "folder": folder,
                "seconds": seconds,
            }
            self.process.stdin.write(json.dumps(asked) + "\n")
            self.process.stdin.flush()
            answer = json.loads(self.process.stdout.readline())
            outputs = [(Path(folder) / f"output{rank}").read_text(errors="replace") for rank in range(case.count)]
        return [Ended(code, seconds, output) for (code, seconds), output in zip(answer, outputs, strict=True)]

    def close(self) -> None:
        """End the starter. No case may be running."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def starting() -> Iterator[Starter]:
    """Provide a starter within a ``with`` block."""
    starter = Starter()
    try:
        yield starter
    finally:
        starter.close()


def run(
    cases: Iterable[tuple[str, Case]],
    workers: int = 1,
    seconds: float = float("inf"),
    report: Callable[[str], None] = print,
    limit: float = LIMIT,
) -> Tally:
    """Run the named cases until all have run or the time is up.

    report: called with the description of each failure, and with the progress from time to time.
    limit: seconds after which a process counts as hung.
    """
    tally, lock, left, end = Tally(), threading.Lock(), iter(cases), time.monotonic() + seconds

    def work() -> None:
        with starting() as starter:
            while time.monotonic() < end:
                with lock:
                    name, case = next(left, ("", None))
                if case is None:
                    return
                ended = starter.run(case, limit)
                wrong = case.wrong(ended)
                with lock:
                    tally.cases += 1
                    tally.longest = max(tally.longest, *(one.seconds for one in ended))
                    if wrong:
                        tally.wrong[f"{case.kind.name}: {wrong}"] += 1
                        report(in_words(name, case, wrong, ended))
                    if tally.cases % _PROGRESS == 0:
                        report(f"faults: {tally.cases} cases so far, {tally.wrong.total()} wrong")

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tally


def in_words(name: str, case: Case, wrong: str, ended: list[Ended]) -> str:
    """Return a report: the failure, a script that reproduces it, how to run it, and the output of the processes."""
    environments = case.environments("127.0.0.1:7711")
    runs = [
        " ".join(f"{key}={shlex.quote(value)}" for key, value in environment.items()) + " python script.py &"
        for environment in environments
    ]
    lines = [f"{name}: {case.title()}: {wrong}", "", "script.py:", *_indented(case.script()), ""]
    lines += [
        f"    export JAX_PLATFORMS=cpu JAX_NUM_CPU_DEVICES={case.devices}",
        *_indented("\n".join([*runs, "wait"])),
    ]
    for rank, one in enumerate(ended):
        lines += ["", f"process {rank} ended with {one.code} after {one.seconds:.1f} s:"]
        lines += _indented("\n".join(one.output.splitlines()[-_MOST_LINES:]))
    return "\n".join(lines) + "\n"


def _indented(text: str) -> list[str]:
    return [f"    {line}" for line in text.splitlines()]
