"""HDF5 snapshots of Gadget, AREPO, GIZMO and SWIFT, one file at a time.

Gadget-4: https://wwwmpa.mpa-garching.mpg.de/gadget4/06_snapshotformat (Springel et al. 2021, MNRAS 506, 2871); the
headers of Gadget-2/3, AREPO and GIZMO are different. SWIFT: https://swift.strw.leidenuniv.nl/docs/Snapshots
(Schaller et al. 2024, MNRAS 530, 2378).
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from ._attributes import number, numbers, text_attribute, whole_number
from ._columns import Column, Survey
from ._errors import SnapshotError
from ._hdf5_columns import Hdf5Part, stored_as
from ._hdf5_types import WORDS
from ._header import SnapshotHeader, box_in_header, checked_box, is_swift, parse_header
from ._read_options import ReadOptions

# Attributes for the power of the scale factor in a dataset, by Gadget-4 and AREPO, SWIFT, and the Gadget-3 of EAGLE.
_EXPONENTS = ("a_scaling", "a-scale exponent", "aexp-scale-exponent")

_LARGEST_EXPONENT = 10


class _Dialect(NamedTuple):
    """The differences between the codes.

    Attributes:
        datasets: The possible dataset names of each property, the usual one first.
        exponents: Power of the scale factor that converts stored to peculiar velocities, or stored to physical internal
            energies, if the dataset does not have it.
    """

    datasets: Mapping[str, tuple[str, ...]]
    exponents: Mapping[str, float]


_GADGET = _Dialect(
    {
        "pos": ("Coordinates", "IntCoordinates"),
        "mass": ("Masses", "Mass"),
        "vel": ("Velocities", "Velocity"),
        "id": ("ParticleIDs",),
        "internal_energy": ("InternalEnergy",),
    },
    exponents={"vel": 0.5, "internal_energy": 0.0},
)
# Black holes have dynamical masses, which gravity uses, and subgrid masses. Comoving internal energies are those at the
# comoving density: of gas with an adiabatic index of 5/3, physical energies times the square of the scale factor.
_SWIFT = _Dialect(
    {**_GADGET.datasets, "mass": ("Masses", "DynamicalMasses"), "internal_energy": ("InternalEnergies",)},
    exponents={"vel": 0.0, "internal_energy": -2.0},
)


def is_simulation(file: h5py.File) -> bool:
    """Return whether an open file has the header that these codes write."""
    return isinstance(file.get("Header"), h5py.Group) and "NumPart_ThisFile" in file["Header"].attrs


def survey_simulation(file: h5py.File, ptype: int | None, options: ReadOptions) -> Survey:
    """Survey an open snapshot file.

    Args:
        file: The open file.
        ptype: The particle type; None to read only the header.
        options: Options for reading the snapshot.

    Raises:
        SnapshotError: If the contents are invalid.
    """
    swift = is_swift(file) if options.format is None else options.format == "swift"
    header, here = parse_header(file, swift)
    header = options.complete(header)
    _check_kind(file)
    title = f"{'SWIFT' if swift else _code(file)} snapshot"
    if options.box is None:
        box = box_in_header(file)
        header = replace(header, boxsize=box if swift else _stretched(file, box))
    else:
        header = replace(header, boxsize=options.box)
    if ptype is None:
        return Survey(title, header, here, None)
    dialect = _SWIFT if swift else _GADGET
    num = here[ptype] if 0 <= ptype < len(here) else 0
    part = Hdf5Part(
        path=Path(file.filename),
        num=num,
        columns=_columns(file, ptype, header, dialect, options) if num else {},
        usual={name: f"PartType{ptype}/{datasets[0]}" for name, datasets in dialect.datasets.items()},
    )
    return Survey(title, header, here, part)


def _check_kind(file: h5py.File) -> None:
    """Raise SnapshotError for SWIFT files that have the header of a snapshot but are not snapshots."""
    kind = text_attribute(file["Header"], "OutputType")
    if kind in ("FOF", "LineOfSight", "SOAP"):
        raise SnapshotError(f"{file.filename} is a {kind} file of SWIFT; give a snapshot.")


def _code(file: h5py.File) -> str:
    """Return the code that wrote a file, guessed from its groups."""
    if "GIZMO_version" in file["Header"].attrs:
        return "GIZMO"
    if "Parameters" not in file and "Config" not in file:
        return "Gadget"
    return "AREPO" if "NumPart_Total_HighWord" in file["Header"].attrs else "Gadget-4"


def _stretched(file: h5py.File, box: float | tuple[float, ...]) -> float | tuple[float, ...]:
    """Return the box of Gadget-4, which options such as LONG_X_BITS may reduce to halves, quarters, ..."""
    config = file.get("Config")
    if not isinstance(config, h5py.Group):
        return box
    powers = [_long_bits(config, f"LONG_{axis}_BITS") for axis in "XYZ"]
    if not any(powers):
        return box
    return checked_box(np.broadcast_to(box, 3) / np.exp2(powers), file.filename)


def _long_bits(config: h5py.Group, name: str) -> int:
    """Return a number from the configuration of Gadget-4, which stores numbers as text; 0 if it is missing."""
    text = text_attribute(config, name)
    if text.strip().isdecimal() and len(text) < 3:
        return int(text)
    return (whole_number(config, name) or 0) if name in config.attrs else 0


def _columns(
    file: h5py.File, ptype: int, header: SnapshotHeader, dialect: _Dialect, options: ReadOptions
) -> dict[str, Column]:
    columns = {}
    for name, usual in dialect.datasets.items():
        path = options.names.get(name)
        if path is not None:
            dataset = _full_name(file, ptype, path)
        else:
            present = [dataset for dataset in usual if f"PartType{ptype}/{dataset}" in file]
            if not present:
                continue
            dataset = f"PartType{ptype}/{present[0]}"
        column = stored_as(file, dataset)
        factor = _factor(file[dataset], name, header, dialect)
        integers = name == "pos" and (column.stored == WORDS or column.stored.kind == "u")
        columns[name] = replace(column, factor=factor, box=_box_of_integers(file) if integers else None)
    return columns


def _full_name(file: h5py.File, ptype: int, path: str) -> str:
    """Return the dataset that an option names for this type. Raises SnapshotError for a dataset of another type."""
    name = path.strip("/")
    group, _, dataset = name.partition("/")
    if not dataset:
        inside = f"PartType{ptype}/{name}"
        return inside if inside in file else name
    if group.startswith("PartType") and group != f"PartType{ptype}":
        raise SnapshotError(
            f"{name} is a dataset of another type than {ptype}, but type {ptype} of {file.filename} is to be read; "
            f"leave the group out of the name ({dataset}), or read the other type."
        )
    return name


def _factor(data: h5py.Dataset, name: str, header: SnapshotHeader, dialect: _Dialect) -> float:
    """Return the factor that makes positions comoving, and velocities and energies physical; 1 for other properties."""
    report = numbers(data, "Value stored as physical")
    physical = report is not None and bool(report.any())
    if name == "pos":
        return 1 / header.scale_factor if physical else 1.0
    if name not in dialect.exponents or physical:
        return 1.0
    power = scale_exponent(data)
    return float(header.scale_factor ** (dialect.exponents[name] if power is None else power))


def scale_exponent(data: h5py.Dataset) -> float | None:
    """Return the power of the scale factor in a dataset, or None. Raises SnapshotError for an invalid power."""
    powers = [number(data, exponent) for exponent in _EXPONENTS]
    power = next((power for power in powers if power is not None), None)
    if power is not None and abs(power) > _LARGEST_EXPONENT:
        name = str(data.name).lstrip("/")
        raise SnapshotError(
            f"{data.file.filename} has {power:g} as the power of the scale factor in {name}; it must be at most "
            f"{_LARGEST_EXPONENT} in absolute value."
        )
    return power


def _box_of_integers(file: h5py.File) -> Any:
    """Return the box lengths for integer coordinates: those of the run, even if the user gives another box.

    Raises:
        SnapshotError: If the file does not have box lengths, or the run had no box.
    """
    box = np.asarray(box_in_header(file))
    config = file.get("Config")
    periodic = not isinstance(config, h5py.Group) or not len(config.attrs) or "PERIODIC" in config.attrs
    if not periodic or not (box > 0).all():
        raise SnapshotError(
            f"{file.filename} holds integer coordinates, which are fractions of a periodic box, but it has no periodic "
            "box; write it with floating-point coordinates (Gadget-4 without OUTPUT_COORDINATES_AS_INTEGERS)."
        )
    return box
