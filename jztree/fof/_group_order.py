"""Bring the particles of every rank into group order, and compute the catalogue.

Particles are in global z-order. Each stores its group as the rank and row of the group's first particle, the root. The
rank of the root owns the group. Most groups are wholly on one rank. For the others, each rank reports to the owner the
number of its particles in the group (its *part* of the group) and receives their destination.

Group order is rank by rank: the listed groups that the rank owns, in the order of their first particles, then its
particles in no listed group, in z-order. One exchange distributes all particles to the ranks in equal shares of that
order. The ranks held about equal shares before, so few particles move except the parts of groups on ranks other than
the owner's, and groups spread over the ranks as the particles do. A rank's share may begin with the end of a group, and
may alternate between groups and particles in no listed group. Only two groups of a rank can be shared with other ranks:
the group that its leading rows continue and the last group that begins there. Their sums are computed part by part and
joined. Every rank knows the numbers of particles of each rank in groups and in none. These numbers identify its rows in
listed groups. The cost is O(n) and one exchange of the particles.

Each collective needs the result of the one before: the largest number of windows; the sizes of parts and their places,
a pair of all_to_all for each window (one window, unless many groups straddle ranks); the tallies; the exchange;
three gathers of a few numbers for masses, centres and spreads; and one for sums out of range.
"""

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from numpy.typing import ArrayLike

from .. import comm, kernels
from .._options import checked_config
from .._transform.capacity import Capacity
from ..arguments import (
    SUMS_ROUNDED,
    check_real_dtype,
    common_dtype,
    first_row,
    is_subnormal,
    mass_faults,
    mass_rows,
    velocity_faults,
)
from ..config import CatalogueConfig, FofConfig
from ..data import FofCatalogue, get_num, get_pos, replace_num, sort_catalogue, split_rows, squeeze_catalogue
from ..jax_ext import Exact, is_concrete, vary_along
from ..particles import Particles, check_representable, num_rows
from ..tree import permute_particles
from ._derivatives import of_groups
from ._means import Columns, mean_columns, mean_faults

CATALOGUE_DIMS = 4  # the largest number of dimensions of positions in a catalogue
# Buffers for parts of groups are this many times smaller than the rows. Parts are few; if not, more windows are used.
_PARTS = 8
_NOT_LISTED = np.uint32(0xFFFFFFFF)  # in the high word of a place
_BAD_GROUP = (
    "row {0} of a rank has an invalid label; the label of a group must be the rank and row of its first particle."
)
_TOO_LARGE = (
    "a group has more than 2**31 - 1 particles, which the catalogue cannot count; use a smaller linking length rlink, "
    "or fewer particles if they are at one point."
)
_AXES_BELOW = 1024  # times the smallest normal number: a smaller size leaves no range for shorter axes
_TOO_HEAVY = (
    "the mass of the group in row {0} of the catalogue is outside the range of %s; choose another unit of mass, or "
    "switch on jax_enable_x64 and give masses in float64."
)
_TOO_SMALL = (
    "the group in row {0} of the catalogue is so small that its axes are outside the range of %s; choose another unit "
    "of length."
)
_TOO_FAST = (
    "the angular_momentum (length times velocity) of the group in row {0} of the catalogue is outside the range of %s; "
    "choose other units, or switch on jax_enable_x64 and give positions in float64."
)


class Groups(NamedTuple):
    """Friends-of-friends groups; see `jztree.friends_of_friends`.

    Attributes:
        particles: The particles in group order, with all their properties.
        catalogue: The properties of the groups.
    """

    particles: Any
    catalogue: FofCatalogue


def config_of_groups(cfg: FofConfig | None, npart_min: int | None) -> FofConfig:
    """Return options with the smallest number of particles of a listed group, or with that of ``cfg`` if it is None."""
    cfg = checked_config(cfg, FofConfig)
    return cfg if npart_min is None else replace(cfg, catalogue=replace(cfg.catalogue, npart_min=npart_min))


