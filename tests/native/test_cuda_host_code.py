"""The host code that nvcc compiles, on a stand-in for CUDA's runtime (tests/native/cuda_standin). It needs no GPU.

The emulator compiles the kernels with another compiler, so it cannot check limits of the machine code. The stand-in
checks each launch of the compiled library against the registers, the shared memory and the parameters that cuobjdump
reports, and captures work in graphs. It calls the library's handlers with the call frames of XLA's interface.
`cmake --build --preset standin` builds it.
"""

import ctypes
import functools
import itertools
import os
import re
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

sys.path.append(str(Path(__file__).parents[2] / "checks"))

from gpu import kernel_calls

import jztree as jz
from jztree.kernels import _call, _scratch

NATIVE = Path(__file__).parents[2] / "jztree" / "native"
LIBRARY = Path(os.environ.get("JZTREE_STANDIN", Path(__file__).parents[2] / "jztree/lib/libjztree_cuda_standin.so"))
FIXED_CONSTANTS = 528  # bytes before the parameters of a kernel, for compute capability 9.0
# Compute capabilities other than 9.0, and the most shared memory of a block.
OTHER_GPUS = {75: 64 << 10, 80: 163 << 10, 86: 99 << 10, 100: 227 << 10, 120: 99 << 10}
# Units with the largest numbers of registers, shared memory or parameters.
UNITS = ["knn/knn_float", "pairs/pair_counts", "zorder/zsort"]
LEAST_SHARED, H100_SHARED = 64 << 10, 227 << 10  # the most shared memory of a block, of 7.5 and of 9.0
INITIALIZE, EXECUTE = 2, 3  # XLA_FFI_ExecutionStage in xla/ffi/api/c_api.h
ARRAY, SCALAR, TEXT = 1, 3, 4  # XLA_FFI_AttrType
COMMAND_BUFFER_COMPATIBLE = 1  # XLA_FFI_Handler_TraitsBits
# Kernels that wait for the GPU, so XLA must not capture them.
READING = {
    name for path in NATIVE.rglob("*.cu") for name in re.findall(r"JZTREE_READING_KERNEL\((\w+)", path.read_text())
}

pytestmark = [pytest.mark.long, pytest.mark.skipif(not LIBRARY.exists(), reason="the stand-in is not compiled")]


@functools.cache
def library_resources() -> dict[str, tuple[int, int, int]]:
    """Return the resources of the kernels in the library."""
    return cuda_tools.resources(LIBRARY)


class Attribute(ctypes.Structure):
    """A static argument of a kernel, as XLA passes it."""

    _fields_ = (
        ("name", ctypes.c_char_p),
        ("type", ctypes.c_int64),
        ("dtype", ctypes.c_int64),
        ("count", ctypes.c_int64),
        ("value", ctypes.c_void_p),
    )

    @classmethod
    def of(cls, name: str, value: Any) -> "Attribute":
        if isinstance(value, str):
            kind, data = TEXT, np.frombuffer(value.encode(), np.uint8)
        else:
            data = np.atleast_1d(np.asarray(value, bool if isinstance(value, bool) else np.int64))
            kind = ARRAY if isinstance(value, np.ndarray) else SCALAR
        built = cls(name.encode(), kind, _scratch._TYPES[data.dtype.name], data.size, data.ctypes.data)
        built.keeps = data
        return built


