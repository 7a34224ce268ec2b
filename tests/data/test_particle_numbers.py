"""Numbers that JAX or the kernels cannot accept unchanged, and the number of rows with particles."""

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import oracles
import pytest
from devices import mesh_of
from jax.sharding import PartitionSpec as P

import jztree as jz
from data.test_particle_classes import RLINK, K, N, catalogue_of, columns, entries
from jztree import data
from jztree_utils import io


class _Quantity(np.ndarray):
    """An array of NumPy with a unit, like those of astropy."""

    unit: Any = None


def in_unit(values: Any, unit: str) -> _Quantity:
    built = np.asarray(values).view(_Quantity)
    built.unit = unit
    return built


@pytest.mark.parametrize("twin", ["", "jit", "smap"], ids=["plain", "jit", "smap"])
def test_positions_with_a_unit_are_refused_by_every_function(twin: str) -> None:
    pos = np.asarray(columns()["pos"])
    part = data.ParticleData(pos=in_unit(pos[None] if twin == "smap" else pos, "Mpc"))
    free = ("pad", "squeeze", "flatten", "map_rows", "split_rows", "canonical_order", "densest_particle")
    for name, call in entries(twin).items():
        if name in free:  # no data goes into JAX, or a catalogue is made before
            continue
        with pytest.raises(
            TypeError, match=r"pos(itions)? has the unit Mpc, .* plain numbers, with all lengths"
        ) as error:
            call(part)
        assert oracles.one_sentence(error), name


def test_lengths_and_densities_with_a_unit_are_refused(tmp_path: Path) -> None:
    pos, one = np.asarray(columns()["pos"]), in_unit(0.25, "Mpc")
    part, box = data.PosMass(pos=pos, mass=np.ones(N, np.float32)), in_unit([1.0] * pos.shape[1], "kpc")
    sphere = jz.overdensity.spherical_overdensity
    calls = {
        "boxsize": [lambda f=f: f(pos, K, boxsize=box) for f in (jz.knn.knn, jz.knn.knn.jit)],
        "rlink": [lambda f=f: f(pos, one) for f in (jz.fof.fof_labels, jz.fof.fof_labels.jit)],
        "density": [lambda f=f: f(part, one, queries=pos) for f in (sphere, sphere.jit)],
        "gravity": [lambda: sphere(part, 1.0, queries=pos, gravity=one)],
        "pos of the particles": [lambda: io.write_snapshot(tmp_path / "s.hdf5", data.Pos(pos=in_unit(pos, "m")))],
    }
    for name, sample in calls.items():
        for call in sample:
            with pytest.raises(TypeError, match=f"{name} has the unit .*, which jztree would drop") as error:
                call()
            assert oracles.one_sentence(error), name
    np.testing.assert_array_equal(jz.knn.knn(in_unit(pos, "dimensionless"), K)[1], jz.knn.knn(pos, K)[1])


MOVED = {
    "bool": np.arange(N) % 3 == 0,
    "complex64": (np.arange(N) + 2j).astype(np.complex64),
    "float8": jnp.asarray((np.arange(N) % 8).astype(jnp.float8_e4m3fn)),
    "bfloat16": jnp.asarray(np.arange(N).astype(jnp.bfloat16)),
    "float16": np.arange(N, dtype=np.float16),
    "int8": np.arange(N, dtype=np.int8),
    "zero width": np.zeros((N, 0), np.float32),
    "odd width": np.arange(3 * N, dtype=np.uint8).reshape(N, 3),
}
REFUSED = {
    "int4": (jnp.asarray((np.arange(N) % 8).astype(jnp.int4)), "int4"),
    "uint2": (jnp.asarray((np.arange(N) % 4).astype(jnp.uint2)), "uint2"),
    "float4": (np.zeros(N, ml_dtypes.float4_e2m1fn), "float4_e2m1fn"),
    "keys": (jax.random.split(jax.random.key(0), N), "key<"),
    "records": (np.zeros(N, [("a", "f4"), ("b", "f4")]), r"records \(a, b\)"),
    "objects": (np.array([None] * N), "Python objects"),
    "words": (np.array(["a"] * N), "text"),
    "times": (np.zeros(N, "M8[D]"), "times"),
    "extended": (np.zeros(N, np.longdouble), "float128|longdouble"),
    "byte order": (np.zeros(N, np.dtype(np.float32).newbyteorder()), r"byte order.*astype\('float32'\)"),
    "masked": (np.ma.masked_array(np.zeros(N), np.arange(N) == 3), "masked"),
    "unit": (in_unit(np.zeros(N, np.float32), "kpc"), "has the unit kpc, .* plain numbers"),
}


