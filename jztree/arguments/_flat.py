"""Flat functions: the public searches. The name of an argument determines how it is read.

The first argument holds particles or an index. The decorator `flat` adds the twins ``.jit`` and ``.smap``, accepts
arrays of other libraries and particle classes that compute their positions, makes numbers exact, and checks arguments
that are True or False. The functions themselves contain their search only.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple, ParamSpec, TypeVar

from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .._transform.twins import WithTwins
from ..data import with_computed
from ..jax_ext import Exact, with_twins
from ..particles import particles_of, shape_of_pos
from ._box import check_box, check_classes, no_box
from ._lengths import check_length
from ._numbers import check_constant
from ._radii import NO_LIMIT, SPEC, Radii, as_ascending, as_limit, as_one_radius, rows_and_num
from ._words import check_flag

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")


class Kind(NamedTuple):
    """The treatment of an argument.

    Attributes:
        spec: How it is distributed over devices; see `jztree.jax_ext.shard_map_constructor`. None means static.
        exact: Makes exact numbers of a value. It gets the value and all arguments by name. None leaves it unchanged.
    """

    spec: Any
    exact: Callable[[Any, dict[str, Any]], Any] | None = None


def _searching(arguments: dict[str, Any]) -> tuple[tuple[int, ...], Any]:
    """Return the shape of the rows that search, and their number."""
    queries = arguments.get("queries")
    return rows_and_num(next(iter(arguments.values())) if queries is None else queries)


def box_of(arguments: dict[str, Any]) -> Exact:
    """Return the exact box among the arguments of a flat function by name; an open box if its particles are an index.

    Args:
        arguments: The particles come first. Positions may have a leading axis over devices.
    """
    first = next(iter(arguments.values()))
    part = particles_of(first)
    return check_box(arguments["boxsize"] if part is first else None, shape_of_pos(part)[-1])


def _exact_box(boxsize: ArrayLike | None, arguments: dict[str, Any]) -> Any:
    part = next(iter(arguments.values()))
    return box_of(arguments) if particles_of(part) is part else no_box(boxsize)


def one_length(name: str) -> Kind:
    """Return the treatment of an argument that is one length, equal on all ranks."""
    return Kind(P(), lambda length, arguments: check_length(length, box_of(arguments), name))


def _of_queries(read: Callable[..., Radii]) -> Callable[[Any, dict[str, Any]], Any]:
    return lambda value, arguments: NO_LIMIT if value is None else read(value, *_searching(arguments))


_PER_DEVICE = P(-1)
_ROWS = Kind(_PER_DEVICE)
KINDS: dict[str, Kind] = {
    "part": _ROWS,
    "queries": _ROWS,
    "weights": _ROWS,
    "boxsize": Kind(P(), _exact_box),
    "radius": Kind(SPEC, _of_queries(as_one_radius)),
    "radii": Kind(SPEC, _of_queries(as_ascending)),
    "max_radius": Kind(SPEC, _of_queries(as_limit)),
    "gravity": Kind(P(), lambda gravity, _: check_constant(gravity, "gravity")),
}


def flat(
    out_specs: Any = _PER_DEVICE, *, enlarges: bool = False, **kinds: Kind
) -> Callable[[Callable[_Args, _Result]], WithTwins[_Args, _Result]]:
    """Return the decorator of a flat function.

    Args:
        out_specs: How its results are distributed over devices.
        enlarges: See `jztree.jax_ext.jit_constructor`.
        kinds: The treatment of arguments that only this function has. Other arguments without an entry in `KINDS` are
            static.
    """

    def add(func: Callable[_Args, _Result]) -> WithTwins[_Args, _Result]:
        by_name = {name: (KINDS | kinds)[name] for name in inspect.signature(func).parameters if name in KINDS | kinds}

        def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
            check_classes(arguments)
            return {name: kind.exact(arguments[name], arguments) for name, kind in by_name.items() if kind.exact}

        specs = {name: kind.spec for name, kind in by_name.items() if kind.spec is not None}
        return with_twins(specs, out_specs, prepare=prepare, enlarges=enlarges)(with_computed(_with_flags(func)))

    return add


def _with_flags(func: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Decorate ``func`` to check its keyword arguments whose default is True or False."""
    flags = [
        name for name, argument in inspect.signature(func).parameters.items() if isinstance(argument.default, bool)
    ]
    if not flags:
        return func

    @functools.wraps(func)
    def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        for name in kwargs.keys() & flags:
            check_flag(kwargs[name], name)
        return func(*args, **kwargs)

    return call