class Call:
    """A traced call of a kernel."""

    def __init__(self, kernel: Any, arrays: Any) -> None:
        self.kernel, self.arrays = kernel, [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in arrays]
        # Results that continue an array are listed as arguments too, as XLA passes them.
        self.key = (kernel, *((array.shape, str(array.dtype)) for array in self.arrays))

    def scratch_bytes(self, library: Any) -> int:
        return _scratch.scratch_bytes(library, self.kernel.name, self.arrays, self.kernel.outs, self.kernel.given())

    def handler(self, library: Any) -> ctypes.c_void_p:
        return ctypes.cast(getattr(library, f"jztree_{self.kernel.name}"), ctypes.c_void_p)

    def put(self, library: Any, stage: int, captures: bool = False) -> str:
        """Call the handler. Return its error, or nothing."""
        outs = [*self.kernel.outs, jax.ShapeDtypeStruct((self.scratch_bytes(library),), jnp.uint8)]
        attributes = [Attribute.of(name, value) for name, value in sorted(self.kernel.given().items())]
        text: bytes = library.standin_call(
            self.handler(library),
            stage,
            captures,
            *_scratch._counted(_scratch._Buffer, _scratch._buffers(self.arrays)),
            *_scratch._counted(_scratch._Buffer, _scratch._buffers(outs)),
            *_scratch._counted(Attribute, attributes),
        )
        return text.decode()


@pytest.fixture(scope="module")
def library() -> ctypes.CDLL:
    """The stand-in, with the resources of every kernel."""
    result = ctypes.CDLL(str(LIBRARY))
    result.jztree_scratch_bytes.restype = ctypes.c_int64
    result.standin_call.restype = result.standin_complaints.restype = ctypes.c_char_p
    assert describe(result, library_resources(), FIXED_CONSTANTS) > 100
    return result


def describe(library: ctypes.CDLL, resources: dict[str, tuple[int, int, int]], fixed: int) -> int:
    """Describe kernels to the stand-in. Return the number of kernels that the library contains.

    Args:
        library: The stand-in.
        resources: From `cuda_tools.resources`.
        fixed: Bytes of constants before the parameters of a kernel.
    """
    names: dict[str, set[str]] = {}
    for name in library_resources():
        names.setdefault(cuda_tools.without_file(name), set()).add(name)
    result = 0
    for name, (registers, shared, constants) in resources.items():
        same = names.get(cuda_tools.without_file(name), set())
        known = name if name in same or len(same) != 1 else next(iter(same))
        result += library.standin_describe(known.encode(), registers, shared, constants - fixed)
    return result


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
    """Calls of every kernel, in three dimensions if the library has them, otherwise in one."""
    result: list[Call] = []
    for dims in (3, 1):
        result = traced((*kernel_calls.one_device(1000, dims), *kernel_calls.several_devices(1000, dims)))  # type: ignore[arg-type]
        if next(call for call in result if call.kernel.name == "knn").scratch_bytes(library) > 0:
            break
    return result + traced(large())


def complaints(library: ctypes.CDLL) -> str:
    """Return the faults since the last call."""
    text: bytes = library.standin_complaints()
    return text.decode()


@pytest.mark.parametrize("shared", [LEAST_SHARED, H100_SHARED], ids=["64kB", "227kB"])
def test_every_launch_fits_the_machine_code(library: ctypes.CDLL, calls: list[Call], shared: int) -> None:
    library.standin_change_gpu(shared)
    before = library.standin_launches()
    for call in calls:
        assert call.put(library, INITIALIZE) == "", call.kernel
        assert call.put(library, EXECUTE) == "", call.kernel
    assert complaints(library) == ""
    assert library.standin_launches() > before + len(calls)


