"""Options: defaults, checks, copies, and the options of the published interface that do nothing."""

from typing import Any

import pytest

from jztree.config import CatalogueConfig, FofConfig, KNNConfig, TreeConfig, copy_config

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
def test_unknown_option_is_refused_with_the_names_there_are(cls: Any) -> None:
    names = list(cls.__dataclass_fields__)
    with pytest.raises((AttributeError, TypeError), match="leafsize") as error:
        cls(leafsize=3)
    assert all(name in str(error.value) for name in names)
    with pytest.raises((AttributeError, TypeError), match="leafsize") as error:
        cls().leafsize = 3
    assert all(name in str(error.value) for name in names)


@each
def test_options_that_size_allocations_are_accepted_and_ignored(cls: Any) -> None:
    cfg = cls(alloc_fac_ilist=40.0)
    cfg.alloc_fac_nodes = 2.0
    assert cfg == cls()
    assert hash(cfg) == hash(cls())
    assert not hasattr(cfg, "alloc_fac_nodes")


@pytest.mark.parametrize("name", ["leaf_size", "fan_out"])
@pytest.mark.parametrize("value", [1, 0, -5, 2.5, "24", None], ids=str)
def test_bad_tree_options(name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"{name}.*{value}"):
        TreeConfig(**{name: value})


@pytest.mark.parametrize("value", [0, -1, 2.5, None], ids=str)
def test_bad_npart_min(value: Any) -> None:
    with pytest.raises(ValueError, match=f"npart_min.*{value}"):
        CatalogueConfig(npart_min=value)


@pytest.mark.parametrize("value", [0, 1, 2.5], ids=str)
def test_bad_values_are_refused_when_they_are_set_too(value: Any) -> None:
    cfg = KNNConfig()
    with pytest.raises(ValueError, match="leaf_size"):
        cfg.tree.leaf_size = value


def test_options_have_names() -> None:
    with pytest.raises(TypeError):
        TreeConfig(24)  # type: ignore[misc]


def test_copy_is_deep() -> None:
    cfg = FofConfig(tree=TreeConfig(leaf_size=9))
    copy = copy_config(cfg)
    assert copy == cfg
    cfg.tree.leaf_size = 11
    cfg.catalogue.npart_min = 2
    assert copy == FofConfig(tree=TreeConfig(leaf_size=9))
