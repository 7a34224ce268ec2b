"""The stages that ask whether answers are right: all tests, GPU and CPU compared, kernels that NVIDIA's tool watches.

As a plugin of pytest it writes a JSON line a test as it ends, so that a suite that is cut off can go on later.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from .session import ROOT, Session, fingerprint, module

_ENDED = "JZTREE_TESTS_ENDED"  # the file that lines go to
_PASSED = "JZTREE_TESTS_PASSED"  # a file of tests not to run again
_SHOWN = 60  # tests that failed
# The first two see where buffers of XLA end, and what nobody has written to yet, only if each is allocated apart.
_APART = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
_TOOLS: dict[str, dict[str, str]] = {"memcheck": _APART, "initcheck": _APART, "racecheck": {}, "synccheck": {}}


def test(session: Session) -> None:
    """All tests; those that passed in an earlier run with these sources are not run again."""
    source = fingerprint("jztree", "jztree_utils", "tests")
    if not session.missing("test", "suite", source):
        return
    ended, passed = (session.work / f"tests_{word}_{source}" for word in ("ended", "passed"))
    ended.touch()
    before = outcomes(ended.read_text())
    passed.write_text("\n".join(test for test, line in before.items() if line["outcome"] == "passed"))
    environment = session.environment(None, **{_ENDED: str(ended), _PASSED: str(passed)})
    told = list(session.findings(_suite(session), environment, 1200))
    lines = outcomes(ended.read_text())
    # pytest ends with 1 if tests fail; that is a finding and no problem.
    finding = summary(lines) | {"complete": not told or told[-1]["stopped"] == "exit status 1"}
    if not lines:
        finding["error"] = f"no test ended: {told[-1] if told else None}"
    session.put("test", "suite", finding, source)


def _suite(session: Session) -> list[str]:
    tests = ["tests/test_config.py", "tests/test_jax_ext.py"] if session.small else ["tests"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gpu.correctness", "-p", "no:cacheprovider"]
    command += [f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    if importlib.util.find_spec("xdist") and not session.small:
        # Every worker compiles for itself, which takes most of the time, and the GPU has room for many.
        command += ["-n", str(max(min((os.cpu_count() or 2) - 2, 12), 1))]
    if importlib.util.find_spec("pytest_timeout"):
        command += ["--timeout=150"]
    return command + [str(ROOT / test) for test in tests]


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    passed = set(Path(os.environ[_PASSED]).read_text().splitlines())
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in passed])
    items[:] = [item for item in items if item.nodeid not in passed]


def pytest_configure(config: Any) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer())


class _Writer:
    """For the process that hears of all tests."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = "" if report.outcome == "passed" else _last_line(report.longrepr)
            finding = {"test": report.nodeid, "outcome": report.outcome, "text": text, "seconds": report.duration}
            with open(os.environ[_ENDED], "a") as file:
                file.write(json.dumps(finding) + "\n")


def _last_line(longrepr: Any) -> str:
    """The error, or why the test was skipped."""
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else longrepr)[:400]


def outcomes(text: str) -> dict[str, dict[str, Any]]:
    """The last outcome of each test. The last line may be cut off."""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return {line["test"]: line for line in lines}


def summary(lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Numbers, which tests failed and why, and why tests were skipped."""
    counts = Counter(line["outcome"] for line in lines.values())
    failed = [{"test": test, "text": line["text"]} for test, line in lines.items() if line["outcome"] == "failed"]
    skipped = Counter(line["text"] for line in lines.values() if line["outcome"] == "skipped")
    slowest = sorted(lines.values(), key=lambda line: -line["seconds"])[:10]
    return {
        **{outcome: counts[outcome] for outcome in ("passed", "failed", "skipped")},
        "failures": failed[:_SHOWN],
        "why skipped": dict(skipped.most_common(20)),
        "slowest": {line["test"]: round(line["seconds"], 1) for line in slowest},
    }


def compare(session: Session) -> None:
    """Each input that has not been compared, in one process; one more if that dies."""
    for _ in range(2):
        if not session.missing("compare", "all inputs"):
            return
        done = [key for key in session.record.stage("compare") if not session.missing("compare", key)]
        job = {"watched": False, "small": session.small, "done": done}
        problem = session.collect("compare", module("answers", job), 1200)
        late = problem is not None and problem["late"]
        died = {"error": str(problem)} if problem is not None and not late else {}
        session.put("compare", "all inputs", {"complete": not late} | died)
        if late:
            return


def sanitize(session: Session) -> None:
    """Each tool over the same small inputs."""
    program = sanitizer()
    for tool, options in _TOOLS.items():
        if not session.missing("sanitize", tool) or session.is_over():
            continue
        if program is None and session.platform == "cuda":
            session.put("sanitize", tool, {"left out": "compute-sanitizer is not on this machine"})
            continue
        watch = [] if program is None else [program, "--tool", tool, "--target-processes", "all"]
        watch += ["--report-api-errors", "no"] if watch and tool == "memcheck" else []
        log = session.work / f"{tool}.log"
        log.unlink(missing_ok=True)
        command = [*watch, *module("answers", {"watched": True, "small": session.small})]
        told = list(session.findings(command, session.environment(None, **options), 400, log))
        session.put("sanitize", tool, verdict(log.read_text(errors="replace"), told))


def sanitizer() -> str | None:
    """The program, on the PATH or where CUDA is."""
    beside = [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    places = [Path(nvcc).resolve().parent / "compute-sanitizer" for nvcc in beside if nvcc]
    return shutil.which("compute-sanitizer") or next((str(place) for place in places if place.exists()), None)


def verdict(text: str, told: list[dict[str, Any]]) -> dict[str, Any]:
    """The verdict out of what a tool printed, and the first of what it complained of."""
    verdicts = re.findall(r"========= ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    # Each process that was started has one; the worst counts.
    worst = next((one for one in verdicts if not is_clean(one)), verdicts[-1] if verdicts else "not watched")
    complaints = [line for line in text.splitlines() if line.startswith("=========") and "SUMMARY" not in line]
    finding: dict[str, Any] = {"verdict": worst, "ended": "exercised" in text, "complaints": complaints[:40]}
    if told and not finding["ended"]:
        finding["error"] = f"{told[-1]['stopped']}: {text[-600:]}"
    return finding


def is_clean(found: str | None) -> bool:
    """Whether a tool of compute-sanitizer found nothing: ``ERROR SUMMARY: 0 errors``."""
    return found in (None, "not watched") or ": 0 " in str(found)
