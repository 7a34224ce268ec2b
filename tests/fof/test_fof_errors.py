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
def test_mass_and_velocities_of_wrong_shape_raise(find: Any) -> None:
    if find in (fof_labels, fof_labels.jit):
        return
    pos = jnp.zeros((50, 3))
    with pytest.raises(ValueError, match="mass"):
        find(data.ParticleData(pos=pos, mass=jnp.ones(7)), 0.1)
    with pytest.raises(ValueError, match="velocities"):
        find(data.ParticleData(pos=pos, vel=jnp.ones((50, 2))), 0.1)


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
