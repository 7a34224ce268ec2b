"""Parse radii from users into the form that kernels accept."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .. import comm
from ..jax_ext import Exact, exact, exact_to_float, is_concrete
from ..particles import check_no_unit, get_num, shape_of_pos
from ._box import exact_box_argument
from ._numbers import at_least_normal, check_real, in_order, is_length, shape_of, shown

_BAD = "%s is negative or NaN; every radius must be at least 0 (infinity includes all particles)."
_NOT_ASCENDING = "the radii of a query do not ascend; sort them."


class Radii(NamedTuple):
    """``m`` ascending radii: for all queries, a number or ``(m,)``, or for each query, ``(q,)`` or ``(q, m)``.

    One of the two fields is None. In `NO_LIMIT`, which has no radii, both are None.
    """

    for_all: Exact | None
    of_each: Exact | None

    def given(self) -> bool:
        return self.for_all is not None or self.of_each is not None

    def shape(self) -> tuple[int, ...]:
        """Return the shape of the result for one query."""
        given = self.for_all.words.shape if self.for_all is not None else self._each().words.shape[1:]
        return tuple(given[:-1])

    def per_query(self) -> int:
        """Return ``m``."""
        return int(np.prod(self.shape()))

    def words(self) -> Exact:
        """Return the radii in the form that kernels accept."""
        return self.for_all if self.for_all is not None else self._each()

    def words_or_none(self) -> Exact | None:
        return self.words() if self.given() else None

    def outermost(self, q: int, dtype: Any) -> jax.Array:
        """Return ``(q,)``, the largest radius of each query in the dtype of the positions, rounded up."""
        number = jax.lax.stop_gradient(jnp.asarray(exact_to_float(self.words()), dtype))
        last = number.reshape(-1)[-1:] if self.of_each is None else number.reshape(q, self.per_query())[:, -1]
        farther = jnp.nextafter(at_least_normal(last), jnp.asarray(jnp.inf, dtype))
        return jnp.broadcast_to(farther, (q,))

    def with_words(self, words: Exact) -> "Radii":
        """Return other numbers, in the same form."""
        return Radii(words, None) if self.of_each is None else Radii(None, words)

    def _each(self) -> Exact:
        assert self.of_each is not None
        return self.of_each


SPEC = Radii(P(), P(-1))  # type: ignore[arg-type]
NO_LIMIT = Radii(None, None)


def exact_arguments(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that twins replace, for a function with ``part``, ``radius`` and maybe ``part_query``."""
    replaced = exact_box_argument(arguments)
    query = arguments.get("part_query")
    query_part = next(iter(arguments.values())) if query is None else query
    return replaced | {"radius": as_radii(arguments["radius"], *_rows_and_num(query_part))}


