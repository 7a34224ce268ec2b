"""Tests of SciPy and scikit-learn, run with the classes of this library instead of theirs."""

import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import pytest
from sklearn.utils.estimator_checks import check_estimator

from jztree_utils import estimators

_ROOT = Path(__file__).parents[2]
# Many tests of a module do not use the classes, and would pass with any classes.
_COUNTING = """
import functools
import pytest
from sklearn.utils.estimator_checks import check_estimator

from jztree_utils import estimators

_used = []


def _counted(method):
    @functools.wraps(method)
    def call(self, *args, **kwargs):
        _used.append(self)
        return method(self, *args, **kwargs)

    return call


for _class in OURS:
    setattr(_class, USE, _counted(getattr(_class, USE)))


@pytest.fixture(autouse=True)
def _count(record_property):
    _used.clear()
    yield
    record_property("uses", len(_used))
"""
_METRICS, _FEATURES = "distances must be Minkowski distances", "jztree supports 1 to 8 features"


class Suite(NamedTuple):
    """Tests of another library.

    modules: the modules of the tests. ours: modules of our classes, by the full names of their classes. use: the
    method that each use of a class calls. options: of pytest. minimum: number of tests that use our classes and pass.
    reasons: parts of the messages of expected failures. failing: functions or cases that fail for another reason.
    """

    modules: tuple[str, ...]
    ours: dict[str, str]
    use: str
    options: tuple[str, ...]
    minimum: int
    reasons: tuple[str, ...]
    failing: dict[str, str]


_ESTIMATORS = "jztree_utils.estimators"
_SKLEARN = ("-p", "sklearn.conftest")
SUITES = {
    "KDTree": Suite(
        ("scipy.spatial.tests.test_kdtree",),
        {"scipy.spatial.KDTree": "jztree_utils.kdtree"},
        "__init__",
        ("-k", "not cKDTree"),
        106,
        (),
        {
            "test_query_pairs_eps": "asks for pairs beyond r, which eps allows to give; they are not given",
            "test_kdtree_comparisons": "compares nodes",
            "test_kdtree_weights": "asks for weights of nodes",
            "test_kdtree_duplicated_inputs": "asks for the number of nodes",
            "test_kdtree_tree_access": "walks through nodes",
        },
    ),
    "NearestNeighbors": Suite(
        (
            "sklearn.cluster.tests.test_dbscan",
            "sklearn.neighbors.tests.test_graph",
            "sklearn.neighbors.tests.test_neighbors",
            "sklearn.neighbors.tests.test_neighbors_pipeline",
        ),
        {
            "sklearn.cluster.DBSCAN": _ESTIMATORS,
            "sklearn.neighbors.NearestNeighbors": _ESTIMATORS,
            "sklearn.neighbors.KNeighborsTransformer": _ESTIMATORS,
            "sklearn.neighbors.RadiusNeighborsTransformer": _ESTIMATORS,
        },
        "fit",
        _SKLEARN,
        50,
        (_METRICS, _FEATURES),
        {
            "test_unsupervised_inputs": "takes a fitted estimator for samples, as does whatever reads its trees",
            "test_query_equidistant_kth_nn": "asks that the lowest rows are chosen where the last neighbours tie",
            "test_k_and_radius_neighbors_duplicates": "asks for another one of neighbours at distance 0",
            "test_auto_algorithm": "looks at the algorithm that was chosen",
        },
    ),
    "HDBSCAN": Suite(
        ("sklearn.cluster.tests.test_hdbscan",),
        {"sklearn.cluster.HDBSCAN": _ESTIMATORS},
        "fit",
        _SKLEARN,
        90,
        (_METRICS, "HDBSCAN has the distances"),
        {
            "test_hdbscan_sparse": "passes sparse features",
            **{
                f"test_hdbscan_algorithms[{metric}-{tree}]": "asks for an error; our trees have these distances"
                for metric in ("cosine", "sqeuclidean")
                for tree in ("kd_tree", "ball_tree")
            },
            "test_hdbscan_cosine_metric_invalid_algorithm": "asks for the same error",
            "test_labelling_distinct": "reads a private attribute",
            "test_hdbscan_tree_invalid_metric": "expects another message",
            "test_hdbscan_default_copy_warning": "expects a warning of scikit-learn",
        },
    ),
    "KernelDensity": Suite(
        ("sklearn.neighbors.tests.test_kde",),
        {"sklearn.neighbors.KernelDensity": _ESTIMATORS},
        "fit",
        _SKLEARN,
        50,
        ("metric is 'haversine'", _FEATURES),
        {},
    ),
}


class Case(NamedTuple):
    """A test that ran. message: of its failure, empty if it passed. uses: whether it used our classes."""

    name: str
    message: str
    uses: bool

    @property
    def names(self) -> set[str]:
        return {self.name, self.name.partition("[")[0]}


def run(suite: Suite, folder: Path) -> list[Case]:
    """Run tests in a separate process, and return the tests that were not skipped."""
    names = [name.rpartition(".") for name in suite.ours]
    lines = [f"import {module}" for module in sorted({module for module, _, _ in names} | set(suite.ours.values()))]
    lines += [f"{path} = {ours}.{path.rpartition('.')[2]}" for path, ours in suite.ours.items()]
    lines += [f"OURS, USE = [{', '.join(suite.ours)}], {suite.use!r}", _COUNTING]
    lines += [f"from {module} import *" for module in suite.modules]
    (folder / "test_theirs.py").write_text("\n".join(lines))
    call = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml=results.xml"]
    environ = {**os.environ, "PYTHONPATH": str(_ROOT)}
    call += [*suite.options, "test_theirs.py"]
    subprocess.run(call, cwd=folder, env=environ, capture_output=True, check=False)
    cases = ElementTree.parse(folder / "results.xml").iter("testcase")
    return [_case(case) for case in cases if case.find("skipped") is None]


def _case(case: ElementTree.Element) -> Case:
    name = "::".join(filter(None, (case.get("classname", "").partition(".")[2], case.get("name", ""))))
    failure = next((case.find(kind) for kind in ("failure", "error") if case.find(kind) is not None), None)
    uses = [int(item.get("value", 0)) for item in case.iter("property") if item.get("name") == "uses"]
    return Case(name, "" if failure is None else failure.get("message", "") or "failed", any(uses))


@pytest.mark.slow
@pytest.mark.parametrize("suite", SUITES.values(), ids=SUITES)
def test_their_tests_pass_with_our_classes(suite: Suite, tmp_path: Path) -> None:
    for module in suite.modules:
        pytest.importorskip(module.rpartition(".")[0])
    cases = run(suite, tmp_path)
    assert sum(case.uses and not case.message for case in cases) >= suite.minimum
    for case in cases:
        is_expected = suite.failing.keys() & case.names or any(reason in case.message for reason in suite.reasons)
        assert is_expected or not case.message, f"{case.name}: {case.message}"
    assert suite.failing.keys() <= set().union(*(case.names for case in cases if case.message)), "a test passes now"


# Estimator checks whose samples have more than 8 features.
_MORE_FEATURES = {
    "check_all_zero_sample_weights_error",
    "check_dtype_object",
    "check_fit2d_1sample",
    "check_sample_weight_equivalence_on_dense_data",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", [*estimators.__all__])
def test_scikit_learn_checks_of_estimators(kind: str) -> None:
    results = check_estimator(getattr(estimators, kind)(), on_fail=None, on_skip=None)
    assert sum(result["status"] == "passed" for result in results) > 35
    for column in results:
        if column["status"] == "failed":
            assert column["check_name"] in _MORE_FEATURES
            assert _FEATURES in str(column["exception"])
