"""Estimators from pair counts against all pairs in NumPy: one and two tracers, weights, regions, several devices."""

from typing import Any

import numpy as np
import pytest
from devices import deal, mesh_of, uneven
from numpy.polynomial import Legendre
from processes import run_processes
from tracers import (
    ALONG,
    BINS,
    COSINES,
    EDGES,
    FROM_COUNTS,
    OF_PARTICLES,
    REGIONS,
    SETS,
    TRACERS,
    Set,
    counted,
    given_counts,
    options_of,
    totals_of,
    warned,
)

from jztree.data import ParticleData
from jztree.radius import PairCounts, pair_counts
from jztree_utils.correlation import multipoles_from_counts, totals, wp_from_counts, xi

TRACER = pytest.mark.parametrize("tracer", TRACERS)
FUNCTION = pytest.mark.parametrize("function", FROM_COUNTS)


def fractions(a: Set, b: Set, function: str, weighted: bool) -> np.ndarray:
    """Return the weight of the pairs in each cell, as a fraction of the total over pairs of different particles."""
    separation = a.pos[:, None].astype(np.float64) - b.pos
    weight = np.outer(*(part.weight.astype(np.float64) if weighted else np.ones(len(part.pos)) for part in (a, b)))
    pairs = ~np.eye(len(a.pos), dtype=bool) if a is b else np.ones(weight.shape, bool)
    distance, along = np.sqrt((separation**2).sum(axis=-1)), np.abs(separation[..., 2])
    first, second, ends = {
        "xi": (distance, along, np.array([-1.0, 2.0])),
        "wp": (np.hypot(separation[..., 0], separation[..., 1]), along, ALONG),
        "multipoles": (distance, along / np.where(distance > 0, distance, 1), COSINES),
    }[function]
    return np.histogram2d(first[pairs], second[pairs], [EDGES, ends], weights=weight[pairs])[0] / weight[pairs].sum()


def expected(sets: dict[str, Set], function: str, weighted: bool = True, natural: bool = False) -> np.ndarray:
    """Return the function by its definition; no cell may be without random pairs."""
    data, randoms = sets["data"], sets["randoms"]
    second, others = sets.get("queries", data), sets.get("query_randoms", randoms)
    dd, dr, rd, rr = (
        fractions(a, b, function, weighted)
        for a, b in ((data, second), (data, others), (randoms, second), (randoms, others))
    )
    cells = dd / rr - 1 if natural else (dd - dr - rd + rr) / rr
    if function == "xi":
        return cells[:, 0]
    if function == "wp":
        return cells @ (2 * np.diff(ALONG))
    integrals = [(2 * ell + 1) * Legendre.basis(ell).integ() for ell in (0, 2, 4)]
    return np.stack([cells @ np.diff(integral(COSINES)) for integral in integrals])


@FUNCTION
@TRACER
def test_weighted_counts_with_regions_give_the_definition(tracer: str, function: str) -> None:
    """The functions of particles give the same numbers. Samples equal the definition without the region."""
    names = TRACERS[tracer]
    result = FROM_COUNTS[function](**given_counts(names, counted(function)), **totals_of(names), edges=EDGES)
    sets = {name: SETS[name] for name in names}
    np.testing.assert_allclose(result.value, expected(sets, function), rtol=1e-6, atol=1e-6)
    assert (result.statistic, result.ells, result.pi_max) == (
        function,
        (0, 2, 4) if function == "multipoles" else None,
        ALONG[-1] if function == "wp" else None,
    )
    assert result.samples is not None
    for k in range(REGIONS):
        kept = expected({name: column.without(k) for name, column in sets.items()}, function)
        np.testing.assert_allclose(result.samples[k], kept, rtol=1e-6, atol=1e-6)
    same = OF_PARTICLES[function](edges=EDGES, **options_of(names))
    for name in ("value", "samples", "pairs", "occupied", "error"):
        np.testing.assert_array_equal(getattr(same, name), getattr(result, name), err_msg=name)


@FUNCTION
@TRACER
def test_natural_estimator_without_weights(tracer: str, function: str) -> None:
    names = TRACERS[tracer]
    options = options_of(names, regions=False, weighted=False)
    result = OF_PARTICLES[function](edges=EDGES, estimator="natural", **options)
    sets = {name: SETS[name] for name in names}
    np.testing.assert_allclose(result.value, expected(sets, function, weighted=False, natural=True), rtol=1e-9)
    counts = given_counts(names, counted(function, regions=False, weighted=False))
    sums = {name: len(SETS[name].pos) for name in names}
    same = FROM_COUNTS[function](dd=counts["dd"], rr=counts["rr"], **sums, edges=EDGES)
    np.testing.assert_array_equal(same.value, result.value)
    assert result.covariance is None


