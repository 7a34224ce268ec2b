"""Users may forbid JAX to choose shapes and dtypes by itself; what the library does is not affected."""

from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree import data, halos
from jztree.comm import _ranks
from jztree.config import CatalogueConfig, FofConfig, TreeConfig
from jztree.tree import ghosts

SMALL = FofConfig(catalogue=CatalogueConfig(npart_min=2))
WORDS = "rad_globalidx_rankidx_part_vel"


@pytest.fixture(autouse=True, params=[False, True], ids=["32 bits", "64 bits"])
def forbidden(request: pytest.FixtureRequest) -> Iterator[None]:
    with jax.enable_x64(request.param), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        yield


def groups(part: Any) -> Any:
    return jz.fof.fof_and_catalogue(part, 0.2, 1.0, cfg=SMALL)


def catalogue(part: Any) -> Any:
    return groups(part)[1]


def spin(part: Any, **options: Any) -> Any:
    cata = catalogue(part)
    return halos.spin(cata, cata.mass, cata.max_radius, 43, **options)


def labels_with_hierarchy(part: Any) -> Any:
    partz, th = jz.tree.zsort_and_tree(part)
    return jz.fof.fof_labels(partz, 0.2, th=th)


def densest(part: Any) -> Any:
    grouped, cata = groups(part)
    return halos.densest_particle(grouped, cata, grouped.mass)


def spheres(part: Any, **options: Any) -> Any:
    return jz.overdensity.spherical_overdensity(part, part, [1.0, 2.0], 1.0, **options)


FUNCTIONS = {
    "zsort": lambda part: jz.tree.zsort(part, 1.0),
    "search_sorted_z": lambda part: jz.tree.search_sorted_z(part, part.pos),
    "build_tree_hierarchy": jz.tree.build_tree_hierarchy,
    "zsort_and_tree": lambda part: jz.tree.zsort_and_tree(part, TreeConfig(masses=True), data=part.id),
    "multi type": lambda part: jz.tree.zsort_and_tree_multi_type([part, part]),
    "distr_zsort": jz.tree.distr_zsort,
    "distr_zsort sampled": lambda part: jz.tree.distr_zsort(part, part.id, equalize=False),
    "knn": lambda part: jz.knn.knn(part, 4, 1.0, result=WORDS),
    "knn z": lambda part: jz.knn.knn(part, 4, result=WORDS, output_order="z"),
    "knn query": lambda part: jz.knn.knn(part, 4, part_query=part, result="rad_rankidx_mass"),
    "knn reduce": lambda part: jz.knn.knn(part, 4, result="rad_reduce", reduce_func=lambda rnn, **_: rnn.sum(axis=1)),
    "knn batch": lambda part: jz.knn.knn(part, 4, batch=part.id // 7, exclude_self=True),
    "knn max_radius": lambda part: jz.knn.knn(part, 4, 1.0, max_radius=part.mass, source_mask=part.id > 3),
    "dbscan": lambda part: jz.fof.dbscan(part, 0.1, 3, 1.0),
    "neighbours_within": lambda part: jz.radius.neighbours_within(part, 0.1, 1.0, nearest_first=True),
    "pairs_within": lambda part: jz.radius.pairs_within(part, 0.1, 1.0, capacity=900),
    "nearest_within": lambda part: jz.radius.nearest_within(part, 0.1, 5, 1.0),
    "kernel_sums": lambda part: jz.radius.kernel_sums(part, part.mass, 1.0, values=part.vel),
    "reduce_within": lambda part: jz.radius.reduce_within(part, 0.1, lambda q, s, v, d: d * d, 1.0, capacity=9000),
    "count_within": lambda part: jz.radius.count_within(part, [0.1, 0.2], 1.0, part_query=part),
    "count_within weight": lambda part: jz.radius.count_within(part, 0.1, weight=part.mass),
    "pair_counts": lambda part: jz.radius.pair_counts(part, [0.1, 0.2], 1.0, part_b=part, weight=part.mass),
    "pair_counts s_mu": lambda part: jz.radius.pair_counts(part, [0.1, 0.2], mode="s_mu", edges_b=[0, 1]),
    "fof_labels": lambda part: jz.fof.fof_labels(part, 0.2),
    "fof_labels th": labels_with_hierarchy,
    "distr_fof_labels": lambda part: jz.fof.distr_fof_labels(part, 0.2, linearize_labels=True),
    "fof_and_catalogue": groups,
    "attached": lambda part: jz.fof.fof_and_catalogue(part, 0.2, 1.0, attached=[part, part]),
    "fof_is_superset": lambda part: jz.fof.fof_is_superset(part.id, part.id, part.id > 3),
    "smoothing_length": lambda part: jz.density.smoothing_length(part, 5),
    "knn_density": lambda part: jz.density.knn_density(part, 5, 1.0),
    "knn_density query": lambda part: jz.density.knn_density(part, 5, part_query=part.pos),
    "sph_density": lambda part: jz.density.sph_density(part, 5, kernel="wendland_c4", bias_correction=True),
    "sph_kernel": lambda part: jz.density.sph_kernel(part.id, "wendland_c2", 3),
    "spherical_overdensity": spheres,
    "spherical_overdensity G": lambda part: spheres(part.pos, G=43),
    "sphere_properties": lambda part: jz.overdensity.sphere_properties(part, part, part.mass, 1.0),
    "concentration": lambda part: halos.concentration(part.mass, part.mass, part.mass, 43),
    "densest_particle": densest,
    "lowest_potential_particle": lambda part: halos.lowest_potential_particle(*groups(part), 1, 1.0),
    "principal_axes": lambda part: halos.principal_axes(catalogue(part)),
    "total_vel_dispersion": lambda part: halos.total_vel_dispersion(catalogue(part)),
    "spin": lambda part: spin(part, scale_factor=0.5),
    "sort_catalogue": lambda part: data.sort_catalogue(catalogue(part)),
    "pad_particles": lambda part: data.pad_particles(part, 3),
}
each = pytest.mark.parametrize("function", FUNCTIONS.values(), ids=FUNCTIONS)


def shapes(*ranks: int, mass: Any = jnp.float32) -> data.ParticleData:
    def column(*shape: int, dtype: Any = jnp.float32) -> Any:
        return jax.ShapeDtypeStruct((*ranks, *shape), dtype)

    return data.ParticleData(
        pos=column(60, 3),
        mass=column(60, dtype=mass),
        vel=column(60, 3),
        id=column(60, dtype=jnp.int32),
        num=column(dtype=jnp.int32),
    )


@each
def test_one_device(function: Any) -> None:
    assert jax.tree.leaves(jax.eval_shape(function, shapes()))


@each
@pytest.mark.parametrize("are_many", [False, True], ids=["few", "as many"])
def test_several_devices(function: Any, are_many: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if are_many:  # rows and boxes go the ways that they take among thousands
        monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)
        monkeypatch.setattr(ghosts, "_FEW_WANTED", 0)
    mesh, specs = mesh_of(2), {"in_specs": P("gpus"), "out_specs": P("gpus")}

    def local(part: Any) -> Any:
        result = function(jax.tree.map(lambda leaf: leaf[0], part))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)

    jax.eval_shape(jax.shard_map(local, mesh=mesh, check_vma=False, **specs), shapes(2))


