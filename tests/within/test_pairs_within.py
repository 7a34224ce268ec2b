"""Lists of pairs with their images, against brute force in float64 over images, ASE and vesin."""

import itertools
from collections.abc import Callable
from typing import Any

import gpus
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from devices import DEVICE_COUNTS, deal, even, joined, mesh_of, uneven

import jztree as jz
from jztree import build_index
from jztree.config import TreeConfig
from jztree.data import Pos
from jztree.radius import neighbours_within, pairs_within
from jztree.within import _listing
from jztree.within._listing import Listing

pytestmark = pytest.mark.emulated

Edges = dict[tuple[int, ...], np.ndarray]


def brute(pos: np.ndarray, query: np.ndarray, radius: Any, box: Any = None, kind: str = "half") -> Edges:
    """Return the vectors of the pairs by (i, j, *shift). kind: "half", "full", or "separate" queries."""
    length = oracles.full_box(box, pos.shape[1])
    period = np.where(length > 0, length, np.inf)
    x, y = query.astype(np.longdouble)[:, None], pos.astype(np.longdouble)
    separation = (x - y).astype(np.float64)
    nearest = np.where(length > 0, np.round(separation / period), 0)
    # The nearest image is within half a period, so the n-th image from it is more than |n| - 1/2 periods away.
    max_distance = np.floor(np.max(radius, initial=0) / period + 0.5 + 1e-6)
    reach = [np.arange(-m, m + 1) for m in max_distance.astype(int)]
    limit = np.broadcast_to(np.asarray(radius, np.float64), len(query))[:, None] ** 2
    result: Edges = {}
    for image in itertools.product(*reach):
        shift = (nearest + image).astype(np.longdouble)
        # Shifting the position that is farther out loses no digits.
        far = np.abs(x) > np.abs(y)
        vector = -np.where(far, (x - shift * length) - y, x - (y + shift * length)).astype(np.float64)
        i, j = np.nonzero(np.sum(vector**2, axis=-1) <= limit)
        if kind != "separate":
            # -1 or 1: the sign of the first shift that is not 0
            moved = shift[i, j]
            side = np.take_along_axis(np.sign(moved), (moved != 0).argmax(axis=1)[:, None], axis=1)[:, 0]
            kept = (i < j) | ((i == j) & (side > 0)) if kind == "half" else (i != j) | (side != 0)
            i, j = i[kept], j[kept]
        rows = np.column_stack([i, j, shift[i, j].astype(int)])
        result.update(zip(map(tuple, rows.tolist()), vector[i, j], strict=True))
    return result


def edges_of(result: Any) -> Edges:
    """Return the pairs of a list. Assert that there are no duplicates and nothing after the last pair."""
    num, dtype = int(result.num), result.vector.dtype
    rows = np.column_stack([result.i, result.j, result.shift])
    assert (rows[num:, :2] == -1).all()
    assert (rows[num:, 2:] == 0).all()
    assert (np.asarray(result.vector)[num:] == 0).all()
    assert np.isinf(np.asarray(result.distance)[num:]).all()
    assert (np.diff(rows[:num, 0]) >= 0).all(), "pairs do not ascend in i"
    vector = np.asarray(result.vector, np.float64)[:num]
    distance = np.asarray(result.distance)[:num]
    np.testing.assert_allclose(np.linalg.norm(vector, axis=1), distance, rtol=4 * np.finfo(dtype).eps)
    edges = dict(zip(map(tuple, rows[:num].tolist()), vector, strict=True))
    assert len(edges) == num, "a pair is there twice"
    return edges


def assert_pairs(result: Any, expected: Edges) -> None:
    edges = edges_of(result)
    assert edges.keys() == expected.keys()
    if edges:
        known = np.asarray([expected[key] for key in edges])
        rtol = 2 * np.finfo(result.vector.dtype).eps
        np.testing.assert_allclose(list(edges.values()), known, rtol=rtol, atol=1e-300)