def exact_arguments_of_one(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the same for a function whose ``radius`` is a number, or one per query."""
    query = arguments["part_query"]
    query_part = arguments["part"] if query is None else query
    radius = as_one_radius(arguments["radius"], *_rows_and_num(query_part))
    return exact_box_argument(arguments) | {"radius": radius}


def exact_limit(arguments: dict[str, Any]) -> dict[str, Any]:
    """Return the same for a function with ``max_radius``, which may be None."""
    query = arguments["part_query"]
    query_part = arguments["part"] if query is None else query
    return exact_box_argument(arguments) | {"max_radius": as_limit(arguments["max_radius"], *_rows_and_num(query_part))}


def _rows_and_num(query_part: Any) -> tuple[tuple[int, ...], Any]:
    """Return the arguments ``queries`` and ``num`` of `as_radii` outside of a mapped function.

    There, the first axis of positions may run over devices. Without ``num``, `get_num` would take its length as the
    number of queries. The function itself reports errors in both.
    """
    return shape_of_pos(query_part)[:-1], None if getattr(query_part, "num", None) is None else get_num(query_part)


def as_limit(max_radius: Any, queries: tuple[int, ...], num: Any = None) -> Radii:
    """Return ``max_radius``, a number or one per query, as exact numbers; None is `NO_LIMIT`.

    Args:
        max_radius: The limit from the user.
        queries: See `as_radii`.
        num: See `as_radii`.
    """
    if max_radius is None or (isinstance(max_radius, Radii) and not max_radius.given()):
        return NO_LIMIT
    return as_one_radius(max_radius, queries, num, "max_radius")


def as_one_radius(radius: Any, queries: tuple[int, ...], num: Any = None, name: str = "radius") -> Radii:
    """Return `as_radii` of a number, or one per query.

    Raises:
        ValueError: For ascending radii.
    """
    shape = radius.words().words.shape[:-1] if isinstance(radius, Radii) else shape_of(radius, name)
    if shape not in ((), queries):
        raise ValueError(f"{name} must be a number, or one per query, {_words(queries)}; its shape is {shape}.")
    return as_radii(radius, queries, num, name)


def as_radii(radius: Any, queries: tuple[int, ...], num: Any = None, name: str = "radius") -> Radii:
    """Return ``radius`` as exact numbers.

    Args:
        radius: A number, ``(m,)`` or ``(1, m)`` for all queries; ``(q,)`` or ``(q, m)`` for each, after the axis over
            devices in ``queries``.
        queries: ``(q,)``, or ``(r, q)`` with an axis over devices.
        num: Number of queries. None means all. The radii of later rows are ignored.
        name: Name of the argument in messages.

    Raises:
        TypeError: If radii are not real numbers.
        ValueError: If their shape is invalid, if one is negative or NaN, or if the radii of a query do not ascend.
    """
    if isinstance(radius, Radii):
        return radius
    check_no_unit(radius, name)
    shape = shape_of(radius, name)
    each = shape in (queries, (*queries, *shape[-1:]))
    if not each and (len(shape) > 2 or (len(shape) == 2 and shape[0] != 1) or 0 in shape):
        raise ValueError(
            f"radius must be a number, or m ascending numbers for all queries, (m,) or (1, m), or the radii of each "
            f"query, {_words(queries)} or {_words((*queries, 'm'))}; its shape is {shape}."
        )
    if not each and len(shape) == 2:
        radius, shape = radius[0], shape[1:]
    if each:
        radius = _without_padding(radius, queries, num)
    lists = len(shape) > len(queries) if each else len(shape) == 1
    numbers = _known(radius, lists, name) if is_concrete(radius) else _traced(radius, shape, lists, name)
    return Radii(None, numbers) if each else Radii(numbers, None)


def _words(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _without_padding(radius: Any, queries: tuple[int, ...], num: Any) -> Any:
    """Return the radii of each query, set to 0 in rows from ``num`` on.

    They are unchanged if ``num`` is invalid, because another check reports that. They are also unchanged if only
    ``num`` is traced, because traced numbers lose bits.
    """
    known = is_concrete(radius)
    right = isinstance(num, (int, np.integer, np.ndarray, jax.Array)) and np.shape(num) in ((), queries[:-1])
    right = right and jnp.issubdtype(jnp.result_type(num), np.integer)
    if not right or (known and not is_concrete(num)) or (isinstance(num, int) and num == queries[-1]):
        return radius
    library: Any = np if known else jnp
    # Users may disable implicit promotion of dtypes and ranks; another check reports numbers above int32.
    counts = np.asarray(num) if known else jnp.asarray(num).astype(jnp.int32)
    counts = counts.reshape(counts.shape or (1,) * (len(queries) - 1))[..., None]
    rows = library.arange(queries[-1], dtype=np.int32).reshape((1,) * (len(queries) - 1) + (-1,))
    used = rows < counts
    used = used.reshape(used.shape + (1,) * (np.ndim(radius) - len(queries)))
    return library.where(used, radius, library.zeros_like(radius))


def _known(radius: Any, lists: bool, name: str) -> Exact:
    values = check_real(radius, name)
    if not np.all(values >= 0):
        raise ValueError(f"{name} is {shown(radius)}; radii must be at least 0, and not NaN.")
    if lists and np.any(values[..., 1:] < values[..., :-1]):
        raise ValueError(f"{name} is {shown(radius)}; the radii of a query must ascend.")
    # A radius above the range of the positions includes all particles.
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    return exact(np.where(values > widest.max, np.inf, values), values.shape)


def _traced(radius: Any, shape: tuple[int, ...], lists: bool, name: str) -> Exact:
    numbers = exact(radius, shape)
    number = jnp.asarray(numbers.words)[..., 0]  # the other words of a traced number are 0
    faults = [comm.Fault(jnp.any(~is_length(number)), [], _BAD % name)]
    if lists:
        order = in_order(number)
        faults.append(comm.Fault(jnp.any(order[..., 1:] < order[..., :-1]), [], _NOT_ASCENDING))
    return comm.after(numbers, comm.check_all(jnp.int32(0), faults))
