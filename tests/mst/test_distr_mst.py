"""Minimum spanning trees over ranks, compared with trees of one device."""

from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, ROWS, SETS, deal, even, joined, make, mesh_of, square_mesh, uneven

import jztree as jz
from jztree import kernels, stats
from jztree.comm import _ranks
from jztree.data import Pos
from jztree.mst import SpanningTree, spanning_tree, squeeze_tree
from jztree.tree import ghosts

pytestmark = pytest.mark.emulated

NDEV = 3  # The tests share the compiled search over these devices, with ROWS particles each, in three dimensions.


def dealt(pos: np.ndarray, counts: np.ndarray, rows: int = ROWS) -> Pos:
    part = deal(pos, counts, rows)
    return Pos(pos=jnp.asarray(part.pos), num=jnp.asarray(part.num))


def check(result: SpanningTree, expected: SpanningTree, what: str = "") -> None:
    """Compare a tree over ranks with that of one device, and its distribution with equal shares."""
    num, total = np.asarray(result.num), int(expected.num)
    np.testing.assert_array_equal(num, _shares(total, len(num)), what)
    for name in ("i", "j", "length", "exact"):
        rows = np.asarray(getattr(result, name))
        np.testing.assert_array_equal(joined(rows, num), np.asarray(getattr(expected, name))[:total], f"{what}, {name}")
    for rank, count in enumerate(num):
        assert (np.asarray(result.i)[rank, count:] == -1).all()
        assert np.isinf(np.asarray(result.length)[rank, count:]).all()


def _shares(total: int, ndev: int) -> np.ndarray:
    return total // ndev + (np.arange(ndev) < total % ndev)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("core_k", [None, 4])
def test_several_devices_give_the_tree_of_one(ndev: int, core_k: int | None) -> None:
    find = spanning_tree.smap(mesh_of(ndev), jit=True)
    for name in SETS:
        pos, _, part = make(name, ndev)
        for box in (None, 1.0):
            if ("outlier" in name and box) or len(pos) < (core_k or 0):
                continue
            given = Pos(pos=jnp.asarray(part.pos), num=jnp.asarray(part.num))
            if ndev == 1:
                result = squeeze_tree(find(given, boxsize=box, core_k=core_k))
                jax.tree.map(
                    np.testing.assert_array_equal,
                    result,
                    squeeze_tree(spanning_tree.jit(pos, boxsize=box, core_k=core_k)),
                )
            else:
                check(
                    find(given, boxsize=box, core_k=core_k),
                    spanning_tree.jit(pos, boxsize=box, core_k=core_k),
                    f"{name}, box {box}",
                )


@pytest.mark.parametrize("ndev", [2, 4, 8, NDEV])
def test_tree_equals_kruskal(ndev: int) -> None:
    pos = oracles.clustered(160, 3) % np.float32(1)
    ends = oracles.kruskal(oracles.squared_distances(pos, pos, 1.0))
    result = squeeze_tree(spanning_tree.smap(mesh_of(ndev), jit=True)(dealt(pos, uneven(160, ndev)), boxsize=1.0))
    np.testing.assert_array_equal(np.stack([result.i, result.j], axis=1), ends)


def test_edges_of_equal_length_are_in_the_order_of_squares(count_compilations: Any) -> None:
    """Squares differ in the last bits, and have equal roots. Several numbers ``core_k`` share a program."""
    rng = np.random.default_rng(5)
    plane = rng.permutation(oracles.lattice(12, 2, np.float64, 0.0625))
    pos = np.append(plane, 1e-9 * rng.integers(0, 8, (len(plane), 1)), axis=1).astype(np.float32)
    squares = oracles.squared_distances(pos, pos)
    assert len(np.unique(squares)) > len(np.unique(np.sqrt(squares)))
    find, part = spanning_tree.smap(mesh_of(NDEV), jit=True), dealt(pos, uneven(len(pos), NDEV))
    result = squeeze_tree(find(part))
    np.testing.assert_array_equal(np.stack([result.i, result.j], axis=1), oracles.kruskal(squares))
    check(find(part, core_k=4), spanning_tree.jit(pos, core_k=4))
    with count_compilations() as lines:
        check(find(part, core_k=3), spanning_tree.jit(pos, core_k=3))
    assert not [line for line in lines if "spanning_tree" in line]


