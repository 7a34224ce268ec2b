"""Calls in scripts for the published package (jz-tree 1.1), with its names, orders of arguments and defaults."""

import dataclasses
import inspect
from dataclasses import dataclass
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree import data, jax_ext, stats
from jztree.config import FofCatalogueConfig, FofConfig, KNNConfig, RegularizationConfig, TreeConfig
from jztree.data import FofCatalogue, ParticleData, Pos, PosMass
from jztree_utils import ics

PUBLISHED_FIELDS = (
    "ngroups",
    "mass",
    "count",
    "offset",
    "com_pos",
    "com_vel",
    "com_inertia_radius",
    "scale_factor",
    "v_rad",
    "offset_rank",
)
N = 400


def particles(n: int = N, seed: int = 3, **more: Any) -> ParticleData:
    """Return clumps in the unit box, of particles with masses and velocities."""
    rng = np.random.default_rng(seed)
    centres = rng.random((8, 3))
    pos = (centres[rng.integers(0, 8, n)] + rng.normal(0, 0.01, (n, 3))) % 1
    mass, vel = rng.uniform(1, 2, n), rng.normal(size=(n, 3))
    return ParticleData(
        pos=pos.astype(np.float32), mass=mass.astype(np.float32), vel=vel.astype(np.float32), id=np.arange(n), **more
    )


# num of shape (1,)


def test_num_of_shape_1_is_a_scalar() -> None:
    part = particles()
    expected, want = jz.fof.fof_and_catalogue.jit(dataclasses.replace(part, num=300), 0.02, 1.0)
    result, cata = jz.fof.fof_and_catalogue.jit(dataclasses.replace(part, num=jnp.asarray([300])), 0.02, 1.0)
    assert result.num.shape == (1,)
    assert int(result.num[0]) == 300
    np.testing.assert_array_equal(result.id, expected.id)
    assert bool(data.catalogues_equal(cata, want))
    assert data.get_num(result).shape == ()


def test_num_of_shape_1_of_one_particle_is_not_a_property() -> None:
    part = Pos(pos=jnp.zeros((1, 3)), num=jnp.ones(1, jnp.int32))
    padded = data.pad_particles(part, 2)
    assert padded.pos.shape == (3, 3)
    assert padded.num.tolist() == [1]
    rad, rows = jz.knn.knn(part, 1)
    assert (float(rad[0, 0]), int(rows[0, 0])) == (0, 0)
    assert jz.tree.zsort(part)[0].num.tolist() == [1]
    assert data.squeeze_particles(padded).pos.shape == (1, 3)


@pytest.mark.parametrize("num", [np.ones(2, np.int32), np.ones((1, 1), np.int32)], ids=["two", "table"])
def test_num_of_other_shapes_is_refused(num: Any) -> None:
    with pytest.raises(TypeError, match="must be one integer"):
        jz.knn.knn(Pos(pos=jnp.zeros((3, 3)), num=num), 1)


# The catalogue


def test_catalogue_has_the_published_fields_and_order() -> None:
    assert tuple(field.name for field in dataclasses.fields(FofCatalogue)) == PUBLISHED_FIELDS
    cata = FofCatalogue(jnp.array(20), count=jnp.ones(20), com_pos=jnp.zeros((20, 3)))
    assert all(getattr(cata, name) is None for name in set(PUBLISHED_FIELDS) - {"ngroups", "count", "com_pos"})
    in_order = FofCatalogue(*range(10))
    assert dataclasses.asdict(in_order) == dict(zip(PUBLISHED_FIELDS, range(10), strict=True))
    with pytest.raises(TypeError):
        FofCatalogue(*range(11))


@jax.tree_util.register_dataclass
@dataclass
class TheirCatalogue:
    """A class of a simulation code, with exactly the published fields."""

    ngroups: Any
    mass: Any
    count: Any
    offset: Any
    com_pos: Any
    com_vel: Any
    com_inertia_radius: Any
    scale_factor: Any
    v_rad: Any
    offset_rank: Any


def copied(cata: FofCatalogue) -> TheirCatalogue:
    return TheirCatalogue(**{field.name: getattr(cata, field.name) for field in dataclasses.fields(cata)})


