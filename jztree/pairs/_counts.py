"""Counts of pairs of particles in bins of their distance."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.pytrees import pytree
from ..arguments import (
    Kind,
    check_alike,
    check_box,
    check_one_a_particle,
    check_particles,
    flat,
    known_integer,
    row_fault,
)
from ..config import RadiusConfig, TreeConfig, is_on_cpu, without_masses
from ..data import static_field
from ..jax_ext import Exact, varying_axes
from ..kernels import PairBins
from ..particles import Array, Index, Particles, check_num
from ..tree.stage import InputParticles, opened
from ..within import checked_weights
from ._bins import as_bins, exact_bins, sight_faults
from ._sets import Pairs
from ._wide_numbers import WideCounts, WideSums

# For counts by distance, and for counts in which whole leaves are seldom in one bin. Pairs of larger leaves are
# compared faster. On a two-core AMD EPYC 9004 (Zen 4), 20 bins of 1e6 uniform particles take a third less time with
# leaves of 48 than of 24, and 6 % less with 64 than with 48.
_CPU_LEAF_SIZES = 64, 128
_GPU_LEAF_SIZES = 48, 96
_BAD_REGION = "row {0} has a region%s that is not valid; regions must be at least 0 and below num_regions, %d."
_LOST = (
    "a sum of products of weights%s is outside the range of %s; choose weights nearer to 1%s, or switch on "
    "jax_enable_x64."
)


@pytree
class PairCounts:
    """Pairs in bins; see `pair_counts`. The shape ``bins`` is ``(b,)``, or ``(b, b')`` for two quantities.

    ``np.asarray`` converts each column to a NumPy array. A jackknife needs the counts without the particles of region
    ``k``: ``np.asarray(count) - np.asarray(region_count)[k]``.

    Attributes:
        count: ``bins`` `WideCounts`, the number of pairs. NumPy reads it as int64.
        weight: ``bins`` `WideSums`, the sum over pairs of the product of both weights, or None without weights. NumPy
            reads it as float64.
        region_count: ``(num_regions, *bins)``, the number of pairs with at least one particle in each region, or None
            without regions.
        region_weight: ``(num_regions, *bins)``, the sum of the products of weights over the same pairs, or None
            without regions or weights.
        separation: ``bins`` `WideSums`, the sum over pairs of the first quantity (r, s or rp) times the product of both
            weights, or None unless it was requested. Divided by ``weight``, or by ``count`` without weights, it is the
            mean separation of the pairs in a bin.
        edges: ``(b + 1,)`` `WideSums`, the edges of the first quantity. This attribute and the following ones describe
            the counts, so that estimators can refuse counts that do not fit. They are None if you construct the counts.
        edges_b: ``(b' + 1,)`` `WideSums`, the edges of the second quantity, or None without one.
        boxsize: ``(d,)`` `WideSums`, the periodic lengths, 0 for open dimensions.
        mode: ``"r"``, ``"rp_pi"`` or ``"s_mu"``; ``"theta"`` for `jztree_utils.sky.angular_pair_counts`.
        los: The axis of the line of sight, ``"midpoint"``, or None with mode ``"r"``.
        cross: Whether each pair has one particle of each of two sets.
    """

    count: WideCounts
    weight: WideSums | None = None
    region_count: WideCounts | None = None
    region_weight: WideSums | None = None
    separation: WideSums | None = None
    edges: WideSums | None = None
    edges_b: WideSums | None = None
    boxsize: WideSums | None = None
    mode: str | None = static_field(default=None)
    los: int | str | None = static_field(default=None)
    cross: bool | None = static_field(default=None)


_READ: dict[str, Any] = {name: Kind(P(-1)) for name in ("query_weights", "regions", "query_regions")} | {
    "edges": Kind(P(), lambda _, arguments: exact_bins(arguments).edges),
    "edges_b": Kind(P(), lambda _, arguments: exact_bins(arguments).edges_b),
}


@flat(P(), **_READ)
def pair_counts(
    part: Particles | Index | Array,
    edges: ArrayLike,
    *,
    queries: Particles | Array | None = None,
    boxsize: ArrayLike | None = None,
    mode: str = "r",
    edges_b: ArrayLike | None = None,
    los: int | str = -1,
    weights: Array | None = None,
    query_weights: Array | None = None,
    regions: Array | None = None,
    query_regions: Array | None = None,
    num_regions: int | None = None,
    separations: bool = False,
    cfg: RadiusConfig | None = None,
) -> PairCounts:
    """Count the pairs of particles in bins of their distance, and sum the products of their weights.

    **Pairs.** Each pair within one set counts twice, once in each order, like in
    `scipy.spatial.cKDTree.count_neighbors` of a tree with itself. A bin of rp, pi or mu that begins at 0 also holds the
    value 0. No bin of any mode holds pairs at distance 0: neither a particle with itself nor different particles at the
    same place.

    **Precision.** Float64 arithmetic on the given positions decides whether a pair is within an edge: distances by
    their squares, ``|z| <= edge`` along the line of sight, and ``z**2 <= edge**2 * s**2`` for cosines. Counts are
    therefore exact (with ``"midpoint"``, up to the rounding of ``m``), and the same integers on any number of devices.
    In 32-bit mode, JAX first rounds NumPy float64 positions to float32, as in every search; to count the original
    positions, switch on ``jax_enable_x64``, or use `jztree_utils.correlation`.
    Sums of weights and separations are computed in float64. On one CPU, they have the same bits for any number of
    threads and in every run. On several devices, or on a GPU, they may differ in the last bits. Differentiating these
    sums raises an error.

    **Cost.** If all pairs of two nodes of the hierarchy are in one bin, they are counted at once. So the cost per pair
    falls with the number of pairs. Sums of separations need every pair (15 to 30 nanoseconds per pair on one core).

    Args:
        part: The particles: a class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64; an array of positions;
            or a `jztree.Index` of either.
        edges: ``(b + 1,)`` ascending numbers from 0 on, in the unit of the positions, equal on all ranks. Bin ``i``
            holds the pairs with ``edges[i] < r <= edges[i + 1]``. The last edge may be infinite.
        queries: Another set of particles; each pair then has one particle in ``part`` and one in ``queries``. None
            means pairs within ``part``.
        boxsize: The periodic length, or one per dimension; None means open. A pair counts only at the distance of its
            nearest images, also for distances above half the box. Equal on all ranks. An index has its own box.
        mode: ``"r"`` for distances; ``"rp_pi"`` for distances across (``edges``) and along (``edges_b``) the line of
            sight; ``"s_mu"`` for distances and the cosines, from 0 to 1, of the angle to the line of sight
            (``edges_b``). The last two are for 2 and 3 dimensions.
        edges_b: ``(b' + 1,)``, the edges of pi or mu, in the same form.
        los: The axis of the line of sight; or ``"midpoint"``: from the observer at the origin to the midpoint of the
            pair, so that ``pi = |s . m| / |m|`` and ``rp = |s x m| / |m|`` with ``s`` and ``m`` the difference and the
            mean of their positions (Fisher et al. 1994, MNRAS 267, 927). The box must then be open. If ``m`` is 0, the
            entire distance is across.
        weights: ``(n,)``, the weights of ``part``. None means that every weight is 1.
        query_weights: ``(q,)``, the weights of ``queries``; only with ``queries``. None means that every weight is 1.
        regions: ``(n,)`` integers from 0 to below ``num_regions``, the jackknife region of each particle. None means no
            regions.
        query_regions: The same for ``queries``; required if both ``regions`` and ``queries`` are given.
        num_regions: The number of regions; required with ``regions``.
        separations: Whether to sum the separations of the pairs in each bin also.
        cfg: Options, equal on all ranks. None means the leaves that are fastest for pair counts: 64 particles (48 on
            GPUs), or with weights or two quantities 128 (96).

    Returns:
        The counts and sums. On several devices, every device gets the total over all devices.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or weight is NaN or
            infinite, a region is invalid, a traced ``edges`` or ``boxsize`` is invalid, or a sum of weights exceeds the
            range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.

    Examples:
        >>> pos = np.array([[0.1], [0.4], [0.95]], np.float32)
        >>> counts = jz.pair_counts(pos, [0.0, 0.25, 0.5], boxsize=1.0)
        >>> np.asarray(counts.count)
        array([2, 4])
    """
    sources, separate, box = _read_sets(part, boxsize, queries)
    bins = as_bins({"mode": mode, "edges": edges, "edges_b": edges_b, "los": los}, sources.dims)
    if cfg is None:
        every_pair = bins.mode != "r" or weights is not None or query_weights is not None or separations
        leaf_sizes = _CPU_LEAF_SIZES if is_on_cpu() else _GPU_LEAF_SIZES
        cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_sizes[every_pair]))
    cfg = checked_config(cfg, RadiusConfig)
    cfg = without_masses(cfg)
    count = _check_regions(regions, query_regions, num_regions, queries is not None)
    if separate is None and query_weights is not None:
        raise ValueError("query_weights needs queries; without queries, weights applies to both particles of a pair.")
    sources.data, faults = _columns(sources, weights, regions, count, "")
    if separate is not None:
        separate.data, query_faults = _columns(separate, query_weights, query_regions, count, " of the queries")
        faults += query_faults
    faults += sight_faults(bins, box)
    numbers, sums = Pairs(sources, separate, bins, box, count, separations, cfg, faults).counted()
    counts = _named(numbers, sums, bins, count, separations)
    counts.edges, counts.boxsize = _as_sums(bins.edges), _as_sums(box)
    counts.mode, counts.cross = mode, separate is not None
    if bins.edges_b is not None:
        counts.edges_b, counts.los = _as_sums(bins.edges_b), "midpoint" if bins.axis == sources.dims else bins.axis
    return counts


def _as_sums(numbers: Exact) -> WideSums:
    words = jnp.asarray(numbers.words)
    # The box of an index is an array of each device.
    return WideSums(comm.all_max(words) if varying_axes(words) else words)


def _read_sets(
    part: Particles | Index | ArrayLike, boxsize: ArrayLike | None, queries: Particles | ArrayLike | None
) -> tuple[InputParticles, InputParticles | None, Exact]:
    """Return both sets and the box. Raise TypeError or ValueError if they are invalid or do not match."""
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part)
    sources = InputParticles(pos, check_num(part), th=index, needs_origin=False)
    box = check_box(boxsize, sources.dims)
    if queries is None:
        return sources, None, box
    query_pos = check_particles(queries, "query positions")
    num = check_num(queries, "num of queries")
    check_alike(query_pos, pos, "the queries are", "part is")
    return sources, InputParticles(query_pos, num, name="the query positions", needs_origin=False), box


def _check_regions(regions: Any, query_regions: Any, num_regions: Any, separate: bool) -> int:
    """Return the number of regions. Raise ValueError if the arguments for regions do not match."""
    if regions is None and query_regions is None and num_regions is None:
        return 0
    if regions is None or num_regions is None or (query_regions is None) == separate:
        raise ValueError(
            "a jackknife needs regions and num_regions, and with queries also query_regions (without queries, leave "
            "out query_regions); pass every required argument, or no regions at all."
        )
    return known_integer(num_regions, "num_regions", 1)


def _columns(
    particles: InputParticles, weight: ArrayLike | None, region: ArrayLike | None, regions: int, of: str
) -> tuple[Any, list[comm.Fault]]:
    """Return the weights and regions of a set, and their possible faults.

    Args:
        particles: The set.
        weight: ``(n,)``, or None.
        region: ``(n,)`` integers, or None.
        regions: Number of regions.
        of: Name of the set in messages.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
    """
    pos, num = particles.pos, particles.num
    weight, faults = checked_weights(weight, pos, num, of)
    if region is not None:
        check_one_a_particle(region, pos, f"regions{of}", integers=True)
        numbers = jnp.asarray(region)
        # Compare in a dtype that also holds num_regions: in 8 bits, 300 becomes 44.
        wide = numbers if numbers.dtype.itemsize >= 4 else numbers.astype(jnp.int32)
        faults.append(row_fault((wide < 0) | (wide >= regions), num, _BAD_REGION % (of, regions)))
        region = numbers.astype(jnp.int32)
    return (weight, region), faults


def _named(counts: jax.Array, sums: jax.Array, bins: PairBins, regions: int, separations: bool) -> PairCounts:
    """Return counts and sums with their names. Raise on every rank if a sum exceeds the range of its dtype."""
    shape = bins.shape()
    result = PairCounts(count=WideCounts(counts[0].reshape(*shape, 2)))
    if regions:
        result.region_count = WideCounts(counts[1:].reshape(regions, *shape, 2))
    if sums.shape[0] == 0:
        return result
    is_lost = ~jnp.isfinite(sums).all()
    words = (" and separations", " or another unit of length") if separations else ("", "")
    message = _LOST % (words[0], sums.dtype, words[1])
    sums = comm.after(sums, kernels.check(jnp.int32(0), is_lost, [], message)).reshape(-1, *shape, sums.shape[-1])
    if separations:
        sums, result.separation = sums[:-1], WideSums(sums[-1])
    if sums.shape[0] > 0:
        result.weight = WideSums(sums[0])
        result.region_weight = WideSums(sums[1:]) if regions else None
    return result
