"""The particles of a snapshot on one device or on many, and what the command line computes of them.

Both kinds answer the same questions with the same numbers. On many devices each process reads and holds its own share;
results come together on the first process, and are None on all others.
"""

import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jztree.data import FofCatalogue, ParticleData, fits_float32, squeeze_catalogue
from jztree.fof import fof_and_catalogue
from jztree.jax_ext import shard_map_constructor
from jztree.knn import knn

from . import io
from .details import compilation, rows_sent
from .progress import progress
from .properties import GroupOptions, group_properties
from .report import is_quiet, stage

_WIDEST = 1.05  # of the periodic box: codes let particles leave it a little between two steps
_MOST = 2**31 - 1  # rows that one device takes
_LONGEST = 1e10  # box in float32, where cubes of lengths, and masses over these, must fit
# What the library says of a row of the particles it was given, on one device or on a rank.
_OF_A_ROW = re.compile(
    r"jztree: (?:on rank (\d+): )?row (\d+)(?: of attached\[(\d+)\])?( of the positions)? (.*?)\.?(?=\s*$|\.\s)", re.M
)


@dataclass(frozen=True)
class Source:
    """Which particles of a snapshot are looked at.

    ptype: the type that is grouped. attach: types whose particles join the groups of the nearest of these; None is all
    others. options: how the snapshot is read.
    """

    path: Path
    ptype: int = 1
    attach: tuple[int, ...] | None = ()
    options: io.ReadOptions | None = None


@dataclass
class Groups:
    """Groups and their members, in no particular order.

    ids: ``(m,)`` identifiers of members; without identifiers in the snapshot, their rows: first those of the type that
        was grouped, then those of attached types. cata: ``offset`` are places among ``ids``. by_type: how many of each
        type, None without attached types. extra: more columns, see `jztree_utils.properties`.
    """

    ids: np.ndarray
    cata: FofCatalogue
    by_type: io.TypeTable | None
    extra: dict[str, np.ndarray]


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class _Member:
    """What is needed of particles to find groups. kind: the particle type of each, None if there is one type."""

    pos: Any
    mass: Any = None
    vel: Any = None
    id: Any = None
    kind: Any = None
    num: Any = None


@dataclass(kw_only=True)
class Particles(ABC):
    """What there is to know of the particles without looking at them.

    snapshots: where they are from, as each type sees it, the one that is grouped first. ndim: dimensions.
    properties: names of what the snapshot holds of them, as in `jztree.data.ParticleData`, of what was asked for.
    wide: whether everything is computed in float64: because the snapshot has it, or its units need it.
    part: the particles themselves, on the host or on the devices. attached: those of attached types, by type.
    """

    snapshots: list[io.Snapshot]
    ndim: int
    properties: frozenset[str]
    wide: bool
    part: ParticleData
    attached: dict[int, ParticleData]

    @property
    def snapshot(self) -> io.Snapshot:
        """That of the type that is grouped."""
        return self.snapshots[0]

    @property
    def header(self) -> io.SnapshotHeader:
        """Of the snapshot."""
        return self.snapshot.header

    @property
    def num(self) -> int:
        """Particles of the type that is grouped."""
        return self.snapshot.num

    @abstractmethod
    def corners(self) -> np.ndarray:
        """``(2, d)``: the least and the largest coordinates of the particles that are grouped."""

    @abstractmethod
    def find_groups(self, rlink: float, options: GroupOptions) -> Groups | None:
        """Groups and their members."""

    @abstractmethod
    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Distances and rows ``(n, k)`` of the nearest particles of each, in the order of the snapshot."""

    @abstractmethod
    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        """``function`` of the particles on each device, a number a particle, in the order of the snapshot."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """A property of all particles on the host, in the order of the snapshot; None if it was not read."""

    def _raise_by_row(self, text: str, ndev: int) -> None:
        """Raise the library's error about a row of what it was given as one about that row of the snapshot."""
        found = _OF_A_ROW.search(text)
        if found is None:
            return
        kind = 0 if found[3] is None else int(found[3]) + 1
        snapshot = self.snapshots[kind]
        start, _ = io.share(snapshot.num, int(found[1] or 0), ndev)
        row = snapshot.row_in_words(start + int(found[2]), found[4] or "")
        raise ValueError(f"jztree: {row} {found[5]}.") from None

    def types(self) -> list[int]:
        """All particle types, the one that is grouped first."""
        return [self.snapshot.ptype, *self.attached]


