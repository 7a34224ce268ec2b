"""``jztree fof --subhaloes``: catalogues with subhaloes, and snapshots in their order."""

from pathlib import Path

import h5py
import numpy as np
import pytest

import jztree as jz
from jztree_utils import cli, ics, io

BOX = 37.5


def catalogue(folder: Path, *arguments: str) -> tuple[Path, Path]:
    """Return a catalogue with subhaloes of the sample in the layout of Gadget-4, and the snapshot in its order."""
    paths = folder / "fof_subhalo_tab_000.hdf5", folder / "snapshot_000.hdf5"
    options = ["--layout", "gadget4", "-o", str(paths[0]), "--snapshot-output", str(paths[1])]
    assert cli.main(["fof", "sample", "--subhaloes", *options, *arguments]) == 0
    return paths


def test_members_of_subhaloes_are_first_and_the_most_bound_leads(tmp_path, use_devices) -> None:
    use_devices(1)
    path, ordered = catalogue(tmp_path)
    with h5py.File(path) as file, h5py.File(ordered) as snapshot:
        table = {name: rows[:] for name, rows in file["Subhalo"].items()}
        groups = {name: rows[:] for name, rows in file["Group"].items()}
        part = {name: rows[:] for name, rows in snapshot["PartType1"].items()}
    first, count = table["SubhaloOffsetType"][:, 1], table["SubhaloLen"]
    np.testing.assert_array_equal(part["ParticleIDs"][first], table["SubhaloIDMostbound"])
    np.testing.assert_array_equal(groups["GroupNsubs"], np.bincount(table["SubhaloGroupNr"], minlength=252))
    begin = groups["GroupOffsetType"][:, 1][table["SubhaloGroupNr"]]
    is_central = table["SubhaloRankInGr"] == 0
    np.testing.assert_array_equal(first[is_central], begin[is_central])
    assert (np.diff(first) >= count[:-1]).all()  # no particle is in two subhaloes
    for row in (0, 1, 7, 100):
        members = slice(first[row], first[row] + count[row])
        offset = part["Coordinates"][members] - table["SubhaloPos"][row]
        offset -= BOX * np.round(offset / BOX)
        centre = table["SubhaloPos"][row] + offset.mean(axis=0)
        np.testing.assert_allclose(table["SubhaloCM"][row], centre % BOX, atol=1e-4)
        radius = np.sort(np.linalg.norm(offset, axis=1))
        np.testing.assert_allclose(table["SubhaloHalfmassRad"][row], radius[(count[row] - 1) // 2], rtol=1e-5)


def test_subhaloes_of_the_command_are_those_of_the_function(tmp_path, use_devices) -> None:
    use_devices(1)
    path, _ = catalogue(tmp_path, "--no-ids")
    part, box = ics.cosmo_3d_sample()
    rlink = 0.2 * box / 48
    grouped, cata = jz.friends_of_friends.jit(part, rlink, boxsize=box)
    gravity = 6.6743e-8 * 1.989e43 / (3.085678e24 * 1e10)
    expected = jz.subhaloes.jit(grouped, cata, gravity, softening=rlink / 10, boxsize=box, hubble=100.0).columns()
    with h5py.File(path) as file:
        for stored, name in {"SubhaloLen": "count", "SubhaloVmax": "vmax"}.items():
            np.testing.assert_allclose(np.sort(file["Subhalo"][stored]), np.sort(expected[name]), rtol=1e-4)


@pytest.mark.long
def test_several_devices_write_the_same_subhaloes(tmp_path, use_devices) -> None:
    tables = []
    for ndev in (1, 4):
        use_devices(ndev)
        (tmp_path / str(ndev)).mkdir()
        path, ordered = catalogue(tmp_path / str(ndev))
        with h5py.File(path) as file, h5py.File(ordered) as snapshot:
            tables.append({name: rows[:] for name, rows in file["Subhalo"].items()})
            tables[-1]["ids"] = snapshot["PartType1/ParticleIDs"][:]
    for name, rows in tables[0].items():
        np.testing.assert_array_equal(rows, tables[1][name], err_msg=name)


def test_native_layout_and_summary(tmp_path, use_devices, capsys) -> None:
    use_devices(1)
    assert cli.main(["fof", "sample", "--subhaloes", "-o", str(tmp_path / "halos.hdf5")]) == 0
    assert "251 of at least 20 bound particles" in capsys.readouterr().out
    content = io.read_catalogue_content(tmp_path / "halos.hdf5")
    assert content.subhaloes is not None
    assert len(content.subhaloes["spin"].values) == 251
    assert "Peebles 1969" in content.subhaloes["spin"].definition


def test_layout_without_subhaloes_raises(tmp_path, capsys, use_devices) -> None:
    use_devices(1)
    output = str(tmp_path / "out.hdf5")
    assert cli.main(["fof", "sample", "--subhaloes", "--layout", "swift", "-o", output]) != 0
    assert "--layout swift has no subhaloes; write the layout native or gadget4" in capsys.readouterr().err


def test_snapshot_without_velocities_raises(tmp_path, write_gadget, random, use_devices, capsys) -> None:
    use_devices(1)
    path = write_gadget(tmp_path / "snap_000.hdf5", random.random((100, 3)).astype(np.float32))
    assert cli.main(["fof", str(path), "--subhaloes"]) != 0
    assert "--subhaloes needs velocities, but the snapshot has none" in capsys.readouterr().err


def test_files_of_both_layouts_are_read_with_all_columns(tmp_path, use_devices) -> None:
    use_devices(1)
    path, _ = catalogue(tmp_path)
    read = io.read_catalogue_content(path).subhaloes
    assert read is not None
    assert read["specific_angular_momentum"].values.shape == read["com_pos"].values.shape == (251, 3)
