"""Snapshot headers, and the units of the datasets in a snapshot."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypeVar

import h5py
import numpy as np

from jztree.data import check_no_units

from .._constants import KM_PER_S, PARSEC, SOLAR_MASS
from .._header_ranges import RANGES, UNITS, out_of_range
from ._attributes import number, numbers, text_attribute, whole_numbers
from ._errors import OPTION, SnapshotError
from ._files import get_group

NUM_FILES = "NumFilesPerSnapshot"
_GROUPS = ("Header", "Parameters", "Units", "Cosmology")
_Value = TypeVar("_Value")
# The names used by Gadget and AREPO, by GIZMO, and by SWIFT.
_OMEGA0 = ("Omega0", "Omega_Matter", "Omega_m")
_OMEGA_BARYON = ("OmegaBaryon", "Omega_Baryon", "Omega_b")
_HUBBLE = ("HubbleParam", "h")
# Exponents of the scale factor, h, length, mass and velocity. Gadget-4 and AREPO attach these to their datasets.
_NAMED_UNITS = {
    "length": ((PARSEC, "pc"), (1e3 * PARSEC, "kpc"), (1e6 * PARSEC, "Mpc")),
    "mass": ((SOLAR_MASS, "Msun"), (1e10 * SOLAR_MASS, "1e10 Msun")),
    "velocity": ((KM_PER_S, "km/s"),),
}
_SCALING_NAMES = ("a_scaling", "h_scaling", "length_scaling", "mass_scaling", "velocity_scaling")
_SCALINGS = {
    "length": (1.0, -1.0, 1.0, 0.0, 0.0),
    "mass": (0.0, -1.0, 0.0, 1.0, 0.0),
    "velocity": (0.0, 0.0, 0.0, 0.0, 1.0),
    "velocity/sqrt(a)": (0.5, 0.0, 0.0, 0.0, 1.0),
    "velocity*a": (-1.0, 0.0, 0.0, 0.0, 1.0),
    "length^2": (2.0, -2.0, 2.0, 0.0, 0.0),
    "length*velocity": (1.0, -1.0, 1.0, 0.0, 1.0),
}


@dataclass(frozen=True, kw_only=True)
class SnapshotHeader:
    """Snapshot metadata. Lengths are comoving and in the snapshot's unit; None marks values that are not in the file.

    Attributes:
        boxsize: Length of the periodic box, 0 for an open box; a tuple with one length per dimension if they differ.
        time: Scale factor of a cosmological run, otherwise the time in the snapshot's unit.
        redshift: The redshift; 0 if the run is not cosmological.
        omega0: Density of matter, in units of the critical density.
        omega_lambda: Density of the cosmological constant, in units of the critical density.
        omega_baryon: Density of baryons, a part of ``omega0``.
        hubble: The Hubble constant h, in units of 100 km/s/Mpc.
        mass_table: The common mass of the particles of each type; 0 if each particle has its own mass or the type is
            empty.
        npart_total: Number of particles of each type in the whole snapshot (Python integers).
        num_files: Number of files of the snapshot.
        unit_length_in_cm: The unit of length in cgs. In a cosmological run, divide it by h, unless ``h_free``.
        unit_mass_in_g: The unit of mass in cgs. In a cosmological run, divide it by h, unless ``h_free``.
        unit_velocity_in_cm_per_s: The unit of velocity in cgs.
        comoving: Whether the run is cosmological; None if unknown.
        h_free: Whether the units of a cosmological run are free of h, like those of SWIFT, and need no division by h.
    """

    boxsize: float | tuple[float, ...] = 0.0
    time: float = 1.0
    redshift: float = 0.0
    omega0: float | None = None
    omega_lambda: float | None = None
    omega_baryon: float | None = None
    hubble: float | None = None
    mass_table: tuple[float, ...] = ()
    npart_total: tuple[int, ...] = ()
    num_files: int = 1
    unit_length_in_cm: float | None = None
    unit_mass_in_g: float | None = None
    unit_velocity_in_cm_per_s: float | None = None
    comoving: bool | None = None
    h_free: bool = False

    @property
    def scale_factor(self) -> float:
        """The scale factor of a cosmological run, otherwise 1."""
        return 1.0 if self.comoving is False else 1.0 / (1.0 + self.redshift)


def is_swift(file: h5py.File) -> bool:
    """Return whether an open file is a SWIFT file, from its ``Code`` attribute or from units with SWIFT's names.

    Initial conditions made for SWIFT have the units but not the attribute.
    """
    by_units = isinstance(file.get("Units"), h5py.Group) and "Unit length in cgs (U_L)" in file["Units"].attrs
    return by_units or (
        isinstance(file.get("Header"), h5py.Group) and "SWIFT" in text_attribute(file["Header"], "Code")
    )


class _Attributes(NamedTuple):
    """The metadata groups of an open file, in the order of the search. Each is opened once."""

    filename: str
    groups: Mapping[str, h5py.Group]

    @classmethod
    def of(cls, file: h5py.File) -> "_Attributes":
        groups = {name: file.get(name) for name in _GROUPS}
        return cls(file.filename, {name: group for name, group in groups.items() if isinstance(group, h5py.Group)})


def parse_header(
    file: h5py.File, swift: bool | None = None, counted: bool = True
) -> tuple[SnapshotHeader, tuple[int, ...]]:
    """Return the header of an open snapshot file, and the number of particles of each type in this file.

    Each value comes from the first group that has it, of Header, Parameters (Gadget-4), Units and Cosmology (SWIFT),
    under the name that Gadget, GIZMO or SWIFT uses.

    Args:
        file: The open file.
        swift: Whether to read the file as a SWIFT file; None to detect this.
        counted: Whether the header must have particle counts. Catalogue headers need none.

    Raises:
        SnapshotError: If the header is missing, or counts are missing or invalid.
    """
    get_group(file, "Header")
    metadata = _Attributes.of(file)
    here = _counts(metadata, "NumPart_ThisFile", required=counted)
    total = _counts(metadata, "NumPart_Total") or here
    # Gadget-2 and AREPO store the counts in two 32-bit words. Gadget-4 stores 64 bits and no second word.
    high = _counts(metadata, "NumPart_Total_HighWord") + (0,) * len(total)
    npart_total = tuple(n + (word << 32) if n < 2**32 else n for n, word in zip(total, high, strict=False))
    comoving = _number(metadata, "ComovingIntegrationOn", "Cosmological run")
    time, masses, num_files = (
        _number(metadata, "Time"),
        _first(metadata, numbers, "MassTable"),
        _counts(metadata, NUM_FILES),
    )
    header = SnapshotHeader(
        boxsize=fitting_box(_box(metadata), None, metadata.filename),
        time=1.0 if time is None else time,
        redshift=_redshift(metadata, comoving),
        omega0=_number(metadata, *_OMEGA0),
        omega_lambda=_number(metadata, "OmegaLambda", "Omega_Lambda", "Omega_lambda"),
        omega_baryon=_baryons(metadata),
        hubble=_number(metadata, *_HUBBLE),
        mass_table=(0.0,) * len(total) if masses is None else tuple(float(mass) for mass in masses),
        npart_total=npart_total,
        num_files=max(num_files, default=1) or 1,
        unit_length_in_cm=_unit(
            metadata, comoving, "UnitLength_in_cm", "Unit length in cgs (U_L)", "UnitLength_In_CGS"
        ),
        unit_mass_in_g=_unit(metadata, comoving, "UnitMass_in_g", "Unit mass in cgs (U_M)", "UnitMass_In_CGS"),
        unit_velocity_in_cm_per_s=_number(metadata, "UnitVelocity_in_cm_per_s", "UnitVelocity_In_CGS"),
        comoving=None if comoving is None else bool(comoving),
        h_free=bool(_number(metadata, "h_free")),
    )
    if is_swift(file) if swift is None else swift:
        header = _as_swift_means_it(metadata, header)
    return checked_header(header, metadata.filename), here


def checked_header(header: SnapshotHeader, name: str) -> SnapshotHeader:
    """Return ``header`` if its values are valid. h = 0, which some runs without h have, becomes None.

    Args:
        header: The header to check.
        name: Name of the file, for messages.

    Raises:
        SnapshotError: If a value is not finite or out of range.
    """
    for entry in RANGES:
        if wrong := out_of_range(entry, getattr(header, entry)):
            raise SnapshotError(f"The {entry.replace('_', ' ')} in {name} {wrong}.")
    return replace(header, hubble=header.hubble or None)


def checked_box(lengths: Any, name: str) -> float | tuple[float, ...]:
    """Return a box as stored: one number, or a tuple for several lengths. `fitting_box` converts this for a header.

    Args:
        lengths: ``(d,)`` box lengths.
        name: Name of the file, for messages.

    Raises:
        SnapshotError: If the box is invalid.
    """
    sides = tuple(float(length) for length in np.ravel(lengths))
    if not sides or not all(math.isfinite(length) and length >= 0 for length in sides):
        raise SnapshotError(f"The BoxSize in {name} is {sides}; it must be positive, or 0 for an open box.")
    return sides[0] if len(sides) == 1 else sides


def fitting_box(box: float | tuple[float, ...], ndim: int | None, name: str) -> float | tuple[float, ...]:
    """Return a box in the form used by headers: one number if its sides are equal, otherwise a tuple.

    Args:
        box: Result of `checked_box`.
        ndim: Number of dimensions, None if unknown.
        name: Name of the file, for messages.

    Raises:
        SnapshotError: Unless the box has one side per dimension, or a single side. For example, two equal sides do not
            define a cube.
    """
    if not isinstance(box, tuple):
        return box
    if ndim is not None and len(box) != ndim:
        raise SnapshotError(
            f"The positions in {name} have {ndim} coordinates, but the box has {len(box)} lengths "
            f"({', '.join(f'{side:g}' for side in box)}); give one length, or {ndim} ({OPTION}).",
            "boxsize",
        )
    return box if len(set(box)) > 1 else box[0]


def _redshift(metadata: _Attributes, comoving: float | None) -> float:
    """Return the redshift, computed from the scale factor if the file has no redshift."""
    redshift = _number(metadata, "Redshift")
    if redshift is not None:
        return redshift
    scale = _number(metadata, "Scale-factor")
    if scale is None:
        scale = _number(metadata, "Time") if comoving else None
    if scale is not None and scale < 0:
        raise SnapshotError(f"The scale factor in {metadata.filename} is {scale:g}; it must be positive.")
    return 1 / scale - 1 if scale else 0.0


def _baryons(metadata: _Attributes) -> float | None:
    """Return the density of baryons, or None for NaN, which files in SWIFT's layout hold for an unknown density."""
    values = _first(metadata, numbers, *_OMEGA_BARYON)
    return None if values is None or np.isnan(values).all() else _number(metadata, *_OMEGA_BARYON)


