"""The command line for more than one search: several snapshots, dry runs, summaries, conversions, pictures."""

import json
import os
import re
from pathlib import Path

import h5py
import headers
import numpy as np
import pytest
from headers import write_types

from jztree.data import ParticleData
from jztree_utils import cli, io
from jztree_utils.cli import _report, _verbose
from jztree_utils.cli._commands import drawn
from jztree_utils.cli._commands.arguments import parse
from jztree_utils.cli._commands.earlier_outputs import made_with

pytestmark = pytest.mark.usefixtures("one_device")


@pytest.fixture
def snapshots(tmp_path, write_gadget, random) -> list[str]:
    paths = []
    for number in (7, 8, 12):
        pos = random.random((400 + number, 3), np.float32)
        ids = np.arange(len(pos), dtype=np.uint32)
        paths.append(str(write_gadget(tmp_path / f"snap_{number:03}.hdf5", pos, columns={"ParticleIDs": ids})))
    return paths


def run(*arguments: str, capsys) -> tuple[int, str, str]:
    status = cli.main(list(arguments))
    message = capsys.readouterr()
    return status, message.out, message.err


# Several snapshots


def test_finished_outputs_are_skipped(snapshots, tmp_path, capsys) -> None:
    output = str(tmp_path / "cat_{n}.hdf5")
    assert run("fof", *snapshots[:2], "--npart-min", "2", "-o", output, capsys=capsys)[0] == 0
    first = {name: (tmp_path / name).read_bytes() for name in ("cat_007.hdf5", "cat_008.hdf5")}
    stamps = {name: os.stat(tmp_path / name).st_mtime_ns for name in first}
    status, out, _ = run("fof", *snapshots, "--npart-min", "2", "-o", output, capsys=capsys)
    assert status == 0
    assert out.count("is skipped") == 2
    assert {name: os.stat(tmp_path / name).st_mtime_ns for name in first} == stamps
    assert io.read_catalogue(tmp_path / "cat_012.hdf5")[2].source == "snap_012.hdf5"
    assert run("fof", *snapshots[:2], "--npart-min", "2", "-o", output, "--overwrite", capsys=capsys)[0] == 0
    assert {name: (tmp_path / name).read_bytes() for name in first} == first  # the same bytes again
    assert os.stat(tmp_path / "cat_007.hdf5").st_mtime_ns != stamps["cat_007.hdf5"]


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (["fof"], ["fof", "--npart-min", "3"], "was made with --npart-min 2, but this call is with --npart-min 3"),
        (["fof"], ["fof", "--rlink", "0.02"], "was made with --b 0.2, but this call is without --b"),
        (["fof"], ["fof", "--no-ids"], "was made without --no-ids, but this call is with --no-ids"),
        (["fof"], ["fof", "--layout", "gadget4"], "has the layout native, and --layout is gadget4"),
        (["fof", "--layout", "gadget4"], ["fof", "--npart-min", "4"], "was made with --npart-min 2"),
        (["fof"], ["knn"], "was made by jztree fof, but this is jztree knn"),
        (["knn", "-k", "4"], ["knn", "-k", "5"], "was made with -k 4, but this call is with -k 5"),
        (["knn"], ["knn", "--density"], "was made without --kernel, but this call is with --kernel knn"),
        (["knn", "--density"], ["knn", "--kernel", "knn"], None),
        (
            ["knn", "--density"],
            ["knn", "--density", "--lists"],
            "was made without --lists, but this call is with --lists",
        ),
    ],
)
def test_outputs_of_other_options_are_not_reused(
    first, second, message, snapshots, tmp_path, monkeypatch, capsys
) -> None:
    output = ["-o", str(tmp_path / "out_{n}.hdf5")]
    default = {"fof": ["--npart-min", "2"], "knn": []}
    assert run(first[0], snapshots[0], *default[first[0]], *first[1:], *output, capsys=capsys)[0] == 0
    before = (tmp_path / "out_007.hdf5").read_bytes()
    monkeypatch.setattr(io.Snapshot, "read", lambda *_: pytest.fail("particles were read"))
    status, out, err = run(second[0], snapshots[0], *default[second[0]], *second[1:], *output, capsys=capsys)
    if message is None:
        assert (status, "is skipped" in out) == (0, True)
    else:
        assert (status, len(err.splitlines())) == (2, 1)
        assert message in err, err
        assert "out_007.hdf5 exists already, but" in err
        assert "write it again with --overwrite, or give another name." in err
    assert (tmp_path / "out_007.hdf5").read_bytes() == before


