"""Nearest neighbours against SciPy and brute force, on easy, hard and bad input, and under JAX transformations."""

from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jztree import data, tree
from jztree.config import KNNConfig, TreeConfig
from jztree.knn import knn

N = 700
SAMPLES = {"uniform": oracles.uniform, "clustered": oracles.clustered}


def both_self_and_separate(pos: np.ndarray, query: np.ndarray, k: int, box: Any) -> None:
    """Compare a self query and a separate one with SciPy."""
    rad, idx = knn(jnp.asarray(pos), k, boxsize=box)
    oracles.assert_neighbours(rad, idx, pos, pos, box)
    np.testing.assert_array_equal(idx[:, 0], np.arange(len(pos)))
    rad, idx = knn(jnp.asarray(pos), k, boxsize=box, part_query=jnp.asarray(query))
    oracles.assert_neighbours(rad, idx, pos, query, box)


# Exactness


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", range(1, 9))
def test_equals_scipy(dims: int, box: str, sample: str, dtype: Any) -> None:
    pos = SAMPLES[sample](N, dims, dtype)
    query = oracles.uniform(150, dims, dtype, seed=9)
    both_self_and_separate(pos, query, 8, oracles.box_lengths(box, dims))


@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 16, 17, 32, 33, 64, 100, 500, 1024])
def test_equals_scipy_for_any_k(k: int, dtype: Any) -> None:
    pos = oracles.clustered(1100, 3, dtype)
    both_self_and_separate(pos, oracles.uniform(60, 3, dtype, seed=9), k, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 23, 24, 25, 47, 48, 49, 200])
@pytest.mark.parametrize("box", ["open", "periodic"])
def test_k_can_be_the_number_of_particles(n: int, box: str, dtype: Any) -> None:
    pos = oracles.uniform(n, 3, dtype)
    both_self_and_separate(pos, oracles.uniform(5, 3, dtype, seed=9), n, oracles.box_lengths(box, 3))


@pytest.mark.parametrize("leaf_size", [2, 3, 24, 1000])
@pytest.mark.parametrize("fan_out", [2, 8])
def test_answer_does_not_depend_on_the_shape_of_the_tree(leaf_size: int, fan_out: int) -> None:
    pos = oracles.clustered(3000, 3)
    cfg = KNNConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=fan_out))
    rad, idx = knn(jnp.asarray(pos), 6, boxsize=1.0, cfg=cfg)
    usual = knn(jnp.asarray(pos), 6, boxsize=1.0)
    np.testing.assert_array_equal(rad, usual[0])
    np.testing.assert_array_equal(idx, usual[1])


def test_many_particles_equal_scipy() -> None:
    pos = oracles.clustered(60_000, 3)
    rad, idx = knn(jnp.asarray(pos), 12, boxsize=1.0)
    oracles.assert_neighbours(rad, idx, pos, pos, 1.0)


@pytest.mark.parametrize("distance", [2.0, 30.0, 1e4, 1e12])
def test_queries_far_outside_the_sources(distance: float, dtype: Any) -> None:
    pos = oracles.uniform(N, 3, dtype)
    direction = np.random.default_rng(4).standard_normal((40, 3))
    query = (distance * direction).astype(dtype)
    rad, idx = knn(jnp.asarray(pos), 5, part_query=jnp.asarray(query))
    oracles.assert_neighbours(rad, idx, pos, query)


def test_queries_outside_a_periodic_box_are_wrapped(dtype: Any) -> None:
    pos = oracles.uniform(N, 2, dtype)
    inside = np.round(oracles.uniform(50, 2, dtype, seed=5) * 256) / 256
    shift = np.random.default_rng(6).integers(-3, 4, inside.shape).astype(dtype)
    near = knn(jnp.asarray(pos), 5, boxsize=1.0, part_query=jnp.asarray(inside))
    far = knn(jnp.asarray(pos), 5, boxsize=1.0, part_query=jnp.asarray(inside + shift))
    np.testing.assert_array_equal(near[0], far[0])
    np.testing.assert_array_equal(near[1], far[1])


# Ties


@pytest.mark.parametrize("k", [1, 5, 9, 20, 40])
@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize(("dims", "side"), [(1, 64), (2, 16), (3, 8), (4, 4)], ids=["1d", "2d", "3d", "4d"])
def test_ties_on_a_lattice_go_to_the_lower_row_in_z_order(dims: int, side: int, box: str, k: int, dtype: Any) -> None:
    pos = oracles.lattice(side, dims, dtype)
    length = oracles.box_lengths(box, dims, float(side))
    np.testing.assert_array_equal(
        knn(jnp.asarray(pos), k, boxsize=length, result="globalidx"), oracles.brute_knn(pos, k, length)
    )


@pytest.mark.parametrize("k", [3, 40])
def test_ties_of_separate_queries_go_to_the_lower_row_in_z_order(k: int, dtype: Any) -> None:
    pos = np.repeat(oracles.lattice(6, 3, dtype), 2, axis=0)
    query = oracles.lattice(12, 3, dtype, spacing=0.5)
    idx = knn(jnp.asarray(pos), k, part_query=jnp.asarray(query), result="globalidx")
    np.testing.assert_array_equal(idx, oracles.brute_knn(pos, k, query=query))


@pytest.mark.parametrize("k", [1, 4, 12, 60])
def test_own_point_comes_before_its_duplicates(k: int, dtype: Any) -> None:
    random = np.random.default_rng(8)
    pos = random.permutation(np.repeat(oracles.lattice(4, 2, dtype), 20, axis=0))
    idx = knn(jnp.asarray(pos), k, result="globalidx")
    np.testing.assert_array_equal(idx, oracles.brute_knn(pos, k))


