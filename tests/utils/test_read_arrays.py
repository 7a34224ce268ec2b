"""Positions in NumPy files, in named datasets of any HDF5 file, and in the binary formats of Gadget."""

import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree_utils import io
from jztree_utils.io import _columns

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("small_slices")]


# NumPy


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("dtype", ["<f4", ">f4", "<f8", ">f8"])
def test_array_in_any_order(tmp_path, random, dtype, order) -> None:
    pos = np.asarray(random.random((50, 3)), dtype, order=order)
    np.save(tmp_path / "a.npy", pos)
    snapshot = io.open_snapshot(tmp_path / "a.npy")
    np.testing.assert_array_equal(snapshot.read("pos"), pos)
    np.testing.assert_array_equal(snapshot.read("pos", 13, 44), pos[13:44])
    assert snapshot.read("pos").dtype == np.dtype(dtype).newbyteorder("=")
    assert snapshot.description == "NumPy array: 50 particles, no box"
    assert snapshot.present(("pos",), ("vel", "mass", "id")) == ["pos"]


def test_published_array_of_two_dimensions(shared_data) -> None:
    path = shared_data / "pos2d_cosmo_128_100.npy"
    part, header = io.read_snapshot(path, fields=("pos",), options=io.ReadOptions(boxsize=100))
    np.testing.assert_array_equal(part.pos, np.load(path))
    assert (header.boxsize, part.num) == (100.0, 128**2)


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
@pytest.mark.parametrize("order", ["C", "F"])
def test_archive(tmp_path, random, save, order) -> None:
    columns = {
        "Positions": np.asarray(random.random((90, 2)), np.float32, order=order),
        "velocity": np.asarray(random.normal(size=(90, 2)), ">f8", order=order),
        "Particle_IDs": random.integers(0, 2**63, 90),
        "mass": np.float64(2.5),
        "BoxSize": np.asarray([1, 2]),
        "colour": np.zeros(3),
    }
    save(tmp_path / "a.npz", **columns)
    snapshot = io.open_snapshot(tmp_path / "a.npz")
    for name, key in (("pos", "Positions"), ("vel", "velocity"), ("id", "Particle_IDs")):
        np.testing.assert_array_equal(snapshot.read(name), columns[key])
        np.testing.assert_array_equal(snapshot.read(name, 70, 90), columns[key][70:])
    assert snapshot.shared_mass == snapshot.read("mass") == 2.5
    assert snapshot.description == "NumPy archive: 90 particles, box 1 x 2"


def test_arrays_of_an_archive_can_be_named(tmp_path, random, refused) -> None:
    a, b = random.random((9, 3)), random.random((9, 3))
    np.savez(tmp_path / "a.npz", pos=a, coords=b, ids=np.arange(9), L=7.0)
    with refused("holds pos and coords, which could both be pos"):
        io.open_snapshot(tmp_path / "a.npz")
    with refused("has no array x; it holds L, coords, ids, pos"):
        io.open_snapshot(tmp_path / "a.npz", options=io.ReadOptions(pos="x"))
    part, header = io.read_snapshot(
        tmp_path / "a.npz", fields=("pos", "id"), options=io.ReadOptions(pos="coords", boxsize=7)
    )
    np.testing.assert_array_equal(part.pos, b)
    assert header.boxsize == 7.0
    with refused("has no recognised velocities; it holds coords, ids"):
        io.read_snapshot(tmp_path / "a.npz", options=io.ReadOptions(pos="coords"), fields=("vel",))
    with refused("no particles of type 0; it holds 9 of type 1"):
        io.open_snapshot(tmp_path / "a.npz", 0, io.ReadOptions(pos="coords"))


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros((5, 3), np.float16), "of dtype float16; it must be float32 or float64"),
        (np.zeros((5, 3), np.int64), "of dtype int64; it must be float32 or float64"),
        (np.zeros((5, 3), np.uint32), "of dtype uint32; it must be float32 or float64"),
        (np.zeros((5, 3), complex), "it must be float32 or float64"),
        (np.zeros((5, 3), np.longdouble), "it must be float32 or float64"),
        (np.zeros(5), "of shape (5,); it must be (n, d)"),
        (np.zeros((3, 20)), "of shape (3, 20); it must be (n, d)"),
        (np.float32(1.0), "of shape (); it must be (n, d)"),
        (np.zeros((0, 3)), "of shape (0, 3); it must have at least one row"),
        (np.asarray([{"x": 1}]), "Python objects"),
        (np.zeros(4, [("x", "f4"), ("y", "f4")]), "it must be float32 or float64"),
    ],
)
def test_arrays_that_are_not_positions_raise(tmp_path, refused, array, message) -> None:
    np.save(tmp_path / "a.npy", array)
    np.savez(tmp_path / "a.npz", pos=array)
    for name in ("a.npy", "a.npz"):
        with refused(message):
            io.read_snapshot(tmp_path / name, fields=("pos",))


