"""The stages with other programs: all tests, and kernels under NVIDIA's sanitizers.

As a pytest plugin, it writes one JSON line per test as the test ends, so that an interrupted suite can continue later.
"""

import importlib.util
import json
import os
import re
import shutil
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .comparison import recorded_few, shares
from .session import ROOT, Session, fingerprint, module

_ENDED = "JZTREE_TESTS_ENDED"  # the file for these lines
_PASSED = "JZTREE_TESTS_PASSED"  # a file of tests to skip
_PARTS = 4  # processes of each tool: most of their time goes into compilation
_SHOWN = 60  # maximum number of failed tests to show
# The first two detect buffer overruns and reads of uninitialised data only if XLA allocates each buffer separately.
_APART = {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}
_TOOLS: dict[str, dict[str, str]] = {"memcheck": _APART, "initcheck": _APART, "racecheck": {}, "synccheck": {}}


def test(session: Session) -> None:
    """Run a case of each test. Tests that passed in an earlier run with the same sources are skipped."""
    source = fingerprint("jztree", "jztree_utils", "tests")
    if not session.missing("test", "suite", source):
        return
    ended, passed = (session.work / f"tests_{word}_{source}" for word in ("ended", "passed"))
    ended.touch()
    before = outcomes(ended.read_text())
    passed.write_text("\n".join(test for test, line in before.items() if line["outcome"] == "passed"))
    environment = session.environment(None, **{_ENDED: str(ended), _PASSED: str(passed)})
    report = list(session.findings(_suite(session), environment, 1200))
    lines = outcomes(ended.read_text())
    # pytest exits with 1 if tests fail, which is a finding and not a problem.
    finding = summary(lines) | {"complete": not report or report[-1]["stopped"] == "exit status 1"}
    if not lines:
        finding["error"] = f"no test ended: {report[-1] if report else None}"
    session.put("test", "suite", finding, source)


def _suite(session: Session) -> list[str]:
    tests = ["tests/arguments/test_config.py", "tests/transform/test_jax_ext.py"] if session.small else ["tests"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gpu.correctness", "-p", "no:cacheprovider"]
    command += ["--cases-of-each=1", f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    if importlib.util.find_spec("xdist") and not session.small:
        # Every worker compiles separately, which takes most of the time, and the GPU has memory for many.
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
    """A plugin for the pytest process that receives all reports."""

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = "" if report.outcome == "passed" else _last_line(report.longrepr)
            finding = {"test": report.nodeid, "outcome": report.outcome, "text": text, "seconds": report.duration}
            with open(os.environ[_ENDED], "a") as file:
                file.write(json.dumps(finding) + "\n")


def _last_line(longrepr: Any) -> str:
    """Return the error, or the reason why the test was skipped."""
    if isinstance(longrepr, tuple):
        return str(longrepr[2])
    crash = getattr(longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else longrepr)[:400]


def outcomes(text: str) -> dict[str, dict[str, Any]]:
    """Return the last outcome of each test. The last line may be incomplete."""
    lines = [json.loads(line) for line in text.splitlines() if line.endswith("}")]
    return {line["test"]: line for line in lines}


def summary(lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Return counts, failed tests with their errors, and reasons of skipped tests."""
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


def sanitize(session: Session) -> None:
    """Repeat the recorded calls with few particles under each tool, in several processes."""
    program = sanitizer()
    missing = [tool for tool in _TOOLS if session.missing("sanitize", tool)]
    if program is None and session.platform == "cuda":
        for tool in missing:
            session.put("sanitize", tool, {"left out": "compute-sanitizer is not installed on this machine"})
        return
    calls = recorded_few(session)
    if not calls:  # the stage `build` has recorded the error
        return
    parts = shares(list(calls), min(_PARTS, max((os.cpu_count() or 2) // 4, 1)))

    def run(tool: str, part: int) -> dict[str, Any]:
        watch = [] if program is None else [program, "--tool", tool, "--target-processes", "all"]
        watch += ["--report-api-errors", "no"] if watch and tool == "memcheck" else []
        log = session.work / f"{tool}_{part}.log"
        log.unlink(missing_ok=True)
        command = [*watch, *module("kernel_calls", {"calls": [calls[key] for key in parts[part]], "compares": False})]
        report = list(session.findings(command, session.environment(None, **_TOOLS[tool]), 400, log))
        return verdict(log.read_text(errors="replace"), report, len(parts[part]))

    with ThreadPoolExecutor(len(_TOOLS) * len(parts)) as pool:
        futures = {tool: [pool.submit(run, tool, part) for part in range(len(parts))] for tool in missing}
        for tool, results in futures.items():
            session.put("sanitize", tool, worst([future.result() for future in results]))


def sanitizer() -> str | None:
    """Return the program on the PATH or in the CUDA installation."""
    compilers = [shutil.which("nvcc") or "", "/usr/local/cuda/bin/nvcc"]
    places = [Path(nvcc).resolve().parent / "compute-sanitizer" for nvcc in compilers if nvcc]
    return shutil.which("compute-sanitizer") or next((str(place) for place in places if place.exists()), None)


def verdict(text: str, report: list[dict[str, Any]], calls: int) -> dict[str, Any]:
    """Return the verdict from the output of a tool over some calls, and its first complaints."""
    verdicts = re.findall(r"========= ((?:ERROR|RACECHECK) SUMMARY: .*)", text)
    complaints = [line for line in text.splitlines() if line.startswith("=========") and "SUMMARY" not in line]
    ended = [entry for entry in report if "key" in entry]
    failed = [text for entry in ended for text in entry["wrong"].values()]
    finding: dict[str, Any] = {"verdict": _worst(verdicts), "calls": len(ended), "complaints": complaints[:40]}
    if failed:
        finding["error"] = failed[0]
    elif len(ended) < calls:
        finding["error"] = f"{report[-1].get('stopped') if report else None}: {text[-600:]}"
    return finding


def worst(findings: list[dict[str, Any]]) -> dict[str, Any]:
    """Combine the findings of several processes."""
    summary: dict[str, Any] = {"verdict": _worst([finding["verdict"] for finding in findings])}
    summary["calls"] = sum(finding["calls"] for finding in findings)
    summary["complaints"] = [line for finding in findings for line in finding["complaints"]]
    errors = [finding["error"] for finding in findings if "error" in finding]
    return summary | {"error": errors[0]} if errors else summary


def _worst(verdicts: list[str]) -> str:
    """Return the worst of the verdicts of several processes."""
    return next((verdict for verdict in verdicts if not is_clean(verdict)), verdicts[-1] if verdicts else "not watched")


def is_clean(result: str | None) -> bool:
    """Return whether a tool of compute-sanitizer found no errors: ``ERROR SUMMARY: 0 errors``."""
    return result in (None, "not watched") or ": 0 " in str(result)
