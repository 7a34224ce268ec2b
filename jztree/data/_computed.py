"""Positions and other properties that a particle class computes: carried through a search, and checked after it.

The result is the user's class with its rows moved, and it recomputes its positions. They belong to the same particles
if each follows from the particle's own row alone. They do not if they depend on the row index, for example if they are
grid points counted from the first row. So both are compared, up to rounding, and a difference is an error. Only
returned particles wait for this check: a catalogue uses the carried positions and is correct in any case.
"""

import dataclasses
import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from .. import comm
from .._transform.shard_map import is_concrete, varying_axes
from ..particles import ComputedParticles, Index, attach_columns, computed_by, get_num, get_pos, over_devices

_Args = ParamSpec("_Args")
_Result = TypeVar("_Result")
_ADVICE = (
    "store the values that determine it, such as a place on a grid, in a field with a row per particle, or pass "
    "jztree.data.ParticleData(pos=part.pos, ...)."
)
_DEPENDS = "%s of %s depends on the row of the particle, so it would change when jztree moves particles; " + _ADVICE
_ROUNDED = 64  # rounding error of a sum of a few terms, in units of the last place of the largest number
_FEW = 4  # fewer than one in this many


def with_computed(func: Callable[_Args, _Result]) -> Callable[_Args, _Result]:
    """Decorate ``func`` to accept particle classes that compute their positions."""

    @functools.wraps(func)
    def call(*args: _Args.args, **kwargs: _Args.kwargs) -> _Result:
        arguments = [*args, *kwargs.values()]
        means = [name for argument in arguments for name in getattr(getattr(argument, "catalogue", None), "means", ())]
        carried = [_with_columns(argument, means) for argument in arguments]
        if all(argument is argument_given for argument, argument_given in zip(carried, arguments, strict=True)):
            return func(*args, **kwargs)
        by_name = dict(zip(kwargs, carried[len(args) :], strict=True))
        result: Any = func(*carried[: len(args)], **by_name)
        return jax.tree.map(
            lambda argument: release(argument) if _has_columns(argument) else argument, result, is_leaf=_has_columns
        )

    return call


def _has_columns(value: Any) -> bool:
    return isinstance(value, ComputedParticles)


def _with_columns(argument: Any, means: list[str]) -> Any:
    """Return ``argument`` with its classes carried; it may be a class or a sequence of classes."""
    if type(argument) in (list, tuple):
        members = [_with_columns(member, means) for member in argument]
        return type(argument)(members) if any(map(_has_columns, members)) else argument
    if isinstance(argument, Index):
        part = _with_columns(argument.part, means)
        return argument if part is argument.part else dataclasses.replace(argument, part=part)
    if "pos" in computed_by(argument):
        return attach_columns(argument, means, get_pos(argument))  # raises for a class that cannot be moved
    return attach_columns(argument, means)


def attach_stacked_columns(part: Any) -> Any:
    """Run `attach_columns` for particles ``(r, n, ...)`` of several devices, with positions computed per device."""
    if not computed_by(part):
        return part

    def columns(part: Any) -> dict[str, Any]:
        carried = attach_columns(part, (), get_pos(part))
        return carried.columns if isinstance(carried, ComputedParticles) else {}

    by_name = over_devices(columns, part)
    return ComputedParticles(part, by_name) if by_name else part


def release(computed: Any, used: Any = None, mapped: Any = None) -> Any:
    """Return the user's class, after a check that its computed properties equal the carried ones.

    The check raises at run time, on all ranks.

    Args:
        computed: `ComputedParticles`, or an object that needs no release.
        used: Mask of the rows that hold particles. None means the rows before ``num``.
        mapped: ``computed`` with True at the leaves whose first axis runs over many classes. None if it is one class.

    Raises:
        TypeError: If the class cannot compute a property for another number of rows.
    """
    if not isinstance(computed, ComputedParticles):
        return computed
    part, cls = computed.part, type(computed.part).__name__
    held = jax.tree.map(jax.lax.stop_gradient, computed)
    try:
        again = _computed_again(held, mapped)
    except Exception as error:
        raise TypeError(
            f"{' and '.join(computed.columns)} of {cls} cannot be computed for moved rows ({error}); {_ADVICE}"
        ) from error
    faults = []
    for name, carried in held.columns.items():
        if np.shape(again[name]) != np.shape(carried):
            raise TypeError(
                f"{name} of {cls} has the shape {np.shape(again[name])} instead of {np.shape(carried)} for moved rows; "
                f"{_ADVICE}"
            )
        rows = _used_rows(computed, np.shape(carried)) if used is None else used
        rows = jnp.reshape(rows, np.shape(rows) + (1,) * (np.ndim(carried) - np.ndim(rows)))
        failed = _differ(jnp.asarray(carried), jnp.asarray(again[name]), rows, name == "pos")
        faults.append(comm.Fault(failed, [], _DEPENDS % (name, cls)))
    if all(is_concrete(fault.failed) for fault in faults):
        for fault in faults:
            if fault.failed:
                raise ValueError(fault.sentence)
        return part
    return _after_check(computed, comm.check_all(0, faults))


