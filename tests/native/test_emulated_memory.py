"""Memory in the CUDA emulator: kernels get no data that they must not rely on, and invalid accesses are detected.

The kernels with errors are in tests/native/cuda_emulator/planted_memory.cc; `make test-emulated` builds them.
"""

import json
import subprocess

import cuda_tools
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

import jztree as jz
from jztree.data import Pos
from native import test_emulator, test_kernels

pytestmark = [pytest.mark.emulated, cuda_tools.only_emulated]

GARBAGE = np.frombuffer(b"\xa5" * 4, np.int32)[0]
LEFT = 7  # the value that the planted kernels leave
_THREADS = 64


def call(what: str) -> np.ndarray:
    """Return the result of a planted kernel, ``(64,)``."""
    return test_emulator.call_planted("planted_memory", jnp.arange(_THREADS, dtype=jnp.int32), what=what)


def printed(*whats: str, seed: int) -> str:
    """Return the printed result of the last of some planted kernels, run in a separate process."""
    return _run(whats, seed).stdout


def _run(whats: tuple[str, ...], seed: int) -> subprocess.CompletedProcess[str]:
    script = f"from native.test_emulated_memory import call\nprint([call(what).tolist() for what in {whats}][-1])"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JZTREE_EMULATOR_SEED", str(seed))
        return test_kernels.run_with_instruction_set("cuda-emulated", script)


@pytest.mark.parametrize("what", ["shared memory", "requested shared memory"])
def test_shared_memory_is_refilled_for_every_block(what: str) -> None:
    assert printed(what, seed=0) == printed(what, seed=1) == f"{[int(GARBAGE)] * _THREADS}\n"


def test_results_initially_hold_garbage() -> None:
    assert printed("result", seed=0) == f"{[int(GARBAGE)] * _THREADS}\n"


def test_results_initially_hold_data_of_an_earlier_call() -> None:
    # The result uses the memory of an argument of that call.
    assert set(json.loads(printed("result", "result", seed=1))) & set(range(1, _THREADS))


@pytest.mark.parametrize(
    ("what", "words"),
    [
        ("more shared memory", "a kernel wrote past the end of its requested shared memory."),
        ("place before an argument", "a kernel wrote outside of its memory."),
        ("place after an argument", "a kernel wrote outside of its memory."),
        ("place before a result", "a kernel wrote outside of its memory."),
        ("place after a result", "a kernel wrote outside of its memory."),
        ("argument", "a kernel wrote to an argument."),
    ],
)
def test_writes_outside_memory_of_the_kernel_end_the_program(what: str, words: str) -> None:
    ended = _run((what,), 0)
    assert ended.returncode != 0
    assert f"CUDA emulator: {words}" in ended.stderr


@pytest.mark.parametrize(("what", "alignment"), [("alignment of an argument", 16), ("alignment of a result", 128)])
def test_buffers_have_only_the_alignment_of_xla(what: str, alignment: int) -> None:
    assert (call(what) == alignment).all()


@pytest.mark.parametrize(("what", "plain"), [("order of threads", _THREADS - 1), ("order of blocks", 0)])
def test_seeds_change_the_order_of_threads_and_blocks(what: str, plain: int) -> None:
    result = {seed: printed(what, seed=seed) for seed in range(5)}
    assert str(plain) in result[0]
    assert len(set(result.values())) > 2
    assert result[3] == printed(what, seed=3)


def rows(kernel: str) -> list[float]:
    """Return the results of a kernel of the library for 50 rows, 40 of which hold a particle."""
    pos = np.full((50, 3), np.nan, np.float32)
    pos[:40] = oracles.uniform(40, 3)
    part = Pos(pos=pos, num=40)
    result = {
        "count_within": lambda: jz.radius.count_within.jit(part, 0.3),
        "kernel_sums": lambda: jz.radius.kernel_sums.jit(part, 0.3),
        "neighbours_within": lambda: jz.radius.neighbours_within.jit(part, 0.3, capacity=1600).splits,
        "pairs_within": lambda: jz.radius.pairs_within.jit(part, 0.3, capacity=1600).i,
    }[kernel]()
    return np.asarray(result).tolist()


@pytest.mark.parametrize("kernel", ["count_within", "kernel_sums", "neighbours_within", "pairs_within"])
def test_omitted_fills_change_the_results(kernel: str, monkeypatch: pytest.MonkeyPatch) -> None:
    script = f"from native.test_emulated_memory import rows\nprint(rows({kernel!r}))"
    complete = test_kernels.run_with_instruction_set("cuda-emulated", script)
    assert complete.returncode == 0, complete.stderr
    monkeypatch.setenv("JZTREE_EMULATOR_WITHOUT", f"{kernel}:fill_bytes")
    assert test_kernels.run_with_instruction_set("cuda-emulated", script).stdout != complete.stdout