def _unit(metadata: _Attributes, comoving: float | None, plain: str, swift: str, gizmo: str) -> float | None:
    """Return a unit of length or mass in Gadget's convention: divided by h in a cosmological run.

    GIZMO divides by h before it writes the unit, so this division is undone.

    Args:
        metadata: The metadata of the file.
        comoving: The flag of cosmological runs, or None.
        plain, swift, gizmo: Attribute names of Gadget, SWIFT and GIZMO.
    """
    unit = _number(metadata, plain, swift)
    if unit is not None:
        return unit
    divided, hubble = _number(metadata, gizmo), _number(metadata, *_HUBBLE)
    return divided * hubble if divided is not None and hubble and comoving != 0 else divided


def _as_swift_means_it(metadata: _Attributes, header: SnapshotHeader) -> SnapshotHeader:
    """Return the header with the entries that SWIFT defines differently from Gadget.

    Units are free of h, particles always have their own masses, ``Time`` is never the scale factor, and the unit of
    velocity follows from those of length and time.
    """
    duration = _number(metadata, "Unit time in cgs (U_t)")
    velocity = header.unit_velocity_in_cm_per_s
    if velocity is None and header.unit_length_in_cm is not None and duration:
        velocity = header.unit_length_in_cm / duration
    scale = _number(metadata, "Scale-factor")
    time = header.time if header.comoving is False else header.scale_factor if scale is None else scale
    masses = (0.0,) * len(header.mass_table)
    return replace(header, h_free=True, mass_table=masses, time=time, unit_velocity_in_cm_per_s=velocity)


