"""Derivatives: of radii from a formula, all others from finite differences. A wrong zero is a fault."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from cases import CATALOGUE_COLUMNS

from . import inputs
from .case import Case, Outcome, WrongError, expect_error
from .distances import distances, outside, vanishing
from .inputs import pick

_CASES = 8  # of one shape
_RADII = """
def loss(pos, query, box, num):
    rad = jz.knn.knn(jz.data.Pos(pos=pos, num=num), {k}, boxsize=box, part_query=query, result="drad")
    weight = jnp.arange(1, rad.size + 1).reshape(rad.shape) % 5 + 1
    return jnp.sum(jnp.where(jnp.isfinite(rad), weight * rad, 0))
by_pos, by_query, by_box = (jax.jit(jax.grad(loss, argnums=i)) for i in range(3))
find = jax.jit(
    lambda pos, query, box, num: jz.knn.knn(jz.data.Pos(pos=pos, num=num), {k}, boxsize=box, part_query=query)
)
"""
_RADII_LINES = (
    "gradients = [f(pos, query, boxsize, num) for f in (by_pos, by_query, by_box)]\n"
    "rad, idx = find(pos, query, boxsize, num)"
)
_PLAIN = {
    "smoothing_length": "jz.density.smoothing_length(part, 5, boxsize=box)",
    "knn_density": "jz.density.knn_density(part, 5, boxsize=box)",
    "sph_density": "jz.density.sph_density(part, 6, boxsize=box)",
    "catalogue": "jz.fof.fof_and_catalogue(part, 0.2, box, jz.config.FofConfig(catalogue=jz.config.CatalogueConfig("
    "npart_min=2)))[1].{column}",
    "grouped": "jz.fof.fof_and_catalogue(part, 0.2, box)[0].{property}",
    "labelled": "jz.fof.fof_labels(part, 0.2, box)[0].{property}",
    "sorted": "jz.tree.zsort(part, box)[0].{property}",
    "spheres": "jz.overdensity.spherical_overdensity(part, 50.0 * density, queries=part.pos[:3], boxsize=box,"
    " cfg=jz.config.OverdensityConfig(npart_min=2)).{sphere}",
    "neighbours": "jz.knn.knn(part, 4, boxsize=box, result='{property}')",
}
_FUNCTION = """
def value(pos, mass, vel, box, density):
    part = jz.data.ParticleData(pos=pos, mass=mass, vel=vel)
    out = jnp.ravel({expression})
    return jnp.sum(jnp.nan_to_num(out, posinf=0) * jnp.cos(jnp.arange(out.size)))
