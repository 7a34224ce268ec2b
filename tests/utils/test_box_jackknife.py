"""Jackknife errors in a periodic box without randoms: the expected random pairs without a part of the box."""

import math
from typing import Any

import numpy as np
import pytest

from jztree.radius import pair_counts
from jztree_utils import correlation
from jztree_utils.correlation._regions import BoxParts

BOX = np.array([1.0, 1.2, 0.9])
EDGES, ALONG, COSINES = np.array([0.0, 0.1, 0.25, 0.44]), np.array([0.0, 0.1, 0.4]), np.array([0, 0.5, 0.8, 1.0])
RNG = np.random.default_rng(6)
FUNCTIONS: dict[str, Any] = {
    "xi": correlation.xi,
    "wp": lambda *arguments, **options: correlation.wp(*arguments[:2], 0.4, *arguments[2:], num_pi=3, los=0, **options),
    "multipoles": lambda *arguments, **options: correlation.multipoles(*arguments, num_mu=5, los=1, **options),
}


@pytest.fixture(autouse=True)
def seeded() -> None:
    """Give each test its own random numbers, in any order of the tests."""
    RNG.bit_generator.state = np.random.default_rng(6).bit_generator.state


def clustered(num: int) -> np.ndarray:
    """Return pairs of particles, partly outside the box."""
    pos = RNG.random((num, 3)) * BOX
    return np.concatenate([pos, pos + RNG.normal(0, 0.05, (num, 3))])


def test_overlap_of_small_spheres_is_the_polynomial() -> None:
    """The integral of ``(a - |x|)(b - |y|)(c - |z|)`` over a ball in closed form."""
    r, sides = 0.2, BOX / 3
    a, b, c = sides
    ball = 4 / 3 * math.pi * r**3 * a * b * c - math.pi / 2 * r**4 * (a * b + b * c + a * c)
    ball += 8 / 15 * r**5 * (a + b + c) - r**6 / 6
    np.testing.assert_allclose(BoxParts(BOX, 3).spheres(np.array([0, 0.1, r])).sum(), ball, rtol=1e-9)
    disc = math.pi * r**2 * a * b - 4 / 3 * r**3 * (a + b) + r**4 / 2
    np.testing.assert_allclose(BoxParts(BOX[:2], 3).spheres(np.array([0, r])), [disc], rtol=1e-9)
    np.testing.assert_allclose(BoxParts(BOX[:1], 3).spheres(np.array([0, r])), [2 * (r * a - r**2 / 2)], rtol=1e-12)


@pytest.mark.parametrize("per_side", [2, 3])
@pytest.mark.parametrize("mode", ["r", "rp_pi", "s_mu"])
def test_shares_equal_the_counts_of_many_random_pairs(mode: str, per_side: int) -> None:
    """Separations may be longer than a part."""
    parts, num = BoxParts(BOX, per_side), 12000
    pos = RNG.random((num, 3)) * BOX
    second = {"r": {}, "rp_pi": {"edges_b": ALONG, "los": 1}, "s_mu": {"edges_b": COSINES, "los": 1}}[mode]
    regions = {"regions": parts.regions(pos), "num_regions": parts.num}
    counts = pair_counts(pos, EDGES, boxsize=BOX, mode=mode, **second, **regions)
    counts_without = np.asarray(counts.count) - np.asarray(counts.region_count)
    balls = 4 / 3 * np.pi * np.diff(EDGES**3)
    if mode == "r":
        shares = parts.shares(balls, lambda: parts.spheres(EDGES))
    elif mode == "rp_pi":
        rings = np.pi * np.diff(EDGES**2)[:, None] * 2 * np.diff(ALONG)
        shares = parts.shares(rings, lambda: parts.cylinders(EDGES, ALONG, 1))
    else:
        shares = parts.shares(balls[:, None] * np.diff(COSINES), lambda: parts.sectors(EDGES, COSINES, 1))
    num_without = num - np.bincount(regions["regions"], minlength=parts.num)
    expected = counts_without / (num_without * (num_without - 1)).reshape(-1, *[1] * (counts_without.ndim - 1))
    share = np.asarray(counts.count) / (num * (num - 1))
    np.testing.assert_allclose(share, shares[0], rtol=0.03)
    # The noise of the pairs is the same in both.
    np.testing.assert_allclose(expected.mean(axis=0) / share, shares[1] / shares[0], rtol=0.002)


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("cross", [False, True])
def test_samples_agree_with_many_randoms(function: str, cross: bool) -> None:
    call = FUNCTIONS[function]
    data, parts = clustered(400), BoxParts(BOX, 2)
    # One random particle in each cell of a lattice, so that the noise is small.
    cells = np.indices((30, 30, 30)).reshape(3, -1).T
    randoms = (cells + RNG.random(cells.shape)) / 30 * BOX
    options: dict[str, Any] = {"queries": data[::2] + RNG.normal(0, 0.05, (400, 3))} if cross else {}
    estimate = call(data, EDGES, BOX, **options, per_side=2)
    regions: dict[str, Any] = {"regions": parts.regions(data), "num_regions": 8}
    regions |= {"random_regions": parts.regions(randoms), "estimator": "natural"}
    regions |= {"query_regions": parts.regions(options["queries"])} if cross else {}
    with_randoms = call(data, EDGES, BOX, randoms, **options, **regions)
    np.testing.assert_array_equal(estimate.pairs, with_randoms.pairs)
    assert estimate.samples.shape == with_randoms.samples.shape
    scale = np.abs(with_randoms.value).max()
    for correlated in (estimate, with_randoms):
        assert np.abs(correlated.samples - correlated.value).max() > 0.05 * scale
    # The noise of the randoms is the same in all samples.
    np.testing.assert_allclose(
        estimate.samples - estimate.value, with_randoms.samples - with_randoms.value, atol=0.02 * scale
    )
    np.testing.assert_allclose(estimate.error, with_randoms.error, rtol=0.05)
    np.testing.assert_array_equal(estimate.value, call(data, EDGES, BOX, **options).value)
    weighted = call(data, EDGES, BOX, per_side=2, weights=np.full(len(data), 0.5), **options)
    np.testing.assert_allclose(weighted.samples, estimate.samples, rtol=1e-9, atol=1e-9 * scale)


