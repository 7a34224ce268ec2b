"""The benchmarks compare like with like, and draw and record their measurements."""

import json
import sys
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

import jztree as jz

BENCHMARKS = Path(__file__).parents[2] / "checks" / "benchmarks"


@pytest.fixture(autouse=True)
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(BENCHMARKS)
    for name in ("peers", "timing", "draw", "inputs", "one_device", "cliffs", "radius", "large"):
        monkeypatch.delitem(sys.modules, name, raising=False)


def test_numpy_keys_give_the_order_of_zsort() -> None:
    import peers  # noqa: PLC0415

    pos = np.random.default_rng(1).random((20_000, 3), dtype=np.float32)
    _, order = jz.tree.zsort.jit(jnp.asarray(pos), boxsize=1.0)
    np.testing.assert_array_equal(peers.lexsort(pos)(), order)


@pytest.mark.long
def test_sweeps_are_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    import draw  # noqa: PLC0415

    def points(axis: str, values: list[int]) -> list[dict[str, Any]]:
        return [
            {"what": what, "library": library, axis: value, "seconds": value * 1e-3}
            for what in ("kNN", "FoF")
            for library in ("jztree", "kdcount")
            for value in values
        ]

    native = {"instruction_set": "x86-64-v3", "num_threads": 2}
    results = {
        "machine": {"cpu": "a CPU", "native": native, "date": "2000-01-01"},
        "sweeps": points("n", [1000, 10_000]) + points("k", [4, 8]) + points("threads", [1, 2]),
    }
    draw.sweeps(results, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {f"against_{axis}.png" for axis in ("n", "k", "threads")}


@pytest.mark.long
def test_records_of_fixed_radii(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each run appends one line with the printed results."""
    import radius  # noqa: PLC0415

    monkeypatch.setattr(radius, "HISTORY", tmp_path / "radius.jsonl")
    monkeypatch.setattr(radius, "memory", lambda n, calls: dict.fromkeys(calls, float(n)))
    sizes = ["--most", "10000", "--hard", "300", "--reduced", "300", "--memory", "7"]
    monkeypatch.setattr(sys, "argv", ["radius.py", *sizes, "--runs", "1", "--record"])
    for runs in (1, 2):
        radius.main()
        lines = [json.loads(line) for line in radius.HISTORY.read_text().splitlines()]
        assert len(lines) == runs
    assert set(lines[0]["microseconds a particle"]["1e+04"]) == {"counts", "pair counts", "lists"}
    assert set(lines[0]["hard inputs"]) == set(radius.hard_inputs(300))
    assert lines[0]["memory over positions"]["pairs within r"] == 7
    printed = capsys.readouterr().out
    assert all(f"at most {maximum:g}" in printed for maximum in (radius.FLAT, radius.HARD, radius.MEMORY))


def test_cliffs_are_rows_far_above_their_neighbours() -> None:
    import cliffs  # noqa: PLC0415

    def rows(kind: str, seconds: dict[int, float]) -> list[Any]:
        return [cliffs.Row(kind, 3, k, time) for k, time in seconds.items()]

    even = rows("uniform", {k: 1e-7 + 1e-9 * cliffs.work(k) for k in cliffs.NEIGHBOURS})
    assert cliffs.cliffs(even) == []
    single = even[3]
    assert (
        cliffs.cliffs([*even[:3], cliffs.Row("uniform", 3, single.k, 100 * single.seconds), *even[4:]])[0].row.k
        == single.k
    )
    # The smallest k has only one neighbour: the next larger k.
    first = cliffs.cliffs(rows("uniform", {1: 5e-6, 2: 1e-6, 3: 1e-6}))
    assert [(cliff.row.k, cliff.beside, cliff.factor) for cliff in first] == [(1, "k=2", pytest.approx(5))]
    # All rows of a kind may be slow.
    slow = cliffs.cliffs([*even, *rows("duplicates", {row.k: 5 * row.seconds for row in even})])
    assert {(cliff.row.kind, cliff.beside) for cliff in slow} == {("duplicates", "uniform")}
    assert len(slow) == len(even) - 1  # k = 1 has no search to compare with


def test_every_kind_of_input_is_swept(monkeypatch: pytest.MonkeyPatch) -> None:
    import cliffs  # noqa: PLC0415

    monkeypatch.setattr(cliffs, "NEIGHBOURS", (1, 3, 2000))
    result = [rows for rows in cliffs.measure(1000, 1) if rows]
    assert len({(rows[0].kind, rows[0].dims) for rows in result}) == len(result) == len(list(cliffs.sets(1000)))
    assert {rows[0].dims for rows in result} == {1, 2, 3, 4, 6, 8}
    assert all(row.k in (1, 3) and row.seconds > 0 for rows in result for row in rows)


@pytest.mark.slow
def test_search_in_pieces_is_killed_and_gives_the_bytes_of_a_search_in_memory(tmp_path: Path) -> None:
    import large  # noqa: PLC0415

    figures = large.measure(tmp_path, 20_000, 2, 1e9, kills=1)
    assert figures["killed"]["times"] == 1
    assert 0 < figures["in pieces"]["peak bytes resident"] < 1e9
