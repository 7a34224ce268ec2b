"""Fork processes that have already imported JAX, which saves most of the cost of a case.

Read one line of JSON per case: the script, the environments of the processes, a folder, and a limit in seconds. Write
one line back: how each process ended and after how many seconds. A process runs the script as its main program and
ends like any Python program. JAX has not started any device or thread before the fork.
"""

import contextlib
import faulthandler
import json
import os
import signal
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import jax
import numpy as np  # noqa: F401 - scripts import it

import jztree  # noqa: F401 - likewise

# Seconds without CPU use after which a process counts as hung once its time is up; and the largest extension, as a
# multiple of the limit.
_STILL, _MOST = 40.0, 5


def serve() -> dict[str, Any] | None:
    """Fork the processes of each case. Return the case in a forked process, and None in the parent at end of input."""
    for line in sys.stdin:
        case = json.loads(line)
        children: dict[int, int] = {}
        Path(case["folder"], "script.py").write_text(case["script"])  # in a file, so that tracebacks show its lines
        for rank in range(len(case["environments"])):
            child = os.fork()
            if child == 0:
                return case | {"rank": rank}
            children[child] = rank
        print(json.dumps(_wait(children, case["seconds"])), flush=True)
    return None


def _wait(children: dict[int, int], seconds: float) -> list[list[float | None]]:
    """Return the exit code and the seconds of each process, by rank.

    The exit code is minus the signal if a signal ended the process, and None if the process was still running. On a
    busy machine, processes that are still working after ``seconds`` get more time.
    """
    start = busy = time.monotonic()
    ended: dict[int, list[float | None]] = {}
    used = -1.0
    while len(ended) < len(children):
        now = time.monotonic()
        if (now - start > seconds - _STILL and now - busy > _STILL) or now - start > _MOST * seconds:
            break
        for child in children.keys() - ended.keys():
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                ended[child] = [os.waitstatus_to_exitcode(status), round(time.monotonic() - start, 1)]
        if (
            now - start > seconds - 2 * _STILL
            and (more := _seconds_of_work(children.keys() - ended.keys())) > used + 0.2
        ):
            used, busy = more, now
        time.sleep(0.02)
    left = children.keys() - ended.keys()
    for send in (signal.SIGUSR1, signal.SIGKILL):  # SIGUSR1 prints tracebacks
        for child in left:
            os.kill(child, send)
        time.sleep(0.5 if left and send == signal.SIGUSR1 else 0)
    for child in left:
        os.waitpid(child, 0)
        ended[child] = [None, round(time.monotonic() - start, 1)]
    return [ended[child] for child in sorted(children, key=lambda child: children[child])]


def _seconds_of_work(processes: Iterable[int]) -> float:
    """Return the CPU time that the processes have used so far, in seconds."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def become(case: dict[str, Any]) -> str:
    """Take on the environment of one process of the case, and return the path of its script."""
    os.setsid()
    folder, rank = Path(case["folder"]), case["rank"]
    output = os.open(folder / f"output{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.chdir(folder)
    os.environ.update(case["environments"][rank])
    jax.config.update("jax_num_cpu_devices", case["devices"])
    return str(folder / "script.py")


if __name__ == "__main__":
    _case = serve()
    if _case is not None:
        _script = become(_case)
        # At the top level of the main program, so that the process ends as it does for users.
        exec(compile(Path(_script).read_text(), _script, "exec"), {"__name__": "__main__"})