@FUNCTION
def test_cross_correlation_in_a_periodic_box(function: str) -> None:
    a, b = SETS["data"], SETS["queries"]
    separation = a.pos[:, None].astype(np.float64) - b.pos
    separation -= np.rint(separation)
    distance = np.sqrt((separation**2).sum(axis=-1))
    first = distance if function != "wp" else np.hypot(separation[..., 0], separation[..., 1])
    inside = np.abs(separation[..., 2]) <= (ALONG[-1] if function == "wp" else 1)
    weight = np.outer(a.weight.astype(np.float64), b.weight)
    dd = np.histogram(first[inside], EDGES, weights=weight[inside])[0] / weight.sum()
    height = 2 * ALONG[-1] if function == "wp" else 1.0
    volume = np.pi * np.diff(EDGES**2) * height if function == "wp" else 4 / 3 * np.pi * np.diff(EDGES**3)
    options = {"queries": b.pos, "weights": a.weight, "query_weights": b.weight, "boxsize": 1.0}
    result = OF_PARTICLES[function](part=a.pos, edges=EDGES, **options)
    value = result.value[0] if function == "multipoles" else result.value
    np.testing.assert_allclose(value, (dd / volume - 1) * height, rtol=1e-6)
    cross = {"queries": b.pos, "weights": a.weight, "query_weights": b.weight, "boxsize": 1.0}
    counts = pair_counts(a.pos, EDGES, **cross, **BINS[function])
    same = FROM_COUNTS[function](counts, totals(a.pos, a.weight), EDGES, [1.0] * 3, queries=totals(b.pos, b.weight))
    np.testing.assert_array_equal(same.value, result.value)


def spread(one: Set, ndev: int) -> ParticleData:
    """Return the set over devices, with weights as masses and regions as ids; all sets have the same shapes."""
    stacked = deal(one.pos, uneven(len(one.pos), ndev), 500)
    rows = np.asarray(stacked.id)
    weight, region = (np.where(rows >= 0, column[rows], 99) for column in (one.weight, one.region))
    return ParticleData(pos=stacked.pos, mass=weight, id=region.astype(np.int32), num=stacked.num)


@pytest.mark.parametrize("ndev", [1, pytest.param(2, marks=pytest.mark.slow), 4])
def test_counts_of_devices_give_the_same_estimates(ndev: int) -> None:
    count = pair_counts.smap(mesh_of(ndev), jit=True)
    held = {name: spread(value, ndev) for name, value in SETS.items()}
    sums = {name: totals(value, value.mass, value.id, REGIONS) for name, value in held.items()}
    for value, reference in zip(sums.values(), totals_of(tuple(SETS)).values(), strict=True):
        np.testing.assert_array_equal(value.num, reference.num)
        np.testing.assert_allclose([value.weight, value.square], [reference.weight, reference.square], rtol=1e-13)

    def of_devices(value: str, reference: str | None) -> PairCounts:
        a = held[value]
        b = None if reference is None else held[reference]
        second = {} if b is None else {"queries": b, "query_weights": b.mass, "query_regions": b.id}
        regions = {"regions": a.id, "num_regions": REGIONS}
        return count(a, EDGES, weights=a.mass, separations=True, **regions, **BINS["multipoles"], **second)

    for tracer in ("auto", "cross"):
        selected = {name: sums[name] for name in TRACERS[tracer]}
        counts = given_counts(TRACERS[tracer], of_devices)
        result = multipoles_from_counts(**counts, **selected, edges=EDGES, cosines=COSINES)
        same = OF_PARTICLES["multipoles"](edges=EDGES, separations=True, **options_of(TRACERS[tracer]))
        for name in ("value", "samples", "error", "separation"):
            np.testing.assert_allclose(getattr(result, name), getattr(same, name), rtol=1e-9, err_msg=name)