@pytest.mark.long
@pytest.mark.parametrize("dims", [3, 1, 2, *range(4, 9)])
@pytest.mark.parametrize("kind", ["mixed", "periodic", "open"])
def test_equals_brute_force(dims: int, kind: str, dtype: Any) -> None:
    box = oracles.box_lengths(kind, dims)
    pos, query = oracles.uniform(150, dims, dtype), oracles.uniform(40, dims, dtype, seed=4) * 3 - 1
    radius = 0.3 if dims > 2 else 0.1
    assert_pairs(pairs_within(pos, radius, boxsize=box), brute(pos, pos, radius, box))
    assert_pairs(pairs_within.jit(pos, radius, boxsize=box, full=True), brute(pos, pos, radius, box, "full"))
    radii = np.random.default_rng(1).random(40) * radius * 1.5
    result = pairs_within.jit(pos, radii, boxsize=box, queries=query)
    assert_pairs(result, brute(pos, query, radii, box, "separate"))


@pytest.mark.parametrize("box", [None, 1.0])
@pytest.mark.parametrize("corner", [0.0, -3.0])
def test_zeros_of_vectors_have_no_sign(box: float | None, corner: float, dtype: Any) -> None:
    pos = np.repeat(np.array([0.0, 0.125, 0.9375], dtype)[:, None], 3, axis=1) * [1, 0, 0] + dtype(corner)
    vector = np.asarray(pairs_within.jit(pos, 0.25, boxsize=box, full=True).vector)
    assert (vector == 0).any() and not np.signbit(vector[vector == 0]).any()


@pytest.mark.watched("float32-1.7-2")
@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize("radius", [0.5, 0.51, 1.0, 1.7])
def test_all_images_of_radii_above_half_the_box(dims: int, radius: float, dtype: Any) -> None:
    box = [1.0, 0.7, 1.3][:dims]
    pos = (oracles.uniform(12, dims, dtype) * 4 - 2).astype(dtype)
    assert_pairs(pairs_within(pos, radius, boxsize=box), brute(pos, pos, radius, box))
    assert_pairs(pairs_within.jit(pos, radius, boxsize=box, full=True), brute(pos, pos, radius, box, "full"))


@pytest.mark.parametrize("width", [1e-7, 1e-2])
@pytest.mark.parametrize("radius", [1e-7, 0.1, 1.2])
def test_pairs_of_a_clump_around_a_corner_have_exact_vectors(radius: float, width: float, dtype: Any) -> None:
    """Positions are inside the box, or on both sides of its faces."""
    outside = (np.random.default_rng(1).standard_normal((12, 3)) * width).astype(dtype)
    inside = np.where(outside < 0, 1 + outside, outside).astype(dtype)
    for pos in (outside, np.where(inside < 1, inside, 0)):
        assert_pairs(pairs_within.jit(pos, radius, boxsize=1.0), brute(pos, pos, radius, 1.0))


@pytest.mark.parametrize("box", [None, 4.0, 0.1 * 40])
@pytest.mark.parametrize("radius", [0.0, 1.0, np.nextafter(1.0, 0), np.sqrt(2.0), 2.0, 4.0])
def test_lattice_with_pairs_at_the_radius(box: Any, radius: float, dtype: Any) -> None:
    pos = np.repeat(oracles.lattice(4, 3, dtype)[:20], 2, axis=0)
    assert_pairs(pairs_within(pos, radius, boxsize=box), brute(pos, pos, radius, box))


def test_box_that_float32_cannot_represent() -> None:
    """Multiples of the box length must still be computed in float64."""
    pos = (np.arange(30)[:, None] * 0.1 % 3).astype(np.float32)
    for radius in (0.1, 0.3, np.float64(np.float32(0.1)), 0.9, 2.1):
        assert_pairs(pairs_within(pos, radius, boxsize=0.7), brute(pos, pos, radius, 0.7))


@pytest.mark.parametrize("n", [0, 1, 2, 33])
def test_any_number_of_particles_and_queries(n: int) -> None:
    pos = oracles.uniform(n, 3)
    for call in (pairs_within, pairs_within.jit):
        assert_pairs(call(pos, 0.4, boxsize=1.0), brute(pos, pos, 0.4, 1.0) if n else {})
        for q in (0, 1, 5):
            query = oracles.uniform(q, 3, seed=3)
            expected = brute(pos, query, 0.4, kind="separate") if n * q else {}
            assert_pairs(call(pos, 0.4, queries=query), expected)


