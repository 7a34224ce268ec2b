"""Functions mapped over the devices of a mesh."""

import logging
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from devices import first_devices, mesh_of, square_mesh
from jax.sharding import AxisType, Mesh
from jax.sharding import PartitionSpec as P

import jztree as jz
from jztree import CapacityError, comm, kernels
from jztree._transform.capacity import choose_capacity
from jztree.config import KNNConfig
from jztree.data import PosMass
from jztree.jax_ext import expanding_shard_map, shard_map_constructor

MESHES = {
    "one axis": lambda: mesh_of(4),
    "one device": lambda: mesh_of(1),
    "two axes, Explicit": square_mesh,
    "two axes, Auto": lambda: jax.make_mesh(
        (2, 2), ("a", "b"), axis_types=(AxisType.Auto,) * 2, devices=first_devices(4)
    ),
    "two axes, Explicit and Auto": lambda: jax.make_mesh(
        (2, 2), ("a", "b"), axis_types=(AxisType.Explicit, AxisType.Auto), devices=first_devices(4)
    ),
}


@pytest.fixture(params=MESHES)
def mesh(request: pytest.FixtureRequest) -> Mesh:
    return MESHES[request.param]()


@pytest.mark.parametrize("first", [2**40, -(2**40), 5])
def test_integers_that_jax_would_truncate_are_refused(first: int) -> None:
    ids = np.arange(first, first + 30)
    part = jz.data.ParticleData(pos=np.random.default_rng(0).random((30, 3), np.float32), id=ids)
    stacked = jz.data.ParticleData(pos=part.pos[None], id=ids[None])
    calls = (
        lambda: jz.tree.zsort(part)[0].id,
        lambda: jz.tree.zsort.jit(part)[0].id,
        lambda: jz.tree.zsort.smap(mesh_of(1), jit=True)(stacked)[0].id,
        lambda: jz.data.expand_particles(part, 2).id,
    )
    for call in calls:
        if abs(first) < 2**31:
            np.testing.assert_array_equal(np.sort(np.ravel(call())), ids)
            continue
        with pytest.raises(ValueError, match=f"id holds {first}, but JAX keeps only 32 bits"):
            call()


def scaled(part: Any, factor: Any, shift: Any = 0.0, power: int = 1) -> Any:
    """An example of a user's function, with a particle class, numbers, a static argument and a mixed output."""
    rank, ndev, axes = comm.get_rank_info()
    total = jax.lax.psum(jnp.sum(part.pos), axes) if axes else jnp.sum(part.pos)
    return (part.pos * factor + shift) ** power, rank, {"total": total, "ndev": jnp.float32(ndev)}


scaled_specs: dict[str, Any] = {
    "in_specs": (P(-1), P(), P(), None),
    "out_specs": (P(-1), P(-1), {"total": P(), "ndev": P()}),
}


def particles(ndev: int) -> PosMass:
    return PosMass(pos=np.random.default_rng(0).random((ndev, 5, 3)).astype(np.float32), mass=1.0, num=5)


@pytest.mark.parametrize("jit", [False, True])
def test_varying_outputs_get_a_leading_axis_and_inputs_lose_theirs(mesh: Mesh, jit: bool) -> None:
    part = particles(mesh.size)
    mapped = expanding_shard_map(scaled, mesh=mesh, jit=jit, **scaled_specs)
    pos, rank, shared = mapped(part, 2.0, 1.0, 2)
    np.testing.assert_allclose(pos, (2 * part.pos + 1) ** 2, rtol=1e-6)
    np.testing.assert_array_equal(rank, np.arange(mesh.size))
    np.testing.assert_allclose(shared["total"], part.pos.sum(), rtol=1e-5)
    assert shared["ndev"].shape == ()


def test_arguments_by_name_and_defaults(mesh: Mesh) -> None:
    part = particles(mesh.size)
    smap = shard_map_constructor(scaled, **scaled_specs)
    np.testing.assert_array_equal(smap(mesh, jit=True)(part, factor=3)[0], part.pos * 3)
    np.testing.assert_array_equal(smap(mesh, jit=True)(power=2, factor=1.0, part=part)[0], part.pos**2)
    with pytest.raises(TypeError, match="factor"):
        smap(mesh, jit=True)(part)