def test_the_order_of_attached_types_makes_no_difference(snapshots) -> None:
    single, second = (
        made_with(parse(["fof", "--attach", types]), Path(snapshots[0]), None) for types in ("0,4", "4,0")
    )
    assert single == second


def test_outputs_of_other_snapshots_are_not_reused(snapshots, tmp_path, write_gadget, capsys) -> None:
    arguments = ["fof", "--npart-min", "2", "-o", str(tmp_path / "out_{n}.hdf5")]
    second = tmp_path / "other" / "snap_007.hdf5"
    second.parent.mkdir()
    second.write_bytes(Path(snapshots[0]).read_bytes())
    assert run(*arguments, snapshots[0], capsys=capsys)[0] == 0
    assert run(*arguments, str(second), capsys=capsys)[0] == 0  # a copy with another date
    with h5py.File(second, "a") as file:
        file["PartType1/Coordinates"][7, 2] += 1e-3
    status, _, err = run(*arguments, str(second), capsys=capsys)
    assert (status, "was made from another snapshot" in err) == (2, True)
    with h5py.File(tmp_path / "out_007.hdf5", "a") as file:
        del file["FriendsOfFriends"].attrs["made_with"]
    status, _, err = run(*arguments, snapshots[0], capsys=capsys)
    assert (status, "does not have the options that it was made with" in err) == (2, True)
    assert run(*arguments, snapshots[0], "--overwrite", capsys=capsys)[0] == 0
    assert "is skipped" in run(*arguments, snapshots[0], capsys=capsys)[1]


@pytest.mark.long
def test_pictures_are_finished_with_their_catalogue(snapshots, tmp_path, capsys) -> None:
    catalogue, picture = tmp_path / "c_007.hdf5", tmp_path / "p_007.png"
    arguments = ["fof", snapshots[0], "-o", str(tmp_path / "c_{n}.hdf5"), "--plot", str(tmp_path / "p_{n}.png")]
    assert run(*arguments, capsys=capsys)[0] == 0
    assert "c_007.hdf5 and" in run(*arguments, capsys=capsys)[1]
    os.utime(picture, ns=(0, catalogue.stat().st_mtime_ns - 1))  # as if the catalogue were newer than the picture
    assert "is skipped" not in run(*arguments, capsys=capsys)[1]
    assert picture.stat().st_mtime_ns >= catalogue.stat().st_mtime_ns


def test_output_names_contain_the_snapshot_name(snapshots, tmp_path, capsys) -> None:
    status, out, _ = run("knn", *snapshots[:2], "-k", "3", "-o", str(tmp_path / "k_{name}.hdf5"), capsys=capsys)
    assert status == 0
    assert all(f"\n\n{name}\n" in out for name in snapshots[:2])
    assert io.read_neighbours(tmp_path / "k_snap_008.hdf5").distances.shape == (408, 3)


def test_files_of_one_snapshot_are_one(write_parts, tmp_path, random, capsys) -> None:
    parts = write_parts(random.random((300, 3), np.float32), [100])
    output = str(tmp_path / "c_{n}.hdf5")
    status, out, _ = run("fof", *map(str, parts), "--json", "-o", output, capsys=capsys)
    assert status == 0
    (line,) = out.splitlines()
    assert json.loads(line)["particles"] == 300
    assert (tmp_path / "c_003.hdf5").exists()


def test_file_names_that_are_not_valid_utf8(snapshots, tmp_path, capsys) -> None:
    odd = os.fsdecode(bytes(tmp_path) + b"/odd\xff_7.hdf5")
    os.rename(snapshots[0], odd)
    output = str(tmp_path / "c.hdf5")
    assert run("fof", odd, "-v", "--npart-min", "2", "-o", output, capsys=capsys)[0] == 0
    assert io.read_catalogue(output)[2].source == "odd\\udcff_7.hdf5"
    status, _, err = run("fof", os.fsdecode(bytes(tmp_path) + b"/none\xff\n.hdf5"), capsys=capsys)
    assert (status, len(err.splitlines())) == (2, 1)
    assert "none\\udcff\\n.hdf5" in err


def test_number_placeholder_without_a_number_raises(snapshot, capsys) -> None:
    status, _, err = run("fof", str(snapshot), "-o", "c_{n}.hdf5", capsys=capsys)
    assert (status, "has no number for {n}" in err) == (2, True)


# Messages


