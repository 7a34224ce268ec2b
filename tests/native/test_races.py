"""The emulator that watches memory must find planted races between CUDA threads, and report none in correct code.

The kernels are in tests/native/cuda_emulator/planted_races.cc; `make test-watched` builds them, and runs the library's
tests with all kernels watched.
"""

import cuda_tools
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jztree as jz
from jztree.config import KNNConfig, RadiusConfig, TreeConfig
from native import test_emulator, test_kernels

pytestmark = [pytest.mark.watched, cuda_tools.only_watched]

_RACE = "two threads access the same memory, one writes, and nothing orders the accesses."
# The scope of each race, and the source line to be named.
PLANTED = {
    "threads of a block": "planted_races.cc",
    "lanes of a warp": "planted_races.cc",
    "lanes of half a warp": "planted_races.cc",
    "blocks": "planted_races.cc",
    "union-find": "union_find.cuh",
    "small lengths": "kernel_problem.cuh",
}
# Functions of the library with barriers that kernels need, and these kernels.
BARRIERS = {
    "share_setup": ("count_within", "kernel_sums", "pairs_within"),
    "next": ("count_within", "kernel_sums", "neighbours_within", "pairs_within"),
    "each_tile": ("pair_counts", "pairs_within"),
    "take": ("count_within", "kernel_sums", "neighbours_within"),
    "sort_in_memory": ("neighbours_within",),
    "look_below": ("knn",),
    "push": ("knn",),
}


def call(what: str, *, ordered: bool) -> np.ndarray:
    """Return the result of a planted kernel, ``(64,)``."""
    return test_emulator.call_planted("planted_race", jnp.arange(64, dtype=jnp.int32), what=what, ordered=ordered)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("what", PLANTED)
def test_unordered_access_is_detected(what: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JZTREE_EMULATOR_SEED", str(seed))
    script = f"from native.test_races import call\nprint(call({what!r}, ordered={{}}))"
    unordered = test_kernels.run_with_instruction_set("cuda-watched", script.format(False))
    assert unordered.returncode != 0
    assert f"CUDA emulator: {_RACE}" in unordered.stderr
    assert PLANTED[what] in unordered.stderr
    ordered = test_kernels.run_with_instruction_set("cuda-watched", script.format(True))
    assert ordered.returncode == 0, ordered.stderr


@pytest.mark.parametrize("what", PLANTED)
def test_ordered_access_gives_the_right_result(what: str) -> None:
    rows = np.arange(64)
    right = {
        "threads of a block": rows[::-1],
        "lanes of a warp": rows ^ 31,
        "lanes of half a warp": rows ^ 15,
        "blocks": rows,
        "small lengths": np.where(rows == 1, 0, rows),
    }
    result = call(what, ordered=True)
    if what in right:
        assert (result == right[what]).all()
    else:
        while (result[result] != result).any():
            result = result[result]
        assert (result == 0).all()


def search(kernel: str) -> None:
    """Run a search kernel of the library around 200 particles, in several leaves larger than a warp.

    Nearest neighbours are searched among many particles, with more leaves per node than lanes per warp.
    """
    pos, radius = oracles.uniform(200, 3), 0.3
    large_radius = 0.49  # lists that are sorted in memory, with more than two entries per lane
    cfg = RadiusConfig(tree=TreeConfig(leaf_size=40, fan_out=2))
    {
        "count_within": lambda: jz.radius.count_within(pos, radii=[0.1, radius], boxsize=1.0, cfg=cfg),
        "knn": lambda: jz.knn.knn(
            oracles.uniform(2000, 3), 6, 1.0, cfg=KNNConfig(tree=TreeConfig(leaf_size=12, fan_out=40))
        ),
        "kernel_sums": lambda: jz.radius.kernel_sums(pos, radius, boxsize=1.0, cfg=cfg),
        "neighbours_within": lambda: jz.radius.neighbours_within(
            pos, large_radius, boxsize=1.0, nearest_first=True, cfg=cfg
        ),
        "pair_counts": lambda: jz.radius.pair_counts(pos, [0.1, 0.2, radius], boxsize=1.0, cfg=cfg),
        "pairs_within": lambda: jz.radius.pairs_within(pos, radius, boxsize=1.0, cfg=cfg),
    }[kernel]()


@pytest.mark.parametrize(("function", "kernel"), [(f, kernel) for f, these in BARRIERS.items() for kernel in these])
def test_removal_of_each_barrier_is_detected(function: str, kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"from native.test_races import search\nsearch({kernel!r})"
    monkeypatch.setenv("JZTREE_EMULATOR_WITHOUT", f"{kernel}:{function}")
    ended = test_kernels.run_with_instruction_set("cuda-watched", script)
    assert ended.returncode != 0
    assert f"CUDA emulator: {_RACE}" in ended.stderr


@pytest.mark.parametrize("kernel", sorted({kernel for these in BARRIERS.values() for kernel in these}))
def test_no_race_is_found_with_all_barriers(kernel: str) -> None:
    ended = test_kernels.run_with_instruction_set(
        "cuda-watched", f"from native.test_races import search\nsearch({kernel!r})"
    )
    assert ended.returncode == 0, ended.stderr


@pytest.mark.parametrize("place", ["before an argument", "after an argument", "before a result", "after a result"])
def test_reads_outside_the_memory_of_the_kernel_are_detected(place: str) -> None:
    script = f"from native.test_races import call\ncall('place {place}', ordered=True)"
    ended = test_kernels.run_with_instruction_set("cuda-watched", script)
    assert ended.returncode != 0
    assert "CUDA emulator: a kernel accesses memory outside its arrays." in ended.stderr
    assert "planted_races.cc" in ended.stderr
