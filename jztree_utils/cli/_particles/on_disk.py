"""The particles of a snapshot that does not fit into memory: columns are read slice by slice."""

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from jztree.data import ParticleData

from ... import io
from .box import count_outside
from .mean_mass import mean_of
from .one_device import OneDevice
from .reading import Matter, common_id_dtype, common_properties, needs_64_bits

_SLICE = 2**22  # rows in memory at a time


class StoredColumn:
    """A property of a snapshot that is read when its rows are used."""

    def __init__(self, snapshot: io.Snapshot, name: str) -> None:
        self._snapshot, self._name = snapshot, name
        self.shape = (snapshot.num, *snapshot.layout(name)[1])
        self.ndim = len(self.shape)

    def __len__(self) -> int:
        return self._snapshot.num

    def __getitem__(self, rows: slice) -> np.ndarray:
        start, stop, _ = rows.indices(len(self))
        with warnings.catch_warnings():
            # The command line warns once, not for each slice.
            warnings.filterwarnings("ignore", message=".* differ from the mass in the MassTable")
            return np.asarray(self._snapshot.read(self._name, start, stop, finite=True))

    def slices(self) -> Iterator[np.ndarray]:
        """Yield consecutive rows."""
        for start in range(0, len(self), _SLICE):
            yield self[start : start + _SLICE]


@dataclass(kw_only=True)
class OnDisk(OneDevice):
    """Particles in files. Searches of the whole set are not available.

    Attributes:
        matter: The snapshots of further types that count in spheres.
    """

    matter: list[io.Snapshot] = field(default_factory=list)

    def _count_outside(self, part: ParticleData, rows: StoredColumn, low: np.ndarray, high: np.ndarray) -> int:
        return sum(count_outside(slice_rows, low, high) for slice_rows in rows.slices())

    def _mean_of_masses(self) -> float | None:
        return mean_of(self.part.mass)


def on_disk(snapshots: list[io.Snapshot], optional: tuple[str, ...], matter: Matter | None = None) -> OnDisk:
    """Return the particles of a snapshot without reading them.

    Args:
        snapshots: The snapshot, opened for the grouped type and for each attached type.
        optional: Names of properties that it may lack.
        matter: Further types that count in spheres, None without spheres.
    """
    others = [] if matter is None else matter.snapshots
    of_others = [other.present(("pos",), tuple(name for name in optional if name != "id")) for other in others]
    names = common_properties(snapshots, optional)
    if "id" in names:
        common_id_dtype(snapshots)
    of_types = [names] * len(snapshots) + of_others
    wide = any(needs_64_bits(*pair) for pair in zip([*snapshots, *others], of_types, strict=True))
    part, *attached = (_stored(snapshot, names) for snapshot in snapshots)
    return OnDisk(
        snapshots=snapshots,
        ndim=snapshots[0].layout("pos")[1][0],
        properties=frozenset(names),
        wide=wide,
        part=part,
        attached={snapshot.ptype: particles for snapshot, particles in zip(snapshots[1:], attached, strict=True)},
        others={other.ptype: _stored(other, held) for other, held in zip(others, of_others, strict=True)},
        spheres_of="" if matter is None else matter.words,
        matter=others,
    )


def _stored(snapshot: io.Snapshot, names: list[str]) -> ParticleData:
    """Return particles whose columns are read when they are used."""
    columns: dict[str, Any] = {name: StoredColumn(snapshot, name) for name in names if name != "mass"}
    if "mass" in names:
        shared = snapshot.shared_mass
        columns["mass"] = StoredColumn(snapshot, "mass") if shared is None else shared
    return ParticleData(**columns, num=snapshot.num, num_total=snapshot.num)
