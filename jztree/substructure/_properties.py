"""Sort bound candidates into the table of subhaloes, and compute their properties."""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm, kernels
from ..jax_ext import exact_to_float
from ..knn import rows_by_mask
from ._candidates import Candidates
from ._unbinding import Bound, Members, Physics

_LAST = jnp.iinfo(jnp.int32).max


class Numbers(NamedTuple):
    """The order of subhaloes in the table.

    Attributes:
        num: int32, the number of subhaloes.
        candidate: ``(c,)`` int32, the candidate of each row of the table; the rows from ``num`` on are unused.
        number: ``(c + 1,)`` int32, the row of each candidate; -1 for candidates that dissolved, and at the end.
        count: ``(c,)`` int32, the bound particles of each row.
        group: ``(c,)`` int32.
        parent: ``(c,)`` int32, a row of the table, or -1.
        depth: ``(c,)`` int32.
    """

    num: jax.Array
    candidate: jax.Array
    number: jax.Array
    count: jax.Array  # type: ignore[assignment]  # the name is also a method of tuples
    group: jax.Array
    parent: jax.Array
    depth: jax.Array


@functools.partial(jax.jit, inline=True)
def number_subhaloes(bound: Bound, candidates: Candidates, group: jax.Array) -> Numbers:
    """Number subhaloes by group, with the central one first, then by falling count.

    Args:
        bound: The bound particles.
        candidates: The candidates.
        group: ``(n,)`` int32, the group of each particle.
    """
    num_candidates = candidates.parent.shape[0]
    count = (
        jnp.zeros(num_candidates, jnp.int32)
        .at[bound.candidate]
        .add((bound.candidate >= 0).astype(jnp.int32), mode="drop")
    )
    exists = count > 0
    group = group.at[bound.centre].get(mode="clip")
    is_inner = (candidates.parent >= 0).astype(jnp.int32)
    rows = jnp.arange(num_candidates, dtype=jnp.int32)
    order = kernels.sort_words([jnp.where(exists, group, _LAST), is_inner, _LAST - count, rows], num_candidates)
    num = jnp.sum(exists, dtype=jnp.int32)
    used = rows < num
    number = jnp.zeros(num_candidates, jnp.int32).at[order].set(rows, unique_indices=True)
    number = jnp.append(jnp.where(exists, number, -1), -1)
    # Candidates that dissolved are left out of the paths to larger ones.
    parent = jax.lax.while_loop(
        lambda parent: jnp.any((parent >= 0) & ~exists[parent]),
        lambda parent: jnp.where((parent >= 0) & ~exists[parent], candidates.parent[parent], parent),
        jnp.maximum(candidates.parent, -1),
    )
    depth = _depth(parent)
    columns = count, group, number[parent], depth
    fills = 0, -1, -1, 0
    return Numbers(
        num, order, number, *(jnp.where(used, column[order], fill) for column, fill in zip(columns, fills, strict=True))
    )


