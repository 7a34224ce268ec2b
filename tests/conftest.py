"""Fixtures that all tests share."""

import contextlib
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

# Host devices for the tests of distributed functions, before JAX starts; the others run on the first one.
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count=8"

import jax
import numpy as np
import pytest

_SHARED_DATA = Path(__file__).parents[2] / "shared" / "data"


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
