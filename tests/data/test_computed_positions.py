"""Particle classes of a simulation code, which compute positions from displacements. Results must be those of the
positions, and returned particles must be of the class. A position that depends on the row must raise an error.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

import jztree as jz
from data.test_particle_classes import columns, entries
from jztree import data
from jztree.config import CatalogueConfig, FofConfig

N, BOX, RLINK, K = 240, 1.0, 0.07, 4
CFG = FofConfig(catalogue=CatalogueConfig(npart_min=3))


@jax.tree_util.register_dataclass
@dataclass
class Displaced:
    """A simulation particle class: displacements, one mass for all, and derived properties."""

    disp: Any
    grid: Any
    vel: Any
    id: Any
    mass: Any
    growth: Any
    num: Any = None
    num_total: Any = field(default=None, metadata={"static": True})

    @property
    def pos(self) -> Any:
        assert self.disp.ndim == 2, "of one device"
        return (self.grid + self.growth * self.disp) % BOX


@jax.tree_util.register_dataclass
@dataclass
class LightCone(Displaced):
    """Adds computed properties of light cones."""

    @property
    def v_rad(self) -> Any:
        return (self.vel * self.pos).sum(axis=1) / jnp.linalg.norm(self.pos, axis=1)

    @property
    def zplus1(self) -> Any:
        return 1 + jnp.linalg.norm(self.pos, axis=1)


@jax.tree_util.register_dataclass
@dataclass
class OnGrid:
    """Its positions depend on the row of each particle."""

    disp: Any
    num: Any = None

    @property
    def pos(self) -> Any:
        n, dims = self.disp.shape
        return self.disp + jnp.arange(n, dtype=self.disp.dtype)[:, None] / n * jnp.ones(dims)


def displaced(cls: Any = Displaced, n: int = N, dtype: Any = jnp.float32) -> Any:
    random = np.random.default_rng(8)
    grid, disp, vel = (jnp.asarray(random.random((n, 3)), dtype) for _ in range(3))
    return cls(disp, grid, vel, jnp.asarray(random.permutation(n), jnp.int32), jnp.asarray(2.0), jnp.asarray(0.3))


def plain(part: Any) -> data.ParticleData:
    """Return the same particles in a class of the library."""
    return data.ParticleData(pos=part.pos, mass=part.mass, vel=part.vel, id=part.id, num=part.num)


def dealt(part: Any, ndev: int) -> Any:
    """Return padded shares for several devices, as a simulation code has them: ``num`` ``(ndev,)``, joined arrays."""
    shares = data.expand_particles(part, ndev, npad=7)
    return jax.tree.map(lambda leaf: leaf.reshape(-1, *leaf.shape[2:]), shares)


def mapped(function: Any, part: Any, ndev: int) -> Any:
    """Map ``function`` with the user's `jax.shard_map`. Properties shared by all particles get an entry per device."""

    def one_device(part: Any) -> Any:
        part = jax.tree.map(lambda leaf: leaf[0] if leaf.shape == (1,) and leaf is not part.num else leaf, part)
        assert part.num.shape == (1,)
        return jax.tree.map(jnp.atleast_1d, function(part))

    mesh = mesh_of(ndev)
    specs = P(mesh.axis_names)
    return jax.jit(jax.shard_map(one_device, mesh=mesh, in_specs=specs, out_specs=specs))(dealt(part, ndev))


def members(part: Any) -> dict[int, np.ndarray]:
    """Return positions by identifier."""
    return {int(item): pos for item, pos in zip(np.asarray(part.id), np.asarray(part.pos), strict=True)}


