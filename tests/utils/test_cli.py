"""The command line: results against the reference beside the sample, and what it says of bad input."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jztree_utils import _report, cli, ics, io
from jztree_utils._commands import snapshots
from jztree_utils._commands.info import gpu_backend
from jztree_utils._particles.reading import Source, open_types, read_particles


@pytest.fixture(autouse=True)
def one_device(monkeypatch, use_devices) -> None:
    """Here and in processes that are started here; test_cli_devices.py has the others."""
    use_devices(1)
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.fixture
def reference() -> dict:
    return json.loads((ics.SAMPLE_DATA / "snapshot_048.fof_b0.2.json").read_text())


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# Results


def test_fof_of_the_sample_is_the_reference(tmp_path, capsys, reference) -> None:
    output = tmp_path / "catalogue.hdf5"
    assert cli.main(["fof", "sample", "--npart-min", "1", "-o", str(output)]) == 0
    cata, members, info = io.read_catalogue(output)
    assert info.linking_length == reference["rlink"]
    assert info.num_particles == 48**3
    assert cata.ngroups == reference["n_groups_total"]
    sizes = np.asarray(cata.count).astype("<i8")
    assert hashlib.sha256(sizes.tobytes()).hexdigest() == reference["sizes_sha256"]  # the largest group comes first
    part, _ = io.read_snapshot(ics.SAMPLE_3D)
    row_of_id = {identifier: row for row, identifier in enumerate(part.id.tolist())}
    rows = np.asarray([row_of_id[identifier] for identifier in members.tolist()])
    partition = np.empty(len(rows), "<i8")
    partition[rows] = np.repeat(np.minimum.reduceat(rows, cata.offset), cata.count)
    assert hashlib.sha256(partition.tobytes()).hexdigest() == reference["partition_sha256"]
    assert "55,229 of at least 1 particles" in capsys.readouterr().out


def test_largest_groups_and_what_is_printed(tmp_path, capsys, reference) -> None:
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


def test_fof_in_two_dimensions(tmp_path) -> None:
    expected = json.loads((ics.SAMPLE_DATA / "pos2d_cosmo_128_100.fof_b0.2.json").read_text())
    part, boxsize = ics.cosmo_2d_sample()
    io.write_snapshot(tmp_path / "a.hdf5", part, io.SnapshotHeader(boxsize=boxsize))
    output, picture = tmp_path / "c.hdf5", tmp_path / "c.png"
    arguments = ["fof", str(tmp_path / "a.hdf5"), "--npart-min", "1", "-o", str(output), "--plot", str(picture)]
    assert cli.main(arguments) == 0
    cata, _, info = io.read_catalogue(output)
    assert info.linking_length == expected["rlink"]
    sizes = np.asarray(cata.count).astype("<i8")
    assert hashlib.sha256(sizes.tobytes()).hexdigest() == expected["sizes_sha256"]
    for row, group in enumerate(expected["top20"][:5]):
        np.testing.assert_allclose(cata.com_pos[row], group["com"], rtol=1e-5)


def test_knn_of_the_sample_is_the_reference(tmp_path, capsys, reference) -> None:
    output = tmp_path / "neighbours.hdf5"
    assert cli.main(["knn", "sample", "-k", "8", "--density", "-o", str(output)]) == 0
    found = io.read_neighbours(output)
    np.testing.assert_array_equal(found.indices[:, 0], np.arange(48**3))
    sums = found.distances.astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(sums[1:], reference["knn_k8_sum_dist_index1to7"], rtol=1e-6)
    radius = found.distances[:, 7].astype(np.float64)
    np.testing.assert_allclose(
        found.density, 6 * reference["particle_mass_1e10Msun_h"] / (4 / 3 * np.pi * radius**3), rtol=1e-5
    )
    assert not found.by_number
    assert len(np.unique(found.id)) == 48**3
    assert "density" in capsys.readouterr().out
    assert files(tmp_path) == ["neighbours.hdf5"]


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


@pytest.mark.parametrize("npart_min", ["20", "501"])  # 501: more than there are particles
def test_no_group_is_no_error(snapshot, tmp_path, capsys, npart_min) -> None:
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
        ("libjztree_cuda.so", ["gpu", "gpu"], "CUDA, architectures 90, in use"),
        ("libjztree_cuda.so", ["cpu"], "CUDA, architectures 90, not in use: .*"),
    ],
)
def test_info_says_what_there_is_for_gpus(library: str | None, platforms: list[str], says: str) -> None:
    native = {"cuda_library": library, "cuda_architectures": library and "90"}
    assert re.fullmatch(says, gpu_backend(native, platforms))


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


# Bad input


def check_refused(arguments: list[str], folder: Path, capsys, told: str) -> None:
    """Exit status 2, one sentence, nothing written."""
    before = {name: (folder / name).stat().st_mtime_ns for name in files(folder)}
    assert cli.main(arguments) == 2
    err = capsys.readouterr().err
    assert re.fullmatch(r"jztree: error: [^\n]+\n", err)
    assert "Traceback" not in err
    assert told in err, err
    assert {name: (folder / name).stat().st_mtime_ns for name in files(folder)} == before


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["fof"], "No snapshot was given"),
        (["dance"], "invalid choice"),
        (["fof", "sample", "--colour", "-k", "3"], "jztree fof does not know --colour -k 3; see jztree fof --help."),
        (["fof", "sample", "--b", "wide"], "--b"),
        (["fof", "sample", "--b", "0.2", "--rlink", "1"], "two ways to give the linking length"),
        (["fof", "sample", "--b", "-0.2"], "--b is -0.2"),
        (["fof", "sample", "--b", "nan"], "--b is nan"),
        (["fof", "sample", "--rlink", "-1"], "--rlink is -1"),
        (["fof", "sample", "--rlink", "nan"], "--rlink is nan"),
        (["fof", "sample", "--rlink", "inf"], "--rlink is inf"),
        (["fof", "sample", "--rlink", "18.8"], "The linking length is 18.8, more than half"),
        (["fof", "sample", "--npart-min", "0"], "--npart-min is 0"),
        (["fof", "sample", "--npart-min", "2.5"], "--npart-min"),
        (["fof", "sample", "--type", "-1"], "--type is -1"),
        (["fof", "sample", "--type", "4"], "no particles of type 4"),
        (["fof", "nowhere.hdf5"], "no file nowhere.hdf5"),
        (["knn", "sample", "-k", "0"], "-k is 0"),
        (["knn", "sample", "-k", "-3"], "-k is -3"),
        (["knn", "sample", "-k", "eight"], "eight"),
        (["knn", "sample", "-k", "110593"], "only 110592 particles"),
        (["knn", "sample", "-k", "2", "--density"], "at least 3"),
        (["knn", "nowhere.hdf5"], "no file nowhere.hdf5"),
    ],
)
def test_bad_arguments(arguments, told, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    output = ["-o", "out.hdf5"] if arguments[0] in ("fof", "knn") and len(arguments) > 1 else []
    check_refused([*arguments, *output], tmp_path, capsys, told)


@pytest.mark.parametrize("command", ["fof", "knn"])
@pytest.mark.parametrize(
    ("output", "told"),
    [
        ("missing/out.hdf5", "create the folder"),
        ("folder", "not a regular file"),
        ("snapshot.hdf5", "would overwrite"),
        ("./folder/../snapshot.hdf5", "would overwrite"),
        ("/dev/null", "not a regular file"),
    ],
)
def test_bad_outputs(command, output, told, snapshot, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    check_refused([command, "snapshot.hdf5", "-o", output], tmp_path, capsys, told)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--plot", "halos.docx"], "no suffix of a known format"),
        (["--plot", "halos"], "no suffix of a known format"),
        (["--plot", "missing/halos.png"], "create the folder"),
        (["--plot", "a.eps", "-o", "./a.eps"], "different names"),
    ],
)
def test_bad_pictures(arguments, told, snapshot, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    check_refused(["fof", "snapshot.hdf5", *arguments], tmp_path, capsys, told)


def test_picture_without_matplotlib(snapshot, tmp_path, capsys, monkeypatch) -> None:
    monkeypatch.delitem(sys.modules, "jztree_utils.plot._notebook_figure", raising=False)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    check_refused(["fof", str(snapshot), "--plot", str(tmp_path / "a.png")], tmp_path, capsys, "jztree[plot]")


@pytest.mark.parametrize("command", ["fof", "knn"])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_positions_that_are_no_numbers_name_the_row(command, value, tmp_path, write_gadget, random, capsys) -> None:
    pos = random.random((200, 3)).astype(np.float32)
    pos[123, 1] = value
    path = write_gadget(tmp_path / "a.hdf5", pos)
    words = f"Row 123 of the positions of type 1 in {path} is NaN or infinite; remove such particles."
    check_refused([command, str(path), "-o", str(tmp_path / "out.hdf5")], tmp_path, capsys, words)
    check_refused(["plot", "density", str(path), "-o", str(tmp_path / "a.png")], tmp_path, capsys, words)


def test_no_box_needs_a_length(tmp_path, write_gadget, random, capsys) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((50, 3)), header={"BoxSize": None})
    check_refused(["fof", str(path)], tmp_path, capsys, "give the length with --rlink")
    assert cli.main(["fof", str(path), "--rlink", "0.1"]) == 0
    assert "none (open)" in capsys.readouterr().out


def test_damaged_snapshots(tmp_path, snapshot, write_parts, random, capsys) -> None:
    cut = tmp_path / "cut.hdf5"
    cut.write_bytes(snapshot.read_bytes()[:9000])
    text = tmp_path / "text.hdf5"
    text.write_text("Not a snapshot.\n")
    integers = tmp_path / "integers.hdf5"
    integers.write_bytes(snapshot.read_bytes())
    with h5py.File(integers, "a") as file:
        del file["PartType1/Coordinates"]
        file["PartType1/Coordinates"] = np.ones((500, 3), np.int64)
    parts = write_parts(random.random((40, 3)), (10, 20), "snap_009")
    parts[1].unlink()
    (tmp_path / "empty").mkdir()
    told = {
        cut: "truncated",
        text: "not an HDF5",
        integers: "int64",
        parts[2]: parts[1].name,
        tmp_path / "empty": "no .hdf5",
    }
    for path, words in told.items():
        check_refused(["fof", str(path), "-o", str(tmp_path / "out.hdf5")], tmp_path, capsys, words)


@pytest.mark.parametrize("count", [1, 3])
def test_corners_of_the_particles(count, tmp_path, write_gadget, random) -> None:
    mesh = jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    for num in (2, 50):  # not a multiple of the devices, and fewer
        pos = (random.random((num, 3)) + np.asarray([5, -7, 0])).astype(np.float32)
        source = Source(write_gadget(tmp_path / "a.hdf5", pos))
        part = read_particles(open_types(source), (), mesh)
        np.testing.assert_array_equal(part.corners(), [pos.min(axis=0), pos.max(axis=0)])


def test_a_box_that_cannot_hold_the_positions(tmp_path, write_gadget, random, capsys) -> None:
    pos = random.random((50, 3)) * 1.02 + np.asarray([0, -0.3, 0])  # a little wider, and begins elsewhere
    path, output = write_gadget(tmp_path / "a.hdf5", pos), str(tmp_path / "out.hdf5")
    assert cli.main(["fof", str(path)]) == 0
    wide = str(write_gadget(tmp_path / "b.hdf5", pos * [1, 1, 1.4]))
    told = "along dimension 2, but the periodic box is 1 there; give the right one with --boxsize"
    check_refused(["fof", wide, "-o", output], tmp_path, capsys, told)
    check_refused(["knn", wide, "-o", output], tmp_path, capsys, told)
    check_refused(["plot", "density", wide, "-o", str(tmp_path / "out.png")], tmp_path, capsys, told)
    assert cli.main(["fof", wide, "--boxsize", "1,1,2"]) == 0


@pytest.mark.parametrize("command", [["fof"], ["knn"], ["convert"], ["plot", "density"]], ids=lambda words: words[-1])
def test_what_is_no_snapshot(command, tmp_path, write_gadget, random, monkeypatch, capsys) -> None:
    monkeypatch.chdir(tmp_path)
    pos = random.random((30, 3))
    Path("empty.hdf5").touch()
    Path("notes.txt").write_text("Not a snapshot.\n" * 100)
    with h5py.File("table.hdf5", "w") as file:
        file["a/b"] = np.arange(5)
    write_gadget(Path("group.hdf5"), pos)
    with h5py.File("group.hdf5", "a") as file:
        del file["PartType1"]
    write_gadget(Path("none.hdf5"), pos[:0])
    write_gadget(Path("stars.hdf5"), pos, ptype=4)
    np.savez("names.npz", x=pos)
    os.mkfifo("pipe")
    told = {
        "missing.hdf5": "There is no file missing.hdf5",
        ".": "holds more than one snapshot",
        "empty.hdf5": "is empty",
        "notes.txt": "is not an HDF5 file",
        "table.hdf5": "name the dataset of positions (--pos)",
        "group.hdf5": "has no dataset PartType1/Coordinates",
        "none.hdf5": "no particles of type 1; it holds none at all",
        "stars.hdf5": "no particles of type 1; it holds 30 of type 4",
        "names.npz": "name them (--pos)",
        "pipe": "is not a regular file",
    }
    for name, words in told.items():
        check_refused([*command, name, "-o", "out.png" if "plot" in command else "out.hdf5"], tmp_path, capsys, words)


def test_what_the_system_refuses(snapshot, tmp_path, monkeypatch, capsys) -> None:
    """The superuser may read and write all, so its refusals are those of a system that says no to everyone."""
    (tmp_path / "closed").mkdir()

    def refuse(path: Any, *_: Any, **__: Any) -> int:
        raise PermissionError(13, "Permission denied", str(path))

    output = ["-o", str(tmp_path / "closed" / "out.hdf5")]
    with monkeypatch.context() as patched:
        patched.setattr(io._files.os, "open", refuse)
        check_refused(["fof", str(snapshot), *output], tmp_path, capsys, "cannot be written (Permission denied)")
    with monkeypatch.context() as patched:
        patched.setattr("builtins.open", refuse)
        check_refused(["fof", str(snapshot), *output], tmp_path, capsys, "cannot be read (Permission denied)")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs a device that is full")
def test_no_space_for_what_is_printed(snapshot) -> None:
    with open("/dev/full", "w") as full, open(os.devnull) as nothing:
        command = [sys.executable, "-P", "-m", "jztree_utils.cli", "knn", str(snapshot)]
        done = subprocess.run(command, stdin=nothing, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (
        2,
        "jztree: error: Reading or writing failed (No space left on device).\n",
    )


# Interruptions


def test_failure_while_writing_leaves_nothing(snapshot, tmp_path, capsys, monkeypatch) -> None:
    output = tmp_path / "out.hdf5"
    for failure, status in ((KeyboardInterrupt(), 130), (OSError(28, "No space left on device"), 2)):

        def fail(*_: object, failure: BaseException = failure) -> None:
            raise failure

        monkeypatch.setattr(io._neighbour_lists, "write_column", fail)
        assert cli.main(["knn", str(snapshot), "-o", str(output)]) == status
        assert re.fullmatch(r"jztree: [^\n]+\n", capsys.readouterr().err)
        assert files(tmp_path) == ["snapshot.hdf5"]


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits of the system")
@pytest.mark.parametrize(
    "output",
    [
        "-o out.hdf5",
        pytest.param("--plot out.png", marks=pytest.mark.slow),
        pytest.param("--plot out.pdf", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("limit", [100, 3000])  # the first fails as the file is opened or closed
def test_no_space_for_the_output(tmp_path, output, limit) -> None:
    code = f"""
