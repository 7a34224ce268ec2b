"""Exact float64 arguments, and compiled twins of functions."""

import inspect
import math
import pickle
from types import FunctionType
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

from jztree import fof, tree
from jztree._transform.exact import exact_change, exact_to_parts
from jztree.config import KNNConfig
from jztree.data import Pos, expand_particles
from jztree.jax_ext import Exact, exact, exact_to_float, is_concrete, jit_constructor, with_smap, with_twins
from jztree.knn import knn
from jztree_utils import ics

NUMBERS = [0.0, 0.1, 1 / 3, np.pi * 1e8, 2.0**53 - 1, 1 + 2.0**-52, -0.7, 37.5, 1e-30, 3e38]
# At the limits of numbers with unscaled words, and of any number.
NUMBERS += [np.nextafter(2.0**power, to) for power in (-73, -74, -100, -149, 127, 128) for to in (0, np.inf)]
NUMBERS += [2.0**-149, 2.0**-150, 1e-60, -1e-60, 1e-300, 5e-324, 2.0**-1022, 1e39, 1e300, np.finfo(np.float64).max]


def words_as_float64(value: Exact) -> np.ndarray:
    words = np.asarray(value.words).astype(np.float64)
    if words.shape[-1] == 1:
        return words[..., 0]
    scaled = [math.ldexp(float(word[:3].sum()), int(word[3])) for word in words.reshape(-1, 4)]
    return np.reshape(scaled, words.shape[:-1])


@pytest.mark.parametrize("number", NUMBERS)
def test_concrete_numbers_are_exact(number: float) -> None:
    assert words_as_float64(exact(number, ())) == number
    assert exact_to_float(exact(np.float64(number), ())) == number


@pytest.mark.parametrize("number", NUMBERS)
def test_words_contain_no_subnormal_numbers(number: float) -> None:
    """XLA flushes other numbers to 0 in all computations."""
    words = np.asarray(exact(number, ()).words)
    assert words.dtype == np.float32
    assert ((words == 0) | (np.abs(words) >= np.finfo(np.float32).tiny)).all()


@pytest.mark.parametrize("number", NUMBERS)
def test_concrete_numbers_of_any_size_are_exact_with_64_bit_types(number: float, x64: None) -> None:
    assert exact_to_float(exact(number, ())) == number
    assert exact_to_float(jax.jit(lambda value: value)(exact(number, ()))) == number


@pytest.mark.parametrize("number", NUMBERS)
def test_traced_words_are_rounded_to_floats(number: float) -> None:
    value = exact(number, ())
    with np.errstate(over="ignore", under="ignore"):
        nearest = np.float32(number)
    small = abs(number) < float(np.finfo(np.float32).tiny)
    assert jax.jit(exact_to_float)(value) == (0 if small else nearest)
    rounded, rest = jax.jit(lambda value: exact_to_parts(value, jnp.float32))(value)
    assert rounded == (0 if small else nearest)
    if small or np.isinf(nearest):
        return
    known, lost = exact_to_parts(value, np.float32)
    assert (known, rounded) == (nearest, nearest)
    for item in (rest, lost):
        assert abs(float(item) - (number - float(nearest))) <= 2.0**-47 * abs(number) + np.finfo(np.float32).tiny


@pytest.mark.parametrize("number", [np.inf, -np.inf], ids=str)
def test_infinite_numbers_remain_infinite(number: float) -> None:
    assert exact_to_float(exact(number, ())) == number


@pytest.mark.parametrize("number", NUMBERS)
def test_concrete_numbers_are_exact_after_jit(number: float) -> None:
    through = jax.jit(lambda value: value)(exact([number, number / 2], (2,)))
    np.testing.assert_array_equal(words_as_float64(through), [number, number / 2])


def test_arrays_broadcast() -> None:
    assert exact(0.1, (3,)).words.shape[:-1] == (3,)
    np.testing.assert_array_equal(exact_to_float(exact([0.1, 0.0, 0.3], (3,))), [0.1, 0.0, 0.3])
    np.testing.assert_array_equal(exact_to_float(exact(jnp.float32(0.1), (2,))), [np.float32(0.1)] * 2)
    with pytest.raises(ValueError, match="shape"):
        exact([0.1, 0.2], (3,))


def test_exact_of_an_exact_number_is_the_same_object() -> None:
    value = exact(0.1, ())
    assert exact(value, ()) is value


def test_traced_float32_keeps_its_precision() -> None:
    through = jax.jit(lambda x: exact(x, (2,)))(0.1)
    np.testing.assert_array_equal(words_as_float64(through), [np.float32(0.1)] * 2)
    np.testing.assert_array_equal(jax.jit(lambda x: exact_to_float(exact(x, ())))(0.1), np.float32(0.1))


def test_traced_float64_is_exact(x64: None) -> None:
    through = jax.jit(lambda x: exact(x, (2,)))(0.1)
    np.testing.assert_array_equal(words_as_float64(through), [0.1, 0.1])


def test_gradient_of_exact_to_float() -> None:
    assert float(jax.grad(lambda x: exact_to_float(exact(x, (3,))).sum())(2.0)) == 3


