"""Runs a script in several processes on this machine, which JAX joins into one program. Not a test."""

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import pytest

import jztree


class Ended(NamedTuple):
    """The end of a process: its exit code, or minus the signal that killed it, and all of its output."""

    returncode: int
    output: str


# With these folders, the processes import the jztree under test, installed or not, and the helpers of the tests.
_FOLDERS = [str(Path(jztree.__file__).parents[1]), str(Path(__file__).parent)]


def run_processes(
    script: str,
    count: int = 2,
    devices: int = 2,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> list[Ended]:
    """Run the text ``script`` in ``count`` processes of ``devices`` CPU devices each. Return how each ended, by rank.

    The script starts with ``jztree.launch.initialize()``; JAX_COORDINATOR_ADDRESS, JAX_NUM_PROCESSES and JAX_PROCESS_ID
    are set for it. If a process still runs after ``timeout`` seconds, the test fails with the output of all processes.

    env: added to the environment of all. cwd: the working directory, a temporary folder if None.
    """
    with tempfile.TemporaryDirectory() as folder:
        # Use a file, because tracebacks show lines of files.
        path = Path(folder) / "script.py"
        path.write_text(script)
        command = [sys.executable, "-P", "-u", str(path)]
        return run_commands([command] * count, environments_of(count), devices, timeout, env, cwd or folder)


def environments_of(count: int) -> list[dict[str, str]]:
    """Return the variables of each of ``count`` processes that `jztree.launch.initialize` joins."""
    address = f"127.0.0.1:{free_port()}"
    return [
        {"JAX_COORDINATOR_ADDRESS": address, "JAX_NUM_PROCESSES": str(count), "JAX_PROCESS_ID": str(rank)}
        for rank in range(count)
    ]


def run_commands(
    commands: Sequence[Sequence[str]],
    environments: Sequence[Mapping[str, str]],
    devices: int = 2,
    timeout: float = 60,
    env: Mapping[str, str] | None = None,
    cwd: str | Path | None = None,
) -> list[Ended]:
    """Run all commands at once, each with its own additional environment; otherwise as in `run_processes`."""
    shared = environment(devices) | dict(env or {})
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes = []
        for rank, (command, own) in enumerate(zip(commands, environments, strict=True)):
            output = stack.enter_context((folder / str(rank)).open("wb"))
            process = subprocess.Popen(
                command,
                env=shared | dict(own),
                cwd=cwd,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            stack.callback(_kill, process)
            processes.append(process)
        in_time = _wait(processes, time.monotonic() + timeout)
        for process in processes:
            _kill(process)
        outputs = [(folder / str(rank)).read_text(errors="replace") for rank in range(len(processes))]
    if not in_time:
        written = "\n".join(f"--- {rank} ---\n{output}" for rank, output in enumerate(outputs))
        pytest.fail(f"not all processes ended within {timeout} s; they wrote:\n{written}")
    return [Ended(process.wait(), output) for process, output in zip(processes, outputs, strict=True)]


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def environment(devices: int) -> dict[str, str]:
    """Return the environment of the tests with CPU devices, without the launcher in which the tests may run."""
    launchers = ("SLURM_", "OMPI_", "PMI", "PALS_", "MPI_LOCAL", "JAX_COORDINATOR", "JAX_NUM_PROC", "JAX_PROCESS")
    environ = {name: value for name, value in os.environ.items() if not name.startswith(launchers)}
    flags = re.sub(r"--xla_force_host_platform_device_count=\d+", "", environ.get("XLA_FLAGS", ""))
    folders = [*_FOLDERS, *filter(None, [environ.get("PYTHONPATH")])]
    return environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(devices),
        "XLA_FLAGS": flags.strip(),
        "PYTHONPATH": os.pathsep.join(folders),
    }


def _wait(processes: Sequence[subprocess.Popen[bytes]], deadline: float) -> bool:
    """Return whether all processes have ended by ``deadline``."""
    for process in processes:
        try:
            process.wait(max(0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            return False
    return True


def _kill(process: subprocess.Popen[bytes]) -> None:
    """Kill the process with its children, such as mpirun's, or the remaining children if it has ended."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
