"""JAX primitives that compute a Python function; their users add batching and derivatives."""

import functools
from collections.abc import Callable
from typing import Any

import jax
from jax.extend.core import Primitive
from jax.interpreters import mlir

__all__ = ["primitive_of"]


def primitive_of(name: str, run: Callable[..., Any], *, several: bool = False, static: str | None = None) -> Primitive:
    """Make a primitive that computes ``run``, with the effects of ``run``.

    Args:
        name: The name of the primitive.
        run: A function of arrays, and of keyword arguments that are static.
        several: Whether ``run`` returns a list of arrays instead of one array.
        static: The keyword argument of ``run``, if calls outside `jax.jit` are compiled for each of its values.
    """
    primitive = Primitive(name)
    primitive.multiple_results = several

    @primitive.def_effectful_abstract_eval
    def types(*arrays: Any, **how: Any) -> Any:
        jaxpr = jax.make_jaxpr(functools.partial(run, **how))(*arrays)
        return jaxpr.out_avals if several else jaxpr.out_avals[0], jaxpr.effects

    primitive.def_impl(run if static is None else jax.jit(run, static_argnames=static))
    mlir.register_lowering(primitive, mlir.lower_fun(run, multiple_results=several))
    return primitive
