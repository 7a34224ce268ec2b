"""The check of minimum spanning trees."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from ._points import Points, Verification, column_of, integers_of, sample_rows


def spanning_tree(
    part: Any, tree: Any, *, boxsize: ArrayLike | None = None, samples: int | None = None, seed: int = 0
) -> Verification:
    """Check a minimum spanning tree: its lengths, that it joins all particles, and the cycle property of sampled rows.

    A spanning tree is minimal if and only if no pair of particles is nearer than the longest edge of the path between
    them. For each sampled row, this is checked for its pairs with all particles.

    Args:
        part: A particle class or positions ``(n, d)``.
        tree: Object with the edges ``i`` and ``j`` ``(n - 1,)`` and their ``length``, like that of
            `jztree.spanning_tree`.
        boxsize: The box of the search.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(0).random((200, 2), np.float32)
        >>> verify.spanning_tree(pos, jz.spanning_tree(pos)).passed
        True
    """
    points = Points(part, boxsize)
    n, faults = len(points), []
    i, j = (integers_of(ends, "an end of the edges", (None,))[: max(n - 1, 0)] for ends in (tree.i, tree.j))
    length = column_of(tree.length, "length", (None,))[: max(n - 1, 0)]
    number = {len(i), len(j), len(length)}
    if number != {max(n - 1, 0)} or (len(i) and (min(i.min(), j.min()) < 0 or max(i.max(), j.max()) >= n)):
        return Verification("spanning tree", n, 0, (f"{n} particles need {n - 1} edges between rows 0 to {n - 1}",))
    away = np.array([points.distances(points.pos[a], [b])[0] for a, b in zip(i, j, strict=True)])
    wrong = np.flatnonzero(points.differ(length, away))
    faults += [
        f"edge {edge} has the length {length[edge]:.9g}, but {away[edge]:.9g} separates its ends" for edge in wrong
    ]
    sample = sample_rows(n, n, 200 if samples is None else samples, seed)
    edges_of = _Adjacency(n, i, j, away)
    for row in sample:
        largest = edges_of.largest_on_path(int(row))
        if np.isinf(largest).any():
            faults.append(f"no path joins rows {row} and {int(np.argmax(np.isinf(largest)))}")
            break
        distance = points.distances(points.pos[row])
        shorter = np.flatnonzero(distance < largest - points.margin(largest))
        if len(shorter):
            faults.append(
                f"rows {row} and {shorter[0]} are {distance[shorter[0]]:.9g} apart, less than the longest edge between "
                f"them, {largest[shorter[0]]:.9g}"
            )
    return Verification("spanning tree", n, len(sample), tuple(faults))


class _Adjacency:
    """The edges at each vertex of a graph."""

    def __init__(self, n: int, i: np.ndarray, j: np.ndarray, length: np.ndarray) -> None:
        ends, order = np.concatenate([i, j]), np.argsort(np.concatenate([i, j]), kind="stable")
        self.n, self.starts = n, np.searchsorted(ends[order], np.arange(n + 1))
        self.to, self.length = np.concatenate([j, i])[order], np.concatenate([length, length])[order]

    def largest_on_path(self, row: int) -> np.ndarray:
        """Return the longest edge of the path from a vertex to each other one; infinity without a path."""
        largest = np.full(self.n, np.inf)
        largest[row] = 0.0
        front = np.array([row])
        while len(front):
            counts = self.starts[front + 1] - self.starts[front]
            edge = np.repeat(self.starts[front] - np.r_[0, np.cumsum(counts)[:-1]], counts) + np.arange(counts.sum())
            reached = np.maximum(np.repeat(largest[front], counts), self.length[edge])
            is_new = np.isinf(largest[self.to[edge]])
            front = self.to[edge][is_new]
            largest[front] = reached[is_new]
        return largest
