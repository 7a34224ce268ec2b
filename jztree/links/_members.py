"""The particles of subhaloes in one output: identifiers, subhaloes and binding energies."""

from __future__ import annotations

import functools
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from ..arguments import check_real_dtype, row_fault
from ..jax_ext import is_concrete
from ..particles import Array, check_representable, check_width, get_num, one_integer

_NO_SUBHALO = "subhalo of %s is below -1 or above %d in row {0}; -1 means no subhalo, and the others count from 0."
_NAN = "energy of %s is NaN in row {0}, which belongs to a subhalo; compute it again, or set subhalo to -1 there."


@jax.tree_util.register_dataclass
@dataclass
class SubhaloMembers:
    """Particles of one output with their subhaloes, in any order.

    Attributes:
        id: Identifiers, the same for a particle in all outputs: ``(n,)`` integers of any width, or ``(n, 2)`` uint32
            words, the low one first, as from `jztree_utils.io.split_words`. NumPy arrays of 64 bits lose nothing, also
            in JAX's 32-bit mode.
        subhalo: ``(n,)`` integers, the subhalo of each particle, counted from 0 over all ranks; -1 for none.
        energy: ``(n,)`` floats; the particle with the lowest energy of a subhalo is the most bound one. None is valid
            for the later output, whose energies have no effect.
        num: Number of rows that hold particles. None means all.
    """

    id: Array
    subhalo: Array
    energy: Array | None = None
    num: int | Array | None = None


def with_words(members: Any, name: str) -> SubhaloMembers:
    """Return members whose identifiers are words of 32 bits, ``(..., n, 2)`` uint32, the low one first."""
    if not isinstance(members, SubhaloMembers):
        raise TypeError(f"{name} must be a jztree.links.SubhaloMembers, not {type(members).__name__}.")
    for field in ("id", "subhalo", "energy"):
        if not hasattr(column := getattr(members, field), "dtype") and column is not None:
            raise TypeError(f"{field} of {name} must be an array, not {type(column).__name__}; use np.asarray.")
    check_width({name: members})  # before the identifiers are split
    ids, shape = members.id, np.shape(members.subhalo)
    if np.shape(ids) == (*shape, 2) and ids.dtype == np.uint32:
        return members
    if np.shape(ids) != shape or not jnp.issubdtype(ids.dtype, jnp.integer):
        raise ValueError(
            f"id of {name} must be integers of the shape of subhalo, {shape}, or two uint32 words each, not "
            f"{ids.dtype} of shape {np.shape(ids)}."
        )
    return replace(members, id=_words_of_array(ids) if isinstance(ids, jax.Array) else _words(ids, np))


def _words(ids: Any, xp: Any) -> Any:
    low = ids.astype(xp.uint32)
    if ids.dtype.itemsize > 4:
        high = (ids >> 32).astype(xp.uint32)
    else:  # the sign is in all higher bits
        high = xp.where(ids < 0, xp.uint32(0xFFFFFFFF), xp.uint32(0))
    return xp.stack([low, high], axis=-1)


@functools.partial(jax.jit, inline=True)
def _words_of_array(ids: jax.Array) -> Any:
    return _words(ids, jnp)


class CheckedMembers(NamedTuple):
    """Valid members: identifiers as words ``(n, 2)`` uint32, the low one first; subhalo is int32, -1 from num on."""

    id: jax.Array
    subhalo: jax.Array
    energy: jax.Array
    num: jax.Array


def check_members(members: Any, name: str, num_subhaloes: int | None = None) -> tuple[CheckedMembers, list[comm.Fault]]:
    """Return members and their possible faults.

    Args:
        members: The members.
        name: Their name in messages.
        num_subhaloes: Number of subhaloes, of members whose energies count.
    """
    members = with_words(members, name)
    check_representable({name: members})
    if np.ndim(members.subhalo) != 1 or not jnp.issubdtype(members.subhalo.dtype, jnp.integer):
        raise ValueError(
            f"subhalo of {name} must be integers (n,), one per particle, not {members.subhalo.dtype} of shape "
            f"{np.shape(members.subhalo)}."
        )
    num = _check_num(members, f"num of {name}")
    largest = 2**31 - 2 if num_subhaloes is None else num_subhaloes - 1
    subhalo, is_bad = _checked_subhaloes(jnp.asarray(members.subhalo), num, largest)
    faults = [row_fault(is_bad, num, _NO_SUBHALO % (name, largest))]
    energy = jnp.zeros(subhalo.shape, jnp.float32)
    if num_subhaloes is not None:
        energy = _check_energy(members.energy, subhalo.shape, f"energy of {name}")
        faults.append(row_fault(_are_nan(energy, subhalo), num, _NAN % name))
    return CheckedMembers(jnp.asarray(members.id), subhalo, energy, num), faults


@functools.partial(jax.jit, inline=True)
def _checked_subhaloes(subhalo: jax.Array, num: jax.Array, largest: int) -> tuple[jax.Array, jax.Array]:
    """Return subhaloes as int32, -1 from ``num`` on, and a mask of invalid subhaloes."""
    subhalo = _as_int32(subhalo)
    is_used = jnp.arange(len(subhalo), dtype=jnp.int32) < num
    return jnp.where(is_used, subhalo, -1), (subhalo < -1) | (subhalo > largest)


@functools.partial(jax.jit, inline=True)
def _are_nan(energy: jax.Array, subhalo: jax.Array) -> jax.Array:
    return jnp.isnan(energy) & (subhalo >= 0)


def _check_energy(energy: Any, shape: tuple[int, ...], name: str) -> jax.Array:
    if energy is None or np.shape(energy) != shape:
        words = "None" if energy is None else f"an array of shape {np.shape(energy)}"
        raise ValueError(f"{name} must be floats {shape}, one per particle, not {words}.")
    check_real_dtype(energy, name)
    energy = jax.lax.stop_gradient(jnp.asarray(energy))
    return energy if energy.dtype == jnp.float64 else energy.astype(jnp.float32)


def _check_num(members: SubhaloMembers, name: str) -> jax.Array:
    n = np.shape(members.subhalo)[0]
    if members.num is None:
        return jnp.asarray(n, jnp.int32)
    num = one_integer(get_num(members), name)
    if is_concrete(num) and not 0 <= int(num) <= n:
        raise ValueError(f"{name} is {num}; it counts the rows that hold particles, so it must be from 0 to {n}.")
    return jnp.clip(jnp.asarray(num), 0, n).astype(jnp.int32)


def _as_int32(numbers: jax.Array) -> jax.Array:
    """Return integers as int32; numbers outside its range stay invalid subhaloes."""
    if numbers.dtype.itemsize > 4:
        numbers = jnp.clip(numbers, max(-2, jnp.iinfo(numbers.dtype).min), 2**31 - 1)
    return numbers.astype(jnp.int32)
