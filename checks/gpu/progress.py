"""A plugin of pytest that writes a JSON line a test as it ends, so that a suite that is cut off can go on later."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

ENDED = "JZTREE_TESTS_ENDED"  # the file that lines go to
PASSED = "JZTREE_TESTS_PASSED"  # a file of tests not to run again


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    passed = set(Path(os.environ[PASSED]).read_text().splitlines())
    before = [item for item in items if item.nodeid in passed]
    config.hook.pytest_deselected(items=before)
    items[:] = [item for item in items if item.nodeid not in passed]


class _Writer:
    """For the process that hears of all tests."""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            text = "" if report.outcome == "passed" else _last_line(report)
            finding = {"test": report.nodeid, "outcome": report.outcome, "text": text, "seconds": report.duration}
            with open(os.environ[ENDED], "a") as file:
                file.write(json.dumps(finding) + "\n")


def pytest_configure(config: Any) -> None:
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(_Writer())


def _last_line(report: pytest.TestReport) -> str:
    """The error, or why the test was skipped."""
    if isinstance(report.longrepr, tuple):
        return str(report.longrepr[2])
    crash = getattr(report.longrepr, "reprcrash", None)
    return str(crash.message if crash is not None else report.longrepr)[:400]
