"""What is asked of a search, and which particles it is among."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from .. import kernels
from .._radii import NO_LIMIT, Radii
from ..config import KNNConfig
from ..jax_ext import Exact

_TOO_FEW = (
    "{1} neighbours were asked for (k), but there are only {0} particles (num, or source_mask)%s%s; use a smaller k."
)
_OTHERS = ", each of which is none of its own (exclude_self)"


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

    def too_few(self, where: str) -> str:
        """What to say if there are fewer than ``k`` sources: {0} of {1}."""
        return self.none_found or _TOO_FEW % (where, _OTHERS if self.others else "")


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
