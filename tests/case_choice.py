"""A pytest plugin that runs a choice of the cases of each test: ``--cases-of-each 2`` keeps two of each test.

The choice depends on the list of cases and on markers alone, so every commit runs the same cases, and ``git bisect``
finds the commit that broke a case. A test keeps its last case, because parameters go from simple to hard (one device to
several, open to periodic); if there are to be more, also its first case, and others at equal steps between them. A test
marked ``fast`` or ``every_case`` keeps all cases, and one marked ``long`` only the first.

The markers ``core`` and ``watched`` may name some cases of their test. For example,
``@pytest.mark.watched("float32-8", "float64-300")`` marks only these two.
"""

from collections import defaultdict

import pytest

_NAMING = ("core", "watched")  # markers that may name cases


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option."""
    group = parser.getgroup("cases")
    text = "run at most this many cases of each test, but all if it is marked fast or every_case; 0 (the default): all"
    group.addoption("--cases-of-each", type=int, default=0, help=text)


def pytest_report_header(config: pytest.Config) -> str | None:
    """Name the limit, to distinguish the run from a run with every case."""
    maximum = config.option.cases_of_each
    return (
        f"at most {maximum} of the cases of each test, all of fast ones; make test-all runs all cases"
        if maximum
        else None
    )


@pytest.hookimpl(tryfirst=True, specname="pytest_collection_modifyitems")  # before -m
def pytest_leave_markers_to_named_cases(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Remove markers from cases that they do not name. Raise UsageError if one names a case that does not exist."""
    named: set[str] = set()
    for item in items:
        for marker in [mark for mark in item.own_markers if mark.name in _NAMING and mark.args]:
            cases = {f"{_test(item)}[{case}]" for case in marker.args}
            named |= cases
            if item.nodeid not in cases:
                item.own_markers.remove(marker)
    lacking = sorted(named.difference(item.nodeid for item in items))
    if lacking and not any("[" in str(argument) for argument in config.args):
        raise pytest.UsageError(f"a marker names cases that do not exist: {', '.join(lacking)}")


@pytest.hookimpl(trylast=True)  # after -m and -k
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselect all other cases."""
    maximum = config.option.cases_of_each
    if not maximum:
        return
    cases: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        cases[_test(item)].append(item)
    kept: set[pytest.Item] = set()
    for each in cases.values():
        if each[0].get_closest_marker("long"):
            kept.add(each[0])
        elif each[0].get_closest_marker("fast") or each[0].get_closest_marker("every_case"):
            kept.update(each)
        else:
            kept.update(evenly_spaced(each, maximum))
    config.hook.pytest_deselected(items=[item for item in items if item not in kept])
    items[:] = [item for item in items if item in kept]


def evenly_spaced(cases: list[pytest.Item], maximum: int) -> list[pytest.Item]:
    """Return at most ``maximum`` cases in order: the last, the first, and others at equal steps between them."""
    if len(cases) <= maximum:
        return cases
    if maximum == 1:
        return cases[-1:]
    return [cases[i * (len(cases) - 1) // (maximum - 1)] for i in range(maximum)]


def _test(item: pytest.Item) -> str:
    """Return the name of the test to which an item belongs."""
    return item.nodeid.partition("[")[0]
