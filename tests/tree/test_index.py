"""Indexes: every search gives the same bits as without an index, and sorts nothing again."""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
from data.test_computed_positions import LightCone, displaced
from devices import mesh_of
from jax.sharding import PartitionSpec as P
from public_calls import CALLS, NOT_DIFFERENTIABLE, ONE_DEVICE, Call, particles

import jztree as jz
from jztree import data, kernels
from jztree.config import TreeConfig

NDEV = 4


def _function(name: str) -> Any:
    """Return the public function of a call in `CALLS`."""
    module, function = name.partition(",")[0].split(".")
    return getattr(getattr(jz, module), function)


def _first(function: Any) -> inspect.Parameter:
    return next(iter(inspect.signature(function).parameters.values()))


def _accepts_index(function: Any) -> bool:
    return "Index" in str(_first(function).annotation).split(" | ")


SEARCHES = [name for name in CALLS if _accepts_index(_function(name))]
for_each_search = pytest.mark.parametrize("name", SEARCHES)
# These searches sort queries or other particles besides the index, or the particles in phase space.
SORTS_MORE = {name for name in SEARCHES if name.endswith(("places", "attached")) or "phase_space" in name} | {
    "overdensity.radial_profiles",
    "overdensity.sphere_properties",
    "overdensity.spherical_overdensity",
    "overdensity.spherical_overdensity, gravity",
    "radius.count_within",
    "radius.pair_counts",
}


def on_index(call: Call, build: Callable[..., Any] = jz.build_index) -> Call:
    """Return a call with an index in place of its particles and box."""
    arguments = dict(call.arguments)
    part, box = arguments.pop("part"), arguments.pop("boxsize", None)
    return Call(call.function, {"part": build(part, boxsize=box), **arguments})


def assert_same(result: Any, expected: Any) -> None:
    """Check that two results have the same structure, dtypes and bits."""
    assert jax.tree.structure(result) == jax.tree.structure(expected)
    for leaf, required in zip(jax.tree.leaves(result), jax.tree.leaves(expected), strict=True):
        assert jnp.result_type(leaf) == jnp.result_type(required)
        np.testing.assert_array_equal(leaf, required)


def test_an_index_with_other_positions_raises() -> None:
    pos = oracles.uniform(5000, 3)
    index = jz.build_index(pos, 1.0)
    with pytest.raises(ValueError, match="the arrays of the index were changed"):
        jz.nearest(dataclasses.replace(index, part=index.part + 0.1), 4)


def test_every_flat_search_accepts_an_index() -> None:
    public = {name: getattr(jz, name) for name in jz.__all__}
    searches = {name for name, value in public.items() if inspect.isfunction(value) and _first(value).name == "part"}
    flat = searches - {"build_index", "fof_labels", "descendants"}  # the published function, and one of subhaloes
    assert {name for name in flat if not _accepts_index(public[name])} == set()
    assert flat <= {_function(name).__name__ for name in SEARCHES}


@for_each_search
def test_plain_calls_give_the_bits_without_index(name: str, dtype: Any) -> None:
    call = CALLS[name](particles(dtype))
    assert_same(on_index(call)(), call())


@pytest.mark.long
@for_each_search
def test_compiled_calls_give_the_bits_without_index(name: str, dtype: Any) -> None:
    function, arguments = CALLS[name](particles(dtype))
    call = Call(function.jit, arguments)
    result, expected = on_index(call, jz.build_index.jit)(), call()
    if name == "density.sph_density":
        # It is the difference of two similar numbers. XLA may compute their last bits with or without fused operations.
        np.testing.assert_allclose(result, expected, rtol=0, atol=16 * np.finfo(dtype).eps * np.abs(expected).max())
    else:
        assert_same(result, expected)


@pytest.mark.long
@for_each_search
def test_calls_over_devices_give_the_bits_without_index(name: str) -> None:
    if name in ONE_DEVICE:
        pytest.skip("runs on one device")

    def both(stacked: Any) -> Any:
        call = CALLS[name](jax.tree.map(lambda leaf: leaf[0], stacked))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], [call(), on_index(call)()])

    specs = {"in_specs": P("gpus"), "out_specs": P("gpus")}
    mapped = jax.jit(jax.shard_map(both, mesh=mesh_of(NDEV), check_vma=False, **specs))
    expected, results = mapped(jax.tree.map(jnp.asarray, data.expand_particles(particles(), NDEV, 6)))
    assert_same(results, expected)


