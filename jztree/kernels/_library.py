"""Load the native libraries and register their kernels with JAX."""

import ctypes
import functools
import importlib.util
import os
import warnings
from pathlib import Path
from typing import Any

import jax

__all__ = ["native_info", "particles_done", "set_num_threads"]

_VARIABLE = "JZTREE_INSTRUCTION_SET"
_COPY = "libjztree_cpu_"  # prefix of the libraries for instruction sets above the baseline
_LEVELS = "x86-64-v"  # prefix of instruction sets that each include all lower levels
_LIBRARIES = Path(__file__).parents[1] / "lib"


def _load(name: str) -> ctypes.CDLL:
    path = _LIBRARIES / f"lib{name}.so"
    if not _LIBRARIES.exists() and (Path(__file__).parents[2] / "CMakeLists.txt").exists():
        raise ImportError(
            f"Python has imported jztree from its source folder {_LIBRARIES.parents[1]}, which has no compiled "
            "library; start Python in another folder to import the installed package, or run 'make develop' here."
        )
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ImportError(
            f"jztree's native library {path} cannot be loaded ({error}); install jztree again with 'pip install .' in "
            "its source folder, which needs a C++17 compiler."
        ) from error
    for function in ("instruction_set", "kernels", "best_instruction_set", "particles_done"):
        if not hasattr(library, f"jztree_{function}"):
            raise ImportError(
                f"jztree's native library {path} is of another version than jztree itself; install jztree again with "
                "'pip install .' in its source folder."
            )
        getattr(library, f"jztree_{function}").restype = ctypes.c_char_p
    library.jztree_particles_done.restype = ctypes.c_int64
    return library


@functools.cache
def _cpu_library() -> ctypes.CDLL:
    """Return the library for the best instruction set that this machine has, or for that in JZTREE_INSTRUCTION_SET."""
    plain = _load("jztree_cpu")
    plainest, best = plain.jztree_instruction_set().decode(), plain.jztree_best_instruction_set().decode()
    level = os.environ.get(_VARIABLE)
    if level:
        _check_level(level, plainest, best)
    level = level or _best_compiled(plainest, best)
    return plain if level == plainest else _load(f"jztree_cpu_{level}")


def _compiled(plainest: str) -> list[str]:
    """Return the instruction sets that libraries were compiled for, in ascending order."""
    return sorted({plainest, *(path.stem.removeprefix(_COPY) for path in _LIBRARIES.glob(f"{_COPY}*.so"))})


def _best_compiled(plainest: str, best: str) -> str:
    """Return the best instruction set of a library for this machine, which supports ``best`` and lower ones.

    Raises:
        ImportError: If all libraries need a newer machine.
    """
    if not plainest.startswith(_LEVELS):
        return plainest
    fitting = [level for level in _compiled(plainest) if level.startswith(_LEVELS) and level <= best]
    if not fitting:
        raise ImportError(
            f"jztree is compiled for {plainest} here, but this processor supports {best}; install jztree again on this "
            "machine, or for all machines with JZTREE_INSTRUCTION_SETS=ALL pip install . in its source folder."
        )
    return fitting[-1]


def _check_level(level: str, plainest: str, best: str) -> None:
    """Raise ImportError unless this machine has the instruction set ``level`` and there is a library for it."""
    built = _compiled(plainest)
    if level not in built:
        raise ImportError(
            f"the environment variable {_VARIABLE} is {level!r}, but jztree is compiled for {', '.join(built)} here; "
            "set it to one that is compiled, or unset it for the best one of this machine."
        )
    if level.startswith(_LEVELS) and level > best:
        raise ImportError(
            f"the environment variable {_VARIABLE} is {level!r}, which this processor does not support; set it to "
            f"{best} or lower, or unset it."
        )


def _kernel_names() -> list[str]:
    return _cpu_library().jztree_kernels().decode().split(",")[:-1]


@functools.cache
def _cuda_library() -> ctypes.CDLL | None:
    """Load the CUDA kernels. None if no usable library is installed; warn if the installed one is unusable."""
    fault = None
    for path in _cuda_paths():
        library, fault = _load_cuda(path)
        if library is not None:
            return library
    if fault is not None:
        warnings.warn(fault, stacklevel=2)
    return None


def _cuda_paths() -> list[Path]:
    """Return the CUDA library compiled with this package, or the libraries of the packages per CUDA major version."""
    name = "libjztree_cuda.so"
    if (local_path := _LIBRARIES / name).exists():
        return [local_path]
    specs = [importlib.util.find_spec(f"jztree_native_cuda{generation}") for generation in (13, 12)]
    folders = [folder for spec in specs if spec for folder in spec.submodule_search_locations or ()]
    return [path for folder in folders if (path := Path(folder) / name).exists()]


