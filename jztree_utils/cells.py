"""Pairs within a radius in cells of any shape: boxes given by lattice vectors, which need not be orthogonal.

`pairs_in_cell` copies the particles near the faces of the cell to its other side, as many times as the radius needs
(ghosts), and searches among particles and ghosts in open space. The search, in float64 and with a slightly larger
radius, finds the candidates. The vectors between the given positions, plus whole lattice vectors, decide. For boxes
with orthogonal sides, `jztree.radius.pairs_within` is faster, and runs on many devices.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import check_no_units

from .kdtree import MOST_DIMS, PointSearch, check_memory, check_size

__all__ = ["CellPairs", "pairs_in_cell"]

_IMAGE = 80  # bytes of an image of a particle during the search, without its coordinates
_ADVICE = "Use a smaller radius"

_ROUNDING = 1e-12  # bound on the relative rounding errors of wrapped positions and of ghosts
_FLAT = 1e-10  # a cell is flat if it has less than this fraction of the volume of a box with the same lengths
_SHORTEST, _LONGEST = 1e-100, 1e100  # lattice vectors, so that volumes and inverse lengths fit float64
_FARTHEST = 1e10  # cells between a position and the origin, so that rounding is far below the size of a cell
_TOO_FAR = (
    "row {row} of pos is {cells:.2g} lattice vectors away from the cell; positions must be within {most:g}. Move the "
    "particles to their images in the cell."
)


@dataclass(frozen=True, kw_only=True)
class CellPairs:
    """Pairs of particles and images of particles, ordered by ``i``, ``j`` and ``shift``; see `pairs_in_cell`.

    Attributes:
        i: ``(p,)`` int64, the row of the first particle.
        j: ``(p,)`` int64, the row of the second particle.
        shift: ``(p, d)`` int64, the number of lattice vectors by which ``j`` is shifted.
        vector: ``(p, d)`` float64, ``pos[j] - pos[i] + shift @ cell``, from ``i`` to the image of ``j``.
        distance: ``(p,)`` float64, the length of ``vector``.
    """

    i: np.ndarray
    j: np.ndarray
    shift: np.ndarray
    vector: np.ndarray
    distance: np.ndarray


def pairs_in_cell(
    pos: ArrayLike, radius: float, cell: ArrayLike, periodic: ArrayLike = True, full: bool = False
) -> CellPairs:
    """List all pairs within a radius in a cell, with all periodic images.

    Every image of a particle within the radius forms a separate pair, also the images of the particle itself. A pair is
    within the radius if the length of its vector in float64 is at most the radius. Positions may be outside the cell;
    shifts are relative to the given positions. The letters of ASE for the results are ``i, j, S, D, d``.

    Args:
        pos: ``(n, d)`` real numbers, d from 1 to 8.
        radius: Maximum length of a vector, in the unit of the positions. It may exceed the cell.
        cell: ``(d, d)``, one lattice vector per row, linearly independent; or ``(d,)`` lengths of orthogonal sides.
            Vectors of open directions may be 0.
        periodic: Whether space is periodic along each lattice vector, ``(d,)`` or one for all.
        full: Whether to list every pair twice, as ``(i, j, shift)`` and ``(j, i, -shift)``. If False, the list holds
            each pair once: with ``i < j`` or, between a particle and its own images, with a shift whose first nonzero
            number is positive.

    Returns:
        The pairs.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        MemoryError: If the pairs do not fit into memory.

    Examples:
        For ``atoms`` of ASE, pass ``atoms.positions``, the radius, ``atoms.cell.array`` and ``atoms.pbc``.

        >>> from jztree_utils.cells import pairs_in_cell
        >>> pairs = pairs_in_cell([[0.1, 0.1], [0.9, 0.1]], 0.3, cell=[[1.0, 0.0], [0.5, 1.0]])
        >>> pairs.i, pairs.j, pairs.shift
        (array([0]), array([1]), array([[-1,  0]]))
    """
    check_no_units(pos=pos, radius=radius, cell=cell)
    places = _positions(pos)
    lattice = _lattice(cell, periodic, places.shape[1])
    reach = _radius(radius, lattice)
    result = [_pairs_of(places, lattice, reach, full, *block) for block in _candidates(places, lattice, reach)]
    empty = np.zeros((0, places.shape[1]))
    result.append(
        (empty[:, 0].astype(np.int64), empty[:, 0].astype(np.int64), empty.astype(np.int64), empty, empty[:, 0])
    )
    i, j, shift, vector, distance = (np.concatenate(column) for column in zip(*result, strict=True))
    return CellPairs(i=i, j=j, shift=shift, vector=vector, distance=distance)


class _Lattice(NamedTuple):
    """Lattice vectors ``(d, d)``, one per row, and whether space is periodic along each, ``(d,)``."""

    vectors: np.ndarray
    periodic: np.ndarray

    def shifted(self, shift: np.ndarray) -> np.ndarray:
        """Return ``shift @ vectors`` ``(p, d)``, added in the order of the vectors, so that its sign is symmetric."""
        total = np.zeros((len(shift), len(self.vectors)))
        for number, vector in zip(shift.T, self.vectors, strict=True):
            total += number[:, None] * vector
        return total


def _candidates(
    pos: np.ndarray, lattice: _Lattice, radius: float
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Yield pairs that contain all pairs within the radius: rows ``i`` and ``j``, and shifts, in blocks."""
    inverse = np.linalg.inv(lattice.vectors)
    fraction = pos @ inverse
    _check_near(np.where(lattice.periodic, np.abs(fraction), 0.0))
    home = np.where(lattice.periodic, np.floor(fraction), 0.0).astype(np.int64)
    size = np.abs(pos).max(initial=0) + np.abs(lattice.vectors).max()
    reach = radius * (1 + _ROUNDING) + _ROUNDING * size
    # The distance between opposite faces is 1 / |column|.
    margin = reach * np.linalg.norm(inverse, axis=0) + _ROUNDING * (1 + np.abs(fraction).max(initial=0))
    row, shift = _ghosts(fraction - home, margin, lattice.periodic)
    wrapped = pos - lattice.shifted(home)
    search = PointSearch(wrapped[row] + lattice.shifted(shift))
    for i, ghost, _ in search.blocks(wrapped, np.full(len(pos), reach)):
        j = row[ghost]
        yield i, j, shift[ghost] - home[j] + home[i]


