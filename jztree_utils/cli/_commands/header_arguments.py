"""Options for values that are missing from the header of a snapshot: cosmology and units.

This module does not import JAX, so ``--help`` is quick.
"""

import argparse
import re
from typing import Any

from ..._constants import KM_PER_S, PARSEC, SOLAR_MASS
from ..._header_ranges import out_of_range

_COSMOLOGY = {
    "omega0": ("OM", "density of matter in critical densities"),
    "omega_lambda": ("OL", "density of the cosmological constant"),
    "omega_baryon": ("OB", "density of baryons, a part of Omega0"),
    "hubble": ("H", "the Hubble constant in 100 km/s/Mpc"),
    "redshift": ("Z", "redshift of a cosmological run"),
}
# The names of units and their values in cgs, for each kind.
_UNITS = {
    "length": ("cm", {"pc": PARSEC, "kpc": 1e3 * PARSEC, "Mpc": 1e6 * PARSEC}),
    "mass": ("g", {"Msun": SOLAR_MASS, "1e10Msun": 1e10 * SOLAR_MASS}),
    "velocity": ("cm_per_s", {"km/s": KM_PER_S}),
}
FLAGS = (*_COSMOLOGY, *(f"unit_{kind}" for kind in _UNITS))


def add_header_options(parser: argparse.ArgumentParser, real: Any) -> None:
    """Add the options to the parser of a command; ``real`` converts text to a number."""
    group = parser.add_argument_group("values that the header lacks")
    for name, (letter, words) in _COSMOLOGY.items():
        group.add_argument(f"--{name.replace('_', '-')}", type=real, metavar=letter, help=words)
    for kind, (cgs, names) in _UNITS.items():
        named = ", ".join(names)
        per_h = "" if kind == "velocity" else "; append /h if it is per h"
        group.add_argument(
            f"--unit-{kind}",
            metavar="UNIT",
            help=f"unit of {kind}: {named}{per_h}; or a number in {cgs.replace('_per_', '/')}, as in headers",
        )


def header_entries(args: argparse.Namespace, real: Any) -> dict[str, Any]:
    """Return the given options as entries of `jztree_utils.io.ReadOptions`.

    Raises:
        ValueError: If a value or a unit is invalid, or only one of length and mass is per h.
    """
    result = {name: getattr(args, name) for name in _COSMOLOGY}
    per_h: dict[str, bool] = {}
    for kind, (cgs, _) in _UNITS.items():
        text = getattr(args, f"unit_{kind}")
        if text is not None:
            result[f"unit_{kind}_in_{cgs}"], named_per_h = _unit(kind, text, real)
            if named_per_h is not None and kind != "velocity":
                per_h[kind] = named_per_h
            if wrong := out_of_range(f"unit_{kind}_in_{cgs}", result[f"unit_{kind}_in_{cgs}"]):
                raise ValueError(f"--unit-{kind} {wrong}, in {cgs.replace('_per_', '/')}.")
    for name in _COSMOLOGY:
        if wrong := out_of_range(name, result[name]):
            raise ValueError(f"--{name.replace('_', '-')} {wrong}.")
    if len(set(per_h.values())) > 1:
        raise ValueError(
            f"--unit-length is {args.unit_length} and --unit-mass {args.unit_mass}; give either both per h or neither."
        )
    if per_h:
        result["h_free"] = not any(per_h.values())
    return result


def what_to_give(header: Any) -> str:
    """Return advice on options for missing values of a header, as the end of a message; empty if none are missing."""
    if header.comoving is False:
        return ""
    entries = {"omega0": "omega0", "omega_lambda": "omega_lambda"}
    entries |= {"hubble": "hubble"} if header.h_free else {}
    entries |= {f"unit_{kind}_in_{cgs}": f"unit_{kind}" for kind, (cgs, _) in _UNITS.items()}
    flags = [f"--{name.replace('_', '-')}" for entry, name in entries.items() if getattr(header, entry) is None]
    return f"; give {', '.join(flags)}" if flags else ""


def _unit(kind: str, text: str, real: Any) -> tuple[float, bool | None]:
    """Return a unit in cgs, and whether it is per h; None if that is unknown, as for a number."""
    cgs, names = _UNITS[kind]
    name = re.sub(r"\s", "", text)
    base = name.removesuffix("/h") if kind != "velocity" else name
    if base in names:
        return names[base], base != name
    try:
        return real(text), None
    except argparse.ArgumentTypeError:
        per_h = "" if kind == "velocity" else " (append /h if it is per h)"
        known = f"{', '.join(names)}{per_h} or a number in {cgs.replace('_per_', '/')}"
        raise ValueError(f"--unit-{kind} is {text}; it must be {known}.") from None
