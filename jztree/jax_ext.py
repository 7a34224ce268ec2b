"""JAX with a little more: maps over devices, exact float64 arguments, and compiled twins of public functions.

* `expanding_shard_map` and `shard_map_constructor` map functions over the devices of a mesh (`jztree.mapping`).
* `varying_axes` and `vary_along` tell and set what differs between devices inside `jax.shard_map`.
* `Exact` carries a float64 number through JAX in its default 32-bit mode, so that a linking length of 0.1 is compared
  as 0.1 and not as the float32 next to it.
* `jit_constructor` makes the function stored as ``f.jit``.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .mapping import (
    copy_configs,
    expanding_shard_map,
    is_concrete,
    shard_map_constructor,
    trace_key,
    vary_along,
    varying_axes,
)

__all__ = [
    "Exact",
    "exact",
    "exact_to_float",
    "expanding_shard_map",
    "is_concrete",
    "jit_constructor",
    "shard_map_constructor",
    "vary_along",
    "varying_axes",
]


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Exact:
    """Float64 numbers as sums of words that JAX can carry.

    words: ``(..., 3)`` float32 or, in 64-bit mode, ``(..., 1)`` float64; the number is the sum over the last axis,
        taken in float64. Three float32 hold the 53 bits of a float64, if it is in their range.
    """

    words: jax.Array | np.ndarray


def exact(value: Any, shape: tuple[int, ...]) -> Exact:
    """``value`` (a number or array that broadcasts to ``shape``) as `Exact`; concrete numbers lose no bit.

    Traced numbers, and arrays of JAX, have the precision they have.
    """
    if isinstance(value, Exact):
        return value
    if isinstance(value, jax.core.Tracer):
        traced = jnp.broadcast_to(value, shape)
        if traced.dtype == jnp.float64:
            return Exact(traced[..., None])
        first = traced.astype(jnp.float32)
        return Exact(jnp.stack([first, jnp.zeros_like(first), jnp.zeros_like(first)], axis=-1))
    number = np.broadcast_to(np.asarray(value, np.float64), shape)
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return Exact(number[..., None])
    words = []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(3):
            words.append(number.astype(np.float32))
            # Nothing is left of what float32 cannot hold; the infinite first word tells it all.
            number = np.where(np.isfinite(words[-1]), number - words[-1], 0)
    return Exact(np.stack(words, axis=-1))


def exact_to_float(value: Exact) -> np.ndarray | jax.Array:
    """The number in the widest float JAX has switched on; NumPy float64 where the words are concrete."""
    if is_concrete(value):
        return np.asarray(value.words, np.float64).sum(axis=-1)
    return value.words.sum(axis=-1)


def jit_constructor(
    func: Callable[..., Any],
    static_argnames: Sequence[str],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Callable[..., Any]:
    """The compiled twin of ``func``, to be stored as ``func.jit``.

    func: a function without ``*args`` and ``**kwargs``.
    static_argnames: arguments that are compiled in. Configurations among them are copied at each call.
    prepare: takes the arguments of ``func`` by name and returns those to be replaced: float64 numbers made `Exact`, so
        that none is rounded at the boundary of the compiled function. It may raise for bad ones.
    """
    signature = inspect.signature(func)

    @functools.cache
    def compiled_for(_key: Any) -> Any:
        # A function of its own for each key, because JAX keeps what it traced by function.
        @functools.wraps(func)
        def run(*args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        return jax.jit(run, static_argnames=static_argnames)

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        arguments = copy_configs(dict(bound.arguments))
        if prepare is not None:
            arguments |= prepare(arguments)
        return compiled_for(trace_key())(**arguments)

    call.lower = compiled_for(trace_key()).lower  # type: ignore[attr-defined]
    return call