def test_padding_and_an_index() -> None:
    pos = oracles.uniform(200, 3)
    assert_pairs(pairs_within(Pos(pos=pos, num=150), 0.2, boxsize=1.0), brute(pos[:150], pos[:150], 0.2, 1.0))
    index = build_index.jit(pos, 1.0, cfg=TreeConfig(leaf_size=5))
    assert_pairs(pairs_within.jit(index, 0.2), brute(pos, pos, 0.2, 1.0))


@pytest.mark.aarch64
@pytest.mark.core
@pytest.mark.long
def test_full_lists_equal_those_of_neighbours() -> None:
    pos = oracles.clustered(3000, 3)
    pairs, lists = pairs_within(pos, 0.02, boxsize=1.0, full=True), neighbours_within(pos, 0.02, boxsize=1.0)
    own = np.asarray(lists.query()) != np.asarray(lists.index)
    np.testing.assert_array_equal(
        np.unique(np.asarray(pairs.edge_index()).T, axis=0),
        np.unique(np.column_stack([lists.query(), lists.index])[own], axis=0),
    )
    assert int(pairs_within(pos, 0.02, boxsize=1.0).num) * 2 == int(pairs.num)


@pytest.mark.long
@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("box", [[0.6, 0, 1.0], 1.0, None], ids=["mixed", "periodic", "open"])
def test_long_lists_among_short_ones(box: Any, full: bool) -> None:
    """There are more neighbours than a group's short lists can hold, in the middle of the box and across its sides."""
    random = np.random.default_rng(5)
    pos = np.concatenate([random.normal(at, 0.003, (530, 3)) for at in (0.0, 0.55)] + [random.random((100, 3))])
    pos = random.permutation(pos).astype(np.float32)
    expected = brute(pos, pos, 0.02, box, "full" if full else "half")
    for call in (pairs_within, pairs_within.jit):
        assert_pairs(call(pos, 0.02, boxsize=box, full=full), expected)


