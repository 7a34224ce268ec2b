"""Remove unbound particles from candidates, the innermost candidates first.

All candidates of a height take their steps together: their rows are contiguous, and one call of each kernel serves all.
Candidates that are finished leave the buffer, so their cost ends with them.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..jax_ext import Exact
from ..knn import rows_by_mask
from ._candidates import Candidates


class Members(NamedTuple):
    """The particles of whole groups.

    Attributes:
        pos: ``(n, d)``.
        mass: ``(n,)``.
        vel: ``(n, d)``.
        internal: ``(n,)`` internal energies per mass, or None.
    """

    pos: jax.Array
    mass: jax.Array
    vel: jax.Array
    internal: jax.Array | None

    def at(self, rows: jax.Array) -> Members:
        """Return the particles of some rows."""
        return jax.tree.map(lambda column: kernels.gather_rows(column, rows), self)


class Physics(NamedTuple):
    """Constants of nature.

    Attributes:
        box: ``(d,)`` periodic lengths, 0 if open.
        softening: One length.
        constants: ``(3,)``: the constant of gravity, the Hubble constant, and the scale factor.
        error: The relative error of potentials.
    """

    box: Exact
    softening: Exact
    constants: Exact
    error: Exact


class Rules(NamedTuple):
    """The rules of unbinding, which are compile-time constants.

    Attributes:
        min_bound: The smallest number of particles of a subhalo.
        tolerance: The fraction of particles that the last step may remove.
    """

    min_bound: int
    tolerance: float


class Bound(NamedTuple):
    """Bound particles, and the frames of candidates.

    Attributes:
        candidate: ``(n,)`` int32, the candidate that each particle is bound to; -1 for none.
        state: ``(n, 3)``, energy and potential per mass, and distance from the centre.
        centre: ``(c,)`` int32, the row of the particle of lowest potential.
        vel: ``(c, d)``, the mean velocity of the core.
        finite: Whether all energies are in the range of their dtype.
    """

    candidate: jax.Array
    state: jax.Array
    centre: jax.Array
    vel: jax.Array
    finite: jax.Array


class _Steps(NamedTuple):
    """The rows of candidates that are not finished, and all results so far.

    Attributes:
        rows: ``(n,)`` int32, sorted by candidate; then all others.
        splits: ``(c + 1,)`` int32, the places of each candidate.
        key: ``(n,)``, the energy of each after the last step.
        step: int32, the number of steps.
        bound: The results.
    """

    rows: jax.Array
    splits: jax.Array
    key: jax.Array
    step: jax.Array
    bound: Bound


@functools.partial(jax.jit, static_argnames="rules", inline=True)
def unbind(members: Members, candidates: Candidates, physics: Physics, rules: Rules) -> Bound:
    """Unbind all candidates. What a candidate loses falls to the next larger one."""
    n, num_candidates = members.mass.shape[0], candidates.parent.shape[0]
    parent, height = candidates.parent, candidates.height
    nothing = Bound(
        comm.vary(jnp.full((n,), -1, jnp.int32)),
        comm.vary(jnp.zeros((n, 3), members.pos.dtype)),
        comm.vary(jnp.full((num_candidates,), -1, jnp.int32)),
        comm.vary(jnp.zeros((num_candidates, members.pos.shape[1]), members.pos.dtype)),
        comm.vary(jnp.asarray(True)),
    )

    def unbind_level(state: tuple[jax.Array, jax.Array, Bound]) -> tuple[jax.Array, jax.Array, Bound]:
        level, holder, bound = state
        is_here = (holder >= 0) & (bound.candidate < 0) & (height[holder] == level)
        rows, splits = sorted_rows(jnp.where(is_here, holder, -1), num_candidates)
        steps = _Steps(rows, splits, jnp.zeros_like(members.mass), comm.vary(jnp.int32(0)), bound)
        bound = jax.lax.while_loop(
            lambda steps: steps.splits[-1] > 0, lambda steps: _step(members, steps, physics, rules), steps
        ).bound
        return level + 1, jnp.where(is_here & (bound.candidate < 0), parent[holder], holder), bound

    top = jnp.max(height, initial=-1)
    start = comm.vary(jnp.int32(0)), candidates.inner, nothing
    return jax.lax.while_loop(lambda state: state[0] <= top, unbind_level, start)[-1]


def sorted_rows(holder: jax.Array, num_candidates: int) -> tuple[jax.Array, jax.Array]:
    """Return the rows with a candidate, sorted by candidate, then all others; and the places of each candidate."""
    n = holder.shape[0]
    order, num = rows_by_mask(holder >= 0, n)
    rows = order[kernels.sort_words([holder[order]], num)]
    numbers = jnp.where(jnp.arange(n, dtype=jnp.int32) < num, holder[rows], num_candidates)
    splits = jnp.searchsorted(numbers, jnp.arange(num_candidates + 1, dtype=jnp.int32)).astype(jnp.int32)
    return rows, splits


def _step(members: Members, steps: _Steps, physics: Physics, rules: Rules) -> _Steps:
    """Compute energies, and remove the particles that are not bound."""
    n, num_candidates = steps.rows.shape[0], steps.splits.shape[0] - 1
    count = jnp.diff(steps.splits)
    segments = jnp.int32(num_candidates), count, steps.splits[:-1]
    part = members.at(steps.rows)
    potential, _ = kernels.group_potential(part.pos, part.mass, segments, physics.softening, physics.box, physics.error)
    key = jnp.where(steps.step == 0, potential, steps.key)
    state, centre, vel = kernels.bound_energies(
        (part.pos, part.mass, part.vel), segments, physics.box, part.internal, potential, key, physics.constants
    )
    candidate = kernels.entry_lists(steps.splits, n)
    stays = (state[:, 0] < 0) & (candidate < num_candidates)
    counts = kernels.reduce_lists("sum", stays.astype(jnp.int32), steps.splits)
    dissolved = counts < rules.min_bound
    finished = ~dissolved & ((count - counts).astype(jnp.float32) <= rules.tolerance * count.astype(jnp.float32))
    goes_on, ends = jnp.append(~dissolved & ~finished, False), jnp.append(finished, False)
    place = jnp.where(stays & ends[candidate], steps.rows, n)
    bound = Bound(
        steps.bound.candidate.at[place].set(candidate, mode="drop"),
        steps.bound.state.at[place].set(state, mode="drop"),
        jnp.where(finished, steps.rows[centre], steps.bound.centre),
        jnp.where(finished[:, None], vel, steps.bound.vel),
        steps.bound.finite & jnp.all(jnp.isfinite(state[:, 0]) | (candidate == num_candidates)),
    )
    order, _ = rows_by_mask(stays & goes_on[candidate], n)
    splits = jnp.append(jnp.int32(0), jnp.cumsum(jnp.where(goes_on[:-1], counts, 0), dtype=jnp.int32))
    return _Steps(steps.rows[order], splits, state[order, 0], steps.step + 1, bound)
