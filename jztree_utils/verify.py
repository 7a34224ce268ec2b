"""Check results by brute force in float64 NumPy, without the kernels of this library.

Each function computes a random sample of the rows of a result again, from the definition, and returns a `Verification`.
Pass the result, and the positions and the box of the search. Each sampled row takes a loop over all particles; by
default, a check takes some seconds.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import get_num, get_pos

from ._arrays import box_lengths

__all__ = [
    "Verification",
    "attached",
    "catalogue",
    "counts_within",
    "group_labels",
    "neighbours",
    "pair_counts",
    "spanning_tree",
    "spheres",
]

_PAIRS = 200_000_000  # distances that a check computes by default
_SHOWN = 5  # faults in the description
_ULPS = 8  # tolerance, in units of the last digit


@dataclass(frozen=True)
class Verification:
    """The outcome of a check.

    Attributes:
        content: The checked result, in words.
        rows: Number of its rows.
        checked: Number of rows that were computed again.
        faults: A sentence for each fault.
        notes: Sentences about parts of the result that were not checked.
    """

    content: str
    rows: int
    checked: int
    faults: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def passed(self) -> bool:
        """Whether no fault was found."""
        return not self.faults

    def probability_missed(self, fraction: float = 1e-6) -> float:
        """Return the probability that the sample has no wrong row although this fraction of all rows is wrong."""
        return 0.0 if self.checked >= self.rows else (1 - fraction) ** self.checked

    def raise_if_wrong(self) -> None:
        """Raise AssertionError with the description if a fault was found."""
        if self.faults:
            raise AssertionError(str(self))

    def __str__(self) -> str:
        state = "no fault" if self.passed else f"{len(self.faults):,} faults"
        missed = " and ".join(
            f"{self.probability_missed(1 / n):.4g} if 1 in {n:,} rows is wrong" for n in (1000, 10**6)
        )
        lines = [
            f"{self.content}: {self.checked:,} of {self.rows:,} rows checked, {state}",
            f"  probability of missing an error: {missed}",
            *self.notes,
        ]
        lines += [f"  {fault}" for fault in self.faults[:_SHOWN]]
        return "\n".join(lines)


class _Points:
    """Positions in float64, and distances to the nearest images."""

    def __init__(self, part: Any, boxsize: ArrayLike | None) -> None:
        self.pos, self.rows = _positions(part)
        self.dims = self.pos.shape[1]
        self.box = box_lengths(boxsize, self.dims)
        self.scale = float(np.abs(self.pos).max(initial=0.0)) + float(self.box.max(initial=0.0))

    def __len__(self) -> int:
        return len(self.pos)

    def offsets(self, place: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Return the vectors from a place to the nearest images of the points in ``rows``."""
        return self.nearest(self.pos[rows] - place)

    def nearest(self, offset: np.ndarray) -> np.ndarray:
        """Return vectors ``(n, d)`` to the nearest images of their ends."""
        period = np.where(self.box > 0, self.box, 1.0)
        return offset - np.where(self.box > 0, self.box, 0.0) * np.rint(offset / period)

    def distances(self, place: np.ndarray, rows: Any = slice(None)) -> np.ndarray:
        """Return the distances from a place to the points in ``rows``."""
        return np.sqrt((self.offsets(place, rows) ** 2).sum(axis=1))

    def margin(self, distance: Any, dtype: Any = np.float64) -> Any:
        """Return the rounding error of distances that were rounded to a dtype; 0 for an infinite distance."""
        finite = np.where(np.isfinite(distance), np.abs(distance), 0.0)
        return _ULPS * (np.finfo(dtype).eps * finite + np.finfo(np.float64).eps * self.scale)

    def differ(self, reported: np.ndarray, truth: np.ndarray) -> np.ndarray:
        """Return which reported distances are not the true ones, rounded to their dtype."""
        with np.errstate(invalid="ignore"):
            is_near = np.abs(reported - truth) <= self.margin(truth, reported.dtype)
        return ~(is_near | (reported == truth))


