"""Fixtures that all tests share."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

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