def _far_apart(rng: np.random.Generator) -> np.ndarray:
    """Return clumps on one or several ranks each, much farther apart than their sizes."""
    return np.concatenate([centre + 1e-3 * rng.random((150, 3)) for centre in rng.random((4, 3))])


def _line(rng: np.random.Generator) -> np.ndarray:
    return np.where(np.arange(3) == 1, rng.random((600, 3)), 0.25)


def _wide_range(rng: np.random.Generator) -> np.ndarray:
    return np.asarray(0.5 + (rng.random((600, 3)) - 0.5) * 10.0 ** -rng.uniform(0, 12, (600, 1)))


@pytest.mark.parametrize("points", [_far_apart, _line, _wide_range])
@pytest.mark.parametrize("box", [None, [1.0, 0.0, 1.0]])
def test_difficult_sets(points: Any, box: Any) -> None:
    pos = points(np.random.default_rng(1)).astype(np.float32)
    np.random.default_rng(2).shuffle(pos)
    check(
        spanning_tree.smap(mesh_of(NDEV), jit=True)(dealt(pos, even(600, NDEV)), boxsize=box),
        spanning_tree.jit(pos, boxsize=box),
    )


@pytest.mark.long
@pytest.mark.parametrize("dims", [2, 1, pytest.param(5, marks=pytest.mark.slow)])
def test_other_dimensions_in_float64(dims: int, x64: None) -> None:
    pos = np.random.default_rng(dims).random((400, dims)) * 3 - 1
    box = np.where(np.arange(dims) == 0, 1.0, 0.0)
    for unit in (1.0, 2.0**-532):
        part = dealt(pos * unit, uneven(400, NDEV), 400)
        check(
            spanning_tree.smap(mesh_of(NDEV), jit=True)(part, boxsize=box * unit),
            spanning_tree.jit(pos * unit, boxsize=box * unit),
        )


@pytest.mark.parametrize("core_k", [None, 4])
def test_lengths_below_the_normal_numbers_give_the_tree_of_one_device(core_k: int | None) -> None:
    pos = np.random.default_rng(1).integers(0, 1000, (66, 3)).astype(np.float32) * np.float32(2.0**-149)
    result = spanning_tree.smap(mesh_of(NDEV), jit=True)(dealt(pos, even(66, NDEV)), core_k=core_k)
    check(result, spanning_tree.jit(pos, core_k=core_k))


@pytest.mark.slow  # test_distr_density_peaks.py joins edges on such a mesh, by the same rounds
@pytest.mark.parametrize("through_others", [False, True])
def test_mesh_of_two_axes(monkeypatch: pytest.MonkeyPatch, through_others: bool) -> None:
    """With many ranks, rows travel through other ranks."""
    if through_others:
        monkeypatch.setattr(_ranks, "_FEW_RANKS", 1)
        monkeypatch.setattr(ghosts, "_FEW_REQUESTS", 0)
    pos, counts, _ = make("clustered", 4)
    # Other tests compile the other shape without these limits.
    part = dealt(pos, counts, ROWS + through_others)
    check(spanning_tree.smap(square_mesh(), jit=True)(part), spanning_tree.jit(pos))


@pytest.mark.parametrize("n", [0, 1, 2])
def test_few_particles(n: int) -> None:
    pos = oracles.uniform(n, 3)
    result = spanning_tree.smap(mesh_of(NDEV), jit=True)(dealt(pos, even(n, NDEV)))
    check(result, spanning_tree.jit(pos))


def test_no_rows() -> None:
    result = spanning_tree.smap(mesh_of(2), jit=True)(np.zeros((2, 0, 3), np.float32))
    np.testing.assert_array_equal(result.num, [0, 0])
    assert result.i.shape == (2, 0)


def test_core_k_above_the_number_of_all_particles_raises() -> None:
    gpus.skip_where_kernels_cannot_raise()
    part = dealt(oracles.uniform(3, 3), even(3, NDEV))
    with pytest.raises(oracles.RUN_TIME_ERROR, match="core_k is 4, but there are only 3 particles on all devices"):
        jax.block_until_ready(spanning_tree.smap(mesh_of(NDEV), jit=True)(part, core_k=4))


