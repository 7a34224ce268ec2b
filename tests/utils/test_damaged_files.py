"""Damaged files, and files that only look valid: the result must be correct, or one sentence must name the fault."""

import dataclasses
import re
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from fuzz.damaged_files import damage
from test_catalogues import full_content
from test_read_arrays import write_binary
from test_read_simulations import write_swift

from jztree_utils import io

# Damage of any kind


def sources(folder: Path, write_gadget: Callable[..., Path], random: np.random.Generator) -> list[Path]:
    """Return a file of each supported kind, and a snapshot in several files."""
    n = 60
    pos, ids = random.random((n, 3), np.float32), np.arange(n, dtype=np.uint64) + np.uint64(2**63)
    counts = {"npart": [0, n, 0, 0, 0, 0], "npart_total": [0, n, 0, 0, 0, 0]}
    blocks = {"POS": pos, "VEL": pos, "ID": np.arange(n)}
    columns = {"ParticleIDs": ids, "Velocities": pos, "Masses": random.random(n)}
    result = [
        write_gadget(folder / "gadget.hdf5", pos, columns=columns),
        write_swift(folder / "swift.hdf5", pos.astype(np.float64), pos),
        write_binary(folder / "format1", "<", False, blocks, **counts),
        write_binary(folder / "format2", ">", True, blocks, **counts),
    ]
    (folder / "parts").mkdir()
    for part in range(3):
        rows = slice(20 * part, 20 * part + 20)
        write_gadget(folder / f"parts/snap.{part}.hdf5", pos[rows], total=n, num_files=3)
    np.save(folder / "a.npy", pos)
    np.savez(folder / "a.npz", pos=pos, vel=pos, id=ids, mass=2.0, boxsize=[1, 1, 1])
    for layout in ("native", "gadget4", "swift", "soap"):
        io.write_catalogue_content(folder / f"catalogue_{layout}.hdf5", full_content(), layout)
        result.append(folder / f"catalogue_{layout}.hdf5")
    neighbours = io.Neighbours(distances=random.random((n, 3)), indices=np.zeros((n, 3), int), id=ids)
    io.write_neighbours(folder / "neighbours.hdf5", neighbours)
    return [*result, folder / "parts", folder / "a.npy", folder / "a.npz", folder / "neighbours.hdf5"]


def read_all(path: Path) -> None:
    """Read a file in all possible ways."""
    attempts: list[Callable[[], Any]] = [lambda: io.find_parts(path), lambda: read_particles(path)]
    if path.is_file():
        ways = (io.catalogue_layout, io.read_catalogue_content, io.read_neighbours, io.read_made_with)
        attempts += [lambda way=way: way(path) for way in ways]  # type: ignore[misc]
    for attempt in attempts:
        try:
            attempt()
        except io.SnapshotError as error:
            text = str(error)
            assert text.isprintable(), text
            assert text.endswith("."), text


def read_particles(path: Path) -> None:
    snapshot = io.open_snapshot(path)
    assert snapshot.description
    for name in snapshot.present(("pos",), ("mass", "vel", "id")):
        assert len(np.atleast_1d(snapshot.read(name))) in (1, snapshot.num)


@pytest.mark.parametrize("seeds", [range(40), pytest.param(range(40, 600), marks=pytest.mark.slow)], ids=str)
def test_any_damage_raises_with_one_sentence(tmp_path, write_gadget, random, seeds) -> None:
    files = sources(tmp_path, write_gadget, random)
    for seed in seeds:
        path, fault = damage(files[seed % len(files)], tmp_path / f"damaged_{seed}", np.random.default_rng(seed))
        try:
            with warnings.catch_warnings(action="error"):
                # A warning about damaged masses, which are still read.
                warnings.filterwarnings("ignore", message=".* masses differ from the mass in the MassTable")
                read_all(path)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {fault}") from error