def test_mapped_functions_are_cached_by_mesh_and_not_by_its_shape() -> None:
    smap = shard_map_constructor(scaled, **scaled_specs)
    assert smap(mesh_of(2), jit=True) is smap(mesh_of(2), jit=True)
    reference = Mesh(np.array(first_devices(4)[2:]), ("gpus",))
    first, second = (smap(mesh, jit=True)(particles(2), 1.0)[0] for mesh in (mesh_of(2), reference))
    assert first.sharding.device_set == set(jax.devices()[:2])
    assert second.sharding.device_set == set(jax.devices()[2:4])


def test_second_call_does_not_compile_again(count_compilations: Any) -> None:
    mapped = shard_map_constructor(scaled, **scaled_specs)(mesh_of(4), jit=True)
    jax.block_until_ready(mapped(particles(4), 1.0))
    with count_compilations() as lines:
        jax.block_until_ready(mapped(particles(4), 2.0))
    assert not [line for line in lines if "scaled" in line]
    with count_compilations() as lines:
        jax.block_until_ready(mapped(particles(4), 2.0, power=3))
    assert [line for line in lines if "scaled" in line]


@pytest.mark.parametrize("transformed", [lambda f: f, jax.vmap], ids=["plain", "vmap"])
def test_mapped_function_without_jit_is_compiled_as_a_whole(transformed: Any, count_compilations: Any) -> None:
    pos = np.random.default_rng(0).random((2, 2, 30, 3), np.float32)
    pos = pos if transformed is jax.vmap else pos[0]
    f = shard_map_constructor(lambda x: jz.count_within(x, 0.1), P(-1), P(-1))(mesh_of(2))
    jax.block_until_ready(transformed(f)(pos))
    with count_compilations() as compilations:
        result = transformed(f)(pos + 1)
    assert len(compilations) == 0
    expected = np.asarray(jax.jit(transformed(f))(pos + 1))
    np.testing.assert_array_equal(result, expected)


def test_static_arguments_without_a_hash_need_no_jit() -> None:
    f = shard_map_constructor(lambda x, factors: x * factors[1], P(-1), {"x": P(-1)})
    np.testing.assert_array_equal(f(mesh_of(2))(np.ones((2, 3)), factors=[2, 3]), np.full((2, 3), 3.0))
    with pytest.raises(TypeError, match="argument 'factors' is static"):
        f(mesh_of(2), jit=True)(np.ones((2, 3)), factors=[2, 3])


def test_tiled_inputs_and_outputs_match_jax() -> None:
    x = np.arange(8, dtype=np.float32)
    mapped = expanding_shard_map(
        lambda x: 2 * x, in_specs=P(-1), out_specs=P(-1), mesh=mesh_of(4), input_tiled=True, output_tiled=True
    )
    np.testing.assert_array_equal(mapped(x), 2 * x)


def test_specs_may_name_axes_and_be_trees() -> None:
    def nodes(tree: Any) -> Any:
        return {"sum": tree["by_node"] + tree["same"]}

    mapped = expanding_shard_map(
        nodes, in_specs=({"by_node": P("nodes"), "same": P()},), out_specs={"sum": P("nodes")}, mesh=square_mesh()
    )
    out = jax.jit(mapped)({"by_node": np.arange(6.0, dtype=np.float32).reshape(2, 3), "same": np.float32(1)})
    np.testing.assert_array_equal(out["sum"], np.arange(6).reshape(2, 3) + 1)


def test_none_is_static_unless_static_arguments_are_named() -> None:
    def ones(n: int, value: Any) -> Any:
        return jnp.full(n, value, jnp.float32)

    both = shard_map_constructor(ones, in_specs=(None, None), out_specs=P(-1))
    assert both(mesh_of(2), jit=True)(3, 1.5).shape == (2, 3)
    for named in ({"static_argnums": 0}, {"static_argnames": "n"}, {"static_argnames": ["n"]}):
        single = shard_map_constructor(ones, in_specs=(None, None), out_specs=P(-1), **named)(mesh_of(2), jit=True)
        np.testing.assert_array_equal(single(3, jnp.float32(2.5)), np.full((2, 3), 2.5))
        np.testing.assert_array_equal(single(n=2, value=1), np.ones((2, 2)))