@pytest.mark.parametrize("column", MOVED.values(), ids=MOVED)
def test_properties_of_every_dtype_are_sorted_with_positions(column: Any) -> None:
    part = data.ParticleData(pos=columns()["pos"], id=column)
    partz, index = jz.tree.zsort.jit(part)
    assert partz.id.dtype == column.dtype
    np.testing.assert_array_equal(np.asarray(partz.id), np.asarray(column)[index])


@pytest.mark.slow
@pytest.mark.parametrize("column", MOVED.values(), ids=MOVED)
def test_properties_of_every_dtype_are_sent_to_other_devices(column: Any) -> None:
    stacked = data.expand_particles(data.ParticleData(pos=columns()["pos"], id=column), 2)
    partz, also, origin = jz.tree.distr_zsort.smap(mesh_of(2), jit=True)(stacked, stacked.id)
    rows = np.asarray(origin.rank * (N // 2) + origin.idx).ravel()
    for moved in (partz.id, also):
        np.testing.assert_array_equal(np.asarray(moved).reshape(column.shape), np.asarray(column)[rows])


@pytest.mark.parametrize(("column", "words"), REFUSED.values(), ids=REFUSED)
def test_properties_that_cannot_be_moved_are_named(column: Any, words: str) -> None:
    part, pos = data.ParticleData(pos=columns()["pos"], mass=None, vel=column), columns()["pos"]
    calls = {
        "zsort": lambda: jz.tree.zsort(part),
        "zsort.jit": lambda: jz.tree.zsort.jit(part),
        "knn": lambda: jz.knn.knn(part, K),
        "fof": lambda: jz.fof.fof_and_catalogue.jit(part, RLINK),
        "expand": lambda: data.expand_particles(part, 2),
        "data": lambda: jz.tree.zsort_and_tree(pos, data={"vel": column}),
        "data.jit": lambda: jz.tree.zsort_and_tree.jit(pos, data={"vel": column}),
        "distr data": lambda: jz.tree.distr_zsort(pos, {"vel": column}),
    }
    for name, call in calls.items():
        with pytest.raises(TypeError, match=words) as error:
            call()
        assert "vel" in str(error.value), name
        assert oracles.one_sentence(error), name


CUT = {
    "int64": (np.arange(N) + 2**40, 2**40),
    "uint64": (np.arange(N, dtype=np.uint64) + np.uint64(2**63), 2**63),
    "below": (np.arange(N) - 2**40, -(2**40)),
    "Python": (2**40, 2**40),
    "NumPy": (np.int64(2**40), 2**40),
    "float64": (np.full(N, 1e40), "1e\\+40"),
    "float": (-1e300, "-1e\\+300"),
    "complex128": (np.full(N, 1e40j), "1e\\+40"),
}


@pytest.mark.parametrize("twin", ["", "jit", "smap"], ids=["plain", "jit", "smap"])
@pytest.mark.parametrize(("column", "words"), CUT.values(), ids=CUT)
def test_numbers_that_do_not_fit_32_bits_are_refused_by_every_function(twin: str, column: Any, words: Any) -> None:
    given = columns()
    if twin == "smap":
        given = {name: leaf[None] for name, leaf in given.items()}
        column = np.asarray(column)[None]
    part = data.ParticleData(**(given | {"id": column}))
    free = ("pad", "squeeze", "flatten", "map_rows", "canonical_order")  # no data goes into JAX
    calls = {name: call for name, call in entries(twin).items() if name not in free}
    if not twin:
        calls["data"] = lambda part: jz.tree.zsort_and_tree(part.pos, data=np.broadcast_to(part.id, (N,)))
    for name, call in calls.items():
        with pytest.raises(ValueError, match=f"(id|data) holds {words}, ") as error:
            call(part)
        assert oracles.one_sentence(error), name


def test_wide_identifiers_are_kept_outside_jax() -> None:
    ids = np.arange(12) + 2**40
    part = data.ParticleData(pos=oracles.uniform(12, 2), id=ids, num=12)
    np.testing.assert_array_equal(data.squeeze_particles(data.pad_particles(part, 5)).id, ids)
    stacked = data.ParticleData(pos=part.pos.reshape(3, 4, 2), id=ids.reshape(3, 4), num=np.array([4, 2, 4]))
    np.testing.assert_array_equal(data.flatten_particles(stacked).id, np.delete(ids, [6, 7]))


def test_wide_identifiers_with_64_bits(x64: None) -> None:
    part = data.ParticleData(pos=oracles.uniform(N, 2), id=np.arange(N) + 2**40)
    partz, index = jz.tree.zsort.jit(part)
    np.testing.assert_array_equal(partz.id, part.id[index])
    with pytest.raises(ValueError, match="but JAX keeps only 64 bits, or"):
        jz.tree.zsort(data.ParticleData(pos=part.pos, id=2**70))


def test_float64_positions_are_rounded_equally_in_every_call() -> None:
    wide = oracles.uniform(N, 2, np.float64)
    expected = jz.tree.zsort(data.ParticleData(pos=wide.astype(np.float32), vel=wide.astype(np.float32)))
    part = data.ParticleData(pos=wide, vel=wide)
    mapped = jz.tree.zsort.smap(mesh_of(1), jit=True)(jax.tree.map(lambda leaf: leaf[None], part))
    for result in (jz.tree.zsort(part), jz.tree.zsort.jit(part), jax.tree.map(lambda leaf: leaf[0], mapped)):
        jax.tree.map(np.testing.assert_array_equal, result, expected)


def test_more_rows_than_int32_can_count_raise() -> None:
    half, all_of_it = (jax.ShapeDtypeStruct((rows, 3), jnp.float32) for rows in (2**30, 2**31))
    functions = {
        "multi type": (lambda pos: jz.tree.zsort_and_tree_multi_type([pos, pos]), half),
        "attached": (lambda pos: jz.fof.fof_and_catalogue(pos, RLINK, attached=pos), half),
        "densest": (lambda pos: jz.halos.densest_particle(pos, catalogue_of(pos)[1], pos[:, 0]), all_of_it),
        "zsort": (jz.tree.zsort, all_of_it),
    }
    for name, (function, rows) in functions.items():
        with pytest.raises(ValueError, match=str(2**31)) as error:
            jax.eval_shape(function, rows)
        assert oracles.one_sentence(error), name


def test_more_rows_of_several_kinds_than_int32_can_count_on_devices_raise() -> None:
    mapped = jz.knn.knn.smap(mesh_of(2))
    rows = jax.ShapeDtypeStruct((2, 2**30, 3), jnp.float32)
    with pytest.raises(ValueError, match=str(2**31)) as error:
        jax.eval_shape(lambda pos: mapped(pos, 1, part_query=pos), rows)
    assert oracles.one_sentence(error)


# The number of rows with particles

FAST = ("zsort", "knn", "fof_and_catalogue")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in entries("jit")]
)
def test_invalid_traced_num_raises(name: str) -> None:
    call = entries("jit")[name]
    for num in (-1, N + 1):
        with pytest.raises(oracles.RUN_TIME_ERROR, match=rf"num of .*({num};|from 0 to)") as error:
            jax.block_until_ready(call(data.ParticleData(**columns(), num=jnp.int32(num))))
        assert oracles.one_sentence(error)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name == "zsort" else pytest.mark.slow)
        for name in ("zsort", "knn", "fof_and_catalogue", "distr_zsort", "zsort_and_tree")
    ],
)
@pytest.mark.parametrize("num", [-1, 31])
def test_invalid_num_on_one_device_raises_on_all(name: str, num: int) -> None:
    functions = {
        "zsort": jz.tree.zsort,
        "knn": lambda part: jz.knn.knn(part, 1),
        "fof_and_catalogue": lambda part: jz.fof.fof_and_catalogue(part, RLINK),
        "distr_zsort": jz.tree.distr_zsort,
        "zsort_and_tree": jz.tree.zsort_and_tree,
    }
    stacked = data.expand_particles(data.ParticleData(**columns()), 2)
    wrong = dataclasses.replace(stacked, num=jnp.asarray([30, num], jnp.int32))
    mapped = jz.jax_ext.shard_map_constructor(functions[name], P(-1), P(-1))(mesh_of(2), jit=True)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=rf"on rank 1: num of the positions is {num}; .* to 30") as error:
        jax.block_until_ready(mapped(wrong))
    assert oracles.one_sentence(error)


