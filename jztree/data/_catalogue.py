"""The friends-of-friends catalogue, and how to squeeze it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec as P
from numpy.typing import ArrayLike

from .. import comm
from .._transform.shard_map import is_concrete
from .._transform.twins import with_twins
from ..particles import check_no_units
from . import _tables as tables
from ._classes import Array
from ._describe import describe_catalogue
from ._rows import on_auto_axes

if TYPE_CHECKING:
    import astropy.table
    import pandas


_COLUMNS = (
    "count",
    "offset",
    "com_pos",
    "com_inertia_radius",
    "max_radius",
    "mass",
    "com_vel",
    "vel_dispersion",
    "shape_tensor",
    "angular_momentum",
    "scale_factor",
    "v_rad",
    "offset_rank",
    "means",
)
# Number of axes of each column that has more than one, in the catalogue of one rank.
_AXES = {"com_pos": 2, "com_vel": 2, "shape_tensor": 3, "angular_momentum": 2}


class _FurtherColumns:
    """Declare, for type checkers, the columns of a catalogue that are not fields of its dataclass."""

    max_radius: Array
    vel_dispersion: Array | None
    shape_tensor: Array | None
    angular_momentum: Array | None
    means: dict[str, Array] | None


@jax.tree_util.register_pytree_with_keys_class
@dataclass(repr=False)
class FofCatalogue(_FurtherColumns):
    """Friends-of-friends groups, one row per group, in the order of the groups' first particles in z-order.

    Only the first ``ngroups`` rows hold groups; the other rows are zero. Lengths, velocities and masses have the units
    of the particles. Sums are accumulated in float64. ``d`` is the number of dimensions, ``g`` the number of rows. A
    column is None if the particles lack the property or the column was not requested.

    The first ten columns are the fields of the dataclass, so `dataclasses.fields` and `dataclasses.asdict` list only
    these. The other columns are keyword arguments of the constructor and leaves of the pytree, and
    `dataclasses.replace` keeps them; ``CatalogueConfig(extended=False)`` leaves them out.

    Floating-point columns have derivatives with respect to positions, masses, velocities and box lengths, at fixed
    membership: the particles of each group are held constant (frozen assignment of Horowitz & Bayer 2025,
    arXiv:2510.26851).

    Attributes:
        ngroups: Scalar int32, the number of groups.
        mass: ``(g,)`` total mass.
        count: ``(g,)`` int32, number of particles in the group.
        offset: ``(g,)`` int32, row of the group's first particle among the particles in group order. On several ranks,
            the catalogue row of a group is on the rank of its first particle, and ``offset`` is a row of that rank. The
            group may continue on the next rank. See `jztree.fof.fof_and_catalogue` for the order.
        com_pos: ``(g, d)`` centre of mass, correct across the periodic boundary and inside the box (unweighted if the
            particles have no mass).
        com_vel: ``(g, d)`` mass-weighted mean velocity.
        com_inertia_radius: ``(g,)`` root of the mass-weighted mean squared distance from ``com_pos``.
        scale_factor: ``(g,)`` mass-weighted mean of ``1 / zplus1``, the scale factor at which a particle crosses the
            light cone.
        v_rad: ``(g,)`` mass-weighted mean of ``v_rad`` of the particles.
        offset_rank: ``(g,)`` int32, the rank to which ``offset`` refers.
        max_radius: ``(g,)`` largest distance of a particle from ``com_pos``.
        vel_dispersion: ``(g,)`` one-dimensional velocity dispersion: root of the mass-weighted mean squared velocity
            relative to ``com_vel``, divided by ``d``. None if the particles have no velocity.
        shape_tensor: ``(g, d, d)`` mass-weighted mean of ``x_i x_j``, where ``x`` is the vector from ``com_pos`` to the
            nearest image of the particle. The mean is divided by its trace, which is ``com_inertia_radius`` squared. 0
            if all particles of the group are at one point. The tensor has no unit. `jztree.halos.inertia_tensor`
            returns the mean itself, and `jztree.halos.principal_axes` computes axis lengths from it.
        angular_momentum: ``(g, d * (d - 1) / 2)`` angular momentum about ``com_pos`` and relative to ``com_vel``,
            divided by the mass: the mass-weighted mean of ``x`` cross ``v``, in the unit of length times that of
            velocity. In 3D it is a vector; in 2D the component out of the plane; in 4D the means of
            ``x_i v_j - x_j v_i`` for i < j, pairs 01, 02, 03, 12, 13, 23. None in 1D, or if the particles have no
            velocity. An expansion of space does not contribute, because it moves particles along ``x``.
        means: Mass-weighted means of the properties listed in ``CatalogueConfig(means=...)``, ``(g, ...)`` by name.
    """

    # Columns that are always computed have no None in their type, so that scripts need not check for it.
    ngroups: int | Array
    mass: Array | None = None
    count: Array = None  # type: ignore[assignment]
    offset: Array = None  # type: ignore[assignment]
    com_pos: Array = None  # type: ignore[assignment]
    com_vel: Array | None = None
    com_inertia_radius: Array = None  # type: ignore[assignment]
    scale_factor: Array | None = None
    v_rad: Array | None = None
    offset_rank: Array | None = None
    _: dataclasses.KW_ONLY
    max_radius: dataclasses.InitVar[Array] = None
    vel_dispersion: dataclasses.InitVar[Array | None] = None
    shape_tensor: dataclasses.InitVar[Array | None] = None
    angular_momentum: dataclasses.InitVar[Array | None] = None
    means: dataclasses.InitVar[dict[str, Array] | None] = None

    def __post_init__(
        self,
        max_radius: Array,
        vel_dispersion: Array | None,
        shape_tensor: Array | None,
        angular_momentum: Array | None,
        means: dict[str, Array] | None,
    ) -> None:
        self.max_radius = max_radius
        self.vel_dispersion = vel_dispersion
        self.shape_tensor = shape_tensor
        self.angular_momentum = angular_momentum
        self.means = means

    @classmethod
    def column_names(cls) -> tuple[str, ...]:
        """Return the names of every column with one row per group, in the column order of tables."""
        return _COLUMNS

    def columns(self) -> dict[str, Any]:
        """Return all columns with one row per group, by name; None for columns that this catalogue lacks."""
        return {name: getattr(self, name) for name in _COLUMNS}

    def tree_flatten_with_keys(self) -> tuple[list[tuple[Any, Any]], None]:
        """Return the leaves with their keys, for JAX."""
        names = ("ngroups", *_COLUMNS)
        return [(jax.tree_util.GetAttrKey(name), getattr(self, name)) for name in names], None

    @classmethod
    def tree_unflatten(cls, _: None, children: Any) -> FofCatalogue:
        """Build a catalogue from leaves, for JAX; the leaves may be any objects."""
        catalogue = object.__new__(cls)
        catalogue.__dict__.update(zip(("ngroups", *_COLUMNS), children, strict=True))
        return catalogue

    def flatten(self) -> FofCatalogue:
        """Join the catalogue of several ranks, rows ``(r, g, ...)``, into one of ``r * g`` rows, with the groups first.

        Rows may also be ``(r * g, ...)``, as returned by your own `jax.shard_map`. The catalogue of a single rank is
        returned unchanged. You can call this method in compiled functions. `squeeze_catalogue` also drops the unused
        rows.

        Returns:
            The groups in the order of the ranks. ``offset`` remains a row of the rank given in ``offset_rank``.
        """
        if np.ndim(self.ngroups) == 0:
            return self
        cata = on_auto_axes(by_rank(self))
        numpy: Any = np if is_concrete(cata) else jnp
        ngroups = numpy.asarray(cata.ngroups)
        order = numpy.argsort(~(numpy.arange(row_capacity(cata)) < ngroups[:, None]).reshape(-1), stable=True)
        columns = cata.columns()
        # NumPy arrays stay NumPy, because JAX would truncate 64-bit offsets.
        are_of_jax = all(isinstance(leaf, jax.Array) for leaf in jax.tree.leaves(columns))
        in_order = jax.jit(_in_order, inline=True) if are_of_jax else _in_order
        return FofCatalogue(ngroups=ngroups.sum(), **in_order(columns, order))

    def __repr__(self) -> str:
        return describe_catalogue(self)

    def to_pandas(self, *, nparts: ArrayLike | None = None, units: Mapping[str, Any] | None = None) -> pandas.DataFrame:
        """Return the groups as a `pandas.DataFrame`, one row per group.

        Vectors become columns ``com_pos_x``, ``com_pos_y``, ... The catalogue may hold one rank or several (rows
        ``(r, g, ...)``), padded or not. The table omits columns that the catalogue lacks. Do not call this under a JAX
        transformation.

        Args:
            nparts: Number of particles in group order on each rank; see `squeeze_catalogue`. If given, ``offset`` is a
                row among the joined particles of the ranks. Otherwise, a catalogue of several ranks gets a column
                ``rank``, to which ``offset`` refers.
            units: Names of the known units of "length", "mass" and "velocity" (`jztree_utils.io.unit_name` finds those
                of a snapshot). ``attrs["units"]`` of the table holds the unit of each column that has one.

        Returns:
            The table.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: For an unknown kind of unit, an ``nparts`` that does not match the catalogue, or a catalogue
                that is spread over several processes.
        """
        return tables.to_pandas(_rows_by_name(self, nparts), units)

    def to_astropy(
        self, *, nparts: ArrayLike | None = None, units: Mapping[str, Any] | None = None
    ) -> astropy.table.QTable:
        """Return the groups as an `astropy.table.QTable`, one row per group; vectors stay columns ``(g, d)``.

        Args:
            nparts: See `to_pandas`.
            units: Astropy units, or their names, for any of "length", "mass" and "velocity". An ``h`` in a name such as
                ``Mpc/h`` is the Hubble constant in 100 km/s/Mpc (``littleh`` of astropy), not an hour. Columns with a
                known unit become quantities.

        Returns:
            The table.

        Raises:
            ImportError: If astropy is not installed.
            ValueError: For a unit that astropy does not know; see also `to_pandas`.
        """
        return tables.to_astropy(_rows_by_name(self, nparts), units)


@with_twins({"cata": P(-1), "nparts": P(-1)}, P(-1))
def squeeze_catalogue(
    cata: FofCatalogue, size_out: int | None = None, offset_mode: str = "rank", nparts: ArrayLike | None = None
) -> FofCatalogue:
    """Drop the unused rows of ``cata``, or set its number of rows.

    Args:
        cata: The catalogue of one rank, rows ``(g, ...)``, or of several ranks, rows ``(r, g, ...)`` and ``ngroups``
            ``(r,)``, which is then joined in the order of the ranks. Rows may also be ``(r * g, ...)``, as returned by
            your own `jax.shard_map`.
        size_out: Number of rows to return, with zeros after the groups; required under a JAX transformation. None means
            the number of groups.
        offset_mode: With ``"rank"``, ``offset`` remains a row of the rank that holds the first particle of the group.
            With ``"global"``, it becomes a row among the particles of every rank, joined by `flatten_particles`.
        nparts: Number of particles in group order on each rank, ``(r,)`` (``num`` of the particles returned with the
            catalogue); required for ``"global"``.

    Returns:
        Without ``size_out``, a catalogue of NumPy arrays, with the total ``ngroups`` as an int; global offsets are
        int64. This mode uses no device, so a host callback may call it. With ``size_out``, a catalogue of JAX arrays
        with int32 offsets.

    Raises:
        TypeError: If ``cata`` is not a `FofCatalogue`.
        ValueError: If ``nparts`` is missing or does not match the catalogue, if ``offset_mode`` is invalid, or if there
            are more groups than ``size_out`` or global offsets above the int32 range (at run time if they are traced).

    Examples:
        >>> pos = np.array([[0.1], [0.2], [0.8], [0.9]], np.float32)
        >>> _, catalogue = jz.friends_of_friends.jit(pos, 0.15, npart_min=2)
        >>> jz.data.squeeze_catalogue(catalogue).count  # without the unused rows of a compiled search
        array([2, 2], dtype=int32)
    """
    cata = by_rank(cata)
    check_no_units(catalogue=cata)
    row_count = None if size_out is None else _row_number(size_out)
    if offset_mode not in ("rank", "global"):
        raise ValueError(f"offset_mode must be 'rank' or 'global', not {offset_mode!r}.")
    if row_count is not None:
        return _with_rows(cata, row_count, offset_mode, nparts)
    if not is_concrete(cata):
        raise ValueError("a compiled function does not know the number of groups; set size_out, the number of rows.")
    rows = cata.columns()
    if offset_mode == "global":
        rows["offset"] = _global_offsets(cata, nparts)
        rows["offset_rank"] = None if rows["offset_rank"] is None else np.zeros_like(rows["offset_rank"])
    ngroups = np.asarray(cata.ngroups)
    used = np.arange(row_capacity(cata)) < ngroups[..., None]
    return FofCatalogue(ngroups=int(ngroups.sum()), **jax.tree.map(lambda leaf: np.asarray(leaf)[used], rows))


def by_rank(cata: Any) -> FofCatalogue:
    """Return ``cata`` with arrays instead of lists, and with rows ``(r, g, ...)`` if it covers ``r`` ranks.

    Raises:
        TypeError: If it is not a catalogue.
        ValueError: If its rows have an invalid shape.
    """
    if not isinstance(cata, FofCatalogue):
        raise TypeError(
            f"the catalogue must be a jztree.data.FofCatalogue, not {type(cata).__name__}; make one from the same "
            "columns, such as FofCatalogue(ngroups, count=count, com_pos=com_pos)."
        )
    columns: dict[str, Any] = {name: _as_array(rows) for name, rows in cata.columns().items()}
    ngroups = _as_array(cata.ngroups)
    if np.ndim(ngroups) > 1 or np.size(ngroups) == 0:
        raise ValueError(f"ngroups must be one number, or one per rank; its shape is {np.shape(ngroups)}.")
    if np.ndim(ngroups) == 1 and not _is_stacked(columns):
        columns = {name: _stacked(name, rows, np.size(ngroups)) for name, rows in columns.items()}
    return FofCatalogue(ngroups=ngroups, **columns)


def _as_array(rows: Any) -> Any:
    return np.asarray(rows) if isinstance(rows, (list, tuple)) else rows


def _stacked(name: str, rows: Any, ranks: int) -> Any:
    """Reshape rows ``(r * g, ...)`` of a column to ``(r, g, ...)``."""

    def stack(leaf: Any) -> Any:
        number = np.shape(leaf)[0]
        if number % ranks:
            raise ValueError(
                f"{name} has {number} rows, which is not a multiple of the {ranks} ranks; a catalogue of several ranks "
                "must have rows (r, g, ...) or (r * g, ...)."
            )
        return leaf.reshape(ranks, number // ranks, *leaf.shape[1:])

    return jax.tree.map(stack, on_auto_axes(rows))


def _is_stacked(columns: Mapping[str, Any]) -> bool:
    """Return whether columns have an axis over ranks before the row axis."""
    shapes = (
        np.ndim(rows) > _AXES.get(name, 1) for name, rows in columns.items() if name != "means" and rows is not None
    )
    return next(shapes, True)


def _row_number(size_out: Any) -> int:
    if isinstance(size_out, bool) or not isinstance(size_out, (int, np.integer)) or size_out < 0:
        raise TypeError(
            f"size_out must be the number of rows of the result, an integer of at least 0, not {size_out!r}; pass "
            "offset_mode and nparts by name."
        )
    return int(size_out)


def _in_order(columns: dict[str, Any], order: Any) -> dict[str, Any]:
    """Return rows ``(r, g, ...)`` joined and in the given order."""
    joined: dict[str, Any] = jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:])[order], columns)
    return joined


def _with_rows(cata: FofCatalogue, size_out: int, offset_mode: str, nparts: ArrayLike | None) -> FofCatalogue:
    """Join ``cata`` and return it with ``size_out`` rows of JAX arrays."""
    if offset_mode == "global":
        cata = dataclasses.replace(cata, offset=_global_offsets_32(cata, nparts))
        if cata.offset_rank is not None:
            cata.offset_rank = jnp.zeros_like(jnp.asarray(cata.offset_rank))
    cata = cata.flatten()
    too_many = "the catalogue has {0} groups, but size_out has only {1} rows; use a larger size_out."
    if is_concrete(cata.ngroups):
        ngroups = jnp.asarray(cata.ngroups, jnp.int32)
        if int(ngroups) > size_out:
            raise ValueError(too_many.format(int(ngroups), size_out))
    else:
        ngroups = comm.check(cata.ngroups, cata.ngroups > size_out, [cata.ngroups, size_out], too_many)
    missing = max(0, size_out - row_capacity(cata))

    def resize(leaf: Any) -> jax.Array:
        return jnp.pad(jnp.asarray(leaf)[:size_out], [(0, missing)] + [(0, 0)] * (np.ndim(leaf) - 1))

    return FofCatalogue(ngroups=ngroups, **jax.tree.map(resize, cata.columns()))


def _global_offsets_32(cata: FofCatalogue, nparts: ArrayLike | None) -> Any:
    """Return `_global_offsets` as int32; accepts traced catalogues."""
    if is_concrete((cata, nparts)):
        offset = _global_offsets(cata, nparts)
        if offset.max(initial=0) > np.iinfo(np.int32).max:
            raise ValueError("global offsets of this catalogue exceed int32; leave out size_out.")
        return jnp.asarray(offset.astype(np.int32))
    counts = jnp.asarray(_checked_nparts(cata, nparts))
    ends = jnp.cumsum(counts, dtype=jnp.int32)
    starts = ends - counts
    wide = (ends < starts).any()  # the first sum that overflows is negative
    sentence = "global offsets of this catalogue exceed int32; squeeze the catalogue on the host."
    checked = comm.check(0, wide, [], sentence)
    return jnp.asarray(cata.offset) + comm.after(starts, checked)[:, None] if np.ndim(cata.ngroups) else cata.offset


def row_capacity(cata: FofCatalogue) -> int:
    """Return the row capacity of each rank."""
    axis = np.ndim(cata.ngroups)
    return next((np.shape(leaf)[axis] for leaf in jax.tree.leaves(cata.columns())), 0)


def _rows_by_name(cata: FofCatalogue, nparts: ArrayLike | None) -> dict[str, np.ndarray]:
    """Return the rows of the groups by column name, with each group's rank if ``offset`` refers to it."""
    if any(isinstance(leaf, jax.Array) and not leaf.is_fully_addressable for leaf in jax.tree.leaves(cata)):
        raise ValueError(
            "this catalogue is spread over several processes, but a table needs its rows in one process; gather them "
            "with jztree_utils.io.rows_on_first_process, or write them to a file with jztree_utils.io and read that."
        )
    cata = by_rank(cata)
    squeezed = squeeze_catalogue(cata, offset_mode="rank" if nparts is None else "global", nparts=nparts)
    columns = squeezed.columns()
    columns |= columns.pop("means") or {}
    del columns["offset_rank"]  # the column rank replaces it if there are several ranks
    if np.ndim(cata.ngroups) and nparts is None:
        columns["rank"] = np.repeat(np.arange(np.size(cata.ngroups), dtype=np.int32), np.asarray(cata.ngroups))
    return {name: rows for name, rows in columns.items() if rows is not None}


