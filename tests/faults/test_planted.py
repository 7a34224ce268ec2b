"""The fault cases find errors planted in the library, and report them as scripts that reproduce them."""

import dataclasses
import re

import pytest

from faults import runner
from faults.case import Case, drawn
from faults.kinds import KINDS

_SECONDS = 20.0  # after which a process counts as hung
_LAUNCH = "from jztree.launch import _callbacks, _ends, _lines, _peers"


def case_of(name: str, planted: str = "", **changes: object) -> Case:
    """Return the smallest case of a kind, for a library changed by the code ``planted``."""
    kind = next(kind for kind in KINDS if kind.name == name)
    small = Case(kind, kind.moments[-1], (*kind.works, "plain")[0], count=2, devices=1, rank=1, step=1)
    return dataclasses.replace(small, planted=f"{_LAUNCH}\n{planted}" if planted else "", **changes)  # type: ignore[arg-type]


def reports_of(case: Case) -> tuple[runner.Tally, str]:
    reports: list[str] = []
    return runner.run([("planted", case)], limit=_SECONDS, report=reports.append), "\n".join(reports)


@pytest.mark.parametrize(
    "name",
    [
        "raises",
        pytest.param("leaves by exit", marks=pytest.mark.slow),
        pytest.param("is killed", marks=pytest.mark.slow),
    ],
)
def test_correct_library_passes(name: str) -> None:
    tally, report = reports_of(case_of(name))
    assert tally.cases == 1
    assert not report


_SLOW = pytest.mark.slow


@pytest.mark.long
@pytest.mark.parametrize(
    ("name", "planted", "found"),
    [
        pytest.param(
            "raises",
            "_peers.Peers.publish_end = lambda *_: None",
            "another process (had not ended|ended with .* without)",
            id="the end is not published",
            marks=_SLOW,
        ),
        pytest.param(
            "raises",
            "_peers.summary_of = lambda error: 'an error'",
            "another process ended with 1 without the sentence .*bad data",
            id="the cause is not published",
        ),
        pytest.param(
            "raises",
            "_peers.Peers.name = 'a process'",
            "another process ended with 1 without the sentence .*process 1 of 2",
            id="no process is named",
            marks=_SLOW,
        ),
        pytest.param(
            "leaves by exit",
            "_ends.Ends.find_vain_wait = lambda self: time.sleep(1) or ''",
            "had not ended",
            id="an exit is not seen",
            marks=_SLOW,
        ),
        pytest.param(
            "is killed",
            "_lines.Lines.check_process = lambda *_: None",
            "another process (had not ended|ended with .* without)",
            id="a killed process is not seen",
            marks=_SLOW,
        ),
        pytest.param(
            "calls with another number",
            "sys.modules['jztree._transform.shard_map'].check_same = lambda *_: None",
            "without the sentence .*calls of the processes differ",
            id="calls are not compared",
            marks=_SLOW,
        ),
        pytest.param(
            "raises in a callback",
            "_callbacks._report_if_stuck = lambda *_: None",
            "had not ended",
            id="a callback is not seen",
            marks=_SLOW,
        ),
        pytest.param(
            "catches an exit",
            "_peers.Peers.exit = lambda self, code=0: os._exit(code)",
            "ended with [12]",
            id="a caught exit ends a process",
        ),
        pytest.param(
            "is slow",
            "_ends.Ends.all_idle = lambda *_: True\n_ends.Ends.idling = lambda *_: 'work'",
            "another process ended with 1",
            id="those who wait for a slow process are ended",
            marks=_SLOW,
        ),
        pytest.param(
            "does nothing",
            "atexit.register(lambda: print('jztree: well done'))",
            "says something although all is well",
            id="something is said",
            marks=_SLOW,
        ),
    ],
)
def test_planted_error_is_found(name: str, planted: str, found: str) -> None:
    # Most kinds use their last moment; for a slow process, this is after the others have ended.
    tally, report = reports_of(case_of(name, planted))
    assert re.search(found, next(iter(tally.wrong), "")), report


@pytest.mark.long
def test_a_report_shows_how_it_was_run() -> None:
    case = case_of("raises", "_peers.summary_of = lambda error: 'an error'", moment="started")
    _, report = reports_of(case)
    assert case.script() in report.replace("\n    ", "\n")
    assert "JAX_NUM_PROCESSES=2 JAX_PROCESS_ID=1 python script.py &" in report
    assert "process 0 ended with 1" in report


def test_cases_are_reproducible_and_cover_every_kind() -> None:
    cases = [drawn(4, number) for number in range(len(KINDS))]
    assert {case.kind.name for case in cases} == {kind.name for kind in KINDS}
    assert [case.script() for case in cases] == [drawn(4, number).script() for number in range(len(KINDS))]
    for case in cases:
        compile(case.script(), "script.py", "exec")
