"""The particles of a snapshot on one device: the host holds them, and copies the data that a search needs."""

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from jztree.config import FofConfig
from jztree.data import FofCatalogue, ParticleData, squeeze_catalogue
from jztree.fof import fof_and_catalogue
from jztree.knn import knn
from jztree.mst import SpanningTree, spanning_tree
from jztree.radius import pair_counts
from jztree.substructure import Subhaloes, subhaloes

from ... import io
from ...progress import waiting
from .._report import is_quiet, stage
from .box import corners_of, count_outside
from .group_properties import GroupOptions, group_properties
from .library_errors import told_of_snapshot
from .mean_mass import mean_of
from .particles import MOST_ROWS, Groups, Member, Particles, bin_options, count_types, matter_of
from .subhalo_search import HostSubhaloes, SubhaloOptions


@functools.lru_cache(maxsize=4)  # JAX caches traces and programs by function
def _group_search(rlink: float, boxsize: Any, cfg: FofConfig, attach_within: float | None) -> Callable[[Any], Any]:
    """Return the search for the groups of particles of several types."""
    return lambda parts: fof_and_catalogue(
        parts[0], rlink, boxsize, cfg, attached=parts[1:] or None, attach_within=attach_within
    )


class OneDevice(Particles):
    """Particles on the host, as NumPy arrays, for one device."""

    def _corners(self, part: ParticleData) -> np.ndarray:
        return corners_of(np.asarray(part.pos))

    def _count_outside(self, part: ParticleData, rows: Any, low: Any, high: Any) -> int:
        return count_outside(np.asarray(rows), low, high)

    def _mean_of_masses(self) -> float | None:
        return mean_of(np.asarray(self.part.mass))

    def find_groups(self, rlink: float, options: GroupOptions, with_rows: bool = False) -> Groups | None:
        box = self.header.boxsize
        find = _group_search(rlink, box, options.cfg, options.attach_within)
        grouped, cata = self._run("find groups", find, self._copy(self._members()))
        extra: dict[str, Any] = {}
        if options.neighbours:
            extra = self._run(
                "find properties",
                lambda result: group_properties(result[0], result[1], box, options, result[2]),
                (grouped, cata, self._copy(matter_of(self.others.values()))),
            )
        bound = None if options.subhaloes is None else self._find_subhaloes(grouped, cata, options.subhaloes)
        listed = int(np.asarray(cata.count, np.int64).sum())
        rows = np.asarray(grouped.row)[:listed]
        ids = rows.astype(np.int64)
        if "id" in self.properties:
            ids = np.concatenate([np.asarray(part.id) for part in (self.part, *self.attached.values())])[rows]
        used = int(cata.ngroups)
        extra = {name: np.asarray(column)[:used] for name, column in extra.items()}
        on_host = None
        if bound is not None:
            labels = np.asarray(bound.subhalo)[:listed], np.asarray(bound.energy)[:listed]
            on_host = HostSubhaloes(bound.columns(), *labels)
        return Groups(ids, cata, self._by_type(grouped, cata), extra, rows, on_host)

    def _find_subhaloes(self, grouped: Member, cata: FofCatalogue, options: SubhaloOptions) -> Subhaloes:
        """Find subhaloes by the compiled twin, which compiles only once for several snapshots of equal size."""
        with (
            jax.enable_x64(self.wide),
            told_of_snapshot(self.snapshots, 1),
            stage("compile and find subhaloes", self.num),
            waiting("find subhaloes", quiet=is_quiet()),
        ):
            return jax.block_until_ready(options.find(grouped, cata, self.header.boxsize or None, subhaloes.jit))

    def _members(self) -> list[Member]:
        """Return the particles of every type, with their rows as identifiers."""
        starts = np.cumsum([0, self.num, *(part.num for part in self.attached.values())])
        if starts[-1] > MOST_ROWS:
            raise ValueError(
                f"All types together have {starts[-1]} particles, but one device holds at most {MOST_ROWS}; use more "
                "devices."
            )
        return [
            Member(
                pos=part.pos,
                mass=part.mass,
                vel=part.vel,
                row=np.arange(start, start + part.num, dtype=np.int32),
                kind=np.full(part.num, ptype, np.int32) if self.attached else None,
                internal_energy=self._energies_of(ptype, part),
            )
            for ptype, part, start in zip(self.types(), (self.part, *self.attached.values()), starts, strict=False)
        ]

    def _by_type(self, grouped: Member, cata: FofCatalogue) -> io.TypeTable | None:
        if not self.attached:
            return None
        return count_types(np.asarray(grouped.kind), grouped.mass, squeeze_catalogue(cata))

    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        distances, indices = self._run(
            "find neighbours",
            lambda rows: knn(rows, k, boxsize=self.header.boxsize or None, result="rad_globalidx"),
            self._copy(ParticleData(pos=self.part.pos, num=self.num, num_total=self.num)),
        )
        return np.asarray(distances), np.asarray(indices)

    def find_tree(self, core_k: int | None) -> SpanningTree | None:
        box = self.header.boxsize or None
        rows = ParticleData(pos=self.part.pos, num=self.num, num_total=self.num)
        result: SpanningTree = self._run(
            "find the spanning tree", lambda part: spanning_tree(part, boxsize=box, core_k=core_k), self._copy(rows)
        )
        return result

    def count_pairs(self, edges: np.ndarray, along: np.ndarray | None, los: int) -> np.ndarray | None:
        rows = ParticleData(pos=self.part.pos, num=self.num, num_total=self.num)
        options = bin_options(edges, along, los)
        box = self.header.boxsize
        return np.asarray(
            self._run("count pairs", lambda part: pair_counts(part, boxsize=box, **options).count, self._copy(rows))
        )

    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        rows = ParticleData(pos=self.part.pos, mass=self.part.mass, num=self.num, num_total=self.num)
        return np.asarray(self._run(name, function, self._copy(rows)))

    def column(self, name: str) -> Any:
        return getattr(self.part, name)

    def _copy(self, part: Any) -> Any:
        """Copy ``part`` to the device."""
        with jax.enable_x64(self.wide), stage("copy to the device", self.num) as report:
            report.detail = str(jax.devices()[0])
            return jax.block_until_ready(jax.device_put(part))

    def _run(self, name: str, function: Callable[[Any], Any], part: Any) -> Any:
        """Call ``function`` with ``part``, and print the times of compilation and execution separately."""
        with jax.enable_x64(self.wide), told_of_snapshot(self.snapshots, 1):
            with stage("compile"), waiting(f"compile, to {name}", quiet=is_quiet()):
                compiled = jax.jit(function).lower(part).compile()
            with stage(name, self.num), waiting(name, quiet=is_quiet()):
                return jax.block_until_ready(compiled(part))
