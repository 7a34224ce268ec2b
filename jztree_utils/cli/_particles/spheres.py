"""The spheres around haloes: their names, and the mean densities inside them."""

import math
import re
from collections.abc import Mapping, Sequence

from ... import io

PROPERTIES_OF = "200c"  # the sphere for which spin, motion and shape are computed
PEAK_WITHIN = "200m"  # the sphere of `peak_within`, unless it is left out
_NAME = re.compile(r"([0-9]+\.?[0-9]*|\.[0-9]+)([cm])")
_FLAT = 1e-3  # smaller curvature counts as zero: some headers leave radiation out


def is_sphere(column: str) -> bool:
    """Return whether a column is the radius of a sphere, such as ``r200c``."""
    return column == "rvir" or (column[:1] == "r" and _NAME.fullmatch(column[1:]) is not None)


def sphere_densities(
    header: io.SnapshotHeader, names: Sequence[str], densities: Mapping[str, float]
) -> tuple[tuple[str, float], ...]:
    """Return the name and the mean comoving density of each sphere that the cosmology of a snapshot defines.

    Args:
        header: Header of the snapshot.
        names: Names of spheres, such as ``200c``.
        densities: The known densities, "mean" or "critical", in the units of the snapshot.
    """
    result = []
    for name in names:
        times, of = virial_overdensity(header) if name == "vir" else _times(name), _of(name)
        if times is not None and of in densities:
            result.append((name, times * densities[of]))
    return tuple(result)


def peak_within(densities: Mapping[str, float]) -> str | None:
    """Return the sphere that limits the search for the largest circular velocity; None without spheres."""
    return PEAK_WITHIN if PEAK_WITHIN in densities else min(densities, key=lambda name: densities[name], default=None)


def virial_overdensity(header: io.SnapshotHeader) -> float | None:
    """Return the density of a collapsed sphere in critical densities (Bryan & Norman 1998, ApJ 495, 80, eq. 6).

    Returns:
        The ratio of densities. None without Omega0 or OmegaLambda, or in a curved universe with a cosmological
        constant.
    """
    if header.omega0 is None or header.omega_lambda is None:
        return None
    curvature, cube = 1 - header.omega0 - header.omega_lambda, (1 + header.redshift) ** 3
    flat = abs(curvature) < _FLAT
    if not flat and header.omega_lambda != 0:
        return None
    rest = header.omega_lambda if flat else curvature * (1 + header.redshift) ** 2
    x = header.omega0 * cube / (header.omega0 * cube + rest) - 1
    return 18 * math.pi**2 + (82 * x - 39 * x**2 if flat else 60 * x - 32 * x**2)


def threshold_in_words(name: str) -> str:
    """Describe the mean density of the sphere, for example "200 times the critical density"."""
    if name == "vir":
        return (
            "18 pi^2 + 82 x - 39 x^2 times the critical density, x = Omega(z) - 1 (18 pi^2 + 60 x - 32 x^2 without a "
            "cosmological constant; Bryan & Norman 1998, ApJ 495, 80)"
        )
    return f"{_times(name):g} times the {_of(name)} density"


def _times(name: str) -> float:
    return float(name[:-1])


def _of(name: str) -> str:
    return "mean" if name.endswith("m") else "critical"
