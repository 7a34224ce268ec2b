"""Particles and names shared by several test modules."""

import jax.numpy as jnp
import numpy as np
import oracles

from jztree import data

# The catalogue columns that are sums over the particles of a group.
CATALOGUE_COLUMNS = (
    "mass",
    "com_pos",
    "com_vel",
    "com_inertia_radius",
    "max_radius",
    "vel_dispersion",
    "shape_tensor",
    "angular_momentum",
)


def particles(n: int = 300, dims: int = 3, num: int | None = None) -> data.ParticleData:
    random = np.random.default_rng(21)
    return data.ParticleData(
        pos=jnp.asarray(oracles.uniform(n, dims)),
        mass=jnp.asarray(random.random(n), jnp.float32),
        vel=jnp.asarray(random.standard_normal((n, dims)), jnp.float32),
        id=jnp.asarray(random.permutation(n) + 5, jnp.int32),
        num=num,
    )
