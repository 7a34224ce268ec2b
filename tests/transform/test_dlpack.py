"""Arrays of other libraries are imported by DLPack, in plain calls, compiled twins and over devices."""

from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import mesh_of

from jztree.data import PosMass
from jztree.fof import fof_labels
from jztree.knn import knn
from jztree.radius import neighbours_within
from jztree.tree import distr_zsort, zsort


class Foreign:
    """An array that is available by DLPack only."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array

    def __dlpack__(self, **options: Any) -> Any:
        return self._array.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class Refusing(Foreign):
    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("Can't export tensors that require gradient.")


POS = oracles.uniform(300, 3)


def assert_same(result: Any, expected: Any) -> None:
    for value, reference in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(value, reference)


@pytest.mark.parametrize("twin", ["plain", "jit"])
def test_positions_queries_and_properties(twin: str) -> None:
    def of(find: Any) -> Any:
        return find if twin == "plain" else find.jit

    assert_same(of(knn)(Foreign(POS), 4, 1.0), of(knn)(POS, 4, 1.0))
    result = of(knn)(Foreign(POS), 4, part_query=Foreign(POS[:40]), max_radius=Foreign(np.full(40, 0.1, np.float32)))
    assert_same(result, of(knn)(POS, 4, part_query=POS[:40], max_radius=np.full(40, 0.1, np.float32)))
    assert_same(of(fof_labels)(Foreign(POS), 0.1), of(fof_labels)(POS, 0.1))
    assert_same(of(zsort)(Foreign(POS)), of(zsort)(POS))
    part, mass = PosMass(pos=Foreign(POS), mass=Foreign(np.arange(300.0, dtype=np.float32))), np.arange(300.0)
    result = of(knn)(part, 4, result="rad_mass")
    assert_same(result, of(knn)(PosMass(pos=POS, mass=mass.astype(np.float32)), 4, result="rad_mass"))
    every_other = np.repeat(POS, 2, axis=0)[::2]
    assert_same(of(neighbours_within)(Foreign(every_other), 0.1), of(neighbours_within)(POS, 0.1))


def test_float64_is_rounded_like_numpy_arrays() -> None:
    pos = oracles.uniform(300, 3, np.float64)
    assert_same(knn.jit(Foreign(pos), 4), knn.jit(pos, 4))


def test_integers_that_would_be_truncated_raise() -> None:
    part = {"pos": Foreign(POS), "mass": Foreign(np.full(300, 2**40))}
    with pytest.raises(ValueError, match="mass"):
        knn.jit(PosMass(**part), 4, result="mass")


@pytest.mark.long
def test_over_devices() -> None:
    pos = POS.reshape(3, 100, 3)
    mapped = knn.smap(mesh_of(3), jit=True)
    assert_same(mapped(Foreign(pos), 4), mapped(pos, 4))
    sort = distr_zsort.smap(mesh_of(3), jit=True)
    assert_same(sort(Foreign(pos)), sort(pos))


@pytest.mark.parametrize("find", [knn, knn.jit])
def test_array_that_refuses_export_raises(find: Any) -> None:
    with pytest.raises(TypeError, match=r"array of transform .*require gradient.*\.detach\(\)") as error:
        find(Refusing(POS), 4)
    assert oracles.one_sentence(error)