def _ghosts(fraction: np.ndarray, margin: np.ndarray, periodic: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return rows and shifts of the images within a margin of the cell, in units of lattice vectors."""
    n, dims = fraction.shape
    row, shift = np.arange(n), np.zeros((n, dims), np.int64)
    for d in np.flatnonzero(periodic):
        along = fraction[row, d]
        low, high = np.ceil(-margin[d] - along), np.floor(1 + margin[d] - along)
        check_memory(float(np.maximum(high - low + 1, 0).sum()), _IMAGE + 8 * dims, _ADVICE, "images of particles")
        first = low.astype(np.int64)
        number = np.maximum(high.astype(np.int64) - first + 1, 0)
        copies = np.repeat(np.arange(len(row)), number)
        step = np.arange(len(copies)) - np.repeat(np.cumsum(number) - number, number)
        row, shift = row[copies], shift[copies]
        shift[:, d] = first[copies] + step
    return row, shift


def _check_near(cells: np.ndarray) -> None:
    """Raise ValueError if a position is too far from the cell. cells: ``(n, d)``, absolute numbers of cells."""
    farthest = cells.max(axis=1, initial=0)
    if np.any(farthest > _FARTHEST):
        row = int(np.argmax(farthest > _FARTHEST))
        raise ValueError(_TOO_FAR.format(row=row, cells=farthest[row], most=_FARTHEST))


def _pairs_of(
    pos: np.ndarray, lattice: _Lattice, radius: float, full: bool, i: np.ndarray, j: np.ndarray, shift: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Return the columns of the candidates within the radius in order, each pair twice or once."""
    vector = pos[j] - pos[i] + lattice.shifted(shift)
    distance = np.sqrt((vector**2).sum(axis=1))
    first = np.take_along_axis(shift, (shift != 0).argmax(axis=1)[:, None], axis=1)[:, 0]  # 0 without a shift
    selected = (i != j) | (first != 0) if full else (i < j) | ((i == j) & (first > 0))
    rows = np.flatnonzero(selected & (distance <= radius))
    rows = rows[_order(i[rows], j[rows], shift[rows])]
    return tuple(column[rows] for column in (i, j, shift, vector, distance))


def _order(i: np.ndarray, j: np.ndarray, shift: np.ndarray) -> np.ndarray:
    """Return the order by ``i``, ``j`` and ``shift``."""
    if not len(shift):
        return np.zeros(0, np.int64)
    low = shift.min(axis=0)
    sizes = (int(i.max()) + 1, int(j.max()) + 1, *(shift.max(axis=0) - low + 1).tolist())
    if math.prod(sizes) >= 2**63:
        return np.lexsort((*shift.T[::-1], j, i))
    # A sort of one number takes a fifth of the time.
    return np.argsort(np.ravel_multi_index((i, j, *(shift - low).T), sizes))


def _real(values: Any, name: str) -> np.ndarray:
    try:
        array = np.asarray(values)
    except ValueError:
        raise ValueError(f"{name} is a list of lists of different lengths; they must have the same length.") from None
    if array.dtype.kind not in "iuf":
        raise TypeError(f"{name} is {' '.join(repr(values).split()):.60}; it must be an array of real numbers.")
    return array


def _positions(pos: Any) -> np.ndarray:
    array = _real(pos, "pos")
    if array.ndim != 2 or not 1 <= array.shape[1] <= MOST_DIMS:
        raise ValueError(f"pos has shape {array.shape}; it must be (n, d), with d from 1 to {MOST_DIMS}.")
    if not np.isfinite(array).all():
        raise ValueError("pos has a position that is NaN or infinite; remove such particles.")
    places = np.ascontiguousarray(array, np.float64)
    check_size(places, "pos")
    return places


def _radius(radius: Any, lattice: _Lattice) -> float:
    if np.ndim(radius) or np.asarray(radius).dtype.kind not in "iuf":
        raise TypeError(f"radius is {radius!r:.60}; it must be one real number.")
    if not radius >= 0 or (np.isinf(radius) and lattice.periodic.any()):
        raise ValueError(f"radius is {radius}; it must be at least 0, and finite in a periodic cell.")
    return float(radius)


def _lattice(cell: Any, periodic: Any, dims: int) -> _Lattice:
    vectors, repeats = _real(cell, "cell").astype(np.float64), np.asarray(periodic)
    if vectors.shape == (dims,):
        vectors = np.diag(vectors)
    if vectors.shape != (dims, dims) or repeats.shape not in ((), (dims,)) or repeats.dtype.kind != "b":
        raise ValueError(
            f"cell has shape {vectors.shape} and periodic is {periodic}; cell must be ({dims}, {dims}), one lattice "
            f"vector per row, or ({dims},), and periodic True or False for each vector."
        )
    if not np.isfinite(vectors).all():
        raise ValueError("cell has a number that is NaN or infinite; lattice vectors must be finite.")
    longest = np.abs(vectors).max(axis=1)
    if not np.all((longest == 0) | ((longest >= _SHORTEST) & (longest <= _LONGEST))):
        raise ValueError(
            f"cell is {vectors.tolist()}; the longest component of a lattice vector must be from {_SHORTEST:g} to "
            f"{_LONGEST:g}. Choose another unit."
        )
    repeats, lengths = np.broadcast_to(repeats, (dims,)), np.linalg.norm(vectors, axis=1)
    missing = (lengths == 0) & ~repeats
    if missing.any():
        # Unit vectors that are orthogonal to all others.
        vectors = vectors.copy()
        _, _, basis = np.linalg.svd(vectors)
        vectors[missing] = basis[dims - missing.sum() :]
        lengths = np.where(missing, 1.0, lengths)
    if not abs(np.linalg.det(vectors / np.where(lengths > 0, lengths, 1)[:, None])) > _FLAT:
        raise ValueError(
            f"cell is {vectors.tolist()}; its lattice vectors must be linearly independent. Only those of open "
            "directions may be 0."
        )
    return _Lattice(vectors, repeats)
