"""Candidates for subhaloes: the overdense sets of each group."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..config import KNNConfig
from ..data import Pos, PosMass, RankIdx
from ..density import density_of_neighbours
from ..halos import WholeGroups
from ..index import build_index
from ..knn import nearest

_BATCHES = 64  # of particles that search on one device


class Candidates(NamedTuple):
    """Nested sets of particles, in ``c`` rows; rows without a set have parent -2 and height -1.

    Attributes:
        inner: ``(n,)`` int32, the innermost candidate with each particle; -1 for none.
        parent: ``(c,)`` int32, the next larger candidate that contains it; -1 for a whole group.
        height: ``(c,)`` int32, how deep smaller candidates are nested inside it.
    """

    inner: jax.Array
    parent: jax.Array
    height: jax.Array


def neighbours_and_density(part: PosMass, k: int, boxsize: Any, cfg: KNNConfig | None) -> tuple[jax.Array, jax.Array]:
    """Return the ``k`` nearest particles of each, rows of the joined particles of the devices, and the density.

    On one device, the particles search in batches, because the distances and masses of neighbours would take several
    times the memory of their rows.

    Args:
        part: The particles, with ``num``.
        k: Number of neighbours, including the particle itself. Missing ones have row -1.
        boxsize: Periodic lengths.
        cfg: Options of the search.
    """
    pos, num = jnp.asarray(part.pos), jnp.asarray(part.num, jnp.int32)
    (n, dims), starts = pos.shape, comm.starts_of(comm.all_gather(num))

    def rows_and_density(
        part: PosMass, rnn: jax.Array, inn: jax.Array, origin: RankIdx, **_: Any
    ) -> tuple[jax.Array, jax.Array]:
        # If there are fewer particles, the last one sets the radius.
        exists, inn = inn >= 0, jnp.maximum(inn, 0)
        radius = jnp.max(jnp.where(exists, rnn, 0), axis=1, keepdims=True)
        density = density_of_neighbours(part, jnp.where(exists, rnn, radius), inn, dims)
        rows = kernels.gather_rows(starts[origin.rank] + origin.idx, inn.reshape(-1)).reshape(inn.shape)
        return jnp.where(exists, rows, -1), density

    options: Any = {"reduce": rows_and_density, "allow_missing": True, "cfg": cfg}
    if comm.num_ranks() > 1:
        rows, density = nearest(part, k, boxsize=boxsize, **options)
        return rows, density
    index = build_index(part, boxsize=boxsize)
    size = -(-n // _BATCHES)
    batches = jnp.zeros((_BATCHES * size, dims), pos.dtype).at[:n].set(pos).reshape(_BATCHES, size, dims)
    nums = jnp.clip(num - size * jnp.arange(_BATCHES, dtype=jnp.int32), 0, size)
    rows, density = jax.lax.map(
        lambda batch: nearest(index, k, queries=Pos(pos=batch[0], num=batch[1]), **options), (batches, nums)
    )
    return rows.reshape(-1, k)[:n], density.reshape(-1)[:n]


def find_candidates(
    groups: WholeGroups, neighbours: jax.Array, density: jax.Array, start: jax.Array, min_count: int
) -> Candidates:
    """Find the candidates in whole groups.

    Args:
        groups: The groups.
        neighbours: ``(m, k)`` int32, the nearest particles of each, as rows of the joined particles of the devices.
        density: ``(m,)``.
        start: ``(g,)`` int32, the first row of each group among the joined rows.
        min_count: The smallest number of particles of a candidate.
    """
    n, num_groups = density.shape[0], groups.count.shape[0]
    used = jnp.arange(num_groups, dtype=jnp.int32) < groups.ngroups
    count, offset = jnp.where(used, groups.count, 0), jnp.where(used, groups.offset, 0)
    rows, group = jnp.arange(n, dtype=jnp.int32), groups.groups_of_rows()
    # Rows of no group keep their places: they sort by the first row of a run of such rows, like groups.
    run = jax.lax.cummax(jnp.where(rows == 0, 0, jnp.where(group != jnp.roll(group, 1), rows, 0)))
    order = kernels.sort_words([run, *kernels.descending_words(density), rows], n)
    slots = count // min_count
    first = jnp.cumsum(slots, dtype=jnp.int32) - slots
    return Candidates(
        *kernels.density_sets(
            neighbours, order, group, (count, offset), start, first, max(n // min_count, 1), min_count
        )
    )
