"""Group order and catalogue over several ranks: they must have the groups that one device finds among all particles."""

import dataclasses
import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import PartitionSpec as P

from fof.test_catalogue import moving_particles
from jztree import data, kernels, stats
from jztree.comm import _exchange
from jztree.config import CatalogueConfig, FofConfig
from jztree.fof import _group_order, fof_and_catalogue
from jztree.jax_ext import exact, shard_map_constructor
from jztree.tree import zsort

pytestmark = pytest.mark.emulated


def _group(part: Any, irank: Any, igroup: Any, box: Any, npart_min: int) -> Any:
    return _group_order.group_and_catalogue(part, part.num, irank, igroup, CatalogueConfig(npart_min=npart_min), box)


group = shard_map_constructor(_group, in_specs=(P(-1), P(-1), P(-1), P(), None), out_specs=P(-1))


def mesh_of(ndev: int, names: tuple[str, ...] = ("ranks",), shape: tuple[int, ...] | None = None) -> Any:
    if len(jax.devices()) < ndev:
        pytest.skip(f"needs {ndev} devices")
    return jax.sharding.Mesh(np.array(jax.devices()[:ndev]).reshape(shape or (ndev,)), names)


_SUMS = (
    *("com_inertia_radius", "max_radius", "shape_tensor", "mass"),
    *("com_vel", "vel_dispersion", "angular_momentum"),
)


# Inputs


def parts_of(n: int, ndev: int) -> list[int]:
    """Return very unequal numbers of particles, with some empty ranks."""
    weight = np.arange(ndev) % 3 * (1 + np.arange(ndev)) if ndev > 1 else np.ones(1)
    cuts = np.round(n * np.cumsum(weight) / weight.sum()).astype(int)
    return [int(x) for x in np.diff(cuts, prepend=0)]


def dealt(array: Any, nums: list[int], room: int) -> np.ndarray:
    """Return ``(r, room, ...)``: consecutive runs of rows, with garbage in padding rows."""
    array = np.asarray(array)
    out = np.full((len(nums), room, *array.shape[1:]), 77, array.dtype)
    for rank, (end, num) in enumerate(zip(np.cumsum(nums), nums, strict=True)):
        out[rank, :num] = array[end - num : end]
    return out


def joined_to_first(group: np.ndarray, rows: slice) -> np.ndarray:
    """Return the labels of ``group`` with some rows moved to group 0."""
    group[rows] = 0
    return oracles.smallest_members(group)


def some_particles(n: int, dims: int = 3, dtype: Any = np.float32) -> data.ParticleData:
    """Return unsorted particles, for labels that are unrelated to positions."""
    random = np.random.default_rng(61)
    return data.ParticleData(
        pos=oracles.uniform(n, dims, dtype),
        mass=random.lognormal(size=n).astype(dtype),
        vel=(100 + 30 * random.standard_normal((n, dims))).astype(dtype),
        id=random.permutation(n).astype(np.int32),
    )


# Running and comparing


def run(
    part: Any, label: np.ndarray, nums: list[int], npart_min: int, box: Any, room: int, mesh: Any = None
) -> tuple[Any, data.FofCatalogue]:
    """Return particles and catalogue over ranks, ``(r, ...)``, as NumPy arrays.

    part: all particles in z-order. label: ``(n,)``, the first row of each particle's group. nums: the number of
    particles per rank.
    """
    n, ndev = part.pos.shape[0], len(nums)
    rank_of = np.repeat(np.arange(ndev), nums)
    irank = rank_of[label].astype(np.int32)
    igroup = (label - (np.cumsum(nums) - nums)[irank]).astype(np.int32)
    spread = jax.tree.map(lambda leaf: dealt(leaf, nums, room) if np.shape(leaf)[:1] == (n,) else leaf, part)
    spread = dataclasses.replace(spread, num=np.asarray(nums, np.int32))
    lengths = exact(oracles.full_box(box, part.pos.shape[1]), (part.pos.shape[1],))
    smapped = group(mesh or mesh_of(ndev), jit=True)
    out = smapped(spread, dealt(irank, nums, room), dealt(igroup, nums, room), lengths, npart_min)
    return jax.tree.map(np.asarray, out)


def one_device(part: Any, label: np.ndarray, npart_min: int, box: Any) -> tuple[Any, data.FofCatalogue]:
    """Return the result of one device for all particles together."""
    lengths = exact(oracles.full_box(box, part.pos.shape[1]), part.pos.shape[1:])
    return _one_device(part, np.asarray(label, np.int32), lengths, npart_min)


