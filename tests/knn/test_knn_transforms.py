"""Nearest neighbours under JAX transformations: jit, vmap, scan, gradients, and retracing."""

from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import particles

import jztree as jz
from jztree import data, tree
from jztree.config import KNNConfig
from jztree.knn import knn

pytestmark = pytest.mark.emulated


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
    for result in (
        jax.vmap(search)(batch),
        jax.jit(jax.vmap(search))(batch),
        jax.lax.scan(lambda carry, pos: (carry, search(pos)), 0, batch)[1],
        jax.lax.map(search, batch),
    ):
        np.testing.assert_array_equal(result[0], rad)
        np.testing.assert_array_equal(result[1], idx)


def test_vmap_over_queries_box_and_num() -> None:
    part = particles(100)
    boxes, nums = jnp.array([1.0, 1.5, 2.0]), jnp.array([50, 80, 100])
    result = jax.vmap(lambda box, num: knn(data.Pos(pos=part.pos, num=num), 3, boxsize=box))(boxes, nums)
    for i in range(3):
        single = knn(data.Pos(pos=part.pos, num=int(nums[i])), 3, boxsize=float(boxes[i]))
        np.testing.assert_array_equal(result[0][i], single[0])
        np.testing.assert_array_equal(result[1][i], single[1])


def finite_differences(func: Any, at: np.ndarray, step: float = 1e-6) -> np.ndarray:
    gradient, func = np.empty_like(at), jax.jit(func)
    for place in np.ndindex(at.shape):
        shift = np.zeros_like(at)
        shift[place] = step
        gradient[place] = (float(func(at + shift)) - float(func(at - shift))) / (2 * step)
    return gradient


GRADIENT_POS = oracles.uniform(14, 2, np.float64, seed=31)


