"""Linear functions that JAX transposes with a rule of their own, as reverse mode does.

`jax.custom_jvp` allows both modes only if JAX can transpose the rule, and it cannot transpose kernels. The tangent of a
kernel calls `apply_linear`, whose transpose is part of the function. Its constants have derivatives as usual, so second
derivatives exist if the functions inside have them.
"""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import jax
from jax.interpreters import ad, batching

from .._transform.members import one_by_one
from .._transform.primitives import primitive_of


class Linear(Protocol):
    """A hashable pair of functions of pytrees."""

    def forward(self, constants: Any, arguments: Any) -> Any:
        """Return results that are linear in the arguments."""

    def transposed(self, constants: Any, results: Any) -> Any:
        """Return the transpose of `forward` for the cotangents of its results: a pytree like the arguments."""


@dataclasses.dataclass(frozen=True)
class _Transpose:
    of: Linear

    def forward(self, constants: Any, arguments: Any) -> Any:
        return self.of.transposed(constants, arguments)

    def transposed(self, constants: Any, results: Any) -> Any:
        return self.of.forward(constants, results)


def apply_linear(function: Linear, constants: Any, arguments: Any) -> Any:
    """Return ``function.forward(constants, arguments)`` with derivatives in both modes."""
    results = jax.tree.structure(jax.eval_shape(function.forward, constants, arguments))
    trees = jax.tree.structure(constants), jax.tree.structure(arguments), results
    leaves = _linear.bind(*jax.tree.leaves((constants, arguments)), function=function, trees=trees)
    return jax.tree.unflatten(results, leaves)


def _run(*arrays: Any, function: Linear, trees: Any) -> list[Any]:
    number = trees[0].num_leaves
    constants = jax.tree.unflatten(trees[0], arrays[:number])
    return jax.tree.leaves(function.forward(constants, jax.tree.unflatten(trees[1], arrays[number:])))


_linear = primitive_of("jztree_linear", _run, several=True)
batching.primitive_batchers[_linear] = one_by_one(_linear)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, function: Linear, trees: Any) -> Any:
    how, number = {"function": function, "trees": trees}, trees[0].num_leaves
    constants, arguments = primals[:number], primals[number:]
    dots = [ad.instantiate_zeros(tangent) for tangent in tangents]
    changes = []
    if any(type(tangent) is not ad.Zero for tangent in tangents[number:]):
        changes.append(_linear.bind(*constants, *dots[number:], **how))
    if any(type(tangent) is not ad.Zero for tangent in tangents[:number]):
        changes.append(jax.jvp(lambda *values: _run(*values, *arguments, **how), constants, (*dots[:number],))[1])
    return _linear.bind(*primals, **how), [
        functools.reduce(ad.add_tangents, parts) for parts in zip(*changes, strict=True)
    ]


def _transposed(cotangents: Sequence[Any], *arrays: Any, function: Linear, trees: Any) -> list[Any]:
    number = trees[0].num_leaves
    cotangents = [ad.instantiate_zeros(cotangent) for cotangent in cotangents]
    how = {"function": _Transpose(function), "trees": (trees[0], trees[2], trees[1])}
    return [None] * number + _linear.bind(*arrays[:number], *cotangents, **how)


ad.primitive_jvps[_linear] = _jvp
ad.primitive_transposes[_linear] = _transposed