@pytest.mark.parametrize("number", [0.1, 1e-30, 2.0**-100])
def test_exact_change_sums_the_changes_of_words(number: float) -> None:
    value = exact(number, ())
    change = Exact(np.array([0.5, 0.25, 0.0, 0.0], np.float32))
    expected = 0.75 * 2.0 ** float(value.words[3])
    assert float(jax.jit(exact_change)(value, change)) == float(exact_change(value, change)) == expected


def test_is_concrete() -> None:
    assert is_concrete(exact(0.1, ()))
    assert is_concrete(3)
    assert is_concrete(jnp.ones(3))
    seen = []
    jax.jit(lambda x: seen.append((is_concrete(x), is_concrete({"a": x, "b": 1}))) or x)(1.0)
    assert seen == [(False, False)]


def make_traced(traces: list[Any]) -> Any:
    def function(x: Any, scale: Any = 1.0, cfg: KNNConfig | None = None, power: int = 1) -> Any:
        """Documented."""
        traces.append((power, cfg))
        return exact_to_float(exact(scale, ())) * x**power

    return jit_constructor(function, ("cfg", "power"), lambda given: {"scale": exact(given["scale"], ())})


def test_twin_traces_once_per_static_value() -> None:
    traces: list[Any] = []
    twin = make_traced(traces)
    for scale in (0.5, 0.25, 3, np.float64(1.5), jnp.float32(2)):
        assert float(twin(2.0, scale)) == 2.0 * float(scale)
    assert len(traces) == 1
    assert float(twin(2.0, power=3)) == 8
    assert float(twin(x=2.0, scale=2.0, power=3)) == 16
    assert len(traces) == 2


def test_twin_copies_configurations() -> None:
    traces: list[Any] = []
    twin, cfg = make_traced(traces), KNNConfig()
    twin(2.0, cfg=cfg)
    cfg.tree.leaf_size = 9
    assert traces[0][1].tree.leaf_size != 9
    twin(2.0, cfg=cfg)
    assert len(traces) == 2
    assert traces[1][1].tree.leaf_size == 9
    twin(2.0, cfg=KNNConfig())
    assert len(traces) == 2


def test_twin_keeps_name_and_docstring_and_lowers() -> None:
    twin = make_traced([])
    assert twin.__name__ == "function"
    assert twin.__doc__ == "Documented."
    assert "stablehlo" in twin.lower(2.0, scale=exact(1.0, ())).as_text()


def test_twin_with_unknown_arguments_raises() -> None:
    twin = make_traced([])
    with pytest.raises(TypeError, match="colour"):
        twin(2.0, colour=3)
    with pytest.raises(TypeError, match="'x'"):
        twin()


@pytest.mark.parametrize(
    "func", [knn, fof.fof_and_catalogue, tree.zsort, tree.distr_zsort, ics.uniform_particles], ids=lambda f: f.__name__
)
def test_public_functions_and_their_twins_can_be_pickled(func: Any) -> None:
    assert isinstance(func, FunctionType)
    twins = [getattr(func, name) for name in ("jit", "smap") if hasattr(func, name)]
    for result in (func, *twins):
        assert pickle.loads(pickle.dumps(result)) is result
    for twin in [func.smap(mesh_of(2)), *twins[:-1]]:
        assert inspect.signature(twin) == inspect.signature(func)
        assert twin.__doc__ == func.__doc__
    assert list(inspect.signature(func.smap).parameters) == ["mesh", "jit"]
    assert "mesh" in func.smap.__doc__


def test_arguments_without_a_spec_are_static_in_both_twins() -> None:
    seen: list[Any] = []

    @with_twins((P(-1), P(), None), P(-1), prepare=lambda given: {"scale": exact(given["scale"], ())})
    def scaled(part: Any, scale: Any, power: int = 1) -> Any:
        seen.append((isinstance(part.pos, jax.core.Tracer), type(scale), power))
        return exact_to_float(scale) * part.pos**power

    part = Pos(pos=np.full((6, 2), 3, np.float32))
    np.testing.assert_array_equal(scaled.jit(part, 0.5, power=2), np.full((6, 2), 4.5))
    mapped = scaled.smap(mesh_of(2), jit=True)(expand_particles(part, 2), 0.5, power=2)
    np.testing.assert_array_equal(mapped, np.full((2, 3, 2), 4.5))
    assert set(seen) == {(True, Exact, 2)}


def test_with_smap_returns_the_same_function() -> None:
    def centre(part: Any) -> Any:
        return part.pos.mean(axis=0)

    assert with_smap(in_specs=P(-1), out_specs=P(-1))(centre) is centre
    assert not hasattr(centre, "jit")
    assert centre.smap(mesh_of(2), jit=True)(Pos(pos=np.arange(12.0).reshape(2, 3, 2))).tolist() == [[2, 3], [8, 9]]


def test_each_device_searches_its_rows_in_z_order() -> None:
    part = expand_particles(Pos(pos=oracles.uniform(40, 3)), 2)
    posz, _ = tree.zsort.smap(mesh_of(2), jit=True)(part)
    rows = tree.search_sorted_z.smap(mesh_of(2), jit=True)(posz, posz.pos)
    np.testing.assert_array_equal(rows, [np.arange(20)] * 2)