# Hard input


@pytest.mark.parametrize("n", [10, 5000])
def test_all_points_equal(n: int, dtype: Any) -> None:
    pos = np.full((n, 3), 0.3, dtype)
    rad, idx = knn(jnp.asarray(pos), 8)
    np.testing.assert_array_equal(rad, 0)
    np.testing.assert_array_equal(idx, oracles.brute_knn(pos[:10], 8) if n == 10 else np.asarray(idx))
    np.testing.assert_array_equal(idx[20:, 0], np.arange(20, n))
    np.testing.assert_array_equal(idx[20:, 1:], np.broadcast_to(np.arange(7), (max(n - 20, 0), 7)))


def test_a_hundred_thousand_equal_points() -> None:
    rad, idx = knn(jnp.full((100_000, 3), 7.5), 8, boxsize=10.0)
    assert float(jnp.max(rad)) == 0
    assert int(idx[-1, 1]) == 0


def test_half_of_the_points_are_duplicates(dtype: Any) -> None:
    pos = oracles.uniform(N, 3, dtype)
    pos[1::2] = pos[0::2]
    rad, idx = knn(jnp.asarray(pos), 6, boxsize=1.0)
    oracles.assert_neighbours(rad, idx, pos, pos, 1.0)


@pytest.mark.parametrize("direction", [(1, 0, 0), (0, 0, 1), (1, 1, 1), (1, -0.3, 0.01)], ids=str)
def test_collinear_points(direction: tuple[float, ...], dtype: Any) -> None:
    pos = (oracles.uniform(N, 1, dtype) * np.array(direction)).astype(dtype)
    both_self_and_separate(pos, pos[::3] + dtype(0.25), 5, None)


@pytest.mark.parametrize("box", [1.0, 0.7, 37.5, 100.0])
def test_points_at_and_next_to_the_faces_of_the_box(box: float, x64: None) -> None:
    faces = np.array([0, 1e-15, -1e-15, 1e-9, -1e-9, 0.5, 1, 1 - 1e-15, 1 + 1e-15, 1 - 1e-9, 2, -1]) * box
    pos = np.stack(np.meshgrid(faces, faces, indexing="ij"), axis=-1).reshape(-1, 2)
    rad, idx = knn(jnp.asarray(pos), 30, boxsize=box)
    expected = np.sqrt(np.sort(oracles.squared_distances(pos, pos, box), axis=1)[:, :30])
    np.testing.assert_allclose(rad, expected, rtol=1e-14, atol=5e-16 * box)
    np.testing.assert_allclose(
        rad, oracles.pair_distances(pos, pos, np.asarray(idx), box), rtol=1e-14, atol=5e-16 * box
    )


def test_float32_points_at_and_next_to_the_faces_of_the_box() -> None:
    faces = np.array([0, 1e-9, -1e-9, 1e-6, -1e-6, 1, np.nextafter(np.float32(1), 0), 1 + 1e-6], np.float32) * 8
    pos = np.stack(np.meshgrid(faces, faces, faces, indexing="ij"), axis=-1).reshape(-1, 3)
    rad, idx = knn(jnp.asarray(pos), 30, boxsize=8.0)
    expected = np.sqrt(np.sort(oracles.squared_distances(pos, pos, 8.0), axis=1)[:, :30])
    np.testing.assert_allclose(rad, expected, atol=2e-6)
    np.testing.assert_allclose(rad, oracles.pair_distances(pos, pos, np.asarray(idx), 8.0), atol=2e-6)


def test_distances_across_the_boundary_have_full_relative_precision() -> None:
    tiny = np.float32(10) ** -np.arange(1, 9, dtype=np.float32)
    low = np.stack([tiny, np.full(8, 0.5, np.float32)], axis=1)
    high = np.stack([(np.float32(1) - tiny), np.full(8, 0.5, np.float32)], axis=1)
    pos = oracles.inside_box(np.concatenate([low, high]))
    rad, idx = knn(jnp.asarray(pos), 16, boxsize=1.0)
    oracles.assert_neighbours(rad, idx, pos, pos, 1.0)


@pytest.mark.parametrize("box", [0.1, 0.7, 67.77])
def test_box_that_float32_cannot_hold(box: float) -> None:
    """The length is used as given, so distances across the boundary are those in float64."""
    random = np.random.default_rng(11)
    depth = 10 ** random.uniform(-7, -1, 200)
    pos = (np.where(random.random(200) < 0.5, depth, 1 - depth) * box).astype(np.float32)[:, None]
    pos = pos[pos[:, 0].astype(np.float64) < box]
    rad, idx = knn(jnp.asarray(pos), len(pos), boxsize=box)
    oracles.assert_neighbours(rad, idx, pos, pos, box)


@pytest.mark.parametrize("exponent", [3, 12, 18, 25, 37])
def test_one_far_outlier(exponent: int) -> None:
    pos = oracles.uniform(N, 3)
    pos[13] = 10.0**exponent
    rad, idx = knn(jnp.asarray(pos), 4)
    oracles.assert_neighbours(rad, idx, pos, pos)


@pytest.mark.parametrize("exponent", [12, 25, 37])
def test_one_far_query(exponent: int) -> None:
    pos, query = oracles.uniform(N, 3), oracles.uniform(40, 3, seed=5)
    query[13] = 10.0**exponent
    rad, idx = knn(jnp.asarray(pos), 4, part_query=jnp.asarray(query))
    oracles.assert_neighbours(rad, idx, pos, query)


