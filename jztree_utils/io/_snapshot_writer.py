"""Writing particles as a Gadget-4 snapshot in HDF5, in one file.

The format: https://wwwmpa.mpa-garching.mpg.de/gadget4/06_snapshotformat (Springel et al. 2021, MNRAS 506, 2871).
"""

from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from jztree.data import Particles, check_no_unit, get_num

from ._columns import FIELDS
from ._files import PathLike, create_hdf5
from ._header import SnapshotHeader, header_attributes, unit_attributes


class _Stored(NamedTuple):
    """The dataset of a property, and its kind of unit, see `unit_attributes`."""

    dataset: str
    unit: str


_STORED = {
    "pos": _Stored("Coordinates", "length"),
    "mass": _Stored("Masses", "mass"),
    "vel": _Stored("Velocities", "velocity/sqrt(a)"),
    "id": _Stored("ParticleIDs", "1"),
}


def write_snapshot(path: PathLike, part: Particles, header: SnapshotHeader | None = None, ptype: int = 1) -> None:
    """Write particles as a snapshot in one file, in the format of Gadget-4, with the units of each dataset.

    `read_snapshot` returns bit-identical numbers, except for velocities if the scale factor is not 1.

    Args:
        path: The file to write; an existing file is replaced once the new one is complete.
        part: A particle class with ``pos`` of shape ``(n, d)`` and, optionally, ``mass`` (``(n,)`` or a scalar),
            ``vel`` (``(n, d)``, peculiar; stored in Gadget's convention, divided by the square root of the scale
            factor) and ``id`` (``(n,)``), as JAX or NumPy arrays. Padding is left out.
        header: Box, time, cosmology and units; its counts and mass table are replaced. None means an open box and no
            units.
        ptype: The particle type of the output, 0 to 5.

    Raises:
        OutputError: If the file cannot be written.
        ValueError: If an array has a wrong shape or dtype, or ``ptype`` is invalid.
        TypeError: If an array has units.
    """
    if not 0 <= ptype <= 5:
        raise ValueError(f"ptype is {ptype}; it must be a particle type of Gadget, from 0 to 5.")
    columns, num, mass = _columns(part)
    sides, ndim = np.ravel((header or SnapshotHeader()).boxsize), columns["pos"].shape[1]
    if len(sides) not in (1, ndim):
        raise ValueError(
            f"The box of the header has {len(sides)} lengths, but the positions have {ndim} coordinates; give {ndim} "
            "lengths."
        )
    counts = tuple(num if t == ptype else 0 for t in range(6))
    masses = tuple((mass or 0.0) if t == ptype else 0.0 for t in range(6))
    header = replace(header or SnapshotHeader(), num_files=1, npart_total=counts, mass_table=masses)
    with create_hdf5(path) as file:
        attributes = file.create_group("Header").attrs
        attributes.update(header_attributes(header))
        attributes["NumPart_ThisFile"] = np.asarray(counts, np.uint64)
        group = file.create_group(f"PartType{ptype}")
        for name, column in columns.items():
            if name == "vel" and header.scale_factor != 1:
                column = column * column.dtype.type(header.scale_factor**-0.5)
            data = group.create_dataset(_STORED[name].dataset, data=column)
            data.attrs.update(unit_attributes(header, _STORED[name].unit))


def _columns(part: Any) -> tuple[dict[str, np.ndarray], int, float | None]:
    """Return the rows to write of each property, their number, and the common mass of the particles, if any."""
    num = int(get_num(part))
    shape = np.shape(part.pos)
    columns: dict[str, np.ndarray] = {}
    mass = None
    for name, field in FIELDS.items():
        value = getattr(part, name, None)
        if value is None:
            continue
        check_no_unit(value, f"{name} of the particles")
        if name == "mass" and np.ndim(value) == 0:
            mass = float(value)
            continue
        column = np.asarray(value)
        if column.dtype.kind not in field.kinds or column.shape != (shape if field.vector else shape[:1]):
            raise ValueError(
                f"The particles have {name} of shape {column.shape} and dtype {column.dtype}; with positions of shape "
                f"{shape} it must be {field.kind_in_words} of shape {shape if field.vector else shape[:1]}."
            )
        columns[name] = column[:num]
    if len(shape) != 2:
        raise ValueError(f"The positions have shape {shape}; it must be (n, d), one row per particle.")
    if mass is not None and not mass > 0:  # zero in the mass table means individual masses
        columns["mass"], mass = np.full(num, mass), None
    return columns, num, mass
