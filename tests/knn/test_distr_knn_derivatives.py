"""Derivatives of densities and neighbours over several devices, compared with one device and finite differences."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import deal, joined, mesh_of, uneven

import jztree as jz
from jztree.data import Pos, PosMass, get_num
from jztree.density import knn_density, smoothing_length, sph_density

N, QUERIES, ROWS = 90, 30, 90


def given() -> dict[str, jax.Array]:
    """Return clustered positions, some on the faces of the box, and masses, queries and a box length in float64."""
    rng = np.random.default_rng(5)
    pos = np.r_[oracles.uniform(N // 2, 3, np.float64), rng.normal(0.5, 0.1, (N - N // 2, 3))]
    pos[:3] = rng.random((3, 3)) * [0.01, 1, 1]
    arrays = {"pos": pos, "mass": rng.random(N) + 0.5, "query": rng.random((QUERIES, 3)), "box": np.array(1.1)}
    return {name: jnp.asarray(array) for name, array in arrays.items()}


def dealt(arrays: dict[str, jax.Array], ndev: int) -> tuple[dict[str, jax.Array], dict[str, np.ndarray]]:
    """Return the arrays over devices, and the number of rows of each device."""
    counts = {"pos": uneven(N, ndev), "query": uneven(QUERIES, ndev)}
    counts["mass"] = counts["pos"]
    columns = {name: np.asarray(arrays[name]).reshape(len(arrays[name]), -1) for name in counts}
    spread = {name: jnp.asarray(deal(columns[name], counts[name], ROWS).pos) for name in counts}
    return spread | {"mass": spread["mass"][..., 0], "box": arrays["box"]}, counts


def parts(arrays: dict[str, jax.Array], counts: dict[str, np.ndarray] | None) -> tuple[PosMass, Pos]:
    nums = {"pos": N, "query": QUERIES} if counts is None else {k: v.astype(np.int32) for k, v in counts.items()}
    return (
        PosMass(pos=arrays["pos"], mass=arrays["mass"], num=nums["pos"]),
        Pos(pos=arrays["query"], num=nums["query"]),
    )


def summed(result: Any, num: Any) -> jax.Array:
    """Return the sum of the logarithm of the positive results in rows below ``num``."""
    num = jnp.asarray(num)[..., None]
    rows = jnp.arange(result.shape[num.ndim - 1], dtype=jnp.int32) < num
    values = result.reshape(*rows.shape, -1)
    return jnp.sum(jnp.where(rows[..., None] & (values > 0), jnp.log(jnp.where(values > 0, values, 1)), 0))


def agree(loss: Any, ndev: int, unused: tuple[str, ...] = ()) -> None:
    """Assert that ``loss(arrays, counts, over)`` has the derivatives of one device, and equals finite differences."""
    single = given()
    expected = jax.jit(jax.grad(lambda arrays: loss(arrays, None, lambda func: func)))(single)
    many, counts = dealt(single, ndev)
    mesh = mesh_of(ndev)
    mapped = jax.jit(jax.value_and_grad(lambda arrays: loss(arrays, counts, lambda func: func.smap(mesh))))
    result = jax.tree.map(np.asarray, mapped(many)[1])
    for name, want in expected.items():
        assert np.any(want != 0) == (name not in unused), name
        got = joined(result[name], counts[name]) if name in counts else result[name]
        np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-9 * np.abs(want).max(), err_msg=name)
        if name in counts:
            for rank, count in enumerate(counts[name]):
                np.testing.assert_array_equal(result[name][rank, count:], 0)
    rng = np.random.default_rng(7)
    ways = {name: jnp.asarray(rng.normal(size=array.shape)) for name, array in single.items()}
    moved = [
        mapped(dealt({name: single[name] + step * method for name, method in ways.items()}, ndev)[0])[0]
        for step in (1e-7, -1e-7)
    ]
    slope = sum(float(jnp.sum(expected[name] * method)) for name, method in ways.items())
    np.testing.assert_allclose((moved[0] - moved[1]) / 2e-7, slope, rtol=1e-5)


NDEV = pytest.mark.parametrize("ndev", [pytest.param(2, marks=pytest.mark.slow), 4])


@NDEV
@pytest.mark.parametrize("func", [knn_density, sph_density, smoothing_length], ids=lambda func: func.__name__)
def test_derivatives_of_densities(func: Any, ndev: int, x64: None) -> None:
    """By positions, masses, separate queries and the box."""

    def loss(arrays: Any, counts: Any, over: Any) -> jax.Array:
        part, query = parts(arrays, counts)
        own = over(func)(part, 9, boxsize=arrays["box"])
        separation = over(func)(part, 9, boxsize=arrays["box"], queries=query)
        return summed(own, get_num(part)) + summed(separation, get_num(query))

    agree(loss, ndev, unused=("mass",) if func is smoothing_length else ())


@NDEV
@pytest.mark.parametrize("order", ["input", "z"])
def test_derivatives_of_neighbours_and_their_properties(order: str, ndev: int, x64: None) -> None:
    """By distances, fields, whole neighbours, reductions and queries, which may be in z-order."""

    def pull(part: Any, rnn: jax.Array, inn: jax.Array, query: Any, **_: Any) -> jax.Array:
        nearest = part.pos[jnp.maximum(inn, 0)] - query.pos[:, None]
        return jnp.sum(jnp.abs(jnp.sin(nearest)) * part.mass[inn][..., None] / (rnn[..., None] + 0.1), axis=1)

    def loss(arrays: Any, counts: Any, over: Any) -> jax.Array:
        part, query = parts(arrays, counts)
        words = "rad_mass_part_reduce_query_queryidx"
        result = over(jz.knn.knn)(part, 5, arrays["box"], None, query, words, pull, order)
        rad, mass, nearest, reduced, asked, origin = result
        num = (origin.idx >= 0).sum(axis=-1)
        values = rad, mass, jnp.abs(jnp.sin(nearest.pos)), reduced, jnp.abs(jnp.sin(asked.pos))
        return sum(summed(value, num) for value in values)

    agree(loss, ndev)


def test_derivatives_of_distances_in_z_order(x64: None) -> None:
    """Without other properties of neighbours: among the particles, of separate queries, and with a mask of sources."""

    def loss(arrays: Any, counts: Any, over: Any) -> jax.Array:
        part, query = parts(arrays, counts)
        options = {"boxsize": arrays["box"], "output_order": "z"}
        nearest = over(jz.knn.knn)(part, 5, result="rad_globalidx", **options)[0]
        separation = over(jz.knn.knn)(part, 5, result="rad", part_query=query, **options)
        sample = over(jz.knn.knn)(part, 5, result="drad", source_mask=arrays["mass"] > 1, exclude_self=True, **options)
        result = [
            jnp.where(jnp.isfinite(rad), rad, 0) for rad in (nearest, separation, sample)
        ]  # infinite in padding rows
        return sum(jnp.sum(jnp.where(rad > 0, jnp.log(jnp.where(rad > 0, rad, 1)), 0)) for rad in result)

    agree(loss, 4, unused=("mass",))
