"""Pictures by the command line."""

import os

import h5py
import numpy as np
import pytest
from test_cli_runs import run

from jztree_utils import ics

pytestmark = pytest.mark.usefixtures("one_device")


def test_pictures(tmp_path, capsys) -> None:
    catalogue, neighbours = str(tmp_path / "c.hdf5"), str(tmp_path / "n.hdf5")
    assert run("fof", "sample", "-o", catalogue, capsys=capsys)[0] == 0
    assert run("knn", "sample", "-o", neighbours, capsys=capsys)[0] == 0
    foreign = tmp_path / "fof_tab_000.hdf5"
    with h5py.File(foreign, "w") as file:
        header = {"Ngroups_Total": 2, "NumFiles": 1, "BoxSize": 37.5, "Redshift": 0.0, "HubbleParam": 0.7}
        file.create_group("Header").attrs.update(header)
        file.create_group("Group")["GroupLen"] = np.asarray([90, 40], np.int32)
        file["Group/GroupPos"] = np.ones((2, 3), np.float32)
    marked = ("plot", "density", "sample", "--catalogue", str(foreign), "-o", str(tmp_path / "x.png"))
    status, out, _ = run(*marked, capsys=capsys)
    assert (status, "times the mean density" in out) == (0, True)
    with h5py.File(foreign, "a") as file:
        file["Header"].attrs["BoxSize"] = 75.0
    status, _, err = run(*marked, capsys=capsys)
    assert (status, "is of a box of 75.0, but that of the snapshot is 37.5" in err) == (2, True)
    for kind, *arguments in (
        ("halos", "sample", "--catalogue", catalogue),
        ("density", "sample"),
        ("mass-function", catalogue),
        ("sizes", catalogue),
        ("distances", neighbours),
    ):
        picture = tmp_path / f"{kind}.png"
        status, _, err = run("plot", kind, *arguments, "-o", str(picture), capsys=capsys)
        assert (status, err) == (0, "")
        assert picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["halos", str(ics.SAMPLE_3D)], "give --catalogue"),
        (["sizes", str(ics.SAMPLE_3D)], "is a snapshot; find its groups first, with jztree fof"),
        (
            ["mass-function", "sample"],
            "plot mass-function draws groups, and sample is a snapshot; find its groups first",
        ),
        (["halos", "sample", "--catalogue", "sample"], "jztree fof sample -o halos.hdf5, and draw these."),
        (["sizes", "none.hdf5"], "There is no file none.hdf5"),
        (["sizes", "a", "b"], "draws one file, but 2 were given"),
        (["heat", "a"], "invalid choice: 'heat'"),
        ([], "plot needs what to draw"),
        (["scaling", "none.json"], "There is no file none.json"),
    ],
)
def test_bad_pictures(arguments, told, tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    status, _, err = run("plot", *arguments, "-o", "x.png", capsys=capsys)
    assert (status, told in err) == (2, True), err
    assert os.listdir(tmp_path) == []
