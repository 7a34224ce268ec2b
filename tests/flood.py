"""An oracle for the peaks of a density: a flood that adds one particle after the other, densest first. Not a test."""

from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass
class Flood:
    """The peaks, densest first. -1 means that a peak has no saddle and no parent.

    Attributes:
        peak: ``(n,)``, the number of each particle's peak.
        row: The row of each peak.
        saddle: The row of the saddle of each peak.
        parent: The number of its parent.
    """

    peak: np.ndarray
    row: np.ndarray
    saddle: np.ndarray
    parent: np.ndarray


def graph(near: np.ndarray) -> list[set[int]]:
    """Return the neighbours of each particle, for lists of nearest particles ``(n, k)`` that may contain itself."""
    neighbours: list[set[int]] = [set() for _ in near]
    for row, others in enumerate(near):
        for other in set(others.tolist()) - {row, -1}:
            neighbours[row].add(other)
            neighbours[other].add(row)
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
    joined: list[int] = []  # [peak], the densest peak of its set
    for new in order:
        denser = sorted((other for other in neighbours[new] if place[other] < place[new]), key=place.__getitem__)
        if not denser:
            peak[new] = len(row)
            joined.append(len(row))
            row.append(new)
            saddle.append(-1)
            parent.append(-1)
            continue
        peak[new] = peak[denser[0]]
        first, *ended = sorted({joined[peak[other]] for other in denser})
        for number in ended:
            saddle[number], parent[number] = new, first
            joined = [first if one == number else one for one in joined]
    return Flood(peak, np.array(row, int), np.array(saddle, int), np.array(parent, int))
