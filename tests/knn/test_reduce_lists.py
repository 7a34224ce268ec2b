"""Reductions of the values of lists: every dtype and shape, long and empty lists, derivatives, vmap and threads."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import kernels
from jztree.data import PosMass
from jztree.radius import neighbours_within, reduce_within

pytestmark = [pytest.mark.emulated, pytest.mark.core]

# Entries of the values, lists, and the first entry of the values. The lists have more entries on both sides.
SIZES = ((0, 3, 0), (50, 7, 0), (5_000, 1, 0), (3_000, 3_000, 0), (800, 40, 100), (100, 30, 950), (20_000, 5, 3))
SHAPES = ((), (1,), (3,), (5,), (2, 2, 2), (40,), (63,), (64,), (130,), (0,))


def lists_of(entries: int, number: int, seed: int = 0) -> np.ndarray:
    """Return the splits of lists of various lengths, some empty, which end before the last of the entries."""
    ends = np.sort(np.random.default_rng(seed).integers(0, max(entries - 9, 1), number))
    return np.r_[0, ends].astype(np.int32)


def values_of(dtype: Any, shape: tuple[int, ...], seed: int = 1) -> np.ndarray:
    rng = np.random.default_rng(seed)
    if np.dtype(dtype).kind == "f":
        return (rng.normal(size=shape) * 100).astype(dtype)
    limits = np.iinfo(dtype)
    return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)


def expected(how: str, values: np.ndarray, splits: np.ndarray, start: int) -> np.ndarray:
    """Reduce list by list, with sums of floats in extended precision."""
    floats = values.dtype.kind == "f"
    limits = (-np.inf, np.inf) if floats else (np.iinfo(values.dtype).min, np.iinfo(values.dtype).max)
    initial = {"sum": 0, "max": limits[0], "min": limits[1]}[how]
    result = np.full((len(splits) - 1, *values.shape[1:]), initial, values.dtype)
    places = np.clip(splits.astype(np.int64) - start, 0, len(values))
    for i, (begin, end) in enumerate(itertools.pairwise(places)):
        if end > begin:
            dtype = {"dtype": np.longdouble if floats else values.dtype} if how == "sum" else {}
            result[i] = getattr(np, how)(values[begin:end], axis=0, **dtype)
    return result


@pytest.mark.parametrize(("entries", "number", "start"), SIZES)
def test_lists_of_entries(entries: int, number: int, start: int) -> None:
    splits = lists_of(entries + start + 20, number)
    result = kernels.entry_lists(jnp.asarray(splits), entries, start)
    np.testing.assert_array_equal(result, np.searchsorted(splits[1:], start + np.arange(entries), side="right"))


@pytest.mark.watched
@pytest.mark.parametrize("dtype", ["int32", "uint32", "int64", "uint64", "float32", "float64"])
@pytest.mark.parametrize("how", ["sum", "max", "min"])
def test_equals_reduction_of_each_list(how: Any, dtype: str) -> None:
    with jax.enable_x64(True):
        for entries, number, start in SIZES:
            splits = lists_of(entries + start + 20, number)
            for shape in SHAPES if entries < 3_000 else SHAPES[:3]:
                values = values_of(dtype, (entries, *shape))
                result = kernels.reduce_lists(how, jnp.asarray(values), jnp.asarray(splits), start)
                required = expected(how, values, splits, start)
                if how == "sum" and dtype.startswith("float"):
                    assert result.dtype == dtype
                    np.testing.assert_allclose(result, required, rtol=1e-6 if dtype == "float32" else 1e-12, atol=1e-9)
                else:
                    np.testing.assert_array_equal(result, required)


def test_nan_is_the_extreme_of_its_list() -> None:
    values = np.r_[np.arange(40.0), np.nan, np.arange(3_000.0)].astype(np.float32)
    for splits in ([0, 30, 60, 3041], [0, 3041], [0, 3, 40, 41, 3041]):
        for how in ("max", "min", "sum"):
            result = kernels.reduce_lists(how, jnp.asarray(values), jnp.asarray(splits, jnp.int32))
            np.testing.assert_array_equal(result, expected(how, values, np.asarray(splits), 0))


def test_no_lists_give_no_results() -> None:
    splits = jnp.zeros(1, jnp.int32)
    assert kernels.reduce_lists("sum", jnp.ones((5, 2)), splits).shape == (0, 2)
    np.testing.assert_array_equal(kernels.entry_lists(splits, 5), 0)


def test_sums_of_float32_are_accumulated_in_float64() -> None:
    values = np.r_[np.float32(2**25), np.ones(5_000, np.float32)]
    result = kernels.reduce_lists("sum", jnp.asarray(values), jnp.asarray([0, 5_001], jnp.int32))
    np.testing.assert_array_equal(result, np.float32(2**25 + 5_000))


def test_same_bits_with_any_number_of_threads(set_threads: Any, dtype: Any) -> None:
    splits, values = jnp.asarray(lists_of(200_000, 300)), jnp.asarray(values_of(dtype, (200_000, 3)))
    single = kernels.reduce_lists("sum", values, splits)
    for threads in (1, 2, 7):
        set_threads(threads)
        assert np.asarray(kernels.reduce_lists("sum", values, splits)).tobytes() == np.asarray(single).tobytes()
        result = kernels.entry_lists(splits, 200_000)
        np.testing.assert_array_equal(result, np.repeat(np.arange(301), np.diff(np.r_[splits, 200_000])))


# Derivatives


@pytest.mark.parametrize("how", ["sum", "max", "min"])
def test_derivatives_equal_those_of_segments(how: Any) -> None:
    """Equal values of a list share the derivative of a maximum or minimum. Both modes, and second derivatives."""
    with jax.enable_x64(True):
        splits, start = jnp.asarray([0, 3, 3, 9, 40, 60], jnp.int32), 2
        lists = jnp.asarray(np.searchsorted(splits[1:], start + np.arange(50), side="right"))
        values = jnp.asarray(np.random.default_rng(2).integers(0, 4, (50, 2)), jnp.float64)
        method = jnp.asarray(np.random.default_rng(3).normal(size=values.shape))

        def loss(values: jax.Array, native: bool) -> jax.Array:
            if native:
                result = kernels.reduce_lists(how, values * values, splits, start)
            else:
                segments = getattr(jax.ops, f"segment_{how}")
                result = segments(values * values, lists, 5, indices_are_sorted=True)
            return jnp.sum(jnp.sin(jnp.where(jnp.isfinite(result), result, 0)))

        def slope(native: bool) -> jax.Array:
            return jax.jvp(lambda values: loss(values, native), (values,), (method,))[1]

        def curvature(native: bool) -> jax.Array:
            return jax.jvp(jax.grad(lambda values: loss(values, native)), (values,), (method,))[1]

        for function in (lambda native: jax.grad(loss)(values, native), slope, curvature):
            np.testing.assert_allclose(function(True), function(False), rtol=1e-13, atol=1e-12)


def test_mapped_calls_equal_single_calls() -> None:
    splits, values = jnp.asarray(lists_of(100, 7)), jnp.asarray(values_of(np.float32, (4, 100, 2)))
    for how in kernels.REDUCTIONS:
        result = jax.vmap(lambda part, how=how: kernels.reduce_lists(how, part, splits))(values)
        np.testing.assert_array_equal(result, [kernels.reduce_lists(how, value, splits) for value in values])


# The function for users


@pytest.mark.parametrize("dtype", ["bool", "int8", "uint8", "int16", "uint16", "float16", "bfloat16", "complex64"])
def test_extremes_keep_narrow_dtypes_and_their_initial_values(dtype: str) -> None:
    part = PosMass(pos=oracles.uniform(300, 2), mass=np.random.default_rng(1).integers(0, 100, 300).astype(np.float32))
    query = np.r_[oracles.uniform(20, 2, seed=3), np.full((1, 2), 9)].astype(np.float32)

    def value(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
        return jnp.asarray(source.mass % 2 if dtype == "bool" else source.mass).astype(dtype)

    lists = neighbours_within(part, 0.15, queries=query)
    everything = value(None, part, jnp.zeros(0), jnp.zeros(0))[lists.index]
    for how in kernels.REDUCTIONS[1:]:
        result = reduce_within(part, 0.15, value, queries=query, how=how)
        assert result.dtype == dtype
        required = getattr(jax.ops, f"segment_{how}")(everything, lists.query(), 21, indices_are_sorted=True)
        np.testing.assert_array_equal(result, required)


@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_sums_of_complex_numbers(dtype: str) -> None:
    with jax.enable_x64(dtype == "complex128"):
        pos = oracles.uniform(300, 2)

        def wave(query: Any, source: Any, vector: jax.Array, distance: jax.Array) -> jax.Array:
            return jnp.exp(1j * 9 * distance).astype(dtype)

        result = reduce_within(pos, 0.15, wave)
        distance = np.sqrt(oracles.squared_distances(pos, pos))
        assert result.dtype == dtype
        np.testing.assert_allclose(result, np.sum(np.exp(9j * distance) * (distance <= 0.15), axis=1), rtol=1e-5)


def test_mapped_searches_equal_single_searches() -> None:
    pos, mass = oracles.uniform(300, 3), jnp.asarray(values_of(np.float32, (3, 300)))

    def weights(mass: jax.Array) -> jax.Array:
        return reduce_within(PosMass(pos=pos, mass=mass), 0.3, lambda q, s, v, d: s.mass * d, capacity=90_000)

    np.testing.assert_array_equal(jax.vmap(weights)(mass), [weights(array) for array in mass])


def test_sums_of_rows_round_products_before_they_add() -> None:
    values = np.random.default_rng(3).standard_normal((1000, 3)).astype(np.float32)
    expected = (values * values).astype(np.float64).sum(axis=1).astype(np.float32)
    np.testing.assert_array_equal(jax.jit(lambda x: kernels.sums_of_rows(x * x))(values), expected)
    assert kernels.sums_of_rows(jnp.zeros((4, 0))).tolist() == [0, 0, 0, 0]
