"""Candidates for subhaloes: the overdense sets of each group."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import kernels
from ..config import KNNConfig
from ..data import PosMass
from ..density import density_of_neighbours
from ..halos import WholeGroups
from ..knn import knn


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

    Args:
        part: The particles.
        k: Number of neighbours, including the particle itself. Missing ones have row -1.
        boxsize: Periodic lengths.
        cfg: Options of the search.
    """
    dims = part.pos.shape[1]

    def density(part: PosMass, rnn: jax.Array, inn: jax.Array, **_: Any) -> jax.Array:
        # If there are fewer particles, the last one sets the radius.
        exists = jnp.isfinite(rnn)
        radius = jnp.max(jnp.where(exists, rnn, 0), axis=1, keepdims=True)
        return density_of_neighbours(part, jnp.where(exists, rnn, radius), jnp.maximum(inn, 0), dims)

    result: tuple[jax.Array, jax.Array] = knn(
        part, k, boxsize, result="globalidx_reduce", reduce_func=density, cfg=cfg, allow_missing=True
    )
    return result


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