def assert_same_places(moved: Any, given: Any) -> None:
    expected = members(given)
    result = members(moved)
    assert result.keys() == expected.keys()
    for column, pos in result.items():
        np.testing.assert_allclose(pos, expected[column], rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("ndev", [4, 1])
@pytest.mark.parametrize("cls", [Displaced, LightCone])
def test_catalogue_inside_user_shard_map(cls: Any, ndev: int) -> None:
    part = displaced(cls)

    def groups(part: Any) -> Any:
        partf, cata = jz.fof.fof_and_catalogue(part=part, rlink=RLINK, boxsize=BOX, cfg=CFG)
        assert type(partf) is cls
        assert partf.num.shape == (1,)
        return partf, cata

    partf, cata = mapped(groups, part, ndev)
    particles = plain(part)
    if cls is LightCone:
        particles = WithLight(particles.pos, particles.mass, particles.vel, part.v_rad, part.zplus1)
    _, expected = jz.fof.fof_and_catalogue.jit(particles, RLINK, BOX, CFG)
    rows = [slice(i * len(cata.count) // ndev, i * len(cata.count) // ndev + cata.ngroups[i]) for i in range(ndev)]
    for name in ("count", "com_pos", "com_vel", "mass", "v_rad", "scale_factor"):
        column, right = getattr(cata, name), getattr(expected, name)
        if right is None:
            assert column is None
            continue
        joined = np.concatenate([np.asarray(column)[row] for row in rows])
        np.testing.assert_allclose(joined, np.asarray(right)[: expected.ngroups], rtol=1e-5, err_msg=name)
    shares = len(partf.disp) // ndev
    real = np.concatenate([np.arange(i * shares, i * shares + partf.num[i]) for i in range(ndev)])
    moved = Displaced(*(getattr(partf, name)[real] for name in ("disp", "grid", "vel", "id")), part.mass, part.growth)
    assert_same_places(moved, part)
    sizes = np.bincount(oracles.components(np.asarray(part.pos), RLINK, BOX))
    assert sorted(sizes[sizes >= 3]) == sorted(np.asarray(expected.count)[: expected.ngroups])


@jax.tree_util.register_dataclass
@dataclass
class WithLight:
    pos: Any
    mass: Any
    vel: Any
    v_rad: Any
    zplus1: Any


@pytest.mark.parametrize("ndev", [1, 4])
@pytest.mark.parametrize("name", ["fof_and_catalogue", "distr_fof_labels", "distr_zsort", "zsort_and_tree"])
def test_replicated_fields_remain_replicated_after_a_search(name: str, ndev: int) -> None:
    """One mass and one growth factor for all pass through the user's map, which requires replicated values."""
    part, mesh = displaced(), mesh_of(ndev)
    given = dealt(part, ndev)
    given.mass, given.growth = part.mass, part.growth
    specs = jax.tree.map(lambda leaf: P(mesh.axis_names) if leaf.ndim else P(), given)
    calls = {
        "fof_and_catalogue": lambda part: jz.fof.fof_and_catalogue(part, RLINK, BOX, CFG)[0],
        "distr_fof_labels": lambda part: jz.fof.distr_fof_labels(part, RLINK, BOX)[0],
        "distr_zsort": lambda part: jz.tree.distr_zsort(part, boxsize=BOX)[0],
        "zsort_and_tree": lambda part: jz.tree.zsort_and_tree(part, boxsize=BOX)[0],
    }
    moved = jax.jit(jax.shard_map(calls[name], mesh=mesh, in_specs=(specs,), out_specs=specs))(given)
    assert moved.mass == part.mass
    assert moved.growth == part.growth
    shares = len(moved.disp) // ndev
    real = np.concatenate([np.arange(i * shares, i * shares + moved.num[i]) for i in range(ndev)])
    columns_of = (getattr(moved, column)[real] for column in ("disp", "grid", "vel", "id"))
    assert_same_places(Displaced(*columns_of, part.mass, part.growth), part)


@pytest.mark.parametrize("ndev", [1, 4])
def test_neighbours_inside_user_shard_map(ndev: int) -> None:
    part = displaced()
    rad, ids = mapped(lambda part: jz.knn.knn(part, K, BOX, result="rad_id"), part, ndev)
    shares = len(rad) // ndev
    counts = np.diff([N * rank // ndev for rank in range(ndev + 1)])
    real = np.concatenate([np.arange(i * shares, i * shares + count) for i, count in enumerate(counts)])
    row = np.argsort(np.asarray(part.id))
    pos = np.asarray(part.pos)
    oracles.assert_neighbours(np.asarray(rad)[real], row[np.asarray(ids)[real]], pos, pos, BOX, rtol=1e-5)


@pytest.mark.long
@pytest.mark.parametrize("twin", ["", "jit", "smap"], ids=["plain", "jit", "smap"])
def test_computed_positions_give_the_results_of_stored_positions(twin: str) -> None:
    given = columns()
    grid = jnp.floor(given["pos"] * 4) / 4
    part = Displaced(given["pos"] - grid, grid, given["pos"], given["id"], given["mass"], jnp.asarray(1.0))
    same = plain(part)
    if twin == "smap":
        part, same = (jax.tree.map(lambda leaf: leaf[None], item) for item in (part, same))
    calls = entries(twin)
    for name in sorted(
        calls.keys() - {"build_tree_hierarchy", "attached", "several attached", "flatten", "map_rows", "split_rows"}
    ):
        result, expected = calls[name](part), calls[name](same)
        assert _in_words(result, twin) == _in_words(expected, twin), name


def _in_words(answer: Any, twin: str) -> Any:
    """Return the part of a result that does not depend on the particle class, in a form that can be compared."""

    def place(one: Any) -> Any:
        if isinstance(one, (Displaced, data.ParticleData)):
            pos = np.zeros(0) if one.id.ndim > 1 + (twin == "smap") or twin == "smap" else np.asarray(one.pos)
            return {"id": np.asarray(one.id).tolist(), "mass": np.asarray(one.mass).tolist(), "pos": pos.tolist()}
        return np.asarray(one).tolist()

    is_class = lambda part: isinstance(part, (Displaced, data.ParticleData))  # noqa: E731
    return str(jax.tree.leaves(jax.tree.map(place, answer, is_leaf=is_class)))


@pytest.mark.parametrize("ndev", [1, 4])
def test_sorting_and_trees_inside_user_shard_map(ndev: int) -> None:
    part = displaced()
    partz, _ = mapped(lambda part: jz.tree.distr_zsort(part, boxsize=BOX), part, ndev)
    treed, th = mapped(lambda part: jz.tree.zsort_and_tree(part, boxsize=BOX), part, ndev)
    np.testing.assert_array_equal(partz.id, treed.id)
    assert th.flat_lower.shape[0] % ndev == 0
    shares = len(partz.disp) // ndev
    real = np.concatenate([np.arange(i * shares, i * shares + partz.num[i]) for i in range(ndev)])
    moved = Displaced(*(getattr(partz, name)[real] for name in ("disp", "grid", "vel", "id")), part.mass, part.growth)
    assert_same_places(moved, part)
    sortedz, order = jz.tree.zsort.jit(part, BOX)
    of_sorted, right = (jz.tree.build_tree_hierarchy.jit(item, boxsize=BOX) for item in (sortedz, plain(sortedz)))
    np.testing.assert_allclose(of_sorted.flat_lower, right.flat_lower, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(moved.id, part.id[order])


@pytest.mark.long
def test_derivatives_by_displacements() -> None:
    part = displaced()

    def through(disp: Any) -> Any:
        partf, cata = jz.fof.fof_and_catalogue(_displaced_by(part, disp), RLINK, BOX, CFG)
        rad = jz.knn.knn(_displaced_by(part, disp), K, BOX)[0]
        return (rad**2).sum() + (cata.com_pos**2).sum() + (partf.pos**3).sum()

    def directly(pos: Any) -> Any:
        same = data.ParticleData(pos=pos, mass=part.mass, vel=part.vel)
        partf, cata = jz.fof.fof_and_catalogue(same, RLINK, BOX, CFG)
        return (jz.knn.knn(same, K, BOX)[0] ** 2).sum() + (cata.com_pos**2).sum() + (partf.pos**3).sum()

    result = jax.jit(jax.grad(through))(part.disp)
    expected = 0.3 * jax.jit(jax.grad(directly))(part.pos)
    np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert np.abs(expected).max() > 0.1


def _displaced_by(part: Displaced, disp: Any) -> Displaced:
    return Displaced(disp, part.grid, part.vel, part.id, part.mass, part.growth)


def on_grid(n: int = N) -> OnGrid:
    return OnGrid(jnp.asarray(np.random.default_rng(1).random((n, 2)) / 50, jnp.float32))


MOVES = ("zsort", "zsort_and_tree", "multi type", "knn part", "fof_labels", "distr_fof_labels", "fof_and_catalogue")


@pytest.mark.long
@pytest.mark.parametrize("twin", ["", "jit", "smap"], ids=["plain", "jit", "smap"])
def test_row_dependent_positions_raise_when_rows_are_moved(twin: str) -> None:
    # Use descending positions, so that no sorted order equals the row order.
    part = OnGrid(-2 * on_grid(60).pos)
    part = part if twin != "smap" else jax.tree.map(lambda leaf: leaf[None], part)
    calls = entries(twin)
    for name in [*MOVES, *(["expand", "canonical_order"] if not twin else [])]:
        with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="pos of OnGrid depends on the row") as error:
            jax.block_until_ready(calls[name](part))
        assert oracles.one_sentence(error), name


@pytest.mark.parametrize("swapped", [2, 3, 20])
def test_row_dependence_that_swaps_two_particles_raises(swapped: int) -> None:
    n = swapped
    part = OnGrid(jnp.zeros((n, 2), jnp.float32).at[:, 0].set(-2 * jnp.arange(n) / n))
    with pytest.raises(ValueError, match="depends on the row"):
        jz.tree.zsort(part)


def test_row_dependent_positions_give_correct_results_in_input_order() -> None:
    part = OnGrid(-2 * on_grid().pos)
    pos = np.asarray(part.pos)
    rad, idx = jz.knn.knn.jit(part, K)
    oracles.assert_neighbours(rad, idx, pos, pos, None)
    cata = jax.jit(lambda part: jz.fof.fof_and_catalogue(part, 0.02, cfg=CFG)[1])(part)
    assert data.catalogues_equal(cata, jz.fof.fof_and_catalogue.jit(data.Pos(pos=part.pos), 0.02, cfg=CFG)[1])
    assert cata.ngroups > 3


@jax.tree_util.register_dataclass
@dataclass
class Rounded:
    """Its positions are rounded up or down, depending on the row; at a face of the box, that is the opposite side."""

    grid: Any

    @property
    def pos(self) -> Any:
        second = jnp.arange(self.grid.shape[0])[:, None] % 2 == 1
        return jnp.where(second, jnp.nextafter(self.grid, jnp.float32(2)), self.grid) % 1


def test_rounding_is_not_reported_as_row_dependence() -> None:
    last = np.nextafter(np.float32(1), np.float32(0))
    grid = oracles.uniform(N, 2)
    grid[:5, 0], grid[5:9, 1] = last, last
    part = Rounded(jnp.asarray(grid))
    partz, index = jz.tree.zsort(part, 1.0)
    assert np.ptp(np.asarray(partz.pos)[np.argsort(index)][:5, 0]) > 0.9  # some are 0, some next to 1
    np.testing.assert_array_equal(partz.grid, grid[index])


def test_pos_that_fails_for_moved_rows_raises() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Fixed:
        disp: Any

        @property
        def pos(self) -> Any:
            return self.disp + np.zeros((N, 2), np.float32)

    part = Fixed(jnp.asarray(oracles.uniform(N, 2)))
    assert jz.knn.knn.jit(part, K)[0].shape == (N, K)
    with pytest.raises(TypeError, match="pos of Fixed cannot be computed for moved rows") as error:
        data.expand_particles(part, 2)
    assert "in a field with a row per particle" in str(error.value)
