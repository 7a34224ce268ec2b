"""Calls of the public functions that compute something, for tests that apply to each function. Not a test.

`CALLS` holds at least one call per function; `missing` names the public functions without one.
"""

import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

import jztree as jz
from jztree import data, halos
from jztree.config import CatalogueConfig, FofConfig, TreeConfig
from jztree.data import FofCatalogue, ParticleData
from jztree.links import SubhaloMembers

ROWS, NUM = 60, 57  # rows of arrays, and the number of rows that hold particles
# Modules without searches: ranks, options, processes, and JAX extensions.
_NO_SEARCHES = {"comm", "config", "jax_ext", "launch", "stats"}
# A marker for fields of dataclasses, and functions of a mesh, which test_local_arrays.py calls.
_NO_CALL = {"data.static_field", "data.from_local", "data.to_local"}
_SMALL = FofConfig(catalogue=CatalogueConfig(npart_min=2))


class Call(NamedTuple):
    """A public function and the arguments of a call."""

    function: Any
    arguments: dict[str, Any]

    def __call__(self) -> Any:
        return self.function(**self.arguments)


def particles(dtype: Any = np.float32) -> ParticleData:
    """Return particles in the unit box with all properties, including three duplicate positions, and padding."""
    random = np.random.default_rng(7)
    pos, vel = random.random((ROWS, 3)), random.random((ROWS, 3))
    pos[NUM - 3 : NUM] = pos[:3]
    pos[NUM:] = 0
    return ParticleData(
        pos=jnp.asarray(pos.astype(dtype)),
        mass=jnp.asarray(random.uniform(0.1, 0.2, ROWS).astype(dtype)),
        vel=jnp.asarray(vel.astype(dtype)),
        id=jnp.asarray(np.arange(ROWS, dtype=np.int32)),
        num=jnp.asarray(np.int32(NUM)),
    )


def missing() -> set[str]:
    """Return the public functions, such as ``knn.knn``, that `CALLS` does not hold."""
    public = {
        f"{module}.{name}"
        for module in set(jz.__all__) - _NO_SEARCHES
        if inspect.ismodule(getattr(jz, module))
        for name in getattr(jz, module).__all__
        if callable(getattr(getattr(jz, module), name)) and not inspect.isclass(getattr(getattr(jz, module), name))
    }
    return public - _NO_CALL - {name.partition(",")[0] for name in CALLS}


def _of(function: Any, /, **options: Any) -> Callable[[ParticleData], Call]:
    """Return a call of a function whose first argument is the particles."""
    first = next(iter(inspect.signature(function).parameters))
    return lambda part: Call(function, {first: part, **options})


def _groups(part: ParticleData) -> tuple[Any, FofCatalogue]:
    result: tuple[Any, FofCatalogue] = jz.fof.fof_and_catalogue(part, 0.2, 1.0, cfg=_SMALL)
    return result


def _of_catalogue(function: Any, /, **options: Any) -> Callable[[ParticleData], Call]:
    """Return a call of a function whose first argument is a catalogue."""
    return lambda part: _of(function, **options)(_groups(part)[1])


def _of_groups(function: Any, /, **options: Any) -> Callable[[ParticleData], Call]:
    """Return a call of a function of group-ordered particles and their catalogue. ``options`` may name a column."""

    def call(part: ParticleData) -> Call:
        grouped, cata = _groups(part)
        given = {name: getattr(grouped, value) if isinstance(value, str) else value for name, value in options.items()}
        return Call(function, {"grouped": grouped, "cata": cata, **given})

    return call


def _subhaloes(part: ParticleData) -> Call:
    groups = _of_groups(jz.subhaloes, gravity=100.0, softening=0.05, boxsize=1.0, min_bound=2, types="id", num_types=60)
    call = groups(part)
    return Call(call.function, {**call.arguments, "internal_energy": call.arguments["grouped"].mass})


def _spin(part: ParticleData) -> Call:
    cata = _groups(part)[1]
    column = {"mass": cata.mass, "radius": cata.max_radius}
    return Call(halos.spin, {"cata": cata, **column, "gravity": 43.0, "scale_factor": 0.5})


def _labels_with_hierarchy(part: ParticleData) -> Call:
    partz, th = jz.tree.zsort_and_tree(part)
    return Call(jz.fof.fof_labels, {"part": partz, "rlink": 0.2, "th": th})


def _runs(part: ParticleData) -> Call:
    splits = jnp.asarray([0, 20, 45], jnp.int32)
    return Call(jz.tree.center_of_mass, {"ispl": splits, "part": part, "boxsize": 1.0})


def _pair_func(_query: Any, source: Any, _vector: Any, distance: Any) -> Any:
    return source.mass * distance * distance


