"""The choice of cases that `make test` runs."""

from types import SimpleNamespace
from typing import Any

from case_choice import pytest_collection_modifyitems

_ALL = [f"test_a.py::test_many[{i}]" for i in range(40)] + [
    "test_a.py::test_two[x]",
    "test_a.py::test_two[y]",
    "test_b.py::test_one",
]


def chosen(most: int, seed: str, names: list[str] = _ALL, turns: int = 1) -> list[str]:
    items: list[Any] = [_Item(name) for name in names]
    left_out: list[Any] = []

    def leave_out(items: list[Any]) -> None:
        left_out.extend(items)

    hook = SimpleNamespace(pytest_deselected=leave_out)
    config: Any = SimpleNamespace(option=SimpleNamespace(cases_of_each=most, cases_seed=seed, turns=turns), hook=hook)
    pytest_collection_modifyitems(config, items)
    assert len(items) + len(left_out) == len(names)
    return [item.nodeid for item in items]


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> bool:
        assert name == "long"
        return "test_a.py" in self.nodeid


def test_some_of_each_and_all_of_few_in_their_order() -> None:
    kept = chosen(5, "20261123")
    assert kept[-3:] == _ALL[-3:]
    assert len(kept) == 5 + 3
    assert kept == sorted(kept, key=_ALL.index)
    assert chosen(0, "20261123") == _ALL


def test_the_seed_chooses_and_not_what_else_is_there() -> None:
    kept = chosen(5, "20261123")
    assert chosen(5, "20261123", _ALL[:40]) == kept[:5]
    assert chosen(5, "20261124") != kept


def test_in_some_weeks_all_are_run() -> None:
    assert set().union(*(chosen(5, str(day)) for day in range(80))) == set(_ALL)


def test_long_tests_take_turns_with_one_case() -> None:
    runs = [chosen(3, str(day), turns=3) for day in range(300)]
    assert all(run[-1] == "test_b.py::test_one" for run in runs)
    assert {len(run) for run in runs} == {1, 2, 3}
    for name in ("many", "two"):
        of_it = [case for run in runs for case in run if name in case]
        assert 70 < len(of_it) < 130
        assert set(of_it) == {case for case in _ALL if name in case} or name == "many"
