"""Validation of the arguments of the estimators."""

from __future__ import annotations

import numbers
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from sklearn.utils.validation import check_array, check_consistent_length, validate_data

from jztree.data import check_no_unit

from .._arrays import from_table
from ..kdtree import MOST_DIMS, MetricSearch, PointSearch, SquareSearch, check_size, search_by


def checked_weights(sample_weight: ArrayLike | None, samples: np.ndarray) -> np.ndarray:
    """Return weights ``(n,)``. Raises ValueError or TypeError unless they are finite, real, and one or ``n``."""
    if sample_weight is None:
        return np.ones(len(samples))
    check_no_unit(sample_weight, "sample_weight")
    if isinstance(sample_weight, numbers.Real):
        sample_weight = np.full(len(samples), float(sample_weight))
    weight: np.ndarray = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weight.ndim != 1:
        raise ValueError(f"sample_weight has shape {weight.shape}; it must be (n,).")
    check_consistent_length(samples, weight)
    if not weight.any():
        raise ValueError("sample_weight is zero for every sample; give at least one other weight.")
    return weight


def checked_samples(estimator: Any, X: ArrayLike, reset: bool, finite: bool = True) -> np.ndarray:
    """Return samples ``(n, d)`` in float64. Raises ValueError or TypeError if scikit-learn or jztree rejects them.

    Args:
        estimator: The estimator, which keeps the number and the names of features.
        X: Array, or data frame.
        reset: Whether to set these features (in `fit`). False compares them with the features of the fit.
        finite: Whether samples must be finite.
    """
    X = from_table(X, "X") if hasattr(X, "colnames") else X  # scikit-learn keeps the names of data frames
    check_no_unit(X, "X")
    samples: np.ndarray = validate_data(
        estimator, X, reset=reset, dtype=np.float64, order="C", ensure_all_finite=finite
    )
    if samples.shape[1] > MOST_DIMS:
        raise ValueError(
            f"samples have {samples.shape[1]} features, but jztree supports 1 to {MOST_DIMS} features; reduce them, "
            f"for example with sklearn.decomposition.PCA(n_components={MOST_DIMS}), or use the class of sklearn."
        )
    check_size(samples if finite else samples[np.isfinite(samples)], "samples")
    return samples


# The exponents of Minkowski distances, by the names of scikit-learn.
_EXPONENTS = {"euclidean": 2, "l2": 2, "manhattan": 1, "cityblock": 1, "l1": 1, "chebyshev": np.inf, "infinity": np.inf}
_NAMES = {2: "euclidean", 1: "manhattan", np.inf: "chebyshev"}

# The words of scikit-learn.
_TWICE = "Parameter p is found in metric_params. The corresponding parameter from __init__ is ignored."


def checked_exponent(metric: Any, p: Any, metric_params: Any) -> float:
    """Return the exponent of a Minkowski distance, for ``metric`` with the exponent ``p`` of ``"minkowski"``.

    Args:
        metric: The name of the distance.
        p: The exponent. None means 2.
        metric_params: None, or a dict with the exponent, which then replaces ``p``.

    Raises:
        ValueError: If the distance is another one.

    Warns:
        SyntaxWarning: If both ``p`` and ``metric_params`` have the exponent.
    """
    params = (
        {}
        if metric_params is None
        else {name: metric_param for name, metric_param in metric_params.items() if metric_param is not None}
    )
    if p is not None and "p" in params:
        warnings.warn(_TWICE, SyntaxWarning, stacklevel=4)
    p = params.pop("p", 2 if p is None else p)
    if isinstance(metric, str) and not params:
        if metric in _EXPONENTS:
            return float(_EXPONENTS[metric])
        if metric in ("minkowski", "p") and isinstance(p, (int, float, np.number)) and p >= 1:
            return float(p)
    extra = f" and {', '.join(map(repr, params))} in metric_params" if params else ""
    raise ValueError(
        f"metric is {metric!r} with p={p!r}{extra}; distances must be Minkowski distances without weights, so use "
        f"metric='minkowski' with p from 1 to infinity, or one of {', '.join(map(repr, _EXPONENTS))}. Neighbours and "
        "clusters also have 'cosine' and 'sqeuclidean'. The classes of sklearn have other metrics."
    )


