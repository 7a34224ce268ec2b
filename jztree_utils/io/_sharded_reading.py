"""Reading with many devices and processes: every process reads only the rows of its devices.

`shard_rows` distributes rows that can be read by ranges, `read_snapshot_sharded` the rows of a snapshot.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike, DTypeLike

from jztree.data import ParticleData, check_representable, fits_float32

from ._files import PathLike
from ._header import SnapshotHeader
from ._processes import failing_together
from ._read_options import ReadOptions
from ._snapshot import Snapshot, check_fields, open_snapshot


def share(total: int, rank: int, ndev: int) -> tuple[int, int]:
    """Return the row range (start, stop) of a rank, for ``total`` rows split into equal blocks within one row."""
    return total * rank // ndev, total * (rank + 1) // ndev


def shard_rows(read_rows: Callable[[int, int], np.ndarray], total: int, mesh: Mesh, npad: int = 0) -> jax.Array:
    """Distribute rows to all devices of a mesh in equal consecutive blocks. Each process reads only its own blocks.

    Args:
        read_rows: ``read_rows(start, stop)`` returns the rows ``start`` to ``stop`` as a NumPy array
            ``(stop - start, ...)``. It is called once for each device of this process, also with ``start == stop``.
        total: Total number of rows, the same on every process.
        mesh: The devices; rank r is the r-th of ``mesh.devices.flat``.
        npad: Rows of padding to add on every device.

    Returns:
        ``(r, ceil(total / r) + npad, ...)``, distributed over the devices by its first axis. Numbers of 64 bits become
        32 bits unless JAX's 64-bit mode is on.

    Raises:
        ValueError: If no device of the mesh belongs to this process, if ``read_rows`` returns another number of rows,
            or if integers do not fit into 32 bits in the default mode.
    """
    ndev = mesh.size
    rows = -(-total // ndev) + npad
    blocks = []
    for rank, device in enumerate(mesh.devices.flat):
        if _is_mine(device):
            start, stop = share(total, rank, ndev)
            blocks.append(jax.device_put(_padded(read_rows(start, stop), stop - start, rows), device))
    if not blocks:
        raise ValueError(
            f"The mesh has {ndev} devices, but none of process {jax.process_index()}; use a mesh with devices of every "
            "process."
        )
    return jax.make_array_from_single_device_arrays((ndev, *blocks[0].shape[1:]), _by_rank(mesh), blocks)


def _is_mine(device: jax.Device) -> bool:
    return device.process_index == jax.process_index()


def _padded(read: np.ndarray, num: int, rows: int) -> np.ndarray:
    """Return ``(1, rows, ...)``: the rows that were read, followed by zeros, in a dtype that JAX supports."""
    if read.shape[:1] != (num,):
        raise ValueError(f"read_rows must return {num} rows, but it returned an array of shape {read.shape}.")
    check_representable(read)
    padded = np.zeros((1, rows, *read.shape[1:]), jax.dtypes.canonicalize_dtype(read.dtype))
    padded[0, :num] = read
    return padded


def _by_rank(mesh: Mesh) -> NamedSharding:
    return NamedSharding(mesh, P(mesh.axis_names))


def _one_each(values: np.ndarray, mesh: Mesh) -> jax.Array:
    """Return ``(r,)``: one number for each rank."""
    return jax.make_array_from_callback(values.shape, _by_rank(mesh), lambda index: values[index])


def num_of_each_rank(total: int, mesh: Mesh) -> jax.Array:
    """Return ``(r,)`` int32: the number of rows of each rank in a result of `shard_rows`."""
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
    """Read particles of one type and distribute them to all devices of a mesh. Each process reads only its own rows.

    All processes must call this. If one process fails, all processes raise.

    Args:
        path, ptype, fields, optional, options: See `read_snapshot`; the snapshot may have any number of files.
        mesh: The devices of all processes; rank r is the r-th of ``mesh.devices.flat``.
        npad: Rows of padding to add on every device.
        id_words: Return identifiers as two words of 32 bits, the low one first, which also work in JAX's default 32-bit
            mode; `join_words` recombines them.

    Returns:
        The particles and the header. With ``r`` devices and ``n = ceil(total / r) + npad`` rows per device, the
        particles have

        * ``pos`` and ``vel``, ``(r, n, d)`` float32 or float64; float64 becomes float32 unless JAX's 64-bit mode is on.
          For the units see `read_snapshot`.
        * ``mass``, ``(r, n)``, or ``(r,)`` in the dtype of ``pos`` if every particle has the same mass.
        * ``id``, ``(r, n)`` integers, or ``(r, n, 2)`` uint32 with ``id_words``.
        * ``num``, ``(r,)`` int32, equal within one, and ``num_total``, the number of all particles.

    Raises:
        SnapshotError, TypeError: See `read_snapshot`.
        ValueError: See `read_snapshot`; also if identifiers have 64 bits, JAX's 64-bit mode is off, and ``id_words`` is
            not set.
    """
    with failing_together(mesh):
        snapshot = open_snapshot(path, ptype, options)
        names = snapshot.present(fields, optional)
        check_fields(names)
        part = shard_snapshot(snapshot, mesh, names, npad, id_words)
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
    """Distribute the properties ``names`` of a snapshot, which include positions, like `read_snapshot_sharded`.

    Errors are raised on this process only; see `failing_together`.

    Args:
        snapshot: The snapshot.
        mesh, npad, id_words: See `read_snapshot_sharded`.
        names: Names of the properties.
        advance: Called regularly with the number of rows of a property that this process has read since the last call.
        finite: See `Snapshot.read`.
    """

    def read(name: str, start: int, stop: int) -> np.ndarray:
        rows: np.ndarray = snapshot.read(name, start, stop, advance, finite=finite)
        if name == "id":
            return _as_jax_holds(rows, id_words)
        check_representable({name: rows})
        return rows

    shared = snapshot.shared_mass if "mass" in names else None
    read_here = [name for name in names if name != "mass" or shared is None]
    columns: dict[str, Any] = {
        name: shard_rows(functools.partial(read, name), snapshot.num, mesh, npad) for name in read_here
    }
    if shared is not None:
        masses = np.full(mesh.size, shared)
        check_representable({"mass": masses})
        if fits_float32(shared):
            masses = masses.astype(columns["pos"].dtype)
        columns["mass"] = _one_each(masses, mesh)
    num = num_of_each_rank(snapshot.num, mesh)
    return ParticleData(**columns, num=num, num_total=snapshot.num)


def _as_jax_holds(ids: np.ndarray, words: bool) -> np.ndarray:
    """Return identifiers as words, or unchanged. Raises ValueError if JAX would drop their upper bits."""
    if words:
        return split_words(ids)
    if jax.dtypes.canonicalize_dtype(ids.dtype) != ids.dtype:
        raise ValueError(
            "The identifiers have 64 bits, but JAX keeps these only in its 64-bit mode; switch it on with "
            "jax.config.update('jax_enable_x64', True), or use id_words=True, or leave 'id' out of fields."
        )
    return ids


def split_words(ids: np.ndarray) -> np.ndarray:
    """Split integers ``(n,)`` into words of 32 bits, ``(n, 2)`` uint32, low word first. Inverse of `join_words`."""
    wide = ids.astype(np.int64 if ids.dtype.kind == "i" else np.uint64).view(np.uint64)
    return np.stack([wide & 0xFFFFFFFF, wide >> 32], axis=1).astype(np.uint32)


def join_words(words: ArrayLike, dtype: DTypeLike = np.uint64) -> np.ndarray:
    """Join words ``(n, 2)`` uint32, the low one first, into integers ``(n,)`` of a dtype."""
    words = np.asarray(words).astype(np.uint64)
    return (words[..., 0] | words[..., 1] << np.uint64(32)).astype(dtype)
