"""Velocities relative to the mean of a friends-of-friends group, in units of its velocity dispersion.

Over ranks, the kernel sums over each rank's part of a group. The parts send their sums to the rank that owns the root
of the group, its first particle in z-order: first the masses, then the means relative to the mean of the root's part,
then the squares. The totals travel back to the parts. So no difference of large squares is computed.
"""

import functools
from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..arguments import Radii, common_dtype, mass_faults, mass_rows
from ..config import FofConfig
from ..data import ParticleData
from ..jax_ext import Exact
from ..tree.stage import InputParticles, Stage
from ._search import Search

_Moments = tuple[jax.Array, jax.Array]


def in_dispersions(
    part: Any, pos: jax.Array, vel: jax.Array, num: Any, search: tuple[Exact, Exact, FofConfig], faults: Any
) -> tuple[jax.Array, jax.Array]:
    """Return velocities relative to the mean of each particle's group, divided by the dispersion of the group.

    If the dispersion is 0, so are the results.

    Args:
        part: The particles. Their masses are weights.
        pos: ``(n, d)``, their positions.
        vel: ``(n, d)``, their velocities.
        num: Number of rows that hold particles.
        search: The linking length of the groups, the box, and the options.
        faults: Faults to check together with the positions and masses.

    Returns:
        ``(n, d)`` numbers; and ``num``, available only after the checks.
    """
    rlink, box, cfg = search
    dtype, n = common_dtype(pos, vel), pos.shape[0]
    mass = jax.lax.stop_gradient(mass_rows(part, dtype))
    faults = [*faults, *mass_faults(mass, num, n)]
    weights = None if mass is None or mass.shape[0] != n else mass
    sources = InputParticles(ParticleData(pos=pos, vel=vel.astype(dtype), mass=weights, num=num), num)
    groups = Search(sources, Radii(rlink, None), box)
    stage = groups.stage(cfg, faults, needs_origin=True)
    label = groups.groups(stage, cfg).labels() if stage.is_distributed else groups.labels(stage)
    relative = _relative(stage, label, dtype)
    return stage.send_back(relative, fill=0), comm.after(kernels.as_num(num), stage.sources.num)


def _relative(stage: Stage, label: Any, dtype: Any) -> jax.Array:
    """Return the result of `in_dispersions` in z-order.

    Args:
        stage: The particles.
        label: The first row of each row's group; over ranks, a `jztree.data.Label`.
        dtype: Of the result.
    """
    sources = stage.sources
    n = sources.pos.shape[0]
    local = _local_parts(label, sources.num) if stage.is_distributed else label
    order, parts, count, offset = kernels.group_order(local, sources.num, 1)
    pos, vel = kernels.gather_rows(sources.pos.astype(dtype), order), kernels.gather_rows(sources.part.vel, order)
    weights = None if sources.part.mass is None else kernels.gather_rows(sources.part.mass, order)
    sums = kernels.catalogue(pos, weights, vel, parts, count, offset, stage.box)
    mass, mean, dispersion = sums[0], sums[5], sums[6]
    if stage.is_distributed:
        first = order[jnp.minimum(offset, n - 1)] if n else order
        roots = _Roots(label, first, jnp.arange(n, dtype=jnp.int32) < parts)
        mean, dispersion = roots.joined(mass, mean, dispersion)
    local = kernels.gather_rows(local, order)
    return kernels.scatter_rows(_in_units(vel, local, mean, dispersion), order)


@functools.partial(jax.jit, inline=True)
def _in_units(vel: jax.Array, local: jax.Array, mean: jax.Array, dispersion: jax.Array) -> jax.Array:
    """Return velocities relative to the mean of the group, divided by its dispersion."""
    begins = jnp.append(jnp.zeros(min(len(local), 1), bool), local[1:] != local[:-1])
    group = jnp.cumsum(begins, dtype=jnp.int32)
    scale = dispersion[group][:, None]
    return jnp.where(scale > 0, (vel - mean[group]) / jnp.where(scale > 0, scale, 1), 0)


def _local_parts(label: Any, num: jax.Array) -> jax.Array:
    """Return the first row on this rank of each row's group."""
    rank, ndev, _ = comm.get_rank_info()
    chunk = comm.chunk_of(label.irank.shape[0], ndev)
    first: jax.Array = kernels.group_parts(rank, label.irank, label.igroup, num, chunk)[0]
    return first


class _Roots:
    """The roots of the groups that have parts on this rank."""

    def __init__(self, label: Any, first: jax.Array, used: jax.Array) -> None:
        """Initialise.

        Args:
            label: The root of each row.
            first: ``(n,)`` int32, the first row of each part.
            used: ``(n,)`` bool, whether the part exists.
        """
        n = first.shape[0]
        self.first, self.used, self.buffer = first, used, max(n // 4, 1024)
        self.rank = jnp.where(used, label.irank[first], comm.num_ranks())
        self.row = label.igroup[first]

    def joined(self, mass: jax.Array, mean: jax.Array, dispersion: jax.Array) -> _Moments:
        """Return the mean velocity and the dispersion of the whole group of each part.

        Args:
            mass: ``(n,)``, of each part.
            mean: ``(n, d)``, of each part.
            dispersion: ``(n,)``, of each part.
        """
        dims = mean.shape[1]
        # Squares of numbers up to 1 do not overflow.
        largest = comm.all_max(jnp.max(jnp.where(self.used[:, None], jnp.abs(mean), 0), initial=0))
        unit = jnp.maximum(largest, comm.all_max(jnp.max(jnp.where(self.used, dispersion, 0), initial=0)))
        unit = jnp.where(unit > 0, unit, 1)
        mean, dispersion = mean / unit, dispersion / unit
        # The first row of the root's part is the root.
        place = jnp.where(self.used, self.first, len(self.first))
        of_root = jnp.zeros_like(mean).at[place].set(mean, mode="drop")
        sums = self._from_roots(jnp.concatenate([self._sums(mass[:, None]), of_root], axis=1))
        weight, reference = mass[:, None] / jnp.where(self.used[:, None], sums[:, :1], 1), sums[:, 1:]
        means = reference + self._from_roots(self._sums(weight * (mean - reference)))
        squares = dims * dispersion[:, None] ** 2 + jnp.sum((mean - means) ** 2, axis=1, keepdims=True)
        variance = self._from_roots(self._sums(weight * squares))[:, 0] / dims
        return means * unit, jnp.sqrt(variance) * unit

    def _sums(self, values: jax.Array) -> jax.Array:
        """Return sums over the parts of each group, in the row of the root."""
        nothing = comm.vary(jnp.zeros_like(values))
        return comm.deliver([self.row, values], self.rank, len(self.row), _add, nothing, self.buffer)

    def _from_roots(self, table: jax.Array) -> jax.Array:
        return comm.fetch(table, self.rank, self.row, len(self.row), self.buffer)


def _add(packed: jax.Array, counts: jax.Array, sums: jax.Array) -> jax.Array:
    row, values = comm.rows_and_values(packed, counts, sums)
    return sums.at[row].add(values, mode="drop")
