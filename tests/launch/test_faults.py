"""A hundred faults are injected into programs of several processes; `make faults` injects a thousand."""

import pytest
from faults import case, runner


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 100, 20))
def test_injected_faults_end_processes_as_expected(first: int) -> None:
    reports: list[str] = []
    tally = runner.run(
        ((f"case {number}", case.drawn(1, number)) for number in range(first, first + 20)), report=reports.append
    )
    assert tally.cases == 20
    assert not reports, "\n\n".join(reports)