def _first(metadata: _Attributes, read: Callable[[Any, str], _Value | None], *names: str) -> _Value | None:
    """Return the first result of ``read`` for the attributes ``names`` of each group in turn, or None."""
    values = (read(group, name) for group in metadata.groups.values() for name in names)
    return next((value for value in values if value is not None), None)


def _number(metadata: _Attributes, *names: str) -> float | None:
    return _first(metadata, number, *names)


def _counts(metadata: _Attributes, name: str, required: bool = False) -> tuple[int, ...]:
    counts = _first(metadata, whole_numbers, name)
    if counts is None and required:
        raise SnapshotError(
            f"{metadata.filename} has no attribute {name} in its Header, so it is not a snapshot of Gadget, AREPO or "
            "SWIFT; give a snapshot."
        )
    return counts or ()


def box_in_header(file: h5py.File) -> float | tuple[float, ...]:
    """Return the periodic box of an open file in the form of `checked_box`. Raises SnapshotError if it is invalid."""
    return _box(_Attributes.of(file))


def _box(metadata: _Attributes) -> float | tuple[float, ...]:
    sides = _first(metadata, numbers, "BoxSize")
    return 0.0 if sides is None else checked_box(sides, metadata.filename)


def header_attributes(header: SnapshotHeader) -> dict[str, Any]:
    """Return the attributes of a Header group for ``header``, without the values that are None.

    The writer of the file must add the number of particles in this file.
    """
    values = {
        "BoxSize": header.boxsize,
        "Time": header.time,
        "Redshift": header.redshift,
        "Omega0": header.omega0,
        "OmegaLambda": header.omega_lambda,
        "OmegaBaryon": header.omega_baryon,
        "HubbleParam": header.hubble,
        "UnitLength_in_cm": header.unit_length_in_cm,
        "UnitMass_in_g": header.unit_mass_in_g,
        "UnitVelocity_in_cm_per_s": header.unit_velocity_in_cm_per_s,
        "ComovingIntegrationOn": None if header.comoving is None else int(header.comoving),
        "h_free": 1 if header.h_free else None,
        "MassTable": np.asarray(header.mass_table, np.float64),
        "NumPart_Total": np.asarray(header.npart_total, np.uint64),
        NUM_FILES: np.int32(header.num_files),
    }
    check_no_units(**values)
    return {name: np.asarray(value)[()] for name, value in values.items() if value is not None}