@pytest.mark.parametrize("array", [True, False], ids=["array", "class"])
def test_unequal_shares_need_a_particle_class_with_num(array: bool) -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Uncounted:
        pos: Any
        mass: Any

    given = columns()
    part = given["pos"] if array else Uncounted(given["pos"], given["mass"])
    words, stacked = "field num for the number of rows that hold", data.expand_particles(part, 2)
    sort, find = jz.tree.distr_zsort, jz.fof.fof_and_catalogue
    for call in (
        lambda: sort.smap(mesh_of(2), jit=True)(stacked, equalize=False),
        lambda: find.smap(mesh_of(2), jit=True)(stacked, RLINK, attached=stacked),
    ):
        with pytest.raises(TypeError, match=words) as error:
            call()
        assert oracles.one_sentence(error)
    # Equal shares have no padding rows, and one device has no shares.
    assert sort(part, equalize=False)[0] is not None
    moved = sort.smap(mesh_of(2), jit=True)(stacked)[0]
    pos = np.asarray(data.get_pos(moved)).reshape(-1, data.get_pos(part).shape[1])
    np.testing.assert_array_equal(np.sort(pos, axis=0), np.sort(data.get_pos(part), axis=0))


@pytest.mark.parametrize("num", [-1, N + 1])
def test_invalid_known_num_is_refused_by_helpers(num: int) -> None:
    part = data.ParticleData(**columns(), num=num)
    for call in (data.squeeze_particles, data.expand_particles, lambda part: data.pad_particles(part, 2)):
        with pytest.raises(ValueError, match=f"num is {num}") as error:
            call(part)
        assert oracles.one_sentence(error)
    stacked = data.ParticleData(pos=jnp.zeros((2, N, 3)), num=np.array([3, num]))
    with pytest.raises(ValueError, match=f"num is .*{num}"):
        data.flatten_particles(stacked)