def _load_cuda(path: Path) -> tuple[ctypes.CDLL | None, str | None]:
    """Return a CUDA library, or None and the reason why it cannot be used. The CPU works without it."""
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        return None, f"jztree's CUDA library {path} cannot be loaded ({error}); kernels run on CPUs only."
    functions = (*_kernel_names(), "cuda_architectures", "cuda_driver_version")
    missing = [name for name in functions if not hasattr(library, f"jztree_{name}")]
    if missing:
        return None, (
            f"jztree's CUDA library {path} is of another version than jztree itself ({missing[0]} is not in it), so "
            "kernels run on CPUs only; install jztree again with 'pip install .' in its source folder."
        )
    compiled, driver = library.jztree_cuda_version(), library.jztree_cuda_driver_version()
    if 0 < driver // 1000 < compiled // 1000:  # any driver of the same major version, or newer, works
        return None, (
            f"jztree's CUDA library {path} is compiled with CUDA {_cuda_version(compiled)}, and the driver of this "
            f"machine runs CUDA {_cuda_version(driver)} at most, so kernels run on CPUs only; install a jztree "
            f"compiled with CUDA {driver // 1000}, or a newer driver."
        )
    library.jztree_cuda_architectures.restype = ctypes.c_char_p
    return library, None


def _cuda_version(number: int) -> str:
    """Format a CUDA version. CUDA encodes it as 1000 times the major number plus 10 times the minor one."""
    return f"{number // 1000}.{number % 1000 // 10}"


@functools.cache
def scratch_libraries() -> dict[str, ctypes.CDLL]:
    """Return the libraries whose kernels take work memory as an additional result, by JAX's platform name.

    These libraries report the size of that memory: the CUDA library, and the one that emulates its kernels on the CPU.
    """
    every = {"cpu": _cpu_library(), "cuda": _cuda_library()}
    libraries = {name: lib for name, lib in every.items() if lib is not None and hasattr(lib, "jztree_scratch_bytes")}
    for library in libraries.values():
        library.jztree_scratch_bytes.restype = ctypes.c_int64
    return libraries


def _register() -> None:
    """Register every kernel for the CPU and for CUDA. Without a CUDA library, the CUDA kernels report this.

    XLA calls a CUDA kernel in two stages. In the first, which all devices leave together, the kernel loads its GPU code
    (native/common/cuda/gpu_kernel.h).
    """
    cpu, cuda = _cpu_library(), _cuda_library()
    missing = jax.ffi.pycapsule(cpu.jztree_missing)
    for name in _kernel_names():
        symbol = f"jztree_{name}"
        targets = {"cpu": jax.ffi.pycapsule(getattr(cpu, symbol)), "CUDA": missing, "ROCM": missing}
        if cuda is not None:
            targets["CUDA"] = dict.fromkeys(("initialize", "execute"), jax.ffi.pycapsule(getattr(cuda, symbol)))
        for platform, target in targets.items():
            jax.ffi.register_ffi_target(symbol, target, platform=platform)


_register()


def set_num_threads(num: int | None) -> None:
    """Limit CPU kernels to ``num`` threads each; None, the default, means all threads of XLA's pool.

    Results do not depend on the number.

    Raises:
        ValueError: If ``num`` is below 1.
    """
    if num is not None and num < 1:
        raise ValueError(f"the number of threads must be at least 1, or None for all, not {num}.")
    _cpu_library().jztree_set_thread_limit(ctypes.c_int(num or 0))


def particles_done() -> int:
    """Return the number of particles whose pairs `pair_counts` has counted on CPUs since the library was loaded.

    The number grows while a count runs, so that another thread can report its progress. Each count adds the number of
    its first set of particles.
    """
    return int(_cpu_library().jztree_particles_done())


def native_info() -> dict[str, Any]:
    """Describe the native libraries in use.

    Returns:
        ``cpu_library``, ``instruction_set``, ``best_instruction_set`` (that of this machine, which may not be
        compiled), ``num_threads``; ``cuda_library``, ``cuda_architectures`` (the architectures with machine code in
        that library, in one string), and ``cuda_version`` at compile time. The last three are None without a CUDA
        library.
    """
    cpu, cuda = _cpu_library(), _cuda_library()
    return {
        "cpu_library": cpu._name,
        "instruction_set": cpu.jztree_instruction_set().decode(),
        "best_instruction_set": cpu.jztree_best_instruction_set().decode(),
        "num_threads": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "cuda_library": None if cuda is None else cuda._name,
        "cuda_architectures": None if cuda is None else cuda.jztree_cuda_architectures().decode(),
        "cuda_version": None if cuda is None else _cuda_version(cuda.jztree_cuda_version()),
    }
