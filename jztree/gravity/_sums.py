"""Sums over the pairs of particles of each group, on one device or over ranks, with their derivatives.

Over ranks, a group is summed on one rank, which collects its particles. Without groups, every rank gathers all
particles and sums for its share of them. So the kernels get the particles of a group in the same order as on one
device, and the results have the same bits.

The potential is linear in the masses, and so is the acceleration. So tangents and cotangents are sums over pairs too,
where tangents or cotangents replace the masses: the same trees compute them. Only the change of an acceleration by
moving particles needs second derivatives of the potential, summed directly (`kernels.group_tides`).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.custom_derivatives import SymbolicZero

from .. import comm, kernels
from .._transform.capacity import Capacity
from ..arguments import first_row, value_of_row
from ..derivatives import Linear, apply_linear
from ..jax_ext import Exact
from ..knn import rows_by_mask

_BAD_GROUP = (
    "the group of row {0} is {1}, which is not a row of its own group; pass labels of these particles from "
    "jztree.group_labels."
)
_NO_TIDES = (
    "sums over all images of a periodic box have no derivatives of accelerations with respect to positions; pass "
    "groups, for nearest images within groups, or leave out boxsize."
)


class Groups(NamedTuple):
    """The rows that are summed on this device, and the numbers of the sums.

    Attributes:
        num: int32, the number of particles that the caller holds here.
        rank: ``(n,)`` int32, the rank that sums the group of each row, or -1. None on one device and without groups.
        order: ``(m,)`` int32, the collected rows in group order.
        segments: The number of groups, and count and offset of each.
        softening: One length.
        box: ``(d,)`` lengths, 0 if open.
        error: The relative error.
    """

    num: jax.Array
    rank: jax.Array | None
    order: jax.Array
    segments: tuple[jax.Array, jax.Array, jax.Array]
    softening: Exact
    box: Exact
    error: Exact


@dataclasses.dataclass(frozen=True)
class Law:
    """What is known when the program is compiled.

    Attributes:
        spline: Whether to soften by Gadget's spline.
        images: Whether to sum over all images if the box is periodic.
        capacity: The size of the buffer for collected particles.
    """

    spline: bool
    images: bool
    capacity: Capacity


def make_groups(labels: jax.Array | None, n: int, num: jax.Array, law: Law, lengths: tuple[Exact, ...]) -> Groups:
    """Return the groups of this rank's ``n`` rows, or raise on every rank if a label is invalid.

    Args:
        labels: ``(n,)`` int32, rows of the joined particles of all ranks. None means one group of all particles.
        n: Number of rows.
        num: int32, the number of rows that hold particles.
        law: The kind of sums.
        lengths: Softening, box and error.
    """
    if comm.num_ranks() == 1:
        if labels is not None:
            num = _check_labels(labels, num)
        # Without labels, all particles are the group of row 0.
        labels = jnp.zeros((n,), jnp.int32) if labels is None else labels
        order, ngroups, count, offset = kernels.group_order(labels, num, 1)
        return Groups(num, None, order, (ngroups, count, offset), *lengths)
    if labels is None:
        return Groups(num, None, *_one_group(n, num), *lengths)
    return Groups(num, *_groups_over_ranks(labels, num, law), *lengths)


def _check_labels(labels: jax.Array, num: jax.Array) -> jax.Array:
    row = first_row(_are_bad(labels, num))
    return comm.check(num, row >= 0, [row, value_of_row(labels, row)], _BAD_GROUP)


@functools.partial(jax.jit, inline=True)
def _are_bad(labels: jax.Array, num: jax.Array) -> jax.Array:
    rows = jnp.arange(labels.shape[0], dtype=jnp.int32)
    inside = (labels >= 0) & (labels <= rows)
    return (rows < num) & ~(inside & (labels[jnp.clip(labels, 0)] == labels))


def _one_group(n: int, num: jax.Array) -> tuple[jax.Array, Any]:
    """Return the order of the gathered rows, and all particles as one group."""
    nums = comm.all_gather(num)
    valid = jnp.arange(n, dtype=jnp.int32)[None, :] < nums[:, None]
    order, total = rows_by_mask(valid.reshape(-1), valid.size)
    return order, ((total > 0).astype(jnp.int32), total[None], jnp.zeros((1,), jnp.int32))


def _groups_over_ranks(labels: jax.Array, num: jax.Array, law: Law) -> tuple[jax.Array, jax.Array, Any]:
    """Return the rank of each row's group, the order of the collected rows, and the groups that they form."""
    rank, ndev, _ = comm.get_rank_info()
    rows = comm.starts_of(comm.all_gather(num))[rank] + jnp.arange(labels.shape[0], dtype=jnp.int32)
    row = first_row((labels < 0) | (labels > rows), num)
    num = comm.check(num, row >= 0, [rows[row], labels[row]], _BAD_GROUP)
    # Shares by label keep the ranks equally busy, also if the particles of a group are on all ranks.
    to_rank = jnp.where(labels >= 0, labels % ndev, -1)
    (label, row), received, _ = comm.exchange_by_rank((labels, rows), to_rank, num, law.capacity, **_BUFFER)
    valid = jnp.arange(row.shape[0], dtype=jnp.int32) < received
    # Rows arrive in rising order, so the labels of the joined rows are found by bisection.
    first = jnp.searchsorted(jnp.where(valid, row, jnp.iinfo(jnp.int32).max), label).astype(jnp.int32)
    first = jnp.minimum(first, row.shape[0] - 1)
    bad = first_row((row[first] != label) | (label[first] != label), received)
    received = comm.check(received, bad >= 0, [row[bad], label[bad]], _BAD_GROUP)
    order, ngroups, count, offset = kernels.group_order(first, received, 1)
    return to_rank, order, (ngroups, count, offset)