def test_num_of_sorted_particles_is_checked_if_nothing_else_is_used() -> None:
    pos = columns()["pos"]
    with pytest.raises(Exception, match="num of the positions is -1"):
        jax.block_until_ready(jax.jit(lambda num: jz.tree.zsort(jz.data.Pos(pos=pos, num=num))[0].num)(-1))


def test_traced_num_of_padded_particles_is_checked() -> None:
    pos = columns()["pos"]
    with pytest.raises(Exception, match=f"num is {N + 1}; .* from 0 to {N}"):
        jax.block_until_ready(jax.jit(lambda num: jz.data.pad_particles(jz.data.Pos(pos=pos, num=num), 1).num)(N + 1))


def test_num_larger_than_any_array_raises() -> None:
    part = jz.data.ParticleData(pos=columns()["pos"], num=2**40)
    for call in (jz.knn.knn, jz.knn.knn.jit):
        with pytest.raises(ValueError, match=r"num is 1099511627776; it counts .* must be below 2\*\*31\.$"):
            call(part, K)


def test_masked_arrays_raise() -> None:
    pos = columns()["pos"]
    masked = np.ma.MaskedArray(pos, mask=pos > 0.5)
    for call in (jz.density.knn_density, jz.density.sph_density, jz.density.smoothing_length, jz.knn.knn):
        with pytest.raises(TypeError, match="masked array") as error:
            call(masked, K)
        assert oracles.one_sentence(error)
    with pytest.raises(TypeError, match="masked array"):
        jz.data.pad_particles(masked, 2)


def test_results_of_reduce_func_can_be_moved() -> None:
    """Rows of half a byte would be written after the end of the array."""
    with pytest.raises(TypeError, match="what reduce_func returns is an array of int4"):
        jz.knn.knn(columns()["pos"], 2, result="reduce", reduce_func=lambda rnn, **_: jnp.zeros(len(rnn), jnp.int4))


@pytest.mark.parametrize("mass", [1e-50, np.float64(1e-46), -1e-50])
def test_masses_that_would_underflow_to_zero_are_refused(mass: Any) -> None:
    with pytest.raises(ValueError, match="outside the range of float32"):
        jz.fof.fof_and_catalogue(jz.data.PosMass(pos=columns()["pos"], mass=mass), 0.3)
