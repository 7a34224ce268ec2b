"""Small functions of the published package: runs of particles, types with data, positions and masses, counts."""

import dataclasses
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from processes import run_processes

import jztree as jz
from jztree import data
from jztree.config import TreeConfig
from jztree.data import Label, ParticleData, Pos, PosMass
from jztree.stats import Statistics

N = 200


def massive(dtype: Any = np.float32) -> ParticleData:
    random = np.random.default_rng(2)
    mass = random.uniform(1, 2, N).astype(dtype)
    return ParticleData(pos=random.random((N, 3)).astype(dtype), mass=mass, id=np.arange(N, dtype=np.int32))


def test_positions_and_masses_alone() -> None:
    part = dataclasses.replace(massive(), num=150, num_total=150)
    result = data.get_pos_mass(part)
    assert type(result) is PosMass
    assert (result.pos is part.pos, result.mass is part.mass, result.num, result.num_total) == (True, True, 150, 150)
    with pytest.raises(ValueError, match="have no mass"):
        data.get_pos_mass(Pos(pos=part.pos))


def test_stacked_labels() -> None:
    label = Label(jnp.asarray([0, 1]), jnp.asarray([5, 7]))
    assert label.stacked().tolist() == [[0, 5], [1, 7]]


# Runs of particles

SPLITS = np.array([0, 0, 3, 90, 90, N - 20], np.int32)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("jit", [False, True])
def test_centre_of_mass_of_runs(shared: bool, jit: bool) -> None:
    part = massive()
    mass = np.full(N, 1.5) if shared else np.asarray(part.mass, np.float64)
    given = dataclasses.replace(part, mass=1.5) if shared else part
    call = jz.tree.center_of_mass.jit if jit else jz.tree.center_of_mass
    result = call(SPLITS, given, False, 16)
    for i, (start, end) in enumerate(itertools.pairwise(SPLITS)):
        weight, pos = mass[start:end], np.asarray(part.pos, np.float64)[start:end]
        centre = (weight[:, None] * pos).sum(axis=0) / weight.sum() if end > start else np.zeros(3)
        np.testing.assert_allclose(result.mass[i], weight.sum(), rtol=1e-6)
        np.testing.assert_allclose(result.pos[i], centre, rtol=1e-6)
    assert call(SPLITS[:1], given).pos.shape == (0, 3)


def test_nodes_are_runs() -> None:
    partz, th = jz.tree.zsort_and_tree.jit(massive(), TreeConfig(leaf_size=8, masses=True), boxsize=0.7)
    result = jz.tree.center_of_mass.jit(th.particle_splits(0), partz, boxsize=0.7)
    np.testing.assert_allclose(result.mass, th.mass(0), rtol=1e-6)
    np.testing.assert_allclose(result.pos, th.center_of_mass(0), rtol=1e-6)


def test_centre_of_mass_on_each_device() -> None:
    stacked = data.expand_particles(massive(), 2)
    splits = np.array([[0, 40, 100], [10, 20, 30]], np.int32)
    result = jz.tree.center_of_mass.smap(mesh_of(2), jit=True)(splits, stacked)
    for rank in range(2):
        single = jz.tree.center_of_mass(splits[rank], jax.tree.map(lambda leaf, rank=rank: leaf[rank], stacked))
        np.testing.assert_array_equal(result.pos[rank], single.pos)


@pytest.mark.long
def test_derivatives_of_runs() -> None:
    part = massive()

    def total(pos: Any, mass: Any) -> Any:
        result = jz.tree.center_of_mass(SPLITS, PosMass(pos=pos, mass=mass))
        return (result.pos**3).sum() + (result.mass**2).sum()

    def by_hand(pos: Any, mass: Any) -> Any:
        sums = 0.0
        for start, end in itertools.pairwise(SPLITS):
            if end > start:
                weight = mass[start:end]
                sums += ((weight @ pos[start:end] / weight.sum()) ** 3).sum() + weight.sum() ** 2
        return sums

    result, right = (
        jax.jit(jax.grad(f, argnums=(0, 1)))(jnp.asarray(part.pos), jnp.asarray(part.mass)) for f in (total, by_hand)
    )
    for value, reference in zip(result, right, strict=True):
        np.testing.assert_allclose(value, reference, rtol=2e-4, atol=1e-6)


