"""Nearest neighbours against SciPy and brute force: exactness, ties, hard input, padding, result words and `th`."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import particles
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jztree import data, tree
from jztree.config import KNNConfig, TreeConfig
from jztree.knn import knn

pytestmark = pytest.mark.emulated

N = 700
SAMPLES = {"uniform": oracles.uniform, "clustered": oracles.clustered}


def assert_nearest(pos: np.ndarray, query: np.ndarray, k: int, box: Any) -> None:
    """Compare searches without and with separate queries with SciPy."""
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
    assert_nearest(pos, query, 8, oracles.box_lengths(box, dims))


@pytest.mark.aarch64
@pytest.mark.core("float64-65")
@pytest.mark.parametrize("k", [1, 2, 7, 8, 9, 16, 17, 24, 25, 32, 33, 64, 65, 100, 500, 1024])
def test_equals_scipy_for_any_k(k: int, dtype: Any) -> None:
    pos = oracles.clustered(1100, 3, dtype)
    assert_nearest(pos, oracles.uniform(60, 3, dtype, seed=9), k, 1.0)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 23, 24, 25, 47, 48, 49, 200])
@pytest.mark.parametrize("box", ["open", "periodic"])
def test_k_can_be_the_number_of_particles(n: int, box: str, dtype: Any) -> None:
    pos = oracles.uniform(n, 3, dtype)
    assert_nearest(pos, oracles.uniform(5, 3, dtype, seed=9), n, oracles.box_lengths(box, 3))


@pytest.mark.parametrize("separate", [False, True])
def test_float64_of_numpy_is_rounded_in_the_32_bit_mode(separate: bool) -> None:
    """Plain calls round it as compiled twins do."""
    pos = oracles.uniform(300, 3, np.float64)
    wide, narrow = ({"part_query": (pos[:40] + 0.01).astype(kind)} if separate else {} for kind in ("f8", "f4"))
    for plain, compiled in zip(knn(pos, 4, **wide), knn.jit(pos.astype("f4"), 4, **narrow), strict=True):
        np.testing.assert_array_equal(plain, compiled)


@pytest.mark.parametrize("leaf_size", [2, 3, 24, 1000])
@pytest.mark.parametrize("fan_out", [2, 8, 40])
def test_results_do_not_depend_on_the_shape_of_the_tree(leaf_size: int, fan_out: int) -> None:
    pos = oracles.clustered(3000, 3)
    cfg = KNNConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=fan_out))
    rad, idx = knn(jnp.asarray(pos), 6, boxsize=1.0, cfg=cfg)
    usual = knn(jnp.asarray(pos), 6, boxsize=1.0)
    np.testing.assert_array_equal(rad, usual[0])
    np.testing.assert_array_equal(idx, usual[1])


@pytest.mark.core
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
    nearest = knn(jnp.asarray(pos), 5, boxsize=1.0, part_query=jnp.asarray(inside))
    far = knn(jnp.asarray(pos), 5, boxsize=1.0, part_query=jnp.asarray(inside + shift))
    np.testing.assert_array_equal(nearest[0], far[0])
    np.testing.assert_array_equal(nearest[1], far[1])


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


@pytest.mark.parametrize("k", [2, 13, 33, 46, 62, 78, 110, 158, 254])
@pytest.mark.parametrize("width", [0.1, 2, 40])
def test_distances_that_differ_in_their_last_digits(k: int, width: float) -> None:
    """The points form a ring around the queries, and their squared distances are integers that float32 represents."""
    random = np.random.default_rng(k)
    angle, radius = random.uniform(0, 2 * np.pi, 1500), 1000 + width * random.uniform(0, 1, 1500)
    pos = np.round(1200 + radius * np.stack([np.cos(angle), np.sin(angle)])).T.astype(np.float32)
    query = np.round(1200 + random.uniform(-3, 3, (20, 2))).astype(np.float32)
    idx = knn(jnp.asarray(pos), k, part_query=jnp.asarray(query), result="globalidx")
    np.testing.assert_array_equal(idx, oracles.brute_knn(pos, k, query=query))


@pytest.mark.parametrize("k", [40, 100, 150, 250])
def test_queries_far_apart_in_one_leaf(k: int) -> None:
    """The nearest nodes of the group are visited first, so each query inserts many sources that others replace."""
    pos = oracles.uniform(6000, 2, np.float32)
    query = oracles.uniform(20, 2, np.float32, seed=3)
    rad, idx = knn(jnp.asarray(pos), k, part_query=jnp.asarray(query))
    oracles.assert_neighbours(rad, idx, pos, query)


@pytest.mark.parametrize("k", [1, 4, 12, 60])
def test_query_particle_precedes_its_duplicates(k: int, dtype: Any) -> None:
    random = np.random.default_rng(8)
    pos = random.permutation(np.repeat(oracles.lattice(4, 2, dtype), 20, axis=0))
    idx = knn(jnp.asarray(pos), k, result="globalidx")
    np.testing.assert_array_equal(idx, oracles.brute_knn(pos, k))


# Padding


@pytest.mark.parametrize("num", [5, 23, 24, 300, 400])
@pytest.mark.parametrize("filler", [0.0, 0.5, np.nan, np.inf], ids=str)
def test_padding_rows_are_ignored_and_find_no_neighbours(num: int, filler: float) -> None:
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
    """They are in the z-order of the sources, and their keys are taken in the box of the sources."""
    part, query = particles(), 3 * jnp.asarray(oracles.uniform(80, 3, seed=5)) - 1
    order = tree.zsort(part)[1]
    rad, idx = knn(part, 5, part_query=query)
    rad_z, idx_z, result, whose = knn(
        part, 5, part_query=query, output_order="z", result="rad_globalidx_query_queryidx"
    )
    np.testing.assert_array_equal(np.sort(whose.idx), np.arange(80))
    np.testing.assert_array_equal(result, query[whose.idx])
    np.testing.assert_array_equal(rad_z, rad[whose.idx])
    np.testing.assert_array_equal(order[idx_z], idx[whose.idx])
    rows = tree.search_sorted_z(part.pos[order], result)
    assert (np.diff(rows) >= 0).all()


def test_queryidx_in_input_and_z_order() -> None:
    part, query = particles(), data.Pos(pos=jnp.asarray(oracles.uniform(80, 3, seed=5)), num=70)
    result, whose = knn(part, 5, part_query=query, result="query_queryidx")
    assert result is query
    np.testing.assert_array_equal(whose.idx, np.where(np.arange(80) < 70, np.arange(80), -1))
    np.testing.assert_array_equal(whose.rank, np.where(np.arange(80) < 70, 0, -1))
    result, whose = knn(part, 5, result="query_queryidx", output_order="z")
    np.testing.assert_array_equal(result.id, part.id[whose.idx])


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
def test_results_agree_with_each_other(order: str, separate: bool) -> None:
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


def test_single_result_name_gives_no_tuple() -> None:
    assert knn(particles(), 3, result="rad").shape == (300, 3)
    assert isinstance(knn(particles(), 3, result="rad_rad"), tuple)


def test_shared_mass_is_repeated() -> None:
    part = data.PosMass(pos=jnp.asarray(oracles.uniform(40, 3)), mass=2.5)
    np.testing.assert_array_equal(knn(part, 3, result="mass"), np.full((40, 3), 2.5))


def test_result_part_for_an_array_is_neighbour_positions() -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    neighbours, idx = knn(pos, 3, result="part_globalidx")
    np.testing.assert_array_equal(neighbours, pos[idx])


@jax.tree_util.register_dataclass
@dataclass
class Stars:
    """A particle class unknown to jztree, with field names that contain words and underscores."""

    pos: Any
    rad_max: Any
    rad: Any
    table: Any


def test_user_particle_class_with_underscores_in_field_names() -> None:
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
def test_reduce_func_receives_the_values_of_other_results(order: str, separate: bool, with_th: bool) -> None:
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


# Properties

GRID_POINTS = hnp.arrays(np.int8, (40, 2), elements=st.integers(0, 7))


@settings(max_examples=40, deadline=None, derandomize=True)
@given(grid=GRID_POINTS, num=st.integers(5, 40), box=st.sampled_from([0.0, 1.0, 2.0]))
def test_property_grid_points_follow_the_tie_rule(grid: np.ndarray, num: int, box: float) -> None:
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
def test_property_floats_equal_scipy(pos: np.ndarray, box: float) -> None:
    pos = np.where(pos < 1e-12, np.float32(0), pos)
    rad, idx = knn.jit(jnp.asarray(pos), 6, boxsize=box)
    oracles.assert_neighbours(rad, idx, pos, pos, box)
