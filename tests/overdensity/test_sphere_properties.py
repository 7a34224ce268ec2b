"""Properties of the particles in spheres, compared with sums in NumPy, and with spheres of known properties."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import deal, joined, make, mesh_of, uneven

from jztree import halos
from jztree.data import ParticleData, Pos, PosMass
from jztree.overdensity import SphereProperties, sphere_properties, spherical_overdensity

pytestmark = pytest.mark.emulated

MOVING = ("com_vel", "vel_dispersion", "angular_momentum")
COLUMNS = ("mass", "com_pos", "com_inertia_radius", "max_radius", "shape_tensor", *MOVING)


def brute(
    pos: np.ndarray, vel: np.ndarray, mass: np.ndarray, centre: np.ndarray, radius: np.ndarray, box: Any = None
) -> dict[str, np.ndarray]:
    """Process one sphere after the other: find the particles inside, and average over these in float64."""
    length, dims = oracles.full_box(box, pos.shape[1]), pos.shape[1]
    rows: dict[str, list[Any]] = {name: [] for name in ("count", *COLUMNS)}
    for place, reach in zip(centre.astype(np.float64), radius.astype(np.float64), strict=True):
        apart = pos.astype(np.float64) - place
        apart -= np.where(length > 0, length * np.round(apart / np.where(length > 0, length, 1)), 0)
        inside = (apart**2).sum(axis=1) <= reach**2 if reach > 0 else np.zeros(len(pos), bool)
        x, v, w = apart[inside], vel[inside].astype(np.float64), mass[inside].astype(np.float64)
        rows["count"].append(len(w))
        rows["mass"].append(w.sum())
        if len(w) == 0:
            for name in COLUMNS[1:]:
                shape = {"shape_tensor": (dims, dims), "angular_momentum": (dims * (dims - 1) // 2,)}
                vector = (dims,) if name in ("com_pos", "com_vel") else ()
                rows[name].append(np.zeros(shape.get(name, vector)))
            continue
        weight = w / w.sum() if w.sum() > 0 else np.full(len(w), 1 / len(w))
        mean, bulk = weight @ x, weight @ v
        x, v = x - mean, v - bulk
        com = place + mean
        rows["com_pos"].append(com - np.where(length > 0, length * np.floor(com / np.where(length > 0, length, 1)), 0))
        rows["com_vel"].append(bulk)
        inertia = np.einsum("n,ni,nj->ij", weight, x, x)
        rows["com_inertia_radius"].append(np.sqrt(np.trace(inertia)))
        rows["max_radius"].append(np.sqrt((x**2).sum(axis=1).max()))
        rows["shape_tensor"].append(inertia / np.trace(inertia) if np.trace(inertia) > 0 else 0 * inertia)
        rows["vel_dispersion"].append(np.sqrt(weight @ (v**2).sum(axis=1) / dims))
        pairs = [(1, 2), (2, 0), (0, 1)] if dims == 3 else [(i, j) for i in range(dims) for j in range(i + 1, dims)]
        rows["angular_momentum"].append([weight @ (x[:, i] * v[:, j] - x[:, j] * v[:, i]) for i, j in pairs])
    return {name: np.array(column) for name, column in rows.items()}


def assert_sums(result: SphereProperties, expected: dict[str, np.ndarray], rtol: float) -> None:
    """Assert equality within ``rtol`` of the scale of the sums: lengths and speeds in the sphere."""
    np.testing.assert_array_equal(result.count, expected["count"])
    size, pace = expected["com_inertia_radius"].max(), expected["vel_dispersion"].max()
    scale = {"com_vel": pace, "vel_dispersion": pace, "angular_momentum": size * pace, "com_pos": 1.0, "mass": 0.0}
    for name in COLUMNS:
        if (got := getattr(result, name)) is None:
            assert name == "angular_momentum"
            assert expected[name].shape[1] == 0
            continue
        limit = rtol * scale.get(name, size if "radius" in name else 1.0)
        np.testing.assert_allclose(got, expected[name], rtol=rtol, atol=limit, err_msg=name)


def particles(dims: int, n: int = 1500) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(5)
    pos = oracles.clustered(n, dims)
    return pos, (300 + 100 * rng.standard_normal((n, dims))).astype(np.float32), rng.random(n).astype(np.float32)


@pytest.mark.watched("3-mixed")
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_against_plain_sums(dims: int, kind: str) -> None:
    (pos, vel, mass), box = particles(dims), oracles.box_lengths(kind, dims)
    centre = np.concatenate([pos[:40], oracles.uniform(20, dims), pos[:5] - 1]).astype(np.float32)
    radius = np.random.default_rng(6).choice([0.0, 1e-6, 0.02, 0.1, 0.3, 0.5], len(centre)).astype(np.float32)
    result = sphere_properties(ParticleData(pos=pos, vel=vel, mass=mass), radius, queries=centre, boxsize=box)
    expected = brute(pos, vel, mass, centre, radius, box)
    assert_sums(result, expected, 2e-5 if kind != "open" else 2e-6)
    assert (expected["count"] > 50).sum() > 5
    assert (expected["count"] == 0).any()


def test_float64_and_missing_properties(x64: None) -> None:
    pos, vel, _ = (array.astype(np.float64) for array in particles(3))
    radius = np.full(30, 0.1)
    result = sphere_properties.jit(ParticleData(pos=pos, vel=vel), radius, queries=pos[:30])
    assert_sums(result, brute(pos, vel, np.ones(len(pos)), pos[:30], radius), 1e-12)
    np.testing.assert_array_equal(result.mass, result.count)
    shared = sphere_properties.jit(PosMass(pos=pos, mass=0.25), radius, queries=pos[:30])
    np.testing.assert_array_equal(shared.mass, 0.25 * np.asarray(result.count))
    np.testing.assert_array_equal(shared.shape_tensor, result.shape_tensor)
    assert shared.com_vel is None
    assert shared.vel_dispersion is None
    assert shared.angular_momentum is None


@pytest.mark.long
def test_empty_sphere_is_zero_and_unknown_sphere_is_nan() -> None:
    pos, vel, mass = particles(3)
    radius = np.array([0, -1, np.nan, 0.1, 0.1], np.float32)
    result = sphere_properties(ParticleData(pos=pos, vel=vel, mass=mass), radius, queries=Pos(pos=pos[:5], num=4))
    np.testing.assert_array_equal(np.asarray(result.count)[[0, 1, 2, 4]], [0, 0, -1, 0])
    for name in COLUMNS:
        column = np.asarray(getattr(result, name))
        assert not column[[0, 1, 4]].any(), name
        assert np.isnan(column[2]).all(), name
        assert np.isfinite(column[3]).all(), name
    axes = halos.principal_axes(result)
    assert not np.asarray(axes.lengths)[4].any()


def test_no_particles() -> None:
    none = np.zeros((0, 3), np.float32)
    result = sphere_properties.jit(
        ParticleData(pos=none, vel=none, mass=none[:, 0]), np.ones(4), queries=np.ones((4, 3), np.float32)
    )
    assert not any(np.asarray(getattr(result, name)).any() for name in ("count", *COLUMNS))
    assert result.com_vel.shape == (4, 3)


def test_no_spheres() -> None:
    """An empty catalogue without capacity has none."""
    pos, vel, mass = particles(3)
    result = sphere_properties.jit(ParticleData(pos=pos, vel=vel, mass=mass), mass[:0], queries=pos[:0])
    assert {name: getattr(result, name).shape[0] for name in ("count", *COLUMNS)} == dict.fromkeys(
        ("count", *COLUMNS), 0
    )


@pytest.mark.watched
def test_rotating_sphere() -> None:
    """Solid rotation of a homogeneous ball of radius 1 has J/M = 2/5 omega, independent of the bulk motion."""
    rng = np.random.default_rng(3)
    n, omega = 200_000, np.array([0.0, 0.3, 0.4])
    ball = rng.standard_normal((n, 3))
    ball *= rng.random((n, 1)) ** (1 / 3) / np.linalg.norm(ball, axis=1, keepdims=True)
    far = 3 + 4 * rng.random((n // 4, 3))  # fast particles outside all spheres
    pos = np.concatenate([ball, far]).astype(np.float32)
    bulk = np.array([5, -7, 1])
    vel = bulk + np.concatenate([np.cross(omega, ball), 100 * rng.standard_normal(far.shape)])
    part = ParticleData(pos=pos, vel=vel.astype(np.float32), mass=np.float32(1 / n))
    result = sphere_properties.jit(part, np.array([1.0001], np.float32), queries=np.zeros((1, 3), np.float32))
    assert int(result.count[0]) == n
    np.testing.assert_allclose(result.angular_momentum[0], 0.4 * omega, atol=2e-3)
    np.testing.assert_allclose(result.com_vel[0], bulk, atol=2e-3)
    np.testing.assert_allclose(result.com_inertia_radius[0], np.sqrt(0.6), rtol=2e-3)
    # lambda' = |J| / (sqrt(2) M V R) with G = M = R = 1
    spin = halos.spin(result, result.mass, jnp.ones(1), 1.0)
    np.testing.assert_allclose(spin[0], 0.2 / np.sqrt(2), rtol=5e-3)


@pytest.mark.parametrize("ndev", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_several_devices_agree_with_one(ndev: int) -> None:
    spheres = sphere_properties.smap(mesh_of(ndev), jit=True)
    rng = np.random.default_rng(3)
    for name in ("uniform", "clustered", "all particles equal"):
        pos, counts, part = make(name, ndev)
        mass, vel = rng.random((len(pos), 1)).astype(np.float32), rng.standard_normal(pos.shape).astype(np.float32)
        there = ParticleData(pos=part.pos, mass=deal(mass, counts).pos[..., 0], vel=deal(vel, counts).pos, num=part.num)
        here = ParticleData(pos=pos, mass=mass[:, 0], vel=vel)
        centre = np.concatenate([pos[:60], rng.random((40, 3)).astype(np.float32)])
        radius = rng.choice([0.0, 0.02, 0.2, np.nan], (len(centre), 1)).astype(np.float32)
        dealt = uneven(len(centre), ndev)
        centres = deal(centre, dealt, rows=120)
        radii = deal(radius, dealt, rows=120).pos[..., 0]
        for box in (0.0, 1.0):
            single = sphere_properties.jit(here, radius[:, 0], queries=centre, boxsize=box)
            result = spheres(there, radii, queries=Pos(pos=centres.pos, num=centres.num), boxsize=box)
            np.testing.assert_array_equal(result.ngroups, dealt)
            for field in ("count", *COLUMNS):
                got, want = getattr(result, field), np.asarray(getattr(single, field))
                np.testing.assert_allclose(joined(got, dealt), want, rtol=1e-6, atol=1e-12, err_msg=f"{name}: {field}")
                assert all(not np.asarray(got)[rank, n:].any() for rank, n in enumerate(dealt))


def test_spheres_of_overdensities_hold_the_counted_particles() -> None:
    pos, vel, mass = particles(3, 4000)
    part = ParticleData(pos=pos, vel=vel, mass=mass)
    around = spherical_overdensity.jit(part, 200 * float(mass.sum()), queries=pos[:50], boxsize=1.0)
    result = sphere_properties.jit(part, around.radius, queries=pos[:50], boxsize=1.0)
    np.testing.assert_array_equal(result.count, around.count)
    np.testing.assert_allclose(result.mass, around.mass, rtol=1e-6)
    assert (np.asarray(result.count) > 0).sum() > 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"radius": [1.0, 1.0]}, r"radius is a list; convert it with numpy\.asarray"),
        ({"radius": np.ones(3, np.float32)}, r"radius must have one number per centre, shape \(2,\)"),
        ({"radius": np.array(["a", "b"])}, "radius"),
        ({"queries": np.zeros((2, 2), np.float32)}, "centres are float32 with 2 dimensions"),
        ({"part": ParticleData(pos=np.zeros((9, 3), np.float32), vel=np.ones((9, 2)))}, "vel must have the shape"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], message: str) -> None:
    arguments = {"part": np.zeros((9, 3), np.float32), "queries": np.zeros((2, 3), np.float32), "radius": np.ones(2)}
    with pytest.raises((ValueError, TypeError), match=message):
        sphere_properties.jit(**(arguments | change))


def test_errors_at_run_time() -> None:
    pos, vel, mass = particles(3)
    part, radius = ParticleData(pos=pos, vel=vel, mass=mass), np.full(5, 0.1, np.float32)
    fast = vel.copy()
    fast[7] = np.inf
    heavy = np.full(len(pos), 1e38, np.float32)
    for given, reach, message in (
        (part, np.full(5, 0.6, np.float32), "radius in row 0 is infinite or above half"),
        (ParticleData(pos=pos, vel=fast, mass=mass), radius, "row 7 has a velocity"),
        (ParticleData(pos=pos, vel=vel, mass=heavy), radius, "property of the sphere in row 0 is outside"),
    ):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=message):
            jax.block_until_ready(sphere_properties.jit(given, reach, queries=pos[:5], boxsize=1.0))
    with pytest.raises(ValueError, match="no derivative"):
        jax.grad(lambda x: sphere_properties(part, radius, queries=x).mass.sum())(jnp.asarray(pos[:5]))


def test_radii_whose_squares_underflow_are_refused(x64: None) -> None:
    pos = np.r_[np.zeros((2, 3)), np.random.default_rng(1).normal(size=(50, 3))]
    radius = np.array([1e-200])
    # Squares do not matter if the particles in the sphere coincide.
    assert sphere_properties(pos, radius, queries=pos[:1]).count == 2
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"radii are at least 1\.5e-154"):
        jax.block_until_ready(sphere_properties(pos * 1e-200, radius, queries=pos[:1]))
    result = sphere_properties(pos * 1e-150, np.array([1e-150]), queries=pos[:1])
    assert result.count == (np.linalg.norm(pos, axis=1) <= 1).sum()
