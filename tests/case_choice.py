"""Some cases of tests that have many, as a plugin of pytest: ``--cases-of-each 3`` keeps three of each test.

Sweeps over kinds of input have up to a hundred cases of one test, alike in what they compile and check. Tests that take
seconds, which are marked as long, are most of the time of all: with ``--turns 3``, one of three is run, with one case.
Each commit is tested with others of both, so that some commits have run them all; ``make test-all`` does so itself.
"""

import datetime
import hashlib
import subprocess
from collections import defaultdict
from pathlib import Path

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("cases")
    group.addoption("--cases-of-each", type=int, default=0, help="the most cases of one test that are run; 0: all")
    group.addoption("--turns", type=int, default=1, help="of so many long tests, one is run (default: %(default)s)")
    group.addoption("--cases-seed", default="", help="what chooses them (default: the commit; else the day, UTC)")


def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed before worker processes start, which get the options of the first one."""
    config.option.cases_seed = config.option.cases_seed or _commit() or f"{datetime.datetime.now(datetime.UTC):%Y%m%d}"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that not all are run."""
    most, turns = config.option.cases_of_each, config.option.turns
    parts = [f"at most {most} cases of each test"] * (most > 0) + [f"one of {turns} long tests"] * (turns > 1)
    return f"{', '.join(parts)}, --cases-seed {config.option.cases_seed}" if parts else None


@pytest.hookimpl(trylast=True)  # of those that -m and -k have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the others."""
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item for name, each in cases.items() for item in _some(config, name, each)}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _some(config: pytest.Config, name: str, cases: list[pytest.Item]) -> list[pytest.Item]:
    most, turns = config.option.cases_of_each, config.option.turns
    if turns > 1 and cases[0].get_closest_marker("long"):
        if int.from_bytes(_hash(config, name)) % turns:
            return []
        most = 1
    return sorted(cases, key=lambda item: _hash(config, item.nodeid))[: most or None]


def _hash(config: pytest.Config, name: str) -> bytes:
    return hashlib.blake2b(f"{config.option.cases_seed} {name}".encode(), digest_size=8).digest()


def _commit() -> str:
    """Which one is checked out; nothing if that is not known."""
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short=12", "HEAD"]
    try:
        return subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    except OSError:
        return ""
