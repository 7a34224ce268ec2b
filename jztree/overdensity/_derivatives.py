"""Derivatives of masses and radii of spheres.

The results of a kernel get the derivatives of the same definition, written in JAX, at fixed membership
(`jztree.derivatives`).
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from .. import comm
from ..derivatives import nearest_difference, norm, or_one, rows_of_all_ranks
from ..jax_ext import Exact, exact_to_float


class Sources(NamedTuple):
    """Particles around centres.

    Attributes:
        pos: ``(n, d)``.
        mass: ``(n,)``, or ``(1,)``, or ``(0,)`` if each particle counts 1.
        num: Number of rows that hold particles.
    """

    pos: jax.Array
    mass: jax.Array
    num: int | jax.Array


@jax.custom_jvp
def of_spheres(
    spheres: tuple[jax.Array, jax.Array, jax.Array], sources: Sources, centre: jax.Array, density: Exact, box: Exact
) -> Any:
    """Return radii, masses ``(q, m)`` and peaks ``(q, 2)`` of `jztree.kernels.overdensity` with their derivatives.

    Derivatives process every particle for each centre, one centre after the other. Over several ranks, they gather the
    particles of every rank on each rank.

    Args:
        spheres: The results of the kernel.
        sources: This rank's particles.
        centre: This rank's centres, ``(q, d)``.
        density: ``(m,)``.
        box: Periodic box.
    """
    del sources, centre, density, box
    return spheres


@of_spheres.defjvp
def _of_spheres_jvp(primals: tuple[Any, ...], tangents: tuple[Any, ...]) -> tuple[Any, Any]:
    spheres, sources, centre, density, box = primals
    constants = jax.lax.stop_gradient(spheres)
    held = jnp.arange(sources.pos.shape[0], dtype=jnp.int32) < jnp.asarray(sources.num, jnp.int32)
    valid = comm.all_gather(held).reshape(-1)

    def found(pos: jax.Array, mass: jax.Array, centre: jax.Array, density: Exact, box: Exact) -> Any:
        weight = jnp.ones((1,), pos.dtype) if mass.shape[0] == 0 else mass
        pos, weight = rows_of_all_ranks(pos), jnp.broadcast_to(rows_of_all_ranks(weight), valid.shape)
        return _spheres(pos, weight, valid, centre, density, box, constants)

    dots = (tangents[1].pos, tangents[1].mass, *tangents[2:])
    return of_spheres(*primals), jax.jvp(found, (sources.pos, sources.mass, centre, density, box), dots)[1]


def _spheres(
    pos: jax.Array,
    mass: jax.Array,
    valid: jax.Array,
    centre: jax.Array,
    density: Exact,
    box: Exact,
    values: tuple[jax.Array, jax.Array, jax.Array],
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return radii, masses and peaks from the particles inside the known radii."""
    radius, known_mass, peak = values
    pos = jnp.where(valid[:, None], pos, 0)

    # In reverse mode, recompute which particles are inside, rather than store it for all centres.
    @jax.checkpoint
    def one(_: None, row: Any) -> tuple[None, Any]:
        return None, _one_sphere(pos, mass, valid, box, *row)

    _, (inside, inside_peak, peak_radius) = jax.lax.scan(one, None, (centre, radius, peak[:, 1]))
    change = _relative(inside)
    density_change = _relative(jnp.asarray(exact_to_float(density), pos.dtype))
    sound = radius > 0
    factor = jnp.where(sound, change / density_change[None, :], 1)
    speed = peak[:, 0] * jnp.sqrt(_relative(inside_peak) / _relative(peak_radius))
    end = jnp.where(sound, radius * factor ** (1 / pos.shape[1]), 0)
    return end, jnp.where(sound, known_mass * change, 0), jnp.stack([speed, peak_radius], axis=-1)


def _relative(value: jax.Array) -> jax.Array:
    """Return ``value`` divided by its constant value: 1, with the derivative of the logarithm."""
    constant = jax.lax.stop_gradient(value)
    return jnp.where(constant > 0, value / or_one(constant), 1)


def _one_sphere(
    pos: jax.Array,
    mass: jax.Array,
    valid: jax.Array,
    box: Exact,
    centre: jax.Array,
    radius: jax.Array,
    peak_radius: jax.Array,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return masses ``(m,)`` inside radii around one centre, and mass and distance of the particle at the peak."""
    distance = norm(jax.lax.stop_gradient(nearest_difference(pos, centre[None, :], box)))
    distance = jnp.where(valid, distance, jnp.inf)
    # A sphere ends between two particles, so its radius separates them.
    inside = jnp.sum(jnp.where(distance[:, None] < radius[None, :], mass[:, None], 0), axis=0)
    row = jnp.argmin(jnp.abs(distance - peak_radius))
    peak_mass = jnp.sum(jnp.where(distance <= distance[row], mass, 0))
    separation = norm(nearest_difference(pos[row], centre, box))
    has_peak = peak_radius > 0
    return inside, jnp.where(has_peak, peak_mass, 0), jnp.where(has_peak, separation, 0)
