"""Arrays of each process: distribute them over its devices of a mesh, and collect the answers in their order."""

from __future__ import annotations

import itertools
import zlib
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from ..particles import (
    Particles,
    attach_columns,
    check_countable,
    check_num,
    field_names,
    get_pos,
    num_rows,
    one_line,
    replace_field,
    shape_of_pos,
)
from ._classes import Pos
from ._computed import release
from ._rows import get_num, map_rows, replace_num, split_rows

_Tree = TypeVar("_Tree")

_NO_DEVICES = "process %d has no device of the mesh; make a mesh of jax.devices(), which includes every process."
_FAILED = "from_local raised an error on process %d; see the output of that process."
_DIFFERENT = (
    "the particles must have properties of the same dtypes and shapes on all processes, and the same values of leaves "
    "that all particles share, but those of process %d differ from those of process 0; pass the same class and dtypes "
    "on all."
)
_OTHER_NUM = (
    "the particles in result have another num than part, so their rows are not those of part; pass the particles in "
    "result as part."
)


def from_local(part: Particles | ArrayLike, mesh: Mesh) -> Any:
    """Distribute the particles of each process over its devices, for functions that are mapped over the mesh.

    Every process calls this function with its own particles. Their number may differ between processes, and a process
    may have none. Rows keep their order: the first device of the process gets the first rows.

    Args:
        part: This process's particles: a particle class with ``pos`` ``(n, d)`` and a field ``num``, or an array of
            positions. Properties are NumPy or JAX arrays ``(n, ...)``. Other leaves, such as a mass that all particles
            share, must be equal on all processes.
        mesh: Mesh of devices, some on every process.

    Returns:
        A particle class with a leading axis over the devices of the mesh, ``(r, m, ...)``, padding, and ``num``
        ``(r,)``. Leaves that all particles share are repeated ``r`` times. It is `Pos` for an array of positions.

    Raises:
        TypeError: If ``part`` has no field ``num``, or if ``mesh`` is not a mesh.
        ValueError: If the process has no device of the mesh, or if positions that the class computes depend on the row.
            On all processes, if one process raises an error, or if properties differ between processes.
    """
    parsed: _Given | None = None
    failed: Exception | None = None
    try:
        parsed = _parsed(part, mesh)
    except Exception as error:  # of any class, because the other processes wait for this one
        failed = error
    rows, total = _agreed(parsed, failed)
    assert parsed is not None
    devices = parsed.devices

    def dealt(leaf: np.ndarray, is_of_rows: bool) -> jax.Array:
        blocks = [_padded(leaf[start:stop], rows) if is_of_rows else leaf for start, stop in parsed.blocks]
        return _global(blocks, devices, mesh)

    result = jax.tree.unflatten(
        parsed.structure, [dealt(*leaf_and_kind) for leaf_and_kind in zip(parsed.leaves, parsed.of_rows, strict=True)]
    )
    num = _global([np.int32(stop - start) for start, stop in parsed.blocks], devices, mesh)
    return replace_field(replace_num(result, num), "num_total", total)


def to_local(result: _Tree, part: Any) -> _Tree:
    """Collect the rows of this process from the result of a mapped function, in the order given to `from_local`.

    Args:
        result: Pytree of arrays ``(r, m, ...)`` over the devices of the mesh, with a row for each row of ``part``, such
            as distances and rows of neighbours, or ``part`` itself.
        part: Particles over the devices, with ``num`` ``(r,)``: the result of `from_local`, or particles in the result.

    Returns:
        The same pytree of NumPy arrays ``(n, ...)`` of this process, without padding. In a particle class, ``num`` is
        the number of rows of this process, and leaves that all particles share lose the axis over devices.

    Raises:
        TypeError: If ``part`` has no field ``num``.
        ValueError: If an array or a particle class does not have the rows of ``part``.
    """
    check_countable(part, "to_local needs the number of rows on each device")
    if np.ndim(part.num) != 1:
        raise ValueError(f"num of part is {one_line(part.num)}; pass the particles that from_local returned.")
    counts, shape = _blocks(part.num), shape_of_pos(part)[:2]

    def rows(leaf: Any) -> np.ndarray:
        if np.shape(leaf)[:2] != shape:
            raise ValueError(f"result has an array of shape {np.shape(leaf)}; all must have the rows of part, {shape}.")
        blocks = _blocks(leaf)  # of every rank if each process has the whole array
        return np.concatenate([blocks[rank][: int(count)] for rank, count in counts.items()])

    def shared_or_rows(leaf: Any) -> Any:
        is_shared = np.shape(leaf)[:1] == shape[:1] and np.shape(leaf)[:2] != shape
        return _blocks(leaf)[min(counts)] if is_shared else rows(leaf)

    def local(part: Any) -> Any:
        if not _is_particles(part):
            return rows(part)
        if np.shape(part.num) != shape[:1] or {rank: _blocks(part.num)[rank] for rank in counts} != counts:
            raise ValueError(_OTHER_NUM)
        local_rows = jax.tree.map(shared_or_rows, replace_num(part, None))
        return replace_num(local_rows, np.int32(sum(map(int, counts.values()))))

    return jax.tree.map(local, result, is_leaf=_is_particles)