def groups_of(particles: Any, catalogue: FofCatalogue) -> Groups:
    """Return particles in group order with their catalogue; on one device, the largest group is first."""
    if comm.num_ranks() == 1:
        # Known numbers, as in a plain call, allow a catalogue of just its groups.
        catalogue = sort_catalogue(squeeze_catalogue(catalogue) if is_concrete(catalogue) else catalogue)
    return Groups(particles, catalogue)


class _Segments(NamedTuple):
    """Groups that begin on this rank.

    Attributes:
        ngroups: Their number, int32.
        counts: ``(g,)`` int32, their rows on this rank.
        offsets: ``(g,)`` int32, their first rows.
    """

    ngroups: jax.Array
    counts: jax.Array
    offsets: jax.Array


class _Parts(NamedTuple):
    """This rank's parts of groups; see `kernels.group_parts`."""

    label: jax.Array
    sizes: jax.Array
    elsewhere: jax.Array
    num_elsewhere: jax.Array
    windows: jax.Array
    bad_row: jax.Array


def group_and_catalogue(
    partz: Any, num: int | jax.Array, irank: jax.Array, igroup: jax.Array, cfg: CatalogueConfig, box: Exact
) -> tuple[Any, FofCatalogue]:
    """Bring the particles of every rank into group order and distribute them evenly, to within one particle.

    Over all ranks, particles are in this order: for each rank, first the listed groups whose first particle came from
    it, one after the other, then the other particles that came from it and are in no listed group. Both are in z-order.

    Args:
        partz: A particle class whose arrays have ``n`` rows on every rank. Ranks hold consecutive ranges of the global
            z-order.
        num: int32, the number of rows that hold particles.
        irank: ``(n,)`` int32, the rank of the first particle in z-order of each row's group.
        igroup: ``(n,)`` int32, the row of that particle.
        cfg: Selects the listed groups and their properties.
        box: ``(d,)`` periodic lengths, 0 where open.

    Returns:
        This rank's particles, ``n`` rows with ``num`` set, and the `FofCatalogue` of the groups whose first particle is
        among them. It has ``ceil(n / npart_min)`` rows, in the z-order of the first particles. A group may continue on
        the next ranks; ``offset`` is a row of this rank.

    Raises:
        ValueError: If masses or velocities have the wrong shape.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every rank, if a group has more than 2**31 - 1
            particles, if its first particle comes after one of its members, or if its sums are out of range of their
            dtype.
    """
    rank, _, _ = comm.get_rank_info()
    label, places, tally = _settle(irank, igroup, num, cfg.npart_min)
    tallies = comm.all_gather(tally)
    num = kernels.check(num, _too_large(tallies), [], _TOO_LARGE)
    to_rank, target = kernels.group_targets(rank, irank, igroup, num, label, places, tallies)
    grouped, head, segments = _deal(partz, num, to_rank, target, tallies, cfg.npart_min)
    return grouped, _catalogue(grouped, head, segments, box, cfg)


def sort_by_group(partz: Any, label: jax.Array, cfg: CatalogueConfig, box: Exact) -> tuple[Any, FofCatalogue]:
    """Bring the particles of one device into group order.

    Args:
        partz: A particle class in z-order, ``n`` rows.
        label: ``(n,)`` int32, the first row of each row's group.
        cfg: Selects the listed groups and their properties.
        box: ``(d,)`` periodic lengths, 0 where open.

    Returns:
        The particles in the order of `group_and_catalogue`, and the catalogue.

    Raises:
        ValueError or jax.errors.JaxRuntimeError: At run time, if sums are out of range of their dtype.
    """
    order, ngroups, count, offset = kernels.group_order(label, get_num(partz), cfg.npart_min)
    segments, grouped = (ngroups, count, offset), permute_particles(partz, order)

    def sums_of(columns: Columns) -> tuple[Any, Any]:
        sums = kernels.catalogue(*columns, *segments, box)
        return segments, of_groups(sums, columns, box, segments, get_num(grouped))

    return grouped, make_catalogue(grouped, sums_of, cfg)