def _global_offsets(cata: FofCatalogue, nparts: ArrayLike | None) -> np.ndarray:
    """Return the offsets as int64 rows among the joined particles of the ranks, in their original shape.

    Args:
        cata: The catalogue of one or several ranks.
        nparts: Number of particles on each rank.
    """
    counts = np.asarray(_checked_nparts(cata, nparts)).astype(np.int64)
    offset = np.asarray(cata.offset, np.int64)
    return offset if np.ndim(cata.ngroups) == 0 else offset + (np.cumsum(counts) - counts)[:, None]


def _checked_nparts(cata: FofCatalogue, nparts: ArrayLike | None) -> Any:
    """Return ``nparts`` as ``(r,)``; raise ValueError if it does not match this catalogue."""
    if nparts is None:
        raise ValueError(
            "global offsets need the number of particles on each rank in group order: pass nparts=part.num of the "
            "particles that were returned with the catalogue, or use offset_mode='rank'."
        )
    counts, ranks = (np if is_concrete(nparts) else jnp).atleast_1d(on_auto_axes(nparts)), np.size(cata.ngroups)
    if counts.shape != (ranks,):
        raise ValueError(
            f"nparts has shape {np.shape(nparts)}, but the catalogue has {ranks} rank(s); pass the catalogue of every "
            "rank and one number per rank."
        )
    return counts
