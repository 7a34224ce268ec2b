"""Kernel density estimates with the interface of scikit-learn.

The sum over samples at a place x is ``sum_i w_i K(|x - x_i| / h)``. Compact kernels are 0 above the bandwidth h, so the
sum has all samples within h. The Gaussian and the exponential kernel are never 0. Their sum is cut at a radius: all
samples outside it together add less than a fraction of the term of the nearest sample. This fraction is the tolerance
of the user, or the rounding error of float64. The terms are divided by that of the nearest, so that they do not
underflow far from all samples.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike
from sklearn.base import BaseEstimator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from ..kdtree import PointSearch, checked_box, search_by
from ._arguments import check_method, checked_exponent, checked_samples, checked_weights

_ROUNDING = 2.0**-53


class _Kernel(NamedTuple):
    """A kernel of the distance u in bandwidths.

    Attributes:
        shape: ``K(u)`` of a compact kernel within u < 1; for others the exponent e of ``K(u) = exp(-e(u))``.
        volume: Its integral over space in d dimensions, in units of the volume of the unit ball.
        inverse: The u of a given exponent; None for compact kernels.
    """

    shape: Callable[[np.ndarray], np.ndarray]
    volume: Callable[[int], float]
    inverse: Callable[[np.ndarray], np.ndarray] | None = None


def _ball(dims: int) -> float:
    return math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)


def _cosine_moment(n: int) -> float:
    """Return the integral of ``u**n cos(pi u / 2)`` from 0 to 1, by integration by parts."""
    a = math.pi / 2
    if n < 2:
        return (1 / a, 1 / a - 1 / a**2)[n]
    return 1 / a - n * (n - 1) / a**2 * _cosine_moment(n - 2)


_KERNELS = {
    "gaussian": _Kernel(lambda u: u**2 / 2, lambda d: (2 * math.pi) ** (d / 2) / _ball(d), lambda e: np.sqrt(2 * e)),
    "tophat": _Kernel(np.ones_like, lambda d: 1.0),
    "epanechnikov": _Kernel(lambda u: 1 - u**2, lambda d: 2 / (d + 2)),
    "exponential": _Kernel(lambda u: u, lambda d: float(math.factorial(d)), lambda e: e),
    "linear": _Kernel(lambda u: 1 - u, lambda d: 1 / (d + 1)),
    "cosine": _Kernel(lambda u: np.cos(math.pi / 2 * u), lambda d: d * _cosine_moment(d - 1)),
}
# Bandwidths from the number of samples and features (Scott 1992; Silverman 1986), for samples of unit variance.
_BANDWIDTHS: dict[str, Callable[[int, int], float]] = {
    "scott": lambda n, d: n ** (-1 / (d + 4)),
    "silverman": lambda n, d: (n * (d + 2) / 4) ** (-1 / (d + 4)),
}


class KernelDensity(BaseEstimator):
    """`sklearn.neighbors.KernelDensity`, exact, for samples with 1 to 8 features; see the module.

    ``algorithm``, ``leaf_size`` and ``breadth_first`` have no effect. Log densities are exact up to the rounding of
    float64, unless ``rtol`` or ``atol`` permits larger errors of the density. These speed up the kernels without a
    limit, ``"gaussian"`` and ``"exponential"``: with the tolerances of 0, a place has terms of all samples within about
    9 or 40 bandwidths.

    Args:
        bandwidth: Positive, or ``"scott"`` or ``"silverman"``.
        algorithm, breadth_first, leaf_size: No effect.
        kernel: ``"gaussian"``, ``"tophat"``, ``"epanechnikov"``, ``"exponential"``, ``"linear"`` or ``"cosine"``.
        metric: A Minkowski distance. Kernels are normalised for the Euclidean distance, as in scikit-learn. The
            integral of the cosine kernel is 1 in any number of dimensions; in even numbers, that of scikit-learn 1.9 is
            not, and its densities are smaller, in two dimensions by a factor of 2.75.
        atol: Permitted error of the density.
        rtol: Permitted error of the density as a fraction of the density.
        metric_params: None, or a dict with the exponent ``p`` of ``metric="minkowski"``, by default 2.
        boxsize: Periodic length, or one per feature; 0 means open. Only the nearest image of a sample contributes.
    """

    def __init__(
        self,
        *,
        bandwidth: float | str = 1.0,
        algorithm: str = "auto",
        kernel: str = "gaussian",
        metric: str = "euclidean",
        atol: float = 0,
        rtol: float = 0,
        breadth_first: bool = True,
        leaf_size: int = 40,
        metric_params: dict[str, Any] | None = None,
        boxsize: ArrayLike | None = None,
    ) -> None:
        self.bandwidth, self.algorithm, self.kernel, self.metric = bandwidth, algorithm, kernel, metric
        self.atol, self.rtol, self.breadth_first, self.leaf_size = atol, rtol, breadth_first, leaf_size
        self.metric_params, self.boxsize = metric_params, boxsize

    def fit(self, X: ArrayLike, y: object = None, sample_weight: ArrayLike | None = None) -> Self:
        """Store samples.

        Args:
            X: ``(n, d)`` finite real numbers, d from 1 to 8.
            y: Ignored.
            sample_weight: ``(n,)`` weights of at least 0. None means equal weights.

        Returns:
            The estimator, with ``bandwidth_``.

        Raises:
            TypeError, ValueError: If an argument is invalid.
        """
        del y
        check_method(self.algorithm, self.leaf_size)
        if not isinstance(self.kernel, str) or self.kernel not in _KERNELS:
            raise ValueError(f"kernel is {self.kernel!r}; it must be one of {', '.join(map(repr, _KERNELS))}.")
        for name, value in (("atol", self.atol), ("rtol", self.rtol)):
            if not isinstance(value, numbers.Real) or not value >= 0:
                raise ValueError(f"{name} is {value!r}; it must be a number of at least 0.")
        p = checked_exponent(self.metric, None, self.metric_params)
        samples = checked_samples(self, X, reset=True)
        self.bandwidth_ = _bandwidth(self.bandwidth, samples)
        weight = checked_weights(sample_weight, samples)
        if np.any(weight < 0):
            raise ValueError("Negative values in data passed to `sample_weight`; weights must be at least 0.")
        used = weight > 0
        self._weight = None if sample_weight is None else weight[used]
        self._box = checked_box(self.boxsize, samples.shape[1])
        self._search = search_by(PointSearch(samples[used], self._box), p)
        return self

    def score_samples(self, X: ArrayLike) -> np.ndarray:
        """Return the natural logarithm of the density at places.

        Args:
            X: ``(q, d)`` places.

        Returns:
            ``(q,)`` float64; minus infinity if no sample is near enough for a compact kernel.

        Raises:
            TypeError, ValueError: If the places are invalid.
        """
        check_is_fitted(self, "bandwidth_")
        places = checked_samples(self, X, reset=False)
        n, dims = self._search.points.shape
        kernel, total = _KERNELS[self.kernel], float(n) if self._weight is None else float(self._weight.sum())
        log_norm = math.log(kernel.volume(dims) * _ball(dims) * total) + dims * math.log(self.bandwidth_)
        with np.errstate(divide="ignore"):
            if kernel.inverse is None:
                return np.log(self._compact(places, kernel)) - log_norm
            # The error of a density is at most that of a term ``total * exp(-most)``.
            largest = np.inf if self.atol == 0 else math.log(total) - log_norm - math.log(self.atol)
            return self._unlimited(places, kernel, total, largest) - log_norm

    def score(self, X: ArrayLike, y: object = None) -> float:
        """Return the sum of the log densities at places ``(q, d)``: their log-likelihood."""
        del y
        return float(np.sum(self.score_samples(X)))

    def sample(self, n_samples: int = 1, random_state: Any = None) -> np.ndarray:
        """Return random places ``(n_samples, d)`` from the density of a ``"gaussian"`` or ``"tophat"`` kernel.

        Args:
            n_samples: Number of places.
            random_state: Seed or `numpy.random.RandomState`.

        Returns:
            The places, wrapped into the box if space is periodic.

        Raises:
            NotImplementedError: For other kernels.
        """
        check_is_fitted(self, "bandwidth_")
        if self.kernel not in ("gaussian", "tophat"):
            raise NotImplementedError(f"kernel is {self.kernel!r}; samples need the kernel 'gaussian' or 'tophat'.")
        random, (n, dims) = check_random_state(random_state), self._search.points.shape
        ends = np.arange(1.0, n + 1) if self._weight is None else np.cumsum(self._weight)
        row = np.searchsorted(ends, random.uniform(size=n_samples) * ends[-1], side="right")
        offset = random.normal(size=(n_samples, dims))
        if self.kernel == "tophat":
            # A random direction, and a radius whose ball has a uniformly distributed volume.
            offset /= np.linalg.norm(offset, axis=1, keepdims=True)
            offset *= random.uniform(size=(n_samples, 1)) ** (1 / dims)
        places = self._search.points[np.minimum(row, n - 1)] + self.bandwidth_ * offset
        box = np.zeros(dims) if self._box is None else self._box
        inside = np.mod(places, np.where(box > 0, box, 1))
        inside[inside >= box] = 0  # a tiny negative place rounds to the length of the box
        return np.where(box > 0, inside, places)

    def _compact(self, places: np.ndarray, kernel: _Kernel) -> np.ndarray:
        """Return the sums of a compact kernel, ``(q,)``. Its support excludes the distance h, like scikit-learn."""
        reach = np.full(len(places), np.nextafter(self.bandwidth_, 0))
        if self.kernel == "tophat":
            return self._search.count_each(places, reach, self._weight).astype(np.float64)
        return self._sums(places, reach, lambda _, u: kernel.shape(u))

    def _unlimited(self, places: np.ndarray, kernel: _Kernel, total: float, largest: float) -> np.ndarray:
        """Return the logarithms of the sums of a kernel without a limit, ``(q,)``.

        Args:
            places: ``(q, d)``.
            kernel: The kernel.
            total: The sum of all weights.
            most: An exponent from which terms may be left out.
        """
        assert kernel.inverse is not None
        nearest, row = (column[:, 0] for column in self._search.nearest(places, 1))
        smallest = kernel.shape(nearest / self.bandwidth_)
        weight = 1.0 if self._weight is None else self._weight[row]
        largest = np.minimum(smallest + np.log(total / weight) - math.log(max(float(self.rtol), _ROUNDING)), largest)
        reach = np.maximum(kernel.inverse(np.maximum(largest, 0)) * self.bandwidth_, nearest) * (1 + 4 * _ROUNDING)
        terms = self._sums(places, reach, lambda query, u: np.exp(smallest[query] - kernel.shape(u)))
        return np.log(terms) - smallest

    def _sums(
        self, places: np.ndarray, reach: np.ndarray, term: Callable[[np.ndarray, np.ndarray], np.ndarray]
    ) -> np.ndarray:
        """Return the weighted sums ``(q,)`` of ``term(query, u)`` over the samples within ``reach`` of each place."""
        sums = np.zeros(len(places))
        for query, index, distance in self._search.blocks(places, reach):
            terms = term(query, distance / self.bandwidth_)
            if self._weight is not None:
                terms = terms * self._weight[index]
            sums += np.bincount(query, terms, minlength=len(places))
        return sums


def _bandwidth(bandwidth: Any, samples: np.ndarray) -> float:
    if isinstance(bandwidth, str) and bandwidth in _BANDWIDTHS:
        return _BANDWIDTHS[bandwidth](*samples.shape)
    if not isinstance(bandwidth, (int, float, np.number)) or not 0 < bandwidth < np.inf:
        raise ValueError(
            f"bandwidth is {bandwidth!r}; it must be a positive, finite number, or one of "
            f"{', '.join(map(repr, _BANDWIDTHS))}."
        )
    return float(bandwidth)
