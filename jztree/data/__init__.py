"""Particle classes with padding, the friends-of-friends catalogue, and helpers to pad, squeeze and reshape them.

A particle class is any pytree with a leaf ``pos`` of shape ``(n, d)`` and, if it is padded, ``num``: how many of the
``n`` rows hold particles. Nothing else is asked for; the classes here are examples. Every leaf whose *leading* length
is that of ``pos`` is a property of the particles and travels with them; all other leaves (``num``, a mass that all
particles share) stay as they are. What a class holds elsewhere than in its leaves could not travel, so rows
there are an error; see `jztree._particles`.
"""

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding

from .. import comm
from .._particles import check_carried, check_known, check_movable, check_num, get_num, get_pos, replace_field
from .._particles import check_no_unit as check_no_unit
from .._particles import check_no_units as check_no_units
from .._particles import fits_float32 as fits_float32
from .._transform.shard_map import is_concrete
from . import _tables as tables
from ._describe import describe_arrays, describe_catalogue, describe_particles

if TYPE_CHECKING:
    import astropy.table
    import pandas

__all__ = [
    "Array",
    "FofCatalogue",
    "Label",
    "ParticleData",
    "Pos",
    "PosMass",
    "RankIdx",
    "expand_particles",
    "flatten_particles",
    "get_num",
    "get_pos",
    "map_rows",
    "pad_particles",
    "replace_num",
    "sort_catalogue",
    "split_rows",
    "squeeze_any",
    "squeeze_catalogue",
    "squeeze_particles",
    "static_field",
]

_Part = TypeVar("_Part")
Array = jax.Array | np.ndarray


def static_field(**kwargs: Any) -> Any:
    """A dataclass field that is part of the pytree structure: compiled in, not traced."""
    return field(metadata={"static": True}, **kwargs)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class Pos:
    """Positions.

    pos: ``(n, d)`` float32 or float64.
    num: how many leading rows hold particles; None means all.
    num_total: the number of particles on all devices together, known when the function is traced.
    """

    pos: Array
    num: int | Array | None = None
    num_total: int | None = static_field(default=None)

    def __repr__(self) -> str:
        return describe_particles(self)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class PosMass:
    """Positions and masses.

    pos: ``(n, d)`` float32 or float64.
    mass: ``(n,)``, or a scalar that all particles share.
    num, num_total: as in `Pos`.
    """

    pos: Array
    mass: float | Array | None = None
    num: int | Array | None = None
    num_total: int | None = static_field(default=None)

    def __repr__(self) -> str:
        return describe_particles(self)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class ParticleData:
    """What a snapshot holds of its particles.

    pos: ``(n, d)`` float32 or float64.
    mass: ``(n,)``, or a scalar that all particles share, or None.
    vel: ``(n, d)`` or None.
    id: ``(n,)`` integers or None.
    num, num_total: as in `Pos`.
    """

    pos: Array
    mass: float | Array | None = None
    vel: Array | None = None
    id: Array | None = None
    num: int | Array | None = None
    num_total: int | None = static_field(default=None)

    def __repr__(self) -> str:
        return describe_particles(self)