def _depth(parent: jax.Array) -> jax.Array:
    """Return the number of steps to the end of each path."""

    def deeper(state: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        place, depth = state
        return jnp.where(place >= 0, parent[place], -1), depth + (place >= 0).astype(jnp.int32)

    start = parent, jnp.zeros_like(parent)
    return jax.lax.while_loop(lambda state: jnp.any(state[0] >= 0), deeper, start)[1]


@functools.partial(jax.jit, static_argnames="num_types", inline=True)
def properties_of(
    members: Members, bound: Bound, numbers: Numbers, physics: Physics, types: jax.Array | None, num_types: int
) -> dict[str, Any]:
    """Return the columns of the table that are computed from bound particles. Rows refer to the members.

    Args:
        members: The particles.
        bound: The bound ones.
        numbers: The order of the table.
        physics: The constants.
        types: ``(n,)`` integers, the type of each particle, or None.
        num_types: The number of types.
    """
    n, rows_of_table = members.mass.shape[0], numbers.count.shape[0]
    used = jnp.arange(rows_of_table, dtype=jnp.int32) < numbers.num
    number = numbers.number[bound.candidate]
    rows = _by_radius(number, bound.state[:, 2])
    splits = jnp.append(jnp.int32(0), jnp.cumsum(numbers.count, dtype=jnp.int32))
    energy, potential, radius = jnp.moveaxis(kernels.gather_rows(bound.state, rows), 1, 0)
    part = members.at(rows)
    mass, com_pos, _, _, _, com_vel, dispersion, momentum = kernels.catalogue(
        part.pos, part.mass, part.vel, numbers.num, numbers.count, splits[:-1], physics.box
    )
    row_of_table = jnp.minimum(kernels.entry_lists(splits, n), rows_of_table - 1)
    enclosed = kernels.running_sums(part.mass, splits)
    gravity, _, scale_factor = jnp.asarray(exact_to_float(physics.constants), mass.dtype)
    steepness = jnp.where(radius > 0, enclosed / jnp.where(radius > 0, radius, 1), 0)
    steepest = jnp.maximum(kernels.reduce_lists("max", steepness, splits), 0)
    is_steepest = (steepness == steepest[row_of_table]) & (steepness > 0)
    total = enclosed.at[splits[1:] - 1].get(mode="clip")
    has_half = 2 * enclosed >= total[row_of_table]
    lowest = kernels.reduce_lists("min", energy, splits)
    columns = {
        "count_by_type": None if types is None else _count_by_type(types[rows], num_types, splits),
        "mass": mass,
        "most_bound": kernels.reduce_lists("min", jnp.where(energy == lowest[row_of_table], rows, _LAST), splits),
        "pos": members.pos.at[bound.centre[numbers.candidate]].get(mode="clip"),
        "vel": bound.vel[numbers.candidate],
        "com_pos": com_pos,
        "com_vel": com_vel,
        "vmax": jnp.sqrt(gravity / scale_factor) * jnp.sqrt(steepest),
        "rmax": _finite(kernels.reduce_lists("min", jnp.where(is_steepest, radius, jnp.inf), splits)),
        "half_mass_radius": _finite(kernels.reduce_lists("min", jnp.where(has_half, radius, jnp.inf), splits)),
        "vel_dispersion": dispersion,
        "angular_momentum": momentum,
    }
    # Squares and products may be out of range. Powers of two change no other bit.
    scaled_mass, exponent = _near_one(mass[:, None])
    terms = jnp.ldexp(part.mass, -exponent[row_of_table]) * potential
    depth = kernels.reduce_lists("sum", terms, splits) / jnp.where(mass > 0, scaled_mass[:, 0], 1)
    columns["spin"] = jnp.ldexp(_spin(columns | {"mass": scaled_mass[:, 0]}, depth, gravity, scale_factor), -exponent)
    return {name: None if column is None else _filled(name, column, used) for name, column in columns.items()}


def _count_by_type(types: jax.Array, num_types: int, splits: jax.Array) -> jax.Array:
    is_type = types[:, None] == jnp.arange(num_types, dtype=types.dtype)[None]
    return kernels.reduce_lists("sum", is_type.astype(jnp.int32), splits)


def _spin(columns: dict[str, Any], depth: jax.Array, gravity: jax.Array, scale_factor: jax.Array) -> jax.Array:
    """Return the spin parameter of subhaloes with the mean potential ``depth``."""
    mass, dispersion, momentum = (columns[name] for name in ("mass", "vel_dispersion", "angular_momentum"))
    spread = columns["pos"].shape[1] * dispersion * dispersion
    momentum, exponent = _near_one(momentum)
    turning = scale_factor * jnp.sqrt(kernels.sums_of_rows(momentum * momentum))
    specific_energy = kernels.sums_of_rows(jnp.stack([spread, depth], axis=1)) / 2
    spin = turning * jnp.sqrt(jnp.abs(specific_energy)) / jnp.where(mass > 0, gravity * mass, 1)
    return jnp.ldexp(spin, exponent)


def _near_one(rows: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Divide rows ``(n, d)`` by powers of two, whose exponents follow, so that their largest numbers are near 1."""
    exponent = jnp.frexp(jnp.max(jnp.abs(rows), axis=1, initial=0))[1]
    return jnp.ldexp(rows, -exponent[:, None]), exponent


def _filled(name: str, column: jax.Array, used: jax.Array) -> jax.Array:
    """Return a column with the values of no subhalo in rows that are not used."""
    empty = -1 if name == "most_bound" else 0
    return jnp.where(used.reshape(-1, *[1] * (column.ndim - 1)), column, empty).astype(column.dtype)


def _by_radius(number: jax.Array, radius: jax.Array) -> jax.Array:
    """Return the rows of subhaloes, sorted by subhalo and radius; then all others."""
    n = number.shape[0]
    order, num = rows_by_mask(number >= 0, n)
    words = [number[order], *kernels.descending_words(-radius[order]), order]
    return order[kernels.sort_words(words, num)]


def _finite(radius: jax.Array) -> jax.Array:
    return jnp.where(jnp.isfinite(radius), radius, 0)


def joined_numbers(number: jax.Array, num: jax.Array) -> jax.Array:
    """Convert row numbers of this device to numbers of the joined rows; -1 remains."""
    rank, ndev, _ = comm.get_rank_info()
    if ndev == 1:
        return number
    return jnp.where(number >= 0, number + comm.starts_of(comm.all_gather(num))[rank], -1)
