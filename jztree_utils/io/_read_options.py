"""Options for reading files that the readers do not recognise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from jztree.data import check_no_units

from ._header import SnapshotHeader, checked_box, out_of_range

HEADER_ENTRIES = (
    "omega0",
    "omega_lambda",
    "omega_baryon",
    "hubble",
    "redshift",
    "unit_length_in_cm",
    "unit_mass_in_g",
    "unit_velocity_in_cm_per_s",
    "h_free",
)
FORMATS = ("gadget", "swift", "hdf5", "numpy")


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """How to read a snapshot if its contents are not sufficient; None takes the value from the file.

    omega0, omega_lambda, omega_baryon, hubble, redshift, unit_length_in_cm, unit_mass_in_g, unit_velocity_in_cm_per_s,
    h_free: see `SnapshotHeader`.

    The box and the header entries replace the values of the file.

    Attributes:
        format: ``"gadget"`` (Gadget and AREPO, in HDF5 or in the older binary formats), ``"swift"``, ``"hdf5"``
            (datasets by name, in any HDF5 file, which takes only the box from the header), or ``"numpy"`` (``.npy`` and
            ``.npz``).
        pos: Names of datasets, such as ``PartType1/Coordinates``, or of the arrays in an ``.npz`` file. In a snapshot
            of Gadget or SWIFT a name without a group belongs to the group of the particle type.
        vel: Names of datasets, such as ``PartType1/Coordinates``, or of the arrays in an ``.npz`` file. In a snapshot
            of Gadget or SWIFT a name without a group belongs to the group of the particle type.
        mass: Names of datasets, such as ``PartType1/Coordinates``, or of the arrays in an ``.npz`` file. In a snapshot
            of Gadget or SWIFT a name without a group belongs to the group of the particle type.
        id: Names of datasets, such as ``PartType1/Coordinates``, or of the arrays in an ``.npz`` file. In a snapshot of
            Gadget or SWIFT a name without a group belongs to the group of the particle type.
        boxsize: Length of the periodic box, or one per dimension; 0 for none.

    Raises:
        ValueError: For an unknown format, an invalid box, or a number out of range.
    """

    format: str | None = None
    pos: str | None = None
    vel: str | None = None
    mass: str | None = None
    id: str | None = None
    boxsize: float | Sequence[float] | None = None
    omega0: float | None = None
    omega_lambda: float | None = None
    omega_baryon: float | None = None
    hubble: float | None = None
    redshift: float | None = None
    unit_length_in_cm: float | None = None
    unit_mass_in_g: float | None = None
    unit_velocity_in_cm_per_s: float | None = None
    h_free: bool | None = None

    def __post_init__(self) -> None:
        if self.format is not None and self.format not in FORMATS:
            raise ValueError(f"There is no format {self.format!r}; there are {', '.join(FORMATS)}.")
        check_no_units(boxsize=self.boxsize, **self.of_header)
        for name, value in self.of_header.items():
            if name != "h_free" and (wrong := out_of_range(name, value)):
                raise ValueError(f"The {name.replace('_', ' ')} that was given {wrong}.")
        if self.boxsize is not None:
            object.__setattr__(self, "boxsize", checked_box(np.ravel(self.boxsize), "ReadOptions"))

    @property
    def box(self) -> float | tuple[float, ...] | None:
        """The box in the form of a header, None if it is not set."""
        return cast(float | tuple[float, ...] | None, self.boxsize)  # converted by __post_init__

    @property
    def of_header(self) -> dict[str, Any]:
        """The given header entries except the box, by name."""
        given = {name: getattr(self, name) for name in HEADER_ENTRIES}
        return {name: value for name, value in given.items() if value is not None}

    def complete(self, header: SnapshotHeader) -> SnapshotHeader:
        """Return a header with the given entries except the box."""
        found = replace(header, **self.of_header)
        if self.redshift is None or header.comoving is False:
            return found
        return replace(found, time=found.scale_factor)

    @property
    def names(self) -> dict[str, str]:
        """The given dataset names, by property."""
        given = {"pos": self.pos, "vel": self.vel, "mass": self.mass, "id": self.id}
        return {name: dataset for name, dataset in given.items() if dataset is not None}
