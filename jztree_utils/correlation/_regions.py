"""Regions of particles for a jackknife."""

import math

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import Particles, get_num, get_pos

from ._arguments import whole_number


def cube_regions(part: Particles | ArrayLike, lower: ArrayLike, upper: ArrayLike, per_side: int) -> np.ndarray:
    """Return regions for a jackknife: the ``per_side**d`` equal parts of a box.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, or positions.
        lower, upper: ``(d,)`` or numbers, the corners of the box. Particles outside the box get the nearest region;
            rows from ``num`` on get region 0.
        per_side: Number of parts along each side.

    Returns:
        ``(n,)`` int32 region numbers, from 0.

    Raises:
        TypeError, ValueError: If an argument is invalid, or a position is NaN.
    """
    given = np.asarray(part) if isinstance(part, list) else part
    places, num = np.array(get_pos(given), np.float64), int(get_num(given))
    places[num:] = 0
    low, high = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    side = high - low
    if not (np.all(side > 0) and np.all(np.isfinite(side))):
        raise ValueError(f"the box is from {low} to {high}; both must be finite, and upper must be above lower.")
    if np.isnan(places).any():
        raise ValueError(
            f"row {np.isnan(places).any(axis=1).argmax()} of the positions is NaN, so it has no region; remove it."
        )
    shape = (whole_number(per_side, "per_side"),) * places.shape[1]
    if math.prod(shape) >= 2**31:
        raise ValueError(
            f"{per_side} parts per side give {math.prod(shape)} regions, but int32 can number {2**31 - 1}; use fewer."
        )
    cells = np.floor(np.clip((places - low) / side, 0, 1) * per_side).astype(np.int64)
    regions = np.ravel_multi_index(tuple(np.minimum(cells, per_side - 1).T), shape).astype(np.int32)
    regions[num:] = 0
    return regions
