"""Snapshots, catalogues and neighbour lists on disk: round trips, files of other codes, and damaged files."""

import os
import re
import tempfile
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jztree.data import ParticleData, pad_particles
from jztree_utils import ics, io

pytestmark = pytest.mark.fast

settings.register_profile("io", max_examples=25, deadline=None)
settings.load_profile("io")


def one_sentence(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert len(text) > 20
    return text


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


# Reading files of other codes


def test_sample_matches_its_file() -> None:
    part, header = io.read_snapshot(ics.SAMPLE_3D)
    with h5py.File(ics.SAMPLE_3D) as file:
        np.testing.assert_array_equal(part.pos, file["PartType1/Coordinates"][()])
        np.testing.assert_array_equal(part.vel, file["PartType1/Velocities"][()])
        np.testing.assert_array_equal(part.id, file["PartType1/ParticleIDs"][()])
        assert part.mass == file["Header"].attrs["MassTable"][1]
    assert part.pos.dtype == np.float32
    assert part.id.dtype == np.uint32
    assert (part.num, part.num_total, header.boxsize, header.hubble) == (48**3, 48**3, 37.5, 0.68)
    assert header.npart_total == (0, 48**3, 0, 0, 0, 0)
    assert header.num_files == 1


@pytest.mark.parametrize("given_as", ["folder", "first", "last"])
@pytest.mark.parametrize("cuts", [(200, 200, 350), (0, 500), (500,)])  # some parts are empty
def test_parts_are_found_and_joined(write_parts, tmp_path, random, given_as, cuts) -> None:
    pos = random.random((500, 3))
    ids = random.permutation(500).astype(np.uint64) + 2**60
    paths = write_parts(pos, cuts, ParticleIDs=ids)
    path = {"folder": tmp_path, "first": paths[0], "last": paths[-1]}[given_as]
    part, header = io.read_snapshot(path, fields=("pos", "id"))
    np.testing.assert_array_equal(part.pos, pos)
    np.testing.assert_array_equal(part.id, ids)
    assert part.pos.dtype == np.float64
    assert header.num_files == len(cuts) + 1
    assert io.find_parts(path) == paths


def test_more_than_nine_parts_are_ordered_by_number(write_parts, random) -> None:
    pos = random.random((24, 3))
    paths = write_parts(pos, range(2, 24, 2))
    np.testing.assert_array_equal(io.read_snapshot(paths[3], fields=("pos",))[0].pos, pos)


def test_shared_multi_file_snapshot(shared_data) -> None:
    part, header = io.read_snapshot(shared_data / "snap_64" / "snapshot_000.1.hdf5")
    assert part.pos.shape == part.vel.shape == (64**3, 3)
    assert header.num_files == 3
    assert len(np.unique(part.id)) == 64**3


def test_counts_have_64_bits(tmp_path, write_gadget, random) -> None:
    path = write_gadget(tmp_path / "big.0.hdf5", random.random((5, 3)), total=3 * 2**32 + 17, num_files=2)
    assert io.read_header(path).npart_total[1] == 3 * 2**32 + 17
    gadget4 = write_gadget(
        tmp_path / "gadget4.hdf5",
        random.random((5, 3)),
        header={"NumPart_Total": np.asarray([0, 2**33 + 5], np.uint64), "NumPart_Total_HighWord": None},
    )
    assert io.read_header(gadget4).npart_total == (0, 2**33 + 5)


def test_gadget4_parameters_and_swift_units(tmp_path, write_gadget, random) -> None:
    path = write_gadget(tmp_path / "a.hdf5", random.random((5, 3)), header={"BoxSize": np.asarray([1.0, 2.0, 3.0])})
    with h5py.File(path, "a") as file:
        file.create_group("Parameters").attrs.update(
            {"Omega0": 0.3, "HubbleParam": 0.7, "UnitLength_in_cm": 3.085678e24}
        )
        file.create_group("Units").attrs["Unit mass in cgs (U_M)"] = np.asarray([1.989e43])
    header = io.read_header(path)
    assert (header.omega0, header.hubble, header.boxsize) == (0.3, 0.7, (1.0, 2.0, 3.0))
    assert io.unit_name(header, "length") == "Mpc/h"
    assert io.unit_name(header, "mass") == "1e10 Msun/h"
    assert header.unit_velocity_in_cm_per_s is None
    assert io.unit_name(header, "velocity") == ""


@pytest.mark.parametrize(
    ("attribute", "comoving", "factor"),
    [({}, None, 0.5), ({"a_scaling": 0.5}, 1, 0.5), ({"a_scaling": 0.0}, 1, 1.0), ({}, 0, 1.0)],
)
def test_velocities_are_peculiar(tmp_path, write_gadget, random, attribute, comoving, factor) -> None:
    vel = random.normal(size=(6, 3)).astype(np.float32)
    path = write_gadget(
        tmp_path / "z3.hdf5",
        random.random((6, 3)),
        columns={"Velocities": vel},
        header={"Time": 0.25, "Redshift": 3.0, "ComovingIntegrationOn": comoving},
    )
    with h5py.File(path, "a") as file:
        file["PartType1/Velocities"].attrs.update(attribute)
    part, header = io.read_snapshot(path, fields=("pos", "vel"))
    np.testing.assert_allclose(part.vel, vel * factor, rtol=1e-6)
    assert header.scale_factor == (1.0 if comoving == 0 else 0.25)


def test_masses_from_dataset_and_big_endian_numbers(tmp_path, write_gadget, random) -> None:
    pos, mass = random.random((7, 3)).astype(">f4"), random.random(7).astype(">f8")
    header = {"MassTable": np.zeros(6)}
    path = write_gadget(tmp_path / "a.hdf5", pos, columns={"Masses": mass}, header=header, ptype=4)
    part, _ = io.read_snapshot(path, ptype=4, fields=("pos", "mass"))
    np.testing.assert_array_equal(part.mass, mass)
    np.testing.assert_array_equal(part.pos, pos)
    assert part.pos.dtype == np.float32
    assert part.pos.dtype.isnative
    assert part.mass.dtype.isnative


def test_optional_properties_may_be_missing(snapshot) -> None:
    part, _ = io.read_snapshot(snapshot, fields=("pos",), optional=("vel", "id"))
    assert part.vel is None
    assert part.id.dtype == np.uint64
    assert part.mass is None


# Files that cannot be read


def damage(file: h5py.File, what: str) -> None:
    group = file["PartType1"]
    pos = group["Coordinates"][()]
    if what == "no header":
        del file["Header"]
    elif what == "no counts":
        del file["Header"].attrs["NumPart_ThisFile"]
    elif what == "no group":
        del file["PartType1"]
    elif what == "count":
        file["Header"].attrs["NumPart_ThisFile"] = np.asarray([0, 499, 0, 0, 0, 0], np.int32)
    elif what == "total":
        file["Header"].attrs["NumPart_Total"] = np.asarray([0, 501, 0, 0, 0, 0], np.uint32)
    elif what == "box":
        file["Header"].attrs["BoxSize"] = np.nan
    else:
        del group["Coordinates"]
        wrong = {"integers": (1000 * pos).astype(np.int32), "half": pos.astype(np.float16), "complex": pos * 1j}
        wrong |= {"flat": pos[:, 0], "short": pos[:-1], "wide": np.zeros((len(pos), 9), np.float32)}
        if what != "no dataset":
            group["Coordinates"] = wrong[what]


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("no header", "no group Header"),
        ("no counts", "NumPart_ThisFile"),
        ("no group", "no dataset PartType1/Coordinates"),
        ("no dataset", "no dataset PartType1/Coordinates; its group holds ParticleIDs"),
        ("count", "hold 499 particles"),
        ("total", "counts 501"),
        ("box", "BoxSize"),
        ("integers", "int32; it must be float32 or float64"),
        ("half", "float16; it must be float32 or float64"),
        ("complex", "it must be float32 or float64"),
        ("flat", "(n, d)"),
        ("wide", "(500, 9)"),
        ("short", "499 particles, but its header counts 500"),
    ],
)
def test_damaged_snapshot(snapshot, what, message) -> None:
    with h5py.File(snapshot, "a") as file:
        damage(file, what)
    with pytest.raises(io.SnapshotError, match=re.escape(message)) as error:
        io.read_snapshot(snapshot, fields=("pos",))
    assert str(snapshot) in one_sentence(error)


