"""``jztree fof --subhaloes``: the same files on any number of devices, members in order, and input for merger trees."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from test_cli_devices import check_equal

from jztree_utils import cli, ics, io
from jztree_utils.trees import read_trees

UNITS = ["--unit-length", "Mpc/h", "--unit-mass", "1e10Msun/h", "--unit-velocity", "km/s", "--omega-lambda", "0.7"]


def find(path: Path, *arguments: Any) -> int:
    return cli.main(["fof", "sample", "--subhaloes", "-q", *UNITS, "-o", str(path), *map(str, arguments)])


@pytest.mark.long
@pytest.mark.parametrize("ndev", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_files_with_subhaloes_do_not_depend_on_the_number_of_devices(
    tmp_path: Path, use_devices: Any, ndev: int
) -> None:
    for count in (1, ndev):
        use_devices(count)
        assert find(tmp_path / f"{count}.hdf5") == 0
    check_equal(tmp_path / f"{ndev}.hdf5", tmp_path / "1.hdf5")


@pytest.mark.long
def test_snapshot_in_group_order_has_the_members_of_subhaloes_at_their_offsets(
    tmp_path: Path, one_device: None
) -> None:
    catalogue, snapshot = tmp_path / "fof_subhalo_tab_007.hdf5", tmp_path / "snapshot_007.hdf5"
    assert find(catalogue, "--layout", "gadget4", "--snapshot-output", snapshot) == 0
    content = io.read_catalogue_content(catalogue)
    assert content.ids is not None
    assert content.subhaloes is not None
    with h5py.File(catalogue) as file:
        start, count = file["Subhalo/SubhaloOffsetType"][:, 1], file["Subhalo/SubhaloLen"][()]
        most_bound = file["Subhalo/SubhaloIDMostbound"][()]
        assert file["Group/GroupNsubs"][()].sum() == len(count) > 100
    ids = np.asarray(io.read_snapshot(snapshot, fields=("pos", "id"))[0].id)
    members = content.ids
    np.testing.assert_array_equal(ids[: len(members)], members)
    np.testing.assert_array_equal(ids[start], most_bound)
    assert (count >= 20).all()


@pytest.mark.long
def test_catalogues_with_subhaloes_make_trees(tmp_path: Path, one_device: None, random: np.random.Generator) -> None:
    """The second snapshot has the same particles in another order, so each subhalo is its own descendant."""
    part, header = io.read_snapshot(ics.SAMPLE_3D, fields=("pos", "vel", "mass", "id"))
    order = random.permutation(part.num)
    part.pos, part.vel, part.id = part.pos[order], part.vel[order], part.id[order]
    io.write_snapshot(tmp_path / "snap_2.hdf5", part, header)
    for number, snapshot in ((1, ics.SAMPLE_3D), (2, tmp_path / "snap_2.hdf5")):
        output = ["-q", "-o", str(tmp_path / f"cat_{number}.hdf5")]
        assert cli.main(["fof", str(snapshot), "--subhaloes", *UNITS, *output]) == 0
    catalogues = [str(tmp_path / f"cat_{number}.hdf5") for number in (1, 2)]
    assert cli.main(["tree", *catalogues, "-q", "-o", str(tmp_path / "trees.hdf5")]) == 0
    trees = read_trees(tmp_path / "trees.hdf5")
    early = np.flatnonzero(trees.snapshot == 1)
    np.testing.assert_array_equal(trees.subhalo[trees.descendant[early]], trees.subhalo[early])
    np.testing.assert_array_equal(trees.mass[trees.descendant[early]], trees.mass[early])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--softening", "0.1"], "--softening has no effect without --subhaloes"),
        (["--min-bound", "5"], "--min-bound has no effect without --subhaloes"),
        (["--subhaloes", "--layout", "swift"], "The layout swift has no subhaloes"),
        (["--subhaloes", "--softening", "-1"], "--softening is -1"),
        (["--subhaloes", "--min-bound", "0"], "--min-bound is 0"),
        (["--subhaloes", "--unit-length", "Mpc/h"], "--subhaloes needs the units of the snapshot"),
    ],
)
def test_impossible_options_of_subhaloes_are_refused(
    arguments: list[str], words: str, one_device: None, capsys: pytest.CaptureFixture[str], write_gadget: Any,
    tmp_path: Path, random: np.random.Generator,
) -> None:  # fmt: skip
    pos = random.random((40, 3))
    path = write_gadget(tmp_path / "snapshot.hdf5", pos, columns={"Velocities": pos, "ParticleIDs": np.arange(40)})
    assert cli.main(["fof", str(path), "-q", *arguments]) == 2
    assert words in capsys.readouterr().err
