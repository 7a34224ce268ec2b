"""Friends-of-friends groups with bad input, or with a hierarchy of other particles."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import data, tree
from jztree.fof import fof_and_catalogue, fof_labels

pytestmark = [pytest.mark.emulated, pytest.mark.fast]

FINDERS = pytest.mark.parametrize(
    "find",
    [fof_labels, fof_labels.jit, fof_and_catalogue, fof_and_catalogue.jit],
    ids=["labels", "labels_jit", "cata", "cata_jit"],
)


@FINDERS
@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_position_that_is_not_finite_names_the_row(find: Any, bad: float) -> None:
    pos = oracles.uniform(40, 3)
    pos[31, 1] = bad
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 31 ") as error:
        jax.block_until_ready(find(jnp.asarray(pos), 0.1))
    assert oracles.one_sentence(error)


@FINDERS
@pytest.mark.parametrize("rlink", [-0.1, np.nan, np.inf, -np.inf], ids=str)
def test_invalid_linking_length_raises(find: Any, rlink: float) -> None:
    with pytest.raises(ValueError, match=f"rlink is {rlink:g}") as error:
        find(jnp.asarray(oracles.uniform(40, 3)), rlink)
    assert oracles.one_sentence(error)


@FINDERS
@pytest.mark.parametrize("rlink", [[0.1], [0.1, 0.2], "far", None, 1j], ids=str)
def test_linking_length_that_is_not_a_number_raises(find: Any, rlink: Any) -> None:
    with pytest.raises((TypeError, ValueError)) as error:
        find(jnp.asarray(oracles.uniform(40, 3)), rlink)
    assert "rlink" in str(error.value)


@pytest.mark.parametrize("rlink", [-0.1, np.nan, np.inf], ids=str)
@pytest.mark.parametrize("n", [40, 0])
def test_invalid_traced_linking_length_raises(n: int, rlink: float) -> None:
    pos = jnp.asarray(oracles.uniform(n, 3))
    for find in (fof_labels, fof_and_catalogue):
        traced = jax.jit(lambda length, find=find: find(pos, length, 1.0))
        with pytest.raises(oracles.RUN_TIME_ERROR, match="linking length") as error:
            jax.block_until_ready(traced(rlink))
        assert oracles.one_sentence(error)
        assert f"{rlink:g}" in str(error.value)
        jax.block_until_ready(traced(0.1))  # the same compiled function works after the error


@pytest.mark.parametrize("box", [-1.0, np.nan, np.inf], ids=str)
@pytest.mark.parametrize("n", [40, 0])
def test_invalid_traced_box_raises(n: int, box: float) -> None:
    pos = jnp.asarray(oracles.uniform(n, 3))
    traced = jax.jit(lambda length: fof_labels(pos, 0.1, length))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="box") as error:
        jax.block_until_ready(traced(box))
    assert oracles.one_sentence(error)
    jax.block_until_ready(traced(1.0))


@FINDERS
@pytest.mark.parametrize("box", [-1.0, np.nan, [1.0, 1.0], [1.0, -1.0, 0.0]], ids=str)
def test_invalid_box_raises(find: Any, box: Any) -> None:
    with pytest.raises(ValueError, match="boxsize") as error:
        find(jnp.asarray(oracles.uniform(40, 3)), 0.1, box)
    assert oracles.one_sentence(error)


@FINDERS
@pytest.mark.parametrize(
    ("pos", "kind", "words"),
    [
        (np.zeros((5, 3), np.int32), TypeError, "int32"),
        (np.zeros((5, 3), np.complex64), TypeError, "complex64"),
        (np.zeros(5, np.float32), ValueError, r"\(5,\)"),
        (np.zeros((2, 5, 3), np.float32), ValueError, r"\(2, 5, 3\)"),
        (np.zeros((5, 9), np.float32), ValueError, r"1 to [48].*\(5, 9\)"),
    ],
    ids=["int", "complex", "1-D", "3-D", "9 dims"],
)
def test_positions_of_wrong_type_or_shape_raise(find: Any, pos: np.ndarray, kind: type[Exception], words: str) -> None:
    for part in (pos, data.Pos(pos=pos)):
        with pytest.raises(kind, match=words) as error:
            find(part, 0.1)
        assert oracles.one_sentence(error)


@FINDERS
def test_mass_and_velocities_of_wrong_shape_raise(find: Any) -> None:
    if find in (fof_labels, fof_labels.jit):
        return
    pos = jnp.zeros((50, 3))
    with pytest.raises(ValueError, match="mass"):
        find(data.ParticleData(pos=pos, mass=jnp.ones(7)), 0.1)
    with pytest.raises(ValueError, match="velocities"):
        find(data.ParticleData(pos=pos, vel=jnp.ones((50, 2))), 0.1)


@pytest.mark.parametrize("order", ["original", None, np.zeros(2)], ids=str)
def test_unknown_output_order_raises(order: Any) -> None:
    with pytest.raises(ValueError, match=r"output_order is .*; it must be one of 'z', 'input'"):
        fof_labels(jnp.zeros((5, 3)), 0.1, output_order=order)


@pytest.mark.parametrize("case", ["other_particles", "other_number", "other_num", "unsorted", "other_box"])
def test_mismatched_th_raises_or_gives_correct_labels(case: str) -> None:
    pos = oracles.uniform(500, 3)
    posz, th = tree.zsort_and_tree(jnp.asarray(pos), boxsize=1.0)
    part, box = {
        "other_particles": (tree.zsort(jnp.asarray(oracles.uniform(500, 3, seed=2)))[0], 1.0),
        "other_number": (posz[:499], 1.0),
        "other_num": (data.Pos(pos=posz, num=480), 1.0),
        "unsorted": (jnp.asarray(pos), 1.0),
        "other_box": (posz, 0.4),
    }[case]
    try:
        label = jax.block_until_ready(fof_labels(part, 0.05, box, th=th)[1])
    except oracles.RUN_TIME_ERROR as error:
        refused = str(error)
    else:
        expected = oracles.smallest_members(oracles.components(np.asarray(data.get_pos(part)), 0.05, box))
        np.testing.assert_array_equal(label, expected)
        return
    assert "zsort_and_tree" in refused