@pytest.mark.parametrize("archive", [False, True])
def test_arrays_longer_than_their_header_states(tmp_path, random, archive) -> None:
    """This happens if a bit of the number of rows flips: the other rows exist, and would be ignored."""
    np.save(tmp_path / "a.npy", random.random((60, 3)))
    data = (tmp_path / "a.npy").read_bytes().replace(b"(60, 3)", b"(6 , 3)")
    path = tmp_path / ("b.npz" if archive else "a.npy")
    if archive:
        with zipfile.ZipFile(path, "w") as file:
            file.writestr("pos.npy", data)
    else:
        path.write_bytes(data)
    with pytest.raises(
        io.SnapshotError, match=rf"truncated or damaged .* has {len(data)} bytes, but according to its header 272"
    ):
        io.open_snapshot(path)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "b.npz"])
def test_numpy_files_truncated_at_any_length(tmp_path, random, name) -> None:
    pos = random.random((40, 3))
    np.save(tmp_path / "a.npy", pos)
    np.savez(tmp_path / "a.npz", pos=pos)
    np.savez_compressed(tmp_path / "b.npz", pos=pos)
    content = (tmp_path / name).read_bytes()
    for length in range(0, len(content) - 1, len(content) // 40):
        (tmp_path / name).write_bytes(content[:length])
        with pytest.raises(io.SnapshotError, match=name):
            io.read_snapshot(tmp_path / name, fields=("pos",))


@pytest.mark.parametrize(
    "head",
    [
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3)!}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3)",
        "{'descr': '<f4', 'fortran_order': False, 'shape': [3, 3]}",
        "{'descr': {1}, 'fortran_order': False, 'shape': (3, 3)}",
        "{'descr': '<f4', 'fortran_order': False, 'shape': (3, 3), {}: 1}",
        "(" * 900 + ")" * 900,
        "-" * 5000 + "1",
        "",
    ],
)
def test_headers_that_do_not_describe_an_array_raise(tmp_path, head) -> None:
    """NumPy evaluates headers as Python, which can fail in many ways."""
    text = head.encode("latin1") + b"\n"
    (tmp_path / "a.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(36))
    with pytest.raises(io.SnapshotError, match="truncated or damaged") as error:
        io.read_snapshot(tmp_path / "a.npy", fields=("pos",))
    assert str(error.value).endswith(".")


def test_flipped_bytes_in_an_archive(tmp_path, random) -> None:
    np.savez_compressed(tmp_path / "a.npz", pos=random.integers(0, 9, (40, 3)) / 8)
    content = (tmp_path / "a.npz").read_bytes()
    refusals = 0
    for number in range(200):
        flipped = tmp_path / f"{number}.npz"  # a new name: file systems wait for the disk if a name is reused
        data = bytearray(content)
        data[random.integers(4, len(data))] ^= 1 << int(random.integers(8))
        flipped.write_bytes(bytes(data))
        try:
            io.read_snapshot(flipped, fields=("pos",))
        except io.SnapshotError:
            refusals += 1
    assert refusals > 100


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize("name", ["a.npy", "a.npz"])
def test_a_few_rows_of_a_large_array_need_little_memory(tmp_path, monkeypatch, order, name) -> None:
    monkeypatch.setattr(_columns, "_SLICE_BYTES", 1 << 15)
    monkeypatch.setattr(zipfile.ZipExtFile, "MAX_SEEK_READ", 1 << 15)
    pos = np.asarray(np.arange(600_000.0).reshape(-1, 3), order=order)
    if name == "a.npy":
        np.save(tmp_path / name, pos)
    else:
        np.savez_compressed(tmp_path / name, pos=pos)
    tracemalloc.start()
    rows = io.open_snapshot(tmp_path / name).read("pos", 150_000, 150_100)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    np.testing.assert_array_equal(rows, pos[150_000:150_100])
    assert peak < pos.nbytes / 5


def test_names_for_a_single_array_raise(tmp_path, refused) -> None:
    np.save(tmp_path / "a.npy", np.zeros((4, 3)))
    with refused("holds only one array, the positions, but names were given for vel"):
        io.open_snapshot(tmp_path / "a.npy", options=io.ReadOptions(vel="v"))


# Datasets by name


def test_named_datasets(tmp_path, random, refused) -> None:
    pos, vel = random.random((30, 2)), random.random((30, 2))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sim/points"] = pos
        file["sim/speed"] = vel
        file["sim/integers"] = np.zeros((30, 3), np.uint32)
        file["IntCoordinates"] = np.full((30, 3), 2**30, np.uint32)
        file["m"] = 0.5
    with refused("name the dataset of positions (ReadOptions(pos=...)), such as IntCoordinates, sim/integers, sim/po"):
        io.open_snapshot(tmp_path / "a.h5")
    options = io.ReadOptions(pos="sim/points", vel="/sim/speed", mass="m", boxsize=(1, 2))
    part, header = io.read_snapshot(tmp_path / "a.h5", fields=("pos", "vel", "mass"), optional=("id",), options=options)
    np.testing.assert_array_equal(part.pos, pos)
    np.testing.assert_array_equal(part.vel, vel)
    assert (part.mass, part.id, header.boxsize) == (0.5, None, (1.0, 2.0))
    described = io.open_snapshot(tmp_path / "a.h5", options=options).description
    assert described == "HDF5 dataset sim/points: 30 particles, box 1 x 2"
    with refused("no name was given for the identifiers; give one (ReadOptions(id=...))"):
        io.read_snapshot(tmp_path / "a.h5", fields=("id",), options=options)
    with refused("no dataset sim/none; its group holds integers, points, speed"):
        io.open_snapshot(tmp_path / "a.h5", options=io.ReadOptions(pos="sim/none"))
    with refused("of dtype uint32"):
        io.read_snapshot(tmp_path / "a.h5", fields=("pos",), options=io.ReadOptions(pos="sim/integers", boxsize=8))
    with refused("fractions of a box, but no box"):
        io.open_snapshot(tmp_path / "a.h5", options=io.ReadOptions(pos="IntCoordinates"))
    pos = io.open_snapshot(tmp_path / "a.h5", options=io.ReadOptions(pos="IntCoordinates", boxsize=8)).read("pos")
    np.testing.assert_array_equal(pos, np.full((30, 3), 2.0))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (np.float64(1.0), "holds sim/points of shape (); it must be (n, d)"),
        (h5py.Empty("f8"), "holds sim/points of shape (0,); it must be (n, d)"),
        (np.zeros((0, 3)), "holds sim/points of shape (0, 3); it must have at least one row"),
        (h5py.SoftLink("/none"), "holds sim/points as a link to /none, which cannot be opened"),
        (h5py.ExternalLink("b.h5", "/x"), "holds sim/points as a link to /x in the file b.h5, which cannot be opened"),
    ],
)
def test_named_positions_without_rows_raise(tmp_path, refused, content, message) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["sim/points"] = content
    with refused(message):
        io.open_snapshot(tmp_path / "a.h5", options=io.ReadOptions(pos="sim/points"))