@pytest.mark.parametrize("box", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("order", ["input", pytest.param("z", marks=pytest.mark.slow)])
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


@pytest.mark.slow
def test_gradient_under_jit_vmap_and_scan() -> None:
    batch = jnp.stack([jnp.asarray(oracles.uniform(20, 3, seed=s)) for s in range(3)])
    gradient = jax.grad(lambda pos: knn(pos, 4, boxsize=1.0, result="drad").sum())
    single = jnp.stack([gradient(pos) for pos in batch])
    np.testing.assert_allclose(jax.vmap(gradient)(batch), single, rtol=1e-6)
    scanned = jax.lax.scan(lambda carry, pos: (carry, gradient(pos)), 0, batch)[1]
    np.testing.assert_allclose(jax.jit(jax.vmap(gradient))(batch), scanned, rtol=1e-6)


def test_gradient_between_coincident_points_is_zero() -> None:
    pos = jnp.asarray(np.repeat(oracles.uniform(5, 3), 4, axis=0))
    gradient = jax.jit(jax.grad(lambda x: knn(x, 4, result="drad").sum()))(pos)
    np.testing.assert_array_equal(gradient, 0)


@pytest.mark.parametrize("filler", [0.0, np.nan, np.inf], ids=str)
def test_gradient_ignores_padding(filler: float) -> None:
    pos = np.full((20, 3), filler, np.float32)
    pos[:15] = oracles.uniform(15, 3)
    gradient = jax.grad(lambda x: knn(data.Pos(pos=x, num=15), 4, result="drad")[:15].sum())(jnp.asarray(pos))
    alone = jax.grad(lambda x: knn(x, 4, result="drad").sum())(jnp.asarray(pos[:15]))
    gpus.assert_same_sums(gradient[:15], alone)
    np.testing.assert_array_equal(gradient[15:], 0)


def directions(pos: np.ndarray, k: int, box: Any) -> tuple[np.ndarray, np.ndarray]:
    """Return ``(q, k, d)`` unit vectors from neighbours to queries, in float64 from the given positions."""
    idx = np.asarray(knn(jnp.asarray(pos), k, boxsize=box, result="globalidx"))
    wide, length = pos.astype(np.float64), oracles.full_box(box, pos.shape[1])
    difference = wide[:, None] - wide[idx]
    difference -= length * np.rint(difference / np.where(length > 0, length, 1))
    size = np.sqrt((difference**2).sum(axis=-1, keepdims=True))
    return idx, difference / np.where(size > 0, size, 1)


@pytest.mark.parametrize("unit", [1.0, 1e-27, 1e30], ids=str)
@pytest.mark.parametrize("length", [0.7, pytest.param([1.3, 0.0, 1.0], marks=pytest.mark.slow)], ids=str)
def test_gradient_of_radii_in_float32(length: Any, unit: float) -> None:
    """Use a clump across faces, in any unit: directions are as accurate as radii."""
    random = np.random.default_rng(4)
    sides = oracles.full_box(length, 3)
    clump = random.standard_normal((40, 3)) * 1e-4
    pos = np.where(sides > 0, clump % np.where(sides > 0, sides, 1), clump).astype(np.float32) * np.float32(unit)
    box = np.asarray(length) * unit
    idx, toward = directions(pos, 5, box)
    weight = random.random((40, 5))
    loss = lambda pos: (jnp.asarray(weight, jnp.float32) * knn(pos, 5, boxsize=box, result="drad")).sum()  # noqa: E731
    expected = (weight[..., None] * toward).sum(axis=1)
    np.add.at(expected, idx, -weight[..., None] * toward)
    np.testing.assert_allclose(jax.jit(jax.grad(loss))(jnp.asarray(pos)), expected, atol=1e-5)


def test_gradient_of_radii_of_a_pair_across_a_face() -> None:
    """The separation is a few digits of the position, so the period must be subtracted without rounding."""
    pos = jnp.asarray([[np.nextafter(np.float32(0.7), np.float32(0))], [1e-8]], jnp.float32)
    gradient = jax.grad(lambda pos: knn(pos, 2, boxsize=0.7, result="drad")[0, 1])(pos)
    np.testing.assert_allclose(gradient, [[-1], [1]], rtol=1e-6)


@pytest.mark.slow
def test_second_derivatives_of_radii_in_z_order(x64: None) -> None:
    """The sorted positions depend on the given ones to any order."""

    def distances(pos: Any) -> Any:
        return knn(pos, 2, result="drad", output_order="z").sum()

    pos = jnp.array([[0.0, 0.0], [1.0, 0.5]])
    expected = jax.hessian(lambda x: 2 * jnp.sqrt(((x[0] - x[1]) ** 2).sum()))(pos)
    np.testing.assert_allclose(jax.jit(jax.hessian(distances))(pos), expected, atol=1e-12)


@pytest.mark.slow
def test_second_derivatives_of_radii(x64: None) -> None:
    """A distance is not linear in the positions, so its second derivatives do not vanish."""

    def distance(pos: Any) -> Any:
        return knn(pos, 2, result="drad")[0, 1]

    pos = jnp.array([[0.0, 0.0], [1.0, 0.5]])
    expected = jax.jacfwd(jax.jacfwd(lambda x: jnp.sqrt(((x[0] - x[1]) ** 2).sum())))(pos)
    np.testing.assert_allclose(jax.jacfwd(jax.jacfwd(distance))(pos), expected, atol=1e-12)


@pytest.mark.long
def test_gradient_of_neighbour_fields() -> None:
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

    gradient = jax.jit(jax.grad(loss), static_argnums=1)
    expected = gradient(part.pos, False)
    np.testing.assert_allclose(gradient(part.pos, True), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("separate", [False, True])
@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
def test_padding_does_not_affect_gradients_through_reduce_func(jit: bool, separate: bool) -> None:
    pos, mass = oracles.uniform(40, 3), np.random.default_rng(1).random(40).astype(np.float32)

    def moments(part: Any, inn: Any, query: Any, **_: Any) -> Any:
        vectors = query.pos[:, None] - part.pos[inn]
        return jnp.where(inn[..., None] >= 0, part.mass[inn][..., None] * vectors**2, 0).sum((1, 2))

    def loss(pos: Any, mass: Any, queries: Any) -> Any:
        query = data.Pos(pos=queries, num=8) if separate else None
        part = data.PosMass(pos=pos, mass=mass, num=40)
        return jnp.sin(jz.nearest(part, 4, queries=query, max_radius=0.2, reduce=moments)[:8]).sum()

    def padded(array: Any) -> Any:
        return jnp.concatenate([array, jnp.full((3, *array.shape[1:]), jnp.nan, array.dtype)])

    derive = jax.grad(loss, (0, 1, 2))
    arrays = pos, mass, pos[:8] + np.float32(0.01)
    results = (jax.jit(derive) if jit else derive)(*map(padded, arrays))
    for result, expected in zip(results, derive(*map(jnp.asarray, arrays)), strict=True):
        np.testing.assert_allclose(result[:-3], expected, rtol=1e-5, atol=1e-6)
        np.testing.assert_array_equal(result[-3:], 0)


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
