"""The CUDA emulator enforces the rules of XLA's runtime and of CUDA: it must find planted errors.

Its handlers are in tests/native/cuda_emulator/planted.cc; `make test-emulated` builds them.
"""

import ctypes
import subprocess
from typing import Any

import cuda_tools
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import kernels
from jztree.kernels import _call
from native import test_kernels

pytestmark = [pytest.mark.core, pytest.mark.emulated, cuda_tools.only_emulated]

_CALL_PLANTED = """
from native import test_emulator
print(test_emulator.call(how={how!r}))
"""


def call_planted(handler: str, rows: jax.Array, **attributes: Any) -> np.ndarray:
    """Return the result of a planted handler for int32 rows, with as many rows. It has 4096 bytes for work arrays."""
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    symbol = f"jztree_{handler}"
    jax.ffi.register_ffi_target(symbol, jax.ffi.pycapsule(getattr(library, symbol)), platform="cpu")
    outs = jax.ShapeDtypeStruct(rows.shape, jnp.int32), jax.ShapeDtypeStruct((4096,), jnp.uint8)
    return np.asarray(jax.ffi.ffi_call(symbol, outs)(rows, **attributes)[0])


def call(how: str) -> int:
    """Return the result of the handler that makes errors."""
    return int(call_planted("planted_error", jnp.zeros(1, jnp.int32), how=how)[0])


def run_planted(how: str) -> subprocess.CompletedProcess[str]:
    return test_kernels.run_with_instruction_set("cuda-emulated", _CALL_PLANTED.format(how=how))


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("write before scratch", "a kernel wrote outside of its memory."),
        ("write after scratch", "a kernel wrote outside of its memory."),
        ("write after a work array", "a kernel wrote outside of its memory."),
        ("memory from the runtime", "a handler allocates memory while it runs"),
        ("wait", "a handler that XLA may record in a command buffer waits for the GPU."),
        ("launch on another stream", "work was put on a stream that does not belong to the call."),
        ("copy on another stream", "work was put on a stream that does not belong to the call."),
        ("unaligned memory for CUB", "the memory for CUB is not aligned to 256 bytes."),
        ("no work", "a handler that XLA may record in a command buffer puts no work on the stream."),
        ("lower limit of shared memory", "a kernel's limit of shared memory was lowered."),
        ("kernel loaded during the call", "a kernel is loaded during the call, when other ranks may be waiting"),
    ],
)
def test_errors_that_end_the_program(how: str, words: str) -> None:
    ended = run_planted(how)
    assert ended.returncode != 0
    assert f"CUDA emulator: {words}" in ended.stderr


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("too many threads", "CUDA reports: invalid configuration argument."),
        ("too much shared memory", "CUDA reports: invalid argument."),
        (
            "too large work arrays",
            "bytes for its work arrays, more than the 4096 bytes that were reserved when the program was traced.",
        ),
        ("too much memory for CUB", "CUB needs 101 bytes of work memory, more than the 100 bytes that jztree reserves"),
        ("too many blocks", "a launch needs 2147483648 blocks, but CUDA allows at most 2**31 - 1."),
    ],
)
def test_launches_invalid_in_cuda_raise(how: str, words: str) -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match="jztree: ") as error:
        call(how)
    assert words in str(error.value)


@pytest.mark.parametrize("how", ["nothing", "loaded kernels", "CUB after a rejected launch"])
def test_call_without_errors_succeeds(how: str) -> None:
    assert call(how) == 0


_PAIRS = """
import numpy as np, jztree
pos, edges = np.random.default_rng(3).random((50, 2), np.float32), np.array([0, 0.1, 0.5])
for mode in ("rp_pi", "s_mu"):
    print(np.asarray(jztree.radius.pair_counts(pos, edges, mode=mode, edges_b=[0, 0.3, 0.9]).count).sum() > 0)
"""


def test_kernels_are_loaded_for_each_value_of_an_attribute() -> None:
    """The two calls have the same shapes. The emulator fails if a call loads a kernel itself."""
    run = test_kernels.run_with_instruction_set("cuda-emulated", _PAIRS)
    assert run.stdout.split() == ["True", "True"], run.stderr


def test_kernel_without_rows_may_be_recorded() -> None:
    """It launches nothing, but XLA of JAX 0.10.0 and 0.10.1 cannot record a call that puts nothing on the stream."""
    rows, none = jnp.zeros((5, 3), jnp.float32), jax.ShapeDtypeStruct((0, 3), jnp.float32)
    assert _call.call("gather_rows", none, rows, jnp.zeros((0,), jnp.int32), always=True).shape == (0, 3)


def test_launches_with_several_amounts_of_shared_memory_keep_the_limit() -> None:
    """Two host threads may launch one kernel with different amounts at once."""
    assert call("several amounts of shared memory") == 1


def test_work_runs_after_the_handler_returns() -> None:
    assert call("result read too early") == 0x01010101
