"""z-order compared with Morton keys in Python integers, and every invariant of the plane hierarchy."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import data, tree
from jztree.config import TreeConfig, leaf_size_of

pytestmark = pytest.mark.emulated

N = 600
LEAF = leaf_size_of(TreeConfig())
BOXES = ["open", "periodic", "mixed"]
SAMPLES = {"uniform": oracles.uniform, "clustered": oracles.clustered}


# The hierarchy


def assert_window_rule(th: tree.TreeHierarchy, keys: list[int], cfg: TreeConfig, n: int) -> None:
    """Assert that every window has one boundary, where keys differ in the highest bit of the window."""
    num = len(keys)
    # The highest bit in which neighbouring keys differ, 0 if they are equal.
    levels = [1000] + [(a ^ b).bit_length() for a, b in pairwise(keys)]
    below = list(range(num))
    for plane in range(th.num_planes):
        window = leaf_size_of(cfg) if plane == 0 else cfg.fan_out
        splits, rows = np.asarray(th.splits(plane)), np.asarray(th.particle_splits(plane))
        length = n if plane == 0 else th.num_nodes(plane - 1)
        assert th.num_nodes(plane) == max(1, -(-length // window))
        for node in range(th.num_nodes(plane)):
            inside = [i for i in range(node * window, min((node + 1) * window, len(below))) if below[i] < num]
            if not inside:
                assert rows[node] == num
                continue
            assert splits[node] in inside
            assert levels[rows[node]] == max(levels[below[i]] for i in inside)
        below = [int(row) for row in rows[:-1]]


def assert_invariants(th: tree.TreeHierarchy, pos: np.ndarray, num: int, box: Any) -> None:
    """Check splits, counts and boxes of each plane; ``pos`` is in z-order."""
    inside = oracles.wrapped(pos[:num], box)
    assert th.num_nodes(th.num_planes - 1) <= 32
    for plane in range(th.num_planes):
        nodes = th.num_nodes(plane)
        splits, rows = np.asarray(th.splits(plane)), np.asarray(th.particle_splits(plane))
        below = np.arange(num + 1) if plane == 0 else np.asarray(th.particle_splits(plane - 1))
        assert splits.shape == rows.shape == (nodes + 1,)
        lower, upper = np.asarray(th.lower(plane)), np.asarray(th.upper(plane))
        assert splits[0] == 0
        assert splits[-1] == len(below) - 1
        assert (np.diff(splits) >= 0).all()
        np.testing.assert_array_equal(rows, below[splits])
        np.testing.assert_array_equal(th.count(plane), np.diff(rows))
        for node in range(nodes):
            of_node = inside[rows[node] : rows[node + 1]]
            low, high = lower[node], upper[node]
            if len(of_node):
                np.testing.assert_array_equal(low, of_node.min(axis=0))
                np.testing.assert_array_equal(high, of_node.max(axis=0))
            else:
                assert (low == np.inf).all()
                assert (high == -np.inf).all()
        full = np.asarray(th.count(plane)) > 0
        low, high = (corner.astype(np.float64)[full] for corner in (lower, upper))
        np.testing.assert_allclose(np.asarray(th.center(plane))[full], (low + high) / 2, rtol=1e-6)
        assert np.isnan(np.asarray(th.center(plane))[~full]).all()


CONFIGS = {
    "usual": TreeConfig(),
    "small": TreeConfig(leaf_size=2, fan_out=2),
    "odd": TreeConfig(leaf_size=5, fan_out=3),
    "long": TreeConfig(leaf_size=150, fan_out=2),
}


@pytest.mark.parametrize("sample", SAMPLES)
@pytest.mark.parametrize("cfg", CONFIGS)
@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("dims", [1, 3, 6])
def test_hierarchy_follows_the_window_rule(dims: int, box: str, cfg: str, sample: str) -> None:
    pos, length = SAMPLES[sample](N, dims), oracles.box_lengths(box, dims)
    posz, th = tree.zsort_and_tree(jnp.asarray(pos), CONFIGS[cfg], boxsize=length)
    posz = np.asarray(posz)
    assert_invariants(th, posz, N, length)
    assert_window_rule(th, oracles.morton_keys(posz, length), CONFIGS[cfg], N)
    size = leaf_size_of(CONFIGS[cfg])
    assert (th.count(0) >= 1).all()
    assert (th.count(0) <= 2 * size - 1).all()


@pytest.mark.parametrize("n", [1, 2, *(m * LEAF + i for m in (1, 2) for i in (-1, 0, 1)), 64 * LEAF, 64 * LEAF + 1])
def test_hierarchy_of_any_number_of_particles(n: int, dtype: Any) -> None:
    posz, th = tree.zsort_and_tree(jnp.asarray(oracles.uniform(n, 3, dtype)))
    assert_invariants(th, np.asarray(posz), n, None)
    assert (th.count(0) >= 1).all()
    assert (th.count(0) <= 2 * LEAF - 1).all()


@pytest.mark.parametrize("num", [0, 1, 24, 25, 300, 600])
@pytest.mark.parametrize("filler", [0.5, np.nan], ids=str)
def test_hierarchy_of_padded_particles(num: int, filler: float) -> None:
    pos = np.full((N, 3), filler, np.float32)
    pos[:num] = oracles.uniform(num, 3)
    cfg = TreeConfig(leaf_size=4, fan_out=2)
    partz, th = tree.zsort_and_tree(data.Pos(pos=jnp.asarray(pos), num=num), cfg)
    assert th.plane_sizes == tree.zsort_and_tree(jnp.asarray(oracles.uniform(N, 3)), cfg)[1].plane_sizes
    assert_invariants(th, np.asarray(partz.pos), num, None)
    if num:
        assert_window_rule(th, oracles.morton_keys(np.asarray(partz.pos)[:num]), cfg, N)
    traced = jax.jit(lambda count: tree.zsort_and_tree(data.Pos(pos=jnp.asarray(pos), num=count), cfg)[1])(num)
    for a, b in zip(jax.tree.leaves(th), jax.tree.leaves(traced), strict=True):
        np.testing.assert_array_equal(a, b)


def test_hierarchy_of_points_outside_and_on_the_faces_of_the_box(dtype: Any) -> None:
    faces = np.array([0, 1e-9, -1e-9, 0.25, -0.25, 1, 1 - 1e-9, 1 + 1e-9, 2, -1, 3.5])
    pos = np.stack(np.meshgrid(faces, faces, indexing="ij"), axis=-1).reshape(-1, 2).astype(dtype)
    posz, th = tree.zsort_and_tree(jnp.asarray(pos), TreeConfig(leaf_size=3), boxsize=1.0)
    assert_invariants(th, np.asarray(posz), len(pos), 1.0)
    assert float(jnp.min(th.flat_lower)) >= 0
    assert float(jnp.max(th.flat_upper)) <= 1


def test_hierarchy_of_equal_points() -> None:
    posz, th = tree.zsort_and_tree(jnp.full((N, 3), 0.3), TreeConfig(leaf_size=4, fan_out=2))
    assert_invariants(th, np.asarray(posz), N, None)
    assert (th.count(0) >= 1).all()
    assert (th.count(0) <= 7).all()


@pytest.mark.parametrize("mass", ["array", "number"])
@pytest.mark.parametrize("num", [None, 500, 0], ids=["full", "padded", "empty"])
def test_masses_and_centres_of_mass_in_every_plane(mass: str, num: int | None, dtype: Any) -> None:
    pos = oracles.uniform(N, 3, dtype) + dtype(0.5)
    weight = np.random.default_rng(8).random(N).astype(dtype)
    part = data.PosMass(pos=jnp.asarray(pos), mass=jnp.asarray(weight) if mass == "array" else dtype(2.5), num=num)
    partz, th = tree.zsort_and_tree(part, TreeConfig(leaf_size=4, fan_out=2, masses=True), boxsize=1.0)
    count = N if num is None else num
    weight = np.broadcast_to(np.asarray(partz.mass, np.float64), (N,))[:count]
    inside = oracles.wrapped(np.asarray(partz.pos), 1.0).astype(np.float64)[:count]
    rtol = 4 * float(np.finfo(dtype).eps)
    for plane in range(th.num_planes):
        rows = np.asarray(th.particle_splits(plane))
        node_mass, node_centre = np.asarray(th.mass(plane)), np.asarray(th.center_of_mass(plane))
        for node in range(th.num_nodes(plane)):
            part_of = slice(rows[node], rows[node + 1])
            total = weight[part_of].sum()
            centre = weight[part_of] @ inside[part_of] / total if total > 0 else np.zeros(3)
            np.testing.assert_allclose(node_mass[node], total, rtol=rtol)
            np.testing.assert_allclose(node_centre[node], centre, rtol=rtol)


def test_masses_are_computed_on_request_only() -> None:
    _, th = tree.zsort_and_tree(data.PosMass(pos=jnp.zeros((5, 3)), mass=1.0))
    assert th.flat_mass is None
    assert th.flat_center_of_mass is None
    for read in (th.mass, th.center_of_mass):
        with pytest.raises(ValueError, match="masses=True"):
            read(0)
    with pytest.raises(ValueError, match="mass"):
        tree.zsort_and_tree(jnp.zeros((5, 3)), TreeConfig(masses=True))
    with pytest.raises(ValueError, match=r"shape \(5,\); its shape is \(7,\)"):
        tree.zsort_and_tree(data.PosMass(pos=jnp.zeros((5, 3)), mass=jnp.ones(7)), TreeConfig(masses=True))


def test_planes_are_consecutive_in_the_flat_arrays() -> None:
    _, th = tree.zsort_and_tree(jnp.asarray(oracles.uniform(N, 3)), TreeConfig(leaf_size=2, fan_out=2))
    assert th.num_planes == len(th.plane_sizes) > 1
    planes = range(th.num_planes)
    np.testing.assert_array_equal(jnp.concatenate([th.splits(p) for p in planes]), th.flat_splits)
    np.testing.assert_array_equal(jnp.concatenate([th.particle_splits(p) for p in planes]), th.flat_particle_splits)
    np.testing.assert_array_equal(jnp.concatenate([th.lower(p) for p in planes]), th.flat_lower)
    np.testing.assert_array_equal(jnp.concatenate([th.upper(p) for p in planes]), th.flat_upper)
    assert [th.node_slice(p).stop - th.node_slice(p).start for p in planes] == [th.num_nodes(p) for p in planes]


def test_build_on_sorted_particles_equals_sorting_and_building() -> None:
    part = data.PosMass(pos=jnp.asarray(oracles.clustered(N, 3)), mass=jnp.arange(N, dtype=jnp.float32), num=550)
    cfg = TreeConfig(masses=True)
    partz, th = tree.zsort_and_tree(part, cfg, boxsize=1.0)
    built = tree.build_tree_hierarchy(tree.zsort(part, boxsize=1.0)[0], cfg, boxsize=1.0)
    compiled = tree.build_tree_hierarchy.jit(partz, cfg, boxsize=1.0)
    for a, b, c in zip(jax.tree.leaves(th), jax.tree.leaves(built), jax.tree.leaves(compiled), strict=True):
        np.testing.assert_array_equal(a, b)
        np.testing.assert_array_equal(a, c)


def test_build_refuses_particles_that_are_not_in_z_order() -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match="zsort") as error:
        jax.block_until_ready(tree.build_tree_hierarchy(jnp.asarray(oracles.uniform(N, 3))))
    assert oracles.one_sentence(error)


@pytest.mark.parametrize("cfg", CONFIGS)
@pytest.mark.parametrize("row", [0, 1, LEAF - 2, LEAF - 1, LEAF, 62, 63, 64, 65, N - 2])
def test_build_refuses_two_exchanged_rows(row: int, cfg: str) -> None:
    pos = oracles.uniform(N, 3)
    pos = pos[oracles.z_order(pos)]
    jax.block_until_ready(tree.build_tree_hierarchy(jnp.asarray(pos), CONFIGS[cfg]))
    pos[[row, row + 1]] = pos[[row + 1, row]]
    with pytest.raises(oracles.RUN_TIME_ERROR, match="zsort"):
        jax.block_until_ready(tree.build_tree_hierarchy(jnp.asarray(pos), CONFIGS[cfg]))


@pytest.mark.parametrize(
    "name", ["flat_splits", "flat_particle_splits", "flat_lower", "flat_upper", "flat_mass", "flat_center_of_mass"]
)
def test_build_refuses_unsorted_particles_for_any_used_field(name: str) -> None:
    """The compiler removes a check if its result is unused."""
    part = data.PosMass(pos=jnp.asarray(oracles.uniform(N, 3)), mass=jnp.float32(1))
    build = jax.jit(lambda part: getattr(tree.build_tree_hierarchy(part, TreeConfig(masses=True)), name))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="zsort"):
        jax.block_until_ready(build(part))
    jax.block_until_ready(build(data.replace_num(tree.zsort(part)[0], N)))


@pytest.mark.parametrize("build", ["build_tree_hierarchy", "zsort_and_tree"])
def test_position_that_is_not_finite_names_the_row(build: str) -> None:
    pos = oracles.uniform(40, 3)
    pos[7, 2] = np.nan
    with pytest.raises(oracles.RUN_TIME_ERROR, match="row 7 ") as error:
        jax.block_until_ready(getattr(tree, build)(jnp.asarray(pos)))
    assert oracles.one_sentence(error)


def test_data_is_sorted_with_particles_and_must_match() -> None:
    part = data.Pos(pos=jnp.asarray(oracles.uniform(40, 3)), num=30)
    partz, moved, th = tree.zsort_and_tree(part, data=(jnp.arange(40), jnp.ones((40, 2))))
    np.testing.assert_array_equal(part.pos[moved[0]], partz.pos)
    assert moved[1].shape == (40, 2)
    assert int(th.count(0).sum()) == 30
    for wrong in (jnp.arange(41), {"a": jnp.arange(40), "b": jnp.float32(3)}):
        with pytest.raises(ValueError, match="40 rows"):
            tree.zsort_and_tree(part, data=wrong)


@pytest.mark.parametrize("box", [-1.0, np.nan, np.inf], ids=str)
def test_bad_traced_box(box: float) -> None:
    pos = jnp.asarray(oracles.uniform(40, 3))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="boxsize"):
        jax.block_until_ready(jax.jit(lambda length: tree.zsort_and_tree(pos, boxsize=length))(box))


def test_works_inside_jit_vmap_scan_and_grad() -> None:
    batch = jnp.stack([jnp.asarray(oracles.uniform(100, 3, seed=s)) for s in range(3)])
    sort = lambda pos: tree.zsort_and_tree(pos, boxsize=1.0)  # noqa: E731
    single = [jax.tree.leaves(sort(pos)) for pos in batch]
    expected = [jnp.stack(leaves) for leaves in zip(*single, strict=True)]
    scanned = jax.lax.scan(lambda carry, pos: (carry, sort(pos)), 0, batch)[1]
    for result in (jax.vmap(sort)(batch), jax.jit(jax.vmap(sort))(batch), scanned):
        for a, b in zip(jax.tree.leaves(result), expected, strict=True):
            np.testing.assert_array_equal(a, b)
    weight = jnp.arange(100.0)[:, None]
    gradient = jax.grad(lambda pos: (weight * tree.zsort(pos)[0]).sum())(batch[0])
    index = tree.zsort(batch[0])[1]
    np.testing.assert_array_equal(gradient[index], jnp.broadcast_to(weight, (100, 3)))


def test_new_box_or_num_does_not_compile_again(count_compilations: Any) -> None:
    pos = jnp.asarray(oracles.uniform(113, 3))
    tree.zsort_and_tree.jit(data.Pos(pos=pos, num=100), boxsize=1.0)
    with count_compilations() as compiled:
        for box, num in ((0.9, 100), ([1.0, 0, 2.0], 7), (0, 113), (None, 1)):
            tree.zsort_and_tree.jit(data.Pos(pos=pos, num=num), boxsize=box)
    assert compiled == []


# Several types


@pytest.mark.parametrize("nums", [(None, None), (150, 90), (200, 0), (0, 0)], ids=str)
@pytest.mark.parametrize("box", [None, 1.0], ids=["open", "periodic"])
def test_multi_type(box: Any, nums: tuple[Any, Any]) -> None:
    first = data.PosMass(pos=jnp.asarray(oracles.uniform(200, 3)), mass=jnp.arange(200.0), num=nums[0])
    second = data.Pos(pos=jnp.asarray(oracles.clustered(100, 3)), num=nums[1])
    counts = [data.get_num(first), data.get_num(second)]
    cfg = TreeConfig(leaf_size=4, fan_out=2)
    parts, ths = tree.zsort_and_tree_multi_type((first, second), cfg, boxsize=box)
    every = np.concatenate([np.asarray(p.pos)[:c] for p, c in zip(parts, counts, strict=True)])
    assert ths[0].plane_sizes == ths[1].plane_sizes
    for part, original, th, count in zip(parts, (first, second), ths, counts, strict=True):
        pos, rows = np.asarray(part.pos)[:count], [np.asarray(th.particle_splits(p)) for p in range(th.num_planes)]
        if sum(counts):
            inside = set(map(tuple, np.asarray(original.pos)[:count].tolist()))
            assert set(map(tuple, pos.tolist())) == inside
            keys = dict(zip(map(tuple, every.tolist()), oracles.morton_keys(every, box), strict=True))
            ours = [keys[tuple(x)] for x in pos.tolist()]
            assert ours == sorted(ours)
        for plane in range(th.num_planes):
            assert rows[plane][0] == 0
            assert rows[plane][-1] == count
            below = np.arange(count + 1) if plane == 0 else rows[plane - 1]
            np.testing.assert_array_equal(rows[plane], below[np.asarray(th.splits(plane))])
    positions = [np.asarray(part.pos) for part in parts]
    for plane in range(ths[0].num_planes):
        lower, upper = np.asarray(ths[0].lower(plane)), np.asarray(ths[0].upper(plane))
        np.testing.assert_array_equal(lower, ths[1].lower(plane))
        np.testing.assert_array_equal(upper, ths[1].upper(plane))
        splits = [np.asarray(th.particle_splits(plane)) for th in ths]
        for node in range(len(lower)):
            of_node = [pos[rows[node] : rows[node + 1]] for pos, rows in zip(positions, splits, strict=True)]
            both = np.concatenate(of_node)
            if len(both):
                np.testing.assert_array_equal(lower[node], both.min(axis=0))
                np.testing.assert_array_equal(upper[node], both.max(axis=0))


@pytest.mark.long
def test_multi_type_keeps_properties_and_jits() -> None:
    first = data.PosMass(pos=jnp.asarray(oracles.uniform(60, 2)), mass=jnp.arange(60.0), num=50)
    second = jnp.asarray(oracles.uniform(30, 2, seed=3))
    (one, two), _ = tree.zsort_and_tree_multi_type((first, second), boxsize=1.0)
    np.testing.assert_array_equal(one.pos[:50], first.pos[one.mass[:50].astype(int)])
    (again, reference), _ = tree.zsort_and_tree_multi_type.jit((first, second), boxsize=1.0)
    np.testing.assert_array_equal(one.pos, again.pos)
    np.testing.assert_array_equal(two, reference)


@pytest.mark.parametrize("jit", [False, True])
def test_one_hierarchy_of_several_types(jit: bool) -> None:
    """Each type has its nodes, and the ranges count the joined types."""
    parts = [data.Pos(pos=jnp.asarray(oracles.uniform(90, 3)), num=70), jnp.asarray(oracles.clustered(50, 3))]
    make = tree.zsort_and_tree_multi_type.jit if jit else tree.zsort_and_tree_multi_type
    cfg = TreeConfig(leaf_size=4, fan_out=2)
    each, ths = make(parts, cfg, boxsize=1.0)
    again, th = make(parts, cfg, boxsize=1.0, one_hierarchy=True)
    for value, reference in zip(jax.tree.leaves(each), jax.tree.leaves(again), strict=True):
        np.testing.assert_array_equal(value, reference)
    joint, _ = tree.zsort_and_tree(jnp.concatenate([parts[0].pos[:70], parts[1]]), cfg, boxsize=1.0)
    for plane in range(th.num_planes):
        np.testing.assert_array_equal(th.lower(plane), ths[0].lower(plane))
        splits = [np.asarray(th.particle_splits_of(kind, plane)) for kind in range(2)]
        np.testing.assert_array_equal(splits, [of.particle_splits(plane) for of in ths])
        np.testing.assert_array_equal(th.particle_splits(plane), splits[0] + splits[1])
        for node in range(th.num_nodes(plane)):
            of_types = [np.asarray(data.get_pos(p))[s[node] : s[node + 1]] for p, s in zip(again, splits, strict=True)]
            rows = np.asarray(joint)[th.particle_splits(plane)[node] : th.particle_splits(plane)[node + 1]]
            np.testing.assert_array_equal(np.unique(np.concatenate(of_types), axis=0), np.unique(rows, axis=0))
    with pytest.raises(ValueError, match="one_hierarchy=True"):
        ths[0].particle_splits_of(0, 0)
    for kind in (2, -1, "0", True):
        with pytest.raises(ValueError, match="it must be a type of this hierarchy, from 0 to 1"):
            th.particle_splits_of(kind, 0)


def test_multi_type_of_bad_arguments(x64: None) -> None:
    single, double = jnp.zeros((5, 3), jnp.float32), jnp.zeros((5, 3), jnp.float64)
    for parts in ((), (single, double), (single, single[:, :2])):
        with pytest.raises(ValueError, match="one dtype"):
            tree.zsort_and_tree_multi_type(parts)
    with pytest.raises(ValueError, match="one type"):
        tree.zsort_and_tree_multi_type((single,), TreeConfig(masses=True))


def test_multi_type_names_the_type_and_the_row_that_is_not_finite() -> None:
    good = data.Pos(pos=jnp.zeros((5, 3)), num=3)
    bad = jnp.zeros((5, 3)).at[2, 1].set(jnp.nan)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"type 1.*row 2 |row 2 .*type 1"):
        jax.block_until_ready(tree.zsort_and_tree_multi_type((good, bad)))


def test_hierarchy_is_a_pytree() -> None:
    _, th = tree.zsort_and_tree(jnp.asarray(oracles.uniform(100, 3)))
    through = jax.jit(lambda t: replace(t, flat_lower=t.flat_lower + 0))(th)
    assert through.plane_sizes == th.plane_sizes
    np.testing.assert_array_equal(through.flat_lower, th.flat_lower)
