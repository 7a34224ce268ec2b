"""The stages that compare answers, and that let NVIDIA's compute-sanitizer watch the kernels."""

import re
import shutil
from pathlib import Path
from typing import Any

from .child import module
from .session import Session

# memcheck sees the bounds of XLA's buffers only if each is allocated apart.
_TOOLS = {
    "memcheck": {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"},
    "racecheck": {},
    "synccheck": {},
}


def compare(session: Session) -> None:
    """Each input that has not been compared, in one process; one more if that dies."""
    for _ in range(2):
        if not session.missing("compare", "all inputs"):
            return
        done = [key for key in session.record.stage("compare") if not session.missing("compare", key)]
        command = module("compare", {"small": session.small, "done": done})
        problem = None
        for told in session.child.findings(command, session.child.environment(), session.seconds(1200)):
            if "key" in told:
                session.put("compare", told.pop("key"), told)
            else:
                problem = told
        if problem is None:
            session.put("compare", "all inputs", {"complete": True})
            return
        late = bool(problem["late"])
        session.put("compare", "all inputs", {"complete": not late} | ({} if late else {"error": str(problem)}))
        if late:
            return


def sanitize(session: Session) -> None:
    """Each tool over the same small inputs."""
    program = sanitizer()
    for tool, options in _TOOLS.items():
        if not session.missing("sanitize", tool) or session.is_over():
            continue
        if program is None and session.child.platform == "cuda":
            session.put("sanitize", tool, {"left out": "compute-sanitizer is not on this machine"})
            continue
        watch = [] if program is None else [program, "--tool", tool, "--target-processes", "all"]
        watch += ["--report-api-errors", "no"] if watch and tool == "memcheck" else []
        log = session.work / f"{tool}.log"
        log.unlink(missing_ok=True)
        child = type(session.child)(session.child.platform, log)
        environment = child.environment() | options
        told = list(child.findings([*watch, *module("exercise", session.small)], environment, session.seconds(400)))
        session.put("sanitize", tool, _read(log.read_text(errors="replace"), told))


def sanitizer() -> str | None:
    """The program, on the PATH or where CUDA is."""
    beside = [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    places = [Path(nvcc).resolve().parent / "compute-sanitizer" for nvcc in beside if nvcc]
    return shutil.which("compute-sanitizer") or next((str(place) for place in places if place.exists()), None)


def _read(text: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """The verdict out of what a tool printed, and the first of what it complained of."""
    verdicts = re.findall(r"========= ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    # Each process that was started has one; the worst counts.
    verdict = next((one for one in verdicts if ": 0 " not in one), verdicts[-1] if verdicts else "not watched")
    finding: dict[str, Any] = {"verdict": verdict, "ended": "exercised" in text}
    complaints = [line for line in text.splitlines() if line.startswith("=========") and "SUMMARY" not in line]
    finding["complaints"] = complaints[:40]
    if told and not finding["ended"]:
        finding["error"] = f"{told[-1]['stopped']}: {text[-600:]}"
    return finding
