"""Snapshots that the tests write with h5py alone, independently of the code under test."""

import functools
import itertools
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import h5py
import jax
import numpy as np
import pytest
from jax.sharding import AxisType

from jztree_utils import _constants, cli, io
from jztree_utils.cli._particles import many_devices
from jztree_utils.io import _columns
from jztree_utils.large import _plan


def _write_gadget(
    path: Path,
    pos: np.ndarray,
    *,
    total: int | None = None,
    num_files: int = 1,
    columns: dict[str, np.ndarray] | None = None,
    header: dict[str, Any] | None = None,
    ptype: int = 1,
) -> Path:
    """Write a snapshot file in the format of AREPO. Header entries of None are left out."""
    counts = np.zeros(6, np.int64)
    counts[ptype] = len(pos)
    in_all = np.zeros(6, np.int64)
    in_all[ptype] = len(pos) if total is None else total
    attributes = {
        "BoxSize": 1.0,
        "Time": 1.0,
        "Redshift": 0.0,
        "MassTable": np.where(np.arange(6) == ptype, 2.5, 0.0),
        "NumFilesPerSnapshot": np.int32(num_files),
        "NumPart_ThisFile": counts.astype(np.int32),
        "NumPart_Total": (in_all % 2**32).astype(np.uint32),
        "NumPart_Total_HighWord": (in_all // 2**32).astype(np.uint32),
    }
    with h5py.File(path, "w") as file:
        for name, value in (attributes | (header or {})).items():
            file.require_group("Header")
            if value is not None:
                file["Header"].attrs[name] = value
        if len(pos):
            group = file.create_group(f"PartType{ptype}")
            for name, column in ({"Coordinates": pos} | (columns or {})).items():
                group[name] = column
    return path


@pytest.fixture(scope="session")
def write_gadget() -> Callable[..., Path]:
    return _write_gadget


@pytest.fixture
def small_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make readers of snapshots use many slices for a few rows."""
    monkeypatch.setattr(_columns, "_SLICE_BYTES", 100)


@pytest.fixture
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let searches among more particles than memory holds use memory for a few particles."""
    monkeypatch.setattr(_constants, "PROGRAM_BYTES", 0)
    monkeypatch.setattr(_plan, "_FEWEST", 10)


def _use_devices(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    if len(jax.devices()) < count:
        pytest.skip(f"needs {count} devices; XLA_FLAGS=--xla_force_host_platform_device_count={count} gives them")
    mesh = jax.make_mesh((count,), ("devices",), axis_types=(AxisType.Auto,), devices=jax.devices()[:count])
    monkeypatch.setattr(many_devices, "all_devices", lambda: mesh)


@pytest.fixture
def use_devices(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Make the command line use a number of devices of this process."""
    return functools.partial(_use_devices, monkeypatch)


@pytest.fixture(scope="module")
def one_device_in_fixtures() -> Iterator[None]:
    """Make the command line use one device in this module and its fixtures, instead of every device of the process."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        _use_devices(monkeypatch, 1)
        yield


@pytest.fixture
def random() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def snapshot(tmp_path: Path, random: np.random.Generator) -> Path:
    """A snapshot of 500 particles in one file, in the unit box."""
    pos = random.random((500, 3), np.float32)
    return _write_gadget(tmp_path / "snapshot.hdf5", pos, columns={"ParticleIDs": np.arange(500, dtype=np.uint64)})


@pytest.fixture
def write_parts(tmp_path: Path) -> Callable[..., list[Path]]:
    """A function that writes a snapshot in several files, cut before the given rows."""

    def write(pos: np.ndarray, cuts: Sequence[int], name: str = "snap_003", **columns: np.ndarray) -> list[Path]:
        bounds = [0, *cuts, len(pos)]
        paths = []
        for part, (start, end) in enumerate(itertools.pairwise(bounds)):
            paths.append(
                _write_gadget(
                    tmp_path / f"{name}.{part}.hdf5",
                    pos[start:end],
                    total=len(pos),
                    num_files=len(bounds) - 1,
                    columns={column: rows[start:end] for column, rows in columns.items()},
                )
            )
        return paths

    return write


@contextmanager
def _refused(message: str) -> Iterator[None]:
    with pytest.raises(io.SnapshotError, match=re.escape(message)) as error:
        yield
    text = str(error.value)
    assert "\n" not in text
    assert text.endswith(".")


@pytest.fixture(scope="session")
def refused() -> Callable[[str], AbstractContextManager[None]]:
    """A context that expects a file to be refused with one sentence that contains a given text."""
    return _refused


@pytest.fixture
def one_device(monkeypatch: pytest.MonkeyPatch, use_devices: Callable[[int], None]) -> None:
    """Make the command line use one device, here and in child processes."""
    use_devices(1)
    monkeypatch.delenv("XLA_FLAGS", raising=False)


@pytest.fixture
def error_of(capsys: pytest.CaptureFixture[str], use_devices: Callable[[int], None]) -> Callable[..., str]:
    """A function that expects a call of the command line to be refused, and returns the error message."""
    use_devices(1)

    def run(*arguments: Any) -> str:
        with warnings.catch_warnings(action="error"):
            status = cli.main([str(argument) for argument in arguments])
        err = capsys.readouterr().err
        assert (status, len(err.splitlines()), err[-2:]) == (2, 1, ".\n"), err
        return err

    return run
