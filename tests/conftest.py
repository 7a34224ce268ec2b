"""Fixtures shared by all tests."""

import contextlib
import ctypes
import functools
import gc
import logging
import os
import platform
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Create host devices for distributed tests before JAX starts; the other tests run on the first device.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"
# Several tests run at once. Threads of OpenMP and BLAS would use the cores to wait for each other. No kernel has them.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import jax
import jaxlib
import numpy as np
import pytest
from jax._src import core
from jax._src.interpreters import mlir

pytest_plugins = ["case_choice"]

_SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
# Without optimisation, XLA compiles the code between the kernels in less than half the time, and most tests run their
# code only once. `make test-all`, the tests of the documentation and `make fuzz` compile as users do.
# Splitting a program so that several threads compile it takes more time in total. Two passes that optimise loops take a
# sixth of the time for a program over several devices.
_QUICK_COMPILATION = (
    "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1 "
    "--xla_disable_hlo_passes=while-loop-invariant-code-motion,simplify-while-loops"
)
_MOST_PROGRAMS = 2**30  # bytes in the folder of compiled programs


def pytest_configure(config: pytest.Config) -> None:
    """Set the XLA flags before XLA starts. Worker processes inherit the environment of the first process."""
    # JAX keeps millions of objects from test to test. Prevent the garbage collector from scanning them all the time.
    gc.set_threshold(100_000, 20, 100)
    if os.environ.get("JZTREE_TESTS_OPTIMIZED") == "1":
        return
    # JAX writes Python's stack into each operation, and makes an MLIR context for each program, which takes a third of
    # the time that a small program needs.
    os.environ["JAX_TRACEBACK_IN_LOCATIONS_LIMIT"] = "0"  # for child processes
    jax.config.update("jax_traceback_in_locations_limit", 0)
    mlir.make_ir_context = functools.cache(mlir.make_ir_context)
    if stage := getattr(core.EvalTrace, "stage_value", None):  # not in all versions
        core.EvalTrace.stage_value = functools.partialmethod(_staged, stage)
    expected = not shutil.which("nvidia-smi") and not hasattr(config, "workerinput")
    if expected:
        flags = _QUICK_COMPILATION.split()
        if not _knows_flags(config, _QUICK_COMPILATION):  # a newer XLA may not know all
            flags = [flag for flag in flags if _knows_flags(config, flag)]
        os.environ["XLA_FLAGS"] += " " + " ".join(flags)
    if expected and hasattr(config, "cache"):
        _keep_programs(config.cache.mkdir(f"programs-{_processor()}"))


def _staged(trace: Any, stage: Callable[[Any, Any], Any], value: Any) -> Any:
    """Copy a NumPy array to the device. JAX compiles a program for each of its shapes, which only returns it."""
    if isinstance(value, np.ndarray) and value.ndim and jax.sharding.get_abstract_mesh().empty:
        return jax.device_put(value.copy())  # on CPUs, device_put itself may not copy
    return stage(trace, value)


def _keep_programs(folder: Path) -> None:
    """Keep compiled programs in JAX's persistent cache, for all worker processes, their children and later runs.

    A cached program hides no change. Its key contains all operations, shapes and attributes, the flags, and the version
    of JAX. It contains the names of kernels, not their code. JAX calls the kernels that the process has registered, and
    XLA checks their arguments.
    """
    if sum(path.stat().st_size for path in folder.iterdir()) > _MOST_PROGRAMS:
        shutil.rmtree(folder)
    options = {
        "jax_compilation_cache_dir": str(folder),
        "jax_persistent_cache_min_compile_time_secs": 0,
        "jax_persistent_cache_min_entry_size_bytes": -1,
    }
    for name, value in options.items():
        jax.config.update(name, value)
        os.environ[name.upper()] = str(value)


def _processor() -> str:
    """Return a name of this type of processor and its instruction sets."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    sets = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return f"{platform.machine()}-{zlib.crc32(sets.encode()):08x}"


def pytest_collection_finish() -> None:
    """Exclude all modules and tests from garbage collection."""
    gc.freeze()


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """Return the number of tests that ``-n auto`` runs at once.

    Many tests wait for processes, so this is one more than the number of cores. Each uses one or two gigabytes, so the
    limit is 9.
    """
    del config
    return min((os.cpu_count() or 1) + 1, 9)


def _knows_flags(config: pytest.Config, flags: str) -> bool:
    """Return whether this version of XLA accepts the flags. If it does not, it ends the process."""
    cache, key, known = getattr(config, "cache", None), f"xla/{jaxlib.__version__} {flags}", None
    if cache is not None:
        known = cache.get(key, None)
    if known is None:
        environ = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        call = [sys.executable, "-c", "import jax; jax.devices()"]
        known = subprocess.run(call, env=environ, capture_output=True, check=False).returncode == 0
        if cache is not None:
            cache.set(key, known)
    return known


# Compiled code stays in memory, about 8 MB per test, which after some thousand tests exceeds the memory of a computer.
_MOST_GROWTH = 2**30
_resident_at_first = 0


def pytest_runtest_logfinish() -> None:
    """Drop all compiled code whenever the process has grown by this limit."""
    global _resident_at_first  # noqa: PLW0603 - of the process, as is its memory
    if _resident_bytes() > _resident_at_first + _MOST_GROWTH:
        jax.clear_caches()
        getattr(mlir.make_ir_context, "cache_clear", lambda: None)()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        _resident_at_first = _resident_bytes()


def _resident_bytes() -> int:
    """Return the memory of this process; 0 if the system does not report it."""
    state = Path("/proc/self/statm")
    return int(state.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if state.exists() else 0


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference snapshots next to the repository. Without it, tests that need it are skipped."""
    if not _SHARED_DATA.is_dir():
        pytest.skip("the reference snapshots are not beside this repository")
    return _SHARED_DATA


@pytest.fixture
def x64() -> Iterator[None]:
    """Run the test with JAX's 64-bit types."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both dtypes of positions. With float64, the test runs with JAX's 64-bit types."""
    with jax.enable_x64(request.param == np.float64):
        yield request.param


@pytest.fixture
def set_threads() -> Iterator[Callable[[int | None], None]]:
    """Return a function that sets the number of threads of kernels for this test."""
    from jztree import kernels  # noqa: PLC0415 - after `pytest_configure`

    yield kernels.set_num_threads
    kernels.set_num_threads(None)


@pytest.fixture
def count_compilations(caplog: pytest.LogCaptureFixture) -> Callable[[], Any]:
    """Return a context manager that yields a list, to which every compilation by JAX inside it adds a line."""

    @contextlib.contextmanager
    def counting() -> Iterator[list[str]]:
        lines: list[str] = []
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            yield lines
        lines += [line for line in caplog.messages if line.startswith("Compiling")]

    return counting
