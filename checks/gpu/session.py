"""Common parts of the stages: the record of findings, the remaining time, and the worker processes.

A process starts with an unused GPU, may be stopped at any time, and reports findings as lines of JSON.
"""

import datetime
import hashlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKS = Path(__file__).parents[1]
ROOT = CHECKS.parent
LOG_TAIL = 2000  # characters of a log that an error includes
_LEAST_SECONDS = 5.0
_OPTIONS = ("JAX_", "XLA_", "PYTHON", "JZTREE_COMMAND_BUFFERS")  # start of the names of variables that a stage sets


def home() -> Path:
    """Return the folder to import `jztree` from: this checkout if it is built, otherwise the installation."""
    spec = None if (ROOT / "jztree" / "lib").is_dir() else importlib.util.find_spec("jztree")
    return ROOT if spec is None or spec.origin is None else Path(spec.origin).parents[1]


def fingerprint(*folders: str) -> str:
    """Return twelve hexadecimal digits that change with any source in these folders, even outside of a git checkout."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".cu", ".cuh", ".h", ".cc", ".txt") and "lib" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Record:
    """A JSON file of the findings, rewritten after each finding, because a run may be stopped at any time.

    Findings are stored by stage and key. Each stores the fingerprint of its sources, and is valid only for these.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"stages": {}}
        self._lock = threading.Lock()  # several threads wait for processes

    def has(self, stage: str, key: str, source: str) -> bool:
        """Return whether a finding for this source exists that is complete and not an error of this library."""
        entry = self.stage(stage).get(key)
        return entry is not None and entry["source"] == source and entry.get("complete", True) and "error" not in entry

    def put(self, stage: str, key: str, source: str, finding: dict[str, Any]) -> None:
        now = datetime.datetime.now().isoformat(timespec="seconds")
        with self._lock:
            self.data["stages"].setdefault(stage, {})[key] = {"source": source, "at": now} | finding
        self.save()

    def save(self) -> None:
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            partial = self.path.with_suffix(".partial")
            partial.write_text(json.dumps(self.data, indent=1) + "\n")
            os.replace(partial, self.path)

    def forget(self, stage: str) -> None:
        self.data["stages"].pop(stage, None)

    def stage(self, name: str) -> dict[str, Any]:
        result: dict[str, Any] = self.data["stages"].get(name, {})
        return result


