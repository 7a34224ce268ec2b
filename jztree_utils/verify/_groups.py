"""Checks of the groups of particles: chains of links, and particles that are attached to groups."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from jztree.data import get_pos

from ._points import PAIRS, Points, Verification, column_of, one_length, point_sets, sample_rows


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
    points = Points(part, boxsize)
    labels, rlink = column_of(label, "label", (points.rows,))[: len(points)], one_length(rlink, "rlink")
    sample = sample_rows(len(points), len(points), samples, seed)
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
        if pairs + len(members) ** 2 > PAIRS:
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
        attached_label: ``(m,)``, the labels of their groups, -1 for particles in no listed group, or alone in one.
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
    points, places, output_rows = point_sets(part, attached, boxsize)
    labels = column_of(label, "label", (points.rows,))[: len(points)]
    reported, max_distance = column_of(attached_label, "attached_label", (output_rows,)), one_length(limit, "limit")
    dtype = np.asarray(get_pos(part)).dtype
    sample = sample_rows(len(places), len(points), samples, seed)
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


def _linked(points: Points, row: int, length: float, limit: int) -> set[int]:
    """Return the rows that chains of links of at most ``length`` join with ``row``, or at least ``limit`` such rows."""
    linked, front = {row}, [row]
    while front and len(linked) < limit:
        neighbours = set(np.flatnonzero(points.distances(points.pos[front.pop()]) <= length).tolist()) - linked
        linked |= neighbours
        front += neighbours
    return linked


def _not_linked(points: Points, members: np.ndarray, row: int, rlink: float) -> np.ndarray:
    """Return the members of a group that no chain of links joins with ``row``."""
    remaining, front = members[members != row], [row]
    while front and len(remaining):
        away = points.distances(points.pos[front.pop()], remaining)
        is_linked = away <= rlink + points.margin(rlink)
        front += remaining[is_linked].tolist()
        remaining = remaining[~is_linked]
    return remaining
