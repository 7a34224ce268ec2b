"""The command line on several devices and processes: the same files as with one device, and messages printed once."""

import os
import re
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from processes import Ended, environments_of, run_commands, run_processes

from jztree_utils import cli, ics, io


def contents(path: Path) -> dict[str, Any]:
    """Return all datasets and attributes of a file, by name."""
    result: dict[str, Any] = {}

    def look(name: str, item: Any) -> None:
        result.update({f"{name}@{key}": value for key, value in item.attrs.items()})
        if isinstance(item, h5py.Dataset):
            result[name] = item[()]

    with h5py.File(path) as file:
        file.visititems(look)
    return result


def check_equal(path: Path, expected: Path, rtol: float = 2e-6) -> None:
    """Assert that integers, text and distances are equal, and sums up to rounding."""
    result, required = contents(path), contents(expected)
    assert result.keys() == required.keys()
    for name, value in required.items():
        assert np.asarray(result[name]).dtype == np.asarray(value).dtype, name
        if np.asarray(value).dtype.kind == "f" and name.startswith("Groups"):
            np.testing.assert_allclose(result[name], value, rtol=rtol, atol=rtol / 2 * np.max(np.abs(value), initial=0))
        else:
            np.testing.assert_array_equal(result[name], value, name)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        (["fof", "sample"], 4),
        pytest.param(["fof", "sample", "--npart-min", "1"], 3, marks=pytest.mark.slow),
        pytest.param(["fof", "sample", "--properties"], 4, marks=pytest.mark.slow),
        pytest.param(["knn", "sample", "-k", "6", "--density", "--lists"], 4, marks=pytest.mark.slow),
    ],
    ids=["groups", "all groups", "properties", "neighbours"],
)
def test_files_do_not_depend_on_the_number_of_devices(tmp_path, use_devices, arguments, count) -> None:
    for ndev in (1, count):
        use_devices(ndev)
        assert cli.main([*arguments, "-o", str(tmp_path / f"{ndev}.hdf5")]) == 0
    check_equal(tmp_path / f"{count}.hdf5", tmp_path / "1.hdf5")


def test_float64_catalogues_of_several_devices_differ_by_rounding_only(tmp_path, use_devices, random) -> None:
    centres = random.uniform(1, 9, (20, 1, 3))
    pos = (centres + random.normal(0, 0.01, (20, 100, 3))).reshape(-1, 3)
    np.savez(tmp_path / "f64.npz", pos=pos, boxsize=10.0, id=np.arange(2000))
    for name, ndev in (("one", 1), ("three", 3), ("again", 3)):
        use_devices(ndev)
        assert cli.main(["fof", str(tmp_path / "f64.npz"), "--rlink", "0.1", "-o", str(tmp_path / f"{name}.hdf5")]) == 0
    check_equal(tmp_path / "three.hdf5", tmp_path / "one.hdf5", rtol=1e-13)
    assert (tmp_path / "again.hdf5").read_bytes() == (tmp_path / "three.hdf5").read_bytes()


@pytest.mark.parametrize(
    ("n", "dtype"),
    [
        (3, np.float32),  # fewer particles than devices
        pytest.param(3, np.float64, marks=pytest.mark.slow),
        pytest.param(41, np.float32, marks=pytest.mark.slow),
        pytest.param(41, np.float64, marks=pytest.mark.slow),
    ],
)
def test_few_particles_in_several_files(write_parts, tmp_path, random, use_devices, dtype, n) -> None:
    ids = random.integers(2**62, 2**64, n, np.uint64)
    path = write_parts(random.random((n, 3)).astype(dtype), (1, 2), ParticleIDs=ids, Masses=random.random(n))[0]
    for ndev in (1, 4):
        use_devices(ndev)
        for arguments in (["fof", "--b", "0.6", "--npart-min", "1"], ["knn", "-k", "3", "--density", "--lists"]):
            output = tmp_path / f"{arguments[0]}_{ndev}.hdf5"
            assert cli.main([arguments[0], str(path), *arguments[1:], "-o", str(output)]) == 0
    check_equal(tmp_path / "fof_4.hdf5", tmp_path / "fof_1.hdf5")
    check_equal(tmp_path / "knn_4.hdf5", tmp_path / "knn_1.hdf5")
    members = io.read_catalogue(tmp_path / "fof_4.hdf5")[1]
    assert sorted(members.tolist()) == sorted(ids.tolist())


@pytest.mark.slow
def test_without_masses_velocities_and_identifiers(tmp_path, write_gadget, random, use_devices, capsys) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((300, 3)), header={"MassTable": np.zeros(6)})
    for ndev in (1, 4):
        use_devices(ndev)
        arguments = ["--b", "0.7", "--npart-min", "2", "-o", str(tmp_path / f"fof_{ndev}.hdf5")]
        assert cli.main(["fof", str(path), *arguments, "--plot", str(tmp_path / "halos.png")]) == 0
        assert cli.main(["knn", str(path), "--density", "-o", str(tmp_path / f"knn_{ndev}.hdf5")]) == 0
    out = capsys.readouterr().out
    assert out.count("no identifiers") == 2
    assert "4 devices" in out
    check_equal(tmp_path / "fof_4.hdf5", tmp_path / "fof_1.hdf5")
    check_equal(tmp_path / "knn_4.hdf5", tmp_path / "knn_1.hdf5")


