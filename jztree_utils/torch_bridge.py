"""Use JAX functions from PyTorch: on tensors, with the derivatives of JAX, without copies (DLPack).

Functions of `jztree` accept tensors instead of arrays. They return JAX arrays, which `to_torch` converts to tensors.
`differentiable` turns a function of arrays into a function of tensors that PyTorch can differentiate.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

try:
    import torch
except ImportError as error:
    raise ImportError("jztree_utils.torch_bridge needs PyTorch; install it with: pip install torch.") from error

__all__ = ["differentiable", "to_torch"]


def to_torch(tree: Any) -> Any:
    """Convert the JAX or NumPy arrays of a pytree to tensors in the same memory, on the same device.

    Do not write to these tensors: JAX treats its arrays as constants. (Read-only NumPy arrays are copied.) Methods of a
    result, such as `jztree.radius.PairLists.edge_index`, work on JAX arrays: ``to_torch(pairs.edge_index())``.
    """
    return jax.tree.map(_tensor, tree)


def _tensor(leaf: Any) -> Any:
    if isinstance(leaf, jax.Array):
        return torch.from_dlpack(leaf)
    if isinstance(leaf, np.ndarray):
        return torch.from_numpy(leaf if leaf.flags.writeable else leaf.copy())
    return leaf


def differentiable(func: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors that calls ``func`` and that PyTorch can differentiate.

    The function returns a pytree of tensors. Integer tensors, such as the rows of neighbours, have no derivatives. If a
    tensor is float64, the whole computation uses the 64-bit mode of JAX. Higher derivatives exist to the order that
    ``func`` supports. ``torch.compile`` does not compile the call, only the code around it.

    Args:
        func: A function that takes JAX arrays as positional arguments and returns a pytree of arrays. Bind other
            arguments with
            `functools.partial`, for example. Create the function once: its forward and its backward pass are compiled
            for each combination of tensor types.

    Raises:
        TypeError: If an argument is not a dense tensor, or is a complex tensor that requires derivatives.
        ValueError: If JAX would truncate an integer.
        NotImplementedError: If `torch.func` or forward-mode differentiation transforms the call: PyTorch can
            differentiate it only backwards.
    """
    passes = _Passes(func)

    def call(*tensors: Any) -> Any:
        for place, tensor in enumerate(tensors):
            _check_tensor(place, tensor)
        structure: list[Any] = []
        try:
            leaves = _Bridge.apply(passes, structure, *tensors)
        except RuntimeError as error:
            if "functorch" in str(error):
                raise NotImplementedError(_ONLY_BACKWARD) from error
            raise
        return jax.tree.unflatten(structure[0], leaves)

    return torch.compiler.disable(call)


_ONLY_BACKWARD = (
    "a function of torch_bridge.differentiable supports only backward derivatives, one gradient at a time, with "
    "torch.autograd.grad or .backward(); torch.func, vectorize=True and forward-mode derivatives do not work. "
    "Transform the JAX function with jax.vmap or jax.jvp before you call differentiable."
)


def _check_tensor(place: int, tensor: Any) -> None:
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"argument {place} has type {type(tensor).__name__}; it must be a tensor of PyTorch.")
    kinds = {
        "nested": tensor.is_nested,
        "sparse": tensor.layout is not torch.strided,
        "quantized": tensor.is_quantized,
        "meta": tensor.is_meta,
    }
    for kind, is_that in kinds.items():
        if is_that:
            raise TypeError(f"argument {place} is a {kind} tensor; give a dense tensor.")
    if tensor.requires_grad and tensor.is_complex():
        raise TypeError(f"argument {place} is complex, but only real tensors have derivatives; call its .detach().")


class _Passes:
    """The compiled passes of a function: forward, backward, and the backward pass as a differentiable function."""

    def __init__(self, func: Callable[..., Any]) -> None:
        self._func = func
        self.forward = jax.jit(lambda fixed, by: jax.vjp(lambda moved: self._found(fixed, moved), by, has_aux=True))
        self.backward = jax.jit(lambda pull, cotangents: pull(cotangents)[0])
        self.backward_of = functools.cache(self._backward_of)

    def _found(self, fixed: list[Any], by: list[Any]) -> tuple[Any, Any]:
        return _by_kind(self._func(*_merged(fixed, by)))

    def _backward_of(self, by: tuple[bool, ...]) -> Callable[..., Any]:
        """Return the backward pass as a function of the tensors (tensors with ``by`` vary) and the cotangents."""

        def pulled(*arrays: jax.Array) -> list[jax.Array]:
            primals, cotangents = arrays[: len(by)], arrays[len(by) :]
            fixed, moved = _parted(primals, by)
            real, pull, _ = jax.vjp(lambda moved: self._found(fixed, moved), moved, has_aux=True)
            return pull(jax.tree.unflatten(jax.tree.structure(real), cotangents))[0]

        return differentiable(pulled)


