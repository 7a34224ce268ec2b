"""Parse radii from users into the form that kernels accept."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from ..jax_ext import Exact, exact, exact_to_float, is_concrete
from ..particles import Index, Particles, check_no_unit, get_num, particles_of, shape_of_pos
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
        shape = self.for_all.words.shape if self.for_all is not None else self._each().words.shape[1:]
        return tuple(shape[:-1])

    def per_query(self) -> int:
        """Return ``m``."""
        return int(np.prod(self.shape()))

    def words(self) -> Exact:
        """Return the radii in the form that kernels accept."""
        return self.for_all if self.for_all is not None else self._each()

    def words_or_none(self) -> Exact | None:
        return self.words() if self.given() else None

    def outermost(self, q: int, dtype: np.dtype[Any]) -> jax.Array:
        """Return ``(q,)``, the largest radius of each query in the dtype of the positions, rounded up."""
        number = jax.lax.stop_gradient(jnp.asarray(exact_to_float(self.words()), dtype))
        last = number.reshape(-1)[-1:] if self.of_each is None else number.reshape(q, self.per_query())[:, -1]
        enlarged = jnp.nextafter(at_least_normal(last), jnp.asarray(jnp.inf, dtype))
        return jnp.broadcast_to(enlarged, (q,))

    def with_words(self, words: Exact) -> "Radii":
        """Return other numbers, in the same form."""
        return Radii(words, None) if self.of_each is None else Radii(None, words)

    def _each(self) -> Exact:
        assert self.of_each is not None
        return self.of_each


SPEC = Radii(P(), P(-1))  # type: ignore[arg-type]
NO_LIMIT = Radii(None, None)


def rows_and_num(query_part: Particles | Index | ArrayLike) -> tuple[tuple[int, ...], Any]:
    """Return the arguments ``queries`` and ``num`` of `as_one_radius` outside of a mapped function.

    There, the first axis of positions may run over devices. Without ``num``, `get_num` would take its length as the
    number of queries. The function itself reports errors in both.
    """
    query_part = particles_of(query_part)
    return shape_of_pos(query_part)[:-1], None if getattr(query_part, "num", None) is None else get_num(query_part)


def is_given(radius: Radii | ArrayLike | None) -> bool:
    """Return whether a radius from the user, or from a twin of the function, is neither None nor `NO_LIMIT`."""
    return radius.given() if isinstance(radius, Radii) else radius is not None


def as_limit(max_radius: Any, queries: tuple[int, ...], num: int | jax.Array | None = None) -> Radii:
    """Return ``max_radius``, a number or one per query, as exact numbers; None is `NO_LIMIT`.

    Args:
        max_radius: The limit from the user.
        queries: See `as_one_radius`.
        num: See `as_one_radius`.
    """
    if not is_given(max_radius):
        return NO_LIMIT
    return as_one_radius(max_radius, queries, num, "max_radius")


def as_one_radius(
    radius: Any, queries: tuple[int, ...], num: int | jax.Array | None = None, name: str = "radius"
) -> Radii:
    """Return a radius for all queries, or one per query, as exact numbers.

    Args:
        radius: A number, or an array of the shape ``queries``.
        queries: ``(q,)``, or ``(r, q)`` with an axis over devices.
        num: Number of queries. None means all. The radii of later rows are ignored.
        name: Name of the argument in messages.

    Raises:
        TypeError: If radii are not real numbers.
        ValueError: If their shape is invalid, or if one is negative or NaN.
    """
    shape = radius.words().words.shape[:-1] if isinstance(radius, Radii) else _shape(radius, name)
    if shape not in ((), queries):
        raise ValueError(
            f"{name} must be a number, or one per query, {_words(queries)}; its shape is {shape}."
            + " Pass ascending radii as radii." * (name == "radius")
        )
    return _parsed(radius, (queries, num), shape == queries, False, name)


def as_ascending(radii: Any, queries: tuple[int, ...], num: int | jax.Array | None = None) -> Radii:
    """Return ``m`` ascending radii for all queries, or for each query, as exact numbers.

    Args:
        radii: ``(m,)``, or an array of the shape ``(*queries, m)``.
        queries: See `as_one_radius`.
        num: See `as_one_radius`.

    Raises:
        TypeError: If radii are not real numbers.
        ValueError: If their shape is invalid, if one is negative or NaN, or if the radii of a query do not ascend.
    """
    if isinstance(radii, Radii):
        return radii
    shape = _shape(radii, "radii")
    per_query = len(shape) > 1 and shape[:-1] == queries
    if shape[-1:] == (0,) or not (per_query or len(shape) == 1):
        raise ValueError(
            f"radii must be m ascending numbers for all queries, (m,), or for each query, {_words((*queries, 'm'))}; "
            f"their shape is {shape}. Pass one radius as radius."
        )
    return _parsed(radii, (queries, num), per_query, True, "radii")


def _shape(radius: ArrayLike, name: str) -> tuple[int, ...]:
    check_no_unit(radius, name)
    return shape_of(radius, name)


def _parsed(radius: ArrayLike, rows: tuple[tuple[int, ...], Any], per_query: bool, ascending: bool, name: str) -> Radii:
    """Return radii of a valid shape; ``rows`` are the arguments ``queries`` and ``num`` of `as_one_radius`."""
    if isinstance(radius, Radii):
        return radius
    if per_query:
        radius = _without_padding(radius, *rows)
    if is_concrete(radius):
        numbers = _known(radius, ascending, name)
    else:
        numbers = _traced(radius, np.shape(radius), ascending, name)
    return Radii(None, numbers) if per_query else Radii(numbers, None)


def _words(shape: tuple[Any, ...]) -> str:
    return f"({', '.join(map(str, shape))}{',' if len(shape) == 1 else ''})"


def _without_padding(radius: ArrayLike, queries: tuple[int, ...], num: int | jax.Array) -> Any:
    """Return the radii of each query, set to 0 in rows from ``num`` on.

    They are unchanged if ``num`` is invalid, because another check reports that. They are also unchanged if only
    ``num`` is traced, because traced numbers lose bits.
    """
    concrete = is_concrete(radius)
    right = isinstance(num, (int, np.integer, np.ndarray, jax.Array)) and np.shape(num) in ((), queries[:-1])
    right = right and jnp.issubdtype(jnp.result_type(num), np.integer)
    if not right or (concrete and not is_concrete(num)) or (isinstance(num, int) and num == queries[-1]):
        return radius
    library: Any = np if concrete else jnp
    # Users may disable implicit promotion of dtypes and ranks; another check reports numbers above int32.
    counts = np.asarray(num) if concrete else jnp.asarray(num).astype(jnp.int32)
    counts = counts.reshape(counts.shape or (1,) * (len(queries) - 1))[..., None]
    rows = library.arange(queries[-1], dtype=np.int32).reshape((1,) * (len(queries) - 1) + (-1,))
    used = rows < counts
    used = used.reshape(used.shape + (1,) * (np.ndim(radius) - len(queries)))
    return library.where(used, radius, library.zeros_like(radius))


def _known(radius: ArrayLike, lists: bool, name: str) -> Exact:
    values = check_real(radius, name)
    if not np.all(values >= 0):
        raise ValueError(f"{name} is {shown(radius)}; radii must be at least 0, and not NaN.")
    if lists and np.any(values[..., 1:] < values[..., :-1]):
        raise ValueError(f"{name} is {shown(radius)}; the radii of a query must ascend.")
    # A radius above the range of the positions includes all particles.
    widest = np.finfo(jax.dtypes.canonicalize_dtype(np.float64))
    return exact(np.where(values > widest.max, np.inf, values), values.shape)


def _traced(radius: ArrayLike, shape: tuple[int, ...], lists: bool, name: str) -> Exact:
    numbers = exact(radius, shape)
    number = jnp.asarray(numbers.words)[..., 0]  # the other words of a traced number are 0
    faults = [comm.Fault(jnp.any(~is_length(number)), [], _BAD % name)]
    if lists:
        order = in_order(number)
        faults.append(comm.Fault(jnp.any(order[..., 1:] < order[..., :-1]), [], _NOT_ASCENDING))
    return comm.after(numbers, comm.check_all(jnp.int32(0), faults))