def read_particles(snapshots: list[io.Snapshot], optional: tuple[str, ...], mesh: Mesh) -> Particles:
    """The particles of a snapshot on the devices of ``mesh``: positions, and of ``optional`` what all types have.

    snapshots: of `open_types`.
    Raises, on all processes if on any, SnapshotError, and ValueError if there are too many for the devices.
    """
    first = snapshots[0]
    with io.failing_together(mesh):
        shared = set.intersection(*(set(one.present(("pos",), optional)) for one in snapshots))
        names = [name for name in first.present(("pos",), optional) if name in shared]
        ndim = first.layout("pos")[1][0]
        check_fits(snapshots, mesh.size)
        id_dtype = _common_id_dtype(snapshots) if "id" in names else np.dtype(np.int64)
    wide = any(_needs_64_bits(one, names) for one in snapshots)
    about: dict[str, Any] = {
        "snapshots": snapshots,
        "ndim": ndim,
        "properties": frozenset(names),
        "wide": wide,
    }
    with jax.enable_x64(wide), io.failing_together(mesh):
        if mesh.size == 1:
            parts = [_read_all(one, names, wide) for one in snapshots]
            attached = {one.ptype: part for one, part in zip(snapshots[1:], parts[1:], strict=True)}
            return OneDevice(part=parts[0], attached=attached, **about)
        parts = [io.shard_snapshot(one, mesh, names, id_words=True, finite=True) for one in snapshots]
        if wide:
            parts = [replace(part, pos=jnp.asarray(part.pos, np.float64)) for part in parts]
        attached = {one.ptype: part for one, part in zip(snapshots[1:], parts[1:], strict=True)}
        return ManyDevices(part=parts[0], attached=attached, mesh=mesh, id_dtype=id_dtype, **about)


def _needs_64_bits(snapshot: io.Snapshot, names: list[str]) -> bool:
    """Whether float32 cannot hold what is in a snapshot, or what is computed of it: squares and cubes of lengths."""
    if jax.dtypes.canonicalize_dtype(np.float64) == np.float64:
        return True
    numbers = [name for name in ("pos", "mass", "vel") if name in names]
    shared = snapshot.shared_mass if "mass" in names else None
    stored = [snapshot.layout(name)[0] for name in numbers if name != "mass" or shared is None]
    lengths = np.atleast_1d(np.asarray(snapshot.header.boxsize, np.float64))
    far = (lengths > _LONGEST) | ((lengths > 0) & (lengths < 1 / _LONGEST))
    return np.dtype(np.float64) in stored or bool(far.any()) or not fits_float32(shared or 0.0)


def open_types(source: Source) -> list[io.Snapshot]:
    """The snapshot as each of its types sees it, the one that is grouped first. Raises like `io.open_snapshot`."""
    first = io.open_snapshot(source.path, source.ptype, source.options)
    others = first.types if source.attach is None else dict.fromkeys(source.attach, 1)
    wanted = [ptype for ptype, num in others.items() if num and ptype != source.ptype]
    return [first, *(io.open_snapshot(source.path, ptype, source.options) for ptype in wanted)]


def _common_id_dtype(snapshots: list[io.Snapshot]) -> np.dtype:
    """The type of integers that holds the identifiers of all types. Raises ValueError, in words, if there is none."""
    dtypes = {one.ptype: one.layout("id")[0] for one in snapshots}
    common = np.result_type(*dtypes.values())
    if common.kind not in "iu":
        held = " and ".join(f"{dtype} in type {ptype}" for ptype, dtype in dtypes.items())
        raise ValueError(
            f"The identifiers are {held}, which no type of integers can hold together; write them alike, or leave such "
            "types out of --attach."
        )
    return common


def check_fits(snapshots: list[io.Snapshot], ndev: int) -> None:
    """Raise ValueError, in words, if the particles are too many for the devices."""
    for snapshot in snapshots:
        if snapshot.num > _MOST * ndev:
            raise ValueError(
                f"The snapshot holds {snapshot.num} particles of type {snapshot.ptype}; one device takes {_MOST}, and "
                f"there {'is one' if ndev == 1 else f'are {ndev}'}."
            )


