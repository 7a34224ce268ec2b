"""Numbers and weights of sets of particles, from which estimators compute the total weight of their pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.experimental import multihost_utils
from numpy.typing import ArrayLike

from jztree.data import Particles, Pos, check_no_units, get_num, get_pos, to_local

from .._arrays import from_table
from ._arguments import real_numbers, whole_number


@dataclass(frozen=True, kw_only=True)
class Totals:
    """The number and the weights of a set of particles, in each region; see `totals`.

    Without regions, the arrays have one entry, for all particles.

    Attributes:
        num: ``(num_regions,)`` int64, number of particles.
        weight: ``(num_regions,)`` float64, sum of the weights.
        square: ``(num_regions,)`` float64, sum of the squared weights.
        absolute: ``(num_regions,)`` float64, sum of the absolute weights.
        num_regions: Number of regions, or None.
        rounding: Relative rounding error of a weight; None if every weight is 1.
        dims: Number of dimensions of the positions; None if unknown.
        corners: ``(2, num_regions, d)`` float64, the lowest and the highest coordinates of the particles in each
            region, infinite in regions without particles; None without regions.
    """

    num: np.ndarray
    weight: np.ndarray
    square: np.ndarray
    absolute: np.ndarray
    num_regions: int | None = None
    rounding: float | None = None
    dims: int | None = None
    corners: np.ndarray | None = None

    def sums(self) -> np.ndarray:
        """Return ``(1 + num_regions,)``, the sum of the weights, and the sums without each region.

        A sum is 0 if it is at most the rounding error of the weights.
        """
        total, error = self._kept(self.weight), (self.rounding or 0.0) * self._kept(self.absolute)
        return np.where(np.abs(total) <= error, 0.0, total)

    def pairs(self) -> np.ndarray:
        """Return ``(1 + num_regions,)``, the total weight of the pairs of different particles, in both orders.

        It is 0 if the sum of the weights is 0.
        """
        return np.where(self.sums() != 0, self._kept(self.weight) ** 2 - self._kept(self.square), 0.0)

    def fault(self, name: str, alone: bool) -> str:
        """Return the reason why this set does not allow an estimate, or an empty text.

        Args:
            name: Name of the set in the text.
            alone: Whether the pairs are within this set.
        """
        num = int(self.num.sum())
        if num < 1 + alone:
            need = "2" if alone else "one of each set"
            return f"the {name} hold {num} particle{'' if num == 1 else 's'}, but a pair needs {need}"
        if not self.sums()[0]:
            return f"the weights of the {name} sum to 0"
        missing = alone and not self.pairs()[0]
        return f"the products of the weights of all pairs of the {name} sum to 0" if missing else ""

    def _kept(self, column: np.ndarray) -> np.ndarray:
        """Return the sum over all regions, and the sums over all regions but one."""
        if self.num_regions is None:
            return column.astype(np.float64)
        is_separate = 1.0 - np.eye(self.num_regions)
        return np.concatenate([column.sum(keepdims=True), is_separate @ column])


def totals(
    part: Particles | ArrayLike,
    weights: ArrayLike | None = None,
    regions: ArrayLike | None = None,
    num_regions: int | None = None,
) -> Totals:
    """Return the number and the weights of a set of particles, for the estimators from counts.

    Pass the same arguments as to `jztree.radius.pair_counts`. Particles over devices have a leading axis over the
    devices, as `jztree.data.from_local` returns them. If their devices belong to several processes, every process must
    call this function, and gets the totals over the processes.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, or an array of positions; ``(r, n, d)`` over ``r`` devices.
        weights: ``(n,)``, or ``(r, n)`` over devices. None means that every weight is 1.
        regions: Integers from 0 to below ``num_regions``, in the same shape. None means no regions.
        num_regions: The number of regions; required with ``regions``.

    Returns:
        The totals. Sums are computed in float64, of weights rounded to the dtype of the positions.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    if (regions is None) != (num_regions is None):
        raise ValueError("a jackknife needs regions and num_regions; give both, or neither.")
    size = 1 if num_regions is None else whole_number(num_regions, "num_regions")
    check_no_units(weights=weights, regions=regions)
    places, own_places, weights, regions = _own_rows(part, weights, regions)
    check_no_units(part=places)
    numbers = None if regions is None else _checked(regions, size)
    counts = np.array([len(own_places)]) if numbers is None else np.bincount(numbers, minlength=size)
    table, rounding = np.repeat(counts[:, None].astype(np.float64), 4, axis=1), None
    if weights is not None:
        rounding = _rounding(np.asarray(weights).dtype, _dtype(places))
        rows = real_numbers(weights, "weights").astype(_dtype(places)).astype(np.float64)
        if not np.isfinite(rows).all():
            wrong = int(np.argmin(np.isfinite(rows)))
            raise ValueError(f"row {wrong} has a weight that is NaN or infinite; remove such particles.")
        rows = rows if numbers is None else rows[np.argsort(numbers, kind="stable")]
        for line, one in zip(table, np.split(rows, np.cumsum(counts)[:-1]), strict=True):
            line[1:] = one.sum(), (one**2).sum(), np.abs(one).sum()
    table = _of_all_processes(table, places).sum(axis=0)
    return Totals(
        num=table[:, 0].astype(np.int64),
        weight=table[:, 1],
        square=table[:, 2],
        absolute=table[:, 3],
        num_regions=num_regions,
        rounding=rounding,
        dims=int(np.shape(places)[-1]),
        corners=None if numbers is None else _corners(own_places, numbers, size, places),
    )


