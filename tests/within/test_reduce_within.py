"""Sums over pairs of the results of a function of each pair, compared with all pairs in float64."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, deal, even, joined, mesh_of, uneven

import jztree as jz
from jztree import build_index
from jztree.config import RadiusConfig, TreeConfig
from jztree.data import ParticleData, Pos, PosMass
from jztree.radius import count_within, reduce_within

pytestmark = pytest.mark.emulated


def bell(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> Any:
    """Return values that depend on all arguments: positions, distances, and particle properties."""
    weight = source.mass * jnp.exp(-((distance / 0.1) ** 2))
    return {"weight": weight, "moment": vector * (query.mass * source.mass)[:, None]}


def all_pairs(query: np.ndarray, pos: np.ndarray, radius: Any, box: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the vectors from each query to each source, their lengths, and whether they are within the radius."""
    vector = -oracles.nearest_differences(query, pos, box)
    distance = np.sqrt((vector**2).sum(axis=-1))
    within = distance <= np.broadcast_to(np.asarray(radius, np.float64), len(query))[:, None]
    return vector, distance, within


def bell_of_all(query: Any, part: Any, radius: Any, box: Any) -> dict[str, np.ndarray]:
    vector, distance, within = all_pairs(query.pos, part.pos, radius, box)
    products = np.asarray(query.mass, np.float64)[:, None] * part.mass * within
    weight = np.where(within, np.asarray(part.mass, np.float64) * np.exp(-((distance / 0.1) ** 2)), 0)
    return {"weight": weight.sum(axis=1), "moment": np.einsum("qn,qnd->qd", products, vector)}


def masses(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).uniform(0.5, 2, n).astype(np.float32)


def assert_same(result: Any, expected: dict[str, np.ndarray], rtol: float = 1e-5) -> None:
    for name, column in expected.items():
        oracles.assert_near(result[name], column, rtol)


@pytest.mark.long
@pytest.mark.parametrize("dims", [3, 1, 2, 5, 8])
@pytest.mark.parametrize("kind", ["mixed", "periodic", "open"])
def test_equals_all_pairs(dims: int, kind: str, dtype: Any) -> None:
    box, radius = oracles.box_lengths(kind, dims), 0.4 if dims > 2 else 0.15
    part = PosMass(pos=oracles.uniform(200, dims, dtype), mass=masses(200, 1))
    query = PosMass(pos=oracles.uniform(40, dims, dtype, seed=4) * 3 - 1, mass=masses(40, 2))
    assert_same(reduce_within(part, radius, bell, boxsize=box), bell_of_all(part, part, radius, box))
    each = np.linspace(0, 2 * radius, 40)
    assert_same(reduce_within(part, each, bell, boxsize=box, queries=query), bell_of_all(query, part, each, box))


@pytest.mark.long
@pytest.mark.parametrize(("n", "q"), [(0, 0), (0, 5), (5, 0), (1, 1), (3, 9_000), (9_000, 3)])
def test_any_number_of_particles_and_queries(n: int, q: int) -> None:
    part, query = (PosMass(pos=oracles.uniform(m, 3, seed=m), mass=masses(m, 3)) for m in (n, q))
    for call in (reduce_within, reduce_within.jit):
        result = call(part, 0.2, bell, boxsize=1.0, queries=query)
        assert result["moment"].shape == (q, 3)
        assert_same(result, bell_of_all(query, part, 0.2, 1.0))


