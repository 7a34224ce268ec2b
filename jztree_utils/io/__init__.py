"""Snapshots, particles, catalogues and neighbour lists on disk, all in HDF5.

Reading gives NumPy arrays and not JAX arrays, because JAX holds no 64-bit identifiers (nor float64 positions) unless
its 64-bit mode is on, and would drop their upper bits without a word. JAX functions take NumPy arrays as they are.

Whatever goes wrong is one sentence that says what was given and what to do: `SnapshotError` (a ValueError) for a file
that cannot be used, `OutputError` (an OSError) for one that cannot be written. Files are written under another name
and put in place when they are complete, so a failure leaves nothing half-written behind.
"""

from ._files import OutputError, SnapshotError, atomic_output, check_output
from .catalogue import (
    CatalogueInfo,
    Neighbours,
    canonical_order,
    read_catalogue,
    read_neighbours,
    write_catalogue,
    write_neighbours,
)
from .header import SnapshotHeader, unit_name
from .snapshot import find_parts, read_header, read_snapshot, write_snapshot

__all__ = [
    "CatalogueInfo",
    "Neighbours",
    "OutputError",
    "SnapshotError",
    "SnapshotHeader",
    "atomic_output",
    "canonical_order",
    "check_output",
    "find_parts",
    "read_catalogue",
    "read_header",
    "read_neighbours",
    "read_snapshot",
    "unit_name",
    "write_catalogue",
    "write_neighbours",
    "write_snapshot",
]
