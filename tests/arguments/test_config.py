"""Options: defaults, checks, copies, and options of the published interface that have no effect."""

import itertools
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree._options import copy_config
from jztree.config import CatalogueConfig, FofConfig, KNNConfig, TreeConfig, leaf_size_of

pytestmark = pytest.mark.fast

ALL = [TreeConfig, KNNConfig, CatalogueConfig, FofConfig]
each = pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)


@each
def test_equal_options_are_equal_and_hash_alike(cls: Any) -> None:
    assert cls() == cls()
    assert hash(cls()) == hash(cls())


def test_different_options_differ() -> None:
    assert TreeConfig(leaf_size=12) != TreeConfig()
    assert KNNConfig(tree=TreeConfig(leaf_size=12)) != KNNConfig()
    assert hash(KNNConfig(tree=TreeConfig(leaf_size=12))) != hash(KNNConfig())


def test_nested_defaults_are_made_fresh() -> None:
    first = FofConfig()
    first.tree.leaf_size = 7
    first.catalogue.npart_min = 3
    assert FofConfig().tree.leaf_size == TreeConfig().leaf_size
    assert FofConfig().catalogue.npart_min == 20
    assert KNNConfig().tree.leaf_size == TreeConfig().leaf_size


@each
def test_unknown_option_raises_with_the_valid_names(cls: Any) -> None:
    names = [name for name, option in cls.__dataclass_fields__.items() if not option.metadata.get("published")]
    with pytest.raises(TypeError, match="leafsize") as error:
        cls(leafsize=3)
    assert all(name in str(error.value) for name in names)
    with pytest.raises(AttributeError, match="leafsize") as error:
        cls().leafsize = 3
    assert all(name in str(error.value) for name in names)


@each
def test_options_that_size_allocations_are_accepted_and_ignored(cls: Any) -> None:
    cfg = cls(alloc_fac_ilist=40.0, alloc_fac_of_a_later_version=3.0)
    cfg.alloc_fac_nodes = 2.0
    assert cfg == cls()
    assert hash(cfg) == hash(cls())
    assert not hasattr(cfg, "alloc_fac_of_a_later_version")


@pytest.mark.parametrize("platform", ["cpu", "gpu"])
def test_default_leaf_size_is_that_of_the_default_device(platform: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "default_backend", lambda: platform)
    assert leaf_size_of(TreeConfig()) == {"cpu": 40, "gpu": 24}[platform]
    for device in ("cpu", jax.devices("cpu")[0]):
        with jax.default_device(device):
            assert leaf_size_of(TreeConfig()) == 40
    assert leaf_size_of(TreeConfig(leaf_size=7)) == 7


@pytest.mark.parametrize(
    ("name", "value"), [*itertools.product(["leaf_size", "fan_out"], [1, 0, -5, 2.5, "24"]), ("fan_out", None)]
)
def test_invalid_tree_options_raise(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        TreeConfig(**{name: value})


def test_redundant_options_raise() -> None:
    for options in ({"max_leaf_size": 32, "leaf_size": 5}, {"mass_centered": True, "masses": False}):
        with pytest.raises(ValueError, match="but one determines the other; pass only one"):
            TreeConfig(**options)


@pytest.mark.parametrize("value", [0, -1, 2.5, None], ids=str)
def test_invalid_npart_min_raises(value: Any) -> None:
    with pytest.raises(ValueError, match=f"npart_min.*{value}"):
        CatalogueConfig(npart_min=value)


@pytest.mark.parametrize("value", [0, 1, 2.5], ids=str)
def test_setting_an_invalid_value_raises(value: Any) -> None:
    cfg = KNNConfig()
    with pytest.raises(ValueError, match="leaf_size"):
        cfg.tree.leaf_size = value


@pytest.mark.parametrize("kind", [np.int32, np.int64, np.uint8])
def test_numpy_integers_are_accepted(kind: Any) -> None:
    assert TreeConfig(leaf_size=kind(8)) == TreeConfig(leaf_size=8)
    assert type(TreeConfig(leaf_size=kind(8)).leaf_size) is int
    assert KNNConfig(ghost_rows=kind(7)).ghost_rows == 7
    with pytest.raises(ValueError, match="leaf_size"):
        TreeConfig(leaf_size=kind(1))


def test_nested_configuration_of_wrong_class_raises() -> None:
    for kind, wrong in itertools.product((KNNConfig, FofConfig), (3, None, KNNConfig())):
        with pytest.raises(TypeError, match=rf"{kind.__name__}\.tree must be a jztree\.config\.TreeConfig") as error:
            kind(tree=wrong)
        assert oracles.one_sentence(error)


@pytest.mark.parametrize("twin", ["", "jit", "smap"], ids=["plain", "jit", "smap"])
@pytest.mark.parametrize("wrong", [3, {}, "leaf_size=8", CatalogueConfig()], ids=str)
@pytest.mark.parametrize("what", ["cfg", "th"])
def test_cfg_or_th_of_wrong_type_raises(what: str, wrong: Any, twin: str) -> None:
    pos = np.zeros((1, 40, 3), np.float32) if twin == "smap" else np.zeros((40, 3), np.float32)
    functions = [(jz.knn.knn, (3,))]
    functions += [(f, (0.1,)) for f in (jz.fof.fof_labels, jz.fof.distr_fof_labels, jz.fof.fof_and_catalogue)]
    if what == "cfg":
        functions += [(f, (3,)) for f in (jz.nearest, jz.smoothing_length, jz.knn_density, jz.sph_density)]
        functions += [(f, (0.1,)) for f in (jz.count_within, jz.group_labels, jz.friends_of_friends, jz.dbscan)]
        functions += [(jz.tree.zsort_and_tree, ()), (jz.tree.build_tree_hierarchy, ())]
    for function, others in functions:
        call = {"": function, "jit": getattr(function, "jit", None)}.get(twin) or function.smap(mesh_of(1), jit=True)
        name = "cfg_tree" if not others else what
        words = (
            rf"{name} (must be a jztree\.config|must be a configuration|must be the hierarchy|is text|is of the class)"
        )
        with pytest.raises(TypeError, match=words) as error:
            call(pos, *others, **{name: wrong})
        assert oracles.one_sentence(error)


def test_configuration_of_another_function_raises() -> None:
    pos = np.zeros((40, 3), np.float32)
    for call in (
        lambda: jz.knn.knn(pos, 3, cfg=FofConfig()),
        lambda: jz.fof.fof_labels(pos, 0.1, cfg=KNNConfig()),
        lambda: jz.fof.fof_and_catalogue.jit(pos, 0.1, cfg=KNNConfig()),
        lambda: jz.tree.zsort_and_tree.jit(pos, KNNConfig()),
        lambda: jz.overdensity.spherical_overdensity(pos, 1.0, queries=pos, cfg=FofConfig()),
    ):
        with pytest.raises(TypeError, match=r"must be a jztree\.config\.\w+, such as \w+\(\), not \w+") as error:
            call()
        assert oracles.one_sentence(error)


def test_options_are_keyword_only() -> None:
    with pytest.raises(TypeError):
        TreeConfig(24)  # type: ignore[misc]


def test_copy_is_deep() -> None:
    cfg = FofConfig(tree=TreeConfig(leaf_size=9))
    copy = copy_config(cfg)
    assert copy == cfg
    cfg.tree.leaf_size = 11
    cfg.catalogue.npart_min = 2
    assert copy == FofConfig(tree=TreeConfig(leaf_size=9))
