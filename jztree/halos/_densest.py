"""Find the densest particle of each group, for groups on one or several devices."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from ..arguments import check_classes
from ..data import FofCatalogue, RankIdx, replace_num, split_rows, with_computed
from ..jax_ext import with_twins
from ..particles import check_num, check_representable, check_rows, num_rows, replace_field
from ..tree import is_bad_num
from ._rows import of_groups, used_rows

_NAN_DENSITY = "the density of row {0} of the particles in group order is NaN; pass a density for every particle."
_OTHER_PARTICLES = (
    "the catalogue has groups outside these particles, or num of the particles is not from 0 to the number of rows; "
    "pass the particles that were returned with the catalogue."
)


class DensestParticle(NamedTuple):
    """The densest particle of each group.

    Attributes:
        part: A particle class of ``g`` rows, one per group, with all properties of the particles.
        density: ``(g,)``, the density of this particle.
        where: `jztree.data.RankIdx`, the device of the particle, and its row in the particles in group order there.
    """

    part: Any
    density: jax.Array
    where: RankIdx


class Ends(NamedTuple):
    """The groups that continue on other devices; for the order of the particles see `jztree.fof.friends_of_friends`.

    Attributes:
        last: The row of the last group that begins on this device.
        heads: ``(r,)``, the number of leading rows of each device that continue the last group of the devices before.
        begins: ``(r,)``, whether a group begins there.
    """

    last: jax.Array
    heads: jax.Array
    begins: jax.Array

    def owner(self) -> jax.Array:
        """Return the last of the devices before this one that begins a group; -1 for none."""
        ranks = jnp.arange(self.begins.shape[0], dtype=jnp.int32)
        return jnp.max(jnp.where(self.begins & (ranks < comm.get_rank_info()[0]), ranks, -1))


@with_twins(P(-1), P(-1), prepare=check_classes)
@with_computed
def densest_particle(grouped: Any, cata: FofCatalogue, density: ArrayLike) -> DensestParticle:
    """Find the densest particle of each group, a possible centre of the halo.

    If densities are smooth, subhaloes do not move this centre. With densities from few neighbours, a dense subhalo may
    contain the densest particle. `lowest_potential_particle` is a better centre.

    Over several devices (``.smap``, or inside `jax.shard_map`), each group also has one densest particle, which is on
    the device of the catalogue row. The cost is three collectives of a few numbers and one particle per device.

    Args:
        grouped: The particles in group order from `jztree.fof.friends_of_friends`.
        cata: The catalogue from the same call. It may have been sorted.
        density: ``(n,)``, one number per particle in that order, for example from `jztree.density`. If several
            particles have the largest density, the first row counts.

    Returns:
        The particles, their densities, and their rows in ``grouped``, one entry per group.

    Raises:
        ValueError: If there is not one density per particle.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if the density of a member is NaN, or if
            the catalogue belongs to other particles.

    Examples:
        >>> pos = np.array([[0.0, 0.0], [1.0, 0.0], [2.0, 0.0], [9.0, 9.0]], np.float32)
        >>> grouped, catalogue = jz.friends_of_friends(pos, 1.5, npart_min=3)
        >>> jz.halos.densest_particle(grouped, catalogue, jz.knn_density(grouped, 3)).part
        Array([[1., 0.]], dtype=float32)
    """
    check_representable({"grouped": grouped, "cata": cata, "density": density})
    n, density = num_rows(grouped), jnp.asarray(density)
    if density.shape != (n,) or not jnp.issubdtype(density.dtype, jnp.floating):
        raise ValueError(
            f"density must be one floating-point number per particle, shape {(n,)}; it is {density.dtype} of shape "
            f"{density.shape}. On several devices call densest_particle.smap(mesh)."
        )
    check_rows(n, "particles")
    rows, (properties, rebuild) = jnp.arange(n, dtype=jnp.int32), split_rows(grouped)
    columns = [density, jnp.full_like(rows, comm.get_rank_info()[0]), rows, *properties]
    density, rank, row, *properties = _densest_of_each(columns, cata, jnp.asarray(check_num(grouped), jnp.int32))
    part = replace_field(replace_num(rebuild(properties), cata.ngroups), "num_total", None)
    return DensestParticle(part, density, RankIdx(rank, row))


def _densest_of_each(columns: list[jax.Array], cata: FofCatalogue, num: jax.Array) -> list[jax.Array]:
    """Return the row of ``columns`` of the densest particle of each group. The first column is the density."""
    catalogue_rows, n = np.shape(cata.count)[0], columns[0].shape[0]
    if catalogue_rows == 0 or n == 0:
        return [jnp.zeros((catalogue_rows, *column.shape[1:]), column.dtype) for column in columns]
    ends = ends_of(cata, num)
    group = groups_of_rows(cata, num, ends, n)
    has_nan, nan_row = _first_nan(columns[0], group, catalogue_rows)
    checked = comm.check(num, has_nan, [nan_row], _NAN_DENSITY)
    checked = check_groups(cata, checked, ends, group)
    row = comm.after(_densest_rows(group, columns[0], catalogue_rows + 1), checked)
    values = _rows_or_zeros(columns, row)
    return [of_groups(cata, column) for column in _joined(ends, values)]


def ends_of(cata: FofCatalogue, num: jax.Array) -> Ends:
    """Gather from each device its number of particles, and how many particles of its last group are elsewhere."""
    last, num_and_elsewhere = _last_group(used_rows(cata), cata.count, cata.offset, num)
    nums, elsewhere = comm.all_gather(num_and_elsewhere).T

    def head(remaining: jax.Array, device: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        share = jnp.minimum(remaining, device[0])
        return jnp.where(device[1] >= 0, device[1], remaining - share), share

    heads = jax.lax.scan(head, comm.vary(jnp.int32(0)), (nums, elsewhere))[1]
    return Ends(last, heads, elsewhere >= 0)


@functools.partial(jax.jit, inline=True)
def _last_group(used: jax.Array, count: jax.Array, offset: jax.Array, num: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the row of the last group of this device; ``num`` and the number of its particles on other devices."""
    last = jnp.argmax(jnp.where(used, offset, -1))
    elsewhere = jnp.where(used.any(), count[last] - (num - offset[last]), -1)
    return last, jnp.stack([num, jnp.asarray(elsewhere, jnp.int32)])


