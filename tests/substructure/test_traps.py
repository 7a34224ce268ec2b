"""Haloes with known answers, from reports about other finders of subhaloes."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jztree as jz
from jztree.data import ParticleData
from jztree.substructure import _phase_space
from jztree.substructure._candidates import Candidates
from substructure.haloes import nfw, placed, plummer
from substructure.subfind import World, energies_of

SOFTENING = 0.003
ROWS = 4400  # of every set but the largest, with padding, so that the functions compile once for all sets
CANDIDATES = pytest.mark.parametrize("candidates", ["density", "phase_space"])


def subhaloes_of(
    pos: np.ndarray, vel: np.ndarray, mass: Any, rlink: float = 0.5, seed: int = 0, **options: Any
) -> tuple[Any, jz.Subhaloes, np.ndarray]:
    """Return particles in group order, their subhaloes, and the subhalo of each particle in the given order."""
    n, box = len(pos), options.setdefault("boxsize", 0.0)
    order = np.random.default_rng(seed).permutation(n)
    mass = np.broadcast_to(np.asarray(mass, np.float32), n)
    padding = max(ROWS - n, 0)

    def padded(column: np.ndarray) -> np.ndarray:
        return np.concatenate([column[order], np.full((padding, *column.shape[1:]), np.nan)]).astype(np.float32)

    part = ParticleData(
        pos=padded(pos % box if box else pos),
        vel=padded(vel),
        mass=padded(mass),
        id=np.pad(order, (0, padding)).astype(np.int32),
        num=n,
    )
    grouped, cata = jz.friends_of_friends.jit(part, rlink, boxsize=box)
    result = jz.subhaloes.jit(grouped, cata, 1.0, softening=SOFTENING, **options)
    assert (np.asarray(result.subhalo)[n:] == -1).all()
    label = np.full(n, -2)
    label[np.asarray(grouped.id)[:n]] = np.asarray(result.subhalo)[:n]
    return grouped, result, label


def share(label: np.ndarray, members: np.ndarray) -> tuple[int, float, float]:
    """Return the subhalo with most members, the fraction of members there, and their fraction of the subhalo."""
    numbers, counts = np.unique(label[members & (label >= 0)], return_counts=True)
    number = int(numbers[counts.argmax()])
    return number, counts.max() / members.sum(), counts.max() / (label == number).sum()


@pytest.mark.parametrize("n", [3000, pytest.param(100_000, marks=pytest.mark.long)])
def test_all_particles_of_an_isolated_sphere_are_bound(n: int) -> None:
    pos, vel = plummer(n, 1.0, 0.1, 3)
    _, result, label = subhaloes_of(pos, vel + np.array([100.0, 0, 0]), 1 / n)
    table = result.columns()
    assert table["count"].max() > 0.999 * n
    assert (label == 0).sum() == table["count"][0]
    np.testing.assert_allclose(table["vel"][0], [100, 0, 0], atol=0.3)
    # The radius of half the mass of a Plummer sphere is 1.305 of its size, and vmax^2 = 0.3849 M / size at sqrt(2).
    np.testing.assert_allclose(table["half_mass_radius"][0], 0.13, rtol=0.05)
    np.testing.assert_allclose(table["vmax"][0], np.sqrt(3.849), rtol=0.03)
    np.testing.assert_allclose(table["rmax"][0], 0.1414, rtol=0.25)


@pytest.mark.parametrize(
    ("place", "motion"),
    [
        pytest.param((0.5, 0, 0), (0, 0, 0), id="at rest"),
        pytest.param((0.3, 0, 0), (0, 2.0, 0), id="at pericentre"),
        pytest.param((0.18, 0, 0), (0, 2.2, 0), id="near the centre"),
    ],
)
@pytest.mark.parametrize("corner", [0.5, 0.99])
def test_satellite_of_a_host_is_recovered(place: Any, motion: Any, corner: float) -> None:
    """A satellite with 6 % of the mass of the host, in the middle of a box and across its faces."""
    host, satellite = nfw(4000, 1.0, 1.0, 8, 1), plummer(250, 0.0625, 0.01, 2, 4.0)
    pos, vel, halo = placed((host, (0, 0, 0), (0, 0, 0)), (satellite, place, motion))
    _, result, label = subhaloes_of(pos + 4 * corner, vel, 0.00025, boxsize=4.0)
    number, recovered, purity = share(label, halo == 1)
    assert number > 0
    table = result.columns()
    assert table["depth"][number] == 1
    assert table["parent"][number] == 0
    assert recovered > 0.8
    assert purity > 0.8
    assert (label == 0).sum() > 0.9 * 4000
    offset = table["pos"][number] - (np.array(place) + 4 * corner)
    assert np.linalg.norm(offset - 4 * np.round(offset / 4)) < 0.01
    np.testing.assert_allclose(table["vel"][number], motion, atol=0.5)


@pytest.mark.parametrize("corner", [0.5, 0.99])
@pytest.mark.parametrize("place", [(0.05, 0, 0), (0.0, -0.08, 0.02)])
def test_satellite_that_crosses_the_centre_is_recovered_in_phase_space(place: Any, corner: float) -> None:
    """The density has one peak. In the frame of the satellite's core, no particle of the host is bound."""
    host, satellite = nfw(4000, 1.0, 1.0, 8, 1), plummer(250, 0.0625, 0.01, 2, 4.0)
    pos, vel, halo = placed((host, (0, 0, 0), (0, 0, 0)), (satellite, place, (0, 2.8, 0)))
    options = {"boxsize": 4.0, "candidates": "phase_space"}
    _, result, label = subhaloes_of(pos + 4 * corner, vel, 0.00025, **options)
    number, recovered, purity = share(label, halo == 1)
    assert result.columns()["parent"][number] == 0
    assert recovered > 0.95
    assert purity > 0.95
    assert (label == 0).sum() > 0.95 * 4000
    np.testing.assert_allclose(result.columns()["vel"][number], [0, 2.8, 0], atol=0.5)