@pytest.mark.parametrize("content", [np.zeros(7), h5py.Empty("f8")], ids=["short", "null"])
def test_named_datasets_of_different_lengths_raise(tmp_path, refused, content) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["points"], file["m"] = np.zeros((30, 3)), content
    rows = 0 if isinstance(content, h5py.Empty) else 7
    with refused(f"holds m for {rows} particles, but points has 30"):
        io.read_snapshot(tmp_path / "a.h5", fields=("mass",), options=io.ReadOptions(pos="points", mass="m"))


@pytest.mark.parametrize("name", ["Header", "PartType1", "PartType1/Coordinates"])
def test_snapshots_with_links_to_nothing_raise(snapshot, refused, name) -> None:
    with h5py.File(snapshot, "a") as file:
        del file[name]
        file[name] = h5py.ExternalLink("none.hdf5", name)
    with refused(f"holds {name} as a link to {name} in the file none.hdf5, which cannot be opened"):
        io.read_snapshot(snapshot, fields=("pos",))


def test_named_datasets_of_a_snapshot_without_its_header(snapshot) -> None:
    with h5py.File(snapshot, "a") as file:
        file["Header"].attrs["NumPart_ThisFile"] = np.asarray([0, 3], np.int32)  # wrong
    options = io.ReadOptions(format="hdf5", pos="PartType1/Coordinates", id="PartType1/ParticleIDs")
    part, header = io.read_snapshot(snapshot, fields=("pos", "id"), options=options)
    assert (part.num, header.boxsize) == (500, 1.0)


