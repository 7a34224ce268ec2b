"""The host code that nvcc compiles, on a stand-in for CUDA's runtime (tests/native/cuda_standin). It needs no GPU.

The emulator compiles the kernels with another compiler, so it cannot check limits of the machine code. The stand-in
checks each launch of the compiled library against the registers, the shared memory and the parameters that cuobjdump
reports, and captures work in graphs. `cmake --build --preset standin` builds it.
"""

import ctypes
import functools
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda_tools
import jax
import jax.numpy as jnp
import numpy as np
import pytest

sys.path.append(str(Path(__file__).parents[1] / "checks"))

from gpu import kernel_calls

import jztree as jz
from jztree.kernels import _call, _scratch

NATIVE = Path(__file__).parents[1] / "jztree" / "native"
LIBRARY = Path(os.environ.get("JZTREE_STANDIN", Path(__file__).parents[1] / "jztree/lib/libjztree_cuda_standin.so"))
FIXED_CONSTANTS = 528  # bytes before the parameters of a kernel, for compute capability 9.0
LEAST_SHARED, H100_SHARED = 64 << 10, 227 << 10  # the most shared memory of a block, of 7.5 and of 9.0
LOAD, RUN, CAPTURE = range(3)
# Kernels that wait for the GPU, so XLA must not capture them.
READING = {
    name for path in NATIVE.rglob("*.cu") for name in re.findall(r"JZTREE_READING_KERNEL\((\w+)", path.read_text())
}

pytestmark = [pytest.mark.long, pytest.mark.skipif(not LIBRARY.exists(), reason="the stand-in is not compiled")]


