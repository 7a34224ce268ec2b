"""Differences between the results of CPUs, of GPUs, and of the emulator of CUDA kernels."""

import re
from typing import Any

import jax
import numpy as np
import pytest

from jztree import kernels


def skip_where_kernels_cannot_raise() -> None:
    """Skip tests of errors that kernels raise only for values that a mistake in the library would produce.

    GPU kernels cannot raise these errors, because the host does not see the values.
    """
    if jax.default_backend() != "cpu" or kernels.native_info()["instruction_set"] in ("cuda-emulated", "cuda-watched"):
        pytest.skip("kernels of the GPU cannot raise")


def skip_where_subnormal_numbers_vanish() -> None:
    """Skip tests whose numbers are below the smallest normal number if the emulator runs them."""
    if kernels.native_info()["instruction_set"] in ("cuda-emulated", "cuda-watched"):
        pytest.skip("the emulator runs on threads of XLA, which take subnormal numbers for 0")


def without_program(message: str) -> str:
    """Remove the name of the program that JAX appends to errors on GPUs."""
    return re.sub(r" \[executable_name='\w*'\]", "", message)


def assert_same_sums(actual: Any, desired: Any) -> None:
    """Assert that arrays of sums over the same numbers have the same bits; on a GPU, XLA adds them in any order."""
    if jax.default_backend() == "cpu":
        np.testing.assert_array_equal(actual, desired)
    else:
        largest = np.abs(np.asarray(desired)).max(initial=0)
        np.testing.assert_allclose(actual, desired, rtol=1e-5, atol=1e-6 * largest)