class _Bridge(torch.autograd.Function):
    """One call of a JAX function, in the form that PyTorch differentiates."""

    @staticmethod
    def forward(ctx: Any, passes: _Passes, structures: list[Any], *tensors: torch.Tensor) -> Any:
        """Call the function. ``structures`` receives the structure of the result, which PyTorch does not pass on."""
        ctx.by = tuple(tensor.requires_grad and tensor.is_floating_point() for tensor in tensors)
        ctx.wide = jnp.result_type(float) == jnp.float64 or any(tensor.dtype == torch.float64 for tensor in tensors)
        if not ctx.wide:
            _check_integers(tensors)
        with jax.enable_x64(ctx.wide):
            ctx.real, ctx.pull, integers = passes.forward(*_parted([_array(tensor) for tensor in tensors], ctx.by))
        ctx.passes = passes
        ctx.save_for_backward(*tensors)
        result = jax.tree.map(
            lambda real, integer: integer if real is None else real, ctx.real, integers, is_leaf=_is_none
        )
        leaves, structure = jax.tree.flatten(result)
        structures.append(structure)
        created = [torch.from_dlpack(leaf) for leaf in leaves]
        ctx.mark_non_differentiable(*(tensor for tensor in created if not tensor.is_floating_point()))
        return tuple(created)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        which = [real is not None for real in jax.tree.leaves(ctx.real, is_leaf=_is_none)]
        real_gradients = [gradient for gradient, real in zip(gradients, which, strict=True) if real]
        # A second derivative also depends on the tensors, not only on the gradients.
        again = torch.is_grad_enabled()
        created = iter(
            ctx.passes.backward_of(ctx.by)(*ctx.saved_tensors, *real_gradients)
            if again
            else _pulled(ctx, real_gradients)
        )
        return None, None, *(next(created) if by else None for by in ctx.by)

    @staticmethod
    def jvp(*_: Any) -> Any:
        raise NotImplementedError(_ONLY_BACKWARD)


def _pulled(ctx: Any, gradients: list[Any]) -> list[Any]:
    with jax.enable_x64(ctx.wide):
        cotangents = jax.tree.unflatten(jax.tree.structure(ctx.real), [_array(gradient) for gradient in gradients])
        return [torch.from_dlpack(gradient) for gradient in ctx.passes.backward(ctx.pull, cotangents)]


def _check_integers(tensors: Sequence[torch.Tensor]) -> None:
    """Raise ValueError if an integer does not fit into the 32 bits that JAX would keep."""
    for place, tensor in enumerate(tensors):
        if tensor.dtype != torch.int64 or not tensor.numel():
            continue
        for value in (int(tensor.min()), int(tensor.max())):
            if not -(2**31) <= value < 2**31:
                raise ValueError(
                    f"argument {place} holds {value}, but JAX keeps only 32 bits; switch on 64 bits with "
                    "jax.config.update('jax_enable_x64', True), or give smaller numbers."
                )


def _array(tensor: torch.Tensor) -> jax.Array:
    try:
        return jnp.from_dlpack(tensor.detach().resolve_conj().contiguous())
    except RuntimeError as error:
        if "Batching rule" in str(error):  # several gradients at once
            raise NotImplementedError(_ONLY_BACKWARD) from error
        raise


def _parted(leaves: Sequence[Any], by: Sequence[bool]) -> tuple[list[Any], list[Any]]:
    """Split arguments into constants, with None in place of the others, and the others."""
    fixed = [None if moves else leaf for leaf, moves in zip(leaves, by, strict=True)]
    return fixed, [leaf for leaf, moves in zip(leaves, by, strict=True) if moves]


def _merged(fixed: list[Any], by: list[Any]) -> list[Any]:
    """Merge constants, with None in place of the others, and the others into the original arguments."""
    moving = iter(by)
    return [next(moving) if leaf is None else leaf for leaf in fixed]


def _by_kind(result: Any) -> tuple[Any, Any]:
    """Split into values with derivatives and values without, with None in place of the other kind."""
    result = jax.tree.map(jnp.asarray, result)
    real = jax.tree.map(lambda leaf: leaf if jnp.issubdtype(leaf.dtype, jnp.inexact) else None, result)
    integers = jax.tree.map(lambda leaf: None if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf, result)
    return real, integers


def _is_none(value: Any) -> bool:
    return value is None
