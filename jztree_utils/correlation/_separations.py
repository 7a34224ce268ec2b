"""Mean separations of the pairs in bins of their distance, from lists of pairs, block by block."""

import functools
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from jztree.data import Particles, Pos, get_num, get_pos
from jztree.radius import count_within, neighbours_within, pair_counts
from jztree.tree import TreeHierarchy, zsort_and_tree

from ..progress import progress as progress_of
from ._arguments import bin_edges

_PAIRS = 1 << 20  # of a block, unless a single particle has more; about 150 MB


def mean_separations(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    part_b: Particles | ArrayLike | None = None,
    mode: str = "r",
    edges_b: ArrayLike | None = None,
    los: int | str = -1,
    weight: ArrayLike | None = None,
    weight_b: ArrayLike | None = None,
    progress: bool = False,
) -> np.ndarray:
    """Return the mean separation of the pairs that `jztree.radius.pair_counts` counts, in each bin of ``edges``.

    The pairs are those of the same call of `pair_counts`; with two quantities, those within all ``edges_b``. The
    separation is the first quantity: r, s or rp. It is weighted by the product of both weights.

    The function lists the pairs of a block of particles at a time, on one device, and computes in float64. So it needs
    little memory, but about 0.2 microseconds per pair (one core of an Intel Xeon), far more than the counts.

    Args:
        part, edges, boxsize, part_b, mode, edges_b, los, weight, weight_b: See `jztree.radius.pair_counts`.
        progress: Whether to report the progress on standard error; see `jztree_utils.progress`.

    Returns:
        ``(b,)`` float64, NaN for bins without pairs, or whose weights sum to 0.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    _check_bins(part, edges, {"boxsize": boxsize, "mode": mode, "edges_b": edges_b, "los": los})
    bins = _Bins(edges, mode, edges_b, los)
    box = None if boxsize is None else np.broadcast_to(np.asarray(boxsize, np.float64), np.shape(get_pos(part))[1:])
    queries = _Side.of(part, weight, boxsize)
    sources = queries if part_b is None else _Side.of(part_b, weight_b, boxsize)
    around = count_within(sources.part, bins.reach, boxsize, th=sources.th, part_query=queries.part)
    numbers = np.asarray(around)[: queries.num].astype(np.int64)
    blocks = _blocks(numbers)
    # Powers of two, so that JAX compiles the search for few sizes.
    rows, capacity = (1 << (max((block[k] for block in blocks), default=1) - 1).bit_length() for k in (1, 2))
    sums = np.zeros((2, bins.number))
    with progress_of("mean separations", int(numbers.sum()), "pairs", quiet=not progress) as advance:
        for first, size, held in blocks:
            block = Pos(pos=np.resize(queries.pos[first : first + size], (rows, queries.pos.shape[1])), num=size)
            lists = neighbours_within(
                sources.part, bins.reach, boxsize, th=sources.th, part_query=block, capacity=capacity
            )
            splits = np.asarray(lists.splits).astype(np.int64)
            i = first + np.repeat(np.arange(size), np.diff(splits)[:size])
            sums += bins.added(queries, i, sources, np.asarray(lists.index)[: splits[size]], box)
            advance(held)
    return np.divide(sums[1], sums[0], out=np.full(bins.number, np.nan), where=sums[0] != 0)


def _check_bins(part: Any, edges: Any, options: dict[str, Any]) -> None:
    """Raise the TypeError or ValueError of `pair_counts` for invalid bins, without counting."""
    one = jnp.asarray(get_pos(part))[:1]
    jax.eval_shape(lambda pos: pair_counts(pos, edges, **options), one)
    # Tracing does not know the numbers of the box.
    box = options["boxsize"]
    if options["mode"] != "r" and isinstance(options["los"], str) and box is not None and np.any(np.asarray(box) > 0):
        raise ValueError("los='midpoint' requires an open box; leave out boxsize, or pass an axis.")


def _blocks(numbers: np.ndarray) -> list[tuple[int, int, int]]:
    """Return blocks of particles: the first particle, the number of particles, and the number of their pairs."""
    ends, first, found = np.cumsum(numbers), 0, []
    while first < len(numbers):
        before = ends[first] - numbers[first]
        end = max(int(np.searchsorted(ends, before + _PAIRS, side="right")), first + 1)
        found.append((first, end - first, int(ends[end - 1] - before)))
        first = end
    return found


@dataclass(frozen=True)
class _Side:
    """One set of particles in z-order.

    Attributes:
        part: The particles.
        th: Their hierarchy.
        pos: ``(num, d)``, NumPy positions.
        columns: ``(d, num)`` float64, the same positions.
        weight: ``(num,)`` float64, or None.
    """

    part: Pos
    th: TreeHierarchy
    pos: np.ndarray
    columns: np.ndarray
    weight: np.ndarray | None

    @property
    def num(self) -> int:
        return len(self.pos)

    @classmethod
    def of(cls, part: Any, weight: Any, boxsize: Any) -> "_Side":
        pos, num = jnp.asarray(get_pos(part)), int(get_num(part))
        columns = [] if weight is None else [jnp.asarray(weight).astype(pos.dtype)]
        sorted_part, sorted_columns, th = zsort_and_tree(Pos(pos=pos, num=num), data=columns, boxsize=boxsize)
        weights = [np.asarray(column)[:num].astype(np.float64) for column in sorted_columns]
        rows = np.asarray(sorted_part.pos)[:num]
        columns64 = np.ascontiguousarray(rows.T, np.float64)
        return cls(sorted_part, th, rows, columns64, weights[0] if weights else None)


class _Bins:
    """The bins of pairs, in the definition of `jztree.radius.pair_counts`."""

    def __init__(self, edges: Any, mode: str, edges_b: Any, los: Any) -> None:
        self.edges, self.mode, self.los = bin_edges(edges, "edges"), mode, los
        second = np.array([0.0, np.inf]) if edges_b is None else bin_edges(edges_b, "edges_b")
        self.low, self.high = second[0], second[-1]
        self.number = len(self.edges) - 1
        reach = self.edges[-1] if mode != "rp_pi" else np.hypot(self.edges[-1], self.high)
        if not np.isfinite(reach):
            raise ValueError("the last edge is infinite, but a list of pairs needs finite edges; end at a finite one.")
        self.reach = float(reach) * (1 + 1e-6)

    def added(self, a: _Side, i: np.ndarray, b: _Side, j: np.ndarray, box: np.ndarray | None) -> np.ndarray:
        """Return ``(2, b)``: the weight of the pairs ``i, j`` in each bin, and the sum of weight times separation."""
        # NumPy adds columns several times faster than rows of three numbers.
        sides = [(x[i], y[j]) for x, y in zip(a.columns, b.columns, strict=True)]
        apart = [x - y for x, y in sides]
        for d, length in enumerate([] if box is None else box):
            if length > 0:
                apart[d] -= length * np.rint(apart[d] / length)
        square = _sum([x**2 for x in apart])
        first, inside = self._quantities(apart, square, sides)
        place = np.searchsorted(self.edges**2, first, side="left") - 1
        if self.edges[0] == 0:
            place[first == 0] = 0
        kept = np.flatnonzero(inside & (square > 0) & (place >= 0) & (place < self.number))
        weight = np.ones(len(kept))
        for side, rows in ((a, i), (b, j)):
            if side.weight is not None:
                weight *= side.weight[rows[kept]]
        place, distance = place[kept], np.sqrt(first[kept])
        return np.stack([np.bincount(place, one, self.number) for one in (weight, weight * distance)])

    def _quantities(
        self, apart: list[np.ndarray], square: np.ndarray, sides: list[tuple[np.ndarray, np.ndarray]]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the square of the first quantity, and whether the second one is in a bin."""
        if self.mode == "r":
            return square, np.ones(len(square), bool)
        if isinstance(self.los, str):
            middle = [(x + y) / 2 for x, y in sides]
            norm = _sum([m**2 for m in middle])
            dot = _sum([x * m for x, m in zip(apart, middle, strict=True)])
            share = np.divide(dot, norm, out=np.zeros_like(norm), where=norm > 0)
            along = np.abs(share) * np.sqrt(norm)
            across = _sum([(x - share * m) ** 2 for x, m in zip(apart, middle, strict=True)])
        else:
            along = np.abs(apart[self.los])
            across = _sum([x**2 for d, x in enumerate(apart) if d != self.los % len(apart)])
        # A bin that begins at 0 also holds the value 0.
        if self.mode == "rp_pi":
            return across, (along <= self.high) & ((along > self.low) | (self.low == 0))
        return square, (along**2 <= self.high**2 * square) & ((along**2 > self.low**2 * square) | (self.low == 0))


def _sum(columns: list[np.ndarray]) -> np.ndarray:
    """Return the sum of at least one array."""
    return functools.reduce(np.add, columns)
