"""Calls with an array, or particles, and constants, whose arguments are inspected once."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

from jztree import knn
from jztree.data import ParticleData, Pos, PosMass
from jztree.jax_ext import with_twins

POS = jnp.asarray(np.zeros((5, 3), np.float32))


class Asked:
    """A function with a compiled twin, which records its arguments whenever it prepares them."""

    def __init__(self, reads_values: bool = False) -> None:
        self.seen: list[dict[str, Any]] = []

        def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
            self.seen.append(dict(arguments))
            if reads_values:
                return {"scale": float(np.max(arguments["pos"]))}
            return {"scale": np.asarray(arguments["scale"], jnp.result_type(float))}

        @with_twins({"pos": P(-1), "scale": P()}, P(-1), prepare=prepare)
        def scaled(pos: Any, scale: Any = 2.0, word: str = "a") -> Any:
            return pos * scale, word == "a", scale

        self.call: Any = scaled.jit


def test_same_shapes_and_constants_are_inspected_once() -> None:
    asked = Asked()
    for value in (1.0, 2.0, 3.0):
        np.testing.assert_array_equal(asked.call(POS + value, 3.0)[0], np.full((5, 3), 3 * value))
    assert len(asked.seen) == 1
    for call in (
        lambda: asked.call(POS, scale=3.0),
        lambda: asked.call(POS[:4], 3.0),
        lambda: asked.call(POS, 4.0),
        lambda: asked.call(POS, 3.0, word="b"),
        lambda: asked.call(POS.astype(jnp.float16), 3.0),
    ):
        before = len(asked.seen)
        first = call()
        assert len(asked.seen) == before + 1
        jax.tree.map(np.testing.assert_array_equal, call(), first)
        assert len(asked.seen) == before + 1


def test_equal_constants_of_other_types_are_distinguished() -> None:
    asked = Asked()
    for scale in (1, 1.0, True):
        asked.call(POS, scale)
    assert [type(item["scale"]) for item in asked.seen] == [int, float, bool]


class Counted(Asked):
    """The same for particles."""

    def __init__(self) -> None:
        super().__init__()

        def prepare(arguments: dict[str, Any]) -> dict[str, Any]:
            self.seen.append(dict(arguments))
            return {}

        @with_twins({"part": P(-1)}, P(-1), prepare=prepare)
        def moved(part: Any, by: float = 1.0) -> Any:
            return part.pos + by, part.num_total, getattr(part, "num", None)

        self.call = moved.jit


def test_particles_of_the_same_shapes_are_inspected_once() -> None:
    counted = Counted()
    for value in (1.0, 2.0):
        np.testing.assert_array_equal(counted.call(Pos(pos=POS + value), 3.0)[0], np.full((5, 3), value + 3))
    assert len(counted.seen) == 1
    for part in (
        PosMass(pos=POS),
        PosMass(pos=POS, mass=POS[:, 0]),
        ParticleData(pos=POS, mass=POS[:, 0]),
        ParticleData(pos=POS, vel=POS),
        ParticleData(pos=POS, vel=POS[:, :2]),
        Pos(pos=POS[:4]),
        Pos(pos=POS, num_total=7),
    ):
        before = len(counted.seen)
        for _ in range(2):
            assert counted.call(part, 3.0)[1] == part.num_total
        assert len(counted.seen) == before + 1


def test_particles_not_defined_by_their_shapes_are_inspected_each_time() -> None:
    @jax.tree_util.register_dataclass
    @dataclass
    class Mine:
        pos: Any
        num_total: int | None = None

    class Heavier(ParticleData):
        pass

    jax.tree_util.register_dataclass(Heavier, ["pos", "mass", "vel", "id", "num"], ["num_total"])
    counted = Counted()
    for part in (
        Pos(pos=POS, num=3),
        Pos(pos=POS, num=jnp.int32(3)),
        PosMass(pos=POS, mass=1.0),
        PosMass(pos=POS, mass=jnp.float32(1)),
        Pos(pos=np.zeros((5, 3))),
        Mine(pos=POS),
        Heavier(pos=POS),
    ):
        before = len(counted.seen)
        for _ in range(2):
            counted.call(part)
        assert len(counted.seen) == before + 2


def test_invalid_num_raises_each_time() -> None:
    knn.knn.jit(Pos(pos=POS), k=2)
    for num in (6, jnp.int32(6), -1):
        for _ in range(2):
            with pytest.raises((ValueError, jax.errors.JaxRuntimeError), match="num"):
                jax.block_until_ready(knn.knn.jit(Pos(pos=POS, num=num), k=2))


def test_numpy_arrays_are_inspected_each_time() -> None:
    asked = Asked()
    for _ in range(2):
        asked.call(np.zeros((5, 3)), 3.0)
    assert len(asked.seen) == 2


def test_arrays_after_the_first_are_inspected_each_time() -> None:
    asked = Asked()
    for scale in (2.0, 3.0):
        assert asked.call(POS + 1, np.float32(scale))[0][0, 0] == scale
        assert asked.call(POS + 1, jnp.float32(scale))[0][0, 0] == scale


def test_numbers_of_the_first_argument_are_read_each_time() -> None:
    asked = Asked(reads_values=True)
    for value in (2.0, 3.0):
        np.testing.assert_array_equal(asked.call(POS + value, 1.0)[0], np.full((5, 3), value * value))


def test_traced_arguments() -> None:
    asked = Asked()
    doubled = jax.jit(lambda pos: asked.call(pos, 2.0)[0])
    np.testing.assert_array_equal(doubled(POS + 1), np.full((5, 3), 2.0))
    np.testing.assert_array_equal(jax.grad(lambda pos: asked.call(pos, 2.0)[0].sum())(POS), np.full((5, 3), 2.0))


def test_the_number_of_bits_may_change() -> None:
    asked = Asked()
    pos = jnp.zeros((5, 3), jnp.float32)
    assert asked.call(pos, 2.0)[2].dtype == jnp.result_type(float)
    with jax.enable_x64(not jax.config.jax_enable_x64):
        assert asked.call(pos, 2.0)[2].dtype == jnp.result_type(float)


def test_errors_are_raised_each_time() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="k is 6, but there are only 5 particles"):
            knn.knn.jit(POS, k=6)
        with pytest.raises(TypeError, match="unexpected keyword argument 'many'"):
            knn.knn.jit(POS, k=2, many=6)
        with pytest.raises(TypeError, match="missing a required argument: 'k'"):
            knn.knn.jit(POS)
