"""Copies of whole snapshots: refused inputs, additional data of SWIFT files, and when copies are rewritten."""

import re
from pathlib import Path

import h5py
import numpy as np
import pytest

from jztree_utils import cli, io

RLINK = ["--rlink", "0.05", "--npart-min", "2"]


@pytest.fixture
def swift(tmp_path: Path, random: np.random.Generator) -> Path:
    """Return a SWIFT file with cells and alternative group names."""
    path = tmp_path / "swift_0003.hdf5"
    with h5py.File(path, "w") as file:
        count = np.array([0, 200, 0, 0, 0, 0, 0])
        header = {"Code": np.bytes_("SWIFT"), "BoxSize": [1.0] * 3, "Redshift": [0.0], "Scale-factor": [1.0]}
        header |= {"NumPart_ThisFile": count, "NumPart_Total": count.astype(np.uint32), "NumFilesPerSnapshot": [1]}
        file.create_group("Header").attrs.update(header)
        units = {"Unit length in cgs (U_L)": 3e24, "Unit mass in cgs (U_M)": 2e43, "Unit time in cgs (U_t)": 3e19}
        file.create_group("Units").attrs.update({name: [value] for name, value in units.items()})
        group = file.create_group("PartType1")
        group["Coordinates"] = random.random((200, 3))
        group["Masses"] = np.ones(200, np.float32)
        group["ParticleIDs"] = np.arange(200)[::-1].copy()
        group.attrs.update({"NumberOfParticles": [200], "NumberOfFields": [3]})
        file["DMParticles"] = h5py.SoftLink("/PartType1")
        file["DarkMatter"] = group
        file["Cells/OffsetsInFile/PartType1"] = [0, 100]
    return path


def test_swift_in_group_order_has_no_cells(swift, tmp_path, one_device) -> None:
    output = tmp_path / "ordered.hdf5"
    assert cli.main(["fof", str(swift), *RLINK, "--snapshot-output", str(output)]) == 0
    with h5py.File(output) as file:
        assert "Cells" not in file
        for name in ("DMParticles", "DarkMatter"):
            assert file[name] == file["PartType1"]
        assert sorted(file["DMParticles/ParticleIDs"][:].tolist()) == list(range(200))


def test_copy_of_virtual_datasets(swift, tmp_path, one_device) -> None:
    """Rows of virtual datasets become rows of the copy."""
    shown = tmp_path / "shown_0003.hdf5"
    with h5py.File(swift) as source, h5py.File(shown, "w") as file:
        for name in ("Header", "Units"):
            source.copy(name, file)
        for name, data in source["PartType1"].items():
            layout = h5py.VirtualLayout(data.shape, data.dtype)
            layout[:] = h5py.VirtualSource(swift.name, f"PartType1/{name}", data.shape)
            file.create_virtual_dataset(f"PartType1/{name}", layout)
    io.copy_snapshot(tmp_path / "copy.hdf5", io.find_parts(shown))
    with h5py.File(swift) as source, h5py.File(tmp_path / "copy.hdf5") as file:
        for name, data in source["PartType1"].items():
            assert not file["PartType1"][name].is_virtual
            np.testing.assert_array_equal(file["PartType1"][name], data)


def test_rows_of_variable_length_are_refused(snapshot, tmp_path, error_of) -> None:
    with h5py.File(snapshot, "r+") as file:
        names = file.create_dataset("PartType1/Names", (500,), h5py.string_dtype())
        names[:] = "x"
    err = error_of("fof", snapshot, *RLINK, "--snapshot-output", tmp_path / "ordered.hdf5")
    assert "PartType1/Names with rows of variable length" in err
    assert not (tmp_path / "ordered.hdf5").exists()


def test_parts_that_hold_different_datasets_are_refused(write_parts, random, tmp_path, refused) -> None:
    parts = write_parts(random.random((30, 3)), (10,), Extra=np.arange(30.0))
    with h5py.File(parts[1], "r+") as file:
        del file["PartType1/Extra"]
    with refused(f"Only one of {parts[0]} and {parts[1]} holds PartType1/Extra"):
        io.copy_snapshot(tmp_path / "copy.hdf5", parts)
    with h5py.File(parts[1], "r+") as file:
        file["PartType1/Extra"] = np.arange(20)
    with refused(f"{parts[1]} holds PartType1/Extra in rows of another shape or type than {parts[0]}"):
        io.copy_snapshot(tmp_path / "copy.hdf5", parts)


def test_invalid_orders_raise(snapshot, tmp_path) -> None:
    with pytest.raises(ValueError, match="An order of 3 rows does not contain every row from 0 on once"):
        io.RowOrder(np.array([0, 2, 2]))
    with pytest.raises(ValueError, match="The order of type 1 has 3 rows, but the snapshot has 500 particles"):
        io.copy_snapshot(tmp_path / "copy.hdf5", [snapshot], order={1: io.RowOrder(np.arange(3))})


