"""Arguments and progress reports of correlation functions."""

import functools
import itertools
import re
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest
from tracers import ALONG, COSINES, EDGES, NAMES, REGIONS, SETS, TRACERS, counted, options_of

from jztree.kernels import particles_done
from jztree.radius import PairCounts, pair_counts
from jztree_utils.correlation import multipoles_from_counts, totals, wp, wp_from_counts, xi, xi_from_counts
from jztree_utils.sky import angular_pair_counts

PAIRS = np.ones(2, int)


BOX = [1.0] * 3
DATA = SETS["data"]
INVALID_TYPES: list[tuple[Callable[[], Any], str]] = [
    (lambda: xi_from_counts(PAIRS, 5, EDGES, BOX, more=1), "more is not an argument; use dd, dr"),
    (lambda: xi_from_counts("a", 5, EDGES, BOX), "dd is 'a'; it must be a PairCounts or an"),
    (lambda: xi_from_counts(PAIRS, "a", EDGES, BOX), "data is 'a'; it must be the number of"),
    (lambda: totals(DATA.pos, None, np.zeros(280), 2), "regions have the dtype float64"),
    (
        lambda: wp(DATA.pos, EDGES, 1.0, pi_max=0.1),
        "wp: multiple values for argument 'pi_max'. Its arguments are part, edges, pi_max, boxsize, ",
    ),
    (lambda: wp(DATA.pos, EDGES, boxsize=1.0), "wp: missing a required argument: 'pi_max'. Its arguments are"),
    (lambda: xi(DATA.pos, EDGES, 1.0, progress=3), "progress is 3; it must be True or False"),
]
INVALID_VALUES: list[tuple[Callable[[], Any], str]] = [
    (lambda: xi_from_counts(PAIRS, 5, EDGES), "without rr, the box must be periodic"),
    (lambda: xi_from_counts(PAIRS, 5, EDGES, BOX, rr=PAIRS, randoms=5), "leave out boxsize"),
    (lambda: xi_from_counts(PAIRS, 5, EDGES, rr=PAIRS), "rr needs randoms; give randoms also"),
    (lambda: xi_from_counts(PAIRS, 5, EDGES, BOX, dr=PAIRS), "dr needs rr"),
    (
        lambda: xi_from_counts(PAIRS, 5, EDGES, rr=PAIRS, dr=PAIRS, randoms=5, queries=4),
        "dr needs rd; give rd also, or leave out dr",
    ),
    (lambda: xi_from_counts(PAIRS, 5, EDGES, rr=PAIRS, dr=PAIRS, rd=PAIRS, randoms=5), "rd needs queries"),
    (lambda: xi_from_counts(PAIRS, 5, EDGES, rr=PAIRS, randoms=5, query_randoms=5), "query_randoms needs queries"),
    (lambda: xi_from_counts(np.ones(3), 5, EDGES, BOX), r"dd has counts of shape \(3,\), but the edges give \(2,\)"),
    (lambda: xi_from_counts(PAIRS, 5, EDGES, rr=np.ones(4), randoms=5), r"rr has counts of shape \(4,\)"),
    (
        lambda: xi_from_counts(PAIRS, totals(DATA.pos, DATA.weight), EDGES, BOX),
        "dd has no weights, unlike the totals of data; give the same weights to pair_counts and to totals",
    ),
    (lambda: xi_from_counts(counted("xi")("data", None), 280, EDGES, BOX), "dd has weights, unlike the totals of data"),
    (
        lambda: xi_from_counts(counted("xi", weighted=False)("data", None), 280, EDGES, BOX),
        "dd has other regions than the totals of data; give the same regions and num_regions",
    ),
    (
        lambda: multipoles_from_counts(np.ones((2, 2)), 5, EDGES, [0.5, 0.7, 1.0], BOX),
        r"cosines are from 0\.5 to 1; multipoles need all, from 0 to 1",
    ),
    (lambda: multipoles_from_counts(np.ones((2, 3)), 5, EDGES, COSINES, BOX, ells=(1,)), "even numbers"),
    (lambda: wp_from_counts(np.ones((2, 3)), 5, EDGES, ALONG, [1.0] * 2), r"must be \(3,\), one positive"),
    (lambda: wp_from_counts(np.ones((2, 3)), 5, EDGES, ALONG, BOX, los=True), "los is True; it must be the axis"),
    (lambda: wp_from_counts(np.ones((2, 3)), 5, EDGES, ALONG, BOX, los=1.0), r"los is 1\.0; it must be the axis"),
    (lambda: xi_from_counts([1, np.nan], 5, EDGES, BOX), "dd has a number of pairs that is neg"),
    (lambda: xi_from_counts([1, -1], 5, EDGES, BOX), "dd has a number of pairs that is negative"),
    (lambda: xi_from_counts([1, 2], 5, EDGES, [np.inf] * 3), "one positive and finite length"),
    (
        lambda: xi_from_counts(
            counted("xi", weighted=False)("data", None),
            totals(DATA.pos, None, DATA.region, REGIONS),
            EDGES,
            rr=[1, 2],
            randoms=100,
        ),
        "data and randoms have different numbers of regions, or some have none",
    ),
    (lambda: totals(DATA.pos, np.full(280, np.nan)), "row 0 has a weight that is NaN"),
    (lambda: totals(DATA.pos, regions=DATA.region), "give both, or neither"),
    (lambda: totals(DATA.pos, np.ones(3)), r"weights has shape \(3,\); it must be \(280,\)"),
    (lambda: totals(DATA.pos, None, np.full(280, 2), 2), "row 0 has the region 2"),
    (lambda: xi(DATA.pos, EDGES, 1.0, estimator="best"), "estimator is 'best'; it must be one"),
    (lambda: xi(DATA.pos, EDGES, 1.0, query_weights=1), "were given without queries; give queries"),
    (
        lambda: xi(DATA.pos, EDGES, None, SETS["randoms"].pos, query_randoms=SETS["query_randoms"].pos),
        "query_randoms needs queries",
    ),
    (
        lambda: xi(edges=EDGES, **options_of(TRACERS["cross"]) | {"query_regions": None}),
        "a jackknife needs regions, query_regions, random_regions, query_random_regions and num_regions; give all",
    ),
]


