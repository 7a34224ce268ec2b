"""The number of particles that a search holds in memory at once, and the size of its temporary files."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .. import _constants
from .._memory import bytes_in_words, host_memory
from ._pieces import COLUMNS, Pieces, joined_types

_WORDS = 14  # bytes of a search per byte of the positions; measured with `group_labels` of 4e6 particles
_FEWEST = 1000  # particles in memory
_GROUPED = 0.8  # share of particles in groups, for the estimate of disk space


def rows_in(memory: float | None, pieces: Pieces, besides: int = 0, devices: int = 1) -> int:
    """Return the number of particles that a search may hold in memory at once.

    Args:
        memory: Bytes. None means three quarters of the free memory.
        pieces: The particles.
        besides: Number of rows of other arrays, such as queries, in memory.
        devices: Number of devices that share the memory.

    Raises:
        TypeError: If ``memory`` is not a number.
        ValueError: If it is not positive and finite, or too small.
    """
    free = host_memory()
    if memory is not None and not isinstance(memory, (int, float, np.number)):
        raise TypeError(f"memory is {memory!r}; it must be a number of bytes, such as 8e9, or None.")
    if memory is not None and not 0 < memory < np.inf:
        raise ValueError(f"memory is {memory:g}; it must be a positive number of bytes, such as 8e9, or None.")
    if memory is None:
        memory = 0.75 * (4 << 30 if free is None else free)
    rows = int((memory - _constants.PROGRAM_BYTES) // _row_bytes(pieces, devices)) - besides
    if rows < _FEWEST:
        raise ValueError(
            f"memory is {bytes_in_words(memory)}, but Python, the compiled searches and the queries alone need "
            f"{bytes_in_words(bytes_for(besides, pieces))}; give more."
        )
    return rows


def bytes_for(rows: int, pieces: Pieces, devices: int = 1) -> int:
    """Return the memory for which `rows_in` returns ``rows``."""
    return _constants.PROGRAM_BYTES + rows * _row_bytes(pieces, devices)


def _row_bytes(pieces: Pieces, devices: int) -> int:
    dtype, (dims,) = pieces.columns["pos"]
    return _WORDS * dims * dtype.itemsize * devices


def disk_bytes(types: Sequence[Pieces], matter: Sequence[Pieces] | None = None) -> int:
    """Return an upper limit of the bytes of temporary files, if at most 80 % of the particles are in listed groups.

    Args:
        types: The particles of each type, the linked type first.
        matter: Further types that count for the properties of groups; None without such properties.
    """
    pieces, linked = joined_types(types), types[0].num
    row, width = 4 if pieces.num < 2**31 else 8, _width(pieces)
    keys = linked * row if len(types) > 1 else 0
    slabs = _width(pieces, ("pos", "id")) + 4 + 2 * row
    attached = 8 + row + max(_width(pieces, ("id",)), row)
    members = 2 * row + _GROUPED * (8 + row + width)
    around = [] if matter is None else [pieces, *matter]
    files = sum(particles.num * (8 + row + _width(particles)) for particles in around)
    return int(keys + max(pieces.num * slabs + (pieces.num - linked) * attached, pieces.num * members + files))


def _width(pieces: Pieces, names: Sequence[str] = COLUMNS) -> int:
    """Return the bytes of properties of a particle."""
    held = {name: dtype.itemsize * int(np.prod(shape)) for name, (dtype, shape) in pieces.columns.items()}
    return sum(held.get(name, 0) for name in names)
