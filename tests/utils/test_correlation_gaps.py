"""Correlation functions that are undefined in some bins: NaN there, and one warning with the bins and the reason."""

from typing import Any

import numpy as np
import pytest
from numpy.polynomial import Legendre
from tracers import warned

from jztree_utils.correlation import multipoles, wp, wp_from_counts, xi, xi_from_counts

EDGES = np.linspace(0.02, 0.2, 4)
FUNCTIONS = {
    "xi": xi,
    "wp": lambda part, edges, *more, **options: wp(part, edges, 0.3, *more, num_pi=3, **options),
    "multipoles": lambda part, edges, *more, **options: multipoles(part, edges, *more, num_mu=3, **options),
}


def uniform(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 3)).astype(np.float32)


DATA, RANDOMS = uniform(90, 1), uniform(300, 2)
BALANCED = np.resize(np.array([1, -1], np.float32), 90)
ALL_NAN: dict[str, tuple[dict[str, Any], str]] = {
    "one particle in a box": ({"part": DATA[:1], "boxsize": 1.0}, "the data hold 1 particle, but a pair needs 2"),
    "one particle": ({"part": DATA[:1], "randoms": RANDOMS}, "the data hold 1 particle, but a pair needs 2"),
    "no particles": ({"part": DATA[:0], "randoms": RANDOMS}, "the data hold 0 particles"),
    "no randoms": ({"randoms": RANDOMS[:0]}, "the randoms hold 0 particles"),
    "one random particle": ({"randoms": RANDOMS[:1]}, "the randoms hold 1 particle"),
    "weights that cancel": ({"randoms": RANDOMS, "weights": BALANCED}, "the weights of the data sum to 0"),
    "weights that cancel in a box": ({"boxsize": 1.0, "weights": BALANCED}, "the weights of the data sum to 0"),
    "weights of 0": ({"boxsize": 1.0, "weights": np.zeros(90)}, "the weights of the data sum to 0"),
    "one weight that is not 0": (
        {"randoms": RANDOMS, "weights": np.eye(1, 90, 7)[0]},
        "the products of the weights of all pairs of the data sum to 0",
    ),
    "randoms whose weights cancel": (
        {"randoms": RANDOMS, "random_weights": np.resize([0.1, 0.2, -0.3], 300)},
        "the weights of the randoms sum to 0",
    ),
    "randoms that do not overlap the data": ({"randoms": RANDOMS + 2}, "no bin has a pair of data and randoms"),
    "randoms that are far apart": (
        {"randoms": 40.0 * np.arange(90.0)[:, None] + [[0, 0, 0]]},
        "random pairs are missing",
    ),
}


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("why", ALL_NAN)
def test_undefined_estimates_give_nan_and_one_warning(function: str, why: str) -> None:
    given, reason = ALL_NAN[why]
    result = warned(
        lambda: FUNCTIONS[function](**{"part": DATA, "edges": EDGES} | given), "bins 0 to 2 (0.02 to 0.2)", reason
    )
    assert np.isnan(result.value).all()
    assert result.value.shape[-1] == 3


@pytest.mark.parametrize("function", FUNCTIONS)
def test_weights_that_sum_to_rounding_give_nan(function: str) -> None:
    weight = np.random.default_rng(3).random(90).astype(np.float32)
    weight -= weight.mean()
    assert weight.sum() != 0
    warned(lambda: FUNCTIONS[function](DATA, EDGES, 1.0, weights=weight), "the weights of the data sum to 0")


@pytest.mark.parametrize("function", FUNCTIONS)
def test_bin_without_random_pairs_is_nan_and_named(function: str) -> None:
    edges = [1e-6, 1e-5, 0.1, 0.10000001, 0.2]
    result = warned(
        lambda: FUNCTIONS[function](DATA, edges, randoms=uniform(2000, 4)),
        "bins 0 (1e-06 to 1e-05) and 2 (0.1 to 0.1): random pairs are missing; give more randoms, or wider bins.",
    )
    np.testing.assert_array_equal(np.isnan(np.atleast_2d(result.value)).all(axis=0), [True, False, True, False])
    assert np.isfinite(result.value[..., [1, 3]]).all()


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("function", FUNCTIONS)
def test_defined_estimates_do_not_warn(function: str) -> None:
    regions = {"regions": np.arange(90) % 3, "random_regions": np.arange(2000) % 3, "num_regions": 3}
    result = FUNCTIONS[function](DATA, EDGES, randoms=uniform(2000, 4), **regions)
    assert np.isfinite(result.value).all()
    assert np.isfinite(result.covariance).all()
    assert np.isfinite(FUNCTIONS[function](DATA, EDGES, 1.0).value).all()


