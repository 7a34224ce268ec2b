"""z-order on one device: sorting, and searching in sorted rows."""

import bisect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from jztree import data, kernels, tree
from jztree.arguments import check_box
from tree.test_tree import BOXES, SAMPLES, N

pytestmark = pytest.mark.emulated


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("dims", range(1, 9))
def test_order_is_that_of_morton_keys(dims: int, box: str, sample: str, dtype: Any) -> None:
    pos = SAMPLES[sample](N, dims, dtype)
    pos *= np.linspace(1, 3, dims).astype(dtype)  # extents differ, cells do not
    length = oracles.box_lengths(box, dims)
    posz, index = tree.zsort(jnp.asarray(pos), boxsize=length)
    np.testing.assert_array_equal(index, oracles.z_order(pos, length))
    np.testing.assert_array_equal(posz, pos[index])
    assert index.dtype == jnp.int32


@pytest.mark.parametrize("exponent", [3, 12, 20, 37])
def test_order_with_one_far_outlier(exponent: int) -> None:
    pos = oracles.uniform(30, 3)
    pos[13] = 10.0**exponent
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos))[1], oracles.z_order(pos))


@pytest.mark.parametrize("exponent", [3, 12, 20, 37])
@pytest.mark.parametrize("n", [20, 2000])
def test_points_that_share_a_key_are_in_the_z_order_of_their_bits(n: int, exponent: int, dtype: Any) -> None:
    """Any number of points may share a key; otherwise the order would depend on their number per device."""
    pos = oracles.uniform(n, 3, dtype) - dtype(0.5)
    pos[13] = 10.0**exponent
    pos[4], pos[15], pos[16] = pos[17], -0.0, 0.0
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos))[1], oracles.z_order(pos))


def test_order_of_dynamic_range_1e12(dtype: Any) -> None:
    random = np.random.default_rng(12)
    pos = (random.standard_normal((N, 3)) * 10 ** random.uniform(-12, 0, (N, 1))).astype(dtype)
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos))[1], oracles.z_order(pos))


@pytest.mark.core
@pytest.mark.parametrize("n", [1, 2, 31, 32, 33, 1000, 70_000])
def test_sort_is_stable(n: int) -> None:
    np.testing.assert_array_equal(tree.zsort(jnp.full((n, 3), 0.3))[1], np.arange(n))
    pos = np.full((n, 3), 0.3, np.float32)
    pos[::2] = 0.7
    expected = np.concatenate([np.arange(1, n, 2), np.arange(0, n, 2)])
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos))[1], expected)
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos), boxsize=1.0)[1], expected)


