"""Counts what a warp does to answer 32 queries for their k nearest neighbours, without a GPU.

The kernel marks its parts with JZTREE_COUNT. The emulator counts how often a warp comes to each of them, and the machine
code, which names the source line of each instruction, says how many instructions each has. The sum of the products is
what a warp issues.

It needs nvcc, nvdisasm (of CUDA, or ``pip install nvidia-cuda-nvdisasm``) and the emulator's library
(``make test-emulated`` builds it)::

    JZTREE_INSTRUCTION_SET=cuda-emulated python checks/profiling/knn_instructions.py
"""

import argparse
import collections
import ctypes
import dataclasses
import pathlib
import re
import subprocess
import tempfile

import jax
import jax.numpy as jnp
import numpy as np

import jztree
import jztree.config
import jztree.knn
from jztree import kernels

_CUDA = pathlib.Path(jztree.__file__).parent / "native" / "cuda"

_SOURCE = """
#include "knn_search.cuh"
template __global__ void jztree::search_short<3, {k}, float, float>(
    const __grid_constant__ jztree::Problem<float>, const jztree::Scale<3, float>*, int64_t, jztree::Unanswered);
"""
# As in jztree/native/cuda/CMakeLists.txt.
_FLAGS = ["-std=c++17", "-O3", "--fmad=false", "--expt-relaxed-constexpr", "-lineinfo", "-cubin", "-Xptxas=-v"]

_MARK = re.compile(r'JZTREE_COUNT\("(.*)"\);')
_FRAME = re.compile(r'//## File "([^"]+)", line (\d+)')
_INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]{4,}\*/\s+(.*?);")


@dataclasses.dataclass(frozen=True)
class Compiled:
    """The kernel for one k: how many instructions each part has, and what ptxas reports of it."""

    instructions: dict[str, int]
    registers: int
    spilled: int


def marked_lines(path: pathlib.Path) -> dict[int, str]:
    """Which part each line of a source belongs to: the innermost block of braces around it that begins with a mark."""
    parts: dict[int, str] = {}
    open_blocks: list[str] = [""]
    for number, line in enumerate(path.read_text().splitlines(), 1):
        code = line.split("//")[0]
        if mark := _MARK.search(code):
            open_blocks[-1] = mark[1]
        named = [part for part in open_blocks if part]
        if named:
            parts[number] = named[-1]
        for bracket in re.sub(r'"[^"]*"', "", code):
            if bracket == "{":
                open_blocks.append("")
            elif bracket == "}":
                open_blocks.pop()
    return parts


def parts_of(disassembly: str) -> dict[str, int]:
    """Instructions of each part. One that was made of a function without marks counts where the function is called."""
    marks: dict[str, dict[int, str]] = {}
    counts: collections.Counter[str] = collections.Counter()
    frames: list[tuple[str, int]] = []
    part, fresh = "", True
    for line in disassembly.splitlines():
        if frame := _FRAME.search(line):
            if not fresh:
                frames, fresh = [], True
            frames.append((frame[1], int(frame[2])))
        elif (instruction := _INSTRUCTION.match(line)) and not instruction[1].startswith("NOP"):
            if fresh:
                for path, _ in frames:
                    marks.setdefault(path, marked_lines(pathlib.Path(path)))
                part, fresh = next((marks[path][number] for path, number in frames if number in marks[path]), ""), False
            counts[part] += 1
    return dict(counts)


def compile_kernel(k: int, architecture: int, nvdisasm: str) -> Compiled:
    """What the compiler makes of the kernel for lists of k."""
    with tempfile.TemporaryDirectory() as folder:
        source, binary = pathlib.Path(folder, "kernel.cu"), pathlib.Path(folder, "kernel.cubin")
        source.write_text(_SOURCE.format(k=k))
        include = [f"-I{_CUDA}", "-isystem", jax.ffi.include_dir()]
        command = ["nvcc", *_FLAGS, *include, f"-arch=sm_{architecture}", source, "-o", binary]
        report = subprocess.run(command, check=True, capture_output=True, text=True).stderr
        command = [nvdisasm, "-gi", "-c", "-ndf", binary]
        disassembly = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    about = re.search(rf"Function properties for \S*search_shortILi3ELi{k}E.*?(\d+) bytes spill stores.*?Used (\d+) reg", report, re.S)
    assert about, report
    text = re.search(rf"^\.text\.\S*search_shortILi3ELi{k}E\S*:(.*?)(?=^//-----|\Z)", disassembly, re.S | re.M)
    assert text
    return Compiled(parts_of(text[1]), int(about[2]), int(about[1]))


def count_parts(n: int, k: int, periodic: bool, cfg: jztree.config.KNNConfig) -> dict[str, int]:
    """How often warps come to each part: n uniform points in a box, which are the queries too."""
    library = ctypes.CDLL(kernels.native_info()["cpu_library"])
    library.jztree_emulator_counts.restype = ctypes.c_char_p
    pos = jnp.asarray(np.random.default_rng(7).random((n, 3), dtype=np.float32))
    library.jztree_emulator_counts()
    jax.block_until_ready(jztree.knn.knn(pos, k, boxsize=1.0 if periodic else None, cfg=cfg))
    lines = library.jztree_emulator_counts().decode().splitlines()
    return {name: int(count) for name, count in (line.rsplit("=", 1) for line in lines)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--k", type=int, nargs="+", default=[8, 16, 32])
    parser.add_argument("--n", type=int, default=100_000)
    parser.add_argument("--architecture", type=int, default=90)
    parser.add_argument("--leaf-size", type=int, default=None)
    parser.add_argument("--fan-out", type=int, default=None)
    parser.add_argument("--open", action="store_true", help="no periodic box")
    parser.add_argument("--nvdisasm", default="nvdisasm")
    chosen = parser.parse_args()
    tree = jztree.config.TreeConfig()
    tree.leaf_size, tree.fan_out = chosen.leaf_size or tree.leaf_size, chosen.fan_out or tree.fan_out
    for k in chosen.k:
        compiled = compile_kernel(k, chosen.architecture, chosen.nvdisasm)
        counts = count_parts(chosen.n, k, not chosen.open, jztree.config.KNNConfig(tree=tree))
        groups = counts["group"]
        print(f"k = {k}: {compiled.registers} registers, {compiled.spilled} bytes spilled")
        total = 0.0
        for part, times in sorted(counts.items(), key=lambda item: -item[1] * compiled.instructions.get(item[0], 0)):
            issued = compiled.instructions.get(part, 0) * times / groups
            total += issued
            print(f"  {part:28}{times / groups:10.2f} x {compiled.instructions.get(part, 0):5} = {issued:10.1f}")
        print(f"  {'all':28}{total:28.0f}; unmarked {compiled.instructions.get('', 0)}")


if __name__ == "__main__":
    main()
