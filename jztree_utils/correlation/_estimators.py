"""Correlation functions from pair counts, in float64, and the reasons for NaN values.

A function of two quantities, such as ``xi(rp, pi)``, has a row of cells in each bin. The estimator of Landy & Szalay
(1993, ApJ 412, 64) divides by the random pairs of a cell, and in a narrow bin some cells often have none. Such a cell
is joined to the next cell of its bin that has random pairs, otherwise to the last one that has: their counts are added,
and the function is taken as constant over them. So the integral over the cells counts all data pairs and covers the
whole range. A sum without the empty cells would lose their part of the integral, which is the largest at small ``pi``.
Corrfunc 2.5 gives NaN for a bin with an empty cell, and halotools 0.9 has a single cell in each bin of ``wp``. The
values here equal Corrfunc's if no cell is empty, and halotools' if only one cell has random pairs.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from jztree.radius import PairCounts

_NO_RANDOM_PAIRS = "random pairs are missing; give more randoms, or wider bins"
_NO_CROSS_PAIRS = "no bin has a pair of data and randoms; the randoms must fill the volume of the data"


@dataclass(frozen=True)
class Estimate:
    """A function in bins, for all particles and then without each region.

    Attributes:
        cells: ``(1 + regions, b, c)`` float64, the value in each cell of each bin.
        reason: The reason for NaN values.
        joined: ``(b,)``, whether cells of a bin were joined.
    """

    cells: np.ndarray
    reason: str
    joined: np.ndarray

    def integrated(self, over: np.ndarray) -> np.ndarray:
        """Return ``(1 + regions, ..., b)``, the sums over cells times ``over``, ``(..., c)``."""
        return np.einsum("...c,sbc->s...b", over, self.cells)


@dataclass(frozen=True)
class Pairs:
    """Pairs of two sets in the cells of each bin, for all particles and then without each region.

    Attributes:
        number: ``(1 + regions, b, c)`` int64, numbers of pairs.
        weight: ``(1 + regions, b, c)`` float64, their weight.
        every: ``(1 + regions,)`` float64, the total weight of the pairs of the sets, at any distance.
    """

    number: np.ndarray
    weight: np.ndarray
    every: np.ndarray

    def fraction(self, group: np.ndarray | None = None) -> np.ndarray:
        """Return the weight in each cell, or in the group of each cell, as a fraction of the total weight."""
        weight = self.weight if group is None else _added(self.weight, group)
        return _ratio(weight, self.every[:, None, None])


def pairs_of(counts: PairCounts, every: np.ndarray) -> Pairs:
    """Return the pairs of ``counts``, whose sets have pairs of the weight ``every``."""
    number = _each(counts.count, counts.region_count)
    if counts.weight is None:
        return Pairs(number, number.astype(np.float64), every)
    # Without pairs, differences of rounded sums may differ from 0.
    return Pairs(number, np.where(number > 0, _each(counts.weight, counts.region_weight), 0.0), every)


def in_box(dd: Pairs, share: np.ndarray, fault: str) -> Estimate:
    """Return ``DD / RR - 1`` (Peebles & Hauser 1974, ApJS 28, 19) in a periodic box.

    Args:
        dd: Pairs of data.
        share: ``(1 + regions, b)`` or ``(1 + regions, b, c)``, the fraction of the pairs of random places in each cell.
        fault: The reason if no pairs exist.
    """
    share = share.reshape(*share.shape[:2], -1)
    return Estimate(_ratio(dd.fraction(), share) - 1, fault, np.zeros(share.shape[1], bool))


def with_randoms(dd: Pairs, crosses: list[Pairs], rr: Pairs, fault: str) -> Estimate:
    """Return ``(DD - DR - RD + RR) / RR``, or ``DD / RR - 1`` without ``crosses``, from fractions of the total weight.

    Args:
        dd: Pairs of data.
        crosses: Pairs of the data with the randoms of the other tracer: none, or the pairs of both tracers.
        rr: Pairs of randoms.
        fault: The reason if a set has too few particles or weights that sum to 0, or an empty text.
    """
    group, joined = _groups(rr.weight != 0)
    expected = rr.fraction(group)
    excess = dd.fraction(group) - sum(cross.fraction(group) for cross in crosses)
    value = _ratio(excess + (expected if crosses else -expected), expected)
    offset = np.zeros(len(value), bool)
    for cross in crosses:
        offset |= cross.number.sum(axis=(1, 2)) == 0
    value[offset] = np.nan
    no_pairs = _NO_CROSS_PAIRS if offset[0] and np.any(expected[0]) else _NO_RANDOM_PAIRS
    return Estimate(np.take_along_axis(value, group, axis=-1), fault or no_pairs, np.logical_or.reduce(joined))


def _each(total: Any, regions: Any) -> np.ndarray:
    every = np.asarray(total)[None]
    result = every if regions is None else np.concatenate([every, every - np.asarray(regions)])
    return result.reshape(*result.shape[:2], -1)


def _groups(filled: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Group the cells ``(s, b, c)`` along the last axis, so that each group has one filled cell if its bin has any.

    Returns:
        The group of each cell, ``(s, b, c)``, and whether cells were joined in a bin with filled cells, ``(s, b)``.
    """
    before = np.cumsum(filled, axis=-1) - filled
    largest = filled.sum(axis=-1)
    joined = (largest > 0) & (largest < filled.shape[-1])
    return np.minimum(before, np.maximum(largest - 1, 0)[..., None]), joined


