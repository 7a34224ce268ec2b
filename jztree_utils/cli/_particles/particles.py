"""The interface of the command line to the particles of a snapshot: groups, neighbours, columns.

One device and many devices give the same numbers. On many, the first process gets the results, and all others get None.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jztree import mst
from jztree.data import FofCatalogue, ParticleData
from jztree.hierarchy import Dendrogram, dendrogram

from ... import io
from ...separation import MeanSeparation, mean_separation
from .._report import stage
from .box import Outside
from .group_properties import GroupOptions
from .subhalo_search import HostSubhaloes

MOST_ROWS = 2**31 - 1  # maximum number of rows per device
GAS = 0  # the type of particles with internal energies


@dataclass
class Groups:
    """Groups and their members, in no particular order.

    Attributes:
        ids: ``(m,)`` integers, identifiers of members. If the snapshot has none, these are rows: first those of the
            grouped type, then those of attached types.
        cata: The groups; ``offset`` refers to ``ids``.
        by_type: Particles of each type, None without attached types.
        extra: Further columns, see `group_properties`.
        rows: ``(m,)`` rows of the members, with or without identifiers; None unless requested.
        subhaloes: The bound subhaloes, None unless requested.
    """

    ids: np.ndarray
    cata: FofCatalogue
    by_type: io.TypeTable | None
    extra: dict[str, np.ndarray]
    rows: np.ndarray | None = None
    subhaloes: HostSubhaloes | None = None


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class Member:
    """The particle columns that are needed to find and describe groups.

    Attributes:
        kind: ``(n,)`` int32, the type of each particle; None if all have the same type.
        internal_energy: ``(n,)``, 0 for types without; None if no type has it.
        row: ``(n,)`` integers, rows of the snapshot, see `Groups`.
    """

    pos: Any
    mass: Any = None
    vel: Any = None
    id: Any = None
    kind: Any = None
    internal_energy: Any = None
    row: Any = None
    num: Any = None


@dataclass(kw_only=True)
class Particles(ABC):
    """The particles of a snapshot, and metadata that do not depend on their rows.

    Attributes:
        snapshots: The snapshot, opened once for each type; the grouped type comes first.
        ndim: Number of dimensions.
        properties: Names of requested properties that the snapshot has, named as in `jztree.data.ParticleData`.
        wide: Whether everything is computed in float64, because of the dtypes of the snapshot or its units.
        part: The particles themselves, on the host or on the devices.
        attached: Particles of attached types, by type.
        internal_energy: Internal energies of gas, by type; empty unless requested and present.
        others: Particles of ungrouped types that count in spheres, by type.
        spheres_of: Description of the matter in spheres.
        outside: The particles outside the periodic box, None if all are inside.
    """

    snapshots: list[io.Snapshot]
    ndim: int
    properties: frozenset[str]
    wide: bool
    part: ParticleData
    attached: dict[int, ParticleData]
    internal_energy: dict[int, Any] = field(default_factory=dict)
    others: dict[int, ParticleData] = field(default_factory=dict)
    spheres_of: str = ""
    outside: Outside | None = None

    @property
    def snapshot(self) -> io.Snapshot:
        """The snapshot of the grouped type."""
        return self.snapshots[0]

    @property
    def header(self) -> io.SnapshotHeader:
        """The header of the snapshot."""
        return self.snapshot.header

    @property
    def num(self) -> int:
        """Number of particles of the grouped type."""
        return self.snapshot.num

    def _all(self) -> list[ParticleData]:
        """Return the particles, type by type."""
        return [self.part, *self.attached.values(), *self.others.values()]

    def corners(self) -> np.ndarray:
        """Return ``(2, d)``: the smallest and the largest coordinates in all types."""
        corners = np.stack([self._corners(particles) for particles in self._all()])
        return np.stack([corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)])

    @abstractmethod
    def _corners(self, part: ParticleData) -> np.ndarray:
        """Return the smallest and the largest coordinates of one type."""

    def count_outside(self, low: np.ndarray, high: np.ndarray) -> int:
        """Return the number of particles, in all types, with a coordinate below or above bounds ``(d,)``."""
        return sum(self._count_outside(particles, particles.pos, low, high) for particles in self._all())

    def differing_masses(self) -> list[str]:
        """Return a sentence per type whose masses differ from the mass table, if the table has a mass for it."""
        types = [*self.types(), *self.others]
        sentences = []
        for ptype, particles in zip(types, self._all(), strict=True):
            table = io.mass_in_table(self.header, ptype)
            if table is None or particles.mass is None or np.ndim(particles.mass) < np.ndim(particles.pos) - 1:
                continue
            if num := self._count_outside(particles, particles.mass, *io.same_masses(table)):
                sentences.append(io.differing_masses(self.snapshot.paths[0], ptype, table, num))
        return sentences

    @abstractmethod
    def _count_outside(self, part: ParticleData, rows: Any, low: Any, high: Any) -> int:
        """Count the rows of one type with a number below ``low`` or above ``high`` in a column of ``part``."""

    @cached_property
    def separation(self) -> MeanSeparation | None:
        """The mean separation of the grouped particles. All processes must take part in the first access."""
        mass = self.snapshot.shared_mass
        if mass is None and "mass" in self.properties:
            mass = self._mean_of_masses()
        return mean_separation(self.header, self.num, mass, self.ndim)

    @abstractmethod
    def _mean_of_masses(self) -> float | None:
        """Return the mean mass of grouped particles with individual masses; None if it is not defined."""

    @abstractmethod
    def find_groups(self, rlink: float, options: GroupOptions, with_rows: bool = False) -> Groups | None:
        """Find groups and their members; ``with_rows`` adds rows to the identifiers of members."""

    @abstractmethod
    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Find the nearest particles of each particle: distances and rows ``(n, k)``, in the order of the snapshot."""

    @abstractmethod
    def count_pairs(self, edges: np.ndarray, along: np.ndarray | None, los: int) -> np.ndarray | None:
        """Count pairs in bins of distance, int64; see `jztree.radius.pair_counts`.

        Args:
            edges: ``(b + 1,)`` edges of the distance; with ``along``, of the distance across the line of sight.
            along: ``(p + 1,)`` edges of the distance along the line of sight, or None.
            los: The axis of the line of sight.

        Returns:
            ``(b,)`` or ``(b, p)`` counts on the first process, None elsewhere.
        """

    def find_dendrogram(self, core_k: int | None = None) -> Dendrogram | None:
        """Find the clusters at all linking lengths, which one device of the first process orders. Others get None.

        Args:
            core_k: See `jztree.mst.spanning_tree`.
        """
        tree = self.find_tree(core_k)
        if tree is None:
            return None
        with jax.enable_x64(self.wide), stage("order the clusters"):
            result: Dendrogram = jax.block_until_ready(dendrogram.jit(tree))
        return result

    @abstractmethod
    def find_tree(self, core_k: int | None) -> mst.SpanningTree | None:
        """Find the minimum spanning tree; ends of edges are rows in the order of the snapshot."""

    @abstractmethod
    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        """Apply ``function`` to the particles on each device; it returns one number per particle, in snapshot order."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """Return a property of every particle on the host, in the order of the snapshot; None if it was not read."""

    def _energies_of(self, ptype: int, part: ParticleData) -> Any:
        """Return the internal energies of a type in the dtype of the positions, 0 without; None if no type has any."""
        if not self.internal_energy:
            return None
        energies = self.internal_energy.get(ptype)
        # A product is distributed over the devices like the positions.
        return 0 * part.pos[..., 0] if energies is None else energies.astype(part.pos.dtype)

    def types(self) -> list[int]:
        """Return all particle types, the grouped type first."""
        return [self.snapshot.ptype, *self.attached]

    def types_without(self, name: str) -> list[int]:
        """Return the `types` without a property ``name`` in the snapshot."""
        return [snapshot.ptype for snapshot in self.snapshots if name not in snapshot.present(("pos",), (name,))]

    def others_without(self, name: str) -> list[int]:
        """Return the ungrouped types that count in spheres and lack the property ``name``."""
        return [ptype for ptype, part in self.others.items() if getattr(part, name) is None]


def bin_options(edges: np.ndarray, along: np.ndarray | None, los: int) -> dict[str, Any]:
    """Return the bins of `Particles.count_pairs` as options of `jztree.radius.pair_counts`."""
    if along is None:
        return {"edges": edges}
    return {"edges": edges, "edges_b": along, "mode": "rp_pi", "los": los}


def matter_of(parts: Iterable[ParticleData]) -> list[Member]:
    """Return matter that counts in spheres, without identifiers."""
    return [Member(pos=part.pos, mass=part.mass, vel=part.vel, num=part.num) for part in parts]


def count_types(kind: np.ndarray, mass: Any, cata: FofCatalogue) -> io.TypeTable:
    """Count the particles and the mass of each type in each group, from types and masses in group order."""
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