def quantities(a: np.ndarray, b: np.ndarray, function: str) -> tuple[np.ndarray, np.ndarray]:
    """Return both quantities of each pair in an open box: rp and pi, or s and mu."""
    separation = a[:, None].astype(np.float64) - b
    distance, along = np.sqrt((separation**2).sum(axis=-1)), np.abs(separation[..., 2])
    if function == "wp":
        return np.hypot(separation[..., 0], separation[..., 1]), along
    return distance, along / np.where(distance > 0, distance, 1)


def cells_of(a: np.ndarray, b: np.ndarray, function: str, last: float, cells: int) -> np.ndarray:
    """Return ``(bins, cells)`` pairs of different particles in cells of the second quantity up to ``last``."""
    pairs = ~np.eye(len(a), dtype=bool) if a is b else np.ones((len(a), len(b)), bool)
    first, second = (item[pairs] for item in quantities(a, b, function))
    return np.histogram2d(first, second, [EDGES, np.linspace(0, last, cells + 1)])[0]


def joined_landy_szalay(dd: np.ndarray, dr: np.ndarray, rr: np.ndarray) -> list[float]:
    """Return the function in each cell of one bin.

    Cells are joined until one of them has random pairs. Remaining cells at the end join the last ones.
    """
    groups, waiting = [], []
    for cell in range(len(rr)):
        waiting.append(cell)
        if rr[cell] > 0:
            groups.append(waiting)
            waiting = []
    groups[-1] += waiting
    values = {}
    for group in groups:
        d, c, r = (counts[group].sum() for counts in (dd, dr, rr))
        values |= dict.fromkeys(group, (d - 2 * c + r) / r)
    return [values[cell] for cell in range(len(rr))]


@pytest.mark.parametrize("function", ["wp", "multipoles"])
def test_an_empty_cell_is_joined_to_the_next_one(function: str) -> None:
    data, randoms = np.concatenate([DATA, DATA[:40] / 8]), RANDOMS[:60]
    last, cells = (0.5, 40) if function == "wp" else (1.0, 20)
    n, m = len(data), len(randoms)
    dd, dr, rr = (
        cells_of(a, b, function, last, cells) / norm
        for a, b, norm in ((data, data, n * (n - 1)), (data, randoms, n * m), (randoms, randoms, m * (m - 1)))
    )
    assert (rr == 0).any(axis=1).all()
    assert (rr > 0).any(axis=1).all()
    expected = np.array([joined_landy_szalay(*counts) for counts in zip(dd, dr, rr, strict=True)])
    if function == "wp":
        result = warned(lambda: wp(data, EDGES, last, randoms=randoms, num_pi=cells), "bins 0 to 2", "a smaller num_pi")
        np.testing.assert_allclose(result.value, expected.sum(axis=1) * 2 * last / cells, rtol=1e-9)
        return
    result = warned(lambda: multipoles(data, EDGES, randoms=randoms, num_mu=cells), "bins 0 to 2", "a smaller num_mu")
    ends = np.linspace(0, 1, cells + 1)
    for column, ell in zip(result.value, (0, 2, 4), strict=True):
        integral = Legendre.basis(ell).integ()
        weights = (2 * ell + 1) * (integral(ends[1:]) - integral(ends[:-1]))
        np.testing.assert_allclose(column, expected @ weights, rtol=1e-9, atol=1e-9 * abs(expected).max())


def test_a_single_cell_with_random_pairs_is_the_whole_line_of_sight() -> None:
    """This is the single cell of halotools: 2 pi_max (DD - 2 DR + RR) / RR of the summed pairs."""
    data = np.array([[0, 0, 0], [0.05, 0, 0.125], [0.3, 0, 0.3]])
    randoms = np.array([[0, 0, 0], [0.05, 0, 0.2], [5, 5, 5]])
    result = warned(lambda: wp(data, [0.02, 0.1], 0.5, randoms=randoms, num_pi=10), "In bin 0 (0.02 to 0.1), cells")
    dd, dr, rr = 2 / 6, 2 / 9, 2 / 6
    np.testing.assert_allclose(result.value, 2 * 0.5 * (dd - 2 * dr + rr) / rr, rtol=1e-6)


