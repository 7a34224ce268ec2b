"""Primitives under `jax.vmap`."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Primitive


def one_by_one(primitive: Primitive) -> Callable[..., Any]:
    """Return the batching rule of a primitive that runs the members of a `jax.vmap` one after the other."""

    def mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None], **how: Any) -> Any:
        fixed = [array for array, dim in zip(arrays, dims, strict=True) if dim is None]
        moving = [jnp.moveaxis(array, dim, 0) for array, dim in zip(arrays, dims, strict=True) if dim is not None]

        def member(row: list[jax.Array]) -> Any:
            sources = iter(fixed), iter(row)
            return primitive.bind(*(next(sources[dim is not None]) for dim in dims), **how)

        results = jax.lax.map(member, moving)
        return results, [0] * len(results)

    return mapped
