"""Outputs that are symbolic links to themselves, and NumPy file headers that NumPy does not trust."""

import os
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from jztree_utils import cli, io

pytestmark = [pytest.mark.usefixtures("one_device"), pytest.mark.fast]


@pytest.mark.parametrize(
    "arguments",
    [
        ["fof", "-o", "loop.hdf5"],
        ["fof", "-o", "one.hdf5"],
        ["fof", "-o", "folder/out.hdf5"],
        ["fof", "--plot", "loop.hdf5.png"],
        ["fof", "--snapshot-output", "loop.hdf5"],
        ["fof", "--group-ids-output", "loop.hdf5"],
        ["knn", "-o", "loop.hdf5"],
        ["xi", "-o", "loop.hdf5"],
        ["convert", "-o", "loop.hdf5"],
    ],
)
def test_an_output_that_links_to_itself_is_refused(arguments, snapshot, error_of, monkeypatch) -> None:
    monkeypatch.chdir(snapshot.parent)
    for link, target in (("loop.hdf5",) * 2, ("loop.hdf5.png",) * 2, ("folder",) * 2, ("one.hdf5", "two.hdf5")):
        os.symlink(target, link)
    os.symlink("one.hdf5", "two.hdf5")
    command, flag, name = arguments
    expected = f"The output {name} cannot be written (Too many levels of symbolic links); choose another name."
    assert error_of(command, snapshot, flag, name) == f"jztree: error: {expected}\n"
    assert os.readlink("loop.hdf5") == "loop.hdf5"


def test_a_link_to_a_new_file_is_followed(snapshot, tmp_path) -> None:
    os.symlink("new.hdf5", tmp_path / "link.hdf5")
    assert cli.main(["fof", str(snapshot), "-q", "-o", str(tmp_path / "link.hdf5")]) == 0
    assert io.is_catalogue(tmp_path / "new.hdf5")
    assert os.readlink(tmp_path / "link.hdf5") == "new.hdf5"


@pytest.mark.parametrize(("parent", "told_of"), [("gone", "create the folder first"), ("a.txt", "create the folder")])
def test_a_folder_that_is_missing_or_a_file_is_named(parent, told_of, tmp_path) -> None:
    (tmp_path / "a.txt").touch()
    with pytest.raises(io.OutputError, match=told_of):
        io.check_output(tmp_path / parent / "out.hdf5")


def long_head(version: int, length: int) -> bytes:
    """Return an array (9, 3) of float64 with a header of ``length`` bytes."""
    head = "{'descr': '<f8', 'fortran_order': False, 'shape': (9, 3), }"
    size = struct.pack("<H" if version == 1 else "<I", length)
    return b"\x93NUMPY" + bytes([version, 0]) + size + head.ljust(length - 1).encode() + b"\n"


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "b.npz"])
@pytest.mark.parametrize(("version", "length"), [(1, 10_001), (1, 65_535), (2, 200_000)])
def test_header_that_numpy_refuses_is_refused(tmp_path, refused, name, version, length) -> None:
    data = long_head(version, length) + np.arange(27.0).tobytes()
    (tmp_path / "a.npy").write_bytes(data)
    for archive, packed in (("a.npz", zipfile.ZIP_STORED), ("b.npz", zipfile.ZIP_DEFLATED)):
        with zipfile.ZipFile(tmp_path / archive, "w", packed) as file:
            file.writestr("pos.npy", data)
    what = "the array" if name == "a.npy" else "pos"
    with refused(
        f"has a header of {length:,} bytes for {what}, but arrays of numbers need at most 10,000; write only the"
    ):
        io.open_snapshot(tmp_path / name)


@pytest.mark.parametrize("version", [1, 2])
def test_longest_header_that_numpy_accepts_is_read(tmp_path: Path, version: int) -> None:
    (tmp_path / "a.npy").write_bytes(long_head(version, 10_000) + np.arange(27.0).tobytes())
    np.testing.assert_array_equal(io.open_snapshot(tmp_path / "a.npy").read("pos"), np.arange(27.0).reshape(9, 3))
    np.testing.assert_array_equal(np.load(tmp_path / "a.npy"), np.arange(27.0).reshape(9, 3))
