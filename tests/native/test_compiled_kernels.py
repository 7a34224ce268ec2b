"""Kernels as nvcc compiles them run in the emulator, with the bits of those that the host's compiler compiles.

tests/ptx.py translates nvcc's intermediate code to C++. So these tests include nvcc's optimisations, for example of the
branches around the operations of a warp.
"""

import contextlib
import ctypes
import functools
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cuda_tools
import jax
import jax.numpy as jnp
import numpy as np
import oracles
import ptx
import pytest

from jztree import kernels
from jztree.config import TreeConfig
from jztree.knn import knn
from jztree.tree import zsort, zsort_and_tree

pytestmark = [
    pytest.mark.emulated,
    pytest.mark.long,
    pytest.mark.skipif(
        kernels.native_info()["instruction_set"] != "cuda-emulated", reason="the CUDA kernels are not emulated here"
    ),
    pytest.mark.skipif(shutil.which("nvcc") is None, reason="there is no CUDA compiler"),
]

EMULATOR = Path(__file__).parents[1] / "native" / "cuda_emulator"
FLOAT_3D = "Li3Ef"  # in the name of a kernel for three dimensions and float32
SEARCH = """
#include "knn/knn_search.cuh"
template __global__ void jztree::search_short<3, {capacity}, float, float, {repeated}>(
    const __grid_constant__ jztree::Problem<float>, const jztree::Scale<3, float>*,
    const __grid_constant__ jztree::Limits<3, float>, int64_t, uint32_t, jztree::Unanswered);
"""


class Translated:
    """Translated kernels, and their counterparts in the emulator's library."""

    def __init__(self, source: Path, folder: Path, expected: str = "") -> None:
        code, library = folder / f"{source.stem}.cc", folder / f"{source.stem}.so"
        cuda_tools.compile_cubin(source, folder / "kernels.ptx", "-DJZTREE_DIMS=0b1010", form="ptx")
        translation, self.names = ptx.translate((folder / "kernels.ptx").read_text(), expected)
        code.write_text(translation)
        flags = ["-std=c++17", "-O1", "-ffp-contract=off", "-fPIC", "-shared", "-w", f"-I{EMULATOR}"]
        subprocess.run(["c++", *flags, str(code), "-o", str(library)], check=True)
        self.library = ctypes.CDLL(str(library))
        self.kernels = (ctypes.c_void_p * len(self.names)).in_dll(self.library, "kernels")

    @contextlib.contextmanager
    def in_place(self) -> Iterator[dict[str, int]]:
        """Let the emulator run these kernels. Afterwards, the result has the number of threads that ran each."""
        replace = ctypes.CDLL(kernels.native_info()["cpu_library"]).jztree_emulator_replace
        replace.restype, replace.argtypes = ctypes.c_int64, (ctypes.c_int64, ctypes.c_void_p)
        places = emulated_places()
        here = {name: places[cuda_tools.without_file(name)] - places["jztree_emulator_replace"] for name in self.names}
        threads: dict[str, int] = {}
        for name, kernel in zip(self.names, self.kernels, strict=True):
            replace(here[name], kernel)
        try:
            yield threads
        finally:
            threads.update({name: replace(place, None) for name, place in here.items()})


@functools.cache
def emulated_places() -> dict[str, int]:
    """Return the addresses of the functions in the emulator's library."""
    command = ["nm", kernels.native_info()["cpu_library"]]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    result = [line.split() for line in lines]
    return {cuda_tools.without_file(words[2]): int(words[0], 16) for words in result if len(words) == 3}


def bits_of(results: Any) -> list[bytes]:
    return [np.asarray(one).tobytes() for one in jax.tree.leaves(results)]


def run_threads(translated: Translated, call: Callable[[], Any]) -> dict[str, int]:
    """Compare the results of a call with and without the translated kernels. Return the threads that ran each."""
    expected = bits_of(call())
    with translated.in_place() as threads:
        result = bits_of(call())
    assert result == expected
    return threads


def clumps(n: int, longest: int) -> np.ndarray:
    """Return ``n`` uniform points, and clumps with the first bits of a key in common."""
    random = np.random.default_rng(4)
    sizes = [2, 30, 40, longest]
    centres = np.repeat(random.integers(1, 2**8, (len(sizes), 3)) / 2**8, sizes, axis=0)
    near = centres - 1e-6 * random.random(centres.shape)
    return random.permutation(np.concatenate([random.random((n, 3)), near])).astype(np.float32)


def translated_search(capacity: int, repeated: bool, folder: Path) -> Translated:
    """Translate the search with lists of this capacity."""
    source = folder / "search.cu"
    source.write_text(SEARCH.format(capacity=capacity, repeated=str(repeated).lower()))
    return Translated(source, folder)


def test_sort_as_compiled_by_nvcc_has_the_same_bits(tmp_path: Path) -> None:
    translated = Translated(cuda_tools.NATIVE / "zorder" / "zsort.cu", tmp_path, FLOAT_3D)
    for longest in (500, 1500):  # rows of a clump: only clumps of more than 1024 rows need a merge sort
        pos = clumps(1000, longest)
        pos[5] = np.nan
        threads = run_threads(translated, lambda pos=pos: zsort(jnp.asarray(pos), boxsize=1.0))
        assert len(threads) == 6
        assert min(threads.values()) > 0


def test_hierarchy_as_compiled_by_nvcc_has_the_same_bits(tmp_path: Path) -> None:
    expected = f"{FLOAT_3D}|leaf_boundaries|plane_boundariesIf"
    translated = Translated(cuda_tools.NATIVE / "tree" / "hierarchy.cu", tmp_path, expected)
    pos, cfg = jnp.asarray(oracles.uniform(5000, 3)), TreeConfig(leaf_size=2, fan_out=2)
    threads = run_threads(translated, lambda: zsort_and_tree(pos, cfg, boxsize=1.0))
    assert len(threads) == 7
    assert min(threads.values()) > 0


@pytest.mark.parametrize(
    ("capacity", "ks"),
    [
        pytest.param(4, [3], marks=pytest.mark.slow),
        pytest.param(16, [12], marks=pytest.mark.slow),
        pytest.param(32, [30], marks=pytest.mark.slow),
        pytest.param(32, [64], marks=pytest.mark.slow),
        (8, [5, 8]),
    ],
)
def test_neighbours_as_compiled_by_nvcc_have_the_same_bits(capacity: int, ks: list[int], tmp_path: Path) -> None:
    translated = translated_search(capacity, ks[-1] > capacity, tmp_path)
    pos = np.concatenate([oracles.uniform(1500, 3), np.round(oracles.uniform(500, 3) * 8) / 8]).astype(np.float32)
    for k in ks:
        for box in (None, 1.0):
            threads = run_threads(translated, lambda k=k, box=box: knn(jnp.asarray(pos), k, boxsize=box))
            assert min(threads.values()) >= len(pos)


def test_a_fault_in_compiled_code_changes_the_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    translate = ptx.translate

    def faulty(*arguments: str) -> tuple[str, list[str]]:
        code, names = translate(*arguments)
        assert "lt_(in<float>" in code
        return code.replace("lt_(in<float>", "gt_(in<float>"), names

    monkeypatch.setattr(ptx, "translate", faulty)
    translated = Translated(cuda_tools.NATIVE / "tree" / "hierarchy.cu", tmp_path, f"leaf_boxesI{FLOAT_3D}")
    with pytest.raises(AssertionError):
        run_threads(translated, lambda: zsort_and_tree(jnp.asarray(oracles.uniform(500, 3))))
