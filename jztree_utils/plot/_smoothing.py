"""Smoothing of particles by Gaussians as wide as the distances to neighbours; and selection of a slab."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import FofCatalogue
from jztree.knn import knn

from .._arrays import box_lengths, full_precision

_STEP = math.sqrt(2)  # ratio of successive widths
_WIDEST = 1 / 8  # as a fraction of the picture
_REACH = 4  # cut-off of a Gaussian, in its widths


def widths(pos: ArrayLike, boxsize: ArrayLike | None, neighbours: int) -> np.ndarray:
    """Return ``(n,)``: half the distance of each particle to the last of its ``neighbours`` neighbours.

    Args:
        pos: ``(n, d)`` positions.
        boxsize: Periodic length, or one per dimension; 0 or None means open.
        neighbours: Number of neighbours.

    Raises:
        ValueError: If ``neighbours`` is below 2.
    """
    if neighbours < 2:
        raise ValueError(f"smooth is {neighbours}; give 0, or at least 2 neighbours.")
    points = np.asarray(pos)
    num = len(points)
    if num < 2:
        return np.zeros(num)
    with full_precision(points) as (places,):
        distances, _ = knn.jit(places, k=min(neighbours + 1, num), boxsize=boxsize)  # the first is the particle
        return np.asarray(distances)[:, -1].astype(np.float64) / 2


def spread(
    count: Callable[[np.ndarray], np.ndarray], width: np.ndarray, pixel: np.ndarray, periodic: np.ndarray
) -> np.ndarray:
    """Return the sums over pixels of Gaussians; their integral equals that of ``count``.

    Widths are rounded to half a pixel times powers of the square root of two. Particles with smaller widths are in one
    pixel.

    Args:
        count: Function that returns the sums of given rows, each in one pixel.
        width: ``(n,)`` widths of the Gaussians.
        pixel: ``(2,)`` sides of a pixel.
        periodic: ``(2,)`` bool, True for a periodic dimension; in the others, Gaussians are cut at the edge.
    """
    narrowest = 0.5 * float(np.max(pixel))
    level = np.maximum(np.round(np.log(np.maximum(width, narrowest) / narrowest) / math.log(_STEP)), 0).astype(int)
    total: np.ndarray | None = None
    for rung in np.unique(level).tolist():
        sums = count(np.flatnonzero(level == rung))
        widest = _WIDEST * float(np.max(pixel * sums.shape))
        blurred = _blur(sums, min(narrowest * _STEP**rung, widest) / pixel, periodic) if rung else sums
        total = blurred if total is None else total + blurred
    return count(np.zeros(0, int)) if total is None else total


def _blur(sums: np.ndarray, sigma: np.ndarray, periodic: np.ndarray) -> np.ndarray:
    """Convolve with a Gaussian of widths ``sigma`` in pixels."""
    shape = [
        size if wraps else size + math.ceil(_REACH * s)
        for size, s, wraps in zip(sums.shape, sigma, periodic, strict=True)
    ]
    rows, columns = np.fft.fftfreq(shape[0]) * sigma[0], np.fft.rfftfreq(shape[1]) * sigma[1]
    gaussian = np.exp(-2 * math.pi**2 * (rows[:, None] ** 2 + columns**2))
    blurred = np.fft.irfft2(np.fft.rfft2(sums, shape) * gaussian, shape)
    return np.maximum(blurred[: sums.shape[0], : sums.shape[1]], 0)


def within(
    slab: tuple[float, float],
    axes: tuple[int, int],
    boxsize: ArrayLike | None,
    pos: ArrayLike,
    mass: ArrayLike | None,
    groups: FofCatalogue | None,
) -> tuple[np.ndarray, ArrayLike | None, FofCatalogue | None, int]:
    """Select particles, masses and groups in the slab along the first dimension that is not in ``axes``; return it too.

    Raises:
        ValueError: If no other dimension exists, or the slab is empty.
    """
    points = np.asarray(pos)
    rest = [axis for axis in range(points.shape[-1]) if axis not in axes]
    if not rest:
        raise ValueError(f"pos has {points.shape[-1]} dimensions, but a slab needs a third one; leave slab out.")
    length = float(box_lengths(boxsize, points.shape[-1])[rest[0]])
    low, high = map(float, slab)
    if not (math.isfinite(low) and math.isfinite(high)) or low == high or (high < low and not length):
        raise ValueError(f"The slab is from {low:g} to {high:g}; give two numbers, the smaller one first.")
    thick = high - low if high > low else high - low + length

    def inside(places: np.ndarray) -> np.ndarray:
        along = places[:, rest[0]] - low
        return (along % length if length else along) <= thick if length else (along >= 0) & (along <= thick)

    held = inside(points)
    masses = mass if mass is None or np.ndim(mass) == 0 else np.asarray(mass)[held]
    return (
        points[held],
        masses,
        None if groups is None else _rows_of(groups, inside(np.asarray(groups.com_pos))),
        rest[0],
    )


def _rows_of(groups: FofCatalogue, held: np.ndarray) -> FofCatalogue:
    """Return the selected groups, with the columns that pictures need."""
    radius = None if groups.max_radius is None else np.asarray(groups.max_radius)[held]
    return FofCatalogue(
        ngroups=int(held.sum()),
        count=np.asarray(groups.count)[held],
        offset=np.asarray(groups.offset)[held],
        com_pos=np.asarray(groups.com_pos)[held],
        com_inertia_radius=np.zeros(int(held.sum())),
        max_radius=radius,
    )
