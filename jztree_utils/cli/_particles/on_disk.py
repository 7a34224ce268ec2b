"""The particles of a snapshot that does not fit into memory: columns are read slice by slice."""

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np

from jztree.data import ParticleData

from ... import io
from .box import count_outside
from .mean_mass import mean_of
from .one_device import OneDevice
from .reading import needs_64_bits

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


class OnDisk(OneDevice):
    """Particles in files. Searches of the whole set are not available."""

    def _count_outside(self, part: ParticleData, rows: StoredColumn, low: np.ndarray, high: np.ndarray) -> int:
        return sum(count_outside(slice_rows, low, high) for slice_rows in rows.slices())

    def _mean_of_masses(self) -> float | None:
        return mean_of(self.part.mass)


def on_disk(snapshot: io.Snapshot, optional: tuple[str, ...]) -> OnDisk:
    """Return the particles of a snapshot without reading them."""
    names = snapshot.present(("pos",), optional)
    held = [name for name in names if name != "mass" or snapshot.shared_mass is None]
    stored: dict[str, Any] = {name: StoredColumn(snapshot, name) for name in held}
    return OnDisk(
        snapshots=[snapshot],
        ndim=snapshot.layout("pos")[1][0],
        properties=frozenset(names),
        wide=needs_64_bits(snapshot, names),
        part=ParticleData(**stored),
        attached={},
    )
