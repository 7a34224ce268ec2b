"""Counts of pairs of particles in bins of their distance."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import check_alike, check_box, check_one_a_particle, check_particles, row_fault
from ..config import RadiusConfig, TreeConfig, checked_config, is_on_cpu, without_masses
from ..data import static_field, with_computed
from ..jax_ext import Exact, with_twins
from ..kernels import PairBins
from ..particles import Particles, check_num
from ..tree import TreeHierarchy, check_hierarchy
from ..tree.stage import InputParticles
from ..within import checked_weights
from ._bins import as_bins, exact_arguments, sight_faults
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


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
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
        region_weight: ``(num_regions, *bins)``, the sum of the products of weights of these pairs, or None without
            regions or weights.
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


_SPECS = {
    "part": P(-1),
    "edges": P(),
    "boxsize": P(),
    "part_b": P(-1),
    "edges_b": P(),
    "weight": P(-1),
    "weight_b": P(-1),
    "region": P(-1),
    "region_b": P(-1),
    "th": P(-1),
}  # the other arguments are static


@with_twins(_SPECS, P(), prepare=exact_arguments)
@with_computed
def pair_counts(
    part: Particles | ArrayLike,
    edges: ArrayLike,
    boxsize: ArrayLike | None = None,
    part_b: Particles | ArrayLike | None = None,
    mode: str = "r",
    edges_b: ArrayLike | None = None,
    los: int | str = -1,
    weight: ArrayLike | None = None,
    weight_b: ArrayLike | None = None,
    region: ArrayLike | None = None,
    region_b: ArrayLike | None = None,
    num_regions: int | None = None,
    separations: bool = False,
    th: TreeHierarchy | None = None,
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
    Sums of weights and separations are computed in float64. On one CPU, they have the same bits for any number of
    threads and in every run. On several devices, or on a GPU, they may differ in the last bits. Differentiating these
    sums raises an error.

    **Cost.** If all pairs of two nodes of the hierarchy are in one bin, they are counted at once. So the cost per pair
    falls with the number of pairs. Sums of separations need every pair (15 to 30 nanoseconds per pair on one core).

    Args:
        part: A particle class with ``pos`` ``(n, d)``, d from 1 to 8, float32 or float64, or an array of positions.
        edges: ``(b + 1,)`` ascending numbers from 0 on, in the unit of the positions, equal on all ranks. Bin ``i``
            holds the pairs with ``edges[i] < r <= edges[i + 1]``. The last edge may be infinite.
        boxsize: The periodic length, or one per dimension; 0 or None means open. A pair counts only at the distance of
            its nearest images, also for distances above half the box. Equal on all ranks.
        part_b: Another set of particles; each pair then has one particle in ``part`` and one in ``part_b``. None means
            pairs within ``part``.
        mode: ``"r"`` for distances; ``"rp_pi"`` for distances across (``edges``) and along (``edges_b``) the line of
            sight; ``"s_mu"`` for distances and the cosines, from 0 to 1, of the angle to the line of sight
            (``edges_b``). The last two are for 2 and 3 dimensions.
        edges_b: ``(b' + 1,)``, the edges of pi or mu, in the same form.
        los: The axis of the line of sight; or ``"midpoint"``: from the observer at the origin to the midpoint of the
            pair, so that ``pi = |s . m| / |m|`` and ``rp = |s x m| / |m|`` with ``s`` and ``m`` the difference and the
            mean of their positions (Fisher et al. 1994, MNRAS 267, 927). The box must then be open. If ``m`` is 0, the
            entire distance is across.
        weight: ``(n,)``, the weights of ``part``. None means that every weight is 1.
        weight_b: ``(n_b,)``, the weights of ``part_b``; only with ``part_b``. None means that every weight is 1.
        region: ``(n,)`` integers from 0 to below ``num_regions``, the jackknife region of each particle. None means no
            regions.
        region_b: The same for ``part_b``; required if both ``region`` and ``part_b`` are given.
        num_regions: The number of regions; required with ``region``.
        separations: Whether to sum the separations of the pairs in each bin also.
        th: A hierarchy over ``part`` from `jztree.tree.zsort_and_tree` with the same ``boxsize``. ``part`` must then be
            the z-ordered particles that the function returned. On one device, this saves the time for the sort.
        cfg: Options, equal on all ranks. None means the leaves that are fastest for pair counts: 64 particles (48 on
            GPUs), or with weights or two quantities 128 (96).

    Returns:
        The counts and sums. On several devices, every device gets the total over all devices.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if a position or weight is NaN or
            infinite, a region is invalid, a traced ``edges`` or ``boxsize`` is invalid, ``th`` belongs to other
            particles, or a sum of weights exceeds the range of its dtype.
        CapacityError: On several devices, if the particles that a device needs do not fit ``cfg.ghost_rows``.
    """
    if cfg is None:
        each = mode != "r" or weight is not None or weight_b is not None or separations
        leaf_sizes = _CPU_LEAF_SIZES if is_on_cpu() else _GPU_LEAF_SIZES
        cfg = RadiusConfig(tree=TreeConfig(leaf_size=leaf_sizes[each]))
    cfg = checked_config(cfg, RadiusConfig)
    cfg = without_masses(cfg)
    check_hierarchy(th)
    one, other = _check_both(part, part_b, th)
    box = check_box(boxsize, one.dims)
    bins = as_bins({"mode": mode, "edges": edges, "edges_b": edges_b, "los": los}, one.dims)
    regions = _check_regions(region, region_b, num_regions, part_b is not None)
    if other is None and weight_b is not None:
        raise ValueError("weight_b needs part_b; without part_b, weight applies to both particles of a pair.")
    one.data, faults = _columns(one, weight, region, regions, "")
    if other is not None:
        other.data, more = _columns(other, weight_b, region_b, regions, " of part_b")
        faults += more
    faults += sight_faults(bins, box)
    counts, sums = Pairs(one, other, bins, box, regions, separations, cfg, faults).counted()
    found = _named(counts, sums, bins, regions, separations)
    found.edges, found.boxsize = _as_sums(bins.edges), _as_sums(box)
    found.mode, found.cross = mode, other is not None
    if bins.edges_b is not None:
        found.edges_b, found.los = _as_sums(bins.edges_b), "midpoint" if bins.axis == one.dims else bins.axis
    return found


