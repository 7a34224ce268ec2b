"""The command's summary counts groups without a sphere."""

import json
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from test_halo_properties import write

from jztree_utils import cli

NAMES = ("200c", "500c", "2500c", "200m", "vir")


@pytest.fixture
def clumps(tmp_path: Path, random: np.random.Generator) -> Path:
    """Write a dense clump of 400 particles and four loose ones of 25 without most spheres, in a box of 10 Mpc/h."""
    dense = 2 + random.normal(0, 0.02, (400, 3))
    loose = (np.arange(4)[:, None, None] + [[[1, 5, 8]]] + random.uniform(0, 1, (4, 25, 3)) * 0.5).reshape(-1, 3)
    pos = np.concatenate([dense, loose]).astype(np.float32)
    rows = {"pos": pos, "vel": 0 * pos, "mass": np.full(500, 2.0, np.float32), "id": np.arange(500)}
    return write(tmp_path / "a.hdf5", {"BoxSize": 10.0}, {1: rows})


def printed(capsys: pytest.CaptureFixture[str], path: Path, *arguments: str) -> str:
    assert cli.main(["fof", str(path), "--rlink", "0.3", *arguments]) == 0
    return capsys.readouterr().out


@pytest.mark.long
def test_groups_without_a_sphere_are_counted(one_device, clumps, tmp_path, capsys) -> None:
    out = printed(capsys, clumps, "--properties", "-o", str(tmp_path / "c.hdf5"))
    with h5py.File(tmp_path / "c.hdf5") as file:
        lacking = {name: int((file[f"Groups/m{name}"][:] == 0).sum()) for name in NAMES}
        g = len(file["Groups/count"])
    assert g == 5
    assert 1 <= lacking["200c"] <= lacking["2500c"] < g
    (line,) = re.findall(r"  no sphere +(.*)\n", out)
    assert line.startswith(f"of {g} groups, ")
    assert dict(re.findall(r"(\w+) in (\d+) \(", line)) == {k: str(v) for k, v in lacking.items() if v}
    assert f"200c in {lacking['200c']} ({100 * lacking['200c'] / g:.0f} %)" in line
    assert "sphere too large" not in out
    summary = json.loads(printed(capsys, clumps, "--properties", "--json"))
    assert summary["without_sphere"] == lacking
    assert summary["sphere_too_large"] == dict.fromkeys(NAMES, 0)


@pytest.mark.long
def test_spheres_larger_than_half_the_box_are_counted(one_device, clumps, capsys) -> None:
    with h5py.File(clumps, "r+") as file:
        file["PartType1/Masses"][:] = 1e7
    out = printed(capsys, clumps, "--properties")
    assert re.search(r"  sphere too large +of 5 groups, .*200m in 5 \(100 %\)", out), out
    assert "no sphere" not in out
    summary = json.loads(printed(capsys, clumps, "--properties", "--json"))
    assert summary["sphere_too_large"]["200m"] == 5
    assert summary["without_sphere"]["200m"] == 0


def test_no_message_without_properties(one_device, clumps, capsys) -> None:
    assert "sphere" not in printed(capsys, clumps)
    summary = json.loads(printed(capsys, clumps, "--json"))
    assert summary["without_sphere"] == summary["sphere_too_large"] == {}