def neighbours(
    part: Any,
    distance: ArrayLike,
    index: ArrayLike,
    *,
    queries: Any = None,
    boxsize: ArrayLike | None = None,
    exclude_self: bool = False,
    max_radius: ArrayLike = np.inf,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the result of `jztree.nearest`.

    Args:
        part: The sources, a particle class or positions ``(n, d)``.
        distance: ``(q, k)``, nearest first.
        index: ``(q, k)`` rows of sources, -1 at distance infinity for a missing neighbour.
        queries: The queries. None means the sources.
        boxsize: The box of the search.
        exclude_self: Whether the search excluded the query itself.
        max_radius: The limit of the search: a number, or one per query.
        samples: Number of rows to check. None means as many as take some seconds.
        seed: Seed of the sample.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(0).random((500, 3), np.float32)
        >>> distance, index = jz.nearest(pos, 4, boxsize=1.0)
        >>> verify.neighbours(pos, distance, index, boxsize=1.0).passed
        True
    """
    points, places, output_rows = _sets(part, queries, boxsize)
    reported, rows = _column(distance, "distance", (output_rows, None)), _integers(index, "index", (output_rows, None))
    if reported.shape != rows.shape:
        raise ValueError(f"distance has shape {reported.shape}, but index has {rows.shape}; pass both of one search.")
    limits = _lengths(max_radius, "max_radius", output_rows)
    sample = _sample(len(places), len(points), samples, seed)

    def faults() -> Iterator[str]:
        for query in sample:
            away = points.distances(places[query])
            if exclude_self and queries is None:
                away[query] = np.inf
            k = rows.shape[1]
            within = np.append(away[away <= limits[query]], np.full(k, np.inf))
            expected = np.sort(np.partition(within, k - 1)[:k]) if k else within[:0]
            yield from _faults_of_list(query, reported[query], rows[query], away, expected, points)

    return Verification("neighbours", len(places), len(sample), tuple(faults()))


def _faults_of_list(
    query: int, reported: np.ndarray, rows: np.ndarray, away: np.ndarray, expected: np.ndarray, points: _Points
) -> Iterator[str]:
    """Yield the faults of the neighbours of a query. away: its distances from all points."""
    exists = rows >= 0
    if (rows >= len(away)).any() or len(set(rows[exists].tolist())) < exists.sum():
        yield f"row {query} lists a row twice or a row that does not exist: {rows.tolist()}"
        return
    listed = np.where(exists, away[np.maximum(rows, 0)], np.inf)
    for truth, sentence in (
        (listed, "row {0} reports the distance {1:.9g} for its neighbour number {3}, which is at {2:.9g}"),
        (expected, "row {0} reports {1:.9g} as the distance of its neighbour number {3}, but it is {2:.9g}"),
    ):
        wrong = points.differ(reported, truth)
        if wrong.any():
            place = int(np.argmax(wrong))
            yield sentence.format(query, reported[place], truth[place], place)
            return


def group_labels(
    part: Any,
    label: ArrayLike,
    rlink: float,
    *,
    boxsize: ArrayLike | None = None,
    npart_min: int | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check friends-of-friends groups: particles within ``rlink`` share a label, and a chain of links joins each group.

    Args:
        part: A particle class or positions ``(n, d)``.
        label: ``(n,)``, equal for particles of one group, from `jztree.group_labels` or any other code.
        rlink: The linking length.
        boxsize: The box of the search.
        npart_min: The smallest group of a catalogue, whose other particles have the label -1. None if all particles
            have the label of a group.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(0).random((500, 3), np.float32)
        >>> verify.group_labels(pos, jz.group_labels(pos, 0.1, boxsize=1.0), 0.1, boxsize=1.0).passed
        True
    """
    points = _Points(part, boxsize)
    labels, rlink = _column(label, "label", (points.rows,))[: len(points)], _one_length(rlink, "rlink")
    sample = _sample(len(points), len(points), samples, seed)
    faults: list[str] = []
    groups, pairs, skipped = set(), 0, 0
    for row in sample:
        away = points.distances(points.pos[row])
        if npart_min is not None and labels[row] == -1:
            linked = _linked(points, int(row), rlink - points.margin(rlink), npart_min)
            if len(linked) >= npart_min:
                faults.append(f"row {row} is in no group, but links join it with at least {npart_min - 1} others")
            continue
        in_group = labels == labels[row]
        split = np.flatnonzero((away < rlink - points.margin(rlink)) & ~in_group)
        if len(split):
            faults.append(f"rows {row} and {split[0]} are {away[split[0]]:.9g} apart, but have different labels")
        if labels[row] in groups:
            continue
        groups.add(labels[row])
        members = np.flatnonzero(in_group)
        if pairs + len(members) ** 2 > _PAIRS:
            skipped += 1
            continue
        pairs += len(members) ** 2
        separate = _not_linked(points, members, int(row), rlink)
        if len(separate):
            faults.append(f"rows {row} and {separate[0]} have the same label, but no chain of links joins them")
    notes = (f"  whether links join {skipped:,} of {len(groups):,} groups was not checked, because they are large",)
    return Verification("group labels", len(points), len(sample), tuple(faults), notes if skipped else ())


def attached(
    part: Any,
    label: ArrayLike,
    attached: Any,
    attached_label: ArrayLike,
    limit: float = math.inf,
    *,
    boxsize: ArrayLike | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check that attached particles are in the group of the nearest grouped particle.

    Args:
        part: The grouped particles, a particle class or positions ``(n, d)``.
        label: ``(n,)``, equal for particles of one group; -1 for particles in no listed group.
        attached: The particles of another type, ``m`` rows.
        attached_label: ``(m,)``, the labels of their groups, -1 for particles in no listed group.
        limit: The largest distance to the nearest grouped particle.
        boxsize: The box of the search.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[0.0], [1.0], [5.0]], np.float32)
        >>> print(verify.attached(pos, [0, 0, -1], np.array([[2.0], [4.0]]), [0, 0]).faults[0])
        row 1 has the label 0, but the nearest grouped particle, row 2, has -1
    """
    points, places, output_rows = _sets(part, attached, boxsize)
    labels = _column(label, "label", (points.rows,))[: len(points)]
    reported, max_distance = _column(attached_label, "attached_label", (output_rows,)), _one_length(limit, "limit")
    dtype = np.asarray(get_pos(part)).dtype
    sample = _sample(len(places), len(points), samples, seed)
    faults = []
    for row in sample:
        away = points.distances(places[row])
        row_of_nearest = int(np.argmin(away))
        nearest, margin = away[row_of_nearest], points.margin(away[row_of_nearest], dtype)
        expected = set(labels[away <= nearest + margin].tolist()) if nearest <= max_distance + margin else set()
        if nearest > max_distance - margin:
            expected.add(-1)
        if reported[row] in expected:
            continue
        reason = f"the nearest grouped particle, row {row_of_nearest}, has {labels[row_of_nearest]}"
        if nearest > max_distance + margin:
            reason = f"the nearest grouped particle is {nearest:.9g} away"
        faults.append(f"row {row} has the label {reported[row]}, but {reason}")
    return Verification("attached particles", len(places), len(sample), tuple(faults))


def _linked(points: _Points, row: int, length: float, limit: int) -> set[int]:
    """Return the rows that chains of links of at most ``length`` join with ``row``, or at least ``limit`` such rows."""
    linked, front = {row}, [row]
    while front and len(linked) < limit:
        neighbours = set(np.flatnonzero(points.distances(points.pos[front.pop()]) <= length).tolist()) - linked
        linked |= neighbours
        front += neighbours
    return linked


def _not_linked(points: _Points, members: np.ndarray, row: int, rlink: float) -> np.ndarray:
    """Return the members of a group that no chain of links joins with ``row``."""
    remaining, front = members[members != row], [row]
    while front and len(remaining):
        away = points.distances(points.pos[front.pop()], remaining)
        is_linked = away <= rlink + points.margin(rlink)
        front += remaining[is_linked].tolist()
        remaining = remaining[~is_linked]
    return remaining


def counts_within(
    part: Any,
    radius: ArrayLike,
    count: ArrayLike,
    *,
    queries: Any = None,
    boxsize: ArrayLike | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check the counts of `jztree.count_within`.

    Args:
        part: The sources, a particle class or positions ``(n, d)``.
        radius: A number, or one per query.
        count: ``(q,)``, the numbers of sources within the radius.
        queries: The queries. None means the sources.
        boxsize: The box of the search.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> print(verify.counts_within(pos, 1.5, [2, 3, 1]).faults[0])
        row 1 has the count 3, but 2 sources are within 1.5
    """
    points, places, output_rows = _sets(part, queries, boxsize)
    counts, reach = _column(count, "count", (output_rows,)), _lengths(radius, "radius", output_rows)
    sample = _sample(len(places), len(points), samples, seed)
    faults = []
    for query in sample:
        away, margin = points.distances(places[query]), points.margin(reach[query])
        surely, possibly = (int((away <= reach[query] + by).sum()) for by in (-margin, margin))
        if not surely <= counts[query] <= possibly:
            sources = f"{possibly} sources are" if surely == possibly else f"{surely} to {possibly} sources are"
            faults.append(f"row {query} has the count {counts[query]}, but {sources} within {reach[query]:.9g}")
    return Verification("counts", len(places), len(sample), tuple(faults))