def test_damage_helper_changes_one_file_and_describes_it(tmp_path, write_gadget, random) -> None:
    for number, path in enumerate(sources(tmp_path, write_gadget, random)):
        before = {file: file.read_bytes() for file in tmp_path.rglob("*") if file.is_file()}
        copy, fault = damage(path, tmp_path / f"damaged_{number}", np.random.default_rng(number))
        assert copy.name == path.name
        assert fault.endswith(".")
        assert all(file.read_bytes() == content for file, content in before.items())
        files = [copy] if copy.is_file() else sorted(copy.iterdir())
        originals = [path] if path.is_file() else sorted(path.iterdir())
        assert sum(a.read_bytes() != b.read_bytes() for a, b in zip(files, originals, strict=True)) == 1


# Attributes


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("Redshift", [], "has no value as attribute Redshift of Header; it must be one finite number"),
        ("Redshift", h5py.Empty("f8"), "no value as attribute Redshift"),
        ("Redshift", [0.0, 1.0], r"has [0. 1.] as attribute Redshift"),
        ("Redshift", 1j, "has 1j as attribute Redshift"),
        ("Redshift", "early", "has early as attribute Redshift"),
        ("Redshift", -1.0, "The redshift in {file} is -1; it must be a number from"),
        ("Redshift", 1e300, "The redshift in {file} is 1e+300"),
        ("Time", np.nan, "has [nan] as attribute Time"),
        ("Omega0", -0.3, "The omega0 in {file} is -0.3"),
        ("HubbleParam", -1.0, "The hubble in {file} is -1"),
        ("UnitLength_in_cm", 0.0, "The unit length in cm in {file} is 0; it must be a number from 1e-60 to 1e+60"),
        ("UnitVelocity_in_cm_per_s", 1e-300, "The unit velocity in cm per s in {file} is 1e-300"),
        ("UnitMass_in_g", np.inf, "has [inf] as attribute UnitMass_in_g"),
        ("BoxSize", [], "The BoxSize in {file} is ()"),
        ("BoxSize", [1.0, 1.0], "have 3 coordinates, but the box has 2 lengths (1, 1); give one length, or 3"),
        ("BoxSize", -1.0, "The BoxSize in {file} is (-1.0,)"),
        ("MassTable", [0, np.nan, 0, 0, 0, 0], "MassTable of {file} has nan for particles of type 1"),
        ("MassTable", [0, -2.0, 0, 0, 0, 0], "MassTable of {file} has -2 for particles of type 1"),
        (
            "NumFilesPerSnapshot",
            1.5,
            "has [1.5] as attribute NumFilesPerSnapshot of Header; it must be whole numbers of",
        ),
        ("NumFilesPerSnapshot", np.nan, "has [nan] as attribute NumFilesPerSnapshot"),
        (
            "NumPart_ThisFile",
            [0, -500.0, 0, 0, 0, 0],
            "as attribute NumPart_ThisFile of Header; it must be whole numbers",
        ),
        ("NumPart_Total", np.float16([0, 500.5, 0, 0, 0, 0]), "as attribute NumPart_Total"),
        (
            "NumPart_Total",
            np.zeros(2, [("x", "f8"), ("y", "f8")]),
            "data of another type as attribute NumPart_Total of Header; it must be text",
        ),
    ],
)
def test_attributes_of_headers(snapshot, tmp_path, error_of, name, value, says) -> None:
    with h5py.File(snapshot, "a") as file:
        file["Header"].attrs[name] = value
    assert says.replace("{file}", str(snapshot)) in error_of(
        "fof", snapshot, "--properties", "-o", tmp_path / "out.hdf5"
    )
    assert not (tmp_path / "out.hdf5").exists()


@pytest.mark.parametrize("value", [[], 1j, np.nan, 1e300, "half"])
def test_powers_of_the_scale_factor(tmp_path, write_gadget, random, error_of, value) -> None:
    pos = random.random((50, 3))
    path = write_gadget(tmp_path / "a.hdf5", pos, columns={"Velocities": pos}, header={"Redshift": 1.0})
    with h5py.File(path, "a") as file:
        file["PartType1/Velocities"].attrs["a_scaling"] = value
    assert re.search(r"attribute a_scaling of|power of the scale factor", error_of("fof", path))


