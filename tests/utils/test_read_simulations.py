"""Snapshots of Gadget-4, SWIFT and related codes: the tests write each file in the published format."""

import os
import sys
from fractions import Fraction
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree_utils import io
from jztree_utils.io import _columns

pytestmark = pytest.mark.fast


# Gadget-4 and AREPO


def write_gadget4(path: Path, datasets: dict[str, Any], num: int, config: dict[str, Any] | None = None) -> Path:
    with h5py.File(path, "w") as file:
        file.create_group("Header").attrs.update(
            {
                "BoxSize": 50.0,
                "MassTable": [0.0, 2.5],
                "NumFilesPerSnapshot": np.int32(1),
                "NumPart_ThisFile": np.asarray([0, num], np.uint64),
                "NumPart_Total": np.asarray([0, num], np.uint64),
                "Redshift": 3.0,
                "Time": 0.25,
            }
        )
        file.create_group("Parameters").attrs.update(
            {"UnitLength_in_cm": 3.085678e24, "ComovingIntegrationOn": 1, "Omega0": 0.3}
        )
        file.create_group("Config").attrs.update({"PERIODIC": ""} if config is None else config)
        group = file.create_group("PartType1")
        for name, rows in datasets.items():
            group[name] = rows
    return path


def add_integers_of_128_bits(path: Path, integers: list[list[int]]) -> None:
    kind = h5py.h5t.STD_U64LE.copy()
    kind.set_size(16)
    kind.set_precision(128)
    raw = b"".join(x.to_bytes(16, "little") for row in integers for x in row)
    array = np.frombuffer(raw, "V16").reshape(-1, 3)
    with h5py.File(path, "a") as file:
        data = h5py.h5d.create(file["PartType1"].id, b"IntCoordinates", kind, h5py.h5s.create_simple(array.shape))
        data.write(h5py.h5s.ALL, h5py.h5s.ALL, array.copy(), kind)


