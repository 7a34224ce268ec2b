"""Samples of particles, the same for every library.

The process ``python -m gpu.samples KIND N FOLDER DATA`` makes a sample.
"""

import json
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

SEED = 1
_FROM_GPU = 5 * 10**8  # generate more particles than this on the GPU, because the host would take minutes


def power(n: int) -> str:
    """Return 1000000 as 1e6, and other numbers unchanged."""
    digits = str(n)
    return f"{digits[0]}e{len(digits) - 1}" if set(digits[1:]) == {"0"} else digits


def uniform(n: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).random((n, 3), dtype=np.float32)


def velocities(n: int) -> np.ndarray:
    return np.random.default_rng(SEED + 1).standard_normal((n, 3), dtype=np.float32)


def masses(n: int) -> np.ndarray:
    return np.random.default_rng(SEED + 2).random(n, dtype=np.float32) + np.float32(0.5)


@dataclass(frozen=True)
class Sample:
    """Particles, the same for every library: ``uniform`` or ``clustered`` in the unit box, or a ``snapshot`` of 128^3.

    Samples that take long to make are stored in a folder.
    """

    kind: str
    n: int

    @property
    def name(self) -> str:
        return f"{self.kind} {power(self.n)}"

    @property
    def side(self) -> float:
        """The length of the box."""
        return 100.0 if self.kind == "snapshot" else 1.0

    def linking_length(self, b: float) -> float:
        return b * self.side / math.cbrt(self.n)

    def radius(self, neighbours: float) -> float:
        """Return the radius that contains ``neighbours`` neighbours in a uniform sample."""
        return self.side * math.cbrt(0.75 * neighbours / (math.pi * self.n))

    def path(self, folder: Path) -> Path:
        return folder / f"{self.kind}_{self.n}.npy"

    def source(self, data: Path) -> Path:
        """Return the file of a snapshot."""
        return data / "snapshot_128.hdf5"

    def is_there(self, folder: Path) -> bool:
        return self.kind == "uniform" or self.path(folder).exists()

    def positions(self, folder: Path) -> Any:
        """Return ``(n, 3)`` float32 as a NumPy array, or as a JAX array if there are very many."""
        if self.kind == "uniform" and self.n > _FROM_GPU:
            import jax  # noqa: PLC0415

            return jax.random.uniform(jax.random.key(SEED), (self.n, 3))
        return uniform(self.n, SEED) if self.kind == "uniform" else np.load(self.path(folder))

    def make(self, folder: Path, data: Path) -> None:
        """Write the sample to ``folder`` with our own library; peers read it from there."""
        if self.is_there(folder):
            return
        if self.kind == "snapshot":
            import h5py  # noqa: PLC0415

            with h5py.File(self.source(data)) as file:
                pos = file["PartType1/Coordinates"][:].astype(np.float32)
            # Particles in the file are spatially ordered, which would make sorting unrealistically easy.
            pos = np.random.default_rng(SEED).permutation(pos)
        else:
            from jztree_utils import ics  # noqa: PLC0415

            pos = np.asarray(ics.clustered_particles(self.n, seed=SEED).pos)
        folder.mkdir(parents=True, exist_ok=True)
        partial = self.path(folder).with_suffix(".partial.npy")
        np.save(partial, pos)
        partial.rename(self.path(folder))


if __name__ == "__main__":
    _kind, _n, _folder, _data = map(json.loads, sys.argv[1:])
    Sample(_kind, _n).make(Path(_folder), Path(_data))
