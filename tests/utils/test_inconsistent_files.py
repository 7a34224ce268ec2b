"""Files that are complete but inconsistent, alone or together."""

import os
import re
import shutil
from pathlib import Path

import h5py
import jax
import numpy as np
import pytest
from test_catalogues import full_content

from jztree.data import ParticleData
from jztree_utils import cli, io


@pytest.mark.parametrize("ndev", [1, 4])
@pytest.mark.parametrize(
    ("column", "what"), [("Coordinates", "positions"), ("Masses", "masses"), ("Velocities", "velocities")]
)
def test_nonfinite_value_names_row_file_and_type(
    tmp_path, write_gadget, random, error_of, use_devices, ndev, column, what
) -> None:
    """The row is of an attached type, in the second of two files, and is counted within that file."""
    for part in range(2):
        pos = random.random((50, 3), np.float32)
        stars = {"Coordinates": pos.copy(), "Masses": pos[:, 0].copy(), "Velocities": pos.copy()}
        if part == 1:
            stars[column][33] = np.nan
        path = tmp_path / f"snap.{part}.hdf5"
        columns = {"Velocities": pos, **{f"/PartType4/{name}": rows for name, rows in stars.items()}}
        counts = {"NumPart_ThisFile": [0, 50, 0, 0, 50, 0], "NumPart_Total": [0, 100, 0, 0, 100, 0]}
        write_gadget(path, pos, num_files=2, columns=columns, header=counts)
    use_devices(ndev)
    err = error_of("fof", tmp_path, "--attach", "all", "--b", "0.3")
    assert f"Row 33 of the {what} of type 4 in {tmp_path}/snap.1.hdf5 is NaN or infinite" in err


# Parts


@pytest.fixture
def parts(write_parts, random) -> list[Path]:
    return write_parts(random.random((60, 3)), (20, 40), ParticleIDs=np.arange(60))


@pytest.mark.parametrize("put", [shutil.copyfile, os.link, os.symlink])
def test_duplicate_part(parts, error_of, put) -> None:
    parts[2].unlink()
    put(parts[1], parts[2])
    assert f"{parts[1]} and {parts[2]} are copies of the same file" in error_of("fof", parts[0])


@pytest.mark.parametrize("rows", [20, 30])
def test_part_that_repeats_particles_of_another(write_parts, random, tmp_path, rows) -> None:
    """The files differ, so identifiers are needed to detect it; the identifiers of files without any are zeros."""
    ids = np.concatenate([np.arange(20), np.arange(rows), np.arange(40, 60)])
    pos, cuts = random.random((len(ids), 3)), (20, 20 + rows)
    parts = write_parts(pos, cuts, ParticleIDs=ids)
    words = re.escape(f"{parts[0]} and {parts[1]} hold the same particles, starting with identifier 0;")
    with pytest.raises(io.SnapshotError, match=words):
        io.read_snapshot(tmp_path, fields=("id",))
    snapshot = io.open_snapshot(tmp_path)
    with pytest.raises(io.SnapshotError, match=words):
        snapshot.read("id", 0, 36)
    np.testing.assert_array_equal(snapshot.read("id", 1, 36), ids[1:36])
    write_parts(pos, cuts, ParticleIDs=0 * ids)
    assert not io.read_snapshot(tmp_path, fields=("id",))[0].id.any()


def test_parts_without_particles_may_be_identical(parts, tmp_path, write_gadget) -> None:
    for number in (1, 2):
        write_gadget(parts[number], np.zeros((0, 3)), total=20, num_files=3)
    with h5py.File(parts[0], "a") as file:
        file["Header"].attrs["NumPart_Total"] = np.asarray([0, 20, 0, 0, 0, 0], np.uint32)
    assert io.open_snapshot(tmp_path).num == 20


def test_parts_of_different_times_and_boxes(parts, error_of) -> None:
    for name, value in (("Redshift", 0.5), ("Time", 0.25), ("BoxSize", 2.0)):
        with h5py.File(parts[1], "a") as file:
            before = file["Header"].attrs[name]
            file["Header"].attrs[name] = value
        assert f"belong to different snapshots, because the {name.lower()} is {value} in one" in error_of(
            "fof", parts[0]
        )
        with h5py.File(parts[1], "a") as file:
            file["Header"].attrs[name] = before


def test_two_parts_with_the_same_number(parts, error_of) -> None:
    second = parts[1].with_name("snap_003.01.hdf5")
    shutil.copyfile(parts[1], second)
    assert "have the same part number; remove one of them" in error_of("fof", parts[0])


# Boxes


@pytest.mark.parametrize("count", [2, 4])
def test_box_with_wrong_number_of_lengths(snapshot, tmp_path, error_of, count) -> None:
    lengths = ",".join(["1"] * count)
    words = f"have 3 coordinates, but the box has {count} lengths"
    for command in (["fof"], ["knn"], ["convert"], ["plot", "density"]):
        err = error_of(
            *command, snapshot, f"--boxsize={lengths}", "-o", tmp_path / "out.png" if "plot" in command else "c.hdf5"
        )
        assert words in err
        assert "or 3 (--boxsize)." in err
    assert io.open_snapshot(snapshot, options=io.ReadOptions(boxsize=(1, 1, 1))).header.boxsize == 1.0
    flat = np.random.default_rng(1).random((20, 2))
    np.savez(tmp_path / "flat.npz", pos=flat, boxsize=[1.0] * 3)
    assert "have 2 coordinates, but the box has 3 lengths" in error_of("fof", tmp_path / "flat.npz")
    with pytest.raises(ValueError, match="has 3 lengths, but the positions have 2 coordinates"):
        io.write_snapshot(tmp_path / "w.hdf5", ParticleData(pos=flat), io.SnapshotHeader(boxsize=(1.0, 2.0, 3.0)))