def corners_of(pos: np.ndarray) -> np.ndarray:
    """``(2, d)``: the least and the largest coordinates of positions ``(n, d)``."""
    # Column by column: NumPy takes 20 times as long for the minimum along the rows of (n, 3).
    return np.asarray([[column.min() for column in pos.T], [column.max() for column in pos.T]])


def _corners_of_ranks(pos: jax.Array, num: jax.Array) -> jax.Array:
    """`corners_of` positions ``(r, n, d)``, of which the first ``num`` ``(r,)`` of each rank count."""
    held = (jnp.arange(pos.shape[1]) < num[:, None])[..., None]
    low, high = jnp.where(held, pos, jnp.inf), jnp.where(held, pos, -jnp.inf)
    return jnp.stack([low.min(axis=(0, 1)), high.max(axis=(0, 1))])


def box_lengths(header: io.SnapshotHeader, ndim: int) -> np.ndarray:
    """The length of the box in each dimension, 0 where it is open."""
    return np.broadcast_to(np.asarray(header.boxsize, np.float64), (ndim,))


def check_box(corners: np.ndarray, header: io.SnapshotHeader) -> None:
    """Raise ValueError, in words, if particles reach much farther than the periodic box, which must be a wrong one.

    corners: ``(2, d)``, as of `corners_of`. Where the box begins makes no difference, nor do particles that have left
    it a little. Positions that are no numbers are left to the search, which names their rows.
    """
    extent = corners[1].astype(np.float64) - corners[0]
    lengths = box_lengths(header, len(extent))
    for axis in np.flatnonzero((lengths > 0) & np.isfinite(extent) & (extent > _WIDEST * lengths)):
        raise ValueError(
            f"The positions span {extent[axis]:g} along dimension {axis}, but the periodic box is {lengths[axis]:g} "
            "there; give the right one with --boxsize, in the unit of the positions, or 0 for none."
        )


def _read_all(snapshot: io.Snapshot, names: list[str], wide: bool) -> ParticleData:
    """All of a snapshot on the host, with its progress told."""
    columns = {}
    with progress("read the snapshot", snapshot.num * len(names), "values", quiet=is_quiet()) as advance:
        for name in names:
            columns[name] = snapshot.read(name, advance=advance, finite=True)
    if wide:
        columns["pos"] = columns["pos"].astype(np.float64, copy=False)
    return ParticleData(**columns, num=snapshot.num, num_total=snapshot.num)


class OneDevice(Particles):
    """Particles on the host, as NumPy arrays, for one device."""

    def corners(self) -> np.ndarray:
        return corners_of(np.asarray(self.part.pos))

    def find_groups(self, rlink: float, options: GroupOptions) -> Groups | None:
        box = self.header.boxsize
        grouped, cata = self._run(
            "find groups",
            lambda parts: fof_and_catalogue(parts[0], rlink, box, options.cfg, attached=parts[1:] or None),
            self._copy(self._members()),
        )
        extra: dict[str, Any] = {}
        if options.neighbours:
            extra = self._run(
                "find properties",
                lambda found: group_properties(found[0], found[1], box, options),
                (grouped, cata),
            )
        listed = int(np.asarray(cata.count, np.int64).sum())
        rows = np.asarray(grouped.id)[:listed]
        ids = rows.astype(np.int64)
        if "id" in self.properties:
            ids = np.concatenate([np.asarray(part.id) for part in (self.part, *self.attached.values())])[rows]
        used = int(cata.ngroups)
        extra = {name: np.asarray(column)[:used] for name, column in extra.items()}
        return Groups(ids, cata, self._by_type(grouped, cata), extra)

    def _members(self) -> list[_Member]:
        """The particles of all types, told by their rows."""
        starts = np.cumsum([0, self.num, *(part.num for part in self.attached.values())])
        if starts[-1] > _MOST:
            raise ValueError(f"There are {starts[-1]} particles of all types together; one device takes {_MOST}.")
        return [
            _Member(
                pos=part.pos,
                mass=part.mass,
                vel=part.vel,
                id=np.arange(start, start + part.num, dtype=np.int32),
                kind=np.full(part.num, ptype, np.int32) if self.attached else None,
            )
            for ptype, part, start in zip(self.types(), (self.part, *self.attached.values()), starts, strict=False)
        ]

    def _by_type(self, grouped: _Member, cata: FofCatalogue) -> io.TypeTable | None:
        if not self.attached:
            return None
        return _count_types(np.asarray(grouped.kind), grouped.mass, squeeze_catalogue(cata))

    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        distances, indices = self._run(
            "find neighbours",
            lambda rows: knn(rows, k, boxsize=self.header.boxsize or None, result="rad_globalidx"),
            self._copy(ParticleData(pos=self.part.pos, num=self.num, num_total=self.num)),
        )
        return np.asarray(distances), np.asarray(indices)

    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        rows = ParticleData(pos=self.part.pos, mass=self.part.mass, num=self.num, num_total=self.num)
        return np.asarray(self._run(name, function, self._copy(rows)))

    def column(self, name: str) -> Any:
        return getattr(self.part, name)

    def _copy(self, part: Any) -> Any:
        """``part`` on the device."""
        with jax.enable_x64(self.wide), stage("copy to the device", self.num) as told:
            told.detail = str(jax.devices()[0])
            return jax.block_until_ready(jax.device_put(part))

    def _run(self, name: str, function: Callable[[Any], Any], part: Any) -> Any:
        """``function`` of ``part``, with the times of compiling it and of running it printed apart."""
        with jax.enable_x64(self.wide):
            with stage("compile"):
                compiled = jax.jit(function).lower(part).compile()
            with stage(name, self.num):
                try:
                    return jax.block_until_ready(compiled(part))
                except Exception as error:
                    self._raise_by_row(str(error), 1)
                    raise


