"""Candidates for subhaloes: the overdense sets of each group."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._transform.pytrees import pytree
from ..config import KNNConfig
from ..data import FofCatalogue, Pos, PosMass, RankIdx
from ..density import density_of_neighbours
from ..halos import WholeGroups, first_rows_of_groups
from ..index import Index, build_index
from ..knn import nearest
from ..tree.stage import starts_of_ranks

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


@pytree
class _Member:
    """The particles of a search; ``first`` ``(n,)`` int32 is the first row of their group, -1 for none."""

    pos: jax.Array
    mass: jax.Array
    first: jax.Array
    num: jax.Array


def neighbours_and_density(
    part: PosMass, cata: FofCatalogue, start: jax.Array, k: int, boxsize: Any, cfg: KNNConfig | None
) -> tuple[jax.Array, jax.Array]:
    """Return neighbours of each particle, as rows of the joined particles of the devices, and the density.

    On one device, these are the ``k`` nearest particles. They search in batches, because the distances and masses of
    neighbours would take several times the memory of their rows. On several devices, these are the two nearest of the
    denser ones among them in the group, so that few numbers travel with each particle.

    Args:
        part: The particles, with ``num``.
        cata: The catalogue of their groups.
        start: ``(g,)`` int32, the first of the joined rows of each group.
        k: Number of neighbours, including the particle itself. Missing ones have row -1.
        boxsize: Periodic lengths.
        cfg: Options of the search.
    """
    pos, num = jnp.asarray(part.pos), jnp.asarray(part.num, jnp.int32)
    starts = starts_of_ranks(num)
    if comm.num_ranks() == 1:
        return _search_in_batches(build_index(part, boxsize=boxsize), starts, k, cfg)
    first = first_rows_of_groups(cata, start, num, pos.shape[0])
    member = _Member(pos=pos, mass=jnp.asarray(part.mass), first=first, num=num)
    reduce = _reduction_over_ranks(starts, pos.shape[0])
    rows, density = nearest(member, k, boxsize=boxsize, reduce=reduce, allow_missing=True, cfg=cfg)
    return rows, density


@functools.partial(jax.jit, static_argnames=("k", "cfg"), inline=True)
def _search_in_batches(index: Index, starts: jax.Array, k: int, cfg: KNNConfig | None) -> tuple[jax.Array, jax.Array]:
    """Return neighbours and density of the particles of an index; see `neighbours_and_density`."""
    pos, reduce = jnp.asarray(index.part.pos), _reduction(starts)
    used = jnp.arange(pos.shape[0], dtype=jnp.int32) < index.part.num

    def search(pos: jax.Array, used: jax.Array) -> Any:
        queries = Pos(pos=pos, num=jnp.sum(used, dtype=jnp.int32))
        return nearest(index, k, queries=queries, reduce=reduce, allow_missing=True, cfg=cfg)

    rows, density = _in_batches(search, pos, used)
    return rows, density


def _in_batches(function: Callable[..., Any], *columns: jax.Array) -> Any:
    """Return arrays ``(n, ...)``, the function of columns ``(n, ...)``, whose rows do not depend on each other."""
    n = columns[0].shape[0]
    size = -(-n // _BATCHES)

    def of_batch(begin: jax.Array) -> Any:
        rows = jnp.minimum(begin + jnp.arange(size, dtype=jnp.int32), n - 1)
        return function(*(column[rows] for column in columns))

    results = jax.lax.map(of_batch, size * jnp.arange(_BATCHES, dtype=jnp.int32))
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[:n], results)


def _reduction(starts: jax.Array) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return the function of neighbours that returns their rows and the density, from the first row of each device."""

    def rows_and_density(
        part: PosMass, rnn: jax.Array, inn: jax.Array, origin: RankIdx, **_: Any
    ) -> tuple[jax.Array, jax.Array]:
        rows = kernels.gather_rows(starts[origin.rank] + origin.idx, jnp.maximum(inn, 0).reshape(-1)).reshape(inn.shape)
        return jnp.where(inn >= 0, rows, -1), _density(part, rnn, inn)

    return rows_and_density


