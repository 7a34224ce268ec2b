"""What is asked of a search, and which particles it is among."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from .._particles import shape_of_pos
from .._radii import NO_LIMIT, Radii
from .._transform.memory import check_memory
from ..config import KNNConfig
from ..jax_ext import Exact, is_concrete

_FILL = "give jztree.knn.knn max_radius=jnp.inf, which fills rows up with distance inf and row -1."
_TOO_FEW = f"k is {{1}}, but there are only {{0}} particles (num, or source_mask)%s%s; use a smaller k, or {_FILL}"
_NOTHING = f"k is {{1}}, but there are {{0}} particles (num, or source_mask)%s%s, so that nothing is near; {_FILL}"
_OTHERS = ", and none is its own neighbour (exclude_self)"


@dataclass
class Question:
    """What is asked. words: of ``result``. in_z_order: results and rows of neighbours are in z-order. sorted_already:
    the sources are given in z-order over all ranks. none_found: what to say if there is no source at all, where one
    is asked for. limit: how far queries look, in the order in which they are given. others: no source is its own
    neighbour.
    """

    k: int
    box: Exact
    words: list[str]
    reduce_func: Callable[..., Any] | None
    in_z_order: bool
    sorted_already: bool
    cfg: KNNConfig
    none_found: str | None = None
    limit: Radii = NO_LIMIT
    others: bool = False

    def too_few(self, count: jax.Array, where: str) -> comm.Fault:
        """That ``count`` sources may be fewer than ``k``. where: they are."""
        failed = count < self.k + self.others
        if self.none_found:
            return comm.Fault(failed, [], self.none_found)
        words = where, _OTHERS if self.others else ""
        code = jnp.where(failed, jnp.where(count > int(self.others), 1, 2), 0)
        return comm.Fault(code, [count, self.k], f"{_TOO_FEW % words}\n{_NOTHING % words}")


def check_number(k: int, sources: int, others: bool) -> None:
    """ValueError in words if there are fewer than ``k`` sources. others: no source is its own neighbour."""
    most, which = max(sources - others, 0), "others" if others else "particles"
    if k > most:
        less = "use a smaller k, or " if most else ""
        raise ValueError(f"k is {k}, but there are only {most} {which} to choose from; {less}{_FILL}")


def check_lists(k: int, query: Any) -> None:
    """MemoryError in words if no memory holds the distances and rows of all neighbours on a device.

    Traced queries do not raise: they may be a plan for a larger computer.
    """
    shape = shape_of_pos(query)
    if is_concrete(query) and len(shape) > 1 and k < 2**31:
        what = f"distances and rows of {k:,} neighbours (k) for {shape[-2]:,} queries"
        check_memory(8 * k * shape[-2], what, "use a smaller k, or search for fewer queries at a time.")


def check_mask(mask: Any, n: int) -> None:
    """TypeError or ValueError in words if ``mask`` does not say of each of ``n`` particles whether it is a source."""
    if mask is None:
        return
    if getattr(mask, "dtype", None) != np.bool_:
        kind = mask.dtype if hasattr(mask, "dtype") else type(mask).__name__
        raise TypeError(f"source_mask must be an array of bool, one a particle, not {kind}.")
    if np.shape(mask) != (n,):
        raise ValueError(f"source_mask must have one bool a particle, {(n,)}; its shape is {np.shape(mask)}.")


def as_marks(mask: Any) -> jax.Array:
    """``mask`` as kernels move it."""
    return jnp.asarray(mask).astype(jnp.int32)


def count_marked(mask: Any, num: Any) -> jax.Array:
    """How many of the first ``num`` particles are marked, int32."""
    return jnp.sum((as_marks(mask) != 0) & (jnp.arange(mask.shape[0], dtype=jnp.int32) < num), dtype=jnp.int32)


def marked_rows(mask: Any, num: Any) -> tuple[jax.Array, jax.Array]:
    """Rows of the first ``num`` particles that are marked, in order, then all others, ``(n,)`` int32; and how many are.

    mask: as of `as_marks`, or a mask.
    """
    rows = jnp.arange(mask.shape[0], dtype=jnp.int32)
    kind = jnp.where((jnp.asarray(mask) != 0) & (rows < num), 0, 1)
    order, count = kernels.group_by_rank(kind.astype(jnp.int32), rows.shape[0], 2)
    return order, count[0]


def without_own(is_own: jax.Array, columns: Any) -> Any:
    """``k`` of ``k + 1`` neighbours ``(q, k + 1)``, without the one that the query itself is, or else the last.

    columns: a pytree of arrays ``(q, k + 1)``. If the query is none of them, either all are nearer or come before it,
    or it is no source.
    """
    behind = jnp.cumsum(is_own, axis=1)[:, :-1] > 0
    return jax.tree.map(lambda column: jnp.where(behind, column[:, 1:], column[:, :-1]), columns)
