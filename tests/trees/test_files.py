"""Files of merger trees: read again, opened by ytree, and with the columns of SubLink."""

from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from headers import FLAT

from jztree_utils import io
from jztree_utils.trees import MergerTrees, build_trees, read_times, read_trees, write_trees
from trees.test_building import random_outputs

SIZES = [30, 25, 0, 20, 15, 12]


def header_of(redshift: float) -> io.SnapshotHeader:
    return replace(FLAT, boxsize=100.0, time=1 / (1 + redshift), redshift=redshift)


def some_trees() -> tuple[MergerTrees, dict[int, io.SnapshotHeader], dict[str, io.Column]]:
    outputs = random_outputs(3, SIZES)
    trees = build_trees(outputs)
    headers = {output.snapshot: header_of(5.0 - i) for i, output in enumerate(outputs)}
    pos = np.random.default_rng(1).random((len(trees), 3))
    columns = {"SubhaloPos": io.Column(pos, "length", "centre"), "SubhaloMass": io.Column(trees.mass, "mass", "mass")}
    return trees, headers, columns


def test_read_trees_equal_written_ones(tmp_path: Path) -> None:
    for number, (trees, headers) in enumerate([some_trees()[:2], (build_trees([]), {})]):
        path = tmp_path / f"trees_{number}.hdf5"
        write_trees(path, trees, headers)
        again = read_trees(path)
        for field in fields(trees):
            np.testing.assert_array_equal(getattr(again, field.name), getattr(trees, field.name))


def test_sublink_columns_identify_subhaloes(tmp_path: Path) -> None:
    trees, headers, columns = some_trees()
    write_trees(tmp_path / "sublink.hdf5", trees, headers, columns, layout="sublink")
    with h5py.File(tmp_path / "sublink.hdf5") as file:
        held = {name: file[name][()] for name in file}
        assert file["SubhaloPos"].attrs["unit"] == "3.085678e+24 cm h^-1 a"
    place = {identifier: row for row, identifier in enumerate(held["SubhaloID"].tolist())}
    assert len(place) == len(trees)
    for name, links in (("DescendantID", trees.descendant), ("FirstSubhaloInFOFGroupID", trees.first_in_group)):
        assert [place.get(identifier, -1) for identifier in held[name].tolist()] == links.tolist()
    raw = held["SnapNum"].astype(np.int64) * 10**12 + held["SubfindID"]
    np.testing.assert_array_equal(held["SubhaloIDRaw"], raw)
    # A branch has the identifiers from its root to LastProgenitorID, as the tools of TNG read it.
    sizes = held["LastProgenitorID"] - held["SubhaloID"] + 1
    np.testing.assert_array_equal(sizes, [len(trees.branch(row)) for row in range(len(trees))])


@pytest.mark.long
def test_ytree_finds_the_same_branches(tmp_path: Path) -> None:
    ytree: Any = pytest.importorskip("ytree")
    trees, headers, columns = some_trees()
    write_trees(tmp_path / "trees.hdf5", trees, headers, columns)
    arbor = ytree.load(str(tmp_path / "trees.hdf5"))
    assert (arbor.size, float(arbor.box_size.to("Mpc/h")), arbor.hubble_constant) == (trees.num_trees, 100.0, 0.7)
    nodes = [node for tree in arbor for node in tree["forest"]]
    assert sorted(int(node.uid) for node in nodes) == list(range(len(trees)))
    for node in nodes:
        row = int(node.uid)
        assert int(node["desc_uid"]) == trees.descendant[row]
        assert sorted(int(progenitor.uid) for progenitor in node["tree"]) == trees.branch(row).tolist()
        assert float(node["redshift"]) == headers[int(trees.snapshot[row])].redshift
        np.testing.assert_allclose(float(node["mass"].to("1e10*Msun/h")), trees.mass[row], rtol=1e-6)
        np.testing.assert_allclose(node["position"].to("Mpc/h").value, columns["SubhaloPos"].values[row], rtol=1e-6)


def test_invalid_trees_are_not_written(tmp_path: Path) -> None:
    trees, headers, columns = some_trees()
    path = tmp_path / "trees.hdf5"
    with pytest.raises(ValueError, match="layout is 'ahf'"):
        write_trees(path, trees, headers, layout="ahf")
    with pytest.raises(ValueError, match="no header of snapshot 0"):
        write_trees(path, trees, {number: header for number, header in headers.items() if number})
    with pytest.raises(ValueError, match="'SnapNum', which is reserved"):
        write_trees(path, trees, headers, {"SnapNum": columns["SubhaloMass"]})
    with pytest.raises(ValueError, match="must have a row for each"):
        write_trees(path, trees, headers, {"SubhaloPos": io.Column(np.zeros((3, 3)), "length", "")})
    assert not path.exists()


def test_damaged_trees_are_not_read(tmp_path: Path) -> None:
    trees, headers, _ = some_trees()
    path = tmp_path / "trees.hdf5"
    write_trees(path, trees, headers)
    with h5py.File(path, "r+") as file:
        file["TreeHalos/TreeDescendant"][3] = 3
    with pytest.raises(ValueError, match="inconsistent"):
        read_trees(path)
    with h5py.File(path, "r+") as file:
        del file["TreeHalos/TreeRootDescendant"]
    with pytest.raises(io.SnapshotError, match="no dataset TreeHalos/TreeRootDescendant"):
        read_trees(path)


@pytest.mark.parametrize(
    "unit", [h5py.Empty("f8"), 2.5, "mass in the unit of the snapshot, but its header lacks this unit"]
)
def test_units_that_are_not_text_are_unknown(tmp_path: Path, unit: Any) -> None:
    trees, headers, columns = some_trees()
    write_trees(tmp_path / "trees.hdf5", trees, headers, columns)
    with h5py.File(tmp_path / "trees.hdf5", "r+") as file:
        file["TreeHalos/SubhaloTreeMass"].attrs["unit"] = unit
    assert read_times(tmp_path / "trees.hdf5").mass_unit == ""


def test_redshifts_that_are_not_numbers_raise(tmp_path: Path) -> None:
    trees, headers, columns = some_trees()
    write_trees(tmp_path / "trees.hdf5", trees, headers, columns)
    with h5py.File(tmp_path / "trees.hdf5", "r+") as file:
        del file["TreeTimes/Redshift"]
        file["TreeTimes/Redshift"] = "high"
    with pytest.raises(io.SnapshotError, match="holds TreeTimes/Redshift of dtype"):
        read_times(tmp_path / "trees.hdf5")
