"""kNN over ranks: the answers of one device, bit for bit."""

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


def on_one(pos: np.ndarray, k: int, box: Any, **options: Any) -> tuple[np.ndarray, np.ndarray]:
    rad, idx = jz.knn.knn(jnp.asarray(pos), k, boxsize=box, **options)
    return np.asarray(rad), np.asarray(idx)


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_radii_and_indices_are_those_of_one_device(ndev: int) -> None:
    search = jz.knn.knn.smap(mesh_of(ndev), jit=True)
    for name in SETS:
        pos, counts, part = make(name, ndev)
        k = 5 if len(pos) >= 5 else len(pos)
        for box in (None, 1.0):
            rad, idx = search(part, k=k, boxsize=box)
            want_rad, want_idx = on_one(pos, k, box)
            np.testing.assert_array_equal(joined(rad, counts), want_rad, f"{name}, box {box}")
            np.testing.assert_array_equal(joined(idx, counts), want_idx, f"{name}, box {box}")
            for rank, count in enumerate(counts):
                assert np.all(np.isinf(rad[rank, count:]))
                assert np.all(np.asarray(idx)[rank, count:] == -1)


@pytest.mark.parametrize("k", [1, 40, 1199, 1200])
def test_any_k_up_to_the_number_of_particles(k: int) -> None:
    pos, counts, part = make("uniform", 4)
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=k)
    want_rad, want_idx = on_one(pos, k, None)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)


@pytest.mark.parametrize("dims", [1, 2, 6])
def test_other_dimensions(dims: int) -> None:
    pos = np.random.default_rng(dims).random((600, dims)).astype(np.float32)
    counts = uneven(600, 4)
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(deal(pos, counts, rows=600), k=7, boxsize=1.0)
    want_rad, want_idx = on_one(pos, 7, 1.0)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)


def test_against_brute_force_in_float64(x64: None) -> None:
    pos = np.random.default_rng(8).random((400, 3))
    counts = even(400, 3)
    part = ParticleData(pos=jnp.asarray(deal(pos, counts, rows=140).pos), num=jnp.asarray(counts, jnp.int32))
    rad, _ = jz.knn.knn.smap(mesh_of(3), jit=True)(part, k=6, boxsize=1.0)
    difference = pos[:, None] - pos
    distance = np.sqrt(((difference - np.round(difference)) ** 2).sum(axis=-1))
    np.testing.assert_allclose(joined(rad, counts), np.sort(distance, axis=1)[:, :6], rtol=1e-12)


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


def test_few_sources_for_queries_that_crowd_elsewhere() -> None:
    """Ranks whose range holds fewer sources than k have no radius of their own to begin with."""
    rng = np.random.default_rng(2)
    pos = np.r_[0.01 * rng.random((900, 3)), rng.random((9, 3))].astype(np.float32)
    query = (0.5 + 0.4 * rng.random((1000, 3))).astype(np.float32)
    sources, counts = deal(pos, all_on_last(909, 4)), even(1000, 4)
    asked = Pos(pos=deal(query, counts).pos, num=counts.astype(np.int32))
    rad, idx = jz.knn.knn.smap(mesh_of(4), jit=True)(sources, k=12, part_query=asked)
    want_rad, want_idx = on_one(pos, 12, None, part_query=jnp.asarray(query))
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(idx, counts), want_idx)


def test_every_word_of_result() -> None:
    pos, counts, part = make("clustered", 4)
    words = "rad_rankidx_globalidx_part_id_drad"
    rad, rankidx, globalidx, found, ids, drad = jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=4, result=words)
    want_rad, want_idx = on_one(pos, 4, None)
    np.testing.assert_array_equal(joined(rad, counts), want_rad)
    np.testing.assert_array_equal(joined(drad, counts), want_rad)
    np.testing.assert_array_equal(joined(globalidx, counts), want_idx)
    np.testing.assert_array_equal(joined(ids, counts), want_idx)
    np.testing.assert_array_equal(joined(found.id, counts), want_idx)
    np.testing.assert_array_equal(joined(found.pos, counts), pos[want_idx])
    rank, row = joined(rankidx.rank, counts), joined(rankidx.idx, counts)
    np.testing.assert_array_equal(np.asarray(part.id)[rank, row], want_idx)
    assert np.all(np.asarray(rankidx.rank)[0, counts[0] :] == -1)


def test_reduce_sees_sources_where_they_are() -> None:
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


def test_z_order_and_a_tree_that_is_there_already() -> None:
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


def test_particles_that_are_not_in_order_are_no_tree() -> None:
    _, _, part = make("uniform", 4)
    _, th = jz.tree.zsort_and_tree.smap(mesh_of(4), jit=True)(part)
    with pytest.raises(Exception, match="on rank 0: a hierarchy needs particles in z-order"):
        jax.block_until_ready(jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=3, th=th))