@dataclass(kw_only=True)
class ManyDevices(Particles):
    """Particles dealt out to all devices of a mesh; they have identifiers as words, or none.

    id_dtype: of the identifiers when they are put together.
    """

    mesh: Mesh
    id_dtype: np.dtype

    def corners(self) -> np.ndarray:
        with jax.enable_x64(self.wide):
            find = jax.jit(_corners_of_ranks, out_shardings=NamedSharding(self.mesh, P()))
            return np.asarray(find(self.part.pos, self.part.num))

    def find_groups(self, rlink: float, options: GroupOptions) -> Groups | None:
        with jax.enable_x64(self.wide):
            members = self._members()
            box, extra = self.header.boxsize, {}
            find = fof_and_catalogue.smap(self.mesh, jit=True)
            grouped, cata = self._run(
                "find groups", lambda: find(members[0], rlink, box, options.cfg, attached=members[1:] or None)
            )
            if options.neighbours:
                compute = _properties_over_ranks(self.mesh, jit=True)
                extra = self._run("find properties", lambda: compute(grouped, cata, box, options))
            with stage("bring results together"):
                words = self._gather(grouped.id, grouped.num)
                nums = self._gather(grouped.num)
                columns = {name: self._gather(column, cata.ngroups) for name, column in _columns(cata).items()}
                extra = {name: self._gather(column, cata.ngroups) for name, column in extra.items()}
                told = [grouped.kind, grouped.mass] if self.attached else []
                kinds = [None if rows is None else self._gather(rows, grouped.num) for rows in told]
                ngroups = self._gather(cata.ngroups)
        if words is None or nums is None:
            return None
        members_of, joined = _join(nums, FofCatalogue(ngroups=ngroups, **columns))
        ids = io.join_words(words, self.id_dtype)[members_of]
        by_type = None
        if self.attached:
            kind, mass = (None if column is None else column[members_of] for column in kinds)
            by_type = _count_types(np.asarray(kind), mass, joined)
        return Groups(ids, joined, by_type, extra)

    def _members(self) -> list[_Member]:
        """The particles of all types, told by identifiers or rows, in words."""
        members, start = [], 0
        for ptype, part in zip(self.types(), (self.part, *self.attached.values()), strict=True):
            total = part.num_total or 0
            words = part.id if part.id is not None else self._rows(start, total)
            kind = jnp.full_like(part.pos[..., 0], ptype, dtype=np.int32) if self.attached else None
            members.append(_Member(pos=part.pos, mass=part.mass, vel=part.vel, id=words, kind=kind, num=part.num))
            start += total
        return members

    def _rows(self, start: int, total: int) -> jax.Array:
        """The number of each row, from ``start`` on, as words."""
        return io.shard_rows(lambda a, b: io.split_words(np.arange(start + a, start + b)), total, self.mesh)

    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        part = ParticleData(pos=self.part.pos, num=self.part.num, num_total=self.num)
        box = self.header.boxsize or None
        with jax.enable_x64(self.wide):
            find = knn.smap(self.mesh, jit=True)
            distances, where = self._run("find neighbours", lambda: find(part, k=k, boxsize=box, result="rad_rankidx"))
            with stage("bring results together"):
                gathered = [self._gather(rows, part.num) for rows in (distances, where.rank, where.idx)]
                nums = self._gather(part.num)
        if nums is None:
            return None
        starts = (np.cumsum(nums, dtype=np.int64) - nums).astype(_index_dtype(self.num))
        return gathered[0], starts[gathered[1]] + gathered[2]

    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        part = ParticleData(pos=self.part.pos, mass=self.part.mass, num=self.part.num, num_total=self.num)
        with jax.enable_x64(self.wide):
            mapped = shard_map_constructor(function, P(-1), P(-1))(self.mesh, jit=True)
            found = self._run(name, lambda: mapped(part))
            with stage("bring results together"):
                return self._gather(found, part.num)

    def column(self, name: str) -> Any:
        if name not in self.properties:
            return None
        if name == "mass" and self.snapshot.shared_mass is not None:
            return self.snapshot.shared_mass
        column = getattr(self.part, name)
        with jax.enable_x64(self.wide):
            rows = self._gather(column, self.part.num)
        return io.join_words(rows, self.id_dtype) if name == "id" and rows is not None else rows

    def _run(self, name: str, function: Callable[[], Any]) -> Any:
        """What ``function`` returns, with the time printed; it compiles, and compiles again if a buffer must grow."""
        with stage(f"compile and {name}", self.num) as told:
            told.detail = f"{self.mesh.size} devices"
            try:
                with rows_sent(self.mesh), compilation(told):
                    return jax.block_until_ready(function())
            except Exception as error:
                self._raise_by_row(str(error), self.mesh.size)
                raise

    def _gather(self, rows: Any, num: Any = None) -> Any:
        """Rows of all ranks without padding, or one number of each rank; None but on the first process."""
        if num is None:
            return io.rows_on_first_process(rows[:, None], jax.numpy.ones_like(rows), self.mesh)
        return io.rows_on_first_process(rows, num, self.mesh)