@dataclass
class Session:
    """One run of the check.

    Attributes:
        record: The findings.
        platform: ``cuda`` or ``cpu``.
        work: The folder for temporary data: builds, samples, peers.
        data: The reference snapshots.
        wheels: The folder with packages of peers, or None.
        small: Whether the run only tests the script.
        source: The fingerprint of the library.
        runs: The number of runs of each timed call.
        words: Compare only inputs, and time only calls, whose keys contain one of the words; empty means all.
        stages: The requested stages.
        xla_flags: The value of XLA_FLAGS in every process.
        libraries: The folder with libraries that were compiled elsewhere, or None.
        deadline: End of the run on the clock of `time.monotonic`, or None.
    """

    record: Record
    platform: str
    work: Path
    data: Path
    wheels: Path | None = None
    small: bool = False
    source: str = ""
    runs: int = 11
    words: Sequence[str] = ()
    stages: set[str] = field(default_factory=set)
    xla_flags: str = ""
    libraries: Path | None = None
    deadline: float | None = None

    @property
    def log(self) -> Path:
        """The file for output of processes other than findings."""
        return self.work / "log"

    @property
    def samples(self) -> Path:
        """The folder for particles that take long to generate."""
        return self.work / "samples"

    def seconds(self, largest: float) -> float:
        """Return the time limit of a task that needs at most ``most`` seconds."""
        return largest if self.deadline is None else min(largest, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        return self.seconds(2 * _LEAST_SECONDS) < _LEAST_SECONDS

    def missing(self, stage: str, key: str, source: str | None = None) -> bool:
        return not self.record.has(stage, key, source or self.source)

    def put(self, stage: str, key: str, finding: dict[str, Any], source: str | None = None) -> None:
        self.record.put(stage, key, source or self.source, finding)
        print(f"{stage}: {key}: {brief(finding)}", flush=True)

    def environment(self, folder: Path | None = None, **variables: str) -> dict[str, str]:
        """Return the user's environment without options of JAX, with libraries from ``folder``, by default our own.

        No other folder on Python's path has a `jztree`, except that of installed packages, which comes last.
        """
        retained = {name: value for name, value in os.environ.items() if not name.startswith(_OPTIONS)}
        folders = [Path(word) for word in os.environ.get("PYTHONPATH", "").split(os.pathsep) if word]
        path = [CHECKS, folder or home(), *(path for path in folders if not (path / "jztree").exists())]
        return retained | {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONUNBUFFERED": "1",
            "JAX_PLATFORMS": "cpu" if self.platform == "cpu" else "cuda,cpu",
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
            "XLA_PYTHON_CLIENT_MEM_FRACTION": "0.95",
            **({"XLA_FLAGS": self.xla_flags} if self.xla_flags else {}),
            **variables,
        }

    def findings(
        self, command: Sequence[str], environment: dict[str, str], largest: float, log: Path | None = None
    ) -> Iterator[dict[str, Any]]:
        """Yield the JSON lines of a process when they arrive. If it fails or is stopped, the last has ``stopped``.

        Args:
            command: The command of the process.
            environment: Its environment variables.
            most: The time limit in seconds, reduced to the remaining time.
            log: The file for its other output; None means `log`.
        """
        seconds = max(self.seconds(largest), 1.0)
        with (
            tempfile.TemporaryDirectory() as elsewhere,
            open(log or self.log, "a+") as lines,
            subprocess.Popen(
                command,
                cwd=elsewhere,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=lines,
                text=True,
                start_new_session=True,
            ) as process,
        ):
            # Children of the process inherit the pipe, so they must end too.
            timer = threading.Timer(seconds, lambda: os.killpg(process.pid, signal.SIGKILL))
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                else:
                    lines.write(line)
            status = process.wait()
            timed_out = not timer.is_alive()
            timer.cancel()
        if timed_out:
            yield {"stopped": f"after {seconds:.0f} seconds", "late": True}
        elif status:
            yield {"stopped": f"exit status {status}", "late": False, "log": (log or self.log).read_text()[-LOG_TAIL:]}

    def collect(
        self,
        stage: str,
        command: Sequence[str],
        largest: float,
        folder: Path | None = None,
        source: str | None = None,
        variables: Mapping[str, str] = types.MappingProxyType({}),
    ) -> dict[str, Any] | None:
        """Record each finding of a process under its ``key`` when it arrives. Return the cause of a stop, if any."""
        problem = None
        for report in self.findings(command, self.environment(folder, **variables), largest):
            if "key" in report:
                self.put(stage, report.pop("key"), report, source)
            else:
                problem = report
        return problem


def module(name: str, *arguments: Any) -> list[str]:
    """Return the command that runs a module of this package with JSON arguments."""
    return [sys.executable, "-P", "-m", f"gpu.{name}", *(json.dumps(argument) for argument in arguments)]


def tell(**finding: Any) -> None:
    """Report a finding to the parent process."""
    print(json.dumps(finding), flush=True)


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def ask(*command: str) -> str:
    """Return the output of a command, or nothing if it does not exist or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def brief(finding: dict[str, Any]) -> str:
    """Summarise a finding in a few words, for the log."""
    if "error" in finding:
        return f"ERROR {finding['error']}"
    if finding.get("wrong"):
        return "; ".join(f"{name}: {text}" for name, text in finding["wrong"].items())
    if "seconds" in finding:
        peak = finding.get("peak_bytes")
        return f"{1e3 * finding['seconds']:.3g} ms" + (f", {peak / 1e9:.3g} GB" if peak else "")
    words = (f"{name} {value}" for name, value in finding.items() if not isinstance(value, (dict, list)))
    return ", ".join(words) or "ok"
