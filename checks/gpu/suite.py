"""The stage that runs all tests of the library on the device."""

import importlib.util
import json
import os
import sys
from collections import Counter
from typing import Any

from . import progress
from .record import ROOT, fingerprint
from .session import Session

_SHOWN = 60


def run(session: Session) -> None:
    """Tests that passed in an earlier run with these sources are not run again."""
    source = fingerprint("jztree", "jztree_utils", "tests")
    if not session.missing("test", "suite", source):
        return
    ended, passed = (session.work / f"tests_{word}_{source}" for word in ("ended", "passed"))
    before = outcomes(ended.read_text() if ended.exists() else "")
    passed.write_text("\n".join(test for test, line in before.items() if line["outcome"] == "passed"))
    environment = session.child.environment() | {progress.ENDED: str(ended), progress.PASSED: str(passed)}
    told = list(session.child.findings(_command(session), environment, session.seconds(1200)))
    problem = told[-1] if told else None
    lines = outcomes(ended.read_text() if ended.exists() else "")
    # pytest ends with 1 if tests fail; that is a finding and no problem.
    complete = problem is None or problem["stopped"] == "exit status 1"
    finding = summary(lines) | {"complete": complete}
    if not lines:
        finding["error"] = f"no test ended: {problem}"
    session.put("test", "suite", finding, source)


def _command(session: Session) -> list[str]:
    tests = ["tests/test_config.py", "tests/test_jax_ext.py"] if session.small else ["tests"]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "gpu.progress", "-p", "no:cacheprovider"]
    command += [f"--rootdir={ROOT}", "-c", str(ROOT / "pyproject.toml")]
    if importlib.util.find_spec("xdist") and not session.small:
        # Every worker compiles for itself, which takes most of the time, and the GPU has room for many.
        command += ["-n", str(max(min((os.cpu_count() or 2) - 2, 12), 1))]
    if importlib.util.find_spec("pytest_timeout"):
        command += ["--timeout=150"]
    return command + [str(ROOT / test) for test in tests]


def outcomes(text: str) -> dict[str, dict[str, Any]]:
    """The last outcome of each test. The last line may be cut off."""
    lines: dict[str, dict[str, Any]] = {}
    for line in text.splitlines():
        if line.endswith("}"):
            told = json.loads(line)
            lines[told["test"]] = told
    return lines


def summary(lines: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Numbers, which tests failed and why, and why tests were skipped."""
    counts = Counter(line["outcome"] for line in lines.values())
    failed = [{"test": test, "text": line["text"]} for test, line in lines.items() if line["outcome"] == "failed"]
    skipped = Counter(line["text"] for line in lines.values() if line["outcome"] == "skipped")
    slowest = sorted(lines.values(), key=lambda line: -line["seconds"])[:10]
    return {
        "passed": counts["passed"],
        "failed": counts["failed"],
        "skipped": counts["skipped"],
        "failures": failed[:_SHOWN],
        "why skipped": dict(skipped.most_common(20)),
        "slowest": {line["test"]: round(line["seconds"], 1) for line in slowest},
    }
