"""kNN over ranks, compared bit for bit with the results of one device."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, all_on_last, deal, even, joined, make, mesh_of, square_mesh, uneven

import jztree as jz
from jztree import CapacityError
from jztree.config import KNNConfig
from jztree.data import ParticleData, Pos

pytestmark = pytest.mark.emulated


def on_one(pos: np.ndarray, k: int, box: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    rad, idx = jz.knn.knn.jit(jnp.asarray(pos), k, boxsize=box, **options)
    return np.asarray(rad), np.asarray(idx)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_several_devices_give_the_radii_and_indices_of_one(ndev: int) -> None:
    search = jz.knn.knn.smap(mesh_of(ndev), jit=True)
    for name in SETS:
        pos, counts, part = make(name, ndev)
        k = 5 if len(pos) >= 5 else len(pos)
        for box in (None, 1.0):
            rad, idx = map(np.asarray, search(part, k=k, boxsize=box))
            want_rad, want_idx = on_one(pos, k, box)
            np.testing.assert_array_equal(joined(rad, counts), want_rad, f"{name}, box {box}")
            np.testing.assert_array_equal(joined(idx, counts), want_idx, f"{name}, box {box}")
            for rank, count in enumerate(counts):
                assert np.all(np.isinf(rad[rank, count:]))
                assert np.all(idx[rank, count:] == -1)


@pytest.mark.core("40")
@pytest.mark.long
@pytest.mark.parametrize("k", [1, 40, 1199, 1200])
def test_any_k_up_to_the_number_of_particles(k: int) -> None:
    pos, counts, part = make("uniform", 4)
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=k)
    want_rad, want_idx = on_one(pos, k, None)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)


@pytest.mark.long
@pytest.mark.parametrize("dims", [1, 2, 6])
def test_other_dimensions(dims: int) -> None:
    pos = np.random.default_rng(dims).random((600, dims)).astype(np.float32)
    counts = uneven(600, 4)
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(deal(pos, counts, rows=600), k=7, boxsize=1.0)
    want_rad, want_idx = on_one(pos, 7, 1.0)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)


@pytest.mark.long
def test_against_brute_force_in_float64(x64: None) -> None:
    pos = np.random.default_rng(8).random((400, 3))
    counts = even(400, 3)
    part = ParticleData(pos=jnp.asarray(deal(pos, counts, rows=140).pos), num=jnp.asarray(counts, jnp.int32))
    rad, _ = jz.knn.knn.smap(mesh_of(3), jit=True)(part, k=6, boxsize=1.0)
    difference = pos[:, None] - pos
    distance = np.sqrt(((difference - np.round(difference)) ** 2).sum(axis=-1))
    np.testing.assert_allclose(joined(rad, counts), np.sort(distance, axis=1)[:, :6], rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("k", [1, 2, 5])
def test_coordinates_at_the_smallest_subnormal_numbers(k: int) -> None:
    """Coordinates are a few steps of the smallest number, so stored radii are rounded to whole steps."""
    step, search = np.finfo(np.float32).smallest_subnormal, jz.knn.knn.smap(mesh_of(4), jit=True)
    for seed in range(4):
        rng = np.random.default_rng(seed)
        pos, query = (np.multiply(rng.integers(0, 16, (n, 3)), step, dtype=np.float32) for n in (300, 200))
        counts, query_counts = even(300, 4), uneven(200, 4)
        for others in ({}, {"part_query": query}):
            given = {"part_query": deal(query, query_counts, rows=200)} if others else {}
            result = search(deal(pos, counts, rows=100), k=k, **given)
            for column, many in zip(on_one(pos, k, None, **others), result, strict=True):
                np.testing.assert_array_equal(joined(many, query_counts if others else counts), column)


@pytest.mark.long
@pytest.mark.parametrize("axes", ["one axis", "two axes"])
def test_separate_queries(axes: str) -> None:
    mesh = mesh_of(4) if axes == "one axis" else square_mesh()
    rng = np.random.default_rng(6)
    queries = {
        "spread": rng.random((500, 3)),
        "all in one corner": 0.02 * rng.random((500, 3)),
        "far outside": 30 + rng.random((500, 3)),
        "one": rng.random((1, 3)),
    }
    pos, _, part = make("clustered", 4)
    search = jz.knn.knn.smap(mesh, jit=True)
    for name, points in queries.items():
        query = points.astype(np.float32)
        counts = uneven(len(query), 4)
        rad, idx = search(part, k=5, part_query=Pos(pos=deal(query, counts).pos, num=counts.astype(np.int32)))
        want_rad, want_idx = on_one(pos, 5, None, part_query=jnp.asarray(query))
        np.testing.assert_array_equal(joined(rad, counts), want_rad, name)
        np.testing.assert_array_equal(joined(idx, counts), want_idx, name)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_ties_go_to_the_first_source_in_z_order_wherever_queries_are(ndev: int) -> None:
    """Use lattices with duplicates, whose distances are exact, and ranks with few particles or none."""
    search = jz.knn.knn.smap(mesh_of(ndev), jit=True)
    for seed in range(9):
        rng = np.random.default_rng(seed)
        pos = rng.integers(0, 8, (400, 3)).astype(np.float32)
        query = (rng.integers(-20, 30, (150, 3)) / 2).astype(np.float32)
        if seed % 2:
            query = query * 0.25 + 3
        box = [np.zeros(3), np.full(3, 8.0), np.array([8.0, 0.0, 8.0])][seed % 3]
        counts, asked = (rng.multinomial(n, rng.dirichlet(np.full(ndev, 0.5))) for n in (400, 150))
        part, queries = deal(pos, counts, rows=400), deal(query, asked, rows=150)
        rad, idx = search(part, k=7, boxsize=box, part_query=queries)
        want = oracles.brute_knn(pos, 7, box, query)
        np.testing.assert_array_equal(joined(idx, asked), want, f"seed {seed}, box {box}")
        np.testing.assert_array_equal(joined(rad, asked), on_one(pos, 7, box, part_query=jnp.asarray(query))[0])
        idx = search(part, k=7, boxsize=box)[1]
        np.testing.assert_array_equal(joined(idx, counts), oracles.brute_knn(pos, 7, box), f"seed {seed}, box {box}")


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_queryidx_in_z_order_identifies_the_queries(ndev: int) -> None:
    rng = np.random.default_rng(ndev)
    pos = rng.integers(0, 8, (300, 3)).astype(np.float32)
    query = (rng.integers(-4, 24, (40, 3)) / 2).astype(np.float32)
    counts, asked = uneven(300, ndev), even(40, ndev)
    part, queries = deal(pos, counts, rows=300), deal(query, asked, rows=40)
    words, search = "globalidx_rankidx_query_queryidx_rad", jz.knn.knn.smap(mesh_of(ndev), jit=True)
    idx, rankidx, result, whose, rad = search(part, k=5, part_query=queries, result=words, output_order="z")
    real = np.asarray(whose.idx) >= 0
    np.testing.assert_array_equal(real.sum(axis=1), result.num)
    np.testing.assert_array_equal(np.isfinite(rad).all(axis=-1), real)
    # Queries and results are the same as on one device.
    one_idx, _, one_found, one_whose, one_rad = jz.knn.knn.jit(
        jnp.asarray(pos), 5, part_query=jnp.asarray(query), result=words, output_order="z"
    )
    ids = np.asarray(queries.id)[np.asarray(whose.rank)[real], np.asarray(whose.idx)[real]]
    np.testing.assert_array_equal(ids, np.asarray(one_whose.idx))
    np.testing.assert_array_equal(np.asarray(result.pos)[real], one_found)
    np.testing.assert_array_equal(np.asarray(result.id)[real], ids)
    np.testing.assert_array_equal(query[ids], one_found)
    np.testing.assert_array_equal(np.asarray(rad)[real], one_rad)
    np.testing.assert_array_equal(np.asarray(idx)[real], one_idx)
    # Rows of sources follow the public sort.
    partz, _ = jz.tree.distr_zsort.smap(mesh_of(ndev), jit=True)(part)
    np.testing.assert_array_equal(joined(partz.pos, np.asarray(partz.num))[one_idx], jz.tree.zsort(pos)[0][one_idx])
    named = np.asarray(partz.id)[np.asarray(rankidx.rank)[real], np.asarray(rankidx.idx)[real]]
    np.testing.assert_array_equal(named, joined(partz.id, np.asarray(partz.num))[one_idx])


@pytest.mark.slow
def test_queryidx_in_input_order_is_the_row_of_the_query() -> None:
    _, _, part = make("clustered", 4)
    query, asked = np.random.default_rng(1).random((90, 3)).astype(np.float32), even(90, 4)
    queries = deal(query, asked, rows=30)
    search = jz.knn.knn.smap(mesh_of(4), jit=True)
    result, whose = search(part, k=2, part_query=queries, result="query_queryidx")
    np.testing.assert_array_equal(result.id, queries.id)
    want = np.where(np.arange(30) < asked[:, None], np.arange(30), -1)
    np.testing.assert_array_equal(whose.idx, want)
    np.testing.assert_array_equal(whose.rank, np.where(want < 0, -1, np.arange(4)[:, None]))
    # If the sources are the queries, the first neighbour of each is the source itself.
    for order in ("input", "z"):
        ids, result, whose = search(part, k=1, result="id_query_queryidx", output_order=order)
        real = np.asarray(whose.idx) >= 0
        np.testing.assert_array_equal(np.asarray(ids)[real][:, 0], np.asarray(result.id)[real])
        asking = np.asarray(part.id)[np.asarray(whose.rank)[real], np.asarray(whose.idx)[real]]
        np.testing.assert_array_equal(asking, np.asarray(result.id)[real])


@pytest.mark.slow
def test_rankidx_with_th_refers_to_rows_of_the_given_sources() -> None:
    """With ``th``, ``part`` is in z-order already, so rows in both orders are its rows."""
    _, _, part = make("uniform, ranks without particles", 4)
    partz, th = jz.tree.zsort_and_tree.smap(mesh_of(4), jit=True)(part)
    query = np.random.default_rng(1).random((4, 30, 3)).astype(np.float32)
    search = jz.knn.knn.smap(mesh_of(4), jit=True)
    for order in ("input", "z"):
        rankidx, ids = search(partz, k=3, th=th, part_query=query, output_order=order, result="rankidx_id")
        rank, row = np.asarray(rankidx.rank), np.asarray(rankidx.idx)
        real = row >= 0
        assert real.sum() == 4 * 30 * 3
        np.testing.assert_array_equal(np.asarray(partz.id)[rank[real], row[real]], np.asarray(ids)[real])


@pytest.mark.long
def test_reduce_func_receives_queryidx() -> None:
    _, _, part = make("clustered", 4)
    query = np.random.default_rng(1).random((4, 30, 3)).astype(np.float32)

    def reduce_func(rnn: Any, queryidx: Any, query: Any, **kwargs: Any) -> Any:
        return {"rank": queryidx.rank, "row": queryidx.idx, "pos": query}

    for order in ("input", "z"):
        reduced = jz.knn.knn.smap(mesh_of(4), jit=True)(
            part, k=2, part_query=query, result="reduce", reduce_func=reduce_func, output_order=order
        )
        rank, row = np.asarray(reduced["rank"]), np.asarray(reduced["row"])
        real = row >= 0
        assert real.sum() == 120
        np.testing.assert_array_equal(query[rank[real], row[real]], np.asarray(reduced["pos"])[real])
        if order == "input":
            np.testing.assert_array_equal(row, np.broadcast_to(np.arange(30), (4, 30)))


@pytest.mark.long
def test_few_sources_near_crowded_queries() -> None:
    """Ranks with fewer than k sources initially have no radius."""
    rng = np.random.default_rng(2)
    pos = np.r_[0.01 * rng.random((900, 3)), rng.random((9, 3))].astype(np.float32)
    query = (0.5 + 0.4 * rng.random((1000, 3))).astype(np.float32)
    sources, counts = deal(pos, all_on_last(909, 4)), even(1000, 4)
    asked = Pos(pos=deal(query, counts).pos, num=counts.astype(np.int32))
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(sources, k=12, part_query=asked)
    want_rad, want_idx = on_one(pos, 12, None, part_query=jnp.asarray(query))
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)


@pytest.mark.long
def test_every_result_name() -> None:
    pos, counts, part = make("clustered", 4)
    words = "rad_rankidx_globalidx_part_id_drad"
    rad, rankidx, globalidx, result, ids, drad = jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=4, result=words)
    want_rad, want_idx = on_one(pos, 4, None)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(drad, counts), want_rad)
    np.testing.assert_array_equal(joined(globalidx, counts), want_idx)
    np.testing.assert_array_equal(joined(ids, counts), want_idx)
    np.testing.assert_array_equal(joined(result.id, counts), want_idx)
    np.testing.assert_array_equal(joined(result.pos, counts), pos[want_idx])
    rank, row = joined(rankidx.rank, counts), joined(rankidx.idx, counts)
    np.testing.assert_array_equal(np.asarray(part.id)[rank, row], want_idx)
    assert np.all(np.asarray(rankidx.rank)[0, counts[0] :] == -1)


def test_reduce_func_receives_sources_at_consistent_positions() -> None:
    pos, counts, part = make("clustered", 4)

    def reduce_func(part: Any, rnn: Any, inn: Any, origin: Any, query: Any, **kwargs: Any) -> Any:
        difference = part.pos[inn] - query.pos[:, None]
        distance = jnp.sqrt(jnp.sum(difference**2, axis=-1))
        return {"off": jnp.abs(distance - rnn).max(axis=1), "ids": part.id[inn], "from": origin.idx[inn]}

    reduced = jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=4, result="reduce", reduce_func=reduce_func)
    _, want_idx = on_one(pos, 4, None)
    assert joined(reduced["off"], counts).max() < 1e-6
    np.testing.assert_array_equal(joined(reduced["ids"], counts), want_idx)
    starts = np.cumsum(counts) - counts
    rank_of = np.repeat(np.arange(4), counts)
    np.testing.assert_array_equal(joined(reduced["from"], counts), want_idx - starts[rank_of[want_idx]])


@pytest.mark.long
def test_z_order_with_a_given_tree() -> None:
    pos, _, part = make("uniform, ranks without particles", 4)
    posz, index = jz.tree.zsort(pos)
    want_rad, want_idx = on_one(np.asarray(posz), 6, None)
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=6, output_order="z")
    partz, th = jz.tree.zsort_and_tree.smap(mesh_of(4), jit=True)(part)
    counts = np.asarray(partz.num)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)
    for order in ("input", "z"):
        rad, idx, ids = jz.knn.knn.smap(mesh_of(4), jit=True)(
            partz, k=6, th=th, output_order=order, result="rad_globalidx_id"
        )
        np.testing.assert_array_equal(joined(rad, counts), want_rad)
        np.testing.assert_array_equal(joined(idx, counts), want_idx)
        np.testing.assert_array_equal(joined(ids, counts), np.asarray(index)[want_idx])


def test_th_with_unsorted_particles_raises() -> None:
    _, _, part = make("uniform", 4)
    _, th = jz.tree.zsort_and_tree.smap(mesh_of(4), jit=True)(part)
    with pytest.raises(Exception, match="on rank 0: a hierarchy needs particles in z-order"):
        jax.block_until_ready(jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=3, th=th))


@pytest.mark.parametrize("word", [pytest.param("rad", marks=pytest.mark.slow), "drad"])
def test_several_devices_give_the_derivatives_of_one(word: str) -> None:
    pos, counts, part = make("uniform", 4)
    weights = np.random.default_rng(0).random((1200, 5)).astype(np.float32)
    stacked = deal(weights, counts).pos

    def loss_on_many(dealt_pos: jax.Array, box: jax.Array) -> jax.Array:
        rad = jz.knn.knn.smap(mesh_of(4))(Pos(pos=dealt_pos, num=part.num), k=5, boxsize=box, result=word)
        return jnp.sum(jnp.where(jnp.isfinite(rad), rad * stacked, 0))

    def loss_on_one(pos: jax.Array, box: jax.Array) -> jax.Array:
        return jnp.sum(jz.knn.knn(pos, 5, boxsize=box, result=word) * weights)

    box = jnp.float32(1.0)
    by_pos, by_box = jax.jit(jax.grad(loss_on_many, argnums=(0, 1)))(jnp.asarray(part.pos), box)
    want_pos, want_box = jax.jit(jax.grad(loss_on_one, argnums=(0, 1)))(jnp.asarray(pos), box)
    np.testing.assert_allclose(joined(by_pos, counts), want_pos, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_box, want_box, rtol=1e-4)


def test_k_above_total_particle_count_raises() -> None:
    _, _, part = make("no more than k", 4)
    with pytest.raises(Exception, match="k is 6, but there are only 5 particles"):
        jax.block_until_ready(jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=6))


def test_globalidx_of_too_many_particles_raises() -> None:
    _, _, part = make("uniform", 4)
    many = ParticleData(pos=part.pos, num=part.num, num_total=2**31)
    with pytest.raises(ValueError, match="rankidx"):
        jz.knn.knn.smap(mesh_of(4), jit=True)(many, k=2)
    assert jz.knn.knn.smap(mesh_of(4), jit=True)(many, k=2, result="rankidx").idx.shape == (4, 1200, 2)


def uniform_without_padding() -> tuple[np.ndarray, np.ndarray]:
    return make("uniform", 4)[0], even(1200, 4)


@pytest.mark.long
def test_capacity_error_names_rank_sizes_and_option() -> None:
    pos, counts = uniform_without_padding()
    part = deal(pos, counts, rows=300)
    search = jz.knn.knn.smap(mesh_of(4), jit=True)
    with pytest.raises(
        CapacityError, match=r"rank \d needs capacity for \d+ rows .* has capacity for 307; set ghost_rows"
    ) as error:
        search(part, k=8, cfg=KNNConfig(ghost_rows=7))
    enough = KNNConfig(ghost_rows=error.value.need - 300)
    rad, _ = search(part, k=8, cfg=enough)
    np.testing.assert_array_equal(joined(rad, counts), on_one(pos, 8, None)[0])


@pytest.mark.slow
def test_capacity_of_ghosts_grows_automatically(count_compilations: Any) -> None:
    """For large k, every rank needs nearly all particles of the others."""
    pos = np.random.default_rng(0).random((24000, 3)).astype(np.float32)
    part = deal(pos, even(24000, 4), rows=6000)
    search = jz.knn.knn.smap(mesh_of(4), jit=True)
    rad = search(part, k=2500, result="rad")
    sample = np.arange(0, 6000, 997)
    np.testing.assert_allclose(np.asarray(rad)[0, sample], oracles.scipy_knn(pos, pos[sample], 2500)[0], rtol=1e-5)
    with count_compilations() as lines:
        jax.block_until_ready(search(part, k=2500, result="rad"))
    assert not [line for line in lines if "knn" in line], "the room that was learnt is kept"


def test_capacity_error_in_user_jit_function_names_the_option() -> None:
    part = deal(*uniform_without_padding(), rows=300)
    compiled = jax.jit(lambda part: jz.knn.knn.smap(mesh_of(4))(part, k=8, cfg=KNNConfig(ghost_rows=7)))
    with pytest.raises(Exception, match=r"rank \d needs capacity for \d+ rows .* has capacity for 307; set ghost_rows"):
        jax.block_until_ready(compiled(part))


@pytest.mark.long
def test_box_lengths_share_one_compilation(count_compilations: Any) -> None:
    _, _, part = make("uniform", 2)
    search = jz.knn.knn.smap(mesh_of(2), jit=True)
    jax.block_until_ready(search(part, k=3, boxsize=1.0))
    with count_compilations() as lines:
        jax.block_until_ready(search(part, k=3, boxsize=1.25))
        jax.block_until_ready(search(part, 3))
    assert not [line for line in lines if "knn" in line]
