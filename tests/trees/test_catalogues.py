"""Merger trees of catalogues in all readable forms, with `jztree tree`."""

import json
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree.data import FofCatalogue, ParticleData
from jztree_utils import cli, io
from jztree_utils.trees import MergerTrees, OutputMembers, read_trees
from trees.test_files import header_of
from trees.test_histories import branch_of, planted_outputs, trees_of


def write_output(folder: Path, number: int, output: OutputMembers, layout: str, with_ids: bool) -> Path:
    """Write the catalogue of an output, in which pairs of subhaloes are groups, and the snapshot in group order."""
    ids, subhalo, energy = (np.asarray(column) for column in output.members.__dict__.values() if column is not None)
    groups = np.arange(output.num_subhaloes) // 2
    rows = io.order_by_binding(np.where(subhalo < 0, -1, subhalo // 2), subhalo, energy)
    bound = np.bincount(subhalo[subhalo >= 0], minlength=output.num_subhaloes)
    count = np.bincount(groups, bound).astype(int)
    random = np.random.default_rng(number)
    catalogue = FofCatalogue(
        ngroups=len(count), count=count, offset=np.cumsum(count) - count, com_pos=random.random((len(count), 3))
    )
    columns = {"group": (groups, "1"), "count": (bound, "1"), "mass": (bound * 0.5, "mass"),
               "pos": (random.random((len(bound), 3)), "length")}  # fmt: skip
    header = header_of(9.0 - number)
    snapshot = ParticleData(pos=random.random((len(ids), 3)), id=ids[rows], mass=0.5, num=len(ids))
    io.write_snapshot(folder / f"snapshot_{number:03d}.hdf5", snapshot, header)
    path = folder / f"fof_subhalo_tab_{number:03d}.hdf5"
    io.write_catalogue(
        path, catalogue, ids[rows][: count.sum()] if with_ids else None, io.CatalogueInfo(header=header, ptype=1),
        layout=layout, subhaloes={name: io.Column(*column, name) for name, column in columns.items()},
    )  # fmt: skip
    return path


def run(*arguments: Any, capsys: Any) -> tuple[int, str, str]:
    capsys.readouterr()
    status = cli.main(["tree", *map(str, arguments)])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def expected_trees() -> MergerTrees:
    outputs = planted_outputs()
    return trees_of(outputs, [np.arange(output.num_subhaloes) // 2 for output in outputs])


def assert_same_trees(trees: MergerTrees) -> None:
    expected = expected_trees()
    for name in ("snapshot", "subhalo", "group", "descendant", "first_progenitor", "next_progenitor", "root", "skips"):
        np.testing.assert_array_equal(getattr(trees, name), getattr(expected, name))


@pytest.mark.parametrize("layout", ["native", "gadget4", "swift", "soap"])
def test_catalogues_give_the_trees_of_their_members(tmp_path: Path, layout: str, capsys: Any) -> None:
    paths = [write_output(tmp_path, i, output, layout, True) for i, output in enumerate(planted_outputs())]
    trees, sublink = tmp_path / "trees.hdf5", tmp_path / "sublink.hdf5"
    status, out, err = run(*reversed(paths), "-o", trees, "--json", capsys=capsys)
    assert (status, err) == (0, "")
    summary = json.loads(out)
    assert (summary["outputs"], summary["links that skip an output"]) == (6, 1)
    assert_same_trees(read_trees(trees))
    assert run(*paths, "-o", sublink, "--layout", "sublink", "--no-skip", capsys=capsys)[0] == 0
    columns = io.read_h5file(str(sublink))
    assert columns["SubhaloPos"].shape == (len(expected_trees()), 3)
    assert not columns["DescendantSkips"].any()


def test_folders_with_snapshots_in_group_order_give_the_same_trees(tmp_path: Path, capsys: Any) -> None:
    for i, output in enumerate(planted_outputs()):
        (tmp_path / f"groups_{i:03d}").mkdir()
        write_output(tmp_path / f"groups_{i:03d}", i, output, "gadget4", False)
    folders = sorted(tmp_path.glob("groups_*"))
    status, _, err = run(*folders, "-o", tmp_path / "trees.hdf5", capsys=capsys)
    assert (status, err) == (0, "")
    assert_same_trees(read_trees(tmp_path / "trees.hdf5"))
    assert branch_of(read_trees(tmp_path / "trees.hdf5"), 1) == [(5, 1), (4, 1), (3, 2), (1, 2), (0, 2)]


def test_unusable_catalogues_are_refused(tmp_path: Path, capsys: Any) -> None:
    first, second = (
        write_output(tmp_path, i, output, "gadget4", i < 1) for i, output in enumerate(planted_outputs()[:2])
    )
    plain = tmp_path / "fof_tab_003.hdf5"
    content = io.read_catalogue_content(first)
    io.write_catalogue(plain, content.catalogue, content.ids, content.info)
    empty = tmp_path / "groups_004"
    empty.mkdir()
    copy = tmp_path / "other_0.hdf5"
    copy.touch()
    nameless = tmp_path / "groups.hdf5"
    nameless.touch()
    (tmp_path / "snapshot_001.hdf5").unlink()
    for arguments, words in (
        ([first, second], "has no identifiers of members"),
        ([first, plain], "has no subhaloes"),
        ([first, empty], "no snapshot"),
        ([first], "only"),
        ([first, first], "only"),
        ([first, empty / "fof_tab_000.hdf5"], "does not exist"),
        ([first, copy], "have the same number, 0"),
        ([first, nameless], "has no number"),
    ):
        status, _, err = run(*arguments, "-o", tmp_path / "trees.hdf5", capsys=capsys)
        assert status == 2
        assert err.count("\n") == 1
        assert words in err
    assert not (tmp_path / "trees.hdf5").exists()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("IDs/ID", "fof_subhalo_tab_001.hdf5 has 1 members of subhaloes with the identifier of another member"),
        ("Parameters/BoxSize", "boxsize is .* in snapshot 0, but .* in snapshot 1"),
        ("Parameters/UnitMass_in_g", "unit_mass_in_g is .* in snapshot 0, but .* in snapshot 1"),
        ("Subhalo/SubhaloMass", "mass of subhalo 0 of snapshot 1 is nan"),
    ],
)
def test_catalogues_that_belong_to_no_tree_are_refused(tmp_path: Path, path: str, words: str, capsys: Any) -> None:
    first, second = (
        write_output(tmp_path, i, output, "gadget4", True) for i, output in enumerate(planted_outputs()[:2])
    )
    with h5py.File(second, "r+") as file:
        if path in file:
            file[path][0] = file[path][1] if "ID" in path else np.nan
        for group in (file["Header"], file["Parameters"]):
            if (name := path.split("/")[1]) in group.attrs:
                group.attrs[name] *= 2
    status, _, err = run(first, second, "-o", tmp_path / "trees.hdf5", capsys=capsys)
    assert status == 2
    assert re.search(words, err), err
    assert not (tmp_path / "trees.hdf5").exists()


def test_snapshot_that_is_not_in_group_order_is_refused(tmp_path: Path, capsys: Any) -> None:
    first, second = (
        write_output(tmp_path, i, output, "gadget4", False) for i, output in enumerate(planted_outputs()[:2])
    )
    with h5py.File(tmp_path / "snapshot_001.hdf5", "r+") as snapshot, h5py.File(second, "r+") as file:
        ids = snapshot["PartType1/ParticleIDs"]
        first_rows = np.cumsum(file["Subhalo/SubhaloLen"]) - file["Subhalo/SubhaloLen"]
        file["Subhalo/SubhaloIDMostbound"] = ids[:][first_rows]
        ids[:] = ids[:][::-1]
    status, _, err = run(first, second, "-o", tmp_path / "trees.hdf5", capsys=capsys)
    assert status == 2
    assert "is not in group order, because the most bound particle of subhalo 0 is not among its members" in err
    status, _, err = run(first, second, "-o", tmp_path / "trees.hdf5", "--type", "7", capsys=capsys)
    assert (status, "The type of the particles is 7, but" in err) == (2, True)
