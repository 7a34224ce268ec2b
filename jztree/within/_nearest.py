"""The nearest particles within a radius, up to a fixed number per query, and the number within it."""

from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .._transform.memory import check_memory
from ..arguments import SPEC, as_one_radius, exact_arguments_of_one, known_integer
from ..config import KNNConfig, RadiusConfig, checked_config
from ..data import with_computed
from ..jax_ext import with_twins
from ..knn import knn
from ..particles import Particles
from ..tree import TreeHierarchy
from ._counts import count_within
from ._search import check_both


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class NearestWithin:
    """The nearest particles within a radius of ``q`` queries; see `nearest_within`.

    Attributes:
        count: ``(q,)`` int32, the number of particles within the radius, which may exceed ``max_neighbours``.
        index: ``(q, max_neighbours)`` int32, the rows of the nearest; -1 after the last.
        distance: ``(q, max_neighbours)``, in the dtype of the positions; infinite after the last.
    """

    count: jax.Array
    index: jax.Array
    distance: jax.Array

    def is_cut(self) -> jax.Array:
        """Return ``(q,)`` bool: True for queries with more than ``max_neighbours`` neighbours."""
        return self.count > self.index.shape[-1]


@with_twins(
    {"part": P(-1), "radius": SPEC, "boxsize": P(), "th": P(-1), "part_query": P(-1)},
    P(-1),
    prepare=exact_arguments_of_one,
)
@with_computed
def nearest_within(
    part: Particles | ArrayLike,
    radius: ArrayLike,
    max_neighbours: int,
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    part_query: Particles | ArrayLike | None = None,
    cfg: RadiusConfig | None = None,
) -> NearestWithin:
    """Return up to ``max_neighbours`` nearest particles within a radius of every query, and the number within it.

    The shapes of the arrays do not depend on the positions. Distances have derivatives with respect to positions and
    box.

    Args:
        part: See `count_within`.
        radius: In the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per query.
        max_neighbours: The length of each row, from 1 to 2**31 - 1; it must be known when the function is traced.
        boxsize: See `count_within`.
        th: See `count_within`.
        part_query: See `count_within`.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The same counts as `count_within`, and the same neighbours as `jztree.knn.knn` with ``max_radius=radius``. Rows
        are rows of ``part``; on several devices, rows of the joined particles of the devices. Without ``part_query``,
        each particle is its own first neighbour. `NearestWithin.is_cut` marks queries with more neighbours than a row
        can hold.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device; see `count_within`.
        CapacityError: See `count_within`.
    """
    cfg = checked_config(cfg, RadiusConfig)
    _, _, query_set = check_both(part, part_query)
    query = query_set.pos
    radii: Any = as_one_radius(radius, (query_set.num_rows,), query_set.num)
    max_neighbours = known_integer(max_neighbours, "max_neighbours")
    if max_neighbours < 1:
        raise ValueError(f"max_neighbours is {max_neighbours}; it must be at least 1 (count_within counts alone).")
    if max_neighbours >= 2**31:
        raise ValueError(
            f"max_neighbours is {max_neighbours}; it must be below 2**31. Use a smaller number, or "
            "neighbours_within, whose lists have the length that they need."
        )
    needed = query.shape[0] * max_neighbours * (4 + query.dtype.itemsize)
    what = f"lists of {max_neighbours:,} neighbours (max_neighbours) for {query.shape[0]:,} queries"
    check_memory(needed, what, "use a smaller number, or neighbours_within, whose lists have just enough entries.")
    count = count_within(part, radii, boxsize, th, part_query, cfg=cfg)
    search = KNNConfig(tree=cfg.tree, ghost_rows=cfg.ghost_rows)
    distance, index = knn(part, max_neighbours, boxsize, th, part_query, cfg=search, max_radius=radii)
    return NearestWithin(count=count, index=index, distance=distance)
