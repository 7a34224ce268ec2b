"""The text of error messages about particles, arrays and their names."""

from typing import Any

import jax
import numpy as np

from ._computed import is_computed
from ._index import Index

OF_JAX = (jax.Array, jax.ShapeDtypeStruct)
ARRAYS = (*OF_JAX, np.ndarray)


def what_is_wrong(part: Any, pos: Any) -> str:
    """Return the reason why ``part``, with this attribute ``pos`` or None, is not a valid particle class."""
    if isinstance(part, type):
        return f"particles are the class {part.__name__} itself; pass an instance, such as {part.__name__}(pos=...)."
    if isinstance(part, Index):
        return (
            "particles are an index, but only searches accept an index, as their first argument; pass its particles, "
            "index.part."
        )
    kind = type(part).__name__
    if pos is None:
        return (
            f"particles must be an array of positions (n, d), or a pytree with such an array as pos, not {kind}; pass "
            "an array, or a particle class such as jztree.data.ParticleData(pos=...)."
        )
    if not isinstance(pos, ARRAYS):
        return f"pos of {kind} must be an array (n, d) of NumPy or JAX, not {type(pos).__name__}."
    if jax.tree_util.all_leaves([part]):
        return (
            f"particles are of the class {kind}, which is not registered as a pytree, so jztree cannot move its rows "
            "with pos; put @jax.tree_util.register_dataclass above the class, or pass "
            "jztree.data.ParticleData(pos=...)."
        )
    cls: Any = type(part)
    if is_computed(cls, "pos"):
        return (
            f"pos of {kind} is computed, but no leaf of the pytree has a row for each of its {pos.shape[0]} particles, "
            "so jztree cannot move it; store the values that determine it in an array (n, ...)."
        )
    return (
        f"pos of {kind} is not among the leaves of the pytree (it is a static field), so jztree cannot move it; make "
        "it a data field (register_dataclass), or pass jztree.data.ParticleData(pos=part.pos, ...)."
    )


def unknown_leaf(name: str, leaf: Any) -> str:
    """Return the reason why JAX cannot hold this leaf of a pytree."""
    kind = type(leaf).__name__
    if isinstance(leaf, (str, bytes)):
        return f"{name} is text, which JAX cannot hold; leave it out, or make it a static field of the class."
    if hasattr(leaf, "pos"):
        return what_is_wrong(leaf, leaf.pos)
    if hasattr(leaf, "shape") and hasattr(leaf, "dtype"):
        return f"{name} is of the class {kind}, not an array of NumPy or JAX; make it one with numpy.asarray."
    return (
        f"{name} is of the class {kind}, which is neither an array nor registered as a pytree; put "
        "@jax.tree_util.register_dataclass above the class."
    )


def name_of(leaf: Any, tree: Any) -> str:
    """Return the name of a pytree leaf: ``part.mass`` for named arguments, ``mass`` for a particle class."""
    for path, candidate in jax.tree_util.tree_flatten_with_path(tree)[0]:
        if candidate is leaf:
            name = jax.tree_util.keystr(path[:1], simple=True) + jax.tree_util.keystr(path[1:])
            return name or "an argument"
    return "an argument"


def dtype_in_words(dtype: Any) -> str:
    """Return the words for a dtype that JAX does not support, such as ``text``, or the name of any other dtype."""
    if getattr(dtype, "names", None):
        return f"records ({', '.join(dtype.names)})"
    words = {"O": "Python objects", "U": "text", "S": "text", "T": "text", "M": "times", "m": "times"}
    return words.get(getattr(dtype, "kind", ""), str(dtype))


def number_in_words(number: Any) -> str:
    """Return the text of a value passed as a number; traced values show dtype and shape."""
    if isinstance(number, jax.core.Tracer):
        return f"{number.dtype} of shape {number.shape}"
    return f"a {type(number).__name__}" if isinstance(number, (list, tuple)) else one_line(number)


def one_line(value: Any) -> str:
    """Return the text of ``value`` without the line breaks that NumPy inserts into long arrays."""
    return " ".join(str(value).split())
