"""Calling a kernel, and arguments as kernels take them."""

import functools
from collections.abc import Sequence
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import vary_along, varying_axes


def call(
    target: str,
    out: Any,
    *args: Any,
    aliases: dict[int, int] | None = None,
    gradients: Literal["refused", "stopped"] | None = None,
    always: bool = False,
    **attributes: Any,
) -> Any:
    """Call a kernel; ``out`` is a ShapeDtypeStruct or a tuple of them.

    aliases: arguments by their place -> outputs by theirs, that begin as what the argument holds.
    gradients: what happens where somebody differentiates by an argument. ``"refused"``: an error. ``"stopped"``: the
        argument counts as constant; for kernels whose derivatives the caller gives, and for those whose floats only
        steer a search, and are in no result. None refuses where an output is a float, because a derivative of 0 would
        be a wrong answer, and stops where all are integers.
    always: the kernel runs even if nobody uses what it returns.
    Inside `jax.shard_map`, all outputs differ along the mesh axes along which any input does.
    """
    if gradients is None:
        floats = any(jnp.issubdtype(one.dtype, jnp.inexact) for one in jax.tree.leaves(out))
        gradients = "refused" if floats else "stopped"
    arrays = [jnp.asarray(arg) for arg in args]
    arrays = [
        _refusing(target, array)
        if gradients == "refused" and jnp.issubdtype(array.dtype, jnp.inexact)
        else jax.lax.stop_gradient(array)
        for array in arrays
    ]
    axes = varying_axes(arrays)
    kernel = jax.ffi.ffi_call(
        f"jztree_{target}", out, vmap_method="sequential", input_output_aliases=aliases, has_side_effect=always
    )
    results = kernel(*(vary_along(array, axes) for array in arrays), **attributes)
    return jax.tree.map(lambda result: vary_along(result, axes), results)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def _refusing(target: str, array: jax.Array) -> jax.Array:
    """``array``, by which what the kernel returns cannot be differentiated."""
    del target
    return array


@_refusing.defjvp
def _refusing_jvp(target: str, _primals: Any, _tangents: Any) -> Any:
    raise ValueError(
        f"what the native kernel {target!r} returns has no derivative; put jax.lax.stop_gradient around what it is "
        "made from, if that is to count as constant."
    )


def sizes(values: Sequence[int]) -> np.ndarray:
    return np.asarray(values, np.int64)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def as_num(num: Any) -> jax.Array:
    """A count, or an array of counts, as the int32 that kernels take."""
    return jnp.asarray(num, jnp.int32)


def listed(order: jax.Array | None) -> jax.Array:
    """An order as kernels take it: empty for all rows in their order."""
    return jnp.zeros((0,), jnp.int32) if order is None else order
