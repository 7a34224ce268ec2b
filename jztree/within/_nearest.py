"""The nearest particles within a radius, up to a fixed number per query, and the number within it."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from numpy.typing import ArrayLike

from .._options import checked_config
from .._transform.memory import check_memory
from ..arguments import as_one_radius, flat, known_integer
from ..config import KNNConfig, RadiusConfig
from ..knn import nearest
from ..particles import Array, Index, Particles
from ._counts import count_within
from ._search import read_sets


class NearestWithin(NamedTuple):
    """The nearest particles within a radius of ``q`` queries; see `nearest_within`.

    Attributes:
        distance: ``(q, max_neighbours)``, in the dtype of the positions; infinite after the last.
        index: ``(q, max_neighbours)`` int32, the rows of the nearest; -1 after the last.
        count: ``(q,)`` int32, the number of particles within the radius, which may exceed ``max_neighbours``.
    """

    distance: jax.Array
    index: jax.Array  # type: ignore[assignment]  # the name is also a method of tuples
    count: jax.Array  # type: ignore[assignment]

    def is_cut(self) -> jax.Array:
        """Return ``(q,)`` bool: True for queries with more than ``max_neighbours`` neighbours."""
        return self.count > self.index.shape[-1]


@flat()
def nearest_within(
    part: Particles | Index | Array,
    radius: ArrayLike,
    max_neighbours: int,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    cfg: RadiusConfig | None = None,
) -> NearestWithin:
    """Return up to ``max_neighbours`` nearest particles within a radius of every query, and the number within it.

    The shapes of the arrays do not depend on the positions. Distances have derivatives with respect to positions and
    box.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        radius: The search radius in the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per
            query. Infinity includes all particles.
        max_neighbours: The length of each row, from 1 to 2**31 - 1; it must be known when the function is traced.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves; ``q`` is
            then ``n``, and each particle finds itself.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        The same counts as `count_within`, and the same neighbours as `jztree.knn.nearest` with ``max_radius=radius``.
        Rows are rows of ``part``; on several devices, rows of the joined particles of the devices. Without ``queries``,
        each particle is its own first neighbour. `NearestWithin.is_cut` marks queries with more neighbours than a row
        can hold.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position is NaN or infinite, or a
            traced ``radius`` or ``boxsize`` is invalid.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> neighbours = jz.nearest_within(pos, 2.5, 2)
        >>> neighbours.index
        Array([[0, 1],
               [1, 0],
               [2, 1]], dtype=int32)
        >>> neighbours.count
        Array([2, 3, 2], dtype=int32)
    """
    cfg = checked_config(cfg, RadiusConfig)
    _, _, query_set, _ = read_sets(part, boxsize, queries)
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
    content = f"lists of {max_neighbours:,} neighbours (max_neighbours) for {query.shape[0]:,} queries"
    check_memory(needed, content, "use a smaller number, or neighbours_within, whose lists have just enough entries.")
    count = count_within(part, radii, queries=queries, boxsize=boxsize, cfg=cfg)
    search = KNNConfig(tree=cfg.tree, ghost_rows=cfg.ghost_rows)
    options = {"queries": queries, "boxsize": boxsize, "max_radius": radii}
    distance, index = nearest(part, max_neighbours, **options, cfg=search)
    return NearestWithin(distance, index, count)
