"""Neighbours and counts of queries among more particles than memory holds: a search of each range of particles."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain
from typing import Any, NamedTuple

import jax
import numpy as np
from numpy.typing import ArrayLike

from jztree import knn
from jztree import radius as within
from jztree.data import Pos, get_num, get_pos

from ..progress import progress
from ._pieces import pieces_of
from ._plan import rows_in
from ._runs import padded


class Neighbours(NamedTuple):
    """Neighbours of queries.

    Attributes:
        distance: ``(q, k)``, nearest first; infinite for missing neighbours.
        index: ``(q, k)`` int64, rows over all pieces; -1 for missing neighbours.
    """

    distance: np.ndarray
    index: np.ndarray  # type: ignore[assignment]


def nearest(
    pieces: Any,
    k: int,
    *,
    queries: Any,
    boxsize: ArrayLike | None = None,
    memory: float | None = None,
    quiet: bool = False,
) -> Neighbours:
    """Find the nearest particles of given queries among more particles than memory holds.

    Distances equal the result of `jztree.nearest` for all pieces together. Neighbours at the same distance are in the
    order of their rows. At the end of a list, the choice among them may differ.

    Args:
        pieces: The sources; see `friends_of_friends`. Each piece is read once, so an iterator of pieces also works.
        k: Number of neighbours.
        queries: ``(q, d)`` positions of the same dtype, or a particle class. They fit into memory.
        boxsize: The periodic length, or one per dimension; None means open.
        memory: Bytes that the search may use. None means three quarters of the free memory.
        quiet: Whether to report no progress.

    Examples:
        >>> from jztree_utils import large
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> large.nearest([pos[:1], pos[1:]], 2, queries=pos[:1], quiet=True).index
        array([[0, 1]])
    """
    places = _places(queries)
    distance, index = np.empty((len(places), 0), places.dtype), np.empty((len(places), 0), np.int64)
    for start, part in _parts(pieces, places, k, memory, "find neighbours", quiet):
        result = knn.nearest.jit(part, k, queries=places, boxsize=boxsize, allow_missing=True)
        rows = np.asarray(result.index, np.int64)
        both = np.concatenate([distance, result.distance], axis=1)
        indices = np.concatenate([index, np.where(rows < 0, -1, rows + start)], axis=1)
        order = np.lexsort((indices, both))[:, :k]
        distance, index = (np.take_along_axis(columns, order, axis=1) for columns in (both, indices))
    return Neighbours(distance, index)


def count_within(
    pieces: Any,
    radius: ArrayLike,
    *,
    queries: Any,
    boxsize: ArrayLike | None = None,
    memory: float | None = None,
    quiet: bool = False,
) -> np.ndarray:
    """Count the particles within a radius of given queries among more particles than memory holds.

    Args:
        pieces: See `nearest`.
        radius: A number, or ``(q,)``.
        queries: See `nearest`.
        boxsize: See `nearest`.
        memory: See `nearest`.
        quiet: See `nearest`.

    Returns:
        ``(q,)`` int64, the counts of `jztree.count_within` for all pieces together.

    Examples:
        >>> from jztree_utils import large
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> large.count_within([pos[:1], pos[1:]], 1.5, queries=pos, quiet=True)
        array([2, 2, 1])
    """
    places = _places(queries)
    counts = np.zeros(len(places), np.int64)
    for _, part in _parts(pieces, places, 1, memory, "count particles", quiet):
        counts += np.asarray(within.count_within.jit(part, radius, queries=places, boxsize=boxsize))
    return counts


def _places(queries: Any) -> np.ndarray:
    """Return the positions of queries, without padding."""
    return np.asarray(get_pos(queries))[: int(get_num(queries))]


def _parts(
    pieces: Any, places: np.ndarray, k: int, memory: float | None, task: str, quiet: bool
) -> Iterator[tuple[int, Pos]]:
    """Yield the first row and the particles of consecutive ranges, padded to the same length."""
    one_by_one = (pieces_of([piece]) for piece in pieces) if isinstance(pieces, Iterator) else iter([pieces_of(pieces)])
    first = next(one_by_one, None) or pieces_of([])
    rows = min(rows_in(memory, first, len(places) * (1 + k // 3)), max(first.num, 1))
    total, begin = 0 if isinstance(pieces, Iterator) else first.num, 0  # an iterator has no length
    with progress(task, total, quiet=quiet) as advance, jax.enable_x64(places.dtype == np.float64):
        for sources in chain([first], one_by_one):
            for start in range(0, max(sources.num, 1), rows):
                pos = sources.read("pos", start, min(start + rows, sources.num))
                yield begin + start, Pos(pos=padded(pos, rows), num=len(pos))
                advance(len(pos))
            begin += sources.num
