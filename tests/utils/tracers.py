"""Two tracers with randoms, weights and regions, and their pair counts. Not a test."""

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np

from jztree.radius import PairCounts, pair_counts
from jztree_utils.correlation import (
    Correlation,
    Totals,
    multipoles,
    multipoles_from_counts,
    totals,
    wp,
    wp_from_counts,
    xi,
    xi_from_counts,
)

EDGES, ALONG, COSINES = np.array([0.05, 0.15, 0.3]), np.linspace(0, 0.3, 4), np.linspace(0, 1, 4)
BINS: dict[str, dict[str, Any]] = {
    "xi": {},
    "wp": {"mode": "rp_pi", "edges_b": ALONG},
    "multipoles": {"mode": "s_mu", "edges_b": COSINES},
}
OF_PARTICLES = {
    "xi": xi,
    "wp": lambda part, edges, **options: wp(part, edges, 0.3, num_pi=3, **options),
    "multipoles": lambda part, edges, **options: multipoles(part, edges, num_mu=3, **options),
}
FROM_COUNTS = {
    "xi": xi_from_counts,
    "wp": lambda dd, data, edges, *box, **others: wp_from_counts(dd, data, edges, ALONG, *box, **others),
    "multipoles": lambda dd, data, edges, *box, **others: multipoles_from_counts(
        dd, data, edges, COSINES, *box, **others
    ),
}
# The arguments of each set: its particles, weights and regions; and the name of its totals.
NAMES = {
    "data": ("part", "weights", "regions"),
    "queries": ("queries", "query_weights", "query_regions"),
    "randoms": ("randoms", "random_weights", "random_regions"),
    "query_randoms": ("query_randoms", "query_random_weights", "query_random_regions"),
}
REGIONS = 3


class Set:
    """Clustered or random particles of the unit cube with weights and regions."""

    def __init__(self, clustered: int, uniform: int, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.pos = np.concatenate([rng.random((clustered, 3)) / 4, rng.random((uniform, 3))]).astype(np.float32)
        self.weight = rng.uniform(0.5, 2, len(self.pos)).astype(np.float32)
        self.region = np.minimum((self.pos[:, 0] * REGIONS).astype(int), REGIONS - 1)

    def without(self, region: int) -> "Set":
        kept = object.__new__(Set)
        rows = self.region != region
        kept.pos, kept.weight, kept.region = self.pos[rows], self.weight[rows], self.region[rows]
        return kept


SETS = {"data": Set(80, 200, 1), "queries": Set(60, 190, 2), "randoms": Set(0, 500, 3), "query_randoms": Set(0, 450, 4)}
TRACERS = {
    "auto": ("data", "randoms"),
    "cross": ("data", "queries", "randoms", "query_randoms"),
    "cross, same randoms": ("data", "queries", "randoms"),
}


def options_of(names: tuple[str, ...], regions: bool = True, weighted: bool = True) -> dict[str, Any]:
    """Return the arguments of the functions of particles."""
    result: dict[str, Any] = {"num_regions": REGIONS} if regions else {}
    for name in names:
        part, weight, region = NAMES[name]
        result[part] = SETS[name].pos
        result |= {weight: SETS[name].weight} if weighted else {}
        result |= {region: SETS[name].region} if regions else {}
    return result


def given_counts(names: tuple[str, ...], count: Callable[[str, str | None], PairCounts]) -> dict[str, PairCounts]:
    """Return the counts of a function from counts; ``count`` takes the names of one set or two."""
    others = "query_randoms" if "query_randoms" in names else "randoms"
    if "queries" not in names:
        return {"dd": count("data", None), "dr": count("data", "randoms"), "rr": count("randoms", None)}
    return {
        "dd": count("data", "queries"),
        "dr": count("data", others),
        "rd": count("queries", "randoms"),
        "rr": count("randoms", "query_randoms" if "query_randoms" in names else None),
    }


def totals_of(names: tuple[str, ...], regions: bool = True, weighted: bool = True) -> dict[str, Totals]:
    more = {"num_regions": REGIONS} if regions else {}
    return {
        name: totals(
            SETS[name].pos, SETS[name].weight if weighted else None, SETS[name].region if regions else None, **more
        )
        for name in names
    }


def counted(function: str, regions: bool = True, weighted: bool = True) -> Callable[[str, str | None], PairCounts]:
    def count(one: str, reference: str | None) -> PairCounts:
        options = dict(BINS[function]) | ({"num_regions": REGIONS} if regions else {})
        for name, prefix in ((one, ""), (reference, "query_")):
            if name is not None:
                options |= {f"{prefix}weights": SETS[name].weight} if weighted else {}
                options |= {f"{prefix}regions": SETS[name].region} if regions else {}
        second = {} if reference is None else {"queries": SETS[reference].pos}
        return pair_counts(SETS[one].pos, EDGES, **second, **options)

    return count


def warned(call: Callable[[], Correlation], *words: str) -> Correlation:
    """Return the result of a call that warns once, with the test as origin, and with every text."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        result = call()
    assert [item.category for item in caught] == [RuntimeWarning]
    assert caught[0].filename in (call.__code__.co_filename, __file__)
    for item in words:
        assert item in str(caught[0].message)
    return result
