"""Some cases of tests that have many, as a plugin of pytest: ``--cases-of-each 3`` keeps three of each test.

Sweeps over kinds of input have up to a hundred cases of one test, alike in what they compile and check. Each day's run
takes others of them, so that all are run in some days; ``make test-all`` runs them all.
"""

import datetime
import hashlib
from collections import defaultdict

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    """The options."""
    group = parser.getgroup("cases")
    group.addoption("--cases-of-each", type=int, default=0, help="the most cases of one test that are run; 0: all")
    group.addoption("--cases-seed", default="", help="what chooses them (default: the day, UTC)")


def pytest_configure(config: pytest.Config) -> None:
    """Settle the seed before worker processes start, which get the options of the first one."""
    config.option.cases_seed = config.option.cases_seed or f"{datetime.datetime.now(datetime.UTC):%Y%m%d}"


def pytest_report_header(config: pytest.Config) -> str | None:
    """Say that not all are run."""
    most, seed = config.option.cases_of_each, config.option.cases_seed
    return f"at most {most} cases of each test, --cases-seed {seed}; --cases-of-each 0 runs all" if most else None


@pytest.hookimpl(trylast=True)  # of those that -m and -k have left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out the others."""
    most = config.option.cases_of_each
    if most <= 0:
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[item.nodeid.partition("[")[0]].append(item)
    kept = {item for each in cases.values() for item in sorted(each, key=lambda item: _place(config, item))[:most]}
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def _place(config: pytest.Config, item: pytest.Item) -> bytes:
    return hashlib.blake2b(f"{config.option.cases_seed} {item.nodeid}".encode(), digest_size=8).digest()
