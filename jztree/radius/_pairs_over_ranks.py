"""Pair counts over the ranks of a mesh.

1. Sort the particles of all ranks in z-order, cut both sets into ranges together, and give each rank a range.
2. Each rank receives the particles of other ranks that may share a bin with its own (`jztree.tree.ghosts`). For pairs
   within one set, it receives only particles of higher ranks, so that the lower rank of two counts their pairs.
3. Each rank counts the pairs within its own particles, and between them and the ghosts or the other set.
4. Counts of all ranks are added as 64-bit integers, and sums of weights in the order of the ranks.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._transform.capacity import Room
from ..config import RadiusConfig
from ..jax_ext import Exact
from ..kernels import PairBins, PairSet
from ..tree import build_in_domain, kernel_tree
from ..tree._over_ranks import Moved, Movers, sort_equally, sort_over_ranks
from ..tree._zorder import Domain, domain_of
from ..tree.ghosts import Surroundings, boxes_of, ghost_room, leaves_of, surroundings, tell_all
from ._pair_bins import reach_of
from ._wide import add_counts, add_sums, counts_of_all_ranks, sums_of_all_ranks


@dataclass
class Columns:
    """A set of particles: ``(n, d)`` positions, their number, and ``(n,)`` weights and regions, or None."""

    pos: jax.Array
    num: Any
    weight: jax.Array | None
    region: jax.Array | None


@dataclass
class Pairs:
    """The arguments. other: None for pairs within one set. faults: possible faults other than those of positions."""

    one: Columns
    other: Columns | None
    bins: PairBins
    box: Exact
    regions: int
    cfg: RadiusConfig
    faults: Sequence[comm.Fault]


def pairs_over_ranks(pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    """Return this rank's share of the counts and sums, as words (see `kernels.pair_counts`)."""
    return _within(pairs) if pairs.other is None else _between(pairs, pairs.other)


def of_all_ranks(counts: jax.Array, sums: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Add the words of counts and sums over all ranks. JAX knows that they are replicated, even on one device."""
    if not comm.get_rank_info()[2]:
        return counts, sums
    # Make the second collective depend on the data of the first, to fix their order.
    counts = counts_of_all_ranks(counts)
    return counts, sums_of_all_ranks(comm.after(sums, counts.astype(jnp.int32) & 1)) if sums.shape[0] else sums


def _within(pairs: Pairs) -> tuple[jax.Array, jax.Array]:
    domain, (num,) = domain_of([pairs.one.pos], [pairs.one.num], ["the positions"], pairs.box, pairs.faults)
    moved = sort_equally(Movers(pairs.one.pos, (pairs.one.weight, pairs.one.region), num, named=False), domain)
    own = _set_of(moved.part, moved.num, moved.data, domain, pairs)
    boxes = boxes_of(moved.part, moved.num, domain, leaves_of(own[1]))
    around = _ghosts(moved, own[1], boxes, boxes, domain, pairs, lower_only=True)
    others = _behind(around, moved, domain, pairs)
    bins, box = pairs.bins, pairs.box
    inner = kernels.pair_counts(own[0], None, bins, box, pairs.regions)
    outer = kernels.pair_counts(own[0], others, bins, box, pairs.regions)
    # Count pairs between ranks in both orders.
    return add_counts(inner[0], outer[0], outer[0]), add_sums(inner[1], add_sums(outer[1], outer[1]))


def _behind(around: Surroundings, moved: Moved, domain: Domain, pairs: Pairs) -> PairSet:
    """Return the ghosts alone, which follow the rank's own particles."""
    rows = moved.num + jnp.arange(around.room.rows, dtype=jnp.int32)
    last = around.room.rows - 1
    pos, *data = jax.tree.map(lambda column: kernels.gather_rows(column, jnp.minimum(rows, last)), around.rows)
    return _set_of(pos, around.num - moved.num, data, domain, pairs)[0]


def _between(pairs: Pairs, other: Columns) -> tuple[jax.Array, jax.Array]:
    sets = [other, pairs.one]
    names = ["the positions of part_b", "the positions"]
    domain, nums = domain_of(
        [one.pos for one in sets], [one.num for one in sets], names, pairs.box, pairs.faults, of_first=True
    )
    rooms = [Room(other.pos.shape[0] + pairs.one.pos.shape[0], "sort")] * 2
    movers = [Movers(one.pos, (one.weight, one.region), num, named=False) for one, num in zip(sets, nums, strict=True)]
    whole = domain.whole()
    sources, queries = sort_over_ranks(movers, domain, rooms, on_ranks=[domain, whole])
    own, th = _set_of(queries.part, queries.num, queries.data, whole, pairs)
    wanted = boxes_of(queries.part, queries.num, whole, leaves_of(th))
    th = build_in_domain(sources.part, sources.num, domain, pairs.cfg.tree)
    boxes = boxes_of(sources.part, sources.num, domain, leaves_of(th))
    around = _ghosts(sources, th, boxes, wanted, domain, pairs, behind=queries.num)
    pos, *data = around.rows
    others = _set_of(pos, around.num, data, domain, pairs)[0]
    return kernels.pair_counts(own, others, pairs.bins, pairs.box, pairs.regions)


def _set_of(pos: jax.Array, num: jax.Array, data: Any, domain: Domain, pairs: Pairs) -> tuple[PairSet, Any]:
    """Return z-ordered particles in the form that the kernel needs, and their hierarchy."""
    th = build_in_domain(pos, num, domain, pairs.cfg.tree)
    return PairSet(kernel_tree(pos, num, th), *data), th


def _ghosts(
    moved: Moved,
    th: Any,
    boxes: Any,
    wanted: Any,
    domain: Domain,
    pairs: Pairs,
    behind: Any = 0,
    lower_only: bool = False,
) -> Surroundings:
    """Return a rank's particles, with ghosts that may share a bin with the particles in the boxes ``wanted``."""
    pos, leaves = moved.part, leaves_of(th)
    splits, lower, upper = wanted
    radius = jnp.where(jnp.diff(splits) > 0, reach_of(pairs.bins, pos.dtype), jnp.asarray(-1, pos.dtype))
    place = ghost_room("pair_ghosts", pairs.cfg.ghost_rows, pos.shape[0])
    known = functools.partial(tell_all, pos, moved.num, domain, leaves, boxes, behind)
    lower, upper, radius = comm.after((lower, upper, radius), moved.num, behind)
    return surroundings(
        (pos, *moved.data), pos, moved.num, leaves, known, (lower, upper, radius), domain.box, place, lower_only
    )