def test_specs_by_name_omit_static_arguments() -> None:
    def power(base: Any, exponent: int, shift: Any = 0.0) -> Any:
        return base**exponent + shift

    mapped = shard_map_constructor(power, in_specs={"shift": P(), "base": P(-1)}, out_specs=P(-1))(mesh_of(2), jit=True)
    base = np.arange(6, dtype=np.float32).reshape(2, 3)
    np.testing.assert_array_equal(mapped(base, 2, 1.5), base**2 + 1.5)
    np.testing.assert_array_equal(mapped(exponent=3, base=base), base**3)
    # Keys that are not arguments belong to one argument that is a dict.
    tree = shard_map_constructor(lambda data: data["a"] + data["b"], in_specs={"a": P(-1), "b": P()}, out_specs=P(-1))
    np.testing.assert_array_equal(tree(mesh_of(2), jit=True)({"a": base, "b": np.float32(1)}), base + 1)


def test_bad_arguments_raise_with_one_sentence() -> None:
    mapped = shard_map_constructor(scaled, **scaled_specs)(mesh_of(4), jit=True)
    with pytest.raises(ValueError, match=r"leading axis must run over the 4 devices of the mesh; .*expand_particles"):
        mapped(particles(3), 1.0)
    with pytest.raises(TypeError, match=r"argument 'power' is static .* must be hashable"):
        mapped(particles(4), 1.0, power=[1])
    short = shard_map_constructor(scaled, in_specs=(P(-1), P()), out_specs=scaled_specs["out_specs"])
    np.testing.assert_array_equal(short(mesh_of(4), jit=True)(particles(4), 1)[0], particles(4).pos)
    with pytest.raises(TypeError, match="'shift' has no entry in in_specs"):
        short(mesh_of(4), jit=True)(particles(4), 1, shift=2)
    with pytest.raises(ValueError, match="in_specs has 5 entries for 4 arguments"):
        shard_map_constructor(scaled, in_specs=(P(),) * 5, out_specs=P())


def test_configuration_is_copied_at_the_call() -> None:
    def leaf_size(x: Any, cfg: KNNConfig) -> Any:
        return x + cfg.tree.leaf_size

    mapped = shard_map_constructor(leaf_size, in_specs=(P(-1), None), out_specs=P(-1))(mesh_of(2), jit=True)
    cfg = KNNConfig()
    cfg.tree.leaf_size = 10
    assert mapped(np.zeros((2, 1), np.float32), cfg)[0, 0] == 10
    cfg.tree.leaf_size = 20
    assert mapped(np.zeros((2, 1), np.float32), cfg)[0, 0] == 20


def needs(given: int | None, maximum: int = 1000) -> Any:
    """Return a user function whose buffer needs a given number of rows."""

    def fill(rows: Any) -> Any:
        place = choose_capacity("boxes", given, 4, maximum)
        num = comm.require_capacity(rows, comm.all_gather(rows), place, "boxes", "set boxes.")
        return jnp.zeros(place.rows) + num

    return shard_map_constructor(fill, in_specs=P(-1), out_specs=P(-1))


def test_capacity_grows_until_sufficient_and_is_remembered(caplog: pytest.LogCaptureFixture) -> None:
    mapped = needs(None)(mesh_of(4), jit=True)
    assert mapped(np.array([1, 2, 3, 4])).shape == (4, 4)
    with caplog.at_level(logging.INFO, "jztree"):
        assert mapped(np.array([1, 80, 3, 4])).shape == (4, 90)
    assert [line for line in caplog.messages if "capacity of boxes" in line] == [
        "fill: capacity of boxes:1000 enlarged from 4 to 90 rows; compiling again."
    ]
    assert mapped(np.array([1, 2, 3, 85])).shape == (4, 90)
    assert mapped(np.array([1, 2, 3, 1000])).shape == (4, 1000)


def test_capacity_that_fails_for_another_reason_is_forgotten() -> None:
    def fill(rows: Any) -> Any:
        place = choose_capacity("boxes", None, 4, 10**6)
        if place.rows > 100_000:
            raise MemoryError("so much memory is not there.")
        return jnp.zeros(place.rows) + comm.require_capacity(rows, comm.all_gather(rows), place, "boxes", "set boxes.")

    mapped = shard_map_constructor(fill, in_specs=P(-1), out_specs=P(-1))(mesh_of(2), jit=True)
    assert mapped(np.array([1, 80])).shape == (2, 90)
    with pytest.raises(MemoryError, match="so much memory"):
        mapped(np.array([1, 100_000]))
    assert mapped(np.array([1, 85])).shape == (2, 90)