def test_arrays_are_not_copied(tmp_path, random, error_of) -> None:
    np.save(tmp_path / "points.npy", random.random((50, 3)))
    err = error_of("fof", tmp_path / "points.npy", *RLINK, "--boxsize", 1, "--snapshot-output", tmp_path / "out.hdf5")
    assert "points.npy is not read as an HDF5 snapshot of Gadget, AREPO, GIZMO or SWIFT" in err


def test_datasets_by_name_are_not_copied(snapshot, tmp_path, error_of) -> None:
    """They may be of another type than the file states."""
    reading = ["--format", "hdf5", "--pos", "PartType1/Coordinates", "--boxsize", 1]
    err = error_of("fof", snapshot, *reading, *RLINK, "--group-ids-output", tmp_path / "out.hdf5")
    assert "is not read as an HDF5 snapshot" in err


def test_no_groups(snapshot, tmp_path, one_device) -> None:
    ordered, numbered = tmp_path / "ordered.hdf5", tmp_path / "numbered.hdf5"
    call = ["fof", str(snapshot), "--rlink", "1e-5", "--snapshot-output", str(ordered)]
    assert cli.main([*call, "--group-ids-output", str(numbered)]) == 0
    with h5py.File(ordered) as file, h5py.File(numbered) as second:
        assert file["PartType1/ParticleIDs"][:].tolist() == list(range(500))
        assert set(second["PartType1/FOFGroupIDs"][:].tolist()) == {2147483647}


def test_the_input_is_not_overwritten(snapshot, error_of) -> None:
    assert "would overwrite a file of the input" in error_of("fof", snapshot, *RLINK, "--snapshot-output", snapshot)


def test_offsets_without_a_snapshot_in_group_order_warn(snapshot, tmp_path, one_device, capsys) -> None:
    call = ["fof", str(snapshot), *RLINK, "--layout", "gadget4", "-o", str(tmp_path / "fof.hdf5")]
    assert cli.main(call) == 0
    assert re.search(r"refer to the snapshot in group order, .*--snapshot-output FILE", capsys.readouterr().err)
    assert cli.main([*call, "--snapshot-output", str(tmp_path / "ordered.hdf5")]) == 0
    assert "group order" not in capsys.readouterr().err
    native = str(tmp_path / "native.hdf5")
    assert cli.main(["fof", str(snapshot), *RLINK, "-o", native]) == 0
    assert "group order" not in capsys.readouterr().err
    for held, warned in ((native, True), (str(tmp_path / "fof.hdf5"), False)):
        assert cli.main(["convert", held, "-o", str(tmp_path / "other.hdf5"), "--layout", "gadget4"]) == 0
        assert ("group order" in capsys.readouterr().err) == warned


def test_existing_copies_are_not_made_again(write_gadget, random, tmp_path, one_device, capsys) -> None:
    path = write_gadget(tmp_path / "snap_003.hdf5", random.random((60, 3), np.float32))
    outputs = ["-o", str(tmp_path / "fof_{n}.hdf5"), "--snapshot-output", str(tmp_path / "ordered_{n}.hdf5")]
    call = ["fof", str(path), *RLINK, *outputs]
    assert cli.main(call) == 0
    built = (tmp_path / "ordered_003.hdf5").stat().st_mtime_ns
    assert cli.main(call) == 0
    assert "exists already" in capsys.readouterr().out
    assert (tmp_path / "ordered_003.hdf5").stat().st_mtime_ns == built
    (tmp_path / "fof_003.hdf5").unlink()
    assert cli.main(call) == 0
    assert (tmp_path / "ordered_003.hdf5").stat().st_mtime_ns > built
    (tmp_path / "fof_003.hdf5").unlink()
    assert cli.main([*call, "--npart-min", "3"]) == 2
    assert "ordered_003.hdf5 exists already, but was made with --npart-min 2" in capsys.readouterr().err


def test_existing_group_numbers_are_replaced(swift, tmp_path, one_device) -> None:
    with h5py.File(swift, "r+") as file:
        file["PartType1/FOFGroupIDs"] = np.zeros(200, np.int32)
        file.create_group("Parameters").attrs["FOF:group_id_default"] = np.bytes_("7")
    output = tmp_path / "numbered.hdf5"
    call = ["fof", str(swift), *RLINK, "-o", str(tmp_path / "fof.hdf5"), "--layout", "swift"]
    assert cli.main([*call, "--group-ids-output", str(output)]) == 0
    with h5py.File(output) as file, h5py.File(tmp_path / "fof.hdf5") as catalogue:
        numbers, none = file["PartType1/FOFGroupIDs"][:], int(file["Parameters"].attrs["FOF:group_id_default"])
        counted = np.bincount(numbers[numbers != none], minlength=len(catalogue["Groups/Sizes"]) + 1)
        np.testing.assert_array_equal(counted[catalogue["Groups/GroupIDs"]], catalogue["Groups/Sizes"])
        assert counted[0] == 0
        assert file["PartType1/FOFGroupIDs"].attrs["U_M exponent"].tolist() == [0]
        assert file["PartType1"].attrs["NumberOfFields"].tolist() == [4]
        assert file["Cells/OffsetsInFile/PartType1"][:].tolist() == [0, 100]  # rows have not moved