@pytest.mark.long
def test_mapped_functions_pass_an_index_between_them() -> None:
    mesh, part = mesh_of(NDEV), data.expand_particles(particles(), NDEV, 6)
    index = jz.build_index.smap(mesh, jit=True)(part, boxsize=1.0)
    for function, arguments in ((jz.group_labels, (0.2,)), (jz.nearest, (4,))):
        mapped = function.smap(mesh, jit=True)
        assert_same(mapped(index, *arguments), mapped(part, *arguments, boxsize=1.0))
    with pytest.raises(ValueError, match=r"built on 4 devices, but this call runs on 1; build it on the same devices"):
        jz.group_labels(index, 0.2)
    alone = jz.build_index(oracles.uniform(NDEV, 3))
    with pytest.raises(ValueError, match=r"built on 1 device, but this call runs on 4.*build_index\.smap"):
        jz.group_labels.smap(mesh)(alone, 0.2)


@pytest.mark.parametrize("rows", [0, 1])
def test_few_particles_give_the_bits_without_index(rows: int) -> None:
    part = data.ParticleData(pos=oracles.uniform(rows, 2), vel=np.zeros((rows, 2), np.float32))
    index = jz.build_index(part, boxsize=1.0)
    for search in (
        functools.partial(jz.group_labels, rlink=0.1),
        functools.partial(jz.friends_of_friends, rlink=0.1, npart_min=1),
        functools.partial(jz.phase_space_labels, rlink=0.1, vlink=1.0),
        functools.partial(jz.dbscan, eps=0.1),
        functools.partial(jz.spanning_tree),
        functools.partial(jz.count_within, radius=0.1),
        functools.partial(jz.nearest, k=1, allow_missing=True),
    ):
        assert_same(search(index), search(part, boxsize=1.0))


@pytest.mark.parametrize("compiled", [False, True], ids=["plain", "jit"])
def test_classes_with_computed_positions_give_the_bits_without_index(compiled: bool) -> None:
    part = displaced(LightCone, 60)
    searches = [(jz.friends_of_friends, {"rlink": 0.2, "npart_min": 2}), (jz.nearest, {"k": 3, "fields": ("v_rad",)})]
    for function, options in searches:
        build, search = (jz.build_index.jit, function.jit) if compiled else (jz.build_index, function)
        index = build(part, boxsize=1.0)
        assert isinstance(index.part, LightCone)
        assert_same(search(index, **options), search(part, boxsize=1.0, **options))


@pytest.mark.parametrize("leaf_size", [8, 100])
def test_results_do_not_depend_on_the_leaves_of_the_index(leaf_size: int) -> None:
    pos = oracles.uniform(500, 3)
    index = jz.build_index(pos, cfg=TreeConfig(leaf_size=leaf_size))
    assert_same(jz.nearest(index, 5), jz.nearest(pos, 5))
    assert_same(jz.group_labels(index, 0.1), jz.group_labels(pos, 0.1))


@pytest.mark.long
def test_lists_on_an_index_enlarge_their_buffers() -> None:
    pos = oracles.uniform(300, 2)
    index = jz.build_index(pos)
    assert_same(jz.pairs_within.jit(index, 0.3), jz.pairs_within.jit(pos, 0.3))


