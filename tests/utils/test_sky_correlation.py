"""Angular pair counts, ``w(theta)`` and regions on the sphere compared with their definitions."""

import itertools
from typing import Any

import jax
import numpy as np
import pytest
from test_sky import SPECIAL_DEC, SPECIAL_RA, catalogue, exact_angles

from jztree.radius import pair_counts
from jztree_utils import sky
from jztree_utils.sky import _regions

EDGES = np.array([0.0, 1e-6, 0.1, 1.0, 5.0, 30.0, 90.0, 150.0, 179.5, 180.0])


def cap(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return uniform directions in a window across RA = 0 and up to the pole."""
    random = np.random.default_rng(seed)
    return random.uniform(-30, 30, n), np.degrees(np.arcsin(random.uniform(0.5, 1, n)))


def expected_counts(one: Any, second: Any, weights: Any = None) -> np.ndarray:
    """Count pairs with ``low < angle <= high``, and those at distance 0 in no bin."""
    angle = exact_angles(one, second).astype(np.float64)
    separation = angle > 1e-13
    product = np.ones(angle.shape) if weights is None else np.multiply.outer(*weights)
    return np.array(
        [product[separation & (angle > low) & (angle <= high)].sum() for low, high in itertools.pairwise(EDGES)]
    )


def test_counts_equal_brute_force() -> None:
    for n in (0, 1, 300):
        single = [np.concatenate(both)[:n] for both in zip(catalogue(n, 1), (SPECIAL_RA, SPECIAL_DEC), strict=True)]
        counts = np.asarray(sky.angular_pair_counts(*single, EDGES).count)
        assert counts.dtype == np.int64
        np.testing.assert_array_equal(counts, expected_counts(single, single))
    second = catalogue(200, 2)
    np.testing.assert_array_equal(
        sky.angular_pair_counts(*single, EDGES, *second).count, expected_counts(single, second)
    )
    weights = [np.random.default_rng(3).random(len(x[0])) for x in (single, second)]
    result = sky.angular_pair_counts(*single, EDGES, *second, weights=weights[0], query_weights=weights[1])
    np.testing.assert_allclose(np.asarray(result.weight), expected_counts(single, second, weights), rtol=1e-12)


def test_last_edge_of_180_includes_opposite_directions() -> None:
    ra, dec = catalogue(100, 4)
    ra, dec = np.concatenate([ra, ra + 180]), np.concatenate([dec, -dec])
    assert np.asarray(sky.angular_pair_counts(ra, dec, [0, 180]).count) == [200 * 199]
    assert np.asarray(sky.angular_pair_counts(ra, dec, [179.9999, 180]).count) >= 200


def test_angular_correlation_by_its_definition() -> None:
    data = [
        np.concatenate(both) for both in zip(cap(150, 5), (np.linspace(359, 361, 50), np.full(50, 60.0)), strict=True)
    ]
    randoms = cap(400, 6)
    edges = np.array([0.0, 2.0, 5.0, 20.0])
    regions = [sky.region_of(*x, sky.region_centres(*randoms, 5)) for x in (data, randoms)]
    result = sky.w_theta(*data, edges, *randoms, regions=regions[0], random_regions=regions[1], num_regions=5)

    def expected(one: Any, two: Any) -> np.ndarray:
        dd, dr, rr = (
            np.histogram(exact_angles(a, b)[~np.eye(len(a[0]), dtype=bool)] if a is b else exact_angles(a, b), edges)[0]
            for a, b in ((one, one), (one, two), (two, two))
        )
        n, m = len(one[0]), len(two[0])
        dd, dr, rr = dd / (n * (n - 1)), dr / (n * m), rr / (m * (m - 1))
        return (dd - 2 * dr + rr) / rr

    np.testing.assert_allclose(result.value, expected(data, randoms), rtol=1e-9)
    np.testing.assert_array_equal(result.edges, edges)
    assert result.samples is not None
    for k, sample in enumerate(result.samples):
        left = [[column[region != k] for column in x] for x, region in zip((data, randoms), regions, strict=True)]
        np.testing.assert_allclose(sample, expected(*left), rtol=1e-9)
    assert result.error is not None
    assert np.all(result.error > 0)


def test_treecorr_has_the_same_counts() -> None:
    treecorr = pytest.importorskip("treecorr")
    data, randoms = cap(400, 17), cap(900, 18)
    catalogues = [treecorr.Catalog(ra=x[0], dec=x[1], ra_units="deg", dec_units="deg") for x in (data, randoms)]
    bins = {"min_sep": 1, "max_sep": 64, "nbins": 6, "sep_units": "deg", "metric": "Arc", "brute": True}
    dd, dr, rr = (treecorr.NNCorrelation(**bins) for _ in range(3))
    dd.process(catalogues[0])
    dr.process(*catalogues)
    rr.process(catalogues[1])
    result = sky.w_theta(*data, np.geomspace(1, 64, 7), *randoms)
    np.testing.assert_array_equal(result.pairs, 2 * dd.npairs)
    # TreeCorr divides by n**2 / 2 pairs within a catalogue, and jztree by n (n - 1) / 2.
    dd, dr, rr = dd.npairs / (400 * 399 / 2), dr.npairs / (400 * 900), rr.npairs / (900 * 899 / 2)
    np.testing.assert_allclose(result.value, (dd - 2 * dr + rr) / rr, rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("cross", [False, True])
def test_mean_angles_by_their_definition(cross: bool, weighted: bool) -> None:
    places = np.concatenate([cap(120, 3), cap(1, 3), catalogue(60, 4)], axis=1)  # one direction occurs twice
    places_b = catalogue(90, 5) if cross else places
    weights = [np.random.default_rng(len(x[0])).random(len(x[0])) for x in (places, places_b)]
    edges = np.array([0.0, 2, 30, 90, 180])
    options = {"weights": weights[0]} if weighted else {}
    if cross:
        options |= {"query_ra": places_b[0], "query_dec": places_b[1]} | (
            {"query_weights": weights[1]} if weighted else {}
        )
    counts = sky.angular_pair_counts(*places, edges, separations=True, **options)
    angle = sky.angular_separation(places[0][:, None], places[1][:, None], places_b[0][None], places_b[1][None])
    product = np.outer(*weights) if weighted else np.ones(angle.shape)
    inside = [(angle > low) & (angle <= high) & (angle > 1e-9) for low, high in itertools.pairwise(edges)]
    np.testing.assert_array_equal(np.asarray(counts.count), [np.count_nonzero(pairs) for pairs in inside])
    expected = [(angle * product)[pairs].sum() for pairs in inside]
    np.testing.assert_allclose(np.asarray(counts.separation), expected, rtol=1e-12)
    assert counts.mode == "theta"
    np.testing.assert_array_equal(np.asarray(counts.edges), edges)


def test_sums_of_angles_hold_the_counted_pairs_at_edges() -> None:
    ra, dec = (place.ravel() for place in np.meshgrid(np.arange(0, 360, 15.0), np.arange(-75, 76, 15.0)))
    edges = np.arange(0, 151, 15.0)
    counts = sky.angular_pair_counts(ra, dec, edges, separations=True)
    unit = sky.to_cartesian(ra, dec)
    square = sum(np.subtract.outer(column, column) ** 2 for column in unit.T)
    angle = sky.angular_separation(ra[:, None], dec[:, None], ra, dec)
    bounds = sky.chord_of_angle(edges) ** 2
    inside = [(square > low) & (square <= high) for low, high in itertools.pairwise(bounds)]
    np.testing.assert_array_equal(np.asarray(counts.count), [np.count_nonzero(pairs) for pairs in inside])
    np.testing.assert_allclose(np.asarray(counts.separation), [angle[pairs].sum() for pairs in inside], rtol=1e-12)


def test_sums_of_angles_of_weights_that_cancel() -> None:
    counts = sky.angular_pair_counts([0, 1, 3], [0, 0, 0], [0, 4], weights=[1.0, 1.0, -0.5], separations=True)
    assert np.asarray(counts.weight) == [0]
    np.testing.assert_allclose(np.asarray(counts.separation), [2 * (1 - 0.5 * 3 - 0.5 * 2)], rtol=1e-12)


def test_w_theta_has_the_mean_angles_of_the_data() -> None:
    data, randoms = cap(150, 3), cap(300, 4)
    estimate = sky.w_theta(*data, [0, 3, 9], *randoms, separations=True)
    counts = sky.angular_pair_counts(*data, [0, 3, 9], separations=True)
    np.testing.assert_array_equal(estimate.separation, np.asarray(counts.separation) / estimate.pairs)
    assert (estimate.statistic, sky.w_theta(*data, [0, 3, 9], *randoms).separation) == ("w_theta", None)


def test_bins_without_pairs_are_named_in_degrees() -> None:
    with pytest.warns(RuntimeWarning, match=r"^w\(theta\) is NaN in bin 1 \(100 to 120\)"):
        result = sky.w_theta(*cap(50, 7), [0, 100, 120], *cap(90, 8))
    assert np.isnan(result.value).tolist() == [False, True]
    for n in (0, 1):
        with pytest.warns(RuntimeWarning, match="but a pair needs 2"):
            assert np.isnan(sky.w_theta(*cap(n, 9), [0, 1, 2], *cap(90, 8)).value).all()


def test_regions_are_balanced_and_nearest() -> None:
    for place, number in ((cap(3000, 10), 40), (catalogue(2000, 11), 7), (cap(30, 12), 30), (cap(5, 13), 1)):
        centres = sky.region_centres(*place, number)
        region = sky.region_of(*place, centres)
        assert region.dtype == np.int32
        np.testing.assert_allclose(np.linalg.norm(centres, axis=1), 1, rtol=1e-15)
        np.testing.assert_array_equal(centres, sky.region_centres(*place, number))
        angle = exact_angles(place, sky.from_cartesian(centres)[:2])
        np.testing.assert_array_equal(region, angle.argmin(axis=1))
        assert np.all(np.bincount(region, minlength=number) > 0)
    counts = np.bincount(sky.region_of(*cap(3000, 10), sky.region_centres(*cap(3000, 10), 40)))
    assert counts.std() / counts.mean() < 0.25
    assert counts.min() > 0.5 * counts.mean()


def test_regions_from_a_sample_of_many_objects_are_as_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    place = cap(20_000, 12)
    spread = []
    for sample in (_regions._SAMPLE, 200):
        monkeypatch.setattr(_regions, "_SAMPLE", sample)
        counts = np.bincount(sky.region_of(*place, sky.region_centres(*place, 8)), minlength=8)
        spread.append(counts.std() / counts.mean())
    assert spread[1] < spread[0] + 0.04 < 0.2


def test_rare_directions_have_separate_regions() -> None:
    """The sample of 3 times 2,000 objects lacks them."""
    ra = np.zeros(20_000)
    ra[[50, 9_000]] = 40, 80
    region = sky.region_of(ra, 0 * ra, sky.region_centres(ra, 0 * ra, 3))
    assert len({int(region[row]) for row in (0, 50, 9_000)}) == 3


def test_regions_converge_to_means_of_their_objects() -> None:
    place = cap(3000, 14)
    centres = sky.region_centres(*place, 20, max_rounds=1000)
    region, pos = sky.region_of(*place, centres), sky.to_cartesian(*place)
    means = np.stack([pos[region == k].mean(axis=0) for k in range(20)])
    np.testing.assert_allclose(centres, means / np.linalg.norm(means, axis=1, keepdims=True), rtol=1e-12)


def test_regions_are_valid_for_pair_counts() -> None:
    place = cap(300, 15)
    region = sky.region_of(*place, sky.region_centres(*place, 6))
    assert sky.region_of([], [], sky.region_centres(*place, 6)).shape == (0,)
    counts = sky.angular_pair_counts(*place, [0, 5, 60], regions=region, num_regions=6)
    for k in range(6):
        left = [column[region != k] for column in place]
        expected = np.asarray(sky.angular_pair_counts(*left, [0, 5, 60]).count)
        np.testing.assert_array_equal(np.asarray(counts.count) - np.asarray(counts.region_count)[k], expected)
    with jax.enable_x64(True):
        direct = pair_counts(sky.to_cartesian(*place), sky.chord_of_angle([0, 5, 60]), regions=region, num_regions=6)
    np.testing.assert_array_equal(direct.region_count, counts.region_count)


def test_few_directions_have_few_regions() -> None:
    ra, dec = np.repeat([10.0, 20.0, 200.0], 40), np.repeat([0.0, 80.0, -70.0], 40)
    region = sky.region_of(ra, dec, sky.region_centres(ra, dec, 3))
    assert len(np.unique(region)) == 3
    assert np.all(region == np.repeat(region[::40], 40))
    with pytest.raises(ValueError, match="num_regions is 4, but only 3 regions have objects"):
        sky.region_centres(ra, dec, 4)
    opposite = sky.region_centres([0.0, 180.0], [0.0, 0.0], 1)
    np.testing.assert_array_equal(np.abs(opposite), [[1, 0, 0]])


def test_healpix_regions_are_the_pixels() -> None:
    pytest.importorskip("astropy_healpix")
    ra, dec = catalogue(500, 16)
    for nside in (1, 4):
        region = sky.healpix_regions(ra, dec, nside)
        assert region.dtype == np.int32
        assert region.min() >= 0
        assert region.max() < 12 * nside**2
    # The 12 base pixels: 4 around each pole, and 4 along the equator with corners at RA = 45 + 90 i.
    north = sky.healpix_regions([45, 135, 225, 315, 405], [80] * 5, 1)
    np.testing.assert_array_equal(north, [0, 1, 2, 3, 0])
    np.testing.assert_array_equal(sky.healpix_regions([0, 90, 180, 270], [0] * 4, 1), [4, 5, 6, 7])
    np.testing.assert_array_equal(sky.healpix_regions([45, 135, 225, 315], [-80] * 4, 1), [8, 9, 10, 11])
    assert sky.healpix_regions([], [], 4).shape == (0,)


INVALID: list[tuple[Any, str]] = [
    (lambda: sky.angular_pair_counts([1], [0], [0, 181]), "row 1 of edges is 181; angles must be from 0"),
    (lambda: sky.angular_pair_counts([1], [0], [2, 1]), "edges are .* must be ascending"),
    (lambda: sky.w_theta([1], [0], [0, 1], [1, 2], [0, 99]), "row 1 of random_dec is 99"),
    (lambda: sky.angular_pair_counts([1], [0], [0, 1], [1]), "give both, or neither"),
    (lambda: sky.angular_pair_counts([1], [0], [0, 1], weights=np.ones(2)), "weight"),
    (lambda: sky.w_theta([1], [0], [0, 1], [1], [0], num_regions=3), "a jackknife needs"),
    (lambda: sky.region_centres([1], [0], 2), "num_regions is 2, but there are 1 objects"),
    (lambda: sky.region_centres([1], [0], 0), "num_regions is 0"),
    (lambda: sky.region_of([1], [0], np.zeros((0, 3))), "one or more unit vectors"),
    (lambda: sky.region_of([1], [0], [[1, 1, 1]]), "centres must be unit vectors"),
    (lambda: sky.healpix_regions([1], [0], 3), "nside is 3; it must be a power of 2"),
]


def test_invalid_values_raise() -> None:
    for call, message in INVALID:
        with pytest.raises(ValueError, match=message):
            call()
