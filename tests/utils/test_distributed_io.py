"""Reading and writing with many devices: shares, files of ranks, the joint file, and ranks that fail."""

import itertools
import os
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from jax.sharding import AxisType, Mesh
from processes import run_processes

from jztree.data import ParticleData, expand_particles, squeeze_particles
from jztree_utils import io
from jztree_utils.io import _processes, _sharded_reading

RANKS = [1, 2, 3, 4]


def make_mesh(ranks: int) -> Mesh:
    if len(jax.devices()) < ranks:
        pytest.skip(f"needs {ranks} devices; XLA_FLAGS=--xla_force_host_platform_device_count={ranks} gives them")
    return jax.make_mesh((ranks,), ("ranks",), axis_types=(AxisType.Auto,), devices=jax.devices()[:ranks])


def files(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def check_shares(part: Any, ranks: int, total: int, npad: int = 0) -> None:
    num = np.asarray(part.num)
    assert num.shape == (ranks,)
    assert num.sum() == part.num_total == total
    assert num.max() - num.min() <= 1
    assert part.pos.shape[:2] == (ranks, -(-total // ranks) + npad)
    for rank in range(ranks):
        assert not np.asarray(part.pos)[rank, num[rank] :].any()


# Reading


@pytest.mark.parametrize("ranks", RANKS)
@pytest.mark.parametrize("cuts", [(), (200, 200, 350), (0, 500), (1, 2, 3, 499)])  # some files are empty
def test_every_rank_gets_its_share(write_parts, tmp_path, random, ranks, cuts) -> None:
    pos, vel = random.random((500, 3), np.float32), random.normal(size=(500, 3)).astype(np.float32)
    ids = random.permutation(500).astype(np.uint32)
    write_parts(pos, cuts, Velocities=vel, ParticleIDs=ids)
    part, header = io.read_snapshot_sharded(tmp_path / "snap_003.0.hdf5", make_mesh(ranks), npad=7)
    check_shares(part, ranks, 500, npad=7)
    complete, whole_header = io.read_snapshot(tmp_path / "snap_003.0.hdf5")
    assert header == whole_header
    joined = squeeze_particles(part)
    for name in ("pos", "vel", "id"):
        np.testing.assert_array_equal(getattr(joined, name), getattr(complete, name))
        assert getattr(joined, name).dtype == getattr(complete, name).dtype
    np.testing.assert_array_equal(part.mass, np.full(ranks, 2.5, np.float32))


@pytest.mark.parametrize("total", [1, 2, 3, 5])
def test_fewer_particles_than_ranks(write_parts, tmp_path, random, total) -> None:
    pos = random.random((total, 2), np.float32)
    write_parts(pos, range(1, total))  # one file per row
    part, _ = io.read_snapshot_sharded(tmp_path / "snap_003.0.hdf5", make_mesh(4), npad=1, fields=("pos",))
    check_shares(part, 4, total, npad=1)
    np.testing.assert_array_equal(squeeze_particles(part).pos, pos)


@pytest.mark.parametrize("kind", [AxisType.Auto, AxisType.Explicit])
def test_mesh_of_several_axes(snapshot, kind) -> None:
    make_mesh(4)
    mesh = jax.make_mesh((2, 2), ("nodes", "gpus"), axis_types=(kind,) * 2, devices=jax.devices()[:4])
    part, _ = io.read_snapshot_sharded(snapshot, mesh, fields=("pos", "mass"))
    complete, _ = io.read_snapshot(snapshot, fields=("pos",))
    np.testing.assert_array_equal(squeeze_particles(jax.device_get(part)).pos, complete.pos)
    for shard in part.pos.addressable_shards:
        assert list(mesh.devices.flat)[shard.index[0].start] == shard.device
    assert part.mass.dtype == np.float32


@pytest.fixture
def rows_read(monkeypatch) -> list[tuple[str, str, int, int]]:
    """Record file, dataset, first row and end row of all reads."""
    read = []
    original = h5py.Dataset.read_direct

    def spy(self: h5py.Dataset, dest: np.ndarray, source_sel: Any = None, dest_sel: Any = None) -> None:
        start, stop, _ = source_sel.indices(self.shape[0])
        read.append((Path(self.file.filename).name, self.name, start, stop))
        original(self, dest, source_sel, dest_sel)

    monkeypatch.setattr(h5py.Dataset, "read_direct", spy)
    monkeypatch.setattr(h5py.Dataset, "__getitem__", lambda *_: pytest.fail("rows are read by read_direct only"))
    return read


@pytest.mark.parametrize("mine", list(itertools.combinations(range(4), 2)))
def test_process_reads_only_the_rows_of_its_devices(write_parts, tmp_path, random, rows_read, monkeypatch, mine):
    pos = random.random((100, 3), np.float32)
    cuts = [0, 10, 30, 30, 77, 100]
    write_parts(pos, cuts[1:-1])
    mesh = make_mesh(4)
    # Simulate a process that holds two of the four devices.
    monkeypatch.setattr(_sharded_reading, "_is_mine", lambda device: device.id in mine)
    monkeypatch.setattr(jax, "make_array_from_single_device_arrays", lambda shape, sharding, blocks: blocks)
    snapshot = io.open_snapshot(tmp_path / "snap_003.0.hdf5")
    blocks = io.shard_rows(lambda start, stop: snapshot.read("pos", start, stop), snapshot.num, mesh)
    own = {row for rank in mine for row in range(25 * rank, 25 * (rank + 1))}
    seen = [cuts[int(name.split(".")[1])] + row for name, _, start, stop in rows_read for row in range(start, stop)]
    assert sorted(seen) == sorted(own)  # each once
    for rank, block in zip(mine, blocks, strict=True):
        np.testing.assert_array_equal(block[0], pos[25 * rank : 25 * (rank + 1)])
        assert block.devices() == {mesh.devices.flat[rank]}


def test_every_row_is_read_once(write_parts, tmp_path, random, rows_read) -> None:
    write_parts(random.random((50, 3)), (20,), ParticleIDs=np.arange(50, dtype=np.uint32))
    io.read_snapshot_sharded(tmp_path / "snap_003.0.hdf5", make_mesh(4), fields=("pos", "id"))
    for dataset in ("/PartType1/Coordinates", "/PartType1/ParticleIDs"):
        read = sorted((file, start, stop) for file, name, start, stop in rows_read if name == dataset)
        first, second = "snap_003.0.hdf5", "snap_003.1.hdf5"
        assert read == [(first, 0, 12), (first, 12, 20), (second, 0, 5), (second, 5, 17), (second, 17, 30)]


def test_numbers_of_64_bits(tmp_path, write_gadget, random) -> None:
    pos, ids = random.random((9, 3)), random.integers(2**63, 2**64, 9, dtype=np.uint64)
    path = write_gadget(tmp_path / "a.hdf5", pos, columns={"ParticleIDs": ids})
    mesh = make_mesh(2)
    with pytest.raises(ValueError, match="only in its 64-bit mode"):
        io.read_snapshot_sharded(path, mesh, fields=("pos", "id"))
    part, _ = io.read_snapshot_sharded(path, mesh, fields=("pos", "id"), id_words=True)
    assert part.pos.dtype == np.float32
    np.testing.assert_array_equal(io.join_words(squeeze_particles(part).id), ids)
    with jax.enable_x64(True):
        part, _ = io.read_snapshot_sharded(path, mesh, fields=("pos", "id"))
        joined = squeeze_particles(part)
        np.testing.assert_array_equal(joined.pos, pos)
        np.testing.assert_array_equal(joined.id, ids)


@pytest.mark.parametrize("dtype", [np.int32, np.uint32, np.int64, np.uint64])
def test_integers_survive_splitting_into_words(dtype, random) -> None:
    info = np.iinfo(dtype)
    ids = np.concatenate(
        [np.asarray([info.min, info.max, 0, 1], dtype), random.integers(info.min, info.max, 50, dtype)]
    )
    words = io.split_words(ids)
    assert words.dtype == np.uint32
    np.testing.assert_array_equal(io.join_words(words, dtype), ids)


def test_masses_of_each_particle(tmp_path, write_gadget, random) -> None:
    mass = random.random(10).astype(np.float32)
    header = {"MassTable": np.zeros(6)}
    path = write_gadget(tmp_path / "a.hdf5", random.random((10, 3)), columns={"Masses": mass}, header=header)
    part, _ = io.read_snapshot_sharded(path, make_mesh(3), fields=("mass",), optional=("vel",))
    np.testing.assert_array_equal(squeeze_particles(part).mass, mass)
    assert part.vel is None


def test_read_errors_raise(snapshot, write_parts, random, tmp_path) -> None:
    mesh = make_mesh(2)
    with pytest.raises(io.SnapshotError, match="does not exist") as error:
        io.read_snapshot_sharded(tmp_path / "none.hdf5", mesh)
    assert error.value.told_by == 0
    with pytest.raises(io.SnapshotError, match="no dataset PartType1/Velocities"):
        io.read_snapshot_sharded(snapshot, mesh)
    with pytest.raises(ValueError, match="must return 2 rows"):
        io.shard_rows(lambda start, stop: np.zeros(3), 4, mesh)
    paths = write_parts(random.random((40, 3)), (20,))
    with h5py.File(paths[1], "a") as file:
        pos = file["PartType1/Coordinates"][()]
        del file["PartType1/Coordinates"]
        file["PartType1/Coordinates"] = pos.astype(np.float32)
    with pytest.raises(io.SnapshotError, match="write the parts in the same form"):
        io.read_snapshot_sharded(paths[0], mesh, fields=("pos",))


# Rows on the first process


def test_rows_are_collected_on_the_first_process(random) -> None:
    mesh = make_mesh(3)
    part = expand_particles(ParticleData(pos=random.random((10, 3)).astype(np.float32), id=np.arange(10)), 3, npad=2)
    for column, expected in ((part.pos, squeeze_particles(part).pos), (part.id, np.arange(10))):
        placed = jax.device_put(column, _sharded_reading._by_rank(mesh))
        num = jax.device_put(part.num, _sharded_reading._by_rank(mesh))
        np.testing.assert_array_equal(io.rows_on_first_process(placed, num, mesh), expected)


def test_blocks_are_sent_bitwise(random) -> None:
    mesh = make_mesh(4)
    for array in (
        np.asarray([[-0.0, np.nan], [np.inf, 1e-45], [0, 1], [2, 3]], np.float32),
        random.integers(-(2**31), 2**31, (4, 5)).astype(np.int32),
        random.random((4, 3)) < 0.5,
    ):
        placed = jax.device_put(array, _sharded_reading._by_rank(mesh))
        for rank in range(4):
            block = _processes._block(placed, rank, _processes._flat(mesh))
            np.testing.assert_array_equal(block.view(np.uint8), array[rank].view(np.uint8))


# Several processes


SCRIPT = """
from pathlib import Path
import h5py, jax, jax.numpy as jnp, numpy as np
from jax.sharding import PartitionSpec as P
from jztree.comm import initialize
initialize()
from jztree.jax_ext import shard_map_constructor
from jztree_utils import io
from jztree_utils.io import _rank_writer, _sharded_reading
folder = Path.cwd()
me = jax.process_index()
mesh = jax.make_mesh((4,), ("ranks",), axis_types=(jax.sharding.AxisType.Auto,))

read = []
original = h5py.Dataset.read_direct
def spy(self, dest, source_sel=None, dest_sel=None):
    read.append((Path(self.file.filename).name, self.name, source_sel.start, source_sel.stop))
    original(self, dest, source_sel, dest_sel)
h5py.Dataset.read_direct = spy
part, header = io.read_snapshot_sharded(folder / "snap_003.0.hdf5", mesh, fields=("pos", "id"), id_words=True)
expected = [("snap_003.0.hdf5", 0, 25), ("snap_003.0.hdf5", 25, 30), ("snap_003.1.hdf5", 0, 20)] if me == 0 else [
    ("snap_003.1.hdf5", 20, 45), ("snap_003.1.hdf5", 45, 70)]
for name in ("Coordinates", "ParticleIDs"):
    assert [(f, a, b) for f, n, a, b in read if n.endswith(name)] == expected, read

pos = io.rows_on_first_process(part.pos, part.num, mesh)
ids = io.rows_on_first_process(part.id, part.num, mesh)
whole, _ = io.read_snapshot(folder / "snap_003.0.hdf5", fields=("pos", "id"))
assert (pos is None) == (me == 1)
if me == 0:
    np.testing.assert_array_equal(pos, whole.pos)
    np.testing.assert_array_equal(io.join_words(ids), whole.id)

def write(part, name):
    return io.distr_write_hdf5(folder / name, part)
smap = shard_map_constructor(write, in_specs=(P(-1), None), out_specs=P(), static_argnames="name")(mesh, jit=True)
jax.block_until_ready(smap(part, "out"))
with h5py.File(folder / "out.hdf5") as file:
    np.testing.assert_array_equal(file["pos"][()], whole.pos)

def error_of(function):
    try:
        function()
    except Exception as error:
        return type(error).__name__, str(error)
    return None

def fail(*args):
    raise io.SnapshotError("Only here.")
if me == 1:
    _sharded_reading.open_snapshot = fail
kind, text = error_of(lambda: io.read_snapshot_sharded(folder / "snap_003.0.hdf5", mesh, fields=("pos",)))
assert (kind, text) == ("SnapshotError", "Only here."), (kind, text)

if me == 1:
    def no_space(path):
        raise OSError(28, "No space left on device")
    _rank_writer.fill_hdf5 = no_space
kind, text = error_of(lambda: jax.block_until_ready(smap(part, "bad")))
assert "jztree: rank 3 has no space left" in text, text
print("done", me)
"""


@pytest.mark.long
def test_two_processes(write_parts, tmp_path, random) -> None:
    pos = random.random((100, 3), np.float32)
    write_parts(pos, (30,), ParticleIDs=random.integers(0, 2**64, 100, np.uint64))
    for process, done in enumerate(run_processes(SCRIPT, timeout=120, cwd=tmp_path)):
        assert done.returncode == 0, done.output[-3000:]
        assert f"done {process}" in done.output
    written = ["out.0.hdf5", "out.1.hdf5", "out.2.hdf5", "out.3.hdf5", "out.hdf5"]
    assert files(tmp_path) == [*written, "snap_003.0.hdf5", "snap_003.1.hdf5"]