def _corners(own_places: Any, numbers: np.ndarray, num_regions: int, places: Any) -> np.ndarray:
    """Return the `Totals.corners` of this process's positions in numbered regions, over all processes."""
    pos = np.asarray(own_places, np.float64)
    corners = np.full((2, pos.shape[1], num_regions), np.inf)
    for axis, column in enumerate(pos.T):
        np.minimum.at(corners[0, axis], numbers, column)
        np.minimum.at(corners[1, axis], numbers, -column)
    low, high = _of_all_processes(corners, places).min(axis=0).transpose(0, 2, 1)
    return np.stack([low, -high])


def totals_of_number(num: int) -> Totals:
    """Return the totals of ``num`` particles without weights and regions."""
    total = np.array([float(num)])
    return Totals(num=np.array([num], np.int64), weight=total, square=total, absolute=total)


def _own_rows(part: Any, weights: Any, regions: Any) -> tuple[Any, Any, Any, Any]:
    """Return the positions, and this process's positions, weights and regions without padding."""
    part, weights, regions = (
        from_table(value, name) for value, name in ((part, "part"), (weights, "weights"), (regions, "regions"))
    )
    positions = np.asarray(part) if isinstance(part, list) else part
    places, num, columns = get_pos(positions), getattr(positions, "num", None), (weights, regions)
    if np.ndim(places) != 3:
        for name, column in (("weights", weights), ("regions", regions)):
            if column is not None and np.shape(column) != places.shape[:1]:
                raise ValueError(f"{name} has shape {np.shape(column)}; it must be {places.shape[:1]}, one per row.")
        num = int(get_num(positions))
        return places, places[:num], *(None if column is None else np.asarray(column)[:num] for column in columns)
    held = Pos(pos=places, num=np.full(places.shape[0], places.shape[1], np.int32) if num is None else num)
    own = [None if column is None else to_local(column, held) for column in columns]
    own_rows: Any = to_local(held, held)
    return places, own_rows.pos[: int(np.asarray(own_rows.num))], *own


def _checked(regions: Any, num_regions: int) -> np.ndarray:
    numbers = np.asarray(regions)
    if numbers.dtype.kind not in "iu":
        raise TypeError(f"regions have the dtype {numbers.dtype}; they must be integers.")
    if numbers.size and not 0 <= int(numbers.min()) <= int(numbers.max()) < num_regions:
        wrong = int(np.argmax((numbers < 0) | (numbers >= num_regions)))
        raise ValueError(
            f"row {wrong} has the region {numbers[wrong]}; regions must be at least 0 and below num_regions, "
            f"{num_regions}."
        )
    return numbers.astype(np.int64)


def _dtype(places: Any) -> np.dtype:
    """Return the dtype that `jztree.pair_counts` uses for positions and weights."""
    return np.dtype(jax.dtypes.canonicalize_dtype(places.dtype))


def _rounding(given: np.dtype, places: np.dtype) -> float:
    return float(max(np.finfo(given).eps, np.finfo(places).eps)) if given.kind == "f" else 0.0


def _of_all_processes(table: np.ndarray, places: Any) -> np.ndarray:
    """Return the float64 tables of all processes that hold the positions, one per row."""
    if getattr(places, "is_fully_addressable", True):
        return table[None]
    # JAX would round float64 numbers.
    tables = multihost_utils.process_allgather(np.frombuffer(table.tobytes(), np.uint8))
    return np.frombuffer(np.asarray(tables).tobytes(), np.float64).reshape(-1, *table.shape)
