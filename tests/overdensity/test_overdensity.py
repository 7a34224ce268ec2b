"""Spherical overdensities compared with sorting all distances, on one device and on several."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import SETS, deal, even, joined, make, mesh_of, square_mesh, uneven

import jztree as jz
from jztree import CapacityError
from jztree.config import OverdensityConfig
from jztree.data import Pos, PosMass
from jztree.overdensity import SphericalOverdensity, spherical_overdensity
from jztree_utils import ics

pytestmark = [pytest.mark.emulated, pytest.mark.watched]

FIELDS = ("radius", "mass", "count", "vmax", "rmax")
BALL = {1: 2.0, 2: np.pi, 3: 4 * np.pi / 3, 4: np.pi**2 / 2}


def sphere(r: np.ndarray, total: np.ndarray, density: float, minimum: int, edge: float, dims: int) -> tuple[Any, ...]:
    """Return radius, mass and count from the sorted distances up to ``edge``, and the mass up to each."""
    if len(r) < minimum:
        return 0.0, 0.0, 0
    last = np.searchsorted(r, r[minimum - 1], side="right") - 1
    if not total[last] > BALL[dims] * r[last] ** dims * density:
        return 0.0, 0.0, 0
    following = np.append(r[1:], edge)[last:]
    ends = np.flatnonzero(total[last:] <= BALL[dims] * following**dims * density)
    if len(ends) == 0:
        return np.nan, np.nan, -1
    i = last + ends[0]
    return (total[i] / BALL[dims] / density) ** (1 / dims), total[i], i + 1


def brute(
    pos: np.ndarray, mass: np.ndarray | None, centre: np.ndarray, density: Any, box: Any = None, minimum: int = 10
) -> dict[str, np.ndarray]:
    """Compute spheres by sorting the distances of the particles from each centre, in float64."""
    length, dims = oracles.full_box(box, pos.shape[1]), pos.shape[1]
    edge = min(length[length > 0] / 2, default=np.inf)
    weights = np.ones(len(pos)) if mass is None else mass.astype(np.float64)
    spheres, peaks = [], []
    for distance2 in oracles.squared_distances(centre, pos, box):
        order = np.argsort(distance2, kind="stable")
        r, total = np.sqrt(distance2[order]), np.cumsum(weights[order])
        r, total = r[r <= edge], total[r <= edge]
        spheres.append([sphere(r, total, item, minimum, edge, dims) for item in density])
        maximum = max(len(r) if count < 0 else count for _, _, count in spheres[-1])
        inside = np.arange(minimum - 1, max(maximum, minimum - 1))
        inside = inside[r[inside] > 0]
        ratio = total[inside] / r[inside]
        best = int(np.argmax(ratio)) if len(inside) else None
        peaks.append((0.0, 0.0) if best is None else (np.sqrt(ratio[best]), r[inside][best]))
    table, peak = np.array(spheres), np.array(peaks)
    return dict(zip(FIELDS, (table[..., 0], table[..., 1], table[..., 2], peak[:, 0], peak[:, 1]), strict=True))


def assert_spheres(result: SphericalOverdensity, expected: dict[str, np.ndarray], rtol: float = 1e-6) -> None:
    for name, want in expected.items():
        np.testing.assert_allclose(getattr(result, name), want, rtol=rtol, atol=0, err_msg=name)


@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
@pytest.mark.parametrize("dims", [1, 2, 3, 4])
def test_against_sorted_distances(dims: int, kind: str) -> None:
    """Centres are particles, places in clumps and between, places outside the box, and far away."""
    pos, box = oracles.clustered(2500, dims), oracles.box_lengths(kind, dims)
    mass = np.random.default_rng(1).random(len(pos)).astype(np.float32)
    centre = np.concatenate([pos[:40], oracles.uniform(20, dims), pos[:10] + 0.003, pos[:5] - 1, pos[:2] + 37])
    density = np.array([30.0, 3.0, 3e5, 600.0]) * mass.sum()
    result = spherical_overdensity(PosMass(pos=pos, mass=mass), density, queries=centre.astype(np.float32), boxsize=box)
    expected = brute(pos, mass, centre.astype(np.float32), density, box)
    # Distances of wrapped positions have the precision of the box.
    assert_spheres(result, expected, rtol=1e-5)
    assert (expected["count"] > 20).sum() > 20
    assert (expected["count"] == 0).any()


@pytest.mark.parametrize("width", [1e-8, 1e-4])
def test_spheres_around_a_corner_have_exact_radii(x64: None, width: float) -> None:
    """Rounding to the precision of the box would change distances by up to 1e-8 of their length."""
    outside = np.random.default_rng(3).standard_normal((200, 3)) * width
    density = np.array([10.0, 300.0]) / width**3
    for pos in (outside, np.where(outside < 0, 1 + outside, outside)):
        result = spherical_overdensity(PosMass(pos=pos), density, queries=pos[:20], boxsize=1.0)
        expected = brute(pos, None, pos[:20], density, 1.0)
        assert (expected["count"] > 0).any()
        assert_spheres(result, expected, rtol=1e-13)


@pytest.mark.long
def test_float64_and_masses(x64: None) -> None:
    pos = oracles.clustered(2000, 3, np.float64)
    density = np.array([50.0, 1e4]) * len(pos)
    for mass, given in ((np.ones(len(pos)), None), (np.full(len(pos), 0.25), 0.25), (np.zeros(len(pos)), 0.0)):
        result = spherical_overdensity(
            PosMass(pos=pos, mass=given), density * mass[0] + 1e-300, queries=pos[:50], gravity=4.0
        )
        expected = brute(pos, mass, pos[:50], density * mass[0] + 1e-300)
        expected["vmax"] *= 2
        assert_spheres(result, expected, rtol=1e-13)


@pytest.mark.long
def test_groups_of_the_sample() -> None:
    part, box = ics.cosmo_3d_sample()
    _, cata = jz.fof.fof_and_catalogue(Pos(pos=part.pos), 0.2 * box / len(part.pos) ** (1 / 3), boxsize=box)
    mean = len(part.pos) / box**3
    centre = Pos(pos=cata.com_pos, num=cata.ngroups)
    density = np.array([200 / 0.3, 200.0, 500 / 0.3]) * mean
    result = spherical_overdensity.jit(Pos(pos=part.pos), density, queries=centre, boxsize=box)
    used, step = int(cata.ngroups), 7  # sorting all distances takes long
    expected = brute(np.asarray(part.pos), None, np.asarray(cata.com_pos)[:used:step], density, box)
    assert_spheres(jax.tree.map(lambda rows: rows[:used:step], result), expected, rtol=1e-5)
    assert not any(np.asarray(getattr(result, name))[used:].any() for name in FIELDS)
    # Most of a large group is within the sphere of 200 times the mean density.
    largest = int(np.argmax(np.asarray(cata.count)))
    assert 0.6 < np.asarray(result.count)[largest, 1] / np.asarray(cata.count)[largest] < 1.2


def test_ties_and_coincident_central_particles() -> None:
    """Particles are on rings at integer distances: 3 in the centre, and 4 on each other ring."""
    rings = [(0.0, 3)] + [(float(r), 4) for r in range(1, 6)]
    pos = np.concatenate([np.c_[[r] * n, [0.0] * n].astype(np.float32) for r, n in rings])
    # 3 particles at 0 are infinitely dense; 7 within 1 have density 7 / pi, 11 within 2 have 11 / (4 pi).
    density = np.array([7.1 / np.pi, 6.9 / np.pi, 7.1 / (4 * np.pi)])
    expected = {1: [3, 3, 7], 3: [3, 3, 7], 4: [0, 7, 7], 7: [0, 7, 7], 8: [0, 0, 11], 24: [0, 0, 0]}
    for minimum, counts in expected.items():
        centre, cfg = np.zeros((1, 2), np.float32), OverdensityConfig(npart_min=minimum)
        result = spherical_overdensity(pos, density, queries=centre, cfg=cfg)
        np.testing.assert_array_equal(result.count[0], counts)
        assert_spheres(result, brute(pos, None, centre, density, minimum=minimum))


def test_box_that_is_too_dense_everywhere_and_scalar_density() -> None:
    pos = oracles.uniform(1500, 3)
    result = spherical_overdensity(pos, 750.0, queries=pos[:7], boxsize=1.0)
    assert result.radius.shape == (7,)
    assert np.isnan(result.radius).all()
    assert np.isnan(result.mass).all()
    np.testing.assert_array_equal(result.count, -1)
    assert (np.asarray(result.vmax) > 0).all()


@pytest.mark.parametrize("alike", [True, False])
def test_more_particles_at_one_distance_than_lists_hold(alike: bool) -> None:
    """GPUs divide lists that overflow by distance, then by mass, and only count identical particles."""
    rng = np.random.default_rng(4)
    inner, ring, outer = np.linspace(-0.249, 0.249, 3500), rng.choice([-0.25, 0.25], 8000), rng.uniform(-1, 1, 500)
    pos = np.concatenate([inner, ring, outer]).astype(np.float32)[:, None]
    mass = np.ones(len(pos), np.float32) if alike else rng.uniform(0.9, 1.1, len(pos)).astype(np.float32)
    centre, density = np.zeros((1, 1), np.float32), np.array([2.5, 0.5, 0.4]) * mass.sum()
    result = spherical_overdensity(PosMass(pos=pos, mass=mass), density, queries=centre)
    expected = brute(pos, mass, centre, density)
    assert_spheres(result, expected)
    assert list(expected["count"][0] > 8000) == [False, True, True]


def test_index() -> None:
    pos, mass = oracles.clustered(2000, 3), np.random.default_rng(2).random(2000).astype(np.float32)
    part = PosMass(pos=np.r_[pos, pos], mass=np.r_[mass, -mass], num=2000)
    density = np.array([100.0, 9.0]) * mass.sum()
    result = spherical_overdensity.jit(jz.build_index(part, 1.0), density, queries=pos[:30])
    assert_spheres(result, brute(pos, mass, pos[:30], density, 1.0), rtol=1e-5)


def test_bits_do_not_depend_on_threads(set_threads: Any) -> None:
    pos, mass = oracles.clustered(20000, 3), np.random.default_rng(2).random(20000).astype(np.float32)
    density = np.array([100.0, 9.0, 2000.0]) * mass.sum()
    part = PosMass(pos=pos, mass=mass)
    result = []
    for threads in (1, None):
        set_threads(threads)
        result.append(spherical_overdensity.jit(part, density, queries=pos[:500], boxsize=1.0))
    for name in FIELDS:
        np.testing.assert_array_equal(getattr(result[0], name), getattr(result[1], name))


@pytest.mark.parametrize("ndev", [3, pytest.param(1, marks=pytest.mark.slow), pytest.param(8, marks=pytest.mark.slow)])
def test_several_devices_agree_bitwise_with_one(ndev: int) -> None:
    spheres = spherical_overdensity.smap(mesh_of(ndev), jit=True)
    rng = np.random.default_rng(3)
    for name in SETS:
        pos, counts, part = make(name, ndev)
        mass = rng.random((len(pos), 1)).astype(np.float32)
        part.mass = deal(mass, counts).pos[..., 0]
        alone = deal(pos, np.array([len(pos)]))
        alone = PosMass(pos=alone.pos[0], mass=deal(mass, np.array([len(pos)])).pos[0, :, 0], num=len(pos))
        centre = np.concatenate([pos[:60], rng.random((40, 3)).astype(np.float32)])
        stacked = uneven(len(centre), ndev)
        there = deal(centre, stacked, rows=120)
        here = Pos(pos=deal(centre, np.array([len(centre)]), rows=120).pos[0], num=len(centre))
        density = np.array([3000.0, 2.0, 20.0]) * len(pos) / 2
        for box in (0.0, 1.0):
            single = spherical_overdensity.jit(alone, density, queries=here, boxsize=box)
            result = spheres(part, density, queries=Pos(pos=there.pos, num=there.num), boxsize=box)
            for field in FIELDS:
                got = getattr(result, field)
                np.testing.assert_array_equal(
                    joined(got, stacked), getattr(single, field)[: len(centre)], f"{name}, box {box}: {field}"
                )
                assert all(not np.asarray(got)[rank, n:].any() for rank, n in enumerate(stacked))


@pytest.mark.parametrize("far", [1, 7, 40])
def test_several_devices_agree_if_half_a_box_has_too_few_particles(far: int) -> None:
    """The nearest ten are farther away than half of the short side, so no rank ever has all ten."""
    rng = np.random.default_rng(far)
    pos = rng.normal(0, 0.1, (5 + far, 3)).astype(np.float32)
    pos[5:, 2] += 7
    centre = pos[[0, 2, 5]]
    for box in ((0, 8, 0), (30, 8, 30)):
        single = spherical_overdensity.jit(pos, 0.05, queries=centre, boxsize=box)
        for ndev in (2, 4):
            mesh, counts = mesh_of(ndev), uneven(3, ndev)
            part = deal(pos, uneven(len(pos), ndev))
            result = spherical_overdensity.smap(mesh, jit=True)(part, 0.05, queries=deal(centre, counts), boxsize=box)
            for field in FIELDS:
                np.testing.assert_array_equal(joined(getattr(result, field), counts), getattr(single, field), field)


def test_lengths_that_xla_flushes_to_zero() -> None:
    pos = np.random.default_rng(0).uniform(0, 6e-39, (10, 2)).astype(np.float32)
    single = spherical_overdensity.jit(pos, 1e25, queries=pos)
    counts = uneven(10, 3)
    part = deal(pos, counts)
    result = spherical_overdensity.smap(mesh_of(3), jit=True)(part, 1e25, queries=part)
    assert (np.asarray(single.count) == 10).all()
    for field in FIELDS:
        np.testing.assert_array_equal(joined(getattr(result, field), counts), getattr(single, field), field)


@pytest.mark.slow
def test_ghosts_that_exceed_the_capacity_raise() -> None:
    pos = make("uniform", 4)[0]
    part = deal(pos, even(1200, 4), rows=300)
    spheres = spherical_overdensity.smap(square_mesh(), jit=True)
    with pytest.raises(CapacityError, match="and ghosts, but has capacity for 350; set ghost_rows"):
        spheres(Pos(pos=part.pos), part.pos[:, :50], 200.0, cfg=OverdensityConfig(ghost_rows=0))


def test_one_compilation_for_all_densities(count_compilations: Any) -> None:
    pos = oracles.uniform(600, 3)
    spherical_overdensity.jit(pos, [900.0, 3000.0], queries=pos[:5], boxsize=1.0, gravity=2.0)
    with count_compilations() as lines:
        spherical_overdensity.jit(pos, [1900.0, 700.0], queries=pos[:5], boxsize=1.3, gravity=4.3e-9)
    assert not [line for line in lines if "overdensity" in line]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"density": [1.0, -2.0]}, "positive and finite"),
        ({"density": []}, "at least one number"),
        ({"queries": np.zeros((2, 2), np.float32)}, "centres are float32 with 2 dimensions"),
        ({"part": PosMass(pos=np.zeros((9, 3), np.float32), mass=np.ones(5))}, "one number, or one per particle"),
    ],
)
def test_wrong_arguments(change: dict[str, Any], message: str) -> None:
    arguments = {"part": np.zeros((9, 3), np.float32), "queries": np.zeros((2, 3), np.float32), "density": 1.0}
    with pytest.raises(ValueError, match=message) as error:
        spherical_overdensity.jit(**(arguments | change))
    assert oracles.one_sentence(error)


def test_errors_at_run_time() -> None:
    pos = oracles.uniform(50, 3)
    mass = np.ones(50, np.float32)
    mass[7] = -1
    bad = pos.copy()
    bad[2] = np.nan
    for part, centre, density, message in (
        (PosMass(pos=pos, mass=mass), pos, 1.0, "row 7 has a mass that is negative"),
        (pos, bad, 1.0, "row 2 of the centres is NaN"),
        (bad, pos, 1.0, "row 2 of the positions is NaN"),
    ):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=message):
            jax.block_until_ready(spherical_overdensity.jit(part, density, queries=centre))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="a density is not positive"):
        jax.block_until_ready(jax.jit(lambda x: spherical_overdensity(pos, x, queries=pos))(jnp.float32(-1)))
