"""Minimum spanning trees against Kruskal's algorithm on all pairs, SciPy and friends-of-friends groups."""

from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import mesh_of
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components, minimum_spanning_tree

from jztree import kernels
from jztree.config import KNNConfig, TreeConfig
from jztree.data import Pos
from jztree.fof import fof_labels
from jztree.hierarchy import cut, dendrogram
from jztree.mst import SpanningTree, spanning_tree

pytestmark = pytest.mark.emulated


def exact_lengths(tree: SpanningTree) -> np.ndarray:
    """Return the lengths of the edges in float64."""
    words = np.asarray(tree.exact).astype(np.uint64)
    return (words[:, 0] | words[:, 1] << np.uint64(32)).view(np.float64)


def weights(pos: np.ndarray, box: Any = None, core_k: int | None = None) -> np.ndarray:
    """Return the squared lengths of the edges between all pairs."""
    squares = oracles.squared_distances(pos, pos, box)
    if core_k is None or len(pos) == 0:
        return squares
    core = np.sort(squares, axis=1)[:, core_k - 1]
    return np.maximum(squares, np.maximum(core[:, None], core))


def check(tree: SpanningTree, pos: np.ndarray, box: Any = None, core_k: int | None = None) -> None:
    """Compare all fields with Kruskal's algorithm."""
    weight, num = weights(pos, box, core_k), max(len(pos) - 1, 0)
    ends = oracles.kruskal(weight)
    assert int(tree.num) == num
    np.testing.assert_array_equal(np.stack([tree.i, tree.j], axis=1)[:num], ends)
    np.testing.assert_allclose(exact_lengths(tree)[:num], np.sqrt(weight[ends[:, 0], ends[:, 1]]), rtol=1e-15)
    np.testing.assert_array_equal(tree.length, exact_lengths(tree).astype(pos.dtype))
    for rows in (tree.i[num:], tree.j[num:]):
        np.testing.assert_array_equal(rows, np.full(len(rows), -1))
    assert np.isinf(tree.length[num:]).all()


def difficult(name: str, dims: int = 3) -> np.ndarray:
    """Return a set of particles with many ties, or with lengths of many sizes."""
    rng = np.random.default_rng(3)
    pos = rng.random((200, dims))
    if name == "equal points":
        return pos[rng.integers(0, 30, 200)]
    if name == "all points equal":
        return np.repeat(pos[:1], 200, axis=0)
    if name == "lattice":
        return rng.permutation(oracles.lattice(6, dims, np.float64, 0.125))
    if name == "equal roots":  # of squared lengths that differ
        plane = rng.permutation(oracles.lattice(14, 2, np.float64, 0.0625))
        return np.concatenate([plane, 1e-9 * rng.integers(0, 8, (len(plane), dims - 2))], axis=1)
    if name == "line":
        return np.where(np.arange(dims) == 0, pos, 0.5)
    if name == "clumps":
        return np.asarray((rng.random((5, dims))[rng.integers(0, 5, 200)] + 1e-5 * pos) % 1)
    assert name == "wide range"
    return np.asarray(0.5 + (pos - 0.5) * 10.0 ** -rng.uniform(0, 12, (200, 1)))


NAMES = ["equal points", "all points equal", "lattice", "equal roots", "line", "clumps", "wide range"]
each_name = pytest.mark.parametrize("name", NAMES)


@pytest.mark.parametrize("dims", range(1, 9))
@pytest.mark.parametrize("kind", ["open", "periodic", "mixed"])
def test_equals_kruskal(dims: int, kind: str, dtype: Any) -> None:
    box = oracles.box_lengths(kind, dims)
    pos = oracles.uniform(300, dims, dtype)
    check(spanning_tree(pos, boxsize=box), pos, box)


