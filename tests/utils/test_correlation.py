"""Correlation functions compared with their definitions, and with sets whose functions are known."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from numpy.polynomial import legendre
from scipy.spatial import cKDTree

from jztree.data import ParticleData, Pos
from jztree_utils import ics
from jztree_utils.correlation import (
    Correlation,
    cube_regions,
    multipoles,
    power_law,
    wp,
    wp_from_counts,
    xi,
    xi_from_counts,
)

EDGES = np.linspace(0.02, 0.2, 7)


def uniform(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 3)).astype(np.float32)


def pairs_of_tree(a: np.ndarray, b: np.ndarray, box: Any, w: Any = None) -> np.ndarray:
    trees = [cKDTree(x.astype(np.float64), boxsize=box) for x in (a, b)]
    return np.diff(trees[0].count_neighbors(trees[1], EDGES, weights=w))


@pytest.mark.parametrize("box", [None, 1.0])
def test_landy_szalay_by_its_definition(box: Any) -> None:
    data, randoms = np.concatenate([uniform(300, 1), uniform(100, 2) / 8]), uniform(900, 3)
    weights = np.random.default_rng(4).random(400).astype(np.float32), np.full(900, 2, np.float32)
    result = xi(data, EDGES, box, randoms, weights=weights[0], random_weights=weights[1])
    wide = [w.astype(np.float64) for w in weights]
    dd, rr, dr = (
        pairs_of_tree(a, b, box, w)
        for a, b, w in (
            (data, data, (wide[0], wide[0])),
            (randoms, randoms, (wide[1], wide[1])),
            (data, randoms, (wide[0], wide[1])),
        )
    )
    norm = [w.sum() ** 2 - (w**2).sum() for w in wide]
    dd, rr, dr = dd / norm[0], rr / norm[1], dr / (wide[0].sum() * wide[1].sum())
    np.testing.assert_allclose(result.value, (dd - 2 * dr + rr) / rr, rtol=1e-9)
    assert result.pairs.dtype == np.int64
    assert result.covariance is None


def test_natural_estimator_of_random_particles_is_zero() -> None:
    pos, edges = uniform(20_000, 5), np.linspace(0.05, 0.3, 5)
    assert abs(xi(pos, edges, 1.0).value).max() < 0.01
    assert abs(wp(pos, edges, 0.4, 1.0).value).max() < 0.01
    result = multipoles(pos, edges, 1.0)
    assert result.value.shape == (3, 4)
    assert abs(result.value).max() < 0.05
    np.testing.assert_allclose(result.value[0], xi(pos, edges, 1.0).value, rtol=1e-9)
    flat = uniform(5000, 6)[:, :2]
    assert abs(xi(flat, edges, [1.0, 1.0]).value).max() < 0.02


def test_natural_estimator_by_its_definition() -> None:
    pos = np.concatenate([uniform(300, 1), uniform(100, 2) / 8])
    volume = 4 / 3 * np.pi * np.diff(EDGES**3)
    expected = pairs_of_tree(pos, pos, 1.0) / (400 * 399 * volume) - 1
    np.testing.assert_allclose(xi(pos, EDGES, 1.0).value, expected, rtol=1e-12)
    doubled = xi(pos, EDGES, 1.0, weights=np.full(400, 2, np.float32))
    np.testing.assert_allclose(doubled.value, expected, rtol=1e-12)
    padded = Pos(pos=np.concatenate([pos, np.full((3, 3), np.nan, np.float32)]), num=400)
    np.testing.assert_allclose(xi(padded, EDGES, 1.0).value, expected, rtol=1e-12)


def test_projection_and_multipoles_by_sums_over_bins() -> None:
    """All pairs are along the line of sight or across it, with known numbers of random pairs."""
    pos = np.repeat(uniform(500, 7), 2, axis=0)
    pos[1::2, 2] = (pos[1::2, 2] + np.float32(0.125)) % 1
    result = multipoles(pos, [0.124, 0.126], 1.0, num_mu=50)
    shell = 4 / 3 * np.pi * (0.126**3 - 0.124**3) * 1000 * 999
    # The pairs are in the last bin of mu, where P_l is nearly 1, and there are few others.
    end = [float(np.diff(legendre.legval([0.98, 1], legendre.legint([0] * ell + [1])))[0]) * 50 for ell in (2, 4)]
    monopole = result.pairs[0] / shell - 1
    np.testing.assert_allclose(result.value[0], monopole, rtol=1e-9)
    np.testing.assert_allclose(result.value[1:, 0] / monopole, [5 * end[0], 9 * end[1]], rtol=0.1)
    turned = multipoles(pos[:, [0, 2, 1]], [0.124, 0.126], 1.0, num_mu=50, los=1)
    np.testing.assert_allclose(turned.value, result.value, rtol=1e-9)
    projected = wp(pos, [0.0, 0.05, 0.1], 0.25, 1.0, num_pi=5)
    np.testing.assert_array_equal(projected.pairs, wp(pos, [0.0, 0.05, 0.1], 0.25, 1.0, num_pi=1).pairs)


def test_projection_counts_pairs_on_one_line_of_sight() -> None:
    pos = np.array([[5, 5, 5], [5, 5, 7], [5, 9, 5]], np.float32)
    assert wp(pos, [0.0, 3.0, 4.9], 3.0, 10.0, num_pi=3).pairs.tolist() == [2, 4]


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:In bins 0 to 2")
def test_jackknife_samples_omit_one_region() -> None:
    data, randoms = np.concatenate([uniform(300, 1), uniform(100, 2) / 8]), uniform(700, 3)
    regions = [cube_regions(x, 0, 1, 2) for x in (data, randoms)]
    result = xi(data, EDGES, None, randoms, regions=regions[0], random_regions=regions[1], num_regions=8)
    assert result.samples is not None
    for k in range(8):
        kept = xi(data[regions[0] != k], EDGES, None, randoms[regions[1] != k])
        np.testing.assert_allclose(result.samples[k], kept.value, rtol=1e-9)
    assert result.covariance is not None
    assert result.error is not None
    np.testing.assert_allclose(result.covariance, np.cov(result.samples.T, bias=True) * 7, rtol=1e-9)
    np.testing.assert_allclose(result.error**2, np.diag(result.covariance))
    for function in (wp, multipoles):
        options = {"pi_max": 0.2} if function is wp else {}
        single = function(
            data, EDGES, randoms=randoms, regions=regions[0], random_regions=regions[1], num_regions=8, **options
        )
        kept = function(data[regions[0] != 3], EDGES, randoms=randoms[regions[1] != 3], **options)
        np.testing.assert_allclose(single.samples[3], kept.value, rtol=1e-8, atol=1e-9)


def test_correlation_of_matter_is_a_power_law() -> None:
    """xi of cold dark matter is near 1 at some Mpc/h, and falls approximately like r^-1.8 around that scale."""
    part, boxsize = ics.cosmo_3d_sample()
    result = xi(part.pos[::2], np.geomspace(1.0, 10.0, 11), boxsize)
    length, slope = power_law(result)
    assert 2.5 < length < 6.5
    assert 1.4 < slope < 2.3


def test_power_law_is_recovered() -> None:
    edges = np.geomspace(1, 10, 6)
    result = Correlation(edges=edges, value=np.zeros(5), pairs=np.zeros(5, int))
    exact = Correlation(edges=edges, value=(result.centre / 5) ** -1.8, pairs=result.pairs)
    np.testing.assert_allclose(power_law(exact), (5, 1.8))
    with pytest.raises(ValueError, match="two positive bins"):
        power_law(result)
    with pytest.raises(ValueError, match="two positive bins"):
        power_law(exact, high=2.0)


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        ({}, ValueError, "must be periodic in every dimension"),
        ({"boxsize": [1, 1, 0]}, ValueError, "must be periodic in every dimension"),
        ({"boxsize": 0.3}, ValueError, "only up to half the box"),
        ({"boxsize": [1, 1]}, ValueError, "one length, or 3 lengths"),
        ({"boxsize": 1.0, "regions": np.zeros(50, int), "num_regions": 1}, ValueError, "give randoms"),
        ({"boxsize": 1.0, "random_weights": np.ones(50)}, ValueError, "were given without randoms"),
        ({"boxsize": 1.0, "weight": np.ones(50)}, TypeError, "weight is not an option"),
    ],
)
def test_wrong_arguments(options: dict[str, Any], error: Any, text: str) -> None:
    pos = uniform(50, 1)
    for function, more in ((xi, {}), (wp, {"pi_max": 0.1}), (multipoles, {})):
        with pytest.raises(error, match=text):
            function(pos, EDGES, **more, **options)


def test_wrong_bins_and_dimensions() -> None:
    pos = uniform(50, 1)
    with pytest.raises(ValueError, match="pi_max reaches"):
        wp(pos, EDGES, 0.6, 1.0)
    with pytest.raises(ValueError, match="must be positive"):
        wp(pos, EDGES, -0.1, 1.0)
    with pytest.raises(TypeError, match=r"num_pi is 2\.5; it must be an integer"):
        wp(pos, EDGES, 0.1, 1.0, num_pi=2.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="num_mu is 0"):
        multipoles(pos, EDGES, 1.0, num_mu=0)
    for ells in ((0, 1), (), 2, (-2,), ("0",)):
        with pytest.raises(ValueError, match="even numbers"):
            multipoles(pos, EDGES, 1.0, ells=ells)  # type: ignore[arg-type]
    for los in (3, -4, "z"):
        with pytest.raises(ValueError, match="axis of the line of sight"):
            wp(pos, EDGES, 0.1, 1.0, los=los)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="the particles have 2 dimensions, but multipoles needs 3"):
        multipoles(pos[:, :2], EDGES, 1.0)


@pytest.mark.parametrize("edges", [[0.2, 0.1], [5.0, 0.1], [0.1, 0.1], [-0.1, 0.1], [0.1, np.nan]])
def test_edges_that_do_not_ascend_raise(edges: list[float]) -> None:
    """This includes edges above half of the box, 0.5."""
    pos, box = uniform(50, 1), [1.0] * 3
    for call in (
        lambda: xi(pos, edges, 1.0),
        lambda: xi(pos, edges, randoms=pos),
        lambda: wp(pos, edges, 0.1, 1.0),
        lambda: wp(pos, edges, 0.1, randoms=pos),
        lambda: multipoles(pos, edges, 1.0),
        lambda: xi_from_counts([1], 50, edges, box),
        lambda: wp_from_counts([[1]], 50, edges, [0.0, 0.1], box),
    ):
        with pytest.raises(ValueError, match=r"^edges are \[.*\]; they must be ascending numbers of at least 0\.$"):
            call()
    with pytest.raises(ValueError, match=r"^along are \[.*\]; they must be ascending numbers of at least 0\.$"):
        wp_from_counts([[1]], 50, [0.1, 0.2], edges, box)
    for wrong in (0.1, [0.1], [[0.1, 0.2]]):
        with pytest.raises(ValueError, match=r"edges have shape .*; they must be two or more ascending numbers"):
            xi(pos, wrong, 1.0)


def spoilt(values: np.ndarray, row: int, value: Any) -> np.ndarray:
    changed = values.copy()
    changed[row] = value
    return changed


@pytest.mark.parametrize("function", [xi, wp, multipoles])
@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        (
            {"regions": np.full(200, 5)},
            "row 0 has a region that is not valid; regions must be at least 0 and below num_regions, 3",
        ),
        (
            {"random_regions": np.full(90, 5)},
            "row 0 has a region of randoms that is not valid; regions must be at least 0 and below num_regions, 3",
        ),
        ({"part": spoilt(uniform(200, 1), 7, np.nan)}, "row 7 of the positions is NaN or infinite"),
        ({"randoms": spoilt(uniform(90, 2), 8, np.inf)}, "row 8 of the positions of randoms is NaN or infinite"),
        ({"weights": spoilt(np.ones(200), 3, np.nan)}, "row 3 has a weight that is NaN"),
        ({"random_weights": spoilt(np.ones(90), 4, np.inf)}, "row 4 has a weight of randoms that is NaN"),
        ({"random_weights": np.ones(91)}, "randoms"),
        ({"weights": np.full(200, 3e37)}, "outside the range of float32"),
    ],
)
def test_wrong_numbers_raise_value_errors(function: Any, wrong: dict[str, Any], text: str) -> None:
    """The messages do not have the prefix and the text of JAX."""
    given = {"part": uniform(200, 1), "randoms": uniform(90, 2), "edges": EDGES}
    given |= {"regions": np.arange(200) % 3, "random_regions": np.arange(90) % 3, "num_regions": 3}
    given |= {"pi_max": 0.2} if function is wp else {}
    with pytest.raises(ValueError, match=text) as caught:
        function(**given | wrong)
    assert not isinstance(caught.value, jax.errors.JaxRuntimeError)
    assert "jztree: " not in str(caught.value)
    assert "queries" not in str(caught.value)
    assert oracles.one_sentence(caught)


def test_wrong_numbers_in_periodic_boxes_raise_value_errors() -> None:
    with pytest.raises(ValueError, match=r"^row 7 of the positions is NaN or infinite") as caught:
        xi(spoilt(uniform(200, 1), 7, np.nan), EDGES, 1.0)
    assert oracles.one_sentence(caught)


def test_regions_of_a_cube() -> None:
    places = [[-1.0, 0.9], [2.0, 0.1]]
    assert cube_regions(places, 0, 1, 3).tolist() == [2, 6]
    padded = ParticleData(pos=np.float32([*places, [np.nan, np.nan]]), num=2)
    assert cube_regions(padded, [0, 0], [1, 1], 3).tolist() == [2, 6, 0]
    far = np.array([[1e300, -1e300, 0.5], [-np.inf, np.inf, 0.0]])
    assert cube_regions(far, 0, 1, 2).tolist() == [5, 2]
    for per_side, error, text in (
        (0, ValueError, "at least 1"),
        (2.5, TypeError, "must be an integer"),
        (46341, ValueError, "use fewer"),
    ):
        with pytest.raises(error, match=text):
            cube_regions(places, 0, 1, per_side)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="upper must be above lower"):
        cube_regions(places, 0, [1, 0], 2)
    with pytest.raises(ValueError, match="row 1 of the positions is NaN"):
        cube_regions([[0.5, 0.5], [0.5, np.nan]], 0, 1, 2)


@pytest.mark.parametrize("kind", [np.int32, jnp.int32, int])
def test_numbers_of_particles_whose_square_has_more_than_32_bits(kind: Any) -> None:
    volume = 4 / 3 * np.pi * np.diff(np.float64(EDGES) ** 3)
    count = 100_000 * 99_999 * volume
    np.testing.assert_allclose(xi_from_counts(count, kind(100_000), EDGES, [1.0] * 3).value, 0, atol=1e-12)


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda pos: xi_from_counts(np.ones(len(EDGES) - 1), -1, EDGES, [1.0] * 3), ValueError, "data is -1"),
        (lambda pos: xi_from_counts(np.ones(len(EDGES) - 1), 2.5, EDGES, [1.0] * 3), TypeError, "an integer"),
        (lambda pos: wp(pos, EDGES, "a", 1.0), TypeError, "pi_max is 'a'; it must be a number"),
        (lambda pos: wp(pos, ["a", "b"], 0.1, 1.0), TypeError, r"edges is \['a', 'b'\]; it must be a real number or"),
        (lambda pos: xi(pos, ["a", "b"], 1.0), TypeError, r"edges is \['a', 'b'\]; it must be a real number or"),
        (lambda pos: xi(pos, EDGES, "wide"), TypeError, "boxsize is 'wide'; it must be a real number or"),
        (lambda pos: xi(pos, EDGES, -1), ValueError, "boxsize is -1; lengths must be finite and positive"),
        (lambda pos: xi(pos, EDGES, [1, np.nan, 1], randoms=pos), ValueError, "lengths must be finite and positive"),
        (lambda pos: xi_from_counts(np.ones(1), 2, ["a", "b"], [1.0] * 3), TypeError, "edges is"),
        (lambda pos: xi_from_counts(np.ones(1), 2, [0.1, 0.2], ["a"] * 3), TypeError, "boxsize is"),
        (lambda pos: xi(pos, EDGES, 1.0, regions=np.zeros(40, int)), ValueError, "give randoms and random_regions"),
        (
            lambda pos: xi(pos, EDGES, randoms=pos, regions=np.zeros(40, int), num_regions=2),
            ValueError,
            "needs regions, random_regions and num_regions; give all three, or none",
        ),
    ],
)
def test_invalid_arguments_raise_in_our_words(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call(uniform(40, 1))
