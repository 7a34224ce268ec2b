"""Ghosts for users' own algorithms: all particles within a radius, and errors raised on all ranks."""

from typing import Any

import jax
import numpy as np
import pytest
from devices import deal, even, mesh_of, uneven
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree.tree import ghosts

NDEV = 3


@jz.jax_ext.with_smap(in_specs=(P(-1), P(-1), P(), None), out_specs=P(-1))
def brought(part: Any, radius: Any, boxsize: Any, rows: int | None) -> Any:
    """Return identifiers of a rank's particles, without and with ghosts, and their numbers."""
    partz, th = jz.tree.zsort_and_tree(part, boxsize=boxsize)
    around = ghosts.bring((partz.pos, partz.id), partz, th, radius, boxsize, rows)
    own = jz.data.get_num(partz)
    # The documentation promises that no sort is needed: this raises if keys are not in order.
    jz.tree.build_tree_hierarchy(jz.data.Pos(pos=around.rows[0], num=around.num), boxsize=boxsize)
    return partz.id, own, around.rows[1], around.num, around.start, around.more(partz.pos)


def run(pos: np.ndarray, counts: np.ndarray, radius: Any, boxsize: float, rows: int | None = None) -> Any:
    part = deal(pos, counts)
    each = np.broadcast_to(np.asarray(radius, np.float32), (len(counts),))
    return jax.tree.map(np.asarray, brought.smap(mesh_of(len(counts)), jit=True)(part, each, boxsize, rows))


def separation(a: np.ndarray, b: np.ndarray, boxsize: float) -> np.ndarray:
    """Return distances between all of ``a`` and all of ``b``."""
    difference = np.abs(a[:, None].astype(np.float64) - b[None])
    if boxsize:
        difference = np.minimum(difference, boxsize - difference)
    return np.sqrt((difference**2).sum(axis=-1))


@pytest.mark.parametrize("boxsize", [0.0, 1.0])
@pytest.mark.parametrize("spread", [even, uneven])
def test_all_ghosts_within_the_radius_arrive_in_order_and_once(boxsize: float, spread: Any) -> None:
    pos = np.random.default_rng(4).random((900, 3)).astype(np.float32)
    radii = np.array([0.05, 0.0, 0.2])
    own, nums, ids, totals, starts, again = run(pos, spread(len(pos), NDEV), radii, boxsize)
    assert sorted(np.concatenate([own[rank, : nums[rank]] for rank in range(NDEV)])) == list(range(len(pos)))
    for rank in range(NDEV):
        ours, all_here = own[rank, : nums[rank]], ids[rank, : totals[rank]]
        assert len(set(all_here)) == len(all_here)
        np.testing.assert_array_equal(all_here[starts[rank] : starts[rank] + len(ours)], ours)
        is_near = (separation(pos, pos[ours], boxsize) <= radii[rank]).any(axis=1)
        assert set(np.flatnonzero(is_near)) <= set(all_here)
        np.testing.assert_array_equal(again[rank, : totals[rank]], pos[all_here])
    # Ranks do not receive all particles: the rank with radius 0 has at most the particles that touch its boxes.
    assert totals[1] < len(pos) / 2


@pytest.mark.long
def test_one_rank_has_no_ghosts() -> None:
    pos = np.random.default_rng(5).random((200, 2)).astype(np.float32)
    partz, th = jz.tree.zsort_and_tree(pos)
    around = ghosts.bring(partz, partz, th, 0.3)
    assert int(around.num) == 200
    assert int(around.start) == 0
    np.testing.assert_array_equal(np.asarray(around.rows)[:200], np.asarray(partz))


@pytest.mark.long
def test_capacity_grows_automatically_and_can_be_given() -> None:
    pos = np.random.default_rng(6).random((1200, 3)).astype(np.float32)
    counts = even(len(pos), NDEV)
    assert list(run(pos, counts, 2.0, 0.0)[3]) == [1200] * NDEV
    assert list(run(pos, counts, 2.0, 0.0, 800)[3]) == [1200] * NDEV


@pytest.mark.parametrize("radius", [np.nan, -1.0, -1e-40])
def test_invalid_radius_on_one_rank_raises_on_all(radius: float) -> None:
    pos = np.random.default_rng(7).random((300, 3)).astype(np.float32)
    with pytest.raises(Exception, match="on rank 1: radius is negative or NaN"):
        run(pos, even(300, NDEV), np.array([0.1, radius, 0.1]), 0.0)


def test_invalid_arguments_raise() -> None:
    pos = np.random.default_rng(8).random((100, 3)).astype(np.float32)
    partz, th = jz.tree.zsort_and_tree(pos)
    with pytest.raises(ValueError, match=r"rows must have 100 rows, one per particle; one has shape \(99, 3\)"):
        ghosts.bring(partz[1:], partz, th, 0.1)
    with pytest.raises(ValueError, match=r"radius is -0\.5; it must be a number of at least 0"):
        ghosts.bring(partz, partz, th, -0.5)
    with pytest.raises(ValueError, match="radius is nan"):
        ghosts.bring(partz, partz, th, np.nan)
    with pytest.raises(TypeError, match="radius is 'near'"):
        ghosts.bring(partz, partz, th, "near")
    with pytest.raises(Exception, match="belong"):
        jax.block_until_ready(ghosts.bring(pos, pos, th, 0.1).rows)
