"""`expanding_shard_map` and `shard_map_constructor` with the interface of the published package."""

import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import mesh_of, square_mesh
from jax.sharding import PartitionSpec as P

from jztree.jax_ext import expanding_shard_map, get_rank_info, shard_map_constructor


def with_rank(x: Any) -> Any:
    return x + get_rank_info()[0], get_rank_info()[1]


def test_arguments_are_in_the_published_order() -> None:
    names = list(inspect.signature(shard_map_constructor).parameters)
    assert names[:5] == ["f", "out_specs", "in_specs", "default_mesh", "axis_names"]
    smap = shard_map_constructor(with_rank, (P(-1), P()), P(), mesh_of(2))
    x, ndev = smap(jit=True)(np.float32(5))
    assert (x.tolist(), int(ndev)) == ([5, 6], 2)
    with pytest.raises(TypeError):
        expanding_shard_map(with_rank, P(-1), P())
    swapped = expanding_shard_map(with_rank, in_specs=P(), out_specs=(P(-1), P()), mesh=mesh_of(2))
    np.testing.assert_array_equal(jax.jit(swapped)(np.float32(5))[0], x)


@pytest.mark.long
def test_default_mesh_is_that_of_the_context_or_all_devices() -> None:
    smap = shard_map_constructor(with_rank, (P(-1), P()), P())
    mapped = expanding_shard_map(with_rank, out_specs=(P(-1), P()), in_specs=P())
    assert smap(jit=True)(1.0)[0].shape == mapped(1.0)[0].shape == (jax.device_count(),)
    with jax.set_mesh(mesh_of(3)):
        assert smap(jit=True)(1.0)[0].shape == mapped(1.0)[0].shape == jax.jit(mapped)(1.0)[0].shape == (3,)
    assert smap(mesh_of(2), jit=True)(1.0)[0].shape == (2,)


def test_function_with_static_arguments_that_returns_none() -> None:
    seen: list[Any] = []

    def note(n: int, name: str) -> None:
        seen.append((n, name))

    assert shard_map_constructor(note)(mesh_of(2), jit=True)(3, name="a") is None
    assert seen == [(3, "a")]


@pytest.mark.long
@pytest.mark.parametrize("jit", [True, False])
def test_functions_of_any_arguments(jit: bool) -> None:
    def total(first: Any, /, *others: Any, scale: Any = 1.0, **more: Any) -> Any:
        return scale * (first + sum(others)) + sum(more.values()), jnp.float32(len(others) + 10 * len(more))

    rows = np.arange(4, dtype=np.float32).reshape(2, 2)
    smap = shard_map_constructor(total, P(-1), P(-1))(mesh_of(2), jit=jit)
    out, counted = smap(rows, 2 * rows, rows, scale=2.0, extra=rows)
    np.testing.assert_array_equal(out, 2 * 4 * rows + rows)
    np.testing.assert_array_equal(counted, 12)
    assert smap(rows)[1].tolist() == [0, 0]
    by_place = shard_map_constructor(lambda *args: args[0] + args[1], P(-1), (P(-1), P()))(mesh_of(2), jit=jit)
    np.testing.assert_array_equal(by_place(rows, np.float32(3)), rows + 3)
    with pytest.raises(ValueError, match="in_specs has 2 entries for 1 arguments"):
        by_place(rows)
    specs = {"args": P(-1), "shift": P(), "power": None}
    by_name = shard_map_constructor(
        lambda *args, **kwargs: sum(args) ** kwargs["power"] + kwargs["shift"], P(-1), specs
    )(mesh_of(2), jit=jit)
    np.testing.assert_array_equal(by_name(rows, rows, power=2, shift=1.0), (2 * rows) ** 2 + 1)
    np.testing.assert_array_equal(by_name(rows, power=3, shift=0.0), rows**3)


def test_options_of_jit() -> None:
    def power(x: Any, n: int) -> Any:
        assert isinstance(n, int)
        return x**n

    rows = np.arange(2, dtype=np.float32)
    for named in ({"static_argnums": 1}, {"static_argnames": "n"}, {"static_argnames": ["n"], "donate_argnums": 0}):
        smap = shard_map_constructor(power, P(-1), (P(-1), None), inline=True, **named)
        np.testing.assert_array_equal(smap(mesh_of(2), jit=True)(rows, 3), rows**3)
    with pytest.raises(TypeError, match="devices is not a valid option"):
        shard_map_constructor(power, P(-1), P(-1), devices=2)


def test_some_axes_of_a_mesh() -> None:
    mapped = expanding_shard_map(
        lambda x: (x + jax.lax.axis_index("nodes"), get_rank_info()[1]),
        in_specs=P("nodes"),
        out_specs=(P(-1), P()),
        mesh=square_mesh(),
        axis_names={"nodes"},
    )
    out, ndev = jax.jit(mapped)(np.zeros((2, 3), np.float32))
    assert (out.tolist(), int(ndev)) == ([[0, 0, 0], [1, 1, 1]], 2)
