"""The flat functions of nearest neighbours and groups: named results, orders, properties of neighbours, and errors."""

import inspect
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from scipy.spatial import cKDTree

import jztree as jz
from jztree.config import CatalogueConfig, FofConfig
from jztree.data import ParticleData, Pos, sort_catalogue, squeeze_catalogue

QUANTITIES = {
    "k",
    "radii",
    "radius",
    "rlink",
    "edges",
    "h",
    "density",
    "eps",
    "field",
    "pair_func",
    "max_neighbours",
    "vlink",
}


def particles(n: int) -> ParticleData:
    rng = np.random.default_rng(5)
    return ParticleData(
        pos=oracles.clustered(n, 3) % 1,
        mass=rng.random(n).astype(np.float32),
        vel=rng.normal(size=(n, 3)).astype(np.float32),
    )


def searches() -> list[Any]:
    """Return the functions of `jztree` that have ``.jit`` and take particles."""
    functions = [getattr(jz, name) for name in jz.__all__ if hasattr(getattr(jz, name), "jit")]
    searches = [f for f in functions if next(iter(inspect.signature(f).parameters)) == "part"]
    return [f for f in searches if f not in (jz.fof_labels, jz.descendants)]  # published; of subhaloes


@pytest.mark.parametrize("function", searches(), ids=lambda f: f.__name__)
def test_optional_arguments_are_keywords(function: Any) -> None:
    parameters = list(inspect.signature(function).parameters.values())
    for parameter in parameters[1:]:
        if parameter.kind is not parameter.KEYWORD_ONLY:
            assert parameter.name in QUANTITIES or function is jz.build_index, parameter.name
    if "boxsize" in inspect.signature(function).parameters:
        assert inspect.signature(function).parameters["boxsize"].default is None


@pytest.mark.parametrize("call", [jz.nearest, jz.nearest.jit])
def test_nearest_equals_scipy(call: Any) -> None:
    pos, query = oracles.uniform(500, 3, np.float64), oracles.uniform(40, 3, np.float64, seed=3)
    with jax.enable_x64(True):
        neighbours = call(pos, 5, queries=query, boxsize=1.0)
    distance, row = cKDTree(pos, boxsize=1.0).query(query, 5)
    np.testing.assert_allclose(neighbours.distance, distance, rtol=1e-12)
    np.testing.assert_array_equal(neighbours.index, row)
    assert isinstance(neighbours, jz.Neighbours)


@pytest.mark.parametrize("order", ["input", "z"])
def test_fields_are_properties_of_the_neighbours(order: str) -> None:
    part = particles(300)
    neighbours = jz.nearest.jit(part, 4, fields=("mass", "vel"), max_radius=0.05, order=order)
    sorted_part = part if order == "input" else jz.tree.zsort(part)[0]
    index = np.asarray(neighbours.index)
    for name in ("mass", "vel"):
        values = np.asarray(getattr(sorted_part, name))[np.maximum(index, 0)]
        missing = (index < 0).reshape(index.shape + (1,) * (values.ndim - 2))
        np.testing.assert_array_equal(neighbours.fields[name], np.where(missing, 0, values))
    assert (index < 0).any()


def test_reduce_returns_its_results_alone() -> None:
    pos = oracles.uniform(200, 3)
    total = jz.nearest.jit(pos, 6, reduce=lambda rnn, **_: rnn.sum(axis=1))
    np.testing.assert_allclose(total, np.asarray(jz.nearest(pos, 6).distance).sum(axis=1), rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"fields": ("colour",)}, ValueError, "colour"),
        ({"fields": ("num",)}, ValueError, "not a property"),
        ({"fields": ("rad",)}, ValueError, "not a property"),
        ({"fields": "mass"}, TypeError, "tuple of names"),
        ({"fields": ("mass",), "reduce": len}, ValueError, "excludes fields"),
        ({"reduce": 3}, ValueError, "must be a function"),
        ({"k": 301}, ValueError, "k is 301"),
    ],
)
def test_invalid_options_of_nearest_raise(options: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        jz.nearest(particles(300), **({"k": 3} | options))


def test_group_labels_equal_labels_in_input_order() -> None:
    part = Pos(pos=oracles.clustered(800, 3) % 1, num=700)
    for box in (None, 1.0):
        expected = jz.fof_labels(part, 0.02, box, output_order="input")[1]
        np.testing.assert_array_equal(jz.group_labels.jit(part, 0.02, boxsize=box), expected)


@pytest.mark.parametrize("call", [jz.friends_of_friends, jz.friends_of_friends.jit])
def test_catalogue_lists_the_largest_group_first(call: Any) -> None:
    part, cfg = particles(2_000), FofConfig(catalogue=CatalogueConfig(npart_min=3))
    groups = call(part, 0.02, boxsize=1.0, npart_min=3)
    grouped, catalogue = jz.fof.fof_and_catalogue(part, 0.02, 1.0, cfg=cfg)
    expected = sort_catalogue(squeeze_catalogue(catalogue))
    ngroups = int(groups.catalogue.ngroups)
    assert ngroups == expected.ngroups
    if call is jz.friends_of_friends:
        assert len(groups.catalogue.count) == ngroups  # no unused rows
    for name, column in expected.columns().items():
        if column is not None:
            np.testing.assert_array_equal(np.asarray(groups.catalogue.columns()[name])[:ngroups], column)
    jax.tree.map(np.testing.assert_array_equal, groups.particles, grouped)


def test_radius_and_radii_exclude_each_other() -> None:
    pos = oracles.uniform(9, 3)
    for options in ({}, {"radius": 0.1, "radii": [0.1]}):
        for call in (jz.count_within, jz.count_within.jit):
            with pytest.raises(ValueError, match="either radius"):
                call(pos, **options)
    with pytest.raises(ValueError, match="Pass ascending radii as radii"):
        jz.count_within(pos, [0.1, 0.2])
    with pytest.raises(ValueError, match="Pass one radius as radius"):
        jz.count_within(pos, radii=0.1)
