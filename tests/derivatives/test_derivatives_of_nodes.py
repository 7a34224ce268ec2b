"""Derivatives of nodes and of properties of haloes; functions without derivatives; strict scripts."""

import itertools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jztree as jz
from derivatives.test_derivatives import check, clumps, members, plain_columns
from jztree import kernels
from jztree.config import FofConfig, TreeConfig
from jztree.data import ParticleData, Pos, PosMass
from jztree.kernels import _call


@pytest.mark.parametrize("kind", ["each", pytest.param("shared", marks=pytest.mark.slow)])
def test_hierarchy_derivatives_equal_those_of_plain_sums(kind: str, x64: None) -> None:
    pos = np.random.default_rng(1).random((90, 2)) * 1.4 - 0.2
    mass = np.random.default_rng(2).random(90) + 0.1 if kind == "each" else np.array(0.4)
    cfg = TreeConfig(leaf_size=4, fan_out=4, masses=True)
    part, th = jz.tree.zsort_and_tree(ParticleData(pos=jnp.asarray(pos), mass=mass, id=jnp.arange(90)), cfg, boxsize=1)
    order = np.asarray(part.id)
    spans = [np.asarray(th.particle_splits(plane)) for plane in range(th.num_planes)]

    def plain(pos: Any, mass: Any, box: Any) -> Any:
        x = (pos - box * np.floor(pos / box))[order]
        m = np.broadcast_to(mass, 90)[order]
        nodes = [slice(a, b) for span in spans for a, b in itertools.pairwise(span)]
        weighed = [m[node] @ x[node] / m[node].sum() for node in nodes]
        corners = [[func(x[node], axis=0) for node in nodes] for func in (np.min, np.max)]
        return [*map(np.array, corners), np.array([m[node].sum() for node in nodes]), np.array(weighed)]

    def found(pos: Any, mass: Any, box: Any) -> Any:
        _, th = jz.tree.zsort_and_tree(PosMass(pos=pos, mass=mass), cfg, boxsize=box)
        return [th.flat_lower, th.flat_upper, th.flat_mass, th.flat_center_of_mass]

    check(found, plain, (pos, mass, np.ones(2)), second=False)


@pytest.mark.slow
def test_nodes_of_several_types_and_empty_nodes() -> None:
    pos = jnp.asarray(oracles.uniform(60, 3))

    def loss(a: Any, b: Any) -> Any:
        _, ths = jz.tree.zsort_and_tree_multi_type([Pos(pos=a, num=20), b], TreeConfig(leaf_size=4), boxsize=1.0)
        lower, upper = ths[0].flat_lower, ths[1].flat_upper
        return jnp.where(jnp.isinf(lower), 0, lower).sum() + jnp.where(jnp.isinf(upper), 0, upper).sum()

    first, second = jax.jit(jax.grad(loss, (0, 1)))(pos[:30], pos[30:])
    np.testing.assert_array_equal(first[20:], 0)
    _, ths = jz.tree.zsort_and_tree_multi_type(
        [Pos(pos=pos[:30], num=20), pos[30:]], TreeConfig(leaf_size=4), boxsize=1.0
    )
    # Every corner of a nonempty node moves with one particle, of either type.
    assert float(first.sum() + second.sum()) == 2 * np.isfinite(ths[0].flat_lower).sum()


# Halos


@pytest.mark.slow
def test_halo_properties(x64: None) -> None:
    pos, mass, vel = clumps(3)
    groups = members(pos, 1.0)

    def found(pos: Any, mass: Any, vel: Any, gravity: Any) -> Any:
        part = ParticleData(pos=pos, mass=mass, vel=vel)
        grouped, cata = jz.fof.fof_and_catalogue(part, 0.1, 1.0, FofConfig())
        axes = jz.halos.principal_axes(cata)
        spin = jz.halos.spin(cata, cata.mass, cata.max_radius, gravity)
        densest = jz.halos.densest_particle(grouped, cata, grouped.mass)
        rows = [axes.lengths, axes.ratios, axes.directions, spin, jz.halos.total_vel_dispersion(cata), densest.part.pos]
        return [row[:2] for row in [*rows, densest.density]]

    def plain(pos: Any, mass: Any, vel: Any, gravity: Any) -> Any:
        total, _, _, _, far, spread, inertia, turn = plain_columns(groups, pos, mass, vel, np.ones(3))
        values, vectors = np.linalg.eigh(inertia)
        axes, lengths = vectors.swapaxes(1, 2)[:, ::-1], np.sqrt(values)[:, ::-1]
        largest = np.take_along_axis(axes, np.abs(axes).argmax(-1)[..., None], -1)
        spin = np.linalg.norm(turn, axis=1) / np.sqrt(2 * total * far * gravity)
        densest = [group[np.argmax(mass[group])] for group in groups]
        rows = [lengths, lengths[:, 1:] / lengths[:, :1], axes * np.sign(largest), spin, spread * np.sqrt(3)]
        return [*rows, pos[densest], mass[densest]]

    check(found, plain, (pos, mass, vel, np.array(43.0)), atol=1e-6, second=False)


@pytest.mark.long
def test_unused_and_degenerate_rows_of_halos_have_finite_derivatives() -> None:
    """All rows are one group, of particles in a plane and at rest; the other rows of the catalogue are empty."""
    pos = np.random.default_rng(8).random((50, 3)).astype(np.float32) * np.float32([1, 1, 0])

    def loss(pos: Any, vel: Any) -> Any:
        cata = jz.fof.fof_and_catalogue(ParticleData(pos=pos, mass=1.0, vel=vel), 3.0)[1]
        axes = jz.halos.principal_axes(cata)
        spin = jz.halos.spin(cata, cata.mass, cata.max_radius, 43.0)
        return axes.lengths.sum() + jnp.where(spin > 0, spin, 0).sum() + cata.vel_dispersion.sum()

    gradients = jax.jit(jax.grad(loss, (0, 1)))(jnp.asarray(pos), jnp.zeros((50, 3)))
    assert all(bool(jnp.isfinite(gradient).all()) for gradient in gradients)