def test_dry_run_writes_nothing(snapshots, tmp_path, capsys) -> None:
    before = sorted(os.listdir(tmp_path))
    for command in (["fof"], ["knn", "-k", "4"]):
        output = str(tmp_path / "out_{n}.hdf5")
        status, out, _ = run(*command, *snapshots[:2], "-o", output, "--dry-run", capsys=capsys)
        assert status == 0
        assert "out_007.hdf5" in out
        assert "fits" in out
    assert sorted(os.listdir(tmp_path)) == before
    status, out, _ = run("fof", snapshots[0], "--dry-run", "--json", capsys=capsys)
    facts = json.loads(out)
    assert facts["particles"] == 407
    assert 407 * 12 < facts["bytes_a_device"] < 407 * 200
    assert facts["seconds"] > 0


def test_summary_for_scripts(tmp_path, capsys) -> None:
    status, out, err = run("fof", "sample", "--json", "-o", str(tmp_path / "c.hdf5"), capsys=capsys)
    assert (status, err) == (0, "")
    summary = json.loads(out)
    cata, _, info = io.read_catalogue(tmp_path / "c.hdf5")
    assert summary["groups"] == cata.ngroups
    assert summary["linking_length"] == info.linking_length
    assert summary["largest"]["count"] == np.asarray(cata.count[:10]).tolist()
    assert summary["units"] == {"length": "Mpc/h", "mass": "1e10 Msun/h", "velocity": "km/s"}
    assert set(summary["seconds"]) >= {"load JAX", "find groups", "write the catalogue"}
    status, out, _ = run("knn", "sample", "--json", "--density", capsys=capsys)
    summary = json.loads(out)
    assert (summary["density"]["median"] > 0, summary["k"], "last_distance" in summary) == (True, 8, False)
    status, out, _ = run("info", "--json", capsys=capsys)
    assert json.loads(out)["devices"]


def test_numbers_of_a_column_have_equal_decimals() -> None:
    assert _report.column([48.695713, 0.033304643, -2.4]) == ["48.6957", "0.0333", "-2.4000"]
    assert _report.column(np.asarray([11823.5, 2834.85], np.float32)) == ["11823.5", "2834.9"]
    assert _report.column([1.5e13, 2e9]) == ["1.50000e+13", "2.00000e+09"]
    assert _report.column([0.0]) == ["0.00000"]
    assert _report.column([]) == []


def test_quiet_prints_nothing(snapshots, tmp_path, capsys) -> None:
    status, out, err = run("fof", snapshots[0], "-q", "-o", str(tmp_path / "c.hdf5"), capsys=capsys)
    assert (status, out, err) == (0, "", "")


def test_verbose_output_has_additional_information(snapshots, capsys) -> None:
    normal = run("fof", snapshots[0], "--properties", capsys=capsys)[1]
    words = "masses and radii of spheres, vmax, rmax, concentration and spin, because the snapshot has no Omega0"
    assert f"left out: {words}" in normal
    status, verbose, err = run("fof", snapshots[0], "-v", capsys=capsys)
    assert (status, err) == (0, "")
    for line in (
        r"versions +jztree [\d.]+, jax [\d.]+",
        r"CPU library +/.*libjztree_cpu.*, \d+ threads",
        r"instruction set +\S+",
        r"devices +1 \(\S+( \S+)*\)",
        r"files +1 \([\d.]+ kiB\), the first is .*snap_007.hdf5",
        r"particle types +407 of type 1",
        r"type 1 +pos float32 \(3\), mass 2.5 each, id uint32",
        r"cosmology +unknown",
        r"open the snapshot +\d+\.\d+ s",
        r"memory peak +\d.* [MG]iB \(this process\)(, \d.* \([^)]*\))*",
    ):
        assert re.search(f"^  {line}$", verbose, re.MULTILINE), line
        assert not re.search(f"^  {line}$", normal, re.MULTILINE)
    for name in ("read the snapshot", "compile", "find groups", "find properties", "order the catalogue"):
        assert re.search(rf"^  {name} +\d+\.\d+ s", normal, re.MULTILINE), name
    status, out, err = run("fof", snapshots[0], "-v", "--json", capsys=capsys)
    assert (status, err, len(out.splitlines())) == (0, "", 1)
    assert json.loads(out)["particles"] == 407


@pytest.mark.slow
def test_verbose_output_reports_communication(snapshots, use_devices, capsys) -> None:
    use_devices(2)
    status, out, err = run("fof", snapshots[0], "-v", "--npart-min", "2", "--b", "0.5", capsys=capsys)
    assert (status, err) == (0, "")
    sent = re.search(r"^  rows sent: (.*)$", out, re.MULTILINE)
    ghosts = int(re.search(r"(\d+) \(ghosts\)", sent[1])[1])
    assert 0 < ghosts < 407
    assert re.search(r"find groups .* 2 devices, \d+\.\d+ s of it compiling$", out, re.MULTILINE)
    assert re.search(r"rounds of joining groups across devices: [1-9]", out)