def test_dynamic_range_of_1e12(dtype: Any) -> None:
    random = np.random.default_rng(12)
    direction = random.standard_normal((N, 3))
    pos = (direction * 10 ** random.uniform(-12, 0, (N, 1))).astype(dtype)
    both_self_and_separate(pos, pos[::5] * dtype(1.5), 7, None)


@pytest.mark.parametrize("exponent", [-85, -20, 1, 83, 100, 120])
@pytest.mark.parametrize("box", [0.0, 1.0], ids=["open", "periodic"])
def test_scaling_by_a_power_of_two_scales_every_bit(exponent: int, box: float) -> None:
    pos, scale = oracles.clustered(N, 3), np.float32(2) ** exponent
    pos = np.where(pos < 1e-4, np.float32(0.5), pos)
    rad, idx = knn(jnp.asarray(pos), 9, boxsize=box)
    scaled, same = knn(jnp.asarray(pos * scale), 9, boxsize=box * float(scale))
    np.testing.assert_array_equal(np.asarray(rad).astype(np.float64) * float(scale), np.asarray(scaled, np.float64))
    np.testing.assert_array_equal(idx, same)


@pytest.mark.parametrize("exponent", [-400, -160, -110, 110, 140, 400])
def test_float64_scaling_beyond_the_range_of_float32(exponent: int, x64: None) -> None:
    """Box lengths pass through JAX as words of float32; the range of float64 must survive that."""
    pos, scale = oracles.uniform(N, 3, np.float64), 2.0**exponent
    rad, idx = knn(jnp.asarray(pos), 9, boxsize=0.9)
    scaled, same = knn(jnp.asarray(pos * scale), 9, boxsize=0.9 * scale)
    np.testing.assert_array_equal(np.asarray(rad) * scale, scaled)
    np.testing.assert_array_equal(idx, same)


@pytest.mark.parametrize("unit", [1e25, 1e-25])
def test_float32_in_extreme_units(unit: float) -> None:
    pos = (oracles.uniform(N, 3) * unit).astype(np.float32)
    rad, idx = knn(jnp.asarray(pos), 6)
    oracles.assert_neighbours(rad, idx, pos, pos)


# Padding


@pytest.mark.parametrize("num", [5, 23, 24, 300, 400])
@pytest.mark.parametrize("filler", [0.0, 0.5, np.nan, np.inf], ids=str)
def test_rows_beyond_num_are_left_alone(num: int, filler: float) -> None:
    pos = np.full((400, 3), filler, np.float32)
    pos[:num] = oracles.uniform(num, 3)
    rad, idx = knn(data.Pos(pos=jnp.asarray(pos), num=num), 5, boxsize=1.0)
    oracles.assert_neighbours(rad[:num], idx[:num], pos[:num], pos[:num], 1.0)
    assert np.isinf(rad[num:]).all()
    assert (np.asarray(idx)[num:] == -1).all()


@pytest.mark.parametrize("order", ["input", "z"])
def test_num_may_be_traced(order: str) -> None:
    pos = jnp.asarray(oracles.uniform(100, 2))

    @jax.jit
    def search(num: jax.Array) -> Any:
        return knn(data.Pos(pos=pos, num=num), 4, output_order=order)

    for num in (4, 50, 100):
        rad, idx = search(jnp.asarray(num))
        known = knn(data.Pos(pos=pos, num=num), 4, output_order=order)
        np.testing.assert_array_equal(rad, known[0])
        np.testing.assert_array_equal(idx, known[1])


def test_padded_queries() -> None:
    pos, query = oracles.uniform(100, 3), oracles.uniform(30, 3, seed=4)
    rad, idx = knn(jnp.asarray(pos), 4, part_query=data.Pos(pos=jnp.asarray(query), num=17))
    oracles.assert_neighbours(rad[:17], idx[:17], pos, query[:17])
    assert np.isinf(rad[17:]).all()
    assert (np.asarray(idx)[17:] == -1).all()


@pytest.mark.parametrize("rows", [0, 6])
def test_no_queries(rows: int) -> None:
    query = data.Pos(pos=jnp.zeros((rows, 3)), num=0)
    rad, idx = knn(jnp.asarray(oracles.uniform(50, 3)), 4, part_query=query)
    assert rad.shape == idx.shape == (rows, 4)
    assert np.isinf(rad).all()
    assert (np.asarray(idx) == -1).all()


# Orders, words, th


def particles(n: int = 300, dims: int = 3, num: int | None = None) -> data.ParticleData:
    random = np.random.default_rng(21)
    return data.ParticleData(
        pos=jnp.asarray(oracles.uniform(n, dims)),
        mass=jnp.asarray(random.random(n), jnp.float32),
        vel=jnp.asarray(random.standard_normal((n, dims)), jnp.float32),
        id=jnp.asarray(random.permutation(n) + 5, jnp.int32),
        num=num,
    )


@pytest.mark.parametrize("num", [None, 250], ids=["full", "padded"])
def test_z_order_output_is_the_input_output_permuted(num: int | None) -> None:
    part = particles(num=num)
    _, order = tree.zsort(part, boxsize=1.0)
    rad, idx = knn(part, 5, boxsize=1.0)
    rad_z, idx_z = knn(part, 5, boxsize=1.0, output_order="z")
    np.testing.assert_array_equal(rad_z, rad[order])
    count = 300 if num is None else num
    np.testing.assert_array_equal(order[idx_z[:count]], idx[order][:count])


def test_z_order_output_of_separate_queries() -> None:
    part, query = particles(), jnp.asarray(oracles.uniform(80, 3, seed=5))
    order, query_order = tree.zsort(part)[1], tree.zsort(query)[1]
    rad, idx = knn(part, 5, part_query=query)
    rad_z, idx_z = knn(part, 5, part_query=query, output_order="z")
    np.testing.assert_array_equal(rad_z, rad[query_order])
    np.testing.assert_array_equal(order[idx_z], idx[query_order])


