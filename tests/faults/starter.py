"""Starts processes that have imported JAX already, by a fork, which saves most of what a case costs.

Reads one line of JSON a case: the script, the environments of the processes, a folder, and a limit in seconds. Writes
one line back: how each process ended and after how many seconds. A process runs the script as its main program, and
ends as Python ends. JAX has started no device and no thread when it is forked.
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

# For so long a process that hangs has done nothing at the end of its time; at most so many times that is given.
_STILL, _MOST = 40.0, 5


def serve() -> dict[str, Any] | None:
    """In the processes of a case: what to run. In the first process: None, at the end of the input."""
    for line in sys.stdin:
        case = json.loads(line)
        children: dict[int, int] = {}
        Path(case["folder"], "script.py").write_text(case["script"])  # tracebacks show lines of files
        for rank in range(len(case["environments"])):
            child = os.fork()
            if child == 0:
                return case | {"rank": rank}
            children[child] = rank
        print(json.dumps(_wait(children, case["seconds"])), flush=True)
    return None


def _wait(children: dict[int, int], seconds: float) -> list[list[float | None]]:
    """Exit code (minus the signal if one ended it, None if it was still there) and seconds, by rank.

    On a machine that others keep busy, those that are still at work after ``seconds`` get more time.
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
    for send in (signal.SIGUSR1, signal.SIGKILL):  # first, where they stand
        for child in left:
            os.kill(child, send)
        time.sleep(0.5 if left and send == signal.SIGUSR1 else 0)
    for child in left:
        os.waitpid(child, 0)
        ended[child] = [None, round(time.monotonic() - start, 1)]
    return [ended[child] for child in sorted(children, key=lambda child: children[child])]


def _seconds_of_work(processes: Iterable[int]) -> float:
    """Of processors, so far."""
    ticks = 0
    for process in processes:
        with contextlib.suppress(OSError):
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def become(case: dict[str, Any]) -> str:
    """Take on the environment of one process of the case; the path of its script."""
    os.setsid()
    folder, rank = Path(case["folder"]), case["rank"]
    output = os.open(folder / f"output{rank}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(output, stream)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored in jobs in the background
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    os.chdir(folder)
    os.environ.update(case["environments"][rank])
    jax.config.update("jax_num_cpu_devices", case["devices"])
    return str(folder / "script.py")


if __name__ == "__main__":
    _case = serve()
    if _case is not None:
        _script = become(_case)
        # On the lowest level of the main program, so that all ends as it does for users.
        exec(compile(Path(_script).read_text(), _script, "exec"), {"__name__": "__main__"})
