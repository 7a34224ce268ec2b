"""Progress in a terminal, a notebook and a batch log, with fake streams and a fake clock."""

import contextlib
import io
import os
import pty
import re
import subprocess
import sys
import termios
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


class Clock:
    """A clock that stands still until a test advances it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(module, "monotonic", clock)
    monkeypatch.delenv("TERM", raising=False)
    return clock


def work(clock: Clock, steps: int, seconds: float, *, fail: bool = False, **options: Any) -> None:
    """Run steps of 10 particles, each of which takes ``seconds``."""
    with progress("read snapshot", 10 * steps, **options) as advance:
        for _ in range(steps):
            clock.now += seconds
            advance(10)
        if fail:
            raise RuntimeError("broken")


def test_reading_a_snapshot_counts_particles(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(name: str, advance: Any, finite: bool) -> Any:
        for rows in (3, 4):
            clock.now += 10
            advance(rows)
        return np.zeros((7, 3))

    snapshot = SimpleNamespace(num=7, read=read)
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    reading._read_all(snapshot, ["pos", "vel"], False)  # type: ignore[arg-type]
    lines = stream.getvalue().splitlines()
    assert [re.sub(r", [^,]+ left", "", line) for line in lines] == [
        *(f"read the snapshot: {share}%, {num} of 7 particles" for share, num in ((14, 1), (43, 3), (71, 5), (100, 7))),
        "read the snapshot: 7 particles in 40 s",
    ]


def test_reports_name_the_file_that_follows(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress("sort particles", 30) as advance:
        for where in ("snap.1", "snap.2", ""):
            clock.now += 10
            advance(10, where)
    assert stream.getvalue().splitlines() == [
        "sort particles: 33%, 10 of 30 particles, 20 s left, snap.1",
        "sort particles: 67%, 20 of 30 particles, 10 s left, snap.2",
        "sort particles: 100%, 30 of 30 particles",
        "sort particles: 30 particles in 30 s",
    ]


BOTH = pytest.mark.parametrize("stream", [Terminal, io.StringIO], ids=["terminal", "log"])


def screen(text: str) -> str:
    """Return the line that a terminal shows for ``text``."""
    cells: list[str] = []
    for piece in text.split("\r"):
        cells[: len(piece)] = piece
    return "".join(cells).rstrip()


def test_terminal_redraws_one_line_and_clears_it(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    with progress("read snapshot", 4_000_000) as advance:
        for _ in range(3):
            clock.now += 20
            advance(1_000_000)
            assert "\n" not in stream.getvalue()
        shown = "[#########....] read snapshot: 75%, 3,000,000 of 4,000,000 particles, 20 s left"
        assert screen(stream.getvalue()) == shown
    assert screen(stream.getvalue()) == ""


@pytest.mark.parametrize(
    ("columns", "shown"),
    [
        (120, "[#######.......................] sort: 25%, 2 of 8 files, 1 min 30 s left"),
        (57, "[###..........] sort: 25%, 2 of 8 files, 1 min 30 s left"),
        (40, "sort: 25%, 2 of 8 files, 1 min 30 s lef"),
    ],
)
def test_bar_fills_the_space_next_to_the_text(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, columns: int, shown: str
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(module, "_columns", lambda stream: columns)
    with progress("sort", 8, "files") as advance:
        clock.now += 30
        advance(2)
        assert screen(stream.getvalue()) == shown
        assert len(shown) < columns


def test_terminal_is_not_redrawn_too_often(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    work(clock, 10_000, 0.001)
    assert 50 < stream.getvalue().count("\r") < 110  # 10 s


def test_log_gets_a_line_per_tenth_of_the_work(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    work(clock, 500, 0.2)
    lines = stream.getvalue().splitlines()
    assert lines[0] == "read snapshot: 10%, 500 of 5,000 particles, 1 min 30 s left"
    assert lines[-1] == "read snapshot: 5,000 particles in 1 min 40 s"
    assert len(lines) == 11
    assert "\r" not in stream.getvalue()


def test_log_of_short_work_gets_a_line_every_few_seconds(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    work(clock, 12, 1)
    assert [line.split()[2] for line in stream.getvalue().splitlines()] == ["42%,", "83%,", "120"]


def test_log_of_very_long_work_gets_a_line_per_minute(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress("read snapshot", 1000) as advance:
        for _ in range(90):
            clock.now += 4
            advance(1)
    assert len(stream.getvalue().splitlines()) == 7


def test_notebook_keeps_one_line(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    outstream = type("OutStream", (io.StringIO,), {"__module__": "ipykernel.iostream"})
    monkeypatch.setattr(sys, "stderr", stream := outstream())
    work(clock, 80, 0.125)
    text = stream.getvalue()
    assert 10 < text.count("\r") < 25
    assert text.count("\n") == 1
    assert screen(text.rstrip("\n")) == "read snapshot: 800 particles in 10 s"


@BOTH
@pytest.mark.parametrize(
    "how", [{"steps": 40, "seconds": 0.01}, {"steps": 9, "seconds": 9, "quiet": True}, {"steps": 0, "seconds": 1}]
)
def test_short_and_quiet_work_is_silent(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, stream: Any, how: dict[str, Any]
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := stream())
    work(clock, **how)
    assert stream.getvalue() == ""


@BOTH
@pytest.mark.parametrize(("process", "shows"), [(0, True), (1, False)])
def test_only_the_first_process_shows_progress(
    clock: Clock, monkeypatch: pytest.MonkeyPatch, stream: Any, process: int, shows: bool
) -> None:
    monkeypatch.setattr(sys, "stderr", stream := stream())
    monkeypatch.setattr(jax.distributed, "is_initialized", lambda: True)
    monkeypatch.setattr(jax, "process_index", lambda: process)
    work(clock, 10, 9)
    assert bool(stream.getvalue()) == shows


@BOTH
def test_errors_propagate_and_remove_the_bar(clock: Clock, monkeypatch: pytest.MonkeyPatch, stream: Any) -> None:
    monkeypatch.setattr(sys, "stderr", stream := stream())
    with pytest.raises(RuntimeError, match="broken"):
        work(clock, 10, 9, fail=True)
    assert stream.getvalue()
    assert "particles in" not in stream.getvalue()
    assert not isinstance(stream, Terminal) or screen(stream.getvalue()) == ""


def test_work_continues_without_any_output_stream(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = io.StringIO()
    closed.close()
    for stream in (closed, None):
        monkeypatch.setattr(sys, "stderr", stream)
        before = clock.now
        work(clock, 10, 9)
        assert clock.now == before + 90


def test_progress_above_the_total_is_100_percent(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    with progress("count", 5, "halos") as advance:
        clock.now += 70
        advance(9)
    assert stream.getvalue().splitlines() == ["count: 100%, 5 of 5 halos", "count: 5 halos in 1 min 10 s"]


SCRIPT = """
import os, time
from jztree_utils.progress import progress
with progress("read", 100) as advance:
    time.sleep(0.6)
    advance(50)
    print("columns", os.get_terminal_size(2).columns)