def _as_sums(numbers: Exact) -> WideSums:
    return WideSums(jnp.asarray(numbers.words))


def _check_both(part: Any, part_b: Any, th: TreeHierarchy | None) -> tuple[InputParticles, InputParticles | None]:
    """Return both sets. Raise TypeError or ValueError if they are invalid or do not match."""
    pos = check_particles(part)
    one = InputParticles(pos, check_num(part), th=th, needs_origin=False)
    if part_b is None:
        return one, None
    other = check_particles(part_b, "positions of part_b")
    num = check_num(part_b, "num of part_b")
    check_alike(other, pos, "part_b is", "part is")
    return one, InputParticles(other, num, name="the positions of part_b", needs_origin=False)


def _check_regions(region: Any, region_b: Any, num_regions: Any, apart: bool) -> int:
    """Return the number of regions. Raise ValueError if the arguments for regions do not match."""
    if region is None and region_b is None and num_regions is None:
        return 0
    if region is None or num_regions is None or (region_b is None) == apart:
        raise ValueError(
            "a jackknife needs region and num_regions, and with part_b also region_b (without part_b, leave out "
            "region_b); pass every required argument, or no region at all."
        )
    if isinstance(num_regions, bool) or not isinstance(num_regions, (int, np.integer)) or num_regions < 1:
        raise ValueError(f"num_regions is {num_regions!r}; it must be an integer of at least 1.")
    return int(num_regions)


def _columns(given: InputParticles, weight: Any, region: Any, regions: int, of: str) -> tuple[Any, list[comm.Fault]]:
    """Return the weights and regions of a set, and their possible faults.

    Args:
        given: The set.
        weight: ``(n,)``, or None.
        region: ``(n,)`` integers, or None.
        regions: Number of regions.
        of: Name of the set in messages.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments.
    """
    pos, num = given.pos, given.num
    weight, faults = checked_weights(weight, pos, num, of)
    if region is not None:
        check_one_a_particle(region, pos, f"region{of}")
        if not np.issubdtype(jnp.result_type(region), np.integer):
            raise TypeError(f"region{of} must be integers, not {jnp.result_type(region)}.")
        numbers = jnp.asarray(region)
        # Compare in a dtype that also holds num_regions: in 8 bits, 300 becomes 44.
        wide = numbers if numbers.dtype.itemsize >= 4 else numbers.astype(jnp.int32)
        faults.append(row_fault((wide < 0) | (wide >= regions), num, _BAD_REGION % (of, regions)))
        region = numbers.astype(jnp.int32)
    return (weight, region), faults


def _named(counts: jax.Array, sums: jax.Array, bins: PairBins, regions: int, separations: bool) -> PairCounts:
    """Return counts and sums with their names. Raise on every rank if a sum exceeds the range of its dtype."""
    shape = bins.shape()
    found = PairCounts(count=WideCounts(counts[0].reshape(*shape, 2)))
    if regions:
        found.region_count = WideCounts(counts[1:].reshape(regions, *shape, 2))
    if sums.shape[0] == 0:
        return found
    lost = ~jnp.isfinite(sums).all()
    what = (" and separations", " or another unit of length") if separations else ("", "")
    message = _LOST % (what[0], sums.dtype, what[1])
    sums = comm.after(sums, kernels.check(jnp.int32(0), lost, [], message)).reshape(-1, *shape, sums.shape[-1])
    if separations:
        sums, found.separation = sums[:-1], WideSums(sums[-1])
    if sums.shape[0] > 0:
        found.weight = WideSums(sums[0])
        found.region_weight = WideSums(sums[1:]) if regions else None
    return found
