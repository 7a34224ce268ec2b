"""Memory in the emulator of CUDA: what kernels may not count on is not there, and what is not theirs is watched.

The kernels with errors are in tests/native/cuda_emulator/planted_memory.cc; `make test-emulated` builds them.
"""

import json
import subprocess

import jax.numpy as jnp
import numpy as np
import pytest
import test_emulator
import test_kernels

from jztree import kernels

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(
        kernels.native_info()["instruction_set"] != "cuda-emulated", reason="the CUDA kernels are not emulated here"
    ),
]

GARBAGE = np.frombuffer(b"\xa5" * 4, np.int32)[0]
LEFT = 7  # what the planted kernels leave
_THREADS = 64


def call(what: str) -> np.ndarray:
    """What a planted kernel returns, ``(64,)``."""
    return test_emulator.call_planted("planted_memory", jnp.arange(_THREADS, dtype=jnp.int32), what=what)


def printed(*whats: str, seed: int) -> str:
    """What the last of some planted kernels returns in a process of its own, in words."""
    return _run(whats, seed).stdout


def _run(whats: tuple[str, ...], seed: int) -> subprocess.CompletedProcess[str]:
    script = f"import test_emulated_memory\nprint([test_emulated_memory.call(what).tolist() for what in {whats}][-1])"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JZTREE_EMULATOR_SEED", str(seed))
        return test_kernels.run_with_instruction_set("cuda-emulated", script)


@pytest.mark.parametrize("what", ["shared memory", "shared memory that was asked for"])
def test_no_block_finds_what_the_last_one_left(what: str) -> None:
    assert printed(what, seed=0) == printed(what, seed=1) == f"{[int(GARBAGE)] * _THREADS}\n"


def test_results_hold_garbage_at_first() -> None:
    assert printed("result", seed=0) == f"{[int(GARBAGE)] * _THREADS}\n"


def test_results_hold_what_an_earlier_call_left() -> None:
    # An argument of that call lay where the result does now.
    assert set(json.loads(printed("result", "result", seed=1))) & set(range(1, _THREADS))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("more shared memory", "a kernel wrote behind the shared memory it asked for."),
        ("place before an argument", "a kernel wrote outside of its memory."),
        ("place behind an argument", "a kernel wrote outside of its memory."),
        ("place before a result", "a kernel wrote outside of its memory."),
        ("place behind a result", "a kernel wrote outside of its memory."),
        ("argument", "a kernel wrote to an argument."),
    ],
)
def test_writes_to_what_is_not_the_kernels_own(what: str, words: str) -> None:
    ended = _run((what,), 0)
    assert ended.returncode != 0
    assert f"CUDA emulator: {words}" in ended.stderr


@pytest.mark.parametrize(("what", "alignment"), [("alignment of an argument", 16), ("alignment of a result", 128)])
def test_buffers_are_aligned_no_better_than_xla_aligns_them(what: str, alignment: int) -> None:
    assert (call(what) == alignment).all()


@pytest.mark.parametrize(("what", "plain"), [("order of threads", _THREADS - 1), ("order of blocks", 0)])
def test_another_seed_is_another_order(what: str, plain: int) -> None:
    found = {seed: printed(what, seed=seed) for seed in range(5)}
    assert str(plain) in found[0]
    assert len(set(found.values())) > 2
    assert found[3] == printed(what, seed=3)