def pair_counts(
    part: Any, edges: ArrayLike, count: ArrayLike, *, queries: Any = None, boxsize: ArrayLike | None = None
) -> Verification:
    """Check the counts of `jztree.pair_counts` in bins of distance, by all pairs. Use it for up to 1e5 particles.

    Args:
        part: A particle class or positions ``(n, d)``.
        edges: ``(m + 1,)`` ascending edges of the bins.
        count: ``(m,)`` numbers of pairs; pairs of two particles of one set count twice.
        queries: The second set. None means pairs within ``part``, without pairs of a particle with itself.
        boxsize: The box of the search.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.random.default_rng(0).random((100, 3), np.float32)
        >>> counts = jz.pair_counts(pos, [0.1, 0.2, 0.3], boxsize=1.0).count
        >>> verify.pair_counts(pos, [0.1, 0.2, 0.3], counts, boxsize=1.0).passed
        True
    """
    points, places, _ = _sets(part, queries, boxsize)
    bounds = np.asarray(edges, np.float64)
    if bounds.ndim != 1 or len(bounds) < 2 or not (np.diff(bounds) > 0).all():
        raise ValueError(f"edges are {bounds.tolist()}; they must be at least two ascending numbers.")
    counts = _column(count, "count", (len(bounds) - 1,)).astype(np.int64)
    below = np.zeros((2, len(bounds)), np.int64)  # pairs surely and possibly below each edge
    for place in places:
        away = np.sort(points.distances(place))
        for side, by in enumerate((-1, 1)):
            below[side] += np.searchsorted(
                away, bounds + by * points.margin(bounds), side="left" if by < 0 else "right"
            )
    if queries is None:
        below -= np.where(bounds > 0, len(places), 0)
    faults = [
        f"bin {i} has {counts[i]:,} pairs, but there are {below[0, i + 1] - below[1, i]:,} "
        f"to {below[1, i + 1] - below[0, i]:,}"
        for i in range(len(counts))
        if not below[0, i + 1] - below[1, i] <= counts[i] <= below[1, i + 1] - below[0, i]
    ]
    return Verification("pair counts", len(counts), len(counts), tuple(faults))


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
    points = _Points(part, boxsize)
    n, faults = len(points), []
    i, j = (_integers(ends, "an end of the edges", (None,))[: max(n - 1, 0)] for ends in (tree.i, tree.j))
    length = _column(tree.length, "length", (None,))[: max(n - 1, 0)]
    number = {len(i), len(j), len(length)}
    if number != {max(n - 1, 0)} or (len(i) and (min(i.min(), j.min()) < 0 or max(i.max(), j.max()) >= n)):
        return Verification("spanning tree", n, 0, (f"{n} particles need {n - 1} edges between rows 0 to {n - 1}",))
    away = np.array([points.distances(points.pos[a], [b])[0] for a, b in zip(i, j, strict=True)])
    wrong = np.flatnonzero(points.differ(length, away))
    faults += [
        f"edge {edge} has the length {length[edge]:.9g}, but {away[edge]:.9g} separates its ends" for edge in wrong
    ]
    sample = _sample(n, n, 200 if samples is None else samples, seed)
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


