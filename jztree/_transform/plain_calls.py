"""Calls whose argument checks can be cached.

In most calls an array, or a particle class of arrays, comes first and constants follow: ``knn(pos, k=8)``. Checks and
conversions to exact numbers then depend only on the constants and on shapes and dtypes. They run once for all such
calls, because they take twice as long as a search among a few particles.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

from ..particles import Index

# Takes the positional and keyword arguments of a call. Returns all arguments by name, in the order of the function.
Reader = Callable[[Sequence[Any], dict[str, Any]], dict[str, Any]]

_Class = TypeVar("_Class", bound=type)

_CONSTANTS = frozenset({int, float, bool, str, type(None)})
_KEPT = 256
_particle_classes: set[type] = set()


def holds_rows(cls: _Class) -> _Class:
    """Register a class whose objects store everything in their fields, as leaves or as part of the structure."""
    _particle_classes.add(cls)
    return cls


def remembered(read: Reader) -> Reader:
    """Cache ``read`` for calls with JAX arrays of rows first, alone or in a class, followed by constants.

    Calls for which ``read`` raises or needs the values of an array are not cached. The same holds for calls with a
    scalar array in the class, such as the number of particles. An index was checked when it was built.
    """

    @functools.lru_cache(_KEPT)
    def known(
        structure: Any,
        rows: tuple[tuple[Any, Any], ...],
        constants: tuple[Any, ...],
        names: tuple[str, ...],
        *_key: Any,
    ) -> Any:
        by_place = len(constants) - len(names)
        first = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*shape_and_dtype) for shape_and_dtype in rows])
        return read((first, *constants[:by_place]), dict(zip(names, constants[by_place:], strict=True)))

    def arguments_of(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        constants = (*args[1:], *kwargs.values())
        kinds = tuple(map(type, constants))  # 1 and True are equal
        if args and _CONSTANTS.issuperset(kinds) and (shapes := _shapes_of(args[0])):
            wide: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]
            try:
                arguments = known(*shapes, constants, tuple(kwargs), kinds, wide)
            except Exception:  # the call below raises it again, for the original arguments
                return read(args, kwargs)
            return arguments | {next(iter(arguments)): args[0]}
        return read(args, kwargs)

    return arguments_of


def _shapes_of(first: Any) -> tuple[Any, tuple[tuple[Any, Any], ...]] | None:
    """Return the structure, and the shape and dtype of each array, or None if checks may need more."""
    is_index = isinstance(first, Index)  # its numbers were checked when it was built
    if not (is_index or isinstance(first, jax.Array) or type(first) in _particle_classes):
        return None
    arrays, structure = jax.tree.flatten(first)
    for array in arrays:
        if not isinstance(array, jax.Array) or isinstance(array, jax.core.Tracer) or (array.ndim == 0 and not is_index):
            return None
    return structure, tuple((array.shape, array.dtype) for array in arrays)
