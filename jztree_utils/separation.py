"""The mean separation of particles, the unit of ``b``, the linking length of friends-of-friends groups.

If particles fill the box, it follows from their number: ``(V / N)^(1/d)``. In a zoom-in simulation they do not fill the
box, and stars never do. Then it follows from their mean mass and the mean density of matter, ``(m / rho)^(1/3)``, like
in Gadget-4 (Springel et al. 2021, MNRAS 506, 2871; ``fof_get_comoving_linking_length`` in its source). For any linked
particle type, ``rho`` is ``Omega0 - OmegaBaryon`` of the critical density if the snapshot holds gas, and ``Omega0``
otherwise.
"""

import math
from dataclasses import dataclass

import numpy as np

from jztree.data import check_no_units

from ._constants import CRITICAL_DENSITY
from .io import SnapshotHeader
from .mass_function import units_of

__all__ = ["MeanSeparation", "mean_separation"]

_SAME = 1e-3  # relative tolerance for units, Newton's constant and radiation, which headers round or leave out
_ALIKE = 1.2
_GAS = 0
BY_MASS, BY_NUMBER = "mass", "number"


@dataclass(frozen=True, kw_only=True)
class MeanSeparation:
    """The mean separation of particles, and how it was found; lengths are comoving, in the snapshot's unit.

    Attributes:
        value: The separation.
        by: ``"mass"`` or ``"number"``, the source of the value.
        by_mass: From the mean mass of the particles and the density of matter; None if the header has too little data.
        by_number: From the number of particles and the box; None without a box.
    """

    value: float
    by: str
    by_mass: float | None
    by_number: float | None

    def __str__(self) -> str:
        """How the separation was found, in words."""
        return "by the mass of the particles and Omega0" if self.by == BY_MASS else "by the number of particles"

    @property
    def doubt(self) -> str:
        """A sentence with both lengths, if they differ by a factor of more than 1.2; otherwise empty."""
        if self.by_mass is None or self.by_number is None:
            return ""
        if _within(self.by_mass, self.by_number, _ALIKE):
            return ""
        lengths = f"{self.by_mass:.6g} by their mass and Omega0, but {self.by_number:.6g} by their number in the box"
        return f"The mean separation of the particles is {lengths}; the separation {self} is used."


def mean_separation(
    header: SnapshotHeader, num: int, mass: float | None = None, ndim: int = 3
) -> MeanSeparation | None:
    """Return the mean separation of particles of one type; None if neither mass nor number determines it.

    The mass is used if the header allows it. The number is used instead in two cases: if both agree up to rounded units
    (0.1 %), because the number needs no units; and if the snapshot holds gas but the header lacks OmegaBaryon, unless
    the two differ by a factor of more than 1.2, because then the particles do not fill the box.

    Args:
        header: Header of the snapshot, see `jztree_utils.io.read_header`. The separation by mass needs Omega0 and the
            units, unless the units follow from its masses (`jztree_utils.mass_function.units_of`).
        num: Number of particles.
        mass: Mean mass of the particles, in the snapshot's unit; None if unknown.
        ndim: Number of dimensions; the separation by mass needs three.

    Raises:
        ValueError: If ``num`` is below 1.
    """
    check_no_units(mass=mass)
    if num < 1:
        raise ValueError(f"num is {num}; a mean separation needs at least 1 particle.")
    by_number, by_mass = _by_number(header, num, ndim), _by_mass(header, mass) if ndim == 3 else None
    lengths = {"by_mass": by_mass, "by_number": by_number}
    same = _ALIKE if _has_gas(header) and header.omega_baryon is None else 1 + _SAME
    if by_number is not None and (by_mass is None or _within(by_mass, by_number, same)):
        return MeanSeparation(value=by_number, by=BY_NUMBER, **lengths)
    return None if by_mass is None else MeanSeparation(value=by_mass, by=BY_MASS, **lengths)


def _within(length: float, reference: float, factor: float) -> bool:
    """Return whether two lengths differ by at most a factor."""
    return max(length, reference) <= factor * min(length, reference)


def _by_number(header: SnapshotHeader, num: int, ndim: int) -> float | None:
    lengths = np.broadcast_to(np.asarray(header.boxsize, np.float64), (ndim,)).tolist()
    # Python numbers become infinite without a warning.
    return (math.prod(lengths) / num) ** (1 / ndim) if min(lengths) > 0 else None


def _by_mass(header: SnapshotHeader, mass: float | None) -> float | None:
    units = units_of(header)
    if mass is None or not (mass > 0 and math.isfinite(mass)) or units is None or not header.omega0:
        return None
    omega = header.omega0 - (header.omega_baryon or 0.0) * _has_gas(header)
    if omega <= 0:
        return None
    return float((mass * units.mass / (omega * CRITICAL_DENSITY)) ** (1 / 3) / units.length)


def _has_gas(header: SnapshotHeader) -> bool:
    return any(header.npart_total[_GAS : _GAS + 1])
