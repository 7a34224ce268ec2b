"""JAX with a little more: maps over devices, exact float64 arguments, and compiled twins of public functions.

* `expanding_shard_map` and `shard_map_constructor` map functions over the devices of a mesh (`jztree.mapping`).
* `varying_axes` and `vary_along` tell and set what differs between devices inside `jax.shard_map`.
* `Exact` carries a float64 number through JAX in its default 32-bit mode, so that a linking length of 0.1 is compared
  as 0.1 and not as the float32 next to it.
* `jit_constructor` makes the function stored as ``f.jit``.
* `with_twins` and `with_smap` are decorators that store ``.jit`` and ``.smap`` with a function, in a way that editors
  and type checkers understand. The function stays what it was; its twins take the same arguments.
"""

import functools
import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np

from .mapping import (
    Mapper,
    copy_configs,
    expanding_shard_map,
    is_concrete,
    name_twin,
    shard_map_constructor,
    static_names,
    trace_key,
    vary_along,
    varying_axes,
)
from .particles import check_carried

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
    "with_smap",
    "with_twins",
]

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_Result_co = TypeVar("_Result_co", covariant=True)


class CompiledTwin(Protocol[_Args, _Result_co]):
    """What ``f.jit`` is: ``f``, compiled."""

    lower: Callable[_Args, jax.stages.Lowered]

    def __call__(self, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result_co: ...


class WithSmap(Protocol[_Args, _Result_co]):
    """A function that carries its mapped twin."""

    def __call__(self, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result_co: ...

    @property
    def smap(self) -> Mapper[_Args, _Result_co]:
        """Maps the function over the devices of a mesh: ``smap(mesh, jit=True)(...)``, with the same arguments."""
        ...


class WithTwins(WithSmap[_Args, _Result_co], Protocol[_Args, _Result_co]):
    """A function that carries its compiled and its mapped twin."""

    @property
    def jit(self) -> CompiledTwin[_Args, _Result_co]:
        """The function compiled for one device, with the same arguments."""
        ...


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
    wide = jax.dtypes.canonicalize_dtype(np.float64) == np.float64
    if type(value) is float:
        return _exact_number(value, shape, wide)
    return _exact_numbers(np.broadcast_to(np.asarray(value, np.float64), shape), wide)


@functools.lru_cache
def _exact_number(value: float, shape: tuple[int, ...], wide: bool) -> Exact:
    """One Python number again and again, as in a loop over small sets, where it took longer than the rest of a call."""
    return _exact_numbers(np.full(shape, value), wide)


def _exact_numbers(number: np.ndarray, wide: bool) -> Exact:
    if wide:
        return Exact(_read_only(number[..., None]))
    words = []
    with np.errstate(over="ignore", invalid="ignore"):
        for _ in range(3):
            words.append(number.astype(np.float32))
            # Nothing is left of what float32 cannot hold; the infinite first word tells it all.
            number = np.where(np.isfinite(words[-1]), number - words[-1], 0)
    return Exact(_read_only(np.stack(words, axis=-1)))


def _read_only(array: np.ndarray) -> np.ndarray:
    """``array``, which many calls share."""
    array.flags.writeable = False
    return array


def exact_to_float(value: Exact) -> np.ndarray | jax.Array:
    """The number in the widest float JAX has switched on; NumPy float64 where the words are concrete."""
    if is_concrete(value):
        return np.asarray(value.words, np.float64).sum(axis=-1)
    return value.words.sum(axis=-1)


def jit_constructor(
    func: Callable[_Args, _Result],
    static_argnames: Sequence[str],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> CompiledTwin[_Args, _Result]:
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
        check_carried({name: value for name, value in arguments.items() if name not in static_argnames})
        return compiled_for(trace_key())(**arguments)

    twin = cast(CompiledTwin[_Args, _Result], name_twin(call, func, "jit"))
    twin.lower = compiled_for(trace_key()).lower
    return twin


def with_twins(
    in_specs: Any,
    out_specs: Any,
    *,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> Callable[[Callable[_Args, _Result]], WithTwins[_Args, _Result]]:
    """A decorator that gives a function its twins ``.jit`` and ``.smap``; arguments with the spec None are static in
    both.

    in_specs, out_specs, prepare: as in `shard_map_constructor`; ``prepare`` serves both twins.
    """

    def add(func: Callable[_Args, _Result]) -> WithTwins[_Args, _Result]:
        carrier: Any = with_smap(in_specs, out_specs, prepare=prepare)(func)
        carrier.jit = jit_constructor(func, static_names(func, in_specs), prepare)
        return carrier

    return add


def with_smap(
    in_specs: Any, out_specs: Any, **options: Any
) -> Callable[[Callable[_Args, _Result]], WithSmap[_Args, _Result]]:
    """A decorator that gives a function its twin ``.smap``, made by `shard_map_constructor` from the same arguments.

    >>> @with_smap(in_specs=P(-1), out_specs=P(-1))
    ... def centre(part):
    ...     return part.pos.mean(axis=0)
    """

    def add(func: Callable[_Args, _Result]) -> WithSmap[_Args, _Result]:
        carrier: Any = func
        carrier.smap = shard_map_constructor(func, in_specs, out_specs, **options)
        return carrier

    return add
