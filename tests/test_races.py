"""The emulator that watches memory finds races between the threads of CUDA that were planted, and nothing without.

The kernels are in tests/native/cuda_emulator/planted_races.cc; `make test-watched` builds them, and runs the library's
tests with all kernels watched.
"""

import jax.numpy as jnp
import numpy as np
import pytest
import test_emulator
import test_kernels

from jztree import kernels

pytestmark = pytest.mark.skipif(
    kernels.native_info()["instruction_set"] != "cuda-watched", reason="the CUDA kernels are not watched here"
)

_RACE = "two threads come to the same memory, one of them writes, and nothing orders them."
# What each is about, and the line in the source that is to be named.
PLANTED = {
    "threads of a block": "planted_races.cc",
    "lanes of a warp": "planted_races.cc",
    "lanes of half a warp": "planted_races.cc",
    "blocks": "planted_races.cc",
    "union-find": "union_find.cuh",
}


def call(what: str, *, ordered: bool) -> np.ndarray:
    """What a planted kernel returns, ``(64,)``."""
    return test_emulator.call_planted("planted_race", jnp.arange(64, dtype=jnp.int32), what=what, ordered=ordered)


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("what", PLANTED)
def test_what_is_not_ordered_is_found(what: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JZTREE_EMULATOR_SEED", str(seed))
    script = f"import test_races\nprint(test_races.call({what!r}, ordered={{}}))"
    unordered = test_kernels.run_with_instruction_set("cuda-watched", script.format(False))
    assert unordered.returncode != 0
    assert f"CUDA emulator: {_RACE}" in unordered.stderr
    assert PLANTED[what] in unordered.stderr
    ordered = test_kernels.run_with_instruction_set("cuda-watched", script.format(True))
    assert ordered.returncode == 0, ordered.stderr


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_ordered_has_the_right_result(what: str) -> None:
    rows = np.arange(64)
    right = {
        "threads of a block": rows[::-1],
        "lanes of a warp": rows ^ 31,
        "lanes of half a warp": rows ^ 15,
        "blocks": rows,
    }
    found = call(what, ordered=True)
    if what in right:
        assert (found == right[what]).all()
    else:
        while (found[found] != found).any():
            found = found[found]
        assert (found == 0).all()


@pytest.mark.parametrize("place", ["before an argument", "behind an argument", "before a result", "behind a result"])
def test_reads_of_what_is_not_the_kernels_own_are_found(place: str) -> None:
    script = f"import test_races\ntest_races.call('place {place}', ordered=True)"
    ended = test_kernels.run_with_instruction_set("cuda-watched", script)
    assert ended.returncode != 0
    assert "CUDA emulator: a kernel comes to memory that is not its own." in ended.stderr
    assert "planted_races.cc" in ended.stderr
