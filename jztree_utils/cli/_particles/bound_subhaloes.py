"""The constants of the search for bound subhaloes, in the units of a snapshot."""

import math

from ... import io
from .known_properties import comoving_densities, newton, types_in_words
from .particles import Particles
from .subhalo_search import SubhaloOptions

_MAX_DIMS = 3


def subhalo_options(part: Particles, softening: float, min_bound: int, candidates: str) -> SubhaloOptions:
    """Return the options of the search, with constants in the units of the snapshot.

    Args:
        part: The particles of the snapshot.
        softening: Softening length of the potential, in the unit of the positions.
        min_bound: The smallest number of particles of a subhalo.
        candidates: See `jztree.subhaloes`.

    Raises:
        ValueError: If the snapshot lacks velocities, masses, units or the cosmology.
    """
    header, gravity = part.header, newton(part.header)
    for name, words in (("vel", "velocities"), ("mass", "masses")):
        if types := part.types_without(name):
            raise ValueError(f"--subhaloes needs {words}, but {types_in_words(types)} none; leave out --subhaloes.")
    if gravity is None:
        raise ValueError(
            "--subhaloes needs the units of the snapshot; give --unit-length, --unit-mass and --unit-velocity."
        )
    if part.ndim > _MAX_DIMS:
        raise ValueError(f"--subhaloes needs 1 to {_MAX_DIMS} dimensions, but the positions have {part.ndim}.")
    hubble = hubble_constant(header, gravity, part.types())
    return SubhaloOptions(gravity, hubble, header.scale_factor, softening, min_bound, candidates)


def hubble_constant(header: io.SnapshotHeader, gravity: float, types: list[int]) -> float:
    """Return the Hubble constant at the time of a snapshot, 0 without expansion. Raise ValueError if it is unknown."""
    if not header.omega0 or header.comoving is False:
        return 0.0
    critical = comoving_densities(header, types).get("critical")
    if critical is None:
        raise ValueError("--subhaloes needs OmegaLambda for the Hubble flow; give --omega-lambda.")
    return math.sqrt(8 * math.pi / 3 * gravity * critical / header.scale_factor**3)