@pytest.mark.parametrize("order", ["input", "z"])
@pytest.mark.parametrize("separate", [False, True], ids=["self", "separate"])
def test_th_gives_the_same_answer(order: str, separate: bool) -> None:
    part = particles(num=280)
    query = data.Pos(pos=jnp.asarray(oracles.uniform(80, 3, seed=5))) if separate else None
    partz, th = tree.zsort_and_tree(part, boxsize=1.0)
    rad, idx = knn(partz, 5, boxsize=1.0, th=th, part_query=query, output_order=order)
    same = knn(partz, 5, boxsize=1.0, part_query=query, output_order=order)
    np.testing.assert_array_equal(rad, same[0])
    np.testing.assert_array_equal(idx, same[1])


@pytest.mark.parametrize("order", ["input", "z"])
@pytest.mark.parametrize("separate", [False, True], ids=["self", "separate"])
def test_words_of_result_agree_with_each_other(order: str, separate: bool) -> None:
    part = particles()
    query = jnp.asarray(oracles.uniform(80, 3, seed=5)) if separate else None
    result = "drad_rankidx_globalidx_part_id_vel_mass_pos_rad"
    drad, rankidx, idx, neighbours, ids, vel, mass, pos, rad = knn(
        part, 4, part_query=query, result=result, output_order=order
    )
    source = part if order == "input" else tree.zsort(part)[0]
    np.testing.assert_array_equal(rad, drad)
    np.testing.assert_array_equal(rankidx.idx, idx)
    np.testing.assert_array_equal(rankidx.rank, 0)
    for name, values in {"id": ids, "vel": vel, "mass": mass, "pos": pos}.items():
        np.testing.assert_array_equal(values, getattr(source, name)[idx])
        np.testing.assert_array_equal(getattr(neighbours, name), values)


def test_one_word_gives_the_entry_and_not_a_tuple() -> None:
    assert knn(particles(), 3, result="rad").shape == (300, 3)
    assert isinstance(knn(particles(), 3, result="rad_rad"), tuple)


def test_shared_mass_is_repeated() -> None:
    part = data.PosMass(pos=jnp.asarray(oracles.uniform(40, 3)), mass=2.5)
    np.testing.assert_array_equal(knn(part, 3, result="mass"), np.full((40, 3), 2.5))


def test_part_of_an_array_is_the_positions_of_the_neighbours() -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    neighbours, idx = knn(pos, 3, result="part_globalidx")
    np.testing.assert_array_equal(neighbours, pos[idx])


@jax.tree_util.register_dataclass
@dataclass
class Stars:
    """A particle class that jztree does not know, with names of fields that hold words and underscores."""

    pos: Any
    rad_max: Any
    rad: Any
    table: Any


def test_own_particle_class_and_field_names_with_underscores() -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    stars = Stars(pos, jnp.arange(40.0), jnp.arange(40, dtype=jnp.int8), jnp.arange(7.0))
    rad_max, rad, idx, part = knn(stars, 3, result="rad_max_rad_globalidx_part")
    np.testing.assert_array_equal(rad_max, np.asarray(idx, np.float32))
    np.testing.assert_array_equal(rad, knn(pos, 3, result="rad"))
    np.testing.assert_array_equal(part.rad, np.asarray(idx, np.int8))
    np.testing.assert_array_equal(part.table, stars.table)


@pytest.mark.parametrize("order", ["input", "z"])
@pytest.mark.parametrize("separate", [False, True], ids=["self", "separate"])
@pytest.mark.parametrize("with_th", [False, True], ids=["unsorted", "th"])
def test_reduce_func_sees_what_the_other_words_return(order: str, separate: bool, with_th: bool) -> None:
    part, th = particles(num=290), None
    query = data.Pos(pos=jnp.asarray(oracles.uniform(80, 3, seed=5))) if separate else None
    if with_th:
        part, th = tree.zsort_and_tree(part)

    def gather(part: Any, rnn: Any, inn: Any, origin: Any, query: Any, **kwargs: Any) -> dict[str, Any]:
        assert origin.rank.shape == origin.idx.shape == part.pos.shape[:1]
        return {"id": part.id[inn], "rad": rnn, "from": origin.idx[inn], "query": query.pos}

    options = {"th": th, "part_query": query, "output_order": order}
    reduced, rad, ids, idx = knn(part, 4, result="reduce_rad_id_globalidx", reduce_func=gather, **options)
    plain_rad, plain_ids, plain_idx = knn(part, 4, result="rad_id_globalidx", **options)
    rows = slice(0, 80 if separate else 290)
    np.testing.assert_array_equal(rad, plain_rad)
    np.testing.assert_array_equal(idx, plain_idx)
    np.testing.assert_array_equal(ids[rows], plain_ids[rows])
    np.testing.assert_array_equal(reduced["rad"], rad)
    np.testing.assert_array_equal(reduced["id"][rows], ids[rows])
    if order == "input":
        np.testing.assert_array_equal(reduced["from"][rows], idx[rows])
        np.testing.assert_array_equal(reduced["query"], (query or part).pos)


def test_density_by_reduce_func() -> None:
    part = particles()
    density = knn(
        part, 8, result="reduce", reduce_func=lambda part, rnn, inn, **kw: part.mass[inn].sum(1) / rnn[:, -1] ** 3
    )
    rad, idx = knn(part, 8)
    np.testing.assert_allclose(density, part.mass[idx].sum(1) / rad[:, -1] ** 3, rtol=1e-6)