@pytest.mark.parametrize("weighted", [False, True])
def test_samples_without_random_pairs_are_nan_and_named(weighted: bool) -> None:
    """All pairs of the first bin are in region 1. The weighted sums without it are 0 up to rounding only."""
    rng = np.random.default_rng(5)
    nearest = rng.random((40, 3)) * 0.01
    far = np.stack(np.meshgrid(*[np.arange(5.0)] * 3), axis=-1).reshape(-1, 3) + 1
    data, randoms = np.concatenate([nearest[:15], far]), np.concatenate([nearest[15:], far + 0.5])
    region, random_regions = (np.r_[np.ones(n, int), np.arange(125) % 2 * 2] for n in (15, 25))
    options = {"regions": region, "random_regions": random_regions, "num_regions": 3}
    if weighted:
        options |= {"weights": rng.random(140) + 0.1, "random_weights": rng.random(150) + 0.1}
    result = warned(
        lambda: xi(data, [0.001, 0.1, 2.0], randoms=randoms, **options),
        "Without region 1, xi is NaN in bin 0 (0.001 to 0.1), and so is the covariance.",
    )
    assert np.isfinite(result.value).all()
    np.testing.assert_array_equal(np.isnan(result.samples), [[False, False], [True, False], [False, False]])
    np.testing.assert_array_equal(np.isnan(result.error), [True, False])


@pytest.mark.parametrize("function", FUNCTIONS)
def test_empty_regions_are_named_and_omitted(function: str) -> None:
    randoms = uniform(2000, 4)
    region, random_regions = np.arange(90) % 3, np.arange(2000) % 3
    full = FUNCTIONS[function](
        DATA, EDGES, randoms=randoms, regions=region, random_regions=random_regions, num_regions=3
    )
    options = {"regions": 2 * region, "random_regions": 2 * random_regions, "num_regions": 7}
    result = warned(
        lambda: FUNCTIONS[function](DATA, EDGES, randoms=randoms, **options),
        "There are no particles in regions 1, 3 and 5 to 6; the covariance is that of the other regions.",
    )
    np.testing.assert_allclose(result.samples[[0, 2, 4]], full.samples, rtol=1e-12)
    np.testing.assert_allclose(result.samples[1], result.value, rtol=1e-12)
    np.testing.assert_allclose(result.covariance, full.covariance, rtol=1e-9)


def test_one_region_that_holds_everything_has_no_covariance() -> None:
    options = {"regions": np.zeros(90, int), "random_regions": np.zeros(2000, int), "num_regions": 2}
    result = warned(
        lambda: xi(DATA, EDGES, randoms=uniform(2000, 4), **options),
        "Without region 0, xi is NaN in bins 0 to 2 (0.02 to 0.2), and so is the covariance.",
        "There are no particles in region 1;",
    )
    assert np.isnan(result.samples[0]).all()
    np.testing.assert_array_equal(result.samples[1], result.value)
    assert np.isnan(result.covariance).all()


def test_covariance_without_particles_is_nan() -> None:
    options = {"regions": np.zeros(0, int), "random_regions": np.zeros(0, int), "num_regions": 2}
    result = warned(lambda: xi(DATA[:0], EDGES, randoms=DATA[:0], **options), "the data hold 0 particles")
    assert np.isnan(result.covariance).all()
    assert np.isnan(result.error).all()
    assert result.error.shape == result.value.shape


@pytest.mark.parametrize("num", [0, 1])
def test_counts_of_fewer_than_two_particles_give_nan(num: int) -> None:
    words = "bins 0 to 2 (0.02 to 0.2)", f"the data hold {num} particle{'' if num else 's'}, but a pair needs 2"
    result = warned(lambda: xi_from_counts([0, 0, 0], num, EDGES, [1.0] * 3), *words)
    assert np.isnan(result.value).all()
    result = warned(lambda: wp_from_counts(np.zeros((3, 2)), num, EDGES, [0, 0.1, 0.3], [1.0] * 3), *words)
    assert np.isnan(result.value).all()
