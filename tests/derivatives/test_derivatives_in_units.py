"""Every function with derivatives gives the same digits in all units. Units are powers of two, which round nothing, up
to the limits of float32. Values outside the range of float32 must raise an error.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import CATALOGUE_COLUMNS

import jztree as jz
from jztree.config import CatalogueConfig, FofConfig, OverdensityConfig

# Powers of the units of length, mass and velocity.
LENGTH, MASS, SPEED, NONE = (1, 0, 0), (0, 1, 0), (0, 0, 1), (0, 0, 0)
DENSITY, SLOPE = (-3, 1, 0), (-1, 0, 1)
COLUMNS = {
    "mass": MASS,
    "com_pos": LENGTH,
    "com_vel": SPEED,
    "com_inertia_radius": LENGTH,
    "max_radius": LENGTH,
    "vel_dispersion": SPEED,
    "shape_tensor": NONE,
    "angular_momentum": (1, 0, 1),
}
SPHERES = {"radius": LENGTH, "mass": MASS, "rmax": LENGTH, "vmax": (-0.5, 0.5, 0)}
UNITS = (
    *((length, 0, 0) for length in (-100, -60, -30, 30, 60, 100, 110)),
    *((0, mass, 0) for mass in (-100, -60, 60, 100)),
    *((0, 0, speed) for speed in (-100, -60, 60, 100)),
    *[(20, 60, 0), (40, 120, 0), (80, 110, 0), (-40, -100, 0), (-36, -40, -70), (30, 60, 20), (100, 100, 0)],
    *[(-100, -100, 0), (34, 110, -30)],
)


def catalogue(part: Any, box: Any, length: Any, column: str) -> Any:
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=2))
    return getattr(jz.fof.fof_and_catalogue(part, 0.2 * length, box, cfg)[1], column)


def spheres(part: Any, box: Any, density: Any, column: str) -> Any:
    result = jz.overdensity.spherical_overdensity(
        part, 50 * density, queries=part.pos[:3], boxsize=box, cfg=OverdensityConfig(npart_min=2)
    )
    return getattr(result, column)


def slopes(part: Any, box: Any, length: Any, kind: str) -> Any:
    return jz.radius.sph_derivative(part, 0.6 * length, part.vel, derivative=kind, boxsize=box)


def listed(part: Any, box: Any, length: Any) -> Any:
    return jz.radius.pairs_within(part, 0.4 * length, boxsize=box, capacity=2000)


# The computed quantities, and their units.
FUNCTIONS: dict[str, tuple[Any, tuple[float, ...]]] = {
    "rad": (lambda part, box, length, density: jz.knn.knn(part, 6, boxsize=box, result="rad")[..., 1:], LENGTH),
    "drad": (lambda part, box, length, density: jz.knn.knn(part, 6, boxsize=box, result="drad")[..., 1:], LENGTH),
    "neighbours": (lambda part, box, length, density: jz.knn.knn(part, 6, boxsize=box, result="vel"), SPEED),
    "smoothing_length": (lambda part, box, length, density: jz.density.smoothing_length(part, 5, boxsize=box), LENGTH),
    "knn_density": (lambda part, box, length, density: jz.density.knn_density(part, 5, boxsize=box), DENSITY),
    "sph_density": (lambda part, box, length, density: jz.density.sph_density(part, 6, boxsize=box), DENSITY),
    **{
        f"catalogue {column}": (
            lambda part, box, length, density, column=column: catalogue(part, box, length, column),
            COLUMNS[column],
        )
        for column in CATALOGUE_COLUMNS
    },
    **{
        f"spheres {column}": (
            lambda part, box, length, density, column=column: spheres(part, box, density, column),
            SPHERES[column],
        )
        for column in SPHERES
    },
    **{
        f"sph {kind}": (lambda part, box, length, density, kind=kind: slopes(part, box, length, kind), SLOPE)
        for kind in ("gradient", "divergence", "curl")
    },
    "pairs": (lambda part, box, length, density: listed(part, box, length).vector, LENGTH),
    "distances": (lambda part, box, length, density: listed(part, box, length).distance, LENGTH),
    "nearest": (
        lambda part, box, length, density: jz.radius.nearest_within(part, 0.4 * length, 5, boxsize=box).distance,
        LENGTH,
    ),
    "sums": (lambda part, box, length, density: jz.radius.kernel_sums(part, 0.6 * length, boxsize=box), DENSITY),
}


@pytest.mark.filterwarnings("ignore:overflow encountered in cast:RuntimeWarning")  # of unused densities
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_and_derivatives(name: str) -> None:
    function, unit_of_value = FUNCTIONS[name]
    rng = np.random.default_rng(5)
    n = 40
    numbers = rng.random((n, 3)), 0.5 + rng.random(n), rng.standard_normal((n, 3)), np.full(3, 1.25), 1.0, 0.7
    dims = LENGTH, MASS, SPEED, LENGTH, LENGTH, DENSITY

    def value(pos: Any, mass: Any, vel: Any, box: Any, length: Any, density: Any) -> Any:
        part = jz.data.ParticleData(pos=pos, mass=mass, vel=vel)
        out = jnp.ravel(function(part, box, jax.lax.stop_gradient(length), density))
        return jnp.sum(jnp.where(jnp.isfinite(out), out, 0) * jnp.cos(jnp.arange(out.size)))

    run = jax.jit(jax.value_and_grad(value, tuple(range(6))))

    def result(unit: tuple[float, ...]) -> Any:
        scaled = [np.asarray(x * 2.0 ** np.dot(unit, dim), np.float32) for x, dim in zip(numbers, dims, strict=True)]
        results, by = jax.block_until_ready(run(*scaled))
        return [results, *by]

    plain, compared, refused = result(NONE), 0, []
    for unit in UNITS:
        if name.startswith("spheres") and abs(np.dot(unit, DENSITY)) > 120:
            continue  # the density is out of range
        try:
            results = result(unit)
        except oracles.RUN_TIME_ERROR as error:
            refused.append(str(error))
            continue
        for first, reference, dim in zip(results, plain, (NONE, *dims), strict=True):
            expected = np.asarray(reference, np.float64) * 2.0 ** np.dot(unit, np.subtract(unit_of_value, dim))
            maximum = np.abs(expected).max()
            if maximum < np.finfo(np.float32).max:
                np.testing.assert_allclose(
                    first, expected, rtol=0, atol=1e-5 * maximum + 1e-37, err_msg=f"{unit}, by {dim}"
                )
        compared += 1
    assert compared > 5
    assert all("the range of float32" in words for words in refused)
