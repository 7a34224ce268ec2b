"""The stage in a user's algorithm, on one device and on several."""

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
    near, own = stage.with_ghosts(radius, stage.sources.data), stage.queries
    apart = own.pos[:, None].astype(jnp.float32) - near.pos[None].astype(jnp.float32)
    apart -= jnp.round(apart)
    held = jnp.arange(near.pos.shape[0]) < near.num
    within = (jnp.sum(apart**2, axis=-1) <= radius**2) & held
    used = jnp.arange(own.pos.shape[0]) < own.num
    count = jnp.where(used, jnp.sum(within, axis=1, dtype=jnp.int32), 0)
    return stage.send_back((count, jnp.where(used, jnp.sum(jnp.where(within, near.data, 0), axis=1), 0)))


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
    dealt = _dealt(mass, counts, part.pos.shape[1])
    count, total = sums_within.smap(mesh_of(ndev), jit=True)(Pos(pos=part.pos, num=part.num), None, radius, dealt)
    want, heavy = expected(pos, pos, radius, mass)
    np.testing.assert_array_equal(joined(count, counts), want)
    np.testing.assert_array_equal(joined(total, counts), heavy)


def _dealt(column: np.ndarray, counts: np.ndarray, rows: int) -> np.ndarray:
    """Return the blocks of a column on each rank, with padding."""
    made = np.zeros((len(counts), rows), column.dtype)
    for rank, block in enumerate(np.split(column, np.cumsum(counts)[:-1])):
        made[rank, : len(block)] = block
    return made


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


def test_data_with_other_rows_raise() -> None:
    with pytest.raises(ValueError, match="rows"):
        jz.tree.stage.set_stage(np.zeros((8, 3), np.float32), data=np.zeros(7, np.float32))