def _settle(
    irank: jax.Array, igroup: jax.Array, num: int | jax.Array, npart_min: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Find the place of this rank's part of each group among the particles of its owner's listed groups.

    Args:
        irank: See `group_and_catalogue`.
        igroup: See `group_and_catalogue`.
        num: See `group_and_catalogue`.
        npart_min: Smallest number of particles of a listed group.

    Returns:
        ``label`` ``(n,)`` int32, the first row of each row's group on this rank; ``places`` ``(n, 2)`` uint32 at these
        first rows; and this rank's tally ``(5,)`` uint32. See `kernels.settle_groups` and `kernels.group_targets`.
    """
    rank, ndev, axes = comm.get_rank_info()
    n = irank.shape[0]
    chunk = comm.chunk_of(n // _PARTS, ndev)
    parts = _Parts(*kernels.group_parts(rank, irank, igroup, num, chunk))
    windows, bad_row = comm.all_max(jnp.stack([parts.windows, parts.bad_row]))
    windows = kernels.check(windows, bad_row >= 0, [bad_row], _BAD_GROUP)

    def one(carry: tuple[jax.Array, ...]) -> tuple[jax.Array, ...]:
        window, places, tally, received_listed = carry
        buffer, starts, counts = kernels.pack_parts(
            (irank, igroup, parts.sizes), (parts.elsewhere, parts.num_elsewhere), window, windows, (ndev, chunk)
        )
        received = comm.swap(buffer)
        answers, places, tally = kernels.settle_groups(
            *(rank, irank, parts.sizes, received, window, windows, places, tally), npart_min
        )
        received_answers = comm.swap(answers)
        (places,) = kernels.unpack_segments(received_answers, parts.elsewhere, starts, counts, [places])
        return (
            window + 1,
            places,
            tally,
            received_listed + _listed(buffer, received_answers) - _listed(received, answers),
        )

    # Only the first row of each part gets a place; the other rows are never read.
    nowhere = kernels.unwritten(jnp.zeros((1, 2), jnp.uint32), n)
    start = [vary_along(array, frozenset(axes)) for array in (nowhere, jnp.zeros(4, jnp.uint32), jnp.uint32(0))]
    _, places, tally, received_listed = jax.lax.while_loop(
        lambda carry: carry[0] < windows, one, (jnp.int32(0), *start)
    )
    unlisted = kernels.as_num(num).astype(jnp.uint32) - (tally[0] + received_listed)
    return parts.label, places, jnp.append(tally, unlisted)


def _listed(parts: jax.Array, places: jax.Array) -> jax.Array:
    """Return the number of particles in parts of listed groups, uint32.

    Args:
        parts: ``(r, chunk, 2)``, the result of `kernels.pack_parts`.
        places: ``(r, chunk, 2)``, the result of `kernels.settle_groups`.
    """
    return jnp.sum(jnp.where(places[..., 1] != _NOT_LISTED, parts[..., 1], 0), dtype=jnp.uint32)


def _too_large(tallies: jax.Array) -> jax.Array:
    """Return whether a group of any rank has more particles than an int32 can count."""
    return jnp.any((tallies[:, 3] > 0) | (tallies[:, 2] > jnp.iinfo(jnp.int32).max))


def _deal(
    partz: Any, num: jax.Array, to_rank: jax.Array, target: jax.Array, tallies: jax.Array, npart_min: int
) -> tuple[Any, jax.Array, _Segments]:
    """Send each particle to its rank and row.

    Equal shares fit ``n`` rows, because no rank holds more than ``n`` now.

    Args:
        partz: See `group_and_catalogue`.
        num: See `group_and_catalogue`.
        to_rank: ``(n,)`` int32, the rank of each particle in group order.
        target: ``(n,)``, its place; see `kernels.group_targets`.
        tallies: ``(r, 5)`` uint32, the tallies of the ranks.
        npart_min: Smallest number of particles of a listed group.

    Returns:
        The particles, the number of leading ones that continue the last group of the ranks before, and the groups.
    """
    rank, _, _ = comm.get_rank_info()
    n = num_rows(partz)
    columns, rebuild = split_rows(partz)
    columns, num, _ = comm.exchange_by_rank(
        [*columns, target], to_rank, num, Capacity(n, "groups"), what="particles in group order", name="groups"
    )
    place, head, *segments = kernels.group_segments(rank, columns.pop(), num, tallies, -(-n // npart_min))
    grouped = rebuild([kernels.scatter_rows(column, place) for column in columns])
    return replace_num(grouped, num), head, _Segments(*segments)


def _catalogue(grouped: Any, head: jax.Array, segments: _Segments, box: Exact, cfg: CatalogueConfig) -> FofCatalogue:
    """Compute the catalogue of the groups that begin on this rank; see `_deal`."""

    def sums_of(columns: Columns) -> tuple[Any, Any]:
        return _sums_of_rank(columns, head, segments, box, get_num(grouped))

    return make_catalogue(grouped, sums_of, cfg)


def _sums_of_rank(
    columns: Columns, head: jax.Array, segments: _Segments, box: Exact, num: int | jax.Array
) -> tuple[Any, Any]:
    """Return the groups that begin on this rank, with counts over all ranks, and the sums over their particles."""
    rank, ndev, axes = comm.get_rank_info()

    def gather(number: jax.Array, reference: jax.Array) -> jax.Array:
        return comm.all_gather(kernels.straddling_sums(columns, segments, head, box, number, reference, rank))

    nothing = jnp.zeros((ndev, kernels.straddling_words(columns[0].shape[1])), jnp.uint32)
    reference = jax.lax.fori_loop(0, 3, gather, vary_along(nothing, frozenset(axes)))
    count, *sums = kernels.catalogue_of_rank(columns, segments, box, reference, rank)
    segments = segments._replace(counts=count)
    return segments, of_groups(tuple(sums), columns, box, segments, num)


def catalogue_columns(part: Particles | ArrayLike) -> Columns:
    """Return positions, masses and velocities of particles as arguments of `kernels.catalogue`, all of one dtype.

    Masses are ``(n,)`` or ``(1,)``; absent properties are None.

    Raises:
        ValueError: If a property has the wrong shape.
    """
    mass, vel = getattr(part, "mass", None), getattr(part, "vel", None)
    pos = jnp.asarray(get_pos(part))
    if vel is not None:
        check_real_dtype(vel, "velocities")
    # A plain number has no dtype, so it does not widen that of the particles.
    dtype = common_dtype(pos, *(x for x in (mass, vel) if x is not None))
    if vel is not None:
        check_representable({"vel": vel})
        vel = jnp.asarray(vel, dtype)
        if vel.shape != pos.shape:
            raise ValueError(f"velocities must have the shape of the positions, {pos.shape}; theirs is {vel.shape}.")
    return pos.astype(dtype), mass_rows(part, dtype), vel


def particle_faults(part: Particles | ArrayLike, cfg: CatalogueConfig, of: str = "") -> list[comm.Fault]:
    """Return the checks of the catalogue input except positions; rows count the rows of ``part``.

    Args:
        part: The particles.
        cfg: Options.
        of: Text to add to the row number in messages.

    Raises:
        ValueError: See `catalogue_columns`.
    """
    pos, mass, vel = catalogue_columns(part)
    num = get_num(part)
    faults = [*mass_faults(mass, num, pos.shape[0], of), *velocity_faults(vel, num, of)]
    return [*faults, *mean_faults(part, cfg, of)]


def checked_groups(ngroups: jax.Array, sums: Any) -> jax.Array:
    """Return ``ngroups`` after a check of the sums.

    Args:
        ngroups: Number of groups.
        sums: See `kernels.catalogue`.

    Raises:
        ValueError or jax.errors.JaxRuntimeError: At run time, on every rank, if sums are out of range of their dtype.
    """
    dtype = sums[0].dtype
    if sums[0].shape[0] == 0:
        return ngroups
    fault = _lost(sums)
    row = first_row(fault)
    failed = _of_row(fault, row)
    sentences = "\n".join(sentence % dtype for sentence in (_TOO_HEAVY, _TOO_SMALL, _TOO_FAST))
    return comm.check(ngroups, failed, [row], sentences)


@functools.partial(jax.jit, inline=True)
def _of_row(faults: jax.Array, row: jax.Array) -> jax.Array:
    """Return the entry of ``faults`` for a row, or 0 if the row is -1."""
    return jnp.where(row >= 0, faults[jnp.maximum(row, 0)], 0)


@functools.partial(jax.jit, inline=True)
def _lost(sums: Any) -> jax.Array:
    """Return for each group the number of its error message in `checked_groups`, from 1 on; 0 if it is valid."""
    total, centre, size, _, _, velocity, dispersion, rotation = sums
    limits = jnp.finfo(total.dtype)
    heavy, smallest = ~jnp.isfinite(total), _AXES_BELOW * limits.tiny
    # Extents and dispersions that are only rounding do not depend on the unit.
    small = (is_subnormal(size) | ((size > 0) & (size < smallest))) & (
        jnp.abs(centre).max(axis=-1) < smallest / SUMS_ROUNDED
    )
    fault = jnp.where(heavy, 1, jnp.where(small, 2, 0))
    if rotation.size > 0:
        spread = (size > SUMS_ROUNDED * jnp.abs(centre).max(axis=-1)) & (
            dispersion > SUMS_ROUNDED * jnp.abs(velocity).max(axis=-1)
        )
        vanishing = spread & (size * dispersion < limits.tiny)
        is_lost = ~jnp.isfinite(rotation).all(axis=-1) | vanishing
        fault = jnp.where(is_lost & (fault == 0), 3, fault)
    return fault


def make_catalogue(grouped: Any, sums_of: Callable[[Columns], tuple[Any, Any]], cfg: CatalogueConfig) -> FofCatalogue:
    """Build a catalogue from the results of kernels.

    Args:
        grouped: The particles in group order.
        sums_of: Function of `catalogue_columns` that returns the number, counts and offsets of the groups, and their
            sums; see `kernels.catalogue`.
        cfg: Options.
    """
    columns = catalogue_columns(grouped)
    _, mass, vel = columns
    (ngroups, count, offset), sums = sums_of(columns)
    total, centre, size, radius, shape, velocity, dispersion, rotation = sums
    rank, _, _ = comm.get_rank_info()
    extra_columns = {
        "max_radius": radius,
        "shape_tensor": shape,
        "vel_dispersion": None if vel is None else dispersion,
        "angular_momentum": None if vel is None or rotation.shape[1] == 0 else rotation,
    }
    return FofCatalogue(
        ngroups=checked_groups(ngroups, sums),
        count=count,
        offset=offset,
        offset_rank=_rank_of_groups(count, ngroups, rank),
        com_pos=centre,
        com_inertia_radius=size,
        mass=None if mass is None else total,
        com_vel=None if vel is None else velocity,
        **mean_columns(grouped, columns, sums_of, cfg),
        **(extra_columns if cfg.extended else {}),
    )


@functools.partial(jax.jit, inline=True)
def _rank_of_groups(count: jax.Array, ngroups: jax.Array, rank: jax.Array) -> jax.Array:
    """Return ``rank`` for each group, 0 in rows without one, ``(g,)`` int32."""
    return jnp.where(jnp.arange(count.shape[0], dtype=jnp.int32) < ngroups, rank, 0).astype(jnp.int32)