@pytest.mark.long
def test_blocks_of_queries_of_very_different_numbers_of_pairs() -> None:
    clump = np.random.default_rng(3).normal(0.5, 1e-3, (700, 3))
    pos = np.r_[oracles.uniform(80_000, 3), clump].astype(np.float32)
    part = Pos(pos=pos)

    def one(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
        return jnp.ones(distance.shape, jnp.int32)

    expected = count_within(pos, 0.01)
    np.testing.assert_array_equal(reduce_within(part, 0.01, one), expected)
    np.testing.assert_array_equal(reduce_within.jit(part, 0.01, one), expected)
    inside = jax.jit(lambda pos: reduce_within(pos, 0.01, one, capacity=1_000_000))
    np.testing.assert_array_equal(inside(pos), expected)
    with pytest.raises(
        jz.CapacityError, match=r"capacity for \d+ rows of pairs, but has capacity for 1000; give that capacity"
    ):
        reduce_within.jit(part, 0.01, one, capacity=1000)
    with pytest.raises(jz.CapacityError, match="has capacity for 1000"):
        reduce_within(part, 0.01, one, capacity=1000)


@pytest.mark.parametrize(
    ("given", "summed"),
    [("int8", "int32"), ("uint8", "uint32"), ("int16", "int32"), ("float16", "float32"), ("bfloat16", "float32")],
)
def test_sums_of_narrow_numbers_are_wide(given: str, summed: str) -> None:
    """6,000 ones exceed the range of 8 bits, and the exact integers of half precision."""
    pos = np.full((6000, 3), 0.5, np.float32)

    def one(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
        return jnp.ones(distance.shape, given)

    query = pos[:2]
    result = reduce_within.jit(pos, 0.1, one, queries=query)
    assert result.dtype == summed
    np.testing.assert_array_equal(result, [6000, 6000])
    assert reduce_within.jit(pos, 0.1, one, queries=query, how="max").dtype == given
    with jax.enable_x64(True):
        wide = summed.replace("32", "64") if "int" in summed else summed
        assert reduce_within(pos, 0.1, one, queries=query).dtype == wide


@pytest.mark.parametrize("how", ["max", "min"])
def test_largest_and_smallest(how: str) -> None:
    pos, value = oracles.uniform(500, 3), masses(500, 5)
    part, query = PosMass(pos=pos, mass=value), oracles.uniform(30, 3, seed=8)

    def carried(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
        return source.mass

    within = all_pairs(query, pos, 0.1, 1.0)[2]
    expected = getattr(np, how)(np.where(within, value, -np.inf if how == "max" else np.inf), axis=1)
    result = reduce_within.jit(part, 0.1, carried, boxsize=1.0, queries=query, how=how)
    np.testing.assert_array_equal(result, expected.astype(np.float32))
    assert np.isinf(expected).any(), "no query is without a pair"


def test_padding_and_properties_of_various_dtypes() -> None:
    rng, n = np.random.default_rng(4), 300
    pos, vel = np.full((n + 9, 3), np.nan, np.float32), np.full((n + 9, 3), np.nan, np.float32)
    pos[:n], vel[:n] = rng.random((n, 3)), rng.normal(size=(n, 3))
    part = ParticleData(pos=pos, mass=2.0, vel=vel, id=np.arange(n + 9), num=n)

    def apart(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> Any:
        toward = jnp.sum((source.vel - query.vel) * vector, axis=1)
        return toward * source.mass, (source.id > query.id).astype(jnp.int32)

    result, later = reduce_within(part, 0.2, apart, boxsize=1.0)
    vector, _, within = all_pairs(pos[:n], pos[:n], 0.2, 1.0)
    relative = vel[None, :n].astype(np.float64) - vel[:n, None]
    oracles.assert_near(result[:n], 2 * np.sum((relative * vector).sum(axis=-1) * within, axis=1), 1e-5)
    np.testing.assert_array_equal(later[:n], np.sum(within & (np.arange(n) > np.arange(n)[:, None]), axis=1))
    np.testing.assert_array_equal(result[n:], 0)


@pytest.mark.long
def test_index_and_leaf_sizes() -> None:
    part = PosMass(pos=oracles.clustered(2_000, 3), mass=masses(2_000, 6))
    expected = bell_of_all(part, part, 0.05, 1.0)
    assert_same(reduce_within.jit(build_index.jit(part, 1.0), 0.05, bell), expected)
    cfg = RadiusConfig(tree=TreeConfig(leaf_size=3, fan_out=2))
    assert_same(reduce_within(part, 0.05, bell, boxsize=1.0, cfg=cfg), expected)


# Derivatives


def _sharp(part: Any, radius: Any, query: Any, box: Any, scale: Any) -> jax.Array:
    """Return a number that depends on all arguments, including one captured by the pair function; singular at 0."""

    def pull(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
        return source.mass[:, None] * vector / (scale * distance[:, None]) ** 3

    result = reduce_within(part, radius, pull, boxsize=box, queries=query)
    return jnp.sum(result * jnp.arange(1.0, 4.0, dtype=result.dtype))


@pytest.mark.long
def test_derivatives_against_differences() -> None:
    with jax.enable_x64(True):
        pos, query = oracles.uniform(60, 3, np.float64), oracles.uniform(7, 3, np.float64, seed=2)
        part = PosMass(pos=jnp.asarray(pos), mass=jnp.asarray(masses(60, 7), jnp.float64))
        arguments = part, jnp.asarray(query), jnp.asarray([1.0, 1.1, 1.2]), jnp.asarray(1.5)

        def loss(part: Any, query: Any, box: Any, scale: Any) -> jax.Array:
            return _sharp(part, 0.3, query, box, scale)

        gradients = jax.grad(loss, argnums=(0, 1, 2, 3))(*arguments)
        rng = np.random.default_rng(0)
        ways = jax.tree.map(lambda leaf: jnp.asarray(rng.normal(size=np.shape(leaf))), arguments)
        for i in range(4):
            moved = _moved(loss, arguments, ways, i)
            slope = sum(jax.tree.leaves(jax.tree.map(lambda g, method: jnp.sum(g * method), gradients[i], ways[i])))
            np.testing.assert_allclose(slope, (moved[0] - moved[1]) / 2e-6, rtol=2e-6)


def _moved(loss: Callable[..., Any], arguments: Any, ways: Any, which: int) -> list[jax.Array]:
    """Return the loss slightly on both sides of the arguments, with one argument moved in a given direction."""
    result = []
    for step in (1e-6, -1e-6):
        there = list(arguments)
        there[which] = jax.tree.map(lambda x, method, step=step: x + step * method, arguments[which], ways[which])
        result.append(loss(*there))
    return result


@pytest.mark.long
def test_padding_has_finite_derivatives() -> None:
    """No derivative is NaN if there are no pairs at all, or fewer than the capacity."""
    for n in (0, 4):
        pos = np.full((6, 3), np.nan, np.float32)
        pos[:n] = oracles.uniform(n, 3)
        mass = np.full(6, np.nan, np.float32)
        mass[:n] = 1

        def loss(pos: Any, mass: Any, scale: Any, n: int = n) -> jax.Array:
            part = ParticleData(pos=pos, mass=mass, num=n)
            return _sharp(part, 0.9, jnp.full((3, 3), 0.5, jnp.float32), None, scale)

        derive = jax.grad(loss, argnums=(0, 1, 2))
        for result in (derive if n else jax.jit(derive))(pos, mass, 1.5):
            assert np.isfinite(result).all()
            assert n or not result.any()


# Over devices


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_over_devices(ndev: int) -> None:
    part = PosMass(pos=oracles.clustered(1_000, 3), mass=masses(1_000, 1))
    query = PosMass(pos=oracles.uniform(300, 3, seed=9), mass=masses(300, 2))
    of_sources, of_queries = uneven(1_000, ndev), even(300, ndev)

    def dealt(complete: Any, counts: np.ndarray, rows: int) -> ParticleData:
        spread = deal(complete.pos, counts, rows)
        mass = deal(np.repeat(complete.mass[:, None], 3, axis=1), counts, rows).pos[..., 0]
        return ParticleData(pos=spread.pos, mass=mass, num=spread.num)

    spread, asking = dealt(part, of_sources, 1_000), dealt(query, of_queries, 300)
    mapped = reduce_within.smap(mesh_of(ndev), jit=True)
    for box in (None, 1.0):
        result = mapped(spread, 0.07, bell, boxsize=box)
        assert_same({k: joined(v, of_sources) for k, v in result.items()}, bell_of_all(part, part, 0.07, box))
        result = mapped(spread, 0.07, bell, boxsize=box, queries=asking)
        assert_same({k: joined(v, of_queries) for k, v in result.items()}, bell_of_all(query, part, 0.07, box))

    def loss(part: Any, query: Any, call: Any) -> jax.Array:
        result = call(part, 0.07, bell, boxsize=1.0, queries=query)
        return jnp.sum(result["weight"] ** 2) + jnp.sum(result["moment"])

    many = jax.jit(jax.grad(lambda p, q: loss(p, q, mapped), argnums=(0, 1), allow_int=True))(spread, asking)
    single = jax.jit(jax.grad(lambda p, q: loss(p, q, reduce_within), argnums=(0, 1)))(part, query)
    for a, b, counts in zip(many, single, (of_sources, of_queries), strict=True):
        oracles.assert_near(joined(a.pos, counts), b.pos, 1e-4)
        oracles.assert_near(joined(a.mass, counts), b.mass, 1e-4)


# Bad input


def test_error_messages() -> None:
    pos = oracles.uniform(20, 3)
    with pytest.raises(ValueError, match="how is 'mean'; it must be one of 'sum', 'max', 'min'"):
        reduce_within(pos, 0.1, lambda q, s, v, d: d, how="mean")
    with pytest.raises(
        ValueError, match=r"pair_func must return arrays with \d+ rows, one per pair; one has shape \(\)"
    ):
        reduce_within(pos, 0.1, lambda q, s, v, d: d.sum())
    with pytest.raises(TypeError, match="whose rows cannot be moved"):
        reduce_within(pos, 0.1, lambda q, s, v, d: d.astype(jnp.int4))
    with pytest.raises(TypeError, match="pair_func must be a function"):
        reduce_within(pos, 0.1, "sum")
    with pytest.raises(ValueError, match="radius must be a number, or one per query"):
        reduce_within(pos, [0.1, 0.2], lambda q, s, v, d: d)
    with pytest.raises(ValueError, match="must be at least 0"):
        reduce_within(pos, -1.0, lambda q, s, v, d: d)
