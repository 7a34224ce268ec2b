"""Statistics of the k nearest neighbours of points in space.

The kNN-CDF is the fraction of query points whose k-th nearest particle is within a distance r, as a function of r
(Banerjee & Abel 2021, MNRAS 500, 5479). It depends on correlations of every order. The joint CDF of two sets of
particles is the fraction of query points with the ``k_a``-th nearest particle of one set and the ``k_b``-th nearest
particle of the other set within r (Banerjee & Abel 2021, MNRAS 504, 2911).

The results are exact integers, which do not depend on the number of devices. Queries are made and counted in blocks, so
the memory does not depend on their number.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from jax.sharding import Mesh
from numpy.typing import ArrayLike

from jztree.data import Particles, check_no_unit

from .._arrays import from_table, full_precision
from ._counts import Tracer, counted
from ._queries import Queries, grid_queries, integer, random_queries

__all__ = ["JointKnnCDF", "KnnCDF", "Queries", "grid_queries", "joint_knn_cdf", "knn_cdf", "random_queries"]


@dataclass(frozen=True, kw_only=True)
class KnnCDF:
    """The distribution of the distances from query points to their k-th nearest particles; see `knn_cdf`.

    Attributes:
        radii: ``(m,)`` float64.
        k: ``(l,)`` int64.
        count: ``(l, m)`` int64, the number of queries whose k-th nearest particle is within each radius.
        num: The number of queries.
    """

    radii: np.ndarray
    k: np.ndarray
    count: np.ndarray
    num: int

    @property
    def value(self) -> np.ndarray:
        """``(l, m)`` float64, the fraction of the queries."""
        return self.count / self.num

    @property
    def peaked(self) -> np.ndarray:
        """``(l, m)`` float64, the peaked CDF: the smaller of ``value`` and ``1 - value``, to show both tails."""
        return np.minimum(self.count, self.num - self.count) / self.num


@dataclass(frozen=True, kw_only=True)
class JointKnnCDF:
    """The joint distribution of the distances to the neighbours in two sets; see `joint_knn_cdf`.

    Attributes:
        a: The distribution of the first set, with ``l`` values of k.
        b: The distribution of the second set, with ``n`` values of k.
        count: ``(l, n, m)`` int64, the number of queries with both neighbours within each radius.
    """

    a: KnnCDF
    b: KnnCDF
    count: np.ndarray

    @property
    def value(self) -> np.ndarray:
        """``(l, n, m)`` float64, the fraction of the queries."""
        return self.count / self.a.num

    @property
    def excess(self) -> np.ndarray:
        """``(l, n, m)`` float64, the joint CDF divided by the product of both CDFs, minus 1.

        It is 0 if the sets are independent. It is NaN if a CDF is 0.
        """
        product = self.a.count[:, None].astype(np.float64) * self.b.count
        return (
            np.divide(self.count * float(self.a.num), product, out=np.full(self.count.shape, np.nan), where=product > 0)
            - 1
        )


def knn_cdf(
    part: Particles | ArrayLike,
    k: ArrayLike,
    radii: ArrayLike,
    queries: Queries | ArrayLike,
    boxsize: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> KnnCDF:
    """Count the queries whose k-th nearest particle is within each radius.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions. On
            several devices also particles that are distributed over them, ``(r, n, d)``.
        k: One or several numbers of neighbours, from 1. If a query is at the position of a particle, this particle is
            its first neighbour.
        radii: ``(m,)`` ascending radii, at least 0, in the unit of the positions. A particle is within a radius if its
            distance, computed in float64 from the given positions, is at most the radius.
        queries: `random_queries`, `grid_queries`, or an array ``(q, d)``. They are converted to the dtype of the
            positions. On several processes, all must pass the same.
        boxsize: The periodic length, or one per dimension; 0 or None means open.
        mesh: The devices to count on. None means the first device.

    Returns:
        The counts. A CDF is 0 at any radius if there are fewer than k particles.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        ValueError or jax.errors.JaxRuntimeError: If a position is NaN or infinite.

    Examples:
        >>> from jztree_utils.knn_statistics import grid_queries, knn_cdf
        >>> pos = np.array([[0.25], [0.75]])
        >>> cdf = knn_cdf(pos, [1, 2], [0.1, 0.2, 0.3], grid_queries(1000, 1.0, 1), boxsize=1.0)
        >>> 1 - cdf.value[0]  # the void probability
        array([0.6, 0.2, 0. ])
    """
    with full_precision(from_table(part, "part")) as (places,):
        counts, num = counted([Tracer.of(places, _numbers(k, "k"), boxsize, mesh)], _radii(radii), queries)
    return KnnCDF(radii=_radii(radii), k=_numbers(k, "k"), count=counts[0], num=num)


def joint_knn_cdf(
    part_a: Particles | ArrayLike,
    part_b: Particles | ArrayLike,
    k_a: ArrayLike,
    k_b: ArrayLike,
    radii: ArrayLike,
    queries: Queries | ArrayLike,
    boxsize: ArrayLike | None = None,
    mesh: Mesh | None = None,
) -> JointKnnCDF:
    """Count the queries with the ``k_a``-th particle of one set and the ``k_b``-th of another within each radius.

    Args:
        part_a, part_b: The particles of both sets; see `knn_cdf`.
        k_a, k_b: One or several numbers of neighbours for each set. Every pair of a ``k_a`` and a ``k_b`` is counted.
        radii, queries, boxsize, mesh: See `knn_cdf`.

    Returns:
        The counts for both sets at once, and for each set.

    Raises:
        TypeError, ValueError: If an argument is invalid.
        ValueError or jax.errors.JaxRuntimeError: If a position is NaN or infinite.
    """
    with full_precision(from_table(part_a, "part_a"), from_table(part_b, "part_b")) as (places_a, places_b):
        tracers = [
            Tracer.of(part, _numbers(k, name), boxsize, mesh)
            for part, k, name in ((places_a, k_a, "k_a"), (places_b, k_b, "k_b"))
        ]
        (count_a, count_b, joint), num = counted(tracers, _radii(radii), queries)
    a, b = (
        KnnCDF(radii=_radii(radii), k=tracer.k, count=count, num=num)
        for tracer, count in zip(tracers, (count_a, count_b), strict=True)
    )
    return JointKnnCDF(a=a, b=b, count=joint)


def _numbers(k: Any, name: str) -> np.ndarray:
    """Return numbers of neighbours ``(l,)``. Raises TypeError or ValueError unless they are integers from 1."""
    if np.ndim(k) > 1 or np.size(k) == 0:
        raise ValueError(f"{name} has shape {np.shape(k)}; it must be one number of neighbours or several, (l,).")
    numbers = [integer(number, name) for number in (list(k) if np.ndim(k) else [k])]
    if max(numbers) >= 2**31:
        raise ValueError(f"{name} is {max(numbers)}; it must be below 2**31.")
    return np.asarray(numbers, np.int64)


def _radii(radii: Any) -> np.ndarray:
    """Return radii ``(m,)`` in float64. Raises TypeError or ValueError unless they ascend from 0 or more."""
    check_no_unit(radii, "radii")
    array = np.asarray(radii)
    if array.dtype.kind not in "iuf":
        raise TypeError(f"radii is {radii!r}; it must be an array of real numbers.")
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"radii have shape {array.shape}; they must be one or more ascending numbers, (m,).")
    if not (array[0] >= 0 and np.all(np.diff(array) >= 0)):
        raise ValueError("radii must be ascending numbers of at least 0, and not NaN.")
    return array.astype(np.float64)