# JAX transformations


def test_jit_gives_the_same_bits() -> None:
    part = particles()
    for options in ({}, {"boxsize": 1.0}, {"output_order": "z"}, {"part_query": part.pos[:50]}):
        for plain, compiled in zip(knn(part, 5, **options), knn.jit(part, 5, **options), strict=True):
            np.testing.assert_array_equal(plain, compiled)


def test_works_inside_jit_vmap_and_scan() -> None:
    batch = jnp.stack([jnp.asarray(oracles.uniform(60, 3, seed=s)) for s in range(4)])
    single = [knn(pos, 3, boxsize=1.0) for pos in batch]
    rad, idx = (jnp.stack(values) for values in zip(*single, strict=True))
    search = lambda pos: knn(pos, 3, boxsize=1.0)  # noqa: E731
    for found in (
        jax.vmap(search)(batch),
        jax.jit(jax.vmap(search))(batch),
        jax.lax.scan(lambda carry, pos: (carry, search(pos)), 0, batch)[1],
        jax.lax.map(search, batch),
    ):
        np.testing.assert_array_equal(found[0], rad)
        np.testing.assert_array_equal(found[1], idx)


def test_vmap_over_queries_box_and_num() -> None:
    part = particles(100)
    boxes, nums = jnp.array([1.0, 1.5, 2.0]), jnp.array([50, 80, 100])
    found = jax.vmap(lambda box, num: knn(data.Pos(pos=part.pos, num=num), 3, boxsize=box))(boxes, nums)
    for i in range(3):
        single = knn(data.Pos(pos=part.pos, num=int(nums[i])), 3, boxsize=float(boxes[i]))
        np.testing.assert_array_equal(found[0][i], single[0])
        np.testing.assert_array_equal(found[1][i], single[1])


def finite_differences(func: Any, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    gradient = np.empty_like(at)
    for place in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[place] = step
        gradient[place] = (float(func(at + shift)) - float(func(at - shift))) / (2 * step)
    return gradient


GRADIENT_POS = oracles.uniform(14, 2, np.float64, seed=31)


@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("order", ["input", "z"])
@pytest.mark.parametrize("word", ["drad", "rad"])
def test_gradient_of_radii_by_positions(word: str, order: str, box: str, x64: None) -> None:
    weight = jnp.asarray(np.random.default_rng(32).random((14, 4)))
    length = oracles.box_lengths(box, 2)

    def loss(pos: Any) -> Any:
        rad = knn(jnp.asarray(pos), 4, boxsize=length, result=word, output_order=order)
        return (weight * rad**2 + rad).sum()

    expected = finite_differences(loss, GRADIENT_POS)
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(GRADIENT_POS)), expected, atol=1e-7)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.asarray(GRADIENT_POS)), expected, atol=1e-7)
    tangent = np.random.default_rng(33).standard_normal(GRADIENT_POS.shape)
    along = jax.jvp(loss, (jnp.asarray(GRADIENT_POS),), (jnp.asarray(tangent),))[1]
    np.testing.assert_allclose(along, (expected * tangent).sum(), atol=1e-6)


@pytest.mark.parametrize("box", ["open", "periodic"])
def test_gradient_of_radii_by_separate_queries_and_sources(box: str, x64: None) -> None:
    query = oracles.uniform(6, 2, np.float64, seed=34)
    length = oracles.box_lengths(box, 2)

    def loss(pos: Any, at: Any) -> Any:
        return (knn(jnp.asarray(pos), 3, boxsize=length, part_query=jnp.asarray(at), result="drad") ** 1.5).sum()

    gradients = jax.grad(loss, argnums=(0, 1))(jnp.asarray(GRADIENT_POS), jnp.asarray(query))
    np.testing.assert_allclose(gradients[0], finite_differences(lambda x: loss(x, query), GRADIENT_POS), atol=1e-7)
    np.testing.assert_allclose(gradients[1], finite_differences(lambda x: loss(GRADIENT_POS, x), query), atol=1e-7)


@pytest.mark.parametrize("shape", [(), (2,)], ids=["one_length", "a_length_a_dimension"])
def test_gradient_of_radii_by_the_box(shape: tuple[int, ...], x64: None) -> None:
    def loss(box: Any) -> Any:
        return (knn(jnp.asarray(GRADIENT_POS), 5, boxsize=box, result="drad") ** 2).sum()

    box = np.full(shape, 1.02)
    np.testing.assert_allclose(jax.grad(loss)(jnp.asarray(box)), finite_differences(loss, box), atol=1e-6)


def test_gradient_with_th(x64: None) -> None:
    posz, th = tree.zsort_and_tree(jnp.asarray(GRADIENT_POS))
    with_th = jax.grad(lambda pos: knn(pos, 4, th=th, result="drad").sum())(posz)
    np.testing.assert_allclose(with_th, jax.grad(lambda pos: knn(pos, 4, result="drad").sum())(posz), rtol=1e-12)


def test_gradient_under_jit_vmap_and_scan() -> None:
    batch = jnp.stack([jnp.asarray(oracles.uniform(20, 3, seed=s)) for s in range(3)])
    gradient = jax.grad(lambda pos: knn(pos, 4, boxsize=1.0, result="drad").sum())
    single = jnp.stack([gradient(pos) for pos in batch])
    np.testing.assert_allclose(jax.vmap(gradient)(batch), single, rtol=1e-6)
    scanned = jax.lax.scan(lambda carry, pos: (carry, gradient(pos)), 0, batch)[1]
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(batch), scanned, rtol=1e-6)


