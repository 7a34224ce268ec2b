"""``jztree info``: the installed software and its configuration."""

import importlib.util
import os
import platform
from argparse import Namespace
from collections.abc import Sequence
from importlib import metadata
from typing import Any

import jax

import jztree
from jztree.kernels import native_info

from .._report import print_json, print_pairs

_BUILD_CUDA = "JZTREE_CUDA=ON pip install ."
_BUILD_ALL = "JZTREE_INSTRUCTION_SETS=ALL pip install ."


def run_info(args: Namespace) -> None:
    """Print versions, devices, native libraries and instruction set in use, and the state of GPU support."""
    native = native_info()
    versions = [(name, metadata.version(name)) for name in ("jax", "jaxlib", "numpy", "h5py")]
    devices = [f"{device.platform}:{device.id} ({device.device_kind})" for device in jax.devices()]
    pairs = [
        ("jztree", jztree.__version__),
        *versions,
        ("Python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"),
        ("devices", ", ".join(devices)),
        ("CPU library", str(native["cpu_library"])),
        ("instruction set", instruction_set(native)),
        ("CPU threads", str(native["num_threads"])),
        ("CUDA library", str(native.get("cuda_library") or "none")),
        ("GPU backend", gpu_backend(native, [device.platform for device in jax.devices()])),
    ]
    if args.json:
        print_json({name.replace(" ", "_"): value for name, value in pairs} | {"devices": devices})
    else:
        print_pairs(pairs)


def instruction_set(native: dict[str, Any]) -> str:
    """Return the instruction set in use, and the remedy if the library lacks a better one of this machine.

    Args:
        native: Result of `jztree.kernels.native_info`.
    """
    used, best = native["instruction_set"], native["best_instruction_set"]
    if used == best or os.environ.get("JZTREE_INSTRUCTION_SET"):
        return str(used)
    return f"{used}; this machine has {best}, for which nothing is compiled: {_BUILD_ALL}"


def gpu_backend(native: dict[str, Any], platforms: Sequence[str]) -> str:
    """Describe the GPU support, and the remedy if something is missing.

    Args:
        native: Result of `jztree.kernels.native_info`.
        platforms: Platforms of JAX's devices.
    """
    if not native.get("cuda_library"):
        where = "if you have the CUDA compiler (nvcc, 'module load cuda'), build it in the source folder"
        return f"none; {where}: {_BUILD_CUDA}"
    words = f"CUDA {native['cuda_version']}, architectures {native['cuda_architectures']}"
    if "gpu" in platforms:
        return f"{words}, in use"
    if not any(importlib.util.find_spec(f"jax_cuda{version}_plugin") for version in (12, 13)):
        return f"{words}, not in use: this JAX is for CPUs only; pip install 'jax[cuda13]' or 'jax[cuda12]'"
    return (
        f"{words}, not in use: JAX sees no GPU (for the reason, see nvidia-smi, JAX_PLATFORMS and CUDA_VISIBLE_DEVICES)"
    )