def _index_dtype(num: int) -> type[np.signedinteger]:
    return np.int32 if num <= _MOST else np.int64


def _columns(cata: FofCatalogue) -> dict[str, Any]:
    columns = {name: getattr(cata, name) for name in cata.__dataclass_fields__ if name != "ngroups"}
    return {name: column for name, column in columns.items() if column is not None}


def _join(nums: np.ndarray, cata: FofCatalogue) -> tuple[np.ndarray, FofCatalogue]:
    """The rows of members, group after group, among the particles of all ranks; and the catalogue of them.

    nums: ``(r,)``, particles of each rank. cata: groups of all ranks, ``ngroups`` ``(r,)``; ``offset`` is a row on the
        rank of the group.
    """
    count = np.asarray(cata.count, np.int64)
    rank = np.repeat(np.arange(len(nums)), cata.ngroups)
    first = (np.cumsum(nums, dtype=np.int64) - nums)[rank] + cata.offset
    offset = np.cumsum(count) - count
    return io.member_rows(count, first), replace(
        cata, ngroups=len(count), offset=offset.astype(_index_dtype(int(nums.sum())))
    )


_properties_over_ranks = shard_map_constructor(group_properties, (P(-1), P(-1), None, None), P(-1))


def _count_types(kind: np.ndarray, mass: Any, cata: FofCatalogue) -> io.TypeTable:
    """How many particles of each type each group has, and their mass. kind, mass: of particles in group order."""
    count = np.asarray(cata.count, np.int64)
    group = np.repeat(np.arange(len(count)), count)
    members = io.member_rows(count, np.asarray(cata.offset, np.int64))
    place = group * io.NUM_TYPES + kind[members]
    shape = (len(count), io.NUM_TYPES)
    weights = None if mass is None else np.broadcast_to(np.asarray(mass, np.float64), kind.shape)[members]
    counts = np.bincount(place, minlength=math.prod(shape)).reshape(shape)
    if weights is None:
        return io.TypeTable(counts, np.zeros(shape))
    return io.TypeTable(counts, np.bincount(place, weights, minlength=math.prod(shape)).reshape(shape))


def all_devices() -> Mesh:
    """A mesh of all devices of all processes."""
    return jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
