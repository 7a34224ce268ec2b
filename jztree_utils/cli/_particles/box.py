"""The box of a snapshot and the extent of its particles."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from ... import io
from .._report import number

_WIDEST = 1.05  # in periodic boxes: codes let particles leave the box slightly between two steps
_ROUNDING = 1e-6  # in periodic boxes: float32 positions may be rounded to the far face, or slightly past it


@dataclass(frozen=True)
class Outside:
    """Particles outside the periodic box.

    Attributes:
        particles: Number of particles outside.
        excess: The largest distance from the box along a dimension, in the unit of the positions.
        sentence: A warning for users with these values.
    """

    particles: int
    excess: float
    sentence: str


def corners_of(pos: np.ndarray) -> np.ndarray:
    """Return ``(2, d)``: the smallest and the largest coordinates of positions ``(n, d)``."""
    # Column by column: in NumPy, the minimum along the rows of (n, 3) takes 20 times as long.
    return np.asarray([[column.min() for column in pos.T], [column.max() for column in pos.T]])


def count_outside(rows: np.ndarray, low: np.ndarray, high: np.ndarray) -> int:
    """Return the number of rows of ``(n, ...)`` with a number below ``low`` or above ``high``."""
    outside = (rows < low) | (rows > high)
    return int(np.count_nonzero(outside.reshape(len(rows), -1).any(axis=1)))


def box_lengths(header: io.SnapshotHeader, ndim: int) -> np.ndarray:
    """Return the length of the box in each dimension, 0 for open dimensions."""
    return np.broadcast_to(np.asarray(header.boxsize, np.float64), (ndim,))


def check_box(corners: np.ndarray, header: io.SnapshotHeader) -> None:
    """Check that the particles do not extend far outside the periodic box, which would then be wrong.

    Args:
        corners: ``(2, d)``, see `corners_of`. The origin of the box makes no difference, nor do particles slightly
            outside it. Positions that are not finite are ignored here; the search reports their rows.
        header: Header of the snapshot, with its box.

    Raises:
        ValueError: If the particles extend over more than 1.05 box lengths.
    """
    extent = corners[1].astype(np.float64) - corners[0]
    lengths = box_lengths(header, len(extent))
    for axis in np.flatnonzero((lengths > 0) & np.isfinite(extent) & (extent > _WIDEST * lengths)):
        raise ValueError(
            f"The positions span {extent[axis]:g} along dimension {axis}, but the periodic box has the length "
            f"{lengths[axis]:g} in this dimension; give the correct box with --boxsize, in the unit of the positions, "
            "or 0 for an open box."
        )


def find_outside(
    corners: np.ndarray, header: io.SnapshotHeader, count: Callable[[np.ndarray, np.ndarray], int]
) -> Outside | None:
    """Find particles outside the periodic box, which starts at 0 or is centred on 0, depending on the better fit.

    Args:
        corners: ``(2, d)``, finite, see `corners_of`.
        header: Header of the snapshot, with its box.
        count: Returns the number of particles with a coordinate below or above bounds ``(d,)``.

    Returns:
        The particles outside, or None if all are inside.
    """
    lengths = box_lengths(header, corners.shape[1])
    smallest, largest = corners.astype(np.float64)
    begins = np.stack([np.zeros(len(lengths)), -lengths / 2])
    excess = np.maximum(begins - smallest, largest - begins - lengths)
    begin, excess = begins[excess.argmin(axis=0), range(len(lengths))], excess.min(axis=0)
    excess = np.where((lengths > 0) & (excess > _ROUNDING * lengths), excess, 0.0)
    if not excess.any():
        return None
    margin = np.where(lengths > 0, _ROUNDING * lengths, np.inf)
    held, axis = count(begin - margin, begin + lengths + margin), int(excess.argmax())
    unit = f" {io.unit_name(header, 'length')}".rstrip()
    sentence = (
        f"{held:,} particle{' is' if held == 1 else 's are'} outside the periodic box, by up to "
        f"{excess[axis]:.3g}{unit} along dimension {axis} ({number(float(begin[axis]))} to "
        f"{number(float(begin[axis] + lengths[axis]))}); their periodic images are inside. If the box is wrong, give "
        "another one with --boxsize."
    )
    return Outside(held, float(excess[axis]), sentence)
