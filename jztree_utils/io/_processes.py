"""Joint actions of processes with separate I/O: raise errors on every process, and gather rows on the first one."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ._errors import OutputError, SnapshotError

_KINDS: tuple[type[Exception], ...] = (RuntimeError, SnapshotError, OutputError, ValueError, OSError, MemoryError)
_LENGTH = 1000  # maximum bytes of a message that other processes receive


@functools.cache
def _flat(mesh: Mesh) -> Mesh:
    """Return the devices of ``mesh`` along one axis, in the order of the ranks."""
    return Mesh(mesh.devices.reshape(-1), ("rank",))


def is_shared(mesh: Mesh) -> bool:
    """Return whether the devices of ``mesh`` belong to more than one process."""
    return len({device.process_index for device in mesh.devices.flat}) > 1


@contextmanager
def failing_together(mesh: Mesh) -> Iterator[None]:
    """If the block raises on one process, raise on every process with devices of ``mesh`` at the end of the block.

    Each of these processes must call this: if only one process raised, the others would hang in the next collective.
    The block itself must not contain collectives. If the block did not fail on this process, the error is that of the
    first process that failed: the same sentence, and the same type if it belongs to this package. Every error has an
    attribute ``told_by``, the process that the sentence comes from.
    """
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
        raised.told_by = jax.process_index()  # type: ignore[attr-defined]
    if is_shared(mesh):
        error = _agree(mesh, error)
    if error is not None:
        raise error


def _agree(mesh: Mesh, error: Exception | None) -> Exception | None:
    """Return the error to raise on this process, whose own error is ``error``; None if no process has failed."""
    messages = _gather_bytes(_flat(mesh), _encode(error))
    failed = np.flatnonzero(messages[:, 0])
    if not failed.size:
        return None
    first = messages[failed[0]]
    process = mesh.devices.flat[failed[0]].process_index
    if error is not None and process == jax.process_index():
        return error
    report = _KINDS[first[0] - 1](bytes(first[1:]).rstrip(b"\0").decode(errors="replace"))
    report.told_by = process
    return report


def _encode(error: Exception | None) -> np.ndarray:
    """Encode an error as bytes: the number of its kind from 1 on, 0 for none, and its text."""
    message = np.zeros(1 + _LENGTH, np.uint8)
    if error is not None:
        kinds = [number for number, kind in enumerate(_KINDS) if isinstance(error, kind)]
        # Subclasses precede their base classes in _KINDS, so the first match is the most specific.
        message[0] = 1 + min(kinds, default=0)
        text = str(error) if kinds else f"{type(error).__name__}: {error}"
        data = np.frombuffer(text.encode()[:_LENGTH], np.uint8)
        message[1 : 1 + len(data)] = data
    return message


def _gather_bytes(flat: Mesh, message: np.ndarray) -> np.ndarray:
    """Return ``(r, m)``: the message ``(m,)`` of the process of every rank, on all processes."""
    shape = (flat.size, *message.shape)
    sharded = jax.make_array_from_callback(shape, NamedSharding(flat, P("rank")), lambda _: message[None])
    return np.asarray(_replicate(flat)(sharded))


@functools.cache
def _replicate(flat: Mesh) -> Any:
    return jax.jit(lambda x: x, out_shardings=NamedSharding(flat, P()))


def rows_on_first_process(array: jax.Array, num: jax.Array, mesh: Mesh) -> np.ndarray | None:
    """Return the rows of the ranks without padding, in rank order, in one NumPy array on the first process.

    All processes must call this. In addition to the result, a device holds the rows of one rank at a time.

    Args:
        array: ``(r, n, ...)``, distributed over the ``r`` devices of ``mesh``.
        num: ``(r,)`` integers, number of valid rows on each rank.
        mesh: The devices.

    Returns:
        ``(sum(num), ...)`` on the process of the first device, None elsewhere.
    """
    flat = _flat(mesh)
    counts = np.asarray(_replicate(flat)(_rearrange(num, flat)))
    blocks = []
    for rank, count in enumerate(counts):
        rows = _block(array, rank, flat) if is_shared(mesh) else _local_block(array, rank)
        if jax.process_index() == flat.devices[0].process_index:
            blocks.append(rows[:count])
    return np.concatenate(blocks) if blocks else None


def _rearrange(array: jax.Array, flat: Mesh) -> jax.Array:
    """Return the same array on the same devices, distributed over the single axis of ``flat``."""
    shards = sorted(array.addressable_shards, key=lambda shard: shard.index[0].start or 0)
    return jax.make_array_from_single_device_arrays(
        array.shape, NamedSharding(flat, P("rank")), [shard.data for shard in shards]
    )


def _local_block(array: jax.Array, rank: int) -> np.ndarray:
    for shard in array.addressable_shards:
        start, stop, _ = shard.index[0].indices(array.shape[0])
        if start <= rank < stop:
            # Indexing the array of JAX would compile a program for each shape and device.
            block: np.ndarray = np.asarray(shard.data)[rank - start]
            return block
    raise ValueError(f"No device of this process holds the rows of rank {rank}.")


def _block(array: jax.Array, rank: int, flat: Mesh) -> np.ndarray:
    """Return the rows of one rank, on every process."""
    bits = np.asarray(_broadcast(flat)(_rearrange(array, flat), rank))
    return bits.astype(bool) if array.dtype == bool else bits.view(array.dtype)


@functools.cache
def _broadcast(flat: Mesh) -> Any:
    """Send the block of one rank to all. Its bits are summed with zeros, which is exact for any dtype."""

    def from_rank(array: jax.Array, rank: Any) -> jax.Array:
        block = array[0]
        kind = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32, 8: jnp.uint64}[block.dtype.itemsize]
        bits = block.astype(kind) if block.dtype == bool else jax.lax.bitcast_convert_type(block, kind)
        return jax.lax.psum(jnp.where(jax.lax.axis_index("rank") == rank, bits, 0), "rank")

    return jax.jit(jax.shard_map(from_rank, mesh=flat, in_specs=(P("rank"), P()), out_specs=P()))
