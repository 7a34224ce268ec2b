"""The particles of a snapshot on one device or on many, and what the command line computes of them.

Both kinds answer the same questions with the same numbers. On many devices each process reads and holds its own share;
results come together on the first process, and are None on all others.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh

from jztree.config import FofConfig
from jztree.data import FofCatalogue, ParticleData
from jztree.fof import fof_and_catalogue
from jztree.knn import knn

from . import io
from .report import stage

_MOST = 2**31 - 1  # rows that one device takes


@dataclass(kw_only=True)
class Particles(ABC):
    """What there is to know of the particles without looking at them.

    header: header of the snapshot. num: number of particles. ndim: their dimensions.
    properties: names of what the snapshot holds of them, as in `jztree.data.ParticleData`, of what was asked for.
    wide: whether positions are float64, and so everything that is computed.
    part: the particles themselves, on the host or on the devices.
    """

    header: io.SnapshotHeader
    num: int
    ndim: int
    properties: frozenset[str]
    wide: bool
    part: ParticleData

    @abstractmethod
    def find_groups(self, rlink: float, cfg: FofConfig) -> tuple[np.ndarray, FofCatalogue] | None:
        """Identifiers of particles, and the catalogue whose ``offset`` are places among them, in no particular order.

        Without identifiers in the snapshot, particles are told by their row.
        """

    @abstractmethod
    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Distances and rows ``(n, k)`` of the nearest particles of each, in the order of the snapshot."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """A property of all particles on the host, in the order of the snapshot; None if it was not read."""


def read_particles(path: Path, ptype: int, optional: tuple[str, ...], mesh: Mesh) -> Particles:
    """The particles of one type, on the devices of ``mesh``: their positions, and of ``optional`` what is there.

    Raises, on all processes if on any, SnapshotError, and ValueError if there are too many for the devices or the box
    does not fit.
    """
    with io.failing_together(mesh):
        snapshot = io.open_snapshot(path, ptype)
        names = snapshot.present(("pos",), optional)
        dtype, shape = snapshot.layout("pos")
        _check(snapshot, ptype, shape[0], mesh.size)
    about: dict[str, Any] = {
        "header": snapshot.header,
        "num": snapshot.num,
        "ndim": shape[0],
        "properties": frozenset(names),
        "wide": dtype == np.float64,
    }
    with jax.enable_x64(about["wide"]), io.failing_together(mesh):
        if mesh.size == 1:
            columns = {name: snapshot.read(name) for name in names}
            return OneDevice(part=ParticleData(**columns, num=snapshot.num, num_total=snapshot.num), **about)
        part = io.shard_snapshot(snapshot, mesh, names, id_words=True)
        id_dtype = snapshot.layout("id")[0] if "id" in names else np.dtype(np.int64)
        return ManyDevices(part=part, mesh=mesh, id_dtype=id_dtype, shared_mass=snapshot.shared_mass, **about)


def _check(snapshot: io.Snapshot, ptype: int, ndim: int, ndev: int) -> None:
    if snapshot.num > _MOST * ndev:
        raise ValueError(
            f"The snapshot holds {snapshot.num} particles of type {ptype}; one device takes {_MOST}, and there "
            f"{'is one' if ndev == 1 else f'are {ndev}'}."
        )
    boxsize = snapshot.header.boxsize
    if isinstance(boxsize, tuple) and len(boxsize) != ndim:
        raise ValueError(f"The BoxSize {boxsize} of the snapshot does not fit {ndim} coordinates.")


class OneDevice(Particles):
    """Particles on the host, as NumPy arrays, for one device."""

    def find_groups(self, rlink: float, cfg: FofConfig) -> tuple[np.ndarray, FofCatalogue] | None:
        grouped, cata = self._run(
            "find groups",
            lambda rows: fof_and_catalogue(rows, rlink=rlink, boxsize=self.header.boxsize, cfg=cfg),
            replace(self.part, id=np.arange(self.num, dtype=np.int32)),
        )
        num_members = int(np.asarray(cata.count, np.int64).sum())
        rows = np.asarray(grouped.id)[:num_members]
        return rows.astype(np.int64) if self.part.id is None else np.asarray(self.part.id)[rows], cata

    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        distances, indices = self._run(
            "find neighbours",
            lambda rows: knn(rows, k, boxsize=self.header.boxsize or None, result="rad_globalidx"),
            ParticleData(pos=self.part.pos, num=self.num, num_total=self.num),
        )
        return np.asarray(distances), np.asarray(indices)

    def column(self, name: str) -> Any:
        return getattr(self.part, name)

    def _run(self, name: str, function: Callable[[Any], Any], part: ParticleData) -> Any:
        """``function`` of ``part``, with the times of compiling it and of running it printed apart."""
        with jax.enable_x64(self.wide):
            with stage("copy to the device", self.num) as told:
                part = jax.block_until_ready(jax.device_put(part))
                told.detail = str(jax.devices()[0])
            with stage("compile"):
                compiled = jax.jit(function).lower(part).compile()
            with stage(name, self.num):
                return jax.block_until_ready(compiled(part))


@dataclass(kw_only=True)
class ManyDevices(Particles):
    """Particles dealt out to all devices of a mesh; ``part`` has identifiers as words, or none.

    id_dtype: of the identifiers when they are put together. shared_mass: of every particle, None if they differ.
    """

    mesh: Mesh
    id_dtype: np.dtype
    shared_mass: float | None

    def find_groups(self, rlink: float, cfg: FofConfig) -> tuple[np.ndarray, FofCatalogue] | None:
        part = self.part
        with jax.enable_x64(self.wide):
            if part.id is None:
                rows = io.shard_rows(lambda a, b: io.split_words(np.arange(a, b)), self.num, self.mesh)
                part = replace(part, id=rows)
            find = fof_and_catalogue.smap(self.mesh, jit=True)
            grouped, cata = self._run(
                "find groups", lambda: find(part, rlink=rlink, boxsize=self.header.boxsize, cfg=cfg)
            )
            with stage("bring results together"):
                words = self._gather(grouped.id, grouped.num)
                nums = self._gather(grouped.num)
                columns = {name: self._gather(column, cata.ngroups) for name, column in _columns(cata).items()}
                ngroups = self._gather(cata.ngroups)
        if words is None:
            return None
        return _join(io.join_words(words, self.id_dtype), nums, FofCatalogue(ngroups=ngroups, **columns))

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

    def column(self, name: str) -> Any:
        if name not in self.properties:
            return None
        if name == "mass" and self.shared_mass is not None:
            return self.shared_mass
        column = getattr(self.part, name)
        with jax.enable_x64(self.wide):
            rows = self._gather(column, self.part.num)
        return io.join_words(rows, self.id_dtype) if name == "id" and rows is not None else rows

    def _run(self, name: str, function: Callable[[], Any]) -> Any:
        """What ``function`` returns, with the time printed; it compiles, and compiles again if a buffer must grow."""
        with stage(f"compile and {name}", self.num) as told:
            told.detail = f"{self.mesh.size} devices"
            try:
                return jax.block_until_ready(function())
            except Exception as error:
                self._raise_by_row(str(error))
                raise

    def _raise_by_row(self, text: str) -> None:
        """Raise the library's error about a row of a rank as one about that row of the snapshot, if it is such."""
        found = re.search(r"jztree: on rank (\d+): row (\d+) ([^.]*)", text)
        if found:
            start, _ = io.share(self.num, int(found[1]), self.mesh.size)
            raise ValueError(f"jztree: row {start + int(found[2])} {found[3]}.") from None

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


def _join(ids: np.ndarray, nums: np.ndarray, cata: FofCatalogue) -> tuple[np.ndarray, FofCatalogue]:
    """Members group after group, and the catalogue of them.

    ids: ``(n,)``, particles of all ranks, one rank after the other. nums: ``(r,)``, how many of each rank. cata: groups
        of all ranks, ``ngroups`` ``(r,)``; ``offset`` is a row on the rank of the group.
    """
    count = np.asarray(cata.count, np.int64)
    rank = np.repeat(np.arange(len(nums)), cata.ngroups)
    first = (np.cumsum(nums, dtype=np.int64) - nums)[rank] + cata.offset
    offset = np.cumsum(count) - count
    members = np.repeat(first - offset, count) + np.arange(count.sum())
    joined = replace(cata, ngroups=len(count), offset=offset.astype(_index_dtype(len(ids))))
    return ids[members], joined


def all_devices() -> Mesh:
    """A mesh of all devices of all processes."""
    return jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