def _sum_of_distances(rnn: Any, **_: Any) -> Any:
    return rnn.sum(axis=1)


def _members(part: ParticleData, subhaloes: int = 3) -> SubhaloMembers:
    """Return particles with subhaloes, and masses as energies."""
    return SubhaloMembers(part.id, part.id % subhaloes, part.mass, part.num)


def _lost_links(part: ParticleData) -> Call:
    links = jz.links.Descendants(part.id - 1, part.mass.astype(jnp.float32), part.id < 0)
    later = links._replace(subhalo=part.id // 2)
    return Call(jz.links.skip_output, {"links": links, "later_links": later, "skipping_links": links})


def _columns(part: Any) -> list[Any]:
    """Return the arrays of `split_rows`."""
    return data.split_rows(part)[0]


def _places(part: ParticleData) -> ParticleData:
    """Return queries at other positions."""
    return ParticleData(pos=part.pos[:5] + jnp.asarray(0.01, part.pos.dtype), num=jnp.asarray(5, jnp.int32))


# Functions that need numbers known on the host, such as the number of particles.
ON_HOST = {
    "data.expand_particles",
    "data.flatten_particles",
    "data.squeeze_particles",
    "hierarchy.squeeze_peaks",
    "mst.squeeze_tree",
}
# Functions that raise an error if they are mapped over several devices.
ONE_DEVICE = {"hierarchy.cut", "hierarchy.dendrogram"}
# Functions whose real results cannot be differentiated.
NOT_DIFFERENTIABLE = {
    "halos.lowest_potential_particle",
    "overdensity.radial_profiles",
    "overdensity.sphere_properties",
    "radius.count_within, weights",
    "radius.pair_counts",
    "radius.pair_counts, separations",
    "substructure.subhaloes",
}
CALLS: dict[str, Callable[[ParticleData], Call]] = {
    "data.all_particles_equal": lambda part: Call(data.all_particles_equal, {"p1": part, "p2": part}),
    "data.catalogues_equal": lambda part: Call(data.catalogues_equal, dict.fromkeys(("c1", "c2"), _groups(part)[1])),
    "data.expand_particles": _of(data.expand_particles, ndev=4, npad=2),
    "data.flatten_particles": lambda part: _of(data.flatten_particles)(data.expand_particles(part, 2)),
    "data.get_num": _of(data.get_num),
    "data.get_num, rows of NaN": lambda part: _of(data.get_num, default_to_nancount=True)(part.pos),
    "data.get_num_total": _of(data.get_num_total, default_to_length=True),
    "data.get_pos": _of(data.get_pos),
    "data.get_pos_mass": _of(data.get_pos_mass),
    "data.map_rows": lambda part: Call(data.map_rows, {"func": lambda leaf: leaf[:7], "part": part}),
    "data.pad_particles": _of(data.pad_particles, num=3, float_val=0.0),
    "data.replace_num": _of(data.replace_num, num=7),
    "data.sort_catalogue": _of_catalogue(data.sort_catalogue),
    "data.split_rows": _of(_columns),
    "data.squeeze_any": _of(data.squeeze_any, num=7),
    "data.squeeze_catalogue": _of_catalogue(data.squeeze_catalogue, size_out=9),
    "data.squeeze_particles": _of(data.squeeze_particles),
    "density.knn_density": _of(jz.density.knn_density, k=5, boxsize=1.0),
    "density.knn_density, places": lambda part: _of(jz.density.knn_density, k=5, queries=_places(part))(part),
    "density.smoothing_length": _of(jz.density.smoothing_length, k=5),
    "density.sph_density": _of(jz.density.sph_density, k=5, kernel="wendland_c4", bias_correction=True),
    "density.sph_kernel": lambda part: Call(
        jz.density.sph_kernel, {"q": part.mass, "kernel": "wendland_c2", "dims": 3}
    ),
    "fof.dbscan": _of(jz.dbscan, eps=0.1, min_samples=3, boxsize=1.0),
    "fof.distr_fof_labels": _of(jz.fof.distr_fof_labels, rlink=0.2, linearize_labels=True),
    "fof.fof_and_catalogue": _of(jz.fof.fof_and_catalogue, rlink=0.2, boxsize=1.0, cfg=_SMALL),
    "fof.fof_and_catalogue, attached": lambda part: _of(
        jz.fof.fof_and_catalogue, rlink=0.2, boxsize=1.0, attached=[part, part]
    )(part),
    "fof.fof_is_superset": lambda part: Call(
        jz.fof.fof_is_superset, {"igroup_sup": part.id, "igroup": part.id, "mask": part.id > 3}
    ),
    "fof.fof_labels": _of(jz.fof.fof_labels, rlink=0.2),
    "fof.fof_labels, lengths": lambda part: Call(jz.fof.fof_labels, {"part": part, "rlink": part.mass}),
    "fof.fof_labels, th": _labels_with_hierarchy,
    "fof.friends_of_friends": _of(jz.friends_of_friends, rlink=0.2, boxsize=1.0, npart_min=2),
    "fof.friends_of_friends, attached": lambda part: _of(
        jz.friends_of_friends, rlink=part.mass, boxsize=1.0, npart_min=2, attached=[part, part], attach_within=1.0
    )(part),
    "fof.group_labels": _of(jz.group_labels, rlink=0.2, boxsize=1.0),
    "fof.group_labels, lengths": lambda part: _of(jz.group_labels, rlink=part.mass)(part),
    "fof.phase_space_groups": _of(jz.phase_space_groups, rlink=0.2, vlink=0.3, boxsize=1.0, cfg=_SMALL),
    "fof.phase_space_labels": _of(jz.phase_space_labels, rlink=0.2, vlink=0.3, boxsize=1.0),
    "fof.phase_space_labels, group_rlink": _of(jz.phase_space_labels, rlink=0.2, vlink=0.9, group_rlink=0.25),
    "gravity.acceleration": _of(jz.acceleration, softening=0.1, gravity=43.0),
    "gravity.potential": _of(jz.potential, softening=0.1, kernel="spline"),
    "gravity.potential, images": _of(jz.potential, boxsize=(1.0, 1.0, 1.5)),
    "gravity.potential, groups": lambda part: _of(
        jz.potential, boxsize=1.0, groups=jz.group_labels(part, 0.2, boxsize=1.0)
    )(part),
    "halos.concentration": lambda part: Call(
        halos.concentration, {"mass": part.mass, "radius": part.mass, "vmax": part.mass, "gravity": 43.0}
    ),
    "halos.densest_particle": _of_groups(halos.densest_particle, density="mass"),
    "halos.inertia_tensor": _of_catalogue(halos.inertia_tensor),
    "halos.lowest_potential_particle": _of_groups(halos.lowest_potential_particle, softening=0.5, boxsize=1.0),
    "halos.principal_axes": _of_catalogue(halos.principal_axes),
    "halos.spin": _spin,
    "halos.total_vel_dispersion": _of_catalogue(halos.total_vel_dispersion),
    "hierarchy.cut": lambda part: _of(jz.cut, rlink=0.2)(jz.spanning_tree(part, boxsize=1.0)),
    "hierarchy.dendrogram": lambda part: _of(jz.dendrogram)(jz.spanning_tree(part, boxsize=1.0)),
    "hierarchy.density_peaks": lambda part: _of(jz.density_peaks, density=part.mass, k=6, boxsize=1.0)(part),
    "hierarchy.squeeze_peaks": lambda part: _of(jz.squeeze_peaks)(jz.density_peaks(part, part.mass, 6)),
    "index.build_index": _of(jz.build_index, boxsize=1.0),
    "knn.knn": _of(jz.knn.knn, k=4, boxsize=1.0, result="rad_globalidx_rankidx_part_vel"),
    "knn.knn, z": _of(jz.knn.knn, k=4, result="rad_globalidx_rankidx_part_vel", output_order="z"),
    "knn.knn, places": lambda part: _of(jz.knn.knn, k=4, part_query=_places(part), result="rad_rankidx_mass")(part),
    "knn.knn, reduce": _of(jz.knn.knn, k=4, result="rad_reduce", reduce_func=_sum_of_distances),
    "knn.knn, batch": lambda part: _of(jz.knn.knn, k=4, batch=part.id // 7, exclude_self=True)(part),
    "knn.knn, batch of places": lambda part: _of(
        jz.knn.knn, k=4, batch=part.id // 7, part_query=_places(part), query_batch=part.id[:5]
    )(part),
    "knn.knn, max_radius": lambda part: _of(
        jz.knn.knn, k=4, boxsize=1.0, max_radius=part.mass, source_mask=part.id > 3
    )(part),
    "knn.nearest": _of(jz.nearest, k=4, boxsize=1.0, fields=("vel",)),
    "knn.nearest, mask": lambda part: _of(jz.nearest, k=4, max_radius=part.mass, source_mask=part.id > 3)(part),
    "knn.nearest, places": lambda part: _of(jz.nearest, k=4, queries=_places(part), max_radius=part.mass[:5])(part),
    "knn.nearest, reduce": _of(jz.nearest, k=4, reduce=_sum_of_distances, exclude_self=True),
    "knn.nearest, z": _of(jz.nearest, k=4, order="z"),
    "links.descendants": lambda part: Call(
        jz.descendants, {"part": _members(part), "later": _members(part, 2), "num_subhaloes": 3}
    ),
    "links.skip_output": _lost_links,
    "mst.spanning_tree": _of(jz.spanning_tree, boxsize=1.0),
    "mst.spanning_tree, core_k": _of(jz.spanning_tree, core_k=4),
    "mst.squeeze_tree": lambda part: _of(jz.squeeze_tree)(jz.spanning_tree(part, boxsize=1.0)),
    "overdensity.radial_profiles": lambda part: _of(
        jz.overdensity.radial_profiles, queries=_places(part), radii=[0.0, 0.2, 0.4], boxsize=1.0
    )(part),
    "overdensity.sphere_properties": lambda part: _of(
        jz.overdensity.sphere_properties, queries=_places(part), radius=part.mass[:5], boxsize=1.0
    )(part),
    "overdensity.spherical_overdensity": lambda part: _of(
        jz.overdensity.spherical_overdensity, queries=_places(part), density=[30.0, 60.0], boxsize=1.0
    )(part),
    "overdensity.spherical_overdensity, gravity": lambda part: Call(
        jz.overdensity.spherical_overdensity,
        {"part": part.pos, "queries": part.pos[:5], "density": 30.0, "gravity": 43.0},
    ),
    "radius.count_within": lambda part: _of(
        jz.radius.count_within, radii=[0.1, 0.2], boxsize=1.0, queries=_places(part)
    )(part),
    "radius.count_within, weights": lambda part: _of(jz.radius.count_within, radius=0.1, weights=part.mass)(part),
    "radius.kernel_sums": lambda part: _of(jz.radius.kernel_sums, h=part.mass, boxsize=1.0, values=part.vel)(part),
    "radius.kernel_sums, one h": _of(jz.radius.kernel_sums, h=0.2, boxsize=1.0, derivative="gradient"),
    "radius.kernel_sums, places": lambda part: _of(
        jz.radius.kernel_sums, h=0.2, queries=_places(part), query_h=part.mass[:5], form="mean_h"
    )(part),
    "radius.nearest_within": _of(jz.radius.nearest_within, radius=0.1, max_neighbours=5, boxsize=1.0),
    "radius.neighbours_within": _of(
        jz.radius.neighbours_within, radius=0.1, boxsize=1.0, nearest_first=True, capacity=500
    ),
    "radius.pair_counts": lambda part: _of(
        jz.radius.pair_counts, edges=[0.1, 0.2], boxsize=1.0, queries=_places(part), weights=part.mass
    )(part),
    "radius.pair_counts, regions": lambda part: _of(
        jz.radius.pair_counts, edges=[0.1, 0.2], mode="s_mu", edges_b=[0, 1], regions=part.id // 9, num_regions=7
    )(part),
    "radius.pair_counts, separations": _of(
        jz.radius.pair_counts, edges=[0.1, 0.2], mode="rp_pi", edges_b=[0, 0.1], los="midpoint", separations=True
    ),
    "radius.pairs_within": _of(jz.radius.pairs_within, radius=0.1, boxsize=1.0, capacity=900, full=True),
    "radius.radius_including": lambda part: Call(jz.radius.radius_including, {"distance": part.mass}),
    "radius.reduce_within": _of(jz.radius.reduce_within, radius=0.1, pair_func=_pair_func, boxsize=1.0, capacity=9000),
    "radius.reduce_within, max": _of(
        jz.radius.reduce_within, radius=0.1, pair_func=_pair_func, how="max", capacity=9000
    ),
    "radius.sph_derivative": lambda part: _of(jz.radius.sph_derivative, h=0.3, field=part.vel, derivative="curl")(part),
    "substructure.subhaloes": _subhaloes,
    "tree.build_tree_hierarchy": lambda part: _of(jz.tree.build_tree_hierarchy)(jz.tree.zsort(part)[0]),
    "tree.center_of_mass": _runs,
    "tree.distr_zsort": _of(jz.tree.distr_zsort),
    "tree.distr_zsort, sampled": lambda part: _of(jz.tree.distr_zsort, data=part.id, equalize=False)(part),
    "tree.search_sorted_z": lambda part: _of(jz.tree.search_sorted_z, posz_query=part.pos)(jz.tree.zsort(part)[0]),
    "tree.zsort": _of(jz.tree.zsort, boxsize=1.0),
    "tree.zsort_and_tree": lambda part: _of(jz.tree.zsort_and_tree, cfg_tree=TreeConfig(masses=True), data=part.id)(
        part
    ),
    "tree.zsort_and_tree_multi_type": lambda part: Call(jz.tree.zsort_and_tree_multi_type, {"part": [part, part]}),
}
