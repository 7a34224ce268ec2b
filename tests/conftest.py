"""Fixtures that all tests share."""

import contextlib
import ctypes
import gc
import logging
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Host devices for the tests of distributed functions, before JAX starts; the others run on the first one.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import jaxlib
import numpy as np
import pytest

pytest_plugins = ["case_choice"]

_SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"
# XLA compiles what lies between the kernels in less than half the time if it does not optimise it, and most tests run
# what they compile once. `make test-all` compiles as users do, as do the tests of the documentation and `make fuzz`.
_QUICK_COMPILATION = "--xla_backend_optimization_level=0 --xla_cpu_use_fusion_emitters=false"


def pytest_configure(config: pytest.Config) -> None:
    """Set what XLA, which has not started yet, is to do; worker processes get the environment of the first one."""
    # JAX keeps millions of objects from test to test, through which the collector would go all the time.
    gc.set_threshold(100_000, 20, 100)
    wanted = os.environ.get("JZTREE_TESTS_OPTIMIZED") != "1" and not shutil.which("nvidia-smi")
    if wanted and not hasattr(config, "workerinput") and _knows_flags(config, _QUICK_COMPILATION):
        os.environ["XLA_FLAGS"] += f" {_QUICK_COMPILATION}"


def pytest_xdist_auto_num_workers(config: pytest.Config) -> int:
    """How many tests ``-n auto`` runs at once.

    Many tests wait for processes, so there is one more than cores. Each takes a gigabyte or two: there are 9 at most.
    """
    del config
    return min((os.cpu_count() or 1) + 1, 9)


def _knows_flags(config: pytest.Config, flags: str) -> bool:
    """Whether this version of XLA knows the flags; it ends the process if not."""
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


# What JAX has compiled stays in memory, about 8 MB a test, which is more than a computer has after some thousands.
_MOST_GROWTH = 2**30
_resident_at_first = 0


def pytest_runtest_logfinish() -> None:
    """Drop what has been compiled each time the process has grown by so many bytes."""
    global _resident_at_first  # noqa: PLW0603 - of the process, as is its memory
    if _resident_bytes() > _resident_at_first + _MOST_GROWTH:
        jax.clear_caches()
        gc.collect()
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).malloc_trim(0)
        _resident_at_first = _resident_bytes()


def _resident_bytes() -> int:
    """Memory of this process; 0 where the system does not say."""
    state = Path("/proc/self/statm")
    return int(state.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if state.exists() else 0


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of reference snapshots beside the repository; tests that need it are skipped without it."""
    if not _SHARED_DATA.is_dir():
        pytest.skip("the reference snapshots are not beside this repository")
    return _SHARED_DATA


@pytest.fixture
def x64() -> Iterator[None]:
    """Runs the test with JAX's 64-bit types."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=[np.float32, np.float64], ids=["float32", "float64"])
def dtype(request: pytest.FixtureRequest) -> Iterator[Any]:
    """Both dtypes of positions; with float64 the test runs with JAX's 64-bit types."""
    with jax.enable_x64(request.param == np.float64):
        yield request.param


@pytest.fixture
def count_compilations(caplog: pytest.LogCaptureFixture) -> Callable[[], Any]:
    """A context manager that gives a list, to which every compilation by JAX inside it adds a line."""

    @contextlib.contextmanager
    def counting() -> Iterator[list[str]]:
        lines: list[str] = []
        caplog.clear()
        with jax.log_compiles(), caplog.at_level(logging.WARNING):
            yield lines
        lines += [line for line in caplog.messages if line.startswith("Compiling")]

    return counting
