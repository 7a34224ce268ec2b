"""The emulator of CUDA follows the rules of XLA's runtime and of CUDA: errors that were planted are found.

Its handlers are in tests/native/cuda_emulator/planted.cc; `make test-emulated` builds them.
"""

import ctypes
import subprocess
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest
import test_kernels

from jztree import kernels

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.skipif(
        kernels.native_info()["instruction_set"] != "cuda-emulated", reason="the CUDA kernels are not emulated here"
    ),
]

_CALL_PLANTED = """
import test_emulator
print(test_emulator.call("planted_error", how={how!r}))
"""


def register(handler: str) -> None:
    """Let JAX know a planted handler as ``jztree_...``."""
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    symbol = f"jztree_{handler}"
    jax.ffi.register_ffi_target(symbol, jax.ffi.pycapsule(getattr(library, symbol)), platform="cpu")


def call(handler: str, **attributes: Any) -> int:
    """What a planted handler returns."""
    register(handler)
    out = jax.ShapeDtypeStruct((1,), jnp.int32)
    return int(jax.ffi.ffi_call(f"jztree_{handler}", out)(jnp.zeros(1, jnp.int32), **attributes)[0])


def run_planted(how: str) -> subprocess.CompletedProcess[str]:
    return test_kernels.run_with_instruction_set("cuda-emulated", _CALL_PLANTED.format(how=how))


@pytest.mark.parametrize("alignment", [1, 2, 4, 8, 16])
def test_alignments_that_xla_grants(alignment: int) -> None:
    assert call("planted_alignment", alignment=np.int64(alignment)) == 1


@pytest.mark.parametrize("alignment", [0, 3, 24, 32, 256])
def test_alignments_that_xla_refuses(alignment: int) -> None:
    # XLA's class around the allocator says that there is no memory, and no more.
    assert call("planted_alignment", alignment=np.int64(alignment)) == 0


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("write behind scratch", "a kernel wrote outside of its memory."),
        ("launch on another stream", "work was put on a stream that is not the call's."),
        ("copy on another stream", "work was put on a stream that is not the call's."),
        ("unaligned memory for CUB", "CUB was given memory that it has to align."),
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
        ("too many blocks", "a launch needs 2147483648 blocks, and CUDA has 2**31 - 1 at most."),
    ],
)
def test_launches_that_cuda_refuses(how: str, words: str) -> None:
    with pytest.raises(oracles.RUN_TIME_ERROR, match="jztree: ") as error:
        call("planted_error", how=how)
    assert words in str(error.value)


def test_without_a_fault_nothing_ends() -> None:
    assert call("planted_error", how="nothing") == 0


def test_memory_that_is_not_there_is_said_in_the_runtimes_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JZTREE_EMULATOR_LARGEST_BLOCK", "10")
    with pytest.raises(oracles.RUN_TIME_ERROR, match="the runtime gave no ") as error:
        call("planted_error", how="write behind scratch")
    assert "bytes of GPU memory for work arrays; it says: Out of memory while trying to allocate" in str(error.value)