def test_satellite_at_the_centre_is_the_central_subhalo() -> None:
    """A satellite at rest at the centre has the same velocity as the host, so its particles stay bound to the host."""
    host, satellite = nfw(3000, 1.0, 1.0, 8, 1), plummer(200, 0.0625, 0.01, 2, 4.0)
    pos, vel, halo = placed((host, (0, 0, 0), (0, 0, 0)), (satellite, (0, 0, 0), (0, 0, 0)))
    _, _, label = subhaloes_of(pos, vel, 1 / 3000)
    assert (label[halo == 1] >= 0).all()
    assert share(label, halo == 0)[:2] > (-1, 0.95)


@pytest.mark.parametrize(("candidates", "fraction"), [("density", 0.9), ("phase_space", 0.8)])
def test_core_of_a_stripped_satellite_survives(candidates: str, fraction: float) -> None:
    """Most of the particles near a satellite are unbound ones, with the velocity of the host."""
    random = np.random.default_rng(5)
    core = plummer(60, 0.02, 0.003, 2, 4.0)
    stripped = random.normal(0, 0.05, (300, 3)), random.normal(0, 1.0, (300, 3))
    host = nfw(3000, 1.0, 1.0, 8, 1)
    pos, vel, halo = placed(
        (host, (0, 0, 0), (0, 0, 0)), (core, (0.4, 0, 0), (0, 3, 0)), (stripped, (0.4, 0, 0), (0, 0, 0))
    )
    _, result, label = subhaloes_of(pos, vel, 1 / 3000, candidates=candidates)
    number, recovered, purity = share(label, halo == 1)
    assert number > 0
    assert recovered > fraction
    assert purity > 0.9
    np.testing.assert_allclose(result.columns()["vel"][number], [0, 3, 0], atol=0.6)


@CANDIDATES
@pytest.mark.parametrize("distance", [0.4, 0.15])
def test_two_equal_haloes_that_pass_keep_their_particles(distance: float, candidates: str) -> None:
    first_halo, second_halo = plummer(1000, 1.0, 0.05, 1, 4.0), plummer(1000, 1.0, 0.05, 2, 4.0)
    pos, vel, halo = placed((first_halo, (0, 0, 0), (4, 0, 0)), (second_halo, (distance, 0.05, 0), (-4, 0, 0)))
    _, _, label = subhaloes_of(pos, vel, 1e-3, candidates=candidates)
    first, second = share(label, halo == 0), share(label, halo == 1)
    assert {first[0], second[0]} == {0, 1}
    assert min(first[1], second[1]) > 0.5
    assert min(first[2], second[2]) > 0.95


@CANDIDATES
def test_stream_is_part_of_the_host(candidates: str) -> None:
    """Particles along an orbit, which are far denser than the host around them, are not bound to each other."""
    random = np.random.default_rng(5)
    angle = random.uniform(0, 1.5, 400)
    ring = np.c_[np.cos(angle), np.sin(angle), 0 * angle]
    stream = 0.5 * ring + random.normal(0, 0.004, (400, 3)), 1.2 * np.c_[-ring[:, 1], ring[:, 0], 0 * angle]
    pos, vel, halo = placed((nfw(3000, 1.0, 1.0, 8, 1), (0, 0, 0), (0, 0, 0)), (stream, (0, 0, 0), (0, 0, 0)))
    _, _, label = subhaloes_of(pos, vel, np.where(halo == 0, 1 / 3000, 1e-7), candidates=candidates)
    assert (label[halo == 1] == 0).mean() > 0.95