@for_each_search
def test_searches_with_an_index_do_not_sort(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    call = on_index(CALLS[name](particles()))
    sorts: list[Any] = []
    sort = kernels.zsort
    monkeypatch.setattr(kernels, "zsort", lambda *args: sorts.append(args) or sort(*args))
    index = jax.tree.map(jnp.asarray, call.arguments["part"])
    jax.eval_shape(lambda index: Call(call.function, call.arguments | {"part": index})(), index)
    assert bool(sorts) == (name in SORTS_MORE)


def test_two_searches_over_devices_sort_once(monkeypatch: pytest.MonkeyPatch) -> None:
    sorts: list[int] = []
    sort = kernels.zsort
    monkeypatch.setattr(kernels, "zsort", lambda *args: sorts.append(1) or sort(*args))

    def sorts_of(search: Callable[[Any], Any]) -> int:
        sorts.clear()
        mapped = jax.shard_map(search, mesh=mesh_of(2), in_specs=P("gpus"), out_specs=P("gpus"), check_vma=False)
        jax.eval_shape(mapped, jnp.asarray(oracles.uniform(60, 3)))
        return len(sorts)

    def on_one_index(pos: Any) -> Any:
        index = jz.build_index(pos)
        return jz.group_labels(index, 0.1), jz.count_within(index, 0.1, weights=pos[:, 0])

    assert sorts_of(on_one_index) == sorts_of(lambda pos: jz.group_labels(pos, 0.1)) > 0


# Separate queries over devices

QUERY_SEARCHES: dict[str, Callable[..., Any]] = {
    "nearest": functools.partial(jz.nearest, k=4),
    "nearest in z-order": lambda part, queries, **box: jz.knn.knn(
        part, 4, part_query=queries, output_order="z", result="rad_globalidx_queryidx", **box
    ),
    "count_within": functools.partial(jz.count_within, radius=0.2),
    "neighbours_within": functools.partial(jz.neighbours_within, radius=0.2, capacity=4000, nearest_first=True),
    "pair_counts": functools.partial(jz.pair_counts, edges=np.float32([0, 0.1, 0.3])),
    "kernel_sums": functools.partial(jz.kernel_sums, h=0.2),
    "radial_profiles": lambda part, queries, **box: jz.radial_profiles(part, [0.1, 0.2], queries=queries, **box),
    "sphere_properties": lambda part, queries, **box: jz.sphere_properties(
        part, jnp.full(queries.pos.shape[0], 0.2), queries=queries, **box
    ),
}
for_each_query_search = pytest.mark.parametrize("name", QUERY_SEARCHES)


def over_devices(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` of joined arrays, mapped over devices in one block each."""

    def local(*stacked: Any) -> Any:
        result = function(*jax.tree.map(lambda leaf: leaf[0], stacked))
        return jax.tree.map(lambda leaf: jnp.asarray(leaf)[None], result)

    specs = {"in_specs": P("gpus"), "out_specs": P("gpus"), "check_vma": False}
    return jax.jit(jax.shard_map(local, mesh=mesh_of(NDEV), **specs))


def sources_and_queries(name: str = "uniform") -> tuple[data.PosMass, data.Pos]:
    """Return particles and queries on all devices. One device has no queries."""
    rng = np.random.default_rng(8)
    pos, query = rng.random((NDEV, 40, 3)).astype(np.float32), rng.random((NDEV, 30, 3)).astype(np.float32)
    query = {"uniform": query, "around the particles": 4 * query - 1, "at one point": query * 0 + pos[2, 5]}[name]
    part = data.PosMass(pos=pos, mass=np.ones((NDEV, 40), np.float32), num=np.int32([40, 0, 31, 40]))
    return part, data.Pos(pos=query, num=np.int32([30, 11, 0, 25]))


@pytest.mark.long
@pytest.mark.parametrize("queries", ["uniform", "around the particles", "at one point"])
@for_each_query_search
def test_separate_queries_over_devices_give_the_bits_without_index(name: str, queries: str) -> None:
    search = QUERY_SEARCHES[name]

    def both(part: Any, query: Any) -> Any:
        index = jz.build_index(part, boxsize=1.0)
        return search(part, queries=query, boxsize=1.0), search(index, queries=query)

    expected, result = over_devices(both)(*sources_and_queries(queries))
    if name == "nearest in z-order":  # the ranges of the devices differ, but not the rows of all devices together
        used = [rows[-1].rank >= 0 for rows in (expected, result)]
        expected, result = (
            jax.tree.map(lambda leaf, used=used: leaf[used], rows)
            for rows, used in zip((expected, result), used, strict=True)
        )
    assert_same(result, expected)


def test_crowded_queries_on_an_index_enlarge_their_buffer() -> None:
    rng, mesh = np.random.default_rng(3), mesh_of(NDEV)
    pos, query = rng.random((NDEV, 5, 2)).astype(np.float32), 1e-3 * rng.random((NDEV, 50, 2)).astype(np.float32)
    index = jz.build_index.smap(mesh, jit=True)(pos)
    result = jz.nearest.smap(mesh, jit=True)(index, 3, queries=query)
    expected = jz.nearest(pos.reshape(-1, 2), 3, queries=query.reshape(-1, 2))
    assert_same([leaf.reshape(-1, 3) for leaf in result], list(expected))


def test_crowded_queries_in_a_compiled_function_of_the_user_raise() -> None:
    pos, query = oracles.uniform(NDEV * 5, 2).reshape(NDEV, 5, 2), np.zeros((NDEV, 50, 2), np.float32)
    search = over_devices(lambda pos, query: jz.nearest(jz.build_index(pos), 3, queries=query))
    with pytest.raises(
        jax.errors.JaxRuntimeError, match=r"needs capacity for 200 rows of the query positions.*pass the particles"
    ):
        jax.block_until_ready(search(pos, query))


@for_each_query_search
def test_queries_over_devices_do_not_sort_the_particles_of_an_index(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sorted_rows: list[int] = []
    sort = kernels.zsort
    monkeypatch.setattr(kernels, "zsort", lambda pos, *args: sorted_rows.append(len(pos)) or sort(pos, *args))

    def rows_of(search: Callable[[Any, Any], Any]) -> list[int]:
        sorted_rows.clear()
        jax.eval_shape(over_devices(search), *jax.tree.map(jnp.asarray, sources_and_queries()))
        return list(sorted_rows)

    def search_twice(part: Any, query: Any) -> Any:
        index = jz.build_index(part)
        return [QUERY_SEARCHES[name](index, queries=query) for _ in range(2)]

    building = rows_of(lambda part, query: jz.build_index(part))
    # Each rank sorts its queries, and then the queries that arrive.
    assert rows_of(search_twice) == [*building, *[30, 40 + 30] * 2]


# Transformations of JAX


def _total(call: Call) -> jax.Array:
    """Return the sum of the finite real numbers in the result of a call."""
    real = [leaf for leaf in jax.tree.leaves(call()) if jnp.issubdtype(jnp.result_type(leaf), jnp.floating)]
    return sum((jnp.sum(jnp.where(jnp.isfinite(leaf), leaf, 0)) for leaf in real), jnp.float32(0))


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in SEARCHES if name not in NOT_DIFFERENTIABLE])
def test_derivatives_equal_those_without_index(name: str) -> None:
    part = particles()

    def total(rows: dict[str, jax.Array], indexed: bool) -> jax.Array:
        call = CALLS[name](dataclasses.replace(part, **rows))
        return _total(on_index(call) if indexed else call)

    rows = {"pos": part.pos, "mass": part.mass, "vel": part.vel}
    gradient, expected = (jax.jit(jax.grad(total), static_argnums=1)(rows, indexed) for indexed in (True, False))
    for column, required in expected.items():
        # Rounding depends on which operations XLA compiles together.
        np.testing.assert_allclose(gradient[column], required, rtol=1e-6, atol=1e-6 * np.abs(required).max())


def test_derivative_with_respect_to_the_box_flows_through_an_index() -> None:
    pos = jnp.asarray(oracles.uniform(50, 2))
    gradient = jax.grad(lambda box: jz.nearest(jz.build_index(pos, boxsize=box), 4).distance.sum())(1.0)
    expected = jax.grad(lambda box: jz.nearest(pos, 4, boxsize=box).distance.sum())(1.0)
    assert gradient == expected != 0


def test_an_index_passes_through_transformations() -> None:
    pos = jnp.asarray(oracles.uniform(3 * 40, 2)).reshape(3, 40, 2)
    index = jz.build_index(pos[0], boxsize=1.0)
    expected = [jz.count_within(pos[0], radius, boxsize=1.0) for radius in (0.1, 0.2)]
    assert_same(jax.jit(jz.count_within)(index, 0.1), expected[0])
    assert_same(jz.count_within(jax.tree.map(np.asarray, index), 0.1), expected[0])

    def step(index: jz.Index, radius: jax.Array) -> tuple[jz.Index, jax.Array]:
        return index, jz.count_within(index, radius)

    last, counts = jax.lax.scan(step, index, jnp.float32([0.1, 0.2]))
    assert_same(last, index)
    np.testing.assert_array_equal(counts, expected)
    several = jax.vmap(functools.partial(jz.build_index, boxsize=1.0))(pos)
    counts = jax.vmap(lambda index: jz.count_within(index, 0.1))(several)
    np.testing.assert_array_equal(counts, [jz.count_within(row, 0.1, boxsize=1.0) for row in pos])
    assert repr(index) == "Index(40 rows in 2D, float32)"


def test_an_index_keeps_its_particles_if_an_array_changes() -> None:
    pos = oracles.uniform(50, 2)
    index, expected = jz.build_index(pos), jz.nearest(pos.copy(), 3)
    pos[:] = 0
    assert_same(jz.nearest(index, 3), expected)


# Errors


@for_each_search
def test_an_index_with_a_box_raises(name: str) -> None:
    function, arguments = CALLS[name](particles())
    index = jz.build_index(particles())
    for call in (function, function.jit):
        with pytest.raises(
            ValueError, match=r"boxsize is 1\.0, but an index has its own box; leave out boxsize"
        ) as error:
            call(**arguments | {"part": index, "boxsize": 1.0})
        assert oracles.one_sentence(error)


def test_an_index_with_a_hierarchy_raises() -> None:
    pos = oracles.uniform(50, 3)
    index, (_, th) = jz.build_index(pos), jz.tree.zsort_and_tree(pos)
    for call in (lambda: jz.knn.knn(index, 3, th=th), lambda: jz.fof.fof_labels(index, 0.1, th=th)):
        with pytest.raises(ValueError, match="has its own hierarchy; leave out th"):
            call()


def test_an_index_with_fewer_particles_raises() -> None:
    index = jz.build_index(oracles.uniform(50, 3))
    with pytest.raises(ValueError, match="was built for 50 rows of particles, but now has 20; build"):
        jz.nearest(dataclasses.replace(index, part=index.part[:20]), 3)


@pytest.mark.parametrize("change", [lambda a: 2 * a, lambda a: a + 1, lambda a: -a], ids=["double", "shift", "negate"])
@pytest.mark.parametrize("ndev", [1, NDEV])
def test_an_index_with_changed_arrays_raises(change: Callable[[Any], Any], ndev: int) -> None:
    mesh, pos = mesh_of(ndev), jnp.asarray(oracles.uniform(200, 3))
    twin = (lambda function: function.smap(mesh, jit=True)) if ndev > 1 else (lambda function: function.jit)
    index = twin(jz.build_index)(pos.reshape(ndev, -1, 3) if ndev > 1 else pos, boxsize=1.0)
    index = jax.tree.map(lambda leaf: leaf if leaf.dtype == bool else change(leaf), index)
    for call in (lambda: twin(jz.nearest)(index, 3), lambda: twin(jz.group_labels)(index, 0.1)):
        with pytest.raises((ValueError, RuntimeError), match=r"changed.*with jztree\.build_index"):
            jax.block_until_ready(call())


def test_too_few_particles_in_an_index_over_devices_raise() -> None:
    """No result needs the number of particles that these checks return."""
    mesh, counts = mesh_of(2), np.array([2, 1], np.int32)
    part = data.Pos(pos=oracles.uniform(18, 3).reshape(2, 9, 3), num=counts)
    index = jz.build_index.smap(mesh, jit=True)(part)
    searches: list[tuple[Any, dict[str, Any]]] = [
        (jz.nearest, {"k": 4}),
        (jz.nearest, {"k": 3, "exclude_self": True}),
        (jz.nearest, {"k": 1, "source_mask": np.zeros((2, 9), bool)}),
        (jz.nearest, {"k": 4, "queries": part}),
        (jz.spanning_tree, {"core_k": 4}),
    ]
    for function, options in searches:
        with pytest.raises(oracles.RUN_TIME_ERROR, match=r"but there are (only 3|0) particles"):
            jax.block_until_ready(function.smap(mesh, jit=True)(index, **options))


def test_an_index_with_wrong_rows_raises() -> None:
    index = jz.build_index(oracles.uniform(50, 3))
    for row in (-1, 50):
        sources = dataclasses.replace(index.sources, rows=index.sources.rows.at[7].set(row))
        with pytest.raises(ValueError, match=r"changed.*with jztree\.build_index"):
            jz.nearest(dataclasses.replace(index, sources=sources), 3)


def test_an_index_as_queries_raises() -> None:
    pos, radius = oracles.uniform(50, 3), np.array([0.0, 0.1], np.float32)
    index, queries = jz.build_index(pos, boxsize=1.0), jz.build_index(pos, boxsize=2.0)
    for call in (
        lambda: jz.nearest(index, 3, queries=queries),
        lambda: jz.count_within(index, 0.1, queries=queries),
        lambda: jz.pair_counts(index, radius, queries=queries),
        lambda: jz.knn_density(index, 3, queries=queries),
        lambda: jz.sphere_properties(index, 0.1, queries=queries),
    ):
        with pytest.raises(TypeError, match=r"pass its particles, index\.part"):
            call()


# Functions of one set of particles that are not searches. `replace_num` takes any pytree.
OTHERS = [
    name
    for name in CALLS
    if name.startswith(("data.", "halos.", "index.", "tree.")) and _first(_function(name)).name in ("part", "grouped")
]


@pytest.mark.parametrize("name", sorted(set(OTHERS) - {"data.replace_num", "tree.zsort_and_tree_multi_type"}))
def test_an_index_for_another_function_raises(name: str) -> None:
    function, arguments = CALLS[name](particles())
    with pytest.raises(TypeError, match=r"only searches accept an index, as their first argument; pass") as error:
        function(**arguments | {_first(function).name: jz.build_index(particles())})
    assert oracles.one_sentence(error)