@jax.tree_util.register_dataclass
@dataclass(kw_only=True, slots=True)
class FofCatalogue:
    """Friends-of-friends groups, a row a group, in the order of the groups' first particles in z-order.

    Only the first ``ngroups`` rows hold groups; the rest is zero. Lengths, velocities and masses have the units of the
    particles. Sums are taken in float64. ``d`` is the number of dimensions, ``g`` the number of rows.

    Columns of real numbers have derivatives by positions, masses, velocities and box lengths, at fixed membership: the
    particles of each group are held constant (frozen assignment of Horowitz & Bayer 2025, arXiv:2510.26851).

    ngroups: scalar int32, the number of groups.
    count: ``(g,)`` int32, particles of the group.
    offset: ``(g,)`` int32, row of the group's first particle among the particles in group order. On several ranks each
        has the groups whose first particle it holds, and the row is one of that rank; the group may go on on the next.
        See `jztree.fof.fof_and_catalogue` for the order.
    com_pos: ``(g, d)`` centre of mass, right across the periodic boundary and inside the box (unweighted if the
        particles have no mass).
    com_inertia_radius: ``(g,)`` root of the mass-weighted mean squared distance from ``com_pos``.
    max_radius: ``(g,)`` largest distance of a particle from ``com_pos``.
    mass: ``(g,)`` total mass, or None if the particles have no mass.
    com_vel: ``(g, d)`` mass-weighted mean velocity, or None if the particles have no velocity.
    vel_dispersion: ``(g,)`` one-dimensional velocity dispersion: root of the mass-weighted mean squared velocity
        relative to ``com_vel``, divided by ``d``; or None if the particles have no velocity.
    shape_tensor: ``(g, d, d)`` mass-weighted mean of ``x_i x_j``, with ``x`` from ``com_pos`` to the nearest image of
        the particle, divided by its trace, which is ``com_inertia_radius`` squared; 0 for groups without extent. A pure
        number, right in any unit of length. `jztree.halos.inertia_tensor` is the mean itself, and
        `jztree.halos.principal_axes` makes axis lengths of it. None in a catalogue that was made without it.
    angular_momentum: ``(g, d * (d - 1) / 2)`` angular momentum about ``com_pos`` and relative to ``com_vel``, divided
        by the mass: the mass-weighted mean of ``x`` cross ``v``, in the unit of length times that of velocity. In 3D it
        is a vector; in 2D the component out of the plane; in 4D the means of ``x_i v_j - x_j v_i`` for i < j, pairs
        01, 02, 03, 12, 13, 23. None in 1D, or if the particles have no velocity. An expansion of space does not
        contribute, because it moves particles along ``x``.
    """

    ngroups: int | Array
    count: Array
    offset: Array
    com_pos: Array
    com_inertia_radius: Array
    max_radius: Array
    mass: Array | None = None
    com_vel: Array | None = None
    vel_dispersion: Array | None = None
    shape_tensor: Array | None = None
    angular_momentum: Array | None = None

    def __repr__(self) -> str:
        return describe_catalogue(self)

    def to_pandas(self, *, nparts: Any = None, units: Mapping[str, Any] | None = None) -> "pandas.DataFrame":
        """The groups as a `pandas.DataFrame`, a row a group; vectors become columns ``com_pos_x``, ``com_pos_y``, ...

        The catalogue may be that of one rank or of all (rows ``(r, g, ...)``), padded or not. Columns that it does not
        have are left out. Not for use under a JAX transformation.

        nparts: how many particles in group order each rank has, as for `squeeze_catalogue`; ``offset`` is then a row
            among the particles of all ranks. Without it, a catalogue of several ranks gets a column ``rank``, on which
            ``offset`` is a row.
        units: names of the units of "length", "mass" and "velocity", as many as are known (`jztree_utils.io.unit_name`
            finds those of a snapshot). ``attrs["units"]`` of the table holds the unit of each column that has one.

        Raises ImportError if pandas is not installed, and ValueError for an unknown kind of unit, an ``nparts`` that
        does not belong to the catalogue, or one that is spread over several processes.
        """
        return tables.to_pandas(_rows_by_name(self, nparts), units)

    def to_astropy(self, *, nparts: Any = None, units: Mapping[str, Any] | None = None) -> "astropy.table.QTable":
        """The groups as an `astropy.table.QTable`, a row a group; vectors stay columns ``(g, d)``.

        nparts: as in `to_pandas`. units: of "length", "mass" and "velocity", as many as are known: units of astropy, or
            their names. An ``h`` in a name, as in ``Mpc/h``, is the Hubble constant in 100 km/s/Mpc (``littleh`` of
            astropy), not an hour. Columns whose unit follows are quantities.

        Raises ImportError if astropy is not installed, ValueError for a unit that it does not know, and like
        `to_pandas`.
        """
        return tables.to_astropy(_rows_by_name(self, nparts), units)


class RankIdx(NamedTuple):
    """Where particles are: ``rank`` (int32) of the device and ``idx`` (int32), the row there."""

    rank: jax.Array
    idx: jax.Array

    def __repr__(self) -> str:
        return describe_arrays(self)


class Label(NamedTuple):
    """What group particles belong to: the group's first particle in z-order, as ``irank`` (int32), the rank that holds
    it, and ``igroup`` (int32), the row there; or, if labels are linear, the row in the joined set of all ranks.
    """

    irank: jax.Array
    igroup: jax.Array

    def __repr__(self) -> str:
        return describe_arrays(self)