# Functions without derivatives


def test_differentiating_a_kernel_without_a_rule_raises() -> None:
    def fresh(array: Any) -> Any:
        """Call a kernel with float results and without derivatives."""
        out = jax.ShapeDtypeStruct(array.shape, array.dtype)
        return _call.call("gather_rows", out, array, jnp.arange(3, dtype=jnp.int32)).sum()

    array = jnp.arange(3.0)
    assert float(jax.jit(fresh)(array)) == 3
    for derive in (jax.grad(fresh), jax.jit(jax.grad(fresh)), lambda x: jax.jvp(fresh, (x,), (x,))):
        with pytest.raises(ValueError, match="'gather_rows' has no derivative") as error:
            derive(array)
        assert oracles.one_sentence(error)
    # Floats may be transported as words.
    first = jnp.zeros(1, jnp.int32)
    with pytest.raises(ValueError, match="'pack_segments' has no derivative"):
        jax.grad(lambda x: kernels.pack_segments([x], None, first, first + 3, 3).sum().astype(float))(array)
    # Results of which no derivative is taken may come from any kernel.
    np.testing.assert_array_equal(jax.grad(lambda x, y: x * fresh(y))(2.0, array), 3)


# Strict scripts


def uses(dtype: Any) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """Return functions of the library with derivatives, as sums, and their differentiable arguments."""
    pos = jnp.asarray(oracles.uniform(60, 3), dtype)
    mass, box, density = jnp.ones(60, dtype), jnp.ones(3, dtype), jnp.asarray([3.0, 9.0], dtype)
    cfg = TreeConfig(leaf_size=4, masses=True)

    def total(result: Any) -> Any:
        return sum(leaf.sum() for leaf in jax.tree.leaves(result) if jnp.issubdtype(leaf.dtype, jnp.floating))

    groups = lambda p, m, v, b: jz.fof.fof_and_catalogue(ParticleData(pos=p, mass=m, vel=v), 0.3, b)  # noqa: E731

    def halos(p: Any, m: Any, v: Any) -> Any:
        grouped, cata = groups(p, m, v, 1.0)
        spin = jz.halos.spin(cata, cata.mass, cata.max_radius, 43.0, scale_factor=0.5)
        densest = jz.halos.densest_particle(grouped, cata, grouped.mass)
        sigma = jz.halos.total_vel_dispersion(cata)
        return total((jz.halos.principal_axes(cata), spin, densest, sigma, jz.data.sort_catalogue(cata)))

    def attached(p: Any, m: Any) -> Any:
        gas = PosMass(pos=p[:9], mass=m[:9])
        return total(jz.fof.fof_and_catalogue(PosMass(pos=p, mass=m), 0.3, 1.0, attached=gas))

    def spheres(p: Any, m: Any, c: Any, d: Any, b: Any, gravity: Any) -> Any:
        return total(
            jz.overdensity.spherical_overdensity(PosMass(pos=p, mass=m), d, queries=c, boxsize=b, gravity=gravity)
        )

    density_of = jz.density
    part = PosMass(pos=pos, mass=mass)
    return {
        "knn": (lambda p, b: total(jz.knn.knn(p, 4, b, result="drad")), (pos, box)),
        "queries": (lambda p, q: total(jz.knn.knn(p, 4, 1.0, part_query=q, output_order="z")), (pos, pos[:7])),
        "knn_density": (lambda p: total(density_of.knn_density(p, 6, boxsize=1.0)), (part,)),
        "sph_density": (lambda p, b: total(density_of.sph_density(p, 6, boxsize=b)), (part, box[0])),
        "bias": (
            lambda p: total(density_of.sph_density(p, 6, boxsize=1.0, kernel="wendland_c4", bias_correction=True)),
            (part,),
        ),
        "smoothing_length": (lambda p: total(density_of.smoothing_length(p, 6, boxsize=1.0)), (part,)),
        "fof": (lambda *args: total(groups(*args)), (pos, mass, pos, box[0])),
        "shared mass": (lambda *args: total(groups(*args)), (pos, mass[0], pos, box)),
        "attached": (attached, (pos, mass)),
        "halos": (halos, (pos, mass, pos)),
        "spheres": (spheres, (pos, mass, pos[:3], density, box[0], mass[0])),
        "one density": (spheres, (pos, mass, pos[:3], density[0], box, mass[0])),
        "tree": (lambda p, b: total(jz.tree.zsort_and_tree(p, cfg, boxsize=b)), (part, box[0])),
        "types": (lambda p, q: total(jz.tree.zsort_and_tree_multi_type([p, q])), (pos, pos)),
    }


@pytest.mark.parametrize(
    ("x64", "kind"),
    [
        (True, np.float32),
        pytest.param(False, np.float32, marks=pytest.mark.slow),
        pytest.param(True, np.float64, marks=pytest.mark.slow),
    ],
)
def test_derivatives_with_promotion_disabled(x64: bool, kind: Any) -> None:
    with jax.enable_x64(x64), jax.numpy_rank_promotion("raise"), jax.numpy_dtype_promotion("strict"):
        for name, (func, args) in uses(kind).items():
            result = jax.eval_shape(jax.value_and_grad(func, tuple(range(len(args)))), *args)
            assert jax.tree.map(jnp.shape, result[1]) == jax.tree.map(jnp.shape, args), name
            assert all(leaf.dtype == kind for leaf in jax.tree.leaves(result[1])), name
