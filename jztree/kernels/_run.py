"""Run a kernel in the form that the target platform requires.

Without CUDA kernels, a kernel is a JAX FFI call. With them, it is a JAX primitive, which is lowered to such a call.
Only then are the platform and the need for work memory known. `jax.lax.platform_dependent` is a poor substitute:
outside jit it uses the default device, even if the arrays are on another one, and inside jit compilation takes a tenth
longer.
"""

import ctypes
import dataclasses
import functools
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import batching, mlir

from .._transform.members import one_by_one
from ._library import scratch_libraries
from ._scratch import scratch_bytes


@dataclasses.dataclass(frozen=True)
class Kernel:
    """A kernel call without its arrays: the parameters of `jax.ffi.ffi_call` in hashable form."""

    name: str
    outs: tuple[jax.ShapeDtypeStruct, ...]
    aliases: tuple[tuple[int, int], ...]
    always: bool
    attributes: tuple[tuple[str, Any], ...]  # tuples instead of arrays

    @classmethod
    def of(
        cls, name: str, outs: Sequence[Any], aliases: Mapping[int, int], always: bool, attributes: Mapping[str, Any]
    ) -> "Kernel":
        plain = {key: tuple(value) if isinstance(value, np.ndarray) else value for key, value in attributes.items()}
        return cls(name, tuple(outs), tuple(aliases.items()), always, tuple(plain.items()))

    def given(self) -> dict[str, Any]:
        """Return the attributes in their original form."""
        every = dict(self.attributes)
        return {
            name: np.asarray(value, np.int64) if isinstance(value, tuple) else value for name, value in every.items()
        }

    def __call__(self, *arrays: jax.Array) -> Sequence[jax.Array]:
        """Call the kernel through JAX's FFI."""
        call = jax.ffi.ffi_call(
            f"jztree_{self.name}",
            self.outs,
            vmap_method="sequential",
            input_output_aliases=dict(self.aliases),
            has_side_effect=self.always,
        )
        return call(*arrays, **self.given())


def run(kernel: Kernel, *arrays: jax.Array) -> Sequence[jax.Array]:
    """Run the kernel and return its results."""
    return _run.bind(*arrays, kernel=kernel) if _takes_scratch() else kernel(*arrays)


_run = Primitive("jztree_kernel")
_run.multiple_results = True


@_run.def_effectful_abstract_eval
def _results(*arrays: Any, kernel: Kernel) -> Any:
    """Return the output types and effects of the FFI call."""
    jaxpr = jax.make_jaxpr(kernel)(*arrays)
    return jaxpr.out_avals, jaxpr.effects


@functools.partial(jax.jit, static_argnames="kernel")
def _compiled(*arrays: jax.Array, kernel: Kernel) -> Any:
    return _run.bind(*arrays, kernel=kernel)


def _at_once(*arrays: jax.Array, kernel: Kernel) -> Any:
    with jax.disable_jit(False):  # JAX also compiles each single operation under jax_disable_jit
        return _compiled(*arrays, kernel=kernel)


_run.def_impl(_at_once)


batching.primitive_batchers[_run] = one_by_one(_run)


def _lowered(context: mlir.LoweringRuleContext, *values: Any, kernel: Kernel) -> Any:
    """Lower the kernel to an FFI call."""
    aliases = dict(kernel.aliases)
    lower = jax.ffi.ffi_lowering(f"jztree_{kernel.name}", has_side_effect=kernel.always, operand_output_aliases=aliases)
    return lower(context, *values, **kernel.given())


mlir.register_lowering(_run, _lowered)


def _lowered_with_scratch(library: ctypes.CDLL, context: mlir.LoweringRuleContext, *values: Any, kernel: Kernel) -> Any:
    """Lower the kernel with work memory as an additional result."""
    size = scratch_bytes(library, kernel.name, context.avals_in, kernel.outs, kernel.given())
    outs = [*context.avals_out, jax.core.ShapedArray((size,), np.dtype(np.uint8))]
    return _lowered(context.replace(avals_out=outs), *values, kernel=kernel)[:-1]


@functools.cache
def _takes_scratch() -> bool:
    """Return whether kernels take work memory on any platform, and register their lowering for these platforms."""
    for platform, library in scratch_libraries().items():
        mlir.register_lowering(_run, functools.partial(_lowered_with_scratch, library), platform=platform)
    return bool(scratch_libraries())
