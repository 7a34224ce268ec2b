"""Correlation functions against Corrfunc, halotools and TreeCorr, if they are installed; see docs/correlation.md."""

from typing import Any

import numpy as np
import pytest

from jztree.radius import pair_counts
from jztree_utils.correlation import mean_separations, wp, xi, xi_from_counts

EDGES = np.geomspace(2.0, 20.0, 6)
BOX = 100.0


def rounded(pos: np.ndarray) -> np.ndarray:
    """Return float64 positions that float32 also represents."""
    return pos.astype(np.float32).astype(np.float64)


def sets() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return two clustered tracers and random particles in the box."""
    rng = np.random.default_rng(8)
    centres = rng.random((40, 3)) * BOX
    data, second = (np.repeat(centres, 10, axis=0) + rng.normal(0, 4, (400, 3)) for _ in range(2))
    return rounded(data % BOX), rounded(second[:300] % BOX), rounded(rng.random((1500, 3)) * BOX)


def of_pairs(n: int) -> float:
    """Return the factor between the numbers of pairs N**2 and N (N - 1)."""
    return n / (n - 1)


def test_box_equals_corrfunc() -> None:
    theory = pytest.importorskip("Corrfunc.theory")
    data = sets()[0]
    reference = theory.xi(BOX, 1, EDGES, *data.T, output_ravg=True)
    result = xi(data, EDGES, BOX, separations=True)
    np.testing.assert_array_equal(result.pairs, reference["npairs"])
    np.testing.assert_allclose(result.value, reference["xi"], rtol=1e-12)
    np.testing.assert_allclose(result.separation, reference["ravg"], rtol=1e-12)
    reference = theory.wp(BOX, 20.0, 1, EDGES, *data.T, output_rpavg=True)
    result = wp(data, EDGES, 20.0, BOX, num_pi=20, separations=True)
    np.testing.assert_allclose(result.value, reference["wp"], rtol=1e-12)
    np.testing.assert_allclose(result.separation, reference["rpavg"], rtol=1e-12)


def test_randoms_equal_corrfunc_apart_from_the_numbers_of_pairs() -> None:
    """Its converter divides pairs within a set by N**2."""
    theory, utils = pytest.importorskip("Corrfunc.theory"), pytest.importorskip("Corrfunc.utils")
    data, other, randoms = sets()

    def pairs(one: np.ndarray, two: np.ndarray | None = None) -> np.ndarray:
        second = {} if two is None else dict(zip(("X2", "Y2", "Z2"), two.T, strict=True))
        return theory.DD(int(two is None), 1, EDGES, *one.T, periodic=False, **second)["npairs"].astype(np.float64)

    n, m, p = len(data), len(randoms), len(other)
    dd, dr, rr = pairs(data), pairs(data, randoms), pairs(randoms)
    reference = utils.convert_3d_counts_to_cf(n, n, m, m, dd * of_pairs(n), dr, dr, rr * of_pairs(m))
    np.testing.assert_allclose(xi(data, EDGES, randoms=randoms).value, reference, rtol=1e-10)
    cross = (pairs(data, other), dr, pairs(other, randoms), rr * of_pairs(m))
    reference = utils.convert_3d_counts_to_cf(n, p, m, m, *cross)
    result = xi(data, EDGES, randoms=randoms, queries=other)
    np.testing.assert_allclose(result.value, reference, rtol=1e-10)
    same = xi_from_counts(cross[0], n, EDGES, queries=p, randoms=m, dr=dr, rd=cross[2], rr=rr.astype(np.int64))
    np.testing.assert_array_equal(same.value, result.value)


def test_randoms_equal_treecorr_apart_from_the_numbers_of_pairs() -> None:
    """It counts pairs within a set once, and divides them by N**2 / 2, or half the squared sum of the weights."""
    treecorr = pytest.importorskip("treecorr")
    data, _, randoms = sets()
    weight = np.random.default_rng(1).uniform(0.5, 2, len(data)).astype(np.float32)
    columns = [dict(zip("xyz", item.T, strict=True)) for item in (data, randoms)]
    catalogues = [treecorr.Catalog(**columns[0], w=weight), treecorr.Catalog(**columns[1])]
    bins = {"min_sep": EDGES[0], "max_sep": EDGES[-1], "nbins": len(EDGES) - 1, "bin_slop": 0, "brute": True}
    dd, dr, rr = (treecorr.NNCorrelation(**bins) for _ in range(3))
    dd.process(catalogues[0], num_threads=1)
    dr.process(*catalogues, num_threads=1)
    rr.process(catalogues[1], num_threads=1)
    np.testing.assert_allclose(dd.tot, weight.astype("f8").sum() ** 2 / 2)
    sums = weight.astype("f8").sum(), (weight.astype("f8") ** 2).sum()
    dd.tot *= 1 - sums[1] / sums[0] ** 2
    rr.tot /= of_pairs(len(randoms))
    result = xi(data, EDGES, randoms=randoms, weights=weight, separations=True)
    np.testing.assert_allclose(result.value, dd.calculateXi(rr=rr, dr=dr)[0], rtol=1e-9)
    np.testing.assert_array_equal(result.pairs, 2 * dd.npairs)
    np.testing.assert_allclose(result.separation, dd.meanr, rtol=1e-9)


def test_line_of_sight_equals_the_metric_of_treecorr() -> None:
    """``FisherRperp`` compares rp of ``los="midpoint"``, and ``Periodic`` the distance of the nearest images."""
    treecorr = pytest.importorskip("treecorr")
    data = rounded(sets()[0] + [20, 20, 100])
    bins = {"min_sep": EDGES[0], "max_sep": EDGES[-1], "nbins": len(EDGES) - 1, "bin_slop": 0, "brute": True}
    catalogue = treecorr.Catalog(**dict(zip("xyz", data.T, strict=True)))
    reference = treecorr.NNCorrelation(**bins, min_rpar=-15, max_rpar=15)
    reference.process(catalogue, metric="FisherRperp", num_threads=1)
    options: dict[str, Any] = {"mode": "rp_pi", "edges_b": [0.0, 15.0], "los": "midpoint"}
    np.testing.assert_array_equal(np.asarray(pair_counts(data, EDGES, **options).count)[:, 0], 2 * reference.npairs)
    np.testing.assert_allclose(mean_separations(data, EDGES, **options), reference.meanr, rtol=1e-9)
    reference = treecorr.NNCorrelation(**bins, xperiod=BOX, yperiod=BOX, zperiod=BOX)
    reference.process(catalogue, metric="Periodic", num_threads=1)
    np.testing.assert_array_equal(np.asarray(pair_counts(data, EDGES, boxsize=BOX).count), 2 * reference.npairs)


def test_box_equals_halotools_apart_from_the_number_of_pairs() -> None:
    """It divides pairs within a set by N**2."""
    mock_observables = pytest.importorskip("halotools.mock_observables")
    data, second, randoms = sets()
    n, m = len(data), len(randoms)
    reference = mock_observables.tpcf(data, EDGES, period=BOX)
    np.testing.assert_allclose((1 + xi(data, EDGES, BOX).value) / of_pairs(n), 1 + reference, rtol=1e-9)
    crossed = mock_observables.tpcf(data, EDGES, sample2=second, period=BOX, do_auto=False)
    np.testing.assert_allclose(xi(data, EDGES, BOX, queries=second).value, crossed, rtol=1e-9)
    reference = mock_observables.tpcf(data, EDGES, randoms=randoms, estimator="Natural")
    result = xi(data, EDGES, randoms=randoms, estimator="natural")
    np.testing.assert_allclose((1 + result.value) * of_pairs(m) / of_pairs(n), 1 + reference, rtol=1e-9)
