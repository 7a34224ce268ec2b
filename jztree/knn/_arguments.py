"""The arguments of a search, and the choice of its sources."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._transform.memory import check_memory
from ..arguments import NO_LIMIT, Radii
from ..config import KNNConfig
from ..data import get_num
from ..jax_ext import Exact, is_concrete
from ..particles import get_num_total, num_rows, shape_of_pos

_FILL = (
    "pass allow_missing=True to jztree.nearest or jztree.knn.knn, which fill missing neighbours with distance inf "
    "and row -1."
)
_TOO_FEW = f"k is {{1}}, but there are only {{0}} particles (num, or source_mask)%s%s; use a smaller k, or {_FILL}"
_NOTHING = f"k is {{1}}, but there are {{0}} particles (num, or source_mask)%s%s, so no neighbours; {_FILL}"
_TOO_MANY = "result 'globalidx' supports less than 2**31 particles over all devices, but there are more; use 'rankidx'."
_OTHERS = ", and none is its own neighbour (exclude_self)"


@dataclass(frozen=True)
class SearchArguments:
    """The arguments of a search.

    Attributes:
        part: This rank's particles.
        queries: This rank's queries. None means ``part``.
        k: Number of neighbours.
        box: Periodic box.
        words: Words of ``result``.
        reduce_func: See `knn`.
        in_z_order: Whether results and rows of neighbours are in z-order.
        cfg: Options.
        th: Hierarchy over ``part``, which is then in z-order over all ranks; or an index of ``part``; or None.
        mask: ``(n,)`` bool, the sources among ``part``. None means all.
        limit: Search radii, in input order.
        exclude_self: Whether to exclude each particle from its own neighbours.
    """

    part: Any
    queries: Any
    k: int
    box: Exact
    words: list[str]
    reduce_func: Callable[..., Any] | None
    in_z_order: bool
    cfg: KNNConfig
    th: Any = None
    mask: Any = None
    limit: Radii = NO_LIMIT
    exclude_self: bool = False

    @property
    def searching(self) -> Any:
        """The particles that search, never None."""
        return self.part if self.queries is None else self.queries

    def too_few_sources(self, count: jax.Array, where: str) -> comm.Fault:
        """Return the fault that the number of sources may be below ``k``.

        Args:
            count: Number of sources, int32.
            where: Their place in the message.
        """
        failed = count < self.k + self.exclude_self
        words = where, _OTHERS if self.exclude_self else ""
        code = jnp.where(failed, jnp.where(count > int(self.exclude_self), 1, 2), 0)
        return comm.Fault(code, [count, self.k], f"{_TOO_FEW % words}\n{_NOTHING % words}")


def faults_of_number(args: SearchArguments) -> list[comm.Fault]:
    """Return the fault that there are too few sources on one device, if `check_k` cannot exclude it."""
    num, mask = get_num(args.part), args.mask
    if args.limit.given() or (is_concrete(num) and mask is None):
        return []
    return [args.too_few_sources(kernels.as_num(num if mask is None else count_marked(mask, num)), "")]


def checked_number(args: SearchArguments) -> jax.Array:
    """Return ``num``. Raise on all ranks if there are too few sources, or too many particles to number."""
    num = kernels.as_num(get_num(args.part))
    # The check of the positions reports an invalid ``num``.
    total = comm.wide_sum(jnp.clip(num, 0, num_rows(args.part)))
    if not args.limit.given():
        sources = total
        if args.mask is not None:
            num = comm.after(num, total.low)
            sources = comm.wide_sum(count_marked(args.mask, num))
        num = kernels.check(num, *args.too_few_sources(sources.clipped(), " on all devices"))
    if "globalidx" not in args.words:
        return num
    if (get_num_total(args.part) or 0) >= 2**31:
        raise ValueError(_TOO_MANY)
    return kernels.check(num, total.exceeds_int32(), [], _TOO_MANY)


def check_k(k: int, sources: int, exclude_self: bool) -> None:
    """Raise ValueError if there are fewer than ``k`` sources.

    Args:
        k: Number of neighbours.
        sources: Number of sources.
        exclude_self: Whether to exclude each particle from its own neighbours.
    """
    most, which = max(sources - exclude_self, 0), "others" if exclude_self else "particles"
    if k > most:
        less = "use a smaller k, or " if most else ""
        raise ValueError(f"k is {k}, but there are only {most} {which} to choose from; {less}{_FILL}")


def check_result_memory(k: int, query: Any) -> None:
    """Raise MemoryError if no memory holds the distances and rows of all neighbours on a device.

    Traced queries do not raise: they may be a plan for a larger computer.
    """
    shape = shape_of_pos(query)
    if is_concrete(query) and len(shape) > 1 and k < 2**31:
        what = f"distances and rows of {k:,} neighbours (k) for {shape[-2]:,} queries"
        check_memory(8 * k * shape[-2], what, "use a smaller k, or search for fewer queries at a time.")


def check_mask(mask: ArrayLike | None, n: int) -> None:
    """Raise TypeError or ValueError if ``mask`` is not an array of ``n`` bools that marks the sources."""
    if mask is None:
        return
    if getattr(mask, "dtype", None) != np.bool_:
        kind = getattr(mask, "dtype", type(mask).__name__)
        raise TypeError(f"source_mask must be an array of bool, one per particle, not {kind}.")
    if np.shape(mask) != (n,):
        raise ValueError(f"source_mask must have one bool per particle, shape {(n,)}; its shape is {np.shape(mask)}.")


def mask_as_int32(mask: ArrayLike) -> jax.Array:
    """Return ``mask`` in a dtype that kernels can move."""
    return jnp.asarray(mask).astype(jnp.int32)


def count_marked(mask: jax.Array, num: int | jax.Array) -> jax.Array:
    """Return the number of marked particles among the first ``num``, int32."""
    return jnp.sum((mask_as_int32(mask) != 0) & (jnp.arange(mask.shape[0], dtype=jnp.int32) < num), dtype=jnp.int32)


def rows_by_mask(mask: jax.Array, num: int | jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sort rows by a mask.

    Args:
        mask: ``(n,)``, a mask, or the result of `mask_as_int32`.
        num: Number of rows that hold particles.

    Returns:
        The marked rows among the first ``num``, in order, then all other rows, ``(n,)`` int32; and the number of marked
        rows.
    """
    order, count = kernels.group_by_rank(_is_left_out(mask, num), mask.shape[0], 2)
    return order, count[0]


@functools.partial(jax.jit, inline=True)
def _is_left_out(mask: jax.Array, num: int | jax.Array) -> jax.Array:
    """Return 0 for the marked rows among the first ``num``, 1 for others, ``(n,)`` int32."""
    rows = jnp.arange(mask.shape[0], dtype=jnp.int32)
    return jnp.where(mask.astype(bool) & (rows < num), 0, 1).astype(jnp.int32)


def drop_self(is_own: jax.Array, columns: Any) -> Any:
    """Remove the query itself from ``k + 1`` neighbours, or the last neighbour if the query is not among them.

    If the query is not among its neighbours, then either all neighbours are nearer or precede it, or it is not a
    source.

    Args:
        is_own: ``(q, k + 1)`` bool, whether the neighbour is the query itself.
        columns: A pytree of arrays ``(q, k + 1)``.

    Returns:
        A pytree of arrays ``(q, k)``.
    """
    after_own = jnp.cumsum(is_own, axis=1)[:, :-1] > 0
    return jax.tree.map(lambda column: jnp.where(after_own, column[:, 1:], column[:, :-1]), columns)
