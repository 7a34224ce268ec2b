"""Groups and clusters of spanning trees against friends-of-friends groups and SciPy."""

from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from scipy.cluster.hierarchy import fcluster, is_valid_linkage
from scipy.cluster.hierarchy import linkage as scipy_linkage

from jztree import kernels
from jztree.data import Pos
from jztree.fof import fof_labels
from jztree.hierarchy import cut, dendrogram
from jztree.mst import SpanningTree, spanning_tree

pytestmark = pytest.mark.emulated


def tree_of(ends: Any, rows: int) -> SpanningTree:
    """Return a tree with edges of lengths 0, 1, 2 and so on."""
    ends = np.asarray(ends, np.int32).reshape(-1, 2)
    length = np.arange(len(ends), dtype=np.float64)
    words = jnp.asarray(length.view(np.uint32).reshape(-1, 2))
    num = jnp.int32(len(ends))
    return SpanningTree(
        i=ends[:, 0], j=ends[:, 1], length=jnp.asarray(length, jnp.float32), exact=words, num=num, rows=rows
    )


def slow_linkage(ends: np.ndarray, rows: int) -> np.ndarray:
    """Return the clusters that each edge joins, and the number of rows of the result."""
    cluster, result = np.arange(rows), []
    for edge, (a, b) in enumerate(np.asarray(ends)):
        joined = sorted((cluster[a], cluster[b]))
        members = np.isin(cluster, joined)
        result.append((*joined, members.sum()))
        cluster[members] = rows + edge
    return np.array(result, int).reshape(-1, 3)


def linkage_by_union_find(ends: np.ndarray, rows: int) -> np.ndarray:
    """Return the same for many rows."""
    parent, result = list(range(2 * rows)), np.zeros((len(ends), 3), int)
    count = [1] * rows + [0] * rows

    def root(cluster: int) -> int:
        while parent[cluster] != cluster:
            parent[cluster] = parent[parent[cluster]]
            cluster = parent[cluster]
        return cluster

    for edge, (a, b) in enumerate(ends.tolist()):
        single, second = sorted((root(a), root(b)))
        parent[single] = parent[second] = rows + edge
        count[rows + edge] = count[single] + count[second]
        result[edge] = single, second, count[rows + edge]
    return result


def random_ends(kind: str, rows: int) -> np.ndarray:
    """Return the edges of a tree in random order, or in an order that makes a deep or a flat hierarchy."""
    rng = np.random.default_rng(rows)
    if kind == "path":
        ends = np.stack([np.arange(rows - 1), np.arange(1, rows)], axis=1)
    elif kind == "star":
        ends = np.stack([np.zeros(rows - 1, int), np.arange(1, rows)], axis=1)
    else:
        ends = np.stack([rng.integers(0, np.arange(1, rows)), np.arange(1, rows)], axis=1)
        ends = rng.permutation(rows)[rng.permutation(ends)]
    return np.sort(ends, axis=1)


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("box", [None, 1.0])
def test_cuts_equal_friends_of_friends(dims: int, box: float | None, dtype: Any) -> None:
    pos = oracles.clustered(500, dims, dtype) % dtype(1)
    tree = spanning_tree.jit(pos, boxsize=box)
    words = np.asarray(tree.exact).astype(np.uint64)
    lengths = (words[:, 0] | words[:, 1] << np.uint64(32)).view(np.float64)
    for edge in np.linspace(0, len(lengths) - 1, 10).astype(int):
        for rlink in (lengths[edge], np.nextafter(lengths[edge], 0)):
            expected = fof_labels.jit(pos, rlink, box, output_order="input")[1]
            np.testing.assert_array_equal(cut.jit(tree, rlink), expected)


def test_cuts_of_a_lattice_at_its_spacing_equal_friends_of_friends() -> None:
    """The spacing is not a binary number, so float64 distances are at the linking length or differ by rounding."""
    pos = oracles.lattice(7, 3, spacing=0.1)
    tree = spanning_tree(pos)
    for rlink in (0.1, np.nextafter(0.1, 0), float(np.float32(0.1)), 0.0, 5.0):
        np.testing.assert_array_equal(cut(tree, rlink), fof_labels(pos, rlink, output_order="input")[1])


def test_padding_rows_are_separate_groups() -> None:
    pos = oracles.uniform(60, 2)
    part = Pos(pos=pos, num=jnp.asarray(40))
    np.testing.assert_array_equal(cut(spanning_tree(part), 0.2), fof_labels(part, 0.2, output_order="input")[1])
    np.testing.assert_array_equal(cut(spanning_tree(part), 10.0)[40:], np.arange(40, 60))


def test_cut_at_lengths_below_the_normal_numbers_gives_the_groups(x64: None) -> None:
    """These lengths are rounded, but an edge belongs to the groups from its length on."""
    gpus.skip_where_subnormal_numbers_vanish()
    pos = np.random.default_rng(1).integers(0, 60, (40, 2)) * 5e-324
    tree = spanning_tree.jit(pos)
    lengths = np.unique(np.asarray(tree.exact).view(np.float64))
    assert len(lengths) > 3
    for rlink in np.append(lengths, np.nextafter(lengths[lengths > 0], 0)):
        expected = fof_labels.jit(pos, rlink, output_order="input")[1]
        np.testing.assert_array_equal(cut.jit(tree, rlink), expected)


@pytest.mark.parametrize("rows", [0, 1, 2])
def test_few_particles(rows: int) -> None:
    tree = spanning_tree(oracles.uniform(rows, 3))
    np.testing.assert_array_equal(cut(tree, 10.0), np.zeros(rows))
    result = dendrogram(tree)
    assert result.parent.shape == (rows + max(rows - 1, 0),)
    if rows < 2:
        with pytest.raises(ValueError, match="linkage needs at least two particles"):
            result.linkage()


