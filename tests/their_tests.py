"""Runs tests of other libraries with our classes instead of theirs. Not a test."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest

_ROOT = Path(__file__).parents[1]
# Many tests of a module do not use the classes, and would pass with any classes.
_COUNTING = """
import functools
import pytest

_used = []


def _counted(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        _used.append(self)
        return method(self, *args, **kwargs)

    return call


for _class in OURS:
    setattr(_class, USE, _counted(getattr(_class, USE)))


@pytest.fixture(autouse=True)
def _count(record_property):
    _used.clear()
    yield
    record_property("uses", len(_used))
"""


def skip_without(module: str) -> None:
    """Skip the test if a module of tests is not installed. It is not imported, because its marks are unknown here."""
    try:
        result = importlib.util.find_spec(module)
    except ModuleNotFoundError:
        result = None
    if result is None:
        pytest.skip(f"{module} is not installed")


class Case(NamedTuple):
    """A test that ran. message: of its failure, empty if it passed. uses: whether it used our classes."""

    name: str
    message: str
    uses: bool

    @property
    def function(self) -> str:
        return self.name.partition("[")[0]


def run(folder: Path, replace: str, tests: str, *options: str) -> list[Case]:
    """Run tests in a separate process, and return the tests that were not skipped.

    replace: code that replaces their classes by ours, lists ours as ``OURS``, and names as ``USE`` the method called by
    each use of them. tests: code that imports the tests. options: of pytest.
    """
    (folder / "test_theirs.py").write_text(replace + _COUNTING + tests)
    call = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=found.xml", *options]
    environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
    subprocess.run([*call, "test_theirs.py"], cwd=folder, env=environ, capture_output=True, check=False)
    cases = ElementTree.parse(folder / "found.xml").iter("testcase")
    return [_case(case) for case in cases if case.find("skipped") is None]


def assert_pass(cases: list[Case], minimum: int, reasons: Sequence[str], failing: Collection[str] = ()) -> None:
    """Assert that at least ``least`` of the cases that use our classes pass, and that others fail as expected.

    reasons: parts of the messages of expected failures. failing: functions that fail for other reasons.
    """
    assert sum(case.uses and not case.message for case in cases) >= minimum
    for case in cases:
        known = case.function in failing or any(reason in case.message for reason in reasons)
        assert known or not case.message, f"{case.name}: {case.message}"


def _case(case: ElementTree.Element) -> Case:
    name = "::".join(filter(None, (case.get("classname", "").partition(".")[2], case.get("name", ""))))
    failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
    uses = [int(item.get("value", 0)) for item in case.iter("property") if item.get("name") == "uses"]
    return Case(name, "" if failure is None else failure.get("message", "") or "failed", any(uses))
