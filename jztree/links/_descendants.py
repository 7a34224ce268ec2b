"""The descendant of each subhalo: the subhalo of a later output that holds most of its bound particles.

The join needs three exchanges over ranks. The members of a subhalo travel to the rank that owns its row of the result,
which orders them by binding energy. The particles of both outputs then travel to a rank that their identifier decides.
A sort there brings the two rows of each particle together. The common particles of each pair of subhaloes end on the
rank of the earlier subhalo. Every order is that of a sort with distinct keys, so no result depends on ranks or rows.

Scores: V. Rodriguez-Gomez et al. 2015, MNRAS 449, 49; V. Springel et al. 2005, Nature 435, 629.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple, get_args

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P

from .. import comm, kernels
from .._transform.capacity import Capacity, choose_capacity
from ..arguments import check_word, known_integer
from ..jax_ext import with_twins
from ..particles import Array, check_representable
from ._members import CheckedMembers, SubhaloMembers, check_members, with_words

Weights = Literal["sublink", "lhalotree"]

_REPEATED = (
    "{0} particles of %s have the identifier of an earlier particle; identifiers must be unique, so remove the copies, "
    "or pass each type of particles with its own identifiers."
)


class Descendants(NamedTuple):
    """The descendants of the subhaloes of one output.

    Attributes:
        subhalo: ``(s,)`` int32, the descendant of each subhalo, a number in the later output; -1 for none.
        score: ``(s,)`` float32, the sum of the weights of the common particles; 0 without a descendant.
        skips: ``(s,)`` bool, whether the descendant is in the output after the next one, because the finder lost the
            subhalo in between; see `skip_output`.
    """

    subhalo: Array
    score: Array
    skips: Array


def _in_words(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: with_words(arguments[name], name) for name in ("part", "later")}


@with_twins({"part": P(-1), "later": P(-1)}, P(-1), prepare=_in_words)
def descendants(
    part: SubhaloMembers, later: SubhaloMembers, num_subhaloes: int, *, weights: Weights = "sublink"
) -> Descendants:
    """Find the descendant of each subhalo: the subhalo of a later output with the largest score.

    The score of a later subhalo is the sum of the weights of the particles that both have. A weight depends on the rank
    of the particle in its earlier subhalo, 1 for the most bound one. If two scores are equal, the smaller
    number counts. Particles with equal energies are in the order of their identifiers, as unsigned numbers of 64 bits.
    The result is the same for any order of the particles and any number of devices. It has no derivatives.

    Args:
        part: The members of the subhaloes.
        later: The members of the subhaloes of the later output. Particles may appear and vanish.
        num_subhaloes: The number of subhaloes of ``part``, equal on all ranks.
        weights: ``"sublink"``: 1 / rank (Rodriguez-Gomez et al. 2015). ``"lhalotree"``: rank**(-2/3), for the most
            bound half of the particles (Springel et al. 2005).

    Returns:
        The descendants, with a row for each subhalo. Over ranks, the rows are in order: each of ``r`` ranks has
        ``ceil(num_subhaloes / r)`` rows, and rows after the last subhalo have no descendant.

    Raises:
        TypeError: If an argument has an invalid type.
        ValueError: If an argument is invalid.
        ValueError or jax.errors.JaxRuntimeError: At run time, on every device, if identifiers repeat (the message
            counts them), if a subhalo is out of range, or if an energy is NaN.

    Examples:
        >>> energy = np.array([-3.0, -2.0, -1.0, -4.0])
        >>> first = jz.links.SubhaloMembers(np.array([7, 5, 9, 4]), np.array([0, 0, 0, 1]), energy)
        >>> later = jz.links.SubhaloMembers(np.array([9, 7, 4, 5]), np.array([1, 0, -1, 1]))
        >>> links = jz.descendants(first, later, 2)
        >>> links.subhalo, links.score  # 1 for the most bound particle, and 1/2 + 1/3 for the others
        (Array([ 0, -1], dtype=int32), Array([1., 0.], dtype=float32))
    """
    check_word(weights, "weights", get_args(Weights))
    num_subhaloes = known_integer(num_subhaloes, "num_subhaloes", 0)
    first, faults = check_members(part, "part", num_subhaloes)
    second, faults_of_later = check_members(later, "later")
    checked = comm.check_all(first.num, [*faults, *faults_of_later])
    first = first._replace(subhalo=comm.after(first.subhalo, checked), num=checked)
    rows = -(-num_subhaloes // comm.num_ranks())
    if not rows:  # no result could depend on a check
        return Descendants(jnp.zeros(0, jnp.int32), jnp.zeros(0, jnp.float32), jnp.zeros(0, bool))
    rank = _binding_ranks(first, rows, weights)
    return _best_links(*_common_particles(first, second, rank), rows, weights)


def _exchanged(columns: list[jax.Array], to_rank: jax.Array, name: str) -> tuple[list[jax.Array], Any, comm.Route]:
    n = to_rank.shape[0]
    capacity: Capacity = choose_capacity(name, None, n + n // 4 + 16, n * comm.num_ranks())
    return comm.exchange_by_rank(columns, to_rank, n, capacity, what="particles of subhaloes", name=name)


@functools.partial(jax.jit, inline=True)
def _owner(subhalo: jax.Array, rows: int) -> jax.Array:
    """Return the rank that has the row of each subhalo, -1 for none."""
    return jnp.where(subhalo >= 0, subhalo // rows, -1)


def _binding_ranks(part: CheckedMembers, rows: int, weights: Weights) -> jax.Array:
    """Return the rank of each particle in its subhalo, ``(n,)`` int32 from 1; 0 for particles without weight."""
    keys, count, route = _exchanged(_binding_keys(part), _owner(part.subhalo, rows), "subhaloes")
    rank = _ranks_of_order(keys[0], kernels.sort_words(keys, count), count, weights)
    return comm.send_back(rank, route)


@functools.partial(jax.jit, inline=True)
def _binding_keys(part: CheckedMembers) -> list[jax.Array]:
    """Return words that order particles by subhalo, energy and identifier."""
    ascending = [~word for word in kernels.descending_words(part.energy)]
    return [part.subhalo, *ascending, part.id[:, 1], part.id[:, 0]]


@functools.partial(jax.jit, static_argnames="weights", inline=True)
def _ranks_of_order(subhalo: jax.Array, order: jax.Array, count: jax.Array, weights: Weights) -> jax.Array:
    subhalo = subhalo[order]
    place = jnp.arange(order.shape[0], dtype=jnp.int32)
    begins = _differs(subhalo)
    rank = place - jax.lax.cummax(jnp.where(begins, place, 0)) + 1
    if weights == "lhalotree":
        ends = jnp.append(begins[1:], True) | (place == count - 1)
        size = jax.lax.cummin(jnp.where(ends, place, place.shape[0]), reverse=True) - place + rank
        rank = jnp.where(rank <= (size + 1) // 2, rank, 0)
    return jnp.zeros_like(rank).at[order].set(rank, unique_indices=True)


@functools.partial(jax.jit, inline=True)
def _differs(*columns: jax.Array) -> jax.Array:
    """Return whether each row differs from the one before; the first row does."""
    changed = [jnp.append(jnp.ones(min(len(column), 1), bool), column[1:] != column[:-1]) for column in columns]
    return jnp.stack(changed).any(axis=0)


def _common_particles(
    part: CheckedMembers, later: CheckedMembers, rank: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Join both outputs by identifiers: return subhalo, later subhalo and rank of common particles.

    Each array is ``(m,)`` int32. Rows of other particles have subhalo -1.
    """
    columns, to_rank = _both_outputs(part, later, rank, comm.num_ranks())
    (low, high, subhalo, rank), count, _ = _exchanged(columns, to_rank, "links")
    order = kernels.sort_words([high, low, _is_later(rank)], count)
    low, high, subhalo, rank = (kernels.gather_rows(column, order) for column in (low, high, subhalo, rank))
    is_match, *copies = _matches(low, high, rank, count)
    faults = [
        comm.Fault(number > 0, [number], _REPEATED % name)
        for name, number_here in zip(("part", "later"), copies, strict=True)
        for number in [comm.wide_sum(number_here).clipped()]
    ]
    return *_matched(is_match, subhalo, comm.check_all(count, faults)), rank