@pytest.mark.parametrize("core_k", [None, 4])
def test_derivatives_are_those_of_one_device(core_k: int | None) -> None:
    pos = oracles.uniform(81, 3)

    def total(tree: SpanningTree, place: Any) -> jax.Array:
        length = jnp.where(jnp.isfinite(tree.length), tree.length, 0)
        return (length.reshape(-1) ** 2 * place.reshape(-1)).sum()

    place = np.append(np.arange(80, dtype=np.float32), 0)
    find = spanning_tree.smap(mesh_of(NDEV), jit=True)
    result = jax.grad(lambda pos: total(find(pos, boxsize=1.0, core_k=core_k), place))(
        jnp.asarray(pos.reshape(NDEV, 27, 3))
    )
    expected = jax.grad(lambda pos: total(spanning_tree.jit(pos, boxsize=1.0, core_k=core_k), place[:-1]))(
        jnp.asarray(pos)
    )
    np.testing.assert_allclose(result.reshape(-1, 3), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_ghosts_do_not_grow_with_the_number_of_devices() -> None:
    """Each device has 500 particles."""
    for ndev in (4, 8):
        pos = oracles.uniform(500 * ndev, 2)
        with stats.statistics() as counted:
            jax.block_until_ready(spanning_tree.smap(mesh_of(ndev), jit=True)(pos.reshape(ndev, 500, 2), boxsize=1.0))
        assert counted["rows.ghosts"] < 250 * ndev
        assert counted["rounds.spanning_tree_ghosts"] <= 4


def test_equal_points_of_other_devices_are_not_ghosts() -> None:
    """Each device has 500 rows of 5 places."""
    pos = oracles.uniform(5, 3)[np.random.default_rng(1).integers(0, 5, 1500)]
    part = dealt(pos, even(1500, NDEV))
    with stats.statistics() as counted:
        result = spanning_tree.smap(mesh_of(NDEV), jit=True)(part)
        jax.block_until_ready(result)
    assert counted["rows.ghosts"] < 50
    check(result, spanning_tree.jit(pos))


@pytest.mark.parametrize("name", ["cut", "dendrogram"])
def test_clusters_over_devices_raise(name: str) -> None:
    options = {"rlink": 0.1} if name == "cut" else {}
    function = getattr(jz.hierarchy, name)
    single = spanning_tree.jit(oracles.uniform(20, 3))
    tree = jax.tree.map(lambda *of_ranks: np.stack(of_ranks), single, single)
    with pytest.raises(NotImplementedError, match=rf"hierarchy.{name} supports one device.*jztree.mst.squeeze_tree"):
        function.smap(mesh_of(2), jit=True)(tree, **options)
    with pytest.raises(ValueError, match=rf"shape \(2, 19\).*{name} with jztree.mst.squeeze_tree"):
        function(tree, **options)


def test_squeezed_tree_gives_the_groups_of_all_devices() -> None:
    pos = oracles.clustered(400, 3) % np.float32(1)
    tree = squeeze_tree(spanning_tree.smap(mesh_of(NDEV), jit=True)(dealt(pos, uneven(400, NDEV)), boxsize=1.0))
    assert tree.rows == 400
    expected = jz.fof.fof_labels(pos, 0.02, 1.0, output_order="input")[1]
    np.testing.assert_array_equal(jz.cut(tree, 0.02), expected)
    single = spanning_tree(pos, boxsize=1.0)
    jax.tree.map(np.testing.assert_array_equal, jz.dendrogram(tree), jz.dendrogram(single))


@pytest.mark.parametrize("width", [1, 2, 3, 6])
@pytest.mark.parametrize("num", [0, 1, 700, 20_000])
def test_words_are_sorted(width: int, num: int) -> None:
    """Rows have many ties in the first words, and some are equal."""
    rng = np.random.default_rng(width)
    words = [rng.integers(0, maximum, 20_100, dtype=np.uint32) for maximum in [3, 40, 2**32, 2, 2**32, 5][:width]]
    words = [np.where(rng.random(20_100) < 0.1, np.uint32(2**32 - 1), word) for word in words]
    result = kernels.sort_words([jnp.asarray(word) for word in words], num)
    expected = np.lexsort([word[:num] for word in words[::-1]])
    np.testing.assert_array_equal(result, np.append(expected, np.arange(num, 20_100)))


def test_squeezing_another_object_raises() -> None:
    with pytest.raises(TypeError, match=r"tree must be a jztree\.mst\.SpanningTree, not int"):
        squeeze_tree(3)  # type: ignore[arg-type]
