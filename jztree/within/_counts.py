"""The number of particles within radii of queries, and the sum of their weights."""

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import SPEC, as_radii, check_box, exact_arguments, first_row
from ..config import RadiusConfig, checked_config, without_masses
from ..data import with_computed
from ..jax_ext import with_twins
from ..particles import Particles
from ..tree import TreeHierarchy, check_hierarchy
from ._search import SearchArguments, check_both, prepare_search
from ._weights import checked_weights

_LOST = (
    "the sum of weights in row {0} is outside the range of %s; choose smaller weights, or switch on jax_enable_x64 and "
    "give positions and weights in float64."
)


@with_twins(
    {"part": P(-1), "radius": SPEC, "boxsize": P(), "th": P(-1), "part_query": P(-1), "weight": P(-1)},
    P(-1),
    prepare=exact_arguments,
)
@with_computed
def count_within(
    part: Particles | ArrayLike,
    radius: ArrayLike,
    boxsize: ArrayLike | None = None,
    th: TreeHierarchy | None = None,
    part_query: Particles | ArrayLike | None = None,
    weight: ArrayLike | None = None,
    cfg: RadiusConfig | None = None,
) -> jax.Array:
    """Count the particles within a radius of every query, or sum their weights.

    A particle counts once, if the distance between the query and its nearest image is at most the radius. Distances are
    computed in float64 from the given positions.

    Counts do not depend on the number of devices. Sums are accumulated in float64. On several devices, and on GPUs,
    they may differ in the last bits of float64. Sums have no derivatives: if you differentiate them, an error is
    raised.

    Args:
        part: A particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions.
        radius: In the unit of the positions: a number; ``(q,)``, one per query; or ``m`` ascending radii, ``(m,)`` for
            all queries or ``(q, m)``. An array with as many entries as queries means one radius per query. Use
            ``(1, m)`` for radii that always apply to all queries. Infinity includes all particles. Radii for all
            queries must be equal on all ranks.
        boxsize: The periodic length, or one per dimension; 0 or None means open. Positions outside the box are wrapped.
            Equal on all ranks.
        th: A hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``. ``part`` must then be
            the z-ordered particles that the function returned.
        part_query: ``q`` positions of the same dtype, or a particle class. None means the particles themselves; ``q``
            is then ``n``, and each particle counts itself.
        weight: ``(n,)`` real numbers, one per particle of ``part``. If given, the function returns sums of weights
            instead of counts.
        cfg: Options, equal on all ranks. None means the defaults.

    Returns:
        ``(q,)`` int32 in the order of the queries, or ``(q, m)``; with ``weight``, sums in the dtype of the positions.
        Rows from ``num`` on hold no queries, and are 0.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or weight is NaN or
            infinite, a traced ``radius`` or ``boxsize`` is invalid, ``th`` belongs to other particles, or a sum exceeds
            the range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    check_hierarchy(th)
    sources, queries, query_set = check_both(part, part_query, th)
    box = check_box(boxsize, sources.dims)
    radii = as_radii(radius, (query_set.num_rows,), query_set.num)
    sources.data, faults = checked_weights(weight, sources.pos, sources.num)
    prepared = prepare_search(SearchArguments(sources, queries, radii, box, cfg, faults))
    found = kernels.count_within(
        prepared.sources,
        prepared.columns,
        prepared.queries,
        prepared.rows,
        prepared.radii.words(),
        radii.per_query(),
        box,
    )
    shape = query_set.num_rows, *radii.shape()
    if weight is None:
        return prepared.send_back(found[0]).reshape(shape)
    total = prepared.send_back(found[1])
    row = first_row(~jnp.isfinite(total).all(axis=1))
    return comm.after(total, comm.check(0, row >= 0, [row], _LOST % total.dtype)).reshape(shape)