# Identifiers


@pytest.mark.parametrize("ndev", [1, pytest.param(4, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kinds", [("u4", "u8"), ("u8", "u8"), ("i8", "i8"), ("u4", "i8"), ("i4", "u4")])
def test_identifiers_of_64_bits_survive(tmp_path, write_gadget, random, use_devices, ndev, kinds) -> None:
    """They survive reading, attaching, writing and reading again, without JAX's 64-bit mode."""
    use_devices(ndev)
    start = {"u4": 2**32 - 100, "i4": -20, "u8": 2**63 + 2**40, "i8": -(2**40)}
    ids = [np.asarray([start[kind] + 41 * place + row for row in range(41)], kind) for place, kind in enumerate(kinds)]
    columns = {"ParticleIDs": ids[0], "/PartType4/ParticleIDs": ids[1]}
    columns["/PartType4/Coordinates"] = random.random((41, 3))
    counts = np.asarray([0, 41, 0, 0, 41, 0])
    path = write_gadget(
        tmp_path / "a.hdf5",
        random.random((41, 3)),
        columns=columns,
        header={"NumPart_ThisFile": counts, "NumPart_Total": counts},
    )
    arguments = ["--b", "0.9", "--npart-min", "1", "--attach", "4", "-q", "-o", str(tmp_path / "c.hdf5")]
    assert cli.main(["fof", str(path), *arguments]) == 0
    result = io.read_catalogue(tmp_path / "c.hdf5")[1]
    assert sorted(result.tolist()) == sorted(ids[0].tolist() + ids[1].tolist())
    assert cli.main(["convert", str(path), "--type", "4", "-q", "-o", str(tmp_path / "s.npz")]) == 0
    assert cli.main(["knn", str(tmp_path / "s.npz"), "-q", "-o", str(tmp_path / "k.hdf5")]) == 0
    np.testing.assert_array_equal(io.read_neighbours(tmp_path / "k.hdf5").id, ids[1])


def test_identifiers_without_a_common_integer_type(tmp_path, write_gadget, random, error_of, use_devices) -> None:
    columns = {"ParticleIDs": np.arange(9), "/PartType4/ParticleIDs": np.arange(9, dtype=np.uint64) + 9}
    columns["/PartType4/Coordinates"] = random.random((9, 3))
    counts = {"NumPart_ThisFile": [0, 9, 0, 0, 9, 0], "NumPart_Total": [0, 9, 0, 0, 9, 0]}
    path = write_gadget(tmp_path / "a.hdf5", random.random((9, 3)), columns=columns, header=counts)
    for ndev in (1, 4):
        use_devices(ndev)
        err = error_of("fof", path, "--attach", "4", "-o", tmp_path / "c.hdf5")
        assert "The identifiers are int64 in type 1 and uint64 in type 4, but no integer dtype holds both" in err


def test_integers_that_jax_would_truncate(tmp_path) -> None:
    ids = np.arange(4) + 2**40
    mesh = jax.make_mesh((1,), ("devices",), devices=jax.devices()[:1])
    with pytest.raises(ValueError, match="but JAX keeps only 32 bits"):
        io.shard_rows(lambda start, stop: ids[start:stop], 4, mesh)
    with pytest.raises(ValueError, match="but JAX keeps only 32 bits"):
        io.distr_write_hdf5(tmp_path / "a", {"id": ids})
    assert os.listdir(tmp_path) == []


# Input that must not be lost


def test_files_referenced_by_a_snapshot_are_not_overwritten(tmp_path, write_gadget, random, error_of) -> None:
    path = write_gadget(tmp_path / "all.hdf5", random.random((30, 3)))
    source = tmp_path / "rows.hdf5"
    with h5py.File(path, "a") as file, h5py.File(source, "w") as second:
        second["x"] = file["PartType1/Coordinates"][()]
        del file["PartType1/Coordinates"]
        layout = h5py.VirtualLayout((30, 3), "f8")
        layout[:] = h5py.VirtualSource("rows.hdf5", "x", (30, 3))
        file.create_virtual_dataset("PartType1/Coordinates", layout)
    for command in ("fof", "knn", "convert"):
        assert "would overwrite a file of the input" in error_of(command, path, "-o", source)


def test_parts_of_a_catalogue_are_not_overwritten(tmp_path, error_of) -> None:
    for number in range(2):
        io.write_catalogue_content(tmp_path / f"fof.{number}.hdf5", full_content(), "gadget4")
    for number in range(2):
        err = error_of("convert", tmp_path / "fof.0.hdf5", "-o", tmp_path / f"fof.{number}.hdf5")
        assert "would overwrite a file of the input" in err
