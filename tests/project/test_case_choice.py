"""The fixed set of cases that ``make test`` runs."""

from types import SimpleNamespace
from typing import Any

import pytest
from case_choice import pytest_collection_modifyitems, pytest_leave_markers_to_named_cases

pytestmark = pytest.mark.fast

_MANY = [f"test_a.py::test_many[{i}]" for i in range(40)]
_LONG = [f"test_b.py::test_long[{i}]" for i in range(3)]
_FAST = [f"test_b.py::test_fast[{i}]" for i in range(4)]
_ALL = [*_MANY, "test_a.py::test_two[x]", "test_a.py::test_two[y]", *_LONG, *_FAST, "test_c.py::test_one"]


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid

    def get_closest_marker(self, name: str) -> bool:
        assert name in ("every_case", "fast", "long")
        return f"test_{name}" in self.nodeid


def chosen(maximum: int, names: list[str]) -> list[str]:
    items: list[Any] = [_Item(name) for name in names]
    left_out: list[Any] = []

    def leave_out(items: list[Any]) -> None:
        left_out.extend(items)

    hook = SimpleNamespace(pytest_deselected=leave_out)
    config: Any = SimpleNamespace(option=SimpleNamespace(cases_of_each=maximum), hook=hook)
    pytest_collection_modifyitems(config, items)
    assert len(items) + len(left_out) == len(names) or maximum == 0
    return [item.nodeid for item in items]


@pytest.mark.parametrize(
    ("maximum", "places"), [(1, [39]), (2, [0, 39]), (3, [0, 19, 39]), (5, [0, 9, 19, 29, 39]), (40, list(range(40)))]
)
def test_cases_are_evenly_spaced_from_first_to_last(maximum: int, places: list[int]) -> None:
    assert chosen(maximum, _MANY) == [_MANY[place] for place in places]


def test_every_test_keeps_a_case_and_the_order() -> None:
    kept = chosen(2, _ALL)
    assert kept == [_MANY[0], _MANY[39], "test_a.py::test_two[x]", "test_a.py::test_two[y]", _LONG[0], *_FAST, _ALL[-1]]


def test_no_limit_keeps_all_cases() -> None:
    assert chosen(0, _ALL) == _ALL


def test_choice_does_not_depend_on_other_tests() -> None:
    assert chosen(5, _ALL)[:5] == chosen(5, _MANY)


def test_long_tests_keep_their_first_case() -> None:
    assert chosen(5, _LONG) == _LONG[:1]


@pytest.mark.parametrize("marker", ["fast", "every_case"])
def test_marked_tests_keep_all_cases(marker: str) -> None:
    names = [name.replace("fast", marker) for name in _FAST]
    assert chosen(1, names) == names


def marked(names: list[str], *cases: str, args: tuple[str, ...] = ("tests",)) -> list[str]:
    """Return the cases that keep the marker ``watched`` if it names some."""
    items: list[Any] = []
    for name in names:
        mark = pytest.mark.watched(*cases).mark
        items.append(SimpleNamespace(nodeid=name, own_markers=[mark], get_closest_marker=lambda _, mark=mark: mark))
    config: Any = SimpleNamespace(args=list(args))
    pytest_leave_markers_to_named_cases(config, items)
    return [item.nodeid for item in items if item.own_markers]


def test_marker_applies_to_the_cases_that_it_names() -> None:
    assert marked(_MANY, "3", "17") == [_MANY[3], _MANY[17]]
    assert marked(_MANY) == _MANY


def test_marker_with_unknown_case_raises() -> None:
    with pytest.raises(pytest.UsageError, match=r"do not exist: test_a\.py::test_many\[40\]$"):
        marked(_MANY, "3", "40")
    assert marked(_MANY[:1], "3", args=(_MANY[0],)) == []