def test_masses_that_are_integers() -> None:
    for name in ("fof_and_catalogue", "knn_density", "sph_density", "spherical_overdensity", "zsort_and_tree"):
        assert jax.tree.leaves(jax.eval_shape(FUNCTIONS[name], shapes(mass=jnp.int32))), name


def test_float64_keeps_its_precision() -> None:
    """A factor rounded to float32 on the way would show in the ninth digit."""
    if not jax.config.jax_enable_x64:
        return
    random = np.random.default_rng(3)
    part = data.ParticleData(pos=oracles.uniform(60, 3, np.float64), vel=random.random((60, 3)), num=60)
    cata = jz.fof.fof_and_catalogue.jit(part, 0.5, cfg=SMALL)[1]
    total = halos.total_vel_dispersion(cata)
    assert total.dtype == np.float64
    np.testing.assert_allclose(total, np.asarray(cata.vel_dispersion) * np.sqrt(3.0), rtol=1e-14)


@pytest.mark.slow
def test_what_runs_on_the_host_and_row_by_row() -> None:
    random = np.random.default_rng(3)
    part = data.ParticleData(
        pos=oracles.uniform(60, 3), mass=2.0, vel=random.random((60, 3), np.float32), id=np.arange(60), num=50
    )
    assert int(data.flatten_particles(data.expand_particles(part, 4, 2)).num) == 50
    _, cata = jz.fof.fof_and_catalogue.jit(part, 0.2, 1.0, cfg=SMALL)
    dealt = jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], cata)
    one, whole = (halos.principal_axes(catalogues) for catalogues in (cata, dealt))
    jax.tree.map(np.testing.assert_array_equal, whole, jax.tree.map(lambda leaf: leaf[None], one))
    squeezed = data.sort_catalogue(data.squeeze_catalogue(cata, offset_mode="global", nparts=50))
    assert squeezed.ngroups == int(cata.ngroups)
    np.testing.assert_array_equal(
        halos.spin(dealt, dealt.mass, dealt.max_radius, 43.0)[0], halos.spin(cata, cata.mass, cata.max_radius, 43.0)
    )


def test_densities_of_masses_of_another_precision_than_positions(x64: None) -> None:
    random = np.random.default_rng(3)
    part = jz.data.PosMass(pos=random.random((60, 3), np.float32), mass=random.random(60))
    expected = [density(part, 6) for density in (jz.density.knn_density, jz.density.sph_density)]
    with jax.numpy_dtype_promotion("strict"):
        found = [density(part, 6) for density in (jz.density.knn_density, jz.density.sph_density)]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


def test_sets_of_two_precisions_name_the_cast(x64: None) -> None:
    pos = oracles.uniform(20, 3)
    with pytest.raises(ValueError, match=r"part_b is float64, but part is float32.*part_b as \.astype\('float32'\)"):
        jz.radius.pair_counts(pos, [0.0, 0.1], part_b=pos.astype(np.float64))