def catalogue(
    grouped: Any, cata: Any, *, boxsize: ArrayLike | None = None, samples: int | None = None, seed: int = 0
) -> Verification:
    """Check the counts, masses, centres, radii, shapes and velocities in a catalogue of `jztree.friends_of_friends`.

    Args:
        grouped: The particles in group order, on one device.
        cata: The catalogue.
        boxsize: The box of the groups.
        samples: Number of groups to check. None means as many as take some seconds.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> pos = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 9.0]], np.float32)
        >>> verify.catalogue(*jz.friends_of_friends(pos, 1.5, npart_min=3)).passed
        True
    """
    points, ngroups = _Points(grouped, boxsize), int(cata.ngroups)
    count, offset = (_integers(getattr(cata, name), name, (None,))[:ngroups] for name in ("count", "offset"))
    if len(count) < ngroups:
        return Verification("catalogue", ngroups, 0, (f"{ngroups} groups have only {len(count)} rows",))
    order = np.argsort(offset, kind="stable")
    ends = np.append(offset[order][1:], len(points))  # no particle is in two groups
    wrong = order[(count[order] < 1) | (offset[order] < 0) | (offset[order] + count[order] > ends)]
    if len(wrong):
        fault = (
            f"group {wrong[0]} has the rows {offset[wrong[0]]} to {(offset + count)[wrong[0]]}, which are not its own"
        )
        return Verification("catalogue", ngroups, 0, (fault,))
    sample = _sample(ngroups, max(int(count.max(initial=1)), 1), samples, seed)
    faults = []
    for group in sample:
        rows = slice(offset[group], offset[group] + count[group])
        for name, words, truth, size in _properties(points, grouped, rows):
            column = getattr(cata, name)
            if column is None:
                continue
            reported = np.asarray(column[group])
            difference, largest = reported.astype(np.float64) - truth, np.abs(truth).max()
            if name == "com_pos":
                difference, largest = points.nearest(difference[None]), points.scale
            tolerance = _ULPS * (np.finfo(reported.dtype).eps * largest + np.finfo(np.float64).eps * size)
            if not (np.abs(difference) <= tolerance).all():
                faults.append(
                    f"group {group} has the {words} {reported.tolist()}, but its particles have {truth.tolist()}"
                )
    return Verification("catalogue", ngroups, len(sample), tuple(faults))


