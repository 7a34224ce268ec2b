"""What the command line asks of the particles of a snapshot, wherever they are: groups, neighbours, columns.

One device and many answer with the same numbers. On many, results come together on the first process, and are None on
all others.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import jax
import numpy as np

from jztree.data import FofCatalogue, ParticleData

from .. import io
from ..io._mass_table import differing_masses, mass_in_table, same_masses
from ..separation import MeanSeparation, mean_separation
from .box import Outside
from .group_properties import GroupOptions

MOST_ROWS = 2**31 - 1  # that one device takes


@dataclass
class Groups:
    """Groups and their members, in no particular order.

    ids: ``(m,)`` identifiers of members; without identifiers in the snapshot, their rows: first those of the type that
        was grouped, then those of attached types. cata: ``offset`` are places among ``ids``. by_type: how many of each
        type, None without attached types. extra: more columns, see `group_properties`.
    rows: ``(m,)`` those rows, whether there are identifiers or not; None unless they were asked for.
    """

    ids: np.ndarray
    cata: FofCatalogue
    by_type: io.TypeTable | None
    extra: dict[str, np.ndarray]
    rows: np.ndarray | None = None


@jax.tree_util.register_dataclass
@dataclass(kw_only=True)
class Member:
    """What is needed of particles to find groups, and what is to be known of members.

    kind: the particle type of each, None if there is one type. row: of the snapshot, as in `Groups`.
    """

    pos: Any
    mass: Any = None
    vel: Any = None
    id: Any = None
    kind: Any = None
    row: Any = None
    num: Any = None


@dataclass(kw_only=True)
class Particles(ABC):
    """The particles of a snapshot, and facts about them that need no look at their rows.

    snapshots: their snapshot, for each type; the one that is grouped comes first. ndim: dimensions.
    properties: names of requested properties that the snapshot has, like those of `jztree.data.ParticleData`.
    wide: whether everything is computed in float64: because the snapshot has it, or its units need it.
    part: the particles themselves, on the host or on the devices. attached: those of attached types, by type. others:
    those of types that are in no group and count in spheres, by type. spheres_of: what matter that is, in words.
    outside: the particles outside the periodic box, None if all are inside.
    """

    snapshots: list[io.Snapshot]
    ndim: int
    properties: frozenset[str]
    wide: bool
    part: ParticleData
    attached: dict[int, ParticleData]
    others: dict[int, ParticleData] = field(default_factory=dict)
    spheres_of: str = ""
    outside: Outside | None = None

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

    def _all(self) -> list[ParticleData]:
        """The particles, type by type."""
        return [self.part, *self.attached.values(), *self.others.values()]

    def corners(self) -> np.ndarray:
        """``(2, d)``: the least and the largest coordinates in all types."""
        corners = np.stack([self._corners(one) for one in self._all()])
        return np.stack([corners[:, 0].min(axis=0), corners[:, 1].max(axis=0)])

    @abstractmethod
    def _corners(self, part: ParticleData) -> np.ndarray:
        """The same of one type."""

    def count_outside(self, low: np.ndarray, high: np.ndarray) -> int:
        """The number of particles, in all types, with a coordinate below or above bounds ``(d,)``."""
        return sum(self._count_outside(one, one.pos, low, high) for one in self._all())

    def differing_masses(self) -> list[str]:
        """A sentence per type whose masses are not those of the mass table, although this has one for it."""
        types = [*self.types(), *self.others]
        sentences = []
        for ptype, one in zip(types, self._all(), strict=True):
            table = mass_in_table(self.header, ptype)
            if table is None or one.mass is None or np.ndim(one.mass) < np.ndim(one.pos) - 1:
                continue
            if num := self._count_outside(one, one.mass, *same_masses(table)):
                sentences.append(differing_masses(self.snapshot.paths[0], ptype, table, num))
        return sentences

    @abstractmethod
    def _count_outside(self, part: ParticleData, rows: Any, low: Any, high: Any) -> int:
        """How many rows of one type have a number below ``low`` or above ``high``. rows: a column of ``part``."""

    @cached_property
    def separation(self) -> MeanSeparation | None:
        """The mean separation of the particles that are grouped. All processes must ask for it together first."""
        mass = self.snapshot.shared_mass
        if mass is None and "mass" in self.properties:
            mass = self._mean_of_masses()
        return mean_separation(self.header, self.num, mass, self.ndim)

    @abstractmethod
    def _mean_of_masses(self) -> float | None:
        """The mean mass of the particles that are grouped, where each has its own; None if it is none."""

    @abstractmethod
    def find_groups(self, rlink: float, options: GroupOptions, with_rows: bool = False) -> Groups | None:
        """Groups and their members. with_rows: whether rows of members are wanted besides their identifiers."""

    @abstractmethod
    def find_neighbours(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Distances and rows ``(n, k)`` of the nearest particles of each, in the order of the snapshot."""

    @abstractmethod
    def count_pairs(self, edges: np.ndarray, along: np.ndarray | None, los: int) -> np.ndarray | None:
        """Pairs in bins of distance, int64; see `jztree.radius.pair_counts`. along: if not None, edges along ``los``,
        and those of the distance across it."""

    @abstractmethod
    def map_neighbours(self, name: str, function: Callable[[Any], Any]) -> np.ndarray | None:
        """``function`` of the particles on each device, a number a particle, in the order of the snapshot."""

    @abstractmethod
    def column(self, name: str) -> Any:
        """A property of all particles on the host, in the order of the snapshot; None if it was not read."""

    def types(self) -> list[int]:
        """All particle types, the one that is grouped first."""
        return [self.snapshot.ptype, *self.attached]

    def types_without(self, name: str) -> list[int]:
        """Those of `types` that the snapshot has no property ``name`` of."""
        return [one.ptype for one in self.snapshots if name not in one.present(("pos",), (name,))]

    def others_without(self, name: str) -> list[int]:
        """The types that count in spheres and are in no group, and lack the property ``name``."""
        return [ptype for ptype, part in self.others.items() if getattr(part, name) is None]


def bin_options(edges: np.ndarray, along: np.ndarray | None, los: int) -> dict[str, Any]:
    """The bins of `Particles.count_pairs` as `jztree.radius.pair_counts` takes them."""
    if along is None:
        return {"edges": edges}
    return {"edges": edges, "edges_b": along, "mode": "rp_pi", "los": los}


def matter_of(parts: Iterable[ParticleData]) -> list[Member]:
    """Matter that counts in spheres, which nobody has to tell apart."""
    return [Member(pos=part.pos, mass=part.mass, vel=part.vel, num=part.num) for part in parts]


def count_types(kind: np.ndarray, mass: Any, cata: FofCatalogue) -> io.TypeTable:
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