class Metric(NamedTuple):
    """A distance of estimators: a Minkowski distance, or the square of the Euclidean one times a ``scale``.

    Attributes:
        name: The name in scikit-learn.
        p: The exponent of the Minkowski distance.
        scale: The factor of the square, or None.
    """

    name: str
    p: float
    scale: float | None = None

    @property
    def params(self) -> dict[str, Any]:
        """The parameters of the distance, like scikit-learn."""
        return {"p": self.p} if self.name == "minkowski" else {}

    def points(self, samples: np.ndarray) -> np.ndarray:
        """Return samples in the space of the distance: for ``"cosine"``, unit vectors. Raises ValueError for 0."""
        if self.name != "cosine":
            return samples
        longest = np.abs(samples).max(axis=1, keepdims=True, initial=0)
        if not longest.all():
            raise ValueError(
                f"row {int(np.argmin(longest))} of the samples is 0 in all features, so it has no cosine distance; "
                "remove it."
            )
        vectors = samples / longest
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)

    def search(self, samples: np.ndarray, box: np.ndarray | None) -> PointSearch | MetricSearch:
        """Return searches with this distance among samples. Raises ValueError if the box has no such distance."""
        self.check_box(box)
        points = PointSearch(self.points(samples), box)
        return search_by(points, self.p) if self.scale is None else SquareSearch(points, self.scale)

    def check_box(self, box: np.ndarray | None) -> None:
        """Raise ValueError if the box has no such distance."""
        if self.name == "cosine" and box is not None and box.any():
            raise ValueError("cosine distances are between directions, which have no periodic box; leave out boxsize.")

    def reach(self, distance: float) -> float:
        """Return the Euclidean distance of points at this distance, rounded up."""
        return distance if self.scale is None else float(np.nextafter(np.sqrt(distance / self.scale), np.inf))

    def of_euclidean(self, length: Any) -> Any:
        """Return the distances of points from their Euclidean distances."""
        return length if self.scale is None else self.scale * length**2


_SQUARES = {"sqeuclidean": 1.0, "cosine": 0.5}


def checked_metric(metric: Any, p: Any, metric_params: Any) -> Metric:
    """Return the distance of the arguments; see `checked_exponent`, whose errors it raises."""
    if isinstance(metric, str) and metric in _SQUARES and not metric_params:
        return Metric(metric, 2, _SQUARES[metric])
    exponent = checked_exponent(metric, p, metric_params)
    return Metric(_NAMES.get(exponent, "minkowski"), exponent)


def check_method(algorithm: Any, leaf_size: Any) -> None:
    """Check the options that select a method in scikit-learn. They have no effect here, but typos raise an error."""
    methods = ("auto", "ball_tree", "kd_tree", "brute")
    if not isinstance(algorithm, str) or algorithm not in methods:
        raise ValueError(f"algorithm is {algorithm!r}; it must be one of {', '.join(map(repr, methods))}.")
    if not isinstance(leaf_size, numbers.Integral) or isinstance(leaf_size, bool) or leaf_size < 1:
        raise ValueError(f"leaf_size is {leaf_size!r}; it must be an integer of at least 1.")


def check_mode(mode: Any) -> None:
    """Raise ValueError, in the words of scikit-learn, unless a graph can have this kind of entries."""
    if mode not in ("connectivity", "distance"):
        raise ValueError(f'Unsupported mode, must be one of "connectivity", or "distance" but got "{mode}" instead')


def checked_number(n_neighbors: Any) -> int:
    """Return ``n_neighbors``. Raises TypeError unless it is an integer, and ValueError unless it is positive."""
    if not isinstance(n_neighbors, numbers.Integral) or isinstance(n_neighbors, bool):
        raise TypeError(f"n_neighbors does not take {type(n_neighbors)} value, enter integer value")
    if n_neighbors <= 0:
        raise ValueError(f"Expected n_neighbors > 0. Got {n_neighbors}")
    return int(n_neighbors)


def checked_radii(radius: ArrayLike | None) -> np.ndarray:
    """Return one or more radii in float64. Raises ValueError unless they are real numbers of at least 0."""
    array = np.asarray(radius)
    if array.dtype.kind not in "fiu" or not np.all(array >= 0):
        raise ValueError(
            f"radius is {radius!r}; it must be a number of at least 0, which may be infinite, or one per query."
        )
    return array.astype(np.float64)
