"""Tools for surveys accept any form of numbers, and reject values whose meaning a conversion would lose."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from jztree_utils import sky
from jztree_utils.cells import pairs_in_cell
from jztree_utils.correlation import totals, xi_from_counts
from jztree_utils.kdtree import KDTree
from jztree_utils.knn_statistics import knn_cdf, random_queries

# Sixteenths, which are exact in float16.
RANDOM = np.random.default_rng(3)
RA, DEC = RANDOM.integers(0, 1024, 40) / 16, RANDOM.integers(-512, 512, 40) / 16
POS = np.ascontiguousarray(RANDOM.integers(0, 64, (40, 2)) / 16)
WEIGHT, REGION = RANDOM.integers(0, 9, 40) / 4, RANDOM.integers(0, 3, 40)
EDGES = [4.0, 20.0, 40.0]

# Each call takes rows and returns arrays.
CALLS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {
    "match": (lambda ra, dec, radius: sky.match(ra, dec, k=3, radius=radius).index, (RA, DEC, WEIGHT)),
    "search_around": (lambda ra, dec, radius: np.stack(sky.search_around(ra, dec, ra, dec, radius)), (RA, DEC, WEIGHT)),
    "angular_groups": (sky.angular_groups, (RA, DEC, WEIGHT)),
    "angular_pair_counts": (
        lambda ra, dec, weight, region: np.asarray(
            sky.angular_pair_counts(ra, dec, EDGES, weights=weight, regions=region, num_regions=3).region_weight
        ),
        (RA, DEC, WEIGHT, REGION),
    ),
    "w_theta": (
        lambda ra, dec, weight, region: (
            sky.w_theta(ra, dec, EDGES, ra, dec, weight, weight, region, region, num_regions=3).value
        ),
        (RA, DEC, WEIGHT, REGION),
    ),
    "region_of": (lambda ra, dec: sky.region_of(ra, dec, sky.region_centres(ra, dec, 4)), (RA, DEC)),
    "to_cartesian": (sky.to_cartesian, (RA, DEC, WEIGHT)),
    "from_cartesian": (lambda pos: np.stack(sky.from_cartesian(np.column_stack([pos, pos[:, 0]]))), (POS,)),
    "angular_separation": (lambda *given: sky.angular_separation(*given, 10.0, 20.0), (RA, DEC)),
    "pairs_in_cell": (lambda pos: pairs_in_cell(pos, 0.6, [[4.0, 0.0], [1.0, 3.0]]).vector, (POS,)),
    "KDTree": (lambda pos: KDTree(pos).query(pos, 3, p=1)[0], (POS,)),
    "knn_cdf": (lambda queries: knn_cdf(POS.astype(np.float32), [1, 41], [0.1, 0.5], queries, 4.0).count, (POS,)),
}
FORMS: dict[str, Callable[[np.ndarray], Any]] = {
    "nested lists": lambda rows: rows.tolist(),
    "float16": lambda rows: rows.astype(np.float16) if rows.dtype == np.float64 else rows.astype(np.uint8),
    "big-endian": lambda rows: rows.astype(rows.dtype.newbyteorder(">")),
    "not contiguous": lambda rows: np.repeat(rows, 2, axis=0)[::2],
    "reversed": lambda rows: rows[::-1].copy()[::-1],
    "Fortran order": np.asfortranarray,
    "masked without masked entries": lambda rows: np.ma.array(rows, mask=False),
}


@pytest.fixture(params=CALLS)
def call(request: pytest.FixtureRequest) -> tuple[Callable[..., Any], tuple[Any, ...]]:
    return CALLS[request.param]


@pytest.mark.fast
@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
def test_form_of_rows_does_not_matter(call: Any, form: str) -> None:
    function, rows = call
    if form == "nested lists" and function in (CALLS["from_cartesian"][0],):
        pytest.skip("the call needs an array")
    np.testing.assert_array_equal(function(*map(FORMS[form], rows)), function(*rows))


@pytest.mark.fast
def test_columns_of_data_frames_are_rows(call: Any) -> None:
    pandas = pytest.importorskip("pandas")
    function, rows = call
    # The index of a column must not change the order of the rows.
    given = [pandas.DataFrame(row)[::-1] if row.ndim == 2 else pandas.Series(row)[::-1] for row in rows]
    if function is CALLS["from_cartesian"][0]:
        given = [given[0].to_numpy()]
    np.testing.assert_array_equal(function(*given), function(*(array[::-1] for array in rows)))


@pytest.mark.fast
def test_read_only_rows_are_unchanged(call: Any) -> None:
    function, rows = call
    given = [row.copy() for row in rows]
    for item in given:
        item.flags.writeable = False
    function(*given)
    for item, before in zip(given, rows, strict=True):
        np.testing.assert_array_equal(item, before)


@pytest.mark.fast
def test_masked_entries_raise(call: Any) -> None:
    function, rows = call
    if function is CALLS["from_cartesian"][0]:
        pytest.skip("the call makes another array")
    for place in range(len(rows)):
        given = list(rows)
        given[place] = np.ma.array(rows[place], mask=np.arange(rows[place].size).reshape(rows[place].shape) == 3)
        with pytest.raises(TypeError, match="is a masked array, whose mask would be lost; select"):
            function(*given)


@pytest.mark.fast
@pytest.mark.parametrize(
    "given",
    [
        lambda masked: sky.from_cartesian(np.ma.array(np.ones((2, 3)), mask=[[0, 0, 1], [0, 0, 0]])),
        lambda masked: sky.w_theta(RA, DEC, masked, RA, DEC),
        lambda masked: xi_from_counts(masked, 40, [1.0, 2.0, 3.0, 4.0], [9.0] * 3),
        lambda masked: xi_from_counts([1, 1], 40, masked, [9.0] * 3),
        lambda masked: xi_from_counts([1, 1], 40, [1.0, 2.0, 3.0], masked),
        lambda masked: totals(POS[:3], masked),
        lambda masked: knn_cdf(POS.astype(np.float32), 1, masked, POS),
        lambda masked: random_queries(5, masked),
        lambda masked: pairs_in_cell(POS, 0.5, masked),
        lambda masked: KDTree(POS, boxsize=masked),
        lambda masked: KDTree(POS).query_ball_point(POS[:3], masked),
        lambda masked: KDTree(POS).count_neighbors(KDTree(POS), masked),
        lambda masked: KDTree(POS[:3]).count_neighbors(KDTree(POS), 1.0, weights=(masked, None)),
    ],
)
def test_masked_parameters_raise(given: Callable[[Any], Any]) -> None:
    with pytest.raises(TypeError, match="is a masked array"):
        given(np.ma.array([1.0, 2.0, 3.0], mask=[False, True, False]))


@pytest.mark.fast
@pytest.mark.parametrize("kind", [bool, str, complex, object])
def test_rows_that_are_not_real_numbers_raise(call: Any, kind: Any) -> None:
    function, rows = call
    if function in (CALLS["KDTree"][0], CALLS["from_cartesian"][0]):
        pytest.skip("SciPy converts such rows too")
    with pytest.raises(TypeError):
        function(rows[0].astype(kind), *rows[1:])
