"""Snapshots in group order: catalogue rows must be the members of the groups, for all types and datasets.

SciPy finds the groups independently, and the tests read files with h5py alone.
"""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree

from jztree_utils import cli, io
from jztree_utils.io import _columns, _row_order

RLINK, NPART_MIN, WITHIN = 0.02, 5, 6.4
NUMS = {0: 150, 1: 400, 3: 30, 4: 90, 5: 7}
ATTACHED = (0, 4, 5)
WORDS = h5py.h5t.STD_U64LE.copy()
WORDS.set_size(16)
WORDS.set_precision(128)


def particles(random: np.random.Generator) -> dict[int, dict[str, np.ndarray]]:
    """Return clumps of particles of several types, and particles between them, in random order."""
    centres = random.random((12, 3)) * 0.8 + 0.1
    result, first = {}, 1000
    for ptype, num in NUMS.items():
        pos = centres[random.integers(0, 12, num)] + random.normal(0, 0.008, (num, 3))
        alone = random.random(num) < 0.2
        pos[alone] = random.random((alone.sum(), 3))
        ids = first + random.permutation(num)
        first += num
        result[ptype] = {
            "Coordinates": pos.astype(np.float32),
            "Velocities": random.normal(0, 100, (num, 3)).astype(np.float32),
            "ParticleIDs": ids.astype(np.uint64),
        }
        if ptype != 1:
            result[ptype]["Masses"] = random.random(num).astype(">f4")
    result[0]["ElementAbundance/Oxygen"] = random.random(NUMS[0]).astype(np.float16)
    result[0]["Flags"] = random.integers(0, 2, (NUMS[0], 2, 2)).astype(np.int8)
    result[4]["Packed"] = random.random((NUMS[4], 3))
    return result


def write_types(folder: Path, held: dict[int, dict[str, np.ndarray]], shares: list[dict[int, int]]) -> list[Path]:
    """Write a snapshot in several files. shares: the number of particles of each type, per file."""
    begin = dict.fromkeys(held, 0)
    paths = []
    for number, share in enumerate(shares):
        name = f"snap_007.{number}.hdf5" if len(shares) > 1 else "snap_007.hdf5"
        paths.append(folder / name)
        with h5py.File(folder / name, "w") as file:
            write_header(file, held, share, len(shares))
            for ptype, num in share.items():
                if num:
                    rows = slice(begin[ptype], begin[ptype] + num)
                    group = file.create_group(f"PartType{ptype}")
                    write_group(group, {key: column[rows] for key, column in held[ptype].items()})
                begin[ptype] += num
    return paths


def write_header(file: h5py.File, held: dict[int, Any], share: dict[int, int], num_files: int) -> None:
    file.attrs["made by"] = "a test"
    count = lambda nums: np.array([nums.get(ptype, 0) for ptype in range(6)])  # noqa: E731
    totals = {ptype: len(columns["ParticleIDs"]) for ptype, columns in held.items()}
    file.create_group("Header").attrs.update(
        {
            "BoxSize": 1.0,
            "Time": 1.0,
            "Redshift": 0.0,
            "MassTable": [0, 2.5, 0, 0, 0, 0.0],
            "NumFilesPerSnapshot": np.int32(num_files),
            "NumPart_ThisFile": count(share).astype(np.int32),
            "NumPart_Total": count(totals).astype(np.uint32),
            "Note": np.bytes_("kept"),
        }
    )
    file["Parameters/table"] = np.arange(3)


def write_group(group: h5py.Group, columns: dict[str, np.ndarray]) -> None:
    group.attrs["held"] = "particles"
    for name, column in columns.items():
        packed = {"chunks": (7, 3), "compression": "gzip", "shuffle": True} if name == "Packed" else {}
        data = group.create_dataset(name, data=column, **packed)
        data.attrs["of"] = name
    group["Version"] = 3  # not one row per particle
    space = h5py.h5s.create_simple((len(columns["ParticleIDs"]),))
    wide = h5py.h5d.create(group.id, b"Wide", WORDS, space)
    words = np.stack([columns["ParticleIDs"], columns["ParticleIDs"] * 3], axis=1).astype("<u8")
    wide.write(h5py.h5s.ALL, h5py.h5s.ALL, words.view("V16")[:, 0].copy(), WORDS)


