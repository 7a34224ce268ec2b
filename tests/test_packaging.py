"""What the package says of itself agrees in all the places where it does."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

import jztree

ROOT = Path(__file__).parent.parent
PROJECT: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_one_version_everywhere() -> None:
    version = PROJECT["project"]["version"]
    assert jztree.__version__ == version
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.M)[1] == version  # type: ignore[index]
    assert version in (ROOT / "CHANGELOG.md").read_text()


def test_the_licence_is_the_one_that_is_told() -> None:
    assert PROJECT["project"]["license"] == "MIT"
    assert re.search(r"^license: MIT$", (ROOT / "CITATION.cff").read_text(), re.M)
    licences = [(ROOT / path).read_text() for path in PROJECT["project"]["license-files"]]
    assert all("MIT License" in text for text in licences)
    author = PROJECT["project"]["authors"][0]["name"]
    assert f"Copyright (c) 2026 {author}" in licences[0]


def test_kernels_are_compiled_with_the_oldest_jax_that_may_run_them() -> None:
    """JAX refuses what was compiled with newer headers than its own."""
    (needed,) = (req for req in PROJECT["project"]["dependencies"] if req.startswith("jax>="))
    major, minor = map(int, needed.removeprefix("jax>=").split("."))
    assert f"jax>={major}.{minor},<{major}.{minor + 1}" in PROJECT["build-system"]["requires"]


def configured(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    """What CMake says of a build with the CUDA kernels."""
    cmake = shutil.which("cmake", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}")
    if cmake is None:
        pytest.skip("there is no CMake")
    others = {name: value for name, value in os.environ.items() if name not in ("CUDAARCHS", "CUDACXX", "JZTREE_CUDA")}
    command = [cmake, "-S", str(ROOT), "-B", str(folder), f"-DPython_EXECUTABLE={sys.executable}"]
    command.append("-DJZTREE_INSTRUCTION_SETS=NATIVE")
    return subprocess.run(command, env=others | environ, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler")
def test_cuda_kernels_are_for_all_architectures_unless_some_are_named(tmp_path: Path) -> None:
    done = configured(tmp_path, JZTREE_CUDA="ON")
    assert done.returncode == 0, done.stderr
    assert re.search(r"architectures [0-9a-z;-]*90-real;[0-9a-z;-]*-virtual", done.stdout), done.stdout


def test_cuda_kernels_without_a_compiler_for_them(tmp_path: Path) -> None:
    for choice, code in (("ON", 1), ("AUTO", 0)):
        done = configured(tmp_path / choice, JZTREE_CUDA=choice, CUDACXX="no-such-compiler")
        assert done.returncode == code, done.stderr
        assert "no CUDA compiler (nvcc) was found" in (done.stderr if code else done.stdout)


def test_every_extra_that_a_message_names_exists() -> None:
    extras = PROJECT["project"]["optional-dependencies"]
    sources = [path for folder in ("jztree", "jztree_utils") for path in (ROOT / folder).rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"jztree\[(\w+)\]", path.read_text())}
    assert named
    assert named <= extras.keys()