def map_rows(func: Callable[[Any], Any], part: _Part) -> _Part:
    """``part`` with ``func`` applied to every leaf that has one row a particle.

    part: a particle class, or an array of positions.
    func: takes and returns an array whose leading axis runs over particles.
    """
    n = get_pos(part).shape[0]
    check_movable(part)
    return jax.tree.map(lambda leaf: func(leaf) if np.ndim(leaf) > 0 and leaf.shape[0] == n else leaf, part)


def split_rows(part: _Part) -> tuple[list[Any], Callable[[Sequence[Any]], _Part]]:
    """The leaves of ``part`` that have one row a particle, and a function that puts others, of any length, in place.

    part: a particle class, or an array of positions.
    """
    n = get_pos(part).shape[0]
    check_carried(part)
    check_movable(part)
    leaves, structure = jax.tree.flatten(part)
    places = [i for i, leaf in enumerate(leaves) if np.ndim(leaf) > 0 and leaf.shape[0] == n]

    def rebuild(columns: Sequence[Any]) -> _Part:
        others = dict(zip(places, columns, strict=True))
        return jax.tree.unflatten(structure, [others.get(i, leaf) for i, leaf in enumerate(leaves)])

    return [jnp.asarray(leaves[i]) for i in places], rebuild


def replace_num(part: _Part, num: Any) -> _Part:
    """``part`` with another ``num``, if it has that field."""
    return replace_field(part, "num", num)


def _on_auto_axes(tree: _Part) -> _Part:
    """``tree`` with its arrays on the same devices, but on meshes whose axes JAX sees to by itself.

    Mapped functions return arrays on the mesh of the user, whose axes may be explicit (those of `jax.make_mesh` are,
    unless it is told otherwise). JAX does not pick rows of such an array, because it is not said how these lie.
    """
    return jax.tree.map(_on_auto_mesh, tree)


def _on_auto_mesh(leaf: Any) -> Any:
    sharding = leaf.sharding if isinstance(leaf, jax.Array) and is_concrete(leaf) else None
    if not isinstance(sharding, NamedSharding) or AxisType.Explicit not in sharding.mesh.axis_types:
        return leaf
    names = sharding.mesh.axis_names
    mesh = Mesh(sharding.mesh.devices, names, axis_types=(AxisType.Auto,) * len(names))
    return jax.device_put(leaf, NamedSharding(mesh, sharding.spec, memory_kind=sharding.memory_kind))


def pad_particles(part: _Part, npad: int) -> _Part:
    """Append ``npad`` rows of zeros that hold no particles, to every property.

    part: a particle class of ``n`` rows. Returns one of ``n + npad`` rows, with ``num`` set to what it was.
    Raises ValueError if ``npad`` is negative, or ``num`` is not from 0 to ``n`` (if it is traced, an error at run
    time).
    """
    if npad < 0:
        raise ValueError(f"npad is the number of rows to append, so it cannot be negative; {npad} was given.")
    part, num = _on_auto_axes(part), check_num(part)
    if not is_concrete(num):
        n = get_pos(part).shape[0]
        num = comm.check(
            num,
            (num < 0) | (num > n),
            [num],
            f"num is {{0}}; it counts the rows that hold particles, so it must be from 0 to {n}.",
        )
    return replace_num(map_rows(lambda leaf: _padded(leaf, npad), part), num)


def _padded(leaf: Any, npad: int) -> Any:
    """``leaf`` with rows of zeros. NumPy arrays stay what they are: JAX would cut 64-bit identifiers."""
    pad = np.pad if isinstance(leaf, np.ndarray) else jnp.pad
    return pad(leaf, [(0, npad)] + [(0, 0)] * (np.ndim(leaf) - 1))


def squeeze_any(tree: Any, num: int | Array) -> Any:
    """Drop the padding: the first ``num`` rows of every array in ``tree``. Not for use under a JAX transformation."""
    check_known(tree)
    return jax.tree.map(lambda leaf: leaf[: int(num)] if np.ndim(leaf) > 0 else leaf, _on_auto_axes(tree))


