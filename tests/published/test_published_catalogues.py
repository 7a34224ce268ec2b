"""Results, catalogues and numbers of rows in the forms used by scripts for the published package."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree import data
from jztree.config import FofCatalogueConfig, FofConfig
from jztree.data import FofCatalogue, ParticleData, Pos


def test_results_are_cut_and_joined() -> None:
    rad = np.arange(24.0).reshape(2, 4, 3)
    cut = data.squeeze_any({"rad": rad[0], "table": np.zeros((5, 2)), "mass": 2.0}, size=4, num=3, ntot=3)
    assert cut["rad"].shape == (3, 3)
    assert cut["table"].shape == (5, 2)
    joined = data.squeeze_any((rad, np.zeros((2, 7))), 4, np.array([3, 1]), 4)
    np.testing.assert_array_equal(joined[0], np.r_[rad[0, :3], rad[1, :1]])
    assert joined[1].shape == (2, 7)
    with pytest.raises(ValueError, match="ntot is 5"):
        data.squeeze_any(rad, 4, [3, 1], 5)
    with pytest.raises(ValueError, match="needs num"):
        data.squeeze_any(rad, 4)
    for wrong in ([3, 5], [3, 1, 1]):
        with pytest.raises(ValueError, match="num must be from 0 to its number of rows"):
            data.squeeze_any(rad, 4, num=wrong)
    with pytest.raises(ValueError, match="num must be from 0 to its number of rows"):
        data.squeeze_any(np.zeros((3, 4)), 4, num=[4, 4])
    for wrong in (2.5, [[3]], "3"):
        with pytest.raises(TypeError, match="one integer, or one per device"):
            data.squeeze_any(rad[0], 4, num=wrong)


@pytest.mark.parametrize("size", [None, 4])
def test_results_of_a_mesh_of_one_are_cut(size: int | None) -> None:
    """If ``num`` is ``(1,)``, arrays may have an axis over the device or not."""
    rad = np.arange(12.0).reshape(4, 3)
    for result in (rad, jnp.asarray(rad), rad[None], rad[:, 0]):
        cut = data.squeeze_any(result, size, num=np.array([3]), ntot=3)
        np.testing.assert_array_equal(cut, np.reshape(result, rad.shape)[:3] if np.size(result) == 12 else result[:3])
    part = data.squeeze_any(ParticleData(pos=rad, mass=rad[:, 0], num=np.array([3])), 4, np.array([3]), 3)
    assert part.pos.shape == (3, 3)
    assert part.mass.shape == (3,)


@pytest.mark.parametrize("ranks", [1, 4])
def test_catalogues_from_a_user_map(ranks: int) -> None:
    """Such a map joins rows, ``(r * g, ...)``, and returns one number of groups per rank, ``(r,)``."""
    mesh, cfg = mesh_of(ranks), FofConfig(catalogue=FofCatalogueConfig(npart_min=2))
    part = data.expand_particles(Pos(pos=oracles.clustered(300, 3)), ranks)
    own = jz.fof.fof_and_catalogue.smap(mesh, jit=True)(part, 0.01, 1.0, cfg)[1]
    expected = data.squeeze_catalogue(own)
    assert expected.ngroups > 5
    host = jax.tree.map(np.asarray, own)
    if ranks == 1:
        host = jax.tree.map(lambda leaf: leaf[None] if leaf.ndim == 0 else leaf, host)
    flat = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]) if leaf.ndim > 1 else leaf, host)
    assert np.shape(flat.ngroups) == (ranks,)
    assert flat.count.ndim == 1
    for built in (data.squeeze_catalogue(flat), flat.flatten(), jax.jit(lambda cata: cata.flatten())(flat)):
        assert bool(data.catalogues_equal(built, expected))
    assert bool(data.catalogues_equal(jax.tree.map(jnp.asarray, flat), own))
    padded = data.squeeze_catalogue.jit(flat, size_out=expected.ngroups + 3)
    assert bool(data.catalogues_equal(padded, expected))
    if ranks == 1:
        assert bool(data.catalogues_equal(data.sort_catalogue(flat), data.sort_catalogue(expected)))
    else:
        with pytest.raises(ValueError, match="4 and 1 ranks"):
            data.catalogues_equal(flat, expected)


def test_catalogues_of_lists() -> None:
    assert data.squeeze_catalogue(FofCatalogue(2, count=[3, 5, 0])).count.tolist() == [3, 5]
    assert data.sort_catalogue(FofCatalogue(2, count=[3, 5, 0])).count.tolist() == [5, 3, 0]
    assert FofCatalogue([1, 2], count=[[3, 0], [4, 5]]).flatten().count.tolist() == [3, 4, 5, 0]
    with pytest.raises(ValueError, match="count has 3 rows, which is not a multiple of the 2 ranks"):
        data.squeeze_catalogue(FofCatalogue([1, 2], count=[3, 4, 5]))
    with pytest.raises(ValueError, match=r"its shape is \(0,\)"):
        data.squeeze_catalogue(FofCatalogue([], count=[]))
    with pytest.raises(ValueError, match="this catalogue has none"):
        data.sort_catalogue(FofCatalogue(0))


@pytest.mark.parametrize(
    "call", [data.squeeze_catalogue, data.sort_catalogue, lambda cata: data.catalogues_equal(cata, cata)]
)
def test_catalogues_of_another_class_are_refused(call: Any) -> None:
    ours = dataclasses.make_dataclass("Mine", ["ngroups", "count"])
    with pytest.raises(TypeError, match=r"must be a jztree\.data\.FofCatalogue, not Mine"):
        call(ours(2, np.arange(3)))


@pytest.mark.parametrize("num", [[4], [[4]], (4,), 1.5, np.nan, True, "4", -1, 9], ids=str)
def test_non_integer_num_raises(num: Any) -> None:
    part = Pos(pos=oracles.uniform(8, 3), num=num)
    for call in (lambda part: jz.fof.fof_labels(part, 0.1), lambda part: jz.knn.knn(part, 2)):
        with pytest.raises(
            (TypeError, ValueError), match=r"^num(?: of the positions)? is .*; it counts the rows|is text"
        ):
            call(part)
    if type(num) is not int:
        with pytest.raises(TypeError, match=r"^num is .*; it counts the rows that hold particles, so it must be one"):
            data.get_num(part)
    if isinstance(num, (list, tuple, float)):
        with pytest.raises(TypeError, match="so it must be one integer"):
            jz.fof.fof_labels.jit(part, 0.1)
