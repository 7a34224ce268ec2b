"""Integers of 3 or 6 bytes in HDF5 files, for which h5py has no dtype, are read as the next wider type."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from jztree_utils import io
from jztree_utils.io._row_order import RowOrder

pytestmark = [pytest.mark.fast, pytest.mark.usefixtures("small_slices")]

_ALL = h5py.h5s.ALL


def integer_type(size: int, *, signed: bool = False, big: bool = False, bits: int = 0) -> Any:
    """Return the HDF5 type of integers with ``size`` bytes."""
    kind = (h5py.h5t.STD_I64LE if signed else h5py.h5t.STD_U64LE).copy()
    kind.set_size(size)
    kind.set_precision(bits or 8 * size)
    if big:
        kind.set_order(h5py.h5t.ORDER_BE)
    return kind


def replace_dataset(file: h5py.File, name: str, values: np.ndarray, kind: Any, plist: Any = None) -> None:
    """Write ``values`` as a dataset of another type, replacing any dataset of the same name."""
    if name in file:
        del file[name]
    space = h5py.h5s.create_simple(values.shape)
    built = h5py.h5d.create(file.id, name.encode(), kind, space, plist)
    built.write(_ALL, _ALL, np.ascontiguousarray(values))


def layout_of(name: str, num: int, fill: int) -> Any:
    """Return the storage layout of a dataset."""
    plist = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    if name == "contiguous":
        return plist
    plist.set_chunk((num,))
    if name == "compressed":
        plist.set_shuffle()
        plist.set_deflate(4)
    if name == "filled":
        plist.set_fill_value(np.array(fill))
    return plist


@pytest.mark.parametrize("layout", ["contiguous", "chunked", "compressed", "filled"])
@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("signed", [False, True])
@pytest.mark.parametrize("size", [3, 5, 6, 7])
def test_identifiers_of_any_size_are_read(snapshot, random, size, signed, big, layout) -> None:
    maximum = 2 ** (8 * size - signed)
    ids = random.integers(-maximum if signed else 0, maximum, 500)
    ids[:70] = maximum - 5  # chunks that hold only the fill value, like missing ones
    ids[70:] = np.where(np.arange(430) == 0, maximum - 1, ids[70:])
    kind = integer_type(size, signed=signed, big=big)
    with h5py.File(snapshot, "r+") as file:
        replace_dataset(file, "PartType1/ParticleIDs", ids, kind, layout_of(layout, 10, maximum - 5))
    result = io.open_snapshot(snapshot)
    np.testing.assert_array_equal(result.read("id"), ids)
    np.testing.assert_array_equal(result.read("id", 37, 333), ids[37:333])
    assert result.read("id").dtype == np.dtype(f"{'i' if signed else 'u'}{4 if size == 3 else 8}")


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("layout", ["contiguous", "filled"])
def test_a_copy_of_a_snapshot_has_the_same_bytes(snapshot, tmp_path, random, layout, big) -> None:
    ids, order = random.integers(0, 2**48, 500), random.permutation(500)
    ids[:40] = ids[0]
    kind = integer_type(6, big=big)
    with h5py.File(snapshot, "r+") as file:
        replace_dataset(file, "PartType1/ParticleIDs", ids, kind, layout_of(layout, 10, int(ids[0])))
    io.copy_snapshot(tmp_path / "copy.hdf5", [snapshot], order={1: RowOrder(order)})
    np.testing.assert_array_equal(io.open_snapshot(tmp_path / "copy.hdf5").read("id"), ids[order])
    with h5py.File(tmp_path / "copy.hdf5") as file:
        assert file["PartType1/ParticleIDs"].id.get_type() == kind


@pytest.mark.parametrize("bits", [24, 48])
def test_integer_coordinates_are_fractions_of_their_range(snapshot, tmp_path, random, bits) -> None:
    pos = random.integers(0, 2**bits, (500, 3))
    pos[0] = 2**bits - 1
    with h5py.File(snapshot, "r+") as file:
        del file["PartType1/Coordinates"]
        replace_dataset(file, "PartType1/IntCoordinates", pos, integer_type(bits // 8))
    result = io.open_snapshot(snapshot).read("pos")
    np.testing.assert_allclose(result, pos / 2.0**bits, rtol=1e-15)
    assert result.max() < 1


def test_counts_of_a_header_may_have_six_bytes(snapshot, tmp_path) -> None:
    with h5py.File(snapshot, "r+") as file:
        header = file["Header"]
        for name in ("NumPart_ThisFile", "NumPart_Total"):
            counts = np.asarray(header.attrs[name], np.int64)
            del header.attrs[name]
            h5py.h5a.create(header.id, name.encode(), integer_type(6), h5py.h5s.create_simple((6,))).write(counts)
        h5py.h5a.create(file["PartType1"].id, b"Kind", integer_type(3), h5py.h5s.create_simple((2,))).write(counts[:2])
    assert io.read_header(snapshot).npart_total == (0, 500, 0, 0, 0, 0)
    io.copy_snapshot(tmp_path / "copy.hdf5", [snapshot])
    assert io.read_header(tmp_path / "copy.hdf5").npart_total == (0, 500, 0, 0, 0, 0)
    with h5py.File(tmp_path / "copy.hdf5") as file:
        np.testing.assert_array_equal(file["PartType1"].attrs["Kind"], counts[:2])


def test_catalogues_and_data_sets_may_have_six_bytes(tmp_path, random) -> None:
    catalogue, data = tmp_path / "fof_tab_000.hdf5", tmp_path / "data.hdf5"
    lengths, ids = np.array([30, 20]), random.integers(0, 2**48, 50)
    with h5py.File(catalogue, "w") as file:
        header = {"Ngroups_ThisFile": 2, "Ngroups_Total": 2, "NumFiles": 1, "Redshift": 0.0, "BoxSize": 1.0}
        file.create_group("Header").attrs.update(header)
        file["Group/GroupPos"] = random.random((2, 3))
        replace_dataset(file, "Group/GroupLen", lengths, integer_type(6))
        file.create_group("IDs")
        replace_dataset(file, "IDs/ID", ids, integer_type(6, big=True))
    result = io.read_catalogue(catalogue)
    np.testing.assert_array_equal(result.catalogue.count, lengths)
    np.testing.assert_array_equal(result.ids, ids)
    with h5py.File(data, "w") as file:
        file.create_group("part")
        replace_dataset(file, "part/id", ids, integer_type(6))
        replace_dataset(file, "part/num", np.array(50), integer_type(3))
    np.testing.assert_array_equal(io.read_h5file(data)["part"]["id"], ids)
    assert io.read_h5file(data)["part"]["num"] == 50


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        (integer_type(12), "integers of 12 bytes that NumPy does not support"),
        (integer_type(6, bits=40), "integers of 6 bytes that NumPy does not support"),
        (h5py.h5t.UNIX_D32LE, "a type that NumPy does not support"),
    ],
)
def test_types_that_numpy_lacks_are_named(snapshot, kind, words, refused) -> None:
    with h5py.File(snapshot, "r+") as file:
        del file["PartType1/ParticleIDs"]
        h5py.h5d.create(file.id, b"PartType1/ParticleIDs", kind, h5py.h5s.create_simple((500,)))
    with refused(f"holds PartType1/ParticleIDs as {words}; write it as numbers of 32 or 64 bits."):
        io.open_snapshot(snapshot).read("id")


def test_attribute_of_a_type_that_numpy_lacks_is_named(snapshot: Path, refused) -> None:
    with h5py.File(snapshot, "r+") as file:
        del file["Header"].attrs["NumPart_Total"]
        h5py.h5a.create(file["Header"].id, b"NumPart_Total", integer_type(12), h5py.h5s.create_simple((6,)))
    with refused("data of another type as attribute NumPart_Total of Header"):
        io.read_header(snapshot)
