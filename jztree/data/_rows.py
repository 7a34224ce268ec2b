"""Count, map, pad, distribute and join the rows of particle classes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm, particles
from .._transform.shard_map import is_concrete, plain_integer
from ..particles import (
    Particles,
    attach_columns,
    check_known,
    check_movable,
    check_num,
    check_representable,
    check_width,
    get_pos,
    num_rows,
    one_line,
    replace_field,
    shape_of_pos,
)
from ._classes import PosMass
from ._computed import attach_stacked_columns, release

_Part = TypeVar("_Part")


def map_rows(func: Callable[[Any], Any], part: _Part) -> _Part:
    """Apply ``func`` to every leaf of ``part`` that has one row per particle.

    Args:
        func: Takes and returns an array whose leading axis runs over particles.
        part: A particle class, or an array of positions.

    Returns:
        ``part`` with the new leaves.
    """
    n, num = num_rows(part), getattr(part, "num", None)
    check_movable(part)
    return jax.tree.map(lambda leaf: func(leaf) if _is_of_rows(leaf, n, num) else leaf, part)


def zero_padding_if_derived(parts: Sequence[Any], nums: Sequence[Any]) -> list[Any]:
    """Return particle classes with real numbers of 0 in their padding, rows from ``nums`` on, if JAX differentiates.

    Padding may hold NaN, and the derivative of a discarded NaN is NaN. Plain calls return ``parts`` unchanged.
    """
    columns, rebuild = zip(*map(split_rows, parts), strict=True)
    return [build(part) for build, part in zip(rebuild, _zero_if_derived(columns, tuple(nums)), strict=True)]


@jax.custom_jvp
def _zero_if_derived(columns: Any, nums: Any) -> Any:
    del nums
    return columns


@_zero_if_derived.defjvp
def _zero_if_derived_jvp(primals: tuple[Any, Any], tangents: tuple[Any, Any]) -> tuple[Any, Any]:
    columns, nums = primals

    def zeroed(num: Any, leaf: Any) -> Any:
        # Integers stay, and so do their tangents, which have no numbers.
        return without_padding(leaf, num) if jnp.issubdtype(leaf.dtype, jnp.inexact) else leaf

    def of_each(sets: Any) -> Any:
        return tuple([zeroed(num, leaf) for leaf in leaves] for num, leaves in zip(nums, sets, strict=True))

    return of_each(columns), of_each(tangents[0])


@functools.partial(jax.jit, inline=True)
def without_padding(rows: jax.Array, num: int | jax.Array) -> jax.Array:
    """Set ``rows`` to 0 from ``num`` on."""
    used = jnp.arange(rows.shape[0], dtype=jnp.int32) < num
    return jnp.where(used.reshape(-1, *[1] * (rows.ndim - 1)), rows, 0)


def _is_of_rows(leaf: Any, n: int, num: ArrayLike | None) -> bool:
    """Return whether a leaf has one row for each of ``n`` particles; ``num``, which may be ``(1,)``, does not."""
    return np.ndim(leaf) > 0 and leaf.shape[0] == n and leaf is not num


def split_rows(part: _Part) -> tuple[list[Any], Callable[[Sequence[Any]], _Part]]:
    """Return the leaves of ``part`` with one row per particle, and a function that replaces them.

    Args:
        part: A particle class, or an array of positions.

    Returns:
        The leaves, and a function of their replacements, which returns a particle class. Replacements may have any
        number of rows.
    """
    n, num = num_rows(part), getattr(part, "num", None)
    check_representable(part)
    check_movable(part)
    leaves, structure = jax.tree.flatten(part)
    places = [i for i, leaf in enumerate(leaves) if _is_of_rows(leaf, n, num)]

    def rebuild(columns: Sequence[Any]) -> _Part:
        replaced = dict(zip(places, columns, strict=True))
        return jax.tree.unflatten(structure, [replaced.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [jnp.asarray(leaves[i]) for i in places], rebuild


def replace_num(part: _Part, num: ArrayLike | None) -> _Part:
    """Return ``part`` with another ``num``, if it has that field; a ``num`` of shape ``(1,)`` keeps its shape."""
    held: Any = getattr(part, "num", None)
    if num is not None and np.shape(held) == (1,) and np.ndim(num) == 0:
        num = jnp.reshape(jnp.asarray(num, jnp.int32), (1,))
    return replace_field(part, "num", num)


def get_pos_mass(part: Particles | ArrayLike) -> PosMass:
    """Return only the positions and masses of a particle class, with ``num`` and ``num_total``.

    Args:
        part: A particle class.

    Returns:
        The particles.

    Raises:
        ValueError: If it has no mass.
    """
    pos, mass = get_pos(part), getattr(part, "mass", None)
    if mass is None:
        raise ValueError("these particles have no mass; pass a class that has one, such as jztree.data.PosMass.")
    return PosMass(pos=pos, mass=mass, num=getattr(part, "num", None), num_total=getattr(part, "num_total", None))


def get_num(part: Particles | ArrayLike, default_to_length: bool = True, default_to_nancount: bool = False) -> Any:
    """Return the number of rows of ``part`` that hold particles.

    Args:
        part: A particle class, or an array of positions.
        default_to_length: Whether all rows hold particles if ``part`` has no ``num``.
        default_to_nancount: Whether NaN rows at the end are padding if ``part`` has no ``num``. A row with only some
            NaN coordinates is an invalid particle, and searches report it. Other functions do not treat NaN rows as
            padding, so pass them the returned number as ``num``.

    Returns:
        ``num`` of ``part``, a scalar even if its shape is ``(1,)``, or the default.

    Raises:
        TypeError: If ``num`` is not an integer.
        ValueError: If ``part`` has no ``num`` and neither default is set, or if NaN rows are counted and one precedes
            other rows (at run time if positions are traced).
    """
    if getattr(part, "num", None) is not None:
        of_all_devices = len(shape_of_pos(part)) == 3
        num = particles.get_num(part)
        return num if of_all_devices else particles.one_integer(num)
    if default_to_nancount:
        return _rows_before_nan(get_pos(part))
    if not default_to_length:
        raise ValueError(
            "these particles have no num, the number of rows that hold particles; set num, or pass "
            "default_to_length=True or default_to_nancount=True."
        )
    return num_rows(part)


def _rows_before_nan(pos: Any) -> Any:
    empty = jnp.isnan(pos).all(axis=-1)
    num = jnp.sum(~empty, dtype=jnp.int32)
    mixed = (empty[:-1] & ~empty[1:]).any()
    sentence = (
        "a row of NaN precedes rows that hold particles, so NaN does not mark the start of the padding; move padding "
        "after all particles, and set num to their number."
    )
    if not is_concrete(num):
        return comm.check(num, mixed, [], sentence)
    if mixed:
        raise ValueError(sentence)
    return int(num)


def get_num_total(part: Particles | ArrayLike, default_to_length: bool = False) -> int:
    """Return the number of particles on all devices: ``num_total`` of ``part``, which is static under tracing.

    Args:
        part: A particle class, or an array of positions.
        default_to_length: Whether to count the rows of every device if ``num_total`` is not set.

    Returns:
        The number, a Python int.

    Raises:
        ValueError: If ``num_total`` is not set and ``default_to_length`` is False.
    """
    total = particles.get_num_total(part)
    if total is not None:
        return total
    if not default_to_length:
        raise ValueError("these particles have no num_total; set it, or pass default_to_length=True.")
    return num_rows(part) * comm.num_ranks()


def all_particles_equal(p1: Any, p2: Any) -> jax.Array:
    """Return whether two sets of particles of one class are equal row by row, ignoring rows from ``num`` on.

    NaN is equal to NaN.

    Args:
        p1: A particle class, or an array of positions.
        p2: Another one.

    Returns:
        A bool scalar.

    Raises:
        ValueError: If the classes or their properties differ.
    """
    check_width({"p1": p1, "p2": p2})
    structures: list[Any] = [jax.tree.structure(a) for a in (p1, p2)]
    if structures[0] != structures[1]:
        raise ValueError("the particles must be of one class with the same properties, but these differ in either.")
    nums, n = (check_num(p1), check_num(p2)), min(num_rows(part) for part in (p1, p2))
    used = jnp.arange(n, dtype=jnp.int32) < jnp.asarray(nums[0], jnp.int32)

    def same(a: Any, b: Any) -> Any:
        if _is_of_rows(a, num_rows(p1), getattr(p1, "num", None)):
            return _are_equal(a[:n], b[:n], used)
        return _are_equal(a, b, True) if jnp.shape(a) == jnp.shape(b) else False

    leaves = jax.tree.map(same, replace_field(p1, "num", None), replace_field(p2, "num", None))
    return jnp.stack([jnp.asarray(nums[0] == nums[1]), *map(jnp.asarray, jax.tree.leaves(leaves))]).all()


@functools.partial(jax.jit, inline=True)
def _are_equal(values: Any, other_values: Any, used: Any) -> jax.Array:
    """Return whether two arrays of one shape are equal in the ``used`` rows."""
    return ~(rows_differ(values, other_values) & used).any()


@functools.partial(jax.jit, inline=True)
def differ(one: Any, other: Any) -> jax.Array:
    """Return a mask of the elements in which two arrays of one shape differ; NaN is equal to NaN."""
    one, other = jnp.asarray(one), jnp.asarray(other)
    if not jnp.issubdtype(one.dtype, jnp.inexact):
        return one != other
    return (one != other) & ~(jnp.isnan(one) & jnp.isnan(other))


@functools.partial(jax.jit, inline=True)
def rows_differ(one: Any, other: Any) -> jax.Array:
    """Return a mask of the rows in which two arrays of one shape `differ`, ``(n,)``."""
    return differ(one, other).any(axis=tuple(range(1, np.ndim(one))))


def on_auto_axes(tree: _Part) -> _Part:
    """Return ``tree`` with its arrays on the same devices, but on meshes with automatic axes.

    Mapped functions return arrays on the mesh of the user, whose axes may be explicit (the default of `jax.make_mesh`).
    JAX does not select rows of such an array, because the sharding of the result is unspecified.
    """
    return jax.tree.map(_on_auto_mesh, tree)


def _on_auto_mesh(leaf: Any) -> Any:
    if not isinstance(leaf, jax.Array):
        return leaf
    sharding = jax.typeof(leaf).sharding if isinstance(leaf, jax.core.Tracer) else leaf.sharding
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return leaf
    if isinstance(leaf, jax.core.Tracer):  # must stay on its mesh, but may be replicated there
        return jax.reshard(leaf, NamedSharding(sharding.mesh, P()))
    names = sharding.mesh.axis_names
    mesh = Mesh(sharding.mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
    return jax.device_put(leaf, NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind))


def pad_particles(part: _Part, num: int, float_val: float = jnp.nan, int_val: int = 0) -> _Part:
    """Append ``num`` rows that hold no particles, to every property.

    If the particles have no field ``num``, the new rows are NaN, and every search raises an error for them.

    Args:
        part: A particle class of ``n`` rows.
        num: Number of rows to append.
        float_val: Value of the new rows for real numbers. The functions of this library do not read it. Pass 0 if
            ``jax_debug_nans`` is on, which reports every NaN.
        int_val: Value of the new rows for integers.

    Returns:
        A class of ``n + num`` rows; its own ``num`` is unchanged.

    Raises:
        TypeError: If ``num`` is not an integer.
        ValueError: If ``num`` is negative, if a fill value does not match the dtype, or if the ``num`` of ``part`` is
            not from 0 to ``n`` (at run time if it is traced).

    Examples:
        >>> part = jz.data.Pos(pos=np.zeros((5, 3), np.float32))
        >>> jz.data.pad_particles(part, 3)
        Pos(5 particles (8 rows) in 3D, float32: pos)
    """
    num = plain_integer(num)
    if isinstance(num, bool) or not isinstance(num, (int, np.integer)):
        raise TypeError(f"num must be an integer, the number of rows to append, not {num!r}.")
    if num < 0:
        raise ValueError(f"num is {num}; it is the number of rows to append, so it must be at least 0.")
    part, held = on_auto_axes(part), check_num(part)
    if not is_concrete(held):
        n = num_rows(part)
        held = comm.check(
            held,
            (held < 0) | (held > n),
            [held],
            f"num is {{0}}; it counts the rows that hold particles, so it must be from 0 to {n}.",
        )
    return replace_num(map_rows(lambda leaf: _padded(leaf, num, float_val, int_val), part), held)


def _padded(leaf: Any, num: int, float_val: float, int_val: int) -> Any:
    """Return ``leaf`` with more rows. NumPy arrays stay NumPy, because JAX would truncate 64-bit identifiers."""
    inexact = jnp.issubdtype(leaf.dtype, jnp.inexact)
    pad = np.pad if isinstance(leaf, np.ndarray) else jnp.pad
    widths = [(0, num)] + [(0, 0)] * (np.ndim(leaf) - 1)
    if (
        jnp.issubdtype(leaf.dtype, jnp.integer)
        and not jnp.iinfo(leaf.dtype).min <= int_val <= jnp.iinfo(leaf.dtype).max
    ):
        raise ValueError(f"int_val is {int_val}, which is outside the range of {leaf.dtype}; pass a valid number.")
    return pad(leaf, widths, constant_values=float_val if inexact else int_val)


def squeeze_any(data: Any, size: int | None = None, num: int | jax.Array | None = None, ntot: int | None = None) -> Any:
    """Drop the padding of every array in a pytree, for one or all devices. Not for use under a JAX transformation.

    Args:
        data: Results such as radii ``(q, k)``, or ``(r, q, k)`` over devices, which are then joined in the order of
            the devices.
        size: The number of rows including padding; arrays with another number of rows are unchanged. None means that
            the function shortens every array.
        num: Number of leading rows to keep, a scalar; or ``(r,)``, one per device. A ``num`` of shape ``(1,)`` is for a
            mesh of one device. Arrays may then have an axis over devices, or not.
        ntot: The expected total number of rows kept.

    Returns:
        The pytree with shorter arrays.

    Raises:
        TypeError: If ``num`` does not hold integers.
        ValueError: If ``num`` is missing, exceeds the number of rows, is for another number of devices than an array,
            or does not add up to ``ntot``.
    """
    check_known(data)
    if num is None:
        raise ValueError("squeeze_any needs num, the number of rows to keep: squeeze_any(data, num=part.num).")
    counts = np.asarray(num)
    if counts.ndim > 1 or not np.issubdtype(counts.dtype, np.integer):
        raise TypeError(
            f"num is {one_line(num)}; it counts rows to keep, so it must be one integer, or one per device."
        )
    if ntot is not None and counts.sum() != ntot:
        raise ValueError(f"num is {counts.tolist()}, with the sum {counts.sum()}, but ntot is {ntot}; both must agree.")
    return jax.tree.map(lambda leaf: _squeezed(leaf, size, counts), on_auto_axes(data))


def _squeezed(leaf: Any, size: int | None, counts: np.ndarray) -> Any:
    if counts.shape == (1,) and not (np.ndim(leaf) > 1 and leaf.shape[0] == 1 and size in (None, leaf.shape[1])):
        counts = counts.reshape(())  # no axis over the one device
    if np.ndim(leaf) <= counts.ndim or (size is not None and leaf.shape[counts.ndim] != size):
        return leaf
    rows = leaf.shape[counts.ndim]
    if leaf.shape[: counts.ndim] != counts.shape or np.any((counts < 0) | (counts > rows)):
        raise ValueError(
            f"num is {counts.tolist()}, but an array has shape {leaf.shape}; num must be from 0 to its number of rows, "
            "for each device."
        )
    if counts.ndim == 0:
        return leaf[: int(counts)]
    join = np.concatenate if isinstance(leaf, np.ndarray) else jnp.concatenate
    return join([leaf[rank, :count] for rank, count in enumerate(counts)])


def squeeze_particles(part: _Part) -> _Part:
    """Drop the padding of ``part``. Not for use under a JAX transformation.

    Args:
        part: One device's particles, ``pos`` of shape ``(n, d)`` and ``num`` a scalar, or the particles on several
            devices, ``(r, n, d)`` and ``(r,)``, which are then joined in the order of the ranks.

    Returns:
        A class of ``num`` rows.

    Examples:
        >>> part = jz.data.pad_particles(jz.data.Pos(pos=np.zeros((5, 3), np.float32)), 3)
        >>> jz.data.squeeze_particles(part)
        Pos(5 particles in 3D, float32: pos)
    """
    if len(shape_of_pos(part)) == 3:
        return flatten_particles(part)
    num = int(check_num(part))
    return replace_num(map_rows(lambda leaf: leaf[:num], on_auto_axes(part)), num)


def expand_particles(part: _Part, ndev: int = 1, npad: int = 0) -> _Part:
    """Distribute particles to ``ndev`` devices in consecutive blocks whose sizes differ by at most one.

    Not for use under a JAX transformation.

    Args:
        part: A particle class with ``n`` particles; its padding is dropped.
        ndev: Number of devices.
        npad: Number of further rows for each device.

    Returns:
        A class whose properties have shape ``(ndev, m, ...)`` with ``m = ceil(n / ndev) + npad``, and whose ``num`` is
        ``(ndev,)``. Properties that all particles share are repeated ``ndev`` times.

    Raises:
        ValueError: For integers that JAX would truncate to 32 bits, for numbers outside the range of float32 if JAX
            would convert them to it, and if some rows would hold no particles but the class has no field ``num``.

    Examples:
        >>> part = jz.data.Pos(pos=np.zeros((5, 3), np.float32))
        >>> jz.data.expand_particles(part, 2)
        Pos(5 particles (2 devices x 3 rows) in 3D, float32: pos)
    """
    check_representable(part)
    if ndev < 1:
        raise ValueError(f"ndev is {ndev}; it is the number of devices, so it must be at least 1.")
    shape = shape_of_pos(part)[:-1]  # of the rows with padding; without it, other leaves may have as many entries
    of_rows = [np.shape(leaf)[: len(shape)] == shape for leaf in jax.tree.leaves(replace_num(part, None))]
    part = attach_columns(squeeze_particles(part))
    n = num_rows(part)
    bounds = [n * rank // ndev for rank in range(ndev + 1)]
    rows = -(-n // ndev) + npad
    if rows * ndev != n and not hasattr(part, "num"):
        raise ValueError(
            f"{n} particles do not fill {rows} rows on each of {ndev} device(s), so the class needs a field num; pass "
            "a particle class with num, such as jztree.data.Pos(pos=pos)."
        )

    def deal(leaf: Any, is_of_rows: bool) -> Any:
        if not is_of_rows:
            return jnp.broadcast_to(leaf, (ndev, *np.shape(leaf)))
        return _in_blocks(leaf, tuple(bounds), rows)

    leaves, structure = jax.tree.flatten(replace_num(part, None))
    of_rows = [True] * (len(leaves) - len(of_rows)) + of_rows  # computed columns come first
    stacked = jax.tree.unflatten(structure, map(deal, leaves, of_rows))
    stacked = replace_num(stacked, jnp.asarray(np.diff(bounds), jnp.int32))
    released: _Part = release(
        stacked, np.arange(rows) < np.diff(bounds)[:, None], jax.tree.map(lambda _: True, stacked)
    )
    return released


def flatten_particles(part: _Part) -> _Part:
    """Join the particles of several devices into one set without padding.

    This is the inverse of `expand_particles`. Not for use under a JAX transformation.

    Args:
        part: A particle class with properties ``(r, n, ...)`` and ``num`` of shape ``(r,)``.

    Returns:
        A class with the particles in the order of the devices.

    Raises:
        ValueError: If positions are not ``(r, n, d)``, or if an element of ``num`` is not from 0 to ``n``.
    """
    part = attach_stacked_columns(part)
    pos = get_pos(part)
    check_movable(part)
    if np.ndim(pos) != 3:
        raise ValueError(f"positions must have the shape (r, n, d), with an axis over devices, not {np.shape(pos)}.")
    ndev, n = pos.shape[:2]
    num = getattr(part, "num", None)
    counts = np.full(ndev, n) if num is None else np.broadcast_to(np.asarray(num), (ndev,))
    if np.any((counts < 0) | (counts > n)):
        raise ValueError(f"num is {counts.tolist()}; it counts the rows of each device, so it must be from 0 to {n}.")

    def join(leaf: Any) -> Any:
        if np.ndim(leaf) >= 2 and leaf.shape[:2] == (ndev, n):
            # Keep NumPy arrays as NumPy: JAX would truncate 64-bit identifiers.
            join_blocks = _joined_blocks if isinstance(leaf, np.ndarray) else _joined_arrays
            return join_blocks(leaf, tuple(counts.tolist()))
        return leaf[0] if np.ndim(leaf) > 0 and leaf.shape[0] == ndev else leaf

    joined = replace_num(jax.tree.map(join, replace_num(on_auto_axes(part), None)), int(counts.sum()))
    released: _Part = release(joined)
    return released


@functools.partial(jax.jit, static_argnames=("bounds", "rows"), inline=True)
def _in_blocks(leaf: jax.Array, bounds: tuple[int, ...], rows: int) -> jax.Array:
    """Return the blocks of rows between ``bounds``, each padded to ``rows``, ``(r, rows, ...)``."""
    blocks = [leaf[a:b] for a, b in itertools.pairwise(bounds)]
    return jnp.stack([jnp.pad(b, [(0, rows - len(b))] + [(0, 0)] * (b.ndim - 1)) for b in blocks])


def _joined_blocks(leaf: Any, counts: tuple[int, ...], xp: Any = np) -> Any:
    return xp.concatenate([leaf[rank, :count] for rank, count in enumerate(counts)])


@functools.partial(jax.jit, static_argnames="counts", inline=True)
def _joined_arrays(leaf: jax.Array, counts: tuple[int, ...]) -> Any:
    return _joined_blocks(leaf, counts, jnp)