def test_explicit_capacity_is_kept() -> None:
    with pytest.raises(
        CapacityError, match=r"rank 1 needs capacity for 80 rows of boxes, but has capacity for 7; set boxes\.$"
    ) as error:
        needs(7)(mesh_of(4), jit=True)(np.array([1, 80, 3, 4]))
    assert (error.value.option, error.value.need, error.value.have) == ("boxes", 80, 7)


def test_capacity_that_can_never_suffice_raises() -> None:
    with pytest.raises(CapacityError):
        needs(None, maximum=50)(mesh_of(2), jit=True)(np.array([1, 80]))


def test_other_errors_pass_through() -> None:
    def fail(x: Any) -> Any:
        return kernels.check(jnp.int32(1), True, [], "nothing to do with room.") + x

    with pytest.raises(Exception, match="nothing to do with room"):
        jax.block_until_ready(shard_map_constructor(fail, P(-1), P(-1))(mesh_of(2), jit=True)(np.zeros((2, 1))))


def test_function_without_outputs_raises_too() -> None:
    def nothing(rows: Any) -> None:
        place = choose_capacity("crates", 4, 4, 9)
        num = comm.require_capacity(rows, comm.all_gather(rows), place, "crates", "set crates.")
        jax.debug.callback(lambda _: None, num)

    with pytest.raises(CapacityError, match="needs capacity for 6 rows of crates"):
        shard_map_constructor(nothing, None, P(-1))(mesh_of(2), jit=True)(np.array([1, 6]))


@pytest.mark.long
def test_library_functions_inside_user_functions_that_check_varying_axes() -> None:
    pos = np.random.default_rng(0).random((4, 200, 3)).astype(np.float32)

    def density(pos: Any) -> Any:
        rad = jz.knn.knn(pos, 5, boxsize=1.0, result="rad")
        _, cata = jz.fof.fof_and_catalogue(pos, 0.08, 1.0)

        def step(carry: Any, row: Any) -> Any:
            return carry + row[-1], None

        total, _ = jax.lax.scan(step, rad[0, 0], rad)
        _, _, axes = comm.get_rank_info()
        return jax.lax.psum(total, axes), jax.lax.psum(cata.ngroups, axes)

    total, groups = shard_map_constructor(density, P(), P(-1))(mesh_of(4), jit=True)(pos)
    flat = pos.reshape(-1, 3)
    np.testing.assert_allclose(total, jz.knn.knn(flat, 5, boxsize=1.0, result="rad")[:, -1].sum(), rtol=1e-4)
    assert groups == jz.fof.fof_and_catalogue(flat, 0.08, 1.0)[1].ngroups


OVER_DEVICES = {
    "sort": lambda mesh, pos: jz.tree.distr_zsort.smap(mesh, jit=True)(pos),
    "neighbours": lambda mesh, pos: jz.knn.knn.smap(mesh, jit=True)(pos, k=3, boxsize=1.0),
    "neighbours in z-order": lambda mesh, pos: jz.knn.knn.smap(mesh, jit=True)(pos, k=3, output_order="z"),
    "labels": lambda mesh, pos: jz.fof.distr_fof_labels.smap(mesh, jit=True)(pos, 0.2),
    "counts": lambda mesh, pos: jz.radius.count_within.smap(mesh, jit=True)(pos, 0.2),
}


@pytest.mark.long
@pytest.mark.parametrize("name", OVER_DEVICES)
def test_many_sets_at_once(name: str) -> None:
    """One of the sets is already in order, and so takes another path than the others."""
    devices, function = mesh_of(3), OVER_DEVICES[name]
    sets = jax.random.uniform(jax.random.key(0), (4, 3, 10, 3))
    sets = sets.at[1].set(jz.tree.distr_zsort.smap(devices, jit=True)(sets[1])[0])
    together = jax.vmap(lambda pos: function(devices, pos))(sets)
    one_by_one = [function(devices, pos) for pos in sets]
    for at_once, *alone in zip(*map(jax.tree.leaves, (together, *one_by_one)), strict=True):
        np.testing.assert_array_equal(at_once, np.stack(alone))
