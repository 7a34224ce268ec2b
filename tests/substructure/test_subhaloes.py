"""Bound subhaloes, compared with SUBFIND in plain NumPy, on one device and on several."""

import dataclasses
from typing import Any

import jax
import numpy as np
import oracles
import pytest
from devices import mesh_of

import jztree as jz
from jztree.comm import _counts
from jztree.data import ParticleData, expand_particles
from substructure.haloes import placed, plummer
from substructure.rockstar import phase_space_candidates_of
from substructure.subfind import SlowSubhaloes, World, slow_subhaloes

pytestmark = pytest.mark.emulated
SOFTENING = 0.01


def nested_haloes(seed: int = 0, n: int = 500) -> ParticleData:
    """Return a host with satellites (the largest has one itself), a second group, and particles in no group."""
    random = np.random.default_rng(seed)
    pos, vel, _ = placed(
        (plummer(n, 1.0, 0.1, seed, 4.0), (0.5, 0.5, 0.5), (0.3, 0.0, 0.0)),
        (plummer(n // 4, 0.2, 0.03, seed + 1, 3.0), (0.72, 0.5, 0.5), (0.3, 1.0, 0.0)),
        (plummer(n // 10, 0.05, 0.01, seed + 2, 3.0), (0.77, 0.53, 0.5), (0.3, 1.0, 0.5)),
        (plummer(n // 8, 0.1, 0.02, seed + 3, 3.0), (0.45, 0.35, 0.5), (0.0, -1.0, 1.0)),
        (plummer(n // 5, 0.2, 0.03, seed + 4, 3.0), (0.95, 0.1, 0.05), (0.0, 0.0, 9.0)),
        ((random.random((30, 3)), random.standard_normal((30, 3))), (0, 0, 0), (0, 0, 0)),
    )
    order = random.permutation(len(pos))
    mass = np.full(len(pos), 1.6 / n, np.float32) * random.uniform(0.9, 1.1, len(pos)).astype(np.float32)
    return ParticleData(
        pos=(pos[order] % 1).astype(np.float32),
        vel=vel[order].astype(np.float32),
        mass=mass,
        id=np.arange(len(pos), dtype=np.int32),
    )


def oracle(grouped: Any, cata: Any, **physics: Any) -> SlowSubhaloes:
    density = np.asarray(jz.sph_density.jit(grouped, 32, boxsize=physics.get("box") or None))
    pos, vel, mass = (np.asarray(column) for column in (grouped.pos, grouped.vel, grouped.mass))
    groups = int(cata.ngroups)
    world = World(pos, vel, np.broadcast_to(mass, len(pos)), density, **physics)
    return slow_subhaloes(world, np.asarray(cata.offset)[:groups], np.asarray(cata.count)[:groups])


def assert_same(result: jz.Subhaloes, expected: SlowSubhaloes) -> None:
    table = result.columns()
    labels, energy = np.asarray(result.subhalo), np.asarray(result.energy)
    np.testing.assert_array_equal(table["count"], [len(rows) for rows in expected.rows])
    for number, (rows, energies) in enumerate(zip(expected.rows, expected.energies, strict=True)):
        np.testing.assert_array_equal(np.flatnonzero(labels == number), rows)
        scale = np.abs(energies).max()
        np.testing.assert_allclose(energy[rows], energies, atol=2e-3 * scale)
        assert table["most_bound"][number] in rows
        np.testing.assert_allclose(energies[list(rows).index(table["most_bound"][number])], energies.min(), rtol=2e-3)
    for name in ("group", "parent", "depth"):
        np.testing.assert_array_equal(table[name], getattr(expected, name))
    np.testing.assert_allclose(table["vel"], np.reshape(expected.vel, table["vel"].shape), atol=1e-5)


@pytest.mark.parametrize("candidates", ["density", "phase_space"])
@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_subhaloes_against_plain_finder(seed: int, candidates: str) -> None:
    part = nested_haloes(10 * seed)
    grouped, cata = jz.friends_of_friends.jit(part, 0.05, boxsize=1.0)
    result = jz.subhaloes.jit(grouped, cata, 1.0, softening=SOFTENING, boxsize=1.0, candidates=candidates)
    function = phase_space_candidates_of if candidates == "phase_space" else None
    expected = oracle(grouped, cata, gravity=1.0, softening=SOFTENING, box=1.0, candidates=function)
    assert max(expected.depth) >= 1
    assert_same(result, expected)


@pytest.mark.parametrize(
    ("dtype", "dims"), [(np.float32, 2), (np.float64, 3), pytest.param(np.float32, 1, marks=pytest.mark.slow)]
)
def test_subhaloes_in_other_dimensions_and_dtypes(dtype: Any, dims: int, request: Any) -> None:
    if dtype == np.float64:
        request.getfixturevalue("x64")
    part = nested_haloes(5, 400)
    moved = ParticleData(pos=part.pos[:, :dims].astype(dtype), vel=part.vel[:, :dims].astype(dtype), id=part.id)
    grouped, cata = jz.friends_of_friends.jit(moved, 0.02 if dims < 3 else 0.05)
    result = jz.subhaloes.jit(grouped, cata, 0.004, softening=SOFTENING)
    grouped.mass = 1.0
    expected = oracle(grouped, cata, gravity=0.004, softening=SOFTENING)
    assert len(expected.rows) > 1
    assert_same(result, expected)


def by_id(grouped: Any, result: jz.Subhaloes) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Return the table, the subhalo and the energy of each particle by id, with subhaloes in the order of their ids."""
    counts = np.atleast_1d(np.asarray(grouped.num))
    used = (np.arange(np.shape(grouped.id)[-1]) < counts[:, None]).reshape(-1)
    ids, label, energy = (np.asarray(c).reshape(-1)[used] for c in (grouped.id, result.subhalo, result.energy))
    table = dict(result.columns())
    most_bound = ids[table["most_bound"]]
    order, by_particle = np.argsort(most_bound), np.argsort(ids)
    number = np.append(np.argsort(order), -1)
    table |= {"most_bound": most_bound, "parent": number[table["parent"]]}
    del table["group"]
    return {k: v[order] for k, v in table.items()}, number[label[by_particle]], energy[by_particle]


@pytest.mark.parametrize("ndev", [4, pytest.param(8, marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    ("rlink", "candidates"),
    [pytest.param(0.05, "density", marks=pytest.mark.slow), (0.5, "density"), (0.05, "phase_space")],
)
def test_several_devices_agree_with_one_bit_for_bit(ndev: int, rlink: float, candidates: str) -> None:
    """Test groups within a device and across devices, and a group of almost all particles."""
    part = nested_haloes(3, 1200)
    heat, options = part.id % 7 / 100, {"softening": SOFTENING, "boxsize": 1.0, "hubble": 0.1, "num_types": 3}
    options["candidates"] = candidates
    part.num = len(part.pos)
    grouped, cata = jz.friends_of_friends.jit(part, rlink, boxsize=1.0)
    expected = by_id(
        grouped,
        jz.subhaloes.jit(
            grouped, cata, 1.0, internal_energy=heat[grouped.id], types=np.asarray(grouped.id) % 3, **options
        ),
    )
    mesh = mesh_of(ndev)
    grouped, cata = jz.friends_of_friends.smap(mesh, jit=True)(expand_particles(part, ndev), rlink, boxsize=1.0)
    ids = np.clip(grouped.id, 0, len(heat) - 1)
    result = jz.subhaloes.smap(mesh, jit=True)(grouped, cata, 1.0, internal_energy=heat[ids], types=ids % 3, **options)
    assert len(expected[0]["count"]) >= 4
    table, label, energy = by_id(grouped, result)
    np.testing.assert_array_equal(label, expected[1])
    np.testing.assert_array_equal(energy, expected[2])
    for name, column in expected[0].items():
        np.testing.assert_array_equal(table[name], column, err_msg=name)


@pytest.mark.parametrize(("n", "ndev"), [(8000, 4), (400, 2), (3, 4)])
def test_equal_densities_over_several_devices_are_in_the_order_of_rows(n: int, ndev: int) -> None:
    """Test a dense group and many adjacent groups on a lattice, and devices without particles."""
    random = np.random.default_rng(n)
    concentrated = random.normal([44, 12, 12], 3, (n // 2, 3)).round()
    pos = np.concatenate([concentrated, random.integers(0, 24, (n - n // 2, 3))]).astype(np.float32)
    part = ParticleData(pos=pos, vel=np.zeros((n, 3), np.float32), mass=1.0, id=np.arange(n, dtype=np.int32), num=n)
    options = {"softening": 1.0, "min_bound": 2}
    grouped, cata = jz.friends_of_friends.jit(part, 1.1, npart_min=2)
    expected = by_id(grouped, jz.subhaloes.jit(grouped, cata, 1.0, **options))
    mesh = mesh_of(ndev)
    grouped, cata = jz.friends_of_friends.smap(mesh, jit=True)(expand_particles(part, ndev), 1.1, npart_min=2)
    result = by_id(grouped, jz.subhaloes.smap(mesh, jit=True)(grouped, cata, 1.0, **options))
    for column, expected_column in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(column, expected_column)


def test_group_rows_that_are_too_few_raise() -> None:
    part, mesh = nested_haloes(3, 1200), mesh_of(4)
    part.num = len(part.pos)
    grouped, cata = jz.friends_of_friends.smap(mesh, jit=True)(expand_particles(part, 4), 0.05, boxsize=1.0)
    with pytest.raises(jz.CapacityError, match="group_rows"):
        jz.subhaloes.smap(mesh, jit=True)(grouped, cata, 1.0, boxsize=1.0, group_rows=10)


@pytest.mark.parametrize("candidates", ["density", "phase_space"])
def test_rows_that_exceed_32_bits_raise(candidates: str, monkeypatch: pytest.MonkeyPatch) -> None:
    stacked = expand_particles(nested_haloes(n=60), 2)
    grouped, cata = jz.friends_of_friends.smap(mesh_of(2), jit=True)(stacked, 0.1)
    monkeypatch.setattr(_counts.Wide, "exceeds_int32", lambda count: count.high >= 0)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"less than 2\*\*31 particles over all devices"):
        jax.block_until_ready(jz.subhaloes.smap(mesh_of(2), jit=True)(grouped, cata, 1.0, candidates=candidates))


@pytest.mark.parametrize("n", [0, 1, 19, 25])
def test_few_particles(n: int) -> None:
    """Fewer particles than neighbours or than a subhalo needs, at one place or not."""
    random = np.random.default_rng(n)
    for size in (0.0, 0.1):
        pos = (size * random.random((n, 3))).astype(np.float32)
        part = ParticleData(pos=pos, vel=np.zeros((n, 3), np.float32), mass=1.0)
        grouped, cata = jz.friends_of_friends.jit(part, 1.0, npart_min=2)
        result = jz.subhaloes.jit(grouped, cata, 1.0, softening=0.1)
        assert int(result.num) == (n >= 20)
        assert (np.asarray(result.subhalo) == (0 if n >= 20 else -1)).all()


def test_particles_without_mass_are_not_bound() -> None:
    part = nested_haloes(1, 200)
    part.mass = np.zeros(len(part.pos), np.float32)
    grouped, cata = jz.friends_of_friends.jit(part, 0.1)
    assert int(jz.subhaloes.jit(grouped, cata, 1.0).num) == 0


@pytest.mark.long
def test_wrong_arguments() -> None:
    grouped, cata = jz.friends_of_friends(nested_haloes(1, 100), 0.1)
    n, row = len(grouped.pos), np.arange(len(grouped.pos))
    grouped.num = n
    with pytest.raises(ValueError, match="the particles have no velocities"):
        jz.subhaloes(dataclasses.replace(grouped, vel=None), cata, 1.0)

    @jax.jit
    def of_numbers(**numbers: Any) -> Any:  # traced numbers are checked at run time
        return jz.subhaloes(grouped, cata, 1.0, **numbers)

    for name, hubble, scale in (("hubble", -1.0, 1.0), ("scale_factor", 0.1, -1.0)):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=f"{name} is invalid; it must be finite"):
            jax.block_until_ready(of_numbers(hubble=hubble, scale_factor=scale))
    right = {"grouped": grouped, "gravity": 1.0, "types": np.zeros(n, int), "internal_energy": np.zeros(n, np.float32)}
    energies = [np.where(row == 2, energy, 0).astype(np.float32) for energy in (np.nan, -1.0)]
    huge = dataclasses.replace(grouped, mass=1e30 * np.asarray(grouped.mass))
    fast = dataclasses.replace(grouped, vel=np.where(row[:, None] == 4, np.inf, grouped.vel).astype(np.float32))
    for wrong, words in (
        ({"types": np.where(row == 3, 9, 0)}, "row 3 has a type that is not from 0 to 5"),
        ({"internal_energy": energies[0]}, "the internal energy of row 2 is negative or not finite"),
        ({"internal_energy": energies[1]}, "the internal energy of row 2 is negative or not finite"),
        ({"grouped": fast}, "row 4 has a velocity"),
        ({"grouped": dataclasses.replace(grouped, num=int(cata.offset[0]) + 1)}, "outside these particles"),
        ({"grouped": huge, "gravity": 1e20}, r"an energy .* is outside the range of float32"),
    ):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=words):
            jax.block_until_ready(jz.subhaloes.jit(cata=cata, softening=SOFTENING, **right | wrong))


def in_units(length: int, mass: int, velocity: int, candidates: str = "phase_space") -> jz.Subhaloes:
    """Return the subhaloes of particles in other units, the powers of two with these exponents."""
    part, (length, mass, velocity) = nested_haloes(n=300), (2.0**power for power in (length, mass, velocity))
    part = dataclasses.replace(
        part, pos=part.pos * np.float32(length), mass=part.mass * np.float32(mass), vel=part.vel * np.float32(velocity)
    )
    grouped, cata = jz.friends_of_friends.jit(part, 0.1 * length)
    options = {"softening": SOFTENING * length, "candidates": candidates}
    result: jz.Subhaloes = jz.subhaloes.jit(grouped, cata, velocity**2 * length / mass, **options)
    return result


@pytest.mark.long
def test_units_do_not_change_spins() -> None:
    table = in_units(0, 0, 0).columns()
    assert len(table["spin"]) == 3
    for length, mass, velocity in ((80, 110, 24), (-60, -100, -20)):
        result = in_units(length, mass, velocity).columns()
        for name, unit in (("count", 1), ("spin", 1), ("vmax", 2.0**velocity)):
            np.testing.assert_array_equal(result[name], table[name] * unit)


@pytest.mark.long
@pytest.mark.parametrize(
    ("units", "candidates", "words"),
    [
        ((80, 60, 24), "density", "the density of a particle is outside the range of float32; choose other units"),
        ((-80, 0, -24), "phase_space", "vmax or the spin of subhalo 0 is outside the range of float32"),
    ],
)
def test_units_whose_results_exceed_the_dtype_raise(units: tuple[int, int, int], candidates: str, words: str) -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match=words):
        jax.block_until_ready(in_units(*units, candidates))


@pytest.mark.fast
def test_definitions_cover_all_columns() -> None:
    assert set(jz.substructure.DEFINITIONS) == set(jz.Subhaloes.__dataclass_fields__) - {"subhalo", "num"}
