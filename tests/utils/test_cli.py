"""The command line: results compared with the reference next to the sample, and errors for bad input."""

import hashlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest

from jztree.data import Pos
from jztree_utils import cli, ics, io
from jztree_utils.cli import _report
from jztree_utils.cli._commands.info import gpu_backend, instruction_set

# test_cli_devices.py tests several devices.
pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def reference() -> dict:
    return json.loads((ics.SAMPLE_DATA / "snapshot_048.fof_b0.2.json").read_text())


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# Results


def test_fof_of_the_sample_matches_the_reference(tmp_path, capsys, reference) -> None:
    output = tmp_path / "catalogue.hdf5"
    assert cli.main(["fof", "sample", "--npart-min", "1", "-o", str(output)]) == 0
    cata, members, info = io.read_catalogue(output)
    assert info.linking_length == reference["rlink"]
    assert info.num_particles == 48**3
    assert cata.ngroups == reference["n_groups_total"]
    sizes = np.asarray(cata.count).astype("<i8")
    assert hashlib.sha256(sizes.tobytes()).hexdigest() == reference["sizes_sha256"]  # the largest group is first
    part, _ = io.read_snapshot(ics.SAMPLE_3D)
    row_of_id = {identifier: row for row, identifier in enumerate(part.id.tolist())}
    rows = np.asarray([row_of_id[identifier] for identifier in members.tolist()])
    partition = np.empty(len(rows), "<i8")
    partition[rows] = np.repeat(np.minimum.reduceat(rows, cata.offset), cata.count)
    assert hashlib.sha256(partition.tobytes()).hexdigest() == reference["partition_sha256"]
    assert "55,229 of at least 1 particles" in capsys.readouterr().out


def test_largest_groups_and_printed_output(tmp_path, capsys, reference) -> None:
    output = tmp_path / "catalogue.hdf5"
    assert cli.main(["fof", "sample", "-o", str(output)]) == 0
    cata, members, info = io.read_catalogue(output)
    assert cata.ngroups == reference["n_groups_ge20"]
    assert len(members) == reference["particles_in_groups_ge20"]
    for row, expected in enumerate(reference["top20"]):
        assert cata.count[row] == expected["size"]
        np.testing.assert_allclose(cata.com_pos[row], expected["com"], rtol=1e-5)
        np.testing.assert_allclose(cata.mass[row], expected["mass_1e10Msun_h"], rtol=1e-5)
    assert cata.com_vel.shape == (252, 3)
    assert cata.vel_dispersion.shape == (252,)
    assert info.header.unit_length_in_cm == 3.085678e24
    assert info.source == "snapshot_048.hdf5"
    out, err = capsys.readouterr()
    for text in ("252 of at least 20", "34,884 of 110,592", "compile", "particles/s", "0.15625 Mpc/h", "12233.8"):
        assert text in out
    assert err == ""
    assert files(tmp_path) == ["catalogue.hdf5"]
    with h5py.File(output) as file:
        for data in file["Groups"].values():
            assert data.attrs["unit"]
            assert data.attrs["description"]


def test_fof_does_not_depend_on_the_order_of_particles(tmp_path, random) -> None:
    part, header = io.read_snapshot(ics.SAMPLE_3D)
    catalogues = []
    for name, rows in (("a", np.arange(48**3)), ("b", random.permutation(48**3))):
        shuffled = type(part)(pos=part.pos[rows], mass=part.mass, vel=part.vel[rows], id=part.id[rows], num=part.num)
        io.write_snapshot(tmp_path / f"{name}.hdf5", shuffled, header)
        arguments = ["fof", str(tmp_path / f"{name}.hdf5"), "-o", str(tmp_path / f"{name}_groups.hdf5")]
        assert cli.main(arguments) == 0
        catalogues.append(io.read_catalogue(tmp_path / f"{name}_groups.hdf5")[:2])
    (first, first_members), (second, second_members) = catalogues
    np.testing.assert_array_equal(first_members, second_members)
    np.testing.assert_array_equal(first.count, second.count)
    np.testing.assert_allclose(first.com_pos, second.com_pos, rtol=1e-6)


def test_shared_multi_file_snapshot(tmp_path, shared_data) -> None:
    expected = json.loads((shared_data / "snap_64" / "snapshot_000.fof_b0.2.json").read_text())
    output = tmp_path / "catalogue.hdf5"
    arguments = ["fof", str(shared_data / "snap_64" / "snapshot_000.1.hdf5"), "--npart-min", "1", "-o", str(output)]
    assert cli.main(arguments) == 0
    sizes = np.asarray(io.read_catalogue(output)[0].count).astype("<i8")
    assert hashlib.sha256(sizes.tobytes()).hexdigest() == expected["sizes_sha256"]