@functools.partial(jax.jit, static_argnames="ndev", inline=True)
def _both_outputs(
    part: CheckedMembers, later: CheckedMembers, rank: jax.Array, ndev: int
) -> tuple[list[jax.Array], jax.Array]:
    """Return the words, subhaloes and ranks of the particles of both outputs, and the rank of the mesh of each."""
    words = jnp.concatenate([part.id, later.id])
    subhalo = jnp.concatenate([jnp.where(rank > 0, part.subhalo, -1), later.subhalo])
    rank = jnp.concatenate([rank, jnp.full(later.subhalo.shape, -1, jnp.int32)])
    is_particle = [jnp.arange(len(side.subhalo), dtype=jnp.int32) < side.num for side in (part, later)]
    to_rank = jnp.where(jnp.concatenate(is_particle), _rank_of_id(words, ndev), -1)
    return [words[:, 0], words[:, 1], subhalo, rank], to_rank


@functools.partial(jax.jit, inline=True)
def _is_later(rank: jax.Array) -> jax.Array:
    return (rank < 0).astype(jnp.int32)


@functools.partial(jax.jit, inline=True)
def _matches(
    low: jax.Array, high: jax.Array, rank: jax.Array, count: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return which sorted rows are common particles, and the numbers of repeated identifiers of both outputs."""
    is_used = jnp.arange(len(rank), dtype=jnp.int32) < count
    repeats = ~_differs(low, high) & is_used
    is_later = rank < 0
    is_match = jnp.append(repeats[1:] & is_later[1:] & ~is_later[:-1], jnp.zeros(min(len(rank), 1), bool))
    copies = repeats & ~jnp.roll(is_match, 1)
    earlier_copies, later_copies = (jnp.sum(copies & is_side, dtype=jnp.int32) for is_side in (~is_later, is_later))
    return is_match, earlier_copies, later_copies


@functools.partial(jax.jit, inline=True)
def _matched(is_match: jax.Array, subhalo: jax.Array, checked: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the subhalo, -1 if it has no common particle, and the later subhalo of each row."""
    descendant = jnp.roll(subhalo, -1)
    return jnp.where(is_match & (checked >= 0) & (descendant >= 0), subhalo, -1), descendant


def _rank_of_id(words: jax.Array, ndev: int) -> jax.Array:
    """Return a rank for each identifier, ``(n,)`` int32, by a hash (the last step of MurmurHash3)."""
    bits = words[:, 0] ^ (words[:, 1] * jnp.uint32(0x9E3779B1))
    for factor, shift in ((0x85EBCA6B, 13), (0xC2B2AE35, 16)):
        bits = (bits ^ (bits >> 16)) * jnp.uint32(factor)
        bits = bits ^ (bits >> shift)
    return (bits % jnp.uint32(ndev)).astype(jnp.int32)


def _best_links(subhalo: jax.Array, descendant: jax.Array, rank: jax.Array, rows: int, weights: Weights) -> Descendants:
    """Return the best descendant of each subhalo of this rank from common particles, ``(m,)`` each."""
    columns, count, _ = _exchanged([subhalo, descendant, rank], _owner(subhalo, rows), "common")
    order = kernels.sort_words(columns, count)
    subhalo, descendant, rank = (kernels.gather_rows(column, order) for column in columns)
    is_used, starts = _starts_of_lists(subhalo, descendant, count)
    # A list has the common particles of one pair of subhaloes. Their float32 weights are added in float64.
    exponent = -1.0 if weights == "sublink" else -2.0 / 3.0
    weight = jnp.where(is_used, jnp.maximum(rank, 1).astype(jnp.float32) ** exponent, 0)
    score = kernels.reduce_lists("sum", weight, starts)
    first, row, splits = _lists_of_rows(subhalo, starts, count, comm.get_rank_info()[0], rows)
    best = kernels.reduce_lists("max", score, splits)
    smallest = kernels.reduce_lists("min", _candidates(score, best, row, descendant, first), splits)
    return _links(splits, smallest, best)


@functools.partial(jax.jit, inline=True)
def _starts_of_lists(subhalo: jax.Array, descendant: jax.Array, count: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return which rows are used, and the first row of each pair of subhaloes, ``count`` after the last pair."""
    n = len(subhalo)
    place = jnp.arange(n, dtype=jnp.int32)
    begins = _differs(subhalo, descendant) & (place < count)
    number = jnp.cumsum(begins, dtype=jnp.int32) - 1
    starts = jnp.full(n + 1, count, jnp.int32).at[jnp.where(begins, number, n + 1)].set(place, mode="drop")
    return place < count, starts


@functools.partial(jax.jit, static_argnames="rows", inline=True)
def _lists_of_rows(
    subhalo: jax.Array, starts: jax.Array, count: jax.Array, rank: jax.Array, rows: int
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the first particle and the row of each pair of subhaloes, and the first pair of each row."""
    first = jnp.minimum(starts[:-1], max(len(subhalo) - 1, 0))
    row = jnp.where(starts[:-1] < count, subhalo[first] - rank * rows, rows)
    lists = jnp.zeros(rows, jnp.int32).at[row].add(1, mode="drop")
    return first, row, jnp.append(0, jnp.cumsum(lists, dtype=jnp.int32))


@functools.partial(jax.jit, inline=True)
def _candidates(
    score: jax.Array, best: jax.Array, row: jax.Array, descendant: jax.Array, first: jax.Array
) -> jax.Array:
    """Return the later subhalo of each pair with the best score of its row."""
    is_best = score == best.at[row].get(mode="fill", fill_value=-1)
    return jnp.where(is_best, descendant[first], jnp.iinfo(jnp.int32).max)


@functools.partial(jax.jit, inline=True)
def _links(splits: jax.Array, smallest: jax.Array, best: jax.Array) -> Descendants:
    linked = splits[1:] > splits[:-1]
    return Descendants(jnp.where(linked, smallest, -1), jnp.where(linked, best, 0), jnp.zeros(linked.shape, bool))


@with_twins({"links": P(-1), "later_links": P(-1), "skipping_links": P(-1)}, P(-1))
def skip_output(links: Descendants, later_links: Descendants, skipping_links: Descendants) -> Descendants:
    """Let links skip the next output if the finder lost the subhalo there (Rodriguez-Gomez et al. 2015, section 3.1).

    In a dense region, such as the centre of a larger halo, the finder can lose a subhalo for an output. Its particles
    then belong to the larger halo, whose descendant is another object than the subhalo found again. So if the
    descendant of the descendant is not the subhalo that `descendants` finds in the output after the next one, the
    result is the latter. A link to the next output also stays if the output after it has no descendant.

    Args:
        links: The descendants in the next output.
        later_links: The descendants of the subhaloes of the next output in the output after it.
        skipping_links: The descendants in the output after the next one, of the same subhaloes as ``links``.

    Returns:
        The links, with ``skips`` set for each descendant in the output after the next one.

    Raises:
        ValueError: If ``links`` and ``skipping_links`` have different numbers of rows.

    Examples:
        >>> outputs = [(np.array([0, 0, 1, 1]), 2), (np.array([0, 0, 0, 0]), 1), (np.array([0, 0, 1, 1]), 2)]
        >>> parts = [jz.links.SubhaloMembers(np.arange(4), subhalo, np.arange(4.0)) for subhalo, _ in outputs]
        >>> links = [jz.descendants(parts[i], parts[j], outputs[i][1]) for i, j in ((0, 1), (1, 2), (0, 2))]
        >>> lost = jz.links.skip_output(*links)
        >>> lost.subhalo, lost.skips
        (Array([0, 1], dtype=int32), Array([False,  True], dtype=bool))
    """
    check_representable({"links": links, "later_links": later_links, "skipping_links": skipping_links})
    shapes = np.shape(links.subhalo), np.shape(skipping_links.subhalo)
    if shapes[0] != shapes[1]:
        raise ValueError(
            "links and skipping_links must have a row for each subhalo of the same output; their shapes are "
            f"{shapes[0]} and {shapes[1]}."
        )
    descendant, rows = jnp.asarray(links.subhalo), np.shape(later_links.subhalo)[0]
    if rows:
        n = descendant.shape[0]
        owner, row = _owner(descendant, rows), jnp.where(descendant >= 0, descendant % rows, 0)
        after_next = comm.fetch(jnp.asarray(later_links.subhalo), owner, row, n, n)
    else:
        after_next = jnp.full_like(descendant, -1)
    skipping = jnp.asarray(skipping_links.subhalo)
    skips = (skipping >= 0) & ((descendant < 0) | (after_next != skipping))
    return Descendants(
        jnp.where(skips, skipping, descendant),
        jnp.where(skips, jnp.asarray(skipping_links.score), jnp.asarray(links.score)),
        skips,
    )