along = jax.jit(lambda at, to: jax.jvp(value, at, to)[1])
back = jax.jit(jax.grad(value, argnums=(0, 1, 2, 3, 4)))
"""
_FUNCTION_LINES = """
at, to = (pos, mass, vel, box, density), [np.zeros_like(x) for x in (pos, mass, vel, box, density)]
to[{which}] = direction
plus, minus = (float(value(*[x + s * y for x, y in zip(at, to)])) for s in (step, -step))
forward = along(at, tuple(to))
reverse = jnp.sum(back(*at)[{which}] * direction)
"""


def batch(random: np.random.Generator) -> Iterator[Case]:
    """Yield derivatives of one function at several places."""
    if random.random() < 0.5:
        yield from _radii(random)
    else:
        yield from _others(random)


def _radii(random: np.random.Generator) -> Iterator[Case]:
    x64, dtype = inputs.mode(random)
    rows, dims, queries = int(pick(random, 2, 25, 40)), int(random.integers(1, 5)), int(pick(random, 1, 7))
    k = int(min(pick(random, 1, 3, 8), rows))
    for _ in range(_CASES):
        length = float(pick(random, 1.0, 100.0, 1e-12, 1e12))
        sides = inputs.sides(inputs.box(random, dims, length), dims)
        num = max(inputs.used_rows(random, rows), k)
        pos = inputs.padded(random, inputs.positions(random, rows, dtype, sides, length), num)
        query = inputs.positions(random, queries, dtype, sides, length)
        query[: queries // 2] = pos[: queries // 2] if num > queries else query[: queries // 2]
        boxsize = sides.astype(dtype)
        values = {"pos": pos, "query": query, "boxsize": boxsize, "num": num}
        yield Case(_RADII_LINES, values, _judge_radii, {"num": ("pos",), "": ("query",)}, _RADII.format(k=k), x64)


def _judge_radii(values: dict[str, Any], outcome: Outcome) -> None:
    """Compare radii with a formula: the unit vector between the two particles, and the number of periods between."""
    pos, query = values["pos"][: values["num"]], values["query"]
    sides = inputs.sides(values["boxsize"], pos.shape[1])
    if expect_error(outcome, None) or outside(np.concatenate([pos, query]), sides):
        return
    idx = np.asarray(outcome["idx"])
    difference = query[:, None].astype(np.float64) - pos[idx].astype(np.float64)
    safe = np.where(sides > 0, sides, 1.0)
    if ((sides > 0) & (np.abs(np.abs(difference / safe) - 0.5) < 1e-6)).any():
        return  # two images are equally near
    images = np.where(sides > 0, np.rint(difference / safe), 0)
    rad = np.take_along_axis(distances(query, pos, sides), idx, axis=1).astype(np.float64)[..., None]
    minimum = 4 * float(np.finfo(pos.dtype).tiny)  # JAX's arithmetic flushes smaller numbers to 0
    if pos.dtype == np.float64:
        minimum = max(minimum, vanishing(np.concatenate([pos, query]), sides))
    if ((rad > 0) & (rad < minimum)).any():
        return
    separation = rad > 0
    weight = (np.arange(1, rad.size + 1).reshape(rad.shape) % 5 + 1) * separation
    direction = weight * (difference - images * sides) / np.where(separation, rad, 1)
    eps = float(np.finfo(pos.dtype).eps)
    loose = (
        16 * eps + 4 * eps * (np.abs(images) * sides).max(axis=-1, keepdims=True) / np.where(separation, rad, 1)
    ) * weight
    by_pos, pos_loose = np.zeros(pos.shape), np.zeros(pos.shape)
    np.add.at(by_pos, idx, -direction)
    np.add.at(pos_loose, idx, np.broadcast_to(loose, direction.shape))
    _compare("positions", by_pos, outcome["gradients"][0][: len(pos)], pos_loose)
    _compare("queries", direction.sum(axis=1), outcome["gradients"][1], loose.sum(axis=1))
    by_box = -(direction * images).sum(axis=(0, 1))
    _compare("the box", by_box, outcome["gradients"][2], (loose * np.abs(images)).sum(axis=(0, 1)))
    if np.any(np.asarray(outcome["gradients"][0])[len(pos) :]):
        raise WrongError("rows beyond num have a derivative", 0, outcome["gradients"][0])


def _compare(by: str, expected: np.ndarray, result: Any, loose: np.ndarray) -> None:
    if not (np.abs(np.asarray(result) - expected) <= 8 * loose + 1e-30).all():
        raise WrongError(f"the derivative of radii by {by} is wrong", expected, np.asarray(result))


def _others(random: np.random.Generator) -> Iterator[Case]:
    """Use float64 and moderate units, because finite differences lose half of the digits."""
    names = list(_PLAIN)
    expression = _PLAIN[pick(random, *names)].format(
        column=pick(random, *CATALOGUE_COLUMNS),
        property=pick(random, "pos", "mass", "vel"),
        sphere=pick(random, "radius", "mass", "vmax", "rmax"),
    )
    rows, dims = int(pick(random, 12, 40)), int(pick(random, 2, 3))
    setup = _FUNCTION.format(expression=expression)
    for which in range(5):
        pos = random.random((rows, dims))
        values = {"pos": pos, "mass": 0.5 + random.random(rows), "vel": random.standard_normal((rows, dims))}
        values |= {"box": np.full(dims, 1.0 + random.random()), "density": np.float64(0.5 + random.random())}
        given = list(values.values())[which]
        values |= {"direction": random.standard_normal(np.shape(given)) + np.zeros_like(given), "step": 1e-6}
        rows_of = ("pos", "mass", "vel", *(("direction",) if which < 3 else ()))
        yield Case(_FUNCTION_LINES.format(which=which), values, _judge_differences, {"": rows_of}, setup, True)


def _judge_differences(values: dict[str, Any], outcome: Outcome) -> None:
    if outcome.error is not None:
        return  # check_error has verified that it is a sentence; functions without a derivative may raise
    step = values["step"]
    expected = (outcome["plus"] - outcome["minus"]) / (2 * step)
    if abs(expected) > 1e4:
        return  # the two places have different neighbours or groups
    atol = 1e-4 * abs(expected) + 1e-7 * (abs(outcome["plus"]) + 1)
    for method in ("forward", "reverse"):
        result = float(outcome[method])
        if not abs(result - expected) <= atol:
            kind = "zero" if result == 0 else "wrong"
            raise WrongError(f"a {method} derivative is {kind}", expected, result)
