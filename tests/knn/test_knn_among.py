"""Restrictions of the neighbour search: without the particle itself, among marked sources, and within batches."""

from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import particles
from devices import deal, even, joined, mesh_of, uneven

from jztree.data import ParticleData, Pos
from jztree.knn import knn
from jztree.tree import zsort, zsort_and_tree

pytestmark = pytest.mark.emulated


def all_but_self(n: int) -> np.ndarray:
    return ~np.eye(n, dtype=bool)


# Without the particle itself


@pytest.mark.parametrize("k", [1, 4, 8, 16, 33, 65, 200])
def test_exclude_self_omits_the_first_column(k: int, dtype: Any) -> None:
    """Results are bitwise the columns after the first, for points with many duplicates."""
    pos = oracles.clustered(300, 3, dtype)
    pos[100:150] = pos[:50]
    for box in (None, 1.0):
        result, more = knn(pos, k, box, exclude_self=True), knn(pos, k + 1, box)
        for value, reference in zip(result, more, strict=True):
            np.testing.assert_array_equal(value, reference[:, 1:])
        oracles.assert_nearest(result, pos, pos, all_but_self(300), box)
        assert np.sum(np.asarray(result[0])[:, 0] == 0) >= 100, "twins stay"


@pytest.mark.parametrize("dims", [1, 2, 4, 8])
def test_exclude_self_in_all_dimensions(dims: int) -> None:
    pos = oracles.uniform(200, dims)
    oracles.assert_nearest(knn.jit(pos, 5, exclude_self=True), pos, pos, all_but_self(200))


def test_exclude_self_among_equal_points() -> None:
    pos = np.full((90, 3), 0.25, np.float32)
    rad, idx = knn(pos, 89, exclude_self=True)
    assert np.all(np.asarray(rad) == 0)
    np.testing.assert_array_equal(np.sort(idx), [np.delete(np.arange(90), i) for i in range(90)])


def test_exclude_self_closer_than_float32_squares() -> None:
    """Such pairs are searched again in float64."""
    pos = np.concatenate([oracles.uniform(60, 3) * 1e-30, oracles.uniform(60, 3)]).astype(np.float32)
    result, more = knn(pos, 5, exclude_self=True), knn(pos, 6)
    np.testing.assert_array_equal(result[1], more[1][:, 1:])
    np.testing.assert_array_equal(result[0], more[0][:, 1:])


@pytest.mark.parametrize("order", ["input", "z"])
def test_exclude_self_in_all_results(order: str) -> None:
    part, posz_th = particles(), zsort_and_tree(particles())
    for given, th in ((part, None), posz_th):
        call = {"output_order": order, "th": th, "boxsize": 1.0} if th is None else {"output_order": order, "th": th}
        if th is not None:
            call["boxsize"] = None
        words = "rad_globalidx_rankidx_part_id"
        result = knn(given, 4, result=words, exclude_self=True, **call)
        more = knn(given, 5, result=words, **call)
        for value, reference in zip(jax.tree.leaves(result), jax.tree.leaves(more), strict=True):
            np.testing.assert_array_equal(value, reference[:, 1:])

        def nearest(rnn: Any, part: Any, inn: Any, **_: Any) -> Any:
            return rnn, part.id[inn]

        built = knn(given, 4, result="reduce", reduce_func=nearest, exclude_self=True, **call)
        np.testing.assert_array_equal(built[0], result[0])
        np.testing.assert_array_equal(built[1], result[-1])


def test_exclude_self_within_a_radius() -> None:
    pos = oracles.clustered(300, 3)
    is_near = oracles.squared_distances(pos, pos) <= 0.05**2
    oracles.assert_nearest(knn(pos, 400, max_radius=0.05, exclude_self=True), pos, pos, is_near & all_but_self(300))


@pytest.mark.long
def test_gradients_with_exclude_self(x64: None) -> None:
    pos = jnp.asarray(oracles.uniform(20, 2, np.float64))
    ours = jax.jit(jax.grad(lambda x: (knn(x, 3, result="drad", exclude_self=True) ** 2).sum()))(pos)
    expected = jax.jit(jax.grad(lambda x: (knn(x, 4, result="drad") ** 2).sum()))(pos)
    np.testing.assert_allclose(ours, expected, rtol=1e-12)


