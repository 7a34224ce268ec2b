"""The arguments of a search, and the choice of its sources."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm, kernels
from .._transform.memory import check_memory
from ..arguments import NO_LIMIT, Radii
from ..config import KNNConfig
from ..jax_ext import Exact, is_concrete
from ..particles import shape_of_pos

_FILL = "pass max_radius=jnp.inf to jztree.knn.knn, which fills missing neighbours with distance inf and row -1."
_TOO_FEW = f"k is {{1}}, but there are only {{0}} particles (num, or source_mask)%s%s; use a smaller k, or {_FILL}"
_NOTHING = f"k is {{1}}, but there are {{0}} particles (num, or source_mask)%s%s, so no neighbours; {_FILL}"
_OTHERS = ", and none is its own neighbour (exclude_self)"


@dataclass
class Question:
    """The arguments of a search.

    words: the words of ``result``. in_z_order: results and rows of neighbours are in z-order. sorted_already: the
    sources are in z-order over all ranks on input. none_found: the message for a search that needs one source and has
    none. limit: the search radii, in input order. others: no source is its own neighbour.
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
        """Return the fault that ``count`` sources may be fewer than ``k``. where: the place named in the message."""
        failed = count < self.k + self.others
        if self.none_found:
            return comm.Fault(failed, [], self.none_found)
        words = where, _OTHERS if self.others else ""
        code = jnp.where(failed, jnp.where(count > int(self.others), 1, 2), 0)
        return comm.Fault(code, [count, self.k], f"{_TOO_FEW % words}\n{_NOTHING % words}")


def check_number(k: int, sources: int, others: bool) -> None:
    """Raise ValueError if there are fewer than ``k`` sources. others: no source is its own neighbour."""
    most, which = max(sources - others, 0), "others" if others else "particles"
    if k > most:
        less = "use a smaller k, or " if most else ""
        raise ValueError(f"k is {k}, but there are only {most} {which} to choose from; {less}{_FILL}")


def check_lists(k: int, query: Any) -> None:
    """Raise MemoryError if no memory holds the distances and rows of all neighbours on a device.

    Traced queries do not raise: they may be a plan for a larger computer.
    """
    shape = shape_of_pos(query)
    if is_concrete(query) and len(shape) > 1 and k < 2**31:
        what = f"distances and rows of {k:,} neighbours (k) for {shape[-2]:,} queries"
        check_memory(8 * k * shape[-2], what, "use a smaller k, or search for fewer queries at a time.")


def check_mask(mask: Any, n: int) -> None:
    """Raise TypeError or ValueError if ``mask`` is not an array of ``n`` bools that marks the sources."""
    if mask is None:
        return
    if getattr(mask, "dtype", None) != np.bool_:
        kind = mask.dtype if hasattr(mask, "dtype") else type(mask).__name__
        raise TypeError(f"source_mask must be an array of bool, one per particle, not {kind}.")
    if np.shape(mask) != (n,):
        raise ValueError(f"source_mask must have one bool per particle, shape {(n,)}; its shape is {np.shape(mask)}.")


def as_marks(mask: Any) -> jax.Array:
    """Return ``mask`` in the dtype that kernels can move."""
    return jnp.asarray(mask).astype(jnp.int32)


def count_marked(mask: Any, num: Any) -> jax.Array:
    """Return the number of marked particles among the first ``num``, int32."""
    return jnp.sum((as_marks(mask) != 0) & (jnp.arange(mask.shape[0], dtype=jnp.int32) < num), dtype=jnp.int32)


def marked_rows(mask: Any, num: Any) -> tuple[jax.Array, jax.Array]:
    """Return the marked rows of the first ``num``, in order, then all other rows, ``(n,)`` int32; and the marked count.

    mask: a mask, or the result of `as_marks`.
    """
    rows = jnp.arange(mask.shape[0], dtype=jnp.int32)
    kind = jnp.where((jnp.asarray(mask) != 0) & (rows < num), 0, 1)
    order, count = kernels.group_by_rank(kind.astype(jnp.int32), rows.shape[0], 2)
    return order, count[0]


def without_own(is_own: jax.Array, columns: Any) -> Any:
    """Remove the query itself from ``k + 1`` neighbours ``(q, k + 1)``, or the last one if the query is not among them.

    columns: a pytree of arrays ``(q, k + 1)``. If the query is not among its neighbours, either all of them are nearer
    or precede it, or it is not a source.
    """
    behind = jnp.cumsum(is_own, axis=1)[:, :-1] > 0
    return jax.tree.map(lambda column: jnp.where(behind, column[:, 1:], column[:, :-1]), columns)