def groups_of_rows(cata: FofCatalogue, num: jax.Array, ends: Ends, n: int) -> jax.Array:
    """Return ``(n,)`` int32: the catalogue row of each particle's group.

    It is ``g`` for the group that the devices before began, and ``g + 1`` for particles in no group.
    """
    return groups_of_segments(used_rows(cata), cata.count, cata.offset, num, ends.heads[comm.get_rank_info()[0]], n)


@functools.partial(jax.jit, static_argnames="n", inline=True)
def groups_of_segments(
    used: jax.Array, count: jax.Array, offset: jax.Array, num: int | jax.Array, head: int | jax.Array, n: int
) -> jax.Array:
    """Return `groups_of_rows` for segments of rows. head: the number of rows in a group of the devices before."""
    catalogue_rows, rows = len(count), jnp.arange(n, dtype=jnp.int32)
    first = jnp.where(used, offset, n)
    begun = jnp.full(n, -1, jnp.int32).at[first].set(jnp.arange(catalogue_rows, dtype=jnp.int32), mode="drop")
    start = jax.lax.cummax(jnp.where(begun >= 0, rows, -1))
    group = begun[start]
    inside = (rows - start < count[group]) & (rows < num)
    outside = jnp.where(rows < head, catalogue_rows, catalogue_rows + 1)
    return jnp.where((start >= 0) & inside, group, outside)


@functools.partial(jax.jit, static_argnames="groups", inline=True)
def _densest_rows(group: jax.Array, density: jax.Array, groups: int) -> jax.Array:
    """Return ``(groups,)`` int32, the first row of the largest density in each group; ``n`` for an empty group."""
    n, density = group.shape[0], jax.lax.stop_gradient(density)  # a row has no derivative
    largest = jax.ops.segment_max(density, group, groups)
    candidate = jnp.where(density == largest.at[group].get(mode="clip"), jnp.arange(n, dtype=jnp.int32), n)
    return jnp.minimum(jax.ops.segment_min(candidate, group, groups), n)


def check_groups(cata: FofCatalogue, num: jax.Array, ends: Ends, group: jax.Array) -> jax.Array:
    """Return ``num``, or raise on every device if a group is not among the particles."""
    misses = _misses(used_rows(cata), cata.count, cata.offset, num, ends.last, comm.num_ranks() > 1)
    return comm.check_all(num, [comm.Fault(fault, [], _OTHER_PARTICLES) for fault in (misses, is_bad_num(group, num))])


@functools.partial(jax.jit, inline=True)
def _misses(
    used: jax.Array, count: jax.Array, offset: jax.Array, num: jax.Array, last: jax.Array, may_continue: bool
) -> jax.Array:
    """Return whether a group is not among the particles; the last one may continue on other devices."""
    continues = (jnp.arange(len(count), dtype=last.dtype) == last) & may_continue
    misses = (offset < 0) | (offset >= num) | ((count > num - offset) & ~continues)
    return (misses & used).any()


@functools.partial(jax.jit, inline=True)
def _first_nan(density: jax.Array, group: jax.Array, catalogue_rows: int) -> tuple[jax.Array, jax.Array]:
    """Return whether a density of a particle in a group is NaN, and the first such row."""
    is_nan = jnp.isnan(density) & (group <= catalogue_rows)
    return is_nan.any(), jnp.argmax(is_nan)


@functools.partial(jax.jit, inline=True)
def _rows_or_zeros(columns: list[jax.Array], row: jax.Array) -> list[jax.Array]:
    return [column.at[row].get(mode="fill", fill_value=0) for column in columns]


@functools.partial(jax.jit, inline=True)
def _without_last(columns: list[jax.Array]) -> list[jax.Array]:
    return [column[:-1] for column in columns]


def _joined(ends: Ends, values: list[jax.Array]) -> list[jax.Array]:
    """Combine the results of each group that begins here with the results of its parts on other devices.

    Args:
        ends: The groups that continue on other devices.
        values: Arrays ``(g + 1, ...)``, the first of densities. Their last row belongs to the group that the devices
            before began.
    """
    rank, ndev, _ = comm.get_rank_info()
    if ndev == 1:
        return _without_last(values)
    heads = [column[:, 0] for column in comm.all_gather_rows([column[-1:] for column in values])]
    begins = ends.begins.astype(jnp.int32)
    before = jnp.cumsum(begins, dtype=jnp.int32) - begins  # devices before this one that begin a group
    of_rank = (
        ends.begins[rank] & (before == before[rank] + 1) & (ends.heads > 0) & (jnp.arange(ndev, dtype=jnp.int32) > rank)
    )
    densities = jnp.where(of_rank, heads[0], -jnp.inf)
    best = jnp.argmax(densities)
    better = densities[best] > values[0][ends.last]
    return [
        column[:-1].at[ends.last].set(jnp.where(better, head[best], column[ends.last]))
        for column, head in zip(values, heads, strict=True)
    ]