def test_times_that_overlap_count_once() -> None:
    spans = [(1.0, 4.0), (2.0, 3.0), (3.5, 5.0), (7.0, 8.0), (7.0, 7.5)]
    assert _verbose._covered(spans) == 5.0
    assert _verbose._covered([]) == 0.0


# Other kinds of input and output


def test_points_of_a_numpy_file(tmp_path, random, capsys) -> None:
    pos = random.random((500, 3)) * 50
    np.save(tmp_path / "points.npy", pos)
    output = tmp_path / "c.hdf5"
    arguments = ("--boxsize", "50,50,50", "--npart-min", "2", "-o", str(output))
    assert run("fof", str(tmp_path / "points.npy"), *arguments, capsys=capsys)[0] == 0
    _, _, info = io.read_catalogue(output)
    assert info.linking_length == pytest.approx(0.2 * 50 / 500 ** (1 / 3))


def test_catalogues_in_other_layouts(tmp_path, capsys) -> None:
    native, gadget, swift, back = (str(tmp_path / f"{name}.hdf5") for name in ("native", "gadget", "swift", "back"))
    assert run("fof", "sample", "-o", native, capsys=capsys)[0] == 0
    assert run("fof", "sample", "-o", gadget, "--layout", "gadget4", capsys=capsys)[0] == 0
    assert run("convert", native, "-o", back, "--layout", "gadget4", capsys=capsys)[0] == 0
    assert Path(back).read_bytes() == Path(gadget).read_bytes()
    assert run("convert", gadget, "-o", swift, "--layout", "swift", capsys=capsys)[0] == 0
    want = io.read_catalogue(native)[0]
    for path in (gadget, swift):
        result, _, info = io.read_catalogue(path)
        np.testing.assert_array_equal(result.count, want.count)
        per_h = info.header.hubble if path == swift else 1.0  # SWIFT units do not contain h
        np.testing.assert_allclose(result.com_pos * per_h, want.com_pos, rtol=1e-5)
        # Pictures use the units of the snapshot.
        args = parse(["plot", "halos", "sample", "--catalogue", path])
        shown = drawn.groups_of(args, io.read_catalogue(native)[2].header).catalogue
        np.testing.assert_allclose(shown.com_pos, want.com_pos, rtol=1e-5)
    with h5py.File(gadget) as file:
        np.testing.assert_array_equal(file["Group/GroupLen"][:], want.count)


def test_layouts_that_cannot_hold_the_catalogue_are_refused_early(snapshot, tmp_path, monkeypatch, capsys) -> None:
    native, output = str(tmp_path / "native.hdf5"), str(tmp_path / "c.hdf5")
    assert run("fof", str(snapshot), "--npart-min", "2", "-o", native, capsys=capsys)[0] == 0
    np.save(tmp_path / "flat.npy", np.ones((50, 2)))
    flat = [str(tmp_path / "flat.npy"), "--boxsize", "2"]
    monkeypatch.setattr(io.Snapshot, "read", lambda *_: pytest.fail("particles were read"))
    for arguments, message in (
        (["fof", str(snapshot), "--layout", "swift"], "needs the units"),
        (["fof", str(snapshot), "--layout", "swift", "--dry-run"], "needs the units"),
        (["fof", *flat, "--layout", "gadget4"], "needs three dimensions, but the groups have 2"),
        (["convert", native, "--layout", "swift"], "needs the units"),
    ):
        status, _, err = run(*arguments, "-o", output, capsys=capsys)
        assert (status, message in err) == (2, True), err
        assert not Path(output).exists()
    assert run("fof", str(snapshot), "--layout", "swift", "--dry-run", capsys=capsys)[0] == 0  # nothing is written


