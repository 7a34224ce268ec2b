"""Particles of other types that join the group of their nearest primary particle, as gas and stars do in Gadget.

Groups are found among the primary particles alone, so that what is denser by nature (gas that cools, stars) does not
make groups of its own (Dolag et al. 2009, MNRAS 399, 497). Over ranks, an attached particle travels to the rank that
holds its nearest primary, and comes behind the primaries there. The first particle of its group is then before it, on
that rank or a lower one, which is all that `jztree.grouping` asks of the order of particles.
"""

import dataclasses
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from . import comm, kernels
from .capacity import room
from .config import FofConfig, KNNConfig
from .data import Label, get_num, get_pos, replace_num
from .jax_ext import Exact
from .knn import knn

__all__ = ["attach", "attach_over_ranks", "check_attached"]


@jax.tree_util.register_dataclass
@dataclass
class _Labelled:
    """Primary particles to be searched, with the group of each."""

    pos: Any
    num: Any
    irank: Any
    igroup: Any


def check_attached(part: Any, attached: Any) -> None:
    """ValueError or TypeError in words if ``attached`` cannot be put together with ``part``."""
    if jax.tree.structure(_uncounted(part)) != jax.tree.structure(_uncounted(attached)):
        raise TypeError(
            "part and attached are put together, so they must be of one class with the same properties: one has "
            f"{_properties(part)}, the other {_properties(attached)}."
        )
    n, m = get_pos(part).shape[0], get_pos(attached).shape[0]
    for mine, other in zip(jax.tree.leaves(_uncounted(part)), jax.tree.leaves(_uncounted(attached)), strict=True):
        if _row_shape(mine, n) != _row_shape(other, m):
            raise ValueError(
                "part and attached are put together, so their properties must be alike, but one has a property of "
                f"shape {np.shape(mine)} for {n} particles and the other of shape {np.shape(other)} for {m}."
            )


def attach(partz: Any, label: jax.Array, attached: Any, box: Exact, cfg: FofConfig) -> tuple[Any, jax.Array]:
    """Put attached particles behind primary ones, with the label of the nearest.

    partz: primary particles in the order that ``label``, ``(n,)`` int32 rows, is about. Returns both kinds as one
    class of ``n + m`` rows with ``num`` set, and their labels.
    """
    near = knn(partz, 1, box, part_query=attached, result="globalidx", cfg=KNNConfig(tree=cfg.tree))[:, 0]
    n, m = get_pos(partz).shape[0], get_pos(attached).shape[0]
    theirs = kernels.gather_rows(label, jnp.clip(near, 0, n - 1))
    both, order, num = _put_together(partz, get_num(partz), attached, get_num(attached))
    rows = jnp.arange(n + m, dtype=jnp.int32)
    joined = kernels.gather_rows(jnp.concatenate([label, theirs]), order)
    return both, jnp.where(rows < num, joined, rows)


def attach_over_ranks(
    partz: Any, num: jax.Array, label: Label, attached: Any, box: Exact, cfg: FofConfig
) -> tuple[Any, jax.Array, Label]:
    """`attach` for the particles of all ranks: also ``num`` of this rank's particles of both kinds.

    partz: this rank's range of the z-order of all primary particles. Raises, on every rank, if more attached particles
    come to a rank than it has room for.
    """
    places = _Labelled(get_pos(partz), num, label.irank, label.igroup)
    search = KNNConfig(tree=cfg.tree, ghost_rows=cfg.ghost_rows)
    near, irank, igroup = knn(places, 1, box, part_query=attached, result="rankidx_irank_igroup", cfg=search)
    m = get_pos(attached).shape[0]
    # Many may have their nearest primary on one rank, as where all gas is in one halo.
    place = room("attached_rows", cfg.attached_rows, m + m // 4, m * comm.num_ranks())
    found = jnp.stack([irank[:, 0], igroup[:, 0]], axis=-1)
    here, num_here, _ = comm.exchange_by_rank(
        (_in_rows(replace_num(attached, None), m), found),
        near.rank[:, 0],
        get_num(attached),
        place,
        what="particles attached to its groups",
        advice="set attached_rows in the configuration to that or more.",
        name="attached",
    )
    arrived = replace_num(here[0], num_here)
    both, order, total = _put_together(partz, num, arrived, num_here)
    joined = jnp.concatenate([jnp.stack([label.irank, label.igroup], axis=-1), here[1]])
    joined = kernels.gather_rows(joined, order)
    return both, total, Label(joined[:, 0], joined[:, 1])


def _put_together(part: Any, num: Any, other: Any, num_other: Any) -> tuple[Any, jax.Array, jax.Array]:
    """Particles of two classes alike as one, padding last; the order of rows that this took, and their number."""
    n, m = get_pos(part).shape[0], get_pos(other).shape[0]
    first, second = kernels.as_num(num), kernels.as_num(num_other)
    rows = jnp.arange(n + m, dtype=jnp.int32)
    behind = jnp.where(rows < first + second, rows - first + n, jnp.where(rows - second < n, rows - second, rows))
    order = jnp.where(rows < first, rows, behind)

    def join(mine: Any, theirs: Any) -> jax.Array:
        return kernels.gather_rows(jnp.concatenate([mine, theirs]), order)

    both = jax.tree.map(join, _in_rows(_uncounted(part), n), _in_rows(_uncounted(other), m))
    return _counted(both, first + second, part, other), order, first + second


def _uncounted(part: Any) -> Any:
    """``part`` without its counts, which may be given for one class and not for the other."""
    part = replace_num(part, None)
    return dataclasses.replace(part, num_total=None) if hasattr(part, "num_total") else part


def _counted(part: Any, num: jax.Array, first: Any, second: Any) -> Any:
    """``part`` with the counts of what it was made of."""
    totals = [getattr(given, "num_total", None) for given in (first, second)]
    if None not in totals:
        part = dataclasses.replace(part, num_total=sum(totals))
    return replace_num(part, num)


def _row_shape(leaf: Any, n: int) -> tuple[int, ...]:
    """The shape of a property of one particle, whether each has its own or all share it."""
    return np.shape(leaf)[1:] if np.ndim(leaf) > 0 and np.shape(leaf)[0] == n else np.shape(leaf)


def _in_rows(part: Any, n: int) -> Any:
    """``part`` with a row a particle of every property, those that all share repeated."""
    return jax.tree.map(lambda leaf: jnp.broadcast_to(jnp.asarray(leaf), (n, *_row_shape(leaf, n))), part)


def _properties(part: Any) -> str:
    paths, _ = jax.tree_util.tree_flatten_with_path(_uncounted(part))
    return ", ".join(jax.tree_util.keystr(path).lstrip(".") for path, _ in paths) or "positions alone"