def test_each_particle_is_bound_in_the_final_frame_of_one_subhalo() -> None:
    """The energies of the final members, with sums over all pairs, in the frame of the returned core."""
    host = nfw(2500, 1.0, 1.0, 8, 1)
    satellites = [(plummer(100, 0.04, 0.01, i, 4.0), (0.2 * i, 0.1, 0), (0, 2.0 - i, 0.3)) for i in range(1, 4)]
    pos, vel, _ = placed((host, (0, 0, 0), (0, 0, 0)), *satellites)
    grouped, result, _ = subhaloes_of(pos, vel, 1 / 2500, hubble=0.3, scale_factor=0.5)
    columns = [np.asarray(column)[: len(pos)] for column in (grouped.pos, grouped.vel, grouped.mass)]
    world = World(*columns, np.zeros(0), 1.0, SOFTENING, hubble=0.3, scale_factor=0.5)
    labels, table = np.asarray(result.subhalo), result.columns()
    assert len(table["count"]) >= 3
    for number, count in enumerate(table["count"]):
        rows = np.flatnonzero(labels == number)
        assert len(rows) == count >= 20
        energy, centre = energies_of(world, rows, table["vel"][number])
        np.testing.assert_array_equal(np.asarray(grouped.pos)[centre], table["pos"][number])
        assert energy.max() < 2e-3 * np.abs(energy).max()


def test_order_of_the_particles_does_not_matter() -> None:
    host, satellite = nfw(1500, 1.0, 1.0, 8, 1), plummer(150, 0.1, 0.01, 2, 4.0)
    pos, vel, _ = placed((host, (0, 0, 0), (0, 0, 0)), (satellite, (0.4, 0, 0), (0, 1, 0)))
    _, first, label = subhaloes_of(pos, vel, 1 / 1500)
    _, second, shuffled = subhaloes_of(pos, vel, 1 / 1500, seed=1)
    np.testing.assert_array_equal(label, shuffled)
    for name, column in first.columns().items():
        np.testing.assert_array_equal(column, second.columns()[name])


def test_hot_gas_is_not_bound() -> None:
    pos, vel = plummer(600, 1.0, 0.1, 3, 4.0)
    types = np.arange(600) % 3
    part = ParticleData(pos=pos.astype(np.float32), vel=vel.astype(np.float32), mass=np.float32(1 / 600), id=types)
    grouped, cata = jz.friends_of_friends.jit(part, 0.5)
    heat = jnp.where(grouped.id == 0, 100.0, 0.0)
    result = jz.subhaloes.jit(
        grouped, cata, 1.0, softening=SOFTENING, internal_energy=heat, types=grouped.id, num_types=4
    )
    table = result.columns()
    np.testing.assert_array_equal(table["count_by_type"][0, [0, 3]], [0, 0])
    assert (table["count_by_type"][0, 1:3] > 190).all()
    assert (np.asarray(result.subhalo)[np.asarray(grouped.id) == 0] == -1).all()


def test_flow_of_hubble_unbinds_far_particles() -> None:
    pos, vel = plummer(500, 1.0, 0.1, 3, 8.0)
    slow = subhaloes_of(pos, 0 * vel, 1 / 500)[1].columns()["count"][0]
    fast = subhaloes_of(pos, 0 * vel, 1 / 500, hubble=6.0)[1].columns()["count"][0]
    assert slow == 500
    assert 300 < fast < 490
    early = subhaloes_of(pos, 0 * vel, 1 / 500, hubble=6.0, tolerance=0.9)[1].columns()["count"][0]
    assert fast < early < 500


@pytest.mark.fast
@pytest.mark.parametrize(("separation", "is_separate"), [(0.5, True), (0.01, False)])
@pytest.mark.parametrize("largest", [1000, 46_000, 50_000, 66_000])
def test_pieces_of_any_size_join_within_their_standard_errors(
    largest: int, separation: float, is_separate: bool
) -> None:
    """The square of 46,341 exceeds int32. Both pieces are lines of two places in phase space."""
    count, free, capacity = 100, 10, 4
    signs = np.resize([1.0, -1.0], largest + count + free)
    piece = np.repeat([0, 1, -1], [largest, count, free]).astype(np.int32)
    pos = np.where(piece == 1, separation + 0.01 * signs, signs)
    coordinates = np.stack([pos, 0 * pos, 0 * pos], axis=1).astype(np.float32)
    numbers = np.arange(capacity, dtype=np.int32)
    splits = jnp.asarray(np.where(numbers == 0, 0, len(piece)), jnp.int32)
    candidates = Candidates(*(jnp.zeros(1, jnp.int32),) * 3)
    rows = jnp.arange(len(piece), dtype=jnp.int32)
    sets = _phase_space._Sets(rows, splits, jnp.asarray(numbers[:-1]), candidates, jnp.int32(1))
    pieces = _phase_space._Pieces(jnp.asarray(piece), jnp.asarray([0, 0, 3], jnp.int32))
    result = jax.jit(_phase_space._without_noise)(pieces, jnp.asarray(coordinates), sets)
    np.testing.assert_array_equal(result.of_place, piece if is_separate else np.minimum(piece, 0))