@pytest.mark.parametrize(("call", "text"), INVALID_TYPES)
def test_invalid_types_raise(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(TypeError, match=text):
        call()


@pytest.mark.parametrize(("call", "text"), INVALID_VALUES)
def test_invalid_values_raise(call: Callable[[], Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        call()


FLAT = DATA.pos[:, :2]


def counts_of(part: Any = DATA.pos, edges: Any = EDGES, **options: Any) -> PairCounts:
    return pair_counts(part, edges, **{"boxsize": 1.0} | options)


def rp_pi(part: Any = DATA.pos, along: Any = ALONG, **options: Any) -> PairCounts:
    return counts_of(part, mode="rp_pi", edges_b=along, **options)


def s_mu(**options: Any) -> PairCounts:
    return counts_of(mode="s_mu", edges_b=COSINES, **options)


@functools.cache
def of_randoms() -> PairCounts:
    return counts_of(SETS["randoms"].pos, boxsize=None)


OTHERS = {"queries": SETS["queries"].pos, "boxsize": None}
SKY = (np.array([10.0, 20, 30]), np.array([0.0, 5, 9]))
UNFIT: dict[str, tuple[Callable[[], Any], str]] = {
    "mode": (lambda: xi_from_counts(rp_pi(), 280, EDGES, BOX), "dd was counted with mode='rp_pi', .* wp_from_counts"),
    "mode of wp": (lambda: wp_from_counts(s_mu(), 280, EDGES, ALONG, BOX), "needs mode='rp_pi'; use multipoles_from"),
    "mode of multipoles": (lambda: multipoles_from_counts(counts_of(), 280, EDGES, COSINES, BOX), "use xi_from_counts"),
    "mode of randoms": (
        lambda: xi_from_counts(angular_pair_counts(*SKY, EDGES), 3, EDGES, rr=of_randoms(), randoms=500),
        "the counts have different modes, r and theta",
    ),
    "start along": (
        lambda: wp_from_counts(rp_pi(along=[0.1, 0.2]), 280, EDGES, [0.1, 0.2], BOX),
        "along begins at 0.1",
    ),
    "start along of numbers": (lambda: wp_from_counts([[1], [2]], 280, EDGES, [0.1, 0.2], BOX), "along begins at 0.1"),
    "edges": (lambda: xi_from_counts(counts_of(), 280, [0.05, 0.15, 0.31], BOX), r"\[0.05 0.15 0.3 \], but edges are"),
    "edges along": (
        lambda: wp_from_counts(rp_pi(), 280, EDGES, [0, 0.1, 0.2, 0.4], BOX),
        r"dd was counted with the edges \[0. 0.1 0.2 0.3\], but along are \[0. 0.1 0.2 0.4\]",
    ),
    "cosines": (lambda: multipoles_from_counts(s_mu(), 280, EDGES, [0, 0.3, 0.6, 1], BOX), "but cosines are"),
    "edges of randoms": (
        lambda: xi_from_counts(
            counts_of(boxsize=None), 280, EDGES, rr=counts_of(SETS["randoms"].pos, EDGES + 1, boxsize=None), randoms=500
        ),
        "rr was counted with the edges",
    ),
    "dimensions of the box": (
        lambda: xi_from_counts(counts_of(), 280, EDGES, [1.0] * 2),
        "different numbers of dim.* 3 and 2",
    ),
    "dimensions of the totals": (
        lambda: xi_from_counts([1, 2], totals(FLAT), EDGES, BOX),
        "data and boxsize have diff",
    ),
    "wp in 2D": (
        lambda: wp_from_counts(rp_pi(FLAT, boxsize=None), 280, EDGES, ALONG, rr=np.ones((2, 3)), randoms=5),
        "dd and the function have different numbers of dimensions, 2 and 3",
    ),
    "box": (lambda: xi_from_counts(counts_of(), 280, EDGES, [2.0] * 3), "dd and boxsize have different boxes"),
    "open box": (lambda: xi_from_counts(counts_of(boxsize=None), 280, EDGES, BOX), r"boxes, \[0. 0. 0.\] and"),
    "box of randoms": (
        lambda: xi_from_counts(counts_of(), 280, EDGES, rr=of_randoms(), randoms=500),
        "dd and rr have different boxes",
    ),
    "line of sight": (
        lambda: wp_from_counts(rp_pi(los=0), 280, EDGES, ALONG, BOX, los=-1),
        "dd and los have different lines of sight, 0 and 2",
    ),
    "cross count without queries": (
        lambda: xi_from_counts(counts_of(**OTHERS | {"boxsize": 1.0}), 280, EDGES, BOX),
        "dd has pairs of two sets, but the totals queries of the second set are missing",
    ),
    "count of one tracer for two": (
        lambda: xi_from_counts(counts_of(), 280, EDGES, BOX, queries=250),
        "dd has pairs within one set, but there are totals of data and queries",
    ),
    "dr within a set": (
        lambda: xi_from_counts(counts_of(boxsize=None), 280, EDGES, dr=of_randoms(), rr=of_randoms(), randoms=500),
        "dr has pairs within one set",
    ),
    "rr of two sets": (
        lambda: xi_from_counts(counts_of(boxsize=None), 280, EDGES, rr=counts_of(**OTHERS), randoms=500),
        "rr has pairs of two sets, but the totals query_randoms",
    ),
    "angles in a box": (lambda: xi_from_counts(angular_pair_counts(*SKY, EDGES), 3, EDGES, BOX), "angles have no per"),
    "chords for angles": (
        lambda: xi_from_counts(angular_pair_counts(*SKY, EDGES), 3, np.radians(EDGES), rr=[1, 2], randoms=5),
        "dd was counted with the edges",
    ),
}


@pytest.mark.parametrize("fault", UNFIT)
def test_counts_that_do_not_fit_raise(fault: str) -> None:
    call, text = UNFIT[fault]
    with pytest.raises(ValueError, match=text):
        call()


def test_line_of_sight_of_the_counts_is_the_default() -> None:
    """The length of the box along it limits ``along``."""
    box, along = [0.7, 1.0, 1.0], [0.0, 0.2, 0.4]
    counts = rp_pi(along=along, los=1, boxsize=box)
    assert np.isfinite(wp_from_counts(counts, 280, EDGES, along, box).value).all()
    with pytest.raises(ValueError, match=r"along reaches 0\.4, .* 0\.35"):
        wp_from_counts(rp_pi(along=along, los=0, boxsize=box), 280, EDGES, along, box)


@pytest.mark.parametrize(("name", "columns"), NAMES.items())
@pytest.mark.parametrize("estimator", ["landy_szalay", "natural"])
def test_errors_of_pair_counts_name_the_argument(estimator: str, name: str, columns: tuple[str, str, str]) -> None:
    options = options_of(TRACERS["cross"])
    ends = {"data": "", "queries": " of queries", "randoms": " of randoms", "query_randoms": " of query_randoms"}
    for column, word in zip(columns, ("positions", "weight", "region"), strict=True):
        wrong = options[column].copy()
        wrong[3] = -1 if word == "region" else np.nan
        pattern = f"^row 3 (of the|has a) {re.escape(word + ends[name])} (is|that)"
        with pytest.raises(ValueError, match=pattern):
            xi(edges=EDGES, estimator=estimator, **options | {column: wrong})


def test_progress_reports_each_count(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("_SILENT_SECONDS", "_LOG_SECONDS"):
        monkeypatch.setattr(f"jztree_utils.progress.{name}", 0)
    monkeypatch.setattr("jztree_utils.progress._TICK_SECONDS", 1000)
    options = options_of(TRACERS["auto"], regions=False)
    xi(edges=EDGES, **options)
    assert capsys.readouterr().err == ""
    xi(edges=EDGES, progress=True, separations=True, **options)
    lines = capsys.readouterr().err.splitlines()
    work = list(itertools.accumulate((280**2, 280 * 500, 500**2)))
    for line, done in zip(lines[-4:], [*work, work[-1]], strict=True):
        assert line.startswith(f"count pairs: {done / work[-1]:.0%}, ")
        assert f" of {work[-1] / 1000:.0f}k possible pairs in " in line


def test_kernel_stores_the_number_of_finished_particles() -> None:
    if jax.default_backend() != "cpu":
        pytest.skip("kernels of the GPU report no progress")
    rng = np.random.default_rng(3)
    pos, second = rng.random((280, 3)), rng.random((90, 3))
    before = particles_done()
    np.asarray(pair_counts(pos, EDGES).count)
    assert particles_done() - before == 280
    np.asarray(pair_counts(second, EDGES, queries=pos, separations=True).separation)
    assert particles_done() - before == 280 + 2 * 90


def test_results_are_the_same_with_progress_reports() -> None:
    options = options_of(TRACERS["auto"], regions=True) | {"edges": EDGES, "separations": True}
    plain, reported = xi(**options), xi(progress=True, **options)
    for name in ("value", "pairs", "samples", "separation"):
        np.testing.assert_array_equal(getattr(plain, name), getattr(reported, name))