def squeeze_particles(part: _Part) -> _Part:
    """``part`` without its padding. Not for use under a JAX transformation.

    Takes one device's particles, ``pos`` of shape ``(n, d)`` and ``num`` a scalar, or all devices', ``(r, n, d)`` and
    ``(r,)``, which are then joined in the order of the ranks.
    """
    if np.ndim(get_pos(part)) == 3:
        return flatten_particles(part)
    num = int(check_num(part))
    return replace_num(map_rows(lambda leaf: leaf[:num], _on_auto_axes(part)), num)


def expand_particles(part: _Part, ndev: int = 1, npad: int = 0) -> _Part:
    """Deal particles out to ``ndev`` devices in equal consecutive blocks, off by one at most.

    part: a particle class of ``n`` rows, all of which hold particles. Returns one whose properties have shape
    ``(ndev, m, ...)`` with ``m = ceil(n / ndev) + npad``, and whose ``num`` is ``(ndev,)``. Properties that all
    particles share are repeated ``ndev`` times. Not for use under a JAX transformation. Raises ValueError for integers
    that JAX would cut to 32 bits, for numbers beyond the range of float32 if JAX is to make that of them, and if there
    are rows that hold no particles but no field ``num`` to say so.
    """
    check_carried(part)
    if ndev < 1:
        raise ValueError(f"ndev is the number of devices, so it must be at least 1; {ndev} was given.")
    part = squeeze_particles(part)
    n = get_pos(part).shape[0]
    bounds = [n * rank // ndev for rank in range(ndev + 1)]
    rows = -(-n // ndev) + npad
    if rows * ndev != n and not hasattr(part, "num"):
        raise ValueError(
            f"{n} particles dealt out to {ndev} device(s) in {rows} rows each leave rows that hold none, which takes a "
            "field num to say so; give a particle class with num, such as jztree.data.Pos(pos=pos)."
        )

    def deal(leaf: Any) -> Any:
        if np.ndim(leaf) == 0 or leaf.shape[0] != n:
            return jnp.stack([jnp.asarray(leaf)] * ndev)
        blocks = [leaf[a:b] for a, b in itertools.pairwise(bounds)]
        return jnp.stack([jnp.pad(b, [(0, rows - len(b))] + [(0, 0)] * (b.ndim - 1)) for b in blocks])

    dealt = jax.tree.map(deal, replace_num(part, None))
    return replace_num(dealt, jnp.asarray(np.diff(bounds), jnp.int32))


def flatten_particles(part: _Part) -> _Part:
    """Join the particles of all devices, ``(r, n, ...)`` with ``num`` of shape ``(r,)``, into one set without padding.

    The inverse of `expand_particles`. Not for use under a JAX transformation.
    """
    pos = get_pos(part)
    check_movable(part)
    if np.ndim(pos) != 3:
        raise ValueError(f"positions of all devices have the shape (r, n, d); these have {np.shape(pos)}.")
    ndev, n = pos.shape[:2]
    num = getattr(part, "num", None)
    counts = np.full(ndev, n) if num is None else np.broadcast_to(np.asarray(num), (ndev,))
    if np.any((counts < 0) | (counts > n)):
        raise ValueError(f"num is {counts.tolist()}; it counts the rows of each device, so it must be from 0 to {n}.")

    def join(leaf: Any) -> Any:
        if np.ndim(leaf) >= 2 and leaf.shape[:2] == (ndev, n):
            # NumPy arrays stay what they are: JAX would cut 64-bit identifiers.
            concatenate = np.concatenate if isinstance(leaf, np.ndarray) else jnp.concatenate
            return concatenate([leaf[rank, : counts[rank]] for rank in range(ndev)])
        return leaf[0] if np.ndim(leaf) > 0 and leaf.shape[0] == ndev else leaf

    return replace_num(jax.tree.map(join, replace_num(_on_auto_axes(part), None)), int(counts.sum()))


def squeeze_catalogue(cata: FofCatalogue, offset_mode: str = "rank", nparts: Any = None) -> FofCatalogue:
    """``cata`` without its unused rows. Not for use under a JAX transformation.

    cata: the catalogue of one rank, rows ``(g, ...)``, or that of all ranks, rows ``(r, g, ...)`` and ``ngroups``
        ``(r,)``, which is then joined in the order of the ranks.
    offset_mode: ``"rank"``: ``offset`` is a row of the rank that holds the first particle of the group, as it is in
        ``cata``. ``"global"``: it is a row among the particles of all ranks, joined by `flatten_particles`.
    nparts: how many particles in group order each rank has, ``(r,)`` (``num`` of the particles that came with the
        catalogue); needed for ``"global"``.

    Returns a catalogue of NumPy arrays with ``ngroups`` the total, an int; global offsets are int64. Nothing in here
    runs on a device, so it can be used in a host callback. Raises ValueError if ``nparts`` is missing or does not
    belong to this catalogue, or for another ``offset_mode``.
    """
    check_no_units(catalogue=cata)
    if offset_mode not in ("rank", "global"):
        raise ValueError(f"offset_mode must be 'rank' or 'global', not {offset_mode!r}.")
    rows = {f.name: getattr(cata, f.name) for f in dataclasses.fields(cata) if f.name != "ngroups"}
    if offset_mode == "global":
        rows["offset"] = _global_offsets(cata, nparts)
    ngroups = np.asarray(cata.ngroups)
    used = np.arange(np.shape(cata.count)[-1]) < ngroups[..., None]
    return FofCatalogue(ngroups=int(ngroups.sum()), **jax.tree.map(lambda leaf: np.asarray(leaf)[used], rows))


def _rows_by_name(cata: FofCatalogue, nparts: Any) -> dict[str, np.ndarray]:
    """The rows of all groups by the name of the column, with the rank of each where ``offset`` needs it."""
    if any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in jax.tree.leaves(cata)):
        raise ValueError(
            "this catalogue is spread over several processes, and a table is made by one; bring its rows together with "
            "jztree_utils.io.rows_on_first_process, or write it to a file with jztree_utils.io and read that."
        )
    whole = squeeze_catalogue(cata, "rank" if nparts is None else "global", nparts)
    columns = {field.name: getattr(whole, field.name) for field in dataclasses.fields(whole)}
    del columns["ngroups"]
    if np.ndim(cata.ngroups) and nparts is None:
        columns["rank"] = np.repeat(np.arange(np.size(cata.ngroups), dtype=np.int32), np.asarray(cata.ngroups))
    return {name: rows for name, rows in columns.items() if rows is not None}


def _global_offsets(cata: FofCatalogue, nparts: Any) -> np.ndarray:
    """The offsets of one or all ranks, in the shape they have, as int64 rows among the particles of all ranks."""
    if nparts is None:
        raise ValueError(
            "global offsets need the number of particles on each rank in group order: give nparts=part.num of the "
            "particles that came with the catalogue, or use offset_mode='rank'."
        )
    counts, ranks = np.atleast_1d(np.asarray(nparts)).astype(np.int64), np.size(cata.ngroups)
    if counts.shape != (ranks,):
        raise ValueError(
            f"nparts has shape {np.shape(nparts)}, but the catalogue is that of {ranks} rank(s); global offsets need "
            "the catalogue of all ranks, and one number a rank."
        )
    offset = np.asarray(cata.offset, np.int64)
    return offset if np.ndim(cata.ngroups) == 0 else offset + (np.cumsum(counts) - counts)[:, None]


def sort_catalogue(cata: FofCatalogue) -> FofCatalogue:
    """``cata`` with the largest groups first; groups of equal count stay in their order, unused rows stay last.

    ``offset`` still points to the group's particles, which are not moved.
    """
    cata = _on_auto_axes(cata)
    used = jnp.arange(cata.count.shape[0], dtype=jnp.int32) < jnp.asarray(cata.ngroups, jnp.int32)
    order = jnp.argsort(jnp.where(used, -jnp.asarray(cata.count), 1), stable=True)
    rows = {f.name: getattr(cata, f.name) for f in dataclasses.fields(cata) if f.name != "ngroups"}
    # NumPy arrays stay what they are: JAX would cut 64-bit offsets.
    sort = lambda leaf: leaf[np.asarray(order)] if isinstance(leaf, np.ndarray) else jnp.asarray(leaf)[order]  # noqa: E731
    return FofCatalogue(ngroups=cata.ngroups, **jax.tree.map(sort, rows))