def _after_check(part: ComputedParticles, checked: jax.Array) -> Any:
    """Return the user's class ordered after a check.

    Leaves that all devices share, such as a common mass, are unchanged, so that a `jax.shard_map` of the user knows
    that they are equal on all devices.
    """
    rows = {np.shape(column)[:1] for column in part.columns.values()}
    differing = varying_axes(checked)

    def waits(leaf: Any) -> bool:
        return isinstance(leaf, jax.Array) and (leaf.shape[:1] in rows or not differing or bool(varying_axes(leaf)))

    return jax.tree.map(lambda leaf: comm.after(leaf, checked) if waits(leaf) else leaf, part.part)


def _computed_again(computed: ComputedParticles, mapped: Any) -> dict[str, Any]:
    """Return the columns as the class computes them now."""

    def read(part: Any) -> dict[str, Any]:
        return {name: getattr(part, name) for name in computed.columns}

    if mapped is None:
        return read(computed.part)
    leaves, structure = jax.tree.flatten(computed.part)
    axes = [0 if is_mapped else None for is_mapped in jax.tree.leaves(mapped.part)]
    by_name: dict[str, Any] = jax.vmap(lambda *leaves_of_row: read(jax.tree.unflatten(structure, leaves_of_row)), axes)(
        *leaves
    )
    return by_name


def _used_rows(part: ComputedParticles, shape: tuple[int, ...]) -> Any:
    """Return a mask of the rows that hold particles, for one device ``(n, ...)`` or several ``(r, n, ...)``."""
    num = getattr(part, "num", None)
    if num is None:
        return np.ones(shape[:1], bool)
    if np.ndim(num) == 1 and np.shape(num) != (1,):
        return jnp.arange(shape[1], dtype=jnp.int32) < jnp.asarray(num, jnp.int32)[:, None]
    return jnp.arange(shape[0], dtype=jnp.int32) < jnp.asarray(get_num(part), jnp.int32)


@functools.partial(jax.jit, static_argnames="may_wrap", inline=True)
def _differ(carried: jax.Array, again: jax.Array, used: jax.Array, may_wrap: bool) -> jax.Array:
    """Return whether any used row differs by more than rounding.

    Args:
        carried: The numbers before the search.
        again: The numbers that the class computes now.
        used: Mask of the rows that hold particles.
        may_wrap: Whether the numbers may lie in a periodic box, where rounding at a face decides between 0 and the
            length of the box.
    """
    used = jnp.broadcast_to(used, carried.shape)
    if not jnp.issubdtype(carried.dtype, jnp.floating):
        return (used & (carried != again)).any()
    stored, recomputed = jnp.where(used, carried, 0), jnp.where(used, again, 0)
    axes = tuple(range(carried.ndim - 1)) if carried.ndim > 1 else (0,)
    far = jnp.asarray(jnp.inf, carried.dtype)
    lower = jnp.where(used, jnp.minimum(carried, again), far).min(axes, initial=far)
    upper = jnp.where(used, jnp.maximum(carried, again), -far).max(axes, initial=-far)
    step = jnp.finfo(carried.dtype).eps
    largest = jnp.maximum(jnp.abs(lower), jnp.abs(upper))
    tolerance = jnp.sqrt(step) * (upper - lower) + _ROUNDED * step * largest
    differs = used & ~(jnp.abs(stored - recomputed) <= tolerance) & ~(jnp.isnan(stored) & jnp.isnan(recomputed))
    if not may_wrap:
        return differs.any()
    low, high = jnp.minimum(stored, recomputed), jnp.maximum(stored, recomputed)
    across = differs & (low <= lower + tolerance) & (high >= upper - tolerance)
    rows = across.any(axis=-1)
    is_few = _FEW * jnp.sum(rows, dtype=jnp.float32) < jnp.sum(used.any(axis=-1), dtype=jnp.float32)
    return jnp.where(is_few, (differs & ~across).any(), differs.any())