def unit_attributes(header: SnapshotHeader, kind: str, ndim: int = 3) -> dict[str, Any]:
    """Return the attributes that describe the unit of a dataset: ``unit`` in words, and those of Gadget-4 and AREPO.

    A value times ``a**a_scaling * h**h_scaling * to_cgs`` is physical and in cgs. If the header has no units,
    ``to_cgs`` is left out and ``unit`` states this.

    Args:
        header: The source of the units and the cosmology.
        kind: "length", "mass", "velocity" (peculiar), "velocity/sqrt(a)" (stored peculiar velocities of Gadget),
            "velocity*a" (stored peculiar velocities of groups in AREPO), "density" (mass per comoving volume),
            "number density" (particles per comoving volume), "length^2", "length*velocity", or "1".
        ndim: Number of dimensions, for densities.
    """
    if kind == "1":
        return {"unit": "1"}
    scalings = unit_powers(header, kind, ndim)
    attributes: dict[str, Any] = dict(zip(_SCALING_NAMES, scalings, strict=True))
    units = [getattr(header, name) for name in UNITS]
    needed = [(unit, power) for unit, power in zip(units, scalings[2:], strict=True) if power]
    if all(unit is not None for unit, _ in needed):
        attributes["to_cgs"] = float(np.prod([unit**power for unit, power in needed]))
        return attributes | {"unit": _unit_in_words(attributes, kind)}
    return attributes | {"unit": f"{kind} in the unit of the snapshot, but its header lacks this unit"}


def unit_powers(header: SnapshotHeader, kind: str, ndim: int = 3) -> tuple[float, float, float, float, float]:
    """Return the powers of the scale factor, h, and the units of length, mass and velocity in a kind of quantity.

    Args:
        header, kind, ndim: See `unit_attributes`.

    Raises:
        ValueError: If the kind is unknown.
    """
    powers = _SCALINGS | {
        "1": (0.0,) * 5,
        "density": (-float(ndim), ndim - 1.0, -float(ndim), 1.0, 0.0),
        "number density": (-float(ndim), float(ndim), -float(ndim), 0.0, 0.0),
    }
    if kind not in powers:
        raise ValueError(f"{kind!r} is not a kind of quantity with a unit; use one of {', '.join(powers)}.")
    a, h, length, mass, velocity = powers[kind]
    if header.comoving is False:
        return 0.0, 0.0, length, mass, velocity
    return a, 0.0 if header.h_free else h, length, mass, velocity


def _unit_in_words(attributes: dict[str, Any], kind: str) -> str:
    powers = [
        (base, attributes[name])
        for base, name in (("cm", "length_scaling"), ("g", "mass_scaling"), ("cm/s", "velocity_scaling"))
    ] + [("h", attributes["h_scaling"]), ("a", attributes["a_scaling"])]
    factors = [base if power == 1 else f"{base}^{power:g}" for base, power in powers if power]
    return f"{attributes['to_cgs']:.9g} {' '.join(factors)}"


def unit_name(header: SnapshotHeader, kind: str) -> str:
    """Return the usual name of the unit of "length", "mass" or "velocity", such as ``Mpc/h``, or "" if it has none."""
    unit = getattr(header, UNITS[("length", "mass", "velocity").index(kind)])
    if unit is None:
        return ""
    per_h = "" if kind == "velocity" or header.comoving is False or header.h_free else "/h"
    names = [name for value, name in _NAMED_UNITS[kind] if abs(unit / value - 1) < 1e-3]
    return names[0] + per_h if names else ""
