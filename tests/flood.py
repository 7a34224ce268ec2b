"""An oracle for the peaks of a density: a flood that adds one particle after the other, densest first. Not a test."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Flood:
    """The peaks, densest first. -1 means that a peak does not end.

    Attributes:
        peak: ``(n,)``, the number of each particle's peak.
        row: The row of each peak.
        saddle: The row of the saddle of each peak.
        parent: The number of its parent.
        across: The number of the peak across its saddle.
    """

    peak: np.ndarray
    row: np.ndarray
    saddle: np.ndarray
    parent: np.ndarray
    across: np.ndarray


def graph(nearest: np.ndarray) -> list[set[int]]:
    """Return the neighbours of each particle, for lists of nearest particles ``(n, k)`` that may contain itself."""
    neighbours: list[set[int]] = [set() for _ in nearest]
    for row, others in enumerate(nearest):
        for second in set(others.tolist()) - {row, -1}:
            neighbours[row].add(second)
            neighbours[second].add(row)
    return neighbours


def flood(neighbours: list[set[int]], density: Any) -> Flood:
    """Return the peaks of a density on a graph.

    Args:
        neighbours: The neighbours of each particle.
        density: ``(n,)``. Of equal densities, that of the smaller row counts as higher.
    """
    n = len(neighbours)
    order = sorted(range(n), key=lambda row: (-density[row], row))
    place = {row: i for i, row in enumerate(order)}
    peak = np.full(n, -1)
    row: list[int] = []
    saddle: list[int] = []
    parent: list[int] = []
    across: list[int] = []
    joined: list[int] = []  # [peak], the densest peak of its set
    for new in order:
        denser = sorted(
            (neighbour for neighbour in neighbours[new] if place[neighbour] < place[new]), key=place.__getitem__
        )
        if not denser:
            peak[new] = len(row)
            joined.append(len(row))
            row.append(new)
            saddle.append(-1)
            parent.append(-1)
            across.append(-1)
            continue
        basin = peak[new] = peak[denser[0]]
        ended = []
        for second in peak[denser]:
            first, last = sorted((joined[basin], joined[second]))
            if first != last:
                saddle[last], across[last] = new, second if joined[basin] == last else basin
                ended.append(last)
                joined = [first if number == last else number for number in joined]
        for number in ended:
            parent[number] = joined[basin]
    return Flood(peak, *(np.array(column, int) for column in (row, saddle, parent, across)))


def tomato(
    neighbours: list[set[int]], density: Any, threshold: float, ratio: bool = False, reverse: bool = False
) -> np.ndarray:
    """Return the row of the peak of each particle's cluster, by Algorithm 1 of Chazal et al. (2013, J. ACM 60, 41).

    Args:
        neighbours: The neighbours of each particle.
        density: ``(n,)``. Of equal densities, that of the smaller row counts as higher.
        threshold: Peaks below it merge.
        ratio: Whether the threshold is one of ratios of densities, rather than of differences.
        reverse: Whether the least dense of the denser neighbours comes first. The paper leaves their order open.
    """
    order = sorted(range(len(neighbours)), key=lambda row: (-density[row], row))
    place = {row: i for i, row in enumerate(order)}
    up = list(range(len(neighbours)))

    def root(row: int) -> int:
        while up[row] != row:
            row = up[row]
        return row

    for new in order:
        denser = sorted(
            (neighbour for neighbour in neighbours[new] if place[neighbour] < place[new]), key=place.__getitem__
        )
        if denser:
            up[new] = root(denser[0])
        for second in reversed(denser) if reverse else denser:
            peak, weak = sorted((root(new), root(second)), key=place.__getitem__)
            top, level = density[weak], density[new]
            with np.errstate(divide="ignore", over="ignore"):
                depth = (1 if top == level else top / level) if ratio else (0 if top == level else top - level)
            if peak != weak and float(depth) < threshold:
                up[weak] = peak
    return np.array([root(row) for row in range(len(up))], int)
