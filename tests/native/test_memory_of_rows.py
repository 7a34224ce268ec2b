"""Kernels that move rows must read only their lists, which here are between inaccessible pages."""

import ctypes
import mmap
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jztree import kernels
from native import test_kernels

PAGE = mmap.PAGESIZE


def fenced(rows: np.ndarray, at_the_end: bool) -> jax.Array:
    """Return the list ``(16 n,)`` int32 at the start or end of a page, between two inaccessible pages."""
    memory = mmap.mmap(-1, 3 * PAGE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    place = 2 * PAGE - rows.nbytes if at_the_end else PAGE
    numbers = np.frombuffer(memory, np.int32, len(rows), place)
    numbers[:] = rows
    for page in (0, 2):
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(address + page * PAGE), ctypes.c_size_t(PAGE), 0) == 0
    result = jnp.from_dlpack(numbers)
    assert result.unsafe_buffer_pointer() == address + place  # JAX has not copied it
    return result


def place(count: int, at_the_end: bool) -> None:
    """Move rows from and to the start or the end of a fenced list."""
    source = jnp.arange(32.0)
    order = fenced(np.arange(16, dtype=np.int32)[::-1], at_the_end)
    first = 16 - count if at_the_end else 0
    result = kernels.place_rows([source], order, first, [-1.0], order, first, count, 32)[0]
    want = np.full(32, -1.0)
    rows = np.asarray(order)[first : first + count]
    want[rows] = rows
    np.testing.assert_array_equal(result, want)


@pytest.mark.skipif(sys.platform != "linux", reason="pages are protected by mprotect")
@pytest.mark.parametrize("at_the_end", [False, True])
@pytest.mark.parametrize("count", [0, 1, 16])
def test_rows_are_placed(count: int, at_the_end: bool) -> None:
    script = f"from native.test_memory_of_rows import place\nplace({count}, {at_the_end})"
    done = test_kernels.run_with_instruction_set(kernels.native_info()["instruction_set"], script)
    assert done.returncode == 0, done.stderr
