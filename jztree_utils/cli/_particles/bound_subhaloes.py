"""The constants of the search for bound subhaloes, in the units of a snapshot."""

import math

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
    a, hubble = header.scale_factor, 0.0
    if header.omega0 and header.comoving is not False:
        critical = comoving_densities(header, part.types()).get("critical")
        if critical is None:
            raise ValueError("--subhaloes needs OmegaLambda for the Hubble flow; give --omega-lambda.")
        hubble = math.sqrt(8 * math.pi / 3 * gravity * critical / a**3)
    return SubhaloOptions(gravity, hubble, a, softening, min_bound, candidates)
