"""Particles and centres: validation of user input, and conversion to the form that kernels need."""

from typing import Any

import jax.numpy as jnp

from .. import comm, kernels
from ..arguments import check_alike, check_particles, mass_faults, mass_rows
from ..data import PosMass
from ..particles import check_num
from ..tree import TreeHierarchy, check_hierarchy
from ..tree.stage import InputParticles

_MAX_DIMS = 4


def check_both(part: Any, centre: Any, th: TreeHierarchy | None) -> tuple[InputParticles, InputParticles]:
    """Return particles with their masses, and centres.

    Masses are ``(n,)``; ``(1,)`` if all particles share one; or ``(0,)`` if each particle counts 1.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, or if particles and centres do not match.
    """
    pos = check_particles(part, max_dims=_MAX_DIMS)
    centres = check_particles(centre, "centres", max_dims=_MAX_DIMS)
    num, of_centres = check_num(part), check_num(centre, "num of the centres")
    check_alike(centres, pos, "centres are", "the particles are")
    check_hierarchy(th)
    mass = mass_rows(part, pos.dtype)
    weighed = PosMass(pos=pos, mass=jnp.zeros((0,), pos.dtype) if mass is None else mass, num=kernels.as_num(num))
    return InputParticles(weighed, num, th=th, needs_origin=False), InputParticles(
        centres, of_centres, name="the centres", needs_origin=False
    )


def faults_of_masses(given: InputParticles) -> list[comm.Fault]:
    """Return the possible faults of the masses of `check_both`."""
    mass = given.part.mass
    return mass_faults(mass, given.num, given.pos.shape[0]) if mass.shape[0] else []