def test_gradient_between_coincident_points_is_zero() -> None:
    pos = jnp.asarray(np.repeat(oracles.uniform(5, 3), 4, axis=0))
    gradient = jax.grad(lambda x: knn(x, 4, result="drad").sum())(pos)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("filler", [0.0, np.nan, np.inf], ids=str)
def test_gradient_ignores_padding(filler: float) -> None:
    pos = np.full((20, 3), filler, np.float32)
    pos[:15] = oracles.uniform(15, 3)
    gradient = jax.grad(lambda x: knn(data.Pos(pos=x, num=15), 4, result="drad")[:15].sum())(jnp.asarray(pos))
    alone = jax.grad(lambda x: knn(x, 4, result="drad").sum())(jnp.asarray(pos[:15]))
    np.testing.assert_allclose(gradient[:15], alone, rtol=1e-6)
    np.testing.assert_array_equal(gradient[15:], 0)


def test_second_derivatives_of_radii(x64: None) -> None:
    """A distance is not linear in the positions; derivatives must not stop at the first."""

    def distance(pos: Any) -> Any:
        return knn(pos, 2, result="drad")[0, 1]

    pos = jnp.array([[0.0, 0.0], [1.0, 0.5]])
    expected = jax.jacfwd(jax.jacfwd(lambda x: jnp.sqrt(((x[0] - x[1]) ** 2).sum())))(pos)
    np.testing.assert_allclose(jax.jacfwd(jax.jacfwd(distance))(pos), expected, atol=1e-12)


def test_gradient_of_fields_of_neighbours() -> None:
    part = particles(30)
    idx = knn(part, 3, result="globalidx")

    def loss(mass: Any) -> Any:
        return (knn(data.PosMass(pos=part.pos, mass=mass), 3, result="mass") ** 2).sum()

    np.testing.assert_allclose(jax.grad(loss)(part.mass), jax.grad(lambda m: (m[idx] ** 2).sum())(part.mass), rtol=1e-6)


@pytest.mark.parametrize("order", ["input", "z"])
def test_gradient_through_reduce_func(order: str) -> None:
    part = particles(30)

    def loss(pos: Any, reduced: bool) -> Any:
        given = data.PosMass(pos=pos, mass=part.mass)
        if reduced:
            func = lambda part, rnn, inn, **kw: (part.mass[inn] * rnn).sum(axis=1)  # noqa: E731
            sums = knn(given, 4, result="reduce", reduce_func=func, output_order=order)
        else:
            rad, mass = knn(given, 4, result="drad_mass", output_order=order)
            sums = (mass * rad).sum(axis=1)
        return (jnp.arange(30.0) * sums).sum()

    expected = jax.grad(loss)(part.pos, False)
    np.testing.assert_allclose(jax.grad(loss)(part.pos, True), expected, rtol=1e-5, atol=1e-4)


def test_new_box_or_num_does_not_trace_again() -> None:
    traces = []

    def count(rnn: Any, **kwargs: Any) -> Any:
        traces.append(1)
        return rnn

    pos = jnp.asarray(oracles.uniform(60, 3))
    for box, num in ((1.0, 60), (1.5, 40), (2, 7), ([1.0, 0.0, 3.0], 60), (0.1, 60), (None, 60)):
        knn.jit(data.Pos(pos=pos, num=num), 3, boxsize=box, result="reduce", reduce_func=count)
    assert len(traces) == 1


def test_editing_a_configuration_after_the_call_changes_nothing() -> None:
    pos, cfg = jnp.asarray(oracles.uniform(300, 3)), KNNConfig()
    before = knn.jit(pos, 4, cfg=cfg)
    cfg.tree.leaf_size = 3
    after = knn.jit(pos, 4, cfg=cfg)
    again = knn.jit(pos, 4, cfg=KNNConfig())
    for a, b, c in zip(before, after, again, strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


# Properties

GRID_POINTS = hnp.arrays(np.int8, (40, 2), elements=st.integers(0, 7))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(grid=GRID_POINTS, num=st.integers(5, 40), box=st.sampled_from([0.0, 1.0, 2.0]))
def test_property_any_grid_points_follow_the_tie_rule(grid: np.ndarray, num: int, box: float) -> None:
    pos = (grid / 8).astype(np.float32)
    rad, idx = knn.jit(data.Pos(pos=jnp.asarray(pos), num=num), 5, boxsize=box)
    expected = oracles.brute_knn(pos[:num], 5, box)
    np.testing.assert_array_equal(idx[:num], expected)
    np.testing.assert_allclose(rad[:num], oracles.pair_distances(pos[:num], pos, expected, box), rtol=2e-7)


@settings(max_examples=25, deadline=None, derandomize=True)
@given(grid=GRID_POINTS, seed=st.integers(0, 1000), shift=st.integers(-4, 4))
def test_property_permutation_and_translation_by_a_box(grid: np.ndarray, seed: int, shift: int) -> None:
    pos = (grid / 8).astype(np.float32)
    order = np.random.default_rng(seed).permutation(len(pos))
    rad = knn.jit(jnp.asarray(pos), 5, boxsize=1.0, result="rad")
    moved = knn.jit(jnp.asarray(pos[order] + np.float32(shift)), 5, boxsize=1.0, result="rad")
    np.testing.assert_array_equal(moved, rad[order])


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    pos=hnp.arrays(np.float32, (30, 3), elements=st.floats(0, 1, width=32, exclude_max=True, allow_subnormal=False)),
    box=st.sampled_from([0.0, 1.0]),
)
def test_property_any_floats_equal_scipy(pos: np.ndarray, box: float) -> None:
    pos = np.where(pos < 1e-12, np.float32(0), pos)
    rad, idx = knn.jit(jnp.asarray(pos), 6, boxsize=box)
    oracles.assert_neighbours(rad, idx, pos, pos, box)