_BUFFER: dict[str, Any] = {
    "what": "particles of groups that are summed there",
    "advice": "set group_rows to that or more.",
    "name": "groups",
}


def _over_groups(law: Law, groups: Groups, columns: Any, kernel: Callable[..., Any]) -> Any:
    """Return ``kernel(*columns, share=..., shares=...)`` for collected columns in group order, at the caller's rows."""
    rank, ndev, _ = comm.get_rank_info()
    rows, route, share = columns, None, {"share": 0, "shares": 1}
    if groups.rank is not None:
        rows, _, route = comm.exchange_by_rank(columns, groups.rank, groups.num, law.capacity, **_BUFFER)
    elif ndev > 1:
        share = {"share": rank, "shares": ndev}
        rows = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), comm.all_gather_rows(columns))
    results = kernel(*(kernels.gather_rows(column, groups.order) for column in rows), **share)
    results = jax.tree.map(lambda leaf: kernels.scatter_rows(leaf, groups.order), results)
    if route is not None:
        return comm.send_back(results, route)
    return jax.tree.map(_own_rows, results) if ndev > 1 else results


def _own_rows(values: jax.Array) -> jax.Array:
    """Return this rank's rows of ``values``, of which each rank has computed a share, and 0 elsewhere."""
    parts = comm.swap(values.reshape(comm.num_ranks(), -1, *values.shape[1:]))
    words = jax.lax.bitcast_convert_type(parts, jnp.uint32)
    return jax.lax.bitcast_convert_type(words.sum(axis=0, dtype=jnp.uint32), values.dtype)


def _fields(law: Law, pos: jax.Array, mass: jax.Array, groups: Groups, *, acceleration: bool) -> Any:
    """Return potentials, and accelerations if requested."""

    def kernel(pos: jax.Array, mass: jax.Array, **share: Any) -> Any:
        lengths = groups.softening, groups.box, groups.error
        how = {"spline": law.spline, "images": law.images, "acceleration": acceleration, **share}
        results = kernels.group_potential(pos, mass, groups.segments, *lengths, **how)
        return results if acceleration else results[0]

    return _over_groups(law, groups, (pos, mass), kernel)


def _tides(law: Law, pos: jax.Array, mass: jax.Array, moves: jax.Array, groups: Groups, *, transposed: bool) -> Any:
    """Return the change of accelerations if the particles move, or its transpose."""

    if law.images:
        is_periodic = (groups.box.words[:, 0] > 0).any()
        pos = comm.after(pos, comm.check(0, is_periodic, [], _NO_TIDES))

    def kernel(pos: jax.Array, mass: jax.Array, moves: jax.Array, **share: Any) -> jax.Array:
        how = {"spline": law.spline, "transposed": transposed, **share}
        return kernels.group_tides(pos, mass, moves, groups.segments, groups.softening, groups.box, **how)

    return _over_groups(law, groups, (pos, mass, moves), kernel)


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def potentials(law: Law, pos: jax.Array, mass: jax.Array, groups: Groups) -> jax.Array:
    """Return ``(n,)`` potentials, for a constant of gravity of 1, with derivatives by positions and masses."""
    result: jax.Array = _fields(law, pos, mass, groups, acceleration=False)
    return result


