"""The stage in a user's algorithm, on one device and on several."""

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, SETS, deal, joined, make, mesh_of, uneven
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree.data import Pos


@jz.jax_ext.with_smap(in_specs=(P(-1), P(-1), P(), P(-1)), out_specs=P(-1))
def sums_within(part: Any, part_query: Any, radius: Any, mass: Any) -> Any:
    """Return the number of particles within a radius of each query in the unit box, and their mass."""
    stage = jz.tree.stage.set_stage(part, part_query, 1.0, data=mass)
    nearest, own = stage.with_ghosts(radius, stage.sources.data), stage.queries
    separation = own.pos[:, None].astype(jnp.float32) - nearest.pos[None].astype(jnp.float32)
    separation -= jnp.round(separation)
    held = jnp.arange(nearest.pos.shape[0]) < nearest.num
    within = (jnp.sum(separation**2, axis=-1) <= radius**2) & held
    used = jnp.arange(own.pos.shape[0]) < own.num
    count = jnp.where(used, jnp.sum(within, axis=1, dtype=jnp.int32), 0)
    return stage.send_back((count, jnp.where(used, jnp.sum(jnp.where(within, nearest.data, 0), axis=1), 0)))


def expected(pos: np.ndarray, query: np.ndarray, radius: float, mass: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    within = oracles.squared_distances(query, pos, 1.0) <= radius**2
    return within.sum(axis=1), within @ mass


def masses(n: int) -> np.ndarray:
    return np.random.default_rng(3).integers(1, 5, n).astype(np.float32)  # sums are exact in any order


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("name", ["uniform", "clustered", "fewer particles than ranks"])
def test_particles_within_a_radius_are_near(name: str, ndev: int) -> None:
    pos, counts, part = make(name, ndev)
    radius, mass = 1.01 * SETS[name][2], masses(len(pos))
    stacked = _dealt(mass, counts, part.pos.shape[1])
    count, total = sums_within.smap(mesh_of(ndev), jit=True)(Pos(pos=part.pos, num=part.num), None, radius, stacked)
    want, heavy = expected(pos, pos, radius, mass)
    np.testing.assert_array_equal(joined(count, counts), want)
    np.testing.assert_array_equal(joined(total, counts), heavy)


def _dealt(column: np.ndarray, counts: np.ndarray, rows: int) -> np.ndarray:
    """Return the blocks of a column on each rank, with padding."""
    built = np.zeros((len(counts), rows), column.dtype)
    for rank, block in enumerate(np.split(column, np.cumsum(counts)[:-1])):
        built[rank, : len(block)] = block
    return built


@pytest.mark.parametrize("ndev", [1, 4])
def test_separate_queries_get_their_answers(ndev: int) -> None:
    pos, counts, part = make("clustered", ndev)
    query = np.random.default_rng(9).random((90, 3)).astype(np.float32)
    rows, mass = uneven(len(query), ndev), masses(len(pos))
    asking = deal(query, rows)
    count, total = sums_within.smap(mesh_of(ndev), jit=True)(
        Pos(pos=part.pos, num=part.num),
        Pos(pos=asking.pos, num=asking.num),
        0.2,
        _dealt(mass, counts, part.pos.shape[1]),
    )
    want, heavy = expected(pos, query, 0.2, mass)
    np.testing.assert_array_equal(joined(count, rows), want)
    np.testing.assert_array_equal(joined(total, rows), heavy)


def test_plain_call_on_one_device_needs_no_mesh() -> None:
    pos = np.random.default_rng(1).random((60, 3)).astype(np.float32)
    count, _ = jax.jit(sums_within)(jnp.asarray(pos), None, 0.3, jnp.ones(60))
    np.testing.assert_array_equal(count, expected(pos, pos, 0.3, np.ones(60))[0])


def test_negative_radius_raises() -> None:
    part = jz.data.expand_particles(Pos(pos=np.zeros((8, 3), np.float32)), 2)

    @jz.jax_ext.with_smap(in_specs=P(-1), out_specs=P(-1))
    def search(part: Any) -> Any:
        return jz.tree.stage.set_stage(part).with_ghosts(-1.0).pos

    with pytest.raises(ValueError, match="radius is -1"):
        search.smap(mesh_of(2), jit=True)(part)


@pytest.mark.parametrize(("radius", "error"), [(-1.0, ValueError), (np.nan, ValueError), ("far", TypeError)])
def test_invalid_radius_raises_on_one_device(radius: Any, error: type[Exception]) -> None:
    with pytest.raises(error, match="radius is"):
        jz.tree.stage.set_stage(np.zeros((8, 3), np.float32)).with_ghosts(radius)


def test_infinite_radius_brings_all_particles() -> None:
    @jz.jax_ext.with_smap(in_specs=P(-1), out_specs=P(-1))
    def near(part: Any) -> Any:
        return jz.tree.stage.set_stage(part).with_ghosts(np.inf).num

    pos = np.random.default_rng(2).random((2, 8, 3)).astype(np.float32)
    np.testing.assert_array_equal(near.smap(mesh_of(2), jit=True)(pos), [16, 16])


def test_radii_of_other_boxes_raise() -> None:
    @jz.jax_ext.with_smap(in_specs=P(-1), out_specs=P(-1))
    def near(part: Any) -> Any:
        return jz.tree.stage.set_stage(part).with_ghosts(jnp.ones(5)).num

    with pytest.raises(ValueError, match=r"one per box of query_boxes, \(8,\)"):
        near.smap(mesh_of(2), jit=True)(np.zeros((2, 8, 3), np.float32))


def test_open_leaves_without_boxes_raises() -> None:
    with pytest.raises(RuntimeError, match="call exchange_boxes"):
        jz.tree.stage.set_stage(np.zeros((8, 3), np.float32)).open_leaves(jnp.ones((8, 1)))


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class OnLine:
    """Particles whose positions depend on their rows."""

    shift: Any
    num: Any = None

    @property
    def pos(self) -> Any:
        return self.shift + jnp.arange(self.shift.shape[0], dtype=jnp.float32)[:, None]


@jz.jax_ext.with_smap(in_specs=P(-1), out_specs=P(-1))
def positions(part: Any, part_query: Any) -> Any:
    """Return the positions of the queries, and the number of particles at each."""
    stage = jz.tree.stage.set_stage(part, part_query)
    nearest, own = stage.with_ghosts(0.0, whole=True), stage.queries
    held = jnp.arange(nearest.pos.shape[0]) < nearest.num
    count = jnp.sum((own.pos[:, None] == nearest.pos).all(axis=-1) & held, axis=1, dtype=jnp.int32)
    return stage.send_back((own.pos, own.part.shift, count))


@pytest.mark.parametrize("ndev", [1, 2])
def test_positions_computed_from_rows_move_with_them(ndev: int) -> None:
    part = OnLine(jnp.asarray(30 * np.random.default_rng(4).random((ndev, 9, 3)).astype(np.float32)))
    given = jnp.stack([OnLine(shift).pos for shift in part.shift])
    for queries in (None, part):
        pos, shift, count = positions.smap(mesh_of(ndev), jit=True)(part, queries)
        np.testing.assert_array_equal(pos, given)
        np.testing.assert_array_equal(shift, part.shift)
        np.testing.assert_array_equal(count, np.ones((ndev, 9)))


def test_numpy_data_and_answers_are_converted() -> None:
    pos = np.random.default_rng(2).random((9, 3)).astype(np.float32)
    stage = jz.tree.stage.set_stage(pos, data=np.arange(9))  # int64, which JAX converts to 32 bits
    np.testing.assert_array_equal(stage.send_back(stage.sources.data), np.arange(9))
    np.testing.assert_array_equal(stage.send_back(np.asarray(stage.sources.data, np.int64)), np.arange(9))


def test_padding_of_answers_is_filled_on_one_device() -> None:
    stage = jz.tree.stage.set_stage(Pos(pos=np.zeros((5, 3), np.float32), num=3))
    answers = stage.send_back((jnp.ones((5, 2)), jnp.ones(5, jnp.int32)), fill=(np.inf, -1))
    np.testing.assert_array_equal(answers[0], [[1, 1]] * 3 + [[np.inf, np.inf]] * 2)
    np.testing.assert_array_equal(answers[1], [1, 1, 1, -1, -1])


@pytest.mark.parametrize("answers", [np.zeros(7), np.float32(1)])
def test_answers_with_other_rows_raise(answers: Any) -> None:
    with pytest.raises(ValueError, match="every array in answers must have 8 rows, one per query"):
        jz.tree.stage.set_stage(np.zeros((8, 3), np.float32)).send_back(answers)


def test_data_with_other_rows_raise() -> None:
    with pytest.raises(ValueError, match="rows"):
        jz.tree.stage.set_stage(np.zeros((8, 3), np.float32), data=np.zeros(7, np.float32))
