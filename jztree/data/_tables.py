"""Catalogues as tables of pandas and astropy, which are imported when a table is made."""

# ruff: noqa: PLC0415 - both are optional
import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import astropy.table
    import pandas

__all__ = ["to_astropy", "to_pandas"]

_BASES = ("length", "mass", "velocity")
# The powers of these in the unit of each column; numbers of particles have no unit.
_POWERS = {
    "com_pos": (1, 0, 0),
    "com_inertia_radius": (1, 0, 0),
    "max_radius": (1, 0, 0),
    "mass": (0, 1, 0),
    "com_vel": (0, 0, 1),
    "vel_dispersion": (0, 0, 1),
    "angular_momentum": (1, 0, 1),
    "shape_tensor": (0, 0, 0),
}


def to_pandas(columns: Mapping[str, np.ndarray], units: Mapping[str, Any] | None) -> "pandas.DataFrame":
    """A table of the columns of a catalogue, see `jztree.data.FofCatalogue.to_pandas`."""
    given = _checked(units)
    try:
        import pandas
    except ImportError as error:
        raise ImportError("This table needs pandas; install it with: pip install pandas.") from error
    flat: dict[str, np.ndarray] = {}
    names: dict[str, str] = {}
    for name, rows in columns.items():
        endings = _endings(rows.shape[1:])
        components = rows.reshape(len(rows), len(endings)).T
        parts = {name + ending: values for ending, values in zip(endings, components, strict=True)}
        flat |= parts
        if factors := _factors(name, given):
            names |= dict.fromkeys(parts, _product(factors))
    table = pandas.DataFrame(flat)
    table.attrs["units"] = names
    return table


def to_astropy(columns: Mapping[str, np.ndarray], units: Mapping[str, Any] | None) -> "astropy.table.Table":
    """A table of the columns of a catalogue, see `jztree.data.FofCatalogue.to_astropy`."""
    given = _checked(units)
    try:
        import astropy.table
    except ImportError as error:
        raise ImportError("This table needs astropy; install it with: pip install astropy.") from error
    known = {base: _astropy_unit(base, unit) for base, unit in given.items()}
    table = astropy.table.Table(dict(columns))
    for name in table.colnames:
        for unit, power in _factors(name, known):
            table[name].unit = (table[name].unit or 1) * unit**power
    return table


def _endings(shape: tuple[int, ...]) -> list[str]:
    """The endings of the names of all components of a vector or tensor, in their order; an empty one for numbers."""
    indices = itertools.product(*map(range, shape))
    return ["_" + "".join("xyzw"[axis] for axis in index) if index else "" for index in indices]


def _checked(units: Mapping[str, Any] | None) -> dict[str, Any]:
    """The units that are known."""
    for kind in units or {}:
        if kind not in _BASES:
            raise ValueError(f"units are those of {', '.join(_BASES)}; {kind!r} is none of these.")
    return {kind: unit for kind, unit in (units or {}).items() if unit not in (None, "")}


def _factors(name: str, units: Mapping[str, Any]) -> list[tuple[Any, int]]:
    """The units that make that of a column, and their powers; none if one of them is not known."""
    powers = {base: power for base, power in zip(_BASES, _POWERS.get(name, (0, 0, 0)), strict=True) if power}
    return [(units[base], power) for base, power in powers.items()] if powers.keys() <= units.keys() else []


def _product(factors: list[tuple[Any, int]]) -> str:
    """The product of units in words."""
    if len(factors) == 1 and factors[0][1] == 1:
        return str(factors[0][0])
    return " ".join(f"({unit})" if power == 1 else f"({unit})^{power}" for unit, power in factors)


def _astropy_unit(base: str, unit: Any) -> Any:
    from astropy import units

    if not isinstance(unit, str):
        return unit
    name = re.sub(r"\bh\b", "littleh", unit)
    enabled: list[Any] = []
    if name != unit:
        from astropy.cosmology import units as cosmology

        enabled.append(cosmology)
    try:
        with units.add_enabled_units(enabled):
            return units.Unit(name)
    except ValueError as error:
        raise ValueError(f"astropy does not know the unit of {base}, {unit!r}; give one that it knows.") from error
