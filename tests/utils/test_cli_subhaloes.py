"""``jztree fof --subhaloes``: catalogues with subhaloes, snapshots in their order, and input for merger trees."""

import contextlib
import shutil
from io import StringIO
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from test_cli_devices import check_equal

import jztree as jz
from jztree_utils import cli, ics, io
from jztree_utils.trees import read_trees

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


@pytest.mark.parametrize("candidates", ["density", "phase-space"])
def test_command_finds_the_subhaloes_of_the_function(candidates: str, tmp_path, use_devices) -> None:
    use_devices(1)
    path, _ = catalogue(tmp_path, "--no-ids", "--candidates", candidates)
    part, box = ics.cosmo_3d_sample()
    rlink = 0.2 * box / 48
    grouped, cata = jz.friends_of_friends.jit(part, rlink, boxsize=box)
    gravity = 6.6743e-8 * 1.989e43 / (3.085678e24 * 1e10)
    options = {"softening": rlink / 10, "boxsize": box, "hubble": 100.0, "candidates": candidates.replace("-", "_")}
    expected = jz.subhaloes.jit(grouped, cata, gravity, **options).columns()
    with h5py.File(path) as file:
        for stored, name in {"SubhaloLen": "count", "SubhaloVmax": "vmax"}.items():
            np.testing.assert_allclose(np.sort(file["Subhalo"][stored]), np.sort(expected[name]), rtol=1e-4)


@pytest.fixture(scope="module")
def sample(tmp_path_factory: pytest.TempPathFactory, one_device_in_fixtures: None) -> tuple[Path, str]:
    """Return a catalogue of the sample with subhaloes, and the output of the command."""
    path, printed = tmp_path_factory.mktemp("sample") / "halos.hdf5", StringIO()
    with contextlib.redirect_stdout(printed):
        assert cli.main(["fof", "sample", "--subhaloes", "-o", str(path)]) == 0
    return path, printed.getvalue()


def test_native_layout_and_summary(sample: tuple[Path, str], tmp_path, one_device, capsys) -> None:
    path, printed = sample
    assert "251 of at least 20 bound particles" in printed
    content = io.read_catalogue_content(path)
    assert content.subhaloes is not None
    assert len(content.subhaloes["spin"].values) == 251
    assert "Peebles 1969" in content.subhaloes["spin"].definition
    for layout in ("gadget4", "swift", "soap"):
        arguments = [str(path), "-o", str(tmp_path / layout), "--layout", layout]
        assert cli.main(["convert", *arguments]) == 0
        assert "subhaloes" not in capsys.readouterr().err
        converted = io.read_catalogue_content(tmp_path / layout).subhaloes
        np.testing.assert_array_equal(converted["count"].values, content.subhaloes["count"].values)


@pytest.fixture
def gas(tmp_path: Path, write_gadget: Any, random: np.random.Generator) -> Path:
    """Return a snapshot of a clump of gas at redshift 1; its last 100 particles are too hot to be bound."""
    columns = {
        "Velocities": random.normal(0, 1, (300, 3)),
        "ParticleIDs": np.arange(300),
        "InternalEnergy": np.where(np.arange(300) < 200, 0.5, 1e8),
    }
    units = {"UnitLength_in_cm": 3.085678e24, "UnitMass_in_g": 1.989e43, "UnitVelocity_in_cm_per_s": 1e5}
    header = {"Time": 0.5, "Redshift": 1.0, "Omega0": 0.3, "OmegaLambda": 0.7, "HubbleParam": 0.7, **units}
    pos = random.normal(0.5, 0.01, (300, 3))
    return write_gadget(tmp_path / "gas.hdf5", pos, columns=columns, header=header, ptype=0)


def bound_particles(path: Path, *options: str) -> np.ndarray:
    """Return the number of bound particles of each subhalo of the gas of a snapshot."""
    output, arguments = path.with_suffix(".halos.hdf5"), ["--type", "0", "--rlink", "0.02", "--subhaloes", *options]
    assert cli.main(["fof", str(path), *arguments, "-q", "--overwrite", "-o", str(output)]) == 0
    content = io.read_catalogue_content(output)
    return np.asarray(content.subhaloes["count"].values)


