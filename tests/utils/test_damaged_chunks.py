"""Chunk tables of HDF5 files with a flipped bit, and chunks that are unusual but valid."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np
import pytest

from jztree_utils import io

pytestmark = pytest.mark.fast

ROWS = 500
PACKED = {"chunks": (64, 3), "compression": "gzip", "shuffle": True}
# The parts of an entry in the chunk table, the key of a chunk of coordinates, with their byte offsets.
LEFT_OUT, FIRST_ROW, WITHIN_NUMBER, ADDRESS = 4, 8, 24, 32


class Chunked(NamedTuple):
    """A snapshot with chunked coordinates."""

    path: Path
    pos: np.ndarray

    def entry(self, number: int) -> int:
        """Return the byte at which the entry of a chunk begins."""
        with h5py.File(self.path) as file:
            chunk = file["PartType1/Coordinates"].id.get_chunk_info(number)
        entry = b"".join(part.to_bytes(8, "little") for part in (*chunk.chunk_offset, 0, chunk.byte_offset))
        content = self.path.read_bytes()
        assert content.count(entry) == 1
        return content.index(entry) - FIRST_ROW

    def flip(self, place: int, bit: int) -> None:
        content = bytearray(self.path.read_bytes())
        content[place + bit // 8] ^= 1 << bit % 8
        self.path.write_bytes(content)

    def read(self) -> np.ndarray:
        return np.asarray(io.read_snapshot(self.path, fields=("pos",))[0].pos)


@pytest.fixture
def chunked(snapshot: Path) -> Callable[..., Chunked]:
    def write(pos: np.ndarray | None = None, **options: Any) -> Chunked:
        with h5py.File(snapshot, "a") as file:
            rows = file["PartType1/Coordinates"][()] if pos is None else pos
            del file["PartType1/Coordinates"]
            file.create_dataset("PartType1/Coordinates", data=rows, **options)
        return Chunked(snapshot, rows)

    return write


@pytest.mark.parametrize(
    ("options", "number", "step"),
    [
        (PACKED, 2, 5),
        pytest.param({"chunks": (64, 3)}, 0, 1, marks=pytest.mark.slow),
        pytest.param(PACKED, 0, 1, marks=pytest.mark.slow),
        pytest.param(PACKED, 4, 1, marks=pytest.mark.slow),
    ],
)
def test_flipped_bit_of_an_entry_never_changes_numbers(
    chunked: Callable[..., Chunked], options: dict[str, Any], number: int, step: int
) -> None:
    """HDF5 returns zeros for a chunk that it does not find, and compressed bytes if filters are marked as skipped."""
    file = chunked(**options)
    entry, sound, refused = file.entry(number), file.path.read_bytes(), 0
    for bit in range(0, 8 * ADDRESS, step):
        file.flip(entry, bit)
        try:
            np.testing.assert_array_equal(file.read(), file.pos, err_msg=f"bit {bit} of the entry")
        except io.SnapshotError:
            refused += 1
        file.path.write_bytes(sound)
    assert refused > 6 * ADDRESS // step


@pytest.mark.parametrize(
    ("field", "bit", "says"),
    [
        (FIRST_ROW, 16, "only a part was written; write or copy it again"),
        (WITHIN_NUMBER, 9, "its metadata give a wrong position in the file for the rows from 64 on; write or copy it"),
        (LEFT_OUT, 0, "only a part was written"),
        (LEFT_OUT, 1, "only a part was written"),
        (LEFT_OUT, 17, "only a part was written"),
    ],
)
def test_an_entry_with_a_flipped_bit(
    chunked: Callable[..., Chunked], error_of: Callable[..., str], field: int, bit: int, says: str
) -> None:
    file = chunked(**PACKED)
    file.flip(file.entry(1) + field, bit)
    assert says in error_of("fof", file.path)


@pytest.mark.parametrize("defined", [True, False])
def test_stored_chunks_equal_to_the_fill_value(chunked: Callable[..., Chunked], defined: bool) -> None:
    """They are found, and their values are correct."""
    pos = np.zeros((ROWS, 3), np.float32)
    pos[:150], pos[420:] = 0.5, -7
    fill = {"fillvalue": -7} if defined else {"fill_time": "never"}
    for chunks in ((100, 3), (7, 1), (ROWS, 2)):
        file = chunked(pos, compression="gzip", chunks=chunks, **fill)
        np.testing.assert_array_equal(file.read(), pos)


def test_missing_chunk_without_fill_value(chunked: Callable[..., Chunked]) -> None:
    """HDF5 returns the previous content of the memory."""
    file = chunked(fill_time="never", **PACKED)
    file.flip(file.entry(3) + WITHIN_NUMBER, 9)
    with pytest.raises(io.SnapshotError, match="wrong position in the file for the rows from 192 on"):
        file.read()


@pytest.mark.parametrize("checksum", [False, True])
def test_chunks_that_did_not_compress(
    chunked: Callable[..., Chunked], random: np.random.Generator, checksum: bool
) -> None:
    """HDF5 skips a filter that does not compress; other software writes chunks without any filter."""
    noise = random.integers(2**23, 2**30, (ROWS, 3), dtype=np.int32).view(np.float32)
    file = chunked(noise, chunks=(50, 3), compression="lzf", fletcher32=checksum)
    with h5py.File(file.path, "a") as opened:
        data = opened["PartType1/Coordinates"].id
        assert data.get_chunk_info(0).filter_mask != 0
        data.write_direct_chunk((50, 0), file.pos[50:100].tobytes(), 3 if checksum else 1)
    np.testing.assert_array_equal(file.read(), file.pos)


# Addresses of datasets


def move(path: Path, name: str, by: int) -> None:
    """Change the address of a contiguous dataset."""
    with h5py.File(path) as file:
        data = file[name].id
        place = b"".join(number.to_bytes(8, "little") for number in (data.get_offset(), data.get_storage_size()))
        moved = (data.get_offset() + by).to_bytes(8, "little") + place[8:]
    content = path.read_bytes()
    assert content.count(place) == 1
    path.write_bytes(content.replace(place, moved))


@pytest.mark.parametrize("by", [-4000, -2048, 1, 16])
def test_overlapping_datasets_raise(snapshot: Path, error_of: Callable[..., str], by: int) -> None:
    """Its numbers would come from the other dataset, or from the bytes of a header."""
    with h5py.File(snapshot, "a") as file:
        pos = file["PartType1/Coordinates"][()]
        for name in ("Coordinates", "ParticleIDs"):
            del file[f"PartType1/{name}"]
        file["PartType1/ParticleIDs"] = np.arange(ROWS)
        file["PartType1/Coordinates"] = pos
        file["PartType1/Velocities"] = pos
    move(snapshot, "PartType1/Coordinates", by)
    assert "PartType1/Coordinates overlaps PartType1" in error_of("fof", snapshot)


def test_chunk_that_overlaps_another_dataset_raises(
    chunked: Callable[..., Chunked], error_of: Callable[..., str]
) -> None:
    file = chunked(chunks=(64, 3))
    with h5py.File(file.path, "a") as opened:
        data = opened.create_dataset("PartType1/Velocities", data=file.pos, chunks=(64, 3))
        second = data.id.get_chunk_info(2).byte_offset
    place = file.entry(1) + ADDRESS
    content = file.path.read_bytes()
    file.path.write_bytes(content[:place] + second.to_bytes(8, "little") + content[place + 8 :])
    assert "PartType1/Coordinates overlaps PartType1/Velocities; write" in error_of("fof", file.path)


def test_dataset_with_two_names(snapshot: Path) -> None:
    with h5py.File(snapshot, "a") as file:
        file["PartType1/Places"] = file["PartType1/Coordinates"]
    part, _ = io.read_snapshot(snapshot, fields=("pos",))
    assert part.pos.shape == (500, 3)


@pytest.mark.parametrize("bit", [0, 4, 7])
def test_nonstandard_float_types_raise(snapshot: Path, error_of: Callable[..., str], bit: int) -> None:
    """HDF5 converts them to standard floats, and multiplies them by a power of two in doing so."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_ebias(127 ^ 1 << bit)
    with h5py.File(snapshot, "a") as file:
        pos = file["PartType1/Coordinates"][()]
        del file["PartType1/Coordinates"]
        space = h5py.h5s.create_simple(pos.shape)
        h5py.h5d.create(file["PartType1"].id, b"Coordinates", kind, space).write(h5py.h5s.ALL, h5py.h5s.ALL, pos)
    assert "floats in an unknown format; write or copy it again" in error_of("fof", snapshot)


def test_numbers_in_the_header_of_a_dataset_are_read(chunked: Callable[..., Chunked]) -> None:
    layout = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    layout.set_layout(h5py.h5d.COMPACT)
    file = chunked(dcpl=layout)
    np.testing.assert_array_equal(file.read(), file.pos)
