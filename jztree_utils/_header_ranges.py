"""Ranges of values in the headers of snapshots. This module imports nothing, for a quick start."""

UNITS = ("unit_length_in_cm", "unit_mass_in_g", "unit_velocity_in_cm_per_s")
# Outside these ranges, products of the values may be infinite.
RANGES = {
    "redshift": (-0.999999, 1e9),
    "time": (-1e100, 1e100),
    "omega0": (0.0, 1e6),
    "omega_lambda": (-1e6, 1e6),
    "omega_baryon": (0.0, 1e6),
    "hubble": (0.0, 1e6),
    **dict.fromkeys(UNITS, (1e-60, 1e60)),
}


def out_of_range(entry: str, value: float | None) -> str:
    """Describe why a header value is invalid. The text is empty if the value is valid or None."""
    smallest, largest = RANGES[entry]
    if value is None or smallest <= value <= largest:
        return ""
    return f"is {value:g}; it must be a number from {smallest:g} to {largest:g}"