@pytest.mark.slow
def test_no_group_on_any_device(snapshot, tmp_path, use_devices) -> None:
    use_devices(4)
    assert cli.main(["fof", str(snapshot), "--b", "0", "-o", str(tmp_path / "c.hdf5")]) == 0
    assert io.read_catalogue(tmp_path / "c.hdf5")[0].ngroups == 0


# Several processes


def run_cli(arguments: list[str], tmp_path: Path, count: int = 2, devices: int = 2) -> list[Ended]:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", *arguments]
    return run_commands([command] * count, environments_of(count), devices, timeout=120, cwd=tmp_path)


@pytest.mark.slow
def test_one_process_uses_all_its_devices(tmp_path) -> None:
    command = [sys.executable, "-P", "-m", "jztree_utils.cli", "fof", "sample", "-o", "out.hdf5"]
    (done,) = run_commands([command], [{}], devices=4, timeout=120, cwd=tmp_path)
    assert done.returncode == 0, done.output
    assert "4 devices" in done.output
    assert io.read_catalogue(tmp_path / "out.hdf5")[0].ngroups == 252


@pytest.mark.parametrize(
    "arguments",
    [["fof", "sample"], pytest.param(["knn", "sample", "-k", "4"], marks=pytest.mark.slow)],
    ids=["fof", "knn"],
)
def test_two_processes_write_what_one_device_writes(tmp_path, use_devices, arguments) -> None:
    use_devices(1)
    fof = arguments[0] == "fof"
    ordered = ["--snapshot-output", str(tmp_path / "one_ordered.hdf5")] if fof else []
    assert cli.main([*arguments, "-o", str(tmp_path / "one.hdf5"), *ordered]) == 0
    more = ["--plot", "halos.png", "--snapshot-output", "two_ordered.hdf5"] if fof else []
    first, second = run_cli([*arguments, "-o", "two.hdf5", *more], tmp_path)
    assert first.returncode == second.returncode == 0, first.output + second.output
    assert "particles/s" in first.output
    assert "4 devices" in first.output
    # Several threads write Gloo's lines at once, so lines may be split.
    assert [
        line for line in second.output.splitlines() if line and "peer ranks" not in line and "[Gloo]" not in line
    ] == []
    check_equal(tmp_path / "two.hdf5", tmp_path / "one.hdf5")
    expected = ["one.hdf5", "two.hdf5"]
    if fof:
        check_equal(tmp_path / "two_ordered.hdf5", tmp_path / "one_ordered.hdf5")
        expected += ["halos.png", "one_ordered.hdf5", "two_ordered.hdf5"]
    assert sorted(os.listdir(tmp_path)) == sorted(expected)


ERRORS = {
    "fof nowhere.hdf5": "The file nowhere.hdf5 does not exist",
    "fof sample -o missing/out.hdf5": "create the folder",
    "knn sample -k 110593": "only 110592 particles",
    "fof nan.hdf5 --rlink 0.1": "Row 5 of the positions of type 1 in nan.hdf5 is NaN",
}


def test_errors_of_several_processes_are_printed_once(tmp_path, write_gadget, random) -> None:
    pos = random.random((500, 3))
    pos[5, 1] = np.nan
    write_gadget(tmp_path / "nan.hdf5", pos)
    script = f"""
from jztree_utils import cli
for call in {list(ERRORS)}:
    print("status", cli.main(call.split()), flush=True)
"""
    first, second = run_processes(script, timeout=120, cwd=tmp_path)
    for ended in (first, second):
        assert re.findall("^status (.*)$", ended.output, re.MULTILINE) == ["2"] * len(ERRORS), ended.output
    errors = re.findall(r"^jztree: error: ([^\n]+)$", first.output, re.MULTILINE)
    assert len(errors) == len(ERRORS)
    assert all(map(str.__contains__, errors, ERRORS.values())), errors
    assert "jztree: error" not in second.output


FAILING = """
import contextlib, sys
from unittest import mock
import jax
from jztree import launch
from jztree_utils import cli, io
from jztree_utils.cli._particles import many_devices
launch.initialize()
fault = mock.patch.object({place}, {function!r}, side_effect={error})
with fault if jax.process_index() == {process} else contextlib.nullcontext():
    sys.exit(cli.main(["fof", {snapshot!r}, "-o", "out.hdf5"]))
"""


@pytest.mark.parametrize(
    ("place", "function", "error", "process", "message"),
    [
        pytest.param("io", "write_catalogue", "io.OutputError('No space.')", 0, "No space.", id="writing"),
        pytest.param(
            "many_devices.ManyDevices", "_run", "ZeroDivisionError('a bug')", 1, "ZeroDivisionError: a bug",
            marks=pytest.mark.slow, id="bug",
        ),
        pytest.param("io", "shard_snapshot", "io.SnapshotError('No disk.')", 1, "No disk.", id="reading"),
    ],
)  # fmt: skip
def test_error_in_one_process_ends_all(tmp_path, place, function, error, process, message) -> None:
    values = {"place": place, "function": function, "error": error, "process": process}
    ended = run_processes(FAILING.format(snapshot=str(ics.SAMPLE_3D), **values), timeout=120, cwd=tmp_path)
    assert all(done.returncode != 0 for done in ended)
    lines = [re.findall(r"^jztree: error: .*$", done.output, re.MULTILINE) for done in ended]
    assert len(lines[process]) == 1
    assert message in lines[process][0]
    assert lines[1 - process] == []
    assert os.listdir(tmp_path) == []