@pytest.mark.parametrize("find", [pairs_within, neighbours_within])
def test_large_lists_of_plain_calls_stay_in_their_memory(find: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Entries after the last are removed without a copy if the array has its own pages."""
    if jax.default_backend() != "cpu":
        pytest.skip("arrays of a GPU are copied")
    pos = oracles.uniform(3000, 3)
    expected = find.jit(pos, 0.05, boxsize=1.0)
    built: list[int] = []
    search = Listing._found

    def found(*args: Any) -> Any:
        splits, total, *columns = search(*args)
        built.extend(column.unsafe_buffer_pointer() for column in columns)
        return splits, total, *columns

    monkeypatch.setattr(Listing, "_found", found)
    monkeypatch.setattr(_listing, "_PAGED", 1)
    lists = find(pos, 0.05, boxsize=1.0)
    columns = (
        (lists.index, lists.distance)
        if find is neighbours_within
        else (lists.i, lists.j, lists.shift, lists.vector, lists.distance)
    )
    number = len(columns[0])
    assert 0 < number < 32 * len(pos)
    assert built == [column.unsafe_buffer_pointer() for column in columns]
    assert not any(column.committed for column in columns)
    elsewhere = find(jax.device_put(pos, jax.devices()[-1]), 0.05, boxsize=1.0).distance
    assert elsewhere.committed
    assert elsewhere.devices() == {jax.devices()[-1]}
    for ours, reference in zip(jax.tree.leaves(lists), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(ours, reference[: len(ours)] if reference.ndim else reference)


@pytest.mark.parametrize("quantities", ["ij", "ijS", "d", "D", "jSdi", "", "dDSji"])
def test_requested_quantities_equal_those_of_the_whole_list(quantities: str) -> None:
    """Near the boundary, groups search several images; some positions are outside the box."""
    pos, query = oracles.uniform(300, 3), oracles.uniform(90, 3, seed=5) * 3 - 1
    for options in ({}, {"full": True}, {"queries": query}, {"full": True, "capacity": 20000}):
        complete = pairs_within(pos, 0.3, boxsize=1.0, **options)
        result = pairs_within.jit(pos, 0.3, boxsize=1.0, **options, quantities=quantities)
        num = int(complete.num)
        assert int(result.num) == num > 1000
        for name, letter in (("i", "i"), ("j", "j"), ("shift", "S"), ("vector", "D"), ("distance", "d")):
            column = getattr(result, name)
            if letter in quantities or letter in "ij":
                np.testing.assert_array_equal(np.asarray(column)[:num], np.asarray(getattr(complete, name))[:num])
            else:
                assert column is None
        assert (np.asarray(result.edge_index())[:, num:] == -1).all()


@pytest.mark.parametrize("quantities", ["ij", "S", "d"])
def test_requested_quantities_over_devices(quantities: str) -> None:
    pos, counts = oracles.uniform(500, 3), uneven(500, 3)
    complete = pairs_within(pos, 0.2, boxsize=1.0)
    result = pairs_within.smap(mesh_of(3), jit=True)(deal(pos, counts, 500), 0.2, boxsize=1.0, quantities=quantities)
    edges = joined(np.stack([result.i, result.j], axis=-1), result.num)
    np.testing.assert_array_equal(np.unique(edges, axis=0), np.unique(complete.edge_index().T, axis=0))
    assert len(edges) == complete.num
    assert (result.shift is None, result.distance is None) == (quantities != "S", quantities != "d")
    if result.distance is not None:
        np.testing.assert_array_equal(np.sort(joined(result.distance, result.num)), np.sort(complete.distance))


def test_distances_alone_have_their_derivatives() -> None:
    pos = oracles.uniform(60, 3)

    def energy(pos: Any, box: Any, quantities: str) -> Any:
        return jnp.sum(
            jnp.where((result := pairs_within(pos, 0.3, boxsize=box, quantities=quantities)).i >= 0, result.distance, 0)
        )

    for which in (0, 1):
        sample, complete = (
            jax.jit(jax.grad(energy, which), static_argnums=2)(pos, np.float32(1.0), letters)
            for letters in ("d", "ijSdD")
        )
        assert np.abs(complete).max() > 0.1
        gpus.assert_same_sums(sample, complete)


@pytest.mark.long
def test_capacity() -> None:
    pos = oracles.uniform(200, 3)
    need = int(pairs_within(pos, 0.5).num)
    for call in (pairs_within, pairs_within.jit):
        assert call(pos, 0.5, capacity=need + 7).i.shape == (need + 7,)
        with pytest.raises(Exception, match=f"{need} rows of pairs, but has capacity for {need - 1}"):
            jax.block_until_ready(call(pos, 0.5, capacity=need - 1))
    with pytest.raises(jz.CapacityError):
        pairs_within.jit(pos, 0.5, capacity=3)
    result = jax.jit(lambda x, r: pairs_within(x, r, boxsize=1.0, capacity=9000))(pos, jnp.float32(0.3))
    assert_pairs(result, brute(pos, pos, np.float32(0.3), 1.0))


@pytest.mark.parametrize("call", [pairs_within, pairs_within.jit])
def test_full_lists_with_individual_radii_use_the_radius_of_the_first(call: Any) -> None:
    pos, radius = oracles.uniform(60, 3), np.linspace(0.0, 0.4, 60)
    result = call(pos, radius, boxsize=1.0, full=np.True_)
    assert_pairs(result, brute(pos, pos, radius, 1.0, "full"))
    assert np.any(np.asarray(result.i) > np.asarray(result.j))


@pytest.mark.parametrize("radius", [np.inf, 1e9])
def test_radii_that_reach_too_many_images(radius: float) -> None:
    pos = oracles.uniform(20, 3)
    assert int(pairs_within(pos, radius).num) == 190
    for call in (pairs_within, pairs_within.jit):
        with pytest.raises(Exception, match="periodic images or more"):
            jax.block_until_ready(call(pos, radius, boxsize=1.0))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"radius": [0.1, 0.2]}, "one per query"),
        ({"radius": 0.1, "quantities": "ijk"}, "quantities is 'ijk'; it must be a string"),
        ({"radius": 0.1, "quantities": 3}, "quantities is 3; it must be a string"),
        # A list with i < j could not represent pairs that only the higher row reaches.
        ({"radius": np.linspace(0.0, 0.3, 50)}, "pass full=True"),
    ],
)
@pytest.mark.parametrize("call", [pairs_within, pairs_within.jit])
def test_invalid_arguments_raise(options: Any, words: str, call: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        call(oracles.uniform(50, 3), **options)


def test_positions_far_from_the_origin() -> None:
    pos = (oracles.uniform(50, 3, np.float64) * 1e5).astype(np.float32)
    assert_pairs(pairs_within(pos, 0.3, boxsize=1.0), brute(pos, pos, 0.3, 1.0))
    pos[7, 1] = 1e9
    with pytest.raises(Exception, match="row 7 is 2"):
        jax.block_until_ready(pairs_within(pos, 0.3, boxsize=1.0))


@pytest.mark.long
def test_derivatives() -> None:
    """Compare with finite differences in float64, by positions of both sides and by box lengths."""
    with jax.enable_x64(True):
        pos, query = oracles.uniform(20, 3, np.float64), oracles.uniform(8, 3, np.float64, seed=6) * 3
        weight = np.random.default_rng(0).random((2000, 4))

        def total(pos: Any, query: Any, length: Any) -> Any:
            result = pairs_within(pos, 0.8, boxsize=length, queries=query, capacity=2000)
            there = result.i >= 0
            lengths = jnp.sum(jnp.where(there, weight[:, 0] * result.distance**2, 0))
            return lengths + jnp.sum(jnp.where(there[:, None], weight[:, 1:] * result.vector**3, 0))

        oracles.assert_slopes(total, (pos, query, np.asarray([1.0, 1.2, 0.9])), (0, 1, 2), 1e-7)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
@pytest.mark.parametrize("full", [False, True])
def test_pairs_over_devices(ndev: int, full: bool) -> None:
    pos = (oracles.clustered(400, 3) * 2 - 0.5).astype(np.float32)
    for radius in (0.05, 0.6):
        result = pairs_within.smap(mesh_of(ndev), jit=True)(
            deal(pos, uneven(400, ndev), 400), radius, boxsize=1.0, full=full
        )
        edges: Edges = {}
        for rank in range(ndev):
            edges |= edges_of(jax.tree.map(lambda leaf, rank=rank: np.asarray(leaf)[rank], result))
        here = edges_of(pairs_within(pos, radius, boxsize=1.0, full=full))
        assert edges.keys() == here.keys()
        assert all((edges[key] == here[key]).all() for key in edges)


@pytest.mark.long
@pytest.mark.parametrize("ndev", DEVICE_COUNTS)
def test_queries_over_devices(ndev: int) -> None:
    pos, query = oracles.clustered(300, 3), oracles.uniform(90, 3, seed=9)
    stacked = deal(query, even(90, ndev), 90)
    result = pairs_within.smap(mesh_of(ndev), jit=True)(
        deal(pos, uneven(300, ndev), 300), 0.3, boxsize=1.0, queries=stacked
    )
    edges: Edges = {}
    for rank in range(ndev):
        edges |= edges_of(jax.tree.map(lambda leaf, rank=rank: np.asarray(leaf)[rank], result))
    assert edges.keys() == brute(pos, query, 0.3, 1.0, "separate").keys()


def ase_edges(pos: np.ndarray, box: np.ndarray, radius: float) -> tuple[np.ndarray, ...]:
    """Return ``i, j, S, D`` of each pair, in both directions."""
    ase = pytest.importorskip("ase")
    atoms = ase.Atoms(positions=pos, cell=box, pbc=True, numbers=np.ones(len(pos)))
    return pytest.importorskip("ase.neighborlist").neighbor_list("ijSD", atoms, radius)


def vesin_edges(pos: np.ndarray, box: np.ndarray, radius: float) -> tuple[np.ndarray, ...]:
    search = pytest.importorskip("vesin").NeighborList(cutoff=radius, full_list=True)
    return search.compute(points=pos, box=np.diag(box), periodic=True, quantities="ijSD")


@pytest.mark.long
@pytest.mark.parametrize("reference", [ase_edges, vesin_edges])
@pytest.mark.parametrize("radius", [0.4, 1.9])
def test_equals_other_libraries(radius: float, reference: Callable[..., Any]) -> None:
    with jax.enable_x64(True):
        pos = oracles.uniform(60, 3, np.float64) * 3 - 1
        box = np.asarray([1.0, 1.4, 1.1])
        i, j, shift, vector = reference(pos, box, radius)
        edges = edges_of(pairs_within(pos, radius, boxsize=box, full=True))
    expected = {(int(a), int(b), *map(int, s)): d for a, b, s, d in zip(i, j, shift, vector, strict=True)}
    assert edges.keys() == expected.keys()
    np.testing.assert_allclose([edges[key] for key in expected], list(expected.values()), atol=1e-12)