@each_name
@pytest.mark.parametrize("core_k", [None, 5])
@pytest.mark.parametrize("kind", ["open", "periodic"])
def test_difficult_sets_equal_kruskal(name: str, kind: str, core_k: int | None, dtype: Any) -> None:
    pos = difficult(name).astype(dtype)
    box = 1.0 if kind == "periodic" else None
    check(spanning_tree.jit(pos, boxsize=box, core_k=core_k), pos, box, core_k)


def rings(rng: np.random.Generator) -> np.ndarray:
    """Return 60 points: centres with other points around them, at equal or nearly equal distances and angles."""
    around = int(rng.integers(3, 15))
    angle = (np.arange(around) + rng.uniform(0, 0.7, around)) * 2 * np.pi / around
    radius = rng.choice([0.02, 0.05]) * (1 + rng.choice([0, 1e-9, 0.3]) * rng.random(around))
    ring = np.stack([np.cos(angle), np.sin(angle)], axis=1) * radius[:, None]
    centre = rng.random((60 // around + 1, 1, 2))
    return np.concatenate([centre, centre + ring], axis=1).reshape(-1, 2)[:60] % 1


@pytest.mark.parametrize("kind", ["open", "periodic"])
def test_particles_with_others_around_them_equal_kruskal(kind: str, dtype: Any) -> None:
    """In two dimensions, a particle whose near particles enclose it does not search farther."""
    rng = np.random.default_rng(5)
    box = 1.0 if kind == "periodic" else None
    for _ in range(40):
        pos = rng.permutation(rings(rng)).astype(dtype)
        check(spanning_tree.jit(pos, boxsize=box), pos, box)


@pytest.mark.parametrize("core_k", [1, 2, 20, 150])
def test_mutual_reachability_equals_kruskal(core_k: int) -> None:
    pos = oracles.clustered(150, 2) % 1
    check(spanning_tree(pos, boxsize=1.0, core_k=core_k), pos, 1.0, core_k)


def test_core_distance_of_one_particle_gives_distances() -> None:
    pos = oracles.uniform(100, 3)
    jax.tree.map(np.testing.assert_array_equal, spanning_tree(pos, core_k=1), spanning_tree(pos))


@pytest.mark.parametrize("n", [0, 1, 2, 3])
@pytest.mark.parametrize("core_k", [None, 1, 2])
def test_few_particles(n: int, core_k: int | None) -> None:
    pos = oracles.uniform(n, 3)
    if core_k is not None and core_k > max(n, 1):
        with pytest.raises(ValueError, match=f"core_k is {core_k}, but there are only {n} particles"):
            spanning_tree(pos, core_k=core_k)
        return
    tree = spanning_tree(pos, core_k=core_k)
    assert tree.rows == n
    check(tree, pos, None, core_k)


def test_positions_outside_the_box_are_wrapped() -> None:
    pos = (oracles.uniform(300, 3) * np.float32(5) - np.float32(2)).astype(np.float32)
    check(spanning_tree(pos, boxsize=1.0), pos, 1.0)


def test_images_of_one_point_are_equal_points() -> None:
    pos = np.random.default_rng(2).integers(-3, 4, (100, 2)).astype(np.float32)
    check(spanning_tree(pos, boxsize=1.0), pos, 1.0)


@pytest.mark.parametrize("num", [0, 1, 2, 60])
def test_padding_has_no_edges(num: int) -> None:
    pos = oracles.uniform(80, 3)
    pos[num:] = np.nan
    tree = spanning_tree.jit(Pos(pos=pos, num=jnp.asarray(num)))
    assert tree.i.shape == (79,)
    check(tree, pos[:num])


@pytest.mark.long
@pytest.mark.parametrize("kind", ["uniform", "clustered", "lattice"])
def test_many_particles_equal_scipy(kind: str) -> None:
    pos = {
        "uniform": lambda: oracles.uniform(3000, 3),
        "clustered": lambda: oracles.clustered(3000, 3),
        "lattice": lambda: oracles.lattice(14, 3),
    }[kind]()
    tree = spanning_tree.jit(pos)
    # SciPy takes 0 for a missing edge; no two of these points are equal.
    there = minimum_spanning_tree(np.sqrt(weights(pos))).data
    np.testing.assert_allclose(exact_lengths(tree), np.sort(there), rtol=1e-15)
    graph = np.asarray(tree.i), np.asarray(tree.j)
    joined = connected_components(_graph(graph, len(pos)), directed=False)[0]
    assert joined == 1


def _graph(ends: tuple[np.ndarray, np.ndarray], n: int) -> Any:
    return coo_array((np.ones(len(ends[0])), ends), shape=(n, n))


def test_edges_of_equal_length_are_in_the_order_of_squares() -> None:
    for x, ends in ((1, [(1, 2), (0, 2)]), (-1, [(0, 2), (0, 1)])):
        pos = np.array([[0, 0], [1, 1.5e-8], [x, 0]], np.float32)
        squares = oracles.squared_distances(pos, pos)
        assert np.sqrt(squares[0, 1]) == np.sqrt(squares[0, 2])
        tree = spanning_tree(pos)
        assert [*zip(tree.i.tolist(), tree.j.tolist(), strict=True)] == ends
        clusters = dendrogram(tree)
        np.testing.assert_array_equal(clusters.exact_lengths(), exact_lengths(tree))
        np.testing.assert_array_equal(clusters.left[0], ends[0][0])
        for length in exact_lengths(tree):
            groups = fof_labels(pos, length, output_order="input")[1]
            np.testing.assert_array_equal(cut(tree, length), groups)


@pytest.mark.long
@pytest.mark.parametrize("box", [None, 1.0])
@pytest.mark.parametrize("name", ["equal roots", "clustered"])
def test_cuts_at_lengths_of_edges_are_groups(name: str, box: float | None) -> None:
    """The length in float64 is the first linking length that links the ends."""
    pos = oracles.clustered(2000, 3) % np.float32(1) if name == "clustered" else difficult(name).astype(np.float32)
    tree = spanning_tree.jit(pos, boxsize=box)
    lengths = exact_lengths(tree)
    for edge in np.linspace(0, len(lengths) - 1, 20).astype(int):
        for rlink in (lengths[edge], np.nextafter(lengths[edge], 0)):
            kept = lengths <= rlink
            ends = np.asarray(tree.i)[kept], np.asarray(tree.j)[kept]
            expected = oracles.smallest_members(connected_components(_graph(ends, len(pos)), directed=False)[1])
            np.testing.assert_array_equal(fof_labels.jit(pos, rlink, box, output_order="input")[1], expected)


def test_any_hierarchy_and_number_of_threads_gives_the_same_tree() -> None:
    pos = oracles.clustered(3000, 3)
    pos[::7] = pos[::-1][::7]
    expected = spanning_tree(pos)
    for leaf_size, fan_out in ((2, 2), (7, 30), (200, 8)):
        cfg = KNNConfig(tree=TreeConfig(leaf_size=leaf_size, fan_out=fan_out))
        jax.tree.map(np.testing.assert_array_equal, spanning_tree(pos, cfg=cfg), expected)
    threads = kernels.native_info()["num_threads"]
    try:
        kernels.set_num_threads(1)
        jax.tree.map(np.testing.assert_array_equal, spanning_tree(pos), expected)
    finally:
        kernels.set_num_threads(threads)


def test_order_of_rows_does_not_change_lengths() -> None:
    pos = oracles.clustered(1000, 3)
    shuffled = np.random.default_rng(1).permutation(pos)
    np.testing.assert_array_equal(spanning_tree(pos).exact, spanning_tree(shuffled).exact)


def test_mapped_particles_give_the_trees_of_each_set() -> None:
    sets = jnp.stack([oracles.uniform(60, 3, seed=seed) for seed in range(3)])
    result = jax.vmap(lambda pos: spanning_tree(pos, core_k=3))(sets)
    for i, pos in enumerate(sets):
        single = jax.tree.map(lambda leaf, i=i: leaf[i], result)
        jax.tree.map(np.testing.assert_array_equal, single, spanning_tree(pos, core_k=3))


@pytest.mark.parametrize("core_k", [None, 4])
@pytest.mark.parametrize("box", [None, 1.0])
def test_derivatives_of_lengths_equal_differences(core_k: int | None, box: float | None, x64: None) -> None:
    pos = oracles.uniform(40, 3, np.float64)

    def total(pos: jax.Array) -> jax.Array:
        return (spanning_tree(pos, boxsize=box, core_k=core_k).length ** 2 * jnp.arange(39)).sum()

    step = 1e-6 * np.random.default_rng(5).standard_normal(pos.shape)
    change = (total(pos + step) - total(pos - step)) / 2
    np.testing.assert_allclose(np.sum(jax.grad(total)(pos) * step), change, rtol=1e-6)


def test_derivatives_between_equal_points_are_zero() -> None:
    gradient = jax.grad(lambda pos: spanning_tree(pos).length.sum())(jnp.ones((5, 3)))
    np.testing.assert_array_equal(gradient, np.zeros((5, 3)))


def test_nan_position_raises() -> None:
    pos = oracles.uniform(50, 3)
    pos[17, 1] = np.nan
    with pytest.raises(ValueError, match="row 17 "):
        spanning_tree(pos)


@pytest.mark.parametrize(("size", "numbers"), [(3, [2, 3, 7]), (20, [9, 10, 12]), (40, [25, 32, 27])])
def test_core_k_of_one_size_shares_a_program(size: int, numbers: list[int], count_compilations: Any) -> None:
    """Three particles are padded."""
    pos = oracles.uniform(max(size, numbers[-1] if size > 3 else 7), 3)
    spanning_tree.jit(pos, boxsize=1.0, core_k=numbers[0])
    with count_compilations() as lines:
        trees = [spanning_tree.jit(pos, boxsize=1.0, core_k=number) for number in numbers]
    assert not [line for line in lines if "spanning_tree" in line]
    for number, tree in zip(numbers, trees, strict=True):
        check(tree, pos, 1.0, number)
        jax.tree.map(np.testing.assert_array_equal, tree, spanning_tree(pos, boxsize=1.0, core_k=number))


def test_noninteger_core_k_raises() -> None:
    with pytest.raises(TypeError, match="core_k must be an integer"):
        spanning_tree(oracles.uniform(50, 3), core_k=2.5)  # type: ignore[arg-type]


def test_core_k_above_num_raises_in_compiled_calls() -> None:
    gpus.skip_where_kernels_cannot_raise()
    for core_k in (51, 200, 2**31 - 1):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=f"core_k is {core_k}, but there are only 50 particles"):
            jax.block_until_ready(spanning_tree.jit(oracles.uniform(50, 3), core_k=core_k))
    with pytest.raises(ValueError, match="core_k is 2147483648; it must be at most the number of particles"):
        spanning_tree.jit(oracles.uniform(50, 3), core_k=2**31)


def test_core_k_above_traced_num_raises() -> None:
    gpus.skip_where_kernels_cannot_raise()
    with pytest.raises(oracles.RUN_TIME_ERROR, match="core_k is 7, but there are only 6 particles"):
        jax.block_until_ready(spanning_tree.jit(Pos(pos=oracles.uniform(50, 3), num=jnp.asarray(6)), core_k=7))


def test_one_device_of_a_mesh_gives_the_same_tree() -> None:
    pos = oracles.uniform(50, 3)
    result = spanning_tree.smap(mesh_of(1), jit=True)(pos[None])
    np.testing.assert_array_equal(np.ravel(result.exact), np.ravel(spanning_tree(pos).exact))
