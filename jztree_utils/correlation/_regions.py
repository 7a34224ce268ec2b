"""Regions of particles for a jackknife, and the volume of the pairs within a region."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import Particles, Pos, check_no_units, get_num, get_pos

from .._arrays import from_table
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
    part = from_table(part, "part")
    positions = np.asarray(part) if isinstance(part, list) else part
    check_no_units(part=get_pos(positions), lower=lower, upper=upper)
    places, num = np.array(get_pos(positions), np.float64), int(get_num(positions))
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


@dataclass(frozen=True)
class BoxParts:
    """The equal parts of a periodic box, for a jackknife without randoms.

    The volume of the pairs of places in a cell of separations, both in one part with sides ``a``, is the integral of
    the product of ``max(a - |x|, 0)`` over the separations x in the cell.

    Attributes:
        box: ``(d,)`` lengths; d from 1 to 3 with several parts.
        per_side: Number of parts along each side; 1 means no jackknife.
    """

    box: np.ndarray
    per_side: int

    @property
    def num(self) -> int:
        """The number of parts."""
        return int(self.per_side ** len(self.box))

    def has(self, corners: np.ndarray) -> bool:
        """Return whether the particles of each region are in the part with this number.

        Args:
            corners: ``(2, num, d)``, see `Totals`. A corner outside the box may belong to a wrapped particle, so it
                proves nothing.
        """
        part = np.stack(np.unravel_index(np.arange(self.num), (self.per_side,) * len(self.box)), axis=-1)
        low, high, margin = part / self.per_side, (part + 1) / self.per_side, _ROUNDING
        lowest, highest = corners / self.box
        return not np.any((lowest > 0) & (lowest < low - margin) | (highest < 1) & (highest > high + margin))

    def regions(self, part: Any) -> np.ndarray:
        """Return the part of each particle, ``(n,)`` int32; positions outside the box are wrapped into it."""
        pos = np.asarray(get_pos(part), np.float64)
        return cube_regions(Pos(pos=pos % self.box, num=getattr(part, "num", None)), 0, self.box, self.per_side)

    def shares(self, cells: np.ndarray, pairs_within: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the fraction of the pairs of random places in each cell, for the box and then without each part.

        Args:
            cells: ``(b,)`` or ``(b, c)``, the volume of the separations in each cell.
            pairs_within: Function that returns, in the same shape, the volume of the pairs of places within a part.

        Returns:
            ``(1 + num, *cells.shape)``, or ``(1, *cells.shape)`` if the box is the only part.
        """
        volume = float(np.prod(self.box))
        if self.num == 1:
            return cells[None] / volume
        within = pairs_within()
        part_volume = volume / self.num
        without = ((volume - 2 * part_volume) * cells + within) / (volume - part_volume) ** 2
        return np.concatenate([cells[None] / volume, np.repeat(without[None], self.num, axis=0)])

    def spheres(self, edges: np.ndarray) -> np.ndarray:
        """Return the volume of pairs within a part with distances in each bin, ``(b,)``."""
        if len(self.box) == 3:
            return self.sectors(edges, np.linspace(0, 1, _PANELS + 1), 2).sum(axis=1)
        r, weight = _nodes(edges, _NODES)
        if len(self.box) == 1:
            return 2 * (weight * self._both(0, r)).sum(axis=1)
        return self._rings(edges, [0, 1])

    def cylinders(self, edges: np.ndarray, along: np.ndarray, axis: int) -> np.ndarray:
        """Return the volume of pairs in bins across and along an axis, ``(b, c)``."""
        z, weight = _nodes(along, _NODES)
        across = self._rings(edges, _across(axis))
        return across[:, None] * 2 * (weight * self._both(axis % 3, z)).sum(axis=1)

    def sectors(self, edges: np.ndarray, cosines: np.ndarray, axis: int) -> np.ndarray:
        """Return the volume of pairs in bins of the distance and of the cosine of the angle to an axis, ``(b, c)``."""
        s, in_s = _nodes(edges, _NODES)
        # The polar angle, because sqrt(1 - mu**2) is not smooth at mu = 1.
        polar, in_polar = (values[::-1, None, :, None] for values in _nodes(np.arccos(cosines[::-1]), 4))
        angle, in_angle = _angles()
        first, second = _across(axis)
        volumes = []
        for r, weight in zip(s, in_s, strict=True):
            r = r[None, :, None, None]
            across = r * np.sin(polar)
            overlap = self._both(axis % 3, r * np.cos(polar)) * self._both(first, across * np.cos(angle))
            overlap = overlap * self._both(second, across * np.sin(angle)) * r**2 * weight[None, :, None, None]
            volumes.append(8 * (overlap * np.sin(polar) * in_polar * in_angle).sum(axis=(1, 2, 3)))
        return np.stack(volumes)

    def _rings(self, edges: np.ndarray, axes: list[int]) -> np.ndarray:
        r, weight = (values[..., None] for values in _nodes(edges, _NODES))
        angle, in_angle = _angles()
        overlap = self._both(axes[0], r * np.cos(angle)) * self._both(axes[1], r * np.sin(angle))
        return 4 * (overlap * r * weight * in_angle).sum(axis=(1, 2))

    def _both(self, axis: int, separation: np.ndarray) -> np.ndarray:
        """Return the length of the places in a part whose partner at this separation along an axis is in it too."""
        return np.maximum(self.box[axis] / self.per_side - separation, 0)


_ROUNDING = 1e-6  # of the box: particles may be rounded to float32 after the choice of their region
_NODES = 16  # of Gauss and Legendre in a bin
_PANELS = 32  # of an angle, because the overlap has kinks


def _nodes(edges: np.ndarray, number: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of Gauss and Legendre in each bin and their weights, ``(b, number)``."""
    x, weight = np.polynomial.legendre.leggauss(number)
    half = np.diff(edges)[:, None] / 2
    return edges[:-1, None] + half * (x + 1), half * weight


def _angles() -> tuple[np.ndarray, np.ndarray]:
    """Return the nodes of the panels of a right angle and their weights."""
    angle, weight = _nodes(np.linspace(0, np.pi / 2, _PANELS + 1), 4)
    return angle.reshape(-1), weight.reshape(-1)


def _across(axis: int) -> list[int]:
    """Return the two other axes of three dimensions."""
    return [dim for dim in range(3) if dim != axis % 3]


def parts_of(per_side: Any, box: np.ndarray) -> BoxParts:
    """Return the parts of a box. Raises TypeError or ValueError if ``per_side`` is invalid."""
    if whole_number(per_side, "per_side") < 2 or len(box) > 3:
        raise ValueError(
            f"per_side is {per_side} in {len(box)} dimensions; a jackknife of a box needs 2 or more parts per side, in "
            "1 to 3 dimensions."
        )
    return BoxParts(box, int(per_side))