def read_rows(data: h5py.Dataset) -> np.ndarray:
    """Return all rows as bytes, ``(n, b)``."""
    kind = data.id.get_type()
    out = np.empty((len(data), int(np.prod(data.shape[1:])) * kind.get_size()), np.uint8)
    data.id.read(h5py.h5s.ALL, h5py.h5s.ALL, out, kind)
    return out


def read_types(paths: list[Path]) -> dict[str, np.ndarray]:
    """Return the rows of each dataset in the files, by name."""
    result: dict[str, list[np.ndarray]] = {}
    for path in paths:
        with h5py.File(path) as file:
            num = len(file["Header"].attrs["NumPart_ThisFile"])

            def look(name: str, item: Any) -> None:
                if name.startswith("PartType") and isinstance(item, h5py.Dataset) and item.ndim:
                    result.setdefault(name, []).append(read_rows(item))

            assert num == 6
            file.visititems(look)
    return {name: np.concatenate(rows) for name, rows in result.items()}


def find_members(held: dict[int, dict[str, np.ndarray]]) -> list[set[int]]:
    """Return the identifiers of the members of each group, by the definition, the largest group first."""
    pos = held[1]["Coordinates"].astype(np.float64) % 1
    tree = cKDTree(pos, boxsize=1)
    pairs = tree.query_pairs(RLINK, output_type="ndarray")
    links = coo_matrix((np.ones(len(pairs)), pairs.T), (len(pos), len(pos)))
    group = connected_components(links, directed=False)[1]
    members = [set(held[1]["ParticleIDs"][group == number].tolist()) for number in range(group.max() + 1)]
    for ptype in ATTACHED:
        distance, nearest = tree.query(held[ptype]["Coordinates"].astype(np.float64) % 1)
        for neighbours, row, item in zip(
            distance <= WITHIN * RLINK, nearest, held[ptype]["ParticleIDs"].tolist(), strict=True
        ):
            if neighbours:
                members[group[row]].add(item)
    return sorted((member for member in members if len(member) >= NPART_MIN), key=lambda item: (-len(item), min(item)))


@pytest.fixture
def held(random: np.random.Generator) -> dict[int, dict[str, np.ndarray]]:
    return particles(random)


