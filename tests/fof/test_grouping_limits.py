"""Group order over devices: errors, and numbers too large for the data of a test."""

from collections.abc import Callable
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from jax.sharding import PartitionSpec as P

from fof.test_grouping import _group, group, mesh_of
from jztree import data, kernels
from jztree.fof import _group_order
from jztree.jax_ext import exact, shard_map_constructor

pytestmark = pytest.mark.emulated


def test_groups_above_32_bit_counts_raise_on_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    # Always true, but computed from every rank's tallies, like the real check of sizes.
    monkeypatch.setattr(_group_order, "_too_large", lambda tallies: jnp.all(tallies < 1000))
    fresh = shard_map_constructor(
        lambda part, label: _group(part, label, label, exact(1.0, (3,)), 2), in_specs=P(-1), out_specs=P(-1)
    )
    part = data.Pos(pos=np.zeros((4, 10, 3), np.float32), num=np.full(4, 10, np.int32))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="more than 2\\*\\*31 - 1 particles") as error:
        jax.block_until_ready(fresh(mesh_of(4), jit=True)(part, np.zeros((4, 10), np.int32)))
    assert oracles.one_sentence(error)


@pytest.mark.parametrize(
    "bad", [(0, 3, 1, 0), (2, 3, 2, 4), (1, 5, 0, -1), (1, 5, 0, 10), (1, 5, -1, 0), (1, 9, 1, 2)], ids=str
)
def test_inconsistent_labels_raise_on_every_rank(bad: tuple[int, int, int, int]) -> None:
    """The group is on a higher rank, in a lower row, in no row, or has a first particle in another group."""
    on, row, rank, root = bad
    irank, igroup = np.arange(3, dtype=np.int32)[:, None].repeat(10, 1), np.zeros((3, 10), np.int32)
    irank[on, row], igroup[on, row] = rank, root
    part = data.Pos(pos=np.zeros((3, 10, 3), np.float32), num=np.full(3, 10, np.int32))
    with pytest.raises(oracles.RUN_TIME_ERROR, match=f"row {row} of a rank") as error:
        jax.block_until_ready(group(mesh_of(3), jit=True)(part, irank, igroup, exact(1.0, (3,)), 2))
    assert oracles.one_sentence(error)


@pytest.mark.parametrize(("largest", "too_large"), [(2**31 - 1, False), (2**31, True), (2**32, True), (0, False)])
def test_largest_group_with_a_32_bit_count(largest: int, too_large: bool) -> None:
    tallies = np.zeros((3, 5), np.uint32)
    tallies[1, 2:4] = words(largest)
    assert bool(_group_order._too_large(jnp.asarray(tallies))) == too_large


def test_masses_and_velocities_of_wrong_shape_raise() -> None:
    pos = np.zeros((6, 3), np.float32)
    with pytest.raises(ValueError, match=r"one per particle, shape \(6,\); its shape is \(5,\)"):
        _group_order.catalogue_columns(data.ParticleData(pos=pos, mass=np.zeros(5, np.float32)))
    with pytest.raises(ValueError, match=r"\(6, 3\); theirs is \(6, 2\)"):
        _group_order.catalogue_columns(data.ParticleData(pos=pos, vel=np.zeros((6, 2), np.float32)))


def words(number: int) -> list[int]:
    """Return a 64-bit number as the two words that kernels use."""
    return [number & 0xFFFFFFFF, number >> 32]


def numbers(pairs: Any) -> list[int]:
    return [int(low) | int(high) << 32 for low, high in np.asarray(pairs).reshape(-1, 2)]


def test_group_offsets_above_32_bits() -> None:
    """The owner's groups have 3, 2**31 - 1 + 1 and 2 particles here; other ranks report huge parts."""
    big = 2**31 - 1
    count = np.array([3, 1, 2, 5], np.int32)
    message = np.full((3, 64, 2), -1, np.int32)
    message[1, 0], message[2, 0], message[2, 1] = (1, big), (0, big), (1, big)
    nowhere = np.full((4, 2), 2**32 - 1, np.uint32)
    before = np.array(words(2**40) + words(7), np.uint32)
    answers, places, tally = kernels.settle_groups(
        0, np.zeros(4, np.int32), count, message, 0, 1, jnp.asarray(nowhere), jnp.asarray(before), 3
    )
    first = 2**40 + 3 + big  # start of the second group
    last = first + 1 + 2 * big  # start of the fourth, because the third is too small
    assert numbers(places) == [2**40, first, 2**64 - 1, last]
    assert numbers(np.asarray(answers)[[1, 2, 2], [0, 0, 1]]) == [first + 1, 2**40 + 3, first + 1 + big]
    assert numbers(tally) == [last + 5, 1 + 2 * big]


