"""Friends-of-friends over ranks, compared with the groups of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, even, joined, make, mesh_of, square_mesh, uneven

import jztree as jz
from jztree import CapacityError, stats
from jztree.config import CatalogueConfig, FofConfig
from jztree.data import ParticleData, squeeze_catalogue

pytestmark = pytest.mark.emulated

NDEV = 3  # Several tests share the compiled search over these devices, with ROWS particles each.


def on_one(pos: np.ndarray, rlink: float, box: Any) -> tuple[np.ndarray, np.ndarray]:
    partz, label = jz.fof.fof_labels.jit(jnp.asarray(pos), rlink, boxsize=box)
    return np.asarray(partz), np.asarray(label)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_several_devices_give_the_labels_of_one(ndev: int) -> None:
    find = jz.fof.distr_fof_labels.smap(mesh_of(ndev), jit=True)
    for name, (_, _, rlink) in SETS.items():
        pos, _, part = make(name, ndev)
        for box in (0.0, 1.0):
            if "outlier" in name and box:
                continue
            partz, label = find(part, rlink, boxsize=box, linearize_labels=True)
            counts = np.asarray(partz.num)
            want_pos, want = on_one(pos, rlink, box)
            np.testing.assert_array_equal(joined(partz.pos, counts), want_pos, name)
            np.testing.assert_array_equal(joined(label, counts), want, f"{name}, box {box}")


@pytest.mark.parametrize("name", ["uniform, ranks without particles", "clustered", "all particles equal"])
def test_labels_in_input_order_are_those_of_one_device(name: str) -> None:
    pos, counts, part = make(name, 4)
    rlink = SETS[name][2]
    given, label = jz.fof.fof_labels.smap(mesh_of(4), jit=True)(part, rlink, 1.0, output_order="input")
    want = jz.fof.fof_labels.jit(jnp.asarray(pos), rlink, 1.0, output_order="input")[1]
    np.testing.assert_array_equal(given.pos, part.pos)
    np.testing.assert_array_equal(joined(label, counts), want)
    for rank, count in enumerate(counts):
        assert (np.asarray(label)[rank, count:] == -1).all()


def test_labels_in_input_order_of_sorted_particles_are_those_of_one_device() -> None:
    _, _, part = make("clustered", NDEV)
    partz, th = jz.tree.zsort_and_tree.smap(mesh_of(NDEV), jit=True)(part, boxsize=1.0)
    label = jz.fof.fof_labels.smap(mesh_of(NDEV), jit=True)(partz, 0.012, 1.0, th=th, output_order="input")[1]
    counts = np.asarray(partz.num)
    want = jz.fof.fof_labels.jit(jnp.asarray(joined(partz.pos, counts)), 0.012, 1.0, output_order="input")[1]
    np.testing.assert_array_equal(joined(label, counts), want)


@pytest.mark.long
def test_labels_equal_connected_components() -> None:
    _, _, part = make("clustered", NDEV)
    find = jz.fof.distr_fof_labels.smap(mesh_of(NDEV), jit=True)
    partz, label = find(part, 0.012, boxsize=1.0, linearize_labels=True)
    counts = np.asarray(partz.num)
    want = oracles.components(joined(partz.pos, counts), 0.012, 1.0)
    got = joined(label, counts)
    np.testing.assert_array_equal(oracles.smallest_members(got), oracles.smallest_members(want))


@pytest.mark.long
def test_labels_are_rank_and_row_of_the_first_particle() -> None:
    _, _, part = make("percolating", 4)
    partz, label = jz.fof.distr_fof_labels.smap(square_mesh(), jit=True)(part, 0.14)
    counts = np.asarray(partz.num)
    rank, row = joined(label.irank, counts), joined(label.igroup, counts)
    starts = np.cumsum(counts) - counts
    linear = starts[rank] + row
    np.testing.assert_array_equal(linear, on_one(make("percolating", 4)[0], 0.14, 0.0)[1])
    np.testing.assert_array_equal(linear[linear], linear)
    for padded_rank in range(4):
        padding = np.arange(counts[padded_rank], 1200)
        np.testing.assert_array_equal(np.asarray(label.irank)[padded_rank, padding], padded_rank)
        np.testing.assert_array_equal(np.asarray(label.igroup)[padded_rank, padding], padding)


@pytest.mark.parametrize("dims", [1, 2, pytest.param(4, marks=pytest.mark.slow)])
def test_other_dimensions_with_a_box_of_mixed_sides(dims: int) -> None:
    pos = np.random.default_rng(dims).random((500, dims)).astype(np.float32)
    rlink = [0.0, 0.0015, 0.025, 0.0, 0.2][dims]
    box = np.where(np.arange(dims) == 0, 1.0, 0.0)
    part = deal(pos, uneven(500, 4), rows=500)
    partz, label = jz.fof.distr_fof_labels.smap(mesh_of(4), jit=True)(part, rlink, boxsize=box, linearize_labels=True)
    counts = np.asarray(partz.num)
    want_pos, want = on_one(pos, rlink, box)
    np.testing.assert_array_equal(joined(partz.pos, counts), want_pos)
    np.testing.assert_array_equal(joined(label, counts), want)
    assert 1 < len(np.unique(want)) < 500


@pytest.mark.long
def test_float64(x64: None) -> None:
    # In the smaller unit, squares of lengths are subnormal, with only a few bits.
    for unit in (1.0, 2.0**-532):
        pos = np.random.default_rng(2).random((500, 3)) * unit
        part = ParticleData(pos=jnp.asarray(deal(pos, even(500, 3), 170).pos), num=jnp.asarray(even(500, 3), jnp.int32))
        partz, label = jz.fof.distr_fof_labels.smap(mesh_of(3), jit=True)(part, 0.1 * unit, linearize_labels=True)
        groups = on_one(pos / unit, 0.1, 0.0)[1]
        np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), groups, f"in units of {unit}")


@pytest.mark.long
def test_given_tree() -> None:
    pos, _, part = make("clustered", NDEV)
    mesh = mesh_of(NDEV)
    partz, th = jz.tree.zsort_and_tree.smap(mesh, jit=True)(part, boxsize=1.0)
    again, label = jz.fof.distr_fof_labels.smap(mesh, jit=True)(partz, 0.012, 1.0, th=th, linearize_labels=True)
    np.testing.assert_array_equal(again.pos, partz.pos)
    np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), on_one(pos, 0.012, 1.0)[1])


@pytest.mark.long
def test_fof_labels_over_devices_equal_those_of_one() -> None:
    pos, _, part = make("uniform", 4)
    partz, label = jz.fof.fof_labels.smap(mesh_of(4), jit=True)(part, 0.06)
    np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), on_one(pos, 0.06, 0.0)[1])


@pytest.mark.core
@pytest.mark.long
@pytest.mark.parametrize("ndev", [1, 2, 4, 7])
def test_several_devices_give_the_catalogue_of_one(ndev: int) -> None:
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=3))
    find = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)
    rng = np.random.default_rng(9)
    for name in ("uniform", "percolating", "clustered", "all particles equal", "chain through every rank and back"):
        pos, counts, part = make(name, ndev)
        vel, mass = rng.normal(size=pos.shape).astype(np.float32), rng.random(len(pos)).astype(np.float32)
        part.vel, part.mass = deal(vel, counts).pos, deal(mass[:, None], counts).pos[..., 0]
        grouped, stacked = find(part, SETS[name][2], boxsize=1.0, cfg=cfg)
        single = ParticleData(pos=jnp.asarray(pos), vel=vel, mass=mass, id=np.arange(len(pos), dtype=np.int32))
        want_grouped, want = jz.fof.fof_and_catalogue.jit(single, SETS[name][2], boxsize=1.0, cfg=cfg)
        nums = np.asarray(grouped.num)
        np.testing.assert_array_equal(nums, [len(range(rank, len(pos), ndev)) for rank in range(ndev)])
        cata, want = squeeze_catalogue(stacked, offset_mode="global", nparts=nums), squeeze_catalogue(want)
        assert cata.ngroups == want.ngroups
        np.testing.assert_array_equal(cata.count, want.count)
        order = oracles.one_device_order(cata, len(pos))
        np.testing.assert_array_equal(joined(grouped.id, nums)[order], want_grouped.id, name)
        sums = ("mass", "com_pos", "com_vel", "vel_dispersion", "com_inertia_radius", "max_radius")
        for field in (*sums, "shape_tensor", "angular_momentum"):
            got, expected = getattr(cata, field), getattr(want, field)
            np.testing.assert_allclose(got, expected, rtol=2e-6, atol=2e-6, err_msg=f"{name}: {field}")


@pytest.mark.parametrize("box", [0.0, 1.0])
def test_groups_are_balanced_and_few_rows_move(box: float) -> None:
    n = 20000
    part = deal(np.random.default_rng(8).random((n, 3)).astype(np.float32), even(n, 4), rows=n // 4)
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=8))
    with stats.statistics() as counted:
        _, cata = jz.fof.fof_and_catalogue.smap(mesh_of(4), jit=True)(part, 0.7 * n ** (-1 / 3), boxsize=box, cfg=cfg)
    ngroups = np.asarray(cata.ngroups)
    assert ngroups.sum() > 100
    assert (ngroups > 0.5 * ngroups.mean()).all()
    assert (ngroups < 1.5 * ngroups.mean()).all()
    assert 0 < counted["rows.groups"] < 0.1 * n


@pytest.mark.long
def test_snapshot_groups_equal_the_reference(shared_data: Any) -> None:
    pos = np.load(next(iter(sorted(shared_data.rglob("pos2d*.npy"))))).astype(np.float32)[:16000]
    part = deal(pos, uneven(len(pos), 4), rows=len(pos))
    partz, label = jz.fof.distr_fof_labels.smap(mesh_of(4), jit=True)(part, 0.2, linearize_labels=True)
    np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), on_one(pos, 0.2, 0.0)[1])


@pytest.mark.long
@pytest.mark.parametrize(("option", "words"), [("ghost_rows", "ghosts"), ("edge_rows", "links")])
def test_capacity_error_names_rank_sizes_and_option(option: str, words: str) -> None:
    pos = make("percolating", 4)[0]
    part = deal(pos, even(1200, 4), rows=300)
    find = jz.fof.distr_fof_labels.smap(mesh_of(4), jit=True)
    with pytest.raises(
        CapacityError, match=rf"rank \d needs capacity for \d+ rows of .*{words}.*; set {option}"
    ) as error:
        find(part, 0.14, cfg=FofConfig(**{option: 2}))
    need = error.value.need - (300 if option == "ghost_rows" else 0)
    partz, label = find(part, 0.14, cfg=FofConfig(**{option: need}), linearize_labels=True)
    np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), on_one(pos, 0.14, 0.0)[1])


@pytest.mark.long
def test_capacity_of_ghosts_and_links_grows_automatically() -> None:
    """All particles of a plane sheet are within the linking length of other ranks."""
    rng = np.random.default_rng(4)
    pos = np.c_[rng.random((24000, 2)) * 1e-3, np.zeros(24000)].astype(np.float32)
    part = deal(pos, even(24000, 4), rows=6000)
    partz, label = jz.fof.distr_fof_labels.smap(mesh_of(4), jit=True)(part, 5e-4, linearize_labels=True)
    assert np.all(joined(label, np.asarray(partz.num)) == 0)
    partz, label = jz.fof.distr_fof_labels.smap(mesh_of(4), jit=True)(part, 2e-6, linearize_labels=True)
    np.testing.assert_array_equal(joined(label, np.asarray(partz.num)), on_one(pos, 2e-6, 0.0)[1])


@pytest.mark.long
@pytest.mark.parametrize("rlink", [0.6, 2.5])
def test_linking_length_above_half_the_box(rlink: float) -> None:
    box = np.array([1.0, 4.0, 0.0])
    pos = (np.random.default_rng(19).random((90, 3)) * [1, 4, 40]).astype(np.float32)
    part = deal(pos, even(90, NDEV))
    partz, label = jz.fof.distr_fof_labels.smap(mesh_of(NDEV), jit=True)(part, rlink, box, linearize_labels=True)
    result, num = np.asarray(label), np.asarray(partz.num)
    expected = oracles.components(joined(partz.pos, num), rlink, box)
    np.testing.assert_array_equal(oracles.smallest_members(joined(result, num)), oracles.smallest_members(expected))


@pytest.mark.long
def test_nan_on_one_rank_and_invalid_arguments_raise() -> None:
    _, _, part = make("uniform", 4)
    bad = np.array(part.pos)
    bad[3, 5, 0] = np.inf
    find = jz.fof.fof_and_catalogue.smap(mesh_of(4), jit=True)
    with pytest.raises(Exception, match="on rank 3: row 5 of the positions is NaN or infinite"):
        jax.block_until_ready(find(ParticleData(pos=bad, num=part.num), 0.1))
    with pytest.raises(ValueError, match="must be finite and not negative"):
        find(part, -1.0)


@pytest.mark.long
def test_linking_lengths_share_one_compilation(count_compilations: Any) -> None:
    _, _, part = make("uniform", NDEV)
    find = jz.fof.distr_fof_labels.smap(mesh_of(NDEV), jit=True)
    jax.block_until_ready(find(part, 0.05, boxsize=1.0, linearize_labels=True))
    with count_compilations() as lines:
        jax.block_until_ready(find(part, 0.07, boxsize=1.5, linearize_labels=True))
    assert not [line for line in lines if "fof" in line]