def _added(cells: np.ndarray, group: np.ndarray) -> np.ndarray:
    """Return the sums of the cells of each group, at the index of the group."""
    sums = np.zeros(cells.shape)
    sample, row = np.arange(cells.shape[0])[:, None, None], np.arange(cells.shape[1])[:, None]
    np.add.at(sums, (sample, row, group), cells)
    return sums


def _ratio(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return ``a / b``, and NaN if b is 0."""
    a, b = np.broadcast_arrays(a, b)
    return np.divide(a, b, out=np.full(a.shape, np.nan), where=b != 0)


def shortcomings(name: str, result: Estimate, edges: np.ndarray, advice: str, occupied: np.ndarray | None) -> str:
    """Return the text of the warning about a function with the given edges, or an empty text.

    Args:
        name: The name of the function.
        found: The values of the function.
        edges: ``(b + 1,)`` edges of the bins.
        advice: The second way to avoid joined cells, after "give more randoms, or".
        occupied: ``(num_regions,)`` bool, the regions with particles, or None without regions.
    """
    absent = np.isnan(result.cells).any(axis=-1)
    sentences = []
    if absent[0].any():
        sentences.append(f"{name} is NaN in {_bins(absent[0], edges)}: {result.reason}.")
    joined = result.joined & ~absent[0]
    if joined.any():
        sentences.append(
            f"In {_bins(joined, edges)}, cells without pairs of randoms are joined to the next cells that have some; "
            f"give more randoms, or {advice}."
        )
    lost = absent[1:] & ~absent[0]
    if lost.any():
        sentences.append(
            f"Without {_regions(lost.any(axis=1))}, {name} is NaN in {_bins(lost.any(axis=0), edges)}, and so is the "
            "covariance."
        )
    if occupied is not None and not occupied.all():
        sentences.append(
            f"There are no particles in {_regions(~occupied)}; the covariance is that of the other regions."
        )
    return " ".join(sentences)


def _bins(selected: np.ndarray, edges: np.ndarray) -> str:
    """Describe the chosen bins with their edges."""
    runs = [f"{_run(first, last)} ({edges[first]:g} to {edges[last + 1]:g})" for first, last in _runs(selected)]
    return ("bins " if selected.sum() > 1 else "bin ") + _listed(runs)


def _regions(selected: np.ndarray) -> str:
    return ("regions " if selected.sum() > 1 else "region ") + _listed([_run(*run) for run in _runs(selected)])


def _runs(selected: np.ndarray) -> list[tuple[int, int]]:
    """Return the first and the last index of each run of chosen entries."""
    steps = np.diff(selected.astype(int), prepend=0, append=0)
    return list(zip(np.flatnonzero(steps == 1).tolist(), (np.flatnonzero(steps == -1) - 1).tolist(), strict=True))


def _run(first: int, last: int) -> str:
    return f"{first}" if first == last else f"{first} to {last}"


def _listed(words: list[str]) -> str:
    return " and ".join([", ".join(words[:-1]), words[-1]] if len(words) > 1 else words)
