"""Catalogues as tables of pandas and astropy, which are imported only when a table is made."""

# ruff: noqa: PLC0415 - both are optional
import itertools
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import astropy.table
    import pandas

Powers = tuple[float, float, float]
_BASES = ("length", "mass", "velocity")
NO_UNIT: Powers = (0, 0, 0)
# The power of each base in the unit of each column; numbers of particles have no unit.
POWERS: dict[str, Powers] = {
    "com_pos": (1, 0, 0),
    "com_inertia_radius": (1, 0, 0),
    "max_radius": (1, 0, 0),
    "mass": (0, 1, 0),
    "com_vel": (0, 0, 1),
    "vel_dispersion": (0, 0, 1),
    "angular_momentum": (1, 0, 1),
    "shape_tensor": (0, 0, 0),
    "v_rad": (0, 0, 1),
}


def to_pandas(
    columns: Mapping[str, np.ndarray], units: Mapping[str, Any] | None, powers: Mapping[str, Powers] = POWERS
) -> "pandas.DataFrame":
    """Make a table of the columns of a catalogue, see `jztree.data.FofCatalogue.to_pandas`.

    Args:
        columns: Arrays by name.
        units: Names of the units of "length", "mass" and "velocity".
        powers: The powers of length, mass and velocity in the unit of each column; other columns have no unit.
    """
    unit_of = _checked(units)
    try:
        import pandas
    except ImportError as error:
        raise ImportError("This table needs pandas; install it with: pip install pandas.") from error
    flat = components(columns)
    table = pandas.DataFrame({ending: values for parts in flat.values() for ending, values in parts.items()})
    names = {name: factors_in_words(powers.get(name, NO_UNIT), unit_of) for name in columns}
    table.attrs["units"] = {part: names[name] for name, parts in flat.items() for part in parts if names[name]}
    return table


def components(columns: Mapping[str, np.ndarray]) -> dict[str, dict[str, np.ndarray]]:
    """Return the components ``(g,)`` of each column by names such as ``com_pos_x``; scalar columns keep their name."""
    by_component = {}
    for name, rows in columns.items():
        endings = _endings(rows.shape[1:])
        values = rows.reshape(len(rows), len(endings)).T
        by_component[name] = {name + ending: part for ending, part in zip(endings, values, strict=True)}
    return by_component


def to_astropy(
    columns: Mapping[str, np.ndarray], units: Mapping[str, Any] | None, powers: Mapping[str, Powers] = POWERS
) -> "astropy.table.QTable":
    """Make a table of the columns of a catalogue, see `jztree.data.FofCatalogue.to_astropy`.

    Args:
        columns: Arrays by name.
        units: Units of "length", "mass" and "velocity", or their names.
        powers: See `to_pandas`.
    """
    unit_of = _checked(units)
    try:
        import astropy.table
        from astropy.units import Quantity
    except ImportError as error:
        raise ImportError("This table needs astropy; install it with: pip install astropy.") from error
    astropy_units = {base: _astropy_unit(base, unit) for base, unit in unit_of.items()}
    table = astropy.table.QTable()
    for name, rows in columns.items():
        factors = _factors(powers.get(name, NO_UNIT), astropy_units)
        if not factors:
            table[name] = rows
            continue
        table[name] = Quantity(rows, math.prod([unit**power for unit, power in factors], start=1), dtype=rows.dtype)
    return table


def _endings(shape: tuple[int, ...]) -> list[str]:
    """Return the name endings of the components of a vector or tensor, in order; an empty one for scalars.

    They are letters if each axis has at most four components, and digits otherwise, because there are six particle
    types.
    """
    indices = itertools.product(*map(range, shape))
    letters = "xyzw" if max(shape, default=0) <= 4 else "0123456789"
    return ["_" + "".join(letters[axis] for axis in index) if index else "" for index in indices]


def _checked(units: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the known units; raise ValueError for an unknown kind of unit."""
    for kind in units or {}:
        if kind not in _BASES:
            raise ValueError(f"units has the key {kind!r}; valid keys are {', '.join(_BASES)}.")
    return {kind: unit for kind, unit in (units or {}).items() if unit not in (None, "")}


def _factors(powers: Powers, units: Mapping[str, Any]) -> list[tuple[Any, float]]:
    """Return the units whose product is that of a column, with their powers; none if one of the units is unknown."""
    needed = {base: power for base, power in zip(_BASES, powers, strict=True) if power}
    return [(units[base], power) for base, power in needed.items()] if needed.keys() <= units.keys() else []


def factors_in_words(powers: Powers, units: Mapping[str, Any]) -> str:
    """Return the unit of a column as text, such as ``(Mpc/h) (km/s)``; empty if it has no unit or it is unknown."""
    factors = _factors(powers, units)
    if len(factors) == 1 and factors[0][1] == 1:
        return str(factors[0][0])
    return " ".join(f"({unit})" if power == 1 else f"({unit})^{power:g}" for unit, power in factors)


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
        raise ValueError(f"astropy does not know the unit of {base}, {unit!r}; use one that it knows.") from error
