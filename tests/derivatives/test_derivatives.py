"""Derivatives at fixed membership, compared with finite differences of the definitions written in NumPy."""

import dataclasses
from collections.abc import Callable
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from cases import CATALOGUE_COLUMNS

import jztree as jz
from jztree.config import OverdensityConfig
from jztree.data import ParticleData, Pos, PosMass

COLUMNS = tuple(name if name != "shape_tensor" else "inertia_tensor" for name in CATALOGUE_COLUMNS)


def changes(func: Callable[..., Any], args: tuple[Any, ...], dots: tuple[Any, ...], step: float = 1e-5) -> Any:
    """Return first and second derivatives of ``func`` along ``dots`` by finite differences."""
    up, here, down = (func(*[a + s * step * d for a, d in zip(args, dots, strict=True)]) for s in (1, 0, -1))
    first = [(u - d) / (2 * step) for u, d in zip(up, down, strict=True)]
    return first, [(u - 2 * h + d) / step**2 for u, h, d in zip(up, here, down, strict=True)]


def check(func: Any, plain: Any, args: tuple[Any, ...], atol: float = 1e-7, second: bool = True) -> None:
    """Assert that ``func`` (JAX) and ``plain`` (NumPy) agree: values, forward and reverse, and second derivatives."""
    random = np.random.default_rng(77)
    dots = tuple(random.standard_normal(np.shape(arg)) for arg in args)
    values, (first, reference) = plain(*args), changes(plain, args, dots)
    weights = [random.standard_normal(np.shape(value)) for value in values]

    @jax.jit
    def derive(args: Any, dots: Any) -> Any:
        along = lambda *args: jax.jvp(func, args, dots)[1]  # noqa: E731
        result, forward = jax.jvp(func, args, dots)
        back = jax.vjp(func, *args)[1]([jnp.asarray(weight) for weight in weights])
        return result, forward, back, jax.jvp(along, args, dots)[1] if second else None

    derivatives = derive(tuple(map(jnp.asarray, args)), tuple(map(jnp.asarray, dots)))
    result, forward, back, twice = jax.tree.map(np.asarray, derivatives)
    for got, want, value in zip(forward, first, zip(result, values, strict=True), strict=True):
        np.testing.assert_allclose(value[0], value[1], rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(got, want, atol=atol * (1 + np.abs(want).max(initial=0)))
    contracted = sum(float(np.sum(b * d)) for b, d in zip(back, dots, strict=True))
    expected = sum(float(np.sum(weight * change)) for weight, change in zip(weights, first, strict=True))
    np.testing.assert_allclose(contracted, expected, atol=1e2 * atol)
    for got, want, value in zip(twice, reference, values, strict=True) if second else ():
        # The error of second differences is the rounding of the values over the square of the step.
        noise = 2e-5 * np.abs(value).max(initial=0)
        np.testing.assert_allclose(got, want, atol=2e-4 * (1 + np.abs(want).max(initial=0)) + noise)


def nearest(a: np.ndarray, b: np.ndarray, box: np.ndarray) -> np.ndarray:
    difference = a - b
    return difference - box * np.rint(difference / np.where(box > 0, box, 1)) * (box > 0)


# Two clumps, one across faces, and a few particles in no group
def clumps(dims: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(5)
    centres = np.full((2, dims), 0.45), np.array([0.01, 0.2, 0.98, 0.7])[:dims]
    pos = [random.normal(centre, 0.02, (24, dims)) for centre in (centres[0][0], centres[1])]
    pos = np.concatenate([*pos, [np.full(dims, 0.8), np.full(dims, 0.75)]])
    order = random.permutation(len(pos))
    return pos[order], random.random(len(pos)) + 0.2, random.standard_normal(pos.shape) + 3


def catalogue_of(pos: Any, mass: Any, vel: Any, box: Any, **options: Any) -> jz.data.FofCatalogue:
    return jz.fof.fof_and_catalogue(ParticleData(pos=pos, mass=mass, vel=vel), 0.1, box, **options)[1]


def columns(cata: jz.data.FofCatalogue, groups: int = 2) -> list[Any]:
    return [result[:groups] for name in COLUMNS if (result := column(cata, name)) is not None]


def column(cata: jz.data.FofCatalogue, name: str) -> Any:
    """Return a column of a catalogue, or a quantity that the library computes from its columns."""
    return jz.halos.inertia_tensor(cata) if name == "inertia_tensor" else getattr(cata, name)


def members(pos: np.ndarray, box: Any) -> list[np.ndarray]:
    part = ParticleData(pos=jnp.asarray(pos), id=jnp.arange(len(pos)))
    grouped, cata = jz.fof.fof_and_catalogue(part, 0.1, box)
    assert int(cata.ngroups) == 2
    return [np.asarray(grouped.id)[o : o + c] for o, c in zip(cata.offset[:2], cata.count[:2], strict=True)]


def plain_columns(groups: list[np.ndarray], pos: Any, mass: Any, vel: Any, box: Any) -> list[np.ndarray]:
    """Return the columns of the catalogue by their definitions; ``box`` has one length per dimension."""
    rows = []
    for group in groups:
        x, v = pos[group], vel[group]
        m = None if mass is None else np.broadcast_to(mass, len(pos))[group]
        w = np.full(len(x), 1 / len(x)) if m is None or m.sum() == 0 else m / m.sum()
        offset = nearest(x, x[0], box)
        centre = x[0] + w @ offset
        y, u = offset - w @ offset, v - w @ v
        centre = np.where(box > 0, centre - box * np.floor(centre / np.where(box > 0, box, 1)), centre)
        pairs = [(1, 2), (2, 0), (0, 1)] if x.shape[1] == 3 else [(0, 1)]
        turn = np.stack([w @ (y[:, i] * u[:, j] - y[:, j] * u[:, i]) for i, j in pairs])
        means = [np.sqrt(w @ (y**2).sum(1)), np.sqrt((y**2).sum(1).max()), np.sqrt(w @ (u**2).sum(1) / x.shape[1])]
        row = [centre, w @ v, *means, np.einsum("n,ni,nj->ij", w, y, y), turn]
        rows.append(row if m is None else [m.sum(), *row])
    return [np.stack(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("dims", "box", "kind"),
    [
        (2, "mixed", "each"),
        pytest.param(3, "periodic", "each", marks=pytest.mark.slow),
        pytest.param(2, "mixed", "shared", marks=pytest.mark.slow),
        pytest.param(3, "open", "none", marks=pytest.mark.slow),
        pytest.param(3, "mixed", "each", marks=pytest.mark.slow),
    ],
)
def test_catalogue(dims: int, box: str, kind: str, x64: None) -> None:
    pos, mass, vel = clumps(dims)
    length = oracles.full_box(oracles.box_lengths(box, dims), dims).copy()
    if box == "open":
        pos = pos + 0.3
    groups = members(pos, length)
    args = (pos, vel, length) if kind == "none" else (pos, vel, length, mass if kind == "each" else np.array(0.7))
    periodic = length > 0

    def plain(pos: Any, vel: Any, box: Any, mass: Any = None) -> Any:
        return plain_columns(groups, pos, mass, vel, box * periodic)

    def found(pos: Any, vel: Any, box: Any, mass: Any = None) -> Any:
        return columns(catalogue_of(pos, mass, vel, box * periodic))

    check(found, plain, args, second=dims == 3)


@pytest.mark.long
def test_catalogue_of_a_group_wider_than_half_the_box(x64: None) -> None:
    """All sums use the images nearest to the first particle, which may not be the images nearest to the centre."""
    random = np.random.default_rng(3)
    pos = np.stack([np.linspace(0.05, 0.9, 22), 0.3 + 0.02 * random.random(22)], axis=1)
    mass, vel, box = 0.2 + random.random(22), random.standard_normal((22, 2)), np.ones(2)
    mass[7:11] *= 20  # just within half the box of the first
    offset = nearest(pos, pos[0], box)
    assert (np.abs(offset - mass @ offset / mass.sum()) > 0.5).any()

    def found(pos: Any, mass: Any, vel: Any, box: Any) -> Any:
        return columns(catalogue_of(pos, mass, vel, box), 1)

    check(found, lambda *args: plain_columns([np.arange(22)], *args), (pos, mass, vel, box), second=False)


@pytest.mark.slow
def test_catalogue_of_groups_without_mass(x64: None) -> None:
    """Means are then unweighted, and depend on the positions."""
    pos, mass, vel = clumps(3)
    groups, box = members(pos, 1.0), np.ones(3)
    none = np.zeros_like(mass)
    result = lambda pos, vel: columns(catalogue_of(pos, jnp.asarray(none), vel, 1.0))  # noqa: E731
    check(result, lambda pos, vel: plain_columns(groups, pos, none, vel, box), (pos, vel), second=False)


@pytest.mark.slow
def test_catalogue_far_from_the_origin_is_accurate_in_float32() -> None:
    """A group is across a face and another at large coordinates: offsets from rounded centres would be wrong."""
    pos, mass, vel = (array.astype(np.float32) for array in clumps(3))
    pos = (pos * np.float32(0.01) + np.float32(1)) % np.float32(1.003)

    def loss(pos: Any, mass: Any, vel: Any) -> Any:
        cata = jz.fof.fof_and_catalogue(ParticleData(pos=pos, mass=mass, vel=vel), 0.001, 1.003)[1]
        return sum((column * jnp.cos(jnp.arange(column.size)).reshape(column.shape)).sum() for column in columns(cata))

    narrow = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(pos, mass, vel)
    with jax.enable_x64(True):
        wide = [jnp.asarray(np.asarray(array, np.float64)) for array in (pos, mass, vel)]
        expected = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*wide)
    for got, want in zip(narrow, expected, strict=True):
        np.testing.assert_allclose(got, want, atol=2e-5 * np.abs(want).max())


@pytest.mark.slow
@pytest.mark.parametrize("unit", [1e-30, 1e30], ids=str)
def test_catalogue_in_extreme_units(unit: float) -> None:
    """Sizes and their derivatives stay in range in any unit."""
    pos, mass, vel = (jnp.asarray(array, jnp.float32) for array in clumps(3))

    def loss(pos: Any, mass: Any, vel: Any, unit: float) -> Any:
        scale = jnp.float32(unit)
        part = ParticleData(pos=pos * scale, mass=mass, vel=vel * scale)
        cata = jz.fof.fof_and_catalogue(part, 0.1 * unit, unit)[1]
        used = (cata.com_inertia_radius[:2], cata.max_radius[:2], cata.vel_dispersion[:2], cata.com_pos[:2])
        return sum((column * jnp.cos(jnp.arange(column.size)).reshape(column.shape)).sum() for column in used) / scale

    derive = jax.jit(jax.grad(loss, argnums=(0, 1, 2)), static_argnums=3)
    for got, want in zip(derive(pos, mass, vel, unit), derive(pos, mass, vel, 1.0), strict=True):
        np.testing.assert_allclose(got, want, atol=1e-4 * np.abs(want).max())


@pytest.mark.long
def test_padding_rows_have_zero_derivatives() -> None:
    pos, mass, vel = (array.astype(np.float32) for array in clumps(3))

    def filled(value: float) -> list[np.ndarray]:
        return [np.concatenate([x, np.full((6, *x.shape[1:]), value, np.float32)]) for x in (pos, mass, vel)]

    def loss(pos: Any, mass: Any, vel: Any) -> Any:
        cata = jz.fof.fof_and_catalogue(ParticleData(pos=pos, mass=mass, vel=vel, num=50), 0.1, 1.0)[1]
        return sum(jnp.sum(column(cata, name) ** 2) for name in COLUMNS)

    derive = jax.jit(jax.grad(loss, argnums=(0, 1, 2)))
    for got, want in zip(derive(*filled(np.nan)), derive(*filled(0.3)), strict=True):
        assert np.all(np.isfinite(got[:50]))
        assert np.any(np.asarray(got[:50]) != 0)
        gpus.assert_same_sums(got, want)
        np.testing.assert_array_equal(got[50:], 0)


@pytest.mark.slow
def test_catalogue_under_vmap_and_from_jit_twin(x64: None) -> None:
    pos, mass, vel = clumps(3)
    part = ParticleData(pos=jnp.asarray(pos), mass=jnp.asarray(mass), vel=jnp.asarray(vel))
    gradient = jax.grad(lambda pos, mass: sum(x.sum() for x in columns(catalogue_of(pos, mass, part.vel, 1.0))), (0, 1))
    expected = jax.jit(gradient)(part.pos, part.mass)
    batch = jnp.stack([part.pos, part.pos[::-1]]), jnp.stack([part.mass, part.mass[::-1]])
    for got, want in zip(jax.jit(jax.vmap(gradient))(*batch), expected, strict=True):
        np.testing.assert_allclose(got[0], want, rtol=1e-12)

    def twin(pos: Any, box: Any) -> Any:
        return jz.fof.fof_and_catalogue.jit(dataclasses.replace(part, pos=pos), 0.1, box)[1].com_pos[:2].sum()

    by_pos, by_box = jax.grad(twin, (0, 1))(part.pos, jnp.float64(1.0))
    # Moving all particles of a group moves its centre by the same amount.
    np.testing.assert_allclose(by_pos.sum(), 6, rtol=1e-12)
    groups = members(pos, 1.0)
    centres = [plain_columns(groups, pos, mass, vel, np.full(3, side))[1].sum() for side in (1 - 1e-6, 1 + 1e-6)]
    np.testing.assert_allclose(by_box, (centres[1] - centres[0]) / 2e-6, atol=1e-8)


@pytest.mark.slow
def test_attached_particles_count_in_derivatives(x64: None) -> None:
    pos, mass, vel = clumps(3)
    gas = (pos[:10] + 0.001, mass[:10] * 2, vel[:10] + 1)
    groups = members(pos, 1.0)
    neighbours = [[i for i in range(10) if i in set(group.tolist())] for group in groups]
    joined = [
        np.concatenate([group, len(pos) + np.array(rows, int)]) for group, rows in zip(groups, neighbours, strict=True)
    ]

    def found(pos: Any, mass: Any, vel: Any, gas_pos: Any, gas_mass: Any, gas_vel: Any) -> Any:
        attached = ParticleData(pos=gas_pos, mass=gas_mass, vel=gas_vel)
        return columns(catalogue_of(pos, mass, vel, 1.0, attached=attached))

    def plain(pos: Any, mass: Any, vel: Any, *gas: Any) -> Any:
        both = [np.concatenate(pair) for pair in zip((pos, mass, vel), gas, strict=True)]
        return plain_columns(joined, *both, np.ones(3))

    check(found, plain, (pos, mass, vel, *gas), second=False)


# Spheres


def plain_spheres(pos: Any, mass: Any, centre: Any, density: Any, box: Any, gravity: Any, minimum: int) -> list[Any]:
    """Return radii, masses, and the peaks of circular velocity, by the definition."""
    dims = pos.shape[1]
    volume = {1: 2, 2: np.pi, 3: 4 * np.pi / 3}[dims]
    rows = []
    for place in centre:
        distance = np.sqrt((nearest(pos, place, box) ** 2).sum(1))
        order = np.argsort(distance)
        r, total = distance[order], np.cumsum(np.broadcast_to(mass, len(pos))[order])
        spheres = []
        for value in density:
            ends = total[minimum - 1 : -1] <= volume * r[minimum:] ** dims * value
            last = minimum - 1 + int(np.argmax(ends))
            assert ends.any()
            assert total[minimum - 1] > volume * r[minimum - 1] ** dims * value
            spheres.append(((total[last] / (volume * value)) ** (1 / dims), total[last], last))
        end = max(last for *_, last in spheres)
        speed = np.sqrt(gravity * total[minimum - 1 : end + 1] / r[minimum - 1 : end + 1])
        best = int(np.argmax(speed))
        rows.append(([s[0] for s in spheres], [s[1] for s in spheres], speed[best], r[minimum - 1 + best]))
    return [np.array(column) for column in zip(*rows, strict=True)]


@pytest.mark.parametrize(
    ("dims", "kind"),
    [(2, "shared"), pytest.param(3, "each", marks=pytest.mark.slow), pytest.param(3, "none", marks=pytest.mark.slow)],
)
def test_spheres(dims: int, kind: str, x64: None) -> None:
    random = np.random.default_rng(9)
    halo = 0.03 * random.standard_normal((150, dims))
    pos = np.concatenate([halo + 0.98, random.random((60, dims))])  # across faces
    mass = random.random(len(pos)) + 0.5
    centre = np.array([[0.98] * dims, [0.99] * dims])
    density = np.array([400.0, 3000.0]) * (4 if dims == 3 else 2)
    minimum, cfg = 5, OverdensityConfig(npart_min=5)
    weights = {"each": (mass,), "shared": (np.array(0.8),), "none": ()}[kind]
    box = np.ones(dims)

    def plain(pos: Any, centre: Any, density: Any, box: Any, gravity: Any, mass: Any = 1.0) -> Any:
        return plain_spheres(pos, mass, centre, density, box, gravity, minimum)

    def found(pos: Any, centre: Any, density: Any, box: Any, gravity: Any, mass: Any = None) -> Any:
        part = PosMass(pos=pos, mass=mass)
        single = jz.overdensity.spherical_overdensity(
            part, density, queries=centre, boxsize=box, gravity=gravity, cfg=cfg
        )
        return [single.radius, single.mass, single.vmax, single.rmax]

    # Finite differences by large densities need other steps than those by positions.
    def scaled(func: Any) -> Any:
        return lambda pos, centre, logs, *rest: func(pos, centre, density * (1 + logs), *rest)

    args = (pos, centre, np.zeros(2), box, np.array(43.0), *weights)
    check(scaled(found), scaled(plain), args, atol=2e-6, second=kind == "each")


def test_nonexistent_spheres_have_no_derivatives() -> None:
    """Test centres in empty regions, spheres that are too dense up to half the box, and padding."""
    random = np.random.default_rng(3)
    pos = random.random((200, 3)).astype(np.float32)
    pos[190:] = np.nan
    centre = jnp.asarray([[0.5, 0.5, 0.5], [0.1, 0.2, 0.3], [np.nan] * 3], jnp.float32)

    def loss(pos: Any, mass: Any, centre: Any, box: Any) -> Any:
        part, places = PosMass(pos=pos, mass=mass, num=190), Pos(pos=centre, num=2)
        result = jz.overdensity.spherical_overdensity(part, jnp.asarray([1e-3, 1e9]), queries=places, boxsize=box)
        kept = jnp.where(jnp.isnan(result.radius), 0, result.radius + result.mass)
        return kept.sum() + result.rmax.sum() + result.vmax.sum()

    gradients = jax.jit(jax.grad(loss, (0, 1, 2, 3)))(jnp.asarray(pos), jnp.ones(200), centre, jnp.ones(3))
    assert all(bool(jnp.isfinite(gradient).all()) for gradient in gradients)


def test_padding_does_not_affect_derivatives_of_nodes_by_the_box() -> None:
    part = jz.data.pad_particles(PosMass(pos=oracles.uniform(40, 3) + 0.5, mass=np.ones(40, np.float32), num=40), 3)
    cfg = jz.config.TreeConfig(masses=True)

    def loss(box: Any, part: PosMass) -> Any:
        th = jz.tree.zsort_and_tree(part, cfg, boxsize=box)[1]
        return th.flat_lower.sum() + th.flat_center_of_mass.sum()

    padded, plain = (jax.jit(jax.grad(loss))(jnp.ones(3), item) for item in (part, jz.data.squeeze_particles(part)))
    assert np.all(np.asarray(plain) != 0)
    np.testing.assert_allclose(padded, plain, rtol=1e-5)
