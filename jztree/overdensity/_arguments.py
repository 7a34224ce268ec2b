"""Particles and centres: validation of user input, and conversion to the form that kernels need."""

from typing import Any

import jax
import jax.numpy as jnp

from .. import comm, kernels
from .._checks import check_alike, check_particles, mass_faults, mass_rows
from .._particles import check_num
from ..data import PosMass, get_num

__all__ = ["check_both", "with_mass"]

_MAX_DIMS = 4


def check_both(part: Any, centre: Any) -> tuple[jax.Array, jax.Array]:
    """Return the positions of particles and centres. Raise TypeError or ValueError if they are invalid or differ."""
    pos = check_particles(part, max_dims=_MAX_DIMS)
    centres = check_particles(centre, "centres", max_dims=_MAX_DIMS)
    check_num(part)
    check_num(centre, "num of the centres")
    check_alike(centres, pos, "centres are", "the particles are")
    return pos, centres


def with_mass(part: Any, pos: jax.Array) -> PosMass:
    """Return positions with masses for kernels, checked at run time: ``(n,)``, ``(1,)``, or ``(0,)`` for none."""
    num = kernels.as_num(get_num(part))
    mass = mass_rows(part, pos.dtype)
    if mass is None:
        return PosMass(pos=pos, mass=jnp.zeros((0,), pos.dtype), num=num)
    return PosMass(pos=pos, mass=mass, num=comm.check_all(num, mass_faults(mass, num, pos.shape[0])))