# Gadget's binary formats


def write_binary(path: Path, order: str, labelled: bool, blocks: dict[str, np.ndarray], **header: Any) -> Path:
    """Write a file of types 0 to 5 in the format of Gadget-2. header: entries other than the default ones."""
    entries = {
        "npart": [0] * 6,
        "mass": [0.0] * 6,
        "time": 0.25,
        "redshift": 3.0,
        "npart_total": [0] * 6,
        "files": 1,
        "high": [0] * 6,
    } | header
    head = struct.pack(
        f"{order}6I6d2d2i", *entries["npart"], *entries["mass"], entries["time"], entries["redshift"], 0, 0
    )
    head += struct.pack(f"{order}6I2i", *entries["npart_total"], 0, entries["files"])
    head += struct.pack(f"{order}4d2i6I", 50.0, 0.3, 0.7, 0.68, 0, 0, *entries["high"])
    with path.open("wb") as file:
        for name, rows in {"HEAD": np.frombuffer(head.ljust(256, b"\0"), "u1"), **blocks}.items():
            data = rows.astype(rows.dtype.newbyteorder(order)).tobytes()
            length = struct.pack(f"{order}I", len(data))
            if labelled:
                label = struct.pack(f"{order}I4sII", 8, name.ljust(4).encode(), len(data) + 8, 8)
                file.write(label)
            file.write(length + data + length)
    return path


@pytest.mark.parametrize("order", ["<", ">"])
@pytest.mark.parametrize("labelled", [False, True])
@pytest.mark.parametrize(("dtype", "id_dtype"), [("f4", "u4"), ("f8", "u8")])
def test_binary_snapshots(tmp_path, random, order, labelled, dtype, id_dtype) -> None:
    """Three types in two files: the second has its mass in the header, the others have individual masses."""
    npart = np.asarray([[5, 20, 0, 0, 3, 0], [2, 0, 0, 0, 40, 0]])
    columns = []
    for number, counts in enumerate(npart):
        n, own = counts.sum(), counts.sum() - counts[1]
        blocks = {
            "POS": random.random((n, 3)).astype(dtype),
            "VEL": random.normal(size=(n, 3)).astype(dtype),
            "ID": random.integers(0, 2**32, n).astype(id_dtype),
            "MASS": random.random(own).astype(dtype),
            "U": random.random(counts[0]).astype(dtype),
        }
        if labelled:  # labelled blocks may be in any order; those of Gadget keep theirs
            blocks = {"NEW": random.random(7), **blocks}
        header = {"npart": counts, "mass": [0, 1.5, 0, 0, 0, 0], "npart_total": npart.sum(axis=0), "files": 2}
        write_binary(tmp_path / f"snap_003.{number}", order, labelled, blocks, **header)
        columns.append(blocks)

    for ptype, rows in ((0, slice(0, 5)), (1, slice(5, 25)), (4, slice(25, 28))):
        snapshot = io.open_snapshot(tmp_path, ptype)
        second = {0: slice(0, 2), 1: slice(0, 0), 4: slice(2, 42)}[ptype]
        for name, block, factor in (("pos", "POS", 1), ("vel", "VEL", 0.5), ("id", "ID", 1)):
            expected = np.concatenate([columns[0][block][rows], columns[1][block][second]])
            np.testing.assert_array_equal(snapshot.read(name), expected * np.asarray(factor, expected.dtype))
            assert snapshot.read(name).dtype == expected.dtype
        energies = "internal_energy" in snapshot.present((), ("internal_energy",))
        assert energies == (ptype == 0)
        if energies:
            expected = np.concatenate([columns[0]["U"], columns[1]["U"]])
            np.testing.assert_array_equal(snapshot.read("internal_energy"), expected)
        if ptype == 1:
            assert snapshot.read("mass") == 1.5
        else:
            first = slice(0, 5) if ptype == 0 else slice(5, 8)
            np.testing.assert_array_equal(
                snapshot.read("mass"), np.concatenate([columns[0]["MASS"][first], columns[1]["MASS"][second]])
            )
    assert snapshot.types == {0: 7, 1: 20, 4: 43}
    assert (snapshot.header.boxsize, snapshot.header.omega0, snapshot.header.hubble) == (50.0, 0.3, 0.68)
    what = f"Gadget snapshot of format {2 if labelled else 1}{', big-endian' if order == '>' else ''}"
    assert snapshot.description == f"{what} in 2 files: 43 particles of type 4, box 50, z = 3"


