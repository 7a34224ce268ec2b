"""How many particles are within radii of others, and how much they weigh."""

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._checks import check_box, first_row
from .._radii import SPEC, as_radii, exact_arguments
from ..config import RadiusConfig, checked_config, without_masses
from ..data import get_num, with_computed
from ..jax_ext import with_twins
from ..tree import TreeHierarchy, check_hierarchy
from ._search import Asked, check_both, make_ready
from ._weights import checked_weights

__all__ = ["count_within"]

_LOST = (
    "the sum of weights in row {0} is beyond the range of %s; choose smaller weights, or switch on jax_enable_x64 and "
    "give positions and weights in float64."
)


@with_twins(
    {"part": P(-1), "radius": SPEC, "boxsize": P(), "th": P(-1), "part_query": P(-1), "weight": P(-1)},
    P(-1),
    prepare=exact_arguments,
)
@with_computed
def count_within(
    part: Any,
    radius: Any,
    boxsize: Any = None,
    th: TreeHierarchy | None = None,
    part_query: Any = None,
    weight: Any = None,
    cfg: RadiusConfig | None = None,
) -> jax.Array:
    """How many particles are within a radius of every query, or how much they weigh together.

    part: a particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions.
    radius: in the unit of the positions: a number; ``(q,)``, one a query; or ``m`` ascending ones, ``(m,)`` for all
        queries or ``(q, m)``. An array as long as there are queries is one a query; ``(1, m)`` is always for all.
        Infinite counts everything.
    boxsize: periodic length, or one a dimension; 0 or None is open. Positions outside the box are wrapped.
    th: a hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``; ``part`` is then the
        particles in z-order that it returned.
    part_query: ``q`` positions of the same dtype, or a particle class; None: the particles themselves (``q`` is ``n``),
        each of which counts itself.
    weight: ``(n,)`` real numbers, one a particle of ``part``, to be summed in place of counted.

    Returns ``(q,)`` int32 in the order of the queries, or ``(q, m)``; with ``weight``, sums in the dtype of the
    positions. Rows from ``num`` on are 0, whatever their radii. A particle is counted once, by its nearest image, if
    its distance in float64 from the positions as given is at most the radius.

    Counts do not depend on the number of devices. Sums are float64 inside; over several devices, and on GPUs, they may
    differ in the last bits of that. Differentiating by what sums are made of is an error.

    Raises TypeError or ValueError for wrong arguments, and an error at run time, on every device, if a position or
    weight is NaN or infinite, a traced ``radius`` or ``boxsize`` is wrong, ``th`` belongs to other particles, or a sum
    is beyond the range of its dtype.
    """
    cfg = without_masses(checked_config(cfg, RadiusConfig))
    check_hierarchy(th)
    pos, query = check_both(part, part_query)
    box = check_box(boxsize, pos.shape[1])
    radii = as_radii(radius, query.shape[:1], get_num(part if part_query is None else part_query))
    weights, faults = checked_weights(weight, pos, get_num(part))
    ready = make_ready(Asked(part, part_query, weights, radii, box, th, cfg, faults))
    found = kernels.count_within(
        ready.sources, ready.columns, ready.queries, ready.rows, ready.radii.words(), radii.per_query(), box
    )
    shape = query.shape[0], *radii.shape()
    if weight is None:
        return ready.sent_home(found[0]).reshape(shape)
    total = ready.sent_home(found[1])
    row = first_row(~jnp.isfinite(total).all(axis=1))
    return comm.after(total, comm.check(0, row >= 0, [row], _LOST % total.dtype)).reshape(shape)