def test_hubble_parameter_of_zero_is_read_as_missing(snapshot) -> None:
    with h5py.File(snapshot, "a") as file:
        file["Header"].attrs["HubbleParam"] = 0.0
    assert io.read_header(snapshot).hubble is None


# Rows that are not there


def test_rows_that_were_never_written(snapshot, tmp_path, error_of) -> None:
    shapes = {"chunks": (100, 3)}
    for number, options in enumerate(({}, shapes)):
        path = tmp_path / f"{number}.hdf5"
        shutil.copyfile(snapshot, path)
        with h5py.File(path, "a") as file:
            del file["PartType1/Coordinates"]
            data = file.create_dataset("PartType1/Coordinates", (500, 3), "f4", **options)
            if options:
                data[:300] = 0.5  # the run ended early
        assert "but only a part was written; write or copy it again" in error_of("fof", path)


def test_invalid_chunk_index_raises(snapshot, error_of) -> None:
    """The HDF5 library reads the zeros as addresses of chunks, and crashes."""
    with h5py.File(snapshot, "a") as file:
        rows = file["PartType1/Coordinates"][()]
        del file["PartType1/Coordinates"]
        data = file.create_dataset("PartType1/Coordinates", data=rows, chunks=(16, 3), compression="gzip")
        places: list[int] = []
        data.id.chunk_iter(lambda chunk: places.append(chunk.byte_offset))
    content = snapshot.read_bytes()
    place = content.index(places[3].to_bytes(8, "little"))
    snapshot.write_bytes(content[:place] + (2**40).to_bytes(8, "little") + content[place + 8 :])
    assert "only a part was written" in error_of("fof", snapshot)


@pytest.mark.parametrize(
    ("length", "places", "message"),
    [
        (None, [(0, 6000)], "rows.raw, which is missing or truncated; copy it to this place"),
        (5999, [(0, 6000)], "rows.raw, which is missing or truncated; copy it to this place"),
        (6000, [(0, 3000), (2999, 3001)], "in other files, where its parts overlap"),
    ],
    ids=["missing", "truncated", "overlapping"],
)
def test_rows_in_another_file_raise(snapshot, tmp_path, error_of, monkeypatch, length, places, message) -> None:
    monkeypatch.chdir(tmp_path)
    if length is not None:
        Path("rows.raw").write_bytes(bytes(length))
    store_in_another_file(snapshot, [("rows.raw", *place) for place in places])
    assert message in error_of("fof", snapshot)


def store_in_another_file(path: Path, external: list[Any]) -> None:
    with h5py.File(path, "a") as file:
        del file["PartType1/Coordinates"]
        file.create_dataset("PartType1/Coordinates", (500, 3), "f4", external=external)