@pytest.mark.parametrize("labelled", [False, True])
def test_energies_of_gas_follow_the_masses_of_other_types(tmp_path: Path, random: Any, labelled: bool) -> None:
    blocks = {"POS": random.random((9, 3)), "VEL": random.random((9, 3)), "ID": np.arange(9), "MASS": np.arange(5.0)}
    counts, table = [4, 0, 0, 0, 5, 0], [2.0, 0, 0, 0, 0, 0]
    header = {"npart": counts, "npart_total": counts, "mass": table}
    path = write_binary(tmp_path / "with", "<", labelled, blocks | {"U": np.arange(4.0)}, **header)
    gas = io.open_snapshot(path, 0)
    assert gas.read("mass") == 2.0
    np.testing.assert_array_equal(gas.read("internal_energy"), np.arange(4.0))
    path = write_binary(tmp_path / "without", "<", labelled, blocks | {"NEW": np.arange(9.0)}, **header)
    assert "internal_energy" not in io.open_snapshot(path, 0).present((), ("internal_energy",))


@pytest.fixture
def binary(tmp_path, random) -> Path:
    blocks = {"POS": random.random((30, 3)), "VEL": random.random((30, 3)), "ID": np.arange(30)}
    counts = [0, 30, 0, 0, 0, 0]
    return write_binary(tmp_path / "snap", "<", False, blocks, npart=counts, npart_total=counts, mass=[1.0] * 6)


def test_binary_snapshot_truncated_at_any_length(binary) -> None:
    content = binary.read_bytes()
    for length in range(0, len(content), 37):
        binary.write_bytes(content[:length])
        with pytest.raises(io.SnapshotError):
            io.read_snapshot(binary, fields=("pos", "vel", "id"))


def test_binary_snapshots_that_are_not_understood(binary, tmp_path, random, refused) -> None:
    content = binary.read_bytes()
    with refused("which has no dataset names"):
        io.open_snapshot(binary, options=io.ReadOptions(pos="POS"))
    with refused("is a binary Gadget file, but the format 'hdf5' needs an HDF5 file"):
        io.open_snapshot(binary, options=io.ReadOptions(format="hdf5"))
    length = struct.pack("<I", 168)  # Gadget-4 without GADGET2_HEADER
    binary.write_bytes(length + bytes(168) + length + content[264:])
    with refused("with a header of 168 bytes, but it must have 256 bytes, like that of Gadget-2; write it as HDF5"):
        io.open_snapshot(binary)
    counts = [0, 30, 0, 0, 0, 0]
    wrong = {"POS": random.random((29, 3))}
    with refused("has 696 bytes, but it must have 360 or 720"):
        io.open_snapshot(write_binary(tmp_path / "b", "<", True, wrong, npart=counts, npart_total=counts))
    with refused("has no recognised velocities; it holds block POS"):
        right = {"POS": random.random((30, 3))}
        path = write_binary(tmp_path / "c", "<", False, right, npart=counts, npart_total=counts)
        io.read_snapshot(path, fields=("pos", "vel"))


def test_counts_of_binary_snapshots_have_64_bits(tmp_path, random) -> None:
    counts = {"npart": [0, 4, 0, 0, 0, 0], "npart_total": [0, 4, 0, 0, 0, 0], "high": [0, 3, 0, 0, 0, 0], "files": 9}
    path = write_binary(tmp_path / "a.0", ">", True, {"POS": random.random((4, 3))}, **counts)
    assert io.read_header(path).npart_total[1] == 3 * 2**32 + 4
