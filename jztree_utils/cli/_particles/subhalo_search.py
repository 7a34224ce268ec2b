"""The search for bound subhaloes: its options, and its result on the host."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from jztree.substructure import Subhaloes


@dataclass(frozen=True)
class SubhaloOptions:
    """Options of the search; see `jztree.subhaloes`."""

    gravity: float
    hubble: float
    scale_factor: float
    softening: float
    min_bound: int
    candidates: str = "density"

    def find(self, grouped: Any, cata: Any, boxsize: Any, search: Any) -> Subhaloes:
        """Find the subhaloes of particles in group order; ``search`` is a twin of `jztree.subhaloes`."""
        result: Subhaloes = search(
            grouped,
            cata,
            self.gravity,
            hubble=self.hubble,
            scale_factor=self.scale_factor,
            softening=self.softening,
            min_bound=self.min_bound,
            candidates=self.candidates,
            types=grouped.kind,
            internal_energy=grouped.internal_energy,
            boxsize=boxsize,
        )
        return result


@dataclass(frozen=True)
class HostSubhaloes:
    """Subhaloes on the host.

    Attributes:
        columns: Columns with one row per subhalo; ``most_bound`` is a row of the members.
        subhalo: ``(m,)``, the subhalo of each member of a group.
        energy: ``(m,)``, its energy.
    """

    columns: Mapping[str, np.ndarray]
    subhalo: np.ndarray
    energy: np.ndarray
