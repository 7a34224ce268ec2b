"""The particles of a snapshot on many devices: each process reads and holds its own share.

The first process gets the results, and all others get None.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from jztree.data import FofCatalogue, ParticleData
from jztree.fof import fof_and_catalogue
from jztree.jax_ext import shard_map_constructor
from jztree.knn import knn
from jztree.mst import SpanningTree, spanning_tree
from jztree.radius import pair_counts
from jztree.substructure import Subhaloes, subhaloes

from ... import io
from ...progress import waiting
from .._report import is_quiet, stage
from .._verbose import compilation, rows_sent
from .group_properties import GroupOptions, group_properties
from .library_errors import told_of_snapshot
from .mean_mass import mean_over_devices
from .particles import MOST_ROWS, Groups, Member, Particles, bin_options, count_types, matter_of
from .subhalo_search import HostSubhaloes


@dataclass(kw_only=True)
class ManyDevices(Particles):
    """Particles distributed to all devices of a mesh; their identifiers are stored as words, if they have any.

    Attributes:
        id_dtype: Dtype of the recombined identifiers.
    """

    mesh: Mesh
    id_dtype: np.dtype

    def _corners(self, part: ParticleData) -> np.ndarray:
        with jax.enable_x64(self.wide):
            find = jax.jit(_corners_of_ranks, out_shardings=NamedSharding(self.mesh, P()))
            return np.asarray(find(part.pos, part.num))

    def _count_outside(self, part: ParticleData, rows: Any, low: Any, high: Any) -> int:
        with jax.enable_x64(self.wide):
            count = jax.jit(_outside_of_ranks, out_shardings=NamedSharding(self.mesh, P()))
            return int(np.asarray(count(rows, part.num, low, high), np.int64).sum())

    def _mean_of_masses(self) -> float | None:
        with jax.enable_x64(True):
            return mean_over_devices(self.part.mass, self.part.num, self.num, NamedSharding(self.mesh, P()))

    def find_groups(self, rlink: float, options: GroupOptions, with_rows: bool = False) -> Groups | None:
        with jax.enable_x64(self.wide):
            members = self._members(with_rows)
            box, extra = self.header.boxsize, {}
            find = fof_and_catalogue.smap(self.mesh, jit=True)
            grouped, cata = self._run(
                "find groups",
                lambda: find(
                    members[0],
                    rlink,
                    box,
                    options.cfg,
                    attached=members[1:] or None,
                    attach_within=options.attach_within,
                ),
            )
            if options.neighbours:
                compute = _properties_over_ranks(self.mesh, jit=True)
                matter = matter_of(self.others.values())
                extra = self._run("find properties", lambda: compute(grouped, cata, box, options, matter))
            bound = None
            if options.subhaloes is not None:
                search, twin = options.subhaloes, subhaloes.smap(self.mesh, jit=True)
                bound = self._run("find subhaloes", lambda: search.find(grouped, cata, box or None, twin))
            with stage("bring results together"):
                return self._bring_together(grouped, cata, extra, bound)

    def _bring_together(
        self, grouped: Member, cata: FofCatalogue, extra: dict[str, Any], bound: Subhaloes | None
    ) -> Groups | None:
        """Return every rank's groups on the first process; ``extra`` has further columns of groups."""
        nums, ngroups = self._gather(grouped.num), self._gather(cata.ngroups)
        words = [self._gather(held, grouped.num) for held in (grouped.id, grouped.row)]
        report = [grouped.kind, grouped.mass] if self.attached else []
        kinds = [self._gather(column, grouped.num) for column in report]
        columns = {name: self._gather(column, cata.ngroups) for name, column in _columns(cata).items()}
        extra = {name: self._gather(column, cata.ngroups) for name, column in extra.items()}
        of_subhaloes = {} if bound is None else self._gather_subhaloes(bound)
        labels = [] if bound is None else [self._gather(held, grouped.num) for held in (bound.subhalo, bound.energy)]
        if nums is None:
            return None
        members_of, joined = _join(nums, FofCatalogue(ngroups=ngroups, **columns))
        ids, rows = (
            None if held is None else io.join_words(held, dtype)[members_of]
            for held, dtype in zip(words, (self.id_dtype, np.dtype(np.int64)), strict=True)
        )
        by_type = None
        if self.attached:
            kind, mass = (None if column is None else column[members_of] for column in kinds)
            by_type = count_types(np.asarray(kind), mass, joined)
        on_host = None
        if bound is not None:
            place = np.zeros(int(nums.sum()), np.int64)
            place[members_of] = np.arange(len(members_of))
            of_subhaloes["most_bound"] = place[of_subhaloes["most_bound"]]
            on_host = HostSubhaloes(of_subhaloes, *(label[members_of] for label in labels))
        return Groups(np.asarray(rows if ids is None else ids), joined, by_type, extra, rows, on_host)

    def _gather_subhaloes(self, bound: Subhaloes) -> dict[str, Any]:
        """Return the columns of the subhaloes of every rank on the first process."""
        return {name: self._gather(column, bound.num) for name, column in bound.tables().items()}

    def _members(self, with_rows: bool) -> list[Member]:
        """Return the particles of every type with identifiers. Rows replace missing ones, or are added on request."""
        members, start = [], 0
        for ptype, part in zip(self.types(), (self.part, *self.attached.values()), strict=True):
            total = part.num_total or 0
            rows = self._rows(start, total) if with_rows or part.id is None else None
            kind = jnp.full_like(part.pos[..., 0], ptype, dtype=np.int32) if self.attached else None
            columns = {"kind": kind, "row": rows, "internal_energy": self._energies_of(ptype, part)}
            members.append(Member(pos=part.pos, mass=part.mass, vel=part.vel, id=part.id, num=part.num, **columns))
            start += total
        return members

    def _rows(self, start: int, total: int) -> jax.Array:
        """Return the number of each row, from ``start`` on, as words."""
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

    def find_tree(self, core_k: int | None) -> SpanningTree | None:
        part = ParticleData(pos=self.part.pos, num=self.part.num, num_total=self.num)
        box = self.header.boxsize or None
        with jax.enable_x64(self.wide):
            find = spanning_tree.smap(self.mesh, jit=True)
            tree = self._run("find the spanning tree", lambda: find(part, boxsize=box, core_k=core_k))
            with stage("bring results together"):
                columns = [self._gather(rows, tree.num) for rows in (tree.i, tree.j, tree.length, tree.exact)]
        if columns[0] is None:
            return None
        i, j, length, exact = columns
        return SpanningTree(i=i, j=j, length=length, exact=exact, num=jnp.int32(len(i)), rows=len(i) + 1)

    def count_pairs(self, edges: np.ndarray, along: np.ndarray | None, los: int) -> np.ndarray | None:
        part = ParticleData(pos=self.part.pos, num=self.part.num, num_total=self.num)
        box, options = self.header.boxsize, bin_options(edges, along, los)
        with jax.enable_x64(self.wide):
            count = pair_counts.smap(self.mesh, jit=True)
            result = self._run("count pairs", lambda: count(part, boxsize=box, **options))
            return np.asarray(result.count) if jax.process_index() == 0 else None

    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        part = ParticleData(pos=self.part.pos, mass=self.part.mass, num=self.part.num, num_total=self.num)
        with jax.enable_x64(self.wide):
            mapped = shard_map_constructor(function, P(-1), P(-1))(self.mesh, jit=True)
            result = self._run(name, lambda: mapped(part))
            with stage("bring results together"):
                return self._gather(result, part.num)

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
        """Call ``function`` and print its time. It compiles, and compiles again if a buffer must grow."""
        with stage(f"compile and {name}", self.num) as report:
            report.detail = f"{self.mesh.size} devices"
            with (
                told_of_snapshot(self.snapshots, self.mesh.size),
                rows_sent(self.mesh),
                compilation(report),
                waiting(name, quiet=is_quiet()),
            ):
                return jax.block_until_ready(function())

    def _gather(self, rows: Any, num: Any = None) -> Any:
        """Gather rows of all ranks without padding, or one number per rank, on the first process. Others get None."""
        if rows is None:
            return None
        if num is None:
            return io.rows_on_first_process(rows[:, None], jax.numpy.ones_like(rows), self.mesh)
        return io.rows_on_first_process(rows, num, self.mesh)


