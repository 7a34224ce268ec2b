"""Which native library is loaded, and the error or warning if none can be."""

import _ctypes
import contextlib
import ctypes
import platform
import re
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import pytest

from jztree.kernels import _library


@pytest.mark.skipif(platform.machine() != "x86_64", reason="instruction sets contain one another only here")
def test_instruction_set_not_supported_by_the_processor_raises(monkeypatch, tmp_path) -> None:
    """Running code for them would crash the process without a message."""
    (tmp_path / "libjztree_cpu_x86-64-v9.so").touch()
    monkeypatch.setattr(_library, "_LIBRARIES", tmp_path)
    with pytest.raises(ImportError, match="which this processor does not support; set it to x86-64-v3 or lower"):
        _library._check_level("x86-64-v9", "x86-64-v2", "x86-64-v3")
    _library._check_level("x86-64-v2", "x86-64-v2", "x86-64-v3")


@pytest.mark.parametrize(
    ("plainest", "copies", "best", "expected"),
    [
        ("x86-64-v2", ["x86-64-v4"], "x86-64-v4", "x86-64-v4"),
        ("x86-64-v2", ["x86-64-v4"], "x86-64-v3", "x86-64-v2"),
        ("x86-64-v2", ["x86-64-v3"], "x86-64-v4", "x86-64-v3"),
        ("x86-64-v4", ["x86-64-v2", "cuda-emulated"], "x86-64-v3", "x86-64-v2"),
        ("aarch64", ["sanitized"], "aarch64", "aarch64"),
        ("x86-64-v4", ["cuda-emulated"], "x86-64-v3", None),
    ],
)
def test_best_compiled_instruction_set_of_the_machine_is_used(
    plainest: str, copies: list[str], best: str, expected: str | None, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name in copies:
        (tmp_path / f"libjztree_cpu_{name}.so").touch()
    monkeypatch.setattr(_library, "_LIBRARIES", tmp_path)
    if expected is None:
        with pytest.raises(
            ImportError, match="compiled for x86-64-v4 here, but this processor supports x86-64-v3; install"
        ):
            _library._best_compiled(plainest, best)
    else:
        assert _library._best_compiled(plainest, best) == expected


def test_library_of_another_version_raises_or_warns(monkeypatch, tmp_path) -> None:
    """Such a library may be left over from an earlier installation."""
    for name in ("libjztree_cpu.so", "libjztree_cuda.so"):
        shutil.copy(_ctypes.__file__, tmp_path / name)
    monkeypatch.setattr(_library, "_LIBRARIES", tmp_path)
    with pytest.raises(ImportError, match=r"libjztree_cpu\.so is of another version than jztree itself; install"):
        _library._load("jztree_cpu")
    with pytest.warns(UserWarning, match=r"libjztree_cuda\.so is of another version .*so kernels run on CPUs only"):
        assert _library._cuda_library.__wrapped__() is None


@pytest.mark.parametrize(
    ("compiled", "driver", "used"),
    [(13000, 12080, False), (13000, 13000, True), (13020, 13000, True), (12040, 13000, True), (12040, 0, True)],
)
def test_driver_older_than_the_cuda_library_warns(
    compiled: int, driver: int, used: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a driver, as on a login node, there is no warning."""
    library = SimpleNamespace(**{f"jztree_{name}": None for name in _library._kernel_names()})
    library.jztree_cuda_architectures = SimpleNamespace()
    library.jztree_cuda_version, library.jztree_cuda_driver_version = lambda: compiled, lambda: driver
    (tmp_path / "libjztree_cuda.so").touch()
    monkeypatch.setattr(_library, "_LIBRARIES", tmp_path)
    monkeypatch.setattr(ctypes, "CDLL", lambda path: library)
    says = (
        r"compiled with CUDA 13\.0, and the driver of this machine runs CUDA 12\.8 at most, so kernels run on CPUs only"
    )
    with contextlib.nullcontext() if used else pytest.warns(UserWarning, match=says):
        assert _library._cuda_library.__wrapped__() is (library if used else None)


def test_documented_compute_capabilities_are_those_compiled() -> None:
    root = Path(__file__).parents[2]
    lists = (root / "jztree/native/common/cuda/CMakeLists.txt").read_text()
    compiled = [f"{int(word) / 10}" for word in re.findall(r"set\(architectures ([\d ]+)\)", lists)[0].split()]
    documented = f"compute capabilities {', '.join(compiled[:-1])} and {compiled[-1]}"
    assert documented in (root / "docs/gpu.md").read_text()
    assert "11.0" in compiled, "code for 10.0 or 12.0 does not run there"


def test_cuda_kernels_have_a_stage_that_loads_them(monkeypatch: pytest.MonkeyPatch) -> None:
    registered: dict[tuple[str, str], Any] = {}
    monkeypatch.setattr(
        jax.ffi, "register_ffi_target", lambda name, target, platform: registered.update({(name, platform): target})
    )
    for cuda in (None, _library._cpu_library()):
        monkeypatch.setattr(_library, "_cuda_library", lambda cuda=cuda: cuda)
        _library._register()
        names = {name.removeprefix("jztree_") for name, _ in registered}
        assert names == set(_library._kernel_names())
        stages = [set(target) if isinstance(target, dict) else None for _, target in sorted(registered.items())]
        assert stages == [None if cuda is None else {"initialize", "execute"}, None, None] * len(names)


def test_cuda_library_of_the_newest_generation_that_the_driver_supports(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """If no library was compiled with this package, use the distribution for the CUDA generation."""
    for generation in (12, 13):
        folder = tmp_path / f"jztree_native_cuda{generation}"
        folder.mkdir()
        (folder / "libjztree_cuda.so").touch()
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(_library, "_LIBRARIES", tmp_path)

    def opened(path: str) -> SimpleNamespace:
        library = SimpleNamespace(**{f"jztree_{name}": None for name in _library._kernel_names()}, path=path)
        library.jztree_cuda_architectures = SimpleNamespace()
        library.jztree_cuda_version = lambda: 12040 if "cuda12" in path else 13000
        library.jztree_cuda_driver_version = lambda: drivers[-1]
        return library

    monkeypatch.setattr(ctypes, "CDLL", opened)
    drivers: list[int] = []
    for driver, generation in ((13000, 13), (12080, 12), (0, 13)):
        drivers.append(driver)
        library: Any = _library._cuda_library.__wrapped__()
        assert f"jztree_native_cuda{generation}" in library.path
