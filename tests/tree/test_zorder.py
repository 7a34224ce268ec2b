"""The z-order over ranks is that of one device, in equal shares."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, all_on_last, deal, joined, make, mesh_of, square_mesh

import jztree as jz
from jztree import CapacityError
from jztree.data import ParticleData, Pos

pytestmark = [pytest.mark.emulated, pytest.mark.watched]


def sorted_on_one(pos: np.ndarray, box: Any) -> tuple[np.ndarray, np.ndarray]:
    partz, index = jz.tree.zsort.jit(pos, box)
    return np.asarray(partz), np.asarray(index)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_exact_shares_in_the_order_of_one_device(ndev: int) -> None:
    sort = jz.tree.distr_zsort.smap(mesh_of(ndev), jit=True)
    for name in SETS:
        pos, _, part = make(name, ndev)
        for box in (None, 1.0):
            if "outlier" in name and box:
                continue
            partz, origin = sort(part, boxsize=box)
            counts = np.asarray(partz.num)
            want_pos, want_index = sorted_on_one(pos, box)
            assert partz.pos.shape == part.pos.shape
            np.testing.assert_array_equal(counts, np.sort(counts)[::-1], name)
            assert counts.max() - counts.min() <= 1, name
            np.testing.assert_array_equal(joined(partz.pos, counts), want_pos, name)
            np.testing.assert_array_equal(joined(partz.id, counts), want_index, name)
            came = np.asarray(part.id)[joined(origin.rank, counts), joined(origin.idx, counts)]
            np.testing.assert_array_equal(came, want_index, name)


@pytest.mark.parametrize("ndev", [1, 4])
def test_shares_by_samples_keep_the_order(ndev: int) -> None:
    sort = jz.tree.distr_zsort.smap(mesh_of(ndev), jit=True)
    for name in SETS:
        pos, _, part = make(name, ndev)
        partz, _ = sort(part, nsamp=128, equalize=False)
        np.testing.assert_array_equal(joined(partz.id, np.asarray(partz.num)), sorted_on_one(pos, None)[1], name)
        if name == "uniform":
            assert np.ptp(np.asarray(partz.num)) < 1200 / 4


@pytest.mark.long
def test_shares_on_a_mesh_of_two_axes() -> None:
    pos, _, part = make("clustered", 4)
    partz, _ = jz.tree.distr_zsort.smap(square_mesh(), jit=True)(part)
    np.testing.assert_array_equal(joined(partz.id, np.asarray(partz.num)), sorted_on_one(pos, None)[1])


@pytest.mark.long
def test_unequal_shares_that_do_not_fit_name_the_option() -> None:
    _, _, part = make("all particles equal", 4)
    sort = jz.tree.distr_zsort.smap(mesh_of(4), jit=True)
    with pytest.raises(
        CapacityError, match=r"rank \d needs capacity for 900 rows of sorted particles.*give a larger capacity"
    ) as error:
        sort(part, equalize=False, capacity=500)
    assert error.value.need == 900
    assert error.value.have == 500
    assert np.asarray(sort(part, equalize=False)[0].num).sum() == 900


@pytest.mark.parametrize(("capacity", "error"), [("500", TypeError), (2.5, TypeError), (-1, ValueError)])
def test_invalid_capacity_raises(capacity: Any, error: type[Exception]) -> None:
    part = deal(oracles.uniform(40, 3), np.full(4, 10))
    with pytest.raises(error, match=f"capacity.*{capacity}"):
        jz.tree.distr_zsort.smap(mesh_of(4))(part, equalize=False, capacity=capacity)


@pytest.mark.long
def test_default_capacity_that_is_too_small_grows() -> None:
    pos = np.full((800, 3), 0.25, np.float32)
    part = deal(pos, np.full(4, 200), rows=210)
    partz, _ = jz.tree.distr_zsort.smap(mesh_of(4), jit=True)(part, equalize=False)
    assert sorted(np.asarray(partz.num)) == [0, 0, 0, 800]
    assert partz.pos.shape[1] >= 800


def test_data_is_moved_with_particles() -> None:
    _, counts, part = make("uniform, ranks without particles", 4)
    data = {"double": 2 * np.asarray(part.id), "flag": np.asarray(part.id) % 3 == 0}
    partz, dataz, _ = jz.tree.distr_zsort.smap(mesh_of(4), jit=True)(part, data)
    ids = joined(partz.id, np.asarray(partz.num))
    assert len(ids) == counts.sum()
    np.testing.assert_array_equal(joined(dataz["double"], np.asarray(partz.num)), 2 * ids)
    np.testing.assert_array_equal(joined(dataz["flag"], np.asarray(partz.num)), ids % 3 == 0)


def test_nan_on_one_rank_raises_with_row_and_rank() -> None:
    _, _, part = make("uniform", 4)
    bad = np.array(part.pos)
    bad[2, 17, 1] = np.nan
    with pytest.raises(Exception, match="on rank 2: row 17 of the positions is NaN or infinite"):
        jax.block_until_ready(jz.tree.distr_zsort.smap(mesh_of(4), jit=True)(Pos(pos=bad, num=part.num)))
    # The same compiled function works after the error.
    good = jz.tree.distr_zsort.smap(mesh_of(4), jit=True)(Pos(pos=part.pos, num=part.num))
    assert np.asarray(good[0].num).sum() == 1200


def test_wrong_arguments_raise_at_the_call() -> None:
    _, _, part = make("uniform", 4)
    sort = jz.tree.distr_zsort.smap(mesh_of(4), jit=True)
    with pytest.raises(ValueError, match="nsamp"):
        sort(part, equalize=False, nsamp=0)
    with pytest.raises(ValueError, match="leading axis must run over the 4 devices"):
        sort(np.zeros((100, 3), np.float32))
    with pytest.raises(ValueError, match="every array in data"):
        sort(part, np.zeros((4, 7), np.float32))


@pytest.mark.long
@pytest.mark.parametrize("ndev", [2, 4])
def test_tree_over_each_range(ndev: int) -> None:
    pos, _, part = make("clustered", ndev)
    partz, th = jz.tree.zsort_and_tree.smap(mesh_of(ndev), jit=True)(part)
    for rank in range(ndev):
        of_rank = jax.tree.map(lambda leaf, rank=rank: np.asarray(leaf)[rank], th)
        splits, ours = of_rank.particle_splits(0), np.asarray(partz.pos[rank])
        assert splits[-1] == partz.num[rank]
        for leaf in range(of_rank.num_nodes(0)):
            rows = ours[splits[leaf] : splits[leaf + 1]]
            if len(rows):
                np.testing.assert_array_equal(of_rank.lower(0)[leaf], rows.min(axis=0))
                np.testing.assert_array_equal(of_rank.upper(0)[leaf], rows.max(axis=0))
    np.testing.assert_array_equal(joined(partz.pos, np.asarray(partz.num)), sorted_on_one(pos, None)[0])


@pytest.mark.long
def test_several_types_are_cut_together() -> None:
    rng = np.random.default_rng(3)
    ndev, counts = 4, np.array([300, 0, 500, 100])
    stars = deal(rng.random((900, 3)).astype(np.float32) * 0.1, counts)  # in a corner
    gas = deal(rng.random((1000, 3)).astype(np.float32), np.full(ndev, 250))
    (stars_z, gas_z), (th_stars, th_gas) = jz.tree.zsort_and_tree_multi_type.smap(mesh_of(ndev), jit=True)((stars, gas))
    together = np.asarray(stars_z.num) + np.asarray(gas_z.num)
    assert together.max() - together.min() <= 1
    both = np.concatenate([joined(stars.pos, counts), joined(gas.pos, np.full(ndev, 250))])
    for typed, given in ((stars_z, stars), (gas_z, gas)):
        ids = joined(typed.id, np.asarray(typed.num))
        np.testing.assert_array_equal(np.sort(ids), np.arange(len(ids)))
        order = np.argsort(jz.tree.search_sorted_z(jz.tree.zsort(both)[0], joined(typed.pos, np.asarray(typed.num))))
        np.testing.assert_array_equal(order, np.arange(len(ids)))
        assert len(ids) == np.asarray(given.num).sum()
    np.testing.assert_array_equal(th_stars.flat_lower, th_gas.flat_lower)
    for rank in range(ndev):
        of_rank = jax.tree.map(lambda leaf, rank=rank: np.asarray(leaf)[rank], th_gas)
        assert of_rank.particle_splits(0)[-1] == gas_z.num[rank]
    mapped = jz.tree.zsort_and_tree_multi_type.smap(mesh_of(ndev), jit=True)
    th = mapped((stars, gas), one_hierarchy=True)[1]
    np.testing.assert_array_equal(th.flat_particle_splits_per_type[:, 1], th_gas.flat_particle_splits)
    np.testing.assert_array_equal(th.flat_particle_splits, th.flat_particle_splits_per_type.sum(axis=1))


@pytest.mark.long
def test_float64(x64: None) -> None:
    pos = np.random.default_rng(1).random((500, 2))
    part = deal(pos, all_on_last(500, 3), rows=510)
    partz, _ = jz.tree.distr_zsort.smap(mesh_of(3), jit=True)(ParticleData(pos=jnp.asarray(part.pos), num=part.num))
    np.testing.assert_array_equal(joined(partz.pos, np.asarray(partz.num)), sorted_on_one(pos, None)[0])


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("dims", [1, 2, pytest.param(8, marks=pytest.mark.slow)])
def test_positions_that_share_a_key_are_in_the_order_of_one_device(ndev: int, dims: int) -> None:
    """Ranks may have few cells, and cuts may be anywhere among them."""
    sort = jz.tree.distr_zsort.smap(mesh_of(ndev), jit=True)
    for seed in range(12):
        rng = np.random.default_rng(seed)
        pos = crowds(rng, dims)
        counts = rng.multinomial(len(pos), rng.dirichlet(np.full(ndev, 0.5)))
        box = [None, 1.0, np.where(np.arange(dims) % 2, 1.0, 0.0)][seed % 3]
        partz, _ = sort(deal(pos, counts, rows=200), boxsize=np.zeros(dims) if box is None else np.full(dims, box))
        ids = joined(partz.id, np.asarray(partz.num))
        np.testing.assert_array_equal(ids, oracles.z_order(pos, box), f"seed {seed}")
        assert np.ptp(np.asarray(partz.num)) <= 1


def crowds(rng: np.random.Generator, dims: int) -> np.ndarray:
    """Return up to 200 points: crowds below the resolution of keys, of both signs and any scale, some equal."""
    n = int(rng.integers(3, 200))
    tiny = rng.standard_normal((n, dims)) * 10.0 ** -rng.integers(0, 34, (n, 1))
    pos = np.where(rng.random((n, 1)) < 0.7, tiny, rng.choice([0.0, -0.0, 0.25, 1.0], (n, dims)))
    pos[0] = 10.0 ** rng.integers(0, 35)
    return pos[rng.integers(0, n, n)].astype(np.float32)