def _corners_of_ranks(pos: jax.Array, num: jax.Array) -> jax.Array:
    """Return the corners of positions ``(r, n, d)``, for the first ``num`` ``(r,)`` rows of each rank."""
    held = (jnp.arange(pos.shape[1]) < num[:, None])[..., None]
    low, high = jnp.where(held, pos, jnp.inf), jnp.where(held, pos, -jnp.inf)
    return jnp.stack([low.min(axis=(0, 1)), high.max(axis=(0, 1))])


def _outside_of_ranks(rows: jax.Array, num: jax.Array, low: Any, high: Any) -> jax.Array:
    """Count the rows ``(r, n, ...)`` out of bounds, among the first ``num`` ``(r,)`` of each rank. Returns ``(r,)``."""
    outside = (rows < low) | (rows > high)
    held = jnp.arange(rows.shape[1]) < num[:, None]
    return (outside.reshape(*rows.shape[:2], -1).any(axis=2) & held).sum(axis=1)


def _index_dtype(num: int) -> type[np.signedinteger]:
    return np.int32 if num <= MOST_ROWS else np.int64


def _columns(cata: FofCatalogue) -> dict[str, Any]:
    columns = {name: getattr(cata, name) for name in cata.__dataclass_fields__ if name != "ngroups"}
    return {name: column for name, column in columns.items() if column is not None}


def _join(nums: np.ndarray, cata: FofCatalogue) -> tuple[np.ndarray, FofCatalogue]:
    """Join the groups of all ranks: the rows of members, group by group, among all particles, and the catalogue.

    Args:
        nums: ``(r,)``, number of particles on each rank.
        cata: Groups of all ranks with ``ngroups`` ``(r,)``; ``offset`` is a row on the rank of the group.
    """
    count = np.asarray(cata.count, np.int64)
    rank = np.repeat(np.arange(len(nums)), cata.ngroups)
    first = (np.cumsum(nums, dtype=np.int64) - nums)[rank] + cata.offset
    offset = np.cumsum(count) - count
    return io.member_rows(count, first), replace(
        cata, ngroups=len(count), offset=offset.astype(_index_dtype(int(nums.sum())))
    )


_properties_over_ranks = shard_map_constructor(group_properties, P(-1), (P(-1), P(-1), None, None, P(-1)))


def all_devices() -> Mesh:
    """Return a mesh of every process's devices."""
    return jax.make_mesh((jax.device_count(),), ("devices",), axis_types=(AxisType.Auto,))
