"""What to take from a file that does not say it in a way that is recognised."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import numpy as np

from ._header import checked_box

FORMATS = ("gadget", "swift", "hdf5", "numpy")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read a snapshot, where its contents are not enough to tell; None is what the file says.

    format: ``"gadget"`` (Gadget and AREPO, in HDF5 or in the older binary formats), ``"swift"``, ``"hdf5"`` (datasets
        by name, in any HDF5 file; its header tells no more than the box), or ``"numpy"`` (``.npy`` and ``.npz``).
    pos, vel, mass, id: names of datasets, such as ``PartType1/Coordinates``, or of the arrays in an ``.npz`` file. In a
        snapshot of Gadget or SWIFT a name without a group belongs to the group of the particle type.
    boxsize: length of the periodic box, or one a dimension; 0 for none. It replaces what the file says.

    Raises ValueError for an unknown format or a box that makes no sense.
    """

    format: str | None = None
    pos: str | None = None
    vel: str | None = None
    mass: str | None = None
    id: str | None = None
    boxsize: float | Sequence[float] | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"There is no format {self.format!r}; there are {', '.join(FORMATS)}.")
        if self.boxsize is not None:
            object.__setattr__(self, "boxsize", checked_box(np.ravel(self.boxsize), "ReadOptions"))

    @property
    def box(self) -> float | tuple[float, ...] | None:
        """The box as headers hold it, None if none was given."""
        return cast(float | tuple[float, ...] | None, self.boxsize)  # made so when the options were

    @property
    def names(self) -> dict[str, str]:
        """The names that were given, by property."""
        given = {"pos": self.pos, "vel": self.vel, "mass": self.mass, "id": self.id}
        return {name: dataset for name, dataset in given.items() if dataset is not None}