@pytest.mark.long
@pytest.mark.parametrize("far", [1.0, 1e20])
@pytest.mark.parametrize("n", [2, 513, 40_000])
def test_sorted_rows_with_two_exchanged(n: int, far: float, dtype: Any) -> None:
    """Sorted rows are not sorted again, so any disorder must be detected. far: many rows share their keys."""
    pos = oracles.uniform(n, 3, dtype)
    pos[0] = far
    pos[n // 3 : n // 2] = pos[n // 3]
    pos = pos[oracles.z_order(pos)]
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos))[1], np.arange(n))
    for row in {1, (n + 4) // 5, n // 2, n - 1}:
        swapped = pos.copy()
        swapped[[row - 1, row]] = swapped[[row, row - 1]]
        expected = np.arange(n)
        if not np.array_equal(pos[row - 1], pos[row]):
            expected[[row - 1, row]] = row, row - 1
        np.testing.assert_array_equal(tree.zsort(jnp.asarray(swapped))[1], expected)


def is_sorted(pos: Any, num: Any = None, box: Any = None) -> bool:
    """Return whether the kernel finds rows sorted, in a domain that is their bounding box."""
    pos, length = jnp.asarray(pos), check_box(box, pos.shape[1])
    num = pos.shape[0] if num is None else num
    lower, upper, *_ = kernels.bounds(pos, num)
    return bool(kernels.is_sorted(pos, num, lower, upper, length))


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("dims", range(1, 9))
def test_rows_are_sorted_if_their_order_is_that_of_morton_keys(dims: int, box: str, sample: str, dtype: Any) -> None:
    pos, length = SAMPLES[sample](N, dims, dtype), oracles.box_lengths(box, dims)
    order = oracles.z_order(pos, length)
    assert is_sorted(pos, box=length) == (order == np.arange(N)).all()
    assert is_sorted(pos[order], box=length)
    random = np.random.default_rng(dims)
    for _ in range(4):
        first, second = random.choice(N, 2, replace=False)
        swapped = pos[order]
        swapped[[first, second]] = swapped[[second, first]]
        expected = (oracles.z_order(swapped, length) == np.arange(N)).all()
        assert is_sorted(swapped, box=length) == expected


@pytest.mark.long
@pytest.mark.parametrize("far", [1.0, 1e20])
@pytest.mark.parametrize("n", [2, 257, 16_385, 40_000])
def test_rows_with_two_exchanged_are_not_sorted(n: int, far: float, dtype: Any) -> None:
    """The exchange is between blocks of rows or within them. far: many rows share their keys."""
    pos = oracles.uniform(n, 3, dtype)
    pos[0] = far
    pos = pos[oracles.z_order(pos)]
    assert is_sorted(pos)
    for row in {0, n // 3, min(16_383, n - 2), n - 2}:
        exchanged = pos.copy()
        exchanged[[row, row + 1]] = pos[[row + 1, row]]
        assert not is_sorted(exchanged)


def test_only_the_first_num_rows_must_be_sorted_and_finite() -> None:
    pos = oracles.uniform(300, 3)
    pos = pos[oracles.z_order(pos, 1.0)]
    pos[200:] = pos[299:199:-1]
    pos[250] = np.nan
    assert is_sorted(pos, 200, 1.0)
    assert is_sorted(pos, 1, 1.0)
    assert is_sorted(pos, 0, 1.0)
    assert not is_sorted(pos, 240, 1.0)
    pos[120, 1] = np.inf
    assert is_sorted(pos, 120, 1.0)
    assert not is_sorted(pos, 200, 1.0)
    assert is_sorted(np.zeros((0, 3), np.float32))
    assert is_sorted(np.full((500, 3), 0.3, np.float32))


@pytest.mark.long
@pytest.mark.parametrize("kind", ["uniform", "few points", "one key", "one in a box"])
@pytest.mark.parametrize("runs", [2, 3, 16, 17])
@pytest.mark.parametrize("n", [40, 20_000])
def test_rows_in_a_few_runs_are_merged(n: int, runs: int, kind: str, dtype: Any) -> None:
    """Rows arrive from other ranks in this form: each run is sorted, and ties go to the earlier run."""
    random = np.random.default_rng(n + runs)
    pos = oracles.uniform(n, 3, dtype)
    if kind == "few points":
        pos = pos[random.integers(0, max(n // 50, 2), n)]
    if kind == "one key":
        pos[0] = 1e20
    box = np.ones(3) if kind == "one in a box" else None
    if box is not None:
        pos[n // 2] = -0.2
    place = np.argsort(oracles.z_order(pos, box))
    begins = np.sort(random.integers(0, n, runs - 1))
    pos = np.concatenate([pos[rows[np.argsort(place[rows])]] for rows in np.split(np.arange(n), begins)])
    sorted_pos, index = tree.zsort(jnp.asarray(pos), boxsize=box)
    np.testing.assert_array_equal(index, oracles.z_order(pos, box))
    np.testing.assert_array_equal(sorted_pos, pos[index])


def test_many_duplicates_are_in_stable_order(dtype: Any) -> None:
    pos = np.random.default_rng(3).permutation(np.repeat(oracles.lattice(5, 2, dtype), 40, axis=0))
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos))[1], oracles.z_order(pos))


def test_dense_clumps_among_many_particles(dtype: Any) -> None:
    # More rows than the sort in one cache can hold, so that they are distributed again.
    uniform = oracles.uniform(3000, 3, dtype)
    clump = dtype(0.3) + dtype(1e-5) * oracles.uniform(2000, 3, dtype)
    points = np.concatenate([uniform, clump, uniform[:1]])
    times = np.repeat([5, 100, 150_000], [len(uniform), len(clump), 1])
    which = np.random.default_rng(8).permutation(np.repeat(np.arange(len(points)), times))
    pos, num = points[which], len(which) - 1000
    pos[::997] = np.nan
    keys = oracles.morton_keys(points)
    rank = np.unique(np.array(keys, object), return_inverse=True)[1][which]
    rank[::997] = len(keys)
    expected = np.append(np.argsort(rank[:num], kind="stable"), np.arange(num, len(pos)))
    posz, index = tree.zsort(data.Pos(pos=jnp.asarray(pos), num=num))
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(posz.pos, pos[expected])


@pytest.mark.core
@pytest.mark.watched
@pytest.mark.parametrize("longest", [1024, 1025])
@pytest.mark.parametrize("dims", [1, 2, 3])
def test_clumps_of_any_size_are_in_the_order_of_their_keys(dims: int, longest: int, dtype: Any) -> None:
    """All particles of a clump share the first bits of their keys, by which GPUs sort at first."""
    random = np.random.default_rng(5)
    sizes = [2, 3, 32, 33, 500, longest, 40]
    cells = random.integers(0, 2**8, (len(sizes), dims))
    cells[-1] = 2**8 - 1  # the last cell, before the rows without a key
    width = 2 ** (-40 / dims) / 20  # the sort begins with 40 bits of each key
    clumps = np.repeat((cells + 1) / 2**8, sizes, axis=0) - width * random.random((sum(sizes), dims))
    pos = random.permutation(np.concatenate([random.random((1000, dims)), clumps])).astype(dtype)
    pos[::97] = np.nan
    num = len(pos) - 50
    finite = np.isfinite(pos[:num, 0])
    rows = np.flatnonzero(finite)[oracles.z_order(pos[:num][finite], 1.0)]
    expected = np.concatenate([rows, np.flatnonzero(~finite), np.arange(num, len(pos))])
    posz, index = tree.zsort(data.Pos(pos=jnp.asarray(pos), num=num), boxsize=1.0)
    np.testing.assert_array_equal(index, expected)
    np.testing.assert_array_equal(posz.pos, pos[expected])


@pytest.mark.parametrize("dims", [1, 2, 3])
def test_positions_are_wrapped_for_the_order_only(dims: int, dtype: Any) -> None:
    pos = np.round(oracles.uniform(N, dims, dtype) * 512) / 512
    shifted = pos + np.random.default_rng(4).integers(-3, 4, pos.shape).astype(dtype)
    posz, index = tree.zsort(jnp.asarray(shifted), boxsize=1.0)
    np.testing.assert_array_equal(index, oracles.z_order(pos, 1.0))
    np.testing.assert_array_equal(posz, shifted[index])


@pytest.mark.parametrize("box", [1.0, 0.7, 100.0])
def test_positions_at_and_next_to_the_faces_of_the_box(box: float, dtype: Any) -> None:
    faces = np.array([0, 1e-9, -1e-9, 1e-6, -1e-6, 0.5, 1, 1 - 1e-9, 1 + 1e-9, 2, -1]) * box
    pos = np.stack(np.meshgrid(faces, faces, indexing="ij"), axis=-1).reshape(-1, 2).astype(dtype)
    np.testing.assert_array_equal(tree.zsort(jnp.asarray(pos), boxsize=box)[1], oracles.z_order(pos, box))


@pytest.mark.parametrize("traced", [False, True], ids=["known", "traced"])
@pytest.mark.parametrize("in_order", [False, True], ids=["shuffled", "in order"])
def test_nonfinite_rows_and_padding_come_last(in_order: bool, traced: bool) -> None:
    pos = oracles.uniform(100, 3)
    if in_order:
        pos = pos[oracles.z_order(pos)]
    bad = [3, 50, 51, 79]
    pos[bad] = np.array([[np.nan] * 3, [0, np.inf, 0], [-np.inf, 0, 0], [0, 0, np.nan]], np.float32)
    pos[85] = np.nan
    sort = lambda num: tree.zsort(data.Pos(pos=jnp.asarray(pos), num=num))[1]  # noqa: E731
    index = jax.jit(sort)(80) if traced else sort(80)
    good = np.setdiff1d(np.arange(80), bad)
    np.testing.assert_array_equal(index, [*good[oracles.z_order(pos[good])], *bad, *range(80, 100)])


def test_per_particle_properties_are_sorted_with_positions() -> None:
    n = 50
    part = data.ParticleData(
        pos=jnp.asarray(oracles.uniform(n, 3)),
        mass=2.0,
        vel=jnp.ones((n, 3)),
        id=jnp.arange(n, dtype=jnp.int32),
        num=40,
    )
    partz, index = tree.zsort(part)
    np.testing.assert_array_equal(partz.id, index)
    np.testing.assert_array_equal(partz.pos, part.pos[index])
    assert partz.mass == 2.0
    assert int(partz.num) == 40


@pytest.mark.parametrize(
    "dtype_name", ["bool", "int8", "uint16", "int32", "uint32", "float16", "bfloat16", "complex64"]
)
def test_rows_of_any_dtype_and_shape_are_sorted_with_positions(dtype_name: str) -> None:
    pos = jnp.asarray(oracles.uniform(33, 2))
    values = jnp.arange(33 * 6).reshape(33, 2, 3).astype(dtype_name)
    posz, moved, _ = tree.zsort_and_tree(pos, data={"values": values, "row": jnp.arange(33)})
    np.testing.assert_array_equal(moved["values"], values[moved["row"]])
    np.testing.assert_array_equal(posz, pos[moved["row"]])


def test_no_particles() -> None:
    posz, index = tree.zsort(jnp.zeros((0, 3)))
    assert posz.shape == (0, 3)
    assert index.shape == (0,)
    _, th = tree.zsort_and_tree(jnp.zeros((0, 3)))
    assert th.plane_sizes == (1,)
    assert th.count(0).tolist() == [0]


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    pos=hnp.arrays(np.float32, (20, 3), elements=st.floats(-1e6, 1e6, width=32, allow_subnormal=False)),
    num=st.integers(1, 20),
    box=st.sampled_from([0.0, 1.0, 1234.5]),
)
def test_property_any_floats_are_in_the_order_of_their_keys(pos: np.ndarray, num: int, box: float) -> None:
    index = tree.zsort.jit(data.Pos(pos=jnp.asarray(pos), num=num), boxsize=box)[1]
    np.testing.assert_array_equal(index, [*oracles.z_order(pos[:num], box), *range(num, 20)])


# Searching


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("box", ["open", "periodic"])
@pytest.mark.parametrize("dims", [1, 2, 3, 5])
def test_search_equals_bisect_on_keys(dims: int, box: str, side: str, dtype: Any) -> None:
    length = oracles.box_lengths(box, dims)
    pos = np.repeat(oracles.clustered(200, dims, dtype), 2, axis=0)
    posz = np.asarray(tree.zsort(jnp.asarray(pos), boxsize=length)[0])
    query = np.concatenate([posz[::7], oracles.uniform(50, dims, dtype, seed=4) * dtype(0.9)])
    query = np.clip(query, posz.min(axis=0), posz.max(axis=0))
    keys = oracles.morton_keys(np.concatenate([posz, query]), length)
    find = bisect.bisect_left if side == "left" else bisect.bisect_right
    expected = [find(keys[: len(posz)], key) for key in keys[len(posz) :]]
    result = tree.search_sorted_z(jnp.asarray(posz), jnp.asarray(query), boxsize=length, side=side)
    np.testing.assert_array_equal(result, expected)
    compiled = tree.search_sorted_z.jit(jnp.asarray(posz), jnp.asarray(query), boxsize=length, side=side)
    np.testing.assert_array_equal(compiled, expected)


def test_search_uses_the_first_num_rows_only() -> None:
    pos = oracles.uniform(60, 3)
    partz, _ = tree.zsort(data.Pos(pos=jnp.asarray(pos), num=40))
    result = tree.search_sorted_z(partz, partz.pos[:40])
    np.testing.assert_array_equal(result, np.arange(40))
    assert int(tree.search_sorted_z(partz, jnp.full((1, 3), 9.0), side="right")[0]) == 40


def test_queries_outside_the_domain_count_as_on_its_edge() -> None:
    posz, _ = tree.zsort(jnp.asarray(oracles.uniform(60, 3)))
    corners = jnp.array([[-5.0, -5, -5], [9, 9, 9]])
    np.testing.assert_array_equal(tree.search_sorted_z(posz, corners, side="left")[0], 0)
    np.testing.assert_array_equal(tree.search_sorted_z(posz, corners, side="right")[1], 60)


@pytest.mark.parametrize("bad", [np.nan, np.inf], ids=str)
def test_search_ignores_nonfinite_rows(bad: float) -> None:
    """`zsort` puts such rows after all others, so they may exist."""
    pos = oracles.uniform(50, 3)
    pos[[3, 9, 20]] = bad
    posz, _ = tree.zsort(jnp.asarray(pos))
    np.testing.assert_array_equal(tree.search_sorted_z(posz, posz[:47]), np.arange(47))
    np.testing.assert_array_equal(tree.search_sorted_z(posz, posz[:47], side="right"), np.arange(1, 48))


def test_search_with_bad_arguments() -> None:
    pos = jnp.asarray(oracles.uniform(10, 3))
    with pytest.raises(ValueError, match="'middle'"):
        tree.search_sorted_z(pos, pos, side="middle")
    with pytest.raises(ValueError, match="2 dimensions"):
        tree.search_sorted_z(pos, pos[:, :2])
    with pytest.raises(TypeError, match="int32"):
        tree.search_sorted_z(pos, jnp.zeros((3, 3), jnp.int32))
