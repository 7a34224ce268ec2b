"""Compiled twins of public functions: ``f.jit`` for one device, ``f.smap`` for the devices of a mesh."""

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, Protocol, TypeVar, cast

import jax

from ..particles import check_representable, check_width, import_arrays
from . import capacity
from .mappers import Mapper, name_twin, shard_map_constructor
from .memory import explained
from .plain_calls import remembered
from .shard_map import check_hashable, copy_configs, is_concrete, known_integers, trace_key
from .specs import ArgumentReader, argument_reader, static_names
from .spread import warn_if_spread

_Args = ParamSpec("_Args")


_Result = TypeVar("_Result")


_Result_co = TypeVar("_Result_co", covariant=True)


class CompiledTwin(Protocol[_Args, _Result_co]):
    """The type of ``f.jit``, the compiled ``f``."""

    lower: Callable[_Args, jax.stages.Lowered]

    def __call__(self, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result_co: ...


class WithSmap(Protocol[_Args, _Result_co]):
    """A function that carries its mapped twin."""

    def __call__(self, *args: _Args.args, **kwargs: _Args.kwargs) -> _Result_co: ...

    @property
    def smap(self) -> Mapper[_Args, _Result_co]:
        """The function mapped over the devices of a mesh, ``smap(mesh, jit=True)(...)``, with the same arguments."""
        ...


class WithTwins(WithSmap[_Args, _Result_co], Protocol[_Args, _Result_co]):
    """A function that carries its compiled and its mapped twin."""

    @property
    def jit(self) -> CompiledTwin[_Args, _Result_co]:
        """The function compiled for one device, with the same arguments."""
        ...


def jit_constructor(
    func: Callable[_Args, _Result],
    static_argnames: Sequence[str],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    enlarges: bool = False,
) -> CompiledTwin[_Args, _Result]:
    """Create the compiled twin of ``func``, to be stored as ``func.jit``.

    Args:
        func: A function without ``*args`` and ``**kwargs``.
        static_argnames: Static arguments. Configurations among them are copied at each call.
        prepare: Takes the arguments of ``func`` by name and returns replacements: float64 numbers as `Exact`, so that
            the compiled function does not round them. It may raise for invalid arguments. Functions with ``prepare``
            are searches, and warn if an argument is distributed over devices.
        enlarges: Whether buffers of ``func`` may be too small. If so, the twin waits for the results, and compiles
            again with larger buffers.

    Returns:
        The compiled function.
    """
    capacities: dict[str, int] = {}
    compiled_for = _compiled_by_key(func, static_argnames)

    def run_with_capacities(arguments: dict[str, Any]) -> Any:
        with capacity.learning(capacities):
            result = compiled_for(trace_key())(**arguments)
        return jax.block_until_ready(result) if is_concrete(result) else result

    arguments_of = remembered(
        functools.partial(_read, argument_reader(inspect.signature(func)), static_argnames, prepare)
    )

    @functools.wraps(func)
    def call(*args: Any, **kwargs: Any) -> Any:
        arguments = arguments_of(args, kwargs)
        if prepare is not None:
            warn_if_spread(func.__name__, arguments)
        try:
            if enlarges:
                return capacity.retrying(lambda: run_with_capacities(arguments), capacities, func.__name__)
            with explained(func.__name__):
                return compiled_for(trace_key())(**arguments)
        except (TypeError, ValueError):  # raised by JAX if an argument cannot be hashed
            check_hashable(func.__name__, {name: arguments[name] for name in static_argnames})
            raise

    twin = cast(CompiledTwin[_Args, _Result], name_twin(call, func, "jit"))
    twin.lower = compiled_for(trace_key()).lower
    return twin


def _read(
    by_name: ArgumentReader,
    static_argnames: Sequence[str],
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None,
    args: Sequence[Any],
    kwargs: dict[str, Any],
) -> dict[str, Any]:
    """Return the checked and prepared arguments of a compiled function by name."""
    arguments = import_arrays(copy_configs(by_name(args, kwargs)[0]))
    check_width(arguments, jax.core.Tracer)
    arguments |= known_integers({name: arguments[name] for name in static_argnames})
    if prepare is not None:
        arguments |= prepare(arguments)
    check_representable({name: value for name, value in arguments.items() if name not in static_argnames})
    return arguments


def _compiled_by_key(func: Callable[..., Any], static_argnames: Sequence[str]) -> Callable[[Any], Any]:
    """Compile ``func`` as a separate function for each key, because JAX caches traces by function."""

    @functools.cache
    def compiled_for(_key: Any) -> Any:
        @functools.wraps(func)
        def run(*args: Any, **kwargs: Any) -> Any:
            return func(*args, **kwargs)

        return jax.jit(run, static_argnames=static_argnames)

    return compiled_for


def with_twins(
    in_specs: Any,
    out_specs: Any,
    *,
    prepare: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
    enlarges: bool = False,
) -> Callable[[Callable[_Args, _Result]], WithTwins[_Args, _Result]]:
    """Return a decorator that adds the twins ``.jit`` and ``.smap``; arguments with spec None are static in both.

    Args:
        in_specs: See `shard_map_constructor`.
        out_specs: See `shard_map_constructor`.
        prepare: See `shard_map_constructor`. It serves both twins.
        enlarges: See `jit_constructor`.

    Returns:
        The decorator.
    """

    def add(func: Callable[_Args, _Result]) -> WithTwins[_Args, _Result]:
        static = static_names(func, in_specs)
        carrier: Any = with_smap(in_specs, out_specs, prepare=prepare)(
            _importing_arrays(func, static, prepare is not None)
        )
        carrier.jit = jit_constructor(func, static, prepare, enlarges)
        return carrier

    return add


def _importing_arrays(func: Callable[_Args, _Result], static: Sequence[str], warns: bool) -> Callable[_Args, _Result]:
    """Wrap ``func`` to accept arrays of other libraries, and known JAX integers as static arguments.

    If ``warns`` is set, the function warns if an argument is distributed over devices.
    """
    names = tuple(inspect.signature(func).parameters)
    wrapped: Any = func

    @functools.wraps(func)
    def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        by_place = dict(zip(names, import_arrays(args), strict=False))
        by_name: dict[str, Any] = dict(import_arrays(kwargs))
        check_width(by_place | by_name, jax.core.Tracer)
        if warns:
            warn_if_spread(func.__name__, by_place | by_name)
        by_place |= known_integers({name: by_place[name] for name in static if name in by_place})
        by_name |= known_integers({name: by_name[name] for name in static if name in by_name})
        with explained(func.__name__):
            result: _Result = wrapped(*by_place.values(), *args[len(names) :], **by_name)
        return result

    return call


def with_smap(
    in_specs: Any, out_specs: Any, **options: Any
) -> Callable[[Callable[_Args, _Result]], WithSmap[_Args, _Result]]:
    """Return a decorator that adds the twin ``.smap``.

    Args:
        in_specs: See `shard_map_constructor`.
        out_specs: See `shard_map_constructor`.
        options: Further arguments of `shard_map_constructor`.

    Returns:
        The decorator.

    Examples:
        >>> from jax.sharding import PartitionSpec as P
        >>> @jz.jax_ext.with_smap(in_specs=P(-1), out_specs=P(-1))
        ... def centre(pos):
        ...     return pos.mean(axis=0, keepdims=True)
        >>> mesh = jax.make_mesh((1,), ("gpus",))
        >>> centre.smap(mesh)(jnp.array([[[0.0], [1.0]]]))
        Array([[[0.5]]], dtype=float32)
    """

    def add(func: Callable[_Args, _Result]) -> WithSmap[_Args, _Result]:
        carrier: Any = func
        carrier.smap = shard_map_constructor(func, out_specs, in_specs, **options)
        return carrier

    return add
