"""Reading with many devices and processes: every process reads the rows of its own devices, and nothing else.

`shard_rows` deals out rows of anything that can be read by ranges, `read_snapshot_sharded` those of a snapshot.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jztree.data import ParticleData, check_carried, fits_float32

from ._files import PathLike
from ._header import SnapshotHeader
from ._processes import failing_together
from ._read_options import ReadOptions
from ._snapshot import Snapshot, open_snapshot


def share(total: int, rank: int, ndev: int) -> tuple[int, int]:
    """The first row of a rank and the one behind its last, if ``total`` rows are dealt out equally, off by one."""
    return total * rank // ndev, total * (rank + 1) // ndev


def shard_rows(read_rows: Callable[[int, int], np.ndarray], total: int, mesh: Mesh, npad: int = 0) -> jax.Array:
    """Rows dealt out to all devices of a mesh in equal consecutive blocks, of which each process reads its own only.

    read_rows: ``read_rows(start, stop)`` gives the rows from ``start`` to ``stop`` as a NumPy array ``(stop - start,
        ...)``. It is called once for each device of this process, also with ``start == stop``.
    total: rows in all, the same on every process.
    mesh: the devices; rank r is the r-th of ``mesh.devices.flat``.
    npad: rows of padding to add on every device.

    Returns ``(r, ceil(total / r) + npad, ...)``, spread over the devices by its first axis. Numbers of 64 bits become
    32 bits unless JAX's 64-bit mode is on. Raises ValueError if no device of the mesh belongs to this process,
    ``read_rows`` gives another number of rows, or integers do not fit into 32 bits then.
    """
    ndev = mesh.size
    rows = -(-total // ndev) + npad
    blocks = []
    for rank, device in enumerate(mesh.devices.flat):
        if _is_mine(device):
            start, stop = share(total, rank, ndev)
            blocks.append(jax.device_put(_padded(read_rows(start, stop), stop - start, rows), device))
    if not blocks:
        raise ValueError(f"Process {jax.process_index()} has none of the {ndev} devices of the mesh; use its devices.")
    return jax.make_array_from_single_device_arrays((ndev, *blocks[0].shape[1:]), _by_rank(mesh), blocks)


def _is_mine(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _padded(read: np.ndarray, num: int, rows: int) -> np.ndarray:
    """``(1, rows, ...)``: what was read and zeros behind it, in a dtype that JAX has."""
    if read.shape[:1] != (num,):
        raise ValueError(f"read_rows was asked for {num} rows, but gave an array of shape {read.shape}.")
    check_carried(read)
    padded = np.zeros((1, rows, *read.shape[1:]), jax.dtypes.canonicalize_dtype(read.dtype))
    padded[0, :num] = read
    return padded


def _by_rank(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P(mesh.axis_names))


def _one_each(values: np.ndarray, mesh: Mesh) -> jax.Array:
    """``(r,)``: one number for each rank."""
    return jax.make_array_from_callback(values.shape, _by_rank(mesh), lambda index: values[index])


def num_of_each_rank(total: int, mesh: Mesh) -> jax.Array:
    """``(r,)`` int32: how many of the rows that `shard_rows` has dealt out are those of each rank."""
    shares = [share(total, rank, mesh.size) for rank in range(mesh.size)]
    return _one_each(np.asarray([stop - start for start, stop in shares], np.int32), mesh)


def read_snapshot_sharded(
    path: PathLike,
    mesh: Mesh,
    npad: int = 0,
    ptype: int = 1,
    fields: Sequence[str] = ("pos", "mass", "vel", "id"),
    optional: Sequence[str] = (),
    id_words: bool = False,
    options: ReadOptions | None = None,
) -> tuple[ParticleData, SnapshotHeader]:
    """Particles of one type, dealt out to all devices of a mesh; each process reads the rows of its devices only.

    path, ptype, fields, optional, options: as in `read_snapshot`; the snapshot may have any number of files.
    mesh: the devices of all processes; rank r is the r-th of ``mesh.devices.flat``.
    npad: rows of padding to add on every device.
    id_words: give identifiers as two words of 32 bits, the low one first, which JAX holds in its default 32-bit mode
        too; `join_words` puts them together again.

    Returns the particles and the header. With ``r`` devices and ``n = ceil(total / r) + npad`` rows a device:
    pos, vel: ``(r, n, d)`` float32 or float64; float64 become float32 unless JAX's 64-bit mode is on. Units as in
        `read_snapshot`.
    mass: ``(r, n)``, or ``(r,)`` if all particles share it, in the dtype of ``pos`` then.
    id: ``(r, n)`` integers, or ``(r, n, 2)`` uint32 with ``id_words``.
    num: ``(r,)`` int32, equal but for one at most. num_total: all particles.

    All processes must call this. Raises, on all of them if on any, like `read_snapshot`, and ValueError if identifiers
    have 64 bits, JAX's 64-bit mode is off, and ``id_words`` is not set.
    """
    with failing_together(mesh):
        snapshot = open_snapshot(path, ptype, options)
        part = shard_snapshot(snapshot, mesh, snapshot.present(fields, optional), npad, id_words)
    return part, snapshot.header


def shard_snapshot(
    snapshot: Snapshot,
    mesh: Mesh,
    names: Sequence[str],
    npad: int = 0,
    id_words: bool = False,
    advance: Callable[[int], None] | None = None,
    finite: bool = False,
) -> ParticleData:
    """The properties ``names``, positions among them, of the particles of a snapshot, as in `read_snapshot_sharded`.

    advance: called now and then with the number of rows of a property that this process has read since.
    finite: as in `Snapshot.read`.

    Errors are those of this process alone; see `failing_together`.
    """

    def read(name: str, start: int, stop: int) -> np.ndarray:
        rows: np.ndarray = snapshot.read(name, start, stop, advance, finite=finite)
        if name == "id":
            return _as_jax_holds(rows, id_words)
        check_carried({name: rows})
        return rows

    shared = snapshot.shared_mass if "mass" in names else None
    read_here = [name for name in names if name != "mass" or shared is None]
    columns: dict[str, Any] = {
        name: shard_rows(functools.partial(read, name), snapshot.num, mesh, npad) for name in read_here
    }
    if shared is not None:
        masses = np.full(mesh.size, shared)
        check_carried({"mass": masses})
        if fits_float32(shared):
            masses = masses.astype(columns["pos"].dtype)
        columns["mass"] = _one_each(masses, mesh)
    num = num_of_each_rank(snapshot.num, mesh)
    return ParticleData(**columns, num=num, num_total=snapshot.num)


def _as_jax_holds(ids: np.ndarray, words: bool) -> np.ndarray:
    """Identifiers as words, or as they are. Raises ValueError if JAX would drop their upper bits."""
    if words:
        return split_words(ids)
    if jax.dtypes.canonicalize_dtype(ids.dtype) != ids.dtype:
        raise ValueError(
            "The identifiers have 64 bits, which JAX holds in its 64-bit mode only; switch it on with "
            "jax.config.update('jax_enable_x64', True), or ask for id_words=True, or leave 'id' out of fields."
        )
    return ids


def split_words(ids: np.ndarray) -> np.ndarray:
    """Integers ``(n,)`` as words of 32 bits, ``(n, 2)`` uint32, the low one first. `join_words` undoes it."""
    wide = ids.astype(np.int64 if ids.dtype.kind == "i" else np.uint64).view(np.uint64)
    return np.stack([wide & 0xFFFFFFFF, wide >> 32], axis=1).astype(np.uint32)


def join_words(words: Any, dtype: Any = np.uint64) -> np.ndarray:
    """Integers ``(n,)`` of a dtype out of their words ``(n, 2)`` uint32, the low one first."""
    words = np.asarray(words).astype(np.uint64)
    return (words[..., 0] | words[..., 1] << np.uint64(32)).astype(dtype)