def dealt(n: int, ndev: int, counts: Any = even) -> tuple[np.ndarray, np.ndarray, ParticleData]:
    pos = oracles.clustered(n, 3)
    pos[n // 2 : n // 2 + 20] = pos[:20]
    shares = counts(n, ndev)
    return pos, shares, deal(pos, shares)


@pytest.mark.long
@pytest.mark.parametrize("counts", [even, uneven])
@pytest.mark.parametrize("result", ["rad_globalidx", "rad_globalidx_id"])
def test_exclude_self_on_several_devices(counts: Any, result: str) -> None:
    pos, shares, part = dealt(900, 3, counts)
    results = knn.smap(mesh_of(3), jit=True)(part, 6, 1.0, result=result, exclude_self=True)
    single = knn(pos, 6, 1.0, exclude_self=True)
    for value, reference in zip(results, single, strict=False):
        np.testing.assert_array_equal(joined(value, shares), reference)


@pytest.mark.long
def test_exclude_self_with_fewer_sources_per_device_than_k() -> None:
    """Each device has fewer sources than neighbours: boxes that hold k sources may include the query itself."""
    pos = oracles.uniform(9, 3)
    for k in (1, 2, 8):
        result = knn.smap(mesh_of(3), jit=True)(deal(pos, even(9, 3), rows=10), k, exclude_self=True)
        oracles.assert_nearest([joined(column, even(9, 3)) for column in result], pos, pos, all_but_self(9))


# Marked sources


def mask_of(n: int, seed: int = 3) -> np.ndarray:
    return np.random.default_rng(seed).random(n) < 0.3


@pytest.mark.parametrize("box", [None, 1.0, [1.0, 0.0, 1.5]], ids=str)
@pytest.mark.parametrize("others", [False, True])
def test_source_mask(box: Any, others: bool, dtype: Any) -> None:
    pos, mask = oracles.clustered(400, 3, dtype), mask_of(400)
    pos[50:100] = pos[:50]
    allowed = np.broadcast_to(mask, (400, 400)) & (all_but_self(400) if others else True)
    for call in (knn, knn.jit):
        oracles.assert_nearest(call(pos, 7, box, source_mask=mask, exclude_self=others), pos, pos, allowed, box)
    limit = np.random.default_rng(1).random(400) * 0.2
    is_near = oracles.squared_distances(pos, pos, box) <= limit[:, None] ** 2
    result = knn(pos, 7, box, source_mask=mask, exclude_self=others, max_radius=limit)
    there = np.asarray(result[1]) >= 0
    np.testing.assert_array_equal(there.sum(axis=1), np.minimum((is_near & allowed).sum(axis=1), 7))


def test_source_mask_with_separate_queries() -> None:
    pos, query, mask = oracles.clustered(400, 3), oracles.uniform(70, 3, seed=5), mask_of(400)
    allowed = np.broadcast_to(mask, (70, 400))
    oracles.assert_nearest(knn(pos, 7, 1.0, part_query=query, source_mask=mask), pos, query, allowed, 1.0)
    part = Pos(pos=pos, num=250)
    result = knn(part, 7, 1.0, part_query=query, source_mask=mask)
    oracles.assert_nearest(result, pos, query, allowed & (np.arange(400) < 250), 1.0)


@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("order", ["input", "z"])
@pytest.mark.parametrize("with_th", [False, True])
def test_source_mask_in_all_results(order: str, with_th: bool, others: bool) -> None:
    part, mask = particles(), mask_of(300)
    given, th = part, None
    if with_th:
        (given, th), mask = zsort_and_tree(part), mask[zsort(part.pos)[1]]
    options = {"output_order": order, "th": th, "source_mask": mask, "exclude_self": others}

    def nearest(rnn: Any, part: Any, inn: Any, origin: Any, query: Any, queryidx: Any, **_: Any) -> Any:
        return part.id[inn], origin.idx[inn], query.id, queryidx.idx

    rad, idx, rank, ids, pos, built, query, whose = knn(
        given, 5, result="rad_globalidx_rankidx_id_pos_reduce_query_queryidx", reduce_func=nearest, **options
    )
    in_order = given if order == "input" or with_th else zsort(given)[0]
    np.testing.assert_array_equal(ids, np.asarray(in_order.id)[idx])
    np.testing.assert_array_equal(pos, np.asarray(in_order.pos)[idx])
    np.testing.assert_array_equal(rank.idx, idx)
    np.testing.assert_array_equal(query.id, in_order.id)
    np.testing.assert_array_equal(built[0], ids)
    np.testing.assert_array_equal(np.asarray(given.id)[built[1]], ids)
    np.testing.assert_array_equal(built[2], query.id)
    np.testing.assert_array_equal(built[3], whose.idx)
    by_id = dict(zip(np.asarray(given.id).tolist(), mask.tolist(), strict=True))
    allowed = np.array([by_id[array] for array in np.asarray(in_order.id).tolist()])[None] & np.ones((300, 1), bool)
    where = np.asarray(in_order.pos)
    oracles.assert_nearest((rad, idx), where, where, allowed & (all_but_self(300) if others else True))


@pytest.mark.long
@pytest.mark.parametrize("others", [False, True])
@pytest.mark.parametrize("result", ["rad_globalidx", "rad_globalidx_id"])
def test_source_mask_on_several_devices(result: str, others: bool) -> None:
    pos, shares, part = dealt(900, 3, uneven)
    mask, rows = mask_of(900), part.pos.shape[1]
    masks = np.ones((3, rows), bool)
    for rank, end in enumerate(np.cumsum(shares)):
        masks[rank, : shares[rank]] = mask[end - shares[rank] : end]
    query = oracles.uniform(300, 3, seed=6)
    mapped = knn.smap(mesh_of(3), jit=True)
    results = mapped(part, 6, 1.0, result=result, source_mask=masks, exclude_self=others)
    single = knn(pos, 6, 1.0, result="rad_globalidx", source_mask=mask, exclude_self=others)
    for value, reference in zip(results, single, strict=False):
        np.testing.assert_array_equal(joined(value, shares), reference)
    if not others:
        asked = deal(query, even(300, 3))
        results = mapped(part, 6, 1.0, part_query=asked, result=result, source_mask=masks)
        single = knn(pos, 6, 1.0, part_query=query, source_mask=mask)
        for value, reference in zip(results, single, strict=False):
            np.testing.assert_array_equal(joined(value, even(300, 3)), reference)


@pytest.mark.long
@pytest.mark.parametrize("result", ["rad_globalidx", "rad_globalidx_id"])
@pytest.mark.parametrize("order", ["input", "z"])
def test_source_mask_with_a_hierarchy_on_several_devices(result: str, order: str) -> None:
    """Rows count particles in z-order, and marks are given in that order."""
    pos, _, part = dealt(900, 3)
    partz, th = zsort_and_tree.smap(mesh_of(3), jit=True)(part)
    nums, where = np.asarray(partz.num), joined(partz.pos, np.asarray(partz.num))
    masks = np.random.default_rng(4).random(partz.pos.shape[:2]) < 0.3
    mapped = knn.smap(mesh_of(3), jit=True)
    options = {"th": th, "output_order": order, "source_mask": masks, "exclude_self": True}
    results = mapped(partz, 6, result=result, **options)
    allowed = joined(masks, nums)[None] & all_but_self(900)
    oracles.assert_nearest([joined(column, nums) for column in results[:2]], where, where, allowed)
    np.testing.assert_array_equal(np.sort(where, axis=0), np.sort(pos, axis=0))


# Batches


def batches_of(n: int, sets: int, seed: int = 8) -> np.ndarray:
    """Return batches of very different sizes, in random order."""
    rng = np.random.default_rng(seed)
    return np.sort(rng.random(n))[rng.permutation(n)] ** 2 * sets // 1


@pytest.mark.long
@pytest.mark.parametrize("kind", ["mixed", "periodic", "open"])
@pytest.mark.parametrize("dims", [3, 1, 2, 7])
def test_batches_are_searched_separately(dims: int, kind: str, dtype: Any) -> None:
    """The distances of each set are bitwise the same, and so are rows if no distances are equal."""
    box, sets = oracles.box_lengths(kind, dims), 9
    pos = oracles.uniform(500, dims, dtype) * (3 if kind == "open" else 1)
    batch = batches_of(500, sets).astype(np.int32)
    rad, idx = (np.asarray(number) for number in knn(pos, 6, box, batch=batch))
    oracles.assert_nearest((rad, idx), pos, pos, batch[:, None] == batch, box)
    for number in range(sets):
        (rows,) = np.nonzero(batch == number)
        alone = [np.asarray(x) for x in knn(pos[rows], min(6, len(rows)), box)]
        np.testing.assert_array_equal(rad[rows, : len(rows)], alone[0])
        np.testing.assert_array_equal(idx[rows, : len(rows)], rows[alone[1]])


@pytest.mark.parametrize("kind", ["int8", "uint8", "int16", "uint16", "uint32"])
def test_batch_numbers_of_any_integer_type(kind: str) -> None:
    pos, batch = oracles.uniform(90, 3), np.arange(90) % 3
    expected = knn(pos, 4, batch=batch)
    for result in (knn(pos, 4, batch=batch.astype(kind)), knn.jit(pos, 4, batch=batch.astype(kind))):
        np.testing.assert_array_equal(result[1], expected[1])


@pytest.mark.parametrize("unit", [1e-29, 1.0, 1e30], ids=str)
def test_batches_in_any_unit_and_far_apart(unit: float) -> None:
    """Use sets of one particle, empty sets, numbers up to the largest, and a clump next to a wide set."""
    pos = np.concatenate([oracles.uniform(60, 3) * 1e-7, oracles.uniform(60, 3)]).astype(np.float64)
    pos = (pos * unit).astype(np.float32)
    batch = np.r_[np.full(60, 7), np.arange(30) % 2, np.full(29, 3), 2**24 if unit == 1 else 40]
    rad, idx = (np.asarray(column) for column in knn.jit(pos, 5, batch=batch, exclude_self=True))
    allowed = (batch[:, None] == batch) & all_but_self(120)
    oracles.assert_nearest((rad / np.float32(unit), idx), pos / unit, pos / unit, allowed)
    (rows,) = np.nonzero(batch == 7)
    alone = knn(pos[rows], 5, exclude_self=True)
    np.testing.assert_array_equal(rad[rows], alone[0])
    np.testing.assert_array_equal(idx[rows], rows[alone[1]])


@pytest.mark.parametrize("unit", [2.0**-90, 1.0, 2.0**90], ids=str)
@pytest.mark.parametrize("each", [False, True])
def test_large_max_radius_does_not_reach_other_batches(unit: float, each: bool) -> None:
    pos, batch = (oracles.uniform(90, 3) * unit).astype(np.float32), np.arange(90) % 9
    limit = np.linspace(20, 400, 90) * unit if each else 30 * unit
    result = knn(pos, 15, batch=batch, max_radius=limit)
    np.testing.assert_array_equal(result[1], knn(pos, 15, batch=batch)[1])
    assert (np.asarray(result[1])[:, 10:] == -1).all()


@pytest.mark.parametrize("unit", [1e30, 3.4e36, 8.4e37])
def test_batches_near_the_largest_float32(unit: float) -> None:
    """As many sets as have space are searched. For one more, the error reports how many have space."""
    pos = ((oracles.uniform(60, 3, np.float64) - 0.5) * unit).astype(np.float32)
    fit = 2 if unit == 3.4e36 else 1 if unit > 3.4e36 else 60
    batch = np.arange(60) % fit
    rad, idx = (np.asarray(column) for column in knn(pos, 60 // fit, batch=batch))
    distance2 = np.where(batch[:, None] == batch, oracles.squared_distances(pos.astype(np.float64), pos), np.inf)
    np.testing.assert_allclose(rad, np.sqrt(np.sort(distance2, axis=1)[:, : 60 // fit]), rtol=1e-6)
    assert np.all(np.sort(idx, axis=1) == np.arange(60).reshape(-1, fit).T[batch])
    if fit < 60:
        with pytest.raises(
            oracles.RUN_TIME_ERROR,
            match=rf"row {fit} of batch is {fit}.*float32 can represent only the batches up to {fit - 1};",
        ):
            knn(pos, 3, batch=np.arange(60) % (fit + 1))


def test_batch_numbers_up_to_the_largest(x64: None) -> None:
    for dtype, last in ((np.float32, 2**24), (np.float64, 2**31 - 1)):
        pos, batch = oracles.uniform(60, 3, dtype), np.arange(60) % 2 * last
        result = knn(pos, 5, batch=batch)
        oracles.assert_nearest(result, pos, pos, batch[:, None] == batch)


@pytest.mark.long
def test_batches_combined_with_other_options() -> None:
    part, batch, mask = particles(), batches_of(300, 4).astype(np.int32), mask_of(300)
    same = batch[:, None] == batch
    query, query_batch = oracles.uniform(40, 3, seed=6), np.arange(40) % 5
    result = knn(part.pos, 6, 1.0, batch=batch, part_query=query, query_batch=query_batch, source_mask=mask)
    oracles.assert_nearest(result, np.asarray(part.pos), query, (query_batch[:, None] == batch) & mask, 1.0)
    pos = np.asarray(part.pos)
    result = knn(part, 6, 1.0, batch=batch, exclude_self=True, source_mask=mask)
    oracles.assert_nearest(result, pos, pos, same & all_but_self(300) & mask, 1.0)
    for limit in (0.2, np.random.default_rng(1).random(300) * 0.3, 99.0):
        is_near = oracles.squared_distances(pos, pos, 1.0) <= np.broadcast_to(limit, 300)[:, None] ** 2
        oracles.assert_nearest(knn(part, 300, 1.0, batch=batch, max_radius=limit), pos, pos, same & is_near, 1.0)

    def nearest(rnn: Any, part: Any, inn: Any, query: Any, **_: Any) -> Any:
        assert part.pos.shape == query.pos.shape == (300, 3)
        return jnp.where(inn < 0, 0, part.id[inn]), query.id

    words = "rad_globalidx_part_id_query_queryidx_reduce"
    _, idx, is_near, ids, query, whose, built = knn(part, 6, 1.0, result=words, reduce_func=nearest, batch=batch)
    there = np.asarray(idx) >= 0
    np.testing.assert_array_equal(is_near.pos, np.where(there[..., None], pos[idx], 0))
    np.testing.assert_array_equal(ids, np.where(there, np.asarray(part.id)[idx], 0))
    np.testing.assert_array_equal(built[0], ids)
    np.testing.assert_array_equal(built[1], part.id)
    np.testing.assert_array_equal(query.pos, pos)
    np.testing.assert_array_equal(whose.idx, np.arange(300))


@pytest.mark.long
def test_gradients_within_batches(x64: None) -> None:
    pos, batch = jnp.asarray(oracles.uniform(30, 2, np.float64)), np.arange(30) % 3

    def loss(x: Any, box: Any) -> Any:
        rad = knn(x, 3, box, result="drad", batch=batch, exclude_self=True)
        return (rad**2).sum()

    def each(x: Any, box: Any) -> Any:
        sets = [x[batch == number] for number in range(3)]
        return sum((knn(column, 3, box, result="drad", exclude_self=True) ** 2).sum() for column in sets)

    gradients, expected = (jax.jit(jax.grad(function, argnums=(0, 1)))(pos, 1.1) for function in (loss, each))
    for ours, second in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, second, rtol=1e-12)


@pytest.mark.long
@pytest.mark.parametrize("result", ["rad_globalidx", "rad_globalidx_id"])
def test_batches_on_several_devices(result: str) -> None:
    pos, shares, part = dealt(900, 3, uneven)
    batch, rows = batches_of(900, 7).astype(np.int32), part.pos.shape[1]
    batches = np.zeros((3, rows), np.int32)
    for rank, end in enumerate(np.cumsum(shares)):
        batches[rank, : shares[rank]] = batch[end - shares[rank] : end]
    mapped = knn.smap(mesh_of(3), jit=True)
    rad, idx = (joined(item, shares) for item in mapped(part, 6, 1.0, result=result, batch=batches)[:2])
    oracles.assert_nearest((rad, idx), pos, pos, batch[:, None] == batch, 1.0)
    np.testing.assert_array_equal(rad, knn(pos, 6, 1.0, batch=batch)[0])
    query, of_query = oracles.uniform(60, 3, seed=6), np.arange(60) % 7
    options = {"part_query": deal(query, even(60, 3), rows=20), "query_batch": of_query.reshape(3, 20)}
    results = mapped(part, 6, 1.0, result=result, batch=batches, **options)[:2]
    results = [joined(column, even(60, 3)) for column in results]
    oracles.assert_nearest(results, pos, query, of_query[:, None] == batch, 1.0)


# Errors

POS = oracles.uniform(20, 3)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"k": 20, "exclude_self": True}, ValueError, "only 19 others"),
        ({"exclude_self": True, "part_query": POS}, ValueError, "exclude_self is only for searches among"),
        ({"source_mask": [True] * 20}, TypeError, "not list"),
        ({"source_mask": np.arange(20) < 2}, oracles.RUN_TIME_ERROR, "only 2 particles"),
        ({"batch": [0] * 20}, TypeError, "it is list"),
        ({"batch": np.zeros(20, int), "part_query": POS}, ValueError, "pass both with part_query"),
        ({"query_batch": np.zeros(20, int)}, ValueError, "batch alone without it"),
        ({"batch": np.zeros(20, int), "output_order": "z"}, ValueError, "batch has its own sort order"),
        ({"batch": -np.ones(20, int)}, oracles.RUN_TIME_ERROR, "row 0 of batch is not a valid batch number"),
        ({"batch": np.arange(20) * 2**22}, oracles.RUN_TIME_ERROR, "row 5 of batch.*from 0 to 16777216"),
    ],
    ids=str,
)
def test_invalid_arguments_raise(options: dict[str, Any], error: Any, message: str) -> None:
    gpus.skip_where_kernels_cannot_raise()
    for call in (knn, knn.jit):
        with pytest.raises(error, match=message):
            jax.block_until_ready(call(POS, **({"k": 3} | options)))


def test_batches_in_too_many_dimensions_raise() -> None:
    with pytest.raises(ValueError, match="from 1 to 7 dimensions, but these have 8"):
        knn(oracles.uniform(20, 8), 2, batch=np.zeros(20, int))