def test_only_kernels_that_read_numbers_fail_in_a_capture(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_change_gpu(H100_SHARED)
    failed = {call.kernel.name for call in calls if call.put(library, EXECUTE, captures=True)}
    assert failed == READING
    assert complaints(library) == ""


def test_only_kernels_that_read_numbers_are_kept_out_of_command_buffers(
    library: ctypes.CDLL, calls: list[Call]
) -> None:
    traits = {call.kernel.name: library.standin_traits(call.handler(library)) for call in calls}
    assert {name for name, bits in traits.items() if not bits & COMMAND_BUFFER_COMPATIBLE} == READING


def test_initialize_loads_kernels_once_per_gpu_and_shapes(library: ctypes.CDLL, calls: list[Call]) -> None:
    sample = {call.kernel.name: call for call in calls}.values()  # one call of each kernel
    loads = []
    for _ in range(2):
        library.standin_change_gpu(H100_SHARED)
        for _ in range(2):
            before = library.standin_loads()
            assert [call.put(library, INITIALIZE) for call in sample] == [""] * len(sample)
            loads.append(library.standin_loads() - before)
    assert loads[0] == loads[2] > len(sample)
    assert loads[1] == loads[3] == 0


def errors_of_each_runtime_call(library: ctypes.CDLL, call: Call, stage: int) -> set[str]:
    """Return the errors of a handler if the first, the second, ... of its calls of CUDA's runtime fails."""
    errors = set()
    for place in itertools.count():
        if stage == INITIALIZE:  # it prepares each GPU only once
            library.standin_change_gpu(H100_SHARED)
        library.standin_fail_after(place)
        error = call.put(library, stage)
        if not library.standin_has_failed():
            assert (place > 0, error) == (True, "")
            break
        errors.add(error)
    complaints(library)
    return errors


@pytest.mark.parametrize("name", ["bounds", "zsort", "knn", "check"])
def test_errors_of_the_runtime_are_forgotten_and_reported_when_the_call_runs(
    library: ctypes.CDLL, calls: list[Call], name: str
) -> None:
    call = next(call for call in calls if call.kernel.name == name)
    assert errors_of_each_runtime_call(library, call, INITIALIZE) == {""}
    assert errors_of_each_runtime_call(library, call, EXECUTE) == {"jztree: CUDA reports: an error."}


def test_two_threads_launch_the_same_kernels_with_other_shapes(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_change_gpu(H100_SHARED)
    errors: list[str] = []

    def put(sample: list[Call]) -> None:
        errors.extend(filter(None, (call.put(library, stage) for call in sample for stage in (INITIALIZE, EXECUTE))))

    threads = [threading.Thread(target=put, args=(sample,)) for sample in (calls, calls[::-1])]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert complaints(library) == ""


def test_launches_beyond_a_limit_are_reported(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_change_gpu(1 << 10)
    errors = [call.put(library, EXECUTE) for call in calls]
    assert any("CUDA reports" in error for error in errors)
    assert all("The last error is not forgotten" not in error for error in errors)
    assert re.search(r"bytes of shared memory and \d+ registers: only \d+ are allowed", complaints(library))


def test_launches_of_kernels_that_are_not_loaded_are_reported(library: ctypes.CDLL, calls: list[Call]) -> None:
    library.standin_change_gpu(H100_SHARED)
    call = next(call for call in calls if call.kernel.name == "bounds")
    assert call.put(library, EXECUTE) == ""
    assert "the initialize stage has not loaded it" in complaints(library)
    assert call.put(library, INITIALIZE) == call.put(library, EXECUTE) == ""
    assert complaints(library) == ""


@pytest.mark.slow
@pytest.mark.parametrize(("architecture", "shared"), OTHER_GPUS.items())
def test_launches_fit_the_machine_code_of_other_gpus(
    library: ctypes.CDLL, calls: list[Call], tmp_path: Path, architecture: int, shared: int
) -> None:
    source, cubin = tmp_path / "empty.cu", tmp_path / "kernels.cubin"
    source.write_text("__global__ void takes_eight_bytes(long long) {}")
    cuda_tools.compile_cubin(source, cubin, architecture=architecture)
    fixed = next(iter(cuda_tools.resources(cubin).values()))[2] - 8
    try:
        for unit in UNITS:
            cuda_tools.compile_cubin(NATIVE / f"{unit}.cu", cubin, "-DJZTREE_DIMS=0b10", architecture=architecture)
            assert describe(library, cuda_tools.resources(cubin), fixed) > 0, unit
        library.standin_change_gpu(shared)
        assert {call.put(library, stage) for call in calls for stage in (INITIALIZE, EXECUTE)} == {""}
        assert complaints(library) == ""
    finally:
        describe(library, library_resources(), FIXED_CONSTANTS)
