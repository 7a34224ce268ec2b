"""Running a kernel as the platform wants it that the program is compiled for.

Where there are no CUDA kernels, a kernel is a call of JAX's FFI. Where there are, it is an operation of JAX of its own,
which becomes such a call when a program is made of it: only then is the platform known, and whether the call needs
memory for work arrays. `jax.lax.platform_dependent` would not do: where nothing is compiled it goes by the default
device, wherever the arrays are, and where something is, compiling takes a tenth longer.
"""

import ctypes
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from ._library import scratch_libraries
from ._scratch import scratch_bytes


@dataclasses.dataclass(frozen=True)
class Kernel:
    """What is called, but for its arguments: the arguments of `jax.ffi.ffi_call`, as JAX can look them up."""

    name: str
    outs: tuple[jax.ShapeDtypeStruct, ...]
    aliases: tuple[tuple[int, int], ...]
    always: bool
    attributes: tuple[tuple[str, Any], ...]  # tuples in place of arrays

    @classmethod
    def of(
        cls, name: str, outs: Sequence[Any], aliases: Mapping[int, int], always: bool, attributes: Mapping[str, Any]
    ) -> "Kernel":
        plain = {key: tuple(one) if isinstance(one, np.ndarray) else one for key, one in attributes.items()}
        return cls(name, tuple(outs), tuple(aliases.items()), always, tuple(plain.items()))

    def given(self) -> dict[str, Any]:
        """The attributes as they were given."""
        every = dict(self.attributes)
        return {name: np.asarray(one, np.int64) if isinstance(one, tuple) else one for name, one in every.items()}

    def __call__(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """Call it by JAX's FFI."""
        call = jax.ffi.ffi_call(
            f"jztree_{self.name}",
            self.outs,
            vmap_method="sequential",
            input_output_aliases=dict(self.aliases),
            has_side_effect=self.always,
        )
        return call(*arrays, **self.given())


def run(kernel: Kernel, *arrays: jax.Array) -> Sequence[jax.Array]:
    """What the kernel returns."""
    return _run.bind(*arrays, kernel=kernel) if _takes_scratch() else kernel(*arrays)


_run = Primitive("jztree_kernel")
_run.multiple_results = True


@_run.def_effectful_abstract_eval
def _results(*arrays: Any, kernel: Kernel) -> Any:
    """What JAX knows of a call of the FFI."""
    known = jax.make_jaxpr(kernel)(*arrays)
    return known.out_avals, known.effects


@functools.partial(jax.jit, static_argnames="kernel")
def _compiled(*arrays: jax.Array, kernel: Kernel) -> Any:
    return _run.bind(*arrays, kernel=kernel)


def _at_once(*arrays: jax.Array, kernel: Kernel) -> Any:
    with jax.disable_jit(False):  # as JAX compiles each single operation under jax_disable_jit
        return _compiled(*arrays, kernel=kernel)


_run.def_impl(_at_once)


def _mapped(arrays: Sequence[jax.Array], dims: Sequence[int | None], *, kernel: Kernel) -> Any:
    """One after the other along the mapped axes."""
    fixed = [array for array, dim in zip(arrays, dims, strict=True) if dim is None]
    moving = [jnp.moveaxis(array, dim, 0) for array, dim in zip(arrays, dims, strict=True) if dim is not None]

    def one(row: list[jax.Array]) -> Any:
        sources = iter(fixed), iter(row)
        return _run.bind(*(next(sources[dim is not None]) for dim in dims), kernel=kernel)

    return jax.lax.map(one, moving), [0] * len(kernel.outs)


batching.primitive_batchers[_run] = _mapped


def _lowered(context: mlir.LoweringRuleContext, *values: Any, kernel: Kernel) -> Any:
    """The call of the FFI that the kernel becomes in a program."""
    aliases = dict(kernel.aliases)
    lower = jax.ffi.ffi_lowering(f"jztree_{kernel.name}", has_side_effect=kernel.always, operand_output_aliases=aliases)
    return lower(context, *values, **kernel.given())


mlir.register_lowering(_run, _lowered)


def _lowered_with_scratch(library: ctypes.CDLL, context: mlir.LoweringRuleContext, *values: Any, kernel: Kernel) -> Any:
    """The same with memory for work arrays as one more result."""
    size = scratch_bytes(library, kernel.name, context.avals_in, kernel.outs, kernel.given())
    outs = [*context.avals_out, jax.core.ShapedArray((size,), np.dtype(np.uint8))]
    return _lowered(context.replace(avals_out=outs), *values, kernel=kernel)[:-1]


@functools.cache
def _takes_scratch() -> bool:
    """Whether kernels take memory for work arrays on any platform. On these, JAX knows how to call them from now on."""
    for platform, library in scratch_libraries().items():
        mlir.register_lowering(_run, functools.partial(_lowered_with_scratch, library), platform=platform)
    return bool(scratch_libraries())