@pytest.mark.parametrize("size", [6000, 10**6, h5py.h5f.UNLIMITED])
def test_rows_in_another_file_of_the_working_directory(snapshot, tmp_path, random, monkeypatch, size) -> None:
    """The file may be shorter than the size that is reserved for it."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    pos = random.random((500, 3), np.float32)
    pos.tofile("rows.raw")
    store_in_another_file(snapshot, [("rows.raw", 0, size)])
    np.testing.assert_array_equal(io.open_snapshot(snapshot).read("pos"), pos)


# Columns of another shape


def replace_dataset(path: Path, name: str, rows: Any) -> None:
    with h5py.File(path, "a") as file:
        attributes = dict(file[name].attrs)
        del file[name]
        file[name] = rows
        if not isinstance(rows, h5py.SoftLink):
            file[name].attrs.update(attributes)


def other_shapes(rows: np.ndarray) -> list[Any]:
    shapes = [rows[..., None], rows[:-1], rows[:0], rows[:1], np.concatenate([rows, rows[:1]]), rows.ravel()[0]]
    shapes += [h5py.Empty(rows.dtype)]
    if rows.ndim > 1:
        shapes += [rows[:, :0], rows[:, :-1], rows[:, 0], np.concatenate([rows, rows], axis=1)]
    return shapes


@pytest.mark.parametrize(
    ("layout", "group", "name", "link"),
    [
        (layout, group, name, link)
        for layout, group, names, link in (
            ("native", "Groups", "count offset com_pos mass com_vel count_by_type mass_by_type", "shape_tensor"),
            ("gadget4", "Group", "GroupLen GroupPos GroupMass GroupVel GroupLenType GroupMassType", "shape_tensor"),
            ("swift", "Groups", "Sizes Centres Masses com_vel count_by_type mass_by_type", "shape_tensor"),
        )
        for name in f"{names} com_inertia_radius max_radius vel_dispersion shape_tensor angular_momentum".split()
    ],
)
def test_columns_of_groups_in_another_shape(tmp_path, layout, group, name, link) -> None:
    complete = tmp_path / "c.hdf5"
    io.write_catalogue_content(complete, full_content(), layout)
    with h5py.File(complete) as file:
        rows = file[group][name][()]
    wrong = [*other_shapes(rows), np.full(rows.shape, 1j), np.full(rows.shape, b"a")]
    for number, second in enumerate([*wrong, *([h5py.SoftLink(f"/{group}/{link}")] if name != link else [])]):
        path = tmp_path / f"{number}.hdf5"  # a new name: file systems wait for the disk if a name is reused
        shutil.copy(complete, path)
        replace_dataset(path, f"{group}/{name}", second)
        with pytest.raises(io.SnapshotError) as error:
            io.read_catalogue_content(path)
        text = str(error.value)
        assert f"{path} holds " in text, text
        assert f"{group}/" in text, text
        assert " must be " in text, text
        assert text.endswith("."), text


@pytest.mark.parametrize(
    ("name", "layout"),
    [("Members/id", "native"), ("IDs/ID", "gadget4"), ("Members/id", "swift"), ("Members/id", "soap")],
)
def test_identifiers_of_members_in_another_shape(tmp_path, name, layout) -> None:
    path = tmp_path / "c.hdf5"
    for second in other_shapes(full_content().ids):
        io.write_catalogue_content(path, full_content(), layout)
        replace_dataset(path, name, second)
        with pytest.raises(io.SnapshotError, match=rf"c.hdf5 holds .*{name}, but"):
            io.read_catalogue_content(path)


@pytest.mark.parametrize("name", ["distances", "indices", "density", "id"])
def test_neighbours_in_another_shape(tmp_path, random, name) -> None:
    path, n = tmp_path / "k.hdf5", 9
    indices = random.integers(0, n, (n, 4))
    result = io.Neighbours(distances=random.random((n, 4)), indices=indices, density=random.random(n), id=np.arange(n))
    rows = getattr(result, name)
    wrong = [*other_shapes(rows), np.full(rows.shape, 1j), rows > 0, h5py.SoftLink("/Neighbours")]
    for second in [*wrong, rows.astype(float if rows.dtype.kind == "i" else int)]:
        io.write_neighbours(path, result)
        replace_dataset(path, f"Neighbours/{name}", second)
        with pytest.raises(io.SnapshotError, match=r"k.hdf5 holds .*Neighbours/"):
            io.read_neighbours(path)


@pytest.mark.parametrize("row", [-1, 9, 2**40])
def test_neighbours_out_of_range_raise(tmp_path, row) -> None:
    path, indices = tmp_path / "k.hdf5", np.zeros((9, 2), np.int64)
    io.write_neighbours(path, io.Neighbours(distances=np.zeros((9, 2)), indices=indices))
    indices[3, 1] = row
    replace_dataset(path, "Neighbours/indices", indices)
    with pytest.raises(io.SnapshotError, match=r"Neighbours/indices from .* must be rows of its 9 particles, 0 to 8"):
        io.read_neighbours(tmp_path / "k.hdf5")


@pytest.mark.parametrize("offset", [-1, 99, 2**31 - 1])
@pytest.mark.parametrize("ids", [True, False])
def test_groups_outside_the_particles_raise(tmp_path, offset, ids) -> None:
    content = full_content(types=False)
    total = int(content.catalogue.count.sum())
    info = dataclasses.replace(content.info, num_particles=total)
    content = dataclasses.replace(content, info=info, ids=content.ids if ids else None)
    path = tmp_path / "c.hdf5"
    io.write_catalogue_content(path, content)
    with h5py.File(path, "a") as file:
        rows = file["Groups/offset"]
        rows[5] = offset if offset != 99 else rows[5] + 1  # one row too far
    with pytest.raises(io.SnapshotError, match=rf"group in row 5 of .* rows of the particles are 0 to {total - 1};"):
        io.read_catalogue(path)


def test_counts_by_type_that_do_not_add_up(tmp_path) -> None:
    io.write_catalogue_content(tmp_path / "c.hdf5", full_content())
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["Groups/count_by_type"][2, 1] += 1
    with pytest.raises(io.SnapshotError, match="count_by_type of the group in row 2, but"):
        io.read_catalogue(tmp_path / "c.hdf5")


@pytest.mark.parametrize(
    ("name", "value"),
    [("num_particles", "many"), ("num_particles", -1), ("npart_min", [1, 2]), ("linking_length", np.nan)],
)
def test_attributes_of_catalogue_provenance(tmp_path, name, value) -> None:
    io.write_catalogue_content(tmp_path / "c.hdf5", full_content())
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        file["FriendsOfFriends"].attrs[name] = value
    with pytest.raises(io.SnapshotError, match=f"as attribute {name} of FriendsOfFriends"):
        io.read_catalogue(tmp_path / "c.hdf5")


def test_attributes_that_are_neither_text_nor_numbers(tmp_path) -> None:
    io.write_catalogue_content(tmp_path / "c.hdf5", full_content())
    with h5py.File(tmp_path / "c.hdf5", "a") as file:
        # HDF5 may crash if such a list is damaged.
        lists = np.array([np.arange(3), np.arange(2)], dtype=object)
        file["Groups/mass"].attrs.create("description", lists, (2,), h5py.vlen_dtype(np.int64))
    with pytest.raises(
        io.SnapshotError,
        match="has data of another type as attribute description of Groups/mass; it must be text or numbers",
    ):
        io.read_catalogue(tmp_path / "c.hdf5")


@pytest.mark.parametrize("name", ["by_number", "ndim"])
@pytest.mark.parametrize("value", [1j, "three", -1, np.nan, [1, 2], []])
def test_attributes_of_neighbours(tmp_path, name, value) -> None:
    io.write_neighbours(tmp_path / "k.hdf5", io.Neighbours(distances=np.zeros((9, 2)), indices=np.zeros((9, 2), int)))
    with h5py.File(tmp_path / "k.hdf5", "a") as file:
        file["Neighbours"].attrs[name] = value
    with pytest.raises(io.SnapshotError, match=f"as attribute {name} of Neighbours"):
        io.read_neighbours(tmp_path / "k.hdf5")


def test_velocities_with_other_components_than_positions(snapshot, random) -> None:
    with h5py.File(snapshot, "a") as file:
        file.pop("PartType1/Velocities", None)
        file["PartType1/Velocities"] = random.random((500, 2))
    with pytest.raises(io.SnapshotError, match=r"/Velocities of shape \(500, 2\), but PartType1/Coordinates of"):
        io.read_snapshot(snapshot)


def test_shape_larger_than_the_file_raises(tmp_path) -> None:
    """The headers of the datasets state more rows than fit in any memory."""
    path, n = tmp_path / "k.hdf5", 1234567
    neighbours = io.Neighbours(distances=np.zeros((n, 1), np.float32), indices=np.zeros((n, 1), np.int16))
    io.write_neighbours(path, neighbours)
    content = path.read_bytes()
    assert content.count(n.to_bytes(8, "little")) >= 2
    path.write_bytes(content.replace(n.to_bytes(8, "little"), (2**50).to_bytes(8, "little")))
    with pytest.raises(io.SnapshotError, match="is truncated or damaged"):
        io.read_neighbours(path)