def test_hot_gas_is_not_bound_and_energies_of_swift_are_comoving(
    gas: Path, use_devices: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    use_devices(1)
    assert bound_particles(gas).tolist() == [200]
    with h5py.File(gas, "a") as file:
        energies = file["PartType0/InternalEnergy"][()]
        file["PartType0/InternalEnergy"].attrs["a_scaling"] = 0.0
        for name, factor, about in (
            ("InternalEnergies", 0.25, {"a-scale exponent": [-2.0], "Value stored as physical": [0]}),
            ("Physical", 1.0, {"a-scale exponent": [-2.0], "Value stored as physical": [1]}),
            ("Older", 0.25, {}),
        ):
            file[f"PartType0/{name}"] = energies * factor
            file[f"PartType0/{name}"].attrs.update(about)
    np.testing.assert_array_equal(io.open_snapshot(gas, 0).read("internal_energy"), energies)
    for name in ("InternalEnergies", "Physical", "Older"):
        with h5py.File(gas, "a") as file:
            file["link"] = file[f"PartType0/{name}"]
            if "PartType0/InternalEnergies" in file:
                del file["PartType0/InternalEnergies"]
            file.move("link", "PartType0/InternalEnergies")
        np.testing.assert_array_equal(
            io.open_snapshot(gas, 0, io.ReadOptions(format="swift")).read("internal_energy"), energies
        )
    with h5py.File(gas, "a") as file:
        del file["PartType0/InternalEnergy"]
    assert cli.main(["fof", str(gas), "--type", "0", "--rlink", "0.02", "--subhaloes"]) == 0
    assert "type 0 has none; its particles count as collisionless" in capsys.readouterr().out


def test_particles_of_a_copy_have_the_number_of_their_subhalo(gas: Path, one_device: None) -> None:
    numbered = gas.with_name("numbered.hdf5")
    assert bound_particles(gas, "--layout", "soap", "--group-ids-output", str(numbered)).tolist() == [200]
    with h5py.File(numbered) as file:
        np.testing.assert_array_equal(file["PartType0/GroupNr_bound"], np.where(np.arange(300) < 200, 0, -1))
        assert set(file["PartType0/FOFGroupIDs"][()]) == {1}


@pytest.mark.parametrize("ndev", [1, 4])
def test_negative_energies_raise(gas: Path, use_devices: Any, capsys: pytest.CaptureFixture[str], ndev: int) -> None:
    use_devices(ndev)
    with h5py.File(gas, "a") as file:
        file["PartType0/InternalEnergy"][250] = -1.0
    assert cli.main(["fof", str(gas), "--type", "0", "--rlink", "0.02", "--subhaloes"]) == 2
    assert "Row 250 of the internal energies of type 0 in" in capsys.readouterr().err
    with pytest.raises(ValueError, match="read them with open_snapshot"):
        io.read_snapshot(gas, 0, ("internal_energy",))


def test_snapshot_without_velocities_raises(tmp_path, write_gadget, random, use_devices, capsys) -> None:
    use_devices(1)
    path = write_gadget(tmp_path / "snap_000.hdf5", random.random((100, 3)).astype(np.float32))
    assert cli.main(["fof", str(path), "--subhaloes"]) != 0
    assert "--subhaloes needs velocities, but type 1 has none" in capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("ndev", [4, pytest.param(3, marks=pytest.mark.slow)])
def test_files_with_subhaloes_do_not_depend_on_the_number_of_devices(
    sample: tuple[Path, str], tmp_path: Path, use_devices: Any, ndev: int
) -> None:
    use_devices(ndev)
    assert cli.main(["fof", "sample", "--subhaloes", "-q", "-o", str(tmp_path / "halos.hdf5")]) == 0
    check_equal(tmp_path / "halos.hdf5", sample[0])


@pytest.mark.long
def test_trees_of_a_catalogue_and_a_snapshot_link_equal_subhaloes(
    sample: tuple[Path, str],
    tmp_path: Path,
    one_device: None,
    random: np.random.Generator,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The second snapshot has the same particles in another order, so each subhalo is its own descendant."""
    part, header = io.read_snapshot(ics.SAMPLE_3D, fields=("pos", "vel", "mass", "id"))
    order = random.permutation(part.num)
    part.pos, part.vel, part.id = part.pos[order], part.vel[order], part.id[order]
    io.write_snapshot(tmp_path / "snap_2.hdf5", part, header)
    catalogue = str(shutil.copy(sample[0], tmp_path / "cat_1.hdf5"))
    arguments = [catalogue, str(tmp_path / "snap_2.hdf5"), "-q", "-o", str(tmp_path / "trees.hdf5")]
    assert cli.main(["tree", *arguments]) == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["cat_1.hdf5", "snap_2.hdf5", "trees.hdf5"]
    trees = read_trees(tmp_path / "trees.hdf5")
    first = np.flatnonzero(trees.snapshot == 1)
    np.testing.assert_array_equal(trees.subhalo[trees.descendant[first]], trees.subhalo[first])
    np.testing.assert_array_equal(trees.mass[trees.descendant[first]], trees.mass[first])
    pytest.importorskip("matplotlib")
    picture = ["plot", "tree", str(tmp_path / "trees.hdf5"), "-q", "-o", str(tmp_path / "tree.png")]
    assert cli.main(picture) == 0
    assert (tmp_path / "tree.png").stat().st_size > 1000
    assert cli.main([*picture, "--halo", "999"]) == 2
    assert "--halo is 999, but the last output of" in capsys.readouterr().err
    assert cli.main(["plot", "tree", catalogue, "-o", str(tmp_path / "tree.png")]) == 2
    assert "TreeTable" in capsys.readouterr().err
