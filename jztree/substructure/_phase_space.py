"""Candidates for subhaloes from friends-of-friends groups in phase space (Rockstar, Behroozi et al. 2013).

Sets of particles split level by level, and all sets of a level split together. Each set has its own scale of lengths
and velocities. One more coordinate separates the sets, so that one tree serves all.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..config import TreeConfig
from ..derivatives import nearest_difference
from ..halos import WholeGroups
from ..jax_ext import Exact, exact
from ..knn import rows_by_mask
from ..tree import Domain, build_in_domain, kernel_tree
from ._candidates import Candidates
from ._unbinding import Members, sorted_rows

# Two pieces of a set belong together if their centres differ by less than this number of standard errors.
_SEPARATION = 10 * 2**0.5


class _Sets(NamedTuple):
    """The sets of a level, and the candidates so far.

    Attributes:
        rows: ``(n,)`` int32, the particles sorted by set; then all others.
        splits: ``(c + 1,)`` int32, the places of each set in ``rows``. Some sets are empty.
        candidate: ``(c,)`` int32, the candidate of each set.
        candidates: The candidates, with heights of 0.
        num: int32, the number of candidates.
    """

    rows: jax.Array
    splits: jax.Array
    candidate: jax.Array
    candidates: Candidates
    num: jax.Array


class _Points(NamedTuple):
    """Particles in phase space, sorted in z-order.

    Attributes:
        pos: ``(n, 2 d + 1)``: position, velocity and a distance between sets.
        num: int32, the number of particles.
        domain: The domain of the z-order.
        row: ``(n,)`` int32, the input row of each.
    """

    pos: jax.Array
    num: jax.Array
    domain: Domain
    row: jax.Array

    @classmethod
    def sort(cls, pos: jax.Array, num: jax.Array) -> _Points:
        lower, upper = kernels.bounds(pos, num)[:2]
        domain = Domain(lower, upper, _open_box(pos), (lower, upper))
        row, posz = domain.zsort(pos, num)
        return cls(posz, num, domain, row)

    def tree(self) -> kernels.Tree:
        return kernel_tree(self.pos, self.num, build_in_domain(self.pos, self.num, self.domain, TreeConfig()))


class _Pieces(NamedTuple):
    """Groups inside the sets.

    Attributes:
        of_place: ``(n,)`` int32, the piece of each particle; -1 for none.
        sets: ``(c,)`` int32, the set of each piece, in ascending order; ``c`` for unused rows.
    """

    of_place: jax.Array
    sets: jax.Array

    def largest(self, sizes: jax.Array) -> jax.Array:
        """Return the piece of the largest size in the set of each piece; the first of equal ones. ``(c,)`` int32."""
        numbers = jnp.arange(sizes.shape[0] + 1, dtype=jnp.int32)
        splits = jnp.searchsorted(self.sets, numbers).astype(jnp.int32)
        size = jnp.append(kernels.reduce_lists("max", sizes, splits), 0)[self.sets]
        is_largest = jnp.where(sizes == size, numbers[:-1], numbers[-1])
        return jnp.minimum(jnp.append(kernels.reduce_lists("min", is_largest, splits), 0)[self.sets], numbers[-2])


@functools.partial(jax.jit, static_argnames="min_count", inline=True)
def phase_space_candidates(members: Members, groups: WholeGroups, box: Exact, min_count: int) -> Candidates:
    """Find the candidates in whole groups.

    Args:
        members: The particles.
        groups: Their groups.
        box: ``(d,)`` periodic lengths, 0 if open.
        min_count: The smallest number of particles of a candidate.
    """
    n = members.mass.shape[0]
    capacity, num_groups = max(n // min_count, 1), groups.count.shape[0]
    group = groups.groups_of_rows()
    is_large = (groups.count >= min_count) & (jnp.arange(num_groups, dtype=jnp.int32) < groups.ngroups)
    number = jnp.append(jnp.where(is_large, jnp.cumsum(is_large, dtype=jnp.int32) - 1, -1), -1)
    num = jnp.sum(is_large, dtype=jnp.int32)
    rows, splits = sorted_rows(number[group], capacity)
    numbers = jnp.arange(capacity, dtype=jnp.int32)
    parent = jnp.where(numbers < num, -1, -2).astype(jnp.int32)
    candidates = Candidates(number[group], parent, jnp.zeros_like(parent))
    first = jnp.clip(jnp.append(groups.offset, 0)[group], 0, n - 1)
    phase = jnp.concatenate([nearest_difference(members.pos, members.pos[first], box), members.vel], axis=1)
    sets = jax.lax.while_loop(
        lambda sets: sets.splits[-1] > 0,
        functools.partial(_split, phase, min_count),
        jax.tree.map(comm.vary, _Sets(rows, splits, numbers, candidates, num)),
    )
    parent = sets.candidates.parent
    return sets.candidates._replace(height=jnp.where(parent == -2, -1, _heights(parent)))


def _heights(parent: jax.Array) -> jax.Array:
    """Return how deep smaller candidates are nested inside each candidate."""
    inside = jnp.where(parent >= 0, parent, parent.shape[0])

    def raised(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        height = state[0].at[inside].max(state[0] + 1, mode="drop")
        return height, jnp.any(height != state[0])

    start = jnp.zeros_like(parent), comm.vary(jnp.asarray(True))
    return jax.lax.while_loop(lambda state: state[1], raised, start)[0]


def _split(phase: jax.Array, min_count: int, sets: _Sets) -> _Sets:
    """Split each set into pieces. The largest piece continues its candidate, and all others are new candidates.

    Args:
        phase: ``(n, 2 d)``, positions and velocities.
        min_count: The smallest number of particles of a piece.
        sets: The sets.
    """
    (n, _), capacity = phase.shape, sets.candidate.shape[0]
    candidates, set_of = sets.candidates, kernels.entry_lists(sets.splits, n)
    is_used = jnp.diff(sets.splits) > 0
    set_of_candidate = jnp.full(capacity + 1, capacity, jnp.int32)
    place = jnp.where(is_used, sets.candidate, capacity + 1)
    set_of_candidate = set_of_candidate.at[place].set(jnp.arange(capacity, dtype=jnp.int32), mode="drop")
    held = jnp.where(candidates.inner >= 0, set_of_candidate[candidates.inner], capacity)
    coordinates = _coordinates(phase, held, sets)
    points = _Points.sort(kernels.gather_rows(coordinates, sets.rows), sets.splits[-1])
    pieces = _without_noise(_pieces(points, sets.splits, set_of, min_count), coordinates, sets)
    joined = _with_nearest(pieces, coordinates, held, sets)
    sizes = _sizes(joined, capacity)
    is_new = (sizes > 0) & (pieces.largest(sizes) != jnp.arange(capacity, dtype=jnp.int32))
    holder = jnp.append(sets.candidate, -1)[pieces.sets]
    candidate = jnp.where(is_new, sets.num + jnp.cumsum(is_new, dtype=jnp.int32) - 1, holder)
    inner = jnp.where((joined >= 0) & is_new[joined], candidate[joined], candidates.inner)
    parent = candidates.parent.at[jnp.where(is_new, candidate, capacity)].set(holder, mode="drop")
    order, splits = sorted_rows(pieces.of_place, capacity)
    num = sets.num + jnp.sum(is_new, dtype=jnp.int32)
    return _Sets(sets.rows[order], splits, candidate, candidates._replace(inner=inner, parent=parent), num)


def _sizes(piece: jax.Array, capacity: int) -> jax.Array:
    """Return the number of rows of each piece, ``(capacity,)`` int32; -1 is no piece."""
    return jnp.zeros(capacity, jnp.int32).at[jnp.where(piece >= 0, piece, capacity)].add(1, mode="drop")


def _coordinates(phase: jax.Array, held: jax.Array, sets: _Sets) -> jax.Array:
    """Return coordinates in the metric of the set that holds each particle, ``(n, 2 d + 1)``.

    Positions and velocities are relative to the mean of the set, in units of its dispersions. The last coordinate
    separates the sets by more than the distance of any two particles that one set holds.
    """
    set_of = kernels.entry_lists(sets.splits, len(held))
    number, dims = jnp.maximum(jnp.diff(sets.splits), 1), phase.shape[1] // 2

    def scaled(values: jax.Array) -> jax.Array:
        members = kernels.gather_rows(values, sets.rows)
        mean = _padded(kernels.reduce_lists("sum", members, sets.splits) / number[:, None])
        offset = members - mean[set_of]
        # Squares of offsets may be out of range.
        largest = kernels.reduce_lists("max", jnp.max(jnp.abs(offset), axis=1), sets.splits)
        offset = _quotient(offset, _padded(largest)[set_of][:, None])
        variance = kernels.reduce_lists("sum", jnp.sum(offset**2, axis=1), sets.splits) / number
        return _quotient(values - mean[held], _padded(largest * jnp.sqrt(variance))[held][:, None])

    result = jnp.concatenate([scaled(phase[:, :dims]), scaled(phase[:, dims:])], axis=1)
    distance = 8 * dims * (jnp.max(jnp.abs(result)) + 1)
    return jnp.append(result, (distance * held.astype(result.dtype))[:, None], axis=1)


def _padded(of_sets: jax.Array) -> jax.Array:
    """Append a row of zeros, for particles in no set."""
    return jnp.concatenate([of_sets, jnp.zeros_like(of_sets[:1])])


def _quotient(values: jax.Array, scale: jax.Array) -> jax.Array:
    """Return ``values / scale``, and 0 if the scale is 0."""
    return jnp.where(scale > 0, values / jnp.where(scale > 0, scale, 1), 0)


def _open_box(pos: jax.Array) -> Exact:
    return exact(0.0, pos.shape[1:])


def _pieces(points: _Points, splits: jax.Array, set_of: jax.Array, min_count: int) -> _Pieces:
    """Return the groups of at least ``min_count`` particles of each set. Whole sets are no pieces."""
    n, capacity = set_of.shape[0], splits.shape[0] - 1
    tree, box, places = points.tree(), _open_box(points.pos), jnp.arange(n, dtype=jnp.int32)
    nearest = kernels.knn(tree, None, None, points.row, 1, box, others=True)[0][:, 0]
    # Distances are rounded, and the pair that sets the length must be linked.
    length = _padded(jnp.nextafter(_linking_lengths(nearest, splits, set_of), jnp.inf))
    label = kernels.fof(tree, points.row, exact(length[set_of[points.row]], (n,)), box)
    size = jnp.zeros(n, jnp.int32).at[label].add((set_of < capacity).astype(jnp.int32))
    is_first = (label == places) & (size >= min_count) & (size < _padded(jnp.diff(splits))[set_of])
    is_first &= length[set_of] > jnp.finfo(length.dtype).tiny
    number = jnp.where(is_first, jnp.cumsum(is_first, dtype=jnp.int32) - 1, -1)
    first = jnp.where(is_first, number, capacity)
    sets = jnp.full(capacity, capacity, jnp.int32).at[first].set(set_of, mode="drop")
    return _Pieces(jnp.where(set_of < capacity, number[label], -1), sets)


def _linking_lengths(nearest: jax.Array, splits: jax.Array, set_of: jax.Array) -> jax.Array:
    """Return the distance that 90 % of the distances ``nearest`` of each set do not exceed; 0 for less than two.

    Rockstar takes 70 %. Sets then shrink faster, and a host that is less dense in phase space than its subhalo may have
    too few linked particles when the two separate.
    """
    count = jnp.diff(splits)
    order = kernels.sort_words([set_of, *kernels.descending_words(-nearest)], splits[-1])
    last = splits[:-1] + count - count // 10 - 1
    return jnp.where(count > 1, nearest[order[jnp.clip(last, 0, len(order) - 1)]], 0)


def _without_noise(pieces: _Pieces, coordinates: jax.Array, sets: _Sets) -> _Pieces:
    """Join each piece to a larger one, the largest or the nearest one, unless their centres differ significantly.

    If all particles of a set are then in one piece, it is not a piece.
    """
    capacity, dims = pieces.sets.shape[0], coordinates.shape[1] // 2
    order, splits = sorted_rows(pieces.of_place, capacity)
    values, count = kernels.gather_rows(coordinates, sets.rows[order]), jnp.diff(splits)
    number = jnp.maximum(count, 1)[:, None]
    mean = kernels.reduce_lists("sum", values[:, :-1], splits) / number
    offset = values[:, :-1] - _padded(mean)[kernels.entry_lists(splits, len(order))]
    squares = kernels.reduce_lists("sum", offset**2, splits)
    error2 = squares / number.astype(squares.dtype) ** 2  # the square of an int32 may overflow
    centre = jnp.append(mean, values[jnp.minimum(splits[:-1], len(order) - 1), -1:], axis=1)

    def joined(target: jax.Array) -> jax.Array:
        distance2, both2 = (mean - mean[target]) ** 2, error2 + error2[target]
        distance2, both2 = (jnp.sum(x.reshape(capacity, 2, dims), axis=2) for x in (distance2, both2))
        ratio2 = jnp.sum(jnp.where(distance2 > 0, distance2 / both2, 0), axis=1)
        is_larger = (count[target] > count) | ((count[target] == count) & (target < numbers))
        return is_larger & (pieces.sets[target] == pieces.sets) & (ratio2 < _SEPARATION**2)

    numbers, largest, nearest = (
        jnp.arange(capacity, dtype=jnp.int32),
        pieces.largest(count),
        _nearest(centre, count > 0),
    )
    target = jnp.where(joined(largest), largest, jnp.where(joined(nearest), nearest, numbers))
    target = jax.lax.while_loop(lambda t: jnp.any(t[t] != t), lambda t: t[t], target)
    of_place = jnp.where(pieces.of_place >= 0, target[pieces.of_place], -1)
    is_whole = _sizes(of_place, capacity) == _padded(jnp.diff(sets.splits))[pieces.sets]
    return pieces._replace(of_place=jnp.where(is_whole[of_place], -1, of_place))


def _nearest(pos: jax.Array, mask: jax.Array) -> jax.Array:
    """Return the nearest other marked row of each marked row; 0 for none, and for other rows."""
    points, row = _selected(pos, mask)
    nearest = kernels.knn(points.tree(), row, None, row, 1, _open_box(pos), others=True, radii=False)[1][:, 0]
    return jnp.maximum(nearest, 0)


def _selected(pos: jax.Array, mask: jax.Array) -> tuple[_Points, jax.Array]:
    """Return the marked rows in z-order, and the row of each."""
    order, num = rows_by_mask(mask, len(pos))
    points = _Points.sort(kernels.gather_rows(pos, order), num)
    return points, order[points.row]


def _with_nearest(pieces: _Pieces, coordinates: jax.Array, held: jax.Array, sets: _Sets) -> jax.Array:
    """Return the piece of each row. If a set has several pieces, each particle that it holds joins the nearest one."""
    capacity = pieces.sets.shape[0]
    of_row = jnp.full_like(held, -1).at[sets.rows].set(pieces.of_place)
    exists = _sizes(pieces.of_place, capacity) > 0
    num_pieces = jnp.zeros(capacity + 1, jnp.int32).at[jnp.where(exists, pieces.sets, capacity)].add(1)
    is_split = jnp.append(num_pieces[:-1] > 1, False)[held]

    def join(of_row: jax.Array) -> jax.Array:
        is_free = is_split & (of_row < 0)
        sources, source_rows = _selected(coordinates, is_split & (of_row >= 0))
        queries, query_rows = _selected(coordinates, is_free)
        nearest = kernels.knn(
            *(sources.tree(), source_rows, queries.tree(), query_rows, 1, _open_box(coordinates)), radii=False
        )[1][:, 0]
        return jnp.where(is_free, of_row[jnp.maximum(nearest, 0)], of_row)

    return jax.lax.cond(jnp.any(is_split & (of_row < 0)), join, lambda of_row: of_row, of_row)
