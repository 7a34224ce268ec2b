"""Options for reading files that the readers do not recognise."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np

from jztree.data import check_no_units

from .._header_ranges import out_of_range
from ._header import SnapshotHeader, checked_box

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
    """Options for reading a snapshot whose contents are not sufficient; None takes the value from the file.

    The box and the header entries replace the values of the file.

    Attributes:
        format: ``"gadget"`` (Gadget and AREPO, in HDF5 or in the older binary formats), ``"swift"``, ``"hdf5"``
            (datasets by name, in any HDF5 file, which takes only the box from the header), or ``"numpy"`` (``.npy`` and
            ``.npz``).
        pos: Name of the dataset of positions, such as ``PartType1/Coordinates``, or of the array in an ``.npz`` file.
            In a snapshot of Gadget or SWIFT a name without a group belongs to the group of the particle type.
        vel: Name of the dataset or array of velocities.
        mass: Name of the dataset or array of masses.
        id: Name of the dataset or array of identifiers.
        boxsize: Length of the periodic box, or one per dimension; 0 means open.
        omega0: See `SnapshotHeader`, like the following fields.
        omega_lambda: Density of the cosmological constant.
        omega_baryon: Density of baryons.
        hubble: The Hubble constant h.
        redshift: The redshift.
        unit_length_in_cm: The unit of length in cgs.
        unit_mass_in_g: The unit of mass in cgs.
        unit_velocity_in_cm_per_s: The unit of velocity in cgs.
        h_free: Whether the units are free of h.

    Raises:
        ValueError: If the format is unknown, the box is invalid, or a number is out of range.
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
            raise ValueError(f"format is {self.format!r}; it must be one of {', '.join(FORMATS)}.")
        check_no_units(boxsize=self.boxsize, **self.of_header)
        for name, value in self.of_header.items():
            if name != "h_free" and (wrong := out_of_range(name, value)):
                raise ValueError(f"The given {name.replace('_', ' ')} {wrong}.")
        if self.boxsize is not None:
            object.__setattr__(self, "boxsize", checked_box(np.ravel(self.boxsize), "ReadOptions"))

    @property
    def box(self) -> float | tuple[float, ...] | None:
        """The box in the form of a header, None if it is not set."""
        return cast(float | tuple[float, ...] | None, self.boxsize)  # converted by __post_init__

    @property
    def of_header(self) -> dict[str, Any]:
        """The given header entries except the box, by name."""
        entries = {name: getattr(self, name) for name in HEADER_ENTRIES}
        return {name: value for name, value in entries.items() if value is not None}

    def complete(self, header: SnapshotHeader) -> SnapshotHeader:
        """Return a header with the given entries except the box."""
        result = replace(header, **self.of_header)
        if self.redshift is None or header.comoving is False:
            return result
        return replace(result, time=result.scale_factor)

    @property
    def names(self) -> dict[str, str]:
        """The given dataset names, by property."""
        given = {"pos": self.pos, "vel": self.vel, "mass": self.mass, "id": self.id}
        return {name: dataset for name, dataset in given.items() if dataset is not None}