def test_snapshots_in_other_formats(snapshots, tmp_path, capsys) -> None:
    arrays, copy = str(tmp_path / "a.npz"), str(tmp_path / "copy.hdf5")
    assert run("convert", snapshots[0], "-o", arrays, capsys=capsys)[0] == 0
    assert run("convert", arrays, "-o", copy, capsys=capsys)[0] == 0
    want, header = io.read_snapshot(snapshots[0], fields=("pos", "id"))
    part, again = io.read_snapshot(copy, fields=("pos", "id"))
    np.testing.assert_array_equal(part.pos, want.pos)
    np.testing.assert_array_equal(part.id, want.id)
    assert again.boxsize == header.boxsize
    with h5py.File(tmp_path / "odd.hdf5", "w") as file:
        file["xyz"] = want.pos
    assert run("convert", str(tmp_path / "odd.hdf5"), "--pos", "xyz", "-o", copy, capsys=capsys)[0] == 0
    np.testing.assert_array_equal(io.read_snapshot(copy, fields=("pos",))[0].pos, want.pos)
    status, _, err = run("convert", snapshots[0], "-o", copy, "--layout", "swift", capsys=capsys)
    assert (status, "is a snapshot, but --layout is swift; use gadget4 or numpy." in err) == (2, True)
    for wrong, message in (
        ("a.npy", "give it a name in .npz."),
        ("a.txt", "would be an HDF5 file; give it a name in .hdf5"),
    ):
        status, _, err = run("convert", snapshots[0], "-o", str(tmp_path / wrong), capsys=capsys)
        assert (status, message in err, (tmp_path / wrong).exists()) == (2, True, False)
    status, out, _ = run("convert", arrays, "-o", copy, "--dry-run", "--json", capsys=capsys)
    assert json.loads(out) == {"input": arrays, "output": copy, "layout": "gadget4"}
    status, _, err = run("convert", snapshots[0], capsys=capsys)
    assert (status, "convert needs an input file" in err) == (2, True)


def test_snapshots_of_gadget_are_per_h(tmp_path, random, capsys) -> None:
    units = {"unit_length_in_cm": 3.0e24, "unit_mass_in_g": 2.0e43, "unit_velocity_in_cm_per_s": 1.0e5}
    header = io.SnapshotHeader(boxsize=10.0, hubble=0.5, omega0=0.3, comoving=True, h_free=True, **units)
    free, per_h = tmp_path / "free.hdf5", tmp_path / "per_h.hdf5"
    part = ParticleData(pos=10 * random.random((50, 3)), mass=4.0, vel=random.normal(size=(50, 3)))
    io.write_snapshot(free, part, header)
    assert run("convert", str(free), "-o", str(per_h), capsys=capsys)[0] == 0
    again, result = io.read_snapshot(per_h, fields=("pos", "mass", "vel"))
    assert (result.h_free, result.boxsize, again.mass) == (False, 5.0, 2.0)
    np.testing.assert_allclose(again.pos, part.pos / 2)
    np.testing.assert_array_equal(again.vel, part.vel)


@pytest.mark.long
def test_attached_types_and_properties(tmp_path, random, capsys) -> None:
    path, output = tmp_path / "snap_001.hdf5", tmp_path / "c.hdf5"
    sizes, masses = {0: 3000, 1: 4000, 4: 500}, {0: 0.3, 1: 1.5, 4: 0.1}
    centres, types = random.random((6, 3)), {}
    for ptype, num in sizes.items():
        pos = centres[random.integers(0, 6, num)] * 10 + random.normal(0, 0.1, (num, 3))
        types[ptype] = {
            "Coordinates": (pos % 10).astype(np.float32),
            "Velocities": random.normal(0, 100, (num, 3)).astype(np.float32),
            "ParticleIDs": np.arange(num, dtype=np.uint64) + 10000 * ptype,
        }
    table = np.asarray([masses.get(ptype, 0.0) for ptype in range(6)])
    write_types(path, headers.COSMOLOGY | {"BoxSize": 10.0, "MassTable": table}, types)
    arguments = ("--attach", "all", "--properties", "-o", str(output), "--layout", "gadget4", "--json")
    status, out, err = run("fof", str(path), *arguments, capsys=capsys)
    assert status == 0, err
    largest = json.loads(out)["largest"]
    with h5py.File(output) as file:
        by_type, length = file["Group/GroupLenType"][:], file["Group/GroupLen"][:]
        mass, mass_type = file["Group/GroupMass"][:], file["Group/GroupMassType"][:]
        np.testing.assert_array_equal(by_type.sum(axis=1), length)
        assert by_type[:, [0, 1, 4]].sum() > 7000
        np.testing.assert_allclose(mass_type.sum(axis=1), mass, rtol=1e-5)
        np.testing.assert_allclose(mass_type[:, 4], by_type[:, 4] * 0.1, rtol=1e-5)
        np.testing.assert_allclose(file["Group/Group_M_Crit200"][:10], largest["m200c"])
    # The mean density of matter in the box, at redshift 1.
    mean = sum(sizes[ptype] * masses[ptype] for ptype in sizes) / 1000
    critical = mean / 0.3 * (0.3 + 0.7 / 8)
    radius, inside = np.asarray(largest["r200c"]), np.asarray(largest["m200c"])
    np.testing.assert_allclose(inside / (4 / 3 * np.pi * radius**3), 200 * critical, rtol=1e-4)
