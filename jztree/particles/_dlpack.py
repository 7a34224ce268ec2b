"""Convert arrays of other libraries, such as PyTorch and CuPy, to JAX by DLPack, without a copy."""

import functools
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from ._messages import name_of, one_line

_HOST = 1  # the code of host memory in DLPack
_Tree = TypeVar("_Tree")


def import_arrays(tree: _Tree) -> _Tree:
    """Replace the arrays of other libraries in a pytree by NumPy or JAX arrays that share their memory (by DLPack).

    Host arrays become NumPy views, device arrays become JAX arrays.

    Raises:
        TypeError: If the memory cannot be shared.
    """
    leaves, structure = jax.tree.flatten(tree)
    foreign = list(map(_is_foreign, map(type, leaves)))
    if not any(foreign):
        return tree
    if isinstance(tree, dict):  # arguments, whose order matters
        return {name: import_arrays(value) for name, value in tree.items()}  # type: ignore[return-value]
    if isinstance(tree, tuple) and not hasattr(tree, "_fields"):  # also arguments, not a named tuple
        return tuple(import_arrays(value) for value in tree)  # type: ignore[return-value]
    leaves_here = [
        _shared(leaf, tree) if is_foreign else leaf for leaf, is_foreign in zip(leaves, foreign, strict=True)
    ]
    imported: _Tree = jax.tree.unflatten(structure, leaves_here)
    return imported


@functools.cache
def _is_foreign(cls: type) -> bool:
    """Return whether a class holds arrays of another library.

    The result is cached, because every call asks for it and most classes have no such arrays.
    """
    return hasattr(cls, "__dlpack__") and not issubclass(
        cls, (jax.Array, np.ndarray, jax.ShapeDtypeStruct, jax.core.Tracer)
    )


def _shared(leaf: Any, tree: Any) -> Any:
    try:
        return _on_host(leaf) if leaf.__dlpack_device__()[0] == _HOST else jnp.from_dlpack(leaf)
    except (BufferError, RuntimeError, TypeError, ValueError) as error:
        library = type(leaf).__module__.partition(".")[0]
        raise TypeError(
            f"{name_of(leaf, tree)} is an array of {library} that does not share its memory "
            f"({one_line(error).rstrip('.')}); pass one that does, such as .detach() of a tensor, or use "
            "jztree_utils.torch_bridge, which has derivatives."
        ) from error


def _on_host(leaf: Any) -> np.ndarray:
    try:
        return np.from_dlpack(leaf)
    except (BufferError, RuntimeError):  # NumPy itself has no bfloat16
        return np.asarray(jnp.from_dlpack(leaf))
