"""The numbers of waits of a call for the GPU, and of its launches, counted by the emulator."""

import ctypes
import functools
from collections.abc import Callable
from typing import Any

import cuda_tools
import devices
import jax
import numpy as np
import pytest

import jztree as jz
from jztree import fof, kernels, knn, tree
from jztree.data import ParticleData
from native import test_kernels

pytestmark = [pytest.mark.emulated, cuda_tools.only_emulated]

RNG = np.random.default_rng(5)
POS = RNG.random((300, 3), dtype=np.float32)
PART = ParticleData(pos=POS, mass=np.ones(300, np.float32), vel=POS, num=np.int32(250))
RANKS = 3
PARTS = jax.tree.map(lambda leaf: np.stack([leaf] * RANKS), PART)


def kernels_in_command_buffers() -> dict[str, bool]:
    """Return whether XLA may record each kernel."""
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    library.jztree_kernels.restype, library.jztree_emulator_may_be_recorded.restype = ctypes.c_char_p, ctypes.c_bool
    names = library.jztree_kernels().decode().split(",")[:-1]
    return {name: library.jztree_emulator_may_be_recorded(getattr(library, f"jztree_{name}")) for name in names}


def test_kernels_that_do_not_wait_may_be_recorded_in_command_buffers() -> None:
    assert {name for name, recorded in kernels_in_command_buffers().items() if not recorded} == {"check", "lengths"}


def test_environment_variable_keeps_kernels_out_of_command_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JZTREE_COMMAND_BUFFERS", "0")
    script = "from native import test_waits; print(any(test_waits.kernels_in_command_buffers().values()))"
    run = test_kernels.run_with_instruction_set("cuda-emulated", script)
    assert run.stdout.split() == ["False"], run.stderr


@functools.cache
def in_z_order() -> tuple[ParticleData, tree.TreeHierarchy]:
    return tree.zsort_and_tree(PART)


def counted(call: Callable[[], Any], counter: str = "jztree_emulator_waits") -> int:
    count = getattr(ctypes.CDLL(kernels.native_info()["cpu_library"]), counter)
    jax.block_until_ready(call())
    count()
    jax.block_until_ready(call())
    return count()


@pytest.mark.parametrize(
    ("call", "maximum"),
    [
        # Python reads the results of checks in plain calls, and so does the waiting itself.
        (lambda: knn.knn(POS, 4, 1.0), 0),
        (lambda: knn.knn(POS, 4, 1.0, part_query=POS[:50]), 0),
        (lambda: fof.fof_labels(POS, 0.1, 1.0), 0),
        (lambda: fof.fof_and_catalogue(POS, 0.1, 1.0), 0),
        (lambda: knn.knn.jit(PART, 4, 1.0), 1),
        (lambda: knn.knn.jit(PART, 4, part_query=POS[:50], output_order="z"), 1),
        (lambda: knn.knn.jit(in_z_order()[0], 4, th=in_z_order()[1], part_query=POS[:50]), 1),
        (lambda: fof.fof_labels.jit(PART, 0.1, 1.0), 1),
        (lambda: fof.fof_labels.jit(in_z_order()[0], 0.1, th=in_z_order()[1]), 1),
        # The second wait is at its end, when the sums over groups are known.
        (lambda: fof.fof_and_catalogue.jit(PART, 0.1, 1.0), 2),
    ],
)
def test_number_of_waits_on_one_gpu(call: Callable[[], Any], maximum: int) -> None:
    assert counted(call) == maximum


@pytest.mark.parametrize(
    ("function", "length", "others", "maximum"),
    [
        (knn.knn, 4, {}, 7),
        (knn.knn, 4, {"part_query": PARTS.pos}, 8),
        (fof.distr_fof_labels, 0.1, {}, 6),
        (fof.fof_and_catalogue, 0.1, {}, 10),
    ],
)
def test_number_of_waits_over_ranks(function: Any, length: float, others: dict[str, Any], maximum: int) -> None:
    mapped = function.smap(devices.mesh_of(RANKS), jit=True)
    assert counted(lambda: mapped(PARTS, length, 1.0, **others)) == maximum * RANKS


# 125 leaves in 3 planes; the upper two planes share a launch.
MANY = RNG.random((3000, 3), dtype=np.float32)


@pytest.mark.parametrize(
    ("call", "maximum"),
    [
        (lambda: tree.zsort_and_tree.jit(jz.data.Pos(pos=MANY), boxsize=1.0), 18),
        (lambda: jz.nearest.jit(MANY, 8, boxsize=1.0), 30),
        (lambda: jz.group_labels.jit(MANY, 0.02, boxsize=1.0), 28),
        (lambda: jz.count_within.jit(MANY, 0.05, boxsize=1.0), 25),
        (lambda: jz.kernel_sums.jit(MANY, 0.05, boxsize=1.0), 43),
        # 12 rounds of 6 launches.
        (lambda: jz.spanning_tree.jit(MANY, boxsize=1.0), 118),
    ],
)
def test_number_of_kernels_copies_and_fills_on_one_gpu(call: Callable[[], Any], maximum: int) -> None:
    assert 0 < counted(call, "jztree_emulator_operations") <= maximum