@pytest.mark.long
def test_fof_in_two_dimensions(tmp_path) -> None:
    expected = json.loads((ics.SAMPLE_DATA / "pos2d_cosmo_128_100.fof_b0.2.json").read_text())
    pos, boxsize = ics.cosmo_2d_sample(), ics.SAMPLE_2D_BOXSIZE
    io.write_snapshot(tmp_path / "a.hdf5", Pos(pos=pos), io.SnapshotHeader(boxsize=boxsize))
    output, picture = tmp_path / "c.hdf5", tmp_path / "c.png"
    arguments = ["fof", str(tmp_path / "a.hdf5"), "--npart-min", "1", "-o", str(output), "--plot", str(picture)]
    assert cli.main(arguments) == 0
    cata, _, info = io.read_catalogue(output)
    assert info.linking_length == expected["rlink"]
    sizes = np.asarray(cata.count).astype("<i8")
    assert hashlib.sha256(sizes.tobytes()).hexdigest() == expected["sizes_sha256"]
    for row, group in enumerate(expected["top20"][:5]):
        np.testing.assert_allclose(cata.com_pos[row], group["com"], rtol=1e-5)


def test_knn_of_the_sample_matches_the_reference(tmp_path, capsys, reference) -> None:
    output = tmp_path / "neighbours.hdf5"
    assert cli.main(["knn", "sample", "-k", "8", "--density", "--lists", "-o", str(output)]) == 0
    result = io.read_neighbours(output)
    np.testing.assert_array_equal(result.indices[:, 0], np.arange(48**3))
    sums = result.distances.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(sums[1:], reference["knn_k8_sum_dist_index1to7"], rtol=1e-6)
    radius = result.distances[:, 7].astype(np.float64)
    np.testing.assert_allclose(
        result.density, 6 * reference["particle_mass_1e10Msun_h"] / (4 / 3 * np.pi * radius**3), rtol=1e-5
    )
    assert not result.by_number
    assert len(np.unique(result.id)) == 48**3
    assert "density" in capsys.readouterr().out
    assert files(tmp_path) == ["neighbours.hdf5"]
    assert cli.main(["knn", "sample", "-k", "8", "--density", "-o", str(output)]) == 0
    out = capsys.readouterr().out
    assert ("find neighbours" in out, "8 each, including the particle itself" in out) == (False, True)
    alone = io.read_neighbours(output)
    assert (alone.distances, alone.indices) == (None, None)
    np.testing.assert_array_equal(alone.density, result.density)
    assert cli.main(["plot", "distances", str(output), "-o", str(tmp_path / "d.png")]) == 2
    assert "has densities but no distances; write lists" in capsys.readouterr().err


def test_float64_positions_are_not_rounded(tmp_path, write_gadget) -> None:
    pos = np.asarray([[1e6, 1e6, 1e6], [1e6 + 1e-6, 1e6, 1e6], [1e6 + 3e-6, 1e6, 1e6]])
    path = write_gadget(tmp_path / "a.hdf5", pos, header={"BoxSize": 0.0})
    assert cli.main(["fof", str(path), "--rlink", "1.5e-6", "--npart-min", "1", "-o", str(tmp_path / "c.hdf5")]) == 0
    cata, members, _ = io.read_catalogue(tmp_path / "c.hdf5")
    assert cata.count.tolist() == [2, 1]
    assert members.tolist() == [0, 1, 2]
    assert cli.main(["knn", str(path), "-k", "2", "-o", str(tmp_path / "k.hdf5")]) == 0
    assert io.read_neighbours(tmp_path / "k.hdf5").distances.dtype == np.float64


def test_groups_of_a_snapshot_without_masses_and_velocities(tmp_path, write_gadget, random, capsys) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((300, 3)), header={"MassTable": np.zeros(6)})
    arguments = ["fof", str(path), "--b", "0.7", "--npart-min", "2", "-o", str(tmp_path / "c.hdf5")]
    assert cli.main([*arguments, "--plot", str(tmp_path / "c.svg")]) == 0
    cata, _, _ = io.read_catalogue(tmp_path / "c.hdf5")
    assert cata.ngroups > 5
    assert cata.mass is None
    assert cata.com_vel is None
    out = capsys.readouterr().out
    assert "no masses" in out
    assert "no velocities" in out
    assert "no identifiers" in out
    assert files(tmp_path) == ["a.hdf5", "c.hdf5", "c.svg"]