class Call:
    """A traced call of a kernel."""

    def __init__(self, kernel: Any, arrays: Any) -> None:
        self.kernel, self.arrays = kernel, [jax.ShapeDtypeStruct(one.shape, one.dtype) for one in arrays]
        # Results that continue an array are listed as arguments too, as XLA passes them.
        self.key = (kernel, *((one.shape, str(one.dtype)) for one in self.arrays))

    def scratch_bytes(self, library: Any) -> int:
        return _scratch.scratch_bytes(library, self.kernel.name, self.arrays, self.kernel.outs, self.kernel.given())

    def put(self, library: Any, mode: int) -> str:
        """Call the host code. Return its error, or nothing."""
        given = self.kernel.given()
        numbers = {name: np.atleast_1d(value) for name, value in given.items() if not isinstance(value, str)}
        outs = [*self.kernel.outs, jax.ShapeDtypeStruct((self.scratch_bytes(library),), jnp.uint8)]
        plain = [
            _scratch._Attribute(name.encode(), values.size, _scratch._integers(values.tolist()))
            for name, values in numbers.items()
        ]
        text: bytes = library.standin_call(
            mode,
            self.kernel.name.encode(),
            *_scratch._counted(_scratch._Buffer, _scratch._buffers(self.arrays)),
            *_scratch._counted(_scratch._Buffer, _scratch._buffers(outs)),
            *_scratch._counted(_scratch._Attribute, plain),
        )
        return text.decode()


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The stand-in, with the resources of all kernels."""
    found = ctypes.CDLL(str(LIBRARY))
    found.jztree_scratch_bytes.restype = ctypes.c_int64
    found.standin_call.restype = found.standin_complaints.restype = ctypes.c_char_p
    command = [cuda_tools.tool("cuobjdump"), "-res-usage", str(LIBRARY)]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    pattern = r"Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+) LOCAL:\d+.*? CONSTANT\[0\]:(\d+)"
    resources = re.findall(pattern, report)
    assert len(resources) > 100
    for name, registers, shared, constants in resources:
        found.standin_describe(name.encode(), int(registers), int(shared), int(constants) - FIXED_CONSTANTS)
    return found


def traced(programs: Iterator[Callable[[], Any]]) -> list[Call]:
    """Return the different kernel calls of programs, which do not run."""
    calls: dict[Any, Call] = {}
    run = _call.run

    def note(kernel: Any, *arrays: Any) -> Any:
        call = Call(kernel, arrays)
        calls.setdefault(call.key, call)
        return run(kernel, *arrays)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_call, "run", note)
        for program in programs:
            jax.eval_shape(program)
    return list(calls.values())


def large() -> Iterator[Callable[[], Any]]:
    """Yield programs with the largest grids and hierarchies, and programs with the deepest stacks."""
    wide, deep = jz.config.TreeConfig(), jz.config.TreeConfig(leaf_size=4, fan_out=2)
    for n, tree in ((10**8, wide), (10**6, deep)):
        cfg, fof = jz.config.KNNConfig(tree=tree), jz.config.FofConfig(tree=tree)
        functions = [functools.partial(jz.knn.knn, k=k, cfg=cfg) for k in (4, 8, 16, 32, 64, 300)]
        functions += [functools.partial(jz.fof.fof_labels, rlink=0.1, cfg=fof)]
        functions += [functools.partial(jz.radius.pair_counts, edges=[0.1, 0.2], cfg=jz.config.RadiusConfig(tree=tree))]
        for function in functions:
            yield functools.partial(jax.eval_shape, function, jax.ShapeDtypeStruct((n, 1), jnp.float32))


@pytest.fixture(scope="module")
def calls(library: ctypes.CDLL) -> list[Call]:
    """Calls of all kernels, in three dimensions if the library has these, otherwise in one."""
    found: list[Call] = []
    for dims in (3, 1):
        found = traced((*kernel_calls.one_device(1000, dims), *kernel_calls.several_devices(1000, dims)))  # type: ignore[arg-type]
        if next(call for call in found if call.kernel.name == "knn").scratch_bytes(library) > 0:
            break
    return found + traced(large())


def complaints(library: ctypes.CDLL) -> str:
    """Return the faults since the last call."""
    text: bytes = library.standin_complaints()
    return text.decode()


@pytest.mark.parametrize("shared", [LEAST_SHARED, H100_SHARED], ids=["64kB", "227kB"])
def test_every_launch_fits_the_machine_code(library: ctypes.CDLL, calls: list[Call], shared: int) -> None:
    library.standin_reset(shared)
    before = library.standin_launches()
    for call in calls:
        assert call.put(library, LOAD) == "", call.kernel
        assert call.put(library, RUN) == "", call.kernel
    assert complaints(library) == ""
    assert library.standin_launches() > before + len(calls)


def test_only_kernels_that_read_numbers_fail_in_a_capture(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_reset(H100_SHARED)
    failed = {call.kernel.name for call in calls if call.put(library, CAPTURE)}
    assert failed == READING
    assert complaints(library) == ""


def test_two_threads_launch_the_same_kernels_with_other_shapes(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_reset(H100_SHARED)
    errors: list[str] = []

    def put(some: list[Call]) -> None:
        errors.extend(filter(None, (call.put(library, mode) for call in some for mode in (LOAD, RUN))))

    threads = [threading.Thread(target=put, args=(some,)) for some in (calls, calls[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert complaints(library) == ""


def test_launches_beyond_a_limit_are_reported(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_reset(1 << 10)
    errors = [call.put(library, RUN) for call in calls]
    assert any("CUDA reports" in error for error in errors)
    assert all("The last error is not forgotten" not in error for error in errors)
    assert re.search(r"bytes of shared memory and \d+ registers: only \d+ are allowed", complaints(library))


def test_launches_of_kernels_that_are_not_loaded_are_reported(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_reset(H100_SHARED)
    call = next(call for call in calls if call.kernel.name == "bounds")
    assert call.put(library, RUN) == ""
    assert "the initialize stage has not loaded it" in complaints(library)
    assert call.put(library, LOAD) == call.put(library, RUN) == ""
    assert complaints(library) == ""