def _density(part: Any, rnn: jax.Array, inn: jax.Array) -> jax.Array:
    """Return the density. If there are fewer particles than neighbours, the last one sets the radius."""
    exists = inn >= 0
    radius = jnp.max(jnp.where(exists, rnn, 0), axis=1, keepdims=True)
    return density_of_neighbours(part, jnp.where(exists, rnn, radius), jnp.maximum(inn, 0), part.pos.shape[1])


def _reduction_over_ranks(starts: jax.Array, n: int) -> Callable[..., tuple[jax.Array, jax.Array]]:
    """Return the function of neighbours that returns the two nearest denser ones and the density.

    Densities travel to the ranks of the particles, with ``n`` rows each, and from there to the ghosts.
    """

    def two_denser_and_density(
        part: _Member, rnn: jax.Array, inn: jax.Array, origin: RankIdx, query: _Member, queryidx: RankIdx
    ) -> tuple[jax.Array, jax.Array]:
        density = _in_batches(functools.partial(_density, part), rnn, inn)
        words, buffer = jnp.stack(kernels.descending_words(density), axis=-1), max(n // 4, 1024)
        table = comm.vary(jnp.zeros((n, words.shape[1]), words.dtype))
        table = comm.deliver([queryidx.idx, words], queryidx.rank, words.shape[0], _write, table, buffer)
        source_words = comm.fetch(table, origin.rank, origin.idx, part.num, buffer)
        source_number = comm.of_rank(starts, origin.rank) + origin.idx
        number = comm.of_rank(starts, queryidx.rank) + queryidx.idx
        find = functools.partial(_two_denser, (source_words, source_number, part.first))
        return _in_batches(find, inn, words, number, query.first), density

    return two_denser_and_density


def _two_denser(
    sources: tuple[jax.Array, jax.Array, jax.Array], inn: jax.Array, words: jax.Array, number: jax.Array, first: Any
) -> jax.Array:
    """Return ``(q, 2)`` int32, the numbers of the two nearest neighbours that are denser and in the same group; or -1.

    The order is that of the kernel `density_sets`: falling density, and then rising number.

    Args:
        sources: Words of the density, number, and first row of the group of each particle and ghost.
        inn: ``(q, k)`` int32, the neighbours; -1 for none.
        words: ``(q, w)`` uint32; see `kernels.descending_words`.
        number: ``(q,)`` int32.
        first: ``(q,)`` int32.
    """
    source_words, source_number, source_first = sources
    k, rows = inn.shape[1], jnp.maximum(inn, 0)
    numbers = source_number[rows]
    comes_first = numbers < number[:, None]
    for i in reversed(range(words.shape[1])):
        neighbour_word, word = source_words[rows, i], words[:, i, None]
        comes_first = (neighbour_word < word) | ((neighbour_word == word) & comes_first)
    is_denser = (inn >= 0) & (source_first[rows] == first[:, None]) & comes_first
    place = jnp.where(is_denser, jnp.arange(k, dtype=jnp.int32), k)
    nearest_place = jnp.min(place, axis=1, keepdims=True)
    second_place = jnp.min(jnp.where(place > nearest_place, place, k), axis=1, keepdims=True)
    places = jnp.concatenate([nearest_place, second_place], axis=1)
    return jnp.take_along_axis(numbers, places, axis=1, mode="fill", fill_value=-1)


def _write(packed: jax.Array, counts: jax.Array, table: jax.Array) -> jax.Array:
    """Write received words at their rows."""
    row, words = comm.rows_and_values(packed, counts, table)
    return table.at[row].set(words, mode="drop")


def find_candidates(
    groups: WholeGroups, neighbours: jax.Array, density: jax.Array, start: jax.Array, min_count: int
) -> Candidates:
    """Find the candidates in whole groups.

    Args:
        groups: The groups.
        neighbours: ``(m, k)`` int32, the neighbours of each particle from `neighbours_and_density`.
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