# Bad input


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf], ids=str)
def test_position_that_is_not_finite_names_the_row(bad: float) -> None:
    pos = oracles.uniform(40, 3)
    pos[31, 1] = bad
    for search in (knn, knn.jit):
        with pytest.raises(oracles.RUN_TIME_ERROR, match="row 31 ") as error:
            jax.block_until_ready(search(jnp.asarray(pos), 3))
        assert oracles.one_sentence(error)
    good = oracles.uniform(50, 3, seed=3)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 31 "):
        jax.block_until_ready(knn(jnp.asarray(good), 3, part_query=jnp.asarray(pos)))


def test_first_of_several_bad_rows_is_named() -> None:
    pos = oracles.uniform(50_000, 3)
    pos[[40_000, 20_001, 49_999], 2] = np.nan
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 20001 "):
        jax.block_until_ready(knn(jnp.asarray(pos), 3))


@pytest.mark.parametrize(
    ("pos", "kind", "words"),
    [
        (np.zeros((5, 3), np.int32), TypeError, "int32"),
        (np.zeros((5, 3), np.complex64), TypeError, "complex64"),
        (np.zeros((5, 3), np.float16), TypeError, "float16"),
        (np.zeros((5, 3), bool), TypeError, "bool"),
        (np.zeros(5, np.float32), ValueError, r"\(5,\)"),
        (np.zeros((2, 5, 3), np.float32), ValueError, r"\(2, 5, 3\)"),
        (np.zeros((5, 9), np.float32), ValueError, r"\(5, 9\)"),
        (np.zeros((5, 0), np.float32), ValueError, r"\(5, 0\)"),
    ],
    ids=["int", "complex", "half", "bool", "1-D", "3-D", "9 dims", "0 dims"],
)
@pytest.mark.parametrize("search", [knn, knn.jit], ids=["plain", "jit"])
def test_positions_of_the_wrong_kind(search: Any, pos: np.ndarray, kind: type[Exception], words: str) -> None:
    good = jnp.zeros((5, 3))
    for arguments in ({"part": pos}, {"part": data.Pos(pos=pos)}, {"part": good, "part_query": pos}):
        with pytest.raises(kind, match=words) as error:
            search(k=1, **arguments)
        assert oracles.one_sentence(error)


def test_positions_as_lists_work_or_are_refused_in_words() -> None:
    try:
        rad = knn([[0.0, 0.0], [3.0, 4.0]], 2, result="rad")
    except (TypeError, ValueError):
        return
    np.testing.assert_array_equal(rad, [[0, 5], [0, 5]])


@pytest.mark.parametrize(
    ("k", "kind", "words"),
    [
        (0, ValueError, "0"),
        (-3, ValueError, "-3"),
        (41, ValueError, "41.*40"),
        (2.0, TypeError, "2.0"),
        ("3", TypeError, "'3'"),
        (True, TypeError, "True"),
        (None, TypeError, "None"),
    ],
    ids=str,
)
@pytest.mark.parametrize("search", [knn, knn.jit], ids=["plain", "jit"])
def test_bad_k(search: Any, k: Any, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words) as error:
        search(jnp.asarray(oracles.uniform(40, 3)), k)
    assert oracles.one_sentence(error)


def test_numpy_integers_are_fine_as_k() -> None:
    assert knn(jnp.asarray(oracles.uniform(40, 3)), np.int64(4), result="rad").shape == (40, 4)


def test_k_above_num() -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    with pytest.raises(ValueError, match=r"k is 9.* 8 "):
        knn(data.Pos(pos=pos, num=8), 9)
    search = jax.jit(lambda num: knn(data.Pos(pos=pos, num=num), 9))
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"9 .* 8 ") as error:
        jax.block_until_ready(search(8))
    assert oracles.one_sentence(error)
    rad, _ = search(9)  # the same compiled function works after the error
    assert np.isfinite(rad[:9]).all()
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"9 .* 0 "):
        jax.block_until_ready(search(0))


@pytest.mark.parametrize("num", [-1, 41, 3.5, np.nan, [3, 4]], ids=str)
def test_bad_num(num: Any) -> None:
    with pytest.raises((TypeError, ValueError), match="num is") as error:
        knn(data.Pos(pos=jnp.asarray(oracles.uniform(40, 3)), num=num), 1)
    assert oracles.one_sentence(error)


@pytest.mark.parametrize("box", [-1.0, np.nan, np.inf, [1.0, 1.0], [1.0, -1.0, 0.0], [[1.0, 1.0, 1.0]]], ids=str)
@pytest.mark.parametrize("search", [knn, knn.jit], ids=["plain", "jit"])
def test_bad_box(search: Any, box: Any) -> None:
    with pytest.raises(ValueError, match="boxsize") as error:
        search(jnp.asarray(oracles.uniform(40, 3)), 3, boxsize=box)
    assert oracles.one_sentence(error)


@pytest.mark.parametrize("box", [1e39, 1e300, 1e-50, 1e-300, 1e-41], ids=str)
def test_box_beyond_the_range_of_float32_is_refused_or_right_but_not_taken_as_open(box: float) -> None:
    pos = oracles.uniform(40, 3)
    try:
        rad = knn(jnp.asarray(pos), 3, boxsize=box, result="rad")
    except ValueError:
        return
    expected = np.sqrt(np.sort(oracles.squared_distances(pos, pos, box), axis=1)[:, :3])
    np.testing.assert_allclose(rad, expected, rtol=1e-6, atol=1e-30)