import resource, sys
from jztree_utils.cli import main
resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))
sys.exit(main(["fof", "sample", *{output.split()}]))
"""
    done = subprocess.run([sys.executable, "-P", "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(
        r"jztree: error: Writing out\.\w+ failed \(File too large\); nothing was written\.\n", done.stderr
    )
    assert files(tmp_path) == []


def test_bugs_are_told_apart(snapshot, capsys, monkeypatch) -> None:
    def fail(*_: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(snapshots, "read_particles", fail)
    assert cli.main(["fof", str(snapshot)]) == 1
    assert "unexpected" in capsys.readouterr().err
    assert cli.main(["fof", str(snapshot), "--debug"]) == 1
    assert "Traceback" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("moment", "number", "what"),
    [
        ("import 'numpy._core", signal.SIGINT, "interrupted"),
        pytest.param("import 'jaxlib", signal.SIGINT, "interrupted", marks=pytest.mark.slow),
        ("  load JAX", signal.SIGTERM, "terminated"),
        ("  read the snapshot", signal.SIGINT, "interrupted"),
    ],
)
def test_process_interrupted_by_the_user(tmp_path, moment, number, what) -> None:
    """Once is enough, also while compiled modules are imported and while compiled code runs."""
    python = [sys.executable, "-P", "-u", *(["-v"] if moment.startswith("import") else [])]  # -v tells of imports
    command = [*python, "-m", "jztree_utils.cli", "knn", "sample", "-k", "512", "-o", str(tmp_path / "k.hdf5")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert process.stdout is not None
    while not process.stdout.readline().startswith(moment):
        assert process.poll() is None
    process.send_signal(number)
    told, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + number
    assert re.search(rf"^jztree: {what}[^\n]+\n\Z", told, re.M)
    assert "Traceback" not in told
    assert files(tmp_path) == []


def test_process_whose_reader_goes_away(tmp_path) -> None:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", "fof", "sample"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    err = process.stderr.read()
    process.stderr.close()
    assert process.wait(timeout=60) == 141
    assert err == ""


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("JAX_PLATFORMS", "foo", "JAX has no device to run on .*, and in the environment JAX_PLATFORMS is 'foo'; set"),
        ("JAX_ENABLE_X64", "foo", "invalid truth value 'foo' for environment 'JAX_ENABLE_X64'."),
        ("JZTREE_INSTRUCTION_SET", "foo", "the environment variable JZTREE_INSTRUCTION_SET is 'foo', but jztree is"),
    ],
)
def test_process_with_a_bad_environment(name, value, told) -> None:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", "fof", "sample", "-q"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {name: value})
    assert done.returncode == 2
    assert re.fullmatch(f"jztree: error: {told}[^\n]*\\.?\n", done.stderr)


def test_process_with_bad_input(tmp_path) -> None:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", "fof", str(tmp_path / "none.hdf5")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert re.fullmatch(r"jztree: error: There is no file [^\n]+\n", done.stderr)
