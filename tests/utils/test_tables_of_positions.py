"""Positions and weights in data frames and tables of astropy, in all tools that start from arrays."""

from collections.abc import Callable
from typing import Any

import jax
import numpy as np
import pytest

from jztree_utils import correlation
from jztree_utils.kdtree import KDTree
from jztree_utils.knn_statistics import joint_knn_cdf, knn_cdf

RNG = np.random.default_rng(3)
POS, EDGES = RNG.random((200, 3)), [0.1, 0.2]
RANDOMS = RNG.random((300, 3))


def of_estimators(table_of: Any) -> Any:
    estimators = pytest.importorskip("jztree_utils.estimators")
    neighbours = estimators.NearestNeighbors(n_neighbors=3).fit(table_of(POS)).kneighbors(table_of(RANDOMS))
    return [*neighbours, estimators.DBSCAN(eps=0.1).fit(table_of(POS)).labels_]


TOOLS: dict[str, Callable[[Any], Any]] = {
    "xi": lambda table_of: (
        correlation.xi(table_of(POS), EDGES, randoms=table_of(RANDOMS), weights=table_of(POS)["x"]).value
        if table_of is not np.asarray
        else correlation.xi(POS, EDGES, randoms=RANDOMS, weights=POS[:, 0]).value
    ),
    "wp": lambda table_of: correlation.wp(table_of(POS), EDGES, 0.2, 1.0, queries=table_of(RANDOMS)).value,
    "multipoles": lambda table_of: correlation.multipoles(table_of(POS), EDGES, 1.0, per_side=2).samples,
    "mean_separations": lambda table_of: correlation.mean_separations(table_of(POS), EDGES, queries=table_of(RANDOMS)),
    "totals": lambda table_of: correlation.totals(table_of(POS)).num,
    "cube_regions": lambda table_of: correlation.cube_regions(table_of(POS), 0, 1, 2),
    "knn_cdf": lambda table_of: knn_cdf(table_of(POS), 2, EDGES, table_of(RANDOMS)).count,
    "joint_knn_cdf": lambda table_of: joint_knn_cdf(table_of(POS), table_of(RANDOMS), 1, 2, EDGES, RANDOMS).count,
    "KDTree": lambda table_of: KDTree(table_of(POS)).query(table_of(RANDOMS), 2),
    "KDTree, balls": lambda table_of: KDTree(table_of(POS)).query_ball_point(
        table_of(RANDOMS), 0.1, return_length=True
    ),
    "estimators": of_estimators,
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("package", ["pandas", "astropy.table"])
def test_tables_give_the_results_of_arrays(package: str, tool: str) -> None:
    module = pytest.importorskip(package)

    def table_of(values: np.ndarray) -> Any:
        columns = dict(zip("xyz", values.T, strict=True))
        return module.DataFrame(columns) if package == "pandas" else module.Table(columns)

    jax.tree.map(np.testing.assert_array_equal, TOOLS[tool](table_of), TOOLS[tool](np.asarray))


def test_columns_with_a_unit_raise() -> None:
    table = pytest.importorskip("astropy.table").Table({"x": POS[:, 0], "y": POS[:, 1]})
    table["y"].unit = "Mpc"
    with pytest.raises(TypeError, match="column y of part has the unit Mpc, which jztree would drop"):
        correlation.xi(table, EDGES, 1.0)