@pytest.mark.parametrize("word", [pytest.param("rad", marks=pytest.mark.slow), "drad"])
def test_derivatives_are_those_of_one_device(word: str) -> None:
    pos, counts, part = make("uniform", 4)
    weights = np.random.default_rng(0).random((1200, 5)).astype(np.float32)
    dealt = deal(weights, counts).pos

    def loss_on_many(dealt_pos: jax.Array, box: jax.Array) -> jax.Array:
        rad = jz.knn.knn.smap(mesh_of(4))(Pos(pos=dealt_pos, num=part.num), k=5, boxsize=box, result=word)
        return jnp.sum(jnp.where(jnp.isfinite(rad), rad * dealt, 0))

    def loss_on_one(pos: jax.Array, box: jax.Array) -> jax.Array:
        return jnp.sum(jz.knn.knn(pos, 5, boxsize=box, result=word) * weights)

    box = jnp.float32(1.0)
    by_pos, by_box = jax.jit(jax.grad(loss_on_many, argnums=(0, 1)))(jnp.asarray(part.pos), box)
    want_pos, want_box = jax.grad(loss_on_one, argnums=(0, 1))(jnp.asarray(pos), box)
    np.testing.assert_allclose(joined(by_pos, counts), want_pos, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(by_box, want_box, rtol=1e-4)


@pytest.mark.parametrize(
    ("options", "message"), [({"result": "part"}, "only distances"), ({"output_order": "z"}, "z-order")]
)
def test_derivatives_that_do_not_exist_are_errors(options: dict[str, Any], message: str) -> None:
    _, _, part = make("uniform", 4)

    def loss(pos: jax.Array) -> jax.Array:
        found = jz.knn.knn.smap(mesh_of(4))(Pos(pos=pos, num=part.num), k=2, **{"result": "rad", **options})
        return jnp.sum(found if isinstance(found, jax.Array) else found.pos)

    with pytest.raises(ValueError, match=message):
        jax.jit(jax.grad(loss))(jnp.asarray(part.pos))


def test_too_few_particles_on_all_devices() -> None:
    _, _, part = make("no more than k", 4)
    with pytest.raises(Exception, match=r"6 neighbours were asked for \(k\), but there are only 5 particles"):
        jax.block_until_ready(jz.knn.knn.smap(mesh_of(4), jit=True)(part, k=6))


def test_more_particles_than_can_be_numbered() -> None:
    _, _, part = make("uniform", 4)
    many = ParticleData(pos=part.pos, num=part.num, num_total=2**31)
    with pytest.raises(ValueError, match="rankidx"):
        jz.knn.knn.smap(mesh_of(4), jit=True)(many, k=2)
    assert jz.knn.knn.smap(mesh_of(4), jit=True)(many, k=2, result="rankidx").idx.shape == (4, 1200, 2)


def uniform_without_padding() -> tuple[np.ndarray, np.ndarray]:
    return make("uniform", 4)[0], even(1200, 4)


def test_ghosts_that_do_not_fit_name_rank_need_have_and_option() -> None:
    pos, counts = uniform_without_padding()
    part = deal(pos, counts, rows=300)
    search = jz.knn.knn.smap(mesh_of(4), jit=True)
    with pytest.raises(
        CapacityError, match=r"rank \d needs room for \d+ rows .* has room for 307; set ghost_rows"
    ) as error:
        search(part, k=8, cfg=KNNConfig(ghost_rows=7))
    enough = KNNConfig(ghost_rows=error.value.need - 300)
    rad, _ = search(part, k=8, cfg=enough)
    np.testing.assert_array_equal(joined(rad, counts), on_one(pos, 8, None)[0])


@pytest.mark.slow
def test_ghosts_that_do_not_fit_at_first_get_more_room(count_compilations: Any) -> None:
    """Large k on many particles: every rank needs nearly all particles of the others."""
    pos = np.random.default_rng(0).random((24000, 3)).astype(np.float32)
    part = deal(pos, even(24000, 4), rows=6000)
    search = jz.knn.knn.smap(mesh_of(4), jit=True)
    rad = search(part, k=2500, result="rad")
    some = np.arange(0, 6000, 997)
    np.testing.assert_allclose(np.asarray(rad)[0, some], oracles.scipy_knn(pos, pos[some], 2500)[0], rtol=1e-5)
    with count_compilations() as lines:
        jax.block_until_ready(search(part, k=2500, result="rad"))
    assert not [line for line in lines if "knn" in line], "the room that was learnt is kept"


def test_inside_a_function_that_the_user_compiles_the_error_says_what_to_do() -> None:
    part = deal(*uniform_without_padding(), rows=300)
    compiled = jax.jit(lambda part: jz.knn.knn.smap(mesh_of(4))(part, k=8, cfg=KNNConfig(ghost_rows=7)))
    with pytest.raises(Exception, match=r"rank \d needs room for \d+ rows .* has room for 307; set ghost_rows"):
        jax.block_until_ready(compiled(part))


def test_one_compilation_for_any_box(count_compilations: Any) -> None:
    _, _, part = make("uniform", 2)
    search = jz.knn.knn.smap(mesh_of(2), jit=True)
    jax.block_until_ready(search(part, k=3, boxsize=1.0))
    with count_compilations() as lines:
        jax.block_until_ready(search(part, k=3, boxsize=1.25))
        jax.block_until_ready(search(part, 3))
    assert not [line for line in lines if "knn" in line]
