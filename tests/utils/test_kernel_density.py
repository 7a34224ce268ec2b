"""`jztree_utils.estimators.KernelDensity` compared with sums over all samples and with scikit-learn's class."""

import math
import pickle
from typing import Any

import numpy as np
import pytest
from oracles import squared_distances
from scipy.special import logsumexp

pytest.importorskip("sklearn", minversion="1.6")

from sklearn.neighbors import KernelDensity as TheirKernelDensity

from jztree_utils.estimators import KernelDensity

RNG = np.random.default_rng(3)
KERNELS = ["gaussian", "tophat", "epanechnikov", "exponential", "linear", "cosine"]
COMPACT = ["tophat", "epanechnikov", "linear", "cosine"]


def sample(dims: int) -> tuple[np.ndarray, np.ndarray]:
    """Return samples, and places near them and far from them."""
    points = np.r_[RNG.normal(size=(150, dims)), RNG.normal(size=(30, dims)) * 0.01 + 2]
    return points, np.r_[RNG.normal(size=(30, dims)), points[::20], np.full((1, dims), 40.0)]


# The definitions of the kernels of the distance in bandwidths, without their norms, and their logarithms.
SHAPES: dict[str, Any] = {
    "gaussian": lambda u: -(u**2) / 2,
    "tophat": lambda u: np.log(np.where(u < 1, 1.0, 0.0)),
    "epanechnikov": lambda u: np.log(np.maximum(1 - u**2, 0)),
    "exponential": lambda u: -u,
    "linear": lambda u: np.log(np.maximum(1 - u, 0)),
    "cosine": lambda u: np.log(np.where(u < 1, np.cos(np.pi / 2 * u), 0)),
}


@pytest.mark.parametrize("dims", [1, 2, 3, 6])
@pytest.mark.filterwarnings("ignore:divide by zero")
def test_densities_equal_sums_over_all_samples(dims: int) -> None:
    """Densities of scikit-learn have an absolute error of 1e-16 of the density if all samples were at one place.

    Its cosine kernel has a wrong norm in even dimensions.
    """
    points, places = sample(dims)
    distance = np.sqrt(squared_distances(places, points))
    weight = np.where(np.arange(180) % 7 == 0, 0, RNG.random(180))
    for kernel in KERNELS:
        for bandwidth in (0.3, "scott", "silverman", 5.0):
            for weights in (None, weight):
                estimator, reference = (
                    kind(kernel=kernel, bandwidth=bandwidth).fit(points, sample_weight=weights)
                    for kind in (KernelDensity, TheirKernelDensity)
                )
                assert estimator.bandwidth_ == pytest.approx(reference.bandwidth_, rel=1e-15)
                parts = np.ones(180) / 180 if weights is None else weight / weight.sum()
                sums = logsumexp(SHAPES[kernel](distance / estimator.bandwidth_), axis=1, b=parts)
                alone = KernelDensity(kernel=kernel, bandwidth=estimator.bandwidth_).fit(np.zeros((1, dims)))
                result, centre = estimator.score_samples(places), alone.score_samples(np.zeros((1, dims)))[0]
                np.testing.assert_allclose(result, sums + centre, rtol=1e-13, atol=1e-10, err_msg=kernel)
                if kernel != "cosine" or dims % 2:
                    densities = np.exp([result - centre, reference.score_samples(places) - centre])
                    np.testing.assert_allclose(*densities, rtol=1e-9, atol=1e-14, err_msg=kernel)
    assert estimator.score(places[:5]) == pytest.approx(estimator.score_samples(places[:5]).sum())


def test_sums_over_all_samples_far_from_them() -> None:
    """The terms are too small for float64."""
    points, places = sample(2)
    distance = np.sqrt(squared_distances(places, points))
    for kernel, exponent in (("gaussian", distance**2 / 2 / 0.05**2), ("exponential", distance / 0.05)):
        volume = 2 * math.pi * 0.05**2
        expected = logsumexp(-exponent, axis=1) - math.log(len(points) * volume)
        result = KernelDensity(kernel=kernel, bandwidth=0.05).fit(points).score_samples(places)
        assert result.min() < -1000
        np.testing.assert_allclose(result, expected, rtol=1e-13, atol=1e-12)


@pytest.mark.parametrize("kernel", KERNELS)
def test_density_integrates_to_one(kernel: str) -> None:
    """The integral is over the distance from a single sample."""
    for dims in (1, 2, 3, 5, 8):
        fitted = KernelDensity(kernel=kernel, bandwidth=2.0).fit(np.zeros((1, dims)))
        radii = np.linspace(0, 2 if kernel in COMPACT else 120, 40_001)[:-1]
        density = np.exp(fitted.score_samples(np.pad(radii[:, None], ((0, 0), (0, dims - 1)))))
        area = dims * math.pi ** (dims / 2) / math.gamma(dims / 2 + 1)
        assert np.trapezoid(density * area * radii ** (dims - 1), radii) == pytest.approx(1, abs=1e-3), dims