def _properties(points: _Points, grouped: Any, rows: slice) -> Iterator[tuple[str, str, np.ndarray, float]]:
    """Yield the column, the words, the value and the size of the summands of each property of a group."""
    mass = getattr(grouped, "mass", None)
    members = rows.stop - rows.start
    weight = np.asarray(1.0 if mass is None else mass, np.float64)
    weight = weight[rows] if weight.ndim else np.full(members, weight)
    shares = weight / weight.sum() if weight.sum() > 0 else np.full(members, 1 / members)
    first = points.pos[rows.start]
    offsets = points.offsets(first, rows)
    centre = shares @ offsets
    offsets = offsets - centre
    squares = (offsets**2).sum(axis=1)
    if mass is not None:
        yield "mass", "mass", weight.sum(), 0.0
    yield "com_pos", "centre", first + centre, points.scale
    yield "com_inertia_radius", "radius of inertia", np.sqrt(shares @ squares), points.scale
    yield "max_radius", "largest distance", np.sqrt(squares.max()), points.scale
    spread = shares @ squares
    tensor = (offsets.T * shares) @ offsets / (spread or 1.0)
    yield "shape_tensor", "shape tensor", tensor, points.scale / (np.sqrt(spread) or 1.0)
    if getattr(grouped, "vel", None) is not None:
        vel = np.asarray(grouped.vel, np.float64)[rows]
        mean, fastest = shares @ vel, float(np.abs(vel).max())
        yield "com_vel", "velocity", mean, fastest
        yield "vel_dispersion", "velocity dispersion", np.sqrt(shares @ ((vel - mean) ** 2).mean(axis=1)), fastest


def spheres(
    part: Any,
    density: float,
    radius: ArrayLike,
    mass: ArrayLike,
    *,
    queries: Any,
    boxsize: ArrayLike | None = None,
    npart_min: int = 10,
    samples: int | None = None,
    seed: int = 0,
) -> Verification:
    """Check radii and masses of `jztree.spherical_overdensity`.

    Args:
        part: All matter, a particle class with ``mass`` or positions ``(n, d)``.
        density: The mean density in the spheres.
        radius: ``(q,)``; 0 without a sphere, NaN for a sphere that does not fit the box.
        mass: ``(q,)``.
        queries: The centres.
        boxsize: The box of the search.
        npart_min: Number of particles in the smallest sphere.
        samples: See `neighbours`.
        seed: See `neighbours`.

    Examples:
        >>> from jztree_utils import verify
        >>> x = np.linspace(-1, 1, 21, dtype=np.float32)[:, None]
        >>> centre = np.zeros((1, 1), np.float32)
        >>> found = jz.spherical_overdensity(x, 8.0, queries=centre)
        >>> verify.spheres(x, 8.0, found.radius, found.mass, queries=centre).passed
        True
    """
    points, places, output_rows = _sets(part, queries, boxsize)
    reported = np.stack([_column(radius, "radius", (output_rows,)), _column(mass, "mass", (output_rows,))], axis=1)
    weight = np.asarray(getattr(part, "mass", None) if getattr(part, "mass", None) is not None else 1.0, np.float64)
    weight = weight[: len(points)] if weight.ndim else np.full(len(points), weight)
    sample = _sample(len(places), len(points), samples, seed)
    faults = []
    for query in sample:
        away = points.distances(places[query])
        order = np.argsort(away)
        # A sphere whose density is the threshold up to rounding may end at this particle or a later one.
        expected = [
            _sphere(points, away[order], np.cumsum(weight[order]), by * density, npart_min)
            for by in (1 - 1e-9, 1 + 1e-9)
        ]
        tolerance = 1e-8 + _ULPS * np.finfo(reported.dtype).eps
        if not any(np.allclose(reported[query], truth, tolerance, 0.0, equal_nan=True) for truth in expected):
            faults.append(
                f"row {query} has a sphere of radius and mass {reported[query].tolist()}, but they are {expected[0]}"
            )
    return Verification("spheres", len(places), len(sample), tuple(faults))


