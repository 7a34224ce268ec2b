"""Who looks for NaN with jax_debug_nans finds none that the library makes on its way to sound answers."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jztree as jz
from jztree.config import TreeConfig
from jztree.data import ParticleData

POS = jnp.asarray(oracles.clustered(200, 3, np.float32, seed=61))
MASS = jnp.linspace(1, 2, len(POS))
CALLS = {
    "knn": lambda part: jz.knn.knn(part, 4, 1.0),
    "density": lambda part: jz.density.knn_density(part, 8, 1.0),
    "sph density": lambda part: jz.density.sph_density(part, 8, 1.0),
    "groups": lambda part: jz.fof.fof_and_catalogue(part, 0.05, 1.0),
    "attached": lambda part: jz.fof.fof_and_catalogue(part, 0.05, 1.0, attached=part),
    "spheres": lambda part: jz.overdensity.spherical_overdensity(part, part.pos[:5], 1e3),
    "tree": lambda part: jz.tree.zsort_and_tree(part, TreeConfig(masses=True)),
}


def total(call: Any, pos: jax.Array) -> jax.Array:
    found = call(ParticleData(pos=pos, mass=MASS, vel=POS - 0.5, id=jnp.arange(len(POS))))
    return sum(
        (jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0)) for leaf in jax.tree.leaves(found) if leaf.dtype == pos.dtype),
        jnp.zeros(()),
    )


@pytest.mark.parametrize("derived", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["answers", "derivatives"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_no_nan_on_the_way(call: Any, derived: bool) -> None:
    function = jax.grad(total, argnums=1) if derived else total
    expected = function(call, POS)
    with jax.debug_nans(True):
        np.testing.assert_array_equal(function(call, POS), expected)