"""


def test_a_real_terminal_of_40_columns() -> None:
    master, slave = pty.openpty()
    termios.tcsetwinsize(slave, (24, 40))
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, stderr=slave, check=True, timeout=60, text=True
    )
    os.close(slave)
    shown = os.read(master, 4096).decode()
    os.close(master)
    assert done.stdout.strip() == "columns 40"
    assert shown.split("\r")[1].startswith("read: 50%, 50 of 100 particles, 0.")
    assert all(len(piece) < 40 for piece in shown.split("\r"))
    assert screen(shown) == ""


def test_work_of_unknown_length_shows_its_time_in_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    monkeypatch.setattr(module, "_TICK_SECONDS", 0.01)
    monkeypatch.delenv("TERM", raising=False)
    seen = threading.Event()
    monkeypatch.setattr(stream, "flush", seen.set)
    with contextlib.suppress(RuntimeError), module.waiting("find groups"):
        assert seen.wait(60)
        assert re.fullmatch(r"find groups: [\d.]+ s", screen(stream.getvalue()))
        raise RuntimeError("broken")
    assert screen(stream.getvalue()) == ""
    assert not [thread for thread in threading.enumerate() if thread.name.endswith("(_tick)")]


def test_running_time_of_a_step_covers_the_line_of_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", stream := Terminal())
    for name in ("_SILENT_SECONDS", "_TICK_SECONDS"):
        monkeypatch.setattr(module, name, 0.0)
    monkeypatch.delenv("TERM", raising=False)
    with progress("count pairs", 100) as advance:
        advance(10)
        assert "count pairs: 10%" in screen(stream.getvalue())
        seen = threading.Event()
        monkeypatch.setattr(stream, "flush", seen.set)
        with module.waiting("randoms"):
            assert seen.wait(60)
            assert re.fullmatch(r"randoms: [\d.]+ s", screen(stream.getvalue()))
        advance(90)
    assert screen(stream.getvalue()) == ""


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