@functools.partial(jax.jit, static_argnums=3)
def _one_device(part: Any, label: jax.Array, box: Any, npart_min: int) -> tuple[Any, data.FofCatalogue]:
    order, *segments = kernels.group_order(label, len(label), npart_min)
    grouped = data.map_rows(lambda leaf: leaf[order], part)

    def sums_of(columns: Any) -> Any:
        return tuple(segments), kernels.catalogue(*columns, *segments, box)

    return grouped, _group_order.make_catalogue(grouped, sums_of, CatalogueConfig(npart_min=npart_min))


def assert_same_rows(joined: Any, expected: Any) -> None:
    for name in ("pos", "mass", "vel", "id"):
        if getattr(expected, name) is not None:
            np.testing.assert_array_equal(getattr(joined, name), getattr(expected, name), err_msg=name)


def assert_same_catalogue(cata: data.FofCatalogue, expected: data.FofCatalogue, box: Any) -> None:
    """Compare counts and offsets exactly, and sums up to rounding."""
    dims = expected.com_pos.shape[1]
    rtol = 1e-6 if expected.com_pos.dtype == np.float32 else 1e-12
    assert cata.ngroups == expected.ngroups
    np.testing.assert_array_equal(cata.count, expected.count)
    np.testing.assert_array_equal(cata.offset, expected.offset)
    length = oracles.full_box(box, dims)
    difference = cata.com_pos - np.asarray(expected.com_pos, np.float64)
    difference -= length * np.rint(difference / np.where(length > 0, length, 1))
    np.testing.assert_allclose(difference, 0, atol=rtol)
    for name in _SUMS:
        ours, reference = getattr(cata, name), getattr(expected, name)
        assert (ours is None) == (reference is None)
        if reference is not None:
            assert ours.dtype == reference.dtype
            np.testing.assert_allclose(ours, reference, rtol=rtol, atol=1e-14, err_msg=name)