def test_missing_and_foreign_files(tmp_path) -> None:
    (tmp_path / "text.hdf5").write_text("not HDF5")
    (tmp_path / "empty.hdf5").write_text("")
    (tmp_path / "folder").mkdir()
    expected = {
        "none.hdf5": "does not exist",
        "text.hdf5": "not an HDF5",
        "empty.hdf5": "is empty",
        "folder": "holds no snapshot: no .hdf5",
    }
    for name, message in expected.items():
        with pytest.raises(io.SnapshotError, match=message) as error:
            io.read_snapshot(tmp_path / name)
        assert name in one_sentence(error)


def test_truncated_at_any_length(snapshot, tmp_path) -> None:
    content = snapshot.read_bytes()
    cut = tmp_path / "cut.hdf5"
    for length in range(0, len(content) - 1, len(content) // 40):
        cut.write_bytes(content[:length])
        with pytest.raises(io.SnapshotError) as error:
            io.read_snapshot(cut, fields=("pos",))
        assert "cut.hdf5" in one_sentence(error)


@pytest.mark.long
def test_flipped_bytes_raise_no_other_error(snapshot, tmp_path, random) -> None:
    content = snapshot.read_bytes()
    refused = 0
    for number in range(400):
        flipped = tmp_path / f"{number}.hdf5"  # a new name: file systems wait for the disk if a name is reused
        data = bytearray(content)
        for place in random.integers(0, 3000, 3):
            data[place] = random.integers(256)
        flipped.write_bytes(bytes(data))
        try:
            io.read_snapshot(flipped, fields=("pos", "id"))
        except io.SnapshotError:
            refused += 1
    assert refused > 20


@pytest.mark.parametrize("lost", [0, 1, 3])
def test_missing_part_is_named(write_parts, tmp_path, random, lost) -> None:
    paths = write_parts(random.random((40, 3)), (10, 20, 30))
    paths[lost].unlink()
    with pytest.raises(io.SnapshotError, match=re.escape(str(paths[lost]))) as error:
        io.read_snapshot(tmp_path)
    assert f"Part {lost} of the 4" in one_sentence(error)


def test_parts_that_do_not_belong_together(write_parts, write_gadget, tmp_path, random) -> None:
    pos = random.random((40, 3))
    paths = write_parts(pos, (20,), Masses=random.random(40))
    write_gadget(paths[1], pos[:10], total=30, num_files=2)
    with pytest.raises(io.SnapshotError, match="belong to different snapshots"):
        io.read_snapshot(tmp_path)
    write_gadget(paths[1], pos[:10], total=40, num_files=2)
    with pytest.raises(io.SnapshotError, match="hold 30 particles of type 1, but the header counts 40"):
        io.read_snapshot(tmp_path)
    write_gadget(paths[1], pos[20:].astype(np.float32), total=40, num_files=2)
    with pytest.raises(io.SnapshotError, match="write the parts in the same form"):
        io.read_snapshot(tmp_path, fields=("pos",))
    paths[1].rename(tmp_path / "renamed.hdf5")
    with pytest.raises(io.SnapshotError, match="does not end in a part number"):
        io.read_snapshot(tmp_path / "renamed.hdf5")


def test_folder_of_several_snapshots(write_parts, tmp_path, random) -> None:
    write_parts(random.random((8, 3)), (4,), "snap_001")
    write_parts(random.random((8, 3)), (4,), "snap_002")
    with pytest.raises(io.SnapshotError, match="more than one snapshot \\(snap_001, snap_002\\)"):
        io.read_snapshot(tmp_path)


@pytest.mark.parametrize("ptype", [0, 5, 6, 99])
def test_type_without_particles(snapshot, ptype) -> None:
    with pytest.raises(io.SnapshotError, match=f"no particles of type {ptype}; it holds 500 of type 1"):
        io.read_snapshot(snapshot, ptype=ptype)


def test_unknown_property(snapshot) -> None:
    with pytest.raises(ValueError, match="'colour' is not a property"):
        io.read_snapshot(snapshot, fields=("pos", "colour"))
    for names in ({"fields": "pos"}, {"optional": "vel"}):
        with pytest.raises(TypeError, match=r"The properties to read are '.*'; give a list of names, such as \["):
            io.read_snapshot(snapshot, **names)


# Writing


@given(
    n=st.integers(1, 40),
    dim=st.integers(1, 4),
    dtype=st.sampled_from([np.float32, np.float64]),
    id_dtype=st.sampled_from([np.int32, np.uint32, np.int64, np.uint64]),
    mass=st.sampled_from(["none", "scalar", "zero", "array"]),
    npad=st.integers(0, 3),
    ptype=st.integers(0, 5),
    box=st.sampled_from([0.0, 2.0, (1.0, 2.0, 3.0, 4.0)]),
    units=st.booleans(),
    seed=st.integers(0, 2**32 - 1),
)
def test_snapshot_round_trip(n, dim, dtype, id_dtype, mass, npad, ptype, box, units, seed) -> None:
    random = np.random.default_rng(seed)
    rows = n + npad
    part = ParticleData(
        pos=random.normal(size=(rows, dim)).astype(dtype),
        vel=random.normal(size=(rows, dim)).astype(dtype),
        mass={"none": None, "scalar": 1.25, "zero": 0.0, "array": random.random(rows).astype(dtype)}[mass],
        id=random.integers(0, np.iinfo(id_dtype).max, rows, dtype=id_dtype, endpoint=True),
        num=n,
    )
    known = {"unit_length_in_cm": 3.0e24, "unit_mass_in_g": 2.0e43, "unit_velocity_in_cm_per_s": 1e5} if units else {}
    box = box[:dim] if isinstance(box, tuple) and dim > 1 else np.max(box)
    header = io.SnapshotHeader(boxsize=box, omega0=0.3, omega_lambda=0.7, hubble=0.7, **known)
    with tempfile.TemporaryDirectory() as folder:
        io.write_snapshot(f"{folder}/a.hdf5", part, header, ptype)
        assert os.listdir(folder) == ["a.hdf5"]
        optional = ("mass",) if mass == "none" else ()
        back, read = io.read_snapshot(
            f"{folder}/a.hdf5", ptype, fields=("pos", "vel", "id"), optional=optional or ("mass",)
        )
    for name in ("pos", "vel", "id"):
        np.testing.assert_array_equal(getattr(back, name), getattr(part, name)[:n])
        assert getattr(back, name).dtype == getattr(part, name).dtype
    if mass == "none":
        assert back.mass is None
    else:
        expected = part.mass[:n] if mass == "array" else part.mass
        np.testing.assert_array_equal(np.broadcast_to(back.mass, n), np.broadcast_to(expected, n))
    assert (read.boxsize, read.omega0, read.hubble, read.comoving) == (box, 0.3, 0.7, None)
    assert read.npart_total[ptype] == sum(read.npart_total) == n
    assert read.unit_length_in_cm == known.get("unit_length_in_cm")


def test_velocities_round_trip_at_another_redshift(tmp_path, random) -> None:
    part = ParticleData(pos=random.random((9, 3)), vel=random.normal(size=(9, 3)))
    header = io.SnapshotHeader(redshift=8.0, time=1 / 9, comoving=True)
    io.write_snapshot(tmp_path / "a.hdf5", part, header)
    with h5py.File(tmp_path / "a.hdf5") as file:
        np.testing.assert_allclose(file["PartType1/Velocities"][()], 3 * part.vel, rtol=1e-12)
    back, _ = io.read_snapshot(tmp_path / "a.hdf5", fields=("pos", "vel"))
    np.testing.assert_allclose(back.vel, part.vel, rtol=1e-12)


def test_units_turn_values_into_cgs(tmp_path, random) -> None:
    header = io.SnapshotHeader(
        redshift=1.0, hubble=0.5, unit_length_in_cm=3e24, unit_mass_in_g=2e43, unit_velocity_in_cm_per_s=1e5
    )
    part = ParticleData(pos=random.random((4, 3)), mass=random.random(4), vel=random.random((4, 3)))
    io.write_snapshot(tmp_path / "a.hdf5", part, header)
    physical = {}
    with h5py.File(tmp_path / "a.hdf5") as file:
        for name, data in file["PartType1"].items():
            a = data.attrs
            physical[name] = data[()] * 0.5 ** a["a_scaling"] * 0.5 ** a["h_scaling"] * a["to_cgs"]
            assert "cm" in a["unit"] or name == "Masses"
    np.testing.assert_allclose(physical["Coordinates"], part.pos * 3e24)  # a / h is 1 here
    np.testing.assert_allclose(physical["Masses"], part.mass * 4e43)
    np.testing.assert_allclose(physical["Velocities"], part.vel * 1e5)


def test_units_of_noncosmological_runs_have_no_h(tmp_path, random) -> None:
    """The attributes of a dataset agree with the name of the unit."""
    header = io.SnapshotHeader(comoving=False, hubble=0.5, unit_length_in_cm=3.085678e21)
    assert io.unit_name(header, "length") == "kpc"
    io.write_snapshot(tmp_path / "a.hdf5", ParticleData(pos=random.random((4, 3))), header)
    with h5py.File(tmp_path / "a.hdf5") as file:
        attrs = dict(file["PartType1/Coordinates"].attrs)
    assert (attrs["a_scaling"], attrs["h_scaling"], attrs["unit"]) == (0, 0, "3.085678e+21 cm")


def test_padding_is_omitted(tmp_path) -> None:
    part = pad_particles(ics.uniform_particles(10), 5)
    io.write_snapshot(tmp_path / "a.hdf5", part)
    assert io.read_snapshot(tmp_path / "a.hdf5", fields=("pos", "mass"))[0].pos.shape == (10, 3)


@pytest.mark.parametrize(
    "wrong",
    [
        {"pos": np.zeros((4, 3), np.int32)},
        {"pos": np.zeros(4)},
        {"pos": np.zeros((4, 3)), "vel": np.zeros((3, 3))},
        {"pos": np.zeros((4, 3)), "id": np.zeros(4)},
    ],
)
def test_wrong_particles_write_nothing(tmp_path, wrong) -> None:
    with pytest.raises(ValueError, match="shape"):
        io.write_snapshot(tmp_path / "a.hdf5", ParticleData(**wrong))
    assert files(tmp_path) == []


@pytest.mark.parametrize("ptype", ["all", None, 1.0, True, (0, 1)])
def test_invalid_particle_types_raise(ptype, snapshot) -> None:
    for read in (io.open_snapshot, io.read_snapshot):
        with pytest.raises(TypeError, match=r"ptype is .*; it must be the number of one particle type"):
            read(snapshot, ptype)
    assert io.read_snapshot(snapshot, np.int64(1), fields=("pos",))[0].num == 500
