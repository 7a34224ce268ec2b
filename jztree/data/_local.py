"""Arrays of each process: distribute them over its devices of a mesh, and collect the answers in their order."""

import itertools
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from ..particles import check_countable, check_num, get_pos, replace_field
from ._classes import Pos
from ._rows import get_num, replace_num, split_rows

_Tree = TypeVar("_Tree")

_NO_DEVICES = "process %d has no device of the mesh; make a mesh of the devices of all processes (jax.devices())."
_FAILED = "from_local raised an error on process %d; see the output of that process."
_DIFFERENT = (
    "the particles must have properties of the same dtypes and shapes on all processes, but those of process %d differ "
    "from those of process 0; pass the same class and dtypes on all."
)


def from_local(part: Any, mesh: Mesh) -> Any:
    """Distribute the particles of each process over its devices, for functions that are mapped over the mesh.

    Every process calls this function with its own particles. Their number may differ between processes, and a process
    may have none. Rows keep their order: first those of the first device of the process, then those of the second.

    Args:
        part: This process's particles: a particle class with ``pos`` ``(n, d)`` and a field ``num``, or an array of
            positions. Properties are NumPy or JAX arrays ``(n, ...)``. Other leaves must be equal on all processes.
        mesh: Mesh of devices of all processes.

    Returns:
        A particle class with a leading axis over the devices of the mesh, ``(r, m, ...)``, padding, and ``num``
        ``(r,)``. It is `Pos` for an array of positions.

    Raises:
        TypeError: If ``part`` has no field ``num``.
        ValueError: If the process has no device of the mesh; or, on all processes, if the properties of the particles
            differ between processes.
    """
    given: _Given | None = None
    failed: Exception | None = None
    try:
        given = _parsed(part, mesh)
    except (TypeError, ValueError) as error:  # other processes wait for this one, so report it to them first
        failed = error
    rows, total = _agreed(given, failed)
    assert given is not None
    n, own = given.num, given.devices
    blocks = list(itertools.pairwise([n * i // len(own) for i in range(len(own) + 1)]))
    made = [_global([_padded(c[start:stop], rows) for start, stop in blocks], own, mesh) for c in given.columns]
    num = _global([np.int32(stop - start) for start, stop in blocks], own, mesh)
    return replace_field(replace_num(given.rebuild(made), num), "num_total", total)


def to_local(result: _Tree, part: Any) -> _Tree:
    """Collect the rows of this process from the result of a mapped function, in the order given to `from_local`.

    Args:
        result: Pytree of arrays ``(r, m, ...)`` over the devices of the mesh, whose rows are those of ``part``, such as
            distances and rows of neighbours, or ``part`` itself.
        part: Particles over the devices, with ``num`` ``(r,)``: those of `from_local`, or those of the result.

    Returns:
        The same pytree of NumPy arrays ``(n, ...)`` of this process, without padding. If it has ``num``, this is the
        number of rows of this process.

    Raises:
        ValueError: If an array does not have the rows of ``part``.
    """
    counts, shape = _blocks(part.num), get_pos(part).shape[:2]

    def rows(leaf: Any) -> Any:
        if np.shape(leaf) == np.shape(part.num):
            return np.int32(sum(int(block) for block in _blocks(leaf).values()))
        if np.shape(leaf)[:2] != shape:
            raise ValueError(f"result has an array of shape {np.shape(leaf)}; all must have the rows of part, {shape}.")
        return np.concatenate([block[: int(counts[rank])] for rank, block in _blocks(leaf).items()])

    return jax.tree.map(rows, result)


class _Given(NamedTuple):
    """The particles of this process, and its devices."""

    columns: list[np.ndarray]
    num: int
    rebuild: Callable[[Any], Any]
    devices: list[Any]


def _parsed(part: Any, mesh: Mesh) -> _Given:
    part = Pos(pos=part) if isinstance(part, (np.ndarray, jax.Array)) else part
    check_countable(part, "processes may have different numbers of particles")
    check_num(part)
    n = int(get_num(part))
    columns, rebuild = split_rows(part)
    own = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    if not own:
        raise ValueError(_NO_DEVICES % jax.process_index())
    return _Given([np.asarray(column)[:n] for column in columns], n, rebuild, own)


def _agreed(given: _Given | None, failed: Exception | None) -> tuple[int, int]:
    """Return the number of rows per device, and the number of particles of all processes.

    Args:
        given: Particles of this process.
        failed: Error of this process. All processes then raise.
    """
    message = np.zeros(4, np.int32)
    if given is not None:
        kinds = str([(column.dtype.str, column.shape[1:]) for column in given.columns])
        message[:] = -(-given.num // len(given.devices)), given.num, zlib.crc32(kinds.encode()) & 0x7FFFFFFF, 1
    everyone = multihost_utils.process_allgather(message).reshape(-1, 4)
    if failed is not None:
        raise failed
    for wrong, sentence in ((everyone[:, 3] == 0, _FAILED), (everyone[:, 2] != everyone[0, 2], _DIFFERENT)):
        if wrong.any():
            raise ValueError(sentence % np.argmax(wrong))
    return max(int(everyone[:, 0].max()), 1), int(everyone[:, 1].sum(dtype=np.int64))


def _padded(block: np.ndarray, rows: int) -> np.ndarray:
    return np.concatenate([block, np.zeros((rows - len(block), *block.shape[1:]), block.dtype)])


def _global(blocks: list[Any], devices: list[Any], mesh: Mesh) -> jax.Array:
    """Return an array ``(r, ...)`` over the devices of a mesh, from the blocks of this process's devices."""
    shards = [jax.device_put(jnp.asarray(block)[None], device) for block, device in zip(blocks, devices, strict=True)]
    shape = (mesh.devices.size, *np.shape(blocks[0]))
    return jax.make_array_from_single_device_arrays(shape, NamedSharding(mesh, P(mesh.axis_names)), shards)


def _blocks(array: Any) -> dict[int, np.ndarray]:
    """Return the blocks of this process's devices, by rank."""
    if not isinstance(array, jax.Array):
        return dict(enumerate(np.asarray(array)))
    blocks: dict[int, np.ndarray] = {}
    for shard in array.addressable_shards:
        first = shard.index[0].start or 0
        blocks |= {first + i: block for i, block in enumerate(np.asarray(shard.data))}
    return dict(sorted(blocks.items()))
