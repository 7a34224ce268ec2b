"""Processes that do the work. Each begins with nothing on the GPU, may be stopped, and tells what it found in JSON."""

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .record import home

CHECKS = Path(__file__).parents[1]
LOG_TAIL = 2000  # characters of a log that an error takes along


@dataclass
class Child:
    """How processes are started.

    platform: ``cuda`` or ``cpu``. log: what they print that is no finding is appended there.
    """

    platform: str
    log: Path

    def environment(self, folder: Path | None = None, **more: str) -> dict[str, str]:
        """The user's own without options of JAX, with libraries from ``folder``, by default with our own.

        No other folder on Python's path has a `jztree`, except where packages are installed, which comes last.
        """
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("JAX_", "XLA_", "PYTHON"))}
        given = [Path(word) for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
        path = [CHECKS, folder or home(), *(other for other in given if not (other / "jztree").exists())]
        return kept | {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONUNBUFFERED": "1",
            "JAX_PLATFORMS": "cpu" if self.platform == "cpu" else "cuda,cpu",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
            **more,
        }

    def findings(
        self, command: Sequence[str], environment: Mapping[str, str], seconds: float
    ) -> Iterator[dict[str, Any]]:
        """The JSON lines of a process as they come. Last, if it failed or was stopped, one with ``stopped``."""
        with (
            tempfile.TemporaryDirectory() as elsewhere,
            open(self.log, "a+") as log,
            subprocess.Popen(
                command, cwd=elsewhere, env=dict(environment), stdout=subprocess.PIPE, stderr=log, text=True
            ) as process,
        ):
            timer = threading.Timer(max(seconds, 1.0), process.kill)
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                else:
                    log.write(line)
            status = process.wait()
            late = not timer.is_alive()
            timer.cancel()
        if late:
            yield {"stopped": f"after {seconds:.0f} seconds", "late": True}
        elif status:
            yield {"stopped": f"exit status {status}", "late": False, "log": self.log.read_text()[-LOG_TAIL:]}


def module(name: str, *arguments: Any) -> list[str]:
    """The command that runs a module of this package on JSON arguments."""
    return [sys.executable, "-P", "-m", f"gpu.{name}", *(json.dumps(argument) for argument in arguments)]


def tell(**finding: Any) -> None:
    """What a child says to its parent."""
    print(json.dumps(finding), flush=True)


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"