@pytest.mark.parametrize("bits", [32, 64, 128])
def test_integer_coordinates(tmp_path, random, small_slices, bits) -> None:
    top = 2**bits
    integers = [[0, 1, top - 1], [top // 2, top // 3, top - 2], [top - 2**9, top - top // 16, 12345]]
    integers += [[int(x * top) for x in row] for row in random.random((20, 3))]
    path = tmp_path / "a.hdf5"
    if bits == 128:
        add_integers_of_128_bits(write_gadget4(path, {}, len(integers)), integers)
    else:
        name = "IntCoordinates" if bits == 32 else "Coordinates"
        write_gadget4(path, {name: np.asarray(integers, f"u{bits // 8}")}, len(integers))
    snapshot = io.open_snapshot(path)
    pos = snapshot.read("pos")
    exact = np.asarray([[float(Fraction(x, top) * 50) for x in row] for row in integers])
    np.testing.assert_allclose(pos, exact, rtol=3e-16)
    assert snapshot.layout("pos") == (np.dtype(np.float64), (3,))
    assert pos.dtype == np.float64
    assert pos.max() < 50  # 64- and 128-bit integers near the maximum would round up to 50
    np.testing.assert_array_equal(snapshot.read("pos", 5, 17), pos[5:17])
    assert snapshot.description == "Gadget-4 snapshot: 23 particles of type 1, box 50 Mpc/h, z = 3"


def test_integer_coordinates_need_the_box_of_the_run(tmp_path, refused) -> None:
    pos = np.full((4, 3), 2**31, np.uint32)
    with refused("integer coordinates, which are fractions of a periodic box, but it has no periodic box"):
        io.open_snapshot(write_gadget4(tmp_path / "a.hdf5", {"IntCoordinates": pos}, 4, config={"SELFGRAVITY": ""}))
    with refused("of dtype int32"):
        signed = {"Coordinates": pos.astype(np.int32)}
        io.read_snapshot(write_gadget4(tmp_path / "b.hdf5", signed, 4), fields=("pos",))
    stretched = {"PERIODIC": "", "LONG_X_BITS": "2", "LONG_Z_BITS": 1}
    path = write_gadget4(tmp_path / "c.hdf5", {"IntCoordinates": pos // 8}, 4, stretched)
    part, header = io.read_snapshot(path, fields=("pos",))
    assert header.boxsize == (12.5, 50.0, 25.0)
    np.testing.assert_array_equal(part.pos, np.full((4, 3), 50 / 16))
    # Another box does not change the meaning of the integers.
    part, header = io.read_snapshot(path, fields=("pos",), options=io.ReadOptions(boxsize=(1, 2, 3)))
    assert header.boxsize == (1.0, 2.0, 3.0)
    np.testing.assert_array_equal(part.pos, np.full((4, 3), 50 / 16))


def test_velocities_in_half_precision(tmp_path, random) -> None:
    vel = random.normal(size=(5, 3)).astype(np.float16)
    path = write_gadget4(tmp_path / "a.hdf5", {"Coordinates": random.random((5, 3)), "Velocities": vel}, 5)
    part, _ = io.read_snapshot(path, fields=("pos", "vel"))
    assert part.vel.dtype == np.float32
    np.testing.assert_array_equal(part.vel, vel.astype(np.float32) * np.float32(0.5))


def test_names_and_exponents_of_eagle(tmp_path, write_gadget, random) -> None:
    vel, mass = random.normal(size=(6, 3)), random.random(6)
    header = {"Redshift": 3.0, "Time": 0.01}
    path = write_gadget(
        tmp_path / "a.hdf5", random.random((6, 3)), columns={"Velocity": vel, "Mass": mass}, header=header, ptype=4
    )
    with h5py.File(path, "a") as file:
        file["PartType4/Velocity"].attrs["aexp-scale-exponent"] = np.float32(1.5)
    part, _ = io.read_snapshot(path, 4, fields=("pos", "vel", "mass"))
    np.testing.assert_allclose(part.vel, vel / 8)
    np.testing.assert_array_equal(part.mass, mass)  # individual masses take precedence over the 2.5 in the mass table


def test_redshift_follows_from_the_scale_factor(tmp_path, write_gadget, random) -> None:
    header = {"Redshift": None, "Time": 0.25, "ComovingIntegrationOn": 1}
    assert io.read_header(write_gadget(tmp_path / "a.hdf5", random.random((2, 3)), header=header)).redshift == 3
    header = {"Redshift": None, "Time": 0.1, "Scale-factor": [0.5]}
    assert io.read_header(write_gadget(tmp_path / "c.hdf5", random.random((2, 3)), header=header)).redshift == 1
    header = {"Redshift": None, "Time": 7.5, "ComovingIntegrationOn": 0}
    snapshot = io.open_snapshot(write_gadget(tmp_path / "b.hdf5", random.random((2, 3)), header=header))
    assert snapshot.header.scale_factor == 1
    assert snapshot.description == "Gadget snapshot: 2 particles of type 1, box 1, time 7.5"


def test_types_and_descriptions(write_parts, tmp_path, random) -> None:
    paths = write_parts(random.random((40, 3)), (10, 20))
    for number, path in enumerate(paths):
        with h5py.File(path, "a") as file:
            file["Header"].attrs["NumPart_ThisFile"] = np.asarray([number, 10 + 10 * (number == 2), 0, 0, 0, 5], "i4")
            file["Header"].attrs["NumPart_Total"] = np.asarray([3, 40, 0, 0, 0, 15], np.uint32)
            file["Header"].attrs["Omega0"] = 0.3
            file["PartType5/Coordinates"] = np.full((5, 3), number)
            file["PartType5/Coordinates"].attrs["a_scaling"] = 1.0
    assert io.open_snapshot(tmp_path).types == {0: 3, 1: 40, 5: 15}
    assert io.open_snapshot(tmp_path).paths == paths
    described = io.open_snapshot(tmp_path, 5).description
    assert described == "Gadget snapshot in 3 files: 15 particles of type 5, box 1, z = 0"


def test_each_file_is_opened_once(write_parts, tmp_path, random, monkeypatch) -> None:
    paths = write_parts(random.random((40, 3)), (10, 20, 30))
    opened = []
    original = h5py.File.__init__

    def spy(self: h5py.File, name: Any, *args: Any, **kwargs: Any) -> None:
        if isinstance(name, Path):  # otherwise it is a file that is already open
            opened.append(name)
        original(self, name, *args, **kwargs)

    monkeypatch.setattr(h5py.File, "__init__", spy)
    snapshot = io.open_snapshot(paths[2])
    assert snapshot.present(("mass",), ("vel", "id")) == ["pos", "mass"]
    assert snapshot.layout("pos") == (np.dtype(np.float64), (3,))
    assert sorted(opened) == paths


def test_reading_in_slices_needs_little_memory_and_reports_progress(tmp_path, random, monkeypatch) -> None:
    import tracemalloc  # noqa: PLC0415 - slows down what runs with it

    monkeypatch.setattr(_columns, "_SLICE_BYTES", 1 << 16)
    integers = random.integers(0, 2**64, (100_000, 3), dtype=np.uint64)
    path = write_gadget4(tmp_path / "a.hdf5", {"IntCoordinates": integers, "Velocities": integers / 2.0**64}, 100_000)
    snapshot = io.open_snapshot(path)
    for name in ("pos", "vel"):
        message: list[int] = []
        tracemalloc.start()
        rows = snapshot.read(name, 7, 90_007, message.append)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < rows.nbytes + 8 * (1 << 16)
        assert sum(message) == 90_000
        assert len(message) > 30


# SWIFT

UNITS = {
    "Unit length in cgs (U_L)": [3.08567758e24],
    "Unit mass in cgs (U_M)": [1.98841e43],
    "Unit time in cgs (U_t)": [3.08567758e19],
    "Unit current in cgs (U_I)": [1.0],
    "Unit temperature in cgs (U_T)": [1.0],
}


def write_swift(
    path: Path, pos: np.ndarray, vel: np.ndarray, total: int | None = None, files: int = 1, **header: Any
) -> Path:
    """Write a file in the format of SWIFT at redshift 1, with particles of type 1 and none of the other six types."""
    n = len(pos)
    with h5py.File(path, "w") as file:
        file.create_group("Header").attrs.update(
            {
                "BoxSize": [10.0, 20.0, 30.0],
                "Code": np.bytes_("SWIFT"),
                "Dimension": [3],
                "InitialMassTable": [0, 0.125, 0, 0, 0, 0, 0],
                "MassTable": [0, 0.125, 0, 0, 0, 0, 0],
                "NumFilesPerSnapshot": np.asarray([files], np.int32),
                "NumPart_ThisFile": np.asarray([0, n, 0, 0, 0, 0, 0], np.int64),
                "NumPart_Total": np.asarray([0, n if total is None else total, 0, 0, 0, 0, 0], np.uint32),
                "NumPart_Total_HighWord": np.zeros(7, np.uint32),
                "OutputType": np.bytes_("FullVolume"),
                "Redshift": [1.0],
                "Scale-factor": [0.5],
                "Time": [0.006],
            }
            | header
        )
        file.create_group("Units").attrs.update(UNITS)
        file.create_group("Parameters").attrs.update({"Cosmology:h": b"0.681", "Snapshots:basename": b"snap"})
        file.create_group("Cosmology").attrs.update(
            {"Cosmological run": [1], "Omega_m": [0.31], "Omega_lambda": [0.69], "h": [0.681]}
        )
        group = file.create_group("PartType1")
        options = {"chunks": (16, 3), "maxshape": (None, 3), "compression": "gzip", "fletcher32": True}
        group.create_dataset("Coordinates", data=pos, **options).attrs["a-scale exponent"] = [1.0]
        group.create_dataset("Velocities", data=vel, **options).attrs["a-scale exponent"] = [0.0]
        group.create_dataset("Masses", data=np.full(n, 0.25, np.float32))
        group.create_dataset("ParticleIDs", data=np.arange(n, dtype=np.uint64))
        file["DMParticles"] = h5py.SoftLink("/PartType1")
    return path


@pytest.fixture
def swift(tmp_path, random) -> tuple[np.ndarray, np.ndarray]:
    """Write a distributed SWIFT snapshot in three files, one empty, and the virtual file that joins them."""
    pos, vel = random.random((100, 3)), random.normal(size=(100, 3)).astype(np.float32)
    for part, (start, stop) in enumerate([(0, 60), (60, 60), (60, 100)]):
        write_swift(tmp_path / f"snap_0007.{part}.hdf5", pos[start:stop], vel[start:stop], total=100, files=3)
    write_swift(tmp_path / "snap_0007.hdf5", pos, vel, Virtual=[1])
    with h5py.File(tmp_path / "snap_0007.hdf5", "a") as file:
        for name in ("Coordinates", "Velocities"):
            layout = h5py.VirtualLayout((100, 3), file[f"PartType1/{name}"].dtype)
            layout[:60] = h5py.VirtualSource("snap_0007.0.hdf5", f"PartType1/{name}", (60, 3))
            layout[60:] = h5py.VirtualSource("snap_0007.2.hdf5", f"PartType1/{name}", (40, 3))
            del file[f"PartType1/{name}"]
            file.create_virtual_dataset(f"PartType1/{name}", layout)
    return pos, vel


@pytest.mark.parametrize("given_as", ["", "snap_0007.2.hdf5", "snap_0007.hdf5"])
def test_swift_in_parts_and_their_virtual_file(swift, tmp_path, small_slices, given_as) -> None:
    pos, vel = swift
    snapshot = io.open_snapshot(tmp_path / given_as)
    np.testing.assert_array_equal(snapshot.read("pos"), pos)
    np.testing.assert_array_equal(snapshot.read("vel"), vel)  # peculiar velocities are unchanged
    np.testing.assert_array_equal(snapshot.read("vel", 55, 65), vel[55:65])
    np.testing.assert_array_equal(snapshot.read("mass"), np.full(100, 0.25))  # not the mean masses of the table
    assert snapshot.shared_mass is None
    assert snapshot.types == {1: 100}
    files = "" if given_as == "snap_0007.hdf5" else " in 3 files"
    assert snapshot.description == f"SWIFT snapshot{files}: 100 particles of type 1, box 10 x 20 x 30 Mpc, z = 1"


def test_units_of_swift_are_free_of_h(swift, tmp_path) -> None:
    header = io.read_header(tmp_path)
    assert (header.omega0, header.omega_lambda, header.hubble) == (0.31, 0.69, 0.681)
    assert (header.time, header.scale_factor, header.boxsize) == (0.5, 0.5, (10.0, 20.0, 30.0))
    assert header.h_free
    assert [io.unit_name(header, kind) for kind in ("length", "mass", "velocity")] == ["Mpc", "1e10 Msun", "km/s"]
    # Written files keep these units.
    part, _ = io.read_snapshot(tmp_path, fields=("pos", "mass"))
    io.write_snapshot(tmp_path / "again.hdf5", part, header)
    assert io.read_header(tmp_path / "again.hdf5").h_free
    with h5py.File(tmp_path / "again.hdf5") as file:
        assert file["PartType1/Coordinates"].attrs["h_scaling"] == 0
        assert file["PartType1/Masses"].attrs["h_scaling"] == 0


def test_physical_swift_values_become_comoving(tmp_path, random) -> None:
    pos, vel = random.random((9, 3)), random.normal(size=(9, 3))
    path = write_swift(tmp_path / "a.hdf5", pos, vel)
    with h5py.File(path, "a") as file:
        file["PartType1/Coordinates"].attrs["Value stored as physical"] = [1]
        file["PartType1/Velocities"].attrs["a-scale exponent"] = [1.0]
    part, _ = io.read_snapshot(path, fields=("pos", "vel"))
    np.testing.assert_array_equal(part.pos, pos * 2)
    np.testing.assert_array_equal(part.vel, vel / 2)


def test_format_option_distinguishes_swift_from_gadget(tmp_path, random) -> None:
    vel = random.normal(size=(9, 3))
    path = write_swift(tmp_path / "a.hdf5", random.random((9, 3)), vel, Code="unknown")
    assert io.open_snapshot(path).description.startswith("SWIFT snapshot")  # recognised by its units
    with h5py.File(path, "a") as file:
        del file["Units"]
        del file["PartType1/Velocities"].attrs["a-scale exponent"]
    assert io.open_snapshot(path).description.startswith("AREPO snapshot")
    np.testing.assert_allclose(io.open_snapshot(path).read("vel"), vel * 0.5**0.5)
    options = io.ReadOptions(format="swift")
    np.testing.assert_array_equal(io.open_snapshot(path, options=options).read("vel"), vel)
    assert io.read_header(path, options).h_free


def test_masses_of_black_holes(tmp_path, random) -> None:
    path = write_swift(tmp_path / "a.hdf5", random.random((3, 3)), random.random((3, 3)))
    with h5py.File(path, "a") as file:
        file.move("PartType1", "PartType5")
        file["Header"].attrs["NumPart_ThisFile"] = file["Header"].attrs["NumPart_Total"] = [0, 0, 0, 0, 0, 3, 0]
        file.move("PartType5/Masses", "PartType5/DynamicalMasses")
        file["PartType5/SubgridMasses"] = np.zeros(3)
    np.testing.assert_array_equal(io.open_snapshot(path, 5).read("mass"), [0.25] * 3)


@pytest.mark.parametrize("harm", ["gone", "short", "text", "uncovered", "covered twice"])
def test_missing_rows_that_hdf5_would_fill_in_are_refused(swift, tmp_path, random, refused, harm) -> None:
    pos, vel = swift
    source = tmp_path / "snap_0007.2.hdf5"
    message = {
        "gone": f"needs {source}, which is missing",
        "short": f"needs another shape of PartType1/Coordinates in {source} than (39, 3)",
        "text": "not an HDF5",
        "uncovered": "has 100 rows, but row 99 has no source",
        "covered twice": "has 100 rows, but row 80 has no source",
    }
    source.unlink()
    if harm == "text":
        source.write_text("nothing")
    elif harm == "short":
        write_swift(source, pos[61:], vel[61:])
    elif harm != "gone":
        write_swift(source, pos[60:], vel[60:])
        with h5py.File(tmp_path / "snap_0007.hdf5", "a") as file:
            layout = h5py.VirtualLayout((100, 3), np.float64)
            for start, stop in [(0, 99)] if harm == "uncovered" else [(0, 50), (30, 80)]:
                part = h5py.VirtualSource("snap_0007.0.hdf5", "PartType1/Coordinates", (stop - start, 3))
                layout[start:stop] = part
            del file["PartType1/Coordinates"]
            file.create_virtual_dataset("PartType1/Coordinates", layout)
    snapshot = io.open_snapshot(tmp_path / "snap_0007.hdf5")
    with refused(message[harm]):
        snapshot.read("pos")
    if "covered" not in harm:  # a process with rows in other files is not affected
        np.testing.assert_array_equal(snapshot.read("pos", 0, 60), pos[:60])


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        (None, "has no dataset rows"),
        (np.zeros((9, 3)), "needs another shape of rows in {path} than (9, 3)"),
        (np.zeros((10, 6)), "needs another shape of rows in {path} than (10, 6)"),
        (1.0, "needs another shape of rows in {path} than ()"),
        (h5py.Empty("f8"), "needs another shape of rows in {path} than (0,)"),
        ("virtual", "needs {missing}, which is missing"),
    ],
    ids=["gone", "short", "wide", "scalar", "null", "virtual"],
)
def test_sources_in_the_same_file_are_checked(tmp_path, refused, rows, message) -> None:
    path = tmp_path / "a.hdf5"
    with h5py.File(path, "w") as file:
        sources = {"pos": (".", "rows"), "rows": ("b.hdf5", "x")}
        for name, source in list(sources.items())[: 2 if isinstance(rows, str) else 1]:
            layout = h5py.VirtualLayout((10, 3), np.float64)
            layout[:] = h5py.VirtualSource(*source, (10, 3))
            file.create_virtual_dataset(name, layout)
        if rows is not None and not isinstance(rows, str):
            file["rows"] = rows
    with refused(message.format(path=path, missing=tmp_path / "b.hdf5")):
        io.read_snapshot(path, fields=("pos",), options=io.ReadOptions(pos="pos"))


def test_other_files_of_swift(tmp_path, random, refused) -> None:
    path = write_swift(tmp_path / "a.hdf5", random.random((3, 3)), random.random((3, 3)), OutputType=np.bytes_("FOF"))
    with refused("is a FOF file of SWIFT"):
        io.open_snapshot(path)


def test_lossy_numbers_of_swift(tmp_path, random) -> None:
    """NumPy lacks 18-bit floats (filter FMantissa9) and 40-bit integers (Nbit40)."""
    vel, ids = random.normal(size=(9, 3)).astype(np.float32), random.integers(0, 2**40, 9, dtype=np.uint64)
    path = write_swift(tmp_path / "a.hdf5", random.random((9, 3)), vel)
    short = h5py.h5t.IEEE_F32LE.copy()
    short.set_fields(17, 9, 8, 0, 9)
    short.set_offset(0)
    short.set_precision(18)
    wide = h5py.h5t.STD_U64LE.copy()
    wide.set_precision(40)
    with h5py.File(path, "a") as file:
        for name, kind, rows in (("Velocities", short, vel), ("ParticleIDs", wide, ids)):
            del file[f"PartType1/{name}"]
            plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            plist.set_chunk(rows.shape)
            plist.set_filter(h5py.h5z.FILTER_NBIT)
            space = h5py.h5s.create_simple(rows.shape)
            h5py.h5d.create(file["PartType1"].id, name.encode(), kind, space, plist).write(
                h5py.h5s.ALL, h5py.h5s.ALL, rows
            )
    part, _ = io.read_snapshot(path, fields=("pos", "vel", "id"))
    np.testing.assert_array_equal(part.id, ids)
    np.testing.assert_allclose(part.vel, vel, rtol=2.0**-9)
    assert part.vel.dtype == np.float32


# Compression


def test_missing_filter_is_named(tmp_path, write_gadget, random, refused, monkeypatch) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((8, 3)))
    with h5py.File(path, "a") as file:
        del file["PartType1/Coordinates"]
        plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plist.set_chunk((8, 3))
        plist.set_filter(32004, h5py.h5z.FLAG_OPTIONAL)
        space = h5py.h5s.create_simple((8, 3))
        h5py.h5d.create(file["PartType1"].id, b"Coordinates", h5py.h5t.IEEE_F64LE, space, plist)
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)  # as if it were not installed
    with refused("compressed with the filter LZ4 (32004), but it is not installed; pip install hdf5plugin"):
        io.read_snapshot(path, fields=("pos",))