@pytest.mark.long
def test_two_processes_have_the_totals_and_mean_separations_of_one_device() -> None:
    """Only the first process has particles of region 0."""
    script = """
import jztree as jz
jz.launch.initialize()
import jax
import numpy as np
from jztree_utils.correlation import mean_separations, totals, xi_from_counts
mesh = jax.make_mesh((4,), ("gpus",), axis_types=(jax.sharding.AxisType.Auto,))
me, rng = jax.process_index(), np.random.default_rng(1)
weight, region = rng.random(90).astype(np.float32), np.arange(90) // 50
rows = slice(0, 61) if me == 0 else slice(61, 90)
pos, ids, edges = rng.random((90, 3)).astype(np.float32), region.astype(np.int32), [0.0, 0.1, 0.3]
part = jz.data.from_local(jz.data.ParticleData(pos=pos[rows], mass=weight[rows], id=ids[rows]), mesh)
found, want = totals(part, part.mass, part.id, 2), totals(pos, weight, region, 2)
assert found.num.tolist() == [50, 40]
for name in ("weight", "square", "absolute"):
    np.testing.assert_allclose(getattr(found, name), getattr(want, name), rtol=1e-14)
dd = jz.radius.pair_counts.smap(mesh, jit=True)(part, edges, boxsize=1.0, weights=part.mass, separations=True)
found = xi_from_counts(dd, totals(part, part.mass), edges, [1.0] * 3)
np.testing.assert_allclose(found.separation, mean_separations(pos, edges, 1.0, weights=weight), rtol=1e-12)
print("equal")
"""
    for returncode, output in run_processes(script, timeout=90):
        assert returncode == 0, output
        assert output.endswith("equal\n")


# Gaps


ALL_NAN: dict[str, tuple[dict[str, Any], str]] = {
    "no second data": (
        {"queries": SETS["queries"].pos[:0]},
        "the second data hold 0 particles, but a pair needs one of",
    ),
    "weights that cancel": (
        {"query_weights": np.resize(np.float32([1, -1]), 250)},
        "the weights of the second data sum to 0",
    ),
    "random weights that cancel": (
        {"query_random_weights": np.resize(np.float32([1, -1]), 450)},
        "the weights of the second randoms sum to 0",
    ),
    "disjoint randoms": ({"query_randoms": SETS["query_randoms"].pos + 7}, "no bin has a pair of data and randoms"),
}


@FUNCTION
@pytest.mark.parametrize("why", ALL_NAN)
def test_undefined_cross_correlations_give_nan_and_one_warning(why: str, function: str) -> None:
    wrong, reason = ALL_NAN[why]
    options = options_of(TRACERS["cross"], regions=False, weighted=False) | wrong
    if why == "disjoint randoms":
        # Some random pairs of both tracers exist, but none of the data and the second randoms.
        options["randoms"] = np.concatenate([options["randoms"], options["query_randoms"]])
    result = warned(
        lambda: OF_PARTICLES[function](edges=EDGES, **options), "is NaN in bins 0 to 1 (0.05 to 0.3)", reason
    )
    assert np.isnan(result.value).all()


def test_one_particle_of_each_tracer_is_enough() -> None:
    result = xi(np.array([[0.5, 0.5, 0.5]]), [0.1, 0.3], 1.0, queries=np.array([[0.5, 0.5, 0.7]]))
    np.testing.assert_allclose(result.value, 1 / (4 / 3 * np.pi * (0.3**3 - 0.1**3)) - 1)
    assert result.pairs.tolist() == [1]


def test_joined_cells_and_empty_regions_of_counts_are_named() -> None:
    count, sets = counted("wp"), totals_of(TRACERS["auto"])
    pairs = given_counts(TRACERS["auto"], count)
    for pair in pairs.values():
        numbers = np.asarray(pair.count).copy()
        numbers[0, 1] = 0
        pair.count = numbers
        for name in ("weight", "region_count", "region_weight"):
            column = np.asarray(getattr(pair, name)).copy()
            column[..., 0, 1] = 0
            setattr(pair, name, column)
    result = warned(
        lambda: wp_from_counts(**pairs, **sets, edges=EDGES, along=ALONG),
        "In bin 0 (0.05 to 0.15), cells without pairs of randoms are joined to the next cells that have some; give "
        "more randoms, or fewer edges along.",
    )
    assert np.isfinite(result.value).all()


def test_totals_by_region() -> None:
    single, result = SETS["data"], totals_of(("data",))["data"]
    for k in range(REGIONS):
        weight = single.weight[single.region == k].astype(np.float64)
        assert result.num[k] == len(weight)
        np.testing.assert_allclose(
            [result.weight[k], result.square[k], result.absolute[k]], [weight.sum(), (weight**2).sum(), weight.sum()]
        )
    every = totals(
        ParticleData(pos=np.concatenate([single.pos, single.pos]), num=280), np.r_[single.weight, single.weight]
    )
    np.testing.assert_allclose(every.weight, result.weight.sum())
    assert every.num.tolist() == [280]