def test_catalogue_can_be_copied_by_field_name() -> None:
    cata = jz.fof.fof_and_catalogue.jit(particles(), 0.02, 1.0)[1]
    ours = copied(jax.tree.map(jnp.atleast_1d, cata))
    assert ours.ngroups.shape == (1,)
    assert int(ours.ngroups[0]) == int(cata.ngroups) > 3
    np.testing.assert_array_equal(ours.offset_rank, 0)
    np.testing.assert_array_equal(ours.mass, cata.mass)


def test_further_columns_are_moved_and_can_be_omitted() -> None:
    cata = jz.fof.fof_and_catalogue.jit(particles(), 0.02, 1.0)[1]
    shifted = dataclasses.replace(jax.jit(lambda cata: cata)(cata), mass=None)
    np.testing.assert_array_equal(shifted.max_radius, cata.max_radius)
    assert shifted.angular_momentum.shape == (N // 20, 3)
    paths = {jax.tree_util.keystr(path) for path, _ in jax.tree_util.tree_flatten_with_path(cata)[0]}
    assert paths >= {".ngroups", ".count", ".max_radius"}
    plain_config = FofConfig(catalogue=FofCatalogueConfig(extended=False))
    plain = jz.fof.fof_and_catalogue.jit(particles(), 0.02, 1.0, plain_config)[1]
    assert len(jax.tree.leaves(plain)) == len([name for name in PUBLISHED_FIELDS if getattr(plain, name) is not None])
    np.testing.assert_array_equal(plain.com_pos, cata.com_pos)


@pytest.mark.long
def test_catalogues_of_ranks_are_joined_by_flatten_and_by_squeeze() -> None:
    part = particles()
    single = data.squeeze_catalogue(jz.fof.fof_and_catalogue.jit(part, 0.02, 1.0)[1])
    grouped, cata = jz.fof.fof_and_catalogue.smap(mesh_of(2), jit=True)(data.expand_particles(part, 2), 0.02, 1.0)
    for flat in (cata.flatten(), jax.jit(lambda cata: cata.flatten())(cata)):
        used = int(flat.ngroups)
        assert used == single.ngroups
        assert flat.count.shape == (2 * cata.count.shape[1],)
        np.testing.assert_array_equal(flat.count[:used], single.count)
        np.testing.assert_array_equal(flat.count[used:], 0)
    ranks = np.repeat([0, 1], np.asarray(cata.ngroups))
    np.testing.assert_array_equal(flat.offset_rank[:used], ranks)
    starts = np.r_[0, np.asarray(grouped.num)[0]]
    complete = data.squeeze_catalogue.jit(cata, size_out=30, offset_mode="global", nparts=grouped.num)
    assert complete.count.shape == (30,)
    np.testing.assert_array_equal(complete.offset[:used], flat.offset[:used] + starts[ranks])
    np.testing.assert_array_equal(complete.offset_rank, 0)
    host = data.squeeze_catalogue(cata, 30, "global", grouped.num)
    assert bool(data.catalogues_equal(host, complete))


def test_catalogue_larger_than_size_out_raises() -> None:
    cata = FofCatalogue(ngroups=jnp.int32(3), count=jnp.array([3, 2, 1, 0]), offset=jnp.arange(4))
    assert data.squeeze_catalogue(cata, 3).count.tolist() == [3, 2, 1]
    with pytest.raises(ValueError, match="3 groups, but size_out has only 2 rows"):
        data.squeeze_catalogue(cata, 2)
    with pytest.raises(Exception, match="3 groups, but size_out has only 2 rows"):
        jax.block_until_ready(data.squeeze_catalogue.jit(cata, 2).count)
    with pytest.raises(TypeError, match="pass offset_mode and nparts by name"):
        data.squeeze_catalogue(cata, "global", 4)
    with pytest.raises(ValueError, match="set size_out"):
        data.squeeze_catalogue.jit(cata)


def test_catalogues_are_sorted_by_any_number_either_way() -> None:
    nan = float("nan")
    cata = FofCatalogue(3, mass=jnp.array([2.0, nan, 1.0, 0]), count=jnp.array([5, 9, 5, 0]), com_pos=jnp.zeros((4, 3)))
    assert data.sort_catalogue(cata).count.tolist() == [9, 5, 5, 0]
    assert data.sort_catalogue(cata, descending=False).count.tolist() == [5, 5, 9, 0]
    np.testing.assert_array_equal(data.sort_catalogue(cata, "mass").mass, [2, 1, nan, 0])
    np.testing.assert_array_equal(data.sort_catalogue(cata, by="mass", descending=False).mass, [1, 2, nan, 0])
    for by in ("com_pos", "com_vel", "colour"):
        with pytest.raises(ValueError, match=r"has .*count"):
            data.sort_catalogue(cata, by)


# Light cones, and means of further properties


@jax.tree_util.register_dataclass
@dataclass
class LightCone:
    pos: Any
    mass: Any
    v_rad: Any
    zplus1: Any
    colours: Any
    num: Any = None


def light_cone() -> LightCone:
    part, rng = particles(), np.random.default_rng(8)
    colours = rng.random((N, 2, 2)).astype(np.float32)
    v_rad, zplus1 = rng.normal(size=N), rng.uniform(1, 3, N)
    return LightCone(part.pos, part.mass, v_rad.astype(np.float32), zplus1.astype(np.float32), colours)


@pytest.mark.long
@pytest.mark.parametrize("ndev", [1, 3])
def test_means_over_groups(ndev: int) -> None:
    part, cfg = light_cone(), FofConfig(catalogue=FofCatalogueConfig(means=("colours", "v_rad")))
    part.num = np.int32(N)
    if ndev == 1:
        grouped, cata = jz.fof.fof_and_catalogue.jit(part, 0.02, 1.0, cfg)
    else:
        stacked = data.expand_particles(part, ndev)
        grouped, cata = jz.fof.fof_and_catalogue.smap(mesh_of(ndev), jit=True)(stacked, 0.02, 1.0, cfg)
        cata = data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num)
        grouped = data.flatten_particles(grouped)
    assert int(cata.ngroups) > 3
    for row in range(int(cata.ngroups)):
        rows = slice(int(cata.offset[row]), int(cata.offset[row]) + int(cata.count[row]))
        weight = np.asarray(grouped.mass, np.float64)[rows]

        def mean(values: Any, rows: slice = rows, weight: np.ndarray = weight) -> np.ndarray:
            return np.average(np.asarray(values, np.float64)[rows], axis=0, weights=weight)

        np.testing.assert_allclose(cata.v_rad[row], mean(grouped.v_rad), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(cata.scale_factor[row], mean(1 / np.asarray(grouped.zplus1)), rtol=1e-6)
        np.testing.assert_allclose(cata.means["colours"][row], mean(grouped.colours), rtol=1e-6)
        np.testing.assert_array_equal(cata.means["v_rad"][row], cata.v_rad[row])
    assert list(jz.fof.fof_and_catalogue.jit(particles(), 0.02, 1.0)[1].columns()) == list(FofCatalogue.column_names())


def test_property_that_cannot_be_averaged_raises() -> None:
    def run(part: Any, *means: str) -> None:
        cfg = FofConfig(catalogue=FofCatalogueConfig(means=means))
        jax.block_until_ready(jz.fof.fof_and_catalogue(part, 0.02, 1.0, cfg))

    with pytest.raises(ValueError, match="'temperature', but the particles have no such property"):
        run(light_cone(), "temperature")
    part = light_cone()
    part.v_rad[7] = np.nan
    with pytest.raises(Exception, match="row 7 has a v_rad that is NaN"):
        run(part)
    part = light_cone()
    part.zplus1[9] = 0
    with pytest.raises(Exception, match="row 9 has a zplus1 that is not positive"):
        run(part)
    part.num = 9  # the rows after these do not count
    run(part)
    with pytest.raises(ValueError, match="v_rad must be one number or have one row per particle"):
        run(LightCone(part.pos, None, part.v_rad[:5], part.zplus1, part.colours))
    with pytest.raises(TypeError, match="tuple of names"):
        FofCatalogueConfig(means="colours")


# Padding


def test_padded_rows_have_the_given_fill_values() -> None:
    part = particles(6)
    padded = data.pad_particles(part, 2, float_val=-1.0, int_val=-7)
    np.testing.assert_array_equal(padded.pos[6:], -1)
    np.testing.assert_array_equal(padded.id[6:], -7)
    assert np.isnan(data.pad_particles(part, num=2).pos[6:]).all()
    for wrong in (1.5, "1", True):
        with pytest.raises(TypeError, match="an integer, the number of rows to append"):
            data.pad_particles(part, wrong)
    with pytest.raises(ValueError, match=r"int_val is 2\d*, which is outside the range of int64"):
        data.pad_particles(part, 1, int_val=2 * 10**20)
    assert np.isnan(ics.uniform_particles(4, npad=3).pos[4:]).all()


@pytest.mark.long
def test_padding_of_nan_affects_no_result_and_no_derivative() -> None:
    part = particles(num=N)

    def total(pos: Any, padded: Any) -> Any:
        padded = dataclasses.replace(padded, pos=padded.pos.at[:N].set(pos))
        cata = jz.fof.fof_and_catalogue(padded, 0.02, 1.0)[1]
        rad = jz.knn.knn(padded, 4, 1.0, result="rad")[:N]
        density = jz.density.knn_density(padded, 8, boxsize=1.0)[:N]
        columns = jax.tree.map(lambda leaf: leaf[:3], [cata.com_pos, cata.mass, cata.shape_tensor, cata.com_vel])
        return sum(jnp.sum(x) for x in jax.tree.leaves((columns, rad, density)))

    values = [
        jax.jit(jax.value_and_grad(total))(part.pos, jax.tree.map(jnp.asarray, data.pad_particles(part, 50, fill)))
        for fill in (0.0, np.nan)
    ]
    assert np.isfinite(values[1][1]).all()
    gpus.assert_same_sums(values[0][0], values[1][0])
    gpus.assert_same_sums(values[0][1], values[1][1])


def test_rows_of_nan_are_counted_on_request() -> None:
    pos = jnp.asarray(np.r_[oracles.uniform(5, 3), np.full((3, 3), np.nan)], jnp.float32)
    assert data.get_num(pos) == 8
    assert data.get_num(pos, default_to_nancount=True) == 5
    assert int(jax.jit(lambda pos: data.get_num(pos, default_to_nancount=True))(pos)) == 5
    assert data.get_num(Pos(pos=pos, num=2), default_to_nancount=True) == 2
    broken = pos.at[4, 1].set(jnp.nan)  # this is not padding
    assert data.get_num(broken, default_to_nancount=True) == 5
    with pytest.raises(ValueError, match="set num"):
        data.get_num(pos, default_to_length=False)
    with pytest.raises(ValueError, match="a row of NaN precedes"):
        data.get_num(pos[::-1], default_to_nancount=True)
    with pytest.raises(Exception, match="a row of NaN precedes"):
        jax.jit(lambda pos: data.get_num(pos, default_to_nancount=True))(pos[::-1]).block_until_ready()
    with pytest.raises(Exception, match=r"row 5 .*set num .*default_to_nancount"):
        jax.block_until_ready(jz.knn.knn(pos, 2))
    assert data.get_num_total(Pos(pos=pos, num_total=30)) == 30
    assert data.get_num_total(Pos(pos=pos), default_to_length=True) == 8
    with pytest.raises(ValueError, match="num_total"):
        data.get_num_total(Pos(pos=pos))


def test_sets_and_catalogues_are_compared_row_by_row() -> None:
    part = particles(10, num=8)
    assert bool(data.all_particles_equal(part, jax.tree.map(jnp.asarray, part)))
    assert bool(data.all_particles_equal(data.pad_particles(part, 3), part))
    second = dataclasses.replace(part, id=np.r_[np.arange(7), 99, 8, 9])
    assert not bool(data.all_particles_equal(part, second))
    assert bool(data.all_particles_equal(dataclasses.replace(part, num=7), dataclasses.replace(second, num=7)))
    with pytest.raises(TypeError, match=r"num is .* must be one integer"):
        data.all_particles_equal(*[data.expand_particles(part, 2)] * 2)
    assert not bool(data.all_particles_equal(part, dataclasses.replace(part, num=7)))
    with pytest.raises(ValueError, match="must be of one class with the same properties"):
        data.all_particles_equal(part, dataclasses.replace(part, vel=None))
    cata = FofCatalogue(jnp.int32(2), count=jnp.array([3, 2, 7]))
    assert bool(data.catalogues_equal(cata, FofCatalogue(jnp.int32(2), count=jnp.array([3, 2]))))
    assert not bool(data.catalogues_equal(cata, FofCatalogue(jnp.int32(2), count=jnp.array([3, 1, 7]))))


def test_empty_sets_and_catalogues_are_equal() -> None:
    none = ParticleData(pos=np.zeros((0, 3), np.float32))
    assert bool(data.all_particles_equal(none, none))
    cata = data.squeeze_catalogue(jz.fof.fof_and_catalogue(particles(5), 1e-6)[1])
    assert cata.ngroups == 0
    assert bool(data.catalogues_equal(cata, cata))


# Names, options, small functions


def test_options_can_be_given_read_and_changed() -> None:
    cfg = FofConfig(alloc_fac_ilist=32, alloc_fac_distr_links=0.01)
    cfg.tree.alloc_fac_nodes *= 2
    assert cfg.tree.alloc_fac_nodes == 2.2
    assert (cfg.alloc_fac_ilist, cfg.catalogue.npart_min, KNNConfig().alloc_fac_ilist) == (32, 20, 256.0)
    tree = TreeConfig(coarse_fac=8.0, stop_coarsen=2048, nsamp=64, regularization=RegularizationConfig())
    assert tree.regularization.max_volume_fac == 20.0
    assert tree == TreeConfig()
    assert hash(tree) == hash(TreeConfig())
    part = Pos(pos=jnp.asarray(oracles.uniform(500, 3)))
    for maximum in (7, 8, 30):
        shape = TreeConfig(max_leaf_size=maximum, mass_centered=False)
        assert int(jz.tree.zsort_and_tree(part, shape)[1].count(0).max()) <= maximum
    assert TreeConfig(mass_centered=True).masses
    with pytest.raises(ValueError, match="max_leaf_size must be an integer of at least 3"):
        TreeConfig(max_leaf_size=2)


def test_trees_of_searches_have_the_published_options() -> None:
    """Scripts scale the default options without setting them first."""
    cfg, fof = KNNConfig(), FofConfig()
    cfg.tree.regularization.max_volume_fac *= 2
    assert (cfg.tree.regularization.regularize_percentile, cfg.tree.regularization.max_volume_fac) == (90.0, 40.0)
    assert KNNConfig().tree.regularization.max_volume_fac == 20.0
    assert (cfg.tree.coarse_fac, cfg.tree.stop_coarsen, cfg.tree.alloc_fac_nodes) == (8.0, 2048, 1.0)
    assert (fof.tree.coarse_fac, fof.tree.stop_coarsen, fof.tree.alloc_fac_nodes) == (8.0, 2048, 1.1)
    assert fof.tree.regularization is None
    assert cfg.tree == fof.tree == TreeConfig()
    assert hash(cfg) == hash(KNNConfig())


def test_aliases() -> None:
    assert data.TreeHierarchy is jz.tree.TreeHierarchy
    assert jax_ext.get_rank_info is jz.comm.get_rank_info
    tree = {"a": np.zeros((4, 2)), "b": np.zeros((2, 4)), "c": np.zeros(()), "d": 3}
    result = jax_ext.tree_map_by_len(lambda leaf: leaf + 1, tree, 4)
    assert (result["a"].max(), result["b"].max(), result["c"], result["d"]) == (1, 0, 0, 3)
    assert jax_ext.tree_map_by_len(lambda leaf: leaf + 1, tree, N=4, axis=1)["b"].min() == 1


def test_arguments_by_their_published_names() -> None:
    pos = jnp.asarray(oracles.uniform(60, 3))
    assert jz.tree.zsort(pos=pos)[0].shape == jz.tree.zsort.jit(pos=pos)[0].shape == (60, 3)
    assert bool(jz.fof.fof_is_superset(igroup_sup=jnp.zeros(3, int), igroup=jnp.arange(3)))
    _, label = jz.fof.distr_fof_labels(pos, 0.1, linearize_labels=True)
    np.testing.assert_array_equal(label, jz.fof.fof_labels(pos, 0.1)[1])
    names = ["part", "rlink", "boxsize", "cfg", "th", "output_order"]
    assert list(inspect.signature(jz.fof.fof_labels).parameters) == names


@pytest.mark.long
def test_statistics_without_suggestions(capsys: Any) -> None:
    with stats.statistics() as s:
        jz.knn.knn.smap(mesh_of(2), jit=True)(data.expand_particles(particles(), 2), 4, 1.0)
    counted = s["rows.ghosts"]
    assert counted > 0
    s.print_suggestions(KNNConfig())
    assert "nothing to suggest" in capsys.readouterr().out
    s.print_info()
    assert "rows.ghosts" in capsys.readouterr().out
    with stats.statistics(s) as again, pytest.raises(ValueError, match="already counts"), stats.statistics(s):
        pass
    assert again is s
    assert s["rows.ghosts"] == counted


@pytest.mark.long
def test_samples() -> None:
    assert ics.cosmo_2d_sample().shape == (16384, 2)
    assert ics.uniform_particles(10, dim=2).pos.shape == (10, 2)
    assert ics.gaussian_particles(10, 2.0, 3.0, 0, 1, 2).pos.shape == (11, 2)
    part = ics.hernquist_posmass(20_000, a=2.0, total_mass=5.0, npad=1, rmax=200.0)
    assert isinstance(part, PosMass)
    radius = np.linalg.norm(part.pos[:20_000], axis=1)
    assert radius.max() <= 200 * 1.001
    inside = (radius[:, None] < [1, 2, 10]).mean(axis=0)
    np.testing.assert_allclose(inside, (np.array([1, 2, 10]) / (np.array([1, 2, 10]) + 2)) ** 2 * 1.01**2, atol=0.015)
    assert float(part.mass) * 20_000 == pytest.approx(5.0)
    assert ics.hernquist_posmass.smap(mesh_of(2), jit=True)(50).pos.shape == (2, 50, 3)


# A simulation code with its own shard_map


@pytest.mark.long
@pytest.mark.parametrize("ndev", [4, 1])
def test_inside_a_user_shard_map(ndev: int) -> None:
    part, mesh = particles(), mesh_of(ndev)
    rows = N // ndev + 10
    spread = data.expand_particles(part, ndev, npad=10)
    tiled = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), spread)
    tiled.num = np.asarray(spread.num)
    assert tiled.pos.shape == (ndev * rows, 3)
    cfg = FofConfig(alloc_fac_ilist=32, alloc_fac_distr_links=0.01)
    cfg.tree.alloc_fac_nodes, cfg.catalogue.npart_min = 1.0, 20

    @jax.jit
    @jax.shard_map(mesh=mesh, in_specs=P("gpus"), out_specs=P("gpus"))
    def find(part: ParticleData) -> Any:
        partf, cata = jz.fof.fof_and_catalogue(part=part, rlink=0.02, boxsize=1.0, cfg=cfg)
        return partf, copied(jax.tree.map(jnp.atleast_1d, cata))

    partf, ours = find(tiled)
    assert partf.num.shape == ours.ngroups.shape == (ndev,)
    expected = data.squeeze_catalogue(jz.fof.fof_and_catalogue.jit(part, 0.02, 1.0)[1])
    used = (np.arange(len(ours.count) // ndev) < np.asarray(ours.ngroups)[:, None]).reshape(-1)
    np.testing.assert_array_equal(np.asarray(ours.count)[used], expected.count)
    np.testing.assert_array_equal(np.asarray(ours.offset_rank)[used], np.repeat(np.arange(ndev), ours.ngroups))