def _is_particles(value: Any) -> bool:
    """Return whether this is a particle class; its positions may be computed, so do not read them."""
    has_pos = "pos" in field_names(value) or hasattr(type(value), "pos")
    return has_pos and getattr(value, "num", None) is not None


class _Given(NamedTuple):
    """The particles of this process, and its devices.

    Attributes:
        leaves: The leaves without ``num``; leaves with one row per particle have ``num`` rows.
        of_rows: Whether each leaf has one row per particle.
        structure: Structure of the particle class.
        num: Number of particles.
        devices: Devices of this process.
        blocks: First and last row of each device, exclusive.
    """

    leaves: list[np.ndarray]
    of_rows: list[bool]
    structure: Any
    num: int
    devices: list[Any]
    blocks: list[tuple[int, int]]


def _parsed(part: Particles | ArrayLike, mesh: Mesh) -> _Given:
    part = Pos(pos=part) if isinstance(part, (np.ndarray, jax.Array)) else part
    check_countable(part, "processes may have different numbers of particles")
    check_num(part)
    n, held = int(get_num(part)), num_rows(part)
    part = replace_num(part, None)
    split_rows(part)  # checks that JAX can hold and move all rows
    if not isinstance(mesh, Mesh):
        raise TypeError(f"mesh must come from jax.make_mesh, not {type(mesh).__name__}.")
    devices = [device for device in mesh.devices.flat if device.process_index == jax.process_index()]
    if not devices:
        raise ValueError(_NO_DEVICES % jax.process_index())
    blocks = list(itertools.pairwise([n * i // len(devices) for i in range(len(devices) + 1)]))
    _check_computed(part, blocks)
    leaves, structure = jax.tree.flatten(part)
    of_rows = [np.shape(leaf)[:1] == (held,) for leaf in leaves]
    arrays = [np.asarray(jnp.asarray(leaf)) for leaf in leaves]
    cut = [array[:n] if is_of_rows else array for array, is_of_rows in zip(arrays, of_rows, strict=True)]
    return _Given(cut, of_rows, structure, n, devices, blocks)


def _check_computed(part: Particles | ArrayLike, blocks: list[tuple[int, int]]) -> None:
    """Raise ValueError if the class computes other positions for the rows of a block than for the whole set."""
    carried = attach_columns(part, (), get_pos(part))
    for start, stop in blocks:
        release(map_rows(lambda leaf: leaf[start:stop], carried))  # noqa: B023 - called at once


def _agreed(parsed: _Given | None, failed: Exception | None) -> tuple[int, int]:
    """Return the number of rows per device, and the total number of particles.

    Args:
        parsed: Particles of this process.
        failed: Error of this process. All processes then raise.
    """
    message = np.zeros(4, np.int32)
    if parsed is not None:
        kinds = zlib.crc32(str([_kind(*leaf) for leaf in zip(parsed.leaves, parsed.of_rows, strict=True)]).encode())
        message[:] = -(-parsed.num // len(parsed.devices)), parsed.num, kinds & 0x7FFFFFFF, 1
    everyone = multihost_utils.process_allgather(message).reshape(-1, 4)
    if failed is not None:
        raise failed
    for wrong, sentence in ((everyone[:, 3] == 0, _FAILED), (everyone[:, 2] != everyone[0, 2], _DIFFERENT)):
        if wrong.any():
            raise ValueError(sentence % np.argmax(wrong))
    return max(int(everyone[:, 0].max()), 1), int(everyone[:, 1].sum(dtype=np.int64))


def _kind(leaf: np.ndarray, is_of_rows: bool) -> tuple[Any, ...]:
    """Return the parts of a leaf that all processes must share: its dtype and shape, and the bytes of a shared leaf."""
    return (leaf.dtype.str, leaf.shape[1:]) if is_of_rows else (leaf.dtype.str, leaf.shape, leaf.tobytes())


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
