"""Calls whose arguments need no second look.

In most calls an array comes first and constants follow: ``knn(pos, k=8)``. What there is to check, and to make exact,
then depends on the constants and on the array's shape and dtype. It is done once for all such calls, because it takes
twice as long as a search among a few particles.
"""

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax

# What a call was made with, by place and by name; and all arguments by name, in the order of the function.
Reader = Callable[[Sequence[Any], dict[str, Any]], dict[str, Any]]

_CONSTANTS = frozenset({int, float, bool, str, type(None)})
_KEPT = 256


def remembered(read: Reader) -> Reader:
    """``read``, which is not asked again about an array of JAX and the constants behind it.

    Whatever raises, or asks for the numbers in the array, is asked each time.
    """

    @functools.lru_cache(_KEPT)
    def known(shape: tuple[int, ...], dtype: Any, given: tuple[Any, ...], names: tuple[str, ...], *_key: Any) -> Any:
        by_place = len(given) - len(names)
        first = jax.ShapeDtypeStruct(shape, dtype)
        return read((first, *given[:by_place]), dict(zip(names, given[by_place:], strict=True)))

    def arguments_of(args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
        first = args[0] if args else None
        given = (*args[1:], *kwargs.values())
        kinds = tuple(map(type, given))  # 1 and True are equal
        if _CONSTANTS.issuperset(kinds) and isinstance(first, jax.Array) and not isinstance(first, jax.core.Tracer):
            wide: bool = jax.config.jax_enable_x64  # type: ignore[attr-defined]
            try:
                found = known(first.shape, first.dtype, given, tuple(kwargs), kinds, wide)
            except Exception:  # comes again, about what was given
                return read(args, kwargs)
            return found | {next(iter(found)): first}
        return read(args, kwargs)

    return arguments_of
