"""The number of particles within radii of queries, and the sum of their weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm
from .._options import checked_config
from ..arguments import check_in_range, flat
from ..config import RadiusConfig, without_masses
from ..particles import Array, Index, Particles
from ._search import SearchArguments, prepare_search, read_radii, read_sets
from ._weights import checked_weights


@flat()
def count_within(
    part: Particles | Index | Array,
    radius: ArrayLike | None = None,
    *,
    radii: ArrayLike | None = None,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    weights: Array | None = None,
    cfg: RadiusConfig | None = None,
) -> jax.Array:
    """Count the particles within a radius of every query, or sum their weights.

    A particle counts once, if the distance between the query and its nearest image is at most the radius. Distances are
    computed in float64 from the given positions.

    Counts do not depend on the number of devices. Sums are accumulated in float64. On several devices, and on GPUs,
    they may differ in the last bits of float64. Sums have no derivatives: if you differentiate them, an error is
    raised.

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        radius: The search radius in the unit of the positions: a number (equal on all ranks), or ``(q,)``, one per
            query. Infinity includes all particles.
        radii: ``m`` ascending radii instead of ``radius``: ``(m,)`` for all queries (equal on all ranks), or ``(q,
            m)``.
        queries: ``q`` positions of the same dtype, or a particle class. None means the particles themselves; ``q`` is
            then ``n``, and each particle counts itself.
        boxsize: The periodic length, or one per dimension; None means open. Positions outside the box are wrapped.
            Equal on all ranks. An index has its own box.
        weights: ``(n,)`` real numbers, one per particle of ``part``. If given, the function returns sums of weights
            instead of counts.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(q,)`` int32 in the order of the queries, or ``(q, m)`` for ``radii``; with ``weights``, sums in the dtype of
        the positions. Rows from ``num`` on hold no queries, and are 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or weight is NaN or
            infinite, a traced radius or ``boxsize`` is invalid, or a sum exceeds the range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> pos = np.array([[0.0], [1.0], [3.0]], np.float32)
        >>> jz.count_within(pos, 1.5)
        Array([2, 2, 1], dtype=int32)
        >>> jz.count_within(pos, radii=[0.5, 2.5], queries=pos[:1], boxsize=4.0)
        Array([[1, 3]], dtype=int32)
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    sources, searching, query_set, box = read_sets(part, boxsize, queries)
    lengths = read_radii(radius, radii, query_set)
    sources.data, faults = checked_weights(weights, sources.pos, sources.num)
    prepared = prepare_search(SearchArguments(sources, searching, lengths, box, cfg, faults))
    counts, sums = prepared.count_sources(box)
    shape = query_set.num_rows, *lengths.shape()
    if weights is None:
        return prepared.send_back(counts).reshape(shape)
    total = prepared.send_back(sums)
    out_of_range, columns = ~jnp.isfinite(total).all(axis=1), "positions and weights"
    checked = check_in_range(out_of_range, total.dtype, "the sum of weights in row {0}", "smaller weights", columns)
    return comm.after(total, checked).reshape(shape)
