"""Friends-of-friends groups on the sphere, and in redshift surveys."""

from __future__ import annotations

import jax
import numpy as np
from numpy.typing import ArrayLike

from jztree.fof import fof_labels

from ..kdtree import PointSearch, padded
from ._arguments import check_not_negative, checked_angles, checked_directions, finite_numbers, numbers_per_object
from ._coordinates import chord_edges, unit_vectors


def angular_groups(ra: ArrayLike, dec: ArrayLike, rlink: ArrayLike) -> np.ndarray:
    """Label the friends-of-friends groups of objects on the sky.

    Two objects are linked if the distance of their unit vectors in float64 is at most ``2 sin(rlink / 2)``. A
    group is a set of objects that are linked to each other directly or through others. Groups continue across RA = 0
    and the poles.

    If each object has its own linking length, the mean of both distances counts. The corresponding angle is the mean of
    both angles, reduced by at most a factor of ``cos((a - b) / 4)``, which is 1 - 1e-5 if they differ by one degree.

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        rlink: The linking length in degrees, from 0 to 180, one for all objects or ``(n,)``.

    Returns:
        ``(n,)`` int32, for each object the first row of its group. Groups of any size have labels, also single objects.

    Raises:
        TypeError: If an argument is not of plain real numbers.
        ValueError: If an argument is invalid.
    """
    ra, dec = checked_directions(ra, dec)
    length = checked_angles(rlink, "rlink")
    if length.shape not in ((), ra.shape):
        raise ValueError(f"rlink has shape {length.shape}; it must be one angle, or {ra.shape}, one per object.")
    with jax.enable_x64(True):
        part, chord = padded(unit_vectors(ra, dec)), chord_edges(length)
        rlink = np.append(chord, np.zeros(part.pos.shape[0] - len(ra))) if length.ndim else float(chord)
        _, labels = fof_labels.jit(part, rlink, output_order="input")
        return np.array(labels)[: len(ra)]


def survey_groups(
    ra: ArrayLike, dec: ArrayLike, distance: ArrayLike, transverse: ArrayLike, line_of_sight: ArrayLike
) -> np.ndarray:
    """Label the friends-of-friends groups of a redshift survey, with a linking length across and one along the sight.

    Two objects at an angle ``theta`` and at distances ``d1`` and ``d2`` are linked if ``sin(theta / 2) (d1 + d2)`` is
    at most ``transverse`` and ``|d1 - d2|`` at most ``line_of_sight`` (Huchra & Geller 1982, ApJ 257, 423, equations 1
    and 2). Velocities of galaxies stretch groups along the line of sight, so its linking length is usually several
    times longer. A group is a set of objects that are linked to each other directly or through others.

    The search lists the pairs block by block, so the time grows with the number of pairs within both lengths.

    Args:
        ra: ``(n,)`` right ascensions in degrees, any real numbers.
        dec: ``(n,)`` declinations in degrees, from -90 to 90.
        distance: ``(n,)`` comoving distances of at least 0; or velocities, for linking lengths that are velocities.
        transverse: Linking length across the line of sight, in the unit of the distances, one for all objects or
            ``(n,)``. With one per object, the mean of both counts.
        line_of_sight: Linking length along the line of sight, in the same form.

    Returns:
        ``(n,)`` int32, for each object the first row of its group. Groups of any size have labels, also single objects.

    Raises:
        TypeError: If an argument is not of plain real numbers.
        ValueError: If an argument is invalid.
    """
    ra, dec = checked_directions(ra, dec)
    depth = numbers_per_object(distance, "distance")
    if depth.shape != ra.shape:
        raise ValueError(f"distance has shape {depth.shape}, and ra {ra.shape}; give one distance per object.")
    check_not_negative(depth, "distance")
    across, along = _lengths(transverse, "transverse", len(ra)), _lengths(line_of_sight, "line_of_sight", len(ra))
    label = np.arange(len(ra), dtype=np.int32)
    if not len(ra):
        return label
    unit = unit_vectors(ra, dec)
    # An upper limit of the chord between linked objects. Distances are scaled so that the limit of the farthest object
    # is as long as the linking length along the line of sight.
    widest, longest = (across + across.max()) / 2, (along + along.max()) / 2
    nearest = depth - longest / 2
    chord = np.minimum(np.divide(widest, nearest, out=np.full(len(ra), 2.0), where=nearest > widest / 2), 2.0)
    scale = chord.min() / along.max() if along.max() > 0 and chord.min() > 0 else 1 / (depth.max() or 1.0)
    reach = np.sqrt(chord**2 + (scale * longest) ** 2) * (1 + 1e-9) + 1e-12
    places = np.concatenate([unit, scale * depth[:, None]], axis=1)
    for i, j, _ in PointSearch(places).blocks(places, reach):
        separation = np.linalg.norm(unit[i] - unit[j], axis=1) * (depth[i] + depth[j]) / 2
        is_linked = separation <= (across[i] + across[j]) / 2
        is_linked &= np.abs(depth[i] - depth[j]) <= (along[i] + along[j]) / 2
        label = _joined(label, i[is_linked], j[is_linked])
    return label


def _lengths(values: ArrayLike, name: str, n: int) -> np.ndarray:
    """Return one length per object. Raises TypeError or ValueError if they are invalid."""
    lengths = finite_numbers(values, name)
    if lengths.shape not in ((), (n,)):
        raise ValueError(f"{name} has shape {lengths.shape}; it must be one length, or {(n,)}, one per object.")
    check_not_negative(lengths, name)
    return np.broadcast_to(lengths, (n,))


def _joined(label: np.ndarray, i: np.ndarray, j: np.ndarray) -> np.ndarray:
    """Return the labels after joining the groups of rows ``i`` and ``j``; a label is the first row of its group."""
    while True:
        first, second = label[i], label[j]
        if np.array_equal(first, second):
            return label
        label = label.copy()
        np.minimum.at(label, np.maximum(first, second), np.minimum(first, second))
        while not np.array_equal(label, label[label]):
            label = label[label]