@functools.partial(jax.custom_jvp, nondiff_argnums=(0,))
def accelerations(law: Law, pos: jax.Array, mass: jax.Array, groups: Groups) -> tuple[jax.Array, jax.Array]:
    """Return ``(n,)`` potentials and ``(n, d)`` accelerations with derivatives, as `potentials` does."""
    result: tuple[jax.Array, jax.Array] = _fields(law, pos, mass, groups, acceleration=True)
    return result


@dataclasses.dataclass(frozen=True)
class _PotentialChange:
    """The change of potentials with the moves of particles and the changes of their masses."""

    law: Law

    def forward(self, constants: Any, changes: tuple[jax.Array, jax.Array]) -> jax.Array:
        (pos, mass, groups), (moves, masses) = constants, changes
        by_moves = _divergence(self.law, pos, mass[:, None] * moves, groups)
        along = jnp.sum(accelerations(self.law, pos, mass, groups)[1] * moves, axis=1)
        return potentials(self.law, pos, masses, groups) - along + by_moves

    def transposed(self, constants: Any, cotangent: jax.Array) -> tuple[jax.Array, jax.Array]:
        pos, mass, groups = constants
        by_mass, of_cotangents = accelerations(self.law, pos, cotangent, groups)
        of_masses = accelerations(self.law, pos, mass, groups)[1]
        return -(cotangent[:, None] * of_masses + mass[:, None] * of_cotangents), by_mass


@dataclasses.dataclass(frozen=True)
class _AccelerationByMasses:
    """The change of accelerations with the masses."""

    law: Law

    def forward(self, constants: Any, masses: jax.Array) -> jax.Array:
        pos, _, groups = constants
        return accelerations(self.law, pos, masses, groups)[1]

    def transposed(self, constants: Any, cotangent: jax.Array) -> jax.Array:
        pos, _, groups = constants
        return -_divergence(self.law, pos, cotangent, groups)


@dataclasses.dataclass(frozen=True)
class _AccelerationByMoves:
    """The change of accelerations with the positions."""

    law: Law

    def forward(self, constants: Any, moves: jax.Array) -> jax.Array:
        pos, mass, groups = constants
        return _tides(self.law, pos, mass, moves, groups, transposed=False)

    def transposed(self, constants: Any, cotangent: jax.Array) -> jax.Array:
        pos, mass, groups = constants
        return _tides(self.law, pos, mass, cotangent, groups, transposed=True)


def _divergence(law: Law, pos: jax.Array, weights: jax.Array, groups: Groups) -> jax.Array:
    """Return ``(n,)``: the sum over the axes of the acceleration along an axis due to the weights of that axis."""
    parts = [accelerations(law, pos, weights[:, d], groups)[1][:, d] for d in range(pos.shape[1])]
    return functools.reduce(jnp.add, parts)


def _change_of_potentials(law: Law, primals: Any, tangents: Any) -> jax.Array:
    changes = tuple(jnp.zeros(x.shape, x.dtype) if _is_zero(x) else x for x in tangents[:2])
    result: jax.Array = apply_linear(_PotentialChange(law), primals, changes)
    return result


def _is_zero(tangent: Any) -> bool:
    return isinstance(tangent, SymbolicZero)


def _potentials_jvp(law: Law, primals: Any, tangents: Any) -> Any:
    return potentials(law, *primals), _change_of_potentials(law, primals, tangents)


def _accelerations_jvp(law: Law, primals: Any, tangents: Any) -> Any:
    functions: tuple[Linear, ...] = _AccelerationByMoves(law), _AccelerationByMasses(law)
    pairs = [pair for pair in zip(functions, tangents[:2], strict=True) if not _is_zero(pair[1])]
    changes = [apply_linear(function, primals, tangent) for function, tangent in pairs]
    change = functools.reduce(jnp.add, changes) if changes else jnp.zeros_like(primals[0])
    return accelerations(law, *primals), (_change_of_potentials(law, primals, tangents), change)


potentials.defjvp(_potentials_jvp, symbolic_zeros=True)
accelerations.defjvp(_accelerations_jvp, symbolic_zeros=True)
