"""Costs that do not depend on the machine: rows sent, and rounds of the union-find.

Ghosts are near surfaces, so their fraction falls with the cube root of the particle number. The limits are for 1e6
particles.
"""

import math
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from devices import first_devices
from scripts import profiling

import jztree as jz
from jztree_utils import ics

ROWS = [30_000, pytest.param(250_000, marks=pytest.mark.slow)]
BOXES = pytest.mark.parametrize("box", [0.0, 1.0], ids=["open", "periodic"])


SCRIPT = profiling("multi_device")


def mesh_of(devices: int = 4) -> jax.sharding.Mesh:
    first_devices(devices)
    return SCRIPT.Case(devices, 1).mesh()


def uniform(mesh: jax.sharding.Mesh, rows: int) -> Any:
    return ics.uniform_particles.smap(mesh, jit=True)(rows)


def counted(call: Callable[[], Any]) -> dict[str, int]:
    """Return the counts of a run of ``call`` with buffers that are large enough, unlike in a first run."""
    jax.block_until_ready(call())
    return SCRIPT.counted(call)


def fractions(counts: dict[str, int], rows: int) -> dict[str, float]:
    """Return rows sent, as fractions of the particles, by kind."""
    return {name.removeprefix("rows."): count / (4 * rows) for name, count in counts.items() if "rows." in name}


def at_a_million(fraction: float, rows: int) -> float:
    """Convert a fraction of rows near surfaces for ``rows`` per device to that for 1e6 particles."""
    return fraction * (4 * rows / 1e6) ** (1 / 3)


@pytest.mark.long
@BOXES
@pytest.mark.parametrize("rows", ROWS)
def test_rows_sent_by_knn(rows: int, box: float) -> None:
    mesh = mesh_of()
    part = uniform(mesh, rows)
    sent = fractions(counted(lambda: jz.knn.knn.smap(mesh, jit=True)(part, k=8, boxsize=box)), rows)
    assert 0 < at_a_million(sent["ghosts"], rows) < 0.25
    # In random order, three quarters of the rows belong to another of four devices, and so do their results.
    assert sent["sort"] == sent["results"] == pytest.approx(0.75, abs=0.01)


def test_knn_over_devices_does_not_copy_its_results() -> None:
    mesh = mesh_of(2)
    knn = jz.knn.knn.smap(mesh, jit=True)
    program = jax.jit(lambda part: knn(part, k=7)).lower(uniform(mesh, 1000)).compile().as_text()
    assert "[1000,7]" in program
    assert re.findall(r"\[1000,7\]\S* copy\(.*", program) == []


@pytest.mark.long
@BOXES
@pytest.mark.parametrize("rows", ROWS)
def test_rows_sent_by_friends_of_friends(rows: int, box: float) -> None:
    mesh = mesh_of()
    part, rlink = uniform(mesh, rows), 0.2 * (4 * rows) ** (-1 / 3)
    counts = counted(lambda: jz.fof.fof_and_catalogue.smap(mesh, jit=True)(part, rlink, box))
    sent = fractions(counts, rows)
    assert 0 < at_a_million(sent["ghosts"], rows) < 0.05
    assert sent["sort"] == pytest.approx(0.75, abs=0.01)
    # No group is large enough to be listed, so the sorted order does not change.
    assert sent["groups"] == 0
    assert 1 <= counts["rounds.union_find"] <= 3


@pytest.mark.long
def test_sorting_sorted_particles_sends_no_rows() -> None:
    mesh = mesh_of()
    sort = jz.tree.distr_zsort.smap(mesh, jit=True)
    partz, _ = sort(uniform(mesh, 5000))
    assert SCRIPT.counted(lambda: sort(partz))["rows.sort"] == 0


@pytest.mark.long
def test_given_tree_only_ghosts_are_sent() -> None:
    mesh = mesh_of()
    partz, th = jz.tree.zsort_and_tree.smap(mesh, jit=True)(uniform(mesh, 5000))
    knn = lambda: jz.knn.knn.smap(mesh, jit=True)(partz, k=8, th=th)  # noqa: E731
    labels = lambda: jz.fof.distr_fof_labels.smap(mesh, jit=True)(partz, 0.01, th=th)  # noqa: E731
    for call in (knn, labels):
        counts = SCRIPT.counted(call)
        assert counts["rows.ghosts"] > 0
        assert {"rows.sort", "rows.results"}.isdisjoint(counts)


@pytest.mark.parametrize(
    "devices", [2, pytest.param(4, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)]
)
def test_rounds_for_a_chain_over_all_devices_grow_logarithmically(devices: int) -> None:
    first_devices(devices)
    few, many = (SCRIPT.chain_rounds(legs, devices) for legs in (9, 256))
    # The count is valid only if every leg passes through all devices.
    assert few["pieces"] == pieces(9, devices)
    for result in (few, many):
        maximum = math.log2(result["pieces"])
        assert 1 <= result["rounds"] <= maximum + 1
        assert result["pointer jumps"] <= 2 * maximum + 4


def pieces(legs: int, devices: int) -> int:
    """Return the number of pieces into which devices cut the chain."""
    line = SCRIPT.serpentine(legs, devices)
    part = SCRIPT.spread(line, mesh_of(devices))
    partz, origin = jz.tree.distr_zsort.smap(mesh_of(devices), jit=True)(part)
    rank, row, num = np.asarray(origin.rank), np.asarray(origin.idx), np.asarray(partz.num)
    start = np.cumsum(part.num) - np.asarray(part.num)
    owner = np.empty(len(line), int)
    for device in range(devices):
        owner[start[rank[device, : num[device]]] + row[device, : num[device]]] = device
    return int(np.count_nonzero(np.diff(owner))) + 1


@pytest.mark.slow
def test_the_profiling_script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    first_devices(2)
    output, picture = tmp_path / "profile.json", tmp_path / "profile.png"
    files = ["--output", str(output), "--plot", str(picture)]
    sizes = ["--weak", "500", "--strong", "500", "--legs", "2", "--runs", "1", "--stages", "sort and"]
    monkeypatch.setattr(sys, "argv", ["multi_device.py", "--devices", "1,2", *sizes, *files])
    SCRIPT.main()
    assert "2 devices, 500 particles each" in capsys.readouterr().out
    results = SCRIPT.json.loads(output.read_text())
    assert [(case["devices"], case["rows"]) for case in results["cases"]] == [(1, 500), (2, 250), (2, 500)]
    assert all(
        column["seconds"] > 0 and column["ratio"] > 0 for case in results["cases"] for column in case["stages"].values()
    )
    assert results["chains"][0]["rounds"] >= 1
    assert picture.stat().st_size > 0
