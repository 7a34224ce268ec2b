"""Calls whose arguments need no second look.

In most calls an array, or a particle class of arrays, comes first and constants follow: ``knn(pos, k=8)``. What there
is to check, and to make exact, then depends on the constants and on shapes and dtypes. It is done once for all such
calls, because it takes twice as long as a search among a few particles.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax

# What a call was made with, by place and by name; and all arguments by name, in the order of the function.
Reader = Callable[[Sequence[Any], dict[str, Any]], dict[str, Any]]

_Class = TypeVar("_Class", bound=type)

_CONSTANTS = frozenset({int, float, bool, str, type(None)})
_KEPT = 256
_particle_classes: set[type] = set()


def holds_rows(cls: _Class) -> _Class:
    """``cls``, all of whose objects hold what they have in their fields, which are leaves or part of the structure."""
    _particle_classes.add(cls)
    return cls


def remembered(read: Reader) -> Reader:
    """``read``, which is not asked again about arrays of JAX with rows, alone or in a class, and the constants behind.

    Whatever raises, or asks for the numbers in an array, is asked each time, and so is what has a number of its own for
    all rows, such as how many of them are particles.
    """

    @functools.lru_cache(_KEPT)
    def known(
        structure: Any, rows: tuple[tuple[Any, Any], ...], given: tuple[Any, ...], names: tuple[str, ...], *_key: Any
    ) -> Any:
        by_place = len(given) - len(names)
        first = jax.tree.unflatten(structure, [jax.ShapeDtypeStruct(*each) for each in rows])
        return read((first, *given[:by_place]), dict(zip(names, given[by_place:], strict=True)))

    def arguments_of(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        given = (*args[1:], *kwargs.values())
        kinds = tuple(map(type, given))  # 1 and True are equal
        if args and _CONSTANTS.issuperset(kinds) and (shapes := _shapes_of(args[0])):
            wide: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]
            try:
                found = known(*shapes, given, tuple(kwargs), kinds, wide)
            except Exception:  # comes again, about what was given
                return read(args, kwargs)
            return found | {next(iter(found)): args[0]}
        return read(args, kwargs)

    return arguments_of


def _shapes_of(first: Any) -> tuple[Any, tuple[tuple[Any, Any], ...]] | None:
    """How arrays are held, and the shape and dtype of each, where that says all that is to be checked."""
    if not isinstance(first, jax.Array) and type(first) not in _particle_classes:
        return None
    arrays, structure = jax.tree.flatten(first)
    for one in arrays:
        if not isinstance(one, jax.Array) or isinstance(one, jax.core.Tracer) or one.ndim == 0:
            return None
    return structure, tuple((one.shape, one.dtype) for one in arrays)