def test_linkage_equals_scipy(dtype: Any) -> None:
    pos = oracles.clustered(400, 3, dtype)
    result = dendrogram.jit(spanning_tree.jit(pos)).linkage()
    expected = scipy_linkage(pos.astype(np.float64), "single")
    assert is_valid_linkage(result)
    np.testing.assert_array_equal(result[:, [0, 1, 3]], expected[:, [0, 1, 3]])
    np.testing.assert_allclose(result[:, 2], expected[:, 2], rtol=1e-14)


def test_linkage_of_equal_lengths_is_that_of_the_same_groups() -> None:
    pos = oracles.lattice(6, 3, spacing=0.25)
    result = dendrogram(spanning_tree(pos)).linkage()
    assert is_valid_linkage(result)
    np.testing.assert_array_equal(fcluster(result, 0.25, "distance"), np.ones(len(pos)))
    np.testing.assert_array_equal(np.sort(fcluster(result, 0.2499, "distance")), np.arange(1, len(pos) + 1))


@pytest.mark.parametrize("kind", ["path", "star", "random"])
@pytest.mark.parametrize("rows", [2, 3, 4, 5, 31, 200])
def test_clusters_of_any_tree(kind: str, rows: int) -> None:
    ends = random_ends(kind, rows)
    result, expected = dendrogram(tree_of(ends, rows)), slow_linkage(ends, rows)
    np.testing.assert_array_equal(np.stack([result.left, result.right, result.count], axis=1), expected)
    parent = np.full(2 * rows - 1, -1)
    parent[expected[:, :2]] = rows + np.arange(rows - 1)[:, None]
    np.testing.assert_array_equal(result.parent, parent)


@pytest.mark.parametrize("kind", ["path", "star", "random"])
def test_clusters_of_large_trees(kind: str) -> None:
    """On a CPU with eight threads or more, each thread joins a block of the edges."""
    rows = 20_001
    ends = random_ends(kind, rows)
    result, expected = dendrogram(tree_of(ends, rows)), linkage_by_union_find(ends, rows)
    np.testing.assert_array_equal(np.stack([result.left, result.right, result.count], axis=1), expected)
    fewer = dendrogram(tree_of(ends[:-3000], rows))
    np.testing.assert_array_equal(np.stack([fewer.left, fewer.right, fewer.count], axis=1), expected[:-3000])


def test_clusters_of_padded_particles() -> None:
    pos = oracles.uniform(50, 3)
    result = dendrogram(spanning_tree(Pos(pos=pos, num=jnp.asarray(30))))
    alone = dendrogram(spanning_tree(pos[:30]))
    shifted = [np.where(np.asarray(rows) < 30, rows, np.asarray(rows) + 20) for rows in (alone.left, alone.right)]
    np.testing.assert_array_equal(result.left[:29], shifted[0])
    np.testing.assert_array_equal(result.right[:29], shifted[1])
    np.testing.assert_array_equal(result.count, np.append(alone.count, np.zeros(20)))
    np.testing.assert_array_equal(result.left[29:], np.full(20, -1))
    with pytest.raises(ValueError, match="29 edges join 50 rows"):
        result.linkage()


def test_mapped_trees() -> None:
    sets = jnp.stack([oracles.uniform(40, 3, seed=seed) for seed in range(3)])
    result = jax.vmap(lambda pos: (dendrogram(spanning_tree(pos)), cut(spanning_tree(pos), 0.2)))(sets)
    for i, pos in enumerate(sets):
        single = jax.tree.map(lambda leaf, i=i: leaf[i], result)
        jax.tree.map(
            np.testing.assert_array_equal, single, (dendrogram(spanning_tree(pos)), cut(spanning_tree(pos), 0.2))
        )


def test_traced_linking_lengths() -> None:
    tree = spanning_tree(oracles.uniform(60, 2))
    lengths = jnp.array([0.05, 0.1])
    result = jax.vmap(lambda rlink: cut(tree, rlink))(lengths)
    for labels, rlink in zip(result, lengths, strict=True):
        np.testing.assert_array_equal(labels, cut(tree, rlink))
    assert len(np.unique(result[0])) > len(np.unique(result[1]))


def test_negative_traced_linking_length_raises() -> None:
    gpus.skip_where_kernels_cannot_raise()
    with pytest.raises(oracles.RUN_TIME_ERROR, match="rlink is -1; it must be finite and not negative"):
        jax.block_until_ready(jax.jit(cut)(spanning_tree(oracles.uniform(20, 3)), -1.0))


def test_other_object_than_a_tree_raises() -> None:
    for function in (dendrogram, lambda tree: cut(tree, 0.1)):
        with pytest.raises(TypeError, match=r"tree must be a jztree.mst.SpanningTree.*not tuple"):
            function((1, 2))


def test_ends_outside_the_rows_raise() -> None:
    gpus.skip_where_kernels_cannot_raise()
    bad = jnp.asarray([[0, 9]], jnp.int32)
    with pytest.raises(oracles.RUN_TIME_ERROR, match="invalid row index in the ends of edges"):
        jax.block_until_ready(kernels.dendrogram(bad, 1, 5))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="the edges contain a circle"):
        jax.block_until_ready(kernels.dendrogram(jnp.asarray([[0, 1], [0, 1]], jnp.int32), 2, 5))
    ends = random_ends("random", 20_001)
    ends[15_000] = ends[2_000]
    with pytest.raises(oracles.RUN_TIME_ERROR, match="the edges contain a circle"):
        jax.block_until_ready(kernels.dendrogram(jnp.asarray(ends, jnp.int32), 20_000, 20_001))