@pytest.fixture
def parts(tmp_path: Path, held: dict[int, dict[str, np.ndarray]]) -> list[Path]:
    """Return a snapshot in three files. The first has no stars, and one file has all black holes."""
    shares = [{0: 10, 1: 300, 3: 1}, {0: 139, 1: 1, 3: 29, 4: 50, 5: 7}, {0: 1, 1: 99, 4: 40}]
    return write_types(tmp_path, held, shares)


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Use a file of blocks for rows, a few at a time."""
    monkeypatch.setattr(_row_order, "BLOCK_BYTES", 300)
    monkeypatch.setattr(_columns, "_SLICE_BYTES", 200)


FOF = ["--rlink", RLINK, "--npart-min", NPART_MIN, "--attach", "0,4,5", "--layout", "gadget4"]


def run(*arguments: Any) -> None:
    assert cli.main([str(argument) for argument in ("fof", *arguments)]) == 0


def check_group_order(path: Path, catalogue: Path, parts: list[Path], held: dict[int, Any]) -> None:
    """Compare a snapshot in group order with its input and with the members of groups."""
    members = find_members(held)
    assert len(members) > 8
    assert sum(map(len, members)) < sum(NUMS.values())
    before, after = read_types(parts), read_types([path])
    assert after.keys() == before.keys()
    with h5py.File(path) as file, h5py.File(catalogue) as groups:
        lengths, offsets = groups["Group/GroupLenType"][:], groups["Group/GroupOffsetType"][:]
        assert len(lengths) == len(members)
        for ptype, columns in held.items():
            ids = file[f"PartType{ptype}/ParticleIDs"][:]
            assert sorted(ids.tolist()) == sorted(columns["ParticleIDs"].tolist())
            rows = np.argsort(columns["ParticleIDs"])[np.searchsorted(np.sort(columns["ParticleIDs"]), ids)]
            for name in (name for name in before if name.startswith(f"PartType{ptype}/")):
                np.testing.assert_array_equal(after[name], before[name][rows], name)
            end = 0
            for group, expected in enumerate(members):
                first, count = offsets[group, ptype], lengths[group, ptype]
                assert first == end
                end = first + count
                required = expected & set(columns["ParticleIDs"].tolist()) if ptype in (1, *ATTACHED) else set()
                assert set(ids[first:end].tolist()) == required
                assert (np.diff(rows[first:end]) > 0).all()  # in snapshot order
            assert (np.diff(rows[end:]) > 0).all()


@pytest.mark.parametrize("ndev", [1, pytest.param(4, marks=pytest.mark.slow)])
def test_rows_of_groups_are_their_members(parts, held, tmp_path, use_devices, small_blocks, ndev) -> None:
    use_devices(ndev)
    run(parts[1], *FOF, "-o", tmp_path / "fof.hdf5", "--snapshot-output", tmp_path / "ordered.hdf5")
    check_group_order(tmp_path / "ordered.hdf5", tmp_path / "fof.hdf5", parts, held)


@pytest.mark.long
def test_metadata_is_kept(parts, tmp_path, one_device, small_blocks) -> None:
    run(parts[0], *FOF, "--snapshot-output", tmp_path / "ordered.hdf5")
    with h5py.File(tmp_path / "ordered.hdf5") as file:
        header = file["Header"].attrs
        assert header["NumPart_ThisFile"].tolist() == [NUMS.get(ptype, 0) for ptype in range(6)]
        assert header["NumPart_Total"].tolist() == header["NumPart_ThisFile"].tolist()
        assert (header["NumFilesPerSnapshot"], header["BoxSize"], header["Note"]) == (1, 1, b"kept")
        assert header["NumFilesPerSnapshot"].dtype == np.int32
        assert file.attrs["made by"] == "a test"
        assert file["Parameters/table"][:].tolist() == [0, 1, 2]
        assert file["PartType4"].attrs["held"] == "particles"
        assert file["PartType4/Version"][()] == 3
        assert file["PartType0/ElementAbundance/Oxygen"].attrs["of"] == "ElementAbundance/Oxygen"
        assert file["PartType0/Masses"].dtype == ">f4"
        packed = file["PartType4/Packed"]
        assert (packed.chunks, packed.compression, packed.shuffle) == ((7, 3), "gzip", True)
    part, _ = io.read_snapshot(tmp_path / "ordered.hdf5", 4)
    assert part.num == NUMS[4]


@pytest.mark.long
@pytest.mark.parametrize("ids", [True, False])
def test_output_does_not_depend_on_the_number_of_devices(held, tmp_path, use_devices, ids) -> None:
    names = {name: held[1][name] for name in ("Coordinates", "ParticleIDs")}
    parts = write_types(tmp_path, {1: names}, [{1: 150}, {1: NUMS[1] - 150}])
    for part in [] if ids else parts:
        with h5py.File(part, "r+") as file:
            file.move("PartType1/ParticleIDs", "PartType1/Names")
    call = ["--rlink", RLINK, "--layout", "gadget4", "--npart-min", NPART_MIN, "-o", tmp_path / "fof.hdf5"]
    for ndev in (1, 4):
        use_devices(ndev)
        run(parts[0], *call, "--snapshot-output", tmp_path / f"{ndev}.hdf5")
    assert (tmp_path / "1.hdf5").read_bytes() == (tmp_path / "4.hdf5").read_bytes()
    with h5py.File(tmp_path / "4.hdf5") as file, h5py.File(tmp_path / "fof.hdf5") as groups:
        ends, message = np.cumsum(groups["Group/GroupLen"][:]), groups["IDs/ID"][:]
        named = file["PartType1/ParticleIDs" if ids else "PartType1/Names"][:]
    for result, expected in zip(np.split(named, ends)[:-1], np.split(message, ends)[:-1], strict=True):
        assert sorted(result.tolist()) == sorted((expected if ids else held[1]["ParticleIDs"][expected]).tolist())


@pytest.mark.long
def test_numbers_of_groups(parts, held, tmp_path, one_device) -> None:
    run(parts[0], *FOF[:-2], "--group-ids-output", tmp_path / "numbered.hdf5")
    members = find_members(held)
    number = {group_member: group + 1 for group, group_members in enumerate(members) for group_member in group_members}
    before, after = read_types(parts), read_types([tmp_path / "numbered.hdf5"])
    with h5py.File(tmp_path / "numbered.hdf5") as file:
        assert file["Parameters"].attrs["FOF:group_id_default"] == b"2147483647"
        for ptype, columns in held.items():
            name = f"PartType{ptype}/FOFGroupIDs"
            expected = [number.get(column, 2147483647) for column in columns["ParticleIDs"].tolist()]
            assert file[name][:].tolist() == expected
            assert "friends-of-friends" in file[name].attrs["description"]
            del after[name]
    assert after.keys() == before.keys()
    for name, rows in before.items():
        np.testing.assert_array_equal(after[name], rows, name)


@pytest.mark.long
@pytest.mark.parametrize("num", [2, 3, 9])
def test_several_files_are_slices_of_the_single_file(num, parts, held, tmp_path, one_device, small_blocks) -> None:
    """Nine files lack some types: with 7 black holes, some have no group PartType5."""
    run(parts[0], *FOF, "-o", tmp_path / "fof.hdf5", "--snapshot-output", tmp_path / "one.hdf5")
    more = ["--snapshot-output", tmp_path / "many.hdf5", "--group-ids-output", tmp_path / "ids.hdf5"]
    run(parts[0], *FOF, *more, "--snapshot-files", num)
    pieces, numbered = ([tmp_path / f"{name}.{i}.hdf5" for i in range(num)] for name in ("many", "ids"))
    assert not (tmp_path / "many.hdf5").exists()
    complete, result = read_types([tmp_path / "one.hdf5"]), read_types(pieces)
    assert complete.keys() == result.keys()
    for name, rows in complete.items():
        np.testing.assert_array_equal(result[name], rows, name)
    counts = []
    for piece in pieces:
        with h5py.File(piece) as file:
            header = file["Header"].attrs
            counts.append(header["NumPart_ThisFile"])
            assert header["NumFilesPerSnapshot"] == num
            assert header["NumPart_Total"].tolist() == [NUMS.get(ptype, 0) for ptype in range(6)]
            held_here = {int(name[-1]): len(file[name]["ParticleIDs"]) for name in file if name.startswith("PartType")}
            assert held_here == {ptype: n for ptype, n in enumerate(counts[-1]) if n}
            assert file["Parameters/table"][:].tolist() == [0, 1, 2]
    assert np.ptp(counts, axis=0).max() <= 1
    assert np.sum(counts, axis=0).tolist() == [NUMS.get(ptype, 0) for ptype in range(6)]
    for ptype, columns in held.items():
        part, _ = io.read_snapshot(pieces[-1], ptype, fields=("pos", "id"))
        assert sorted(part.id.tolist()) == sorted(columns["ParticleIDs"].tolist())
    again, before = read_types(numbered), read_types(parts)
    for name, rows in before.items():
        np.testing.assert_array_equal(again[name], rows, name)
    assert {name for name in again if name.endswith("FOFGroupIDs")} == {f"PartType{t}/FOFGroupIDs" for t in NUMS}


@pytest.mark.long
def test_finished_copies_are_recognised(parts, tmp_path, one_device, capsys) -> None:
    call = (parts[0], *FOF, "--snapshot-output", tmp_path / "{name}_ordered.hdf5", "--snapshot-files", 2)
    run(*call)
    first = tmp_path / "snap_007_ordered.0.hdf5"
    before = first.stat().st_mtime_ns
    run(*call)
    assert "exists already, with the same options" in capsys.readouterr().out
    assert first.stat().st_mtime_ns == before
    (tmp_path / "snap_007_ordered.1.hdf5").unlink()
    run(*call)
    assert first.stat().st_mtime_ns > before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (
            ["--snapshot-files", "2"],
            "--snapshot-files 2 has no effect without --snapshot-output or --group-ids-output;",
        ),
        (["--snapshot-files", "0", "--snapshot-output", "x.hdf5"], "--snapshot-files is 0; it must be at least 1."),
    ],
)
def test_invalid_numbers_of_files(arguments, words, snapshot, error_of, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert words in error_of("fof", snapshot, *arguments)
    with pytest.raises(ValueError, match="num_files is 0"):
        io.names_of_files("a.hdf5", 0)


def test_files_of_the_input_are_not_overwritten(parts, error_of) -> None:
    output = parts[0].with_name("snap_007.hdf5")
    words = "snap_007.0.hdf5 would overwrite a file of the input"
    assert words in error_of("fof", parts[0], *FOF, "--snapshot-output", output, "--snapshot-files", 2)
