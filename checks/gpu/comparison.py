"""The stages that compare GPU and CPU: one call of each kernel, and then functions on many inputs.

Both distribute their work over several processes, because nearly all of the time goes into compiling small programs.
"""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .inputs import inputs, key_of
from .samples import power
from .session import Session, module

# The programs whose kernel calls are repeated. The sanitizers repeat the calls with few particles.
PROGRAMS = ({"n": 10**4}, {"n": 10**4, "dims": 2, "dtype": "float64"}, {"n": 10**6})
_SMALL_PROGRAMS = ({"n": 1000}, {"n": 1000, "dims": 2, "dtype": "float64"})
_FEW = 10**5
_PROCESSES = 8  # most of their time goes into compilation
_ATTEMPTS = 3  # a process that a call ends is started again for the calls after it


def programs(session: Session) -> list[dict[str, Any]]:
    return list(_SMALL_PROGRAMS if session.small else PROGRAMS)


def _key(program: dict[str, Any]) -> str:
    return f"n={power(program['n'])}" + (f" {program['dims']}d {program['dtype']}" if "dims" in program else "")


def record_calls(session: Session, selected: Sequence[dict[str, Any]] | None = None) -> None:
    """Record the calls of kernels on the CPU, for the sources and programs (by default all) without recorded calls."""
    for program in programs(session) if selected is None else selected:
        key, folder = _key(program), calls_folder(session, program)
        if (folder / "complete").exists():
            continue
        print(f"build: recording kernel calls with {key}", flush=True)
        command = module("kernel_calls", {"folder": str(folder), "record": program})
        environment = session.environment(
            JAX_PLATFORMS="cpu",
            JAX_ENABLE_X64="1" if program.get("dtype") == "float64" else "0",
            XLA_FLAGS="--xla_force_host_platform_device_count=4 --xla_backend_optimization_level=0",
            JZTREE_INSTRUCTION_SET="",
            GLIBC_TUNABLES="glibc.malloc.tcache_count=0",  # small arrays are allocated anew, with the chosen byte
        )
        for problem in session.findings(command, environment, 600):
            session.put("build", f"kernel calls {key}", {"error": str(problem)})
            return
        (folder / "complete").touch()
        session.put("build", f"kernel calls {key}", {"calls": len(list(folder.glob("*.pickle")))})


def calls_folder(session: Session, program: dict[str, Any]) -> Path:
    """Return the folder with the recorded calls of the sources."""
    return session.work / f"calls_{session.source.split()[0]}_{_key(program).replace(' ', '_')}"


def recorded(session: Session, selected: Sequence[dict[str, Any]]) -> dict[str, tuple[str, str, str]]:
    """Return the recorded calls of programs, as tasks of `kernel_calls` by the keys of their findings."""
    record_calls(session, selected)
    return {
        (key := f"{path.stem} {_key(program)}"): (str(path.parent), path.stem, key)
        for program in selected
        for path in sorted(calls_folder(session, program).glob("*.pickle"))
    }


def recorded_few(session: Session) -> dict[str, tuple[str, str, str]]:
    """Return the recorded calls with few particles."""
    return recorded(session, [program for program in programs(session) if program["n"] <= _FEW])


def smoke(session: Session) -> None:
    """Repeat every recorded call on the GPU. Each process begins with the calls with few particles."""
    tasks = recorded(session, programs(session))
    distribute(session, "smoke", "kernel_calls", tasks, lambda names: {"calls": names, "compares": True}, 120)


def compare(session: Session) -> None:
    """Compare all inputs, or inputs whose keys contain one of the chosen words."""
    keyed = {key_of(job_input): job_input for job_input in inputs(session.small)}
    distribute(
        session,
        "compare",
        "answers",
        {
            key: job_input
            for key, job_input in keyed.items()
            if not session.words or any(word in key for word in session.words)
        },
        lambda job_inputs: {"inputs": list(job_inputs)},
        1200,
    )


def distribute(
    session: Session,
    stage: str,
    program: str,
    tasks: dict[str, Any],
    job: Callable[[Sequence[Any]], dict[str, Any]],
    seconds: float,
) -> None:
    """Run the missing tasks in several processes.

    If a task ends its process, it is recorded as an error, and a new process runs the tasks after it.

    Args:
        session: This run.
        stage: The stage of the findings.
        program: The module of this package that runs tasks.
        tasks: The tasks by the keys of their findings.
        job: Returns the argument of the program for some tasks.
        seconds: The time limit of a process.
    """
    missing = [key for key in tasks if session.missing(stage, key)]
    count = min(_PROCESSES, max((os.cpu_count() or 2) // 2, 1), len(missing))

    def run(keys: list[str]) -> None:
        for _ in range(_ATTEMPTS):
            problem = None
            command = module(program, job([tasks[key] for key in keys]))
            for report in session.findings(command, session.environment(), seconds):
                if "key" in report:
                    keys.remove(report["key"])
                    session.put(stage, report.pop("key"), report)
                else:
                    problem = report
            if problem is None or problem["late"] or not keys:
                return
            session.put(stage, keys.pop(0), {"error": str(problem)})

    if count:
        with ThreadPoolExecutor(count) as pool:
            list(pool.map(run, shares(missing, count)))


def shares(keys: Sequence[str], count: int) -> list[list[str]]:
    """Distribute keys evenly, also if similar ones follow each other at regular distances."""
    return [[key for j, key in enumerate(keys) if (j + j // count) % count == i] for i in range(count)]
