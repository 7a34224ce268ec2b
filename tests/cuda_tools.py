"""Tools for tests of the CUDA kernels without a GPU: marks, nvcc, and the disassembler. Not a test."""

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import jax
import pytest

from jztree.kernels import native_info

NATIVE = Path(__file__).parents[1] / "jztree" / "native"
# Those of jztree/native/common/cuda/CMakeLists.txt.
FLAGS = ["-std=c++17", "-O3", "--fmad=false", "--expt-relaxed-constexpr"]
_LIBRARY = native_info()["instruction_set"]
only_emulated = pytest.mark.skipif(_LIBRARY != "cuda-emulated", reason="the CUDA kernels are not emulated here")
only_watched = pytest.mark.skipif(_LIBRARY != "cuda-watched", reason="the CUDA kernels are not watched here")
_USAGE = re.compile(r"Function (\S+):\s+REG:(\d+) STACK:\d+ SHARED:(\d+) LOCAL:\d+.*? CONSTANT\[0\]:(\d+)")
_FUNCTION = re.compile(r"^\.text\.(\S+):$(.*?)(?=^//-----|\Z)", re.DOTALL | re.MULTILINE)


def tool(name: str) -> str:
    """Return a program of CUDA: on the PATH, in the folder of nvcc, or from a Python package.

    Skip the test if there is none.
    """
    next_to_nvcc = Path(shutil.which("nvcc") or "").resolve().parent / name
    packages = Path(sysconfig.get_path("purelib")).glob(f"nvidia/*/bin/{name}")
    result = shutil.which(name) or next((str(path) for path in (next_to_nvcc, *packages) if path.is_file()), None)
    if result is None:
        pytest.skip(f"there is no {name}; 'pip install nvidia-cuda-{name}' installs it")
    return result


def compile_cubin(source: Path, cubin: Path, *options: str, architecture: int = 90) -> None:
    """Compile to machine code with the library's optimisation, by default for compute capability 9.0."""
    include = [f"-I{NATIVE}", "-isystem", jax.ffi.include_dir()]
    # Ignore options of the environment, which may be for faster compilation.
    environment = {name: value for name, value in os.environ.items() if name != "NVCC_APPEND_FLAGS"}
    command = [
        tool("nvcc"),
        *FLAGS,
        *include,
        "-cubin",
        f"-arch=sm_{architecture}",
        *options,
        str(source),
        "-o",
        str(cubin),
    ]
    subprocess.run(command, check=True, env=environment)


def resources(library: Path) -> dict[str, tuple[int, int, int]]:
    """Return registers, bytes of shared memory and bytes of constants of the kernels in machine code, by name."""
    command = [tool("cuobjdump"), "-res-usage", str(library)]
    report = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return {name: (int(used), int(shared), int(constants)) for name, used, shared, constants in _USAGE.findall(report)}


def without_file(name: str) -> str:
    """Return the name of a kernel without that of its unnamed namespace, which depends on file and compiler."""
    return re.sub(r"\d+_GLOBAL__N_(?:_[0-9a-f]{8}_\d+_\w+?_cu_[0-9a-f]{8}|1)", "", name)


def disassemble(cubin: Path) -> dict[str, str]:
    """Return the machine code of each function."""
    command = [tool("nvdisasm"), "-c", "-ndf", str(cubin)]
    return dict(_FUNCTION.findall(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
