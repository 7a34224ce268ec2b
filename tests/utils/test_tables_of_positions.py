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


def of_estimators(made: Any) -> Any:
    estimators = pytest.importorskip("jztree_utils.estimators")
    near = estimators.NearestNeighbors(n_neighbors=3).fit(made(POS)).kneighbors(made(RANDOMS))
    return [*near, estimators.DBSCAN(eps=0.1).fit(made(POS)).labels_]


TOOLS: dict[str, Callable[[Any], Any]] = {
    "xi": lambda made: (
        correlation.xi(made(POS), EDGES, randoms=made(RANDOMS), weight=made(POS)["x"]).value
        if made is not np.asarray
        else correlation.xi(POS, EDGES, randoms=RANDOMS, weight=POS[:, 0]).value
    ),
    "wp": lambda made: correlation.wp(made(POS), EDGES, 0.2, 1.0, part_b=made(RANDOMS)).value,
    "multipoles": lambda made: correlation.multipoles(made(POS), EDGES, 1.0, per_side=2).samples,
    "mean_separations": lambda made: correlation.mean_separations(made(POS), EDGES, part_b=made(RANDOMS)),
    "totals": lambda made: correlation.totals(made(POS)).num,
    "cube_regions": lambda made: correlation.cube_regions(made(POS), 0, 1, 2),
    "knn_cdf": lambda made: knn_cdf(made(POS), 2, EDGES, made(RANDOMS)).count,
    "joint_knn_cdf": lambda made: joint_knn_cdf(made(POS), made(RANDOMS), 1, 2, EDGES, RANDOMS).count,
    "KDTree": lambda made: KDTree(made(POS)).query(made(RANDOMS), 2),
    "KDTree, balls": lambda made: KDTree(made(POS)).query_ball_point(made(RANDOMS), 0.1, return_length=True),
    "estimators": of_estimators,
}


@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("package", ["pandas", "astropy.table"])
def test_tables_give_the_results_of_arrays(package: str, tool: str) -> None:
    module = pytest.importorskip(package)

    def made(values: np.ndarray) -> Any:
        columns = dict(zip("xyz", values.T, strict=True))
        return module.DataFrame(columns) if package == "pandas" else module.Table(columns)

    jax.tree.map(np.testing.assert_array_equal, TOOLS[tool](made), TOOLS[tool](np.asarray))


def test_columns_with_a_unit_raise() -> None:
    table = pytest.importorskip("astropy.table").Table({"x": POS[:, 0], "y": POS[:, 1]})
    table["y"].unit = "Mpc"
    with pytest.raises(TypeError, match="column y of part has the unit Mpc, which jztree would drop"):
        correlation.xi(table, EDGES, 1.0)
