"""What all stages share: the record of what was found, the time that is left, and the processes that do the work.

A process begins with nothing on the GPU, may be stopped at any time, and tells what it finds in lines of JSON.
"""

import datetime
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CHECKS = Path(__file__).parents[1]
ROOT = CHECKS.parent
LOG_TAIL = 2000  # characters of a log that an error takes along
_LEAST_SECONDS = 5.0


def home() -> Path:
    """The folder from which `jztree` is imported: this checkout once it is built there, else where it is installed."""
    spec = None if (ROOT / "jztree" / "lib").is_dir() else importlib.util.find_spec("jztree")
    return ROOT if spec is None or spec.origin is None else Path(spec.origin).parents[1]


def fingerprint(*folders: str) -> str:
    """Twelve hexadecimal digits that change with any source in these folders; a commit need not be known."""
    digest = hashlib.sha256()
    for path in sorted(path for folder in folders for path in (ROOT / folder).rglob("*")):
        if path.suffix in (".py", ".cu", ".cuh", ".h", ".cc", ".txt") and "lib" not in path.parts:
            digest.update(path.relative_to(ROOT).as_posix().encode() + path.read_bytes())
    return digest.hexdigest()[:12]


class Record:
    """One JSON file of everything that was found, written anew after each finding: a run may be cut off at any time.

    Findings are kept by stage and key. Each holds the fingerprint of what it was found with, and counts only for that.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.data: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {"stages": {}}

    def has(self, stage: str, key: str, source: str) -> bool:
        """Whether there is a finding for this source that is complete and no error of ours."""
        entry = self.stage(stage).get(key)
        return entry is not None and entry["source"] == source and entry.get("complete", True) and "error" not in entry

    def put(self, stage: str, key: str, source: str, finding: dict[str, Any]) -> None:
        at = datetime.datetime.now().isoformat(timespec="seconds")
        self.data["stages"].setdefault(stage, {})[key] = {"source": source, "at": at} | finding
        self.save()

    def save(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        partial = self.path.with_suffix(".partial")
        partial.write_text(json.dumps(self.data, indent=1) + "\n")
        os.replace(partial, self.path)

    def forget(self, stage: str) -> None:
        self.data["stages"].pop(stage, None)

    def stage(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = self.data["stages"].get(name, {})
        return found


@dataclass
class Session:
    """One run of the check.

    platform: ``cuda`` or ``cpu``. work: folder for what need not be kept: builds, samples, peers. data: the reference
    snapshots. wheels: folder with packages of peers, or None. small: a run that only tries the script. source: the
    fingerprint of the library. runs: of each timed call. words: time only calls whose keys contain one of these.
    stages: that were asked for. deadline: on the clock of `time.monotonic`.
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
    deadline: float | None = None

    @property
    def log(self) -> Path:
        """Where processes print what is no finding."""
        return self.work / "log"

    @property
    def samples(self) -> Path:
        """Particles that take long to make."""
        return self.work / "samples"

    def seconds(self, most: float) -> float:
        """How long something may take that wants ``most``."""
        return most if self.deadline is None else min(most, self.deadline - time.monotonic())

    def is_over(self) -> bool:
        return self.seconds(2 * _LEAST_SECONDS) < _LEAST_SECONDS

    def missing(self, stage: str, key: str, source: str | None = None) -> bool:
        return not self.record.has(stage, key, source or self.source)

    def put(self, stage: str, key: str, finding: dict[str, Any], source: str | None = None) -> None:
        self.record.put(stage, key, source or self.source, finding)
        print(f"{stage}: {key}: {brief(finding)}", flush=True)

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
        self, command: Sequence[str], environment: dict[str, str], most: float, log: Path | None = None
    ) -> Iterator[dict[str, Any]]:
        """The JSON lines of a process as they come. Last, if it failed or was stopped, one with ``stopped``.

        most: seconds after which it is stopped, or earlier if there are not as many left. log: where else it prints to.
        """
        seconds = max(self.seconds(most), 1.0)
        with (
            tempfile.TemporaryDirectory() as elsewhere,
            open(log or self.log, "a+") as lines,
            subprocess.Popen(
                command, cwd=elsewhere, env=environment, stdout=subprocess.PIPE, stderr=lines, text=True
            ) as process,
        ):
            timer = threading.Timer(seconds, process.kill)
            timer.start()
            assert process.stdout is not None
            for line in process.stdout:
                if line.startswith("{"):
                    yield json.loads(line)
                else:
                    lines.write(line)
            status = process.wait()
            late = not timer.is_alive()
            timer.cancel()
        if late:
            yield {"stopped": f"after {seconds:.0f} seconds", "late": True}
        elif status:
            yield {"stopped": f"exit status {status}", "late": False, "log": (log or self.log).read_text()[-LOG_TAIL:]}

    def collect(
        self, stage: str, command: Sequence[str], most: float, folder: Path | None = None, source: str | None = None
    ) -> dict[str, Any] | None:
        """Put each finding of a process into the record as it comes, by its ``key``; return what stopped it, if any."""
        problem = None
        for told in self.findings(command, self.environment(folder), most):
            if "key" in told:
                self.put(stage, told.pop("key"), told, source)
            else:
                problem = told
        return problem


def module(name: str, *arguments: Any) -> list[str]:
    """The command that runs a module of this package on JSON arguments."""
    return [sys.executable, "-P", "-m", f"gpu.{name}", *(json.dumps(argument) for argument in arguments)]


def tell(**finding: Any) -> None:
    """What a process says to the one that has started it."""
    print(json.dumps(finding), flush=True)


def one_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())[:500]}"


def ask(*command: str) -> str:
    """What a command prints; nothing if it is not there or fails."""
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return ""


def brief(finding: dict[str, Any]) -> str:
    """A finding in a few words, for the log."""
    if "error" in finding:
        return f"ERROR {finding['error']}"
    if finding.get("wrong"):
        return "; ".join(f"{name}: {text}" for name, text in finding["wrong"].items())
    if "seconds" in finding:
        peak = finding.get("peak_bytes")
        return f"{1e3 * finding['seconds']:.3g} ms" + (f", {peak / 1e9:.3g} GB" if peak else "")
    words = (f"{name} {value}" for name, value in finding.items() if not isinstance(value, (dict, list)))
    return ", ".join(words) or "ok"