def test_filters_of_hdf5plugin(tmp_path, write_gadget, random) -> None:
    hdf5plugin = pytest.importorskip("hdf5plugin")
    pos = random.random((500, 3), np.float32)
    path = write_gadget(tmp_path / "a.hdf5", pos)
    for compression in (hdf5plugin.LZ4(), hdf5plugin.Zstd(), hdf5plugin.Blosc()):
        with h5py.File(path, "a") as file:
            del file["PartType1/Coordinates"]
            file["PartType1"].create_dataset("Coordinates", data=pos, chunks=(64, 3), compression=compression)
        np.testing.assert_array_equal(io.read_snapshot(path, fields=("pos",))[0].pos, pos)


# Options


def test_datasets_of_a_snapshot_can_be_named(tmp_path, write_gadget, random, refused) -> None:
    pos, mass = random.random((7, 3)), random.random(7)
    path = write_gadget(tmp_path / "a.hdf5", random.random((7, 3)), columns={"Other": pos, "Own": mass})
    options = io.ReadOptions(pos="Other", mass="PartType1/Own", boxsize=[2, 2, 2])
    part, header = io.read_snapshot(path, fields=("pos", "mass"), options=options)
    np.testing.assert_array_equal(part.pos, pos)
    np.testing.assert_array_equal(part.mass, mass)  # not that of the mass table
    assert header.boxsize == 2.0
    with refused("of another type than 1"):
        io.open_snapshot(path, options=io.ReadOptions(pos="PartType0/Coordinates"))
    with refused("no dataset PartType1/None"):
        io.open_snapshot(path, options=io.ReadOptions(pos="PartType1/None"))
    with refused("the format 'numpy' needs a NumPy file or a NumPy archive"):
        io.open_snapshot(path, options=io.ReadOptions(format="numpy"))


@pytest.mark.parametrize("wrong", [{"format": "gadget2"}, {"boxsize": -1.0}, {"boxsize": (1, np.nan)}])
def test_wrong_options(wrong) -> None:
    with pytest.raises(ValueError, match=r"; (there are|it must be)"):
        io.ReadOptions(**wrong)


def test_rows_out_of_range_raise(snapshot) -> None:
    for start, stop in ((-1, 3), (4, 2), (0, 501)):
        with pytest.raises(ValueError, match="they must be ascending, from 0 to 500"):
            io.open_snapshot(snapshot).read("pos", start, stop)


def test_pipe_does_not_block_the_reader(tmp_path, refused) -> None:
    os.mkfifo(tmp_path / "pipe")
    with refused("not a regular file"):
        io.open_snapshot(tmp_path / "pipe")


def test_file_without_permission(snapshot, monkeypatch, refused) -> None:
    # Permissions do not apply to a privileged user, so simulate the refusal of the system.
    def refuse(*_: Any, **__: Any) -> Any:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("builtins.open", refuse)
    with refused(f"{snapshot} cannot be read (Permission denied)"):
        io.open_snapshot(snapshot)