@pytest.mark.filterwarnings("ignore:divide by zero")
def test_other_metrics() -> None:
    points, places = sample(3)
    for kernel in KERNELS:
        for metric, params in (("manhattan", None), ("chebyshev", None), ("minkowski", {"p": 3})):
            estimator, reference = (
                kind(kernel=kernel, metric=metric, metric_params=params, bandwidth=0.7).fit(points)
                for kind in (KernelDensity, TheirKernelDensity)
            )
            result, expected = (np.exp(model.score_samples(places)) for model in (estimator, reference))
            np.testing.assert_allclose(result, expected, rtol=1e-9, atol=1e-14, err_msg=f"{kernel} {metric}")


@pytest.mark.parametrize("kernel", KERNELS)
def test_periodic_boxes(kernel: str) -> None:
    """Only the nearest image contributes."""
    points, places = RNG.random((100, 2)) * [1.0, 2.0], RNG.random((20, 2)) * 4 - 1
    result = KernelDensity(kernel=kernel, bandwidth=0.2, boxsize=[1.0, 0.0]).fit(points).score_samples(places)
    with np.errstate(divide="ignore"):
        terms = SHAPES[kernel](np.sqrt(squared_distances(places, points, [1.0, 0.0])) / 0.2)
    centre = KernelDensity(kernel=kernel, bandwidth=0.2).fit(np.zeros((1, 2))).score_samples(np.zeros((1, 2)))
    np.testing.assert_allclose(result, logsumexp(terms, axis=1) - np.log(100) + centre, rtol=1e-12, atol=1e-12)


def test_tolerances_bound_the_error() -> None:
    points, places = sample(3)
    for kernel in ("gaussian", "exponential"):
        options = {"kernel": kernel, "bandwidth": 0.2}
        exact = np.exp(KernelDensity(**options).fit(points).score_samples(places))
        for rtol, atol in ((1e-3, 0), (0, 1e-4), (1e-2, 1e-3)):
            result = np.exp(KernelDensity(rtol=rtol, atol=atol, **options).fit(points).score_samples(places))
            assert np.all(np.abs(result - exact) <= atol + rtol * exact + 1e-15)
            assert np.any(result != exact)


@pytest.mark.parametrize("kernel", ["gaussian", "tophat"])
def test_samples_have_the_density(kernel: str) -> None:
    points, weight = np.array([[0.0, 0.0], [10.0, 0.0]]), np.array([1.0, 3.0])
    drawn = KernelDensity(kernel=kernel, bandwidth=0.5).fit(points, sample_weight=weight).sample(4000, random_state=1)
    right = drawn[:, 0] > 5
    assert abs(right.mean() - 0.75) < 0.03
    separation = np.linalg.norm(drawn - points[right.astype(int)], axis=1)
    # The median distance in 2 dimensions.
    median = 0.5 * (math.sqrt(2 * math.log(2)) if kernel == "gaussian" else math.sqrt(0.5))
    assert abs(np.median(separation) - median) < 0.03
    assert kernel == "gaussian" or separation.max() <= 0.5
    inside = KernelDensity(kernel=kernel, boxsize=[1.0, 0.0]).fit(points).sample(100, random_state=1)
    assert inside[:, 0].min() >= 0
    assert inside[:, 0].max() < 1


def test_samples_are_inside_the_box() -> None:
    fitted = KernelDensity(bandwidth=1e-18, boxsize=[1.0, 0.0]).fit(np.zeros((1, 2)))
    places = fitted.sample(100, random_state=0)
    assert (places[:, 0] >= 0).all()
    assert (places[:, 0] < 1).all()
    assert (places[:, 1] < 0).any()
    with pytest.raises(TypeError, match="boxsize is '1'"):
        KernelDensity(boxsize="1").fit(np.zeros((1, 2)))


def test_estimator_can_be_pickled() -> None:
    points, places = sample(2)
    fitted = KernelDensity().fit(points)
    again = pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(again.score_samples(places), fitted.score_samples(places))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kernel": "box"}, "kernel is 'box'; it must be one of 'gaussian', 'tophat'"),
        ({"bandwidth": 0}, "bandwidth is 0; it must be a positive, finite number, or one of 'scott', 'silverman'"),
        ({"bandwidth": "wide"}, "bandwidth is 'wide'"),
        ({"metric": "haversine"}, "metric is 'haversine'"),
        ({"rtol": -1}, "rtol is -1; it must be a number of at least 0"),
        ({"atol": "a"}, "atol is 'a'"),
        ({"algorithm": "tree"}, "algorithm is 'tree'"),
    ],
)
def test_invalid_arguments_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        KernelDensity(**options).fit(np.zeros((3, 2)))


def test_invalid_weights_and_samples_raise() -> None:
    for weight, message in (
        ([1, -1, 1], "Negative values"),
        ([0, 0, 0], "zero for every sample"),
        ([1, 2], "inconsist"),
        (0, "zero for every sample"),
        (np.nan, "contains NaN"),
        (np.inf, "contains infinity"),
    ):
        with pytest.raises(ValueError, match=message):
            KernelDensity().fit(np.zeros((3, 2)), sample_weight=weight)
    with pytest.raises(NotImplementedError, match="kernel is 'linear'; samples need"):
        KernelDensity(kernel="linear").fit(np.zeros((3, 2))).sample()
