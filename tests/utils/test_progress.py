"""Progress in a terminal, a notebook and a batch log, with fake streams."""

import contextlib
import io
import re
import sys
import threading
import time
from types import SimpleNamespace
from typing import Any

import jax
import numpy as np
import pytest

from jztree_utils import cli
from jztree_utils import progress as module
from jztree_utils.cli._particles import reading
from jztree_utils.progress import polled, progress

pytestmark = pytest.mark.fast


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


Notebook = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
BOTH = pytest.mark.parametrize("stream", [Terminal, io.StringIO], ids=["terminal", "log"])


@pytest.fixture(autouse=True)
def reports_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_SILENT_SECONDS", "_LOG_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.delenv("TERM", raising=False)


def work(steps: int, *, fail: bool = False, **options: Any) -> None:
    """Run steps of 10 particles."""
    with progress("read snapshot", 10 * steps, **options) as advance:
        for _ in range(steps):
            advance(10)
            time.sleep(1e-3)
        if fail:
            raise RuntimeError("broken")


def screen(text: str) -> str:
    """Return the line that a terminal shows for ``text``."""
    cells: list[str] = []
    for piece in text.split("\r"):
        cells[: len(piece)] = piece
    return "".join(cells).rstrip()


def without_times(text: str) -> list[str]:
    return re.sub(r" in [\d:?]+, [\d:?]+ left", "", text).splitlines()


def test_reading_a_snapshot_counts_particles(monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str, advance: Any, finite: bool) -> Any:
        for rows in (3, 4):
            time.sleep(1e-3)
            advance(rows)
        return np.zeros((7, 3))

    snapshot = SimpleNamespace(num=7, read=read)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    reading._read_all(snapshot, ["pos", "vel"], False)  # type: ignore[arg-type]
    shares = [(14, 1), (43, 3), (71, 5), (100, 7), (100, 7)]
    assert without_times(stream.getvalue())[-5:] == [
        f"read the snapshot: {share}%, {num} of 7 particles" for share, num in shares
    ]


def test_lines_of_a_log_name_the_file_that_follows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress("sort particles", 30) as advance:
        for where in ("snap.1", "snap.2", ""):
            time.sleep(1e-3)
            advance(10, where)
    assert without_times(stream.getvalue())[-4:] == [
        "sort particles: 33%, 10 of 30 particles, snap.1",
        "sort particles: 67%, 20 of 30 particles, snap.2",
        "sort particles: 100%, 30 of 30 particles",
        "sort particles: 100%, 30 of 30 particles",
    ]
    assert "\r" not in stream.getvalue()


def test_terminal_redraws_one_line_and_clears_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress("read snapshot", 4_000_000) as advance:
        time.sleep(0.2)  # tqdm redraws ten times a second
        advance(3_000_000, "snap.3")
        line = screen(stream.getvalue())
        assert line.startswith("read snapshot:  75%")
        assert "3.00M/4.00M" in line
        assert "snap.3" in line
        assert "\n" not in stream.getvalue()
    assert screen(stream.getvalue()) == ""


def test_notebook_keeps_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Notebook())
    work(8)
    assert stream.getvalue().count("\n") == 1
    assert screen(stream.getvalue().rstrip("\n")).startswith("read snapshot: 100%")


@BOTH
@pytest.mark.parametrize("how", [{"steps": 9}, {"steps": 9, "quiet": True}, {"steps": 0}])
def test_short_and_quiet_work_is_silent(monkeypatch: pytest.MonkeyPatch, stream: Any, how: dict[str, Any]) -> None:
    monkeypatch.setattr(module, "_SILENT_SECONDS", 0.0 if "quiet" in how else 60.0)
    monkeypatch.setattr(sys, "stderr", stream := stream())
    work(**how)
    assert stream.getvalue() == ""


@BOTH
@pytest.mark.parametrize(("process", "shows"), [(0, True), (1, False)])
def test_only_the_first_process_shows_progress(
    monkeypatch: pytest.MonkeyPatch, stream: Any, process: int, shows: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := stream())
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_index", lambda: process)
    work(10)
    assert bool(stream.getvalue()) == shows


@BOTH
def test_errors_propagate_and_remove_the_bar(monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stream := stream())
    with pytest.raises(RuntimeError, match="broken"):
        work(10, fail=True)
    assert stream.getvalue()
    assert not isinstance(stream, Terminal) or screen(stream.getvalue()) == ""


def test_work_continues_without_any_output_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    steps = []
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        with progress("count", 5, "halos") as advance, module.waiting("step"):
            advance(5)
            steps.append(stream)
    assert steps == [closed, None]


def test_progress_above_the_total_is_100_percent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress("count", 5, "halos") as advance:
        advance(9)
    assert without_times(stream.getvalue())[-1] == "count: 100%, 5 of 5 halos"


def test_work_of_unknown_length_shows_its_time_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    before = threading.active_count()
    with contextlib.suppress(RuntimeError), module.waiting("find groups"):
        while not screen(stream.getvalue()):
            time.sleep(0.01)
        assert re.fullmatch(r"find groups: 00:\d\d", screen(stream.getvalue()))
        raise RuntimeError("broken")
    assert screen(stream.getvalue()) == ""
    assert threading.active_count() <= before + 1  # the monitor of tqdm


@pytest.mark.parametrize("case", ["quiet", "log", "soon"])
def test_work_of_unknown_length_is_silent_elsewhere(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO() if case == "log" else Terminal())
    monkeypatch.setattr(module, "_TICK_SECONDS", 60.0 if case == "soon" else 0.0)
    with module.waiting("find groups", quiet=case == "quiet"):
        time.sleep(0.01)
    assert stream.getvalue() == ""


@pytest.mark.long
@pytest.mark.parametrize("devices", [1, 4])
def test_command_line_searches_show_their_time(
    devices: int, snapshot: Any, use_devices: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_devices(devices)
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.001)
    monkeypatch.delenv("TERM", raising=False)
    assert cli.main(["knn", str(snapshot), "-k", "4"]) == 0
    assert "find neighbours: " in stream.getvalue()  # the search, or its compilation
    assert screen(stream.getvalue()) == ""


def test_polled_work_is_reported_while_the_block_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.001)
    message, half, done = [], threading.Event(), 0

    def advance(amount: int) -> None:
        message.append(amount)
        if sum(message) == 5:
            half.set()

    with polled(lambda: done, advance):
        done = 5
        assert half.wait(60)
        done = 8
    assert sum(message) == 8


def test_polling_ends_with_an_error_in_the_block() -> None:
    threads = threading.active_count()
    with pytest.raises(RuntimeError, match="broken"), polled(lambda: 0, lambda amount: None):
        raise RuntimeError("broken")
    assert threading.active_count() == threads