@pytest.mark.parametrize("npart_min", ["20", "501"])  # 501 exceeds the number of particles
def test_empty_catalogue_is_not_an_error(snapshot, tmp_path, capsys, npart_min) -> None:
    arguments = ["fof", str(snapshot), "--b", "0", "--npart-min", npart_min, "-o", str(tmp_path / "c.hdf5")]
    assert cli.main([*arguments, "--plot", str(tmp_path / "c.png")]) == 0
    assert io.read_catalogue(tmp_path / "c.hdf5")[0].ngroups == 0
    assert "0 of at least" in capsys.readouterr().out


def test_k_may_be_the_number_of_particles(tmp_path, write_gadget, random) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((30, 3)).astype(np.float32))
    assert cli.main(["knn", str(path), "-k", "30", "-o", str(tmp_path / "k.hdf5")]) == 0
    assert np.all(np.sort(io.read_neighbours(tmp_path / "k.hdf5").indices) == np.arange(30))


def test_info(capsys) -> None:
    assert cli.main(["info"]) == 0
    out = capsys.readouterr().out
    for name in (
        "jztree",
        "jax",
        "jaxlib",
        "numpy",
        "h5py",
        "Python",
        "devices",
        "instruction set",
        "CUDA library",
        "GPU backend",
    ):
        assert re.search(rf"^  {name}  +\S", out, re.MULTILINE)


@pytest.mark.parametrize(
    ("library", "platforms", "says"),
    [
        (None, ["cpu"], "none; .* JZTREE_CUDA=ON pip install ."),
        (None, ["gpu"], "none; .* JZTREE_CUDA=ON pip install ."),
        ("libjztree_cuda.so", ["gpu", "gpu"], "CUDA 13.0, architectures 90, in use"),
        ("libjztree_cuda.so", ["cpu"], "CUDA 13.0, architectures 90, not in use: .*"),
    ],
)
def test_info_describes_the_gpu_backend(library: str | None, platforms: list[str], says: str) -> None:
    native = {"cuda_library": library, "cuda_architectures": library and "90", "cuda_version": library and "13.0"}
    assert re.fullmatch(says, gpu_backend(native, platforms))


def test_info_reports_an_instruction_set_that_is_not_compiled(monkeypatch) -> None:
    native = {"instruction_set": "x86-64-v2", "best_instruction_set": "x86-64-v3"}
    monkeypatch.delenv("JZTREE_INSTRUCTION_SET", raising=False)
    assert instruction_set(native | {"best_instruction_set": "x86-64-v2"}) == "x86-64-v2"
    advice = "JZTREE_INSTRUCTION_SETS=ALL pip install ."
    says = f"x86-64-v2; this machine has x86-64-v3, for which nothing is compiled: {advice}"
    assert instruction_set(native) == says
    monkeypatch.setenv("JZTREE_INSTRUCTION_SET", "x86-64-v2")
    assert instruction_set(native) == "x86-64-v2"


@pytest.mark.parametrize("arguments", [[], ["--help"], ["fof", "--help"], ["knn", "--help"], ["info", "--help"]])
def test_help(arguments, capsys) -> None:
    assert cli.main(arguments) == 0
    out = capsys.readouterr().out
    assert out.startswith("usage: jztree")
    assert max(map(len, out.splitlines())) <= 120


def test_version(capsys) -> None:
    assert cli.main(["--version"]) == 0
    assert re.fullmatch(r"jztree \d+\.\d+.*\n", capsys.readouterr().out)


def test_help_does_not_load_jax() -> None:
    code = "import sys; from jztree_utils.cli import main; main(['fof', '--help']); assert 'jax' not in sys.modules"
    subprocess.run([sys.executable, "-P", "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(("value", "text"), [(12, "12 "), (1234.0, "1.23 k"), (2.5e7, "25 M"), (3e9, "3 G")])
def test_rates_have_prefixes(value, text) -> None:
    assert _report.with_prefix(value) == text


def test_the_library_as_a_program_is_the_command_line() -> None:
    for module in ("jztree", "jztree_utils.cli"):
        call = [sys.executable, "-P", "-m", module, "fof", "--no-such-option"]
        ended = subprocess.run(call, capture_output=True, text=True, check=False)
        message = "jztree: error: jztree fof has no option --no-such-option; see jztree fof --help.\n"
        assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", message)