def _sphere(points: _Points, away: np.ndarray, mass: np.ndarray, density: float, npart_min: int) -> list[float]:
    """Return radius and mass of a sphere, from ascending distances and the mass within each."""
    unit = math.pi ** (points.dims / 2) / math.gamma(points.dims / 2 + 1)  # the volume of a ball of radius 1
    if len(away) < npart_min:
        return [0.0, 0.0]
    start = int(np.searchsorted(away, away[npart_min - 1], side="right")) - 1
    if mass[start] <= unit * away[start] ** points.dims * density:
        return [0.0, 0.0]
    ends = mass[start:] <= unit * np.append(away[start + 1 :], np.inf) ** points.dims * density
    end = start + int(np.argmax(ends))
    if (points.box > 0).any() and away[end] > points.box[points.box > 0].min() / 2:
        return [math.nan, math.nan]
    return [float((mass[end] / (unit * density)) ** (1 / points.dims)), float(mass[end])]


def _sets(part: Any, queries: Any, boxsize: ArrayLike | None) -> tuple[_Points, np.ndarray, int]:
    """Return the sources, the positions of the queries (by default the sources), and the number of rows of a result."""
    points = _Points(part, boxsize)
    places, rows = (points.pos, points.rows) if queries is None else _positions(queries)
    if places.shape[1] != points.dims:
        raise ValueError(f"the queries have {places.shape[1]} dimensions, but the particles have {points.dims}.")
    return points, places, rows


def _positions(part: Any) -> tuple[np.ndarray, int]:
    """Return the positions of particles in float64, without padding, and the number of rows with padding."""
    pos = np.asarray(get_pos(part))
    if pos.ndim != 2:
        raise ValueError(f"the positions have shape {pos.shape}; pass (n, d), without an axis over devices.")
    valid = pos[: int(get_num(part))].astype(np.float64)
    if not np.isfinite(valid).all():
        row = int(np.argmin(np.isfinite(valid).all(axis=1)))
        raise ValueError(f"the position of row {row} is {valid[row].tolist()}; positions must be finite.")
    return valid, len(pos)


def _column(values: ArrayLike, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    """Return an array of a result. Raise ValueError if its shape is wrong; None allows any length."""
    array = np.asarray(values)
    if array.ndim != len(shape) or any(size not in (None, rows) for rows, size in zip(array.shape, shape, strict=True)):
        words = ", ".join("any" if size is None else str(size) for size in shape)
        raise ValueError(
            f"{name} has shape {array.shape}, but ({words}) is needed; pass the result for these particles."
        )
    return array


def _integers(values: ArrayLike, name: str, shape: tuple[int | None, ...]) -> np.ndarray:
    array = _column(values, name, shape)
    if array.dtype.kind not in "iu":
        raise TypeError(f"{name} has dtype {array.dtype}; rows are integers.")
    return array.astype(np.int64)


def _lengths(values: ArrayLike, name: str, rows: int) -> np.ndarray:
    """Return a length per row. Raise ValueError if one is negative or NaN."""
    lengths = np.asarray(values, np.float64)
    lengths = np.full(rows, lengths) if lengths.ndim == 0 else _column(lengths, name, (rows,))
    if not (lengths >= 0).all():
        raise ValueError(f"{name} is {lengths[~(lengths >= 0)][0]}; lengths must be at least 0.")
    return lengths


def _one_length(value: ArrayLike, name: str) -> float:
    if np.ndim(value):
        raise ValueError(
            f"{name} has shape {np.shape(value)}; only groups with a single linking length can be checked."
        )
    return float(_lengths(value, name, 1)[0])


def _sample(rows: int, cost: int, samples: int | None, seed: int) -> np.ndarray:
    """Return the rows to check. cost: number of distances per row."""
    number = max(_PAIRS // max(cost, 1), 10) if samples is None else samples
    if samples is not None and samples < 1:
        raise ValueError(f"samples is {samples}; pass a number of at least 1, or None.")
    return np.sort(np.random.default_rng(seed).choice(rows, min(number, rows), replace=False))
