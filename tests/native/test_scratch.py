"""XLA plans the memory of work arrays of CUDA kernels before a run, and only on platforms with such kernels."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import oracles
import pytest

from jztree import kernels
from jztree.jax_ext import exact
from jztree.kernels import _run, _scratch

pytestmark = pytest.mark.emulated

BYTES = 12345


@pytest.fixture
def cuda_too(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Pretend that there are also CUDA kernels, which all need this many bytes."""
    libraries = {**_run.scratch_libraries(), "cuda": None}
    monkeypatch.setattr(_run, "scratch_libraries", lambda: libraries)
    monkeypatch.setattr(_run, "scratch_bytes", lambda *_: BYTES)
    _run._takes_scratch.cache_clear()
    yield
    _run._takes_scratch.cache_clear()


needs_cpu_kernels = pytest.mark.skipif(
    kernels.native_info()["instruction_set"] == "cuda-emulated", reason="there are no kernels for the CPU here"
)


def bounds(pos: jax.Array) -> tuple[jax.Array, ...]:
    return kernels.bounds(pos, 5)


def check(lengths: jax.Array) -> jax.Array:
    kernels.check_lengths(exact(lengths[:1], (1,)), exact(lengths[1], ()), "rlink")
    return lengths


def program(platform: str, function: Any, *arguments: jax.Array) -> str:
    return jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()


@pytest.mark.usefixtures("cuda_too")
def test_gpu_programs_allocate_work_arrays() -> None:
    assert f"tensor<{BYTES}xui8>" in program("cuda", bounds, jnp.zeros((7, 3)))
    assert f"tensor<{BYTES}xui8>" in program("cuda", jax.vmap(bounds), jnp.zeros((2, 7, 3)))


@pytest.mark.usefixtures("cuda_too")
@needs_cpu_kernels
def test_cpu_programs_allocate_no_work_arrays() -> None:
    assert "ui8" not in program("cpu", bounds, jnp.zeros((7, 3)))


@needs_cpu_kernels
@pytest.mark.usefixtures("cuda_too")
def test_kernels_run_eagerly_and_mapped() -> None:
    pos = jnp.ones((2, 7, 3))
    lower, *_ = bounds(pos[0])
    assert lower.tolist() == [1, 1, 1]
    lower, *_ = jax.vmap(bounds)(pos)
    assert lower.tolist() == [[1, 1, 1]] * 2
    lower, *_ = jax.vmap(kernels.bounds, in_axes=(2, None), out_axes=(1, 1, 0, 0))(jnp.ones((7, 3, 2)), 7)
    assert lower.tolist() == [[1, 1]] * 3


@needs_cpu_kernels
@pytest.mark.usefixtures("cuda_too")
def test_checks_with_unused_results_are_made() -> None:
    wrong = jnp.asarray([1.0, -0.75], jnp.float32)
    for platform in ("cpu", "cuda"):
        assert "jztree_lengths" in program(platform, check, wrong)
    with pytest.raises(oracles.RUN_TIME_ERROR, match=r"rlink is -0\.75; it must be finite and not negative"):
        jax.block_until_ready(jax.jit(check)(wrong))


def test_dtype_numbers_equal_those_of_xla() -> None:
    header = Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h"
    numbers = dict(re.findall(r"XLA_FFI_DataType_(\w+) = (\d+),", header.read_text()))
    for name, number in _scratch._TYPES.items():
        kind, bits = re.fullmatch(r"(bool|bfloat|complex|float|int|uint)(\w*)", name).groups()  # type: ignore[union-attr]
        letters = {"bool": "PRED", "bfloat": "BF", "complex": "C", "float": "F", "int": "S", "uint": "U"}[kind]
        assert number == int(numbers[letters + bits.replace("_", "").upper()]), name
    known = {np.dtype(array).name for array in vars(jnp).values() if isinstance(array, type(jnp.float32))}
    assert known - {"string", "float6_e2m3fn", "float6_e3m2fn"} <= set(_scratch._TYPES)  # the types supported by XLA