def assert_layout(grouped: Any, cata: data.FofCatalogue, total: int, npart_min: int) -> None:
    """Assert equal shares, catalogue rows on the ranks of the first particles, and empty padding rows."""
    ndev, room = grouped.pos.shape[:2]
    np.testing.assert_array_equal(grouped.num, [total // ndev + (rank < total % ndev) for rank in range(ndev)])
    assert cata.count.shape == (ndev, -(-room // npart_min))
    for rank in range(ndev):
        groups = cata.ngroups[rank]
        assert (cata.offset[rank, :groups] < grouped.num[rank]).all()
        assert (np.diff(cata.offset[rank, :groups]) >= npart_min).all()
        for leaf in (cata.count, cata.offset, cata.com_pos, cata.max_radius):
            np.testing.assert_array_equal(leaf[rank, groups:], 0)
        np.testing.assert_array_equal(grouped.pos[rank, grouped.num[rank] :], 0)


def assert_as_on_one_device(
    part: Any,
    label: np.ndarray,
    nums: list[int],
    npart_min: int = 2,
    box: Any = 1.0,
    room: int | None = None,
    expected: tuple[Any, data.FofCatalogue] | None = None,
) -> data.FofCatalogue:
    """Compare with one device, and the order with an independent one. Return the joined catalogue."""
    grouped, cata = run(part, label, nums, npart_min, box, room or max(nums) + 3)
    assert_layout(grouped, cata, sum(nums), npart_min)
    order = oracles.order_over_ranks(label, nums, npart_min)
    joined, rows = (
        data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num),
        data.flatten_particles(grouped),
    )
    assert_same_rows(rows, data.map_rows(lambda leaf: np.asarray(leaf)[order], part))
    single, one_cata = expected or one_device(part, label, npart_min, box)
    ours = oracles.one_device_order(joined, sum(nums))
    assert_same_rows(data.map_rows(lambda leaf: np.asarray(leaf)[ours], rows), single)
    one_cata = data.squeeze_catalogue(one_cata)
    firsts = order.argsort()[np.unique(label)[np.unique(label, return_counts=True)[1] >= npart_min]]
    assert_same_catalogue(joined, dataclasses.replace(one_cata, offset=firsts), box)
    return joined


# Groups of real particles


def friends(
    part: data.ParticleData, rlink: float, box: Any, npart_min: int
) -> tuple[data.ParticleData, np.ndarray, tuple[Any, data.FofCatalogue]]:
    """Return particles in z-order, labels from SciPy, and the result of `fof_and_catalogue`."""
    partz, _ = zsort.jit(part, box)
    label = oracles.smallest_members(oracles.components(np.asarray(partz.pos), rlink, box))
    cfg = FofConfig(catalogue=CatalogueConfig(npart_min=npart_min))
    return partz, label, fof_and_catalogue.jit(part, rlink, box, cfg)


@pytest.mark.long
@pytest.mark.parametrize("npart_min", [1, 2, 20])
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_clumps_across_a_periodic_box(ndev: int, npart_min: int) -> None:
    partz, label, expected = friends(moving_particles(600, 3, np.float32), 0.01, 1.0, npart_min)
    joined = assert_as_on_one_device(partz, label, parts_of(600, ndev), npart_min, 1.0, 600, expected)
    assert joined.ngroups >= 5


@pytest.mark.long
@pytest.mark.parametrize("box", ["mixed", "periodic", "open"])
@pytest.mark.parametrize("dims", [2, 1, 4])
def test_other_dimensions_and_double_precision(dims: int, box: str, dtype: Any) -> None:
    lengths = oracles.box_lengths(box, dims)
    partz, label, expected = friends(moving_particles(400, dims, dtype), 0.012, lengths, 5)
    assert_as_on_one_device(partz, label, [100, 0, 170, 130], 5, lengths, 170, expected)


@pytest.mark.parametrize("mass", ["array", "number", "none"])
@pytest.mark.parametrize("vel", [True, False], ids=["vel", "no_vel"])
def test_mass_shared_or_missing_and_velocities_missing(mass: str, vel: bool, dtype: Any) -> None:
    part = moving_particles(400, 3, dtype)
    part.mass = {"array": part.mass, "number": dtype(4.1), "none": None}[mass]
    part.vel = part.vel if vel else None
    partz, label, expected = friends(part, 0.02, 1.0, 2)
    assert_as_on_one_device(partz, label, [30, 120, 150, 100], 2, 1.0, 200, expected)


@pytest.mark.parametrize("ndev", [2, 8])
def test_a_group_that_fills_the_periodic_box(ndev: int) -> None:
    """Images are nearest to the group's first particle, on any rank."""
    partz, label, expected = friends(some_particles(500), 0.2, 1.0, 20)
    assert (label == 0).all()
    assert_as_on_one_device(partz, label, parts_of(500, ndev), 20, 1.0, 500, expected)


# Synthetic groups


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_everything_is_one_group(ndev: int) -> None:
    nums = parts_of(210, ndev)
    joined = assert_as_on_one_device(some_particles(210), np.zeros(210, int), nums, 20)
    assert joined.count.tolist() == [210]


@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_giant_group_interleaved_with_small_groups(ndev: int) -> None:
    """Every other particle belongs to the giant, the others to groups of one to five."""
    label = np.arange(420)
    label[1::2] = 1
    label[0::2] -= label[0::2] % 10
    assert_as_on_one_device(some_particles(420), label, parts_of(420, ndev), 5)


@pytest.mark.parametrize("size", [20, 40, 41, 39, 80])
def test_groups_that_end_at_share_boundaries(size: int) -> None:
    label = np.arange(320) // size * size
    joined = assert_as_on_one_device(some_particles(320), label, [100, 60, 0, 160, 0, 0, 0, 0], 20, room=160)
    assert joined.ngroups == 320 // size + (320 % size >= 20)


@pytest.mark.long
def test_shares_with_alternating_groups_and_ungrouped_particles() -> None:
    """Shares of 20: 20 of the first group; its other 10, 5 ungrouped, a group of 2, 3 ungrouped; groups of 4."""
    label = np.concatenate([np.zeros(30, int), np.arange(30, 35), [35, 35], np.arange(37, 40), np.arange(40, 80)])
    label[40:] -= label[40:] % 4
    nums = [35, 2, 3, 40]
    joined = assert_as_on_one_device(some_particles(80), label, nums)
    assert joined.count.tolist() == [30, 2] + 10 * [4]
    assert joined.offset.tolist() == [0, 35, *range(40, 80, 4)]
    grouped, cata = run(some_particles(80), label, nums, 2, 1.0, 40)
    assert grouped.num.tolist() == [20] * 4
    assert cata.ngroups.tolist() == [1, 1, 5, 5]


def test_groups_precede_ungrouped_particles_on_their_rank() -> None:
    """Rank 0 owns two groups whose particles are mostly on other ranks, and an ungrouped particle between them."""
    label = np.array([0, 1, 2, 0, 2, 5, 0, 2, 8, 0, 2, 8])
    joined = assert_as_on_one_device(some_particles(12), label, [3, 3, 3, 3])
    assert joined.offset.tolist() == [0, 4, 10]
    assert joined.count.tolist() == [4, 4, 2]


@pytest.mark.parametrize("ndev", [1, 3, 8])
@pytest.mark.parametrize("npart_min", [2, 1000])
def test_no_group_reaches_npart_min(ndev: int, npart_min: int) -> None:
    label = np.arange(60) if npart_min == 2 else np.zeros(60, int)
    joined = assert_as_on_one_device(some_particles(60), label, parts_of(60, ndev), npart_min)
    assert joined.ngroups == 0


@pytest.mark.parametrize("n", [0, 1, 3, 8, 9])
@pytest.mark.parametrize("npart_min", [1, 2])
def test_few_particles_per_rank(n: int, npart_min: int) -> None:
    nums = [0] * 8
    nums[3], nums[6] = n - n // 3, n // 3
    assert_as_on_one_device(some_particles(n), np.zeros(n, int), nums, npart_min, room=12)
    assert_as_on_one_device(some_particles(n), np.arange(n) % 2, nums, npart_min, room=12)


@pytest.mark.long
def test_no_spare_rows() -> None:
    """Ranks are full before and after."""
    label = np.arange(200) // 7 * 7
    assert_as_on_one_device(some_particles(200), label, [50] * 4, 7, room=50)
    assert_as_on_one_device(some_particles(4), np.arange(4), [1] * 4, 1, room=1)


@pytest.mark.parametrize("groups", [300, 299, 7])
def test_more_shared_groups_than_fit_one_message(groups: int) -> None:
    """Every rank has a part of nearly every group, and the first rank owns all groups."""
    label = np.arange(1200) % groups
    cata = assert_as_on_one_device(some_particles(1200), label, [300] * 4, 3, room=300)
    assert cata.ngroups == groups
    last = np.arange(900, 1200) % groups
    windows = kernels.group_parts(3, jnp.zeros(300, jnp.int32), jnp.asarray(last, jnp.int32), 300, 75)[4]
    assert int(windows) == (4 if groups > 75 else 1)


def test_massless_groups_have_a_centre() -> None:
    part = some_particles(90)
    part.mass = np.zeros(90, np.float32)
    label = np.where(np.arange(90) < 60, 0, 60)
    joined = assert_as_on_one_device(part, label, [20, 20, 50], 2, box=None)
    np.testing.assert_allclose(joined.com_pos[0], part.pos[:60].mean(axis=0), rtol=1e-6)
    part.mass[70] = 2.0
    assert_as_on_one_device(part, label, [20, 20, 50], 2, box=None)


@pytest.mark.long
@settings(max_examples=10, deadline=None)
@given(st.data())
def test_random_partitions_and_particle_counts(draw: st.DataObject) -> None:
    n = draw.draw(st.sampled_from([1, 7, 48]))  # every number of rows needs a compilation
    cuts = sorted(draw.draw(st.lists(st.integers(0, n), min_size=3, max_size=3)))
    nums = np.diff([0, *cuts, n]).tolist()
    kinds = draw.draw(st.integers(1, 12))
    label = oracles.smallest_members(np.array(draw.draw(st.lists(st.integers(1, kinds), min_size=n, max_size=n)), int))
    npart_min = draw.draw(st.sampled_from([1, 2, 5]))
    assert_as_on_one_device(some_particles(n), label, nums, npart_min, room=48)


def test_catalogue_equals_brute_force_sums() -> None:
    """Compare with an implementation that does not use the kernels."""
    part = some_particles(300, dtype=np.float32)
    label = joined_to_first(np.arange(300) // 9, slice(None, None, 11))
    slow = oracles.slow_catalogue(part.pos, part.mass, part.vel, label, None, 4)
    grouped, cata = run(part, label, [90, 10, 200], 4, None, 200)
    joined = data.squeeze_catalogue(cata, offset_mode="global", nparts=grouped.num)
    order = oracles.one_device_order(joined, 300)
    np.testing.assert_array_equal(data.flatten_particles(grouped).id[order], part.id[slow.order])
    np.testing.assert_array_equal(joined.count, slow.count)
    for name in ("com_pos", *_SUMS):
        np.testing.assert_allclose(getattr(joined, name), getattr(slow, name), rtol=1e-6, err_msg=name)


# Modes and meshes


@pytest.mark.parametrize("threads", [None, 1])
def test_repeated_calls_are_bitwise_equal(set_threads: Any, threads: int | None) -> None:
    label = joined_to_first(np.arange(600) // 50, slice(None, None, 7))
    arguments = (some_particles(600), label, [200, 0, 300, 100], 20, 1.0, 300)
    first = run(*arguments)
    set_threads(threads)
    second = run(*arguments)
    for a, b in zip(jax.tree.leaves(first), jax.tree.leaves(second), strict=True):
        assert a.tobytes() == b.tobytes()


@pytest.mark.long
def test_a_mesh_with_two_axes() -> None:
    part, label, nums = some_particles(200), np.arange(200) // 30 * 30, [20, 80, 0, 100]
    plain = run(part, label, nums, 5, 1.0, 100)
    both = run(part, label, nums, 5, 1.0, 100, mesh_of(4, ("nodes", "gpus"), (2, 2)))
    for a, b in zip(jax.tree.leaves(plain), jax.tree.leaves(both), strict=True):
        np.testing.assert_array_equal(a, b)


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class Own:
    """A particle class with properties unknown to the library."""

    pos: Any
    flag: Any
    tensor: Any
    table: Any
    num: Any = None


def test_properties_are_exchanged_and_other_fields_unchanged() -> None:
    n, label = 120, oracles.smallest_members(np.arange(120) // 6 % 2)
    part = Own(
        pos=oracles.uniform(n, 2),
        flag=np.arange(n) % 3 == 0,
        tensor=np.arange(n * 6, dtype=np.int16).reshape(n, 2, 3),
        table=np.arange(12.0, dtype=np.float32).reshape(4, 3),
    )
    order = one_device(part, label, 2, None)[0]
    grouped, cata = run(part, label, [10, 50, 40, 20], 2, None, 60)
    np.testing.assert_array_equal(grouped.table, part.table)
    assert cata.mass is None
    for name in ("pos", "flag", "tensor"):
        rows = [getattr(grouped, name)[rank, : grouped.num[rank]] for rank in range(4)]
        np.testing.assert_array_equal(np.concatenate(rows), getattr(order, name))


@pytest.mark.long
def test_grouping_outside_a_mesh() -> None:
    part, label = some_particles(100), np.arange(100) // 9 * 9
    part = dataclasses.replace(part, num=100)
    irank, igroup = jnp.zeros(100, jnp.int32), jnp.asarray(label, jnp.int32)
    grouped, cata = _group_order.group_and_catalogue(
        part, 100, irank, igroup, CatalogueConfig(npart_min=9), exact(1.0, (3,))
    )
    single, one_cata = one_device(part, label, 9, 1.0)
    assert_same_rows(grouped, single)
    assert_same_catalogue(data.squeeze_catalogue(cata), data.squeeze_catalogue(one_cata), 1.0)


def test_statistics_count_rows_that_leave_a_rank() -> None:
    """All particles are on rank 1 of 2; half leave."""
    with stats.statistics() as counted:
        run(some_particles(40), np.arange(40), [0, 40], 2, 1.0, 40)
    assert counted["rows.groups"] == 20


@pytest.mark.parametrize(("n", "swaps"), [(200, 5), (50, 4)], ids=["in rounds", "one round"])
def test_number_of_collectives(n: int, swaps: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each collective costs compile time and latency. The module docstring lists them."""
    monkeypatch.setattr(_exchange, "_SINGLE_ROUND_BYTES", 0)  # 50 rows still fit into the smallest buffer
    part = dataclasses.replace(jax.tree.map(lambda leaf: leaf[None].repeat(4, 0), some_particles(n)), num=np.full(4, n))
    rows, box = np.zeros((4, n), np.int32), exact(1.0, (3,))
    smapped = group(mesh_of(4), jit=False)
    text = str(jax.make_jaxpr(lambda *a: smapped(*a, 2))(part, rows, rows, box))
    result = {
        name: len(re.findall(rf"\b{name}\[", text))
        for name in ("pmax", "pmin", "psum", "all_gather", "all_to_all", "ppermute")
    }
    # The exchange compiles one all_to_all for its counts, and one for a single round or each of its two chunk sizes.
    assert result == {"pmax": 1, "pmin": 0, "psum": 0, "all_gather": 4, "all_to_all": swaps, "ppermute": 0}
