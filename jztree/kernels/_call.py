"""Call kernels and convert their arguments."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .._transform.exact import WORDS
from ..jax_ext import Exact, is_concrete, vary_along, varying_axes
from ._run import Kernel, run

__all__ = ["Tree", "as_num", "refusing"]

# In plain calls, JAX converts NumPy arrays faster than it computes zeros.
_NO_WORDS, _NO_ROWS = np.zeros((0, WORDS), np.float32), np.zeros(0, np.int32)


@dataclasses.dataclass(frozen=True)
class Continued:
    """A kernel output that initially has the contents of an array. If possible, XLA uses the memory of that array."""

    array: jax.Array


class Tree(NamedTuple):
    """A hierarchy and its particles as kernel arguments.

    Attributes:
        posz: ``(n, d)``, in z-order.
        num: int32 scalar.
        splits: ``(s,)`` int32, see `hierarchy`.
        particle_splits: ``(s,)`` int32.
        lower: ``(m, d)``.
        upper: ``(m, d)``.
        plane_sizes: Number of nodes of each plane.
    """

    posz: jax.Array
    num: jax.Array
    splits: jax.Array
    particle_splits: jax.Array
    lower: jax.Array
    upper: jax.Array
    plane_sizes: tuple[int, ...]

    @property
    def arrays(self) -> tuple[jax.Array, ...]:
        return self[:-1]

    def fits(self) -> bool:
        """Return whether shapes and dtypes match one hierarchy over such positions."""
        nodes, splits = sum(self.plane_sizes), (sum(self.plane_sizes) + len(self.plane_sizes),)
        boxes = (nodes, self.posz.shape[1]), self.posz.dtype
        return self.splits.shape == self.particle_splits.shape == splits and all(
            (box.shape, box.dtype) == boxes for box in (self.lower, self.upper)
        )


def call(
    target: str,
    out: Any,
    *args: Any,
    gradients: Literal["refused", "stopped"] | None = None,
    always: bool = False,
    **attributes: Any,
) -> Any:
    """Call a kernel.

    Inside `jax.shard_map`, all outputs differ along the mesh axes along which any input differs.

    Args:
        target: Name of the kernel.
        out: A ShapeDtypeStruct, a `Continued` array, or a tuple of both kinds.
        args: Kernel arguments, in the order of the kernel's header under ``native``. The arrays of `Continued` outputs
            follow automatically.
        gradients: The effect of differentiating by an argument. With ``"refused"``, it is an error. With ``"stopped"``,
            the argument counts as constant. Use this if the caller provides the derivatives, or if the argument only
            steers a search and does not enter a result. None means ``"refused"`` if an output is a float, because a
            derivative of 0 would be wrong; otherwise it means ``"stopped"``.
        always: Whether to run the kernel even if its results are unused.
        attributes: Static kernel arguments.
    """
    outputs = out if isinstance(out, tuple) else (out,)
    continued = [(place, output.array) for place, output in enumerate(outputs) if isinstance(output, Continued)]
    aliases = {len(args) + i: place for i, (place, _) in enumerate(continued)}
    outs = [_shape(output.array) if isinstance(output, Continued) else output for output in outputs]
    if gradients is None:
        floats = any(jnp.issubdtype(output.dtype, jnp.inexact) for output in outs)
        gradients = "refused" if floats else "stopped"
    kernel, inputs = Kernel.of(target, outs, aliases, always, attributes), (*args, *(array for _, array in continued))
    results = run(kernel, *map(_as_array, inputs)) if is_concrete(inputs) else _traced(kernel, inputs, gradients)
    return tuple(results) if isinstance(out, tuple) else results[0]


def _as_array(value: Any) -> jax.Array:
    if isinstance(value, np.ndarray):
        return jax.device_put(value.copy())  # jnp.asarray compiles a program for each shape
    return value if isinstance(value, jax.Array) else jnp.asarray(value)


def _traced(kernel: Kernel, inputs: Sequence[Any], gradients: str) -> list[jax.Array]:
    """Run a kernel inside a transformation. Plain calls are faster without its rules for derivatives and mesh axes."""
    # Under vmap over devices, JAX marks constants as varying, but not arrays that the trace computes, such as zeros.
    arrays = [
        jnp.zeros_like(array) if isinstance(array, np.ndarray) and not array.any() else jnp.asarray(array)
        for array in inputs
    ]
    stop = functools.partial(refusing, kernel.name) if gradients == "refused" else jax.lax.stop_gradient
    arrays = [stop(array) if jnp.issubdtype(array.dtype, jnp.inexact) else array for array in arrays]
    axes = varying_axes(arrays)
    return [vary_along(result, axes) for result in run(kernel, *(vary_along(array, axes) for array in arrays))]


def _shape(array: Any) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(array.shape, array.dtype)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def refusing(target: str, array: jax.Array) -> jax.Array:
    """Return ``array``, and raise if a result of the kernel is differentiated by it."""
    del target
    return array


@refusing.defjvp
def refusing_jvp(target: str, _primals: Any, _tangents: Any) -> Any:
    """Raise ValueError: the result of the kernel has no derivative."""
    raise ValueError(
        f"the result of the native kernel {target!r} has no derivative; put jax.lax.stop_gradient around its arguments "
        "if they are constant."
    )


def sizes(values: Sequence[int]) -> np.ndarray:
    """Convert numbers, such as the nodes of each plane, to a kernel attribute."""
    return np.asarray(values, np.int64)


def i32(*shape: int) -> jax.ShapeDtypeStruct:
    """Return the type of an int32 result with this shape."""
    return jax.ShapeDtypeStruct(shape, jnp.int32)


def as_num(num: ArrayLike) -> jax.Array:
    """Convert a count, or an array of counts, to the int32 that kernels take."""
    return jnp.asarray(num, jnp.int32)


def words_of(value: Exact | None) -> Any:
    """Convert numbers to kernel arguments; None means no numbers."""
    return _NO_WORDS if value is None else jnp.asarray(value.words)


def listed(order: jax.Array | None) -> Any:
    """Convert an order to a kernel argument: an empty array means all rows in their order."""
    return _NO_ROWS if order is None else order