def test_counts_with_regions_give_the_same_jackknife() -> None:
    data = clustered(300) % BOX
    regions = {"regions": correlation.cube_regions(data, 0, BOX, 3), "num_regions": 27}
    sums = correlation.totals(data, regions=regions["regions"], num_regions=27)
    for name, from_counts, second, options in (
        ("xi", correlation.xi_from_counts, (), {}),
        ("wp", correlation.wp_from_counts, (np.linspace(0, 0.4, 4),), {"mode": "rp_pi", "los": 0}),
        ("multipoles", correlation.multipoles_from_counts, (np.linspace(0, 1, 6),), {"mode": "s_mu", "los": 1}),
    ):
        bins = {"edges_b": second[0]} if second else {}
        counts = pair_counts(data.astype(np.float32), EDGES, boxsize=BOX, **regions, **options, **bins)
        estimate = from_counts(counts, sums, EDGES, *second, BOX, per_side=3)
        expected = FUNCTIONS[name](data.astype(np.float32), EDGES, BOX, per_side=3)
        np.testing.assert_allclose(estimate.samples, expected.samples, rtol=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"per_side": 1}, "per_side is 1 in 3 dimensions; a jackknife of a box needs 2 or more parts per side"),
        ({"per_side": 2, "num_regions": 8}, "or per_side instead of regions"),
        (
            {"per_side": 2, "randoms": RNG.random((9, 3))},
            "per_side is for a periodic box without randoms; leave it out, or",
        ),
        ({"per_side": 2, "boxsize": None}, "without randoms, the box must be periodic"),
        ({"regions": np.zeros(50, int), "num_regions": 1}, "give randoms and random_regions, or per_side"),
    ],
    ids=str,
)
def test_invalid_parts_raise(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        correlation.xi(**{"part": RNG.random((50, 3)), "edges": [0.1, 0.2], "boxsize": 1.0} | options)


def test_parts_that_do_not_match_the_counts_raise() -> None:
    pos = RNG.random((50, 4))
    with pytest.raises(ValueError, match=r"per_side is 2 in 4 dimensions; .* in 1 to 3 dimensions"):
        correlation.xi(pos, [0.1, 0.2], 1.0, per_side=2)
    with pytest.raises(TypeError, match=r"per_side is 2\.0; it must be an integer"):
        correlation.xi(pos[:, :3], [0.1, 0.2], 1.0, per_side=2.0)
    regions = {"regions": correlation.cube_regions(pos[:, :3], 0, 1, 2), "num_regions": 8}
    counts, sums = (
        pair_counts(pos[:, :3], [0.1, 0.2], boxsize=1.0, **regions),
        correlation.totals(pos[:, :3], regions=regions["regions"], num_regions=8),
    )
    for per_side in (None, 3):
        with pytest.raises(ValueError, match=f"the counts have 8 regions and per_side is {per_side}; without randoms"):
            correlation.xi_from_counts(counts, sums, [0.1, 0.2], [1.0] * 3, per_side=per_side)
    with pytest.raises(ValueError, match="the counts have no regions and per_side is 2"):
        correlation.xi_from_counts([3], 50, [0.1, 0.2], [1.0] * 3, per_side=2)
    with pytest.raises(ValueError, match="with rr, per_side has no effect"):
        correlation.xi_from_counts([3], 50, [0.1, 0.2], per_side=2, rr=[3], randoms=9)


def test_regions_of_other_particles_raise() -> None:
    """This includes regions of the same particles in another order. Some particles are outside the box."""
    data, random_points = (RNG.uniform(-0.02, 1.02, (300, 3)) for _ in range(2))
    for per_side in (2, 3):
        for wrapped in (data, data % 1.0):
            regions, edges, box = correlation.cube_regions(wrapped, 0, 1, per_side), [0.1, 0.2], [1.0] * 3
            random_regions = correlation.cube_regions(random_points, 0, 1, per_side)
            for numbers, is_valid in ((regions, True), (random_regions, False), (regions[::-1], False)):
                options = {"num_regions": per_side**3}
                counts = pair_counts(data, edges, boxsize=1.0, regions=numbers, **options)
                sums = correlation.totals(data, regions=numbers, **options)
                if is_valid:
                    correlation.xi_from_counts(counts, sums, edges, box, per_side=per_side)
                    continue
                with pytest.raises(ValueError, match="the regions of data do not fit its particles: some"):
                    correlation.xi_from_counts(counts, sums, edges, box, per_side=per_side)


def test_corners_over_devices_equal_the_corners_of_one_array() -> None:
    pos, numbers = RNG.random((12, 2)), np.arange(12) % 3
    totals = correlation.totals(pos, regions=numbers, num_regions=4)
    assert np.isinf(totals.corners[:, 3]).all()
    np.testing.assert_array_equal(totals.corners[:, 0], [pos[::3].min(axis=0), pos[::3].max(axis=0)])
    over_devices = correlation.totals(pos.reshape(3, 4, 2), regions=numbers.reshape(3, 4), num_regions=4)
    np.testing.assert_array_equal(over_devices.corners, totals.corners)
