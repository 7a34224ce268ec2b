"""Each process passes its own arrays, and receives the answers for them in its order."""

import dataclasses
import re
from typing import Any

import jax
import numpy as np
import pytest
from devices import mesh_of, square_mesh
from processes import run_processes

import jztree as jz
from jztree.data import ParticleData, Pos, PosMass, from_local, to_local


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class WithHeader:
    """Particles with numbers that all share."""

    pos: Any
    header: Any
    num: Any = None


@jax.tree_util.register_dataclass
@dataclasses.dataclass
class FromRow:
    """Particles on a line, numbered by their rows."""

    shift: Any
    num: Any = None

    @property
    def pos(self) -> Any:
        return self.shift + np.arange(self.shift.shape[0], dtype=np.float32)[:, None]


def particles(n: int, dtype: Any = np.float32) -> ParticleData:
    random = np.random.default_rng(n)
    return ParticleData(pos=random.random((n, 3)).astype(dtype), id=np.arange(n, dtype=np.int32))


@pytest.mark.parametrize("n", [0, 1, 3, 101])
def test_rows_return_in_their_order(n: int) -> None:
    part = particles(n)
    stacked = from_local(part, mesh_of(4))
    assert stacked.pos.shape == (4, max(-(-n // 4), 1), 3)
    assert np.asarray(stacked.num).sum() == n == stacked.num_total
    back = to_local(stacked, stacked)
    np.testing.assert_array_equal(back.pos, part.pos)
    np.testing.assert_array_equal(back.id, part.id)
    assert back.num == n


@pytest.mark.long
@pytest.mark.parametrize("mesh", [lambda: mesh_of(4), square_mesh], ids=["line", "square"])
def test_neighbours_are_those_of_one_device(mesh: Any) -> None:
    part = particles(203)
    stacked = from_local(part, mesh())
    result = to_local(jz.knn.knn.smap(mesh(), jit=True)(stacked, k=4, boxsize=1.0), stacked)
    for ours, want in zip(result, jz.knn.knn(part, k=4, boxsize=1.0), strict=True):
        np.testing.assert_array_equal(ours, want)


def test_rows_after_num_are_left_out() -> None:
    pos = np.random.default_rng(0).random((20, 2)).astype(np.float32)
    stacked = from_local(Pos(pos=pos, num=13), mesh_of(2))
    np.testing.assert_array_equal(to_local(stacked.pos, stacked), pos[:13])


def test_leaves_that_all_particles_share_are_repeated_and_return() -> None:
    pos = np.random.default_rng(0).random((9, 3)).astype(np.float32)
    part = PosMass(pos=pos, mass=np.float32(2.0))
    stacked = from_local(part, mesh_of(4))
    np.testing.assert_array_equal(stacked.mass, [2, 2, 2, 2])
    labelled = jz.fof.fof_labels.smap(mesh_of(4), jit=True)(stacked, 0.2, output_order="input")
    back, label = to_local(labelled, stacked)
    assert back.mass == 2.0
    np.testing.assert_array_equal(label, jz.fof.fof_labels(pos, 0.2, output_order="input")[1])


def test_shared_rows_are_not_those_of_devices() -> None:
    part = WithHeader(pos=np.zeros((9, 3), np.float32), header=np.arange(4, dtype=np.float32))
    stacked = from_local(part, mesh_of(4))  # as many devices as numbers in the header
    np.testing.assert_array_equal(stacked.header, [part.header] * 4)
    np.testing.assert_array_equal(to_local(stacked, stacked).header, part.header)


def test_positions_computed_from_the_row_raise() -> None:
    part = FromRow(shift=np.zeros((9, 3), np.float32))
    with pytest.raises(ValueError, match="depends on the row"):
        from_local(part, mesh_of(2))
    assert from_local(part, mesh_of(1)).shift.shape == (1, 9, 3)


def test_array_of_positions_becomes_particles() -> None:
    pos = np.random.default_rng(0).random((9, 3))
    stacked = from_local(pos.astype(np.float32), mesh_of(2))
    assert isinstance(stacked, Pos)
    np.testing.assert_array_equal(to_local(stacked.pos, stacked), pos.astype(np.float32))


def test_class_without_num_raises() -> None:
    @jax.tree_util.register_pytree_node_class
    class Points:
        def __init__(self, pos: Any) -> None:
            self.pos = pos

        def tree_flatten(self) -> Any:
            return (self.pos,), None

        @classmethod
        def tree_unflatten(cls, _: Any, leaves: Any) -> Any:
            return cls(*leaves)

    with pytest.raises(TypeError, match="num"):
        from_local(Points(np.zeros((3, 3), np.float32)), mesh_of(2))


def test_result_with_other_rows_raises() -> None:
    stacked = from_local(particles(8), mesh_of(2))
    with pytest.raises(ValueError, match=r"\(2, 5\); all must have the rows of part, \(2, 4\)"):
        to_local(np.zeros((2, 5)), stacked)


def test_numbers_of_each_device_raise() -> None:
    stacked = from_local(particles(8), mesh_of(2))
    with pytest.raises(ValueError, match=r"\(2,\); all must have the rows"):
        to_local(np.asarray([0.5, 0.5], np.float32), stacked)


def test_particles_with_another_num_raise() -> None:
    stacked = from_local(particles(8), mesh_of(2))
    grouped = dataclasses.replace(stacked, num=np.asarray([3, 4], np.int32))
    with pytest.raises(ValueError, match="another num than part"):
        to_local(grouped, stacked)


@pytest.mark.parametrize("part", [particles(8), Pos(pos=np.zeros((2, 8, 3), np.float32))])
def test_particles_of_no_mesh_raise(part: Any) -> None:
    with pytest.raises(ValueError, match="pass the particles that from_local returned"):
        to_local(np.zeros((2, 8)), part)


def test_no_mesh_raises() -> None:
    no_mesh: Any = None
    with pytest.raises(TypeError, match=r"mesh must come from jax\.make_mesh"):
        from_local(particles(8), no_mesh)


START = """
import jax, jax.experimental.multihost_utils, numpy as np, jztree as jz
jz.launch.initialize()
mesh = jax.make_mesh((jax.device_count(),), ("gpus",))
me = jax.process_index()
everyone = np.random.default_rng(7).random((300, 3)).astype(np.float32)
"""


@pytest.mark.long
@pytest.mark.parametrize("first", [0, 211])
def test_processes_with_different_numbers_get_their_answers_and_raise_errors_together(first: int) -> None:
    script = f"""
rows = slice(0, {first}) if me == 0 else slice({first}, 300)
part = jz.data.from_local(everyone[rows], mesh)
answers = jz.knn.knn.smap(mesh, jit=True)(part, k=3, boxsize=1.0)
on_all = jax.experimental.multihost_utils.process_allgather(answers, tiled=True)
for found in (answers, on_all):
    for mine, want in zip(jz.data.to_local(found, part), jz.knn.knn(everyone, k=3, boxsize=1.0)):
        np.testing.assert_array_equal(mine, np.asarray(want)[rows])

class Broken:
    num = None
    @property
    def pos(self):
        raise RuntimeError("cannot read")
jax.tree_util.register_pytree_node(Broken, lambda one: ((), None), lambda *_: Broken())
for part in (
    everyone.astype(np.int32 if me else np.float32),
    jz.data.Pos(pos=everyone, num=301 if me else 300),
    Broken() if me else everyone,
    jz.data.PosMass(pos=everyone, mass=np.float32(1 + me)),
):
    try:
        jz.data.from_local(part, mesh)
    except Exception as error:
        print("raised", error, flush=True)
"""
    ended = run_processes(START + script, timeout=90)
    assert [process.returncode for process in ended] == [0, 0], ended
    first, second = (re.findall("^raised (.*)$", process.output, re.MULTILINE) for process in ended)
    failed = "from_local raised an error on process 1"
    differ = "those of process 1 differ"
    for errors, sentences in ((first, (differ, failed, failed)), (second, (differ, "num is 301", "cannot read"))):
        assert len(errors) == 4
        for error, sentence in zip(errors, (*sentences, differ), strict=True):
            assert sentence in error
