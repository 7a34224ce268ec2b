"""Derivatives over several devices, compared with derivatives on one device."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import deal, joined, mesh_of

import jztree as jz
from derivatives.test_derivatives import COLUMNS, clumps, column
from jztree.config import OverdensityConfig
from jztree.data import ParticleData, Pos, PosMass

COUNTS = np.array([5, 30, 15])  # of 50 particles; groups straddle all three devices
NUM = COUNTS.astype(np.int32)


def particles() -> tuple[np.ndarray, ...]:
    """Return positions, masses and velocities, in an order with each group on several devices."""
    pos, mass, vel = (array.astype(np.float32) for array in clumps(3))
    return pos % np.float32(1), mass[:, None], vel


def dealt(*arrays: np.ndarray) -> list[jax.Array]:
    return [jnp.asarray(deal(array, COUNTS, 40).pos) for array in arrays]


def agree(on_many: Any, on_one: Any, arrays: tuple[np.ndarray, ...], counts: np.ndarray = COUNTS) -> None:
    """Assert that both losses have the same value and gradients, and that padding has none."""
    places = tuple(range(len(arrays)))
    value, many = jax.jit(jax.value_and_grad(on_many, places))(*dealt(*arrays))
    expected, one = jax.jit(jax.value_and_grad(on_one, places))(*map(jnp.asarray, arrays))
    np.testing.assert_allclose(value, expected, rtol=1e-5)
    for got, want in zip(many, one, strict=True):
        assert np.any(np.asarray(want) != 0)
        np.testing.assert_allclose(joined(got, counts), want, atol=2e-5 * np.abs(want).max())
        for rank, count in enumerate(counts):
            np.testing.assert_array_equal(got[rank, count:], 0)


def of_columns(cata: jz.data.FofCatalogue) -> jax.Array:
    """Return a number that does not depend on the order of groups."""
    return sum(jnp.sum(jnp.sin(column(cata, name))) for name in COLUMNS)


@pytest.mark.slow
@pytest.mark.parametrize("attached", [False, True])
def test_catalogue_and_particles_in_group_order(attached: bool) -> None:
    def particle_class(pos: Any, mass: Any, vel: Any, num: Any) -> ParticleData:
        return ParticleData(pos=pos, mass=mass[..., 0], vel=vel, num=num)

    def loss(part: ParticleData, find: Any) -> Any:
        grouped, cata = find(part, 0.1, 1.0, attached=part if attached else None)
        rows = jnp.arange(grouped.pos.shape[-2], dtype=jnp.int32) < jnp.asarray(grouped.num)[..., None]
        return of_columns(cata) + jnp.sum(jnp.where(rows, grouped.pos[..., 0] * grouped.mass, 0))

    agree(
        lambda *arrays: loss(particle_class(*arrays, NUM), jz.fof.fof_and_catalogue.smap(mesh_of(3))),
        lambda *arrays: loss(particle_class(*arrays, 50), jz.fof.fof_and_catalogue),
        particles(),
    )


@pytest.mark.long
def test_catalogue_in_one_dimension() -> None:
    """Nothing rotates in 1D: the column of angular momenta is empty, but still varies over devices."""

    def loss(pos: Any, vel: Any, num: Any, find: Any) -> Any:
        cata = find(ParticleData(pos=pos, vel=vel, mass=np.float32(0.5), num=num), 0.1, 1.0)[1]
        return jnp.sum(jnp.sin(cata.com_pos)) + jnp.sum(cata.vel_dispersion) + jnp.sum(cata.max_radius)

    pos, _, vel = particles()
    agree(
        lambda *arrays: loss(*arrays, NUM, jz.fof.fof_and_catalogue.smap(mesh_of(3))),
        lambda *arrays: loss(*arrays, 50, jz.fof.fof_and_catalogue),
        (pos[:, :1], vel[:, :1]),
    )


@pytest.mark.slow
def test_spheres() -> None:
    pos, mass, _ = particles()
    cfg, density = OverdensityConfig(npart_min=4), jnp.asarray([1e4, 1e5])

    def loss(pos: Any, mass: Any, num: Any, find: Any) -> Any:
        centre = Pos(pos=pos, num=num)
        result = find(PosMass(pos=pos, mass=mass[..., 0], num=num), centre, density, 1.0, cfg=cfg)
        kept = [
            jnp.where(jnp.isnan(array), 0, array) for array in (result.radius, result.mass, result.vmax, result.rmax)
        ]
        return sum(jnp.sum(jnp.sin(array)) for array in kept)

    many = jz.overdensity.spherical_overdensity.smap(mesh_of(3))
    agree(
        lambda *arrays: loss(*arrays, NUM, many),
        lambda *arrays: loss(*arrays, 50, jz.overdensity.spherical_overdensity),
        (pos, mass),
    )


@pytest.mark.long
def test_sorted_particles_and_nodes() -> None:
    """Derivatives follow rows to other ranks, and boxes of nodes have derivatives."""
    pos, mass, _ = particles()

    def loss(pos: Any, mass: Any, num: Any, sort: Any) -> Any:
        part, th = sort(PosMass(pos=pos, mass=mass[..., 0], num=num), boxsize=1.0)
        weight = jnp.sin(7 * part.pos).sum(axis=-1) * part.mass
        rows = jnp.arange(weight.shape[-1], dtype=jnp.int32) < jnp.asarray(part.num)[..., None]
        return jnp.sum(jnp.where(rows, weight, 0)) + 5 * jnp.min(th.flat_lower)

    many, one = jz.tree.zsort_and_tree.smap(mesh_of(3)), jz.tree.zsort_and_tree
    agree(lambda *arrays: loss(*arrays, NUM, many), lambda *arrays: loss(*arrays, 50, one), (pos, mass))


@pytest.mark.slow
def test_densest_particles() -> None:
    def loss(pos: Any, mass: Any, num: Any, find: Any, choose: Any) -> Any:
        grouped, cata = find(ParticleData(pos=pos, mass=mass[..., 0], num=num), 0.1, 1.0)
        densest = choose(grouped, cata, grouped.mass)
        return jnp.sum(jnp.sin(densest.part.pos)) + jnp.sum(densest.density**2)

    pos, mass, _ = particles()
    many = jz.fof.fof_and_catalogue.smap(mesh_of(3)), jz.halos.densest_particle.smap(mesh_of(3))
    single = jz.fof.fof_and_catalogue, jz.halos.densest_particle
    agree(lambda *arrays: loss(*arrays, NUM, *many), lambda *arrays: loss(*arrays, 50, *single), (pos, mass))


@pytest.mark.parametrize("form", ["gather", "mean_kernel", "mean_h"])
def test_derivatives_by_replicated_scalars(form: str) -> None:
    """Reverse mode sums the derivatives over devices."""
    pos, _, _ = particles()

    def loss(h: Any, box: Any, kernel_sums: Any, sph_derivative: Any, part: Pos) -> Any:
        return (
            kernel_sums(part, h, boxsize=box, form=form).sum()
            + sph_derivative(part, h, part.pos, derivative="divergence", boxsize=box).sum()
        )

    def gradients(sums: Any, derivative: Any, part: Pos) -> Any:
        return jax.jit(jax.grad(loss, (0, 1)), static_argnums=(2, 3))(0.3, jnp.ones(3), sums, derivative, part)

    single = gradients(jz.radius.kernel_sums, stopped_by_box(jz.radius.sph_derivative), Pos(pos=jnp.asarray(pos)))
    mesh = mesh_of(3)
    functions = jz.radius.kernel_sums.smap(mesh), stopped_by_box(jz.radius.sph_derivative.smap(mesh))
    for got, want in zip(gradients(*functions, Pos(pos=dealt(pos)[0], num=NUM)), single, strict=True):
        assert np.any(np.asarray(want) != 0)
        np.testing.assert_allclose(got, want, rtol=1e-4)


def test_catalogue_has_forward_derivatives_with_respect_to_length_and_box() -> None:
    """The linking length bounds the ghosts, but no derivative flows through the choice of ghosts."""
    pos, mass, vel = particles()

    def slope(find: Any, part: ParticleData) -> Any:
        def loss(rlink: Any, box: Any) -> jax.Array:
            return of_columns(find(part, rlink, box)[1])

        return jax.jit(lambda *point: jax.jvp(loss, point, (1.0, jnp.arange(3.0))))(jnp.float32(0.1), jnp.ones(3))

    stacked = dealt(pos, mass, vel)
    spread = ParticleData(pos=stacked[0], mass=stacked[1][..., 0], vel=stacked[2], num=NUM)
    expected = slope(jz.fof.fof_and_catalogue, ParticleData(pos=pos, mass=mass[:, 0], vel=vel))
    assert expected[1] != 0
    np.testing.assert_allclose(slope(jz.fof.fof_and_catalogue.smap(mesh_of(3)), spread), expected, rtol=1e-4)


def test_gradient_of_pair_counts_is_0() -> None:
    part, counts = Pos(pos=dealt(particles()[0])[0], num=NUM), jz.radius.pair_counts.smap(mesh_of(3))
    slope = jax.jit(jax.grad(lambda edges: counts(part, edges).count.to_float().sum()))(jnp.array([0.1, 0.2]))
    np.testing.assert_array_equal(slope, 0)


@functools.cache
def stopped_by_box(derivative: Any) -> Any:
    """Return `sph_derivative` with a constant box."""
    return lambda part, h, field, boxsize, **options: derivative(
        part, h, field, boxsize=jax.lax.stop_gradient(boxsize), **options
    )
