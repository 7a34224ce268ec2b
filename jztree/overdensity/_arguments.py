"""Particles and centres: validation of user input, and conversion to the form that kernels need."""

import jax.numpy as jnp
from numpy.typing import ArrayLike

from .. import comm, kernels
from ..arguments import check_alike, check_box, check_particles, mass_faults, mass_rows
from ..data import PosMass
from ..jax_ext import Exact
from ..particles import Index, Particles, check_num
from ..tree.stage import InputParticles, opened

_MAX_DIMS = 4


def read_spheres(
    part: Particles | Index | ArrayLike, boxsize: ArrayLike | None, queries: Particles | ArrayLike | None
) -> tuple[InputParticles, InputParticles, Exact]:
    """Return particles with their masses, centres, and the box.

    Masses are ``(n,)``; ``(1,)`` if all particles share one; or ``(0,)`` if each particle counts 1.

    Raises:
        TypeError: For arguments of a wrong type.
        ValueError: For other invalid arguments, or if particles and centres do not match.
    """
    part, boxsize, index = opened(part, boxsize)
    pos = check_particles(part, max_dims=_MAX_DIMS)
    centres = check_particles(queries, "centres", max_dims=_MAX_DIMS)
    num, of_centres = check_num(part), check_num(queries, "num of the centres")
    check_alike(centres, pos, "centres are", "the particles are")
    mass = mass_rows(part, pos.dtype)
    weighed = PosMass(pos=pos, mass=jnp.zeros((0,), pos.dtype) if mass is None else mass, num=kernels.as_num(num))
    sources = InputParticles(weighed, num, th=index, needs_origin=False)
    spheres = InputParticles(centres, of_centres, name="the centres", needs_origin=False)
    return sources, spheres, check_box(boxsize, pos.shape[1])


def faults_of_masses(sources: InputParticles) -> list[comm.Fault]:
    """Return the possible faults of the masses of `read_spheres`."""
    mass = sources.part.mass
    return mass_faults(mass, sources.num, sources.pos.shape[0]) if mass.shape[0] else []