@pytest.mark.parametrize("box", [-1.0, np.nan, np.inf], ids=str)
def test_bad_traced_box(box: float) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="boxsize"):
        jax.block_until_ready(jax.jit(lambda length: knn(pos, 3, boxsize=length))(box))


@pytest.mark.parametrize(
    "result", ["", "radius", "rad_", "_rad", "rad__globalidx", "rad,globalidx", "num", "rad_color", 3, None]
)
def test_unknown_words_of_result(result: Any) -> None:
    with pytest.raises(ValueError, match="globalidx") as error:
        knn(particles(), 3, result=result)
    assert repr(result) in str(error.value)
    assert oracles.one_sentence(error)


def test_word_for_a_field_that_is_none() -> None:
    with pytest.raises(ValueError, match="'mass'"):
        knn(data.PosMass(pos=jnp.zeros((5, 3))), 1, result="rad_mass")


def test_reduce_and_reduce_func_belong_together() -> None:
    for options in ({"result": "reduce"}, {"reduce_func": lambda rnn, **kw: rnn}):
        with pytest.raises(ValueError, match="reduce_func"):
            knn(particles(), 3, **options)


def test_reduce_func_must_return_one_row_a_query() -> None:
    with pytest.raises(ValueError, match="300 rows"):
        knn(particles(), 3, result="reduce", reduce_func=lambda rnn, **kw: rnn.sum())


def test_unknown_output_order() -> None:
    with pytest.raises(ValueError, match="'original'"):
        knn(particles(), 3, output_order="original")


def test_queries_of_another_kind_than_the_sources(x64: None) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    for query in (jnp.zeros((4, 2), jnp.float32), jnp.zeros((4, 3), jnp.float64)):
        with pytest.raises(ValueError, match="queries"):
            knn(pos, 1, part_query=query)


def test_more_rows_than_can_be_indexed_are_refused_in_words() -> None:
    too_many = jax.ShapeDtypeStruct((2**31, 3), jnp.float32)
    with pytest.raises(ValueError, match=str(2**31)):
        jax.eval_shape(lambda pos: knn(pos, 1), too_many)


@pytest.mark.parametrize("result", ["rad_globalidx", "drad_pos"])
def test_more_than_2_to_the_31_results_are_traced_with_the_right_shape(result: str) -> None:
    rows = jax.ShapeDtypeStruct((2**22, 3), jnp.float32)
    shapes = jax.eval_shape(lambda pos: knn(data.Pos(pos=pos), 1024, result=result), rows)
    assert all(found.shape[:2] == (2**22, 1024) for found in shapes)


# A hierarchy that belongs to something else


def right_or_refused(part: Any, box: Any, th: Any, k: int = 4) -> None:
    """With a hierarchy of unknown origin the answer is right or there is an error, whatever the case."""
    try:
        rad, idx = jax.block_until_ready(knn(part, k, boxsize=box, th=th))
    except oracles.RUN_TIME_ERROR as error:
        refused = str(error)
    else:
        num, pos = int(data.get_num(part)), np.asarray(data.get_pos(part))
        oracles.assert_neighbours(rad[:num], idx[:num], pos[:num], pos[:num], box)
        return
    assert "th" in refused


def sorted_particles(n: int = 500, seed: int = 1, box: Any = None, dims: int = 3) -> tuple[Any, Any]:
    return tree.zsort_and_tree(jnp.asarray(oracles.uniform(n, dims, seed=seed)), boxsize=box)


def test_th_of_other_particles_of_the_same_number() -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"th .*zsort_and_tree") as error:
        jax.block_until_ready(knn(sorted_particles()[0], 4, th=sorted_particles(seed=2)[1]))
    assert oracles.one_sentence(error)


def test_th_with_particles_not_in_its_order() -> None:
    posz, th = sorted_particles()
    right_or_refused(posz[::-1], None, th)
    right_or_refused(jnp.asarray(oracles.uniform(500, 3)), None, th)


@pytest.mark.parametrize("n", [1, 24, 480, 499, 501, 600])
def test_th_of_another_number_of_particles(n: int) -> None:
    posz = sorted_particles()[0]
    right_or_refused(posz, None, sorted_particles(n)[1], k=1)
    right_or_refused(data.Pos(pos=posz, num=490), None, sorted_particles(500)[1])


@pytest.mark.parametrize("built", [None, 1.0, 0.5, 2.0], ids=str)
@pytest.mark.parametrize("used", [None, 1.0, 0.5, 2.0], ids=str)
def test_th_of_another_box(built: Any, used: Any) -> None:
    posz, th = sorted_particles(box=built)
    right_or_refused(posz, used, th)


def test_th_of_another_number_of_dimensions() -> None:
    right_or_refused(sorted_particles()[0], None, sorted_particles(dims=2)[1])


def test_th_of_another_dtype(x64: None) -> None:
    pos = oracles.uniform(500, 3)
    single, th32 = tree.zsort_and_tree(jnp.asarray(pos))
    double, th64 = tree.zsort_and_tree(jnp.asarray(pos, jnp.float64))
    right_or_refused(double, None, th32)
    right_or_refused(single, None, th64)


def test_th_that_is_damaged() -> None:
    posz, th = sorted_particles(3000)
    for name in ("flat_splits", "flat_particle_splits"):
        values = getattr(th, name)
        for damaged in (values.at[5].set(-4), values.at[5].set(10**6), values[::-1], values + 1, values[:-1]):
            right_or_refused(posz, None, replace(th, **{name: damaged}))
    for name in ("flat_lower", "flat_upper"):
        right_or_refused(posz, None, replace(th, **{name: getattr(th, name) * jnp.nan}))