@pytest.mark.parametrize("beyond", [2**32 + 5, 2**63 - 1, -(2**32)])
@pytest.mark.parametrize("bits", [32, 64])
def test_runs_of_64_bits_are_not_truncated(beyond: int, bits: int) -> None:
    with jax.enable_x64(bits == 64):
        for call in (jz.tree.center_of_mass, jz.tree.center_of_mass.jit):
            np.testing.assert_allclose(call(np.array([0, 5], np.int64), massive()).mass, [massive().mass[:5].sum()])
            with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match=r"must ascend|32 bits"):
                jax.block_until_ready(call(np.array([0, beyond], np.int64), massive()))


@pytest.mark.parametrize("splits", [[0, 5, 3], [-1, 4], [0, N + 1]], ids=["descending", "negative", "beyond"])
def test_invalid_runs_raise(splits: list[int]) -> None:
    for call in (jz.tree.center_of_mass, jz.tree.center_of_mass.jit):
        with pytest.raises(
            (ValueError, jax.errors.JaxRuntimeError), match=f"at most {N}, the number of particles"
        ) as error:
            jax.block_until_ready(call(np.array(splits), massive()))
        assert oracles.one_sentence(error)
    for wrong in (np.array([0.0, 3.0]), [0, 3]):
        with pytest.raises(ValueError, match="an array of integers"):
            jz.tree.center_of_mass(wrong, massive())
    with pytest.raises(ValueError, match="particles with a mass"):
        jz.tree.center_of_mass(SPLITS, massive().pos)


# Types with data


@pytest.mark.parametrize("ndev", [1, 2])
@pytest.mark.parametrize("one", [False, True])
def test_data_is_sorted_with_each_type(ndev: int, one: bool) -> None:
    first, second = massive(), Pos(pos=np.asarray(oracles.uniform(80, 3)), num=80)
    along = ({"twice": 2 * first.id}, None)
    call = jz.tree.zsort_and_tree_multi_type.jit
    if ndev > 1:
        first, second, along = (data.expand_particles(item, ndev) for item in (first, second)), None, None
        first, second = first
        along = ({"twice": 2 * first.id}, None)
        call = jz.tree.zsort_and_tree_multi_type.smap(mesh_of(ndev), jit=True)
    (stars, _), (with_stars, nothing), th = call(part=(first, second), data=along, one_hierarchy=one)
    assert nothing is None
    assert isinstance(th, jz.tree.TreeHierarchy) == one
    counts = np.atleast_1d(data.get_num(stars) if stars.num is None else stars.num)
    for rank, count in enumerate(counts):
        ids, twice = (np.asarray(x).reshape(ndev, -1)[rank, :count] for x in (stars.id, with_stars["twice"]))
        np.testing.assert_array_equal(twice, 2 * ids)
    assert counts.sum() == N


def test_data_that_does_not_match_its_type_raises() -> None:
    with pytest.raises(ValueError, match="one entry per type, 2; it has 1"):
        jz.tree.zsort_and_tree_multi_type([massive(), massive()], None, [None])
    with pytest.raises(TypeError, match="a sequence with one entry per type, not float"):
        jz.tree.zsort_and_tree_multi_type([massive()], None, 1.0)
    with pytest.raises(ValueError, match=f"must have {N} rows"):
        jz.tree.zsort_and_tree_multi_type([massive()], None, [np.zeros(N - 1)])


# Counts of all processes


def test_counts_of_one_process_are_its_own() -> None:
    counted = Statistics({"rows.sort": 3})
    assert counted.reduce_multi_host() == counted
    assert Statistics().reduce_multi_host() == Statistics()


@pytest.mark.long
def test_counts_of_processes_are_added() -> None:
    script = """
import jztree as jz
jz.launch.initialize()
import jax
rank = jax.process_index()
own = jz.stats.Statistics({"rows": 5 + rank, **({"only here": 2**40} if rank else {})})
total = own.reduce_multi_host()
assert total.counts == {"rows": 11, "only here": 2**40}, total.counts
assert own["rows"] == 5 + rank
print("added")
"""
    for returncode, output in run_processes(script):
        assert returncode == 0, output
        assert output.endswith("added\n")
