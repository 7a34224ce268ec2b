"""Snapshots that hold a mass for each particle and one in their mass table too, and these differ."""

import math
from pathlib import Path

from ._header import SnapshotHeader

_SAME = 1e-6  # relative; a mass in float32 is that of the table in float64, rounded


def mass_in_table(header: SnapshotHeader, ptype: int) -> float | None:
    """The mass of a particle type in the mass table, None if it is zero, missing or not a mass."""
    mass = header.mass_table[ptype] if ptype < len(header.mass_table) else 0.0
    return mass if 0 < mass < math.inf else None


def same_masses(table: float) -> tuple[float, float]:
    """Bounds of the masses that are the one in the table, but for rounding."""
    return table * (1 - _SAME), table * (1 + _SAME)


def differing_masses(path: Path, ptype: int, table: float, num: int) -> str:
    """The warning about ``num`` particles whose own masses are not the one in the table."""
    return (
        f"{path} holds {num:,} particles of type {ptype} whose masses differ from the one in the MassTable, {table:g}; "
        "their own masses are used. Correct the file if these are wrong."
    )
