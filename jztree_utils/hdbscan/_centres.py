"""Centroids and medoids of clusters, also across the faces of a periodic box."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from ..kdtree import checked_box

_ENTRIES = 2**22  # of a block of distances, 32 MB


def centroids(points: np.ndarray, labels: np.ndarray, weights: np.ndarray, boxsize: ArrayLike | None) -> np.ndarray:
    """Return the weighted mean of each cluster, ``(c, d)`` float64.

    Args:
        points: ``(n, d)``.
        labels: ``(n,)``, the clusters from 0 to ``c - 1``; negative for noise.
        weights: ``(n,)``.
        boxsize: The periodic length, or one per dimension, 0 for an open dimension; None means open. In a periodic
            dimension, the mean is that of the images nearest to the first point of the cluster, and is in the box.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    box = _checked(points, labels, boxsize, weights=weights)
    result = np.empty((_number(labels), points.shape[1]))
    for row, members in enumerate(rows_of(labels, len(result))):
        first = points[members[0]]
        offsets = _nearest_images(points[members] - first, box)
        result[row] = first + np.average(offsets, weights=weights[members], axis=0)
    if box is not None:
        periodic = box > 0
        result[:, periodic] %= box[periodic]
    return result


def medoids(
    points: np.ndarray,
    labels: np.ndarray,
    weights: np.ndarray,
    boxsize: ArrayLike | None,
    of_euclidean: Callable[[np.ndarray], np.ndarray],
) -> np.ndarray:
    """Return the row of the point of each cluster with the smallest weighted sum of distances to the others, ``(c,)``.

    The time grows with the square of the number of points of a cluster.

    Args:
        points, labels, weights, boxsize: See `centroids`.
        of_euclidean: Function of Euclidean distances that returns the distances.
    """
    box = _checked(points, labels, boxsize, weights=weights)
    result = np.empty(_number(labels), np.int64)
    for row, members in enumerate(rows_of(labels, len(result))):
        own_points, weight = points[members], weights[members]
        block = max(1, _ENTRIES // len(own_points))
        sums = [
            of_euclidean(_distances(own_points[i : i + block], own_points, box)) @ weight
            for i in range(0, len(own_points), block)
        ]
        result[row] = members[np.argmin(np.concatenate(sums))]
    return result


def radii(points: np.ndarray, labels: np.ndarray, centres: np.ndarray, boxsize: ArrayLike | None) -> np.ndarray:
    """Return the distance of the farthest point of each cluster from its centre, ``(c,)`` float64.

    Args:
        points: ``(n, d)``.
        labels: ``(n,)``, the clusters from 0 to ``c - 1``; negative for noise.
        centres: ``(c, d)``.
        boxsize: See `centroids`.

    Raises:
        TypeError, ValueError: If an argument is invalid.
    """
    box = _checked(points, labels, boxsize)
    if np.ndim(centres) != 2 or np.shape(centres)[1] != points.shape[1] or len(centres) < _number(labels):
        raise ValueError(
            f"centres have the shape {np.shape(centres)}; it must be (c, {points.shape[1]}) with a row for each of "
            f"{_number(labels)} clusters."
        )
    is_member = labels >= 0
    offsets = _nearest_images(points[is_member] - centres[labels[is_member]], box)
    result = np.zeros(len(centres))
    np.maximum.at(result, labels[is_member], np.linalg.norm(offsets, axis=1))
    return result


def _checked(
    points: np.ndarray, labels: np.ndarray, boxsize: ArrayLike | None, weights: np.ndarray | None = None
) -> np.ndarray | None:
    """Return the box in float64. Raises TypeError or ValueError if an argument is invalid."""
    if np.ndim(points) != 2 or not np.all(np.isfinite(points)):
        raise ValueError(f"points must be finite, of shape (n, d); their shape is {np.shape(points)}.")
    columns = {"labels": labels} if weights is None else {"labels": labels, "weights": weights}
    for name, column in columns.items():
        if np.shape(column) != (len(points),):
            raise ValueError(f"{name} have the shape {np.shape(column)}; it must be ({len(points)},), one per point.")
    if labels.dtype.kind not in "iu":
        raise TypeError(f"labels have the dtype {labels.dtype}; they must be integers.")
    if weights is not None and not np.all((weights >= 0) & (weights < np.inf)):
        raise ValueError("weights must be finite and not negative, such as the probabilities of hdbscan.")
    return checked_box(boxsize, points.shape[1], "boxsize")


def _number(labels: np.ndarray) -> int:
    return int(labels.max(initial=-1)) + 1


def rows_of(labels: np.ndarray, number: int) -> list[np.ndarray]:
    """Return the rows with each of the labels from 0 to ``number - 1``, in ascending order."""
    order = np.argsort(labels, kind="stable")
    starts = np.searchsorted(labels[order], np.arange(number + 1))
    return [order[start:stop] for start, stop in itertools.pairwise(starts)]


def _nearest_images(offsets: np.ndarray, box: np.ndarray | None) -> np.ndarray:
    if box is None:
        return offsets
    return offsets - box * np.round(np.divide(offsets, box, out=np.zeros_like(offsets), where=box > 0))


def _distances(points: np.ndarray, centres: np.ndarray, box: np.ndarray | None) -> np.ndarray:
    """Return all distances between two sets, ``(p, q)``."""
    squares = np.zeros((len(points), len(centres)))
    for axis in range(points.shape[1]):
        period = None if box is None else box[axis : axis + 1, None]
        squares += _nearest_images(points[:, axis, None] - centres[None, :, axis], period) ** 2
    return np.sqrt(squares)