@pytest.mark.parametrize("rank", [0, 2])
def test_group_targets_above_32_bits(rank: int) -> None:
    """Three ranks have 2**31 - 1 particles each; the test holds the first five of ``rank``."""
    each = 2**31 - 1
    listed, unlisted = [2**32 + 5, 0, 10**9], [10**9, 147483633, 7]
    tallies = [[*words(listed[r]), 0, 0, unlisted[r]] for r in range(3)]
    owner = np.array([0, 0, 0, rank, rank], np.int32)
    row = np.array([0, 0, 2, 3, 3], np.int32)
    label = np.array([0, 0, 2, 3, 3], np.int32)
    places = np.array([words(2**31), words(0), words(2**64 - 1), words(2**29), words(0)], np.uint32)
    to_rank, target = kernels.group_targets(rank, owner, row, 5, label, places, np.array(tallies, np.uint32))
    assert sum(listed) + sum(unlisted) == 3 * each
    start = sum(listed[:rank]) + sum(unlisted[:rank])
    place = [2**31, 2**31 + 1, start + listed[rank], start + 2**29, start + 2**29 + 1]
    assert np.asarray(to_rank).tolist() == [p // each for p in place]
    roots = [row[i] == i and owner[i] == rank and i != 2 for i in range(5)]
    rows = [~(p % each) if root else p % each for p, root in zip(place, roots, strict=True)]
    assert np.asarray(target).tolist() == rows


def test_group_segments_above_32_bits() -> None:
    """The last of three ranks with 2**31 - 1 particles each; the test holds its first nine."""
    listed, unlisted = [2**32, 3, 2**31 - 10], [1, 2, 1]
    tallies = np.array([[*words(listed[r]), 0, 0, unlisted[r]] for r in range(3)], np.uint32)
    assert sum(listed) + sum(unlisted) == 3 * (2**31 - 1)
    target = np.array([~8, ~3, 0, 1, 7, 2, 4, 5, 6], np.int32)
    place, head, ngroups, count, offset = kernels.group_segments(2, target, 9, tallies, 4)
    assert np.asarray(place).tolist() == [8, 3, 0, 1, 7, 2, 4, 5, 6]
    assert (int(head), int(ngroups)) == (2, 2)
    assert np.asarray(count).tolist() == [3, 1, 0, 0]
    assert np.asarray(offset).tolist() == [3, 8, 0, 0]


def segments_of(target: list[int], listed: int, unlisted: int, room: int, rank: int = 0) -> Any:
    """Return the segments of a single rank."""
    tallies = np.array([[*words(listed), 0, 0, unlisted]], np.uint32)
    return kernels.group_segments(rank, jnp.array(target, jnp.int32), len(target), tallies, room)


def test_segments_of_a_single_rank() -> None:
    """This call is valid; the calls below differ from it in one invalid argument each."""
    place, head, ngroups, count, offset = segments_of([~0, ~1], 2, 0, 2)
    assert (int(head), int(ngroups)) == (0, 2)
    assert [np.asarray(x).tolist() for x in (place, count, offset)] == [[0, 1], [1, 1], [0, 1]]


@pytest.mark.parametrize(
    "call",
    [
        lambda: segments_of([~0, 5], 2, 0, 2),
        lambda: segments_of([~0, ~1], 1, 1, 2),
        lambda: segments_of([0, ~1], 2, 0, 2),
        lambda: segments_of([~0, ~1], 2, 0, 1),
        lambda: segments_of([~0, 1], 2, 0, 2, rank=1),
    ],
    ids=["row outside", "a group that is not listed", "nothing to continue", "too many groups", "no such rank"],
)
def test_kernels_with_out_of_bounds_segments_raise(call: Callable[[], Any]) -> None:
    gpus.skip_where_kernels_cannot_raise()
    with pytest.raises(oracles.RUN_TIME_ERROR, match="jztree: "):
        jax.block_until_ready(call())
