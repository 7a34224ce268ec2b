"""Calling a kernel, and arguments as kernels take them."""

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..jax_ext import vary_along, varying_axes


def call(target: str, out: Any, *args: Any, aliases: dict[int, int] | None = None, **attributes: Any) -> Any:
    """Call a kernel; ``out`` is a ShapeDtypeStruct or a tuple of them.

    aliases: arguments by their place -> outputs by theirs, that begin as what the argument holds.
    Inside `jax.shard_map`, all outputs differ along the mesh axes along which any input does.
    """
    arrays = [jax.lax.stop_gradient(jnp.asarray(arg)) for arg in args]
    axes = varying_axes(arrays)
    kernel = jax.ffi.ffi_call(f"jztree_{target}", out, vmap_method="sequential", input_output_aliases=aliases)
    results = kernel(*(vary_along(array, axes) for array in arrays), **attributes)
    return jax.tree.map(lambda result: vary_along(result, axes), results)


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
