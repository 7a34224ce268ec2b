"""Snapshots whose particle masses differ from the mass in their mass table."""

import math
from pathlib import Path

from ._header import SnapshotHeader

_SAME = 1e-6  # relative; a float32 mass is the rounded float64 mass of the table


def mass_in_table(header: SnapshotHeader, ptype: int) -> float | None:
    """The mass of a particle type in the mass table, None if it is zero, missing or not a mass."""
    mass = header.mass_table[ptype] if ptype < len(header.mass_table) else 0.0
    return mass if 0 < mass < math.inf else None


def same_masses(table: float) -> tuple[float, float]:
    """Return bounds of the masses that equal the one in the table, apart from rounding."""
    return table * (1 - _SAME), table * (1 + _SAME)


def differing_masses(path: Path, ptype: int, table: float, num: int) -> str:
    """Return the warning about ``num`` particles whose own masses differ from the one in the table."""
    return (
        f"{path} holds {num:,} particles of type {ptype} whose masses differ from the mass in the MassTable, "
        f"{table:g}; their own masses are used. Correct the file if these are wrong."
    )
